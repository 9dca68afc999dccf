"""A rank's heartbeats (what it does, how it ended, its stacks), and the watchdog that ends a rank without progress."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.core.ends import EndCode
from bench.core.errors import EXIT_MEASUREMENT, EXIT_REFUSED, EXIT_TERMINATED, AbsentError, BenchError
from bench.core.world import RankInfo
from bench.store import heartbeat
from bench.store.heartbeat import End

_BETWEEN_BEATS_S, _BETWEEN_RANKS_S = 0.2, 1e-3  # a shared file system takes about a thousand small files a second


@contextlib.contextmanager
def with_watchdog(
    me: RankInfo, deadline_s: float, folder: str | None, report: Callable[[End], None]
) -> Iterator[HeartbeatWriter]:
    """Write heartbeats for the controller, and start a thread that ends a rank without progress (MPI has no timeout).

    The thread also handles SIGTERM, because the main thread may be inside a library call that never returns to Python,
    and a rank that was asked to end must not look like one that crashed. On SIGUSR1 and in a crash a rank writes its
    stacks. `report` prints how the thread ended the rank.
    """
    beat = HeartbeatWriter(me, Path(folder) if folder else None, deadline_s)
    done = threading.Event()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def watch() -> None:
        while not done.is_set():
            if signal.sigtimedwait({signal.SIGTERM}, min(0.5, deadline_s / 4)) is not None:
                beat.end(End.of(EndCode.TERMINATED))
                os._exit(EXIT_TERMINATED)
            silent_s = time.monotonic() - beat.when
            if beat.within_s is not None and silent_s > beat.within_s:
                end = End.of(EndCode.NOT_FINISHED, doing=beat.doing, within_s=beat.within_s)
                beat.end(end)
                report(end)
                os._exit(EXIT_REFUSED)
            if silent_s > heartbeat.allowance_s(beat.doing, deadline_s) and not done.is_set():
                faulthandler.dump_traceback(all_threads=True)
                end = End.of(EndCode.NO_PROGRESS, silent_s=silent_s, doing=beat.doing)
                beat.end(end)
                report(end)
                os._exit(EXIT_MEASUREMENT)

    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield beat
        beat.end(End.of(EndCode.DONE))
    except BaseException as error:
        beat.end(end_of(error))
        raise
    finally:
        done.set()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def end_of(error: BaseException) -> End:
    """How an error ended a rank: with the error's own code, or a code for its kind of error."""
    if isinstance(error, AbsentError):
        return End.of(EndCode.PEERS_ABSENT, waited_s=error.waited_s)
    if isinstance(error, BenchError):
        return End(error.code, error.facts, next(iter(str(error).splitlines()), ""))
    if isinstance(error, KeyboardInterrupt):
        return End.of(EndCode.INTERRUPTED)
    why = next(iter(str(error).splitlines()), "")
    return End.of(EndCode.ERROR, kind=type(error).__name__, why=why)


class HeartbeatWriter:
    """Records what this rank does, and writes it to the heartbeat file at most a few times a second."""

    def __init__(self, me: RankInfo, folder: Path | None, deadline_s: float) -> None:
        self._me, self._folder = me, folder
        self.within_s: float | None = None
        # At least eight times per deadline, for any number of ranks.
        self._between_s = min(deadline_s / 8, max(_BETWEEN_BEATS_S, me.num_ranks * _BETWEEN_RANKS_S))
        self.doing, self.when, self._written = heartbeat.STARTING, time.monotonic(), 0.0
        if folder is not None:
            with contextlib.suppress(OSError):  # without a shared file system, each host has its own files
                folder.mkdir(exist_ok=True)
                # The file stays open: C code must be able to write the stacks in any state of this process.
                stacks = heartbeat.stack_file(folder, me.rank).open("w")
                faulthandler.register(signal.SIGUSR1, stacks)
                faulthandler.enable(stacks)  # a crash, too
        self(heartbeat.STARTING)

    def __call__(self, doing: str, within_s: float | None = None) -> None:
        """Record what the rank does. Called between batches, never in a timed region.

        The watchdog ends the rank if the next call does not follow within `within_s`.
        """
        self.doing, self.when, self.within_s = doing, time.monotonic(), within_s
        if self.when - self._written > self._between_s:
            self._write(None)

    def end(self, end: End) -> None:
        """Write the last heartbeat: how this rank ended."""
        self._write(end)

    def _write(self, ended: End | None) -> None:
        if self._folder is not None:
            beat = heartbeat.Heartbeat(self._me.rank, socket.gethostname(), os.getpid(), self.doing, time.time(), ended)
            heartbeat.write(self._folder, beat)
            self._written = self.when
