"""The rules about figures: each is computed again from the raw samples, and held to what its name promises."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.core.record import LIMIT_REACHED, Flag
from bench.gate.lint_input import LintInput, LintRow, RuleOffence, same
from bench.results import flops, stats
from bench.results.document import Document, Summary
from bench.results.summary import clock_limited

# What the words of another tool's statistics, or of a note, claim.
_RATIO = re.compile(r"speed_?up|ratio|fraction|efficiency|percent|_pct\b|of_peak|relative")
_AVERAGED_RATE = re.compile(
    r"(avg|average|mean|geo_?mean).*(bus_?bw|alg_?bw|bandwidth|bytes_per_s|fraction|ratio|speed_?up|percent|of_peak)"
    r"|(bus_?bw|alg_?bw|bandwidth|fraction|ratio|speed_?up|of_peak).*_(avg|average|mean)\b"
)
_SPREAD_ALONE = re.compile(r"(^|_)(sd|std|stdev|stddev|sigma|variance|var|stderr|sem|cv)(_|$)")
_PERCENTILE = re.compile(r"(?:^|_)p(\d{2})_?(\d*)(?:_|$)")
_AVERAGED_WORDS = re.compile(
    r"\b(avg|average|mean)\b.{0,24}\b(bus|bus ?bw|alg ?bw|bandwidth|speed-?up|of peak)\b", re.I
)
_SPREAD_WORDS = re.compile(r"±|\+/-|\bstandard (deviation|error)\b|\bst(d|dev)\b", re.I)
_VERDICT_WORDS = re.compile(
    r"\b(faster|slower|better|worse) than\b|\d\s*(%|x|times) (faster|slower|better|worse)\b"
    r"|\bspeed-?up of\b|\b(significantly|verdict:?) (faster|slower)\b|\bregress(ed|ion)\b",
    re.I,
)

# Intervals that assume no distribution: order statistics, block bootstrap, t on the logarithms of launch medians.
_METHODS = re.compile(r"^(order[- ]statistics?|block[- ]bootstrap|bootstrap over launches|log[- ]welch)\b", re.I)
_ITERATION_REDUCTIONS = ("median", "arithmetic mean")  # of times
_LEAST_LAUNCHES_FOR_AN_INTERVAL = 3  # below, the spread of launches is nearly unknown


def ratios_have_bases(run: LintInput) -> Iterator[RuleOffence]:
    """Rule 1: beside each ratio stand the two values that it is of, and they give it."""
    for row in run.rows:
        shown = row.summary
        of_bound = _ratio(shown.busbw_bytes_per_s, shown.bound_bytes_per_s) if shown.bound_name else None
        if shown.bound_fraction is not None and not same(shown.bound_fraction, of_bound):
            yield row.fault("the fraction of a bound is not that of the bandwidth and the bound beside it")
        if shown.rotation is not None and shown.verified is not False and not _rotates(row):
            yield row.fault("the rotation is not the mean of the slowest rank's times by the largest mean beside it")
    for row, name, _ in run.reported():
        if _RATIO.search(name.lower()):
            yield row.fault(f"another tool's {name} is a ratio without the two values that it is of")
    yield from _bases_of_comparisons(run.document)


def _bases_of_comparisons(document: Document) -> Iterator[RuleOffence]:
    for parity in document.parities:
        if not (parity.ours_s > 0 and parity.theirs_s > 0 and parity.tool):
            what = f"the ratio to {parity.tool or 'another tool'} stands without both times"
            yield RuleOffence(what, payload_bytes=parity.payload_bytes)
    for conflict in document.conflicts:
        if not conflict.first.get("median_s") or not conflict.second.get("median_s"):
            yield RuleOffence(f"the conflict {conflict.rule!r} does not name both times")


def _rotates(row: LintRow) -> bool:
    """Rotation x largest mean of a rank = mean of the slowest ranks' times."""
    samples, largest_s = row.record.samples, row.summary.compat.get("osu_max_s")
    if samples is None or not largest_s or row.summary.rotation is None:
        return False
    return same(row.summary.rotation * largest_s, sum(samples.seconds) / len(samples.seconds))


def rates_are_bytes_by_time(run: LintInput) -> Iterator[RuleOffence]:
    """Rule 3: times are medians (or arithmetic means), and a rate is all bytes by all time."""
    for job, header in run.measured:
        reduction = header.settings.get("iteration_reduction")
        if reduction is not None and reduction not in _ITERATION_REDUCTIONS:
            yield RuleOffence(f"the samples were reduced by {reduction!r}, which no time is", job)
    for row in run.rows:
        if row.record.samples is not None:
            yield from _recomputed(row)
        elif row.record.reported is not None:
            yield from _reported_rates(row)


