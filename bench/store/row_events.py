"""Pass events of measured rows from rank 0 to a controller, which shows the rows while the job runs.

Rank 0 appends one short line of JSON for each row to a file next to the heartbeats. The controller could also read the
results file. However, reading the results file would mean reading all samples again, which costs CPU time that the
ranks need.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.store import line_schema

_NAME = "rows.jsonl"


@dataclass(frozen=True, slots=True)
class RowEvent:
    """A measured row: one size of a pattern in one mode.

    If several groups of ranks ran, the figures are those of the slowest group.

    `reason`: why the row has no figures, if it was skipped or failed.
    """

    pattern: str
    payload_bytes: int
    mode: str
    num_groups: int = 1
    median_s: float | None = None
    busbw_bytes_per_s: float | None = None
    bound_fraction: float | None = None
    flags: tuple[str, ...] = ()
    failed: bool = False
    reason: str = ""


def append(folder: Path, event: RowEvent) -> None:
    """Append an event. Errors are ignored, because the results file also reports a full disk."""
    with contextlib.suppress(OSError), (folder / _NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(event)) + "\n")


class RowEventReader:
    """Reads the events of one job, each event once."""

    def __init__(self, folder: Path) -> None:
        self._path, self._offset = folder / _NAME, 0

    def new(self) -> list[RowEvent]:
        """Return the events that were added since the last call.

        If the last line is incomplete, a later call returns it.
        """
        try:
            if self._path.stat().st_size == self._offset:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return []
        self._offset += len(whole) + len(newline)
        return list(_parsed(whole.splitlines()))


def _parsed(lines: Iterable[bytes]) -> Iterable[RowEvent]:
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            fields = json.loads(line)
            if line_schema.of(RowEvent)(fields) is None:
                yield RowEvent(**{**fields, "flags": tuple(fields["flags"])})
