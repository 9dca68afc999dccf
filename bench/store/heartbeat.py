"""Heartbeat files: each rank reports between batches what it is doing, so the controller can name a silent one.

One small file per rank, replaced atomically: rank, host, process, activity, time (seconds since the epoch), and how it
ended. A rank that is gone without an end was ended from outside. A second file holds the rank's stacks on request.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last heartbeat of a rank. `doing`: its activity, such as 'allreduce 1M isolated: warm-up'.

    `ended`: None while it runs, '' after a normal end, else its last message.
    """

    rank: int
    host: str
    process: int
    doing: str
    time_s: float
    ended: str | None = None


# Activities of a rank while its libraries load. That is slow when many ranks load them from one disk.
STARTING, OPENING = "starting", "opening the transport"
TERMINATED = "terminated by SIGTERM"  # the last message of a rank that received SIGTERM
_START_S = 60.0
_CRASH = "Fatal Python error"  # written by faulthandler


def allowance_s(doing: str, deadline_s: float) -> float:
    """How long a rank may be silent during this activity."""
    return max(deadline_s, _START_S) if doing in (STARTING, OPENING) else deadline_s


def write(folder: Path, beat: Heartbeat) -> None:
    """Replace this rank's file. Errors are ignored: a full disk shows when the results file is written."""
    path = folder / f"{beat.rank}.json"
    partial = folder / f".{beat.rank}.part"
    try:
        partial.write_text(json.dumps(asdict(beat)), encoding="utf-8")
        partial.replace(path)
    except OSError:
        return


def stack_file(folder: Path, rank: int) -> Path:
    """The file for a rank's stacks."""
    return folder / f"{rank}.stack"


def crashed(folder: Path, rank: int) -> bool:
    """Did this rank crash by a signal such as SIGSEGV? It then wrote its stacks."""
    try:
        return _CRASH in stack_file(folder, rank).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def read_all(folder: Path) -> tuple[Heartbeat, ...]:
    """The last heartbeat of every rank that wrote one, by rank."""
    beats = []
    for path in folder.glob("*.json"):
        try:
            beats.append(Heartbeat(**json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):
            continue
    return tuple(sorted(beats, key=lambda beat: beat.rank))
