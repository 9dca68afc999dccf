"""Why a collective is as fast as it is: small rules, each of which names its evidence in the data.

A rule looks at one run and answers with a reason or not at all. `weight` orders them: near 1 where the log itself says
so, 0.6 where the figures fit and nothing contradicts, below where it is one of several possibilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.core.units import format_bytes, format_rate
from bench.explain.copies import span
from bench.explain.evidence import LARGE_BYTES, LARGE_SIZE_BYTES, RunEvidence, busbw
from bench.explain.network_reasons import fewer_nics, no_rdma, old_software, sockets
from bench.explain.reason import TOPOLOGY, Reason, listen, program
from bench.hardware.reference import Reference

# Settings that change how fast NCCL can be, and what to expect of them.
_SETTINGS = {
    "NCCL_P2P_DISABLE": "GPUs of a node then talk through host memory",
    "NCCL_P2P_LEVEL": "it limits which GPUs may talk directly",
    "NCCL_SHM_DISABLE": "GPUs without peer access then talk through the network",
    "NCCL_NVLS_ENABLE": "0 keeps the switch from reducing",
    "NCCL_IB_DISABLE": "1 leaves sockets in the place of InfiniBand and RoCE",
    "NCCL_NET": "it picks the network by name",
    "NCCL_NET_GDR_LEVEL": "it limits which NICs may read GPU memory",
    "NCCL_IB_HCA": "it picks the NICs by name",
    "NCCL_ALGO": "it picks the algorithm by name",
    "NCCL_PROTO": "it picks the protocol by name",
    "NCCL_MAX_NCHANNELS": "fewer channels carry less",
    "NCCL_MAX_CTAS": "fewer channels carry less",
    "NCCL_TOPO_FILE": "NCCL believes that file, not the machine",
    "NCCL_TREE_THRESHOLD": "0 means rings only, for every size",
}


Rule = Callable[[RunEvidence], Reason | None]


def reasons(seen: RunEvidence) -> tuple[Reason, ...]:
    """Every reason that a rule finds, the likeliest first."""
    rules = (small_sizes,) if seen.of_hosts else RULES
    found = [reason for rule in rules if (reason := rule(seen)) is not None]
    return tuple(sorted(found, key=lambda reason: -reason.weight))


def no_nvls(seen: RunEvidence) -> Reason | None:
    """The switch could reduce, and the figure is that of a ring."""
    links, best = seen.machine.links, seen.best
    if links is None or best is None or not links.nvls or seen.run.pattern != "allreduce" or seen.num_nodes != 1:
        return None
    if (seen.num_ranks or 0) < 5 or links.nvlink_bytes_per_s is None or (best.payload_bytes or 0) < LARGE_BYTES:
        return None
    share = busbw(best) / links.nvlink_bytes_per_s
    if not 0.70 <= share <= 0.88 or (seen.flat_from is None and seen.largest_bytes < LARGE_SIZE_BYTES):
        return None
    rings = [each for each in seen.references if each.limited == "NVLS off"]
    switches = [each for each in seen.references if each.limited is None]
    if switches and busbw(best) > 0.92 * max(each.best[1] for each in switches):
        return None
    evidence = f"{format_rate(busbw(best))} is {share:.0%} of the NVLink port, as rings reach"
    if rings:
        evidence += f": {format_rate(rings[0].best[1])} with NVLS off on {rings[0].gpu} ({rings[0].source})"
    if switches:
        evidence += f"; with NVLS it was {format_rate(max(each.best[1] for each in switches))}"
    said = seen.hint("setting", "NCCL_NVLS_ENABLE set by environment to 0") or seen.hint("no_nvls")
    if said:
        evidence += f'; the log says "{said.value}" (line {said.line})'
    step = "see why NVLS is not taken (fabric manager, driver, containers without multicast, NCCL_NVLS_ENABLE)"
    return Reason("NVLS is off: the switch does not reduce", evidence, 0.95 if said else 0.8, step, listen(seen))


def shared_gpu(seen: RunEvidence) -> Reason | None:
    """Two ranks on one GPU, by the list of ranks."""
    if (said := seen.hint("shared")) is None:
        return None
    evidence = f"{said.value} (line {said.line}): what they exchange may go inside the GPU, by the host, or by sockets"
    step = "give each rank a GPU of its own (CUDA_VISIBLE_DEVICES, the launcher's GPUs per task), and measure again"
    return Reason("ranks share a GPU", evidence, 0.98, step, "nvidia-smi --query-gpu=index,pci.bus_id --format=csv")


def through_the_host(seen: RunEvidence) -> Reason | None:
    """GPUs of a node that copy through host memory, as peer access is refused."""
    links, best = seen.machine.links, seen.best
    if (
        links is None
        or best is None
        or seen.num_nodes != 1
        or seen.hint("shared")
        or links.peer not in ("host", "pcie_p2p", "nvlink_pairs")
    ):
        return None
    pcie = links.pcie_bytes_per_s
    if pcie is None or busbw(best) > 0.55 * pcie:
        return None
    said = seen.hint("refused") or seen.hint("path", "SHM") or seen.hint("setting", "NCCL_P2P_DISABLE")
    if seen.hint("path", "P2P") and not said:
        return None
    evidence = (
        f"{format_rate(busbw(best))} is {busbw(best) / pcie:.0%} of the PCIe link ({format_rate(pcie)}): every byte is "
        "written to host memory and read from it again"
    )
    alike = [each for each in seen.references if each.limited is None]
    if busbw(best) < 0.06 * pcie and not said:
        few = f"{format_rate(busbw(best))} is {busbw(best) / pcie:.0%} of the PCIe link ({format_rate(pcie)}), while "
        few += "copies through host memory reach 7 to 30 %"
        return Reason(
            "less than host memory carries: sockets inside the node, or several processes on its GPUs",
            few,
            0.6,
            "see by which paths the ranks talk",
            listen(seen),
        )
    if said:
        evidence += f'; the log says "{said.value}" (line {said.line})'
    elif alike:
        evidence += f"; others with {alike[0].gpu} and peer access refused: {_span(alike)}"
    command = "p2pBandwidthLatencyTest 2>&1 | python -m bench explain -"
    step = "see whether peer access is granted (GeForce drivers refuse it; some guests do)"
    return Reason("GPUs talk through host memory", evidence, 0.95 if said else 0.75, step, command)


def _span(references: Sequence[Reference]) -> str:
    rates = sorted(each.best[1] for each in references)
    return span((rates[0], rates[-1]))


def no_bridge(seen: RunEvidence) -> Reason | None:
    """Two cards that a bridge may join, at the rate of PCIe."""
    links, best = seen.machine.links, seen.best
    if links is None or best is None or links.peer != "nvlink_pairs" or (seen.num_ranks, seen.num_nodes) != (2, 1):
        return None
    pcie, nvlink = links.pcie_bytes_per_s, links.nvlink_bytes_per_s
    if pcie is None or nvlink is None or not 0.55 < busbw(best) / pcie <= 1.0 or busbw(best) > 0.4 * nvlink:
        return None
    if (found := seen.hint("search")) and found.value.endswith("type NVL"):
        return None
    evidence = (
        f"{format_rate(busbw(best))} is {busbw(best) / pcie:.0%} of the cards' PCIe link ({format_rate(pcie)}) and "
        f"{busbw(best) / nvlink:.0%} of the NVLink bridge that they can have ({format_rate(nvlink)})"
    )
    bridged = [each for each in seen.references if each.limited is None and each.best[1] > 1.5 * busbw(best)]
    if bridged:
        evidence += f"; with a bridge {format_rate(bridged[0].best[1])} was reached ({bridged[0].source})"
    step = "see whether the bridge is there and its links are up"
    return Reason("there is no NVLink bridge, or it is not used", evidence, 0.8, step, "nvidia-smi nvlink --status")


def settings(seen: RunEvidence) -> Reason | None:
    """What the environment told NCCL to do, or not to."""
    found = []
    for hint in seen.hints:
        name = hint.value.split(" ")[0]
        if hint.kind == "setting" and name in _SETTINGS and "aws-ofi-nccl" not in hint.value:
            found.append((name, hint))
    if not found:
        return None
    evidence = "; ".join(f'"{hint.value}" (line {hint.line}): {_SETTINGS[name]}' for name, hint in found)
    names = " ".join(f"-u {name}" for name in dict.fromkeys(name for name, _ in found))
    what = "the environment tells NCCL what to do: " + ", ".join(dict.fromkeys(name for name, _ in found))
    weight = 0.97 if any(name == "NCCL_TOPO_FILE" for name, _ in found) else 0.65
    return Reason(what, evidence, weight, "measure again without it", f"env {names} {program(seen)}")


def few_channels(seen: RunEvidence) -> Reason | None:
    """NCCL opened fewer channels than fast links need."""
    links, heard = seen.machine.links, seen.hint("channels")
    if links is None or heard is None or links.nvlink_bytes_per_s is None or seen.num_nodes != 1:
        return None
    if int(heard.value) > 4 or seen.best is None or busbw(seen.best) > 0.5 * links.nvlink_bytes_per_s:
        return None
    each = busbw(seen.best) / int(heard.value)
    evidence = (
        f"NCCL opened {heard.value} channels (line {heard.line}), which carry {format_rate(each)} each; "
        "on NVLink it opens 16 to 32"
    )
    if found := seen.hint("search"):
        evidence += f'; its search for paths ended with "nChannels {found.value}" (line {found.line})'
    pcie = links.pcie_bytes_per_s
    if pcie is not None and 0.55 < busbw(seen.best) / pcie <= 1.0:
        evidence += (
            f". {format_rate(busbw(seen.best))} would fit a PCIe link, too ({busbw(seen.best) / pcie:.0%} of "
            f"{format_rate(pcie)}): the figure alone does not tell, the log does"
        )
    return Reason("NCCL sees fewer links than there are", evidence, 0.9, "see the paths that NCCL finds", listen(seen))


def small_sizes(seen: RunEvidence) -> Reason | None:
    """The curve still rises where the test ended."""
    if not seen.rises:
        return None
    sizes, gain = sorted({row.payload_bytes or 0 for row in seen.rows}), seen.last_gain or 0.0
    evidence = (
        f"from {format_bytes(sizes[-2])} to {format_bytes(sizes[-1])}, the largest size, the bandwidth still rises by "
        f"{gain:.0%}"
    )
    step = "measure larger sizes, until three in a row are alike"
    command = program(seen, "64M")
    if seen.own:
        command = f"python -m bench.{seen.run.pattern} --sizes 64M:4G:4"
    elif seen.of_hosts:
        command = ""
    return Reason("the sizes are too small to show the links", evidence, 0.8, step, command)


def slow_start(seen: RunEvidence) -> Reason | None:
    """Small messages take far longer than elsewhere."""
    times = [time for each in seen.references for time in each.small_s.values()]
    if seen.small_s is None or not times or seen.small_s < 3 * max(times):
        return None
    evidence = (
        f"{seen.small_s * 1e6:.3g} us for messages up to 1 KiB, where others needed {min(times) * 1e6:.3g} to "
        f"{max(times) * 1e6:.3g} us"
    )
    step = "see whether CPUs are shared, throttled or far from the GPUs, and whether NCCL_DEBUG prints between calls"
    return Reason("each operation begins late", evidence, 0.4, step, TOPOLOGY)


RULES: tuple[Rule, ...] = (
    shared_gpu,
    sockets,
    fewer_nics,
    no_nvls,
    through_the_host,
    no_bridge,
    settings,
    few_channels,
    no_rdma,
    old_software,
    small_sizes,
    slow_start,
)
