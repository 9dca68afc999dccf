"""Read the output of bandwidthTest (CUDA samples), text or `--csv`: copies between host and GPU, and inside a GPU.

According to the program's source, GB/s are 1e9 bytes per second. Up to CUDA 10, the program printed MB/s, with 2^20
bytes in a MB. From CUDA 5 on, the program divided milliseconds by 1024 instead of 1000, so the printed unit is 1.024e6
bytes per second. For a copy inside a GPU, the printed rate counts both the read bytes and the written bytes. With
`--device=all`, the program measures the GPUs one after another, and prints the sum of their rates.
"""

from __future__ import annotations

import re

from bench.core.codes import Code
from bench.core.log_traits import LogTraits
from bench.logs.foreign import FAILED, Matrix, MatrixCell
from bench.logs.messages import LogCode
from bench.logs.readers._figures_run import LONGEST_LINE, FiguresReader, FiguresRun, number
from bench.logs.readers._run_notes import shown

_BEGIN = re.compile(r"\[CUDA Bandwidth Test\] - Starting|\[bandwidthTest\] starting", re.IGNORECASE)
_CSV = re.compile(
    r"bandwidthTest-(H2D|D2H|D2D)(?:-(Pinned|Paged))?(-WriteCombined)?, Bandwidth = (\S+) (GB|MB)/s, "
    r"Time = (\S+) s, Size = (\d{1,15}) bytes, NumDevsUsed = (\d{1,4})$"
)
_TITLE = re.compile(r"(Host to Device|Device to Host|Device to Device) Bandwidth, (\d{1,4}) Device\(s\)(.*)$")
_MEMORY = re.compile(r"(PINNED|PAGEABLE) Memory Transfers", re.IGNORECASE)
_COLUMNS = re.compile(
    r"(?:Write-Combined Memory Writes are Enabled\s*)?Transfer Size \(Bytes\)\s+Bandwidth\((GB|MB)/s\)"
)
_ROW = re.compile(r"(\d{1,15})\s+(\S+)$")
_DEVICE = re.compile(r"Device (\d{1,4}): ?(.+)$", re.IGNORECASE)
_PROGRESS = re.compile(r"\.{20,}$")  # a dot for each size in the mode `shmoo`
_ERROR = re.compile(r"CUDA error at|Cuda failure|Result = FAIL|!+No devices found!+|\w+ returned \d+$|Error: device")
_KINDS = {"H2D": "Host to Device", "D2H": "Device to Host", "D2D": "Device to Device"}
_SCALES = {"GB": 1e9, "MB": 1.024e6}
_DIRECTIONS = {"Host to Device": "h2d", "Device to Host": "d2h", "Device to Device": "local"}


class BandwidthTestCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    SUM_OF_DEVICES = (
        "sum-of-devices",
        "these figures add {num} GPUs that were measured one after another, so they are not the rate of a link",
    )
    MB_OF_OLD = "mb-of-old", "MB/s is 1.024e6 bytes per second here, by the tool's source (CUDA 5 to 10)"
    INSIDE = "inside-device", "A copy inside a GPU counts the bytes read and the bytes written; it crosses no link."
    PAGEABLE = (
        "pageable",
        "Copies from pageable memory pass through a buffer of the driver, so their rate is not that of a link.",
    )


