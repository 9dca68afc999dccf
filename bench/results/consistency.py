"""Find contradictions between rows of one run.

A row contradicts other rows if its time is longer than their times allow. The rules follow Träff, Gropp and Thakur,
"Self-consistent MPI performance guidelines". An operation should not be slower than a sequence of other operations that
has the same result. Every rule has the form `time of an operation <= sum of the times of the other operations`. All
operations of a rule have the same payload (S in docs/metrics.md) and the same settings. A contradiction means that a
row is wrong, or that the library chose a slow algorithm. If the library chose a slow algorithm, the other operations
are a faster way to the same result. The command linkbench reports contradictions, but does not delete or correct any
row.

A contradiction must exceed noise. For the first operation, the lower end of its interval is used as its time. For the
other operations, the upper ends are used. The first operation's time must exceed the sum of the other times by more
than a tolerance. Every launch that measured all rows of the rule must show the contradiction. Rows without an interval,
invalid rows, and rows with a drift are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

from bench.core.case import Case
from bench.core.case_argv import from_argv
from bench.core.codes import Coded
from bench.core.errors import BenchError
from bench.core.pattern import WINDOW_BYTES
from bench.core.record import Flag, Header
from bench.core.units import format_bytes
from bench.results.document import Conflict, Summary
from bench.results.messages import ConflictCode

# An interval covers the variation within one launch. Rows of one job are from the same launch, so 5 % covers the
# remaining variation.
SAME_LAUNCH_TOLERANCE = 0.05
# Rows of two jobs are from two launches. Times of MPI launches have a standard deviation of up to 10 %, so the
# difference of two launches has a standard deviation of 14 %. The tolerance of 25 % is 1.8 times 14 %.
OTHER_LAUNCH_TOLERANCE = 0.25

_UNSURE = frozenset({Flag.DRIFT, Flag.REPORTED, Flag.INVALID})

_SYNCHRONISED = ("isolated",)
_BOTH = ("isolated", "pipelined")


@dataclass(frozen=True, slots=True)
class Replacement:
    """An operation, and a sequence of operations that can replace it at the same payload S.

    `modes`: the modes to which the rule applies.
    `how`: a text that explains how the other operations have the same result.
    """

    pattern: str
    by: tuple[str, ...]
    modes: tuple[str, ...]
    how: str


# Calls of one operation can be replaced by as many calls of another operation. If two operations alternate, their calls
# overlap less than calls of the same operation. Their pipelined times therefore cannot be added, and such rules apply
# in isolated mode only. Three possible replacements are not rules: allgather by alltoall (sends each block n times),
# gather by alltoall, and alltoall by allgather (sends n times the bytes). If ranks share memory, the extra copies cost
# as much as the operation itself.
REPLACEMENTS = (
    Replacement("allgather", ("allreduce",), _BOTH, "a sum in which each rank gives its block and zeros gathers them"),
    Replacement("reduce", ("allreduce",), _BOTH, "an all-reduce leaves the result on the root, too"),
    Replacement("reducescatter", ("allreduce",), _BOTH, "an all-reduce leaves each rank its block, too"),
    Replacement("gather", ("allgather",), _BOTH, "an all-gather leaves all blocks on the root, too"),
    Replacement("scatter", ("broadcast",), _BOTH, "a broadcast brings each rank its block, too"),
    Replacement("allreduce", ("reducescatter", "allgather"), _SYNCHRONISED, "blocks are reduced, then gathered"),
    Replacement("allreduce", ("reduce", "broadcast"), _SYNCHRONISED, "the root reduces, then broadcasts"),
    Replacement("broadcast", ("scatter", "allgather"), _SYNCHRONISED, "blocks are scattered, then gathered"),
    Replacement("reduce", ("reducescatter", "gather"), _SYNCHRONISED, "blocks are reduced, then gathered on the root"),
)
_REPLACED = frozenset(name for rule in REPLACEMENTS for name in (rule.pattern, *rule.by))

# Fields of a case that do not affect its time, or that the rules compare (pattern, mode, direction, root, operation).
_NOT_CONDITIONS = frozenset(
    {
        "pattern",
        "transport",
        "sizes",
        "mode",
        "direction",
        "root",
        "reduce_op",
        "iterations",
        "warmup",
        "max_s",
        "budget_s",
        "seed",
        "matrix",
    }
)
# Environment variables with which launchers identify launches and ranks.
_OF_LAUNCH = ("PMIX_", "SLURM_", "OMPI_COMM_WORLD_", "OMPI_FILE_LOCATION", "OMPI_MCA_orte_ess", "PRTE_")


@dataclass(slots=True)  # not frozen, as document.Summary
class _Row:
    """A summary with its header and its conditions (all settings except the launch).

    Only rows with the same conditions are compared.
    """

    summary: Summary
    header: Header
    conditions: int  # the number of the row's conditions (all settings except the launch)
    window: int

    @property
    def low_s(self) -> float | None:
        """The lower end of the interval of the median, in seconds. For a modelled row, this is the exact time."""
        return self.summary.median_s if self.summary.modelled else self.summary.ci_low_s

    @property
    def high_s(self) -> float | None:
        """The upper end of the interval of the median, in seconds. For a modelled row, this is the exact time."""
        return self.summary.median_s if self.summary.modelled else self.summary.ci_high_s

    @property
    def in_flight(self) -> int:
        """How many messages a pipelined pair sends before it waits for an acknowledgement."""
        return max(1, min(self.window, WINDOW_BYTES // max(self.summary.payload_bytes, 1)))


@dataclass(frozen=True, slots=True)
class _Judged:
    """The result of one comparison in one launch.

    `beyond`: whether the gap between the two intervals is larger than the tolerance.
    """

    key: tuple[Any, ...]  # identifies the comparison, without its launch
    conflict: Conflict
    beyond: bool


def conflicts(headers: Mapping[str, Header], summaries: Iterable[Summary]) -> tuple[Conflict, ...]:
    """Return every pair of rows that contradict each other. The pair with the largest ratio comes first.

    `headers`: the header of each job that a summary names.
    """
    judged_rows = _comparable([row for row in summaries if _may_be_judged(row, headers)])
    numbers: dict[tuple[Any, ...], int] = {}
    conditions = {}
    for job in dict.fromkeys(row.job for row in judged_rows):
        key, window = _conditions(headers[job])
        conditions[job] = numbers.setdefault(key, len(numbers)), window
    rows = [_Row(row, headers[row.job], *conditions[row.job]) for row in judged_rows]
    comparisons: dict[tuple[Any, ...], list[_Judged]] = {}
    for judge in (_modes, _directions, _replacements):
        for judged in judge(rows):
            comparisons.setdefault(judged.key, []).append(judged)
    found = []
    for launches in comparisons.values():
        if all(judged.beyond for judged in launches):
            found.append(min((judged.conflict for judged in launches), key=lambda conflict: conflict.ratio))
    return tuple(sorted(found, key=lambda conflict: -conflict.ratio))


def _may_be_judged(row: Summary, headers: Mapping[str, Header]) -> bool:
    known = row.modelled or (row.ci_low_s is not None and row.ci_high_s is not None)
    return (
        row.job in headers
        and row.median_s is not None
        and known
        and row.verified is not False
        and _UNSURE.isdisjoint(row.flags)
    )


def _comparable(rows: Sequence[Summary]) -> list[Summary]:
    """Return the rows to which a rule may apply. Even a run of thousands of pairs has few such rows."""
    isolated = {row.pattern for row in rows if row.mode == "isolated"}  # to compare with pipelined rows
    two_way = {row.pattern for row in rows if row.direction == "two-way"}
    patterns = isolated | two_way | _REPLACED
    return [row for row in rows if row.pattern in patterns]


def _conditions(header: Header) -> tuple[tuple[Any, ...], int]:
    """Return the conditions of a header's rows as a hashable key.

    Also return the window of the case (the number of messages in flight).
    """
    environment = sorted((name, value) for name, value in header.environment.items() if not name.startswith(_OF_LAUNCH))
    world = (header.num_ranks, header.num_nodes, header.ranks_per_node)
    known = (header.transport, header.dtype, header.topology, header.modelled, header.instance, *world)
    try:
        case = from_argv(header.case)
    except (BenchError, IndexError):  # a job of another program: all its arguments are conditions
        case = Case(header.pattern)
        return (*known, header.case[1:], tuple(environment)), case.window
    options = tuple((each.name, getattr(case, each.name)) for each in fields(Case) if each.name not in _NOT_CONDITIONS)
    return (*known, options, tuple(environment)), case.window


# -- the rules


def _modes(rows: Sequence[_Row]) -> Iterator[_Judged]:
    """Yield comparisons for the rule that a pipelined time is at most the isolated time.

    The rule holds because the library can complete back-to-back operations one after the other. A one-way pair sends a
    window of messages, then waits for an acknowledgement. The acknowledgement takes at most the time of an isolated
    message.
    """
    isolated = _indexed(rows, "isolated")
    patterns = {row.summary.pattern for row in rows if row.summary.mode == "isolated"}
    for row in rows:
        if row.summary.mode != "pipelined" or row.summary.pattern not in patterns:
            continue
        acknowledged = 1 / row.in_flight if row.summary.direction == "one-way" else 0.0
        for other in isolated.get((*_place(row), row.summary.pattern, row.summary.direction), ()):
            if row.summary.job.partition("#")[0] == other.summary.job.partition("#")[0]:
                code, rule = ConflictCode.PIPELINED_SLOWER, "pipelined <= isolated"
                yield _judge(code, rule, row, (other,), 1 + acknowledged, SAME_LAUNCH_TOLERANCE)


def _directions(rows: Sequence[_Row]) -> Iterator[_Judged]:
    """Yield comparisons for the rule that a one-way time is at most the two-way time.

    A two-way operation sends its payload in each direction.

    In pipelined mode, each window of a one-way operation ends with an acknowledgement. Two-way operations have no
    acknowledgement. The acknowledgement takes at most the time of an isolated message.
    """
    rows = [row for row in rows if row.summary.direction is not None]
    if not any(row.summary.direction == "two-way" for row in rows):
        return
    by_place = {mode: _indexed(rows, mode) for mode in _BOTH}
    for row in rows:
        summary = row.summary
        if summary.direction != "one-way":
            continue
        allowed_s = 0.0
        if summary.mode == "pipelined":
            alone = by_place["isolated"].get((*_place(row), summary.pattern, "one-way"), ())
            if not alone:
                continue
            allowed_s = max(other.high_s or 0.0 for other in alone) / row.in_flight
        for other in by_place[summary.mode].get((*_place(row), summary.pattern, "two-way"), ()):
            factor = 1 + allowed_s / (other.summary.median_s or 1.0)
            code, rule = ConflictCode.ONE_WAY_SLOWER, "two-way <= 2 x one-way"
            yield _judge(code, rule, row, (other,), factor, OTHER_LAUNCH_TOLERANCE)


def _replacements(rows: Sequence[_Row]) -> Iterator[_Judged]:
    # A single rank sends nothing. It only copies the data, or does nothing if it works in place.
    rows = [row for row in rows if row.summary.pattern in _REPLACED and row.summary.num_ranks != 1]
    for mode in _BOTH:
        indexed = _indexed(rows, mode)
        for row in rows:
            for rule in REPLACEMENTS:
                if row.summary.mode != mode or row.summary.pattern != rule.pattern or mode not in rule.modes:
                    continue
                for others in product(*(indexed.get((*_place(row), name, None), ()) for name in rule.by)):
                    if _same_root_and_operation((row, *others)):
                        code, name = ConflictCode.REPLACEABLE, f"{rule.pattern} <= {' + '.join(rule.by)}"
                        yield _judge(code, name, row, others, 1.0, OTHER_LAUNCH_TOLERANCE, how=rule.how)


def _indexed(rows: Iterable[_Row], mode: str) -> Mapping[tuple[Any, ...], Sequence[_Row]]:
    """Group the rows of one mode by place (`_place`), pattern and direction.

    If a row was measured twice, only the later measurement is used.
    """
    found: dict[tuple[Any, ...], dict[tuple[Any, ...], _Row]] = {}
    for row in rows:
        if row.summary.mode == mode:
            key = (*_place(row), row.summary.pattern, row.summary.direction)
            found.setdefault(key, {})[(row.summary.root, row.summary.reduce_op)] = row
    return {key: tuple(by_root.values()) for key, by_root in found.items()}


def _place(row: _Row) -> tuple[Any, ...]:
    """Return the facts that two rows must share to be compared: conditions, launch, group, size and cache state."""
    summary = row.summary
    group = (summary.group, summary.src, summary.dst)
    return (row.conditions, row.header.launch, *group, summary.payload_bytes, summary.cache)


def _same_root_and_operation(rows: Sequence[_Row]) -> bool:
    """Check that all rows have the same root and the same reduction. Rows without a root or a reduction are ignored."""
    roots = {row.summary.root for row in rows} - {None}
    operations = {row.summary.reduce_op for row in rows} - {None, ""}
    return len(roots) <= 1 and len(operations) <= 1


def _judge(
    code: ConflictCode, rule: str, row: _Row, others: Sequence[_Row], factor: float, tolerance: float, **facts: Any
) -> _Judged:
    """Check whether the time of `row` exceeds `factor` x the sum of the times of `others`.

    `tolerance`: a fraction of the time. If the gap between the two intervals is larger than this fraction, noise does
        not explain the gap.
    """
    most_s = factor * sum(other.summary.median_s or 0.0 for other in others)
    highest_s = factor * sum(other.high_s or 0.0 for other in others)
    median_s, lowest_s = row.summary.median_s or 0.0, row.low_s or 0.0
    first, second = _named((row,)), _named(others)
    words = {"row": _row_words(first), "other": _row_words(second)}
    found = Coded.of(code, rule=rule, seconds=median_s, limit_s=most_s, **words, **facts)
    ratio = median_s / most_s if most_s else float("inf")
    conflict = Conflict(rule, found.text, first, second, ratio, found.code, found.facts)
    return _Judged((rule, *_identity(row), *map(_identity, others)), conflict, lowest_s > highest_s * (1 + tolerance))


def _identity(row: _Row) -> tuple[Any, ...]:
    """Return the facts that identify a row, except its launch."""
    summary = row.summary
    conditions, _, *place = _place(row)
    return (conditions, *place, summary.pattern, summary.mode, summary.direction, summary.root, summary.reduce_op)


def _named(rows: Sequence[_Row]) -> dict[str, Any]:
    """Return a description of one side of a conflict.

    One side of a conflict is a single row, or several rows whose times are added.
    """
    summaries = [row.summary for row in rows]
    first = summaries[0]
    return {
        "job": " + ".join(dict.fromkeys(row.job for row in summaries)),
        "pattern": " + ".join(row.pattern for row in summaries),
        "mode": first.mode,
        "group": first.group,
        "direction": first.direction,
        "payload_bytes": first.payload_bytes,
        "median_s": sum(row.median_s or 0.0 for row in summaries),
    }


def _row_words(named: Mapping[str, Any]) -> str:
    """Return a row of a conflict as text: `allreduce of 1 MiB [allreduce-mpi-1x2, pipelined]`."""
    words = [named["mode"], *([named["direction"]] if named["direction"] else [])]
    if named["group"] != "world":
        words.append(f"group {named['group']}")
    size = f" of {format_bytes(named['payload_bytes'])}" if named["payload_bytes"] else ""
    return f"{named['pattern']}{size} [{named['job']}, {', '.join(words)}]"
