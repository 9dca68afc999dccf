"""Define code that the readers of tools with small outputs share.

Each result of such a tool is a named figure, and not a row for a size. A reader reads only one run at a time.

Tools of this kind do not print the command lines of other tools. A run ends where the next run begins.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

from bench.core.codes import Code, Coded
from bench.logs.foreign import OK, ForeignRow, ForeignRun, Line, Matrix, NamedFigure, Reader
from bench.logs.messages import LogCode
from bench.logs.readers._lines import FENCE
from bench.logs.readers._run_notes import RunNotes

LEFT_OUT = re.compile(r"\[?(?:\.{3,}|…)\]?$")
# Messages of CUDA, HIP, MPI, Python and the kernel when a tool ends with an error.
CRASH = re.compile(
    r"Segmentation fault|Caught signal \d|exited on signal|MPI_ABORT was invoked|srun: error:|Abort\(\d+\)"
    r"|CUDA error\b|Cuda failure|HIP error\b|NCCL error\b|Traceback \(most recent call last\)|out of memory"
    r"|(?:[A-Z][A-Za-z]+)?Error: |terminate called after throwing"
)
_MOST_PREFACE = 64
LONGEST_LINE = 1000  # characters; only JSON lines of these tools are longer
_MOST = 100_000  # figures, rows or cells of a run that are kept, at most
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,30})(?:\.[0-9]{0,30})?(?:[eE][-+]?[0-9]{1,3})?")


def number(text: str) -> float | None:
    """Parse a printed number, which may have thousands separators.

    Return None for any other text, including nan and inf.
    """
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text.replace(",", ""))
    return value if math.isfinite(value) else None


class FiguresRun(RunNotes):
    """A run whose lines the reader has not yet read completely."""

    most_remarks = 200

    def __init__(self, line: int) -> None:
        """Begin a run.

        `line`: the number of the first line of the run.
        """
        super().__init__()
        self.line = line
        self.figures: list[NamedFigure] = []
        self.rows: list[ForeignRow] = []
        self.matrices: list[Matrix] = []
        self.gpus: dict[str, None] = {}
        self.hosts: dict[str, None] = {}
        self.settings: dict[str, str] = {}
        self.translations: dict[Code, dict[str, Any]] = {}
        self.facts: dict[str, Any] = {}  # fields of the ForeignRun: pattern, num_ranks, tool_version, ...

    @abstractmethod
    def take(self, line: int, text: str) -> None:
        """Read one line of the run. The run's first line is also passed to this method."""

    def ended_by(self, text: str) -> bool:
        """Check whether this line, which `begins` has accepted, ends this run and begins the next run."""
        return self.has_results

    def close(self) -> None:
        """Finish the run after its last line. Conclusions that depend on all lines are drawn here."""

    @property
    def has_results(self) -> bool:
        """Whether any result was read."""
        return bool(self.figures or self.rows or self.matrices)

    def add(
        self, name: str, value: float | None, unit: str, where: str = "", *, status: str = OK, line: int = 0
    ) -> None:
        """Keep a figure. A figure without a value is left out."""
        if (value is not None or not unit) and len(self.figures) < _MOST:
            self.figures.append(NamedFigure(name, value, unit, where, status, line))

    def add_row(self, row: ForeignRow) -> None:
        """Keep a row."""
        if len(self.rows) < _MOST:
            self.rows.append(row)

    def translate(self, code: Code, **facts: Any) -> None:
        """Add a note that says how the results were converted.

        A second note with the same code replaces the first note.
        """
        self.translations[code] = facts

    def note_common(self, line: int, text: str) -> bool:
        """Add a note if the line is a crash message, or if it marks lines that were left out.

        Return whether a note was added.
        """
        if LEFT_OUT.match(text):
            self.lose(line, LogCode.LINES_LEFT_OUT)
            return True
        if CRASH.search(text[:2000]):
            self.fail(line, LogCode.TOOL_ERROR, printed=text.strip()[:200])
            return True
        return False

    def run(self, tool: str) -> ForeignRun:
        """Return the run with all data that the reader has read."""
        self.close()
        if not (self.figures or self.rows or self.matrices or self.failures or self.cuts):
            self.lose(self.line, LogCode.NO_ROWS)
        return ForeignRun(
            tool,
            status=self.status(),
            failure=self.failure(),
            hosts=tuple(self.hosts),
            gpus=tuple(self.gpus),
            rows=tuple(self.rows),
            matrices=tuple(self.matrices),
            remarks=self.all_remarks(),
            translations=tuple(Coded.of(code, **facts) for code, facts in self.translations.items()),
            settings=tuple(self.settings.items()),
            line=self.line,
            figures=tuple(self.figures),
            **self.facts,
        )


class FiguresReader(Reader):
    """Reads a file that may contain several runs, one after another.

    `preface`: a pattern for lines that a tool prints before a run begins. A line that matches this pattern belongs to
        the next run.
    """

    new_run: ClassVar[type[FiguresRun]]
    preface: ClassVar[re.Pattern[str] | None] = None

    def __init__(self) -> None:
        self._run: FiguresRun | None = None
        self._preface: deque[tuple[int, str]] = deque(maxlen=_MOST_PREFACE)

    def feed(self, line: Line) -> Iterator[ForeignRun]:
        """Read one line. Yield a run that ends before this line."""
        text = line.text[:LONGEST_LINE].strip()
        if not text:
            return
        if self.begins(text):
            if self._run is not None and self._run.ended_by(text):
                yield from self.finish()
            if self._run is None:
                self._run = self.new_run(line.number)
                for number_, earlier in self._preface:
                    self._run.take(number_, earlier)
                self._preface.clear()
        elif self.preface is not None and self.preface.match(text):
            self._preface.append((line.number, text))
        elif self._run is not None and text.startswith(FENCE) and self._run.has_results:
            yield from self.finish()
        if self._run is not None:
            self._run.take(line.number, text)

    def finish(self) -> Iterator[ForeignRun]:
        """Close the run, because the file has ended or the next run begins."""
        run, self._run = self._run, None
        if run is not None:
            yield run.run(self.tool)
