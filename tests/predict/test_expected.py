"""A modelled run shows ideal links and what a real machine is expected to reach, side by side, or why it is unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from bench.core.case_argv import from_argv
from bench.hardware import catalogue
from bench.predict import expected, predict
from bench.rank import modelled
from bench.results import notes, summary
from bench.results.document import Document, Summary
from bench.results.formats import table
from bench.results.headline import headline
from bench.results.messages import HeadlineCode, NoExpectationCode, NoteCode
from bench.results.run_report import RunReport
from bench.results.table import Table

GOLDEN = Path(__file__).with_name("golden_modelled.txt")
GIB = 1 << 30
COLLECTIVES = [pattern for pattern in predict.patterns() if pattern != "barrier"]


@cache
def modelled_run(*cases: str, nodes: int = 1, instance: str = "p4d.24xlarge") -> Document:
    """Return the document of modelled cases, without expectations."""
    runs = []
    for words in cases:
        on = f"--transport model --instance {instance} --nodes {nodes}"
        header, rows = modelled.header_and_rows(from_argv(f"{words} {on}".split()), words.partition(" ")[0])
        runs.append((header.job, header, [record for row in rows for record in row]))
    return summary.document(runs)


def expected_rows(*cases: str, nodes: int = 1, instance: str = "p4d.24xlarge") -> Sequence[Summary]:
    """Return the rows of modelled cases, with expectations."""
    return expected.added(modelled_run(*cases, nodes=nodes, instance=instance)).summaries


@pytest.mark.parametrize(("nodes", "ideal", "least", "most"), [(1, 299.8, 200, 240), (2, 93.7, 50, 85)])
def test_p4d_is_expected_to_reach_less_than_its_links(nodes: int, ideal: float, least: float, most: float) -> None:
    [row] = expected_rows("allreduce --sizes 1G --mode pipelined", nodes=nodes)
    assert row.busbw_bytes_per_s == pytest.approx(ideal * 1e9, rel=1e-3)
    assert least * 1e9 < (row.expected_busbw_bytes_per_s or 0) < most * 1e9
    assert row.expected_basis == "published"


def test_expectations_are_those_of_predict() -> None:
    links = catalogue.node_links("p4d.24xlarge")
    for row in expected_rows("allreduce --sizes 8,1M,1G", nodes=2):
        found = predict.collective("allreduce", row.payload_bytes, links, 2, 8, predict.published())
        assert (row.expected_low_s, row.expected_s, row.expected_high_s) == (found.low_s, found.middle_s, found.high_s)
        rates = predict.busbw("allreduce", row.payload_bytes, 16, found.high_s)
        assert row.expected_busbw_low_bytes_per_s == pytest.approx(rates)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("instance", ["p4d.24xlarge", "p5.48xlarge", "g6e.48xlarge", "p3.16xlarge"])
def test_no_machine_is_expected_to_beat_its_links(instance: str, nodes: int) -> None:
    rows = expected_rows(*[f"{name} --sizes 8K,64M" for name in COLLECTIVES], nodes=nodes, instance=instance)
    assert not [(row.pattern, row.not_expected) for row in rows if row.not_expected == NoExpectationCode.OTHER_WORK]
    compared = [row for row in rows if row.expected_low_s is not None]
    assert all((row.median_s or 0) <= (row.expected_low_s or 0) * 1.001 for row in compared)
    assert all((row.expected_busbw_high_bytes_per_s or 0) <= (row.busbw_bytes_per_s or 0) * 1.001 for row in compared)


@pytest.mark.parametrize(
    ("case", "nodes", "instance", "code"),
    [
        ("pingpong --sizes 1M", 1, "p4d.24xlarge", NoExpectationCode.PATTERN),
        ("allreduce --sizes 1M --topology node", 2, "p4d.24xlarge", NoExpectationCode.PART),
        (
            "allreduce --sizes 1M --aggressor allreduce",
            2,
            "p4d.24xlarge",
            NoExpectationCode.DISTURBED,
        ),
        pytest.param("allreduce --sizes 1M", 4096, "p4d.24xlarge", NoExpectationCode.WORLD, marks=pytest.mark.slow),
    ],
)
def test_a_row_without_an_expectation_has_the_reason(
    case: str, nodes: int, instance: str, code: NoExpectationCode
) -> None:
    rows = expected_rows(case, nodes=nodes, instance=instance)
    assert {row.not_expected for row in rows} == {code}
    assert {row.expected_low_s for row in rows} == {None}


def test_a_row_of_other_work_has_no_expectation() -> None:
    """A setting that `bench predict` does not know may change the work; the ideal times show it."""
    document = modelled_run("allreduce --sizes 1M --mode pipelined")
    [row] = document.summaries
    longer = replace(document, summaries=(replace(row, median_s=3 * (row.median_s or 0)),))
    [found] = expected.added(longer).summaries
    assert found.not_expected == NoExpectationCode.OTHER_WORK and found.expected_low_s is None


def test_measured_rows_have_no_expectation() -> None:
    document = modelled_run("allreduce --sizes 1M")
    measured = replace(document, summaries=tuple(replace(row, modelled=False) for row in document.summaries))
    assert expected.added(measured) is measured


def test_one_note_says_where_there_is_no_expectation_and_why() -> None:
    document = expected.added(modelled_run("allreduce --sizes 1M", "pingpong --sizes 1M", "oneway --sizes 1M"))
    [note] = [note for note in notes.notes(document) if note.code == NoteCode.NOT_EXPECTED]
    assert note.facts["codes"] == {NoExpectationCode.PATTERN: ["pingpong", "oneway"]}
    assert note.facts["num"] == sum(row.pattern != "allreduce" for row in document.summaries)


def test_the_summary_names_both_figures() -> None:
    document = expected.added(modelled_run("allreduce --sizes 8,1G", "pingpong --sizes 8,1G"))
    lines = {line.code: line.facts for line in headline(document)}
    assert HeadlineCode.TRANSPORT not in lines
    both, trust = lines[HeadlineCode.MODELLED_TRANSPORT], lines[HeadlineCode.MODELLED]
    best = next(row for row in document.summaries if row.payload_bytes == GIB and row.mode == "pipelined")
    assert both["busbw_bytes_per_s"] == best.busbw_bytes_per_s, "of a row with an expectation"
    assert both["expected_busbw"] and both["expected_latency"]
    assert (trust["num"], trust["num_expected"], trust["num_without"]) == (8, 4, 4)


def test_the_summary_of_rows_without_an_expectation_has_their_ideal_figures() -> None:
    document = expected.added(modelled_run("pingpong --sizes 8,1G"))
    lines = {line.code: line.facts for line in headline(document)}
    assert lines[HeadlineCode.MODELLED_TRANSPORT]["busbw"]
    assert lines[HeadlineCode.MODELLED_TRANSPORT]["expected_busbw"] is None
    assert not lines[HeadlineCode.MODELLED]["num_expected"]


def test_a_modelled_run_prints_the_golden_page() -> None:
    document = expected.added(modelled_run("allreduce --sizes 8,64K,1M,1G", "pingpong --sizes 8,1G"))
    report = RunReport(document)
    page = table.render_blocks([*report.tables(), *report.after()])
    assert "\n".join([*report.summary(), page, ""]) == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [80, 100, 120])
def test_ideal_and_expected_stay_side_by_side_on_a_narrow_terminal(width: int) -> None:
    document = expected.added(modelled_run("allreduce --sizes 8,64K,1M,1G"))
    lines = table.render(RunReport(document), width).splitlines()
    assert max(map(len, lines)) <= width
    [titles] = [line for line in lines if " size " in line]
    assert titles.index("ideal time") < titles.index("expected time")
    assert titles.index("ideal busbw") < titles.index("expected busbw")


@pytest.mark.parametrize(("columns", "shown"), [(("busbw",), "busbw"), (("time",), "time")])
def test_a_chosen_figure_has_both_columns(columns: Sequence[str], shown: str) -> None:
    document = expected.added(modelled_run("allreduce --sizes 1M"))
    [shown_table] = [block for block in RunReport(document, columns=columns).tables() if isinstance(block, Table)]
    titles = [column.title for column in shown_table.columns]
    assert {f"ideal {shown}", f"expected {shown}"} <= set(titles)
    assert not any("algbw" in title or "bound" in title for title in titles)


def test_modelled_launches_are_shown_once() -> None:
    """A calculation has no spread: the launches are equal, and one of them shows both figures."""
    [(job, header)] = modelled_run("allreduce --sizes 1M --mode pipelined").headers.items()
    _, rows = modelled.header_and_rows(from_argv(header.case), job)
    records = [record for row in rows for record in row]
    runs = [(f"{job}{word}", replace(header, launch=number), records) for number, word in ((1, ""), (2, "-launch2"))]
    document = expected.added(summary.document(runs))
    assert document.spreads
    [shown] = [block for block in RunReport(document).tables() if isinstance(block, Table)]
    assert len(shown.rows) == 1
    assert any("expected" in column.title for column in shown.columns)


def test_a_modelled_run_without_links_has_no_expectation() -> None:
    document = modelled_run("allreduce --sizes 1M")
    headers = {job: replace(header, links={}) for job, header in document.headers.items()}
    found = expected.added(replace(document, headers=headers)).summaries
    assert {(row.not_expected, row.expected_low_s) for row in found} == {(NoExpectationCode.LINKS, None)}
