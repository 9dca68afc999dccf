"""Derive the actual links of a machine from the reports of driver and kernel.

An idle PCIe link keeps its lanes but drops to a lower generation. Bounds therefore use the current number of lanes. If
the link was read under load, bounds use the current generation. If the link was read while idle, bounds use the highest
generation that the GPU and the slot both support. `sources` states which generation was used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.core.codes import Coded
from bench.core.inventory import Adapter, Gpu, Inventory, NvLink, Path, from_facts
from bench.core.links import NVLINK_PEERS, PEERS, RATES, NodeLinks
from bench.hardware.catalogue import gpu, gpu_links, gpu_printed, instance, pcie_bytes_per_s, yaml_file
from bench.hardware.messages import HealthCode

_RDMA = ("infiniband", "roce", "efa")
_BY_BOTH_ENDS = "the current lanes, the highest generation of both ends"
UNKNOWN = "unknown"  # the kind of link between GPUs if nothing reports it
Pick = Callable[..., Any]  # min or max
_LESS = 0.999  # a rate below this share of another is significantly lower


def links_of(node: Mapping[str, Any], pick: Pick = min) -> NodeLinks | None:
    """Return the links of a node from its facts (`probes.machine.facts`), or None if the node has no GPU.

    The result has the rates of the slowest GPU, because all other GPUs wait for this GPU. If `pick` is max, the result
    has the rates of the fastest GPU, so that bounds are valid for every subset of the GPUs.
    """
    found = from_facts(node)
    if not found.gpus:
        return None
    models = {gpu_printed(each.name) for each in found.gpus}
    named = gpu_links(model, len(found.gpus)) if len(models) == 1 and (model := models.pop()) else None
    peer = peer_kind(found)
    ports = [nvlink_rate(each) for each in found.gpus]
    nvlink = None if None in ports else pick(rate for rate in ports if rate is not None)
    assumed = peer == UNKNOWN
    if assumed:  # assume the fastest possible links, so that no bound is too low
        peer = named.peer if named else "nvswitch"
        nvlink = named.nvlink_bytes_per_s if named else None
    pcie = [rate for each in found.gpus if (rate := pcie_rate(each)) is not None]
    nics = active_adapters(found)
    nic_rates = [each.bytes_per_s for each in nics]
    known = [rate for rate in nic_rates if rate is not None]
    all_known = bool(known) and len(known) == len(nics)
    generation = _generation(found.gpus) or (named.nvlink_generation if named and peer in NVLINK_PEERS else None)
    switch = yaml_file("links")["nvlink"].get(generation, {}) if peer == "nvswitch" else {}
    latency = yaml_file("links")["latency"]
    by_c2c = named is not None and _has_c2c(found.gpus[0])
    ports_source = f"{_asked(found, 'sysfs')}: the rates of its active adapters"
    source_of = {
        "nvlink": (_of_model(named) if assumed and named else active_source(found))
        if nvlink and peer in NVLINK_PEERS
        else None,
        "pcie": None if not pcie else named.sources["pcie"] if named and by_c2c else pcie_source(found.gpus, found),
        "network": ports_source if all_known else None,
        "nic": ports_source if all_known else None,
    }
    sources = {link: text for link, text in source_of.items() if text}
    return NodeLinks(
        instance="",
        gpus=len(found.gpus),
        peer=peer,
        nvlink_bytes_per_s=nvlink if peer in NVLINK_PEERS else None,
        pair_bytes_per_s=None if peer != "nvlink_mesh" or assumed else _pair_rate(found),
        pcie_bytes_per_s=pick(pcie) if pcie else None,
        # If the NICs differ, the fastest counts, because a bound must not be too low.
        nic_bytes_per_s=max(known) if all_known else None,
        num_nics=len(nics) if all_known else None,
        peer_s=latency["peer"]["us"] * 1e-6,
        host_s=latency["host"]["us"] * 1e-6,
        network_s=latency["network"]["us"] * 1e-6,
        nvls=bool(switch.get("switch_reduces", peer == "nvswitch")),
        network_reduces=not nics or any(each.kind == "infiniband" for each in nics),
        nvlink_nodes=named.nvlink_nodes if named and peer == "nvswitch" else 1,
        gpus_per_pcie_switch=_gpus_per_switch(found),
        nic_kind=nics[0].kind if nics else "",
        nvlink_generation=generation if peer in NVLINK_PEERS else None,
        sources=sources,
        verified=dict.fromkeys(sources, True) | ({"pcie": named.verified["pcie"]} if pcie and named and by_c2c else {}),
    )


def links_of_all(nodes: Iterable[Mapping[str, Any]], pick: Pick = min) -> NodeLinks | None:
    """Combine the links of all nodes of a run into one description, or return None if a node has no facts about GPUs.

    For each type of link, the result has the lowest rate of any node. If `pick` is max, the result has the highest rate
    of any node.
    """
    found = [links_of(node, pick) for node in nodes]
    known = [links for links in found if links is not None]
    if not known or len(known) < len(found):
        return None
    first = (max if pick is min else min)(known, key=lambda links: PEERS.index(links.peer))
    slowest: dict[str, Any] = {
        name: pick(rates) if (rates := [r for links in known if (r := getattr(links, name)) is not None]) else None
        for name in ("nvlink_bytes_per_s", "pair_bytes_per_s", "pcie_bytes_per_s")
        if first.peer in NVLINK_PEERS or name == "pcie_bytes_per_s"
    }
    network = [links for links in known if links.nic_bytes_per_s is not None and links.num_nics]
    least = pick(network, key=lambda links: (links.nic_bytes_per_s or 0.0) * (links.num_nics or 0), default=first)
    return replace(
        first,
        gpus=min(links.gpus for links in known),
        nic_bytes_per_s=least.nic_bytes_per_s,
        num_nics=least.num_nics,
        nvls=any(links.nvls for links in known),
        network_reduces=any(links.network_reduces for links in known),
        nvlink_nodes=max(links.nvlink_nodes for links in known),
        sources={**least.sources, **first.sources},
        verified={**least.verified, **first.verified},
        **slowest,
    )


def is_less(rate: float | None, than: float | None) -> bool:
    """Check whether `rate` is significantly lower than the rate `than`. The result is False if a rate is unknown."""
    return bool(rate and than and rate < _LESS * than)


def as_linked(named: NodeLinks, live: NodeLinks | None) -> tuple[NodeLinks, tuple[Coded, ...]]:
    """Return the links of an instance type, with lower rates where the links of this machine are slower.

    `named`: the links of the instance type.
    `live`: the actual links of this machine.

    The function also returns a message for each lowered rate. Rates that the user stated for a run are never lowered.
    """
    slower = []
    for link, name in (("nvlink", "NVLink"), ("pcie", "PCIe")):
        field = f"{link}_bytes_per_s"
        promised, real = getattr(named, field), getattr(live, field) if live else None
        if not is_less(real, promised) or link in named.given:
            continue
        assert live is not None and real is not None and promised is not None
        source = f"as linked: {live.sources[link]}"
        named = replace(
            named,
            **{field: real},
            sources={**named.sources, link: source},
            verified={**named.verified, link: live.verified[link]},
        )
        facts = {"link": name, "linked": real, "promised": promised, "instance": named.instance}
        slower.append(Coded.of(HealthCode.BELOW_INSTANCE, **facts))
    return named, tuple(slower)


def other_models(found: Inventory, name: str) -> tuple[str, ...]:
    """Return the GPU models of a node that differ from the model of the instance type."""
    known = {model for each in found.gpus if (model := gpu_printed(each.name)) is not None}
    return tuple(sorted(known - {instance(name).gpu}))


def bounding(
    declared: Mapping[str, Any], nodes: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Any], tuple[Coded, ...]]:
    """Return the links to use for the bounds of a run on GPUs, and messages about links that are slower than declared.

    The links have the form of the field `links` of a header.

    `declared`: the links that `catalogue.bounding_links` returned for the run, or {}.
    `nodes`: the facts of each node.
    """
    real = links_of_all(nodes)
    if real is None:
        return dict(declared), ()
    if not declared:
        return real.to_dict(), ()
    named = NodeLinks.from_dict(declared)
    if named.instance:
        links, slower = as_linked(named, real)
        return links.to_dict(), slower
    given = {link: rate for link in RATES if (rate := getattr(named, f"{link}_bytes_per_s")) is not None}
    return real.with_rates(given).to_dict(), ()


def pcie_rate(each: Gpu) -> float | None:
    """Return the bytes per second and direction between a GPU and its host by PCIe or NVLink-C2C, after line coding."""
    if _has_c2c(each):
        return gpu_links(str(gpu_printed(each.name)), 1).pcie_bytes_per_s
    link = pcie_link(each)
    return None if link is None or link[0] not in yaml_file("links")["pcie"] else pcie_bytes_per_s(*link)


def pcie_link(each: Gpu) -> tuple[int, int] | None:
    """Return the generation and the number of lanes of a PCIe link.

    If the link was read under load, both returned values are the current values. If the link was read while idle, the
    generation is the highest that the GPU and the slot both support. The number of lanes is still the current number,
    because idle links keep their lanes. If the current number of lanes is unknown, the highest number that GPU and slot
    both support is used.
    """
    if seen_at_work(each) and each.pcie_generation and each.pcie_lanes:
        return each.pcie_generation, each.pcie_lanes
    generation, lanes = both_ends(each)
    lanes = each.pcie_lanes or lanes
    return (generation, lanes) if generation and lanes else None


def seen_at_work(each: Gpu) -> bool:
    """Check whether the PCIe link of a GPU was read under load.

    The result is False for a link at generation 1, because an idle link falls back to generation 1.
    """
    return each.under_load and (each.pcie_generation or 0) > 1


def both_ends(each: Gpu) -> tuple[int | None, int | None]:
    """Return the highest generation and the highest number of lanes that the GPU and the slot both support.

    If only the GPU or only the slot reports a maximum, that maximum is returned. None means unknown.
    """
    generations = [n for n in (each.pcie_max_generation, each.slot_generation) if n]
    lanes = [n for n in (each.pcie_max_lanes, each.slot_lanes) if n]
    return min(generations, default=None), min(lanes, default=None)


def pcie_source(gpus: Sequence[Gpu], of: Inventory) -> str:
    """Return the source of the PCIe rates of these GPUs, with generations and lanes.

    `of`: the node of the GPUs.
    """
    links = sorted({link for each in gpus if (link := pcie_link(each)) is not None})
    named = " and ".join(f"PCIe {generation} x{lanes}" for generation, lanes in links)
    asked = _asked(of, "NVML and sysfs")
    if all(map(seen_at_work, gpus)):
        return f"{named}: {asked}, read under load"
    which = _BY_BOTH_ENDS if all(each.pcie_lanes for each in gpus) else "the maximum of both ends"
    return f"{named}: {asked}{'' if of.told_by else ', read while idle'}: {which}"


def active_source(of: Inventory) -> str:
    """Return the source of the rates of a node's NVLinks."""
    return f"{_asked(of, 'NVML')}: active links x the rate of one"


