"""Gloo through torch.distributed: collectives over TCP from host memory, on any machine that has torch.

all_reduce and reduce have no out-of-place form in torch; their rows say in_place.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.core.ends import EndCode
from bench.core.errors import RefusedError, first_line
from bench.core.program import Collective, Group, Product, Round, Step, needs_device
from bench.core.traits import Traits
from bench.core.transport import Buffers, Compiled, Options, Reduction, Timing, Together, Transport
from bench.core.world import RankInfo
from bench.transports import _host, _torch, _torch_compute

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
)
_PROBE_BYTES = 64  # per rank: whole elements of every type


class Gloo(Transport):
    """One process group over all ranks, one thread of computation per rank."""

    clock = "host"
    in_place_only = frozenset({"allreduce", "reduce"})
    keeps_order = False  # torch sorts the ranks of a group
    num_threads = 2  # the caller and what moves the bytes
    calls_alone = True

    def __init__(self, place: RankInfo, options: Options) -> None:
        """Join the process group; `options.timeout_s` ends an operation whose peer does not answer.

        Raises RefusedError when torch is missing, or the ranks do not find each other.
        """
        self._alignment_bytes, self._tf32 = options.alignment_bytes, options.tf32
        self._timeout_s = options.timeout_s
        self._torch = _torch.load_torch()
        self._dist: Any = self._torch.distributed
        self._torch.set_num_threads(1)
        if place.local_size == place.num_ranks:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a host whose name does not resolve works, too
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
        self.channel = _torch.TorchChannel(self._dist, place)
        self._handles: dict[tuple[int, ...], Any] = {tuple(range(place.num_ranks)): self._dist.group.WORLD}
        self._barrier: Callable[[], Any] = self._dist.barrier
        self._lacks: dict[tuple[str, str, str], str | None] = {}
        self._beside = _torch_compute.OnHost(self._torch)

    def close(self) -> None:
        """Leave the process group."""
        self._dist.barrier()  # nobody leaves while another still reads: Gloo would call that a broken connection
        self._dist.destroy_process_group()

    def abort(self, exit_code: int) -> None:
        """Nothing: a rank that ends breaks the connections of the others, which then end, too."""

    def lost_contact(self, error: BaseException) -> bool:
        """A connection that broke, or a peer that did not answer in time."""
        return _torch.is_lost_contact(error)

    def facts(self) -> dict[str, str]:
        """torch's version and the interface used."""
        return {
            "torch": str(self._torch.__version__),
            "gloo_interface": os.environ.get("GLOO_SOCKET_IFNAME", "chosen by host name"),
            "buffer_alignment_bytes": str(self._alignment_bytes),
        }

    def supports(self, step: Step, reduction: Reduction, in_place: bool) -> str | None:
        """Found by asking: a tiny operation of this kind, type and reduction, once. All ranks must ask alike."""
        if isinstance(step, Product):
            return _torch_compute.why_not(reduction.dtype, self._tf32, on_gpu=False)
        if (reason := needs_device(step)) is not None:
            return f"Gloo: {reason}"
        if not isinstance(step, Collective):
            return None
        reduces = step.op in ("allreduce", "reduce", "reducescatter")
        key = (step.op, reduction.dtype, reduction.reduce_op if reduces else "sum")
        if key not in self._lacks:
            reasons = self.channel.share(self._probe(step.op, Reduction(key[1], key[2])))
            self._lacks[key] = next((reason for reason in reasons if reason), None)
        return self._lacks[key]

    def _probe(self, op: str, reduction: Reduction) -> str | None:
        num = self.place.num_ranks
        whole, block = _PROBE_BYTES * num, _PROBE_BYTES
        split = (block,) * num if op == "alltoallv" else ()
        send_bytes = block if op in ("allgather", "gather") else whole
        recv_bytes = block if op in ("reducescatter", "scatter") else whole
        group = Group("probe", tuple(range(num)))
        step = Collective(op, send_bytes, recv_bytes, 0, split, split)
        buffers = _host.HostBuffers(send_bytes, recv_bytes, 1)
        buffers.write("send", 0, 0)
        buffers.write("recv", 0, 0)
        try:
            self.compile((step,), group, buffers, reduction, op in self.in_place_only).calls[0]()
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            what = f"{op} of {reduction.dtype}" + (f" by {reduction.reduce_op}" if "reduc" in op else "")
            return f"Gloo has no {what} ({first_line(error)[:80]})"
        return None

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        """Host memory, touched; the tensors are views of it."""
        return _host.HostBuffers(send_bytes, recv_bytes, num_sets, self._alignment_bytes)

    def open_groups(self, groups: Round) -> None:
        """A process group per group."""
        _torch.open_groups(self._dist, groups, self._handles, self._timeout_s)

    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """Functions of torch.distributed with their tensors bound."""
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
        """Gloo's barrier."""
        self._barrier()

    def separate(self, parts: Round) -> None:
        """A process group for each part, and one in which all arrive."""
        mine = next(part for part in parts if self.place.rank in part.ranks)
        groups: dict[tuple[int, ...], Any] = {}
        _torch.open_groups(self._dist, parts, groups, self._timeout_s)
        # Who arrives first waits for the others' whole block: torch's own limit, half an hour, holds there.
        self._arrivals, self._part, self._first = self._dist.new_group(), groups[mine.ranks], mine.ranks[0]
        self._barrier = partial(self._dist.barrier, self._part)

    def arrive(self) -> Callable[[], bool]:
        """A barrier that a thread of Gloo's waits in."""
        is_completed: Callable[[], bool] = self._dist.barrier(self._arrivals, async_op=True).is_completed
        return is_completed

    def tell(self, value: float) -> Callable[[], float]:
        """A broadcast by a thread of Gloo's."""
        box = self._torch.tensor([value], dtype=self._torch.float64)
        work = self._dist.broadcast(box, self._first, self._part, async_op=True)

        def told() -> float:
            work.wait()
            return float(box.item())

        return told

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Isolated calls on the host clock."""
        return _host.time_each(self._barrier, compiled, num_calls)

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Back-to-back calls on the host clock."""
        return _host.time_batch(self._barrier, compiled, num_calls)

    def time_together(
        self, collective: Compiled | None, num_calls: int, product: Compiled | None, num_products: int
    ) -> Together:
        """Products by a thread of their own."""
        return self._beside.run(self._barrier, collective, num_calls, product, num_products)


TRANSPORT = Gloo
