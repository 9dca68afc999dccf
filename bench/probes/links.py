"""Test the links of this host to other hosts: `python -m bench.probes.links QUESTION` prints one line of JSON.

QUESTION is a `LinkRound` as JSON. All hosts of a round run this program at about the same time. Each host listens for
connections and connects to the other hosts. A host sends 64 KiB over each connection, and also sends single packets of
several sizes. At the end, each host reports the data that arrived. If packets are lost in one direction, no connection
can be made. The single packets still arrive in the other direction. The arrivals therefore show which direction loses
packets. Each host has a secret in its environment. With this secret, a host proves that it belongs to the round. Any
other program that connects gets only 16 random bytes.

The test measures no bandwidth. The test finds the links that pass packets, the largest packets that pass, and the
offsets between the hosts' wall clocks.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import math
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.core.seal import SECRET_VARIABLE, SealError, sealed, unsealed
from bench.probes import netlink, ports, tcp_table

SCHEMA = "bench.links-report/1"
NUM_BYTES = 64 << 10  # sent each way on every connection
# Bytes of the packets, in addition to the device's largest packet.
_SIZES = (9000, 4000, 2000, 1500, 1450, 1400, 1280, 576)
_LARGEST_PACKET = 65535
_NONCE_BYTES = 16
_MOST_MESSAGE_BYTES = 4096
_RETRY_S, _POLL_S = 0.05, 0.02
_MOST_THREADS, _MOST_CALLERS = 128, 512
_RESEND_S = 0.2
# After the end of a connection, packets are sent again for _SETTLE_S and awaited for _AWAIT_S, because any packet may
# be lost.
_SETTLE_S, _AWAIT_S = 1.2, 1.6
_HEADERS_BYTES = {socket.AF_INET: 28, socket.AF_INET6: 48}  # headers of IP and UDP together
_NEVER_FRAGMENT = {socket.AF_INET: (socket.IPPROTO_IP, 10, 3), socket.AF_INET6: (socket.IPPROTO_IPV6, 23, 3)}
_PATH_MTU = {socket.AF_INET: (socket.IPPROTO_IP, 14), socket.AF_INET6: (socket.IPPROTO_IPV6, 24)}
# States in /proc/net/tcp. SYN_RECV: a peer's packet arrived, but no reply to this host's response.
_HALF_OPEN, _SENDING = "03", ("01", "02", "04", "05", "08", "0B")
# the retransmission timer; after this many retransmissions in a row, the loss is not random
_RESENDING, _MOST_RESENT = "01", 3


@dataclass(frozen=True, slots=True)
class Target:
    """An address or a name of a peer, which listens on one of `ports`. The test's result contains a copy of `kind`."""

    host: str
    address: str
    ports: tuple[int, ...]
    kind: str = ""


@dataclass(frozen=True, slots=True)
class LinkRound:
    """A host's task in a round.

    The host listens on the first free port of `ports`, so that the hosts `callers` can connect. It connects to all
    `targets`.
    """

    me: str
    ports: tuple[int, ...]
    targets: tuple[Target, ...]
    callers: tuple[str, ...]
    limit_s: float

    def to_plain(self) -> dict[str, Any]:
        """Return the round as plain data. For many targets, this is ten times as fast as dataclasses.asdict."""
        targets = [{"host": t.host, "address": t.address, "ports": t.ports, "kind": t.kind} for t in self.targets]
        given = {"me": self.me, "ports": self.ports, "callers": self.callers, "limit_s": self.limit_s}
        return {**given, "targets": targets}


@dataclass(slots=True)
class PeerCall:
    """The result of this host's attempt to connect to one address of a peer.

    `error`: why no connection was made, or None if the peer accepted the connection.
    `answered`: whether any packet came back from the address, even a rejection.
    `answered_by`: the name with which the host at this address replied.
    `received_bytes`: how many bytes arrived on this host. The peer sends 64 KiB.
    `clock_offset_s`: the peer's clock minus this host's clock. The error of this offset is at most half of
        `round_trip_s`.
    `sizes`: sizes of the packets that were sent, in bytes.
    `mtu`: the path's MTU in bytes, as this host's kernel knows it.
    """

    host: str
    address: str
    port: int
    kind: str = ""
    source: str | None = None
    error: str | None = None
    answered: bool = False
    answered_by: str | None = None
    received_bytes: int = 0
    clock_offset_s: float | None = None
    round_trip_s: float | None = None
    mtu: int | None = None
    sizes: tuple[int, ...] = ()


