"""Read the output of all_reduce_bench.py (stas00/ml-engineering), all versions: Markdown tables of busbw and algbw.

According to the program's source, 1 GBps is 1e9 bytes per second, and payloads are in KiB, MiB or GiB. In the versions
of January 2025, KB, MB and GB are powers of two, and 1 GBps is 2^30 bytes per second. The version of 2024 measured only
one payload. Elements are float32. A printed rate is the mean of the rates of all trials and ranks. A table that was
pasted into a file may lack its title.
"""

from __future__ import annotations

import re

from bench.core.codes import Code
from bench.core.log_traits import LogTraits
from bench.logs.foreign import ForeignRow
from bench.logs.messages import LogCode
from bench.logs.readers._figures_run import LONGEST_LINE, FiguresReader, FiguresRun, number
from bench.logs.readers._run_notes import shown

_TITLE = re.compile(
    r"The average bandwidth(?: and the per-call latency)? of (\w{3,30}) over (\d{1,7}) ranks \((.{1,200})\):$"
)
_PROFILE = re.compile(r"The ([0-9.]{1,12})GiB payload bandwidth of (\w{3,30}) over (\d{1,7}) ranks \((.{1,200})\):$")
_SINGLE = re.compile(
    r"The average bandwidth of all_reduce with a ([0-9.]{1,20})GB payload \((\d+) trials, (\d{1,7}) ranks\):$"
)
_SINGLE_RATE = re.compile(r"(algbw|busbw): ([0-9.]{1,20}) GBps \(([0-9.]{1,20}) Gbps\)$")
_COLUMNS = re.compile(r"\|?\s*payload\s*\|\s*busbw\s*\|\s*algbw\s*\|")
_PROFILE_COLUMNS = re.compile(r"\|?\s*busbw\s*\|\s*algbw\s*\|?$")
_RULE = re.compile(r"[|\s:-]+$")
_ROW = re.compile(r"\|?\s*(\d{1,6})([KMGTP]?)(i?B)\s*\|\s*([0-9.]{1,20})GBps\s*\|\s*([0-9.]{1,20})GBps\s*(?:\|(.*))?$")
_LATENCY_ROW = re.compile(r"\|?\s*(\d{1,6})([KMGTP]?)(i?B)\s*\|\s*\|\s*\|(.*)$")
_PROFILE_ROW = re.compile(r"\|?\s*([0-9.]{1,20})GBps\s*\|\s*([0-9.]{1,20})GBps\s*\|?$")
_MICROSECONDS = re.compile(r"([0-9.,]{1,20})\s?us$")
_DEVICE = re.compile(r"(?:- hardware: |Device info: ).*?\bname='([^']{1,120})'")
_SOFTWARE = re.compile(r"- software: torch=(\S+), cuda=(\S+), nccl=\(?([0-9., ]+)\)?$")
_PATTERNS = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_to_all": "alltoall",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
_REDUCTIONS = ("allreduce", "reducescatter", "reduce")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_POWERS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}


class AllReduceBenchCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    GIB_OF_OLD = "gib-of-old", "GBps is 2^30 bytes per second here (versions of January 2025, payloads in KB, MB, GB)"
    WITHOUT_TITLE = (
        "without-title",
        "the title is missing, so the operation follows from the program's name: all_reduce",
    )
    TRIALS = "trials-of-one-payload", "{num} trials of one payload; each trial is a row"
    MEDIAN_TIME = "mean-of-calls", "time is the printed mean of single calls; rates are those of queued calls"


