"""How every figure looks: a palette for colour-blind readers, panels, size axes, bounds, the word `modelled`, saving.

Figures are drawn without pyplot, so nothing is global and no display is needed. They are 10 inches wide at 100 dots per
inch and read well at 1000 pixels: no text below 9 points.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.core.derived import Document, Summary
from bench.core.record import THROUGH_HOST, Header
from bench.core.units import format_size

# Okabe and Ito, "Color Universal Design" (2008), without the yellow that vanishes on white; markers differ as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

WIDTH_IN = 10.0
DPI = 100
TEXT = 10
SMALL_TEXT = 9
GREY = "#444444"
_NUM_SIZE_LABELS = 8

# A bound so far above the data would press the data flat: it is named in the panel instead of drawn.
_BOUND_IN_VIEW = 2.5


@dataclass(frozen=True, slots=True)
class Look:
    """Colour, marker and dashes of one series, the same in every panel. Modelled series are dash-dotted."""

    label: str
    colour: str
    marker: str
    dashes: Literal["-", "--", "-."]

    def handle(self) -> Line2D:
        """The series as a legend shows it."""
        return Line2D([], [], color=self.colour, marker=self.marker, linestyle=self.dashes, label=self.label)


def valid(document: Document, mode: str) -> list[Summary]:
    """The rows of one mode that may be drawn: a time, and data that were not found wrong."""
    return [row for row in document.summaries if row.mode == mode and seconds(row) and row.verified is not False]


def seconds(row: Summary) -> float:
    """The median; of another tool's log its mean, or the time that its rate means. 0 where there is none of them."""
    if row.median_s is not None or not row.imported:
        return row.median_s or 0.0
    if row.mean_s is None and row.algbw_bytes_per_s:
        return (row.payload_bytes or 1) / row.algbw_bytes_per_s
    return row.mean_s or 0.0


def by(rows: Iterable[Summary], key: Callable[[Summary], Any]) -> dict[Any, list[Summary]]:
    """Rows by a key, in the order of their appearance."""
    found: dict[Any, list[Summary]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def slowest_groups(rows: Iterable[Summary]) -> list[Summary]:
    """At each size the row of the slowest group, sizes rising."""
    return [max(of_size, key=seconds) for _, of_size in sorted(by(rows, _payload).items())]


def _payload(row: Summary) -> int:
    return row.payload_bytes


def panel_title(pattern: str, rows: Iterable[Summary]) -> str:
    """The pattern, and of how many groups the slowest is drawn."""
    drawn = list(rows)
    groups = max(len({row.group for row in of_job}) for of_job in by(drawn, lambda row: row.job).values())
    if all(row.num_ranks == 1 and row.busbw_bytes_per_s is None for row in drawn):
        return f"{pattern} of one rank: the overhead of calls, no link"
    return pattern if groups == 1 else f"{pattern}, the slowest of {groups} groups"


def labels(document: Document) -> dict[str, str]:
    """job -> the fewest words that tell it from every other job of the same pattern; alike for alike jobs of others."""
    headers = document.headers
    told = {job: _told(header) for job, header in headers.items()}
    patterns = {header.pattern for header in headers.values()}
    rivals = [[told[job] for job, header in headers.items() if header.pattern == pattern] for pattern in patterns]
    varied = [index for index in range(1, _NUM_TOLD) if any(len({one[index] for one in jobs}) > 1 for jobs in rivals)]
    words = {job: ", ".join(filter(None, (one[0], *(one[index] for index in varied)))) for job, one in told.items()}
    places = {job: [(headers[job].pattern, text, mode) for mode in _modes(headers[job])] for job, text in words.items()}
    num = Counter(place for of_job in places.values() for place in of_job)
    for job, of_job in places.items():
        if any(num[place] > 1 for place in of_job):
            words[job] += f" [{job.removeprefix(headers[job].pattern + '-')}]"
    kinds = {job: " (modelled)" * header.modelled + " (imported)" * bool(header.imported)
             for job, header in headers.items()}  # fmt: skip
    return {job: text + kinds[job] for job, text in words.items()}


def _told(header: Header) -> tuple[str, ...]:
    """What jobs can differ in, in the order in which it is said."""
    topology = "" if header.topology == "world" else header.topology
    return (
        header.transport, header.dtype, header.reduce_op, world(header.num_ranks, header.num_nodes), topology,
        header.direction or "", *(_option(header, name) for name in _OPTIONS),
    )  # fmt: skip


_OPTIONS = ("order", "cache", "in-place", "root", "memory", "engine", "access", "via", "graph", "share-gpu")
_MOST_STAGED = 6
_LINE, _HANDLE = 125, 10  # letters: of a legend as wide as the figure, and of what stands before each label
_NUM_TOLD = 6 + len(_OPTIONS)


def _modes(header: Header) -> list[str]:
    """The modes of a job's rows; each has figures of its own."""
    asked = _option(header, "mode").removeprefix("mode ")
    return asked.split(",") if asked else ["isolated", "pipelined"]


def _option(header: Header, name: str) -> str:
    """`order reverse` where the case says so; nothing for a default."""
    case = list(header.case)
    flag = f"--{name}"
    return f"{name} {case[case.index(flag) + 1]}" if flag in case else ""


def series(labels: Mapping[str, str], row: Summary) -> str:
    """The line that a row stands on: its job's, but for copies through the host's memory, which show no peer link."""
    return labels[row.job] + ", through the host" * (THROUGH_HOST in row.flags)


def through_host_remark(rows: Iterable[Summary]) -> list[str]:
    """Which pairs are not drawn beside peer links."""
    pairs = [f"{row.src}-{row.dst}" for row in rows if THROUGH_HOST in row.flags]
    more = ", ..." if len(set(pairs)) > _MOST_STAGED else ""
    named = ", ".join(list(dict.fromkeys(pairs))[:_MOST_STAGED])
    return [f"copied through the host's memory, no peer link: {named}{more}"] if pairs else []


def looks(names: Iterable[str]) -> dict[str, Look]:
    """label -> its look; after seven series colours come again with other dashes."""
    found: dict[str, Look] = {}
    for index, name in enumerate(dict.fromkeys(names)):
        again = index // len(COLOURS) % 2 == 1
        dashes: Literal["-", "--", "-."] = "-." if "(modelled)" in name else "--" if again else "-"
        found[name] = Look(name, COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)], dashes)
    return found


