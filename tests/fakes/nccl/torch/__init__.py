"""torch as it would be on a machine with GPUs, for tests without one: real torch, its CUDA played by the CPU.

First on PYTHONPATH, it loads the real torch and puts itself behind it. The backend "nccl" is Gloo, device memory is
host memory, a stream is a thread (`_streams.py`), a captured graph a list of calls that ran nothing yet. What NCCL
prints goes where NCCL_DEBUG_FILE says. Only what the transports use is there; everything else of CUDA fails as it does
without a GPU.

FAKE_GPUS: how many. FAKE_GPU_BYTES: memory of each. FAKE_FULL_RANK: the rank whose GPU has 1 MiB left.
FAKE_BROKEN_RANK: the one whose GPU another process has alone. FAKE_LOST_RANK: the one for which NCCL can not be opened.
FAKE_NCCL_NETWORK: between ranks ("" for none). FAKE_NCCL_VERSION. FAKE_NO_CAPTURE: sends can not be captured.
FAKE_NO_PEERS: GPUs cannot reach each other. FAKE_NO_MULTICAST: no GPU has multicast.
FAKE_CALL_S: seconds that each call of the library takes at least, on its stream.
FAKE_LOG: a file in which each rank says what it was asked for.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_HERE = Path(__file__).resolve().parent.parent
_path = sys.path[:]
sys.path[:] = [entry for entry in _path if Path(entry or ".").resolve() != _HERE]
sys.modules.pop("torch")
if "torch behind another" in sys.modules:  # loaded before this rank was forked (tests/warm_ranks.py)
    sys.modules["torch"] = sys.modules.pop("torch behind another")
real: Any = importlib.import_module("torch")
importlib.import_module("torch.distributed")
sys.path[:] = _path
cuda, dist = real.cuda, real.distributed

_GPUS = 0 if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else int(os.environ.get("FAKE_GPUS", "2"))
_GPU_BYTES = int(os.environ.get("FAKE_GPU_BYTES", str(64 << 30)))
_RANK = int(os.environ.get("RANK", "0"))
_NETWORK = os.environ.get("FAKE_NCCL_NETWORK", "")
_VERSION = tuple(int(part) for part in os.environ.get("FAKE_NCCL_VERSION", "2.28.9").split("."))
_CYCLES_PER_S = 1e9  # of a spinning kernel
_captured: list[Callable[[], Any]] | None = None
_output: tuple[str, str] | None = None  # file and subsystems, as they were when NCCL began


def _log(*words: Any) -> None:
    if "FAKE_LOG" in os.environ:
        with Path(os.environ["FAKE_LOG"]).open("a", encoding="utf-8") as file:
            file.write(" ".join(map(str, (f"rank{_RANK}", *words))) + "\n")


def _info(words: str) -> None:
    if _output is not None:
        with Path(_output[0]).open("a", encoding="utf-8") as file:
            file.write(f"desk:{os.getpid()}:{os.getpid()} [0] NCCL INFO {words}\n")


# ---------------------------------------------------------------------------------------------- memory

_full, _empty = real.full, real.empty


def _has_room(num_bytes: int) -> None:
    most = 1 << 20 if os.environ.get("FAKE_FULL_RANK") == str(_RANK) else _GPU_BYTES
    if num_bytes > most:
        _log("out of memory", num_bytes)
        raise cuda.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num_bytes} bytes")


def full(size: Any, value: Any, *, device: Any = None, **rest: Any) -> Any:
    """On a GPU: in host memory."""
    return _full(size, value, **rest)


def empty(*size: Any, device: Any = None, pin_memory: bool = False, dtype: Any = None) -> Any:
    """Pinned or on a GPU: in host memory, and no more than the GPU has."""
    on_gpu = getattr(device, "type", None) == "cuda"
    if on_gpu:
        _has_room(size[0] * dtype.itemsize)
    made = _empty(*size, dtype=dtype)
    if on_gpu:
        made.record_stream = lambda stream: None
    return made


class _Tensor:
    """Ways of a tensor to another memory."""

    to = real.Tensor.to


def _to(self: Any, *where: Any, **rest: Any) -> Any:
    if getattr(where[0] if where else rest.get("device"), "type", None) == "cuda":
        return self.clone()
    return _Tensor.to(self, *where, **rest)


class _Future(real.futures.Future):  # type: ignore[misc]  # Any to mypy
    """Of tensors on GPUs, which must be named."""

    __class_getitem__ = classmethod(lambda cls, item: cls)

    def __init__(self, *, devices: Any = None) -> None:
        assert devices is None or all(device.type == "cuda" for device in devices)
        super().__init__()


real.full, real.empty, real.Tensor.to = full, empty, _to
real.Tensor.pin_memory = real.Tensor.clone
real.futures.Future = _Future

# ---------------------------------------------------------------------------------------------- CUDA

_spec: Any = importlib.util.spec_from_file_location("_fake_streams", Path(__file__).with_name("_streams.py"))
_streams: Any = importlib.util.module_from_spec(_spec)  # `torch` is the real one's name now
_spec.loader.exec_module(_streams)
Event, Stream = _streams.Event, _streams.Stream


class CUDAGraph:
    """Calls that were captured, each with the tensors it had then."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []

    def replay(self) -> None:
        """Run them on the current stream."""
        for call in self.calls:
            _streams.current().put(call)

    def reset(self) -> None:
        """Forget them."""
        _log("graph released")
        self.calls = []


