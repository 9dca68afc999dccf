"""Data derived from records: summaries of rows, and results that combine several rows, for reports and figures.

Rates are in bytes per second and times in seconds. An unknown value is None, never -1, 0.0 or infinity. Files do not
store this data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bench.core.codes import Coded
from bench.core.device_use import DeviceUse
from bench.core.host_use import HostUse
from bench.core.record import Header


# not frozen: a run has tens of thousands of summaries, and making a frozen one takes four times as long
@dataclass(slots=True)
class Summary:
    """The figures of one row, derived from its record.

    Rates are in bytes per second. A value is None if it is unknown or must not be shown.
    """

    job: str
    pattern: str
    transport: str
    mode: str
    dtype: str | None
    reduce_op: str | None
    root: int | None
    in_place: bool
    direction: str | None
    group: str
    src: int | None
    dst: int | None
    requested_bytes: int
    also_requested_bytes: tuple[int, ...]
    payload_bytes: int
    num_ranks: int | None
    num_nodes: int | None
    num_samples: int
    num_effective: float | None
    median_s: float | None
    ci_low_s: float | None
    ci_high_s: float | None
    min_s: float | None
    max_s: float | None
    p95_s: float | None
    p99_s: float | None
    last_arriver_s: float | None
    slowest_rank: int | None
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    bound_bytes_per_s: float | None
    bound_name: str | None
    bound_kind: str | None
    bound_fraction: float | None
    floor_s: float | None
    floor_name: str | None
    verified: bool | None
    num_wrong: int | None
    modelled: bool
    algorithm: str | None
    topology: str
    cache: str | None
    stop_reason: str | None
    flags: tuple[str, ...]
    calls_per_sample: int | None = None
    loop: str | None = None  # the loop that took the samples: compiled, python, virtual
    rotation: float | None = (
        # mean over samples of the slowest time / largest mean of one rank; 1 if the same rank is always the slowest
        None
    )
    # for each member, the number of samples in which it was the slowest; empty if unknown
    slowest_counts: tuple[int, ...] = ()
    # one-way: the largest error of the time, caused by the offset between two clocks
    clock_bound_s: float | None = None
    software_s: float | None = None  # call overhead without communication, measured at start; never subtracted
    compat: Mapping[str, float | None] = field(default_factory=dict)  # the same samples in other tools' statistics
    mean_s: float | None = None  # another tool's mean, if it reports no median; None for linkbench's samples
    imported: bool = False  # from another tool's log, which has one mean and no samples
    wire_bytes_per_s: float | None = None  # rate per direction through a node's NICs if no switch reduces the data
    flops_per_s: float | None = None  # for a product of matrices, per rank: 2 order^3 / median; None for other patterns
    peak_flops_per_s: float | None = None  # the data sheet's dense rate of this GPU for this type
    peak_name: str | None = None  # "bf16 of H200-SXM-141GB"
    # if a device's clock measured the times, the time until the host saw the end of the operation
    host_median_s: float | None = None
    enqueue_fraction: float | None = None  # the share of host_median_s that the host needs to issue the calls; a median
    compared: str | None = None  # how much of the data was checked: "full", "sampled", or None
    first_wrong: Mapping[str, Any] | None = None  # code, facts and text of the first wrong data
    starved: tuple[Mapping[str, Any], ...] = ()  # ranks that lacked CPU time (core/record.py: StarvedRank)
    hosts: tuple[HostUse, ...] = ()  # CPU time of the hosts while the row was timed; empty if unknown
    devices: tuple[DeviceUse, ...] = ()  # the use of GPUs or CPUs while the row was timed; empty if not read
    burst_s: float | None = None  # with --soak: the median of the first two seconds of samples
    sustained_s: float | None = None  # with --soak: the median of the second half of the samples' time
    # The time that a real machine is expected to need for a modelled row (predict/expected.py), with a 90 % interval.
    # If `expected_s` is None, only the interval is known.
    expected_s: float | None = None
    expected_low_s: float | None = None
    expected_high_s: float | None = None
    expected_busbw_bytes_per_s: float | None = None
    expected_busbw_low_bytes_per_s: float | None = None
    expected_busbw_high_bytes_per_s: float | None = None
    expected_basis: str | None = None  # the type of evidence for the expectation: published
    floor_kind: str | None = None  # how strict the floor is (FloorKind)
    not_expected: str | None = None  # why a modelled row has no expectation (NoExpectationCode)


@dataclass(frozen=True, slots=True)
class Spread:
    """One row over all launches of its run. A ratio of 0.02 means 2 %.

    The job (without its launch), the mode, the size and the group identify a row.

    `median_s`: the median of the launches' medians.
    `ci_low_s`, `ci_high_s`: the interval of `median_s`, which covers the variation between launches, or None for fewer
        than 3 launches.
    `within`: the variation within a launch, as the median over launches. The variation of one launch is half the width
        of its interval / its median.
    `between`: the variation between launches. It is the standard deviation of the logarithms of the launches' medians.
    """

    job: str
    jobs: tuple[str, ...]
    pattern: str
    transport: str
    mode: str
    group: str
    src: int | None
    dst: int | None
    payload_bytes: int
    num_launches: int
    median_s: float
    ci_low_s: float | None
    ci_high_s: float | None
    min_s: float
    max_s: float
    within: float | None
    between: float | None


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of a fitted curve: time = latency + size / bandwidth, from `first_bytes` to `last_bytes`.

    The fields `low` and `high` are 95 % intervals.
    """

    first_bytes: int
    last_bytes: int
    num_points: int
    latency_s: float
    latency_low_s: float | None
    latency_high_s: float | None
    bytes_per_s: float | None  # None: the time does not grow with the size in this segment
    bytes_per_s_low: float | None
    bytes_per_s_high: float | None
    half_bytes: float | None  # n1/2, the size that reaches half of the bandwidth; None if unknown
    max_residual: float  # largest |measured / fitted - 1|
    half_bytes_low: float | None = None
    half_bytes_high: float | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """The model of one curve (job, mode, group).

    `fits`: whether all residuals are below the limit. If False, do not quote the latency and bandwidth of the model.
    """

    job: str
    pattern: str
    transport: str
    mode: str
    group: str
    segments: tuple[Segment, ...]
    max_residual: float
    fits: bool
    max_residual_bytes: int | None = None  # the size of the largest residual
    num_launches: int = 1  # complete launches; intervals are over launches if there are 3 or more, else over residuals
    ninety_bytes: int | None = None  # the smallest size at which 90 % of the best bandwidth was measured


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two measured rows that contradict each other by more than noise explains.

    `ratio`: the measured time of the first row / the largest time that the other row allows.
    `rule`: the rule that the two rows break, such as `pipelined <= isolated`.
    `code`, `facts`: the reason (ConflictCode).
    `sentence`: the reason in words.
    """

    rule: str
    sentence: str
    first: Mapping[str, Any]  # job, pattern, mode, payload_bytes, median_s
    second: Mapping[str, Any]
    ratio: float
    code: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parity:
    """linkbench's time and another tool's time at one size, from alternating launches.

    `ratio`: linkbench's time / the other tool's time, with its 95 % interval.
    `case`: the options of the case without the sizes.
    `statistic`: the statistic of both times (parity.Statistic).
    """

    tool: str
    pattern: str
    payload_bytes: int
    ours_s: float
    theirs_s: float
    ratio: float
    ratio_low: float | None
    ratio_high: float | None
    num_launches: int
    mode: str = "isolated"
    group: str = "world"
    case: str = ""
    statistic: str = "mean over ranks of means"


@dataclass(frozen=True, slots=True)
class Scaling:
    """A row compared with a reference that differs only in `factor`: "nodes", "ranks per node" or "order".

    `value`, `reference`: the value of that factor in the row and in the reference.
    `time_ratio`: the row's time / the reference's time.
    `efficiency`: the row's busbw / the reference's busbw, or None if there is no busbw.
    `interval_over`: whether the 95 % intervals of both ratios are over "launches" or "samples".
    `bound_fraction`: busbw / the bound for this number of ranks and nodes.
    `floor_fraction`: the latency floor / the time, only in isolated mode.
    """

    job: str
    pattern: str
    transport: str
    mode: str
    payload_bytes: int
    factor: str
    value: str
    reference: str
    order: str
    num_ranks: int
    num_nodes: int
    ranks_per_node: int
    num_launches: int
    median_s: float
    time_ratio: float
    time_ratio_low: float | None
    time_ratio_high: float | None
    interval_over: str | None
    busbw_bytes_per_s: float | None
    efficiency: float | None
    efficiency_low: float | None
    efficiency_high: float | None
    bound_fraction: float | None
    bound_name: str | None
    floor_fraction: float | None
    oversubscribed: bool  # more ranks than CPUs on a node; the slowdown may be caused by the CPUs and not by the links
    modelled: bool


@dataclass(frozen=True, slots=True)
class Interference:
    """The slowdown of a row by aggressors.

    `factor`: the time with aggressors / the time without aggressors, as the median over pairs of blocks.
    `interval_over`: whether the factor's 95 % interval is over "blocks" of one launch or over "launches".
    `aggressor_bytes_per_s`: the busbw of the aggressors while they disturb the row.
    `aggressor_alone_bytes_per_s`: the busbw of the aggressors while they run alone.
    `num_blocks_not_covered`: the number of disturbed blocks in which the aggressors hardly sent. If the number is above
        0, the factor is too low.
    """

    job: str
    pattern: str
    transport: str
    mode: str
    group: str
    payload_bytes: int
    num_ranks: int
    num_nodes: int
    ranks_per_node: int
    split: str
    aggressor: str
    aggressor_bytes: int
    num_aggressors: int
    alone_s: float
    disturbed_s: float
    factor: float
    factor_low: float | None
    factor_high: float | None
    interval_over: str | None
    num_blocks: int
    num_launches: int
    aggressor_bytes_per_s: float
    aggressor_alone_bytes_per_s: float
    num_blocks_not_covered: int
    modelled: bool


@dataclass(frozen=True, slots=True)
class Overlapped:
    """An allreduce alone and with overlapping products of matrices.

    `factor`: the allreduce's time with products / its time alone, as the median over pairs of blocks.
    `product_factor`: the products' time with the allreduce / their time alone.
    `interval_over`: whether both 95 % intervals are over "blocks" of one launch or over "launches".
    `product_flops_per_s`: the rate of one rank's products when they run alone.
    `num_not_covered`, `num_samples`: see OverlapSamples in core/record.py.
    """

    job: str
    pattern: str
    transport: str
    mode: str
    group: str
    payload_bytes: int
    num_ranks: int
    num_nodes: int
    dtype: str
    order: int
    alone_s: float
    together_s: float
    factor: float
    factor_low: float | None
    factor_high: float | None
    product_alone_s: float
    product_together_s: float
    product_factor: float
    product_factor_low: float | None
    product_factor_high: float | None
    interval_over: str | None
    num_blocks: int
    num_launches: int
    product_flops_per_s: float
    num_samples: int
    num_not_covered: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replayed step of a recorded job (group `step`), or the replayed exchanges of one type, with the recorded times.

    The time of an exchange begins when the last rank arrives, and ends when the last rank leaves.

    `replayed_s`: the median. Its 95 % interval comes from the passes of one launch or, if there are several
        launches, from their medians.
    """

    job: str
    transport: str
    group: str
    payload_bytes: int
    num_ranks: int
    recorded_s: float
    replayed_s: float
    low_s: float | None
    high_s: float | None
    num_launches: int

    @property
    def factor(self) -> float:
        """The replayed time / the recorded time."""
        return self.replayed_s / self.recorded_s


