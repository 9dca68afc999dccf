"""What follows from records: summaries and what rows say together, as reports and figures see it.

Rates are bytes per second and times seconds. None is "unknown", never -1, 0.0 or infinity. Nothing of it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.core.codes import Coded
from bench.core.record import Header


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything derived from one record. Rates in bytes per second; None where it is unknown or not allowed."""

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
    loop: str | None = None  # what took the samples: compiled, python, virtual
    rotation: float | None = (
        None  # mean of the slowest rank's times / slowest rank's mean: 1 when it is always the same
    )
    slowest_counts: tuple[int, ...] = ()  # of each member: in how many samples it was the slowest; empty where unknown
    clock_bound_s: float | None = None  # one-way: the most by which a time is wrong because two clocks differ
    software_s: float | None = None  # what the call costs without communication, measured at start; never subtracted
    compat: Mapping[str, float | None] = field(default_factory=dict)  # the same samples as other tools would print them
    mean_s: float | None = None  # what another tool reports in the place of a median; None for samples of ours
    imported: bool = False  # read from another tool's log: one mean, no samples, often one launch
    wire_bytes_per_s: float | None = None  # through one node's NICs and direction, if nothing is reduced on the way
    flops_per_s: float | None = None  # of a product of matrices, per rank: 2 order^3 / median; None of other patterns
    peak_flops_per_s: float | None = None  # the dense rate of this GPU's data sheet for this type; None: unknown
    peak_name: str | None = None  # "bf16 of H200-SXM-141GB"
    host_median_s: float | None = None  # where a device's clock told the times: until the host saw them complete
    enqueue_fraction: float | None = None  # of that, until the last call was issued; median over samples
    compared: str | None = None  # how much of the data: "full" or "sampled"; None where nothing was


@dataclass(frozen=True, slots=True)
class Spread:
    """One row (job without its launch, mode, size, group) over all launches of its run. Ratios: 0.02 is 2 %.

    `median_s` is the median of the launches' medians, its interval is over launches (None below 3 of them).
    `within`: median over launches of the half interval / median; `between`: standard deviation of the log medians.
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
    """Latency + size / bandwidth over the sizes from `first_bytes` to `last_bytes`, with 95 % intervals."""

    first_bytes: int
    last_bytes: int
    num_points: int
    latency_s: float
    latency_low_s: float | None
    latency_high_s: float | None
    bytes_per_s: float | None  # None: the time does not grow with the size here
    bytes_per_s_low: float | None
    bytes_per_s_high: float | None
    half_bytes: float | None  # n1/2, the size at which half of the bandwidth is reached; None where it may be any
    max_residual: float  # largest |measured / fitted - 1|
    half_bytes_low: float | None = None
    half_bytes_high: float | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """The model of one curve (job, mode, group). `fits`: no residual is above the limit; else there is no headline."""

    job: str
    pattern: str
    transport: str
    mode: str
    group: str
    segments: tuple[Segment, ...]
    max_residual: float
    fits: bool
    max_residual_bytes: int | None = None  # the size at which it is
    num_launches: int = 1  # whole launches: from 3 on the intervals are over launches, below over residuals
    ninety_bytes: int | None = None  # the smallest size at which 90 % of the best bandwidth was measured


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two measured rows that cannot both be right, beyond their noise. `ratio`: measured / the most that it may be.

    `rule`: `pipelined <= isolated`; `code` and `facts`: why (ConflictCode); `sentence`: that in words.
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
    """Another tool beside ours at one size, alternated launches. `ratio` ours / theirs, with its 95 % interval.

    `case`: the options that the case has beside its sizes. `statistic`: what the two times are, in words.
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
    """A row beside its reference, from which it differs in `factor` only: "nodes", "ranks per node" or "order".

    `value` and `reference`: of that factor. `time_ratio`: time / the reference's. `efficiency`: busbw / the
    reference's, None where there is no busbw. Both with 95 % intervals over "launches" or "samples" (`interval_over`).
    `bound_fraction`: busbw / the bound of this very world; `floor_fraction`: latency floor / time, isolated only.
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
    oversubscribed: bool  # more ranks than CPUs on a node: what it lost is not the links' doing
    modelled: bool


@dataclass(frozen=True, slots=True)
class Interference:
    """A row without and with aggressors. `factor`: time with / time without, the median over pairs of blocks.

    Its 95 % interval is over "blocks" of one launch, or over "launches" (`interval_over`). The aggressors' rates are
    bytes per second of their pattern's busbw, while they disturbed and alone. `num_blocks_not_covered`: disturbed
    blocks in which they hardly sent; with any of them, the factor is too low.
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
    """An allreduce alone and beside products of matrices. `factor`: its time with them / without, the median over pairs
    of blocks; `product_factor`: that of the products' time with the allreduce / without.

    Both 95 % intervals are over "blocks" of one launch, or over "launches" (`interval_over`). `product_flops_per_s`: of
    one rank's products alone. `num_not_covered` of `num_samples`: see Overlap.
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
class RankComparison:
    """One rank beside the others that did the same at the same time. Rates in `unit`: "FLOP/s", or "B/s" of busbw.

    `gpu`: which of its host's, None where it worked in host memory. `behind`: what is missing of the median of all
    `num`, as a fraction (negative: ahead); `z`: its distance in robust standard deviations. `slow`: beyond what chance
    explains, and enough to matter (results/gpus.py).
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
    """A group of `topology` while all its groups run, beside the same group alone (`TOPOLOGY in turn`).

    `factor`: time at once / time alone, with its 95 % interval over "launches" or "samples" (`interval_over`).
    """

    job: str  # of the groups at once
    pattern: str
    transport: str
    mode: str
    topology: str
    group: str
    payload_bytes: int
    num_ranks: int  # of the group
    num_groups: int  # at once
    alone_s: float
    at_once_s: float
    factor: float
    factor_low: float | None
    factor_high: float | None
    interval_over: str | None
    num_launches: int
    oversubscribed: bool  # more ranks than CPUs on a node: idle groups may take time from the one that is alone
    modelled: bool


DOCUMENT_SCHEMA = "bench.document/1"


@dataclass(frozen=True, slots=True)
class Document:
    """A run as reports and figures see it: `headers` by job, derived summaries, and what was not measured.

    `skipped` and `failures` are plain rows: {"job", "pattern", "transport", "mode", "requested_bytes", "reason", ...}.
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
    standings: tuple[RankComparison, ...] = ()
