"""Hosts that try each other's ports, here on one machine with ports in the place of hosts."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from bench.probes import ports
from tests.facts import holds

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


def test_two_that_listen_reach_each_other_and_compare_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    port_of = {"127.0.0.1": ports.free_port(), "localhost": ports.free_port()}
    found: dict[str, dict[str, ports.PeerReply]] = {}

    def take_part(me: str, other: str, ahead_s: float) -> None:
        found[me] = ports.exchange(
            port_of[me], {other: port_of[other]}, [other], me, "word", 20, lambda: time.time() + ahead_s
        )

    threads = [
        threading.Thread(target=take_part, args=("127.0.0.1", "localhost", 0.0)),
        threading.Thread(target=take_part, args=("localhost", "127.0.0.1", 100.0)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    there, back = found["127.0.0.1"]["localhost"], found["localhost"]["127.0.0.1"]
    assert (there.error, back.error) == (None, None)
    assert there.clock_offset_s == pytest.approx(100, abs=5)
    assert back.clock_offset_s == pytest.approx(-100, abs=5)


def test_a_port_without_our_answer_is_an_error_after_the_limit() -> None:
    with holding() as taken:
        silent = {"localhost": taken, "127.0.0.1": ports.free_port()}
        began = time.monotonic()
        found = ports.exchange(ports.free_port(), silent, [], "me", "word", 0.5)
        assert time.monotonic() - began >= 0.5
    assert found["localhost"].error == "timed out"
    assert found["127.0.0.1"].error == os.strerror(errno.ECONNREFUSED).lower()


def test_another_program_is_not_taken_for_a_host() -> None:
    def greet() -> None:
        with contextlib.suppress(OSError):
            while True:
                other, _ = server.accept()
                with other:
                    other.sendall(b"SSH-2.0 hello\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        found = ports.exchange(ports.free_port(), {"127.0.0.1": port}, [], "me", "word", 0.3)
    error = str(found["127.0.0.1"].error)
    assert holds(error, "another program") or error == os.strerror(errno.ECONNRESET).lower()


def test_a_taken_port_is_reported() -> None:
    with holding() as port, pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
        ports.exchange(port, {}, [], "me", "word", 1)
