"""Copies of CUDA through CuPy: between a host and its GPU, within a GPU, from GPU to GPU; nobody answers them.

The copy engine (memcpyAsync) or a kernel of ours copies. Device events time it, and batches wait behind a gate until
all their copies are in the GPU's queue, so that no Python is in their time; copies from and to pageable memory hold up
the host, whose clock then tells. Ranks agree over MPI or Gloo, apart from the copies; one rank needs neither.
"""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any, Literal

from bench.core.errors import RefusedError
from bench.core.program import Copies, Copy, Group, Product, Round, Step
from bench.core.transport import Buffers, Compiled, Options, Reduction, Timing, Transport, Which
from bench.core.world import Place
from bench.transports import _control, _cuda_device, _cuda_ipc, _cuda_kernels, _cuda_memory, _device
from bench.transports._cuda_gate import MOST_CALLS, Gate
from bench.transports._cuda_memory import HOST, CudaBuffers
from bench.transports._cuda_program import Issue, Program

_NON_BLOCKING = 1  # cudaStreamNonBlocking: does not wait for the default stream
_ANY_KIND, _TO_DEVICE, _TO_HOST = 4, 1, 2  # cudaMemcpyKind
_RESERVE_BYTES = 1 << 30  # of the GPU's memory: for contexts, and for what a check brings along
_STIR_BYTES, _STIR_S, _MOST_STIRS = 16 << 20, 0.2, 1000


