"""The root cause of a failed job: each kind of evidence alone, and the stronger before the weaker."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from bench.controller import root_cause, watch
from bench.controller.connections import MpirunConnection
from bench.controller.host_checks import PreflightFinding
from bench.controller.messages import ConnectionCode, LinkCode, OutcomeCode
from bench.controller.root_cause import FailureEvidence
from bench.core.codes import UNCODED, Coded
from bench.core.cpu_use import CpuUse
from bench.core.ends import CONSEQUENCES, EndCode
from bench.core.launcher import Blame, BlameCode
from bench.core.record import Failure
from bench.launchers import mpirun, torchrun
from bench.store import heartbeat
from bench.store.heartbeat import End, Heartbeat, LastWords
from tests.facts import holds

DOING = "allreduce 64M pipelined: warm-up"
BEATS = tuple(Heartbeat(rank, f"h{rank}", 40 + rank, DOING, 100.0 + rank) for rank in range(4))
ALIVE = {f"h{rank}": {str(40 + rank): "sleeping"} for rank in range(4)}
WELL = FailureEvidence(4, BEATS, states=ALIVE)
STARVED = {rank: CpuUse(0.9, 0.1, 1.0) if rank != 2 else CpuUse(0.03, 0.97, 1.0) for rank in range(4)}
BUSY = dict.fromkeys(range(4), CpuUse(0.03, 0.97, 1.0))
TOO_BUSY = {rank: CpuUse(0.1, 0.9, 1.0) if rank != 2 else CpuUse(0.02, 0.98, 1.0) for rank in range(4)}
LOST = LastWords(End.of(EndCode.LOST_CONTACT, doing="allreduce 64M", why="Connection closed by peer"), 0, "h0")
RAISED = LastWords(End.of(EndCode.ERROR, kind="ValueError", why="no"), 1, "h1")
BREAK = {"paused_s": 60.0, "deadline_s": 20.0, "doing": DOING}
SUSPENDED = LastWords(End.of(EndCode.SUSPENDED, host="h1", **BREAK), 1, "h1")
PAUSED = LastWords(End.of(EndCode.PAUSED, host="h2", **BREAK), 2, "h2")
GONE = LastWords(End.of(EndCode.CONTROLLER_GONE, silent_s=10.0), 0, "h0")
UNNAMED = LastWords(End.uncoded("results cannot be written"))
# The last line of a traceback by torch 2.13 and by torch 2.0, without the stacks of C++.
TAKEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: 29555, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
)
TAKEN_BEFORE = (
    "RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed "
    "to bind to [::]:29555 (errno: 98 - Address already in use). The server socket has failed to bind to ?UNKNOWN? "
    "(errno: 98 - Address already in use).\n"
)
KILLED = Coded.of(BlameCode.KILLED, signal=9)


def exited(code: int) -> Coded:
    return Coded.of(BlameCode.EXITED, exit_code=code)


def cause_of(code: LinkCode, *hosts: str) -> PreflightFinding:
    """A finding about links, as the test after a failure makes it."""
    return PreflightFinding(hosts, f"{code} {hosts}", True, code)


ONE_WAY = cause_of(LinkCode.ONE_WAY, "h0", "h1")
MOVED = cause_of(LinkCode.ADDRESS_MOVED, "h2")


def ended(rank: int, end: End) -> tuple[Heartbeat, ...]:
    return tuple(replace(beat, ended=end) if beat.rank == rank else beat for beat in BEATS)


def found(evidence: FailureEvidence) -> tuple[str, int | None, str | None] | None:
    """Code, rank and host of the root cause."""
    cause = root_cause.find(evidence)
    return None if cause is None else (cause.code, cause.rank, cause.host)


@pytest.mark.parametrize(
    ("evidence", "cause"),
    [
        (replace(WELL, reports=(LOST, RAISED)), (EndCode.ERROR, 1, "h1")),
        (replace(WELL, reports=(LOST, SUSPENDED)), (EndCode.SUSPENDED, None, "h1")),
        (replace(WELL, reports=(LOST, PAUSED)), (EndCode.PAUSED, 2, "h2")),
        (replace(WELL, reports=(LOST, PAUSED, replace(PAUSED, rank=3))), (OutcomeCode.HOST_PAUSED, None, "h2")),
        (replace(WELL, reports=(GONE,), slept_s=60.0), (OutcomeCode.CONTROLLER_SLEPT, None, socket.gethostname())),
        (replace(WELL, reports=(LOST,), no_room="no space left"), (OutcomeCode.NOT_WRITABLE, 0, "h0")),
        (replace(WELL, reports=(UNNAMED,)), (UNCODED, None, None)),
        (replace(WELL, reports=(LOST,), unreachable=("h2",)), (OutcomeCode.HOST_UNREACHABLE, 2, "h2")),
        (
            replace(WELL, reports=(LOST,), states=ALIVE | {"h2": {}, "h3": {}}, restarted={"h2": 3.0}),
            (OutcomeCode.HOST_RESTARTED, None, "h2"),
        ),
        (
            replace(WELL, reports=(LOST,), states=ALIVE | {"h3": {"43": "stopped"}}),
            (OutcomeCode.RANK_STOPPED, 3, "h3"),
        ),
        (
            replace(WELL, launcher=Blame(2, "h2", KILLED), states={key: {} for key in ALIVE}),
            (OutcomeCode.RANK_LOST, 2, "h2"),
        ),
        (replace(WELL, launcher=Blame(2, None, exited(7))), (OutcomeCode.RANK_LOST, 2, "h2")),
        (replace(WELL, launcher=Blame(None, "h1", exited(5), 41)), (OutcomeCode.RANK_LOST, 1, "h1")),
        (replace(WELL, launcher=Blame(None, "h1", exited(5), 99)), (OutcomeCode.RANK_LOST, None, "h1")),
        (replace(WELL, states=ALIVE | {"h1": {}}, reports=(LOST,)), (OutcomeCode.RANK_GONE, 1, "h1")),
        (
            replace(
                WELL,
                launcher=Blame(None, "h1", Coded.of(BlameCode.CONNECTION_ENDED)),
                states={key: {} for key in ALIVE},
            ),
            (ConnectionCode.OF_MPIRUN, None, "h1"),
        ),
        (replace(WELL, unplugged={"h1": ["eth0"]}), (OutcomeCode.NO_CARRIER, None, "h1")),
        (replace(WELL, link_causes=(cause_of(LinkCode.NOBODY_CONNECTS, "h3"),)), (OutcomeCode.CUT_OFF, None, "h3")),
        (replace(WELL, link_causes=(ONE_WAY,)), (LinkCode.ONE_WAY, None, None)),
        (replace(WELL, moved=(MOVED,), unanswered=(("h0", "h1"),)), (LinkCode.ADDRESS_MOVED, None, "h2")),
        (replace(WELL, moved=(MOVED,), link_causes=(ONE_WAY,)), (LinkCode.ONE_WAY, None, None)),
        (
            replace(WELL, carrier_lost={"h3": (("eth0",), 4)}, unanswered=(("h0", "h1"),)),
            (OutcomeCode.CARRIER_LOST, None, "h3"),
        ),
        (
            replace(WELL, carrier_lost={"h3": (("eth0",), 1), "h2": (("eth0",), 1)}, unanswered=(("h0", "h1"),)),
            (OutcomeCode.LINK_INTERRUPTED, None, None),
        ),
        (replace(WELL, unanswered=(("h0", "h1"),)), (OutcomeCode.LINK_INTERRUPTED, None, None)),
        (replace(WELL, unanswered=(("h0", "h2"), ("h1", "h2"))), (OutcomeCode.HOST_INTERRUPTED, None, "h2")),
        (
            replace(WELL, unanswered=(("h0", "h1"),), link_causes=(cause_of(LinkCode.NOBODY_CONNECTS, "h3"),)),
            (OutcomeCode.CUT_OFF, None, "h3"),
        ),
        (replace(WELL, link_causes=(cause_of(LinkCode.HOST_UNHEARD, "h1"),)), (LinkCode.HOST_UNHEARD, None, "h1")),
        (
            replace(
                WELL, link_causes=(cause_of(LinkCode.ONE_WAY, "h0", "h1"),), states=ALIVE | {"h3": {"43": "stopped"}}
            ),
            (OutcomeCode.RANK_STOPPED, 3, "h3"),
        ),
        (replace(WELL, beats=BEATS[:3], states=ALIVE | {"h3": {}}), (OutcomeCode.NEVER_HEARD, 3, None)),
        (
            replace(WELL, silent_s={0: 9.0, 1: 6.5, 2: 6.4, 3: 6.0}, cpu=STARVED),
            (OutcomeCode.RANK_STARVED, 2, "h2"),
        ),
        (
            replace(WELL, reports=(LOST,), silent_s={0: 9.0, 1: 6.5, 2: 6.4, 3: 6.0}, cpu=BUSY),
            (OutcomeCode.SILENT_LONGEST, 0, "h0"),
        ),
        (
            replace(WELL, reports=(LOST,), silent_s={0: 9.0, 1: 6.5, 2: 6.4, 3: 6.0}, cpu=TOO_BUSY),
            (OutcomeCode.SILENT_LONGEST, 0, "h0"),
        ),
        (
            replace(WELL, states=ALIVE | {"h2": {}, "h3": {}}, link_causes=(ONE_WAY,)),
            (LinkCode.ONE_WAY, None, None),
        ),
    ],
    ids=[
        "reported",
        "suspended",
        "paused",
        "host paused",
        "controller slept",
        "no room",
        "reported without a rank",
        "host away",
        "host restarted",
        "stopped",
        "killed",
        "exited",
        "a process",
        "another process",
        "gone",
        "a connection of mpirun",
        "unplugged",
        "cut off",
        "one-way link",
        "an address that moved",
        "an address that moved and a link",
        "a carrier that was lost",
        "carriers of two hosts",
        "a link that was interrupted",
        "a host that was interrupted",
        "interrupted and cut off",
        "all links of a host",
        "a link and a stopped rank",
        "never heard",
        "starved",
        "silent",
        "little CPU time where nobody has much",
        "a link and ranks that the launcher may have killed",
    ],
)
def test_the_root_cause(evidence: FailureEvidence, cause: tuple[str, int | None, str | None]) -> None:
    assert found(evidence) == cause


def test_a_silent_rank_is_not_blamed_if_another_rank_lost_its_connections() -> None:
    silent_s = {0: 9.0, 1: 9.0, 3: 6.0}
    assert found(replace(WELL, silent_s=silent_s | {0: 12.0})) == (OutcomeCode.SILENT_LONGEST, 0, "h0")
    assert found(replace(WELL, beats=ended(2, LOST.end), silent_s=silent_s | {0: 12.0})) is None


def test_a_failure_has_words_for_people_and_facts_for_logic() -> None:
    lost = root_cause.find(replace(WELL, launcher=Blame(2, None, exited(7))))
    assert lost is not None
    assert (lost.facts["how_code"], lost.facts["exit_code"]) == (BlameCode.EXITED, 7)
    assert holds(lost.what, "rank 2", "h2", "7", DOING)
    assert lost.facts["doing"] == DOING
    raised = root_cause.find(replace(WELL, reports=(RAISED,)))
    assert raised == Failure("ValueError: no", 1, "h1", EndCode.ERROR, {"kind": "ValueError", "why": "no"})


def test_a_taken_port_of_the_meeting_names_the_host_and_the_runs_there() -> None:
    taken = Blame(0, None, Coded.of(BlameCode.PORT_TAKEN, port=29555))
    alone = FailureEvidence(4, launcher=taken, first_host="h0", late=False, other_jobs={"h0": (), "h1": ("run-b/x/7",)})
    cause = root_cause.find(alone)
    assert cause is not None and (cause.code, cause.rank, cause.host) == (OutcomeCode.MEETING_PORT_TAKEN, None, "h0")
    assert (cause.facts["port"], cause.facts["jobs"], cause.facts["by"]) == (29555, [], [])
    cause = root_cause.find(replace(alone, other_jobs={"h0": ("run-b/x/7",)}))
    assert cause is not None and cause.facts["jobs"] == ["run-b/x/7"] and holds(cause.what, "29555", "h0", "run-b/x/7")
    by = {"job": "run-c/x/8", "user": "ada", "address": "10.0.0.1"}
    cause = root_cause.find(replace(alone, port_holders={"h1": (by,), "h0": (by,)}))
    assert cause is not None and cause.facts["by"] == [by]
    assert holds(cause.what, "29555", "ada", "10.0.0.1", "run-c/x/8")
    cause = root_cause.find(replace(alone, port_holders={"h0": (by | {"job": None},)}))
    assert cause is not None and cause.facts["by"][0]["job"] is None and holds(cause.what, "ada", "10.0.0.1")
    assert found(replace(WELL, launcher=taken, first_host="h0", reports=(RAISED,))) == (EndCode.ERROR, 1, "h1")


def test_a_rank_that_its_library_ended_is_not_named_as_gone() -> None:
    aborted = mpirun.LAUNCHER.aborted(ABORTED)
    assert aborted == (0,) == mpirun.LAUNCHER.aborted(CALLED_ABORT) and mpirun.LAUNCHER.aborted(DISCONNECTED) == ()
    gone = replace(WELL, states=ALIVE | {"h0": {}}, late=False)
    assert found(gone) == (OutcomeCode.RANK_GONE, 0, "h0")
    assert found(replace(gone, aborted=aborted)) is None


def test_the_only_connection_of_mpirun_that_failed_before_the_ranks_began_is_named() -> None:
    started = FailureEvidence(4, launcher=mpirun.LAUNCHER.blamed(NO_PROXY), late=False)
    h1, h2 = (MpirunConnection(host, 255, True) for host in ("h1", "h2"))
    assert found(replace(started, failed_of_mpirun=(h2,))) == (ConnectionCode.OF_MPIRUN, None, "h2")
    assert found(replace(started, failed_of_mpirun=(replace(h2, first=False),))) is None, "mpirun may have ended it"
    assert found(replace(started, failed_of_mpirun=(h1, h2))) is None, "one may have failed after its host began"
    assert found(started) is None
    not_opened = Coded.of(ConnectionCode.NOT_OPENED, host="h1", exit_code=255)
    assert found(FailureEvidence(4, connections=(not_opened,))) == (ConnectionCode.NOT_OPENED, None, "h1")
    assert found(replace(WELL, failed_of_mpirun=(h2,), late=False)) is None, "MPICH's ranks do not need it later"


def test_there_is_no_root_cause_without_evidence() -> None:
    assert found(FailureEvidence(4)) is None
    assert found(replace(WELL, reports=(LOST,), late=False)) is None
    done = End.of(EndCode.DONE)
    assert found(replace(WELL, beats=tuple(replace(beat, ended=done) for beat in BEATS))) is None


@pytest.mark.parametrize("code", sorted(CONSEQUENCES))
def test_what_a_rank_reports_of_its_peers_is_no_root_cause(code: str) -> None:
    assert found(replace(WELL, reports=(LastWords(End(code, {}, "x"), 0, "h0"),), late=False)) is None


def test_without_a_root_cause_the_first_report_is_passed_on() -> None:
    facts = {"rank": 1, "num_ranks": 4, "library": "Gloo", "why": "no address for eth7", "remedy": "check"}
    refused, killed = End.of(EndCode.CANNOT_JOIN, **facts), End.of(EndCode.TERMINATED)
    beats = ended(0, killed)[:1] + ended(1, refused)[1:]
    silent = replace(WELL, beats=beats, launcher=Blame(1, "h1", exited(3)), late=False)
    assert found(silent) is None
    words = root_cause.last_words(silent)
    assert words is not None and (words.code, words.facts, words.what) == (refused.code, refused.facts, refused.text)
    no_disk = root_cause.last_words(replace(silent, beats=ended(1, End.uncoded("no disk"))))
    assert no_disk is not None and holds(no_disk.what, "rank 1", "h1:", "no disk"), (
        "with the rank, if the words do not have it"
    )
    assert root_cause.last_words(replace(silent, reports=(LOST,))) == root_cause.failure_of(LOST)
    assert root_cause.last_words(WELL) is None


def test_a_rank_with_last_words_did_not_die() -> None:
    gone = replace(
        WELL, beats=ended(0, LOST.end), states={key: {} for key in ALIVE}, launcher=Blame(0, "h0", exited(4))
    )
    cause = root_cause.find(gone)
    assert cause is not None and (cause.code, cause.rank, cause.host) == (OutcomeCode.RANKS_GONE, None, None)
    assert (cause.facts["rank_numbers"], cause.facts["hosts"]) == ([1, 2, 3], ["h1", "h2", "h3"])


def test_if_all_lost_ranks_were_on_one_host_it_is_named() -> None:
    beats = (*BEATS[:2], *(replace(beat, host="h2") for beat in BEATS[2:]))
    gone = replace(WELL, beats=beats, states=ALIVE | {"h2": {}, "h3": {}})
    assert found(gone) == (OutcomeCode.RANKS_GONE, None, "h2")


def test_a_crash_may_follow_from_the_loss_of_a_peer() -> None:
    lost = Blame(0, "h0", Coded.of(BlameCode.EXITED_OR_KILLED, number=11))
    crash = replace(WELL, crashed=(0,), launcher=lost, states=ALIVE | {"h0": {}})
    assert found(crash) == (OutcomeCode.RANK_LOST, 0, "h0")
    both = root_cause.find(replace(crash, states=ALIVE | {"h0": {}, "h2": {}}))
    assert both is not None and (both.code, both.rank, both.facts["crashed"]) == (OutcomeCode.RANK_GONE, 2, (0,))


def test_ranks_that_fell_silent_together_are_all_victims() -> None:
    together = replace(WELL, reports=(LOST,), silent_s={0: 6.9, 1: 6.5, 2: 6.4, 3: 6.0})
    assert found(together) is None
    assert root_cause.phase(together) == {"doing": DOING, "num_alike": 4, "num_ranks": 4}
    done = ended(0, End.of(EndCode.DONE))
    assert found(replace(together, beats=done, silent_s={0: 60.0, 1: 6.5, 2: 6.4, 3: 6.0})) is None


def test_a_rank_whose_files_are_not_seen_here_is_not_missing() -> None:
    elsewhere = replace(WELL, beats=BEATS[:3])
    assert found(replace(elsewhere, states=ALIVE | {"h3": {}})) == (OutcomeCode.NEVER_HEARD, 3, None)
    assert found(elsewhere) is None


def test_a_port_without_a_cable_on_all_hosts_is_no_pulled_cable() -> None:
    assert watch._unplugged({"h0": ["docker0"], "h1": ["docker0", "eth0"]}) == {"h1": ["eth0"]}
    both = replace(
        WELL, unplugged={"h0": ["eth1"], "h1": ["eth0"]}, link_causes=(cause_of(LinkCode.NOBODY_CONNECTS, "h1"),)
    )
    assert found(both) == (OutcomeCode.NO_CARRIER, None, "h1")


def test_a_rank_that_crashed_is_named_beside_the_ranks_that_hydra_killed() -> None:
    killed = replace(WELL, crashed=(1,), states={host: {} for host in ALIVE})
    cause = root_cause.find(killed)
    assert cause is not None and (cause.code, cause.rank, cause.host) == (OutcomeCode.RANKS_GONE, None, None)
    assert cause.facts["rank_numbers"] == [0, 2, 3] and cause.facts["crashed"] == (1,)
    # Hydra kills a single rank, too.
    hydra = mpirun.LAUNCHER.blamed("= PID 41 RUNNING AT h1\n=   EXIT CODE: 11\n")
    killed = replace(killed, crashed=(1, 2, 3), launcher=hydra)
    assert found(killed) == (OutcomeCode.RANKS_GONE, None, None)
    assert found(replace(killed, launcher=None)) == (OutcomeCode.RANK_GONE, 0, "h0")


def test_a_rank_that_alone_got_a_sigterm_is_named_unless_the_job_was_ended() -> None:
    terminated = tuple(replace(beat, ended=End.of(EndCode.TERMINATED)) for beat in BEATS)
    alone = replace(WELL, beats=(BEATS[0], terminated[1], *BEATS[2:]), states=ALIVE | {"h1": {}})
    assert found(alone) == (OutcomeCode.RANK_TERMINATED, 1, "h1")
    assert root_cause.find(replace(alone, beats=terminated)) is None
    assert root_cause.find(replace(alone, beats=(BEATS[0], *terminated[1:]))) is None
    # Open MPI ends the others at once, but says which rank was the first.
    log = "The first process to do so was:\n\n   Process name: [prterun-h0-22126@1,1]\n   Exit code:    143\n"
    reported = replace(alone, beats=terminated, launcher=mpirun.LAUNCHER.blamed(log))
    assert found(reported) == (OutcomeCode.RANK_TERMINATED, 1, "h1")
    # The launcher then killed the others, which left no last words.
    killed = replace(reported, states={host: {} for host in ALIVE}, beats=(BEATS[0], terminated[1], *BEATS[2:]))
    assert found(killed) == (OutcomeCode.RANK_TERMINATED, 1, "h1")
    by_hydra = mpirun.LAUNCHER.blamed("= RANK 1 PID 41 RUNNING AT h1\n=   EXIT CODE: 143\n")
    assert by_hydra is not None  # mpirun itself may have got the SIGTERM
    assert root_cause.find(replace(alone, beats=terminated, launcher=by_hydra)) is None
    # Hydra kills with SIGKILL only; a rank that loses a peer may crash.
    crashed = replace(
        killed, launcher=mpirun.LAUNCHER.blamed("= PID 40 RUNNING AT h0\n=   EXIT CODE: 11\n"), crashed=(0,)
    )
    assert found(crashed) == (OutcomeCode.RANK_TERMINATED, 1, "h1")
    crashed = replace(crashed, launcher=None)
    assert found(crashed) == (OutcomeCode.RANKS_GONE, None, None)


def test_if_all_ranks_are_gone_none_is_named() -> None:
    assert root_cause._ranks_gone(replace(WELL, states={key: {} for key in ALIVE})) is None


def test_last_words_are_found_among_the_lines_of_launchers_and_other_ranks() -> None:
    log = f"[1,0]<stderr>: {heartbeat.error_line(LOST)}\nnoise\n{heartbeat.error_line(RAISED)}\nbench: error: by hand\n"
    first, second, third = heartbeat.last_words(log)
    assert (first, second) == (LOST, RAISED)
    assert third == LastWords(End.uncoded("by hand"))
    [torn] = heartbeat.last_words(f"bench: error: torn{heartbeat.MARK}{{")
    assert torn == LastWords(End.uncoded("torn"))
    long = LastWords(End("x", {"why": "y" * 5000}, "z" * 5000), 0, "h0")
    assert len(heartbeat.error_line(long)) < 4096, "a pipe takes the line in one piece"


DISCONNECT = Coded.of(BlameCode.DISCONNECTED)


def either(number: int) -> Coded:
    """Hydra reports exit codes and signals alike."""
    return Coded.of(BlameCode.EXITED_OR_KILLED, number=number)


HYDRA = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 3 PID 4711 RUNNING AT h1
=   KILLED BY SIGNAL: 9 (Killed)
===================================================================================
"""
PRTERUN = """
--------------------------------------------------------------------------
prterun noticed that process rank 2 with PID 91 on node h1 exited on
signal 9 (Killed).
--------------------------------------------------------------------------
"""
DISCONNECTED = """
An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process (e.g., a crash or
otherwise exiting without calling MPI_FINALIZE first).
  Local host: h0
  Local PID:  13
  Peer host:  h2
"""
ABORTING = """
[h2:00000] *** An error occurred in Socket closed
[h2:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
"""
DAEMON = """
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-h3-20@0,0] on node h3
  Remote daemon: [prterun-h3-20@0,3] on node h2
"""
AGENT = """
------------------------------------------------------------
A daemon failed to report back after being spawned. This could
be due to several factors, including inability to find the
daemon executable.

  Local host:    h0
  Remote host:   h2
  Daemon exit status: 0
"""
ABORTED = """
 [h0:00000] *** An error occurred in Socket closed
[h0:00000] *** reported by process [1595670529,0]
[h0:00000] *** on a NULL communicator
[h0:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
"""
CALLED_ABORT = """
prterun has exited due to process rank 0 with PID 0 on node h0 calling
"abort". This may have caused other processes in the application to be
"""
NO_PROXY = """
[mpiexec@h0] ui_cmd_cb (/mpich-5.0.2/src/pm/hydra/mpiexec/pmiserv_pmci.c:51): Launch proxy failed.
[mpiexec@h0] main (/mpich-5.0.2/src/pm/hydra/mpiexec/mpiexec.c:270): process manager error waiting for completion
"""
CUT_OFF = """
[proxy:0@h0] HYD_pmcd_pmip_control_cmd_cb (proxy/pmip_cb.c:480): assert (!closed) failed
[proxy:1@h1] main (proxy/pmip.c:105): unable to connect to server desk at port 40123 (check for firewalls!)
"""
IMPROPERLY = """
prterun has exited due to process rank 2 with PID 26 on node h2 exiting
improperly. There are three reasons this could occur:
"""
NONZERO = """
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-h0-12@1,2]
   Exit code:    7
"""
TORCHRUN = """
============================================================
bench.allreduce FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_10:00:00
  host      : h2
  rank      : 2 (local_rank: 0)
  exitcode  : -9 (pid: 12)
"""


