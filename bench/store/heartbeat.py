"""Heartbeat files: each rank says between batches what it is doing, so that a silent one has a name.

One small file per rank, replaced as a whole: rank, host, process, what it does, when (seconds since the epoch), and at
the end how it ended: a rank that is gone without that was ended from outside. Beside it, when it was asked for them,
the rank's stacks.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The last sign of life of one rank. `doing` is words: 'allreduce 1M isolated: warm-up'.

    `ended`: None while it runs, '' when it ended well, else its last words.
    """

    rank: int
    host: str
    process: int
    doing: str
    time_s: float
    ended: str | None = None


# What a rank does while its libraries load, which takes long when many load them at once from one disk.
STARTING, OPENING = "starting", "opening the transport"
TERMINATED = "terminated by SIGTERM"  # the last words of a rank that was told to end
_START_S = 60.0
_CRASH = "Fatal Python error"  # faulthandler's words


def allowance_s(doing: str, deadline_s: float) -> float:
    """How long a rank may be silent while it does this."""
    return max(deadline_s, _START_S) if doing in (STARTING, OPENING) else deadline_s


def write(folder: Path, beat: Heartbeat) -> None:
    """Replace this rank's file. A full disk is not a reason to stop measuring: the results file will say so."""
    path = folder / f"{beat.rank}.json"
    partial = folder / f".{beat.rank}.part"
    try:
        partial.write_text(json.dumps(asdict(beat)), encoding="utf-8")
        partial.replace(path)
    except OSError:
        return


def stack_file(folder: Path, rank: int) -> Path:
    """Where a rank writes its stacks when it is asked for them."""
    return folder / f"{rank}.stack"


def crashed(folder: Path, rank: int) -> bool:
    """Did this rank end by a signal such as SIGSEGV, so that its stacks were written as the last thing?"""
    try:
        return _CRASH in stack_file(folder, rank).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def read_all(folder: Path) -> tuple[Heartbeat, ...]:
    """The last beat of every rank that wrote one, by rank."""
    beats = []
    for path in folder.glob("*.json"):
        try:
            beats.append(Heartbeat(**json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):
            continue
    return tuple(sorted(beats, key=lambda beat: beat.rank))
