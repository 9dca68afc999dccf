"""Who is to blame: each piece of evidence alone, and the stronger before the weaker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.controller import root_cause, supervise
from bench.controller.root_cause import FailureEvidence, RootCause
from bench.core.launcher import Blame
from bench.launchers import mpirun, torchrun
from bench.store import heartbeat
from bench.store.heartbeat import Heartbeat

DOING = "allreduce 64M pipelined: warm-up"
BEATS = tuple(Heartbeat(rank, f"h{rank}", 40 + rank, DOING, 100.0 + rank) for rank in range(4))
ALIVE = {f"h{rank}": {str(40 + rank): "sleeping"} for rank in range(4)}
WELL = FailureEvidence(4, BEATS, states=ALIVE)
LOST = "rank 0 on h0: lost contact with its peers in allreduce 64M (Connection closed by peer)"


def ended(rank: int, words: str) -> tuple[Heartbeat, ...]:
    return tuple(replace(beat, ended=words) if beat.rank == rank else beat for beat in BEATS)


@pytest.mark.parametrize(
    ("evidence", "guilt"),
    [
        (
            replace(WELL, said=(LOST, "rank 1 on h1: ValueError: no")),
            RootCause("rank 1 on h1: ValueError: no", 1, "h1"),
        ),
        (
            replace(WELL, said=(LOST,), no_room="results/1 can not be written (No space left on device)"),
            RootCause("results/1 can not be written (No space left on device)"),
        ),
        (replace(WELL, said=("results can not be written",)), RootCause("results can not be written")),
        (
            replace(WELL, said=(LOST,), unreachable=("h2",)),
            RootCause("host h2 no longer answers its agent; its rank 2 may still run there", 2, "h2"),
        ),
        (
            replace(WELL, said=(LOST,), states=ALIVE | {"h3": {"43": "stopped"}}),
            RootCause(f"rank 3 on h3 is stopped (a stop signal, or a debugger), in: {DOING}", 3, "h3"),
        ),
        (
            replace(WELL, launcher=Blame(2, "h2", "killed by signal 9"), states={key: {} for key in ALIVE}),
            RootCause(f"rank 2 on h2 was killed by signal 9, in: {DOING}", 2, "h2"),
        ),
        (
            replace(WELL, launcher=Blame(2, None, "ended with exit code 7")),
            RootCause(f"rank 2 on h2 ended with exit code 7, in: {DOING}", 2, "h2"),
        ),
        (
            replace(WELL, launcher=Blame(None, "h1", "ended with exit code 5", 41)),
            RootCause(f"rank 1 on h1 ended with exit code 5, in: {DOING}", 1, "h1"),
        ),
        (
            replace(WELL, launcher=Blame(None, "h1", "ended with exit code 5", 99)),
            RootCause("a rank on h1 ended with exit code 5", None, "h1"),
        ),
        (
            replace(WELL, states=ALIVE | {"h1": {}}, said=(LOST,)),
            RootCause(f"rank 1 on h1 ended without a word, in: {DOING}", 1, "h1"),
        ),
        (
            replace(WELL, unplugged={"h1": ["eth0"]}),
            RootCause("host h1 has no carrier on eth0: its cable or its switch port", None, "h1"),
        ),
        (
            replace(WELL, cut_off=("h3",)),
            RootCause("host h3 can not be reached over the network by the others", None, "h3"),
        ),
        (replace(WELL, beats=BEATS[:3], states=ALIVE | {"h3": {}}), RootCause("of rank 3 nothing was ever heard", 3)),
        (
            replace(WELL, said=(LOST,), silent_s={0: 9.0, 1: 6.5, 2: 6.4, 3: 6.0}),
            RootCause(f"rank 0 on h0 was silent for longest, in: {DOING}", 0, "h0"),
        ),
    ],
    ids=[
        "a rank's words",
        "no room",
        "nobody's words",
        "host away",
        "stopped",
        "killed",
        "exited",
        "a process",
        "another process",
        "gone",
        "unplugged",
        "cut off",
        "never came",
        "silent",
    ],
)
def test_who_is_to_blame(evidence: FailureEvidence, guilt: RootCause) -> None:
    assert root_cause.judge(evidence) == guilt


def test_nobody_is_blamed_without_evidence() -> None:
    assert root_cause.judge(FailureEvidence(4)) is None
    assert root_cause.judge(replace(WELL, said=(LOST,), late=False)) is None
    assert root_cause.judge(replace(WELL, beats=tuple(replace(beat, ended="done") for beat in BEATS))) is None


def test_a_complaint_is_passed_on_where_nobody_is_to_blame() -> None:
    refused = "rank 1 could not join the 4 ranks of this Gloo job (Unable to find address for: eth7)"
    killed = ended(0, heartbeat.TERMINATED)[:1] + ended(1, f"{refused}\nand more")[1:]
    silent = replace(WELL, beats=killed, launcher=Blame(1, "h1", "ended with exit code 3"), late=False)
    assert root_cause.judge(silent) is None
    assert root_cause.last_words(silent) == refused
    assert root_cause.last_words(replace(silent, beats=ended(1, "no disk"))) == "rank 1 on h1: no disk"
    assert root_cause.last_words(replace(silent, said=(LOST,))) == LOST
    assert root_cause.last_words(WELL) == ""


def test_a_rank_that_spoke_its_last_words_is_not_one_that_died() -> None:
    gone = replace(
        WELL, beats=ended(0, LOST), states={key: {} for key in ALIVE}, launcher=Blame(0, "h0", "ended with exit code 4")
    )
    guilt = root_cause.judge(gone)
    assert guilt == RootCause(
        "ranks 1, 2, 3 ended without a word (on h1, h2, h3); which of them was the first is unknown"
    )


def test_of_ranks_that_are_gone_together_their_host_is_named() -> None:
    beats = (*BEATS[:2], *(replace(beat, host="h2") for beat in BEATS[2:]))
    gone = replace(WELL, beats=beats, states=ALIVE | {"h2": {}, "h3": {}})
    assert root_cause.judge(gone) == RootCause("ranks 2, 3 ended without a word on h2", None, "h2")


def test_a_crash_may_be_of_the_loss_of_a_peer() -> None:
    lost = Blame(0, "h0", "ended with exit code or signal 11")
    crash = replace(WELL, crashed=(0,), launcher=lost, states=ALIVE | {"h0": {}})
    assert root_cause.judge(crash) == RootCause(f"rank 0 on h0 ended with exit code or signal 11, in: {DOING}", 0, "h0")
    assert root_cause.judge(replace(crash, states=ALIVE | {"h0": {}, "h2": {}})) == RootCause(
        f"rank 2 on h2 ended without a word, in: {DOING}; rank 0 crashed, as a rank may that loses a peer", 2, "h2"
    )


def test_ranks_that_fell_silent_together_are_all_victims() -> None:
    together = replace(WELL, said=(LOST,), silent_s={0: 6.9, 1: 6.5, 2: 6.4, 3: 6.0})
    assert root_cause.judge(together) is None
    assert root_cause.doing(together) == f"; 4 of 4 ranks were in: {DOING}"
    well_ended = replace(together, beats=ended(0, ""), silent_s={0: 60.0, 1: 6.5, 2: 6.4, 3: 6.0})
    assert root_cause.judge(well_ended) is None


def test_a_rank_whose_files_are_not_seen_here_is_not_missing() -> None:
    elsewhere = replace(WELL, beats=BEATS[:3])
    assert root_cause.judge(replace(elsewhere, states=ALIVE | {"h3": {}})) == RootCause(
        "of rank 3 nothing was ever heard", 3
    )
    assert root_cause.judge(elsewhere) is None


def test_a_port_that_is_free_on_all_hosts_is_no_pulled_cable() -> None:
    assert supervise._unplugged({"h0": ["docker0"], "h1": ["docker0", "eth0"]}) == {"h1": ["eth0"]}
    both = replace(WELL, unplugged={"h0": ["eth1"], "h1": ["eth0"]}, cut_off=("h1",))
    guilt = root_cause.judge(both)
    assert guilt is not None
    assert guilt.host == "h1"


def test_when_all_are_gone_without_a_word_nobody_is_named() -> None:
    assert root_cause._who_is_gone(replace(WELL, states={key: {} for key in ALIVE})) is None


def test_a_host_is_cut_off_only_where_the_others_reach_each_other() -> None:
    cut = {"h0": {"h2": "no"}, "h1": {"h2": "no"}, "h2": {"h0": "no", "h1": "no"}}
    assert supervise._cut_off(cut) == ("h2",)
    assert supervise._cut_off({"h0": {"h1": "no"}, "h1": {"h0": "no"}}) == ()
    walled = {a: {b: "no" for b in ("h0", "h1", "h2") if b != a} for a in ("h0", "h1", "h2")}
    assert supervise._cut_off(walled) == ()


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
        (mpirun.LAUNCHER, HYDRA, Blame(3, "h1", "killed by signal 9", 4711)),
        (
            mpirun.LAUNCHER,
            HYDRA.replace("RANK 3 ", "").replace("KILLED BY SIGNAL: 9 (Killed)", "EXIT CODE: 9"),
            Blame(None, "h1", "ended with exit code or signal 9", 4711),
        ),
        (mpirun.LAUNCHER, DISCONNECTED, Blame(None, "h2", "ended while its peers were connected to it")),
        (
            mpirun.LAUNCHER,
            DISCONNECTED.replace("h2", "h1") + DISCONNECTED.replace("h0", "h1"),
            Blame(None, "h2", "ended while its peers were connected to it"),
        ),
        (mpirun.LAUNCHER, DISCONNECTED.replace("h2", "h1") + DISCONNECTED, None),
        (mpirun.LAUNCHER, DISCONNECTED + ABORTING, None),
        (mpirun.LAUNCHER, DAEMON, Blame(None, "h2", "lost by mpirun together with its daemon there")),
        (
            mpirun.LAUNCHER,
            CUT_OFF,
            Blame(
                None,
                "h1",
                "not started, as mpirun's process there was unable to connect to server desk at port 40123 "
                "(check for firewalls!)",
            ),
        ),
        (mpirun.LAUNCHER, IMPROPERLY, Blame(2, "h2", "ended while its peers were connected to it")),
        (mpirun.LAUNCHER, NONZERO, Blame(2, None, "ended with exit code or signal 7")),
        (
            mpirun.LAUNCHER,
            HYDRA.replace("KILLED BY SIGNAL: 9 (Killed)", "EXIT CODE: 77"),
            Blame(3, "h1", "ended with exit code 77", 4711),
        ),
        (mpirun.LAUNCHER, PRTERUN, Blame(2, "h1", "killed by signal 9")),
        (mpirun.LAUNCHER, "all is well", None),
        (torchrun.LAUNCHER, TORCHRUN, Blame(2, "h2", "killed by signal 9")),
        (torchrun.LAUNCHER, TORCHRUN.replace("-9", "1"), Blame(2, "h2", "ended with exit code 1")),
        (torchrun.LAUNCHER, "", None),
    ],
)
def test_what_launchers_say_of_a_rank_that_they_lost(launcher: mpirun.Mpirun, log: str, blame: Blame | None) -> None:
    assert launcher.blamed(log) == blame
