"""Draw a run's figures again: every one that applies, as PNG and SVG."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.commands import report
from bench.commands.run import draw
from bench.core.errors import EXIT_DONE, UsageError
from bench.driver import collect


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bench plot`."""
    parser.add_argument(
        "run", nargs="?", default="latest", help="a run's path or name, a .jsonl file, or latest (default)"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where runs are kept")
    parser.add_argument("--plots", type=Path, default=Path("plots"), metavar="DIR", help="where plots are drawn")


def main(args: argparse.Namespace) -> int:
    """Draw, and say what was drawn."""
    path = report.path_of(args)
    drawn = draw(collect.document(path), args.plots / path.stem)
    if not drawn:
        raise UsageError(f"{path} holds no row that a figure could show")
    for file in drawn:
        print(file)
    return EXIT_DONE
