"""Check a run by the twelve rules of scientific benchmarking and by three rules of this suite.

T. Hoefler and R. Belli published the twelve rules: "Scientific Benchmarking of Parallel Computing Systems", SC15. The
values that the suite computes itself always follow the rules: medians, rates, intervals and flags
(tests/results/test_own_arithmetic.py). A run breaks a rule only if something is missing, or if another tool reported a
figure that the rule forbids.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from bench.core.case import Case
from bench.core.case_argv import own_case
from bench.core.contention import rounds
from bench.core.errors import BenchError
from bench.core.record import Flag, Header, Record, Samples, known
from bench.core.traits import traits
from bench.core.world import World
from bench.gate.gate_input import GateInput
from bench.gate.messages import FaultCode
from bench.gate.publication_rules import PublicationRule
from bench.gate.rules import GateFault
from bench.results import stats
from bench.results.busy import busy_run
from bench.results.document import Summary
from bench.results.headline import MOST_OPEN, is_open

# The meaning of other tools' statistics, recognised by name.
_RATIO = re.compile(r"speed_?up|ratio|fraction|efficiency|percent|_pct\b|of_peak|relative")
_AVERAGED_RATE = re.compile(
    r"(avg|average|mean|geo_?mean).*(bus_?bw|alg_?bw|bandwidth|bytes_per_s|fraction|ratio|speed_?up|percent|of_peak)"
    r"|(bus_?bw|alg_?bw|bandwidth|fraction|ratio|speed_?up|of_peak).*_(avg|average|mean)\b"
)
_SPREAD_ALONE = re.compile(r"(^|_)(sd|std|stdev|stddev|sigma|variance|var|stderr|sem|cv)(_|$)")
_PERCENTILE = re.compile(r"(?:^|_)p(\d{2})_?(\d*)(?:_|$)")
# Interval methods that assume no distribution: order statistics, block bootstrap, t on logarithms of launch medians.
_METHODS = re.compile(r"^(order[- ]statistics?|block[- ]bootstrap|bootstrap over launches|log[- ]welch)\b", re.I)
_REDUCTIONS = ("median", "arithmetic mean")  # how times may be reduced
_HOSTS = "CPU times of the hosts"  # the CPU times of hosts that rows record
_CLOSE = 1e-9  # relative difference that the rounding of a few operations can cause

# The keys that a host's facts must have. The value null means unknown. A missing key means that the fact was not
# collected.
_NODE_KEYS = (
    "cpu_model",
    "num_cpus",
    "num_cores",
    "num_sockets",
    "governor",
    "memory_bytes",
    "numa_nodes",
    "network_ports",
    "gpus",
    "gpu_driver",
    "gpu_cuda",
    "container",
    "last_level_cache_bytes",
)
_GPU_KEYS = ("name", "memory_bytes", "pcie_generation", "pcie_max_generation", "pcie_lanes", "pcie_max_lanes")
_VERSIONS = ("bench", "commit", "python", "kernel")
_TIMING_SETTINGS = ("sync", "rank_reduction", "iteration_reduction", "cache")
# the maximum replaces p99 if there are too few samples for p99
_SKEW, _SKEW_TAILS = "sync_skew_p50_s", ("sync_skew_p99_s", "sync_skew_max_s")


class FindingStatus(StrEnum):
    """Whether a run follows a rule."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    NOT_KNOWN = "not known"  # a file of an older version lacks the data of the rule


