"""Compute the load of a collective on each link, for each algorithm that libraries have.

A family is a group of links with similar hardware, such as all network links.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from operator import attrgetter
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
from bench.predict.messages import Refusal

# The algorithms from which NCCL and RCCL choose: rings, NVLS, double trees, and "direct" on meshes. The other
# algorithms of core/schedules.py only give bounds: "pipelined" sends fewer bytes between nodes than any of these, and
# "tree" sends whole messages, which no library does.
LIBRARY = {
    "allreduce": ("ring", "nvls", "double_tree", "direct"),
    "allgather": ("ring", "direct"),
    "reducescatter": ("ring", "direct"),
    "broadcast": ("chain",),
    "reduce": ("chain",),
    "gather": ("linear",),
    "scatter": ("linear",),
    "alltoall": ("at_once", "pairwise"),
    "sendrecv": ("shift",),
    "barrier": ("dissemination",),
}
# Patterns that load a port in the same way. Evidence for one of these patterns is also used for the other patterns with
# the same value.
LOAD_STYLES = {
    "reduction": ("allreduce",),
    "ring": ("allgather", "reducescatter"),
    "chain": ("broadcast", "reduce", "gather", "scatter"),
    "pairs": ("alltoall", "sendrecv"),
}
# busbw = S x factor x (n-1)/n / t, as defined in docs/metrics.md and nccl-tests. This formula converts printed rates to
# seconds.
_BUS_FACTOR = {"allreduce": 2.0, "allgather": 1.0, "reducescatter": 1.0, "alltoall": 1.0, "gather": 1.0, "scatter": 1.0}

LINK_NAMES = {
    "nvlink": "NVLink port",
    "nvls": "NVLink port (NVLS)",
    "pcie": "PCIe link",
    "host": "host memory",
    "nic": "NIC",
    "memory": "memory",
}
# Without peer access, copies between GPUs pass through host memory. Servers with many GPUs reach a share of their PCIe
# links. Machines with few GPUs reach 2 to 4 GB/s on links of any generation, so their efficiency is relative to this
# rate, in bytes per second.
HOST_RATE = 10e9
SERVER_GPUS = 8  # a node with at least this many GPUs is a server
MOST_UNEVEN_GPUS = 2048  # the largest number of GPUs of an alltoall whose rounds differ


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One algorithm on given links.

    `parts`: for each phase, its number of repetitions, `Load.excess`, and seconds per payload byte by (kind, family).
    `by_family`: for each (kind, family) of links, the seconds per payload byte in which these links are busy,
        summed over all phases.
    `latency_s`: the sum of the latencies of all steps.
    """

    name: str
    loads: Loads
    parts: tuple[tuple[int, float, Mapping[tuple[str, str], float]], ...]
    by_family: Mapping[tuple[str, str], float]
    latency_s: float


class Task:
    """One pattern on one cluster, and how much the algorithms of this pattern load each link.

    `algorithms`: the algorithms that libraries have. `floor_s`: the smallest latency among `algorithms`.
    """

    def __init__(self, pattern: str, fabric: Fabric) -> None:
        """Compute the loads of the algorithms that libraries have. Raises UsageError for an unknown rate or latency."""
        world = fabric.world
        self.pattern, self.num_nodes, self.ranks_per_node = pattern, world.num_nodes, world.ranks_per_node
        self._fabric = fabric
        self._loads: dict[str, Loads | None] = {}
        self._ideal_s: dict[float, float] = {}
        chosen = ((name, self._of(name)) for name in LIBRARY[pattern] if world.num_ranks > 1)
        self.algorithms = tuple(_algorithm(name, loads, fabric.links, world) for name, loads in chosen if loads)
        self.floor_s = min((algorithm.latency_s for algorithm in self.algorithms), default=0.0)

    def _of(self, name: str) -> Loads | None:
        if name not in self._loads:
            if name == "shift":
                self._loads[name] = core_loads.of_phases(self._fabric, core_loads.shift(self._fabric.world))
            else:
                self._loads[name] = core_loads.loads(self._fabric, self.pattern, name)
        return self._loads[name]

    @cached_property
    def bounds(self) -> tuple[tuple[str, Loads], ...]:
        """The loads of all algorithms, from which the shortest time that the links allow is computed.

        The first access computes the loads.
        """
        if self._fabric.world.num_ranks < 2:
            return ()
        names = ("shift",) if self.pattern == "sendrecv" else algorithms(self.pattern)
        found = ((name, self._of(name)) for name in names)
        return tuple((name, loads) for name, loads in found if loads is not None)

    def ideal_s(self, payload_bytes: float) -> float:
        """Return the seconds that the links alone need with the fastest of all algorithms.

        The `model` transport computes the same time.
        """
        if payload_bytes not in self._ideal_s:
            self._ideal_s[payload_bytes] = min(core_loads.ideal_s(loads, payload_bytes) for _, loads in self.bounds)
        return self._ideal_s[payload_bytes]


