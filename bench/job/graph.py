"""Replay the steps of a job with one change, using the dependencies between ranks.

Each rank has a clock. The rank's own work (data, compute, copies, host, other) advances the clock. The rank issues its
collectives at the recorded points of this work. A lane is the stream or thread that runs a rank's collectives one after
the other. A collective begins when all ranks have issued it and the previous collective on its lane has ended. A
collective takes its recorded transfer time. If a rank stalled for a collective, it continues when the collective ends.
A collective without a stall must end before the rank's next optimizer update or the end of the step. A replay without a
change reproduces the recorded steps, and `closure` shows the differences.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from statistics import median_low
from types import MappingProxyType

import numpy as np

from bench.core import spans
from bench.core.spans import Spans
from bench.core.step_trace import RankTrace, StepPart, StepPhase, TracedCollective
from bench.job.model import MESSAGE, TracedJob
from bench.job.parts import RankTimeline

Transfer = Callable[[int, float], float]


def _as_recorded(_: int, transfer_s: float) -> float:
    return transfer_s


@dataclass(frozen=True, slots=True)
class GraphChange:
    """The change in a replay.

    `removed`: for each rank, spans on its own clock. In the replay, work in the removed spans takes no time.
    `transfer`: a function that returns the seconds of a collective. The arguments of the function are the index in
    `TracedJob.collectives` and the recorded seconds.
    `balanced`: the ranks whose lateness is removed. In the replay, these ranks arrive no later than the (lower) median
    of the other ranks.
    `compute_factor`: the factor by which compute times are multiplied.
    `in_turn`: collectives that run one after the other within a group, because they share the group's links.
    `alone`: a function that replaces `transfer` for the collectives in `in_turn`. The arguments of the function are the
    index of the collective, and the idle time of the group's links before the collective.
    """

    removed: Mapping[int, Spans] = field(default_factory=lambda: MappingProxyType({}))
    transfer: Transfer = _as_recorded
    balanced: frozenset[int] = frozenset()
    compute_factor: float = 1.0
    alone: Transfer = _as_recorded
    in_turn: Collection[int] = frozenset()


class _Kind(Enum):
    ISSUE = auto()
    WAIT = auto()
    STEP = auto()


@dataclass(frozen=True, slots=True)
class _Event:
    """One event of a rank.

    `targets`: for ISSUE, the index of the collective; for WAIT, the indices of the collectives; for STEP, the number of
    the step.
    """

    time_s: float  # on the rank's own clock
    kind: _Kind
    targets: tuple[int, ...]


class Graph:
    """The events of all ranks, ready to be replayed."""

    def __init__(self, job: TracedJob, timelines: Mapping[int, RankTimeline]) -> None:
        """Build the graph of a job. Collectives whose duration is unknown are left out."""
        self.num_steps = job.num_steps
        self._job = job
        self._known = {index for index, one in enumerate(job.collectives) if one.timed}
        self._before, self._at_once = _before_on_lane(job, self._known)
        self._transfers = {index: self._transfer(index) for index in self._known}
        self._events: dict[int, list[_Event]] = {}
        self._work: dict[int, Spans] = {}
        self._compute = {rank: timeline.by_part[StepPart.COMPUTE] for rank, timeline in timelines.items()}
        self._keys: dict[int, list[float]] = {}
        for rank, trace in job.traces.items():
            timeline = timelines[rank]
            waits = spans.union(spans.of((one.start_s, one.end_s) for one in timeline.stalls if one.is_released))
            self._work[rank] = spans.minus(spans.of([(-np.inf, np.inf)]), waits)
            self._events[rank] = [*_events_of(job, trace, timeline, self._known)]
            self._keys[rank] = [job.alignment.aligned(rank, one.time_s) for one in self._events[rank]]

    def closure(self) -> list[tuple[float, float]]:
        """Return the recorded and the replayed seconds of each step."""
        return [*zip(self.recorded(), self.steps(), strict=True)]

    def recorded(self) -> list[float]:
        """Return the recorded seconds of each step, on its slowest rank."""
        by_rank = [[end - start for start, end in trace.steps] for trace in self._job.traces.values()]
        return [max(of_step) for of_step in zip(*by_rank, strict=True)]

    def steps(self, change: GraphChange | None = None) -> list[float]:
        """Return the replayed seconds of each step, on its slowest rank."""
        return _Replay(self, change or GraphChange()).steps()

    def transfer_s(self, index: int) -> float | None:
        """Return the transfer time of a collective in seconds; None if unknown.

        The transfer begins when all ranks have issued the collective and the previous collective in the same stream or
        thread has ended.
        """
        return self._transfers.get(index)

    def _transfer(self, index: int) -> float:
        one = self._job.collectives[index]
        before = [self._job.collectives[other].ends_s[rank] for rank, other in self._before[index].items()]
        return max(max(one.ends_s.values()) - max([one.last_arrival_s, *before]), 0.0)


class _Replay:
    """One pass over the events of all ranks, in the recorded order."""

    def __init__(self, graph: Graph, change: GraphChange) -> None:
        self._graph = graph
        self._change = change
        self._now = {rank: keys[0] if keys else 0.0 for rank, keys in graph._keys.items()}
        self._released = dict.fromkeys(graph._events, 0.0)  # end of the last collective that the rank awaited
        self._issued: dict[int, dict[int, float]] = defaultdict(dict)
        self._ends: dict[int, dict[int, float]] = {}  # collective -> rank -> its end
        self._group_ends: dict[str, float] = {}  # time at which the links of a group become free
        self._blocked: dict[int, list[int]] = defaultdict(list)  # collective -> ranks that wait for it
        self._marks: dict[int, list[float]] = defaultdict(list)  # rank -> its time at each boundary of a step
        self._places = dict.fromkeys(graph._events, 0)
        self._own = {rank: self._increments(rank) for rank in graph._events}

    def _increments(self, rank: int) -> list[float]:
        """Return the seconds of a rank's work between the previous event and each event."""
        events = self._graph._events[rank]
        work = self._graph._work[rank]
        if rank in self._change.removed:
            work = spans.minus(work, self._change.removed[rank])
        if not events:
            return []
        times = np.array([one.time_s for one in events])
        done = spans.covered_before(np.clip(work, times[0], times[-1]), times)
        if self._change.compute_factor != 1:
            compute = spans.both(work, self._graph._compute[rank])
            done += (self._change.compute_factor - 1) * spans.covered_before(compute, times)
        return [float(more) for more in np.diff(done, prepend=done[0])]

    def steps(self) -> list[float]:
        waiting = [(keys[0], rank) for rank, keys in self._graph._keys.items() if keys]
        heapq.heapify(waiting)
        while waiting or self._blocked:
            if not waiting:  # contradicting files: a rank awaits a collective that another rank never issued
                self._force(waiting)
                continue
            _, rank = heapq.heappop(waiting)
            if self._do(rank, waiting):
                self._advance(rank, waiting)
        for rank in self._change.balanced:
            self._balance_tail(rank)
        by_rank = []
        for marks in self._marks.values():
            by_rank.append([end - start for start, end in zip(marks[::2], marks[1::2], strict=True)])
        return [max(of_step) for of_step in zip(*by_rank, strict=True)]

    def _advance(self, rank: int, waiting: list[tuple[float, int]]) -> None:
        """Queue the next event of a rank."""
        self._places[rank] += 1
        place = self._places[rank]
        if place < len(self._graph._keys[rank]):
            heapq.heappush(waiting, (self._graph._keys[rank][place], rank))

    def _do(self, rank: int, waiting: list[tuple[float, int]]) -> bool:
        """Execute the next event of a rank.

        Return False if the rank is blocked, because it must wait for a collective.
        """
        place = self._places[rank]
        event = self._graph._events[rank][place]
        missing = [index for index in event.targets if event.kind is _Kind.WAIT and index not in self._ends]
        if missing:
            self._blocked[missing[0]].append(rank)
            return False
        self._now[rank] += self._own[rank][place]
        if event.kind is _Kind.STEP:
            self._marks[rank].append(self._now[rank])
        elif event.kind is _Kind.WAIT:
            self._released[rank] = max(self._ends[index][rank] for index in event.targets)
            self._now[rank] = max(self._now[rank], self._released[rank])
        else:
            [index] = event.targets
            self._issued[index][rank] = self._now[rank]
            if len(self._issued[index]) == len(self._graph._job.collectives[index].parts):
                self._complete(index, waiting)
        return True

    def _complete(self, index: int, waiting: list[tuple[float, int]]) -> None:
        """Compute the end of a collective that all ranks have issued, and wake the ranks that wait for it."""
        issued = self._issued.pop(index)
        one = self._graph._job.collectives[index]
        if one.op != MESSAGE:  # the next stage of a pipeline is not late
            for rank in self._change.balanced & issued.keys():
                self._balance(rank, issued)
        begin = arrived = max(issued.values())
        for rank, before in self._graph._before[index].items():
            begin = max(begin, self._ends.get(before, {}).get(rank, begin))
        if index in self._change.in_turn:
            free = self._group_ends.get(one.group, -np.inf)
            begin = max(begin, free)
            transfer_s = self._change.alone(index, begin - free)
            self._group_ends[one.group] = begin + transfer_s
        else:
            transfer_s = self._change.transfer(index, self._graph._transfers[index])
        last = max(one.ends_s.values())
        least = dict.fromkeys(one.ends_s, begin)
        if index in self._graph._at_once:  # it began while the collective before it still ran, so both may end together
            for rank, before in self._graph._before[index].items():
                least[rank] = max(arrived, self._ends.get(before, {}).get(rank, begin))
        self._ends[index] = {
            rank: max(begin + transfer_s - (last - end), least[rank]) for rank, end in one.ends_s.items()
        }
        for rank in self._blocked.pop(index, ()):
            heapq.heappush(waiting, (self._graph._keys[rank][self._places[rank]], rank))

    def _balance(self, rank: int, issued: dict[int, float]) -> None:
        """Move a late rank's arrival at a collective to the lower median of the other ranks' arrivals."""
        others = [time for other, time in issued.items() if other != rank]
        if not others:
            return
        late = issued[rank] - median_low(others)
        if late > 0:
            issued[rank] -= late
            self._now[rank] = max(self._now[rank] - late, self._released[rank])
            self._balance_marks(rank, late)

    def _balance_marks(self, rank: int, late: float) -> None:
        """Move the step boundaries that a late rank reached after its last wait.

        Each boundary moves earlier by the rank's lateness at this boundary. The shift is at most `late` seconds.
        """
        marks = self._marks[rank]
        for place in range(len(marks) - 1, -1, -1):
            if marks[place] <= self._released[rank]:
                return
            others = [own[place] for other, own in self._marks.items() if other != rank and len(own) > place]
            if others:
                marks[place] -= min(max(marks[place] - median_low(others), 0.0), late)

    def _balance_tail(self, rank: int) -> None:
        """If a rank ends the last step late, move this end to the lower median of the other ranks' ends."""
        others = [marks[-1] for other, marks in self._marks.items() if other != rank and marks]
        if others and self._marks[rank]:
            end = max(median_low(others), self._released[rank])
            self._marks[rank][-1] = min(self._marks[rank][-1], end)

    def _force(self, waiting: list[tuple[float, int]]) -> None:
        """Complete the first collective that ranks wait for, even if another rank never issues it.

        A rank fails to issue a collective only if the files contradict each other.
        """
        index = next(iter(self._blocked))
        if not self._issued[index]:
            self._issued[index] = {rank: self._now[rank] for rank in self._blocked[index]}
        self._complete(index, waiting)


