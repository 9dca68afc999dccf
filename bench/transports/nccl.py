"""NCCL through torch.distributed: one rank per GPU, timed by CUDA events on the stream that runs the operation.

The control plane and the synchronisation before each call go over Gloo, apart from the measured path. all_reduce and
reduce have no out-of-place form in torch; their rows say in_place.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from bench.core.errors import RefusedError
from bench.core.program import Collective, Group, Product, Round, Step
from bench.core.transport import Buffers, Compiled, Options, Reduction, Timing, Together, Transport
from bench.core.world import Place
from bench.transports import _device, _torch, _torch_compute

_TYPES = frozenset({"float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8",
                    "float8_e4m3fn", "float8_e5m2"})  # fmt: skip
_OPS = frozenset({"sum", "prod", "min", "max", "avg"})


class Nccl(Transport):
    """One process group over all ranks, this rank on the GPU of its local rank."""

    clock = "device"
    launcher = "torchrun"
    in_place_only = frozenset({"allreduce", "reduce"})
    keeps_order = False  # torch sorts the ranks of a group
    requires = ("torch",)
    needs_gpu = True
    num_threads = 2  # the caller and what moves the bytes

    def __init__(self, place: Place, options: Options) -> None:
        """Join the process group. Raises RefusedError when this rank has no GPU of its own."""
        self._torch = _torch.load_torch()
        self._dist: Any = self._torch.distributed
        num_gpus = self._torch.cuda.device_count() if self._torch.cuda.is_available() else 0
        if num_gpus < place.local_size:
            raise RefusedError(
                f"rank {place.rank}: {place.local_size} ranks on this host need a GPU each, torch sees {num_gpus}: "
                "start fewer ranks per node, or use another transport (mpi, gloo)"
            )
        self._device = self._torch.device("cuda", place.local_rank)
        self._torch.cuda.set_device(self._device)
        # With the device named, the communicator is made now and not inside the first measured operation.
        _torch.open_process_group(self._torch, place, "nccl", options.timeout_s, self._uuid(), device_id=self._device)
        self._control = self._dist.new_group(backend="gloo", timeout=timedelta(seconds=options.timeout_s))
        self._tf32, self._beside = options.tf32, _torch_compute.OnGpu(self._torch)
        self.place = place
        self.channel = _torch.TorchChannel(self._dist, place, self._control)
        self._handles: dict[tuple[int, ...], Any] = {tuple(range(place.num_ranks)): self._dist.group.WORLD}

    def _uuid(self) -> str | None:
        """What names this rank's GPU in all the world; None where torch does not say, or sharing was asked for."""
        if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1":
            return None
        found = getattr(self._torch.cuda.get_device_properties(self._device), "uuid", None)
        return None if found is None else f"GPU-{found}"

    def close(self) -> None:
        """Leave the process group."""
        self._torch.cuda.synchronize()
        self._dist.barrier(self._control)
        self._dist.destroy_process_group()

    def abort(self, exit_code: int) -> None:
        """Nothing: the launcher ends the other ranks, and the time-out of their operations does otherwise."""

    def lost_contact(self, error: BaseException) -> bool:
        """A peer that is gone, as the control plane over Gloo or NCCL's own watchdog says it."""
        return isinstance(error, RuntimeError) and _torch.is_lost_contact(error)

    def facts(self) -> dict[str, str]:
        """Versions, and the GPU of rank 0."""
        return {
            "torch": str(self._torch.__version__),
            "cuda": str(self._torch.version.cuda),
            "nccl": ".".join(map(str, self._torch.cuda.nccl.version())),
            "gpu": str(self._torch.cuda.get_device_name(self._device)),
        }

    def supports(self, step: Step, reduction: Reduction, in_place: bool) -> str | None:
        """NCCL's element types and reductions, and products of matrices by the same library."""
        if isinstance(step, Product):
            return _torch_compute.why_not(reduction.dtype, self._tf32, on_gpu=True)
        if reduction.dtype not in _TYPES:
            return f"NCCL has no element type {reduction.dtype}"
        reduces = isinstance(step, Collective) and step.op in ("allreduce", "reduce", "reducescatter")
        return f"NCCL has no reduction {reduction.reduce_op}" if reduces and reduction.reduce_op not in _OPS else None

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        """Device memory, written before use."""
        arrays = _device.TorchArrays(self._torch, self._device)
        return _device.DeviceBuffers(
            _device.Block(arrays, send_bytes, num_sets), _device.Block(arrays, recv_bytes, num_sets)
        )

    def open_groups(self, groups: Round) -> None:
        """A process group per group; torch wants every rank to make every group."""
        for group in groups:
            if group.ranks not in self._handles:
                self._handles[group.ranks] = self._dist.new_group(list(group.ranks))

    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """Functions of torch.distributed with their tensors bound; point-to-point always as one batch.

        A plain send or receive would build a communicator of its own for every pair of ranks.
        """
        assert isinstance(buffers, _device.DeviceBuffers)
        memory = [(buffers.view("send", k), buffers.view("recv", k)) for k in range(buffers.num_sets)]
        if steps and isinstance(steps[0], Product):
            products = _torch_compute.calls(self._torch, steps[0], memory, reduction.dtype, self._tf32)
            return Compiled(products, keep=[buffers])
        handle = self._handles.get(group.ranks)
        calls = _torch.bound_calls(
            self._torch, steps, group, handle, self.place.rank, memory, reduction, in_place, always_batch=True
        )
        return Compiled(calls, keep=[buffers])

    def sync(self) -> None:
        """This rank's stream is idle, then all ranks wait for each other on the host."""
        self._torch.cuda.synchronize()
        self._dist.barrier(self._control)

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Isolated calls between two events each."""
        return Timing(tuple(s for _ in range(num_calls) for s in self._timed(compiled, 1)), "python")

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Back-to-back calls between two events."""
        return Timing(self._timed(compiled, num_calls), "python")

    def time_together(
        self, collective: Compiled | None, num_calls: int, product: Compiled | None, num_products: int
    ) -> Together:
        """Products on a stream of their own."""
        return self._beside.run(self.sync, collective, num_calls, product, num_products)

    def _timed(self, compiled: Compiled | None, num_calls: int) -> tuple[float, ...]:
        """Seconds per call of `num_calls` calls on the current stream; nothing on an idle rank."""
        if compiled is None:
            self.sync()
            return ()
        num_sets = len(compiled.calls)
        order = [(compiled.next_set + k) % num_sets for k in range(num_calls)]
        for index in order if compiled.refill is not None else ():
            compiled.refill(index)  # type: ignore[misc]
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.sync()
        begin.record()
        for index in order:
            compiled.calls[index]()
        end.record()
        end.synchronize()
        compiled.last_set, compiled.next_set = order[-1], (order[-1] + 1) % num_sets
        return (begin.elapsed_time(end) * 1e-3 / num_calls,)


TRANSPORT = Nccl
