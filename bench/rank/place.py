"""Who am I? The launcher that started this process says so in its environment."""

from __future__ import annotations

from collections.abc import Mapping

from bench.core import plugins
from bench.core.launcher import Launcher
from bench.core.world import RankInfo


def launchers() -> tuple[Launcher, ...]:
    """Every launcher, the one whose variables win first."""
    loaded: list[Launcher] = [plugins.load("launcher", name).LAUNCHER for name in plugins.names("launcher")]
    return tuple(sorted(loaded, key=lambda launcher: launcher.precedence))


def place(env: Mapping[str, str]) -> RankInfo:
    """This process's place. More than one launcher's variables may be there (torchrun inside srun): the inner wins."""
    for launcher in launchers():
        found = launcher.place(env)
        if found is not None:
            return found
    return RankInfo(rank=0, num_ranks=1, local_rank=0, local_size=1, launcher="direct")