def _before_on_lane(job: TracedJob, known: set[int]) -> tuple[dict[int, dict[int, int]], set[int]]:
    """Map each collective and rank to the previous collective of this rank in the same stream or thread.

    The second result is the set of collectives that overlap in time. With Gloo, several threads may run collectives of
    one group at the same time. These collectives overlap and share the group's links. The time of an overlapping
    collective therefore begins only after all collectives that began earlier have ended. The sum of these times is then
    the time in which the links were busy.
    """
    found: dict[int, dict[int, int]] = {index: {} for index in known}
    at_once: set[int] = set()
    lanes: dict[tuple[int, str], list[int]] = defaultdict(list)
    for index in known:
        for rank, part in job.collectives[index].parts.items():
            lanes[rank, part.lane].append(index)
    for (rank, _), indices in lanes.items():
        indices.sort(key=lambda index: job.collectives[index].parts[rank].start_s)
        ended: dict[str, int] = {}  # group -> its collective that has ended last so far
        for place, index in enumerate(indices):
            one = job.collectives[index]
            own = one.parts[rank]
            before = indices[place - 1] if place else None
            if before is not None and job.collectives[before].parts[rank].end_s <= own.start_s + 1e-6:
                found[index][rank] = before
            elif one.group in ended:  # two collectives at once, by several threads, share the links of the group
                found[index][rank] = ended[one.group]
                at_once.add(index)
            if one.group not in ended or own.end_s > job.collectives[ended[one.group]].parts[rank].end_s:
                ended[one.group] = index
    return found, at_once


