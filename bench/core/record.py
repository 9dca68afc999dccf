"""What was measured: the header of a results file and its records.

Raw seconds and the factors used are kept; bandwidths, percentiles and fractions of a bound are derived at will.
None is "unknown", never -1, 0.0 or infinity.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bench.core.codes import UNCODED, Code, Coded


class Flag(StrEnum):
    """What a reader must know of a row's figure. The words are in results/messages.py."""

    INVALID = "invalid"  # wrong data arrived
    MODELLED = "modelled"
    IMPORTED = "imported"  # from another tool's log
    REPORTED = "reported"  # another tool's own statistic
    ABOVE_BOUND = "above-bound"
    NOT_CONVERGED = "not-converged"
    FEW_SAMPLES = "few-samples"
    BAD_SAMPLES = "bad-samples"
    CLOCK_LIMITED = "clock-limited"
    DRIFT = "drift"
    WARMUP_RESIDUE = "warmup-residue"
    OUTLIERS = "outliers"
    RANKS_NOT_KEPT = "ranks-not-kept"
    MAY_OVERLAP = "may-overlap"
    SOFTWARE_BOUND = "software-bound"
    LAUNCH_BOUND = "launch-bound"
    SYNC_LIMITED = "sync-limited"
    CONTRADICTS = "contradicts"
    THROUGH_HOST = "through-host"  # copied by way of the host's memory: no figure of a peer link
    SHARED_GPU = "shared_gpu"  # of ranks that share one GPU; also a fact of the header


class StopReason(StrEnum):
    """Why a row has no more samples."""

    CONVERGED = "ci"
    MAX_SAMPLES = "max_n"
    MAX_TIME = "max_time"
    FIXED = "fixed"  # the number of samples was asked for
    EXACT = "exact"  # modelled


LIMIT_REACHED = frozenset({StopReason.MAX_SAMPLES, StopReason.MAX_TIME})


@dataclass(frozen=True, slots=True)
class Samples:
    """Raw seconds per operation. `seconds[i]` is the slowest rank's share of sample i.

    `by_rank[r][i]`: each member's own seconds, in member order (empty beyond a cap, which the record's flags then say).
    `calls_per_sample`: how many back-to-back calls one sample averages (1 in isolated mode). `rank_mean_s` and
    `slowest_counts` are kept where `by_rank` is not: each member's mean, and in how many samples it was the slowest.
    Where a device's clock told the seconds: `host_s[i]` until the last host saw sample i complete, `enqueue_s[i]` until
    the last had issued it, both from its begin and per operation.
    """

    seconds: Sequence[float]
    by_rank: tuple[Sequence[float], ...] = ()
    warmup: Sequence[float] = ()
    calls_per_sample: int = 1
    loop: str = "python"
    rank_mean_s: tuple[float, ...] = ()
    slowest_counts: tuple[int, ...] = ()
    host_s: Sequence[float] = ()
    enqueue_s: Sequence[float] = ()

    def __post_init__(self) -> None:
        """Pack the seconds: ten million of them are 80 MB as an array, and 320 as a tuple."""
        for name in ("seconds", "warmup", "host_s", "enqueue_s"):
            object.__setattr__(self, name, array("d", getattr(self, name)))
        object.__setattr__(self, "by_rank", tuple(array("d", own) for own in self.by_rank))


@dataclass(frozen=True, slots=True)
class Contention:
    """What disturbed the samples of a record, and the same ranks' samples without it, in blocks that took turns.

    `alone_s[i]`: the slowest rank's share of sample i without aggressors. Block k of both holds the samples
    k x samples_per_block and following. `aggressor_bytes`: the payload of the aggressors' pattern; their rates are
    bytes per second of its busbw, alone and in each disturbed block. `busy`: the least share of each disturbed block
    that one of them spent inside its calls (None of all: modelled).
    """

    aggressor: str
    aggressor_bytes: int
    num_aggressors: int
    samples_per_block: int
    alone_s: Sequence[float]
    rates_bytes_per_s: Sequence[float]
    rate_alone_bytes_per_s: float
    busy: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class OverlapSamples:
    """The allreduces of a record alone, and the products that ran beside them, in blocks of three kinds by turns.

    The record's samples are of the collective beside the products. Products are of matrices of `order` rows of `dtype`;
    a sample began `num_products` of them, of which the first `num_counted` are timed, together and alone: seconds of
    one. `alone_s[i]`, `product_alone_s[i]`, `product_s[i]`: the slowest rank's share of sample i; block k of each holds
    the samples k x samples_per_block and following. `num_not_covered`: samples in which the collective went on after
    the last product had ended, or ended before the counted ones: their factors are too low.
    """

    dtype: str
    order: int
    num_products: int
    num_counted: int
    samples_per_block: int
    alone_s: Sequence[float]
    product_alone_s: Sequence[float]
    product_s: Sequence[float]
    num_not_covered: int = 0


