"""The survey of a cluster's hosts, with replies made here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bench.config.clusters import Cluster
from bench.controller import hosts, survey
from bench.controller.host_checks import PreflightFinding, Wanted
from bench.controller.hosts import CommandReply, HostCommand
from bench.controller.messages import FindingCode
from bench.core.errors import RefusedError
from bench.probes import host as probe
from bench.probes.ports import PeerReply
from tests.controller.test_host_checks import HOSTS, WANTED, facts_of
from tests.facts import holds

CLUSTER = Cluster("lab", nodes=3, hosts=HOSTS, agent=("ssh", "-q", "{host}"), env={"A": "1"}, setup=("module load x",))
SUITE = Path("/opt/suite")


def line(answer: Mapping[str, Any]) -> CommandReply:
    """What a host prints: a greeting of the login, the mark, one line of JSON."""
    return CommandReply(0, f"welcome\nbench-reached\n{json.dumps(answer)}\n", "")


class Hosts:
    """Hosts without faults, except those in `broken`; remembers what they were asked."""

    def __init__(self, broken: Mapping[str, CommandReply]) -> None:
        self.broken, self.asked = broken, list[dict[str, Any]]()
        self.saw_mark = False

    def __call__(self, words_of: Mapping[str, HostCommand], timeout_s: float) -> dict[str, CommandReply]:
        return {host: self.broken.get(host) or self._answer(host, words.words[-1]) for host, words in words_of.items()}

    def _answer(self, host: str, question: str) -> CommandReply:
        asked = json.loads(question)
        self.asked.append(asked)
        if "peers" not in asked:
            self.saw_mark |= (Path(asked["results"]) / asked["nonce"]).exists()
            facts = facts_of(host, addresses={name: ["10.0.0.1"] for name in asked["hosts"]}, source="aa")
            return line(asdict(probe.HostReport(facts=facts)))
        reached = {peer: PeerReply(None, 0.0, 0.001) for peer in asked["peers"]}
        return line(asdict(probe.HostReport(reached=reached)))


def surveyed(
    tmp_path: Path, hosts: tuple[str, ...] = HOSTS, **broken: CommandReply
) -> tuple[Hosts, list[PreflightFinding]]:
    """Ask; the mark in the results folder must be gone afterwards."""
    site = Hosts(broken)
    wanted = replace(WANTED, hosts=hosts, results=str(tmp_path / "results"))
    found = survey.of_hosts(wanted, CLUSTER, "/opt/python", SUITE, site)
    assert list(tmp_path.iterdir()) == []
    return site, list(found.findings)


def test_hosts_are_asked_for_facts_and_then_try_each_other(tmp_path: Path) -> None:
    site, found = surveyed(tmp_path)
    assert found == []
    assert site.saw_mark
    assert [asked.get("port") for asked in site.asked[:3]] == [29500, None, None]  # the ranks meet on the first
    assert {asked["me"]: asked["peers"] for asked in site.asked[3:]} == {
        "h0": {"h1": 40000, "h2": 40000},
        "h1": {"h0": 29500, "h2": 40000},
        "h2": {"h0": 29500, "h1": 40000},
    }


def test_many_hosts_take_turns_and_each_tries_the_meeting_host(tmp_path: Path) -> None:
    hosts = tuple(f"n{number}" for number in range(150))
    site, found = surveyed(tmp_path, hosts)
    assert found == []
    rounds = [asked for asked in site.asked if "peers" in asked]
    assert {asked["me"] for asked in rounds} == set(hosts)
    assert all("n0" in asked["peers"] for asked in rounds if asked["me"] != "n0")
    assert max(len(asked["peers"]) for asked in rounds) == 63


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
    assert finding.what.startswith("host h1 ")


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

    survey.of_hosts(Wanted(("h0",), results=str(tmp_path)), CLUSTER, "/opt/python", SUITE, ask)
    shell, _, script, *words = seen[0].words
    assert shell == "sh" and script.startswith("echo bench-reached;") and script.endswith('exec "$@"')
    assert words[:-1] == ["sh", "/opt/python", "-m", "bench.probes.host"]
    given = seen[0].given.splitlines()
    assert given[:-1] == ["module load x", "export A=1", "export PYTHONPATH=/opt/suite:/more"]


def test_an_agent_that_passes_no_input_is_named(tmp_path: Path) -> None:
    agent = replace(CLUSTER, agent=("docker", "exec", "{host}", "sh", "-c"))
    no_input = CommandReply(hosts.NO_INPUT, "bench-reached\n", "bench: error")
    wanted = Wanted(("h0",), results=str(tmp_path))
    found = survey.of_hosts(wanted, agent, "python", SUITE, lambda asked, limit_s: dict.fromkeys(asked, no_input))
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
    assert error.value.code == "wrong" and holds(str(error.value), "bench doctor --cluster lab")
    assert holds(str(error.value), "c", "wrong") and not holds(str(error.value), "d", "wrong")
    assert survey.refuse(replace(found, findings=found.findings[:1]), "lab") == [odd]
