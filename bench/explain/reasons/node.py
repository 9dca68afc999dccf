"""Find reasons why a collective inside a node is slow: NVLink, the NVSwitch, PCIe, and how NCCL uses these links."""

from __future__ import annotations

from typing import Any

from bench.explain.copy_evidence import rate_range
from bench.explain.evidence import LARGE_BYTES, LARGE_SIZE_BYTES, RunEvidence, busbw
from bench.explain.reason import Found, reason
from bench.explain.reasons._commands import nccl_debug, nccl_test
from bench.hardware.reference import NVLS_OFF

# Settings that change how fast NCCL can be, with their effect.
_SETTINGS = {
    "NCCL_P2P_DISABLE": "makes GPUs of a node exchange data through host memory",
    "NCCL_P2P_LEVEL": "limits which GPUs may exchange data directly",
    "NCCL_SHM_DISABLE": "makes GPUs without peer access exchange data through the network",
    "NCCL_NVLS_ENABLE": "0 keeps the NVSwitch from reducing",
    "NCCL_IB_DISABLE": "1 replaces InfiniBand and RoCE by sockets",
    "NCCL_NET": "selects the network by name",
    "NCCL_NET_GDR_LEVEL": "limits which NICs may read GPU memory",
    "NCCL_IB_HCA": "selects the NICs by name",
    "NCCL_ALGO": "selects the algorithm by name",
    "NCCL_PROTO": "selects the protocol by name",
    "NCCL_MAX_NCHANNELS": "limits the channels, and fewer carry less",
    "NCCL_MAX_CTAS": "limits the channels, and fewer carry less",
    "NCCL_TOPO_FILE": "makes NCCL trust that file instead of the machine",
    "NCCL_TREE_THRESHOLD": "0 means rings only, for every size",
}
_NO_PEER = ("host", "pcie_p2p", "nvlink_pairs")  # kinds of links between GPUs that may need host memory
_OF_PCIE = "{rate:rate} is {share:.0%} of the PCIe link ({pcie_rate:rate})"
_LOG = '<; the log says "{log_text}" (line {line})>'


@reason(
    RunEvidence,
    "shared-gpu",
    what="ranks share a GPU",
    evidence="{log_text} (line {line}): their data may stay inside the GPU, or go through the host or sockets",
    step="give each rank its own GPU (CUDA_VISIBLE_DEVICES, the launcher's GPUs per task), and measure again",
)
def shared_gpu(evidence: RunEvidence) -> Found | None:
    """Detect that the list of ranks shows two ranks on one GPU."""
    log = evidence.hint("shared")
    if log is None:
        return None
    command = "nvidia-smi --query-gpu=index,pci.bus_id --format=csv"
    return Found(0.98, {"log_text": log.value, "line": log.line}, command)


@reason(
    RunEvidence,
    "no-nvls",
    what="NVLS is off: the NVSwitch does not reduce",
    evidence="{rate:rate} is {share:.0%} of the NVLink port, as rings reach<: {ring_rate:rate} with NVLS off on "
    "{ring_gpu} ({ring_source})><; with NVLS it was {nvls_rate:rate}>" + _LOG,
    step="find out why NCCL does not use NVLS (fabric manager, driver, containers without multicast, NCCL_NVLS_ENABLE)",
)
def no_nvls(evidence: RunEvidence) -> Found | None:
    """Detect a run with the rate of a ring although the node's switch can reduce (NVLS)."""
    links, best = evidence.machine.links, evidence.best
    if links is None or best is None or not links.nvls or links.nvlink_bytes_per_s is None:
        return None
    if evidence.run.pattern != "allreduce" or evidence.num_nodes != 1 or (evidence.num_ranks or 0) < 5:
        return None
    if (best.payload_bytes or 0) < LARGE_BYTES:
        return None
    if evidence.flat_from_bytes is None and evidence.largest_bytes < LARGE_SIZE_BYTES:
        return None
    share = busbw(best) / links.nvlink_bytes_per_s
    with_nvls = max((ref.best[1] for ref in evidence.references if ref.limited is None), default=None)
    if not 0.70 <= share <= 0.88 or (with_nvls is not None and busbw(best) > 0.92 * with_nvls):
        return None
    facts: dict[str, Any] = {"rate": busbw(best), "share": share, "nvls_rate": with_nvls}
    ring = next((reference for reference in evidence.references if reference.limited == NVLS_OFF), None)
    if ring is not None:
        facts |= {"ring_rate": ring.best[1], "ring_gpu": ring.gpu, "ring_source": ring.source}
    log = evidence.hint("setting", "NCCL_NVLS_ENABLE set by environment to 0") or evidence.hint("no_nvls")
    if log:
        facts |= {"log_text": log.value, "line": log.line}
    return Found(0.95 if log else 0.8, facts, nccl_debug(evidence))


@reason(
    RunEvidence,
    "through-host",
    what="GPUs exchange data through host memory",
    evidence=f"{_OF_PCIE}: every byte is written to host memory and read back{_LOG}<; others with {{reference_gpu}} "
    "and no peer access: {reference_range}>",
    step="check whether peer access is granted (GeForce drivers and some guests refuse it)",
)
def through_host(evidence: RunEvidence) -> Found | None:
    """Detect a run that is as slow as copies through host memory, or whose log shows paths through host memory."""
    facts = _of_pcie(evidence)
    log = evidence.hint("refused") or evidence.hint("path", "SHM") or evidence.hint("setting", "NCCL_P2P_DISABLE")
    if facts is None or (log is None and (evidence.hint("path", "P2P") or facts["share"] < 0.06)):
        return None
    others = [reference for reference in evidence.references if reference.limited is None]
    if log:
        facts |= {"log_text": log.value, "line": log.line}
    elif others:
        rates = [reference.best[1] for reference in others]
        facts |= {"reference_gpu": others[0].gpu, "reference_range": rate_range(min(rates), max(rates))}
    return Found(0.95 if log else 0.75, facts, "p2pBandwidthLatencyTest 2>&1 | linkbench explain -")


