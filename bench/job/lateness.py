"""Find late ranks, for which other ranks waited, and the causes of their lateness.

The steps are divided into *phases*. An exchange ends a phase under two conditions. At least one rank stalled for the
exchange. No rank of the exchange reached a later exchange before all ranks had arrived at this one. The rank that
arrives last is late. The lateness of this rank is the time from the median arrival of the other ranks to its own
arrival. To find the cause, the rank's time since the previous phase is divided into segments. Each segment is compared
with the median of the other ranks. The segment with the largest excess is the cause.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median, median_low

import numpy as np

from bench.core import spans
from bench.core.spans import Spans
from bench.core.step_trace import Direction, RankTrace, StepPart, StepPhase, StepSegment
from bench.job.model import Late, LateRank, MatchedCollective, TracedJob
from bench.job.parts import RankTimeline

_SHORTEST_STALL_S = 20e-6  # shorter gaps between two operators are not waits
_MOST_LATE = 16  # at most this many late ranks are reported for one exchange


@dataclass(frozen=True, slots=True)
class Segments:
    """The times of each segment in the trace of one rank, on its own clock.

    The segment `host` is the time outside all other segments.
    """

    by_segment: Mapping[StepSegment, Spans]
    waiting: Spans

    def within(self, start: float, end: float) -> dict[StepSegment, float]:
        """Return the seconds of each segment between two times. Time in which the rank waited belongs to no segment."""
        found = {name: spans.total(spans.clip(union, start, end)) for name, union in self.by_segment.items()}
        waited = spans.total(spans.clip(self.waiting, start, end))
        found[StepSegment.HOST] = max(end - start - waited - sum(found.values()), 0.0)
        return found


def late_of(job: TracedJob, timelines: Mapping[int, RankTimeline]) -> list[Late]:
    """Return one entry for each late rank of each phase.

    Phases are in order of time. Within a phase, the latest rank is first.
    """
    by_rank = {rank: segments_of(trace, timelines[rank]) for rank, trace in job.traces.items()}
    phases = _phases(job, timelines)
    last_end: dict[int, float] = {}
    found: list[Late] = []
    for index in phases:
        one = job.collectives[index]
        found += _late(job, index, one, last_end, by_rank)
        for rank, part in one.parts.items():
            last_end[rank] = part.end_s
    return found


def late_ranks(late: Sequence[Late], least_s: float, num_steps: int) -> list[LateRank]:
    """Return the ranks that were late by more than `least_s`. The rank with the largest total lateness comes first."""
    by_rank: dict[int, list[Late]] = defaultdict(list)
    for one in late:
        if one.late_s > least_s:
            by_rank[one.rank].append(one)
    found = []
    for rank, own in by_rank.items():
        cost: dict[StepSegment, float] = defaultdict(float)
        for one in own:
            cost[one.segment] += one.late_s
        segment = max(cost, key=lambda name: cost[name])
        share = len({one.step for one in own}) / num_steps
        found.append(LateRank(rank, segment, median(one.late_s for one in own), share, sum(cost.values())))
    return sorted(found, key=lambda one: -one.total_s)


def _phases(job: TracedJob, timelines: Mapping[int, RankTimeline]) -> list[int]:
    """Return the exchanges that end a phase, in order of time.

    An exchange is left out if there is a file of only one of its ranks.
    """
    least = max(job.alignment.bound_s or 0.0, _SHORTEST_STALL_S)
    found = set()
    for timeline in timelines.values():
        for stall in timeline.stalls:
            known = [index for index in stall.releases if len(job.collectives[index].arrivals_s) > 1]
            # both times are on one rank's clock, so its error does not matter
            if known and stall.end_s - stall.start_s >= _SHORTEST_STALL_S:
                found.add(max(known, key=lambda index: job.collectives[index].last_arrival_s))
    ends = []
    following: dict[int, float] = {}  # rank -> its earliest arrival at a later exchange
    for index in range(len(job.collectives) - 1, -1, -1):
        one = job.collectives[index]
        if index in found and all(following.get(rank, inf) >= one.last_arrival_s - least for rank in one.parts):
            ends.append(index)
        for rank, arrival in one.arrivals_s.items():
            following[rank] = min(arrival, following.get(rank, inf))
    return ends[::-1]


def _late(
    job: TracedJob, index: int, one: MatchedCollective, last_end: Mapping[int, float], by_rank: Mapping[int, Segments]
) -> Iterator[Late]:
    """Yield the ranks that arrived significantly later than the (lower) median of the other ranks.

    Arrivals outside all steps are left out. In the first phase, a rank may be late only because its first recorded step
    started late. The trace does not show why. If the late start explains most of the lateness, only the rank's
    additional work counts as lateness.
    """
    least = max(job.alignment.bound_s or 0.0, _SHORTEST_STALL_S)
    latest = sorted(one.arrivals_s, key=lambda rank: -one.arrivals_s[rank])[:_MOST_LATE]
    lateness = {rank: one.arrivals_s[rank] - _usual(one.arrivals_s, rank) for rank in latest}
    lateness = {rank: late_s for rank, late_s in lateness.items() if late_s > least}
    if not lateness:
        return
    spent = {rank: _since(rank, one, last_end, by_rank, job) for rank in one.parts}
    for rank, late_s in lateness.items():
        step = job.step_of(rank, one.parts[rank].arrival_s)
        if step is None:
            continue
        others = [own for other, own in spent.items() if other != rank]
        if rank not in last_end:
            longer_s = sum(spent[rank].values()) - median(sum(own.values()) for own in others)
            if longer_s < late_s / 2:
                late_s = longer_s
            if late_s <= least:
                continue
        excess = {name: spent[rank][name] - median(own[name] for own in others) for name in spent[rank]}
        yield Late(step, rank, late_s, max(excess, key=lambda name: excess[name]), index)


def _usual(arrivals: Mapping[int, float], rank: int) -> float:
    """Return the (lower) median of the arrivals of the other ranks."""
    return median_low([arrival for other, arrival in arrivals.items() if other != rank])


def _since(
    rank: int,
    one: MatchedCollective,
    last_end: Mapping[int, float],
    by_rank: Mapping[int, Segments],
    job: TracedJob,
) -> dict[StepSegment, float]:
    """Return the seconds of a rank's segments, from the end of the last phase to the rank's arrival at an exchange."""
    arrival = one.parts[rank].arrival_s
    start = last_end.get(rank)
    if start is None:
        start = job.traces[rank].steps[0][0]
    return by_rank[rank].within(min(start, arrival), arrival)


def segments_of(trace: RankTrace, timeline: RankTimeline) -> Segments:
    """Divide a trace into segments.

    On a device, a kernel belongs to the phase in which it was launched.
    """
    unions = {phase: spans.union(trace.phases.get(phase, spans.NONE)) for phase in StepPhase}
    waiting = spans.joined(timeline.by_part[StepPart.IMBALANCE], timeline.by_part[StepPart.EXPOSED_EXCHANGE])
    data = timeline.by_part[StepPart.DATA_WAIT]
    if trace.on_device:
        h2d = spans.union(
            spans.of(
                (one.start_s, one.end_s) for one in trace.copies if one.direction in (Direction.H2D, Direction.D2H)
            )
        )
        h2d = spans.both(h2d, timeline.by_part[StepPart.EXPOSED_COPY])
        compute = {segment: _launched_in(trace, unions, phase) for segment, phase in _COMPUTE}
        known = spans.joined(*compute.values())
        compute[StepSegment.FORWARD] = spans.joined(
            compute[StepSegment.FORWARD], spans.minus(timeline.by_part[StepPart.COMPUTE], known)
        )
        return Segments({StepSegment.DATA: data, StepSegment.H2D: h2d, **_disjoint(compute)}, waiting)
    host = {segment: spans.minus(unions[phase], waiting) for segment, phase in _COMPUTE}
    known = spans.joined(*host.values())
    host[StepSegment.FORWARD] = spans.joined(
        host[StepSegment.FORWARD], spans.minus(timeline.by_part[StepPart.COMPUTE], known)
    )
    host = {segment: spans.minus(union, data) for segment, union in host.items()}
    return Segments({StepSegment.DATA: data, StepSegment.H2D: spans.NONE, **_disjoint(host)}, waiting)


_COMPUTE = (
    (StepSegment.OPTIMIZER, StepPhase.OPTIMIZER),
    (StepSegment.BACKWARD, StepPhase.BACKWARD),
    (StepSegment.FORWARD, StepPhase.FORWARD),
)


def _launched_in(trace: RankTrace, unions: Mapping[StepPhase, Spans], phase: StepPhase) -> Spans:
    """Return the times of the kernels that the host launched in a phase."""
    union = unions[phase]
    if not len(union) or not len(trace.compute):
        return spans.NONE
    place = np.searchsorted(union[:, 0], trace.compute_launch_s, side="right") - 1
    inside = (place >= 0) & (trace.compute_launch_s < union[np.maximum(place, 0), 1])
    return spans.union(trace.compute[inside])


def _disjoint(compute: Mapping[StepSegment, Spans]) -> dict[StepSegment, Spans]:
    """Remove overlaps between segments. Time that belongs to several segments is assigned to the first of them."""
    found: dict[StepSegment, Spans] = {}
    for segment, union in compute.items():
        found[segment] = spans.minus(union, spans.joined(*found.values()))
    return found
