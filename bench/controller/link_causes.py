"""Find network problems that may have caused a failed job: failed links, moved addresses and lost carriers.

The functions are pure and use the links and findings of link_checks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.controller import link_checks
from bench.controller.host_checks import PreflightFinding
from bench.controller.link_checks import Link, LinkState
from bench.controller.messages import LinkCode
from bench.probes.links import LinkReport

# Findings that explain why a job failed. Filtered new connections explain only why ranks never met.
_CAUSES = (
    LinkCode.DUPLICATE_ADDRESS,
    LinkCode.ADDRESS_TAKEN,
    LinkCode.HOST_UNHEARD,
    LinkCode.HOST_HEARS_NOTHING,
    LinkCode.NOBODY_CONNECTS,
    LinkCode.PARTITION,
    LinkCode.ONE_WAY,
    LinkCode.NEITHER_CONNECTED,
    LinkCode.STALLS,
    LinkCode.SMALL_MTU,
    LinkCode.SMALL_MTU_OF_HOST,
)


def unanswered(reports: Mapping[str, LinkReport]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of hosts whose connections retransmitted data and got no answer. Each pair is listed once."""
    host_of = {
        address: host for host, report in reports.items() for address in link_checks.addresses_of(report.devices)
    }
    pairs = {
        tuple(sorted((host, host_of[address])))
        for host, report in reports.items()
        for address in report.unanswered
        if host_of.get(address, host) != host
    }
    return tuple((a, b) for a, b in sorted(pairs))


def moved(
    seen: Iterable[tuple[str, Sequence[str]]], tested: Sequence[Link], reports: Mapping[str, LinkReport]
) -> Iterator[PreflightFinding]:
    """Yield a finding for each address of a tested link if a second machine also replied for this address.

    `seen`: for each address, the MAC addresses to which a host sent packets for this address, in order. If several MAC
        addresses are listed, only those that come after the host's own MAC address count. An earlier MAC address proves
        nothing, because the host may have replaced another machine. A single MAC address is that of a host that got the
        address while the job ran. A machine outside the cluster that replies for several addresses is a router.

    The reports give further evidence: they show whether two hosts had the same address when the test began.
    """
    used = {address for link in tested for address in (link.address, link.source)}
    addresses_of: dict[str, set[str]] = {}
    for report in reports.values():
        for address, mac in report.neighbours.items():
            addresses_of.setdefault(mac, set()).add(address)
    owners: dict[str, list[str]] = {}
    for host, report in reports.items():
        for address in link_checks.addresses_of(report.devices):
            owners.setdefault(address, []).append(host)
    macs = {host: link_checks.macs_of(report) for host, report in reports.items()}
    done = set()
    for address, in_order in (*seen, *_shared_before(owners, reports)):
        for host in owners.get(address, ()) if address in used and len(owners.get(address, ())) == 1 else ():
            first = next((at for at, mac in enumerate(in_order) if mac in macs[host]), len(in_order))
            for mac in in_order[first + 1 :] if len(in_order) > 1 else in_order:
                other = next((each for each in macs if mac in macs[each]), None)
                is_router = other is None and len(addresses_of.get(mac, ())) > 1
                if other != host and not is_router and (address, mac) not in done:
                    done.add((address, mac))
                    where = f", host {other}," if other else ""
                    facts: dict[str, Any] = {"host": host, "address": address, "mac": mac, "other": other}
                    facts |= {"where": where, "own": sorted(macs[host])}
                    yield PreflightFinding.of(LinkCode.ADDRESS_MOVED, (host,), **facts)


def carrier_lost(
    lost: Mapping[str, Sequence[Mapping[str, Any]]], tested: Sequence[Link]
) -> dict[str, tuple[tuple[str, ...], int]]:
    """Map each affected host to its devices that lost their carrier, and to the largest number of losses of one device.

    `lost`: the result of heartbeat.read_carriers. A device is omitted if no tested link uses one of its addresses.
    """
    used = {address for link in tested for address in (link.address, link.source)}
    found = {}
    for host, devices in lost.items():
        mine = [device for device in devices if used & set(device["addresses"])]
        if mine:
            names = tuple(dict.fromkeys(device["device"] for device in mine))
            found[host] = names, max(device["num"] for device in mine)
    return found


def _shared_before(
    owners: Mapping[str, Sequence[str]], reports: Mapping[str, LinkReport]
) -> Iterator[tuple[str, tuple[str]]]:
    """Yield each address that two hosts had when the test began, and the MAC address of the second host.

    One of these two hosts owns the address, and the second host is the other one.
    """
    for host, report in reports.items():
        for address, mac in report.own_before.items():
            others = owners.get(address, ())
            if host not in others and any(address in reports[other].own_before for other in others):
                yield address, (mac,)


def causes(
    tested: Sequence[Link], reports: Mapping[str, LinkReport], before: Callable[[str, str], bool]
) -> list[PreflightFinding]:
    """Return the findings that may explain why a job failed, the strongest first.

    A link that allows no connection is a possible cause only if it meets two conditions. First, the link loses packets.
    Second, packets passed the link before the job (`before`), or one of the link's two hosts has another link that
    works. The second condition excludes firewalls that drop every packet of the test. If no host can be reached, a
    firewall may also be the reason, and the result is empty.
    """
    works = {host for link in tested if not link.fails for host in (link.a, link.b)}
    judged = []
    for link in tested:
        lost = link.state in (LinkState.LOST, LinkState.REPLY_LOST)
        if not link.fails or (lost and (before(link.a, link.b) or works & {link.a, link.b})):
            judged.append(link)
    found = [*link_checks.duplicates(tested, reports), *link_checks.findings(judged, reports, {})]
    several = [finding for finding in found if len(finding.hosts) == 1 and finding.code == LinkCode.NOBODY_CONNECTS]
    if len(several) > 1 and len(several) == len(reports):
        return []
    found = [finding for finding in found if finding.refuses and finding.code in _CAUSES]
    return sorted(found, key=lambda finding: _CAUSES.index(LinkCode(finding.code)))
