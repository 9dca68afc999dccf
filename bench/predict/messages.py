"""Define the codes and message templates for refusals and remarks in predictions and machine selections.

Program logic and tests read only codes and facts, so the templates may be reworded freely.
"""

from __future__ import annotations

from enum import unique

from bench.core.codes import Code, OptionalPartsCode


@unique
class Refusal(OptionalPartsCode):
    """The codes of the UsageErrors that explain why a request cannot be answered."""

    # The cluster
    CLUSTER_WITHOUT_INSTANCE = (
        "cluster-without-instance",
        "cluster {cluster!r} has no instance type, so its links are unknown: set `instance:` in bench.yaml",
    )
    ONE_GPU = "one-gpu", "{num_gpus} GPU has no peer to communicate with: give 2 or more"
    PARTIAL_NODE = (
        "partial-node",
        "{num_gpus} GPUs do not fill whole nodes of {per_node} GPUs: give a multiple of {per_node}, or "
        "--ranks-per-node",
    )
    WORLD_TOO_LARGE = "world-too-large", "<{request} needs >{num_gpus} GPUs, but at most {most} can be predicted"
    TOO_FEW_RANKS = "too-few-ranks", "{num_nodes} x {ranks_per_node} ranks cannot communicate: give at least two ranks"
    GPUS_TOO_MANY = "gpus-too-many", "{instance} has {num_gpus} GPUs, not {requested}: give --gpus {num_gpus} or less"
    COUNTS_INVALID = "counts-invalid", "{option} {typed!r} must be whole numbers of 1 or more, such as 1,2,8"
    # Predictions
    PATTERN_UNKNOWN = "pattern-unknown", "pattern {pattern!r} cannot be predicted{hint}"
    ALGORITHM_UNKNOWN = (
        "algorithm-unknown",
        "{pattern} has no algorithm {algorithm!r} on {num_nodes} x {ranks_per_node} GPUs{hint}",
    )
    PAYLOAD_INVALID = "payload-invalid", "a payload of {size} bytes is impossible: give 0 or more bytes"
    ALLTOALL_TOO_LARGE = (
        "alltoall-too-large",
        "alltoall of {num_gpus} GPUs across oversubscribed leaf switches cannot be predicted: all rounds differ, so "
        "the limit is {most} GPUs",
    )
    DIRECTION_UNKNOWN = (
        "direction-unknown",
        "unknown copy direction {direction!r}: give h2d (host to device) or d2h (device to host)",
    )
    PCIE_UNKNOWN = "pcie-unknown", "the PCIe rate of {instance} is unknown: give the rate, such as pcie=25GB/s"
    RUN_WITHOUT_EVIDENCE = "run-without-evidence", "{path} has no GPU collective to predict from< ({note})>"
    # Compute and memory
    FLOPS_UNKNOWN = (
        "flops-unknown",
        "the number of FLOP per sample is unknown: give `flops`, or layers, hidden, feedforward and tokens",
    )
    DTYPE_RATE_UNKNOWN = "dtype-rate-unknown", "the {dtype} rate of {gpu} is unknown: set {setting}"
    OUT_OF_MEMORY = (
        "out-of-memory",
        "does not fit in memory: each GPU needs at least {needed_gb:.3g} GB, but {gpu} has {memory_gb:.3g} GB<: "
        "{calculation}>",
    )
    # Parallel layout
    MESH_NOT_DIVISOR = (
        "mesh-not-divisor",
        "{num_gpus} GPUs ({num_nodes} x {gpus_per_node}) are not a multiple of tensor {tensor} x pipeline "
        "{pipeline}< x context {context}> = {mesh_gpus}: give a multiple of {mesh_gpus} GPUs, or another mesh",
    )
    NO_MESH = "no-mesh", "no mesh of {num_gpus:n GPU} suits this model: give another number of nodes"
    GROUP_NOT_DIVISOR = (
        "group-not-divisor",
        "the {data_parallel} data-parallel ranks (with {num_gpus} GPUs) are not a multiple of `{group}: {size}`",
    )
    TENSOR_ACROSS_NODES = (
        "tensor-across-nodes",
        "`tensor: {tensor}` is not a multiple of the {gpus_per_node} GPUs of a node",
    )
    BUCKETS_TOO_MANY = (
        "buckets-too-many",
        "{gigabytes:.3g} GB in buckets of {bucket_bytes:bytes} would be more than {most} buckets: set parallel.bucket "
        "to {least_bytes:bytes} or more",
    )
    # A workload that contradicts itself
    EXPERTS_ACTIVE = "experts-active", "a token cannot use {active} of {experts} experts: lower `active_experts`"
    PARAMETERS_DISAGREE = (
        "parameters-disagree",
        "the layer sizes give {by_layers:.4g} parameters, not {given:.4g}: correct `parameters`, the sizes, `gated` "
        "or `vocabulary`",
    )
    COMPRESSION_WITHOUT_DDP = (
        "compression-without-ddp",
        "only strategy ddp compresses gradients: with {strategy}, set `compression: none`",
    )
    RANK_WITHOUT_POWERSGD = (
        "rank-without-powersgd",
        "`rank` is required with `compression: powersgd`, and not allowed with any other compression",
    )
    CONVOLUTIONS_INCOMPLETE = (
        "convolutions-incomplete",
        "a convolutional network needs blocks, channels, image and classes: give all of them, and omit layers",
    )
    CONVOLUTIONS_DIVIDED = (
        "convolutions-divided",
        "linkbench can predict a convolutional network only with strategy ddp, zero1 or zero2: omit tensor, "
        "pipeline, expert and context parallelism",
    )
    POWERSGD_WITHOUT_SIZES = (
        "powersgd-without-sizes",
        "powersgd needs the matrix sizes: give layers, hidden and feedforward, and omit experts",
    )
    EXPERTS_NOT_DIVISIBLE = (
        "experts-not-divisible",
        "{experts} experts cannot be split evenly over the {ranks} ranks of `expert: {ranks}`",
    )
    HEADS_NOT_DIVISIBLE = "heads-not-divisible", "{heads} heads cannot be split over `tensor: {tensor}`"
    LAYERS_TOO_FEW = "layers-too-few", "{layers} layers cannot be split over `pipeline: {pipeline}`"
    SHARD_WITHOUT_ZERO3 = "shard-without-zero3", "`shard` (hybrid sharding) needs strategy zero3, not {strategy}"
    INTERLEAVE_TOO_LARGE = (
        "interleave-too-large",
        "{layers} layers cannot be split over `pipeline: {pipeline}` x `interleave: {interleave}`",
    )
    TOKENS_NOT_DIVISIBLE = "tokens-not-divisible", "{tokens} tokens cannot be split over `context: {context}`"
    NF4_WITHOUT_LORA = "nf4-without-lora", "nf4 weights cannot be trained: give `lora`, or another type of weights"
    LORA_WITHOUT_SIZES = "lora-without-sizes", "lora needs the matrix sizes: give layers, hidden and feedforward"
    ACTIVATIONS_UNKNOWN = (
        "activations-unknown",
        "tensor, pipeline, expert and context parallelism send activations, whose size is unknown: give the model's "
        "`{field}`",
    )
    # A workload file
    COUNT_INVALID = "count-invalid", "{typed!r} is not a number above zero such as 24, 306M or 8.03B"
    WHOLE_INVALID = "whole-invalid", "{typed!r} is not a whole number above zero"
    INTERVAL_REVERSED = (
        "interval-reversed",
        "{typed!r} is not an interval: the first number is larger than the second",
    )
    FRACTION_ABOVE_ONE = "fraction-above-one", "{typed!r} is above 1: give a fraction of the data-sheet rate"
    BASELINES_WITHOUT_GPUS = "baselines-without-gpus", "expected a mapping (`GPU: value`), such as `L40S: 210`"
    SETTING_INVALID = (
        "setting-invalid",
        "--set {typed!r} must look like training.batch=32 (sections: {sections:list})",
    )
    SETTING_EMPTY = "setting-empty", "--set {typed!r} has no value after the equals sign"
    SETTING_WRONG = "setting-wrong", "--set {typed}: {error}"
    CONFIG_NOT_READ = "config-not-read", "{path} cannot be read ({error}): give the config.json of a model"
    CONFIG_UNREADABLE = "config-unreadable", "{path} is not a JSON object: give the config.json of a model"
    CONFIG_NO_WORKLOAD = (
        "config-no-workload",
        "{path} is not a workload file: if it is the config.json of a model, give --from {path}",
    )
    MODEL_TYPE_UNKNOWN = (
        "model-type-unknown",
        "{path}: linkbench does not know the layers of model_type {kind!r} (known: {known:list}): write a workload "
        "file",
    )
    CONFIG_KEY_MISSING = "config-key-missing", "{path} has no {key!r}: write a workload file"
    CONFIG_KEY_INVALID = "config-key-invalid", "{path}: {key}: {value!r} is not a whole number above zero"
    CONFIG_HEADS_UNEVEN = (
        "config-heads-uneven",
        "{path}: {whole} {num_whole} is not a multiple of {part} {num_part}",
    )
    PRESETS_TOO_DEEP = "presets-too-deep", "presets are nested more than {most} deep: write the values out"
    KEY_MISSING = "key-missing", "the key '{key}' is missing"
    # Selection
    NO_MACHINE = "no-machine", "{reasons}"
    NO_COST = "no-cost", "cost is unknown for {instances:list} ({reasons:list}): give --price, or rank by --by time"
    EXPLAIN_NOT_LISTED = (
        "explain-not-listed",
        "--explain {instance}: this type is not in --instances, which names only {names:list 4}",
    )
    PLOT_OF_SEVERAL = "plot-of-several", "--plot shows one workload, not {num_workloads}: name one"
    REGION_UNKNOWN = "region-unknown", "no price is known for region {region!r}{hint}"
    DATE_INVALID = "date-invalid", "--price-date {typed!r} is not a date such as 2025-03-31"
    PRICE_INVALID = "price-invalid", "--price {typed!r} must be INSTANCE=USD_PER_HOUR"
    PRICE_NOT_A_NUMBER = "price-not-a-number", "--price {typed!r}: {value!r} is not a number of dollars per hour"
    PRICE_OUT_OF_RANGE = "price-out-of-range", "--price {typed!r} must be above zero dollars per hour"
    AMOUNT_INVALID = "amount-invalid", "{typed!r} is not a number above zero and below a million"
    DAY_INVALID = "day-invalid", "{typed!r} is not a date such as 2026-05-04"
    LENGTH_TWICE = "length-twice", "{options:list} each give the length of the run: give only one of them"
    LENGTH_UNKNOWN = (
        "length-unknown",
        "{option} needs the length of the run: give --samples, --tokens or --epochs, or `epoch` in the workload",
    )
    TOKENS_UNKNOWN = (
        "tokens-unknown",
        "--tokens needs `model.tokens`, which the workload {workload} does not state: give --samples",
    )
    EPOCH_UNKNOWN = (
        "epoch-unknown",
        "--epochs needs `training.epoch`, which the workload {workload} does not state: give --samples",
    )
    OPTION_ALONE = "option-alone", "{option} needs {needed}"
    NO_PROGRESS = (
        "no-progress",
        "the run would never finish: a job on {num_nodes:n node} fails every {mtbf_s:time} and writes a checkpoint "
        "every {every_s:time}",
    )
    # The list of instance types
    NO_INSTANCE_LEFT = "no-instance-left", "the filters exclude all {num_instances} instance types: loosen a filter"
    PROVIDER_UNKNOWN = "provider-unknown", "unknown provider {provider!r}{hint}"
    PEERS_UNKNOWN = "peers-unknown", "no instance type has peer links of kind {kind!r}{hint}"
    NUMBER_INVALID = "number-invalid", "{option} {typed!r} is not a number above zero"
    DOLLARS_INVALID = "dollars-invalid", "{option} {typed!r} is not a number of dollars above zero"
    SPAN_INVALID = "span-invalid", "{option} {typed!r} is not a time above zero such as 30m, 12h or 3d"
    LENGTH_INVALID = "length-invalid", "{option} {typed!r} is not a number above zero such as 24, 306M or 8.03B"


