"""How a rank ended. Ranks report these codes, and the controller finds the root cause of a failed job from them."""

from __future__ import annotations

from bench.core.codes import Code


class EndCode(Code):
    """How a rank ended."""

    DONE = "done", "done"
    ERROR = "error", "{kind}: {why}"
    INTERRUPTED = "interrupted", "interrupted"
    TERMINATED = "terminated", "terminated by SIGTERM"
    CONTROLLER_GONE = (
        "controller-gone",
        "the controller is gone and last renewed its lease {silent_s:.0f} s ago: continue with `linkbench run "
        "--resume`",
    )
    OUT_OF_MEMORY = (
        "out-of-memory",
        "ran out of memory in {doing} ({why}): give smaller sizes, or start fewer ranks on this machine",
    )
    LOST_CONTACT = "lost-contact", "lost contact with its peers in {doing} ({why})"
    NO_PROGRESS = "no-progress", "no progress for {silent_s:.0f} s in: {doing}"
    NOT_FINISHED = (
        "not-finished",
        "{doing} did not finish within {within_s:.0f} s: `linkbench doctor` tests the ports between the hosts",
    )
    SUSPENDED = (
        "suspended",
        "machine {host} was suspended for {paused_s:.0f} s, more than the deadline of {deadline_s:.0f} s, in: {doing}; "
        "continue with `linkbench run --resume`",
    )
    PAUSED = (
        "paused",
        "this process did not run for {paused_s:.0f} s, more than the deadline of {deadline_s:.0f} s, in: {doing}; "
        "its virtual machine was paused, or the process was stopped",
    )
    CANNOT_JOIN = (
        "cannot-join",
        "rank {rank} cannot join the {num_ranks} ranks of this {library} job ({why}): {remedy}",
    )
    ABSENT = (
        "absent",
        "{missing}: did not reach rank {seen_by} on {seen_on} within {waited_s:.0f} s{others}: check the host "
        "and its ranks' output; `linkbench doctor` tests the ports between the hosts",
    )
    PEERS_ABSENT = "peers-absent", "not all ranks arrived within {waited_s:.0f} s"


# A rank with one of these codes is never the root cause, because another rank caused its end.
CONSEQUENCES = frozenset(
    (
        EndCode.LOST_CONTACT,
        EndCode.NO_PROGRESS,
        EndCode.CANNOT_JOIN,
        EndCode.PEERS_ABSENT,
        EndCode.TERMINATED,
        EndCode.CONTROLLER_GONE,
    )
)