@dataclass(slots=True)
class Arrival:
    """The data that arrived from another host at one of this host's addresses.

    `received_bytes`: how many bytes arrived. The other host sends 64 KiB.
    """

    host: str
    address: str
    connected: bool = False
    received_bytes: int = 0
    sizes: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LinkReport:
    """A host's report of a round.

    `half_open`: peers' addresses that began to open a connection but did not reply to this host's response.
    `neighbours`: the MAC addresses that this host uses for its neighbours, by IP address.
    `port`: the port on which this host listened, or None if no port was free.
    `unanswered`: addresses that did not acknowledge this host's data at the beginning of the round, even after several
        retransmissions.
    `own_before`: this host's own addresses at the beginning of the round, with the MAC addresses of their devices.
        `devices` has the own addresses at the end of the round.
    """

    port: int | None
    calls: tuple[PeerCall, ...]
    arrivals: tuple[Arrival, ...]
    half_open: tuple[str, ...] = ()
    devices: tuple[netlink.Device, ...] = ()
    neighbours: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    unanswered: tuple[str, ...] = ()
    own_before: Mapping[str, str] = field(default_factory=dict)


def main(argv: Sequence[str]) -> int:
    """Take part in a round. An alarm ends this process after a time limit."""
    asked = parse_round(json.loads(argv[1]))
    signal.alarm(math.ceil(asked.limit_s) + 2)
    # without a secret, this host cannot meet its peers
    secret = os.environ.get(SECRET_VARIABLE, "").encode() or os.urandom(16)
    answer: dict[str, Any] = {"schema": SCHEMA, "report": None, "problem": None}
    try:
        answer["report"] = asdict(take_part(asked, secret))
    except OSError as error:
        answer["problem"] = error.strerror or str(error)
    print(json.dumps(answer))
    return 0


def last_report(out: str) -> LinkReport | str | None:
    """Return the report in the output of this program.

    If the program met a problem, return the text of the problem instead.

    Return None if the output has neither a report nor a problem. A login may print other lines first.
    """
    for line in reversed(out.splitlines()):
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            plain = json.loads(line)
            if plain.get("schema") == SCHEMA:
                return str(plain["problem"]) if plain["problem"] is not None else parse_report(plain["report"])
    return None


def parse_round(plain: Mapping[str, Any]) -> LinkRound:
    """Return the round in a question."""
    targets = tuple(Target(**{**target, "ports": tuple(target["ports"])}) for target in plain["targets"])
    given = {"ports": tuple(plain["ports"]), "targets": targets, "callers": tuple(plain["callers"])}
    return LinkRound(**{**plain, **given})


def parse_report(plain: Mapping[str, Any]) -> LinkReport:
    """Return the report in a reply. Raises TypeError or KeyError for a report of another version."""
    given = {
        "calls": tuple(PeerCall(**{**call, "sizes": tuple(call["sizes"])}) for call in plain["calls"]),
        "arrivals": tuple(Arrival(**arrival) for arrival in plain["arrivals"]),
        "half_open": tuple(plain["half_open"]),
        "unanswered": tuple(plain.get("unanswered", ())),
        "devices": tuple(map(netlink.Device.from_plain, plain["devices"])),
    }
    return LinkReport(**{**plain, **given})


def take_part(asked: LinkRound, secret: bytes, clock: Callable[[], float] = time.time) -> LinkReport:
    """Take part in a round for at most `limit_s`.

    This host tries to connect several times, because a peer may need time until it listens. Raises OSError if this host
    cannot open any of the ports.
    """
    began = time.monotonic()
    unanswered, own_before = tuple(dict.fromkeys(_unanswered())), netlink.own_addresses()
    part = _Part(asked, secret, began + asked.limit_s, clock)
    with _first_free(asked.ports) as server, contextlib.ExitStack() as stack:
        port = server.getsockname()[1]
        datagrams = _Datagrams(part, port)
        stack.callback(datagrams.close)
        threads = [threading.Thread(target=work, daemon=True) for work in (lambda: part.listen(server), datagrams.run)]
        for thread in threads:
            thread.start()
        with ThreadPoolExecutor(max(1, min(_MOST_THREADS, len(part.calls)))) as pool:
            list(pool.map(part.call, range(len(part.calls))))
        while time.monotonic() < part.until and not part.is_settled():
            time.sleep(_POLL_S)
        half_open = tuple(_half_open(port))
        part.over.set()
        for thread in threads:
            thread.join()
    arrivals = tuple(part.arrivals.values())
    seconds = time.monotonic() - began
    devices, neighbours = netlink.devices(), netlink.neighbours()
    return LinkReport(
        port,
        tuple(part.calls),
        arrivals,
        half_open,
        devices,
        neighbours,
        round(seconds, 3),
        unanswered,
        own_before,
    )


