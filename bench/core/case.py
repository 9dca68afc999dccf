"""What to measure: a Case, exactly what a command line says.

Each option is declared once in OPTIONS; the parser, the reading and the printing back are derived from that table, so
that `from_argv(to_argv(case)) == case` for every case.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from bench.core import option_parsers as words
from bench.core.dtypes import REDUCE_OPS, dtype_of
from bench.core.errors import BenchError, UsageError
from bench.core.plugins import check, nearest
from bench.core.sweep import DEFAULT_SIZES, format_sizes, geometric, parse_sizes
from bench.core.topology import check_order, check_split, check_topology
from bench.core.traits import names_obeying, traits
from bench.core.units import parse_duration, parse_size

MODES = ("isolated", "pipelined", "both")
CACHES = ("cold", "hot")
DIRECTIONS = ("one-way", "two-way", "h2d", "d2h")
ENGINES = ("ce", "sm")
ACCESSES = ("write", "read")
MEMORIES = ("pinned", "pageable")
VIAS = ("ipc", "process")
THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")
SYNCS = ("none", "barrier", "double-barrier")
LOOPS = ("auto", "compiled", "python")
BINDS = ("auto", "none")
SCHEDULES = ("full", "ladder")
_NOT_ALL_OBEY = ("require", "graph")  # refused where the transport would ignore them: the others have no other meaning
# Measure as another tool does, so that figures stand beside its own: what is fixed for each.
LIKE: dict[str, dict[str, str]] = {
    "nccl-tests": {"mode": "pipelined", "cache": "hot"},
    "osu": {"mode": "isolated", "cache": "hot", "sync": "barrier", "alignment": "4096"},
}
LIKE_FOR_PATTERN: dict[tuple[str, str], dict[str, str]] = {
    ("osu", "pingpong"): {"sync": "none"},  # osu_latency's round trips follow one another
}


@dataclass(frozen=True, slots=True)
class Case:
    """One pattern on one transport over its sizes. Sizes in bytes, durations in seconds, rates in bytes per second."""

    pattern: str
    transport: str = "auto"
    sizes: tuple[int, ...] = parse_sizes(DEFAULT_SIZES)
    dtype: str = "float32"
    reduce_op: str = "sum"
    root: int = 0
    in_place: bool = False
    mode: str = "both"
    cache: str = "cold"
    direction: str = "one-way"
    window: int = 64
    topology: str = "world"
    order: str = "linear"
    matrix: tuple[tuple[int, ...], ...] = ()
    aggressor: str = ""
    split: str = "alternate"
    iterations: int | None = None
    warmup: int | None = None
    max_s: float = 0.25
    budget_s: float | None = None
    seed: int = 1
    like: str = ""
    thread_level: str = "single"
    sync: str = "double-barrier"
    loop: str = "auto"
    alignment: int = 64
    bind: str = "auto"
    instance: str = ""
    nodes: int | None = None
    ranks_per_node: int | None = None
    links: tuple[tuple[str, float], ...] = ()
    schedule: str = "full"
    nics: tuple[str, ...] = ()
    racks: tuple[tuple[str, tuple[str, ...]], ...] = ()
    engine: str = "ce"
    access: str = "write"
    memory: str = "pinned"
    via: str = "ipc"
    graph: bool = False
    tf32: bool = False
    share_gpu: bool = False
    require: tuple[tuple[str, str], ...] = ()

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes to measure, each in rows of its own. A ladder decides by one: of both, by bandwidth."""
        if self.schedule == "ladder" and self.mode == "both":
            return ("pipelined",)
        return ("isolated", "pipelined") if self.mode == "both" else (self.mode,)


@dataclass(frozen=True, slots=True)
class Option:
    """One field of Case on the command line."""

    field: str
    flags: tuple[str, ...]
    parse: Callable[[str], Any]
    show: Callable[[Any], str]
    help: str


