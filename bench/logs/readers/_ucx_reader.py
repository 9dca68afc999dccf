"""Read ucx_perftest (UCX): latency, bandwidth and message rate of one message size between two processes.

According to the program's source, MB/s is 2^20 bytes per second. The columns "typical" (a percentile since UCX 1.12)
and "average" describe only the last interval. The column "overall" describes the whole run. The reader keeps only the
column "overall". The latency of a ping-pong is half a round trip. In a bandwidth test, many messages are in flight, and
"overhead" is the total time divided by the number of messages. The transport (NIC, shared memory, TCP) is not printed.
"""

from __future__ import annotations

import re

from bench.core.codes import Code, Coded
from bench.core.log_traits import LogTraits
from bench.logs.foreign import ForeignRow
from bench.logs.messages import LogCode
from bench.logs.readers._figures_run import LONGEST_LINE, FiguresReader, FiguresRun, number
from bench.logs.readers._run_notes import shown

_UNITS = re.compile(r"\|?\s*\|?\s*(\w{3,12}) \(usec\)\s+\|\s+bandwidth \(MB/s\)\s+\|\s+message rate \(msg/s\)\s*\|?$")
_TITLES = re.compile(
    r"(?:\|?\s*(?:Stage|Test)\s+\|\s+)?\|?\s*# iterations \|\s*(typical|[0-9.]{1,6}%ile)\s*\|\s*average \|\s*overall \|"
)
_CSV = re.compile(
    r"(?:\S{1,200},)?iterations,(typical_lat|[0-9.]{1,6}_percentile_lat),avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr$"
)
_BANNER = re.compile(
    r"\|?\s*(API|Test|Data layout|Send memory|Recv memory|Message size|Window size|AM header size):\s+(.*?)\s*\|?$"
)
_API = re.compile(r"\|?\s*API:\s+(?:protocol|transport) layer\s*\|?$")
_ROW = re.compile(
    r"(?:\[thread \d{1,5}\]\s*)?(?:Final:\s*)?([\w/.-]{1,100}\s+)?([0-9,]{1,20})((?:\s+[0-9.,]{1,24}){7})(?:\s\s.*)?$"
)
_ROW_OF_THREADS = re.compile(r"(?:Final:\s*)?([0-9,]{1,20})\s+([0-9.]{1,20})\s+([0-9.]{1,20})\s+([0-9,.]{1,24})$")
# with `-f`: the name of a test and its only line
_NAMED = re.compile(r"[A-Za-z_][\w/.-]{0,100}\s+[0-9,]{1,20}\s+[0-9.]{1,20}\s+[0-9.]")
_BATCH = re.compile(r"\+([\w][\w/.-]{0,120})-{3,}\+-")
_RULE = re.compile(r"\+-{3,}")
_ERROR = re.compile(r".{0,300}?\bUCX {1,4}ERROR|.{0,100}?Failed to run test")
_MIB = 2.0**20


class UcxCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    NO_BOUND = (
        "no-bound-ucx",
        "the log does not state whether UCX used a NIC, shared memory or TCP: if it used NICs, name the "
        "machine with --instance",
    )
    NOT_FINAL = "not-final", "the final line is missing, because the test was stopped: the last interval is kept"
    OVERALL = "overall", "figures are those of the whole run (overall), not of its last interval; MB/s is 2^20 bytes/s"
    HALF_ROUND_TRIP = "half-round-trip", "the latency of a ping-pong is half a round trip"
    SIZE_UNKNOWN = "size-not-printed", "the message size is not printed in this form of output"


