"""Why copies are as fast as they are: small rules, each of which names its evidence in the matrices."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from bench.core.units import format_rate
from bench.explain.copies import Copying, fitting, nvlinks, span, wired
from bench.explain.reason import Reason
from bench.hardware.catalogue import gpu, pcie_bytes_per_s
from bench.logs.foreign import TRUNCATED
from bench.logs.messages import LogCode

_WIDTHS = "nvidia-smi --query-gpu=index,name,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max --format=csv"


def narrow_link(copying: Copying) -> Reason | None:
    """Half (or a quarter) of what the GPU can link at."""
    way = copying.way("h2d")
    if way is None or copying.machine.gpu is None:
        return None
    own = gpu(copying.machine.gpu).pcie
    if own is None or way.most > 0.55 * pcie_bytes_per_s(*own):
        return None
    full = pcie_bytes_per_s(*own)
    evidence = (
        f"{format_rate(way.most)} from the host is {way.most / full:.0%} of PCIe {own[0]} x{own[1]} "
        f"({format_rate(full)}), at which {copying.machine.gpu} can link, and fits {fitting(way.most, own[0])}"
    )
    built = wired(copying.machine)
    what = "the PCIe link is narrower or older than the GPU's"
    step = "see lanes and the highest generation (the current one reads 1 on an idle GPU)"
    if built is None:
        return Reason(what, evidence, 0.75, step, _WIDTHS)
    evidence += f"; {built}, so that this is how the machine is built, and no fault"
    return Reason(what, evidence, 0.9, step, _WIDTHS)


def shared_uplink(copying: Copying) -> Reason | None:
    """All GPUs at once get less than one alone."""
    alone, together = copying.way("h2d"), copying.named("host_to_all_memcpy_ce")
    if alone is None or together is None or not 0 < together.least <= 0.75 * alone.least:
        return None
    share = together.least / alone.least
    evidence = (
        f"{format_rate(together.least)} for each when all read at once, {format_rate(alone.least)} alone: {share:.0%}, "
        f"as if {round(1 / share)} GPUs share one way to the host"
    )
    return Reason("GPUs share their way to the host", evidence, 0.6, "see which share a switch", "nvidia-smi topo -m")


def refused(copying: Copying) -> Reason | None:
    """No copies between GPUs at all."""
    if not copying.waived:
        return None
    told = next((remark for remark in copying.run.remarks if remark.code == LogCode.WAIVED), None)
    said = next((hint for hint in copying.hints if hint.kind == "refused"), None)
    evidence = "no pair has a value by peer access"
    if told and told.line:
        evidence = f"copies between GPUs were waived (line {told.line}: {told.text})"
    elif said is not None:
        through = next((way for way in copying.ways if way.direction == "through_host"), None)
        evidence = f"the log says: {said.value} (line {said.line})"
        evidence += f"; copies went through host memory at {span((through.least, through.most))}" if through else ""
    links = copying.machine.links
    usual = links is not None and copying.machine.instance is not None and links.peer == "host"
    evidence += f"; so they are on {copying.machine.instance}" if usual else ""
    step = "expect collectives to go through host memory; see whether peer access is granted"
    return Reason("GPUs can not reach each other directly", evidence, 0.85, step, "nvidia-smi topo -p2p r")


def odd_pairs(copying: Copying) -> Reason | None:
    """Few pairs that are far slower than all the others, or than their own way back."""
    for way in (copying.way("d2d"), copying.way("h2d"), copying.way("d2h")):
        if way is None or len(way.values) < 4:
            continue
        middle = median(way.values.values())
        slow = {pair: value for pair, value in way.values.items() if value < 0.8 * middle}
        slow |= {(a, b): value for (a, b), value in way.values.items() if value < 0.8 * way.values.get((b, a), 0.0)}
        if not slow or len(slow) > max(2, len(way.values) // 5):
            continue
        worst = sorted(slow.items(), key=lambda pair: pair[1])[:4]
        named = ", ".join(f"{a} to {b} {format_rate(value)}" for (a, b), value in worst)
        evidence = f"{named}, where the median of {len(way.values)} is {format_rate(middle)}"
        ends = [end for pair in slow for end in pair if end != "host"]
        common = [end for end in dict.fromkeys(ends) if all(end in pair for pair in slow)]
        what = f"{'the links of ' + common[0] if common else f'{len(slow)} of {len(way.values)} ways'} are slow"
        return Reason(what, evidence, 0.9, "see errors and replays of the links", "nvidia-smi nvlink --errorcounters")
    return None


def some_pairs(copying: Copying) -> Reason | None:
    """Only some pairs have peer access, or NVLink: by design of the machine, or not."""
    way = copying.way("d2d")
    if way is None or way.matrix.direction != "d2d":
        return None
    gpus = {end for cell in way.matrix.cells for end in (cell.src, cell.dst)}
    pairs = len(gpus) * (len(gpus) - 1)
    lost = sum(cell.status == "unreadable" for cell in way.matrix.cells)
    refused = sum(cell.status == "waived" for cell in way.matrix.cells)
    if copying.run.status != TRUNCATED:  # of a log that was cut, pairs that are not there were not printed
        refused = pairs - len(way.values) - lost
    if refused:
        evidence = f"{pairs - refused} of {pairs} pairs have a value; the others go through host memory"
        return Reason(
            "only some pairs of GPUs reach each other directly", evidence, 0.7, "see which", "nvidia-smi topo -p2p r"
        )
    links = copying.machine.links
    if way.most > 1.5 * way.least and (links is None or links.peer in ("nvlink_mesh", "nvlink_pairs")):
        evidence = (
            f"{format_rate(way.least)} to {format_rate(way.most)}: pairs have one link, two or a bridge, others "
            "none, so that a mean over pairs says nothing"
        )
        return Reason(
            "pairs differ by their number of links", evidence, 0.6, "see the number of links", "nvidia-smi topo -m"
        )
    return None


def slower_than_the_host(copying: Copying) -> Reason | None:
    """Copies that go from GPU to GPU at once are slower than those by way of host memory."""
    way, detour = copying.way("d2d"), copying.way("through_host")
    if way is None or detour is None or way.matrix.direction != "d2d":
        return None
    direct, staged = median(way.values.values()), median(detour.values.values())
    if direct > 0.75 * staged:
        return None
    evidence = (
        f"{format_rate(direct)} by peer access and {format_rate(staged)} through host memory (medians): what passes "
        "between the GPUs is turned back, as by PCIe ACS, an IOMMU, or CPUs that forward little between their ports"
    )
    step = "see whether ACS or the IOMMU is on, and how the GPUs are joined; else try NCCL_P2P_DISABLE=1"
    command = "sudo lspci -vvv | grep ACSCtl; cat /proc/cmdline; nvidia-smi topo -m"
    return Reason("peer access is slower than the way through host memory", evidence, 0.85, step, command)


def few_nvlinks(copying: Copying) -> Reason | None:
    """All pairs alike, at the rate of a whole number of the NVLinks that join single pairs: fewer than the GPU has."""
    way, links = copying.way("d2d"), copying.machine.links
    if way is None or way.most > 1.2 * way.least or links is None or links.nvlink_bytes_per_s is None:
        return None
    joined = nvlinks(copying, way.most)
    if joined is None or way.most > 0.9 * links.nvlink_bytes_per_s:
        return None
    evidence = (
        f"{format_rate(way.most)} between two GPUs fits {joined}, and a GPU's port has "
        f"{format_rate(links.nvlink_bytes_per_s)} to all its peers together: a pair has no more than the links between "
        "the two, and where the topology shows as many this is how the machine is built, and no fault"
    )
    step = "see the number of links of each pair (NV1, NV2, ...)"
    return Reason("a pair of GPUs has only some of a GPU's NVLinks", evidence, 0.7, step, "nvidia-smi topo -m")


def kernels_slower(copying: Copying) -> Reason | None:
    """Copies by a kernel are far slower than by the copy engine."""
    engine, kernel = copying.way("d2h", "ce"), copying.way("d2h", "sm")
    if engine is None or kernel is None or kernel.matrix.engine != "sm" or kernel.most > 0.6 * engine.least:
        return None
    evidence = (
        f"to the host, kernels (sm) reach {span((kernel.least, kernel.most))} and the copy "
        f"engine {format_rate(engine.most)}: a collective through host memory writes by kernels, and is as slow"
    )
    return Reason("kernels write to the host more slowly than the copy engine", evidence, 0.5)


COPY_RULES: tuple[Callable[[Copying], Reason | None], ...] = (
    odd_pairs,
    narrow_link,
    shared_uplink,
    refused,
    some_pairs,
    slower_than_the_host,
    few_nvlinks,
    kernels_slower,
)


def reasons(copying: Copying) -> tuple[Reason, ...]:
    """Every reason that a rule finds, the likeliest first."""
    found = [reason for rule in COPY_RULES if (reason := rule(copying)) is not None]
    return tuple(sorted(found, key=lambda reason: -reason.weight))
