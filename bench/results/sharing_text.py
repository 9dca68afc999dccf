"""The words for groups at once beside each of them alone: for each size, the middle group and the worst."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from bench.core.units import format_size
from bench.results import text
from bench.results.document import Sharing


def lines(sharings: Iterable[Sharing]) -> list[str]:
    """For each case a title, then a line for each size; nothing where no group was measured at once and in turn."""
    cases: dict[str, dict[tuple[str, int], list[Sharing]]] = {}
    for one in sharings:
        title = (
            f"{one.pattern} over {one.transport}, {one.mode}, topology {one.topology}: all groups at once against each "
            "alone (time at once / time alone: median over groups; worst group)"
        )
        cases.setdefault(title, {}).setdefault((one.job, one.payload_bytes), []).append(one)
    return [line for title, sizes in cases.items() for line in (title, *(f"  {_line(one)}" for one in sizes.values()))]


def _line(groups: Sequence[Sharing]) -> str:
    worst = max(groups, key=lambda one: one.factor)
    around = "" if worst.factor_low is None else f" [{worst.factor_low:.3f}..{worst.factor_high:.3f}]"
    unsure = " ?" if worst.factor_low is None and not worst.modelled else ""
    line = (
        f"{format_size(worst.payload_bytes):>6}  {len(groups)} group{'s' * (len(groups) > 1)} of {worst.num_ranks}  "
        f"{median(one.factor for one in groups):.3f} x  worst {worst.group} {worst.factor:.3f}{around}{unsure} x "
        f"({text.microseconds(worst.alone_s)} us alone, {text.microseconds(worst.at_once_s)} us at once)"
    )
    line += "  no 95 % interval: too few samples or launches" if unsure else ""
    return line + "  (more ranks than CPUs)" * worst.oversubscribed
