"""Define what was measured: the header of a results file and its records.

A record stores raw seconds and the factors that were used. Bandwidths, percentiles and fractions of a bound are derived
on demand. An unknown value is None, never -1, 0.0 or infinity.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from bench.core.codes import UNCODED, Code, Coded
from bench.core.device_use import DeviceUse
from bench.core.errors import UsageError
from bench.core.host_use import HostUse
from bench.core.remarks import CodedRemark


class Flag(StrEnum):
    """Flags of a row. A flag tells the reader what limits or explains the figure of the row.

    The texts are in results/messages.py.
    """

    INVALID = "invalid"  # wrong data arrived
    WRONG_DATA = "wrong-data"  # wrong data arrived; `Record.first_wrong` has the first
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
    SHORT_BATCH = "short-batch"  # a pipelined sample of few, short calls
    SYNC_LIMITED = "sync-limited"
    CONTRADICTS = "contradicts"
    THROUGH_HOST = "through-host"  # copied through the host's memory, so the figure does not describe a peer link
    SHARED_GPU = "shared_gpu"  # ranks share one GPU; also a fact of the header
    SHARED_HOST = "shared-host"  # measured with --share-hosts: another benchmark may have run on the hosts
    STARVED_RANK = "starved-rank"  # `Record.starved` names the rank
    REMOVAL_DISAGREES = "removal-disagrees"  # of a training step; set in a summary, not stored
    PARTLY_ALONE = "partly-alone"  # a copy ended while the timed part of a concurrent copy still ran
    FAR_MEMORY = "far-memory"  # pages of the host's buffers are not on the NUMA node of the GPU
    THROTTLED = "throttled"  # a device was forced to slow down while the row was timed (`Record.devices`)
    LOGGER_DISAGREES = "logger-disagrees"  # of a training step; set when a row is summarised, not stored
    FLOPS_APART = "flops-apart"  # of a training step; set when a row is summarised, not stored
    BUSY_HOST = "busy-host"  # `Record.hosts` says what else used a host; set when a row is summarised, not stored


class StopReason(StrEnum):
    """Why the sampling of a row ended."""

    CONVERGED = "ci"
    MAX_SAMPLES = "max_n"
    MAX_TIME = "max_time"
    FIXED = "fixed"  # the number of samples was requested
    SOAKED = "soak"  # the time of --soak has passed
    EXACT = "exact"  # modelled


LIMIT_REACHED = frozenset({StopReason.MAX_SAMPLES, StopReason.MAX_TIME})


@dataclass(slots=True)  # not frozen, as Record
class Samples:
    """Raw seconds per operation.

    `seconds[i]`: the time of the slowest rank in sample i.
    `by_rank[r][i]`: the time of member r in sample i. If there are too many times, `by_rank` is empty and a flag is
        set. The file then keeps only `rank_mean_s` and `slowest_counts`.
    `rank_mean_s`: the mean time of each member.
    `slowest_counts`: for each member, the number of samples in which it was the slowest.
    `calls_per_sample`: the number of back-to-back calls in one sample (1 in isolated mode). The time of a sample is the
        mean of these calls.
    `host_s[i]`: the time from the beginning of sample i until the last host saw the sample complete. The hosts' clocks
        measure this time if a device's clock measured `seconds`.
    `enqueue_s[i]`: the time from the beginning of sample i until the last host had issued the sample, also by the
        hosts' clocks.
    `skew_s[i]`: the time between the first and the last start of the ranks of one host in sample i. It is the largest
        value of all hosts. `skew_s` is empty if unknown.
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
    skew_s: Sequence[float] = ()

    def __post_init__(self) -> None:
        """Store the seconds in packed arrays. Ten million values take 80 MB as an array, but 320 MB as a tuple."""
        self.seconds, self.warmup = array("d", self.seconds), array("d", self.warmup)
        self.host_s, self.enqueue_s = array("d", self.host_s), array("d", self.enqueue_s)
        self.skew_s = array("d", self.skew_s)
        if self.by_rank:
            self.by_rank = tuple(array("d", own) for own in self.by_rank)

    def forget_times(self) -> None:
        """Free all times except the first time of the warm-up, which shows that there was a warm-up."""
        self.seconds = self.host_s = self.enqueue_s = array("d")
        self.by_rank, self.warmup = (), self.warmup[:1]


