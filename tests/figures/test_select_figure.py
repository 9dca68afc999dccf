"""The figure of `linkbench select`: every machine in it, modelled said, no middle drawn where none is known."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from bench.figures import _select
from bench.hardware import catalogue
from bench.predict import crossover, predict, select_page
from bench.predict.candidate import SelectionQuestion
from bench.predict.select import Selection, select
from bench.predict.workload_file import load_workload
from bench.results import looks
from tests.facts import holds
from tests.figures.layout import all_texts, clipped, overlapping

FOLDER = Path(__file__).parents[2] / "workloads"
NAMES = ("p4d.24xlarge", "g6e.48xlarge")


@pytest.fixture(scope="module")
def found() -> Selection:
    question = SelectionQuestion(load_workload("vit-l-306m", FOLDER), predict.published(), date(2026, 8, 1))
    return select([(catalogue.instance(name), 1) for name in NAMES], question)


@pytest.fixture(scope="module")
def figure(found: Selection) -> Figure:
    figure = _select.draw(found)
    figure.draw_without_rendering()
    return figure


def test_the_title_is_the_answer_and_every_panel_is_modelled(found: Selection, figure: Figure) -> None:
    assert figure.get_label() == f"vit-l-306m: {select_page.headline(found)}"
    assert all_texts(figure).count("MODELLED") == len(figure.axes) == 6
    [origin] = [text.get_text() for text in figure.texts if text.get_gid() == "origin"]
    assert holds(origin, "MODELLED, not measured", "vit-l-306m", "2 machines", "2026-08-01")


def test_machines_are_named_once_in_a_row_with_their_prices_and_dates(found: Selection, figure: Figure) -> None:
    names = [each.name for each in found.candidates]
    for axes in figure.axes[:4:2]:
        assert [label.get_text() for label in axes.get_yticklabels()] == names
    assert any("2026-07-20" in text for text in all_texts(figure))


def test_cost_and_time_are_one_range_bar_of_each_machine_in_its_colour(found: Selection, figure: Figure) -> None:
    cost, time = figure.axes[:2]
    usd = [each.usd(1_000_000) for each in found.candidates]
    for machine, bar, wide, whole in zip(found.candidates, cost.patches, time.patches, usd, strict=True):
        assert whole is not None and isinstance(bar, Rectangle) and isinstance(wide, Rectangle)
        assert (bar.get_x(), bar.get_x() + bar.get_width()) == pytest.approx((whole.low, whole.high))
        colour, _ = looks.of_machine(machine.instance.name)
        assert to_hex(bar.get_facecolor()).upper() == to_hex(wide.get_facecolor()).upper() == colour
        assert wide.get_x() == pytest.approx(1_000_000 / machine.samples_per_s.high / 60)
        assert f" {whole.text()}" in all_texts(figure)


def test_no_text_covers_another_or_leaves_the_figure_and_no_bar_is_clipped(figure: Figure) -> None:
    assert (overlapping(figure), clipped(figure)) == ([], [])
    for axes in figure.axes[:4]:
        ends = [bar.get_x() + bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]
        assert max(ends, default=0.0) < axes.get_xlim()[1]
        edge = axes.get_window_extent().x1
        assert all(text.get_window_extent().x1 < edge for text in axes.texts)


def test_a_line_that_ends_for_lack_of_memory_says_where(found: Selection, figure: Figure) -> None:
    (line,) = (text for text in all_texts(figure) if "out of GPU memory" in text)
    lines = crossover.against_size(found.question, found.candidates)
    assert [each.name for each in lines if each.out_of_memory] == [name for name in NAMES if name in line]
    for each in lines:
        assert max(x for x, _, _ in each.points) < min(each.out_of_memory)


def test_what_is_logarithmic_says_so(figure: Figure) -> None:
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            assert axis.get_scale() != "log" or "logarithmic" in axis.get_label_text()


def test_an_axis_within_one_power_of_ten_has_numbers() -> None:
    axes = Figure().subplots()
    axes.loglog([2200, 8500], [2200, 85000])
    _select._plain(axes.xaxis, axes.yaxis)
    axes.set(xlim=(2200, 8500), ylim=(2200, 85000))
    axes.figure.canvas.draw()
    shown = [[label.get_text() for label in axis.get_minorticklabels()] for axis in (axes.xaxis, axes.yaxis)]
    within = [[text for text in each if text in ("3000", "5000", "7000", "20k", "50k", "70k")] for each in shown]
    assert within == [["3000", "5000", "7000"], ["5000", "20k", "50k"]]


def test_no_line_is_drawn_for_what_is_an_interval_only(figure: Figure) -> None:
    sizes, nodes = figure.axes[4:]
    assert len([line for line in sizes.lines if line.get_linestyle() == "-"]) == 2
    assert len(sizes.collections) == len(nodes.collections) == 2  # a band of each


def test_the_interval_is_drawn_in_the_unit_of_the_bars() -> None:
    question = SelectionQuestion(load_workload("llama-3-70b", FOLDER), predict.published(), date(2026, 8, 1))
    found = select([(catalogue.instance("p5.48xlarge"), 8), (catalogue.instance("p4d.24xlarge"), 8)], question)
    axes = _select.draw(found).axes[3]
    assert "step time (s)" in axes.get_xlabel()
    ends = np.concatenate([line.get_xdata() for line in axes.lines])
    wholes = [each.range("total_s") for each in found.candidates]
    assert ends == pytest.approx([end for whole in wholes for end in (whole.low, whole.high)])
