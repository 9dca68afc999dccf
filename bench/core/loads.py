"""Compute the seconds per payload byte, and the latencies, of one algorithm on each kind of link.

The messages of a schedule are proportional to the payload. The solution for one byte therefore gives the times of all
sizes. The time of a phase is the maximum of a few linear functions of the payload (lines). A line is latency + bytes x
slope. Equal phases are computed once. A line that is below another line at every size is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from bench.core.fabric import SWITCH, Fabric
from bench.core.fairness import completions
from bench.core.schedules import Call, Phase, schedule
from bench.core.world import World

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Kinds of links, as explanations name them. Two more are found per phase: "nvls" for NVLink ports while the switch
# reduces, and "host" for the part of "pcie" between GPUs of one node, through host memory or directly.
_KIND_OF = {
    "nvlink": "nvlink",
    "pair": "nvlink",
    "pcie": "pcie",
    "nic": "nic",
    "leaf": "nic",
    "bridge": "pcie",
    "memory": "memory",
}
_MOST_KEPT = 512  # messages of a phase


@dataclass(frozen=True, slots=True)
class Load:
    """`repeat` phases in a row.

    `lines`: (seconds of latency, seconds per byte of payload) of the slowest messages.
    `by_kind`: for each kind of link, the seconds per byte of payload that the busiest link of this kind needs.
    `busiest`: the kind with the largest of these values.
    """

    repeat: int
    lines: tuple[tuple[float, float], ...]
    by_kind: Mapping[str, float]

    def seconds(self, payload_bytes: float) -> float:
        """Return the seconds that the links need for one phase, without any software overhead."""
        return max((latency + slope * payload_bytes for latency, slope in self.lines), default=0.0)

    @property
    def latency_s(self) -> float:
        """The longest latency of the phase's messages, in seconds."""
        return max((latency for latency, _ in self.lines), default=0.0)

    @property
    def excess(self) -> float:
        """The time of the phase with fair shares, divided by the busiest link's time for its own bytes (1 or more)."""
        busiest = max(self.by_kind.values(), default=0.0)
        return max(max((slope for _, slope in self.lines), default=0.0) / busiest, 1.0) if busiest else 1.0


Loads = tuple[Load, ...]


def ideal_s(loads: Sequence[Load], payload_bytes: float) -> float:
    """Return the seconds that the links need for the whole schedule, without any software overhead."""
    return sum(load.repeat * load.seconds(payload_bytes) for load in loads)


def loads(fabric: Fabric, op: str, algorithm: str) -> Loads | None:
    """Return the loads of one collective of the whole world, or None if the algorithm cannot run on this world.

    Raises UsageError if a rate or latency is unknown.
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
    """Return the loads of phases whose flows were made for a payload of one byte."""
    known: dict[int, Load] = {}  # by identity: repeated phases are the same object
    found = []
    for phase in phases:
        if not phase.flows or not phase.repeat:
            continue
        if id(phase.flows) not in known:
            known[id(phase.flows)] = _known_load(fabric, phase)
        one = known[id(phase.flows)]
        found.append(Load(phase.repeat, one.lines, one.by_kind))
    return tuple(found)


def _known_load(fabric: Fabric, phase: Phase) -> Load:
    """Return the load of a phase. Phases of few messages are kept, because algorithms share them on one fabric."""
    if len(phase.flows) > _MOST_KEPT:
        return _load(fabric, phase)
    if phase.flows not in fabric.loads:
        fabric.loads[phase.flows] = _load(fabric, phase)
    known: Load = fabric.loads[phase.flows]
    return known


def shift(world: World) -> list[Phase]:
    """Return the phases of sendrecv, in which each rank sends S to the next rank of a ring."""
    num = world.num_ranks
    return [Phase(1, tuple((rank, (rank + 1) % num, 1.0) for rank in range(num)))] if num > 1 else []


def _load(fabric: Fabric, phase: Phase) -> Load:
    import numpy as np

    flows = np.fromiter(chain.from_iterable(phase.flows), np.float64, 3 * len(phase.flows)).reshape(-1, 3)
    paths, latencies, num_bytes = fabric.routes(flows)
    largest = float(num_bytes.max()) or 1.0
    slopes = largest * completions(paths, fabric.capacity, num_bytes / largest)
    kinds = fabric.links_by_kind()
    crossing = np.zeros(len(paths), dtype=np.bool_)
    if "nic" in kinds:
        crossing = ((paths >= kinds["nic"].start) & (paths < kinds["nic"].stop)).any(axis=1)
    used = _seconds(fabric, paths, num_bytes)
    combines = bool((flows[:, :2] == SWITCH).any())
    by_kind: dict[str, float] = {}
    for name, ids in kinds.items():
        kind = "nvls" if combines and name == "nvlink" else _KIND_OF[name]
        _most(by_kind, kind, used[ids])
    if "pcie" in by_kind and not crossing.all():
        inside = _seconds(fabric, paths[~crossing], num_bytes[~crossing]) if crossing.any() else used
        for name in {"pcie", "bridge"} & set(kinds):
            _most(by_kind, "host", inside[kinds[name]])
    return Load(1, _envelope(latencies, slopes), by_kind)


def _seconds(fabric: Fabric, paths: NDArray[np.int64], num_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the seconds for which each link is busy with these messages, in the order of link ids."""
    import numpy as np

    used = np.bincount(paths.ravel(), weights=np.repeat(num_bytes, paths.shape[1]), minlength=len(fabric.capacity))
    return np.nan_to_num(used / fabric.capacity)


def _most(by_kind: dict[str, float], kind: str, seconds: NDArray[np.float64]) -> None:
    most = float(seconds.max(initial=0.0))
    if most:
        by_kind[kind] = max(by_kind.get(kind, 0.0), most)


def _envelope(latencies: NDArray[np.float64], slopes: NDArray[np.float64]) -> tuple[tuple[float, float], ...]:
    """Return the lines that are above all other lines for at least one payload. A message without bytes has slope 0."""
    steepest: dict[float, float] = {}
    while latencies.size:  # a fabric has few different latencies
        same = latencies == latencies[0]
        steepest[float(latencies[0])] = float(slopes[same].max())
        latencies, slopes = latencies[~same], slopes[~same]
    lines: list[tuple[float, float]] = []
    for latency, slope in sorted(steepest.items(), reverse=True):
        if not lines or slope > lines[-1][1]:
            lines.append((latency, slope))
    return tuple(lines)
