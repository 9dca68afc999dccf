"""Find the rows that a rule judges, and the missing rows.

If a row was requested but is absent, this is always a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from bench.core import plugins
from bench.core.case import FACTOR, Case, applies
from bench.core.case_argv import own_case
from bench.core.contention import rounds
from bench.core.errors import BenchError
from bench.core.record import Header
from bench.core.remarks import RemarkCode
from bench.core.world import World
from bench.gate.gate_input import GateInput, is_imported, job_of_attempt, rows_by_job, world_of
from bench.gate.messages import FaultCode, GateFailure
from bench.gate.rules import RATES, WEAKEST, Demand, GateFault, GateRule
from bench.hardware.bounds import COPY_PATTERNS
from bench.results.document import Summary
from bench.store import runs

_MOST_GROUPS = 200_000  # with more groups than this, absent groups are counted and not named
_MOST_FAULTS = 50  # at most this many absent rows of a job are listed one by one
# nccl-tests rounds a size down to whole elements. For these patterns it rounds down to blocks of 16 bytes for each
# rank.
_BLOCK_BYTES = 16
_IN_BLOCKS = ("allgather", "reducescatter", "alltoall", "alltoallv", "gather", "scatter")
# If a whole job has one of these faults, its missing rows get no faults of their own.
_EXPLAIN_ABSENCE = (GateFailure.FAILED_JOB, GateFailure.MISSING_ROWS, GateFailure.TRUNCATED_IMPORT)
_ANY_MODE = Demand("time", "most", 1.0)  # any demand: of a rule that names its modes, it is not read
_Place = tuple[str | None, str | None, int | None, str | None]  # job, mode, bytes, group


def modes_of(rule: GateRule, limit: Demand) -> tuple[str, ...]:
    """Return the modes of the rows that a demand judges.

    An empty tuple means that the demand judges rows of all modes.
    """
    if rule.modes or rule.imported:
        return rule.modes
    return ("pipelined",) if limit.metric in (*RATES, WEAKEST) else ("isolated",)


def selected(run: GateInput, rule: GateRule, limit: Demand) -> tuple[list[Summary], list[Summary]]:
    """Return the rows that a demand judges, and the rows that it would judge if they had another transport."""
    judged, elsewhere = [], []
    headers = {job: header for job, header in run.document.headers.items() if header.pattern in rule.patterns}
    for row in run.document.summaries:
        if row.job in headers and _fits(headers[row.job], row, rule, limit):
            if not rule.transports or row.transport in rule.transports:
                judged.append(row)
            else:
                elsewhere.append(row)
    return judged, elsewhere


def absent(
    run: GateInput, rule: GateRule, limit: Demand, judged: Sequence[Summary], elsewhere: Sequence[Summary]
) -> Iterator[GateFault]:
    """Yield a fault for each pattern, named size or requested row that a demand needs but that the run lacks."""
    skipped = list(_skipped(run, rule, limit))
    yield from skipped
    remarks = runs.remarks_of(run.plan or {})
    if rule.spans and any(remark.code == RemarkCode.SIZES_THINNED for remark in remarks):
        yield GateFault(FaultCode.SIZES_THINNED)
    excused = {(fault.job, fault.mode, fault.payload_bytes, fault.group) for fault in skipped}
    for pattern in rule.patterns:
        there = [row for row in judged if row.pattern == pattern]
        others = sorted({row.transport for row in elsewhere if row.pattern == pattern})
        yield from _absent_of_pattern(pattern, rule, there, others, skipped)
    of_job = rows_by_job(run.document.summaries)
    for name, (case, world, header) in run.jobs().items():
        if case is not None and world is not None and _fits_case(case, header, rule):
            yield from _absent_of_job(of_job.get(name, []), name, case, world, rule, limit, excused)
    placements = {row.job: row.in_place for row in run.document.summaries}
    for job, header in run.document.headers.items():
        other = rule.placement and job in placements and placements[job] is not (rule.placement == "in_place")
        if header.imported and not other and _fits_header(header, rule):
            yield from _absent_of_log([row for row in judged if row.job == job], job, header, rule, skipped)


def _absent_of_log(
    rows: Sequence[Summary], job: str, header: Header, rule: GateRule, skipped: Sequence[GateFault]
) -> Iterator[GateFault]:
    """Yield a fault for each message size that an imported log announces in its header lines but does not report."""
    there = [row.payload_bytes for row in rows]
    there += [fault.payload_bytes for fault in skipped if fault.job == job and fault.payload_bytes is not None]
    block = _BLOCK_BYTES * (header.num_ranks or 1) if header.pattern in _IN_BLOCKS else _BLOCK_BYTES
    for asked in header.imported.get("asked_bytes") or ():
        if asked >= block and _fits_size(asked, rule) and not any(0 <= asked - size < block for size in there):
            yield GateFault(FaultCode.LOG_SIZE_ABSENT, {"size": asked}, job, header.pattern, payload_bytes=asked)


def lost(run: GateInput, known: Sequence[GateFault]) -> Iterator[GateFault]:
    """Yield a fault for each missing row that was requested, even if no rule selects the row.

    `known`: the faults that were found so far. If a failed job or a missing row is already in `known`, no second fault
        is reported for the same job or row.
    """
    explained = set()
    reported: set[_Place] = set()
    for fault in known:
        if fault.job:
            reported.add((fault.job, fault.mode, fault.payload_bytes, fault.group))
            if fault.name in _EXPLAIN_ABSENCE and fault.mode is None:
                explained.add(job_of_attempt(fault.job))
    for row in (*run.document.skipped, *run.document.failures):
        for requested in (row.get("requested_bytes"), *row.get("also_requested_bytes", ())):
            reported.add((job_of_attempt(str(row.get("job"))), row.get("mode"), requested, row.get("group")))
    of_job = rows_by_job(run.document.summaries)
    for name, cases in _requested(run).items():
        for case, world in cases:
            rule = GateRule("", (case.pattern,), (), modes=case.modes)
            if name not in explained:
                yield from _absent_of_job(of_job.get(name, []), name, case, world, rule, _ANY_MODE, reported)


def _requested(run: GateInput) -> dict[str, list[tuple[Case, World]]]:
    """For each job, return the cases and worlds that it should have measured.

    A job has two cases if its plan and the header of its first launch state different cases.
    """
    sources: list[tuple[str, Case | None, World]] = []
    for name, planned in run.planned().items():
        if planned.get("world"):
            sources.append((name, own_case(planned["case"]), World(**planned["world"])))
    for job, header in run.document.headers.items():
        world = world_of(header)
        if job == job_of_attempt(job) and world is not None:
            sources.append((job, own_case(header.case), world))
    found: dict[str, list[tuple[Case, World]]] = {}
    for name, case, world in sources:
        if case is not None and case.pattern in plugins.names("pattern"):
            of_job = found.setdefault(name, [])
            if (case, world) not in of_job:
                of_job.append((case, world))
    return found


def _absent_of_pattern(
    pattern: str, rule: GateRule, there: Sequence[Summary], elsewhere: Sequence[str], skipped: Sequence[GateFault]
) -> Iterator[GateFault]:
    """Yield a fault if a pattern has no row.

    If the pattern has rows, yield a fault for each named size without a row.
    """
    if not there and elsewhere:
        facts = {"expected": rule.transports, "pattern": pattern, "found": elsewhere}
        yield GateFault(FaultCode.TRANSPORT_OTHER, facts, pattern=pattern)
    elif not there and not any(fault.pattern == pattern for fault in skipped):
        yield GateFault(FaultCode.PATTERN_ABSENT, {"pattern": pattern}, pattern=pattern)
    elif there:
        known = {size for row in there for size in _sizes_of(row)}
        known |= {fault.payload_bytes for fault in skipped if fault.pattern == pattern and fault.payload_bytes}
        for size in rule.sizes:
            if size not in known:
                yield GateFault(FaultCode.SIZE_ABSENT, {"size": size}, pattern=pattern, payload_bytes=size)


def _fits(header: Header, row: Summary, rule: GateRule, limit: Demand) -> bool:
    modes = modes_of(rule, limit)
    return (
        _has_metric(row, limit)
        # another tool may have other modes, which are accepted unless the rule names modes
        and (not modes or row.mode in modes or (is_imported(row) and not rule.modes))
        and (not rule.dtypes or row.dtype in rule.dtypes)
        and (not rule.reduce_ops or row.reduce_op in rule.reduce_ops)
        and (not rule.topologies or header.topology in rule.topologies)
        and (not rule.directions or row.direction in rule.directions)
        and (not rule.placement or row.in_place is (rule.placement == "in_place"))
        and _header_has_factors(header, rule)
        and (not rule.nodes or row.num_nodes in rule.nodes)
        and (not rule.ranks or row.num_ranks in rule.ranks)
        and _fits_group(row.group, rule)
        and any(_fits_size(size, rule) for size in _sizes_of(row))
    )


def _has_metric(row: Summary, limit: Demand) -> bool:
    """Check whether rows of this kind have the metric of the demand.

    A matrix that another tool printed has either rates or times.
    """
    if row.pattern not in COPY_PATTERNS or not is_imported(row):
        return True
    has_times = row.algbw_bytes_per_s is None and row.mean_s is not None
    return has_times is not (limit.metric in (*RATES, WEAKEST))


def _fits_header(header: Header, rule: GateRule) -> bool:
    """Check whether an imported job matches the rule. If the job matches the rule, all its rows match the rule."""
    return (
        header.pattern in rule.patterns
        and (not rule.transports or header.transport in rule.transports)
        and (not rule.dtypes or header.dtype in rule.dtypes)
        and (not rule.reduce_ops or header.reduce_op in rule.reduce_ops)
        and (not rule.topologies or header.topology in rule.topologies)
        and (not rule.directions or header.direction in rule.directions)
        and _header_has_factors(header, rule)
        and (not rule.nodes or header.num_nodes in rule.nodes)
        and (not rule.ranks or header.num_ranks in rule.ranks)
        and _fits_group("world", rule)
    )


def _fits_case(case: Case, header: Header | None, rule: GateRule) -> bool:
    """Check whether the rule can apply to rows of this job.

    Only the options in the job's case are compared with the rule's requirements. The nodes and ranks of a group are not
    compared, because a case does not state them. Before a job has run, its transport may be `auto`, which matches every
    rule. After the job has run, its header states the transport that was used.
    """
    topology, transport = _topology(case), case.transport
    if header is not None:
        topology, transport = header.topology, header.transport
    return (
        case.pattern in rule.patterns
        and (not rule.transports or transport in (*rule.transports, "auto"))
        and (not rule.dtypes or case.dtype in rule.dtypes)
        and (not rule.reduce_ops or case.reduce_op in rule.reduce_ops)
        and (not rule.topologies or topology in rule.topologies)
        and (not rule.directions or case.direction in rule.directions)
        and _has_factors(case, rule)
    )


def _header_has_factors(header: Header, rule: GateRule) -> bool:
    """Check whether the job's case has the values that the rule requires in `factors`.

    A log of another tool records no factors, so it never matches a rule that names factors.
    """
    if not rule.factors:
        return True
    case = own_case(header.case) if header.case and not header.imported else None
    return case is not None and _has_factors(case, rule)


def _has_factors(case: Case, rule: GateRule) -> bool:
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
    """Yield a fault for each skipped row that a demand selects. The fault states the reason for the skip."""
    modes = modes_of(rule, limit)
    for row in run.document.skipped:
        header = run.document.headers.get(str(row.get("job")))
        if (
            row.get("pattern") not in rule.patterns
            or (rule.transports and row.get("transport") not in rule.transports)
            or (modes and row.get("mode") not in (*modes, None))
            or (header is not None and rule.topologies and header.topology not in rule.topologies)
            or (header is not None and not _header_has_factors(header, rule))
            or not _fits_group(str(row.get("group", "world")), rule)
        ):
            continue
        facts = {
            "reason": str(row.get("reason")),
            "skip": str(row.get("code")),
            "skip_facts": row.get("facts") or {},
        }
        for size in (row.get("requested_bytes"), *row.get("also_requested_bytes", ())):
            if size is not None and _fits_size(size, rule):
                job = job_of_attempt(str(row.get("job")))
                yield GateFault(
                    FaultCode.ROW_SKIPPED, facts, job, row.get("pattern"), row.get("mode"), size, row.get("group")
                )


def _absent_of_job(
    rows: Sequence[Summary],
    name: str,
    case: Case,
    world: World,
    rule: GateRule,
    limit: Demand,
    excused: set[_Place],
) -> Iterator[GateFault]:
    """Yield a fault for each missing row (size, mode and group) of a job that no attempt of the job measured."""
    modes = modes_of(rule, limit)
    wanted_modes = [mode for mode in case.modes if not modes or mode in modes]
    wanted_sizes = [size for size in case.sizes if _fits_size(size, rule)]
    groups = _groups(case, world, rule)
    if not wanted_modes or not wanted_sizes or (groups is not None and not groups):
        return
    if not rows:
        yield GateFault(FaultCode.JOB_WITHOUT_ROWS, job=name, pattern=case.pattern)
        return
    there: dict[tuple[str, int], set[str]] = {}
    for row in rows:
        for size in _sizes_of(row):
            there.setdefault((row.mode, size), set()).add(row.group)
    num_faults = 0
    for mode in wanted_modes:
        for size in wanted_sizes:
            for group in _absent_groups(there.get((mode, size), set()), groups, case, world):
                if (name, mode, size, group) in excused:
                    continue
                code = FaultCode.ROW_ABSENT if group else FaultCode.GROUPS_ABSENT
                facts = {"size": size, "mode": mode, "group": group}
                yield GateFault(code, facts, name, case.pattern, mode, size, group)
                num_faults += 1
                if num_faults == _MOST_FAULTS:
                    return


def _groups(case: Case, world: World, rule: GateRule) -> Mapping[str, None] | None:
    """Return the names of the groups that match the rule.

    Return None if the job has too many groups, or if the job chooses its groups while it measures.
    """
    if case.is_ladder:
        return None
    try:
        in_time = rounds(case, world, _topology(case))
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


def _absent_groups(
    there: Iterable[str], groups: Mapping[str, None] | None, case: Case, world: World
) -> Iterator[str | None]:
    """Yield the name of each group without a row.

    If rows are missing but their groups are unknown, yield None once.
    """
    there = set(there)
    if groups is not None:
        yield from (group for group in groups if group not in there)
    elif case.is_ladder:
        if not there:
            yield None
    else:
        in_time = rounds(case, world, _topology(case))
        if len(there) < len(in_time) * len(in_time[0]):
            yield None
