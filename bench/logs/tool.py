"""What a file in `logs/readers/` offers if it can start its benchmark: arguments to run, text to read, nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from bench.core.case import Case
from bench.core.record import Record
from bench.core.world import World

# What a program is told to call the file of its results: the desk puts a path of the run's folder in its place.
DOCUMENT = "results-of-the-tool.json"
Build = frozenset[str]  # which of a tool's `marks` a program has
PLAIN: Build = frozenset()
_NO_MARKS: Mapping[str, bytes] = MappingProxyType({})


class Tool(ABC):
    """A benchmark that is installed beside ours and measures some of the same things."""

    title: str  # as people call it
    variable: str  # environment variable that names the folder of its programs
    transport: str  # the one of ours that moves bytes by the same library
    reductions: tuple[str, ...] = ()  # its patterns that combine data
    # What its builds differ in, and bytes that a program's file holds only where it has that. So is known what a
    # program can do before it runs, also where it can not run: on a machine without the GPUs.
    marks: ClassVar[Mapping[str, bytes]] = _NO_MARKS
    clock = "host"  # what it times by: "host" or "device"
    suffix = ""  # what some builds put behind the names of their programs
    remedy = ""  # how to get it, in words

    @abstractmethod
    def program(self, case: Case) -> str:
        """The name of its program for the case's pattern; '' when it has none."""

    @abstractmethod
    def supports(self, case: Case, world: World) -> str | None:
        """Why it can not measure a case, one of `starts`; None when it can."""

    def starts(self, case: Case) -> tuple[Case, ...]:
        """The case in parts, each of which one start of a program measures."""
        return (case,)

    def refuses(self, case: Case, world: World, build: Build) -> str | None:
        """Why this build of its program can not measure a case that it supports; None when it can."""
        return None

    def processes(self, world: World, build: Build) -> World:
        """How many processes this build needs for the ranks of a world: as many, or one that has several GPUs."""
        return world

    @abstractmethod
    def arguments(self, case: Case, world: World, build: Build = PLAIN) -> list[str]:
        """What follows the program's name, so that it measures the case's sizes. It may hold DOCUMENT."""

    @abstractmethod
    def version(self, text: str) -> str | None:
        """Its version, from what it printed."""

    def libraries(self, text: str) -> dict[str, str]:
        """Versions of what it ran on, from what it printed: {"nccl": "2.27.7"}."""
        return {}

    def says(self, case: Case) -> tuple[str, ...]:
        """Where its definitions of this case are not ours and how they were translated, a sentence each."""
        return ()

    @abstractmethod
    def records(self, text: str, case: Case, world: World, document: str = "") -> list[Record]:
        """What it printed, as records in SI units, the sizes as we count them; `document`: the file that it wrote.

        A run that failed or was cut gives what is whole, and a failed record with the reason. Raises UsageError for
        what is no result of this tool, or none of what it was asked for.
        """


@dataclass(frozen=True, slots=True)
class Installed:
    """A tool and the programs of it that were found here, by name; `lacks`: what to say where one is missing.

    `builds`: what each program can do, by name.
    """

    tool: Tool
    programs: Mapping[str, str]
    lacks: str
    builds: Mapping[str, Build] = field(default_factory=dict)

    def build(self, case: Case) -> Build:
        """What the program of a case can do."""
        return self.builds.get(self.tool.program(case), PLAIN)

    def why_not(self, case: Case, world: World) -> str | None:
        """Why a case can not be measured by what is installed; None when it can."""
        reason = self.tool.supports(case, world)
        if reason is None and self.tool.program(case) not in self.programs:
            return self.lacks
        return reason or self.tool.refuses(case, world, self.build(case))