@unique
class PredictRemark(OptionalPartsCode):
    """Remarks on a machine, its price, or the evidence."""

    # A machine in a selection
    FEED_WITHOUT_INPUT = (
        "feed-without-input",
        "the host-to-device feed is left out: the workload has no `training.input`",
    )
    MEMORY_TIGHT = (
        "memory-tight",
        "possibly too large for the memory: each GPU has {memory_gb:.3g} GB, but the estimate is {estimated_gb:.3g} "
        "GB (at least {least_gb:.3g} GB)",
    )
    FEED_WITHOUT_PCIE = "feed-without-pcie", "the host-to-device feed is left out: the PCIe rate is unknown"
    NOTHING_PUBLISHED = (
        "nothing-published",
        "no {collective} result is published for several {gpu} <across_nodes?across nodes><!across_nodes?in one "
        "node>, so its time is only a range, based on other machines",
    )
    UNVERIFIED = "unverified", "not verified against a source: {figures:list}"
    # A price
    PRICE_UNKNOWN = "price-unknown", "no price is known< in {region}>: give one with --price INSTANCE=USD_PER_HOUR"
    PRICE_UNKNOWN_ON = "price-unknown-on", "no price is known for {day}; the first known price is from {first}"
    PRICE_UNDATED = "price-undated", "the price has no date"
    PRICE_OLD = "price-old", "the price is from {seen}, more than a year before {day}: check it"
    PRICE_UNVERIFIED = "price-unverified", "the price is not verified against a source"
    PRICE_CHANGE = (
        "price-change",
        "the price of {first} changed from {then:.2f} $/h ({then_date}) to {now:.2f} $/h ({now_date}); {other} costs "
        "{others:.2f} $/h<hourly_order_changed?, so the order of these two prices has changed>. Cost of a sample on "
        "{first} divided by cost of a sample on {other}: {ratio_now} now ({result_now}), {ratio_then} at the old "
        "price ({result_then})",
    )
    ENERGY_UNKNOWN = (
        "energy-unknown",
        "the cost of energy is left out: give the machine's `watts` in the file of --prices",
    )
    # A run that cannot serve as evidence, or only in part.
    EVIDENCE_MODELLED = "evidence-modelled", "{job}: modelled, not measured"
    EVIDENCE_NOT_GPU = (
        "evidence-not-gpu",
        "{job}: linkbench does not know whether transport {transport} measures links between GPUs",
    )
    EVIDENCE_PATTERN = "evidence-pattern", "{job}: {pattern} cannot be predicted"
    EVIDENCE_WRONG_DATA = "evidence-wrong-data", "{job}: wrong data arrived"
    EVIDENCE_WITHOUT_LINKS = (
        "evidence-without-links",
        "{job}: the links are unknown: an imported log needs --instance or --cluster",
    )
    EVIDENCE_WITHOUT_WORLD = (
        "evidence-without-world",
        "{job}: the numbers of nodes and ranks are unknown: an imported log needs --num-nodes and --num-ranks",
    )
    EVIDENCE_UNEVEN_NODES = "evidence-uneven-nodes", "{job}: the nodes have different numbers of ranks"
    EVIDENCE_UNUSABLE = "evidence-unusable", "{source}, {pattern}: not usable as evidence: {error}"


