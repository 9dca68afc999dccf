"""Start ranks with torchrun.

The launcher's command is `python -m torch.distributed.run` with the Python interpreter of the cluster.

A rank reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Other launchers of torch also
set these variables. Only the launcher knows the placement of the ranks. Therefore linkbench never computes the local
rank from the rank.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping

from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.core.launcher import Blame, BlameCode, Launcher, LaunchSite
from bench.core.world import RankInfo, World
from bench.launchers._variables import checked, long_options, rendezvous, whole

# controller/connections.py replaces this word by the job's id, so hosts of two jobs with the same port stay apart.
JOB = "{job}"
EVERYWHERE = (sys.executable, "-m", "bench.controller.hosts")  # the hosts, `--` and the command follow these words
# The last line of a traceback. torch 2.1 and older write `failed to bind to [::]:29500 (errno: 98`, later versions
# `port: 29500, ... EADDRINUSE`. Lines outside a traceback do not count, because torch also logs such an error before it
# tries the next address.
_PORT_TAKEN = re.compile(
    r"^[\w.]+Error: The server socket has failed to [^\n]*?(?:port: |\]:|\?:)(\d+)[^\n]*(?:EADDRINUSE|errno: 98)",
    re.MULTILINE,
)
_ROOT_CAUSE = re.compile(r"Root Cause.*?host\s*:\s*(\S+).*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)


class Torchrun(Launcher):
    """Starts ranks with torchrun.

    torchrun may run inside another launcher. The variables of torchrun are therefore read before the variables of other
    launchers.
    """

    program = ""  # it is a Python module, so no executable is needed
    precedence = 10
    help = ("-m", "torch.distributed.run", "--help")

    def place(self, env: Mapping[str, str]) -> RankInfo | None:
        """Return the rank and local rank of this process, or None if neither RANK nor WORLD_SIZE is set.

        Raises UsageError if only one of the two variables is set.
        """
        given = [name for name in ("RANK", "WORLD_SIZE") if name in env]
        if not given:
            return None
        if len(given) == 1:
            raise UsageError(
                f"{given[0]} is set without its partner (RANK, WORLD_SIZE): start by torchrun, or unset it"
            )
        place = RankInfo(
            rank=whole(env, "RANK", "torchrun"),
            num_ranks=whole(env, "WORLD_SIZE", "torchrun"),
            local_rank=whole(env, "LOCAL_RANK", "torchrun"),
            local_size=whole(env, "LOCAL_WORLD_SIZE", "torchrun"),
            launcher="torchrun",
            rendezvous=rendezvous(env, "torchrun"),
        )
        return checked(place)

    def command(self, program: list[str], world: World, site: LaunchSite, env: Mapping[str, str]) -> list[str]:
        """Return the command.

        On one node, the command is torchrun with `--standalone`. The node is the first named host, or this machine if
        no host is named. On several nodes, the command starts torchrun on each named host, and the rendezvous is on the
        first host.

        On one node, the rendezvous is at 127.0.0.1, because the node's name may not resolve in a sandbox. On several
        hosts, torchrun uses the static rendezvous, in which the k-th host is node k. With the option `rdzv-backend:
        c10d`, torch instead chooses the numbers of the nodes.
        """
        options = {"nproc-per-node": str(world.ranks_per_node)}
        if world.num_nodes == 1:
            options = {"standalone": "", "local-addr": "127.0.0.1", **options}
        elif len(site.hosts) < world.num_nodes:
            raise UsageError(
                f"{world.num_nodes} nodes, but `hosts:` lists {len(site.hosts)}, and torchrun starts on each by name: "
                "list all hosts, or use a launcher that knows them (slurm)"
            )
        elif "rdzv-backend" in site.options:
            meeting = f"{site.hosts[0]}:{site.rendezvous_port}"
            options |= {"nnodes": str(world.num_nodes), "rdzv-endpoint": meeting, "rdzv-id": JOB}
        else:
            options |= {
                "nnodes": str(world.num_nodes),
                "node-rank": "{node}",
                "master-addr": site.hosts[0],
                "master-port": str(site.rendezvous_port),
                "rdzv-id": JOB,
            }
        words = [site.python, "-m", "torch.distributed.run", *long_options(options | dict(site.options)), *program]
        hosts = ",".join(site.hosts[: world.num_nodes])
        return [*EVERYWHERE, hosts, "--", *words] if hosts else words

    def environment(self, site: LaunchSite) -> dict[str, str]:
        """Return the variable that names the agent through which hosts are reached."""
        return {"BENCH_AGENT": shlex.join(site.agent)} if site.hosts else {}

    def blamed(self, log: str) -> Blame | None:
        """Return the rank that failed first according to torchrun.

        The result also says if the port of the first host was already taken.
        """
        match = _ROOT_CAUSE.search(log)
        if match is None:
            taken = _PORT_TAKEN.search(log)
            return None if taken is None else Blame(0, None, Coded.of(BlameCode.PORT_TAKEN, port=int(taken[1])))
        host, rank, code = match.groups()
        if int(code) < 0:
            return Blame(int(rank), host, Coded.of(BlameCode.KILLED, signal=-int(code)), surely_first=True)
        return Blame(int(rank), host, Coded.of(BlameCode.EXITED, exit_code=int(code)), surely_first=True)


LAUNCHER = Torchrun()
