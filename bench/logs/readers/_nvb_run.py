"""Collect one run of nvbandwidth while it is read. Tables become matrices. A remark reports lost data or an error."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.core.codes import Code, Coded
from bench.logs.foreign import ForeignRun, Matrix
from bench.logs.messages import LogCode
from bench.logs.readers import _grid, _nvb_tests
from bench.logs.readers._run_notes import RunNotes

_MOST_CELLS = 1_000_000
# Test names by the row and arrow of the title. The printed arrows between GPUs point against the direction of the data.
_BY_TITLE = {
    ("CPU", "->"): "host_to_device_memcpy",
    ("CPU", "<-"): "device_to_host_memcpy",
    ("GPU", "->"): "device_to_device_memcpy_read",
    ("GPU", "<-"): "device_to_device_memcpy_write",
}
_UNNAMED = "a test without a name"


class NvbCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    TEST_FAILED = "test-failed", "{test}: {printed}"
    TOOL_WARNING = "tool-warning", "{printed}"
    DOCUMENT_CUT = "document-cut", "the JSON document is cut or damaged; its complete parts were read"
    DOCUMENT_TOO_LONG = "document-too-long", "the JSON document is too long and was not read"
    ROWS_SHORTER = "rows-shorter", "{test}: {num} of {total} rows are shorter than the other rows"
    NOT_SQUARE = "not-square", "{test} is left out: {rows} rows of {columns} columns are not a table of pairs"
    SUM_DIFFERS = "sum-differs", "the printed sum, {printed:g}, is not the sum of the figures above, {sum:g}"
    NAMED_BY_TITLE = "named-by-title", "the test is not named; by its title it is {test}"
    LATENCY_OF_HOST = "latency-of-host", "up to v0.7 {test} measured loads from host memory, not from the other GPU"

    ARROWS = (
        "arrows",
        "Between GPUs a write is from row to column and a read from column to row, by the tool's source; the printed "
        "arrows point the other way.",
    )
    TWO_WAY = (
        "two-way",
        "A two-way figure is the rate of one direction while the other direction is busy. Only a figure "
        "called a sum here "
        "(`_total` since v0.6, SM tests between GPUs before) includes both.",
    )
    SUMS = (
        "sums",
        "Printed sums are not used. Between GPUs they add one direction of each two-way pair up to v0.5 (copy engine), "
        "both directions since v0.6.",
    )
    OTHERS = "others", "all_to_one and one_to_all are one GPU's sum over all its peers."


class NvbandwidthRun(RunNotes):
    """A run whose lines are still being read."""

    def __init__(self, line: int, version: str | None = None) -> None:
        super().__init__()
        self.line, self.version = line, version
        self.hosts: dict[str, None] = {}
        self.gpus: dict[str, None] = {}
        self.settings: dict[str, str] = {}
        self.matrices: list[Matrix] = []
        self.test: str | None = None  # the running test
        self.test_line = 0
        self.tables = 0  # the number of tables of this test
        self.title: str | None = None
        self.part = ""
        self.grid: _grid.Grid | None = None
        self.before_device: str | None = None
        self._num_cells = 0

    @property
    def empty(self) -> bool:
        """Whether the run has no content, apart from a mark that lines were left out."""
        return not (self.version or self.matrices or self.failures or self.test or self.grid or self.gpus or self.title)

    def waived(self, line: int | None, name: str) -> None:
        """Add a remark about a test that the tool did not run."""
        self.remark(line, LogCode.WAIVED, test=name or _UNNAMED)

    def add(self, name: str, rows: list[list[object]], line: int | None, part: str = "") -> None:
        """Add a table of a test. `part`: for a two-way test with three tables, one of PARTS."""
        what = _nvb_tests.meaning(name, self.version, part)
        self._num_cells += sum(map(len, rows))
        if self._num_cells > _MOST_CELLS:
            self.lose(line, LogCode.TABLE_TOO_LARGE, table=what.name, most=_MOST_CELLS)
            return
        cells = _nvb_tests.cells(what, rows)
        self.matrices.append(Matrix(what.name, what.unit, what.direction, what.engine, cells, line=line or self.line))
        failed = sum(cell.status == _grid.FAILED for cell in cells)
        if failed:
            self.fail(line, LogCode.FIGURES_FAILED, table=what.name, num=failed, total=len(cells))
        if what.ends == "rc" and what.unit == "s" and what.direction is None:
            self.remark(line, NvbCode.LATENCY_OF_HOST, test=name)

    def check_sum(self, name: str, printed: float, line: int | None, slack: float) -> None:
        """Compare the printed sum with the sum of the last table's cells.

        If the last table belongs to another test, do nothing.

        `slack`: the rounding error of one cell.
        """
        if not self.matrices or not self.matrices[-1].name.startswith(name):
            return
        cells = self.matrices[-1].cells
        if any(cell.status in (_grid.UNREADABLE, _grid.FAILED) for cell in cells):
            return
        factor = _nvb_tests.NS if self.matrices[-1].unit == "s" else _nvb_tests.GB
        total = sum(cell.value or 0 for cell in cells) / factor
        if abs(total - printed) > slack * max(len(cells), 1) + 2e-5 * abs(total):
            self.remark(line, NvbCode.SUM_DIFFERS, printed=printed, sum=total)

    def close_grid(self, line: int, test: str | None = None) -> None:
        """Close the open table. `test`: the name in the line that ends the table, or None if the line has no name."""
        if self.grid is None and self.title is not None:
            self.lose(line, LogCode.NO_TABLE, test=self.test or self.title)
        if self.grid is not None:
            name = self.test or test or self._guess(self.title or "")
            what = _nvb_tests.meaning(name, self.version, self.part)
            self.grid.finish(self.grid.columns if what.square else 1, line)
            for loss in self.grid.lost:
                self.lose(loss.line, loss.code, table=what.name, **loss.facts)
            if self.grid.rows:
                self.add(name, [list(row) for row in self.grid.rows], self.grid.line, self.part)
        self.grid = self.title = None

    def _guess(self, title: str) -> str:
        """Return the name of an unnamed test, from the title of its table."""
        found = re.match(r"memcpy (CE|SM) (CPU|GPU)\(row\) (<-|->) GPU\(column\)", title)
        if found is None:
            return title
        name = f"{_BY_TITLE[found[2], found[3]]}_{found[1].lower()}"
        self.remark(self.grid.line if self.grid else None, NvbCode.NAMED_BY_TITLE, test=name)
        return name

    def close_test(self, line: int) -> None:
        """Close the running test, because the test or the log has ended."""
        self.close_grid(line)
        if self.test is not None and not self.tables:
            self.lose(self.test_line, LogCode.NEVER_FINISHED, test=self.test)
        self.test, self.tables, self.part = None, 0, ""

    def run(self) -> ForeignRun:
        """Return the run with all data that were read."""
        return ForeignRun(
            "nvbandwidth",
            self.version,
            status=self.status(),
            failure=self.failure(),
            hosts=tuple(self.hosts),
            gpus=tuple(self.gpus),
            matrices=tuple(self.matrices),
            remarks=self.all_remarks(),
            settings=tuple(self.settings.items()),
            line=self.line,
            translations=tuple(self._translations()),
        )

    def _translations(self) -> Iterator[Coded]:
        """Yield notes that explain the names and values in the tables."""
        names = [matrix.name for matrix in self.matrices]
        if any("device_to_device" in name for name in names):
            yield Coded.of(NvbCode.ARROWS)
        if any("bidirectional" in name for name in names):
            yield Coded.of(NvbCode.TWO_WAY)
        if any("device_to_device_bidirectional" in name for name in names):
            yield Coded.of(NvbCode.SUMS)
        if any(name.startswith(("all_to_one", "one_to_all")) for name in names):
            yield Coded.of(NvbCode.OTHERS)
