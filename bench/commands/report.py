"""Print the tables of a stored run or results file in any format, or the certificate of an acceptance test."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.commands._say import say
from bench.core import collector, printable
from bench.core.errors import EXIT_DONE, UsageError
from bench.page import embedded
from bench.page.content import PageContent, of_run
from bench.predict import expected
from bench.results import collect, output, step_rates
from bench.results.document import Document
from bench.results.headline import NamedRun
from bench.results.run_report import RunReport

EXAMPLES = (
    ("linkbench report latest --summary", "print a few lines to paste into a ticket"),
    ("linkbench report latest --html run.html --redact", "write one page with pictures, without names of hosts"),
    ("linkbench report latest --format csv --output rows.csv", "write every figure, for a spreadsheet"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to the parser."""
    output.add_run_arguments(parser)
    parser.add_argument(
        "--certificate",
        nargs="?",
        const="",
        metavar="RULES",
        help="print an acceptance certificate by these rules (default: the rules with the name of the scenario)",
    )
    parser.add_argument("--summary", action="store_true", help="print only the summary, to paste into a ticket")
    parser.add_argument(
        "--html", type=output.writable("--html"), metavar="FILE", help="write one HTML page with pictures and data"
    )
    parser.add_argument(
        "--pdf",
        type=output.writable("--pdf"),
        metavar="FILE",
        help="write the same page as PDF, with a headless Chromium",
    )
    words = "price of one rank for an hour; shows what a sample of a training step costs"
    parser.add_argument("--price", type=price, metavar="USD", help=words)
    parser.add_argument("--redact", action="store_true", help="replace hosts, users, paths and addresses in the page")
    output.add_table_arguments(parser)
    output.add_output_arguments(parser)


@collector.paused()  # thousands of rows stay in use until the tables are printed
def main(args: argparse.Namespace) -> int:
    """Print the run's tables or its certificate, or write its page."""
    if args.certificate is not None:
        from bench.gate import of_folder  # the rules and their messages need 0.2 s to load

        return of_folder.certificate(args)
    path = path_of(args)
    if args.html is not None or args.pdf is not None:
        from bench.page import page, redact  # pictures and their styles are loaded only for a page

        content = embedded.read(path) if embedded.is_page(path) else of_run(path)
        for file in write_page(page.html(redact.redacted(content) if args.redact else content), args):
            print(printable.line(str(file)))
        return EXIT_DONE
    document, run = read(path)
    if args.redact:
        from bench.page import redact

        shown = redact.redacted(PageContent(document, run))
        document, run = shown.document, shown.run
    if args.price is not None:
        document = step_rates.priced(document, args.price)
    most_lines = output.most_lines(args)
    report = RunReport(document, args.show, args.notes, None, most_lines, run, args.summary, args.columns)
    output.show(report, args)
    warn(document)
    return EXIT_DONE


def price(typed: str) -> float:
    """Parse a number of dollars above zero."""
    try:
        value = float(typed)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{typed!r} is not a number of dollars above zero")
    return value


def read(path: Path) -> tuple[Document, NamedRun]:
    """Return a run's document and the names of the run. The path may be a folder, a results file or a page."""
    if embedded.is_page(path):
        content = embedded.read(path)
        return content.document, content.run
    return expected.added(collect.document(path)), collect.named(path)


def write_page(html: str, args: argparse.Namespace) -> list[Path]:
    """Write the page as HTML, as PDF or in both formats, and return the paths.

    Raises UsageError if a file cannot be written.
    """
    from bench.page import pdf

    written = []
    try:
        if args.html is not None:
            output.replace_file(args.html, html.encode())
            written.append(args.html)
        if args.pdf is not None:
            pdf.write(html, args.pdf)
            written.append(args.pdf)
    except OSError as error:
        raise UsageError(f"page {error.filename} cannot be written: {error.strerror}") from None
    return written


def warn(*documents: Document) -> None:
    """Print the notes of documents to stderr, each once."""
    for text in dict.fromkeys(note.text for document in documents for note in document.notes):
        say(f"bench: warning: {text}")


def path_of(args: argparse.Namespace) -> Path:
    """Return the folder or file of the run that the user named."""
    return collect.find(args.run, args.results)