class BandwidthTestRun(FiguresRun):
    """A run whose lines are still being read.

    For each direction, the results of all sizes become one matrix with a single pair.
    """

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self._device = 0
        self._num_devices = 0
        self._title = ""  # the title of the current table
        self._count = 1
        self._memory = "pinned"
        self._scale = 0.0
        self._cells: dict[tuple[str, str], list[MatrixCell]] = {}
        self._lines: dict[tuple[str, str], int] = {}
        self._ended = False

    @property
    def has_results(self) -> bool:
        """Whether a row was read."""
        return bool(self._cells or self.figures)

    def ended_by(self, text: str) -> bool:
        """Check whether the line belongs to the next run.

        The line belongs to the next run if it is a first line, or if the current run has printed its last line.
        """
        return _BEGIN.match(text) is not None or self._ended

    def take(self, line: int, text: str) -> None:
        """Read a device, a title, or a row of a table."""
        if found := _CSV.match(text):
            self._memory = "pageable" if found[2] == "Paged" else "pinned" + "_wc" * bool(found[3])
            self._title, self._count, self._scale = _KINDS[found[1]], int(found[8]), _SCALES[found[5]]
            self._take_row(line, int(found[7]), found[4], text)
        elif text.startswith("bandwidthTest-"):
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 80))
        elif self._scale and (found := _ROW.match(text)):
            self._take_row(line, int(found[1]), found[2], text)
        elif found := _TITLE.match(text):
            self._title, self._count, self._scale = found[1], int(found[2]), 0.0
            self._memory = "pageable" if "Paged" in found[3] else "pinned"
        elif found := _MEMORY.match(text):
            self._memory = "pageable" if found[1].upper() == "PAGEABLE" else "pinned"
        elif found := _COLUMNS.match(text):
            self._scale = _SCALES[found[1]] if self._title else 0.0
        elif (found := _DEVICE.match(text)) and not self.has_results:
            self._device, self._num_devices = int(found[1]), self._num_devices + 1
            self.gpus[found[2].strip()] = None
        else:
            self._take_other(line, text)

    def _take_other(self, line: int, text: str) -> None:
        """Read an error, the last line, or a damaged row."""
        if _ERROR.match(text):
            self.fail(line, LogCode.TOOL_ERROR, printed=shown(text))
            self._ended = True
        elif text.startswith("Result = PASS"):
            self._ended, self._scale = True, 0.0
        elif self._scale and text[0].isdigit():
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 80))
        elif not _PROGRESS.match(text):
            self.note_common(line, text)

    def _take_row(self, line: int, size: int, printed: str, text: str) -> None:
        value = number(printed)
        if value is None or "." not in printed:
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 80))
            return
        if self._scale == _SCALES["MB"]:
            self.translate(BandwidthTestCode.MB_OF_OLD)
        rate = value * self._scale
        if self._count > 1:
            name = f"{self._title}, {self._memory}, {size} bytes, sum of {self._count} GPUs"
            self.add(name, rate, "bytes_per_s", line=line)
            self.translate(BandwidthTestCode.SUM_OF_DEVICES, num=self._count)
            return
        gpu = f"gpu{self._device}"
        ends = {"Host to Device": ("host", gpu), "Device to Host": (gpu, "host")}.get(self._title, (gpu, gpu))
        cells = self._cells.setdefault((self._title, self._memory), [])
        self._lines.setdefault((self._title, self._memory), line)
        if len(cells) < 10_000:
            found = MatrixCell(*ends, rate, payload_bytes=size) if rate > 0 else MatrixCell(*ends, None, FAILED, size)
            cells.append(found)

    def close(self) -> None:
        """Build the matrices."""
        for (title, memory), cells in self._cells.items():
            direction = _DIRECTIONS[title]
            if direction == "local":
                name = title
                self.translate(BandwidthTestCode.INSIDE)
            else:
                name = f"{title}, {memory}"
            if memory == "pageable" and direction != "local":
                direction += "_pageable"
                self.translate(BandwidthTestCode.PAGEABLE)
            self.matrices.append(
                Matrix(name, "bytes_per_s", direction, None, tuple(cells), line=self._lines[title, memory])
            )
            failed = sum(cell.status == FAILED for cell in cells)
            if failed:
                self.fail(self._lines[title, memory], LogCode.FIGURES_FAILED, table=name, num=failed, total=len(cells))
        self._cells.clear()


class BandwidthTest(FiguresReader):
    """Reads a file that may contain several runs."""

    tool = "bandwidth_test"
    traits = LogTraits(copies=True)
    hints = ("bandwidth test] - starting", "[bandwidthtest] starting", "bandwidthtest-", " bandwidth, ")
    new_run = BandwidthTestRun

    def begins(self, text: str) -> bool:
        """Check whether the line is the first line, the title of a table, or a line of `--csv`."""
        text = text[:LONGEST_LINE].strip()
        return any(form.match(text) is not None for form in (_BEGIN, _TITLE, _CSV))


READER = BandwidthTest
