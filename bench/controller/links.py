"""Ask the hosts of a cluster to test the links between them, in rounds of at most 64 hosts.

In a round, every host tests its links to all other hosts of the round. The first pass consists of rounds that together
contain every host. Each round contains at most 64 hosts. Every round contains the first host, which is the rendezvous
of a job's ranks. If there are several rounds, a further pass forms other rounds from the same hosts. A new pass starts
only while time remains.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from bench.controller import link_checks
from bench.controller.hosts import CommandReply
from bench.controller.link_checks import BY_NAME, BY_NIC, BY_OTHER, Link, LinkState
from bench.core import hostlist
from bench.core.errors import UsageError
from bench.probes import links as probe
from bench.probes.links import LinkReport, LinkRound, Target
from bench.probes.netlink import Device
from bench.store import runs

AT_ONCE = 64  # hosts of one round
BEFORE = "before"  # the value of `when` for a test that was made before the run
# Variables that limit the ports of an MPI, in three forms: a variable with the first and the last port; two variables
# with the first and the last port; two variables with the first port and the number of ports.
_PORT_RANGES = ("MPIEXEC_PORT_RANGE", "MPIR_CVAR_CH3_PORT_RANGE", "UCX_TCP_PORT_RANGE")
_FIRST_AND_LAST = (("FI_TCP_PORT_LOW_RANGE", "FI_TCP_PORT_HIGH_RANGE"),)
_FIRST_AND_NUMBER = (("OMPI_MCA_btl_tcp_port_min_v4", "OMPI_MCA_btl_tcp_port_range_v4"),)
# A function that maps questions (by host), a secret for the hosts' environment and a timeout in seconds to replies.
Ask = Callable[[Mapping[str, Any], str, float], Mapping[str, CommandReply]]
Address = tuple[str, str]  # the address and its kind (link_checks.BY_NAME, BY_NIC or BY_OTHER)


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """The network devices and addresses of one host.

    `devices`: all network devices of the host.
    `addresses`: the addresses to which other hosts resolve the host's name.
    `nics`: the names of the devices that the run's settings select.
    """

    devices: tuple[Device, ...] = ()
    addresses: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()

    def more(self, other: HostNetwork) -> list[Address]:
        """Return further addresses of this host that `other` must be able to reach.

        For a device that the run's settings select, the result has the first address of each family (IPv4, IPv6). If
        the host's name resolves to addresses of only one family, each device with such an address adds its first
        address of the other family. Each returned address is in a network that `other` may use.
        """
        near = other.networks()
        taken = {text.partition("/")[0] for device in other.devices for text in device.addresses} if near else set()
        families = {":" in address for address in self.addresses}
        found: list[Address] = []
        for device in self.devices if near else ():
            by_nic, by_name = device.name in self.nics, device.name in self.own_devices()
            seen = set() if by_nic else set(families)
            for text in device.addresses if by_nic or by_name else ():
                address = text.partition("/")[0]
                new = (":" in address) not in seen and address not in self.addresses and address not in taken
                if new and _subnet(text) in near:
                    seen.add(":" in address)
                    found.append((address, BY_NIC if by_nic else BY_OTHER))
        return found

    def networks(self) -> set[str]:
        """Return the networks that a run may use.

        If the run's settings select devices, the result has the networks of these devices. The result also has the
        networks of devices with an address of the host's name. If the settings select no devices, the result has the
        networks of all devices.
        """
        used = (*self.nics, *self.own_devices()) if self.nics else [device.name for device in self.devices]
        return {_subnet(text) for device in self.devices if device.name in used for text in device.addresses}

    def own_devices(self) -> tuple[str, ...]:
        """Return the names of the devices with an address to which the host's name resolves."""
        return tuple(
            device.name
            for device in self.devices
            if {text.partition("/")[0] for text in device.addresses} & set(self.addresses)
        )


