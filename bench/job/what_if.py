"""Compute how much time a step would save without one cause of delay.

The steps are replayed twice: without a change, and without the cause. The gain of a step is the difference of the two
times. The result is the median over steps with its 95 % interval. The gains of several causes do not add up. For
example, an exchange may become visible when a rank is no longer late.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np

from bench.core import spans
from bench.core.spans import Spans
from bench.core.step_trace import RankTrace, StepPart, StepPhase, StepSegment
from bench.job.graph import Graph, GraphChange, Transfer
from bench.job.lateness import segments_of
from bench.job.messages import WhatIf
from bench.job.model import Gain, MatchedCollective, TracedJob
from bench.job.network import Network
from bench.job.parts import RankTimeline
from bench.results import stats

_BUCKETS = 8  # buckets of one step; with fewer, much of the exchange is exposed, and many more buckets cost more calls
_LEAST_BUCKET_BYTES = 1 << 16  # a smaller exchange takes its latency, which more buckets do not reduce
_REDUCTIONS = ("allreduce", "reduce_scatter", "reduce")
_HALVED = ("float32", "float", "fp32", "Float")


class WhatIfs:
    """Replays of one job, each compared with the replay without a change."""

    def __init__(
        self, job: TracedJob, timelines: Mapping[int, RankTimeline], graph: Graph, network: Network | None
    ) -> None:
        """Replay the job without a change."""
        self.job = job
        self.timelines = timelines
        self.graph = graph
        self.network = network
        self.base = graph.steps()
        self._by_name: dict[WhatIf, Gain] = {}

    def gain(self, name: str, change: GraphChange) -> Gain:
        """Return the time that a step would save with this change."""
        steps = self.graph.steps(change)
        saved = [before - after for before, after in zip(self.base, steps, strict=True)]
        return gain_of(name, saved)

    def named(self) -> Iterator[Gain]:
        """Yield the times that the changes in WhatIf would save, the largest first.

        Changes whose gain the traces do not show are left out.
        """
        found = [gain for name in WhatIf if (gain := self.of(name)) is not None]
        yield from sorted(found, key=lambda one: -one.gain_s)

    def of(self, name: WhatIf) -> Gain | None:
        """Return the time that a change in WhatIf would save; None if the traces do not show the time."""
        if name not in self._by_name:
            change = self._change(name)
            if change is None:
                return None
            self._by_name[name] = self.gain(name, change)
        return self._by_name[name]

    def without(self, name: str, removed: Mapping[int, Spans]) -> Gain:
        """Return the time that a step would save if the ranks' own work in the spans `removed` took no time."""
        return self.gain(name, GraphChange(removed=removed))

    def part(self, part: StepPart) -> dict[int, Spans]:
        """Return the times of one part of the steps, by rank."""
        return {rank: timeline.by_part[part] for rank, timeline in self.timelines.items()}

    @cached_property
    def buckets(self) -> list[BucketPhase]:
        """Return the gradient exchanges of each step that the backward pass may hide."""
        return [*_bucket_phases(self.job, self.timelines, self.graph)]

    def _change(self, name: WhatIf) -> GraphChange | None:
        several = any(len(one.parts) > 1 for one in self.job.collectives)
        match name:
            case WhatIf.NO_NETWORK:
                return GraphChange(transfer=_nothing) if self.job.collectives else None
            case WhatIf.IDEAL_NETWORK:
                return None if self.network is None else GraphChange(transfer=self._ideal(self.network))
            case WhatIf.BALANCED_RANKS:
                return GraphChange(balanced=frozenset(self.job.traces)) if several else None
            case WhatIf.NO_DATA_WAIT:
                return GraphChange(removed=self.part(StepPart.DATA_WAIT))
            case WhatIf.NO_EXPOSED_COPIES:
                return GraphChange(removed=self.part(StepPart.EXPOSED_COPY)) if self._on_device else None
            case WhatIf.NO_HOST_GAPS:
                return GraphChange(removed=self.part(StepPart.HOST_BOUND)) if self._on_device else None
            case WhatIf.OTHER_BUCKETS:
                phases = self.buckets
                return GraphChange(transfer=_rebucketed(phases)) if phases else None
            case WhatIf.HALF_GRADIENTS:
                return self._half()

    @property
    def _on_device(self) -> bool:
        return any(trace.on_device for trace in self.job.traces.values())

    def _ideal(self, network: Network) -> Transfer:
        def transfer(index: int, transfer_s: float) -> float:
            alone = network.alone(self.job.collectives[index])
            return transfer_s if alone is None else min(transfer_s, alone.ideal_s)

        return transfer

    def _half(self) -> GraphChange | None:
        halved = {
            index
            for index, one in enumerate(self.job.collectives)
            if one.op in _REDUCTIONS and (one.dtype or "") in _HALVED
        }
        if not halved:
            return None
        return GraphChange(transfer=lambda index, transfer_s: transfer_s / 2 if index in halved else transfer_s)


def gain_of(name: str, saved: Sequence[float]) -> Gain:
    """Return the median saving per step with its interval.

    With few steps, the interval reaches from the smallest to the largest saving.
    """
    ordered = sorted(saved)
    rank = stats.interval_rank(len(ordered)) or 1
    return Gain(name, median(ordered), ordered[rank - 1], ordered[-rank], tuple(saved))


