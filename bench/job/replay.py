"""Condense the traces of a job into the plan of a replay: the exchanges, their order, and the work between them.

The plan does not contain the times in which ranks wait for exchanges (the stalls of parts.py), because a replay has its
own waits. All other time between two calls is work: data, compute, copies, host.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.core.codes import Coded
from bench.core.dtypes import ALIASES, DTYPES
from bench.core.errors import UsageError
from bench.core.replay_plan import PATTERN_OF, Kind, Operation, PlannedStep, ReplayPlan, Turn
from bench.job.graph import Graph
from bench.job.messages import JobCode, ReplayCode
from bench.job.model import MatchedCollective, TracedJob
from bench.job.parts import RankTimeline, Stall, timelines_of

_TORCH_TYPES = {"byte": "uint8", "long": "int64", "short": "int16", "c10::bfloat16": "bfloat16", "c10::half": "float16"}


@dataclass(frozen=True, slots=True)
class Condensed:
    """The plan of a replay, and remarks on data that the traces lack."""

    plan: ReplayPlan
    remarks: tuple[Coded, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    """The call of one operation by one rank.

    `at_s`: the time of the call on the rank's clock. The times of a rank's calls never decrease.
    """

    operation: int
    at_s: float


def condense(job: TracedJob) -> Condensed:
    """Return the plan of a job. Raises UsageError if no exchange of the job can be replayed."""
    if not job.collectives:
        raise UsageError.of(JobCode.NO_COLLECTIVES)
    remarks: list[Coded] = []
    usable = _usable(job, remarks)
    if not usable:
        raise UsageError("; ".join(remark.text for remark in remarks))
    kinds: dict[Kind, int] = {}
    lines = timelines_of(job)
    graph = Graph(job, lines)
    recorded_s = {id(one): graph.transfer_s(index) for index, one in enumerate(job.collectives)}
    steps = {rank: trace.steps for rank, trace in job.traces.items()}
    num_steps = min(len(own) for own in steps.values())
    of_step: list[list[MatchedCollective]] = [[] for _ in range(num_steps)]
    for one in usable:
        rank = next(iter(one.parts))
        place = bisect_right([start for start, _ in steps[rank]], one.parts[rank].arrival_s) - 1
        if 0 <= place < num_steps and one.parts[rank].arrival_s < steps[rank][place][1]:
            of_step[place].append(one)
    planned = []
    for place, found in enumerate(of_step):
        spans = {rank: own[place] for rank, own in steps.items()}
        recorded = [recorded_s[id(one)] if len(one.parts) > 1 else None for one in found]
        planned.append(_step(found, spans, lines, [_kind(one, job.num_ranks, kinds) for one in found], recorded))
    planned = [step for step in planned if step.operations]
    if not planned:
        raise UsageError.of(ReplayCode.OUTSIDE_STEPS)
    return Condensed(ReplayPlan(job.num_ranks, tuple(kinds), tuple(planned)), tuple(remarks))


def _usable(job: TracedJob, remarks: list[Coded]) -> list[MatchedCollective]:
    """Return the collectives that can be replayed, and report all other collectives."""
    usable, unknown, unsized, small = [], Counter[str](), 0, 0
    for one in job.collectives:
        if one.op not in PATTERN_OF:
            unknown[one.op] += 1
        elif one.num_bytes is None and one.op != "barrier":
            unsized += 1
        elif len(_members(one, job.num_ranks)) < 2:
            small += 1
        else:
            usable.append(one)
    if unknown:
        remarks.append(Coded.of(ReplayCode.UNKNOWN_OPS, num=unknown.total(), names=sorted(unknown)))
    if unsized:
        remarks.append(Coded.of(ReplayCode.NO_SIZES, num=unsized))
    if small:
        remarks.append(Coded.of(ReplayCode.NO_MEMBERS, num=small))
    return usable


def _members(one: MatchedCollective, num_ranks: int) -> tuple[int, ...]:
    """Return the members of an exchange. Members without a trace are included, and impossible ranks are left out."""
    part = next(iter(one.parts.values()))
    if one.op == "message":
        return tuple(one.parts)
    if part.members:
        return tuple(rank for rank in sorted(set(part.members)) if 0 <= rank < num_ranks)
    if one.group_size == num_ranks:
        return tuple(range(num_ranks))
    return tuple(sorted(one.parts))


def _kind(one: MatchedCollective, num_ranks: int, kinds: dict[Kind, int]) -> int:
    """Return the index of an exchange's type. If the type is new, add it to `kinds`."""
    name = (one.dtype or "").lower().removeprefix("torch.")
    name = _TORCH_TYPES.get(name, ALIASES.get(name, name))
    dtype = name if name in DTYPES else "float32"
    return kinds.setdefault(Kind(one.op, one.num_bytes or 0, dtype, _members(one, num_ranks)), len(kinds))


def _step(
    found: Sequence[MatchedCollective],
    spans: Mapping[int, tuple[float, float]],
    lines: Mapping[int, RankTimeline],
    kinds: Sequence[int],
    recorded: Sequence[float | None],
) -> PlannedStep:
    """Return one step.

    `spans`: the start and end of the step on each rank.
    `recorded`: the seconds of each exchange.
    """
    turns: list[dict[int, Turn]] = [{} for _ in found]
    tails: dict[int, float] = {}
    for rank, (start, end) in spans.items():
        calls, latest = [], start
        for index, one in enumerate(found):
            if rank in one.parts:
                latest = max(latest, one.parts[rank].arrival_s)
                calls.append(_Call(index, latest))
        tails[rank] = _of_rank(rank, calls, start, end, lines[rank].stalls, turns)
    operations = tuple(
        Operation(kind, recorded_s, own) for kind, recorded_s, own in zip(kinds, recorded, turns, strict=True)
    )
    return PlannedStep(max(end - start for start, end in spans.values()), operations, tails)


def _of_rank(
    rank: int,
    calls: Sequence[_Call],
    start: float,
    end: float,
    stalls: Sequence[Stall],
    turns: list[dict[int, Turn]],
) -> float:
    """For each operation of a step, add the rank's work and its wait for the operation to `turns`.

    Return the seconds of the rank's work after its last operation.
    """
    before = (calls[0].at_s if calls else end) - start
    for place, call in enumerate(calls):
        following = calls[place + 1].at_s if place + 1 < len(calls) else max(end, call.at_s)
        waits = [
            (max(stall.start_s, call.at_s), min(stall.end_s, following))
            for stall in stalls
            if stall.start_s < following and stall.end_s > call.at_s
        ]
        wait_s = waits[0][0] - call.at_s if waits else None
        turns[call.operation][rank] = Turn(before, wait_s)
        waited = sum(until - since for since, until in waits)
        before = max(following - call.at_s - waited - (wait_s or 0.0), 0.0)
    return before


def ranks_per_host(job: TracedJob) -> int | None:
    """Return the number of ranks on each host of the job.

    Return None if the job has only one host, if hosts are unknown, or if the numbers differ.
    """
    hosts = Counter(trace.host for trace in job.traces.values())
    if None in hosts or len(hosts) < 2 or job.missing or len(set(hosts.values())) > 1:
        return None
    return next(iter(hosts.values()))
