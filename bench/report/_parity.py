"""The words for another tool beside ours: one line a size."""

from __future__ import annotations

from collections.abc import Iterable

from bench.core.record import Parity
from bench.core.units import format_size
from bench.report import _text


def lines(parities: Iterable[Parity]) -> list[str]:
    """A line for each tool and pattern, then its sizes; nothing where no tool ran."""
    found: list[str] = []
    latest = None
    for one in parities:
        if latest != (one.tool, one.pattern):
            launches = f"{one.num_launches} launch{'es' if one.num_launches > 1 else ''}"
            found.append(
                f"{one.pattern} beside {one.tool}, {launches}: ours / theirs, each the mean over ranks of means"
            )
            latest = (one.tool, one.pattern)
        around = "" if one.ratio_low is None else f" [{one.ratio_low:.3f}..{one.ratio_high:.3f}]"
        found.append(
            f"  {format_size(one.payload_bytes):>6}  {_text.microseconds(one.ours_s):>8} / "
            f"{_text.microseconds(one.theirs_s):<8} us = {one.ratio:.3f}{around}"
        )
    return found
