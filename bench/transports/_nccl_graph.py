"""A batch of calls captured once in a CUDA graph and replayed: one launch in place of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def start_of(next_set: int, num_calls: int, num_sets: int) -> int:
    """The buffer set with which a replayed batch begins.

    A batch that goes once around begins at set 0; a shorter one where the last one ended, if it fits before the end: so
    there are never more captured calls than sets or than one batch has, and more than half of the sets are used.
    """
    return next_set if num_calls < num_sets and next_set + num_calls <= num_sets else 0


class Graphs:
    """The graphs of one compiled program, by the set they begin with and their number of calls.

    Every rank of the group makes the same ones at the same time: it is asked for the same batches.
    """

    def __init__(self, torch: Any, calls: Sequence[Callable[[], Any]]) -> None:
        self._torch, self._calls = torch, calls
        self._made: dict[tuple[int, int], Any] = {}
        self._stream: Any = None

    def replay(self, start: int, num_calls: int) -> Callable[[], Any]:
        """What launches the calls from set `start` on; captured, uploaded and run once when it is new.

        Raises RuntimeError where a call can not be captured.
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
        # On the stream of the capture and not captured: what a first call sets up must not become part of the graph.
        self._stream.wait_stream(cuda.current_stream())
        with cuda.stream(self._stream):
            calls[0]()
        cuda.current_stream().wait_stream(self._stream)
        cuda.synchronize()
        graph = cuda.CUDAGraph()
        # NCCL's own threads may allocate meanwhile, and torch's watchdog asks for events: only this thread is captured.
        with cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            for call in calls:
                call()
        graph.replay()
        cuda.synchronize()
        return graph

    def release(self) -> None:
        """Give the graphs back; before the communicators they use."""
        for graph in self._made.values():
            graph.reset()
        self._made.clear()