@dataclass(frozen=True, slots=True)
class Contention:
    """The traffic of the aggressors during a record's samples, and the victims' times without aggressors.

    Blocks of samples with aggressors and blocks of samples without aggressors alternate. Samples with and without
    aggressors are numbered separately. Block k of either kind begins with the sample number `k * samples_per_block`.

    `alone_s[i]`: time of the slowest rank in sample i without aggressors.
    `aggressor_bytes`: payload of the aggressors' pattern.
    `rates_bytes_per_s`: the aggressors' busbw in each block with aggressors.
    `rate_alone_bytes_per_s`: the aggressors' busbw without victims.
    `busy`: for each block with aggressors, the share of the block that an aggressor spent inside its calls. The share
        is the smallest of all aggressors. The list is empty if the row is modelled.
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
    """The times of three kinds of alternating blocks: the collective alone, matrix products alone, and both together.

    The samples of the record itself are the times of the collective while products run. A product multiplies matrices
    of `order` rows with elements of `dtype`. A sample starts `num_products` products. Only the first `num_counted`
    products are timed. The samples of each kind are numbered separately. Block k of each kind begins with the sample
    number `k * samples_per_block`. All times are those of the slowest rank.

    `alone_s[i]`: the time of the collective alone in sample i.
    `product_alone_s[i]`: the time of one product without the collective.
    `product_s[i]`: the time of one product with the collective.
    `num_not_covered`: number of samples in which products and collective did not overlap as intended. In these samples,
        the collective ended after the last product, or before the last timed product. The measured slowdowns of these
        samples are too low.
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
class BesideSamples:
    """The times of copies that ran at the same time. A copy is timed only while the other copies still run.

    `ends_s[r][j][i]`: for copy j of member r in sample i, the seconds per operation.
    `num_partly_alone`: number of samples in which a copy ended while the timed part of another copy on the same host
        still ran.
    """

    ends_s: Sequence[Sequence[Sequence[float]]]
    num_partly_alone: int = 0


@dataclass(frozen=True, slots=True)
class ReadSamples:
    """Measurements of the passes over a data set. Each pass reads the whole data set once.

    `state`: the proven source of the bytes. "cold" means the device. "client-cold" means a server, whose own cache is
        unknown. "warm" means the page cache.
    `device_bytes`: for each pass, the bytes that were received from devices or a server.
    `cpu_s`: for each pass, the CPU time of all workers.
    `direct_s`: after some cold passes, the time to read the same number of bytes in order with O_DIRECT.
    `copy_s`: after some passes, the time to copy the same number of bytes in memory.

    If training steps consume the data in batches, these fields have one value for each pass. Each value is a mean over
    the steady part of the pass, without the beginning and the end of the pass.

    `wait_s`: the time from the end of a step until the next batch is ready.
    `step_s`: the duration of a step.
    `busy_s`: the time that a worker needs to read and prepare a batch.

    If a GPU is the destination, these fields have one value for each pass:

    `copied_s`: the time to copy all records to the GPU. This time is a part of the pass.
    `driver_bytes`: the bytes that the driver moved from storage to GPUs by GPUDirect Storage. Empty if the driver does
        not count them.
    """

    state: str
    num_records: int
    record_bytes: int
    device_bytes: Sequence[int]
    cpu_s: Sequence[float]
    direct_s: Sequence[float]
    copy_s: Sequence[float]
    wait_s: Sequence[float] = ()
    step_s: Sequence[float] = ()
    busy_s: Sequence[float] = ()
    copied_s: Sequence[float] = ()
    driver_bytes: Sequence[int] = ()

    def __post_init__(self) -> None:
        """Check that the data set has a record.

        Check that `wait_s`, `step_s` and `busy_s` have the same number of values.
        """
        if self.num_records < 1:
            raise ValueError("a data set has one record or more")
        if len({len(self.wait_s), len(self.step_s), len(self.busy_s)}) != 1:
            raise ValueError("wait_s, step_s and busy_s must have one value per pass")


