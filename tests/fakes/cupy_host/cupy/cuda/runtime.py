"""cupy.cuda.runtime on the host: the functions that the suite calls, with the names and arguments of CuPy 14."""

from __future__ import annotations

import atexit
import ctypes
import math
import mmap
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

_MEMORY_BYTES = int(os.environ.get("FAKE_CUDA_MEMORY", 1 << 30))
_FOLDER = Path("/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir())
_HANDLE_BYTES = 64
_SHIFT = 1 << 46  # of the addresses that the GPU has for registered host memory
QUEUE = 1000  # entries that a stream's queue holds
_NAMES = {
    2: "cudaErrorMemoryAllocation",
    35: "cudaErrorInsufficientDriver",
    100: "cudaErrorNoDevice",
    217: "cudaErrorPeerAccessUnsupported",
    704: "cudaErrorPeerAccessAlreadyEnabled",
    801: "cudaErrorNotSupported",
    1: "cudaErrorInvalidValue",
    201: "cudaErrorDeviceUninitialized",
}


class CUDARuntimeError(RuntimeError):
    """As CuPy's: its number is `status`."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"{_NAMES[status]}: as this test asked for")


@dataclass
class _Allocation:
    """One piece of memory: of a GPU (with the file that others can open), or pinned memory of the host."""

    device: int | None
    num_bytes: int
    memory: mmap.mmap
    file: Path | None = None
    opened: bool = False


@dataclass
class _State:
    allocations: dict[int, _Allocation] = field(default_factory=dict)
    streams: dict[int, _Stream] = field(default_factory=dict)
    events: dict[int, _Event] = field(default_factory=dict)
    registered: dict[int, int] = field(default_factory=dict)  # host memory by its address: its bytes
    peers: set[tuple[int, int]] = field(default_factory=set)
    lock: threading.RLock = field(default_factory=threading.RLock)


class _Stream:
    """A thread that does one thing after the other; what it raises is raised by whoever waits for it."""

    def __init__(self, device: int) -> None:
        self.device = device
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self.num_put = self.num_done = self.gate = 0  # `gate`: the number of the last gate's work
        threading.Thread(target=self._run, daemon=True).start()

    def put(self, work: Callable[[], None]) -> None:
        while self.num_put - self.num_done >= QUEUE:  # a full queue makes the host wait, as in CUDA
            time.sleep(0)
        self.num_put += 1
        self._work.put(work)

    def wait(self) -> None:
        done = threading.Event()
        self.put(done.set)
        assert done.wait(60), "a stream got stuck"
        while self.num_done < self.num_put:
            time.sleep(0)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException as error:
                self._error = error
            self.num_done += 1


class _Link:
    """The link between host and GPU: bytes per second to and from the GPU, alone and while the other way is busy.

    Times are computed, not waited for: from what was enqueued on each stream since their common event.
    """

    def __init__(self, rates: str) -> None:
        self._rates = [float(rate) for rate in rates.split(",")]
        self._put: dict[int, list[tuple[str, int, float]]] = {}  # by stream: (event | copy, its number or way, bytes)

    def put(self, stream: int, kind: str, number: int, size: float = 0.0) -> None:
        """Note what is enqueued."""
        self._put.setdefault(stream, []).append((kind, number, size))

    def elapsed_s(self, begin: int, end: int) -> float:
        """The seconds from the event that started the streams to another one."""
        streams = []
        for entries in self._put.values():
            starts = [k for k, (kind, number, _) in enumerate(entries) if kind == "event" and number == begin]
            if starts:
                del entries[: starts[-1]]
                streams.append(entries[1:])
        at_s = 0.0
        while True:
            for entries in streams:
                while entries and entries[0][0] == "event":
                    if entries.pop(0)[1] == end:
                        return at_s
            running = [entries for entries in streams if entries]
            busy = {entries[0][1] for entries in running}
            rates = [self._rates[2 + entries[0][1] if len(busy) == 2 else entries[0][1]] for entries in running]
            next_s = min(entries[0][2] / rate for entries, rate in zip(running, rates, strict=True))
            at_s += next_s
            for entries, rate in zip(running, rates, strict=True):
                left = entries[0][2] - rate * next_s
                entries[0] = ("copy", entries[0][1], left)
                if left < 1e-6:
                    entries.pop(0)


_link = _Link(os.environ["FAKE_CUDA_LINK"]) if "FAKE_CUDA_LINK" in os.environ else None


class _Event:
    def __init__(self) -> None:
        self.reached = threading.Event()
        self.at_s = 0.0


_state = _State()
_here = threading.local()


@atexit.register
def _clean() -> None:
    """Files of memory that nobody gave back."""
    for allocation in _state.allocations.values():
        if allocation.file is not None:
            allocation.file.unlink(missing_ok=True)
    if os.environ.get("FAKE_CUDA_STRICT") and any(one.opened for one in _state.allocations.values()):
        os._exit(99)


def _check(device: int) -> None:
    if not 0 <= device < getDeviceCount():
        raise CUDARuntimeError(1)


def getDeviceCount() -> int:
    asked = os.environ.get("FAKE_CUDA_GPUS", "1")
    if asked == "no-driver":
        raise CUDARuntimeError(35)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    num = int(asked) if visible is None else min(int(asked), len([one for one in visible.split(",") if one]))
    if num == 0:
        raise CUDARuntimeError(100)
    return num


def _physical(device: int) -> int:
    """CUDA_VISIBLE_DEVICES renumbers GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return device if visible is None else int(visible.split(",")[device])


def setDevice(device: int) -> None:
    _check(device)
    _here.device = device


def getDevice() -> int:
    return int(getattr(_here, "device", 0))


def getDeviceProperties(device: int) -> dict[str, Any]:
    _check(device)
    return {
        "name": b"Fake GPU",
        "uuid": bytes([_physical(device)] * 16),
        "multiProcessorCount": 4,
        "l2CacheSize": 1 << 16,
        "asyncEngineCount": 3,
    }


def deviceGetPCIBusId(device: int) -> str:
    _check(device)
    return f"0000:{_physical(device) + 1:02X}:00.0"


def deviceCanAccessPeer(device: int, peerDevice: int) -> int:
    _check(device)
    _check(peerDevice)
    return int(device != peerDevice and os.environ.get("FAKE_CUDA_PEERS") != "0")


def deviceEnablePeerAccess(peerDevice: int) -> None:
    pair = (getDevice(), peerDevice)
    if not deviceCanAccessPeer(*pair):
        raise CUDARuntimeError(217)
    if pair in _state.peers:
        raise CUDARuntimeError(704)
    _state.peers.add(pair)


def runtimeGetVersion() -> int:
    return 13000


def driverGetVersion() -> int:
    return 13010


def memGetInfo() -> tuple[int, int]:
    used = sum(one.num_bytes for one in _state.allocations.values() if one.device == getDevice() and not one.opened)
    return (1 << 31) + _MEMORY_BYTES - used, (1 << 31) + _MEMORY_BYTES


def _behind_gates() -> None:
    """Allocating and freeing may wait for the whole GPU, and so for every gate that is shut on it."""
    for stream in list(_state.streams.values()):
        while stream.device == getDevice() and stream.num_done < stream.gate:
            time.sleep(0)


def malloc(size: int) -> int:
    _behind_gates()
    device = getDevice()
    used = sum(one.num_bytes for one in _state.allocations.values() if one.device == device and not one.opened)
    if used + size > _MEMORY_BYTES:
        raise CUDARuntimeError(2)
    descriptor, name = tempfile.mkstemp(prefix="fake-cuda-", dir=_FOLDER)
    os.ftruncate(descriptor, size)
    return _mapped(descriptor, _Allocation(device, size, mmap.mmap(descriptor, size), Path(name)))


def _mapped(descriptor: int, allocation: _Allocation) -> int:
    os.close(descriptor)
    pointer = ctypes.addressof(ctypes.c_char.from_buffer(allocation.memory))
    _state.allocations[pointer] = allocation
    return pointer


def free(ptr: int) -> None:
    _behind_gates()
    allocation = _state.allocations.pop(ptr)
    assert allocation.file is not None and not allocation.opened
    allocation.file.unlink()


def hostAlloc(size: int, flags: int) -> int:
    _behind_gates()
    assert 0 <= flags < 8
    allocation = _Allocation(None, size, mmap.mmap(-1, size))
    pointer = ctypes.addressof(ctypes.c_char.from_buffer(allocation.memory))
    _state.allocations[pointer] = allocation
    return pointer


def freeHost(ptr: int) -> None:
    _behind_gates()
    assert _state.allocations.pop(ptr).device is None


def hostRegister(ptr: int, size: int, flags: int) -> None:
    if os.environ.get("FAKE_CUDA_REGISTER") == "0":
        raise CUDARuntimeError(801)
    assert flags == 3 and ptr % mmap.PAGESIZE == size % mmap.PAGESIZE == 0, "CUDA registers whole pages"
    _state.registered[ptr] = size


def hostUnregister(ptr: int) -> None:
    del _state.registered[ptr]


def pointerGetAttributes(ptr: int) -> Any:
    """The GPU has another address for registered memory, as on systems without one address space."""
    if ptr not in _state.registered:
        raise CUDARuntimeError(1)
    return SimpleNamespace(devicePointer=ptr + _SHIFT, hostPointer=ptr)


def _on_host(device_pointer: int) -> int:
    """The host's address of mapped memory."""
    if any(start <= device_pointer - _SHIFT < start + size for start, size in _state.registered.items()):
        return device_pointer - _SHIFT
    holder = _holder(device_pointer, 4)
    assert holder is not None and holder.device is None, "a kernel wrote to host memory that is not mapped"
    return device_pointer


def ipcGetMemHandle(devPtr: int) -> bytes:
    if os.environ.get("FAKE_CUDA_IPC") == "0":
        raise CUDARuntimeError(801)
    file = _state.allocations[devPtr].file  # a handle is of an allocation: KeyError for anything else
    assert file is not None
    return f"{os.getpid()}:{_physical(getDevice())}:{file.name}".encode().ljust(_HANDLE_BYTES, b"\0")


def ipcOpenMemHandle(handle: bytes, flags: int = 1) -> int:
    assert len(handle) == _HANDLE_BYTES and flags == 1
    process, device, name = handle.rstrip(b"\0").decode().split(":")
    if int(process) == os.getpid():
        raise CUDARuntimeError(201)  # CUDA opens no handle of the same process
    if int(device) != _physical(getDevice()) and os.environ.get("FAKE_CUDA_PEERS") == "0":
        raise CUDARuntimeError(217)
    descriptor = os.open(_FOLDER / name, os.O_RDWR)
    size = os.fstat(descriptor).st_size
    return _mapped(descriptor, _Allocation(getDevice(), size, mmap.mmap(descriptor, size), opened=True))


def ipcCloseMemHandle(devPtr: int) -> None:
    assert _state.allocations.pop(devPtr).opened


def _holder(pointer: int, num_bytes: int) -> _Allocation | None:
    """The allocation that holds all those bytes; None for memory that CUDA does not know."""
    with _state.lock:
        for start, one in list(_state.allocations.items()):
            if start <= pointer < start + one.num_bytes:
                assert pointer + num_bytes <= start + one.num_bytes, "beyond the end of an allocation"
                return one
    return None


def view(pointer: int, num_bytes: int) -> Any:
    """Those bytes as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(pointer)) if num_bytes else np.empty(0, "u1")


def _move(what: str, target: int, source: int, size: int) -> None:
    to, origin = _holder(target, size), _holder(source, size)
    if os.environ.get("FAKE_CUDA_LOG"):
        where = [
            "pageable" if one is None else "pinned" if one.device is None else f"gpu{one.device}"
            for one in (origin, to)
        ]
        with open(os.environ["FAKE_CUDA_LOG"], "a") as log:  # noqa: PTH123
            log.write(f"{what} {where[0]} {where[1]} {size}\n")
    time.sleep(float(os.environ.get("FAKE_CUDA_COPY_S", "0")))
    ctypes.memmove(target, source, size - 1 if os.environ.get("FAKE_CUDA_DROPS") else size)


def _on(stream: int) -> _Stream:
    return _state.streams[stream]


def memset(ptr: int, value: int, size: int) -> None:
    holder = _holder(ptr, size)
    assert holder is not None and holder.device is not None
    ctypes.memset(ptr, value, size)


def memcpy(dst: int, src: int, size: int, kind: int) -> None:
    _directions(dst, src, size, kind)
    ctypes.memmove(dst, src, size)


def _directions(dst: int, src: int, size: int, kind: int) -> bool:
    """Does the kind say truly where both ends lie? Returns whether one is pageable."""
    ends = [_holder(src, size), _holder(dst, size)]
    if kind != 4:
        of_device = tuple(one is not None and one.device is not None for one in ends)
        assert of_device == {1: (False, True), 2: (True, False), 3: (True, True)}[kind]
    return None in ends


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    # CUDA allows a stream of another GPU, but the thread would then make a context on a GPU that it does not use.
    assert _on(stream).device == getDevice(), "this thread set no device, or another one"
    pageable = _directions(dst, src, size, kind)
    if _link is not None and kind in (1, 2):
        _link.put(stream, "copy", kind - 1, size)
    _on(stream).put(lambda: _move("memcpyAsync", dst, src, size))
    if pageable or (os.environ.get("FAKE_CUDA_STAGES") and kind in (1, 2)):
        _on(stream).wait()


def memcpyPeerAsync(dst: int, dstDevice: int, src: int, srcDevice: int, size: int, stream: int) -> None:
    for pointer, device in ((dst, dstDevice), (src, srcDevice)):
        holder = _holder(pointer, size)
        assert holder is not None and holder.device == device
    _on(stream).put(lambda: _move("memcpyPeerAsync", dst, src, size))


def streamCreateWithFlags(flags: int) -> int:
    assert flags in (0, 1)
    stream = _Stream(getDevice())
    _state.streams[id(stream)] = stream
    return id(stream)


def streamDestroy(stream: int) -> None:
    _state.streams.pop(stream)


def streamQuery(stream: int) -> int:
    return 0 if _on(stream).num_done == _on(stream).num_put else 600


def streamSynchronize(stream: int) -> None:
    _on(stream).wait()


def deviceSynchronize() -> None:
    for stream in list(_state.streams.values()):
        if stream.device == getDevice():
            stream.wait()


def streamWaitEvent(stream: int, event: int, flags: int = 0) -> None:
    reached = _state.events[event].reached
    if _link is not None:
        _link.put(stream, "event", event)
    _on(stream).put(lambda: _waited(reached))


def _waited(reached: threading.Event) -> None:
    assert reached.wait(60), "an event was never reached"


def eventCreate() -> int:
    event = _Event()
    _state.events[id(event)] = event
    return id(event)


def eventDestroy(event: int) -> None:
    _state.events.pop(event)


def eventRecord(event: int, stream: int) -> None:
    one = _state.events[event]
    if _link is not None:
        _link.put(stream, "event", event)
    one.reached = reached = threading.Event()

    def reach() -> None:
        one.at_s = time.perf_counter()
        reached.set()

    _on(stream).put(reach)


def eventSynchronize(event: int) -> None:
    _waited(_state.events[event].reached)


def eventElapsedTime(start: int, end: int) -> float:
    both = _state.events[start], _state.events[end]
    assert all(one.reached.is_set() for one in both), "cudaErrorNotReady"
    if _link is not None:
        return _link.elapsed_s(start, end) * 1e3
    return (both[1].at_s - both[0].at_s) * 1e3


def launch(name: str, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[int, ...], stream: int) -> None:
    """A kernel of ours, by its name. A GPU runs kernels on streams of its own only."""
    assert _on(stream).device == getDevice(), "cudaErrorInvalidResourceHandle"
    if name == "bench_gate":
        _on(stream).gate = _on(stream).num_put + 1
    {"bench_copy": _copy, "bench_chase": _chase, "bench_gate": _gate}[name](grid, block, args, stream)


def _copy(grid: tuple[int, ...], block: tuple[int, ...], args: tuple[int, ...], stream: int) -> None:
    source, target, num_bytes = args
    sms = getDeviceProperties(getDevice())["multiProcessorCount"]
    blocks = int(os.environ.get("FAKE_CUDA_BLOCKS", "4"))
    assert block == (512,) and 1 <= grid[0] <= blocks * sms, "the source says how many threads a block has"
    _by_kernel("bench_copy", source, target, num_bytes, stream)


def _chase(grid: tuple[int, ...], block: tuple[int, ...], args: tuple[int, ...], stream: int) -> None:
    source, target, num_bytes, step, zero = args
    num_words = num_bytes // 16
    assert grid == block == (1,) and zero == 0, "one thread"
    assert math.gcd(step, num_words) == 1 if num_words else step == 0, "each word once"
    assert step <= max(1, num_words), "beyond the end"
    _by_kernel("bench_chase", source, target, num_bytes, stream)


def _by_kernel(name: str, source: int, target: int, num_bytes: int, stream: int) -> None:
    assert source % 16 == target % 16 == 0
    for pointer in (source, target) if num_bytes else ():
        holder = _holder(pointer, num_bytes)
        assert holder is not None, "a kernel reaches the memory of GPUs and pinned memory"
        if holder.device not in (None, getDevice()):
            assert (getDevice(), holder.device) in _state.peers, "an illegal memory access"
    if num_bytes:
        _on(stream).put(lambda: _move(name, target, source, num_bytes))


def _gate(grid: tuple[int, ...], block: tuple[int, ...], args: tuple[int, ...], stream: int) -> None:
    opened, expired, ticket, limit_ns, passed = args
    assert grid == block == (1,)
    opened, expired, passed = map(_on_host, (opened, expired, passed))

    def wait() -> None:
        begin = time.perf_counter_ns()
        while os.environ.get("FAKE_CUDA_BLIND") or ctypes.c_uint32.from_address(opened).value != ticket:
            time.sleep(0)
            if time.perf_counter_ns() - begin > limit_ns:
                ctypes.c_uint32.from_address(expired).value = ticket
                return
        ctypes.c_uint32.from_address(passed).value = ticket

    _on(stream).put(wait)
