"""Keep copies that run at the same time beside each other until the timed part of the last one has ended.

Each copy (a stream) makes its timed calls, and then more calls that are not counted. How many: from the times of the
first samples of a row, which all ranks compare. Otherwise the slower copy would be faster as soon as the other ends.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence

from bench.core.channel import Channel
from bench.transports._cuda_gate import MOST_QUEUED

_ROUNDS = 4  # samples of a row, of each kind, whose times the ranks compare
_MARGIN = 1.1
_LEAST_CALLS, _LEAST_S = 16, 20e-3  # of a batch of copies beside others; nvbandwidth makes 16 copies


class Pace:
    """The number of uncounted calls of this rank's copies. All ranks call `begin_row` and `learn` in step."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._host = channel, socket.gethostname()
        self._num_beside = 0  # copies at the same time on this host
        self._anywhere = False  # whether several copies run at the same time on some host
        self._ratios: tuple[float, ...] = ()  # by own copy: the seconds of the host's slowest copy / its seconds
        self._left: dict[str, int] = {}

    def begin_row(self, num_copies: int) -> None:
        """Begin a row in which this rank has that many copies at the same time. All ranks call it."""
        counts: dict[str, int] = {}
        for host, count in self._channel.share((self._host, num_copies)):
            counts[host] = counts.get(host, 0) + count
        self._num_beside = counts[self._host]
        self._anywhere = max(counts.values()) > 1
        self._ratios, self._left = (), {}

    @property
    def least_batch(self) -> tuple[int, float] | None:
        """Fewest calls and least seconds of a batch if copies run at the same time: their starts must not matter."""
        return (_LEAST_CALLS, _LEAST_S) if self._anywhere else None

    def extra(self, num_calls: int, num_copies: int) -> list[int]:
        """Return for each of this rank's copies how many calls follow the `num_calls` counted ones."""
        if max(self._num_beside, num_copies) < 2:
            return [0] * num_copies
        # Until the times are known, the others go on for twice the time, as in nvbandwidth.
        ratios = self._ratios if len(self._ratios) == num_copies else (2.0 / _MARGIN,) * num_copies
        wanted = (math.ceil(num_calls * (_MARGIN * ratio - 1)) + 1 for ratio in ratios)
        return [max(1, min(each, MOST_QUEUED - num_calls)) for each in wanted]

    def learn(self, kind: str, ends_s: Sequence[float]) -> None:
        """Compare the seconds of this rank's copies in a sample of this kind with those of the other ranks."""
        left = self._left.setdefault(kind, _ROUNDS)
        if left == 0 or not (self._anywhere or len(ends_s) > 1):
            return
        self._left[kind] = left - 1
        slowest_s = max(
            (
                max(seconds)
                for host, seconds in self._channel.share((self._host, tuple(ends_s)))
                if host == self._host and seconds
            ),
            default=0.0,
        )
        if all(second > 0 for second in ends_s):
            self._ratios = tuple(slowest_s / second for second in ends_s)
