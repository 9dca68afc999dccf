"""Find reasons why a collective inside a node with NVLink between all GPUs is slow.

The evidence is the rate of the collective and, if given, the topology of the node.

A rate alone never proves a reason, because several reasons may lead to this rate. The functions compare rates with
three references: the PCIe link, host memory, and some of a GPU's NVLinks.
"""

from __future__ import annotations

from typing import Any

from bench.explain.assessment import assess
from bench.explain.evidence import RunEvidence
from bench.explain.log_hints import Hint, TopologyHint
from bench.explain.messages import ResultVerdict
from bench.explain.reason import Found, reason
from bench.explain.reasons._commands import nccl_debug
from bench.explain.shortfall import Shortfall, fall, shortfall
from bench.explain.topology import Topology, near_adapters
from bench.hardware.catalogue import gpu, nvlink_bytes_per_s

_LINKS = "nvidia-smi nvlink -s; nvidia-smi nvlink -e"
_FABRIC = "nvidia-smi nvlink -s; systemctl status nvidia-fabricmanager; ls /dev/nvidia*; nvidia-smi topo -m"
_ACCESS = "nvidia-smi topo -p2p r; nvidia-smi topo -m; env | grep NCCL_; df -h /dev/shm"
_BUSY = (
    "nvidia-smi --query-gpu=index,clocks.sm,clocks.max.sm,clocks_throttle_reasons.active,power.draw,temperature.gpu,"
    "ecc.errors.uncorrected.volatile.total --format=csv; nvidia-smi --query-compute-apps=gpu_uuid,pid,name --format=csv"
)
_MEMORY = "nvidia-smi -q -d MEMORY,POWER,PERFORMANCE,CLOCK; free -g"
_PEERS = ("nvswitch", "nvlink_mesh", "infinity_fabric")  # kinds of fast links that connect all GPUs of a node
_THROUGH_HOST, _OVER_PCIE = (0.0, 0.55), (0.55, 1.05)  # ranges of shares of the PCIe link's rate
_AS_SOCKETS = 8e9  # the most bytes per second that TCP over the loopback device or one NIC carries
_PART = (0.1, 0.93)  # range of shares of the normal rate at which some of the NVLinks may be missing
_NOT_NORMAL = (ResultVerdict.LOW, ResultVerdict.FAR_TOO_LOW, ResultVerdict.CANNOT_BE_JUDGED)
_HALF = (0.44, 0.54)
_FAR = ("PHB", "NODE", "SYS")  # on paths of these kinds, NCCL does not let NICs read GPU memory by default
# The first NCCL version that supports GPUs of an architecture: H100 according to cupy/cupy issue 7094 (2022-11-09),
# Blackwell according to the release notes of NCCL 2.25.1, which ROCm/rccl pull request 1662 repeats (2025-04-28).
_FIRST_NCCL = {"hopper": (2, 15), "blackwell": (2, 25)}
_OF_PCIE = "{rate:rate} is {share:.0%} of the normal {normal_rate:rate} and {pcie_share:.0%} of a GPU's PCIe link"
_LOG = '<; the log says "{log_text}" (line {line})>'


@reason(
    RunEvidence,
    "peer-access-off",
    what="<log_text?GPUs exchange data through host memory, not over NVLink><!log_text?the rate fits GPUs that "
    "exchange data through host memory: peer access may be off>",
    evidence=f"{_OF_PCIE} ({{pcie_rate:rate}}), as copies through host memory reach{_LOG}",
    step="check whether GPUs have peer access and whether NCCL_P2P_* is set; in a container or pod, give all GPUs to "
    "one container with shared memory and IPC",
)
def peer_access_off(evidence: RunEvidence) -> Found | None:
    """Detect a run that is as slow as copies through host memory despite NVLink between all GPUs."""
    facts = _inside(evidence)
    if facts is None or not _within(facts["pcie_share"], _THROUGH_HOST):
        return None
    log = evidence.hint("refused") or evidence.hint("path", "SHM") or evidence.hint("setting", "NCCL_P2P_DISABLE")
    if log is None and evidence.hint("path", "P2P"):
        return None
    return Found(0.95 if log else 0.55, facts | _said(log), _ACCESS)


