"""Read tables of the OSU Micro-Benchmarks (MPI) from 3.x on.

linkbench can also run the latency programs (7.x) to compare them with the transport `mpi`. For allgather, alltoall,
gather and scatter, OSU prints the block of one rank as the size, so S is this size times the number of ranks. For other
patterns, the printed size is S. For a collective, OSU prints the average of the ranks' mean times. For osu_latency, OSU
prints half of the mean round-trip time, as measured by the first rank. OSU's default type is MPI_CHAR. Sums of
characters are far slower than sums of floats, so linkbench runs reductions with mpi_float.
"""

from __future__ import annotations

import re

from bench.core.case import Case
from bench.core.codes import Code
from bench.core.errors import UsageError
from bench.core.log_traits import ComparedStatistic
from bench.core.record import Record, Skip
from bench.core.world import World
from bench.logs.messages import ToolCode
from bench.logs.readers._osu_reader import SIZE, OsuReader, columns, numbers
from bench.logs.tool import PLAIN, Build, Tool

_PROGRAMS = {
    "allreduce": "osu_allreduce",
    "reduce": "osu_reduce",
    "broadcast": "osu_bcast",
    "alltoall": "osu_alltoall",
    "allgather": "osu_allgather",
    "gather": "osu_gather",
    "scatter": "osu_scatter",
    "pingpong": "osu_latency",
}
_REDUCTIONS = ("allreduce", "reduce")
_SIZE_IS_A_BLOCK = ("allgather", "alltoall", "gather", "scatter")
_TYPES = {"float32": "mpi_float", "int32": "mpi_int", "int8": "mpi_char"}


class OsuToolCode(Code):
    """The reasons why an OSU program cannot measure a case."""

    SUMS_ONLY = "sums-only", "{program} sums float32, int32 or int8, not {dtype} by {operation}"
    TWO_RANKS = "two-ranks", "{program} needs 2 ranks, there are {ranks}"


class Osu(Tool):
    """The latency programs of OSU's MPI benchmarks."""

    title = "OSU Micro-Benchmarks"
    variable = "BENCH_OSU_PATH"
    transports = ("mpi",)
    reductions = _REDUCTIONS
    compared = ComparedStatistic(mean="osu_mean_s", isolated_mean=True)

    def program(self, case: Case) -> str:
        """Return the name of the program, such as osu_allreduce or osu_latency.

        Return "" if OSU has no program for the pattern.
        """
        return _PROGRAMS.get(case.pattern, "")

    def unsupported_reason(self, case: Case, world: World) -> Skip | None:
        """Return the reason why the programs cannot measure a case, or None if the case is supported.

        The programs measure only the whole world, in linear order, from root 0 and out of place. The programs can sum
        only three data types.
        """
        program = self.program(case)
        if not program:
            return Skip.of(ToolCode.NO_PROGRAM, tool=self.title, pattern=case.pattern)
        plain = Case(case.pattern)
        for name in ("topology", "order", "direction", "in_place", "root"):
            value = getattr(case, name)
            if value != getattr(plain, name):
                return Skip.of(ToolCode.OPTION_UNSUPPORTED, tool=program, option=name.replace("_", " "), value=value)
        if case.pattern in _REDUCTIONS and (case.dtype not in _TYPES or case.reduce_op != "sum"):
            return Skip.of(OsuToolCode.SUMS_ONLY, program=program, dtype=case.dtype, operation=case.reduce_op)
        if case.pattern == "pingpong" and world.num_ranks != 2:
            return Skip.of(OsuToolCode.TWO_RANKS, program=program, ranks=world.num_ranks)
        return None

    def arguments(self, case: Case, world: World, build: Build = PLAIN) -> list[str]:
        """Return the arguments: the sizes, the counts and the type.

        OSU doubles the size from the smallest to the largest.
        """
        blocks = world.num_ranks if case.pattern in _SIZE_IS_A_BLOCK else 1
        words = ["-m", f"{max(case.sizes[0] // blocks, 1)}:{max(case.sizes[-1] // blocks, 1)}"]
        if case.iterations is not None:
            words += ["-i", str(case.iterations)]
        if case.warmup is not None:
            words += ["-x", str(case.warmup)]
        if case.pattern in _REDUCTIONS:
            words += ["-T", _TYPES[case.dtype]]
        return words + ["-f"] * (case.pattern != "pingpong")  # adds the smallest and the largest of the ranks' means

    def version(self, text: str) -> str | None:
        """Return the version, for example `7.4`, from the title line, or None if the line has no version."""
        found = re.search(r"^# OSU .* Test v?(\S+)", text, re.MULTILINE)
        return found[1] if found else None

    def records(self, text: str, case: Case, world: World, document: str = "") -> list[Record]:
        """Return one record for each line whose size belongs to the case."""
        names: list[str] | None = None
        found: list[Record] = []
        lines = text.splitlines()
        for number, line in enumerate(lines, start=1):
            if line.startswith("#"):
                names = _columns(line) or names
            elif line.strip() and names is not None:
                cut = number == len(lines) and not text.endswith("\n")
                values = _values(line, names, number, cut)
                if values is not None:
                    found.append(_record(values, case, world))
        if names is None:
            raise UsageError("this is not a table of an OSU latency program: it has no line '# Size ... Latency(us)'")
        wanted = {record.payload_bytes for record in found} & set(case.sizes)
        return [record for record in found if record.payload_bytes in wanted]


def _columns(line: str) -> list[str] | None:
    """Return the meaning of each column from a line of titles. Return None for a comment without column titles.

    Raises UsageError for another type of table.
    """
    names = columns(line)
    if names is not None and "mean_s" not in names:
        raise UsageError(f"only OSU's latency tables are read; this one has {line.removeprefix('#').strip()}")
    return names


def _values(line: str, names: list[str], number: int, cut: bool) -> dict[str, float] | None:
    """Return the numbers of a row by column, or None if the row is truncated.

    Raises UsageError if the line is not a row.
    """
    values = numbers(line.split(), names)
    if values is not None and values["mean_s"] > 0 and not cut:
        return values
    if cut:
        return None
    raise UsageError(f"line {number} is not a row of an OSU table: {line.strip()[:60]!r}")


def _record(values: dict[str, float], case: Case, world: World) -> Record:
    blocks = world.num_ranks if case.pattern in _SIZE_IS_A_BLOCK else 1
    payload = int(values["size"]) * blocks
    reported = {name: value for name, value in values.items() if name != SIZE}
    return Record(
        mode="isolated",
        requested_bytes=(payload,),
        payload_bytes=payload,
        num_ranks=world.num_ranks,
        num_nodes=world.num_nodes,
        cache="hot",
        reported=reported,
    )


TOOL = Osu()
READER = OsuReader