def _asked(of: Inventory, whom: str) -> str:
    """Return the source of a node's facts as text.

    `whom`: what a probe reads on the node, such as NVML. The result contains `whom` only if a probe collected the
        facts.
    """
    if of.told_by:
        return f"{of.file} ({of.told_by})"
    return f"{of.file}, by {whom} of that machine" if of.file else f"{whom} of this machine"


def nvlink_rate(each: Gpu) -> float | None:
    """Return the bytes per second and direction of a GPU's active NVLinks to switches and GPUs.

    Return None if the GPU has no active NVLinks, or if the rate of an NVLink is unknown.
    """
    rates = [link.bytes_per_s for link in active_nvlinks(each)]
    return sum(rate for rate in rates if rate is not None) if rates and None not in rates else None


def active_nvlinks(each: Gpu) -> tuple[NvLink, ...]:
    """Return the active NVLinks of a GPU, except NVLinks to the CPU."""
    return tuple(link for link in each.nvlinks if link.active and link.peer != "cpu")


def peer_kind(found: Inventory) -> str:
    """Return the kind of link that joins the GPUs of a node: a value of PEERS in core/links.py, or UNKNOWN."""
    between = {path for path in found.paths if path.a.startswith("gpu") and path.b.startswith("gpu")}
    joined = [path for path in between if _num_links(path)]
    active = [active_nvlinks(each) for each in found.gpus]
    num = len(found.gpus)
    if num == 1:
        return "nvswitch" if active[0] and all(link.peer == "switch" for link in active[0]) else "host"
    if _all_to_switches(active, joined, num):
        return "nvswitch"
    if joined:
        peers = {
            name: {p for path in joined for p in (path.a, path.b) if name in (path.a, path.b) and p != name}
            for name in (f"gpu{each.index}" for each in found.gpus)
        }
        return "nvlink_pairs" if max(map(len, peers.values())) == 1 else "nvlink_mesh"
    known = {frozenset((path.a, path.b)) for path in between if path.kind != UNKNOWN}
    if not found.nvlinks_told or len(known) < num * (num - 1) // 2:
        return UNKNOWN
    return "pcie_p2p" if all(path.peer_access for path in between) else "host"


