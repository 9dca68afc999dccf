"""Define a Case, which contains everything that a command line specifies about a measurement.

Case is the table of factors (core/factors.py). Each field is an option of every pattern, a key of scenarios and a part
of job names. Rows of two runs are compared only if they agree in all factors that are not declared comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.core import option_parsers as words
from bench.core import plugins
from bench.core.checkpoint import METHODS
from bench.core.dtypes import REDUCE_OPS, dtype_of
from bench.core.errors import UsageError
from bench.core.factors import Factor, factor, factors_of, one_of, setting, switch
from bench.core.pattern import Pattern, Shape
from bench.core.plugins import check
from bench.core.record import Header, Skip
from bench.core.skips import SkipCode
from bench.core.step_model import AUTOCASTS, RECOMPUTED, hook_word, resize_word, trained_word
from bench.core.strategies import DEFAULT_STRATEGY, mesh_word
from bench.core.sweep import DEFAULT_SIZES, format_sizes, parse_sizes
from bench.core.topology import check_order, check_split, check_topology
from bench.core.training_step import (
    Injected,
    TimedLayers,
    injected,
    injected_word,
    layers_word,
    show_injected,
    timed_layers,
)
from bench.core.traits import Traits, names_obeying, traits
from bench.core.units import format_size, parse_duration

MODES = ("both", "isolated", "pipelined")
CACHES = ("cold", "hot")
DIRECTIONS = ("one-way", "two-way", "h2d", "d2h")
ENGINES = ("ce", "sm", "chase")
ACCESSES = ("write", "read")
MEMORIES = ("pinned", "pageable")
REGISTRATIONS = ("none", "buffers", "symmetric")
SYMMETRIC = ("none", "one-shot", "two-shot", "multimem", "multimem-one-shot")
CTA_POLICIES = ("default", "efficiency", "zero")
VIAS = ("ipc", "process")
COMPUTES = ("sleep", "spin", "products")
THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")
SYNCS = ("double-barrier", "barrier", "none")
LOOPS = ("auto", "compiled", "python")
TIMERS = ("system", "library")
BINDS = ("auto", "none")
READ_ORDERS = ("sequential", "shuffled", "random")
DESTINATIONS = ("host", "device", "gds")
WORKER_KINDS = ("thread", "process")
PREPARATIONS = ("none", "decode", "augment", "tokenise")
SCHEDULES = ("full", "ladder")
PIPELINES = ("1f1b", "gpipe", "interleaved", "zero-bubble")
_TWO_CHUNKS = PIPELINES[2:]  # schedules that need several stages on each rank
# `--like`: the settings of other tools.
LIKE: dict[str, dict[str, str]] = {
    "nccl-tests": {"mode": "pipelined", "cache": "hot"},
    "osu": {"mode": "isolated", "cache": "hot", "sync": "barrier", "alignment": "4096", "timer": "library"},
}
LIKE_FOR_PATTERN: dict[tuple[str, str], dict[str, str]] = {
    ("osu", "pingpong"): {"sync": "none"},  # osu_latency does not synchronise between round trips
}


def _lists(name: str) -> Callable[[Pattern], bool]:
    """Return a function that checks whether a pattern lists this factor in `Pattern.factors`."""
    return lambda pattern: name in pattern.factors


def _by_row(header: Header) -> None:
    """Return None: this factor can differ between rows, so the header does not contain its value."""


def _transport(text: str) -> str:
    return text if text == "auto" else check("transport", text)


def _show_seconds(seconds: float) -> str:
    return f"{seconds!r}s"


def _show_matrix(rows: tuple[tuple[int, ...], ...]) -> str:
    return ";".join(",".join(map(str, row)) for row in rows)


def _show_links(links: tuple[tuple[str, float], ...]) -> str:
    return ",".join(f"{name}={rate!r}B/s" for name, rate in links)


def _show_racks(racks: tuple[tuple[str, tuple[str, ...]], ...]) -> str:
    return ";".join(f"{rack}={','.join(hosts)}" for rack, hosts in racks)


def _show_pairs(pairs: tuple[tuple[str, str], ...]) -> str:
    return ",".join(f"{name}={value}" for name, value in pairs)


@dataclass(frozen=True, slots=True)
class Case:
    """One pattern on one transport with one value for each factor. The units are bytes, seconds and bytes per
    second.
    """

    # fmt: off
    pattern: str
    transport: str = factor(
        "auto", "--transport", help="communication library: auto, or a file of transports/",
        parse=_transport, keys=(), name_rank=None, reported=lambda header: header.transport)
    sizes: tuple[int, ...] = setting(
        parse_sizes(DEFAULT_SIZES), "--sizes", help="message sizes: begin:end:factor or a list, K/M/G binary (8:16M:2)",
        parse=parse_sizes, show=format_sizes, keys=("sizes", "size"), merge=words.merged_sizes)
    dtype: str = factor(
        "float32", "-d", "--dtype", help="element type (default float32)",
        parse=lambda text: dtype_of(text).name, keys=("dtypes", "dtype"), name_rank=1,
        reported=lambda header: header.dtype, selectable=True)
    reduce_op: str = factor(
        "sum", "-o", "--op", help="reduction (default sum)",
        parse=words.one_of("reduce operation", REDUCE_OPS), keys=("ops", "op"), name_rank=1,
        patterns=lambda pattern: pattern.reduces, reported=lambda header: header.reduce_op or None, selectable=True)
    root: int = factor(
        0, "-r", "--root", help="root rank of rooted patterns (default 0)",
        parse=words.whole(0, "root"), keys=("roots", "root"), name_rank=70,
        patterns=lambda pattern: pattern.rooted, reported=lambda header: header.root, labelled=True)
    in_place: bool = switch(
        False, "--in-place", help="1: receive into the send buffer",
        keys=("in_place",), name_rank=60,
        patterns=lambda pattern: pattern.in_place, reported=_by_row, labelled=True)
    mode: str = one_of(
        "mode", MODES, "--mode", help="isolated: one operation at a time; pipelined: back to back; default both",
        several=False, name_rank=None, comparable=True, selectable=True)
    cache: str = one_of(
        "cache state", CACHES, "--cache",
        help="cold: rotate buffers larger than the last-level cache (default); hot: reuse one buffer",
        name_rank=4, reported=lambda header: header.settings.get("cache"), labelled=True)
    direction: str = one_of(
        "direction", DIRECTIONS, "--direction", help="direction of point-to-point patterns and copies",
        name_rank=3,
        patterns=lambda pattern: pattern.directional, reported=lambda header: header.direction, selectable=True)
    window: int = factor(
        64, "--window", help="messages in flight in pipelined mode (default 64)",
        parse=words.whole(1, "window"), several=False, name_rank=None)
    topology: str = factor(
        "world", "--topology", help="groups of ranks: world, node, rail, pairs, groups of K, node in turn",
        parse=check_topology, keys=("topology", "topologies"), name_rank=2,
        patterns=lambda pattern: pattern.topology is None, reported=lambda header: header.topology, selectable=True)
    order: str = factor(
        "linear", "--order", help="order of ranks: linear, reverse, interleaved, or a list of ranks",
        parse=check_order, split=words.split_orders, name_rank=2, labelled=True)
    skew: float = factor(
        0.0, "--skew", help="moe: rank k's experts get (k+1)^-skew of the tokens (default 0: all equal)",
        parse=words.skew, show="{:g}".format, keys=("skew", "skews"), patterns=_lists("skew"), name_rank=60,
        labelled=True, word="skew{:g}".format)
    matrix: tuple[tuple[int, ...], ...] = factor(
        (), "--matrix", help="alltoallv's weights, row by row: 0,1;2,0",
        parse=words.matrix, show=_show_matrix, several=False, split=words.split_matrix, merge=words.only_one,
        name_rank=None)
    aggressor: str = factor(
        "", "--aggressor",
        help="PATTERN[:SIZE] that other ranks run at the same time; each row is measured with and without it",
        parse=words.aggressor, keys=("aggressors", "aggressor"))
    split: str = factor(
        "alternate", "--split",
        help="victims/aggressors: alternate (every second rank), halves (of each node), or ranks such as 0-3/4-7",
        parse=check_split, keys=("splits", "split"), depends_on="aggressor")
    plan: str = factor(
        "", "--plan", help="the plan file that replay runs (linkbench job replay writes it)",
        several=False, name_rank=None, patterns=_lists("plan"))
    compute: str = one_of(
        "kind of compute", COMPUTES, "--compute", help="replay: what replaces compute: sleep, spin, products",
        patterns=_lists("compute"), keys=("compute",), name_rank=60, labelled=True)
    pause_s: float = factor(
        0.0, "--pause",
        help="pause before each isolated call (default 0); links with burst credits are then faster",
        parse=words.rest, show=_show_seconds, keys=("pauses", "pause"), name_rank=60, labelled=True)
    iterations: int | None = setting(
        None, "-n", "--iterations", help="samples per row (default: until the median's interval is narrow enough)",
        parse=words.whole(1, "iterations"))
    warmup: int | None = setting(
        None, "-w", "--warmup", help="calls before timing (default: at least 5 calls and 50 ms)",
        parse=words.whole(0, "warmup"))
    max_s: float = setting(
        0.25, "--max-seconds", help="time limit of a row that does not converge (default 0.25s)",
        parse=parse_duration, show=_show_seconds, keys=())
    soak_s: float = setting(
        0.0, "--soak", help="sample each row for this long (5m), to compare burst and sustained rates",
        parse=parse_duration, show=_show_seconds, keys=("soak",))
    budget_s: float | None = setting(
        None, "--budget", help="time limit of all rows together", parse=parse_duration, show=_show_seconds, keys=())
    seed: int = setting(1, "--seed", help="seed of the test data (default 1)", parse=words.whole(0, "seed"))
    like: str = factor(
        "", "--like", help="measure like nccl-tests (pipelined, hot, mean over ranks) or osu (hot, one barrier, mean)",
        parse=words.one_of("tool to measure like", tuple(LIKE)), several=False, name_rank=4)
    thread_level: str = one_of(
        "thread level", THREAD_LEVELS, "--thread-level",
        help="MPI thread level: single (default, as in C benchmarks), funneled, serialized, multiple (mpi4py's)",
        by_transport=True, name_rank=4,
        reported=lambda header: header.facts.get("mpi_thread_level"), reported_as="mpi_thread_level",
        follows=("transport",))
    sync: str = one_of(
        "synchronisation", SYNCS, "--sync",
        help="before each isolated MPI call: double-barrier (default, least start skew), barrier (OSU's), none",
        by_transport=True, name_rank=4,
        reported=lambda header: header.settings.get("sync"), follows=("transport",))
    loop: str = one_of(
        "timing loop", LOOPS, "--loop",
        help="what calls MPI while timing: compiled (C), python, or auto (default: compiled if it can be built)",
        by_transport=True, name_rank=4, reported=_by_row, follows=("transport",))
    timer: str = one_of(
        "timer", TIMERS, "--timer",
        help="the clock of MPI calls in the compiled loop: system (default), library (MPI_Wtime, as OSU)",
        by_transport=True, name_rank=4,
        patterns=lambda pattern: not (pattern.one_way or pattern.plans_own_rows),  # these have clocks of their own
        reported=lambda header: header.facts.get("timing_clock"), reported_as="timing_clock", follows=("transport",))
    alignment: int = factor(
        64, "--alignment", help="alignment of host buffers in bytes, a power of two (default 64)",
        parse=words.alignment, name_rank=4, word=str,
        reported=lambda header: header.facts.get("buffer_alignment_bytes"), follows=("transport",))
    bind: str = one_of(
        "binding", BINDS, "--bind",
        help="auto (default): bind each rank to its own CPU cores if there are enough; none: do not bind",
        name_rank=4,
        reported=lambda header: header.settings.get("binding"), reported_as="binding",
        follows=("transport", "num_ranks"))
    instance: str = setting("", "--instance", help="instance type whose links bound (and model) the run", keys=())
    nodes: int | None = factor(
        None, "--nodes", help="nodes of a modelled run",
        parse=words.whole(1, "nodes"), keys=(), name_rank=None,
        reported=lambda header: header.num_nodes, reported_as="num_nodes", follows=("num_ranks",))
    ranks_per_node: int | None = factor(
        None, "--ranks-per-node", help="ranks per node of a modelled run",
        parse=words.whole(1, "ranks per node"), keys=(), name_rank=None,
        reported=lambda header: header.ranks_per_node, follows=("num_ranks",))
    links: tuple[tuple[str, float], ...] = setting(
        (), "--links", help="link rates that replace the catalogue's: nic=12.5GB/s",
        parse=words.links, show=_show_links, keys=())
    schedule: str = one_of(
        "schedule", SCHEDULES, "--schedule",
        help="full: every pair once (default); ladder: some pairs first, then suspected hosts (see linkbench diagnose)",
        several=False, name_rank=None, comparable=True)
    nics: tuple[str, ...] = setting(
        (), "--nics", help="NICs of a host; its k-th rank uses the k-th NIC, again from the first after the last",
        parse=words.names, show=",".join, keys=())
    racks: tuple[tuple[str, tuple[str, ...]], ...] = setting(
        (), "--racks", help="the hosts of each rack: r1=h0,h1;r2=h2,h3", parse=words.racks, show=_show_racks, keys=())
    engine: str = one_of(
        "engine", ENGINES, "--engine", help="what copies: ce (copy engine, default), sm (a kernel), chase (one thread, "
        "one load after the other)", patterns=_lists("engine"), selectable=True, labelled=True)
    sms: int = factor(
        0, "--sms", help="SMs that --engine sm may use, one block of 512 threads on each (default: all, filled)",
        parse=words.whole(0, "number of SMs"), keys=("sms",), patterns=_lists("engine"), name_rank=60, labelled=True,
        word="sms{}".format)
    access: str = one_of(
        "access", ACCESSES, "--access", help="which of two GPUs copies: write (the source, default), read (the target)",
        keys=("access", "accesses"), patterns=_lists("access"), selectable=True, labelled=True)
    memory: str = one_of(
        "kind of memory", MEMORIES, "--memory", help="host memory of copies to a GPU: pinned (default), pageable",
        keys=("memory", "memories"), patterns=_lists("memory"), selectable=True, labelled=True)
    via: str = one_of(
        "way", VIAS, "--via",
        help="memory of two GPUs: ipc (two processes, default), process (one process owns both)",
        patterns=_lists("via"), selectable=True, labelled=True)
    graph: bool = switch(
        False, "--graph", help="1: capture NCCL's calls in a CUDA graph once, and replay it",
        by_transport=True, strict=True, name_rank=60, labelled=True)
    aggregate: int = factor(
        1, "--aggregate", help="collectives in one group call of nccl_direct, as nccl-tests -m (default 1)",
        parse=words.whole(1, "aggregate"), by_transport=True, strict=True, name_rank=60, labelled=True)
    register: str = one_of(
        "registration", REGISTRATIONS, "--register",
        help="nccl_direct: memory to register with NCCL: none (default), buffers, symmetric (windows)",
        by_transport=True, strict=True, name_rank=60, labelled=True, keys=("register",))
    symmetric: str = one_of(
        "way of symmetric memory", SYMMETRIC, "--symmetric",
        help="nccl: allreduce by torch's kernels over symmetric memory: none (default), one-shot, two-shot, multimem, "
        "multimem-one-shot",
        by_transport=True, strict=True, name_rank=60, labelled=True, keys=("symmetric",))
    ctas: str = factor(
        "", "--ctas", help="nccl_direct: CTAs of a communicator, such as 4, or a range, such as 1-16",
        parse=words.ctas, by_transport=True, strict=True, name_rank=60, labelled=True, keys=("ctas",))
    cta_policy: str = factor(
        "", "--cta-policy", help="nccl_direct: NCCL's policy for CTAs: default, efficiency, zero",
        parse=words.one_of("CTA policy", CTA_POLICIES), by_transport=True, strict=True, name_rank=60, labelled=True,
        keys=("cta_policy",))
    tf32: bool = switch(
        False, "--tf32", help="1: GPUs multiply float32 matrices in TF32 on tensor cores (default: in float32)",
        keys=("tf32",), patterns=_lists("tf32"), name_rank=60)
    share_gpu: bool = switch(
        False, "--share-gpu", help="1: allow several nccl ranks on one GPU, to try things out; no bounds are shown",
        several=False, name_rank=60, labelled=True)
    require: tuple[tuple[str, str], ...] = setting(
        (), "--require",
        help="what NCCL must use, or the row is invalid: network=efa,algorithm=ring,protocol=simple",
        parse=words.required, show=_show_pairs, keys=("require", "expect"),
        split=words.split_requirements, merge=words.only_one, by_transport=True, strict=True)
    files: str = factor(
        "raw", "--files", help="feed: format of the data set, a file of datasets/formats/ (default raw)",
        parse=lambda text: check("dataset format", text), keys=("files",), patterns=_lists("files"), labelled=True,
        tuned=plugins.names("dataset format"))
    read_order: str = one_of(
        "read order", READ_ORDERS, "--read-order",
        help="feed: sequential (default), shuffled (shards and a buffer), random (single records)",
        keys=("read_order", "read_orders"), patterns=_lists("read_order"), labelled=True)
    record: int = factor(
        110 << 10, "--record", help="feed: bytes of a record (default 110K)",
        parse=words.at_least_one_byte, show=format_size, keys=("record", "records"), patterns=_lists("record"),
        word=format_size, labelled=True)
    workers: int = factor(
        0, "--workers", help="feed: workers that read (default 0: the calling thread)",
        parse=words.whole(0, "workers"), keys=("workers",), patterns=_lists("workers"), labelled=True,
        tuned=("0", "1", "2", "4"))
    worker_kind: str = one_of(
        "kind of worker", WORKER_KINDS, "--worker-kind", help="feed: what workers are: thread (default), process",
        keys=("worker_kind", "worker_kinds"), patterns=_lists("worker_kind"), depends_on="workers", labelled=True)
    block: int = factor(
        0, "--block", help="feed: bytes of one read (default: a whole record)",
        parse=words.at_least_one_byte, show=format_size, keys=("block", "blocks"), patterns=_lists("block"),
        word=lambda num_bytes: f"block{format_size(num_bytes)}".replace(" ", ""), labelled=True)
    ahead: int = factor(
        0, "--ahead", help="feed: records that the kernel reads ahead (default 0)",
        parse=words.whole(0, "ahead"), keys=("ahead",), patterns=_lists("ahead"), labelled=True)
    prepare: str = one_of(
        "preparation", PREPARATIONS, "--prepare",
        help="feed: how each record is prepared: none (default), decode, augment, tokenise",
        keys=("prepare", "prepares"), patterns=_lists("prepare"), labelled=True)
    offline: bool = switch(
        False, "--offline", help="1: feed stores records that --prepare has already prepared, and only reads them",
        keys=("offline",), patterns=_lists("offline"), depends_on="prepare", labelled=True)
    step_s: float = factor(
        0.0, "--step-time", help="feed, checkpoint: time of a step without its batch or exchange (default 0)",
        parse=words.rest, show=_show_seconds, keys=("step_time", "step_times"), patterns=_lists("step_s"),
        labelled=True)
    prepare_s: float = factor(
        0.0, "--prepare-time", help="feed with --step-time: time that a worker sleeps for each batch (default 0)",
        parse=words.rest, show=_show_seconds, keys=("prepare_time", "prepare_times"), patterns=_lists("prepare_s"),
        labelled=True)
    batch: int = factor(
        32, "--batch", help="feed with --step-time: records of a batch (default 32)",
        parse=words.whole(1, "batch"), keys=("batch", "batches"), patterns=_lists("batch"), labelled=True)
    prefetch: int = factor(
        2, "--prefetch", help="feed with --step-time: batches that each worker reads ahead (default 2)",
        parse=words.whole(1, "prefetch"), keys=("prefetch",), patterns=_lists("prefetch"), labelled=True,
        tuned=("1", "2", "4"))
    direct_io: bool = switch(
        False, "--direct-io", help="1: feed reads with O_DIRECT",
        keys=("direct_io",), patterns=_lists("direct_io"), labelled=True)
    folder: str = factor(
        "", "--folder", help="feed, checkpoint: folder for test data (default: this folder), or s3://BUCKET[/PREFIX]",
        several=False, name_rank=None, patterns=_lists("folder"))
    demand: float = setting(
        0.0, "--demand", help="feed: bytes per second that a workload consumes, such as 2GB/s",
        parse=words.demand, show=lambda rate: f"{rate!r}B/s", patterns=_lists("demand"))
    destination: str = one_of(
        "destination", DESTINATIONS, "--to",
        help="feed: where records go: host (default), device (a GPU), gds (a GPU, by GPUDirect Storage)",
        keys=("to",), patterns=_lists("destination"), labelled=True)
    method: str = one_of(
        "method", METHODS, "--method", help="checkpoint: file (default), dcp (torch.distributed.checkpoint), dcp_async",
        keys=("method", "methods"), patterns=_lists("method"), labelled=True)
    exchange: int = factor(
        4 << 20, "--exchange", help="checkpoint: bytes of the allreduce in each step (default 4M)",
        parse=words.at_least_one_byte, show=format_size, keys=("exchange", "exchanges"), patterns=_lists("exchange"),
        word=lambda num_bytes: f"exchange{format_size(num_bytes)}".replace(" ", ""), labelled=True)
    timed: TimedLayers | None = factor(  # noqa: RUF009
        None, "--timed", help="step: layers that sleep: layers=8,forward=5ms,backward=10ms,bytes=1M[,data=2ms]",
        parse=timed_layers, keys=("timed",), word=layers_word, patterns=_lists("timed"))
    workload: str = factor(
        "", "--workload", help="step: the workload file whose model is trained instead of timed layers",
        keys=("workload", "workloads"), patterns=_lists("workload"), word=lambda text: Path(text).stem, labelled=True)
    layers: int = factor(
        0, "--layers", help="step: layers of the workload's model (default: all)",
        parse=words.whole(1, "layers"), keys=("layers",), patterns=_lists("layers"), labelled=True)
    resize: str = factor(
        "", "--resize", help="step: change sizes of the workload's model: hidden=64,heads=4,tokens=16",
        parse=resize_word, keys=("resize",), patterns=_lists("resize"),
        word=lambda text: text.replace("=", "").replace(",", "-"), labelled=True)
    samples: int = factor(
        0, "--samples", help="step: samples of a rank in a micro-batch (default: the workload's batch)",
        parse=words.whole(1, "samples"), keys=("samples",), patterns=_lists("samples"), labelled=True)
    autocast: str = one_of(
        "type of products", AUTOCASTS, "--autocast", help="step: type of a workload's products: none, bfloat16",
        keys=("autocast",), patterns=_lists("autocast"), word="autocast-{}".format, labelled=True)
    recompute: str = one_of(
        "recomputation", RECOMPUTED, "--recompute", help="step: what the backward pass recomputes: none, layers",
        keys=("recompute",), patterns=_lists("recompute"), word="recompute-{}".format, labelled=True)
    trained: str = factor(
        "all", "--train", help="step: weights of a workload's model that are trained: all (default), head, lora:RANK",
        parse=trained_word, keys=("train",), patterns=_lists("trained"), word=lambda text: text.replace(":", ""),
        labelled=True)
    compiled: bool = switch(
        False, "--compile", help="1: step compiles each layer of a workload's model with torch.compile",
        keys=("compile",), patterns=_lists("compiled"), labelled=True)
    trace: str = setting(
        "", "--trace", help="step: after timing, profile more steps and write a trace of each rank into this folder",
        keys=())
    strategy: str = factor(
        DEFAULT_STRATEGY, "--strategy", help="step: how ranks divide the work: a file of transports/strategies/ (ddp)",
        parse=lambda text: check("strategy", text), keys=("strategy", "strategies"), patterns=_lists("strategy"),
        labelled=True)
    mesh: str = factor(
        "", "--mesh", help="step: rows x ranks per row, such as 2x4 (default: by strategy, docs/step.md)",
        parse=mesh_word, keys=("mesh", "meshes"), patterns=_lists("mesh"), word="mesh{}".format, labelled=True)
    pipeline: str = one_of(
        "pipeline schedule", PIPELINES, "--pipeline", help="step: order of a pipeline's passes: 1f1b (default), gpipe, "
        "interleaved and zero-bubble (two stages on each rank)",
        keys=("pipeline", "pipelines"), patterns=_lists("pipeline"), labelled=True)
    micro_batches: int = factor(
        0, "--micro-batches", help="step: micro-batches of a step (default 1; twice its stages for a pipeline)",
        parse=words.whole(1, "micro-batches"), keys=("micro_batches",), patterns=_lists("micro_batches"),
        word="micro{}".format, labelled=True)
    sync_each: bool = switch(
        False, "--sync-each", help="1: step exchanges gradients after every micro-batch, not only after the last",
        keys=("sync_each",), patterns=_lists("sync_each"), labelled=True)
    period: int = factor(
        4, "--period", help="step: local_sgd averages weights after this many steps (default 4)",
        parse=words.whole(1, "period"), keys=("period", "periods"), patterns=_lists("period"),
        word="period{}".format, labelled=True)
    post_local: int = factor(
        0, "--post-local", help="step: local_sgd begins after this many steps of training, which average gradients",
        parse=words.whole(0, "post-local"), keys=("post_local",), patterns=_lists("post_local"),
        word="postlocal{}".format, labelled=True)
    staleness: int = factor(
        1, "--staleness", help="step: by how many steps a rank of async_sgd may be ahead of another (default 1)",
        parse=words.whole(1, "staleness"), keys=("staleness",), patterns=_lists("staleness"),
        word="stale{}".format, labelled=True)
    bucket: int = factor(
        0, "--bucket", help="step: bytes of gradients that ddp exchanges in one call (default: torch's)",
        parse=words.at_least_one_byte, show=format_size, keys=("bucket", "buckets"), patterns=_lists("bucket"),
        word=lambda num_bytes: f"bucket{format_size(num_bytes)}".replace(" ", ""), labelled=True,
        tuned=("1M", "4M", "25M", "100M"))
    bucket_view: bool = switch(
        False, "--bucket-view", help="1: gradients of step are views of its buckets, which saves a copy",
        keys=("bucket_view",), patterns=_lists("bucket_view"), labelled=True)
    hook: str = factor(
        "none", "--hook",
        help="step: what buckets become on the way: none (default), fp16, bf16, int8, int8-channel, powersgd:RANK",
        parse=hook_word, keys=("hook", "hooks"), patterns=_lists("hook"), word=lambda text: text.replace(":", ""),
        labelled=True)
    inject: tuple[Injected, ...] = factor(
        (), "--inject", help="step: delays to add to each step, joined by `;`: rank=1,segment=backward,delay=60ms",
        parse=injected, show=show_injected, keys=("inject",),
        word=injected_word, patterns=_lists("inject"), labelled=True)
    # fmt: on

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes to measure, each in separate rows.

        A ladder, which is an adaptive schedule, measures only one mode. If the user requested both modes, a ladder
        measures the pipelined mode.
        """
        if self.is_ladder and self.mode == "both":
            return ("pipelined",)
        return ("isolated", "pipelined") if self.mode == "both" else (self.mode,)

    @property
    def traits(self) -> Traits:
        """The traits of the transport."""
        return traits(self.transport)

    @property
    def is_ladder(self) -> bool:
        """Whether pairs are measured in rounds. The results of a round decide which pairs the next round measures."""
        return self.schedule == "ladder"

    @property
    def chunks_per_stage(self) -> int:
        """The number of pipeline stages on one rank."""
        return 2 if self.pipeline in _TWO_CHUNKS else 1

    def shape(self, num_ranks: int, payload_bytes: int, mode: str) -> Shape:
        """Return the Shape of a program: its number of ranks, payload, mode and the factors that change its steps."""
        return Shape(
            num_ranks=num_ranks,
            payload_bytes=payload_bytes,
            element_bytes=dtype_of(self.dtype).num_bytes,
            root=self.root,
            mode=mode,
            direction=self.direction,
            window=self.window,
            matrix=self.matrix,
            access=self.access,
            via=self.via,
            skew=self.skew,
        )

    def payloads(self, pattern: Pattern, num_ranks: int) -> dict[int, tuple[int, ...]]:
        """Return the payloads to measure, in bytes. Each payload maps to the requested sizes that are rounded to it.

        A payload is measured once, even if several requested sizes are rounded to it.
        """
        real: dict[int, tuple[int, ...]] = {}
        for requested in self.sizes:
            payload = pattern.payload(requested, self.shape(num_ranks, 0, self.modes[0]))
            real[payload] = (*real.get(payload, ()), requested)
        return real


