"""A run on a real pseudo-terminal: rows as they come, a bar with the time left, colours; in a pipe only lines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.commands._progress import row_line
from bench.store.row_events import RowEvent
from tests import pseudo_terminal

WIDTH = 80
COLOUR = re.compile(r"\x1b\[[0-9;]*(3|9)[0-7]m")
SCENARIO = """description: three rows on the links of a p4d
measure:
  - pattern: allreduce
    sizes: [8, 1K, 1M]
    mode: isolated
"""


def _words(folder: Path) -> list[str]:
    scenario = folder / "three.yaml"
    scenario.write_text(SCENARIO)
    options = ["--cluster", "p4d", "--model", "--results", str(folder / "results"), "--no-plots"]
    return [sys.executable, "-m", "bench", "run", str(scenario), *options]


def _row_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(r"  allreduce .* us", line)]


def test_a_terminal_shows_rows_and_the_time_left(tmp_path: Path) -> None:
    shown = pseudo_terminal.shown(_words(tmp_path), WIDTH, {})
    assert shown.exit_code == 0
    assert len(_row_lines(shown.text)) == 3
    found = re.findall(r"(\d) of 3 rows, about .* left", shown.text)
    assert found, "the bar counts rows"
    assert found == sorted(found), "and never back"
    lines = [line for line in shown.text.splitlines() if str(tmp_path) not in line]  # a path is never broken
    assert max(map(len, lines)) <= WIDTH
    assert COLOUR.search(shown.raw)
    assert shown.raw.count("\x1b[?25l") == shown.raw.count("\x1b[?25h") == 1, "the cursor is shown again"


@pytest.mark.slow
def test_no_color_leaves_the_bar_without_colours(tmp_path: Path) -> None:
    shown = pseudo_terminal.shown(_words(tmp_path), WIDTH, {"NO_COLOR": "1"})
    assert len(_row_lines(shown.text)) == 3
    assert not COLOUR.search(shown.raw)


@pytest.mark.slow
def test_a_pipe_shows_neither_rows_nor_a_bar(tmp_path: Path) -> None:
    done = subprocess.run(_words(tmp_path), cwd=pseudo_terminal.ROOT, capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout + done.stderr
    assert not _row_lines(done.stderr)
    assert "left" not in done.stderr


@pytest.mark.parametrize(
    ("event", "facts"),
    [
        (
            RowEvent("allreduce", 8, "isolated", 1, 1e-6, 2e9, 0.5, ("drift",)),
            ("8 B", "1.000 us", "2.000", "50.0 %", "~"),
        ),
        (RowEvent("allreduce", 8, "isolated", 1, 1e-6, flags=("modelled",)), ("ideal:    1.000 us",)),
        (RowEvent("pairs", 1 << 20, "pipelined", 28, 1e-3, 2e9), ("1 MiB", "28 groups")),
        (RowEvent("allreduce", 8, "isolated", flags=("invalid",)), ("INVALID",)),
        (
            RowEvent("allreduce", 8, "isolated", failed=True, reason="rank 3 is gone\x1b[2J"),
            ("FAILED: rank 3 is gone",),
        ),
        (RowEvent("allreduce", 8, "isolated", reason="no time"), ("skipped: no time",)),
        (RowEvent("allreduce", 8, "isolated"), ("no figure",)),
    ],
    ids=["measured", "modelled", "groups", "wrong data", "failed", "skipped", "no figure"],
)
def test_the_line_of_a_row(event: RowEvent, facts: tuple[str, ...]) -> None:
    line = row_line(event)
    assert all(fact in line for fact in facts)
    assert "\x1b" not in line
