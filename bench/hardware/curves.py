"""Look up published collectives. The file curves.yaml has more message sizes of these results than reference.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from bench.core.links import NodeLinks
from bench.hardware import catalogue, reference
from bench.hardware.catalogue import source_of, yaml_file
from bench.hardware.reference import Reference


@dataclass(frozen=True, slots=True)
class Published:
    """A published collective and the links of its machine.

    `system`: a name for the machine. It is the instance type if known, otherwise the GPU and the source. All results of
        an instance type therefore have the same `system`, even if they come from different sources.
    `library`: the version of NCCL; () if the source does not name it.
    """

    system: str
    told: Reference
    links: NodeLinks
    ranks_per_node: int
    verified: bool
    library: tuple[int, ...] = ()


@cache
def published() -> tuple[Published, ...]:
    """Return every published collective with known links.

    Some results are below the rates of the hardware, for a known reason. If the reason is not in LIMITS, the result is
    left out.
    """
    file = yaml_file("curves")
    entries = list(zip(yaml_file("reference")["collectives"], reference.collectives(), strict=True))
    found = []
    for entry, told in entries:
        known = told.num_ranks == told.num_nodes or _source_links(entry).get("peer", "") is not None
        if known and (told.limited is None or told.limit in LIMITS):
            found.append(_published(entry, replace(told, busbw=_curve(file, entry) or told.busbw)))
    sources = yaml_file("reference")
    for entry in file["more"]:
        busbw = {size: rate * 1e9 for size, rate in entry["busbw"].items()}
        text = source_of(sources, entry)
        told = Reference(
            gpu=entry["gpu"],
            instance=None,
            num_nodes=entry["nodes"],
            num_ranks=entry["ranks"],
            pattern=entry["pattern"],
            busbw=busbw,
            small_s={},
            network_bytes_per_s=None,
            peers=None,
            note=entry["note"],
            limited=None,
            source=text,
        )
        found.append(_published(entry, told, verified=False))
    return tuple(found)


# Maps the `limit` of a reference to its effect on the machine's links. With any other limit, the links are unknown.
LIMITS: dict[str, dict[str, Any]] = {
    "nvls-off": {"nvls": False},
    "one-nic": {},
}


def _published(entry: Mapping[str, Any], told: Reference, verified: bool = True) -> Published:
    links = _links(entry, told)
    if told.limit is not None:
        links = replace(links, **LIMITS[told.limit])
    system = told.instance or f"{told.gpu} ({entry['source']})"
    version = yaml_file("reference")["sources"][entry["source"]].get("library", "")
    library = tuple(int(number) for number in version.split(".") if number)
    return Published(system, told, links, told.num_ranks // told.num_nodes, verified, library)


def _links(entry: Mapping[str, Any], told: Reference) -> NodeLinks:
    """Return the links of the node of a published result.

    The links are those of the instance type. If the type is unknown, the result has the GPU's own ports and the NICs
    that the source names.
    """
    own = _source_links(entry)
    per_node = told.num_ranks // told.num_nodes
    if told.instance is not None:
        links = catalogue.instance(told.instance).links
        rate = entry.get("nic_gbyte_per_s")
        return replace(links, nic_bytes_per_s=rate * 1e9, num_nics=1) if rate else links
    latency = yaml_file("links")["latency"]
    links = catalogue.gpu_links(told.gpu, own.get("gpus", per_node))
    wired = entry.get("pcie", own.get("pcie"))
    if wired is not None:
        links = replace(links, pcie_bytes_per_s=catalogue.pcie_bytes_per_s(*wired))
    kind, rate = own.get("nic_kind", ""), told.network_bytes_per_s
    num_nics = None if rate is None else _num_nics(kind, rate)
    return replace(
        links,
        peer=own.get("peer") or links.peer,
        nic_bytes_per_s=None if rate is None or num_nics is None else rate / num_nics,
        num_nics=num_nics,
        nic_kind=kind,
        **{f"{name}_s": latency[name]["us"] * 1e-6 for name in ("peer", "host", "network")},
    )


def _num_nics(kind: str, node_bytes_per_s: float) -> int:
    """Return how many NICs a node has, from the type of its NICs and from their total rate.

    The result is 1 if the rate of one NIC of this type is unknown.
    """
    port = yaml_file("links")["nics"].get(kind, {}).get("gbit_per_s")
    return max(1, round(node_bytes_per_s / (port * 1e9 / 8))) if port else 1


def _source_links(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the links of the machine of a published result, as the result's source states them.

    Some sources state different links for each GPU model.
    """
    systems = yaml_file("curves")["systems"]
    found: Mapping[str, Any] = systems.get(f"{entry['source']} {entry['gpu']}", systems.get(entry["source"], {}))
    return found


def _curve(file: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[int, float] | None:
    """Return the busbw of a published result at all sizes in curves.yaml, or None if curves.yaml lacks the result.

    `entry`: the result's entry in reference.yaml.
    """
    same = ("source", "gpu", "nodes", "ranks", "pattern")
    for row in file["curves"]:
        if all(row[key] == entry[key] for key in same) and row["top"] == max(entry["busbw"].values()):
            return {size: rate * 1e9 for size, rate in row["busbw"].items()}
    return None
