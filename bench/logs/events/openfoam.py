"""Read OpenFOAM's fatal errors: `--> FOAM FATAL ERROR:` and the message below it.

In parallel runs, each line begins with the rank that printed it, such as `[3]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.logs.failure_events import Event, EventFormat, EventLine, MessageKind, Role, event_of

FATAL = MessageKind(
    "openfoam-fatal",
    Role.CAUSE,
    "OpenFOAM found an error< in {file}>: {error}",
    0.85,
    "correct the file or setting that the message names; the lines below it name the function",
)
_RANK = re.compile(  # printed by OpenFOAM, after the label of a launcher or a timestamp
    r"^\s{0,20}(?:\[[\w.@-]{0,80},?\d{1,7}\]<std\w{3}>:|\[pod/\S{1,200}\]|\d{1,7}:(?= \[)|"
    r"\d{4}-\d\d-\d\d[T ][\d:.,]{8,20}Z?)?"
    r"\s{0,20}\[(\d{1,7})\](?=\s|$)"
)
_FATAL = re.compile(r"--> FOAM FATAL (?:IO )?ERROR\s?:?\s*(?:\(openfoam[^)]{0,40}\))?\s*(?P<error>.*)")
_FILE = re.compile(r"^(?:file|in file): (?P<file>\S.{0,300}?)(?: at line \d+.*| from line \d+.*)?\.?$")
_ENDS = re.compile(r"^(?:From |FOAM (?:parallel run )?(?:exiting|aborting)|in file )")
_MOST_OPEN = 1_000  # ranks whose message is incomplete, at most
_MOST_LINES, _MOST_ALTOGETHER = 12, 400  # of one message, and of the ranks whose messages are mixed
_LONGEST = 300  # characters


class OpenFoam(EventFormat):
    """Yields one event for each rank that printed a fatal error."""

    hints = ("FOAM FATAL",)

    def __init__(self) -> None:
        """Start without a message."""
        self._open: dict[int | None, tuple[EventLine, list[str]]] = {}  # a rank -> its first line, and its message
        self._begin = 0

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        """Whether the following line may continue a message."""
        return bool(self._open)

    def read(self, line: EventLine) -> Iterator[Event]:
        """Read a line of a message, and yield the event at its end."""
        rank, text = _rank_of(line), line.text
        if (fatal := _FATAL.search(text)) is not None:
            if rank in self._open or len(self._open) < _MOST_OPEN:
                yield from self._taken(rank)
                error = fatal["error"].strip()
                self._open[rank] = (line, [error] if error else [])
                self._begin = line.number
        elif line.number - self._begin > _MOST_ALTOGETHER:
            yield from self.finish()
        elif rank in self._open:
            _, parts = self._open[rank]
            is_end = _ENDS.match(text) is not None or len(parts) >= _MOST_LINES
            if is_end or (not text and any(map(_FILE.match, parts))):
                yield from self._taken(rank)
            elif text:
                parts.append(text)

    def finish(self) -> Iterator[Event]:
        """Yield the events of messages that are incomplete because the file ends."""
        for rank in list(self._open):
            yield from self._taken(rank)

    def _taken(self, rank: int | None) -> Iterator[Event]:
        if rank not in self._open:
            return
        begin, parts = self._open.pop(rank)
        files = [found["file"] for found in map(_FILE.match, parts) if found is not None]
        error = " ".join(part for part in parts if _FILE.match(part) is None)[:_LONGEST]
        facts = {"error": error or "no message", "file": files[0] if files else None}
        facts = {name: value for name, value in facts.items() if value is not None}
        printed = f"{begin.text} {error}"
        yield event_of(FATAL, begin, rank=rank, facts=facts, printed=printed)


FORMAT = OpenFoam


def _rank_of(line: EventLine) -> int | None:
    """Return the rank at the beginning of a line, which OpenFOAM or a launcher printed."""
    found = _RANK.match(line.raw)
    return int(found[1]) if found is not None else line.label