def reads_of(proofs: Sequence[ReadSamples | Failure | None]) -> ReadSamples | Failure | None:
    """Merge the measurements of all ranks. If a rank reports a failure, return the first failure instead.

    For each pass, CPU time and waiting time are the longest of any rank. For warm passes, the device bytes are the
    largest number of any rank. For all other passes, they are the smallest number of any rank. All other values are
    those of the first rank.

    `proofs`: the measurements of each rank, or None for a rank that read nothing.
    """
    found = [proof for proof in proofs if proof is not None]
    failure = next((proof for proof in found if isinstance(proof, Failure)), None)
    ranks = [proof for proof in found if isinstance(proof, ReadSamples)]
    if failure is not None or not ranks:
        return failure
    worst = max if ranks[0].state == "warm" else min
    return replace(
        ranks[0],
        device_bytes=tuple(map(worst, zip(*(one.device_bytes for one in ranks), strict=True))),
        cpu_s=tuple(map(max, zip(*(one.cpu_s for one in ranks), strict=True))),
        wait_s=tuple(map(max, zip(*(one.wait_s for one in ranks), strict=True))),
    )


@dataclass(frozen=True, slots=True)
class StepSamples:
    """Times of a training step. The step has variants, such as the full step, and the step without loader.

    All variants are measured in alternating blocks. The samples of each variant are numbered separately, and block k
    begins with the sample number `k * samples_per_block`. The samples of the record itself are those of the bare
    variant, in which only whole steps are timed. In files of earlier versions, the samples of the record are those of
    the full variant. The values of a bucket are medians over the full steps of rank 0. Buckets are in the order of
    exchange.

    `twins_s`: for each other variant, the time of each step on the slowest rank. In files of earlier versions, the bare
        variant is one of these variants.
    `full_s[r]`: the time of rank r in each full step. It is empty in files of earlier versions.
    `segments_s[segment][r]`: the time of rank r in the segment, in each full step.
    `bucket_bytes`: the size of each bucket.
    `bucket_ready_s`: for each bucket, the time from the beginning of a step until the bucket was ready.
    `bucket_done_s`: for each bucket, the time from the beginning of a step until the bucket's exchange was complete.
    `exposed_s[r]`: for each full step, the time in which rank r waited for an exchange although all members of its
        group were ready. The list is empty if the ranks wait for each other only once in a step. In this case the
        shortest wait of any rank is the exposed time.
    `gradient_error`: the norm of the error of compressed gradients, divided by the norm of the exact gradients. The
        value is None if gradients are not compressed.
    `learned`: results of training a small problem, if a step does not use the exact mean gradient. `samples` is the
        number of samples of all ranks. `loss` is the loss after these samples. `exact_loss` is the loss after as many
        samples with exact gradients. `first_loss` is the loss before training.
    `logged_s`: for each segment, two mean times in the first steps: the time by linkbench's clocks, and the time by
        torch's own logger. Both times come from the rank on which the two times differ most. It is empty without a
        logger.
    `profiled_ratios`: for each pair of blocks, the step time with torch's profiler divided by the step time without the
        profiler. It is empty without a trace.
    `work`: what a step of all ranks does, as far as the model reports it. The keys are `samples`, `tokens`, `flops` (by
        the formula), `counted_flops` (as torch counts them) and `peak_flops_per_s` (of all processors).
    `peak_bytes`: the peak use of memory, for each type of memory and each rank. The types are "host", or "allocated"
        and "reserved" on GPUs.
    `predicted_bytes`: the memory that the suite expected a rank to need.
    `energy_j`: the energy of a step on each rank.
    """

    samples_per_block: int
    twins_s: Mapping[str, Sequence[float]]
    segments_s: Mapping[str, Sequence[Sequence[float]]]
    full_s: Sequence[Sequence[float]] = ()
    bucket_bytes: Sequence[int] = ()
    bucket_ready_s: Sequence[float] = ()
    bucket_done_s: Sequence[float] = ()
    exposed_s: Sequence[Sequence[float]] = ()
    work: Mapping[str, float] = field(default_factory=dict)
    peak_bytes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    predicted_bytes: int | None = None
    energy_j: Sequence[float] = ()
    gradient_error: float | None = None
    learned: Mapping[str, float] = field(default_factory=dict)
    profiled_ratios: Sequence[float] = ()
    logged_s: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointSamples:
    """The times of steps with and without checkpoints, in alternating blocks. The record's samples are the write times.

    All values are those of the slowest rank. A block has two lists: the seconds of each step, and the seconds of each
    step's exchange. Fields whose names end in `_alone_s` are from blocks without a checkpoint. `exchange_during_s` has
    only exchanges of steps that began before the checkpoint was durable.

    `total_s`: for each burst, the time from the start of the burst until `num_steps` steps have ended.
    `blocked_s`: for each burst, the time until the first step could begin.
    `read_s`: for each burst, the time to read the shard from the device.
    `device_share`: the bytes that came from the device, as a fraction of all bytes that were read. It is the smallest
        value of all ranks and bursts.
    """

    step_alone_s: Sequence[Sequence[float]]
    exchange_alone_s: Sequence[Sequence[float]]
    exchange_during_s: Sequence[Sequence[float]]
    total_s: Sequence[float]
    num_steps: Sequence[int]
    blocked_s: Sequence[float]
    read_s: Sequence[float]
    device_share: float


