"""Rules about PCIe, NVLink and the ways between GPUs and network adapters."""

from __future__ import annotations

from collections.abc import Iterator

from bench.core.inventory import Gpu
from bench.core.units import format_rate
from bench.hardware import live
from bench.hardware._health_rule import HealthFinding, HealthNode, grouped, names, num_nvlinks
from bench.hardware.catalogue import instance, instances

_CLOSE = ("PIX", "PXB")
_CHOSEN = "disabled by a setting of the driver"
_SET_SLOT = "seat the card again and see the BIOS settings of its slot; `dmesg | grep -i pcieport` tells of link errors"


def link_below_both_ends(node: HealthNode) -> Iterator[HealthFinding]:
    """Slower than GPU and slot can both do, while data goes over it, or narrower, which a link does not get by idling.

    Where the slot's own lanes are not told, or the link was idle, a narrow one is only doubtful: many machines are
    built with half the lanes.
    """
    loaded = [each for each in node.gpus if live.seen_at_work(each)]
    proven = [each for each in loaded if _slow(each) or each.slot_lanes]
    for who, evidence in grouped(proven, map(_below, proven)):
        yield HealthFinding(
            "link_below_both_ends",
            "wrong",
            f"the PCIe link of {who} is less than both of its ends can do",
            f"{evidence}, under load",
            _SET_SLOT,
        )
    others = [each for each in node.gpus if each not in proven and not node.as_promised(each)]
    for who, lanes in grouped(others, map(_narrow, others)):
        yield HealthFinding(
            "narrow_link",
            "doubtful",
            f"the PCIe link of {who} has fewer lanes than are possible",
            lanes,
            f"many machines are built like this, and nothing is broken; else {_SET_SLOT}",
        )
    idle = [each for each in node.gpus if not live.seen_at_work(each)]
    if idle and node.found.told_by:
        yield HealthFinding(
            "link_below_both_ends",
            "unknown",
            f"the generation of PCIe links under load: {names(idle)}",
            node.silent("the driver"),
        )
    elif idle:
        below = "; ".join(f"{who}: {evidence}" for who, evidence in grouped(idle, map(_below, idle)))
        yield HealthFinding(
            "link_below_both_ends",
            "unknown",
            f"the generation of PCIe links under load: {names(idle)}",
            f"they were idle, and idle links slow down{f' ({below})' if below else ''}",
        )


def slot_below_gpu(node: HealthNode) -> Iterator[HealthFinding]:
    """The slot, or what is between it and the processor, allows less than the GPU itself."""
    gpus = [each for each in node.gpus if not node.as_promised(each)]
    for who, evidence in grouped(gpus, map(_slot, gpus)):
        yield HealthFinding(
            "slot_below_gpu",
            "doubtful",
            f"the slot of {who} allows less than the GPU can do",
            evidence,
            "put it into another slot if the board has a better one; many servers and clouds have not",
        )


def no_peer_access(node: HealthNode) -> Iterator[HealthFinding]:
    """Pairs of GPUs whose copies go by way of the host's memory."""
    between = [path for path in node.found.paths if path.a.startswith("gpu") and path.b.startswith("gpu")]
    kinds: dict[tuple[str | None, str], list[str]] = {}
    for path in between:
        if path.peer_access is False:
            kinds.setdefault((path.why_not, path.kind), []).append(f"{path.a}-{path.b}")
    for (why, kind), pairs in kinds.items():
        shown = ", ".join(pairs[:4]) + (f" and {len(pairs) - 4} more" if len(pairs) > 4 else "")
        wrong = why == _CHOSEN or kind.startswith("NV") or _expects_switch(node)
        remedy = (
            "see NVreg_RegistryDwords and the licence of the driver"
            if why == _CHOSEN
            else (
                "look for IOMMU, ACS, MIG and the fabric manager; where the platform has none, plan with copies "
                "through the host"
            )
        )
        yield HealthFinding(
            "no_peer_access",
            "wrong" if wrong else "doubtful",
            f"GPUs can not reach each other's memory: {shown}",
            f"the driver says: {why or 'no access'} ({kind})",
            remedy,
        )
    if len(node.gpus) > 1 and (not between or any(path.peer_access is None for path in between)):
        yield HealthFinding(
            "no_peer_access", "unknown", "whether all GPUs reach each other's memory", node.silent("the driver")
        )


