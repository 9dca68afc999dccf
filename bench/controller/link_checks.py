"""Judge the links between hosts. Pure functions turn the hosts' reports into links and findings.

A link is one direction of the path between two hosts, to one address of the receiver. Each host reports what it sent
and what arrived (probes/links.py). A failed connection alone does not show in which direction packets are lost. Only
the reports of both hosts together show the direction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bench.controller.host_checks import PreflightFinding, named_hosts
from bench.controller.messages import FindingCode, LinkCode
from bench.probes.links import NUM_BYTES, Arrival, LinkReport, PeerCall
from bench.probes.netlink import Device

# Kinds of addresses: the address of the host's name, of a NIC that the run names, or of another device.
BY_NAME, BY_NIC, BY_OTHER = "name", "nic", "other"
_MOST_NAMED = 4
_CLOCK_S = 1.0
_MIN_OVERLAP_S = 2.0  # if two hosts tested at the same time for less than this, missing packets prove nothing
_OPEN = "open the ports above 1023 between the hosts in both directions (cables, routes, firewall)"
_REPAIR = "check routes, switches and firewalls in this direction"
_JOIN = "check routes, switches and firewalls between the two groups"


class LinkState(StrEnum):
    """Whether packets pass a link."""

    OK = "ok"
    LOST = "lost"  # no packet arrives
    REPLY_LOST = "reply-lost"  # packets arrive, but none comes back
    FILTERED = "filtered"  # packets pass both ways, but new connections fail
    REFUSED = "refused"  # something at that address refuses the connection
    OTHER_HOST = "other-host"  # another host has this address
    STALLED = "stalled"  # short messages arrive, but not the test's message of 64 KiB
    UNTESTED = "untested"  # the hosts did not test at the same time


@dataclass(frozen=True, slots=True)
class Link:
    """The link from host `a` to the address `address` of host `b`. `source`: the sender's address.

    `back`: whether packets from host `b` reach the address `source`, or None if this is unknown.
    `mtu`: the smaller MTU of the sender's and the receiver's network devices, in bytes.
    `largest`: the size of the largest packet that arrived, in bytes.
    `lost`: the size in bytes of the smallest lost packet that is larger than `largest` and fits into `mtu`.
    """

    a: str
    b: str
    address: str
    port: int
    kind: str
    state: LinkState
    source: str | None = None
    back: bool | None = None
    why: str | None = None
    answered_by: str | None = None
    received_bytes: int = 0
    mtu: int | None = None
    largest: int | None = None
    lost: int | None = None
    clock_offset_s: float | None = None
    round_trip_s: float | None = None

    @property
    def fails(self) -> bool:
        """Whether no connection can be made over this link."""
        return self.state not in (LinkState.OK, LinkState.STALLED, LinkState.UNTESTED)


Windows = Mapping[str, tuple[float, float]]  # when each host began and ended its test, by the controller's clock
_Failed = dict[tuple[str, str], Link]


def links(reports: Mapping[str, LinkReport], windows: Windows | None = None) -> list[Link]:
    """Return the state of each link that the hosts of one round tested.

    A link is omitted if its receiver sent no report.
    """
    arrivals = {host: {(x.host, x.address): x for x in report.arrivals} for host, report in reports.items()}
    calls = {host: {(x.host, x.address): x for x in report.calls} for host, report in reports.items()}
    own = {host: set(addresses_of(report.devices)) for host, report in reports.items()}
    half_open = {host: set(report.half_open) for host, report in reports.items()}

    def arrives(a: str, b: str, address: str | None) -> bool | None:
        """Check whether any packet from host a reaches this address of host b.

        If `address` is None, packets to any address of host b count. Returns None if host a did not try to reach b.
        """
        tried = [call for call in calls[a].values() if call.host == b and address in (call.address, None)]
        if not tried:
            return None
        return bool(own[a] & half_open[b]) or any(call.answered or (a, call.address) in arrivals[b] for call in tried)

    found = []
    for a, report in reports.items():
        for call in report.calls:
            if call.host in reports:
                arrival = arrivals[call.host].get((a, call.address))
                there, back = arrives(a, call.host, call.address), arrives(call.host, a, call.source)
                late = windows is not None and not _overlap(windows, a, call.host)
                found.append(_link(a, call, arrival, bool(there), back, late, reports[call.host].devices))
    return found


def _link(
    a: str,
    call: PeerCall,
    arrival: Arrival | None,
    there: bool,
    back: bool | None,
    late: bool,
    devices: Sequence[Device],
) -> Link:
    received = arrival.received_bytes if arrival is not None else 0
    state = LinkState.OK if received >= NUM_BYTES else LinkState.STALLED
    if call.error is not None:
        if call.answered_by is not None:
            state = LinkState.OTHER_HOST
        elif call.answered:
            state = LinkState.REFUSED
        elif late:
            state = LinkState.UNTESTED
        elif not there:
            state = LinkState.LOST
        else:
            state = LinkState.REPLY_LOST if back is False else LinkState.FILTERED
    elif late and state == LinkState.STALLED:
        state = LinkState.UNTESTED
    mtu, largest, lost = _packets(call, arrival, devices)
    return Link(
        a=a,
        b=call.host,
        address=call.address,
        port=call.port,
        kind=call.kind,
        state=state,
        source=call.source,
        back=back,
        why=call.error,
        answered_by=call.answered_by,
        received_bytes=received,
        mtu=mtu,
        largest=largest,
        lost=lost,
        clock_offset_s=call.clock_offset_s,
        round_trip_s=call.round_trip_s,
    )


def _packets(
    call: PeerCall, arrival: Arrival | None, devices: Sequence[Device]
) -> tuple[int | None, int | None, int | None]:
    """Return the smaller MTU of the two devices, and the sizes of two packets, in bytes.

    The first packet is the largest packet that arrived. The second packet is the smallest packet above this size that
    did not arrive. None means unknown.

    If no packet arrived at all, the MTU and both sizes are unknown, because a firewall may drop UDP.
    """
    if arrival is None or not arrival.sizes or call.mtu is None:
        return None, None, None
    there = [device.mtu for device in devices if call.address in addresses_of([device])]
    mtu, largest = min([call.mtu, *there]), max(arrival.sizes)
    return mtu, largest, min((size for size in call.sizes if largest < size <= mtu), default=None)


def _overlap(windows: Windows, a: str, b: str) -> bool:
    if a not in windows or b not in windows:
        return True
    return min(windows[a][1], windows[b][1]) - max(windows[a][0], windows[b][0]) >= _MIN_OVERLAP_S


def addresses_of(devices: Iterable[Device]) -> Iterator[str]:
    """Yield the addresses of these devices without prefix lengths."""
    for device in devices:
        for address in device.addresses:
            yield address.partition("/")[0]


# -- findings


def findings(
    tested: Sequence[Link], reports: Mapping[str, LinkReport], silent: Mapping[str, str]
) -> list[PreflightFinding]:
    """Return the findings about links and clocks.

    The findings are sorted by subject, in this order: hosts that could not test their links, addresses, whole hosts,
    pairs of hosts, packet sizes, MTUs and clocks.

    `silent`: for each host that could not test its links, the reason.
    """
    found = [PreflightFinding.of(FindingCode.NOT_TRIED, (host,), why=why) for host, why in silent.items()]
    doubtful = [link for link in tested if link.fails]
    twice = list(duplicates(tested, reports))
    known = {finding.facts["address"] for finding in twice}
    doubtful = [link for link in doubtful if link.address not in known and link.source not in known]
    works = {(link.a, link.b) for link in tested if link.kind == BY_NAME and not link.fails}
    failed: _Failed = {}
    other = []
    for link in doubtful:
        if link.state == LinkState.OTHER_HOST and link.kind == BY_NAME:
            facts: dict[str, Any] = {"a": link.a, "b": link.b, "address": link.address, "other": link.answered_by}
            found.append(PreflightFinding.of(LinkCode.OTHER_HOST_ANSWERS, (link.a,), **facts))
        elif link.kind == BY_NIC or (link.kind == BY_NAME and (link.a, link.b) not in works):
            failed.setdefault((link.a, link.b), link)
        else:
            other.append(link)
    pairs_tried = {(link.a, link.b) for link in tested if link.state != LinkState.UNTESTED}
    cut, rest = _whole_hosts(failed, pairs_tried)
    parts, rest = _partition(rest, pairs_tried)
    secondary = _pairs({(link.a, link.b): link for link in other}, refuses=False)
    return [
        *found,
        *twice,
        *cut,
        *parts,
        *_pairs(rest),
        *secondary,
        *_sizes(tested),
        *_mtus(tested, reports),
        *_clocks(tested),
    ]


def duplicates(tested: Sequence[Link], reports: Mapping[str, LinkReport]) -> Iterator[PreflightFinding]:
    """Yield a finding for each address that two machines use at the same time.

    One of the two machines may be a machine outside the cluster.
    """
    owners: dict[str, list[str]] = {}
    macs = {host: macs_of(report) for host, report in reports.items()}
    for host, report in reports.items():
        for address in {*addresses_of(report.devices), *(x for device in report.devices for x in device.duplicates)}:
            owners.setdefault(address, []).append(host)
    named = []
    for address in dict.fromkeys(x for link in tested for x in (link.address, link.source) if x is not None):
        hosts = owners.get(address, [])
        if len(hosts) > 1 and len(set.union(*(macs[host] for host in hosts))) == sum(len(macs[h]) for h in hosts):
            mac = [_mac_of(reports[host], address) for host in hosts]
            named.append(address)
            yield PreflightFinding.of(
                LinkCode.DUPLICATE_ADDRESS, hosts, named=named_hosts(hosts), address=address, macs=mac
            )
    # MAC address -> addresses that any host reaches by this MAC (several if it is a router's)
    seen: dict[str, set[str]] = {}
    for report in reports.values():
        for neighbour, mac_used in report.neighbours.items():
            seen.setdefault(mac_used, set()).add(neighbour)
    for link in tested:
        mac_found = reports[link.a].neighbours.get(link.address)
        strange = mac_found is not None and macs[link.b] and mac_found not in set.union(*macs.values())
        if link.fails and link.address not in named and mac_found is not None and strange and len(seen[mac_found]) == 1:
            named.append(link.address)
            facts: dict[str, Any] = {"a": link.a, "b": link.b, "address": link.address}
            facts |= {"mac": mac_found, "own": sorted(macs[link.b])}
            yield PreflightFinding.of(LinkCode.ADDRESS_TAKEN, (link.b,), **facts)


def macs_of(report: LinkReport) -> set[str]:
    """Return the MAC addresses of a host's devices."""
    return {device.mac for device in report.devices if device.mac}


