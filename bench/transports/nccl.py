"""NCCL through torch.distributed: one rank per GPU, timed by CUDA events on the stream that runs the operation.

The control plane and the synchronisation before each call go over Gloo, apart from the measured path. all_reduce and
reduce have no out-of-place form in torch; their rows say in_place. Operations that only move data move bytes: element
types that NCCL lacks can be moved, too. What NCCL really used is read from its own output (docs/nccl.md).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from datetime import timedelta
from time import perf_counter
from typing import Any

from bench.core.errors import BenchError, MeasurementError, NotInstalledError, RefusedError, first_line
from bench.core.program import Collective, Exchange, Group, Product, Round, Step, needs_device
from bench.core.traits import Traits
from bench.core.transport import Buffers, Compiled, Options, Reduction, Timing, Together, Transport
from bench.core.world import RankInfo
from bench.transports import _device, _nccl_debug, _nccl_gpu, _torch, _torch_compute
from bench.transports import _nccl_types as types
from bench.transports._nccl_graph import Graphs
from bench.transports._nccl_timer import EventTimer

TRAITS = Traits(
    launcher="torchrun",
    requires=("torch",),
    on_gpu=True,
    rendezvous=True,
    needs_shm=True,
    auto_order=1,
    factors=("graph", "require"),
    rings=True,
    calibrates=True,
    nic_variables=("NCCL_SOCKET_IFNAME",),
    adapter_variable="NCCL_IB_HCA",
    nic_list="prefixes",
    library_facts=("torch", "cuda", "nccl"),
    required_versions=("torch",),
)
_OF_A_CALL = ("algorithm", "protocol")
_TINY_BYTES = 4096  # more than any probe needs


class Nccl(Transport):
    """One process group over all ranks, this rank on the GPU of its local rank."""

    clock = "device"
    in_place_only = frozenset({"allreduce", "reduce"})
    keeps_order = False  # torch sorts the ranks of a group
    num_threads = 2  # the caller and what moves the bytes

    def __init__(self, place: RankInfo, options: Options) -> None:
        """Join the process group, and have NCCL connect its ranks by a first call.

        Raises RefusedError when this rank has no GPU of its own or NCCL can not be opened, MeasurementError when NCCL
        uses another network than demanded.
        """
        self.place, self._options = place, options
        self._torch = _torch.load_torch()
        self._dist: Any = self._torch.distributed
        reason = _nccl_gpu.problem(self._torch, place, options.share_gpu, os.environ)
        if reason is not None:
            kind = NotInstalledError if _nccl_gpu.built_without(self._torch) else RefusedError
            # What is built in is alike everywhere; which GPUs are shown may be set for each rank.
            alone = kind is RefusedError and "CUDA_VISIBLE_DEVICES" in os.environ
            raise kind(f"rank {place.rank}: {reason}", of_one_rank=alone)
        num_gpus = self._torch.cuda.device_count()
        self._device = self._torch.device("cuda", place.local_rank % num_gpus)
        library = _nccl_gpu.loaded()
        self._version = _nccl_gpu.version(self._torch, library)
        self._ranks_per_gpu = -(-place.local_size // num_gpus) if options.share_gpu else 1
        if self._ranks_per_gpu > 1:
            how = _nccl_gpu.share(os.environ, self._version, place, num_gpus)
            self.notes = (f"shared_gpu: several ranks on one GPU, by {how}: it shows that things work, not how fast",)
        reset = getattr(library, "ncclResetDebugInit", None)
        demanded = {name for name, _ in options.require}
        self._debug = _nccl_debug.Debug(os.environ, bool(demanded & set(_OF_A_CALL)) and reset is None)
        if self._debug.every_call and self._debug.source:
            self.notes += (
                "NCCL writes a line at every call, also while the clock runs, since what it used is demanded",
            )
        self._open(options)
        agreed = all(self.channel.share(reset is not None and self._debug.can_switch))
        self._reset = reset if agreed else None
        self._handles: dict[tuple[int, ...], Any] = {tuple(range(place.num_ranks)): self._dist.group.WORLD}
        self._lacks: dict[tuple[str, str, str], str | None] = {}
        self._timer = EventTimer(self._torch, self.sync, "graph" if options.graph else "python")
        self._beside = _torch_compute.OnGpu(self._torch)
        self._attest()
        # Asked now, of all ranks, since later not all of them have messages.
        ring = types.tiny_exchange(place.rank, place.num_ranks)
        asks = options.graph and place.num_ranks > 1
        self._lacks_in_graphs = self._tried(ring, Reduction("uint8", "sum")) if asks else None

    def _open(self, options: Options) -> None:
        if self.place.local_size == self.place.num_ranks:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host whose name does not resolve works, too
        # A GPU that is broken is found before the ranks meet: NCCL would wait for its rank for ever.
        wrong = _nccl_gpu.unusable(self._torch, self._device, self.place.rank)
        began = perf_counter()
        try:
            # With the device named, the communicator is made now and not inside the first measured operation.
            _torch.open_process_group(
                self._torch,
                self.place,
                "nccl",
                options.timeout_s,
                None if wrong else self._uuid(),
                wrong,
                device_id=self._device,
            )
            self._init_s = perf_counter() - began
            self._control = self._dist.new_group(backend="gloo", timeout=timedelta(seconds=options.timeout_s))
            began = perf_counter()  # peers are connected at first use, and only then is the network known
            self._dist.all_reduce(self._torch.full((1,), 1.0, device=self._device))
            self._torch.cuda.synchronize()
            self._first_call_s = perf_counter() - began
        except BenchError:
            self._debug.close()
            raise
        except (RuntimeError, ValueError) as error:
            self._debug.read()
            self._debug.close()
            why = self._debug.seen.warning or first_line(error)
            raise RefusedError(
                f"rank {self.place.rank} could not open NCCL on {self._device} ({why}): "
                "set NCCL_DEBUG=INFO to see what it does",
                of_one_rank=True,
            ) from None
        self.channel = _torch.TorchChannel(self._dist, self.place, self._control)

    def _attest(self) -> None:
        """What NCCL said while it was opened, on all ranks, is what was demanded."""
        self._debug.opened()
        self._seen = _nccl_debug.together(self.channel.share(self._debug.seen))
        void = _nccl_debug.unlike(self._options.require, self._seen, None)
        if void is not None:
            self._debug.close()
            raise MeasurementError(f"{void}{self._whose_output()}: nothing of this run would count")

    def _whose_output(self) -> str:
        given = self._debug.given_by_user
        return f" ({given} is set: without it the benchmark reads NCCL's output)" if given else ""

    def _uuid(self) -> str | None:
        """What names this rank's GPU in all the world; None where torch does not say, or sharing was asked for."""
        if self._ranks_per_gpu > 1 or os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1":
            return None
        found = getattr(self._torch.cuda.get_device_properties(self._device), "uuid", None)
        return None if found is None else f"GPU-{found}"

    def close(self) -> None:
        """Leave the process group."""
        self.sync()
        self._dist.destroy_process_group()
        self._debug.close()

    def abort(self, exit_code: int) -> None:
        """The launcher ends the other ranks, and the time-out of their operations does otherwise."""
        self._debug.close()

    def lost_contact(self, error: BaseException) -> bool:
        """A peer that is gone, as the control plane over Gloo or NCCL's own watchdog says it."""
        return _torch.is_lost_contact(error)

    def facts(self) -> dict[str, str]:
        """Versions, the GPU of rank 0, and what NCCL told of itself on all ranks."""
        one_node = self.place.local_size == self.place.num_ranks
        told = self._seen.facts(1 if one_node else 2)
        return {
            "torch": str(self._torch.__version__),
            "cuda": str(self._torch.version.cuda),
            "nccl": ".".join(map(str, self._version)),
            "gpu": str(self._torch.cuda.get_device_name(self._device)),
            "nccl_told_in": self._debug.source or self._debug.why_unread,
            **told,
            "nccl_init_s": f"{self._init_s:.6f}",
            "nccl_first_call_s": f"{self._first_call_s:.6f}",
            **({"shared_gpu": "yes"} if self._ranks_per_gpu > 1 else {}),
        }

    def supports(self, step: Step, reduction: Reduction, in_place: bool) -> str | None:
        """NCCL's element types and reductions by what is known, then by asking: a tiny call of this kind, once.

        All ranks must ask alike.
        """
        if isinstance(step, Product):
            return _torch_compute.why_not(reduction.dtype, self._options.tf32, on_gpu=True)
        if (reason := needs_device(step)) is not None:
            return f"NCCL: {reason}"
        if not isinstance(step, Collective):
            demanded = [f"{name}={value}" for name, value in self._options.require if name in _OF_A_CALL]
            if demanded:
                return f"NCCL tells nothing of how it sends messages, and {demanded[0]} was demanded"
            return self._lacks_in_graphs
        if step.op == "barrier" and self._options.graph:
            return "torch's barrier waits on the host, and can not be captured in a CUDA graph"
        if types.reduces(step):
            capability = self._torch.cuda.get_device_capability(self._device)
            if (reason := types.why_not(reduction, self._version, capability)) is not None:
                return reason
        asked = types.moved(reduction, (step,))
        key = (step.op, asked.dtype, asked.reduce_op if types.reduces(step) else "sum")
        if key not in self._lacks:
            self._lacks[key] = self._tried(types.tiny_collective(step.op, self.place.num_ranks), Reduction(*key[1:]))
        return self._lacks[key]

    def _tried(self, step: Collective | Exchange, reduction: Reduction) -> str | None:
        """What torch says on any rank to such a step among all of them; None when it carries it out."""
        reasons = self.channel.share(self._says(step, reduction))
        return next((reason for reason in reasons if reason), None)

    def _says(self, step: Collective | Exchange, reduction: Reduction) -> str | None:
        group = Group("tiny", tuple(range(self.place.num_ranks)))
        sizes = (step.send_bytes, step.recv_bytes) if isinstance(step, Collective) else (_TINY_BYTES, _TINY_BYTES)
        buffers = self._buffers(*sizes, 1)
        try:
            calls = self._bound((step,), group, buffers, reduction, False)
            if self._options.graph:
                graphs = Graphs(self._torch, calls)
                graphs.replay(0, 1)
                graphs.release()
            else:
                calls[0]()
                self._torch.cuda.synchronize()
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            if self.lost_contact(error):
                raise
            # A capture that failed leaves its own stream behind as the current one.
            self._torch.cuda.set_stream(self._torch.cuda.default_stream(self._device))
            return f"NCCL through torch can not do it ({first_line(error)[:80]})"
        return None

    def available_bytes(self) -> int:
        """What is free on this rank's GPU now, less a reserve; of a shared GPU this rank's part."""
        free, total = self._torch.cuda.mem_get_info(self._device)
        return int(max(0, free - _nccl_gpu.reserve_bytes(total)) // self._ranks_per_gpu)

    def cache_bytes(self) -> int | None:
        """The GPU's second-level cache; None where this torch does not tell it."""
        told = getattr(self._torch.cuda.get_device_properties(self._device), "L2_cache_size", None)
        return int(told) if told else None

    def stir(self) -> None:
        """Copies to the GPU and back, for a fifth of a second, on a stream of their own."""
        _nccl_gpu.stir(self._torch, self._device)

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        """Device memory, written before use. MemoryError is raised after torch has given back what it had set aside."""
        for _ in range(2):
            with contextlib.suppress(MemoryError):
                return self._buffers(send_bytes, recv_bytes, num_sets)
            self._torch.cuda.empty_cache()  # sizes before this one may hold it in pieces
        free, total = self._torch.cuda.mem_get_info(self._device)
        need = (send_bytes + recv_bytes) * num_sets
        raise MemoryError(
            f"{self._device} has no room for {need >> 20} MiB: {free >> 20} of {total >> 20} MiB are free"
        )

    def _buffers(self, send_bytes: int, recv_bytes: int, num_sets: int) -> _device.DeviceBuffers:
        arrays = _device.TorchArrays(self._torch, self._device)
        send, recv = (_device.GuardedBlock(arrays, num_bytes, num_sets) for num_bytes in (send_bytes, recv_bytes))
        return _device.DeviceBuffers(send, recv)

    def open_groups(self, groups: Round) -> None:
        """A process group per group, split off the world's communicator at once: that knows its device."""
        _torch.open_groups(self._dist, groups, self._handles, self._options.timeout_s)

    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """Functions of torch.distributed with their tensors bound; point-to-point always as one batch.

        A plain send or receive would build a communicator of its own for every pair of ranks. A collective is called
        once, to hear what NCCL chooses for it. Raises MeasurementError where that is not what was demanded.
        """
        assert isinstance(buffers, _device.DeviceBuffers)
        calls = self._bound(steps, group, buffers, reduction, in_place)
        graphs = Graphs(self._torch, calls) if self._options.graph else None
        flags = self._chosen(steps, group, calls[0])
        if self._ranks_per_gpu > 1:
            flags = ("shared_gpu", *flags)
        release = graphs.release if graphs else None
        return Compiled(calls, keep=[buffers], native=graphs, release=release, flags=flags)

    def _bound(
        self,
        steps: tuple[Step, ...],
        group: Group,
        buffers: _device.DeviceBuffers,
        reduction: Reduction,
        in_place: bool,
    ) -> list[Callable[[], Any]]:
        memory = [(buffers.view("send", k), buffers.view("recv", k)) for k in range(buffers.num_sets)]
        if steps and isinstance(steps[0], Product):
            return _torch_compute.calls(self._torch, steps[0], memory, reduction.dtype, self._options.tf32)
        return _torch.bound_calls(
            self._torch,
            steps,
            group,
            self._handles.get(group.ranks),
            self.place.rank,
            memory,
            types.moved(reduction, steps),
            in_place,
            always_batch=True,
        )

    def _chosen(self, steps: tuple[Step, ...], group: Group, call: Callable[[], Any]) -> tuple[str, ...]:
        """What NCCL chooses for a program's collective; the first rank of its group alone is told."""
        if len(group.ranks) == 1 or not any(isinstance(step, Collective) for step in steps):
            return ()

        def carried_out() -> None:
            call()
            self._torch.cuda.synchronize()

        choice = self._debug.choice(carried_out, self._reset)
        if self.place.rank != min(group.ranks):
            return ()
        void = _nccl_debug.unlike(self._options.require, None, choice)
        if void is not None:
            raise MeasurementError(f"{void}{self._whose_output()}: this row would not count")
        return (f"algorithm: {choice.algorithm}/{choice.protocol}",) if choice else ()

    def sync(self) -> None:
        """This rank's stream is idle, then all ranks wait for each other on the host."""
        self._torch.cuda.synchronize()
        self._control.barrier().wait()  # torch's own barrier() would take memory of the GPU that the group is bound to

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Isolated calls between two events each."""
        return self._timer.timing([self._timer.sample(compiled, 1) for _ in range(num_calls)])

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Back-to-back calls between two events."""
        return self._timer.timing([self._timer.sample(compiled, num_calls)])

    def time_together(
        self, collective: Compiled | None, num_calls: int, product: Compiled | None, num_products: int
    ) -> Together:
        """Products on a stream of their own."""
        return self._beside.run(self.sync, collective, num_calls, product, num_products)


TRANSPORT = Nccl
