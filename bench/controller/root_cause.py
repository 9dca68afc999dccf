"""Find the root cause of a failed job in the evidence of its ranks, its launcher and its hosts.

When a rank stops, dies or loses the network, its peers also fail. A peer may even report an error first. `find`
therefore checks the types of evidence one after another, from the strongest to the weakest. A rank's report that it
lost contact with another rank does not count as evidence.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.controller.connections import MpirunConnection
from bench.controller.host_checks import PreflightFinding
from bench.controller.links import LinkTest
from bench.controller.messages import ConnectionCode, LinkCode, OutcomeCode
from bench.core.codes import Code, Coded
from bench.core.cpu_use import CpuUse, shortages
from bench.core.ends import CONSEQUENCES, EndCode
from bench.core.errors import EXIT_TERMINATED
from bench.core.launcher import Blame, BlameCode
from bench.core.record import Failure
from bench.store import lease
from bench.store.heartbeat import Heartbeat, LastWords

_SLEPT_S = lease.LAPSE_S  # after this time without the controller, the ranks on other hosts end
_ENOUGH_SHARE = 0.25  # of the CPU time that ranks need: with less, chance decides which rank gets the least in a second
_CLEARLY_S = 1.5  # more than a second, because heartbeats are read once a second


@dataclass(frozen=True, slots=True)
class FailureEvidence:
    """Evidence about a failed job.

    `reports`: the reasons that ranks printed when they ended.
    `states`: for each host that answered, the state of each of the job's processes.
    `other_jobs`: for each host that answered, the other jobs with processes there.
    `first_host`: the host where the ranks meet, or None if unknown.
    `port_holders`: for each host that answered, the programs that use the port where the ranks meet (see
        processes.holders). Empty unless the launcher reports that the port is taken.
    `links`: the test of the links between hosts after the failure.
    `link_causes`: the findings of this test that may be the cause, strongest first.
    `unanswered`: pairs of hosts with a connection of the job on which data were retransmitted without an answer.
    `moved`: the addresses to which another machine replied shortly before the job stopped.
    `carrier_lost`: the hosts with devices that lost their carrier shortly before the job stopped. Each entry has the
        names of these devices and the largest number of losses of one device.
    `unplugged`: for each host, the devices that have no carrier on this host but have a carrier on other hosts.
    `silent_s`: seconds since each rank's last new heartbeat, by the controller's clock.
    """

    num_ranks: int
    beats: tuple[Heartbeat, ...] = ()
    reports: tuple[LastWords, ...] = ()
    launcher: Blame | None = None
    states: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    other_jobs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    first_host: str | None = None
    port_holders: Mapping[str, Sequence[Mapping[str, str | None]]] = field(default_factory=dict)
    unreachable: tuple[str, ...] = ()
    restarted: Mapping[str, float] = field(default_factory=dict)  # hosts that started while the job ran -> seconds ago
    late: bool = True  # whether the controller ended the job after a timeout
    links: LinkTest = field(default_factory=LinkTest)
    link_causes: tuple[PreflightFinding, ...] = ()
    unanswered: tuple[tuple[str, str], ...] = ()
    moved: tuple[PreflightFinding, ...] = ()
    carrier_lost: Mapping[str, tuple[Sequence[str], int]] = field(default_factory=dict)
    unplugged: Mapping[str, Sequence[str]] = field(default_factory=dict)
    silent_s: Mapping[int, float] = field(default_factory=dict)
    slept_s: float = 0.0  # how long the controller's machine was suspended during the job
    no_room: str | None = None  # why the results can no longer be written
    cpu: Mapping[int, CpuUse] = field(default_factory=dict)  # CPU time of each rank during one second after the timeout
    connections: tuple[Coded, ...] = ()  # what happened to connections to hosts (ConnectionCode)
    failed_of_mpirun: tuple[MpirunConnection, ...] = ()  # connections of mpirun that failed while mpirun ran
    aborted: tuple[int, ...] = ()  # ranks that their library ended, perhaps because they lost a peer (Open MPI)
    crashed: tuple[int, ...] = ()  # ranks that a signal such as SIGSEGV ended, perhaps because they lost a peer (MPICH)


def find(evidence: FailureEvidence) -> Failure | None:
    """Return the root cause of a failed job, with rank and host if known, or None without evidence."""
    for find_in in (
        _reported_by_a_rank,
        _disk_full,
        _host_out_of_reach,
        _host_restarted,
        _connection_lost,
        _rank_stopped,
        _meeting_port_taken,
        _rank_lost_by_launcher,
        _rank_terminated_first,
        _rank_gone,
        _rank_terminated,
        _host_cut_off,
        _controller_slept,
        _link_broken,
        _address_moved,
        _carrier_was_lost,
        _link_was_broken,
        _ranks_gone,
        _rank_without_heartbeat,
        _rank_starved,
        _rank_silent_longest,
    ):
        cause = find_in(evidence)
        if cause is not None:
            return cause
    return None


def failure_of(words: LastWords) -> Failure:
    """Return the failure that a rank's last report describes."""
    return Failure(words.end.text, words.rank, words.host, words.end.code, words.end.facts)


