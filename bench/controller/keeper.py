"""Keep a host's launcher running when the connection to the host is lost, and send its output to the next connection.

    python -m bench.controller.keeper start NODE COMMAND ...
    python -m bench.controller.keeper attach NODE OFFSET

`start` forks the keeper. The keeper leaves the connection's session, runs COMMAND and stores the command's output. The
process that ran `start` copies this output to the connection. `attach` copies the output to a later connection,
beginning at byte OFFSET. Only processes of the same user can attach. Processes attach through a socket whose name is
made of the job's id and secret.

The keeper also checks whether the controller still renews its lease, which is a file (store/lease.py). When the lease
is lost, the keeper ends all processes of the job on the keeper's host. Some hosts cannot see the lease file. On such a
host, the keeper ends these processes after lease.LAPSE_S seconds without a connection.

The output begins with START, and a stream of frames follows. A frame consists of a kind, a length, and a body of that
length. Frames of kind 1 and 2 have whole lines of stdout and stderr. EXIT has the exit code as decimal text. GONE
reports that no keeper of this job runs on the host.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bench.core.seal import SECRET_VARIABLE
from bench.store import lease

START = b"\0bench-keeper\0"
FRAME = struct.Struct(">BI")
STDOUT, STDERR, EXIT, GONE = 1, 2, 3, 4
# The keeper's reply to a new connection, and the connection's reply when it has passed on the exit code.
_ACCEPTED, _CONFIRMED = b"a", b"k"
_CHUNK = 1 << 16
_MOST_UNSENT, _KEPT = (
    64 << 20,
    4 << 20,
)  # limits of the bytes that wait for a connection, and of the sent bytes that are kept
_READ_S = 1.0  # time between two reads of the lease
_LAST_OUTPUT_S = 0.3  # how long to read output of processes that outlive the command


def _name() -> bytes:
    """Return the abstract name of the keeper's socket."""
    node = sys.argv[2]
    secret = os.environ.get(SECRET_VARIABLE, "")
    key = f"{os.getuid()}/{os.environ.get('BENCH_JOB', '')}/{secret}/{node}"
    return b"\0linkbench-keeper/" + hashlib.sha256(key.encode()).hexdigest().encode()


def _same_user(peer: socket.socket) -> bool:
    _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(user == os.getuid())


def frame(kind: int, data: bytes) -> bytes:
    """Return one frame of the stream."""
    return FRAME.pack(kind, len(data)) + data


def start(words: Sequence[str]) -> None:
    """Fork the keeper of this command, and copy its output to this process's stdout."""
    door = socket.socket(socket.AF_UNIX)
    door.bind(_name())
    door.listen(8)
    if os.fork() == 0:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        Keeper(door, words).run()
        os._exit(0)
    door.close()
    attach(0)


def attach(offset: int) -> None:
    """Copy the output of this job's keeper to this process's stdout, from byte `offset` on.

    The function returns when the keeper's command has ended.
    """
    keeper = socket.socket(socket.AF_UNIX)
    try:
        keeper.connect(_name())
        if not _same_user(keeper):
            raise OSError
        keeper.sendall(offset.to_bytes(8, "big"))
        if not keeper.recv(1):
            raise OSError
    except OSError:
        _write(START + frame(GONE, b""))
        return
    _write(START)
    poll = select.poll()
    poll.register(keeper, select.POLLIN)
    poll.register(1, 0)  # without a requested event, poll reports only a lost connection
    while True:
        ready = dict(poll.poll())
        if 1 in ready:
            return
        data = keeper.recv(_CHUNK)
        if not data:
            break
        _write(data)
    with contextlib.suppress(OSError):
        keeper.sendall(_CONFIRMED)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


