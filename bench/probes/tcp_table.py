"""Read the kernel's table of this host's TCP sockets (/proc/net/tcp, /proc/net/tcp6)."""

from __future__ import annotations

import contextlib
import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NET = Path("/proc/net")
_LISTENS = "0A"  # the state of a socket that waits for connections
_NUM_COLUMNS = 9  # number of columns per socket that are read


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that waits for connections.

    `user`: the id of the user who owns the socket.
    `inode`: the number of the socket.
    """

    address: str
    user: int
    inode: int


def connections(net: Path = NET) -> Iterator[list[str]]:
    """Yield the columns of each TCP socket. The first column is the local address (proc_net_tcp.rst)."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            lines = (net / name).read_text(encoding="ascii").splitlines()[1:]
            yield from (columns for line in lines if len(columns := line.split()[1:]) >= _NUM_COLUMNS)


def address(text: str) -> str:
    """Return an address of the table as text. The table has 32-bit numbers in the machine's byte order."""
    packed = b"".join(struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8))
    found = ipaddress.ip_address(packed)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def listeners(port: int, net: Path = NET) -> list[Listener]:
    """Return the sockets that wait for connections on a port."""
    found = []
    for local, _, state, _, _, _, user, _, inode, *_ in connections(net):
        host, _, own_port = local.rpartition(":")
        if state == _LISTENS and int(own_port, 16) == port:
            found.append(Listener(address(host), int(user), int(inode)))
    return found