class _Part:
    """The work of this host in a round, with its calls and the data that arrived."""

    def __init__(self, asked: LinkRound, secret: bytes, until: float, clock: Callable[[], float]) -> None:
        self.me, self.callers, self.secret, self.until, self.clock = asked.me, asked.callers, secret, until, clock
        self.over = threading.Event()
        self.calls: list[PeerCall] = []
        self.ports: list[tuple[int, ...]] = []
        for target, address in _resolved(asked.targets):
            self.calls.append(PeerCall(target.host, address, target.ports[0], target.kind, error="no answer"))
            self.ports.append(target.ports)
        self.arrivals: dict[tuple[str, str], Arrival] = {}
        self.expected: dict[tuple[str, str], tuple[int, ...]] = {}  # sizes of packets that a caller sends
        self.num_calls_of: dict[str, int] = {}
        self.ended_at: dict[tuple[str, str], float] = {}  # (caller, own address) -> end of its connection
        self.call_ended_at: dict[int, float] = {}
        self.acknowledged: dict[int, set[int]] = {number: set() for number in range(len(self.calls))}

    def is_settled(self) -> bool:
        """Check whether this host has finished its part of the round.

        The part is finished when all callers are done, and when each packet has arrived or timed out.
        """
        now = time.monotonic()
        for number, call in enumerate(self.calls):
            if set(call.sizes) - self.acknowledged[number] and now - self.call_ended_at[number] < _SETTLE_S:
                return False
        for caller in self.callers:
            ended = {key: at for key, at in self.ended_at.items() if key[0] == caller}
            if len(ended) < max(1, self.num_calls_of.get(caller, 1)):
                return False
            for key, at in ended.items():
                if set(self.expected[key]) - set(self.arrivals[key].sizes) and now - at < _AWAIT_S:
                    return False
        return True

    def arrival(self, host: str, address: str) -> Arrival:
        return self.arrivals.setdefault((host, address), Arrival(host, address))

    # -- connections

    def call(self, number: int) -> None:
        """Connect to a peer's address until the peer responds or the time is up."""
        call, candidates = self.calls[number], self.ports[number]
        attempt = 0
        while (left := self.until - time.monotonic()) > 0:
            call.port = candidates[attempt % len(candidates)]
            attempt += 1
            try:
                # one of several ports may not respond, because a firewall may drop packets to a closed port
                wait_s = left if len(candidates) == 1 else min(left, 2.0)
                with socket.create_connection((call.address, call.port), timeout=wait_s) as connection:
                    call.answered = True
                    connection.settimeout(left)
                    self._converse(connection, call)
                    break
            except TimeoutError:
                call.error = "timed out"
            except SealError:
                call.error = "another program responds there"
            except OSError as problem:
                call.answered = call.answered or isinstance(problem, ConnectionError)
                call.error = (problem.strerror or str(problem)).lower()
            time.sleep(_RETRY_S)
        self.call_ended_at[number] = time.monotonic()

    def _converse(self, connection: socket.socket, call: PeerCall) -> None:
        nonce = os.urandom(_NONCE_BYTES)
        connection.sendall(nonce)
        context = nonce + _received(connection, _NONCE_BYTES)
        num_calls = sum(other.host == call.host for other in self.calls)
        hello = {
            "from": self.me,
            "to": call.host,
            "address": call.address,
            "sizes": call.sizes,
            "num_calls": num_calls,
        }
        sent, began = self.clock(), time.monotonic()
        self._send(connection, hello, context + b"call")
        answer = self._receive(connection, context + b"answer")
        call.round_trip_s = time.monotonic() - began
        call.answered_by = str(answer["host"])
        if call.answered_by != call.host:
            call.error = "another host responds there"
            return
        call.error = None
        call.clock_offset_s = float(answer["clock"]) - sent - call.round_trip_s / 2
        for received in _swapped(connection, self.until):
            call.received_bytes = received

    def listen(self, server: socket.socket) -> None:
        """Serve callers until the round is over."""
        server.settimeout(0.1)
        room = threading.BoundedSemaphore(_MOST_CALLERS)
        while not self.over.is_set():
            with contextlib.suppress(OSError):
                connection = server.accept()[0]
                if room.acquire(blocking=False):
                    threading.Thread(target=self._answer, args=(connection, room), daemon=True).start()
                else:
                    connection.close()

    def _answer(self, connection: socket.socket, room: threading.BoundedSemaphore) -> None:
        try:
            with connection, contextlib.suppress(OSError, SealError, ValueError, KeyError, TypeError):
                self._serve(connection)
        finally:
            room.release()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(max(0.1, self.until - time.monotonic()))
        nonce = os.urandom(_NONCE_BYTES)
        connection.sendall(nonce)
        context = _received(connection, _NONCE_BYTES) + nonce
        hello = self._receive(connection, context + b"call")
        self._send(connection, {"host": self.me, "clock": self.clock()}, context + b"answer")
        if hello["to"] != self.me:
            return
        key = str(hello["from"]), str(hello["address"])
        arrival = self.arrival(*key)
        arrival.connected = True
        self.expected[key] = tuple(hello["sizes"])
        self.num_calls_of[key[0]] = hello["num_calls"]
        for received in _swapped(connection, self.until):
            arrival.received_bytes = max(arrival.received_bytes, received)
        self.ended_at[key] = time.monotonic()

    def _send(self, connection: socket.socket, content: Mapping[str, Any], context: bytes) -> None:
        data = sealed(json.dumps(content).encode(), self.secret, context)
        connection.sendall(struct.pack("!I", len(data)) + data)

    def _receive(self, connection: socket.socket, context: bytes) -> dict[str, Any]:
        (size,) = struct.unpack("!I", _received(connection, 4))
        if size > _MOST_MESSAGE_BYTES:
            raise SealError("a host of this round never sends such a long message")
        found = json.loads(unsealed(_received(connection, size), self.secret, context))
        return found if isinstance(found, dict) else {}