@dataclass(frozen=True, slots=True)
class LinkTest:
    """The result of testing links.

    `networks`: the hosts' networks as known before the test.
    `reports`: for each host that answered, the host's report.
    `silent`: for each host without a report, the reason for the missing report.
    """

    links: tuple[Link, ...] = ()
    reports: Mapping[str, LinkReport] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    networks: Mapping[str, HostNetwork] = field(default_factory=dict)
    num_hosts: int = 0

    @property
    def num_tested(self) -> int:
        """The number of ordered pairs of hosts with a tested link."""
        return len({(link.a, link.b) for link in self.links if link.state != LinkState.UNTESTED})

    @property
    def num_pairs(self) -> int:
        """The number of ordered pairs of hosts."""
        return self.num_hosts * (self.num_hosts - 1)

    def to_plain(self) -> dict[str, Any]:
        """Return the test as plain data.

        `reached` maps each host to the hosts that it reaches, written as a compact list such as `n[1-4]`. A host counts
        as reached only if no tested link to this host has a fault.
        """
        faulty = [link for link in self.links if link.state != LinkState.OK or link.lost is not None]
        bad = {(link.a, link.b) for link in faulty}
        reached: dict[str, list[str]] = {}
        for link in self.links:
            if (link.a, link.b) not in bad and link.b not in reached.setdefault(link.a, []):
                reached[link.a].append(link.b)
        return {
            "num_pairs": self.num_pairs,
            "num_tested": self.num_tested,
            "reached": {host: hostlist.compress(sorted(others)) for host, others in reached.items()},
            "faulty": [asdict(link) for link in faulty],
            "silent": dict(self.silent),
            "seconds": max((report.seconds for report in self.reports.values()), default=0.0),
            "neighbours": {host: dict(report.neighbours) for host, report in self.reports.items() if faulty},
        }


def store(folder: Path, when: str, found: LinkTest) -> None:
    """Add a test to a run's folder, as evidence.

    `when`: BEFORE, or the name of the job whose failure caused the test.
    """
    if found.num_hosts < 2:
        return
    stored = runs.read_links(folder)
    tests = stored.get("tests")
    tests = tests if isinstance(tests, list) else []
    networks = {host: asdict(network) for host, network in found.networks.items()} if when == BEFORE else None
    now = datetime.now(UTC).isoformat(timespec="seconds")
    tests.append({"when": when, "tested_at": now, **found.to_plain()})
    with contextlib.suppress(UsageError):  # the code that writes results reports a full disk
        runs.write_links(folder, {"networks": networks or stored.get("networks", {}), "tests": tests})


def known_before(folder: Path) -> tuple[dict[str, HostNetwork], frozenset[tuple[str, str]]]:
    """Return the hosts' networks, and each ordered pair of hosts whose links worked before the run.

    The networks and the pairs are empty if the run did not store them.
    """
    stored = runs.read_links(folder)
    networks: dict[str, HostNetwork] = {}
    passed: set[tuple[str, str]] = set()
    try:
        for host, plain in stored["networks"].items():
            devices = tuple(map(Device.from_plain, plain["devices"]))
            networks[host] = HostNetwork(devices, tuple(plain["addresses"]), tuple(plain["nics"]))
        for each in stored["tests"]:
            for host, others in each["reached"].items() if each["when"] == BEFORE else ():
                passed |= {(host, other) for other in hostlist.expand(others)}
    except (TypeError, KeyError, AttributeError, UsageError):
        return {}, frozenset()
    return networks, frozenset(passed)


@cache
def _subnet(address: str) -> str:
    """Return the network of an address, such as 10.0.0.0/24 for 10.0.0.2/24."""
    return str(ipaddress.ip_interface(address).network)


