"""What the hosts' reports about their links mean: findings have a code, facts and hosts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from bench.controller import link_causes, link_checks
from bench.controller.host_checks import PreflightFinding
from bench.controller.link_checks import BY_NAME, BY_NIC, BY_OTHER, LinkState
from bench.controller.messages import FindingCode, LinkCode
from bench.probes.links import NUM_BYTES, Arrival, LinkReport, PeerCall
from bench.probes.netlink import Device

FOUR = ("h0", "h1", "h2", "h3")
PORT = 40000
SIZES = (9000, 4000, 2000, 1500, 576)
Pairs = Collection[tuple[str, str]]


def address_of(host: str) -> str:
    return f"10.0.0.{FOUR.index(host)}"


def device(host: str, mtu: int = 9000, **changed: Any) -> Device:
    number = FOUR.index(host)
    return replace(Device("eth0", mtu, f"02:00:00:00:00:0{number}", (f"{address_of(host)}/24",)), **changed)


def reports(
    lost: Iterable[tuple[str, str]] = (),
    closed: Iterable[tuple[str, str]] = (),
    small: Mapping[tuple[str, str], int] | None = None,
    clocks: Mapping[str, float] | None = None,
    stalled: Iterable[tuple[str, str]] = (),
    hosts: tuple[str, ...] = FOUR,
    kind: str = BY_NAME,
) -> dict[str, LinkReport]:
    """What hosts report of a round. Directed pairs: `lost` packets, connections `closed` by a firewall, only packets up
    to a size pass, 64 KiB `stalled`. `clocks`: seconds that a host is ahead.
    """
    gone, shut, sizes, stuck = set(lost), set(closed), small or {}, set(stalled)
    found = {}
    for me in hosts:
        calls, arrivals = [], []
        for other in hosts:
            if other == me:
                continue
            out, back = (me, other), (other, me)
            call = PeerCall(other, address_of(other), PORT, kind, address_of(me), mtu=9000, sizes=SIZES)
            if gone & {out, back} or out in shut:
                call.error = "timed out"
            else:
                ahead = (clocks or {}).get(other, 0.0) - (clocks or {}).get(me, 0.0)
                call.answered, call.answered_by, call.received_bytes = True, other, NUM_BYTES
                call.clock_offset_s, call.round_trip_s = ahead, 0.001
            calls.append(call)
            if back not in gone:
                connected = not (gone & {out, back} or back in shut)
                received = 0 if not connected or back in stuck else NUM_BYTES
                passed = [size for size in SIZES if size <= sizes.get(back, 9000)]
                arrivals.append(Arrival(other, address_of(me), connected, received, passed))
        found[me] = LinkReport(PORT, tuple(calls), tuple(arrivals), (), (device(me),), {}, 1.0)
    return found


def findings(found: Mapping[str, LinkReport], silent: Mapping[str, str] | None = None) -> list[PreflightFinding]:
    return link_checks.findings(link_checks.links(found), found, silent or {})


def codes(found: Mapping[str, LinkReport]) -> list[tuple[str, tuple[str, ...]]]:
    return [(finding.code, finding.hosts) for finding in findings(found)]


def both(pairs: Pairs) -> set[tuple[str, str]]:
    return {*pairs, *((b, a) for a, b in pairs)}


def with_(host: str, others: tuple[str, ...] = FOUR) -> set[tuple[str, str]]:
    return {(host, other) for other in others if other != host}


def test_hosts_that_reach_each_other_have_no_findings() -> None:
    assert findings(reports()) == []


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        (both(with_("h2")), [(LinkCode.NOBODY_CONNECTS, ("h2",))]),
        (both(with_("h2") | with_("h3")), [(LinkCode.NOBODY_CONNECTS, (host,)) for host in ("h2", "h3")]),
        (with_("h1"), [(LinkCode.HOST_UNHEARD, ("h1",))]),
        ({(b, a) for a, b in with_("h1")}, [(LinkCode.HOST_HEARS_NOTHING, ("h1",))]),
        ({("h1", "h2")}, [(LinkCode.ONE_WAY, ("h1", "h2"))]),
        (both({("h1", "h2")}), [(LinkCode.NEITHER_CONNECTED, ("h1", "h2"))]),
        (both({(a, b) for a in ("h0", "h3") for b in ("h1", "h2")}), [(LinkCode.PARTITION, ("h0", "h3", "h1", "h2"))]),
    ],
    ids=["cable", "two cables", "unheard", "hears nothing", "one way", "cut pair", "partition"],
)
def test_lost_packets_are_named_by_host_pair_or_group(lost: Pairs, expected: list[tuple[str, tuple[str, ...]]]) -> None:
    assert codes(reports(lost)) == expected


def test_a_lost_direction_has_its_address_and_port() -> None:
    [finding] = findings(reports({("h1", "h2")}))
    assert finding.refuses
    wanted = {"a": "h1", "b": "h2", "address": "10.0.0.2", "port": PORT, "why": "timed out"}
    assert wanted.items() <= finding.facts.items()


def test_a_closed_port_is_no_lost_direction() -> None:
    assert codes(reports(closed={("h1", "h2")})) == [(LinkCode.NOT_CONNECTED, ("h1", "h2"))]
    assert codes(reports(closed=both({("h1", "h2")}))) == [(LinkCode.NEITHER_CONNECTED, ("h1", "h2"))]
    assert codes(reports(closed=with_("h1"))) == [(LinkCode.CONNECTS_TO_NOBODY, ("h1",))]
    assert codes(reports(closed={(b, a) for a, b in with_("h1")})) == [(LinkCode.NOBODY_CONNECTS, ("h1",))]


def test_a_half_open_connection_shows_the_direction_if_a_firewall_drops_udp() -> None:
    found = reports({("h1", "h2")})
    for host, report in found.items():
        heard = tuple(arrival for arrival in report.arrivals if arrival.connected)
        half_open = ("10.0.0.2",) if host == "h1" else ()
        found[host] = replace(report, arrivals=heard, half_open=half_open)
    assert codes(found) == [(LinkCode.ONE_WAY, ("h1", "h2"))]


def test_an_address_that_the_run_does_not_need_refuses_nothing() -> None:
    by_name, other = reports(), reports({("h1", "h2")}, kind=BY_OTHER)
    links = [*link_checks.links(by_name), *(replace(x, address="fd00::2") for x in link_checks.links(other))]
    [finding] = link_checks.findings(links, by_name, {})
    assert (finding.code, finding.refuses) == (LinkCode.ONE_WAY, False)
    links = [replace(x, kind=BY_NIC if x.kind == BY_OTHER else x.kind) for x in links]
    assert [finding.refuses for finding in link_checks.findings(links, by_name, {})] == [True]


def test_a_long_list_of_pairs_is_cut() -> None:
    closed = {("h0", "h1"), ("h1", "h2"), ("h2", "h3"), ("h3", "h0"), ("h0", "h2")}
    *_, last = findings(reports(closed=closed))
    assert (last.code, last.facts) == (LinkCode.MORE_PAIRS, {"num": 1})


def test_a_host_that_did_not_take_part_has_one_finding() -> None:
    found = {host: report for host, report in reports(both(with_("h3"))).items() if host != "h3"}
    [finding] = findings(found, {"h3": "exit code 255"})
    assert (finding.code, finding.hosts, finding.facts["why"]) == (FindingCode.NOT_TRIED, ("h3",), "exit code 255")


def test_hosts_that_did_not_test_at_the_same_time_accuse_nobody() -> None:
    found = reports({("h1", "h2")})
    windows = {host: (0.0, 8.0) for host in FOUR} | {"h2": (7.0, 15.0)}
    links = link_checks.links(found, windows)
    assert {link.state for link in links} == {LinkState.OK, LinkState.UNTESTED}
    assert link_checks.findings(links, found, {}) == []


def test_packets_that_stop_at_a_size_name_the_path() -> None:
    [finding] = findings(reports(small={("h1", "h2"): 1500}))
    assert (finding.code, finding.hosts, finding.refuses) == (LinkCode.SMALL_MTU, ("h1", "h2"), False)
    assert {"lost": 2000, "largest": 1500, "mtu": 9000}.items() <= finding.facts.items()
    [finding] = findings(reports(small={("h1", "h2"): 1500}, stalled={("h1", "h2")}))
    assert (finding.code, finding.refuses) == (LinkCode.SMALL_MTU, True)
    [finding] = findings(reports(small=dict.fromkeys(both(with_("h2")), 1500), stalled=both(with_("h2"))))
    assert (finding.code, finding.hosts, finding.refuses) == (LinkCode.SMALL_MTU_OF_HOST, ("h2",), True)


def test_a_stalled_link_is_named_although_udp_is_dropped() -> None:
    found = reports(stalled={("h1", "h2")})
    for report in found.values():
        for arrival in report.arrivals:
            arrival.sizes.clear()
    [finding] = findings(found)
    assert (finding.code, finding.hosts, finding.refuses) == (LinkCode.STALLS, ("h1", "h2"), True)
    assert finding.facts["received_bytes"] == 0


def test_a_device_with_a_smaller_mtu_is_no_fault_of_the_path() -> None:
    found = reports(small={(b, a): 1500 for a, b in with_("h1")})
    found["h1"] = replace(found["h1"], devices=(device("h1", 1500),))
    for call in found["h1"].calls:
        call.mtu, call.sizes = 1500, (1500, 576)
    [finding] = findings(found)
    assert (finding.code, finding.hosts, finding.refuses) == (LinkCode.MTU_DIFFERS, ("h1",), False)


def test_an_address_of_two_machines_is_named() -> None:
    found = reports()
    shared = device("h2", addresses=("10.0.0.2/24", "10.0.0.1/24"))
    found["h2"] = replace(found["h2"], devices=(shared,))
    [finding] = findings(found)
    assert (finding.code, finding.hosts, finding.facts["address"]) == (
        LinkCode.DUPLICATE_ADDRESS,
        ("h1", "h2"),
        "10.0.0.1",
    )
    same = {host: replace(report, devices=(device("h0"),)) for host, report in reports().items()}
    assert findings(same) == [], "four names of one machine"


def test_an_ipv6_address_that_the_kernel_found_elsewhere_is_a_duplicate() -> None:
    found = reports()
    for host in ("h1", "h2"):
        found[host] = replace(found[host], devices=(device(host, duplicates=("fd00::1",)),))
    links = [replace(link, address="fd00::1") for link in link_checks.links(found)][:1]
    assert [finding.code for finding in link_checks.findings(links, found, {})] == [LinkCode.DUPLICATE_ADDRESS]


def test_a_stranger_with_the_address_of_a_host_is_named_by_its_mac() -> None:
    found = reports(both({("h0", "h1")}), hosts=("h0", "h1", "h2"))
    found["h0"] = replace(found["h0"], neighbours={"10.0.0.1": "02:ff:00:00:00:01"})
    [finding] = findings(found)
    assert (finding.code, finding.hosts, finding.facts["mac"]) == (
        LinkCode.ADDRESS_TAKEN,
        ("h1",),
        "02:ff:00:00:00:01",
    )


def test_a_router_that_answers_for_several_hosts_is_no_stranger() -> None:
    found = reports(both({("h0", "h1")}))
    proxy = {address_of(host): "02:ff:00:00:00:01" for host in FOUR[1:]}
    found["h0"] = replace(found["h0"], neighbours=proxy)
    assert codes(found) == [(LinkCode.NEITHER_CONNECTED, ("h0", "h1"))]
    healthy = reports()
    healthy["h0"] = replace(healthy["h0"], neighbours={"10.0.0.1": "02:ff:00:00:00:01"})
    assert findings(healthy) == [], "connections work, so the address leads to the host"


def test_a_wrong_name_is_named_with_the_host_that_answers() -> None:
    found = reports()
    call = next(call for call in found["h0"].calls if call.host == "h1")
    call.address, call.answered_by, call.error = "10.0.0.3", "h3", "another host responds there"
    [finding] = findings(found)
    assert (finding.code, finding.hosts) == (LinkCode.OTHER_HOST_ANSWERS, ("h0",))
    assert (finding.facts["other"], finding.facts["address"]) == ("h3", "10.0.0.3")


# -- causes of a failed job


def causes(found: Mapping[str, LinkReport], before: bool = True) -> list[tuple[str, tuple[str, ...]]]:
    links = link_checks.links(found)
    blamed = link_causes.causes(links, found, lambda a, b: before)
    return [(cause.code, cause.hosts) for cause in blamed]


def test_lost_packets_can_be_the_cause_of_a_failed_job() -> None:
    assert causes(reports({("h1", "h2")})) == [(LinkCode.ONE_WAY, ("h1", "h2"))]
    assert causes(reports(both(with_("h3")))) == [(LinkCode.NOBODY_CONNECTS, ("h3",))]
    stalled = both({("h0", "h1")})
    assert causes(reports(stalled=stalled)) == [(LinkCode.STALLS, pair) for pair in (("h0", "h1"), ("h1", "h0"))]


def test_what_a_firewall_may_do_is_no_cause() -> None:
    assert causes(reports(closed={("h1", "h2")})) == []
    assert causes(reports(small={("h1", "h2"): 1500})) == [], "64 KiB passed"
    everything = {(a, b) for a in FOUR for b in FOUR if a != b}
    assert causes(reports(everything), before=False) == []
    assert causes(reports(everything)) == [], "it is unknown where"
    two = reports(both({("h0", "h1")}), hosts=("h0", "h1"))
    assert causes(two, before=False) == []
    assert causes(two) == [(LinkCode.NEITHER_CONNECTED, ("h0", "h1"))]


# -- clocks


def test_a_wrong_clock_is_named_but_small_or_uncertain_differences_are_not() -> None:
    [ahead] = findings(reports(clocks={"h2": 10.0}))
    assert (ahead.code, ahead.hosts) == (FindingCode.CLOCK_OFF, ("h2",))
    assert ahead.facts == {"off_s": 10.0, "direction": "ahead of"}
    [behind] = findings(reports(clocks={"h1": -10.0}))
    assert (behind.hosts, behind.facts) == (("h1",), {"off_s": 10.0, "direction": "behind"})
    assert findings(reports(clocks={"h2": 0.9})) == []
    far = reports(clocks={"h1": 3.0}, hosts=("h0", "h1"))
    for report in far.values():
        for call in report.calls:
            call.round_trip_s = 5.0
    assert findings(far) == []


def test_if_two_clocks_differ_both_are_named() -> None:
    assert codes(reports(clocks={"h1": 10.0}, hosts=("h0", "h1"))) == [(FindingCode.CLOCKS_APART, ("h0", "h1"))]


def test_pairs_without_an_answer_are_found_by_the_addresses_of_hosts() -> None:
    """Both ends of a pair may report it; addresses of no host (a login, a file server) do not count."""
    devices = {host: (Device("eth0", 1500, None, (f"10.0.0.{number}/24",)),) for number, host in enumerate("abc", 1)}
    unanswered = {"a": ("10.0.0.2", "192.0.2.9"), "b": ("10.0.0.1",), "c": ("10.0.0.3",)}
    reports = {
        host: LinkReport(None, (), (), devices=devices[host], unanswered=unanswered[host]) for host in ("a", "b", "c")
    }
    assert link_causes.unanswered(reports) == (("a", "b"),)


def test_an_address_that_another_machine_had_for_a_time_is_named() -> None:
    """MAC addresses from before the owner's are old: a host may have replaced another machine."""
    own, other, stranger = device("h1").mac or "", device("h3").mac or "", "02:00:00:00:00:99"
    address, known = address_of("h1"), reports()

    def found(*macs: str) -> list[tuple[str, tuple[str, ...], Any, Any]]:
        all_found = link_causes.moved([(address, macs), (address, macs)], link_checks.links(known), known)
        return [(each.code, each.hosts, each.facts["mac"], each.facts["other"]) for each in all_found]

    assert found(own, other) == [(LinkCode.ADDRESS_MOVED, ("h1",), other, "h3")]
    assert found(own, stranger) == [(LinkCode.ADDRESS_MOVED, ("h1",), stranger, None)]
    assert found(stranger, own) == []
    assert found(stranger, other) == [], "nobody saw the owner before"
    assert list(link_causes.moved([("192.0.2.7", (own, other))], [], known)) == [], "the address of no host"
    assert list(link_causes.moved([(address, (own, other))], [], known)) == [], "no link uses this address"
    known["h0"] = replace(known["h0"], neighbours={"192.0.2.1": stranger, "192.0.2.2": stranger})
    assert found(own, stranger) == [], "a router replies for several addresses"


