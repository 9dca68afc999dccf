"""Read GPCNeT (network_test and network_load_test): latencies and bandwidths of patterns, alone and under congestion.

According to the program's source, bandwidths are in MiB (2^20 bytes) per second, for each rank. For 99 % of the
samples, the result is at least as good as the value in the column "99%". A congestion impact factor is the ratio of an
isolated test to the same test under congestion.
"""

from __future__ import annotations

import re

from bench.core.codes import Code, Coded
from bench.core.log_traits import LogTraits
from bench.logs.messages import LogCode
from bench.logs.readers._figures_run import LONGEST_LINE, FiguresReader, FiguresRun, number
from bench.logs.readers._run_notes import shown

_BEGIN = re.compile(r"Network(?:Load)? Tests v([0-9][\w.]*)$")
_RANKS = re.compile(r"Test with (\d{1,9}) MPI ranks \((\d{1,9}) nodes\)$")
_TITLE = re.compile(
    r"(Isolated Network Tests|Isolated Congestion Tests|Network Tests running with Congestion Tests[^|]{0,80}?)\s*\|?$"
)
_NODES = re.compile(r"(\d{1,9}) nodes running (Network|Congestion) Tests")
_ERROR = re.compile(r"ERROR: (?:this application must be run on at least|.*network_)")
_COLUMNS = ("Min", "Max", "Avg", "Avg(Worst)", "99%", "99.9%")
_FACTOR = re.compile(r"([0-9.]{1,20})X$")
_UNITS = {"usec": ("s", 1e-6), "MiB/s/rank": ("bytes_per_s", 2.0**20), "MiB/s": ("bytes_per_s", 2.0**20)}


_FACTORS = "Congestion Impact Factor"


class GpcnetCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    NO_BOUND = (
        "no-bound-gpcnet",
        "its figures are averages over ranks that take turns in random pairs, so no single link bounds them",
    )
    UNIT_UNKNOWN = "unit-unknown", "the unit of this line is unknown, so its figures are left out: {printed}"
    PER_RANK = "per-rank", "bandwidths are per rank; MiB is 2^20 bytes"


class GpcnetRun(FiguresRun):
    """One run: several tables, with one line for each test."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self._title = ""
        self._columns: list[str] = []

    def ended_by(self, text: str) -> bool:
        """Check whether the line is the first line of the next run."""
        return _BEGIN.match(text) is not None and bool(self.has_results or "tool_version" in self.facts)

    def take(self, line: int, text: str) -> None:
        """Read a line of the banner, a title, or a line of a table."""
        bare = text.strip("| ")
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        if found := _BEGIN.match(text):
            self.facts["tool_version"] = found[1]
        elif found := _RANKS.match(text):
            self.facts |= {"num_ranks": int(found[1]), "num_nodes": int(found[2])}
        elif found := _NODES.match(text):
            self.settings[f"nodes_of_{found[2].lower()}_tests"] = found[1]
        elif bare.endswith("- Key Results"):
            self._title, self._columns = _FACTORS, []
        elif len(cells) == 1 and (found := _TITLE.match(bare)):
            self._title, self._columns = " ".join(found[1].split()), []
        elif {"Avg", "99%"} <= set(cells):
            self._columns = [cell for cell in cells if cell not in ("Name", "")]
        elif len(cells) > 1 and self._columns:
            self._take_row(line, text, cells)
        elif _ERROR.match(text):
            self.fail(line, LogCode.TOOL_ERROR, printed=shown(text))
        else:
            self.note_common(line, text)

    def _take_row(self, line: int, text: str, cells: list[str]) -> None:
        name, printed = cells[0], cells[1:]
        if len(printed) != len(self._columns):
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 100))
            return
        values: list[tuple[str, float | None]] = []
        unit, scale = "ratio", 1.0
        if self._columns[-1] == "Units":
            if printed[-1] not in _UNITS:
                self.lose(line, GpcnetCode.UNIT_UNKNOWN, printed=shown(text, 100))
                return
            unit, scale = _UNITS[printed[-1]]
            values = [(column, number(word)) for column, word in zip(self._columns[:-1], printed[:-1], strict=True)]
        else:
            factors = [_FACTOR.match(word) for word in printed]
            values = [
                (column, number(found[1]) if found else None)
                for column, found in zip(self._columns, factors, strict=True)
            ]
        if any(value is None for _, value in values):
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 100))
            return
        if unit == "bytes_per_s":
            self.translate(GpcnetCode.PER_RANK)
        for column, value in values:
            if value is not None and column in _COLUMNS:
                self.add(f"{name}, {column}", value * scale, unit, self._title, line=line)


class Gpcnet(FiguresReader):
    """Reads a file that may contain several runs."""

    tool = "gpcnet"
    traits = LogTraits(host_memory=True, without_bound=Coded.of(GpcnetCode.NO_BOUND))
    hints = (" tests v", "network tests", "congestion tests")
    new_run = GpcnetRun

    def begins(self, text: str) -> bool:
        """Check whether the line is the first line of a run, or the title of a table."""
        text = text[:LONGEST_LINE].strip()
        return _BEGIN.match(text) is not None or _TITLE.match(text.strip("| ")) is not None


READER = Gpcnet
