"""Why a collective over several nodes is as fast as it is: rules about the network between them."""

from __future__ import annotations

from bench.core.units import format_bytes, format_rate
from bench.explain.evidence import NIC_RATES, RunEvidence
from bench.explain.like_sizes import all_beside
from bench.explain.reason import TOPOLOGY, Reason, listen


def sockets(seen: RunEvidence) -> Reason | None:
    """TCP in the place of the fast network."""
    network = seen.network_bytes_per_s
    if not seen.over_nics or seen.best is None:
        return None
    other = seen.hint("path", "NET/") and not seen.hint("path", "NET/Socket")
    said = seen.hint("network", "Socket") or seen.hint("path", "NET/Socket")
    rate = seen.carried_bytes_per_s
    carried = f"{format_rate(rate)} leave each node"
    beside = f", of the {format_rate(network)} of its NICs" if network else ""
    step = "let NCCL load the plug-in of the fast network (aws-ofi-nccl, GPUDirect-TCPX/O, InfiniBand verbs)"
    if said and not other:
        where = f'the log says "{said.value}" (line {said.line})'
        return Reason("the network is TCP sockets", f"{where}; {carried}{beside}", 0.95, step, listen(seen))
    heard = seen.hint("network") or other
    if network and rate and rate < 0.12 * network and rate < 8e9 and not heard:
        like = f"{carried}{beside}: {rate / network:.0%}, as TCP sockets reach, and the log does not say which network"
        return Reason("the network may be TCP sockets", like, 0.7, "see which network NCCL takes", listen(seen))
    return None


def fewer_nics(seen: RunEvidence) -> Reason | None:
    """A flat curve at the rate of one NIC (or some) of many."""
    rate, network, flat = seen.carried_bytes_per_s, seen.network_bytes_per_s, seen.flat_from
    if not seen.over_nics or rate is None or flat is None:
        return None
    links = seen.machine.links
    exact = seen.machine.instance is not None and links is not None and links.nic_bytes_per_s is not None
    most = max(1, (links.num_nics or 1) // 2 if links else 1)
    if network is None or rate > 0.72 * network or seen.nics_heard > most:
        return None
    used = _whole_nics(
        rate, _own_rates(seen) if exact else {nic: f"one {nic * 8e-9:.0f} Gb/s NIC" for nic in NIC_RATES}
    )
    if used is None:
        return None
    capacity, name = used
    ring = " (round a ring, as NCCL sends this)" if seen.by_ring else ""
    evidence = (
        f"flat from {format_bytes(flat)} on, with {format_rate(rate)} leaving each node each way{ring}: "
        f"{rate / capacity:.0%} of {name} ({format_rate(capacity)}), which is full, where a node "
        f"{'has' if exact else 'of this kind has'} {format_rate(network)}"
    )
    if seen.nics_heard:
        evidence += f"; the channels name {seen.nics_heard} NIC{'s' if seen.nics_heard > 1 else ''}"
    heard = seen.hint("nics")
    if heard:
        evidence += f'; the log names the NICs it uses: "{heard.value[:80]}" (line {heard.line})'
    step = "see which NICs NCCL finds on a node, and whether each GPU has one near it"
    return Reason(f"a node uses {name}", evidence, 0.85, step, listen(seen))


def _own_rates(seen: RunEvidence) -> dict[float, str]:
    """What 1, 2, 4, ... of a known machine's NICs carry."""
    links = seen.machine.links
    assert links is not None and links.nic_bytes_per_s is not None
    nic, num = links.nic_bytes_per_s, links.num_nics or 1
    counts = [count for count in (1, 2, 4, 8, 16) if count < num]
    return {nic * count: f"{count} of {num} NICs" if count > 1 else f"one of {num} NICs" for count in counts}


def _whole_nics(rate: float, known: dict[float, str]) -> tuple[float, str] | None:
    """The rate of whole NICs that this is 85 to 101 % of."""
    fitting = [(capacity, name) for capacity, name in known.items() if 0.85 <= rate / capacity <= 1.01]
    return fitting[0] if fitting else None


def no_rdma(seen: RunEvidence) -> Reason | None:
    """NICs that may not read GPU memory, or are far from their GPU."""
    if not seen.over_nics or seen.best is None:
        return None
    alike = all_beside(seen)
    ratio = alike[0].ratio if alike and seen.nics_known and not seen.too_short else None
    said = seen.hint("no_rdma")
    far = seen.hint("path", "NET/") and not any(h.kind == "path" and "GDRDMA" in h.value for h in seen.hints)
    step = "see which NIC is near which GPU (PIX or PXB), and whether the peer memory driver is loaded"
    if said or far:
        words = said or seen.hint("path", "NET/")
        assert words is not None
        text = f'the log says "{words.value}" (line {words.line}): every byte goes through host memory'
        if (seen.machine.instance or "").startswith("p3dn."):
            text += "; so it is on p3dn, whose EFA has no GPU Direct RDMA: no driver changes that"
            return Reason("the NICs do not read GPU memory (no GPU Direct RDMA)", text, 0.85)
        return Reason("the NICs do not read GPU memory (no GPU Direct RDMA)", text, 0.85, step, TOPOLOGY)
    if ratio is None or not 0.35 <= ratio <= 0.68 or seen.hint("path", "NET/"):
        return None
    evidence = (
        f"{ratio:.0%} of what others reached at {format_bytes(alike[0].size_bytes)}; NICs paired with GPUs of another "
        "PCIe root or NUMA node gave 45 to 53 % of the aligned rate (kubernetes-sigs/dranet, 2026-08-21)"
    )
    return Reason("NICs and GPUs may be paired across PCIe roots", evidence, 0.5, step, TOPOLOGY)


def old_software(seen: RunEvidence) -> Reason | None:
    """A library of years ago, where a later one was much faster."""
    heard = seen.hint("nccl")
    version = heard.value if heard else dict(seen.run.settings).get("nccl")
    numbers = tuple(int(part) for part in str(version or "").split("+")[0].split(".") if part.isdecimal())
    if not numbers or numbers >= (2, 14) or seen.best is None or not seen.over_nics:
        return None
    newer = [pair for pair in all_beside(seen) if pair.theirs > 1.3 * pair.ours]
    if not newer or not seen.nics_known:
        return None
    pair = newer[0]
    one, there = pair.each, f"{format_rate(pair.theirs)} at {format_bytes(pair.size_bytes)}"
    evidence = (
        f"NCCL {version}, while {there} was reached on {one.instance or one.gpu}, whose links are alike ({one.source})"
    )
    step = "measure again with a current NCCL and network plug-in"
    return Reason("old software", evidence, 0.75, step, listen(seen))
