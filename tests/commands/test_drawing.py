"""Figures that several processes draw: the same files as one process draws, and its errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.commands import _drawing
from bench.core.errors import UsageError
from bench.results import collect

ROOT = Path(__file__).resolve().parents[2]
[REFERENCE] = (ROOT / "results" / "reference").glob("main_*")


@pytest.mark.slow
@pytest.mark.parametrize("num_cpus", [1, 2])
def test_one_or_several_processes_draw_the_same_files(
    num_cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_cpus)))
    in_this_process: list[str] = []
    draw = _drawing._draw

    def noted(drawing: _drawing.Drawing, name: str) -> list[Path]:
        in_this_process.append(name)
        return draw(drawing, name)

    monkeypatch.setattr(_drawing, "_draw", noted)
    drawn = _drawing.draw(collect.document(REFERENCE), tmp_path / "plots", formats=("svg",))
    assert bool(in_this_process) == (num_cpus == 1), "with two processes, this one draws nothing"
    assert [path.stem for path in drawn] == ["bandwidth", "fit-isolated", "fit-pipelined", "latency"]
    assert all(path.stat().st_size > 1000 for path in drawn)


def test_an_error_of_another_process_is_raised_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    (tmp_path / "plots").write_text("a file, not a folder")
    with pytest.raises(UsageError, match="plots"):
        _drawing.draw(collect.document(REFERENCE), tmp_path / "plots", formats=("svg",))