def nvlink_down(node: HealthNode) -> Iterator[HealthFinding]:
    """Fewer active NVLinks than the GPU beside it, or than the model has."""
    active = {each.index: len(live.active_nvlinks(each)) for each in node.gpus}
    if len(node.gpus) < 2 and not any(active.values()):
        return  # nobody to be linked with
    silent = [each for each in node.gpus if not each.nvlinks and num_nvlinks(each)]
    if silent:
        yield HealthFinding(
            "nvlink_down", "unknown", f"how many NVLinks are active: {names(silent)}", node.silent("the driver")
        )
    told = [each for each in node.gpus if each.nvlinks]
    most = max(active.values(), default=0)
    wanted = {each.index: max(most, num_nvlinks(each) or 0) for each in told}
    words = [_fewer(active[each.index], wanted[each.index]) for each in told]
    for who, evidence in grouped(told, words):
        inactive = sorted(
            {
                link.index
                for each in told
                if _fewer(active[each.index], wanted[each.index])
                for link in each.nvlinks
                if link.active is False
            }
        )
        which = f"; not active: {', '.join(map(str, inactive))}" if inactive else ""
        yield HealthFinding(
            "nvlink_down",
            "wrong",
            f"NVLinks are down: {who}",
            f"{evidence}{which}",
            "`nvidia-smi nvlink -s` and `-e` tell state and errors; reset the GPU or the node, and have the "
            "board looked at if they stay down",
        )


def fabric_not_ready(node: HealthNode) -> Iterator[HealthFinding]:
    """GPUs on NVSwitch that have not joined the others: CUDA then fails with SYSTEM_NOT_READY (802)."""
    remedy = (
        "start it: `systemctl start nvidia-fabricmanager`, of the very version of the driver; in a virtual "
        "machine the host runs it"
    )
    # One GPU that was given to a virtual machine by itself, its NVLinks off, has nobody to join.
    alone = len(node.gpus) == 1 and not live.active_nvlinks(node.gpus[0])
    for who, state in grouped(node.gpus, [each.fabric or "" for each in node.gpus]):
        if state != "completed":
            yield HealthFinding(
                "fabric_not_ready",
                "doubtful" if alone else "wrong",
                f"not joined to the NVSwitch fabric (SYSTEM_NOT_READY): {who}",
                f"fabric state: {state}; {_manager(node)}",
                f"nothing where CUDA programs work here; else {remedy}" if alone else remedy,
            )
    unsaid = [each for each in node.gpus if each.fabric is None]
    if len(node.gpus) < 2 or not unsaid or not _expects_switch(node) or node.facts.get("fabric_manager"):
        return
    if node.facts.get("fabric_manager") is False and node.facts.get("virtual_machine") is False:
        yield HealthFinding(
            "fabric_not_ready",
            "wrong",
            "the fabric manager does not run (SYSTEM_NOT_READY)",
            f"no process of it on a machine whose {names(unsaid)} are on NVSwitch",
            remedy,
        )
    else:
        yield HealthFinding(
            "fabric_not_ready",
            "unknown",
            f"whether these joined the NVSwitch fabric: {names(unsaid)}",
            f"{node.silent('the GPUs')}; {_manager(node)}",
        )


def far_adapters(node: HealthNode) -> Iterator[HealthFinding]:
    """GPUs without a network adapter on their PCIe switch, or at least on their NUMA node."""
    adapters = {each.name: each for each in node.rdma_adapters}
    if not adapters or not node.gpus:
        return
    ways = {
        each.index: {
            path.b if path.a == f"gpu{each.index}" else path.a: path.kind
            for path in node.found.paths
            if f"gpu{each.index}" in (path.a, path.b) and {path.a, path.b} & set(adapters)
        }
        for each in node.gpus
    }
    far = [each for each in node.gpus if _other_node(each, node, ways[each.index])]
    if far:
        yield HealthFinding(
            "far_adapters",
            node.severity_of_rdma,
            f"no network adapter is on the NUMA node of {names(far)}",
            _seen(far[0], ways[far[0].index], node),
            "use an adapter of the GPU's own NUMA node "
            "(`nics:` of the cluster), or move cards; in a virtual machine ask for its real topology",
        )
    near = [each for each in node.gpus if each not in far]
    apart = [each for each in near if ways[each.index] and not set(ways[each.index].values()) & set(_CLOSE)]
    if apart and node.facts.get("virtual_machine") and not any(path.kind in _CLOSE for path in node.found.paths):
        yield HealthFinding(
            "far_adapters",
            "unknown",
            f"which network adapters share a PCIe switch with {names(apart)}",
            f"a virtual machine that shows none: {_seen(apart[0], ways[apart[0].index], node)}",
        )
    elif apart:
        yield HealthFinding(
            "far_adapters",
            "doubtful",
            f"no network adapter is on the PCIe switch of {names(apart)}",
            _seen(apart[0], ways[apart[0].index], node),
            "data between GPU and adapter goes through the processor: use a closer one if there is any",
        )
    silent = [each for each in near if not ways[each.index] and each.numa_node is None]
    if silent:
        yield HealthFinding(
            "far_adapters",
            "unknown",
            f"what is between {names(silent)} and the network adapters",
            node.silent("the driver or /sys"),
        )


