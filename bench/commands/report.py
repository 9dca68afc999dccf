"""Print the tables of a stored run or results file in any format, or the certificate of an acceptance test."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.commands._say import say
from bench.core.errors import EXIT_DONE
from bench.gate import of_folder
from bench.results import collect, output
from bench.results.document import Document
from bench.results.run_report import RunReport


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    output.add_run_arguments(parser)
    parser.add_argument(
        "--certificate",
        nargs="?",
        const="",
        metavar="RULES",
        help="print an acceptance certificate by these rules (default: the rules named like the run's scenario)",
    )
    parser.add_argument("--summary", action="store_true", help="print only the summary, to paste into a ticket")
    output.add_table_arguments(parser)
    output.add_output_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Show the run."""
    if args.certificate is not None:
        return of_folder.certificate(args)
    path = path_of(args)
    document = collect.document(path)
    run = collect.named(path)
    most_lines = output.most_lines(args)
    report = RunReport(document, args.show, args.notes, None, most_lines, run, args.summary, args.columns)
    output.show(report, args)
    warn(document)
    return EXIT_DONE


def warn(*documents: Document) -> None:
    """Print the notes of documents to stderr, each once."""
    for text in dict.fromkeys(note.text for document in documents for note in document.notes):
        say(f"bench: warning: {text}")


def path_of(args: argparse.Namespace) -> Path:
    """Return the run's folder or file."""
    return collect.find(args.run, args.results)
