"""Define a profiler's record of a training job on one rank. All readers of traces produce this form.

A reader in `logs/traces/` fills a `RankTrace` from a file. The package `job/` matches the traces of the ranks and
explains the steps. All times are in seconds since `RankTrace.epoch_s`, by the clock of the file. The times of two ranks
can be compared only after `job/align.py` has aligned the clocks.

Events are stored in numpy arrays, because a trace has many events with the same few fields. An *array of spans* has the
shape (n, 2) and the type float64. A row has the start and the end of one event, and rows are sorted by start. Spans may
overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from bench.core.codes import Coded

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bench.core.spans import Spans


class StepPhase(StrEnum):
    """The part of the training program that a rank's host executes. Time outside all other phases belongs to `host`."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class StepPart(StrEnum):
    """One part of the time of a rank's step.

    The parts do not overlap, and their times add up to the time of the step.
    """

    DATA_WAIT = "data_wait"  # the rank waited for the loader's next batch, and the device was idle
    COMPUTE = "compute"  # the device computed (or the host, if there is no device)
    IMBALANCE = "imbalance"  # the rank waited for a rank that arrived later at an exchange
    EXPOSED_EXCHANGE = "exposed_exchange"  # all ranks had arrived, and the data were still moving
    EXPOSED_COPY = "exposed_copy"  # copies to or from the device while neither compute nor an exchange ran
    HOST_BOUND = "host_bound"  # the device was idle because the host had not yet launched the next work
    OTHER = "other"


class StepSegment(StrEnum):
    """What a late rank did while the other ranks waited for this rank."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    HOST = "host"
    H2D = "h2d"


class Direction(StrEnum):
    """The direction of a copy."""

    H2D = "h2d"
    D2H = "d2h"
    D2D = "d2d"
    P2P = "p2p"


class WaitKind(StrEnum):
    """The reason why a rank's host thread waits."""

    SYNC = "sync"  # it waits for a stream, an event or the device: cudaStreamSynchronize
    ITEM = "item"  # it waits for a value from the device: item(), a copy to the host
    ALLOCATOR = "allocator"  # cudaMalloc, cudaFree and the like
    EXCHANGE = "exchange"  # it waits for a collective (only without a device)


@dataclass(frozen=True, slots=True)
class TracedCollective:
    """One collective or message of one rank.

    A lane is the stream or thread that runs the collective. Collectives of the same lane run one after another.

    `group`: the name of the process group. If the source does not state the name, it is '', and readers assume one
        group.
    `members`: the ranks of the group in order, if stated.
    `place`: the number of earlier collectives of this group in this file. The n-th collective of a group on one rank is
        the n-th collective of the group on every other rank.
    `seq`: the library's own sequence number, if stated.
    `op`: `allreduce`, `reduce_scatter`, `allgather`, `alltoall`, `broadcast`, `reduce`, `gather`, `scatter`, `barrier`,
        `send`, `recv`, `sendrecv`, or the source's own word.
    `num_bytes`: the payload of one rank as defined in docs/metrics.md, or None if unknown.
    `peer`: the other rank of a message.
    `start_s`, `end_s`: the time of the collective's kernel on the device. For a host library, they are the time of the
        transfer by a thread of the library.
    `called_s`: the time of the host's call. If there is no device, the rank arrives at the collective at this time.
    `launch_s`: the time when the host starts to launch the kernel.
    `lane`: the stream or thread that ran the collective.
    `duration_s`: the duration, if the source states it without a start and an end. The property `timed` is then false.
    `ready_s`: the time at which the rank was ready, if the kernel had to wait for an earlier collective of its lane.
        `job/matching.py` sets this time.
    """

    op: str
    place: int
    start_s: float
    end_s: float
    group: str = ""
    members: tuple[int, ...] | None = None
    group_size: int | None = None
    seq: int | None = None
    num_bytes: int | None = None
    dtype: str | None = None
    peer: int | None = None
    called_s: float | None = None
    launch_s: float | None = None
    lane: str = ""
    timed: bool = True  # false: the source states the call, but not when the collective ran
    duration_s: float | None = None
    ready_s: float | None = None

    @property
    def arrival_s(self) -> float:
        """The time at which this rank was ready to take part in the collective.

        On a device, the rank is ready when the kernel could start. Without a device, the rank is ready when the host
        makes the call.
        """
        if self.ready_s is not None:
            return self.ready_s
        return self.start_s if self.launch_s is not None or self.called_s is None else self.called_s


@dataclass(frozen=True, slots=True)
class TracedCopy:
    """One copy by the device.

    `pinned`: whether the host memory is page-locked, or None if unknown.
    """

    direction: Direction
    start_s: float
    end_s: float
    num_bytes: int | None = None
    pinned: bool | None = None
    launch_s: float | None = None


@dataclass(frozen=True, slots=True)
class HostWait:
    """A wait of the host thread, from start to end.

    name: the name of the call in the source.
    """

    kind: WaitKind
    start_s: float
    end_s: float
    name: str = ""


@dataclass(frozen=True, slots=True)
class RankCpus:
    """The CPUs that a rank may use, and the CPU time that the rank got according to the kernel's counters.

    cpus: the CPUs on which the rank may run.
    quota: the number of CPUs that control groups grant; None without a limit.
    times_s: Unix times of the samples, ascending, of shape (n,).
    used_s: for each sample, the CPU seconds of all the rank's threads until then.
    waited_s: for each sample, the seconds until then in which the main thread was ready to run but had no CPU.
    """

    cpus: frozenset[int]
    quota: float | None
    times_s: NDArray[np.float64]
    used_s: NDArray[np.float64]
    waited_s: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The trace of one rank of one job.

    `source`: the path of the file.
    `rank`, `world_size`, `host`, `device_name`: None if the file does not state them.
    `epoch_s`: the Unix time of time 0, if known.
    `num_events`: the number of events that were read.
    `on_device`: whether `compute` has the kernels of a device. If there is no device, `compute` has the operators of
        the host's threads, except operators that wait for collectives.
    `steps`: the spans of whole steps. The source marks steps by `ProfilerStep#`, by NVTX ranges, or by repeated
        markers. `steps` is empty if the source has no such marks.
    `step_names`: the names of the steps.
    `compute`: spans of work.
    `compute_launch_s`: for each span of `compute`, the time when its launch started, as an array of shape (n,). Unknown
        times are NaN.
    `compute_kind`: for each span of `compute`, a number. Kernels with the same name and grid have the same number. The
        field is None if the source states no name and grid.
    `cpus`: CPU samples, if they were recorded.
    `phases`: spans of the main thread by StepPhase.
    `remarks`: which data the file lacks or has lost, and which of its data contradict each other.
    """

    source: str
    on_device: bool
    compute: Spans
    compute_launch_s: NDArray[np.float64]
    collectives: tuple[TracedCollective, ...] = ()
    copies: tuple[TracedCopy, ...] = ()
    waits: tuple[HostWait, ...] = ()
    phases: Mapping[StepPhase, Spans] = field(default_factory=lambda: MappingProxyType({}))
    steps: tuple[tuple[float, float], ...] = ()
    step_names: tuple[str, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    device_name: str | None = None
    backend: str | None = None
    epoch_s: float | None = None
    num_events: int = 0
    compute_kind: NDArray[np.int32] | None = None
    cpus: RankCpus | None = None
    facts: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    remarks: tuple[Coded, ...] = ()
