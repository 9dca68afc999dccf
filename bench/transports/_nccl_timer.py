"""Take samples of NCCL calls between two CUDA events, and replay batches of calls with CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from bench.core.transport import Compiled, Timing

Sample = tuple[
    float, float, float
]  # three times in seconds per call: by events, until the host saw the end, until all calls had returned


class EventTimer:
    """Times calls by two events.

    The constructor creates the events, so no measured time includes their creation.
    """

    def __init__(self, torch: Any, sync: Callable[[], None], loop: str) -> None:
        """Prepare the timer.

        `sync`: waits for this rank's stream and for all ranks.
        `loop`: the name of the loop that issues the calls.
        """
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._sync, self._loop = sync, loop

    def timing(self, samples: Sequence[Sample | None]) -> Timing:
        """Return the Timing of these samples, or None on an idle rank."""
        taken = [sample for sample in samples if sample is not None]
        if not taken:
            return Timing((), self._loop)
        seconds, host_s, enqueue_s = zip(*taken, strict=True)
        return Timing(seconds, self._loop, host_s, enqueue_s)

    def sample(self, compiled: Compiled | None, num_calls: int) -> Sample | None:
        """Time `num_calls` calls on the current stream after one synchronisation. An idle rank only synchronises."""
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


def start_of(next_set: int, num_calls: int, num_sets: int) -> int:
    """Return the first buffer set of a replayed batch.

    A batch with at least as many calls as sets starts at set 0. A batch with fewer calls than sets starts at the set
    that follows the last set of the previous batch. If too few sets follow, the batch starts at set 0. This rule limits
    the number of graphs to capture. Batches nevertheless use more than half of the sets.
    """
    return next_set if num_calls < num_sets and next_set + num_calls <= num_sets else 0


class Graphs:
    """The CUDA graphs of one compiled program. The key of a graph is its first buffer set and its number of calls.

    All ranks of the group run the same batches, so they capture the same graphs at the same time.
    """

    def __init__(self, torch: Any, calls: Sequence[Callable[[], Any]]) -> None:
        self._torch, self._calls = torch, calls
        self._made: dict[tuple[int, int], Any] = {}
        self._stream: Any = None

    def replay(self, start: int, num_calls: int) -> Callable[[], Any]:
        """Return a function that launches `num_calls` calls, beginning with set `start`.

        When a graph is new, the graph is first captured, uploaded and run once.

        Raises RuntimeError if a call cannot be captured.
        """
        key = (start, num_calls)
        if key not in self._made:
            self._made[key] = self._captured(start, num_calls)
        replay: Callable[[], Any] = self._made[key].replay
        return replay

    def _captured(self, start: int, num_calls: int) -> Any:
        cuda = self._torch.cuda
        calls = [self._calls[(start + k) % len(self._calls)] for k in range(num_calls)]
        if self._stream is None:
            self._stream = cuda.Stream()
        # Make the first call on the capture's stream, so that its set-up does not become part of the graph.
        self._stream.wait_stream(cuda.current_stream())
        with cuda.stream(self._stream):
            calls[0]()
        cuda.current_stream().wait_stream(self._stream)
        cuda.synchronize()
        graph = cuda.CUDAGraph()
        # Capture this thread only, because NCCL's threads may allocate and torch's watchdog queries events at the same
        # time.
        with cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            for call in calls:
                call()
        graph.replay()
        cuda.synchronize()
        return graph

    def release(self) -> None:
        """Release the graphs. Call this method before the communicators that the graphs use are freed."""
        for graph in self._made.values():
            graph.reset()
        self._made.clear()
