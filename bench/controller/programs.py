"""The programs below a folder: what is near is found first, and a folder such as `/` does not take minutes."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

DEPTH = 6  # of an installed OSU, PREFIX/libexec/osu-micro-benchmarks/mpi/collective, it takes 4
MOST_FOLDERS = 2000


@dataclass(frozen=True, slots=True)
class Search:
    """`files`: programs, what is nearest first. `whole`: was every folder below looked at?"""

    files: tuple[Path, ...]
    num_folders: int
    whole: bool

    def words(self) -> str:
        """What was looked at."""
        looked = f"{self.num_folders:,} folder{'' if self.num_folders == 1 else 's'}"
        return looked if self.whole else f"{looked}, {DEPTH} levels deep at most, and not all that are there"


def below(folder: Path, depth: int = DEPTH, most: int = MOST_FOLDERS) -> Search:
    """The files that can be started, links to folders not followed, hidden ones left out. An unreadable one is empty.

    `depth`: levels below `folder`; `most`: folders in all.
    """
    found: list[Path] = []
    waiting = deque([(folder, 0)])
    num, whole = 0, True
    while waiting and num < most:
        at, level = waiting.popleft()
        num += 1
        try:
            entries = sorted(os.scandir(at), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith("."):
                    whole = whole and level < depth
                    waiting.extend([(Path(entry), level + 1)] if level < depth else [])
            elif entry.is_file() and os.access(entry, os.X_OK):
                found.append(Path(entry))
    return Search(tuple(found), num, whole and not waiting)