def path_between(found: Inventory, a: int, b: int) -> Path | None:
    """Return the path between two GPUs, in either order, or None if the path is unknown."""
    names = {f"gpu{a}", f"gpu{b}"}
    return next((path for path in found.paths if {path.a, path.b} == names), None)


def pair_nvlink_rate(found: Inventory, path: Path) -> float | None:
    """Return the bytes per second and direction of all NVLinks between two GPUs."""
    num = _num_links(path)
    rates = {
        link.bytes_per_s
        for each in found.gpus
        if f"gpu{each.index}" in (path.a, path.b)
        for link in active_nvlinks(each)
    }
    return num * max(rate for rate in rates if rate) if num and rates and None not in rates else None


def active_adapters(found: Inventory) -> tuple[Adapter, ...]:
    """Return the RDMA adapters whose link is up. Adapters whose state is unknown are included."""
    return tuple(
        each for each in found.adapters if each.kind in _RDMA and (each.state is None or "ACTIVE" in each.state.upper())
    )


def _of_model(named: NodeLinks) -> str:
    return f"{named.sources['nvlink']}; whether they are active is unknown"


def _all_to_switches(active: Sequence[Sequence[NvLink]], joined: Sequence[Path], num: int) -> bool:
    """Check whether all NVLinks lead to switches.

    If the links do not report where they lead, the function compares numbers of NVLinks. A GPU on switches reaches
    every peer by all its NVLinks. The sum of NVLinks over all peers is then larger than the number of NVLinks that the
    GPU has.
    """
    ends = {link.peer for links in active for link in links}
    if ends == {"switch"} and all(active):
        return True
    most = max(map(len, active), default=0) or max(each["most_links"] for each in yaml_file("links")["nvlink"].values())
    least = min(map(_num_links, joined), default=0)
    return len(joined) == num * (num - 1) // 2 and least * (num - 1) > most


