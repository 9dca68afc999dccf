"""What the rows of a case are, known before anything is measured: sizes, shapes, and what must cross which boundary."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from bench.core.case import Case
from bench.core.dtypes import dtype_of
from bench.core.pattern import Pattern, Shape, traffic_of
from bench.core.program import Group, Round


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """One size in one mode for one round of groups. `max_s`: the time limit of its samples."""

    mode: str
    shape: Shape
    requested: tuple[int, ...]
    round: Round
    max_s: float


def payloads(case: Case, pattern: Pattern, num_ranks: int) -> dict[int, tuple[int, ...]]:
    """Real size -> the asked sizes that round to it: each real size is measured once."""
    real: dict[int, tuple[int, ...]] = {}
    for requested in case.sizes:
        payload = pattern.payload(requested, shape_of(case, num_ranks, 0, case.modes[0]))
        real[payload] = (*real.get(payload, ()), requested)
    return real


def shape_of(case: Case, num_ranks: int, payload_bytes: int, mode: str) -> Shape:
    """What decides the program of a group of this many ranks at this size."""
    element_bytes = dtype_of(case.dtype).num_bytes
    return Shape(
        num_ranks,
        payload_bytes,
        element_bytes,
        case.root,
        mode,
        case.direction,
        case.window,
        case.matrix,
        case.access,
        case.via,
    )


def traffic(pattern: Pattern, shape: Shape, group: Group, hosts: tuple[str, ...]) -> dict[str, Any]:
    """The part of a record that follows from the program alone: sizes, factors, and what must cross which boundary."""
    at = [hosts[rank] for rank in group.ranks]
    counts = Counter(at)
    num_nodes = len(counts)
    # Members must lie node by node, the same number on each, for a part of the group to be a node.
    even = shape.num_ranks % num_nodes == 0 and at == [host for host, num in counts.items() for _ in range(num)]
    return {
        "payload_bytes": shape.payload_bytes,
        "num_ranks": shape.num_ranks,
        "num_nodes": num_nodes,
        "group": group.name,
        "src": group.src,
        "dst": group.dst,
    } | asdict(traffic_of(pattern, shape, num_nodes if even else None))
