"""Rules about PCIe, NVLink, and the paths between GPUs and network adapters."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from bench.core.inventory import Gpu, NoAccess, Path
from bench.core.units import format_rate
from bench.hardware import live
from bench.hardware._health_rule import (
    HealthFinding,
    HealthNode,
    bridged_in_pairs,
    finding,
    grouped,
    names,
    num_nvlinks,
)
from bench.hardware.catalogue import instance, instances
from bench.hardware.messages import ACCESS_DISABLED, ACCESS_UNSUPPORTED, HealthCode

_CLOSE = ("PIX", "PXB")
_MOST_SHOWN = 4
_FEWEST_RATES = 4  # rates are compared only if at least this many NVLinks are active
_SLOW_LINK = 0.9  # a slow link has less than this share of the median rate
_WHOLE_MESH = 8  # number of GPUs in a whole mesh; no other size is on the market
_FEWEST_OF_SWITCH = 3  # if at least this many GPUs all reach each other, a switch is assumed


def link_below_both_ends(node: HealthNode) -> Iterator[HealthFinding]:
    """Find PCIe links that are slower under load, or that have fewer lanes, than the GPU and the slot both allow.

    An idle link reports a lower rate, but it keeps its lanes. Many machines connect only half of the lanes by design.
    If a link was idle, or if the slot's number of lanes is unknown, a link with few lanes is therefore only reported as
    doubtful.
    """
    rule = "link_below_both_ends"
    loaded = [each for each in node.gpus if live.seen_at_work(each)]
    proven = [each for each in loaded if _slow(each) or each.slot_lanes]
    for gpus, evidence in grouped(proven, map(_below, proven)):
        yield finding(rule, "wrong", HealthCode.LINK_BELOW_BOTH_ENDS, f"{evidence}, under load", gpus=gpus)
    others = [each for each in node.gpus if each not in proven and not node.as_promised(each)]
    for gpus, evidence in grouped(others, map(_narrow, others)):
        yield finding("narrow_link", "doubtful", HealthCode.NARROW_LINK, evidence, gpus=gpus)
    idle = [each for each in node.gpus if not live.seen_at_work(each)]
    if not idle:
        return
    evidence = node.not_reported("the driver")
    if not node.found.told_by:
        below = "; ".join(f"{gpus}: {text}" for gpus, text in grouped(idle, map(_below, idle)))
        evidence = "the links were idle, and idle links slow down" + (f" ({below})" if below else "")
    yield finding(rule, "unknown", HealthCode.LINK_UNKNOWN, evidence, gpus=names(idle))


def slot_below_gpu(node: HealthNode) -> Iterator[HealthFinding]:
    """Find GPUs whose slot, or whose link from the slot to the processor, is slower than the GPU itself allows."""
    gpus = [each for each in node.gpus if not node.as_promised(each)]
    for who, evidence in grouped(gpus, map(_slot, gpus)):
        yield finding("slot_below_gpu", "doubtful", HealthCode.SLOT_BELOW_GPU, evidence, gpus=who)


def no_peer_access(node: HealthNode) -> Iterator[HealthFinding]:
    """Find pairs of GPUs whose copies go through host memory."""
    rule = "no_peer_access"
    between = [path for path in node.found.paths if path.a.startswith("gpu") and path.b.startswith("gpu")]
    kinds: dict[tuple[str | None, str], list[Path]] = {}
    for path in between:
        if path.peer_access is False:
            kinds.setdefault((path.why_code, path.kind), []).append(path)
    for (code, kind), paths in kinds.items():
        pairs = [f"{path.a}-{path.b}" for path in paths]
        more = f" and {len(pairs) - _MOST_SHOWN} more" if len(pairs) > _MOST_SHOWN else ""
        disabled = code == NoAccess.DISABLED
        wrong = disabled or kind.startswith("NV") or _expects_switch(node)
        yield finding(
            rule,
            "wrong" if wrong else "doubtful",
            HealthCode.NO_PEER_ACCESS,
            f"the driver reports: {paths[0].why_not or 'no access'} ({kind})",
            ACCESS_DISABLED if disabled else ACCESS_UNSUPPORTED,
            shown=", ".join(pairs[:_MOST_SHOWN]) + more,
            pairs=pairs,
            kind=kind,
            why_code=code,
        )
    if len(node.gpus) > 1 and (not between or any(path.peer_access is None for path in between)):
        yield finding(rule, "unknown", HealthCode.PEER_ACCESS_UNKNOWN, node.not_reported("the driver"))


def nvlink_down(node: HealthNode) -> Iterator[HealthFinding]:
    """Find GPUs with fewer active NVLinks than another GPU of the node, or than the GPU model should have."""
    rule = "nvlink_down"
    active = {each.index: len(live.active_nvlinks(each)) for each in node.gpus}
    if len(node.gpus) < 2 and not any(active.values()) and not any(each.index for each in node.gpus):
        return  # there is no other GPU to which NVLinks could lead
    silent = [each for each in node.gpus if not each.nvlinks and num_nvlinks(each)]
    if silent:
        evidence = node.not_reported("the driver")
        yield finding(rule, "unknown", HealthCode.NVLINK_UNKNOWN, evidence, gpus=names(silent))
    reported = [each for each in node.gpus if each.nvlinks and (active[each.index] or not bridged_in_pairs(each))]
    most = max(active.values(), default=0)
    wanted = {each.index: max(most, num_nvlinks(each) or 0) for each in reported}
    down = [each for each in reported if active[each.index] < wanted[each.index]]
    inactive = sorted(
        {link.index for each in down if active[each.index] for link in each.nvlinks if link.active is False}
    )
    which = f"; not active: {', '.join(map(str, inactive))}" if inactive else ""
    for gpus, evidence in grouped(down, [f"{active[each.index]} of {wanted[each.index]} are active" for each in down]):
        yield finding(rule, "wrong", HealthCode.NVLINK_DOWN, f"{evidence}{which}", gpus=gpus, inactive=inactive)


def slow_nvlinks(node: HealthNode) -> Iterator[HealthFinding]:
    """Find active NVLinks that are slower than the node's other NVLinks."""
    links = [(each, link) for each in node.gpus for link in live.active_nvlinks(each) if link.bytes_per_s]
    rates = [link.bytes_per_s or 0.0 for _, link in links]
    if len(rates) < _FEWEST_RATES:
        return
    usual = median(rates)
    slow = [(each, link) for each, link in links if (link.bytes_per_s or 0.0) < _SLOW_LINK * usual]
    if not slow or len(slow) > len(links) // 2:
        return
    gpus = list(dict.fromkeys(each for each, _ in slow))
    shown = [f"gpu{each.index} link {link.index}: {format_rate(link.bytes_per_s or 0.0)}" for each, link in slow]
    more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    evidence = f"{', '.join(shown[:_MOST_SHOWN])}{more}; the others have {format_rate(usual)}"
    yield finding("slow_nvlinks", "wrong", HealthCode.NVLINK_SLOW, evidence, gpus=names(gpus))


