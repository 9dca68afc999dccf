"""Compare the clocks of a run's hosts by small messages.

The comparisons are made between rows, so no measurement runs at the same time. Ranks that read the same CLOCK_MONOTONIC
need no comparison. Of all ranks that read the same clock, only the first rank takes part in the comparison. The ranks
that read different clocks form a tree of pairs, whose root is rank 0 (bench/results/clocks.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter_ns
from typing import Any, TypeVar

from bench.core.errors import MeasurementError
from bench.core.program import Exchange, Group, Message
from bench.core.transport import Buffers, Reduction, Transport
from bench.probes import sysfs
from bench.rank.messages import RankFailure
from bench.results.clocks import Clock, Offset, RoundTrip, is_enough, offset_of, tree

_BYTES = 8
_LEAST, _MOST = 10, 100  # least and most round trips of a burst
_AT_LEAST, _MOST_S = 3, 0.5  # fewest round trips of a slow burst, and the longest duration of a burst in seconds
_EVERY_S = 60.0  # clocks drift with their temperature, which changes within minutes

T = TypeVar("T")
Readings = list[tuple[int, ...]]  # nanoseconds: (sent, back) on the reference, (received,) on the client


class Clocks:
    """The clocks of a run. All ranks take part in comparisons, and know which clock each rank reads.

    Only rank 0 knows the offsets of the clocks.
    """

    def __init__(
        self, transport: Transport, hosts: Sequence[str], read_ns: Callable[[], int] = perf_counter_ns
    ) -> None:
        """Find out which clock each rank reads.

        `hosts`: the host of every rank.
        `read_ns`: a function that reads this rank's clock.
        """
        self._transport, self._hosts, self.read_ns = transport, hosts, read_ns
        own = sysfs.clock() or f"of rank {transport.place.rank}"
        read = transport.channel.share(own)
        first = {clock: rank for rank, clock in reversed(list(enumerate(read)))}
        self._leaders = tuple(sorted(first.values()))
        self._clock_of = tuple(self._leaders.index(first[clock]) for clock in read)
        self._offsets: list[list[Offset]] = [[] for _ in self._leaders]

    @property
    def several(self) -> bool:
        """Whether the ranks read several clocks that the library can compare.

        A comparison requires a library whose operations complete on the host, and not on a device.
        """
        return len(self._leaders) > 1 and self._transport.clock == "host"

    def is_same(self, first: int, second: int) -> bool:
        """Check whether two ranks read the same clock."""
        return self._clock_of[first] == self._clock_of[second]

    def compare(self) -> None:
        """Measure the offset of each clock again.

        Raises MeasurementError on rank 0 if a clock was set since the last comparison.
        """
        rounds = [[(self._leaders[a], self._leaders[b]) for a, b in pairs] for pairs in tree(len(self._leaders))]
        mine = [self.exchanged(_pair_of(pairs, self._transport.place.rank)) for pairs in rounds]
        gathered = self._transport.channel.gather(mine)
        for number, pairs in enumerate(rounds if gathered is not None else ()):
            for parent, client in pairs:
                assert gathered is not None
                trips = round_trips(gathered[parent][number], gathered[client][number])
                try:
                    offset = offset_of(trips, self.of(parent))
                except ValueError as error:
                    hosts = [self._hosts[parent], self._hosts[client]]
                    raise MeasurementError.of(RankFailure.CLOCKS, hosts=hosts, why=str(error)) from None
                self._offsets[self._clock_of[client]].append(offset)

    def of(self, rank: int) -> Clock:
        """Return a rank's clock relative to rank 0's clock. The result uses all offsets that were measured so far."""
        return Clock(tuple(self._offsets[self._clock_of[rank]]))

    def comparing_between(self, rows: Iterator[T]) -> Iterator[T]:
        """Yield the rows unchanged. Compare the clocks once a minute between rows, and after the last row."""
        last_s = time.monotonic()
        for row in rows:
            yield row
            if self.several and self._transport.channel.broadcast(time.monotonic() - last_s > _EVERY_S):
                self.compare()
                last_s = time.monotonic()
        if self.several:
            self.compare()

    def offsets(self) -> dict[str, dict[str, float]]:
        """Return the offset and drift of each clock.

        The results name each clock by a host: the host of the first rank that reads the clock.

        Return {} if all ranks read the same clock.

        `at_s`: the time of the latest comparison, on the reference clock.
        `offset_s`, `bound_s`: the clock's offset at that time, and the largest error of the offset.
        `drift`, `drift_bound`: the drift of the clock, and the largest error of this drift, in seconds per second.
        """
        found = {}
        for leader in self._leaders[1:]:
            offsets = self._offsets[self._clock_of[leader]]
            if offsets:
                clock, latest = self.of(leader), offsets[-1]
                fitted = clock.at(latest.at_s)
                best = min(fitted, latest, key=lambda offset: offset.bound_s)
                found[self._hosts[leader]] = {
                    "at_s": latest.at_s,
                    "offset_s": best.offset_s,
                    "bound_s": best.bound_s,
                    "drift": clock.drift,
                    "drift_bound": clock.drift_bound,
                    "num_comparisons": len(offsets),
                }
        return found

    def exchanged(self, pair: tuple[int, int] | None) -> Readings:
        """Exchange a burst of messages between the reference rank and the client rank of `pair`.

        Return the readings of this rank's clock. Return [] if this rank is not in `pair`. Only the reference rank
        decides when the burst ends. The reference rank therefore marks the last message of the burst.
        """
        if pair is None:
            return []
        buffers = self._transport.allocate(_BYTES, _BYTES, 1)
        buffers.write("send", 0, 0)
        send, recv = (messenger(self._transport, buffers, pair, sends) for sends in (True, False))
        burst = self._as_reference if self._transport.place.rank == pair[0] else self._as_client
        return burst(buffers, send, recv)

    def _as_reference(self, buffers: Buffers, send: Callable[[], Any], recv: Callable[[], Any]) -> Readings:
        readings: Readings = []
        took_s: list[float] = []
        began_s, last = time.monotonic(), False
        while not last:
            too_long = len(took_s) >= _AT_LEAST and time.monotonic() - began_s > _MOST_S
            last = too_long or is_enough(took_s, _LEAST, _MOST)
            buffers.write("send", 0, int(last))
            sent = self.read_ns()
            send()
            recv()
            back = self.read_ns()
            readings.append((sent, back))
            took_s.append((back - sent) * 1e-9)
        return readings

    def _as_client(self, buffers: Buffers, send: Callable[[], Any], recv: Callable[[], Any]) -> Readings:
        readings: Readings = []
        last = False
        while not last:
            recv()
            readings.append((self.read_ns(),))
            send()
            last = bool(buffers.read("recv", 0)[0])
        return readings


def messenger(transport: Transport, buffers: Buffers, pair: tuple[int, int], sends: bool) -> Callable[[], Any]:
    """Return a blocking call that sends a small message to the other rank of a pair, or receives a small message."""
    message = (Message(1 - pair.index(transport.place.rank), _BYTES),)
    step = Exchange(sends=message) if sends else Exchange(recvs=message)
    compiled = transport.compile((step,), Group("clocks", pair), buffers, Reduction("uint8", "sum"), False)
    return compiled.calls[0]


def round_trips(reference: Readings, client: Readings) -> list[RoundTrip]:
    """Compute round trips from the time stamps of both ranks of a pair."""
    return [
        RoundTrip(sent * 1e-9, received * 1e-9, back * 1e-9)
        for (sent, back), (received,) in zip(reference, client, strict=True)
    ]


def _pair_of(pairs: Sequence[tuple[int, int]], rank: int) -> tuple[int, int] | None:
    return next((pair for pair in pairs if rank in pair), None)
