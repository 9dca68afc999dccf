"""Print the tables of a run (or of one results file) again, in any format; or the certificate of an acceptance."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from bench.core import plugins
from bench.core.errors import EXIT_DONE
from bench.gate import of_folder
from bench.results import collect, output


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench report`."""
    output.add_run_arguments(parser)
    parser.add_argument(
        "--certificate",
        nargs="?",
        const="",
        metavar="RULES",
        help="a page to file away, with the verdict by these rules (default: those called as the run's scenario)",
    )
    output.add_show_argument(parser)
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Render the run's document."""
    if args.certificate is not None:
        return of_folder.certificate(args)
    document = replace(collect.document(path_of(args)), show=tuple(args.show))
    output.emit(plugins.load("format", args.format).render(document), args)
    for warning in document.notes:
        print(f"bench: warning: {warning}", file=sys.stderr)
    return EXIT_DONE


def path_of(args: argparse.Namespace) -> Path:
    """The folder or the file that is meant."""
    return collect.find(args.run, args.results)