@dataclass(frozen=True, slots=True)
class Skip(Coded):
    """Why a row was not measured."""


@dataclass(frozen=True, slots=True)
class StarvedRank:
    """A rank that got too little CPU time while a row was timed.

    The times of other ranks include the time in which they waited for this rank. The rank got `cpu_s` of the `needed_s`
    seconds that it needed. A rank's share is the CPU time that it got, divided by the CPU time that it needed.
    `others_share` is the median share of all other ranks.
    """

    rank: int
    host: str
    cpu_s: float
    needed_s: float
    others_share: float


class WrongCode(Code):
    """The kinds of wrong data that a row can have."""

    ELEMENT = "element", "rank {rank}, element {element}: got {got}, expected {expected}"
    SENT = "sent", "the data that rank {rank} sends are wrong: element {element} is {got}, expected {expected}"
    GUARD = "guard", "bytes outside the buffers of rank {rank} were overwritten"
    CHECKSUM = "checksum", "what rank {rank} read back differs from what it wrote"
    UNEQUAL = "unequal", "the gradients of rank {rank} differ from those of rank 0 after the exchange"
    STRAY = "stray", "rank {rank} received bytes at an address to which no rank sends"


@dataclass(frozen=True, slots=True)
class WrongData(Coded):
    """The first wrong data of a row, and where they were found."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, and on which rank and host if known. `what` is a text for people.

    Program logic reads `code` and `facts`.
    """

    what: str
    rank: int | None = None
    host: str | None = None
    code: str = UNCODED
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, code: Code, rank: int | None = None, host: str | None = None, **facts: Any) -> Failure:
        """Make an instance from a code and its facts. The code's template gives the text."""
        return cls(code.words(facts), rank, host, code, facts)


