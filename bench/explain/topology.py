"""Read the topology of a node from the output of `nvidia-smi topo -m` and `nvidia-smi nvlink -s`.

The output of these commands is in a log, or in a file that the user gave together with the log.

A topology can show why a run is slow. If a file has only a topology and no run, the topology gets its own page
(topology_page.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from bench.core.inventory import Inventory
from bench.hardware import health
from bench.hardware.health import HealthFinding
from bench.probes import nvlink_status, topo_matrix
from bench.probes.topology import inventory_of

_MOST_NODES = 64  # for one file, the topologies of at most this many nodes are kept
_MOST_LINES = 2000  # at most this many lines of one node are kept: tables of 16 GPUs and 32 adapters, 16 x 36 links
_LONGEST_LINE = 4000
_NUMBERED = re.compile(r"(?:GPU ?|NIC)\d")
_NOT_OURS = tuple("0123456789#")  # first characters of the rows and comments of measurements, which most lines are
_COMMAND = re.compile(r"topo\s+(?:-p2p|--p2pstatus)\s")
_DISTANCE = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4}  # from the closest path to the farthest


@dataclass(frozen=True, slots=True)
class Topology:
    """The devices of a node that a text names.

    `program`: the program that printed the text.
    `line`: the number of the first line.
    """

    program: str
    line: int
    inventory: Inventory

    def facts(self, file: str = "") -> dict[str, Any]:
        """Return the devices as a dictionary with the same keys as a node's reported facts.

        `file`: the name of the file.
        """
        return asdict(self.inventory) | {"told_by": self.program, "file": file}

    def findings(self, instance: str | None = None) -> tuple[HealthFinding, ...]:
        """Return what is wrong or doubtful about the links, by the rules of `doctor`."""
        found = health.findings(self.facts(), instance=instance)
        return tuple(each for each in found if each.severity != "unknown")


class TopologyReader:
    """Keeps the lines of a log that belong to topology tables, in one section per node. Its memory is limited."""

    def __init__(self) -> None:
        """Begin without any lines."""
        self._sections: list[tuple[int, list[str]]] = []
        self._columns: frozenset[str] = frozenset()  # the columns of the table that is being read
        self._has_table = False
        self._gpus_with_links: set[str] = set()

    def read(self, number: int, text: str) -> None:
        """Read one line. `number` counts from 1."""
        if not self._columns and text[:1] in _NOT_OURS:
            return
        if self._columns and not text.strip():
            self._columns = frozenset()
            self._keep(number, "")
        elif _NUMBERED.match(text):
            self._read_numbered(number, text)
        elif self._is_part(text):
            self._keep(number, text)

    def _is_part(self, text: str) -> bool:
        """Check whether the line is an adapter's row, a link's state, or the command that printed a topology table."""
        if self._columns and text.split(maxsplit=1)[0] in self._columns:
            return True
        if text.startswith("Link ") or "links are in" in text:
            return nvlink_status.is_part(text)
        return "topo" in text and _COMMAND.search(text) is not None

    @cached_property
    def found(self) -> tuple[Topology, ...]:
        """The topology of each node whose text could be read. Use this property only after the last line was read."""
        found = []
        for line, lines in self._sections:
            text = "\n".join(lines)
            inventory = inventory_of(text)
            if inventory is None or not inventory.gpus:
                continue
            program = topo_matrix.TOLD_BY if topo_matrix.recognises(text) else nvlink_status.TOLD_BY
            found.append(Topology(program, line, inventory))
        return tuple(found)

    def _read_numbered(self, number: int, text: str) -> None:
        """Read a line that begins with GPU0 or NIC0: a heading, a row, or an entry of the legend."""
        columns = topo_matrix.heading(text[:_LONGEST_LINE])
        if columns is not None:
            paths = "ffinity" in text
            if paths and self._has_table:
                self._next_section()
            self._has_table = self._has_table or paths
            self._columns = frozenset(columns)
        elif text.startswith("GPU ") and nvlink_status.is_heading(text):
            gpu = text.split(":", 1)[0]
            if gpu in self._gpus_with_links:
                self._next_section()
            self._gpus_with_links.add(gpu)
        self._keep(number, text)

    def _next_section(self) -> None:
        self._sections.append((0, []))
        self._columns, self._has_table, self._gpus_with_links = frozenset(), False, set()

    def _keep(self, number: int, text: str) -> None:
        if not self._sections:
            self._sections.append((0, []))
        line, lines = self._sections[-1]
        if len(lines) < _MOST_LINES and len(self._sections) <= _MOST_NODES:
            lines.append(text[:_LONGEST_LINE])
            self._sections[-1] = (line or number, lines)


def near_adapters(inventory: Inventory) -> Mapping[str, tuple[str, str]]:
    """Map each GPU to its closest network adapters: (type of the path, names of these adapters).

    Return {} if there are no adapters.
    """
    adapters = {each.name for each in inventory.adapters}
    kinds: dict[str, dict[str, list[str]]] = {}
    for path in inventory.paths:
        for gpu, other in ((path.a, path.b), (path.b, path.a)):
            if gpu.startswith("gpu") and other in adapters:
                kinds.setdefault(gpu, {}).setdefault(path.kind, []).append(other)
    found = {}
    for gpu, by_kind in kinds.items():
        closest = min(by_kind, key=lambda kind: _DISTANCE.get(kind, len(_DISTANCE)))
        found[gpu] = (closest, ", ".join(by_kind[closest]))
    return found
