"""Write the page of `linkbench doctor` about a machine: hardware, expected rates, problems, and what is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.core import hostlist
from bench.core.inventory import Gpu, Inventory, from_facts
from bench.core.inventory import Path as Between
from bench.core.units import format_bytes, format_rate
from bench.core.wrapping import PIPED_WIDTH, wrapped
from bench.hardware import live
from bench.hardware.health import HealthFinding
from bench.hardware.promises import Promise

_MOST = 4
_UNKNOWN = "unknown"


def title(hosts: Sequence[str]) -> str:
    """Return the title of the page about these hosts."""
    return f"machine{'s' if len(hosts) > 1 else ''} {hostlist.compress(list(hosts))}"


def page(
    node: Mapping[str, Any],
    promised: Sequence[Promise],
    findings: Sequence[HealthFinding],
    width: int = PIPED_WIDTH,
) -> list[str]:
    """Return the lines below the title.

    `width`: the number of characters in a line.
    """
    lines = [*_wrapped(_has(node), width)]
    if promised:
        lines += ["", "expected rates", *_wrapped((_promise(each) for each in promised), width)]
    lines += ["", "problems", *_wrapped(_problems(findings), width)]
    return lines


def nvlink_lines(found: Inventory) -> list[str]:
    """Return lines about the NVLinks of the GPUs, such as `gpu[0-7]: 18 of 18 links active`.

    If several GPUs have the same text, they share a line.
    """
    return list(_alike(found.gpus, [_nvlink(each, found) for each in found.gpus]))


def plain(promise: Promise) -> dict[str, Any]:
    """Return a promise as plain data for JSON, in SI units."""
    return {
        "what": promise.what,
        "members": list(promise.members),
        "bounds": [
            {
                "bytes_per_s": bound.bytes_per_s,
                "name": bound.name,
                "code": bound.code,
                "kind": bound.kind,
                "why": bound.why,
                "source": bound.source,
                "verified": bound.verified,
            }
            for bound in promise.bounds
        ],
    }


def _has(node: Mapping[str, Any]) -> Iterator[str]:
    found = from_facts(node)
    yield f"GPUs: {_gpus(node, found)}"
    if found.gpus:
        yield f"PCIe: {'; '.join(_alike(found.gpus, [_pcie(each, found) for each in found.gpus]))}"
        yield f"NVLink: {'; '.join(nvlink_lines(found))}"
        yield f"between GPUs: {_between(found)}"
        yield f"driver: {node.get('gpu_driver') or _UNKNOWN}, CUDA {node.get('gpu_cuda') or _UNKNOWN} at most"
    yield f"network adapters: {_adapters(found)}"
    if found.lost:
        more = f"; and {len(found.lost) - _MOST} more" if len(found.lost) > _MOST else ""
        yield f"missing in the file: {'; '.join(found.lost[:_MOST])}{more}"
    yield f"host: {node.get('cpu_model') or _UNKNOWN + ' CPU'}, {_host(node)}"


def _gpus(node: Mapping[str, Any], found: Inventory) -> str:
    if not found.gpus:
        why = f"{found.told_by} shows none" if found.told_by else "the driver shows none"
        return f"none ({node.get('no_gpus_because') or why})"
    words = [
        f"{each.name}{'' if each.memory_bytes is None else ' with ' + format_bytes(each.memory_bytes)}"
        f"{'' if each.numa_node is None else f' on NUMA node {each.numa_node}'}"
        for each in found.gpus
    ]
    return "; ".join(_alike(found.gpus, words))


def _pcie(each: Gpu, found: Inventory) -> str:
    if not each.pcie_generation or not each.pcie_lanes:
        now = f"{_UNKNOWN} now"
    else:
        when = "under load" if each.under_load else "when recorded" if found.told_by else "while idle"
        now = f"generation {each.pcie_generation} x{each.pcie_lanes} {when}"
    generation, lanes = live.both_ends(each)
    most = f"generation {generation or '?'} x{lanes or '?'}" if generation or lanes else _UNKNOWN
    return f"{now}, {most} at most"


def _nvlink(each: Gpu, found: Inventory) -> str:
    active = live.active_nvlinks(each)
    if not each.nvlinks:
        return _of_paths(each, found)
    if not active and all(link.active is False for link in each.nvlinks):
        return "no link active"
    ends = sorted({link.peer or "an unknown end" for link in active})
    rate = live.nvlink_rate(each)
    to = f" to {', '.join(ends[:_MOST])}{', ...' if len(ends) > _MOST else ''}" if ends else ""
    return f"{len(active)} of {len(each.nvlinks)} links active{to}{f', {format_rate(rate)} each way' if rate else ''}"


def _of_paths(each: Gpu, found: Inventory) -> str:
    """Return a text about the NVLinks of a GPU, derived from the reported paths to other GPUs.

    This function is for GPUs that do not report their own NVLinks.
    """
    own = f"gpu{each.index}"
    to: dict[str, list[str]] = {}
    for path in _gpu_pairs(found):
        if path.kind.startswith("NV") and own in (path.a, path.b):
            to.setdefault(path.kind, []).append(path.b if path.a == own else path.a)
    if to:
        others = len(found.gpus) - 1
        ends = [
            f"{kind} to {'every other GPU' if len(names) == others > 1 else ', '.join(names)}"
            for kind, names in to.items()
        ]
        return f"{'; '.join(ends)}, rates unknown"
    if not found.nvlinks_told:
        return f"unknown ({found.told_by or 'the text'} does not report them)"
    return "none to another GPU" if found.told_by else "none, or none that the driver reports"


def _gpu_pairs(found: Inventory) -> list[Between]:
    return [path for path in found.paths if path.a.startswith("gpu") and path.b.startswith("gpu")]


def _between(found: Inventory) -> str:
    kinds: dict[str, int] = {}
    pairs = _gpu_pairs(found)
    for path in pairs:
        access = {True: "with peer access", False: "without peer access", None: "peer access unknown"}
        word = f"{path.kind} {access[path.peer_access]}"
        kinds[word] = kinds.get(word, 0) + 1
    shown = "; ".join(f"{num} {'pair' if num == 1 else 'pairs'} {word}" for word, num in kinds.items())
    missing = len(found.gpus) * (len(found.gpus) - 1) // 2 - len({frozenset((path.a, path.b)) for path in pairs})
    if shown and missing > 0:
        shown += f"; {missing} {'pair' if missing == 1 else 'pairs'} unknown"
    return shown or ("there is one GPU" if len(found.gpus) == 1 else _UNKNOWN)


def _adapters(found: Inventory) -> str:
    rdma = live.active_adapters(found)
    words = [
        f"{each.name} ({each.kind}, {format_rate(each.bytes_per_s) if each.bytes_per_s else 'rate unknown'}"
        f"{'' if each.numa_node is None else f', NUMA node {each.numa_node}'})"
        for each in rdma
    ]
    unsaid = [each.name for each in found.adapters if each.kind == _UNKNOWN]
    others = len(found.adapters) - len(rdma) - len(unsaid)
    more = [f"{others} without RDMA or without a link"] if others else []
    if unsaid:
        more.append(f"{len(unsaid)} of unknown kind, rate and state ({hostlist.compress(unsaid)})")
    none = f"none that {found.told_by} shows" if found.told_by else "none with RDMA"
    return ", ".join([*words, *more]) or none


def _host(node: Mapping[str, Any]) -> str:
    numa = len(node.get("numa_nodes") or ())
    locked = node.get("max_locked_bytes")
    words = [
        f"{node.get('num_cpus') or '?'} CPUs",
        f"{numa} NUMA node{'' if numa == 1 else 's'}" if numa else "NUMA nodes unknown",
        f"governor {node.get('governor') or _UNKNOWN}",
        f"/dev/shm {format_bytes(node['shm_bytes']) if node.get('shm_bytes') else _UNKNOWN}",
        f"locked memory {format_bytes(locked) if isinstance(locked, int) else locked or _UNKNOWN}",
        f"IOMMU {node.get('iommu') or _UNKNOWN}",
    ]
    if node.get("container"):
        words.append(f"in a container ({node['container']})")
    if node.get("virtual_machine"):
        words.append(f"a virtual machine ({node.get('hypervisor') or 'of an unknown vendor'})")
    return ", ".join(words)


def _promise(each: Promise) -> str:
    about = _members(each.members)
    if each.bound is None and not each.bounds:
        return f"{each.what}, {about}: unknown"
    shown = "; ".join(
        f"{format_rate(bound.bytes_per_s)} ({bound.name}, {'at most' if bound.kind == 'hard' else 'seen in practice'}"
        f"{'' if bound.verified else ', unverified'})"
        for bound in reversed(each.bounds)
    )
    last = each.bound or each.bounds[-1]
    return f"{each.what}, {about}: {shown}: {last.why} [{last.source}]"


def _problems(findings: Sequence[HealthFinding]) -> Iterator[str]:
    known = [each for each in findings if each.severity != "unknown"]
    if not known:
        yield "none found"
    for each in known:
        yield f"{each.severity}: {each.what} ({each.evidence}). Remedy: {each.remedy}"
    unknown = "; ".join(f"{each.what} ({each.evidence})" for each in findings if each.severity == "unknown")
    if unknown:
        yield f"unknown: {unknown}"


def _alike(gpus: Sequence[Gpu], words: Sequence[str]) -> Iterator[str]:
    """Yield one line for each group of GPUs with equal texts."""
    by_word: dict[str, list[str]] = {}
    for each, word in zip(gpus, words, strict=True):
        by_word.setdefault(word, []).append(f"gpu{each.index}")
    for word, names in by_word.items():
        yield f"{hostlist.compress(names)}: {word}"


def _members(members: Sequence[str]) -> str:
    if any("-" in member for member in members):
        more = f" and {len(members) - _MOST} more pairs" if len(members) > _MOST else ""
        return ", ".join(members[:_MOST]) + more
    return hostlist.compress(list(members))


def _wrapped(texts: Iterator[str], width: int) -> Iterator[str]:
    for text in texts:
        yield from wrapped(text, width, "      ", "  ")
