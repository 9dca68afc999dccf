"""Read why a launcher could not start processes on other nodes: errors of ssh, and reports of launchers.

The launchers are Open MPI (ORTE, PRRTE), Hydra of MPICH and Intel MPI, pdsh, DeepSpeed and horovodrun.

ssh's errors alone are no failure, because many scripts retry until all nodes are up. They are a failure if a launcher
then reports that it could not start its processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

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
    "a node does not have the launcher's program {program} at the expected path: {error}",
    0.9,
    "install the same MPI at the same path on every node, or name its path",
    "mpirun --prefix DIR",
)
_NO_DAEMON = MessageKind(
    _REFUSED.code,
    Role.CAUSE,
    "mpirun could not start its daemon on a node, or the daemon did not reach mpirun",
    0.75,
    "check that every node has the daemon and a network back to the node of mpirun",
    "ssh NODE 'which orted prted'; mpirun --mca plm_base_verbose 10 ...",
)
_NO_PROXY = MessageKind(
    _REFUSED.code,
    Role.CAUSE,
    "mpiexec could not start its proxy on a node<: the command ended with exit code {exit_code}>",
    0.9,
    "log in to this node from the node of mpiexec (exit code 255: ssh failed; 127: the proxy's program is missing)",
    "ssh NODE true; I_MPI_HYDRA_BOOTSTRAP=ssh",
)
_NO_SERVER = MessageKind(
    _REFUSED.code,
    Role.CAUSE,
    "a node did not reach mpiexec: {error}",
    0.9,
    "check that this node knows the name, that the name's address can be reached, and that no firewall blocks it",
    "getent hosts NAME; nc -vz NAME PORT",
)
_PROXY = r"(?:\[\w+:\d+:\d+@(?P<host>[\w.-]{1,253})\].{0,40}?)?"  # printed by Hydra's proxy on its node
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
        re.compile(
            _PROXY + r"HYDU?_sock_connect \(.{0,200}?\): (?P<error>unable to (?:get host address|connect from).*)"
        ),
        _NO_SERVER,
    ),
    (
        re.compile(
            r"sh: .{0,200}?(?P<program>orted|prted|hydra_\w+_proxy): "
            r"(?P<error>No such file or directory|command not found)"
        ),
        _NO_PROGRAM,
    ),
)
_NOT_STARTED: tuple[tuple[re.Pattern[str], MessageKind | None], ...] = (
    # what the launcher reports -> its meaning if no error of ssh precedes it
    (re.compile(r"(?i:orte|prr?te|prterun) was unable to (?:reliably )?start one or more daemons"), _NO_DAEMON),
    (re.compile(r"An? (?:ORTE|PRR?TE) daemon has unexpectedly failed after launch"), _NO_DAEMON),
    (
        re.compile(r"nable to run bstrap_proxy on (?P<host>\S{1,253}) \(pid \d+, exit code (?P<status>\d{1,6})\)"),
        _NO_PROXY,
    ),
    (re.compile(_PROXY + r"(?P<error>unable to connect to server \S+ at port \d+) \(check for firewalls"), _NO_SERVER),
    (re.compile(r"(?P<error>host=(?P<host>\S{1,253}) was not reachable via ssh)"), _REFUSED),
    (re.compile(r"ssh exited with exit code 255"), None),
    (re.compile(r"CalledProcessError: Command .{0,4}ssh .* returned non-zero exit status 255"), None),
)
_FOLLOWS = re.compile(r"ssh not successful for host \S+:")  # horovodrun prints ssh's error below
_MOST_KEPT = 32


class RemoteStart(EventFormat):
    """Yields the errors before a launcher's report of a failed start, or the report if there are none."""

    hints = (
        "ssh: ",
        "Permission denied (",
        "Host key verification failed",
        "exchange_identification: ",
        "orted: ",
        "prted: ",
        "_proxy: ",
        "_sock_connect",
        "start one or more daemons",
        "daemon has unexpectedly failed",
        "nable to run bstrap_proxy",
        "unable to connect to server",
        "was not reachable via ssh",
        "CalledProcessError: Command",
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
        for pattern, kind in _NOT_STARTED:
            found = pattern.search(line.text)
            if found is not None:
                yield from self._taken() or ([] if kind is None else [_with_exit_code(event_of(kind, line, found))])
                return
        self._keep(line)
        if self._is_reported:
            yield from self._taken()

    def _taken(self) -> list[Event]:
        errors, self._errors = self._errors, []
        return errors

    def _keep(self, line: EventLine) -> None:
        for pattern, kind in _SIGNS:
            found = pattern.search(line.text)
            if found is not None:
                self._errors = [*self._errors, event_of(kind, line, found)][-_MOST_KEPT:]
                return


FORMAT = RemoteStart


def _with_exit_code(event: Event) -> Event:
    """Add the exit code that a wait status contains."""
    status = event.facts.get("status")
    return event if status is None else replace(event, facts={**event.facts, "exit_code": int(status) >> 8})