def below_instance(node: HealthNode) -> Iterator[HealthFinding]:
    """Less than the instance type is said to have."""
    if node.instance not in instances():
        return
    named = instance(str(node.instance))
    if len(node.gpus) < named.gpus:
        yield HealthFinding(
            "below_instance",
            "wrong",
            f"{len(node.gpus)} of the {named.gpus} GPUs of {named.name} are here",
            f"the driver shows {len(node.gpus)}",
            "look for GPUs that fell off the bus (`dmesg | grep Xid`), or correct `instance:` of the cluster",
        )
    other = live.other_models(node.found, named.name)
    if other:
        yield HealthFinding(
            "below_instance",
            "wrong",
            f"these are not the GPUs of {named.name}",
            f"there is {', '.join(other)}, it has {named.gpu}",
            "correct `instance:`",
        )
        return
    there = live.links_of(node.facts)
    if there and live.is_less(named.links.pcie_bytes_per_s, there.pcie_bytes_per_s):
        yield HealthFinding(
            "below_instance",
            "unknown",
            "whether the host is as fast as the GPUs' own PCIe links",
            f"{live.pcie_source(node.gpus, node.found)}: that is a GPU's own link, to the first switch; "
            f"{named.name} has {format_rate(named.links.pcie_bytes_per_s or 0.0)} to its host "
            f"[{named.links.sources['pcie']}], which is what counts here",
        )
    for said in live.as_linked(named.links, there)[1]:
        yield HealthFinding(
            "below_instance",
            "doubtful",
            said,
            live.pcie_source(node.gpus, node.found),
            "choose another instance type if this one was promised more",
        )


RULES = (
    link_below_both_ends,
    slot_below_gpu,
    no_peer_access,
    nvlink_down,
    fabric_not_ready,
    far_adapters,
    below_instance,
)


def _slow(each: Gpu) -> bool:
    most, _ = live.both_ends(each)
    return bool(each.pcie_generation and most and each.pcie_generation < most)


def _narrow(each: Gpu) -> str:
    _, most = live.both_ends(each)
    narrow = each.pcie_lanes and most and each.pcie_lanes < most
    return f"x{each.pcie_lanes} is linked, x{most} is possible; lanes do not idle" if narrow else ""


def _below(each: Gpu) -> str:
    generation, lanes = live.both_ends(each)
    if not _slow(each) and not _narrow(each):
        return ""
    return (
        f"generation {each.pcie_generation or '?'} x{each.pcie_lanes or '?'}, "
        f"both ends can do generation {generation or '?'} x{lanes or '?'}"
    )


def _slot(each: Gpu) -> str:
    generation, _ = live.both_ends(each)
    own = max(each.own_generation or 0, each.pcie_max_generation or 0)
    slow = generation is not None and own > generation
    narrow = each.slot_lanes and each.pcie_max_lanes and each.slot_lanes < each.pcie_max_lanes
    told = [f"the GPU can do generation {own}, here generation {generation}"] if slow else []
    told += [f"the GPU has x{each.pcie_max_lanes}, the slot x{each.slot_lanes}"] if narrow else []
    return "; ".join(told)


def _fewer(active: int, wanted: int) -> str:
    return f"{active} of {wanted} are active" if active < wanted else ""


def _expects_switch(node: HealthNode) -> bool:
    """Of a model that is built on NVSwitch, and not seen to be linked without one."""
    ends = {link.peer for each in node.gpus for link in live.active_nvlinks(each)} - {None}
    direct = bool(ends) and all(str(end).startswith("gpu") for end in ends)
    return (
        not direct
        and any(num_nvlinks(each) for each in node.gpus)
        and live.peer_kind(node.found) in ("nvswitch", "pcie_p2p", "host", live.UNKNOWN)
    )


def _manager(node: HealthNode) -> str:
    runs = node.facts.get("fabric_manager")
    return (
        "whether the fabric manager runs is not known"
        if runs is None
        else ("the fabric manager runs" if runs else "the fabric manager does not run")
    )


def _other_node(each: Gpu, node: HealthNode, ways: dict[str, str]) -> bool:
    if ways:
        return set(ways.values()) == {"SYS"}
    nodes = {card.numa_node for card in live.active_adapters(node.found)}
    return each.numa_node is not None and None not in nodes and each.numa_node not in nodes


def _seen(each: Gpu, ways: dict[str, str], node: HealthNode) -> str:
    if ways:
        return ", ".join(f"gpu{each.index} to {name}: {kind}" for name, kind in sorted(ways.items())[:4])
    nodes = sorted({card.numa_node for card in live.active_adapters(node.found) if card.numa_node is not None})
    return f"gpu{each.index} is on NUMA node {each.numa_node}, the adapters on {', '.join(map(str, nodes))}"
