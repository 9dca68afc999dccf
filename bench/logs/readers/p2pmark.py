"""Read p2pmark: bandwidths of copies between GPUs, one pair at a time or all at once, latencies, and scores.

According to the program's source, GB/s are 1e9 bytes per second. In the matrix of bandwidths, the GPU of the row sends
to the GPU of the column. In the matrix of latencies, the GPU of the row reads from the GPU of the column. "Dense
interconnect" is the rate of all pairs together, divided by the sum of the rates of single pairs.
"""

from __future__ import annotations

import re

from bench.core.codes import Code, Coded
from bench.core.log_traits import LogTraits
from bench.logs.foreign import OK, Matrix, MatrixCell
from bench.logs.messages import LogCode
from bench.logs.readers._figures_run import LONGEST_LINE, FiguresReader, FiguresRun, number
from bench.logs.readers._run_notes import shown

_N = r"([0-9.]{1,20})"
_SECTION = re.compile(
    r"=== (Sequential P2P bandwidth|Sequential P2P latency|Topology probe[^=(]*|Single (?:reader|GPU)[^=(]*"
    r"|Ring bandwidth[^=(]*|All-to-all fabric stress test|All GPUs read all peers simultaneously"
    r"|LATENCY MODE|ALLREDUCE MODE|TP INFERENCE PREFILL SIMULATION)[^=]*===$"
)
_TRANSFER = re.compile(r"Each transfer: (\d{1,9}) MB,")
_COLUMNS = re.compile(r"(Dst|Src)->((?:\s+GPU\d{1,3})+)$")
_ROW = re.compile(r"GPU (\d{1,3}):((?:\s+(?:-|[0-9.]{1,20}))+)$")
_PER_GPU = re.compile(rf"GPU (\d{{1,3}})(?: (?:reads from|writes to) all peers)?: {_N} (GB/s|us)(?: \(.*\))?$")
_PAIR = re.compile(rf"GPU (\d{{1,3}}) -> GPU (\d{{1,3}}): {_N} GB/s$")
_PROBE = re.compile(rf"\+(\d{{1,3}})\s+(?:\d+(?:->|<-)\d+\s+)+{_N}(?: us)? avg(?:\s+{_N} total)?$")
_TOTAL = re.compile(rf"((?:Total|Effective) [\w -]{{3,40}}bandwidth(?: \(sequential\))?): {_N} GB/s")
_MEAN_LATENCY = re.compile(rf"(Average 1:1 latency): {_N} us$")
_SCORE = re.compile(rf"(PCIe LINK SCORE|DENSE INTERCONNECT SCORE):\s+{_N}$")
_OF_SCORE = re.compile(rf"\({_N} GB/s (avg|measured)\s+/\s+{_N} GB/s (.{{3,60}})\)$")
_LATENCY = re.compile(
    rf"(Min latency|Mean latency|EFFECTIVE LATENCY|P2P LATENCY|LOADED LATENCY):\s+{_N} us\s+\((.{{3,80}})\)$"
)
_ALLREDUCE = re.compile(rf"(\d{{1,6}}) (B|KB|MB)\s+{_N}\s+{_N}\s+(\w+) \({_N}x\)$")
_ERROR = re.compile(r"(?:NCCL|CUDA) error |Allreduce mode requires|TP sim requires")
_BYTES = {"B": 1, "KB": 1024, "MB": 1 << 20}


class P2pMarkCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    NO_BOUND = (
        "no-bound-p2pmark",
        "a score is a ratio of the tool's own figures, always against PCIe 5 x16; the matrix above it is missing",
    )
    SCORE_OF_PCIE_5 = (
        "score-of-pcie-5",
        "the PCIe score always compares with PCIe 5 x16, so an older or narrower link never reaches 1",
    )
    SIMULATED = "simulated", "the table of simulated inference is not kept: it is computed from the times above"