def _recomputed(row: LintRow) -> Iterator[RuleOffence]:
    samples, shown, factor = row.record.samples, row.summary, row.record.bus_factor
    assert samples is not None
    if not stats.usable(samples.seconds):
        return
    middle = stats.median(samples.seconds)
    if not same(shown.median_s, middle):
        yield row.fault("the time shown is not the median of the samples")
    exact = shown.verified is not False and not clock_limited(row.record.clock_bound_s, middle)
    moved = row.record.payload_bytes if row.header.pattern != flops.PATTERN else 0
    algbw = moved / middle if moved and exact else None
    if not same(shown.algbw_bytes_per_s, algbw):
        yield row.fault("algbw is not the payload by the median time")
    if not same(shown.busbw_bytes_per_s, algbw * factor if algbw and factor else None):
        yield row.fault("busbw is not algbw times the bus factor")
    rate = flops.rate(row.header, row.record.payload_bytes, middle) if shown.verified is not False else None
    if not same(shown.flops_per_s, rate):
        yield row.fault("the rate of products is not their operations by the median time")
    by_rank = samples.by_rank
    mean_rate = shown.compat.get("nccl_tests_algbw_bytes_per_s")
    if mean_rate is not None and by_rank:
        num_samples = sum(len(shares) for shares in by_rank)
        if not same(mean_rate, row.record.payload_bytes * num_samples / sum(map(sum, by_rank))):
            yield row.fault("the mean rate is not all bytes by all time")


def _reported_rates(row: LintRow) -> Iterator[RuleOffence]:
    reported = row.record.reported or {}
    seconds = reported.get("mean_s", reported.get("median_s"))
    algbw, busbw = reported.get("algbw_bytes_per_s"), reported.get("busbw_bytes_per_s")
    if algbw is not None and (seconds is None or not same(algbw * seconds, row.record.payload_bytes)):
        yield row.fault("another tool's rate is not all bytes by the time that stands beside it")
    if busbw is not None and (algbw is None or not same(busbw, algbw * (row.record.bus_factor or 0.0))):
        yield row.fault("another tool's busbw is not its algbw times the bus factor")


def ratios_are_not_averaged(run: LintInput) -> Iterator[RuleOffence]:
    """Rule 4: no average of rates, fractions or speedups anywhere but in `compat`."""
    for row, name, _ in run.reported():
        if _AVERAGED_RATE.search(name.lower()):
            yield row.fault(f"{name} averages rates or ratios: average times, or total bytes by total time")
    for job, header, _ in run.told:
        for name in (*header.calibration, *header.facts):
            if _AVERAGED_RATE.search(name.lower()):
                yield RuleOffence(f"{name} averages rates or ratios", job)
    yield from _told(run, _AVERAGED_WORDS, "an average of rates is told")


def figures_have_intervals(run: LintInput) -> Iterator[RuleOffence]:
    """Rule 5: a measured figure has its interval with level, method, n, n_eff and launch; a modelled one is marked."""
    for job, header in run.measured:
        level = header.settings.get("confidence")
        if not isinstance(level, float) or not 0.5 < level < 1:
            yield RuleOffence("the header does not say the confidence of the intervals (settings.confidence)", job)
        if not header.settings.get("ci_method"):
            yield RuleOffence("the header does not say how the intervals were made (settings.ci_method)", job)
    for row in run.rows:
        shown = row.summary
        if shown.modelled or row.header.modelled:
            if not (shown.modelled and row.header.modelled and Flag.MODELLED in shown.flags):
                yield row.fault("a modelled figure is not marked as one")
        elif shown.median_s is not None:
            yield from _interval_faults(row)
    launches = {header.launch for _, header in run.measured}
    if len(launches) > 1 and not run.document.spreads:
        yield RuleOffence(f"there are {len(launches)} launches, and nothing is said of the spread between them")


def _interval_faults(row: LintRow) -> Iterator[RuleOffence]:
    shown, samples = row.summary, row.record.samples
    if not shown.num_samples or shown.num_effective is None:
        yield row.fault("the number of samples, or of independent ones, is not told")
    found, bound_s = stats.interval(samples.seconds) if samples else None, row.record.clock_bound_s
    if found and bound_s:
        found = max(0.0, found[0] - bound_s), found[1] + bound_s
    told = None if shown.ci_low_s is None or shown.ci_high_s is None else (shown.ci_low_s, shown.ci_high_s)
    if told is None and Flag.FEW_SAMPLES not in shown.flags:
        yield row.fault("a figure stands without its interval, and nothing says why")
    elif samples and told != found:
        yield row.fault("the interval is not that of the order statistics of the samples")


