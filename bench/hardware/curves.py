"""Published collectives at more sizes than reference.yaml keeps: look-ups in curves.yaml beside this file."""

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
    """One published collective: what was told, the links it ran on, and whose machine (`system`).

    `system` is the instance type where it is told, else GPU and source: two sources about one instance type are one.
    """

    system: str
    told: Reference
    links: NodeLinks
    ranks_per_node: int
    verified: bool


@cache
def published() -> tuple[Published, ...]:
    """Every published collective whose links are known; one that is known to have been held back is left out, save
    where what held it back is itself a machine to know: NVLS off, fewer NICs."""
    file = yaml_file("curves")
    entries = list(zip(yaml_file("reference")["collectives"], reference.collectives(), strict=True))
    found = []
    for entry, told in entries:
        known = told.num_ranks == told.num_nodes or _told(entry).get("peer", "") is not None
        if known and (told.limited is None or told.limited.startswith(tuple(_KNOWN_LIMITS))):
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


_KNOWN_LIMITS: dict[str, dict[str, Any]] = {
    "NVLS off": {"nvls": False},
    "one NIC": {},
}


def _published(entry: Mapping[str, Any], told: Reference, verified: bool = True) -> Published:
    links = _links(entry, told)
    for words, changes in _KNOWN_LIMITS.items():
        if told.limited is not None and told.limited.startswith(words):
            links = replace(links, **changes)
    system = told.instance or f"{told.gpu} ({entry['source']})"
    return Published(system, told, links, told.num_ranks // told.num_nodes, verified)


def _links(entry: Mapping[str, Any], told: Reference) -> NodeLinks:
    """The links of one node: the instance type's, else the GPU's own ports and the NICs that the source tells of."""
    own = _told(entry)
    per_node = told.num_ranks // told.num_nodes
    if told.instance is not None:
        links = catalogue.instance(told.instance).links
        rate = entry.get("nic_gbyte_per_s")
        return replace(links, nic_bytes_per_s=rate * 1e9, num_nics=1) if rate else links
    latency = yaml_file("links")["latency"]
    links = catalogue.gpu_links(told.gpu, per_node)
    return replace(
        links,
        peer=own.get("peer") or links.peer,
        nic_bytes_per_s=told.network_bytes_per_s,
        num_nics=1 if told.network_bytes_per_s else None,
        nic_kind=own.get("nic_kind", ""),
        **{f"{name}_s": latency[name]["us"] * 1e-6 for name in ("peer", "host", "network")},
    )


def _told(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a source's own words tell of its links: of one GPU there, else of all."""
    systems = yaml_file("curves")["systems"]
    found: Mapping[str, Any] = systems.get(f"{entry['source']} {entry['gpu']}", systems.get(entry["source"], {}))
    return found


def _curve(file: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[int, float] | None:
    """The row of curves.yaml that belongs to one of reference.yaml, if there is one."""
    same = ("source", "gpu", "nodes", "ranks", "pattern")
    for row in file["curves"]:
        if all(row[key] == entry[key] for key in same) and row["top"] == max(entry["busbw"].values()):
            return {size: rate * 1e9 for size, rate in row["busbw"].items()}
    return None