FACTORS = factors_of(Case)
FACTOR = {each.name: each for each in FACTORS}


def applies(varied: Factor, pattern: Pattern, transport: str) -> bool:
    """Check whether a factor has an effect on this pattern over this transport."""
    return varied.patterns(pattern) and (not varied.by_transport or varied.name in traits(transport).factors)


_OF_STEPS = ("prepare_s", "batch", "prefetch")  # these options have no effect if a pass has no steps
LADDER_ALONE = "a ladder measures pairs without an aggressor: leave out --aggressor or --schedule ladder"


def check_steps(case: Case, given: Collection[str] = ()) -> None:
    """Raise UsageError if an option needs steps that take batches, but the case has no such steps.

    An option is set if `given` names it, or if its value differs from the default.
    """
    for name in () if case.step_s else _OF_STEPS:
        if name in given or getattr(case, name) != FACTOR[name].default:
            raise UsageError(f"{FACTOR[name].flags[-1]} needs steps that take batches: add --step-time")


def ignored_option(case: Case, transport: str) -> Skip | None:
    """Return a skip if the transport would silently ignore an option of the case, otherwise None.

    The skip names the option and the transports that obey it.
    """
    for each in FACTORS:
        if refuses(transport, each) and getattr(case, each.name) != each.default:
            obeying = names_obeying(each.name)
            return Skip.of(
                SkipCode.OPTION_IGNORED, option=each.flags[-1], transport=transport, transports=list(obeying)
            )
    return None


