"""What the exchanges of a job take on links on which this suite measured the same exchanges."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log

from bench.core.errors import UsageError
from bench.core.record import Header
from bench.core.units import format_size
from bench.job.messages import RefusedJobCode
from bench.job.model import MatchedCollective, TracedJob
from bench.job.network import pattern_of, size_of
from bench.predict.predict import Prediction
from bench.results.document import Summary

_MODES = {True: ("isolated", "pipelined"), False: ("pipelined", "isolated")}
_FARTHEST = 4  # times the largest measured size: the rate of large messages hardly changes up to there


@dataclass(frozen=True, slots=True)
class _Point:
    """The seconds of one payload: the median and its interval."""

    num_bytes: int
    low_s: float
    median_s: float
    high_s: float


@dataclass(frozen=True)
class MeasuredNetwork:
    """The rows of a run: whole worlds with correct data.

    ranks_per_node, num_nodes: of the run. curves: by pattern, mode, ranks and nodes, by rising payload.
    """

    name: str
    source: str
    num_nodes: int
    curves: Mapping[tuple[str, str, int], tuple[_Point, ...]]

    def alone(self, one: MatchedCollective, blocks: bool = True) -> Prediction | None:
        """Return what one collective takes there; None if the run has no such row.

        blocks: a call on its own (isolated) for collectives that a rank waits for, a call among others (pipelined) for
        the rest; the other mode if the run has only that. Between two sizes the time is interpolated linearly in
        bytes; above the largest, the slope continues up to four times its size.
        """
        pattern = pattern_of(one)
        if pattern is None or not one.num_bytes:
            return None
        for mode in _MODES[blocks]:
            points = self.curves.get((pattern, mode, size_of(one)))
            if points and one.num_bytes <= _FARTHEST * points[-1].num_bytes:
                return self._at(points, one.num_bytes)
        return None

    def _at(self, points: tuple[_Point, ...], num_bytes: int) -> Prediction:
        low, middle, high = (
            _interpolated([point.num_bytes for point in points], list(values), num_bytes)
            for values in zip(*((point.low_s, point.median_s, point.high_s) for point in points), strict=True)
        )
        return Prediction(
            low_s=min(low, middle),
            middle_s=middle,
            high_s=max(high, middle),
            basis="measured",
            rests_on=(self.source,),
            algorithm="",
            bottleneck="",
            link_class="",
            pool=self.name,
            spread=max(log(max(high, middle) / min(low, middle)), 1e-9),
            verified=True,
            ideal_s=0.0,
            machine=self.name,
        )


def _interpolated(sizes: list[int], seconds: list[float], num_bytes: int) -> float:
    """Return the time of a payload between, or beyond, measured ones. Below the smallest it is the smallest's."""
    place = min(max(bisect_left(sizes, num_bytes), 1), len(sizes) - 1)
    if len(sizes) == 1:
        return seconds[0] * max(num_bytes / sizes[0], 1.0)
    if num_bytes <= sizes[0]:
        return seconds[0]
    slope = (seconds[place] - seconds[place - 1]) / (sizes[place] - sizes[place - 1])
    return seconds[place] + max(slope, 0.0) * (num_bytes - sizes[place])


def measured_network(
    job: TracedJob, name: str, headers: Mapping[str, Header], summaries: Iterable[Summary]
) -> MeasuredNetwork:
    """Return the network that a run measured. Raises UsageError if it has no row of any exchange of the job.

    name: what the user called the run.
    """
    rows: dict[tuple[str, str, int], dict[int, _Point]] = {}
    nodes, dates = set(), set()
    for row in sorted(summaries, key=lambda each: each.in_place):  # in place, as torch does it, replaces the other
        header = headers[row.job]
        if row.median_s is None or row.modelled or header.modelled or row.verified is False or not row.payload_bytes:
            continue
        if row.num_ranks is None or row.num_ranks != header.num_ranks:
            continue
        low = row.ci_low_s if row.ci_low_s is not None else row.median_s
        high = row.ci_high_s if row.ci_high_s is not None else row.median_s
        points = rows.setdefault((row.pattern, row.mode, row.num_ranks), {})
        points[row.payload_bytes] = _Point(row.payload_bytes, low, row.median_s, high)
        nodes.add(header.num_nodes or 1)
        dates.add(header.started[:10])
    curves = {key: tuple(points[size] for size in sorted(points)) for key, points in rows.items()}
    found = MeasuredNetwork(name, f"{name} ({', '.join(sorted(dates))})", max(nodes, default=1), curves)
    exchanges = [one for one in job.collectives if pattern_of(one) and one.num_bytes]
    if exchanges and all(found.alone(one) is None for one in exchanges):
        largest = max(exchanges, key=lambda one: one.num_bytes or 0)
        smallest = min(one.num_bytes or 0 for one in exchanges)
        pattern, num_ranks, most = pattern_of(largest), size_of(largest), largest.num_bytes or 0
        wanted = f"{pattern} of {num_ranks} ranks up to {format_size(most)}"
        sizes = f"{format_size(smallest)}:{format_size(most)}:4"
        raise UsageError.of(RefusedJobCode.NOT_MEASURED, run=name, wanted=wanted, pattern=pattern, sizes=sizes)
    return found