@contextlib.contextmanager
def graph(into: CUDAGraph, stream: Any = None, capture_error_mode: str = "global") -> Iterator[None]:
    """Calls of the library are kept and not run until the end."""
    global _captured
    assert capture_error_mode == "thread_local", "NCCL's watchdog would break a global capture"
    assert stream is not None and stream.is_idle(), "work from before the capture could become part of it"
    _captured = into.calls
    try:
        with _streams.using(stream):
            yield
    finally:
        _captured = None
    _log("captured", len(into.calls))


def set_device(device: Any) -> None:
    """Its context is made now."""
    if os.environ.get("FAKE_BROKEN_RANK") == str(_RANK):
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nCUDA kernel errors might ...")
    _log("device", device)


for _name, _value in {
    "is_available": lambda: _GPUS > 0,
    "device_count": lambda: _GPUS,
    "set_device": set_device,
    "synchronize": _streams.synchronize,
    "_sleep": lambda cycles: _streams.current().put(lambda: _streams.time.sleep(cycles / _CYCLES_PER_S)),
    "reset_peak_memory_stats": lambda device: None,
    "max_memory_allocated": lambda device: 3 << 20,
    "max_memory_reserved": lambda device: 4 << 20,
    "get_rng_state": lambda device=None: real.get_rng_state(),
    "set_rng_state": lambda state, device=None: None,
    "empty_cache": lambda: _log("cache emptied"),
    "mem_get_info": lambda device: (_GPU_BYTES, _GPU_BYTES),
    "get_device_name": lambda device: "Fake GPU",
    "get_device_capability": lambda device: (9, 0),
    "get_device_properties": lambda device: SimpleNamespace(uuid=f"0000-{device.index}", L2_cache_size=1 << 20),
    "current_stream": lambda device=None: _streams.current(),
    "default_stream": lambda device: _streams.DEFAULT,
    "set_stream": _streams.set_current,
    "stream": _streams.using,
    "Event": Event,
    "Stream": Stream,
    "CUDAGraph": CUDAGraph,
    "graph": graph,
    "nccl": SimpleNamespace(version=lambda: _VERSION),
}.items():
    setattr(cuda, _name, _value)
real.version.cuda = None if os.environ.get("FAKE_HIP") else "13.0"
real.version.hip = os.environ.get("FAKE_HIP")

# ---------------------------------------------------------------------------------------------- NCCL

