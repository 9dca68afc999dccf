"""What a collective asks of each link, per algorithm that libraries have, and which family each link belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from bench.core import loads as core_loads
from bench.core.errors import UsageError
from bench.core.fabric import Fabric
from bench.core.links import NodeLinks
from bench.core.loads import Loads
from bench.core.plugins import nearest
from bench.core.schedules import algorithms
from bench.core.world import World
from bench.hardware import catalogue

# What NCCL and RCCL choose from: rings, NVLS and pieces (their pipelined double trees among them), "direct" for meshes.
# The others of core/schedules.py bound them: its tree too, which sends whole messages and is no library's tree.
LIBRARY = {
    "allreduce": ("ring", "nvls", "pipelined", "direct"),
    "allgather": ("ring", "direct"),
    "reducescatter": ("ring", "direct"),
    "broadcast": ("chain",),
    "reduce": ("chain",),
    "gather": ("linear",),
    "scatter": ("linear",),
    "alltoall": ("pairwise",),
    "sendrecv": ("shift",),
    "barrier": ("dissemination",),
}
# Patterns whose messages load a port alike: evidence of one serves the others.
STYLES = {
    "ring": ("allreduce", "allgather", "reducescatter"),
    "chain": ("broadcast", "reduce", "gather", "scatter"),
    "pairs": ("alltoall", "sendrecv"),
}
# One rank's busbw is S x this / t: what docs/metrics.md (and nccl-tests) define, to turn printed rates into seconds.
_BUS_FACTOR = {"allreduce": 2.0, "allgather": 1.0, "reducescatter": 1.0, "alltoall": 1.0, "gather": 1.0, "scatter": 1.0}

LINK_WORDS = {
    "nvlink": "NVLink port",
    "nvls": "NVLink port, the switch reducing",
    "pcie": "PCIe link",
    "host": "the way through host memory",
    "nic": "NIC",
    "memory": "memory",
}
# Copies through host memory, where GPUs can not reach each other, are bound by the host rather than by the GPU's link:
# their evidence is bytes per second, told as a part of this rate.
HOST_RATE = 10e9
MOST_UNLIKE = 2048  # GPUs of an alltoall whose rounds are not alike


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm on given links. `parts`: of each phase, times in a row, excess of fair shares, and seconds per byte
    of payload by (kind, family); `latency_s`: of all its steps."""

    name: str
    loads: Loads
    parts: tuple[tuple[int, float, Mapping[tuple[str, str], float]], ...]
    latency_s: float

    def by_family(self) -> dict[tuple[str, str], float]:
        """Seconds per byte of payload that each (kind, family) is needed in all."""
        total: dict[tuple[str, str], float] = {}
        for repeat, _, needs in self.parts:
            for key, slope in needs.items():
                total[key] = total.get(key, 0.0) + repeat * slope
        return total


@dataclass(frozen=True, slots=True)
class Task:
    """One pattern on one cluster. `algorithms`: what a library has; `bounds`: all, the limit of the links alone."""

    pattern: str
    num_nodes: int
    ranks_per_node: int
    algorithms: tuple[Algorithm, ...]
    bounds: tuple[tuple[str, Loads], ...]
    floor_s: float  # the least latency that one of `algorithms` needs

    def ideal_s(self, payload_bytes: float) -> float:
        """Seconds by the links alone, with the best of all algorithms: what the `model` transport says."""
        return min(core_loads.ideal_s(loads, payload_bytes) for _, loads in self.bounds)


def patterns() -> tuple[str, ...]:
    """The patterns that can be predicted."""
    return tuple(LIBRARY)


def style(pattern: str) -> str:
    """The word for patterns that load a port as this one does."""
    return next((word for word, members in STYLES.items() if pattern in members), pattern)


def seconds_of(pattern: str, payload_bytes: float, num_ranks: int, busbw: float) -> float:
    """Seconds of one operation from its printed bus bandwidth (bytes per second)."""
    factor = _BUS_FACTOR.get(pattern)
    return payload_bytes * (factor * (num_ranks - 1) / num_ranks if factor else 1.0) / busbw


def task(pattern: str, links: NodeLinks, num_nodes: int, ranks_per_node: int) -> Task:
    """The algorithms of one pattern. UsageError: an unknown pattern, rate or latency, too many GPUs for a node."""
    if pattern not in LIBRARY:
        raise UsageError(f"no prediction is made of {pattern!r}{nearest(pattern, patterns())}")
    return _task(pattern, _Hashed(links), num_nodes, ranks_per_node)


class _Hashed:
    """Links as a key: two that give the same times are one."""

    def __init__(self, links: NodeLinks) -> None:
        self.links = links
        self.key = tuple(getattr(links, each.name) for each in fields(links) if each.name not in _WORDS)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and self.key == other.key


