"""Who is to blame for a job that came to grief: evidence from its ranks, its launcher and its hosts, and a sentence.

A rank that stops, dies or is cut off takes its peers with it, and they complain first. So each piece of evidence is
asked what it can prove, from the strongest to the weakest, and a rank's complaint of lost contact proves nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.core.launcher import Blame
from bench.store.heartbeat import TERMINATED, Heartbeat

_CLEARLY_S = 1.5  # beats are looked at once a second
_ON_RANK = re.compile(r"rank (\d+) on (\S+): ")
_CONSEQUENCES = ("lost contact with its peers", "no progress for", "could not join", "did not arrive")


@dataclass(frozen=True, slots=True)
class FailureEvidence:
    """What is known of a job that failed.

    `states`: on each host that answered, the state of each process of the job. `cut_off`: hosts that no other can
    reach over the network. `unplugged`: devices without a carrier that other hosts have, by host. `silent_s`: for how
    long each rank gave no new sign of life, by the desk's clock.
    """

    num_ranks: int
    beats: tuple[Heartbeat, ...] = ()
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
class RootCause:
    """A sentence, and the rank and host at fault where they are known."""

    what: str
    rank: int | None = None
    host: str | None = None


def judge(evidence: FailureEvidence) -> RootCause | None:
    """Who is to blame; None when nothing points at anybody."""
    for find in (
        _who_said_so,
        _what_is_full,
        _who_is_out_of_reach,
        _who_is_stopped,
        _whom_the_launcher_lost,
        _who_is_gone,
        _who_is_cut_off,
        _who_never_came,
        _who_is_silent,
    ):
        guilt = find(evidence)
        if guilt is not None:
            return guilt
    return None


def _who_said_so(evidence: FailureEvidence) -> RootCause | None:
    """A rank's own words, unless they tell of its peers only."""
    causes = [words for words in evidence.said if not any(sign in words for sign in _CONSEQUENCES)]
    if not causes:
        return None
    words = causes[-1] if len(set(causes)) == 1 else causes[0]
    match = _ON_RANK.match(words)
    return RootCause(words, int(match[1]), match[2]) if match else RootCause(words)


def _what_is_full(evidence: FailureEvidence) -> RootCause | None:
    """What ranks say is lost on a full disk, and so are their heartbeats."""
    return RootCause(evidence.no_room) if evidence.no_room else None


def _who_is_out_of_reach(evidence: FailureEvidence) -> RootCause | None:
    for host in evidence.unreachable:
        ranks = [beat.rank for beat in evidence.beats if beat.host == host]
        there = f"; its {_ranks(ranks)} may still run there" if ranks else ""
        return RootCause(f"host {host} no longer answers its agent{there}", ranks[0] if len(ranks) == 1 else None, host)
    return None


def _who_is_stopped(evidence: FailureEvidence) -> RootCause | None:
    for beat in evidence.beats:
        if evidence.states.get(beat.host, {}).get(str(beat.process)) in ("stopped", "tracing-stop"):
            return RootCause(
                f"{_name(beat)} is stopped (a stop signal, or a debugger), in: {beat.doing}", beat.rank, beat.host
            )
    return None


def _whom_the_launcher_lost(evidence: FailureEvidence) -> RootCause | None:
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
        return RootCause(f"{who}{f' on {lost.host}' if lost.host else ''} {how}", lost.rank, lost.host)
    beat = mine[0]
    if beat.ended or (beat.rank in evidence.crashed and _gone(evidence)):
        return None
    return RootCause(f"{_name(beat)} {how}, in: {beat.doing}", beat.rank, beat.host)


def _who_is_gone(evidence: FailureEvidence) -> RootCause | None:
    """A rank without last words whose process is no more, where others live or had last words."""
    gone = _gone(evidence)
    if not gone or len(gone) == len(evidence.beats):
        return None
    if len(gone) == 1:
        after = f"; {_ranks(evidence.crashed)} crashed, as a rank may that loses a peer" if evidence.crashed else ""
        return RootCause(
            f"{_name(gone[0])} ended without a word, in: {gone[0].doing}{after}", gone[0].rank, gone[0].host
        )
    on = {beat.host: None for beat in gone}
    where = f"on {next(iter(on))}" if len(on) == 1 else f"(on {', '.join(on)}); which of them was the first is unknown"
    ranks = _ranks([beat.rank for beat in gone])
    return RootCause(f"{ranks} ended without a word {where}", None, next(iter(on)) if len(on) == 1 else None)


def _gone(evidence: FailureEvidence) -> list[Heartbeat]:
    """Ranks that left no word, not even that of a crash, and whose process is no more."""
    return [
        beat
        for beat in evidence.beats
        if beat.ended is None
        and beat.rank not in evidence.crashed
        and beat.host in evidence.states
        and str(beat.process) not in evidence.states[beat.host]
    ]


def _who_is_cut_off(evidence: FailureEvidence) -> RootCause | None:
    for host in sorted(evidence.unplugged, key=lambda host: host not in evidence.cut_off):
        devices = ", ".join(evidence.unplugged[host])
        return RootCause(f"host {host} has no carrier on {devices}: its cable or its switch port", None, host)
    for host in evidence.cut_off:
        return RootCause(f"host {host} can not be reached over the network by the others", None, host)
    return None


def _who_never_came(evidence: FailureEvidence) -> RootCause | None:
    missing = sorted(set(range(evidence.num_ranks)) - {beat.rank for beat in evidence.beats})
    heard = {beat.host for beat in evidence.beats}
    unseen = any(there and host not in heard for host, there in evidence.states.items())  # it shares no files with us
    if not missing or not evidence.beats or unseen:
        return None
    return RootCause(f"of {_ranks(missing)} nothing was ever heard", missing[0] if len(missing) == 1 else None)


def _who_is_silent(evidence: FailureEvidence) -> RootCause | None:
    """Only while all still run, and only a rank that fell silent clearly before the others: they follow it at once."""
    running = [beat for beat in evidence.beats if beat.ended is None and beat.rank in evidence.silent_s]
    if not running or not evidence.late:
        return None
    first, *others = sorted(running, key=lambda beat: -evidence.silent_s[beat.rank])
    if others and evidence.silent_s[first.rank] - evidence.silent_s[others[0].rank] < _CLEARLY_S:
        return None
    return RootCause(f"{_name(first)} was silent for longest, in: {first.doing}", first.rank, first.host)


def last_words(evidence: FailureEvidence) -> str:
    """What a rank said last, where nobody is to blame: a complaint of lost contact is better than none.

    Some ranks are ended before they can print; their heartbeats have their words nevertheless.
    """
    ended = [beat for beat in evidence.beats if beat.ended and beat.ended != TERMINATED]
    if evidence.said:
        return evidence.said[0]
    words = [(beat, beat.ended.splitlines()[0]) for beat in ended if beat.ended]
    return next((said if said.startswith("rank ") else f"{_name(beat)}: {said}" for beat, said in words), "")


def doing(evidence: FailureEvidence) -> str:
    """What most ranks that still run were at, in a clause; empty when none was heard."""
    at = Counter(beat.doing for beat in evidence.beats if beat.ended is None)
    return f"; {at.most_common(1)[0][1]} of {evidence.num_ranks} ranks were in: {at.most_common(1)[0][0]}" if at else ""


def _name(beat: Heartbeat) -> str:
    return f"rank {beat.rank} on {beat.host}"


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {listed}"
