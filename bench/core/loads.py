"""Compute how long an algorithm keeps each kind of link busy: seconds per byte of payload, and latencies.

The sizes of an algorithm's messages are proportional to the payload. The times of all payloads can therefore be
computed from the messages for a payload of one byte. As a function of the payload, the time of a message is a line:
`latency + slope * bytes`. The time of a phase is the maximum of a few such lines. A line is dropped if another line is
larger at every payload.

If a phase occurs several times, its load is computed once. If several machines have the same paths, the paths of a
small world are computed once for all these machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from bench.core.fabric import SWITCH, Fabric
from bench.core.fairness import completions
from bench.core.flow_classes import classes_of, regular_class
from bench.core.schedules import Call, Phase, schedule, table
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
_MOST_KEPT = 1024  # messages of a phase whose load is cached
_MOST_RANKS = 128  # of a world whose schedules are cached; larger worlds have few fabrics and large schedules


@dataclass(frozen=True, slots=True)
class Load:
    """The time that the links need for one phase. The phase runs `repeat` times in a row.

    `lines`: the times of the slowest messages. Each time is a pair: the latency in seconds, and the seconds per byte of
        payload.
    `by_kind`: maps each kind of link to the time of its busiest link, in seconds per byte of payload.
    """

    repeat: int
    lines: tuple[tuple[float, float], ...]
    by_kind: Mapping[str, float]

    def seconds(self, payload_bytes: float) -> float:
        """Return the seconds that the links need for one phase if the software has no overhead."""
        if len(self.lines) == 1:
            latency, slope = self.lines[0]
            return latency + slope * payload_bytes
        return max((latency + slope * payload_bytes for latency, slope in self.lines), default=0.0)

    @property
    def latency_s(self) -> float:
        """The longest latency of a message in the phase, in seconds."""
        return max((latency for latency, _ in self.lines), default=0.0)

    @property
    def excess(self) -> float:
        """The time of the phase with max-min fair rates, as a multiple of the time that its busiest link needs.

        The value is 1 or more. The time of the busiest link is the number of its own bytes divided by its rate.
        """
        busiest = max(self.by_kind.values(), default=0.0)
        return max(max((slope for _, slope in self.lines), default=0.0) / busiest, 1.0) if busiest else 1.0


Loads = tuple[Load, ...]


def ideal_s(loads: Sequence[Load], payload_bytes: float) -> float:
    """Return the seconds that the links need for the whole schedule if the software has no overhead."""
    return sum(load.repeat * load.seconds(payload_bytes) for load in loads)


def loads(fabric: Fabric, op: str, algorithm: str) -> Loads | None:
    """Return a Load for each phase of a collective of all ranks, or None if the algorithm cannot run on this world.

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
    phases = (_schedule if world.num_ranks <= _MOST_RANKS else schedule)(op, algorithm, call)
    return None if phases is None else of_phases(fabric, phases)


@lru_cache(maxsize=2048)
def _schedule(op: str, algorithm: str, call: Call) -> Sequence[Phase] | None:
    return schedule(op, algorithm, call)


def of_phases(fabric: Fabric, phases: Sequence[Phase]) -> Loads:
    """Return a Load for each phase, without phases that have no messages.

    The phases must be those for a payload of one byte.
    """
    known: dict[int, Load] = {}  # by identity: repeated phases are the same object
    found = []
    for phase in phases:
        if not len(phase.flows) or not phase.repeat:
            continue
        if id(phase.flows) not in known:
            known[id(phase.flows)] = _known_load(fabric, phase)
        one = known[id(phase.flows)]
        found.append(Load(phase.repeat, one.lines, one.by_kind))
    return tuple(found)


def _known_load(fabric: Fabric, phase: Phase) -> Load:
    """Return the load of a phase.

    The loads of phases with few messages are cached, because several algorithms have such phases in common.
    """
    if len(phase.flows) > _MOST_KEPT or fabric.world.num_ranks > _MOST_RANKS:
        return _load(fabric, phase)
    routed = _routed(_SamePaths(fabric), phase.flows.tobytes())
    if routed not in fabric.loads:
        fabric.loads[routed] = routed.load(fabric)
    known: Load = fabric.loads[routed]
    return known


