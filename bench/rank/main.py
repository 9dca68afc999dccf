"""What every rank of `python -m bench.<pattern>` runs: who am I, open the transport, measure, and how it ends.

What rank 0 prints, and keeps in a file, is in rank/delivery.py.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from bench.core import plugins
from bench.core.case import Case, add_arguments, from_args, ignored_option
from bench.core.errors import (
    EXIT_BROKEN_PIPE,
    EXIT_INTERRUPTED,
    EXIT_MEASUREMENT,
    EXIT_REFUSED,
    EXIT_USAGE,
    AbsentError,
    BenchError,
    LostContactError,
    MeasurementError,
    RefusedError,
    UsageError,
    first_line,
)
from bench.core.option_parsers import Parser
from bench.core.traits import traits
from bench.core.units import option_duration
from bench.core.world import RankInfo
from bench.rank import delivery, pulse
from bench.rank.place import place as place_of

if TYPE_CHECKING:
    from bench.core.transport import Transport
    from bench.rank.session import Session

_DEADLINE_S = 300.0
_LAST_WORDS_S = 0.3  # a launcher told to abort at once drops what this rank has just said


def run_pattern(name: str, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a pattern as this process's whole work; ends the process with the promised exit code."""
    transport_box: list[Transport] = []
    me = RankInfo(0, 1, 0, 1, "direct")
    try:
        me = place_of(os.environ)
        code = _run(name, argv, me, transport_box)
    except BaseException as error:
        code = _failed(error, me, transport_box, "--debug" in (sys.argv if argv is None else argv))
    sys.stdout.flush()
    sys.exit(code)


def _failed(error: BaseException, me: RankInfo, transport_box: list[Transport], debug: bool) -> int:
    """Say what happened. Returns the exit code of what was refused before the transport was open; else ends the job.

    What all ranks find alike is said once, by rank 0; what a host may find, by its first rank, too; what one rank finds
    (`of_one_rank`), by that rank. A rank that died alone would leave the others waiting, so whatever it died of ends
    them, too; one that was refused before it met them is missed by them, or ended with them by the launcher.
    """
    if isinstance(error, SystemExit) and not transport_box:  # --help
        raise error
    if isinstance(error, KeyboardInterrupt):
        if me.rank == 0:
            delivery.say("bench: error: interrupted; the rows measured so far are kept")
        os._exit(EXIT_INTERRUPTED)
    if debug or not isinstance(error, BenchError | RuntimeError | OSError | SystemExit):
        traceback.print_exception(error)
    if isinstance(error, BrokenPipeError):  # `| head` wanted no more
        _abort(transport_box, EXIT_BROKEN_PIPE)
    if isinstance(error, AbsentError):  # nor can this rank leave its library in order
        _abort(transport_box, EXIT_REFUSED)
    if isinstance(error, BenchError) and error.exit_code in (EXIT_USAGE, EXIT_REFUSED):
        return _refused(error, me, transport_box)
    words = str(error).splitlines()[0] if str(error) else ""
    delivery.say(
        f"bench: error: {_on_rank(me)}{words if isinstance(error, BenchError) else f'{type(error).__name__}: {words}'}"
    )
    _abort(transport_box, error.exit_code if isinstance(error, BenchError) else EXIT_MEASUREMENT)


def _refused(error: BenchError, me: RankInfo, transport_box: list[Transport]) -> int:
    if me.rank == 0:
        delivery.say(f"bench: error: {error}")
    elif not transport_box and (me.local_rank == 0 or getattr(error, "of_one_rank", False)):
        # A library that this host alone may lack, a GPU that is broken.
        delivery.say(f"bench: error: {_on_rank(me)}{error}")
    if transport_box:  # perhaps rank 0 alone found it
        _abort(transport_box, error.exit_code)
    return error.exit_code


def _run(name: str, argv: Sequence[str] | None, me: RankInfo, transport_box: list[Transport]) -> int:
    args = _parse(name, argv, me)
    try:
        delivery.check_output(args.output)
        case = from_args(name, args)
        if traits(case.transport).modelled:
            return _run_modelled(case, args, me)
        from bench.rank import preflight, session

        world = preflight.expected(args.expect) if args.expect else None
        preflight.check_place(me, world, os.environ)
        with (
            pulse.watched(
                me, args.deadline, args.heartbeats, lambda words: delivery.say(f"bench: error: {_on_rank(me)}{words}")
            ) as beat,
            _told_apart(transport_box, beat),
        ):
            try:
                opened = session.open_case(case, me, beat, args.timeout, world, transport_box.append)
            except AbsentError as error:
                if error.ranks:
                    delivery.say(f"bench: error: {preflight.absent(error, me, world)}")
                raise
            return _measure(opened, args, me)
    except BenchError as error:
        if me.rank == 0 and args.format == "json" and not args.emitted:
            delivery.emit(delivery.nothing_but(name, error), args)
        raise