def _seconds(seconds: float) -> str:
    return f"{seconds!r}s"


OPTIONS = (
    Option(
        "transport",
        ("--transport",),
        lambda text: text if text == "auto" else check("transport", text),
        str,
        "communication library: auto, or a file of transports/",
    ),
    Option(
        "sizes",
        ("--sizes",),
        parse_sizes,
        format_sizes,
        "message sizes: begin:end:factor or a list, K/M/G binary (default 8:16M:2)",
    ),
    Option("dtype", ("-d", "--dtype"), lambda text: dtype_of(text).name, str, "element type (default float32)"),
    Option("reduce_op", ("-o", "--op"), words.one_of("reduce operation", REDUCE_OPS), str, "reduction (default sum)"),
    Option("root", ("-r", "--root"), words.whole(0, "root"), str, "root rank of rooted patterns (default 0)"),
    Option(
        "in_place", ("--in-place",), words.switch, lambda on: str(int(on)), "1: receive where the data is sent from"
    ),
    Option(
        "mode",
        ("--mode",),
        words.one_of("mode", MODES),
        str,
        "isolated: one operation at a time; pipelined: back to back; default both",
    ),
    Option(
        "cache",
        ("--cache",),
        words.one_of("cache state", CACHES),
        str,
        "cold: rotate buffers beyond the last-level cache (default); hot: reuse one",
    ),
    Option("direction", ("--direction",), words.one_of("direction", DIRECTIONS), str, "of point-to-point patterns"),
    Option("window", ("--window",), words.whole(1, "window"), str, "messages in flight in pingpong's bandwidth (64)"),
    Option("topology", ("--topology",), check_topology, str, "world, node, rail, pairs, groups of K, node in turn"),
    Option("order", ("--order",), check_order, str, "order of ranks: linear, reverse, interleaved, or a list"),
    Option(
        "matrix",
        ("--matrix",),
        words.matrix,
        lambda rows: ";".join(",".join(map(str, row)) for row in rows),
        "alltoallv's weights, row by row: 0,1;2,0",
    ),
    Option(
        "aggressor",
        ("--aggressor",),
        words.aggressor,
        str,
        "PATTERN[:SIZE] that other ranks run at the same time: every row is measured without and with it",
    ),
    Option(
        "split",
        ("--split",),
        check_split,
        str,
        "victims/aggressors: alternate (ranks by turns), halves (of each node), or ranks such as 0-3/4-7",
    ),
    Option(
        "iterations",
        ("-n", "--iterations"),
        words.whole(1, "iterations"),
        str,
        "samples per row; default: until the median is known well enough",
    ),
    Option("warmup", ("-w", "--warmup"), words.whole(0, "warmup"), str, "calls before timing; default: 5 and 50 ms"),
    Option("max_s", ("--max-seconds",), parse_duration, _seconds, "time limit of a row that does not converge (0.25s)"),
    Option("budget_s", ("--budget",), parse_duration, _seconds, "time limit of all rows together"),
    Option("seed", ("--seed",), words.whole(0, "seed"), str, "of the test data"),
    Option(
        "like",
        ("--like",),
        words.one_of("tool to measure like", tuple(LIKE)),
        str,
        "as another tool does: nccl-tests (pipelined, hot, mean over ranks), osu (hot, one barrier, mean)",
    ),
    Option(
        "thread_level",
        ("--thread-level",),
        words.one_of("thread level", THREAD_LEVELS),
        str,
        "MPI's: single (default, as C benchmarks), funneled, serialized, multiple (mpi4py's own default)",
    ),
    Option(
        "sync",
        ("--sync",),
        words.one_of("synchronisation", SYNCS),
        str,
        "before each isolated MPI call: double-barrier (default: ranks start closer), barrier (OSU's), none",
    ),
    Option(
        "loop",
        ("--loop",),
        words.one_of("timing loop", LOOPS),
        str,
        "who calls MPI while the clock runs: auto (compiled C where it can be built), compiled, python",
    ),
    Option("alignment", ("--alignment",), words.alignment, str, "of host buffers: bytes, a power of two (default 64)"),
    Option(
        "bind",
        ("--bind",),
        words.one_of("binding", BINDS),
        str,
        "auto (default): each rank on CPU cores of its own, where there are enough; none: as it was launched",
    ),
    Option("instance", ("--instance",), str, str, "instance type whose links bound (and model) the run"),
    Option("nodes", ("--nodes",), words.whole(1, "nodes"), str, "nodes of a modelled run"),
    Option("ranks_per_node", ("--ranks-per-node",), words.whole(1, "ranks per node"), str, "of a modelled run"),
    Option(
        "links",
        ("--links",),
        words.links,
        lambda links: ",".join(f"{name}={rate!r}B/s" for name, rate in links),
        "link rates in place of the catalogue's: nic=12.5GB/s",
    ),
    Option(
        "schedule",
        ("--schedule",),
        words.one_of("schedule", SCHEDULES),
        str,
        "of all pairs: full (each once), or ladder: some first, then what may be slow (see bench diagnose)",
    ),
    Option(
        "nics", ("--nics",), words.names, ",".join, "NICs of a host: its k-th rank uses the k-th of them, around again"
    ),
    Option(
        "racks",
        ("--racks",),
        words.racks,
        lambda racks: ";".join(f"{rack}={','.join(hosts)}" for rack, hosts in racks),
        "which hosts stand in which rack: r1=h0,h1;r2=h2,h3",
    ),
    Option(
        "engine",
        ("--engine",),
        words.one_of("engine", ENGINES),
        str,
        "what copies: ce (copy engine, default), sm (a kernel)",
    ),
    Option(
        "access",
        ("--access",),
        words.one_of("access", ACCESSES),
        str,
        "which GPU orders a copy between two: write (the source, default), read (the target)",
    ),
    Option(
        "memory",
        ("--memory",),
        words.one_of("kind of memory", MEMORIES),
        str,
        "of the host in host_device: pinned (default), pageable",
    ),
    Option(
        "via",
        ("--via",),
        words.one_of("way", VIAS),
        str,
        "how a GPU reaches another's memory: ipc (of another process, default), process (one process holds both)",
    ),
    Option(
        "graph",
        ("--graph",),
        words.switch,
        lambda on: str(int(on)),
        "1: nccl's calls are captured once in a CUDA graph and replayed",
    ),
    Option(
        "tf32",
        ("--tf32",),
        words.switch,
        lambda on: str(int(on)),
        "1: a GPU multiplies matrices of float32 in TF32, by its tensor cores (default: strictly in float32)",
    ),
    Option(
        "share_gpu",
        ("--share-gpu",),
        words.switch,
        lambda on: str(int(on)),
        "1: several nccl ranks on one GPU, to try things out: never beside a peak",
    ),
    Option(
        "require",
        ("--require",),
        words.required,
        lambda pairs: ",".join(f"{a}={b}" for a, b in pairs),
        "what NCCL must have used, else the row is void: network=efa,algorithm=ring,protocol=simple",
    ),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare every option of a case, and nccl-tests' own -b -e -f beside --sizes."""
    for option in OPTIONS:
        parser.add_argument(*option.flags, dest=option.field, metavar="X", help=option.help, type=str)
    parser.add_argument("-b", "--minbytes", metavar="X", help="smallest size, as in nccl-tests")
    parser.add_argument("-e", "--maxbytes", metavar="X", help="largest size, as in nccl-tests")
    parser.add_argument("-f", "--stepfactor", metavar="X", help="factor between sizes, as in nccl-tests")


LADDER_ALONE = "a ladder measures pairs alone: leave --aggressor out, or --schedule ladder"


def from_args(pattern: str, args: argparse.Namespace) -> Case:
    """The case that parsed arguments describe. Raises UsageError naming the option."""
    given = {}
    for option in OPTIONS:
        text = getattr(args, option.field)
        if text is not None:
            given[option.field] = _parsed(option, text)
    if args.minbytes or args.maxbytes or args.stepfactor:
        if "sizes" in given:
            raise UsageError("give sizes by --sizes or by -b -e -f, not by both")
        begin = parse_size(args.minbytes or "8")
        end = parse_size(args.maxbytes) if args.maxbytes else max(begin, parse_size("16M"))
        factor = args.stepfactor or "2"
        if not factor.isdecimal() or int(factor) < 2:
            raise UsageError(f"the factor -f {factor!r} must be a whole number of 2 or more")
        given["sizes"] = geometric(begin, end, int(factor))
    for name, value in alike(given.get("like", ""), pattern).items():
        if given.setdefault(name, value) != value:
            raise UsageError(f"--like {given['like']} measures with {name} {value}: leave the other {name} out")
    case = replace(Case(pattern), **given)
    if case.schedule == "ladder" and case.aggressor:
        raise UsageError(LADDER_ALONE)
    return case


def unheard(case: Case, transport: str) -> str | None:
    """What was asked for and would be passed over in silence by this transport; None when there is nothing."""
    its = traits(transport)
    asked = next((name for name in _NOT_ALL_OBEY if getattr(case, name)), None)
    if asked is None or asked in its.factors or asked in its.no_effect:
        return None
    obeying = " or ".join(names_obeying(asked))
    return f"{transport} ignores `{asked}`: leave it out, or use --transport {obeying}"


def alike(tool: str, pattern: str) -> dict[str, Any]:
    """The fields of a case that measuring a pattern like `tool` fixes; none for ''."""
    parse = {option.field: option.parse for option in OPTIONS}
    fixed = LIKE.get(tool, {}) | LIKE_FOR_PATTERN.get((tool, pattern), {})
    return {name: parse[name](text) for name, text in fixed.items()}


def _parsed(option: Option, text: str) -> Any:
    try:
        return option.parse(text)
    except UsageError as error:
        raise UsageError(f"{option.flags[-1]}: {error}") from None


def from_argv(argv: Sequence[str]) -> Case:
    """The case of `[pattern, option, value, ...]`, as `to_argv` prints it. Raises UsageError naming what is wrong."""
    if not argv:  # of a row that another tool measured
        raise UsageError("there is no case: its first word would be the pattern")
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    add_arguments(parser)
    try:
        args, unknown = parser.parse_known_args(list(argv[1:]))
    except argparse.ArgumentError as error:
        raise UsageError(str(error)) from None
    if unknown:
        flags = [flag for option in OPTIONS for flag in option.flags]
        raise UsageError(f"no option is called {unknown[0]!r}{nearest(unknown[0], flags)}")
    return from_args(check("pattern", argv[0]), args)


def own_case(argv: Sequence[str]) -> Case | None:
    """The case of these words; None where they are another program's."""
    return _own_case(tuple(argv))


@lru_cache(maxsize=1024)  # runs of many launches ask for the same again and again
def _own_case(argv: tuple[str, ...]) -> Case | None:
    try:
        return from_argv(argv)
    except (BenchError, IndexError):
        return None


def to_argv(case: Case) -> list[str]:
    """`[pattern, option, value, ...]` with only what differs from the defaults."""
    default = Case(case.pattern)
    argv = [case.pattern]
    for option in OPTIONS:
        value = getattr(case, option.field)
        if value != getattr(default, option.field):
            argv += [option.flags[-1], option.show(value)]
    return argv


def _check_table() -> None:
    """Every field of Case but the pattern is an option: a new field can not be forgotten on the command line."""
    missing = {field.name for field in fields(Case)} - {option.field for option in OPTIONS} - {"pattern"}
    if missing:
        raise AssertionError(f"fields of Case without an option: {missing}")


_check_table()