@dataclass(frozen=True, slots=True)
class Removal:
    """The time that a step saves without one cause of delay, such as the exchange.

    `seconds`: the time that a twin step without the cause saves, as the median over pairs of blocks. Its 95 % interval
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
    """Rates that follow from the time of a training step, for all ranks together.

    Unknown values are None.

    `samples`: the samples of one step.
    `flops_per_s`: the rate of operations. A formula computes the number of operations.
    `mfu`: `flops_per_s` / the data sheets' dense rate.
    `counted_over_formula`: the operations that torch counted / the operations by the formula.
    `peak_bytes`: the measured peak memory of each rank.
    `predicted_bytes`: the expected memory of a rank.
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
    """A training step and where its time goes.

    `step_s`: the median step of the slowest rank, without clocks inside the step.
    `parts_s[part][r]`: mean seconds of rank r in the middle half of the samples; the parts of a rank sum to its step
        with clocks.
    `disagree`: the causes for which the two values of a Removal differ by more than both intervals explain.
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
    """A training step on a given number of ranks.

    `speedup`: the work per second, relative to the smallest number of ranks.
    `low`, `high`: the 95 % interval of the speed-up. The interval covers only the variation of this step.
    `bound`: the speed-up if the exchange were as fast as the links permit, or None if unknown.
    """

    job: str
    num_ranks: int
    num_nodes: int
    step_s: float
    speedup: float
    low: float
    high: float
    ideal: float
    bound: float | None


@dataclass(frozen=True, slots=True)
class StepScaling:
    """Training steps on increasing numbers of ranks.

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
    """Checkpoints that all ranks write at the same time during training steps. All values are medians.

    `step_s`: the time of a step without a checkpoint.
    `write_s`: the time until the slowest rank's shard is durable.
    `stall_s`: the time that a checkpoint adds to the steps, with its 95 % interval.
    `blocked_s`: the part of the stall before the first step could begin.
    `slowest_rank`: the rank that was the slowest in most bursts; None without such a rank.
    `slowest_behind`: by which fraction the slowest rank takes longer than the median rank; 0 without a slowest rank.
    `exchange_during_s`: the time of an exchange while ranks wrote the checkpoint, or None if no step ran meanwhile.
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
        """The rate, in bytes per second, at which all ranks together write."""
        return self.num_ranks * self.shard_bytes / self.write_s

    @property
    def read_bytes_per_s(self) -> float:
        """The rate, in bytes per second, at which all ranks together read back."""
        return self.num_ranks * self.shard_bytes / self.read_s


BOUND_SHARE = 0.7  # share of a bound; a pass that reaches this share is limited by the bound
EXCEEDED = 1.2  # factor between the rate of a pass and a reference; a reference that is exceeded more limits nothing
HIDDEN_SHARE = 0.05  # share of a step; a shorter wait counts as hidden


class GpuPath(StrEnum):
    """The path on which bytes move from storage to a GPU."""

    DIRECT = "GPUDirect"  # proven by the driver's count
    COMPATIBILITY = "compatibility mode"  # through host memory, or not proven


@dataclass(frozen=True, slots=True)
class Fed:
    """Passes over a data set, the rates that limit the passes, and the rate that a workload consumes.

    Times are medians over passes.

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
        """The supply of the slowest rank, in bytes per second."""
        return self.payload_bytes / self.seconds

    @property
    def records_per_s(self) -> float:
        """The supply of the slowest rank, in records per second."""
        return self.num_records / self.seconds

    def __post_init__(self) -> None:
        """Find the rate that limits the supply."""
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