@reason(
    RunEvidence,
    "slower-than-host-memory",
    what="slower than host memory: sockets inside the node, or several processes on its GPUs",
    evidence=_OF_PCIE + ", while copies through host memory reach 7 to 30 %",
    step="check over which paths the ranks exchange data",
)
def slower_than_host_memory(evidence: RunEvidence) -> Found | None:
    """Detect a run that is slower than copies through host memory, if the log does not say why."""
    facts = _of_pcie(evidence)
    if facts is None or facts["share"] >= 0.06 or evidence.hint("path", "P2P"):
        return None
    if evidence.hint("refused") or evidence.hint("path", "SHM") or evidence.hint("setting", "NCCL_P2P_DISABLE"):
        return None
    return Found(0.6, facts, nccl_debug(evidence))


@reason(
    RunEvidence,
    "no-bridge",
    what="there is no NVLink bridge, or it is not used",
    evidence=_OF_PCIE + " and {bridge_share:.0%} of the NVLink bridge that the cards support ({bridge_rate:rate})"
    "<; with a bridge {reference_rate:rate} was reached ({source})>",
    step="check whether the bridge is there and its links are up",
)
def no_bridge(evidence: RunEvidence) -> Found | None:
    """Detect two cards that reach only the rate of PCIe although a bridge may join them."""
    links, best = evidence.machine.links, evidence.best
    if links is None or best is None or links.peer != "nvlink_pairs":
        return None
    if (evidence.num_ranks, evidence.num_nodes) != (2, 1) or evidence.nccl_sees_nvlink:
        return None
    rate, pcie, nvlink = busbw(best), links.pcie_bytes_per_s, links.nvlink_bytes_per_s
    if pcie is None or nvlink is None or not 0.55 < rate / pcie <= 1.0 or rate > 0.4 * nvlink:
        return None
    facts: dict[str, Any] = {
        "rate": rate,
        "share": rate / pcie,
        "pcie_rate": pcie,
        "bridge_share": rate / nvlink,
        "bridge_rate": nvlink,
    }
    for reference in evidence.references:
        if reference.limited is None and reference.best[1] > 1.5 * rate:
            facts |= {"reference_rate": reference.best[1], "source": reference.source}
            break
    return Found(0.8, facts, "nvidia-smi nvlink --status")


@reason(
    RunEvidence,
    "nccl-settings",
    what="the environment configures NCCL: {names:list}",
    evidence="{settings}",
    step="measure again without these settings",
)
def nccl_settings(evidence: RunEvidence) -> Found | None:
    """Detect settings in the log that change how fast NCCL can be."""
    names: dict[str, None] = {}
    settings = []
    for hint in evidence.hints:
        name = hint.value.split(" ")[0]
        if hint.kind == "setting" and name in _SETTINGS and "aws-ofi-nccl" not in hint.value:
            names[name] = None
            settings.append(f'"{hint.value}" (line {hint.line}): {_SETTINGS[name]}')
    if not names:
        return None
    unset = " ".join(f"-u {name}" for name in names)
    weight = 0.97 if "NCCL_TOPO_FILE" in names else 0.65
    return Found(weight, {"names": list(names), "settings": "; ".join(settings)}, f"env {unset} {nccl_test(evidence)}")


@reason(
    RunEvidence,
    "few-channels",
    what="NCCL sees fewer links than there are",
    evidence="NCCL opened {num_channels:n channel} (line {line}), which carry {channel_rate:rate} each; on NVLink it "
    'opens 16 to 32<; its search for paths ended with "nChannels {search}" (line {search_line})><. {rate:rate} would '
    "also fit a PCIe link ({pcie_share:.0%} of {pcie_rate:rate}): only the log shows which link it is>",
    step="check which paths NCCL finds",
)
def few_channels(evidence: RunEvidence) -> Found | None:
    """Detect that NCCL opened fewer channels than fast links need."""
    links, channels, best = evidence.machine.links, evidence.hint("channels"), evidence.best
    if links is None or channels is None or links.nvlink_bytes_per_s is None or best is None:
        return None
    number, rate = int(channels.value), busbw(best)
    if evidence.num_nodes != 1 or number > 4 or rate > 0.5 * links.nvlink_bytes_per_s:
        return None
    facts: dict[str, Any] = {"num_channels": number, "line": channels.line, "channel_rate": rate / number}
    if search := evidence.hint("search"):
        facts |= {"search": search.value, "search_line": search.line}
    pcie = links.pcie_bytes_per_s
    if pcie is not None and 0.55 < rate / pcie <= 1.0:
        facts |= {"rate": rate, "pcie_share": rate / pcie, "pcie_rate": pcie}
    return Found(0.9, facts, nccl_debug(evidence))


def _of_pcie(evidence: RunEvidence) -> dict[str, Any] | None:
    """Return the facts of a run inside one node that reaches at most 55 % of the PCIe rate.

    The GPUs of this node may lack peer access.

    Return None for other runs.
    """
    links, best = evidence.machine.links, evidence.best
    if links is None or best is None or evidence.num_nodes != 1 or evidence.hint("shared"):
        return None
    pcie = links.pcie_bytes_per_s
    if links.peer not in _NO_PEER or pcie is None or busbw(best) > 0.55 * pcie:
        return None
    return {"rate": busbw(best), "share": busbw(best) / pcie, "pcie_rate": pcie}
