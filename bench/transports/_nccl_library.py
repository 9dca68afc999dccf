"""Call NCCL and the CUDA runtime, or RCCL and HIP, by ctypes. The functions of RCCL and HIP have the same arguments.

- `runtime, nccl = load()` loads the libraries.
- `comm = nccl.init(num_ranks, unique_id, rank)` makes a communicator.

The runtime has the functions of `cupy.cuda.runtime` that `_cuda_memory` uses, under the same names.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.core.errors import NotInstalledError
from bench.transports import _nccl_gpu

ID_BYTES = 128  # sizeof(ncclUniqueId)
NOT_READY = 600  # cudaErrorNotReady, hipErrorNotReady
_MAJOR, _MINOR, _L2_BYTES = 75, 76, 38  # cudaDeviceAttr
_HIP_ATTRIBUTES = {_MAJOR: 23, _MINOR: 61, _L2_BYTES: 19}  # hipDeviceAttribute_t
_PROPERTIES_BYTES = 16 << 10  # more than any version of cudaDeviceProp, which begins with the name
_NAME_BYTES = 256
_NO_TIMING, _NON_BLOCKING = 0, 1
_THREAD_LOCAL = 1  # cudaStreamCaptureModeThreadLocal: NCCL's own threads may allocate during a capture

# Numbers of ncclDataType_t and ncclRedOp_t, which never change.
TYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7, "float64": 8,
    "bfloat16": 9, "float8_e4m3fn": 10, "float8_e5m2": 11,
}  # fmt: skip
REDUCTIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}


@dataclass(frozen=True, slots=True)
class _Vendor:
    """The names of libraries and functions of one vendor.

    `packages`: the Python packages that contain the libraries.
    """

    prefix: str
    runtimes: tuple[str, ...]
    nccl: str
    packages: tuple[str, ...] = ()


_VENDORS = (
    _Vendor(
        "cuda",
        ("libcudart.so.13", "libcudart.so.12", "libcudart.so"),
        _nccl_gpu.LIBRARY,
        ("nvidia.nccl", "nvidia.cu13", "nvidia.cuda_runtime"),
    ),
    _Vendor("hip", ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"), _nccl_gpu.AMD_LIBRARY),
)


class RuntimeFailure(RuntimeError):
    """A call of the CUDA or HIP runtime failed. `status`: its number."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class NcclFailure(RuntimeError):
    """A call of NCCL failed.

    `of_peer`: whether NCCL reports that another rank failed, or that the connection to another rank failed.
    """

    def __init__(self, words: str, of_peer: bool = False) -> None:
        super().__init__(words)
        self.of_peer = of_peer


class UniqueId(ctypes.Structure):
    """The C structure `ncclUniqueId`, which C functions receive by value."""

    _fields_ = (("internal", ctypes.c_char * ID_BYTES),)


