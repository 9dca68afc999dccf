"""The pairs of like runs as a map, host by host: the lowest share of the usual rate, and which runs are lost."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.core.errors import UsageError
from bench.diagnose.fleet import LOST, Fleet
from bench.diagnose.host_evidence import FleetVerdict
from bench.diagnose.localise import Accused
from bench.diagnose.places import Places
from bench.figures import _style
from bench.figures.pairs import PairMap, annotate, draw_map, frame

_MOST_ANNOTATED = 20
_MOST_NAMED = 6


def pairs(fleet: Fleet, verdict: FleetVerdict) -> Figure:
    """One map of all groups. Named hosts are framed. Raises UsageError if there are no pairs with figures."""
    number = {host: index for index, host in enumerate(fleet.hosts)}
    compared = {group.key for group in fleet.groups if group.compared}
    grid = np.full((len(number), len(number)), math.nan)
    lost = np.zeros(grid.shape, dtype=int)
    for run in fleet.runs:
        if len(run.hosts) != 2:
            continue
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
    draw_map(
        figure, panel, places, order, grid, PairMap("lowest of all groups", "% of usual", "viridis", [], float, True)
    )
    if len(number) <= _MOST_ANNOTATED:
        annotate(panel, np.where(lost > 0, math.nan, grid))
    _mark_lost(panel, lost)
    for host in verdict.named:
        frame(panel, Accused("host", host.host, host.confidence, (), (host.host,)), places, order, 1)
    remarks = ["darker is slower; xN: N runs failed, without figures or missing; grey: no figure"]
    if verdict.named:
        names = [host.host for host in verdict.named]
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        remarks.append(f"framed, at fault or suspected: {', '.join(names[:_MOST_NAMED])}{more}")
    _style.finish(figure, f"Pairs of {len(number)} hosts, from other tools' logs", [], (), remarks)
    return figure


def _mark_lost(panel: Axes, lost: np.ndarray) -> None:
    """Write the number of lost runs of each pair that has some."""
    for src, dst in np.argwhere(lost):
        panel.text(
            dst,
            src,
            f"x{lost[src, dst]}",
            ha="center",
            va="center",
            fontsize=_style.SMALL_TEXT,
            color=_style.COLOURS[1],
        )
