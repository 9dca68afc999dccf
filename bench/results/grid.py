"""One table in four formats: columns with titles and how a value is shown; JSON and CSV keep the bare values."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """`title`: above it; `shown`: the cell of a row; `right`: numbers stand at the right."""

    title: str
    shown: Callable[[Mapping[str, Any]], str]
    right: bool = True


def render(
    form: str,
    schema: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    remarks: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> str:
    """Rows as `form` (table, json, csv, markdown). JSON: schema, rows, notes and `more`; CSV: the rows alone."""
    if form == "json":
        document = {"schema": schema, "rows": list(rows), **(more or {}), "notes": list(remarks)}
        return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False)
    if form == "csv":
        return as_csv(rows)
    cells = [[column.shown(row) for column in columns] for row in rows]
    return markdown(columns, cells, remarks) if form == "markdown" else table(columns, cells, remarks)


def table(columns: Sequence[Column], cells: Sequence[Sequence[str]], remarks: Sequence[str] = ()) -> str:
    """Aligned text, remarks below."""
    widths = [max(len(text) for text in (column.title, *(row[k] for row in cells))) for k, column in enumerate(columns)]
    lines = [
        _line(columns, [column.title for column in columns], widths),
        *(_line(columns, row, widths) for row in cells),
    ]
    return "\n".join([*lines, *(["", *(f"# {each}" for each in remarks)] if remarks else [])])


def markdown(columns: Sequence[Column], cells: Sequence[Sequence[str]], remarks: Sequence[str] = ()) -> str:
    """A GitHub table, remarks below as a list."""
    rule = "|" + "|".join("---:" if column.right else "---" for column in columns) + "|"
    head = "| " + " | ".join(column.title for column in columns) + " |"
    body = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in cells]
    return "\n".join([head, rule, *body, *(["", *(f"- {each}" for each in remarks)] if remarks else [])])


def pipes(words: Iterable[str]) -> str:
    """One line of a GitHub table, for pages that write theirs line by line."""
    return f"| {' | '.join(word.replace('|', '/') for word in words)} |"


def _line(columns: Sequence[Column], texts: Sequence[str], widths: Sequence[int]) -> str:
    told = zip(columns, texts, widths, strict=True)
    return "  ".join(text.rjust(width) if column.right else text.ljust(width) for column, text, width in told).rstrip()


def as_csv(rows: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None) -> str:
    """A line of `names` (of all that rows have, in the order of their appearance) and one for each row."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row)) if names is None else names
    writer = csv.DictWriter(text, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "; ".join(map(str, value))
    return json.dumps(value) if isinstance(value, dict) else value
