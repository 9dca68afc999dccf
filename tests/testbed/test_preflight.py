"""Faults of hosts before a run: exit code 3, a finding that names the host, nothing measured."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.controller.messages import FindingCode, LinkCode
from bench.core.codes import Code
from bench.rank.messages import RankRefusal
from tests.facts import holds
from tests.testbed.hosts import Ran, Testbed

pytestmark = pytest.mark.netns
ROOT = Path(__file__).resolve().parent.parent.parent
Make = Callable[..., Testbed]
WRAPPER = "/run/tmp/python"  # each host has a /run of its own


class Controller:
    """The suite on the first host, with a cluster entry of all hosts and a scenario of one job."""

    def __init__(self, bed: Testbed, **cluster: Any) -> None:
        self.bed, self.folder = bed, bed.shared / "controller"
        (self.folder / "scenarios").mkdir(parents=True)
        entry: dict[str, Any] = {
            "nodes": len(bed.hosts),
            "ranks_per_node": 1,
            "launcher": "mpirun",
            "hosts": list(bed.hosts),
            "agent": bed.agent,
        } | cluster
        (self.folder / "bench.yaml").write_text(json.dumps({"clusters": {"site": entry}}))
        self.measure("gloo")

    def measure(self, transport: str) -> None:
        """What the scenario measures."""
        measure = [{"pattern": "allreduce", "transport": transport, "sizes": [8], "iterations": 2}]
        (self.folder / "scenarios" / "small.yaml").write_text(json.dumps({"measure": measure}))

    def __call__(self, command: str, *words: str) -> Ran:
        """A command of the suite."""
        env = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
        line = [sys.executable, "-m", "bench", command, "small", "--cluster", "site", *words]
        return self.bed.on("h0", line, env=env, cwd=self.folder, timeout_s=120)

    def findings(self) -> list[dict[str, Any]]:
        """The findings of `doctor` that refuse; its exit code must fit, and the evidence of links be there."""
        done = self("doctor", "--format", "json")
        document = json.loads(done.out)
        assert (document["schema"], list(document["hosts"])) == ("bench.doctor/1", list(self.bed.hosts)), done.err
        wrong = [finding for finding in document["findings"] if finding["refuses"]]
        assert done.code == (3 if wrong else 0)
        assert {"num_pairs", "num_tested", "reached", "faulty", "neighbours"} <= document["links"].keys()
        return wrong

    def each_host_has(self, variables: str, on: Sequence[str]) -> None:
        """An interpreter of its own on every host, which sets shell `variables` on some."""
        for host in self.bed.hosts:
            line = f'{variables if host in on else ""} exec {sys.executable} "$@"'
            done = self.bed.on(
                host, ["sh", "-c", f"printf '#!/bin/sh\\n%s\\n' '{line}' > {WRAPPER}; chmod +x {WRAPPER}"]
            )
            assert done.code == 0, done.err


def test_hosts_without_faults_are_listed_and_nothing_stays(testbed: Make) -> None:
    bed = testbed(3)
    done = Controller(bed)("doctor")
    assert done.code == 0, done.err
    sentences = re.sub(r"\n +", " ", done.out).splitlines()
    # All hosts are this machine, whose CPUs the other hosts' probes use.
    lines = [line for line in sentences if not (line.startswith("note") and "busy" in line)]
    rows = [line.split() for line in lines if line.startswith(bed.hosts)]
    assert [row[0] for row in rows] == list(bed.hosts)
    assert {row[1] for row in rows} <= {"OK", "doubtful"}
    assert any(holds(line, "cluster site", "start") for line in lines)
    assert [line for line in done.out.splitlines() if line.startswith("machine")] == ["machines h[0-2]"], done.out
    assert not [line for line in lines if line.startswith(("note", "wrong"))], "healthy links get no word"
    assert bed.processes() == []
    assert not (bed.shared / "controller" / "results").exists()


def cut(bed: Testbed) -> None:
    bed.cut("h2")


def no_route(bed: Testbed) -> None:
    done = bed.on("h2", ["ip", "route", "add", "blackhole", f"{bed.address('h1')}/32"])
    assert done.code == 0, done.err


def closed_one_way(bed: Testbed) -> None:
    """Drop the first packet of connections from h1 to h2 (SYN without ACK) in a queue without room."""
    syn = f"match ip dst {bed.address('h2')}/32 match ip protocol 6 0xff match u8 0x02 0x12 at 33"
    for words in (
        "qdisc add dev eth0 root handle 1: htb default 1",
        "class add dev eth0 parent 1: classid 1:1 htb rate 10gbit quantum 60000",
        "class add dev eth0 parent 1: classid 1:2 htb rate 1mbit",
        "qdisc add dev eth0 parent 1:2 bfifo limit 1",
        f"filter add dev eth0 parent 1: protocol ip u32 {syn} flowid 1:2",
    ):
        done = bed.on("h1", ["tc", *words.split()])
        assert done.code == 0, done.err


def not_there(bed: Testbed) -> None:
    bed.unreachable("h1")


def dead(bed: Testbed) -> None:
    bed.kill_host("h2")


def full(bed: Testbed) -> None:
    bed.small_disk("h0", bed.shared / "controller" / "results", "16k")


def own_name_at_home(bed: Testbed) -> None:
    """As some installers write it: the host's own name with an address that only the host itself can reach."""
    names = (bed.shared / "hosts").read_text().replace(f"{bed.address('h1')} h1", "127.0.1.1 h1")
    (bed.shared / "hosts-h1").write_text(names)
    assert bed.on("h1", ["mount", "--bind", str(bed.shared / "hosts-h1"), "/etc/hosts"]).code == 0


