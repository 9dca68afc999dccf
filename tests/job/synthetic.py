"""Synthetic traces of training jobs: a known schedule, its files as torch's profiler writes them, and the truth.

`write(folder, schedule, recording)` simulates the job on the true clock in whole nanoseconds. The parts of each step
are added up while the simulation runs, because it knows why a device is idle. The files are written as a `Recording`
says: in the style of a version of torch, by clocks that are off and drift, with events out of order or lost.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from statistics import median_high
from typing import Any

import numpy as np

from bench.core.step_trace import StepPart, StepSegment

_BEGIN_NS = 1_700_000_000_000_000_000  # unix time at which the job starts
_LAUNCH_NS, _LATENCY_NS, _SYNC_NS, _BETWEEN_STEPS_NS = 5_000, 3_000, 4_000, 1_000
_COMPUTE_STREAM, _EXCHANGE_STREAM = 7, 20
_BYTES_PER_ELEMENT = 4


class Style(Enum):
    """How a version of torch writes: year, ticks of its timestamps, names of NCCL's kernels, metadata."""

    V2021 = "2021"  # categories `Operator` and `Kernel`, whole microseconds of the unix clock, rank in the file's name
    V2023 = "2023"  # `cpu_op`, `ncclKernel_`, whole microseconds, sizes only as `Input Dims` of the call
    V2025 = "2025"  # `ncclDevKernel_`, nanoseconds since `baseTimeNanoseconds`, collectives with metadata

    @property
    def tick_ns(self) -> int:
        """The resolution of the timestamps."""
        return 1 if self is Style.V2025 else 1000


@dataclass(frozen=True)
class Late:
    """A rank whose segment takes longer, in all steps or in some."""

    rank: int
    segment: StepSegment
    extra_us: int
    steps: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Schedule:
    """What each rank does in a step. Times in microseconds; of kernels per layer, of exchanges each.

    blocking: after each layer's forward pass all ranks exchange, and wait (tensor parallel). Otherwise gradients are
    exchanged in buckets during the backward pass. gap_us: before each launch of the forward pass. noise: relative
    spread of all durations. first_step: the number in the first step's name. begin_s: when the job starts.
    """

    num_ranks: int = 4
    num_steps: int = 4
    num_layers: int = 4
    blocking: bool = False
    exchanges: bool = True
    layers_per_bucket: int = 2
    data_us: int = 300
    host_us: int = 40
    copy_us: int = 60
    forward_us: int = 100
    backward_us: int = 200
    optimizer_us: int = 80
    transfer_us: int = 150
    gap_us: int = 0
    noise: float = 0.0
    num_elements: int = 1 << 18
    late: tuple[Late, ...] = ()
    first_step: int = 3
    begin_s: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Recording:
    """How the files are written. Offsets and drifts are those of the hosts' clocks.

    end_spread_us: the ends of one exchange differ by up to this between ranks. lost: by rank, the numbers of exchanges
    whose kernels are missing. ranks: only these have a file. first_steps: the first step that a rank recorded.
    """

    style: Style = Style.V2025
    ranks_per_host: int = 4
    offsets_us: tuple[int, ...] = ()
    drifts_ppm: tuple[float, ...] = ()
    end_spread_us: int = 0
    is_shuffled: bool = False
    is_packed: bool = False
    lost: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    ranks: tuple[int, ...] | None = None
    first_steps: Mapping[int, int] = field(default_factory=dict)


@dataclass
class Truth:
    """What happened. By rank and step: the parts, the start on the true clock and the length, in seconds.

    late: for each phase its step, the last rank, and by how much it was later than the (lower) median of the others.
    """

    parts: dict[tuple[int, int], dict[StepPart, float]] = field(default_factory=dict)
    starts_s: dict[tuple[int, int], float] = field(default_factory=dict)
    steps_s: dict[tuple[int, int], float] = field(default_factory=dict)
    late: list[tuple[int, int, float]] = field(default_factory=list)


def write(folder: Path, schedule: Schedule, recording: Recording | None = None) -> Truth:
    """Simulate a job and write one file for each rank. Returns the truth."""
    recording = recording or Recording()
    job = _Job(schedule, recording)
    for step in range(schedule.num_steps):
        job.step(step)
    for rank in range(schedule.num_ranks) if recording.ranks is None else recording.ranks:
        _write_rank(folder, job.ranks[rank], schedule, recording)
    return job.truth


