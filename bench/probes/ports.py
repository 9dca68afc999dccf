"""Check whether hosts can connect to each other's ports.

All hosts listen and connect at the same time, and compare clocks.

The result is no measurement of the network: it states which directed pairs connect, and the offsets of wall clocks.
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
    """The result of connecting to a peer. `error` is None if the peer answered.

    `clock_offset_s`: the peer's clock minus this host's, accurate to half of `round_trip_s`.
    """

    error: str | None
    clock_offset_s: float | None = None
    round_trip_s: float | None = None


def resolve(names: Sequence[str]) -> dict[str, list[str] | str]:
    """The addresses of each name, or the error message."""
    if not names:
        return {}
    with ThreadPoolExecutor(min(_MOST_THREADS, len(names))) as pool:
        return dict(zip(names, pool.map(_addresses, names), strict=True))


def free_port() -> int:
    """A TCP port that is free now."""
    with _server(0) as server:
        port: int = server.getsockname()[1]
        return port


def taken(port: int) -> str | None:
    """Why this port cannot be opened for listening; None if it can."""
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
    """Listen on `port` until all `callers` have connected, and connect to all `peers` (name -> port), within `limit_s`.

    All hosts of the round call this at about the same time. Connections are retried while a peer does not listen yet.
    Raises OSError if `port` cannot be opened.
    """
    until = time.monotonic() + limit_s
    connected: set[str] = set()
    all_came, done = threading.Event(), threading.Event()
    if not set(callers):
        all_came.set()

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(max(0.1, until - time.monotonic()))
            word, _, name = connection.recv(_LINE_BYTES).decode(errors="replace").strip().partition(" ")
            if word == nonce:
                connection.sendall(f"{nonce} {clock()!r}\n".encode())
                connected.add(name)
                if connected >= set(callers):
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
    """A socket that listens on every address of this host, IPv6 included, as torch's rendezvous does."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
