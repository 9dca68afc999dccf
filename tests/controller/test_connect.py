"""Who can not connect to whom, told in the fewest words, and whose clock is off."""

from __future__ import annotations

from collections.abc import Iterable

from bench.controller import connect
from bench.probes.ports import PeerReply

HOSTS = ("h0", "h1", "h2", "h3")
OPEN = "(cables, routes, firewall)"


def seen(pairs: Iterable[tuple[str, str]] = (), clocks: dict[str, float] | None = None) -> connect.Reach:
    """Every host asked every other; directed `pairs` timed out; `clocks`: seconds that a host is ahead."""
    failed = set(pairs)
    ahead = {host: (clocks or {}).get(host, 0.0) for host in HOSTS}
    return {
        a: {
            b: PeerReply("timed out") if (a, b) in failed else PeerReply(None, ahead[b] - ahead[a], 0.001)
            for b in HOSTS
            if b != a
        }
        for a in HOSTS
    }


def sentences(reached: connect.Reach) -> list[str]:
    """What is found, without the remedy."""
    return [finding.what.partition(":")[0] for finding in connect.judge(reached, {})]


def test_hosts_that_reach_each_other_are_not_mentioned() -> None:
    assert sentences(seen()) == []


def test_a_pulled_cable_is_one_sentence() -> None:
    failed = [(a, b) for a in HOSTS for b in HOSTS if a != b and "h2" in (a, b)]
    [finding] = connect.judge(seen(failed), {})
    assert finding.what.startswith("no other host can connect to host h2 (timed out): open the ports")
    assert (finding.hosts, finding.refuses) == (("h2",), True)


def test_two_pulled_cables_are_two_sentences() -> None:
    failed = [(a, b) for a in HOSTS for b in HOSTS if a != b and {"h2", "h3"} & {a, b}]
    assert sentences(seen(failed)) == [f"no other host can connect to host {h} (timed out)" for h in ("h2", "h3")]


def test_a_port_closed_one_way_names_the_way() -> None:
    assert sentences(seen([("h1", "h2")])) == ["host h1 can not connect to host h2 (timed out)"]
    assert sentences(seen([("h1", "h2"), ("h2", "h1")])) == [
        "hosts h1 and h2 can not connect to each other (timed out)"
    ]
    assert sentences(seen(("h1", b) for b in HOSTS)) == ["host h1 can not connect to any other (timed out)"]
    assert sentences(seen((a, "h1") for a in HOSTS)) == ["no other host can connect to host h1 (timed out)"]


def test_a_long_list_of_pairs_is_cut() -> None:
    failed = [("h0", "h1"), ("h1", "h2"), ("h2", "h3"), ("h3", "h0"), ("h0", "h2")]
    assert sentences(seen(failed))[4:] == ["1 more pairs of hosts can not connect"]


def test_a_host_that_did_not_take_part_is_told_once() -> None:
    reached = {a: peers for a, peers in seen((a, "h3") for a in HOSTS).items() if a != "h3"}
    [finding] = connect.judge(reached, {"h3": "exit code 255"})
    assert finding.what.startswith("host h3 could not try its ports (exit code 255)")


def test_the_clock_that_is_off_is_named_and_small_or_uncertain_differences_are_not() -> None:
    assert sentences(seen(clocks={"h2": 10.0})) == ["the clock of host h2 is 10.0 s ahead of the others'"]
    assert sentences(seen(clocks={"h1": -10.0})) == ["the clock of host h1 is 10.0 s behind the others'"]
    assert sentences(seen(clocks={"h2": 0.9})) == []
    far = {"h0": {"h1": PeerReply(None, 3.0, 5.0)}, "h1": {"h0": PeerReply(None, -3.0, 5.0)}}
    assert sentences(far) == []


def test_of_two_clocks_that_differ_both_are_named() -> None:
    two = {"h0": {"h1": PeerReply(None, 10.0, 0.001)}, "h1": {"h0": PeerReply(None, -10.0, 0.001)}}
    assert sentences(two) == ["the clocks of hosts h0 and h1 are 10.0 s apart"]
