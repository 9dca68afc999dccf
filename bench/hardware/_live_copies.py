"""Find the two GPUs of a row and the links between these GPUs, from the facts in a header."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bench.core.case_argv import stored_value
from bench.core.inventory import Gpu, Inventory, Path, from_facts
from bench.core.links import NVLINK_PEERS, Bound, Limit, NodeLinks
from bench.core.record import Flag, Header, Record
from bench.core.units import format_rate
from bench.hardware import live
from bench.hardware.catalogue import gpu, gpu_printed, instance, instances

_SAME_SWITCH = ("PIX", "PXB")
_MOST_READ = 4096
# Maps the id of facts to the facts and the result. Keeping the facts prevents reuse of their id.
_read: dict[int, tuple[Mapping[str, Any], Any]] = {}
T = TypeVar("T")
_DEFAULT_CACHE_BYTES = 128 << 20  # no GPU of today has a larger last-level cache


@dataclass(frozen=True, slots=True)
class Between:
    """The links between two GPUs of one node.

    `why`: a text for people that says how the two GPUs are connected.
    """

    links: NodeLinks
    path: Path
    why: str

    @property
    def by_nvlink(self) -> bool:
        """Whether NVLink joins the two GPUs."""
        return self.links.peer in NVLINK_PEERS


def header_links(header: Header) -> NodeLinks | None:
    """Return the links that a header states; None if the header states no links."""
    return _once(header.links, NodeLinks.from_dict) if header.links else None


def own_links(header: Header, record: Record) -> NodeLinks | None:
    """Return the links that limit a copy between a GPU and its host.

    If the row names the GPU, return the links of this GPU.
    """
    links = header_links(header)
    if links is not None and (links.instance or "pcie" in links.given):
        return links
    rank = _only_rank(header, record)
    found = None if rank is None else gpu_of(header, rank)
    rate = None if found is None else live.pcie_rate(found[1])
    if found is None or rate is None:
        return links
    pcie = {"pcie": live.pcie_source((found[1],), _devices(header.nodes[found[0]]))}
    base = links or NodeLinks("", 1, "host")
    sources = {**base.sources, **({} if live.pcie_link(found[1]) is None else pcie)}
    return replace(base, pcie_bytes_per_s=rate, sources=sources, verified={**base.verified, "pcie": True})


def host_link_of_each(header: Header, record: Record, through_host: bool) -> float | None:
    """Return the rate, in bytes per second, at which the slowest rank can copy between its GPU and the host.

    Return None if the rate is unknown. All ranks copy at the same time. Ranks that use the same GPU share the link of
    this GPU.

    `through_host`: whether the data pass the link between PCIe switch and host. All GPUs on a switch share that link,
        which is assumed to be as fast as the link of one GPU.
    """
    if record.num_ranks == 1:
        own = own_links(header, record)
        return None if own is None else own.pcie_bytes_per_s
    found = [gpu_of(header, rank) for rank in range(header.num_ranks or 0)]
    ends = [end for end in found if end is not None]
    if not ends or len(ends) != record.num_ranks:
        return None
    links = header_links(header)
    named = links.pcie_bytes_per_s if links is not None and (links.instance or "pcie" in links.given) else None
    shares = []
    for host, each in ends:
        rate = named or live.pcie_rate(each)
        if rate is None:
            return None
        together = live.on_one_switch(_devices(header.nodes[host]))[each.index] if through_host else {each.index}
        shares.append(rate / sum(other == host and its.index in together for other, its in ends))
    return min(shares)


def between(header: Header, record: Record) -> Between | None:
    """Return the links between the two GPUs of a row.

    Return None if the links are unknown, or if the user stated the rates of the run.
    """
    ranks = _two_ranks(header, record)
    ends = [gpu_of(header, rank) for rank in ranks] if ranks else []
    if len(ends) < 2 or ends[0] is None or ends[1] is None or ends[0][0] != ends[1][0] or ends[0][1] == ends[1][1]:
        return None
    found = _devices(header.nodes[ends[0][0]])
    path = live.path_between(found, ends[0][1].index, ends[1][1].index)
    links = header_links(header) or live.links_of(header.nodes[ends[0][0]])
    if path is None or links is None or _port_rates_given(links):
        return None
    staged = Flag.THROUGH_HOST in record.flags or (header.direction or "").startswith("through_host")
    return pair(found, path, links, staged=staged)


def pair(found: Inventory, path: Path, links: NodeLinks, *, staged: bool = False) -> Between | None:
    """Return the links between two GPUs of a node. If the GPUs differ, the rates are those of the slower GPU.

    The result is None if the rates are unknown.

    `staged`: whether the data go through host memory.
    """
    nvlink = None if staged else live.pair_nvlink_rate(found, path)
    if nvlink is not None:
        why = f"{path.a} and {path.b} are joined by {path.kind[2:]} NVLinks ({path.kind})"
        sources = {**links.sources, "nvlink": live.active_source(found).replace("active links", "links of the pair")}
        joined_links = replace(
            links,
            peer="nvswitch",
            nvlink_bytes_per_s=nvlink,
            pair_bytes_per_s=None,
            sources=sources,
            verified={**links.verified, "nvlink": True},
        )
        return Between(joined_links, path, why)
    # whether the GPUs may have NVLinks that are not reported
    unsaid = not found.nvlinks_told and links.peer in NVLINK_PEERS
    if (unsaid or path.kind.startswith("NV")) and not staged:
        return None
    ends = [each for each in found.gpus if f"gpu{each.index}" in (path.a, path.b)]
    rates = [rate for each in ends if (rate := live.pcie_rate(each)) is not None]
    if len(rates) < 2:
        return None
    named = links.pcie_bytes_per_s if links.instance else None
    rate = min(rates) if named is None else min(*rates, named)
    source = links.sources["pcie"] if named is not None and named < min(rates) else live.pcie_source(ends, found)
    joined_links = replace(
        links,
        peer="host",
        nvlink_bytes_per_s=None,
        pair_bytes_per_s=None,
        pcie_bytes_per_s=rate,
        sources={**links.sources, "pcie": source},
        verified={**links.verified, "pcie": True},
    )
    return Between(joined_links, path, _way(path, staged))


def links_of_part(header: Header, record: Record, links: NodeLinks) -> NodeLinks:
    """Return the links that limit a row.

    If only some of the run's ranks took part in the row, it is unknown which links they used. Each rate is then the
    highest rate of any node.
    """
    whole = header.num_ranks is None or record.num_ranks is None or record.num_ranks >= header.num_ranks
    if whole or links.instance or _port_rates_given(links) or not header.nodes:
        return links
    fastest: NodeLinks | None = _once(header.nodes, lambda nodes: live.links_of_all(nodes.values(), max))
    return fastest or links


def memory_bound(header: Header, record: Record) -> Bound | None:
    """Return the bound that the memory of a GPU sets, or None if its rate is unknown.

    The rate of a memory is the sum of bytes read and bytes written per second. A copy reads and writes each byte. If
    the data fit into caches, a copy may be faster than the bound, so the bound is not hard.
    """
    names = {str(each.get("name")) for node in header.nodes.values() for each in node.get("gpus") or ()}
    names = names or ({header.facts["gpu"]} if header.facts.get("gpu") else set())
    models = {gpu_printed(name) for name in names}
    if not models and header.instance in instances():
        models = {instance(str(header.instance)).gpu}
    if len(models) != 1 or (model := models.pop()) is None or (peak := gpu(model).memory_bytes_per_s) is None:
        return None
    cache = str(header.facts.get("gpu_cache_bytes") or "")
    cache_bytes = int(cache) if cache.isdigit() else _DEFAULT_CACHE_BYTES
    from_memory = record.cache == "cold" or record.payload_bytes > 2 * cache_bytes
    why = f"the memory of a {model} moves {format_rate(peak)}, bytes read and written together"
    if not from_memory:
        why += "; data in caches may be faster"
    kind = "hard" if from_memory else "reference"
    limit = Limit.GPU_MEMORY
    return Bound(peak, limit.template, kind, why, gpu(model).source, gpu(model).verified, limit)


def gpu_of(header: Header, rank: int) -> tuple[str, Gpu] | None:
    """Return the host and the GPU of a rank.

    The PCI address identifies the GPU. If the address is unknown, the local rank identifies the GPU.
    """
    if rank >= len(header.ranks):
        return None
    # The header's own facts are those of rank 0.
    facts = {**header.facts, **header.ranks[rank]} if rank == 0 else header.ranks[rank]
    host = str(facts.get("host"))
    gpus = _devices(header.nodes[host]).gpus if host in header.nodes else ()
    bus = _bus(facts.get("gpu_pci_bus"))
    if bus is not None:
        return next(((host, each) for each in gpus if _bus(each.pci_bus) == bus), None)
    index = _index(facts.get("local_rank"), header.environment.get("CUDA_VISIBLE_DEVICES"))
    return next(((host, each) for each in gpus if each.index == index), None)


def _bus(address: object) -> str | None:
    """Return a PCI address without leading zeros, because libraries print it in different forms."""
    return str(address).lower().lstrip("0") if address else None


def _index(local_rank: object, visible: str | None) -> int | None:
    """Return the number that the driver gives to the GPU of a local rank.

    The driver and CUDA number identical GPUs in the same order.
    """
    if not isinstance(local_rank, int):
        return None
    if visible is None:
        return local_rank
    words = [word.strip() for word in visible.split(",")]
    return int(words[local_rank]) if local_rank < len(words) and all(word.isdigit() for word in words) else None


def _only_rank(header: Header, record: Record) -> int | None:
    if record.num_ranks != 1:
        return None
    match = re.fullmatch(r"(rank|group)(\d+)", record.group)
    is_linear = stored_value(header.case, "order") == "linear"
    if match and (match[1] == "rank" or is_linear):  # in this order, group N of one rank is rank N
        return int(match[2])
    return 0 if header.num_ranks == 1 else None


def _two_ranks(header: Header, record: Record) -> tuple[int, int] | None:
    if record.num_ranks != 2:
        return None
    if record.src is not None and record.dst is not None:
        return record.src, record.dst
    return (0, 1) if header.num_ranks == 2 else None


def _way(path: Path, staged: bool) -> str:
    ends = f"{path.a} and {path.b}"
    if staged or path.peer_access is False:
        return f"{ends} exchange data through host memory only ({path.kind}" + (
            f"; {path.why_not})" if path.why_not else ")"
        )
    if path.kind in _SAME_SWITCH:
        return f"{ends} are joined by PCIe switches ({path.kind}), each with its own link in each direction"
    return f"{ends} exchange data by PCIe through the host's bridges ({path.kind})"


def _port_rates_given(links: NodeLinks) -> bool:
    return bool({"nvlink", "pcie"} & set(links.given))


def _devices(node: Mapping[str, Any]) -> Inventory:
    return _once(node, from_facts)


def _once(facts: Mapping[str, Any], read: Callable[[Mapping[str, Any]], T]) -> T:
    """Return the result of `read` for these facts, and cache it.

    The result is needed for each row of a run, but the facts of a header do not change.
    """
    kept = _read.get(id(facts))
    if kept is None or kept[0] is not facts:
        if len(_read) >= _MOST_READ:
            _read.clear()
        kept = _read[id(facts)] = (facts, read(facts))
    found: T = kept[1]
    return found