class P2pMarkRun(FiguresRun):
    """One run, which consists of sections with matrices and lists, and of the scores at the end."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self._section = ""
        self._payload: int | None = None
        self._columns: list[int] = []
        self._cells: list[MatrixCell] = []
        self._matrix_line = 0
        self._last = ""
        self._scores: list[str] = []

    @property
    def has_results(self) -> bool:
        """Whether any result was read."""
        return bool(self.figures or self.matrices or self._cells)

    def ended_by(self, text: str) -> bool:
        """Check whether the line is the first section of the next run, or a second score."""
        if self._scores and (_SECTION.match(text) and "bandwidth" in text and "Sequential" in text):
            return True
        found = _SCORE.match(text)
        return found is not None and found[1] in self._scores

    def take(self, line: int, text: str) -> None:
        """Read one line of the run."""
        if found := _SECTION.match(text):
            self._end_matrix()
            self._section = " ".join(found[1].split())
            if self._section.startswith("TP INFERENCE"):
                self.remark(line, P2pMarkCode.SIMULATED)
        elif found := _COLUMNS.match(text):
            self._columns = [int(word[3:]) for word in found[2].split()]
            self._matrix_line = line
        elif self._columns and (found := _ROW.match(text)):
            self._take_row(line, text, int(found[1]), found[2].split())
        elif found := _PER_GPU.match(text):
            scale, unit = (1e9, "bytes_per_s") if found[3] == "GB/s" else (1e-6, "s")
            self._figure(self._section or "all peers", found[2], unit, scale, f"gpu{int(found[1])}", line)
        elif found := _TRANSFER.match(text):
            self._payload = int(found[1]) << 20
        elif found := _PAIR.match(text):
            where = f"gpu{int(found[1])} to gpu{int(found[2])}"
            self._figure(self._section, found[3], "bytes_per_s", 1e9, where, line)
        elif found := _PROBE.match(text):
            in_us = " us avg" in text
            scale, unit = (1e-6, "s") if in_us else (1e9, "bytes_per_s")
            self._figure(f"{self._section}, mean", found[2], unit, scale, f"distance {found[1]}", line)
        else:
            self._take_summary(line, text)

    def _take_summary(self, line: int, text: str) -> None:
        if found := _SCORE.match(text):
            self._end_matrix()
            self._last = found[1]
            self._scores.append(found[1])
            self._figure(found[1], found[2], "ratio", 1.0, "", line)
            if found[1].startswith("PCIe"):
                self.translate(P2pMarkCode.SCORE_OF_PCIE_5)
        elif (found := _OF_SCORE.match(text)) and self._last:
            self._figure(f"{self._last}, {found[2]}", found[1], "bytes_per_s", 1e9, "", line)
            self._figure(f"{self._last}, {found[4]}", found[3], "bytes_per_s", 1e9, "", line)
        elif found := _LATENCY.match(text):
            self._end_matrix()
            self._figure(f"{found[1]} ({found[3]})", found[2], "s", 1e-6, "", line)
        elif found := _TOTAL.match(text):
            self._figure(found[1], found[2], "bytes_per_s", 1e9, "", line)
        elif found := _MEAN_LATENCY.match(text):
            self._figure(found[1], found[2], "s", 1e-6, "", line)
        elif self._section == "ALLREDUCE MODE" and (found := _ALLREDUCE.match(text)):
            where = f"{int(found[1]) * _BYTES[found[2]]} bytes"
            self._figure("allreduce, custom kernel", found[3], "s", 1e-6, where, line)
            self._figure("allreduce, NCCL", found[4], "s", 1e-6, where, line)
        elif _ERROR.match(text):
            self.fail(line, LogCode.TOOL_ERROR, printed=shown(text))
        elif "SCORE:" in text or (self._columns and text.startswith("GPU ")):
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 100))
        else:
            self.note_common(line, text)

    def _figure(self, name: str, printed: str, unit: str, scale: float, where: str, line: int) -> None:
        value = number(printed)
        if value is None:
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(f"{name}: {printed}", 100))
        else:
            self.add(name, value * scale, unit, where, line=line)

    def _take_row(self, line: int, text: str, row: int, words: list[str]) -> None:
        if len(words) != len(self._columns) or (words[-1] != "-" and not re.fullmatch(r"\d+\.\d\d", words[-1])):
            self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 100))
            return
        scale = 1e-6 if "latency" in self._section else 1e9
        for column, word in zip(self._columns, words, strict=True):
            value = number(word)
            if row != column and len(self._cells) < 10_000:
                good = value is not None and value > 0
                kept = value * scale if value is not None and good else None
                self._cells.append(MatrixCell(f"gpu{row}", f"gpu{column}", kept, OK if good else "unreadable"))

    def _end_matrix(self) -> None:
        if self._cells:
            loads = "latency" in self._section
            name, unit, direction = self._section, "s" if loads else "bytes_per_s", "load" if loads else "d2d"
            payload = None if loads else self._payload
            self.matrices.append(
                Matrix(
                    name, unit, direction, None if not loads else "sm", tuple(self._cells), payload, self._matrix_line
                )
            )
        self._cells, self._columns = [], []

    def close(self) -> None:
        """Add the last matrix. Move the scores to the front, so that the page shows the scores."""
        self._end_matrix()
        self.figures.sort(key=lambda figure: figure.name not in ("PCIe LINK SCORE", "DENSE INTERCONNECT SCORE"))


class P2pMark(FiguresReader):
    """Reads a file that may contain several runs."""

    tool = "p2pmark"
    traits = LogTraits(copies=True, without_bound=Coded.of(P2pMarkCode.NO_BOUND))
    hints = ("=== ", " score:", " latency:")
    new_run = P2pMarkRun

    def begins(self, text: str) -> bool:
        """Check whether the line is the title of a section, a score, or a closing latency."""
        text = text[:LONGEST_LINE].strip()
        return any(form.match(text) is not None for form in (_SECTION, _SCORE, _LATENCY))


READER = P2pMark
