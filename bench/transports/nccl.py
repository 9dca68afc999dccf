"""Run NCCL through torch.distributed: one rank per GPU, timed by CUDA events on the stream of the operation.

The control plane uses Gloo. The synchronisation before each call also uses Gloo, so it does not use the measured path.
In torch, all_reduce and reduce can only overwrite their input. Rows of these collectives are therefore marked in_place.
Operations without arithmetic move the data as plain bytes. These operations therefore also work for element types that
NCCL lacks. NCCL's output shows which network and algorithm NCCL used (docs/nccl.md).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from time import perf_counter
from typing import Any

from bench.core.errors import BenchError, MeasurementError, NotInstalledError, RefusedError, first_line
from bench.core.program import Collective, Exchange, Group, Product, Round, Step, is_device_work
from bench.core.record import Flag, Skip
from bench.core.skips import SkipCode
from bench.core.step_model import POWERSGD
from bench.core.step_plan import StepPlan
from bench.core.traits import Traits
from bench.core.transport import Buffers, Compiled, Options, Reduction, Timing, Together, Trainer, Transport
from bench.core.world import RankInfo
from bench.transports import (
    _device,
    _nccl_debug,
    _nccl_gpu,
    _step_place,
    _symmetric_memory,
    _torch,
    _torch_compile,
    _torch_compute,
    _torch_step,
)
from bench.transports import _nccl_types as types
from bench.transports._nccl_timer import EventTimer, Graphs
from bench.transports._nccl_types import NcclRefusal

TRAITS = Traits(
    launcher="torchrun",
    requires=("torch",),
    on_gpu=True,
    rendezvous=True,
    needs_shm=True,
    auto_order=1,
    factors=("graph", "require", "symmetric"),
    rings=True,
    calibrates=True,
    nic_variables=("NCCL_SOCKET_IFNAME",),
    adapter_variable="NCCL_IB_HCA",
    nic_list="prefixes",
    bare="nccl_direct",
    library_facts=("torch", "cuda", "hip", "nccl"),
    required_versions=("torch",),
    tuned=(
        ("NCCL_ALGO", ("Ring", "Tree")),
        ("NCCL_PROTO", ("Simple", "LL128")),
        ("NCCL_MIN_NCHANNELS", ("16", "32")),
    ),
    look=0,
)
_OF_A_CALL = ("algorithm", "protocol")
_TINY_BYTES = 4096  # probe calls need less than this


class Nccl(Transport):
    """Runs all collectives of the world in one process group. This rank uses the GPU of its local rank."""

    clock = "device"
    in_place_only = frozenset({"allreduce", "reduce"})
    keeps_order = False  # torch sorts the ranks of a group
    num_threads = 2  # the caller, and the thread that moves the bytes
    exits_at_once = True  # otherwise, torch's threads may abort the process at exit, and its exit code is lost

    def __init__(self, place: RankInfo, options: Options) -> None:
        """Join the process group, and connect NCCL's ranks by a first call.

        Raises NotInstalledError if torch is built without CUDA or NCCL. Raises RefusedError if this rank has no
        separate GPU, or if NCCL cannot be opened. Raises MeasurementError if NCCL uses a network that `--require`
        excludes.
        """
        self.place, self._options = place, options
        self._torch = _torch.load_torch()
        self._dist: Any = self._torch.distributed
        reason = _nccl_gpu.problem(self._torch, place, options.share_gpu, os.environ)
        if reason is not None:
            kind = NotInstalledError if _nccl_gpu.built_without(self._torch) else RefusedError
            # All ranks have the same build, but CUDA_VISIBLE_DEVICES may differ between ranks.
            alone = kind is RefusedError and _nccl_gpu.hides(os.environ)
            raise kind(f"rank {place.rank}: {reason}", of_one_rank=alone)
        num_gpus = self._torch.cuda.device_count()
        self._device = self._torch.device("cuda", place.local_rank % num_gpus)
        library = _nccl_gpu.loaded()
        self._version = _nccl_gpu.version(self._torch, library)
        self._ranks_per_gpu = -(-place.local_size // num_gpus) if options.share_gpu else 1
        if self._ranks_per_gpu > 1:
            how = _nccl_gpu.allow_sharing(os.environ, self._version, place, num_gpus)
            self.notes = (f"shared_gpu: several ranks on one GPU, by {how}: a functional test, not a measurement",)
        reset = getattr(library, "ncclResetDebugInit", None)
        demanded = {name for name, _ in options.require}
        self._debug = _nccl_debug.Debug(os.environ, bool(demanded & set(_OF_A_CALL)) and reset is None)
        if self._debug.every_call and self._debug.source:
            self.notes += (
                "NCCL writes a line at every timed call, because --require demands an algorithm or protocol",
            )
        self._open(options)
        agreed = all(self.channel.share(reset is not None and self._debug.can_switch))
        self._reset = reset if agreed else None
        self._handles: dict[tuple[int, ...], Any] = {tuple(range(place.num_ranks)): self._dist.group.WORLD}
        self._unsupported: dict[tuple[str, str, str], Skip | None] = {}
        self._timer = EventTimer(self._torch, self.sync, "graph" if options.graph else "python")
        self._beside = _torch_compute.OnGpu(self._torch)
        self._check_network()
        self._symmetric = _symmetric_memory.opened(
            self._torch, self._device, options.case.symmetric, place, self.channel
        )
        # Tried now, on all ranks together, because some ranks may have no messages in a later exchange.
        ring = _torch.tiny_exchange(place.rank, place.num_ranks)
        asks = options.graph and place.num_ranks > 1
        self._unsupported_in_graphs = self._tried(ring, Reduction("uint8", "sum")) if asks else None

    def _open(self, options: Options) -> None:
        if self.place.local_size == self.place.num_ranks:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # works on a host whose name does not resolve
        # Find a broken GPU before the ranks meet, because NCCL would wait for its rank forever.
        problem = _nccl_gpu.unusable(self._torch, self._device, self.place.rank)
        began = perf_counter()
        try:
            # With `device_id`, torch makes the communicator now and not inside the first measured operation.
            _torch.open_process_group(
                self._torch,
                self.place,
                "nccl",
                options.timeout_s,
                None if problem else self._uuid(),
                problem,
                device_id=self._device,
            )
            self._init_s = perf_counter() - began
            self._control = self._dist.new_group(backend="gloo", timeout=timedelta(seconds=options.timeout_s))
            began = perf_counter()  # the first call connects peers; the network is known only afterwards
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
                "set NCCL_DEBUG=INFO for details",
                of_one_rank=True,
            ) from None
        self.channel = _torch.TorchChannel(self._torch, self.place, self._control)

    def _check_network(self) -> None:
        """Raise MeasurementError if NCCL, on any rank, uses another network than `--require` demands."""
        self._debug.opened()
        self._report = _nccl_debug.merge(self.channel.share(self._debug.seen))
        void = _nccl_debug.broken_demand(self._options.require, self._report, None)
        if void is not None:
            self._debug.close()
            raise MeasurementError(f"{void}{self._whose_output()}: nothing is measured")

    def must_be_in_place(self, steps: Iterable[Step]) -> bool:
        """Check whether torch, or its kernels for symmetric memory, must run at least one of the steps in place."""
        return super().must_be_in_place(self._symmetric.not_out_of_place(steps) if self._symmetric else steps)

    def _whose_output(self) -> str:
        given = self._debug.given_by_user
        return f" ({given} is set; without it the benchmark reads NCCL's output)" if given else ""

    def _uuid(self) -> str | None:
        """Return a name of this rank's GPU that is unique among all hosts.

        Return None if the name is unknown or if ranks may share GPUs.
        """
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
        """Close NCCL's debug output. Do not end other ranks, because the launcher or a timeout ends them."""
        self._debug.close()

    def lost_contact(self, error: BaseException) -> bool:
        """Check whether the control plane over Gloo or NCCL's watchdog reported that a peer is gone."""
        return _torch.is_lost_contact(error)

    def facts(self) -> dict[str, str]:
        """Return versions, the GPU of rank 0, and what NCCL reported on all ranks."""
        one_node = self.place.local_size == self.place.num_ranks
        return {
            "torch": str(self._torch.__version__),
            **self._runtime_version(),
            "nccl": ".".join(map(str, self._version)),
            "gpu": str(self._torch.cuda.get_device_name(self._device)),
            "nccl_told_in": self._debug.source or self._debug.why_unread,
            **self._report.facts(1 if one_node else 2),
            "nccl_init_s": f"{self._init_s:.6f}",
            "nccl_first_call_s": f"{self._first_call_s:.6f}",
            **({"shared_gpu": "yes"} if self._ranks_per_gpu > 1 else {}),
        }

    def unsupported_reason(self, step: Step, reduction: Reduction, in_place: bool) -> Skip | None:
        """Return why NCCL cannot run a step. Return None if NCCL can run the step.

        First, compare the type and the reduction with NCCL's documentation. Then run one tiny call of the same type on
        all ranks. All ranks must check the same step.
        """
        if isinstance(step, Product):
            return _torch_compute.unsupported_reason(reduction.dtype, self._options.tf32, on_gpu=True)
        if is_device_work(step):
            return Skip.of(SkipCode.DEVICE_WORK, transport="nccl")
        if self._symmetric and (skip := self._symmetric.unsupported_reason(step, reduction, in_place)) is not None:
            return skip
        return self._unsupported_by_nccl(step, reduction)

    def _unsupported_by_nccl(self, step: Step, reduction: Reduction) -> Skip | None:
        if not isinstance(step, Collective):
            for name, value in self._options.require:
                if name in _OF_A_CALL:
                    return Skip.of(NcclRefusal.SENDS_NOT_REPORTED, demand=f"{name}={value}")
            return self._unsupported_in_graphs
        if step.op == "barrier" and self._options.graph:
            return Skip.of(NcclRefusal.BARRIER_IN_GRAPH)
        if _torch.reduces(step):
            capability = self._torch.cuda.get_device_capability(self._device)
            if (skip := types.unsupported_reason(reduction, self._version, capability)) is not None:
                return skip
        moved = types.moved(reduction, (step,))
        key = (step.op, moved.dtype, moved.reduce_op if _torch.reduces(step) else "sum")
        if key not in self._unsupported:
            tiny = _torch.tiny_collective(step.op, self.place.num_ranks)
            self._unsupported[key] = self._tried(tiny, Reduction(*key[1:]))
        return self._unsupported[key]

    def _tried(self, step: Collective | Exchange, reduction: Reduction) -> Skip | None:
        """Run a step on all ranks. Return the error of the first rank that has an error."""
        skips = self.channel.share(self._tried_here(step, reduction))
        return next((skip for skip in skips if skip is not None), None)

    def _tried_here(self, step: Collective | Exchange, reduction: Reduction) -> Skip | None:
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
            # After a failed capture, the capture's stream is still the current one.
            self._torch.cuda.set_stream(self._torch.cuda.default_stream(self._device))
            return Skip.of(NcclRefusal.FAILED, error=first_line(error)[:80])
        return None

    def _runtime_version(self) -> dict[str, str]:
        version = self._torch.version
        return {"hip": str(version.hip)} if _nccl_gpu.is_hip(self._torch) else {"cuda": str(version.cuda)}

    def available_bytes(self) -> int:
        """Return the number of free bytes on this rank's GPU, minus a reserve.

        If several ranks share the GPU, each rank gets an equal part of these bytes.
        """
        free, total = self._torch.cuda.mem_get_info(self._device)
        return int(max(0, free - _nccl_gpu.reserve_bytes(total)) // self._ranks_per_gpu)

    def cache_bytes(self) -> int | None:
        """Return the size of the GPU's L2 cache. Return None if this version of torch does not report the size."""
        reported = getattr(self._torch.cuda.get_device_properties(self._device), "L2_cache_size", None)
        return int(reported) if reported else None

    def keep_link_active(self) -> None:
        """Copy to the GPU and back for 0.2 s, on a separate stream."""
        _nccl_gpu.keep_link_active(self._torch, self._device)

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        """Return device memory with every page written.

        If the memory is too small, torch first releases memory from its cache. If the memory is still too small, raises
        MemoryError.
        """
        for _ in range(2):
            with contextlib.suppress(MemoryError):
                return self._buffers(send_bytes, recv_bytes, num_sets)
            self._torch.cuda.empty_cache()  # torch's cache may have enough memory, but in blocks of other sizes
        free, total = self._torch.cuda.mem_get_info(self._device)
        need = (send_bytes + recv_bytes) * num_sets
        raise MemoryError(f"{self._device} cannot hold {need >> 20} MiB: {free >> 20} of {total >> 20} MiB are free")

    def _buffers(self, send_bytes: int, recv_bytes: int, num_sets: int) -> _device.DeviceBuffers:
        mapped = self._symmetric.empty if self._symmetric and self._symmetric.is_usable else None
        arrays = _device.TorchArrays(self._torch, self._device, mapped)
        send, recv = (_device.GuardedBlock(arrays, num_bytes, num_sets) for num_bytes in (send_bytes, recv_bytes))
        return _device.DeviceBuffers(send, recv)

    def open_groups(self, groups: Round) -> None:
        """Make a process group for each group of ranks, split from the communicator of the world."""
        _torch.open_groups(self._dist, groups, self._handles, self._options.timeout_s)

    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """Return functions of torch.distributed, with the tensors as bound arguments.

        Sends and receives are always posted together, as one batch. A plain send or receive would build a separate
        communicator for every pair of ranks. Before a program with a collective is timed, the transport calls it once,
        to find out which algorithm NCCL chooses. Raises MeasurementError if NCCL chooses another algorithm than
        `--require` demands.
        """
        assert isinstance(buffers, _device.DeviceBuffers)
        calls = self._bound(steps, group, buffers, reduction, in_place)
        graphs = Graphs(self._torch, calls) if self._options.graph else None
        flags = self._chosen(steps, group, calls[0])
        if self._ranks_per_gpu > 1:
            flags = (Flag.SHARED_GPU, *flags)
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
        if self._symmetric and self._symmetric.takes(steps, reduction, in_place):
            return self._symmetric.calls(len(steps), self._handles[group.ranks], memory, reduction.dtype)
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
        """Return the algorithm that NCCL chooses for the collective, as a flag.

        Only the first rank of a group knows the algorithm.
        """
        if len(group.ranks) == 1 or not any(isinstance(step, Collective) for step in steps):
            return ()
        if self._symmetric is not None:
            return (f"algorithm: symmetric/{self._options.case.symmetric}",)

        def carried_out() -> None:
            call()
            self._torch.cuda.synchronize()

        choice = self._debug.choice(carried_out, self._reset)
        if self.place.rank != min(group.ranks):
            return ()
        void = _nccl_debug.broken_demand(self._options.require, None, choice)
        if void is not None:
            raise MeasurementError(f"{void}{self._whose_output()}: the row is void")
        return (f"algorithm: {choice.algorithm}/{choice.protocol}",) if choice else ()

    def finish(self) -> None:
        """Wait for the calls on the current stream of this rank's GPU."""
        self._torch.cuda.current_stream().synchronize()

    def sync(self) -> None:
        """Wait for this rank's GPU, then for all ranks, on the host."""
        self._torch.cuda.synchronize()
        self._control.barrier().wait()  # torch.distributed.barrier() would use memory of the bound GPU

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time isolated calls, each between two events."""
        return self._timer.timing([self._timer.sample(compiled, 1) for _ in range(num_calls)])

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time back-to-back calls between two events."""
        return self._timer.timing([self._timer.sample(compiled, num_calls)])

    def untrainable(self, plan: StepPlan) -> Skip | None:
        """Return why a plan cannot be trained: layers cannot be compiled, or a hook would compress nothing."""
        if plan.case.compiled and (why := _torch_compile.why_not(self._torch)):
            return Skip.of(NcclRefusal.NO_COMPILER, why=why)
        if plan.case.hook.startswith(POWERSGD) and plan.model is None:
            return Skip.of(NcclRefusal.NO_MATRICES)
        return None

    def trainer(self, plan: StepPlan) -> Trainer:
        """Return a trainer on this rank's GPU."""
        place = _step_place.GpuPlace(self._torch, self._device)
        return _torch_step.StepTrainer(
            self._torch, self.place.rank, plan, self._options.timeout_s, place, meet=self.sync
        )

    def time_together(
        self, collective: Compiled | None, num_calls: int, product: Compiled | None, num_products: int
    ) -> Together:
        """Time a collective and concurrent products. The products run on a separate stream."""
        return self._beside.run(self.sync, collective, num_calls, product, num_products)


TRANSPORT = Nccl