def _reported_by_a_rank(evidence: FailureEvidence) -> Failure | None:
    """Return the first report by a rank about its own failure. Reports about lost peers are ignored.

    If a machine was suspended, or if several ranks of a host were paused, the failure names only the host.
    """
    causes = [words for words in evidence.reports if words.end.code not in CONSEQUENCES]
    if not causes:
        return None
    first = causes[0]
    alike = [words for words in causes if (words.end.code, words.host) == (first.end.code, first.host)]
    facts = {name: value for name, value in first.end.facts.items() if name != "host"}
    if first.end.code == EndCode.SUSPENDED:
        return _failure(EndCode.SUSPENDED, None, first.host, **facts)
    if first.end.code == EndCode.PAUSED and len(alike) > 1:
        return _failure(OutcomeCode.HOST_PAUSED, None, first.host, **facts)
    return failure_of(first)


def _disk_full(evidence: FailureEvidence) -> Failure | None:
    """Return the failure of a full disk, or None if the disk is not full.

    If the disk is full, the ranks' reports and heartbeats may be lost. Rank 0 writes the results, so the failure names
    rank 0 and its host.
    """
    if evidence.no_room is None:
        return None
    host = next((beat.host for beat in evidence.beats if beat.rank == 0), evidence.first_host)
    return _failure(OutcomeCode.NOT_WRITABLE, 0, host, why=evidence.no_room)


def _host_out_of_reach(evidence: FailureEvidence) -> Failure | None:
    for host in evidence.unreachable:
        ranks = [beat.rank for beat in evidence.beats if beat.host == host]
        still_there = f"; its {_ranks(ranks)} may still run there" if ranks else ""
        rank = ranks[0] if len(ranks) == 1 else None
        return _failure(OutcomeCode.HOST_UNREACHABLE, rank, host, still_there=still_there, ranks=ranks)
    return None


def _host_restarted(evidence: FailureEvidence) -> Failure | None:
    """Return the failure of a host that restarted while the job ran. The restart ended all ranks on this host."""
    for host, up_s in sorted(evidence.restarted.items(), key=lambda item: -item[1]):
        return _failure(OutcomeCode.HOST_RESTARTED, None, host, up_s=up_s)
    return None


def _connection_lost(evidence: FailureEvidence) -> Failure | None:
    """Return the failure of the first host whose connection was not restored or was lost by mpirun.

    The ranks on this host did not cause the failure. MPICH's mpirun does not report the host whose connection it lost.
    With MPICH, the result names the host of the connection that failed first, if no other connection failed before
    mpirun ended.
    """
    for found in evidence.connections:
        if found.code != ConnectionCode.RESTORED:
            return Failure(found.text, None, str(found.facts["host"]), found.code, found.facts)
    blamed = evidence.launcher
    if blamed is not None and blamed.how.code == BlameCode.CONNECTION_ENDED:
        failed = evidence.failed_of_mpirun
        only = failed[0].host if len(failed) == 1 and failed[0].first else None
        host = blamed.host or only
        return _failure(ConnectionCode.OF_MPIRUN, None, host) if host is not None else None
    return None


def _rank_stopped(evidence: FailureEvidence) -> Failure | None:
    for beat in evidence.beats:
        if evidence.states.get(beat.host, {}).get(str(beat.process)) in ("stopped", "tracing-stop"):
            return _of_rank(OutcomeCode.RANK_STOPPED, beat)
    return None