@unique
class PageNote(Code):
    """The lines below the tables: how to read the tables, and which figures are doubtful."""

    # bench predict
    PREDICTED = (
        "predicted",
        "All figures are predicted. Brackets contain 90 % intervals. Below 1 MiB, the intervals contained "
        "{covered_small:.0%} of the published rows",
    )
    COLUMNS = (
        "columns",
        "-: no central estimate but only an interval, because these links were never measured or the measurements "
        "differ too much; links: the time that the links alone would need",
    )
    CLUSTER_LINKS = (
        "cluster-links",
        "{machine}: {classes:list}; * marks the fastest algorithm; docs/metrics.md defines the size of each "
        "collective (S); units are binary",
    )
    RESTS_ON = "rests-on", "based on: {source}"
    MORE_SOURCES = "more-sources", "based on {num} more sources (--format json)"
    ROWS_UNVERIFIED = (
        "rows-unverified",
        "unverified: at least one figure of these links, or of the measurements behind the prediction, was not "
        "checked against a source",
    )
    LEFT_OUT = "left-out", "left out: {text}"
    # bench instances
    OWN = "own", "* changed or added by bench.yaml"
    PRICES = (
        "prices",
        "prices: US dollars per hour of one node, on demand, on the date shown (--format json lists earlier prices)",
    )
    PRICES_UNVERIFIED = "prices-unverified", "price not verified against a source: {instances:list}"
    PRICES_OLD = "prices-old", "price older than a year: {instances:list}"
    PRICES_UNDATED = "prices-undated", "price without a date: {instances:list}"
    PRICES_MISSING = (
        "prices-missing",
        "no price is known for {instances:list}: set your own in bench.yaml (instances: NAME: price)",
    )
    LINKS_UNVERIFIED = (
        "links-unverified",
        "? marks {num} of {num_all} types: at least one of their link figures is not verified against a source "
        "(--format json names these figures)",
    )
    # bench validate
    VALIDATED = (
        "validated",
        "allreduce, 64 MiB and above, {num_systems} systems: the median error is {error:percent}; on average, the 90 "
        "% intervals contain {covered:percent} of a system's rows; {num_met} of {num_targets} targets are met",
    )
    HELD_OUT = (
        "held-out",
        "each published row is predicted only from other systems and other sources; error: |predicted / measured - 1|",
    )
    MEDIAN_ERROR = (
        "median-error",
        "error: the median of the systems' median errors; worst: the median error of the worst system",
    )
    BASELINE = (
        "baseline",
        "baseline: the error of a prediction that assumes one efficiency for all machines of a level (peer, host, "
        "network)",
    )
    BETTER = (
        "better",
        "better: how many of the systems with a baseline have a smaller error than the baseline",
    )
    COVERED = (
        "covered",
        "covered: the share of a system's rows inside their 90 % intervals (mean over systems); in brackets: the "
        "90 % Wilson interval of this mean",
    )
    POINTS = (
        "points",
        "points: the number of rows for which `predict` shows a central estimate; for all other rows, the error is "
        "based on an estimate that `predict` does not show",
    )
    TRAINING_HELD_OUT = (
        "training-held-out",
        "error: |predicted / measured - 1|, median over runs; each run is predicted without the other runs of its "
        "class; a family is all runs with the same source, architecture and kind of model",
    )
    TRAINING_RULES = (
        "training-rules",
        "half sheet: the error of a prediction in which every GPU reaches half of its data-sheet rate; by GPU: the "
        "error if every GPU reaches the median rate (in % of the data sheet) that other sources report for this "
        "architecture and element type",
    )
    TRAINING_INTERVAL = (
        "training-interval",
        "covered: the share of runs inside their 90 % intervals; high/low: the upper limit of an interval divided by "
        "its lower limit (median over runs)",
    )
    TRAINING_REFUSED = (
        "training-refused",
        "refused: how many published runs `select` would refuse, because even the lower bound of the required memory "
        "exceeds the GPU's memory",
    )
    TRAINING_MEMORY = (
        "training-memory",
        "memory: the estimate is within 10 % of {num} of {num_all} published sizes; by this estimate, {num_tight} of "
        "{num_runs} published runs would not fit into the memory",
    )
    TRAINING_RATIOS = "training-ratios", "{num} of {num_all} predicted ratios are within 15 % of the measured ratio"


