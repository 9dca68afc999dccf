"""The words for launches: one line a size, what one launch knows and how far launches are apart in columns.

With several launches these lines stand in the place of each launch's rows, which JSON and CSV keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.results import text
from bench.results.document import Spread

MEANING = (
    "over launches: median of the launches' medians, its 95 % interval over launches (3 or more);",
    "within: what one launch knows its own median by (half interval), between: standard deviation of the launches",
)
SINGLE = "single launch: no inference across launches (make bench LAUNCHES=5)"
_WIDTHS = (10, 20, 8, 9)
_TITLES = ("time", "ci95", "within", "between")
_UNITS = ("(us)", "(us)", "(%)", "(%)")


def group_width(spreads: Iterable[Spread]) -> int:
    """Letters of the column of groups; 0 where there is one group and no column."""
    groups = {spread.group for spread in spreads}
    return max(9, 1 + max(map(len, groups))) if len(groups) > 1 else 0


def titles(modes: Sequence[str], width: int) -> list[str]:
    """The three lines above the rows. `width`: of the column of groups, 0 for none."""
    left = 12 + width
    over = "".join(f"{mode:^{sum(_WIDTHS)}}" for mode in modes)
    names, units = (
        "".join(f"{word:>{width}}" for word, width in zip(words, _WIDTHS, strict=True)) for words in (_TITLES, _UNITS)
    )
    group = f"{'group':>{width}}" if width else ""
    return [
        f"#{'':{left - 1}}{over}".rstrip(),
        f"#{'size':>11}{group}{names * len(modes)}",
        f"#{'(B)':>11}{' ' * width}{units * len(modes)}",
    ]


def rows(spreads: Iterable[Spread], modes: Sequence[str], width: int) -> list[str]:
    """One line for each size and group of one job, the modes beside each other."""
    beside: dict[tuple[int, str], dict[str, Spread]] = {}
    for spread in spreads:
        beside.setdefault((spread.payload_bytes, spread.group), {})[spread.mode] = spread
    return [
        f"{size:>12}{f'{group:>{width}}' if width else ''}" + "".join(_cells(by_mode.get(mode)) for mode in modes)
        for (size, group), by_mode in beside.items()
    ]


def _cells(spread: Spread | None) -> str:
    if spread is None:
        cells: Sequence[str] = [text.NOTHING] * len(_WIDTHS)
    else:
        known = spread.ci_low_s is not None and spread.ci_high_s is not None
        around = f"{text.microseconds(spread.ci_low_s)}..{text.microseconds(spread.ci_high_s)}"
        cells = (
            text.microseconds(spread.median_s),
            around if known else text.NOTHING,
            text.percent(spread.within),
            text.percent(spread.between),
        )
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))