@dataclass(frozen=True, slots=True)
class RankComparison:
    """One rank compared with the other ranks that did the same work at the same time.

    `unit`: the unit of rates, which is "FLOP/s" or, for busbw, "B/s".
    `gpu`: the GPU's index on the host, or None for host memory.
    `behind`: the fraction by which the rank's rate is below the median of all `num` ranks. A rate above the median
        gives a negative fraction.
    `z`: the distance of the rate from the median, in robust standard deviations.
    `slow`: whether the GPU is slow by the definition of results/gpus.py.
    """

    job: str
    pattern: str
    mode: str
    dtype: str | None
    payload_bytes: int
    group: str
    rank: int
    host: str
    gpu: int | None
    unit: str
    rate: float
    median_rate: float
    num: int
    behind: float
    z: float
    slow: bool


@dataclass(frozen=True, slots=True)
class Sharing:
    """The slowdown of a group of ranks when all groups of `topology` run at the same time.

    A job with the topology `TOPOLOGY in turn` measures each group alone.

    `factor`: the time with all groups / the time alone.
    `interval_over`: whether the factor's 95 % interval is over "launches" or "samples".
    """

    job: str  # the job that ran the groups at once
    pattern: str
    transport: str
    mode: str
    topology: str
    group: str
    payload_bytes: int
    num_ranks: int  # the number of ranks in the group
    num_groups: int  # at once
    alone_s: float
    at_once_s: float
    factor: float
    factor_low: float | None
    factor_high: float | None
    interval_over: str | None
    num_launches: int
    oversubscribed: bool  # more ranks than CPUs on a node: idle groups may slow the group that is alone
    modelled: bool


