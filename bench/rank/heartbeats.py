"""Write a rank's heartbeats. Heartbeats show what the rank is doing, how the rank ended, and its stacks.

A watchdog thread ends the rank if the rank makes no progress. On the first rank of each host, another thread ends the
rank when the controller has ended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from bench.core.ends import EndCode
from bench.core.errors import EXIT_MEASUREMENT, EXIT_REFUSED, EXIT_TERMINATED, AbsentError, BenchError
from bench.core.world import RankInfo
from bench.probes import netlink
from bench.rank import delivery
from bench.rank.messages import RankRemark
from bench.rank.pauses import Pause, PauseDetector
from bench.store import heartbeat, lease
from bench.store.heartbeat import End

_BETWEEN_BEATS_S, _BETWEEN_RANKS_S = 0.2, 1e-3  # a shared file system creates about a thousand small files per second
_PENDING_S = 1.0  # longer than a chunk of samples, so that no other thread writes a heartbeat during a timed loop
_LOCK_S = 1.0  # a thread may hang in the file system while it holds the lock
DISCARD_S = 2.0  # time to remove the files of a rank that ends
_ALL_REPORT_S = 1.0  # time in which the other ranks of a paused machine report their pause
_READ_S, _READ_PER_HOST_S = 1.0, 4e-3  # time between two reads of the controller's lease
_NO_LEASE_S = 15.0  # a lease that has not appeared after this time is not visible on this host


@contextlib.contextmanager
def with_watchdog(
    me: RankInfo,
    deadline_s: float,
    folder: str | None,
    report: Callable[[End], None],
    discard: Callable[[], None] = lambda: None,
) -> Iterator[HeartbeatWriter]:
    """Write heartbeats, and start a watchdog thread that ends this rank if the rank makes no progress.

    The watchdog also handles SIGTERM, because the main thread may be inside a library call that never returns to
    Python. A rank that ends on SIGTERM must report this, because otherwise it would look like a crashed rank. On
    SIGUSR1 and in a crash, a rank writes its stacks.

    `report`: a function that prints why the watchdog ended the rank.
    `discard`: a function that removes the rank's files from disks. The watchdog calls `discard` before it ends the
        rank.
    """
    beat = HeartbeatWriter(me, Path(folder) if folder else None, deadline_s)
    done = threading.Event()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    is_terminated = _noticed_elsewhere()
    watched = (beat, deadline_s, done, report, is_terminated, partial(discard_in_time, discard))
    threading.Thread(target=_watch, args=watched, name="watchdog", daemon=True).start()
    if folder:
        threading.Thread(target=_write_pending, args=(beat, done), name="heartbeats", daemon=True).start()
    look = _network_watch(Path(folder), me) if folder and me.local_rank == 0 else lambda: None
    if folder and me.local_rank == 0:
        path = Path(folder) / lease.NAME
        leased = (path, me, beat, done, report, partial(discard_in_time, discard), look)
        threading.Thread(target=_watch_lease, args=leased, name="lease", daemon=True).start()
    try:
        yield beat
        beat.end(End.of(EndCode.DONE))
    except BaseException as error:
        # If this host got the address of another host, connections break in less than a second, before the next regular
        # look.
        look()
        beat.end(end_of(error))
        raise
    finally:
        done.set()
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _watch(
    beat: HeartbeatWriter,
    deadline_s: float,
    done: threading.Event,
    report: Callable[[End], None],
    is_terminated: Callable[[], bool],
    discard: Callable[[], None],
) -> None:
    """End this rank on SIGTERM, after a long pause, or if the rank makes no progress."""
    pauses = beat.pauses = PauseDetector()  # the pauses of this thread
    while not done.is_set():
        received = signal.sigtimedwait({signal.SIGTERM}, min(0.5, deadline_s / 4))
        # If the process is stopped and continued during the wait, Python returns a signal that was not received.
        if is_terminated() or (received is not None and received.si_signo == signal.SIGTERM):
            beat.end(End.of(EndCode.TERMINATED))
            discard()
            os._exit(EXIT_TERMINATED)
        beat.renew_if_working()
        end = _after_pause(pauses.tick(), beat, deadline_s) or _silent(beat, deadline_s)
        if end is None or done.is_set():
            continue
        if end.code == EndCode.NO_PROGRESS:
            faulthandler.dump_traceback(all_threads=True)
        beat.end(end)
        report(end)
        discard()
        if end.code == EndCode.NOT_FINISHED:
            os._exit(EXIT_REFUSED)
        if end.code != EndCode.NO_PROGRESS:
            time.sleep(_ALL_REPORT_S)
        os._exit(EXIT_MEASUREMENT)


def _noticed_elsewhere() -> Callable[[], bool]:
    """Return a function that checks whether any thread other than the watchdog received SIGTERM.

    numpy starts threads before the watchdog blocks SIGTERM, so these threads can receive SIGTERM. Without a signal
    handler, SIGTERM in such a thread would end the process at once.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: False
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)  # Python runs the handler only in the main thread

    def is_terminated() -> bool:
        with contextlib.suppress(BlockingIOError):
            return signal.SIGTERM in os.read(reading, 64)
        return False

    return is_terminated


