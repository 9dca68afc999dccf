"""Start a single process: a world of one rank, or a simulation of many ranks."""

from __future__ import annotations

from collections.abc import Mapping

from bench.core.launcher import Launcher, LaunchSite
from bench.core.world import RankInfo, World


class Direct(Launcher):
    """Starts a rank directly, without a launcher program.

    This launcher accepts any environment, so linkbench tries all other launchers first.
    """

    program = ""
    precedence = 100

    def place(self, env: Mapping[str, str]) -> RankInfo:
        """Return rank 0 of a world with a single rank."""
        return RankInfo(rank=0, num_ranks=1, local_rank=0, local_size=1, launcher="direct")

    def command(self, program: list[str], world: World, site: LaunchSite, env: Mapping[str, str]) -> list[str]:
        """Return the command, which consists of the interpreter and the program.

        A world with several ranks is allowed only for a program that models the ranks.
        """
        return [site.python, *program]


LAUNCHER = Direct()
