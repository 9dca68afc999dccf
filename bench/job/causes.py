"""Find the likeliest causes of lost time.

Each type of cause has a function. The function replays the steps without the cause. The cause is named only if the
median saving per step exceeds a limit, even at the low end of the saving's interval. The limit is the larger of two
values: the error bound of the clocks, and a fixed share of the step. The fixed share covers the usual variation of
healthy jobs. The parts of a step show where the time went. A cause shows how much time a step would save.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_low

import numpy as np

from bench.core import spans
from bench.core.codes import Coded
from bench.core.spans import Spans
from bench.core.step_trace import Direction, RankTrace, StepPart, StepPhase, WaitKind
from bench.job.graph import GraphChange
from bench.job.messages import CauseCode, ConfirmCode, EvidenceCode, WhatIf
from bench.job.model import MESSAGE, Cause, Gain, Late, LateRank, RankStep, TracedJob
from bench.job.what_if import WhatIfs, gain_of

_LEAST_SHARE = 0.04  # share of a step; healthy jobs on hosts vary by up to 2 %
_OFTEN = 0.7  # a rank is late if it was late by more than the limit in this share of the steps
_SLOW = 1.5  # a group is slow if its exchange takes this many times as long as that of similar groups
_LEAST_GROUPS = 3
# a wait of the host caused an idle time of the device if the idle time begins at most this long after the wait begins
_AFTER_WAIT_S = 50e-6
_SHORT_KERNEL_S = 5e-6  # less than the cost of a launch
_UNKNOWN_SHARE = 0.2
_PERIODIC_STEPS = 3  # at least this many long steps must be equally far apart
_UNEVEN = 1.1  # a pipeline is uneven if the slowest stage computes for this many times as long as the median stage
_LEAST_PERIOD = 3  # if every other step is long, the job has two types of steps
_LONG = 1.2  # a long step takes this many times the median step
_LARGE_COPY_BYTES = 1 << 20  # smaller copies do not show the rate of the link
_DEVICE_WAITS = (WaitKind.SYNC, WaitKind.ITEM, WaitKind.ALLOCATOR)
_PARTS_OF_A_GPU = ("MIG", "GRID", "vGPU")
_NO_TIME_S = 1e-9  # sums of thousands of seconds have rounding errors
# A type of kernel is examined if at least this many kernels ran alone, and as many during an exchange. A kernel counts
# as running during an exchange if the exchange covers more than this share of the kernel's duration.
_LEAST_KERNELS, _BESIDE = 5, 0.9
# kernels of a type differ at most by this factor alone, and are longer by at least this factor during an exchange
_EQUAL, _SLOWED = 1.1, 1.1
_BUSY_CPUS = 0.8  # if the ranks use a smaller share of their CPUs while they wait, other programs use the CPUs
_CERTAIN, _ONE_STEP, _RANKS_MISSING, _UNEXPLAINED, _AT_MOST = 0.98, 0.5, 0.7, 0.3, 0.7


@dataclass(frozen=True, slots=True)
class Known:
    """The input of the functions that find causes."""

    job: TracedJob
    steps: Sequence[RankStep]
    late: Sequence[Late]
    late_ranks: Sequence[LateRank]
    replays: WhatIfs
    step_s: float
    limit_s: float


def limit_of(job: TracedJob, step_s: float) -> float:
    """Return the smallest gain per step, in seconds, for which a cause is named."""
    return max(job.alignment.bound_s or 0.0, _LEAST_SHARE * step_s)


def causes_of(known: Known) -> list[Cause]:
    """Return the causes, the cause with the largest gain first."""
    found = [cause for rule in _RULES for cause in rule(known)]
    return sorted(found, key=lambda cause: -cause.gain_s)


def _cause(
    known: Known,
    gain: Gain,
    words: Coded,
    confirm: Coded,
    evidence: Iterable[Coded] = (),
    ranks: tuple[int, ...] = (),
    confidence: float = _CERTAIN,
) -> Iterator[Cause]:
    """Yield the cause if its gain exceeds the limit."""
    if gain.low_s <= known.limit_s:
        return
    above = sum(saved > known.limit_s for saved in gain.by_step)
    share = above / len(gain.by_step)
    confidence *= min(share, _CERTAIN)
    confidence *= _ONE_STEP if len(gain.by_step) == 1 else 1.0
    confidence *= _RANKS_MISSING if known.job.missing else 1.0
    facts = {"num": above, "num_steps": len(gain.by_step), "limit_s": known.limit_s}
    evidence = (*evidence, Coded.of(EvidenceCode.SHARE, **facts))
    yield Cause(words.code, gain.gain_s, gain.low_s, gain.high_s, round(confidence, 2), words, evidence, confirm, ranks)


def _late_input(known: Known) -> Iterator[Cause]:
    """Find input that is late on all ranks.

    If other ranks get their input in time, this function reports nothing, because another function finds late ranks.
    """
    waits = [_median_part(known, rank, StepPart.DATA_WAIT) for rank in known.job.traces]
    if min(waits) <= known.limit_s:
        return
    gain = known.replays.of(WhatIf.NO_DATA_WAIT)
    assert gain is not None
    evidence = [Coded.of(EvidenceCode.ALL_WAIT, waits_s=[f"{wait * 1e3:.1f} ms" for wait in waits])]
    words = Coded.of(CauseCode.LATE_INPUT, wait_s=median(waits))
    yield from _cause(known, gain, words, Coded.of(ConfirmCode.INPUT), evidence)


def _late_rank(known: Known) -> Iterator[Cause]:
    """Find ranks that are late in most steps."""
    for late in _often_late(known):
        gain = known.replays.gain(CauseCode.LATE_RANK, GraphChange(balanced=frozenset({late.rank})))
        host = known.job.traces[late.rank].host
        facts = {"rank": late.rank, "host": host, "segment": late.segment.value, "late_s": late.late_s}
        num = round(late.share * known.job.num_steps)
        evidence = [Coded.of(EvidenceCode.LATE_IN, num=num, num_steps=known.job.num_steps)]
        confirm = Coded.of(ConfirmCode.RANK, rank=late.rank)
        yield from _cause(known, gain, Coded.of(CauseCode.LATE_RANK, **facts), confirm, evidence, (late.rank,))


def _often_late(known: Known) -> list[LateRank]:
    """Return the ranks that are late in most steps, except pipeline stages.

    If a rank works after the last exchange of a step, its delay is visible only in the next step. In a job with few
    steps, one step without a delay is therefore tolerated.
    """
    num_steps = known.job.num_steps
    least = min(_OFTEN * num_steps, max(num_steps - 1, 2))
    return [late for late in known.late_ranks if late.share * num_steps >= least and not _is_bubble(known, late.rank)]


def _is_bubble(known: Known, rank: int) -> bool:
    """Check whether other ranks wait mostly for messages from a rank.

    If the other ranks wait for messages from a rank, this rank is a pipeline stage and not a late rank.
    """
    ops = Counter(known.job.collectives[one.collective].op for one in known.late if one.rank == rank)
    return bool(ops) and ops.most_common(1)[0][0] == MESSAGE


def _random_lateness(known: Known) -> Iterator[Cause]:
    """Find lateness that moves between ranks. If the same rank is always late, the lateness is not random."""
    if _often_late(known) or known.job.num_steps < 2:
        return
    late = [one for one in known.late if one.late_s > known.limit_s and not _is_bubble(known, one.rank)]
    if len({one.rank for one in late}) < 2:
        return
    gain = known.replays.of(WhatIf.BALANCED_RANKS)
    if gain is None:
        return
    words = Coded.of(CauseCode.RANDOM_LATENESS, late_s=median(one.late_s for one in late))
    evidence = [Coded.of(EvidenceCode.LATE_RANKS, ranks=[str(one.rank) for one in late])]
    yield from _cause(known, gain, words, Coded.of(ConfirmCode.NOISE), evidence)


def _bubble(known: Known) -> Iterator[Cause]:
    """Find stages of a pipeline that wait for the messages of other stages."""
    waits: dict[int, Spans] = {}
    for rank, timeline in known.replays.timelines.items():
        own = [stall for stall in timeline.stalls if stall.releases and _are_messages(known, stall.releases)]
        if own:
            waits[rank] = spans.union(spans.of((stall.start_s, stall.end_s) for stall in own))
    if not waits:
        return
    by_step = []
    for step in range(known.job.num_steps):
        spent = [spans.total(spans.clip(own, *known.job.step_span(rank, step))) for rank, own in waits.items()]
        by_step.append(median(spent))
    gain = gain_of(CauseCode.BUBBLE, by_step)
    words = Coded.of(CauseCode.BUBBLE, wait_s=gain.gain_s)
    yield from _cause(known, gain, words, Coded.of(ConfirmCode.MICRO_BATCHES), _stages(known, waits), tuple(waits))


def _are_messages(known: Known, indices: Sequence[int]) -> bool:
    return all(known.job.collectives[index].op == MESSAGE for index in indices)


def _stages(known: Known, ranks: Collection[int]) -> Iterator[Coded]:
    """Yield the shortest possible waiting time of this pipeline, and a stage with more work than the other stages.

    With p stages and m micro-batches, a step takes (m + p - 1) t, where t is the time of one micro-batch on one stage.
    Each stage works for a time of m t, with the schedule GPipe as well as 1F1B. The shortest waiting time is not
    reported if a micro-batch has several messages, or if the job has several pipelines.
    """
    counts = Counter(one.group for one in known.job.collectives if one.op == MESSAGE)
    num_links = 2 * (len(ranks) - 1)  # between each two stages, one link to the next stage and one back
    num_messages = max(counts.values())
    if len(counts) == num_links and len({*counts.values()}) == 1 and num_messages % known.job.num_steps == 0:
        num_micro = num_messages // known.job.num_steps
        share = (len(ranks) - 1) / (num_micro + len(ranks) - 1)
        facts = {"num_stages": len(ranks), "num_micro": num_micro, "share": share, "least_s": share * known.step_s}
        yield Coded.of(EvidenceCode.PIPELINE, **facts)
    work = {rank: _median_part(known, rank, StepPart.COMPUTE) for rank in ranks}
    usual, most = median(work.values()), max(work, key=lambda rank: work[rank])
    if work[most] > _UNEVEN * usual:
        yield Coded.of(EvidenceCode.UNEVEN_STAGES, rank=most, own_s=work[most], usual_s=usual)


def _slow_link(known: Known) -> Iterator[Cause]:
    """Find exchanges that take longer than the machine's links allow, or longer than in other groups."""
    yield from _slower_than_predicted(known)
    yield from _slower_than_other_groups(known)


