"""Draw rates as dots on one logarithmic axis. Each rate has a row with its interval, its limits and a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.page.markup import Markup, element

_WIDTH, _RIGHT, _TOP = 900, 190, 8
_FEW_DECADES = 100  # an axis that spans a smaller factor also has labels at 2 and 5
_CROSS = "M-4,-4L4,4M-4,4L4,-4"
_UPRIGHT = "M0,-13V13"
_DIAMOND = "M0,-5L4,0L0,5L-4,0z"
_TRIANGLE = "M-5,4L0,-5L5,4z"
SHAPES = {"line": _UPRIGHT, "cross": _CROSS, "diamond": _DIAMOND, "triangle": _TRIANGLE}


@dataclass(frozen=True, slots=True)
class DotLimit:
    """A rate to compare with the rate of a row, for example a limit. `shape`: a key of SHAPES.

    `shape`: a key of SHAPES.
    """

    bytes_per_s: float
    shape: str = "line"
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class DotRow:
    """A row of the picture.

    `kind`: the text at the left edge. If consecutive rows have the same text, only the first row shows the text.
    `name`: the text beside the axis. `words`: the text at the right of the row.
    `ends`: the interval of the rate, or None if unknown.
    """

    kind: str
    name: str
    words: str
    colour: str
    bytes_per_s: float
    ends: tuple[float, float] | None = None
    limits: tuple[DotLimit, ...] = ()
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class DotPicture:
    """The contents of one picture.

    `name`: the id of the picture, which must be unique in a page. `left`: the width to the left of the axis.
    `row_height`: the height of a row.
    """

    name: str
    title: str
    description: str
    axis: str
    rows: Sequence[DotRow]
    left: int = 250
    row_height: int = 34


def draw(picture: DotPicture) -> Markup:
    """Return the picture as SVG in a box.

    On a narrow screen, the picture keeps its size and the box scrolls, so the text stays readable.
    """
    rows, left = picture.rows, picture.left
    limits = [limit.bytes_per_s for row in rows for limit in row.limits]
    rates = [rate / 1e9 for rate in (*limits, *(end for row in rows for end in (row.bytes_per_s, *(row.ends or ()))))]
    low, high = _ends(rates)

    def at(rate: float) -> float:
        return round(left + math.log(rate / 1e9 / low) / math.log(high / low) * (_WIDTH - left - _RIGHT), 1)

    bottom = _TOP + picture.row_height * len(rows)
    title, description = f"{picture.name}-svg-title", f"{picture.name}-svg-desc"
    parts = [
        element("title", picture.title, id=title),
        element("desc", picture.description, id=description),
        *_axis(low, high, at, bottom),
        element("text", picture.axis, x=(left + _WIDTH - _RIGHT) / 2, y=bottom + 34, text_anchor="middle"),
    ]
    for index, row in enumerate(rows):
        first = index == 0 or rows[index - 1].kind != row.kind
        parts += _row(row, _TOP + picture.row_height * (index + 0.5), first, picture, at)
    box = f"0 0 {_WIDTH} {bottom + 42}"
    drawn = element("svg", *parts, viewBox=box, role="img", aria_labelledby=f"{title} {description}")
    return element("div", drawn, class_="sideways", tabindex=0, role="region", aria_label=picture.title)


def _ends(rates: Sequence[float]) -> tuple[float, float]:
    """Return the lower and the upper end of the axis in GB/s. The lower end is 1, 2 or 5 times a power of ten."""
    least, high = min(rates) / 1.2, max(rates) * 1.1
    decade = 10.0 ** math.floor(math.log10(least))
    return max(factor * decade for factor in (1.0, 2.0, 5.0) if factor * decade <= least * (1 + 1e-9)), high


def _axis(low: float, high: float, at: Callable[[float], float], bottom: float) -> Iterable[Markup]:
    factors = (1.0, 2.0, 5.0) if high / low < _FEW_DECADES else (1.0,)
    for decade in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        for rate in (factor * 10.0**decade for factor in factors):
            if low <= rate <= high:
                x = at(rate * 1e9)
                yield element("path", d=f"M{x},{_TOP}V{bottom}", class_="grid")
                yield element("text", f"{rate:g}", x=x, y=bottom + 16, text_anchor="middle")


def _row(
    row: DotRow, middle: float, first: bool, picture: DotPicture, at: Callable[[float], float]
) -> Iterable[Markup]:
    ink = "currentColor" if row.colour == "#000000" else row.colour
    if first:
        yield element("text", row.kind, x=0, y=middle + 4, class_="strong")
    yield element("text", row.name, x=picture.left - 8, y=middle + 4, text_anchor="end")
    yield element("path", d=f"M{picture.left},{middle}H{_WIDTH - _RIGHT}", class_="grid")
    for limit in row.limits:
        place = f"translate({at(limit.bytes_per_s)},{middle})"
        dashes = "3 2" if limit.dashed else None
        yield element("path", d=SHAPES[limit.shape], class_="limit", transform=place, stroke_dasharray=dashes)
    if row.ends:
        yield element("path", d=f"M{at(row.ends[0])},{middle}H{at(row.ends[1])}", class_="ends", stroke=ink)
    look = {"class_": "hollow", "stroke": ink} if row.hollow else {"fill": ink}
    yield element("circle", cx=at(row.bytes_per_s), cy=middle, r=6, **look)
    yield element("text", row.words, x=_WIDTH - _RIGHT + 12, y=middle + 4)