@unique
class TargetResult(OptionalPartsCode):
    """Verdicts on whether the predictions for a class of links meet their target."""

    NO_TARGET = "no-target", "no target"
    NO_POINT = (
        "no-point",
        "{most:.0%} or less: not met, because the predictions have only intervals and no central estimates",
    )
    ERROR_TARGET = "error-target", "{most:.0%} or less: <met?met><!met?MISSED>"
    BASELINE_TARGET = (
        "baseline-target",
        "better than the baseline: <met?met><!met?MISSED>, {num_better} of {num_compared} systems have a smaller error",
    )


@unique
class Answer(OptionalPartsCode):
    """The first sentence on the page of a selection."""

    SURE = (
        "sure",
        "{best} is certainly <cost?cheaper><!cost?faster><several? than each of the other {num_others}>: a "
        "<tokens?token><!tokens?sample> <cost?costs><!cost?takes> {low:percent} to {high:percent} of the "
        "<cost?cost><!cost?time> on {other}<several?, the next machine><; {other} would certainly be cheaper "
        "below {below_usd:.3g} $/h (now {now_usd:.2f})><limited?; {best} meets the limits in {within:percent} "
        "of the random draws>",
    )
    CANNOT_TELL = (
        "cannot-tell",
        "cannot tell whether {best} or {others:list 3} is <cost?cheaper><!cost?faster>: a "
        "<tokens?token><!tokens?sample> on {best} <cost?costs><!cost?takes> {low:percent} to {high:percent} of the "
        "<cost?cost><!cost?time> on {other}<, because {doubt} is not known well (the source of {share:percent} of "
        "the uncertainty)><; {faster} is certainly faster><limited?; {best} meets the limits in {within:percent} of "
        "the random draws>",
    )
    BETTER_BUT_OUTSIDE = (
        "better-but-outside",
        "{best} comes first because it meets the limits in {within:percent} of the random draws; {others:list 3} "
        "<cost?costs><!cost?takes> less for each <tokens?token><!tokens?sample>, but exceeds the limits",
    )
    ONLY_ONE = (
        "only-one",
        "{best} is the only machine that can be judged<limited?; {best} meets the limits in "
        "{within:percent} of the random draws>",
    )
    NOT_COMPARED = "not-compared", "{best} is the only machine with a price"