@dataclass(frozen=True, slots=True)
class PublicationFinding:
    """The result of checking a run against one rule.

    `about`: what the rule checks ("run", "rows", "timed rows" or _HOSTS). If all rows are imported, and the rule cannot
    judge imported rows, `about` is empty.
    `partly`: whether imported rows were left out because the rule cannot judge them.
    """

    rule: PublicationRule
    status: FindingStatus
    about: str
    faults: tuple[GateFault, ...] = ()
    partly: bool = False


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One row of the report, together with its raw record and the header of its job."""

    job: str
    header: Header
    record: Record
    summary: Summary

    @property
    def is_timed(self) -> bool:
        """Whether this suite measured the row, so that its raw samples and its median exist."""
        return self.record.samples is not None and not self.record.modelled and self.summary.median_s is not None

    def fault(self, code: FaultCode, **facts: Any) -> GateFault:
        """Build a fault of this row."""
        record, pattern = self.record, self.header.pattern
        return GateFault(code, facts, self.job, pattern, record.mode, record.payload_bytes, record.group)


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A run in the form that the publication rules need: the run, and the rows of its report with their records."""

    run: GateInput
    rows: tuple[PublishedRow, ...]

    @classmethod
    def of(cls, run: GateInput) -> PublishedRun:
        """Collect one row for each record that has a figure, in the order of the records."""
        shown: dict[str, list[Summary]] = {}
        for summary in run.document.summaries:
            shown.setdefault(summary.job, []).append(summary)
        rows = []
        for job, header, records in run.attempts:
            measured = [record for record in records if record.skipped is None and record.failed is None]
            if not header.imported:  # summary.by_size also omits imported records
                measured.sort(key=lambda record: record.payload_bytes)
            for record, summary in zip(measured, shown.get(job, []), strict=True):
                rows.append(PublishedRow(job, header, record, summary))
        return cls(run, tuple(rows))

    def timed(self) -> Iterator[PublishedRow]:
        """Return the rows that have raw samples."""
        return (row for row in self.rows if row.is_timed)

    def measured(self) -> Iterator[tuple[str, Header]]:
        """Yield the jobs that this suite measured with samples. Modelled and imported jobs are left out."""
        for job, header, records in self.run.attempts:
            if not header.modelled and any(record.reported is None for record in records):
                yield job, header

    def reported(self) -> Iterator[tuple[PublishedRow, str, float]]:
        """Yield (row, name, value) for every statistic that another tool reported."""
        for row in self.rows:
            for name, value in (row.record.reported or {}).items():
                yield row, name, value


def findings(run: GateInput, rules: Sequence[PublicationRule]) -> tuple[PublicationFinding, ...]:
    """Return one finding for each rule, in the order of the rules.

    A rule about rows is not applicable if the run has no rows. A rule about times is not applicable if the run has no
    timed rows, for example because it is modelled.
    """
    if not rules:
        return ()
    whole, own = PublishedRun.of(run), PublishedRun.of(_without_imported(run))
    found = []
    for rule in rules:
        about, check = CHECKS[rule]
        if not rule.not_judged or len(own.run.attempts) == len(run.attempts):
            found.append(_finding(rule, about, check, whole))
        elif own.run.attempts:
            found.append(replace(_finding(rule, about, check, own), partly=True))
        else:
            found.append(PublicationFinding(rule, FindingStatus.NOT_APPLICABLE, "", partly=True))
    return tuple(found)


def _finding(
    rule: PublicationRule, about: str, check: Callable[[PublishedRun], Iterator[GateFault]], run: PublishedRun
) -> PublicationFinding:
    faults = tuple(dict.fromkeys(check(run)))
    if faults:
        return PublicationFinding(rule, FindingStatus.FAILED, about, faults)
    if _is_there(about, run):
        return PublicationFinding(rule, FindingStatus.PASSED, about)
    unknown = about == _HOSTS and any(run.timed())
    return PublicationFinding(rule, FindingStatus.NOT_KNOWN if unknown else FindingStatus.NOT_APPLICABLE, about)


def _is_there(about: str, run: PublishedRun) -> bool:
    """Check whether the run has what a rule needs.

    `about`: "run", "rows", "timed rows" or _HOSTS (CPU times of the hosts).
    """
    if about == _HOSTS:
        return busy_run(run.run.document).is_known
    return {"run": bool(run.run.attempts), "rows": bool(run.rows), "timed rows": any(run.timed())}[about]


def _without_imported(run: GateInput) -> GateInput:
    """Return the run without its imported jobs. The imported jobs are also removed from the plan of the run."""
    imported = {job for job, header, _ in run.attempts if header.imported}
    if not imported:
        return run
    plan = run.plan
    if plan is not None:
        jobs = [job for job in plan.get("jobs", ()) if job["name"] not in imported]
        plan = {**plan, "jobs": jobs} if jobs else None
    document = replace(
        run.document,
        summaries=tuple(row for row in run.document.summaries if row.job not in imported),
        skipped=tuple(row for row in run.document.skipped if row.get("job") not in imported),
        failures=tuple(row for row in run.document.failures if row.get("job") not in imported),
    )
    attempts = tuple(attempt for attempt in run.attempts if attempt[0] not in imported)
    return replace(run, document=document, attempts=attempts, plan=plan)


