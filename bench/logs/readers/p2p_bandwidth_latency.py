"""Read the output of p2pBandwidthLatencyTest (CUDA samples 11 to 13): matrices of copies between the GPUs of a node.

According to the program's source, a write sends data from the row's GPU to the column's GPU. A read transfers data in
the opposite direction. Two-way rates are the sum of both directions. Without peer access, a copy goes through host
memory. The diagonal has copies inside one GPU. For these copies, the printed rate counts both the read and the written
bytes. These copies use no link, so the reader puts them into a separate matrix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.core.codes import Code, Coded
from bench.core.log_traits import LogTraits
from bench.logs.foreign import ForeignRun, Line, Matrix, MatrixCell, Reader
from bench.logs.messages import LogCode
from bench.logs.readers import _grid
from bench.logs.readers._run_notes import RunNotes, shown

_BEGIN = re.compile(r"\[P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\]$")
_CONNECTIVITY = re.compile(r"P2P Connectivity Matrix$")
_TITLE = re.compile(
    r"((Unidirectional|Bidirectional) P2P=(Disabled|Enabled) Bandwidth(?: \(P2P (Writes|Reads)\))?) Matrix \(GB/s\)$"
)
_LATENCY = re.compile(r"(P2P=(Disabled|Enabled) Latency(?: \(P2P (Writes|Reads)\))?) Matrix \(us\)$")
_DEVICE = re.compile(r"Device: \d+, (.+), pciBusID: \w+, pciDeviceID: \w+, pciDomainID: ?\w+$")
_ACCESS = re.compile(r"Device=(\d{1,4}) CANNOT Access Peer Device=(\d{1,4})$")
_ERROR = re.compile(r"Cuda failure .*|CUDA error.*|Two or more GPUs with .*required.*")
_LEFT_OUT = re.compile(r"\[?(?:\.{3,}|…)\]?$")
# The beginnings of all lines that this reader uses. Other lines are skipped at once.
_WANTED = re.compile(r"[-0-9]|N/A|-?nan|-?inf|\[P2P|\[?\.\.\.|…|D\\D|Device|P2P|Unidir|Bidir|GPU|CPU|Cuda|CUDA|Two or")
_MOST_CELLS = 1_000_000


class P2pCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    NO_CONNECTIVITY = "no-connectivity", "the log has no connectivity matrix, so pairs without peer access are unknown"
    NO_PEER_ACCESS = "no-peer-access", "{num} of {total} pairs have no peer access: their copies go through host memory"

    SUM = "sum", "A two-way figure is the sum of both directions, by the tool's source."
    INSIDE = (
        "inside",
        "The diagonal is a copy inside one GPU (bytes read and written). It uses no link and is a separate matrix.",
    )
    HOST = (
        "host",
        "Copies between GPUs without peer access, or with it disabled, go through host memory "
        "and have separate matrices.",
    )
    CALLS = "calls", "CPU latency is the host's time to start a copy and not a property of a link."


class P2p(Reader):
    """Reads a file that may contain several runs."""

    tool = "p2p_bandwidth_latency"
    traits = LogTraits(copies=True)
    hints = ("gpu bandwidth latency test", "p2p connectivity matrix", "p2p=")

    def __init__(self) -> None:
        self._run: _OpenRun | None = None
        self._last = 0

    def begins(self, text: str) -> bool:
        """Check whether the line is the banner, or the title of a matrix."""
        text = text.strip()
        return any(form.match(text) for form in (_BEGIN, _CONNECTIVITY, _TITLE, _LATENCY))

    def feed(self, line: Line) -> Iterator[ForeignRun]:
        """Read one line. Yield a run that ends before this line."""
        self._last = line.number
        text = line.text.strip()
        if _WANTED.match(text) is None:
            return
        again = self._run is not None and self._run.title_seen and text == self._run.first_title
        if _BEGIN.match(text) or again:
            yield from self._close()
        if self._run is None and self.begins(text):
            self._run = _OpenRun(line.number)
        if self._run is not None:
            self._run.take(line.number, text)

    def finish(self) -> Iterator[ForeignRun]:
        """Yield the run that is incomplete at the end of the file."""
        yield from self._close()

    def _close(self) -> Iterator[ForeignRun]:
        run, self._run = self._run, None
        if run is not None:
            run.close_title(self._last)
            yield run.run()


class _OpenRun(RunNotes):
    """A run whose lines are still being read."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.gpus: dict[str, None] = {}
        self.matrices: list[Matrix] = []
        self.translations: set[Code] = set()
        self.first_title: str | None = None
        self.title_seen = False
        self.apart: set[tuple[int, int]] | None = None  # pairs without peer access; None if unknown
        self._title: re.Match[str] | None = None
        self._title_line = 0
        self._num_tables = 0  # number of tables under this title; a latency has two tables
        self._kind = ""  # whether the GPU or the CPU measured a table of latencies
        self._grid: _grid.Grid | None = None
        self._num_cells = 0

    def take(self, line: int, text: str) -> None:
        """Read one line of the run."""
        words = text.split()
        if self._grid is not None and self._grid.take(words, line):
            return
        if found := _TITLE.match(text) or _LATENCY.match(text) or _CONNECTIVITY.match(text):
            self.close_title(line)
            self._title, self._title_line, self._num_tables = found, line, 0
            self.title_seen = self.title_seen or self.first_title is not None
            self.first_title = self.first_title or text
        elif self._title is not None and words and words[0] in ("D\\D", "GPU", "CPU"):
            grid = _grid.begin(words[1:], line, flags=self._title.re is _CONNECTIVITY)
            if grid is not None and (words[0] == "D\\D") is not (self._title.re is _LATENCY):
                self._close_grid(line)
                self._grid, self._kind, self._num_tables = grid, words[0], self._num_tables + 1
        elif found := _DEVICE.match(text):
            self.gpus.setdefault(found[1])
        elif found := _ACCESS.match(text):
            self.apart = self.apart if self.apart is not None else set()
            if len(self.apart) < _MOST_CELLS:
                self.apart.add((int(found[1]), int(found[2])))
        elif _ERROR.match(text):
            self.fail(line, LogCode.TOOL_ERROR, printed=shown(text))
        elif _LEFT_OUT.match(text):
            self.close_title(line)
            self.lose(line, LogCode.LINES_LEFT_OUT)

    def close_title(self, line: int) -> None:
        """Close the current title, because no further table belongs to this title."""
        self._close_grid(line)
        if self._title is not None and not self._num_tables:
            self.lose(self._title_line, LogCode.NO_TABLE, test=self._title[0])
        self._title = None

    def _close_grid(self, line: int) -> None:
        grid, self._grid = self._grid, None
        if grid is None or self._title is None:
            return
        grid.finish(grid.columns, line)
        for loss in grid.lost:
            self.lose(loss.line, loss.code, table=self._title[0], **loss.facts)
        self._num_cells += sum(map(len, grid.rows))
        if self._title.re is _CONNECTIVITY:
            self._connect(grid)
        elif self._num_cells > _MOST_CELLS:
            self.lose(grid.line, LogCode.TABLE_TOO_LARGE, table=self._title[0], most=_MOST_CELLS)
        elif grid.rows:
            self._add(grid, self._title)

    def run(self) -> ForeignRun:
        """Return the run with all data that were read."""
        if self.apart is None and self.matrices:
            self.remark(None, P2pCode.NO_CONNECTIVITY)
        return ForeignRun(
            "p2p_bandwidth_latency",
            status=self.status(),
            failure=self.failure(),
            gpus=tuple(self.gpus),
            matrices=tuple(self.matrices),
            remarks=self.all_remarks(),
            translations=tuple(Coded.of(code) for code in P2pCode if code in self.translations),
            line=self.line,
        )

    def _connect(self, grid: _grid.Grid) -> None:
        self.apart = set()
        for row, values in enumerate(grid.rows):
            self.apart |= {(row, column) for column, value in enumerate(values) if value == "0" and row != column}
        if self.apart:
            total = grid.columns * (grid.columns - 1)
            self.remark(self._title_line, P2pCode.NO_PEER_ACCESS, num=len(self.apart), total=total)

    def _add(self, grid: _grid.Grid, title: re.Match[str]) -> None:
        latency = title.re is _LATENCY
        unit, factor = ("s", 1e-6) if latency else ("bytes_per_s", 1e9)
        name = f"{title[1]} {self._kind}" if latency else title[1]
        two_way, disabled, reads = title[2] == "Bidirectional", "P2P=Disabled" in name, "Reads" in name
        peers, staged, inside = self._sorted_cells(grid, factor, disabled, reads)
        both = "_sum" if two_way else ""
        direction = "calls" if self._kind == "CPU" else "bidirectional_sum" if two_way else "d2d"
        self._keep(name, unit, direction, peers, grid.line)
        self._keep(f"{name}, through host", unit, f"through_host{both}", staged, grid.line)
        self._keep(f"{name}, inside the GPU", unit, "local", inside, grid.line)
        applies = {
            P2pCode.SUM: two_way,
            P2pCode.INSIDE: bool(inside),
            P2pCode.HOST: bool(staged),
            P2pCode.CALLS: self._kind == "CPU",
        }
        self.translations |= {code for code, applied in applies.items() if applied}

    def _sorted_cells(
        self, grid: _grid.Grid, factor: float, disabled: bool, reads: bool
    ) -> tuple[list[MatrixCell], list[MatrixCell], list[MatrixCell]]:
        """Divide the cells of a table into three kinds: between peers, through host memory, and inside a GPU."""
        peers: list[MatrixCell] = []
        staged: list[MatrixCell] = []
        inside: list[MatrixCell] = []
        for row, values in enumerate(grid.rows):
            for column, value in enumerate(values):
                ends = (column, row) if reads else (row, column)
                src, dst = _grid.gpu(ends[0]), _grid.gpu(ends[1])
                found = _grid.cell(src, dst, value, factor)
                if self._kind == "CPU":
                    peers.append(found)
                elif row == column:
                    inside.append(found)
                elif disabled or (row, column) in (self.apart or ()):
                    staged.append(found)
                    if not disabled:
                        peers.append(MatrixCell(src, dst, None, _grid.WAIVED))
                else:
                    peers.append(found)
        return peers, staged, inside

    def _keep(self, name: str, unit: str, direction: str, cells: list[MatrixCell], line: int) -> None:
        if cells:
            self.matrices.append(Matrix(name, unit, direction, None, tuple(cells), line=line))
        failed = sum(cell.status == _grid.FAILED for cell in cells)
        if failed:
            self.fail(line, LogCode.FIGURES_FAILED, table=name, num=failed, total=len(cells))


READER = P2p
