"""Read torchrun's report of failed workers: log lines and the table of `ChildFailedError` (torch 1.9 to 2.13).

The last entry of the table, under "Root Cause", is the first observed failure. SIGTERM means that torchrun's agent
ended the worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from bench.logs.events import _ends
from bench.logs.failure_events import Event, EventFormat, EventLine, MessageKind, Role, event_of

RESTARTED = MessageKind("workers-restarted", Role.STATE, "torchrun restarted the workers")
_RESTART = re.compile(r"Worker group FAILED\. .{0,40}attempts left; will restart worker group")
_FAILED = re.compile(
    r"failed \(exitcode: (?P<exit_code>-?\d{1,6})\) local_rank: (?P<local_rank>\d{1,6}) \(pid: (?P<pid>\d{1,10})\)"
)
_TOLD = re.compile(
    r"Received (?:(?P<signal>\d{1,2})|Signals\.(?P<name>SIG[A-Z]{1,8})) death signal, shutting down workers"
    # torchrun passes the signal on that it got. It also sends SIGTERM by itself after a failure.
    r"|Sending process \d+ closing signal (?P<name_2>SIGHUP|SIGINT)\b"
    r"|SignalException: Process \d+ got signal: (?P<signal_2>[12])\b"
)
_BEGIN = re.compile(r"Root Cause \(first observed failure\)|^Failures:|^Other Failures:")
_FIELD = re.compile(r"^(?P<name>time|host|rank|exitcode|error_file|traceback|msg|message)\s*: ?(?P<value>.*)")
_RANK = re.compile(r"(\d{1,7})(?: \(local_rank: (\d{1,6})\))?")
_EXCEPTION = re.compile(r"[\w.]{0,200}(?:Error|Exception)\b")
_EXIT = re.compile(r"(-?\d{1,6}) \(pid: (\d{1,10})\)")


class ElasticReport(EventFormat):
    """Yields one event for each worker in the table. Without a table, yields one event for the log line."""

    hints = (
        "ChildFailedError",
        "failed (exitcode:",
        "Root Cause (first",
        "Failures:",
        "death signal, ",
        "closing signal SIG",
        "got signal: ",
        "will restart worker group",
    )

    def __init__(self) -> None:
        """Start with no open table."""
        self.is_open = False
        self._root = False
        self._fields: dict[str, str] = {}
        self._line: EventLine | None = None

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield the event of a worker whose table entry ends with this line, or the event of a signal to torchrun."""
        failed = _FAILED.search(line.text)
        if failed is not None:
            code = int(failed["exit_code"])
            facts = {"exit_code": code, "signal": _ends.signal_of_exit(code), "local_rank": int(failed["local_rank"])}
            yield event_of(_ends.by_exit_code(code), line, pid=int(failed["pid"]), facts=facts | {"by_agent": True})
            return
        told = _TOLD.search(line.text)
        if told is not None:
            number, name = told["signal"] or told["signal_2"], told["name"] or told["name_2"]
            signal = int(number) if number else _ends.signal_of(name)
            kind = {1: _ends.HUNG_UP, 2: _ends.INTERRUPTED}.get(signal or 0, _ends.AGENT_ENDED)
            yield event_of(kind, line, facts={"signal": signal})
            return
        if _RESTART.search(line.text) is not None:
            yield event_of(RESTARTED, line)
            return
        begin = _BEGIN.search(line.text)
        if begin is not None:
            yield from self._entry()
            self._root, self.is_open = begin[0].startswith("Root"), True
            return
        if not self.is_open:
            return
        field = _FIELD.match(line.text)
        if field is not None:
            self._fields[field["name"]] = field["value"].strip()
            self._line = self._line or line
        elif re.match(r"\[\d+\]:$|-{20}|={20}", line.text):
            yield from self._entry()
            if line.text.startswith("=") and self._root:
                self.is_open = False
        elif self._fields and _EXCEPTION.match(line.text):
            self._fields["message"] = line.text  # the last line of a recorded traceback

    def finish(self) -> Iterator[Event]:
        """Yield the event of the last entry of an incomplete table."""
        yield from self._entry()

    def _entry(self) -> Iterator[Event]:
        fields, line = self._fields, self._line
        self._fields, self._line = {}, None
        ended, rank = _EXIT.match(fields.get("exitcode", "")), _RANK.match(fields.get("rank", ""))
        if line is None or ended is None or rank is None:
            return
        code = int(ended[1])
        facts = {"exit_code": code, "signal": _ends.signal_of_exit(code), "first_observed": self._root}
        message = fields.get("message") or fields.get("msg") or fields.get("traceback") or ""
        printed = f"rank {rank[1]}, exit code {code}: {message}".strip()
        clock = replace(line, raw=fields.get("time", ""))  # a date such as 2026-11-22_19:25:41
        host = fields.get("host") or None
        yield event_of(
            _ends.by_exit_code(code),
            clock,
            rank=int(rank[1]),
            host=host,
            pid=int(ended[2]),
            facts=facts,
            printed=printed,
        )


FORMAT = ElasticReport