def _mac_of(report: LinkReport, address: str) -> str | None:
    return next((x.mac for x in report.devices if address in (*addresses_of([x]), *x.duplicates)), None)


def _whole_hosts(failed: _Failed, tried: set[tuple[str, str]]) -> tuple[list[PreflightFinding], _Failed]:
    """Return findings about hosts that no other host reaches or that reach no other host.

    Also return the failed links that these findings do not explain.
    """
    found: list[PreflightFinding] = []
    explained: set[tuple[str, str]] = set()
    num_out, num_in = Counter(a for a, _ in tried), Counter(b for _, b in tried)
    for host in sorted({host for pair in failed for host in pair}):
        inward = [failed[pair] for pair in failed if pair[1] == host]
        outward = [failed[pair] for pair in failed if pair[0] == host]
        no_way_in = 1 < num_in[host] == len(inward)
        no_way_out = 1 < num_out[host] == len(outward)
        if no_way_in:
            explained |= {(link.a, link.b) for link in inward}
        if no_way_out:
            explained |= {(link.a, link.b) for link in outward}
        if no_way_in or no_way_out:
            first = (inward if no_way_in else outward)[0]
            code = _code_of_host(inward, outward, no_way_in, no_way_out)
            remedy = _REPAIR if code in (LinkCode.HOST_UNHEARD, LinkCode.HOST_HEARS_NOTHING) else _OPEN
            found.append(PreflightFinding.of(code, (host,), **_facts(first), remedy=remedy))
    return found, {pair: link for pair, link in failed.items() if pair not in explained}