def _slower_than_predicted(known: Known) -> Iterator[Cause]:
    network = known.replays.network
    if network is None:
        return
    slow: dict[int, float] = {}
    for index, one in enumerate(known.job.collectives):
        transfer_s, alone = known.replays.graph.transfer_s(index), network.alone(one)
        if transfer_s is not None and alone is not None and transfer_s > alone.high_s:
            slow[index] = alone.high_s
    if not slow:
        return
    gain = known.replays.gain(
        CauseCode.SLOW_LINK, GraphChange(transfer=lambda index, own: min(own, slow.get(index, own)))
    )
    worst = max(slow, key=lambda index: (known.replays.graph.transfer_s(index) or 0.0) - slow[index])
    one = known.job.collectives[worst]
    facts = {"op": one.op, "num_bytes": one.num_bytes, "own_s": known.replays.graph.transfer_s(worst)}
    words = Coded.of(CauseCode.SLOW_LINK, **facts, machine=network.name, usual_s=slow[worst])
    yield from _cause(known, gain, words, Coded.of(ConfirmCode.LINK), _exchanges(known))


def _slower_than_other_groups(known: Known) -> Iterator[Cause]:
    kinds: dict[tuple[str, int, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, one in enumerate(known.job.collectives):
        if known.replays.graph.transfer_s(index) and one.num_bytes and one.complete:
            kinds[one.op, one.num_bytes, len(one.parts)][one.group].append(index)
    slow: dict[int, float] = {}
    worst: tuple[float, str, int, float] | None = None
    for (op, *_), groups in kinds.items():
        if len(groups) < _LEAST_GROUPS:
            continue
        usual = {
            name: median(known.replays.graph.transfer_s(index) or 0.0 for index in own) for name, own in groups.items()
        }
        for name, own_s in usual.items():
            others_s = median(seconds for other, seconds in usual.items() if other != name)
            if own_s > _SLOW * others_s:
                slow |= dict.fromkeys(groups[name], others_s)
                excess = (own_s - others_s) * len(groups[name])
                worst = max(worst or (0.0, "", 0, 0.0), (excess, op, groups[name][0], others_s))
    if worst is None:
        return
    gain = known.replays.gain(
        CauseCode.SLOW_LINK, GraphChange(transfer=lambda index, own: min(own, slow.get(index, own)))
    )
    one = known.job.collectives[worst[2]]
    ranks = tuple(sorted(one.parts))
    facts = {"op": one.op, "num_bytes": one.num_bytes, "own_s": known.replays.graph.transfer_s(worst[2])}
    words = Coded.of(CauseCode.SLOW_LINK, **facts, others_s=worst[3], ranks=[str(rank) for rank in ranks])
    yield from _cause(known, gain, words, Coded.of(ConfirmCode.LINK), _exchanges(known), ranks)


def _exchange_not_hidden(known: Known) -> Iterator[Cause]:
    """Find gradients whose exchange is exposed although the backward pass is long enough to hide it."""
    phases = known.replays.buckets
    gain = known.replays.of(WhatIf.OTHER_BUCKETS)
    if not phases or gain is None or not _compared(known):
        return
    facts = {"exposed_s": gain.gain_s, "backward_s": median(phase.backward_s for phase in phases)}
    sizes = [known.job.collectives[index].num_bytes or 0 for phase in phases for index in phase.indices]
    least = median(phase.least_exposed_s for phase in phases)
    num = round(len(sizes) / len(phases))
    evidence = [Coded.of(EvidenceCode.BUCKETS, num=num, largest=max(sizes), least_s=least)]
    words = Coded.of(CauseCode.EXCHANGE_NOT_HIDDEN, **facts)
    yield from _cause(known, gain, words, Coded.of(ConfirmCode.BUCKETS), evidence)


def _exchange_cannot_hide(known: Known) -> Iterator[Cause]:
    """Find exchanges that the backward pass cannot hide.

    Either the backward pass is too short, or the ranks wait for each exchange.
    """
    without, hidden = known.replays.of(WhatIf.NO_NETWORK), known.replays.of(WhatIf.OTHER_BUCKETS)
    if without is None or not _compared(known):
        return
    saved = [*without.by_step]
    if hidden is not None:
        saved = [all_s - more for all_s, more in zip(saved, hidden.by_step, strict=True)]
    gain = gain_of(CauseCode.EXCHANGE_CANNOT_HIDE, saved)
    phases = known.replays.buckets
    facts: dict[str, object] = {"exchange_s": _wire_s(known), "num": _num_exchanges(known)}
    if phases:
        facts["backward_s"] = median(phase.backward_s for phase in phases)
    words = Coded.of(CauseCode.EXCHANGE_CANNOT_HIDE, **facts, blocking=not phases)
    yield from _cause(known, gain, words, Coded.of(ConfirmCode.LESS), _exchanges(known))


def _compared(known: Known) -> bool:
    """Check whether the exchanges have files of several ranks.

    With files of only one rank, waiting for a late rank looks like a transfer.
    """
    return any(len(one.parts) > 1 for one in known.job.collectives)


def _exchanges(known: Known) -> list[Coded]:
    """Return how many bytes a rank exchanges in a step."""
    calls = len(known.job.traces) * max(known.job.num_steps, 1)
    num_bytes = sum((one.num_bytes or 0) * len(one.parts) for one in known.job.collectives)
    facts = {"num": _num_exchanges(known), "num_bytes": num_bytes / calls, "transfer_s": _wire_s(known)}
    return [Coded.of(EvidenceCode.TRANSFERS, **facts)]


def _num_exchanges(known: Known) -> int:
    """Return the mean number of exchanges that a rank makes in a step."""
    calls = sum(len(one.parts) for one in known.job.collectives)
    return round(calls / len(known.job.traces) / max(known.job.num_steps, 1))


def _wire_s(known: Known) -> float:
    """Return how many seconds of a step an exchange of the rank moves data: the median over ranks."""
    by_rank: dict[int, list[tuple[float, float]]] = {rank: [] for rank in known.job.traces}
    for index, one in enumerate(known.job.collectives):
        transfer_s = known.replays.graph.transfer_s(index)
        if transfer_s is not None:
            end = max(one.ends_s.values())
            for rank in one.parts:
                by_rank[rank].append((end - transfer_s, end))
    totals = [spans.total(spans.union(spans.of(own))) for own in by_rank.values()]
    return median(totals) / max(known.job.num_steps, 1)


def _host_bound(known: Known) -> Iterator[Cause]:
    """Find times in which the device is idle because the host launches work too late.

    Times in which the host itself waits are left out.
    """
    gain = known.replays.of(WhatIf.NO_HOST_GAPS)
    if gain is None:
        return
    waiting = {rank: _idle_after(known, rank, {*_DEVICE_WAITS}) for rank in known.job.traces}
    host = known.replays.part(StepPart.HOST_BOUND)
    rest = {rank: spans.minus(host[rank], waiting[rank]) for rank in host}
    idle = [spans.total(spans.union(rest[rank])) / known.job.num_steps for rank in rest]
    if median_low(idle) <= known.limit_s:
        return  # if the host delays only few ranks, these ranks are late ranks
    gain = known.replays.without(CauseCode.HOST_BOUND, rest)
    kernels = np.concatenate([trace.compute[:, 1] - trace.compute[:, 0] for trace in known.job.traces.values()])
    if not len(kernels):
        return
    kernel_s = float(np.mean(kernels))
    num = round(len(kernels) / len(known.job.traces) / max(known.job.num_steps, 1))
    evidence = [Coded.of(EvidenceCode.LAUNCHES, num=num, mean_s=kernel_s)]
    words = Coded.of(CauseCode.HOST_BOUND, idle_s=gain.gain_s, num_launches=num, kernel_s=kernel_s)
    yield from _cause(known, gain, words, Coded.of(ConfirmCode.GRAPHS), evidence)
    if kernel_s < _SHORT_KERNEL_S:
        words = Coded.of(CauseCode.SMALL_BATCH, kernel_s=kernel_s)
        yield from _cause(known, gain, words, Coded.of(ConfirmCode.BATCH), evidence, confidence=0.6)


def _idle_after(known: Known, rank: int, kinds: set[WaitKind]) -> Spans:
    """Return a rank's host-bound times that began while its host waited, or shortly after such a wait."""
    trace = known.job.traces[rank]
    waits = spans.union(spans.of((one.start_s, one.end_s + _AFTER_WAIT_S) for one in trace.waits if one.kind in kinds))
    idle = known.replays.timelines[rank].by_part[StepPart.HOST_BOUND]
    if not len(waits) or not len(idle):
        return spans.NONE
    place = np.searchsorted(waits[:, 0], idle[:, 0], side="right") - 1
    begun = (place >= 0) & (idle[:, 0] < waits[np.maximum(place, 0), 1])
    found: Spans = idle[begun]
    return found


def _sync_point(known: Known) -> Iterator[Cause]:
    """Find synchronisation points: the host waits for the device, and afterwards the device waits for the host."""
    yield from _host_waits(known, {WaitKind.SYNC, WaitKind.ITEM}, CauseCode.SYNC_POINT, ConfirmCode.SYNC)


def _allocator(known: Known) -> Iterator[Cause]:
    """Find device memory that the host allocates or frees within the step."""
    yield from _host_waits(known, {WaitKind.ALLOCATOR}, CauseCode.ALLOCATOR, ConfirmCode.ALLOCATOR)


def _host_waits(known: Known, kinds: set[WaitKind], code: CauseCode, confirm: ConfirmCode) -> Iterator[Cause]:
    idle = {rank: _idle_after(known, rank, kinds) for rank in known.job.traces}
    if not any(len(one) for one in idle.values()):
        return
    names = Counter(one.name for trace in known.job.traces.values() for one in trace.waits if one.kind in kinds)
    gain = known.replays.without(code, idle)
    words = Coded.of(code, idle_s=gain.gain_s, name=names.most_common(1)[0][0])
    yield from _cause(known, gain, words, Coded.of(confirm))


def _costly_overlap(known: Known) -> Iterator[Cause]:
    """Find kernels that take longer while an exchange runs.

    A type of kernel is used only if its durations without an exchange are nearly equal.
    """
    excess: dict[int, Spans] = {}
    factors = []
    for rank, trace in known.job.traces.items():
        slowed = [*_slowed(trace)]
        excess[rank] = spans.union(spans.of(span for spans_of_kind, _ in slowed for span in spans_of_kind))
        factors += [factor for _, factor in slowed]
    if not factors:
        return
    gain = known.replays.without(CauseCode.COSTLY_OVERLAP, excess)
    words = Coded.of(CauseCode.COSTLY_OVERLAP, factor=median(factors))
    yield from _cause(known, gain, words, Coded.of(ConfirmCode.OVERLAP))


def _slowed(trace: RankTrace) -> Iterator[tuple[list[tuple[float, float]], float]]:
    """Yield (excess times, slowdown factor) for each type of kernel that is slower while an exchange runs.

    The excess time of a kernel is its duration minus the usual duration, and is taken from the end of the kernel.
    """
    if trace.compute_kind is None or not len(trace.compute):
        return
    running = spans.union(spans.of((one.start_s, one.end_s) for one in trace.collectives if one.timed))
    lengths = trace.compute[:, 1] - trace.compute[:, 0]
    beside = spans.covered_before(running, trace.compute[:, 1]) - spans.covered_before(running, trace.compute[:, 0])
    for kind in np.unique(trace.compute_kind):
        mine = trace.compute_kind == kind
        alone, slow = lengths[mine & (beside < _NO_TIME_S)], mine & (beside > _BESIDE * lengths)
        if len(alone) < _LEAST_KERNELS or slow.sum() < _LEAST_KERNELS:
            continue
        low, usual, high = np.quantile(alone, (0.1, 0.5, 0.9))
        factor = float(np.median(lengths[slow]) / usual)
        if high <= _EQUAL * low and factor > _SLOWED:
            ends = trace.compute[slow][:, 1]
            yield (
                [(end - max(length - usual, 0.0), end) for end, length in zip(ends, lengths[slow], strict=True)],
                factor,
            )


def _recompute(known: Known) -> Iterator[Cause]:
    """Find layers whose forward pass is repeated during the backward pass."""
    again = {}
    for rank, trace in known.job.traces.items():
        forward, backward = (
            spans.union(trace.phases.get(name, spans.NONE)) for name in (StepPhase.FORWARD, StepPhase.BACKWARD)
        )
        repeated = spans.both(forward, backward)
        again[rank] = _work_of(trace, repeated)
    if not any(len(one) for one in again.values()):
        return
    gain = known.replays.without(CauseCode.RECOMPUTE, again)
    words = Coded.of(CauseCode.RECOMPUTE, recompute_s=gain.gain_s)
    yield from _cause(known, gain, words, Coded.of(ConfirmCode.RECOMPUTE))


def _work_of(trace: RankTrace, called: Spans) -> Spans:
    """Return the spans of the work that the host launched during the spans `called`."""
    if not trace.on_device:
        return called
    if not len(called) or not len(trace.compute):
        return spans.NONE
    launches = trace.compute_launch_s
    place = np.searchsorted(called[:, 0], launches, side="right") - 1
    inside = (place >= 0) & (launches < called[np.maximum(place, 0), 1])
    return spans.union(trace.compute[inside])


def _periodic(known: Known) -> Iterator[Cause]:
    """Find long steps at regular intervals: checkpoints, evaluation, logging."""
    recorded = known.replays.graph.recorded()
    usual = median(recorded)
    long = [step for step, seconds in enumerate(recorded) if seconds > _LONG * usual]
    gaps = {after - before for before, after in pairwise(long)}
    if len(long) < _PERIODIC_STEPS or len(gaps) != 1 or max(gaps) < _LEAST_PERIOD:
        return
    period = max(gaps)
    # the steps before the first or after the last long step do not fit the period
    if long[0] >= period or long[-1] + period < len(recorded):
        return
    extra = [recorded[step] - usual for step in long]
    amortised = [one / period for one in extra]
    gain = gain_of(CauseCode.PERIODIC, amortised)
    words = Coded.of(CauseCode.PERIODIC, period=period, extra_s=median(extra))
    evidence = [Coded.of(EvidenceCode.LONG_STEPS, steps=[str(step) for step in long])]
    yield from _cause(known, gain, words, Coded.of(ConfirmCode.LONG_STEPS, period=period), evidence)


def _pageable_copy(known: Known) -> Iterator[Cause]:
    """Find copies from or to memory that is not page-locked.

    Copies of memory that is not page-locked never overlap with work.
    """
    for direction in (Direction.H2D, Direction.D2H):
        exposed = {}
        for rank, trace in known.job.traces.items():
            own = spans.of((c.start_s, c.end_s) for c in trace.copies if c.direction is direction and c.pinned is False)
            exposed[rank] = spans.both(spans.union(own), known.replays.timelines[rank].by_part[StepPart.EXPOSED_COPY])
        if any(len(one) for one in exposed.values()):
            gain = known.replays.without(CauseCode.PAGEABLE_COPY, exposed)
            facts = {"direction": direction.value, "to_device": direction is Direction.H2D}
            words = Coded.of(CauseCode.PAGEABLE_COPY, **facts, exposed_s=gain.gain_s)
            yield from _cause(known, gain, words, Coded.of(ConfirmCode.PINNED))


def _slow_copy(known: Known) -> Iterator[Cause]:
    """Find copies of pinned memory that are slower than the machine's PCIe link allows."""
    network = known.replays.network
    bound = network.links.pcie_bytes_per_s if network else None
    if network is None or bound is None:
        return
    for direction in (Direction.H2D, Direction.D2H):
        removed, rates = {}, []
        for rank, trace in known.job.traces.items():
            own = []
            for copy in trace.copies:
                if copy.direction is not direction or (copy.num_bytes or 0) < _LARGE_COPY_BYTES or copy.pinned is False:
                    continue
                low = network.copy_rate(direction.value)
                needed = (copy.num_bytes or 0) / low
                rates.append((copy.num_bytes or 0) / max(copy.end_s - copy.start_s, 1e-9))
                own.append((min(copy.start_s + needed, copy.end_s), copy.end_s))
            exposed = known.replays.timelines[rank].by_part[StepPart.EXPOSED_COPY]
            removed[rank] = spans.both(spans.union(spans.of(own)), exposed)
        if rates:
            gain = known.replays.without(CauseCode.SLOW_COPY, removed)
            facts = {"direction": direction.value, "to_device": direction is Direction.H2D, "own": median(rates)}
            facts |= {"usual": network.copy_rate(direction.value), "machine": network.name}
            words = Coded.of(CauseCode.SLOW_COPY, **facts)
            yield from _cause(known, gain, words, Coded.of(ConfirmCode.COPIES))


def _few_cpus(known: Known) -> Iterator[Cause]:
    """Find hosts on which the ranks' main threads are ready to run but wait for a CPU.

    If the job uses a device, a waiting host costs time only while the device is idle. The gain is therefore at most the
    host-bound time.
    """
    by_host: dict[str | None, list[RankTrace]] = defaultdict(list)
    for trace in known.job.traces.values():
        if trace.cpus is not None:
            by_host[trace.host].append(trace)
    for host, traces in by_host.items():
        cpus = [trace.cpus for trace in traces if trace.cpus is not None]
        shares = [share for trace in traces if (share := _cpu_shares(trace)) is not None]
        if len(shares) < len(traces):
            continue
        gains = []
        for trace, (_, waited) in zip(traces, shares, strict=True):
            rank = trace.rank or 0
            most = _median_part(known, rank, StepPart.HOST_BOUND) if trace.on_device else known.step_s
            gains.append(min(waited * known.step_s, most))
        gain_s, used = median(gains), sum(used for used, _ in shares)
        if gain_s <= known.limit_s:
            continue
        quotas = [one.quota for one in cpus if one.quota is not None]
        num_cpus = min([float(len(frozenset[int]().union(*(one.cpus for one in cpus)))), *quotas])
        num_cpus = int(num_cpus) if num_cpus.is_integer() else num_cpus
        waited = median(waited for _, waited in shares)
        facts = {"num_ranks": len(traces), "num_cpus": num_cpus, "others": used < _BUSY_CPUS * num_cpus}
        words = Coded.of(CauseCode.FEW_CPUS, host=host, waited=waited, **facts)
        evidence, confirm = Coded.of(EvidenceCode.CPUS, used=used), Coded.of(ConfirmCode.CPUS)
        ranks = tuple(trace.rank or 0 for trace in traces)
        yield Cause(words.code, gain_s, 0.0, gain_s, _AT_MOST, words, (evidence,), confirm, ranks)


def _cpu_shares(trace: RankTrace) -> tuple[float, float] | None:
    """Return how many CPUs a rank used during its steps, and the share of time that its main thread waited for a CPU.

    Return None if the CPUs were not recorded during the steps.
    """
    cpus = trace.cpus
    if cpus is None or trace.epoch_s is None or not trace.steps:
        return None
    start, end = trace.epoch_s + trace.steps[0][0], trace.epoch_s + trace.steps[-1][1]
    first = int(np.searchsorted(cpus.times_s, start, side="right")) - 1
    last = int(np.searchsorted(cpus.times_s, end))
    if first < 0 or last >= len(cpus.times_s):
        return None
    seconds = float(cpus.times_s[last] - cpus.times_s[first])
    used, waited = (float(column[last] - column[first]) / seconds for column in (cpus.used_s, cpus.waited_s))
    return used, waited


def _shared_gpu(known: Known) -> Iterator[Cause]:
    """Report that the job runs on only a part of a GPU.

    The time that a whole GPU would save is unknown.
    """
    parts = {trace.device_name for trace in known.job.traces.values() if trace.device_name}
    shared = sorted(name for name in parts if any(word in name for word in _PARTS_OF_A_GPU))
    if shared:
        words = Coded.of(CauseCode.SHARED_GPU, device=shared[0])
        yield Cause(words.code, 0.0, 0.0, 0.0, _CERTAIN, words, (), Coded.of(ConfirmCode.WHOLE_GPU), ())


def _unknown(known: Known) -> Iterator[Cause]:
    """Report a large part of the step that the traces do not explain: unknown work, or waits for untraced ranks."""
    parts = [StepPart.OTHER] if _compared(known) else [StepPart.OTHER, StepPart.EXPOSED_EXCHANGE]
    unexplained = [sum(_median_part(known, rank, part) for part in parts) for rank in known.job.traces]
    share = median(unexplained) / known.step_s
    if share <= _UNKNOWN_SHARE:
        return
    waits = len(parts) > 1 and median(_median_part(known, rank, parts[1]) for rank in known.job.traces) > known.limit_s
    words = Coded.of(CauseCode.UNKNOWN, share=share, waits=waits)
    confirm = Coded.of(ConfirmCode.ALL_RANKS if waits else ConfirmCode.RECORD)
    yield from _cause(known, gain_of(CauseCode.UNKNOWN, unexplained), words, confirm, confidence=_UNEXPLAINED)


def _median_part(known: Known, rank: int, part: StepPart) -> float:
    return median(step.parts[part] for step in known.steps if step.rank == rank)


_RULES = (
    _late_input,
    _late_rank,
    _random_lateness,
    _bubble,
    _slow_link,
    _exchange_not_hidden,
    _exchange_cannot_hide,
    _costly_overlap,
    _host_bound,
    _sync_point,
    _allocator,
    _recompute,
    _periodic,
    _pageable_copy,
    _slow_copy,
    _few_cpus,
    _shared_gpu,
    _unknown,
)
