"""Take samples of one-way messages.

A message starts on one rank and ends on another rank. The clocks of the two ranks are therefore compared.
"""

from __future__ import annotations

from typing import Any

from bench.core.program import Group, Round
from bench.core.transport import Compiled, Transport
from bench.rank.clocks import Clocks, Readings, messenger, round_trips
from bench.results.clocks import Clock, offset_of

_READY_BYTES = 8
BySecond = list[list[float]]


class OneWaySampler:
    """Takes one row of one-way messages. All ranks take part, but only rank 0 gets the times and their error bounds."""

    def __init__(self, transport: Transport, clocks: Clocks, round_: Round, compiled: Compiled | None) -> None:
        self._transport, self._clocks, self._round, self._compiled = transport, clocks, round_, compiled
        self._bounds_s: dict[tuple[int, ...], float] = {}
        self._pair = next((_pair(group) for group in round_ if transport.place.rank in group.ranks[:2]), None)
        self._before: Readings = []
        if self._pair is not None:
            buffers = transport.allocate(_READY_BYTES, _READY_BYTES, 1)
            buffers.write("send", 0, 0)
            sends = transport.place.rank == self._pair[1]  # the receiver reports that it is ready
            self._ready = messenger(transport, buffers, self._pair, sends)

    def take(self, num: int) -> BySecond | None:
        """Take `num` samples. Return the durations of each rank's samples in seconds, on rank 0.

        Both ranks of a pair get the same times, because a one-way message involves both ranks. Idle ranks get no
        seconds.
        """
        self._transport.sync()
        before = self._before or self._compared()
        stamps = self._stamps(num)
        self._before = after = self._compared()
        gathered = self._transport.channel.gather((before, stamps, after))
        if gathered is None:
            return None
        taken: BySecond = [[] for _ in gathered]
        for group in self._round:
            sender, receiver = _pair(group)
            taken[sender] = taken[receiver] = self._seconds(group, gathered[sender], gathered[receiver])
        return taken

    def bound_s(self, group: Group) -> float:
        """Return the largest clock error of a group's samples so far, in seconds.

        The error is 0 if both ranks read the same clock.
        """
        return self._bounds_s.get(group.ranks, 0.0)

    def _compared(self) -> Readings:
        different = self._pair is not None and not self._clocks.is_same(*self._pair)
        return self._clocks.exchanged(self._pair) if different else []

    def _stamps(self, num: int) -> list[int]:
        """Exchange messages. Return this rank's time stamps in nanoseconds.

        The sender's time stamps are the starts of its messages. The receiver's time stamps are the arrivals of the
        messages. Each rank uses its own clock.
        """
        if self._pair is None or self._compiled is None:
            return []
        compiled, ready, read_ns = self._compiled, self._ready, self._clocks.read_ns
        sends, calls = self._transport.place.rank == self._pair[0], self._compiled.calls
        stamps, index = [0] * num, compiled.next_set
        for sample in range(num):
            call = calls[index]
            ready()
            if sends:
                stamps[sample] = read_ns()
                call()
            else:
                call()
                stamps[sample] = read_ns()
            compiled.last_set, index = index, (index + 1) % len(calls)
        compiled.next_set = index
        return stamps

    def _seconds(self, group: Group, sender: Any, receiver: Any) -> list[float]:
        """Return the duration of each message in seconds, measured on the sender's clock."""
        (before, began, after), (near, ended, later) = sender, receiver
        if not before:
            return [(end - begin) * 1e-9 for begin, end in zip(began, ended, strict=True)]
        clock = Clock((offset_of(round_trips(before, near)), offset_of(round_trips(after, later))))
        found = [clock.to_reference(end * 1e-9) for end in ended]
        self._bounds_s[group.ranks] = max(self.bound_s(group), *(bound_s for _, bound_s in found))
        return [time_s - begin * 1e-9 for (time_s, _), begin in zip(found, began, strict=True)]


def _pair(group: Group) -> tuple[int, int]:
    return group.ranks[0], group.ranks[1]
