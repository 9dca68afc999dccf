"""Draw the errors of predictions by class.

A system is predicted without its own measurements. Each row is drawn as a point.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.figures import _style
from bench.figures._origin import FigureOrigin
from bench.predict.validate import LARGE_BYTES, HeldOutRow, link_level, summary_of

_RATIOS = (0.1, 0.2, 0.5, 0.8, 1.0, 1.25, 2.0, 5.0, 10.0)
_TITLE = "Error of predictions: each published system is predicted from the other systems alone"
# What a reader calls the links of each class (predict.link_class).
_WORDS = {
    "nvswitch-nvls": "NVSwitch that adds (NVLS)",
    "nvswitch": "NVSwitch",
    "nvlink-domain": "NVLink between nodes",
    "nvlink-mesh": "NVLink mesh",
    "nvlink-pairs": "NVLink bridges",
    "infinity-fabric": "Infinity Fabric",
    "pcie-p2p": "PCIe with P2P",
    "no-p2p": "PCIe through the host",
    "network": "network",
}


def errors(rows: Sequence[HeldOutRow]) -> Figure:
    """Draw the ratio of predicted time to measured time.

    The left panel shows all rows by size. The right panel shows rows of large sizes by class.
    """
    classes = list(dict.fromkeys(sorted(link_level(row) for row in rows)))
    looks = _style.looks_of_kinds(classes)
    figure, (left, right) = _style.panels(2, height_in=4.2)
    for index, name in enumerate(classes):
        own = [row for row in rows if link_level(row) == name]
        large = [row for row in own if row.payload_bytes >= LARGE_BYTES]
        # Classes are side by side at each size, so that they do not hide each other.
        aside = 2.0 ** (0.8 * ((index + 0.5) / len(classes) - 0.5))
        _points(left, looks[name], own, [aside * row.payload_bytes for row in own])
        _points(right, looks[name], large, _positions(index, len(large)))
    for panel in (left, right):
        panel.set_yscale("log")
        panel.set_ylim(0.9 * _RATIOS[0], 1.1 * _RATIOS[-1])
        panel.yaxis.set_major_locator(FixedLocator(_RATIOS))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_ylabel("predicted / measured time (logarithmic)", fontsize=_style.TEXT)
    _style.size_axis(left, [row.payload_bytes for row in rows if row.payload_bytes])
    large_rows = [row for row in rows if row.payload_bytes >= LARGE_BYTES]
    _style.panel_title(left, "all sizes", _error(rows))
    _style.panel_title(right, "sizes of 64 MiB and above, by the slowest links", _error(large_rows))
    right.xaxis.set_major_locator(FixedLocator(range(len(classes))))
    words = [_WORDS.get(name, name) for name in classes]
    right.set_xticklabels(words, rotation=30, ha="right", fontsize=_style.SMALL_TEXT)
    right.set_xlim(-0.6, len(classes) - 0.4)
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, linestyle="", label=_WORDS.get(name, name))
        for name, look in looks.items()
    ]
    handles.append(
        Line2D(
            [],
            [],
            color=_style.GREY,
            marker="o",
            markerfacecolor="white",
            linestyle="",
            label="hollow: the measured time is outside the interval",
        )
    )
    _style.finish(
        figure,
        _TITLE,
        "PREDICTED, compared with MEASURED",
        handles,
        [
            "a point is one size of one published collective; above 1, the prediction is too slow; below 1, too fast",
            "a prediction that is only an interval is drawn at its geometric middle; ratios beyond 10 at the edge",
        ],
    )
    systems = len({row.system for row in rows})
    _style.sign(
        figure, FigureOrigin(f"{systems} systems, {len(rows)} rows", date=f"computed {datetime.now(UTC).date()}")
    )
    return figure


def _error(rows: Sequence[HeldOutRow]) -> str:
    return f"median error of the systems {100 * summary_of((), rows).error:.3g} %" if rows else "no system"


def _points(panel: Axes, look: _style.Look, rows: Sequence[HeldOutRow], x: Sequence[float]) -> None:
    """Draw rows as points. A point is hollow if the measurement is outside the predicted interval."""
    for covered in (True, False):
        shown = [k for k, row in enumerate(rows) if row.covered is covered]
        ratios = [min(max(rows[k].error + 1, _RATIOS[0]), _RATIOS[-1]) for k in shown]
        panel.plot(
            [x[k] for k in shown],
            ratios,
            linestyle="",
            marker=look.marker,
            color=look.colour,
            markersize=4.5,
            markerfacecolor=look.colour if covered else "white",
        )


def _positions(index: int, num: int) -> list[float]:
    """Return `num` positions next to each other, centred on the position of the class with this index."""
    return [index + 0.6 * ((k + 0.5) / num - 0.5) for k in range(num)]
