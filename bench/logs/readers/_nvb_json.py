"""Collect the lines of nvbandwidth's JSON document until its braces close, and add the document to a run.

If a document is broken, its complete parts are read. Any value in the document may have a wrong type, so the type is
always checked.
"""

from __future__ import annotations

import json
import re
from array import array
from typing import Any

from bench.logs.foreign import Line
from bench.logs.messages import LogCode
from bench.logs.readers import _nvb_tests
from bench.logs.readers._nvb_run import NvbandwidthRun, NvbCode
from bench.logs.readers._run_notes import shown

BEGINS = re.compile(r'\{?\s*"nvbandwidth"\s*:')
_MOST_CHARACTERS = 16 << 20
# a repeated group; an alternative for each character would backtrack at each character
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_STRINGS = re.compile(_STRING)
# A line of a document as a program indents it: a bracket, a value, or a key with a bracket or a value.
_SCALAR = rf"(?:{_STRING}|-?\d[\d.eE+-]*|true|false|null|NaN|-?Infinity)"
_PRINTED = re.compile(rf"(?:(?:{_STRING}\s*:\s*)?(?:[\[{{](?:\s*[\]}}])?|{_SCALAR})?|[\]}}]+)\s*,?")
_NAME = re.compile(r'"name"\s*:\s*"((?:[^"\\]|\\.)*)"')
_LISTED = re.compile(r"\d+: (.+?)(?: \([0-9a-fA-F:.]+\))?(?:: \((\S+)\))?$")
_PAIR = re.compile(rf'"([^"\\]+)"\s*:\s*({_SCALAR})')


class NvbandwidthJsonCollector:
    """Collects one document.

    The first line contains the document's name. Lines of other programs are ignored.
    """

    def __init__(self, line: Line) -> None:
        self.line = line.number
        self.too_long = False
        self.closed = False
        self._texts: list[str] = []
        self._numbers = array("Q")
        self._depth = self._size = 0
        self._opened = False

    def feed(self, line: Line) -> None:
        """Add a line. If the attribute `closed` or `too_long` is true after this line, the document has ended."""
        text = line.text.strip()
        if not self._texts:
            text = text[text.index('"nvbandwidth"') :]
        elif not text or not (text[0] in '"{}[]' or _PRINTED.fullmatch(text)):
            return
        self._texts.append(text)
        self._numbers.append(line.number)
        self._size += len(text) + 1
        self.too_long = self._size > _MOST_CHARACTERS
        bare = _STRINGS.sub("", text) if '"' in text else text
        opened, closed = bare.count("{"), bare.count("}")
        self._opened = self._opened or opened > 0
        self._depth += opened - closed
        self.closed = self._opened and self._depth <= 0

    def line_of(self, key: str) -> int | None:
        """Return the number of the first line that contains a key, or None if no line contains the key."""
        found = (number for number, text in zip(self._numbers, self._texts, strict=True) if f'"{key}"' in text)
        return next(found, None)

    def read(self) -> tuple[dict[str, Any], list[int | None], bool]:
        """Return the value of "nvbandwidth", the line of each test case, and whether the document is complete."""
        text = ""
        for texts in (self._texts, filter(_PRINTED.fullmatch, self._texts)):
            text = "{" + "\n".join(texts)
            found = _parsed(text)
            if found is not None:
                return found, self._lines_of_names(found), True
        found = _salvaged(text)
        return found, self._lines_of_names(found), False

    def _lines_of_names(self, found: dict[str, Any]) -> list[int | None]:
        """Return, for each test case, the number of the line that contains the name of the test case.

        If the names in the document differ from the names in the lines, all numbers are None.
        """
        cases = found.get("testcases")
        cases = cases if isinstance(cases, list) else []
        wanted = [case.get("name") if isinstance(case, dict) else None for case in cases]
        pairs = zip(self._numbers, self._texts, strict=True)
        named = [(name, number) for number, text in pairs if '"name"' in text for name in _NAME.findall(text)]
        if [name for name, _ in named[: len(wanted)]] != wanted:
            return [None] * len(cases)
        return [number for _, number in named[: len(wanted)]]


def _parsed(text: str) -> dict[str, Any] | None:
    """Return the first complete value of "nvbandwidth", or None if there is no such value.

    Ignore the text after the value.
    """
    for ending in ("", "}"):
        try:
            value, _ = json.JSONDecoder().raw_decode(text + ending)
        except (ValueError, RecursionError):
            continue
        inner = value.get("nvbandwidth") if isinstance(value, dict) else None
        return inner if isinstance(inner, dict) else {}
    return None


