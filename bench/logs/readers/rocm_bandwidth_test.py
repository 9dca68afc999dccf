"""Read rocm_bandwidth_test (ROCm, up to version 2): matrices of copies between all devices, and tables of one pair.

According to the program's source, GB/s are 1e9 bytes per second. A bidirectional rate is the sum of both directions.
For a copy inside one device, the printed rate counts both the read and the written bytes. The tool numbers all devices
together, CPUs first. The reader numbers CPUs and GPUs separately from 0, as `host0` and `gpu0`.
"""

from __future__ import annotations

import re

from bench.core.codes import Code
from bench.core.log_traits import LogTraits
from bench.logs.foreign import FAILED, OK, Matrix, MatrixCell
from bench.logs.messages import LogCode
from bench.logs.readers._figures_run import LONGEST_LINE, FiguresReader, FiguresRun, number
from bench.logs.readers._run_notes import shown

_BEGIN = re.compile(r"RocmBandwidthTest Version: (\S{1,30})$")
_DEVICE = re.compile(r"Device: (\d{1,4}),\s+(.*)$")
_MATRIX = re.compile(r"(Uni|Bi|B)directional (?:copy )?(peak|average) bandwidth GB/s$")
_OTHER_MATRIX = re.compile(r"(?:Inter-Device (?:Access|Link|Numa|Hops)|Data Path Validation)")
_COLUMNS = re.compile(r"D/D((?:\s+\d{1,4})+)$")
_ROW = re.compile(r"(\d{1,4})((?:\s+(?:N/A|PASS|FAIL|-?[0-9.]{1,20}|-?nan|-?inf))+)$")
_PAIR = re.compile(r"=+\s+(Unidirectional |Bidirectional )?Benchmark Result\s+=+$")
_END = re.compile(r"=+\s+(Src|Dst) Device Id: (\d{1,4}) (?:Src|Dst) Device Type: (Cpu|Gpu)\s+=+$")
_TITLES = re.compile(r"Data Size\s+Avg Time\(us\)\s+Avg BW\(GB/s\)\s+Min Time\(us\)\s+Peak BW\(GB/s\)$")
_SIZE_ROW = re.compile(r"(\d{1,9}) (Bytes|KB|MB)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)$")
_BYTES = {"Bytes": 1, "KB": 1 << 10, "MB": 1 << 20}
_ERROR = re.compile(r"Invalid Request|.*hsa_\w+ .*fail|HSA_STATUS_ERROR|Error:")
_MOST_CELLS = 1_000_000
_LONGEST = 20_000


class RocmBandwidthCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    SUM = "sum-of-ways", "A bidirectional figure is the sum of both directions, by the tool's source."
    INSIDE = (
        "inside-device",
        "The diagonal counts the bytes read and written inside one device; it is not the rate of a link.",
    )
    PEAK = "peak-of-copies", "The matrix shows the fastest of the copies, not their mean."
    NUMBERED = "numbered", "GPUs are counted from 0: gpu0 is the tool's device {first}."
    VALIDATION_FAILED = "validation-failed", "the copy from device {src} to device {dst} was wrong"
    TYPES_UNKNOWN = (
        "types-unknown",
        "the devices are not listed, so CPUs and GPUs cannot be distinguished; left out: {matrix}",
    )