def _nothing(_index: int, _transfer_s: float) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class BucketPhase:
    """The exchanges of gradients of one step and group, and the backward pass that may hide them.

    `indices`: the exchanges, in the order of issue, as indices in `TracedJob.collectives`.
    `transfer_s`: the time in which at least one exchange was on the wire.
    `backward_s`: the time of the shortest backward pass of any rank. Late ranks do not count, because their backward
    passes include delays.
    `exposed_s`: the time from the last rank's arrival at the last exchange to the end of all exchanges.
    `num_bytes`: the bytes of all exchanges; None if unknown.
    """

    indices: Sequence[int]
    transfer_s: float
    backward_s: float
    exposed_s: float
    num_bytes: int | None

    @property
    def least_exposed_s(self) -> float:
        """The seconds of exchange that remain exposed if the buckets have the best size.

        The backward pass takes `b` seconds, and the exchange of each of `k` buckets takes `a` seconds. The result is
        `max(b + a, b/k + k a) - b`.
        """
        most = _BUCKETS if self.num_bytes is None else min(_BUCKETS, self.num_bytes // _LEAST_BUCKET_BYTES)
        k, b, all_s = max(most, len(self.indices)), self.backward_s, self.transfer_s
        return min(self.exposed_s, max(all_s / k, b / k + all_s - b))


def _rebucketed(phases: Sequence[BucketPhase]) -> Transfer:
    """Return a function that replaces the transfer times of gradients by the exposed times.

    The last bucket of each phase takes the exposed time of the phase, and all other buckets take no time.
    """
    last = {phase.indices[-1]: phase.least_exposed_s for phase in phases}
    others = {index for phase in phases for index in phase.indices[:-1]}

    def transfer(index: int, transfer_s: float) -> float:
        return 0.0 if index in others else last.get(index, transfer_s)

    return transfer


def _bucket_phases(job: TracedJob, timelines: Mapping[int, RankTimeline], graph: Graph) -> Iterator[BucketPhase]:
    """Yield the exchanges of gradients by step and group.

    Blocking exchanges, on which other work depends, are left out.
    """
    segments = {rank: segments_of(trace, timelines[rank]) for rank, trace in job.traces.items()}
    starts = {rank: _phase_starts(trace) for rank, trace in job.traces.items()}
    awaited = blocking(job, timelines)
    phases: dict[tuple[int, str], list[int]] = defaultdict(list)
    for index, one in enumerate(job.collectives):
        transfer_s = graph.transfer_s(index)
        rank = next(iter(one.parts))
        called = _called(one, rank)
        if transfer_s is None or one.op not in _REDUCTIONS or index in awaited:
            continue
        step = job.step_of(rank, called)
        if step is not None and _last_phase(starts[rank], called) is StepPhase.BACKWARD:
            phases[step, one.group].append(index)
    for (step, _), indices in phases.items():
        last = job.collectives[indices[-1]]
        lengths, wire = [], []
        for rank, part in last.parts.items():
            start, _ = job.step_span(rank, step)
            backward = segments[rank].by_segment[StepSegment.BACKWARD]
            lengths.append(spans.total(spans.clip(backward, start, part.arrival_s)))
        for index in indices:
            end = max(job.collectives[index].ends_s.values())
            wire.append((end - (graph.transfer_s(index) or 0.0), end))
        exposed_s = max(end for _, end in wire) - last.last_arrival_s
        sizes = [job.collectives[index].num_bytes for index in indices]
        num_bytes = None if None in sizes else sum(size or 0 for size in sizes)
        transfer_s = spans.total(spans.union(spans.of(wire)))
        yield BucketPhase(indices, transfer_s, min(lengths), max(exposed_s, 0.0), num_bytes)


def _phase_starts(trace: RankTrace) -> list[tuple[float, StepPhase]]:
    """Return when each phase of a rank's host began, in order of time."""
    return sorted((float(start), phase) for phase, union in trace.phases.items() for start in union[:, 0])


def _last_phase(starts: Sequence[tuple[float, StepPhase]], time: float) -> StepPhase | None:
    """Return the phase that began last before `time`, or None if no phase began before it.

    An exchange between two phases thus belongs to the earlier phase.
    """
    place = bisect_right(starts, time, key=lambda item: item[0])
    return starts[place - 1][1] if place else None


def _called(one: MatchedCollective, rank: int) -> float:
    """Return when the host of a rank called a collective, on the rank's clock."""
    part = one.parts[rank]
    return next(time for time in (part.launch_s, part.called_s, part.start_s) if time is not None)


def blocking(job: TracedJob, timelines: Mapping[int, RankTimeline]) -> set[int]:
    """Return the collectives for which a rank waited before it issued another collective.

    If a rank waits for only one collective in a step, the result is empty, because this collective may be a single
    large bucket at the end of the backward pass.
    """
    alone: set[int] = set()
    for rank, timeline in timelines.items():
        issues = np.array(sorted(_called(one, rank) for one in job.collectives if rank in one.parts))
        for stall in timeline.stalls:
            if len(stall.releases) != 1 or not stall.is_released:
                continue
            called = _called(job.collectives[stall.releases[0]], rank)
            later = np.searchsorted(issues, stall.end_s) - np.searchsorted(issues, called, side="right")
            if later == 0:
                alone.add(stall.releases[0])
    return alone if len(alone) > job.num_steps * 1.5 else set()
