"""Read OSU's tables in any log: collectives, latencies, bandwidths and one-sided calls (MB/s is 1e6 bytes/s).

In a bandwidth test, OSU sends a window of messages and waits for one acknowledgement. linkbench's pipelined ping-pong
works in the same way. osu_bibw prints the sum of both directions, and osu_mbw_mr prints the sum of all pairs. The
reader divides these sums by the number of directions or pairs, so each row has the rate of one direction of one pair. A
table consists of a line of titles and several lines of numbers. All numbers except counts have two decimals. The titles
depend on version and options:

- `Latency (us)`, and from 3.x on also `Avg Latency(us)`
- `Bandwidth (MB/s)`, and in 3.x also `Bi-Bandwidth (MB/s)`
- with `-f`: `Min Latency(us)`, `Max Latency(us)` and `Iterations`
- with `-c`: `Validation`
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bench.core.codes import Code, Coded
from bench.core.log_traits import LogTraits
from bench.logs.foreign import ForeignRow, ForeignRun, Line, Reader
from bench.logs.messages import LogCode
from bench.logs.readers._lines import FENCE
from bench.logs.readers._run_notes import RunNotes, shown

_BEGIN = re.compile(r"#?\s*OSU (\S+) (\S.*?) [Tt]est(?: v?([0-9][\w.-]*))?$")
# MPI, MPI-CUDA, NCCL; a name such as MPI_Put belongs to another program
_LIBRARY = re.compile(r"[A-Za-z]+(?:-[A-Za-z]+)?")
_ONE_SIDED_CALL = re.compile(r"MPI_(?:Put|Get|Accumulate|Get_accumulate|Fetch_and_op|Compare_and_swap)(?:-[A-Z]+)?")
_HEADER = re.compile(r"#?\s*Size\s+\S")
_TYPE = re.compile(r"#?\s*Datatype: (MPI_\w+)\.?$")
_PAIRS = re.compile(r"#?\s*\[ pairs: ([0-9]{1,9}) \]")
_BUFFERS = re.compile(
    r"#?\s*Send Buffer on (DEVICE|HOST|MANAGED)\b.{0,20}? and Receive Buffer on (DEVICE|HOST|MANAGED)\b", re.IGNORECASE
)
_OF_GPUS = re.compile(r"cuda|rocm|nccl|openacc|sycl", re.IGNORECASE)
_ERROR = re.compile(
    r"Segmentation fault|Caught signal \d|exited on signal|MPI_ABORT was invoked|Process received signal"
    r"|DATA VALIDATION ERROR|srun: error:|Fatal error in|Abort\(\d+\)|An error occurred in MPI_"
)
_WANTED = re.compile(r"[0-9#.…]|Size|Send|Datatype|\[ ?[p.]")  # beginnings of the lines that are read
_LEFT_OUT = re.compile(r"\[?(?:\.{3,}|…)\]?$")
_LEADING = re.compile(r"[0-9]{1,15}")
# The default largest message of a program, in bytes. Fetch-and-op and compare-and-swap have one size.
_LARGEST_OF_TWO, _LARGEST_OF_MANY = 1 << 22, 1 << 20
_ONE_SIZE = ("MPI_Fetch_and_op", "MPI_Compare_and_swap")
_DTYPES = {
    "MPI_FLOAT": ("float32", 4),
    "MPI_DOUBLE": ("float64", 8),
    "MPI_INT": ("int32", 4),
    "MPI_CHAR": ("int8", 1),
}
_MARGINS = " \t\r|"  # these also surround tables that were pasted into other text
SIZE = "size"
# the location of both buffers; MIXED also means that the driver moves them
HOST, DEVICE, MIXED = "host", "device", "mixed"
_COLUMNS = {
    "size": SIZE,
    "avg latency": "mean_s",
    "latency": "mean_s",
    "min latency": "least_mean_s",
    "max latency": "largest_mean_s",
    "iterations": "num_samples",
    "bandwidth": "bytes_per_s",
    "bi-bandwidth": "bytes_per_s",
    "mb/s": "bytes_per_s",
    "messages/s": "messages_per_s",
    "validation": "valid",
}
_COLUMN_TITLE = re.compile(
    r"(Size|(?:Avg |Min |Max )?Latency ?\(us\)|Iterations|MB/s|Messages/s|Validation"
    r"|[A-Z][A-Za-z0-9/-]*(?: [A-Za-z0-9/-]+)*(?: ?\([^)]*\))?)\s*"
)
_COUNT = re.compile(r"[0-9]{1,15}")
_DECIMAL = re.compile(r"[0-9]{1,15}\.[0-9]{2,6}")
_MARKS = {"Pass": 1.0, "Fail": 0.0, "-": math.nan}


class OsuCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    ENDS_EARLY = (
        "ends-early",
        "the table ends at {size} bytes, but the program's default is {largest}: the program hung, the log was cut, "
        "or -m or -M was given",
    )
    COUNT_CUT = "count-cut", "this row is cut: its number of iterations is lost"

    SIZES_ARE_BLOCKS = (
        "sizes-are-blocks",
        "sizes are one rank's block m: S = n * m needs the number of ranks, which the log does not state",
    )
    ONE_SIDED = (
        "one-sided",
        "the time of a one-sided call ends when the call is complete at the target; it is not halved",
    )
    MEAN_OVER_RANKS = (
        "mean-over-ranks",
        "time is the mean over ranks of each rank's mean; min_s and max_s are the smallest and largest of "
        "the ranks' means",
    )
    TIME_BY_RATE = "time-by-rate", "time is that of one message of a window: size / bandwidth"
    BOTH_DIRECTIONS = "both-directions", "the printed bandwidth adds both directions: half of it is one direction"
    MEAN_OVER_PAIRS = "mean-over-pairs", "time is the mean over all pairs; their number is not printed"
    PAIRS_ADDED = (
        "pairs-added",
        "the printed bandwidth adds {pairs} pairs: linkbench divided it by this number, so a row is one pair",
    )


@dataclass(frozen=True)
class _Program:
    pattern: str | None
    mode: str = "isolated"
    block: bool = False  # whether the size is the block of one rank
    reduces: bool = False
    root: int | None = None


# Programs by the text between "OSU MPI" and "Test".
_PROGRAMS = {
    "Allreduce Latency": _Program("allreduce", reduces=True),
    "Reduce Latency": _Program("reduce", reduces=True, root=0),
    "Reduce_scatter Latency": _Program("reducescatter", reduces=True),
    "Broadcast Latency": _Program("broadcast", root=0),
    "Allgather Latency": _Program("allgather", block=True),
    "All-to-All Personalized Exchange Latency": _Program("alltoall", block=True),
    "Gather Latency": _Program("gather", block=True, root=0),
    "Scatter Latency": _Program("scatter", block=True, root=0),
    "Latency": _Program("pingpong"),
    "Bandwidth": _Program("pingpong", "pipelined"),
    "Bi-Directional Bandwidth": _Program("pingpong", "pipelined"),
    "Multiple Bandwidth / Message Rate": _Program("pairs", "pipelined"),
    "Multi Latency": _Program("pairs"),
}
# MPI_Put, MPI_Get and similar calls, whose titles are in lower or upper case. The time ends when the call is complete.
_ONE_SIDED = {
    "latency": _Program(None),
    "bandwidth": _Program("pingpong", "pipelined"),
    "bi-directional bandwidth": _Program("pingpong", "pipelined"),
}


def _memory_of(library: str) -> str:
    """Return the type of memory of the buffers, from the library named in the title.

    Some logs have a separate line about the buffers. This separate line states the memory of both buffers.
    """
    if "managed" in library.lower():
        return MIXED
    return DEVICE if _OF_GPUS.search(library) else HOST


def _program_of(library: str, name: str) -> _Program | None:
    if _ONE_SIDED_CALL.fullmatch(library):
        return _ONE_SIDED.get(name.lower())
    return _PROGRAMS.get(name) if _LIBRARY.fullmatch(library) else None


class OsuReader(Reader):
    """Reads a file that may contain many runs. Each run begins with its own title."""

    tool = "osu"
    traits = LogTraits(
        host_memory=True,
        extremes=("least_mean_s", "largest_mean_s"),
        statistics={"mean_s": "osu_mean_s", "least_mean_s": "osu_min_s", "largest_mean_s": "osu_max_s"},
    )
    hints = ("osu ",)

    def __init__(self) -> None:
        self._run: _OpenRun | None = None

    def begins(self, text: str) -> bool:
        """Check whether the line is a title: `# OSU MPI Allreduce Latency Test v5.7`."""
        return _BEGIN.match(text.strip(_MARGINS)) is not None

    def feed(self, line: Line) -> Iterator[ForeignRun]:
        """Read one line. Yield a run that ends before this line."""
        text = line.text.strip(_MARGINS)
        if found := _BEGIN.match(text):
            yield from self.finish()
            self._run = _OpenRun(line.number, found)
        elif self._run is not None and self._run.has_rows and text.startswith(FENCE):
            yield from self.finish()
        elif self._run is not None and (_WANTED.match(text) or _ERROR.search(text)):
            self._run.take(line.number, text)

    def finish(self) -> Iterator[ForeignRun]:
        """Close the run, because the file has ended or the next run begins."""
        run, self._run = self._run, None
        if run is not None:
            yield run.run()


class _OpenRun(RunNotes):
    """A run whose lines are still being read."""

    def __init__(self, line: int, title: re.Match[str]) -> None:
        super().__init__()
        self._line = line
        self._library, self._name, self._version = title[1], title[2], title[3]
        self._program = _program_of(title[1], title[2])
        self._columns: list[str] | None = None
        self._memory = _memory_of(self._library)
        self._dtype: str | None = None
        self._element = 0
        self._pairs: int | None = None
        self._rows: list[ForeignRow] = []
        self._widths: set[int] = set()  # lengths of the rows so far; all rows end at the same column
        # The line of the last row if it is shorter than the rows above. Its count may have lost digits.
        self._short_line = 0

    @property
    def has_rows(self) -> bool:
        """Whether a row was read."""
        return bool(self._rows)

    def take(self, line: int, text: str) -> None:
        """Read one line below the title."""
        if text[:1].isdigit():
            words = text.split()
            if self._columns is not None and _LEADING.fullmatch(words[0]):
                self._take_row(line, text, words, self._columns)
        elif _HEADER.match(text) and (names := columns(text)) is not None:
            self._begin_table(line, text, names)
        elif found := _TYPE.match(text):
            self._dtype, self._element = _DTYPES.get(found[1], (None, 0))
        elif found := _BUFFERS.match(text):
            ends = {found[1].lower(), found[2].lower()}
            self._memory = ends.pop() if len(ends) == 1 and "managed" not in ends else MIXED
        elif found := _PAIRS.match(text):
            self._pairs = int(found[1])
        elif _LEFT_OUT.match(text):
            self.lose(line, LogCode.LINES_LEFT_OUT)
        elif _ERROR.search(text):
            self.fail(line, LogCode.TOOL_ERROR, printed=shown(text, 200))

    def _begin_table(self, line: int, text: str, names: list[str]) -> None:
        self._columns = names
        if self._program is None or not {"mean_s", "bytes_per_s"} & set(names):
            self.lose(line, LogCode.TABLE_UNKNOWN, printed=shown(text, 80))
            self._columns = None

    def run(self) -> ForeignRun:
        """Return the run with all data that were read."""
        self._check_last()
        self._check_end()
        if not self._rows and not self.cuts:
            self.lose(self._line, LogCode.NO_ROWS)
        program = self._program
        return ForeignRun(
            "osu",
            self._version,
            pattern=program.pattern if program else None,
            num_ranks=self._num_ranks(),
            status=self.status(),
            failure=self.failure(),
            rows=tuple(self._rows),
            remarks=self.all_remarks(),
            translations=tuple(self._translations()),
            settings=(
                ("library", self._library),
                ("mode", program.mode if program else "unknown"),
                ("memory", self._memory),
            ),
            line=self._line,
            size_is_block=bool(program and program.block),
        )

    def _take_row(self, line: int, text: str, words: list[str], names: list[str]) -> None:
        values = numbers(words, names)
        if values is None:
            if len(words) == 1 or re.match(r"-?[0-9.]|-?nan|-?inf", words[1]):
                self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 80))
            return
        if values.get("valid") == 0:
            self.fail(line, LogCode.WRONG_DATA, size=int(words[0]))
        if values.get("mean_s", 1) <= 0 or values.get("bytes_per_s", 1) < 0:
            self.fail(line, LogCode.NO_TIME, size=int(words[0]))
        elif len(self._rows) < 1_000_000:
            self._rows.append(self._row(values, line))
            self._measure(text, line)

    def _measure(self, text: str, line: int) -> None:
        aligned = len(self._rows) > 2 and len(self._widths) == 1
        other = len(self._rows) > 1 and self._rows[-1].num_iterations != self._rows[-2].num_iterations
        self._short_line = line if aligned and other and len(text) < min(self._widths) else 0
        self._widths = {len(text)} if len(self._rows) == 1 else {*list(self._widths)[:2], len(text)}

    def _check_end(self) -> None:
        """Add a remark if a table ends early.

        No line marks the end of a table. The program may have hung, the log may be truncated, or the table may be
        complete.
        """
        if not self._rows or self._program is None or self.failures or self.cuts:
            return
        if self._library.partition("-")[0] in _ONE_SIZE:
            return
        two = self._program.pattern in ("pingpong", "pairs", None)
        largest = _LARGEST_OF_TWO if two else _LARGEST_OF_MANY
        last = self._rows[-1]
        if (last.payload_bytes or 0) < largest:
            self.remark(last.line, OsuCode.ENDS_EARLY, size=last.payload_bytes, largest=largest)

    def _check_last(self) -> None:
        if self._short_line:
            self._rows[-1] = replace(self._rows[-1], num_iterations=None)
            self.lose(self._short_line, OsuCode.COUNT_CUT)

    def _row(self, values: dict[str, float], line: int) -> ForeignRow:
        size = int(values[SIZE])
        program = self._program or _Program(None)
        rate, time = values.get("bytes_per_s"), values.get("mean_s")
        if rate is not None:
            rate = rate / self._share()
            time = size / rate if rate > 0 and size else None
        count = values.get("num_samples")
        return ForeignRow(
            size,
            num_elements=size // self._element if self._element and size % self._element == 0 else None,
            dtype=self._dtype,
            reduce_op="sum" if program.reduces else None,
            root=program.root,
            time_s=time,
            algbw_bytes_per_s=rate,
            busbw_bytes_per_s=rate,
            line=line,
            min_s=values.get("least_mean_s"),
            max_s=values.get("largest_mean_s"),
            num_iterations=None if count is None else int(count),
        )

    def _share(self) -> int:
        """Return the number of streams in a printed sum of bandwidths: 2 for two directions, or the number of pairs."""
        if self._name.startswith("Bi-"):
            return 2
        return self._pairs or 1 if self._program is not None and self._program.pattern == "pairs" else 1

    def _num_ranks(self) -> int | None:
        if self._program is None:
            return None
        if self._program.pattern == "pairs":
            return None if self._pairs is None else 2 * self._pairs
        return 2 if self._program.pattern in ("pingpong", None) else None

    def _translations(self) -> Iterator[Coded]:
        program = self._program
        if program is None:
            return
        if program.block:
            yield Coded.of(OsuCode.SIZES_ARE_BLOCKS)
        if program.pattern is None:
            yield Coded.of(OsuCode.ONE_SIDED)
        elif program.pattern not in ("pingpong", "pairs"):
            yield Coded.of(OsuCode.MEAN_OVER_RANKS)
        if program.mode == "pipelined":
            yield Coded.of(OsuCode.TIME_BY_RATE)
        if self._name.startswith("Bi-"):
            yield Coded.of(OsuCode.BOTH_DIRECTIONS)
        if program.pattern == "pairs" and program.mode == "isolated":
            yield Coded.of(OsuCode.MEAN_OVER_PAIRS)
        elif program.pattern == "pairs":
            yield Coded.of(OsuCode.PAIRS_ADDED, pairs=self._pairs or "all")


def columns(line: str) -> list[str] | None:
    """Return the meaning of each column from a line of titles.

    The meaning of a column that the reader does not use is "". Return None for any other line.
    """
    titles = [
        re.sub(r"\s*\(.*\)", "", title).strip().lower() for title in _COLUMN_TITLE.findall(line[:400].lstrip("#"))
    ]
    if len(titles) < 2 or titles[0] != SIZE:
        return None
    return [_COLUMNS.get(title, "") for title in titles]


def numbers(words: list[str], names: list[str]) -> dict[str, float] | None:
    """Return the values of the columns that have a name, in SI units.

    Return None if a word is missing or truncated, or if a word cannot be a value of its column.
    """
    if len(words) != len(names):
        return None
    found = {name: _number(word, name) for word, name in zip(words, names, strict=True) if name}
    return None if None in found.values() else {name: value for name, value in found.items() if value is not None}


def _number(word: str, name: str) -> float | None:
    if name == "valid":
        return _MARKS.get(word)
    if name in (SIZE, "num_samples"):
        return float(word) if _COUNT.fullmatch(word) else None
    scale = {"bytes_per_s": 1e6, "messages_per_s": 1.0}.get(name, 1e-6)
    return float(word) * scale if _DECIMAL.fullmatch(word) else None
