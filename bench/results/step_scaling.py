"""Compute the speed-up of training steps with more ranks.

Also compute how many ranks are useful: above this number, the speed-up grows by less than 10 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from bench.core.case import Case
from bench.core.case_argv import from_argv
from bench.core.codes import Code, Coded
from bench.core.record import Header, known
from bench.core.strategies import strategy_traits
from bench.core.training_step import TimedLayers
from bench.results.document import Summary
from bench.results.model import case_of
from bench.results.training_rows import StepScaling, StepScalingPoint, TrainedStep

_LEAST_GAIN = 0.1  # more ranks help if they make the job faster by at least this share
_SAME_WORK = 0.01  # users type durations of layers with a few digits


class ScalingReason(Code):
    """The reasons why more ranks do not make a job faster. The reason is the part of a step that grows most."""

    EXCHANGE = "exchange", "the exposed exchange takes {seconds:time} more of a step"
    IMBALANCE = "imbalance", "ranks wait {seconds:time} longer for the last rank"
    COMPUTE = "compute", "computation takes {seconds:time} more than its share: ranks compete for cores or memory"
    INPUT = "input", "loader and copies take {seconds:time} more of a step"
    OTHER = "other", "the program around the step takes {seconds:time} more"


_PARTS = {
    ScalingReason.EXCHANGE: ("exposed_exchange",),
    ScalingReason.IMBALANCE: ("imbalance",),
    ScalingReason.COMPUTE: ("compute",),
    ScalingReason.INPUT: ("data_wait", "exposed_copy"),
    ScalingReason.OTHER: ("host_bound", "other"),
}


def scalings(
    headers: Mapping[str, Header], steps: Iterable[TrainedStep], rows: Sequence[Summary]
) -> tuple[StepScaling, ...]:
    """Return one result for each job that was measured with several numbers of ranks.

    In weak scaling, each rank has the same work at every number of ranks. In strong scaling, all ranks together have
    the same work at every number of ranks.
    """
    of_case = {case_of(job, header): (job, header) for job, header in headers.items()}
    groups: dict[tuple[object, ...], list[tuple[TrainedStep, TimedLayers, Header]]] = {}
    for one in steps:
        header = of_case[one.job][1]
        case = from_argv(header.case)
        if case.timed is None or case.inject:
            continue
        same = (one.transport, one.strategy, case.bucket, case.timed.layers, case.timed.num_bytes)
        own = case.timed.forward_s + case.timed.backward_s
        for kind, work_s in (("weak", own), ("strong", own * one.num_ranks)):
            key = next((key for key in groups if key[:-1] == (kind, *same) and _near(key[-1], work_s)), None)
            groups.setdefault(key or (kind, *same, work_s), []).append((one, case.timed, header))
    found = []
    for key, members in groups.items():
        if len({one.num_ranks for one, _, _ in members}) == len(members) > 1:
            found.append(_scaling(str(key[0]), sorted(members, key=lambda member: member[0].num_ranks), rows))
    return tuple(found)


def _near(known_s: object, seconds: float) -> bool:
    return isinstance(known_s, float) and abs(known_s - seconds) <= _SAME_WORK * known_s


def _scaling(
    kind: str, members: Sequence[tuple[TrainedStep, TimedLayers, Header]], rows: Sequence[Summary]
) -> StepScaling:
    (first, first_timed, _), *_ = members
    base = _work_s(first_timed) * first.num_ranks / first.step_s
    points = []
    for one, timed, header in members:
        work_s = _work_s(timed) * one.num_ranks
        speedup = work_s / one.step_s / base
        low, high = _interval(speedup, one, first)
        bound_s = _bound_s(one, timed, from_argv(header.case), rows)
        points.append(
            StepScalingPoint(
                job=one.job,
                num_ranks=one.num_ranks,
                num_nodes=known(header.num_nodes),
                step_s=one.step_s,
                speedup=speedup,
                low=low,
                high=high,
                ideal=one.num_ranks / first.num_ranks,
                bound=None if bound_s is None else work_s / bound_s / base,
            )
        )
    stops, reason = _stops(points, [one for one, _, _ in members])
    return StepScaling(kind, first.job, first.transport, first.strategy, tuple(points), stops, reason)


def _interval(speedup: float, one: TrainedStep, first: TrainedStep) -> tuple[float | None, float | None]:
    """Return the 95 % interval of a step's speed-up relative to the step `first`, or (None, None) if it is unknown.

    The relative errors of the two steps are independent. The relative error of the ratio is therefore the square root
    of the sum of the two squared errors.
    """
    if one is first or one.low_s is None or one.high_s is None or first.low_s is None or first.high_s is None:
        return None, None
    down = math.hypot(math.log(one.high_s / one.step_s), math.log(first.step_s / first.low_s))
    up = math.hypot(math.log(one.step_s / one.low_s), math.log(first.high_s / first.step_s))
    return speedup * math.exp(-down), speedup * math.exp(up)


def _work_s(timed: TimedLayers) -> float:
    return timed.layers * (timed.forward_s + timed.backward_s)


def _bound_s(one: TrainedStep, timed: TimedLayers, case: Case, rows: Sequence[Summary]) -> float | None:
    """Return the shortest time of a step that the links allow.

    The bound is the longer of two times. The first time is the time of the computation. The second time is the forward
    pass plus the exchange of all gradients at the rate of the links. Return None for a single rank, because it uses no
    link. Return None if the step does not sum all gradients. Return None if there is no hard bound for an allreduce
    among these ranks.
    """
    compute_s = _work_s(timed) + timed.data_s
    if one.num_ranks == 1 or not _reduces_all_gradients(case):
        return None
    rates = [
        row.bound_bytes_per_s
        for row in rows
        if (row.pattern, row.transport, known(row.num_ranks)) == ("allreduce", one.transport, one.num_ranks)
        and row.bound_kind == "hard"
        and row.bound_bytes_per_s
    ]
    if not rates:
        return None
    factor = 2 * (one.num_ranks - 1) / one.num_ranks
    return max(compute_s, timed.layers * timed.forward_s + one.gradient_bytes * factor / max(rates))


def _reduces_all_gradients(case: Case) -> bool:
    """Check whether each step sums the uncompressed gradients of all ranks.

    A step that sums all gradients sends at least as many bytes as an allreduce of all gradients.
    """
    traits = strategy_traits(case.strategy)
    return traits.exact and traits.inner in ("", "shards") and case.hook == "none"


def _stops(points: Sequence[StepScalingPoint], steps: Sequence[TrainedStep]) -> tuple[int | None, Coded | None]:
    """Return the number of ranks above which more ranks gain less than 10 %. Also return the reason.

    The reason is the part of a step that grows most.
    """
    for (before, after), (small, large) in zip(pairwise(points), pairwise(steps), strict=True):
        if after.speedup < before.speedup * (1 + _LEAST_GAIN):
            # Work of a rank after / before; it is 1 in weak scaling.
            share = after.speedup * after.step_s / (before.speedup * before.step_s)
            share *= small.num_ranks / large.num_ranks
            growth = {
                code: _mean(large, parts) - _expected(small, parts, code, share) for code, parts in _PARTS.items()
            }
            code = max(growth, key=lambda one: growth[one])
            return before.num_ranks, Coded.of(code, seconds=growth[code], num_ranks=after.num_ranks)
    return None, None


def _expected(small: TrainedStep, parts: Sequence[str], code: ScalingReason, share: float) -> float:
    return _mean(small, parts) * (share if code is ScalingReason.COMPUTE else 1.0)


def _mean(one: TrainedStep, parts: Sequence[str]) -> float:
    """Return the time of some parts of a step together, as the mean over ranks in seconds."""
    return sum(sum(one.parts_s[part]) for part in parts) / one.num_ranks
