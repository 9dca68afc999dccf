"""Judge a row by a demand: whether the row is valid evidence, and whether its figure meets the demand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.core.record import Flag, Header
from bench.gate.gate_input import GateInput, gpu_names, is_imported
from bench.gate.messages import FaultCode
from bench.gate.rules import RATES, Demand, GateFault, GateRule
from bench.hardware import reference
from bench.hardware.bounds import COPIES_OF_ONE_GPU, shares_gpu
from bench.hardware.catalogue import gpu_printed, instance, instances
from bench.results import stats
from bench.results.compare import Compared, compare
from bench.results.document import Summary
from bench.results.inference import ComparisonVerdict
from bench.results.launches import RowKey

_LEAST_GROUPS = 2  # with fewer groups, no group is the weakest
_TAILS = {"p95": 0.95, "p99": 0.99}
_FIELDS = {
    "busbw": "busbw_bytes_per_s",
    "algbw": "algbw_bytes_per_s",
    "time": "median_s",
    "p95": "p95_s",
    "p99": "p99_s",
    "max": "max_s",
    "min": "min_s",
}
# The verdicts of a comparison with the baseline that make a row fail.
_FAILING = {
    ComparisonVerdict.SLOWER: FaultCode.COMPARED_SLOWER,
    ComparisonVerdict.INCONCLUSIVE: FaultCode.COMPARED_INCONCLUSIVE,
    ComparisonVerdict.EXPLORATORY: FaultCode.COMPARED_EXPLORATORY,
    ComparisonVerdict.MODELLED: FaultCode.COMPARED_MODELLED,
    ComparisonVerdict.IMPORTED: FaultCode.COMPARED_IMPORTED,
}
RowOutOfPlace = tuple[object, ...]
_Judged = tuple[list["Figure"], list[GateFault]]


@dataclass(frozen=True, slots=True)
class Figure:
    """The figure of a row, and the limit that a demand sets.

    Both values are in the unit of the demand: bytes per second, seconds, or a fraction.
    """

    row: Summary
    got: float
    limit: float
    margin: float  # distance to the limit, as a fraction of the limit; negative if the demand is not met


def checked_out_of_place(run: GateInput) -> frozenset[RowOutOfPlace]:
    """Return a key for each imported out-of-place row whose data were checked and correct."""
    found = set()
    for row in run.document.summaries:
        if is_imported(row) and not row.in_place and row.verified:
            found.add(_row_out_of_place(run.document.headers[row.job], row))
    return frozenset(found)


def _row_out_of_place(header: Header, row: Summary) -> RowOutOfPlace:
    """Return the key of an imported row. A key identifies an operation in a log.

    The in-place and the out-of-place row of one operation have the same key.
    """
    imported = header.imported
    return imported.get("source"), imported.get("line"), row.pattern, row.dtype, row.reduce_op, row.payload_bytes


def evidence(
    row: Summary, rule: GateRule, limit: Demand, header: Header, checked: frozenset[RowOutOfPlace] = frozenset()
) -> Iterator[GateFault]:
    """Yield the reasons why a row cannot be judged.

    If the first reason makes other reasons meaningless, the other reasons are left out.

    `checked`: the keys of imported out-of-place rows whose data were correct. Some tools cannot check the data of
    in-place operations and print N/A instead. An unchecked in-place row is therefore accepted if the out-of-place row
    of the same operation is correct.
    """
    reason = _no_evidence(row, rule, header)
    if reason is not None:
        yield reason
        return
    in_place_only = (
        row.verified is None and row.in_place and is_imported(row) and _row_out_of_place(header, row) in checked
    )
    for fault in (*_numbers(row, limit), *_world(row, rule), *_samples(row, rule)):
        if fault.code == FaultCode.DATA_UNCHECKED and in_place_only:
            continue
        if fault.name not in rule.allow:
            yield fault


def _no_evidence(row: Summary, rule: GateRule, header: Header) -> GateFault | None:
    if is_imported(row) and not rule.imported:
        return GateFault.of_row(FaultCode.ROW_IMPORTED, row)
    if (row.modelled or header.modelled) and not rule.modelled:
        return GateFault.of_row(FaultCode.ROW_MODELLED, row)
    if row.num_wrong:
        return GateFault.of_row(FaultCode.ELEMENTS_WRONG, row, num_wrong=row.num_wrong)
    if row.verified is False:
        return GateFault.of_row(FaultCode.SOME_WRONG, row)
    if shares_gpu(header, row.flags):
        return GateFault.of_row(FaultCode.GPU_SHARED, row)
    return None


def _numbers(row: Summary, limit: Demand) -> Iterator[GateFault]:
    value = value_of(row, limit)
    if limit.metric in _TAILS:
        least = stats.least_samples(_TAILS[limit.metric])
        if value is None or row.num_samples < least:
            facts = {"metric": limit.metric, "num_samples": row.num_samples, "least": least}
            yield GateFault.of_row(FaultCode.SAMPLES_TOO_FEW_FOR_TAIL, row, **facts)
            return
    figures: dict[str, float | None] = {limit.metric: value}
    if not is_imported(row):
        figures["time"] = row.median_s
    elif limit.metric not in RATES:  # some tools print only rates
        figures["time"] = value
    for name, figure in figures.items():
        if figure is None and row.flags:
            yield GateFault.of_row(FaultCode.FIGURE_ABSENT_FLAGGED, row, metric=name, flags=row.flags)
        elif figure is None:
            yield GateFault.of_row(FaultCode.FIGURE_ABSENT, row, metric=name)
        elif not math.isfinite(figure):
            yield GateFault.of_row(FaultCode.FIGURE_ODD, row, metric=name, value=str(figure))
        elif figure <= 0:
            yield GateFault.of_row(FaultCode.FIGURE_ZERO, row, metric=name, value=figure)
        else:
            continue
        return


def value_of(row: Summary, limit: Demand) -> float | None:
    """Return the figure of a row that a demand refers to, such as the busbw or the time.

    If another tool reports only a mean time, the mean is used.
    """
    value: float | None = getattr(row, _FIELDS.get(limit.metric, "busbw_bytes_per_s"))
    if value is None and limit.metric == "time" and is_imported(row):
        value = row.mean_s
    return value


def _world(row: Summary, rule: GateRule) -> Iterator[GateFault]:
    if row.num_ranks is None:
        yield GateFault.of_row(FaultCode.RANKS_UNKNOWN, row)
    elif row.num_ranks < 2 and rule.ranks != (1,) and row.pattern not in COPIES_OF_ONE_GPU:
        yield GateFault.of_row(FaultCode.RANK_ALONE, row)
    if row.verified is None and not row.modelled:
        yield GateFault.of_row(FaultCode.DATA_UNCHECKED, row)
    if Flag.THROUGH_HOST in row.flags:
        yield GateFault.of_row(FaultCode.COPIED_THROUGH_HOST, row)
    if Flag.SHARED_HOST in row.flags:
        yield GateFault.of_row(FaultCode.HOST_SHARED, row)
    if Flag.CONTRADICTS in row.flags:
        yield GateFault.of_row(FaultCode.ROW_CONTRADICTS, row)


def _samples(row: Summary, rule: GateRule) -> Iterator[GateFault]:
    """Yield faults about the row's samples, such as too few samples.

    Imported rows and modelled rows have no samples, so they cannot have faults about samples. The rule itself decides
    whether such rows are accepted.
    """
    if is_imported(row) or row.modelled:
        return
    if row.num_samples < rule.samples:
        yield GateFault.of_row(FaultCode.SAMPLES_TOO_FEW, row, num_samples=row.num_samples, least=rule.samples)
    elif row.ci_low_s is None or row.ci_high_s is None:
        yield GateFault.of_row(FaultCode.INTERVAL_ABSENT, row, num_samples=row.num_samples)
    elif not (math.isfinite(row.ci_low_s) and math.isfinite(row.ci_high_s)):
        yield GateFault.of_row(FaultCode.INTERVAL_ODD, row)
    if Flag.NOT_CONVERGED in row.flags:
        yield GateFault.of_row(FaultCode.ENDED_EARLY, row, stop_reason=row.stop_reason or "an unknown limit")


def figures(run: GateInput, rows: Sequence[Summary], limit: Demand) -> _Judged:
    """Compare the figures of rows with a demand. Only rows that are valid evidence are compared.

    Return the figures, and the faults of rows that fail the demand.
    """
    if limit.side == "not-slower":
        return _against_baseline(run, rows, limit)
    if limit.of == "median":
        return _weakest(rows, limit)
    found, faults = [], []
    for row in rows:
        got = value_of(row, limit) or 0.0
        if limit.of:
            whole = _whole(run, row, limit)
            if whole is None:
                code = FaultCode.BOUND_UNKNOWN if limit.of == "bound" else FaultCode.REFERENCE_UNKNOWN
                faults.append(GateFault.of_row(code, row))
                continue
            if limit.of == "bound":
                got = row.busbw_bytes_per_s or 0.0  # bounds always refer to busbw
            got = got / whole
        found.append(_figure(row, got, limit))
    return found, faults + _missed(found, limit)


def _whole(run: GateInput, row: Summary, limit: Demand) -> float | None:
    """Return the bound or the published figure to which the percentage in a demand such as `80% of bound` refers.

    If the bound or figure is unknown, return None.
    """
    if limit.of == "bound":
        known = row.bound_bytes_per_s
        usable = known is not None and math.isfinite(known) and known > 0 and row.busbw_bytes_per_s is not None
        return known if usable else None
    published = run.published(run.document.headers[row.job], row, limit.metric)
    return published[0] if published else None


def _figure(row: Summary, got: float, limit: Demand) -> Figure:
    share = got / limit.value
    return Figure(row, got, limit.value, share - 1 if limit.side == "least" else 1 - share)


def _missed(found: Sequence[Figure], limit: Demand) -> list[GateFault]:
    code = FaultCode.BELOW_DEMAND if limit.side == "least" else FaultCode.ABOVE_DEMAND
    facts = {"metric": limit.metric, "demand": limit.text}
    return [GateFault.of_row(code, each.row, each.got, each.limit, **facts) for each in found if each.margin < 0]


def _weakest(rows: Sequence[Summary], limit: Demand) -> _Judged:
    """Compare each group with the median of all groups of its job, mode and size.

    Pairs inside a node are compared only with each other. An imported log has only one group, the whole world. An
    imported log is therefore compared with the other logs of similar jobs.
    """
    peers: dict[tuple[object, ...], list[Summary]] = {}
    for row in rows:
        job: tuple[object, ...] = (row.job,)
        if is_imported(row) and row.group == "world":
            job = row.pattern, row.transport, row.num_ranks, row.dtype, row.reduce_op, row.in_place
        peers.setdefault((*job, row.mode, row.payload_bytes, row.num_nodes), []).append(row)
    found, faults = [], []
    for group in peers.values():
        if len(group) < _LEAST_GROUPS:
            facts = {"num_groups": len(group), "least": _LEAST_GROUPS}
            faults.append(GateFault.of_row(FaultCode.GROUPS_TOO_FEW, group[0], **facts))
            continue
        middle = median(row.busbw_bytes_per_s or 0.0 for row in group)
        of_group = [_figure(row, (row.busbw_bytes_per_s or 0.0) / middle, limit) for row in group]
        found += of_group
        faults += _missed(of_group, limit)
    return found, faults


def _against_baseline(run: GateInput, rows: Sequence[Summary], limit: Demand) -> _Judged:
    """Judge rows by the verdicts that `linkbench compare` would give against the baseline.

    If a row cannot be compared, it does not meet the demand.
    """
    if run.baseline is None:
        missing = run.no_baseline
        return [], [GateFault.of_row(missing.code, row, **missing.facts) for row in rows]
    try:
        compared = compare(run.baseline, run.document, delta=limit.value)
    except UsageError as error:
        return [], [GateFault.of_row(FaultCode.BASELINE_REFUSED, row, error=str(error)) for row in rows]
    by_row: dict[tuple[str, RowKey], Compared] = {
        (job, each.place): each for each in compared.rows for job in each.new_jobs
    }
    found, faults = [], []
    for row in rows:
        place = RowKey(row.pattern, row.mode, row.group, row.src, row.dst, row.payload_bytes)
        each = by_row.get((row.job, place))
        if each is None:
            faults.append(GateFault.of_row(FaultCode.BASELINE_LACKS_ROW, row))
            continue
        if each.verdict == ComparisonVerdict.NOT_COMPARABLE:
            reason = each.reason or Coded.uncoded("")
            facts = {"reason": reason.text, "reason_code": reason.code, "reason_facts": reason.facts}
            faults.append(GateFault.of_row(FaultCode.ROW_NOT_COMPARABLE, row, **facts))
            continue
        ratio = each.ratio or math.nan
        most = 1 + limit.value
        found.append(Figure(row, ratio, most, 1 - ratio / most))
        code = _FAILING.get(ComparisonVerdict(each.verdict))
        if code is not None:
            faults.append(GateFault.of_row(code, row, ratio, most, ratio=ratio))
    return found, faults


def published_figure(header: Header, row: Summary, metric: str) -> tuple[float, str] | None:
    """Return the published figure for a row's pattern, size, ranks, nodes and GPU, with its source.

    Return None if nothing is published.

    The figure is busbw in bytes per second, or the time of a small operation in seconds. A figure with a known
    limitation (`limited`), such as NVLS turned off, is not used.
    """
    if row.num_ranks is None or row.num_nodes is None:
        return None
    gpu = _only_gpu(header)
    if gpu is None:
        return None
    for each in reference.same_shape(row.pattern, gpu, header.instance, row.num_nodes, row.num_ranks):
        point = each.near(row.payload_bytes) if metric == "busbw" else None
        seconds = each.small_s.get(row.payload_bytes) if metric == "time" else None
        figure = point[1] if point else seconds
        if figure is not None and each.limited is None:
            return figure, each.source
    return None


def _only_gpu(header: Header) -> str | None:
    """Return the GPU model of all nodes, from the drivers or from the instance type.

    Return None if the models differ or are unknown.
    """
    gpus = {gpu_printed(name) for name in gpu_names(header)}
    if not gpus and header.instance in instances():
        return instance(str(header.instance)).gpu
    return gpus.pop() if len(gpus) == 1 else None