def name_unknown(bed: Testbed) -> None:
    names = (bed.shared / "hosts").read_text().replace(f"{bed.address('h1')} h1\n", "")
    (bed.shared / "hosts-h2").write_text(names)
    assert bed.on("h2", ["mount", "--bind", str(bed.shared / "hosts-h2"), "/etc/hosts"]).code == 0


@pytest.mark.parametrize(
    ("fault", "hosts", "code"),
    [
        pytest.param(cut, ["h2"], LinkCode.NOBODY_CONNECTS, marks=pytest.mark.slow),
        pytest.param(no_route, ["h2", "h1"], LinkCode.ONE_WAY, marks=pytest.mark.slow),
        (closed_one_way, ["h1", "h2"], LinkCode.NOT_CONNECTED),
        pytest.param(not_there, ["h1"], FindingCode.NOT_REACHED, marks=pytest.mark.slow),
        (dead, ["h2"], FindingCode.NOT_REACHED),
        pytest.param(full, ["h0"], FindingCode.RESULTS_NOT_WRITABLE, marks=pytest.mark.slow),
        pytest.param(own_name_at_home, ["h1"], FindingCode.OWN_NAME_IS_LOOPBACK, marks=pytest.mark.slow),
        (name_unknown, ["h1"], FindingCode.NAME_UNKNOWN),
    ],
)
def test_a_host_with_a_fault_is_named(
    testbed: Make, fault: Callable[[Testbed], None], hosts: list[str], code: Code
) -> None:
    bed = testbed(3)
    controller = Controller(bed)
    fault(bed)
    found = controller.findings()
    assert len(found) == 1, found
    assert (found[0]["hosts"], found[0]["code"]) == (hosts, code)
    assert bed.processes() == []


def test_a_run_is_refused_with_one_error_before_anything_starts(testbed: Make) -> None:
    bed = testbed(2)
    controller = Controller(bed)
    hold = "import socket, time; s = socket.create_server(('', 29500)); print('held', flush=True); time.sleep(100)"
    held = bed.popen("h0", [sys.executable, "-c", hold])
    while "held" not in held.out:
        assert held.poll() is None, held.err
    done = controller("run")
    held.signal(9)
    held.wait(5)
    [error] = [line for line in done.err.splitlines() if line.startswith("bench: error: ")]
    assert (done.code, done.out) == (3, "")
    assert holds(error, "port 29500", "host h0")
    assert not (controller.folder / "results").exists()
    assert bed.processes() == []


def test_a_wrong_host_name_is_refused(testbed: Make) -> None:
    done = Controller(testbed(2), hosts=["h0", "h7"])("run")
    assert (done.code, done.out) == (3, "")
    assert "error: host h7 " in done.err and "`hosts:`" in done.err


def test_another_version_on_one_host_and_an_interpreter_that_another_lacks_are_named(testbed: Make) -> None:
    bed = testbed(4)
    controller = Controller(bed, python=WRAPPER)
    other = bed.shared / "other" / "torch-1.2.3.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.2.3\n")
    controller.each_host_has(f"PYTHONPATH={other.parent}:$PYTHONPATH", on=["h1"])
    assert bed.on("h2", ["rm", WRAPPER]).code == 0
    lacking, differing = sorted(controller.findings(), key=lambda finding: str(finding["code"]))
    assert (lacking["hosts"], lacking["code"]) == (["h2"], FindingCode.NO_INTERPRETER)
    assert lacking["facts"]["python"] == WRAPPER
    assert (differing["hosts"], differing["code"]) == (["h1"], FindingCode.VERSIONS_DIFFER)
    assert (differing["facts"]["what"], differing["facts"]["value"]) == ("torch", "1.2.3")


def test_a_variable_on_one_host_only_is_refused_by_the_ranks(testbed: Make) -> None:
    bed = testbed(2)
    controller = Controller(bed, python=WRAPPER)
    controller.measure("mpi")
    controller.each_host_has("export MPICH_ASYNC_PROGRESS=0 NCCL_DEBUG=INFO;", on=["h1"])
    done = controller("run", "--no-plots")
    assert done.code == 3, done.err
    [file] = controller.folder.glob("results/*/outcomes.json")
    [outcome] = json.loads(file.read_text()).values()
    assert (outcome["code"], outcome["refused"]) == (RankRefusal.VARIABLE_DIFFERS, True)
    assert outcome["facts"]["name"] == "MPICH_ASYNC_PROGRESS" and "0 on h1" in outcome["facts"]["where"]
    assert not list(controller.folder.glob("results/*/*.jsonl"))
    assert bed.processes() == []


@pytest.mark.slow
def test_what_is_resumed_is_checked_again(testbed: Make) -> None:
    bed = testbed(2)
    controller = Controller(bed)
    controller.measure("mpi")
    done = controller("run", "--no-plots")
    assert done.code == 0, done.err
    [records] = controller.folder.glob("results/*/*.jsonl")
    records.unlink()
    bed.unreachable("h1")
    done = controller("run", "--no-plots", "--resume", "latest")
    assert done.code == 3, done.err
    assert "error: host h1 " in done.err
    assert not records.exists()
