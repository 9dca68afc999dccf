"""Print the tables of a run (or of one results file) again, in any format; or the certificate of an acceptance."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from bench.commands import _gate_run, _output
from bench.core import plugins
from bench.core.errors import EXIT_DONE
from bench.driver import collect


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench report`."""
    _output.add_run_arguments(parser)
    parser.add_argument(
        "--certificate", nargs="?", const="", metavar="RULES",
        help="a page to file away, with the verdict by these rules (default: those called as the run's scenario)",
    )  # fmt: skip
    _output.add_show_argument(parser)
    _output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Render the run's document."""
    if args.certificate is not None:
        return _gate_run.certificate(args)
    document = replace(collect.document(path_of(args)), show=tuple(args.show))
    _output.emit(plugins.load("format", args.format).render(document), args)
    for warning in document.notes:
        print(f"bench: warning: {warning}", file=sys.stderr)
    return EXIT_DONE


def path_of(args: argparse.Namespace) -> Path:
    """The folder or the file that is meant."""
    return collect.find(args.run, args.results)
