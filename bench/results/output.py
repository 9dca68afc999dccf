"""Declare and apply the options for a command's input and output: the run, the format, and stdout or a file."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bench.core import plugins, printable
from bench.core.errors import UsageError
from bench.core.wrapping import line_width
from bench.results import colours, run_table
from bench.results.document import DOCUMENT_SCHEMA, Document
from bench.results.table import Report

FIGURE_FORMATS = ("png", "svg", "pdf")
MOST_LINES = 200  # lines of a table on the terminal without `--all`

# For commands that write their own format and no Report.
BY_HAND = ("table", "json", "csv", "markdown")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that choose the run to show."""
    parser.add_argument(
        "run", nargs="?", default="latest", help="path or name of a run, a .jsonl file, or latest (default)"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="folder of all runs")


def add_output_arguments(parser: argparse.ArgumentParser, formats: Sequence[str] = ()) -> None:
    """Declare `--format` and `--output`.

    `formats`: the allowed formats. By default, each file in results/formats/ is a format, and `table` comes first.

    If the path of `--output` cannot be written, the command refuses to start.
    """
    known = formats or ("table", *(name for name in plugins.names("format") if name != "table"))
    parser.add_argument("--format", choices=known, default=known[0], help=f"output format (default {known[0]})")
    parser.add_argument(
        "--output", type=writable("--output"), metavar="FILE", help="write to this file instead of stdout"
    )


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that add columns and notes to the tables of a run."""
    words = "additional columns: wire, the rate through a node's NICs"
    parser.add_argument("--show", action="append", default=[], choices=("wire",), help=words)
    words = "only these columns of a run's table besides the sizes, on any terminal: time,busbw"
    parser.add_argument("--columns", type=run_table.column_titles, default=(), metavar="TITLES", help=words)
    parser.add_argument("--wide", action="append_const", dest="show", const="wide", help="all columns, on any terminal")
    words = f"all rows on the terminal; a table of more than {MOST_LINES} lines is else cut to one screen"
    parser.add_argument("--all", action="store_true", help=words)
    parser.add_argument("--notes", action="store_true", help="all notes below the tables, not only the urgent ones")


def add_figure_format(parser: argparse.ArgumentParser) -> None:
    """Declare `--figure-format`, which may be given several times."""
    words = "draw figures in this format (repeatable; default png and svg)"
    parser.add_argument("--figure-format", action="append", choices=FIGURE_FORMATS, default=[], help=words)


def most_lines(args: argparse.Namespace) -> int | None:
    """Return the largest number of lines in a run's table, or None for no limit."""
    whole = args.all or args.format != "table" or args.output is not None
    return None if whole else MOST_LINES


def show(report: Report, args: argparse.Namespace) -> None:
    """Write a report in the format that the user requested. Raises UsageError when the file cannot be written."""
    emit(plugins.load("format", args.format).render(report, page_width(args)), args)


def page_width(args: argparse.Namespace) -> int:
    """Return the number of characters in a line of a command's page (core/wrapping.py)."""
    return line_width(to_file=args.output is not None)


def emit(text: str, args: argparse.Namespace) -> None:
    """Write `text` and a newline to the file `args.output`, or to stdout if there is no file.

    A file is written as a whole or not at all. Raises UsageError if the file cannot be written.
    """
    whole = safe(text.rstrip("\n"), args.format) + "\n"
    if args.format == "table" and args.output is None:
        args.emitted = True
        colours.write(whole, sys.stdout)
    else:
        emit_pieces((whole,), args)


def safe(text: str, form: str) -> str:
    """Return the text without characters that could control a terminal, a page or a CI system (core/printable.py)."""
    if form == "json":
        return printable.json_text(text)
    return printable.markdown_page(text) if form == "markdown" else printable.lines(text)


def emit_pieces(pieces: Iterable[str], args: argparse.Namespace) -> None:
    """Write a text or a JSON document piece by piece. A text must have no control characters.

    The last piece must end with a newline.
    """
    args.emitted = True
    path: Path | None = args.output
    if path is None:
        sys.stdout.writelines(pieces)
        return
    try:
        if path.exists() and not path.is_file():  # nothing to replace in /dev/stderr or a named pipe
            with path.open("w", encoding="utf-8") as file:
                file.writelines(pieces)
        else:
            replace_file(path, b"".join(piece.encode() for piece in pieces))
    except OSError as error:
        raise UsageError(f"--output {path} cannot be written: {error.strerror}") from None


def replace_file(path: Path, content: bytes) -> None:
    """Replace the content of a file as a whole or not at all.

    Symbolic links are followed, and the permissions of the file are preserved. Raises OSError.
    """
    path = path.resolve()
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(content)
        if path.exists():
            shutil.copymode(path, partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def emit_failure(error: BaseException, args: argparse.Namespace) -> None:
    """Print one JSON document about the failure, if the user requested JSON and nothing has been printed yet."""
    if getattr(args, "format", None) != "json" or getattr(args, "emitted", False):
        return
    from bench.results.run_report import RunReport

    failure = {"job": None, "what": str(error) or type(error).__name__, "rank": None, "host": None}
    show(RunReport(Document(DOCUMENT_SCHEMA, {}, (), failures=(failure,))), args)


def drawing(word: str) -> Path:
    """Check the path of `--plot` before anything is computed. Raises UsageError if the path is not writable."""
    path = Path(word)
    if path.suffix.removeprefix(".") not in FIGURE_FORMATS:
        raise UsageError(f"--plot {path}: the name must end in .png, .svg or .pdf")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path} cannot be written: there is no folder {path.parent}")
    return path


def writable(option: str) -> Callable[[str], Path]:
    """Return a parser for an option with the path of an output file, such as `--output`.

    The parser checks the path immediately, although the command writes the file only at its end. The parser raises
    UsageError if the path is not writable.
    """

    def parse(word: str) -> Path:
        path = Path(word)
        if path.is_dir():
            raise UsageError(f"{option} {path} is a folder: name a file in it")
        if not path.absolute().parent.is_dir():
            raise UsageError(f"{option} {path} cannot be written: there is no folder {path.parent}")
        if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            raise UsageError(f"{option} {path} cannot be written: permission denied")
        return path

    return parse
