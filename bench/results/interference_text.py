"""The words for contention: how much slower each row was while other ranks sent, and whether they really did."""

from __future__ import annotations

from collections.abc import Iterable

from bench.core.units import format_size
from bench.results import text
from bench.results.document import Interference


def lines(interferences: Iterable[Interference]) -> list[str]:
    """For each case a title, then a line for each row; nothing where nobody was disturbed."""
    cases: dict[str, list[str]] = {}
    for one in interferences:
        ranks = f"{one.num_aggressors} rank{'s' * (one.num_aggressors > 1)}"
        victims = (
            f"{one.pattern} over {one.transport}, {one.mode}, {one.ranks_per_node} ranks per node, split {one.split}:"
        )
        title = (
            f"{victims} against {one.aggressor} of {format_size(one.aggressor_bytes)} by {ranks} "
            "(time without, with, factor; what the aggressors got)"
        )
        cases.setdefault(title, []).append(f"  {_line(one)}")
    return [line for title, of_case in cases.items() for line in (title, *of_case)]


def _line(one: Interference) -> str:
    around = "" if one.factor_low is None else f" [{one.factor_low:.3f}..{one.factor_high:.3f}]"
    unsure = one.factor_low is None and not one.modelled
    around += " ?" if unsure else ""
    share = one.aggressor_bytes_per_s / one.aggressor_alone_bytes_per_s
    line = (
        f"{format_size(one.payload_bytes):>6} {one.group:>8} {text.microseconds(one.alone_s):>8} "
        f"{text.microseconds(one.disturbed_s):>8} us  {one.factor:.3f}{around} x  "
        f"{text.gigabytes(one.aggressor_bytes_per_s)} of {text.gigabytes(one.aggressor_alone_bytes_per_s)} GB/s "
        f"({text.percent(share)} %)"
    )
    if unsure:
        few = f"{one.num_launches} launches" if one.num_launches > 1 else f"{one.num_blocks} blocks"
        line += f"  {few} are too few for a 95 % interval"
    if one.num_blocks_not_covered:
        line += f"  NOT DISTURBED in {one.num_blocks_not_covered} of {one.num_blocks} blocks: aggressors hardly sent"
    return line
