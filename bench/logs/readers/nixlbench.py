"""Read nixlbench (NIXL): transfers between two workers by block size and batch size, over any backend of NIXL.

According to the program's source, GB/Sec are 1e9 bytes per second, and MiB and GiB are powers of two. The average
latency is the duration of the run divided by the number of blocks. The size of a row is one block. The blocks of a
batch are in flight at the same time, and so are the blocks of several threads.
"""

from __future__ import annotations

import re

from bench.core.codes import Code, Coded
from bench.core.log_traits import LogTraits
from bench.logs.foreign import ForeignRow
from bench.logs.messages import LogCode
from bench.logs.readers._figures_run import LONGEST_LINE, FiguresReader, FiguresRun, number
from bench.logs.readers._run_notes import shown

_HEADER = re.compile(r"Block Size \(B\)\s{1,20}Batch Size\s")
_BANNER = re.compile(r"\*+\s*NIXLBench Configuration|NIXLBench Configuration", re.IGNORECASE)
_SETTING = re.compile(r"[A-Z][\w /.]{1,60}?\s*\(--(\w+)=[^)]*\)\s*: (\S.{0,120})$")
_RATES = {
    "B/W (GB/Sec)": 1e9,
    "B/W (GiB/Sec)": 2.0**30,
    "B/W (MiB/Sec)": 2.0**20,
}
_AGGREGATE = "Aggregate B/W (GB/Sec)"
_LATENCY = "Avg Lat. (us)"
_TIMES = ("Avg Prep (us)", "P99 Prep (us)", "Avg Post (us)", "P99 Post (us)", "Avg Tx (us)", "P99 Tx (us)")
_COLUMN = re.compile(r"\S+(?: \S+)*")
_KEPT = ("backend", "initiator_seg_type", "target_seg_type", "scheme", "mode", "op_type", "num_threads", "device_list")
_ERROR = re.compile(r"(?:Failed to|Error: |Consistency check failed|NIXL: .* (?:Error|failed))")


class NixlBenchCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    NO_BOUND = (
        "no-bound-nixlbench",
        "the log does not state the links that the backend used (NIC, NVLink, shared memory or storage)",
    )
    AGGREGATE = "aggregate", "the aggregate adds all pairs of workers; a row is one pair"
    BATCHES = (
        "batches",
        "a row is one block of a batch of {batch}; the blocks of a batch are in flight at the same time",
    )


class NixlBenchRun(FiguresRun):
    """One table with the results of one or several batch sizes."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self._columns: list[str] = []
        self._batch: int | None = None

    def ended_by(self, text: str) -> bool:
        """Check whether the line is the next banner, or the next table."""
        return self.has_results or (bool(self._columns) and _HEADER.match(text) is None)

    def take(self, line: int, text: str) -> None:
        """Read a setting, the titles of the columns, or a row."""
        if _HEADER.match(text):
            self._columns = _titles(text)
            if not any(title in _RATES for title in self._columns):
                self.lose(line, LogCode.TABLE_UNKNOWN, printed=shown(text, 100))
                self._columns = []
        elif text[0].isdigit() and self._columns:
            self._take_row(line, text)
        elif found := _SETTING.match(text):
            if found[1] in _KEPT:
                self.settings[found[1]] = found[2].strip()
        elif _ERROR.match(text):
            self.fail(line, LogCode.TOOL_ERROR, printed=shown(text))
        elif not self.has_results or not text.startswith("---"):
            self.note_common(line, text)

    def _take_row(self, line: int, text: str) -> None:
        words = text.split()
        values = dict(zip(self._columns, map(number, words), strict=False))
        if len(words) != len(self._columns) or any(value is None for value in values.values()) or "." not in words[-1]:
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 100))
            return
        size, batch = int(values["Block Size (B)"] or 0), int(values["Batch Size"] or 0)
        rate = next((values[title] or 0.0) * scale for title, scale in _RATES.items() if title in values)
        latency = values.get(_LATENCY)
        if rate <= 0:
            self.fail(line, LogCode.NO_TIME, size=size)
            return
        if batch > 1:
            self.translate(NixlBenchCode.BATCHES, batch=batch)
        self.settings.setdefault("batch_size", str(batch))
        where = f"{size} bytes, batch {batch}"
        self.add_row(
            ForeignRow(
                size,
                time_s=None if latency is None else latency * 1e-6,
                algbw_bytes_per_s=rate,
                busbw_bytes_per_s=rate,
                line=line,
            )
        )
        if _AGGREGATE in values:
            self.translate(NixlBenchCode.AGGREGATE)
            self.add("aggregate bandwidth", (values[_AGGREGATE] or 0.0) * 1e9, "bytes_per_s", where, line=line)
        for title in _TIMES:
            if (value := values.get(title)) is not None:
                self.add(title.removesuffix(" (us)"), value * 1e-6, "s", where, line=line)


def _titles(text: str) -> list[str]:
    """Return the titles of the columns. Columns are wider than their titles, so several spaces separate two titles."""
    return [title.strip() for title in re.split(r"\s{2,}", text.strip())] if "  " in text else _COLUMN.findall(text)


class NixlBench(FiguresReader):
    """Reads a file that may contain several runs."""

    tool = "nixlbench"
    traits = LogTraits(without_bound=Coded.of(NixlBenchCode.NO_BOUND))
    hints = ("block size (b)", "nixlbench configuration")
    new_run = NixlBenchRun

    def begins(self, text: str) -> bool:
        """Check whether the line is the banner, or the titles of the columns."""
        text = text[:LONGEST_LINE].strip()
        return _HEADER.match(text) is not None or _BANNER.match(text) is not None


READER = NixlBench
