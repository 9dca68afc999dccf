"""Why a job came to grief, and on whom to look: evidence from its ranks, its launcher and its hosts, and an end to all.

A rank that stops, dies or is cut off takes its peers with it, and they complain first. So each piece of evidence is
asked what it can prove, from the strongest to the weakest, and a rank's complaint of lost contact proves nothing.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.core.launcher import Blame
from bench.driver import hosts
from bench.probes import processes, reach
from bench.store import heartbeat
from bench.store.heartbeat import TERMINATED, Beat

_ASK_S = 8.0
_CLEARLY_S = 1.5  # beats are looked at once a second
_STACKS_S = 0.3  # for faulthandler to write them, even with every CPU taken
_ERROR = "bench: error: "
_ON_RANK = re.compile(r"rank (\d+) on (\S+): ")
_CONSEQUENCES = ("lost contact with its peers", "no progress for", "could not join", "did not arrive")


@dataclass(frozen=True, slots=True)
class Reached:
    """The hosts of a job and how they are reached. No names: the ranks are on this machine, or a scheduler's.

    `python`, `setup` and `env` as the ranks have them: what else there is on a host is not known.
    """

    hosts: tuple[str, ...] = ()
    agent: tuple[str, ...] = ()
    package_root: Path = Path()
    python: str = sys.executable
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def ask(self, module: str, words: Mapping[str, Sequence[str]]) -> dict[str, Told]:
        """What a probe says on each host, with each host's own words."""
        run = [self.python, "-m", module]
        asked = {
            host: hosts.in_place([*run, *words[host]], self.setup, self.env, str(self.package_root))
            for host in self.hosts
        }
        answers = hosts.ask(self.agent, asked, _ASK_S)
        return {host: Told(_parsed(answer.out), hosts.MARK in answer.out) for host, answer in answers.items()}


@dataclass(frozen=True, slots=True)
class Told:
    """What a probe said on a host, None when it said nothing; and whether the host was reached at all."""

    answer: dict[str, Any] | None
    reached: bool = True


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a job that failed.

    `states`: on each host that answered, the state of each process of the job. `cut_off`: hosts that no other can
    reach over the network. `unplugged`: devices without a carrier that other hosts have, by host. `silent_s`: for how
    long each rank gave no new sign of life, by the desk's clock.
    """

    num_ranks: int
    beats: tuple[Beat, ...] = ()
    said: tuple[str, ...] = ()
    launcher: Blame | None = None
    states: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unreachable: tuple[str, ...] = ()
    late: bool = True  # it was ended by us, not by itself
    cut_off: tuple[str, ...] = ()
    unplugged: Mapping[str, Sequence[str]] = field(default_factory=dict)
    silent_s: Mapping[int, float] = field(default_factory=dict)
    no_room: str | None = None  # why the results can no longer be kept
    crashed: tuple[int, ...] = ()  # ranks that a signal such as SIGSEGV ended: MPICH's may when they lose a peer


@dataclass(frozen=True, slots=True)
class Guilt:
    """A sentence, and the rank and host at fault where they are known."""

    what: str
    rank: int | None = None
    host: str | None = None


def judge(evidence: Evidence) -> Guilt | None:
    """Who is to blame; None when nothing points at anybody."""
    for find in (_who_said_so, _what_is_full, _who_is_out_of_reach, _who_is_stopped, _whom_the_launcher_lost,
                 _who_is_gone, _who_is_cut_off, _who_never_came, _who_is_silent):  # fmt: skip
        guilt = find(evidence)
        if guilt is not None:
            return guilt
    return None


def _who_said_so(evidence: Evidence) -> Guilt | None:
    """A rank's own words, unless they tell of its peers only."""
    causes = [words for words in evidence.said if not any(sign in words for sign in _CONSEQUENCES)]
    if not causes:
        return None
    words = causes[-1] if len(set(causes)) == 1 else causes[0]
    match = _ON_RANK.match(words)
    return Guilt(words, int(match[1]), match[2]) if match else Guilt(words)


def _what_is_full(evidence: Evidence) -> Guilt | None:
    """What ranks say is lost on a full disk, and so are their heartbeats."""
    return Guilt(evidence.no_room) if evidence.no_room else None


def _who_is_out_of_reach(evidence: Evidence) -> Guilt | None:
    for host in evidence.unreachable:
        ranks = [beat.rank for beat in evidence.beats if beat.host == host]
        there = f"; its {_ranks(ranks)} may still run there" if ranks else ""
        return Guilt(f"host {host} no longer answers its agent{there}", ranks[0] if len(ranks) == 1 else None, host)
    return None


