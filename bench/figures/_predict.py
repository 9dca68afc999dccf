"""Draw predicted bus bandwidth by size, with a line and a band for each algorithm. The user's rows are points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import nan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.figures import _style
from bench.figures._origin import FigureOrigin
from bench.predict.predict import busbw
from bench.results.curves import world as ranks_and_nodes

_MOST_PANELS = 8
_REMARK = (
    "bands: 90 % intervals; below 1 MiB, fewer than 90 % of the measurements are inside; "
    "sizes without a line: only an interval is known"
)


def curves(
    rows: Sequence[Mapping[str, Any]], measured: Sequence[tuple[str, str, int, int, int, float]], machine: str
) -> Figure:
    """Draw one panel for each pattern, number of nodes and number of GPUs per node.

    `measured`: the measured points as (basis, pattern, nodes, GPUs per node, bytes, seconds).
    """
    every = list(dict.fromkeys(_world(row) for row in rows))
    worlds = every[:_MOST_PANELS]
    rows = [row for row in rows if _world(row) in worlds]
    looks = _style.looks_of_kinds(str(row["algorithm"]) for row in rows)
    figure, axes = _style.panels(len(worlds))
    for panel, world in zip(axes, worlds, strict=True):
        pattern, nodes, per_node = world
        own = [row for row in rows if _world(row) == world]
        for name in dict.fromkeys(row["algorithm"] for row in own):
            _draw(panel, looks[name], [row for row in own if row["algorithm"] == name])
        points = [each for each in measured if each[1:4] == world]
        rates = [(busbw(pattern, size, nodes * per_node, seconds) or 0.0) / 1e9 for *_, size, seconds in points]
        panel.plot([each[4] for each in points], rates, linestyle="", marker="o", color="black", markersize=4)
        title = f"{pattern}, {ranks_and_nodes(nodes * per_node, nodes).replace('rank', 'GPU')}"
        _style.panel_title(panel, title, _best(own))
        _style.size_axis(panel, [row["payload_bytes"] for row in own])
        ends = [row[f"busbw{end}_bytes_per_s"] for row in own for end in ("_low", "", "_high")]
        _style.rate_axis(panel, _style.log_limits([*rates, *(end / 1e9 for end in ends if end)]))
        panel.text(
            0.02, 0.97, "PREDICTED", transform=panel.transAxes, fontsize=_style.SMALL_TEXT, color=_style.GREY, va="top"
        )
    with_times = {row["algorithm"] for row in rows if row["high_s"] is not None}  # others: only the bound
    handles = [
        look.handle() if name in with_times else Line2D([], [], color=look.colour, linestyle=":", label=name)
        for name, look in looks.items()
    ]
    if measured:
        basis = " and ".join(dict.fromkeys(each[0] for each in measured))
        handles.append(
            Line2D([], [], color="black", marker="o", linestyle="", markersize=4, label=f"your rows, {basis}")
        )
    title = f"Predicted bus bandwidth by size: {machine}"
    remarks = [_REMARK, *(["dotted: bound by the links"] if with_times < set(looks) else [])]
    remarks += (
        [f"patterns and numbers of GPUs that are not drawn: {len(every) - len(worlds)}"] if worlds != every else []
    )
    _style.finish(figure, title, "PREDICTED, not measured", handles, remarks)
    _style.sign(figure, FigureOrigin(machine, date=f"computed {datetime.now(UTC).date()}"))
    return figure


def _best(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the highest bandwidth of a panel as text, with the interval of this bandwidth.

    If no bandwidth of the panel has a median, the text has only the highest upper end of all intervals.
    """
    known = [row for row in rows if row["busbw_bytes_per_s"]]
    if not known:
        highest = max((row["busbw_high_bytes_per_s"] or 0.0 for row in rows), default=0.0)
        return f"at most {highest / 1e9:.3g} GB/s"
    best = max(known, key=lambda row: row["busbw_bytes_per_s"])
    low, middle, high = ((best[f"busbw{end}_bytes_per_s"] or 0.0) / 1e9 for end in ("_low", "", "_high"))
    return f"up to {middle:.3g} [{low:.3g}..{high:.3g}] GB/s"


def _world(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return row["pattern"], row["num_nodes"], row["ranks_per_node"]


def _draw(panel: Axes, look: _style.Look, rows: Sequence[Mapping[str, Any]]) -> None:
    sizes = [row["payload_bytes"] for row in rows]
    if rows[0]["high_s"] is None:  # only the bound by the links is known
        tops = [(row["busbw_high_bytes_per_s"] or 0.0) / 1e9 for row in rows]
        panel.plot(sizes, tops, color=look.colour, linestyle=":", linewidth=1.2)
        return
    low, high = ([(row[f"busbw_{end}_bytes_per_s"] or 0.0) / 1e9 for row in rows] for end in ("low", "high"))
    panel.fill_between(sizes, low, high, color=look.colour, alpha=0.18, linewidth=0)
    rates = [row["busbw_bytes_per_s"] / 1e9 if row["busbw_bytes_per_s"] else nan for row in rows]
    panel.plot(
        sizes, rates, color=look.colour, marker=look.marker, linestyle=look.dashes, linewidth=1.6, markersize=5.5
    )
