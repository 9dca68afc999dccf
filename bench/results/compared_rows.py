"""Results that compare a row with a reference, such as another tool, another world, or a time without other traffic.

Rates are in bytes per second and times in seconds. An unknown value is None.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parity:
    """The time of linkbench and the time of another tool at one message size, from alternating launches.

    `ratio`: linkbench's time / the other tool's time, with its 95 % interval.
    `case`: the options of the case, except the sizes.
    `statistic`: how both times are computed from the samples (parity.Statistic).
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
    """The comparison of a row with a reference row.

    The two rows differ only in `factor`: "nodes", "ranks per node" or "order".

    `value`, `reference`: the value of this factor in the row and in the reference row.
    `time_ratio`: the row's time / the reference's time.
    `efficiency`: the row's busbw / the reference's busbw, or None if there is no busbw.
    `interval_over`: "launches" if the 95 % intervals of both ratios cover the variation between launches, "samples" if
        they cover the variation of samples.
    `bound_fraction`: the row's busbw / the bound for the row's number of ranks and nodes.
    `floor_fraction`: the latency floor / the row's time. Only rows in isolated mode have a `floor_fraction`.
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
    """How much slower a row becomes while aggressors (other ranks) send.

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
    """How much an allreduce and matrix products slow each other down when they overlap.

    `factor`: the allreduce's time with products / its time without products, as the median over pairs of blocks.
    `product_factor`: the time of the products with the allreduce / their time without the allreduce.
    `interval_over`: "blocks" if both 95 % intervals cover the variation between blocks, "launches" if they cover the
        variation between launches.
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
    """The replayed time and the recorded time of a job's step (group `step`), or of all exchanges of one type.

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
        """The ratio of the replayed time to the recorded time."""
        return self.replayed_s / self.recorded_s


@dataclass(frozen=True, slots=True)
class Sharing:
    """How much slower a group of ranks becomes when all groups of `topology` run at the same time.

    The times without other groups come from a job with the topology `TOPOLOGY in turn`.

    `factor`: the time while all groups run / the time while only this group runs.
    `interval_over`: "launches" if the 95 % interval of `factor` covers the variation between launches, "samples" if it
        covers the variation of samples.
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
