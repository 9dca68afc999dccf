"""Tables on narrow terminals: which columns they leave out, and that nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.core.errors import UsageError
from bench.core.wrapping import PIPED_WIDTH
from bench.results.document import Document
from bench.results.formats import table
from bench.results.run_report import RunReport
from bench.results.run_table import TITLES, Layout, RunTable, column_titles
from tests import pseudo_terminal

ROOT = Path(__file__).resolve().parent.parent.parent
[REFERENCE] = (ROOT / "results" / "reference").glob("main_*")
Make = Callable[..., Any]


def titles(text: str) -> list[str]:
    return next(line for line in text.splitlines() if "#wrong" in line)[1:].split()


def longest(text: str) -> int:
    return max(map(len, text.splitlines()))


@pytest.mark.parametrize("width", [80, 100, 120])
def test_every_line_fits_and_columns_go_in_their_order(a_document: Document, width: int) -> None:
    text = table.render(RunReport(a_document), width)
    assert longest(text) <= width
    gone = {80: "root redop count type algbw floor p95", 100: "root redop count type", 120: "root redop"}[width].split()
    everything = titles(table.render(RunReport(a_document), 200))
    assert titles(text) == [title for title in everything if title not in gone]


def test_wide_leaves_nothing_out(a_document: Document) -> None:
    assert titles(table.render(RunReport(a_document, ("wide",)), 80)) == titles(
        table.render(RunReport(a_document), 200)
    )


def test_a_column_that_tells_lines_apart_stays(a_document: Document) -> None:
    first, *others = a_document.summaries
    differing = replace(a_document, summaries=(replace(first, dtype="float64"), *others))
    assert "type" in titles(table.render(RunReport(differing), 80))


def test_only_the_columns_that_were_named_and_those_that_name_a_row(a_document: Document) -> None:
    text = table.render(RunReport(a_document, columns=("busbw", "p99")), 60)
    assert [line.split() for line in text.splitlines() if line.endswith("busbw")] == [["#", "size", "p99", "busbw"]]


def test_every_column_can_be_named(a_document: Document) -> None:
    layouts = (Layout(("isolated", "pipelined"), wire=True), Layout(("pipelined",), grouped=True, products=True))
    imported = Layout(("pipelined",), grouped=True, imported=True)
    found = {
        column.title
        for layout in (*layouts, imported, Layout(("isolated",), like="osu"))
        for column in RunTable(layout).table(()).columns
    }
    assert found - {""} == set(TITLES)
    assert column_titles("time, busbw,") == ("time", "busbw")
    with pytest.raises(UsageError, match="no-such"):
        column_titles("time,no-such")


@pytest.mark.parametrize("width", [80, pytest.param(100, marks=pytest.mark.slow)])
def test_a_real_terminal_and_a_pipe_have_lines_that_fit(width: int) -> None:
    words = (sys.executable, "-m", "bench", "report", str(REFERENCE))
    text = pseudo_terminal.shown(words, width, {"NO_COLOR": "1"}, stderr=subprocess.DEVNULL).text
    assert longest(text) <= width
    piped = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert longest(piped) <= PIPED_WIDTH
    assert set(titles(text)) <= set(titles(piped))
