"""Read Horovod's warnings about stalled operations."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.logs.failure_events import Event, EventLine, MessageKind, Role, Sign, SignFormat, event_of

_STALLED = MessageKind(
    "stalled-ranks",
    Role.ABSENT,
    "{who} had not called {operation} while the other ranks waited",
    0.45,
    "read the logs of these ranks, or their stacks while the job hangs",
    "py-spy dump --pid PID",
    advisory=True,  # ranks may also be late for a while
)
_SIGNS = (
    (r"(?<![\w./-])(?P<operation>[\w./-]{1,200}) \[missing ranks: (?P<ranks>\d[\d, ]*)\]", _STALLED),
    (
        r"Horovod has been shut down\. This (?:was|has been) caused by an exception on one of the ranks?\b",
        MessageKind(
            "horovod-stopped",
            Role.PEER,
            "Horovod stopped after an exception on another rank",
            0.3,
            "look for the rank that ended first; its own output has the reason",
        ),
    ),
)
_TABLE = re.compile(r"(?:^|\] ?|: ?)Missing ranks:\s*$")
_ROW = re.compile(r"(?P<rank>\d{1,6}): \[(?P<operation>[^\s,\]]{1,200})(?:, [^\s,\]]{1,200}){0,99}(?: \.\.\.)?\]?\s*$")


class Horovod(SignFormat):
    """Yields one event for each line, and one event for a table of missing ranks (Horovod 0.21 and later)."""

    hints = ("[missing ranks: ", "Missing ranks:", "Horovod has been shut down")
    signs = tuple(Sign(re.compile(pattern), kind) for pattern, kind in _SIGNS)

    def __init__(self) -> None:
        """Start with no table."""
        self._table: EventLine | None = None
        self._label = ""  # what a launcher printed before the first line of the table, and prints before each row
        self._rows: dict[int, str] = {}  # the rank -> the first operation that it lacks

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        """Whether the following line may be a row of the table."""
        return self._table is not None

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield the events of a line, and the event of a table that ends before this line."""
        is_beside = self._table is not None and line.raw.startswith(self._label)
        row = _ROW.match(line.raw, len(self._label)) if is_beside else None
        if row is not None:
            self._rows.setdefault(int(row["rank"]), row["operation"])
            return
        yield from self.finish()
        if _TABLE.search(line.text):
            self._table, self._label = line, line.raw.partition("Missing ranks:")[0]
            return
        yield from super().read(line)

    def finish(self) -> Iterator[Event]:
        """Yield the event of a table at the end of the file."""
        table, rows = self._table, self._rows
        self._table, self._rows = None, {}
        if table is not None and rows:
            ranks = tuple(sorted(rows))
            text = "; ".join(f"{rank}: {operation}" for rank, operation in rows.items())
            yield event_of(_STALLED, table, ranks=ranks, operation=rows[ranks[0]], printed=f"{table.text} {text}")


FORMAT = Horovod
