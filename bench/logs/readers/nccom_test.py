"""Read nccom-test (AWS Neuron): collectives between NeuronCores of Trainium and Inferentia, as tables or JSON.

According to the documentation, a rate is size / time in GiB per second. The tables of later versions (column
`time:avg(us)`) use 1e9 bytes per second. The reader therefore determines the unit from the rows. The unit is correct if
every rate equals size / time. The table does not state the operation or the ranks. Only a command line in the log
states the operation and the ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from bench.core.codes import Code, Coded
from bench.core.log_traits import LogTraits
from bench.logs.foreign import ForeignRow, ForeignRun, Line, Reader
from bench.logs.messages import LogCode
from bench.logs.readers._document import JsonCollector, figure, listing, mapping
from bench.logs.readers._figures_run import LONGEST_LINE, FiguresRun, number
from bench.logs.readers._lines import FENCE
from bench.logs.readers._run_notes import shown

_HEADER = re.compile(r"size\(B\)\s+count\(elems\)\s")
_COMMAND = re.compile(r"(?:^|[\s/])nccom-test\s+(.{1,2000})$")
_DOCUMENT = re.compile(r'\{?\s*"results"\s*:\s*\[?\s*(?:\{\s*)?$|\{\s*"results"\s*:\s*\[\s*\{\s*"size\(B\)"')
_FIRST_KEY = re.compile(r'"size\(B\)"\s*:')
_AVERAGE = re.compile(r"Avg bus bandwidth:\s*([0-9.]{1,20})\s?GB/s$")
_FAILED = re.compile(
    r"\d{1,15}\s+(Failure .{1,300})$|\d+ errors? found - test failed|Neuron DKMS Driver is not running"
)
_OPERATIONS = {
    "all_reduce": "allreduce",
    "allr": "allreduce",
    "all_gather": "allgather",
    "allg": "allgather",
    "reduce_scatter": "reducescatter",
    "redsct": "reducescatter",
    "sendrecv": "sendrecv",
    "alltoall": "alltoall",
    "alltoallv": "alltoallv",
    "all_gatherv": None,
    "allgv": None,
    "permute": None,
}
_TYPES = {
    "uint8": "uint8",
    "int8": "int8",
    "uint16": "uint16",
    "int16": "int16",
    "uint32": "uint32",
    "int32": "int32",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
}
_MEAN = ("time:avg(us)", "time(us)")
_GIB, _GB = 2.0**30, 1e9


class NccomCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    NO_BOUND = "no-bound-nccom", "the links of Trainium and Inferentia machines are not in the catalogue"
    GIB = "gib", "GB/s is 2^30 bytes per second here: only in this unit are the rates size / time"
    UNIT_UNKNOWN = (
        "unit-of-rates-unknown",
        "the printed rates are not size / time in any unit: only the times are kept",
    )
    OPERATION_UNKNOWN = "operation-unknown", "no command line names the operation and the ranks"
    DOCUMENT_CUT = "document-cut", "the JSON document is cut or damaged; it was not read"
    NO_AVERAGE = "no-average", "the last line (Avg bus bandwidth) is missing: rows may have followed"


class NccomRun(FiguresRun):
    """One table, or one document."""

    def __init__(self, line: int, command: str | None) -> None:
        super().__init__(line)
        self._columns: list[str] = []
        self._printed: list[tuple[int, dict[str, Any]]] = []  # line, and values by column
        self.over = False
        self._from_document = False
        if command is not None:
            self._read_command(command)

    @property
    def has_results(self) -> bool:
        """Whether a row was read."""
        return bool(self._printed or self.rows)

    @property
    def has_header(self) -> bool:
        """Whether the line with the column titles was read."""
        return bool(self._columns)

    def _read_command(self, command: str) -> None:
        words = command.split()
        for option, fact in (
            ("-r", "num_ranks"),
            ("--nworkers", "num_ranks"),
            ("-N", "num_nodes"),
            ("--nnodes", "num_nodes"),
        ):
            for word, following in pairwise(words):
                if word == option and re.fullmatch(r"\d{1,7}", following):
                    self.facts[fact] = int(following)
        if "num_ranks" in self.facts:
            self.facts.setdefault("num_nodes", 1)
        for word in words:
            if word in _OPERATIONS:
                self.facts["pattern"] = _OPERATIONS[word]
                self.settings["operation"] = word

    def take(self, line: int, text: str) -> None:
        """Read the titles, a row, or the last line."""
        if _HEADER.match(text):
            self._columns = text.split()
            if not {"algbw(GB/s)", "busbw(GB/s)"} <= set(self._columns):
                self.lose(line, LogCode.TABLE_UNKNOWN, printed=shown(text, 100))
        elif found := _FAILED.match(text):
            self.fail(line, LogCode.TOOL_ERROR, printed=shown(found[1] or text))
        elif found := _AVERAGE.match(text):
            self.over = True
            self.settings["average_busbw"] = found[1]
        elif text[0].isdigit() and self._columns:
            words = text.split()
            values = dict(zip(self._columns, words, strict=False))
            if len(words) != len(self._columns) or not self._is_row(values):
                self.lose(line, LogCode.ROW_UNREADABLE, printed=shown(text, 100))
            else:
                self._printed.append((line, values))
        else:
            self.note_common(line, text)

    def _is_row(self, values: dict[str, str]) -> bool:
        if values.get("type") not in _TYPES and not re.fullmatch(r"[a-z]\w{1,8}", values.get("type", "")):
            return False
        counts = all(re.fullmatch(r"\d{1,18}", values.get(name, "")) for name in ("size(B)", "count(elems)"))
        rates = all(re.fullmatch(r"\d{1,15}\.\d\d", values.get(name, "")) for name in ("algbw(GB/s)", "busbw(GB/s)"))
        return counts and rates and all(number(word) is not None for name, word in values.items() if "(us)" in name)

    def take_document(self, document: dict[str, Any]) -> None:
        """Read the rows of `--report-to-json-file`."""
        self._from_document = self.over = True
        for result in listing(document.get("results")):
            values = mapping(result)
            size = figure(values.get("size(B)"))
            if size is None or not 0 <= size < 1 << 60 or figure(values.get("algbw(GB/s)")) is None:
                self.lose(self.line, LogCode.ROW_UNREADABLE, printed=shown(str(result), 100))
            else:
                self._printed.append((self.line, values))

    def close(self) -> None:
        """Find the unit of the rates, then build the rows."""
        printed, self._printed = self._printed, []
        unit = self._unit(printed)
        if printed and unit is None:
            self.remark(None, NccomCode.UNIT_UNKNOWN)
        if unit == _GIB:
            self.translate(NccomCode.GIB)
        for line, values in printed:
            self.add_row(self._row(line, values, unit))
        if printed and "operation" not in self.settings:
            self.remark(None, NccomCode.OPERATION_UNKNOWN)
        if printed and not self.over and not self.failures:
            self.lose(printed[-1][0], NccomCode.NO_AVERAGE)

    def _unit(self, printed: list[tuple[int, dict[str, Any]]]) -> float | None:
        """Return the number of bytes per second in one printed GB/s.

        The unit is correct if every rate equals size / time. Return None if no unit fits all rates. Printed rates of
        small sizes have too few digits to determine the unit. If no rate has enough digits, the function uses the unit
        of the version whose tables have this column.
        """
        fitting = {_GIB, _GB}
        mean = ""
        for _, values in printed:
            mean = next((name for name in _MEAN if name in values), "")
            seconds, rate, size = (_value(values.get(name)) for name in (mean, "algbw(GB/s)", "size(B)"))
            if seconds is None or rate is None or size is None or seconds <= 0:
                continue
            digit = 0.005 if self._from_document or "." in str(values.get(mean)) else 0.5
            low, high = size / (seconds + digit) * 1e6, size / max(seconds - digit, 1e-3) * 1e6
            fitting = {unit for unit in fitting if (rate + 0.006) * unit >= low and (rate - 0.006) * unit <= high}
        if len(fitting) == 2:
            return _GB if mean == "time:avg(us)" else _GIB if mean else None
        return fitting.pop() if fitting else None

    def _row(self, line: int, values: dict[str, Any], unit: float | None) -> ForeignRow:
        mean = next((name for name in _MEAN if name in values), "")
        seconds, algbw, busbw = (_value(values.get(name)) for name in (mean, "algbw(GB/s)", "busbw(GB/s)"))
        count = _value(values.get("count(elems)"))
        return ForeignRow(
            int(_value(values.get("size(B)")) or 0),
            num_elements=None if count is None else int(count),
            dtype=_TYPES.get(str(values.get("type"))),
            reduce_op="sum" if self.facts.get("pattern") in ("allreduce", "reducescatter") else None,
            time_s=None if seconds is None else seconds * 1e-6,
            algbw_bytes_per_s=None if algbw is None or unit is None else algbw * unit,
            busbw_bytes_per_s=None if busbw is None or unit is None else busbw * unit,
            line=line,
        )


def _value(value: object) -> float | None:
    return number(value) if isinstance(value, str) else figure(value)


class NccomTest(Reader):
    """Reads a file that may contain several tables and documents."""

    tool = "nccom_test"
    traits = LogTraits(without_bound=Coded.of(NccomCode.NO_BOUND))
    hints = ("size(b)", "nccom-test")

    def __init__(self) -> None:
        self._run: NccomRun | None = None
        self._command: str | None = None
        self._document: JsonCollector | None = None
        self._results_line = ""

    def begins(self, text: str) -> bool:
        """Check whether the line is a command line, the titles of the columns, or the first size of a document."""
        text = text[: 2 * LONGEST_LINE].strip()
        command = _COMMAND.search(text) if "nccom-test" in text[:500] else None
        if command is not None and re.search(r"(?:^|\s)(?:-r|--nworkers)\s+\d", command[1]):
            return True
        return _HEADER.match(text) is not None or _FIRST_KEY.match(text) is not None or self._is_document(text)

    @staticmethod
    def _is_document(text: str) -> bool:
        found = _DOCUMENT.match(text)
        return found is not None and '"size(B)"' in found[0]

    def feed(self, line: Line) -> Iterator[ForeignRun]:
        """Read one line. Yield the runs that end with this line."""
        text = line.text.strip()
        if not text:
            return
        if self._document is None and (_FIRST_KEY.match(text) or self._is_document(text)):
            yield from self.finish()
            self._document = JsonCollector(line.number)
            text = text if self._is_document(text) else f'{{"results": [{{{text}'
        if self._document is not None:
            if self._document.feed(text):
                yield from self._end_document()
        else:
            yield from self._take_text(line.number, text)

    def _take_text(self, line: int, text: str) -> Iterator[ForeignRun]:
        """Read a command line, or a line of a table. Yield a run that ends before this line."""
        text = text[: 2 * LONGEST_LINE]
        command = _COMMAND.search(text) if "nccom-test" in text[:500] else None
        begins_table = _HEADER.match(text) is not None
        failed = self._command is not None and _FAILED.match(text) is not None
        run = self._run
        if command is not None:
            yield from self.finish()
            self._command = command[1]
            return
        if run is not None and (text.startswith(FENCE) or (begins_table and run.has_header)):
            yield from self.finish()
        if self._run is None and (begins_table or failed):
            self._run = NccomRun(line, self._command)
        if self._run is not None and (not self._run.over or _FAILED.match(text)):
            self._run.take(line, text)

    def _end_document(self) -> Iterator[ForeignRun]:
        collector, self._document = self._document, None
        if collector is None:
            return
        run = NccomRun(collector.line, self._command)
        document = collector.read()
        if document is None:
            run.lose(collector.line, NccomCode.DOCUMENT_CUT)
        else:
            run.take_document(document)
        yield run.run(self.tool)

    def finish(self) -> Iterator[ForeignRun]:
        """Close the run, because the file has ended or the next run begins."""
        run, self._run = self._run, None
        if run is not None:
            yield run.run(self.tool)
        yield from self._end_document()


READER = NccomTest