def _code_of_host(inward: Sequence[Link], outward: Sequence[Link], no_way_in: bool, no_way_out: bool) -> LinkCode:
    if no_way_in and no_way_out:
        if all(link.state == LinkState.LOST and link.back for link in outward):
            return LinkCode.HOST_UNHEARD
        if all(link.state == LinkState.LOST and link.back for link in inward):
            return LinkCode.HOST_HEARS_NOTHING
    return LinkCode.NOBODY_CONNECTS if no_way_in else LinkCode.CONNECTS_TO_NOBODY


def _partition(failed: _Failed, tried: set[tuple[str, str]]) -> tuple[list[PreflightFinding], _Failed]:
    """Return a finding if the hosts form two groups without any working link between them.

    Also return the failed links that this finding does not explain.
    """
    group: dict[str, set[str]] = {host: {host} for pair in tried for host in pair}
    for a, b in tried:
        if (a, b) not in failed and group[a] is not group[b]:
            group[a] |= group[b]
            for host in group[b]:
                group[host] = group[a]
    groups = sorted({tuple(sorted(hosts)) for hosts in group.values()})
    if (
        not failed
        or len(groups) != 2
        or min(map(len, groups)) < 2
        or any(link.state != LinkState.LOST for link in failed.values())
    ):
        return [], failed
    first, second = groups
    facts = _facts(next(iter(failed.values())))
    facts |= {"first": named_hosts(first), "second": named_hosts(second), "groups": [list(first), list(second)]}
    return [PreflightFinding.of(LinkCode.PARTITION, (*first, *second), **facts, remedy=_JOIN)], {}


