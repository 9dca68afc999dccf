"""Derive the expected rates of a node: bounds for copies to the host, for copies between GPUs, and for an allreduce."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench.core.inventory import Inventory, Path, from_facts
from bench.core.links import Bound
from bench.core.record import Header, Record
from bench.core.traits import auto_choices
from bench.hardware import _live_copies, catalogue, live
from bench.hardware.bounds import bounds_of, copy_bounds
from bench.hardware.catalogue import instances

_SIZE = 1 << 30  # any value, because these bounds hold for any size


@dataclass(frozen=True, slots=True)
class Promise:
    """The expected rate of one type of traffic, such as copies to the host.

    The rate is given by upper bounds per direction.

    `members`: the GPUs, or the pairs of GPUs, to which the bounds apply.
    """

    what: str
    members: tuple[str, ...]
    bounds: tuple[Bound, ...]

    @property
    def bound(self) -> Bound | None:
        """The hard bound."""
        return next((bound for bound in self.bounds if bound.kind == "hard"), None)


def promises(node: Mapping[str, Any], instance: str | None = None) -> tuple[Promise, ...]:
    """Return all expected rates of a node.

    One entry covers all pairs of GPUs with the same kind of link. The result is empty without GPUs.

    `instance`: the declared instance type of the node. For each link, the rate is the lower of the type's rate and the
        node's actual rate.
    """
    found, links = from_facts(node), live.links_of(node)
    if links is None:
        return ()
    if instance in instances() and not live.other_models(found, str(instance)):
        links = replace(live.as_linked(catalogue.instance(str(instance)).links, links)[0], gpus=len(found.gpus))
    all_gpus = tuple(f"gpu{each.index}" for each in found.gpus)
    kept = [Promise("host to GPU and back, each way", all_gpus, copy_bounds(links, "host"))]
    kept += _pairs(found, links)
    if len(found.gpus) > 1:
        kept.append(Promise("all-reduce of 1 GiB, busbw", all_gpus, _all_reduce(links.to_dict(), len(found.gpus))))
    peak = _live_copies.memory_bound(_header("local_copy", {}, 1, {"node": node}), _record(1, 2.0))
    if peak is not None:
        kept.append(Promise("a GPU's own memory, read and written", all_gpus, (peak,)))
    return tuple(kept)


def _pairs(found: Inventory, links: Any) -> Iterator[Promise]:
    classes: dict[tuple[Any, ...], list[tuple[Path, tuple[Bound, ...]]]] = {}
    for path in found.paths:
        if not (path.a.startswith("gpu") and path.b.startswith("gpu")):
            continue
        joined = _live_copies.pair(found, path, links)
        bounds = () if joined is None else copy_bounds(joined.links, "peer" if joined.by_nvlink else "through host")
        rate = bounds[-1].bytes_per_s if bounds else None
        classes.setdefault((path.kind, path.peer_access, rate), []).append((path, bounds))
    for (kind, access, _), alike in classes.items():
        pairs = tuple(f"{path.a}-{path.b}" for path, _ in alike)
        way = "through host memory" if access is False else _WAYS.get(kind, f"by {kind}")
        way = "by PCIe, or by unreported NVLinks" if not bounds and not found.nvlinks_told else way
        way = f"by {kind[2:]} NVLinks" if kind.startswith("NV") and access is not False else way
        yield Promise(f"GPU to GPU {way} ({kind}), each way", pairs, alike[0][1])


_WAYS = {
    "PIX": "through one PCIe switch",
    "PXB": "through several PCIe switches",
    "PHB": "through the host's PCIe bridge",
    "NODE": "through the bridges of one NUMA node",
    "SYS": "from one NUMA node to another",
}


def _all_reduce(links: dict[str, Any], num: int) -> tuple[Bound, ...]:
    factor = 2 * (num - 1) / num
    return bounds_of(_header("allreduce", links, num, {}), _record(num, factor))


def _header(pattern: str, links: dict[str, Any], num: int, nodes: Mapping[str, Any]) -> Header:
    return Header(
        job="",
        case=(),
        pattern=pattern,
        transport=auto_choices(on_gpu=True)[0],
        dtype="",
        reduce_op="",
        root=None,
        direction=None,
        topology="world",
        num_ranks=num,
        num_nodes=1,
        ranks_per_node=num,
        clock="device",
        modelled=False,
        started="",
        links=links,
        nodes=nodes,
    )


def _record(num: int, factor: float) -> Record:
    return Record(
        mode="pipelined",
        requested_bytes=(),
        payload_bytes=_SIZE,
        num_ranks=num,
        num_nodes=1,
        bus_factor=factor,
        rank_bytes=_SIZE * factor,
        reported={},
    )
