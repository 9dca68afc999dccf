"""Store a document in a page, and read it back.

The page holds the document as JSON. The document stores the rows of a job in columns. A value that all rows share is
stored once. If a job has more than MOST_EXACT rows, such as the pairs of a large world, it is stored in less detail.
The times and rates of such a job are rounded to steps of 0.1 %. The intervals, extremes and sample counts of such a job
are left out. The page states that details are missing, and so does the document that is read back from the page.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.core.links import FloorKind
from bench.core.printable import json_text
from bench.page.content import JobVerdict, PageContent
from bench.page.messages import PageCode
from bench.results.document import DOCUMENT_SCHEMA, Document, Summary
from bench.results.headline import NamedRun
from bench.results.table import plain

SCHEMA = "bench.page/1"
MOST_EXACT = 4096
_MOST_BYTES = 1 << 30  # limit for the JSON in a page, so that a damaged or hostile file cannot fill the memory
_MOST_PLAIN = 1 << 18  # bytes of JSON that stay readable in the page; larger JSON is compressed
_BEGIN, _END = '<script type="application/json" id="data"', "</script>"
_STEP = math.log(1.001)
_OLD_REFERENCE = "ping-pong"  # old pages lack the kind of a floor; the name of a measured floor begins with this text
# Fields that are not stored for a job with many rows, and the values that these rows get instead.
_LEFT_OUT: dict[str, Any] = {
    **dict.fromkeys(("num_effective", "ci_low_s", "ci_high_s", "min_s", "max_s", "p95_s", "p99_s", "last_arriver_s")),
    **dict.fromkeys(("slowest_rank", "calls_per_sample", "rotation", "host_median_s", "enqueue_fraction")),
    **dict.fromkeys(("burst_s", "sustained_s")),
    "devices": (),
    "num_samples": 0,
    "slowest_counts": (),
    "compat": {},
}


def script(content: PageContent) -> str:
    """Return the `<script>` element with the contents.

    Texts in this element are escaped, so that they cannot end the element.
    """
    data = json.dumps(_stored(content), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    encoded = json_text(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    if len(encoded) <= _MOST_PLAIN:
        return f"{_BEGIN}>{encoded}{_END}"
    return f'{_BEGIN} data-encoding="gzip">{_packed(encoded.encode())}{_END}'


def is_page(path: Path) -> bool:
    """Check whether a file's name has the suffix of a page."""
    return path.suffix in (".html", ".htm") and path.is_file()