class Keeper:
    """Runs one command, stores its output as frames, and serves the newest connection."""

    def __init__(self, door: socket.socket, words: Sequence[str]) -> None:
        self._door = door
        self._peer: socket.socket | None = None
        self._frames, self._first = bytearray(), 0  # the stored bytes, and the offset of the first stored byte
        self._next = 0  # offset of the next byte for the peer
        self._lines = {STDOUT: b"", STDERR: b""}  # incomplete lines
        self._ended = False
        self._selector = selectors.DefaultSelector()
        self._detached_s = time.monotonic()
        self._lease_seen, self._lease_lost = False, False
        woken, self._wake = os.pipe()
        for end in (woken, self._wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._terminate)
        self._command = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._command.stdout is not None and self._command.stderr is not None
        self._pipes = {STDOUT: self._command.stdout.fileno(), STDERR: self._command.stderr.fileno()}
        for kind, pipe in self._pipes.items():
            os.set_blocking(pipe, False)
            self._selector.register(pipe, selectors.EVENT_READ, kind)
        self._selector.register(door, selectors.EVENT_READ, "door")
        self._selector.register(woken, selectors.EVENT_READ, "woken")
        self._woken = woken
        path = os.environ.get(lease.VARIABLE, "")
        if path:
            threading.Thread(target=self._watch_lease, args=(Path(path),), daemon=True).start()

    def run(self) -> None:
        """Serve until the command has ended and its output was delivered, or until the job must end."""
        while not self._delivered():
            if self._must_end():
                self._end_job()
                return
            for key, events in self._selector.select(_READ_S if self._peer is None else None):
                self._handle(key.data, events)
            if not self._ended and self._command.poll() is not None:
                self._store_end()

    def _handle(self, what: object, events: int) -> None:
        if what == "door":
            self._accept()
        elif what == "woken":
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
        elif what == "peer":
            self._serve(events)
        elif isinstance(what, int):
            self._store_output(what)

    def _store_output(self, kind: int) -> bool:
        """Store the command's new output from one pipe, stdout or stderr. Returns whether the pipe had new output."""
        pipe = self._pipes[kind]
        if self._first + len(self._frames) - self._next > _MOST_UNSENT:
            time.sleep(_READ_S / 10)  # meanwhile, the command blocks on its full pipe, as on a hanging connection
            return False
        try:
            data = os.read(pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            with contextlib.suppress(KeyError):
                self._selector.unregister(pipe)
            return False
        lines, newline, rest = (self._lines[kind] + data).rpartition(b"\n")
        self._lines[kind] = rest
        if newline:
            self._store(frame(kind, lines + newline))
        return True

    def _store_end(self) -> None:
        """Store the last output and the exit code. Processes that outlive the command may hold its pipes open."""
        self._ended = True
        until = time.monotonic() + _LAST_OUTPUT_S
        while time.monotonic() < until and any([self._store_output(kind) for kind in self._pipes]):
            pass
        for kind, pipe in self._pipes.items():
            if self._lines[kind]:
                self._store(frame(kind, self._lines[kind]))
            with contextlib.suppress(KeyError):
                self._selector.unregister(pipe)
        self._store(frame(EXIT, str(self._command.returncode).encode()))

    def _store(self, data: bytes) -> None:
        self._frames += data
        if self._peer is not None:
            self._selector.modify(self._peer, selectors.EVENT_READ | selectors.EVENT_WRITE, "peer")

    def _accept(self) -> None:
        """Serve a new connection in place of the old connection. The old connection may be lost but not closed."""
        peer, _ = self._door.accept()
        peer.settimeout(_READ_S)
        try:
            offset = int.from_bytes(peer.recv(8), "big") if _same_user(peer) else -1
        except OSError:
            offset = -1
        if not self._first <= offset <= self._first + len(self._frames):
            peer.close()
            return
        try:
            peer.sendall(_ACCEPTED)
        except OSError:
            peer.close()
            return
        self._drop()
        peer.setblocking(False)
        self._peer, self._next = peer, offset
        self._selector.register(peer, selectors.EVENT_READ | selectors.EVENT_WRITE, "peer")

    def _drop(self) -> None:
        if self._peer is not None:
            self._selector.unregister(self._peer)
            self._peer.close()
            self._peer, self._detached_s = None, time.monotonic()

    def _serve(self, events: int) -> None:
        """Send the part of the output that the connected process has not received yet.

        The connected process sends a confirmation after it has passed on the exit code.
        """
        peer = self._peer
        if peer is None:
            return
        try:
            if events & selectors.EVENT_READ:
                confirmed = peer.recv(1)
                self._drop()
                if confirmed and self._ended:
                    self._frames.clear()
                return
            self._next += peer.send(self._frames[self._next - self._first : self._next - self._first + _CHUNK])
        except BlockingIOError:
            return
        except OSError:
            self._drop()
            return
        if self._next == self._first + len(self._frames):
            self._selector.modify(peer, selectors.EVENT_READ, "peer")
            if self._ended:
                peer.shutdown(socket.SHUT_WR)
        if self._next - self._first > 2 * _KEPT:
            cut = self._next - self._first - _KEPT
            del self._frames[:cut]
            self._first += cut

    def _delivered(self) -> bool:
        return self._ended and not self._frames

    def _watch_lease(self, path: Path) -> None:
        """Read the lease in a thread, because a file system that hangs must not stop the output."""
        reader = lease.LeaseReader()
        while not self._lease_lost:
            time.sleep(_READ_S)
            content = lease.read(path)
            self._lease_lost = reader.lost(content, time.monotonic()) is not None
            self._lease_seen = reader.renewed and content is not None
        os.write(self._wake, b"\0")

    def _must_end(self) -> bool:
        detached = self._peer is None and time.monotonic() - self._detached_s > lease.LAPSE_S
        return self._lease_lost or (detached and not self._lease_seen)

    def _end_job(self) -> None:
        from bench.probes import processes  # imports psutil, which takes time

        processes.end_job(os.environ["BENCH_JOB"])

    def _terminate(self, *_: object) -> None:
        """End the command on SIGTERM. If the command has already ended, end the keeper itself."""
        if self._ended:
            os._exit(0)
        self._command.terminate()


if __name__ == "__main__":
    if sys.argv[1] == "start":
        start(sys.argv[3:])
    else:
        attach(int(sys.argv[3]))
