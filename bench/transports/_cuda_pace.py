"""Keep concurrent copies running until the timed calls of the slowest copy have ended.

If one copy ended before the others, the remaining copies would run faster, without contention. Each copy runs on its
own stream. After its timed calls, the copy therefore continues with uncounted calls. The ranks compare the times of a
row's first samples to find the number of uncounted calls.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence

from bench.core.channel import Channel
from bench.transports._cuda_gate import MOST_QUEUED

_ROUNDS = 4  # the ranks compare the times of this many samples of each type at the start of a row
_MARGIN = 1.1
_LEAST_CALLS, _LEAST_S = 16, 20e-3  # least size of a batch of concurrent copies; nvbandwidth makes 16 copies


class Pace:
    """Computes how many uncounted calls each copy of this rank makes.

    All ranks must call `begin_row` and `learn` in the same order.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel, self._host = channel, socket.gethostname()
        self._num_beside = 0  # number of concurrent copies on this host
        self._anywhere = False  # whether several copies run at the same time on some host
        self._ratios: tuple[float, ...] = ()  # by own copy: seconds of the host's slowest copy / seconds of this copy
        self._left: dict[str, int] = {}

    def begin_row(self, num_copies: int) -> None:
        """Begin a row with the given number of concurrent copies on this rank. All ranks call this method."""
        counts: dict[str, int] = {}
        for host, count in self._channel.share((self._host, num_copies)):
            counts[host] = counts.get(host, 0) + count
        self._num_beside = counts[self._host]
        self._anywhere = max(counts.values()) > 1
        self._ratios, self._left = (), {}

    @property
    def least_batch(self) -> tuple[int, float] | None:
        """Return the minimum number of calls, and the minimum duration in seconds, for a batch of concurrent copies.

        The starts of concurrent copies are not exactly simultaneous. The longer a batch is, the smaller is the effect
        of this difference.
        """
        return (_LEAST_CALLS, _LEAST_S) if self._anywhere else None

    def extra(self, num_calls: int, num_copies: int) -> list[int]:
        """Return, for each copy of this rank, how many uncounted calls follow `num_calls` counted calls."""
        if max(self._num_beside, num_copies) < 2:
            return [0] * num_copies
        # Until the times are known, the other copies continue for twice the time, as in nvbandwidth.
        ratios = self._ratios if len(self._ratios) == num_copies else (2.0 / _MARGIN,) * num_copies
        wanted = (math.ceil(num_calls * (_MARGIN * ratio - 1)) + 1 for ratio in ratios)
        return [max(1, min(each, MOST_QUEUED - num_calls)) for each in wanted]

    def learn(self, kind: str, ends_s: Sequence[float]) -> None:
        """Compare how long the copies of all ranks of this host took in one sample.

        From these times, the function computes the number of uncounted calls.

        `kind`: the type of the sample.
        """
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
