"""DistributedDataParallel with a hook that stamps buckets, and the exchange of each bucket."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.transports.strategies._replica import Build

_MIB = 1 << 20


def parallel(
    build: Build, module: Any, group: Any, ignored: tuple[str, ...] = ()
) -> tuple[Any, Callable[[float], float]]:
    """Return a module in DistributedDataParallel over a group, and what to call when a backward pass has returned.

    With a meter, a hook stamps or leaves out each bucket.

    `ignored`: names of parameters that it leaves alone.
    """
    case, wrapper = build.case, build.torch.nn.parallel.DistributedDataParallel
    given = {"bucket_cap_mb": case.bucket / _MIB} if case.bucket else {}
    if ignored:
        wrapper._set_params_and_buffers_to_ignore_for_model(module, list(ignored))
    model = wrapper(module, process_group=group, **given)
    if build.groups.meter is None:
        return model, lambda returned: 0.0
    exchange = BucketExchange(build, group)
    model.register_comm_hook(None, lambda _, bucket: exchange.start(bucket.buffer()))
    return model, exchange.finish


class BucketExchange:
    """Exchanges buckets, and notes when each was ready and done."""

    def __init__(self, build: Build, group: Any) -> None:
        self._build, self._group, self._meter = build, group, build.groups.meter
        self._noted: list[list[float]] = []

    def start(self, gradients: Any) -> Any:
        """Start the exchange of a bucket; while the meter leaves exchanges out, return its own gradients at once."""
        torch = self._build.torch
        noted = [gradients.numel() * gradients.element_size(), time.perf_counter(), 0.0]
        self._noted.append(noted)
        if not self._meter or not self._meter.exchanges:
            noted[2] = noted[1]
            future = torch.futures.Future()
            future.set_result(gradients)
            return future
        work = torch.distributed.all_reduce(gradients, group=self._group, async_op=True)
        size = self._group.size()

        def averaged(future: Any) -> Any:
            mean = future.value()[0].div_(size)
            noted[2] = time.perf_counter()
            return mean

        return work.get_future().then(averaged)

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
