"""What one algorithm asks of each kind of link, once for all sizes: seconds per byte of payload, and steps of latency.

Messages of a schedule grow in proportion to the payload, so one solution of a schedule of one byte gives every size:
the time of a phase is the upper envelope of a few lines latency + bytes x slope. Phases that are alike are solved once,
and of each phase only lines that are not below another one are kept, however many ranks took part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.core.fabric import SWITCH, Fabric
from bench.core.schedules import Call, Phase, schedule
from bench.core.world import World

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Kinds of link by how evidence speaks of them; "nvls": ports of NVLink while the switch reduces.
KINDS = ("nvlink", "nvls", "pcie", "nic", "memory")
_KIND_OF = {"nvlink": "nvlink", "pair": "nvlink", "pcie": "pcie", "nic": "nic", "leaf": "nic", "memory": "memory"}


@dataclass(frozen=True, slots=True)
class Load:
    """`repeat` phases in a row. `lines`: (seconds of latency, seconds per byte of payload) of the slowest messages.

    `by_kind`: seconds per byte of payload that the busiest link of each kind needs; `busiest`: the kind of the largest.
    """

    repeat: int
    lines: tuple[tuple[float, float], ...]
    by_kind: Mapping[str, float]

    def seconds(self, payload_bytes: float) -> float:
        """Of one phase, by the links alone."""
        return max((latency + slope * payload_bytes for latency, slope in self.lines), default=0.0)

    @property
    def latency_s(self) -> float:
        """The longest latency of the phase's messages."""
        return max((latency for latency, _ in self.lines), default=0.0)

    @property
    def excess(self) -> float:
        """How much longer fair shares make the phase than its busiest link by itself would need (1 or more)."""
        busiest = max(self.by_kind.values(), default=0.0)
        return max(max((slope for _, slope in self.lines), default=0.0) / busiest, 1.0) if busiest else 1.0


Loads = tuple[Load, ...]


def ideal_s(loads: Sequence[Load], payload_bytes: float) -> float:
    """Seconds of the whole schedule, by the links alone."""
    return sum(load.repeat * load.seconds(payload_bytes) for load in loads)


def loads(fabric: Fabric, op: str, algorithm: str) -> Loads | None:
    """The loads of one collective of the whole world; None where the algorithm can not run there.

    Raises UsageError for a rate or a latency that is unknown.
    """
    world, links = fabric.world, fabric.links
    call = Call(
        ranks=tuple(range(world.num_ranks)),
        ranks_per_node=fabric.ranks_per_domain,
        payload_bytes=1.0,
        alike=fabric.alike,
        reduces=links.reduces,
        mesh=links.mesh,
    )
    phases = schedule(op, algorithm, call)
    return None if phases is None else of_phases(fabric, phases)


def of_phases(fabric: Fabric, phases: Sequence[Phase]) -> Loads:
    """The loads of phases whose flows' bytes are those of a payload of one byte."""
    known: dict[tuple[object, ...], Load] = {}
    found = []
    for phase in phases:
        if not phase.flows or not phase.repeat:
            continue
        if phase.flows not in known:
            known[phase.flows] = _load(fabric, phase)
        one = known[phase.flows]
        found.append(Load(phase.repeat, one.lines, one.by_kind))
    return tuple(found)


def shift(world: World) -> list[Phase]:
    """sendrecv: each rank sends S to the next, around."""
    num = world.num_ranks
    return [Phase(1, tuple((rank, (rank + 1) % num, 1.0) for rank in range(num)))] if num > 1 else []


def _load(fabric: Fabric, phase: Phase) -> Load:
    import numpy as np

    paths, latencies, num_bytes = fabric.routes(phase.flows)
    slopes = fabric.times_s(phase.flows) - latencies
    pairs = np.unique(np.stack([latencies, slopes], axis=1), axis=0)
    used = np.bincount(paths.ravel(), weights=np.repeat(num_bytes, paths.shape[1]), minlength=len(fabric.capacity))
    seconds = used / fabric.capacity
    combines = any(SWITCH in (source, target) for source, target, _ in phase.flows)
    by_kind: dict[str, float] = {}
    for name, ids in fabric.links_by_kind().items():
        kind = "nvls" if combines and name == "nvlink" else _KIND_OF[name]
        most = float(np.nan_to_num(seconds[ids]).max(initial=0.0))
        if most:
            by_kind[kind] = max(by_kind.get(kind, 0.0), most)
    return Load(1, _envelope(pairs), by_kind)


def _envelope(pairs: NDArray[np.float64]) -> tuple[tuple[float, float], ...]:
    """The lines that are the highest somewhere at 0 or above; a message of no bytes has slope 0."""
    lines: list[tuple[float, float]] = []
    for latency, slope in sorted(map(tuple, pairs.tolist()), key=lambda line: (-line[0], -line[1])):
        if not lines or slope > lines[-1][1] * (1 + 1e-9) + 1e-30:
            lines.append((float(latency), float(slope)))
    return tuple(lines)