def discard_in_time(discard: Callable[[], None]) -> None:
    """Call `discard`. Do not wait longer than a time limit for `discard`, because the file system may hang."""
    removing = threading.Thread(target=discard, name="discard", daemon=True)
    try:
        removing.start()
    except RuntimeError:  # no memory for a thread
        discard()
        return
    removing.join(DISCARD_S)


def _after_pause(pause: Pause | None, beat: HeartbeatWriter, deadline_s: float) -> End | None:
    """If the process paused for longer than the timeout, return the message with which this rank ends.

    Return None if the pause was shorter than the timeout. The time of a shorter pause does not count as time without a
    heartbeat.
    """
    if pause is None:
        return None
    if pause.paused_s > deadline_s:
        facts = {"paused_s": pause.paused_s, "deadline_s": deadline_s, "doing": beat.doing}
        return End.of(pause.code, host=socket.gethostname(), **facts)
    if pause.code == EndCode.PAUSED:  # the monotonic clock does not count the sleep of a machine
        beat.when = min(time.monotonic(), beat.when + pause.paused_s)
    return None


def _silent(beat: HeartbeatWriter, deadline_s: float) -> End | None:
    """Return the message with which this rank ends if its last heartbeat is too old.

    Return None if the last heartbeat is recent enough.
    """
    silent_s = time.monotonic() - beat.when
    if beat.within_s is not None and silent_s > beat.within_s:
        return End.of(EndCode.NOT_FINISHED, doing=beat.doing, within_s=beat.within_s)
    if silent_s > heartbeat.allowance_s(beat.doing, deadline_s):
        return End.of(EndCode.NO_PROGRESS, silent_s=silent_s, doing=beat.doing)
    return None


def _write_pending(beat: HeartbeatWriter, done: threading.Event) -> None:
    """Write the newest heartbeat if it was held back because the previous heartbeat was written too recently.

    This function runs in its own thread, because a hanging file system must not stop the watchdog.
    """
    while not done.wait(_PENDING_S / 2):
        beat.write_pending()


def _watch_lease(
    path: Path,
    me: RankInfo,
    beat: HeartbeatWriter,
    done: threading.Event,
    report: Callable[[End], None],
    discard: Callable[[], None],
    look: Callable[[], None],
) -> None:
    """End this rank when the controller has ended or is cut off.

    Only the first rank of each host watches the lease. If this rank ends, its launcher ends the other ranks. This
    function runs in its own thread, because a hanging file system must not stop the watchdog.

    `look`: a function that records changes of this host's network.
    """

    def has_ended(wait_s: float) -> bool:
        look()
        return done.wait(wait_s)

    silent_s = wait_for_loss(path, me, has_ended)
    if silent_s is not None:
        end = End.of(EndCode.CONTROLLER_GONE, silent_s=silent_s)
        beat.end(end)
        report(end)
        discard()
        os._exit(EXIT_MEASUREMENT)


def _network_watch(folder: Path, me: RankInfo) -> Callable[[], None]:
    """Return a function that compares this host's network with its state at the first call, and records the changes."""
    history, lock = netlink.NetworkHistory(), threading.Lock()

    def look() -> None:
        # Unexpected contents of the kernel's lists must not end the thread.
        with lock, contextlib.suppress(ValueError, LookupError, struct.error):
            if history.look(time.time()):
                heartbeat.write_network(folder, me.rank, history.moved(), map(asdict, history.carrier_losses()))

    return look


def wait_for_loss(path: Path, me: RankInfo, has_ended: Callable[[float], bool]) -> float | None:
    """Wait until the controller stops renewing its lease. Return the seconds since the last renewal.

    Return None if the work ended before the lease was lost, or if this host cannot see the lease file.

    `has_ended`: a function that waits for the end of the work, at most for the given number of seconds. `has_ended`
    returns whether the work has ended.
    """
    reader, began, seen = lease.LeaseReader(), time.monotonic(), False
    between_s = min(max(_READ_S, _READ_PER_HOST_S * me.num_ranks / me.local_size), lease.RENEW_S)
    while not has_ended(between_s):
        content = lease.read(path)
        silent_s = reader.lost(content, time.monotonic())
        if silent_s is not None:
            return None if has_ended(0) else silent_s
        seen = seen or content is not None
        if not seen and time.monotonic() - began > _NO_LEASE_S:
            delivery.say(
                f"bench: note: {RankRemark.NO_LEASE.words({'host': socket.gethostname(), 'folder': path.parent})}"
            )
            return None
    return None


