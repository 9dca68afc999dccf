"""Define how linkbench stores other tools' logs: as runs with rows and matrices, and as remarks about lost data.

Each tool has a reader, a file in `logs/readers/`, that converts lines to these values. Units are seconds, bytes and
bytes per second. None means "unknown". Sizes and names follow linkbench's definitions (docs/metrics.md).
`payload_bytes` is always S, the larger of a rank's two buffers, even if the tool defines its own size differently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from bench.core.codes import UNCODED, Code, Coded
from bench.core.log_traits import LogTraits
from bench.core.units import format_bytes, format_duration, format_rate
from bench.logs.messages import LogCode

OK, FAILED, TRUNCATED = "ok", "failed", "truncated"  # how a run ended


class Line(NamedTuple):
    """One line of a log, without the prefixes and marks that launchers, terminals and editors added.

    `number` counts from 1.
    """

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class ForeignRow:
    """The values of one measurement at one size.

    A line of OSU or perftest gives one row. A line of nccl-tests gives two rows: out of place and in place.

    `num_wrong`: the number of wrong elements, or None if the tool did not check the data.
    `root`: the root rank, or None if the operation has no root.
    `min_s`, `max_s`, `median_s`, `num_iterations`: other statistics that the tool prints besides the mean. The tool
    defines what these statistics mean.
    `unreadable`: the names of values ("time", "algbw", "busbw") that the tool printed as nan or inf. The reader does
    not compute such a value from other values.
    `contradicts`: the reason why the row's values contradict each other, or None.
    """

    payload_bytes: int | None
    num_elements: int | None = None
    dtype: str | None = None  # torch's name of the type: float32, bfloat16, float8_e4m3fn
    reduce_op: str | None = None
    root: int | None = None
    in_place: bool = False
    time_s: float | None = None
    algbw_bytes_per_s: float | None = None
    busbw_bytes_per_s: float | None = None
    num_wrong: int | None = None
    line: int = 0
    min_s: float | None = None
    max_s: float | None = None
    num_iterations: int | None = None
    unreadable: tuple[str, ...] = ()
    contradicts: Coded | None = field(default=None, hash=False)
    median_s: float | None = None


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """One pair of a matrix, such as ("gpu0", "gpu1") or ("host", "gpu3"). `value` is None if the status is not "ok".

    `status`: "ok", "waived" (the path does not exist or was rejected), "unreadable" (lost from the log) or "failed".
    `payload_bytes`: the size of one transfer in bytes, if the matrix has cells of several sizes. Each pair then has a
        cell for each size.
    """

    src: str
    dst: str
    value: float | None
    status: str = OK
    payload_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Matrix:
    """The pairs of one test.

    `unit`: "bytes_per_s" or "s".
    `engine`: "ce" (copy engine), "sm" (kernel), or None if unknown.
    `payload_bytes`: the size of one copy in bytes, or None if unknown.
    `direction`: which transfers the test measures, or None if unknown. Possible values are:

    - "h2d", "d2h", "d2d": copies from `src` to `dst`. The name "others" means all GPUs except the GPU that the cell
      names.
    - "bidirectional": the rate of one direction while the other direction is busy.
    - "bidirectional_sum": the sum of both directions.
    - "through_host": copies between GPUs through host memory, in one direction.
    - "through_host_sum": the sum of both directions between GPUs through host memory.
    - "h2d_pageable", "d2h_pageable": copies between the GPU and pageable host memory, through a buffer of the driver.
    - "local": copies inside one GPU, which use no link.
    - "load": the time of a round trip, if `src` loads from the memory of `dst`.
    - "calls": the time of the call that starts a copy. No link is used.
    """

    name: str
    unit: str
    direction: str | None
    engine: str | None
    cells: tuple[MatrixCell, ...]
    payload_bytes: int | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class NamedFigure:
    """A named result that belongs to no row and no matrix, such as a score, a rate or the verdict of a test.

    `name`: the measured quantity, as the tool prints it.
    `where`: the measured part ("gpu3", "rank 0", "stream 5"), or "" for the whole run.
    `unit`: "bytes_per_s", "s", "per_s", "bytes", "ratio", "percent" or "count", or "" for a test's verdict.
    `status`: a status of MatrixCell, or "warning". A test that passed has status "ok" and no value.
    """

    name: str
    value: float | None
    unit: str
    where: str = ""
    status: str = OK
    line: int = 0

    @property
    def words(self) -> str:
        """The figure as text: `rank 3, dispatch: 43.2 GB/s`."""
        name = ", ".join(filter(None, (self.where, self.name)))
        return f"{name}: {self.value_words}"

    @property
    def value_words(self) -> str:
        """The value with its unit, or the verdict of a test."""
        if self.value is None:
            return "passed" if self.status == OK else self.status
        return f"{_FORMATS.get(self.unit, _plain)(self.value)}{_SUFFIXES.get(self.unit, '')}"

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> NamedFigure:
        """Build a figure from the result of `to_dict`."""
        return cls(stored["name"], stored["value"], stored["unit"], stored["where"], stored["status"], stored["line"])

    def to_dict(self) -> dict[str, Any]:
        """Return the figure as a dictionary, as headers store it."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "where": self.where,
            "status": self.status,
            "line": self.line,
        }


def _plain(value: float) -> str:
    return f"{value:.6g}"


def _bytes(value: float) -> str:
    return format_bytes(int(value))


_FORMATS: dict[str, Callable[[float], str]] = {"bytes_per_s": format_rate, "s": format_duration, "bytes": _bytes}
_SUFFIXES = {"per_s": " per second", "percent": " %"}


