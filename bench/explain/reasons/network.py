"""Find reasons why a collective across nodes is slow: the network, its NICs, and how NCCL uses them."""

from __future__ import annotations

from typing import Any

from bench.core.wrapping import quoted
from bench.explain.evidence import NIC_RATES, RunEvidence
from bench.explain.reason import Found, reason
from bench.explain.reasons._commands import TOPOLOGY, nccl_debug
from bench.explain.shortfall import between_nodes, fall
from bench.explain.size_matches import size_matches

_LOG = 'the log says "{log_text}" (line {line})'
_NIC_LAYOUT = "check which NIC is near which GPU (PIX or PXB), and whether the peer memory driver is loaded"
_COUNTERS = (
    "ethtool -S <interface> | grep -iE 'discard|drop|pause|ecn|cnp|out_of_seq|retrans'; rdma statistic show; "
    "show_gids; ibv_devinfo | grep -E 'hca_id|active_mtu|link_layer'"
)
_FILLED = 0.72  # from this share of their rate on, NICs count as fully used
_NO_EFA_RDMA = "p3dn."  # instance types whose EFA has no GPUDirect RDMA


@reason(
    RunEvidence,
    "tcp-sockets",
    what="the network is TCP sockets",
    evidence=f"{_LOG}<; {{nic_rate:rate}} leave each node><, out of {{network_rate:rate}} of NICs>",
    step="let NCCL load the plug-in of the fast network (aws-ofi-nccl, GPUDirect-TCPX/O, InfiniBand verbs)",
)
def tcp_sockets(evidence: RunEvidence) -> Found | None:
    """Detect that the log names sockets as the network."""
    log = evidence.hint("network", "Socket") or evidence.hint("path", "NET/Socket")
    if not evidence.crosses_nics or evidence.best is None or log is None or _other_network(evidence):
        return None
    facts = {
        "log_text": log.value,
        "line": log.line,
        "nic_rate": evidence.nic_bytes_per_s,
        "network_rate": evidence.network_bytes_per_s,
    }
    return Found(0.95, facts, nccl_debug(evidence))


@reason(
    RunEvidence,
    "maybe-tcp-sockets",
    what="the network may be TCP sockets",
    evidence="{nic_rate:rate} leave each node, out of {network_rate:rate} of NICs: {share:.0%}, as over TCP sockets; "
    "the log does not name the network",
    step="check which network NCCL uses",
)
def maybe_tcp_sockets(evidence: RunEvidence) -> Found | None:
    """Detect a run that is as slow as sockets, if the log does not name the network."""
    rate, network = evidence.nic_bytes_per_s, evidence.used_nics_bytes_per_s
    if not evidence.crosses_nics or not rate or not network or evidence.hint("network"):
        return None
    if evidence.hint("path", "NET/") or rate >= 0.12 * network or rate >= 8e9:
        return None
    facts = {"nic_rate": rate, "network_rate": network, "share": rate / network}
    return Found(0.7, facts, nccl_debug(evidence))


