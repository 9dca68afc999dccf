"""The survey of a cluster's hosts, with hosts that are answered for here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from bench.config.clusters import Cluster
from bench.controller import survey
from bench.controller.host_checks import PreflightFinding, Wanted
from bench.controller.hosts import CommandReply
from bench.core.errors import RefusedError
from bench.probes import host as probe
from bench.probes.ports import PeerReply
from tests.controller.test_host_checks import HOSTS, WANTED, told

CLUSTER = Cluster("lab", nodes=3, hosts=HOSTS, agent=("ssh", "-q", "{host}"), env={"A": "1"}, setup=("module load x",))
SUITE = Path("/opt/suite")


def line(answer: Mapping[str, Any]) -> CommandReply:
    """What a host prints: a greeting of the login, the mark, one line of JSON."""
    return CommandReply(0, f"welcome\nbench-reached\n{json.dumps(answer)}\n", "")


class Site:
    """Hosts that are well, except those in `broken`; remembers what they were asked."""

    def __init__(self, broken: Mapping[str, CommandReply]) -> None:
        self.broken, self.asked = broken, list[dict[str, Any]]()
        self.saw_mark = False

    def __call__(self, words_of: Mapping[str, Sequence[str]], timeout_s: float) -> dict[str, CommandReply]:
        return {host: self.broken.get(host) or self._answer(host, words[-1]) for host, words in words_of.items()}

    def _answer(self, host: str, question: str) -> CommandReply:
        asked = json.loads(question)
        self.asked.append(asked)
        if "peers" not in asked:
            self.saw_mark |= (Path(asked["results"]) / asked["nonce"]).exists()
            facts = told(host, addresses={name: ["10.0.0.1"] for name in asked["hosts"]}, source="aa")
            return line(asdict(probe.HostReport(facts=facts)))
        reached = {peer: PeerReply(None, 0.0, 0.001) for peer in asked["peers"]}
        return line(asdict(probe.HostReport(reached=reached)))


def surveyed(
    tmp_path: Path, hosts: tuple[str, ...] = HOSTS, **broken: CommandReply
) -> tuple[Site, list[PreflightFinding]]:
    """Ask; the mark in the results folder must be gone afterwards."""
    site = Site(broken)
    wanted = replace(WANTED, hosts=hosts, results=str(tmp_path / "results"))
    found = survey.of_hosts(wanted, CLUSTER, "/opt/python", SUITE, site)
    assert list(tmp_path.iterdir()) == []
    return site, list(found.findings)


def test_hosts_that_are_well_are_asked_for_facts_and_then_try_each_other(tmp_path: Path) -> None:
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
    ("answer", "sentence"),
    [
        (
            CommandReply(255, "", "ssh: Could not resolve hostname h1"),
            "host h1 can not be reached by `ssh -q h1` (ssh: Could not resolve hostname h1",
        ),
        (CommandReply(None, "", "no answer within 16 s"), "(no answer within 16 s): correct its name in `hosts:`"),
        (
            CommandReply(0, "", ""),
            "host h1 answered nothing to `ssh -q h1`: the words of `agent:` must run the command",
        ),
        (
            CommandReply(127, "bench-reached\n", "env: '/opt/python': No such file"),
            "host h1 has no interpreter /opt/python: install it there",
        ),
        (
            CommandReply(1, "bench-reached\n", "/opt/python: Error ... No module named bench"),
            "host h1 can not import the suite",
        ),
        (CommandReply(None, "bench-reached\n", ""), "host h1 was reached but did not answer in time"),
        (
            CommandReply(0, 'bench-reached\n{"schema": "bench.host/0"}\n', ""),
            "host h1 has another version of the suite",
        ),
        (CommandReply(9, "bench-reached\n", "boom"), "host h1 could not answer (boom): run `/opt/python -m"),
    ],
)
def test_a_host_that_does_not_answer_is_named_with_what_it_lacks(
    tmp_path: Path, answer: CommandReply, sentence: str
) -> None:
    _, [finding] = surveyed(tmp_path, h1=answer)
    assert sentence in finding.what
    assert (finding.hosts, finding.refuses) == (("h1",), True)


def test_hosts_that_lack_the_same_are_told_together(tmp_path: Path) -> None:
    _, found = surveyed(
        tmp_path,
        h0=CommandReply(255, "", "ssh: Could not resolve hostname h0: Name or service not known"),
        h2=CommandReply(255, "", "ssh: Could not resolve hostname h2: Name or service not known"),
        h1=CommandReply(255, "", "ssh: connect to host h1 port 22: Connection refused"),
    )
    assert [(finding.hosts, finding.what.partition(" (ssh:")[0]) for finding in found] == [
        (("h0", "h2"), "each of 2 hosts (h[0,2]) can not be reached by `ssh -q {host}`"),
        (("h1",), "host h1 can not be reached by `ssh -q h1`"),
    ]
    assert "hostname {host}: Name or service not known" in found[0].what


def test_the_probe_runs_as_ranks_will(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/more")
    seen: list[Sequence[str]] = []

    def ask(words_of: Mapping[str, Sequence[str]], timeout_s: float) -> dict[str, CommandReply]:
        seen.extend(words_of.values())
        return dict.fromkeys(words_of, CommandReply(255, "", "no"))

    survey.of_hosts(Wanted(("h0",), results=str(tmp_path)), CLUSTER, "/opt/python", SUITE, ask)
    assert seen[0][:2] == ["sh", "-c"]
    assert seen[0][2].splitlines() == ["echo bench-reached", "module load x", 'exec "$@"']
    assert seen[0][3:-1] == [
        "sh",
        "env",
        "A=1",
        "PYTHONPATH=/opt/suite:/more",
        "/opt/python",
        "-m",
        "bench.probes.host",
    ]


def test_a_refusal_tells_the_first_findings_and_where_the_rest_is() -> None:
    wrong = tuple(PreflightFinding((host,), f"{host} is wrong") for host in ("a", "b", "c", "d"))
    found = survey.Survey(WANTED, {}, (PreflightFinding(("e",), "e is odd", refuses=False), *wrong))
    with pytest.raises(RefusedError) as error:
        survey.refuse(found, "lab")
    assert str(error.value) == "a is wrong; b is wrong; c is wrong; and 1 more: python -m bench doctor --cluster lab"
    assert survey.refuse(replace(found, findings=found.findings[:1]), "lab") == ["e is odd"]
