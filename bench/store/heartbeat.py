"""Heartbeat files: each rank says between batches what it is doing, so that a silent one has a name.

One small file per rank, replaced as a whole: rank, host, process, what it does, and when (seconds since the epoch).
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Beat:
    """The last sign of life of one rank. `doing` is words: 'allreduce 1M isolated: warm-up'."""

    rank: int
    host: str
    process: int
    doing: str
    time_s: float


def write(folder: Path, beat: Beat) -> None:
    """Replace this rank's file. A full disk is not a reason to stop measuring: the results file will say so."""
    path = folder / f"{beat.rank}.json"
    partial = folder / f".{beat.rank}.part"
    try:
        partial.write_text(json.dumps(asdict(beat)), encoding="utf-8")
        partial.replace(path)
    except OSError:
        return


def read_all(folder: Path) -> tuple[Beat, ...]:
    """The last beat of every rank that wrote one, by rank."""
    beats = []
    for path in folder.glob("*.json"):
        try:
            beats.append(Beat(**json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError):
            continue
    return tuple(sorted(beats, key=lambda beat: beat.rank))


def silent(beats: tuple[Beat, ...], num_ranks: int, now: float | None = None) -> str:
    """One clause that names the ranks not heard of for longest: 'rank 3 on h1, last seen in ... 12 s ago'."""
    missing = sorted(set(range(num_ranks)) - {beat.rank for beat in beats})
    if missing:
        listed = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        return f"of rank {listed} nothing was ever heard"
    if not beats:
        return "no rank wrote a sign of life"
    oldest = min(beats, key=lambda beat: beat.time_s)
    ago = (now if now is not None else time.time()) - oldest.time_s
    return f"rank {oldest.rank} on {oldest.host} was silent for longest, {ago:.0f} s, in: {oldest.doing}"
