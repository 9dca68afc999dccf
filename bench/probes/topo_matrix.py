"""Read the tables of `nvidia-smi topo -m` and `topo -p2p` from recorded texts.

Recorded texts may be damaged, because editors, web pages and terminals replace or lose tabs, keep colours, and truncate
lines. If it is uncertain to which column a cell belongs, the cell is not used but reported as lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from bench.core.inventory import Adapter, Gpu, Inventory, NoAccess, Path

TOLD_BY = "nvidia-smi topo"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WAY = r"NV\d+|PIX|PXB|PHB|NODE|SYS|X"
_STATUS = {
    "CNS": NoAccess.CHIPSET,
    "GNS": NoAccess.GPU,
    "TNS": NoAccess.TOPOLOGY,
    "DR": NoAccess.DISABLED,
    "NS": NoAccess.UNSUPPORTED,
}
_ACCESS = "|".join(("OK", "U", "X", *sorted(_STATUS, key=len, reverse=True)))
_NUMBERED = r"(?:GPU|NIC)\d+"
_NAME = re.compile(rf"{_NUMBERED}|(?!GPU)[A-Za-z]\w*\d\w*")
_COMMAND = re.compile(r"topo\s+(?:-p2p|--p2pstatus)\s+(\w+)")
_NO_ACCESS = {"n", "a"}  # tables of `topo -p2p` for NVLink and atomics, which do not show access over PCIe


@dataclass(slots=True)
class TopoTable:
    """One table.

    `cells`: maps the names of a row and a column to the text of their cell. Unreadable cells are left out.
    `rest`: maps the name of each row to the words after its cells.
    `rows`: the names of all rows, including unreadable rows.
    """

    names: tuple[str, ...]
    words: str
    command: str | None = None
    cells: dict[tuple[str, str], str] = field(default_factory=dict)
    rest: dict[str, tuple[str, ...]] = field(default_factory=dict)
    rows: set[str] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)

    def cell(self, a: str, b: str) -> str | None:
        """Return the path between two devices, from either of the two cells for this pair.

        The result is None if neither cell is readable, or if the two cells disagree.
        """
        reported = {self.cells[pair] for pair in ((a, b), (b, a)) if pair in self.cells}
        return reported.pop() if len(reported) == 1 else None


def recognises(text: str) -> bool:
    """Check whether a text has a table."""
    return any(True for _ in tables(text))


def inventory(text: str) -> Inventory:
    """Return the GPUs, the adapters, and the paths between GPUs and adapters.

    GPUs are named by their number, and adapters by their name in the legend.
    """
    found = list(tables(text))
    ways = next((table for table in found if table.words == _WAY), None)
    access = [table for table in found if table.words == _ACCESS]
    first = ways or found[0]
    legend = dict(re.findall(r"^\s*(NIC\d+):\s*(\S+)\s*$", _COLOUR.sub("", text), re.MULTILINE))
    called = {name: f"gpu{name[3:]}" if name.startswith("GPU") else legend.get(name, name) for name in first.names}
    gpus = tuple(_gpu(name, first.rest.get(name, ())) for name in first.names if name.startswith("GPU"))
    adapters = tuple(Adapter(called[name], "unknown") for name in first.names if not name.startswith("GPU"))
    lost = [*first.lost, *(words for table in access if table is not first for words in table.lost)]
    absent = [name for name in first.names if name not in first.rows]
    if absent:
        lost.append(f"no rows for {', '.join(absent)}: their paths are unknown")
    paths = []
    for a, b in combinations(first.names, 2):
        way = ways.cell(a, b) if ways else None
        if ways and way is None and {a, b} & ways.rows:
            reason = "the table contradicts itself" if (a, b) in ways.cells and (b, a) in ways.cells else "lost"
            lost.append(f"{called[a]} to {called[b]}: {reason}")
        allowed, why = _allowed(access, a, b)
        if way is not None or allowed is not None:
            paths.append(Path.between(called[a], called[b], way or "unknown", allowed, why))
    return Inventory(gpus, adapters, tuple(paths), tuple(dict.fromkeys(lost)), nvlinks_told=ways is not None)


def tables(text: str) -> Iterator[TopoTable]:
    """Yield all tables in the order of the text, without prompts and legends."""
    table, command = None, None
    whole = re.sub(r"NV\d*\Z", "?", _COLOUR.sub("", text))  # NV1 at the end of a text may be a truncated NV18
    for line in whole.splitlines():
        reported = _COMMAND.search(line)
        command = reported[1] if reported else command
        names = heading(line)
        if names is not None:
            if table is not None and table.words:
                yield table
            table = TopoTable(names, "", command)
        elif table is not None and line.split()[:1] and line.split()[0] in table.names:
            _take(table, line)
        elif table is not None and table.words and not line.strip():
            yield table
            table = None
    if table is not None and table.words:
        yield table


def heading(line: str) -> tuple[str, ...] | None:
    """Return the column names in a heading, or None for any other line.

    A heading consists of device names only. A row, in contrast, begins with a name and has cells after it.
    """
    glued = re.split(r"CPU\s*Affinity|\bCPU\b", line)[0].split()
    words = [name for word in glued for name in (re.findall(_NUMBERED, word) if _all_numbered(word) else [word])]
    if not words or not re.fullmatch(r"GPU\d+", words[0]) or not all(_NAME.fullmatch(word) for word in words):
        return None
    cells = re.compile(f"{_WAY}|{_ACCESS}")
    return None if any(cells.fullmatch(word) for word in words[1:]) else tuple(words)


def _all_numbered(word: str) -> bool:
    return re.fullmatch(f"(?:{_NUMBERED})+", word) is not None


def _take(table: TopoTable, line: str) -> None:
    """Add the cells of one row to the table, up to the last cell whose column is certain."""
    parts = line.strip().split("\t")
    fields = [word for part in parts for word in part.split() or [""]]
    name, reported = fields[0], fields[1:]
    table.rows.add(name)
    table.words = table.words or (_ACCESS if _is_access(reported) else _WAY)
    cells, rest = _cells(reported, len(table.names), table.words)
    own, known = table.names.index(name), len(cells)
    if known < len(table.names) or (rest and re.fullmatch(table.words, rest[0])):
        known = own + 1  # the row has too few or too many cells, so only the cells up to its own X are certain
        table.lost.append(f"row {name}: {len(cells)} cells for {len(table.names)} columns")
    if len(cells) <= own or cells[own] != "X" or cells.count("X") != 1:
        table.lost.append(f"row {name}: the X is not in its own column")
        return
    for column, cell in zip(table.names[:known], cells[:known], strict=False):
        if cell is None:
            table.lost.append(f"row {name}: the cell of {column} cannot be read")
        elif column != name:
            table.cells[name, column] = cell
    table.rest[name] = tuple(word for each in rest for word in each.split())


def _cells(reported: Sequence[str], num_columns: int, words: str) -> tuple[list[str | None], Sequence[str]]:
    """Return the row's cells, and the text after the cells.

    Two cells become one word if the tab between them was lost. The function then splits the word: PIXNODE becomes PIX
    and NODE.
    """
    cells: list[str | None] = []
    for position, word in enumerate(reported):
        if len(cells) >= num_columns or re.match(r"\d|N/A", word):  # CPU affinities begin with a number
            return cells, reported[position:]
        glued = re.fullmatch(f"(?:{words})+", word)
        cells.extend(re.findall(words, word) if glued else [None])
    return cells, ()


def _is_access(reported: Iterable[str]) -> bool:
    return any(re.fullmatch(_ACCESS, word) for word in reported if word != "X")


def _allowed(tables_of_access: Iterable[TopoTable], a: str, b: str) -> tuple[bool | None, NoAccess | None]:
    """Return whether two GPUs have access to each other, and the reason if they do not.

    If it is unknown which command printed a table, "no" in the table may refer to NVLink only. The access is then
    unknown.
    """
    for table in tables_of_access:
        word = table.cell(a, b)
        if word == "OK" and table.command not in _NO_ACCESS:
            return True, None
        if word in _STATUS and table.command is not None and table.command not in _NO_ACCESS:
            return False, _STATUS[word]
    return None, None


def _gpu(name: str, rest: Sequence[str]) -> Gpu:
    """Return a GPU. If the text lists several NUMA nodes for the GPU, its node is unknown.

    `rest`: the text after the cells, with the GPU's CPUs, its NUMA nodes, and the node of its memory.
    """
    node = int(rest[1]) if len(rest) > 1 and rest[1].isdigit() else None
    return Gpu(int(name[3:]), "unknown", None, None, None, None, None, None, numa_node=node)
