"""Look up hardware and prices of machines in links.yaml, gpus.yaml and instances.yaml.

Each figure has a source. `verified`: whether a person has checked that the source states the figure. Rates are in bytes
per second and direction, sizes in bytes, prices in US dollars per hour.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from bench.core.errors import UsageError
from bench.core.links import NVLINK_PEERS, NodeLinks
from bench.core.plugins import closest, nearest

_FOLDER = Path(__file__).parent
_VENDOR = re.compile(r"^(NVIDIA |Tesla |GeForce |Quadro )+")
_MAKERS = re.compile(r"\b(?:(?P<amd>AMD|Radeon|Instinct)|(?P<nvidia>NVIDIA|Tesla|GeForce|Quadro))\b")


@dataclass(frozen=True, slots=True)
class Price:
    """The on-demand price of an instance in US dollars per hour, its source, and its date (ISO; None if undated)."""

    usd_per_hour: float
    region: str
    date: str | None
    source: str
    verified: bool


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU model.

    `pcie`: the highest generation and the largest number of lanes.
    `flops`: dense operations per second by data type.
    `drivers`: other names that drivers print for this model.
    `most_bridged`: the largest number of cards that an NVLink bridge can join.
    `c2c`: whether the link to the host is NVLink-C2C instead of PCIe.
    """

    name: str
    architecture: str
    memory_bytes: float | None
    memory_bytes_per_s: float | None
    pcie: tuple[int, int] | None
    nvlink_generation: int | None
    flops: Mapping[str, float]
    measured_bf16_flops: float | None
    source: str
    verified: bool
    drivers: tuple[str, ...] = ()
    most_bridged: int = 2
    c2c: bool = False


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance type.

    `prices`: the prices in order of date, the oldest first.
    `notes`: maps the name of a fact to a remark about the fact.
    """

    name: str
    provider: str
    gpu: str
    gpus: int
    vcpus: int | None
    memory_bytes: float | None
    pcie: tuple[int, int] | None
    nic_kind: str
    links: NodeLinks
    prices: tuple[Price, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    def price(self, region: str | None = None) -> Price | None:
        """Return the latest price of the instance type in a region, or None if no price is known.

        If `region` is None, return the latest price in any region.
        """
        known = [each for each in self.prices if region in (None, each.region)]
        return known[-1] if known else None


@cache
def instances() -> tuple[str, ...]:
    """Return the names of all instance types, in the order of the file."""
    return tuple(yaml_file("instances")["instances"])


@cache
def instance(name: str) -> Instance:
    """Return the instance type that `name` names or abbreviates.

    Raises UsageError if the name does not identify a type (see `full_name`).
    """
    found = full_name(name, instances())
    return _instance(found, yaml_file("instances")["instances"][found])


def full_name(name: str, known: Sequence[str]) -> str:
    """Return the full name of an instance type, from its name or an abbreviation such as `p4d` or `nd96isr_h100`.

    An abbreviation consists of whole parts of the full name. Parts end at `.`, `-` or `_`, and case does not matter. If
    an abbreviation fits only sizes of one family, such as `p5.4xlarge` and `p5.48xlarge`, it means the largest size. In
    all other cases, an abbreviation must fit only one type. Raises UsageError with the names that fit, or with the
    nearest name.
    """
    if name in known:
        return name
    parts = re.compile(rf"(?<![a-z0-9]){re.escape(name.casefold())}(?![a-z0-9])")
    fitting = [each for each in known if parts.search(each.casefold())] if name else []
    sizes = [re.fullmatch(r"(\w+)\.(\d+)xlarge", each) for each in fitting]
    if all(sizes) and len({size[1] for size in sizes if size}) == 1:
        return max(fitting, key=lambda each: int(each.partition(".")[2].removesuffix("xlarge")))
    if len(fitting) > 1:
        raise UsageError(f"several instance types fit {name!r}: {', '.join(fitting)}; choose one")
    if not fitting:
        close = closest(name, (*known, *dict.fromkeys(each.partition(".")[0] for each in known)))
        hint = f"did you mean {close!r}?" if close else "`linkbench instances` lists all types"
        raise UsageError(f"no instance type is called {name!r}; {hint}")
    return fitting[0]


def node_links(name: str, ranks_per_node: int | None = None) -> NodeLinks:
    """Return the links of a node of an instance type.

    `ranks_per_node`: if each rank uses its own GPU, the number of ranks on a node; otherwise None.

    Raises UsageError for an unknown name, or if the type has fewer GPUs than `ranks_per_node`.
    """
    found = instance(name)
    if ranks_per_node is not None and ranks_per_node > found.gpus:
        most = found.gpus
        raise UsageError(f"{name} has {most} GPUs, not {ranks_per_node}: give {most} ranks per node or less")
    return found.links


def node_network(name: str) -> float | None:
    """Return the total rate of all NICs of a node, in bytes per second and direction; None if unknown."""
    links = instance(name).links
    if links.nic_bytes_per_s is None or links.num_nics is None:
        return None
    return links.nic_bytes_per_s * links.num_nics


def bounding_links(
    name: str, rates: Mapping[str, float], ranks_per_node: int | None, one_per_gpu: bool
) -> dict[str, Any]:
    """Return the links to use for the bounds of a run, as the header of its results file contains them.

    The links are those of the instance type `name`, but with the rates in `rates`. Without a name and without rates,
    the result is {}, which means unknown. Raises UsageError for the same reasons as `node_links`.

    `one_per_gpu`: whether each rank uses its own GPU.
    """
    if not name and not rates:
        return {}
    if name:
        links = node_links(name, ranks_per_node if one_per_gpu else None)
    else:
        links = NodeLinks("", ranks_per_node or 1, "memory")
    return links.with_rates(dict(rates)).to_dict()


def gpus() -> tuple[str, ...]:
    """Return the names of all GPU models."""
    return tuple(yaml_file("gpus")["gpus"])


@cache
def gpu(name: str) -> GpuModel:
    """Return a GPU model. For an unknown name, raises UsageError with the nearest known name."""
    file = yaml_file("gpus")
    if name not in file["gpus"]:
        raise UsageError(f"no GPU is called {name!r}{nearest(name, gpus())}")
    entry = file["gpus"][name]
    return GpuModel(
        name=name,
        architecture=entry["architecture"],
        memory_bytes=_scaled(entry["memory_gb"], 1e9),
        memory_bytes_per_s=_scaled(entry["memory_gbyte_per_s"], 1e9),
        pcie=tuple(entry["pcie"]) if entry["pcie"] else None,
        nvlink_generation=entry["nvlink"],
        flops={kind: rate * 1e12 for kind, rate in entry["tflops"].items()},
        measured_bf16_flops=_scaled(entry.get("measured_bf16", {}).get("tflops"), 1e12),
        source=source_of(file, entry),
        verified=_verified(entry),
        drivers=tuple(entry.get("drivers", ())),
        most_bridged=entry.get("peers", {}).get("most_bridged", 2),
        c2c="c2c_gbyte_per_s" in entry,
    )


def gpu_printed(name: str) -> str | None:
    """Return the model of a GPU from the name that a driver prints, such as "NVIDIA H100 80GB HBM3".

    Return None if the model is unknown.
    """
    bare = _VENDOR.sub("", name.strip())
    for known, entry in yaml_file("gpus")["gpus"].items():
        if bare == known or bare in entry.get("drivers", ()):
            return str(known)
    return None


def maker_printed(name: str) -> str | None:
    """Return the maker of a GPU ("amd" or "nvidia") from the name that a driver prints, even if the model is unknown.

    Return None if the name does not show the maker.
    """
    found = _MAKERS.search(name)
    return found.lastgroup if found else None


def maker(model: str) -> str:
    """Return the maker of a known GPU model: "amd", "nvidia" or "aws"."""
    architecture = gpu(model).architecture
    if architecture.startswith("cdna"):
        return "amd"
    return "aws" if model.startswith(("Trainium", "Inferentia")) else "nvidia"


def gpu_links(name: str, num_gpus: int) -> NodeLinks:
    """Return the links of a node that has `num_gpus` GPUs of one model.

    Ports have the highest rate that the GPU model supports. The NICs are unknown. The network is assumed to support
    in-network reduction, because this assumption can only raise a bound. Raises UsageError for an unknown model.
    """
    found = gpu(name)
    file = yaml_file("gpus")
    entry = file["gpus"][name]
    peers, c2c = entry.get("peers"), entry.get("c2c_gbyte_per_s")
    switch = peers is not None and peers["kind"] == "nvswitch"
    pcie = pcie_bytes_per_s(*found.pcie) if found.pcie else _scaled(c2c, 1e9)
    found_sources = _link_sources(entry, found)
    return NodeLinks(
        instance="",
        gpus=num_gpus,
        peer=peers["kind"] if peers else "host",
        nvlink_bytes_per_s=_scaled(peers["gbyte_per_s"], 1e9) if peers else None,
        pair_bytes_per_s=_scaled(peers.get("pair_gbyte_per_s"), 1e9) if peers else None,
        pcie_bytes_per_s=pcie,
        nvls=switch and yaml_file("links")["nvlink"][found.nvlink_generation]["switch_reduces"],
        network_reduces=True,
        nvlink_nodes=max(1, (peers or {}).get("domain_gpus", num_gpus) // num_gpus),
        nvlink_generation=found.nvlink_generation,
        sources={link: f"the GPU's own, {source}" for link, (source, _) in found_sources.items()},
        verified={link: verified for link, (_, verified) in found_sources.items()},
    )


def nvlink_bytes_per_s(generation: int) -> float:
    """Return the rate of an NVLink of the given generation, in bytes per second and direction."""
    return float(yaml_file("links")["nvlink"][generation]["gbyte_per_s"]) * 1e9


def _link_sources(entry: Mapping[str, Any], found: GpuModel) -> dict[str, tuple[str, bool]]:
    """Map each link of a GPU to the source of its rate, and to a flag: whether a person has checked the rate there.

    The rates of PCIe and NVLink generations are in links.yaml.
    """
    links, sources = yaml_file("links"), {}
    if entry.get("peers", {}).get("gbyte_per_s") is not None:
        whole = entry["peers"]["kind"] in ("nvswitch", "nvlink_mesh") and found.nvlink_generation is not None
        block = links["nvlink"][found.nvlink_generation] if whole else None
        sources["nvlink"] = (source_of(links, block), _verified(block)) if block else (found.source, found.verified)
    if found.pcie is not None:
        block = links["pcie"][found.pcie[0]]
        sources["pcie"] = (f"PCIe {found.pcie[0]} x{found.pcie[1]} at most: {source_of(links, block)}", found.verified)
    elif entry.get("c2c_gbyte_per_s") is not None:
        sources["pcie"] = (found.source, found.verified)
    return sources


def pcie_bytes_per_s(generation: int, lanes: int) -> float:
    """Return a PCIe link's bytes per second and direction after line coding: GT/s x lanes x coding / 8.

    Raises UsageError for a generation that is not in links.yaml.
    """
    generations = yaml_file("links")["pcie"]
    if generation not in generations:
        known = ", ".join(map(str, generations))
        raise UsageError(f"PCIe generation {generation} is not in links.yaml; there are: {known}")
    entry = generations[generation]
    data, sent = entry["coding"]
    return float(entry["gt_per_s"] * 1e9 * lanes * data / sent / 8)


def pcie_as_linked(reported: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the generation and the lanes of a GPU's PCIe link, or None if the driver's report is incomplete.

    `reported`: pcie_generation and pcie_lanes, which are the current values, and pcie_max_generation.

    The returned generation is the maximum, because an idle link drops to generation 1. An idle link keeps its lanes.
    """
    generation = reported.get("pcie_max_generation") or reported.get("pcie_generation")
    lanes = reported.get("pcie_lanes")
    return (int(generation), int(lanes)) if generation and lanes else None


