"""The figure of `linkbench select`: every machine in it, modelled said, no middle drawn where none is known."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from bench.figures import _select
from bench.hardware import catalogue
from bench.predict import predict
from bench.predict.candidate import SelectionQuestion
from bench.predict.select import select
from bench.predict.workload_file import load_workload
from tests.facts import holds

FOLDER = Path(__file__).parents[2] / "workloads"


@pytest.fixture(scope="module")
def figure() -> Figure:
    question = SelectionQuestion(load_workload("vit-l-306m", FOLDER), predict.published(), date(2026, 8, 1))
    return _select.draw(select([(catalogue.instance(name), 1) for name in ("p4d.24xlarge", "g6e.48xlarge")], question))


def texts(figure: Figure) -> str:
    return "\n".join(each.get_text() for each in figure.findobj() if hasattr(each, "get_text"))


def test_four_panels_say_that_they_are_modelled(figure: Figure) -> None:
    assert len(figure.axes) == 4
    assert texts(figure).count("MODELLED") == 4
    assert holds(texts(figure), "modelled", "not measured")


def test_machines_prices_and_dates_are_named(figure: Figure) -> None:
    figure.canvas.draw()
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["p4d.24xlarge", "g6e.48xlarge"]
    assert "2026-07-20" in texts(figure)


def test_an_axis_within_one_power_of_ten_has_numbers() -> None:
    axes = Figure().subplots()
    axes.loglog([2200, 8500], [2200, 85000])
    _select._plain(axes.xaxis, axes.yaxis)
    axes.set(xlim=(2200, 8500), ylim=(2200, 85000))
    axes.figure.canvas.draw()
    shown = [[label.get_text() for label in axis.get_minorticklabels()] for axis in (axes.xaxis, axes.yaxis)]
    within = [[text for text in each if text in ("3000", "5000", "7000", "20k", "50k", "70k")] for each in shown]
    assert within == [["3000", "5000", "7000"], ["5000", "20k", "50k"]]


def test_no_point_is_drawn_for_what_is_an_interval_only(figure: Figure) -> None:
    cost, sizes, nodes = figure.axes[1:]
    assert len([line for line in cost.lines if line.get_marker() not in ("", "None")]) == 1
    assert len(sizes.lines) == 1  # p4d's
    assert len(sizes.collections) == len(nodes.collections) == 2  # a band of each


def test_bars_end_where_the_medians_add_up(figure: Figure) -> None:
    ends: dict[float, float] = {}
    for bar in figure.axes[0].patches:
        row = round(bar.get_y() + bar.get_height() / 2)  # type: ignore[attr-defined]
        ends[row] = max(ends.get(row, 0.0), bar.get_x() + bar.get_width())  # type: ignore[attr-defined]
    assert ends[0] < ends[1]


def test_the_interval_is_drawn_in_the_unit_of_the_bars() -> None:
    question = SelectionQuestion(load_workload("llama-3-70b", FOLDER), predict.published(), date(2026, 8, 1))
    found = select([(catalogue.instance("p5.48xlarge"), 8), (catalogue.instance("p4d.24xlarge"), 8)], question)
    axes = _select.draw(found).axes[0]
    assert "step time (s)" in axes.get_xlabel()
    ends = np.concatenate([line.get_xdata() for line in axes.lines])
    wholes = [each.range("total_s") for each in found.candidates]
    assert ends == pytest.approx([end for whole in wholes for end in (whole.low, whole.high)])
