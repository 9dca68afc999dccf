"""Results of training steps, of checkpoints, and of reading data sets. Each result combines several samples or rows.

Rates are in bytes per second and times in seconds. An unknown value is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bench.core.codes import Coded

BOUND_SHARE = 0.7  # share of a bound; a pass that reaches this share is limited by the bound
EXCEEDED = 1.2  # factor between the rate of a pass and a reference; a reference that is exceeded more limits nothing
HIDDEN_SHARE = 0.05  # share of a step; a shorter wait counts as hidden


@dataclass(frozen=True, slots=True)
class Removal:
    """The time that a step saves if one cause of delay, such as the exchange, is removed.

    `seconds`: the time that the step without the cause saves, as the median over pairs of blocks. Its 95 % interval
        is over the pairs of a single launch, or over several launches.
    `inside_s`: the time that the step would save according to the clocks inside the full step, with its interval.
    """

    seconds: float
    low_s: float | None
    high_s: float | None
    inside_s: float
    inside_low_s: float | None
    inside_high_s: float | None


@dataclass(frozen=True, slots=True)
class StepRates:
    """Rates of all ranks together, computed from the time of a training step.

    Unknown values are None.

    `samples`: the number of training samples in one step.
    `flops_per_s`: the operations per second. The number of operations comes from a formula.
    `mfu`: `flops_per_s` / the dense rate in the data sheets.
    `counted_over_formula`: the number of operations that torch counted / the number that the formula gives.
    `peak_bytes`: the measured peak memory of each rank.
    `predicted_bytes`: the memory that a rank is expected to need.
    """

    samples: float
    samples_per_s: float
    tokens_per_s: float | None
    flops_per_s: float | None
    mfu: float | None
    counted_over_formula: float | None
    peak_bytes: Mapping[str, tuple[int, ...]]
    predicted_bytes: int | None
    joules_per_sample: float | None
    usd_per_sample: float | None


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """A training step, with the times of its parts.

    `step_s`: the median step of the slowest rank, without clocks inside the step.
    `parts_s[part][r]`: mean seconds of rank r in the middle half of the samples; the parts of a rank sum to its step
        with clocks.
    `disagree`: the causes of delay for which the two intervals of a Removal are more than 2 % of a step apart.
    `efficiency`: the time of a step without exchange / the time of a full step, both with clocks.
    `instruments`: the time that the clocks and the hook add to a step, as a fraction of a step without instruments.
    `late_rank`: the rank for which the other ranks wait, or None if no rank is always late.
    `late_segment`: the segment of the late rank's step that takes longer than on the other ranks.
    `bucket_bytes`: the bytes of each bucket.
    `bucket_s`: the seconds from the moment when a bucket is ready on rank 0 until it is exchanged.
    `options`: the options that differ from their defaults, as on a command line.
    `gradient_error`: the norm of the error of compressed gradients / the norm of the exact gradients.
    `learned`: the losses of a small problem (see `StepSamples.learned`).
    `profiler`: the time that torch's profiler adds to a step, as a fraction of a step without profiler, or None without
        a trace. All other figures are from steps without profiler.
    """

    job: str
    transport: str
    strategy: str
    gradient_bytes: int
    num_ranks: int
    step_s: float
    low_s: float | None
    high_s: float | None
    parts_s: Mapping[str, tuple[float, ...]]
    exposed_by_removal: Removal
    loader_by_removal: Removal
    copies_by_removal: Removal
    disagree: tuple[str, ...]
    efficiency: float
    instruments: float | None
    instruments_low: float | None
    instruments_high: float | None
    late_rank: int | None
    late_s: float
    late_segment: str | None
    bucket_bytes: tuple[int, ...]
    bucket_s: tuple[float, ...]
    num_launches: int
    rates: StepRates
    options: Mapping[str, str] = field(default_factory=dict)
    gradient_error: float | None = None
    learned: Mapping[str, float] = field(default_factory=dict)
    profiler: float | None = None


@dataclass(frozen=True, slots=True)
class StepScalingPoint:
    """A training step that was measured on a certain number of ranks.

    `speedup`: the work per second, relative to the smallest number of ranks.
    `low`, `high`: the 95 % interval of the speed-up, from the intervals of this step and of the reference step.
        Both are None for the reference itself, or if one of the two steps has no interval, for example with two
        launches.
    `bound`: the speed-up if the exchange were as fast as the links permit, or None if unknown.
    """

    job: str
    num_ranks: int
    num_nodes: int
    step_s: float
    speedup: float
    low: float | None
    high: float | None
    ideal: float
    bound: float | None


@dataclass(frozen=True, slots=True)
class StepScaling:
    """A training step on increasing numbers of ranks.

    `kind`: "weak" if the work of each rank is fixed, "strong" if the total work is fixed.
    `stops_at`: the number of ranks above which more ranks gain less than 10 %, or None if every increase gains at least
        10 %.
    `reason`: why the gain is less than 10 %, or None if `stops_at` is None.
    """

    kind: str
    job: str
    transport: str
    strategy: str
    points: tuple[StepScalingPoint, ...]
    stops_at: int | None
    reason: Coded | None


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """Checkpoints that all ranks write at the same time, during training steps. All values are medians.

    `step_s`: the time of a step without a checkpoint.
    `write_s`: the time until the slowest rank's shard is durable.
    `stall_s`: the time that a checkpoint adds to the steps, with its 95 % interval.
    `blocked_s`: the first part of the stall, until the next step can begin.
    `slowest_rank`: the rank that was the slowest in most bursts, or None if there is no such rank.
    `slowest_behind`: the fraction by which the slowest rank takes longer than the median rank. 0 if no rank is the
        slowest.
    `exchange_during_s`: the time of an exchange while ranks write the checkpoint. None if no step ran at that time.
    `read_s`: the time to read the slowest rank's shard back.
    `device_share`: bytes read from the device / bytes of the shard.
    """

    job: str
    method: str
    shard_bytes: int
    num_ranks: int
    num_bursts: int
    write_s: float
    blocked_s: float
    stall_s: float
    stall_low_s: float | None
    stall_high_s: float | None
    step_s: float
    slowest_rank: int | None
    slowest_behind: float
    exchange_bytes: int
    exchange_alone_s: float
    exchange_during_s: float | None
    read_s: float
    device_share: float
    num_launches: int

    @property
    def write_bytes_per_s(self) -> float:
        """The rate, in bytes per second, at which all ranks together write a checkpoint."""
        return self.num_ranks * self.shard_bytes / self.write_s

    @property
    def read_bytes_per_s(self) -> float:
        """The rate, in bytes per second, at which all ranks together read a checkpoint back."""
        return self.num_ranks * self.shard_bytes / self.read_s


class GpuPath(StrEnum):
    """The path on which bytes move from storage to a GPU."""

    DIRECT = "GPUDirect"  # proven by the driver's count
    COMPATIBILITY = "compatibility mode"  # through host memory, or not proven


@dataclass(frozen=True, slots=True)
class Fed:
    """The passes over a data set, with the rates that limit the passes and the rate at which a workload consumes data.

    All times are medians over the passes.

    `seconds`: the time of a pass, including its training steps. Its 95 % interval is within a single launch, or over
        several launches.
    `device_share`: bytes read from the device / bytes requested.
    `disk_bytes_per_s`: the rate of sequential O_DIRECT reads, or None if the data are in the page cache.
    `copy_bytes_per_s`: the rate of copies in memory.
    `core_bytes_per_s`: the rate at which one core delivers data, from the CPU time of a record.
    `copied_s`: the part of a pass in which all records were copied to a GPU, or None without a GPU.
    `pcie_bytes_per_s`: the rate of the GPU's link at its current speed.
    `gpu_path`: the path to the GPU (GpuPath) with `--to gds`; otherwise empty.
    `step_s`: the time of a training step, or None without steps.
    `busy_s`: how long a worker needs for a batch.
    `wait_s`: how long a step waited for its batch.
    `predicted_wait_s`: max(0, busy_s / workers - step_s); without workers, busy_s.
    `least`: which of the rates of disk, copy, core and PCIe link is the lowest; empty if no rate is known.
    `binds`: what limits the passes; empty if no measured rate does. Without steps, the lowest rate limits the passes if
        they reach 0.7 to 1.2 of this rate. For this purpose, the rate of a core is multiplied by the number of workers.
        With steps, the limit is "step" if a step waits for less than 5 % of its time, otherwise "loader".
    `headroom`: supply / demand, or None without a demand.
    """

    job: str
    files: str
    read_order: str
    state: str
    num_workers: int
    direct_io: bool
    payload_bytes: int
    record_bytes: int
    num_records: int
    seconds: float
    low_s: float | None
    high_s: float | None
    device_share: float
    cpu_s_per_record: float
    disk_bytes_per_s: float | None
    copy_bytes_per_s: float | None
    core_bytes_per_s: float | None
    demand_bytes_per_s: float | None
    batch: int | None
    prefetch: int | None
    step_s: float | None
    busy_s: float | None
    wait_s: float | None
    predicted_wait_s: float | None
    num_launches: int
    num_ranks: int = 1
    copied_s: float | None = None
    pcie_bytes_per_s: float | None = None
    gpu_path: str = ""
    least: str = field(init=False)
    binds: str = field(init=False)
    headroom: float | None = field(init=False)

    @property
    def bytes_per_s(self) -> float:
        """The rate at which the slowest rank gets data, in bytes per second."""
        return self.payload_bytes / self.seconds

    @property
    def records_per_s(self) -> float:
        """The rate at which the slowest rank gets records, per second."""
        return self.num_records / self.seconds

    def __post_init__(self) -> None:
        """Find the rate that limits how fast data reach the ranks."""
        object.__setattr__(self, "least", _least(self._bounds))
        object.__setattr__(self, "binds", self._limit())
        demand = self.demand_bytes_per_s
        object.__setattr__(self, "headroom", self.bytes_per_s / demand if demand else None)

    def _limit(self) -> str:
        if self.step_s is not None and self.wait_s is not None:
            return "step" if self.wait_s < HIDDEN_SHARE * self.step_s else "loader"
        bounds = self._bounds
        if "core" in bounds:
            bounds["core"] *= max(1, self.num_workers)
        least = _least(bounds)
        reached = least and BOUND_SHARE * bounds[least] <= self.bytes_per_s <= EXCEEDED * bounds[least]
        return least if reached else ""

    @property
    def _bounds(self) -> dict[str, float]:
        bounds = {
            "disk": self.disk_bytes_per_s,
            "copy": self.copy_bytes_per_s,
            "core": self.core_bytes_per_s,
            "pcie": self.pcie_bytes_per_s,
        }
        return {name: rate for name, rate in bounds.items() if rate is not None}


def _least(bounds: Mapping[str, float]) -> str:
    return min(bounds, key=lambda name: bounds[name]) if bounds else ""
