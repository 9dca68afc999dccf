"""Run the module in commands/ that implements `linkbench <command>`, and turn an error into one line and an exit code.

Only the named command is imported, so `--help` and `list` are fast.
"""
# PYTHON_ARGCOMPLETE_OK

from __future__ import annotations

import sys

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

_INTERRUPTED = "interrupted"

try:
    import errno
    import gc
    import os
    import signal
    import traceback
    from collections.abc import Sequence
    from types import FrameType
    from typing import NoReturn

    from bench.commands import _parser
    from bench.core import plugins, printable
except KeyboardInterrupt:  # main() handles Ctrl-C, but does not run yet
    print(f"bench: error: {_INTERRUPTED}", file=sys.stderr)
    sys.exit(EXIT_INTERRUPTED)

# Commands keep the rows that they read. With Python's default threshold of 700 new objects, the garbage collector scans
# all rows again and again, which takes a fifth of the CPU time of a report of 30,000 rows. A command that creates
# cycles still frees them.
_COLLECT_AFTER = (200_000, 50, 1000)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    The program returns the exit code of the command (core/errors.py). `--help` and `--version` raise SystemExit.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _end_in_order_when_terminated()
    gc.set_threshold(*_COLLECT_AFTER)
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_unwritten_output()
        return EXIT_BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in words:
            traceback.print_exc()
        code, message = _error_of(error)
        print(f"bench: error: {printable.line(message)}", file=sys.stderr)
        _drop_unwritten_output()
    return code


def _drop_unwritten_output() -> None:
    """Drop output that cannot be written.

    If Python kept output that cannot be written, it would report the error again at exit and change the exit code.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:  # the shell requests completions of a command line
        import argcomplete

        from bench.commands import _complete

        parser = _parser.parser_of({*os.environ.get("COMP_LINE", "").split()} & {*plugins.names("command")})
        _complete.attach(parser)
        argcomplete.autocomplete(parser)
    chosen = next((word for word in words if not word.startswith("-")), None)
    if chosen is not None:
        plugins.check("command", chosen)
    parser = _parser.parser_of([] if chosen is None else [chosen], alone=chosen is not None)
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


def _error_of(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the message for the exception that ended a command."""
    if isinstance(error, BenchError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED, _INTERRUPTED
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
        return EXIT_USAGE, f"the output cannot be written ({error.strerror}): free some space"
    if isinstance(error, OSError):
        return EXIT_USAGE, f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").partition(".")[0]) not in (
        "",
        "bench",
    ):
        return EXIT_USAGE, (
            f"Python package {package} is not installed for {sys.executable}: run `make install` for an environment "
            f"with all packages, or `{sys.executable} -m pip install .` for this one"
        )
    last = traceback.extract_tb(error.__traceback__)[-1]
    return EXIT_MEASUREMENT, (
        f"internal error: {type(error).__name__}: {error} ({last.filename}:{last.lineno}). "
        "Run it again with --debug and report the traceback"
    )


def _end_in_order_when_terminated() -> None:
    """Make SIGTERM and SIGHUP end the command like Ctrl-C.

    The command ignores a second signal. Under nohup the command also ignores SIGHUP.
    """

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        raise Interrupted(f"ended by {signal.Signals(number).name}", EXIT_TERMINATED)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, terminate)


if __name__ == "__main__":
    sys.exit(main())
