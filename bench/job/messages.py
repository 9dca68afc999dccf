"""Codes and texts of a job's page."""

from __future__ import annotations

from bench.core.codes import Code, OptionalPartsCode


class RecordCode(Code):
    """Messages that are printed while a job is recorded."""

    NO_NSYS = "no-nsys", "--nsys needs the program nsys on PATH: install NVIDIA Nsight Systems, or omit --nsys"
    NO_FOLDER = "no-folder", "folder {folder} cannot be created ({why}): name another folder with --output DIR"
    NOT_STARTED = "not-started", "{program} cannot be started ({why}): check the command after --"
    KEPT = "kept", "these variables keep the values that you set: {names:list}"
    NO_TRACES = (
        "no-traces",
        "no rank wrote a trace to {folder}: add to your program the lines that `linkbench job record` prints, and run "
        "at least 23 steps",
    )
    TRACES = "traces", "{num:n trace} in {folder}; next: linkbench job explain {folder}"


class JobCode(OptionalPartsCode):
    """Gaps and contradictions in the files of a job."""

    RANK_UNKNOWN = (
        "rank-unknown",
        "{source} does not state its rank; linkbench assumes rank {rank}, from the order of the files",
    )
    OTHER_FILES = "other-files", " (the same applies to {num:n other file})"
    SAME_RANK = "same-rank", "{source} is ignored, because {other} is from the same rank ({rank})"
    RECORDS_JOINED = (
        "records-joined",
        "flight recorder or Inspector records of {num:n rank} match the traces; the records add bytes, groups or "
        "peers to {num_collectives:n collective}",
    )
    RECORDS_LEFT_OUT = (
        "records-left-out",
        "linkbench ignores the collectives that {num:n file} recorded ({sources:list 2}): either no trace of the "
        "same rank has the same calls, or other records of that rank were used",
    )
    OTHER_WORLD = (
        "other-world",
        "{source} is ignored: it is from a job of {world_size:n rank}, but the other files are from a job of "
        "{num_ranks:n rank}",
    )
    MISSING_RANKS = (
        "missing-ranks",
        "{num} of {num_ranks} ranks have no file ({ranks:list 8}); a rank without a file may be the late rank",
    )
    ONE_RANK = (
        "one-rank",
        "only rank {rank} has a file, so linkbench cannot tell whether an exchange is slow or waits for a late rank",
    )
    NO_COLLECTIVES = (
        "no-collectives",
        "the traces contain no collective: the job is a single process, or no training was recorded",
    )
    MISMATCH = (
        "mismatch",
        "group {group}: at collective number {place}, rank {rank} called {own}, but rank {other} called {theirs}; "
        "later collectives are not compared",
    )
    NO_MATCH = (
        "no-match",
        "group {group}: rank {rank} recorded {num:n collective}, and rank {other} recorded {other_num}; these "
        "collectives cannot be matched and are not compared",
    )
    LOST = "lost-collectives", "group {group}: rank {rank} lost {num:n record} of collectives"
    NOT_ALIGNED = (
        "not-aligned",
        "the clocks of ranks {ranks:list 8} cannot be aligned: these ranks share no collective with other ranks",
    )
    CLOCKS_APART = (
        "clocks-apart",
        "the clocks of {num:n rank} ({ranks:list 8}) differ from the clock of rank {reference} by up to "
        "{apart_s:time}; linkbench corrects this difference",
    )
    OTHER_RUN = (
        "other-run",
        "the times in the files of {num:n rank} ({ranks:list 8}) differ by up to {apart_s:time} from the times of "
        "rank {reference}; if these files are from different runs, the page may name the wrong rank as late",
    )
    IMPOSSIBLE_ORDER = (
        "impossible-order",
        "in {num} of {num_all} exchanges, one rank ended the exchange before another rank began it: these files are "
        "from different runs, so the page may name the wrong rank as late",
    )
    DRIFT = (
        "drift",
        "the clock of rank {rank} drifts by {ppm:.2g} microseconds per second; linkbench corrects this drift",
    )
    NO_STEPS = (
        "no-steps",
        "the traces mark no steps (ProfilerStep#, or the NVTX range step): linkbench treats all {seconds:time} as one "
        "step",
    )
    OTHER_STEPS = (
        "other-steps",
        "the ranks recorded different steps ({own} and {theirs}); the page covers only the steps that all ranks "
        "recorded",
    )


