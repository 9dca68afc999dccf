"""Start a program on two hosts, as server and as client. Rank 0 is the server.

python -m bench.rank.client_server [--adapter] PROGRAM ARGUMENTS ...

mpirun or srun starts this module on two ranks. Rank 1 finds an address of rank 0 to which it can connect. Rank 0 starts
the program, and waits until the program listens on a free port. Rank 1 then starts the program with this address of
rank 0 as the last argument. The client's output goes to stdout. If the program fails, the server's output goes to
stderr.

With `--adapter`, both hosts need an RDMA adapter with an active link. If the arguments do not contain `-d`, both ranks
add the name of the adapter (`-d`, `-i`). While the program runs, both ranks only wait, and use no CPU.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.core.channel import Channel
from bench.core.errors import BenchError, RefusedError
from bench.core.inventory import Adapter, Inventory
from bench.core.transport import Options
from bench.core.world import RankInfo
from bench.hardware.live import active_adapters
from bench.logs.tool import HostEnd, HostEnds
from bench.probes import adapters, netlink, ports, sysfs
from bench.rank import delivery, heartbeats
from bench.rank.messages import RankRefusal
from bench.rank.placement import place
from bench.store.heartbeat import LastWords, error_line
from bench.transports import _control

_ADAPTER = "--adapter"
_REACH_S, _LISTEN_S, _END_S = 5.0, 30.0, 10.0
_POLL_S = 0.02
_READY, _FAILED = b"+", b"-"
_VERSION = re.compile(r"[Vv]ersion:?\s+(\S{1,40})")
_LISTENS = "0A"  # state of a listening socket in /proc/net/tcp


def main(words: Sequence[str]) -> int:
    """Run this rank's program: the server on rank 0, and the client on rank 1.

    Returns the exit code of the program. If the run is refused, returns the code of the refusal.
    """
    rank: int | None = None
    try:
        me = place(os.environ)
        rank = me.rank
        if me.num_ranks != 2:
            raise RefusedError.of(RankRefusal.TWO_ENDS, num_ranks=me.num_ranks)
        control = _control.open_control(me, Options())
        try:
            needs_adapter = words[0] == _ADAPTER
            words = words[needs_adapter:]
            with _connected(me, control.channel, words, needs_adapter) as (connection, address, mine):
                command = [*words, *(_device(words, mine) if mine else ())]
                if me.rank == 0:
                    return _serve(command, connection)
                return _connect(command, connection, address)
        finally:
            control.close()
    except BenchError as error:
        delivery.say(error_line(LastWords(heartbeats.end_of(error), rank, socket.gethostname())))
        return error.exit_code


@contextlib.contextmanager
def _connected(
    me: RankInfo, channel: Channel, words: Sequence[str], needs_adapter: bool
) -> Iterator[tuple[socket.socket, str, Adapter | None]]:
    """Yield a connection between the ranks, the server's address that the client reached, and this rank's adapter.

    Raises RefusedError on both ranks if a host lacks an adapter, or if the client cannot reach the server.
    """
    listening = ports.listener(0) if me.rank == 0 else None
    with listening or contextlib.nullcontext():
        found = active_adapters(Inventory(adapters=adapters.adapters())) if needs_adapter else ()
        mine = {
            "host": socket.gethostname(),
            "addresses": _addresses(),
            "port": listening.getsockname()[1] if listening else 0,
            "adapters": [asdict(adapter) for adapter in found],
        }
        server, client = both = channel.share(mine)
        chosen = [_adapter(words, one["host"], one["adapters"]) if needs_adapter else None for one in both]
        made = _reach(server["addresses"], server["port"]) if me.rank == 1 else None
        reached = channel.share(made[1] if made else "")[1]
        if not reached:
            facts = {"client": client["host"], "server": server["host"], "addresses": server["addresses"]}
            raise RefusedError.of(RankRefusal.SERVER_NOT_REACHED, **facts)
        if listening is not None:
            ends = tuple(_end(one["host"], adapter) for one, adapter in zip(both, chosen, strict=True))
            delivery.say_out(HostEnds(ends, _version(words[0])).line())
            listening.settimeout(_REACH_S)
            connection = listening.accept()[0]
        else:
            assert made is not None
            connection = made[0]
        with connection:
            connection.settimeout(None)
            yield connection, reached, chosen[me.rank]


def _end(host: str, adapter: Adapter | None) -> HostEnd:
    return HostEnd(host) if adapter is None else HostEnd(host, adapter.name, adapter.kind, adapter.bytes_per_s)


def _addresses() -> list[str]:
    """Return this host's name, and the addresses of its network devices."""
    found = [address.partition("/")[0] for device in netlink.devices() for address in device.addresses]
    return [socket.gethostname(), *found]


