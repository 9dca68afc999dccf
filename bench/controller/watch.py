"""Gather the evidence of a failed job from its ranks and hosts, and end its leftover processes.

controller/root_cause.py finds the root cause in the evidence.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Any

from bench.controller import hosts, link_causes, links
from bench.controller.hosts import HostCommand
from bench.controller.links import HostNetwork, LinkTest
from bench.controller.root_cause import FailureEvidence
from bench.core.cpu_use import CpuUse
from bench.core.launcher import Blame, BlameCode
from bench.core.seal import SECRET_VARIABLE
from bench.probes import links as link_probe
from bench.probes import processes
from bench.store import heartbeat
from bench.store.heartbeat import Heartbeat

_ASK_S = 8.0
# duration of a round of link tests; additional time for a login and the start of an interpreter
_ROUND_S, _SLACK_S = 4.0, 7.0
_EPHEMERAL = (32768, 60999)  # Linux's range of ports, which ranks use unless a variable limits it
_MOST_PRINTED = 1 << 20  # bytes of a log; a launcher reports a taken port long before
_NUM_PORTS = 2  # ports per host, which listens on the first free one
_STACKS_S = 0.3  # how long to wait until faulthandler has written stacks, even if all CPUs are busy


@dataclass(frozen=True, slots=True)
class JobHosts:
    """The hosts of a job, and how to reach them.

    If no host is named, the ranks run on this machine, or a scheduler starts them.

    `python`, `setup` and `env`: the values that the ranks use. `networks`: the hosts' networks as reported before the
        run.
    `passed`: each ordered pair (sender, receiver) of hosts whose packets arrived before the run.
    """

    hosts: tuple[str, ...] = ()
    agent: tuple[str, ...] = ()
    python: str = sys.executable
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    networks: Mapping[str, HostNetwork] = field(default_factory=dict)
    passed: frozenset[tuple[str, str]] = frozenset()

    def ask(self, module: str, words: Mapping[str, Sequence[str]]) -> dict[str, ProbeReply]:
        """Run a probe on each host. `words`: for each host, the arguments of the probe."""
        asked = {host: self._command([module, *words[host]], self.env) for host in self.hosts}
        answers = hosts.ask(self.agent, asked, _ASK_S)
        return {host: ProbeReply(_parsed(answer.out), hosts.MARK in answer.out) for host, answer in answers.items()}

    def test_links(self, first: Sequence[str]) -> LinkTest:
        """Test the links between the hosts. The test includes at most links.AT_ONCE hosts.

        Hosts in `first` are chosen before all other hosts.
        """
        order = [*(host for host in first if host in self.hosts), *(host for host in self.hosts if host not in first)]
        networks = {host: self.networks.get(host, HostNetwork()) for host in order[: links.AT_ONCE]}
        low, high = links.port_range(self.env) or _EPHEMERAL
        ports = random.sample(range(low, high + 1), min(_NUM_PORTS, high + 1 - low))

        def ask(questions: Mapping[str, Any], secret: str, timeout_s: float) -> Mapping[str, hosts.CommandReply]:
            env = {**self.env, SECRET_VARIABLE: secret}
            asked = {host: self._command([link_probe.__name__, json.dumps(q)], env) for host, q in questions.items()}
            return hosts.ask(self.agent, asked, timeout_s)

        return links.test(networks, dict.fromkeys(networks, ports), lambda a, b: True, ask, _ROUND_S, _SLACK_S)

    def _command(self, words: Sequence[str], env: Mapping[str, str]) -> HostCommand:
        return hosts.in_rank_environment([self.python, "-m", *words], self.setup, env)


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """A probe's answer from a host (None without an answer), and whether the host was reached."""

    answer: dict[str, Any] | None
    reached: bool = True


class MeetingPort:
    """Finds out which program uses the rendezvous port, as soon as the launcher reports that the port is taken.

    The program on this port may end before the job ends, so the controller does not wait for the end of the job. A
    separate thread asks the first host, so the controller can continue to renew the job's lease.
    """

    def __init__(self, job_id: str, reached: JobHosts, blamed: Callable[[str], Blame | None]) -> None:
        self._job_id, self._reached, self._blamed = job_id, reached, blamed
        self._printed = b""
        self._over = not reached.hosts
        self._answer: dict[str, Any] | None = None
        self._asking: Thread | None = None

    def look(self, log: Path, log_from: int) -> None:
        """Check the launcher's output so far. This output begins at byte `log_from` of the log."""
        if self._over:
            return
        new = b""
        with contextlib.suppress(OSError), log.open("rb") as file:
            file.seek(log_from + len(self._printed))
            new = file.read(_MOST_PRINTED)
        if not new:
            return
        self._printed += new
        port = _taken_port(self._blamed(self._printed.decode(errors="replace")))
        if port is not None:
            self._asking = Thread(target=self._ask, args=(port,), daemon=True)
            self._asking.start()
        self._over = port is not None or len(self._printed) > _MOST_PRINTED

    def answer(self) -> dict[str, Any] | None:
        """Return the reply of the first host if the reply names a program that uses the port.

        Otherwise, return None.
        """
        if self._asking is not None:
            self._asking.join(_ASK_S)
        return self._answer if self._answer and self._answer.get("holders") else None

    def _ask(self, port: int) -> None:
        first = replace(self._reached, hosts=self._reached.hosts[:1])
        words = ("look", self._job_id, f"{processes.PORT_OPTION}{port}")
        self._answer = first.ask(processes.__name__, {first.hosts[0]: words})[first.hosts[0]].answer


def _taken_port(blame: Blame | None) -> int | None:
    taken = blame is not None and blame.how.code == BlameCode.PORT_TAKEN
    return int(blame.how.facts["port"]) if blame is not None and taken else None


