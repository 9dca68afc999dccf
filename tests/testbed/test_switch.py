"""The switch of the testbed: who gets a frame and when, and that real TCP goes through real devices at that pace."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import IO, NoReturn

import pytest

from tests.testbed.switch import Switch, wire_bytes

SCRIPT = Path(__file__).parent / "switch.py"
A, B, C = (bytes([2, 0, 0, 0, 0, last]) for last in (1, 2, 3))
ALL = b"\xff" * 6


def at(when_s: float, port: int) -> object:
    return [(pytest.approx(when_s), port)]


def frame(target: bytes, source: bytes, num_bytes: int = 1000) -> bytes:
    return bytes(10) + (target + source).ljust(num_bytes, b"\0")


def learned(**options: float) -> Switch:
    """Three ports, behind which A, B and C have been heard of."""
    switch = Switch(["a", "b", "c"], **options)
    for port, source in enumerate((A, B, C)):
        switch.forward(port, frame(ALL, source, 12), -1.0)
    return switch


def test_a_frame_floods_until_its_target_is_known() -> None:
    switch = Switch(["a", "b", "c"])
    assert switch.forward(0, frame(B, A), 1.0) == [(1.0, 1), (1.0, 2)]
    assert switch.forward(1, frame(A, B), 2.0) == [(2.0, 0)]
    assert switch.forward(0, frame(B, A), 3.0) == [(3.0, 1)]
    assert switch.forward(2, frame(ALL, C), 4.0) == [(4.0, 0), (4.0, 1)]


def test_a_frame_takes_its_length_over_the_rate_once_and_then_the_delay() -> None:
    switch = learned(rate_bits_per_s=8e6, delay_s=0.5)  # 1000 bytes last 1 ms
    assert switch.forward(0, frame(B, A), 10.0) == at(10.501, 1)
    assert switch.forward(0, frame(B, A), 10.0) == at(10.502, 1)


def test_a_frame_to_be_segmented_counts_the_headers_of_every_segment() -> None:
    headers_bytes, segment_bytes = 66, 1448
    offload = struct.pack("<BBHHHH", 1, 1, headers_bytes, segment_bytes, 34, 16)
    for num_segments in (1, 2, 45):
        whole = offload + bytes(headers_bytes + num_segments * segment_bytes)
        assert wire_bytes(whole) == num_segments * (headers_bytes + segment_bytes)
    assert wire_bytes(frame(B, A)) == 1000


def test_two_senders_share_the_line_of_one_receiver() -> None:
    switch = learned(rate_bits_per_s=8e6)
    ((first, _),) = switch.forward(0, frame(C, A), 10.0)
    ((second, _),) = switch.forward(1, frame(C, B), 10.0)
    assert [first, second] == pytest.approx([10.001, 10.002])


def test_a_full_queue_drops() -> None:
    switch = learned(rate_bits_per_s=8e6)
    sent = [switch.forward(port, frame(C, source), 10.0) for _ in range(400) for port, source in ((0, A), (1, B))]
    assert all(sent[:300])
    assert not all(sent)


def test_commands_are_for_all_for_a_port_or_for_one_direction() -> None:
    switch = learned()
    switch.obey("delay 0.001")
    switch.obey("delay 0.003 a b")
    assert switch.forward(0, frame(B, A), 1.0) == at(1.003, 1)
    assert switch.forward(1, frame(A, B), 1.0) == at(1.001, 0)
    switch.obey("delay 0 c")
    assert switch.forward(2, frame(A, C), 1.0) == [(1.0, 0)]
    switch.obey("cut a c")
    assert switch.forward(0, frame(C, A), 1.0) == []
    assert switch.forward(2, frame(A, C), 1.0) != []
    switch.obey("cut b")
    assert switch.forward(0, frame(B, A), 1.0) == switch.forward(1, frame(C, B), 1.0) == []
    switch.obey("mend")
    switch.obey("rate 8e6 a c")
    switch.obey("delay 0")
    assert switch.forward(0, frame(C, A), 2.0) == [(2.0, 2)]
    assert switch.forward(0, frame(C, A), 2.0) == at(2.001, 2)
    assert switch.forward(0, frame(B, A), 2.0) == [(2.0, 1)]


@pytest.mark.parametrize("command", ["delay", "delay x", "rate 1 d", "stop", "cut d"])
def test_what_is_no_command_is_refused(command: str) -> None:
    with pytest.raises(ValueError):
        learned().obey(command)


# -- with real devices


class Wired:
    """Hosts a and b as network namespaces of two sleeping processes, and the switch between them."""

    def __init__(self, *options: str) -> None:
        words = ["unshare", "--net", "--kill-child", "sh", "-c", "echo; exec sleep 100"]
        self.hosts = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(2)]
        for host in self.hosts:
            assert host.stdout is not None
            host.stdout.readline()  # it is in its namespace
        self.namespaces = [f"/proc/{host.pid}/ns/net" for host in self.hosts]
        ports = [f"{name}={path},eth0" for name, path in zip("ab", self.namespaces, strict=True)]
        self.switch = subprocess.Popen(
            [sys.executable, str(SCRIPT), *options, *ports], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._answer() == "READY"
        for last, path in enumerate(self.namespaces, start=1):
            for words in (["addr", "add", f"10.78.0.{last}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
                subprocess.run(["nsenter", f"--net={path}", "ip", *words], check=True)

    def tell(self, command: str) -> str:
        assert self.switch.stdin is not None
        self.switch.stdin.write(command + "\n")
        self.switch.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        out: IO[str] | None = self.switch.stdout
        assert out is not None
        assert select.select([out], [], [], 20)[0], "the switch says nothing"
        return out.readline().strip()

    def connected(self) -> tuple[socket.socket, socket.socket]:
        """A TCP connection between a and b: sockets belong to the namespace in which they were made."""
        listener = self._inside(1, lambda: socket.create_server(("10.78.0.2", 0)))
        ours = self._inside(0, lambda: socket.create_connection(listener.getsockname(), timeout=20))
        theirs, _ = listener.accept()
        listener.close()
        for end in (ours, theirs):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(20)
        return ours, theirs

    def _inside(self, host: int, make: Callable[[], socket.socket]) -> socket.socket:
        """What `make` makes in a thread that has entered the namespace of a host."""
        made: list[socket.socket] = []

        def work() -> None:
            libc, file = ctypes.CDLL(None, use_errno=True), os.open(self.namespaces[host], os.O_RDONLY)
            assert libc.setns(file, 0x40000000) == 0, os.strerror(ctypes.get_errno())
            os.close(file)
            made.append(make())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return made[0]

    def close(self) -> None:
        self.switch.send_signal(signal.SIGTERM)
        assert self.switch.wait(10) == 0
        for host in self.hosts:
            host.kill()
            host.wait()
        for pipe in (self.switch.stdin, self.switch.stdout, *(host.stdout for host in self.hosts)):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def wired(missing: Callable[[str, str], NoReturn]) -> Iterator[Wired]:
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        missing("netns", "network namespaces and /dev/net/tun need root")
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    if probe.returncode:
        missing("netns", f"no network namespace can be made here: {probe.stderr.strip()}")
    bed = Wired("--delay", "0.005")
    yield bed
    bed.close()


def round_trip_s(ours: socket.socket, theirs: socket.socket, num: int = 20) -> float:
    took = []
    for _ in range(num):
        began = time.perf_counter()
        ours.sendall(b"ping")
        theirs.sendall(theirs.recv(4))
        ours.recv(4)
        took.append(time.perf_counter() - began)
    return median(took)


@pytest.mark.netns
def test_the_delay_is_there_each_way_and_changes_at_once(wired: Wired) -> None:
    ours, theirs = wired.connected()
    with ours, theirs:
        assert round_trip_s(ours, theirs) >= 0.010
        assert wired.tell("delay 0.03 a b") == "ok"
        assert round_trip_s(ours, theirs) >= 0.035
        assert wired.tell("delay x").startswith("error: ")


@pytest.mark.netns
def test_no_byte_passes_faster_than_the_rate_and_none_through_a_cut(wired: Wired) -> None:
    wired.tell("delay 0")
    wired.tell("rate 80e6")
    ours, theirs = wired.connected()
    with ours, theirs:
        data = os.urandom(2_000_000)
        sender = threading.Thread(target=ours.sendall, args=(data,))
        began = time.perf_counter()
        sender.start()
        got = bytearray()
        while len(got) < len(data):
            got += theirs.recv(1 << 20)
        took_s = time.perf_counter() - began
        sender.join()
        assert bytes(got) == data
        assert took_s >= 0.9 * len(data) / 10e6  # what stands in the first queues is not held back
        assert wired.tell("cut a b") == "ok"
        theirs.settimeout(0.3)
        ours.sendall(b"ping")
        with pytest.raises(TimeoutError):
            theirs.recv(4)
        assert wired.tell("mend a b") == "ok"
        theirs.settimeout(20)
        assert theirs.recv(4) == b"ping"
