"""Render blocks of a report (results/table.py) as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from bench.page.markup import Markup, element, joined
from bench.results.table import NOTHING, Block, Column, Heading, Lines, Table


def render(blocks: Iterable[Block]) -> Markup:
    """Return all blocks. A block's headings are one level below the headings of the page's sections."""
    return joined(*map(_block, blocks))


def details(summary: str, *children: str) -> Markup:
    """Return content that is hidden on the screen until a reader opens it.

    Printed pages always show the hidden content.
    """
    return element("details", element("summary", summary), *children)


def table(shown: Table, caption: str = "") -> Markup:
    """Return a table in a box that scrolls on its own, with a `tbody` for each section."""
    columns = shown.shown_columns(wide=True)
    bodies = []
    for heading, rows in shown.sections():
        lines = [_row(columns, [column.cell(row) for column in columns]) for row in rows]
        if heading:
            title = element("th", heading, colspan=len(columns), scope="rowgroup", class_="section")
            lines.insert(0, element("tr", title))
        bodies.append(element("tbody", *lines))
    words = caption or shown.title
    head = element("thead", *_titles(columns))
    inner = element("table", *([element("caption", words)] if words else []), head, *bodies)
    return element("div", inner, class_="scroll", tabindex=0, role="region", aria_label=words or "table")


def _block(block: Block) -> Markup:
    if isinstance(block, Heading):
        return element("h3", block.text)
    if isinstance(block, Table):
        return table(block)
    if isinstance(block, Lines):
        return _list(block)
    return element("pre", Markup("\n".join(map(joined, block.text.splitlines()))), tabindex=0)


def _list(block: Lines) -> Markup:
    if not block.lines:
        return Markup()
    items: list[list[str]] = []
    for line in block.lines:
        if line.startswith(" ") and items:
            items[-1].append(line.strip())
        else:
            items.append([line.strip()])
    found = []
    for first, *nested in items:
        inner = [element("ul", *(element("li", each) for each in nested))] if nested else []
        found.append(element("li", first, *inner))
    return element("ul", *found)


def _titles(columns: Sequence[Column]) -> list[Markup]:
    """Return the title lines of a table.

    If there are column groups, the first line has their titles. The next line has the titles of the columns.
    """
    lines = []
    if any(column.group for column in columns):
        groups = [(name, len(list(own))) for name, own in groupby(column.group for column in columns)]
        heads = [
            element("th", name, colspan=num, scope="colgroup") if name else element("td", colspan=num)
            for name, num in groups
        ]
        lines.append(element("tr", *heads))
    titles = []
    for column in columns:
        words = f"{column.title} {column.unit}".strip()
        side = None if column.right else "left"
        titles.append(element("th", words, scope="col", class_=side) if words else element("td"))
    return [*lines, element("tr", *titles)]


def _row(columns: Sequence[Column], cells: Sequence[str]) -> Markup:
    found = []
    for index, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        if index == 0 and cell not in ("", NOTHING):
            found.append(element("th", cell, scope="row", class_=None if column.right else "left"))
        else:
            found.append(element("td", cell, class_=None if column.right else "left"))
    return element("tr", *found)
