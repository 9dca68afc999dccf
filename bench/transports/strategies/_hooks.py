"""DistributedDataParallel with a hook that stamps buckets, and the exchange of each bucket."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.core.step_model import POWERSGD
from bench.transports.strategies._replica import Build

_MIB = 1 << 20
_EXACT_STEPS = 2  # before PowerSGD begins, which needs two


def parallel(
    build: Build, module: Any, group: Any, ignored: tuple[str, ...] = ()
) -> tuple[Any, Callable[[float], float]]:
    """Return a module in DistributedDataParallel over a group, and what to call when a backward pass has returned.

    With a meter, a hook stamps or leaves out each bucket.

    `ignored`: names of parameters that it leaves alone.
    """
    case, wrapper = build.case, build.torch.nn.parallel.DistributedDataParallel
    given: dict[str, Any] = {"gradient_as_bucket_view": case.bucket_view}
    if case.bucket:
        given["bucket_cap_mb"] = case.bucket / _MIB
    if ignored:
        wrapper._set_params_and_buffers_to_ignore_for_model(module, list(ignored))
    model = wrapper(module, process_group=group, **given)
    if build.groups.meter is None and case.hook == "none":
        return model, lambda returned: 0.0
    exchange = BucketExchange(build, group)
    model.register_comm_hook(None, lambda _, bucket: exchange.start(bucket.buffer(), bucket))
    return model, exchange.finish


class BucketExchange:
    """Exchanges buckets, compressed or as they are, and notes when each was ready and done."""

    def __init__(self, build: Build, group: Any) -> None:
        self._build, self._group, self._meter = build, group, build.groups.meter
        self._noted: list[list[float]] = []
        self._compressed = _compression(build, group)

    def start(self, gradients: Any, bucket: Any) -> Any:
        """Start the exchange of a bucket; while the meter leaves exchanges out, return its own gradients at once.

        A compression computes all the same.
        """
        meter, noted = self._meter, [gradients.numel() * gradients.element_size(), time.perf_counter(), 0.0]
        if meter:
            self._noted.append(noted)
        if self._compressed is not None and not (meter and meter.lossless):
            exchanged = self._compressed(gradients, bucket)
        elif meter and not meter.exchanges:
            exchanged = self._build.torch.futures.Future()
            exchanged.set_result([gradients])
        else:
            exchanged = self._averaged(gradients)

        def done(future: Any) -> Any:
            found = future.value()
            noted[2] = time.perf_counter()
            return found[0] if isinstance(found, list) else found

        return exchanged.then(done)

    def _averaged(self, gradients: Any) -> Any:
        work = self._build.torch.distributed.all_reduce(gradients, group=self._group, async_op=True)
        size = self._group.size()
        return work.get_future().then(lambda future: future.value()[0].div_(size))

    def finish(self, returned: float) -> float:
        """Note the wait of the backward pass that has returned; return what the pass lasted after the last bucket."""
        noted, self._noted = self._noted, []
        if not noted:
            return 0.0
        ready = max(one[1] for one in noted)
        done = min(returned, max(ready, *(one[2] for one in noted)))
        if self._meter:
            self._meter.waits.append((self._build.groups.number(self._group), ready, done))
        for num_bytes, began, ended in noted:
            self._build.stamp(int(num_bytes), began, ended)
        return returned - done


def _compression(build: Build, group: Any) -> Callable[[Any, Any], Any] | None:
    """Return a function that exchanges a bucket in a compressed form, or None."""
    torch, hook, size = build.torch, build.case.hook, group.size()
    if hook == "none":
        return None
    if hook.startswith(POWERSGD):
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        state = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=int(hook.partition(":")[2]), start_powerSGD_iter=_EXACT_STEPS
        )
        return lambda _, bucket: powerSGD_hook.powerSGD_hook(state, bucket)
    if hook.startswith("int8"):
        from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks

        of_tensor, of_channel = (
            quantization_hooks.quantization_pertensor_hook,
            quantization_hooks.quantization_perchannel_hook,
        )
        quantised = of_tensor if hook == "int8" else of_channel
        return lambda _, bucket: quantised(group, bucket)
    kind = torch.float16 if hook == "fp16" else torch.bfloat16

    def halved(gradients: Any, _: Any) -> Any:
        # torch has the same for both types, but refuses bfloat16 over Gloo, which reduces it.
        work = torch.distributed.all_reduce(gradients.to(kind).div_(size), group=group, async_op=True)
        return work.get_future().then(lambda future: gradients.copy_(future.value()[0]))

    return halved