DOCUMENT_SCHEMA = "bench.document/1"


@dataclass(frozen=True, slots=True)
class Document:
    """Everything that reports and figures show of a run.

    A document has the headers by job, the summaries of rows, results that combine several rows, and the rows that were
    not measured.

    `unplanned`: the parts that the plan left out, with the keys `what`, `reason`, `code`, `facts`, `patterns`.
    `skipped`, `failures`: plain rows, with keys such as "job", "pattern", "transport", "mode", "requested_bytes" and
        "reason".
    """

    schema: str
    headers: Mapping[str, Header]
    summaries: tuple[Summary, ...]
    skipped: tuple[Mapping[str, Any], ...] = ()
    failures: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[Coded, ...] = ()
    spreads: tuple[Spread, ...] = ()
    fits: tuple[Fit, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    parities: tuple[Parity, ...] = ()
    scalings: tuple[Scaling, ...] = ()
    interferences: tuple[Interference, ...] = ()
    sharings: tuple[Sharing, ...] = ()
    overlaps: tuple[Overlapped, ...] = ()
    replays: tuple[Replayed, ...] = ()
    feeds: tuple[Fed, ...] = ()
    steps: tuple[TrainedStep, ...] = ()
    step_scalings: tuple[StepScaling, ...] = ()
    checkpoints: tuple[Checkpointed, ...] = ()
    unplanned: tuple[Mapping[str, Any], ...] = ()
    standings: tuple[RankComparison, ...] = ()
