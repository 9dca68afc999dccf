"""Define the codes with which ranks report how they ended.

The controller uses these codes to find the root cause of a failed job.
"""

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
        "the controller is gone (it last renewed its lease {silent_s:.0f} s ago): continue with `linkbench run "
        "--resume`",
    )
    OUT_OF_MEMORY = (
        "out-of-memory",
        "ran out of memory (phase: {doing}; {why}): measure smaller sizes, or start fewer ranks on this machine",
    )
    LOST_CONTACT = "lost-contact", "lost contact with its peers (phase: {doing}; {why})"
    NO_PROGRESS = "no-progress", "no progress for {silent_s:.0f} s (phase: {doing})"
    NOT_FINISHED = (
        "not-finished",
        "{doing} did not finish within {within_s:.0f} s: test the ports between the hosts with `linkbench doctor`",
    )
    SUSPENDED = (
        "suspended",
        "machine {host} was suspended for {paused_s:.0f} s, longer than the deadline of {deadline_s:.0f} s (phase: "
        "{doing}): continue with `linkbench run --resume`",
    )
    PAUSED = (
        "paused",
        "this process was paused for {paused_s:.0f} s, longer than the deadline of {deadline_s:.0f} s (phase: "
        "{doing}): its virtual machine was paused, or the process was stopped",
    )
    CANNOT_JOIN = (
        "cannot-join",
        "rank {rank} cannot join the {num_ranks} ranks of this {library} job ({why}): {remedy}",
    )
    ABSENT = (
        "absent",
        "{missing} did not reach rank {seen_by} on {seen_on} within {waited_s:.0f} s{others}: check the host and the "
        "output of its ranks, and test the ports between the hosts with `linkbench doctor`",
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
