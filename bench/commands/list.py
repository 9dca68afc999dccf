"""List patterns, transports, launchers, scenarios, rules, workloads, clusters, instances, runs, and what cannot run."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
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
    """A name that the user can type.

    `unavailable` says why this entry cannot run on this machine. If the entry can run, the value is None.
    """

    kind: str
    name: str
    description: str
    unavailable: str | None = None


@dataclass(frozen=True)
class ListReport(Report):
    """The entries that `linkbench list` prints, grouped by their kind (patterns, transports, ...)."""

    found: dict[str, list[Entry]]

    def blocks(self) -> Iterator[Block]:
        """Yield a table for each kind of entry."""
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
    parser.add_argument("kind", nargs="?", metavar="KIND", help=f"list only one kind: {', '.join(KINDS)}")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where runs are kept")
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """List the entries of one kind.

    If the user names no kind, everything is listed except runs, because there may be thousands of runs.
    """
    kinds = [_kind(args.kind)] if args.kind else [kind for kind in KINDS if kind != "runs"]
    output.show(ListReport({kind: list(KINDS[kind](args.results)) for kind in kinds}), args)
    return EXIT_DONE


def names(kind: str, results: Path = Path("results")) -> list[str]:
    """Return the names of one kind, such as `scenarios`. `results`: the folder in which runs are stored."""
    return [entry.name for entry in KINDS[kind](results)]


def _patterns(_: Path) -> Iterator[Entry]:
    for name in plugins.names("pattern"):
        yield Entry("pattern", name, plugins.first_line("pattern", name))


def _transports(_: Path) -> Iterator[Entry]:
    for name in plugins.names("transport"):
        yield Entry("transport", name, plugins.first_line("transport", name), paths.lacks(name))


def _launchers(_: Path) -> Iterator[Entry]:
    path = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    )  # a Python wheel installs mpirun next to the interpreter
    for name in plugins.names("launcher"):
        reason = plugins.load("launcher", name).LAUNCHER.unavailable(lambda program: shutil.which(program, path=path))
        yield Entry("launcher", name, plugins.first_line("launcher", name), reason)


def _tools(_: Path) -> Iterator[Entry]:
    for name in plugins.names("tool"):
        yield Entry("tool", name, plugins.first_line("tool", name))


def _scenarios(_: Path) -> Iterator[Entry]:
    yield from _described("scenario", paths.scenarios_folder())


def _rules(_: Path) -> Iterator[Entry]:
    yield from _described("rules", paths.rules_folder())


def _workloads(_: Path) -> Iterator[Entry]:
    yield from _described("workload", paths.workloads_folder())


def _described(kind: str, folder: Path) -> Iterator[Entry]:
    for path in sorted(folder.glob("*.yaml")):
        value = yaml_file.load(path).value
        described = value.get("description") if isinstance(value, dict) else None
        yield Entry(kind, path.stem, " ".join(str(described or "").split()))


def _clusters(_: Path) -> Iterator[Entry]:
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


def _instances(_: Path) -> Iterator[Entry]:
    from bench.hardware import catalogue

    for name in catalogue.instances():
        found = catalogue.instance(name)
        links = found.links
        gpus = f"{found.gpus} x {found.gpu}, peers by {links.peer}"
        network = f"network {links.num_nics} x {format_rate(links.nic_bytes_per_s)} {found.nic_kind}"
        yield Entry("instance", name, f"{found.provider}: {gpus}, {network}")


def _runs(results: Path) -> Iterator[Entry]:
    from bench.store import runs  # it needs numpy, and the other lists do not

    for folder in runs.in_order(results):
        num = sum(1 for _ in folder.glob("*.jsonl"))
        began = datetime.fromtimestamp(folder.stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M UTC")
        yield Entry("run", folder.name, f"{num} job{'s' * (num != 1)} with results, last changed {began}")


# Functions that take the folder of runs and yield the entries of a kind, in the order of `linkbench list`.
KINDS: dict[str, Callable[[Path], Iterator[Entry]]] = {
    "patterns": _patterns,
    "transports": _transports,
    "launchers": _launchers,
    "tools": _tools,
    "scenarios": _scenarios,
    "rules": _rules,
    "workloads": _workloads,
    "clusters": _clusters,
    "instances": _instances,
    "runs": _runs,
}


def _kind(word: str) -> str:
    for kind in KINDS:
        if word in (kind, kind.removesuffix("s")):
            return kind
    raise UsageError(f"there is no list of {word!r}{plugins.nearest(word, list(KINDS))}")
