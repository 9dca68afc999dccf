"""Read TransferBench (ROCm), which prints a rate for each of several concurrent copies, and a sum for each executor.

According to the program's source, GB/s are 1e9 bytes per second. A transfer may have several sources and targets. All
transfers of a test run at the same time. The rate of a transfer is therefore not the rate of a single link. The reader
does not support the matrices that the presets p2p and a2a print.
"""

from __future__ import annotations

import re

from bench.core.codes import Code, Coded
from bench.core.log_traits import LogTraits
from bench.logs.messages import LogCode
from bench.logs.readers._figures_run import LONGEST_LINE, FiguresReader, FiguresRun, number
from bench.logs.readers._run_notes import shown

_BEGIN = re.compile(r"TransferBench v(\S{1,20})")
_TEST = re.compile(r"Test (\d{1,7}):$")
_BAR = r"\s*[|│,]\s*"
_TIMED = rf"{_BAR}([0-9.]{{1,20}}) GB/s{_BAR}([0-9.]{{1,20}}) ms{_BAR}(\d{{1,18}}) bytes(?:{_BAR}(.*))?$"
_EXECUTOR = re.compile(rf"Executor:\s+(\w{{2,6}}) (\d{{1,4}}){_TIMED}")
_TRANSFER = re.compile(rf"Transfer (\d{{1,5}}){_TIMED}")
_AGGREGATE = re.compile(rf"Aggregate \(CPU\){_TIMED}")
_LIKE_ROW = re.compile(r"(?:Executor:\s+\w+ \d+|Transfer \d+|Aggregate \(CPU\))\s*[|│,]")
_PATH = re.compile(r" -> \S.* -> (?:\S*\d|N)$")
_ERROR = re.compile(r"\[ERROR\] ?(.{1,300})")
_PRESET = re.compile(r"(?:Uni|Bi)directional copy peak bandwidth GB/s \[|SRC(?:\+EXE)?[\\/]DST\s|Averages \(During ")


class TransferBenchCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    NO_BOUND = (
        "no-bound-transfer-bench",
        "transfers of a test run at the same time and may share links, and the machine is not printed",
    )
    PRESET = "preset", "the matrices of presets such as p2p and a2a are not read; run the copies as a test of its own"


class TransferBenchRun(FiguresRun):
    """One start of the program. The output of a start has several tests.

    Each test has executors, the executors' transfers, and a sum.
    """

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self._test = ""
        self._preset = False

    def ended_by(self, text: str) -> bool:
        """Check whether the line is the first line that the next start of the program prints."""
        return _BEGIN.match(text) is not None and bool(self.has_results or "tool_version" in self.facts)

    def take(self, line: int, text: str) -> None:
        """Read one line of the run."""
        if found := _BEGIN.match(text):
            self.facts["tool_version"] = found[1]
        elif found := _TEST.match(text):
            self._test = f"test {found[1]}"
        elif found := _EXECUTOR.match(text):
            self._keep(line, f"executor {found[1]} {int(found[2])}", found.groups()[2:])
        elif found := _TRANSFER.match(text):
            path = " ".join((found[5] or "").split())
            if _PATH.search(path):
                self._keep(line, f"transfer {int(found[1])} ({path})", found.groups()[1:])
            else:
                self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 100))
        elif found := _AGGREGATE.match(text):
            self._keep(line, "aggregate by the host's clock", found.groups())
        elif _LIKE_ROW.match(text):
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 100))
        else:
            self._take_other(line, text)

    def _take_other(self, line: int, text: str) -> None:
        if _PRESET.match(text):
            if not self._preset:
                self.lose(line, TransferBenchCode.PRESET)
            self._preset = True
        elif found := _ERROR.match(text):
            self.fail(line, LogCode.TOOL_ERROR, printed=shown(found[1]))
        else:
            self.note_common(line, text)

    def _keep(self, line: int, name: str, words: tuple[str | None, ...]) -> None:
        rate, milliseconds = number(words[0] or ""), number(words[1] or "")
        label = f"{name}, {words[2]} bytes"
        self.add(label, None if rate is None else rate * 1e9, "bytes_per_s", self._test, line=line)
        self.add(f"{label}, time", None if milliseconds is None else milliseconds * 1e-3, "s", self._test, line=line)


class TransferBench(FiguresReader):
    """Reads a file that may contain several starts."""

    tool = "transfer_bench"
    traits = LogTraits(without_bound=Coded.of(TransferBenchCode.NO_BOUND))
    hints = ("transferbench v", "executor: ", "aggregate (cpu)")
    new_run = TransferBenchRun

    def begins(self, text: str) -> bool:
        """Check whether the line is a line of results, or the first line that a start of the program prints."""
        text = text[:LONGEST_LINE].strip()
        return any(form.match(text) is not None for form in (_BEGIN, _EXECUTOR, _AGGREGATE))


READER = TransferBench