def _ratios(run: PublishedRun) -> Iterator[GateFault]:
    """Check rule 1: a ratio is given only together with its two values."""
    for row, name, _ in run.reported():
        if _RATIO.search(name.lower()):
            yield row.fault(FaultCode.REPORTED_RATIO_ALONE, statistic=name)


def _completeness(run: PublishedRun) -> Iterator[GateFault]:
    """Check rule 2.

    Each requested size, mode and group must have a row, or a reason why the row is missing. The CPUs and GPUs of all
    hosts must be recorded.
    """
    for job, case, header in _requested(run.run):
        if _has_failed(run.run, job):
            continue  # the report already says how the job ended
        if header is None:
            yield GateFault(FaultCode.JOB_WITHOUT_REASON, job=job)
        elif case is not None:
            yield from _absent(run.run, job, case, header)
    yield from _without_reason(run)
    for job, header in run.measured():
        for host, facts in header.nodes.items():
            if not facts.get("num_cpus") or facts.get("gpus") is None:
                yield GateFault(FaultCode.HOST_PARTS_UNKNOWN, {"host": host}, job)


def _without_reason(run: PublishedRun) -> Iterator[GateFault]:
    for row in run.run.document.skipped:
        if not row.get("reason"):
            yield GateFault(
                FaultCode.SKIPPED_WITHOUT_REASON,
                {},
                row.get("job"),
                row.get("pattern"),
                row.get("mode"),
                row.get("payload_bytes"),
                row.get("group"),
            )
    for skip in (run.run.plan or {}).get("skipped", ()):
        if not skip.get("reason"):
            yield GateFault(FaultCode.PLAN_SKIPPED_WITHOUT_REASON, {"entry": skip.get("what", "an entry")})


def _requested(run: GateInput) -> Iterator[tuple[str, Case | None, Header | None]]:
    """Yield (job, case of the job, first header of the job).

    The case is None if linkbench cannot read it. The header is None if the job has no header.
    """
    headers: dict[str, Header] = {}
    for job, header, _ in run.attempts:
        headers.setdefault(_launch(job), header)
    planned = {name: job["case"] for name, job in run.planned().items()}
    for name in dict.fromkeys((*planned, *headers)):
        yield name, own_case(planned.get(name) or headers[name].case), headers.get(name)


def _launch(job: str) -> str:
    """Return the planned job that an attempt belongs to: `job` for `job#2`."""
    return job.partition("#")[0]


def _has_failed(run: GateInput, job: str) -> bool:
    whole_jobs = (row.get("job") for row in run.document.failures if row.get("requested_bytes") is None)
    return bool(run.outcomes.get(job, {}).get("what")) or job in whole_jobs


def _absent(run: GateInput, name: str, case: Case, header: Header) -> Iterator[GateFault]:
    try:
        in_time = rounds(case, World(known(header.num_nodes), known(header.ranks_per_node)), header.topology)
    except BenchError:  # the header was edited, or it has a topology of a newer version of this program
        yield GateFault(FaultCode.GROUPS_UNKNOWN, job=name)
        return
    present = {
        (size, record.mode, record.group)
        for job, _, records in run.attempts
        if _launch(job) == name
        for record in records
        for size in record.requested_bytes
    }
    if case.is_ladder and header.topology == "pairs":
        # A ladder chooses its pairs while it measures, so the pairs are not known beforehand. It begins at the largest
        # size.
        largest = max(case.sizes)
        for mode in case.modes:
            if not any((size, of) == (largest, mode) for size, of, _ in present):
                yield GateFault(FaultCode.LADDER_WITHOUT_ROWS, {}, name, case.pattern, mode, largest)
        return
    names = [group.name for groups in in_time for group in groups]
    for size in case.sizes:
        for mode in case.modes:
            for group in names:
                if (size, mode, group) not in present:
                    yield GateFault(FaultCode.ROW_WITHOUT_REASON, {}, name, case.pattern, mode, size, group)


