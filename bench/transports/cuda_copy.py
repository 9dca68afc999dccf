"""Make one-sided CUDA copies through CuPy: between a host and its GPU, within a GPU, and between GPUs.

Either the copy engine (memcpyAsync) or a kernel makes each copy. CUDA events on the GPU measure the time of a copy. A
gate holds each batch until all copies are in the GPU's queue. The time of a batch therefore includes no time in Python.
Copies of pageable memory block the host, and the host's clock measures their time. All other communication between
ranks uses MPI or Gloo. If there is only one rank, neither MPI nor Gloo is needed.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from bench.core.codes import Coded
from bench.core.errors import RefusedError, first_line
from bench.core.payload import constant
from bench.core.program import Copy, CopyStep, Group, Product, Round, Step
from bench.core.record import Flag, Skip
from bench.core.traits import Traits
from bench.core.transport import GUARD, Buffers, Compiled, Options, Reduction, Timing, Transport
from bench.core.world import RankInfo
from bench.transports import (
    _control,
    _cuda_device,
    _cuda_gate,
    _cuda_kernels,
    _cuda_memory,
    _cuda_program,
    _device,
    _page_nodes,
    _shared_page,
)
from bench.transports._cuda_gate import GateProblem, SharedWords, StreamGate
from bench.transports._cuda_memory import HOST, CudaBuffers
from bench.transports._cuda_pace import Pace
from bench.transports._cuda_program import CopyProgram, Issue
from bench.transports._cuda_reach import CopyRefusal, Reach, copies_of
from bench.transports._cuda_timing import CopyTimer, tried_gate

TRAITS = Traits(
    launcher="torchrun",
    requires=("cupy",),
    on_gpu=True,
    rendezvous=True,
    library_facts=("cuda", "cupy"),
    look=3,
)
_NON_BLOCKING = 1  # cudaStreamNonBlocking: the stream does not wait for the default stream
_RESERVE_BYTES = 1 << 30  # GPU memory that is reserved for contexts and verification
_TRIAL_BYTES = 1 << 20
_ACTIVE_BYTES, _ACTIVE_S = 16 << 20, 0.2


class CudaCopy(Transport):
    """One rank per GPU. Each copy of a rank runs on a separate stream."""

    clock: Literal["host", "device", "virtual"] = "device"
    carries_messages = False
    tells_starts = True
    num_threads = 2  # two threads copy the two directions of pageable memory

    def __init__(self, place: RankInfo, options: Options) -> None:
        """Choose the GPU of this rank, connect to the other ranks, and compile the kernels.

        Raises RefusedError if CuPy, a driver or a GPU for this rank is missing. Also raises RefusedError if ranks share
        a GPU without --share-gpu.
        """
        self.place, self._options = place, options
        self._cupy = _cuda_device.load_cupy()
        self._runtime: Any = self._cupy.cuda.runtime
        index = _cuda_device.choose(self._cupy, place, options.share_gpu)
        self._device = _cuda_device.take(self._cupy, index)
        self._control = _control.open_control(place, options)
        self.channel, self.exits_at_once = self._control.channel, self._control.exits_at_once
        self._reach = self._meet()
        self._pinned = options.memory == "pinned"
        self._near_node = options.near_node(self._device.bus) if options.near_node is not None else None
        if not self._pinned:
            self.clock = "host"
        self._streams: list[int] = []
        self._alone = Group("alone", (place.rank,))
        self._group = Group("world", tuple(range(place.num_ranks)))
        self._active: Compiled | None = None
        self._no_kernels = self._open_kernels()
        self._compares = self._no_kernels is None and _device.compares(self._cupy)
        self._gate: StreamGate | None = None
        self._no_gate = self._open_gate()
        self._pace = Pace(self.channel)
        self._timer = CopyTimer(self.clock, self._gate, self._pace, self.sync, self._control.barrier)

    # -- opening and closing

    def _meet(self) -> Reach:
        """Find out which GPU each rank has. All ranks refuse to run if two ranks share a GPU without --share-gpu."""
        reach = Reach(self._cupy, self.place, self._device, self.channel)
        shared = _cuda_device.shared_by(reach.owners)
        if shared is not None and not self._options.share_gpu:
            host, bus, _ = reach.owners[shared[0]]
            raise RefusedError(
                f"ranks {shared[0]} and {shared[1]} are on the same GPU ({bus} of {host}): start one rank per GPU, "
                "set CUDA_VISIBLE_DEVICES of each rank to its own, or share it for a functional test (--share-gpu 1)"
            )
        return reach

    def _open_kernels(self) -> Coded | None:
        """Compile the copy kernel, and launch the kernel once on zero bytes.

        Return None, or the reason why at least one rank has no kernel. At the first launch of a kernel, CUDA loads the
        kernel, and may wait until the whole GPU is idle. The first launch must therefore not happen while a gate is
        shut.
        """
        problem = None
        try:
            self._copy = _cuda_kernels.copy_kernel(self._cupy)
            on = _cuda_kernels.OnStream(self._stream(0))
            self._copy((1,), (_cuda_kernels.THREADS,), _cuda_kernels.numbers(0, 0, 0), stream=on)
            if self._options.engine == "chase":
                self._chase = _cuda_kernels.chase_kernel(self._cupy)
                self._chase((1,), (1,), _cuda_kernels.numbers(0, 0, 0, 0, 0), stream=on)
            self._runtime.streamSynchronize(on.ptr)
            self._blocks_per_sm = _cuda_kernels.blocks_per_sm(self._cupy, self._copy, self._device.threads_per_sm)
        except Exception as error:  # NVRTC or CUDA's headers are missing or too old; CuPy raises many exception types
            problem = Coded.of(GateProblem.NO_KERNELS, error=first_line(error))
        return self._first_of_any(problem)

    def _open_gate(self) -> Coded | None:
        """Open a gate on all ranks, or on none if any rank cannot have a gate.

        Times with a gate and times without a gate cannot be compared.
        """
        problem = self._no_kernels
        if problem is None and os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
            problem = Coded.of(GateProblem.LAUNCH_BLOCKING)
        if problem is None and self._pinned:
            trial = partial(self._with_host, _TRIAL_BYTES, both_ways=True)
            self._gate, problem = tried_gate(self._cupy, self._stream(0), trial)
        problem = self._first_of_any(problem)
        if problem is not None:
            if self._gate is not None:
                self._gate.close()
            self._gate = None
            self.notes = (f"batches run without a gate ({problem.text}): their times include issuing the copies",)
        elif self._gate is not None and self.place.local_size > 1:
            self._gate = self._shared_gate(self._gate)
        return problem

    def _shared_gate(self, own: StreamGate) -> StreamGate:
        """Return a gate that opens together with the gates of all ranks of this host.

        If some rank cannot use a shared gate, return `own`.
        """
        memory = _shared_page.of_this_host(self.channel, self.place, SharedWords.num_bytes(self.place.local_size))
        gate = _cuda_gate.shared(self._cupy, memory, self.place.local_rank)
        if all(self.channel.share(gate is not None)):
            assert gate is not None
            ticket = gate.shut(self._stream(0), _cuda_gate.TRIAL_S)
            self._control.barrier()
            gate.open(ticket)
            self._runtime.streamSynchronize(self._stream(0))
            if all(self.channel.share(gate.is_open(ticket))):
                own.close()
                return gate
        if gate is not None:
            gate.close()
        return own

    def _first_of_any(self, problem: Coded | None) -> Coded | None:
        """Return the problem of the first rank that has a problem. All ranks return the same problem."""
        return next((other for other in self.channel.share(problem) if other is not None), None)

    def close(self) -> None:
        """Wait until no other rank copies from or to this rank's memory, then free everything."""
        self._runtime.deviceSynchronize()
        self._reach.close()
        self._control.barrier()
        self._reach.forget()
        if self._active is not None:
            self._active.native.close()
            self._active = None
        if self._gate is not None:
            self._gate.close()
        for stream in self._streams:
            self._runtime.streamDestroy(stream)
        self._control.close()

    def abort(self, exit_code: int) -> None:
        """End the other ranks if the control plane supports this."""
        self._control.abort(exit_code)

    def lost_contact(self, error: BaseException) -> bool:
        """Check whether the control plane lost contact with a rank. A copy itself does not wait for other ranks."""
        return self._control.lost_contact(error)

    # -- what this machine is

    def facts(self) -> dict[str, str]:
        """Return versions, the GPU of this rank, peer access, and the location of host memory."""
        batches = "on the host's clock"
        if self._pinned:
            batches = f"not behind a gate ({self._no_gate.text})" if self._no_gate is not None else "behind a gate"
            if self._gate is not None and self._gate.is_shared:
                batches = "behind one gate of all ranks of a host"
        where = f"{self._options.memory}, {_page_nodes.words(self._nodes_of_host_memory(), self._near_node)}"
        return _cuda_device.facts(self._cupy, self._device, where, batches, self._control.name)

    def _nodes_of_host_memory(self) -> Mapping[int, int]:
        """Return the NUMA nodes of host memory, with the number of pages on each node.

        The result is empty if the nodes are unknown. The memory is allocated in the same way as the buffers.
        """
        with contextlib.suppress(MemoryError, RuntimeError):
            with _cuda_device.near(self._device.bus, self._options.near_cpus):
                block = _cuda_memory.HostBlock(self._runtime, _TRIAL_BYTES, self._pinned)
                block.piece(0, _TRIAL_BYTES).fill(constant(GUARD))
            return _page_nodes.nodes_of(block.pointer, _TRIAL_BYTES)
        return {}

    def _flags(self, buffers: CudaBuffers) -> tuple[str, ...]:
        """Return the flags that every row with these buffers gets."""
        flags: tuple[str, ...] = (Flag.SHARED_GPU,) if self._reach.num_sharers > 1 else ()
        block = buffers.blocks.get(HOST)
        if block is not None and self._near_node is not None:
            nodes = _page_nodes.nodes_of(block.pointer, block.num_bytes)
            if set(nodes) - {self._near_node}:
                flags += (Flag.FAR_MEMORY,)
        return flags

    def unsupported_reason(self, step: Step, reduction: Reduction, in_place: bool) -> Skip | None:
        """Return why a step cannot run. Return None if the step can run.

        This transport runs only copies. Kernels cannot access pageable memory of the host.
        """
        if isinstance(step, Product):
            return Skip.of(CopyRefusal.NO_PRODUCTS)
        if not isinstance(step, CopyStep):
            return Skip.of(CopyRefusal.NO_MESSAGES)
        if self._options.case.sms and self._options.engine != "sm":
            return Skip.of(CopyRefusal.SMS_OF_ENGINE)
        if self._options.engine != "ce":
            if not self._pinned and any(None in (copy.source_on, copy.target_on) for copy in step.copies):
                return Skip.of(CopyRefusal.HOST_BY_KERNEL)
            if self._no_kernels is not None:
                return Skip.of(CopyRefusal.NO_KERNELS, **self._no_kernels.facts)
        return None

    def available_bytes(self) -> int:
        """Return the number of free bytes on this rank's GPU, minus a reserve.

        If several ranks share the GPU, each rank gets an equal part of these bytes.
        """
        free, _ = self._runtime.memGetInfo()
        return max(0, int(free) - _RESERVE_BYTES) // self._reach.num_sharers

    def cache_bytes(self) -> int | None:
        """Bytes of the GPU's L2 cache."""
        return self._device.l2_bytes or None

    def keep_link_active(self) -> None:
        """Copy to the GPU for about 0.2 s."""
        with contextlib.suppress(MemoryError, RuntimeError):  # without pinned memory, the link may stay idle
            self._active = self._active or self._with_host(_ACTIVE_BYTES, both_ways=False)
            self._active.native.keep_busy(_ACTIVE_S)

    def _with_host(self, num_bytes: int, both_ways: bool) -> Compiled:
        """Return copies from pinned memory to this rank's GPU.

        With `both_ways`, add copies from the GPU at the same time.
        """
        copies = [Copy(0, 0, num_bytes, None, 0), Copy(0, 0, num_bytes, 0, None, num_bytes, num_bytes)]
        steps = (CopyStep(tuple(copies if both_ways else copies[:1])),)
        size = num_bytes * len(steps[0].copies)
        buffers = self._new_buffers(size, size, 1, steps, self._alone, pinned=True)
        return self.compile(steps, self._alone, buffers, Reduction("uint8", "sum"), False)

    # -- memory

    def open_groups(self, groups: Round) -> None:
        """Store this rank's group.

        `allocate` later needs the group, because buffers may be on the GPU of another member. Each rank closes its
        mappings of other ranks' memory, before any rank frees old memory.
        """
        self._reach.close()
        self._control.barrier()
        self._reach.forget()
        self._group = next((group for group in groups if self.place.rank in group.ranks), self._alone)

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        """Return buffers. For each copy of `steps`, source and target are on the GPU or host that the copy specifies.

        If a copy specifies no place, its data are on this rank's GPU. Every page is written.
        """
        self._reach.reset()
        make = partial(self._new_buffers, send_bytes, recv_bytes, num_sets, steps, self._group, self._pinned)
        with contextlib.suppress(MemoryError):
            return make()
        gc.collect()  # the buffers of an earlier row may still be in a reference cycle
        return make()

    def _new_buffers(
        self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...], group: Group, pinned: bool
    ) -> CudaBuffers:
        member = group.ranks.index(self.place.rank)
        where = _cuda_memory.layout(send_bytes, recv_bytes, member, steps, partial(self._reach.device_of, group))

        def block(place: int, num_bytes: int) -> _cuda_memory.Allocation:
            if place != HOST:
                by = self._cupy if place == self._device.index and self._compares else None
                return _cuda_memory.DeviceBlock(self._runtime, place, num_bytes, by)
            return _cuda_memory.HostBlock(self._runtime, num_bytes, pinned)

        with _cuda_device.near(self._device.bus, self._options.near_cpus):
            return CudaBuffers(send_bytes, recv_bytes, num_sets, where, block)

    def share(self, buffers: Buffers | None, steps: tuple[Step, ...] = ()) -> Skip | None:
        """Exchange the handles of all ranks' buffers. Open the buffers that this rank's copies use."""
        self._pace.begin_row(len(copies_of(steps)) if buffers is not None else 0)
        skip = self._reach.share(buffers, self._group, steps)
        if skip is None and self._options.engine != "ce":
            return self._reach.kernel_refusal(buffers, self._group, steps)
        return skip

    # -- programs

    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """Bind the arguments of each copy. Each copy gets a separate stream.

        If a copy uses buffers of other ranks, call `share` before this method.
        """
        assert isinstance(buffers, CudaBuffers)
        copies = copies_of(steps)
        flags = self._flags(buffers)
        if not copies:
            return Compiled([_nothing] * buffers.num_sets, keep=[buffers], flags=flags)
        streams = [self._stream(j) for j in range(len(copies))]
        staged = any(self._reach.is_staged(group, buffers, copy) for copy in copies)
        issues = [
            [self._issue(copy, group, buffers, index, stream) for copy, stream in zip(copies, streams, strict=True)]
            for index in range(buffers.num_sets)
        ]
        # Copies that the driver stages through host memory have no gate: the driver may need the host thread for them.
        program = CopyProgram(self._runtime, self._device.index, streams, issues, self._gate is not None and not staged)

        def release() -> None:
            program.close()
            self._reach.close()

        return Compiled(
            [partial(program.run, index) for index in range(buffers.num_sets)],
            keep=[buffers],
            release=release,
            native=program,
            flags=(*flags, Flag.THROUGH_HOST) if staged else flags,
        )

    def _issue(self, copy: Copy, group: Group, buffers: CudaBuffers, index: int, stream: int) -> Issue:
        size, end = copy.num_bytes, partial(self._reach.end, group, buffers)
        source = end("send", index, copy.source, copy.source_offset, size)
        target = end("recv", index, copy.target, copy.target_offset, size)
        # The group `_alone` makes the copies of the gate's trial, and the copies that keep links active.
        if self._options.engine == "ce" or group is self._alone:
            return _cuda_program.by_engine(self._runtime, source, target, size, stream)
        if self._options.engine == "chase":
            return _cuda_program.by_chase(self._chase, source, target, size, stream)
        sms = self._options.case.sms  # one block on each SM, as in NCCL
        num_sms, blocks = (sms, 1) if sms else (self._device.num_sms, self._blocks_per_sm)
        return _cuda_program.by_kernel(self._copy, num_sms, blocks, source, target, size, stream)

    def _stream(self, j: int) -> int:
        while len(self._streams) <= j:
            self._streams.append(self._runtime.streamCreateWithFlags(_NON_BLOCKING))
        return self._streams[j]

    # -- timing

    def sync(self) -> None:
        """Wait for this rank's GPU, then for all ranks, on the host."""
        self._runtime.deviceSynchronize()
        self._control.barrier()

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time isolated copies. CUDA events measure the times of copies.

        For copies of pageable memory, the host's clock measures the times.
        """
        return self._timer.each(compiled, num_calls)

    def least_batch(self) -> tuple[int, float]:
        """Return the minimum number of calls and the minimum seconds of a batch.

        Concurrent copies need longer batches.
        """
        return self._pace.least_batch or super().least_batch()

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time back-to-back copies, which are issued in portions that fit in the GPU's queue.

        A gate holds each portion until all copies of the portion are in the queue.
        """
        return self._timer.batch(compiled, num_calls)


def _nothing() -> None:
    pass


TRANSPORT = CudaCopy
