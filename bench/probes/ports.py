"""Find free TCP ports of this host, and the addresses of hosts' names."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_MOST_THREADS = 32
_MOST_TRIED = 64


def resolve(names: Sequence[str]) -> dict[str, list[str] | str]:
    """Return the addresses of each name, or the error message."""
    if not names:
        return {}
    with ThreadPoolExecutor(min(_MOST_THREADS, len(names))) as pool:
        return dict(zip(names, pool.map(_addresses, names), strict=True))


def free_port(among: Sequence[int] | None = None) -> int:
    """Return a TCP port that is free now.

    `among`: the first and the last port of a range. If no port of the range is free, the kernel chooses another port.
    """
    if among:
        first, last = among
        for port in random.sample(range(first, last + 1), min(_MOST_TRIED, last + 1 - first)):
            if taken(port) is None:
                return port
    with listener(0) as server:
        chosen: int = server.getsockname()[1]
        return chosen


def taken(port: int) -> str | None:
    """Return why this port cannot be opened for listening, or None if it can be opened."""
    try:
        listener(port).close()
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return None


def _addresses(name: str) -> list[str] | str:
    try:
        found: list[Any] = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return (error.strerror if isinstance(error, OSError) else None) or str(error)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def listener(port: int) -> socket.socket:
    """Return a socket that listens on all addresses of this host, both IPv4 and IPv6, as torch's rendezvous does."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
