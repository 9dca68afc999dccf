"""Draw the pairs of hosts in similar runs.

The figure shows two values for each pair: the lowest rate as a share of the usual rate, and the number of lost runs.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from bench.core.errors import UsageError
from bench.diagnose.fleet import LOST, Fleet
from bench.diagnose.fleet_page import short_names
from bench.diagnose.host_evidence import FleetVerdict
from bench.diagnose.localise import Accused
from bench.diagnose.places import Array, Places
from bench.figures import _map_facts, _origin, _style
from bench.figures._origin import FigureOrigin
from bench.figures.pairs import PairMap, annotate, draw_map, frame
from bench.results.document import Summary

_LOST_COLOUR = "black"
_MOST_LABELLED = 24
_MOST_NAMED = 6
_USUAL = 95.0


def pairs(fleet: Fleet, verdict: FleetVerdict) -> Figure:
    """Draw one map of all groups of runs, with a frame around each host that the verdict names.

    Raises UsageError if there are no pairs with figures.
    """
    number = {host: index for index, host in enumerate(fleet.hosts)}
    compared = {group.key for group in fleet.groups if group.compared}
    grid = np.full((len(number), len(number)), math.nan)
    lost = np.zeros(grid.shape, dtype=int)
    of_pairs = [run for run in fleet.runs if len(run.hosts) == len(set(run.hosts)) == 2]
    for run in of_pairs:
        ends = number[run.hosts[0]], number[run.hosts[1]]
        for at in (ends, ends[::-1]):
            lost[at] += run.state in LOST
            if run.share is not None and run.group in compared and run.state not in LOST:
                grid[at] = np.fmin(grid[at], 100 * run.share)
    if np.isnan(grid).all():
        raise UsageError("--plot draws pairs of hosts, and no two hosts have runs with comparable figures")
    places = Places(fleet.hosts, (None,) * len(number))
    figure, [panel] = _style.panels(1, height_in=6.2)
    order = range(len(number))
    shown = PairMap(
        "lowest rate of each pair in all groups",
        "% of the usual rate",
        least_is_worst=True,
        rows=[],
        value=_no_value,
        symmetric=True,
    )
    draw_map(figure, panel, places, order, grid, shown)
    _mark_lost(panel, lost)
    if len(number) <= _MOST_LABELLED:
        # The usual rate is left out beside lost runs: the colour shows it, and three digits do not fit.
        annotate(panel, np.where((lost > 0) & (grid >= _USUAL), math.nan, grid), "{:.0f}", corner=lost > 0)
        names = short_names(fleet.hosts)
        panel.set_xticks(order, [_style.shown(names[host]) for host in fleet.hosts], rotation=90)
        panel.set_yticks(order, [_style.shown(names[host]) for host in fleet.hosts])
    panel.set_xlabel("host", fontsize=_style.TEXT)
    panel.set_ylabel("host", fontsize=_style.TEXT)
    for host in verdict.named:
        frame(panel, Accused("host", host.host, host.confidence, (), (host.host,)), places, order, 1)
    words = "darker is slower; grey: no figure"
    if lost.any():
        words += "; xN: N runs of the pair failed, had no figures or are missing; no number beside xN: the usual rate"
    remarks = [words]
    named = f"{len(verdict.named)} at fault or suspected (framed)" if verdict.named else "none at fault or suspected"
    _map_facts.write_beside(figure, panel, _facts(grid, lost, verdict, len(of_pairs)))
    title = f"Pairs of {len(number)} hosts: {named}"
    _style.finish(figure, title, "IMPORTED from other tools' logs", [], remarks)
    logs = len({run.source for run in fleet.runs})
    _style.sign(figure, FigureOrigin(f"{len(number)} hosts, {logs} logs", date=_origin.dates([])))
    return figure


def _facts(grid: Array, lost: Array, verdict: FleetVerdict, num_runs: int) -> list[str]:
    """Return the numbers of slow and lost pairs, the median and the worst pair, and the hosts at fault or suspected."""
    upper = np.triu(np.ones(grid.shape, dtype=bool), 1)
    shares = grid[upper & ~np.isnan(grid)]
    lines = [
        f"{num_runs} runs of {int((upper & (~np.isnan(grid) | (lost > 0))).sum())} pairs",
        f"median pair: {np.median(shares):.0f} % of the usual rate, worst {shares.min():.0f} %",
        f"{int((shares < _USUAL).sum())} pairs below {_USUAL:.0f} %",
    ]
    lines += [f"{int((lost[upper] > 0).sum())} pairs with lost runs"] if lost.any() else []
    if verdict.named:
        more = len(verdict.named) - _MOST_NAMED
        lines += ["framed, most evidence first:", *(one.host for one in verdict.named[:_MOST_NAMED])]
        lines += [f"and {more} more"] if more > 0 else []
    return lines


def _no_value(row: Summary) -> float:
    return math.nan


def _mark_lost(panel: Axes, lost: Array) -> None:
    """Write the number of lost runs of each pair on a white corner of the pair's cell.

    Outside the corner, the cell has the colour of the pair's lowest rate.
    """
    for src, dst in np.argwhere(lost):
        corner = [(dst - 0.5, src + 0.5), (dst + 0.5, src + 0.5), (dst + 0.5, src - 0.5)]
        panel.add_patch(Polygon(corner, facecolor="white", edgecolor="none"))
        words = f"x{lost[src, dst]}"
        panel.text(
            dst + 0.2, src + 0.24, words, ha="center", va="center", fontsize=_style.SMALL_TEXT, color=_LOST_COLOUR
        )