@reason(
    RunEvidence,
    "sockets-in-node",
    what="<log_text?GPUs of a node exchange data over sockets><!log_text?the rate fits sockets between the ranks of a "
    "node, or several processes on its GPUs>",
    evidence=f"{_OF_PCIE}{_LOG}",
    step="check whether every rank sees all GPUs of the node and the same /dev/shm, and whether its GPUs are its own",
)
def sockets_in_node(evidence: RunEvidence) -> Found | None:
    """Detect a run inside a node that is no faster than sockets."""
    facts = _inside(evidence)
    if facts is None or facts["rate"] > _AS_SOCKETS:
        return None
    log = evidence.hint("path", "NET/Socket")
    if log is None and evidence.hint("path"):
        return None
    return Found(0.9 if log else 0.4, facts | _said(log), nccl_debug(evidence))


@reason(
    RunEvidence,
    "pcie-instead-of-nvlink",
    what="<log_text?NCCL uses PCIe instead of NVLink><!log_text?the rate fits PCIe instead of NVLink: NVLinks may be "
    "inactive, the Fabric Manager may not run, or a container may lack the devices>",
    evidence=f"{_OF_PCIE} ({{pcie_rate:rate}}), where each GPU has {{port_rate:rate}} of NVLink{_LOG}",
    step="check that all NVLinks are active, that the Fabric Manager runs in the driver's version (on NVSwitch), and "
    "that the container or guest has the NVSwitch devices",
)
def pcie_instead_of_nvlink(evidence: RunEvidence) -> Found | None:
    """Detect a run with the rate of a PCIe link. The log may show that NCCL's path search did not find NVLink."""
    facts = _inside(evidence)
    if facts is None or not _within(facts["pcie_share"], _OVER_PCIE) or evidence.nccl_sees_nvlink:
        return None
    search = evidence.hint("search")
    return Found(0.95 if search else 0.6, facts | _said(search), _FABRIC)


@reason(
    RunEvidence,
    "part-of-nvlinks",
    what="the rate fits {part} of the NVLinks of each GPU, or of one GPU: the slowest one sets the pace",
    evidence="{rate:rate} is {share:.0%} of the normal {normal_rate:rate}, as {num_fitting} of {num_links} NVLinks "
    "carry; it is {pcie_ratio:.1f} times a PCIe link, so NVLink is in use",
    step="compare the number of active links and their errors over the GPUs",
)
def part_of_nvlinks(evidence: RunEvidence) -> Found | None:
    """Detect a rate between the rate of the PCIe link and the rate of all NVLinks together.

    If a topology shows that all NVLinks are active, this reason does not apply.
    """
    facts = _inside(evidence)
    links = evidence.machine.links
    if facts is None or links is None or links.nvlink_generation is None or links.nvlink_bytes_per_s is None:
        return None
    share = facts["share"]
    if facts["pcie_share"] <= _OVER_PCIE[1] or not _within(share, _PART):
        return None
    if any(_all_links_active(each) for each in _topologies(evidence)):
        return None
    num_links = round(links.nvlink_bytes_per_s / nvlink_bytes_per_s(links.nvlink_generation))
    half = _within(share, _HALF)
    fitting = max(1, round(share * num_links))
    facts |= {
        "part": "half" if half else f"about {fitting} of {num_links}",
        "num_fitting": fitting,
        "num_links": num_links,
        "pcie_ratio": facts["pcie_share"],
    }
    return Found(0.55 if half else 0.45, facts, _LINKS)


@reason(
    RunEvidence,
    "throttled-or-shared-gpus",
    what="GPUs may be throttled, or other processes may use them",
    evidence="{rate:rate} is {share:.0%} of the normal {normal_rate:rate}: a GPU at low clocks, or one with a second "
    "job, slows all ranks down<; in place and out of place differ by {placement_gap:.0%}, as with a busy memory>",
    step="while the test runs, compare clocks, throttle reasons and processes over the GPUs",
)
def throttled_or_shared_gpus(evidence: RunEvidence) -> Found | None:
    """Detect a rate above the rate of PCIe and below the normal rate.

    The log does not show clocks or other processes.
    """
    facts = _inside(evidence)
    if facts is None or facts["pcie_share"] <= _OVER_PCIE[1]:
        return None
    return Found(0.3, facts | {"placement_gap": _placement_gap(evidence)}, _BUSY)


