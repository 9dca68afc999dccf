"""Hold the lease of a host. The lease ensures that only one benchmark at a time measures on this host.

The first rank of each host takes the lease.

The lease is an abstract Unix socket with a fixed name. Only one socket with a given abstract name can exist in a
network namespace. All users of a host therefore compete for the same socket. The kernel removes the socket when its
process ends. An abstract socket has no file that a user could create, protect or leave behind. A second socket tells
other users who holds the lease. Every user can read the name of this socket in /proc/net/unix.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.core.errors import RefusedError
from bench.core.world import RankInfo
from bench.probes import benchmarks
from bench.probes.processes import JOB_VARIABLE
from bench.rank import delivery
from bench.rank.messages import RankRefusal, RankRemark

# Benchmarks with different lease names ignore each other, so tests of several working copies can share a machine.
NAME_VARIABLE = "BENCH_HOST_LEASE"
_LEASE, _HOLDER = "linkbench-host", "linkbench-holder"
_WAIT_S, _POLL_S = 5.0, 0.2  # how long to wait for the end of an earlier job's ranks
_MOST_BYTES = 100  # most bytes of an abstract name that are used; the kernel allows 107
_UNIX_SOCKETS = Path("/proc/net/unix")


@contextlib.contextmanager
def held(me: RankInfo, share: bool) -> Iterator[None]:
    """On the first rank of each host, hold the lease of this host.

    Raises RefusedError if another benchmark measures on this host.

    `share`: whether to measure even if another benchmark holds the lease. With `share`, the rank takes the lease if the
    lease is free, and measures without the lease otherwise.
    """
    if me.local_rank != 0 or not sys.platform.startswith("linux"):
        yield
        return
    name = os.environ.get(NAME_VARIABLE, "")
    with contextlib.ExitStack() as sockets:
        lease = _bound(f"{_LEASE}/{name}")
        end = time.monotonic() + (0 if share else _WAIT_S)
        while lease is None and not _is_ours(name) and time.monotonic() < end:
            time.sleep(_POLL_S)
            lease = _bound(f"{_LEASE}/{name}")
        if lease is not None:
            sockets.enter_context(lease)
            mine = f"{_HOLDER}/{name}/{os.getuid()}/{os.getpid()}/{os.environ.get(JOB_VARIABLE, '')}"
            if (signed := _bound(mine)) is not None:
                sockets.enter_context(signed)
        elif not share and not _is_ours(name):
            raise _refused(**_holder(name))
        if not share and not name:
            _check_foreign()
        yield


def _check_foreign() -> None:
    """Raise RefusedError if another program's benchmark is measuring on this host.

    If the other benchmark only waits, print a note.
    """
    for found in benchmarks.running(os.environ.get(JOB_VARIABLE, "")):
        facts = {"program": found.program, "pid": found.process, "user": found.user}
        if found.measures:
            raise _refused(whose=f"{found.program}, process {found.process} of {found.user}", **facts)
        delivery.say(f"bench: note: {RankRemark.IDLE_BENCHMARK.words({'host': socket.gethostname(), **facts})}")


def _refused(**facts: object) -> RefusedError:
    error = RefusedError.of(RankRefusal.HOST_IN_USE, host=socket.gethostname(), **facts)
    error.of_one_rank = True
    return error


def _bound(name: str) -> socket.socket | None:
    """Return a socket with this abstract name, or None if the name is already in use."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        bound.bind(b"\0" + name.encode()[:_MOST_BYTES])
    except OSError:
        bound.close()
        return None
    return bound


def _is_ours(name: str) -> bool:
    """Check whether another process of this job holds the lease.

    Two nodes of the job may be the same machine, so another rank may already hold the lease.
    """
    job = os.environ.get(JOB_VARIABLE)
    return bool(job) and _holder(name).get("job") == job


def _holder(name: str) -> dict[str, str]:
    """Return the user, the process id and the job that the lease's holder published, and a text that names them."""
    prefix = f"@{_HOLDER}/{name}/"
    with contextlib.suppress(OSError):
        for line in _UNIX_SOCKETS.read_text(encoding="utf-8", errors="replace").splitlines():
            _, found, signed = line.partition(prefix)
            user, _, rest = signed.partition("/")
            pid, _, job = rest.partition("/")
            if found and user.isdecimal() and pid.isdecimal():
                return {"whose": f"run {job}, process {pid} of user {user}", "pid": pid, "user": user, "job": job}
    return {"whose": "its lease is taken"}