class _Rank:
    """One rank: how far its host and the streams of its device are, its events, and the parts of the current step."""

    def __init__(self, rank: int, begin_ns: int) -> None:
        self.rank = rank
        self.host = self.device = self.exchange = begin_ns
        self.events: list[dict[str, Any]] = []
        self.parts: dict[StepPart, int] = {}
        self.num_exchanges = self._correlation = 0

    def host_event(self, category: str, name: str, start: int, end: int, on_main: bool = True, **args: Any) -> None:
        """Record an operator, an annotation or a call of the runtime."""
        pid = 1000 + self.rank
        tid = pid if on_main else pid + 1
        self.events.append(_event(category, name, start, end, pid, tid, {"External id": len(self.events) + 1, **args}))

    def launch(self, call: str, on_main: bool = True) -> tuple[int, int]:
        """Call the runtime. Returns the start of the call and its correlation."""
        self._correlation += 1
        start = self.host
        self.host += _LAUNCH_NS
        self.host_event("cuda_runtime", call, start, self.host, on_main, cbid=211, correlation=self._correlation)
        return start, self._correlation

    def device_event(
        self, category: str, name: str, span: tuple[int, int], stream: int, number: int, **args: Any
    ) -> None:
        """Record a kernel or a copy, and the arrow from its launch."""
        stated = {"External id": number, "device": 0, "context": 1, "stream": stream, "correlation": number, **args}
        self.events.append(_event(category, name, *span, 0, stream, stated))
        arrow = {
            "ph": "f",
            "id": number,
            "pid": 0,
            "tid": stream,
            "ts": span[0],
            "cat": "ac2g",
            "name": "ac2g",
            "bp": "e",
        }
        self.events.append(arrow)

    def run(self, part: StepPart, category: str, name: str, launch: int, number: int, length: int, **args: Any) -> None:
        """Run a kernel or a copy on the compute stream, and account for the time that the device was idle before."""
        start = max(self.device, launch + _LATENCY_NS)
        self.add(StepPart.HOST_BOUND if launch > self.device else StepPart.OTHER, start - self.device)
        self.device_event(category, name, (start, start + length), _COMPUTE_STREAM, number, **args)
        self.add(part, length)
        self.device = start + length

    def add(self, part: StepPart, length: int) -> None:
        """Account for a time of the device."""
        self.parts[part] = self.parts.get(part, 0) + length


