"""`python -m bench <command>`: commands/ is the list of commands; an error becomes a sentence and an exit code.

Only the command that is named is imported, so that `--help` and `list` answer at once.
"""
# PYTHON_ARGCOMPLETE_OK

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import traceback
from collections.abc import Collection, Sequence
from types import FrameType
from typing import NoReturn

import bench
from bench.core import plugins
from bench.core.errors import (
    EXIT_BROKEN_PIPE,
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_MEASUREMENT,
    EXIT_TERMINATED,
    EXIT_USAGE,
    BenchError,
    Interrupted,
)
from bench.core.option_parsers import Parser

_DEBUG = "show the traceback of an error"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the promised exit code (core/errors.py). `--help` and `--version` raise SystemExit."""
    words = list(sys.argv[1:] if argv is None else argv)
    _end_in_order_when_terminated()
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains once more at its exit
        return EXIT_BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in words:
            traceback.print_exc()
        code, sentence = _told(error)
        print(f"bench: error: {sentence}", file=sys.stderr)
    return code


def _run(words: list[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:  # the shell asks for words, by way of an option or a command half typed
        import argcomplete

        argcomplete.autocomplete(_parser(plugins.names("command")))
    chosen = next((word for word in words if not word.startswith("-")), None)
    if chosen is not None:
        plugins.check("command", chosen)
    parser = _parser([] if chosen is None else [chosen])
    args = parser.parse_args(words)
    if args.command is None:
        parser.print_help()
        return EXIT_DONE
    try:
        code: int = plugins.load("command", args.command).main(args)
    except (Exception, KeyboardInterrupt) as error:
        from bench.results import output

        output.emit_failure(error, args)
        raise
    return code


def _parser(loaded: Collection[str]) -> argparse.ArgumentParser:
    """All commands by name and first line; those in `loaded` are imported and know their options."""
    parser = Parser(prog="python -m bench", description=bench.__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"linkbench-suite {bench.__version__}")
    parser.add_argument("--debug", action="store_true", help=_DEBUG)
    commands = parser.add_subparsers(dest="command", metavar="<command>", title="commands", parser_class=Parser)
    for name in plugins.names("command"):
        line = plugins.first_line("command", name).replace("%", "%%")
        command = commands.add_parser(name, help=line, description=line, allow_abbrev=False)
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=_DEBUG)
        if name in loaded:
            plugins.load("command", name).arguments(command)
    return parser


def _told(error: BaseException) -> tuple[int, str]:
    """The exit code and the sentence of whatever ended a command."""
    if isinstance(error, BenchError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED, "interrupted"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
        return EXIT_USAGE, f"what this prints can not be written ({error.strerror}): make room where it goes"
    if isinstance(error, OSError):
        return EXIT_USAGE, f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").partition(".")[0]) not in (
        "",
        "bench",
    ):
        return EXIT_USAGE, (
            f"Python package {package} is not installed for {sys.executable}: `make install` installs all that is "
            f"needed into an environment of its own, `{sys.executable} -m pip install .` into this one"
        )
    last = traceback.extract_tb(error.__traceback__)[-1]
    return EXIT_MEASUREMENT, (
        f"a fault of the suite itself, {type(error).__name__}: {error} ({last.filename}:{last.lineno}): "
        "run it again with --debug and report what that shows"
    )


def _end_in_order_when_terminated() -> None:
    """SIGTERM, and SIGHUP unless nohup is at work, end what was started as Ctrl-C does; a second one is ignored."""

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        raise Interrupted(f"ended by {signal.Signals(number).name}", EXIT_TERMINATED)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, terminate)


if __name__ == "__main__":
    sys.exit(main())
