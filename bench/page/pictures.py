"""Draw the curves of a run: bandwidth and latency by size. Each pattern has a picture with a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.core.links import FloorKind
from bench.core.units import format_duration, format_size
from bench.page import blocks, plot
from bench.page.markup import Markup, element, joined
from bench.results import curves, looks, text
from bench.results.bound_curves import bound_curves
from bench.results.curves import CurveLabel, CurvePoint
from bench.results.document import Document, Summary
from bench.results.table import Column, Table


@dataclass(frozen=True, slots=True)
class _Labelled:
    """A row of the table below a picture: the label of a curve, and the summary of a point."""

    label: str
    row: Summary


def bandwidths(document: Document) -> Markup:
    """Return a picture for each pattern with a bus bandwidth, with the bounds of the links."""
    rows = [row for row in curves.valid(document, "pipelined") if row.busbw_bytes_per_s and row.payload_bytes]
    columns = [
        *_COMMON,
        Column("busbw", lambda one: text.gigabytes(one.row.busbw_bytes_per_s), unit="(GB/s)"),
        Column("bound", lambda one: text.gigabytes(one.row.bound_bytes_per_s), unit="(GB/s)", optional=True),
        Column("of bound", lambda one: text.percent(one.row.bound_fraction), unit="(%)", optional=True),
        Column("name of the bound", lambda one: one.row.bound_name or "", right=False, optional=True),
    ]
    remarks = curves.invalid_remark(document, "pipelined")
    words = ("bus bandwidth", "busbw (GB/s)")
    return _pictures(document, rows, "bandwidth", words, (_rate, _gigabytes), columns, remarks)


def latencies(document: Document) -> Markup:
    """Return a picture for each pattern with an isolated time.

    The picture also shows the latency floor, which is the shortest time that the links' latencies allow.
    """
    rows = [row for row in curves.valid(document, "isolated") if row.payload_bytes]
    columns = [
        *_COMMON,
        Column("time", lambda one: text.time(one.row), unit="(us)"),
        Column("ci95", lambda one: text.interval(one.row.ci_low_s, one.row.ci_high_s), unit="(us)"),
        Column("p95", lambda one: text.microseconds(one.row.p95_s), unit="(us)", optional=True),
        Column("floor", lambda one: text.microseconds(one.row.floor_s), unit="(us)", optional=True),
    ]
    remarks = curves.invalid_remark(document, "isolated")
    words = ("time of one operation", "time")
    return _pictures(document, rows, "latency", words, (_time, format_duration), columns, remarks)


_NO_LIMIT = " (reference, not a limit)"
_COMMON = (
    Column("size", lambda one: format_size(one.row.payload_bytes)),
    Column("curve", lambda one: one.label, right=False),
    Column("group", lambda one: "" if one.row.group == "world" else one.row.group, right=False, optional=True),
)


def _pictures(
    document: Document,
    rows: Sequence[Summary],
    name: str,
    words: tuple[str, str],
    values: tuple[Callable[[CurvePoint], plot.PlotPoint], Callable[[float], str]],
    columns: Sequence[Column],
    remarks: Sequence[str],
) -> Markup:
    if not rows:
        return Markup()
    figures: list[Markup] = []
    points: list[CurvePoint] = []
    styles = _styles(curves.transports(document, rows))
    for number, (pattern, of_pattern) in enumerate(curves.by(rows, lambda row: row.pattern).items()):
        lines = curves.lines(document, of_pattern)
        points += [point for line in lines.values() for point in line]
        drawn = [_curve(label, styles[label], line, values[0]) for label, line in lines.items()]
        bounds = _bounds(name, lines)
        what, axis = words
        picture = plot.Picture(
            title=f"{pattern}: {what} by size",
            description=f"{len(drawn)} curves; the table below the picture has every value",
            x_title="size (bytes, binary units; logarithmic)",
            y_title=f"{axis}, logarithmic",
            curves=drawn,
            x_text=lambda value: format_size(round(value)),
            y_text=values[1],
            lines=bounds,
            watermark="MODELLED" if any(row.modelled for row in of_pattern) else "",
        )
        shown = [_Labelled(str(label), row) for label, line in lines.items() for point in line for row in point.rows]
        shown.sort(key=lambda one: one.row.payload_bytes)
        figures.append(
            element(
                "figure",
                element("h3", curves.panel_title(pattern, of_pattern)),
                plot.draw(picture, f"{name}-{number}"),
                plot.legend(drawn, bounds),
                _bound_names(bounds),
                blocks.details("Values", blocks.table(Table(columns, shown), f"{pattern}: {what}")),
            )
        )
    notes = [element("li", remark) for remark in (*curves.interval_remark(points), *remarks)]
    return joined(element("div", *figures, class_="figures"), element("ul", *notes, class_="remarks") if notes else "")


def _styles(transports: Mapping[CurveLabel, str]) -> dict[CurveLabel, tuple[str, str, int]]:
    """Return the colour and the marker of each curve, and its number among the curves with this colour.

    A curve has the same colour, marker and number in all pictures. All curves of one transport have the same colour,
    but different markers and dashes.
    """
    found: dict[CurveLabel, tuple[str, str, int]] = {}
    for label, transport in transports.items():
        colour, marker = looks.of_transport(transport)
        number = sum(other == colour for other, *_ in found.values())
        if number:
            marker = looks.MORE_MARKERS[(number - 1) % len(looks.MORE_MARKERS)]
        found[label] = colour, marker, number
    return found


def _curve(
    label: CurveLabel,
    style: tuple[str, str, int],
    line: Sequence[CurvePoint],
    point: Callable[[CurvePoint], plot.PlotPoint],
) -> plot.PlotCurve:
    colour, marker, number = style
    return plot.PlotCurve(str(label), colour, marker, [point(each) for each in line], number)


def _bounds(name: str, lines: Mapping[CurveLabel, Sequence[CurvePoint]]) -> list[plot.PlotLine]:
    if name == "bandwidth":
        return [
            plot.PlotLine(
                str(curve), list(zip(curve.sizes, curve.rates, strict=True)), curve.kind == "hard", whole=curve.whole
            )
            for curve in bound_curves(lines)
        ]
    rows = [point.first for line in lines.values() for point in line]
    ends = {row.payload_bytes for row in rows}
    with_floor = [row for row in rows if row.floor_s]
    floors = curves.by(
        with_floor, lambda row: (row.transport, row.floor_name, row.floor_kind, row.num_ranks, row.num_nodes)
    )
    found = []
    for (transport, floor, kind, ranks, nodes), of_floor in floors.items():
        points = sorted({(row.payload_bytes, row.floor_s or 0.0) for row in of_floor})
        words = f"floor of {transport}: {floor}, {curves.world(ranks, nodes)}"
        found.append(
            plot.PlotLine(
                words + _NO_LIMIT * (kind == FloorKind.REFERENCE),
                points,
                hard=False,
                colour=looks.of_transport(transport)[0],
                whole=points[0][0] == min(ends) and points[-1][0] == max(ends),
            )
        )
    return found


def _bound_names(lines: Sequence[plot.PlotLine]) -> Markup:
    names = [element("li", line.label) for line in lines]
    return element("ul", *names, class_="bounds") if names else Markup()


def _rate(point: CurvePoint) -> plot.PlotPoint:
    """Return the point of a rate. The interval of the rate is computed from the interval of the time."""
    low, high = point.interval or point.spread or (None, None)
    if low is None:
        low_rate, high_rate = None, None
    else:
        low_rate, high_rate = point.busbw(high), point.busbw(low)
    expected = curves.expected_busbw(point.first)
    return plot.PlotPoint(
        point.payload_bytes, point.busbw(), low_rate, high_rate, hollow=not point.converged, expected=expected
    )


def _time(point: CurvePoint) -> plot.PlotPoint:
    low, high = point.interval or point.spread or (None, None)
    expected = curves.expected_seconds(point.first)
    return plot.PlotPoint(point.payload_bytes, point.seconds, low, high, hollow=not point.converged, expected=expected)


def _gigabytes(value: float) -> str:
    return f"{value:.12f}".rstrip("0").rstrip(".")  # 0.00001, not 1e-05