def _facts(link: Link) -> dict[str, Any]:
    return {"why": link.why, "address": link.address, "port": link.port}


def _pairs(failed: _Failed, refuses: bool = True) -> list[PreflightFinding]:
    """Return a finding for each pair of hosts that cannot connect.

    If packets are lost in only one direction, the finding names this direction. At most _MOST_NAMED pairs have a
    finding. One more finding states the number of pairs that have no finding of their own.
    """
    found = []
    done: set[frozenset[str]] = set()
    for (a, b), link in sorted(failed.items(), key=lambda item: item[1].state != LinkState.LOST):
        if frozenset((a, b)) in done:
            continue
        facts = {"a": a, "b": b, **_facts(link), "remedy": _REPAIR}
        if link.state == LinkState.LOST and link.back:
            done.add(frozenset((a, b)))
            found.append(PreflightFinding.of(LinkCode.ONE_WAY, (a, b), refuses, **facts))
        elif link.state == LinkState.REPLY_LOST and link.source is not None:  # b did not try to connect
            done.add(frozenset((a, b)))
            facts |= {"a": b, "b": a, "address": link.source}
            found.append(PreflightFinding.of(LinkCode.ONE_WAY, (b, a), refuses, **facts))
        elif (b, a) not in failed:
            found.append(PreflightFinding.of(LinkCode.NOT_CONNECTED, (a, b), refuses, **facts | {"remedy": _OPEN}))
        else:
            done.add(frozenset((a, b)))
            a, b = sorted((a, b))
            facts = {"a": a, "b": b, **_facts(failed[a, b]), "remedy": _OPEN}
            found.append(PreflightFinding.of(LinkCode.NEITHER_CONNECTED, (a, b), refuses, **facts))
    found.sort(key=lambda finding: finding.hosts)
    more = len(found) - _MOST_NAMED
    if more > 0:
        return [*found[:_MOST_NAMED], PreflightFinding.of(LinkCode.MORE_PAIRS, (), refuses, num=more)]
    return found


