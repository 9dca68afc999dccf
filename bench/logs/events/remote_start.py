"""Read why a launcher could not start processes on other nodes: errors of ssh, Open MPI, pdsh and horovodrun.

ssh's errors alone are no failure, because many scripts retry until all nodes are up. They are a failure if a launcher
then reports that it could not start its processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.logs.failure_events import Event, EventFormat, EventLine, MessageKind, Role, event_of

_REFUSED = MessageKind(
    "remote-start-failed",
    Role.CAUSE,
    "ssh could not start a process on another node: {error}",
    0.9,
    "log in to this node from the node that starts the job, without a password",
    "ssh NODE true; getent hosts NODE",
)
_NO_PROGRAM = MessageKind(
    _REFUSED.code,
    Role.CAUSE,
    "a node does not have Open MPI's daemon {program} at the expected path: {error}",
    0.9,
    "install the same Open MPI at the same path on every node, or name its path",
    "mpirun --prefix DIR",
)
_NO_DAEMON = MessageKind(
    _REFUSED.code,
    Role.CAUSE,
    "mpirun could not start its daemon on a node",
    0.75,
    "start the daemon by hand on each node, and read its error",
    "ssh NODE 'which orted prted'; mpirun --mca plm_base_verbose 10 ...",
)
_SIGNS = (
    (re.compile(r"ssh: (?P<error>Could not resolve hostname (?P<host>[^\s:]{1,253}).*)"), _REFUSED),
    (re.compile(r"ssh: (?P<error>connect to host (?P<host>\S{1,253}) port \d+: .*)"), _REFUSED),
    (
        re.compile(
            r"(?:\S+@)?(?P<host>[\w.-]{1,253}): (?P<error>Permission denied \([a-z,-]*(?:publickey|password).*)"
        ),
        _REFUSED,
    ),
    (re.compile(r"(?P<error>Host key verification failed)"), _REFUSED),
    (re.compile(r"(?:ssh|kex)_exchange_identification: (?P<error>.*)"), _REFUSED),
    (
        re.compile(r"sh: .{0,200}?(?P<program>orted|prted): (?P<error>No such file or directory|command not found)"),
        _NO_PROGRAM,
    ),
)
_NOT_STARTED = re.compile(
    r"(?P<mpi>(?:ORTE|PRTE|PRRTE) was unable to (?:reliably )?start one or more daemons)|ssh exited with exit code 255"
)
_FOLLOWS = re.compile(r"ssh not successful for host \S+:")  # horovodrun prints ssh's error below
_MOST_KEPT = 32


class RemoteStart(EventFormat):
    """Yields one event for each error of ssh that a launcher's report of a failed start follows."""

    hints = (
        "ssh: ",
        "Permission denied (",
        "Host key verification failed",
        "exchange_identification: ",
        "orted: ",
        "prted: ",
        "start one or more daemons",
        "ssh exited with exit code",
        "ssh not successful for host",
    )

    def __init__(self) -> None:
        """Start with no error of ssh."""
        self._errors: list[Event] = []
        self._is_reported = False

    def read(self, line: EventLine) -> Iterator[Event]:
        """Keep an error of ssh, or yield the kept errors when a launcher reports that the start failed."""
        if _FOLLOWS.search(line.text):
            self._is_reported = True
            return
        not_started = _NOT_STARTED.search(line.text)
        if not_started is None:
            self._keep(line)
            if not self._is_reported:
                return
        errors, self._errors = self._errors, []
        if not_started is not None and not_started["mpi"] and not errors:
            errors = [event_of(_NO_DAEMON, line)]
        yield from errors

    def _keep(self, line: EventLine) -> None:
        for pattern, kind in _SIGNS:
            found = pattern.search(line.text)
            if found is not None:
                self._errors = [*self._errors, event_of(kind, line, found)][-_MOST_KEPT:]
                return


FORMAT = RemoteStart