@dataclass(frozen=True, slots=True)
class Remark:
    """A note about lost data, doubtful data or another fact that the user should know.

    `line`: the line number, or None for the whole run.
    """

    line: int | None
    code: str
    facts: Mapping[str, Any]
    text: str

    @classmethod
    def of(cls, line: int | None, code: Code, **facts: Any) -> Remark:
        """Build a remark from a code and its facts. The code's template gives the remark's text."""
        return cls(line, code, facts, code.words(facts))

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Remark:
        """Build a remark from the result of `to_dict`. Older files contain no code."""
        return cls(stored["line"], stored.get("code", UNCODED), stored.get("facts", {}), stored["text"])

    def to_dict(self) -> dict[str, Any]:
        """Return the remark as a dictionary, as headers and JSON documents store it."""
        return {"line": self.line, "text": self.text, "code": str(self.code), "facts": dict(self.facts)}

    @property
    def words(self) -> str:
        """The remark's text. If the line is known, the line number precedes the text."""
        return self.text if self.line is None else f"line {self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """One run of a tool, as the log shows it.

    `failure`: the reasons why the status is not "ok". A failure has the code of the first reason and the texts of all
    reasons. The fact `printed` is the text that other programs printed.

    `hosts`, `gpus`: names without repetition, in order of appearance.
    `translations`: notes on how figures were converted to linkbench's definitions.
    `settings`: other facts that the tool printed about itself ("nccl": "2.27.7").
    `size_is_block`: whether the size of a row is the block m of one rank and not S = n * m. Sizes are blocks if the log
    does not state the number of ranks n. `with_num_ranks` converts such sizes.
    `asked_bytes`: the requested sizes in bytes, before the tool rounds them. The tuple is empty if these sizes are
        unknown.
    """

    tool: str
    tool_version: str | None = None
    pattern: str | None = None  # linkbench's name of the pattern: allreduce, sendrecv, ...
    num_ranks: int | None = None
    num_nodes: int | None = None
    status: str = OK
    failure: Coded | None = None
    hosts: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    rows: tuple[ForeignRow, ...] = ()
    matrices: tuple[Matrix, ...] = ()
    remarks: tuple[Remark, ...] = ()
    translations: tuple[Coded, ...] = ()
    settings: tuple[tuple[str, str], ...] = field(default=())
    line: int = 1  # the line at which the run begins
    size_is_block: bool = False
    asked_bytes: tuple[int, ...] = ()
    figures: tuple[NamedFigure, ...] = ()

    @property
    def is_correct(self) -> bool:
        """Whether the run succeeded and has no wrong elements."""
        return self.status == OK and not any(row.num_wrong for row in self.rows)

    def with_num_ranks(self, num_ranks: int) -> ForeignRun:
        """Return this run with the given number of ranks, which the run's log does not state.

        If the sizes in the log are blocks of one rank, these sizes are converted to S.
        """
        if not self.size_is_block:
            return replace(self, num_ranks=num_ranks)
        rows = tuple(
            replace(row, payload_bytes=row.payload_bytes and row.payload_bytes * num_ranks) for row in self.rows
        )
        translation = Coded.of(LogCode.BLOCKS_TO_PAYLOAD, num_ranks=num_ranks)
        translations = (*self.translations, translation)
        return replace(self, num_ranks=num_ranks, rows=rows, size_is_block=False, translations=translations)


class Reader(ABC):
    """Reads one tool's output. A new reader is made for every file. No content of a file causes an exception.

    Lines are fed in order. A reader yields a run as soon as the run has ended. The memory that a reader needs depends
    on the number of rows and not on the number of lines.
    """

    tool: ClassVar[str]  # the name of the reader's file in `logs/readers/`
    traits: ClassVar[LogTraits] = LogTraits()
    # traits of other tools that this reader also reads
    other_tools: ClassVar[Mapping[str, LogTraits]] = MappingProxyType({})
    # Lower-case words. Every line that `begins` accepts contains one of these words, so parts of a log without them are
    # skipped. Empty if there are no such words.
    hints: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def begins(self, text: str) -> bool:
        """Check whether only this tool can have printed the line.

        Every line is checked until a reader accepts a line.
        """

    @abstractmethod
    def feed(self, line: Line) -> Iterator[ForeignRun]:
        """Read one line. Yield the runs that end with this line."""

    @abstractmethod
    def finish(self) -> Iterator[ForeignRun]:
        """Yield the run that is incomplete at the end of the file."""


def read_all(reader: Reader, lines: Iterable[Line]) -> list[ForeignRun]:
    """Return all runs that one reader finds in lines."""
    found = [run for line in lines for run in reader.feed(line)]
    return found + list(reader.finish())


def with_sibling_machines(runs: Sequence[ForeignRun]) -> tuple[ForeignRun, ...]:
    """Return the runs of one log.

    Often only the first run of a loop prints its devices. A run that lists no GPUs therefore gets the GPUs, hosts and
    nodes of another run with the same number of ranks. If the runs list different machines, the function adds nothing.
    """
    listed: dict[int, set[tuple[tuple[str, ...], tuple[str, ...], int | None]]] = {}
    for run in runs:
        if run.num_ranks is not None and run.gpus:
            listed.setdefault(run.num_ranks, set()).add((run.hosts, run.gpus, run.num_nodes))
    found = []
    for run in runs:
        machines = listed.get(run.num_ranks or 0, set())
        if run.gpus or len(machines) != 1:
            found.append(run)
            continue
        ((hosts, gpus, num_nodes),) = machines
        same_hosts = not run.hosts or run.hosts == hosts
        found.append(replace(run, hosts=hosts, gpus=gpus, num_nodes=run.num_nodes or num_nodes) if same_hosts else run)
    return tuple(found)
