"""Samples between two CUDA events on the current stream, with what the host's clock says of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from bench.core.transport import Compiled, Timing
from bench.transports._nccl_graph import start_of

Sample = tuple[float, float, float]  # seconds per call: by events, until the host saw the end, until all were issued


class EventTimer:
    """Two events, made once: nothing is made while they tell the time."""

    def __init__(self, torch: Any, sync: Callable[[], None], loop: str) -> None:
        """`sync`: this rank's stream is idle and all ranks are there. `loop`: what issues the calls."""
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._sync, self._loop = sync, loop

    def timing(self, samples: Sequence[Sample | None]) -> Timing:
        """Samples as the ranks tell them; None are those of an idle rank."""
        taken = [sample for sample in samples if sample is not None]
        if not taken:
            return Timing((), self._loop)
        seconds, host_s, enqueue_s = zip(*taken, strict=True)
        return Timing(seconds, self._loop, host_s, enqueue_s)

    def sample(self, compiled: Compiled | None, num_calls: int) -> Sample | None:
        """`num_calls` calls on the current stream after one synchronisation; an idle rank only synchronises."""
        if compiled is None:
            self._sync()
            return None
        num_sets, graphs = len(compiled.calls), compiled.native
        start = start_of(compiled.next_set, num_calls, num_sets) if graphs else compiled.next_set
        order = [(start + k) % num_sets for k in range(num_calls)]
        calls = [graphs.replay(start, num_calls)] if graphs else [compiled.calls[index] for index in order]
        for index in order if compiled.refill is not None else ():
            compiled.refill(index)  # type: ignore[misc]
        begin, end, clock = self._begin, self._end, perf_counter_ns
        self._sync()
        began = clock()
        begin.record()
        for call in calls:
            call()
        issued = clock()
        end.record()
        end.synchronize()
        seen = clock()
        compiled.last_set, compiled.next_set = order[-1], (order[-1] + 1) % num_sets
        scale = 1e-9 / num_calls
        return begin.elapsed_time(end) * 1e-3 / num_calls, (seen - began) * scale, (issued - began) * scale