def read(path: Path) -> PageContent:
    """Return the contents of a page. Raises UsageError if the file is not such a page."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"page {path} cannot be read ({error})") from None
    _, found, rest = content.partition(_BEGIN)
    attributes, _, data = rest.partition(">")
    if not found:
        raise UsageError(f"{path} is not a page of `linkbench report --html`: it has no data")
    try:
        text = data.partition(_END)[0]
        if "gzip" in attributes:
            text = _unpacked(text).decode()
        stored = json.loads(text)
        if stored["schema"] != SCHEMA:
            raise UsageError(f"{path}: schema {str(stored['schema'])[:40]!r} cannot be read (this is {SCHEMA})")
        verdicts = typed(tuple[JobVerdict, ...], stored["verdicts"])
        return PageContent(_document(stored), typed(NamedRun, stored["run"]), verdicts)
    except (KeyError, TypeError, ValueError, OSError, EOFError, RecursionError, AttributeError) as error:
        raise UsageError(f"{path}: the data of the page are damaged ({type(error).__name__}: {error})") from None


def _stored(content: PageContent) -> dict[str, Any]:
    document = content.document
    rest = {each.name: plain(getattr(document, each.name)) for each in fields(Document) if each.name != "summaries"}
    jobs = [list(rows) for _, rows in groupby(document.summaries, key=lambda row: row.job)]
    many = [rows for rows in jobs if len(rows) > MOST_EXACT]
    if many:
        note = Coded.of(PageCode.STEPS, jobs=[rows[0].job for rows in many], num=sum(map(len, many)))
        rest["notes"].append(plain(note))
    own = {"run": plain(content.run), "verdicts": plain(content.verdicts), "document": rest}
    return {"schema": SCHEMA, **own, "rows": [_columns(rows) for rows in jobs]}


def _document(stored: Mapping[str, Any]) -> Document:
    given = stored["document"]
    if given["schema"] != DOCUMENT_SCHEMA:
        raise ValueError(f"a document of schema {given['schema']}")
    found: Document = typed(Document, {**given, "summaries": ()})
    return replace(found, summaries=tuple(row for job in stored["rows"] for row in _rows(job)))


# -- rows


def _columns(rows: Sequence[Summary]) -> dict[str, Any]:
    """Return the rows of a job as columns of values.

    `same`: the values that all rows share. Each other column is a list or a packed column.
    """
    same: dict[str, Any] = {}
    columns: dict[str, Any] = {}
    many = len(rows) > MOST_EXACT
    median = np.array([row.median_s or math.nan for row in rows]) if many else np.array([])
    for name in (each.name for each in fields(Summary)):
        if many and name in _LEFT_OUT:
            same[name] = plain(_LEFT_OUT[name])
            continue
        values = [getattr(row, name) for row in rows]
        if all(value == values[0] for value in values):
            same[name] = plain(values[0])
        elif many:
            columns[name] = _packed_column(name, values, rows, median)
        else:
            columns[name] = plain(values)
    return {"num": len(rows), "same": same, "columns": columns}


def _rows(job: Mapping[str, Any]) -> list[Summary]:
    num = int(job["num"])
    types_of = _types(Summary)
    same = {name: typed(types_of[name], value) for name, value in job["same"].items() if name in types_of}
    columns: dict[str, Sequence[Any]] = {}
    for name, column in sorted(job["columns"].items(), key=lambda item: "by" in item[1]):
        values = column if isinstance(column, list) else _unpacked_column(column, columns, num)
        if len(values) != num:
            raise ValueError(f"column {name} has {len(values)} of {num} rows")
        columns[name] = [typed(types_of[name], value) for value in values]
    names = list(columns)
    found = []
    for values in zip(*columns.values(), strict=True) if columns else [()] * num:
        found.append(_with_floor_kind(Summary(**same, **dict(zip(names, values, strict=True)))))
    return found


def _with_floor_kind(row: Summary) -> Summary:
    """Return the row with the field `floor_kind` filled in.

    Older pages store only the name of the floor. The kind of the floor follows from its name.
    """
    if row.floor_s is None or row.floor_kind is not None:
        return row
    measured = str(row.floor_name).startswith(_OLD_REFERENCE)
    return replace(row, floor_kind=FloorKind.REFERENCE if measured else FloorKind.LINKS)


def _packed_column(name: str, values: Sequence[Any], rows: Sequence[Summary], median: Any) -> Any:
    """Return a column of many rows in a form that needs few bytes.

    A packed column has one of these forms, and stores:
    `pair`: no values, because src and dst determine the group.
    `over`: a single constant. The value of a row is this constant divided by the row's median.
    `whole`: whole numbers.
    `steps`: logarithms of the values, in steps of 0.1 %.
    `kinds`: the distinct values, and for each row the position of its value in this list.
    """
    if name == "group" and all(value == f"{row.src}-{row.dst}" for value, row in zip(values, rows, strict=True)):
        return {"by": "pair"}
    if all(isinstance(value, int) and 0 <= value < 1 << 16 for value in values) and name in ("src", "dst"):
        return {"whole": _packed(np.array(values, dtype="<u2").tobytes())}
    if all(value is None or (isinstance(value, float) and value > 0) for value in values):
        numbers = np.array([math.nan if value is None else value for value in values])
        product = numbers * median
        if name != "median_s" and np.ptp(product) <= 1e-9 * product[0]:
            return {"by": "over", "constant": float(product[0])}
        low = float(np.nanmin(numbers))
        steps = np.nan_to_num(np.round(np.log(numbers / low) / _STEP) + 1, nan=0)
        return {"steps": _packed(np.minimum(steps, 65535).astype("<u2").tobytes()), "low": low}
    kinds = list({json.dumps(plain(value)): value for value in values}.items())
    number = {key: index for index, (key, _) in enumerate(kinds)}
    indices = np.array(
        [number[json.dumps(plain(value))] for value in values], dtype="<u2" if len(kinds) < 65536 else "<u4"
    )
    return {
        "kinds": [plain(value) for _, value in kinds],
        "bytes": indices.dtype.itemsize,
        "of": _packed(indices.tobytes()),
    }


def _unpacked_column(column: Mapping[str, Any], columns: Mapping[str, Sequence[Any]], num: int) -> Sequence[Any]:
    if column.get("by") == "pair":
        return [f"{src}-{dst}" for src, dst in zip(columns["src"], columns["dst"], strict=True)]
    if column.get("by") == "over":
        return [None if median is None else column["constant"] / median for median in columns["median_s"]]
    if "whole" in column:
        whole: list[int] = np.frombuffer(_unpacked(column["whole"]), "<u2").tolist()
        return whole
    if "steps" in column:
        steps = np.frombuffer(_unpacked(column["steps"]), "<u2")
        numbers = column["low"] * np.exp((steps.astype(float) - 1) * _STEP)
        return [value if step else None for step, value in zip(steps.tolist(), numbers.tolist(), strict=True)]
    indices = np.frombuffer(_unpacked(column["of"]), "<u4" if column["bytes"] == 4 else "<u2")
    return [column["kinds"][index] for index in indices.tolist()]


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def _unpacked(text: str) -> bytes:
    with gzip.open(io.BytesIO(base64.b64decode(text, validate=True))) as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError("more than 1 GiB of data")
    return data


# -- plain values back to dataclasses


@cache
def _types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def typed(kind: Any, value: Any) -> Any:
    """Convert a plain value to the type that an annotation names.

    The type is a dataclass, a tuple or a mapping, and these types may be nested.
    """
    if is_dataclass(kind):
        names = _types(kind)  # type: ignore[arg-type]
        return kind(**{name: typed(names[name], each) for name, each in value.items() if name in names})  # type: ignore[operator]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and arguments[-1] is Ellipsis:
        return tuple(typed(arguments[0], each) for each in value)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else typed(next(each for each in arguments if each is not type(None)), value)
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(arguments) == 2:
        return {key: typed(arguments[1], each) for key, each in value.items()}
    return value
