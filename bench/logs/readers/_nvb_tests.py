"""Define what each test of nvbandwidth copies, according to its source code (NVIDIA/nvbandwidth, tags v0.1 to v0.8).

- `..._write_...` copies from the row's GPU to the column's GPU, and `..._read_...` copies in the opposite direction.
  The arrows that nvbandwidth prints above these tables show the wrong direction in every version.
- Two-way tests have two streams. The tests measure the time of the first stream only. The second stream only keeps the
  opposite direction busy. Up to v0.5, the SM tests between GPUs printed the sum of both directions. Since v0.6, tests
  of both engines (CE and SM) print each direction and then the sum. The timed stream of `..._write1` runs from column
  to row, as in `..._read1` (v0.6 to v0.8).
- `all_to_one` and `one_to_all` print, for each GPU, the sum over all its peers.
- Up to v0.7, device_to_device_latency_sm read host memory. According to the change log, v0.8 fixed this error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bench.logs.foreign import MatrixCell
from bench.logs.readers import _grid

GB, NS = 1e9, 1e-9
# The three tables of a two-way test: its two directions, and their sum.
PARTS = ("1", "2", "total")
# The beginning of a test's name, the direction, and the sender and receiver (see Meaning.ends).
_ENDS = (
    ("host_to_", "h2d", "hc"),
    ("device_to_host_", "d2h", "ch"),
    ("all_to_host_", "d2h", "ch"),
    ("all_to_one_write", "d2d", "oc"),
    ("all_to_one_read", "d2d", "co"),
    ("one_to_all_write", "d2d", "co"),
    ("one_to_all_read", "d2d", "oc"),
    ("all_from_one_read", "d2d", "co"),
    ("broadcast_one_to_all", "d2d", "co"),
    ("device_local_copy", "local", "cc"),
)


@dataclass(frozen=True)
class Meaning:
    """The meaning of one table.

    `ends`: two letters that say what the cell in row r and column c measures. The first letter is the sender, and the
    second letter is the receiver. For example, "hc" is a copy from the host to GPU c, and "co" is a copy from GPU c to
    all other GPUs.
    """

    name: str
    direction: str | None
    engine: str | None
    ends: str
    unit: str = "bytes_per_s"

    @property
    def factor(self) -> float:
        """The printed unit in SI units."""
        return NS if self.unit == "s" else GB

    @property
    def square(self) -> bool:
        """Whether the table has a row for every column."""
        return self.ends in ("rc", "cr")


def version_number(version: str | None) -> tuple[int, int] | None:
    """Parse a version: `v0.8` is (0, 8). Return None for any other text."""
    found = re.match(r"v?(\d{1,3})\.(\d{1,3})", version or "")
    return (int(found[1]), int(found[2])) if found else None


def meaning(name: str, version: str | None, part: str = "") -> Meaning:
    """Return the meaning of one table of the test `name`.

    `part`: for a two-way test with three tables, one of PARTS.
    """
    base = name.removeprefix("multinode_")
    if base.startswith(("device_to_device_all_", "device_to_device_broadcast_")):
        base = base.removeprefix("device_to_device_")
    engine = {"ce": "ce", "sm": "sm"}.get(name.rpartition("_")[2])
    for begin, direction, ends in _ENDS:
        if base.startswith(begin):
            return Meaning(name, "bidirectional" if "bidirectional" in base else direction, engine, ends)
    if "latency" in base:
        return _latency(name, version, engine)
    if base.startswith("device_to_device"):
        return _between_gpus(name, engine, part)
    return Meaning(name, None, engine, "??")


def _latency(name: str, version: str | None, engine: str | None) -> Meaning:
    if name.startswith("host"):
        return Meaning(name, "load", engine, "ch", "s")
    known = version_number(version)
    return Meaning(name, "load" if known is not None and known >= (0, 8) else None, engine, "rc", "s")


def _between_gpus(name: str, engine: str | None, part: str) -> Meaning:
    verb = "read" if "read" in name else "write"
    if part == "total":
        return Meaning(f"{name}_total", "bidirectional_sum", engine, "rc")
    if part:
        return Meaning(f"{name}_{verb}{part}", "bidirectional", engine, "cr" if part == "1" else "rc")
    if "bidirectional" not in name:
        return Meaning(name, "d2d", engine, "cr" if verb == "read" else "rc")
    if engine == "sm":
        return Meaning(name, "bidirectional_sum", engine, "rc")
    return Meaning(name, "bidirectional", engine, "cr" if verb == "read" else "rc")


def cells(what: Meaning, rows: Sequence[Sequence[object]]) -> tuple[MatrixCell, ...]:
    """Return the cells of a table, row by row. A table of GPU pairs gives no cells for its diagonal.

    If a version prints 0.00 on the diagonal, it also prints 0.00 for pairs that were refused.
    """
    old_zeros = what.square and bool(rows) and bool(rows[0]) and _is_zero(rows[0][0])
    found = []
    for row, values in enumerate(rows):
        for column, token in enumerate(values):
            if what.square and row == column:
                continue
            src, dst = _ends(what.ends, row, column, len(rows))
            found.append(_grid.cell(src, dst, "N/A" if old_zeros and _is_zero(token) else token, what.factor))
    return tuple(found)


def _is_zero(token: object) -> bool:
    return isinstance(token, str) and token in ("0.00", "0")


def _ends(ends: str, row: int, column: int, num_rows: int) -> tuple[str, str]:
    if ends == "??":
        return f"row{row}", f"column{column}"
    return _end(ends[0], row, column, num_rows), _end(ends[1], row, column, num_rows)


def _end(letter: str, row: int, column: int, num_rows: int) -> str:
    if letter == "h":
        return "host" if num_rows == 1 else f"host{row}"
    return "others" if letter == "o" else _grid.gpu(row if letter == "r" else column)
