"""Run one rank of `python -m bench.<pattern>`: find the rank's number, open the transport, measure, and report.

rank/delivery.py prints and stores the results on rank 0.
"""

from __future__ import annotations

import sys

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

try:
    import argparse
    import contextlib
    import gc
    import os
    import socket
    import time
    import traceback
    from collections.abc import Iterator, Sequence
    from dataclasses import dataclass, replace
    from functools import partial
    from typing import TYPE_CHECKING, NoReturn

    from bench.core import collector, plugins
    from bench.core.case import Case, ignored_option
    from bench.core.case_argv import add_arguments, from_args
    from bench.core.ends import EndCode
    from bench.core.option_parsers import Parser
    from bench.core.record import Flag
    from bench.core.units import option_duration
    from bench.core.world import RankInfo
    from bench.rank import delivery, heartbeats
    from bench.rank.messages import RankRefusal
    from bench.rank.placement import place
    from bench.store.heartbeat import ERROR_LINE, End, LastWords, error_line
except KeyboardInterrupt:  # run_pattern() handles Ctrl-C, but does not run yet
    sys.exit(EXIT_INTERRUPTED)

if TYPE_CHECKING:
    from bench.core.transport import Transport
    from bench.rank.preflight import Expected
    from bench.rank.session import Session

_ALONE = RankInfo(0, 1, 0, 1, "direct")
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")  # in errors of libraries
_DEADLINE_S = 300.0
_LAST_WORDS_S = 1.0  # time in which the launcher forwards this rank's last output; the abort then drops the rest
_WATCHDOG_S = 2.0
# how long other ranks wait until rank 0, perhaps on a busy machine, has reported an error that all ranks found
_RANK_0_FIRST_S = 10.0
_FIRST_OF_HOST_S = 3.0


@dataclass(slots=True)
class _Process:
    """The information that a rank needs to report how it ended.

    `has_controller`: whether a controller reads the rank's stderr.
    """

    has_controller: bool
    debug: bool
    me: RankInfo = _ALONE
    expected: Expected | None = None
    transport: Transport | None = None
    discarded: bool = False

    def report(self, end: End, *, named: bool) -> None:
        """Print how this rank ended.

        `named`: whether to print the rank and its host, because other ranks may have ended in a different way.
        """
        words = LastWords(end)
        if named and self.me.num_ranks > 1:
            host = socket.gethostname()
            text = f"rank {self.me.rank} on {host}: {end.text}"
            words = LastWords(replace(end, text=text), self.me.rank, host)
        self.print_words(words)

    def print_words(self, words: LastWords) -> None:
        """Print this rank's last message.

        If a controller reads stderr, also print the code of the message and its data fields.
        """
        delivery.say(error_line(words) if self.has_controller else f"{ERROR_LINE}{words.end.text}")

    def discard(self) -> None:
        """Remove the files that this rank has written to disks. Errors during the removal are ignored."""
        self.discarded = True
        if self.transport is not None:
            self.transport.discard()

    def abort(self, code: int) -> NoReturn:
        """End the whole job at once. A normal exit of the process might wait for the other ranks inside the library."""
        sys.stdout.flush()
        heartbeats.discard_in_time(self.discard)  # another rank's abort may end this rank during the sleep
        time.sleep(_LAST_WORDS_S)
        if self.transport is not None:
            self.transport.abort(code)
        os._exit(code)