def unlike_nvlinks(node: HealthNode) -> Iterator[HealthFinding]:
    """Find GPUs that have no NVLink to other GPUs, or fewer NVLinks than the other GPUs of the node.

    The rule reads the reported paths between GPUs. If the GPUs also report their own links, the rule does not compare
    numbers of NVLinks. If NVLink joins the other GPUs only in pairs, a GPU without NVLink is reported as doubtful,
    because many cards have no bridge.
    """
    rule = "unlike_nvlinks"
    reach = _nvlink_reach(node)
    linked = {index: kinds for index, kinds in reach.items() if kinds}
    if not linked:
        return
    # the rule nvlink_down reports these GPUs
    down = [each for each in node.gpus if each.nvlinks and not live.active_nvlinks(each)]
    alone = [each for each in node.gpus if each.index in reach and not reach[each.index] and each not in down]
    most_peers = max(map(len, linked.values()))
    if alone:
        pairs_only = most_peers == 1
        severity, code = ("doubtful", HealthCode.NO_BRIDGE) if pairs_only else ("wrong", HealthCode.GPU_WITHOUT_NVLINK)
        evidence = f"{names(each for each in node.gpus if each.index in linked)} reach each other by NVLink"
        yield finding(rule, severity, code, evidence, gpus=names(alone))
    if any(each.nvlinks for each in node.gpus):
        return
    if any(len(kinds) < len(linked) - 1 for kinds in linked.values()):
        yield from _unlike_in_mesh(node, linked)
        return
    if len(linked) < _FEWEST_OF_SWITCH:
        return
    links = {index: max(kinds) for index, kinds in linked.items()}
    usual = max(links.values())
    fewer = [each for each in node.gpus if links.get(each.index, usual) < usual]
    if len(fewer) < len(linked) / 2:
        for gpus, evidence in grouped(fewer, [f"NV{links[each.index]}, the others NV{usual}" for each in fewer]):
            yield finding(rule, "wrong", HealthCode.FEWER_NVLINKS, evidence, gpus=gpus)


