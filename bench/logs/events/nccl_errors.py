"""Read errors of NCCL and CUDA as programs print them: nccl-tests and rccl-tests, torch, and plain C++ programs.

The reader knows the error texts of `ncclGetErrorString` (NCCL, init.cc) and of `ncclGetErrorWithVersion` (torch).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from bench.logs.failure_events import Event, EventLine, MessageKind, Role, Sign, SignFormat

_TESTS = r"(?P<host>[\w.-]+): Test (?:NCCL|RCCL|CUDA|HIP) failure (?P<place>\S+) '(?P<error>"
_PROCESS = re.compile(r"\.\. (?P<host>[\w.-]+) pid (?P<pid>\d{1,10}): Test failure")
_WATCHDOG = re.compile(r"\[Rank (?P<rank>\d{1,6})\] (?:NCCL watchdog|Process group watchdog|Watchdog) ")
_MILD = re.compile(r"\b(?:WARNING|WARN)\b")  # levels of a logger
_FATAL = ("kernel-fault", "gpu-broken")  # no program goes on after these errors
_WEIGHT_AT_EXIT = 0.1
_AT_EXIT = "driver shutting down"  # a destructor that runs after CUDA's own
_DEBUG = "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV"

_RESULTS = (
    (
        r"(?:unhandled cuda error|ncclUnhandledCudaError|HIP error|unhandled hip error)",
        MessageKind(
            "cuda-failed",
            Role.CAUSE,
            "a CUDA call inside NCCL failed; the message does not name the call",
            0.7,
            "run again with NCCL's warnings, which name the call; check the kernel log for Xid errors",
            "NCCL_DEBUG=WARN; dmesg -T | grep -i xid",
        ),
    ),
    (
        r"(?:unhandled system error|ncclSystemError)",
        MessageKind(
            "system-call-failed",
            Role.CAUSE,
            "a system call or the network failed inside NCCL; the message does not name the call",
            0.55,
            "run again with NCCL's log, which names the call",
            _DEBUG,
        ),
    ),
    (
        r"(?:remote process exited or there was a network error|ncclRemoteError)",
        MessageKind(
            "rank-lost",
            Role.PEER,
            "NCCL lost the connection to another rank: that process ended, or the network between them failed",
            0.45,
            "if no process ended first, test the network between these hosts",
            "NCCL_DEBUG=WARN on all ranks",
        ),
    ),
    (
        r"(?:invalid usage|ncclInvalidUsage)",
        MessageKind(
            "wrong-call",
            Role.CAUSE,
            "the program used NCCL wrongly, often two ranks on one GPU",
            0.75,
            "run again with NCCL's warnings, which name the call",
            "NCCL_DEBUG=WARN",
        ),
    ),
    (
        r"(?:invalid argument|ncclInvalidArgument)",
        MessageKind(
            "wrong-call",
            Role.CAUSE,
            "the program passed a wrong argument to NCCL",
            0.75,
            "run again with NCCL's warnings, which name the argument",
            "NCCL_DEBUG=WARN",
        ),
    ),
    (
        r"(?:internal error|ncclInternalError)",
        MessageKind(
            "nccl-internal",
            Role.CAUSE,
            "NCCL failed internally, often in the topology or the bootstrap",
            0.5,
            "run again with NCCL's log",
            _DEBUG,
        ),
    ),
)
_CUDA = (
    (
        r"out of memory",
        MessageKind(
            "out-of-memory",
            Role.CAUSE,
            "the GPU has no memory left",
            0.95,
            "use smaller buffers or batches, and check which other processes use this GPU",
            "nvidia-smi",
        ),
    ),
    (
        r"(?:system not yet initialized|system has not been initialized|CUDA_ERROR_SYSTEM_NOT_READY)",
        MessageKind(
            "fabric-not-ready",
            Role.CAUSE,
            "the NVSwitch fabric is not up",
            0.95,
            "start the fabric manager of the same version as the driver",
            "systemctl status nvidia-fabricmanager",
        ),
    ),
    (
        r"(?:illegal memory access|misaligned address|device-side assert|unspecified launch failure|illegal "
        r"instruction)",
        MessageKind(
            "kernel-fault",
            Role.CAUSE,
            "a kernel of this rank failed on its GPU ({error}): a bug in the program, unless the kernel log "
            "shows an Xid error of the hardware",
            0.85,
            "find the kernel, and check the Xid errors",
            "CUDA_LAUNCH_BLOCKING=1; dmesg -T | grep -i xid",
        ),
    ),
    (
        r"(?:uncorrectable ECC|CUDA_ERROR_ECC|uncorrectable NVLink|GPU is lost|hardware stack error)",
        MessageKind(
            "gpu-broken",
            Role.CAUSE,
            "the GPU reports broken hardware ({error})",
            0.95,
            "drain the node and test the GPU",
            "nvidia-smi -q -d ECC,ROW_REMAPPER; dcgmi diag -r 3",
        ),
    ),
    (
        r"(?:no CUDA-capable device|invalid device ordinal|no kernel image|driver version is insufficient)",
        MessageKind(
            "gpu-unusable",
            Role.CAUSE,
            "this process cannot use its GPU ({error})",
            0.95,
            "check the driver, the visible devices, and whether the program was built for this GPU",
            "nvidia-smi -L; env | grep CUDA_VISIBLE",
        ),
    ),
)
_MEMORY_FAULT = MessageKind(
    "kernel-fault",
    Role.CAUSE,
    "a kernel failed on an AMD GPU ({error}): a bug in the program or a library",
    0.85,
    "find the kernel, and read the kernel log of the node",
    "AMD_SERIALIZE_KERNEL=3; dmesg -T | grep amdgpu",
)
_CUDA_FAILED = MessageKind(
    "cuda-failed",
    Role.CAUSE,
    "a CUDA call failed ({error})",
    0.8,
    "check the GPU's state and the Xid errors in the kernel log",
    "dmesg -T | grep -i xid; nvidia-smi -q",
)


_NO_GPU_ASKED = "ailed call to cuInit"  # TensorFlow and JAX print this on each machine without a GPU, and go on


class LibraryErrors(SignFormat):
    """Yields one event for each line with an error of NCCL or CUDA.

    In the output of nccl-tests, the next line names the process.
    """

    hints = (
        "Test ",
        "NCCL error",
        "NCCL operation",
        "ncclSystem",
        "ncclUnhandled",
        "ncclInternal",
        "ncclInvalid",
        "ncclRemote",
        "CUDA error",
        "cuda runtime error",
        "CUDA out of memory",
        "OutOfMemoryError",
        "CUDA_ERROR",
        "HIP",
        "Memory access fault by GPU",
        "HSA_STATUS_ERROR",
    )
    signs = (
        *(
            Sign(re.compile(_TESTS + words + r"[^']{0,200})", re.IGNORECASE), kind)
            for words, kind in (*_RESULTS, *_CUDA)
        ),
        Sign(re.compile(_TESTS + r"[^']{0,200})"), _CUDA_FAILED),
        Sign(re.compile(r"(?P<error>Memory access fault by GPU node-\d+).{0,80}? on address"), _MEMORY_FAULT),
        Sign(re.compile(r"borting with error ?: (?P<error>HSA_STATUS_ERROR\w*)"), _MEMORY_FAULT),
        *(
            Sign(
                re.compile(r"(?:CUDA|HIP|cuda\w*|nccl).{0,200}?(?P<error>" + words + r".{0,80})", re.IGNORECASE),
                kind,
            )
            for words, kind in _CUDA
        ),
        Sign(re.compile(r"(?:CUDA|HIP) error: (?P<error>.{0,120})"), _CUDA_FAILED),
        *(
            Sign(
                re.compile(r"(?:NCCL error|NCCL Error|NCCL operation|\bnccl)\b.{0,300}?(?P<error>" + words + r")"), kind
            )
            for words, kind in _RESULTS
        ),
        *(Sign(re.compile(r"^(?:\[rank\d+\]:\s*)?(?P<error>" + words + r"):"), kind) for words, kind in _RESULTS),
    )

    def __init__(self) -> None:
        """Start with no failed test."""
        self._waiting: Event | None = None

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        """Whether the next line may name the process in which a test failed."""
        return self._waiting is not None

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield the events of a line.

        The event of a failed test is kept until the next line, because that line names the process.
        """
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            process = _PROCESS.search(line.text)
            same = process is not None and process["host"] == waiting.host
            yield replace(waiting, pid=int(process["pid"])) if process is not None and same else waiting
        if _NO_GPU_ASKED in line.text:
            return
        for event in super().read(line):
            if event.host is not None:
                self._waiting = event
            else:
                yield _of_rank(event, line)

    def finish(self) -> Iterator[Event]:
        """Yield the event of a failed test if the file ends before the line that names the process."""
        if self._waiting is not None:
            yield self._waiting


FORMAT = LibraryErrors


def _of_rank(event: Event, line: EventLine) -> Event:
    """Add the rank that torch's watchdog names. If a logger printed the error as a warning, mark it as advisory."""
    rank = _WATCHDOG.search(line.text)
    if event.rank is None and rank is not None:
        event = replace(event, rank=int(rank["rank"]))
    error = str(event.facts.get("error", ""))
    is_mild = event.code not in _FATAL and _MILD.search(line.raw[: max(line.raw.find(error[:20]), 0)])
    if error.startswith(_AT_EXIT):
        event = replace(event, kind=replace(event.kind, weight=_WEIGHT_AT_EXIT, advisory=True))
    elif is_mild:
        event = replace(event, kind=replace(event.kind, advisory=True))
    return event
