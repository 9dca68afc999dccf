"""Compute the time of messages that share links. The time follows from latencies and max-min fair rates.

A Fabric gives every node of a World the same links (core/links.py). Each rank has its own ports. Several ranks may
share a NIC. A switch itself is never the bottleneck.

Under max-min fairness, no message can get a higher rate without lowering the rate of another message that is equally
slow or slower. The rates in TCP and credit-based networks are close to max-min fair.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from bench.core.errors import UnknownRateError, UsageError
from bench.core.fairness import completions
from bench.core.links import NVLINK_PEERS, NodeLinks
from bench.core.world import World

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

# This number in place of a rank means the switch, which reduces what it receives and multicasts what it sends (NVLS).
SWITCH = -1

Flow = tuple[int, int, float]  # source rank, target rank, bytes


class Fabric:
    """The links of all nodes of a world. Times follow exactly from the links and are deterministic."""

    def __init__(self, links: NodeLinks, world: World) -> None:
        """Compute the capacity of every link. Raises UsageError if a node has fewer GPUs than ranks."""
        if links.peer != "memory" and world.ranks_per_node > links.gpus:
            raise UsageError(
                f"{links.instance} has {links.gpus} GPUs per node, not {world.ranks_per_node}: "
                f"give --ranks-per-node {links.gpus} or less"
            )
        if links.peer == "unknown":
            raise UsageError(
                f"how the accelerators of {links.instance or 'these nodes'} reach each other is unknown: no prediction"
            )
        self.links, self.world = links, world
        self._nics_per_node = min(links.num_nics or 1, world.ranks_per_node)
        self._kinds = self._layout()
        self.capacity = self._capacities()
        self._solved: dict[bytes, Floats] = {}
        self.loads: dict[Any, Any] = {}  # the loads of phases, kept by core/loads.py

    def path(self, source: int, target: int) -> tuple[str, ...]:
        """Return the links from `source` to `target`, in order, such as ('nvlink out 0', 'nvlink in 1')."""
        import numpy as np

        ids = self._paths(np.array([source]), np.array([target]))[0]
        return tuple(self._name(int(link)) for link in ids if link < len(self.capacity) - 1)

    def times_s(self, flows: Sequence[Flow] | Floats) -> Floats:
        """Return the seconds until each flow has arrived.

        All flows begin together. A message from a rank to itself takes 0 s. Raises UsageError if a rate or latency that
        a flow needs is unknown.
        """
        import numpy as np

        if not len(flows):
            return np.zeros(0)
        sources, targets, num_bytes = _columns(flows)
        largest = float(num_bytes.max())
        # Fair shares do not change if the bytes of all messages are scaled. Steps that differ only in scale therefore
        # have a common solution.
        scaled = num_bytes / largest if largest else num_bytes
        key = b"".join(part.tobytes() for part in (sources, targets, scaled))
        if key not in self._solved:
            self._solved[key] = completions(self._paths(sources, targets), self.capacity, scaled)
        return self._latencies(sources, targets) + largest * self._solved[key]

    def routes(self, flows: Sequence[Flow] | Floats) -> tuple[Ints, Floats, Floats]:
        """For each flow, return the link ids (as for `fair_rates`), the latency in seconds, and the bytes.

        A flow without a link has 0 bytes.
        """
        import numpy as np

        sources, targets, num_bytes = _columns(flows)
        paths = self._paths(sources, targets)
        crosses = (paths < len(self.capacity) - 1).any(axis=1)
        return paths, self._latencies(sources, targets), np.where(crosses, num_bytes, 0.0)

    def time_s(self, flows: Sequence[Flow]) -> float:
        """Return the seconds of one step, until the last flow has arrived. All flows begin together."""
        return float(self.times_s(flows).max(initial=0.0))

    @cached_property
    def shape(self) -> Hashable:
        """A value to compare fabrics.

        If two fabrics have equal values, every message takes the same path with the same latency on both.
        """
        links, single = self.links, self.world.num_nodes == 1
        parts = [
            (kind, 0 if single and kind == "nic" else ids.stop - ids.start, self.rates[kind] == self.rates[kind])
            for kind, ids in self.links_by_kind().items()  # an unknown rate is NaN
        ]
        latencies = (links.peer_s, links.host_s, 0.0 if single else links.network_s)
        joined = (
            links.peer,
            links.gpus_per_pcie_switch,
            *(() if single else (links.nvlink_nodes, links.nodes_per_leaf)),
        )
        return self.world, tuple(parts), latencies, joined

    @cached_property
    def rates(self) -> dict[str, float]:
        """Maps each kind of link in the fabric to the rate of one link, in bytes per second. NaN means unknown.

        Kinds are in the order of link ids.
        """
        return {kind: float(self.capacity[ids.start]) for kind, ids in self.links_by_kind().items()}

    @cached_property
    def kind_of_link(self) -> Ints:
        """For each link, the index of the link's kind in `rates`. The id that means "no link" has the index -1."""
        import numpy as np

        numbers = np.full(len(self.capacity), -1, dtype=np.int64)
        for number, ids in enumerate(self.links_by_kind().values()):
            numbers[ids] = number
        return numbers

    @property
    def alike(self) -> bool:
        """Check whether all paths between domains are equally long. A domain has `ranks_per_domain` ranks."""
        return not self._num_leaves()

    @property
    def ranks_per_domain(self) -> int:
        """The number of ranks in a domain.

        If NVLink joins several nodes, these nodes are one domain. Without NVLink between nodes, each node is a domain.
        """
        joined = self.links.nvlink_nodes if self.links.peer in NVLINK_PEERS else 1
        return self.world.ranks_per_node * min(joined, self.world.num_nodes)

    def links_by_kind(self) -> dict[str, slice]:
        """Return the ids of the links of each kind, as in `capacity` and `routes`.

        The kinds are nvlink, pcie, memory, nic, leaf and pair.
        """
        found: dict[str, slice] = {}
        for name, (first, number) in self._kinds.items():
            kind = name.split()[0]
            if number and kind != "none":
                found[kind] = slice(found[kind].start if kind in found else first, first + number)
        return found

    def _layout(self) -> dict[str, tuple[int, int]]:
        """Return the first id and the number of links for each kind of link. The last id means "no link"."""
        per_rank, world = self.world.num_ranks, self.world
        sizes = {f"{name} {way}": per_rank for name in ("nvlink", "pcie", "memory") for way in ("out", "in")}
        sizes |= dict.fromkeys(("nic out", "nic in"), world.num_nodes * self._nics_per_node)
        sizes |= dict.fromkeys(("leaf out", "leaf in"), self._num_leaves())
        sizes |= dict.fromkeys(("bridge out", "bridge in"), self.world.num_nodes * self._bridges_per_node())
        sizes["pair"] = per_rank * world.ranks_per_node if self.links.pair_bytes_per_s else 0
        layout, first = {}, 0
        for kind, number in sizes.items():
            layout[kind] = (first, number)
            first += number
        return layout | {"none": (first, 1)}

    def _capacities(self) -> Floats:
        """Return the bytes per second of every link, in the order of ids. An unknown rate is NaN."""
        import numpy as np

        links, nic = self.links, self.links.nic_bytes_per_s
        if nic is not None:
            nic *= links.nics_of_a_rank(self.world.ranks_per_node)
        rates = {"nvlink": links.nvlink_bytes_per_s, "pcie": links.pcie_bytes_per_s, "nic": nic}
        rates["leaf"] = self._leaf_rate()
        rates["bridge"] = links.pcie_bytes_per_s
        rates |= {"memory": links.memory_bytes_per_s, "pair": links.pair_bytes_per_s, "none": np.inf}
        parts = [
            np.full(number, np.nan if rates[kind.split()[0]] is None else rates[kind.split()[0]], dtype=np.float64)
            for kind, (_, number) in self._kinds.items()
        ]
        return np.concatenate(parts)

    def _num_leaves(self) -> int:
        """Return the number of leaf switches whose uplinks can limit the traffic.

        The number is 0 with a single switch or without oversubscription.
        """
        per_leaf = self.links.nodes_per_leaf
        if per_leaf is None or per_leaf >= self.world.num_nodes or self.links.oversubscription <= 1:
            return 0
        return -(-self.world.num_nodes // per_leaf)

    def _leaf_rate(self) -> float | None:
        """Return the bytes per second of a leaf switch's uplinks.

        The result is the total NIC rate of the nodes at the switch, divided by the oversubscription.
        """
        if self.links.nic_bytes_per_s is None:
            return None
        nodes = self.links.nodes_per_leaf or 1
        return self.links.nic_bytes_per_s * (self.links.num_nics or 1) * nodes / self.links.oversubscription

    def _name(self, link: int) -> str:
        kind, first = next((k, first) for k, (first, n) in self._kinds.items() if first <= link < first + n)
        return f"{kind} {link - first}"

    def _paths(self, sources: Ints, targets: Ints) -> Ints:
        """Return an array of shape (flows, 6) with the link ids of each flow.

        Unused elements have the id for "no link". Raises UnknownRateError.
        """
        import numpy as np

        crosses, by_nvlink = self._ways(sources, targets)
        none = self._kinds["none"][0]
        paths = np.full((len(sources), 6), none, dtype=np.int64)
        by_port = ~by_nvlink & (sources != targets)
        inner = "pcie"
        if self.links.peer == "memory":
            # Processes of one node exchange data through its memory. Only the NIC limits messages to other nodes.
            inner, by_port = "memory", by_port & ~crosses
        elif self.links.pcie_bytes_per_s is None:
            # The rate of PCIe is unknown. Each GPU's link to its NIC is assumed to be at least as fast as the NIC.
            by_port = by_port & ~crosses
        for column, way, ranks in ((0, "out", sources), (3, "in", targets)):
            there = ranks != SWITCH
            for used, kind in ((by_nvlink & there, f"nvlink {way}"), (by_port, f"{inner} {way}")):
                paths[used, column] = self._kinds[kind][0] + ranks[used]
        for column, way, ranks in ((1, "out", sources), (2, "in", targets)):
            paths[crosses, column] = self._kinds[f"nic {way}"][0] + self._nic(ranks[crosses])
        if self.links.pair_bytes_per_s:
            direct = by_nvlink & (sources != SWITCH) & (targets != SWITCH)
            per_node = self.world.ranks_per_node
            paths[direct, 1] = self._kinds["pair"][0] + sources[direct] * per_node + targets[direct] % per_node
        if self._num_leaves():
            ranks_per_leaf = self.world.ranks_per_node * (self.links.nodes_per_leaf or 1)
            self._climb(paths, crosses, sources // ranks_per_leaf, targets // ranks_per_leaf, "leaf")
        if self._bridges_per_node():
            inside = ~by_nvlink & ~crosses & (sources != targets)
            self._climb(paths, inside, self._bridge(sources), self._bridge(targets), "bridge")
        self._refuse_unknown(paths)
        return paths

    def _climb(self, paths: Ints, used: NDArray[np.bool_], sources: Ints, targets: Ints, kind: str) -> None:
        """Add the uplinks to the paths of messages between different switches.

        `sources` and `targets` are the numbers of the switches. A message inside a node uses the uplinks of PCIe
        switches. A message between nodes uses the uplinks of leaf switches.
        """
        up = used & (sources != targets)
        for column, way, switches in ((4, "out", sources), (5, "in", targets)):
            paths[up, column] = self._kinds[f"{kind} {way}"][0] + switches[up]

    def _bridges_per_node(self) -> int:
        """Return the number of PCIe switches per node if several ranks share one switch, otherwise 0."""
        shared = self.links.gpus_per_pcie_switch
        if shared is None or shared < 2 or self.links.peer == "memory":
            return 0
        return -(-self.world.ranks_per_node // shared)

    def _bridge(self, ranks: Ints) -> Ints:
        per_node, shared = self.world.ranks_per_node, self.links.gpus_per_pcie_switch or 1
        return ranks // per_node * self._bridges_per_node() + ranks % per_node // shared

    def _ways(self, sources: Ints, targets: Ints) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return two boolean arrays over flows: whether a flow crosses the network, and whether it uses NVLink.

        If both elements are False, the flow passes through the host.
        """
        import numpy as np

        links, per_node = self.links, self.world.ranks_per_node
        by_switch = (sources == SWITCH) | (targets == SWITCH)
        same_node = sources // per_node == targets // per_node
        if links.peer not in NVLINK_PEERS:
            joined = np.zeros(len(sources), dtype=np.bool_)
        elif links.peer == "nvlink_pairs":
            joined = same_node & (sources % per_node // 2 == targets % per_node // 2)
        else:
            domain = per_node * links.nvlink_nodes
            joined = sources // domain == targets // domain
        by_nvlink = (joined | by_switch) & (sources != targets)
        return ~same_node & ~by_nvlink, by_nvlink

    def _nic(self, ranks: Ints) -> Ints:
        per_node = self.world.ranks_per_node
        return ranks // per_node * self._nics_per_node + ranks % per_node * self._nics_per_node // per_node

    def _latencies(self, sources: Ints, targets: Ints) -> Floats:
        import numpy as np

        crosses, by_nvlink = self._ways(sources, targets)
        seconds = np.zeros(len(sources))
        hosted = ~crosses & ~by_nvlink & (sources != targets)
        for used, name in ((crosses, "network_s"), (by_nvlink, "peer_s"), (hosted, "host_s")):
            if used.any():
                latency: float | None = getattr(self.links, name)
                if latency is None:
                    raise UsageError(f"the latency {name!r} of {self._whose()} is unknown: name an instance type")
                seconds[used] = latency
        return seconds

    def _refuse_unknown(self, paths: Ints) -> None:
        import numpy as np

        unknown = np.isnan(self.capacity[paths])
        if unknown.any():
            raise UnknownRateError(self._name(int(paths[unknown][0])).split()[0], self._whose())

    def _whose(self) -> str:
        return self.links.instance or "these nodes"


def _columns(flows: Sequence[Flow] | Floats) -> tuple[Ints, Ints, Floats]:
    """Return three arrays with the sources, the targets and the bytes of messages."""
    import numpy as np

    table = np.asarray(flows, dtype=np.float64)
    return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2]
