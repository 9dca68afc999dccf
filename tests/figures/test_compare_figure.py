"""The figure of a comparison: ratios with intervals, one look for each transport, and both runs in the origin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from bench.core.errors import UsageError
from bench.figures import _compare
from bench.results import compare
from bench.results import looks as looks_table
from bench.results.compare_report import CompareReport, Sides
from bench.results.document import Document, Summary
from bench.results.headline import NamedRun
from tests.facts import holds
from tests.figures.conftest import GB, document, header, launch_name, sweep
from tests.figures.layout import all_texts, clipped, overlapping, series

RUNS = [NamedRun("results/old"), NamedRun("results/new", cluster="lab")]
SLOW_BYTES = 1 << 20


def a_run(slowdown: float, num_launches: int = 6) -> Document:
    """An allreduce over two libraries in launches; nccl is slower by this factor at the largest size."""
    runs = []
    for transport in ("nccl", "mpi_cuda"):
        for launch in range(1, num_launches + 1):
            of = header(launch_name(f"allreduce-{transport}", launch), "allreduce", transport, launch=launch)
            rows = sweep(of, alpha=2e-5, rate=80 * GB, sizes=(64, SLOW_BYTES), modes=["isolated"])
            factor = slowdown if transport == "nccl" else 1.0
            slow = [row if row.payload_bytes < SLOW_BYTES else _slower(row, factor) for row in rows]
            runs.append((of, slow))
    return document(runs)


def _slower(row: Summary, factor: float) -> Summary:
    return replace(row, median_s=factor * (row.median_s or 0.0))


def drawn(base: Document, new: Document) -> Figure:
    report = CompareReport(compare.compare(base, new), Sides("old", "new", ""))
    figure = _compare.draw(report, [base, new], RUNS)
    figure.draw_without_rendering()
    return figure


@pytest.fixture(scope="module")
def figure() -> Figure:
    return drawn(a_run(1.0), a_run(1.5))


def test_a_row_that_became_slower_is_filled_above_1_and_has_its_interval(figure: Figure) -> None:
    [panel] = figure.axes
    colour, marker = looks_table.of_transport("nccl")
    filled = [line for line in panel.lines if line.get_marker() == marker and line.get_markerfacecolor() == colour]
    assert [np.ravel(line.get_ydata()).tolist() for line in filled] == [[pytest.approx(1.5, rel=0.05)]]
    assert len([line for line in panel.lines if line.get_marker() == "_"]) == 4  # two sizes of two libraries
    low, high = panel.get_ylim()
    assert low < 1 < 1.5 < high and "logarithmic" in panel.get_ylabel()


def test_the_figure_names_both_runs_the_verdict_and_each_library(figure: Figure) -> None:
    [origin] = [text.get_text() for text in figure.texts if text.get_gid() == "origin"]
    assert holds(origin, "MEASURED", "lab", "BASE old", "NEW new", "2026-01-02")
    assert holds(str(figure.get_label()), "4 rows", "1 slower")
    looks = {label.split(",")[0]: look[:2] for label, look in series(figure).items()}
    assert looks["nccl"] == looks_table.of_transport("nccl")
    assert looks["mpi_cuda"] == looks_table.of_transport("mpi_cuda")


def test_its_texts_neither_overlap_nor_leave_the_figure(figure: Figure) -> None:
    assert (overlapping(figure), clipped(figure)) == ([], [])


def test_few_launches_have_ratios_without_intervals() -> None:
    few = drawn(a_run(1.0, 2), a_run(1.5, 2))
    assert not [line for line in few.axes[0].lines if line.get_marker() == "_"]
    assert any(holds(text, "too few launches") for text in all_texts(few))


def test_runs_without_a_common_row_have_no_figure() -> None:
    base, new = a_run(1.0, 1), a_run(1.0, 1)
    other = replace(new, summaries=tuple(replace(row, payload_bytes=row.payload_bytes + 1) for row in new.summaries))
    with pytest.raises(UsageError):
        drawn(base, other)