@reason(
    RunEvidence,
    "falls-in-node",
    what="bandwidth collapses with size inside a node, as if memory runs out or the GPUs slow down",
    evidence="{peak_rate:rate} at {peak_bytes:bytes} falls to {last_rate:rate} at {last_bytes:bytes}, {share:.0%} of "
    "it; inside a node no packets are lost",
    step="while the largest size runs, check free memory (of the host, too, if it is shared), clocks and power",
)
def falls_in_node(evidence: RunEvidence) -> Found | None:
    """Detect a rate that collapses at large sizes, if no data cross NICs."""
    falls = fall(evidence)
    if falls is None or evidence.crosses_nics or evidence.num_nodes is None:
        return None
    facts = {
        "peak_rate": falls.peak_rate,
        "peak_bytes": falls.peak_bytes,
        "last_rate": falls.last_rate,
        "last_bytes": falls.last_bytes,
        "share": falls.last_rate / falls.peak_rate,
    }
    return Found(0.5, facts, _MEMORY)


@reason(
    RunEvidence,
    "nccl-older-than-gpu",
    what="NCCL is older than the GPU",
    evidence="NCCL {nccl}; {gpu} is supported from NCCL {first} on, and older versions do not know its links",
    step="measure again with a current NCCL",
)
def nccl_older_than_gpu(evidence: RunEvidence) -> Found | None:
    """Detect a low rate with an NCCL version that is too old to support the GPU's architecture."""
    log = evidence.hint("nccl")
    version = str((log.value if log else dict(evidence.run.settings).get("nccl")) or "")
    numbers = tuple(int(part) for part in version.split("+")[0].split(".") if part.isdecimal())
    name = evidence.machine.gpu
    if not numbers or name is None or (first := _FIRST_NCCL.get(gpu(name).architecture)) is None:
        return None
    if numbers >= first or shortfall(evidence) is None:
        return None
    return Found(0.7, {"nccl": version, "gpu": name, "first": ".".join(map(str, first))}, nccl_debug(evidence))


@reason(
    RunEvidence,
    "topology-odd",
    what="{problem}",
    evidence="{program} shows it (line {line}): {problem_evidence}; the slowest GPU sets the pace of all",
    step="{remedy}",
    always=True,
)
def topology_odd(evidence: RunEvidence) -> Found | None:
    """Detect a GPU with links that are down, slow or missing.

    The topology is in the log, or in a file that the user gave together with the log.
    """
    for topology in _topologies(evidence):
        wrong = [finding for finding in topology.findings(evidence.machine.instance) if finding.severity == "wrong"]
        if wrong:
            facts = {
                "problem": wrong[0].what,
                "problem_code": wrong[0].code,
                "problem_evidence": wrong[0].evidence,
                "program": topology.program,
                "line": topology.line,
                "remedy": wrong[0].remedy,
            }
            return Found(0.95, facts, _LINKS)
    return None


@reason(
    RunEvidence,
    "far-nics",
    what="no NIC is close to {gpus:list}",
    evidence="{program} shows {kind} to the closest NIC (line {line}); by default NCCL lets a NIC read GPU memory up "
    "to PXB, so data go through host memory",
    step="use NICs on the GPU's own PCIe switch if there are any (NCCL_IB_HCA); else see whether the log names GDRDMA",
)
def far_nics(evidence: RunEvidence) -> Found | None:
    """Detect GPUs without a NIC on their PCIe switch, if a run across nodes is slow or cannot be judged."""
    if not evidence.crosses_nics or evidence.uses_gpudirect or assess(evidence).verdict not in _NOT_NORMAL:
        return None
    for topology in _topologies(evidence):
        near = near_adapters(topology.inventory)
        far = {gpu_name: kind for gpu_name, (kind, _) in near.items() if kind in _FAR}
        if far:
            kind = next(iter(far.values()))
            gpus = [gpu_name for gpu_name, own in far.items() if own == kind]
            facts = {"gpus": gpus, "kind": kind, "program": topology.program, "line": topology.line}
            return Found(0.6, facts, nccl_debug(evidence))
    return None


