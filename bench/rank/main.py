"""What every rank of `python -m bench.<pattern>` runs: who am I, open the transport, measure, write, print.

Only rank 0 prints: the table (or another format) to stdout, everything else to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from bench.core import plugins
from bench.core.case import Case, add_arguments, from_args, unheard
from bench.core.errors import (
    EXIT_DONE,
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
)
from bench.core.parser import Parser
from bench.core.units import option_duration
from bench.core.world import Place
from bench.rank import pulse
from bench.rank.place import place as place_of

if TYPE_CHECKING:
    from bench.core.derived import Document, Summary
    from bench.core.record import Header, Record
    from bench.core.transport import Transport
    from bench.rank.session import Opened
    from bench.store.jsonl import Writer

    Clocks = dict[str, dict[str, float]]
    Gpus = dict[str, list[dict[str, Any]]]

_FORMATS = ("table", "json", "csv", "markdown")
_DEADLINE_S = 300.0
_EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
_MOST_HELD, _MOST_PENDING = 50_000, 10_000  # rows of a printed table that rank 0 holds: some 100 MB, and 20
_LAST_WORDS_S = 0.3  # a launcher told to abort at once drops what this rank has just said


def run_pattern(name: str, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a pattern as this process's whole work; ends the process with the promised exit code."""
    transport_box: list[Transport] = []
    me = Place(0, 1, 0, 1, "direct")
    try:
        me = place_of(os.environ)
        code = _run(name, argv, me, transport_box)
    except BaseException as error:
        code = _failed(error, me, transport_box, "--debug" in (sys.argv if argv is None else argv))
    sys.stdout.flush()
    sys.exit(code)


def _failed(error: BaseException, me: Place, transport_box: list[Transport], debug: bool) -> int:
    """Say what happened. Returns the exit code where all ranks found the same; else ends the whole job.

    What all ranks find alike is said once; what one rank finds is said by that rank. A rank that died alone would leave
    the others waiting, so whatever it died of ends them, too.
    """
    if isinstance(error, SystemExit) and not transport_box:  # --help
        raise error
    if isinstance(error, KeyboardInterrupt):
        if me.rank == 0:
            _say("bench: error: interrupted; the rows measured so far are kept")
        os._exit(EXIT_INTERRUPTED)
    if debug or not isinstance(error, BenchError | RuntimeError | OSError | SystemExit):
        traceback.print_exception(error)
    if isinstance(error, BrokenPipeError):  # `| head` wanted no more
        _abort(transport_box, _EXIT_BROKEN_PIPE)
    if isinstance(error, AbsentError):  # nor can this rank leave its library in order
        _abort(transport_box, EXIT_REFUSED)
    if isinstance(error, BenchError) and error.exit_code in (EXIT_USAGE, EXIT_REFUSED):
        return _refused(error, me, transport_box)
    words = str(error).splitlines()[0] if str(error) else ""
    _say(
        f"bench: error: {_on_rank(me)}{words if isinstance(error, BenchError) else f'{type(error).__name__}: {words}'}"
    )
    _abort(transport_box, error.exit_code if isinstance(error, BenchError) else EXIT_MEASUREMENT)


def _refused(error: BenchError, me: Place, transport_box: list[Transport]) -> int:
    if me.rank == 0:
        _say(f"bench: error: {error}")
    elif me.local_rank == 0 and not transport_box:  # a library that this host alone may lack
        _say(f"bench: error: {_on_rank(me)}{error}")
    if transport_box:  # perhaps rank 0 alone found it
        _abort(transport_box, error.exit_code)
    return error.exit_code


