"""Read the facts of a host before a run: `python -m bench.probes.host QUESTION` prints one line of JSON.

The controller starts this program on all hosts at once. QUESTION is a `HostQuestion` as JSON. The program replies
within about a second. The program finds the versions of libraries without importing the libraries.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.core.host_use import HostUse
from bench.probes import host_use, machine, netlink, nvml, ports, versions
from bench.probes.sysfs import ROOT, read

SCHEMA = "bench.host/1"
_TRIED_BYTES = 64 << 10
_MPIRUN_WAIT_S = 10.0
_USE_S = 0.5  # how long to measure the CPU use of other programs; the kernel counts in steps of 10 ms


@dataclass(frozen=True, slots=True)
class HostQuestion:
    """A question of the controller, which asks a host for its facts.

    `results`: the folder of results.
    `nonce`: the name of an empty file that the controller has put into the folder `results`.
    `mpirun`: the command mpirun that starts the ranks, or None for other launchers.
    `port`: the rendezvous port, if this host will listen on it; otherwise None.
    `node`: whether the report must also contain the facts of the hardware.
    `among`: the first and the last port that the run may use, if environment variables limit the ports.
    """

    hosts: tuple[str, ...] = ()
    mpirun: str | None = None
    port: int | None = None
    results: str | None = None
    nonce: str = ""
    limit_s: float = 10.0
    node: bool = False
    among: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of one host. Sizes are in bytes. None means unknown, but in the fields `max_*` it means unlimited."""

    host: str
    boot_id: str | None
    software: Mapping[str, str]
    source: str
    mpi: str | None  # the version of the host's mpirun; None if not requested or missing
    addresses: Mapping[str, list[str] | str]  # for each name: its addresses, or the error as text
    own_addresses: list[str] | str
    free_port: int
    port_taken: str | None
    results_shared: bool | None  # whether the host sees the controller's folder; None if not requested
    results_problem: str | None  # why that folder cannot be written
    results_free_bytes: int | None
    num_gpus: int
    memory_bytes: int | None  # memory that is available without swapping
    shm_free_bytes: int | None
    max_files: int | None
    max_locked_bytes: int | None
    has_rdma: bool
    interfaces: Sequence[str] = ()  # network devices, by name
    adapters: Sequence[str] = ()  # RDMA devices, by name
    node: Mapping[str, Any] | None = None  # machine.facts(), if requested
    devices: Sequence[netlink.Device] = ()  # network devices that are up, with their addresses
    use: HostUse | None = None  # the host's use while the probe slept; None: unknown
    programs: Sequence[Mapping[str, Any]] = ()  # the busiest programs during the sleep


@dataclass(frozen=True, slots=True)
class HostReport:
    """The report that is printed as one line."""

    facts: Facts
    schema: str = SCHEMA


def main(argv: Sequence[str]) -> int:
    """Print the reply to the question in `argv`.

    An alarm ends this process after a time limit, because the controller or a name server may be gone.
    """
    asked: dict[str, Any] = json.loads(argv[1])
    signal.alarm(math.ceil(asked["limit_s"]) + 1)
    answer = HostReport(facts(HostQuestion(**asked)))
    print(json.dumps(asdict(answer)))
    return 0


def parse(line: str) -> HostReport | None:
    """Return the report in one line of output. For any other text, such as a report of another version, return None."""
    try:
        plain = json.loads(line)
        if not isinstance(plain, dict) or plain.get("schema") != SCHEMA:
            return None
        devices = tuple(map(netlink.Device.from_plain, plain["facts"]["devices"]))
        use = HostUse(**plain["facts"]["use"]) if plain["facts"].get("use") else None
        return HostReport(Facts(**{**plain["facts"], "devices": devices, "use": use}))
    except (ValueError, TypeError, KeyError):
        return None


def last_report(out: str) -> HostReport | None:
    """Return the last report in the output of a host. A login may print other lines before the report."""
    found = (parse(line) for line in reversed(out.splitlines()))
    return next((report for report in found if report is not None), None)


def facts(question: HostQuestion, root: Path = ROOT) -> Facts:
    """Return the facts of this host."""
    use, programs = host_use.ProgramMeter().used_while_idle(_USE_S)
    folder = Path(question.results) if question.results is not None else None
    return Facts(
        host=socket.gethostname(),
        boot_id=read(root / "proc/sys/kernel/random/boot_id"),
        software=versions.software(),
        source=versions.source(),
        mpi=_mpi(question.mpirun),
        addresses=ports.resolve(question.hosts),
        own_addresses=ports.resolve([socket.gethostname()])[socket.gethostname()],
        free_port=ports.free_port(question.among),
        port_taken=None if question.port is None else ports.taken(question.port),
        results_shared=None if folder is None else (folder / question.nonce).exists(),
        results_problem=None if folder is None else _not_writable(folder),
        results_free_bytes=None if folder is None else free_bytes(folder),
        num_gpus=nvml.count_gpus(),
        memory_bytes=machine.available_memory_bytes(root),
        shm_free_bytes=free_bytes(root / "dev/shm"),
        max_files=_limit(resource.RLIMIT_NOFILE),
        max_locked_bytes=_limit(resource.RLIMIT_MEMLOCK),
        has_rdma=bool(adapters := _names(root / "sys/class/infiniband")),
        interfaces=_names(root / "sys/class/net"),
        adapters=adapters,
        node=machine.facts(root) if question.node else None,
        devices=netlink.devices(),
        use=use,
        programs=programs,
    )


def _names(folder: Path) -> list[str]:
    """Return the sorted names in a folder."""
    return sorted(path.name for path in folder.glob("*"))


def free_bytes(folder: Path) -> int | None:
    """Return how many bytes on a folder's file system are free for ordinary users."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _not_writable(folder: Path) -> str | None:
    """Try to write into a folder. Return the error, or None if writing works.

    Only a write reveals quotas, read-only mounts and full disks.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".bench-") as file:
            file.write(b"\0" * _TRIED_BYTES)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def _mpi(mpirun: str | None) -> str | None:
    """Return the MPI as `mpirun --version` names it, such as `MPICH 5.0.2` or `Open MPI 5.0.11`.

    For any other MPI, return the first line that `mpirun --version` prints.
    """
    if mpirun is None:
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        reported = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=_MPIRUN_WAIT_S, check=False
        ).stdout
        openmpi, hydra = (
            re.search(r"Open MPI\) (\S+)", reported),
            re.search(r"HYDRA.*?Version:\s*(\S+)", reported, re.DOTALL),
        )
        if openmpi or hydra:
            return f"Open MPI {openmpi[1]}" if openmpi else f"MPICH {hydra[1]}" if hydra else None
        return (reported.strip().splitlines() or [""])[0] or None
    return None


def _limit(of: int) -> int | None:
    soft = resource.getrlimit(of)[0]
    return None if soft == resource.RLIM_INFINITY else soft


if __name__ == "__main__":
    sys.exit(main(sys.argv))