class _SamePaths:
    """A cache key made of a fabric.

    Two fabrics have equal keys if every message takes the same path with the same latency on both fabrics.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric

    def __hash__(self) -> int:
        return hash(self.fabric.shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SamePaths) and self.fabric.shape == other.fabric.shape


@lru_cache(maxsize=16384)
def _routed(key: _SamePaths, flows: bytes) -> _RoutedPhase:
    import numpy as np

    return _RoutedPhase(key.fabric, np.frombuffer(flows).reshape(-1, 3))


class _RoutedPhase:
    """The messages of a phase, with the path of each message.

    The paths are the same for all fabrics of the same shape.
    """

    def __init__(self, fabric: Fabric, flows: NDArray[np.float64]) -> None:
        """Find the paths. Raises UsageError if a rate or latency is unknown."""
        paths, latencies, num_bytes = fabric.routes(flows)
        self._largest = float(num_bytes.max()) or 1.0
        scaled = num_bytes / self._largest
        kinds = fabric.kind_of_link
        equal = not ((scaled != scaled[0]).any() or (latencies != latencies[0]).any())
        one = regular_class(paths, kinds, float(scaled[0])) if equal else None
        if one is not None:
            self._classes, self._latencies = one, [float(latencies[0])]
        else:
            none = len(fabric.capacity) - 1
            links = [tuple(link for link in path if link < none) for path in paths.tolist()]
            latency_of, bytes_of = latencies.tolist(), scaled.tolist()
            labels = list(zip(bytes_of, latency_of, strict=True))
            self._classes, numbers = classes_of(links, labels, kinds.tolist(), bytes_of)
            self._latencies = [latency_of[numbers.index(number)] for number in range(max(numbers) + 1)]
        self._most_bytes = _most_bytes(fabric, flows, paths, num_bytes)

    def load(self, fabric: Fabric) -> Load:
        """Return the Load of this phase on a fabric.

        The fabric must have the same `shape` as the fabric for which the paths were computed.
        """
        rates = fabric.rates
        slopes = [self._largest * seconds for seconds in self._classes.completions([*rates.values()])]
        by_kind: dict[str, float] = {}
        for kind, link, num_bytes in self._most_bytes:
            seconds = num_bytes / rates[link]
            by_kind[kind] = max(by_kind.get(kind, 0.0), seconds)
        return Load(1, _envelope(zip(self._latencies, slopes, strict=True)), by_kind)


def shift(world: World) -> list[Phase]:
    """Return the phase of sendrecv, in which each rank sends S to the next rank. The last rank sends to the first rank.

    The list is empty for a single rank.
    """
    num = world.num_ranks
    return [Phase(1, table([(rank, (rank + 1) % num, 1.0) for rank in range(num)]))] if num > 1 else []


def _load(fabric: Fabric, phase: Phase) -> Load:
    paths, latencies, num_bytes = fabric.routes(phase.flows)
    largest = float(num_bytes.max()) or 1.0
    slopes = largest * completions(paths, fabric.capacity, num_bytes / largest)
    by_kind: dict[str, float] = {}
    for kind, link, most in _most_bytes(fabric, phase.flows, paths, num_bytes):
        by_kind[kind] = max(by_kind.get(kind, 0.0), most / fabric.rates[link])
    lines = []
    while latencies.size:  # a fabric has few different latencies
        same = latencies == latencies[0]
        lines.append((float(latencies[0]), float(slopes[same].max())))
        latencies, slopes = latencies[~same], slopes[~same]
    return Load(1, _envelope(lines), by_kind)


def _most_bytes(
    fabric: Fabric, flows: NDArray[np.float64], paths: NDArray[np.int64], num_bytes: NDArray[np.float64]
) -> list[tuple[str, str, float]]:
    """Return, for each kind of link, the bytes of the busiest link.

    Each element of the result has the link's name in explanations, the link's name in the fabric, and the bytes. Kinds
    without bytes are left out. An entry with the name "host" counts only the messages between ranks of the same node.
    """
    import numpy as np

    kinds = fabric.links_by_kind()
    crossing = np.zeros(len(paths), dtype=np.bool_)
    if "nic" in kinds:
        crossing = ((paths >= kinds["nic"].start) & (paths < kinds["nic"].stop)).any(axis=1)
    used = _bytes_of_links(fabric, paths, num_bytes)
    combines = bool((flows[:, :2] == SWITCH).any())
    most = [
        ("nvls" if combines and name == "nvlink" else _KIND_OF[name], name, float(used[ids].max(initial=0.0)))
        for name, ids in kinds.items()
    ]
    if any(kind == "pcie" and num for kind, _, num in most) and not crossing.all():
        inside = _bytes_of_links(fabric, paths[~crossing], num_bytes[~crossing]) if crossing.any() else used
        most += [
            ("host", name, float(inside[kinds[name]].max(initial=0.0))) for name in ("pcie", "bridge") if name in kinds
        ]
    return [each for each in most if each[2]]


def _bytes_of_links(fabric: Fabric, paths: NDArray[np.int64], num_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bytes that these messages send over each link, in the order of link ids."""
    import numpy as np

    found = np.bincount(paths.ravel(), weights=np.repeat(num_bytes, paths.shape[1]), minlength=len(fabric.capacity))
    return np.asarray(found, dtype=np.float64)


def _envelope(lines: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Drop each line that is below another line at every payload, and return the other lines.

    A line is the pair (latency, slope). The slope is 0 for a message without bytes.
    """
    steepest: dict[float, float] = {}
    for latency, slope in lines:
        steepest[latency] = max(steepest.get(latency, 0.0), slope)
    found: list[tuple[float, float]] = []
    for latency, slope in sorted(steepest.items(), reverse=True):
        if not found or slope > found[-1][1]:
            found.append((latency, slope))
    return tuple(found)