def gather(
    job_id: str,
    num_ranks: int,
    beats_folder: Path,
    log: str,
    launcher: Blame | None,
    reached: JobHosts,
    late: bool,
    silent_s: Mapping[int, float],
    running_s: float,
    seen_before: Mapping[str, Any] | None = None,
) -> FailureEvidence:
    """Collect evidence from all hosts and ranks that still answer. If a job is late, its ranks also write their stacks.

    `running_s`: how long the job ran, in seconds. A host has restarted if it booted less than `running_s` ago.
    `seen_before`: an earlier reply of the first host about the rendezvous port (MeetingPort.answer).

    The evidence names hosts by their own host names, which may differ from the names in `hosts:`.
    """
    beats = heartbeat.read_all(beats_folder)
    port = _taken_port(launcher)
    replies, tested = _ask_hosts(job_id, beats, reached, "stacks" if late else "look", silent_s, port)
    if late:
        time.sleep(_STACKS_S)
    told = [reply.answer for reply in replies.values() if reply.answer]
    seen = [*told, *filter(None, (seen_before,))]  # an earlier reply about the port counts more than a later one
    return FailureEvidence(
        num_ranks=num_ranks,
        beats=beats,
        reports=tuple(heartbeat.last_words(log)),
        launcher=launcher,
        late=late,
        crashed=tuple(beat.rank for beat in beats if heartbeat.crashed(beats_folder, beat.rank)),
        silent_s=silent_s,
        states={answer["host"]: answer["processes"] for answer in told},
        other_jobs={answer["host"]: tuple(answer.get("others", ())) for answer in seen},
        first_host=_first_host(reached, replies),
        port_holders={answer["host"]: tuple(answer.get("holders", ())) for answer in seen},
        cpu={
            beat.rank: CpuUse(**answer["cpu"][str(beat.process)])
            for answer in told
            for beat in beats
            if beat.host == answer["host"] and str(beat.process) in answer.get("cpu", {})
        },
        unreachable=tuple(host for host, reply in replies.items() if not reply.reached),
        restarted={told_by["host"]: told_by["up_s"] for told_by in told if _is_younger(told_by.get("up_s"), running_s)},
        links=tested,
        link_causes=tuple(
            link_causes.causes(tested.links, tested.reports, lambda a, b: (a, b) in reached.passed),
        ),
        moved=tuple(link_causes.moved(heartbeat.read_moved(beats_folder, beats), tested.links, tested.reports)),
        carrier_lost=link_causes.carrier_lost(heartbeat.read_carriers(beats_folder, beats), tested.links),
        unanswered=link_causes.unanswered(tested.reports),
        unplugged=_unplugged(
            {host: [x.name for x in report.devices if x.unplugged] for host, report in tested.reports.items()}
        ),
    )


def _first_host(reached: JobHosts, replies: Mapping[str, ProbeReply]) -> str | None:
    """Return the host name of the first host, where the ranks meet.

    If the first host did not answer, return its name in `hosts:`.
    """
    if not reached.hosts:
        return None
    answer = replies[reached.hosts[0]].answer
    return str(answer["host"]) if answer else reached.hosts[0]


def _is_younger(up_s: float | None, running_s: float) -> bool:
    return up_s is not None and up_s < running_s


def _ask_hosts(
    job_id: str,
    beats: Sequence[Heartbeat],
    reached: JobHosts,
    verb: str,
    silent_s: Mapping[int, float],
    port: int | None,
) -> tuple[dict[str, ProbeReply], LinkTest]:
    """Return the reply of each host about the job's processes, and the test of the links between the hosts.

    `port`: a TCP port. The reply of each host names the program that listens on this port.
    """
    words = [] if port is None else [f"{processes.PORT_OPTION}{port}"]
    words += [f"{beat.host}:{beat.process}" for beat in beats]
    if not reached.hosts:
        return {"": ProbeReply(processes.answer(verb, job_id, words))}, LinkTest()
    silent = sorted(beats, key=lambda beat: -silent_s.get(beat.rank, 0.0))
    with ThreadPoolExecutor(2) as pool:
        replies = pool.submit(reached.ask, processes.__name__, dict.fromkeys(reached.hosts, (verb, job_id, *words)))
        tested = pool.submit(reached.test_links, list(dict.fromkeys(beat.host for beat in silent)))
        return replies.result(), tested.result()


def _unplugged(devices: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Map each host to its network devices without a carrier.

    A device without a carrier on every host is omitted, because the ports of this device were never in use.
    """
    usual = set.intersection(*map(set, devices.values())) if len(devices) > 1 else set()
    found = {host: [device for device in own if device not in usual] for host, own in devices.items()}
    return {host: own for host, own in found.items() if own}


def stacks(beats_folder: Path) -> str:
    """Return the stacks that the ranks wrote when the controller asked for them, as text for the job's log."""
    found = []
    for path in sorted(beats_folder.glob("*.stack"), key=lambda path: int(path.stem)):
        text = path.read_text(encoding="utf-8", errors="replace").strip()
        if text:
            found.append(f"stacks of rank {path.stem}:\n{text}\n")
    return "\n".join(found)


def end_everywhere(job_id: str, reached: JobHosts) -> tuple[str, ...]:
    """End every process of a job on every host. Returns the hosts that did not answer."""
    processes.end_job(job_id)
    answers = reached.ask(processes.__name__, dict.fromkeys(reached.hosts, ("end", job_id)))
    return tuple(host for host, reply in answers.items() if reply.answer is None)


def _parsed(out: str) -> dict[str, Any] | None:
    """Return the JSON object in the last line that begins with a brace, or None if there is no such object.

    The output may begin with other lines, such as a greeting at login.
    """
    lines = [line for line in out.splitlines() if line.startswith("{")]
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