def _unlike_in_mesh(node: HealthNode, linked: dict[int, list[int]]) -> Iterator[HealthFinding]:
    """Find GPUs with fewer NVLinks than the other GPUs, in a node in which some pairs of GPUs have no NVLink.

    In a complete mesh, all GPUs have the same number of links, but some pairs of GPUs can have more links than others.
    A container may show only a part of a mesh, and then GPUs can differ by design. For this reason, only complete
    meshes and bridges between two cards are checked. A finding is only doubtful, because some cards may have other
    bridges. Nodes with several GPU models are not checked.
    """
    bridges = max(map(len, linked.values())) == 1
    if len({each.name for each in node.gpus}) > 1 or not (bridges or len(linked) == len(node.gpus) >= _WHOLE_MESH):
        return
    total = {index: sum(kinds) for index, kinds in linked.items()}
    most = max(total.values())
    fewer = [each for each in node.gpus if total.get(each.index, most) < most]
    if len(fewer) <= len(linked) / 2:
        for gpus, evidence in grouped(fewer, [f"{total[each.index]}, the others {most}" for each in fewer]):
            yield finding("unlike_nvlinks", "doubtful", HealthCode.FEWER_NVLINKS, evidence, gpus=gpus)


def fabric_not_ready(node: HealthNode) -> Iterator[HealthFinding]:
    """Find GPUs on NVSwitch that are not registered with the fabric. CUDA then fails with SYSTEM_NOT_READY (802)."""
    rule = "fabric_not_ready"
    # A virtual machine may get a single GPU whose NVLinks are off, because there is no other GPU to join.
    alone = len(node.gpus) == 1 and not live.active_nvlinks(node.gpus[0])
    severity, code = ("doubtful", HealthCode.FABRIC_ALONE) if alone else ("wrong", HealthCode.FABRIC_NOT_READY)
    for gpus, state in grouped(node.gpus, [each.fabric or "" for each in node.gpus]):
        if state != "completed":
            evidence = f"fabric state: {state}; {_manager(node)}"
            yield finding(rule, severity, code, evidence, gpus=gpus, state=state)
    silent = [each for each in node.gpus if each.fabric is None]
    if len(node.gpus) < 2 or not silent or not _expects_switch(node) or node.facts.get("fabric_manager"):
        return
    if node.facts.get("fabric_manager") is False and node.facts.get("virtual_machine") is False:
        evidence = f"it has no process here, and {names(silent)} are on NVSwitch"
        yield finding(rule, "wrong", HealthCode.NO_FABRIC_MANAGER, evidence, gpus=names(silent))
    else:
        evidence = f"{node.not_reported('the driver')}; {_manager(node)}"
        yield finding(rule, "unknown", HealthCode.FABRIC_UNKNOWN, evidence, gpus=names(silent))


