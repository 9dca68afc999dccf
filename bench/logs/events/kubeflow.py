"""Read which pods ended with an exit code, from the reports of Kubeflow's training operator."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.logs.events import _ends
from bench.logs.failure_events import Event, EventFormat, EventLine, event_of

_EXITED = (
    re.compile(r"\bPod: [\w-]{1,63}\.(?P<host>[\w.-]{1,253}) exited with code (?P<exit_code>\d{1,3})\b"),
    re.compile(r"\bError pod (?P<host>[\w.-]{1,253}) container \S{1,253} exitCode: (?P<exit_code>\d{1,3})\b"),
)
_RESTARTED = re.compile(r"\bNeed to restart the pod: (?:[\w-]{1,63}\.)?(?P<host>[\w.-]{1,253})")
_SUCCEEDED = re.compile(r"\bjob is successfully completed\b|\bjob \S{1,253} successfully completed\b")


class PodExits(EventFormat):
    """Yields one event for each pod that ended with an error, in the order of the log.

    If the operator restarts a pod, its end is not a failure. If the job completes later, no earlier end of a pod is a
    failure.
    """

    hints = ("exited with code", "exitCode: ", "Need to restart the pod", "successfully completed")

    def __init__(self) -> None:
        """Start without an ended pod."""
        self._ended: dict[str, Event] = {}

    def read(self, line: EventLine) -> Iterator[Event]:
        """Take the pods of a line. The events of these pods are yielded at the end of the log."""
        if (again := _RESTARTED.search(line.text)) is not None:
            self._ended.pop(again["host"], None)
        elif _SUCCEEDED.search(line.text):
            self._ended.clear()
        for pattern in _EXITED:
            found = pattern.search(line.text)
            if found is not None and int(found["exit_code"]) != 0:
                code = int(found["exit_code"])
                facts = {"signal": _ends.signal_of_exit(code), "exit_code": code, "first_observed": True}
                event = event_of(_ends.by_exit_code(code), line, host=found["host"], facts=facts, printed=line.text)
                self._ended.setdefault(found["host"], event)
        yield from ()

    def finish(self) -> Iterator[Event]:
        """Yield the events of the pods that ended and were not restarted."""
        yield from self._ended.values()


FORMAT = PodExits
