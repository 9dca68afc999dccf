"""Read why a launcher could not start processes on other nodes: errors of ssh, and reports of launchers.

The launchers are Open MPI (ORTE, PRRTE), Hydra of MPICH and Intel MPI, pdsh, DeepSpeed and horovodrun.

Errors of ssh alone are not treated as a failure, because many scripts retry until all nodes are up. Such errors are a
failure if a launcher soon reports that it could not start its processes. In addition, the log must show no progress of
the job afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from bench.logs.failure_events import Event, EventFormat, EventLine, MessageKind, Role, event_of

_SSH_FAILED = MessageKind(
    "remote-start-failed",
    Role.CAUSE,
    "ssh could not start a process on another node: {error}",
    0.9,
    "log in to this node from the node that starts the job, without a password",
    "ssh NODE true; getent hosts NODE",
)
_NO_PROGRAM = MessageKind(
    _SSH_FAILED.code,
    Role.CAUSE,
    "a node does not have the launcher's program {program} at the expected path: {error}",
    0.9,
    "install the same MPI at the same path on every node, or name its path",
    "mpirun --prefix DIR",
)
_NO_DAEMON = MessageKind(
    _SSH_FAILED.code,
    Role.CAUSE,
    "mpirun could not start its daemon on a node, or the daemon did not reach mpirun",
    0.75,
    "check that every node has the daemon and a network back to the node of mpirun",
    "ssh NODE 'which orted prted'; mpirun --mca plm_base_verbose 10 ...",
)
_NO_PROXY = MessageKind(
    _SSH_FAILED.code,
    Role.CAUSE,
    "mpiexec could not start its proxy on a node<: the command ended with exit code {exit_code}>",
    0.9,
    "log in to this node from the node of mpiexec (exit code 255: ssh failed; 127: the proxy's program is missing)",
    "ssh NODE true; I_MPI_HYDRA_BOOTSTRAP=ssh",
)
_NO_SERVER = MessageKind(
    _SSH_FAILED.code,
    Role.CAUSE,
    "a node did not reach mpiexec: {error}",
    0.9,
    "check that this node knows the name, that the name's address can be reached, and that no firewall blocks it",
    "getent hosts NAME; nc -vz NAME PORT",
)
# printed by Hydra's proxy on its node
_PROXY = r"(?:\[\w{1,40}:\d{1,6}:\d{1,6}@(?P<host>[\w.-]{1,253})\].{0,40}?)?"
_PROGRAM = r"(?P<program>orted|prted|hydra_\w{1,40}_proxy)"
_SIGNS: tuple[tuple[str, re.Pattern[str], MessageKind], ...] = (
    # a word of the line, the line, its meaning
    ("ssh: ", re.compile(r"ssh: (?P<error>Could not resolve hostname (?P<host>[^\s:]{1,253}).*)"), _SSH_FAILED),
    ("ssh: ", re.compile(r"ssh: (?P<error>connect to host (?P<host>\S{1,253}) port \d+: .*)"), _SSH_FAILED),
    (
        "Permission denied (",
        re.compile(
            r"(?<![\w.@-])(?:(?P<user>[\w.-]{1,64})@)?(?P<host>[\w.-]{1,253}): "
            r"(?P<error>Permission denied \([a-z,-]{0,99}?(?:publickey|password).*)"
        ),
        _SSH_FAILED,
    ),
    ("Host key verification failed", re.compile(r"(?P<error>Host key verification failed)"), _SSH_FAILED),
    ("exchange_identification: ", re.compile(r"(?:ssh|kex)_exchange_identification: (?P<error>.*)"), _SSH_FAILED),
    (
        "_sock_connect",
        re.compile(
            _PROXY + r"HYDU?_sock_connect \(.{0,200}?\): (?P<error>unable to (?:get host address|connect from).*)"
        ),
        _NO_SERVER,
    ),
    *(
        (
            word,
            re.compile(rf"\b{_PROGRAM}: (?P<error>No such file or directory|(?:[Cc]ommand )?not found)"),
            _NO_PROGRAM,
        )
        for word in ("orted: ", "prted: ", "_proxy: ")
    ),
    ("command not found: ", re.compile(rf"(?P<error>command not found): {_PROGRAM}"), _NO_PROGRAM),
)
_REPORTS: tuple[tuple[str, re.Pattern[str], MessageKind | None], ...] = (
    # a word of the launcher's report, the report, its meaning if no error of ssh precedes it
    (
        "start one or more daemons",
        re.compile(r"(?i:orte|prr?te|prterun) was unable to (?:reliably )?start one or more daemons"),
        _NO_DAEMON,
    ),
    (
        "daemon has unexpectedly failed",
        re.compile(r"An? (?:ORTE|PRR?TE) daemon has unexpectedly failed after launch"),
        _NO_DAEMON,
    ),
    (
        "nable to run bstrap_proxy",
        re.compile(r"nable to run bstrap_proxy on (?P<host>\S{1,253}) \(pid \d+, exit code (?P<status>\d{1,6})\)"),
        _NO_PROXY,
    ),
    (
        "unable to connect to server",
        re.compile(_PROXY + r"(?P<error>unable to connect to server \S{1,253} at port \d+) \(check for firewalls"),
        _NO_SERVER,
    ),
    (
        "was not reachable via ssh",
        re.compile(r"(?P<error>host=(?P<host>\S{1,253}) was not reachable via ssh)"),
        _SSH_FAILED,
    ),
    (
        "ssh exited with exit code",  # pdsh also prints this when the program on the node fails or is ended
        re.compile(r"(?<![\w.@-])(?P<host>[\w.-]{1,253}): ssh exited with exit code 255"),
        None,
    ),
    (
        "CalledProcessError: Command",
        re.compile(
            r"CalledProcessError: Command .{0,4}ssh (?:-\S{1,99} ){0,9}(?P<host>[\w.@-]{1,253})\b.{0,400}? returned "
            r"non-zero exit status 255"
        ),
        None,
    ),
)
_FOLLOWS = re.compile(r"ssh not successful for host (?P<host>[^\s:]{1,253}):")  # horovodrun prints ssh's error below
_OWN_COMMAND = re.compile(r"^(?:fatal: |rsync(?: error)?: |scp: |sftp: |lost connection)")
_FORGES = re.compile(r"^(?:ssh\.)?(?:github\.com|gitlab\.|bitbucket\.org|hf\.co|dev\.azure\.com|git\.)")
_PROGRESS = re.compile(
    r"(?i:(?<![\w.-])(?:steps?|epochs?|iter(?:ation)?s?|loss|batch)[\s:=\[('\"#]{1,20}\d"
    r"|\btraining (?:is )?(?:done|finished|complete)|\bsuccessfully completed|^\S{1,253} is (?:now )?(?:up|reachable)\b"
    r"|\d ?(?:it/s|s/it)\b)"
    r"|^\d{1,19}(?:\s+[\d.]{1,20})+\s*$"  # a row of figures of a benchmark
)
_MOST_KEPT = 32
_NEAR = 12  # lines between errors of ssh and the launcher's report, at most
_ENDS = 400  # lines after the report of a failed start, at most; a longer log shows that the job went on


class RemoteStart(EventFormat):
    """Yields the errors of ssh near a launcher's report of a failed start.

    If there are no such errors, the report itself is the event. If the job makes progress after the errors or the
    report, the start succeeded in the end.
    """

    hints = tuple(dict.fromkeys([word for word, *_ in (*_SIGNS, *_REPORTS)] + ["ssh not successful for host"]))

    def __init__(self) -> None:
        """Begin without stored ssh errors and launchers' reports."""
        self._errors: list[Event] = []
        self._failed: list[Event] = []  # what the reports of failed starts mean
        self._last_line = 0  # the line of the last error of ssh or report
        self._announced: str | None = None  # the host of horovodrun's last report

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        """Whether the next line may show that the job started."""
        return bool(self._errors or self._failed or self._announced)

    def read(self, line: EventLine) -> Iterator[Event]:
        """Store the event of an ssh error, or the events that a launcher's report means."""
        if line.number - self._last_line > _NEAR:
            self._errors, self._announced = [], None
        if self._failed and line.number - self._last_line > _ENDS:
            yield from (replace(event, kind=replace(event.kind, advisory=True)) for event in self._failed)
            self._failed = []
        if self._is_known(line):
            return
        announced = _FOLLOWS.search(line.text)
        if announced is not None:
            self._last_line, self._announced = line.number, announced["host"]
        elif _OWN_COMMAND.match(line.text):
            self._errors = []
        elif self.is_open and _PROGRESS.search(line.text):
            self._errors, self._failed, self._announced = [], [], None

    def finish(self) -> Iterator[Event]:
        """Yield the events that explain the reports of failed starts."""
        yield from self._failed
        self._errors, self._failed = [], []

    def _is_known(self, line: EventLine) -> bool:
        """Store the event of an ssh error, or the events that a launcher's report means.

        Return whether the line is an error or a report of this kind.
        """
        for word, pattern, kind in _REPORTS:
            found = pattern.search(line.text) if word in line.text else None
            if found is not None:
                self._last_line = line.number
                host = found.groupdict().get("host")
                errors = self._taken(host)
                if not errors and kind is not None and (host is not None or not self._failed):
                    errors, self.claimed = [_with_exit_code(event_of(kind, line, found))], line.number
                self._failed = [*self._failed, *errors][:_MOST_KEPT]
                return True
        for word, pattern, sign in _SIGNS:
            found = pattern.search(line.text) if word in line.text else None
            if found is not None and not _is_users(found):
                self._last_line = line.number
                self._errors = [*self._errors, _without_user(event_of(sign, line, found))][-_MOST_KEPT:]
                if self._announced is not None:
                    self._failed = [*self._failed, *self._taken(self._announced)][:_MOST_KEPT]
                return True
        return False

    def _taken(self, host: str | None) -> list[Event]:
        """Return the stored errors of ssh that explain a report about a host.

        A report that names no host is explained by the last error.
        """
        errors = self._errors
        if host is None:
            self._errors = []
            return [event for event in errors if event.kind is errors[-1].kind]
        taken = [event for event in errors if event.host is None or _short(event.host) == _short(host)]
        self._errors = [event for event in errors if event not in taken]
        return taken


FORMAT = RemoteStart


def _short(host: str) -> str:
    """Return the name of a host without its user and domain. An address stays whole."""
    name = host.rpartition("@")[2]
    return name if re.fullmatch(r"[\d.]+", name) else name.partition(".")[0]


def _is_users(found: re.Match[str]) -> bool:
    """Whether the error is from an ssh that the user started, for example through git."""
    groups = found.groupdict()
    return groups.get("user") == "git" or _FORGES.match(groups.get("host") or "") is not None


def _without_user(event: Event) -> Event:
    """Remove the user's name from the facts, because no message needs this name."""
    return replace(event, facts={name: value for name, value in event.facts.items() if name != "user"})


def _with_exit_code(event: Event) -> Event:
    """Add the exit code that a wait status contains."""
    status = event.facts.get("status")
    return event if status is None else replace(event, facts={**event.facts, "exit_code": int(status) >> 8})
