"""Find reasons why copies between GPUs and hosts are slow: links, missing peer access, and slow pairs."""

from __future__ import annotations

from statistics import median
from typing import Any

from bench.core.units import format_rate
from bench.explain.copy_evidence import CopyEvidence, fitting_links, fitting_nvlinks, rate_range, wiring
from bench.explain.reason import Found, reason
from bench.explain.reasons._commands import TOPOLOGY
from bench.hardware.catalogue import gpu, pcie_bytes_per_s
from bench.logs.foreign import TRUNCATED

_PEER_ACCESS = "nvidia-smi topo -p2p r"
_WIDTHS = "nvidia-smi --query-gpu=index,name,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max --format=csv"
_MOST_PAIRS = 4  # at most this many pairs are named


@reason(
    CopyEvidence,
    "slow-pairs",
    what="<gpu?the links of {gpu} are slow><!gpu?{num_slow} of {num_pairs} pairs are slow>",
    evidence="{pairs:list}, where the median of {num_pairs} is {median_rate:rate}",
    step="check errors and replays of the links",
)
def slow_pairs(evidence: CopyEvidence) -> Found | None:
    """Detect a few pairs that are far slower than the other pairs, or than the opposite direction of the same pair.

    Cards of different models have different links, so their pairs are not compared with each other.
    """
    alike = len(evidence.run.gpus) < 2
    for test in (evidence.test("d2d"), evidence.test("h2d"), evidence.test("d2h")):
        if test is None or len(test.rates) < 4:
            continue
        usual = median(test.rates.values())
        slow = {}
        for (a, b), rate in test.rates.items():
            if (alike and rate < 0.8 * usual) or rate < 0.8 * test.rates.get((b, a), 0.0):
                slow[a, b] = rate
        if not slow or len(slow) > max(2, len(test.rates) // 5):
            continue
        ends = dict.fromkeys(end for pair in slow for end in pair if end != "host")
        common = next((end for end in ends if all(end in pair for pair in slow)), None)
        slowest = sorted(slow.items(), key=lambda pair: pair[1])[:_MOST_PAIRS]
        facts = {
            "gpu": common,
            "num_slow": len(slow),
            "num_pairs": len(test.rates),
            "pairs": [f"{a} to {b} {format_rate(rate)}" for (a, b), rate in slowest],
            "median_rate": usual,
        }
        return Found(0.9, facts, "nvidia-smi nvlink --errorcounters")
    return None


@reason(
    CopyEvidence,
    "narrow-pcie-link",
    what="the PCIe link is narrower or older than the GPU's",
    evidence="{rate:rate} from the host is {share:.0%} of PCIe {generation} x{lanes} ({full_rate:rate}), which {gpu} "
    "supports, and fits {fitting}<; {wiring}, so this is how the machine is built, not a fault>",
    step="check lanes and the highest generation (the current one reads 1 on an idle GPU)",
)
def narrow_pcie_link(evidence: CopyEvidence) -> Found | None:
    """Detect copies that reach half (or a quarter) of what the GPU's PCIe link can carry."""
    test, machine = evidence.test("h2d"), evidence.machine
    if test is None or machine.gpu is None:
        return None
    pcie = gpu(machine.gpu).pcie
    if pcie is None or test.fastest > 0.55 * pcie_bytes_per_s(*pcie):
        return None
    full = pcie_bytes_per_s(*pcie)
    built = wiring(machine)
    facts = {
        "rate": test.fastest,
        "share": test.fastest / full,
        "generation": pcie[0],
        "lanes": pcie[1],
        "full_rate": full,
        "gpu": machine.gpu,
        "fitting": fitting_links(test.fastest, pcie[0]),
        "wiring": built,
    }
    return Found(0.75 if built is None else 0.9, facts, _WIDTHS)


@reason(
    CopyEvidence,
    "shared-uplink",
    what="GPUs share their path to the host",
    evidence="each GPU gets {together_rate:rate} if all read at once and {alone_rate:rate} if it reads alone: "
    "{share:.0%}, as if {num_sharing} GPUs share one path to the host",
    step="check which GPUs share a switch",
)
def shared_uplink(evidence: CopyEvidence) -> Found | None:
    """Detect that a GPU has a lower rate when all GPUs copy at the same time than when it copies alone."""
    alone, together = evidence.test("h2d"), evidence.named("host_to_all_memcpy_ce")
    if alone is None or together is None or not 0 < together.slowest <= 0.75 * alone.slowest:
        return None
    share = together.slowest / alone.slowest
    facts = {
        "together_rate": together.slowest,
        "alone_rate": alone.slowest,
        "share": share,
        "num_sharing": round(1 / share),
    }
    return Found(0.6, facts, TOPOLOGY)


@reason(
    CopyEvidence,
    "no-peer-access",
    what="GPUs cannot reach each other directly",
    evidence="<waived_line?copies between GPUs were waived (line {waived_line}: {waived_text})><log_line?the log says: "
    "{log_text} (line {log_line})><no_values?no pair has a value by peer access><; copies went through host memory at "
    "{through_host}><; this is normal on {instance}>",
    step="expect collectives to go through host memory; check whether peer access is granted",
)
def no_peer_access(evidence: CopyEvidence) -> Found | None:
    """Detect that no copy between GPUs was possible."""
    if not evidence.peer_copies_waived:
        return None
    facts: dict[str, Any] = {}
    waived = next(iter(evidence.waived_tests), None)
    log = evidence.hint("refused")
    if waived is not None and waived.line:
        facts = {"waived_line": waived.line, "waived_text": waived.text}
    elif log is not None:
        facts = {"log_text": log.value, "log_line": log.line}
        through = next((test for test in evidence.tests if test.direction == "through_host"), None)
        if through is not None:
            facts["through_host"] = rate_range(through.slowest, through.fastest)
    else:
        facts = {"no_values": True}
    machine = evidence.machine
    if machine.links is not None and machine.links.peer == "host":
        facts["instance"] = machine.instance
    return Found(0.85, facts, _PEER_ACCESS)


@reason(
    CopyEvidence,
    "peer-access-for-some-pairs",
    what="only some pairs of GPUs reach each other directly",
    evidence="{num_reached} of {num_pairs} pairs have a value; copies of the other pairs go through host memory",
    step="check which pairs",
)
def peer_access_for_some_pairs(evidence: CopyEvidence) -> Found | None:
    """Detect that some pairs have no peer access."""
    num_pairs, num_refused = _refused_pairs(evidence)
    if not num_refused:
        return None
    return Found(0.7, {"num_reached": num_pairs - num_refused, "num_pairs": num_pairs}, _PEER_ACCESS)


@reason(
    CopyEvidence,
    "pairs-differ",
    what="pairs differ in their number of links",
    evidence="{slowest_rate:rate} to {fastest_rate:rate}: some pairs have one link, two or a bridge, others none, so a "
    "mean over pairs says nothing",
    step="check the number of links",
)
def pairs_differ(evidence: CopyEvidence) -> Found | None:
    """Detect that some pairs are far slower than others although all pairs have peer access.

    The cause is possible only on machines that connect some pairs with more links than other pairs.
    """
    test, links = evidence.test("d2d"), evidence.machine.links
    if test is None or _refused_pairs(evidence)[1] or test.fastest <= 1.5 * test.slowest:
        return None
    if links is not None and links.peer not in ("nvlink_mesh", "nvlink_pairs"):
        return None
    return Found(0.6, {"slowest_rate": test.slowest, "fastest_rate": test.fastest}, TOPOLOGY)


@reason(
    CopyEvidence,
    "peer-slower-than-host",
    what="peer access is slower than going through host memory",
    evidence="{direct_rate:rate} by peer access and {staged_rate:rate} through host memory (medians): traffic between "
    "the GPUs is redirected, as by PCIe ACS, an IOMMU, or CPUs that are slow to forward between their ports",
    step="check whether ACS or the IOMMU is on, and how the GPUs are connected; else try NCCL_P2P_DISABLE=1",
)
def peer_slower_than_host(evidence: CopyEvidence) -> Found | None:
    """Detect direct copies between GPUs that are slower than copies through host memory."""
    test, through_host = evidence.test("d2d"), evidence.test("through_host")
    if test is None or through_host is None:
        return None
    direct, staged = median(test.rates.values()), median(through_host.rates.values())
    if direct > 0.75 * staged:
        return None
    command = "sudo lspci -vvv | grep ACSCtl; cat /proc/cmdline; nvidia-smi topo -m"
    return Found(0.85, {"direct_rate": direct, "staged_rate": staged}, command)


@reason(
    CopyEvidence,
    "few-nvlinks",
    what="a pair of GPUs has only some of a GPU's NVLinks",
    evidence="{rate:rate} between two GPUs fits {nvlinks}, and a GPU's port has {port_rate:rate} to all its peers "
    "in total: a pair has only the links between its two GPUs, and if the topology shows this number of links, the "
    "machine is built this way and this is not a fault",
    step="check the number of links of each pair (NV1, NV2, ...)",
)
def few_nvlinks(evidence: CopyEvidence) -> Found | None:
    """Detect that all pairs copy at the rate of a few NVLinks although the GPU has more NVLinks."""
    test, links = evidence.test("d2d"), evidence.machine.links
    if test is None or test.fastest > 1.2 * test.slowest or links is None or links.nvlink_bytes_per_s is None:
        return None
    fitting = fitting_nvlinks(evidence, test.fastest)
    if fitting is None or test.fastest > 0.9 * links.nvlink_bytes_per_s:
        return None
    facts = {"rate": test.fastest, "nvlinks": fitting, "port_rate": links.nvlink_bytes_per_s}
    return Found(0.7, facts, TOPOLOGY)


@reason(
    CopyEvidence,
    "slow-kernel-copies",
    what="kernels write to the host more slowly than the copy engine",
    evidence="to the host, kernels (sm) reach {kernel_range} and the copy engine {engine_rate:rate}: a collective "
    "through host memory writes with kernels, and is as slow",
)
def slow_kernel_copies(evidence: CopyEvidence) -> Found | None:
    """Detect copies by a kernel that are far slower than copies by the copy engine."""
    engine, kernel = evidence.test("d2h", "ce"), evidence.test("d2h", "sm")
    if engine is None or kernel is None or kernel.matrix.engine != "sm" or kernel.fastest > 0.6 * engine.slowest:
        return None
    facts = {"kernel_range": rate_range(kernel.slowest, kernel.fastest), "engine_rate": engine.fastest}
    return Found(0.5, facts)


def _refused_pairs(evidence: CopyEvidence) -> tuple[int, int]:
    """Return the number of GPU pairs in the test of direct copies, and how many of them lack peer access.

    Return (0, 0) if direct copies were not tested.
    """
    test = evidence.test("d2d")
    if test is None:
        return 0, 0
    gpus = {end for cell in test.matrix.cells for end in (cell.src, cell.dst)}
    num_pairs = len(gpus) * (len(gpus) - 1)
    if evidence.run.status == TRUNCATED:  # the missing pairs were not printed
        return num_pairs, sum(cell.status == "waived" for cell in test.matrix.cells)
    lost = sum(cell.status == "unreadable" for cell in test.matrix.cells)
    return num_pairs, num_pairs - len(test.rates) - lost