def pcie_packet_share() -> tuple[float, str]:
    """Return the share of a PCIe link's rate that remains for data after packet headers, and its derivation as text."""
    file = yaml_file("links")
    packet = file["pcie_packet"]
    payload, overhead = packet["payload_bytes"], packet["overhead_bytes"]
    why = f"packets of {payload} bytes carry {overhead} bytes more: {payload}/{payload + overhead}"
    return payload / (payload + overhead), f"{why} ({source_of(file, packet)})"


def _instance(name: str, entry: Mapping[str, Any]) -> Instance:
    blocks = {key: entry[key] for key in ("host", "peers", "pcie", "network", "nics") if key in entry}
    host, pcie = blocks.get("host", {}), blocks.get("pcie", {})
    file = yaml_file("instances")
    return Instance(
        name=name,
        provider=entry["provider"],
        gpu=entry["gpu"],
        gpus=entry["gpus"],
        vcpus=host.get("vcpus"),
        memory_bytes=_scaled(host.get("memory_gib"), 2**30),
        pcie=(pcie["generation"], pcie["lanes"]) if "generation" in pcie else None,
        nic_kind=blocks["nics"]["kind"],
        links=_links(name, entry["gpus"], blocks),
        prices=tuple(
            Price(each["usd_per_hour"], each["region"], each["date"], source_of(file, each), _verified(each))
            for each in entry["prices"]
        ),
        notes={key: block["note"] for key, block in blocks.items() if "note" in block},
    )


