"""Write the JSON document that `linkbench import --format json` prints.

The document contains every run as the log shows it. The runs in the document are not yet converted to records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from bench.core import printable
from bench.logs.foreign import ForeignRow, ForeignRun, Matrix, MatrixCell, NamedFigure, Remark

SCHEMA = "bench.import/1"
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def render(runs: Iterable[tuple[str, ForeignRun]]) -> str:
    """Return the document as one text, with one record or matrix per line.

    Units are SI, and unknown values are null. `runs`: pairs of a file's name and a run in this file.
    """
    return "".join(pieces(runs))


def pieces(runs: Iterable[tuple[str, ForeignRun]]) -> Iterator[str]:
    """Yield the same document as `render`, but in pieces, because a large log gives a large document."""
    yield f'{{"schema": {json.dumps(SCHEMA)}, "runs": ['
    for number, (source, run) in enumerate(runs):
        yield ",\n" if number else "\n"
        yield from _run(source, run)
    yield "\n]}\n"


def _run(source: str, run: ForeignRun) -> Iterator[str]:
    failure = run.failure
    head = {
        "source": source,
        "line": run.line,
        "tool": run.tool,
        "tool_version": run.tool_version,
        "pattern": run.pattern,
        "num_ranks": run.num_ranks,
        "num_nodes": run.num_nodes,
        "status": run.status,
        "failure": failure.text if failure else None,
        "failure_code": str(failure.code) if failure else None,
        "failure_facts": dict(failure.facts) if failure else {},
        "hosts": run.hosts,
        "gpus": run.gpus,
    }
    yield f"{_json(head)[:-1]},\n"
    yield from _list("records", (_record(row, run.size_is_block) for row in run.rows))
    yield ",\n"
    yield from _list("matrices", map(_matrix, run.matrices))
    yield ",\n"
    if run.figures:
        yield from _list("figures", map(_figure, run.figures))
        yield ",\n"
    translations = [Remark(None, each.code, each.facts, each.text) for each in run.translations]
    yield from _list("warnings", (remark.to_dict() for remark in (*run.remarks, *translations)))
    yield "}"


def _list(name: str, values: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield f' "{name}": ['
    for number, value in enumerate(values):
        yield f"{',' * bool(number)}\n  {_json(value)}"
    yield "]"


def _record(row: ForeignRow, size_is_block: bool) -> dict[str, Any]:
    return {
        "payload_bytes": None if size_is_block else row.payload_bytes,
        "num_elements": row.num_elements,
        "dtype": row.dtype,
        "reduce_op": row.reduce_op,
        "root": row.root,
        "in_place": row.in_place,
        "time_s": _number(row.time_s),
        "algbw_bytes_per_s": _number(row.algbw_bytes_per_s),
        "busbw_bytes_per_s": _number(row.busbw_bytes_per_s),
        "num_wrong": row.num_wrong,
    }


def _matrix(matrix: Matrix) -> dict[str, Any]:
    return {
        "name": matrix.name,
        "unit": matrix.unit,
        "direction": matrix.direction,
        "engine": matrix.engine,
        "cells": list(map(_cell, matrix.cells)),
    }


def _cell(cell: MatrixCell) -> dict[str, Any]:
    found = {"src": cell.src, "dst": cell.dst, "value": _number(cell.value), "status": cell.status}
    if cell.payload_bytes is not None:
        found["payload_bytes"] = cell.payload_bytes
    return found


def _figure(figure: NamedFigure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "where": figure.where,
        "value": _number(figure.value),
        "unit": figure.unit,
        "status": figure.status,
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _json(value: dict[str, Any]) -> str:
    return printable.json_text(_ENCODER.encode(value))
