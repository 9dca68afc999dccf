"""The figure of speed-ups: what is drawn beside the measured steps, and the answer below."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from bench.core.codes import Coded
from bench.figures import step_scaling
from bench.results import derived_tables
from bench.results.document import Document
from bench.results.step_scaling import ScalingReason
from bench.results.training_rows import StepScaling, StepScalingPoint
from tests.figures.conftest import document, header
from tests.figures.layout import all_texts, clipped, overlapping


def a_scaling(bound: float | None, ends: tuple[float | None, float | None] = (1.7, 1.95)) -> Document:
    points = tuple(
        StepScalingPoint(f"step-{n}", n, max(1, n // 2), 0.1, speedup, low, high, float(n), own)
        for n, speedup, (low, high), own in (
            (1, 1.0, (None, None), None),
            (2, 1.8, ends, bound),
            (4, 1.9, ends, bound and 2 * bound),
        )
    )
    reason = Coded.of(ScalingReason.EXCHANGE, seconds=0.02, num_ranks=4)
    one = StepScaling("strong", "step-1", "gloo", "ddp", points, 2, reason)
    empty = document([(header("step-1", "step", "gloo"), [])])
    return Document(empty.schema, empty.headers, (), step_scalings=(one,))


@pytest.mark.parametrize("bound", [None, 1.9])
def test_a_figure_shows_the_ideal_the_bound_if_known_and_the_answer(bound: float | None) -> None:
    assert step_scaling.applies(a_scaling(bound))
    [(name, figure)] = step_scaling.draw(a_scaling(bound))
    assert name == "step-scaling"
    dashed = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    drawn = [np.asarray(line.get_ydata()).tolist() for line in dashed]
    assert [values for values in drawn if values] == ([[1.9, 3.8]] if bound else [])
    assert any("2 ranks" in text for text in map(str, all_texts(figure)))
    figure.canvas.draw()
    assert not clipped(figure) and not overlapping(figure)
    plt.close(figure)


def test_a_predicted_speed_up_is_relative_to_the_first_predicted_step() -> None:
    (one,) = a_scaling(None).step_scalings
    halved = {"step-1": 0.05, "step-2": 0.05, "step-4": 0.1}
    assert step_scaling._predicted(one, halved) == [(1.0, 1.0), (2.0, pytest.approx(1.8)), (4.0, pytest.approx(0.95))]
    assert step_scaling._predicted(one, {"step-2": 0.05}) == []


@pytest.mark.parametrize("ends, num", [((1.7, 1.95), 1), ((None, None), 0)])
def test_intervals_are_drawn_and_named_only_if_they_are_known(
    ends: tuple[float | None, float | None], num: int
) -> None:
    found = a_scaling(None, ends)
    [(_, figure)] = step_scaling.draw(found)
    [panel] = figure.axes
    [bars] = [container for container in panel.containers if isinstance(container, ErrorbarContainer)]
    [(low, _), *_] = [segment[[0, 1], 1] for segment in bars.lines[2][0].get_segments()[1:]]
    assert low == pytest.approx(ends[0] or 1.8)
    assert sum("95 %" in text for text in map(str, all_texts(figure))) == num
    plt.close(figure)
    [table] = derived_tables.tables(found)
    [ci95] = [column for column in table.columns if column.title == "ci95"]
    assert [ci95.cell(row) for row in table.rows] == ["-", *["1.70..1.95" if num else "-"] * 2]
