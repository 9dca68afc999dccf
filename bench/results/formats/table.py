"""Write text for the terminal in aligned columns. Every line that is not a row begins with '#'.

Text outside rows is wrapped at the width of the terminal, or at 100 characters in a file or pipe. The cells of a row
are wrapped only in a column whose field `wrapped` is True. If the rows are still too long, columns are left out,
beginning with the column that has the largest `Column.leave_out`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from bench.core.printable import lines as printable_lines
from bench.core.printable import printable
from bench.core.wrapping import PIPED_WIDTH, wrapped
from bench.results.table import Block, Heading, Lines, Report, Table, Verbatim

_MOST_TEXT_WIDTH = 130  # characters; longer lines of text are hard to read, also on a wide terminal
_INDENT = 2  # "# " before titles, blanks before rows


def render(report: Report, width: int | None = None) -> str:
    """Return all blocks as text that ends with a newline.

    `width`: the number of characters in a line, or None if the output is not a terminal.
    """
    return render_blocks(report.blocks(), width or PIPED_WIDTH) + "\n"


def render_blocks(blocks: Iterable[Block], width: int = PIPED_WIDTH) -> str:
    """Return the blocks in order, with an empty comment line before each table."""
    lines: list[str] = []
    for block in blocks:
        if lines and isinstance(block, Table):
            lines.append("#")
        lines += _block(block, width)
    return "\n".join(lines).rstrip()


def comments(lines: Iterable[str], mark: str = "# ", width: int = PIPED_WIDTH) -> list[str]:
    """Return lines that begin with `mark`. A long line is wrapped."""
    found: list[str] = []
    width = min(width, _MOST_TEXT_WIDTH)
    for line in map(printable, lines):
        indent = mark + " " * (len(line) - len(line.lstrip()))
        found += wrapped(line.lstrip(), width, first=indent, rest=f"{indent}    ") or [mark.rstrip()]
    return found


class TextTable:
    """A table for the terminal, written line by line.

    The constructor chooses the widths of the columns. The widths depend on the titles, on the smallest widths of the
    columns, and on the rows that are known so far.
    """

    def __init__(self, table: Table, width: int = PIPED_WIDTH) -> None:
        """Choose the columns and their widths from the rows that are known.

        Rows that are not known yet may be wider.
        """
        self._page_width = width
        self._wider = table.wider
        self._columns = table.shown_columns(wide=False)
        self._gap = " " * table.gap
        cells = [[printable(column.cell(row)) for column in self._columns] for row in table.rows]
        self._widths = []
        for index, column in enumerate(self._columns):
            known = [len(line[index]) for line in cells]
            self._widths.append(max([column.width, len(column.title), len(column.unit), *known]))
        if self._columns and self._columns[-1].wrapped:
            self._widths[-1] = 0
        self.left_out = self._leave_out(width)

    def _leave_out(self, width: int) -> list[str]:
        """Leave out columns until a row fits into `width`.

        Return the titles of the removed columns, in the order in which they were removed.
        """
        titles: dict[str, None] = {}
        while _INDENT + sum(self._widths) + len(self._gap) * (len(self._widths) - 1) > width:
            index = max(range(len(self._columns)), key=lambda number: self._columns[number].leave_out)
            if not self._columns[index].leave_out:
                break
            titles[self._columns.pop(index).title] = None
            del self._widths[index]
        return list(titles)

    def titles(self) -> list[str]:
        """Return the lines of titles.

        The line of group headings is left out if no column has a group heading. The line of units is left out if no
        column has a unit.

        If columns are left out, the first line of the table names them.
        """
        lines = []
        if any(column.group for column in self._columns):
            lines.append(self._groups())
        lines.append(self._joined([column.title for column in self._columns]))
        if any(column.unit for column in self._columns):
            lines.append(self._joined([column.unit for column in self._columns]))
        return [*self._left_out_lines(), *(f"# {line}".rstrip() for line in lines)]

    def _left_out_lines(self) -> list[str]:
        titles = [title for title in self.left_out if title]
        if not titles:
            return []
        return comments([f"columns left out: {', '.join(titles)} ({self._wider} shows them)"], width=self._page_width)

    def lines(self, row: Any) -> list[str]:
        """Return one line, or several lines if the last column is wrapped."""
        cells = [printable(column.cell(row)) for column in self._columns]
        if not (self._columns and self._columns[-1].wrapped):
            return [" " * _INDENT + self._joined(cells)]
        head = " " * _INDENT + self._joined([*cells[:-1], ""])
        left = _INDENT + sum(self._widths) + len(self._gap) * (len(self._widths) - 1)
        parts = textwrap.wrap(cells[-1], max(40, self._page_width - left), break_on_hyphens=False) or [""]
        return [f"{head:<{left}}{parts[0]}".rstrip(), *(" " * left + part for part in parts[1:])]

    def _joined(self, cells: Sequence[str]) -> str:
        parts = []
        for column, cell, width in zip(self._columns, cells, self._widths, strict=True):
            parts.append(cell.rjust(width) if column.right else cell.ljust(width))
        return self._gap.join(parts).rstrip()

    def _groups(self) -> str:
        """Return the line with the heading of each group of columns, centred above its columns."""
        groups: list[tuple[str, int]] = []  # name and width of each group
        for index, (column, width) in enumerate(zip(self._columns, self._widths, strict=True)):
            width += len(self._gap) if index else 0
            if groups and groups[-1][0] == column.group:
                width += groups.pop()[1]
            groups.append((column.group, width))
        return "".join(f"{name:^{width}}" for name, width in groups).rstrip()


def _block(block: Block, width: int) -> list[str]:
    if isinstance(block, Heading):
        return comments([block.text], width=width)
    if isinstance(block, Verbatim):
        return printable_lines(block.text).split("\n")
    if isinstance(block, Lines):
        mark = "# " if block.comment else ""
        return comments(block.lines, mark, width)
    text = TextTable(block, width)
    lines = comments([block.title], width=width) if block.title else []
    lines += text.titles()
    for heading, rows in block.sections():
        lines += comments([heading], width=width) if heading else []
        for row in rows:
            lines += text.lines(row)
    return lines