def _run(name: str, argv: Sequence[str] | None, me: Place, transport_box: list[Transport]) -> int:
    args = _parse(name, argv, me)
    try:
        _check_output(args.output)
        case = from_args(name, args)
        if case.transport == "model":
            return _run_modelled(case, args, me)
        from bench.rank import preflight, session

        world = preflight.expected(args.expect) if args.expect else None
        preflight.check_place(me, world, os.environ)
        with (
            pulse.watched(
                me, args.deadline, args.heartbeats, lambda words: _say(f"bench: error: {_on_rank(me)}{words}")
            ) as beat,
            _told_apart(transport_box, beat),
        ):
            try:
                opened = session.open_case(case, me, beat, args.timeout, world, transport_box.append)
            except AbsentError as error:
                if error.ranks:
                    _say(f"bench: error: {preflight.absent(error, me, world)}")
                raise
            return _measure(opened, args, me)
    except BenchError as error:
        if me.rank == 0 and args.format == "json" and not args.emitted:
            _emit(_rendered(_nothing_but(name, error), "json"), args)
        raise


def _nothing_but(name: str, error: BenchError) -> Document:
    """The document of a run that came to nothing: JSON is one document also after a failure."""
    from bench.core.derived import DOCUMENT_SCHEMA, Document

    failure = {"job": name, "pattern": name, "what": str(error), "rank": None, "host": None}
    return Document(DOCUMENT_SCHEMA, {}, (), failures=(failure,))


def _measure(opened: Opened, args: argparse.Namespace, me: Place) -> int:
    from bench.rank import session
    from bench.rank.ending import Ending

    header = session.header(opened, args.job or opened.case.pattern, args.launch)
    ending = Ending(opened.transport)
    rows = ending.watched(opened.clocks.watched(opened.measurer.rows()))
    if me.rank != 0 or header is None:
        for _ in rows:
            pass
        code = opened.transport.channel.broadcast(None)
    else:
        code = _deliver(header, rows, args, opened.clocks.told, ending.gpus)
        opened.transport.channel.broadcast(code)
    opened.transport.close()
    return int(code)


def _run_modelled(case: Case, args: argparse.Namespace, me: Place) -> int:
    if me.num_ranks > 1:
        raise UsageError(f"the model simulates all ranks in one process, and {me.launcher} started {me.num_ranks}")
    from bench.rank import session

    if (passed_over := unheard(case, "model")) is not None:
        raise RefusedError(passed_over)
    header, rows = session.modelled(case, args.job or case.pattern)
    return _deliver(header, rows, args)


def _deliver(header: Header, rows: Iterator[tuple[Record, ...]], args: argparse.Namespace,
             clocks_at_end: Callable[[], Clocks] = dict, gpus_at_end: Callable[[], Gpus] = dict) -> int:  # fmt: skip
    """Rank 0: write each row as it comes, print, and say how it went. What is so `at_end` is asked after the last."""
    from bench.analysis import summary
    from bench.store import jsonl

    writer = jsonl.Writer(Path(args.records), header) if args.records else None
    live = args.format == "table" and args.output is None
    printer = _TablePrinter(header) if live else None
    if printer is None:
        for note in header.notes:
            _say(f"# {note}")
    # Whole documents need every row; what is printed as it comes, and kept in a file, need not be held for its end.
    told = summary.Rows(_MOST_HELD if printer else None)
    try:
        for row in rows:
            if writer:
                writer.append(*row)
            shown = [told.add(header.job, header, record) for record in row]
            if printer:
                printer.show([summary for summary in shown if summary is not None])
    except Exception:
        if not printer:  # one whole document also after a failure
            _emit(_rendered(told.document({header.job: header}), args.format), args)
        raise
    header = _at_end(header, clocks_at_end(), gpus_at_end(), writer)
    document = told.document({header.job: header})
    if printer:
        printer.finish(document)
    else:
        _emit(_rendered(document, args.format), args)
    return _exit_code(document)


def _at_end(header: Header, clocks: Clocks, gpus: Gpus, writer: Writer | None) -> Header:
    """The header with what is known now of the hosts' clocks, more than at the beginning, and of their GPUs."""
    from bench.store import jsonl

    if clocks:
        header = jsonl.with_clocks(header, clocks)
    if gpus:
        header = jsonl.with_gpus_at_end(header, gpus)
    if clocks and writer:
        writer.clocks(clocks)
    if gpus and writer:
        writer.end(gpus)
    return header


