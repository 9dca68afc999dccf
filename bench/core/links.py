"""Describe the links of one node. Results files store the links, and bounds, predictions and models use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from bench.core.codes import UNCODED, Code
from bench.core.errors import UsageError
from bench.core.plugins import nearest

# How two GPUs of a node reach each other. With the first four kinds, GPUs have NVLink ports (`nvlink_bytes_per_s`). In
# a mesh, the link between two GPUs has `pair_bytes_per_s`. `nvlink_pairs` joins ranks 0-1, 2-3, ...; other pairs use
# PCIe. With "unknown", nothing inside a node can be predicted.
PEERS = ("nvswitch", "nvlink_mesh", "infinity_fabric", "nvlink_pairs", "pcie_p2p", "host", "memory", "unknown")
NVLINK_PEERS = PEERS[:4]
RATES = ("nvlink", "pcie", "nic", "memory")
_GIVEN = "given for this run"  # a value in NodeLinks.sources


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """The links of one node. Rates are in bytes per second and direction. A value of None is unknown.

    `to_dict` and `from_dict` convert the links to and from JSON. Only the fields up to `gpus_per_pcie_switch` affect
    computed times.

    `nvlink_bytes_per_s`, `pair_bytes_per_s`, `pcie_bytes_per_s`, `nic_bytes_per_s`: the rate of one GPU, one pair or
        one NIC.
    `gpus`: number of ranks for which the node has ports.
    `peer`: one of PEERS. If the value is "memory", ranks are processes that copy through the node's memory.
    `memory_bytes_per_s`: the rate of one rank that copies through the node's memory.
    `peer_s`, `host_s`, `network_s`: seconds until the first byte of a message arrives.
    `nvls`: whether the node's switch can reduce.
    `network_reduces`: whether the network's switches may reduce.
    `nvlink_nodes`: number of nodes in one NVSwitch network.
    `nodes_per_leaf`: number of nodes on one leaf switch. None means all nodes.
    `oversubscription`: total NIC rate of these nodes / total rate of the leaf switch's uplinks.
    `gpus_per_pcie_switch`: number of GPUs that share one link to other GPUs and the host. If the value is None, each
        GPU has its own link.
    `nic_kind`, `nvlink_generation`: the names of the links.
    `like`: the catalogue's type on which a site's own type is based.
    `sources`: the source of the rate of each link (nvlink, pcie, nic, network, memory, latency).
    `verified`: for each link, whether a person has checked the rate in the source.
    `given`: the links with rates that the user gave for the run.
    """

    instance: str
    gpus: int
    peer: str
    nvlink_bytes_per_s: float | None = None
    pair_bytes_per_s: float | None = None
    pcie_bytes_per_s: float | None = None
    nic_bytes_per_s: float | None = None
    num_nics: int | None = None
    memory_bytes_per_s: float | None = None
    peer_s: float | None = None
    host_s: float | None = None
    network_s: float | None = None
    nvls: bool = False
    network_reduces: bool = False
    nvlink_nodes: int = 1
    nodes_per_leaf: int | None = None
    oversubscription: float = 1.0
    gpus_per_pcie_switch: int | None = None
    nic_kind: str = ""
    nvlink_generation: int | None = None
    like: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    verified: Mapping[str, bool] = field(default_factory=dict)
    given: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that `peer` is valid.

        Check that the oversubscription and the numbers of devices on a shared link are at least 1.

        Raises UsageError.
        """
        if self.peer not in PEERS:
            hint = nearest(self.peer, PEERS)
            raise UsageError(f"{self.instance}: no kind of peer link is called {self.peer!r}{hint}")
        shares = (self.nodes_per_leaf, self.gpus_per_pcie_switch, self.oversubscription)
        if any(share is not None and not share >= 1 for share in shares):
            raise UsageError(
                f"{self.instance}: nodes_per_leaf, gpus_per_pcie_switch, oversubscription must be 1 or more"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the plain values for a results file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> NodeLinks:
        """Return the links that `to_dict` wrote. Keys of a later version are ignored."""
        known = {each.name for each in fields(cls)}
        values = {key: value for key, value in plain.items() if key in known}
        if "given" in values:
            values["given"] = tuple(values["given"])
        else:  # files of older versions
            values["given"] = tuple(link for link, source in plain.get("sources", {}).items() if source == _GIVEN)
        return cls(**values)

    def with_rates(self, overrides: Mapping[str, float]) -> NodeLinks:
        """Return a copy of the node in which the given rates of nvlink, pcie, nic or memory replace the node's rates.

        Rates are in bytes per second.

        Raises UsageError for other names.
        """
        for name in overrides:
            if name not in RATES:
                raise UsageError(f"no link is called {name!r}{nearest(name, RATES)}")
        rates: dict[str, Any] = {f"{name}_bytes_per_s": rate for name, rate in overrides.items()}
        given = {*overrides, *(("network",) if "nic" in overrides else ())}
        return replace(
            self,
            num_nics=self.num_nics or (1 if "nic" in overrides else None),
            pair_bytes_per_s=None if "nvlink" in overrides else self.pair_bytes_per_s,
            sources={**self.sources, **dict.fromkeys(given, _GIVEN)},
            verified={**self.verified, **dict.fromkeys(given, True)},
            given=tuple(dict.fromkeys((*self.given, *given))),
            **rates,
        )

    @property
    def reduces(self) -> bool:
        """Whether the node's switch can reduce the data of its GPUs."""
        return self.nvls and self.peer in NVLINK_PEERS

    @property
    def mesh(self) -> bool:
        """Whether every pair of GPUs has a link, without a switch."""
        return self.peer in ("nvlink_mesh", "infinity_fabric")

    def nics_of_a_rank(self, ranks_per_node: int) -> float:
        """Return the number of NICs that one rank's traffic can use.

        The result is 1 if several ranks share a NIC. If ranks do not share NICs, the result is the node's number of
        NICs divided by its number of ranks.
        """
        return max(1.0, (self.num_nics or 1) / ranks_per_node)


class Limit(Code):
    """The part of the machine that limits the bus bandwidth, such as a GPU's PCIe port.

    Each limit has two texts: the value of `Bound.code`, and a name for people.
    """

    MEMORY_COPY = "memory-copy", "memory copy"
    GPU_MEMORY = "gpu-memory", "GPU memory"
    NVLINK_PORT = "nvlink-port", "NVLink port"
    NVLINK_PORT_REDUCING = "nvlink-port-in-network", "NVLink port, in-network reduction"
    NVLINK_PORT_NOT_REDUCING = "nvlink-port-not-in-network", "NVLink port, without in-network reduction"
    NVLINK_AND_PCIE = "nvlink-and-pcie", "NVLink and PCIe ports"
    NVLINK_AND_PCIE_REDUCING = "nvlink-and-pcie-in-network", "NVLink and PCIe ports, in-network reduction"
    NVLINK_AND_PCIE_NOT_REDUCING = (
        "nvlink-and-pcie-not-in-network",
        "NVLink and PCIe ports, without in-network reduction",
    )
    INFINITY_FABRIC_PORT = "infinity-fabric-port", "Infinity Fabric port"
    C2C = "nvlink-c2c", "NVLink-C2C"
    PCIE_PORT = "pcie-port", "PCIe port"
    PCIE_PACKETS = "pcie-packets", "PCIe packets"
    NETWORK = "network", "network"
    NETWORK_REDUCING = "network-in-network", "network, in-network reduction"
    DOMAINS = "network-of-domains", "network of domains"
    DOMAINS_REDUCING = "network-of-domains-in-network", "network of domains, in-network reduction"
    OWN_NICS = "own-nics", "own NICs"
    NIC_IN_USE = "nic-in-use", "NIC as used"
    PCIE_IN_USE = "pcie-in-use", "PCIe link as used"
    PCIE_SWITCH_IN_USE = "pcie-switch-in-use", "PCIe switch as used"
    NVLINK_IN_USE = "nvlink-in-use", "NVLink as used"
    UPLINK_IN_USE = "uplink-in-use", "leaf switch's uplinks as used"


class FloorKind(StrEnum):
    """How a latency floor was determined: from the latencies of the links, or from the measured time of a message.

    A floor that was computed from a measured message is not a hard limit, because an operation that needs no message
    may be faster.
    """

    LINKS = "links"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Floor:
    """The shortest possible time of an isolated operation. `name`: a text that says how the time was derived."""

    seconds: float
    name: str
    kind: FloorKind


@dataclass(frozen=True, slots=True)
class Bound:
    """The highest busbw that traffic can reach, in bytes per second.

    `kind`: how strict the bound is. A `hard` bound is a physical limit, so a higher figure is an error. A `traffic`
        bound is the rate that the links allow with the library's algorithm. The bound assumes that the other groups of
        the round run at the same time. A figure may exceed a `traffic` bound if the library uses a better algorithm, or
        if the groups run at different times. A `reference` bound was measured, and figures may exceed this measured
        value.
    `name`, `why`: texts for people.
    `code`: a Limit.
    `verified`: whether a person has checked all figures of the bound in a source.
    """

    bytes_per_s: float
    name: str
    kind: str
    why: str
    source: str
    verified: bool = True
    code: str = UNCODED