def _links(name: str, num_gpus: int, blocks: Mapping[str, Mapping[str, Any]]) -> NodeLinks:
    file, links = yaml_file("instances"), yaml_file("links")
    peers, nics = blocks["peers"], blocks["nics"]
    latency = links["latency"]
    of_link = {"peers": "nvlink" if peers["kind"] in NVLINK_PEERS else "peers", "nics": "nic"}
    described = {of_link.get(key, key): block for key, block in blocks.items() if key != "host"}
    return NodeLinks(
        instance=name,
        gpus=num_gpus,
        peer=peers["kind"],
        nvlink_bytes_per_s=_scaled(peers.get("gbyte_per_s"), 1e9),
        pair_bytes_per_s=_scaled(peers.get("pair_gbyte_per_s"), 1e9),
        pcie_bytes_per_s=_pcie_rate(blocks.get("pcie")),
        nic_bytes_per_s=_scaled(blocks["network"]["gbit_per_s"], 1e9 / 8 / nics["count"]),
        num_nics=nics["count"],
        peer_s=latency["peer"]["us"] * 1e-6,
        host_s=latency["host"]["us"] * 1e-6,
        network_s=latency["network"]["us"] * 1e-6,
        nvls=peers["kind"] == "nvswitch" and links["nvlink"][peers["nvlink"]]["switch_reduces"],
        network_reduces=links["nics"][nics["kind"]]["switch_reduces"],
        nvlink_nodes=max(1, peers.get("domain_gpus", num_gpus) // num_gpus),
        nic_kind=nics["kind"],
        nvlink_generation=peers.get("nvlink"),
        sources={key: source_of(file, block) for key, block in described.items()}
        | {"latency": source_of(links, latency["network"])},
        verified={key: _verified(block) for key, block in described.items()}
        | {"latency": all(_verified(each) for each in latency.values())},
    )


def _pcie_rate(block: Mapping[str, Any] | None) -> float | None:
    """Return the bytes per second between the GPU and its host, or None if unknown."""
    if block is None:
        return None
    if "gbyte_per_s" in block:
        return float(block["gbyte_per_s"] * 1e9)
    return pcie_bytes_per_s(block["generation"], block["lanes"])


def source_of(file: Mapping[str, Any], block: Mapping[str, Any]) -> str:
    """Return the source of an entry in a YAML file as `<text> (<date>)`.

    If the entry has no date of its own, the date of the source is used.
    """
    source = file["sources"][block["source"]]
    date = block.get("date") or source["date"]
    return f"{source['text']} ({date})" if date else str(source["text"])


def _verified(block: Mapping[str, Any]) -> bool:
    return bool(block.get("verified", True))


def _scaled(number: float | None, factor: float) -> float | None:
    return None if number is None else number * factor


@cache
def yaml_file(name: str) -> dict[str, Any]:
    """Return the content of a YAML file in this folder. The file is read only once.

    A test checks the form of the files.
    """
    import yaml

    with (_FOLDER / f"{name}.yaml").open("rb") as stream:
        loaded: dict[str, Any] = yaml.load(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return loaded
