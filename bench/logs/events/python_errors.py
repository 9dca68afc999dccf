"""Read the last line of a Python traceback.

The line may begin like `[rank3]: ValueError`. Errors of libraries have their own formats.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.logs.failure_events import Event, EventFormat, EventLine, MessageKind, Role, event_of

_RAISED = re.compile(
    r"^(?:\[(?:rank|default)(?P<rank>\d{1,6})\]:\s?)?"
    r"(?P<error>(?:[A-Za-z_]\w{0,80}\.){0,8}(?:[A-Z]\w{0,80})?(?:Error|Exception|Interrupt|Exit))(?:: "
    r"(?P<message>.*))?$"
)
RAISED = MessageKind(
    "python-error",
    Role.CAUSE,
    "the program raised {error}<: {message}>",
    0.75,
    "correct the program; the lines above this one are its stack",
)
_STOPPED = MessageKind("terminated", Role.STOPPED, "the launcher ended the process: {error}", 0.1)
_COMMUNICATION = MessageKind(
    "communication-failed",
    Role.PEER,
    "an operation of torch's communication failed<: {message}>",
    0.3,
    "look for the rank that ended or failed first",
)
_INPUT_ENDED = ("SystemExit", "GeneratorExit")
_TOLD_TO_STOP = ("SignalException", "KeyboardInterrupt")
_REPORTS = ("ChildFailedError", "CalledProcessError")  # reports about processes; the processes have their own events


class PythonErrors(EventFormat):
    """Yields one event for an exception that no other format recognises."""

    is_general = True
    hints = ("Error", "Exception", "Interrupt")

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield an event for the exception whose name begins the line."""
        found = _RAISED.match(line.text)
        if found is None:
            return
        name = found["error"].rpartition(".")[2]
        if found["error"] == "Error" or name in _INPUT_ENDED or name in _REPORTS:
            return
        kind = RAISED
        if name in _TOLD_TO_STOP:
            kind = _STOPPED
        elif name.startswith("Dist"):
            kind = _COMMUNICATION
        yield event_of(kind, line, found)


FORMAT = PythonErrors
