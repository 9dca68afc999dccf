"""Links between hosts: each fault is named with its direction and address, and healthy hosts get no word."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from bench.controller import link_causes, link_checks, links
from bench.controller.host_checks import PreflightFinding
from bench.controller.link_checks import Link, LinkState
from bench.controller.links import HostNetwork
from bench.controller.messages import LinkCode
from bench.probes import links as probe
from bench.probes import netlink
from tests.testbed import site
from tests.testbed.hosts import Testbed

pytestmark = pytest.mark.netns
Make = Callable[..., Testbed]
PORT = 40123
LIMIT_S = 2.5


@dataclass(frozen=True)
class Matrix:
    """The links of a testbed's hosts, and the findings about them."""

    links: list[Link]
    reports: dict[str, probe.LinkReport]

    @property
    def findings(self) -> list[PreflightFinding]:
        return link_checks.findings(self.links, self.reports, {})

    def state(self, a: str, b: str, address: str) -> LinkState:
        return next(link.state for link in self.links if (link.a, link.b, link.address) == (a, b, address))


def tried(bed: Testbed, hosts: Iterable[str] = ()) -> Matrix:
    """One round between hosts, in forked processes that enter them."""
    names, secret = tuple(hosts) or bed.hosts, secrets.token_bytes(16)
    devices = dict(zip(names, bed.fork(len(names), 1, lambda rank: netlink.devices(), on=names), strict=True))
    networks = {host: HostNetwork(devices[host], (bed.address(host),)) for host in names}
    ports = dict.fromkeys(names, (PORT,))

    def work(rank: int) -> probe.LinkReport:
        me = names[rank]
        targets = links._targets(me, names, networks, ports, lambda a, b: True)
        others = tuple(name for name in names if name != me)
        return probe.take_part(probe.LinkRound(me, (PORT,), tuple(targets), others, LIMIT_S), secret)

    reports = dict(zip(names, bed.fork(len(names), 1, work, on=names), strict=True))
    return Matrix(link_checks.links(reports), reports)


def code_and_facts(found: Matrix, *names: str) -> list[tuple[Any, ...]]:
    return [(finding.code, *(finding.facts[name] for name in names)) for finding in found.findings]


def with_ipv6(bed: Testbed) -> None:
    for host in bed.hosts:
        bed.add_address6(host)


def test_healthy_hosts_get_no_word_by_both_families(testbed: Make) -> None:
    bed = testbed(3)
    with_ipv6(bed)
    found = tried(bed)
    assert found.findings == []
    assert len(found.links) == 12 and {link.state for link in found.links} == {LinkState.OK}
    assert {link.largest for link in found.links} == {1500}
    assert all(link.received_bytes == probe.NUM_BYTES for link in found.links)


def test_a_one_way_drop_is_named_with_its_direction(testbed: Make) -> None:
    bed = testbed(3)
    bed.drop("h0", "h1")
    found = tried(bed)
    assert code_and_facts(found, "a", "b", "address") == [(LinkCode.ONE_WAY, "h0", "h1", bed.address("h1"))]
    assert found.findings[0].facts["port"] == PORT
    assert found.state("h1", "h0", bed.address("h0")) == LinkState.REPLY_LOST


def test_a_small_mtu_on_the_path_is_named_with_what_passes(testbed: Make) -> None:
    bed = testbed(3)
    for host in bed.hosts:
        bed.mtu(host, 9000, 1500 if host == "h2" else 9000)
    found = tried(bed)
    [finding] = found.findings
    assert (finding.code, finding.hosts, finding.refuses) == (LinkCode.SMALL_MTU_OF_HOST, ("h2",), True)
    assert (finding.facts["mtu"], finding.facts["largest"], finding.facts["lost"]) == (9000, 1500, 2000)


@pytest.mark.slow
def test_a_cut_pair_is_named(testbed: Make) -> None:
    bed = testbed(3)
    bed.drop("h0", "h1")
    bed.drop("h1", "h0")
    assert code_and_facts(tried(bed), "a", "b") == [(LinkCode.NEITHER_CONNECTED, "h0", "h1")]


@pytest.mark.slow
def test_a_partition_is_named_by_its_groups(testbed: Make) -> None:
    bed = testbed(4)
    for a in ("h0", "h1"):
        for b in ("h2", "h3"):
            bed.drop(a, b)
            bed.drop(b, a)
    assert code_and_facts(tried(bed), "groups") == [(LinkCode.PARTITION, [["h0", "h1"], ["h2", "h3"]])]


