"""perftest (ib_write_bw, ib_send_lat, ...): tables of bandwidths and latencies between two verbs endpoints. Read.

By its source: MB/sec is 2^20 bytes per second (newer ones print MiB/sec), Gb/sec is 1e9 bits; a bidirectional bandwidth
is the sum of both directions; a latency of send and write is half a round trip, of read and atomic a whole one. With
`-C` it prints cycles under titles that still say usec: its output alone does not tell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from bench.logs.foreign import ForeignRow, ForeignRun, Line, Reader
from bench.logs.readers._lines import FENCE
from bench.logs.readers._told import RunNotes

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


class Perftest(Reader):
    """A file may hold many runs, and both sides of one."""

    tool = "perftest"
    hints = ("bw test", "latency test", "iterations")

    def __init__(self) -> None:
        self._run: _Found | None = None

    def begins(self, text: str) -> bool:
        """The name of one of its tests, or the titles of its columns."""
        text = text.strip()
        return _TITLE.match(text) is not None or _HEADER.match(text) is not None

    def feed(self, line: Line) -> Iterator[ForeignRun]:
        """Take one line in."""
        text = line.text.strip()
        if found := _TITLE.match(text):
            if self._run is not None and self._run.waits_for(line.number, text):
                return
            yield from self.finish()
            self._run = _Found(line.number, found[1], found[2], "Bidirectional" in text, text)
        elif text.startswith(FENCE) and self._run is not None and self._run.has_rows:
            yield from self.finish()
        elif _HEADER.match(text):
            if self._run is None or (self._run.has_table and not self._run.again(text)):
                yield from self.finish()
                self._run = _Found(line.number, None, "BW" if "BW" in text else "Latency", two_way=False)
            self._run.begin_table(line.number, text)
        elif self._run is not None:
            self._run.take(line.number, text)

    def finish(self) -> Iterator[ForeignRun]:
        """The file is over, or the next run begins."""
        run, self._run = self._run, None
        if run is not None:
            yield run.run()


class _Found(RunNotes):
    def __init__(self, line: int, verb: str | None, what: str, two_way: bool, title: str = "") -> None:
        super().__init__()
        self._line, self._verb, self._what, self._two_way = line, verb, what, two_way
        self._title, self._header = title, ""
        self._over = False  # has its closing line been there?
        self._columns: list[str] = []
        self._rows: list[ForeignRow] = []
        self._settings: dict[str, str] = {}
        self._unsteady = False

    @property
    def has_table(self) -> bool:
        """Were the titles of its columns seen?"""
        return bool(self._columns)

    @property
    def has_rows(self) -> bool:
        """Was a row read?"""
        return bool(self._rows)

    def waits_for(self, line: int, title: str) -> bool:
        """Is this its own title again, before any table?"""
        if title != self._title or self._columns or self.failures:
            return False
        self.say(line, "the test's name stands there twice: both its ends print here, or one start left nothing")
        return True

    def again(self, header: str) -> bool:
        """Are these its own column titles again, before any row?"""
        return header == self._header and not self._rows and not self.failures

    def begin_table(self, line: int, text: str) -> None:
        """The titles of the columns."""
        if self._columns:
            self.say(line, "the titles stand there twice: both ends of the test print into this log")
            return
        self._header = text
        self._columns = [title.lstrip("#") for title in _COLUMN.findall(text)]
        if self._verb is None:
            self.say(line, "the test's name is not told, nor whether both directions are added up")
        if self._index("t_avg[usec]", "t_typical[usec]") is None and self._rate() is None:
            self.lose(line, f"this table is not one that is read: {text[:100]}")
            self._columns = [""]

    def take(self, line: int, text: str) -> None:
        """One line below the title."""
        if text[:1].isdigit():
            words = text.replace("*", " ").split()
            if self._columns and _COUNT.fullmatch(words[0]):
                self._take_row(line, text, words)
        elif _ERROR.match(text):
            self.fail(line, text[:200])
        elif text.startswith(_CLOCK) and not self._unsteady:
            self._unsteady = True
            self.say(line, "the CPU's frequency is not steady: perftest times by its cycles, so that times may be off")
        elif _LEFT_OUT.match(text):
            if not self._over:
                self.lose(line, "lines were left out here")
        elif text.startswith(_RULE):
            self._over = bool(self._rows)
        elif not self._columns and _BANNER.match(text):
            for name, value in _SETTING.findall(text):
                self._settings.setdefault(name.lower(), value)

    def run(self) -> ForeignRun:
        """What was found."""
        if not self._rows and not self.cuts and not self.failures:
            self.lose(self._line, "no row: it crashed, or this is the side that only waits")
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
            remarks=tuple(self.remarks),
            translations=tuple(self._translations()),
            settings=tuple(settings.items()),
            line=self._line,
        )

    def _take_row(self, line: int, text: str, words: list[str]) -> None:
        values = dict(zip(self._columns, words, strict=False))
        used = [words[index] for index in self._used() if index < len(words)]
        if not used and len(words) == len(self._columns):
            return  # of a table that is not read, as was said where it begins
        if len(words) != len(self._columns) or not all(map(_VALUE.fullmatch, used)):
            if len(words) == 1 or re.match(r"-?[0-9.]|-?nan|-?inf", words[1]):
                self.lose(line, f"this row is cut or not readable: {text[:80]}")
            return
        if not all(0 < float(word) < math.inf for word in used[:1]):
            self.fail(line, f"no time at all: {text[:80]}", f"size {words[0]} has no time, or a negative one")
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
        mean, least, largest = (
            float(values[name]) * 1e-6 if name and name in values else None
            for name in (self._columns[self._used()[0]], "t_min[usec]", "t_max[usec]")
        )
        return ForeignRow(size, time_s=mean, line=line, min_s=least, max_s=largest, num_iterations=rounds)

    def _rate(self) -> tuple[str, float] | None:
        """The column of the average bandwidth, and bytes per second in its unit."""
        for name in self._columns:
            if name.startswith("BW average[") and name[11:-1] in _RATES:
                return name, _RATES[name[11:-1]]
        return None

    def _used(self) -> list[int]:
        """The columns that become figures, the one that becomes the time first."""
        if (rate := self._rate()) is not None:
            return [self._columns.index(rate[0])]
        first = self._index("t_avg[usec]", "t_typical[usec]")
        others = [self._index(name) for name in ("t_min[usec]", "t_max[usec]")]
        return [index for index in (first, *others) if index is not None]

    def _index(self, *names: str) -> int | None:
        return next((self._columns.index(name) for name in names if name in self._columns), None)

    def _translations(self) -> Iterator[str]:
        if (rate := self._rate()) is not None:
            yield "time is that of one message of many in flight: its size by the bandwidth"
            if rate[1] == _RATES["MB/sec"]:
                yield "MB/sec is 2^20 bytes per second here"
            if self._two_way:
                yield "a bidirectional bandwidth adds both directions: half of it is one direction"
            return
        if self._verb in ("Read", "Atomic"):
            yield "the time of a read or an atomic is there and back; it is not halved"
        if "t_avg[usec]" not in self._columns:
            yield "time is the median (t_typical): no mean is printed"


READER = Perftest
