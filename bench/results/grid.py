"""Write one table in four formats.

Each column has a title, and a function that returns the text of a value. JSON and CSV contain the values themselves
instead of the texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.core import printable
from bench.results.table import NOTHING, Column, as_csv, as_json

__all__ = ["NOTHING", "Column", "as_csv", "markdown", "pipes", "render", "table"]


def render(
    form: str,
    schema: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Column],
    remarks: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> str:
    """Return rows in the format `form` (table, json, csv, markdown).

    JSON also has the schema, the remarks (as `notes`) and the keys of `more`. CSV has only the rows.
    """
    if form == "json":
        document = {"schema": schema, "rows": list(rows), **(more or {}), "notes": list(remarks)}
        return as_json(document)
    if form == "csv":
        return as_csv(rows)
    cells = [[printable.printable(column.cell(row)) for column in columns] for row in rows]
    return markdown(columns, cells, remarks) if form == "markdown" else table(columns, cells, remarks)


def table(columns: Sequence[Column], cells: Sequence[Sequence[str]], remarks: Sequence[str] = ()) -> str:
    """Return the table as aligned text, with the remarks below the table."""
    widths = [max(len(text) for text in (column.title, *(row[k] for row in cells))) for k, column in enumerate(columns)]
    lines = [
        _line(columns, [column.title for column in columns], widths),
        *(_line(columns, row, widths) for row in cells),
    ]
    return printable.joined([*lines, *(["", *(f"# {each}" for each in remarks)] if remarks else [])])


def markdown(columns: Sequence[Column], cells: Sequence[Sequence[str]], remarks: Sequence[str] = ()) -> str:
    """Return the table in the Markdown of GitHub, followed by the remarks as a list."""
    rule = "|" + "|".join("---:" if column.right else "---" for column in columns) + "|"
    head = "| " + " | ".join(column.title for column in columns) + " |"
    body = ["| " + " | ".join(map(printable.markdown_cell, row)) + " |" for row in cells]
    return printable.joined([head, rule, *body, *(["", *(f"- {each}" for each in remarks)] if remarks else [])])


def pipes(words: Iterable[str]) -> str:
    """Return one line of a GitHub table, for pages that write tables line by line."""
    return f"| {' | '.join(printable.printable(word).replace('|', '/') for word in words)} |"


def _line(columns: Sequence[Column], texts: Sequence[str], widths: Sequence[int]) -> str:
    told = zip(columns, texts, widths, strict=True)
    return "  ".join(text.rjust(width) if column.right else text.ljust(width) for column, text, width in told).rstrip()
