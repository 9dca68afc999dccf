"""Look up the traits of training strategies, and arrange the ranks for a strategy. No training library is loaded.

Each file of `transports/strategies/` declares `STRATEGY`, the class that trains, and one `TRAITS = StrategyTraits(...)`
of literal values. `strategy_traits` reads the traits from the source. No other file names a strategy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from bench.core import plugins
from bench.core.errors import UsageError

DEFAULT_STRATEGY = "ddp"


@dataclass(frozen=True, slots=True)
class StrategyTraits:
    """The traits of one strategy.

    `inner`: what the ranks of an inner group divide among themselves (shards, tensors, stages, experts). The value is
        "" if the strategy does not arrange the ranks as a grid.
    `pairs`: whether each inner group consists of two ranks if the user gives no `--mesh`. If `pairs` is false, all
        ranks form one inner group.
    `obeys`: options that not every strategy obeys. This strategy obeys the listed options.
    `vectors`: which additional copies of all gradients or weights a rank stores. "" means no copy. "own" means a copy
        of the rank's own data. "neighbours" means a copy of the rank's own data and of the data of both neighbours in a
        ring. "all" means copies of the data of all ranks, for each step of staleness.
    `exact`: whether a step uses the exact mean gradient of all samples. If `exact` is false, the benchmark also
        measures how much higher the loss becomes.
    """

    inner: str = ""
    pairs: bool = False
    obeys: tuple[str, ...] = ()
    vectors: str = ""
    exact: bool = True


@dataclass(frozen=True, slots=True)
class RankGrid:
    """A grid of ranks with `outer` rows and `inner` columns. `ranks` has all ranks, row by row."""

    outer: int
    inner: int
    ranks: tuple[int, ...]

    def rows(self) -> tuple[tuple[int, ...], ...]:
        """Return the inner groups, which are the rows of the grid. The ranks of a row share one copy of the model."""
        return tuple(self.ranks[row * self.inner : (row + 1) * self.inner] for row in range(self.outer))

    def columns(self) -> tuple[tuple[int, ...], ...]:
        """Return the outer groups. The ranks of an outer group have the same part of the model."""
        return tuple(self.ranks[column :: self.inner] for column in range(self.inner))

    def place(self, rank: int) -> tuple[int, int]:
        """Return a rank's row and column."""
        return divmod(self.ranks.index(rank), self.inner)


@cache
def strategy_traits(name: str) -> StrategyTraits:
    """Return the traits of a strategy."""
    declared = plugins.declared("strategy", name, "TRAITS")
    if declared is None:
        raise AttributeError(f"bench/transports/strategies/{name}.py declares no TRAITS (docs/extending.md)")
    return StrategyTraits(**declared)


def obeying(option: str) -> tuple[str, ...]:
    """Return the strategies that obey an option."""
    return tuple(name for name in plugins.names("strategy") if option in strategy_traits(name).obeys)


def mesh_word(text: str) -> str:
    """Return the text if it is a mesh such as `2x4` (outer x inner ranks). Raises UsageError otherwise."""
    if text and not re.fullmatch(r"[1-9]\d{0,5}x[1-9]\d{0,5}", text):
        raise UsageError(f"mesh {text!r} is not OUTERxINNER, such as 2x4")
    return text


def grid_of(strategy: str, mesh: str, ranks: Sequence[int]) -> RankGrid | None:
    """Return the grid of all ranks, or None if the number of ranks does not fit the mesh."""
    num_ranks, traits = len(ranks), strategy_traits(strategy)
    if mesh:
        outer, inner = map(int, mesh.split("x"))
    elif not traits.inner:
        outer, inner = num_ranks, 1
    else:
        inner = 2 if traits.pairs and num_ranks % 2 == 0 else num_ranks
        outer = num_ranks // inner
    return RankGrid(outer, inner, tuple(ranks)) if outer * inner == num_ranks else None
