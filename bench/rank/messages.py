"""Define the messages of ranks: codes and texts for skipped rows, failures, refusals and remarks."""

from __future__ import annotations

from bench.core.codes import Code, OptionalPartsCode


class RankSkip(Code):
    """The reasons why ranks skip a row."""

    NO_MEMORY = (
        "no-memory",
        "{payload_bytes:size} needs {need_mib} MiB on rank {rank}, but only {free_mib} MiB are available there",
    )
    ONE_WAY_CLOCK = (
        "one-way-clock",
        "{transport} cannot measure one-way times, which need the hosts' clocks: its operations do not complete on "
        "the host",
    )
    ONE_WAY_AGGRESSOR = (
        "one-way-aggressor",
        "{pattern} uses the clocks of two ranks and cannot run with aggressors: use pingpong",
    )
    NO_IN_PLACE = "no-in-place", "{pattern} has no in-place form"
    RANKS_REORDERED = (
        "ranks-reordered",
        "{transport} sorts the ranks of a group, so only --order linear can be measured",
    )
    NO_OVERLAP = (
        "no-overlap",
        "{transport} cannot compute while it communicates: use --transport nccl or gloo",
    )
    OVERLAP_GRAPH = "overlap-graph", "the pattern overlap cannot replay CUDA graphs: omit --graph"
    OVERLAP_AGGRESSOR = (
        "overlap-aggressor",
        "overlap already disturbs the collective with matrix products: omit --aggressor",
    )
    NO_TRAINING = "no-training", "{transport} cannot train a model: use --transport gloo"
    STRATEGY_IGNORES = (
        "strategy-ignores",
        "strategy {strategy} has no option {option}; the strategies with this option are {strategies:list}",
    )
    MODEL_STEP = (
        "model-step",
        "the model cannot simulate a training step: omit `--model` or `--transport model` to measure on real ranks",
    )
    MODEL_REPLAY = (
        "model-replay",
        "the model cannot replay a job: omit `--model` or `--transport model` to measure on real ranks",
    )
    MODEL_OVERLAP = (
        "model-overlap",
        "the model simulates only links, not how much matrix products slow down the links",
    )


class RankFailure(Code):
    """Why a row failed."""

    OUT_OF_MEMORY = (
        "out-of-memory",
        "ran out of memory, although the row needs only {need_mib} MiB of the {free_mib} MiB that were reported free",
    )
    WRONG_BEFORE_TIMING = (
        "wrong-before-timing",
        "the data check before timing found {num_wrong:n wrong element}; first: {first}",
    )
    NO_PRODUCTS = "no-products", "overlap: {why}"
    CLOCKS = "clocks-not-comparable", "the clocks of hosts {hosts:list} cannot be compared: {why}"


