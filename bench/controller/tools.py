"""Find other tools' programs in a folder and its subfolders, nearest first.

The search has limits, so even a search of `/` ends soon.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from bench.controller.messages import ControllerError
from bench.core import plugins
from bench.core.errors import UsageError
from bench.logs.tool import Build, Installed, Tool

DEPTH = 6  # levels; the OSU benchmarks need 4 (PREFIX/libexec/osu-micro-benchmarks/mpi/collective)
MOST_FOLDERS = 2000


@dataclass(frozen=True, slots=True)
class Search:
    """Result of a search.

    `files`: programs, nearest first.
    `whole`: whether the search covered every folder.
    """

    files: tuple[Path, ...]
    num_folders: int
    whole: bool

    def words(self) -> str:
        """Return text that says how many folders and levels were searched."""
        searched = f"{self.num_folders:,} folder{'' if self.num_folders == 1 else 's'}"
        return (
            searched
            if self.whole
            else f"{searched}, at most {DEPTH} levels deep (deeper or further folders were not searched)"
        )


def installed(names: Iterable[str], folder: Path | None) -> dict[str, Installed]:
    """Return the tools with these names, and their programs in `folder`.

    If `folder` is None, each tool's environment variable names the folder.

    Raises UsageError if the path is not a folder.
    """
    found = {}
    searched: dict[Path, Search] = {}
    for name in sorted(names):
        tool: Tool | None = getattr(plugins.load("tool", name), "TOOL", None)
        if tool is None:
            raise UsageError.of(ControllerError.NO_TOOL, tool=name)
        given = folder or (Path(os.environ[tool.variable]) if os.environ.get(tool.variable) else None)
        if given is not None and not given.is_dir():
            raise UsageError.of(
                ControllerError.NO_TOOL_FOLDER, folder=str(given), variable=tool.variable, tool=tool.title
            )
        if given is not None and given not in searched:
            searched[given] = find_programs(given)
        found[name] = _installed(tool, given, searched[given] if given is not None else None)
    return found


def without_mpi(tool: Installed) -> Installed:
    """Return a tool as it can be used on a machine without mpirun.

    All programs of this tool are then treated as builds without MPI. A program without MPI runs as one process with all
    GPUs.
    """
    return replace(tool, builds={name: build - {"mpi"} for name, build in tool.builds.items()})


def find_programs(folder: Path, depth: int = DEPTH, most: int = MOST_FOLDERS) -> Search:
    """Search for executable files below a folder.

    Symbolic links to folders, hidden folders and unreadable folders are skipped.

    `depth`: how many levels below `folder` are searched at most.
    `most`: how many folders are searched at most.
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


def _installed(tool: Tool, folder: Path | None, search: Search | None) -> Installed:
    files = list(search.files) if search else []
    # If files have the same program name, the last file is used. Files with the tool's suffix therefore come last, and
    # nearer files come after farther files.
    files.reverse()
    files.sort(key=lambda file: bool(tool.suffix) and file.name.endswith(tool.suffix))
    programs = {file.name.removesuffix(tool.suffix): str(file.resolve()) for file in files}
    where = f"in {folder} ({search.words()})" if search else "here"
    lacks = f"the program of {tool.title} was not found {where}: set its folder with --tool-path or {tool.variable}"
    if tool.remedy:
        lacks += f"; {tool.remedy}"
    return Installed(tool, programs, lacks, {name: _build(tool, path) for name, path in programs.items()})


def _build(tool: Tool, path: str) -> Build:
    """Return how a program was built.

    The function searches the program's file for the texts in `tool.marks`. `tool.marks` maps the name of a feature,
    such as `json`, to a text that is in every program with this feature.
    """
    if not tool.marks or Path(path).stat().st_size == 0:
        return frozenset()
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return frozenset(mark for mark, text in tool.marks.items() if mapped.find(text) >= 0)