class CudaCopy(Transport):
    """One rank per GPU, its copies on streams of its own."""

    clock: Literal["host", "device", "virtual"] = "device"
    launcher = "torchrun"
    requires = ("cupy",)
    carries_messages = False
    num_threads = 2  # two directions of pageable memory are copied by two threads

    def __init__(self, place: Place, options: Options) -> None:
        """Choose the GPU of this rank, meet the other ranks, compile the kernels.

        Raises RefusedError without CuPy, a driver or GPUs enough, and when ranks share a GPU that were not asked to.
        """
        self.place, self._options = place, options
        self._cupy = _cuda_device.load_cupy()
        self._runtime: Any = self._cupy.cuda.runtime
        index = _cuda_device.choose(self._cupy, place, options.share_gpu)
        self._device = _cuda_device.take(self._cupy, index)
        self._control = _control.open_control(place, options)
        self.channel = self._control.channel
        self._shared = self._meet()
        self._pinned = options.memory == "pinned"
        if not self._pinned:
            self.clock = "host"
        self._streams: list[int] = []
        self._opened = _cuda_ipc.Opened(self._runtime)
        self._offered: CudaBuffers | None = None  # alive as long as another rank may reach it
        self._group, self._unreachable = Group("world", tuple(range(place.num_ranks))), ""
        self._stirring: tuple[CudaBuffers, int] | None = None
        self._no_kernels = self._open_kernels()
        self._compares = self._no_kernels is None and _device.compares(self._cupy)
        self._gate: Gate | None = None
        self._no_gate = self._open_gate()

    # -- opening and closing

    def _meet(self) -> bool:
        """Does this rank share its GPU with another one? Refused on all ranks alike where nobody asked for it."""
        self._host = socket.gethostname()
        mine = (self._host, self._device.bus, self._device.uuid)
        self._owners: list[tuple[str, str, str]] = self.channel.share(mine)
        shared = _cuda_device.shared_by(self._owners)
        if shared is not None and not self._options.share_gpu:
            raise RefusedError(
                f"ranks {shared[0]} and {shared[1]} are on the same GPU ({self._owners[shared[0]][1]} of "
                f"{self._owners[shared[0]][0]}): start one rank per GPU, set CUDA_VISIBLE_DEVICES of each rank to its "
                "own, or try it out with --share-gpu 1"
            )
        return self._owners.count(mine) > 1

    def _open_kernels(self) -> str | None:
        """Compile the copying kernel and launch it once, on nothing; or why no rank has one.

        CUDA loads a kernel when it is first launched, and may wait for the whole GPU then: never behind a gate.
        """
        reason = None
        try:
            self._copy = _cuda_kernels.copy_kernel(self._cupy)
            on = _cuda_kernels.OnStream(self._stream(0))
            self._copy((1,), (_cuda_kernels.THREADS,), _cuda_kernels.numbers(0, 0, 0), stream=on)
            self._runtime.streamSynchronize(on.ptr)
        except Exception as error:  # NVRTC may be missing, or too old for the GPU: CuPy tells it in many ways
            reason = f"CuPy can not compile kernels here ({_first_line(error)})"
        return self._of_any(reason)

    def _open_gate(self) -> str | None:
        """The gate on every rank or on none: ranks that time differently can not be compared."""
        reason = self._no_kernels
        if reason is None and os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
            reason = "CUDA_LAUNCH_BLOCKING makes every launch wait"
        if reason is None and self._pinned:
            try:
                self._gate = Gate(self._cupy)
                self._gate.warm(self._stream(0))
            except Exception as error:
                reason = f"its kernel does not start ({_first_line(error)})"
        reason = self._of_any(reason)
        if reason is not None:
            self._gate = None
            self.notes = (f"batches are not held back by a gate ({reason}): their time holds the issuing of copies",)
        return reason

    def _of_any(self, reason: str | None) -> str | None:
        """The first reason of any rank, on all of them."""
        return next((other for other in self.channel.share(reason) if other is not None), None)

    def close(self) -> None:
        """Nobody leaves while another still copies from or to its memory."""
        self._runtime.deviceSynchronize()
        self._opened.close()
        self._control.barrier()
        self._control.close()

    def abort(self, exit_code: int) -> None:
        """End the other ranks where the control plane can."""
        self._control.abort(exit_code)

    def lost_contact(self, error: BaseException) -> bool:
        """As the control plane tells it: copies themselves wait for nobody."""
        return self._control.lost_contact(error)

    # -- what this machine is

    def facts(self) -> dict[str, str]:
        """Versions, the GPU of this rank, who reaches whom, and where host memory lies."""
        runtime, engines, peak = self._runtime, self._device.copy_engines, self._device.memory_bytes_per_s
        return {
            "cupy": str(self._cupy.__version__),
            "cuda": _version(runtime.runtimeGetVersion()),
            "cuda_driver": _version(runtime.driverGetVersion()),
            "gpu": self._device.name,
            "gpu_pci_bus": self._device.bus,
            "gpu_cache_bytes": str(self._device.l2_bytes),
            "gpu_memory_peak_bytes_per_s": "unknown" if peak is None else f"{peak:.4g}",
            "copy_engines": "unknown" if engines is None else str(engines),
            "peer_access": _cuda_device.peers(runtime),
            "host_memory": f"{self._options.memory}, {self._beside()}",
            "batches": "behind a gate" if self._gate is not None else f"not behind a gate ({self._no_gate})"
            if self._pinned else "on the host's clock",
            "control_plane": self._control.name,
        }  # fmt: skip

    def _beside(self) -> str:
        near = self._options.near_cpus
        cpus = near(self._device.bus) if near is not None else ()
        return f"touched on CPUs {_spans(cpus)}, beside the GPU" if cpus else "where this process runs"

    def supports(self, step: Step, reduction: Reduction, in_place: bool) -> str | None:
        """Copies alone; kernels only between GPUs' memories."""
        if isinstance(step, Product):
            return "cuda_copy only copies"
        if not isinstance(step, Copies):
            return "cuda_copy has no messages between ranks, only copies that nobody answers: nccl and mpi_cuda have"
        if self._options.engine == "sm":
            if any(None in (copy.source_on, copy.target_on) for copy in step.copies):
                return "a kernel copies from GPU to GPU here, not from or to the host: leave --engine sm out"
            return self._no_kernels
        return None

    def available_bytes(self) -> int:
        """Free memory of this rank's GPU, less a reserve; an equal part of it where the GPU is shared."""
        free, _ = self._runtime.memGetInfo()
        sharers = self._owners.count(self._owners[self.place.rank])
        return max(0, int(free) - _RESERVE_BYTES) // sharers

    def cache_bytes(self) -> int | None:
        """The GPU's L2."""
        return self._device.l2_bytes or None

    def stir(self) -> None:
        """Copies to the GPU for about a fifth of a second, on a stream that nothing else uses."""
        runtime = self._runtime
        if self._stirring is None:
            step = Copies((Copy(0, 0, _STIR_BYTES, None, 0),))
            alone = Group("alone", (self.place.rank,))
            buffers = self._new_buffers(_STIR_BYTES, _STIR_BYTES, 1, (step,), alone, True)
            self._stirring = (buffers, runtime.streamCreateWithFlags(_NON_BLOCKING))
        buffers, stream = self._stirring
        source, target = (buffers.address(side, 0, 0, _STIR_BYTES)[1] for side in ("send", "recv"))
        begin = perf_counter()
        runtime.memcpyAsync(target, source, _STIR_BYTES, _TO_DEVICE, stream)
        runtime.streamSynchronize(stream)
        one_s = max(perf_counter() - begin, 1e-6)
        for _ in range(min(_MOST_STIRS, int(_STIR_S / one_s))):
            runtime.memcpyAsync(target, source, _STIR_BYTES, _TO_DEVICE, stream)

    # -- memory

    def open_groups(self, groups: Round) -> None:
        """Remember mine: buffers may lie on the GPU of another member.

        No memory is given back before every rank has stopped reaching into it.
        """
        self._opened.close()
        self._control.barrier()
        self._offered = None
        alone = Group("alone", (self.place.rank,))
        self._group = next((group for group in groups if self.place.rank in group.ranks), alone)

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        """Buffers where the copies of `steps` say, all written; on this rank's GPU where they say nothing."""
        self._unreachable = ""
        make = partial(self._new_buffers, send_bytes, recv_bytes, num_sets, steps, self._group, self._pinned)
        try:
            return make()
        except MemoryError:
            gc.collect()  # a row before may have left a circle of references to its buffers
            return make()

    def _new_buffers(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...], group: Group,
                     pinned: bool) -> CudaBuffers:  # fmt: skip
        member = group.ranks.index(self.place.rank)
        where = _cuda_memory.layout(send_bytes, recv_bytes, member, steps, partial(self._device_of, group))

        def block(place: int, num_bytes: int) -> _cuda_memory.Block:
            if place != HOST:
                by_kernels = place == self._device.index and self._compares
                return _cuda_memory.DeviceBlock(self._cupy, place, num_bytes, by_kernels)
            return _cuda_memory.HostBlock(self._runtime, num_bytes, pinned)

        with _cuda_device.near(self._device.bus, self._options.near_cpus):
            return CudaBuffers(send_bytes, recv_bytes, num_sets, where, block)

    def _device_of(self, group: Group, member: int) -> int:
        """The GPU of a member as CUDA numbers it in this process; one that it does not see is told by `share`."""
        rank = group.ranks[member]
        if rank == self.place.rank:
            return self._device.index
        for index in range(int(self._runtime.getDeviceCount())):
            seen = _cuda_device.describe(self._cupy, index)
            if (self._host, seen.bus, seen.uuid) == self._owners[rank]:
                return index
        self._unreachable = (
            f"rank {self.place.rank} does not see the GPU of rank {rank} ({self._owners[rank][1]} of "
            f"{self._owners[rank][0]}): give all ranks of a host the same CUDA_VISIBLE_DEVICES, or leave "
            "--via process out"
        )
        return self._device.index

    def share(self, buffers: Buffers | None, steps: tuple[Step, ...] = ()) -> str | None:
        """Handles of all buffers to all ranks; those that this rank's copies name are opened.

        Returns why they can not be, in words.
        """
        self._opened.close()
        mine = None
        if isinstance(buffers, CudaBuffers) and len(self._group.ranks) > 1:
            mine = _cuda_ipc.offer(self._runtime, buffers, self._device.index, self._host)
        offers: list[_cuda_ipc.Offer | None] = self.channel.share(mine)
        self._offered = buffers if mine is not None else None  # type: ignore[assignment]
        if not isinstance(buffers, CudaBuffers):
            return None
        if self._unreachable:
            return self._unreachable
        for copy in _copies(steps):
            for member in (copy.source, copy.target):
                rank = self._group.ranks[member]
                if rank != self.place.rank:
                    reason = self._opened.open(rank, offers[rank], self._host)
                    if reason is not None:
                        return reason
        return self._no_peer_kernel(buffers, steps)

    def _no_peer_kernel(self, buffers: CudaBuffers, steps: tuple[Step, ...]) -> str | None:
        """Why a kernel can not reach the other GPU of this process; None where it can, or none is asked for."""
        if self._options.engine != "sm":
            return None
        for copy in _copies(steps):
            for place in self._places(self._group, buffers, copy):
                if place != self._device.index and not self._reaches(place):
                    return (
                        f"GPU {self._device.index} does not reach the memory of GPU {place}, so no kernel of it can "
                        "copy there: --engine ce goes through the host"
                    )
        return None

    def _reaches(self, other: int) -> bool:
        return other == self._device.index or _cuda_device.enable_peer(self._runtime, self._device.index, other)

    def _places(self, group: Group, buffers: CudaBuffers, copy: Copy) -> list[int]:
        """Where the ends of a copy lie that are in buffers of this rank."""
        ends: tuple[tuple[Which, int, int], ...] = (
            ("send", copy.source, copy.source_offset), ("recv", copy.target, copy.target_offset)
        )  # fmt: skip
        return [
            buffers.layout.find(side, 0, offset, copy.num_bytes)[0]
            for side, member, offset in ends
            if group.ranks[member] == self.place.rank
        ]

    # -- programs

    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """Each copy with its arguments bound, on a stream of its own; ends of other ranks must have been shared."""
        assert isinstance(buffers, CudaBuffers)
        copies = _copies(steps)
        flags = ("shared_gpu",) if self._shared else ()
        if not copies:
            return Compiled([_nothing] * buffers.num_sets, keep=[buffers], flags=flags)
        streams = [self._stream(j) for j in range(len(copies))]
        staged = any(self._is_staged(group, buffers, copy) for copy in copies)
        issues = [
            [self._issue(copy, group, buffers, index, stream) for copy, stream in zip(copies, streams, strict=True)]
            for index in range(buffers.num_sets)
        ]
        # A copy that the driver takes through the host's memory may need the host while it runs: no gate before it.
        program = Program(self._runtime, self._device.index, streams, issues, self._gate is not None and not staged)

        def release() -> None:
            program.close()
            self._opened.close()

        return Compiled(
            [partial(program.run, index) for index in range(buffers.num_sets)],
            keep=[buffers],
            release=release,
            native=program,
            flags=(*flags, "through-host") if staged else flags,
        )

    def _is_staged(self, group: Group, buffers: CudaBuffers, copy: Copy) -> bool:
        """Between two GPUs of this process that do not reach each other?"""
        return any(place != HOST and not self._reaches(place) for place in self._places(group, buffers, copy))

    def _issue(self, copy: Copy, group: Group, buffers: CudaBuffers, index: int, stream: int) -> Issue:
        source_on, source = self._end(group, buffers, "send", index, copy.source, copy.source_offset, copy.num_bytes)
        target_on, target = self._end(group, buffers, "recv", index, copy.target, copy.target_offset, copy.num_bytes)
        size, runtime = copy.num_bytes, self._runtime
        if self._options.engine == "sm":
            assert source % 16 == target % 16 == 0, "every part of a buffer begins at a multiple of 16 bytes"
            grid = (_cuda_kernels.copy_grid(size, self._device.num_sms),)
            arguments = _cuda_kernels.numbers(source, target, size)
            on = _cuda_kernels.OnStream(stream)
            return partial(self._copy, grid, (_cuda_kernels.THREADS,), arguments, stream=on)
        if HOST not in (source_on, target_on) and source_on != target_on:
            return partial(runtime.memcpyPeerAsync, target, target_on, source, source_on, size, stream)
        kind = _TO_DEVICE if source_on == HOST else _TO_HOST if target_on == HOST else _ANY_KIND
        return partial(runtime.memcpyAsync, target, source, size, kind, stream)

    def _end(self, group: Group, buffers: CudaBuffers, side: Which, index: int, member: int, offset: int,
             num_bytes: int) -> tuple[int, int]:  # fmt: skip
        """(place, address) of one end of a copy; memory of another process counts as this rank's own GPU's: what opened
        it is this GPU, and CUDA knows by the address where it lies."""
        rank = group.ranks[member]
        if rank == self.place.rank:
            return buffers.address(side, index, offset, num_bytes)
        return self._device.index, self._opened.address(rank, side, index, offset, num_bytes)

    def _stream(self, j: int) -> int:
        while len(self._streams) <= j:
            self._streams.append(self._runtime.streamCreateWithFlags(_NON_BLOCKING))
        return self._streams[j]

    # -- timing

    def sync(self) -> None:
        """This rank's GPU is idle, then all ranks wait for each other on the host."""
        self._runtime.deviceSynchronize()
        self._control.barrier()

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Isolated copies between events; on the host's clock from and to pageable memory."""
        taken = []
        for _ in range(num_calls):
            order = _next_sets(compiled, 1)
            self.sync()
            taken.append(self._timed(compiled, order))
        return _timing(compiled, taken, self.clock)

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Copies back to back, as many at a time as a queue holds, each such part behind a gate."""
        order = _next_sets(compiled, num_calls)
        parts = [(begin, min(begin + MOST_CALLS, num_calls)) for begin in range(0, num_calls, MOST_CALLS)]
        if self.clock == "host":
            parts = [(0, num_calls)]
        taken = []
        for begin, end in parts:
            self.sync()
            if self._is_gated(compiled):
                taken.append(self._behind_gate(compiled, order[begin:end]))
            else:
                self._control.barrier()
                taken.append(self._timed(compiled, order[begin:end]))
        device_s, host_s, enqueue_s = (sum(one) / num_calls for one in zip(*taken, strict=True))
        return _timing(compiled, [(device_s, host_s, enqueue_s)], self.clock)

    def _is_gated(self, compiled: Compiled | None) -> bool:
        return self._gate is not None and compiled is not None and compiled.native is not None and compiled.native.gated

    def _behind_gate(self, compiled: Compiled | None, order: Sequence[int]) -> _Taken:
        """All in the queue, all ranks there, then the gate opens. Nothing may wait for the GPU before that."""
        assert self._gate is not None and compiled is not None
        program: Program = compiled.native
        program.warm(order[0])
        ticket = self._gate.shut(program.streams[0])
        try:
            program.enqueue(order)
            self._control.barrier()
        finally:
            begin = perf_counter()
            self._gate.open(ticket)
        program.wait()
        host_s = perf_counter() - begin
        self._gate.check(ticket)
        return program.elapsed_s(), host_s, 0.0

    def _timed(self, compiled: Compiled | None, order: Sequence[int]) -> _Taken:
        """Seconds of copies as they are issued; nothing where this rank orders none."""
        if compiled is None or compiled.native is None:
            return 0.0, 0.0, 0.0
        program: Program = compiled.native
        if self.clock == "host":
            host_s = program.timed_by_host(order)
            return host_s, host_s, host_s
        return program.timed(order)


_Taken = tuple[float, float, float]  # seconds by events, by the host's clock, and of the issuing alone


def _next_sets(compiled: Compiled | None, num_calls: int) -> list[int]:
    """The buffer sets of the next calls, which are then the last ones used; also of a rank that orders nothing."""
    if compiled is None:
        return []
    num_sets = len(compiled.calls)
    order = [(compiled.next_set + k) % num_sets for k in range(num_calls)]
    compiled.last_set, compiled.next_set = order[-1], (order[-1] + 1) % num_sets
    return order


def _timing(compiled: Compiled | None, taken: Sequence[_Taken], clock: str) -> Timing:
    """A rank of a group that orders nothing took no time; one of no group has no samples."""
    if compiled is None:
        return Timing((), "python")
    device_s, host_s, enqueue_s = zip(*taken, strict=True)
    return Timing(device_s, "python", host_s, enqueue_s) if clock == "device" else Timing(host_s, "python")


def _copies(steps: tuple[Step, ...]) -> list[Copy]:
    return [copy for step in steps if isinstance(step, Copies) for copy in step.copies]


def _version(number: int) -> str:
    """13000 is 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _spans(cpus: Sequence[int]) -> str:
    """0, 1, 2, 8 as 0-2,8."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _nothing() -> None:
    pass


TRANSPORT = CudaCopy