def _who_is_stopped(evidence: Evidence) -> Guilt | None:
    for beat in evidence.beats:
        if evidence.states.get(beat.host, {}).get(str(beat.process)) in ("stopped", "tracing-stop"):
            return Guilt(
                f"{_name(beat)} is stopped (a stop signal, or a debugger), in: {beat.doing}", beat.rank, beat.host
            )
    return None


def _whom_the_launcher_lost(evidence: Evidence) -> Guilt | None:
    """Only of a rank that left no last words: what a rank says of itself is better."""
    lost = evidence.launcher
    if lost is None:
        return None
    there = [beat for beat in evidence.beats if beat.host == lost.host]
    mine = [beat for beat in evidence.beats if beat.rank == lost.rank] or [
        beat for beat in there if lost.process is None or beat.process == lost.process
    ]
    how = lost.how if lost.how.startswith("ended") else f"was {lost.how}"
    if len(mine) != 1:
        who = f"rank {lost.rank}" if lost.rank is not None else "a rank"
        return Guilt(f"{who}{f' on {lost.host}' if lost.host else ''} {how}", lost.rank, lost.host)
    beat = mine[0]
    if beat.ended or (beat.rank in evidence.crashed and _gone(evidence)):
        return None
    return Guilt(f"{_name(beat)} {how}, in: {beat.doing}", beat.rank, beat.host)


def _who_is_gone(evidence: Evidence) -> Guilt | None:
    """A rank without last words whose process is no more, where others live or had last words."""
    gone = _gone(evidence)
    if not gone or len(gone) == len(evidence.beats):
        return None
    if len(gone) == 1:
        after = f"; {_ranks(evidence.crashed)} crashed, as a rank may that loses a peer" if evidence.crashed else ""
        return Guilt(f"{_name(gone[0])} ended without a word, in: {gone[0].doing}{after}", gone[0].rank, gone[0].host)
    on = {beat.host: None for beat in gone}
    where = f"on {next(iter(on))}" if len(on) == 1 else f"(on {', '.join(on)}); which of them was the first is unknown"
    ranks = _ranks([beat.rank for beat in gone])
    return Guilt(f"{ranks} ended without a word {where}", None, next(iter(on)) if len(on) == 1 else None)


def _gone(evidence: Evidence) -> list[Beat]:
    """Ranks that left no word, not even that of a crash, and whose process is no more."""
    return [
        beat
        for beat in evidence.beats
        if beat.ended is None
        and beat.rank not in evidence.crashed
        and beat.host in evidence.states
        and str(beat.process) not in evidence.states[beat.host]
    ]


def _who_is_cut_off(evidence: Evidence) -> Guilt | None:
    for host in sorted(evidence.unplugged, key=lambda host: host not in evidence.cut_off):
        devices = ", ".join(evidence.unplugged[host])
        return Guilt(f"host {host} has no carrier on {devices}: its cable or its switch port", None, host)
    for host in evidence.cut_off:
        return Guilt(f"host {host} can not be reached over the network by the others", None, host)
    return None


def _who_never_came(evidence: Evidence) -> Guilt | None:
    missing = sorted(set(range(evidence.num_ranks)) - {beat.rank for beat in evidence.beats})
    heard = {beat.host for beat in evidence.beats}
    unseen = any(there and host not in heard for host, there in evidence.states.items())  # it shares no files with us
    if not missing or not evidence.beats or unseen:
        return None
    return Guilt(f"of {_ranks(missing)} nothing was ever heard", missing[0] if len(missing) == 1 else None)


def _who_is_silent(evidence: Evidence) -> Guilt | None:
    """Only while all still run, and only a rank that fell silent clearly before the others: they follow it at once."""
    running = [beat for beat in evidence.beats if beat.ended is None and beat.rank in evidence.silent_s]
    if not running or not evidence.late:
        return None
    first, *others = sorted(running, key=lambda beat: -evidence.silent_s[beat.rank])
    if others and evidence.silent_s[first.rank] - evidence.silent_s[others[0].rank] < _CLEARLY_S:
        return None
    return Guilt(f"{_name(first)} was silent for longest, in: {first.doing}", first.rank, first.host)