@pytest.mark.parametrize(
    ("launcher", "log", "blame"),
    [
        (mpirun.LAUNCHER, HYDRA, Blame(3, "h1", KILLED, 4711, only_kills=True)),
        (
            mpirun.LAUNCHER,
            HYDRA.replace("RANK 3 ", "").replace("KILLED BY SIGNAL: 9 (Killed)", "EXIT CODE: 9"),
            Blame(None, "h1", either(9), 4711, only_kills=True),
        ),
        (mpirun.LAUNCHER, DISCONNECTED, Blame(None, "h2", DISCONNECT)),
        (
            mpirun.LAUNCHER,
            DISCONNECTED.replace("h2", "h1") + DISCONNECTED.replace("h0", "h1"),
            Blame(None, "h2", DISCONNECT),
        ),
        (mpirun.LAUNCHER, DISCONNECTED.replace("h2", "h1") + DISCONNECTED, None),
        (mpirun.LAUNCHER, DISCONNECTED + ABORTING, None),
        (mpirun.LAUNCHER, DAEMON, Blame(None, "h2", Coded.of(BlameCode.DAEMON_LOST))),
        (mpirun.LAUNCHER, AGENT, Blame(None, "h2", Coded.of(BlameCode.CONNECTION_ENDED))),
        (mpirun.LAUNCHER, AGENT + PRTERUN, Blame(2, "h1", KILLED)),
        (mpirun.LAUNCHER, NO_PROXY, Blame(None, None, Coded.of(BlameCode.CONNECTION_ENDED))),
        (
            mpirun.LAUNCHER,
            CUT_OFF,
            Blame(
                None,
                "h1",
                Coded.of(
                    BlameCode.NOT_STARTED,
                    why="unable to connect to server desk at port 40123 (check for firewalls!)",
                ),
            ),
        ),
        (mpirun.LAUNCHER, IMPROPERLY, Blame(2, "h2", DISCONNECT)),
        (mpirun.LAUNCHER, NONZERO, Blame(2, None, either(7), surely_first=True)),
        (
            mpirun.LAUNCHER,
            HYDRA.replace("KILLED BY SIGNAL: 9 (Killed)", "EXIT CODE: 77"),
            Blame(3, "h1", exited(77), 4711, only_kills=True),
        ),
        (mpirun.LAUNCHER, PRTERUN, Blame(2, "h1", KILLED)),
        (mpirun.LAUNCHER, "all is well", None),
        (torchrun.LAUNCHER, TORCHRUN, Blame(2, "h2", KILLED, surely_first=True)),
        (torchrun.LAUNCHER, TORCHRUN.replace("-9", "1"), Blame(2, "h2", exited(1), surely_first=True)),
        (torchrun.LAUNCHER, "", None),
        (torchrun.LAUNCHER, TAKEN, Blame(0, None, Coded.of(BlameCode.PORT_TAKEN, port=29555))),
        (torchrun.LAUNCHER, TAKEN_BEFORE, Blame(0, None, Coded.of(BlameCode.PORT_TAKEN, port=29555))),
        (torchrun.LAUNCHER, TAKEN + TORCHRUN, Blame(2, "h2", KILLED, surely_first=True)),
        (torchrun.LAUNCHER, TAKEN.partition("Error: ")[2], None),  # torch tries another address after this line
    ],
)
def test_launchers_report_the_rank_that_they_lost(launcher: mpirun.Mpirun, log: str, blame: Blame | None) -> None:
    assert launcher.blamed(log) == blame


def test_several_interrupted_links_without_a_common_host_name_nobody() -> None:
    both = (("h0", "h1"), ("h2", "h3"))
    assert found(replace(WELL, unanswered=both)) == found(WELL)
    triangle = (("h0", "h1"), ("h0", "h2"), ("h1", "h2"))
    assert found(replace(WELL, unanswered=triangle)) == found(WELL)