class ReplayCode(Code):
    """Why some or all exchanges of a job cannot be replayed."""

    UNKNOWN_OPS = "unknown-ops", "the replay omits {num:n exchange}: linkbench has no pattern for {names:list 4}"
    NO_SIZES = (
        "no-sizes",
        "the replay omits {num:n exchange}, because the traces do not state the sizes: record with record_shapes=True",
    )
    NO_MEMBERS = (
        "no-members",
        "the replay omits {num:n exchange}, because fewer than two of the participating ranks are known",
    )
    OUTSIDE_STEPS = "outside-steps", "no exchange is inside a marked step: record whole steps"


class RefusedJobCode(OptionalPartsCode):
    """Why a job's steps cannot be predicted on another machine."""

    MISSING_RANKS = (
        "missing-ranks",
        "{num} of {num_ranks} ranks have no trace: a prediction needs the traces of all ranks",
    )
    NO_COMMON_STEP = "no-common-step", "the ranks recorded no step in common: there is nothing to predict"
    UNEVEN = (
        "uneven",
        "{num_ranks:n rank} do not fit evenly on {num_nodes:n node} of {machine} ({num_gpus:n GPU} each)",
    )
    NOT_MEASURED = (
        "not-measured",
        "{run} has no valid {wanted}, which this job needs: on the machine of this run, use `linkbench run` with "
        "pattern: {pattern}, mode: both, sizes: {sizes}",
    )
    NO_MACHINE = "no-machine", "no machine can run this job: {reasons}"


class ElsewhereCode(OptionalPartsCode):
    """The evidence for a prediction on another machine."""

    CLOSURE = (
        "closure",
        "closure: a replay with the recorded times differs by {closure:percent} from the recorded step",
    )
    NOT_PREDICTED = (
        "not-predicted",
        "{num} of {num_all} exchanges keep their recorded times, because their size or kind is unknown or was not "
        "measured",
    )
    KEPT_PARTS = (
        "kept-parts",
        "the prediction keeps the recorded times of three parts: waiting for input, host gaps, and copies",
    )
    COMPUTE_KEPT = (
        "compute-kept",
        "the compute time stays as recorded, because the traces name no GPU with known rates: scale the compute time "
        "with `job predict --compute-factor`",
    )
    NO_MEMORY_CHECK = "no-memory-check", "linkbench does not check whether the job fits into the memory of the GPUs"
    EXCHANGES = "exchanges", "the exchanges on {num_nodes:n node} of {machine}"
    EFFICIENCY = "efficiency", "the efficiency of {links} links"
    COMPUTE = "compute", "the ratio of the compute times on {gpu} and {recorded}"
    MEASURE_LINKS = (
        "measure-links",
        "run `linkbench run bandwidth` on {num_nodes:n node} of {machine}, then give --runs results/RUN",
    )
    MEASURE_COMPUTE = (
        "measure-compute",
        "run `linkbench run gpu_baseline` on one {gpu} and one {recorded}, then give --runs with both runs",
    )


class WhatIf(Code):
    """The changes whose effect on the step time is computed by a replay."""

    NO_NETWORK = "no-network", "no network: exchanges take no time"
    IDEAL_NETWORK = "ideal-network", "ideal network: every exchange reaches the bound of the links"
    BALANCED_RANKS = "balanced-ranks", "balanced ranks: no rank is later than the median of the other ranks"
    NO_DATA_WAIT = "no-data-wait", "no waiting for input"
    NO_EXPOSED_COPIES = "no-exposed-copies", "copies hidden behind compute"
    NO_HOST_GAPS = "no-host-gaps", "no gaps in which the device waits for the host"
    OTHER_BUCKETS = "other-buckets", "gradients in eight buckets or more, each exchanged as soon as it is ready"
    HALF_GRADIENTS = "half-gradients", "gradients of half the size"


