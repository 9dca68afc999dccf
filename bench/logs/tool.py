"""The interface of a file in `logs/readers/` whose benchmark linkbench can run.

A tool builds the arguments of its program, and converts the program's output to records.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

from bench.core.case import Case
from bench.core.links import NodeLinks
from bench.core.log_traits import ComparedStatistic
from bench.core.record import Record, Skip
from bench.core.world import World
from bench.logs.messages import ToolCode

# A placeholder in the arguments for the file of a program's results. The controller replaces it by a path in the run's
# folder.
DOCUMENT = "results-of-the-tool.json"
Build = frozenset[str]  # the abilities (keys of a tool's `marks`) that a program has
PLAIN: Build = frozenset()
_NO_MARKS: Mapping[str, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HostEnd:
    """The host that is the server or the client of a test, with its RDMA adapter if the test needs one.

    `bytes_per_s`: the rate of the adapter's link, if known.
    """

    host: str
    adapter: str = ""
    kind: str = ""
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class HostEnds:
    """The server and the client of a test, and the version of the program.

    These values are printed as one line of the output.
    """

    ends: tuple[HostEnd, ...]
    version: str = ""

    def line(self) -> str:
        """Return the line that is printed before the program's own output."""
        return f"{_ENDS}{json.dumps(asdict(self))}"

    @classmethod
    def of_text(cls, text: str) -> HostEnds | None:
        """Return the values from the first such line in the output, or None if there is no complete line."""
        line = next((line for line in text.splitlines() if line.startswith(_ENDS)), None)
        try:
            plain = json.loads(line.removeprefix(_ENDS)) if line else None
            return None if plain is None else cls(tuple(HostEnd(**end) for end in plain["ends"]), plain["version"])
        except (ValueError, LookupError, TypeError):
            return None


_ENDS = "# linkbench: ends of the test: "


def record_of_case(case: Case, world: World, **held: Any) -> Record:
    """Return the record of a case with one size. The program reuses its buffers, so the cache is hot.

    `held`: either the results of the case (`reported`), or the failure of the case (`failed`).
    """
    return Record(
        mode=case.mode,
        requested_bytes=case.sizes,
        payload_bytes=case.sizes[0],
        num_ranks=world.num_ranks,
        num_nodes=world.num_nodes,
        cache="hot",
        **held,
    )


class Tool(ABC):
    """A third-party benchmark that measures some of the patterns that linkbench measures."""

    title: str  # the name shown to users
    variable: str  # the environment variable with the folder of its programs
    transports: tuple[str, ...]  # linkbench transports that move bytes with the same library
    reductions: tuple[str, ...] = ()  # the patterns that combine data
    # An ability that only some builds have -> bytes that only program files with this ability contain.
    # The abilities of a program are therefore known before it runs, even on a machine without GPUs.
    marks: ClassVar[Mapping[str, bytes]] = _NO_MARKS
    clock = "host"  # the clock of the tool: "host" or "device"
    suffix = ""  # suffix that some builds add to the names of their programs
    remedy = ""  # how to install it, as text
    # the statistic of a linkbench row that is compared with the tool's time (results/parity.py)
    compared = ComparedStatistic()
    # whether a program on one host waits for the same program on another host (rank/client_server.py starts both)
    client_server = False
    needs_adapter = False  # whether both hosts need an RDMA adapter

    @abstractmethod
    def program(self, case: Case) -> str:
        """Return the name of the program for the case's pattern, or '' if the tool has none."""

    @abstractmethod
    def unsupported_reason(self, case: Case, world: World) -> Skip | None:
        """Return the reason why the tool cannot measure this case. The case is one of the cases that `starts` returns.

        Return None if the tool can measure the case.
        """

    def starts(self, case: Case) -> tuple[Case, ...]:
        """Divide a case into parts. Each part is measured by a separate start of the program."""
        return (case,)

    def build_lacks(self, case: Case, world: World, build: Build) -> Skip | None:
        """Return the reason why this build of the program cannot measure a supported case.

        Return None if this build can measure the case.
        """
        return None

    def processes(self, world: World, build: Build) -> World:
        """Return the number of nodes and of processes that this build needs for the ranks of `world`.

        A build has either one process for each rank, or one process for several GPUs.
        """
        return world

    @abstractmethod
    def arguments(self, case: Case, world: World, build: Build = PLAIN) -> list[str]:
        """Return the arguments of the program for the sizes of the case.

        The argument DOCUMENT is a placeholder, which the controller replaces with the path of a results file.
        """

    @abstractmethod
    def version(self, text: str) -> str | None:
        """Return the version of the tool from its output, or None if the output does not state the version."""

    def libraries(self, text: str) -> dict[str, str]:
        """Return the versions of the libraries that the tool used, from its output: {"nccl": "2.27.7"}."""
        return {}

    def facts(self, case: Case, text: str) -> dict[str, str]:
        """Return further facts for the header: {"memory": "device"}."""
        return {}

    def links(self, text: str) -> NodeLinks | None:
        """Return the links that limit the tool's results, according to the tool's output."""
        return None

    def notes(self, case: Case) -> tuple[str, ...]:
        """Return sentences on the differences between the tool's and linkbench's definitions for this case.

        The sentences also say how values were converted.
        """
        return ()

    @abstractmethod
    def records(self, text: str, case: Case, world: World, document: str = "") -> list[Record]:
        """Convert the output to records in SI units, with sizes by linkbench's definition.

        `document`: the contents of the file that the tool wrote.

        If the run failed or the output is truncated, the result has the complete rows and a failure with the reason.
        Raises UsageError if the output is not from this tool, or not from the requested run.
        """


@dataclass(frozen=True, slots=True)
class Installed:
    """A tool and its programs that linkbench found on this machine.

    `programs`: the path of each program, by name.
    `lacks`: a message about the programs that are missing.
    `builds`: for each program, by name, the abilities of its build. An ability is a feature that only some builds have.
    """

    tool: Tool
    programs: Mapping[str, str]
    lacks: str
    builds: Mapping[str, Build] = field(default_factory=dict)

    def build(self, case: Case) -> Build:
        """Return the abilities of the program of a case."""
        return self.builds.get(self.tool.program(case), PLAIN)

    def unsupported_reason(self, case: Case, world: World) -> Skip | None:
        """Return why the installed programs cannot measure a case, or None if the case is supported."""
        reason = self.tool.unsupported_reason(case, world)
        if reason is None and self.tool.program(case) not in self.programs:
            return Skip.of(ToolCode.NOT_INSTALLED, text=self.lacks)
        return reason or self.tool.build_lacks(case, world, self.build(case))
