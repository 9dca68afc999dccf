"""Which rows a rule judges, and which of them are not there. What was asked for and is absent never goes unsaid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from bench.core import plugins
from bench.core.case import FACTOR, Case, applies, own_case
from bench.core.contention import rounds
from bench.core.errors import BenchError
from bench.core.record import Header
from bench.core.units import format_size
from bench.core.world import World
from bench.gate.gate_input import GateInput, is_imported, start, world_of
from bench.gate.rules import RATES, WEAKEST, Demand, GateFault, GateRule
from bench.hardware.bounds import COPY_PATTERNS
from bench.results.document import Summary

_MOST_GROUPS = 200_000  # beyond which absent groups are counted, not named
# nccl-tests rounds a size down to whole elements, and of these patterns to blocks of 16 bytes for each rank.
_BLOCK_BYTES = 16
_IN_BLOCKS = ("allgather", "reducescatter", "alltoall", "alltoallv", "gather", "scatter")
_TOLD_OF_JOB = ("failed-job", "missing-rows", "truncated-import")
_ANY = Demand("time", "most", 1.0)
_MOST_TOLD = 50  # absent rows of one job, one by one


def modes_of(rule: GateRule, limit: Demand) -> tuple[str, ...]:
    """The modes that a demand is about; empty for any (another tool's modes are not ours)."""
    if rule.modes or rule.imported:
        return rule.modes
    return ("pipelined",) if limit.metric in (*RATES, WEAKEST) else ("isolated",)


def selected(run: GateInput, rule: GateRule, limit: Demand) -> tuple[list[Summary], list[Summary]]:
    """The rows that a demand judges, and those that fit it but for their transport."""
    fit = [row for row in run.document.summaries if _fits(run.document.headers[row.job], row, rule, limit)]
    mine = [row for row in fit if not rule.transports or row.transport in rule.transports]
    return mine, [row for row in fit if row.transport not in rule.transports] if rule.transports else []


def absent(
    run: GateInput, rule: GateRule, limit: Demand, mine: Sequence[Summary], others: Sequence[Summary]
) -> Iterator[GateFault]:
    """What a demand misses: whole patterns, named sizes, and rows that a job of its was asked for."""
    skipped = list(_skipped(run, rule, limit))
    yield from skipped
    if rule.spans and any("sizes thinned" in note for note in (run.plan or {}).get("notes", ())):
        yield GateFault(
            "size-skipped", "the plan thinned sizes to fit its budget: name those that count, or give it more"
        )
    excused = {(fault.job, fault.mode, fault.payload_bytes, fault.group) for fault in skipped}
    for pattern in rule.patterns:
        there = [row for row in mine if row.pattern == pattern]
        elsewhere = sorted({row.transport for row in others if row.pattern == pattern})
        yield from _absent_of_pattern(pattern, rule, there, elsewhere, skipped)
    of_job: dict[str, list[Summary]] = {}
    for row in run.document.summaries:
        of_job.setdefault(start(row.job), []).append(row)
    for name, (case, world, header) in run.jobs().items():
        if case is not None and world is not None and _fits_case(case, header, rule):
            yield from _absent_of_job(of_job.get(name, []), name, case, world, rule, limit, excused)
    for job, header in run.document.headers.items():
        if header.imported and _fits_header(header, rule):
            yield from _absent_of_log([row for row in mine if row.job == job], job, header, rule, skipped)


def _absent_of_log(
    rows: Sequence[Summary], job: str, header: Header, rule: GateRule, skipped: Sequence[GateFault]
) -> Iterator[GateFault]:
    """The sizes that a log says it was asked for, by its own banner, and has no row of."""
    there = [row.payload_bytes for row in rows]
    there += [fault.payload_bytes for fault in skipped if fault.job == job and fault.payload_bytes is not None]
    rounded = _BLOCK_BYTES * (header.num_ranks or 1) if header.pattern in _IN_BLOCKS else _BLOCK_BYTES
    for asked in header.imported.get("asked_bytes") or ():
        if asked >= rounded and _fits_size(asked, rule) and not any(0 <= asked - size < rounded for size in there):
            what = f"{format_size(asked)} was asked for, as the log says, and is not there"
            yield GateFault("size-skipped", what, job, header.pattern, payload_bytes=asked)


def lost(run: GateInput, told: Iterable[GateFault]) -> Iterator[GateFault]:
    """What the plan, or a job's own first header, asked for and nothing in the run tells of, whatever the rules select.

    `told`: faults so far; a job that is known to have failed, or whose rows are already missed, is not told again.
    """
    known = list(told)
    said = {start(fault.job) for fault in known if fault.job and fault.name in _TOLD_OF_JOB and fault.mode is None}
    missed = {(fault.job, fault.mode, fault.payload_bytes, fault.group) for fault in known if fault.job}
    of_job: dict[str, list[Summary]] = {}
    for row in run.document.summaries:
        of_job.setdefault(start(row.job), []).append(row)
    for one in (*run.document.skipped, *run.document.failures):
        sizes = (one.get("requested_bytes"), *one.get("also_requested_bytes", ()))
        missed |= {(start(str(one.get("job"))), one.get("mode"), size, one.get("group")) for size in sizes}
    for name, asked in _asked(run).items():
        for case, world in asked:
            rule = GateRule("", (case.pattern,), (), modes=case.modes)
            if name not in said:
                yield from _absent_of_job(of_job.get(name, []), name, case, world, rule, _ANY, missed)


def _asked(run: GateInput) -> dict[str, list[tuple[Case, World]]]:
    """What each job was to measure: by the plan, and by the header that its first launch wrote where that differs."""
    found: dict[str, list[tuple[Case, World]]] = {}
    told = [(name, own_case(job["case"]), World(**job["world"])) for name, job in run.planned() if job.get("world")]
    told += [
        (job, own_case(header.case), world)
        for job, header in run.document.headers.items()
        if job == start(job) and (world := world_of(header)) is not None
    ]
    for name, case, world in told:
        known = case is not None and case.pattern in plugins.names("pattern")
        if case is not None and known and (case, world) not in found.setdefault(name, []):
            found[name].append((case, world))
    return found


def _absent_of_pattern(
    pattern: str, rule: GateRule, there: Sequence[Summary], elsewhere: Sequence[str], skipped: Sequence[GateFault]
) -> Iterator[GateFault]:
    """A pattern without any row, and the sizes that a rule names and no row has."""
    if not there and elsewhere:
        told = f"{', '.join(rule.transports)} is demanded, {pattern} was measured over {', '.join(elsewhere)}"
        yield GateFault("wrong-fabric", told, pattern=pattern)
    elif not there and not any(fault.pattern == pattern for fault in skipped):
        yield GateFault("missing-rows", f"no row of {pattern} fits the rule", pattern=pattern)
    elif there:
        known = {size for row in there for size in _sizes_of(row)}
        known |= {fault.payload_bytes for fault in skipped if fault.pattern == pattern and fault.payload_bytes}
        for size in rule.sizes:
            if size not in known:
                yield GateFault(
                    "missing-rows", f"size {format_size(size)} is not there", pattern=pattern, payload_bytes=size
                )


def _fits(header: Header, row: Summary, rule: GateRule, limit: Demand) -> bool:
    modes = modes_of(rule, limit)
    return (
        row.pattern in rule.patterns
        and _is_of_its_kind(row, limit)
        and (not modes or row.mode in modes or (is_imported(row) and not rule.modes))  # another tool's modes
        and (not rule.dtypes or row.dtype in rule.dtypes)
        and (not rule.reduce_ops or row.reduce_op in rule.reduce_ops)
        and (not rule.topologies or header.topology in rule.topologies)
        and (not rule.directions or row.direction in rule.directions)
        and _fits_copies(header, rule)
        and (not rule.nodes or row.num_nodes in rule.nodes)
        and (not rule.ranks or row.num_ranks in rule.ranks)
        and _fits_group(row.group, rule)
        and any(_fits_size(size, rule) for size in _sizes_of(row))
    )


def _is_of_its_kind(row: Summary, limit: Demand) -> bool:
    """A matrix of another tool holds rates or times: a demand on either is not about the other. A figure that should
    have been there is a failed row, or one without any."""
    if row.pattern not in COPY_PATTERNS or not is_imported(row):
        return True
    times = row.algbw_bytes_per_s is None and row.mean_s is not None
    return not times if limit.metric in (*RATES, WEAKEST) else times


def _fits_header(header: Header, rule: GateRule) -> bool:
    """Are all rows of this job of another tool what the rule is about?"""
    return (
        header.pattern in rule.patterns
        and (not rule.transports or header.transport in rule.transports)
        and (not rule.dtypes or header.dtype in rule.dtypes)
        and (not rule.reduce_ops or header.reduce_op in rule.reduce_ops)
        and (not rule.topologies or header.topology in rule.topologies)
        and (not rule.directions or header.direction in rule.directions)
        and _fits_copies(header, rule)
        and (not rule.nodes or header.num_nodes in rule.nodes)
        and (not rule.ranks or header.num_ranks in rule.ranks)
        and _fits_group("world", rule)
    )


def _fits_case(case: Case, header: Header | None, rule: GateRule) -> bool:
    """Are rows of this job what the rule is about? What only its rows know (nodes and ranks of a group) is not asked.

    `auto` as transport is known once there is a header.
    """
    own = _topology(case)
    topology = header.topology if header else own or case.topology
    transport = header.transport if header else case.transport
    return (
        case.pattern in rule.patterns
        and (not rule.transports or transport in (*rule.transports, "auto"))
        and (not rule.dtypes or case.dtype in rule.dtypes)
        and (not rule.reduce_ops or case.reduce_op in rule.reduce_ops)
        and (not rule.topologies or topology in rule.topologies)
        and (not rule.directions or case.direction in rule.directions)
        and _fits_choices(case, rule)
    )


def _fits_copies(header: Header, rule: GateRule) -> bool:
    """Was it copied as the rule says? A job's case tells it; another tool's log has none, and fits no such rule."""
    if not rule.factors:
        return True
    case = own_case(header.case) if header.case and not header.imported else None
    return case is not None and _fits_choices(case, rule)


def _fits_choices(case: Case, rule: GateRule) -> bool:
    if not rule.factors:
        return True
    pattern = plugins.load("pattern", case.pattern).PATTERN
    return all(
        applies(FACTOR[name], pattern, case.transport) and getattr(case, name) in wanted
        for name, wanted in rule.factors.items()
    )


def _fits_size(size: int, rule: GateRule) -> bool:
    if not rule.sizes and not rule.spans:
        return True
    return size in rule.sizes or any(first <= size <= last for first, last in rule.spans)


def _fits_group(group: str, rule: GateRule) -> bool:
    return not rule.groups or any(fnmatchcase(group, form) for form in rule.groups)


def _sizes_of(row: Summary) -> set[int]:
    return {row.payload_bytes, row.requested_bytes, *row.also_requested_bytes}


def _skipped(run: GateInput, rule: GateRule, limit: Demand) -> Iterator[GateFault]:
    modes = modes_of(rule, limit)
    for row in run.document.skipped:
        sizes = (row.get("requested_bytes"), *row.get("also_requested_bytes", ()))
        wanted = [size for size in sizes if size is not None and _fits_size(size, rule)]
        header = run.document.headers.get(str(row.get("job")))
        if (
            row.get("pattern") in rule.patterns
            and (not rule.transports or row.get("transport") in rule.transports)
            and (not modes or row.get("mode") in (*modes, None))
            and (header is None or not rule.topologies or header.topology in rule.topologies)
            and (header is None or _fits_copies(header, rule))
            and _fits_group(str(row.get("group", "world")), rule)
        ):
            for size in wanted:
                yield GateFault(
                    "size-skipped",
                    str(row.get("reason")),
                    start(str(row.get("job"))),
                    row.get("pattern"),
                    row.get("mode"),
                    size,
                    row.get("group"),
                )


def _absent_of_job(
    rows: Sequence[Summary],
    name: str,
    case: Case,
    world: World,
    rule: GateRule,
    limit: Demand,
    excused: set[tuple[Any, ...]],
) -> Iterator[GateFault]:
    """The sizes, modes and groups that a job was asked for and that no attempt of it measured."""
    modes = modes_of(rule, limit)
    wanted_modes = [mode for mode in case.modes if not modes or mode in modes]
    wanted_sizes = [size for size in case.sizes if _fits_size(size, rule)]
    groups = _groups(case, world, rule)
    if not wanted_modes or not wanted_sizes or (groups is not None and not groups):
        return
    if not rows:
        yield GateFault("missing-rows", "the job left no rows", name, case.pattern)
        return
    there: dict[tuple[str, int], set[str]] = {}
    for row in rows:
        for size in _sizes_of(row):
            there.setdefault((row.mode, size), set()).add(row.group)
    told = 0
    for mode in wanted_modes:
        for size in wanted_sizes:
            left = _left(there.get((mode, size), set()), groups, case, world)
            for group in left:
                if (name, mode, size, group) not in excused and told < _MOST_TOLD:
                    told += 1
                    yield GateFault(
                        "missing-rows",
                        f"{format_size(size)} {mode} of {group or 'some groups'} is not there",
                        name,
                        case.pattern,
                        mode,
                        size,
                        group,
                    )


def _groups(case: Case, world: World, rule: GateRule) -> Mapping[str, None] | None:
    """The names of the groups that the rule is about; None where they are too many to name, or not known before."""
    own = _topology(case)
    if case.schedule == "ladder":
        return None
    try:
        in_time = rounds(case, world, own)
    except BenchError:
        return None
    if len(in_time) * len(in_time[0]) > _MOST_GROUPS:
        return None
    fits: dict[str, None] = {}
    for groups in in_time:
        for group in groups:
            num_nodes = len({rank // world.ranks_per_node for rank in group.ranks})
            of_nodes = not rule.nodes or num_nodes in rule.nodes
            if of_nodes and (not rule.ranks or len(group.ranks) in rule.ranks) and _fits_group(group.name, rule):
                fits[group.name] = None
    return fits


def _topology(case: Case) -> str:
    known = case.pattern in plugins.names("pattern")
    return str(plugins.load("pattern", case.pattern).PATTERN.topology_of(case.topology)) if known else case.topology


def _left(there: set[str], groups: Mapping[str, None] | None, case: Case, world: World) -> Iterator[str | None]:
    """The groups that are not there; None for some that can not be named."""
    if groups is not None:
        yield from (group for group in groups if group not in there)
    elif case.schedule == "ladder":
        if not there:
            yield None
    else:
        own = _topology(case)
        in_time = rounds(case, world, own)
        if len(there) < len(in_time) * len(in_time[0]):
            yield None