def _salvaged(text: str) -> dict[str, Any]:
    """Return the complete test cases and plain values of a document that is cut or damaged."""
    start = re.search(r'"testcases"\s*:\s*\[', text)
    if start is None:
        return _plain(text)
    cases: list[Any] = []
    decoder, at = json.JSONDecoder(), start.end()
    while (brace := re.compile(r"[\s,]*(\{)").match(text, at)) is not None:
        try:
            value, at = decoder.raw_decode(text, brace.start(1))
        except (ValueError, RecursionError):
            break
        cases.append(value)
    return _plain(text[: start.start()]) | {"testcases": cases}


def _plain(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in _PAIR.findall(text):
        try:
            found[key] = json.loads(value)
        except ValueError:
            continue
    return found


def add_document(run: NvbandwidthRun, document: NvbandwidthJsonCollector, last: int) -> None:
    """Add a document to a run. `last`: the number of the document's last line."""
    found, lines, whole = document.read()
    if document.too_long:
        run.lose(last, NvbCode.DOCUMENT_TOO_LONG)
    elif not whole or not document.closed:
        run.lose(last, NvbCode.DOCUMENT_CUT)
    _add_banner(run, found)
    for index, case in enumerate(_list(found.get("testcases"))):
        _add_case(run, case if isinstance(case, dict) else {}, lines[index] if index < len(lines) else None)
    if (error := _text(found.get("error"))) is not None:
        run.fail(document.line_of("error"), LogCode.TOOL_ERROR, printed=shown(error))


def _add_banner(run: NvbandwidthRun, found: dict[str, object]) -> None:
    run.version = _text(found.get("version"))
    if (cuda := _text(found.get("CUDA Runtime Version"))) is not None:
        run.settings["cuda"] = cuda_version(cuda)
    if (driver := _text(found.get("Driver Version"))) is not None:
        run.settings["driver"] = driver
    for text in _list(found.get("GPU Device list")):
        if listed := _LISTED.match(_text(text) or ""):
            run.gpus.setdefault(listed[1])
            if listed[2]:
                run.hosts.setdefault(listed[2])
    if (warning := _text(found.get("warning"))) is not None:
        run.remark(None, NvbCode.TOOL_WARNING, printed=warning)


def _add_case(run: NvbandwidthRun, case: dict[str, object], line: int | None) -> None:
    name, status = _text(case.get("name")) or "a test without a name", _text(case.get("status"))
    rows = [_list(row) for row in _list(case.get("bandwidth_matrix"))]
    error = _text(case.get("error"))
    if status == "Waived":
        run.waived(line, name)
    elif status == "Running":
        run.fail(line, LogCode.NEVER_FINISHED, test=name)
    elif error is not None or status not in (None, "Passed"):
        run.fail(line, NvbCode.TEST_FAILED, test=name, printed=shown(str(error or status)))
    elif not rows:
        run.lose(line, LogCode.NO_TABLE, test=name)
    if rows:
        _add_table(run, case, name, rows, line)


def _add_table(
    run: NvbandwidthRun, case: dict[str, object], name: str, rows: list[list[object]], line: int | None
) -> None:
    columns = max(map(len, rows))
    ragged = sum(len(row) != columns for row in rows)
    if ragged:
        run.lose(line, NvbCode.ROWS_SHORTER, test=name, num=ragged, total=len(rows))
        rows = [row + [None] * (columns - len(row)) if columns <= 16 else row for row in rows]
    if "Total bandwidth" in (_text(case.get("bandwidth_description")) or "") and columns and len(rows) == 3 * columns:
        # since v0.6, each direction has a table, followed by a table of their sum
        for number, part in enumerate(_nvb_tests.PARTS):
            run.add(name, rows[number * columns : (number + 1) * columns], line, part)
    elif _nvb_tests.meaning(name, run.version).square and len(rows) != columns:
        run.lose(line, NvbCode.NOT_SQUARE, test=name, rows=len(rows), columns=columns)
        return
    else:
        run.add(name, rows, line)
    printed = case.get("sum")
    if isinstance(printed, int | float) and abs(printed) < 1e300:
        run.check_sum(name, float(printed), line, 0.0)


def _list(value: object) -> list[object]:
    """Return the value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    """Return a string or a number as text. Return None for any other value, and for an empty text."""
    if isinstance(value, str):
        return value.strip()[:400] or None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e15:
        return None
    return str(value)


def cuda_version(text: str) -> str:
    """Format a version code: `12040` becomes `12.4`."""
    return f"{int(text) // 1000}.{int(text) % 1000 // 10}" if re.fullmatch(r"[0-9]{4,6}", text) else text[:80]