def run_pattern(name: str, argv: Sequence[str] | None = None) -> NoReturn:
    """Run a pattern, and then end the process with the exit code that describes the result."""
    words = sys.argv if argv is None else argv
    process = _Process("--heartbeats" in words, "--debug" in words)
    try:
        process.me = place(os.environ)
        if argv is None:
            _check_started_file()
        code = _run(name, argv, process)
    except BaseException as error:
        code = _failed(error, process)
    sys.stdout.flush()
    if process.transport is not None and process.transport.exits_at_once:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _check_started_file() -> None:
    """Raise UsageError if the name of the started pattern is not its file's name.

    If the names differed, linkbench would run a different pattern than the user started.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    package, _, module = (spec.name if spec is not None else "").partition(".")
    if package == "bench" and module in plugins.names("pattern"):
        plugins.load("pattern", module)


def _failed(error: BaseException, process: _Process) -> int:
    """Report an error. If the transport is not yet open, return the exit code. Otherwise, abort the job.

    If all ranks find the same error, rank 0 reports the error. If all ranks of one host find the error, the host's
    first rank reports the error. If only one rank finds the error (`of_one_rank`), this rank reports the error.

    If a rank ended alone, the other ranks would wait for it forever. The rank therefore aborts the whole job. A rank
    may be refused before it is connected to the other ranks. If one rank is refused in this way, the other ranks time
    out, or their launcher ends the job.
    """
    if process.discarded:  # the watchdog has reported why this rank ends, and ends it
        time.sleep(heartbeats.DISCARD_S)
    if isinstance(error, SystemExit) and process.transport is None:  # --help
        raise error
    if isinstance(error, KeyboardInterrupt):
        if process.me.rank == 0:
            delivery.say(f"{ERROR_LINE}interrupted; the rows measured so far are kept")
        heartbeats.discard_in_time(process.discard)
        os._exit(EXIT_INTERRUPTED)
    if process.debug or not isinstance(error, BenchError | RuntimeError | OSError | SystemExit):
        traceback.print_exception(error)
    if isinstance(error, BrokenPipeError):  # the reader closed the pipe (`| head`)
        process.abort(EXIT_BROKEN_PIPE)
    if isinstance(error, AbsentError):  # this rank cannot shut down its library cleanly
        if error.ranks:
            from bench.rank import preflight

            process.print_words(preflight.absent_words(error, process.me, process.expected))
        process.abort(EXIT_REFUSED)
    if isinstance(error, BenchError) and error.exit_code in (EXIT_USAGE, EXIT_REFUSED):
        return _refused(error, process)
    process.report(heartbeats.end_of(error), named=True)
    process.abort(error.exit_code if isinstance(error, BenchError) else EXIT_MEASUREMENT)


def _refused(error: BenchError, process: _Process) -> int:
    me, end = process.me, heartbeats.end_of(error)
    if me.rank == 0:
        process.report(end, named=False)
    elif process.transport is not None:
        # Rank 0 usually finds the same error, reports it and ends this rank. If it does not, only this rank found the
        # error.
        heartbeats.discard_in_time(process.discard)
        time.sleep(_RANK_0_FIRST_S)
        process.report(end, named=True)
    elif me.local_rank == 0 or getattr(error, "of_one_rank", False):
        # Only this rank has the error, for example a missing library on this host or a broken GPU.
        process.report(end, named=True)
    else:
        # The host's first rank reports the same error. Some launchers end it at once when this rank ends.
        time.sleep(_FIRST_OF_HOST_S)
    if process.transport is not None:
        process.abort(error.exit_code)
    return error.exit_code


def _run(name: str, argv: Sequence[str] | None, process: _Process) -> int:
    me = process.me
    args = _parse(name, argv, me)
    try:
        delivery.check_output(args.output)
        case = from_args(name, args, planned=args.job is not None)
        if case.traits.modelled:
            return _run_modelled(case, args, me)
        from bench.rank import preflight, session  # a modelled run needs none of them

        process.expected = preflight.expected(args.expect) if args.expect else None
        preflight.check_place(me, process.expected, os.environ)

        def end_by_watchdog(end: End) -> None:
            process.report(end, named=True)

        with (
            heartbeats.with_watchdog(me, args.deadline, args.heartbeats, end_by_watchdog, process.discard) as beat,
            _with_failure_codes(process, beat),
            _host_lease(args, me),
        ):
            with _no_garbage_of_libraries():
                opened = session.open_transport(case, me, beat, args.timeout)
            process.transport = opened.transport
            if args.profile:
                from bench.rank import profile

                with profile.recording(args.profile, me.rank, beat) as recorder:
                    return _measure(session.open_case(opened, me, recorder, process.expected, recorder), args, me)
            return _measure(session.open_case(opened, me, beat, process.expected), args, me)
    except BenchError as error:
        if me.rank == 0 and args.format == "json" and not args.emitted:
            delivery.emit(delivery.failed_document(name, error), args)
        raise


@contextlib.contextmanager
def _no_garbage_of_libraries() -> Iterator[None]:
    """Disable garbage collection during imports, and exclude the imported objects from later collections.

    The import of torch creates 170,000 objects that exist until the process ends. Without this exclusion, the garbage
    collection before each row would take 0.13 s longer on each rank.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _host_lease(args: argparse.Namespace, me: RankInfo) -> contextlib.AbstractContextManager[None]:
    """Hold the lease of this host, if a controller started this rank."""
    if not args.heartbeats:
        return contextlib.nullcontext()
    from bench.rank import host_lease

    return host_lease.held(me, args.share_hosts)


