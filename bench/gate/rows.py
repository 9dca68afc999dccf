"""A row against a demand: is it evidence at all, and is its figure what is asked for?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.core.errors import UsageError
from bench.core.record import Flag, Header
from bench.gate.gate_input import GateInput, fault, is_imported
from bench.gate.rules import RATES, Demand, GateFault, GateRule
from bench.hardware.bounds import COPIES_OF_ONE_GPU, shares_gpu
from bench.results import stats
from bench.results.compare import Compared, compare
from bench.results.document import Summary
from bench.results.launches import RowKey

_LEAST_GROUPS = 2  # of which one can be the weakest
_NO_BOUND = (
    "no bound is known: name `instance:` or `links:` of the cluster in bench.yaml, "
    "or for a log --instance, --num-ranks and --num-nodes of bench import"
)
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


@dataclass(frozen=True, slots=True)
class Figure:
    """What a row reaches of a demand, both in the demand's own unit (bytes per second, seconds, or a share)."""

    row: Summary
    got: float
    limit: float
    margin: float  # share of the limit that is to spare; negative where the demand is not met


def evidence(row: Summary, rule: GateRule, limit: Demand, header: Header) -> Iterator[GateFault]:
    """Why a row can not be judged; its first reason where one follows from another."""
    reason = _no_evidence(row, rule, header)
    if reason is not None:
        yield fault(*reason, row)
        return
    told = [*_numbers(row, limit), *_world(row, rule), *_samples(row, rule)]
    yield from (each for each in told if each.name not in rule.allow)


def _no_evidence(row: Summary, rule: GateRule, header: Header) -> tuple[str, str] | None:
    if is_imported(row) and not rule.imported:
        return "imported", "one figure of another tool's log is no evidence of its spread"
    if row.modelled or header.modelled:
        return "modelled", "nothing was measured"
    if row.verified is False or row.num_wrong:
        return "wrong-data", f"{row.num_wrong or 'some'} elements were wrong"
    if shares_gpu(header, row.flags):
        return "shared-gpu", "several ranks were on one GPU"
    return None


def _numbers(row: Summary, limit: Demand) -> Iterator[GateFault]:
    value = value_of(row, limit)
    if limit.metric in _TAILS:
        least = stats.least_samples(_TAILS[limit.metric])
        if value is None or row.num_samples < least:
            told = f"{limit.metric} of {row.num_samples} samples: {least} are needed"
            yield fault("tail-not-known", told, row)
            return
    figures: Mapping[str, float | None] = {limit.metric: value}
    if not (is_imported(row) and limit.metric in RATES):  # some tools print no time
        figures = {**figures, "time": row.median_s if not is_imported(row) else value}
    for name, figure in figures.items():
        if figure is None or not math.isfinite(figure):
            why = f" ({', '.join(row.flags)})" if row.flags and figure is None else ""
            yield fault("not-a-number", f"{name} is {'not there' if figure is None else figure}{why}", row)
            return
        if figure <= 0:
            yield fault("zero", f"{name} is {figure:g}", row)
            return


def value_of(row: Summary, limit: Demand) -> float | None:
    """The figure that a demand is about; the mean that another tool reports stands in for the time."""
    value: float | None = getattr(row, _FIELDS.get(limit.metric, "busbw_bytes_per_s"))
    if value is None and limit.metric == "time" and is_imported(row):
        value = row.mean_s
    return value


def _world(row: Summary, rule: GateRule) -> Iterator[GateFault]:
    if row.num_ranks is None:  # a log need not tell
        yield fault("one-rank", "how many ranks took part is not known: tell it by --num-ranks of bench import", row)
    elif row.num_ranks < 2 and rule.ranks != (1,) and row.pattern not in COPIES_OF_ONE_GPU:
        yield fault("one-rank", "one rank by itself: nothing crossed a link", row)
    if row.verified is None:
        yield fault("unverified", "nobody checked the data", row)
    if Flag.THROUGH_HOST in row.flags:
        yield fault("through-host", "its two GPUs do not reach each other: the driver copied by the host's memory", row)
    if Flag.CONTRADICTS in row.flags:
        yield fault("contradicts", "it and another row can not both be right", row)


def _samples(row: Summary, rule: GateRule) -> Iterator[GateFault]:
    """An imported row has none: that it is one figure is what its rule accepts."""
    if is_imported(row):
        return
    if row.num_samples < rule.samples:
        yield fault("too-few-samples", f"{row.num_samples} samples, the rule asks for {rule.samples}", row)
    elif row.ci_low_s is None or row.ci_high_s is None:
        yield fault("no-interval", f"{row.num_samples} samples have no 95 % interval", row)
    elif not (math.isfinite(row.ci_low_s) and math.isfinite(row.ci_high_s)):
        yield fault("not-a-number", "the interval is not finite", row)
    if Flag.NOT_CONVERGED in row.flags:
        yield fault("not-converged", f"ended by {row.stop_reason or 'an unknown reason'}", row)