def _rates(run: PublishedRun) -> Iterator[GateFault]:
    """Check rule 3: times are medians or arithmetic means, and a rate is the total bytes divided by the total time."""
    for job, header in run.measured():
        reduction = header.settings.get("iteration_reduction")
        if reduction is not None and reduction not in _REDUCTIONS:
            yield GateFault(FaultCode.REDUCTION_ODD, {"reduction": reduction}, job)
    for row in run.rows:
        reported = row.record.reported or {}
        seconds = reported.get("mean_s", reported.get("median_s"))
        algbw, busbw = reported.get("algbw_bytes_per_s"), reported.get("busbw_bytes_per_s")
        if algbw is not None and (seconds is None or not _same(algbw * seconds, row.record.payload_bytes)):
            yield row.fault(FaultCode.REPORTED_RATE_ODD)
        if busbw is not None and (algbw is None or not _same(busbw, algbw * (row.record.bus_factor or 0.0))):
            yield row.fault(FaultCode.REPORTED_BUSBW_ODD)


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_CLOSE)


def _averages(run: PublishedRun) -> Iterator[GateFault]:
    """Check rule 4: no rate and no ratio is an average of rates or ratios."""
    for row, name, _ in run.reported():
        if _AVERAGED_RATE.search(name.lower()):
            yield row.fault(FaultCode.REPORTED_AVERAGE_OF_RATES, statistic=name)


def _intervals(run: PublishedRun) -> Iterator[GateFault]:
    """Check rule 5.

    Each measured figure must have an interval with level, method, n and n_eff. Each modelled figure must be marked.
    """
    for job, header in run.measured():
        level = header.settings.get("confidence")
        if not isinstance(level, float) or not 0.5 < level < 1:
            yield GateFault(FaultCode.CONFIDENCE_UNKNOWN, job=job)
        if not header.settings.get("ci_method"):
            yield GateFault(FaultCode.INTERVAL_METHOD_UNKNOWN, job=job)
    for row in run.rows:
        shown = row.summary
        if shown.modelled != row.header.modelled:
            yield row.fault(FaultCode.MODELLED_UNMARKED)
        elif shown.median_s is not None and not shown.modelled:
            if not shown.num_samples or shown.num_effective is None:
                yield row.fault(FaultCode.SAMPLE_COUNT_UNKNOWN)
            if (shown.ci_low_s is None or shown.ci_high_s is None) and Flag.FEW_SAMPLES not in shown.flags:
                yield row.fault(FaultCode.INTERVAL_UNEXPLAINED)
    launches = {header.launch for _, header in run.measured()}
    if len(launches) > 1 and not run.run.document.spreads:
        yield GateFault(FaultCode.SPREAD_UNKNOWN, {"num_launches": len(launches)})


def _no_normality(run: PublishedRun) -> Iterator[GateFault]:
    """Check rule 6.

    Intervals must be computed by methods that assume no distribution. No standard deviation may replace an interval.
    """
    for job, header in run.measured():
        method = header.settings.get("ci_method")
        if method and not _METHODS.match(str(method)):
            yield GateFault(FaultCode.INTERVAL_METHOD_NORMAL, {"method": str(method)}, job)
    for row, name, _ in run.reported():
        if _SPREAD_ALONE.search(name.lower()):
            yield row.fault(FaultCode.REPORTED_SPREAD_ALONE, statistic=name)


def _verdicts(run: PublishedRun) -> Iterator[GateFault]:
    """Check rule 7, the rule about comparisons. A single run compares nothing, so it always follows this rule."""
    yield from ()


def _tails(run: PublishedRun) -> Iterator[GateFault]:
    """Check rule 8: percentiles are given only where n is large enough."""
    for row, name, _ in run.reported():
        quantile = _quantile(name)
        least = 0 if quantile is None else stats.least_samples(quantile)
        num_samples = (row.record.reported or {}).get("num_samples", 0)
        if num_samples < least:
            facts = {"statistic": name, "num_samples": num_samples, "least": least}
            yield row.fault(FaultCode.REPORTED_TAIL_UNKNOWN, **facts)


def _quantile(name: str) -> float | None:
    """Return the quantile that a statistic's name states: 0.99 for `p99_s`, 0.999 for `p99_9_s`.

    Return None for the median, and for a name that is not a percentile.
    """
    match = _PERCENTILE.search(name.lower())
    return float(f"0.{match[1]}{match[2]}") if match and match[1] not in ("00", "50") else None


