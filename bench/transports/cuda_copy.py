"""Copies of CUDA through CuPy: between a host and its GPU, within a GPU, from GPU to GPU; nobody answers them.

The copy engine (memcpyAsync) or a kernel of ours copies. Device events time it, and batches wait behind a gate until
all their copies are in the GPU's queue, so that no Python is in their time; copies from and to pageable memory hold up
the host, whose clock then tells. Ranks agree over MPI or Gloo, apart from the copies; one rank needs neither.
"""

from __future__ import annotations

import contextlib
import gc
import os
from functools import partial
from typing import Any, Literal

from bench.core.errors import RefusedError, first_line
from bench.core.program import Copy, CopyStep, Group, Product, Round, Step
from bench.core.record import THROUGH_HOST
from bench.core.traits import Traits
from bench.core.transport import Buffers, Compiled, Options, Reduction, Timing, Transport
from bench.core.world import RankInfo
from bench.transports import _control, _cuda_device, _cuda_facts, _cuda_issue, _cuda_kernels, _cuda_memory, _device
from bench.transports._cuda_gate import StreamGate
from bench.transports._cuda_memory import HOST, CudaBuffers
from bench.transports._cuda_program import CopyProgram, Issue
from bench.transports._cuda_reach import Reach, copies_of
from bench.transports._cuda_timing import CopyTimer, tried_gate

TRAITS = Traits(
    launcher="torchrun",
    requires=("cupy",),
    on_gpu=True,
    rendezvous=True,
    library_facts=("cuda", "cupy"),
)
_NON_BLOCKING = 1  # cudaStreamNonBlocking: does not wait for the default stream
_RESERVE_BYTES = 1 << 30  # of the GPU's memory: for contexts, and for what a check brings along
_TRIAL_BYTES = 1 << 20
_STIR_BYTES, _STIR_S = 16 << 20, 0.2