class RankRefusal(OptionalPartsCode):
    """Why ranks refuse to measure."""

    HOST_IN_USE = (
        "host-in-use",
        "another benchmark runs on host {host} ({whose}): wait until that benchmark has ended, or measure at the "
        "same time with `run --share-hosts`",
    )
    TOOL_NOT_STARTED = (
        "tool-not-started",
        "{program} cannot be started on host {host} ({why}): install the program there",
    )
    TWO_ENDS = (
        "two-ends",
        "a test between a server and a client needs exactly 2 ranks, one on each host, not {num_ranks}",
    )
    NO_RDMA_ADAPTER = (
        "no-rdma-adapter",
        "host {host} has no active RDMA adapter (InfiniBand, RoCE): load the driver, bring the link up, or measure on "
        "other hosts",
    )
    NOT_THIS_ADAPTER = (
        "not-this-adapter",
        "{wanted} is not an active RDMA adapter of host {host} (active adapters: {found:list}): correct `nics:` of the "
        "cluster",
    )
    SERVER_NOT_REACHED = (
        "server-not-reached",
        "host {client} cannot open a TCP connection to host {server} ({addresses:list}): allow connections between the "
        "hosts on all ports",
    )
    OTHER_NUM_RANKS = (
        "other-num-ranks",
        "the request is for {num_ranks:n rank} ({num_nodes:n node} x {ranks_per_node:n rank}), but <source?{source} "
        "reports {found:n rank}><!source?this process is a single rank without the variables of a supported launcher>: "
        "start all ranks with one mpirun, one torchrun job or one srun step",
    )
    AUTO_IGNORES = (
        "auto-ignores",
        "{option} is only for <transports?{transports:list}><!transports?transports that obey it, and none does>, but "
        "{transport} was chosen ({why}): omit {option}",
    )
    FOREIGN_LAUNCHER = (
        "foreign-launcher",
        "{variable}={value} means that this process is one of several ranks, but the launcher is not supported: "
        "start ranks with mpirun, torchrun or srun, or unset the variable",
    )
    OTHER_LAYOUT = (
        "other-layout",
        "the request is for {num_nodes:n host} x {ranks_per_node:n rank}, but the ranks are distributed differently "
        "({found}): check `hosts:` and `options:` in bench.yaml, and give every host its own host name",
    )
    SAME_HOST_NAME = "same-host-name", "two machines have the host name {host}: give each machine its own host name"
    SOFTWARE_DIFFERS = "software-differs", "{name} is {where}: install the same version on all hosts"
    VARIABLE_DIFFERS = (
        "variable-differs",
        "the environment variable {name} differs between hosts ({where}): set the variable in `env:` of the cluster, "
        "or set it to the same value on every host",
    )
    OTHER_CASE = (
        "other-case",
        "rank {rank} was started with different options than rank 0: start all ranks with the same options",
    )
    COPIES_ONLY = (
        "copies-only",
        "{transport} can only copy, but {pattern} needs messages or matrix products: use {others}",
    )
    NO_GPU = (
        "no-gpu",
        "rank {rank}: host {host} has no GPU, but {transport} needs one GPU for each rank: run this on machines with "
        "GPUs{instead}",
    )
    UNEVEN_RANKS = (
        "uneven-ranks",
        "the hosts have different numbers of ranks, or their ranks are not consecutive ({found}): start the ranks "
        "with a mapping by slot (the default of mpirun and srun)",
    )
    MODEL_WORLD = (
        "model-world",
        "the model simulates all ranks in one process, but {launcher} started {num_ranks}: start one process",
    )
    MODEL_INSTANCE = (
        "model-instance",
        "the model needs the links of an instance type: give --instance, such as --instance p4d.24xlarge (`linkbench "
        "list` shows the types)",
    )
    NO_LAYERS = (
        "no-layers",
        "a step needs either layers (--timed layers=8,forward=5ms,backward=10ms,bytes=1M) or a model (--workload "
        "vit-l-306m --layers 2), but not both",
    )
    ONLY_WORKLOAD = (
        "only-workload",
        "{option} changes the model of a workload, but timed layers have no model: use --workload instead of --timed",
    )
    WORKLOAD_WITHOUT_LAYERS = (
        "workload-without-layers",
        "workload {workload} has no {missing:list}, but a model needs layers, hidden, feedforward, heads and tokens: "
        "set what is missing with --layers or --resize, or use another workload",
    )
    DELAY_INSIDE_MODEL = (
        "delay-inside-model",
        "--inject can delay {segment} only in timed layers: use --timed, or delay another segment",
    )
    HEADS_UNEVEN = (
        "heads-uneven",
        "the number of heads ({heads}) must be a multiple of the number of key heads ({kv_heads}) and must divide the "
        "hidden size ({hidden}): change --resize",
    )
    ROUTING_UNEVEN = (
        "routing-uneven",
        "{tokens} tokens of a micro-batch cannot be divided among {experts} experts: change --samples or --resize",
    )
    SIZE_UNEVEN = (
        "size-uneven",
        "{name} {size} cannot be divided equally among the {num} ranks of a mesh row: change --resize or --mesh",
    )
    NO_ADAPTERS = (
        "no-adapters",
        "--train {train} needs low-rank adapters, which a convolutional model does not have: use --train all or "
        "--train head",
    )
    NOT_DIVIDED = "not-divided", "strategy {strategy} cannot divide a convolutional model: use another strategy"
    NO_EXPERTS = "no-experts", "the model of this workload has no experts: use another strategy"
    NO_SUCH_RANK = "no-such-rank", "--inject delays rank {rank}, but there are only {num_ranks:n rank}, numbered from 0"
    MESH_WORLD = (
        "mesh-world",
        "--mesh {mesh} does not fit {num_ranks:n rank}: the numbers of the mesh must multiply to {num_ranks}",
    )
    TENSORS_UNEVEN = (
        "tensors-uneven",
        "a layer of {num_bytes} bytes cannot be divided equally, in whole float32 numbers, among {num:n rank} of a "
        "mesh row: change bytes= or --mesh",
    )
    TOKENS_UNEVEN = (
        "tokens-uneven",
        "activations of {num_bytes} bytes cannot be divided equally, in whole float32 numbers, among {num:n rank} of "
        "a mesh row: change activations= or --mesh",
    )
    TOO_FEW_LAYERS = (
        "too-few-layers",
        "{layers:n layer} cannot fill {num_stages:n pipeline stage}: use more layers, or change --mesh",
    )
    MICRO_BATCHES_UNEVEN = (
        "micro-batches-uneven",
        "{micro_batches:n micro-batch} cannot be divided equally among the {num} ranks of a mesh row: use a multiple "
        "of {num}",
    )
    NO_PLAN = "no-plan", "replay needs --plan FILE: write the plan with `linkbench job replay PATH`"
    NOTHING_TO_REPLAY = (
        "nothing-to-replay",
        "a replay on {num_ranks:n rank} would be empty: no exchange of this job ({recorded:n rank}) includes two of "
        "the replayed ranks. Start more ranks",
    )
    REPLAY_MEMORY = (
        "replay-memory",
        "the buffers of this job need {need_mib} MiB on rank {rank}, but only {free_mib} MiB are available there: "
        "use fewer ranks per host",
    )
    NO_REPLAYED_PRODUCTS = (
        "no-replayed-products",
        "{transport} cannot multiply matrices: use --compute sleep or --compute spin",
    )
    BAD_PROFILE = "bad-profile", "--profile {given!r} is neither torch=DIR nor nsys=DIR"
    BAD_EXPECT = "bad-expect", "--expect {given!r} is not a world such as 4x2 or h0,h1x2"
    NOT_SEPARABLE = "not-separable", "{transport} cannot run two patterns at once: use --transport {others}"
    BAD_AGGRESSOR = "bad-aggressor", "--aggressor {aggressor}: {why}"
    OUTPUT = "output", "--output {file} cannot be written: {why}"