def _events_of(job: TracedJob, trace: RankTrace, timeline: RankTimeline, known: set[int]) -> Iterator[_Event]:
    """Yield the events of a rank in order of time: issued collectives, ends of stalls, and boundaries of steps."""
    events: list[_Event] = []
    mine = [index for index in sorted(known) if timeline.rank in job.collectives[index].parts]
    parts = [job.collectives[index].parts[timeline.rank] for index in mine]
    for index, time in zip(mine, _ready(trace, parts), strict=True):
        events.append(_Event(time, _Kind.ISSUE, (index,)))
    awaited: set[int] = set()
    for stall in timeline.stalls:
        releases = tuple(index for index in stall.releases if index in known and stall.is_released)
        if releases:
            awaited |= set(releases)
            events.append(_Event(stall.end_s, _Kind.WAIT, releases))
    steps = trace.steps
    deadlines = np.array(sorted([*_optimizer_starts(trace), *(end for _, end in steps)]))
    for index, part in zip(mine, parts, strict=True):
        place = int(np.searchsorted(deadlines, part.end_s))
        if index not in awaited and place < len(deadlines):
            events.append(_Event(float(deadlines[place]), _Kind.WAIT, (index,)))
    for number, (start, end) in enumerate(steps):
        events += [_Event(start, _Kind.STEP, (number,)), _Event(end, _Kind.STEP, (number,))]
    order = {_Kind.ISSUE: 0, _Kind.WAIT: 1, _Kind.STEP: 2}
    yield from sorted(events, key=lambda one: (one.time_s, order[one.kind], one.targets))


def _ready(trace: RankTrace, parts: Sequence[TracedCollective]) -> Iterator[float]:
    """Yield the time at which each collective was issued.

    On a device, a collective counts as issued when all work that was launched earlier has ended. If the collective must
    wait for the previous collective in its stream, its kernel starts later.
    """
    launched = ~np.isnan(trace.compute_launch_s)
    order = np.argsort(trace.compute_launch_s[launched], kind="stable")
    launches = trace.compute_launch_s[launched][order]
    ends = np.maximum.accumulate(trace.compute[launched][order][:, 1]) if len(order) else np.empty(0)
    for part in parts:
        if part.launch_s is None or not trace.on_device:
            yield part.arrival_s
            continue
        place = int(np.searchsorted(launches, part.launch_s))
        ready = max(part.launch_s, float(ends[place - 1])) if place else part.launch_s
        yield min(ready, part.arrival_s)


def _optimizer_starts(trace: RankTrace) -> list[float]:
    union = spans.union(trace.phases.get(StepPhase.OPTIMIZER, spans.NONE))
    return [float(start) for start, _ in union]