def far_adapters(node: HealthNode) -> Iterator[HealthFinding]:
    """Find GPUs without a network adapter on their NUMA node.

    The finding is less severe if a GPU has an adapter on its NUMA node, but not on its PCIe switch.
    """
    rule = "far_adapters"
    adapters = {each.name for each in node.rdma_adapters}
    if not adapters or not node.gpus:
        return
    ways = {each.index: _ways(node, each, adapters) for each in node.gpus}
    far = [each for each in node.gpus if _other_node(each, node, ways[each.index])]
    if far:
        evidence = _shown(far[0], ways[far[0].index], node)
        yield finding(rule, node.severity_of_rdma, HealthCode.ADAPTER_ON_OTHER_NODE, evidence, gpus=names(far))
    near = [each for each in node.gpus if each not in far]
    apart = [each for each in near if ways[each.index] and not set(ways[each.index].values()) & set(_CLOSE)]
    if apart:
        evidence = _shown(apart[0], ways[apart[0].index], node)
        if node.facts.get("virtual_machine") and not any(path.kind in _CLOSE for path in node.found.paths):
            evidence = f"a virtual machine that shows no switch: {evidence}"
            yield finding(rule, "unknown", HealthCode.SWITCH_UNKNOWN, evidence, gpus=names(apart))
        else:
            yield finding(rule, "doubtful", HealthCode.ADAPTER_ON_OTHER_SWITCH, evidence, gpus=names(apart))
    silent = [each for each in near if not ways[each.index] and each.numa_node is None]
    if silent:
        evidence = node.not_reported("the driver or /sys")
        yield finding(rule, "unknown", HealthCode.ADAPTER_PATH_UNKNOWN, evidence, gpus=names(silent))


def below_instance(node: HealthNode) -> Iterator[HealthFinding]:
    """Find differences from the declared instance type: missing GPUs, GPUs of another model, and slower links."""
    rule = "below_instance"
    if node.instance not in instances():
        return
    named = instance(str(node.instance))
    if len(node.gpus) < named.gpus:
        there = len(node.gpus)
        evidence = f"the driver shows {there}"
        yield finding(
            rule, "wrong", HealthCode.GPUS_MISSING, evidence, there=there, wanted=named.gpus, instance=named.name
        )
    other = live.other_models(node.found, named.name)
    if other:
        evidence = f"found {', '.join(other)}; the type has {named.gpu}"
        yield finding(rule, "wrong", HealthCode.OTHER_GPUS, evidence, instance=named.name, found=list(other))
        return
    there_links = live.links_of(node.facts)
    if there_links and live.is_less(named.links.pcie_bytes_per_s, there_links.pcie_bytes_per_s):
        evidence = (
            f"{live.pcie_source(node.gpus, node.found)}: a GPU's own link, to the first switch; {named.name} has "
            f"{format_rate(named.links.pcie_bytes_per_s or 0.0)} to its host [{named.links.sources['pcie']}], which is "
            "the limit"
        )
        yield finding(rule, "unknown", HealthCode.HOST_LINK_UNKNOWN, evidence, instance=named.name)
    for slower in live.as_linked(named.links, there_links)[1]:
        evidence = live.pcie_source(node.gpus, node.found)
        yield finding(rule, "doubtful", HealthCode.BELOW_INSTANCE, evidence, **slower.facts)


RULES = (
    link_below_both_ends,
    slot_below_gpu,
    no_peer_access,
    nvlink_down,
    slow_nvlinks,
    unlike_nvlinks,
    fabric_not_ready,
    far_adapters,
    below_instance,
)