_init, _new_group = dist.init_process_group, dist.new_group
_summed, _gathered = dist.all_reduce, dist.all_gather
_groups: dict[str, Any] = {}
_on_host: list[Any] = []  # groups of Gloo itself, which have no stream


def init_process_group(backend: str, device_id: Any = None, **rest: Any) -> None:
    """NCCL reads its variables now, and says what it finds."""
    global _output
    if backend == "gloo":
        _init(backend, **rest)
        return
    assert backend == "nccl" and device_id.type == "cuda" and device_id.index is not None
    _log(*(f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith("NCCL_")))
    if os.environ.get("NCCL_DEBUG") == "INFO" and "NCCL_DEBUG_FILE" in os.environ:
        _output = os.environ["NCCL_DEBUG_FILE"], os.environ.get("NCCL_DEBUG_SUBSYS", "INIT")
    if os.environ.get("FAKE_LOST_RANK") == str(_RANK):
        raise RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:1, unhandled cuda error\nLast error:")
    _init("gloo", **rest)
    _groups[dist.group.WORLD.group_name] = dist.group.WORLD
    _info(f"Using network {_NETWORK or 'Socket'}")
    _info("4 coll channels, 4 collnet channels, 0 nvls channels, 8 p2p channels, 2 p2p channels per peer")
    path = f"[send] via NET/{_NETWORK}/0/GDRDMA" if _NETWORK else "via P2P/CUMEM/read"
    _info(f"Channel 00/0 : {_RANK}[0] -> {1 - _RANK}[1] {path}")


def new_group(ranks: Any = None, backend: str | None = None, **rest: Any) -> Any:
    """Groups of NCCL are groups of Gloo with a stream of their own, as in torch."""
    own = backend not in (None, "nccl", "gloo")
    made = _new_group(ranks, backend=backend if own else "gloo", **rest)
    if own or backend == "gloo":
        _on_host.append(made)
    elif hasattr(made, "group_name"):
        _groups[made.group_name] = made
        made = _streams.GroupStream.around(made, lambda name: _new_group(ranks, backend=name, **rest))
    elif ranks is not None:
        _new_group(ranks, backend=_streams.GroupStream.register(), **rest)
    return made


