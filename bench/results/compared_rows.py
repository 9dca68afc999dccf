"""Results that compare a row with another tool, another world, the row without other traffic, or a recorded time.

Rates are in bytes per second and times in seconds. An unknown value is None.
"""

from __future__ import annotations

from dataclasses import dataclass


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