def _measure(opened: Session, args: argparse.Namespace, me: RankInfo) -> int:
    from bench.rank.ending import Ending
    from bench.rank.header import header_of

    header = header_of(opened, args.job or opened.case.pattern, args.launch)
    ending = Ending(opened.transport)
    rows = ending.watched(opened.clocks.watched(opened.measurer.rows()))
    if me.rank != 0 or header is None:
        for _ in rows:
            pass
        code = opened.transport.channel.broadcast(None)
    else:
        code = delivery.deliver(header, rows, args, opened.clocks.told, ending.gpus)
        opened.transport.channel.broadcast(code)
    opened.transport.close()
    return int(code)


def _run_modelled(case: Case, args: argparse.Namespace, me: RankInfo) -> int:
    if me.num_ranks > 1:
        raise UsageError(f"the model simulates all ranks in one process, and {me.launcher} started {me.num_ranks}")
    from bench.rank import modelled

    if (ignored := ignored_option(case, case.transport)) is not None:
        raise RefusedError(ignored.text)
    header, rows = modelled.header_and_rows(case, args.job or case.pattern)
    return delivery.deliver(header, rows, args)


def _parse(name: str, argv: Sequence[str] | None, me: RankInfo) -> argparse.Namespace:
    parser = Parser(
        prog=f"python -m bench.{name}",
        description=sys.modules["__main__"].__doc__ if argv is None else plugins.first_line("pattern", name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_arguments(parser)
    parser.add_argument("--format", choices=plugins.names("format"), default="table", help="default table")
    parser.add_argument("--notes", action="store_true", help="all notes below the table instead of the urgent ones")
    parser.add_argument("--output", metavar="FILE", help="print to FILE instead of stdout")
    parser.add_argument("--records", metavar="FILE", help="append raw samples to this results file")
    parser.add_argument("--job", metavar="NAME", help="the job's name in its results file")
    parser.add_argument("--launch", type=int, default=1, metavar="N", help="which launch of this case this is")
    parser.add_argument("--expect", metavar="WORLD", help="refuse any other world than this: 4x2, or h0,h1x2")
    parser.add_argument("--heartbeats", metavar="DIR", help="say in DIR what each rank is doing")
    parser.add_argument(
        "--timeout",
        type=partial(option_duration, "--timeout"),
        default=60.0,
        metavar="TIME",
        help="of one operation of a library that has one (60s)",
    )
    parser.add_argument(
        "--deadline",
        type=partial(option_duration, "--deadline"),
        default=_DEADLINE_S,
        metavar="TIME",
        help="a rank that gets nowhere for so long ends (5m)",
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(emitted=False)
    if me.rank != 0:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
            return parser.parse_args(argv)
    return parser.parse_args(argv)


@contextlib.contextmanager
def _told_apart(transport_box: list[Transport], beat: pulse.HeartbeatWriter) -> Iterator[None]:
    """A rank whose peer is gone says so in other words than one that failed by itself: the desk looks for the cause."""
    try:
        yield
    except Exception as error:
        words = first_line(error)
        if isinstance(error, BenchError):
            raise
        if any(opened.lost_contact(error) for opened in transport_box):
            raise LostContactError(f"lost contact with its peers in {beat.doing} ({words})") from error
        # torch's and CuPy's own errors are of other kinds in every version, and NCCL's only says it in words.
        if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
            raise MeasurementError(
                f"ran out of memory in {beat.doing} ({type(error).__name__}: {words}): give smaller --sizes, or "
                "start fewer ranks on this machine"
            ) from error
        raise


def _on_rank(me: RankInfo) -> str:
    return f"rank {me.rank} on {socket.gethostname()}: " if me.num_ranks > 1 else ""


def _abort(transport_box: list[Transport], code: int) -> NoReturn:
    """End the whole job, also when the library would wait for the others at exit."""
    sys.stdout.flush()
    time.sleep(_LAST_WORDS_S)
    for transport in transport_box:
        transport.abort(code)
    os._exit(code)