def _reach(addresses: Sequence[str], port: int) -> tuple[socket.socket, str] | None:
    for address in addresses:
        with contextlib.suppress(OSError):
            return socket.create_connection((address, port), _REACH_S), address
    return None


def _adapter(words: Sequence[str], host: str, told: Sequence[Mapping[str, Any]]) -> Adapter:
    """Return the adapter that the arguments name, or the first adapter. Raises RefusedError without an adapter."""
    usable = [Adapter(**each) for each in told]
    if not usable:
        raise RefusedError.of(RankRefusal.NO_RDMA_ADAPTER, host=host)
    if "-d" not in words:
        return usable[0]
    wanted = words[list(words).index("-d") + 1]
    for adapter in usable:
        if adapter.name == wanted:
            return adapter
    found = [adapter.name for adapter in usable]
    raise RefusedError.of(RankRefusal.NOT_THIS_ADAPTER, wanted=wanted, host=host, found=found)


def _device(words: Sequence[str], adapter: Adapter) -> list[str]:
    """Return the program's options that select the adapter and the adapter's port."""
    name, _, port = adapter.name.partition(":")
    return ([] if "-d" in words else ["-d", name]) + (["-i", port] if port else [])


def _version(program: str) -> str:
    """Return the version that the program prints. Return "" if the program prints no version."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_END_S, check=False)
        found = _VERSION.search(done.stdout + done.stderr)
        return found[1] if found else ""
    return ""


def _serve(command: Sequence[str], connection: socket.socket) -> int:
    """Run the server until the client has ended."""
    port = ports.free_port()
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(
            [*command, "-p", str(port)], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        ) as server:
            try:
                listens = _wait_until_it_listens(server, port)
                connection.sendall((_READY if listens else _FAILED) + f"{port}\n".encode())
                of_client = _number(connection)  # None if the client's host is gone
                if of_client == 0:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        server.wait(_END_S)
            finally:
                if server.poll() is None:
                    server.kill()
        own = abs(server.returncode) if listens else server.returncode or 1
        with contextlib.suppress(OSError):
            connection.sendall(f"{own}\n".encode())
        failed = 1 if of_client is None else of_client or own
        if failed:
            output.seek(0)
            for line in output.read().decode(errors="replace").splitlines():
                delivery.say(f"server: {line}")
    return failed


def _connect(command: Sequence[str], connection: socket.socket, address: str) -> int:
    """Run the client as soon as the server listens."""
    ready = connection.recv(1)
    port = _number(connection)
    code = 1
    if ready == _READY:
        done = subprocess.run([*command, "-p", str(port), address], stdin=subprocess.DEVNULL, check=False)
        code = abs(done.returncode)
    connection.sendall(f"{code}\n".encode())
    return code or _number(connection) or 0


def _number(connection: socket.socket) -> int | None:
    """Read a line with a number. Returns None if the connection has ended."""
    read = b""
    while not read.endswith(b"\n"):
        try:
            piece = connection.recv(1)
        except OSError:
            return None
        if not piece:
            return None
        read += piece
    return int(read)


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until a socket of this host listens on the port. Returns False if the process ends before it listens."""
    end = time.monotonic() + _LISTEN_S
    while process.poll() is None and time.monotonic() < end:
        if _listens(port):
            return True
        time.sleep(_POLL_S)
    return False


def _listens(port: int, root: Path = sysfs.ROOT) -> bool:
    """Check whether a socket of this host listens on the port.

    The check reads the kernel's socket tables, because a test connection would disturb the program.
    """
    for name in ("tcp", "tcp6"):
        for line in (sysfs.read(root / "proc/net" / name) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 3 and words[3] == _LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
