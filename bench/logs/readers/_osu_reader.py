"""OSU's tables in anybody's log: collectives, latencies, bandwidths and one-sided calls (MB/s is 1e6 bytes/s there).

A bandwidth is of windows of messages with one acknowledgement, as a pipelined ping-pong is here. osu_bibw adds both
directions and osu_mbw_mr all pairs; both are divided, so that a row is one direction of one pair.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bench.logs.foreign import ForeignRow, ForeignRun, Line, Reader
from bench.logs.readers import _osu_table
from bench.logs.readers._lines import FENCE
from bench.logs.readers._told import RunNotes

_BEGIN = re.compile(r"#?\s*OSU (\S+) (\S.*?) [Tt]est(?: v?([0-9][\w.-]*))?$")
_LIBRARY = re.compile(r"[A-Za-z]+(?:-[A-Za-z]+)?")  # MPI, MPI-CUDA, NCCL; MPI_Put is another program
_ONE_SIDED_CALL = re.compile(r"MPI_(?:Put|Get|Accumulate|Get_accumulate|Fetch_and_op|Compare_and_swap)(?:-[A-Z]+)?")
_HEADER = re.compile(r"#?\s*Size\s+\S")
_TYPE = re.compile(r"#?\s*Datatype: (MPI_\w+)\.?$")
_PAIRS = re.compile(r"#?\s*\[ pairs: ([0-9]{1,9}) \]")
_ERROR = re.compile(
    r"Segmentation fault|Caught signal \d|exited on signal|MPI_ABORT was invoked|Process received signal"
    r"|DATA VALIDATION ERROR|srun: error:|Fatal error in|Abort\(\d+\)|An error occurred in MPI_"
)
_WANTED = re.compile(r"[0-9#.…]|Size|Datatype|\[ ?[p.]")  # how lines begin that are read
_LEFT_OUT = re.compile(r"\[?(?:\.{3,}|…)\]?$")
_LEADING = re.compile(r"[0-9]{1,15}")
# The largest message of a program that is given none, in bytes; fetch-and-op and compare-and-swap have one size.
_LARGEST_OF_TWO, _LARGEST_OF_MANY = 1 << 22, 1 << 20
_ONE_SIZE = ("MPI_Fetch_and_op", "MPI_Compare_and_swap")
_DTYPES = {
    "MPI_FLOAT": ("float32", 4),
    "MPI_DOUBLE": ("float64", 8),
    "MPI_INT": ("int32", 4),
    "MPI_CHAR": ("int8", 1),
}
_MARGINS = " \t\r|"  # of a table that somebody pasted, too


@dataclass(frozen=True)
class _Program:
    pattern: str | None
    mode: str = "isolated"
    block: bool = False  # is its size one rank's block?
    reduces: bool = False
    root: int | None = None


# By what stands between "OSU MPI" and "Test".
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
# Of MPI_Put, MPI_Get and their kin, whose titles are written in both ways. A time is until the call is complete.
_ONE_SIDED = {
    "latency": _Program(None),
    "bandwidth": _Program("pingpong", "pipelined"),
    "bi-directional bandwidth": _Program("pingpong", "pipelined"),
}


def _program_of(library: str, name: str) -> _Program | None:
    if _ONE_SIDED_CALL.fullmatch(library):
        return _ONE_SIDED.get(name.lower())
    return _PROGRAMS.get(name) if _LIBRARY.fullmatch(library) else None


class OsuReader(Reader):
    """A file may hold many runs: each begins with its own title."""

    tool = "osu"
    hints = ("osu ",)

    def __init__(self) -> None:
        self._run: _Found | None = None

    def begins(self, text: str) -> bool:
        """`# OSU MPI Allreduce Latency Test v5.7`."""
        return _BEGIN.match(text.strip(_MARGINS)) is not None

    def feed(self, line: Line) -> Iterator[ForeignRun]:
        """Take one line in."""
        text = line.text.strip(_MARGINS)
        if found := _BEGIN.match(text):
            yield from self.finish()
            self._run = _Found(line.number, found)
        elif self._run is not None and self._run.has_rows and text.startswith(FENCE):
            yield from self.finish()
        elif self._run is not None and (_WANTED.match(text) or _ERROR.search(text)):
            self._run.take(line.number, text)

    def finish(self) -> Iterator[ForeignRun]:
        """The file is over, or the next run begins."""
        run, self._run = self._run, None
        if run is not None:
            yield run.run()


class _Found(RunNotes):
    def __init__(self, line: int, title: re.Match[str]) -> None:
        super().__init__()
        self._line = line
        self._library, self._name, self._version = title[1], title[2], title[3]
        self._program = _program_of(title[1], title[2])
        self._columns: list[str] | None = None
        self._dtype: str | None = None
        self._element = 0
        self._pairs: int | None = None
        self._rows: list[ForeignRow] = []
        self._widths: set[int] = set()  # of all rows above: columns end at the same place
        self._short_line = 0  # the latest row's, where it is shorter than those: a count in it may have lost digits

    @property
    def has_rows(self) -> bool:
        """Was a row read?"""
        return bool(self._rows)

    def take(self, line: int, text: str) -> None:
        """One line below the title."""
        if text[:1].isdigit():
            words = text.split()
            if self._columns is not None and _LEADING.fullmatch(words[0]):
                self._take_row(line, text, words, self._columns)
        elif _HEADER.match(text) and (names := _osu_table.columns(text)) is not None:
            self._begin_table(line, text, names)
        elif found := _TYPE.match(text):
            self._dtype, self._element = _DTYPES.get(found[1], (None, 0))
        elif found := _PAIRS.match(text):
            self._pairs = int(found[1])
        elif _LEFT_OUT.match(text):
            self.lose(line, "lines were left out here")
        elif _ERROR.search(text):
            self.fail(line, text[:200])

    def _begin_table(self, line: int, text: str, names: list[str]) -> None:
        self._columns = names
        if self._program is None or not {"mean_s", "bytes_per_s"} & set(names):
            self.lose(line, f"this table is not one that is read: {text[:80]}")
            self._columns = None

    def run(self) -> ForeignRun:
        """What was found."""
        self._check_last()
        self._check_end()
        if not self._rows and not self.cuts:
            self.lose(self._line, f"{self._name} has no row")
        program = self._program
        return ForeignRun(
            "osu",
            self._version,
            pattern=program.pattern if program else None,
            num_ranks=self._num_ranks(),
            status=self.status(),
            failure=self.failure(),
            rows=tuple(self._rows),
            remarks=tuple(self.remarks),
            translations=tuple(self._translations()),
            settings=(("library", self._library), ("mode", program.mode if program else "unknown")),
            line=self._line,
            size_is_block=bool(program and program.block),
        )

    def _take_row(self, line: int, text: str, words: list[str], names: list[str]) -> None:
        values = _osu_table.numbers(words, names)
        if values is None:
            if len(words) == 1 or re.match(r"-?[0-9.]|-?nan|-?inf", words[1]):
                self.lose(line, f"this row can not be read: {text[:80]}")
            return
        if values.get("valid") == 0:
            self.fail(line, "the program found wrong data: Fail", f"wrong data at size {words[0]}")
        if values.get("mean_s", 1) <= 0 or values.get("bytes_per_s", 1) < 0:
            self.fail(line, f"no time at all: {text[:80]}", f"size {words[0]} has no time")
        elif len(self._rows) < 1_000_000:
            self._rows.append(self._row(values, line))
            self._measure(text, line)

    def _measure(self, text: str, line: int) -> None:
        aligned = len(self._rows) > 2 and len(self._widths) == 1
        other = len(self._rows) > 1 and self._rows[-1].num_iterations != self._rows[-2].num_iterations
        self._short_line = line if aligned and other and len(text) < min(self._widths) else 0
        self._widths = {len(text)} if len(self._rows) == 1 else {*list(self._widths)[:2], len(text)}

    def _check_end(self) -> None:
        """Nothing marks the end of a table: one that ends early may be a hang, a cut, or what was asked for."""
        if not self._rows or self._program is None or self.failures or self.cuts:
            return
        if self._library.partition("-")[0] in _ONE_SIZE:
            return
        two = self._program.pattern in ("pingpong", "pairs", None)
        largest = _LARGEST_OF_TWO if two else _LARGEST_OF_MANY
        last = self._rows[-1]
        if (last.payload_bytes or 0) < largest:
            said = f"the table ends at {last.payload_bytes} bytes, where the program by itself goes on to {largest}"
            self.say(last.line, f"{said}: it hung, was cut, or was asked for no more (-m, -M)")

    def _check_last(self) -> None:
        if self._short_line:
            self._rows[-1] = replace(self._rows[-1], num_iterations=None)
            self.lose(self._short_line, "this row is cut: how many iterations it had is lost")

    def _row(self, values: dict[str, float], line: int) -> ForeignRow:
        size = int(values[_osu_table.SIZE])
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
        """How many streams the printed bandwidth adds up."""
        if self._name.startswith("Bi-"):
            return 2
        return self._pairs or 1 if self._program is not None and self._program.pattern == "pairs" else 1

    def _num_ranks(self) -> int | None:
        if self._program is None:
            return None
        if self._program.pattern == "pairs":
            return None if self._pairs is None else 2 * self._pairs
        return 2 if self._program.pattern in ("pingpong", None) else None

    def _translations(self) -> Iterator[str]:
        if self._program is None:
            return
        if self._program.block:
            yield "sizes are one rank's block m: S = n * m needs the number of ranks, which is not printed"
        if self._program.pattern is None:
            yield "the time of a one-sided call is until it is complete at the other end; it is not halved"
        elif self._program.pattern not in ("pingpong", "pairs"):
            yield "time is the mean over ranks of each rank's mean; min_s and max_s are the least and largest of those"
        if self._program.mode == "pipelined":
            yield "time is that of one message of a window: its size by the bandwidth"
        if self._name.startswith("Bi-"):
            yield "the bandwidth printed adds both directions: half of it is one direction"
        if self._program.pattern == "pairs" and self._program.mode == "isolated":
            yield "time is the mean over all pairs; how many there were is not printed"
        elif self._program.pattern == "pairs":
            yield f"the bandwidth printed adds {self._pairs or 'all'} pairs: divided, a row is one pair"
