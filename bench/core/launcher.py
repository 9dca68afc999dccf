"""Define the interface of the files in `launchers/`. A launcher starts the ranks of a job.

A launcher only builds text, such as command lines, and reads environment variables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.core.codes import Code, Coded
from bench.core.world import RankInfo, World

# The default way to reach a host: without prompts, and with a timeout.
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "{host}")


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """A cluster's settings for starting ranks (from bench.yaml)."""

    python: str = "python"
    options: Mapping[str, str] = field(default_factory=dict)  # launcher options, name without dashes -> value
    hosts: tuple[str, ...] = ()
    agent: tuple[str, ...] = SSH  # the command prefix that reaches {host}
    mpirun: str = "mpirun"  # the cluster's own, if bench.yaml names it
    mpi: str = ""  # mpich or openmpi, if ranks use MPI and the library is known
    rendezvous_port: int = 29500


class BlameCode(Code):
    """How a rank ended, as its launcher reports it.

    The text begins after the name of the rank, as in "rank 3 on h1 was killed ...".
    """

    KILLED = "killed-by-signal", "was killed by signal {signal}"
    EXITED = "exited", "ended with exit code {exit_code}"
    EXITED_OR_KILLED = "exited-or-killed", "ended with exit code or signal {number}"
    DISCONNECTED = "disconnected", "ended while its peers were connected to it"
    NOT_STARTED = "not-started", "was not started: mpirun's process there was {why}"
    DAEMON_LOST = "daemon-lost", "was lost by mpirun together with its daemon there"
    CONNECTION_ENDED = "connection-ended", "was lost when mpirun's connection to its host ended"
    PORT_TAKEN = "port-taken", "was not started: another program has port {port}, where the ranks meet"
    REPORTED = "reported", "ended ({launcher} reports: {how})"


@dataclass(frozen=True, slots=True)
class Blame:
    """The rank that ended first, as its launcher reports it, and how it ended (BlameCode).

    Some launchers report only the host. Other launchers report the host and a process id.

    `surely_first`: whether the reported rank certainly ended first. If a signal ended the launcher itself, the launcher
        does not report which rank ended first.
    `only_kills`: whether the launcher ends the other ranks only with SIGKILL. If it does, a SIGTERM came from another
        program.
    """

    rank: int | None
    host: str | None
    how: Coded
    process: int | None = None
    surely_first: bool = False
    only_kills: bool = False


class Launcher(ABC):
    """One way to start ranks."""

    program: str  # the executable that the launcher needs; empty if none
    precedence: int  # if variables of several launchers are set, the launcher with the smallest value wins
    remote = False  # does a scheduler start ranks on other machines, for which facts of this machine do not hold?

    by_hand = False  # does the user submit its jobs, as `linkbench plan` prints them?
    help: tuple[str, ...] = ()  # arguments, after the interpreter, that print the launcher's options; empty if none
    # How long the launcher may take after a SIGTERM. torchrun waits 30 s for its ranks before it kills them. The
    # ranks are in other sessions and would survive if torchrun were killed earlier.
    ends_within_s = 35.0
    # The ranks' interpreter, if the path of this machine's interpreter does not exist on the ranks' machines.
    python: str | None = None

    @abstractmethod
    def place(self, env: Mapping[str, str]) -> RankInfo | None:
        """Return the rank of this process, from its environment variables.

        Return None if another launcher, or no launcher, started this process. Raises UsageError if the launcher's
        variables are invalid.
        """

    @abstractmethod
    def command(self, program: list[str], world: World, site: LaunchSite, env: Mapping[str, str]) -> list[str]:
        """Return the command line that starts `program` on all ranks of `world`, with the variables `env`.

        `program`: the program and its arguments, without the Python interpreter.
        """

    def manifest(
        self, job: str, program: list[str], world: World, site: LaunchSite, env: Mapping[str, str], deadline_s: float
    ) -> str:
        """Return shell lines that run a whole job.

        The result is '' if the job's ranks can be started by a command on this machine.
        """
        return ""

    def environment(self, site: LaunchSite) -> dict[str, str]:
        """Return the environment variables that the launcher needs.

        The launcher's variables override variables of the same name in the cluster's settings.
        """
        return {}

    def blamed(self, log: str) -> Blame | None:
        """Return the lost rank and host that this launcher reports in `log`, or None if there is no such report."""
        return None

    def aborted(self, log: str) -> tuple[int, ...]:
        """Return the ranks that a communication library ended after an error, such as a lost connection.

        The ranks are read from `log`, the output of the launcher.
        """
        return ()

    def unavailable(self, which: Callable[[str], str | None]) -> str | None:
        """Return why the launcher cannot run on this machine, or None if it can run. `which` finds programs."""
        if self.program and which(self.program) is None:
            return f"no {self.program} was found on PATH"
        return None