def _environment(run: PublishedRun) -> Iterator[GateFault]:
    """Check rule 9: hardware, software, environment, hosts, seed, start and end are recorded."""
    for job, header, _ in run.run.attempts:
        for what in _missing_facts(header):
            yield GateFault(FaultCode.NOT_RECORDED, {"what": what}, job)
    if run.run.plan is None:
        return
    if not run.run.plan.get("scenario_text"):
        yield GateFault(FaultCode.NOT_RECORDED, {"what": "the scenario, word for word (plan.json: scenario_text)"})
    for name in dict.fromkeys(_launch(job) for job, _, _ in run.run.attempts):
        if run.run.outcomes.get(name, {}).get("seconds") is None:
            yield GateFault(FaultCode.NOT_RECORDED, {"what": "when it ended (outcomes.json: seconds)"}, name)


def _missing_facts(header: Header) -> Iterator[str]:
    versions = {
        "commit": header.versions.get("source"),
        **header.versions,
    }  # without git, `source` identifies the files
    for name in _VERSIONS:
        if not versions.get(name):
            yield f"versions.{name}"
    if not header.started:
        yield "when it began (started)"
    if header.facts.get("tool"):  # another tool ran with the hosts and library of our jobs in the same run
        return
    if header.settings.get("seed") is None:
        yield "the seed of the data (settings.seed)"
    if header.modelled:
        if not header.links:
            yield "the links that it was modelled on (links)"
        return
    yield from _missing_of_ranks(header)


def _missing_of_ranks(header: Header) -> Iterator[str]:
    """Name the required facts that a measured job did not record, about the library, the launcher, hosts and ranks."""
    library = traits(header.transport)
    for name in library.required_versions:
        if not header.versions.get(name):
            yield f"versions.{name}"
    for name in library.required_facts:
        if not header.facts.get(name):
            yield f"facts.{name}"
    if not header.settings.get("launcher"):
        yield "what started the ranks (settings.launcher)"
    if len(header.nodes) != header.num_nodes:
        yield f"the facts of each of {header.num_nodes} hosts (nodes)"
    yield from _missing_hardware(header)
    if len(header.ranks) != header.num_ranks or not all(rank.get("host") and rank.get("cpus") for rank in header.ranks):
        yield "the host and the CPU mask of each rank (ranks)"


def _missing_hardware(header: Header) -> Iterator[str]:
    for host, facts in header.nodes.items():
        yield from (f"nodes.{host}.{key}" for key in _NODE_KEYS if key not in facts)
        gpus: list[Mapping[str, Any]] = list(facts.get("gpus") or ())
        if traits(header.transport).on_gpu and not gpus:
            yield f"nodes.{host}.gpus, although the bytes moved between GPUs"
        for gpu in gpus:
            yield from (f"nodes.{host}.gpus[{gpu.get('index')}].{key}" for key in _GPU_KEYS if key not in gpu)


def _timing(run: PublishedRun) -> Iterator[GateFault]:
    """Check rule 10.

    Each job must record the mode, the clock, the synchronisation and its skew, the reductions, the calls per sample,
    the warm-up and the cache state.
    """
    for job, header in run.measured():
        if not header.clock:
            yield GateFault(FaultCode.NOT_RECORDED, {"what": "the clock"}, job)
        for key in _TIMING_SETTINGS:
            if not header.settings.get(key):
                yield GateFault(FaultCode.NOT_RECORDED, {"what": f"settings.{key}"}, job)
        if _has_no_skew(header):
            what = f"how far apart ranks start (calibration.{_SKEW}, .{_SKEW_TAILS[0]} or .{_SKEW_TAILS[1]})"
            yield GateFault(FaultCode.NOT_RECORDED, {"what": what}, job)
    for row in run.timed():
        if row.record.samples is not None:
            yield from _timing_of_row(row, row.record.samples)


def _timing_of_row(row: PublishedRow, samples: Samples) -> Iterator[GateFault]:
    record = row.record
    if record.mode not in ("isolated", "pipelined"):
        yield row.fault(FaultCode.MODE_ODD, mode=record.mode)
    if samples.calls_per_sample < 1 or (record.mode == "isolated" and samples.calls_per_sample != 1):
        yield row.fault(FaultCode.CALLS_PER_SAMPLE_ODD, num_calls=samples.calls_per_sample, mode=record.mode)
    if not samples.loop:
        yield row.fault(FaultCode.NOT_RECORDED, what="what took the samples (loop)")
    if not samples.warmup:
        yield row.fault(FaultCode.NOT_RECORDED, what="the warm-up before the samples")
    knows_cache = any(facts.get("last_level_cache_bytes") for facts in row.header.nodes.values())
    if knows_cache and record.cache not in ("hot", "cold"):
        yield row.fault(FaultCode.NOT_RECORDED, what="whether this row's buffers were hot or cold")