class Runtime:
    """The CUDA or HIP runtime. If a call fails, the methods raise RuntimeFailure."""

    def __init__(self, library: Any, prefix: str) -> None:
        self._library, self._prefix = library, prefix
        self.is_hip = prefix == "hip"
        self.function("GetErrorString").restype = ctypes.c_char_p

    def function(self, name: str) -> Any:
        """Return a function of the runtime by its name without the prefix `cuda` or `hip`. Raises AttributeError."""
        return getattr(self._library, self._prefix + name)

    def failure(self, status: int) -> RuntimeFailure:
        """Return the exception for an error number of the runtime."""
        words = self.function("GetErrorString")(status) or b"unknown error"
        return RuntimeFailure(status, f"{self._prefix} error {status}: {words.decode(errors='replace')}")

    def _call(self, name: str, *arguments: Any) -> None:
        status = self.function(name)(*arguments)
        if status != 0:
            raise self.failure(status)

    def _number(self, name: str, kind: Any = ctypes.c_int) -> int:
        found = kind(0)
        self._call(name, ctypes.byref(found))
        return int(found.value or 0)

    def getDeviceCount(self) -> int:  # names of cupy.cuda.runtime, here and below
        """Return the number of GPUs."""
        return self._number("GetDeviceCount")

    def getDevice(self) -> int:
        """Return the current GPU of this thread."""
        return self._number("GetDevice")

    def setDevice(self, device: int) -> None:
        """Make a GPU the current device of this thread."""
        self._call("SetDevice", ctypes.c_int(device))

    def malloc(self, num_bytes: int) -> int:
        """Allocate GPU memory. Return its address."""
        pointer = ctypes.c_void_p()
        self._call("Malloc", ctypes.byref(pointer), ctypes.c_size_t(num_bytes))
        return int(pointer.value or 0)

    def free(self, pointer: int) -> None:
        """Free GPU memory."""
        self._call("Free", ctypes.c_void_p(pointer))

    def memcpy(self, target: int, source: int, num_bytes: int, kind: int) -> None:
        """Copy memory. `kind`: 1 for a copy to the GPU, 2 for a copy to the host."""
        self._call("Memcpy", ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(num_bytes), kind)

    def deviceSynchronize(self) -> None:
        """Wait until the current GPU has done all its work."""
        self._call("DeviceSynchronize")

    def memGetInfo(self) -> tuple[int, int]:
        """Return the free bytes and the total bytes of the current GPU."""
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        self._call("MemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def new_stream(self) -> int:
        """Make a stream that does not wait for the default stream."""
        stream = ctypes.c_void_p()
        self._call("StreamCreateWithFlags", ctypes.byref(stream), _NON_BLOCKING)
        return int(stream.value or 0)

    def new_event(self) -> int:
        """Make an event that records the time."""
        event = ctypes.c_void_p()
        self._call("EventCreateWithFlags", ctypes.byref(event), _NO_TIMING)
        return int(event.value or 0)

    def free_stream(self, stream: int) -> None:
        """Destroy a stream."""
        self._call("StreamDestroy", ctypes.c_void_p(stream))

    def free_event(self, event: int) -> None:
        """Destroy an event."""
        self._call("EventDestroy", ctypes.c_void_p(event))

    def captured(self, stream: int, enqueue: Callable[[], None]) -> int:
        """Capture the work that `enqueue` puts on a stream, and return this work as a graph.

        The graph is ready for launch.
        """
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("StreamBeginCapture", ctypes.c_void_p(stream), _THREAD_LOCAL)
        try:
            enqueue()
        finally:
            self._call("StreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        self._call("GraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        self._call("GraphDestroy", graph)
        return int(executable.value or 0)

    def free_graph(self, executable: int) -> None:
        """Destroy a graph that `captured` returned."""
        self._call("GraphExecDestroy", ctypes.c_void_p(executable))

    def attribute(self, number: int, device: int) -> int:
        """Return a numeric attribute of a GPU, or 0 if this runtime does not know the attribute."""
        found = ctypes.c_int(0)
        asked = _HIP_ATTRIBUTES[number] if self.is_hip else number
        return found.value if self.function("DeviceGetAttribute")(ctypes.byref(found), asked, device) == 0 else 0

    def capability(self, device: int) -> tuple[int, int]:
        """Return the compute capability, such as (9, 0)."""
        return self.attribute(_MAJOR, device), self.attribute(_MINOR, device)

    def l2_bytes(self, device: int) -> int:
        """Return the bytes of the L2 cache, or 0 if unknown."""
        return self.attribute(_L2_BYTES, device)

    def bus(self, device: int) -> str:
        """Return a GPU's PCI address."""
        room = ctypes.create_string_buffer(32)
        self._call("DeviceGetPCIBusId", room, len(room), device)
        return room.value.decode(errors="replace").lower()

    def name(self, device: int) -> str:
        """Return a GPU's name.

        In all versions of the runtime, the name is the first field of the properties structure.
        """
        room = ctypes.create_string_buffer(_PROPERTIES_BYTES)
        for version in ("_v2", "R0600", ""):
            try:
                self._call(f"GetDeviceProperties{version}", room, device)
            except AttributeError:
                continue
            return room.raw[:_NAME_BYTES].split(b"\0")[0].decode(errors="replace")
        return "unknown"

    def versions(self) -> tuple[str, str]:
        """Return the version of the runtime and the newest runtime version that the driver supports."""
        numbers = self._number("RuntimeGetVersion"), self._number("DriverGetVersion")
        if self.is_hip:
            return str(numbers[0]), str(numbers[1])
        runtime, driver = (f"{number // 1000}.{number % 1000 // 10}" for number in numbers)
        return runtime, driver


class NcclLibrary:
    """NCCL or RCCL. If a call fails, the methods raise NcclFailure."""

    def __init__(self, library: Any, path: str) -> None:
        self._library, self.path = library, path
        library.ncclGetErrorString.restype = ctypes.c_char_p
        library.ncclCommInitRank.argtypes = (ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int)

    def address(self, name: str) -> int:
        """Return the address of a function. Raises AttributeError."""
        return int(ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0)

    def version(self) -> tuple[int, ...]:
        """Return NCCL's version as numbers, such as (2, 30, 7)."""
        number = ctypes.c_int(0)
        self._check(self._library.ncclGetVersion(ctypes.byref(number)))
        return number.value // 10_000, number.value // 100 % 100, number.value % 100

    def new_id(self) -> bytes:
        """Return an id. Ranks that use the same id together make one communicator."""
        made = UniqueId()
        self._check(self._library.ncclGetUniqueId(ctypes.byref(made)))
        return bytes(memoryview(made))

    def init(self, num_ranks: int, unique_id: bytes, rank: int, config: ctypes.Structure | None = None) -> int:
        """Make a communicator, together with the other ranks.

        `config`: a structure from _nccl_options, or None for NCCL's defaults.
        """
        comm = ctypes.c_void_p()
        given = ctypes.byref(comm), num_ranks, UniqueId.from_buffer_copy(unique_id), rank
        if config is None:
            self._check(self._library.ncclCommInitRank(*given))
        else:
            self.call("ncclCommInitRankConfig", *given, ctypes.byref(config))
        return int(comm.value or 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of NCCL that older versions lack. Raises NcclFailure if the function fails or is missing."""
        function = getattr(self._library, name, None)
        if function is None:
            raise NcclFailure(f"this NCCL has no {name}")
        self._check(function(*arguments))

    def destroy(self, comm: int) -> None:
        """Free a communicator, together with the other ranks."""
        self._check(self._library.ncclCommDestroy(ctypes.c_void_p(comm)))

    def abort(self, comm: int) -> None:
        """Free a communicator without the other ranks, and cancel the calls that still use it."""
        self._library.ncclCommAbort(ctypes.c_void_p(comm))

    def words(self, code: int) -> str:
        """Return NCCL's text for an error. If this version of NCCL reports its last warning, add the warning."""
        words = (self._library.ncclGetErrorString(code) or b"").decode(errors="replace")
        last = getattr(self._library, "ncclGetLastError", None)
        if last is None:
            return words
        last.restype = ctypes.c_char_p
        more = (last(None) or b"").decode(errors="replace").strip()
        return f"{words}: {more}" if more else words

    def _check(self, code: int) -> None:
        if code != 0:
            raise NcclFailure(f"NCCL error {code}: {self.words(code)}")


def load() -> tuple[Runtime, NcclLibrary]:
    """Load the CUDA runtime and NCCL. If NVIDIA's libraries are not installed, load HIP and RCCL.

    The search order is: a library that this process has already loaded, LD_LIBRARY_PATH, the Python package, the
    system. Raises NotInstalledError if the libraries are missing.
    """
    failure: Exception | None = None
    for vendor in _VENDORS:
        try:
            nccl, path = _first((vendor.nccl,), vendor.packages)
            runtime, _ = _first(vendor.runtimes, vendor.packages)
        except OSError as error:
            failure = failure or error
            continue
        return Runtime(runtime, vendor.prefix), NcclLibrary(nccl, path)
    raise NotInstalledError(
        f"NCCL and its CUDA runtime were not found here ({failure}): pip install nvidia-nccl-cu13 nvidia-cuda-runtime, "
        "or set LD_LIBRARY_PATH to their folders"
    )


def _first(names: Sequence[str], packages: Sequence[str]) -> tuple[Any, str]:
    """Return the first library of the list that can be loaded, and where the library was found. Raises OSError."""
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW), name
    folders = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    for path in (folder / name for folder in (*folders, *_in_packages(packages)) for name in names):
        if path.exists():
            return ctypes.CDLL(str(path)), str(path)
    for name in names[:-1]:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name), name
    return ctypes.CDLL(names[-1]), names[-1]


def _in_packages(packages: Sequence[str]) -> Iterator[Path]:
    for package in packages:
        with contextlib.suppress(ModuleNotFoundError):
            found = importlib.util.find_spec(package)
            if found is not None:
                yield from (Path(folder) / "lib" for folder in found.submodule_search_locations or ())