@pytest.mark.slow
@pytest.mark.parametrize(("inward", "code"), [(False, LinkCode.HOST_UNHEARD), (True, LinkCode.HOST_HEARS_NOTHING)])
def test_a_host_with_one_direction_is_named(testbed: Make, inward: bool, code: LinkCode) -> None:
    bed = testbed(3)
    for other in ("h0", "h2"):
        bed.drop(*((other, "h1") if inward else ("h1", other)))
    found = tried(bed)
    assert [(finding.code, finding.hosts) for finding in found.findings] == [(code, ("h1",))]


@pytest.mark.slow
def test_one_family_alone_is_named_but_refuses_nothing(testbed: Make) -> None:
    bed = testbed(3)
    with_ipv6(bed)
    done = bed.on("h2", ["ip", "-6", "route", "add", "blackhole", f"{bed.address6('h1')}/128"])
    assert done.code == 0, done.err
    [finding] = tried(bed).findings
    assert (finding.code, finding.refuses) == (LinkCode.ONE_WAY, False)
    assert (finding.facts["a"], finding.facts["address"]) == ("h2", bed.address6("h1"))


@pytest.mark.slow
def test_a_device_with_another_mtu_is_a_note(testbed: Make) -> None:
    bed = testbed(3)
    for host in bed.hosts:
        bed.mtu(host, 1500 if host == "h1" else 9000, 1500 if host == "h1" else 9000)
    [finding] = tried(bed).findings
    assert (finding.code, finding.hosts, finding.refuses) == (LinkCode.MTU_DIFFERS, ("h1",), False)
    assert (finding.facts["mtu"], finding.facts["usual"], finding.facts["devices"]) == (1500, 9000, ["eth0"])


@pytest.mark.slow
def test_an_address_of_two_hosts_is_named(testbed: Make) -> None:
    bed = testbed(3)
    assert bed.on("h2", ["ip", "addr", "add", f"{bed.address('h1')}/24", "dev", "eth0"]).code == 0
    [finding] = tried(bed).findings
    assert (finding.code, finding.hosts) == (LinkCode.DUPLICATE_ADDRESS, ("h1", "h2"))
    assert finding.facts["address"] == bed.address("h1") and len(set(finding.facts["macs"])) == 2


@pytest.mark.slow
def test_an_address_that_a_stranger_has_is_named_with_its_mac(testbed: Make) -> None:
    bed = testbed(3)
    mac = bed.on("h2", ["cat", "/sys/class/net/eth0/address"]).out.strip()
    assert bed.on("h2", ["ip", "addr", "add", f"{bed.address('h1')}/24", "dev", "eth0"]).code == 0
    wrong = f"{bed.address('h1')} lladdr {mac} dev eth0 nud permanent"  # else the next packet from h1 may correct it
    assert bed.on("h0", ["ip", "neigh", "replace", *wrong.split()]).code == 0
    [finding] = tried(bed, ("h0", "h1")).findings  # h2 is no host of the cluster
    assert (finding.code, finding.hosts, finding.facts["mac"]) == (LinkCode.ADDRESS_TAKEN, ("h1",), mac)


@pytest.mark.slow
def test_a_firewall_that_drops_only_the_packets_of_the_test_accuses_nobody(testbed: Make) -> None:
    bed = testbed(3)
    for a in bed.hosts:
        for b in bed.hosts:
            if a != b:
                bed.drop(a, b, only="match ip protocol 17 0xff")
    found = tried(bed)
    assert found.findings == []
    assert {link.state for link in found.links} == {LinkState.OK} and {link.largest for link in found.links} == {None}


@pytest.mark.slow
def test_a_filter_of_new_connections_is_no_lost_link(testbed: Make) -> None:
    bed = testbed(3)
    bed.drop("h0", "h1", only="match ip protocol 6 0xff match u8 0x02 0x12 at 33")  # SYN without ACK
    found = tried(bed)
    assert code_and_facts(found, "a", "b", "port") == [(LinkCode.NOT_CONNECTED, "h0", "h1", PORT)]
    assert link_causes.causes(found.links, found.reports, lambda a, b: True) == []


# Prints whether the history notices each of the MAC addresses that the kernel has for one address.
_LOOKS = """
import subprocess, sys
from bench.probes.netlink import NetworkHistory
history, found = NetworkHistory(), []
for mac, state in (("02:00:00:00:00:0a", "stale"), ("02:00:00:00:00:0b", "permanent"), ("02:00:00:00:00:0c", "stale")):
    words = ["neigh", "replace", sys.argv[1], "lladdr", mac, "dev", "eth0", "nud", state]
    subprocess.run(["ip", *words], check=True)
    found.append(history.look(0.0))
print(found)
"""


def test_only_a_neighbour_that_replied_has_a_new_mac(testbed: Make) -> None:
    bed = testbed(2)
    done = bed.on("h0", [sys.executable, "-c", _LOOKS, bed.address("h1")], env={"PYTHONPATH": str(site.ROOT)})
    assert done.out == "[False, False, True]\n", done.err