class _Datagrams:
    """Sends single packets of several sizes to every target, and records the packets that arrive.

    Routers must not fragment these packets.
    """

    def __init__(self, part: _Part, port: int) -> None:
        self._part = part
        self._servers = [server for family in _HEADERS_BYTES for server in _udp_server(family, port)]
        self._senders: dict[socket.socket, int] = {}
        for number, (call, ports_) in enumerate(zip(part.calls, part.ports, strict=True)):
            for port_ in ports_:
                self._open(number, call, port_)

    def close(self) -> None:
        """Close all sockets."""
        for each in (*self._servers, *self._senders):
            each.close()

    def run(self) -> None:
        """Send packets and record arrivals until the round is over. Unacknowledged packets are sent again."""
        poll = select.poll()
        by_number = {each.fileno(): each for each in (*self._servers, *self._senders)}
        for number in by_number:
            poll.register(number, select.POLLIN)
        next_at = 0.0
        while not self._part.over.is_set():
            now = time.monotonic()
            if now >= next_at:
                next_at = now + _RESEND_S
                for sender, number in self._senders.items():
                    self._send(sender, number, now)
            for ready, _ in poll.poll(_POLL_S * 1e3):
                with contextlib.suppress(OSError, SealError, ValueError, KeyError, TypeError):
                    self._take(by_number[ready])

    def _open(self, number: int, call: PeerCall, port: int) -> None:
        family = _family(call.address)
        sender = socket.socket(family, socket.SOCK_DGRAM)
        try:
            sender.setsockopt(*_NEVER_FRAGMENT[family])
            sender.connect((call.address, port))
            sender.setblocking(False)
            call.source = str(sender.getsockname()[0])
            call.mtu = sender.getsockopt(*_PATH_MTU[family])
            largest = min(call.mtu, _LARGEST_PACKET)
            call.sizes = (largest, *(size for size in _SIZES if size < largest))
        except OSError:
            sender.close()
            return
        self._senders[sender] = number

    def _send(self, sender: socket.socket, number: int, now: float) -> None:
        part = self._part
        ended_at = part.call_ended_at.get(number, now)
        if now - ended_at > _SETTLE_S:
            return
        call = part.calls[number]
        for size in sorted(set(call.sizes) - part.acknowledged[number]):
            content = {"from": part.me, "to": call.host, "address": call.address, "size": size}
            text = json.dumps(content).encode().ljust(size - _HEADERS_BYTES[sender.family] - 32)
            with contextlib.suppress(OSError):
                sender.send(sealed(text, part.secret, b"packet"))

    def _take(self, receiver: socket.socket) -> None:
        part = self._part
        if receiver in self._senders:
            content = json.loads(unsealed(receiver.recv(_LARGEST_PACKET), part.secret, b"acknowledged"))
            if content["from"] == part.me:
                part.acknowledged[self._senders[receiver]].add(content["size"])
            return
        data, sender = receiver.recvfrom(_LARGEST_PACKET)
        content = json.loads(unsealed(data, part.secret, b"packet"))
        if content["to"] != part.me:
            return
        arrival = part.arrival(str(content["from"]), str(content["address"]))
        if content["size"] not in arrival.sizes:
            arrival.sizes.append(content["size"])
        receiver.sendto(sealed(json.dumps(content).encode(), part.secret, b"acknowledged"), sender)