def panels(num_panels: int, height_in: float = 3.6) -> tuple[Figure, list[Axes]]:
    """A figure of equal panels, two beside each other, and their axes; the height is of one row, in inches."""
    columns = min(num_panels, 2)
    rows = -(-num_panels // columns)
    figure = Figure(figsize=(WIDTH_IN, height_in * rows + 0.9), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, columns, index + 1) for index in range(num_panels)]
    for each in axes:
        each.tick_params(labelsize=SMALL_TEXT)
        each.grid(True, color="#dddddd", linewidth=0.6)
        each.set_axisbelow(True)
        for side in ("top", "right"):
            each.spines[side].set_visible(False)
    return figure, axes


def finish(figure: Figure, title: str, handles: Sequence[Any], rows: Iterable[Summary], remarks: Sequence[str]) -> None:
    """Title above, legend and remarks below, and `MODELLED` across every panel if any row is."""
    drawn = list(rows)
    modelled = [row.modelled for row in drawn]
    if any(modelled):
        title += " - modelled, not measured" if all(modelled) else " - partly modelled"
    imported = [row.imported for row in drawn]
    if any(imported):
        title += " - imported from other tools' logs" if all(imported) else " - partly imported"
    figure.suptitle(title, fontsize=12, fontweight="bold")
    if any("not-converged" in row.flags for row in drawn):
        hollow = Line2D([], [], color=GREY, marker="o", markerfacecolor="white", linestyle="", label="not converged")
        handles = [*handles, hollow]
    remark = "\n".join(textwrap.fill(line, 130) for line in remarks)
    if handles:
        # The remarks are the legend's title: the layout keeps the two apart from each other and from the panels.
        longest = max(len(str(handle.get_label())) for handle in handles)
        columns = max(1, min(len(handles), 3, _LINE // (longest + _HANDLE)))
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=TEXT,
                               frameon=False, handlelength=3, title=remark, title_fontsize=SMALL_TEXT)  # fmt: skip
        legend.get_title().set_color(GREY)
    else:
        figure.supxlabel(remark, fontsize=SMALL_TEXT, color=GREY)


def watermark(axes: Axes) -> None:
    """The word that keeps a copied panel honest."""
    axes.text(0.5, 0.5, "MODELLED", transform=axes.transAxes, fontsize=30, color="#999999", alpha=0.25, rotation=20,
              ha="center", va="center", zorder=0)  # fmt: skip


def points(axes: Axes, look: Look, rows: Sequence[Summary], x: Sequence[float], y: Sequence[float],
           errors: Sequence[tuple[float, float]] | None = None) -> None:  # fmt: skip
    """One series: a bar for the interval (below, above) of each point, hollow markers where not converged, and a line.

    The line joins neighbours of one algorithm only: what lies between two algorithms is on neither's curve.
    """
    if errors is not None:
        axes.errorbar(x, y, yerr=list(zip(*errors, strict=True)), fmt="none", ecolor=look.colour, elinewidth=1,
                      capsize=2.5)  # fmt: skip
    for _, piece in groupby(range(len(rows)), key=lambda index: rows[index].algorithm):
        line = list(piece)
        axes.plot([x[index] for index in line], [y[index] for index in line], color=look.colour, linestyle=look.dashes,
                  linewidth=1.6)  # fmt: skip
    for hollow in (False, True):
        chosen = [index for index, row in enumerate(rows) if ("not-converged" in row.flags) is hollow]
        axes.plot([x[index] for index in chosen], [y[index] for index in chosen], linestyle="", color=look.colour,
                  marker=look.marker, markersize=5.5, markerfacecolor="white" if hollow else look.colour)  # fmt: skip


def size_axis(axes: Axes, sizes: Iterable[int]) -> None:
    """A binary logarithmic x axis labelled 8, 1K, 1M, ...: from the largest down, as many as have room."""
    present = sorted(set(sizes), reverse=True)
    axes.set_xscale("log", base=2)
    room = max(present[0] / present[-1], 2) ** (1 / (_NUM_SIZE_LABELS + 4))
    labelled = present[:1]
    for size in present[1:]:
        if labelled[-1] / size >= room:
            labelled.append(size)
    axes.xaxis.set_major_locator(FixedLocator(labelled[::-1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_size(round(value))))
    axes.set_xlabel("size (bytes, binary units)", fontsize=TEXT)


@dataclass(frozen=True, slots=True)
class _BoundCurve:
    """One bound of one world over sizes, rising; rates in GB/s."""

    name: str
    kind: str
    sizes: tuple[int, ...]
    rates: tuple[float, ...]

    @property
    def flat(self) -> bool:
        """Is it the same at every size, but for rounding?"""
        return max(self.rates) < 1.001 * min(self.rates)

    def __str__(self) -> str:
        rates = f"{max(self.rates):.4g}" if self.flat else f"{min(self.rates):.3g} to {max(self.rates):.3g}"
        return f"{self.name}: {rates} GB/s ({self.kind})"


def draw_bounds(axes: Axes, rows: Iterable[Summary]) -> None:
    """Every bound that these rows name, as a line (hard: solid, reference: dashed), with its name in words.

    Call it when the data are drawn and the y axis (GB/s, linear) is still free: it fixes the axis from zero up.
    """
    drawn = list(rows)
    highest = max((row.busbw_bytes_per_s or 0.0 for row in drawn), default=0.0) / 1e9
    curves = list({str(curve): curve for curve in _bound_curves(drawn)}.values())
    inside = [curve for curve in curves if min(curve.rates) <= _BOUND_IN_VIEW * highest]
    levels = [min(max(curve.rates), _BOUND_IN_VIEW * highest) for curve in inside]
    top = max([highest, *levels]) or 1.0
    axes.set_ylim(0, 1.16 * top)
    corner = [f"{curve}, above this axis" for curve in curves if curve not in inside]
    for curve in inside:
        dashes: Literal["-", "--"] = "-" if curve.kind == "hard" else "--"
        if curve.flat:
            axes.axhline(max(curve.rates), color=GREY, linewidth=1.3, linestyle=dashes, zorder=1)
        else:
            axes.plot(curve.sizes, curve.rates, color=GREY, linewidth=1.3, linestyle=dashes, zorder=1)
            corner.append(f"{'- -' if dashes == '--' else '---'} {curve}")
    corner += _name_levels(axes, [curve for curve in inside if curve.flat], 0.09 * top)
    axes.text(
        0.01,
        0.99,
        "\n".join(corner),
        transform=axes.transAxes,
        fontsize=SMALL_TEXT,
        color=GREY,
        va="top",
        bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.5},
        zorder=4,
    )


def _bound_curves(rows: Iterable[Summary]) -> list[_BoundCurve]:
    """A curve for each bound and world: the same name can mean another rate on other nodes."""
    bounded = [row for row in rows if row.bound_name and row.bound_bytes_per_s]
    worlds = by(bounded, lambda row: (row.bound_name, row.bound_kind, row.num_ranks, row.num_nodes))
    curves = []
    for (name, kind, _, _), of_world in worlds.items():
        points = sorted({row.payload_bytes: (row.bound_bytes_per_s or 0.0) / 1e9 for row in of_world}.items())
        curves.append(_BoundCurve(name, kind, tuple(size for size, _ in points), tuple(rate for _, rate in points)))
    return curves


def _name_levels(axes: Axes, curves: Sequence[_BoundCurve], text_height: float) -> list[str]:
    """Names on flat bounds. Of two close ones the upper is named above its line and the lower below its own.

    Returns the names that would fall below the axis.
    """
    rates = sorted(max(curve.rates) for curve in curves)
    unplaced = []
    for curve in curves:
        rate = max(curve.rates)
        below = any(0 < other - rate < text_height for other in rates)
        if below and rate < text_height:
            unplaced.append(f"--- {curve}")
            continue
        axes.annotate(str(curve), (0.01, rate), xycoords=("axes fraction", "data"), xytext=(0, -3 if below else 3),
                      textcoords="offset points", fontsize=SMALL_TEXT, color=GREY,
                      va="top" if below else "bottom")  # fmt: skip
    return unplaced


def invalid_remark(document: Document, mode: str) -> list[str]:
    """How many rows of a mode are not drawn because their data were wrong."""
    number = sum(row.mode == mode and row.verified is False for row in document.summaries)
    return [f"INVALID: {number} rows received wrong data and are not drawn"] if number else []


def interval_remark(rows: Iterable[Summary]) -> list[str]:
    """What points and bars are; a model has no spread to speak of."""
    rows = list(rows)
    own = any(not (row.modelled or row.imported) for row in rows)
    words = ["median and its 95 % interval within one launch"] if own else []
    return words + (["imported: what the tool printed, a mean of one start"] if any(r.imported for r in rows) else [])


def algorithm_remark(rows: Iterable[Summary]) -> list[str]:
    """Why a line has a gap (see `points`)."""
    of = by(rows, lambda row: (row.pattern, row.transport, row.topology))
    changes = any(len({row.algorithm for row in alike}) > 1 for alike in of.values())
    return ["no line joins two points where the algorithm changes between them"] if changes else []


def size_words(num_bytes: int) -> str:
    """`8 B`, `256 MiB`: a size in a sentence."""
    text = format_size(num_bytes)
    return f"{text[:-1]} {text[-1]}iB" if text[-1].isalpha() else f"{text} B"


def world(num_ranks: int | None, num_nodes: int | None) -> str:
    """`16 ranks, 2 nodes`; one node is not said, nor what nobody knows."""
    ranks = "ranks unknown" if num_ranks is None else f"{num_ranks} rank{'' if num_ranks == 1 else 's'}"
    return ranks if num_nodes in (None, 1) else f"{ranks}, {num_nodes} nodes"


def save(figure: Figure, path: Path | str) -> tuple[Path, Path]:
    """Write `path`.png and `path`.svg, making their folder; returns both paths."""
    base = Path(path)
    base.parent.mkdir(parents=True, exist_ok=True)
    png, svg = base.with_name(base.name + ".png"), base.with_name(base.name + ".svg")
    figure.savefig(png, dpi=DPI, facecolor="white")
    figure.savefig(svg, facecolor="white")
    return png, svg