def _meeting_port_taken(evidence: FailureEvidence) -> Failure | None:
    """Return the failure of a job whose ranks could not meet because another program uses the rendezvous port.

    The fact `by` lists the programs that listen on the port, each with its job, user and address. If the other program
    ended before the check, the fact `by` is an empty list. The fact `jobs` lists all other jobs with processes on the
    host. One of these jobs may have used the port.
    """
    lost, host = evidence.launcher, evidence.first_host
    if lost is None or lost.how.code != BlameCode.PORT_TAKEN or host is None:
        return None
    by = [dict(holder) for holder in evidence.port_holders.get(host, ())]
    first = by[0] if by else dict.fromkeys(("job", "user", "address"))
    jobs = list(evidence.other_jobs.get(host, ()))
    more = {"by": by, "jobs": jobs, "other_jobs": [job for job in jobs if job != first["job"]]}
    return _failure(OutcomeCode.MEETING_PORT_TAKEN, None, host, **first, **more, **lost.how.facts)


def _rank_lost_by_launcher(evidence: FailureEvidence) -> Failure | None:
    """Return the failure of the rank that the launcher reports as lost.

    If the rank left a report, the result is None, because a report is better evidence. The result is also None if the
    rank crashed and another rank ended for an unknown reason. Either of these ranks may be the cause. The result is
    also None if the launcher reports neither the rank nor the host.
    """
    lost = evidence.launcher
    if lost is None or (lost.rank is None and lost.host is None):
        return None
    there = [beat for beat in evidence.beats if beat.host == lost.host]
    mine = [beat for beat in evidence.beats if beat.rank == lost.rank]
    mine = mine or [beat for beat in there if lost.process is None or beat.process == lost.process]
    how = {"how": lost.how.text, "how_code": lost.how.code, **lost.how.facts}
    if len(mine) != 1:
        who = f"rank {lost.rank}" if lost.rank is not None else "a rank"
        who += f" on {lost.host}" if lost.host else ""
        return _failure(OutcomeCode.RANK_LOST, lost.rank, lost.host, who=who, doing=None, **how)
    beat = mine[0]
    reported = beat.ended is not None and not beat.ended_well
    if reported or (beat.rank in evidence.crashed and _gone(evidence)):
        return None
    return _of_rank(OutcomeCode.RANK_LOST, beat, who=_name(beat), **how)


def _rank_gone(evidence: FailureEvidence) -> Failure | None:
    """Return the failure of the only rank whose process ended without a last report.

    If another rank crashed and the launcher kills all ranks after a crash, the result is None. In this case, the
    crashed rank or the missing rank may have failed first.
    """
    gone = _gone(evidence)
    killed = evidence.crashed and evidence.launcher is not None and evidence.launcher.only_kills
    if len(gone) != 1 or len(evidence.beats) == 1 or killed:
        return None
    after = f"; {_ranks(evidence.crashed)} crashed, as a rank may when it loses a peer" if evidence.crashed else ""
    return _of_rank(OutcomeCode.RANK_GONE, gone[0], after=after, crashed=evidence.crashed)


def _ranks_gone(evidence: FailureEvidence) -> Failure | None:
    """Return the failure of ranks whose processes ended without a last report.

    The result is None if the processes of all ranks ended without a last report. Hydra, the launcher of MPICH, kills
    all ranks after any failure. A missing process is therefore weak evidence. A link that loses packets is stronger
    evidence.
    """
    gone = _gone(evidence)
    if not gone or len(gone) == len(evidence.beats):
        return None
    hosts = list(dict.fromkeys(beat.host for beat in gone))
    where = f"on {hosts[0]}" if len(hosts) == 1 else f"(on {', '.join(hosts)}); it is unknown which was the first"
    # Hydra kills all ranks if one rank crashes, and a rank may crash if another rank is gone. Either may be the cause.
    crashed_hosts = [beat.host for beat in evidence.beats if beat.rank in evidence.crashed]
    after = f"; {_ranks(evidence.crashed)} crashed, which may be the cause" if evidence.crashed else ""
    ranks = [beat.rank for beat in gone]
    host = hosts[0] if {*hosts, *crashed_hosts} == {hosts[0]} else None
    what = {"ranks": _ranks(ranks), "where": where, "after": after}
    facts = {"rank_numbers": ranks, "hosts": hosts, "crashed": evidence.crashed}
    return _failure(OutcomeCode.RANKS_GONE, None, host, **what, **facts)


def _gone(evidence: FailureEvidence) -> list[Heartbeat]:
    """Return the last heartbeat of each rank that ended for an unknown reason.

    The reason is known if the rank left a report, if it crashed, or if the rank's library aborted it.
    """
    return [
        beat
        for beat in evidence.beats
        if beat.ended is None
        and beat.rank not in (*evidence.crashed, *evidence.aborted)
        and beat.host in evidence.states
        and str(beat.process) not in evidence.states[beat.host]
    ]