@reason(
    RunEvidence,
    "nccl-not-shown",
    what="the log does not show which links NCCL uses",
    evidence="{rate:rate} is {share:.0%} of the normal {normal_rate:rate}, and no line of NCCL names a path, a network "
    "or a setting",
    step="run again with NCCL's own log, which names them, and give that log to explain",
    fallback=True,
)
def nccl_not_shown(evidence: RunEvidence) -> Found | None:
    """Detect a low figure whose log has no NCCL output."""
    short = shortfall(evidence)
    shown = any(evidence.hint(kind) for kind in ("path", "search", "channels", "network"))
    if short is None or shown:
        return None
    return Found(0.2, _facts(short), nccl_debug(evidence))


@reason(
    RunEvidence,
    "slow-part-unknown",
    what="the figures do not show which part is slow",
    evidence="{rate:rate} is {share:.0%} of the normal {normal_rate:rate} over all ranks together",
    step="<inside?measure each pair of GPUs, to see whether one GPU or link is slow or all are><!inside?measure each "
    "node alone, then the nodes in pairs, to see whether one node or NIC is slow or all are>",
    host_memory=True,
    fallback=True,
)
def slow_part_unknown(evidence: RunEvidence) -> Found | None:
    """Propose what to measure next if the figure is low."""
    short = shortfall(evidence)
    if short is None:
        return None
    inside = not evidence.crosses_nics
    command = "nvbandwidth -t device_to_device_memcpy_read_ce 2>&1 | linkbench explain -"
    if not inside:
        command = "linkbench run scenarios/links.yaml && linkbench diagnose latest"
    return Found(0.1, _facts(short) | {"inside": inside}, command)


def _topologies(evidence: RunEvidence) -> list[Topology]:
    return [hint.topology for hint in evidence.hints if isinstance(hint, TopologyHint)]


def _all_links_active(topology: Topology) -> bool:
    """Check whether the text shows active links of several GPUs and no inactive link."""
    gpus = topology.inventory.gpus
    shown = len(gpus) > 1 and all(each.nvlinks for each in gpus)
    return shown and all(link.active for each in gpus for link in each.nvlinks) and not topology.findings()


def _inside(evidence: RunEvidence) -> dict[str, Any] | None:
    """Return the facts of a low figure, if the run stays inside a node with fast links between all GPUs.

    Return None for other runs.
    """
    links = evidence.machine.links
    if links is None or links.peer not in _PEERS or evidence.crosses_nics or (evidence.num_ranks or 0) < 2:
        return None
    short, pcie = shortfall(evidence), links.pcie_bytes_per_s
    if short is None or pcie is None:
        return None
    return _facts(short) | {
        "pcie_rate": pcie,
        "pcie_share": short.rate / pcie,
        "port_rate": links.nvlink_bytes_per_s,
    }


def _facts(short: Shortfall) -> dict[str, Any]:
    return {"rate": short.rate, "share": short.share, "normal_rate": short.normal}


def _said(hint: Hint | None) -> dict[str, Any]:
    """Return facts with the text and the line number of a hint in the log; {} without a hint."""
    return {} if hint is None else {"log_text": hint.value, "line": hint.line}


def _within(share: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= share <= limits[1]


def _placement_gap(evidence: RunEvidence) -> float | None:
    """Return `1 - slower / faster` for the in-place and the out-of-place rate at the largest size.

    Return None if the difference is below 10 %.
    """
    rates = [row.busbw_bytes_per_s or 0.0 for row in evidence.rows if row.payload_bytes == evidence.largest_bytes]
    if len(rates) < 2 or not min(rates) or min(rates) > 0.9 * max(rates):
        return None
    return 1 - min(rates) / max(rates)
