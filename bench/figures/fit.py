"""Draw the measured times and the fitted model latency + size / bandwidth.

Each mode has a figure, and each pattern has a panel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.core.units import format_bytes, format_duration, format_rate
from bench.figures import _origin, _style
from bench.results import curves, model
from bench.results.curves import CurveLabel
from bench.results.document import Document, Fit, Segment

_TITLES = {
    "isolated": "Fitted model, latency + size / bandwidth: isolated operations",
    "pipelined": "Fitted model, latency + size / bandwidth: operations back to back, per operation",
}
_HALF: dict[str, Any] = {"linestyle": "", "marker": "|", "markersize": 16, "markeredgewidth": 1.8, "zorder": 4}

_HEADLINE_SHARE = 0.09  # height of a headline above the data, as a share of the time axis

_MOST_NAME_LETTERS = 26  # longest name of a curve that is written before its headline

Points = Mapping[tuple[str, str, str], Sequence[model.Point]]  # by job, mode and group


def applies(document: Document) -> bool:
    """Check whether the document has a fit."""
    return bool(document.fits)


def draw(document: Document) -> list[tuple[str, Figure]]:
    """Return one figure for each mode with fits: `fit-isolated`, `fit-pipelined`.

    If a job has several groups, the figure shows the slowest group.
    """
    return [(f"fit-{mode}", _figure(document, mode)) for mode in sorted({fit.mode for fit in document.fits})]


def _figure(document: Document, mode: str) -> Figure:
    headers = document.headers
    points = {_key(curve): curve.points for curve in model.curves(headers, document.summaries)}
    fits = [fit for fit in document.fits if fit.mode == mode]
    cases = {fit.job: model.header_of(headers, fit.job) for fit in fits}
    labels = curves.labels(replace(document, headers=cases))
    looks = _style.looks({labels[fit.job]: fit.transport for fit in fits})
    patterns = list(dict.fromkeys(fit.pattern for fit in fits))
    most = max(sum(fit.pattern == pattern for fit in fits) for pattern in patterns)
    figure, axes = _style.panels(len(patterns), height_in=3.6 + 0.2 * min(max(most - 3, 0), 12))
    for panel, pattern in zip(axes, patterns, strict=True):
        of_pattern = [fit for fit in fits if fit.pattern == pattern]
        shown = _slowest_groups(of_pattern, points)
        drawn = [(looks[labels[fit.job]], fit, points[_key(fit)]) for fit in shown]
        _draw_panel(panel, drawn, [labels[fit.job] for fit in shown])
        groups = len({fit.group for fit in of_pattern})
        panel.set_title(pattern + (", slowest group of each size" if groups > 1 else ""), fontsize=_style.TEXT)
        if any(cases[fit.job].modelled for fit in of_pattern):
            _style.watermark(panel)
    rows = [row for row in document.summaries if row.mode == mode and model.case_of(row.job, headers[row.job]) in cases]
    drawn_points = [point for fit in fits for point in points[_key(fit)]]
    remarks = _remarks(fits, drawn_points)
    title = _TITLES.get(mode, f"Model, {mode}")
    _style.finish(figure, title, _origin.kind_of(rows), _handles(looks.values(), fits), remarks, drawn_points)
    return figure


def _key(curve: Fit | model.Curve) -> tuple[str, str, str]:
    return curve.job, curve.mode, curve.group


def _slowest_groups(fits: Sequence[Fit], points: Points) -> list[Fit]:
    """For each job, return the fit of one group: the group with the longest time at the largest size."""
    slowest: dict[str, Fit] = {}
    for fit in sorted(fits, key=lambda fit: points[_key(fit)][-1].seconds):
        slowest[fit.job] = fit
    return [slowest[job] for job in dict.fromkeys(fit.job for fit in fits)]


def _draw_panel(
    panel: Axes, drawn: Sequence[tuple[_style.Look, Fit, Sequence[model.Point]]], labels: Sequence[CurveLabel]
) -> None:
    ends: list[float] = []
    for look, fit, points in drawn:
        _draw_points(panel, look, points)
        _draw_fit(panel, look, fit)
        for segment in fit.segments:
            ends += [model.predicted(segment, size) for size in (segment.first_bytes, segment.last_bytes)]
        ends += [end for point in points for end in (point.seconds, point.low_s, point.high_s) if end]
    _style.size_axis(panel, (point.payload_bytes for _, _, points in drawn for point in points))
    low, high = _style.log_limits(ends)
    _style.time_axis(panel, (low, high * (high / low) ** (_HEADLINE_SHARE * len(drawn))))
    handles = [
        replace(look, label=_named(label, _headline(fit)), dashes=look.dashes if fit.fits else ":").handle()
        for (look, fit, _), label in zip(drawn, labels, strict=True)
    ]
    panel.legend(
        handles=handles,
        loc="upper left",
        fontsize=_style.SMALL_TEXT,
        handlelength=2,
        labelspacing=0.3,
        borderpad=0.2,
        borderaxespad=0.2,
        edgecolor="none",
        framealpha=0.8,
    )


def _draw_points(panel: Axes, look: _style.Look, points: Sequence[model.Point]) -> None:
    sizes, times = [point.payload_bytes for point in points], [point.seconds for point in points]
    below = [point.seconds - (point.low_s or point.seconds) for point in points]
    above = [(point.high_s or point.seconds) - point.seconds for point in points]
    panel.errorbar(sizes, times, yerr=[below, above], fmt="none", ecolor=look.colour, elinewidth=1, capsize=2.5)
    for hollow in (False, True):
        chosen = [point for point in points if point.converged is not hollow]
        panel.plot(
            [point.payload_bytes for point in chosen],
            [point.seconds for point in chosen],
            linestyle="",
            color=look.colour,
            marker=look.marker,
            markersize=5.5,
            markerfacecolor="white" if hollow else look.colour,
        )


def _draw_fit(panel: Axes, look: _style.Look, fit: Fit) -> None:
    """Draw a line for each segment, and a tick at n1/2 of the last segment.

    At the size n1/2, the last segment reaches half its bandwidth. The panel prints the bandwidth of the last segment.
    If the model does not fit, the lines are dotted and have no tick.
    """
    for segment in fit.segments:
        sizes = np.geomspace(segment.first_bytes, segment.last_bytes, 100)
        times = [model.predicted(segment, size) for size in sizes]
        width, dashes = (1.6, look.dashes) if fit.fits else (1.0, ":")
        panel.plot(sizes, times, color=look.colour, linewidth=width, linestyle=dashes)
    last = fit.segments[-1]
    half = _half(last)
    if fit.fits and half:
        panel.plot([half], [model.predicted(last, half)], color="black", **_HALF)


def _half(segment: Segment) -> float | None:
    """Return the size n1/2, at which a segment reaches half its bandwidth.

    Return None if this size lies outside the segment's sizes.
    """
    half = segment.half_bytes
    return half if half and segment.first_bytes <= half <= segment.last_bytes else None


def _named(label: CurveLabel, headline: str) -> str:
    """Return the text for a panel: the name of a curve, followed by the headline of its fit.

    A name that is too long is left out, because the legend below the panels also shows it. The text does not say that a
    curve is modelled, because the panel already says so.
    """
    name = str(replace(label, modelled=False))
    return f"{name}: {headline}" if len(name) <= _MOST_NAME_LETTERS else headline


def _headline(fit: Fit) -> str:
    """Return the headline of a fit, such as `1.54 us, 1.3 GB/s, n1/2 2.61 KiB`.

    The headline has the latency of the first segment, and the bandwidth and n1/2 of the last segment.
    """
    if not fit.fits:
        at = f" at {format_bytes(fit.max_residual_bytes)}" if fit.max_residual_bytes else ""
        return f"does not fit ({100 * fit.max_residual:.0f} % off{at})"
    first, last = fit.segments[0], fit.segments[-1]
    latency = f"{'' if first.latency_low_s else 'below '}{format_duration(_latency(first))}"
    rate = "no growth with size" if last.bytes_per_s is None else format_rate(last.bytes_per_s)
    half = _half(last)
    return ", ".join([latency, rate, *([f"n1/2 {format_bytes(half)}"] if half else [])])


def _latency(segment: Segment) -> float:
    """Return the latency to draw for a segment, in seconds.

    If the interval of the latency contains zero, return the upper end of the interval.
    """
    return segment.latency_s if segment.latency_low_s else segment.latency_high_s or segment.latency_s


def _handles(looks: Iterable[_style.Look], fits: Sequence[Fit]) -> list[Line2D]:
    handles = [look.handle() for look in looks]
    if any(fit.fits and _half(fit.segments[-1]) for fit in fits):
        handles.append(Line2D([], [], color="black", label="n1/2: size with half the bandwidth", **_HALF))
    if not all(fit.fits for fit in fits):
        handles.append(Line2D([], [], color=_style.GREY, linestyle=":", linewidth=1, label="does not fit"))
    return handles


def _remarks(fits: Sequence[Fit], points: Sequence[model.Point]) -> list[str]:
    several = any(len(point.by_launch) > 1 for point in points)
    bars = "lowest and highest launch" if several else "95 % interval within one launch"
    known = any(point.low_s != point.high_s for point in points)
    points_are = f"median, bars: {bars}" if known else "median"
    remarks = [
        f"points: {points_are}; lines: fitted; a gap between lines: another algorithm or protocol",
        "numbers: latency of the line of small sizes, bandwidth (size / time) and n1/2 of the line of large sizes",
    ]
    if not all(fit.fits for fit in fits):
        remarks.append(f"no numbers if a point is more than {100 * model.LARGEST_RESIDUAL:.0f} % off the line")
    return remarks