def _kept(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """A call of the library goes to the current stream, or into the graph that is captured: then nothing runs."""

    def run(*args: Any, **rest: Any) -> Any:
        batched = args[0][0].group if name == "batch_isend_irecv" else None
        if isinstance(batched, _streams.GroupStream) and _captured is None:
            return [batched.batch(args[0])]
        if any((batched or rest.get("group")) is group for group in _on_host):
            return call(*args, **rest)
        if isinstance(rest.get("group"), _streams.GroupStream):
            rest["group"] = rest["group"].plain  # put on the current stream below
        if _captured is not None:
            if name == "batch_isend_irecv" and "FAKE_NO_CAPTURE" in os.environ:
                raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
            _captured.append(lambda: _replayed(lambda: call(*args, **rest)))
            return [] if name == "batch_isend_irecv" else None
        if name == "all_reduce" and _output is not None and "TUNING" in _output[1] and _RANK == 0:
            num_bytes = args[0].numel() * args[0].element_size()
            _info(f"AllReduce: {num_bytes} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..1}}")
        return _streams.carry_out(name, call, args, rest)

    return run


def _replayed(call: Callable[[], Any]) -> None:
    _streams.take_time()
    for work in call() or ():
        work.wait()


for _name in dir(dist):
    if re.fullmatch(
        r"all_reduce|reduce|broadcast|gather|scatter|all_to_all_single|batch_isend_irecv|reduce_scatter_"
        r"(single|tensor)|all_gather_(single|into_tensor)",
        _name,
    ):
        setattr(dist, _name, _kept(_name, getattr(dist, _name)))
for _name in ("_verify_params_across_processes", "_broadcast_coalesced"):
    setattr(dist, _name, _streams.in_cpp(getattr(dist, _name)))
dist.init_process_group, dist.new_group = init_process_group, new_group
dist.is_nccl_available = lambda: True

# ---------------------------------------------------------------------------------------------- symmetric memory

_shared: dict[int, int] = {}  # address of an allocation -> its bytes
_mapped: set[tuple[int, str]] = set()
cuda.can_device_access_peer = lambda one, other: "FAKE_NO_PEERS" not in os.environ


def _symmetric_empty(num_bytes: int, *, dtype: Any, device: Any) -> Any:
    """Memory that peers may map: its address is kept."""
    assert device.type == "cuda" and dtype == real.uint8
    _has_room(num_bytes)
    made = _empty(num_bytes, dtype=dtype)
    _shared[made.untyped_storage().data_ptr()] = num_bytes
    return made


def _rendezvous(tensor: Any, group: Any) -> None:
    """All ranks come with equal sizes, at equal places."""
    address = tensor.untyped_storage().data_ptr()
    assert address in _shared, "not allocated by symm_mem.empty()"
    mine = real.tensor([_shared[address], tensor.storage_offset()])
    others = [real.empty_like(mine) for _ in range(dist.get_world_size(group))]
    _gathered(others, mine, group=group)
    if any(not real.equal(mine, other) for other in others):
        raise RuntimeError("symmetric memory: sizes or offsets differ between ranks")
    _mapped.add((address, group.group_name))


def _reduced(kind: str, tensor: Any, operation: str, name: str, out: Any) -> None:
    """What torch's kernels check, then the sum by Gloo on the current stream."""
    assert (tensor.untyped_storage().data_ptr(), name) in _mapped, f"{kind}: no rendezvous"
    if operation != "sum":
        raise RuntimeError(f"{kind}: only sum is supported for now.")
    if tensor.dtype not in (real.float32, real.bfloat16) or tensor.numel() * tensor.element_size() % 4:
        raise RuntimeError(f"{kind}: not implemented for {tensor.dtype}")
    group = _groups[name]
    _log("symmetric", kind, tensor.numel())

    def call() -> None:
        if out is None:
            _summed(tensor, group=group)
        else:
            assert out.shape == tensor.shape and out.data_ptr() != tensor.data_ptr()
            held = tensor.clone()
            _summed(held, group=group)
            out.copy_(held)

    if _captured is not None:
        _captured.append(call)
    else:
        _streams.carry_out(kind, call, (), {})


class _Kernels:
    """torch.ops.symm_mem."""

    @staticmethod
    def one_shot_all_reduce_out(tensor: Any, operation: str, name: str, out: Any) -> None:
        _reduced("one-shot", tensor, operation, name, out)

    @staticmethod
    def multimem_one_shot_all_reduce_out(tensor: Any, operation: str, name: str, out: Any) -> None:
        assert "FAKE_NO_MULTICAST" not in os.environ
        _reduced("multimem-one-shot", tensor, operation, name, out)

    @staticmethod
    def two_shot_all_reduce_(tensor: Any, operation: str, name: str) -> None:
        _reduced("two-shot", tensor, operation, name, None)

    @staticmethod
    def multimem_all_reduce_(tensor: Any, operation: str, name: str) -> None:
        assert "FAKE_NO_MULTICAST" not in os.environ
        _reduced("multimem", tensor, operation, name, None)


if "FAKE_NO_SYMMETRIC" not in os.environ:
    _symmetric: Any = importlib.import_module("torch.distributed._symmetric_memory")
    _symmetric.empty, _symmetric.rendezvous = _symmetric_empty, _rendezvous
    _symmetric._SymmetricMemory = SimpleNamespace(
        has_multicast_support=lambda kind, index: "FAKE_NO_MULTICAST" not in os.environ
    )
    real.ops.symm_mem = _Kernels
else:
    real.ops.symm_mem = SimpleNamespace()
