"""Read Ray's reports of lost worker processes."""

from __future__ import annotations

import re

from bench.logs.failure_events import MessageKind, Role, Sign, SignFormat

_SIGNS = (
    (
        r"worker died or was killed while executing a task.*?"
        r"(?:Worker IP address: (?P<host>\S+) .*?Worker PID: (?P<pid>\d{1,10})|$)",
        MessageKind(
            "worker-died",
            Role.PEER,
            "a worker process of Ray ended, and Ray does not know why",
            0.35,
            "read the worker's own output, and check whether the kernel ended it for lack of memory",
            "ls /tmp/ray/session_latest/logs/worker-*; dmesg -T | grep -iE 'killed process|out of memory'",
        ),
    ),
    (
        r"Workers? .{0,200}killed due to memory pressure|[Tt]ask was killed due to the node running low on memory",
        MessageKind(
            "host-out-of-memory",
            Role.CAUSE,
            "the node had too little memory, so Ray ended a worker",
            0.95,
            "give the job more memory, or lower the number of workers of a node",
            "ray memory; free -g",
        ),
    ),
)


class Ray(SignFormat):
    """Yields one event for each line."""

    hints = ("worker died or was killed", "memory pressure", "running low on memory")
    signs = tuple(Sign(re.compile(pattern), kind) for pattern, kind in _SIGNS)


FORMAT = Ray
