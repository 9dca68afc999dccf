"""A network switch of rates, delays and cut cables, for kernels without netem: it holds one TAP device of each host.

    python tests/testbed/switch.py [--rate BITS_PER_S] [--delay S] PORT=NETNS,DEVICE ...

NETNS is the path of a network namespace (/run/netns/h0, /proc/123/ns/net), DEVICE the name that its interface gets
there; addresses are the caller's affair. Prints READY when all devices are there, and ends on SIGTERM or when its
standard input is closed; the devices go with it. Each line of standard input is a command, answered by `ok` or
`error: ...`:

    delay SECONDS [PORT | FROM TO]    one way
    rate BITS_PER_S|none [PORT | FROM TO]
    cut [PORT | FROM TO]              and mend

Without a place a command is for all ports, with one port for what enters and leaves there, with two for what goes from
the first to the second (not back); the latest one holds. Devices offload segmentation: a frame may be 64 KiB, so that
Python can switch some Gbit/s.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import heapq
import os
import select
import signal
import struct
import sys
from dataclasses import dataclass
from time import monotonic

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x2, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4, _TUN_F_TSO6 = 0x1, 0x2, 0x4
_CLONE_NEWNET, _PR_SET_TIMERSLACK = 0x40000000, 29
_HEADER_BYTES = 10  # of virtio, before the frame: what is left to offload; it is handed on as it came
_MOST_BYTES = 1 << 17
_AHEAD_S = 0.001  # a host whose line is busy for longer has to wait, as behind a real interface
_QUEUE_S = 0.2  # of a port towards its host: beyond it frames are dropped


@dataclass(slots=True)
class Line:
    """What carries frames one after the other. `free_s`: when it has sent all that it was given."""

    bytes_per_s: float | None = None
    free_s: float = 0.0

    def sent(self, at_s: float, num_bytes: int, at_once: bool = False) -> float:
        """When a frame's last byte has passed. At `at_s` its last byte comes in, or `at_once` all of them are there."""
        if self.bytes_per_s is None:
            return at_s
        takes_s = num_bytes / self.bytes_per_s
        self.free_s = max(at_s + takes_s * at_once, self.free_s + takes_s)
        return self.free_s


def wire_bytes(frame: bytes) -> int:
    """Bytes on the wire of a frame: one to be segmented becomes several frames, each with headers of its own."""
    headers_bytes, segment_bytes = struct.unpack_from("<HH", frame, 2)
    num_bytes = len(frame) - _HEADER_BYTES
    num_more = (num_bytes - headers_bytes - 1) // segment_bytes if segment_bytes else 0
    return int(num_bytes + num_more * headers_bytes)


class Switch:
    """Who gets a frame, and when. Knows no devices, and no time but what it is told."""

    def __init__(self, ports: list[str], rate_bits_per_s: float | None = None, delay_s: float = 0.0) -> None:
        bytes_per_s = None if rate_bits_per_s is None else rate_bits_per_s / 8
        everywhere = range(len(ports))
        self.ports = ports
        self.from_host = [Line(bytes_per_s) for _ in everywhere]
        self.to_host = [Line(bytes_per_s) for _ in everywhere]
        self._between = {(a, b): Line() for a in everywhere for b in everywhere}
        self._delay_s = dict.fromkeys(self._between, delay_s)
        self._cut = dict.fromkeys(self._between, False)
        self._home: dict[bytes, int] = {}  # address -> port, as learned from what was sent from it

    def forward(self, port: int, frame: bytes, now_s: float) -> list[tuple[float, int]]:
        """(when, to which port) a frame that came in by a port goes out. It begins with virtio's header."""
        target, source = frame[_HEADER_BYTES : _HEADER_BYTES + 6], frame[_HEADER_BYTES + 6 : _HEADER_BYTES + 12]
        num_bytes = wire_bytes(frame)
        self._home[source] = port
        known = self._home.get(target)
        left_s = self.from_host[port].sent(now_s, num_bytes, at_once=True)
        delivered = []
        for other in range(len(self.ports)) if known is None else (known,):
            way = port, other
            if other == port or self._cut[way]:
                continue
            at_s = self._between[way].sent(left_s, num_bytes) + self._delay_s[way]
            if self.to_host[other].free_s - at_s <= _QUEUE_S:
                delivered.append((self.to_host[other].sent(at_s, num_bytes), other))
        return delivered

    def obey(self, command: str) -> None:
        """Carry out one command. Raises ValueError for what is none."""
        verb, *words = command.split()
        if verb in ("cut", "mend"):
            self._cut |= dict.fromkeys(self._ways(words), verb == "cut")
        elif verb == "delay" and words:
            self._delay_s |= dict.fromkeys(self._ways(words[1:]), float(words[0]))
        elif verb == "rate" and words:
            bytes_per_s = None if words[0] == "none" else float(words[0]) / 8
            for line in self._lines(words[1:]):
                line.bytes_per_s = bytes_per_s
        else:
            raise ValueError(f"no command: {command.strip()}")

    def _ways(self, where: list[str]) -> list[tuple[int, int]]:
        named = [self._number(name) for name in where]
        if len(named) == 2:
            return [(named[0], named[1])]
        return [way for way in self._between if not named or named[0] in way]

    def _lines(self, where: list[str]) -> list[Line]:
        named = [self._number(name) for name in where]
        if len(named) == 2:
            return [self._between[named[0], named[1]]]
        return [line for port in named or range(len(self.ports)) for line in (self.from_host[port], self.to_host[port])]

    def _number(self, name: str) -> int:
        if name not in self.ports:
            raise ValueError(f"no port is called {name}: there are {', '.join(self.ports)}")
        return self.ports.index(name)