@reason(
    RunEvidence,
    "fewer-nics",
    what="a node uses {nics}",
    evidence="flat from {flat_from_bytes:bytes} on, with {nic_rate:rate} leaving each node each way"
    "<ring? (round a ring, as NCCL sends this)>: {share:.0%} of {nics} ({nics_rate:rate}), which is full, where a node "
    "<exact?has><!exact?of this kind has> {network_rate:rate}<; the channels name {num_nics_in_log:n NIC}>"
    '<; the log lists the NICs it uses: "{log_text}" (line {line})>',
    step="check which NICs NCCL finds on a node, and whether each GPU has one near it",
)
def fewer_nics(evidence: RunEvidence) -> Found | None:
    """Detect a curve that is flat at the rate of one NIC or a few NICs, although a node has more NICs."""
    rate, network, flat = evidence.nic_bytes_per_s, evidence.network_bytes_per_s, evidence.flat_from_bytes
    used = evidence.used_nics_bytes_per_s
    if not evidence.crosses_nics or rate is None or network is None or used is None or flat is None:
        return None
    if (evidence.nics_fill or 0.0) > _FILLED:  # the run fully uses the NICs of its own GPUs
        return None
    links = evidence.machine.links
    exact = evidence.machine.instance is not None and links is not None and links.nic_bytes_per_s is not None
    most_in_log = max(1, (links.num_nics or 1) // 2) if links else 1
    if rate > _FILLED * used or evidence.num_nics_in_log > most_in_log:
        return None
    names = _own_nics(evidence, used) if exact else {nic: f"one {nic * 8e-9:.0f} Gb/s NIC" for nic in NIC_RATES}
    # How fast data leave a node depends on the algorithm: at least at `rate`, and faster with a ring.
    round_a_ring = (evidence.nics_fill or 0.0) * used
    fitting = [(way, full) for way in (rate, round_a_ring) for full in names if 0.85 <= way / full <= 1.01]
    if not fitting:
        return None
    rate, full = fitting[0]
    facts: dict[str, Any] = {
        "nics": names[full],
        "nics_rate": full,
        "flat_from_bytes": flat,
        "nic_rate": rate,
        "ring": evidence.by_ring or rate == round_a_ring,
        "share": rate / full,
        "exact": exact,
        "network_rate": network,
        "num_nics_in_log": evidence.num_nics_in_log or None,
    }
    if log := evidence.hint("nics"):
        facts |= {"log_text": quoted(log.value, 80), "line": log.line}
    return Found(0.85, facts, nccl_debug(evidence))


@reason(
    RunEvidence,
    "no-gpudirect",
    what="the NICs cannot read GPU memory (no GPUDirect RDMA)",
    evidence=f"{_LOG}: every byte goes through host memory<; {{instance}} always does this, because its EFA has no "
    "GPUDirect RDMA>",
    step=f"<fixable?{_NIC_LAYOUT}>",
)
def no_gpudirect(evidence: RunEvidence) -> Found | None:
    """Detect a log which says that no channel uses GPUDirect RDMA."""
    if not evidence.crosses_nics or evidence.best is None:
        return None
    log = evidence.hint("no_rdma")
    if log is None and not evidence.uses_gpudirect:
        log = evidence.hint("path", "NET/")
    if log is None:
        return None
    facts: dict[str, Any] = {"log_text": log.value, "line": log.line}
    if (evidence.machine.instance or "").startswith(_NO_EFA_RDMA):
        return Found(0.85, facts | {"instance": evidence.machine.instance, "fixable": False})
    return Found(0.85, facts | {"fixable": True}, TOPOLOGY)


@reason(
    RunEvidence,
    "crossed-nics",
    what="NICs and GPUs may be paired across PCIe roots",
    evidence="{ratio:.0%} of what others reached at {size_bytes:bytes}; NICs paired with GPUs of another PCIe root or "
    "NUMA node gave 45 to 53 % of the aligned rate (kubernetes-sigs/dranet, 2026-08-21)",
    step=_NIC_LAYOUT,
)
def crossed_nics(evidence: RunEvidence) -> Found | None:
    """Detect a run that reaches about half of a published rate, if the log says nothing about the NICs."""
    if not evidence.crosses_nics or evidence.best is None or not evidence.nics_known or evidence.too_short:
        return None
    if evidence.hint("no_rdma") or evidence.hint("path", "NET/"):
        return None
    matches = size_matches(evidence)
    if not matches or not 0.35 <= matches[0].ratio <= 0.68:
        return None
    return Found(0.5, {"ratio": matches[0].ratio, "size_bytes": matches[0].size_bytes}, TOPOLOGY)


@reason(
    RunEvidence,
    "loss-or-congestion",
    what="bandwidth collapses with size between nodes, as with packet loss or congestion<roce? (RoCE: PFC, ECN, MTU)>",
    evidence="{peak_rate:rate} at {peak_bytes:bytes} falls to {last_rate:rate} at {last_bytes:bytes}, "
    "{share:.0%} of it: larger messages keep more data in flight, and a network without flow control drops it"
    "<; the log names the network {network}>",
    step="compare drops, pauses and retransmissions before and after a run at a large size on both hosts, and the MTU "
    "of NICs and switches",
    always=True,
)
def loss_or_congestion(evidence: RunEvidence) -> Found | None:
    """Detect a rate that collapses at large sizes, if data cross NICs."""
    falls = fall(evidence)
    if falls is None or not between_nodes(evidence):
        return None
    network = evidence.hint("network")
    facts = {
        "peak_rate": falls.peak_rate,
        "peak_bytes": falls.peak_bytes,
        "last_rate": falls.last_rate,
        "last_bytes": falls.last_bytes,
        "share": falls.last_rate / falls.peak_rate,
        "network": network.value if network else None,
        "roce": _may_be_roce(evidence),
    }
    return Found(0.8, facts, _COUNTERS)


@reason(
    RunEvidence,
    "old-nccl",
    what="old software",
    evidence="NCCL {nccl}; {reference_rate:rate} at {size_bytes:bytes} was reached on {reference_machine}, which has "
    "comparable links ({source})",
    step="measure again with a current NCCL and network plug-in",
)
def old_nccl(evidence: RunEvidence) -> Found | None:
    """Detect a library that is years old, if a newer version was much faster."""
    log = evidence.hint("nccl")
    version = str((log.value if log else dict(evidence.run.settings).get("nccl")) or "")
    numbers = tuple(int(part) for part in version.split("+")[0].split(".") if part.isdecimal())
    if not numbers or numbers >= (2, 14) or not evidence.crosses_nics or not evidence.nics_known:
        return None
    for match in size_matches(evidence):
        if match.theirs > 1.3 * match.ours:
            facts = {
                "nccl": version,
                "reference_rate": match.theirs,
                "size_bytes": match.size_bytes,
                "reference_machine": match.reference.instance or match.reference.gpu,
                "source": match.reference.source,
            }
            return Found(0.75, facts, nccl_debug(evidence))
    return None


def _may_be_roce(evidence: RunEvidence) -> bool:
    """Check whether the network may be RoCE.

    If the log or the machine names EFA, InfiniBand or sockets, the network is not RoCE.
    """
    network = evidence.hint("network")
    kind = evidence.machine.links.nic_kind if evidence.machine.links is not None else ""
    if network is not None and network.value not in ("IB", "RoCE"):
        return False
    return not kind or kind.startswith("roce")


def _other_network(evidence: RunEvidence) -> bool:
    """Check whether some channel uses a network, and no channel uses sockets."""
    return evidence.hint("path", "NET/") is not None and evidence.hint("path", "NET/Socket") is None


def _own_nics(evidence: RunEvidence, used: float) -> dict[float, str]:
    """Return the total rate of 1, 2, 4 or more NICs of a known machine, each rate with a text.

    Only rates below the total rate of the NICs that this run may use are included.
    """
    links = evidence.machine.links
    assert links is not None and links.nic_bytes_per_s is not None
    total = links.num_nics or 1
    names = {}
    for count in (1, 2, 4, 8, 16):
        if count < total and links.nic_bytes_per_s * count < used:
            some = "one" if count == 1 else str(count)
            names[links.nic_bytes_per_s * count] = f"{some} of {total} NICs"
    return names
