"""What a row is allowed to be: in place or not, and why it can not be measured where it can not."""

from __future__ import annotations

from bench.core.case import Case
from bench.core.dtypes import dtype_of, undefined_reduction
from bench.core.pattern import Pattern, Shape
from bench.core.program import Collective
from bench.core.record import Skip
from bench.core.skips import SkipCode
from bench.core.transport import Reduction, Transport
from bench.rank import overlap
from bench.rank.rows import PlannedRow


def in_place(case: Case, pattern: Pattern, transport: Transport, shape: Shape) -> bool:
    """Where it was asked for, and where the library knows nothing else."""
    steps = pattern.steps(shape, 0) if pattern.needs(shape) is None else ()
    return case.in_place or transport.must_be_in_place(steps)


def why_not(
    case: Case, pattern: Pattern, transport: Transport, row: PlannedRow, member: int, placed: bool
) -> Skip | None:
    """Why this rank can not measure a row; None when it can. `placed`: in place?

    `member`: of its group. An idle rank asks as 0 would: a library may need all ranks to find out.
    """
    if row.max_s <= 0:
        return Skip.of(SkipCode.BUDGET, budget_s=case.budget_s)
    reason = _refusal(case, pattern, transport, row, member, placed)
    return Skip.uncoded(reason) if isinstance(reason, str) else reason


def _refusal(
    case: Case, pattern: Pattern, transport: Transport, row: PlannedRow, member: int, placed: bool
) -> Skip | str | None:
    if pattern.one_way and transport.clock != "host":
        return f"one-way times are read on the hosts' clocks, and {case.transport} does not complete there"
    if case.root >= row.shape.num_ranks and pattern.rooted:
        return f"root {case.root} is not in a group of {row.shape.num_ranks} ranks"
    if pattern.overlaps and (lack := overlap.why_not(case, transport)) is not None:
        return lack
    if pattern.one_way and case.aggressor:
        return f"{pattern.name} is timed from one clock to another, alone: pingpong can be disturbed"
    if placed and not pattern.in_place:
        return f"{pattern.name} has no in-place form here"
    dtype = dtype_of(case.dtype)
    undefined = undefined_reduction(dtype, case.reduce_op) if pattern.reduces else None
    reason = pattern.needs(row.shape) or undefined
    if reason is not None:
        return reason
    steps = pattern.steps(row.shape, member)
    collectives = any(isinstance(step, Collective) for step in steps)
    # Of any group, not of this rank's: what follows may need all ranks, so all must get there or none.
    unsorted = any(each.ranks != tuple(sorted(each.ranks)) for each in row.round)
    if collectives and not transport.keeps_order and unsorted:
        return "this library sorts the ranks of a group: only the linear order can be run"
    reduction = Reduction(dtype.name, case.reduce_op)
    return next(filter(None, (transport.unsupported_reason(step, reduction, placed) for step in steps)), None)