@unique
class DecisionNote(OptionalPartsCode):
    """The lines below the table on the page of a selection."""

    RUN_LENGTH = (
        "run-length",
        "run: <tokens?{tokens:count} tokens, that is >{samples:count} samples<tokens? of {per_sample:count} tokens "
        "each><epoch?, one epoch of the workload>",
    )
    RUN_UNKNOWN = "run-unknown", "run: its length is unknown; give --samples, --tokens or --epochs"
    LIMITS = (
        "limits",
        "limits: <at most {budget_usd:.6g} $><both?, ><at most {deadline_s:time}>; within: the share of random draws "
        "in which the run meets the limits",
    )
    BREAK_EVEN = (
        "break-even",
        "break-even ($/h for all nodes): below the lower price, a machine is certainly cheaper than the first "
        "machine; above the higher price, it is certainly more expensive. The first machine itself is compared with "
        "the second machine",
    )
    OPEN = "open", "open: it is uncertain whether this machine or the first machine is <cost?cheaper><!cost?faster>"
    MESH = (
        "mesh",
        "{machine}: mesh: <tensor {tensor} x ><pipeline {pipeline} x ><context {context} x >data {data}<, expert "
        "{expert}>, {strategy}, {accumulation:n micro-batch} of {batch:n sample}",
    )
    NEAREST = (
        "nearest",
        "{machine}: nearest published run: {pattern} on {where}, {num_bytes:bytes}: {bytes_per_s:rate} ({source})",
    )
    NO_NEAREST = "no-nearest", "{machine}: no run on the same number of these GPUs is published"
    NARROW = (
        "narrow",
        "{machine}: the upper limit of the interval is {factor:.3g} times the lower limit; to reduce this factor to "
        "about {factor_after:.3g}, measure {description}: {command}",
    )
    MEASURED = (
        "measured",
        "{machine}: your runs changed the predicted step from {before} ms (upper / lower limit: {factor_before:.3g}) "
        "to {after} ms (upper / lower limit: {factor_after:.3g})",
    )
    MEASURED_NOTHING = "measured-nothing", "{machine}: your runs did not change the prediction"
    GOODPUT = (
        "goodput",
        "failures, and checkpoints every {every_s:time}<young? (Young's interval)>, make a run on {num_nodes:n node} "
        "{stretch:.4g} times as long",
    )
    GOODPUT_SOURCE = "goodput-source", "failures of a node: {source}"
    ENERGY = "energy", "costs in $ include energy at {usd_per_kwh:.4g} $/kWh for machines whose watts are given"
    WIDE = (
        "wide",
        "--wide shows the parts of the step, the dates of the prices and all remarks ({num_remarks} here); "
        "--format json shows everything",
    )