def no_normal_distribution(run: LintInput) -> Iterator[RuleOffence]:
    """Rule 6: intervals by methods that assume no distribution; no standard deviation stands for one."""
    for job, header in run.measured:
        method = header.settings.get("ci_method")
        if method and not _METHODS.match(str(method)):
            yield RuleOffence(f"the intervals were made by {str(method)!r}, which assumes a distribution", job)
    for row, name, _ in run.reported():
        if _SPREAD_ALONE.search(name.lower()):
            yield row.fault(f"{name}: a spread around a mean says nothing about skewed times")
    yield from _told(run, _SPREAD_WORDS, "a spread around a mean is told")


def verdicts_are_earned(run: LintInput) -> Iterator[RuleOffence]:
    """Rule 7: faster and slower are said by `bench compare` only; intervals over launches need launches."""
    yield from _told(run, _VERDICT_WORDS, "not comparable: a verdict without launches, test, p and interval is told")
    for spread in run.document.spreads:
        if spread.ci_low_s is not None and spread.num_launches < _LEAST_LAUNCHES_FOR_AN_INTERVAL:
            yield RuleOffence(
                f"an interval over {spread.num_launches} launches",
                spread.job,
                spread.mode,
                spread.payload_bytes,
                spread.group,
            )
    for parity in run.document.parities:
        if parity.ratio_low is not None and parity.num_launches < _LEAST_LAUNCHES_FOR_AN_INTERVAL:
            yield RuleOffence(
                f"the ratio to {parity.tool} has an interval over {parity.num_launches} launches",
                payload_bytes=parity.payload_bytes,
            )


def tails_are_known(run: LintInput) -> Iterator[RuleOffence]:
    """Rule 8: percentiles where n allows them and nowhere else; the worst case beside every isolated time."""
    for row in run.timed:
        shown, samples = row.summary, row.record.samples
        assert samples is not None
        for name, quantile, value in (("p95", 0.95, shown.p95_s), ("p99", 0.99, shown.p99_s)):
            if value is not None and shown.num_samples < _least(quantile):
                yield row.fault(f"{name} is shown of {shown.num_samples} samples, it takes {_least(quantile)}")
            elif value != stats.percentile(samples.seconds, quantile):
                yield row.fault(f"{name} is not the value of nearest rank of the samples")
        if row.record.mode == "isolated" and shown.max_s != max(samples.seconds):
            yield row.fault("the worst case is not shown beside an isolated time")
    for row, name, _ in run.reported():
        least = _least(_quantile(name))
        num_samples = (row.record.reported or {}).get("num_samples", 0)
        if num_samples < least:
            yield row.fault(f"another tool's {name} is of {num_samples:.0f} samples, it takes {least}")


def _quantile(name: str) -> float | None:
    """0.99 of `p99_s`, 0.999 of `p99_9_s`; None for a name that is no percentile, or the median."""
    match = _PERCENTILE.search(name.lower())
    return float(f"0.{match[1]}{match[2]}") if match and match[1] not in ("00", "50") else None


def _least(quantile: float | None) -> int:
    return 0 if quantile is None else stats.least_samples(quantile)


def points_can_be_drawn(run: LintInput) -> Iterator[RuleOffence]:
    """Rule 12: each point has raw samples behind it, says why sampling ended, and is hollow where it was too early.

    What figures make of that (bars, axes, hollow points) is their code's, and is held by the tests of figures.
    """
    for row in run.rows:
        shown, samples = row.summary, row.record.samples
        if samples is None or shown.median_s is None:
            continue
        if len(samples.seconds) != shown.num_samples:
            yield row.fault("the samples behind the point are not kept")
        if not shown.stop_reason:
            yield row.fault("it is not told why sampling ended, so that a point can not be drawn hollow")
        elif (shown.stop_reason in LIMIT_REACHED) is not (Flag.NOT_CONVERGED in shown.flags):
            yield row.fault("a point that did not converge is not marked as one")
    for key, rows in _curves(run).items():
        sizes = [row.payload_bytes for row in rows]
        if len(set(sizes)) < len(sizes):
            twice = next(size for size in sizes if sizes.count(size) > 1)
            yield RuleOffence("one line would be drawn through two points of one size", key[0], key[1], twice, key[2])


def _curves(run: LintInput) -> dict[tuple[str, str, str], list[Summary]]:
    curves: dict[tuple[str, str, str], list[Summary]] = {}
    for row in run.rows:
        if row.summary.median_s is not None and row.record.samples is not None:
            curves.setdefault((row.job, row.summary.mode, row.summary.group), []).append(row.summary)
    return curves


def _told(run: LintInput, words: re.Pattern[str], what: str) -> Iterator[RuleOffence]:
    """Sentences beside the figures that say what no figure may."""
    for text, job, row in run.texts():
        if words.search(text):
            sentence = f"{what}: {text!r}"
            yield row.fault(sentence) if row else RuleOffence(sentence, job)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
