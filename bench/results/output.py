"""The run that is shown, `--format` and `--output`, alike in every command that prints a table."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.core import plugins
from bench.core.errors import UsageError
from bench.results.document import DOCUMENT_SCHEMA, Document

FORMATS = ("table", "json", "csv", "markdown")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Which run is to be shown."""
    parser.add_argument(
        "run", nargs="?", default="latest", help="a run's path or name, a .jsonl file, or latest (default)"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="where runs are kept")


def add_output_arguments(parser: argparse.ArgumentParser, formats: Sequence[str] = FORMATS) -> None:
    """Declare both options; the first format is the default. A path that can not be written is refused at once."""
    parser.add_argument("--format", choices=formats, default=formats[0], help=f"how to print (default {formats[0]})")
    parser.add_argument("--output", type=_writable, metavar="FILE", help="write there instead of to stdout")


def add_show_argument(parser: argparse.ArgumentParser) -> None:
    """What tables can show in addition."""
    words = "in addition: wire, the rate through a node's NICs"
    parser.add_argument("--show", action="append", default=[], choices=("wire",), help=words)


def emit(text: str, args: argparse.Namespace) -> None:
    """Write `text`, ended by one line end, to `args.output` (as a whole or not at all), else to stdout.

    Raises UsageError when the file can not be written.
    """
    emit_pieces((text.rstrip("\n"), "\n"), args)


def emit_pieces(pieces: Iterable[str], args: argparse.Namespace) -> None:
    """The same of a text that comes in parts, the last of which ends its last line."""
    args.emitted = True
    path: Path | None = args.output
    if path is None:
        sys.stdout.writelines(pieces)
        return
    try:
        if path.exists() and not path.is_file():  # /dev/stderr, a named pipe: there is nothing to replace
            with path.open("w", encoding="utf-8") as file:
                file.writelines(pieces)
        else:
            replace_file(path, b"".join(piece.encode() for piece in pieces))
    except OSError as error:
        raise UsageError(f"--output {path} can not be written: {error.strerror}") from None


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` into a file, as a whole or not at all; a link is followed, permissions stay. Raises OSError."""
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
    """One JSON document also after a failure, where JSON was asked for and none was printed yet."""
    if getattr(args, "format", None) != "json" or getattr(args, "emitted", False):
        return
    failure = {"job": None, "what": str(error) or type(error).__name__, "rank": None, "host": None}
    emit(plugins.load("format", "json").render(Document(DOCUMENT_SCHEMA, {}, (), failures=(failure,))), args)


def drawing(word: str) -> Path:
    """What `--plot` names, whose ending says the form; refused before anything is reckoned, as `--output` is."""
    path = Path(word)
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot {path}: name a file that ends in .png, .svg or .pdf")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path} can not be written: there is no folder {path.parent}")
    return path


def _writable(word: str) -> Path:
    """Said before anything is measured: the folder is not there, or the path is one."""
    path = Path(word)
    if path.is_dir():
        raise UsageError(f"--output {path} is a folder: name a file in it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--output {path} can not be written: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise UsageError(f"--output {path} can not be written: permission denied")
    return path
