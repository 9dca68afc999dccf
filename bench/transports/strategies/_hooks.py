"""Run DistributedDataParallel with a hook that exchanges each bucket, and records the times of each exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.core.step_model import POWERSGD
from bench.transports.strategies._replica import BucketWait, Build, Exchanged

_MIB = 1 << 20
_FLOAT_BYTES = 4
_CHANNEL = 512  # elements with a scale of their own, as in torch's hook
_EXACT_STEPS = 2  # steps with exact exchanges before PowerSGD begins; PowerSGD needs two


def parallel(build: Build, module: Any, group: Any, ignored: tuple[str, ...] = ()) -> tuple[Any, Callable[[Any], Any]]:
    """Wrap a module in DistributedDataParallel, so that `group` averages its gradients.

    Return the wrapped module, and a function to call after each backward pass. With a meter, a hook records the times
    of each bucket. The hook can also leave out the exchange of a bucket.

    `ignored`: the names of parameters that are not exchanged.
    """
    case, wrapper = build.case, build.torch.nn.parallel.DistributedDataParallel
    given: dict[str, Any] = {"gradient_as_bucket_view": case.bucket_view}
    if case.bucket:
        given["bucket_cap_mb"] = case.bucket / _MIB
    if ignored:
        wrapper._set_params_and_buffers_to_ignore_for_model(module, list(ignored))
    model = wrapper(module, process_group=group, **given)
    if build.groups.meter is None and case.hook == "none":
        return model, lambda returned: returned
    exchange = BucketExchange(build, group)
    model.register_comm_hook(None, lambda _, bucket: exchange.start(bucket.buffer(), bucket))
    return model, exchange.finish


def logged(model: Any) -> dict[str, float]:
    """Return the times that DistributedDataParallel's own logger recorded for the first steps.

    The logger records the first ten steps and then every hundredth step. The result is empty if torch does not report
    these times.

    "steps": the number of recorded steps.
    "forward": the mean seconds of the forward pass.
    "backward": the mean seconds of the backward pass until the last gradient is ready.
    """
    found = model._get_ddp_logging_data()
    names = {"forward": "avg_forward_compute_time", "backward": "avg_backward_compute_time"}
    if found.get("iteration", 0) < 1 or any(name not in found for name in names.values()):
        return {}
    return {"steps": float(found["iteration"]), **{own: found[name] * 1e-9 for own, name in names.items()}}


class BucketExchange:
    """The exchange of buckets, compressed or uncompressed, which records two marks of each bucket: ready and done."""

    def __init__(self, build: Build, group: Any) -> None:
        self._build, self._group, self._meter = build, group, build.groups.meter
        self._exchanged: list[Exchanged] = []
        self._compressed = _compression(build, group)

    def start(self, gradients: Any, bucket: Any) -> Any:
        """Start the exchange of a bucket.

        If the meter leaves exchanges out, return the rank's own gradients at once. Even without an exchange, divide the
        last bucket by the number of ranks, and compute the compression.
        """
        meter, place, size = self._meter, self._build.place, self._group.size()
        noted = Exchanged(gradients.numel() * gradients.element_size(), place.mark())
        if meter:
            self._exchanged.append(noted)
        if self._compressed is not None and not (meter and meter.lossless):
            return self._compressed(gradients, bucket).then(lambda future: noted.finish(place, future.value()))
        if meter and not meter.exchanges:
            future = place.future()
            noted.finish(place, gradients)
            # Divide only the last bucket. In a full step, the other buckets are divided while the pass goes on.
            future.set_result(gradients.div_(size) if bucket.is_last() else gradients)
            return future
        work = self._build.torch.distributed.all_reduce(gradients, group=self._group, async_op=True)
        # One callback marks the end of the exchange and then divides, because each callback waits for Python's lock.
        return work.get_future().then(lambda future: noted.finish(place, future.value()[0]).div_(size))

    def finish(self, returned: Any) -> Any:
        """Return a BucketWait for the buckets of a backward pass.

        If there were no buckets, return the mark `returned`.
        """
        exchanged, self._exchanged = self._exchanged, []
        if not exchanged:
            return returned
        return BucketWait(self._build.groups.number(self._group), exchanged, returned)


def _compression(build: Build, group: Any) -> Callable[[Any, Any], Any] | None:
    """Return a function that exchanges a bucket in compressed form. Return None without compression."""
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
        return _quantised(torch, group, 0 if hook == "int8" else _CHANNEL)
    kind = torch.float16 if hook == "fp16" else torch.bfloat16

    def halved(gradients: Any, _: Any) -> Any:
        # torch has the same hook for both types, but refuses bfloat16 over Gloo, although Gloo can reduce it.
        work = torch.distributed.all_reduce(gradients.to(kind).div_(size), group=group, async_op=True)
        return work.get_future().then(lambda future: gradients.copy_(future.value()[0]))

    return halved


def _quantised(torch: Any, group: Any, channel: int) -> Callable[[Any, Any], Any]:
    """Return a function that gathers the buckets of all ranks in 8 bits, and averages the buckets.

    torch's own hooks of this type do not work here, for two reasons. First, these hooks expect the result of an
    allgather in the form that NCCL returns. Second, these hooks make two exchanges for each bucket, and the second
    exchange depends on the first. The exchanges of several buckets can therefore get mixed up. This function sends the
    scales and the elements of a bucket in one message.

    `channel`: the number of elements that share a scale, or 0 if all elements of a bucket share a scale.
    """
    size = group.size()

    def exchanged(gradients: Any, _: Any) -> Any:
        width = channel or len(gradients)
        rows = torch.nn.functional.pad(gradients, (0, -len(gradients) % width)).view(-1, width)
        low, high = rows.aminmax(dim=1, keepdim=True)
        scale = ((high - low) / 255).clamp_min(torch.finfo(torch.float32).tiny)
        codes = ((rows - low) / scale).round_().clamp_(0, 255).to(torch.uint8)
        packed = torch.cat([part.contiguous().view(torch.uint8).flatten() for part in (low, scale, codes)])
        received = [torch.zeros_like(packed) for _ in range(size)]
        work = torch.distributed.all_gather(received, packed, group=group, async_op=True)

        def averaged(_: Any) -> Any:
            total = torch.zeros_like(rows)
            for message in received:
                scales, found = message.split([2 * _FLOAT_BYTES * len(rows), rows.numel()])
                low_of, scale_of = scales.clone().view(torch.float32).view(2, -1, 1)
                total += low_of + scale_of * found.view(-1, width)
            return gradients.copy_(total.div_(size).flatten()[: len(gradients)])

        return work.get_future().then(averaged)

    return exchanged
