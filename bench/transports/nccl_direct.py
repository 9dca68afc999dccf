"""Run NCCL without torch. A loop in C calls the library, out of place and in place, as nccl-tests does.

The transport `nccl` measures the times of a training program. The transport `nccl_direct` measures the library alone.
The ratio of the time of `nccl` to the time of `nccl_direct` is the cost of the framework. Ranks use MPI or Gloo for all
communication that is not measured. If there is only one rank, neither MPI nor Gloo is needed. RCCL on AMD GPUs has the
same functions as NCCL.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from bench.core.dtypes import DTYPES
from bench.core.errors import RefusedError
from bench.core.program import Collective, Exchange, Group, Message, Round, Step, is_device_work
from bench.core.record import Flag, Skip
from bench.core.skips import SkipCode
from bench.core.traits import Traits
from bench.core.transport import Buffers, Compiled, Options, Reduction, Timing, Transport
from bench.core.world import RankInfo
from bench.transports import (
    _control,
    _cuda_device,
    _cuda_memory,
    _nccl_debug,
    _nccl_gpu,
    _nccl_library,
    _nccl_loop,
    _nccl_options,
    _shared_page,
)
from bench.transports import _nccl_types as types
from bench.transports._cuda_memory import CudaBuffers
from bench.transports._nccl_library import REDUCTIONS, TYPES, NcclFailure, RuntimeFailure
from bench.transports._nccl_loop import NcclStep

TRAITS = Traits(
    launcher="torchrun",
    on_gpu=True,
    rendezvous=True,
    needs_shm=True,
    rings=True,
    calibrates=True,
    nic_variables=("NCCL_SOCKET_IFNAME",),
    adapter_variable="NCCL_IB_HCA",
    nic_list="prefixes",
    factors=("graph", "aggregate", "register", "ctas", "cta_policy"),
    library_facts=("cuda", "hip", "nccl"),
    required_facts=("nccl",),
    look=7,
)
_REDUCES = frozenset({"allreduce", "reduce", "reducescatter"})
_TINY_BYTES = 4


class NcclDirect(Transport):
    """Each rank has one communicator for all ranks, and one communicator for each other group.

    This rank uses the GPU of its local rank.
    """

    clock = "device"
    tells_starts = True
    num_threads = 2  # the caller, and NCCL's proxy thread

    def __init__(self, place: RankInfo, options: Options) -> None:
        """Choose this rank's GPU, connect to the other ranks, and make a first call so that NCCL connects.

        Raises NotInstalledError if NCCL or the CUDA runtime is missing. Raises RefusedError if there is no compiler, if
        this rank has no separate GPU, or if NCCL cannot be opened.
        """
        self.place, self._options = place, options
        self._runtime, self._nccl = _nccl_library.load()
        loop, reason = _nccl_loop.build()
        if loop is None:
            raise RefusedError(f"nccl_direct needs its compiled loop: {reason}. Use --transport nccl instead")
        self._gpu = self._take_gpu()
        self._version = self._nccl.version()
        self._control = _control.open_control(place, options)
        self.channel, self.exits_at_once = self._control.channel, self._control.exits_at_once
        self._sharers = self._meet()
        if self._sharers > 1:
            how = _nccl_gpu.allow_sharing(os.environ, self._version, place, self._runtime.getDeviceCount())
            self.notes = (f"shared_gpu: several ranks on one GPU, by {how}: a functional test, not a measurement",)
        self._debug = _nccl_debug.Debug(os.environ, every_call=False)
        self._loop = _nccl_loop.NcclLoop(loop, self._runtime, self._nccl, options.timeout_s)
        self._memory: Any = self._runtime
        if options.case.register != "none":
            self._memory = _nccl_options.NcclMemory(self._runtime, self._nccl)
        self._config = _nccl_options.config_of(options.case)
        self._comms: dict[tuple[int, ...], int] = {}
        self._open_world()

    def _take_gpu(self) -> int:
        """Make this rank's GPU current. Return its number. Raises RefusedError."""
        place, visible = self.place, _nccl_gpu.hides(os.environ)
        try:
            num_gpus = self._runtime.getDeviceCount()
            if num_gpus < place.local_size and not self._options.share_gpu and not (num_gpus == 1 and visible):
                raise RefusedError(
                    f"{place.local_size} ranks on this host need a GPU each, and the driver shows {num_gpus}: start "
                    "fewer ranks per node, or share GPUs for a functional test (--share-gpu 1)"
                )
            gpu = place.local_rank % num_gpus
            self._runtime.setDevice(gpu)
            self._runtime.memGetInfo()  # the first call creates the context
        except RuntimeFailure as error:
            raise RefusedError(
                f"rank {place.rank} cannot use a GPU ({error}): see nvidia-smi or rocm-smi, or use another transport "
                "(mpi, gloo)",
                of_one_rank=True,
            ) from None
        return gpu

    def _meet(self) -> int:
        """Return the number of ranks that share this rank's GPU.

        All ranks refuse to run if two ranks share a GPU without --share-gpu.
        """
        owners = self.channel.share((socket.gethostname(), self._runtime.bus(self._gpu), ""))
        mine = owners[self.place.rank]
        shared = _cuda_device.shared_by([tuple(owner) for owner in owners])
        if shared is not None and not self._options.share_gpu:
            host, bus, _ = owners[shared[0]]
            raise RefusedError(
                f"ranks {shared[0]} and {shared[1]} are on the same GPU ({bus} of {host}): start one rank per GPU, or "
                "share it for a functional test (--share-gpu 1)"
            )
        return sum(owner == mine for owner in owners)

    def _open_world(self) -> None:
        world = Group("world", tuple(range(self.place.num_ranks)))
        if self.place.local_size == self.place.num_ranks:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # works on a host whose name does not resolve
        try:
            self.open_groups((world,))
            self._scratch = self._runtime.malloc(2 * _cuda_memory.ALIGNMENT_BYTES)
            tiny = self._loop.program([[self._tiny(world)]])
            self._meeting = self._shared_memory()
            self._loop.start_by(self._comms[world.ranks], tiny, self._meeting, self.place.local_size)
            self._loop.calls(tiny)[0]()  # connects peers; the network is known only afterwards
        except (NcclFailure, RuntimeFailure) as error:
            self._debug.read()
            self._debug.close()
            raise RefusedError(
                f"rank {self.place.rank} could not open NCCL ({self._debug.seen.warning or error}): "
                "set NCCL_DEBUG=INFO for details",
                of_one_rank=True,
            ) from None
        self._debug.opened()
        self._report = _nccl_debug.merge(self.channel.share(self._debug.seen))

    def _shared_memory(self) -> Any:
        """Return memory that all ranks share.

        Return None if the ranks are on several hosts or cannot map shared memory.
        """
        if self.place.local_size != self.place.num_ranks:
            return None
        return _shared_page.of_this_host(self.channel, self.place, _nccl_loop.MEETING_BYTES)

    def close(self) -> None:
        """Free all communicators. All ranks must call this method."""
        self.sync()
        for comm in self._comms.values():
            self._nccl.destroy(comm)
        self._loop.close()
        self._runtime.free(self._scratch)
        self._debug.close()
        self._control.close()

    def abort(self, exit_code: int) -> None:
        """End this rank's calls. End the other ranks if the control plane supports this."""
        for comm in self._comms.values():
            self._nccl.abort(comm)
        self._debug.close()
        self._control.abort(exit_code)

    def lost_contact(self, error: BaseException) -> bool:
        """Check whether NCCL or the control plane lost another rank."""
        return (isinstance(error, NcclFailure) and error.of_peer) or self._control.lost_contact(error)

    def facts(self) -> dict[str, str]:
        """Return versions, the GPU of rank 0, how ranks start together, and what NCCL reported on all ranks."""
        runtime, driver = self._runtime.versions()
        one_node = self.place.local_size == self.place.num_ranks
        return {
            "hip" if self._runtime.is_hip else "cuda": runtime,
            "cuda_driver": driver,
            "nccl": ".".join(map(str, self._version)),
            "nccl_library": self._nccl.path,
            "gpu": self._runtime.name(self._gpu),
            "gpu_pci_bus": self._runtime.bus(self._gpu),
            "start": "shared memory" if self._meeting is not None else "an allreduce of 4 bytes",
            "control_plane": self._control.name,
            "nccl_told_in": self._debug.source or self._debug.why_unread,
            **self._report.facts(1 if one_node else 2),
            **_nccl_options.facts(self._options),
            **({"shared_gpu": "yes"} if self._sharers > 1 else {}),
        }

    def unsupported_reason(self, step: Step, reduction: Reduction, in_place: bool) -> Skip | None:
        """Return why NCCL cannot run a step, as NCCL's documentation states. Return None if NCCL can run the step."""
        if is_device_work(step):
            return Skip.of(SkipCode.DEVICE_WORK, transport="nccl_direct")
        refusal = _nccl_options.refusal(self._options.case, step, in_place, self._version)
        if refusal is not None:
            return refusal
        if isinstance(step, Collective) and step.op in _REDUCES:
            return types.unsupported_reason(reduction, self._version, self._runtime.capability(self._gpu))
        return None

    def available_bytes(self) -> int:
        """Return the free bytes of this rank's GPU, minus a reserve.

        If several ranks share the GPU, each rank gets an equal part of these bytes.
        """
        free, total = self._runtime.memGetInfo()
        return max(0, free - _nccl_gpu.reserve_bytes(total)) // self._sharers

    def cache_bytes(self) -> int | None:
        """Return the size of the GPU's L2 cache in bytes. Return None if the runtime does not report the size."""
        return self._runtime.l2_bytes(self._gpu) or None

    # -- memory and programs

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        """Return GPU memory with every page written. The host fills and compares the buffers."""
        where = _cuda_memory.layout(send_bytes, recv_bytes, 0, (), lambda member: self._gpu)
        make = partial(CudaBuffers, send_bytes, recv_bytes, num_sets, where, self._block)
        with contextlib.suppress(MemoryError):
            return make()
        gc.collect()  # the buffers of an earlier row may still be in a reference cycle
        return make()

    def _block(self, gpu: int, num_bytes: int) -> _cuda_memory.Allocation:
        return _cuda_memory.DeviceBlock(self._memory, gpu, num_bytes)

    def open_groups(self, groups: Round) -> None:
        """Make a communicator for each group that has no communicator yet.

        All ranks take part, because the ranks exchange the ids of the communicators.
        """
        new = [group for group in groups if group.ranks not in self._comms]
        made = {k: self._nccl.new_id().hex() for k, group in enumerate(new) if group.ranks[0] == self.place.rank}
        ids = {int(k): value for shared in self.channel.share(made) for k, value in shared.items()}
        for k, group in enumerate(new):
            if self.place.rank in group.ranks:
                member = group.ranks.index(self.place.rank)
                unique_id = bytes.fromhex(ids[k])
                self._comms[group.ranks] = self._nccl.init(len(group.ranks), unique_id, member, self._config)

    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """Convert the steps on each buffer set to arguments of the C loop."""
        assert isinstance(buffers, CudaBuffers)
        moved = types.moved(reduction, steps)
        sets = []
        for index in range(buffers.num_sets):
            ends = [buffers.pointer(side, index) for side in _cuda_memory.SIDES]
            bound = _Bound(self._loop, group, self.place.rank, moved, *ends)
            sets.append([native for step in steps for native in self._native(step, group, bound, in_place)])
        case = self._options.case
        changes_input = changes_its_input(steps, in_place)
        program = self._loop.program(sets, case.aggregate, self._options.graph, changes_input)
        flags = (Flag.SHARED_GPU,) if self._sharers > 1 else ()
        take_back = self._registered(steps, group, buffers)

        def release() -> None:
            self._runtime.deviceSynchronize()
            self._loop.release(program)
            for each in take_back:
                each()

        calls = self._loop.calls(program)
        return Compiled(calls, keep=[buffers], native=program, flags=flags, release=release)

    def _registered(self, steps: tuple[Step, ...], group: Group, buffers: CudaBuffers) -> list[Callable[[], None]]:
        """If the case requests registration, register the buffers with the communicators of the steps.

        Return functions that end the registrations.
        """
        how = self._options.case.register
        if how == "none":
            return []
        used = {group.ranks if isinstance(step, Collective) else tuple(range(self.place.num_ranks)) for step in steps}
        return [
            _nccl_options.registered(self._nccl, self._comms[ranks], block.pointer, block.num_bytes, how)
            for ranks in sorted(used)
            for block in buffers.blocks.values()
        ]

    def _native(self, step: Step, group: Group, bound: _Bound, in_place: bool) -> list[NcclStep]:
        if isinstance(step, Exchange):
            world = self._comms[tuple(range(self.place.num_ranks))]
            return bound.exchange(step, world)
        assert isinstance(step, Collective)
        if step.op == "barrier":
            return [self._tiny(group)]
        return bound.collective(step, self._comms[group.ranks], in_place)

    def _tiny(self, group: Group) -> NcclStep:
        send, recv = self._scratch, self._scratch + _cuda_memory.ALIGNMENT_BYTES
        comm = self._comms[group.ranks]
        return self._loop.step(
            "allreduce", send=send, recv=recv, count=_TINY_BYTES, type=TYPES["uint8"], reduction=0, comm=comm
        )

    # -- timing

    def finish(self) -> None:
        """Wait for this rank's GPU."""
        self._runtime.deviceSynchronize()

    def sync(self) -> None:
        """Wait for this rank's GPU, then for all ranks, on the host."""
        self._runtime.deviceSynchronize()
        self._control.barrier()

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time isolated calls, each between two events."""
        self._runtime.deviceSynchronize()
        return self._loop.samples(compiled, num_calls, 1)

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time back-to-back calls between two events."""
        self._runtime.deviceSynchronize()
        return self._loop.samples(compiled, 1, num_calls)


