"""Draw all figures of a stored run as PNG and SVG, or as PDF."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.commands import report
from bench.commands._drawing import draw
from bench.core import printable
from bench.core.errors import EXIT_DONE, UsageError
from bench.results import output


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    output.add_run_arguments(parser)
    parser.add_argument("--plots", type=Path, default=Path("plots"), metavar="DIR", help="folder of plots")
    output.add_figure_format(parser)


def main(args: argparse.Namespace) -> int:
    """Draw the figures and print the paths of their files."""
    path = report.path_of(args)
    document, run = report.read(path)
    drawn = draw(document, args.plots / path.stem, run, args.figure_format)
    if not drawn:
        raise UsageError(f"{path} holds no row that a figure can show")
    for file in drawn:
        print(printable.line(str(file)))
    return EXIT_DONE
