"""A table of thousands of lines is cut to one screen on the terminal."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.results.output import MOST_LINES, most_lines
from bench.results.run_report import cut_line, first_lines
from bench.results.run_table import TableLine


def line(group: str, size: int, median_s: float | None, verified: bool = True) -> TableLine:
    row: Any = SimpleNamespace(
        job="a", group=group, payload_bytes=size, dtype="f", reduce_op=None, median_s=median_s, verified=verified
    )
    return TableLine("", (group,), {"pipelined": row})


def test_fastest_slowest_and_wrong_lines_of_each_size_remain() -> None:
    lines = [line(f"node{k}", size, 1.0 + 0.001 * k) for size in (8, 64) for k in range(300)]
    lines[100] = line("node100", 8, 0.5)
    lines[200] = line("node200", 8, None, verified=False)
    lines[450] = line("node150", 64, 9.0)

    shown = first_lines(lines)

    found = [(each.first.payload_bytes, each.groups[0]) for each in shown]
    assert found == [(8, "node100"), (8, "node200"), (8, "node299"), (64, "node0"), (64, "node150")]
    assert cut_line(lines, shown).startswith("5 of 600 lines")
    assert "1 lines have wrong data, 1 took" in cut_line(lines, shown)


def test_only_a_table_on_the_terminal_is_cut() -> None:
    args = argparse.Namespace(all=False, format="table", output=None)
    assert most_lines(args) == MOST_LINES
    for name, value in (("all", True), ("format", "markdown"), ("output", Path("a"))):
        assert most_lines(argparse.Namespace(**(vars(args) | {name: value}))) is None