def changes_its_input(steps: Sequence[Step], in_place: bool) -> bool:
    """Check whether a call overwrites the data that it reads. All members of a group get the same result."""
    return in_place and any(isinstance(step, Collective) and step.op in _REDUCES for step in steps)


class _Bound:
    """Converts the steps of one group to calls of the C loop, for one buffer set. `send`, `recv`: addresses."""

    def __init__(
        self, loop: _nccl_loop.NcclLoop, group: Group, rank: int, reduction: Reduction, send: int, recv: int
    ) -> None:
        self._loop, self._ranks, self._me = loop, group.ranks, group.ranks.index(rank)
        self._send, self._recv, self._size = send, recv, DTYPES[reduction.dtype].num_bytes
        self._values = {"type": TYPES[reduction.dtype], "reduction": REDUCTIONS.get(reduction.reduce_op, 0)}

    def collective(self, step: Collective, comm: int, in_place: bool) -> list[NcclStep]:
        """Return the calls of a collective.

        If NCCL lacks the collective, return sends and receives that have the same effect.
        """
        num, is_root = len(self._ranks), self._me == step.root
        send, recv = self._recv if in_place else self._send, self._recv
        call = partial(self._call, comm=comm)
        if step.op in ("allreduce", "reducescatter"):
            return [call(step.op, send, recv, step.recv_bytes)]
        if step.op == "reduce":
            return [call(step.op, send, recv, step.send_bytes, step.root)]
        if step.op == "broadcast":
            buffer, num_bytes = (self._send, step.send_bytes) if is_root else (self._recv, step.recv_bytes)
            return [call(step.op, buffer, buffer, num_bytes, step.root)]
        if step.op == "allgather":
            own = step.recv_bytes // num
            return [call(step.op, self._recv + self._me * own if in_place else self._send, recv, own)]
        everybody = range(num)
        to_all = [Message(peer, step.send_bytes // num, peer * (step.send_bytes // num)) for peer in everybody]
        from_all = [Message(peer, step.recv_bytes // num, peer * (step.recv_bytes // num)) for peer in everybody]
        if step.op == "alltoall":
            return self._messages(to_all, from_all, comm)
        if step.op == "alltoallv":
            return self._messages(_parts(step.send_split), _parts(step.recv_split), comm)
        if step.op == "gather":
            return self._messages([Message(step.root, step.send_bytes)], from_all if is_root else [], comm)
        assert step.op == "scatter", step.op
        return self._messages(to_all if is_root else [], [Message(step.root, step.recv_bytes)], comm)

    def exchange(self, step: Exchange, world: int) -> list[NcclStep]:
        """Return an exchange between ranks of the world, whose sends and receives are posted together."""

        def at_world(messages: Sequence[Message]) -> list[Message]:
            return [Message(self._ranks[each.peer], each.num_bytes, each.offset_bytes) for each in messages]

        return self._messages(at_world(step.sends), at_world(step.recvs), world)

    def _messages(self, sends: Sequence[Message], recvs: Sequence[Message], comm: int) -> list[NcclStep]:
        call = partial(self._call, comm=comm)
        posted = [call("recv", 0, self._recv + m.offset_bytes, m.num_bytes, m.peer) for m in recvs]
        posted += [call("send", self._send + m.offset_bytes, 0, m.num_bytes, m.peer) for m in sends]
        return [self._loop.step("group-start"), *posted, self._loop.step("group-end")] if posted else []

    def _call(self, name: str, send: int, recv: int, num_bytes: int, peer: int = 0, *, comm: int) -> NcclStep:
        count = num_bytes // self._size
        return self._loop.step(name, send=send, recv=recv, count=count, peer=peer, comm=comm, **self._values)


def _parts(split: Sequence[int]) -> list[Message]:
    starts = accumulate(split, initial=0)
    return [Message(peer, num_bytes, start) for peer, (num_bytes, start) in enumerate(zip(split, starts, strict=False))]


TRANSPORT = NcclDirect
