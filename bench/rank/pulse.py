"""A rank's signs of life: what it is doing, how it ended, where it hangs, and an end to it when it gets nowhere."""

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

from bench.core.errors import EXIT_MEASUREMENT, EXIT_REFUSED, EXIT_TERMINATED
from bench.core.world import RankInfo
from bench.store import heartbeat

_BETWEEN_BEATS_S, _BETWEEN_RANKS_S = 0.2, 1e-3  # a shared file system takes about a thousand small files a second


@contextlib.contextmanager
def watched(
    me: RankInfo, deadline_s: float, folder: str | None, say: Callable[[str], None]
) -> Iterator[HeartbeatWriter]:
    """A heartbeat for the desk, and a thread that ends a rank that gets nowhere: MPI never times out by itself.

    The thread waits for SIGTERM, too: the main one may be deep in a library that never comes back to Python, and a
    rank that was told to end must not look like one that died. On SIGUSR1, and when it crashes, a rank writes down its
    stacks. `say` tells the user.
    """
    beat = HeartbeatWriter(me, Path(folder) if folder else None, deadline_s)
    done = threading.Event()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def watch() -> None:
        while not done.is_set():
            if signal.sigtimedwait({signal.SIGTERM}, min(0.5, deadline_s / 4)) is not None:
                beat.end(heartbeat.TERMINATED)
                os._exit(EXIT_TERMINATED)
            silent_s = time.monotonic() - beat.when
            if beat.within_s is not None and silent_s > beat.within_s:
                words = (
                    f"{beat.doing} did not come through within {beat.within_s:.0f} s: `python -m bench doctor` tries "
                    "the ports between the hosts"
                )
                beat.end(words)
                say(words)
                os._exit(EXIT_REFUSED)
            if silent_s > heartbeat.allowance_s(beat.doing, deadline_s) and not done.is_set():
                faulthandler.dump_traceback(all_threads=True)
                words = f"no progress for {silent_s:.0f} s in: {beat.doing}"
                beat.end(words)
                say(words)
                os._exit(EXIT_MEASUREMENT)

    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield beat
        beat.end("")
    except BaseException as error:
        beat.end(str(error) or type(error).__name__)
        raise
    finally:
        done.set()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


class HeartbeatWriter:
    """Notes what this rank does; written to its heartbeat file at most a few times a second."""

    def __init__(self, me: RankInfo, folder: Path | None, deadline_s: float) -> None:
        self._me, self._folder = me, folder
        self.within_s: float | None = None
        # Less often than an eighth of the deadline it is not, however many ranks there are.
        self._between_s = min(deadline_s / 8, max(_BETWEEN_BEATS_S, me.num_ranks * _BETWEEN_RANKS_S))
        self.doing, self.when, self._written = heartbeat.STARTING, time.monotonic(), 0.0
        if folder is not None:
            with contextlib.suppress(OSError):  # a host that does not share the desk's files keeps its own
                folder.mkdir(exist_ok=True)
                # Kept open for good: what writes the stacks is C, in whatever state this process will be.
                stacks = heartbeat.stack_file(folder, me.rank).open("w")
                faulthandler.register(signal.SIGUSR1, stacks)
                faulthandler.enable(stacks)  # a crash, too
        self(heartbeat.STARTING)

    def __call__(self, doing: str, within_s: float | None = None) -> None:
        """Said between batches, never in a timed region. After `within_s` without another word the run is refused."""
        self.doing, self.when, self.within_s = doing, time.monotonic(), within_s
        if self.when - self._written > self._between_s:
            self._write(None)

    def end(self, words: str) -> None:
        """The last beat: how this rank ended, '' when all went well."""
        self._write(words)

    def _write(self, ended: str | None) -> None:
        if self._folder is not None:
            beat = heartbeat.Heartbeat(self._me.rank, socket.gethostname(), os.getpid(), self.doing, time.time(), ended)
            heartbeat.write(self._folder, beat)
            self._written = self.when
