"""Read an SQLite database of another program. Tables and columns may be missing.

From a damaged table, only the rows before the damage are read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"SQLite format 3\x00"
# exceptions that Python's sqlite3 raises on damage; their messages may contain any bytes
ERRORS = (sqlite3.Error, UnicodeError)
UNKNOWN = -1  # the value in arrays for a missing column or value


class Database:
    """A database that is opened read-only. Raises one of ERRORS if the file cannot be opened.

    `columns`: the columns of each table.
    `error`: SQLite's message about the first damage, if any. Rows before the damage are used.
    """

    def __init__(self, path: Path) -> None:
        # Immutable: SQLite creates no lock or journal next to the file.
        self._connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self.error: str | None = None
        # Views and virtual tables can compute anything, so they are not read.
        kinds = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        try:
            tables = [str(name) for (name,) in self._connection.execute(kinds)]
            self.columns = {table: self._columns(table) for table in tables}
        except ERRORS:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def has(self, table: str, *columns: str) -> bool:
        """Check whether the database has a table with these columns."""
        return table in self.columns and all(column in self.columns[table] for column in columns)

    def first_column(self, table: str, *columns: str) -> str | None:
        """Return the first of these columns that exists in the table."""
        return next((column for column in columns if self.has(table, column)), None)

    def rows(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query. From a damaged file, the method yields only the rows before the damage."""
        try:
            yield from self._connection.execute(query, values)
        except ERRORS as error:
            self.error = self.error or str(error)

    def integers(self, table: str, columns: Sequence[str], where: str = "1") -> NDArray[np.int64]:
        """Return integer columns of a table as a two-dimensional array, with one row for each row of the table.

        A missing value, or a value of a missing column, is UNKNOWN.
        """
        if table not in self.columns:
            return np.empty((0, len(columns)), dtype=np.int64)
        chosen = ", ".join(self.integer(table, column) for column in columns)
        query = f'SELECT {chosen} FROM "{table}" WHERE {where}'
        kinds = np.dtype([(f"f{place}", np.int64) for place in range(len(columns))])
        try:
            found = np.fromiter(self._connection.execute(query), dtype=kinds)
        except ERRORS:
            found = np.fromiter(self.rows(query), dtype=kinds)  # slower, but it keeps the rows before the damage
        return found.view(np.int64).reshape(-1, len(columns))

    def integer(self, table: str, column: str) -> str:
        """Return an SQL expression that reads a column as an integer."""
        return f'COALESCE(CAST("{column}" AS INTEGER), {UNKNOWN})' if self.has(table, column) else str(UNKNOWN)

    def _columns(self, table: str) -> frozenset[str]:
        quoted = table.replace('"', '""')
        return frozenset(str(row[1]) for row in self._connection.execute(f'PRAGMA table_info("{quoted}")'))
