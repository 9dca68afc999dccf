"""The figure of training steps: bars that sum to each rank's step."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.figures import step
from bench.results import collect
from bench.results.document import Document

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"


@pytest.fixture(scope="module")
def measured() -> Document:
    return collect.document(REFERENCE / "step_2cpu-vm_2026-11-24")


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