def tap(netns: str, device: str) -> int:
    """Make a TAP device in a network namespace, and return the file that reads and writes its frames."""
    libc = ctypes.CDLL(None, use_errno=True)
    home, there = os.open("/proc/self/ns/net", os.O_RDONLY), os.open(netns, os.O_RDONLY)
    try:
        if libc.setns(there, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"{netns} can not be entered")
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", device.encode(), flags))
        fcntl.ioctl(file, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4 | _TUN_F_TSO6)
        return file
    finally:
        libc.setns(home, _CLONE_NEWNET)
        os.close(home)
        os.close(there)


def run(switch: Switch, files: list[int]) -> None:
    """Switch frames and obey standard input until it is closed."""
    due: list[tuple[float, int, int, bytes]] = []  # (when, order of arrival, port, frame)
    num, stdin, open_ = 0, sys.stdin.fileno(), True
    port_of = {file: port for port, file in enumerate(files)}
    while open_:
        now_s = monotonic()
        waiting = {file: switch.from_host[port].free_s - _AHEAD_S for file, port in port_of.items()}
        wake_s = min([free_s for free_s in waiting.values() if free_s > now_s] + [one[0] for one in due[:1]], default=0)
        listening = [file for file, free_s in waiting.items() if free_s <= now_s] + [stdin]
        ready = select.select(listening, [], [], max(0.0, wake_s - now_s) if wake_s else None)[0]
        for file in ready:
            if file == stdin:
                open_ = _obey(switch, os.read(stdin, 1 << 16))
                continue
            frame = _read(file)
            if frame:
                for when_s, port in switch.forward(port_of[file], frame, monotonic()):
                    heapq.heappush(due, (when_s, num := num + 1, port, frame))
        now_s = monotonic()
        while due and due[0][0] <= now_s:
            _, _, port, frame = heapq.heappop(due)
            _write(files[port], frame)


def _read(file: int) -> bytes:
    try:
        return os.read(file, _MOST_BYTES)
    except OSError:  # nothing after all, or the interface is down
        return b""


def _write(file: int, frame: bytes) -> None:
    try:
        os.write(file, frame)
    except OSError:  # the interface is down: as good as a pulled cable
        return


def _obey(switch: Switch, told: bytes) -> bool:
    """Answer every command in what was read; False when there will be no more. Callers write whole lines at once."""
    for command in told.decode().splitlines():
        try:
            switch.obey(command)
            print("ok", flush=True)
        except ValueError as error:
            print(f"error: {error}", flush=True)
    return bool(told)


def main() -> None:
    """Make the devices, say READY, and switch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=float, metavar="BITS_PER_S", help="of every port, each way (default: no limit)")
    parser.add_argument("--delay", type=float, default=0.0, metavar="S", help="one way, between any two ports")
    parser.add_argument("ports", nargs="+", metavar="PORT=NETNS,DEVICE")
    args = parser.parse_args()
    names, places = zip(*(port.split("=", 1) for port in args.ports), strict=True)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # else every wait is up to 50 us longer
    with contextlib.suppress(OSError):  # before ranks that spin while they wait for us; root only
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    files = [tap(*place.rsplit(",", 1)) for place in places]
    print("READY", flush=True)
    run(Switch(list(names), args.rate, args.delay), files)


if __name__ == "__main__":
    main()
