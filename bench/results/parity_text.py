"""The words for another tool beside ours: one line a size."""

from __future__ import annotations

from collections.abc import Iterable

from bench.core.units import format_size
from bench.results import text
from bench.results.document import Parity


def lines(parities: Iterable[Parity]) -> list[str]:
    """A line for each tool, pattern and case, then its groups and sizes; nothing where no tool ran."""
    found: list[str] = []
    latest = None
    for one in parities:
        if latest != (one.tool, one.pattern, one.case, one.mode):
            launches = f"{one.num_launches} launch{'es' if one.num_launches > 1 else ''}"
            asked = f" {one.case}" if one.case else ""
            found.append(f"{one.pattern}{asked} beside {one.tool}, {launches}: ours / theirs, each the {one.statistic}")
            latest = (one.tool, one.pattern, one.case, one.mode)
        around = "" if one.ratio_low is None else f" [{one.ratio_low:.3f}..{one.ratio_high:.3f}]"
        group = "" if one.group == "world" else f" {one.group:>7}"
        found.append(
            f"  {format_size(one.payload_bytes):>6}{group}  {text.microseconds(one.ours_s):>8} / "
            f"{text.microseconds(one.theirs_s):<8} us = {one.ratio:.3f}{around}"
        )
    return found
