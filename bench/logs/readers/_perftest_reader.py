"""Read perftest (ib_write_bw, ib_send_lat, ...): tables of bandwidths and latencies between two verbs endpoints.

According to the program's source, MB/sec is 2^20 bytes per second (newer versions print MiB/sec), and Gb/sec is 1e9
bits per second. A bidirectional bandwidth is the sum of both directions. The latency of send and write operations is
half a round trip. The latency of read and atomic operations is a whole round trip. With `-C`, perftest prints cycles
instead of microseconds. With this option, the column titles still say usec, so the output does not show that the values
are cycles.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from types import MappingProxyType

from bench.core.codes import Code, Coded
from bench.core.log_traits import LogTraits
from bench.logs.foreign import ForeignRow, ForeignRun, Line, Reader
from bench.logs.messages import LogCode
from bench.logs.readers._lines import FENCE
from bench.logs.readers._run_notes import RunNotes, shown

_TITLE = re.compile(
    r"(?:RDMA_)?(Send|Write|Read|Atomic)(?:_imm)?(?: FETCH_AND_ADD| CMP_AND_SWAP)?(?: (?:Bidirectional|Post List|UD))*"
    r" (BW|Latency) Test$"
)
_HEADER = re.compile(r"#?bytes\s+(?:#?sl\s+)?#?iterations\s+(?:BW |t_)")
_COLUMN = re.compile(r"(?:BW|MsgRate)(?: \w+)?\[[^\]\s]+\]|[0-9.]+% percentile\[\w+\]|tps average|CPU_Util\[%+\]|\S+")
_RATES = {"MB/sec": 2.0**20, "MiB/sec": 2.0**20, "Gb/sec": 1e9 / 8}
_VALUE = re.compile(r"-?[0-9]{1,15}\.[0-9]{2,6}|-?nan|-?inf")
_COUNT = re.compile(r"[0-9]{1,15}")
_SETTING = re.compile(r"\b(Device|Number of qps|Connection type|Link type|Mtu|TX depth|GID index)\s*:\s*(\S{1,80})")
_BANNER = re.compile(r"Dual-port|Number of|Connection|Mtu|Link type|TX depth|GID index")
_ERROR = re.compile(r"Completion with error|Failed status|Couldn't |Unable to |Failed to |Got bad completion|ERRNO:")
_CLOCK = "Conflicting CPU frequency values detected"
_LEFT_OUT = re.compile(r"\[?(?:\.{3,}|…)\]?$")
_RULE = "--------"


class PerftestCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    TEST_UNKNOWN = "test-unknown", "the test's name is missing, so a bidirectional bandwidth is not recognised"
    UNSTEADY_CLOCK = (
        "unsteady-clock",
        "the CPU's frequency is not steady; perftest counts its cycles, so times may be off",
    )

    MB_IS_MIB = "mb-is-mib", "MB/sec is 2^20 bytes per second here"
    TIME_BY_RATE = "time-by-rate", "time is that of one of many messages in flight: size / bandwidth"
    BOTH_DIRECTIONS = "both-directions", "a bidirectional bandwidth adds both directions: half of it is one direction"
    THERE_AND_BACK = "there-and-back", "the time of a read or an atomic is a round trip; it is not halved"
    MEDIAN = "median", "time is the median (t_typical): no mean is printed"


class Perftest(Reader):
    """Reads a file that may contain many runs.

    A log with the output of both the client and the server contains the same run twice.
    """

    tool = "perftest"
    traits = LogTraits(host_memory=True, nic_test=True)
    other_tools = MappingProxyType({"perftest_read": traits})
    hints = ("bw test", "latency test", "iterations")

    def __init__(self) -> None:
        self._run: _OpenRun | None = None

    def begins(self, text: str) -> bool:
        """Check whether the line is the name of a test, or the titles of its columns."""
        text = text.strip()
        return _TITLE.match(text) is not None or _HEADER.match(text) is not None

    def feed(self, line: Line) -> Iterator[ForeignRun]:
        """Read one line. Yield a run that ends before this line."""
        text = line.text.strip()
        if found := _TITLE.match(text):
            if self._run is not None and self._run.repeats_name(line.number, text):
                return
            yield from self.finish()
            self._run = _OpenRun(line.number, found[1], found[2], "Bidirectional" in text, text)
        elif text.startswith(FENCE) and self._run is not None and self._run.has_rows:
            yield from self.finish()
        elif _HEADER.match(text):
            if self._run is None or (self._run.has_table and not self._run.repeats_columns(text)):
                yield from self.finish()
                self._run = _OpenRun(line.number, None, "BW" if "BW" in text else "Latency", two_way=False)
            self._run.begin_table(line.number, text)
        elif self._run is not None:
            self._run.take(line.number, text)

    def finish(self) -> Iterator[ForeignRun]:
        """Close the run, because the file has ended or the next run begins."""
        run, self._run = self._run, None
        if run is not None:
            yield run.run()


class _OpenRun(RunNotes):
    """A run whose lines are still being read."""

    def __init__(self, line: int, verb: str | None, what: str, two_way: bool, title: str = "") -> None:
        super().__init__()
        self._line, self._verb, self._what, self._two_way = line, verb, what, two_way
        self._title, self._header = title, ""
        self._over = False  # whether its closing line was read
        self._columns: list[str] = []
        self._rows: list[ForeignRow] = []
        self._settings: dict[str, str] = {}
        self._unsteady = False

    @property
    def has_table(self) -> bool:
        """Whether the titles of the test's columns were read."""
        return bool(self._columns)

    @property
    def has_rows(self) -> bool:
        """Whether a row was read."""
        return bool(self._rows)

    def repeats_name(self, line: int, title: str) -> bool:
        """Check whether a line before the first table repeats the name of this test."""
        if title != self._title or self._columns or self.failures:
            return False
        self.remark(line, LogCode.TITLE_TWICE, what="test's name")
        return True

    def repeats_columns(self, header: str) -> bool:
        """Check whether the line repeats the column titles of this test before any row."""
        return header == self._header and not self._rows and not self.failures

    def begin_table(self, line: int, text: str) -> None:
        """Read the titles of the columns."""
        if self._columns:
            self.remark(line, LogCode.TITLE_TWICE, what="line of column titles")
            return
        self._header = text
        self._columns = [title.lstrip("#") for title in _COLUMN.findall(text)]
        if self._verb is None:
            self.remark(line, PerftestCode.TEST_UNKNOWN)
        if self._index("t_avg[usec]", "t_typical[usec]") is None and self._rate() is None:
            self.lose(line, LogCode.TABLE_UNKNOWN, printed=shown(text, 100))
            self._columns = [""]

    def take(self, line: int, text: str) -> None:
        """Read one line below the title."""
        if text[:1].isdigit():
            words = text.replace("*", " ").split()
            if self._columns and _COUNT.fullmatch(words[0]):
                self._take_row(line, text, words)
        elif _ERROR.match(text):
            self.fail(line, LogCode.TOOL_ERROR, printed=shown(text, 200))
        elif text.startswith(_CLOCK) and not self._unsteady:
            self._unsteady = True
            self.remark(line, PerftestCode.UNSTEADY_CLOCK)
        elif _LEFT_OUT.match(text):
            if not self._over:
                self.lose(line, LogCode.LINES_LEFT_OUT)
        elif text.startswith(_RULE):
            self._over = bool(self._rows)
        elif not self._columns and _BANNER.match(text):
            for name, value in _SETTING.findall(text):
                self._settings.setdefault(name.lower(), value)

    def run(self) -> ForeignRun:
        """Return the run with all data that were read."""
        if not self._rows and not self.cuts and not self.failures:
            self.lose(self._line, LogCode.NO_ROWS)
        mode = "pipelined" if self._what == "BW" else "isolated"
        half = self._verb in ("Send", "Write", None)
        settings = {"operation": (self._verb or "unknown").lower(), "mode": mode} | self._settings
        return ForeignRun(
            "perftest",
            pattern="pingpong" if half or self._what == "BW" else None,
            num_ranks=2,
            status=self.status(),
            failure=self.failure(),
            rows=tuple(self._rows),
            remarks=self.all_remarks(),
            translations=tuple(self._translations()),
            settings=tuple(settings.items()),
            line=self._line,
        )

    def _take_row(self, line: int, text: str, words: list[str]) -> None:
        values = dict(zip(self._columns, words, strict=False))
        used = [words[index] for index in self._used() if index < len(words)]
        if not used and len(words) == len(self._columns):
            return  # a row of a table that is not read; a remark says so
        if len(words) != len(self._columns) or not all(map(_VALUE.fullmatch, used)):
            if len(words) == 1 or re.match(r"-?[0-9.]|-?nan|-?inf", words[1]):
                self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 80))
            return
        if not all(0 < float(word) < math.inf for word in used[:1]):
            self.fail(line, LogCode.NO_TIME, size=int(words[0]))
        elif len(self._rows) < 1_000_000:
            self._rows.append(self._row(int(words[0]), values, line))

    def _row(self, size: int, values: dict[str, str], line: int) -> ForeignRow:
        count = values.get("iterations", "")
        rounds = int(count) if _COUNT.fullmatch(count) else None
        if (rate := self._rate()) is not None:
            name, factor = rate
            speed = float(values[name]) * factor / (2 if self._two_way else 1)
            return ForeignRow(
                size,
                time_s=size / speed,
                algbw_bytes_per_s=speed,
                busbw_bytes_per_s=speed,
                line=line,
                num_iterations=rounds,
            )
        first = self._columns[self._used()[0]]
        mean, least, largest, middle = (
            float(values[name]) * 1e-6 if name in values and _VALUE.fullmatch(values[name]) else None
            for name in (first, "t_min[usec]", "t_max[usec]", "t_typical[usec]")
        )
        return ForeignRow(
            size, time_s=mean, line=line, min_s=least, max_s=largest, num_iterations=rounds, median_s=middle
        )

    def _rate(self) -> tuple[str, float] | None:
        """Return the column of the average bandwidth, and its unit in bytes per second.

        Return None if there is no such column.
        """
        for name in self._columns:
            if name.startswith("BW average[") and name[11:-1] in _RATES:
                return name, _RATES[name[11:-1]]
        return None

    def _used(self) -> list[int]:
        """Return the columns whose values the reader uses. The column with the time or rate comes first."""
        if (rate := self._rate()) is not None:
            return [self._columns.index(rate[0])]
        first = self._index("t_avg[usec]", "t_typical[usec]")
        others = [self._index(name) for name in ("t_min[usec]", "t_max[usec]")]
        return [index for index in (first, *others) if index is not None]

    def _index(self, *names: str) -> int | None:
        return next((self._columns.index(name) for name in names if name in self._columns), None)

    def _translations(self) -> Iterator[Coded]:
        if (rate := self._rate()) is not None:
            yield Coded.of(PerftestCode.TIME_BY_RATE)
            if rate[1] == _RATES["MB/sec"]:
                yield Coded.of(PerftestCode.MB_IS_MIB)
            if self._two_way:
                yield Coded.of(PerftestCode.BOTH_DIRECTIONS)
            return
        if self._verb in ("Read", "Atomic"):
            yield Coded.of(PerftestCode.THERE_AND_BACK)
        if "t_avg[usec]" not in self._columns:
            yield Coded.of(PerftestCode.MEDIAN)