class CauseCode(OptionalPartsCode):
    """The causes of lost time."""

    LATE_INPUT = "late_input", "the input comes late: a step waits {wait_s:time} for the next batch"
    LATE_RANK = (
        "late_rank",
        "rank {rank}< on {host}> is late: its segment `{segment}` takes {late_s:time} longer than on other ranks",
    )
    RANDOM_LATENESS = (
        "random_lateness",
        "a different rank is late each time (median delay: {late_s:time}): this points to noise on the hosts, not to "
        "one slow rank",
    )
    SLOW_LINK = (
        "slow_link",
        "{op} of {num_bytes:bytes} takes {own_s:time}<, compared with {usual_s:time} on {machine} without other "
        "work><, compared with {others_s:time} in the other groups: the link of ranks {ranks:list 8} is slow>",
    )
    EXCHANGE_NOT_HIDDEN = (
        "exchange_not_hidden",
        "{exposed_s:time} of the exchange is exposed, although the backward pass ({backward_s:time}) is long enough "
        "to hide the whole exchange",
    )
    EXCHANGE_CANNOT_HIDE = (
        "exchange_cannot_hide",
        "the exchanges take {exchange_s:time} a step and cannot be hidden< behind the backward pass "
        "({backward_s:time})><blocking?, because the ranks wait for each exchange ({num} exchanges a step)>",
    )
    COSTLY_OVERLAP = "costly_overlap", "kernels take {factor:.2f} times as long while an exchange runs"
    HOST_BOUND = (
        "host_bound",
        "the device waits {idle_s:time} a step for the host, which launches {num_launches:n kernel} a step "
        "({kernel_s:time} per kernel on average)",
    )
    SYNC_POINT = (
        "sync_point",
        "in {name}, the host waits for the device; afterwards, the device waits {idle_s:time} a step for the host",
    )
    BUBBLE = "bubble", "the pipeline's stages wait {wait_s:time} a step for each other"
    RECOMPUTE = "recompute", "the backward pass spends {recompute_s:time} repeating the forward pass"
    ALLOCATOR = "allocator", "the device waits {idle_s:time} a step for memory to be allocated or freed ({name})"
    SMALL_BATCH = (
        "small_batch",
        "kernels take {kernel_s:time} on average, less than the cost of a launch: the batch is too small for this "
        "device",
    )
    PERIODIC = "periodic", "one of every {period} steps takes {extra_s:time} longer"
    SLOW_COPY = (
        "slow_copy",
        "copies <to_device?from the host to the GPU><!to_device?from the GPU to the host> reach {own:rate}, but the "
        "link of {machine} reaches {usual:rate}",
    )
    PAGEABLE_COPY = (
        "pageable_copy",
        "copies <to_device?from pageable host memory to the GPU><!to_device?from the GPU to pageable host memory> "
        "delay the device by {exposed_s:time} per step",
    )
    FEW_CPUS = (
        "few_cpus",
        "too few CPUs: the main threads of {num_ranks:n rank}< on {host}> wait for a CPU during {waited:percent} of "
        "the time; the ranks are allowed {num_cpus:n CPU}<others?, which they share with other programs>",
    )
    SHARED_GPU = "shared_gpu", "the job has only a part of the GPU ({device})"
    UNKNOWN = (
        "unknown",
        "the cause of {share:percent} of the step is unknown<waits?: the rank waits in exchanges, and only the files "
        "of other ranks show whether a late rank or the transfer is the cause>",
    )


class EvidenceCode(OptionalPartsCode):
    """Evidence for causes: facts from the traces, and the rates of the storage from runs of `feed`."""

    STORAGE = (
        "storage-supply",
        "this storage supplies {headroom:.2g} times the demand ({files}, {num_workers:n worker}<, slowest part: "
        "{limit}>; {source})",
    )
    STORAGE_BETTER = (
        "storage-better",
        "<other_files?with the format {files} and >with {num_workers:n worker}, the storage supplies {headroom:.2g} "
        "times the demand",
    )
    STORAGE_WITHOUT_DEMAND = (
        "storage-without-demand",
        "{source} states no demand: give --demand RATE, the bytes per second that the job consumes",
    )
    STORAGE_UNKNOWN = (
        "storage-unknown",
        "the rate of the storage is unknown: run `linkbench tune feed --folder DATA --demand RATE`, then give --feed "
        "RUN",
    )

    LATE_IN = "late-in", "late in {num} of {num_steps} steps"
    ALL_WAIT = "all-wait", "median wait by rank: {waits_s:list 8}"
    LATE_RANKS = "late-ranks", "the ranks that were late, in order: {ranks:list 12}"
    TRANSFERS = "transfers", "per step: {num:n exchange} with {num_bytes:bytes} in total, {transfer_s:time} on the wire"
    BUCKETS = (
        "buckets",
        "the step has {num:n bucket} of at most {largest:bytes}; with eight buckets or more, only {least_s:time} of "
        "the exchange would be exposed",
    )
    LONG_STEPS = "long-steps", "numbers of the long steps: {steps:list 8}"
    LAUNCHES = "launches", "per step: {num} kernels of {mean_s:time} on average"
    PIPELINE = (
        "pipeline",
        "a stage waits at least {share:percent} of the step ({least_s:time}): (p - 1) / (m + p - 1) with p = "
        "{num_stages} stages and m = {num_micro} micro-batches",
    )
    UNEVEN_STAGES = (
        "uneven-stages",
        "rank {rank} computes for {own_s:time} a step; the median stage computes for {usual_s:time}",
    )
    CPUS = "cpus", 'the ranks\' threads use {used:.2g} CPUs; the time under "returns" is an upper limit'
    SHARE = "share", "without this cause, {num} of {num_steps} steps would be shorter by more than {limit_s:time}"