def test_an_address_that_another_host_got_for_a_time_is_named_although_no_neighbour_saw_it() -> None:
    """The other host got it while the job ran, or both hosts had it when the test began."""
    own, other = device("h1").mac or "", device("h3").mac or ""
    address, known = address_of("h1"), reports()
    tested = link_checks.links(known)

    def named(seen: list[tuple[str, tuple[str, ...]]]) -> list[tuple[tuple[str, ...], Any]]:
        return [(each.hosts, each.facts["other"]) for each in link_causes.moved(seen, tested, known)]

    assert named([(address, (other,))]) == [(("h1",), "h3")]
    assert named([(address, (own,))]) == [], "the host got its own address again"
    known["h3"] = replace(known["h3"], own_before={address_of("h3"): other, address: other})
    assert named([]) == [], "the address moved from h3 to h1: only h3 had it at first"
    known["h1"] = replace(known["h1"], own_before={address: own})
    assert named([]) == [(("h1",), "h3")]


def test_only_lost_carriers_of_devices_that_the_run_uses_count() -> None:
    known = reports()
    used = {"device": "eth0", "num": 2, "addresses": (address_of("h1"),)}
    other = {"device": "usb0", "num": 9, "addresses": ("192.0.2.7",)}
    found = link_causes.carrier_lost({"h1": [used, other], "h2": [other]}, link_checks.links(known))
    assert found == {"h1": (("eth0",), 2)}