def _rank_terminated_first(evidence: FailureEvidence) -> Failure | None:
    """Return the failure of the rank that got a SIGTERM and ended first, according to the launcher.

    The launcher then ends the other ranks, perhaps before these ranks can print a last report.
    """
    first = evidence.launcher
    if first is not None and first.surely_first and first.how.facts.get("exit_code") == EXIT_TERMINATED:
        for beat in evidence.beats:
            if beat.rank == first.rank and beat.ended is not None and beat.ended.code == EndCode.TERMINATED:
                return _of_rank(OutcomeCode.RANK_TERMINATED, beat)
    return None


def _rank_terminated(evidence: FailureEvidence) -> Failure | None:
    """Return the failure of the only rank that got a SIGTERM, if the launcher did not send this signal.

    A launcher that ends a job ends all ranks of the job. If all other ranks still run, another program therefore sent
    the SIGTERM. Some launchers send only SIGKILL to ranks, and never SIGTERM. With such a launcher, another program
    sent the SIGTERM even if no other rank still runs.
    """
    ended = [beat for beat in evidence.beats if beat.ended is not None]
    terminated = [beat for beat in ended if beat.ended is not None and beat.ended.code == EndCode.TERMINATED]
    if len(terminated) != 1:
        return None
    others = [beat for beat in evidence.beats if beat.ended is None]
    running = [beat for beat in others if str(beat.process) in evidence.states.get(beat.host, {})]
    alone = len(ended) == 1 and 0 < len(running) == len(others)
    if not alone and not (evidence.launcher is not None and evidence.launcher.only_kills):
        return None
    return _of_rank(OutcomeCode.RANK_TERMINATED, terminated[0])


def _host_cut_off(evidence: FailureEvidence) -> Failure | None:
    cut_off = [cause.hosts[0] for cause in evidence.link_causes if cause.code == LinkCode.NOBODY_CONNECTS]
    for host in sorted(evidence.unplugged, key=lambda host: host not in cut_off):
        return _failure(OutcomeCode.NO_CARRIER, None, host, devices=list(evidence.unplugged[host]))
    for host in cut_off:
        return _failure(OutcomeCode.CUT_OFF, None, host)
    return None


def _controller_slept(evidence: FailureEvidence) -> Failure | None:
    """Return a failure if the controller's suspension lasted so long that ranks on other hosts lost the controller."""
    if evidence.slept_s < _SLEPT_S:
        return None
    return _failure(OutcomeCode.CONTROLLER_SLEPT, None, socket.gethostname(), slept_s=evidence.slept_s)


def _link_broken(evidence: FailureEvidence) -> Failure | None:
    """Return the failure of a link that loses packets, or of an address that two machines have.

    If the finding is about a single host, the failure names this host.
    """
    for cause in evidence.link_causes:
        host = cause.hosts[0] if len(cause.hosts) == 1 else None
        return Failure(cause.what, None, host, cause.code, cause.facts)
    return None


def _address_moved(evidence: FailureEvidence) -> Failure | None:
    """Return the failure of a host if another machine replied for the host's address."""
    for cause in evidence.moved:
        return Failure(cause.what, None, cause.hosts[0], cause.code, cause.facts)
    return None


def _carrier_was_lost(evidence: FailureEvidence) -> Failure | None:
    """Return the failure of a host that lost its carrier for some time, if no other host lost its carrier.

    If several hosts lost their carriers, the result is None. A switch may have restarted, or these hosts may share a
    cable.
    """
    if len(evidence.carrier_lost) != 1:
        return None
    [(host, (devices, num))] = evidence.carrier_lost.items()
    return _failure(OutcomeCode.CARRIER_LOST, None, host, devices=list(devices), num=num)


def _link_was_broken(evidence: FailureEvidence) -> Failure | None:
    """Return the failure of a link on which retransmitted data got no answer.

    If several links failed in this way, return the failure of the host that all these links have in common.

    When the controller tests the links, the link may already work again. The result is None if the links share no host.
    """
    pairs = evidence.unanswered
    common = sorted(set.intersection(*map(set, pairs))) if pairs else []
    if len(pairs) == 1:
        a, b = pairs[0]
        return _failure(OutcomeCode.LINK_INTERRUPTED, None, None, a=a, b=b)
    if len(common) == 1:
        return _failure(OutcomeCode.HOST_INTERRUPTED, None, common[0], num=len(pairs))
    return None


