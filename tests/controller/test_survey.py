"""The survey of a cluster's hosts, with replies made here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bench.config import paths
from bench.config.clusters import Cluster
from bench.controller import hosts, links, survey
from bench.controller.host_checks import PreflightFinding, Wanted
from bench.controller.hosts import CommandReply, HostCommand
from bench.controller.link_checks import BY_NIC, BY_OTHER, Link, LinkState
from bench.controller.messages import FindingCode
from bench.core.errors import RefusedError
from bench.core.seal import SECRET_VARIABLE
from bench.probes import host as probe
from bench.probes.links import NUM_BYTES, SCHEMA
from bench.probes.netlink import Device
from tests.controller.test_host_checks import HOSTS, WANTED, facts_of
from tests.facts import holds

CLUSTER = Cluster("lab", nodes=3, hosts=HOSTS, agent=("ssh", "-q", "{host}"), env={"A": "1"}, setup=("module load x",))
SUITE = paths.PACKAGE_ROOT


def line(answer: Mapping[str, Any]) -> CommandReply:
    """What a host prints: a greeting of the login, the mark, one line of JSON."""
    return CommandReply(0, f"welcome\nbench-reached\n{json.dumps(answer)}\n", "")


class Hosts:
    """Hosts without faults, except those in `broken`; remembers what they were asked."""

    def __init__(self, broken: Mapping[str, CommandReply]) -> None:
        self.broken, self.asked = broken, list[dict[str, Any]]()
        self.saw_mark = False
        self.secrets, self.questions = list[str](), list[str]()

    def __call__(self, words_of: Mapping[str, HostCommand], timeout_s: float) -> dict[str, CommandReply]:
        for words in words_of.values():
            self.secrets += re.findall(rf"^export {SECRET_VARIABLE}=(\w+)$", words.given, re.MULTILINE)
            self.questions.append(" ".join(words.words))
        return {host: self.broken.get(host) or self._answer(host, words.words[-1]) for host, words in words_of.items()}

    def _answer(self, host: str, question: str) -> CommandReply:
        asked = json.loads(question)
        self.asked.append(asked)
        if "targets" not in asked:
            self.saw_mark |= (Path(asked["results"]) / asked["nonce"]).exists()
            facts = facts_of(host, addresses={name: ["10.0.0.1"] for name in asked["hosts"]}, source="aa")
            return line(asdict(probe.HostReport(facts)))
        calls, arrivals = [], []
        for target in asked["targets"]:
            answered = {"answered": True, "answered_by": target["host"], "received_bytes": NUM_BYTES}
            call = {key: target[key] for key in ("host", "address", "kind")}
            calls.append({**call, "port": target["ports"][0], "sizes": (), **answered})
        for caller in asked["callers"]:
            arrivals.append({"host": caller, "address": host, "connected": True, "received_bytes": NUM_BYTES})
        plain = {"port": 40000, "half_open": (), "devices": (), "neighbours": {}, "seconds": 0.1}
        plain |= {"calls": calls, "arrivals": arrivals}
        return line({"schema": SCHEMA, "report": plain, "problem": None})


def surveyed(
    tmp_path: Path, hosts: tuple[str, ...] = HOSTS, **broken: CommandReply
) -> tuple[Hosts, list[PreflightFinding]]:
    """Ask; the mark in the results folder must be gone afterwards."""
    site = Hosts(broken)
    wanted = replace(WANTED, hosts=hosts, results=str(tmp_path / "results"))
    found = survey.of_hosts(wanted, CLUSTER, "/opt/python", site)
    assert list(tmp_path.iterdir()) == []
    return site, list(found.findings)


def test_hosts_are_asked_for_facts_and_then_try_each_other(tmp_path: Path) -> None:
    site, found = surveyed(tmp_path)
    assert found == []
    assert site.saw_mark
    assert [asked.get("port") for asked in site.asked[:3]] == [29500, None, None]  # the ranks meet on the first
    assert {asked["me"]: {t["address"]: t["ports"] for t in asked["targets"]} for asked in site.asked[3:]} == {
        "h0": {"h1": [40000], "h2": [40000]},
        "h1": {"h0": [29500], "h2": [40000]},
        "h2": {"h0": [29500], "h1": [40000]},
    }
    assert len(set(site.secrets)) == 1 and site.secrets[0] and not any(site.secrets[0] in q for q in site.questions)


def test_many_hosts_take_turns_and_each_tries_the_meeting_host(tmp_path: Path) -> None:
    hosts = tuple(f"n{number}" for number in range(150))
    site, found = surveyed(tmp_path, hosts)
    assert found == []
    rounds = [asked for asked in site.asked if "targets" in asked]
    peers = {asked["me"]: {target["host"] for target in asked["targets"]} for asked in rounds}
    assert set(peers) == set(hosts)
    assert all("n0" in others for host, others in peers.items() if host != "n0")
    assert max(map(len, peers.values())) == 63


def test_further_passes_over_512_hosts_meet_new_pairs_in_the_same_order() -> None:
    hosts = [f"n{number}" for number in range(512)]
    met: set[frozenset[str]] = set()
    shares = []
    for turns in links.rounds(hosts):
        assert {host for turn in turns for host in turn} == set(hosts)
        assert all(turn[0] == "n0" and len(turn) <= 64 and len(set(turn)) == len(turn) for turn in turns)
        met |= {frozenset((a, b)) for turn in turns for a in turn for b in turn if a != b}
        shares.append(len(met) / (512 * 511 / 2))
    assert len(shares) == 9 and shares[0] == pytest.approx(0.13, abs=0.01)
    assert shares[-1] > 0.7 and shares == sorted(shares)
    assert list(links.rounds(hosts)) == list(links.rounds(hosts))
    assert list(links.rounds(hosts[:64])) == [[hosts[:64]]]


def network(*addresses: str, name: str = "", nics: tuple[str, ...] = ()) -> links.HostNetwork:
    devices = tuple(Device(f"eth{k}", 1500, None, (address,)) for k, address in enumerate(addresses))
    return links.HostNetwork(devices, (name or addresses[0].partition("/")[0],), nics)


def test_addresses_are_tried_that_a_run_may_use_and_that_both_hosts_can_reach() -> None:
    a = links.HostNetwork((Device("eth0", 1500, None, ("10.0.0.1/24", "fd00::1/64")),), ("10.0.0.1",))
    b = links.HostNetwork((Device("eth0", 1500, None, ("10.0.0.2/24", "fd00::2/64", "fd00::3/64")),), ("10.0.0.2",))
    assert b.more(a) == [("fd00::2", BY_OTHER)], "the other family of the name's device, once"
    other_net = links.HostNetwork((Device("eth0", 1500, None, ("10.0.0.2/24", "fd01::2/64")),), ("10.0.0.2",))
    assert other_net.more(a) == [], "not in a network of both"
    rails = [network(f"10.0.0.{n}/24", f"10.0.1.{n}/24", "172.17.0.1/16", nics=("eth1",)) for n in (1, 2)]
    assert rails[1].more(rails[0]) == [("10.0.1.2", BY_NIC)]
    docker = [network(f"10.0.0.{n}/24", "172.17.0.1/16", nics=("eth1",)) for n in (1, 2)]
    assert docker[1].more(docker[0]) == [], "each host has this address for itself"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"MPIEXEC_PORT_RANGE": "50000:50100"}, (50000, 50100)),
        ({"UCX_TCP_PORT_RANGE": "50000-50100"}, (50000, 50100)),
        ({"FI_TCP_PORT_LOW_RANGE": "50000", "FI_TCP_PORT_HIGH_RANGE": "50100"}, (50000, 50100)),
        ({"OMPI_MCA_btl_tcp_port_min_v4": "50000", "OMPI_MCA_btl_tcp_port_range_v4": "101"}, (50000, 50100)),
        ({"MPIEXEC_PORT_RANGE": "50100:50000"}, None),
    ],
)
def test_the_test_uses_the_ports_of_the_run(env: dict[str, str], expected: tuple[int, int] | None) -> None:
    assert links.port_range(env) == expected


def test_a_run_keeps_its_tests_of_links(tmp_path: Path) -> None:
    own = network("10.0.0.1/24")
    good = Link("h0", "h1", "10.0.0.2", 40000, "name", LinkState.OK)
    bad = replace(good, a="h1", b="h0", address="10.0.0.1", state=LinkState.LOST)
    test = links.LinkTest((good, bad), {}, {}, {"h0": own}, 2)
    assert links.known_before(tmp_path) == ({}, frozenset())
    links.store(tmp_path, links.BEFORE, test)
    links.store(tmp_path, "job", test)
    assert links.known_before(tmp_path) == ({"h0": own}, frozenset({("h0", "h1")}))
    stored = json.loads((tmp_path / "links.json").read_text())
    assert [each["when"] for each in stored["tests"]] == ["before", "job"]
    assert stored["tests"][1]["faulty"][0]["state"] == "lost" and stored["tests"][1]["num_tested"] == 2
    (tmp_path / "links.json").write_text('{"schema": "bench.links/1", "networks": [], "tests": 3}')
    assert links.known_before(tmp_path) == ({}, frozenset())


@pytest.mark.parametrize(
    ("answer", "code", "facts"),
    [
        (
            CommandReply(255, "", "ssh: Could not resolve hostname h1"),
            FindingCode.NOT_REACHED,
            {"agent": "ssh -q h1", "why": "ssh: Could not resolve hostname h1"},
        ),
        (
            CommandReply(None, "", "no answer within 16 s"),
            FindingCode.NOT_REACHED,
            {"why": "no answer within 16 s"},
        ),
        (CommandReply(0, "", ""), FindingCode.NO_REPLY, {"agent": "ssh -q h1"}),
        (
            CommandReply(127, "bench-reached\n", "env: '/opt/python': No such file"),
            FindingCode.NO_INTERPRETER,
            {"python": "/opt/python"},
        ),
        (
            CommandReply(1, "bench-reached\n", "/opt/python: Error ... No module named bench"),
            FindingCode.NO_SUITE,
            {"folder": str(SUITE)},
        ),
        (CommandReply(None, "bench-reached\n", ""), FindingCode.NO_REPLY_IN_TIME, {}),
        (CommandReply(0, 'bench-reached\n{"schema": "bench.host/0"}\n', ""), FindingCode.OTHER_SUITE, {}),
        (CommandReply(9, "bench-reached\n", "boom"), FindingCode.PROBE_FAILED, {"why": "boom"}),
    ],
)
def test_a_host_that_does_not_answer_is_named_with_what_it_lacks(
    tmp_path: Path, answer: CommandReply, code: FindingCode, facts: dict[str, str]
) -> None:
    _, [finding] = surveyed(tmp_path, h1=answer)
    assert (finding.code, finding.hosts, finding.refuses) == (code, ("h1",), True)
    assert facts.items() <= finding.facts.items()
    assert "host h1 " in finding.what


def test_hosts_that_lack_the_same_share_a_finding(tmp_path: Path) -> None:
    _, found = surveyed(
        tmp_path,
        h0=CommandReply(255, "", "ssh: Could not resolve hostname h0: Name or service not known"),
        h2=CommandReply(255, "", "ssh: Could not resolve hostname h2: Name or service not known"),
        h1=CommandReply(255, "", "ssh: connect to host h1 port 22: Connection refused"),
    )
    both, other = found
    assert (both.hosts, both.code, both.facts["agent"]) == (("h0", "h2"), FindingCode.NOT_REACHED, "ssh -q {host}")
    assert both.facts["why"].startswith("ssh: Could not resolve hostname {host}:")
    assert "h[0,2]" in both.what
    assert (other.hosts, other.facts["agent"]) == (("h1",), "ssh -q h1")


def test_the_probe_runs_as_ranks_will(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/more")
    seen: list[HostCommand] = []

    def ask(words_of: Mapping[str, HostCommand], timeout_s: float) -> dict[str, CommandReply]:
        seen.extend(words_of.values())
        return dict.fromkeys(words_of, CommandReply(255, "", "no"))

    survey.of_hosts(Wanted(("h0",), results=str(tmp_path)), CLUSTER, "/opt/python", ask)
    shell, _, script, *words = seen[0].words
    assert shell == "sh" and script.startswith("echo bench-reached;") and script.endswith('exec "$@"')
    assert words[:-1] == ["sh", "/opt/python", "-m", "bench.probes.host"]
    given = seen[0].given.splitlines()
    assert given[:-1] == ["module load x", "export A=1", f"export PYTHONPATH={SUITE}:/more"]


def test_an_agent_that_passes_no_input_is_named(tmp_path: Path) -> None:
    agent = replace(CLUSTER, agent=("docker", "exec", "{host}", "sh", "-c"))
    no_input = CommandReply(hosts.NO_INPUT, "bench-reached\n", "bench: error")
    wanted = Wanted(("h0",), results=str(tmp_path))
    found = survey.of_hosts(wanted, agent, "python", lambda asked, limit_s: dict.fromkeys(asked, no_input))
    [finding] = found.findings
    assert finding.code == FindingCode.NO_INPUT and finding.refuses
    assert finding.facts["agent"] == "docker exec h0 sh -c" and "exec -i" in finding.what


def test_a_refusal_has_the_first_findings_and_where_the_rest_is() -> None:
    wrong = tuple(PreflightFinding((host,), f"{host} is wrong", code="wrong") for host in ("a", "b", "c", "d"))
    odd = PreflightFinding(("e",), "e is odd", refuses=False)
    found = survey.Survey(WANTED, {}, (odd, *wrong))
    with pytest.raises(RefusedError) as error:
        survey.refuse(found, "lab")
    assert [finding["hosts"] for finding in error.value.facts["findings"]] == [("a",), ("b",), ("c",), ("d",)]
    assert error.value.code == "wrong" and holds(str(error.value), "linkbench doctor --cluster lab")
    assert holds(str(error.value), "c", "wrong") and not holds(str(error.value), "d", "wrong")
    assert survey.refuse(replace(found, findings=found.findings[:1]), "lab") == [odd]
