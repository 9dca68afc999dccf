"""Run CUDA-aware MPI over GPU memory (mpi4py with CuPy arrays), one rank per GPU.

This transport makes the calls of the transport `mpi`. The transport `mpi` also provides the timing loop, which uses the
host's clock. MPI calls are complete when they return. MPI does not know streams. Before every call, the transport
therefore waits until CuPy's stream is idle. This wait is not timed. When the transport is opened, a separate process
checks whether the library can use GPU memory at all (_mpi_cuda_check.py).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from bench.core.errors import RefusedError
from bench.core.program import Group, Round, Step
from bench.core.record import Skip
from bench.core.traits import Traits
from bench.core.transport import Buffers, Compiled, Options, Reduction, Timing, Transport
from bench.core.world import RankInfo
from bench.transports import _arrival, _mpi_cuda_check, _mpi_cuda_staging
from bench.transports._cuda_device import load_cupy
from bench.transports._mpi_cuda_memory import MpiCudaBuffers, RankGpu
from bench.transports.mpi import ARRIVAL_S, Mpi, choose_library

TRAITS = Traits(
    launcher="mpirun",
    requires=("mpi4py", "cupy"),
    on_gpu=True,
    over_mpi=True,
    separates=True,
    factors=("thread_level", "sync", "loop", "timer"),
    nic_variables=("UCX_NET_DEVICES", "OMPI_MCA_btl_tcp_if_include"),
    library_facts=("mpi_library", "mpi_standard", "mpi_thread_level", "cuda", "cupy"),
    required_facts=("mpi_library", "mpi_thread_level", "mpi_cuda_answer"),
    required_versions=("mpi4py",),
    look=4,
)


class MpiCuda(Transport):
    """MPI on COMM_WORLD. This rank's buffers are on the GPU of its local rank."""

    clock = "host"
    calls_alone = True

    def __init__(self, place: RankInfo, options: Options) -> None:
        """Take the GPU, check the library in a separate process, and initialise MPI.

        Then time two messages from GPU memory: a direct message, and a message that is staged through the host.

        Raises RefusedError on every rank if some rank has no GPU, or if the library of some rank cannot use GPU memory.
        This method also raises all errors that the constructor of Mpi raises.
        """
        self._alignment_bytes = options.alignment_bytes
        choose_library(options.mpi)
        gpu, checked, reason = _prepared(place, options.share_gpu)
        # The first rank of a host checks the library for all ranks of the host. The other ranks wait for it in
        # MPI_Init.
        self._mpi = Mpi(place, options, ARRIVAL_S + _mpi_cuda_check.LIMIT_S)
        self.place, self.channel = place, self._mpi.channel
        self.nobody, self.sync_method = self._mpi.nobody, self._mpi.sync_method
        shared = self.channel.share((socket.gethostname(), reason, gpu.name if gpu else None))
        self._hosts = tuple(host for host, _, _ in shared)
        _refuse([reason for _, reason, _ in shared], self._hosts)
        assert gpu is not None
        self._gpu = gpu
        devices = {rank: f"{host} {name}" for rank, (host, _, name) in enumerate(shared)}
        self._num_sharing = list(devices.values()).count(devices[place.rank])
        if not options.share_gpu and (twice := _arrival.first_shared_gpu(devices)):
            raise RefusedError(_arrival.shared_gpu_error(*twice))
        self._available_bytes: int = min(self.channel.share(gpu.available_bytes(self._num_sharing)))
        self._tried: _mpi_cuda_check.Checked = self.channel.broadcast(checked)
        self._path, note = self._compared()
        notes = [*self._mpi.notes]
        if note:
            notes.append(note)
        if self._tried.denied:
            notes.append(
                f"the library reports that it cannot use GPU memory ({self._tried.answer}), but moved it correctly"
            )
        if self._num_sharing > 1:
            notes.append("ranks share a GPU: the times do not describe the links of one GPU")
        self.notes = tuple(notes)

    def _compared(self) -> tuple[str, str]:
        """Compare messages from device memory with staged messages.

        Return two texts: a fact for the header, and a note. If there is only one rank, both texts are empty.
        """
        other = _mpi_cuda_staging.partner(self._hosts)
        num_bytes = min(_mpi_cuda_staging.NUM_BYTES, self._available_bytes // 4)
        if other is None:
            return "", ""
        memory = _mpi_cuda_staging.room(self._gpu, num_bytes) if self.place.rank in (0, other) else ((), ())
        lacking = [rank for rank, has in enumerate(self.channel.share(memory is not None)) if not has]
        if lacking or memory is None:
            return "", f"not compared with staging through the host: rank {lacking[0]} has too little memory"
        device_s, staged_s = self.channel.broadcast(
            _mpi_cuda_staging.compare(*self._mpi.world_and_bytes(), self._gpu, other, memory)
        )
        return _mpi_cuda_staging.describe(device_s, staged_s, other, self._hosts, num_bytes)

    def close(self) -> None:
        """Wait until the GPU's stream is idle. MPI is finalised later, when the process ends."""
        self._gpu.finish()
        self._mpi.close()

    def abort(self, exit_code: int) -> None:
        """End every rank of the job at once."""
        self._mpi.abort(exit_code)

    def lost_contact(self, error: BaseException) -> bool:
        """Check an error as Mpi does."""
        return self._mpi.lost_contact(error)

    def facts(self) -> dict[str, str]:
        """Return the facts of the transport `mpi` and of the GPU, the CUDA report, and the comparison with staging."""
        own = {"mpi_cuda_answer": self._tried.answer, "mpi_cuda_tried": "device memory came through whole"}
        own |= {"device_messages": self._path} if self._path else {}
        own |= {"shared_gpu": "yes"} if self._num_sharing > 1 else {}
        return self._mpi.facts() | self._gpu.facts() | own

    def unsupported_reason(self, step: Step, reduction: Reduction, in_place: bool) -> Skip | None:
        """Return why MPI cannot run a step. The rules are those of the transport `mpi`."""
        return self._mpi.unsupported_reason(step, reduction, in_place)

    def available_bytes(self) -> int | None:
        """Return how many bytes of GPU memory each rank's buffers may use. The result is the minimum over all ranks."""
        return self._available_bytes

    def cache_bytes(self) -> int | None:
        """Return the size of the GPU's second-level cache."""
        return self._gpu.cache_bytes()

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        """Return GPU memory with every page written."""
        return self._gpu.allocate(send_bytes, recv_bytes, num_sets, self._alignment_bytes)

    def open_groups(self, groups: Round) -> None:
        """Make communicators for groups, as the transport `mpi` does."""
        self._mpi.open_groups(groups)

    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """Return the calls that the transport `mpi` makes, but with GPU addresses."""
        assert isinstance(buffers, MpiCudaBuffers)
        return self._mpi.compile(steps, group, buffers, reduction, in_place)

    def sync(self) -> None:
        """Wait until this rank's stream is idle, then for all ranks."""
        self._gpu.finish()
        self._mpi.sync()

    def before_each(self) -> None:
        """Wait in the barriers of Mpi. The stream is already idle."""
        self._mpi.before_each()

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time isolated calls on the host clock. Before each call, wait until the stream is idle."""
        self._gpu.finish()
        return self._mpi.time_each(compiled, num_calls)

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time back-to-back calls on the host clock. Before the first call, wait until the stream is idle."""
        self._gpu.finish()
        return self._mpi.time_batch(compiled, num_calls)

    def separate(self, parts: Round) -> None:
        """Make communicators for each part, as the transport `mpi` does."""
        self._mpi.separate(parts)

    def barrier_async(self) -> Callable[[], bool]:
        """Start a nonblocking barrier, as the transport `mpi` does."""
        return self._mpi.barrier_async()

    def broadcast_async(self, value: float) -> Callable[[], float]:
        """Start a nonblocking broadcast, as the transport `mpi` does."""
        return self._mpi.broadcast_async(value)


def _prepared(
    place: RankInfo, shared: bool
) -> tuple[RankGpu | None, _mpi_cuda_check.Checked | None, RefusedError | None]:
    """Find this rank's GPU and check the library. Return the GPU, the result of the check, and the error.

    A missing value is None. Only the first rank of a host checks the library. On the other ranks, the result of the
    check is None.
    """
    try:
        gpu = RankGpu(load_cupy(), place, shared)
    except RefusedError as error:
        return None, None, error
    if place.local_rank != 0:
        return gpu, None, None
    checked = _mpi_cuda_check.check(gpu.index, os.environ)
    return gpu, checked, None if checked.problem is None else RefusedError(_mpi_cuda_check.refusal(checked, os.environ))


def _refuse(reasons: list[RefusedError | None], hosts: tuple[str, ...]) -> None:
    """If some rank has an error, all ranks raise the error of the first such rank.

    If there are several hosts, the text names the host.
    """
    for rank, reason in enumerate(reasons):
        if reason is not None:
            raise type(reason)(f"{hosts[rank]}: {reason}" if len(set(hosts)) > 1 else str(reason))


TRANSPORT = MpiCuda