def port_range(env: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the first and the last port that the ranks may use.

    If no variable limits the ports, the result is None, and the kernel's port range applies.
    """
    for name in _PORT_RANGES:
        first, _, last = env.get(name, "").replace("-", ":").partition(":")
        if first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 1 << 16:
            return int(first), int(last)
    for is_number, pairs in ((False, _FIRST_AND_LAST), (True, _FIRST_AND_NUMBER)):
        for low, high in pairs:
            first, last = env.get(low, ""), env.get(high, "")
            if first.isdecimal() and last.isdecimal() and 0 < int(first) < 1 << 16 and int(last) > 0:
                end = int(first) + int(last) - 1 if is_number else int(last)
                return int(first), min(max(end, int(first)), (1 << 16) - 1)
    return None


def rounds(hosts: Sequence[str], at_once: int = AT_ONCE) -> Iterator[list[list[str]]]:
    """Yield passes over the hosts.

    In each pass, the first host takes part in every round, and each other host takes part in one round. The other hosts
    are split into parts of `at_once - 1` hosts; the last part may be smaller. Host number k of a round comes from
    position k of one of these parts. In round r of pass p, this part has the number `(r + p * k) modulo n`, where n is
    the number of parts. Each pass therefore tests new pairs.
    """
    first, others = hosts[0], hosts[1:]
    parts = [others[begin : begin + at_once - 1] for begin in range(0, len(others), at_once - 1)]
    for number in range(len(parts)):
        made = []
        for part in range(len(parts)):
            chosen = [parts[(part + number * k) % len(parts)][k : k + 1] for k in range(at_once - 1)]
            made.append([first, *(host for found in chosen for host in found)])
        yield made


def test(
    networks: Mapping[str, HostNetwork],
    ports: Mapping[str, Sequence[int]],
    knows: Callable[[str, str], bool],
    ask: Ask,
    limit_s: float,
    slack_s: float,
    more_s: float = 0.0,
) -> LinkTest:
    """Test the links between all hosts. `ports`: the ports of each host.

    Each host listens on the first free port of its list.

    `knows(a, b)`: whether host a can resolve the name of host b.
    `limit_s`: the duration of a round, in seconds.
    `slack_s`: the extra time for starting a round, in seconds.
    `more_s`: the seconds after the first pass within which further passes may start.

    A single host is not tested.
    """
    hosts = list(networks)
    found = LinkTest(networks=networks, num_hosts=len(hosts))
    if len(hosts) < 2:
        return found
    until = time.monotonic() + more_s
    tried: set[tuple[str, str]] = set()
    for number, turns in enumerate(rounds(hosts)):
        for turn in turns:
            new = [host for host in turn if any((host, other) not in tried for other in turn if other != host)]
            if number and (not new or time.monotonic() > until):
                continue
            tried |= {(a, b) for a in turn for b in turn if a != b}
            found = _joined(found, _round(turn, networks, ports, knows, ask, limit_s, slack_s))
        if time.monotonic() >= until:
            break
    return found


def _round(
    hosts: Sequence[str],
    networks: Mapping[str, HostNetwork],
    ports: Mapping[str, Sequence[int]],
    knows: Callable[[str, str], bool],
    ask: Ask,
    limit_s: float,
    slack_s: float,
) -> LinkTest:
    targets = {a: _targets(a, hosts, networks, ports, knows) for a in hosts}
    questions = {}
    for host in hosts:
        callers = tuple(a for a in hosts if any(target.host == host for target in targets[a]))
        questions[host] = LinkRound(host, tuple(ports[host]), tuple(targets[host]), callers, limit_s).to_plain()
    replies = ask(questions, secrets.token_hex(16), limit_s + slack_s)
    reports, silent, windows = {}, {}, {}
    for host, reply in replies.items():
        report = probe.last_report(reply.out)
        if not isinstance(report, LinkReport):
            silent[host] = report or reply.last_line
            continue
        reports[host] = report
        if reply.ended_at is not None:
            windows[host] = (reply.ended_at - report.seconds, reply.ended_at)
    return LinkTest(tuple(link_checks.links(reports, windows)), reports, silent)


def _targets(
    a: str,
    hosts: Sequence[str],
    networks: Mapping[str, HostNetwork],
    ports: Mapping[str, Sequence[int]],
    knows: Callable[[str, str], bool],
) -> list[Target]:
    found = []
    for b in hosts:
        if b != a:
            names = [(b, BY_NAME)] if knows(a, b) else []
            for address, kind in (*names, *networks[b].more(networks[a])):
                found.append(Target(b, address, tuple(ports[b]), kind))
    return found


def _joined(first: LinkTest, second: LinkTest) -> LinkTest:
    """Merge two results.

    For a link that is in both results, the first result counts. If the first result is UNTESTED, the second result
    counts.
    """
    known = {(link.a, link.b, link.address) for link in first.links if link.state != LinkState.UNTESTED}
    links = [link for link in first.links if (link.a, link.b, link.address) in known]
    links += [link for link in second.links if (link.a, link.b, link.address) not in known]
    reports = {**first.reports}
    for host, report in second.reports.items():
        old = reports.get(host)
        reports[host] = report if old is None else replace(old, neighbours={**old.neighbours, **report.neighbours})
    return replace(first, links=tuple(links), reports=reports, silent={**first.silent, **second.silent})
