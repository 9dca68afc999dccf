"""Divide each step of each rank into parts. The parts do not overlap, and their sum is the time of the step.

If a rank uses a device, the parts come from the device's timeline. Each moment belongs to the first state that applies:
a kernel computes, the kernel of a collective runs, a copy runs, or the device is idle.

While the host waits for the data loader, idle time is data wait. Idle time is host-bound if the host launched the next
work only after the device had become idle.

Without a device, the parts come from the host's timeline. Each moment belongs to the first state that applies: the host
waits for the data loader, an operator computes, a collective is incomplete, or the time is host-bound.

A *stall* is a time in which a rank only waits for collectives. A stall is ended by every collective whose end lies
within the stall. Until the last rank arrives at a collective that ends the stall, the stall counts as imbalance. The
rest of the stall counts as exposed exchange. Earlier collectives that still move data while a rank is late do not
prolong the step. A stall continues the previous stall under two conditions. There is almost no work between the two
stalls. When the previous stall ended, the rank had already arrived at a collective that ends the later stall.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.core import spans
from bench.core.spans import Spans
from bench.core.step_trace import RankTrace, StepPart, StepPhase, TracedCollective
from bench.job.model import RankStep, TracedJob

_RELEASED_S = 20e-6  # a stall may end this long before the recorded end of the collective that releases it
# Without a device, another thread records the end. On a busy machine, the recorded end may be late by this share of the
# stall, but at most by this many seconds.
_RECORDED_LATE_SHARE, _RECORDED_LATE_S = 0.05, 5e-3
# work between two stalls of one wait, in seconds or as a share of the wait
_LITTLE_WORK_S, _LITTLE_WORK_SHARE = 200e-6, 0.02


@dataclass(frozen=True, slots=True)
class Stall:
    """A time in which a rank only waits for collectives. Its start and end are on the rank's own clock.

    `releases`: the collectives that end the stall, as indices in `TracedJob.collectives`.
    `last_arrival_s`: the time on this rank's clock at which the last rank arrived at these collectives. The value is
    None if no other rank has a file.
    `is_released`: whether these collectives ended before the rank continued. Otherwise, another event ended the stall
        while the collectives ran.
    """

    start_s: float
    end_s: float
    releases: tuple[int, ...]
    last_arrival_s: float | None
    is_released: bool


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """The times of each part in the trace of one rank, on its own clock, and the rank's stalls in order of time."""

    rank: int
    by_part: Mapping[StepPart, Spans]
    stalls: Sequence[Stall]


def steps_of(job: TracedJob, timelines: Mapping[int, RankTimeline] | None = None) -> list[RankStep]:
    """Return all steps of all ranks with their parts, by rank and step."""
    lines = timelines_of(job) if timelines is None else timelines
    found = []
    for rank, trace in job.traces.items():
        for step, (start, end) in enumerate(trace.steps):
            found.append(RankStep(rank, step, start, end, _parts(lines[rank], start, end)))
    return found


def timelines_of(job: TracedJob) -> dict[int, RankTimeline]:
    """Return the timeline of every rank."""
    by_rank: dict[int, list[int]] = {rank: [] for rank in job.traces}
    for index, one in enumerate(job.collectives):
        for rank in one.parts:
            by_rank[rank].append(index)
    return {rank: _timeline(job, trace, by_rank[rank]) for rank, trace in job.traces.items()}


def _timeline(job: TracedJob, trace: RankTrace, indices: Sequence[int]) -> RankTimeline:
    """Return the timeline of one rank.

    `indices`: the indices of the rank's collectives in `TracedJob.collectives`.
    """
    steps = trace.steps
    assert trace.rank is not None
    if not steps:
        return RankTimeline(trace.rank, dict.fromkeys(StepPart, spans.NONE), ())
    everything = spans.of([(steps[0][0], max(end for _, end in steps))])
    data = spans.union(trace.phases.get(StepPhase.DATA, spans.NONE))
    compute = spans.both(spans.union(trace.compute), everything)
    in_flight = spans.union(spans.of(_in_flight(one, trace.on_device) for one in trace.collectives if one.timed))
    by_part = dict.fromkeys(StepPart, spans.NONE)
    if trace.on_device:
        by_part[StepPart.COMPUTE] = compute
        waiting = spans.minus(spans.both(in_flight, everything), compute)
        busy = spans.joined(compute, waiting)
        copies = spans.union(spans.of((copy.start_s, copy.end_s) for copy in trace.copies))
        by_part[StepPart.EXPOSED_COPY] = spans.minus(spans.both(copies, everything), busy)
        idle = spans.minus(everything, spans.joined(busy, by_part[StepPart.EXPOSED_COPY]))
        by_part[StepPart.DATA_WAIT] = spans.both(idle, data)
        late = _launched_late(idle, trace)
        by_part[StepPart.HOST_BOUND] = spans.minus(late, data)
        by_part[StepPart.OTHER] = spans.minus(spans.minus(idle, late), data)
    else:
        by_part[StepPart.DATA_WAIT] = spans.both(data, everything)
        by_part[StepPart.COMPUTE] = spans.minus(compute, data)
        busy = spans.joined(by_part[StepPart.DATA_WAIT], by_part[StepPart.COMPUTE])
        waiting = spans.minus(spans.both(in_flight, everything), busy)
    stalls = [*_with_arrivals([*_stalls(waiting, job, trace, indices)], job, trace.rank)]
    if not trace.on_device:  # the host did not wait, because it continued although no collective had ended
        stalls = [stall for stall in stalls if stall.is_released]
        waiting = spans.union(spans.of((stall.start_s, stall.end_s) for stall in stalls))
        by_part[StepPart.HOST_BOUND] = spans.minus(everything, spans.joined(busy, waiting))
    late_spans = spans.of(
        (one.start_s, min(one.end_s, one.last_arrival_s)) for one in stalls if one.last_arrival_s is not None
    )
    by_part[StepPart.IMBALANCE] = spans.union(late_spans)
    by_part[StepPart.EXPOSED_EXCHANGE] = spans.minus(waiting, by_part[StepPart.IMBALANCE])
    return RankTimeline(trace.rank, by_part, stalls)


