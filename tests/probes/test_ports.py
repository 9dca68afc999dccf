"""Ports of this host, and addresses of names."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

from bench.probes import ports

NOBODY = "nobody.invalid"


@contextlib.contextmanager
def holding() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_names_are_resolved_or_have_a_reason() -> None:
    found = ports.resolve(["localhost", NOBODY])
    assert "127.0.0.1" in found["localhost"] or "::1" in found["localhost"]
    assert isinstance(found[NOBODY], str)
    assert ports.resolve([]) == {}


def test_a_port_is_free_or_taken() -> None:
    with holding() as port:
        assert ports.taken(port) == os.strerror(errno.EADDRINUSE)
    assert ports.taken(ports.free_port()) is None


def test_a_free_port_is_one_of_the_range_of_the_run() -> None:
    first = ports.free_port()
    last = min(first + 50, 65535)
    assert first <= ports.free_port((first, last)) <= last
    with holding() as port:
        assert ports.free_port((port, port)) != port, "outside the range if it has no free port"
