"""A rank's heartbeats: what it does, how it ended, its stacks. Threads end a rank without progress or controller."""

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
from bench.rank import delivery
from bench.rank.messages import RankRemark
from bench.store import heartbeat, lease
from bench.store.heartbeat import End

_BETWEEN_BEATS_S, _BETWEEN_RANKS_S = 0.2, 1e-3  # a shared file system takes about a thousand small files a second
_READ_S, _READ_PER_HOST_S = 1.0, 4e-3  # between two reads of the controller's lease
_NO_LEASE_S = 15.0  # a lease that has not appeared by then is not visible on this host


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
    if folder and me.local_rank == 0:
        path = Path(folder) / lease.NAME
        threading.Thread(target=_watch_lease, args=(path, me, beat, done, report), name="lease", daemon=True).start()
    try:
        yield beat
        beat.end(End.of(EndCode.DONE))
    except BaseException as error:
        beat.end(end_of(error))
        raise
    finally:
        done.set()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _watch_lease(
    path: Path, me: RankInfo, beat: HeartbeatWriter, done: threading.Event, report: Callable[[End], None]
) -> None:
    """End this rank when the controller is gone. The first rank of each host does this; launchers end the others.

    A thread of its own, because a file system that hangs must not keep the watchdog from its work.
    """
    reader, began, seen = lease.LeaseReader(), time.monotonic(), False
    between_s = min(max(_READ_S, _READ_PER_HOST_S * me.num_ranks / me.local_size), lease.RENEW_S)
    while not done.wait(between_s):
        content = lease.read(path)
        silent_s = reader.lost(content, time.monotonic())
        if silent_s is not None and not done.is_set():
            end = End.of(EndCode.CONTROLLER_GONE, silent_s=silent_s)
            beat.end(end)
            report(end)
            os._exit(EXIT_MEASUREMENT)
        seen = seen or content is not None
        if not seen and time.monotonic() - began > _NO_LEASE_S:
            delivery.say(
                f"bench: note: {RankRemark.NO_LEASE.words({'host': socket.gethostname(), 'folder': path.parent})}"
            )
            return


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