def figures(run: GateInput, rows: Sequence[Summary], limit: Demand) -> tuple[list[Figure], list[GateFault]]:
    """What rows that are evidence reach of a demand, and the ways in which they fail it."""
    if limit.side == "not-slower":
        return _against_baseline(run, rows, limit)
    if limit.of == "median":
        return _weakest(rows, limit)
    found, faults = [], []
    for row in rows:
        got = value_of(row, limit) or 0.0
        if limit.of:
            whole, missing = _whole(run, row, limit)
            if whole is None:
                faults.append(fault(f"no-{limit.of}", missing, row))
                continue
            if limit.of == "bound":
                got = row.busbw_bytes_per_s or 0.0  # what bounds are bounds of
            got = got / whole
        found.append(_figure(row, got, limit))
    return found, faults + [_missed(each, limit) for each in found if each.margin < 0]


def _whole(run: GateInput, row: Summary, limit: Demand) -> tuple[float | None, str]:
    """What a share is a share of, or why there is none."""
    if limit.of == "bound":
        known = row.bound_bytes_per_s
        usable = known is not None and math.isfinite(known) and known > 0 and row.busbw_bytes_per_s is not None
        return known if usable else None, _NO_BOUND
    published = run.published(run.document.headers[row.job], row, limit.metric)
    return (published[0], "") if published else (None, "nobody published this figure for this hardware")


def _figure(row: Summary, got: float, limit: Demand) -> Figure:
    share = got / limit.value
    return Figure(row, got, limit.value, share - 1 if limit.side == "least" else 1 - share)


def _missed(figure: Figure, limit: Demand) -> GateFault:
    name = "too-low" if limit.side == "least" else "too-high"
    return fault(name, f"{limit.metric} {limit.text} is asked for", figure.row, figure.got, figure.limit)


def _weakest(rows: Sequence[Summary], limit: Demand) -> tuple[list[Figure], list[GateFault]]:
    """The slowest group of each job, mode and size beside the median of them; pairs of one node by themselves."""
    alike: dict[tuple[object, ...], list[Summary]] = {}
    for row in rows:
        alike.setdefault((row.job, row.mode, row.payload_bytes, row.num_nodes), []).append(row)
    found, faults = [], []
    for group in alike.values():
        if len(group) < _LEAST_GROUPS:
            told = f"{len(group)} groups: the weakest of fewer than {_LEAST_GROUPS} is not known"
            faults.append(fault("missing-rows", told, group[0]))
            continue
        rates = [row.busbw_bytes_per_s or 0.0 for row in group]
        middle = median(rates)
        each = [_figure(row, rate / middle, limit) for row, rate in zip(group, rates, strict=True)]
        found += each
        faults += [_missed(figure, limit) for figure in each if figure.margin < 0]
    return found, faults


def _against_baseline(run: GateInput, rows: Sequence[Summary], limit: Demand) -> tuple[list[Figure], list[GateFault]]:
    """Verdicts of `bench compare`; what it can not compare fails."""
    if run.baseline is None:
        return [], [fault("no-baseline", run.no_baseline, row) for row in rows]
    try:
        compared = compare(run.baseline, run.document, delta=limit.value)
    except UsageError as error:
        return [], [fault("no-baseline", str(error), row) for row in rows]
    by_row: dict[tuple[str, RowKey], Compared] = {
        (job, each.place): each for each in compared.rows for job in each.new_jobs
    }
    found, faults = [], []
    for row in rows:
        place = RowKey(row.pattern, row.mode, row.group, row.src, row.dst, row.payload_bytes)
        each = by_row.get((row.job, place))
        if each is None or each.verdict == "not comparable":
            why = each.reason.text if each and each.reason else "the run to compare with has no such row"
            faults.append(fault("no-baseline", str(why), row))
            continue
        ratio = each.ratio or math.nan
        most = 1 + limit.value
        found.append(Figure(row, ratio, most, 1 - ratio / most))
        name = {
            "slower": "slower",
            "inconclusive": "inconclusive",
            "exploratory": "too-few-launches",
            "modelled": "modelled",
            "imported": "imported",
        }.get(each.verdict)
        if name:
            faults.append(
                fault(name, f"{each.verdict}: {ratio:.3f} x the time of the run to compare with", row, ratio, most)
            )
    return found, faults