def _has_no_skew(header: Header) -> bool:
    """Check whether a job did not record its start skew, although it could measure the skew.

    A job can measure the skew under two conditions: it synchronises its ranks, and its operations complete on the host.
    """
    if known(header.num_ranks) < 2 or header.clock != "host" or header.settings.get("sync") == "none":
        return False
    skew = header.calibration
    return skew.get(_SKEW) is None or all(skew.get(tail) is None for tail in _SKEW_TAILS)


def _bounds(run: PublishedRun) -> Iterator[GateFault]:
    """Check rule 11: each bandwidth has a bound, or a reason why none is known (calibration.no_bound_because)."""
    for row in run.rows:
        shown = row.summary
        if shown.busbw_bytes_per_s is None or row.record.samples is None:
            continue
        has_bound = shown.bound_bytes_per_s is not None and shown.bound_name
        if not has_bound and not row.header.calibration.get("no_bound_because"):
            yield row.fault(FaultCode.BOUND_UNEXPLAINED)


def _plots(run: PublishedRun) -> Iterator[GateFault]:
    """Check rule 12: each row states why its sampling stopped, and each plotted line has one point per size."""
    curves: dict[tuple[str, str, str], list[Summary]] = {}
    for row in run.rows:
        shown = row.summary
        if row.record.samples is None or shown.median_s is None:
            continue
        if not shown.stop_reason:
            yield row.fault(FaultCode.STOP_REASON_UNKNOWN)
        curves.setdefault((row.job, shown.mode, shown.group), []).append(shown)
    for (job, mode, group), rows in curves.items():
        sizes = [row.payload_bytes for row in rows]
        twice = next((size for size in sizes if sizes.count(size) > 1), None)
        if twice is not None:
            yield GateFault(FaultCode.SIZE_TWICE, {}, job, rows[0].pattern, mode, twice, group)


def _convergence(run: PublishedRun) -> Iterator[GateFault]:
    """Check rule 13: at least half of the measured figures have converged."""
    rows = [row.summary for row in run.timed()]
    num_open = sum(map(is_open, rows))
    if num_open > MOST_OPEN * len(rows):
        facts = {"num_converged": len(rows) - num_open, "of": len(rows)}
        yield GateFault(FaultCode.MOST_NOT_CONVERGED, facts)


def _consistency(run: PublishedRun) -> Iterator[GateFault]:
    """Check rule 14: no two rows of the run contradict each other."""
    for conflict in run.run.document.conflicts:
        yield GateFault(FaultCode.ROWS_CONTRADICT, {"sentence": conflict.sentence, "code": conflict.code})


def _quiet(run: PublishedRun) -> Iterator[GateFault]:
    """Check rule 15: no other programs used the hosts while the rows were timed."""
    busy = busy_run(run.run.document)
    if busy.matters:
        yield GateFault(FaultCode.BUSY_MACHINE, busy.facts())


# For each rule, the data that it looks at, and the function that checks it.
CHECKS: Mapping[PublicationRule, tuple[str, Callable[[PublishedRun], Iterator[GateFault]]]] = {
    PublicationRule.RATIOS: ("rows", _ratios),
    PublicationRule.COMPLETENESS: ("run", _completeness),
    PublicationRule.RATES: ("rows", _rates),
    PublicationRule.AVERAGES: ("rows", _averages),
    PublicationRule.INTERVALS: ("rows", _intervals),
    PublicationRule.NO_NORMALITY: ("timed rows", _no_normality),
    PublicationRule.VERDICTS: ("rows", _verdicts),
    PublicationRule.TAILS: ("timed rows", _tails),
    PublicationRule.ENVIRONMENT: ("run", _environment),
    PublicationRule.TIMING: ("timed rows", _timing),
    PublicationRule.BOUNDS: ("rows", _bounds),
    PublicationRule.PLOTS: ("rows", _plots),
    PublicationRule.CONVERGENCE: ("timed rows", _convergence),
    PublicationRule.CONSISTENCY: ("rows", _consistency),
    PublicationRule.QUIET: (_HOSTS, _quiet),
}