def _in_flight(one: TracedCollective, on_device: bool) -> tuple[float, float]:
    """Return the times at which a rank arrived at a collective and at which the collective ended."""
    start = one.start_s if on_device or one.called_s is None else one.called_s
    return start, one.end_s


def _launched_late(idle: Spans, trace: RankTrace) -> Spans:
    """Return the idle times that began before the host launched the next work."""
    kernels = np.column_stack((trace.compute[:, 0], trace.compute_launch_s))
    others = [(one.start_s, one.launch_s) for one in trace.collectives if one.launch_s is not None]
    others += [(one.start_s, one.launch_s) for one in trace.copies if one.launch_s is not None]
    work = np.concatenate((kernels, spans.of(others)))
    if not len(work) or not len(idle):
        return idle
    starts, launches = work[np.argsort(work[:, 0], kind="stable")].T
    following = np.searchsorted(starts, idle[:, 1] - 1e-9)
    launched = np.append(launches, np.inf)[following]
    return idle[~(launched <= idle[:, 0])]  # unknown launches (NaN) count as late


def _stalls(waiting: Spans, job: TracedJob, trace: RankTrace, indices: Sequence[int]) -> Iterator[Stall]:
    """Yield the stalls of a rank with the collectives that end them."""
    rank = trace.rank
    assert rank is not None
    flights = spans.of(_in_flight(job.collectives[index].parts[rank], trace.on_device) for index in indices)
    order = np.argsort(flights[:, 1], kind="stable")
    begins, ends = flights[order].T
    # the earliest begin of this collective and of those that end after it
    earliest = np.minimum.accumulate(begins[::-1])[::-1]
    for start, end in waiting:
        first = int(np.searchsorted(ends, start, side="right"))
        behind = int(np.searchsorted(ends, end + _RELEASED_S, side="right"))
        releases = tuple(int(indices[place]) for place in order[first:behind])
        is_released = bool(releases)
        if not is_released:
            behind = int(np.searchsorted(earliest, end))
            releases = tuple(int(indices[place]) for place in order[first:behind][begins[first:behind] < end])
            if not trace.on_device:
                late = [index for index in releases if _is_recorded_late(job, index, rank, float(start), float(end))]
                releases, is_released = tuple(late) or releases, bool(late)
        yield Stall(float(start), float(end), releases, None, is_released)


def _is_recorded_late(job: TracedJob, index: int, rank: int, start: float, end: float) -> bool:
    """Check whether a collective ended a stall, even if the collective's recorded end is slightly after the stall.

    All ranks must have arrived at this collective before the stall ended, because no rank can continue before the last
    arrival.
    """
    one = job.collectives[index]
    most = min(_RECORDED_LATE_SHARE * (end - start), _RECORDED_LATE_S)
    arrived = len(one.arrivals_s) > 1 and job.alignment.own(rank, one.last_arrival_s) <= end
    return arrived and one.parts[rank].end_s <= end + most


def _with_arrivals(stalls: Sequence[Stall], job: TracedJob, rank: int) -> Iterator[Stall]:
    """Yield each stall with the arrival time of the last rank.

    A stall that continues another stall has the same arrival time as the other stall.
    """
    waits: list[list[Stall]] = []
    for stall in stalls:
        if waits and _continues(waits[-1], stall, job, rank):
            waits[-1].append(stall)
        else:
            waits.append([stall])
    for wait in waits:
        known = [job.collectives[index] for stall in wait for index in stall.releases]
        arrivals = [one.last_arrival_s for one in known if len(one.arrivals_s) > 1]
        last = job.alignment.own(rank, max(arrivals)) if arrivals else None
        yield from (replace(stall, last_arrival_s=last) for stall in wait)


def _continues(wait: Sequence[Stall], stall: Stall, job: TracedJob, rank: int) -> bool:
    """Check whether a stall belongs to the same wait as the previous stall."""
    end = wait[-1].end_s
    little = max(_LITTLE_WORK_S, _LITTLE_WORK_SHARE * (end - wait[0].start_s))
    if stall.start_s - end > little:
        return False
    return any(job.collectives[index].parts[rank].arrival_s <= end + _RELEASED_S for index in stall.releases)


def _parts(timeline: RankTimeline, start: float, end: float) -> dict[StepPart, float]:
    """Return the seconds of each part within a step. The time outside all parts is `other`."""
    found = {part: spans.total(spans.clip(union, start, end)) for part, union in timeline.by_part.items()}
    found[StepPart.OTHER] += end - start - sum(found.values())
    return found