class _Job:
    """The simulation of all ranks."""

    def __init__(self, schedule: Schedule, recording: Recording) -> None:
        self._schedule, self._recording = schedule, recording
        self._random = np.random.default_rng(schedule.seed)
        begin = _BEGIN_NS + round(schedule.begin_s * 1e9)
        self.ranks = [_Rank(rank, begin) for rank in range(schedule.num_ranks)]
        self.truth = Truth()

    def step(self, step: int) -> None:
        """Run one step on all ranks."""
        starts = [rank.host for rank in self.ranks]
        for rank in self.ranks:
            if step == self._recording.first_steps.get(rank.rank, 0):
                rank.events.clear()
            rank.parts = dict.fromkeys(StepPart, 0)
            self._feed(rank, step)
        self._forward_pass(step)
        self._backward_pass(step)
        for rank, start in zip(self.ranks, starts, strict=True):
            self._finish(rank, step, start)

    def _forward_pass(self, step: int) -> None:
        for _ in range(self._schedule.num_layers):
            for rank in self.ranks:
                self._forward(rank, step)
            if self._schedule.blocking and self._schedule.exchanges:
                self._wait(step, self._exchange(on_main=True))

    def _backward_pass(self, step: int) -> None:
        schedule = self._schedule
        ready = None
        for layer in range(schedule.num_layers):
            for rank in self.ranks:
                self._backward(rank, step)
            is_bucket = (layer + 1) % schedule.layers_per_bucket == 0 or layer + 1 == schedule.num_layers
            if is_bucket and schedule.exchanges and not schedule.blocking:
                ready = self._exchange(on_main=False)
        if ready is not None:
            self._wait(step, ready)

    def _ns(self, rank: _Rank, step: int, segment: StepSegment, length_us: float, num: int = 1) -> int:
        """Return a duration with noise, in ticks of the clock.

        A rank that is late in this segment takes longer. The lateness is divided among the `num` layers of a segment.
        """
        if self._schedule.noise:
            length_us *= 1 + self._schedule.noise * float(self._random.standard_normal())
        for late in self._schedule.late:
            if (late.rank, late.segment) == (rank.rank, segment) and (late.steps is None or step in late.steps):
                length_us += late.extra_us / num
        tick = self._recording.style.tick_ns
        return max(round(length_us * 1000 / tick), 1) * tick

    def _feed(self, rank: _Rank, step: int) -> None:
        """Await the next batch, spend time on the host, and copy the batch to the device."""
        begin = rank.host
        data = self._ns(rank, step, StepSegment.DATA, self._schedule.data_us)
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        rank.host_event("user_annotation", name, begin, begin + data)
        rank.host += data + self._ns(rank, step, StepSegment.HOST, self._schedule.host_us)
        length = self._ns(rank, step, StepSegment.H2D, self._schedule.copy_us)
        launch, number = rank.launch("cudaMemcpyAsync")
        rank.device = begin + data  # idle since the last step; the loader is awaited first
        rank.add(StepPart.DATA_WAIT, data)
        name = "Memcpy HtoD (Pinned -> Device)"
        rank.run(StepPart.EXPOSED_COPY, "gpu_memcpy", name, launch, number, length, bytes=1 << 20)

    def _forward(self, rank: _Rank, step: int) -> None:
        rank.host += self._schedule.gap_us * 1000
        schedule = self._schedule
        length = self._ns(rank, step, StepSegment.FORWARD, schedule.forward_us, schedule.num_layers)
        begin = rank.host
        launch, number = rank.launch("cudaLaunchKernel")
        rank.host_event("cpu_op", "aten::linear", begin, rank.host)
        rank.run(StepPart.COMPUTE, "kernel", "void gemm_forward<float>(float*)", launch, number, length)

    def _backward(self, rank: _Rank, step: int) -> None:
        schedule = self._schedule
        length = self._ns(rank, step, StepSegment.BACKWARD, schedule.backward_us, schedule.num_layers)
        begin = rank.host
        launch, number = rank.launch("cudaLaunchKernel", on_main=False)
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        rank.host_event("cpu_op", name, begin, rank.host, on_main=False)
        rank.run(StepPart.COMPUTE, "kernel", "void gemm_backward<float>(float*)", launch, number, length)

    def _exchange(self, on_main: bool) -> list[int]:
        """Launch one allreduce on all ranks. Returns when each rank was ready for it."""
        schedule = self._schedule
        tick = self._recording.style.tick_ns
        launches = []
        for rank in self.ranks:
            begin = rank.host
            launches.append(rank.launch("cudaLaunchKernelExC", on_main))
            shape = {"Input Dims": [[schedule.num_elements]], "Input type": ["float"]}
            stated = shape if self._recording.style is Style.V2023 else {}
            rank.host_event("user_annotation", "nccl:all_reduce", begin, rank.host, on_main, **stated)
        ready = [max(rank.device, launch + _LATENCY_NS) for rank, (launch, _) in zip(self.ranks, launches, strict=True)]
        starts = [max(rank.exchange, own) for rank, own in zip(self.ranks, ready, strict=True)]
        end = max(starts) + schedule.transfer_us * 1000
        spread = self._recording.end_spread_us * 1000 // tick
        for rank, start, (_, number) in zip(self.ranks, starts, launches, strict=True):
            rank.exchange = end + (int(self._random.integers(spread + 1)) * tick if spread else 0)
            if rank.num_exchanges not in self._recording.lost.get(rank.rank, ()):
                name, args = self._kernel(rank.num_exchanges)
                rank.device_event("kernel", name, (start, rank.exchange), _EXCHANGE_STREAM, number, **args)
            rank.num_exchanges += 1
        return ready

    def _kernel(self, place: int) -> tuple[str, dict[str, Any]]:
        """Return the name and the metadata of the kernel of an allreduce."""
        if self._recording.style is not Style.V2025:
            return "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", {}
        ranks = [*range(self._schedule.num_ranks)]
        return "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", {
            "Collective name": "allreduce",
            "In msg nelems": self._schedule.num_elements,
            "Out msg nelems": self._schedule.num_elements,
            "Group size": len(ranks),
            "dtype": "Float",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(ranks) if len(ranks) < 30 else f"{str(ranks[:28])[:-1]}, ..., {ranks[-1]}]",
            "Seq": place + 1,
        }

    def _wait(self, step: int, ready: Sequence[int]) -> None:
        """Let all devices wait for the last exchange, and account for it: until the last was ready, and thereafter."""
        last = max(ready)
        for rank in self.ranks:
            if rank.exchange > rank.device:
                late = max(min(last, rank.exchange) - rank.device, 0)
                rank.add(StepPart.IMBALANCE, late)
                rank.add(StepPart.EXPOSED_EXCHANGE, rank.exchange - rank.device - late)
                rank.device = rank.exchange
        if len(ready) > 1:
            late_rank = ready.index(last)
            others = [last - own for place, own in enumerate(ready) if place != late_rank]
            self.truth.late.append((step, late_rank, median_high(others) * 1e-9))

    def _finish(self, rank: _Rank, step: int, start: int) -> None:
        """Run the optimizer, synchronise the device, and end the step."""
        begin = rank.host
        length = self._ns(rank, step, StepSegment.OPTIMIZER, self._schedule.optimizer_us)
        launch, number = rank.launch("cudaLaunchKernel")
        rank.host_event("user_annotation", "Optimizer.step#SGD.step", begin, rank.host)
        rank.run(StepPart.COMPUTE, "kernel", "void multi_tensor_apply<float>(float*)", launch, number, length)
        begin = rank.host
        rank.host = max(rank.host, rank.device) + _SYNC_NS
        rank.host_event("cuda_runtime", "cudaDeviceSynchronize", begin, rank.host, cbid=165, correlation=0)
        rank.add(StepPart.HOST_BOUND, rank.host - rank.device)
        rank.host_event("user_annotation", f"ProfilerStep#{self._schedule.first_step + step}", start, rank.host)
        key = (rank.rank, step)
        self.truth.parts[key] = {part: length * 1e-9 for part, length in rank.parts.items()}
        self.truth.starts_s[key] = (start - _BEGIN_NS) * 1e-9
        self.truth.steps_s[key] = (rank.host - start) * 1e-9
        rank.host += _BETWEEN_STEPS_NS


