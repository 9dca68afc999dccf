"""torchrun, as `python -m torch.distributed.run` so that the cluster's own interpreter runs it.

A rank reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which other starters of torch
jobs set, too. The local rank is never computed from the rank: how ranks lie on hosts is the launcher's choice.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.core.errors import UsageError
from bench.core.launcher import Launcher, Site
from bench.core.world import Place, World
from bench.launchers._variables import checked, long_options, rendezvous, whole


class Torchrun(Launcher):
    """Ranks under torch's elastic agent; it stands inside whatever started it, so its variables win."""

    program = ""  # it is a module of the interpreter
    precedence = 10
    spans_nodes = False

    def place(self, env: Mapping[str, str]) -> Place | None:
        """From RANK and WORLD_SIZE; None when neither is set, UsageError when only one is."""
        given = [name for name in ("RANK", "WORLD_SIZE") if name in env]
        if not given:
            return None
        if len(given) == 1:
            raise UsageError(f"{given[0]} is set without its twin (RANK, WORLD_SIZE): start by torchrun, or unset it")
        place = Place(
            rank=whole(env, "RANK", "torchrun"),
            num_ranks=whole(env, "WORLD_SIZE", "torchrun"),
            local_rank=whole(env, "LOCAL_RANK", "torchrun"),
            local_size=whole(env, "LOCAL_WORLD_SIZE", "torchrun"),
            launcher="torchrun",
            rendezvous=rendezvous(env, "torchrun"),
        )
        return checked(place)

    def command(self, program: list[str], world: World, site: Site, env: Mapping[str, str]) -> list[str]:
        """On one node `--standalone`. On several, the static form for node 0: the k-th host types `--node-rank=k`.

        torchrun starts one node at a time; PET_NODE_RANK in `env` says which one this command is for.
        """
        options = {"nproc-per-node": str(world.ranks_per_node)}
        if world.num_nodes == 1:
            options = {"standalone": "", **options}
        else:
            if not site.hosts:
                raise UsageError("torchrun on several nodes meets on the first of them: name the cluster's `hosts:`")
            options |= {
                "nnodes": str(world.num_nodes),
                "node-rank": env.get("PET_NODE_RANK", "0"),
                "master-addr": site.hosts[0],
                "master-port": str(site.rendezvous_port),
            }
        return [site.python, "-m", "torch.distributed.run", *long_options(options | dict(site.options)), *program]


LAUNCHER = Torchrun()
