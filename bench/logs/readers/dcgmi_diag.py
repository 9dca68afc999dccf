"""Read `dcgmi diag -j` (DCGM).

DCGM reports, for each test and GPU, whether the test passed, failed, warned or was skipped. Its messages contain
figures.

DCGM 2 and 3 print one result for each GPU (`gpu_ids`, in older versions `gpu_id`). DCGM 4 prints one result for each
entity. The software tests of older versions print one result for all GPUs. A result may contain the texts `warnings`
and `info`. Numbers with a unit in these texts ("31.2 GB/s", "94.5 W") become figures of the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from bench.core.codes import Code, Coded
from bench.core.log_traits import LogTraits
from bench.logs.foreign import FAILED, OK, ForeignRun, Line, Reader
from bench.logs.messages import LogCode
from bench.logs.readers._document import JsonCollector, listing, mapping
from bench.logs.readers._figures_run import FiguresRun, number
from bench.logs.readers._run_notes import shown

_BEGIN = re.compile(r'\{?\s*"DCGM (?:GPU )?Diagnostic"\s*:')
_STATUS = {
    "pass": OK,
    "fail": FAILED,
    "warn": "warning",
    "skip": "waived",
    "skipped": "waived",
    "not run": "waived",
    "not_run": "waived",
}
# A name, followed by a value with a known unit: "GPU to Host bandwidth:\t\t\t26.01 GB/s".
_FIGURE = re.compile(
    r"([A-Za-z][\w /()>.-]{2,80}?)[:=]?\s+([0-9][0-9.,]{0,20})\s*(GB/s|MB/s|us|ms|W|GFLOPS|GFlops|bytes|%)(?![\w/])"
)
_UNITS = {
    "GB/s": ("bytes_per_s", 1e9),
    "us": ("s", 1e-6),
    "ms": ("s", 1e-3),
    "%": ("percent", 1.0),
    "bytes": ("bytes", 1.0),
}
_MOST_FIGURES = 5000


class DcgmiCode(Code):
    """Codes for the problems and notes that this reader reports about a log.

    Codes that several readers share are in logs/messages.py.
    """

    NO_BOUND = (
        "no-bound-dcgmi",
        "this is a diagnosis: DCGM's own verdicts count, and DCGM has its own thresholds for the figures",
    )
    DIAG_FAILED = "diag-failed", "{num:n test} failed: {tests:list 6}"
    DIAG_MESSAGE = "diag-message", "{test}: {printed}"
    STATUS_UNKNOWN = "status-unknown", "{test} has the unknown result {printed}"
    DOCUMENT_CUT = "document-cut", "the JSON document is cut or damaged; it was not read"
    NO_TESTS = "no-tests", "the document lists no test"


class DcgmiRun(FiguresRun):
    """A document whose lines are still being read."""

    def take(self, line: int, text: str) -> None:
        """Ignore the line, because only whole documents are read."""

    def take_document(self, document: dict[str, Any]) -> None:
        """Read every result of every test."""
        top = mapping(document.get("DCGM Diagnostic") or document.get("DCGM GPU Diagnostic"))
        metadata = mapping(document.get("metadata"))
        version = metadata.get("version") or top.get("version")
        if isinstance(version, str):
            self.facts["tool_version"] = version
        driver = metadata.get("Driver Version Detected") or top.get("Driver Version Detected")
        if isinstance(driver, str):
            self.settings["driver"] = driver
        for key in ("runtime_error", "Warning"):
            if isinstance(top.get(key), str) and top[key]:
                self.fail(self.line, LogCode.TOOL_ERROR, printed=shown(top[key]))
        failed: list[str] = []
        for category in listing(top.get("test_categories")):
            group = str(mapping(category).get("category", ""))
            for test in listing(mapping(category).get("tests")):
                failed += self._take_test(group, mapping(test))
        if failed:
            self.fail(None, DcgmiCode.DIAG_FAILED, num=len(failed), tests=failed[:20])
        if not self.figures and not self.failures:
            self.lose(self.line, DcgmiCode.NO_TESTS)
        order = {FAILED: 0, "warning": 1}
        self.figures.sort(key=lambda figure: order.get(figure.status, 2))

    def _take_test(self, group: str, test: dict[str, Any]) -> list[str]:
        """Keep the results of a test, and return the labels of failed results."""
        name = ": ".join(filter(None, (group, str(test.get("name", "")))))
        results = listing(test.get("results"))
        if not results and test.get("test_summary"):
            results = [test["test_summary"]]
        failed = []
        for result in results:
            values = mapping(result)
            where = _where(values)
            printed = str(values.get("status", ""))
            status = _STATUS.get(printed.strip().lower())
            label = f"{name} ({where})" if where else name
            if status is None:
                self.lose(self.line, DcgmiCode.STATUS_UNKNOWN, test=label, printed=shown(printed, 60))
                continue
            self.add(name, None, "", where, status=status, line=self.line)
            if status == FAILED:
                failed.append(label)
            for message in _messages(values):
                if status in (FAILED, "warning"):
                    self.remark(None, DcgmiCode.DIAG_MESSAGE, test=label, printed=shown(message, 300))
                self._take_figures(name, where, message)
        return failed

    def _take_figures(self, name: str, where: str, message: str) -> None:
        for text in message[:4000].splitlines():
            for label, printed, unit in _FIGURE.findall(text):
                value = number(printed)
                if unit in _UNITS and value is not None and len(self.figures) < _MOST_FIGURES:
                    ours, scale = _UNITS[unit]
                    self.add(f"{name}, {' '.join(label.split())}", value * scale, ours, where, line=self.line)


def _where(values: dict[str, Any]) -> str:
    """Return the part of the machine to which a result belongs.

    For example, `"gpu_ids": "3"` and the entity 3 of the group "gpu" give `gpu3`. The part is "" for a result of all
    GPUs.
    """
    group, entity = values.get("entity_group"), values.get("entity_id")
    if isinstance(group, str) and isinstance(entity, int):
        return f"{group.lower()}{entity}"
    ids = values.get("gpu_ids", values.get("gpu_id"))
    if isinstance(ids, int) and not isinstance(ids, bool):
        return f"gpu{ids}"
    if isinstance(ids, str) and re.fullmatch(r"\d{1,3}", ids):
        return f"gpu{ids}"
    return f"gpus {ids}" if isinstance(ids, str) and len(ids) < 200 else ""


def _messages(values: dict[str, Any]) -> Iterator[str]:
    for key in ("warnings", "info"):
        given = values.get(key)
        for message in given if isinstance(given, list) else [given]:
            text = message.get("warning") if isinstance(message, dict) else message
            if isinstance(text, str) and text:
                yield text


class DcgmiDiag(Reader):
    """Reads a file that may contain several documents."""

    tool = "dcgmi_diag"
    traits = LogTraits(without_bound=Coded.of(DcgmiCode.NO_BOUND))
    hints = ('diagnostic"',)

    def __init__(self) -> None:
        self._document: JsonCollector | None = None

    def begins(self, text: str) -> bool:
        """Check whether the line has the first key of its document."""
        return _BEGIN.match(text.strip()) is not None

    def feed(self, line: Line) -> Iterator[ForeignRun]:
        """Read one line. Yield the run if the run ends with this line."""
        text = line.text.strip()
        if self._document is None:
            if not self.begins(text):
                return
            self._document = JsonCollector(line.number)
        if text and self._document.feed(text):
            yield from self.finish()

    def finish(self) -> Iterator[ForeignRun]:
        """Close the run, because its document or the file has ended."""
        collector, self._document = self._document, None
        if collector is None:
            return
        run = DcgmiRun(collector.line)
        document = collector.read()
        if document is None:
            run.lose(collector.line, DcgmiCode.DOCUMENT_CUT)
        else:
            run.take_document(document)
        yield run.run(self.tool)


READER = DcgmiDiag