def patterns() -> tuple[str, ...]:
    """Return the names of the patterns that can be predicted."""
    return tuple(LIBRARY)


def load_style(pattern: str) -> str:
    """Return the name of the load style of a pattern. Patterns with the same style load a port in the same way."""
    return next((word for word, members in LOAD_STYLES.items() if pattern in members), pattern)


def seconds_of(pattern: str, payload_bytes: float, num_ranks: int, busbw: float) -> float:
    """Return the duration in seconds of one operation with the bus bandwidth `busbw` (bytes per second)."""
    factor = _BUS_FACTOR.get(pattern)
    return payload_bytes * (factor * (num_ranks - 1) / num_ranks if factor else 1.0) / busbw


def task(pattern: str, links: NodeLinks, num_nodes: int, ranks_per_node: int) -> Task:
    """Return the algorithms of one pattern.

    Raises UsageError for an unknown pattern, rate or latency, or for too many GPUs per node.
    """
    if pattern not in LIBRARY:
        raise UsageError.of(Refusal.PATTERN_UNKNOWN, pattern=pattern, hint=nearest(pattern, patterns()))
    return _task(pattern, _LinksKey(links, num_nodes == 1), num_nodes, ranks_per_node)


def same_times(links: NodeLinks) -> Hashable:
    """Return a key that is equal for two sets of links if all times are equal on both."""
    found: Hashable = _of_times(links)
    return found


def same_evidence(links: NodeLinks) -> Hashable:
    """Return a key that is equal for two sets of links if the same evidence gives the same predictions for both."""
    return _of_times(links), links.instance, links.like, tuple(links.verified.items())


_NO_EFFECT = ("sources", "verified", "given", "instance", "like")  # fields that do not change times
_KINDS = ("nic_kind", "nvlink_generation")  # fields that change efficiencies, but no loads
# Fields that change nothing inside a node.
_OF_NETWORK = (
    "nic_bytes_per_s",
    "num_nics",
    "network_s",
    "network_reduces",
    "nvlink_nodes",
    "nodes_per_leaf",
    "oversubscription",
)
_TIMED = [each.name for each in fields(NodeLinks) if each.name not in _NO_EFFECT]
_LOADED = [name for name in _TIMED if name not in _KINDS]
_of_times, _of_loads = attrgetter(*_TIMED), attrgetter(*_LOADED)
_of_loads_inside = attrgetter(*(name for name in _LOADED if name not in _OF_NETWORK))


class _LinksKey:
    """A cache key made of links. Two keys are equal if a message loads both sets of links in the same way.

    The key omits some fields of the links. Code may use `links` only if its result does not depend on these fields.
    """

    def __init__(self, links: NodeLinks, inside: bool) -> None:
        self.links = links
        self.key = (inside, *(_of_loads_inside if inside else _of_loads)(links))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _LinksKey) and self.key == other.key


@lru_cache(maxsize=8192)
def _task(pattern: str, key: _LinksKey, num_nodes: int, ranks_per_node: int) -> Task:
    fabric = _fabric(key.links.instance, key, num_nodes, ranks_per_node)
    num_ranks = fabric.world.num_ranks
    if pattern == "alltoall" and not fabric.alike and num_ranks > MOST_UNEVEN_GPUS:
        raise UsageError.of(Refusal.ALLTOALL_TOO_LARGE, most=MOST_UNEVEN_GPUS, num_gpus=num_ranks)
    return Task(pattern, fabric)


@lru_cache(maxsize=32)  # the patterns of one group follow each other
def _fabric(instance: str, key: _LinksKey, num_nodes: int, ranks_per_node: int) -> Fabric:
    """Return the fabric of a group. `instance`: the name of the machine in error messages."""
    return Fabric(key.links, World(num_nodes, ranks_per_node))


