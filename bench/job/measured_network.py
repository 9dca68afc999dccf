"""Estimate the exchange times of a job from linkbench's measurements of the same exchanges on other links."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log

from bench.core.case_argv import from_argv
from bench.core.errors import UsageError
from bench.core.record import Header
from bench.core.units import format_size
from bench.job.messages import RefusedJobCode
from bench.job.model import MatchedCollective, TracedJob
from bench.job.network import pattern_of, size_of
from bench.predict.predict import Prediction
from bench.results.document import Summary

_MODES = {True: ("isolated", "pipelined"), False: ("pipelined", "isolated")}
_FARTHEST = 4  # sizes up to this many times the largest measured size are extrapolated: the rate hardly changes


@dataclass(frozen=True, slots=True)
class _Point:
    """The measured seconds at one payload: the median, and the ends of its interval."""

    num_bytes: int
    low_s: float
    median_s: float
    high_s: float


@dataclass(frozen=True)
class MeasuredNetwork:
    """The times that a run measured.

    Rows are used only if their data are correct and if all ranks of the run took part.

    `num_nodes`: the number of nodes of the run.
    `curves`: for each (pattern, mode, number of ranks), the points in order of payload.
    `pauses`: for each (pattern, number of ranks), the times of isolated calls after a pause (`--pause`). An entry is
    (seconds of the pause, points).
    """

    name: str
    source: str
    num_nodes: int
    curves: Mapping[tuple[str, str, int], tuple[_Point, ...]]
    pauses: Mapping[tuple[str, int], tuple[tuple[float, tuple[_Point, ...]], ...]]

    def alone(self, one: MatchedCollective, blocks: bool = True) -> Prediction | None:
        """Return the time of one collective on the measured links; None if the run did not measure such a collective.

        Isolated rows are preferred if a rank waits for the collective (`blocks`), and pipelined rows otherwise. Between
        two sizes, the time is interpolated linearly in bytes. The last slope continues up to four times the largest
        size.
        """
        pattern = pattern_of(one)
        if pattern is None or not one.num_bytes:
            return None
        for mode in _MODES[blocks]:
            points = self.curves.get((pattern, mode, size_of(one)))
            if points and one.num_bytes <= _FARTHEST * points[-1].num_bytes:
                return self._at(points, one.num_bytes)
        return None

    def rested(self, one: MatchedCollective, idle_s: float) -> float:
        """Return the time of the collective after `idle_s` seconds of idle links, divided by its time without a pause.

        The ratio is 1 if the run has no rows after a pause.

        A link with burst credits earns credits at a constant rate while it is idle. Therefore the time is interpolated
        linearly between the measured pauses.
        """
        pattern = pattern_of(one)
        key = str(pattern), size_of(one)
        usual = self.curves.get((*key[:1], "isolated", key[1]))
        if not one.num_bytes or not usual or key not in self.pauses:
            return 1.0
        alone_s = _median_at(usual, one.num_bytes)
        rests = [(0.0, 1.0)]
        rests += [(rest_s, _median_at(points, one.num_bytes) / alone_s) for rest_s, points in self.pauses[key]]
        return _interpolated([rest for rest, _ in rests], [factor for _, factor in rests], min(idle_s, rests[-1][0]))

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


def _median_at(points: Sequence[_Point], num_bytes: int) -> float:
    return _interpolated([point.num_bytes for point in points], [point.median_s for point in points], num_bytes)


def _interpolated(places: Sequence[float], values: Sequence[float], wanted: float) -> float:
    """Interpolate linearly between known points.

    Beyond the last point, the line through the last two points continues. Below the first point, the value of the first
    point is returned.
    """
    if len(places) == 1:
        return values[0] * max(wanted / places[0], 1.0)
    if wanted <= places[0]:
        return values[0]
    after = min(max(bisect_left(places, wanted), 1), len(places) - 1)
    slope = (values[after] - values[after - 1]) / (places[after] - places[after - 1])
    return values[after] + slope * (wanted - places[after])


def measured_network(
    job: TracedJob, name: str, headers: Mapping[str, Header], summaries: Iterable[Summary]
) -> MeasuredNetwork:
    """Return the network that a run measured. Raises UsageError if the run has no row of any exchange of the job.

    `name`: the name of the run as the user typed it.
    """
    rows: dict[tuple[str, str, int, float], dict[int, _Point]] = {}
    nodes, dates = set(), set()
    # in-place rows, as in torch, replace out-of-place rows
    for row in sorted(summaries, key=lambda each: each.in_place):
        header = headers[row.job]
        if row.median_s is None or row.modelled or header.modelled or row.verified is False or not row.payload_bytes:
            continue
        if row.num_ranks is None or row.num_ranks != header.num_ranks:
            continue
        low = row.ci_low_s if row.ci_low_s is not None else row.median_s
        high = row.ci_high_s if row.ci_high_s is not None else row.median_s
        points = rows.setdefault((row.pattern, row.mode, row.num_ranks, _pause_s(header)), {})
        points[row.payload_bytes] = _Point(row.payload_bytes, low, row.median_s, high)
        nodes.add(header.num_nodes or 1)
        dates.add(header.started[:10])
    curves: dict[tuple[str, str, int], tuple[_Point, ...]] = {}
    pauses: dict[tuple[str, int], list[tuple[float, tuple[_Point, ...]]]] = {}
    for (pattern, mode, num_ranks, pause_s), points in sorted(rows.items(), key=lambda item: item[0]):
        curve = tuple(points[size] for size in sorted(points))
        if not pause_s:
            curves[pattern, mode, num_ranks] = curve
        elif mode == "isolated":
            pauses.setdefault((pattern, num_ranks), []).append((pause_s, curve))
    rests = {key: tuple(own) for key, own in pauses.items()}
    found = MeasuredNetwork(name, f"{name} ({', '.join(sorted(dates))})", max(nodes, default=1), curves, rests)
    exchanges = [one for one in job.collectives if pattern_of(one) and one.num_bytes]
    if exchanges and all(found.alone(one) is None for one in exchanges):
        largest = max(exchanges, key=lambda one: one.num_bytes or 0)
        smallest = min(one.num_bytes or 0 for one in exchanges)
        most = largest.num_bytes or 0
        facts = {
            "run": name,
            "pattern": pattern_of(largest),
            "wanted": f"{pattern_of(largest)} of {size_of(largest)} ranks up to {format_size(most)}",
            "sizes": f"{format_size(smallest)}:{format_size(most)}:4",
        }
        raise UsageError.of(RefusedJobCode.NOT_MEASURED, **facts)
    return found


def _pause_s(header: Header) -> float:
    """Return the pause before each isolated call of a job, in seconds."""
    try:
        return from_argv(header.case).pause_s
    except UsageError:  # a newer version or an editor wrote the header
        return 0.0
