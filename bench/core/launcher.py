"""How ranks start: what every file in `launchers/` offers. Launchers build text and read environments, nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.core.codes import Code, Coded
from bench.core.world import RankInfo, World

# How a host is reached where the site says nothing: without questions, and not for ever.
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "{host}")


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """What a cluster says about starting ranks there (from bench.yaml)."""

    python: str = "python"
    options: Mapping[str, str] = field(default_factory=dict)  # launcher options, name without dashes -> value
    hosts: tuple[str, ...] = ()
    agent: tuple[str, ...] = SSH  # the words that reach a host, which stands for {host}; a command follows them
    mpirun: str = "mpirun"  # the site's own, when the cluster names it
    mpi: str = ""  # mpich or openmpi, where ranks speak MPI and it is known which; else empty
    rendezvous_port: int = 29500


class BlameCode(Code):
    """How a rank ended, as its launcher reports it. The words follow a name: "rank 3 on h1 ..."."""

    KILLED = "killed-by-signal", "was killed by signal {signal}"
    EXITED = "exited", "ended with exit code {exit_code}"
    EXITED_OR_KILLED = "exited-or-killed", "ended with exit code or signal {number}"
    DISCONNECTED = "disconnected", "ended while its peers were connected to it"
    NOT_STARTED = "not-started", "was not started: mpirun's process there was {why}"
    DAEMON_LOST = "daemon-lost", "was lost by mpirun together with its daemon there"
    REPORTED = "reported", "ended ({launcher} reports: {how})"


@dataclass(frozen=True, slots=True)
class Blame:
    """The rank that ended first by its launcher's own account, and how it ended (BlameCode).

    Some launchers know only its process id on its host, or only the host.
    """

    rank: int | None
    host: str | None
    how: Coded
    process: int | None = None


class Launcher(ABC):
    """One way to start ranks."""

    program: str  # the executable that must be there, empty for none
    precedence: int  # whose variables win when several launchers' are there: the smallest
    remote = False  # are ranks started elsewhere (by a scheduler), so that this machine says nothing about theirs?

    by_hand = False  # are its jobs given to the cluster by the user, as `bench plan` prints them?
    help: tuple[str, ...] = ()  # what, after the interpreter, prints the options it knows; empty: it can not be asked
    python: str | None = None  # the ranks' interpreter, where this machine's own means nothing to them

    @abstractmethod
    def place(self, env: Mapping[str, str]) -> RankInfo | None:
        """Where this launcher put this process, from its environment; None when it did not start it.

        Raises UsageError when its variables are there but make no sense.
        """

    @abstractmethod
    def command(self, program: list[str], world: World, site: LaunchSite, env: Mapping[str, str]) -> list[str]:
        """The command line that starts `program` (without the interpreter) as `world`. `env` are variables to set."""

    def manifest(
        self, job: str, program: list[str], world: World, site: LaunchSite, env: Mapping[str, str], deadline_s: float
    ) -> str:
        """Shell lines that carry out a whole job, where no command of this machine starts its ranks; else nothing."""
        return ""

    def environment(self, site: LaunchSite) -> dict[str, str]:
        """Variables that the launcher itself needs, whatever the cluster's own say."""
        return {}

    def blamed(self, log: str) -> Blame | None:
        """Which rank, on which host, this launcher says that it lost; None when `log` does not say."""
        return None

    def unavailable(self, which: Callable[[str], str | None]) -> str | None:
        """Why it can not start anything here; None when it can. `which` finds programs."""
        if self.program and which(self.program) is None:
            return f"no {self.program} was found on PATH"
        return None
