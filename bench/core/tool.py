"""Other people's benchmarks: what every file in `tools/` offers. Tools build words and read text, nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from bench.core.case import Case
from bench.core.record import Record
from bench.core.world import World


class Tool(ABC):
    """A benchmark that is installed beside ours and measures some of the same things."""

    title: str  # as people call it
    variable: str  # environment variable that names the folder of its programs
    transport: str  # the one of ours that moves bytes by the same library
    reductions: tuple[str, ...] = ()  # its patterns that combine data

    @abstractmethod
    def program(self, case: Case) -> str:
        """The name of its program for the case's pattern; '' when it has none."""

    @abstractmethod
    def supports(self, case: Case, world: World) -> str | None:
        """Why it can not measure a case; None when it can."""

    @abstractmethod
    def arguments(self, case: Case, world: World) -> list[str]:
        """What follows the program's name, so that it measures the case's sizes."""

    @abstractmethod
    def version(self, text: str) -> str | None:
        """Its version, from what it printed."""

    @abstractmethod
    def records(self, text: str, case: Case, world: World) -> list[Record]:
        """What it printed, as records of reported statistics in SI units, the sizes as we count them.

        Raises UsageError naming the line that is no result of this tool. An output that was cut gives what is whole.
        """


@dataclass(frozen=True, slots=True)
class Installed:
    """A tool and the programs of it that were found here, by name; `lacks`: what to say where one is missing."""

    tool: Tool
    programs: Mapping[str, str]
    lacks: str
