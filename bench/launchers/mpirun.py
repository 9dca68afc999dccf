"""Start ranks with the mpirun of Open MPI (4 and 5) or of MPICH and its derivatives (Hydra).

The same command line works with Open MPI, MPICH and the derivatives of MPICH. `--map-by slot:OVERSUBSCRIBE` allows more
ranks than CPUs and numbers ranks host by host. `--bind-to none` pins no rank, whereas Open MPI by default binds each
rank to a core. `--oversubscribe`, `-x` and `--allow-run-as-root` exist only in Open MPI, and `-env` exists only in
Hydra. For this reason, an environment variable and not an option allows Open MPI to run as root. The agent, Hydra or
Open MPI's `-x NAME` passes variables to other hosts. If the MPI is unknown, the ranks' command begins with `env
NAME=value`. Such a command line contains no secrets, because all users can read a command line.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.core.launcher import Blame, BlameCode, Launcher, LaunchSite
from bench.core.secret_values import FROM_ENVIRONMENT, masked
from bench.core.world import RankInfo, World
from bench.launchers._variables import checked, rendezvous, whole

Flavour = Literal["mpich", "openmpi"]

_ROOT_CONSENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# Open MPI's ranks abort when they lose a peer. A delay of two seconds lets mpirun find and report the lost rank first.
_LATE_ABORT = {"OMPI_MCA_mpi_abort_delay": "2"}
_MOST_SIGNALS = 32
_AGENT = Path(__file__).with_name("agent.sh")
# Variables that name the remote agent of Hydra, Open MPI 5 and Open MPI 4.
_AGENTS = ("HYDRA_LAUNCHER_EXEC", "PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent")
_SSH_TREE = {"HYDRA_LAUNCHER": "ssh", "PRTE_MCA_plm_ssh_no_tree_spawn": "1", "OMPI_MCA_plm_rsh_no_tree_spawn": "1"}
_LOST = (
    re.compile(
        r"(?:RANK (?P<rank>\d+) )?PID (?P<process>\d+) RUNNING AT (?P<host>\S+)\s+=\s+"
        r"(?:KILLED BY SIGNAL: (?P<signal>\d+)|EXIT CODE: (?P<code>\d+))"
    ),
    re.compile(r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+)\s+exited on\s+signal (?P<signal>\d+)"),
    re.compile(r"due to process\s+rank (?P<rank>\d+) with PID \d+ on\s+node (?P<host>\S+)\s+exiting\s+improperly"),
    # Open MPI does not print this text if a signal ends mpirun itself.
    re.compile(
        r"(?P<first>first) process to do so was:\s+Process name:\s+\[\S+,(?P<rank>\d+)\]\s+Exit code:\s+(?P<code>\d+)"
    ),
)
# Hydra's process on a host prints this message if it loses its connection to mpirun.
_CUT_OFF = re.compile(r"^\[proxy:\S+?@([^\]\s]+)\].*(unable to connect to server .+)$", re.MULTILINE)
_LOST_DAEMON = re.compile(r"lost communication with a remote daemon.*?Remote daemon:\s+\S+ on node (\S+)", re.DOTALL)
# Open MPI's mpirun prints this message when an agent ends that started a daemon, even long after the daemon reported.
_AGENT_ENDED = re.compile(r"daemon failed to report back after being spawned.*?Remote host:\s+(\S+)", re.DOTALL)
# Hydra's mpirun prints this message if an agent ends before mpirun's process on the host connects. It names no host.
_NO_PROXY = re.compile(r"^(?:\[mpiexec@.*\): )?Launch proxy failed\.", re.MULTILINE)
# An Open MPI rank prints this message when it loses a peer. The rank that prints the message is not the cause. Other
# ranks may then lose this rank, too.
_DISCONNECTED = re.compile(
    r"peer process has unexpectedly disconnected.*?Local host:\s+(\S+).*?Peer host:\s+(\S+)", re.DOTALL
)
_ABORTING = re.compile(r"^\[(\S+?):\d+\] \*\*\* An error occurred in", re.MULTILINE)
# Open MPI prints these reports if a rank calls MPI_Abort. The library calls MPI_Abort when it loses a peer.
_ABORTED = (
    re.compile(r"^ ?\[\S+\] \*\*\* reported by process \[\d+,(\d+)\]", re.MULTILINE),
    re.compile(r"due to process\s+rank (\d+) with PID \d+ on\s+node \S+\s+calling\s+\"abort\""),
)
# Variables with the rank, the number of ranks, the rank on its host and the number of ranks on its host.
_NAMES: dict[Flavour, tuple[str, str, str, str]] = {
    "openmpi": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "mpich": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}


class Mpirun(Launcher):
    """Starts ranks with mpirun, the process manager of an MPI."""

    program = "mpirun"
    precedence = 20
    # Short, because Open MPI's mpirun may hang after an early SIGTERM. When mpirun is killed, its processes on the
    # hosts end, too.
    ends_within_s = 6.0

    def place(self, env: Mapping[str, str]) -> RankInfo | None:
        """Return the rank and local rank of this process.

        The sources are OMPI_COMM_WORLD_* (Open MPI) or, without these variables, PMI_* and MPI_LOCAL* (Hydra).

        Return None if none of these variables is set.
        """
        library = mpi_of(env)
        if library is None:
            return None
        rank, num_ranks, local_rank, local_size = (whole(env, name, f"mpirun ({library})") for name in _NAMES[library])
        return checked(RankInfo(rank, num_ranks, local_rank, local_size, "mpirun", rendezvous(env, "mpirun")))

    def command(self, program: list[str], world: World, site: LaunchSite, env: Mapping[str, str]) -> list[str]:
        """Return the command `mpirun --map-by slot:OVERSUBSCRIBE --bind-to none -n N PYTHON ...`.

        An option of the site replaces this command's option of the same name. If the site names hosts, the command
        names each host with its number of ranks. If the site names no hosts, a world of one node runs on this machine.
        If the site names no hosts and the world has several nodes, mpirun uses the nodes that a scheduler allocated.
        """
        options = {"map-by": "slot:OVERSUBSCRIBE", "bind-to": "none", **site.options}
        words = [site.mpirun]
        for name, value in options.items():
            words += [f"-{name}" if len(name) == 1 else f"--{name}", *filter(None, (value,))]
        carried: dict[str, str] = {}
        if site.hosts:
            if len(site.hosts) < world.num_nodes:
                raise UsageError(f"{world.num_nodes} nodes, but `hosts:` lists {len(site.hosts)}: list as many hosts")
            hosts = site.hosts[: world.num_nodes]
            words += ["--host", ",".join(f"{host}:{world.ranks_per_node}" for host in hosts)]
            if world.num_nodes > 1:  # the agent passes all other variables
                carried = {"MASTER_ADDR": hosts[0], "MASTER_PORT": str(site.rendezvous_port)}
        elif world.num_nodes > 1:
            words += ["-N", str(world.ranks_per_node)]
            names = [name for name in env if name not in self.environment(site)]
            if site.mpi == "openmpi":
                words += [word for name in names for word in ("-x", name)]
            elif site.mpi != "mpich":  # Hydra passes all variables; an unknown mpirun may not
                public = [name for name in names if masked(name, env[name]) == env[name] != FROM_ENVIRONMENT]
                carried = {name: env[name] for name in public}
        variables = [f"{name}={value}" for name, value in carried.items()]
        carrier = ["env", *variables] if variables else []
        return [*words, "-n", str(world.num_ranks), *carrier, site.python, *program]

    def environment(self, site: LaunchSite) -> dict[str, str]:
        """Return the environment variables for all kinds of MPI.

        The variables name the remote agent, delay Open MPI's abort, and allow Open MPI to run as root. Many containers
        have only the user root. Each MPI ignores the variables of other MPIs.
        """
        consent = {**(_ROOT_CONSENT if os.geteuid() == 0 else {}), **_LATE_ABORT}
        if not site.hosts:
            return consent
        return consent | {"BENCH_AGENT": shlex.join(site.agent)} | dict.fromkeys(_AGENTS, str(_AGENT)) | _SSH_TREE

    def blamed(self, log: str) -> Blame | None:
        """Return the rank that failed, from Hydra's BAD TERMINATION or from Open MPI's report of the first failure.

        If mpirun lost the connection to a host, the result names no rank. If mpirun did not print the name of this
        host, the result names no host either.
        """
        for form in _LOST:
            if match := form.search(log):
                found = match.groupdict()
                rank, process, code, signal = (found.get(name) for name in ("rank", "process", "code", "signal"))
                host = found.get("host")
                how = _how(code, signal)
                number = int(rank) if rank else None
                hydra = form is _LOST[0]  # Hydra ends other ranks only with SIGKILL (HYD_pmcd_pmip_send_signal)
                return Blame(number, host, how, int(process or 0) or None, "first" in found, only_kills=hydra)
        if match := _CUT_OFF.search(log):
            return Blame(None, match[1], Coded.of(BlameCode.NOT_STARTED, why=match[2].strip()))
        if match := _LOST_DAEMON.search(log):
            return Blame(None, match[1], Coded.of(BlameCode.DAEMON_LOST))
        if match := _AGENT_ENDED.search(log):
            return Blame(None, match[1], Coded.of(BlameCode.CONNECTION_ENDED))
        if _NO_PROXY.search(log):
            return Blame(None, None, Coded.of(BlameCode.CONNECTION_ENDED))
        losses = _DISCONNECTED.findall(log)
        complained = {host for host, _ in losses} | set(_ABORTING.findall(log))
        lost = {host for _, host in losses} - complained
        return Blame(None, lost.pop(), _how(None, None)) if len(lost) == 1 else None

    def aborted(self, log: str) -> tuple[int, ...]:
        """Return the ranks that Open MPI's library ended."""
        return tuple(sorted({int(rank) for form in _ABORTED for rank in form.findall(log)}))


def _how(code: str | None, signal: str | None) -> Coded:
    """Return how the rank ended.

    Hydra may report the number of a signal as an exit code, so a small exit code is ambiguous.
    """
    if signal:
        return Coded.of(BlameCode.KILLED, signal=int(signal))
    if code and int(code) < _MOST_SIGNALS:
        return Coded.of(BlameCode.EXITED_OR_KILLED, number=int(code))
    if code:
        return Coded.of(BlameCode.EXITED, exit_code=int(code))
    return Coded.of(BlameCode.DISCONNECTED)


def mpi_of(env: Mapping[str, str]) -> Flavour | None:
    """Return the MPI whose mpirun started this process. Return None if the process was started without mpirun.

    This process must load the library of the same MPI. srun with pmi2 also sets PMI_RANK, but it does not set Hydra's
    MPI_LOCALRANKID. If SLURM_STEP_ID is set and MPI_LOCALRANKID is not, srun started the rank.
    """
    if any(name in env for name in _NAMES["openmpi"][:2]):
        return "openmpi"
    if any(name in env for name in _NAMES["mpich"][:2]) and ("SLURM_STEP_ID" not in env or "MPI_LOCALRANKID" in env):
        return "mpich"
    return None


LAUNCHER = Mpirun()
