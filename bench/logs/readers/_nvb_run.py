"""One run of nvbandwidth while it is read: tables become matrices, and what is lost or wrong is said."""

from __future__ import annotations

import re

from bench.logs.foreign import ForeignRun, Matrix
from bench.logs.readers import _grid, _nvb_tests
from bench.logs.readers._told import RunNotes

_MOST_CELLS = 1_000_000
# By row and arrow; the arrows between GPUs point against the bytes.
_BY_TITLE = {
    ("CPU", "->"): "host_to_device_memcpy",
    ("CPU", "<-"): "device_to_host_memcpy",
    ("GPU", "->"): "device_to_device_memcpy_read",
    ("GPU", "<-"): "device_to_device_memcpy_write",
}
_LAST = 1 << 62  # remarks of no line come after the others

_DIRECTIONS = (
    "Between GPUs a write is from row to column and a read from column to row, as the tool's source has it; the arrows "
    "that it prints point the other way."
)
_TWO_WAY = (
    "A two-way figure is the rate of one direction while the other is busy; only what is called a sum here "
    "(`_total` since v0.6, SM tests between GPUs before) holds both."
)
_SUMS = (
    "Printed sums are not taken. Of two-way copies between GPUs they add one direction of each pair up to v0.5 "
    "(copy engine), both directions since v0.6."
)
_OTHERS = "all_to_one and one_to_all are one GPU's sum over all its peers."


class NvbandwidthRun(RunNotes):
    """One run, as far as it was read."""

    def __init__(self, line: int, version: str | None = None) -> None:
        super().__init__()
        self.line, self.version = line, version
        self.hosts: dict[str, None] = {}
        self.gpus: dict[str, None] = {}
        self.settings: dict[str, str] = {}
        self.matrices: list[Matrix] = []
        self.test: str | None = None  # the one that is running
        self.test_line = 0
        self.tables = 0  # of this test
        self.title: str | None = None
        self.part = ""
        self.grid: _grid.Grid | None = None
        self.before_device: str | None = None
        self._num_cells = 0

    @property
    def empty(self) -> bool:
        """Was nothing of it seen but a mark that something was left out?"""
        return not (self.version or self.matrices or self.failures or self.test or self.grid or self.gpus or self.title)

    def waived(self, line: int | None, name: str) -> None:
        """A test that the tool did not run."""
        self.say(line, f"{name or 'a test that is not named'} was waived: the tool says that it can not run here")

    def add(self, name: str, rows: list[list[object]], line: int | None, part: str = "") -> None:
        """A table of a test."""
        what = _nvb_tests.meaning(name, self.version, part)
        self._num_cells += sum(map(len, rows))
        if self._num_cells > _MOST_CELLS:
            self.lose(line, f"the table of {what.name} is left out: a run of more than {_MOST_CELLS} cells is not kept")
            return
        cells = _nvb_tests.cells(what, rows)
        self.matrices.append(Matrix(what.name, what.unit, what.direction, what.engine, cells, line=line or self.line))
        failed = sum(cell.status == _grid.FAILED for cell in cells)
        if failed:
            self.fail(line, f"{what.name}: {failed} of {len(cells)} figures are zero or no numbers")
        if what.ends == "rc" and what.unit == "s" and what.direction is None:
            told = f" (this is {self.version})" if self.version else "; which version this is is not told"
            self.say(line, f"up to v0.7 {name} measured loads from host memory, not from the other GPU{told}")

    def check_sum(self, name: str, printed: float, line: int | None, slack: float) -> None:
        """Is the printed sum that of the last table, if that is of this test? `slack`: how far off a cell may be."""
        if not self.matrices or not self.matrices[-1].name.startswith(name):
            return
        cells = self.matrices[-1].cells
        if any(cell.status in (_grid.UNREADABLE, _grid.FAILED) for cell in cells):
            return
        factor = _nvb_tests.NS if self.matrices[-1].unit == "s" else _nvb_tests.GB
        total = sum(cell.value or 0 for cell in cells) / factor
        if abs(total - printed) > slack * max(len(cells), 1) + 2e-5 * abs(total):
            self.say(line, f"the sum that is printed, {printed:g}, is not that of the figures above, {total:g}")

    def close_grid(self, line: int, told: str | None = None) -> None:
        """The table that is open is over. `told`: its test's name, where the line that ends it holds one."""
        if self.grid is None and self.title is not None:
            self.lose(line, f"the table of {self.test or self.title} is lost")
        if self.grid is not None:
            name = self.test or told or self._guess(self.title or "")
            what = _nvb_tests.meaning(name, self.version, self.part)
            self.grid.finish(self.grid.columns if what.square else 1, line)
            for where, lost in self.grid.lost:
                self.lose(where, f"{what.name}: {lost}")
            if self.grid.rows:
                self.add(name, [list(row) for row in self.grid.rows], self.grid.line, self.part)
        self.grid = self.title = None

    def _guess(self, title: str) -> str:
        """The name of a test that nobody told, by the title of its table."""
        found = re.match(r"memcpy (CE|SM) (CPU|GPU)\(row\) (<-|->) GPU\(column\)", title)
        if found is None:
            return title
        name = f"{_BY_TITLE[found[2], found[3]]}_{found[1].lower()}"
        self.say(self.grid.line if self.grid else None, f"the test is not named: by its title it is {name}")
        return name

    def close_test(self, line: int) -> None:
        """The test that is running is over, or the log is."""
        self.close_grid(line)
        if self.test is not None and not self.tables:
            self.lose(self.test_line, f"{self.test} has no table: it never finished, or the log was cut")
        self.test, self.tables, self.part = None, 0, ""

    def run(self) -> ForeignRun:
        """What was found."""
        names = [matrix.name for matrix in self.matrices]
        remarks = tuple(sorted(self.remarks, key=lambda one: one.line or _LAST))
        said = [
            (_DIRECTIONS, any("device_to_device" in name for name in names)),
            (_TWO_WAY, any("bidirectional" in name for name in names)),
            (_SUMS, any("device_to_device_bidirectional" in name for name in names)),
            (_OTHERS, any(name.startswith(("all_to_one", "one_to_all")) for name in names)),
        ]
        return ForeignRun(
            "nvbandwidth",
            self.version,
            status=self.status(),
            failure=self.failure(),
            hosts=tuple(self.hosts),
            gpus=tuple(self.gpus),
            matrices=tuple(self.matrices),
            remarks=remarks,
            settings=tuple(self.settings.items()),
            line=self.line,
            translations=tuple(text for text, wanted in said if wanted),
        )
