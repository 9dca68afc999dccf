"""Read Ray's reports of lost worker processes and nodes."""

from __future__ import annotations

import re
from dataclasses import replace

from bench.logs.events import _ends
from bench.logs.failure_events import Sign, SignFormat

_SIGNS = (
    (
        r"worker died or was killed while executing a task.*?"
        r"(?:Worker IP address: (?P<host>\S+) .*?Worker PID: (?P<pid>\d{1,10})|$)",
        _ends.WORKER_DIED,
    ),
    (
        r"node with node id: \S+ and (?:address|ip): (?P<host>[\w.:-]+?),? .*?"
        r"marked dead because the detector has missed too many heartbeats",
        replace(
            _ends.NODE_LOST,
            what="Ray got no heartbeats of a node<, {host}>: the node or its raylet ended or hung, or the network "
            "failed",
            weight=0.6,
            step="check that the node is up, its kernel log, and its raylet's log",
            command="ls /tmp/ray/session_latest/logs/raylet.*; dmesg -T | grep -iE 'killed process|out of memory'",
        ),
    ),
    (
        r"Workers? .{0,200}killed due to memory pressure|[Tt]ask was killed due to the node running low on memory",
        replace(
            _ends.HOST_MEMORY,
            what="the node had too little memory, so Ray ended a worker",
            step="give the job more memory, or lower the number of workers of a node",
            command="ray memory; free -g",
        ),
    ),
)


class Ray(SignFormat):
    """Yields one event for each line."""

    hints = ("worker died or was killed", "memory pressure", "missed too many heartbeats", "running low on memory")
    signs = tuple(Sign(re.compile(pattern), kind) for pattern, kind in _SIGNS)


FORMAT = Ray
