"""Can hosts reach each other's ports? Each one listens and connects at the same time, and compares clocks by the way.

Not a measurement: it says which directed pairs get through, and how far apart wall clocks are.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

_LINE_BYTES = 256
_RETRY_S = 0.05
_MOST_THREADS = 32


@dataclass(frozen=True, slots=True)
class PeerReply:
    """What connecting to one peer came to. `error` is None when it answered; then its clock minus mine, in seconds.

    The offset is known to within half of `round_trip_s`.
    """

    error: str | None
    clock_offset_s: float | None = None
    round_trip_s: float | None = None


def resolve(names: Sequence[str]) -> dict[str, list[str] | str]:
    """The addresses of each name, or why it has none, in words."""
    if not names:
        return {}
    with ThreadPoolExecutor(min(_MOST_THREADS, len(names))) as pool:
        return dict(zip(names, pool.map(_addresses, names), strict=True))


def free_port() -> int:
    """A TCP port that nobody listens on just now."""
    with _server(0) as server:
        port: int = server.getsockname()[1]
        return port


def taken(port: int) -> str | None:
    """Why this port of this host can not be listened on; None when it can."""
    try:
        _server(port).close()
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return None


def exchange(
    port: int,
    peers: Mapping[str, int],
    callers: Sequence[str],
    me: str,
    nonce: str,
    limit_s: float,
    clock: Callable[[], float] = time.time,
) -> dict[str, PeerReply]:
    """Listen on `port` until all `callers` came, and connect to all `peers` (name -> port); `limit_s` for all of it.

    Every host of the round calls this at about the same time: one that does not listen yet is asked again.
    Raises OSError when `port` can not be listened on.
    """
    until = time.monotonic() + limit_s
    heard: set[str] = set()
    all_came, done = threading.Event(), threading.Event()
    if not set(callers):
        all_came.set()

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(max(0.1, until - time.monotonic()))
            word, _, name = connection.recv(_LINE_BYTES).decode(errors="replace").strip().partition(" ")
            if word == nonce:
                connection.sendall(f"{nonce} {clock()!r}\n".encode())
                heard.add(name)
                if heard >= set(callers):
                    all_came.set()

    def listen() -> None:
        while not done.is_set():
            with contextlib.suppress(TimeoutError):
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    with _server(port) as server:
        server.settimeout(0.1)
        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        with ThreadPoolExecutor(max(1, min(_MOST_THREADS, len(peers)))) as pool:
            ask = {name: pool.submit(_ask, name, peer, me, nonce, until, clock) for name, peer in peers.items()}
            found = {name: future.result() for name, future in ask.items()}
        all_came.wait(max(0.0, until - time.monotonic()))
        done.set()
        listener.join()
    return found


def _ask(name: str, port: int, me: str, nonce: str, until: float, clock: Callable[[], float]) -> PeerReply:
    error = "no answer"
    while (left := until - time.monotonic()) > 0:
        try:
            with socket.create_connection((name, port), timeout=left) as connection:
                sent, began = clock(), time.monotonic()
                connection.sendall(f"{nonce} {me}\n".encode())
                word, _, when = connection.recv(_LINE_BYTES).decode(errors="replace").strip().partition(" ")
                round_trip_s = time.monotonic() - began
                if word == nonce:
                    return PeerReply(None, float(when) - sent - round_trip_s / 2, round_trip_s)
                error = "another program answers there"
        except TimeoutError:
            error = "timed out"
        except OSError as problem:
            error = problem.strerror or str(problem)
        time.sleep(_RETRY_S)
    return PeerReply(error.lower())


def _addresses(name: str) -> list[str] | str:
    try:
        found: list[Any] = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return (error.strerror if isinstance(error, OSError) else None) or str(error)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _server(port: int) -> socket.socket:
    """Listening on every address of this host, IPv6 ones included where it has them, as torch's rendezvous does."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
