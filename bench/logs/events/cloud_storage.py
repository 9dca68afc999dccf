"""Read TensorFlow's cloud storage errors: a file could not be written or read after many attempts.

The message is in retrying_utils.cc of TensorFlow. In TensorFlow 1, a session that failed for this reason may start
again.
"""

from __future__ import annotations

import re
from dataclasses import replace

from bench.logs.failure_events import Event, EventLine, MessageKind, Role, Sign, SignFormat

_FAILED = MessageKind(
    "storage-failed",
    Role.CAUSE,
    "the storage did not answer after {attempts} attempts: {error}",
    0.7,
    "check the state, the quota and the permissions of this storage, and that the nodes reach it",
)
_TASK = re.compile(r"/job:\w{1,100}/replica:\d{1,6}/task:(?P<rank>\d{1,6}):\s*$")  # on the line before the message


class CloudStorage(SignFormat):
    """Yields one event for each line."""

    hints = ("retry attempts failed. The last failure",)
    signs = (
        Sign(
            re.compile(
                # a machine outside Google's cloud has no server of metadata, which is usual
                r"\bAll (?P<attempts>\d{1,4}) retry attempts failed\. The last failure: "
                r"(?P<error>(?!.{0,400}\b(?:metadata|bearer token)\b).{1,400})"
            ),
            _FAILED,
        ),
    )

    def completed(self, event: Event, line: EventLine) -> Event:
        """Add the rank of the task that the previous line names."""
        task = _TASK.search(line.before)
        return event if task is None else replace(event, rank=int(task["rank"]))


FORMAT = CloudStorage
