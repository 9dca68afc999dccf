"""Read Horovod's warnings about stalled operations."""

from __future__ import annotations

import re

from bench.logs.failure_events import MessageKind, Role, Sign, SignFormat

_SIGNS = (
    (
        r"(?<![\w./-])(?P<operation>[\w./-]{1,200}) \[missing ranks: (?P<ranks>\d[\d, ]*)\]",
        MessageKind(
            "stalled-ranks",
            Role.ABSENT,
            "{who} had not called {operation} while the other ranks waited",
            0.45,
            "read the logs of these ranks, or their stacks while the job hangs",
            "py-spy dump --pid PID",
            advisory=True,  # ranks may also be late for a while
        ),
    ),
    (
        r"Horovod has been shut down\. This was caused by an exception on one of the ranks",
        MessageKind(
            "horovod-stopped",
            Role.PEER,
            "Horovod stopped after an exception on another rank",
            0.3,
            "look for the rank that ended first; its own output has the reason",
        ),
    ),
)


class Horovod(SignFormat):
    """Yields one event for each line."""

    hints = ("[missing ranks: ", "Horovod has been shut down")
    signs = tuple(Sign(re.compile(pattern), kind) for pattern, kind in _SIGNS)


FORMAT = Horovod
