"""Draw curves as SVG: two logarithmic axes, a bar for each interval, a line for each bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bench.page.markup import Markup, element, joined

_WIDTH, _HEIGHT = 560, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 14, 14, 48
_MOST_X_LABELS = 9
_BAND_OPACITY = 0.18
_BEYOND = 1.3  # factor by which a level line reaches beyond its sizes, so that the bound of a single size is visible
_BESIDE = 0.03  # room at both ends of the axis of sizes, as a share of the axis, so that markers do not touch the axis
_MARKERS = {
    "o": "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
    "s": "M-3.6,-3.6h7.2v7.2h-7.2z",
    "^": "M0,-4.6L4.4,3.4H-4.4z",
    "D": "M0,-5L5,0L0,5L-5,0z",
    "<": "M-4.6,0L3.4,4.4V-4.4z",
    ">": "M4.6,0L-3.4,4.4V-4.4z",
    "d": "M0,-5L3,0L0,5L-3,0z",
    "v": "M0,4.6L4.4,-3.4H-4.4z",
    "P": "M-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "*": "M0,-5.2L1.3,-1.7H5L2.1,0.6L3.1,4.2L0,2.1L-3.1,4.2L-2.1,0.6L-5,-1.7H-1.3z",
    "X": "M-4.2,-2.2L-2.2,-4.2L0,-2L2.2,-4.2L4.2,-2.2L2,0L4.2,2.2L2.2,4.2L0,2L-2.2,4.2L-4.2,2.2L-2,0z",
}


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """A point with its interval.

    `hollow`: whether the point is drawn hollow, because its median has not converged.
    `expected`: for a modelled point, the interval that is expected on a real machine.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    hollow: bool = False
    expected: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class PlotCurve:
    """A curve.

    `number`: the number of this curve among the curves of the same colour. The dashes depend on this number.
    """

    label: str
    colour: str
    marker: str
    points: Sequence[PlotPoint]
    number: int = 0


@dataclass(frozen=True, slots=True)
class PlotLine:
    """A line without markers, such as a bound. The line of a bound that is not a hard limit is dashed.

    `colour`: the colour of the curve to which the line belongs. A line that belongs to the whole picture has the colour
        "".
    `whole`: whether a level line reaches from one edge of the picture to the other.
    """

    label: str
    points: Sequence[tuple[float, float]]
    hard: bool = True
    colour: str = ""
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Picture:
    """The contents of one picture. `x_text` and `y_text` return the label of a value on an axis."""

    title: str
    description: str
    x_title: str
    y_title: str
    curves: Sequence[PlotCurve]
    x_text: Callable[[float], str]
    y_text: Callable[[float], str]
    lines: Sequence[PlotLine] = field(default=())
    watermark: str = ""


def draw(picture: Picture, name: str) -> Markup:
    """Return the picture as SVG, with a title and a description.

    `name`: the id of the picture, which must be unique in a page.
    """
    x, y = _scales(picture)
    parts = [
        element("title", picture.title, id=f"{name}-title"),
        element("desc", picture.description, id=f"{name}-desc"),
        *_axes(picture, x, y),
    ]
    if picture.watermark:
        middle = f"translate({(_LEFT + _WIDTH) / 2:.0f},{_HEIGHT / 2:.0f}) rotate(-15)"
        parts.append(element("text", picture.watermark, class_="watermark", text_anchor="middle", transform=middle))
    for line in picture.lines:
        parts.append(_line(line, x, y))
    for curve in picture.curves:
        parts += [*_band(curve, x, y), _curve(curve, x, y)]
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )


