"""Gather the evidence of a failed job from its ranks and hosts, and end its leftover processes.

controller/root_cause.py finds the root cause in the evidence.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.controller import hosts
from bench.controller.root_cause import FailureEvidence
from bench.core.cpu_use import CpuUse
from bench.core.launcher import Blame
from bench.probes import processes, reach
from bench.store import heartbeat
from bench.store.heartbeat import Heartbeat

_ASK_S = 8.0
_STACKS_S = 0.3  # time in which faulthandler writes stacks, even if all CPUs are busy


@dataclass(frozen=True, slots=True)
class JobHosts:
    """The hosts of a job, and how to reach them. If no host is named, ranks run here or a scheduler starts them.

    `python`, `setup` and `env` are those of the ranks.
    """

    hosts: tuple[str, ...] = ()
    agent: tuple[str, ...] = ()
    package_root: Path = Path()
    python: str = sys.executable
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def ask(self, module: str, words: Mapping[str, Sequence[str]]) -> dict[str, ProbeReply]:
        """Run a probe on each host. `words`: the probe's arguments for each host."""
        run = [self.python, "-m", module]
        asked = {
            host: hosts.in_rank_environment([*run, *words[host]], self.setup, self.env, str(self.package_root))
            for host in self.hosts
        }
        answers = hosts.ask(self.agent, asked, _ASK_S)
        return {host: ProbeReply(_parsed(answer.out), hosts.MARK in answer.out) for host, answer in answers.items()}


@dataclass(frozen=True, slots=True)
class ProbeReply:
    """A probe's answer from a host (None without one), and whether the host was reached."""

    answer: dict[str, Any] | None
    reached: bool = True


def gather(
    job_id: str,
    num_ranks: int,
    beats_folder: Path,
    log: str,
    launcher: Blame | None,
    reached: JobHosts,
    late: bool,
    silent_s: Mapping[int, float],
) -> FailureEvidence:
    """Collect evidence from all hosts and ranks that still answer. Ranks of a late job also write their stacks.

    Evidence from ranks and hosts has the hosts' own names, which may differ from the names in `hosts:`.
    """
    beats = heartbeat.read_all(beats_folder)
    replies, reachability = _ask_hosts(job_id, beats, reached, "stacks" if late else "look")
    if late:
        time.sleep(_STACKS_S)
    told = [reply.answer for reply in replies.values() if reply.answer]
    return FailureEvidence(
        num_ranks=num_ranks,
        beats=beats,
        reports=tuple(heartbeat.last_words(log)),
        launcher=launcher,
        late=late,
        crashed=tuple(beat.rank for beat in beats if heartbeat.crashed(beats_folder, beat.rank)),
        silent_s=silent_s,
        states={answer["host"]: answer["processes"] for answer in told},
        cpu={
            beat.rank: CpuUse(**answer["cpu"][str(beat.process)])
            for answer in told
            for beat in beats
            if beat.host == answer["host"] and str(beat.process) in answer.get("cpu", {})
        },
        unreachable=tuple(host for host, reply in replies.items() if not reply.reached),
        cut_off=_cut_off({host: reply.answer["unreachable"] for host, reply in reachability.items() if reply.answer}),
        unplugged=_unplugged({host: reply.answer["unplugged"] for host, reply in reachability.items() if reply.answer}),
    )


def _ask_hosts(
    job_id: str, beats: Sequence[Heartbeat], reached: JobHosts, verb: str
) -> tuple[dict[str, ProbeReply], dict[str, ProbeReply]]:
    """(each host's reply about processes of the job, each host's reply about which other hosts it can reach)."""
    ranks = [f"{beat.host}:{beat.process}" for beat in beats]
    if not reached.hosts:
        return {"": ProbeReply(processes.answer(verb, job_id, ranks))}, {}
    with ThreadPoolExecutor(2) as pool:
        replies = pool.submit(reached.ask, processes.__name__, dict.fromkeys(reached.hosts, (verb, job_id, *ranks)))
        others = {host: [other for other in reached.hosts if other != host] for host in reached.hosts}
        reachability = pool.submit(reached.ask, reach.__name__, others)
        return replies.result(), reachability.result()


def _cut_off(unreachable: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """Hosts that no other host reaches although the others reach each other."""
    cut = []
    for host in unreachable:
        others = [other for other in unreachable if other != host]
        whole = len(others) > 1 and not any(b in unreachable[a] for a in others for b in others if a != b)
        if whole and all(host in unreachable[other] for other in others):
            cut.append(host)
    return tuple(cut)


def _unplugged(devices: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """For each host, devices without a carrier, unless they lack it on all hosts: such ports were never in use."""
    usual = set.intersection(*map(set, devices.values())) if len(devices) > 1 else set()
    found = {host: [device for device in own if device not in usual] for host, own in devices.items()}
    return {host: own for host, own in found.items() if own}


def stacks(beats_folder: Path) -> str:
    """The stacks that the ranks wrote when the controller asked for them, as text for the job's log."""
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
    """The last JSON line; a login may print a greeting before it."""
    lines = [line for line in out.splitlines() if line.startswith("{")]
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