class ConfirmCode(Code):
    """A command or change that confirms a cause."""

    INPUT = (
        "input",
        "train a few steps on one batch in memory: the wait should disappear. Then double num_workers of the "
        "DataLoader",
    )
    RANK = (
        "rank",
        "run `linkbench run gpu_baseline`, then move rank {rank} to another host: if the rank that then runs on the "
        "old host is late, this host is the cause",
    )
    NOISE = (
        "noise",
        "run `linkbench doctor` on every node to find other processes and throttling; then run the same job with its "
        "ranks bound to cores",
    )
    LINK = "link", "run `linkbench diagnose --cluster NAME`"
    LINK_ALONE = (
        "link-alone",
        "run `linkbench run --cluster NAME`: it measures the same exchange alone and shows its bound",
    )
    BUCKETS = (
        "buckets",
        "use smaller buckets (bucket_cap_mb of DistributedDataParallel), filled in the order of the backward pass",
    )
    LESS = (
        "less",
        "accumulate gradients with no_sync, or send them as float16: the time of the exposed exchange should halve",
    )
    OVERLAP = (
        "overlap",
        "run `linkbench run overlap`: it measures matrix products alone and during an allreduce; then give NCCL fewer "
        "SMs",
    )
    GRAPHS = "graphs", "use torch.compile or a CUDA graph: if the host is the cause, the gaps disappear"
    SYNC = "sync", "remove `.item()` and `.cpu()` from the step: torch.cuda.set_sync_debug_mode(1) names each such call"
    MICRO_BATCHES = "micro-batches", "use twice as many micro-batches of half the size: the wait should halve"
    RECOMPUTE = "recompute", "recompute fewer layers, as far as memory allows"
    ALLOCATOR = "allocator", "set PYTORCH_ALLOC_CONF=expandable_segments:True"
    BATCH = "batch", "double the batch: the step should take less than twice as long"
    LONG_STEPS = "long-steps", "look for checkpoints, evaluation or logging every {period} steps"
    COPIES = "copies", "run `linkbench run host_device`: it measures the same copy alone and shows its bound"
    PINNED = "pinned", "use DataLoader(pin_memory=True) and .to(device, non_blocking=True)"
    CPUS = "cpus", "run `linkbench doctor` on the node, and check the job's --cpus-per-task"
    WHOLE_GPU = "whole-gpu", "run the same job on a whole GPU"
    ALL_RANKS = "all-ranks", "record all ranks: linkbench job record -- COMMAND"
    RECORD = "record", "record the job with shapes and steps: linkbench job record -- COMMAND"


class AnswerCode(OptionalPartsCode):
    """Texts for the first line of a job's page, and for the line that says who measured the figures."""

    ORIGIN = "origin", "MEASURED by the job's profiler, imported from its traces<, {days}>"

    NO_STEPS = "no-steps", "cannot tell: the files have no step in common; record with linkbench job record -- COMMAND"
    NOTHING = "nothing", "no cause costs more than {limit_s:time} a step: nothing in these traces slows this job down"
    UNCERTAIN = (
        "uncertain",
        "cannot tell: the change `{what}` would save {gain_s:time} a step (median), but the interval is {low_s:time} "
        "to {high_s:time}; record more steps",
    )
    WORDS_OF_CAUSES = (
        "words-of-causes",
        "returns: the time per step that would be saved without this cause; confidence (0 to 1): the share of steps "
        "that would save more than the limit, reduced if ranks are missing or only one step is recorded",
    )
    FIRST = (
        "first",
        "{cause}; without this cause, a step of {step_s:time} would take {gain_s:time} less ({share:percent})",
    )