def _event(
    category: str, name: str, start: int, end: int, pid: int, tid: int, args: Mapping[str, Any]
) -> dict[str, Any]:
    where = {"pid": pid, "tid": tid, "ts": start, "dur": end - start}
    return {"ph": "X", "cat": category, "name": name, **where, "args": dict(args)}


_CATEGORIES_2021 = {
    "cpu_op": "Operator",
    "user_annotation": "Operator",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "cuda_runtime": "Runtime",
}


def _write_rank(folder: Path, rank: _Rank, schedule: Schedule, recording: Recording) -> None:
    """Write the file of one rank, as its host's clock reads."""
    host = rank.rank // recording.ranks_per_host
    offset = recording.offsets_us[host] * 1000 if recording.offsets_us else 0
    drift = recording.drifts_ppm[host] * 1e-6 if recording.drifts_ppm else 0.0
    base = (_BEGIN_NS + offset) // 10**9 * 10**9 if recording.style is Style.V2025 else 0

    def clock(time: int) -> int | float:
        own = time + offset + round((time - _BEGIN_NS) * drift) - base
        return own / 1000 if recording.style is Style.V2025 else own // 1000

    events = []
    for event in rank.events:
        written = {**event, "ts": clock(event["ts"])}
        if "dur" in event:
            written["dur"] = round(clock(event["ts"] + event["dur"]) - written["ts"], 3)
        if recording.style is Style.V2021:
            written["cat"] = _CATEGORIES_2021.get(event["cat"], event["cat"])
        events.append(written)
    if recording.is_shuffled:
        order = np.random.default_rng(schedule.seed + rank.rank).permutation(len(events))
        events = [events[place] for place in order]
    document: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108}],
        "displayTimeUnit": "ms",
    }
    if recording.style is not Style.V2021:
        world = {"backend": "nccl", "rank": rank.rank, "world_size": schedule.num_ranks}
        document |= {"distributedInfo": world, "host_name": f"node{host}"}
    if recording.style is Style.V2025:
        document["baseTimeNanoseconds"] = base
    text = json.dumps({**document, "traceEvents": events})
    if recording.is_packed:
        (folder / f"worker{rank.rank}.pt.trace.json.gz").write_bytes(gzip.compress(text.encode(), 1))
    else:
        (folder / f"worker{rank.rank}.pt.trace.json").write_text(text)
