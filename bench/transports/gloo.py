"""Run Gloo through torch.distributed: collectives over TCP from host memory, on any machine with torch.

torch has no out-of-place all_reduce and reduce, so rows of these collectives are marked in_place.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.core.checkpoint import BurstPlan, Checkpointer
from bench.core.codes import Code
from bench.core.ends import EndCode
from bench.core.errors import RefusedError, first_line
from bench.core.program import Collective, Group, Product, Round, Step, is_device_work
from bench.core.record import Skip
from bench.core.skips import SkipCode
from bench.core.step_model import POWERSGD
from bench.core.step_plan import StepPlan
from bench.core.traits import Traits
from bench.core.transport import Buffers, Compiled, Options, Reduction, Timing, Together, Trainer, Transport
from bench.core.world import RankInfo
from bench.transports import _host, _torch, _torch_checkpoint, _torch_compile, _torch_compute, _torch_step

TRAITS = Traits(
    launcher="torchrun",
    requires=("torch",),
    rendezvous=True,
    auto_order=2,
    host_memory=True,
    separates=True,
    nic_variables=("GLOO_SOCKET_IFNAME",),
    nic_list="names",
    only_interfaces=True,
    host_name_variable="GLOO_SOCKET_IFNAME",
    network="tcp",
    library_facts=("torch",),
    required_versions=("torch",),
    look=2,
)


class GlooRefusal(Code):
    """Why Gloo cannot run a step."""

    NO_OPERATION = "gloo-no-operation", "Gloo cannot run {op} of {dtype} ({error})"
    NO_COMPILER = "gloo-no-compiler", "torch.compile cannot run on this host: {why}"
    NO_MATRICES = "gloo-no-matrices", "PowerSGD compresses matrices, and the weights of timed layers are vectors"
    SEVERAL_BUCKETS = (
        "gloo-several-buckets",
        "over Gloo PowerSGD exchanges several buckets in an order that differs by rank: give --bucket {num_bytes}",
    )
    NO_REDUCTION = "gloo-no-reduction", "Gloo cannot {op} {dtype} with {reduce_op} ({error})"


class Gloo(Transport):
    """Runs collectives in one process group over all ranks. Each rank has one computing thread."""

    clock = "host"
    in_place_only = frozenset({"allreduce", "reduce"})
    keeps_order = False  # torch sorts the ranks of a group
    num_threads = 2  # the caller, and the thread that moves the bytes
    calls_alone = True
    exits_at_once = True  # torch's threads may abort the process at exit, and the exit code would be lost

    def __init__(self, place: RankInfo, options: Options) -> None:
        """Join the process group. If a peer does not respond, an operation ends after `options.timeout_s`.

        Raises RefusedError if torch is missing, or if the ranks cannot find each other.
        """
        self._alignment_bytes, self._tf32 = options.alignment_bytes, options.tf32
        self._timeout_s = options.timeout_s
        self._torch = _torch.load_torch()
        self._dist: Any = self._torch.distributed
        self._torch.set_num_threads(1)
        if place.local_size == place.num_ranks:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # also works on a host whose name does not resolve
        try:
            _torch.open_process_group(self._torch, place, "gloo", options.timeout_s)
        except (RuntimeError, ValueError) as error:
            raise RefusedError.of(
                EndCode.CANNOT_JOIN,
                rank=place.rank,
                num_ranks=place.num_ranks,
                library="Gloo",
                why=first_line(error),
                remedy="check MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME",
            ) from None
        self.place = place
        self.channel = _torch.TorchChannel(self._torch, place)
        self._handles: dict[tuple[int, ...], Any] = {tuple(range(place.num_ranks)): self._dist.group.WORLD}
        self._barrier: Callable[[], Any] = self._dist.barrier
        self._unsupported: dict[tuple[str, str, str], Skip | None] = {}
        self._beside = _torch_compute.OnHost(self._torch)
        self._checkpoints = ""  # the folder of the last checkpoints

    def close(self) -> None:
        """Leave the process group."""
        self._dist.barrier()  # a rank that leaves early would break the connections of the others
        self._dist.destroy_process_group()

    def abort(self, exit_code: int) -> None:
        """Do nothing. When this rank ends, its connections break. The other ranks then end with an error."""

    def discard(self) -> None:
        """Remove the checkpoints."""
        if self._checkpoints:
            shutil.rmtree(self._checkpoints, ignore_errors=True)

    def lost_contact(self, error: BaseException) -> bool:
        """Check whether a connection broke or a peer did not respond in time."""
        return _torch.is_lost_contact(error)

    def facts(self) -> dict[str, str]:
        """Return the version of torch and the network interface."""
        return {
            "torch": str(self._torch.__version__),
            "gloo_interface": os.environ.get("GLOO_SOCKET_IFNAME", "chosen by host name"),
            "buffer_alignment_bytes": str(self._alignment_bytes),
        }

    def unsupported_reason(self, step: Step, reduction: Reduction, in_place: bool) -> Skip | None:
        """Return why a step cannot run.

        To find out, the ranks run a tiny operation with the same type and reduction once. All ranks must check the same
        step.
        """
        if isinstance(step, Product):
            return _torch_compute.unsupported_reason(reduction.dtype, self._tf32, on_gpu=False)
        if is_device_work(step):
            return Skip.of(SkipCode.DEVICE_WORK, transport="gloo")
        if not isinstance(step, Collective):
            return None
        key = (step.op, reduction.dtype, reduction.reduce_op if _torch.reduces(step) else "sum")
        if key not in self._unsupported:
            skips = self.channel.share(self._tried(step.op, Reduction(key[1], key[2])))
            self._unsupported[key] = next((skip for skip in skips if skip is not None), None)
        return self._unsupported[key]

    def _tried(self, op: str, reduction: Reduction) -> Skip | None:
        """Run a tiny operation among all ranks. Return why the operation failed on this rank.

        Return None if the operation succeeded.
        """
        group = Group("probe", tuple(range(self.place.num_ranks)))
        step = _torch.tiny_collective(op, self.place.num_ranks)
        buffers = _host.HostBuffers(step.send_bytes, step.recv_bytes, 1)
        buffers.write("send", 0, 0)
        buffers.write("recv", 0, 0)
        try:
            self.compile((step,), group, buffers, reduction, op in self.in_place_only).calls[0]()
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            code = GlooRefusal.NO_REDUCTION if _torch.reduces(step) else GlooRefusal.NO_OPERATION
            return Skip.of(
                code, op=op, dtype=reduction.dtype, reduce_op=reduction.reduce_op, error=first_line(error)[:80]
            )
        return None

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        """Return host memory with every page written. The tensors are views of this buffer's memory."""
        return _host.HostBuffers(send_bytes, recv_bytes, num_sets, self._alignment_bytes)

    def open_groups(self, groups: Round) -> None:
        """Make a process group for each group of ranks."""
        _torch.open_groups(self._dist, groups, self._handles, self._timeout_s)

    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """Return functions of torch.distributed, with the tensors as bound arguments."""
        assert isinstance(buffers, _host.HostBuffers)
        sets = range(buffers.num_sets)
        tensor = self._torch.from_numpy
        memory = [(tensor(buffers.view("send", k)), tensor(buffers.view("recv", k))) for k in sets]
        if steps and isinstance(steps[0], Product):
            calls = _torch_compute.calls(self._torch, steps[0], memory, reduction.dtype, self._tf32)
            return Compiled(calls, keep=[buffers])
        handle = self._handles.get(group.ranks)
        calls = _torch.bound_calls(self._torch, steps, group, handle, self.place.rank, memory, reduction, in_place)
        return Compiled(calls, keep=[buffers])

    def sync(self) -> None:
        """Enter Gloo's barrier."""
        self._barrier()

    def separate(self, parts: Round) -> None:
        """Make a process group for each of the parts into which the ranks are divided.

        Make a further group of all ranks for `barrier_async`.
        """
        mine = next(part for part in parts if self.place.rank in part.ranks)
        groups: dict[tuple[int, ...], Any] = {}
        _torch.open_groups(self._dist, parts, groups, self._timeout_s)
        # In this group, ranks wait until other ranks finish a whole block, so it keeps torch's timeout of half an hour.
        self._all_ranks, self._part, self._first = self._dist.new_group(), groups[mine.ranks], mine.ranks[0]
        self._barrier = partial(self._dist.barrier, self._part)

    def barrier_async(self) -> Callable[[], bool]:
        """Enter a barrier. A thread of Gloo waits in the barrier, so this call returns at once."""
        is_completed: Callable[[], bool] = self._dist.barrier(self._all_ranks, async_op=True).is_completed
        return is_completed

    def broadcast_async(self, value: float) -> Callable[[], float]:
        """Start a broadcast. A thread of Gloo runs the broadcast, so this call returns at once."""
        box = self._torch.tensor([value], dtype=self._torch.float64)
        work = self._dist.broadcast(box, self._first, self._part, async_op=True)

        def received() -> float:
            work.wait()
            return float(box.item())

        return received

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time isolated calls on the host clock."""
        return _host.time_each(self._barrier, compiled, num_calls)

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time back-to-back calls on the host clock."""
        return _host.time_batch(self._barrier, compiled, num_calls)

    def time_together(
        self, collective: Compiled | None, num_calls: int, product: Compiled | None, num_products: int
    ) -> Together:
        """Time a collective and concurrent products. The products run on a separate thread."""
        return self._beside.run(self._barrier, collective, num_calls, product, num_products)

    def untrainable(self, plan: StepPlan) -> Skip | None:
        """Return why a plan cannot be trained.

        Possible reasons: layers cannot be compiled, the hook would compress nothing, or the order of the hook's
        exchanges would differ between ranks.
        """
        if plan.case.compiled and (why := _torch_compile.why_not(self._torch)):
            return Skip.of(GlooRefusal.NO_COMPILER, why=why)
        hook = plan.case.hook
        if not hook.startswith(POWERSGD):
            return None
        if plan.model is None:
            return Skip.of(GlooRefusal.NO_MATRICES)
        if plan.case.bucket < plan.gradient_bytes:
            return Skip.of(GlooRefusal.SEVERAL_BUCKETS, num_bytes=plan.gradient_bytes)
        return None

    def trainer(self, plan: StepPlan) -> Trainer:
        """Return a trainer on host memory."""
        return _torch_step.StepTrainer(self._torch, self.place.rank, plan, self._timeout_s)

    def checkpointer(self, plan: BurstPlan) -> Checkpointer:
        """Return an object that writes this rank's shard from host memory."""
        self._checkpoints = plan.folder
        return _torch_checkpoint.TorchCheckpointer(self._torch, self.place.rank, self.place.num_ranks, plan)


TRANSPORT = Gloo
