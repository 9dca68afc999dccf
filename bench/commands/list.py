"""List patterns, transports, launchers, scenarios, rules, workloads, clusters, instances; mark what cannot run here."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.config import paths, yaml_file
from bench.core import plugins
from bench.core.errors import EXIT_DONE, UsageError
from bench.core.units import format_rate
from bench.results import output
from bench.results.table import Block, Column, Report, Table

SCHEMA = "bench.list/1"


@dataclass(frozen=True, slots=True)
class Entry:
    """A name that the user can type. `unavailable`: why it cannot run on this machine; None if it can."""

    kind: str
    name: str
    description: str
    unavailable: str | None = None


@dataclass(frozen=True)
class ListReport(Report):
    """The entries that `bench list` prints, by kind."""

    found: dict[str, list[Entry]]

    def blocks(self) -> Iterator[Block]:
        """Yield one table for each kind."""
        for kind, entries in self.found.items():
            columns = (
                Column(f"{kind}:" if entries else f"{kind}: none", lambda entry: entry.name, right=False),
                Column("", _line, right=False, wrapped=True),
            )
            yield Table(columns, entries)

    def data(self) -> dict[str, Any]:
        """Return the JSON document, with the entries of all kinds in one list."""
        return {"schema": SCHEMA, "entries": list(self.records())}

    def records(self) -> Iterator[dict[str, Any]]:
        """Return one record for each entry."""
        return (asdict(entry) for entries in self.found.values() for entry in entries)


def _line(entry: Entry) -> str:
    return entry.description + (f"  [not here: {entry.unavailable}]" if entry.unavailable else "")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    kind = parser.add_argument("kind", nargs="?", metavar="KIND", help=f"only one of: {', '.join(_KINDS)}")
    kind.completer = lambda **_: tuple(_KINDS)  # type: ignore[attr-defined]  # read by argcomplete
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print the entries of one kind, or of all kinds."""
    kinds = [_kind(args.kind)] if args.kind else list(_KINDS)
    output.show(ListReport({kind: list(_KINDS[kind]()) for kind in kinds}), args)
    return EXIT_DONE


def _patterns() -> Iterator[Entry]:
    for name in plugins.names("pattern"):
        yield Entry("pattern", name, plugins.first_line("pattern", name))


def _transports() -> Iterator[Entry]:
    for name in plugins.names("transport"):
        yield Entry("transport", name, plugins.first_line("transport", name), paths.lacks(name))


def _launchers() -> Iterator[Entry]:
    # A Python package of MPI installs its mpirun beside the interpreter.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    for name in plugins.names("launcher"):
        reason = plugins.load("launcher", name).LAUNCHER.unavailable(lambda program: shutil.which(program, path=path))
        yield Entry("launcher", name, plugins.first_line("launcher", name), reason)


def _tools() -> Iterator[Entry]:
    for name in plugins.names("tool"):
        yield Entry("tool", name, plugins.first_line("tool", name))


def _scenarios() -> Iterator[Entry]:
    yield from _described("scenario", paths.scenarios_folder())


def _rules() -> Iterator[Entry]:
    yield from _described("rules", paths.rules_folder())


def _workloads() -> Iterator[Entry]:
    yield from _described("workload", paths.workloads_folder())


def _described(kind: str, folder: Path) -> Iterator[Entry]:
    for path in sorted(folder.glob("*.yaml")):
        value = yaml_file.load(path).value
        described = value.get("description") if isinstance(value, dict) else None
        yield Entry(kind, path.stem, " ".join(str(described or "").split()))


def _clusters() -> Iterator[Entry]:
    path = paths.config_file()
    value = yaml_file.load(path).value if path.exists() else {}
    clusters = value.get("clusters") if isinstance(value, dict) else None
    for name, cluster in (clusters if isinstance(clusters, dict) else {}).items():
        yield Entry("cluster", str(name), _cluster_line(cluster if isinstance(cluster, dict) else {}))


def _cluster_line(cluster: dict[str, Any]) -> str:
    nodes = cluster.get("nodes", 1)
    words = [str(cluster.get("instance") or "instance unknown"), f"{nodes} node{'s' * (nodes != 1)}"]
    words += [f"{cluster['ranks_per_node']} ranks per node"] if cluster.get("ranks_per_node") else []
    return ", ".join([*words, f"launcher {cluster.get('launcher', 'auto')}"])


def _instances() -> Iterator[Entry]:
    from bench.hardware import catalogue

    for name in catalogue.instances():
        found = catalogue.instance(name)
        links = found.links
        gpus = f"{found.gpus} x {found.gpu}, peers by {links.peer}"
        network = f"network {links.num_nics} x {format_rate(links.nic_bytes_per_s)} {found.nic_kind}"
        yield Entry("instance", name, f"{found.provider}: {gpus}, {network}")


# The entries of each kind; kinds are in the order in which `bench list` prints them.
_KINDS: dict[str, Callable[[], Iterator[Entry]]] = {
    "patterns": _patterns,
    "transports": _transports,
    "launchers": _launchers,
    "tools": _tools,
    "scenarios": _scenarios,
    "rules": _rules,
    "workloads": _workloads,
    "clusters": _clusters,
    "instances": _instances,
}


def _kind(word: str) -> str:
    for kind in _KINDS:
        if word in (kind, kind.removesuffix("s")):
            return kind
    raise UsageError(f"there is no list of {word!r}{plugins.nearest(word, list(_KINDS))}")