_WORDS = ("sources", "verified", "instance", "like")


@lru_cache(maxsize=512)
def _task(pattern: str, hashed: _Hashed, num_nodes: int, ranks_per_node: int) -> Task:
    links, world = hashed.links, World(num_nodes, ranks_per_node)
    fabric = Fabric(links, world)
    if pattern == "alltoall" and not fabric.alike and world.num_ranks > MOST_UNLIKE:
        raise UsageError(
            f"an alltoall across oversubscribed leaf switches is predicted for {MOST_UNLIKE} GPUs at "
            f"most, not for {world.num_ranks}: every one of its rounds differs"
        )
    found: dict[str, Loads] = {}
    if world.num_ranks < 2:
        pass
    elif pattern == "sendrecv":
        found["shift"] = core_loads.of_phases(fabric, core_loads.shift(world))
    else:
        known = ((name, core_loads.loads(fabric, pattern, name)) for name in algorithms(pattern))
        found = {name: loads for name, loads in known if loads is not None}
    chosen = [_algorithm(name, found[name], links, world) for name in LIBRARY[pattern] if name in found]
    least = min((each.latency_s for each in chosen), default=0.0)
    return Task(pattern, num_nodes, ranks_per_node, tuple(chosen), tuple(found.items()), least)


def _algorithm(name: str, loads: Loads, links: NodeLinks, world: World) -> Algorithm:
    parts = []
    for load in loads:
        needs: dict[tuple[str, str], float] = {}
        for kind, slope in load.by_kind.items():
            needs |= _families(kind, slope, links, world)
        if needs:
            parts.append((load.repeat, load.excess, needs))
    return Algorithm(name, loads, tuple(parts), _latency_s(loads))


def _latency_s(loads: Loads) -> float:
    return sum(load.repeat * load.latency_s for load in loads)


def _families(kind: str, slope: float, links: NodeLinks, world: World) -> dict[tuple[str, str], float]:
    """(kind, family) -> seconds per byte, of a kind of link in one phase."""
    if kind == "nic":
        return {("nic", "network"): slope}
    if kind == "memory":
        return {("memory", "memory"): slope}
    if kind in ("nvlink", "nvls"):
        return {(kind, peer_family(links, world.num_nodes, kind == "nvls")): slope}
    if kind == "pcie":
        return {("pcie", "pcie-link"): slope}
    if links.peer == "host":
        return {("host", "no-p2p"): slope * (links.pcie_bytes_per_s or HOST_RATE) / HOST_RATE}
    return {("pcie", "pcie-p2p"): slope}


def peer_family(links: NodeLinks, num_nodes: int, reduces: bool) -> str:
    """The family of the way between two GPUs of a node (or of one NVLink network)."""
    if links.peer == "nvswitch":
        domain = links.nvlink_nodes > 1 and num_nodes > 1
        return "nvlink-domain" if domain else "nvswitch-nvls" if reduces else "nvswitch"
    words: dict[str, Any] = {
        "nvlink_mesh": "nvlink-mesh",
        "infinity_fabric": "infinity-fabric",
        "nvlink_pairs": "nvlink-pairs",
        "pcie_p2p": "pcie-p2p",
        "host": "no-p2p",
    }
    return str(words.get(links.peer, links.peer))


def machine(links: NodeLinks, family: str) -> str:
    """Whose evidence is its own in a family: the name of an instance type, for one made with `like:` its parent's
    where it has the same links of that family; "" where it has no name."""
    if links.like in catalogue.instances():
        parent = catalogue.instance(links.like).links
        if all(getattr(links, name) == getattr(parent, name) for name in _links_of(family)):
            return links.like
    return links.instance


def _links_of(family: str) -> tuple[str, ...]:
    """The fields of NodeLinks that say what links a family has."""
    if family == "network":
        return "nic_bytes_per_s", "num_nics", "nic_kind", "gpus"
    if family in ("pcie-link", "pcie-p2p", "no-p2p"):
        return "pcie_bytes_per_s", "gpus_per_pcie_switch", *(() if family == "pcie-link" else ("peer",))
    return "peer", "nvlink_bytes_per_s", "pair_bytes_per_s", "nvls", "nvlink_generation", "nvlink_nodes"


def generation(links: NodeLinks, family: str) -> tuple[str, str]:
    """(exact, group) of the hardware in a family: the nearer, the more evidence of one says of another."""
    if family == "network":
        kind = links.nic_kind or "unknown"
        return kind, kind.partition("-")[0] if kind != "roce-400" else "infiniband"
    if family.startswith(("nvswitch", "nvlink")):
        return f"nvlink{links.nvlink_generation}", family
    return links.peer, family