def _pair_rate(found: Inventory) -> float | None:
    """Return the rate of the fastest pair of GPUs. The rate of the fastest pair is an upper bound for all pairs."""
    rates = (pair_nvlink_rate(found, path) for path in found.paths)
    return max((rate for rate in rates if rate is not None), default=None)


def _num_links(path: Path) -> int:
    return int(path.kind[2:]) if path.kind.startswith("NV") and path.kind[2:].isdigit() else 0


def _generation(gpus: Sequence[Gpu]) -> int | None:
    """Return the NVLink generation from a text such as `NVLink 4.0`."""
    for link in (link for each in gpus for link in active_nvlinks(each)):
        word = (link.rate_from or "").removeprefix("NVLink ").partition(".")[0]
        if word.isdigit():
            return int(word)
    return None


def _has_c2c(each: Gpu) -> bool:
    model = gpu_printed(each.name)
    return model is not None and gpu(model).c2c


def _gpus_per_switch(found: Inventory) -> int | None:
    """Return the number of GPUs per PCIe switch.

    Return None if the switches have different numbers of GPUs, or if each switch has only one GPU.
    """
    sizes = {len(group) for group in on_one_switch(found).values()}
    return sizes.pop() if len(sizes) == 1 and sizes != {1} else None


def on_one_switch(found: Inventory) -> dict[int, set[int]]:
    """Map each GPU to the set of GPUs on the same PCIe switch. The set includes the GPU itself."""
    groups: dict[str, set[int]] = {f"gpu{each.index}": {each.index} for each in found.gpus}
    for path in found.paths:
        if path.kind == "PIX" and path.a in groups and path.b in groups:
            together = groups[path.a] | groups[path.b]
            groups.update({f"gpu{index}": together for index in together})
    return {each.index: groups[f"gpu{each.index}"] for each in found.gpus}
