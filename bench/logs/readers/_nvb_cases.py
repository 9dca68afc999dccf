"""What the JSON document of nvbandwidth says. Nothing in it is taken to be of the type that it should have."""

from __future__ import annotations

import re

from bench.logs.readers import _nvb_tests
from bench.logs.readers._nvb_json import NvbandwidthJsonCollector
from bench.logs.readers._nvb_run import NvbandwidthRun

_LISTED = re.compile(r"\d+: (.+?)(?: \([0-9a-fA-F:.]+\))?(?:: \((\S+)\))?$")


def take(run: NvbandwidthRun, document: NvbandwidthJsonCollector, last: int) -> None:
    """Put a document into a run; `last` is the line where it ended."""
    found, lines, whole = document.read()
    if document.too_long:
        run.lose(last, "the document is too long and was given up")
    elif not whole or not document.closed:
        run.lose(last, "the document is cut or spoilt: what stands whole in it was read")
    _take_banner(run, found)
    for index, case in enumerate(as_list(found.get("testcases"))):
        _take_case(run, case if isinstance(case, dict) else {}, lines[index] if index < len(lines) else None)
    if (error := as_text(found.get("error"))) is not None:
        run.fail(document.line_of("error"), error)


def _take_banner(run: NvbandwidthRun, found: dict[str, object]) -> None:
    run.version = as_text(found.get("version"))
    if (cuda := as_text(found.get("CUDA Runtime Version"))) is not None:
        run.settings["cuda"] = cuda_version(cuda)
    if (driver := as_text(found.get("Driver Version"))) is not None:
        run.settings["driver"] = driver
    for text in as_list(found.get("GPU Device list")):
        if listed := _LISTED.match(as_text(text) or ""):
            run.gpus.setdefault(listed[1])
            if listed[2]:
                run.hosts.setdefault(listed[2])
    if (warning := as_text(found.get("warning"))) is not None:
        run.say(None, warning)


def _take_case(run: NvbandwidthRun, case: dict[str, object], line: int | None) -> None:
    name, status = as_text(case.get("name")) or "a test that is not named", as_text(case.get("status"))
    rows = [as_list(row) for row in as_list(case.get("bandwidth_matrix"))]
    error = as_text(case.get("error"))
    if status == "Waived":
        run.waived(line, name)
    elif status == "Running":
        run.fail(line, f"{name} never finished: its status is Running")
    elif error is not None or status not in (None, "Passed"):
        run.fail(line, f"{name}: {error or status}")
    elif not rows:
        run.lose(line, f"{name} has no table")
    if rows:
        _take_table(run, case, name, rows, line)


def _take_table(
    run: NvbandwidthRun, case: dict[str, object], name: str, rows: list[list[object]], line: int | None
) -> None:
    columns = max(map(len, rows))
    ragged = sum(len(row) != columns for row in rows)
    if ragged:
        run.lose(line, f"{name}: {ragged} of {len(rows)} rows are shorter than the others")
        rows = [row + [None] * (columns - len(row)) if columns <= 16 else row for row in rows]
    if "Total bandwidth" in (as_text(case.get("bandwidth_description")) or "") and columns and len(rows) == 3 * columns:
        for number, part in enumerate(_nvb_tests.PARTS):  # since v0.6: each direction, then their sum, stacked
            run.add(name, rows[number * columns : (number + 1) * columns], line, part)
    elif _nvb_tests.meaning(name, run.version).square and len(rows) != columns:
        run.lose(line, f"{name}: {len(rows)} rows for {columns} columns are no table of pairs, and are left out")
        return
    else:
        run.add(name, rows, line)
    printed = case.get("sum")
    if isinstance(printed, int | float) and abs(printed) < 1e300:
        run.check_sum(name, float(printed), line, 0.0)


def as_list(value: object) -> list[object]:
    """A list, or none."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str | None:
    """A string or a number as text; None for what is empty or neither."""
    if isinstance(value, str):
        return value.strip()[:400] or None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e15:
        return None
    return str(value)


def cuda_version(text: str) -> str:
    """12.4 of 12040."""
    return f"{int(text) // 1000}.{int(text) % 1000 // 10}" if re.fullmatch(r"[0-9]{4,6}", text) else text[:80]