def legend(curves: Iterable[PlotCurve], lines: Sequence[PlotLine] = ()) -> Markup:
    """Return the legend of pictures: a list with the line and the marker of each curve."""
    items = []
    curves = list(curves)
    for curve in curves:
        mark = element("path", d=_MARKERS[curve.marker], transform="translate(18,7)", **_colours(curve, False))
        stroke = element("path", d="M0,7H36", class_="curve", stroke=_ink(curve), stroke_dasharray=_dashes(curve))
        items.append(element("li", _swatch(stroke, mark), curve.label))
    if any(line.colour for line in lines):
        stroke = element("path", d="M0,7H36", class_="floor", stroke="currentColor")
        items.append(element("li", _swatch(stroke), "floor, in the colour of its curve"))
    for hard in (True, False):
        if any(line.hard is hard and not line.colour for line in lines):
            stroke = element("path", d="M0,7H36", class_="bound", stroke_dasharray=None if hard else "5 4")
            items.append(
                element("li", _swatch(stroke), "bound of the links" if hard else "reference, not a hard bound")
            )
    points = [point for curve in curves for point in curve.points]
    if any(point.expected for point in points):
        band = element("rect", x=0, y=2, width=36, height=10, fill="currentColor", opacity=_BAND_OPACITY)
        items.append(element("li", _swatch(band), "expected of a real machine, 90 % interval"))
    if any(point.hollow for point in points):
        hollow = element("path", d=_MARKERS["o"], transform="translate(18,7)", class_="hollow", stroke="currentColor")
        items.append(element("li", _swatch(hollow), "not converged"))
    return element("ul", *items, class_="legend")


def _swatch(*children: str) -> Markup:
    return element("svg", *children, viewBox="0 0 36 14", width=36, height=14, aria_hidden="true")