class RocmBandwidthRun(FiguresRun):
    """One run. The output has a list of devices, and matrices or tables of single pairs."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self._is_gpu: dict[int, bool] = {}
        self._title = ""
        self._title_line = 0
        self._columns: list[int] = []
        self._rows: dict[int, list[str]] = {}
        self._two_way = False
        self._ends: dict[str, tuple[int, bool]] = {}
        self._cells: dict[str, list[MatrixCell]] = {}
        self._pair_line = 0
        self._in_pair = False

    @property
    def has_results(self) -> bool:
        """Whether the reader has read a matrix or a table."""
        return bool(self.matrices or self._rows or self._cells)

    def ended_by(self, text: str) -> bool:
        """Check whether the line is the first line of the next run."""
        return _BEGIN.match(text) is not None and bool(self.has_results or "tool_version" in self.facts)

    def take(self, line: int, text: str) -> None:
        """Read one line of the run."""
        if found := _BEGIN.match(text):
            self.facts["tool_version"] = found[1]
        elif found := _DEVICE.match(text):
            self._take_device(int(found[1]), found[2])
        elif _MATRIX.match(text) or _OTHER_MATRIX.match(text):
            self._end_matrix(line)
            self._end_pair()
            self._title, self._title_line = text, line
        elif self._title and not self._rows and (found := _COLUMNS.match(text[:_LONGEST])):
            self._columns = list(map(int, found[1].split()))
        elif self._columns and (found := _ROW.match(text)):
            self._take_row(line, text, int(found[1]), found[2].split())
        elif not self._take_pair(line, text):
            self._take_other(line, text)

    def _take_pair(self, line: int, text: str) -> bool:
        """Read a line of a table with the results of one pair. Return False if the line is not part of such a table."""
        if found := _PAIR.match(text):
            self._end_matrix(line)
            self._end_pair()
            self._two_way, self._pair_line, self._in_pair = (found[1] or "").startswith("Bi"), line, False
        elif found := _END.match(text):
            self._ends[found[1]] = (int(found[2]), found[3] == "Gpu")
        elif _TITLES.match(text):
            self._in_pair = len(self._ends) == 2
        elif self._in_pair and (found := _SIZE_ROW.match(text)):
            self._take_size(line, text, found)
        else:
            return False
        return True

    def _take_other(self, line: int, text: str) -> None:
        """Read a damaged row, or a line outside a table."""
        of_pair = self._in_pair and re.match(r"\d+ (?:Bytes|KB|MB)\b", text) is not None
        if of_pair or (self._columns and text[0].isdigit()):
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 80))
        elif _ERROR.match(text):
            self.fail(line, LogCode.TOOL_ERROR, printed=shown(text))
        else:
            self.note_common(line, text)

    def _take_device(self, index: int, words: str) -> None:
        parts = [part.strip() for part in words.split(",")]
        is_gpu = len(parts) > 1 and any(
            part.startswith("GPU-") or re.fullmatch(r"[0-9a-fA-F]{1,4}:[0-9a-fA-F.:]{1,8}", part) for part in parts[1:]
        )
        self._is_gpu[index] = is_gpu
        if is_gpu and parts[0]:
            self.gpus[parts[0]] = None

    def _take_row(self, line: int, text: str, row: int, words: list[str]) -> None:
        if len(words) != len(self._columns) or len(self._rows) * len(words) > _MOST_CELLS:
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 80))
            return
        if _MATRIX.match(self._title) and not all(
            word == "N/A" or re.fullmatch(r"-?\d+\.\d{3,6}|-?nan|-?inf", word) for word in words
        ):
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 80))
            return
        for column, word in zip(self._columns, words, strict=True):
            if word == "FAIL":
                self.fail(line, RocmBandwidthCode.VALIDATION_FAILED, src=row, dst=column)
        self._rows[row] = words

    def _name(self, device: int) -> str:
        """Return the name of a known device: `gpu0` or `host1`."""
        before = sum(kind == self._is_gpu[device] for index, kind in self._is_gpu.items() if index < device)
        return f"gpu{before}" if self._is_gpu[device] else f"host{before}"

    def _end_matrix(self, line: int) -> None:
        title, rows, columns = self._title, self._rows, self._columns
        self._title, self._rows, self._columns = "", {}, []
        found = _MATRIX.match(title)
        if found is None:
            if rows and title.startswith("Data Path"):
                self.settings["validation"] = "done"
            return
        if not rows:
            self.lose(self._title_line, LogCode.NO_TABLE, test=title)
            return
        missing = [row for row in columns if row not in rows]
        if missing:
            self.lose(line, LogCode.ROWS_MISSING, table=title, first=missing[0], last=missing[-1])
        if not all(device in self._is_gpu for device in (*columns, *rows)):
            self.lose(self._title_line, RocmBandwidthCode.TYPES_UNKNOWN, matrix=title)
            return
        if found[2] == "peak":
            self.translate(RocmBandwidthCode.PEAK)
        for kind, cells in self._by_kind(rows, columns).items():
            if any(cell.status != "waived" for cell in cells) or kind == "d2d":
                self._keep(f"{' '.join(title.split()[:-1])}, {kind}", kind, found[1] != "Uni", cells, self._title_line)

    def _by_kind(self, rows: dict[int, list[str]], columns: list[int]) -> dict[str, list[MatrixCell]]:
        """Group the cells of a matrix by the types of the devices in their row and column."""
        groups: dict[str, list[MatrixCell]] = {}
        for row, words in rows.items():
            for column, word in zip(columns, words, strict=True):
                cell = _cell(self._name(row), self._name(column), word)
                groups.setdefault(self._kind(row, column), []).append(cell)
        return groups

    def _kind(self, src: int, dst: int) -> str:
        if src == dst:
            return "local"
        return {(False, True): "h2d", (True, False): "d2h", (True, True): "d2d"}.get(
            (self._is_gpu[src], self._is_gpu[dst]), "h2h"
        )

    def _keep(self, name: str, kind: str, two_way: bool, cells: list[MatrixCell], line: int) -> None:
        if kind == "local":
            direction = "local"
            self.translate(RocmBandwidthCode.INSIDE)
        elif two_way:
            direction = "bidirectional_sum" if kind == "d2d" else f"{kind}_both_sum"
            self.translate(RocmBandwidthCode.SUM)
        else:
            direction = kind
        first = next((index for index, is_gpu in sorted(self._is_gpu.items()) if is_gpu), 0)
        if first:
            self.translate(RocmBandwidthCode.NUMBERED, first=first)
        self.matrices.append(Matrix(name, "bytes_per_s", direction, None, tuple(cells), line=line))
        failed = sum(cell.status == FAILED for cell in cells)
        if failed:
            self.fail(line, LogCode.FIGURES_FAILED, table=name, num=failed, total=len(cells))

    def _take_size(self, line: int, text: str, found: re.Match[str]) -> None:
        size = int(found[1]) * _BYTES[found[2]]
        values = [number(word) for word in found.groups()[2:]]
        if None in values or not re.fullmatch(r"\d+\.\d{3,6}", found[6]):
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 80))
            return
        (src, src_gpu), (dst, dst_gpu) = self._ends["Src"], self._ends["Dst"]
        self._is_gpu.setdefault(src, src_gpu)
        self._is_gpu.setdefault(dst, dst_gpu)
        rate = (values[1] or 0.0) * 1e9
        ends = self._name(src), self._name(dst)
        kept = MatrixCell(*ends, rate, OK, size) if rate > 0 else MatrixCell(*ends, None, FAILED, size)
        cells = self._cells.setdefault(self._kind(src, dst), [])
        if len(cells) < 10_000:
            cells.append(kept)

    def _end_pair(self) -> None:
        cells, self._cells = self._cells, {}
        two_way = self._two_way
        for kind, found in cells.items():
            word = "Bidirectional" if two_way else "Unidirectional"
            name = f"{word} average bandwidth, {found[0].src} to {found[0].dst}"
            self._keep(name, kind, two_way, found, self._pair_line)
        self._ends, self._in_pair = {}, False

    def close(self) -> None:
        """Close the matrix or table that is still open."""
        self._end_matrix(self._title_line)
        self._end_pair()


def _cell(src: str, dst: str, word: str) -> MatrixCell:
    if word == "N/A":
        return MatrixCell(src, dst, None, "waived")
    value = number(word)
    return MatrixCell(src, dst, value * 1e9) if value is not None and value > 0 else MatrixCell(src, dst, None, FAILED)


class RocmBandwidthTest(FiguresReader):
    """Reads a file that may contain several runs."""

    tool = "rocm_bandwidth_test"
    traits = LogTraits(copies=True)
    hints = ("rocmbandwidthtest", "directional ", "benchmark result")
    new_run = RocmBandwidthRun

    def begins(self, text: str) -> bool:
        """Check whether the line begins a run, a matrix, or the table of a pair."""
        text = text[:LONGEST_LINE].strip()
        return any(form.match(text) is not None for form in (_BEGIN, _MATRIX, _PAIR))


READER = RocmBandwidthTest
