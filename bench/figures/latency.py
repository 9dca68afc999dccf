"""Time of one isolated operation by size, with spread and latency floor; one panel per pattern."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.core.units import format_duration
from bench.figures import _style
from bench.results import curves
from bench.results.document import Document, Summary


def applies(document: Document) -> bool:
    """Check whether a pattern with sizes has an isolated time."""
    return bool(_chosen(document))


def draw(document: Document) -> list[tuple[str, Figure]]:
    """Return one figure, `latency`, which shows the slowest group at each size.

    Return an empty list if the document has no isolated times.

    A pattern without sizes (barrier) gets a remark instead of a panel.
    """
    rows = _chosen(document)
    if not rows:
        return []
    labels = curves.labels(document)
    looks = _style.looks(curves.label_of(labels, row) for row in rows)
    patterns = curves.by(rows, lambda row: row.pattern)
    figure, axes = _style.panels(len(patterns))
    for panel, (pattern, of_pattern) in zip(axes, patterns.items(), strict=True):
        panel.set_title(curves.panel_title(pattern, of_pattern), fontsize=_style.TEXT)
        for (_, name), line in curves.by(of_pattern, lambda row: (row.job, curves.label_of(labels, row))).items():
            _draw_line(panel, looks[name], curves.slowest_groups(line))
        _style.size_axis(panel, (row.payload_bytes for row in of_pattern))
        _time_axis(panel)
        if any(row.modelled for row in of_pattern):
            _style.watermark(panel)
    handles = [look.handle() for look in looks.values()]
    if any(row.floor_s for row in rows):
        names = {row.floor_name for row in rows if row.floor_s}
        pings = any(name and name.startswith("ping-pong") for name in names)
        label = "ping-pong x least steps (reference)" if pings else "floor: latencies of the links"
        handles.append(Line2D([], [], color=_style.GREY, linestyle="--", label=label))
    remarks = ["median of the slowest rank's times with its 95 % interval; band: fastest sample to p95 if known"]
    remarks += curves.algorithm_remark(rows)
    remarks += [*_sizeless(document, labels), *curves.invalid_remark(document, "isolated")]
    _style.finish(figure, "Time of one operation at a time", handles, rows, remarks)
    return [("latency", figure)]


def _chosen(document: Document) -> list[Summary]:
    return [row for row in curves.valid(document, "isolated") if row.payload_bytes > 0]


def _draw_line(panel: Axes, look: _style.Look, rows: list[Summary]) -> None:
    sizes = [float(row.payload_bytes) for row in rows]
    times = [curves.seconds(row) for row in rows]
    bands = [_band(row) for row in rows]
    panel.fill_between(
        sizes, [low for low, _ in bands], [high for _, high in bands], color=look.colour, alpha=0.18, linewidth=0
    )
    _style.points(panel, look, rows, sizes, times, [_error(row) for row in rows])
    floors = [(size, row.floor_s) for size, row in zip(sizes, rows, strict=True) if row.floor_s]
    panel.plot(
        [size for size, _ in floors],
        [floor for _, floor in floors],
        color=_style.GREY,
        linestyle="--",
        linewidth=1.2,
        zorder=1,
    )


def _time_axis(panel: Axes) -> None:
    """Label powers of ten (10 us, 1 ms, ...). If there are few of them, also label their multiples by 2 and 5."""
    panel.set_yscale("log")
    panel.set_ylabel("time", fontsize=_style.TEXT)
    low, high = panel.get_ylim()
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 300 else (1.0, 2.0, 5.0)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: format_duration(seconds)))
    panel.yaxis.set_minor_formatter(NullFormatter())


def _band(row: Summary) -> tuple[float, float]:
    """Return the ends of a row's band in seconds: the fastest sample and p95.

    If these are unknown, return the ends of the median's interval, or the median twice.
    """
    median = curves.seconds(row)
    if row.p95_s is not None and row.min_s is not None:
        return row.min_s, row.p95_s
    return row.ci_low_s or median, row.ci_high_s or median


def _error(row: Summary) -> tuple[float, float]:
    """Return how far the median's interval reaches below and above the median, in seconds."""
    median = curves.seconds(row)
    return median - (row.ci_low_s or median), (row.ci_high_s or median) - median


def _sizeless(document: Document, labels: dict[str, str]) -> list[str]:
    rows = [row for row in curves.valid(document, "isolated") if row.payload_bytes == 0 and row.group == "world"]
    texts = [f"{row.pattern} over {labels[row.job]}: {format_duration(curves.seconds(row))}" for row in rows]
    return ["; ".join(texts)] if texts else []
