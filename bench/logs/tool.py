"""What a file in `logs/readers/` offers if its benchmark can be run beside ours: arguments to run, text to read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from bench.core.case import Case
from bench.core.log_traits import ComparedStatistic
from bench.core.record import Record, Skip
from bench.core.world import World
from bench.logs.messages import ToolCode

# Stands for the file of a program's results in its arguments: the controller puts a path of the run's folder there.
DOCUMENT = "results-of-the-tool.json"
Build = frozenset[str]  # which of a tool's `marks` a program has
PLAIN: Build = frozenset()
_NO_MARKS: Mapping[str, bytes] = MappingProxyType({})


class Tool(ABC):
    """A benchmark that is installed beside ours and measures some of the same things."""

    title: str  # its name for people
    variable: str  # environment variable that names the folder of its programs
    transport: str  # the one of ours that moves bytes by the same library
    reductions: tuple[str, ...] = ()  # its patterns that combine data
    # Ability that not all builds have -> bytes that only files of programs with it contain. So a program's abilities
    # are known before it runs, also on a machine without the GPUs.
    marks: ClassVar[Mapping[str, bytes]] = _NO_MARKS
    clock = "host"  # what it times by: "host" or "device"
    suffix = ""  # what some builds append to the names of their programs
    remedy = ""  # how to get it, in words
    compared = ComparedStatistic()  # which time of a row of ours is compared with its own (results/parity.py)

    @abstractmethod
    def program(self, case: Case) -> str:
        """The name of its program for the case's pattern; '' if it has none."""

    @abstractmethod
    def unsupported_reason(self, case: Case, world: World) -> Skip | None:
        """Why it cannot measure this case, which is one of `starts`; None if it can."""

    def starts(self, case: Case) -> tuple[Case, ...]:
        """The case in parts; one start of a program measures one part."""
        return (case,)

    def build_lacks(self, case: Case, world: World, build: Build) -> Skip | None:
        """Why this build of its program cannot measure a case that the tool supports; None if it can."""
        return None

    def processes(self, world: World, build: Build) -> World:
        """How many processes this build needs for the ranks of a world: as many, or one with several GPUs."""
        return world

    @abstractmethod
    def arguments(self, case: Case, world: World, build: Build = PLAIN) -> list[str]:
        """The words behind the program's name, for the sizes of the case. They may contain DOCUMENT."""

    @abstractmethod
    def version(self, text: str) -> str | None:
        """Its version, from its output."""

    def libraries(self, text: str) -> dict[str, str]:
        """Versions of the libraries that it used, from its output: {"nccl": "2.27.7"}."""
        return {}

    def notes(self, case: Case) -> tuple[str, ...]:
        """How its definitions for this case differ from ours and were translated, one sentence each."""
        return ()

    @abstractmethod
    def records(self, text: str, case: Case, world: World, document: str = "") -> list[Record]:
        """Its output as records in SI units, with sizes as we count them; `document`: the file that it wrote.

        A run that failed or was cut gives its complete rows and a failed record with the reason. Raises UsageError if
        the output is not of this tool, or of another run than the one asked for.
        """


@dataclass(frozen=True, slots=True)
class Installed:
    """A tool and its programs that were found here, by name.

    `lacks`: the words for a missing program. `builds`: the abilities of each program, by name.
    """

    tool: Tool
    programs: Mapping[str, str]
    lacks: str
    builds: Mapping[str, Build] = field(default_factory=dict)

    def build(self, case: Case) -> Build:
        """The abilities of the program of a case."""
        return self.builds.get(self.tool.program(case), PLAIN)

    def unsupported_reason(self, case: Case, world: World) -> Skip | None:
        """Why the installed programs cannot measure a case; None if they can."""
        reason = self.tool.unsupported_reason(case, world)
        if reason is None and self.tool.program(case) not in self.programs:
            return Skip.of(ToolCode.NOT_INSTALLED, text=self.lacks)
        return reason or self.tool.build_lacks(case, world, self.build(case))
