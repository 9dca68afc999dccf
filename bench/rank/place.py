"""This process's rank and place in the world, from its launcher's environment variables."""

from __future__ import annotations

from collections.abc import Mapping

from bench.core import plugins
from bench.core.launcher import Launcher
from bench.core.world import RankInfo


def launchers() -> tuple[Launcher, ...]:
    """Every launcher, by descending precedence."""
    loaded: list[Launcher] = [plugins.load("launcher", name).LAUNCHER for name in plugins.names("launcher")]
    return tuple(sorted(loaded, key=lambda launcher: launcher.precedence))


def place(env: Mapping[str, str]) -> RankInfo:
    """This process's place. If several launchers' variables are set (torchrun inside srun), the inner one wins."""
    for launcher in launchers():
        found = launcher.place(env)
        if found is not None:
            return found
    return RankInfo(rank=0, num_ranks=1, local_rank=0, local_size=1, launcher="direct")