@dataclass(frozen=True, slots=True)
class Skip(Coded):
    """Why a row was not measured."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, and on which rank and host if known. `what` is for people; logic reads `code` and `facts`."""

    what: str
    rank: int | None = None
    host: str | None = None
    code: str = UNCODED
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, code: Code, rank: int | None = None, host: str | None = None, **facts: Any) -> Failure:
        """A code with its facts, in the words of its template."""
        return cls(code.words(facts), rank, host, code, facts)


@dataclass(frozen=True, slots=True)
class Record:
    """One (payload, mode, group) of a case: exactly one of samples, reported, skipped, failed.

    `requested_bytes` lists every asked size that rounds to this payload. `verified`: True all bytes were right, False
    some were wrong (`num_wrong` elements), None nothing was moved (modelled) or nothing was checked. `reported` is a
    foreign tool's statistics by name, SI units. Only a log that was imported leaves `num_ranks` or `num_nodes` unknown.
    """

    mode: str
    requested_bytes: tuple[int, ...]
    payload_bytes: int
    num_ranks: int | None
    num_nodes: int | None
    group: str = "world"
    src: int | None = None
    dst: int | None = None
    in_place: bool = False
    bus_factor: float | None = None
    rank_bytes: float | None = None  # per operation and direction that one rank's port must carry (Pattern.crossing)
    node_bytes: float | None = None  # the same for one node's network; None on one node
    algorithm: str | None = None  # by which it was modelled, or which the library said that it used
    min_steps: int = 1  # messages that must follow one another (Pattern.min_steps)
    cache: str | None = None  # what it really was: buffers smaller than the rotation can make cold are hot
    num_buffer_sets: int = 1
    verified: bool | None = None
    num_wrong: int | None = None
    compared: str | None = None  # how much of what arrived: "full", or "sampled" (docs/metrics.md)
    modelled: bool = False
    stop_reason: str | None = None
    flags: tuple[str, ...] = ()
    clock_bound_s: float | None = None  # one-way: the most by which each sample is wrong because two clocks differ
    samples: Samples | None = None
    contention: Contention | None = None  # what disturbed the samples, where it was meant to
    overlap: OverlapSamples | None = None  # what was computed beside the samples, where it was meant to be
    reported: Mapping[str, float] | None = None
    skipped: Skip | None = None
    failed: Failure | None = None

    def __post_init__(self) -> None:
        """Hold the rule that a record is exactly one thing."""
        given = [x for x in (self.samples, self.reported, self.skipped, self.failed) if x is not None]
        if len(given) != 1:
            raise ValueError("a record is exactly one of samples, reported, skipped, failed")


# What `Header.imported` tells: the tool's word and its version (null: unknown), the file as it was named and its
# SHA-256, the line at which the run begins, how it ended (logs/foreign.py: status, failure; text, code and facts), what
# was recomputed by our definitions (texts and codes), and [{"line", "text", "code", "facts"}] of what was lost, is
# doubtful or worth knowing. Files of older versions have no codes.
IMPORTED_KEYS = (
    "tool",
    "tool_version",
    "source",
    "sha256",
    "line",
    "status",
    "failure",
    "failure_code",
    "failure_facts",
    "translations",
    "translation_codes",
    "remarks",
)


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a results file: what is needed to repeat and to judge its numbers.

    `case` is the argv of the case; `nodes` the facts of each host by name; `ranks` each rank's host, local rank,
    process and CPU mask; `calibration` the ceilings and overheads measured at start; `settings` how time was taken;
    `links` the links of one node of the named instance (core/links.py: NodeLinks), which bound the run. `imported` is
    where rows that another tool's log gave come from, and how its run ended (see IMPORTED_KEYS); {} for rows of ours.
    """

    job: str
    case: tuple[str, ...]
    pattern: str
    transport: str
    dtype: str
    reduce_op: str
    root: int | None
    direction: str | None
    topology: str
    num_ranks: int | None
    num_nodes: int | None
    ranks_per_node: int | None
    clock: str
    modelled: bool
    started: str
    argv: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    ranks: tuple[Mapping[str, Any], ...] = ()
    calibration: Mapping[str, Any] = field(default_factory=dict)
    instance: str | None = None
    links: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    launch: int = 1  # which of the launches of the same case this is
    imported: Mapping[str, Any] = field(default_factory=dict)


def known(count: int | None) -> int:
    """A count of ranks or nodes that every measured row tells. Raises ValueError for one that a log left out."""
    if count is None:
        raise ValueError("the number of ranks or nodes is not known: it was imported from a log that does not tell it")
    return count