class RankRemark(Code):
    """The remarks that a results file contains for its readers."""

    CHOICE = "choice", "transport {transport} ({why}), {modes}, {cache}"
    MODELLED = (
        "modelled",
        "transport model (as requested) simulates {num_nodes} x {ranks_per_node} ranks of {instance}. It measures "
        "nothing, models isolated and pipelined rows alike, and has no cache",
    )
    TRANSPORT = "transport", "{text}"
    REPLAYED = (
        "replayed",
        "replays {num_steps:n step} of a job on {recorded:n rank}, with {num_operations:n exchange}; compute is "
        "replaced by {compute}",
    )
    REPLAY_MAPPED = (
        "replay-mapped",
        "of the job's {recorded:n rank}, linkbench replays only ranks {ranks:list 8}; it omits {num:n exchange} in "
        "which fewer than two of these ranks took part",
    )
    REPLAY_IDLE = "replay-idle", "{num:n rank} stay idle: the job had only {recorded} ranks"
    OPTIONS_IGNORED = "options-ignored", "{pattern} over {transport} ignores {options:list}"
    ONE_RANK = (
        "one-rank",
        "one rank: no bytes cross a link, so there is no bus bandwidth, and all times are only the library's "
        "overhead. {remedy}",
    )
    OVERSUBSCRIBED = (
        "oversubscribed",
        "oversubscribed: {ranks_per_node} ranks share {num_cpus} CPUs, so times include waiting for a CPU",
    )
    CLOCK_OFF = "clock-off", "the time of day on host {host} differs by {off_s:+.0f} s from the time on the other hosts"
    VARIABLE_DIFFERS = "variable-differs", "the variable {name} is not the same on all ranks"
    IDLE_BENCHMARK = (
        "idle-benchmark",
        "{program} (process {pid} of {user}) runs on host {host} and uses no CPU now: this program may disturb the "
        "measurement later",
    )
    NO_LEASE = (
        "no-lease",
        "host {host} does not see the controller's folder {folder}: if the controller is killed, the ranks on this "
        "host keep running until their launcher ends or the deadline passes",
    )


class RunEnd(Code):
    """The reasons why a run was not successful although all ranks ended normally."""

    WRONG_DATA = "wrong-data", "wrong data arrived in {num:n row}; first: {first}"
    ROWS_FAILED = "rows-failed", "{num:n row} failed; first: {first} (rank {rank} on {host})"