class AllReduceBenchRun(FiguresRun):
    """A table whose lines are still being read."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self._titled = False
        self._table: tuple[str, ...] = ()
        self._profile: int | None = None  # the payload of a profile in bytes
        self._single: tuple[int, dict[str, float]] | None = None
        self.facts["pattern"] = "allreduce"

    def ended_by(self, text: str) -> bool:
        """Check whether the line begins the next table.

        A title begins a new table if the current table already has rows or a title. A line of column titles begins a
        new table if the current table already has rows.
        """
        if _COLUMNS.match(text):
            return self.has_results
        return self.has_results or self._titled or self._single is not None

    def take(self, line: int, text: str) -> None:
        """Read a title, the titles of the columns, or a row."""
        if (found := _TITLE.match(text)) or (found := _PROFILE.match(text)):
            name, ranks = found.groups()[-3:-1]
            self._titled = True
            self.facts |= {"pattern": _PATTERNS.get(name), "num_ranks": int(ranks)}
            self.settings["trials"] = found.groups()[-1]
            if found.re is _PROFILE:
                self._profile = int((number(found[1]) or 0.0) * 2**30)
        elif found := _SINGLE.match(text):
            self._titled = True
            self.facts["num_ranks"] = int(found[3])
            self._single = (round((number(found[1]) or 0.0) * 1e9), {})
        elif (found := _SINGLE_RATE.match(text)) and self._single is not None:
            self._take_single(line, found)
        elif _COLUMNS.match(text):
            self._table = tuple(cell.strip() for cell in text.strip("|").split("|"))
        elif _PROFILE_COLUMNS.match(text):
            self._table = ("busbw", "algbw")
        elif self._table and not _RULE.match(text):
            self._take_row(line, text)
        elif found := _DEVICE.search(text[:2000]):
            self.gpus[found[1]] = None
        elif found := _SOFTWARE.match(text):
            self.settings |= {
                "torch_version": found[1],
                "cuda": found[2],
                "nccl": ".".join(found[3].replace(",", " ").split()),
            }
        else:
            self.note_common(line, text)

    def _take_single(self, line: int, found: re.Match[str]) -> None:
        size, rates = self._single or (0, {})
        rates[found[1]] = (number(found[2]) or 0.0) * 1e9
        if len(rates) == 2 and min(rates.values()) > 0:
            self._add(line, size, rates["busbw"], rates["algbw"])
            self._single = None

    def _take_row(self, line: int, text: str) -> None:
        if len(self._table) == 2 and self._profile is not None and (found := _PROFILE_ROW.match(text)):
            self._take_rates(line, text, self._profile, found[1], found[2], 1e9, None)
        elif found := _ROW.match(text):
            size = int(found[1]) << _POWERS[found[2]]
            old = found[3] == "B" and found[2] != ""
            if old:
                self.translate(AllReduceBenchCode.GIB_OF_OLD)
            seconds = self._mean(found[6])
            if seconds is None and "mean" in self._table:
                self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 80))
            else:
                self._take_rates(line, text, size, found[4], found[5], 2.0**30 if old else 1e9, seconds)
        elif found := _LATENCY_ROW.match(text):
            seconds = self._mean(found[4])
            if seconds is not None:
                self.add_row(self._row(line, int(found[1]) << _POWERS[found[2]], None, None, seconds))
            else:
                self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 80))
        elif "GBps" in text or text.startswith("|") or re.match(r"\d+[KMGT]?i?B\b", text):
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 80))
        else:
            self._table = ()
            self.note_common(line, text)

    def _mean(self, rest: str | None) -> float | None:
        """Return the value in the column `mean`, in seconds, or None if the table or the row has no mean."""
        names = self._table[3:]
        cells = [cell.strip() for cell in (rest or "").strip().strip("|").split("|")]
        if "mean" not in names or len(cells) < len(names) - (names[-1:] == ("",)):
            return None
        found = _MICROSECONDS.match(cells[names.index("mean")])
        value = number(found[1]) if found else None
        if value is None:
            return None
        self.translate(AllReduceBenchCode.MEDIAN_TIME)
        return value * 1e-6

    def _take_rates(
        self, line: int, text: str, size: int, busbw: str, algbw: str, scale: float, seconds: float | None
    ) -> None:
        rates = [number(word) for word in (busbw, algbw) if re.fullmatch(r"\d+\.\d\d", word)]
        if len(rates) != 2 or None in rates:
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 80))
            return
        self._add(line, size, (rates[0] or 0.0) * scale, (rates[1] or 0.0) * scale, seconds)

    def _add(self, line: int, size: int, busbw: float, algbw: float, seconds: float | None = None) -> None:
        self.add_row(self._row(line, size, busbw, algbw, seconds))

    def _row(self, line: int, size: int, busbw: float | None, algbw: float | None, seconds: float | None) -> ForeignRow:
        pattern = self.facts.get("pattern")
        return ForeignRow(
            size,
            num_elements=size // 4 if size % 4 == 0 else None,
            dtype="float32",
            reduce_op="sum" if pattern in _REDUCTIONS else None,
            root=0 if pattern in _ROOTED else None,
            in_place=pattern == "allreduce",
            time_s=seconds,
            algbw_bytes_per_s=algbw,
            busbw_bytes_per_s=busbw,
            line=line,
        )

    def close(self) -> None:
        """Add remarks about problems that affect the whole table."""
        if self.rows and not self._titled:
            self.remark(None, AllReduceBenchCode.WITHOUT_TITLE)
        if self._profile is not None and self.rows:
            self.translate(AllReduceBenchCode.TRIALS, num=len(self.rows))


class AllReduceBench(FiguresReader):
    """Reads a file that may contain several tables."""

    tool = "all_reduce_bench"
    traits = LogTraits(gpu_collectives=True, rings=True)
    hints = ("payload", "average bandwidth")
    new_run = AllReduceBenchRun
    preface = re.compile(r"- hardware: |Device info: |- software: torch=")

    def begins(self, text: str) -> bool:
        """Check whether the line is a title, or the titles of the columns."""
        text = text[:LONGEST_LINE].strip()
        return any(form.match(text) is not None for form in (_TITLE, _PROFILE, _SINGLE, _COLUMNS))


READER = AllReduceBench