def _sizes(tested: Sequence[Link]) -> list[PreflightFinding]:
    """Return findings about links that lose large packets.

    A finding of this function prevents a run if the test's message of 64 KiB did not arrive completely.
    """
    small: _Failed = {}
    for link in tested:
        if link.kind != BY_OTHER and (link.lost is not None or link.state == LinkState.STALLED):
            small.setdefault((link.a, link.b), link)
    tried = {(link.a, link.b) for link in tested if not link.fails}
    found: list[PreflightFinding] = []
    for host in sorted({host for pair in small for host in pair}):
        own = [pair for pair in tried if host in pair]
        lost = [small[pair] for pair in own if pair in small and small[pair].lost is not None]
        if len(own) > 2 and len(lost) == len(own) and len(small) < len(tried):
            for pair in own:
                del small[pair]
            facts = {**_size_facts(lost[0]), "mtu": max(link.mtu or 0 for link in lost)}
            stalls = any(link.state == LinkState.STALLED for link in lost)
            found.append(PreflightFinding.of(LinkCode.SMALL_MTU_OF_HOST, (host,), stalls, **facts))
    pairs = [_small(link) for link in small.values()]
    more = len(pairs) - _MOST_NAMED
    if more > 0:
        rest = PreflightFinding.of(LinkCode.MORE_PAIRS, (), any(pair.refuses for pair in pairs), num=more)
        pairs = [*pairs[:_MOST_NAMED], rest]
    return [*found, *pairs]


def _size_facts(link: Link) -> dict[str, Any]:
    return {"address": link.address, "port": link.port, "lost": link.lost, "largest": link.largest, "mtu": link.mtu}


def _small(link: Link) -> PreflightFinding:
    stalls = link.state == LinkState.STALLED
    facts: dict[str, Any] = {"a": link.a, "b": link.b}
    if link.lost is not None:
        return PreflightFinding.of(LinkCode.SMALL_MTU, (link.a, link.b), stalls, **facts, **_size_facts(link))
    facts |= {"address": link.address, "port": link.port}
    facts |= {"received_bytes": link.received_bytes, "num_bytes": NUM_BYTES}
    return PreflightFinding.of(LinkCode.STALLS, (link.a, link.b), True, **facts)


def _mtus(tested: Sequence[Link], reports: Mapping[str, LinkReport]) -> Iterator[PreflightFinding]:
    """Yield findings about hosts whose MTU differs from the most common MTU.

    Findings about different MTUs do not prevent a run.
    """
    device_of: dict[str, Device] = {}
    for link in tested:
        for device in reports[link.b].devices if link.kind == BY_NAME else ():
            if link.address in addresses_of([device]):
                device_of.setdefault(link.b, device)
    counts = Counter(device.mtu for device in device_of.values())
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    others = named_hosts([host for host, device in device_of.items() if device.mtu == usual])
    for mtu in sorted(counts):
        if mtu != usual:
            hosts = [host for host, device in device_of.items() if device.mtu == mtu]
            names = list(dict.fromkeys(device_of[host].name for host in hosts))
            facts: dict[str, Any] = {"mtu": mtu, "usual": usual, "others": others, "devices": names}
            yield PreflightFinding.of(LinkCode.MTU_DIFFERS, hosts, False, **facts)


def _clocks(tested: Sequence[Link]) -> list[PreflightFinding]:
    """Return findings about hosts whose clock differs by more than _CLOCK_S from the clocks of most other hosts.

    The measured difference of two clocks has an error of up to half the round-trip time. This error is subtracted from
    the difference before the comparison.
    """
    off: dict[str, list[float]] = {}
    seen: Counter[str] = Counter()
    for link in tested:
        if link.clock_offset_s is None or link.round_trip_s is None:
            continue
        seen.update((link.a, link.b))
        if abs(link.clock_offset_s) - link.round_trip_s / 2 > _CLOCK_S:
            off.setdefault(link.b, []).append(link.clock_offset_s)
            off.setdefault(link.a, []).append(-link.clock_offset_s)
    wrong = [host for host in seen if 2 * len(off.get(host, ())) > seen[host]]
    if len(wrong) == 2 and len(seen) == 2:  # it is unknown which of the two clocks is right
        facts: dict[str, Any] = {"a": wrong[0], "b": wrong[1], "apart_s": abs(off[wrong[0]][0])}
        return [PreflightFinding.of(FindingCode.CLOCKS_APART, wrong, **facts)]
    found = []
    for host in wrong:
        off_s = abs(sorted(off[host])[len(off[host]) // 2])
        direction = "ahead of" if off[host][0] > 0 else "behind"
        found.append(PreflightFinding.of(FindingCode.CLOCK_OFF, (host,), off_s=off_s, direction=direction))
    return found
