"""Print the tables of a run (or of one results file) again, in any format."""

from __future__ import annotations

import argparse
import sys
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
    _output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Render the run's document."""
    document = collect.document(path_of(args))
    _output.emit(plugins.load("format", args.format).render(document), args)
    for warning in document.notes:
        print(f"bench: warning: {warning}", file=sys.stderr)
    return EXIT_DONE


def path_of(args: argparse.Namespace) -> Path:
    """The folder or the file that is meant."""
    given = Path(args.run)
    return given if given.is_file() else runs.find(args.results, args.run)
