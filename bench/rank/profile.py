"""Mark rows, phases and steps in the trace of a profiled launch (`--profile`).

Only a profiled launch imports this module. The trace has a range for each row, and a range for each phase of a row. The
heartbeats use the same names. A step is one call of the measured operation, or a whole step of a replay. The range of a
step is called `ProfilerStep#`, which tools for training traces recognise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bench.core.errors import UsageError
from bench.core.transport import Compiled
from bench.rank.messages import RankRefusal
from bench.rank.session import ReportProgress

T = TypeVar("T")


class _Ranges(Protocol):
    def range(self, name: str) -> AbstractContextManager[Any]: ...

    def close(self) -> None: ...


class Recorder:
    """Marks ranges while a rank measures."""

    def __init__(self, ranges: _Ranges, beat: ReportProgress) -> None:
        """Begin outside any row."""
        self._ranges, self._beat = ranges, beat
        self._row, self._of_row, self._of_phase = "", ExitStack(), ExitStack()
        self._numbers = count()

    def __call__(self, doing: str, within_s: float | None = None) -> None:
        """Record a heartbeat `ROW: PHASE`, which begins a new phase and possibly a new row."""
        self._of_phase.close()
        row, _, phase = doing.rpartition(": ")
        if row != self._row:
            self._of_row.close()
            self._row = row
            if row:
                self._of_row.enter_context(self._ranges.range(row))
        self._of_phase.enter_context(self._ranges.range(phase))
        self._beat(doing, within_s)

    def working(self) -> AbstractContextManager[None]:
        """Return a context for work that needs no other rank."""
        return self._beat.working()

    def step(self, call: Callable[..., T]) -> Callable[..., T]:
        """Return a function that makes a call, and marks the call as a step in the trace."""
        ranges, numbers = self._ranges, self._numbers

        def marked(*given: Any) -> T:
            with ranges.range(f"ProfilerStep#{next(numbers)}"):
                return call(*given)

        return marked

    def mark(self, compiled: Compiled) -> None:
        """Treat each call of a program as a step.

        A compiled loop would not mark the calls, so Python makes the calls.
        """
        compiled.calls = [self.step(call) for call in compiled.calls]
        compiled.native = None

    def close(self) -> None:
        """End all ranges and write the trace."""
        self._of_phase.close()
        self._of_row.close()
        self._ranges.close()


@contextlib.contextmanager
def recording(wanted: str, rank: int, beat: ReportProgress) -> Iterator[Recorder]:
    """Record a trace of this rank, or only mark ranges, as `--profile` requests.

    With `torch=DIR`, torch's profiler records a trace. With `nsys=DIR`, the rank only marks ranges, and nsys records
    the trace.
    """
    from bench.transports import _profile

    kind, _, folder = wanted.partition("=")
    if kind not in ("torch", "nsys") or not folder:
        raise UsageError.of(RankRefusal.BAD_PROFILE, given=wanted)
    ranges: _Ranges = _profile.NvtxRanges()
    if kind == "torch":
        ranges = _profile.TorchProfile(Path(folder) / f"rank{rank}.json.gz")
    recorder = Recorder(ranges, beat)
    yield recorder
    recorder.close()