@dataclass(frozen=True, slots=True)
class _Scale:
    """A logarithmic axis. The axis maps the values from `low` to `high` to the pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)


def _scales(picture: Picture) -> tuple[_Scale, _Scale]:
    points = [point for curve in picture.curves for point in curve.points]
    xs = [point.x for point in points]
    ys = [value for point in points for value in (point.y, point.low, point.high) if value]
    ys += [y for line in picture.lines for _, y in line.points]
    ys += [end for point in points for end in point.expected or ()]
    beside = max((max(xs) / min(xs)) ** _BESIDE, 1.15)
    left, right = min(xs) / beside, max(xs) * beside
    low, high = min(ys) / 1.2, max(ys) * 1.25
    if high / low < 4:  # at least a factor of 4, so that noise looks as small as it is
        middle = math.sqrt(low * high)
        low, high = middle / 2, middle * 2
    return _Scale(left, right, _LEFT, _WIDTH - _RIGHT), _Scale(low, high, _HEIGHT - _BOTTOM, _TOP)


def _axes(picture: Picture, x: _Scale, y: _Scale) -> list[Markup]:
    parts = []
    bottom = _HEIGHT - _BOTTOM
    for value in _y_ticks(y):
        at = y.at(value)
        parts.append(element("path", d=f"M{_LEFT},{at}H{_WIDTH - _RIGHT}", class_="grid"))
        parts.append(element("text", picture.y_text(value), x=_LEFT - 8, y=at + 4, text_anchor="end"))
    sizes = sorted({point.x for curve in picture.curves for point in curve.points})
    for value in _spread(sizes):
        at = x.at(value)
        parts.append(element("path", d=f"M{at},{bottom}v5", class_="axis"))
        parts.append(element("text", picture.x_text(value), x=at, y=bottom + 18, text_anchor="middle"))
    parts.append(element("path", d=f"M{_LEFT},{_TOP}V{bottom}H{_WIDTH - _RIGHT}", class_="axis"))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(element("text", picture.x_title, x=middle, y=_HEIGHT - 8, text_anchor="middle"))
    turned = f"translate(15,{(_TOP + bottom) / 2:.0f}) rotate(-90)"
    parts.append(element("text", picture.y_title, transform=turned, text_anchor="middle"))
    return parts


def _y_ticks(scale: _Scale) -> list[float]:
    """Return the ticks inside the scale: 1, 2 and 5 x 10^n.

    If there are more than 8 ticks, return at most 8 powers of ten instead.
    """
    decades = range(math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high)) + 1)
    fine = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    inside = [value for value in fine if scale.low <= value <= scale.high]
    if len(inside) <= 8:
        return inside
    powers = [10.0**decade for decade in decades if scale.low <= 10.0**decade <= scale.high]
    return powers[:: -(-len(powers) // 8)]


def _spread(values: Sequence[float]) -> list[float]:
    """Return at most _MOST_X_LABELS of the values. Neighbouring values have a minimum distance.

    The largest value is always returned. Unless all values are close together, the smallest value is also returned.
    """
    if not values:
        return []
    room = max(values[-1] / values[0], 2) ** (1 / (_MOST_X_LABELS + 2))
    shown = [values[-1]]
    for value in reversed(values):
        if shown[-1] / value >= room:
            shown.append(value)
    if len(shown) > 1:
        shown[-1] = values[0]
    return shown[::-1]


def _line(line: PlotLine, x: _Scale, y: _Scale) -> Markup:
    points = [(x.at(at), y.at(value)) for at, value in line.points]
    if len({value for _, value in points}) == 1:
        first, last = line.points[0][0] / _BEYOND, line.points[-1][0] * _BEYOND
        begin, end = (x.low, x.high) if line.whole else (max(first, x.low), min(last, x.high))
        path = f"M{x.at(begin)},{points[0][1]}H{x.at(end)}"
    else:
        path = "M" + "L".join(f"{at},{value}" for at, value in points)
    look: dict[str, str | None] = {"class_": "bound", "stroke_dasharray": None if line.hard else "5 4"}
    if line.colour:
        look = {"class_": "floor", "stroke": _ink(line)}
    drawn = element("path", d=path, **look)
    return element("g", element("title", line.label), drawn)


def _band(curve: PlotCurve, x: _Scale, y: _Scale) -> list[Markup]:
    """Return a band that shows what a real machine is expected to reach.

    Return an empty list if no point has an expected interval.
    """
    known = [(x.at(point.x), point.expected) for point in curve.points if point.expected]
    if not known:
        return []
    lower = [f"{at},{y.at(low)}" for at, (low, _) in known]
    upper = [f"{at},{y.at(high)}" for at, (_, high) in reversed(known)]
    return [element("path", d=f"M{'L'.join([*lower, *upper])}z", fill=_ink(curve), opacity=_BAND_OPACITY)]


def _curve(curve: PlotCurve, x: _Scale, y: _Scale) -> Markup:
    parts = [element("title", curve.label)]
    path = "M" + "L".join(f"{x.at(point.x)},{y.at(point.y)}" for point in curve.points)
    parts.append(element("path", d=path, class_="curve", stroke=_ink(curve), stroke_dasharray=_dashes(curve)))
    for point in curve.points:
        at = x.at(point.x)
        if point.low and point.high:
            ends = f"M{at},{y.at(point.low)}V{y.at(point.high)}"
            parts.append(element("path", d=ends, class_="interval", stroke=_ink(curve)))
        place = f"translate({at},{y.at(point.y)})"
        parts.append(element("path", d=_MARKERS[curve.marker], transform=place, **_colours(curve, point.hollow)))
    return joined(element("g", *parts))


def _colours(curve: PlotCurve, hollow: bool) -> dict[str, str]:
    ink = _ink(curve)
    return {"class_": "hollow", "stroke": ink} if hollow else {"fill": ink}


def _ink(curve: PlotCurve | PlotLine) -> str:
    """Return the colour of a curve or line. Black curves have the colour of the text.

    On dark pages, the colour of the text is white.
    """
    return "currentColor" if curve.colour == "#000000" else curve.colour


def _dashes(curve: PlotCurve) -> str | None:
    return (None, "7 3", "2 3", "9 3 2 3")[curve.number % 4]