def end_of(error: BaseException) -> End:
    """Return a description of how a rank ended, for the error that ended the rank.

    If the error has no code, the description gets the code for its type of error.
    """
    if isinstance(error, AbsentError):
        return End.of(EndCode.PEERS_ABSENT, waited_s=error.waited_s)
    if isinstance(error, BenchError):
        return End(error.code, error.facts, next(iter(str(error).splitlines()), ""))
    if isinstance(error, KeyboardInterrupt):
        return End.of(EndCode.INTERRUPTED)
    why = next(iter(str(error).splitlines()), "")
    return End.of(EndCode.ERROR, kind=type(error).__name__, why=why)


class HeartbeatWriter:
    """Records this rank's activity, and writes the activity to the heartbeat file at most a few times per second.

    If a heartbeat comes too soon after the previous heartbeat, the thread `heartbeats` writes the heartbeat later. A
    newer heartbeat replaces a heartbeat that is not yet written.
    """

    def __init__(self, me: RankInfo, folder: Path | None, deadline_s: float) -> None:
        self._me, self._folder = me, folder
        self.within_s: float | None = None
        self.pauses = PauseDetector()
        # At least eight times per deadline, for any number of ranks.
        self._between_s = min(deadline_s / 8, max(_BETWEEN_BEATS_S, me.num_ranks * _BETWEEN_RANKS_S))
        self._pending_s = max(min(_PENDING_S, deadline_s / 4), self._between_s)
        self.doing, self.when, self._written = heartbeat.STARTING, time.monotonic(), 0.0
        self._lock, self._pending, self._ended = threading.Lock(), False, False
        self._work_clock: int | None = None  # a clock of the CPU time of the thread that does local work
        self._work_s = 0.0
        if folder is not None:
            with contextlib.suppress(OSError):  # without a shared file system, each host has its own files
                folder.mkdir(exist_ok=True)
                # The file stays open, because C code must be able to write the stacks in any state of this process.
                stacks = heartbeat.stack_file(folder, me.rank).open("w")
                faulthandler.register(signal.SIGUSR1, stacks)
                faulthandler.enable(stacks)  # writes the stacks in a crash, too
        self(heartbeat.STARTING)

    def __call__(self, doing: str, within_s: float | None = None) -> None:
        """Record this rank's activity. The rank calls this method between batches, never in a timed region.

        If the rank does not call this method again within `within_s`, the watchdog ends the rank.
        """
        self.doing, self.when, self.within_s, self._pending = doing, time.monotonic(), within_s, True
        if self.when - self._written > self._between_s:
            self._write(None)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Return a context for work that this rank does without other ranks, such as filling large buffers.

        Within the context, use of CPU time counts as progress.
        """
        self._work_clock = time.pthread_getcpuclockid(threading.get_ident())
        try:
            yield
        finally:
            self._work_clock = None
            self(self.doing)

    def renew_if_working(self) -> None:
        """If local work has used CPU time since the last call, renew the heartbeat."""
        clock = self._work_clock
        if clock is None:
            return
        used_s = time.clock_gettime(clock)
        if used_s != self._work_s:
            self._work_s, self.when, self._pending = used_s, time.monotonic(), True

    def write_pending(self) -> None:
        """Write the newest heartbeat if it is still waiting to be written.

        Do nothing if a heartbeat was written in the last second.
        """
        if self._pending and time.monotonic() - self._written > self._pending_s:
            self._write(None)

    def end(self, end: End) -> None:
        """Write the last heartbeat, which says how this rank ended."""
        self._write(end)

    def _write(self, ended: End | None) -> None:
        if self._folder is None or not self._lock.acquire(timeout=_LOCK_S):
            return
        try:
            if self._ended:
                return
            self._pending, self._ended = False, ended is not None
            now, when = time.monotonic(), self.when
            age_s = now - when if ended is None else 0.0
            host, at = socket.gethostname(), time.time() - age_s
            beat = heartbeat.Heartbeat(self._me.rank, host, os.getpid(), self.doing, at, ended, age_s)
            heartbeat.write(self._folder, beat)
            self._written = now
        finally:
            self._lock.release()
