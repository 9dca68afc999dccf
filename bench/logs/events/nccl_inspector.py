"""Read records of NCCL's Inspector plug-in: a JSON object for each finished collective (plugins/profiler/inspector).

The records show how far each rank got. NCCL writes the records at intervals. A missing record alone therefore does not
prove a failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.logs.failure_events import Event, EventFormat, EventLine, MessageKind, Role, event_of

FINISHED = MessageKind("inspector-finished", Role.STATE, "rank {rank} on {host} last finished {operation} {seq}")
_FIELD = re.compile(r'"(id|rank|n_ranks|hostname|pid|coll|coll_sn)"\s*:\s*(?:"([^"]{0,255})"|(-?\d{1,20}))')
_WANTED = ("rank", "coll_sn")
_LONGEST_OBJECT = 60  # an object that is printed over several lines has at most this many lines
_MOST = 100_000  # at most this many ranks and communicators are kept


class InspectorRecords(EventFormat):
    """Yields one event for each rank of each communicator. The event has the rank's last finished operation.

    All events are yielded at the end of the file.
    """

    hints = ('"header"', '"coll_perf"', '"coll_sn"', '"n_ranks"', '"inspector_output_format_version"')

    def __init__(self) -> None:
        """Start with no record."""
        self._fields: dict[str, str] = {}
        self._lines_left = 0
        self._last: dict[tuple[str, str], tuple[int, dict[str, str], EventLine]] = {}

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        """Whether a JSON object that spans several lines is incomplete."""
        return self._lines_left > 0

    def read(self, line: EventLine) -> Iterator[Event]:
        """Collect the record of a line. `finish` yields the events at the end of the file."""
        for name, text, number in _FIELD.findall(line.raw):
            self._fields[name] = text or number
            if name == "coll_sn":
                self._keep(line)
        whole = line.text.startswith("{") and line.text.endswith("}")
        if '"header"' in line.text:
            self._lines_left = _LONGEST_OBJECT
        self._lines_left = 0 if whole else self._lines_left - 1
        if self._lines_left <= 0:
            self._fields = {}
        yield from ()

    def finish(self) -> Iterator[Event]:
        """Yield the last finished operation of each rank."""
        for (group, rank), (seq, fields, line) in self._last.items():
            yield event_of(
                FINISHED,
                line,
                rank=int(rank),
                group=group,
                seq=seq,
                operation=fields.get("coll"),
                host=fields.get("hostname"),
                pid=int(fields["pid"]) if fields.get("pid") else None,
                facts={"num_ranks": int(fields["n_ranks"])} if fields.get("n_ranks") else {},
            )

    def _keep(self, line: EventLine) -> None:
        fields = dict(self._fields)
        if not all(fields.get(name, "").isdigit() for name in _WANTED):
            return
        key = (fields.get("id", ""), fields["rank"])
        known = self._last.get(key)
        if (known is None or known[0] < int(fields["coll_sn"])) and len(self._last) < _MOST:
            self._last[key] = int(fields["coll_sn"]), fields, line


FORMAT = InspectorRecords