def _nvlink_reach(node: HealthNode) -> dict[int, list[int]]:
    """Return, for each GPU, the number of NVLinks to each peer that it reaches by NVLink.

    GPUs with an unknown path to another GPU are left out.
    """
    number_of = {f"gpu{each.index}": each.index for each in node.gpus}
    reach: dict[int, list[int]] = {index: [] for index in number_of.values()}
    known = dict.fromkeys(reach, 0)
    for path in node.found.paths:
        ends = [number_of[end] for end in (path.a, path.b) if end in number_of]
        if len(ends) < 2 or path.kind == live.UNKNOWN:
            continue
        for end in ends:
            known[end] += 1
            if path.kind.startswith("NV") and path.kind[2:].isdigit():
                reach[end].append(int(path.kind[2:]))
    return {index: kinds for index, kinds in reach.items() if known[index] == len(number_of) - 1}


def _slow(each: Gpu) -> bool:
    most, _ = live.both_ends(each)
    return bool(each.pcie_generation and most and each.pcie_generation < most)


def _narrow(each: Gpu) -> str:
    _, most = live.both_ends(each)
    narrow = each.pcie_lanes and most and each.pcie_lanes < most
    return f"x{each.pcie_lanes} of x{most} lanes; idle links keep their lanes" if narrow else ""


def _below(each: Gpu) -> str:
    generation, lanes = live.both_ends(each)
    if not _slow(each) and not _narrow(each):
        return ""
    return (
        f"generation {each.pcie_generation or '?'} x{each.pcie_lanes or '?'}, "
        f"both ends allow generation {generation or '?'} x{lanes or '?'}"
    )


def _slot(each: Gpu) -> str:
    generation, _ = live.both_ends(each)
    own = max(each.own_generation or 0, each.pcie_max_generation or 0)
    slow = generation is not None and own > generation
    narrow = each.slot_lanes and each.pcie_max_lanes and each.slot_lanes < each.pcie_max_lanes
    found = []
    if slow:
        found.append(f"the GPU supports generation {own}, the slot generation {generation}")
    if narrow:
        found.append(f"the GPU has x{each.pcie_max_lanes}, the slot x{each.slot_lanes}")
    return "; ".join(found)


def _expects_switch(node: HealthNode) -> bool:
    """Check whether NVSwitch should connect these GPUs.

    The result is True if the model has NVLinks, but no direct NVLinks between GPUs are reported.
    """
    ends = {link.peer for each in node.gpus for link in live.active_nvlinks(each)} - {None}
    direct = bool(ends) and all(str(end).startswith("gpu") for end in ends)
    return (
        not direct
        and any(num_nvlinks(each) for each in node.gpus)
        and live.peer_kind(node.found) in ("nvswitch", "pcie_p2p", "host", live.UNKNOWN)
    )


def _manager(node: HealthNode) -> str:
    runs = node.facts.get("fabric_manager")
    if runs is None:
        return "it is unknown whether the fabric manager runs"
    return "the fabric manager runs" if runs else "the fabric manager does not run"


def _ways(node: HealthNode, each: Gpu, adapters: set[str]) -> dict[str, str]:
    """Map each network adapter to the type of the PCIe path between the adapter and one GPU."""
    own, found = f"gpu{each.index}", {}
    for path in node.found.paths:
        if own in (path.a, path.b) and {path.a, path.b} & adapters:
            found[path.b if path.a == own else path.a] = path.kind
    return found


def _other_node(each: Gpu, node: HealthNode, ways: dict[str, str]) -> bool:
    if ways:
        return set(ways.values()) == {"SYS"}
    nodes = {card.numa_node for card in live.active_adapters(node.found)}
    return each.numa_node is not None and None not in nodes and each.numa_node not in nodes


def _shown(each: Gpu, ways: dict[str, str], node: HealthNode) -> str:
    if ways:
        return ", ".join(f"gpu{each.index} to {name}: {kind}" for name, kind in sorted(ways.items())[:4])
    nodes = sorted({card.numa_node for card in live.active_adapters(node.found) if card.numa_node is not None})
    return f"gpu{each.index} is on NUMA node {each.numa_node}, the adapters on {', '.join(map(str, nodes))}"