def refuses(transport: str, varied: Factor) -> bool:
    """Check whether a factor is strict and a transport ignores the factor.

    A case that sets a strict factor is skipped on a transport that ignores the factor.
    """
    return varied.strict and ignores(transport, varied)


def ignores(transport: str, varied: Factor) -> bool:
    """Check whether a transport does not obey this factor.

    The result is False if the transport declares that the factor has no effect on it.
    """
    its = traits(transport)
    return varied.by_transport and varied.name not in (*its.factors, *its.no_effect)


def ineffective_flags(case: Case, pattern: Pattern, transport: str) -> list[str]:
    """Return the options of this case that have no effect, because the pattern or the transport ignores them.

    Settings of `--like` are left out, because the user did not choose them one by one.
    """
    chosen = [each for each in FACTORS if each.name not in preset_fields(case.like, case.pattern)]
    return [
        each.flags[-1]
        for each in chosen
        if getattr(case, each.name) != each.default
        and (
            not each.patterns(pattern)
            or ignores(transport, each)
            or (each.depends_on and getattr(case, each.depends_on) == FACTOR[each.depends_on].default)
        )
    ]


def preset_fields(tool: str, pattern: str) -> dict[str, Any]:
    """Return the settings that `--like tool` requires for a pattern. The result is empty if `tool` is ''."""
    fixed = LIKE.get(tool, {}) | LIKE_FOR_PATTERN.get((tool, pattern), {})
    return {name: FACTOR[name].parse(text) for name, text in fixed.items()}