class CudaCopy(Transport):
    """One rank per GPU, its copies on streams of its own."""

    clock: Literal["host", "device", "virtual"] = "device"
    carries_messages = False
    num_threads = 2  # two directions of pageable memory are copied by two threads

    def __init__(self, place: RankInfo, options: Options) -> None:
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
        self._reach = self._meet()
        self._pinned = options.memory == "pinned"
        if not self._pinned:
            self.clock = "host"
        self._streams: list[int] = []
        self._alone = Group("alone", (place.rank,))
        self._group = Group("world", tuple(range(place.num_ranks)))
        self._stirring: Compiled | None = None
        self._no_kernels = self._open_kernels()
        self._compares = self._no_kernels is None and _device.compares(self._cupy)
        self._gate: StreamGate | None = None
        self._no_gate = self._open_gate()
        self._timer = CopyTimer(self.clock, self._gate, self.sync, self._control.barrier)

    # -- opening and closing

    def _meet(self) -> Reach:
        """Whose GPU is which. Ranks that share one are refused on all ranks alike where nobody asked for it."""
        reach = Reach(self._cupy, self.place, self._device, self.channel)
        shared = _cuda_device.shared_by(reach.owners)
        if shared is not None and not self._options.share_gpu:
            host, bus, _ = reach.owners[shared[0]]
            raise RefusedError(
                f"ranks {shared[0]} and {shared[1]} are on the same GPU ({bus} of {host}): start one rank per GPU, "
                "set CUDA_VISIBLE_DEVICES of each rank to its own, or try it out with --share-gpu 1"
            )
        return reach

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
        except Exception as error:  # NVRTC or CUDA's headers may be missing, or too old: CuPy tells it in many ways
            reason = f"CuPy can not compile kernels here ({first_line(error)})"
        return self._of_any(reason)

    def _open_gate(self) -> str | None:
        """The gate on every rank or on none: ranks that time differently can not be compared."""
        reason = self._no_kernels
        if reason is None and os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
            reason = "CUDA_LAUNCH_BLOCKING makes every launch wait"
        if reason is None and self._pinned:
            trial = partial(self._with_host, _TRIAL_BYTES, both_ways=True)
            self._gate, reason = tried_gate(self._cupy, self._stream(0), trial)
        reason = self._of_any(reason)
        if reason is not None:
            if self._gate is not None:
                self._gate.close()
            self._gate = None
            self.notes = (f"batches are not held back by a gate ({reason}): their time holds the issuing of copies",)
        return reason

    def _of_any(self, reason: str | None) -> str | None:
        """The first reason of any rank, on all of them."""
        return next((other for other in self.channel.share(reason) if other is not None), None)

    def close(self) -> None:
        """Nobody leaves while another still copies from or to its memory."""
        self._runtime.deviceSynchronize()
        self._reach.close()
        self._control.barrier()
        self._reach.forget()
        if self._stirring is not None:
            self._stirring.native.close()
            self._stirring = None
        if self._gate is not None:
            self._gate.close()
        for stream in self._streams:
            self._runtime.streamDestroy(stream)
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
        batches = "on the host's clock"
        if self._pinned:
            batches = "behind a gate" if self._gate is not None else f"not behind a gate ({self._no_gate})"
        return _cuda_facts.facts(self._cupy, self._device, self._options, batches, self._control.name)

    def supports(self, step: Step, reduction: Reduction, in_place: bool) -> str | None:
        """Copies alone; kernels only between GPUs' memories."""
        if isinstance(step, Product):
            return "cuda_copy only copies"
        if not isinstance(step, CopyStep):
            return "cuda_copy has no messages between ranks, only copies that nobody answers: nccl and mpi_cuda have"
        if self._options.engine == "sm":
            if any(None in (copy.source_on, copy.target_on) for copy in step.copies):
                return "a kernel copies from GPU to GPU here, not from or to the host: leave --engine sm out"
            return self._no_kernels
        return None

    def available_bytes(self) -> int:
        """Free memory of this rank's GPU, less a reserve; an equal part of it where the GPU is shared."""
        free, _ = self._runtime.memGetInfo()
        return max(0, int(free) - _RESERVE_BYTES) // self._reach.num_sharers

    def cache_bytes(self) -> int | None:
        """The GPU's L2."""
        return self._device.l2_bytes or None

    def stir(self) -> None:
        """Copies to the GPU for about a fifth of a second."""
        with contextlib.suppress(MemoryError, RuntimeError):  # where no memory can be pinned, links sleep as they do
            self._stirring = self._stirring or self._with_host(_STIR_BYTES, both_ways=False)
            self._stirring.native.stir(_STIR_S)

    def _with_host(self, num_bytes: int, both_ways: bool) -> Compiled:
        """Copies of pinned memory to this rank's GPU, and from it beside them."""
        copies = [Copy(0, 0, num_bytes, None, 0), Copy(0, 0, num_bytes, 0, None, num_bytes, num_bytes)]
        steps = (CopyStep(tuple(copies if both_ways else copies[:1])),)
        size = num_bytes * len(steps[0].copies)
        buffers = self._new_buffers(size, size, 1, steps, self._alone, pinned=True)
        return self.compile(steps, self._alone, buffers, Reduction("uint8", "sum"), False)

    # -- memory

    def open_groups(self, groups: Round) -> None:
        """Remember mine: buffers may lie on the GPU of another member.

        No memory is given back before every rank has stopped reaching into it.
        """
        self._reach.close()
        self._control.barrier()
        self._reach.forget()
        self._group = next((group for group in groups if self.place.rank in group.ranks), self._alone)

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        """Buffers where the copies of `steps` say, all written; on this rank's GPU where they say nothing."""
        self._reach.forgive()
        make = partial(self._new_buffers, send_bytes, recv_bytes, num_sets, steps, self._group, self._pinned)
        with contextlib.suppress(MemoryError):
            return make()
        gc.collect()  # a row before may have left a circle of references to its buffers
        return make()

    def _new_buffers(
        self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...], group: Group, pinned: bool
    ) -> CudaBuffers:
        member = group.ranks.index(self.place.rank)
        where = _cuda_memory.layout(send_bytes, recv_bytes, member, steps, partial(self._reach.device_of, group))

        def block(place: int, num_bytes: int) -> _cuda_memory.Allocation:
            if place != HOST:
                by_kernels = place == self._device.index and self._compares
                return _cuda_memory.DeviceBlock(self._cupy, place, num_bytes, by_kernels)
            return _cuda_memory.HostBlock(self._runtime, num_bytes, pinned)

        with _cuda_device.near(self._device.bus, self._options.near_cpus):
            return CudaBuffers(send_bytes, recv_bytes, num_sets, where, block)

    def share(self, buffers: Buffers | None, steps: tuple[Step, ...] = ()) -> str | None:
        """Handles of all buffers to all ranks; those that this rank's copies name are opened."""
        reason = self._reach.share(buffers, self._group, steps)
        if reason is None and self._options.engine == "sm":
            return self._reach.no_kernel_to(buffers, self._group, steps)
        return reason

    # -- programs

    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """Each copy with its arguments bound, on a stream of its own; ends of other ranks must have been shared."""
        assert isinstance(buffers, CudaBuffers)
        copies = copies_of(steps)
        flags = ("shared_gpu",) if self._reach.num_sharers > 1 else ()
        if not copies:
            return Compiled([_nothing] * buffers.num_sets, keep=[buffers], flags=flags)
        streams = [self._stream(j) for j in range(len(copies))]
        staged = any(self._reach.is_staged(group, buffers, copy) for copy in copies)
        issues = [
            [self._issue(copy, group, buffers, index, stream) for copy, stream in zip(copies, streams, strict=True)]
            for index in range(buffers.num_sets)
        ]
        # A copy that the driver takes through the host's memory may need the host while it runs: no gate before it.
        program = CopyProgram(self._runtime, self._device.index, streams, issues, self._gate is not None and not staged)

        def release() -> None:
            program.close()
            self._reach.close()

        return Compiled(
            [partial(program.run, index) for index in range(buffers.num_sets)],
            keep=[buffers],
            release=release,
            native=program,
            flags=(*flags, THROUGH_HOST) if staged else flags,
        )

    def _issue(self, copy: Copy, group: Group, buffers: CudaBuffers, index: int, stream: int) -> Issue:
        size, end = copy.num_bytes, partial(self._reach.end, group, buffers)
        source = end("send", index, copy.source, copy.source_offset, size)
        target = end("recv", index, copy.target, copy.target_offset, size)
        if self._options.engine == "sm" and HOST not in (source[0], target[0]):
            return _cuda_issue.by_kernel(self._copy, self._device.num_sms, source, target, size, stream)
        return _cuda_issue.by_engine(self._runtime, source, target, size, stream)

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
        return self._timer.each(compiled, num_calls)

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Copies back to back, as many at a time as a queue holds, each such part behind a gate."""
        return self._timer.batch(compiled, num_calls)


def _nothing() -> None:
    pass


TRANSPORT = CudaCopy