def _resolved(targets: tuple[Target, ...]) -> Iterator[tuple[Target, str]]:
    """Yield each target once for each of its addresses.

    If the name of a target cannot be resolved, yield the name in place of the address. The attempt to connect to this
    name then fails with the right error.
    """
    found = ports.resolve([target.address for target in targets])
    seen: set[tuple[str, str]] = set()
    for target in targets:
        addresses = found[target.address]
        for address in (target.address,) if isinstance(addresses, str) else addresses:
            if (target.host, address) not in seen:
                seen.add((target.host, address))
                yield target, address


def _family(address: str) -> socket.AddressFamily:
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(address).version == 6:
            return socket.AF_INET6
    return socket.AF_INET


def _first_free(candidates: tuple[int, ...]) -> socket.socket:
    for number, port in enumerate(candidates, start=1):
        try:
            return ports.listener(port)
        except OSError:
            if number == len(candidates):
                raise
    raise ValueError("a round has no ports")


def _udp_server(family: socket.AddressFamily, port: int) -> Iterator[socket.socket]:
    """Yield a UDP socket that receives packets on this port.

    Yield nothing if the socket cannot be opened, for example because another program uses the port.
    """
    server = socket.socket(family, socket.SOCK_DGRAM)
    try:
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        server.bind(("", port))
        server.setblocking(False)
    except OSError:
        server.close()
        return
    yield server


def _received(connection: socket.socket, num_bytes: int) -> bytes:
    """Receive exactly `num_bytes` bytes. Raises ConnectionError if the peer closes the connection earlier."""
    data = b""
    while len(data) < num_bytes:
        part = connection.recv(num_bytes - len(data))
        if not part:
            raise ConnectionAbortedError("the connection was closed")
        data += part
    return data


def _swapped(connection: socket.socket, until: float) -> Iterator[int]:
    """Send 64 KiB and receive 64 KiB at the same time.

    Each time data arrive, yield the number of bytes that have been received so far.
    """
    connection.setblocking(False)
    poll = select.poll()
    left, received = memoryview(os.urandom(NUM_BYTES)), 0
    while (left or received < NUM_BYTES) and (wait_s := until - time.monotonic()) > 0:
        wanted = (select.POLLOUT if left else 0) | (select.POLLIN if received < NUM_BYTES else 0)
        poll.register(connection, wanted)
        for _, events in poll.poll(wait_s * 1e3):
            if events & select.POLLIN:
                data = connection.recv(NUM_BYTES - received)
                if not data:
                    return
                received += len(data)
                yield received
            elif events & (select.POLLERR | select.POLLHUP):
                return
            if events & select.POLLOUT:
                left = left[connection.send(left) :]


def _half_open(port: int, net: Path = Path("/proc/net")) -> Iterator[str]:
    """Yield the addresses whose connection to this port is only half open.

    The peer at such an address sent the first packet (SYN), but did not acknowledge this host's reply.
    """
    for local, remote, state, *_ in tcp_table.connections(net):
        if state == _HALF_OPEN and int(local.rpartition(":")[2], 16) == port:
            yield tcp_table.address(remote.rpartition(":")[0])


def _unanswered(net: Path = Path("/proc/net")) -> Iterator[str]:
    """Yield the addresses that do not acknowledge data, although the data were retransmitted several times.

    A peer's kernel acknowledges data even if the peer's program hangs. Missing acknowledgements therefore mean that
    packets were lost or that the peer does not run. The kernel waits longer after each retransmission. A loss therefore
    remains visible for a while after the link works again.
    """
    for _, remote, state, _, timer, resent, *_ in tcp_table.connections(net):
        if state in _SENDING and timer.startswith(f"{_RESENDING}:") and int(resent, 16) >= _MOST_RESENT:
            yield tcp_table.address(remote.rpartition(":")[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv))
