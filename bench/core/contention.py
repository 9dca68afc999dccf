"""Divide the world of a case into victims, which are measured, and aggressors, which disturb the victims.

The victims run the case's pattern in the groups of its topology. The aggressors form one group, which runs another
pattern without a pause. All other ranks are idle.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from bench.core import plugins, topology
from bench.core.case import Case
from bench.core.errors import UsageError
from bench.core.pattern import Pattern, Shape
from bench.core.program import Group, Round
from bench.core.record import Skip
from bench.core.skips import SkipCode
from bench.core.units import parse_size
from bench.core.world import World


@dataclass(frozen=True, slots=True)
class Parts:
    """World ranks by role."""

    victims: Group
    aggressors: Group
    idle: tuple[int, ...] = ()


def parts(case: Case, world: World) -> Parts | None:
    """Return the victims, the aggressors and the idle ranks, or None if the case has no aggressor.

    Raises UsageError if `--split` names an unknown rank, names a rank twice, or leaves a part empty.
    """
    if not case.aggressor:
        return None
    ranks = range(world.num_ranks)
    if case.split == "alternate":
        victims, aggressors = tuple(ranks[::2]), tuple(ranks[1::2])
    elif case.split == "halves":
        half, per_node = world.ranks_per_node / 2, world.ranks_per_node
        victims = tuple(rank for rank in ranks if rank % per_node < half)
        aggressors = tuple(rank for rank in ranks if rank % per_node >= half)
    else:
        victims, aggressors = (_listed(text) for text in case.split.split("/"))
    named = (*victims, *aggressors)
    times = Counter(named)
    wrong = [rank for rank in named if rank not in ranks or times[rank] > 1]
    if wrong or not victims or not aggressors:
        problem = "one of the two parts has no rank"
        if wrong:
            problem = f"rank {wrong[0]} is named twice" if wrong[0] in ranks else f"there is no rank {wrong[0]}"
        raise UsageError(
            f"--split {case.split}: {problem} in a world of {world.num_nodes} x {world.ranks_per_node} ranks"
        )
    idle = tuple(rank for rank in ranks if rank not in times)
    return Parts(Group("victims", victims), Group("aggressors", aggressors), idle)


def rounds(case: Case, world: World, groups: str) -> Sequence[Round]:
    """Return the measured groups of each round.

    If the case has an aggressor, the result has only groups of victims. If the case has no aggressor, the result has
    groups of all ranks.

    `groups`: the name of the topology that Pattern.topology_of returns.
    """
    split = parts(case, world)
    among = split.victims.ranks if split else None
    return topology.rounds(world, groups, case.order, among)


def aggressor(case: Case) -> tuple[str, int]:
    """Return the pattern of the aggressor and the aggressor's requested size in bytes."""
    name, _, size = case.aggressor.partition(":")
    return name, parse_size(size)


def shape_of_aggressors(case: Case, num_ranks: int) -> tuple[Pattern, Shape]:
    """Return the aggressors' pattern and the Shape of this pattern.

    The aggressors run pipelined operations. The aggressors use the direction and the window of the victims' case.
    Raises UsageError if the aggressors cannot run this pattern.
    """
    name, asked = aggressor(case)
    pattern: Pattern = plugins.load("pattern", name).PATTERN
    blank = Shape(num_ranks, 0, 4, 0, "pipelined", case.direction, case.window, _everyone(num_ranks))
    shape = replace(blank, payload_bytes=pattern.payload(asked, blank))
    reason = pattern.needs(shape)
    if reason is None and not pattern.bus_factor(shape):
        reason = Skip.of(SkipCode.MOVES_NOTHING, pattern=name, num_ranks=num_ranks)
    if reason is not None:
        raise UsageError(f"--aggressor {case.aggressor}: {reason.text}")
    return pattern, shape


@lru_cache(maxsize=1)  # the result is large for thousands of ranks, and a plan needs it repeatedly
def _everyone(num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Return the weights of uniform traffic, in which every rank sends the same amount to every other rank."""
    return tuple((1,) * a + (0,) + (1,) * (num_ranks - 1 - a) for a in range(num_ranks))


def useful_bytes(pattern: Pattern, shape: Shape) -> float:
    """Return the bytes that busbw counts when a rank runs all steps of the pattern once.

    The result is payload times bus factor times the number of operations.
    """
    return shape.payload_bytes * (pattern.bus_factor(shape) or 0.0) * pattern.operations(shape)


def _listed(text: str) -> tuple[int, ...]:
    """Parse a list of ranks: `0-3,6` gives 0, 1, 2, 3, 6."""
    found: list[int] = []
    for part in text.split(","):
        first, last = re.fullmatch(r"(\d+)(?:-(\d+))?", part).groups()  # type: ignore[union-attr]  # check_split
        found += range(int(first), int(last or first) + 1)
    return tuple(found)
