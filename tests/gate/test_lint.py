"""The twelve rules on documents: a figure that its raw samples do not give, or that is not marked, is an offence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench.core.codes import Coded
from bench.core.links import NodeLinks
from bench.core.record import Header, Record, Samples
from bench.gate.lint import FAILED, NOT_APPLICABLE, PASSED, RULES, LintFinding, lint
from bench.results import summary
from bench.results.document import Document, Parity, Spread, Summary
from bench.store import jsonl

ROOT = Path(__file__).resolve().parent.parent.parent
[REFERENCE] = (ROOT / "results" / "reference").glob("main_*")
JOB = "allreduce-mpi-1x2"

Make = Callable[..., Any]
Told = tuple[str, Header, tuple[Record, ...]]


@cache
def told() -> Told:
    """A real job, with all that is recorded today."""
    [attempt] = jsonl.read(REFERENCE / f"{JOB}.jsonl").attempts
    header = attempt.header
    settings = {**header.settings, "confidence": 0.95, "ci_method": "order-statistic"}
    calibration = {**header.calibration, "sync_skew_p50_s": 4e-7, "sync_skew_p99_s": 6e-7}
    return JOB, replace(header, settings=settings, calibration=calibration), tuple(attempt.records)


@pytest.fixture
def document() -> Document:
    return summary.document([told()])


def failed(found: tuple[LintFinding, ...]) -> dict[int, LintFinding]:
    return {each.rule: each for each in found if each.status == FAILED}


def edited(document: Document, choose: Callable[[Summary], bool], **changed: Any) -> Document:
    """The document with one row changed, the first that is chosen."""
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


def test_what_was_derived_from_the_records_keeps_every_rule(document: Document) -> None:
    found = lint(document, [told()])
    assert [(each.rule, each.status) for each in found] == [(rule.number, PASSED) for rule in RULES]


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
        (7, isolated, {"flags": ("verdict: faster",)}),
        (8, few, {"p95_s": 1e-3}),
        (8, isolated, {"max_s": None}),
        (11, pipelined, {"bound_name": "a link that is not there"}),
        (12, isolated, {"stop_reason": None}),
        (12, isolated, {"stop_reason": "max_n", "flags": ()}),
        (12, isolated, {"num_samples": 100_000}),
    ],
)
def test_a_row_that_was_edited_is_found_by_its_rule(
    document: Document, rule: int, choose: Callable[[Summary], bool], changed: Mapping[str, Any]
) -> None:
    broken = edited(document, choose, **changed)
    offence = failed(lint(broken, [told()]))[rule]
    row = next(new for new, old in zip(broken.summaries, document.summaries, strict=True) if new != old)
    assert (JOB, row.mode) in {(each["job"], each["mode"]) for each in offence.rows}


def test_a_row_above_a_hard_bound_must_bear_its_mark(document: Document) -> None:
    row = next(row for row in document.summaries if pipelined(row))
    low = (row.busbw_bytes_per_s or 0.0) / 2
    marked: dict[str, Any] = {"bound_bytes_per_s": low, "bound_kind": "hard", "bound_fraction": 2.0}
    assert 11 in failed(lint(edited(document, pipelined, **marked), [told()]))
    flagged = edited(document, pipelined, **marked, flags=(*row.flags, "above-bound"))
    assert 11 not in failed(lint(flagged, [told()]))


def test_a_row_taken_out_of_the_report_is_missed(document: Document) -> None:
    found = failed(lint(replace(document, summaries=document.summaries[:-1]), [told()]))
    assert found[2].sentences == ("the report shows 15 rows of 16 records",)


def test_a_skipped_row_says_why(document: Document) -> None:
    row = {"job": JOB, "mode": "isolated", "payload_bytes": 8, "group": "world", "reason": ""}
    assert failed(lint(replace(document, skipped=(row,)), [told()]))[2].sentences == ("skipped without a reason",)


@pytest.mark.parametrize(("rows", "missing"), [(("0-1", "2-3", "0-2"), ()), ((), ("pipelined",))])
def test_of_a_ladder_only_its_beginning_can_be_asked(
    rows: tuple[str, ...], missing: tuple[str, ...], a_header: Make, a_record: Make
) -> None:
    words = ("pairs", "--transport", "mpi", "--schedule", "ladder", "--sizes", "1K,1M")
    header = a_header(job="a", case=words, pattern="pairs", topology="pairs", num_ranks=4, num_nodes=2)
    records = tuple(a_record(mode="pipelined", group=pair, num_ranks=2, num_nodes=1) for pair in rows)
    job = ("a", header, records)
    found = failed(lint(summary.document([job]), [job], {"jobs": [{"name": "a", "case": list(words)}]}))
    absent = [row for row in found[2].rows if "asked for" in row["what"]] if 2 in found else []
    assert tuple(row["mode"] for row in absent) == missing
    assert all(row["payload_bytes"] == 1 << 20 for row in absent)


def test_how_much_of_a_host_there_is_beside_what_was_used_is_told() -> None:
    job, header, records = told()
    [(host, facts)] = header.nodes.items()
    for unknown in ({"num_cpus": None}, {"gpus": None}):
        each = replace(header, nodes={host: {**facts, **unknown}})
        assert list(failed(lint(summary.document([(job, each, records)]), [(job, each, records)]))) == [2]


def test_a_size_that_a_line_would_pass_twice_is_found() -> None:
    job, header, records = told()
    twice = [(job, header, (*records, records[0]))]
    assert list(failed(lint(summary.document(twice), twice))) == [12]


@pytest.mark.parametrize("key", ["cpu_model", "governor", "memory_bytes", "numa_nodes", "network_ports", "container"])
def test_a_fact_of_a_host_that_was_never_asked_is_missed_and_one_that_is_unknown_is_not(key: str) -> None:
    job, header, records = told()
    [(host, facts)] = header.nodes.items()
    unknown = replace(header, nodes={host: {**facts, key: None}})
    unasked = replace(header, nodes={host: {name: value for name, value in facts.items() if name != key}})
    assert 9 not in failed(lint(summary.document([(job, unknown, records)]), [(job, unknown, records)]))
    found = failed(lint(summary.document([(job, unasked, records)]), [(job, unasked, records)]))
    assert found[9].sentences == (f"not recorded: nodes.{host}.{key}",)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"versions": {"bench": "1", "python": "3", "kernel": "6", "mpi4py": "4"}}, "versions.commit"),
        ({"facts": {"mpi_library": "MPICH"}}, "facts.mpi_thread_level"),
        ({"started": ""}, "when it began (started)"),
        ({"ranks": ()}, "the host and the CPU mask of each rank (ranks)"),
        ({"nodes": {}}, "the facts of each of 1 hosts (nodes)"),
    ],
)
def test_what_a_header_does_not_tell_is_named(changed: dict[str, Any], what: str) -> None:
    job, header, records = told()
    header = replace(header, **changed)
    found = failed(lint(summary.document([(job, header, records)]), [(job, header, records)]))
    assert f"not recorded: {what}" in found[9].sentences


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"warmup": ()}, "not recorded: the warm-up that was left out of the samples"),
        ({"loop": ""}, "not recorded: what took the samples (loop)"),
        ({"calls_per_sample": 64}, "64 calls per sample are not what isolated mode means"),
    ],
)
def test_how_a_rows_samples_were_taken_is_told(changed: dict[str, Any], what: str) -> None:
    job, header, (first, *rest) = told()
    assert first.samples is not None and first.mode == "isolated"
    records = (replace(first, samples=replace(first.samples, **changed)), *rest)
    found = failed(lint(summary.document([(job, header, records)]), [(job, header, records)]))
    assert list(found) == [10] and found[10].sentences == (what,)


def test_the_skew_is_asked_only_of_ranks_that_share_a_clock_and_are_synchronised() -> None:
    job, header, records = told()
    blind = {key: value for key, value in header.calibration.items() if not key.startswith("sync_skew")}
    alone = replace(header, calibration=blind)
    unsynchronised = replace(alone, settings={**header.settings, "sync": "none"})
    for each, breaks in ((alone, True), (unsynchronised, False), (replace(alone, clock="device"), False)):
        found = failed(lint(summary.document([(job, each, records)]), [(job, each, records)]))
        assert (10 in found) is breaks


def test_a_reason_may_stand_in_the_place_of_a_bound() -> None:
    job, header, records = told()
    without = {key: value for key, value in header.calibration.items() if key != "memcpy"}
    for calibration, breaks in ((without, True), ({**without, "no_bound_because": "no link is known"}, False)):
        each = replace(header, calibration=calibration)
        assert (11 in failed(lint(summary.document([(job, each, records)]), [(job, each, records)]))) is breaks


def test_another_tools_report_beside_ours_needs_no_facts_of_its_own(document: Document, a_record: Make) -> None:
    _, header, _ = told()
    of_tool = replace(header, transport="osu", facts={"tool": "osu"}, settings={}, calibration={}, nodes={}, ranks=())
    record = a_record(requested_bytes=(8,), payload_bytes=8, stop_reason=None, reported={"mean_s": 1e-6})
    both = [told(), ("osu", replace(of_tool, case=("osu_allreduce", "-m", "8")), (record,))]
    assert not failed(lint(summary.document(both), both))


def test_several_launches_must_tell_their_spread_and_an_interval_takes_three() -> None:
    job, header, records = told()
    both = [(job, header, records), ("again", replace(header, launch=2), records)]
    plain = summary.document(both)
    spread = Spread(
        JOB,
        (JOB, "again"),
        "allreduce",
        "mpi",
        "isolated",
        "world",
        None,
        None,
        8,
        2,
        1e-6,
        None,
        None,
        9e-7,
        2e-6,
        0.01,
        0.02,
    )
    assert 5 in failed(lint(replace(plain, spreads=()), both))
    assert not failed(lint(replace(plain, spreads=(spread,)), both))
    early = replace(plain, spreads=(replace(spread, ci_low_s=9e-7, ci_high_s=2e-6),))
    assert failed(lint(early, both))[7].sentences == ("an interval over 2 launches",)


def test_a_ratio_to_another_tool_needs_both_times_and_launches(document: Document) -> None:
    parity = Parity("osu", "allreduce", 8, 2e-6, 2e-6, 1.0, None, None, 1)
    assert not failed(lint(replace(document, parities=(parity,)), [told()]))
    bare = replace(parity, theirs_s=0.0)
    assert list(failed(lint(replace(document, parities=(bare,)), [told()]))) == [1]
    sure = replace(parity, ratio_low=0.9, ratio_high=1.1)
    assert list(failed(lint(replace(document, parities=(sure,)), [told()]))) == [7]


def test_modelled_rows_are_marked_and_have_nothing_to_say_of_timing(a_header: Make, a_record: Make) -> None:
    job, measured, _ = told()
    links = NodeLinks("p4d.24xlarge", 4, "memory").to_dict()
    header = a_header(
        modelled=True,
        clock="virtual",
        case=("allreduce", "--transport", "model", "--sizes", "1M"),
        versions=measured.versions,
        settings={"seed": 1},
        links=links,
    )
    records = tuple(
        a_record(
            mode=mode,
            modelled=True,
            verified=None,
            stop_reason="exact",
            bus_factor=None,
            samples=Samples((1e-4,), loop="virtual"),
        )
        for mode in ("isolated", "pipelined")
    )
    run = [(job, header, records)]
    document = summary.document(run)
    found = {each.rule: each.status for each in lint(document, run)}
    assert {rule for rule, status in found.items() if status == NOT_APPLICABLE} == {6, 8, 10}
    assert set(found.values()) == {PASSED, NOT_APPLICABLE}
    unmarked = replace(document, summaries=tuple(replace(row, modelled=False) for row in document.summaries))
    assert 5 in failed(lint(unmarked, run))


def test_a_run_without_rows_keeps_what_is_about_runs_and_no_more() -> None:
    job, header, _ = told()
    found = {each.rule: each.status for each in lint(summary.document([(job, header, ())]), [(job, header, ())])}
    assert found[2] == FAILED and found[9] == PASSED and found[3] == NOT_APPLICABLE


def test_our_own_words_claim_nothing_that_a_rule_forbids(document: Document) -> None:
    words = (
        "oversubscribed: 16 ranks share 2 CPUs, so times include waiting for a CPU",
        "timed by a Python loop (no compiler): about half a microsecond of Python is in every MPI call",
        "rank 3 was the slowest in more than half of the samples in 5 of 8 rows",
        "times are the slowest rank's; median, 95 % interval of the median within this launch, nearest-rank p95",
    )
    assert not failed(lint(replace(document, notes=tuple(map(Coded.uncoded, words))), [told()]))


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
def test_claims_in_notes_are_found(document: Document, rule: int, words: str) -> None:
    assert list(failed(lint(replace(document, notes=(Coded.uncoded(words),)), [told()]))) == [rule]
