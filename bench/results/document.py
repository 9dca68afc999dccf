"""Data derived from records: summaries of rows, and results that combine several rows, for reports and figures.

Rates are in bytes per second and times in seconds. An unknown value is None. It is never -1, 0.0 or infinity. Files do
not store this data. Results that compare rows are in compared_rows.py, and results of training are in training_rows.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.core.codes import Coded
from bench.core.device_use import DeviceUse
from bench.core.host_use import HostUse
from bench.core.record import Header
from bench.results.compared_rows import Interference, Overlapped, Parity, Replayed, Scaling, Sharing
from bench.results.training_rows import Checkpointed, Fed, StepScaling, TrainedStep


# not frozen: a run has tens of thousands of summaries, and making a frozen one takes four times as long
@dataclass(slots=True)
class Summary:
    """The figures of one row, derived from its record.

    Rates are in bytes per second. A value is None if it is unknown or must not be shown to users.
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
    num_samples: int = 0
    num_effective: float | None = None
    median_s: float | None = None
    ci_low_s: float | None = None
    ci_high_s: float | None = None
    min_s: float | None = None
    max_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    last_arriver_s: float | None = None
    slowest_rank: int | None = None
    algbw_bytes_per_s: float | None = None
    busbw_bytes_per_s: float | None = None
    bound_bytes_per_s: float | None = None
    bound_name: str | None = None
    bound_kind: str | None = None
    bound_fraction: float | None = None
    floor_s: float | None = None
    floor_name: str | None = None
    verified: bool | None = None
    num_wrong: int | None = None
    modelled: bool = False
    algorithm: str | None = None
    topology: str = "world"
    cache: str | None = None
    stop_reason: str | None = None
    flags: tuple[str, ...] = ()
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
    """One row of a run, with statistics over all its launches. A ratio of 0.02 means 2 %.

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
    """The model that was fitted to one curve (job, mode, group).

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
    """Two measured rows that contradict each other by more than noise can explain.

    `ratio`: the measured time of the first row / the largest time that the other row allows.
    `rule`: the rule that the two rows break, such as `pipelined <= isolated`.
    `code`, `facts`: the code of the message about this conflict, and the facts of the message (ConflictCode).
    `sentence`: the contradiction in words.
    """

    rule: str
    sentence: str
    first: Mapping[str, Any]  # job, pattern, mode, payload_bytes, median_s
    second: Mapping[str, Any]
    ratio: float
    code: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankComparison:
    """One rank compared with other ranks that did the same work at the same time.

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


DOCUMENT_SCHEMA = "bench.document/1"


@dataclass(frozen=True, slots=True)
class Document:
    """All data of a run that reports and figures show.

    A document has the headers of the jobs, the summaries of the rows, results that combine several rows, and the rows
    that were not measured.

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
