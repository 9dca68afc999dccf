"""Print the tables of a run (or of one results file) again, in any format."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from bench.commands import _output
from bench.core import plugins
from bench.core.errors import EXIT_DONE
from bench.driver import collect
from bench.store import runs


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench report`."""
    parser.add_argument(
        "run", nargs="?", default="latest", help="a run's path or name, a .jsonl file, or latest (default)"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where runs are kept")
    add_show_argument(parser)
    _output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Render the run's document."""
    document = replace(collect.document(path_of(args)), show=tuple(args.show))
    _output.emit(plugins.load("format", args.format).render(document), args)
    for warning in document.notes:
        print(f"bench: warning: {warning}", file=sys.stderr)
    return EXIT_DONE


def add_show_argument(parser: argparse.ArgumentParser) -> None:
    """What tables can show in addition."""
    words = "in addition: wire, the rate through a node's NICs"
    parser.add_argument("--show", action="append", default=[], choices=("wire",), help=words)


def path_of(args: argparse.Namespace) -> Path:
    """The folder or the file that is meant."""
    given = Path(args.run)
    return given if given.is_file() else runs.find(args.results, args.run)
