"""Write Markdown for a page or a pull request: GitHub tables, and sentences as lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bench.core.printable import fenced
from bench.core.printable import lines as printable_lines
from bench.core.printable import markdown as escaped
from bench.results.table import NOTHING, Block, Column, Heading, Lines, Report, Table, Verbatim


def render(report: Report, width: int | None = None) -> str:
    """Return all blocks of the report, each followed by an empty line."""
    lines: list[str] = []
    for block in report.blocks():
        lines += _block(block)
    return "\n".join(lines).rstrip() + "\n"


def _block(block: Block) -> list[str]:
    if isinstance(block, Heading):
        return [f"{'#' * block.level} {escaped(block.text)}", ""]
    if isinstance(block, Verbatim):
        return [*fenced(printable_lines(block.text).split("\n")), ""]
    if isinstance(block, Lines):
        return _list(block)
    return _table(block)


def _list(block: Lines) -> list[str]:
    if not block.lines:
        return []
    lines = [f"{escaped(block.title)}:", ""] if block.title else []
    for line in block.lines:
        nested = "  " if line.startswith(" ") else ""
        lines.append(f"{nested}- {escaped(line.strip())}")
    return [*lines, ""]


def _table(table: Table) -> list[str]:
    """Return one table for each combination of a section and a group of columns.

    With all columns in one table, the table would be too wide for a page.
    """
    columns = table.shown_columns(wide=True)
    groups = list(dict.fromkeys(column.group for column in columns if column.group)) or [""]
    lines = [f"## {escaped(table.title)}", ""] if table.title else []
    for heading, rows in table.sections():
        lines += [f"### {escaped(heading)}", ""] if heading else []
        for group in groups:
            lines += [f"{escaped(group)}:", ""] if len(groups) > 1 else []
            shown = [column for column in columns if column.group in ("", group)]
            own = [column for column in shown if column.group == group]
            said = [row for row in rows if any(column.cell(row) not in ("", NOTHING) for column in own)]
            lines += [*_rows(shown, said), ""]
    return lines


def _rows(columns: Sequence[Column], rows: Iterable[Any]) -> list[str]:
    titles = [f"{column.title} {column.unit}".strip() for column in columns]
    rules = ["---:" if column.right else ":---" for column in columns]
    lines = [_line(map(escaped, titles)), _line(rules)]
    for row in rows:
        lines.append(_line(escaped(column.cell(row)) for column in columns))
    return lines


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
