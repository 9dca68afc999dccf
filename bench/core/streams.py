"""Compute how much programs slow each other down if they share links but do not wait for each other.

Each program is a list of phases, which a stream repeats. A phase ends when its last message has arrived. All messages
in flight get max-min fair rates (core/fairness.py). The rates are recomputed whenever a message begins or ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.core.fabric import Fabric
from bench.core.fairness import fair_rates
from bench.core.schedules import Phases

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class _Stream:
    """The progress of one program: its current phase, and its messages in flight."""

    paths: NDArray[np.int64]
    wait_s: Floats  # seconds per message until its first byte arrives
    left: Floats  # remaining bytes per message

    def __init__(self, fabric: Fabric, phases: Phases) -> None:
        self._phases = [(each.repeat, *fabric.routes(each.flows)) for each in phases if each.repeat and len(each.flows)]
        self.passes, self.ended_s = 0, 0.0  # number of whole passes, and the time when the last one ended
        self._index, self._done = 0, 0
        self.sends = bool(self._phases)
        if self.sends:
            self._begin()

    def advance(self, seconds: float, rates: Floats, now: float) -> None:
        """Let `seconds` pass, and reduce the bytes that each message must still send.

        `rates`: the rate of each message. The rate is 0 for a message that has not begun or has arrived.
        `now`: the time when `seconds` have passed.
        """
        import numpy as np

        self.wait_s = np.maximum(self.wait_s - seconds, 0.0)
        sent = rates * seconds
        self.left = np.where(sent >= self.left * (1 - 1e-9), 0.0, self.left - sent)
        if not self.left.any() and not self.wait_s.any():
            self._next(now)

    def _next(self, now: float) -> None:
        self._done += 1
        if self._done == self._phases[self._index][0]:
            self._index, self._done = (self._index + 1) % len(self._phases), 0
            if self._index == 0:
                self.passes, self.ended_s = self.passes + 1, now
        self._begin()

    def _begin(self) -> None:
        _, self.paths, wait_s, left = self._phases[self._index]
        self.wait_s = wait_s
        self.left = left


def pass_times_s(fabric: Fabric, programs: Sequence[Phases]) -> list[float]:
    """Return, for each program, the seconds that it takes to run all its phases once (a pass).

    All programs run repeatedly at the same time. The time is 0 for a program without messages. All programs begin
    together. The calculation ends when each program has completed at least one pass. The result is the mean over a
    program's complete passes. Raises UsageError if a rate or latency that a message needs is unknown.
    """
    import numpy as np

    streams = [_Stream(fabric, phases) for phases in programs]
    live = [stream for stream in streams if stream.sends]
    known: dict[bytes, Floats] = {}
    now = 0.0
    while any(stream.passes == 0 for stream in live):
        paths, wait_s, left = (np.concatenate([getattr(s, name) for s in live]) for name in ("paths", "wait_s", "left"))
        moving = (wait_s <= 0) & (left > 0)
        rates = np.zeros(len(left))
        if moving.any():
            key = paths[moving].tobytes()
            if key not in known:
                known[key] = fair_rates(paths[moving], fabric.capacity)
            rates[moving] = known[key]
        next_s = [*(left[moving] / rates[moving]), *wait_s[wait_s > 0]]
        step_s = float(min(next_s, default=0.0))
        now += step_s
        for stream, own in zip(live, np.split(rates, np.cumsum([len(s.left) for s in live])[:-1]), strict=True):
            stream.advance(step_s, own, now)
    return [stream.ended_s / stream.passes if stream.passes else 0.0 for stream in streams]