def _rank_without_heartbeat(evidence: FailureEvidence) -> Failure | None:
    missing = sorted(set(range(evidence.num_ranks)) - {beat.rank for beat in evidence.beats})
    hosts_with_beats = {beat.host for beat in evidence.beats}
    # If no heartbeat names a host that runs processes of the job, the controller cannot see that host's files.
    no_shared_files = any(there and host not in hosts_with_beats for host, there in evidence.states.items())
    if not missing or not evidence.beats or no_shared_files:
        return None
    rank = missing[0] if len(missing) == 1 else None
    return _failure(OutcomeCode.NEVER_HEARD, rank, None, ranks=_ranks(missing), rank_numbers=missing)


def _rank_starved(evidence: FailureEvidence) -> Failure | None:
    """Return the failure of the rank that got the smallest share of the CPU time that it needed.

    The other ranks only wait for the starved rank. The result is None if the other ranks also lack CPU time. The
    machine is then too busy to identify one slow rank. On a busy machine, ranks with the same work get very different
    shares of CPU time within one second.
    """
    found = {rank: use for rank, use in shortages(evidence.cpu).items() if use.others_share >= _ENOUGH_SHARE}
    running = [beat for beat in evidence.beats if beat.rank in found]
    if not running:
        return None
    beat = min(running, key=lambda beat: found[beat.rank].share)
    short = found[beat.rank]
    return _of_rank(OutcomeCode.RANK_STARVED, beat, share=short.share, **asdict(short))


def _rank_silent_longest(evidence: FailureEvidence) -> Failure | None:
    """Return the failure of the running rank whose heartbeats stopped first.

    The result is None if no timeout ended the job, or if another rank's heartbeats stopped less than _CLEARLY_S later.
    The result is also None if a rank ended because it lost contact with another rank. A rank that hangs keeps its
    connections, so a lost contact has another reason. After a lost contact, the other ranks may only be waiting for the
    rank that ended.
    """
    if any(beat.ended is not None and beat.ended.code == EndCode.LOST_CONTACT for beat in evidence.beats):
        return None
    running = [beat for beat in evidence.beats if beat.ended is None and beat.rank in evidence.silent_s]
    if not running or not evidence.late:
        return None
    first, *others = sorted(running, key=lambda beat: -evidence.silent_s[beat.rank])
    if others and evidence.silent_s[first.rank] - evidence.silent_s[others[0].rank] < _CLEARLY_S:
        return None
    return _of_rank(OutcomeCode.SILENT_LONGEST, first)


def last_words(evidence: FailureEvidence) -> Failure | None:
    """Return the first report of any rank. The controller shows this report if it found no root cause.

    The report may only say that the rank lost contact with another rank. A launcher may end a rank before the rank can
    print its last report. A report that was not printed is read from the rank's heartbeat file.
    """
    if evidence.reports:
        return failure_of(evidence.reports[0])
    for beat in evidence.beats:
        if beat.ended is not None and beat.ended.code not in (EndCode.TERMINATED, EndCode.DONE):
            text = beat.ended.text
            if "rank" not in beat.ended.facts:
                text = f"{_name(beat)}: {text}"
            return Failure(text, None, None, beat.ended.code, beat.ended.facts)
    return None


def phase(evidence: FailureEvidence) -> dict[str, Any]:
    """Return as facts what the largest group of running ranks was doing, and the size of the group.

    The result is empty if no running rank reported what it was doing.
    """
    counts = Counter(beat.doing for beat in evidence.beats if beat.ended is None)
    if not counts:
        return {}
    (most, num), *_ = counts.most_common(1)
    return {"doing": most, "num_alike": num, "num_ranks": evidence.num_ranks}


def _of_rank(code: OutcomeCode, beat: Heartbeat, **facts: object) -> Failure:
    return _failure(code, beat.rank, beat.host, doing=beat.doing, **facts)


def _failure(code: Code, rank: int | None, host: str | None, **facts: object) -> Failure:
    """Return a failure whose template may name the rank and the host."""
    return Failure(code.words({"rank": rank, "host": host, **facts}), rank, host, code, facts)


def _name(beat: Heartbeat) -> str:
    return f"rank {beat.rank} on {beat.host}"


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {listed}"
