"""Hosts that test their links, here on one machine with ports in the place of hosts."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bench.probes import links, netlink, ports, tcp_table
from bench.probes.links import LinkReport, LinkRound, Target
from tests.facts import holds

SECRET = b"of the round"


def round_of(me: str, port: int, peers: Mapping[str, int], limit_s: float, callers: tuple[str, ...] = ()) -> LinkRound:
    targets = tuple(Target(name, "127.0.0.1", (port,)) for name, port in peers.items())
    return LinkRound(me, (port,), targets, callers, limit_s)


@contextlib.contextmanager
def taking_part(
    *rounds: LinkRound, secret: bytes = SECRET, clocks: Mapping[str, Callable[[], float]] | None = None
) -> Iterator[dict[str, LinkReport]]:
    """Rounds in threads; what each reported is there after the block."""
    found: dict[str, LinkReport] = {}

    def run(asked: LinkRound) -> None:
        found[asked.me] = links.take_part(asked, secret, (clocks or {}).get(asked.me, time.time))

    threads = [threading.Thread(target=run, args=(asked,)) for asked in rounds]
    for thread in threads:
        thread.start()
    yield found
    for thread in threads:
        thread.join()


def test_two_hosts_send_each_other_64_kib_packets_and_their_clocks() -> None:
    a, b = ports.free_port(), ports.free_port()
    ahead = {"b": lambda: time.time() + 100}
    both = round_of("a", a, {"b": b}, 20, ("b",)), round_of("b", b, {"a": a}, 20, ("a",))
    with taking_part(*both, clocks=ahead) as found:
        pass
    [there], [back] = found["a"].calls, found["b"].calls
    assert (there.error, there.answered_by, there.received_bytes) == (None, "b", links.NUM_BYTES)
    assert there.clock_offset_s == pytest.approx(100, abs=5) and back.clock_offset_s == pytest.approx(-100, abs=5)
    [arrival] = found["b"].arrivals
    assert (arrival.host, arrival.connected, arrival.received_bytes) == ("a", True, links.NUM_BYTES)
    assert set(arrival.sizes) == set(there.sizes) and {1500, 576} <= set(there.sizes)
    plain = json.loads(json.dumps(asdict(found["a"])))
    assert links.parse_report(plain) == found["a"]
    asked = json.loads(json.dumps(both[0].to_plain()))
    assert links.parse_round(asked) == both[0]


def test_a_stranger_without_the_secret_gets_random_bytes_only() -> None:
    a, b = ports.free_port(), ports.free_port()
    strange = links.take_part
    with taking_part(round_of("a", a, {}, 1.5, ("b",))) as found:
        report = strange(round_of("b", b, {"a": a}, 1.0), b"of another round")
        with socket.create_connection(("127.0.0.1", a), timeout=5) as stranger:
            stranger.sendall(b"x" * 16 + (1 << 31).to_bytes(4, "big") + b"y" * 100)
            received = b"".join(iter(lambda: _received(stranger), b""))
    assert report.calls[0].error is not None and report.calls[0].answered_by is None
    assert found["a"].arrivals == () and len(received) <= 16


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except OSError:
        return b""


def test_a_port_without_our_answer_is_an_error_after_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        silent = {"x": taken.getsockname()[1], "y": ports.free_port()}
        report = links.take_part(round_of("me", ports.free_port(), silent, 0.5), SECRET)
    errors = {call.host: (call.error, call.answered) for call in report.calls}
    assert report.seconds >= 0.5
    assert errors == {"x": ("timed out", True), "y": (os.strerror(errno.ECONNREFUSED).lower(), True)}


def test_another_program_is_not_taken_for_a_host() -> None:
    def greet() -> None:
        with contextlib.suppress(OSError):
            while True:
                other, _ = server.accept()
                with other:
                    other.sendall(b"SSH-2.0 hello, this is a long greeting\n" + bytes(100))

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=greet, daemon=True).start()
        asked = round_of("me", ports.free_port(), {"x": server.getsockname()[1]}, 0.3)
        [call] = links.take_part(asked, SECRET).calls
    assert call.answered_by is None
    errors = (os.strerror(errno.ECONNRESET).lower(), os.strerror(errno.EPIPE).lower(), "the connection was closed")
    assert holds(str(call.error), "another program") or call.error in errors


def test_a_host_listens_on_the_first_free_port_and_is_found_there() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))  # bound without a listener: it refuses callers, and nobody else can bind it
        first = taken.getsockname()[1]
        free = tuple(ports.free_port() for _ in range(5))  # another program may take one of them meanwhile
        here = LinkRound("a", (first, *free), (), ("b",), 20)
        there = LinkRound(
            "b", tuple(ports.free_port() for _ in range(5)), (Target("a", "127.0.0.1", (first, *free)),), (), 20
        )
        with taking_part(here, there) as found:
            pass
    assert found["a"].port in free and found["b"].calls[0].error is None
    with socket.create_server(("", 0)) as taken, pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
        links.take_part(LinkRound("a", (taken.getsockname()[1],), (), (), 1), SECRET)


def test_the_program_prints_one_line_and_imports_no_library() -> None:
    asked = round_of("a", ports.free_port(), {"b": ports.free_port()}, 0.3).to_plain()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", links.__name__, json.dumps(asked)],
        env={**os.environ, "PYTHONPATH": str(Path(links.__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert not imported & {"numpy", "torch", "mpi4py", "psutil"}
    report = links.last_report(f"a greeting\n{done.stdout}")
    assert isinstance(report, LinkReport) and [call.host for call in report.calls] == ["b"]
    assert links.last_report('{"schema": "bench.links-report/1", "report": null, "problem": "in use"}') == "in use"
    assert links.last_report('{"schema": "bench.links-report/0"}\n[]\n3\ntext') is None


def test_half_open_connections_to_a_port_are_read(tmp_path: Any) -> None:
    head = "  sl  local_address rem_address   st tx_queue\n"
    words = "00000000:00000000 01:00000064 00000000  1000        0 77"
    (tmp_path / "tcp").write_text(
        f"{head}   0: 0B004D0A:9CBB 0A004D0A:D431 03 {words}\n   1: 0B004D0A:9CBB 0C004D0A:D431 01 {words}\n"
    )
    v4 = "0000000000000000FFFF00000D004D0A"
    v6 = "000077FD000000000000000010000000"
    (tmp_path / "tcp6").write_text(
        f"{head}   0: {v4}:9CBB {v4}:D431 03 {words}\n   1: {v6}:9CBB {v6}:D431 03 {words}\nbroken\n"
    )
    found = list(links._half_open(0x9CBB, tmp_path))
    assert found == ["10.77.0.10", "10.77.0.13", "fd77::10"]
    assert list(links._half_open(1, tmp_path)) == [] and list(links._half_open(1, tmp_path / "none")) == []
    assert tcp_table.listeners(0x9CBB, tmp_path) == []
    (tmp_path / "tcp").write_text(f"{head}   0: 0B004D0A:9CBB 00000000:0000 0A {words}\n")
    assert tcp_table.listeners(0x9CBB, tmp_path) == [tcp_table.Listener("10.77.0.11", 1000, 77)]
    assert tcp_table.listeners(1, tmp_path) == []


def test_the_devices_of_this_host_have_addresses_and_an_mtu() -> None:
    for device in netlink.devices():
        assert device.mtu > 0 and device.name != "lo"
        assert netlink.Device.from_plain(json.loads(json.dumps(asdict(device)))) == device
        assert all("/" in address for address in device.addresses)
    assert all(mac.count(":") >= 5 for mac in netlink.neighbours().values())


def test_data_without_an_answer_are_read(tmp_path: Any) -> None:
    """Sent again at least three times in a row; zero-window probes (timer 4) and two resends are nothing."""
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n"

    def line(peer: str, state: str, timer: str, resent: int) -> str:
        return f"   0: 0B004D0A:9CBB {peer}004D0A:D431 {state} 00000064:00000000 {timer}:00000064 {resent:08X} 0 0 0\n"

    (tmp_path / "tcp").write_text(
        head
        + line("0A", "01", "01", 3)
        + line("0C", "01", "01", 2)
        + line("0D", "01", "04", 9)
        + line("0E", "02", "01", 5)
        + line("0F", "06", "03", 7)
    )
    assert list(links._unanswered(tmp_path)) == ["10.77.0.10", "10.77.0.14"]
