"""What other people's benchmarks printed, read: runs of rows and matrices, and what could not be read of them.

A reader (a file in `logs/readers/`) turns lines into these values and judges nothing. SI units: seconds, bytes, bytes
per second; None is "unknown". Sizes and names are ours (docs/metrics.md): `payload_bytes` is S, the larger of one
rank's two buffers, whatever the tool calls its size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

OK, FAILED, TRUNCATED = "ok", "failed", "truncated"  # how a run ended


class Line(NamedTuple):
    """One line of a log without the marks that launchers, terminals and editors put on it. `number` counts from 1."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class ForeignRow:
    """One measured figure of a size: half a line of nccl-tests, a line of OSU or perftest.

    `num_wrong`: wrong elements; None where the tool did not check. `root` is None for what has none. `line`: where.
    `min_s`, `max_s`, `num_iterations`: what the tool tells beside its mean, by its own definition of each.
    `unreadable`: which of "time", "algbw", "busbw" were printed, but as no number (nan, inf): never to be computed.
    `contradicts`: why its own figures can not all be right, in words; "" where nothing shows that.
    """

    payload_bytes: int | None
    num_elements: int | None = None
    dtype: str | None = None  # by torch's names: float32, bfloat16, float8_e4m3fn
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
    contradicts: str = ""


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """One pair of a matrix: ("gpu0", "gpu1"), ("host", "gpu3"). `status`: "ok", "waived" (the path is not there or
    was refused), "unreadable" (the log lost it), "failed". `value` is None unless ok."""

    src: str
    dst: str
    value: float | None
    status: str = OK


@dataclass(frozen=True, slots=True)
class Matrix:
    """Pairs of one test. `unit`: "bytes_per_s" or "s". `engine`: "ce" (copy engine), "sm" (kernel), None where unknown.
    `payload_bytes`: of one copy, where it is told. `direction`, None where unknown:

    - "h2d", "d2h", "d2d": bytes from `src` to `dst` of each cell. "others" are all GPUs but the cell's own, together;
    - "bidirectional": one direction's rate while the other is busy; "bidirectional_sum": both added up;
    - "through_host", "through_host_sum": the same between GPUs by way of host memory;
    - "local": inside one GPU, no link; "load": a load by `src` from the memory of `dst`, there and back;
      "calls": the time of asking for a copy, no link.
    """

    name: str
    unit: str
    direction: str | None
    engine: str | None
    cells: tuple[MatrixCell, ...]
    payload_bytes: int | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class Remark:
    """Something in a log that was lost, doubtful or worth knowing. `line` is None where it is of the whole run."""

    line: int | None
    text: str


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """One start of a tool, as far as its log tells. `failure`: in one sentence, why the status is not ok.

    `hosts` and `gpus`: their names, each once, in order of appearance. `translations`: what was recomputed so that
    a figure is by our definitions, in words. `settings`: what else the tool said of itself ("nccl": "2.27.7").
    `size_is_block`: the rows' sizes are one rank's block m, because S = n * m needs the number of ranks, which the log
    does not tell: `with_num_ranks` applies it. `asked_bytes`: the sizes that the tool says it was asked for, before it
    rounds them; empty where that is unknown.
    """

    tool: str
    tool_version: str | None = None
    pattern: str | None = None  # our word: allreduce, sendrecv, ...
    num_ranks: int | None = None
    num_nodes: int | None = None
    status: str = OK
    failure: str | None = None
    hosts: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    rows: tuple[ForeignRow, ...] = ()
    matrices: tuple[Matrix, ...] = ()
    remarks: tuple[Remark, ...] = ()
    translations: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = field(default=())
    line: int = 1  # where it begins
    size_is_block: bool = False
    asked_bytes: tuple[int, ...] = ()

    def with_num_ranks(self, num_ranks: int) -> ForeignRun:
        """This run with a number of ranks that its log did not tell; sizes of blocks become S."""
        if not self.size_is_block:
            return replace(self, num_ranks=num_ranks)
        rows = tuple(
            replace(row, payload_bytes=row.payload_bytes and row.payload_bytes * num_ranks) for row in self.rows
        )
        said = f"sizes were one rank's block: each is taken {num_ranks} times, once for every rank"
        return replace(
            self, num_ranks=num_ranks, rows=rows, size_is_block=False, translations=(*self.translations, said)
        )


class Reader(ABC):
    """Reads one tool's output. Made anew for every file; never raises for what a file may hold.

    Lines are fed in order; a run is given out as soon as it is over. Memory is bounded by the rows found, not by the
    lines fed.
    """

    tool: str  # its word, as in `logs/readers/`
    # Words in lower case, of which every line that `begins` knows holds one: where none is near it is not asked.
    # Empty where there are no such words.
    hints: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def begins(self, text: str) -> bool:
        """Can only this tool have printed this line? Cheap: it is asked of each line until a reader has answered."""

    @abstractmethod
    def feed(self, line: Line) -> Iterator[ForeignRun]:
        """Take one line in; yields the runs that are over by it."""

    @abstractmethod
    def finish(self) -> Iterator[ForeignRun]:
        """The file is over: yields what was still open."""


def read_all(reader: Reader, lines: Iterable[Line]) -> list[ForeignRun]:
    """All runs that one reader finds in lines."""
    found = [run for line in lines for run in reader.feed(line)]
    return found + list(reader.finish())
