"""Read the text output of `ncclras`, the client of NCCL's RAS subsystem (NCCL 2.24 to 2.30, ras/client_support.cc)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.logs.failure_events import Event, EventFormat, EventLine, MessageKind, Role, event_of

_HEAD = re.compile(r"^(?:(?P<comm>#\d+-\d+ \([0-9a-f]{1,16}\)) )?(?P<kind>INCOMPLETE|DEAD|ERROR|MISMATCH|TIMEOUT)$")
_COUNTS = re.compile(r"different (?P<operation>\w+ )?operation counts")
_SEVERAL = re.compile(
    r"^(?P<num_ranks>\d+) ranks? (?:have launched up to operation (?P<seq>\d+)|have not launched any)"
)
_RANK = re.compile(
    r"^Rank (?P<rank>\d{1,7})(?: has launched up to operation (?P<seq>\d+)| has (?P<none>not launched any operations)"
    r"| has status (?P<status>\w+)| reported (?P<error>[\w ]+?))?(?: -- (?:GPU (?P<device>\S+) managed by process "
    r"(?P<pid>\d+) on node (?P<host>\S+)|\[process information not found\]))?$"
)
_MISSING = re.compile(r"^The missing ranks?: (?P<ranks>[\d, -]+)")
_PROCESS = re.compile(r"^Process (?P<pid>\d+) on node (?P<host>\S+) managing GPUs? (?P<device>.*)")
_STACKS = "py-spy dump --pid PID (on its node)"
LAUNCHED = MessageKind("ras-launched", Role.STATE, "rank {rank} has launched <{operation} >up to number {seq}")
_DEAD = MessageKind(
    "ras-dead",
    Role.ENDED,
    "process {pid} on {host} is dead: NCCL's RAS network cannot reach it",
    0.7,
    "read this process's own output, and the kernel log of its node",
    "dmesg -T | tail -50",
)
_UNREACHED = MessageKind(
    "ras-missing",
    Role.ABSENT,
    "<{who}>< (process {pid} on {host})> did not respond to NCCL's RAS query",
    0.7,
    "check that the process is alive and its node responds",
    _STACKS,
)
_FAILED = MessageKind(
    "ras-error",
    Role.CAUSE,
    "rank {rank} reports an error of NCCL<: {error}>",
    0.6,
    "read this rank's own output",
    "NCCL_DEBUG=WARN",
)


class RasReport(EventFormat):
    """Yields an event for each rank or process named in the sections Errors and Warnings."""

    hints = ("INCOMPLETE", "DEAD", "MISMATCH", "ERROR", "obtained a result in", "Communicators...")

    def __init__(self) -> None:
        """Start with no open section."""
        self._kind = ""
        self._group: str | None = None
        self._operation: str | None = None
        self._seq: int | None = None

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        """Whether a section is open."""
        return bool(self._kind)

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield an event for the rank or process that a line in a section names."""
        head = _HEAD.match(line.text)
        if head is not None:
            self._kind, self._group = head["kind"], head["comm"]
            self._operation = self._seq = None
            return
        if not line.text:
            self._kind = ""
        if not self._kind:
            return
        if counts := _COUNTS.search(line.text):
            self._operation, self._seq = (counts["operation"] or "").strip() or None, None
        elif several := _SEVERAL.match(line.text):
            self._seq = int((several["seq"] or "0")[:18])
            facts = {"num_ranks": int(several["num_ranks"][:9])}
            yield event_of(LAUNCHED, line, seq=self._seq, group=self._group, operation=self._operation, facts=facts)
        elif missing := _MISSING.match(line.text):
            yield event_of(_UNREACHED, line, missing, group=self._group)
        elif process := _PROCESS.match(line.text):
            if self._kind in ("DEAD", "INCOMPLETE"):
                yield event_of(_DEAD if self._kind == "DEAD" else _UNREACHED, line, process, group=self._group)
        elif rank := _RANK.match(line.text):
            yield from self._rank(line, rank)

    def _rank(self, line: EventLine, found: re.Match[str]) -> Iterator[Event]:
        rank = int(found["rank"])
        if self._kind == "INCOMPLETE":
            yield event_of(_UNREACHED, line, found, group=self._group, ranks=(rank,))
        elif self._kind == "ERROR":
            yield event_of(_FAILED, line, found, group=self._group)
        elif self._kind == "MISMATCH" and not found["status"]:
            seq = int(found["seq"][:18]) if found["seq"] else (0 if found["none"] else self._seq)
            if seq is not None:
                yield event_of(LAUNCHED, line, found, group=self._group, operation=self._operation, seq=seq)


FORMAT = RasReport
