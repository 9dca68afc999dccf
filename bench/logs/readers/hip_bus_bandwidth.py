"""Read the output of hipBusBandwidth (HIP samples): copies between host and GPU, and between GPUs, by size.

According to the program's source, GB/sec are 1e9 bytes per second, and kB are 1024 bytes. Sizes with a plus sign are in
bytes. A row has the median, mean, standard deviation, smallest and largest value over all passes. The reader keeps the
mean. The program divides sizes below 1 MB by a million in integer arithmetic, so the smallest sizes are printed as 0.
The reader treats a size that is printed as 0 as not measured.
"""

from __future__ import annotations

import re

from bench.core.codes import Code
from bench.core.log_traits import LogTraits
from bench.logs.foreign import OK, Matrix, MatrixCell
from bench.logs.messages import LogCode
from bench.logs.readers._figures_run import LONGEST_LINE, FiguresReader, FiguresRun, number
from bench.logs.readers._run_notes import shown

_DEVICE = re.compile(
    r"Device:(.{1,100}?) Mem=[0-9.]{1,12}GB #CUs=\d{1,5} Freq=\d{1,6}Mhz(?:\s+(?:MallocMode|Pinned)=(\w{1,20}))?$"
)
_TITLES = re.compile(r"test\s+atts\s+units\s+median\s+mean\s+stddev\s+min\s+max")
_NAME = (
    r"(H2D|D2H|Bidir|P2P_uni|P2P_bi)_(Bandwidth|Time)_?(pinned|unpinned|registered)?"
    r"(?:_gpu(\d{1,3})_gpu(\d{1,3}))?"
)
_ROW = re.compile(
    rf"{_NAME}\s+(\+?\d{{1,9}}(?:By|kB))(?:x(\d{{1,6}}))?\s+(GB/sec|ms)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)$",
    re.IGNORECASE,
)
_PEERS = re.compile(r"(P2P_(?:uni|bi)(?:_\w+)?)_gpu(\d{1,3})_gpu(\d{1,3})$")
_LIKE_ROW = re.compile(r"(?:H2D|D2H|Bidir|P2P_uni|P2P_bi)_?\w*\s+\+?\d+(?:By|kB)", re.IGNORECASE)
_ERROR = re.compile(r"error: (.{1,200})|Error: Couldn't allocate")
_DIRECTIONS = {
    "H2D": "h2d",
    "D2H": "d2h",
    "BIDIR": "bidirectional_of_host",
    "P2P_UNI": "d2d",
    "P2P_BI": "bidirectional",
}


class HipBusCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    MEAN_OF_PASSES = (
        "mean-of-passes",
        "Figures are means over all passes; the tool also prints median, minimum and maximum.",
    )
    ZERO_BY_DIVISION = (
        "zero-by-division",
        "{num:n bandwidth} of the smallest sizes read 0 because the tool divides integers; these are left out",
    )
    PAGEABLE = (
        "pageable",
        "Copies from pageable memory pass through a buffer of the driver, so their rate is not that of a link.",
    )
    ONE_OF_TWO = "one-of-two", "A figure of both directions at once counts the bytes of one direction."


class HipBusRun(FiguresRun):
    """A run whose lines are still being read. The sizes of each direction become one matrix."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self._memory = ""
        self._cells: dict[tuple[str, str, str], list[MatrixCell]] = {}
        self._lines: dict[tuple[str, str, str], int] = {}
        self._num_zeros = 0

    @property
    def has_results(self) -> bool:
        """Whether a row was read."""
        return bool(self._cells or self.matrices)

    def ended_by(self, text: str) -> bool:
        """Check whether the line is the first line of the next run."""
        return _DEVICE.match(text) is not None and (self.has_results or bool(self.gpus))

    def take(self, line: int, text: str) -> None:
        """Read the device, or a row."""
        if found := _DEVICE.match(text):
            self.gpus[found[1].strip()] = None
            self._memory = {"YES": "pinned", "NO": "unpinned"}.get(found[2] or "", found[2] or "")
        elif found := _ROW.match(text):
            self._take_row(line, text, found)
        elif _LIKE_ROW.match(text):
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 100))
        elif found := _ERROR.match(text):
            self.fail(line, LogCode.TOOL_ERROR, printed=shown(text))
        elif not _TITLES.match(text):
            self.note_common(line, text)

    def _take_row(self, line: int, text: str, found: re.Match[str]) -> None:
        kind, what, memory = found[1].upper(), found[2].lower(), (found[3] or self._memory).lower()
        values = [number(word.rstrip("*")) for word in found.groups()[8:]]
        if (
            None in values
            or not re.fullmatch(r"\d+\.\d{4}\*?", found[13])
            or (what == "bandwidth") != (found[8] == "GB/sec")
        ):
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 100))
            return
        size = int(found[6].lstrip("+")[:-2]) * (1024 if found[6].endswith("kB") else 1)
        first, second = (f"gpu{int(found[4])}", f"gpu{int(found[5])}") if found[4] else ("host", "gpu0")
        ends = (second, first) if kind == "D2H" else (first, second)
        mean = values[1] or 0.0
        scale = 1e9 if what == "bandwidth" else 1e-3
        self._num_zeros += what == "bandwidth" and mean == 0
        kept = MatrixCell(*ends, mean * scale, OK, size) if mean > 0 else MatrixCell(*ends, None, "unreadable", size)
        cells = self._cells.setdefault((kind, what, memory), [])
        self._lines.setdefault((kind, what, memory), line)
        if len(cells) < 100_000:
            cells.append(kept)

    def close(self) -> None:
        """Build the matrices."""
        if self._num_zeros:
            self.remark(None, HipBusCode.ZERO_BY_DIVISION, num=self._num_zeros)
        cells, self._cells = self._cells, {}
        for (kind, what, memory), found in cells.items():
            direction = _DIRECTIONS[kind]
            if memory == "unpinned" and kind in ("H2D", "D2H"):
                direction += "_pageable"
                self.translate(HipBusCode.PAGEABLE)
            if kind in ("BIDIR", "P2P_BI"):
                self.translate(HipBusCode.ONE_OF_TWO)
            unit = "bytes_per_s" if what == "bandwidth" else "s"
            if unit == "s":
                direction = f"{direction}_time"
            name = " ".join(filter(None, (kind, what, memory)))
            self.matrices.append(
                Matrix(name, unit, direction, None, tuple(found), line=self._lines[kind, what, memory])
            )
            self.translate(HipBusCode.MEAN_OF_PASSES)


class HipBusBandwidth(FiguresReader):
    """Reads a file that may contain several runs."""

    tool = "hip_bus_bandwidth"
    traits = LogTraits(copies=True)
    hints = ("#cus=", "gb/sec")
    new_run = HipBusRun

    def begins(self, text: str) -> bool:
        """Check whether the line is the first line of a run, or a row with a bandwidth."""
        text = text[:LONGEST_LINE].strip()
        return _DEVICE.match(text) is not None or ("GB/sec" in text and _ROW.match(text) is not None)


READER = HipBusBandwidth