def _algorithm(name: str, loads: Loads, links: NodeLinks, world: World) -> Algorithm:
    parts = []
    for load in loads:
        needs: dict[tuple[str, str], float] = {}
        for kind, slope in load.by_kind.items():
            needs |= _families(kind, slope * (0.5 if _one_way(name, kind, links, world) else 1.0), links)
        if needs:
            parts.append((load.repeat, load.excess, needs))
    total: dict[tuple[str, str], float] = {}
    for repeat, _, needs in parts:
        for key, slope in needs.items():
            total[key] = total.get(key, 0.0) + repeat * slope
    return Algorithm(name, loads, tuple(parts), total, sum(load.repeat * load.latency_s for load in loads))


def _one_way(algorithm: str, kind: str, links: NodeLinks, world: World) -> bool:
    """Return whether each rank uses the memory of its host in only one direction, to send or to receive.

    Both directions share the path through the host's memory. In an allgather, each GPU sends and receives at the same
    time. A broadcast between two GPUs is therefore more than twice as fast as an allgather (autodl's RTX 2080 Ti: 11.1
    and 3.8 GB/s). In a chain of more than two ranks, the inner ranks receive and send at the same time.
    """
    return kind == "host" and links.peer == "host" and algorithm == "chain" and world.num_ranks == 2


def _families(kind: str, slope: float, links: NodeLinks) -> dict[tuple[str, str], float]:
    """Return the seconds per payload byte for one type of link in one phase.

    The keys of the result are pairs (kind, family).
    """
    if kind == "nic":
        return {("nic", "network"): slope}
    if kind == "memory":
        return {("memory", "memory"): slope}
    if kind in ("nvlink", "nvls"):
        return {(kind, peer_family(links, kind == "nvls")): slope}
    if kind == "pcie":
        return {("pcie", "pcie-link"): slope}
    if links.peer == "host" and links.gpus >= SERVER_GPUS:
        return {("host", "no-p2p-server"): slope}
    if links.peer == "host":
        return {("host", "no-p2p"): slope * (links.pcie_bytes_per_s or HOST_RATE) / HOST_RATE}
    return {("pcie", "pcie-p2p"): slope}


def peer_family(links: NodeLinks, reduces: bool) -> str:
    """Return the family of the path between two GPUs in the same node or NVLink network.

    `reduces`: whether the switch reduces (adds the data; NVLS).
    """
    if links.peer == "nvswitch":
        return "nvswitch-nvls" if reduces else "nvswitch"
    families: dict[str, Any] = {
        "nvlink_mesh": "nvlink-mesh",
        "infinity_fabric": "infinity-fabric",
        "nvlink_pairs": "nvlink-pairs",
        "pcie_p2p": "pcie-p2p",
        "host": "no-p2p-server" if links.gpus >= SERVER_GPUS else "no-p2p",
    }
    return str(families.get(links.peer, links.peer))


def machine(links: NodeLinks, family: str) -> str:
    """Return the instance type whose evidence is used for this machine's links of one family.

    The result is "" if the links do not name an instance type.

    A type with `like:` has a parent type. If both types have equal links of this family, the result is the parent type.
    """
    if links.like and links.like in catalogue.instances():
        parent = catalogue.instance(links.like).links
        if all(getattr(links, name) == getattr(parent, name) for name in _links_of(family)):
            return links.like
    return links.instance


def _links_of(family: str) -> tuple[str, ...]:
    """Return the names of the NodeLinks fields for the links of one family."""
    if family == "network":
        return "nic_bytes_per_s", "num_nics", "nic_kind", "gpus"
    if family in ("pcie-link", "pcie-p2p", "no-p2p", "no-p2p-server"):
        pcie = ("pcie_bytes_per_s", "gpus_per_pcie_switch")
        return pcie if family == "pcie-link" else (*pcie, "peer")
    return "peer", "nvlink_bytes_per_s", "pair_bytes_per_s", "nvls", "nvlink_generation", "nvlink_nodes"


def generation(links: NodeLinks, family: str) -> tuple[str, str]:
    """Return the hardware of a machine's links in one family: its exact type, and the broader group of this type.

    Evidence from the same type of hardware has the largest weight. Evidence from the same group has less weight.
    """
    if family == "network":
        kind = links.nic_kind or "unknown"
        kind_group = kind.partition("-")[0]
        return kind, "infiniband" if kind_group == "roce" else kind_group
    if family.startswith(("nvswitch", "nvlink")):
        return f"nvlink{links.nvlink_generation}", family
    return links.peer, family
