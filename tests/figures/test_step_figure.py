"""The figure of training steps: bars that sum to each rank's step."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch

from bench.core.step_trace import StepPart
from bench.figures import _step_bars, step
from bench.job.page import COLOURS
from bench.results import collect
from bench.results.document import Document
from tests.facts import holds

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"


@pytest.fixture(scope="module")
def measured() -> Document:
    return collect.document(REFERENCE / "step_2cpu-vm_2026-11-27")


def test_bars_sum_to_the_step_of_their_rank_and_the_late_rank_is_named(measured: Document) -> None:
    [(name, figure)] = step.draw(measured)
    assert name == "step" and len(figure.axes) == len(measured.steps) == 4
    for panel, one in zip(figure.axes, measured.steps, strict=True):
        ends = [max(bar.get_x() + bar.get_width() for bar in bars) for bars in panel.containers]
        longest = max(sum(own[rank] for own in one.parts_s.values()) for rank in range(one.num_ranks))
        assert max(ends) == pytest.approx(longest * 1e3)
        named = [label.get_text() for label in panel.get_yticklabels()]
        assert [rank for rank, text in enumerate(named) if "late" in text] == [
            rank for rank in (one.late_rank,) if rank is not None
        ]


def test_a_run_without_steps_has_no_such_figure() -> None:
    document = collect.document(REFERENCE / "main_2cpu-vm_2026-11-21")
    assert not step.applies(document) and step.draw(document) == []


def test_the_legend_names_only_parts_that_can_be_seen(measured: Document) -> None:
    [(_, figure)] = step.draw(measured)
    longest = max(sum(own[rank] for own in one.parts_s.values()) for one in measured.steps for rank in range(2)) * 1e3
    widest: dict[tuple[float, ...], float] = {}
    for bars in (bars for panel in figure.axes for bars in panel.containers):
        for bar in bars:
            colour = to_rgba(bar.get_facecolor())
            widest[colour] = max(widest.get(colour, 0.0), bar.get_width())
    [legend] = figure.legends
    named = {to_rgba(handle.get_facecolor()) for handle in legend.legend_handles if isinstance(handle, Patch)}
    assert named == {colour for colour, width in widest.items() if width > 0}
    assert all(widest[colour] > 0.003 * longest for colour in named)
    [remark] = [text.get_text() for text in figure.texts if "other contains" in text.get_text()]
    assert holds(remark, "copies")


def test_the_legend_names_other_however_small_it_is() -> None:
    of_parts = dict.fromkeys(StepPart, 0.0) | {StepPart.COMPUTE: 1.0, StepPart.EXPOSED_COPY: 0.002}
    bars = _step_bars.visible([of_parts])
    [compute, other] = _step_bars.handles(bars)
    assert other.get_facecolor() == to_rgba(COLOURS[StepPart.OTHER]) != compute.get_facecolor()
    exact = _step_bars.visible([dict.fromkeys(StepPart, 0.0) | {StepPart.COMPUTE: 0.1, StepPart.IMBALANCE: 0.2}])
    assert len(_step_bars.handles(exact)) == 2  # a rounding error of the sum is no part