class UcxRun(FiguresRun):
    """One table.

    The table has many lines for intervals and then a final line, or one line for each test of a batch file.
    """

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self._banner: dict[str, str] = {}
        self._word = ""  # the printed word: latency or overhead
        self._csv = self._table = False
        self._test = ""  # the name of the test in a batch file
        # the last line of this test: line number, values, and whether the line is final
        self._pending: tuple[int, list[float], bool] | None = None

    @property
    def has_results(self) -> bool:
        """Whether the reader has read a line of the table."""
        return self._pending is not None or bool(self.rows or self.figures)

    def ended_by(self, text: str) -> bool:
        """Check whether the line is the banner or the table of the next run."""
        if _API.match(text):
            return bool(self._banner or self._table)
        return self._table and (self.has_results or _CSV.match(text) is not None) and _TITLES.match(text) is None

    def take(self, line: int, text: str) -> None:
        """Read a line of the banner or of the table."""
        if found := _BANNER.match(text):
            self._banner[found[1]] = found[2].strip()
        elif found := _UNITS.match(text):
            self._word, self._table = found[1], True
        elif found := _TITLES.match(text):
            self._table = True
            self.settings["percentile"] = found[1]
        elif found := _CSV.match(text):
            self._table = self._csv = True
            self.settings["percentile"] = found[1].removesuffix("_percentile_lat").removesuffix("_lat")
        elif (found := _BATCH.match(text)) and self._table:
            self._end_test()
            self._test = found[1]
        elif self._csv and "," in text and re.match(r"[\w/.-]*,?[0-9]", text):
            self._take_csv(line, text)
        elif self._table and (text[0].isdigit() or text.startswith(("[thread", "Final:")) or _NAMED.match(text)):
            self._take_row(line, text)
        elif _ERROR.match(text):
            self.fail(line, LogCode.TOOL_ERROR, printed=shown(text, 200))
        elif not _RULE.match(text):
            self.note_common(line, text)

    def _take_csv(self, line: int, text: str) -> None:
        words = text.split(",")
        names = [word for word in words[:-8] if word]
        values = [number(word) for word in words[-8:]]
        if len(words) < 8 or any(value is None for value in values):
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 100))
            return
        if names and "/".join(names) != self._test:
            self._end_test()
            self._test = "/".join(names)
        self._keep(line, [value or 0.0 for value in values], final=True)

    def _take_row(self, line: int, text: str) -> None:
        if found := _ROW_OF_THREADS.match(text):
            values = [number(word) for word in found.groups()]
            if None not in values:
                count, latency, rate, messages = (value or 0.0 for value in values)
                self._keep(line, [count, latency, latency, latency, rate, rate, messages, messages], final=True)
                return
        found = _ROW.match(text)
        values = [number(found[2]), *map(number, found[3].split())] if found else []
        if found is None or None in values or "." not in found[3].split()[4]:
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 100))
            return
        if found[1]:
            self._end_test()
            self._test = found[1].strip()
        self._keep(line, [value or 0.0 for value in values], final=not text.startswith("[thread"))

    def _keep(self, line: int, values: list[float], final: bool) -> None:
        self._pending = (line, values, final)

    def _end_test(self) -> None:
        if self._pending is None:
            return
        (line, values, final), self._pending = self._pending, None
        if not final:
            self.lose(line, UcxCode.NOT_FINAL)
        count, _, _, seconds, _, rate, _, messages = values
        self.translate(UcxCode.OVERALL)
        what = self._banner.get("Test", self._test)
        if self._word == "latency" and what.endswith("latency") and "get" not in what:
            self.translate(UcxCode.HALF_ROUND_TRIP)
        word, size = self._word or "latency", self._size()
        if size is None:
            self.add(word, seconds * 1e-6, "s", self._test, line=line)
            if rate > 0:
                self.add("bandwidth", rate * _MIB, "bytes_per_s", self._test, line=line)
        else:
            bandwidth = rate * _MIB if rate > 0 else None
            self.add_row(
                ForeignRow(
                    size,
                    time_s=seconds * 1e-6 if seconds > 0 else None,
                    algbw_bytes_per_s=bandwidth,
                    busbw_bytes_per_s=bandwidth,
                    line=line,
                    num_iterations=int(count),
                )
            )
        self.add("message rate", messages, "per_s", self._test, line=line)

    def _size(self) -> int | None:
        printed = self._banner.get("Message size", "")
        return int(printed) if re.fullmatch(r"\d{1,15}", printed) and not self._test else None

    def close(self) -> None:
        """Add the result of the last test, and the facts from the banner."""
        self._end_test()
        if self.figures and not self.rows:
            self.remark(None, UcxCode.SIZE_UNKNOWN)
        test = self._banner.get("Test", "")
        pingpong = self._word == "overhead" or test.endswith("latency")
        self.facts["pattern"] = "pingpong" if self.rows and pingpong and "atomic" not in test else None
        self.facts["num_ranks"] = 2
        self.settings["mode"] = "isolated" if self._word == "latency" else "pipelined"
        for name in ("Test", "API", "Data layout", "Send memory", "Recv memory", "Window size"):
            if value := self._banner.get(name):
                self.settings[name.lower().replace(" ", "_")] = value
        memory = {self._banner.get("Send memory", "host"), self._banner.get("Recv memory", "host")} - {"host"}
        self.settings["library"] = "UCX" + "".join(f", {name}" for name in sorted(memory))


class UcxPerftest(FiguresReader):
    """Reads a file that may contain several runs.

    A log may contain a run twice, as the output of the client and as the output of the server.
    """

    tool = "ucx_perftest"
    traits = LogTraits(host_memory=True, without_bound=Coded.of(UcxCode.NO_BOUND))
    hints = ("protocol layer", "transport layer", "message rate (msg/s)", "# iterations", "overall_lat")
    new_run = UcxRun

    def begins(self, text: str) -> bool:
        """Check whether the line begins the banner, or has the column titles of the table or of the CSV output."""
        text = text[:LONGEST_LINE].strip()
        return any(form.match(text) is not None for form in (_API, _UNITS, _TITLES, _CSV))
