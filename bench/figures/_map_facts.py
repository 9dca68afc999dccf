"""Write the main values of a map of pairs in its title.

If the figure has only one map, the values are also written beside the map.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.figures import _style

# In this order: the inches beside the map for labels and the colour bar, the position of the text as a share of the
# map's width, and the letters per inch.
_BESIDE_IN, _BESIDE_SHARE, _LETTERS_PER_IN = 1.9, 1.32, 12
_FEWEST_LETTERS = 18


@dataclass(frozen=True, slots=True)
class MapFacts:
    """The median, the best and the worst value of a map, as texts.

    `median`: a text with the medians, for the title.
    `lines`: lines of text with the medians, the worst pair and the best pair.
    """

    median: str
    lines: tuple[str, ...]


def of_grid(grid: Any, usual: Any, order: Sequence[int], unit: str, least_is_worst: bool) -> MapFacts:
    """Return the median, best and worst value of a grid [source, destination]. Unknown cells are NaN.

    `usual`: for each cell, the median over all pairs of the same kind (within a node or between nodes). `usual` is None
        if the map uses one median for all pairs.
    `order`: the rank of each row and column of the map. If the grid is smaller than `order`, each cell covers several
        ranks.
    """
    if usual is None:
        kinds = {"": grid}
    else:
        inside = usual == usual[0, 0]
        kinds = {" within a node": np.where(inside, grid, math.nan), " between nodes": np.where(inside, math.nan, grid)}
    medians, lines = [], []
    for kind, values in kinds.items():
        medians.append(f"median {digits(float(np.nanmedian(values)))} {unit}{kind}")
        least, most = (_extreme(values, find, order) for find in (np.nanargmin, np.nanargmax))
        worst, best = (least, most) if least_is_worst else (most, least)
        lines += [medians[-1], f"worst {worst}", f"best {best}"]
    return MapFacts(", ".join(medians), tuple(lines))


def _extreme(values: Any, find: Callable[[Any], Any], order: Sequence[int]) -> str:
    """Return the lowest or the highest value. If a cell covers only one pair, also return the ranks of the pair."""
    source, target = divmod(int(find(values)), len(values))
    where = ""
    if len(values) == len(order):
        where = f" from {order[source]} to {order[target]}" if source != target else f" in {order[source]}"
    return f"{digits(float(values[source, target]))}{where}"


def write_beside(figure: Figure, panel: Axes, lines: Sequence[str]) -> None:
    """Write lines to the right of the map, if the figure has only one map.

    Call this function before the heading is added.
    """
    room = _style.WIDTH_IN - figure.get_figheight() - _BESIDE_IN  # the map is about as wide as the figure is high
    letters = max(round(room * _LETTERS_PER_IN), _FEWEST_LETTERS)
    wrapped = [part for line in lines for part in textwrap.wrap(line, letters)]
    words = panel.text(
        _BESIDE_SHARE,
        0.95,
        "\n".join(wrapped),
        transform=panel.transAxes,
        fontsize=_style.TEXT,
        va="top",
        linespacing=1.6,
        gid="facts",
    )
    words.set_in_layout(False)  # otherwise the map would shrink


def digits(value: float) -> str:
    """Return a value with three digits, such as 4.40, 11.2 or 230."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