def last_words(evidence: Evidence) -> str:
    """What a rank said last, where nobody is to blame: a complaint of lost contact is better than none.

    Some ranks are ended before they can print; their heartbeats have their words nevertheless.
    """
    ended = [beat for beat in evidence.beats if beat.ended and beat.ended != TERMINATED]
    if evidence.said:
        return evidence.said[0]
    words = [(beat, beat.ended.splitlines()[0]) for beat in ended if beat.ended]
    return next((said if said.startswith("rank ") else f"{_name(beat)}: {said}" for beat, said in words), "")


def doing(evidence: Evidence) -> str:
    """What most ranks that still run were at, in a clause; empty when none was heard."""
    at = Counter(beat.doing for beat in evidence.beats if beat.ended is None)
    return f"; {at.most_common(1)[0][1]} of {evidence.num_ranks} ranks were in: {at.most_common(1)[0][0]}" if at else ""


def gather(job_id: str, num_ranks: int, beats_folder: Path, log: str, launcher: Blame | None, reached: Reached,
           late: bool, silent_s: Mapping[int, float]) -> Evidence:  # fmt: skip
    """Ask everybody that can still answer. Of a job that is late the ranks write their stacks, too.

    Ranks know their hosts by the names that those have for themselves, which need not be those of `hosts:`.
    """
    beats = heartbeat.read_all(beats_folder)
    looks, views = _looks(job_id, beats, reached, "stacks" if late else "look")
    if late:
        time.sleep(_STACKS_S)
    return Evidence(
        num_ranks=num_ranks,
        beats=beats,
        said=tuple(line.partition(_ERROR)[2].strip() for line in log.splitlines() if _ERROR in line),
        launcher=launcher,
        late=late,
        crashed=tuple(beat.rank for beat in beats if heartbeat.crashed(beats_folder, beat.rank)),
        silent_s=silent_s,
        states={look.answer["host"]: look.answer["processes"] for look in looks.values() if look.answer},
        unreachable=tuple(host for host, look in looks.items() if not look.reached),
        cut_off=_cut_off({host: view.answer["unreachable"] for host, view in views.items() if view.answer}),
        unplugged=_unplugged({host: view.answer["unplugged"] for host, view in views.items() if view.answer}),
    )


def _looks(job_id: str, beats: Sequence[Beat], reached: Reached, verb: str) -> tuple[dict[str, Told], dict[str, Told]]:
    """Each host's processes of the job, and what it can reach."""
    ranks = [f"{beat.host}:{beat.process}" for beat in beats]
    if not reached.hosts:
        return {"": Told(processes.answer(verb, job_id, ranks))}, {}
    with ThreadPoolExecutor(2) as pool:
        looks = pool.submit(reached.ask, processes.__name__, dict.fromkeys(reached.hosts, (verb, job_id, *ranks)))
        others = {host: [other for other in reached.hosts if other != host] for host in reached.hosts}
        views = pool.submit(reached.ask, reach.__name__, others)
        return looks.result(), views.result()


def _cut_off(unreachable: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
    """Hosts that none of the others reaches, where those others reach each other."""
    cut = []
    for host in unreachable:
        others = [other for other in unreachable if other != host]
        whole = len(others) > 1 and not any(b in unreachable[a] for a in others for b in others if a != b)
        if whole and all(host in unreachable[other] for other in others):
            cut.append(host)
    return tuple(cut)


def _unplugged(devices: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Devices without a carrier on some hosts only: a port that is free everywhere was never meant to be used."""
    usual = set.intersection(*map(set, devices.values())) if len(devices) > 1 else set()
    found = {host: [device for device in own if device not in usual] for host, own in devices.items()}
    return {host: own for host, own in found.items() if own}


def stacks(beats_folder: Path) -> str:
    """The stacks that ranks wrote when they were asked, for the job's log."""
    told = []
    for path in sorted(beats_folder.glob("*.stack"), key=lambda path: int(path.stem)):
        text = path.read_text(encoding="utf-8", errors="replace").strip()
        told += [f"stacks of rank {path.stem}:\n{text}\n"] if text else []
    return "\n".join(told)


def end_everywhere(job_id: str, reached: Reached) -> tuple[str, ...]:
    """End every process of a job, on every host. Returns the hosts that could not be asked."""
    processes.end_job(job_id)
    answers = reached.ask(processes.__name__, dict.fromkeys(reached.hosts, ("end", job_id)))
    return tuple(host for host, told in answers.items() if told.answer is None)


def _parsed(out: str) -> dict[str, Any] | None:
    """The last line, as JSON: a login may greet before it."""
    lines = [line for line in out.splitlines() if line.startswith("{")]
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _name(beat: Beat) -> str:
    return f"rank {beat.rank} on {beat.host}"


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {listed}"