@dataclass(slots=True)  # a run has tens of thousands of records, and a frozen class takes five times as long to create
class Record:
    """The result for one payload, mode and group of a case. Exactly one of samples, reported, skipped, failed is set.

    `requested_bytes`: all requested sizes that were rounded to this payload.
    `verified`: True if all bytes were right, False if some were wrong (`num_wrong` elements). The value is None if no
        bytes were checked, or if the row is modelled.
    `reported`: another tool's statistics by name, in SI units. `num_ranks` and `num_nodes` are unknown only in imported
        logs.
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
    rank_bytes: float | None = None  # through one rank's port, per operation and direction (Pattern.crossing)
    node_bytes: float | None = None  # between one node and the network; None on one node
    algorithm: str | None = None  # as modelled, or as the library reported it
    min_steps: int = 1  # messages that must follow one another (Pattern.min_steps)
    cache: str | None = None  # the real cache state: small buffers cannot always be made cold
    num_buffer_sets: int = 1
    verified: bool | None = None
    num_wrong: int | None = None
    first_wrong: WrongData | None = None
    compared: str | None = None  # how much of the received data was compared: "full" or "sampled" (docs/metrics.md)
    modelled: bool = False
    stop_reason: str | None = None
    flags: tuple[str, ...] = ()
    starved: tuple[StarvedRank, ...] = ()
    hosts: tuple[HostUse, ...] = ()  # CPU time of the group's hosts while the row was timed; empty if unknown
    devices: tuple[DeviceUse, ...] = ()  # clocks, power, errors of the group's GPUs or CPUs; empty if unknown
    clock_bound_s: float | None = None  # one-way: the largest error of a sample from the difference of clocks
    samples: Samples | None = None
    contention: Contention | None = None  # if the case has an aggressor
    recorded_s: float | None = None  # replay: the same time in the recorded job, the median of its steps
    overlap: OverlapSamples | None = None  # if products overlapped the samples
    beside: BesideSamples | None = None  # if copies ran at the same time as others
    reads: ReadSamples | None = None  # if the row is a pass over a data set
    step: StepSamples | None = None  # if the row is a training step
    checkpoint: CheckpointSamples | None = None  # if the row is a burst of checkpoints
    reported: Mapping[str, float] | None = None
    skipped: Skip | None = None
    failed: Failure | None = None

    def __post_init__(self) -> None:
        """Check that exactly one of samples, reported, skipped and failed is set."""
        if (self.samples, self.reported, self.skipped, self.failed).count(None) != 3:
            raise ValueError("a record is exactly one of samples, reported, skipped, failed")


# Keys of `Header.imported`: the tool's name and version (null: unknown), the file's name and SHA-256, the line at which
# the run begins, how it ended (logs/foreign.py: status, failure; text, code and facts), the values recomputed by this
# suite's definitions (texts and codes), and remarks: [{"line", "text", "code", "facts"}] of lost, doubtful or notable
# lines. Files of older versions have no codes. The job of a tool that prints figures instead of rows also has the key
# "figures" (logs/foreign.py: NamedFigure.to_dict).
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
    """The first line of a results file, with all information to repeat the run and to judge its figures.

    `case`: the argv of the case.
    `nodes`: host name -> facts of the host.
    `ranks`: each rank's host, local rank, process and CPU mask.
    `calibration`: ceilings and overheads measured at start.
    `settings`: how time was measured.
    `links`: the links of one node (core/links.py: NodeLinks). The bounds of the run are computed from these links.
    `imported`: if the rows come from another tool's log, the origin of the rows and how the tool's run ended (see
        IMPORTED_KEYS). The value is {} if the rows were measured by this suite.
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
    notes: tuple[str, ...] = ()  # the remarks as text for people; files before bench.results/6 have only these
    remarks: tuple[CodedRemark, ...] = ()
    launch: int = 1  # the number of this launch of the case
    imported: Mapping[str, Any] = field(default_factory=dict)


def known(count: int | None) -> int:
    """Return a count of ranks or nodes. Raises UsageError if the count is unknown, as in some imported logs."""
    if count is None:
        raise UsageError("the imported log does not state the number of ranks or nodes")
    return count