def _exit_code(document: Document) -> int:
    """4 for wrong data or a failed row, 3 when every row was skipped, else 0."""
    told = [f"{row['what']} (rank {row['rank']} on {row['host']})" for row in document.failures]
    told += [
        next((flag for flag in row.flags if flag.startswith("wrong: ")), "wrong data")
        for row in document.summaries
        if row.verified is False
    ]
    if told:
        _say(f"bench: error: {len(told)} row{'s' * (len(told) > 1)} failed; first: {told[0]}")
        return EXIT_MEASUREMENT
    return EXIT_DONE if document.summaries else EXIT_REFUSED


class _TablePrinter:
    """Prints the head at once, then each size when its modes are there."""

    def __init__(self, header: Header) -> None:
        from bench.analysis.flops import PATTERN
        from bench.analysis.localise_input import group_name
        from bench.core.case import from_argv
        from bench.report.table import Table

        case = from_argv(header.case)
        grouped = header.topology != "world"
        last = (header.num_ranks or 1) - 1
        widest = len(group_name("confirm", 999, last, last) if case.schedule == "ladder" else f"{last}-{last}")
        self._table = Table(case.modes, grouped=grouped, widest=widest, like=case.like,
                            products=header.pattern == PATTERN)  # fmt: skip
        self._pending: list[Summary] = []
        print(self._table.lines_before(header), flush=True)

    def show(self, row: Sequence[Summary]) -> None:
        """Keep the row until its size is complete, then print it; a size of too many rows is printed as it comes."""
        if self._pending and row and row[0].payload_bytes != self._pending[0].payload_bytes:
            self._flush()
        self._pending += row
        if len(self._pending) > _MOST_PENDING:
            self._flush()

    def finish(self, document: Document) -> None:
        """The last size, and what the whole table says."""
        self._flush()
        print(self._table.lines_after(document), flush=True)

    def _flush(self) -> None:
        if self._pending:
            print(self._table.line(self._pending), flush=True)
        self._pending = []


def _rendered(document: Document, form: str) -> str:
    text: str = plugins.load("format", form).render(document)
    return text


def _emit(text: str, args: argparse.Namespace) -> None:
    args.emitted = True
    if args.output is None:
        print(text, end="" if text.endswith("\n") else "\n", flush=True)
        return
    try:
        Path(args.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {args.output} can not be written ({error.strerror})") from None


def _check_output(output: str | None) -> None:
    """Said before anything is measured: a result that could not be kept is not worth the time."""
    if output is not None and (Path(output).is_dir() or not Path(output).absolute().parent.is_dir()):
        raise UsageError(f"--output {output} can not be written: name a file in a folder that is there")


def _parse(name: str, argv: Sequence[str] | None, me: Place) -> argparse.Namespace:
    parser = Parser(
        prog=f"python -m bench.{name}",
        description=sys.modules["__main__"].__doc__ if argv is None else plugins.first_line("pattern", name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_arguments(parser)
    parser.add_argument("--format", choices=_FORMATS, default="table", help="what is printed (default table)")
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
def _told_apart(transport_box: list[Transport], beat: pulse.Beat) -> Iterator[None]:
    """A rank whose peer is gone says so in other words than one that failed by itself: the desk looks for the cause."""
    try:
        yield
    except Exception as error:
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
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


def _on_rank(me: Place) -> str:
    return f"rank {me.rank} on {socket.gethostname()}: " if me.num_ranks > 1 else ""


def _abort(transport_box: list[Transport], code: int) -> NoReturn:
    """End the whole job, also when the library would wait for the others at exit."""
    sys.stdout.flush()
    time.sleep(_LAST_WORDS_S)
    for transport in transport_box:
        transport.abort(code)
    os._exit(code)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
