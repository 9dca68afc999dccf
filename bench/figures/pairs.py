"""Draw maps of all pairs of ranks: the bandwidth of the largest size, and the time of the smallest size.

The row of a cell is the source rank, and the column is the destination rank. Ranks are sorted by rack and host. Frames
mark the parts that `linkbench diagnose` finds slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from bench.core.record import Flag, Header, known
from bench.diagnose import pair_evidence
from bench.diagnose.localise import Accused, Places
from bench.figures import _map_facts, _origin, _style
from bench.figures._map_facts import digits
from bench.results import curves
from bench.results.document import Document, Summary

_MOST_ANNOTATED_RANKS = 16  # limit for a figure with one map; two maps have narrower cells
_MOST_ANNOTATED_OF_TWO = 10
_MOST_CELLS = 512  # at each side of the map; with more ranks, several ranks share a cell, which shows their worst pair
_MOST_PARTED_NODES = 64
_MOST_LABELS = 16
_MOST_NAMED = 6
_BOTH_WAYS = ("two-way", "bidirectional", "bidirectional_sum")  # directions of rows whose busbw is the rate of each way
_DIFFERENT = 2.0  # if the medians of the two kinds of pairs differ by more than this factor, each has its own scale
_FRAME = "#D55E00"


def applies(document: Document) -> bool:
    """Check whether there are at least two pairs to compare."""
    return any(len(_pairs(rows)) > 1 for rows in _jobs(document).values())


def draw(document: Document) -> list[tuple[str, Figure]]:
    """Return one figure, `pairs-<job>`, for each job that measured pairs.

    Some values apply to both directions, such as half a round-trip time or a two-way bandwidth. A value for both
    directions fills both cells of the pair. If a direction was not measured, its cell is grey.
    """
    figures = []
    for job, rows in _jobs(document).items():
        if len(_pairs(rows)) > 1:
            figures.append((f"pairs-{job}", _draw_job(document, document.headers[job], rows)))
    return figures


def _jobs(document: Document) -> dict[str, list[Summary]]:
    rows = [row for mode in ("pipelined", "isolated") for row in curves.valid(document, mode)]
    return curves.by((row for row in rows if row.src is not None and row.dst is not None), lambda row: row.job)


def _pairs(rows: Sequence[Summary]) -> set[tuple[int | None, int | None]]:
    return {(row.src, row.dst) for row in rows}


def _counted(pairs: set[tuple[int | None, int | None]]) -> str:
    """Return the number of pairs. If each rank copied within its own memory, return the number of ranks."""
    return f"{len(pairs)} {'ranks' if all(src == dst for src, dst in pairs) else 'pairs'}"


def _draw_job(document: Document, header: Header, rows: list[Summary]) -> Figure:
    direct = [
        row for row in rows if Flag.THROUGH_HOST not in row.flags
    ] or rows  # draw rows copied through host memory only if there are no others
    maps = [each for each in (_bandwidths(direct), _times(direct)) if each]
    annotated = known(header.num_ranks) <= (_MOST_ANNOTATED_RANKS if len(maps) == 1 else _MOST_ANNOTATED_OF_TWO)
    tall = annotated and known(header.num_ranks) > _MOST_ANNOTATED_OF_TWO
    figure, axes = _style.panels(len(maps), height_in=6.2 if tall else 4.0 if len(maps) > 1 else 5.0)
    blank, medians, facts = False, list[str](), list[_map_facts.MapFacts]()
    places, accused = pair_evidence.places(asdict(header)), pair_evidence.slow_parts(header, rows)
    order = sorted(range(known(header.num_ranks)), key=lambda rank: places.racks.get(places.hosts[rank], ""))
    for panel, each in zip(axes, maps, strict=True):
        grid = _grid(each, header, order)
        blank = blank or bool(np.isnan(grid[~np.eye(len(grid), dtype=bool)]).any())
        usual = _usual(grid, places, order)
        facts.append(_map_facts.of_grid(grid, usual, order, each.unit, each.least_is_worst))
        if usual is None:
            draw_map(figure, panel, places, order, grid, each)
        else:
            relative = replace(each, unit="share of the median of its kind")
            draw_map(figure, panel, places, order, grid / usual, relative)
            inside, between = float(usual[0, 0]), float(usual[0, -1])
            medians.append(f"{digits(inside)} {each.unit} within a node, {digits(between)} {each.unit} between nodes")
        if annotated:
            annotate(panel, grid)
            if 1 < known(header.num_nodes) < len(grid):
                _number_ranks(panel, order)
        for one in accused:
            frame(panel, one, places, order, _ranks_of_a_cell(header))
        if any(row.modelled for row in each.rows):
            _style.watermark(panel)
    parted = 1 < known(header.num_nodes) <= _MOST_PARTED_NODES
    remarks = ["darker is worse; white lines separate the nodes" if parted else "darker is worse"]
    share = _ranks_of_a_cell(header)
    remarks += [f"a cell is the worst pair of {share} x {share} ranks"] if share > 1 else []
    remarks += [f"each pair is compared with the median of its kind: {'; '.join(medians)}"] if medians else []
    remarks += ["grey: not modelled" if header.modelled else "grey: not measured"] if blank else []
    remarks += curves.through_host_remark(rows)
    if accused:
        named = [f"{one.kind} {one.name}" for one in accused]
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        remarks += [f"framed, below 0.9 of the rate of its peers: {', '.join(named[:_MOST_NAMED])}{more}"]
    remarks += curves.invalid_remark(document, "pipelined") + curves.invalid_remark(document, "isolated")
    what = curves.map_name(document, header)
    slow = f"; slow: {', '.join(f'{one.kind} {one.name}' for one in accused[:_MOST_NAMED])}" if accused else ""
    medians = [one.median for one in facts]
    title = f"{what}, {curves.world(header.num_ranks, header.num_nodes)}: {', '.join(medians)}{slow}"
    if len(facts) == 1:
        _map_facts.write_beside(figure, axes[0], [_counted(_pairs(direct)), *facts[0].lines])
    else:
        remarks = ["; ".join(one.lines) for one in facts] + remarks
    drawn = [row for each in maps for row in each.rows]
    _style.finish(figure, title, _origin.kind_of(drawn), [], remarks)
    return figure


@dataclass(frozen=True, slots=True)
class PairMap:
    """The content of one map: its rows, and a function that returns the value of a row.

    `least_is_worst`: True if small values are bad, as for rates. False if large values are bad, as for times.
    `symmetric`: whether each row applies to both directions of its pair.
    """

    title: str
    unit: str
    least_is_worst: bool
    rows: list[Summary]
    value: Callable[[Summary], float]
    symmetric: bool


def _bandwidths(rows: list[Summary]) -> PairMap | None:
    rates = [row for row in rows if row.mode == "pipelined" and row.busbw_bytes_per_s is not None]
    if not rates:
        return None
    largest = max(row.payload_bytes for row in rates)
    shown = [row for row in rates if row.payload_bytes == largest]
    direction = shown[0].direction
    what = curves.size_words(largest) if largest else "copies"  # other tools do not state its size
    how = (
        "two-way, per direction" if direction in _BOTH_WAYS else "inside a rank" if direction == "local" else "one-way"
    )
    title = f"bandwidth of {what} in GB/s, {how}"
    return PairMap(title, "GB/s", True, shown, lambda row: (row.busbw_bytes_per_s or 0.0) / 1e9, direction == "two-way")


def _times(rows: list[Summary]) -> PairMap | None:
    times = [row for row in rows if row.mode == "isolated"]
    if not times:
        return None
    smallest = min(row.payload_bytes for row in times)
    shown = [row for row in times if row.payload_bytes == smallest]
    how = "both ways at once" if shown[0].direction == "two-way" else "half a round trip"
    small = "time of one load from the other rank's memory" if shown[0].direction == "load" else "time of a small copy"
    title = f"time of {curves.size_words(smallest)}, {how}" if smallest else small
    return PairMap(title, "us", False, shown, lambda row: curves.seconds(row) * 1e6, True)


def _ranks_of_a_cell(header: Header) -> int:
    """Return how many ranks share one row and one column of the map.

    In a small world, every rank has its own row and column. In a large world, a row covers the ranks of one or more
    whole nodes. The map then has at most `_MOST_CELLS` rows and columns.
    """
    num_ranks, per_node = known(header.num_ranks), known(header.ranks_per_node)
    if num_ranks <= _MOST_CELLS:
        return 1
    return -(-num_ranks // (_MOST_CELLS * per_node)) * per_node


def _grid(shown: PairMap, header: Header, order: Sequence[int]) -> Any:
    """Return the worst value of each cell as an array [source, destination], with ranks in the order `order`.

    Unmeasured cells are NaN.
    """
    share = _ranks_of_a_cell(header)
    side = -(-known(header.num_ranks) // share)
    grid = np.full((side, side), math.nan)
    worst = np.fmin if shown.least_is_worst else np.fmax
    # If a pair was measured several times, its value is the median.
    pairs = curves.by(shown.rows, lambda row: (row.src, row.dst))
    at = np.argsort(order)[np.array(list(pairs))] // share
    worst.at(grid, (at[:, 0], at[:, 1]), [np.median([shown.value(row) for row in rows]) for rows in pairs.values()])
    return np.where(np.isnan(grid) & shown.symmetric, grid.T, grid)


def _usual(grid: Any, places: Places, order: Sequence[int]) -> Any:
    """Return the usual value of each cell: the median over all pairs of the same kind (within a node or between nodes).

    Return None if one colour scale is enough for all pairs. One scale is enough if all pairs are of one kind, if the
    two medians are similar, or if a cell covers several ranks.
    """
    if len(grid) != len(order):
        return None
    hosts = np.array([places.hosts[rank] for rank in order])
    same = hosts[:, None] == hosts[None, :]
    if np.isnan(grid[same]).all() or np.isnan(grid[~same]).all():
        return None
    inside, between = float(np.nanmedian(grid[same])), float(np.nanmedian(grid[~same]))
    if max(inside, between) < _DIFFERENT * min(inside, between):
        return None
    return np.where(same, inside, between)


def frame(panel: Axes, accused: Accused, places: Places, order: Sequence[int], share: int) -> None:
    """Draw frames around the rows and columns of a host or NIC, or around the cells of a link.

    Adjacent cells share a frame.

    `share`: how many ranks share one row and one column.
    """
    at = []
    for end in accused.ends:
        at.append(sorted({place // share for place, rank in enumerate(order) if _is_of(rank, end, places)}))
    if not all(at):
        return
    whole = list(range(-(-len(order) // share)))
    spans = [(at[0], at[1]), (at[1], at[0])] if len(at) == 2 else [(at[0], whole), (whole, at[0])]
    for down, across in spans:
        for first, last in _runs(down):
            for left, right in _runs(across):
                panel.add_patch(
                    Rectangle(
                        (left - 0.5, first - 0.5),
                        right - left + 1,
                        last - first + 1,
                        fill=False,
                        edgecolor=_FRAME,
                        linewidth=2.5,
                        clip_on=False,
                        zorder=4,
                    )
                )


def _is_of(rank: int, name: str, places: Places) -> bool:
    host, nic = places.hosts[rank], places.nics[rank]
    return name in (host, f"{host}:{nic}", f"{host}:rank{rank}", places.racks.get(host))


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges of consecutive numbers, each as (first, last)."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def draw_map(figure: Figure, panel: Axes, places: Places, order: Sequence[int], grid: Any, shown: PairMap) -> None:
    """Draw the map of a grid whose rows and columns are the ranks in `order`. Cells with NaN are grey.

    If there is room, the labels of the ranks are host names.
    """
    norm = _norm(float(np.nanmin(grid)), float(np.nanmax(grid)), shown.least_is_worst)
    panel.set_title(shown.title, fontsize=_style.TEXT)
    panel.set_facecolor("#dddddd")
    image = panel.imshow(grid, cmap="viridis" if shown.least_is_worst else "viridis_r", norm=norm)
    unit = shown.unit + ", logarithmic" * isinstance(norm, LogNorm)
    beside = panel.inset_axes((1.05, 0.05, 0.04, 0.9))
    bar = figure.colorbar(image, cax=beside, label=unit, format=FuncFormatter(lambda x, _: f"{x:.3g}"))
    panel.set_anchor("W")
    bar.ax.tick_params(which="both", labelsize=_style.SMALL_TEXT)
    panel.grid(False)
    panel.set_xlabel("to rank", fontsize=_style.TEXT)
    panel.set_ylabel("from rank", fontsize=_style.TEXT)
    hosts = [places.hosts[rank] for rank in order]
    starts = [place for place, host in enumerate(hosts) if place == 0 or host != hosts[place - 1]]
    if 1 < len(starts) <= _MOST_LABELS:  # labelled by host, at the middle of its ranks
        middles = [(a + b - 1) / 2 for a, b in zip(starts, [*starts[1:], len(order)], strict=True)]
        panel.set_xticks(
            middles, [_style.shown(hosts[start]) for start in starts], rotation=90 if len(starts) > 8 else 0
        )
        panel.set_yticks(middles, [_style.shown(hosts[start]) for start in starts])
        panel.set_xlabel("to host", fontsize=_style.TEXT)
        panel.set_ylabel("from host", fontsize=_style.TEXT)
    else:
        share = -(-len(order) // len(grid))
        ticks = range(0, len(grid), max(-(-len(grid) // _MOST_LABELS), 1))
        panel.set_xticks(ticks, [str(order[cell * share]) for cell in ticks])
        panel.set_yticks(ticks, [str(order[cell * share]) for cell in ticks])
    racks = [places.racks.get(host) for host in hosts]
    for edge in starts[1:] if len(starts) <= _MOST_PARTED_NODES else ():
        width = 4.0 if racks[edge] != racks[edge - 1] else 2.0
        panel.axhline(edge - 0.5, color="white", linewidth=width)
        panel.axvline(edge - 0.5, color="white", linewidth=width)


def _number_ranks(panel: Axes, order: Sequence[int]) -> None:
    """Write the numbers of the ranks beside the map, and the names of the hosts farther out."""
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_ticks(range(len(order)), [str(rank) for rank in order], minor=True)
    panel.tick_params(which="minor", length=2, pad=1, labelsize=_style.SMALL_TEXT)
    panel.tick_params(which="major", length=0, pad=16)
    panel.set_xlabel("to rank, by host", fontsize=_style.TEXT)
    panel.set_ylabel("from rank, by host", fontsize=_style.TEXT)


def _norm(low: float, high: float, least_is_worst: bool) -> Normalize:
    """Return a colour scale that spans at least a factor of 2. With a shorter scale, noise would look like a fault.

    If the values span less than this, the scale is extended beyond the worst value. The scale is logarithmic if it
    spans more than a factor of 5.
    """
    if least_is_worst:
        low = min(low, high / 2)
    else:
        high = max(high, low * 2)
    return LogNorm(low, high) if high / low > 5 else Normalize(low, high)


def annotate(panel: Axes, grid: Any, form: str = "", corner: Any = None) -> None:
    """Write the value into every cell, with three digits or in the format `form`.

    `corner`: for each cell, whether the value is written into the upper left corner of the cell. In such a cell, the
    lower right corner has another mark.
    """
    [image] = panel.images
    drawn = np.asarray(image.get_array())
    for (src, dst), value in np.ndenumerate(grid):
        if not math.isnan(value):
            red, green, blue, _ = image.cmap(image.norm(drawn[src, dst]))
            moved = 0.18 if corner is not None and corner[src, dst] else 0.0
            # Perceived brightness after ITU-R BT.601: black on light cells, white on dark ones.
            light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
            panel.text(
                dst - moved,
                src - moved,
                form.format(value) if form else digits(value),
                ha="center",
                va="center",
                fontsize=_style.SMALL_TEXT,
                color="black" if light else "white",
            )
