"""Read Gloo's exceptions (gloo/transport/tcp), as torch prints them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.logs.failure_events import Event, EventLine, MessageKind, Role, Sign, SignFormat

TIMED_OUT = MessageKind(
    "gloo-timeout",
    Role.WAITED,
    "a rank waited {duration_s:time} for another rank",
    0.4,
    "find the missing rank by its log, its stack, or the flight recorder's dumps of all ranks",
    "TORCH_FR_BUFFER_SIZE=2000; torch._C._distributed_c10d._dump_fr_trace_json() on each rank",
)
LOOPBACK = MessageKind(
    "cannot-connect",
    Role.NETWORK,
    "a rank could not reach another rank at the loopback address {peer}<: {error}>: the other rank ended, or "
    "it runs on another host, whose name maps to this address",
    0.6,
    "look for a rank that ended before; if the job has several nodes, name the interface that they share",
    "GLOO_SOCKET_IFNAME=eth0; getent hosts $(hostname)",
)
_REFUSED = MessageKind(
    "cannot-connect",
    Role.NETWORK,
    "no connection to another rank<, {peer}><: {error}>",
    0.6,
    "check the route and firewall between the nodes",
)
_CLOSED = MessageKind(
    "connection-closed",
    Role.PEER,
    "the peer process closed the connection: it ended earlier",
    0.35,
    "look for the rank that ended first; its own output has the reason",
)
_RETRIED = "willRetry=1"  # Gloo tries again, and reports the last try with 0
_SIGNS = (
    (
        r"op\.preamble\.length <= op\.nbytes\. (?P<received>\d+) vs (?P<wanted>\d+)",
        MessageKind(
            "size-mismatch",
            Role.CAUSE,
            "a rank received {received} bytes where it expected at most {wanted}: the ranks called collectives "
            "with different "
            "sizes or in different order",
            0.9,
            "run once with torch's check of every collective; it names the ranks",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL",
        ),
    ),
    (r"Timed out waiting (?P<ms>\d+)ms for (?P<direction>send|recv) operation", TIMED_OUT),
    (
        r"Connection closed by peer \[?(?P<peer>[\w.:]+\]?:\d+)",
        _CLOSED,
    ),
    (
        r"(?:Read|Write) error \[?(?P<peer>[\w.:]+\]?:\d+): (?P<error>[^.]*)",
        _CLOSED,
    ),
    (
        r"Gloo connectFullMesh failed with (?P<error>.*)",
        MessageKind(
            "gloo-cannot-connect",
            Role.NETWORK,
            "the ranks could not connect to each other: {error}",
            0.7,
            "check that the interface of every node can be reached from all other nodes",
            "GLOO_SOCKET_IFNAME=eth0; ip -br addr",
        ),
    ),
    (
        r"(?:Unable to find address for|Unable to resolve hostname|unsupported gloo device|ifa == nullptr|Unable "
        r"to find interface)"
        r" ?:? ?(?P<name>[\w.-]*)",
        MessageKind(
            "no-interface",
            Role.CAUSE,
            "Gloo finds no address<: {name}>",
            0.9,
            "name an interface that exists on every node",
            "GLOO_SOCKET_IFNAME=eth0; ip -br addr",
        ),
    ),
    (r"\bconnect \[(?P<peer>127\.[\d.]{5,11}|::1)\]:(?P<port>\d+): (?P<error>.*)", LOOPBACK),
    (r"\bconnect \[(?P<peer>[\w.:%]{2,60})\]:(?P<port>\d+): (?P<error>.*)", _REFUSED),
    (r"SO_ERROR: (?P<error>.*?), remote=\[(?P<peer>127\.[\d.]{5,11}|::1)\]:(?P<port>\d+)", LOOPBACK),
    (
        r"[Cc]onnect timeout|SO_ERROR: (?P<error>.*?)(?:, remote=(?P<peer>\S+))",
        MessageKind(
            "cannot-connect",
            Role.NETWORK,
            "no connection to another rank<: {error}>",
            0.6,
            "check the route and firewall between the nodes",
        ),
    ),
)


class GlooErrors(SignFormat):
    """Yields one event for each line."""

    hints = ("gloo/", "Gloo ", "op.preamble", "Timed out waiting", "closed by peer", "ifa == nullptr")
    signs = tuple(Sign(re.compile(pattern), kind) for pattern, kind in _SIGNS)

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield at most one event for a line. A connection that Gloo retries yields no event."""
        if _RETRIED not in line.text:
            yield from super().read(line)


FORMAT = GlooErrors