def _measure(measured: Session, args: argparse.Namespace, me: RankInfo) -> int:
    from bench.rank.header import HostsAfterRows, header_of

    after = HostsAfterRows(measured)
    header = header_of(measured, args.job or measured.case.pattern, args.launch)
    rows = after.reading_after(measured.clocks.comparing_between(measured.measurer.rows()))
    if args.share_hosts:
        rows = (
            tuple(replace(record, flags=(*record.flags, Flag.SHARED_HOST)) for record in records) for records in rows
        )
    if me.rank != 0 or header is None:
        for _ in rows:
            pass
        code = measured.transport.channel.broadcast(None)
    else:
        code = delivery.deliver(header, rows, args, measured.clocks.offsets, after)
        measured.transport.channel.broadcast(code)
    measured.measurer.close()
    measured.transport.close()
    return int(code)


@collector.paused()  # thousands of rows stay in use until the table is printed
def _run_modelled(case: Case, args: argparse.Namespace, me: RankInfo) -> int:
    if me.num_ranks > 1:
        raise UsageError.of(RankRefusal.MODEL_WORLD, launcher=me.launcher, num_ranks=me.num_ranks)
    from bench.rank import modelled

    if (ignored := ignored_option(case, case.transport)) is not None:
        raise RefusedError.coded(ignored)
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
    parser.add_argument("--format", choices=plugins.names("format"), default="table", help="output format (table)")
    parser.add_argument("--notes", action="store_true", help="print all notes below the table, not only urgent ones")
    parser.add_argument("--output", metavar="FILE", help="print to FILE instead of stdout")
    parser.add_argument("--records", metavar="FILE", help="append raw samples to this results file")
    parser.add_argument("--job", metavar="NAME", help="name of the job in its results file")
    parser.add_argument("--launch", type=int, default=1, metavar="N", help="number of this launch of the case")
    parser.add_argument("--expect", metavar="WORLD", help="accept only this world: 4x2, or h0,h1x2")
    parser.add_argument("--heartbeats", metavar="DIR", help="write each rank's heartbeat file to DIR")
    parser.add_argument("--share-hosts", action="store_true", help="measure beside other benchmarks; rows get a flag")
    parser.add_argument(
        "--timeout",
        type=partial(option_duration, "--timeout"),
        default=60.0,
        metavar="TIME",
        help="timeout of one operation, for libraries that have one (60s)",
    )
    parser.add_argument(
        "--deadline",
        type=partial(option_duration, "--deadline"),
        default=_DEADLINE_S,
        metavar="TIME",
        help="end a rank that makes no progress for this long (5m)",
    )
    parser.add_argument("--profile", metavar="KIND=DIR", help="record a trace: torch=DIR, or nsys=DIR for ranges")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(emitted=False)
    if me.rank != 0:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # noqa: PTH123
            return parser.parse_args(argv)
    return parser.parse_args(argv)


@contextlib.contextmanager
def _with_failure_codes(process: _Process, beat: heartbeats.HeartbeatWriter) -> Iterator[None]:
    """Add a code to each error that means a lost peer or a lack of memory.

    The controller needs the codes of errors to find the root cause.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, BenchError):
            raise
        why = first_line(error)
        if process.transport is not None and process.transport.lost_contact(error):
            if beat.pauses.overdue:
                time.sleep(_WATCHDOG_S)  # a rank that was paused has not lost a peer; its watchdog reports the pause
            raise LostContactError.of(EndCode.LOST_CONTACT, doing=beat.doing, why=why) from error
        # The error classes of torch and CuPy differ between versions, and NCCL reports a lost peer only as text.
        if isinstance(error, MemoryError) or any(words in str(error).lower() for words in _OUT_OF_MEMORY):
            why = f"{type(error).__name__}: {why}"
            raise MeasurementError.of(EndCode.OUT_OF_MEMORY, doing=beat.doing, why=why) from error
        raise
