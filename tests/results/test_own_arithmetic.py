"""The suite's own arithmetic: every figure of a document, computed again from the raw samples.

These are the parts of the twelve rules (docs/metrics.md) that a stored run cannot break, because its document is
derived from its records: `offences` finds them, and must find each edit of a document.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.record import LIMIT_REACHED, Flag, Header, Record, Samples
from bench.hardware.bounds import bounds_of
from bench.results import flops, stats, summary
from bench.results.compared_rows import Parity
from bench.results.document import Document, Spread, Summary
from bench.results.summary import BOUND_TOLERANCE, clock_limited
from bench.store import jsonl, runs
from tests.gate import gate_runs

ROOT = Path(__file__).resolve().parent.parent.parent
[REFERENCE] = (ROOT / "results" / "reference").glob("main_*")
JOB = "allreduce-mpi-1x2"
LEAST_LAUNCHES = 3  # for an interval over launches
Job = tuple[str, Header, Sequence[Record]]
# Claims that the notes and flags of a run may not make.
CLAIMS = {
    4: re.compile(r"\b(avg|average|mean)\b.{0,24}\b(bus|bus ?bw|alg ?bw|bandwidth|speed-?up|of peak)\b", re.I),
    6: re.compile(r"±|\+/-|\bstandard (deviation|error)\b|\bst(d|dev)\b", re.I),
    7: re.compile(
        r"\b(faster|slower|better|worse) than\b|\d\s*(%|x|times) (faster|slower|better|worse)\b"
        r"|\bspeed-?up of\b|\b(significantly|verdict:?) (faster|slower)\b|\bregress(ed|ion)\b",
        re.I,
    ),
}


def same(one: float | None, other: float | None) -> bool:
    """Are two figures equal but for the rounding of a few operations, or both unknown?"""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-9)


def offences(document: Document, jobs: Sequence[Job]) -> Iterator[tuple[int, Summary | None]]:
    """(rule, row) of each figure that does not follow from the records; row None for the document as a whole."""
    shown: dict[str, list[Summary]] = {}
    for row in document.summaries:
        shown.setdefault(row.job, []).append(row)
    for job, header, records in jobs:
        measured = [record for record in records if record.skipped is None and record.failed is None]
        if len(shown.get(job, [])) != len(measured):
            yield 2, None
        for record, row in zip(measured, shown.get(job, []), strict=False):
            if place(record) != place(row):
                yield 2, row
            elif record.samples is not None and stats.usable(record.samples.seconds):
                yield from ((rule, row) for rule in of_row(header, record, record.samples, row))
    yield from ((rule, None) for rule in of_comparisons(document))


def place(row: Record | Summary) -> tuple[Any, ...]:
    return row.mode, row.payload_bytes, row.group, row.src, row.dst


def of_row(header: Header, record: Record, samples: Samples, row: Summary) -> Iterator[int]:
    """The rules that one row breaks."""
    middle = stats.median(samples.seconds)
    yield from of_ratios(samples, row)
    yield from of_rates(header, record, samples, row)
    interval = stats.interval(samples.seconds)
    if interval and record.clock_bound_s:
        interval = max(0.0, interval[0] - record.clock_bound_s), interval[1] + record.clock_bound_s
    shown = None if row.ci_low_s is None or row.ci_high_s is None else (row.ci_low_s, row.ci_high_s)
    if not row.modelled and (shown != interval or row.num_effective is None or not row.num_samples):
        yield 5
    for quantile, value in ((0.95, row.p95_s), (0.99, row.p99_s)):
        known = row.num_samples >= stats.least_samples(quantile)
        if not row.modelled and value != (stats.percentile(samples.seconds, quantile) if known else None):
            yield 8
    if not row.modelled and record.mode == "isolated" and row.max_s != max(samples.seconds):
        yield 8
    yield from of_bound(header, record, row)
    early = row.stop_reason in LIMIT_REACHED
    if len(samples.seconds) != row.num_samples or not row.stop_reason or early is not (Flag.NOT_CONVERGED in row.flags):
        yield 12
    if not same(row.median_s, middle):
        yield 3


def of_ratios(samples: Samples, row: Summary) -> Iterator[int]:
    of_bound_ = None
    if row.busbw_bytes_per_s is not None and row.bound_bytes_per_s and row.bound_name:
        of_bound_ = row.busbw_bytes_per_s / row.bound_bytes_per_s
    if row.bound_fraction is not None and not same(row.bound_fraction, of_bound_):
        yield 1
    if row.rotation is not None and row.verified is not False:
        largest_s = row.compat.get("osu_max_s")
        mean_s = sum(samples.seconds) / len(samples.seconds)
        if not largest_s or not same(row.rotation * largest_s, mean_s):
            yield 1


def of_rates(header: Header, record: Record, samples: Samples, row: Summary) -> Iterator[int]:
    middle, factor = stats.median(samples.seconds), record.bus_factor
    exact = row.verified is not False and not clock_limited(record.clock_bound_s, middle)
    moved = record.payload_bytes if header.pattern != flops.PATTERN else 0
    algbw = moved / middle if moved and exact else None
    if not same(row.algbw_bytes_per_s, algbw):
        yield 3
    if not same(row.busbw_bytes_per_s, algbw * factor if algbw and factor else None):
        yield 3
    rate = flops.rate(header, record.payload_bytes, middle) if row.verified is not False else None
    if not same(row.flops_per_s, rate):
        yield 3
    mean_rate = row.compat.get("nccl_tests_algbw_bytes_per_s")
    if mean_rate is not None and samples.by_rank:
        num_samples = sum(map(len, samples.by_rank))
        if not same(mean_rate, record.payload_bytes * num_samples / sum(map(sum, samples.by_rank))):
            yield 3


def of_bound(header: Header, record: Record, row: Summary) -> Iterator[int]:
    if row.busbw_bytes_per_s is None or row.bound_bytes_per_s is None or not row.bound_name:
        return
    known = [bound for bound in bounds_of(header, record) if bound.name == row.bound_name]
    if not any(bound.why and bound.source for bound in known):
        yield 11
    above = row.busbw_bytes_per_s > row.bound_bytes_per_s * (1 + BOUND_TOLERANCE)
    if above and row.bound_kind == "hard" and Flag.ABOVE_BOUND not in row.flags:
        yield 11


def of_comparisons(document: Document) -> Iterator[int]:
    """Ratios to other tools and rows have both values; intervals over launches have enough launches."""
    for parity in document.parities:
        if not (parity.ours_s > 0 and parity.theirs_s > 0 and parity.tool):
            yield 1
        if parity.ratio_low is not None and parity.num_launches < LEAST_LAUNCHES:
            yield 7
    for conflict in document.conflicts:
        if not conflict.first.get("median_s") or not conflict.second.get("median_s"):
            yield 1
    for spread in document.spreads:
        if spread.ci_low_s is not None and spread.num_launches < LEAST_LAUNCHES:
            yield 7


@cache
def reference() -> tuple[Job, ...]:
    """The stored reference run."""
    attempts, _ = runs.attempts(REFERENCE)
    return tuple((job, attempt.header, tuple(attempt.records)) for job, attempt in attempts)


@cache
def measured() -> Job:
    """One real job of it."""
    [attempt] = jsonl.read(REFERENCE / f"{JOB}.jsonl").attempts
    return JOB, attempt.header, tuple(attempt.records)


@pytest.fixture
def document() -> Document:
    return summary.document([measured()])


def edited(document: Document, choose: Callable[[Summary], bool], **changed: Any) -> Document:
    """The document with the first chosen row changed."""
    rows = list(document.summaries)
    index = next(index for index, row in enumerate(rows) if choose(row))
    rows[index] = replace(rows[index], **changed)
    return replace(document, summaries=tuple(rows))


def isolated(row: Summary) -> bool:
    return row.mode == "isolated"


def pipelined(row: Summary) -> bool:
    return row.mode == "pipelined"


def few(row: Summary) -> bool:
    return row.num_samples < 72


def test_every_figure_of_the_reference_run_follows_from_its_samples() -> None:
    assert not list(offences(summary.document(reference()), reference()))


@given(
    seconds=st.lists(st.floats(1e-6, 1e-2), min_size=1, max_size=80),
    mode=st.sampled_from(["isolated", "pipelined"]),
    factor=st.sampled_from([None, 1.0, 1.5]),
)
def test_every_figure_of_any_samples_follows_from_them(seconds: list[float], mode: str, factor: float | None) -> None:
    samples = Samples(seconds, loop="compiled")
    record = gate_runs.record(mode, 1 << 20, samples, bus_factor=factor, stop_reason="max_time")
    job = ("job", gate_runs.header(instance=None), (record,))
    assert not list(offences(summary.document([job]), [job]))


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("rule", "choose", "changed"),
    [
        (1, pipelined, {"bound_fraction": 0.99}),
        (1, pipelined, {"bound_bytes_per_s": None, "bound_name": None}),
        (1, isolated, {"rotation": 3.0}),
        (2, isolated, {"payload_bytes": 12345}),
        (3, isolated, {"median_s": 1e-9}),
        (3, pipelined, {"busbw_bytes_per_s": 1e12}),
        (3, pipelined, {"compat": {"osu_max_s": 1.0, "nccl_tests_algbw_bytes_per_s": 1.0}}),
        (5, isolated, {"ci_low_s": None}),
        (5, isolated, {"ci_high_s": 1.0}),
        (5, isolated, {"num_effective": None}),
        (8, few, {"p95_s": 1e-3}),
        (8, isolated, {"max_s": None}),
        (11, pipelined, {"bound_name": "a link that does not exist"}),
        (12, isolated, {"stop_reason": None}),
        (12, isolated, {"stop_reason": "max_n", "flags": ()}),
        (12, isolated, {"num_samples": 100_000}),
    ],
)
def test_an_edited_row_is_found(
    document: Document, rule: int, choose: Callable[[Summary], bool], changed: Mapping[str, Any]
) -> None:
    changed_document = edited(document, choose, **changed)
    row = next(new for new, old in zip(changed_document.summaries, document.summaries, strict=True) if new != old)
    assert (rule, row) in list(offences(changed_document, [measured()]))


def test_a_row_above_a_hard_bound_must_have_its_flag(document: Document) -> None:
    row = next(row for row in document.summaries if pipelined(row))
    low = (row.busbw_bytes_per_s or 0.0) / 2
    above: dict[str, Any] = {"bound_bytes_per_s": low, "bound_kind": "hard", "bound_fraction": 2.0}
    rules = [rule for rule, _ in offences(edited(document, pipelined, **above), [measured()])]
    assert rules == [11]
    flagged = edited(document, pipelined, **above, flags=(*row.flags, "above-bound"))
    assert not list(offences(flagged, [measured()]))


def test_a_row_missing_from_the_document_is_found(document: Document) -> None:
    assert (2, None) in list(offences(replace(document, summaries=document.summaries[:-1]), [measured()]))


def test_an_interval_over_launches_needs_three() -> None:
    job, header, records = measured()
    jobs = [(job, header, records), ("again", replace(header, launch=2), records)]
    document = summary.document(jobs)
    assert document.spreads and not list(offences(document, jobs))
    early = [replace(document.spreads[0], ci_low_s=9e-7, ci_high_s=2e-6)]
    assert isinstance(early[0], Spread)
    assert [rule for rule, _ in offences(replace(document, spreads=tuple(early)), jobs)] == [7]


def test_a_ratio_to_another_tool_needs_both_times_and_launches(document: Document) -> None:
    parity = Parity("osu", "allreduce", 8, 2e-6, 2e-6, 1.0, None, None, 1)
    without_time = replace(parity, theirs_s=0.0)
    early = replace(parity, ratio_low=0.9, ratio_high=1.1)
    for each, rules in ((parity, []), (without_time, [1]), (early, [7])):
        assert [rule for rule, _ in offences(replace(document, parities=(each,)), [measured()])] == rules


def test_the_notes_and_flags_of_a_run_claim_nothing_that_needs_a_comparison() -> None:
    document = summary.document(reference())
    texts = [
        *(note.text for note in document.notes),
        *(note for header in document.headers.values() for note in header.notes),
    ]
    texts += [flag for row in document.summaries for flag in row.flags]
    assert texts and not [text for text in texts for claim in CLAIMS.values() if claim.search(text)]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (4, "Average bus bandwidth: 3.4 GB/s"),
        (6, "12.1 ± 0.3 us"),
        (7, "NCCL is slower than MPI"),
        (7, "a speedup of 3"),
        (7, "2.5x faster"),
    ],
)
def test_claims_are_recognised(rule: int, words: str) -> None:
    assert [number for number, claim in CLAIMS.items() if claim.search(words)] == [rule]
