"""nccl-tests' output: whole logs of every version and launcher, and every kind of damage on tables of our own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.logs.foreign import FAILED, OK, TRUNCATED, ForeignRow, ForeignRun, Line, read_all
from bench.logs.readers._lines import lines
from bench.logs.readers.nccl_tests import READER
from tests.logs import corpus
from tests.logs.reading import codes, failure, failure_code, located, only_remark, printed, translations
from tests.logs.synthetic_nccl import TITLE, UNITS, average, footer, half, row, time_text

INFO = "node7:4711:4720 [0] NCCL INFO"


def read(text: str | bytes) -> list[ForeignRun]:
    """All runs in a text."""
    return read_all(READER(), lines([text]))


def only(text: str | bytes) -> ForeignRun:
    """Its one run."""
    (run,) = read(text)
    return run


# ------------------------------------------------------------------------------------------ a table of our own figures

SIZES = (1024, 65536, 1 << 20, 1 << 24, 1 << 30)


def rows(pattern: str = "allreduce", ranks: int = 4) -> list[str]:
    """Rows of a few sizes."""
    return [row(pattern, size, ranks) for size in SIZES]


def banner(ranks: int = 4, most: int = SIZES[-1]) -> list[str]:
    """All ranks on node7."""
    return [
        f"# nThread 1 nGpus 1 minBytes 1024 maxBytes {most} step: 64(factor) warmup iters: 3 iters: 11 agg iters: 1 "
        "validation: 1 graph: 0",
        "#",
        "# Using devices",
        *(f"#  Rank {r:2d} Group  0 Pid    31 on node7 device {r:2d} [0x1{r % 8}] ACME X1 96GB" for r in range(ranks)),
        "#",
    ]


def log(pattern: str = "allreduce", ranks: int = 4) -> str:
    """A whole log without a name of its test."""
    table = rows(pattern, ranks)
    return "\n".join([*banner(ranks), TITLE, UNITS, *table, *footer(table)]) + "\n"


WHOLE = only(log())


def bare(found: tuple[ForeignRow, ...]) -> list[tuple[object, ...]]:
    """Rows without their line numbers."""
    return [
        (
            r.payload_bytes,
            r.num_elements,
            r.dtype,
            r.reduce_op,
            r.root,
            r.in_place,
            r.time_s,
            r.algbw_bytes_per_s,
            r.busbw_bytes_per_s,
            r.num_wrong,
        )
        for r in found
    ]


# -------------------------------------------------------------------------------------------------- whole logs


def as_row(wanted: dict[str, Any]) -> tuple[object, ...]:
    """An expected row in SI units."""
    rates = [pytest.approx(wanted[key] * 1e9) for key in ("algbw", "busbw")]
    return (
        wanted["size"],
        wanted["count"],
        wanted["dtype"],
        wanted["op"],
        wanted["root"],
        wanted["in_place"],
        pytest.approx(wanted["time_us"] / 1e6),
        *rates,
        wanted["wrong"],
    )


@corpus.needs_corpus
def test_no_log_is_left_out() -> None:
    assert sorted(corpus.expected("nccl_logs")) == sorted(path.name for path in corpus.real("nccl_logs", "").iterdir())


@pytest.mark.parametrize(("path", "wanted"), corpus.cases("nccl_logs"))
def test_a_log_gives_what_is_in_it(path: Path, wanted: dict[str, Any]) -> None:
    run = only(path.read_bytes())
    assert run.tool == "nccl_tests"
    for key in ("tool_version", "pattern", "num_ranks", "num_nodes", "status"):
        assert getattr(run, key) == wanted[key], key
    assert (list(run.hosts), list(run.gpus)) == (wanted["hosts"], wanted["gpus"])
    assert len(run.rows) == wanted["num_rows"]
    assert set(wanted["remark_lines"]) <= {remark.line for remark in run.remarks}
    assert wanted.get("failure") in (None, failure_code(run))
    assert (run.failure is None) == (run.status == OK)
    if run.rows:
        first, last = bare((run.rows[0], run.rows[-1]))
        assert (first, last) == (as_row(wanted["first"]), as_row(wanted["last"]))
        assert sums(run.rows) == pytest.approx(list(wanted["sums"].values()), abs=1e-6)
        assert [r.in_place for r in run.rows] == [False, True] * (len(run.rows) // 2)


def sums(found: tuple[ForeignRow, ...]) -> list[float]:
    """Of size, time in us, algbw and busbw in GB/s, and wrong elements."""
    return [
        sum(r.payload_bytes or 0 for r in found),
        sum(r.time_s or 0 for r in found) * 1e6,
        sum(r.algbw_bytes_per_s or 0 for r in found) / 1e9,
        sum(r.busbw_bytes_per_s or 0 for r in found) / 1e9,
        sum(r.num_wrong or 0 for r in found),
    ]


def on_each_line(prefix: str) -> Callable[[str], str]:
    """The same prefix on every line."""
    return lambda text: "".join(prefix + line for line in text.splitlines(keepends=True))


def colour(text: str) -> str:
    """Every line red, and reset."""
    return "".join(f"\x1b[31m{line}\x1b[0m\n" for line in text.split("\n"))


def talk(text: str) -> str:
    """A message of NCCL after every line."""
    return "".join(f"{line}\n{INFO} Channel 0{n % 10} : 0 1 2 3\n" for n, line in enumerate(text.split("\n")))


NOISE: dict[str, Callable[[str], str]] = {
    "mpirun": on_each_line("[1,0]<stdout>:"),
    "mpirun without its stream": on_each_line("[1,0]:"),
    "srun": on_each_line("0: "),
    "srun and mpirun": on_each_line(" 3: [1,3]<stdout>: "),
    "pod": on_each_line("[pod/worker-0/main] "),
    "time": on_each_line("2026-01-02T03:04:05.678901234Z "),
    "pod and time": on_each_line("[pod/worker-0/main] 2026-01-02T03:04:05.678901234Z "),
    "ray": on_each_line("(head, rank=0, pid=31) "),
    "indented": on_each_line("      "),
    "quoted": on_each_line("> "),
    "a logger": on_each_line("2026-01-01 10:00:00 INFO worker-3 | "),
    "a logger's level": on_each_line("2026-01-01 10:00:00,123 [INFO] "),
    "pod and container": on_each_line("pod/nccl-0 nccl "),
    "a bar": on_each_line("| "),
    "docker": lambda text: "".join(
        json.dumps({"log": line, "stream": "stdout", "time": "2026-01-01T10:00:00Z"}, separators=(",", ":")) + "\n"
        for line in text.splitlines(keepends=True)
    ),
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "CR twice": lambda text: text.replace("\n", "\r\r\n"),
    "colours": colour,
    "NCCL INFO": talk,
    "colours, tags, CRLF": lambda text: on_each_line("[1,0]<stdout>:")(colour(text)).replace("\n", "\r\n"),
    "UTF-16": lambda text: "\0".join(text),
}


@cache
def without_noise(text: str) -> ForeignRun:
    """The run of a log, for all kinds of noise."""
    return only(text)


@pytest.mark.thin(4)
@pytest.mark.parametrize("noise", NOISE)
def test_noise_changes_no_row_of_any_log(noise: str) -> None:
    for path in corpus.paths(["nccl_logs"]):
        text = path.read_bytes().decode()
        clean, dirty = without_noise(text), only(NOISE[noise](text))
        assert bare(dirty.rows) == bare(clean.rows), path.name
        for field in ("status", "pattern", "num_ranks", "hosts", "gpus"):
            assert getattr(dirty, field) == getattr(clean, field), (path.name, field)


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("pattern", ["allreduce", "allgather", "broadcast"])
def test_noise_changes_no_row(noise: str, pattern: str) -> None:
    dirty = only(NOISE[noise](log(pattern)))
    assert bare(dirty.rows) == bare(only(log(pattern)).rows)
    assert dirty.status == OK


# ------------------------------------------------------------------------------------------------- facts of a run


def test_a_clean_log_is_read_whole() -> None:
    assert (WHOLE.tool, WHOLE.pattern, WHOLE.num_ranks, WHOLE.num_nodes) == ("nccl_tests", "allreduce", 4, 1)
    assert (WHOLE.status, WHOLE.failure, WHOLE.hosts, WHOLE.gpus) == (OK, None, ("node7",), ("ACME X1 96GB",))
    assert len(WHOLE.rows) == 2 * len(SIZES)
    assert dict(WHOLE.settings)["iters"] == "11"
    figures = [pytest.approx(value) for value in (47.21e-6, 22.21e9, 33.31e9)]
    assert bare(WHOLE.rows[4:5]) == [(1 << 20, 1 << 18, "float32", "sum", None, False, *figures, 0)]
    assert WHOLE.rows[4].line == 13


@pytest.mark.parametrize(
    "pattern", ["allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "sendrecv"]
)
@pytest.mark.parametrize("ranks", [2, 3, 4, 16])
def test_a_pattern_is_recognised_by_its_rows_alone(pattern: str, ranks: int) -> None:
    run = only(log(pattern, ranks))
    assert (run.pattern, run.num_ranks) == (pattern, ranks)
    assert only_remark(run, "pattern-by-rows").facts == {"pattern": pattern}


def test_ranks_of_a_command_count_only_where_no_launcher_is_near() -> None:
    table = "\n".join([TITLE, *rows("sendrecv", 2)])
    assert only(f"./build/sendrecv_perf -b 1K -g 8\n{table}").num_ranks == 8
    assert only(f"./build/sendrecv_perf -b 1K -t 2 -g 4\n{table}").num_nodes == 1
    assert only(f"mpirun -n 2 ./build/sendrecv_perf -g 8\n{table}").num_ranks is None
    assert only(f"mpirun -n 2 \\\n  ./build/sendrecv_perf -g 8\n{table}").num_ranks is None


def test_the_pattern_is_unknown_if_several_fit() -> None:
    run = only(log("gather"))  # scatter prints the same
    assert (run.pattern, len(run.rows), run.status) == (None, 10, OK)
    unchecked = log("allgather").replace("      0 ", "    N/A ").replace("      0\n", "    N/A\n")
    assert only(unchecked).pattern is None  # alltoall prints the same


def test_the_rows_of_one_rank_fit_several_patterns() -> None:
    assert only(log("allreduce", 1)).pattern is None


@pytest.mark.parametrize("name", ["all_reduce_perf", "all_reduce_perf_mpi", "/opt/x/build/all_reduce_perf"])
def test_a_name_is_taken_from_the_banner(name: str) -> None:
    text = (
        f"# nccl-tests version 2.17.9 nccl-headers=22903 nccl-library=22907\n# Collective test starting: {name}\n"
        + log()
    )
    run = only(text + f"# Collective test concluded: {name}\n")
    assert (run.pattern, run.tool_version, dict(run.settings)["nccl"]) == ("allreduce", "2.17.9", "2.29.7")
    assert run.remarks == ()


def test_a_name_is_taken_from_the_last_line_where_the_first_ones_are_gone() -> None:
    ended = only("\n".join([*rows("gather"), "# Collective test concluded: gather_perf"]))
    assert ended.pattern == "gather" and not {"pattern-by-rows", "pattern-unknown"} & set(codes(ended))
    assert only("\n".join(rows("gather"))).pattern is None


def test_a_name_is_taken_from_a_command_unless_the_rows_are_of_another_test() -> None:
    assert only("$ mpirun -n 4 ./gather_perf -b 1K -e 1G\n" + log("gather")).pattern == "gather"
    other = only("$ mpirun -n 4 ./all_gather_perf -b 1K\n" + log())
    assert other.pattern == "allreduce"
    named = only_remark(other, "rows-of-another-test")
    assert (named.line, named.facts["program"]) == (1, "all_gather_perf")
    assert only("for t in all_reduce_perf reduce_perf; do\n" + log()).pattern == "allreduce"  # two names are ambiguous


def test_hypercube_s_algbw_is_translated() -> None:
    run = only("./hypercube_perf\n" + log("hypercube"))
    assert run.pattern == "hypercube"
    assert run.rows[-2].algbw_bytes_per_s == pytest.approx(run.rows[-2].payload_bytes / run.rows[-2].time_s, rel=1e-3)  # type: ignore[operator]
    assert run.translations[0].facts == {"whose": "hypercube", "ranks": 4, "others": 3}
    assert "row-contradicts" not in codes(run)
    assert only(log("hypercube")).pattern == "hypercube"


@pytest.mark.parametrize("pattern", ["allgather", "reducescatter"])
def test_algbw_of_the_other_ranks_alone_until_june_2020_is_translated(pattern: str) -> None:
    """As NVIDIA/nccl-tests printed before its commit ec1b5e2: (n-1)/n of size / time as algbw and as busbw."""
    operation = "     sum" if pattern == "reducescatter" else ""
    table = []
    for size in SIZES:
        time_us = 21.0 + size / 40e3
        rate = size * 3 / 4 / time_us / 1e3
        figures = f"  {time_text(time_us):>7}  {rate:6.2f}  {rate:6.2f}  0e+00"
        table.append(f"{size:12d}  {size // 16:12d}  {'float':>6}{operation}{figures}{figures}")
    words = "size count type redop" if operation else "size count type"
    title = "# " + words + 2 * " time algbw busbw error"
    name = {"allgather": "all_gather", "reducescatter": "reduce_scatter"}[pattern]
    run = only("\n".join([f"./build/{name}_perf -b 1K -e 1G -f 64 -g 4", title, *table]))
    assert (run.pattern, run.num_ranks) == (pattern, 4) and "rows-of-another-test" not in codes(run)
    assert not any(row.contradicts for row in run.rows)
    last = run.rows[-1]
    assert last.busbw_bytes_per_s == pytest.approx((last.algbw_bytes_per_s or 0) * 3 / 4)
    assert last.algbw_bytes_per_s == pytest.approx(SIZES[-1] / (last.time_s or 1), rel=1e-3)
    assert translations(run) == ["algbw-of-others"]
    unnamed = only("\n".join([title, *table]))
    assert unnamed.pattern == ("reducescatter" if operation else None)  # hypercube prints as allgather did
    assert bare(unnamed.rows) == bare(run.rows)


def test_ranks_follow_from_the_rows_only_if_one_number_fits() -> None:
    table = "\n".join([TITLE, *rows("allreduce", 16)])
    assert only(table).num_ranks == 16
    assert only("\n".join([TITLE, *rows("allreduce", 16)[:1]])).num_ranks is None  # too few digits
    assert only("\n".join([TITLE, *rows("allgather", 48)])).num_ranks == 48  # count is size / n, exactly
    assert only("\n".join([TITLE, *rows("broadcast", 16)])).num_ranks is None


def test_the_last_listed_rank_counts_if_the_rows_agree() -> None:
    device = "# Rank 4095 Group  0 Pid   31 on node511 device  7 [0x01] ACME X1 96GB"
    wanted = only("\n".join([device, TITLE, *rows("allreduce", 4096)]))
    assert (wanted.num_ranks, wanted.num_nodes, wanted.hosts) == (4096, None, ("node511",))
    other = only("\n".join([device, TITLE, *rows("allreduce", 8)]))
    assert other.num_ranks is None
    assert only_remark(other, "ranks-unknown").facts == {"last": 4095, "by_rows": 8}


@pytest.mark.parametrize("pattern", ["allreduce", "allgather"])
@pytest.mark.parametrize(
    "named", ["", "# Collective test starting: {}\n", "mpirun -np 16 ./{} -b 1K -e 1G -f 64 -g 1\n"]
)
def test_a_list_of_ranks_that_was_cut_is_no_contradiction(pattern: str, named: str) -> None:
    program = {"allreduce": "all_reduce_perf", "allgather": "all_gather_perf"}[pattern]
    table = rows(pattern, 16)
    text = named.format(program) + "\n".join([*banner(2), TITLE, *table, *footer(table)])
    run = only(text)
    assert (run.pattern, run.num_ranks, run.num_nodes, run.status) == (pattern, 16, None, OK)
    assert only_remark(run, "ranks-disagree").facts == {"listed": 2, "by_rows": 16}
    assert "rows-of-another-test" not in codes(run)


def test_a_list_of_ranks_that_was_cut_leaves_the_number_open_if_several_fit() -> None:
    table = rows("allreduce", 500)[:3]  # too few digits for one number
    run = only("\n".join(["# Collective test starting: all_reduce_perf", *banner(2), TITLE, *table, *footer(table)]))
    assert (run.pattern, run.num_ranks, run.num_nodes) == ("allreduce", None, None)
    assert "rows-of-another-test" not in codes(run)


def test_more_listed_ranks_than_the_rows_have_stay_a_contradiction() -> None:
    run = only("\n".join(["# Collective test starting: all_reduce_perf", *banner(8), TITLE, *rows("allreduce", 4)]))
    assert run.num_ranks == 8
    assert {"ranks-disagree", "rows-of-another-test"} <= set(codes(run))


@pytest.mark.parametrize("pattern", ["allreduce", "broadcast"])
def test_the_table_of_2018_has_milliseconds(pattern: str) -> None:
    """Its header is other, and so are its devices: they have no process."""
    operation, root, last = ("sum", "", "res") if pattern == "allreduce" else ("", "0", "delta")
    table = []
    for size in (1 << 16, 1 << 20, 1 << 24, 1 << 28):
        time_s = 21e-6 + size / 12e9
        rate = size / time_s / 1e9
        half = f"  {time_s * 1e3:7.3f}  {rate:5.2f}  {rate * (1.75 if pattern == 'allreduce' else 1):5.2f}    0e+00"
        table.append(f"{size:12d}  {size // 4:12d}   float  {operation or root:>6}{half}{half}")
    kind = "op" if operation else "root"
    half = f"time  algbw  busbw  {last}"
    text = [
        "nThread 1 nGpus 8 minBytes 65536 maxBytes 268435456 step: 16(factor) warmup iters: 5 iters: 20 validation: 1 ",
        "# NCCL Tests compiled with NCCL 2.1",
        *(f"#   Rank {r:2d} on      node7 device {r:2d} [0x0{r}] ACME X1 96GB" for r in range(8)),
        f"#      bytes             N    type  {kind}  {half}  {half}",
        *table,
        " Out of bounds values : 0 OK",
    ]
    run = only("\n".join(text))
    assert (run.pattern, run.num_ranks, run.num_nodes, run.status) == (pattern, 8, 1, OK)
    assert (run.hosts, run.gpus) == (("node7",), ("ACME X1 96GB",))
    assert [row.payload_bytes for row in run.rows[::2]] == [1 << 16, 1 << 20, 1 << 24, 1 << 28]
    assert not [row for row in run.rows if row.contradicts]
    assert run.rows[-1].time_s == pytest.approx(21e-6 + (1 << 28) / 12e9, rel=1e-3)
    assert run.rows[-1].algbw_bytes_per_s == pytest.approx((1 << 28) / (run.rows[-1].time_s or 1), rel=1e-2)
    assert {row.num_wrong for row in run.rows} == {None}


def test_groups_that_run_at_the_same_time_are_separated() -> None:
    """With NCCL_TESTS_SPLIT="MOD 2" ranks are numbered through, and the rows are of one group."""
    table = rows("allreduce", 4)
    head = [re.sub(r"Rank  ([1357]) Group  0", r"Rank  \1 Group  1", line) for line in banner(8)]
    head = [re.sub(r"(Rank  [4567].*)node7", r"\1node8", line) for line in head]
    run = only("\n".join([*head, TITLE, *table, *footer(table)]))
    assert (run.num_ranks, run.num_nodes, run.hosts, run.status) == (4, 2, ("node7", "node8"), OK)
    assert only_remark(run, "groups").facts == {"num": 2}


def test_runs_that_are_mixed_in_one_log_fail() -> None:
    """The log of a build without MPI under mpirun: each process is a run of its own."""
    table = rows("allreduce", 1)
    other = [line.replace("Pid    31", "Pid    32") for line in banner(1)]
    text = [*banner(1), *other, TITLE, TITLE, *(line for line in table for _ in range(2)), *footer(table)]
    run = only("\n".join(text))
    assert (run.status, len(run.rows)) == (FAILED, 4 * len(SIZES))
    assert failure_code(run) == "several-runs-at-once"
    echoed = only("\n".join([*banner(), *banner(), TITLE, *rows()]))  # the same lines twice are one run
    assert (echoed.status, echoed.num_ranks) == (OK, 4)
    again = [line.replace("Pid    31", "Pid    32") for line in banner()]
    started_twice = only("\n".join([*banner(), *again, TITLE, *rows()]))
    assert (started_twice.status, bare(started_twice.rows)) == (OK, bare(WHOLE.rows))
    assert "rank-twice" in codes(started_twice)


def test_two_banners_at_once_are_processes_that_ran_alone() -> None:
    """A build without MPI under mpirun, as soon as it has printed its banners."""
    head, _, _, *ranks, last = banner(2)
    other = [line.replace("Pid    31 on node7", "Pid    32 on node8") for line in ranks]
    run = only("\n".join([head, "#", "# Using devices", head, "#", "# Using devices", *ranks, *other, last, TITLE]))
    assert (run.status, failure_code(run), run.hosts) == (FAILED, "several-runs-at-once", ("node7", "node8"))
    once = only("\n".join([head, head, "# Using devices", *ranks, last, TITLE, *rows("allreduce", 2)]))
    assert (once.status, once.num_ranks) == (OK, 2), "one process whose banner is in the log twice"


def test_a_host_may_have_a_space_in_its_name() -> None:
    named = [line.replace("on node7 device", "on NODE A device ") for line in banner()]
    run = only("\n".join([*named, TITLE, *rows()]))
    assert (run.hosts, run.num_ranks, run.num_nodes, run.gpus) == (("NODE A",), 4, 1, ("ACME X1 96GB",))


@pytest.mark.parametrize("before", ["", "[0] "])
def test_half_a_row_at_the_head_of_a_log_is_lost_with_a_remark(before: str) -> None:
    first, *others = rows()
    halves = first.split("-1", 1)[1]
    run = only("\n".join([f"{before}{halves}", *others]))
    assert (run.status, len(run.rows)) == (TRUNCATED, 2 * len(others))
    assert located(run)[0] == (1, "figures-without-size")
    whole = only("\n".join(["1.5 2.5 3.5 4.5", "", "", "", TITLE, *others]))
    assert "figures-without-size" not in codes(whole)


@corpus.needs_corpus
@pytest.mark.parametrize(
    ("name", "hosts", "status", "code"),
    [
        ("i03_h100_8gpu_nodeA_names.txt", ("NODE A",), OK, None),
        ("i04_h100_fieldwise_0_prefix.txt", (), TRUNCATED, "figures-without-size"),
        ("i53_a100_nompi_two_banners.txt", ("testgpu1", "testgpu2"), FAILED, "several-runs-at-once"),
    ],
)
def test_excerpts_of_public_threads(name: str, hosts: tuple[str, ...], status: str, code: str | None) -> None:
    run = only(corpus.real("other_logs", name).read_bytes())
    assert (run.hosts, run.status, run.failure and run.failure.code) == (hosts, status, code)


def test_mixed_runs_of_one_rank_are_recognised_without_banners() -> None:
    """The same without the banners."""
    table = rows("allreduce", 1)
    run = only("\n".join(table))
    assert (run.pattern, run.num_ranks, run.status) == ("allreduce", 1, OK)
    twice = only("\n".join([*table, *table]))  # -N 2: all sizes twice
    assert (twice.num_ranks, twice.status) == (1, OK)
    order = (2, 1, 2, 0, 3, 1, 4, 3)
    mixed = only("\n".join(table[index] for index in order))
    assert (mixed.num_ranks, mixed.status, len(mixed.rows)) == (1, FAILED, 2 * len(order))
    assert failure_code(mixed) == "several-runs-at-once"
    # -d all: the first size of a wider type is rounded down further
    doubles = [row("allreduce", size, 1, dtype="double", width=8) for size in (512, *SIZES[1:])]
    all_types = only("\n".join([*table, *doubles]))
    assert (all_types.num_ranks, all_types.status) == (1, OK), all_types.failure
    several = only("\n".join(rows()[index] for index in order))
    assert (several.num_ranks, several.status) == (4, OK)


def test_the_text_around_a_log_is_no_failure_of_it() -> None:
    prose = ["It should end without hangs or segmentation faults.", "", "With the old driver it did not:"]
    crash = ["```", "[node7:31] Signal: Segmentation fault (11)", "```"]
    fenced = "\n".join(["```", log(), "```", *prose, *crash])
    assert (only(fenced).status, bare(only(fenced).rows)) == (OK, bare(WHOLE.rows))
    assert only("\n".join([log(), *prose])).status == OK
    assert only("\n".join([log(), *crash[1:]])).status == FAILED
    parts = log().splitlines()
    middle = len(parts) // 2
    apart = only("\n".join([*parts[:middle], "```", "and then", "```", *parts[middle:]]))
    assert (apart.status, bare(apart.rows)) == (OK, bare(WHOLE.rows))


def test_rccl_tests_are_recognised_by_their_version_line() -> None:
    text = (
        log()
        .replace("# Using devices", "rccl-tests: Version develop:1a2b3c4\n# Using devices")
        .replace(" Group  0", "")
    )
    run = only(text.replace("[0x10]", "[0000:0c:00.0]"))
    assert (run.tool, run.tool_version, run.num_ranks, len(run.rows)) == ("rccl_tests", "develop:1a2b3c4", 4, 10)


def test_rccl_tests_are_recognised_by_their_first_line() -> None:
    first = "# rccl-tests version 2.17.9-develop:1a2b3c rccl-headers=22803 rccl-library=22707\n"
    found = read(first + log() + first + log())
    assert [(run.tool, run.tool_version, run.line) for run in found] == [
        ("rccl_tests", "2.17.9-develop:1a2b3c", 1),
        ("rccl_tests", "2.17.9-develop:1a2b3c", 1 + len((first + log()).splitlines())),
    ]
    assert dict(found[0].settings)["rccl"] == "2.27.7"
    assert bare(found[1].rows) == bare(WHOLE.rows)


def test_rccl_s_own_lines_are_read() -> None:
    text = (
        log()
        .replace("#\n# Using", "#\nrccl-tests: Version :+\n# Using")
        .replace("#\n" + TITLE, f"RCCL version : 2.22.3-HEAD:0a\nHIP version  : 6.4\n#\n{TITLE}")
    )
    run = only(
        text.replace(
            "# Out of", "# Errors with asterisks indicate errors that have exceeded the maximum threshold.\n# Out of"
        )
    )
    assert (run.tool, run.tool_version, run.status, run.pattern) == ("rccl_tests", ":+", OK, "allreduce")
    assert dict(run.settings)["rccl"] == "2.22.3-HEAD:0a"
    assert bare(run.rows) == bare(WHOLE.rows)


def test_a_header_may_announce_in_place_only() -> None:
    title = "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    table = [
        text[: text.index(half("allreduce", size, (21.0 + size / 40e3) * 1.03, 4, "0"))]
        for text, size in zip(rows(), SIZES, strict=True)
    ]
    run = only("\n".join([*banner(), title, *table, "# Out of bounds values : 0 OK"]))
    assert [r.in_place for r in run.rows] == [True] * len(SIZES)
    assert (run.pattern, run.status) == ("allreduce", OK)


# ------------------------------------------------------------------------------------------------------ columns


@pytest.mark.parametrize(
    ("word", "dtype", "width"),
    [
        ("half", "float16", 2),
        ("bfloat16", "bfloat16", 2),
        ("double", "float64", 8),
        ("float", "float32", 4),
        ("fp8_e4m3", "float8_e4m3fn", 1),
        ("f8e4m3", "float8_e4m3fn", 1),
        ("fp8_e5m2", "float8_e5m2", 1),
        ("f8e5m2", "float8_e5m2", 1),
        ("int8", "int8", 1),
        ("uint8", "uint8", 1),
        ("int32", "int32", 4),
        ("uint32", "uint32", 4),
        ("int64", "int64", 8),
        ("uint64", "uint64", 8),
        ("char", "int8", 1),
        ("int", "int32", 4),
    ],
)
def test_types_have_torch_s_names(word: str, dtype: str, width: int) -> None:
    run = only("\n".join([TITLE, row("allreduce", 1 << 20, 4, "0", word, width)]))
    assert {r.dtype for r in run.rows} == {dtype}
    assert run.pattern == "allreduce"


@pytest.mark.parametrize("word", ["sum", "prod", "max", "min", "avg", "mulsum", "premulsum"])
def test_operations_keep_their_names(word: str) -> None:
    run = only(log().replace("   sum", f"{word:>6}"))
    assert {r.reduce_op for r in run.rows} == {word}


def test_without_a_header_columns_are_counted() -> None:
    for pattern in ("allreduce", "broadcast", "allgather"):
        assert bare(only("\n".join(rows(pattern))).rows) == bare(only(log(pattern)).rows)
    old = [re.sub(r"  +-1  ", "  ", text) for text in rows()]
    assert bare(only("\n".join(old)).rows) == bare(WHOLE.rows)
    older = [re.sub(r"    none  ", "  ", text) for text in rows("broadcast")]
    assert bare(only("\n".join(older)).rows) == bare(only(log("broadcast")).rows)


def test_the_error_column_counts_no_elements() -> None:
    title = (
        "#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error"
    )
    table = [re.sub(r"  +-1  ", "  ", text).replace("      0", "  2e-07") for text in rows()]
    for text in ("\n".join([*banner(), title, *table]), "\n".join(table)):
        run = only(text)
        assert len(run.rows) == 10
        assert {r.num_wrong for r in run.rows} == {None}
        assert run.status == OK


@pytest.mark.parametrize(("word", "number"), [("7", 7), ("1.04858e+06", 1048580), ("1e+06", 1000000), ("N/A", None)])
def test_wrong_elements_fail_a_run_and_keep_its_rows(word: str, number: int | None) -> None:
    table = rows()
    table[2] = row("allreduce", SIZES[2], 4, word)
    run = only("\n".join([*banner(), TITLE, *table, *footer(table)]))
    assert [r.num_wrong for r in run.rows] == [0] * 4 + [number] * 2 + [0] * 4
    assert run.status == (OK if number is None else FAILED)
    if number:
        assert failure_code(run) == "wrong-elements"
        assert failure(run).facts == {"num_wrong": number, "placement": "out of place", "line": 12}


@pytest.mark.parametrize("word", ["nan", "-nan", "inf", "-inf"])
def test_a_figure_that_is_no_number_is_unknown(word: str) -> None:
    table = rows()
    table[1] = table[1].replace(table[1].split()[5], word)
    run = only("\n".join([*banner(), TITLE, *table]))
    assert run.rows[2].time_s is None
    assert run.rows[3].time_s == pytest.approx(23.32e-6, rel=1e-3)
    remark = only_remark(run, "figure-not-a-number")
    assert (remark.line, remark.facts) == (11, {"figures": ["time"], "placement": "out of place"})


def test_per_iteration_columns_and_a_time_of_day_shift_nothing() -> None:
    title = TITLE.replace("#wrong", "#wrong   i_min    i_max    i_p99    i_cv%") + "           timestamp"
    wide = [
        re.sub(r"(\S+ +\S+ +\S+ +0)(?= |$)", r"\1    1.25    99999.9   1.2e+06     0.40", text[50:]) for text in rows()
    ]
    table = [text[:50] + tail + "  2026-01-02 03:04:05" for text, tail in zip(rows(), wide, strict=True)]
    assert all(len(text.split()) == 23 for text in table)
    assert bare(only("\n".join([*banner(), title, *table])).rows) == bare(WHOLE.rows)
    assert bare(only("\n".join(table)).rows) == bare(WHOLE.rows)


def test_cpu_time_is_not_the_time_of_the_operation() -> None:
    run = only(log().replace("    time", " cputime"))
    assert {r.time_s for r in run.rows} == {None}
    assert run.rows[4].algbw_bytes_per_s == 22.21e9
    assert "cpu-time" in codes(run)


def test_rows_of_size_zero_are_rows() -> None:
    zero = "           0             0     float    none      -1" + 2 * "     0.31    0.00    0.00      0"
    run = only("\n".join([*banner(), TITLE, zero, zero, *rows("allgather")]))
    assert [r.payload_bytes for r in run.rows[:4]] == [0, 0, 0, 0]
    assert run.pattern == "allgather"


def test_a_row_that_contradicts_itself_is_kept_with_a_remark() -> None:
    table = rows()
    table[3] = table[3].replace(table[3].split()[6], "99.99", 1)
    run = only("\n".join([*banner(), TITLE, *table]))
    assert len(run.rows) == 10
    remark = only_remark(run, "row-contradicts")
    assert (remark.line, remark.facts["reason_code"]) == (13, "not-size-by-time")


# ------------------------------------------------------------------------------------------------------ damage


@pytest.mark.parametrize("gap", ["", "\n", f"\n{INFO} a\n{INFO} b\n"])
@pytest.mark.parametrize("place", [14, 30, 36, 43, 50, 60, 68, 75, 83, 95, 104])
def test_a_row_in_pieces_is_joined(place: int, gap: str) -> None:
    """A message of NCCL is glued to the first piece, because both go to one pipe; the cut may be inside a figure."""
    table = rows()
    text = table[3]
    table[3] = f"{text[:place]}{INFO} AllReduce: opCount 0{gap or chr(10)}{text[place:]}"
    run = only("\n".join([*banner(), TITLE, *table, *footer(table := rows())]))
    assert bare(run.rows) == bare(WHOLE.rows), text[place - 5 : place + 5]
    assert run.status == OK


def test_a_row_in_three_pieces_is_joined() -> None:
    table = [
        f"{text[:50]}{INFO} AllReduce: opCount\n{INFO} more\n{text[50:83]}{INFO} AllReduce: opCount\n{text[83:]}"
        for text in rows()
    ]
    run = only("\n".join([*banner(), TITLE, *table, *footer(rows())]))
    assert bare(run.rows) == bare(WHOLE.rows)


@pytest.mark.parametrize("host", ["7f3a9c", "10-0-0-7", "0e4b", "node7"])
def test_a_host_that_begins_with_a_digit_takes_no_digit_from_a_figure(host: str) -> None:
    text = log().replace("node7", host)
    message = rf"{host}:1:2 [0] NCCL INFO a\n"
    glued = re.sub(r"(  -1)(  +\S+ +\S+ +\S+ +0)(  +\S+.*0)", rf"\g<1>{message}\g<2>{message}\g<3>", text)
    assert glued.count("NCCL INFO") == 10
    assert bare(only(glued).rows) == bare(WHOLE.rows)


def test_a_row_glued_to_the_end_of_another_line_s_tag_is_read() -> None:
    text = "\n".join(f"[1,0]<stdout>:{line}[1,1]<stderr>:warning: something" for line in log().splitlines())
    assert bare(only(text).rows) == bare(WHOLE.rows)


def test_a_cut_anywhere_changes_no_row() -> None:
    """After every character of the table, the rows are a beginning of the true ones, and the cut is remarked."""
    text = log()
    start, end = text.index(TITLE), text.index("# Out of bounds")
    whole = bare(WHOLE.rows)
    for place in range(start, end - 1):
        runs = read(text[:place])
        found = bare(runs[0].rows)
        assert found == whole[: len(found)], place
        assert runs[0].status == TRUNCATED, place
        gone = text[:place].rsplit("\n", 1)[1].split()
        if len(gone) > 2 and place > text.index(rows()[0]):
            assert text[:place].count("\n") + 1 in {remark.line for remark in runs[0].remarks}, place


def test_a_cut_anywhere_without_a_header_changes_no_row() -> None:
    for pattern in ("allreduce", "broadcast"):
        text = "\n".join(rows(pattern))
        whole = bare(only(text).rows)
        for place in range(len(rows(pattern)[0]) + 1, len(text)):
            found = bare(only(text[:place]).rows)
            assert found == whole[: len(found)], place


def test_any_field_may_be_missing_and_none_moves_into_its_column() -> None:
    for pattern in ("allreduce", "broadcast"):
        tokens = row(pattern, 1 << 24).split()
        for missing in range(3, len(tokens)):
            if missing in (3, 4):
                continue  # as before 2.13, when there was no operation, or no root
            text = " ".join(tokens[:missing] + tokens[missing + 1 :])
            for head in ([TITLE], []):
                run = only("\n".join([*banner(), *head, row(pattern, 1 << 20), text, row(pattern, 1 << 30)]))
                assert set(bare(run.rows)) <= set(bare(only(log(pattern)).rows)), text


def test_a_cut_row_keeps_the_half_that_is_whole() -> None:
    table = rows()
    run = only("\n".join([*banner(), TITLE, *table[:4], table[4][:90]]))
    assert bare(run.rows) == bare(WHOLE.rows)[:9]
    assert (run.status, failure_code(run), failure(run).facts) == (TRUNCATED, "half-cut", {"line": 14})
    assert (14, "half-cut") in located(run)


def test_a_last_field_that_may_be_cut_is_not_used() -> None:
    text = row("allreduce", SIZES[4], 4, "4096")
    place = text.index("4096", 20) + 2  # "40": a number of wrong elements that was never counted
    run = only("\n".join([*banner(), TITLE, *rows()[:4], text[:place]]))
    assert bare(run.rows) == bare(WHOLE.rows)[:8]
    assert {14} <= {remark.line for remark in run.remarks}


def test_left_out_rows_are_remarked() -> None:
    for mark in ("...", "…", "[...]", "# ... (left out) ...", "....", "[snip]"):
        table = rows()
        run = only("\n".join([*banner(), TITLE, table[0], mark, table[4], *footer(table)]))
        assert (len(run.rows), run.status) == (4, TRUNCATED), mark
        assert {11, 14} <= {remark.line for remark in run.remarks}


def test_an_average_of_other_rows_is_remarked() -> None:
    table = rows()
    run = only("\n".join([*banner(), TITLE, *table[1:], *footer(table)]))
    assert located(run)[0] == (15, "not-the-average")
    assert run.status == TRUNCATED


def test_a_row_that_is_printed_twice_is_no_missing_row() -> None:
    table = rows()
    run = only("\n".join([*banner(), TITLE, *table[:3], *table[2:], *footer(table)]))
    assert only_remark(run, "row-twice").facts == {"twice": 13} and "not-the-average" not in codes(run)
    assert run.status == TRUNCATED


def test_missing_sizes_are_a_loss() -> None:
    asked = [1024 * 64**power for power in range(4)]
    table = [row("allreduce", size) for size in asked]
    end = "# Out of bounds values : 0 OK"
    run = only("\n".join([*banner(most=asked[-1]), TITLE, *table, end]))
    assert (run.status, run.asked_bytes) == (OK, tuple(asked))
    for gone in range(len(asked)):
        left = table[:gone] + table[gone + 1 :]
        run = only("\n".join([*banner(most=asked[-1]), TITLE, *left, end]))
        assert (run.status, len(run.rows)) == (TRUNCATED, 6)
        assert asked[gone] in (failure(run).facts.get("sizes") or [failure(run).facts.get("most")])
    assert WHOLE.asked_bytes == ()  # most of its rows do not fit its banner


def test_left_out_lines_are_no_loss_if_the_average_agrees() -> None:
    table = rows()
    run = only("\n".join([*banner(), TITLE, *table[:2], "...", *table[2:], *footer(table)]))
    assert (run.status, located(run)[0]) == (OK, (12, "no-rows-left-out"))


def test_a_log_that_ends_early_is_truncated_even_after_a_whole_row() -> None:
    run = only("\n".join([*banner(), TITLE, *rows()[:3]]))
    assert (run.status, failure_code(run)) == (TRUNCATED, "ends-early")
    assert failure(run).facts == {"size": 1 << 20, "most": 1 << 30, "line": 12}
    assert only("\n".join([*banner(), TITLE, *rows()])).status == OK
    assert failure_code(only("\n".join([*banner(), TITLE]))) == "ends-before-rows"


def test_sizes_reduced_for_lack_of_memory_are_no_loss() -> None:
    text = "\n".join([*banner(), "# Reducing maxBytes to 30000000 due to memory limitation", TITLE, *rows()[:4]])
    run = only(text)
    assert (run.status, located(run)[0]) == (OK, (9, "memory-limit"))


@pytest.mark.parametrize(
    "sentence",
    [
        "node7: Test NCCL failure all_reduce.cu:44 'unhandled cuda error / '",
        "node7: Test CUDA failure common.cu:295 'out of memory'",
        " .. node7 pid 31: Test failure common.cu:377",
        "[node7:00031] *** Process received signal ***\n[node7:00031] Signal: Segmentation fault (11)",
        "Segmentation fault (core dumped)",
        "mpirun noticed that process rank 1 with PID 31 on node node7 exited on signal 9 (Killed).",
        "srun: error: node7: task 3: Exited with exit code 2",
        "slurmstepd: error: *** STEP 4.0 ON node7 CANCELLED AT 2026-01-02T03:04:05 DUE TO TIME LIMIT ***",
        "# error: remote process exited or there was a network error",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "command terminated with exit code 137",
    ],
)
@pytest.mark.parametrize("num_rows", [0, 3])
def test_a_crash_is_a_failure_with_the_printed_words(sentence: str, num_rows: int) -> None:
    run = only("\n".join([*banner(), TITLE, *rows()[:num_rows], sentence]))
    assert run.status == FAILED
    assert printed(run) in sentence
    assert failure(run).facts["line"] == 10 + num_rows + sentence.count("\n")
    assert len(run.rows) == 2 * num_rows


def test_a_rate_below_the_demanded_one_fails() -> None:
    run = only(log().replace(f": {average(rows())} ", f": {average(rows())} FAILED"))
    assert (run.status, failure_code(run)) == (FAILED, "below-demanded")
    wrong = only(log().replace("values : 0 OK", "values : 12 FAILED"))
    assert failure_code(wrong) == "out-of-bounds"
    assert failure(wrong).facts == {"values": 12, "verdict": "FAILED", "line": 16}


# ------------------------------------------------------------------------------------------------------ many runs


def test_several_runs_are_yielded_one_by_one() -> None:
    reader = READER()
    text = log() + log("allgather", 8) + "a line of something else\n" + log("broadcast")
    given: list[ForeignRun] = []
    for line in lines([text]):
        given += reader.feed(line)
    assert [run.pattern for run in given] == ["allreduce", "allgather"]
    given += reader.finish()
    assert [(run.pattern, run.num_ranks, run.status, len(run.rows)) for run in given] == [
        ("allreduce", 4, OK, 10),
        ("allgather", 8, OK, 10),
        ("broadcast", 4, OK, 10),
    ]
    assert [run.line for run in given] == [1, 19, 42]


def test_a_repeated_header_begins_a_run_only_if_sizes_start_over() -> None:
    table = rows()
    again = only("\n".join([*banner(), TITLE, UNITS, *table[:2], TITLE, UNITS, *table[2:], *footer(table)]))
    assert bare(again.rows) == bare(WHOLE.rows)
    anew = read("\n".join([TITLE, *table, TITLE, *table]))
    assert [bare(run.rows) for run in anew] == [bare(WHOLE.rows)] * 2


def test_a_header_after_closing_lines_begins_a_run() -> None:
    table = rows()
    block = [TITLE, *table, *footer(table)]
    assert [len(run.rows) for run in read("\n".join(block * 3))] == [10, 10, 10]


def test_a_run_after_a_crash_is_a_run_of_its_own() -> None:
    crash = "\n".join([*banner(), TITLE, "node7: Test NCCL failure common.cu:1 'x'"])
    assert [run.status for run in read(f"{crash}\n{crash}\n{log()}")] == [FAILED, FAILED, OK]


def test_hash_signs_may_be_lost_in_markdown() -> None:
    run = only(log().replace("# ", " "))
    assert (bare(run.rows), run.status, run.num_ranks) == (bare(WHOLE.rows), OK, 4)


def test_other_text_gives_no_run() -> None:
    assert read("hello\n1 2 3\n\n# a comment\n8 1.22\nnode7:1:2 [0] NCCL INFO x\nSegmentation fault\n") == []


@pytest.mark.parametrize("text", log().splitlines())
def test_its_own_lines_begin_it(text: str) -> None:
    wanted = text.strip("# ") and not any(word in text for word in ("(B)", "Using devices"))
    assert READER().begins(text.strip()) == bool(wanted)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "#",
        "# Size       Avg Latency(us)",
        "8                       1.22",
        "1048576 781.00 780.90 781.10 100",
        "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
        "   D\\D     0      1 ",
        "#bytes  #iterations  BW",
        "65536      1000             0.00               96.52  \t\t   0.184088",
        "nvbandwidth Version: v0.8",
        "{",
        '"version": "v0.8",',
        "node7:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 2",
        "8 2 float",
    ],
)
def test_lines_of_other_tools_do_not_begin_it(text: str) -> None:
    assert not READER().begins(text)


# ------------------------------------------------------------------------------------------------------ JSON


def placed(size: int, time_us: float, wrong: float | None = 0.0) -> dict[str, float | None]:
    """As its writer prints a half."""
    return {
        "time": round(time_us, 6),
        "alg_bw": round(size / time_us / 1e3, 6),
        "bus_bw": round(size / time_us / 1e3 * 1.5, 6),
        "nwrong": wrong,
    }


def document(**more: Any) -> dict[str, Any]:
    """A run of two processes with two GPUs each; only the first GPU of each is listed."""
    results = [
        {
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": placed(size, 21 + size / 4e4),
            "in_place": placed(size, 22 + size / 4e4),
            "actual_iterations": 20,
            "experiment_name": "",
        }
        for size in SIZES
    ]
    devices = [
        {
            "rank": 2 * n,
            "group": 0,
            "pid": 9,
            "hostname": f"node{n}",
            "device": 0,
            "device_hex": "x",
            "device_info": "ACME X1",
        }
        for n in range(2)
    ]
    rates = [result[key]["bus_bw"] for result in results for key in ("out_of_place", "in_place")]  # type: ignore[index]
    return {
        "version": 3,
        "start_time": "2026-01-02 03:04:05",
        "args": ["./build/all_reduce_perf", "-b", "1K"],
        "env": ["SECRET=hunter2"],
        "nccl_version": 22907,
        "config": {
            "nthreads": 1,
            "ngpus": 2,
            "minimum_bytes": 1024,
            "maximum_bytes": SIZES[-1],
            "step_factor": 64,
            "validation": 1,
            "blocking_collectives": "false",
            "devices": devices,
        },
        "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": sum(rates) / len(rates), "okay": "unchecked"},
        "errors": [""],
        "end_time": "2026-01-02 03:05:05",
        **more,
    }


@pytest.mark.parametrize("indent", [None, 2])
def test_a_document_is_read(indent: int | None) -> None:
    text = json.dumps(document(), indent=indent, separators=None if indent else (",", ":"))
    run = only("a line before\n" + text)
    assert (run.pattern, run.num_ranks, run.num_nodes, run.hosts, run.gpus) == (
        "allreduce",
        4,
        2,
        ("node0", "node1"),
        ("ACME X1",),
    )
    assert (run.status, run.remarks, dict(run.settings)["nccl"]) == (OK, (), "2.29.7")
    assert [(r.payload_bytes, r.in_place) for r in run.rows] == [
        (size, where) for size in SIZES for where in (False, True)
    ]
    assert run.rows[0].time_s == pytest.approx(21.0256e-6)
    assert "hunter2" not in repr(run)
    assert READER().begins(text.splitlines()[0] if indent is None else text.splitlines()[1].strip())


def test_a_document_s_failures_are_failures() -> None:
    assert only(json.dumps(document(out_of_bounds={"count": 3, "okay": "false"}))).status == FAILED
    assert printed(only(json.dumps(document(errors=["remote process exited"])))) == "remote process exited"
    unknown = document()
    unknown["results"][0]["in_place"] = {"time": "nan", "alg_bw": "nan", "bus_bw": "nan", "nwrong": None}
    run = only(json.dumps(unknown))
    assert run.rows[1].time_s is None
    assert "figure-not-a-number" in codes(run)


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 3, "start_time": "2026-01-02 03:04:05", "other": {}}',
        '{"version": 3,',
        '{\n"version": 3,\n"a": 1\n}',
    ],
)
def test_a_document_of_another_program_is_skipped(text: str) -> None:
    assert [bare(run.rows) for run in read(f"{text}\n{log()}")] == [bare(WHOLE.rows)]
    assert read(text) == []


def test_a_document_that_is_cut_keeps_its_whole_results() -> None:
    whole = bare(only(json.dumps(document())).rows)
    for indent in (None, 1):
        text = json.dumps(document(), indent=indent)
        start, end = text.index('"results"'), text.index('"out_of_bounds"')
        for place in range(start, end, 7):
            run = only(text[:place])
            found = bare(run.rows)
            assert found == whole[: len(found)]
            assert len(found) == 2 * len(re.findall(r'"experiment_name": ""\s*}', text[:place]))
            assert run.status == TRUNCATED
            assert run.pattern == "allreduce"


# ------------------------------------------------------------------------------------------------------ anything at all

WORDS = st.sampled_from(
    [
        *log().splitlines(),
        *log("broadcast").splitlines(),
        *rows(),
        "...",
        "8 2",
        "8 2 float",
        "-1",
        "0",
        "nan",
        "8 2 float sum -1",
        "83.3 1.00 1.00 0",
        f"1 2 float sum -1{INFO} x",
        f"1.00 2.00 3.00 0{INFO}",
        "{",
        "}",
        '{"version": 3,',
        '"start_time": "2026-01-02 ',
        "# Rank 99999999999999 Pid 1 on h device 0 [x] y",
        "# Avg bus bandwidth : nan",
        "# Out of bounds values : 99999999999999999 FAILED",
        "Test NCCL failure",
        "a: Test NCCL failure b.cu:1 'c'",
        "all_reduce_perf -g 999 -t 999",
        "# size count type time algbw busbw",
        "100.0 83.89 146.80 " + "9" * 310,
        "1e999 1e999 1e999 1e+99",
        "8 2 float 1e999 nan inf 1e+99 1e999 nan inf 1e+99",
    ]
)


def test_a_figure_of_very_many_digits_is_a_loss() -> None:
    many = f"  100.0   83.89  146.80  {'9' * 310}"
    run = only("\n".join([*banner(), TITLE, rows()[0], many, *rows()[1:]]))
    assert bare(run.rows) == bare(WHOLE.rows)
    assert (run.status, failure_code(run), failure(run).facts) == (TRUNCATED, "row-damaged", {"line": 11})


DAMAGE: dict[str, Callable[[str], str]] = {
    "a letter in the size": lambda text: text.replace("167", "1?67"),
    "no size": lambda text: text.replace("16777216", "", 1),
    "a logger's words": lambda text: "2026-01-01 10:00:00 <INFO> worker-3 = " + text,
    "glued to a word": lambda text: "n0: foo" + text.strip(),
    "size and count glued": lambda text: re.sub(r"(\d) +(\d+ +float)", r"\1\2", text),
    "commas": lambda text: text.replace("16777216", "16,777,216"),
    "very many digits": lambda text: text + "0" * 400,
    "INFO inside": lambda text: text.replace("float", "floatNCCL INFO foo"),
    "INFO inside and in place": lambda text: text.replace("float", f"float {INFO} foo"),
    "INFO behind a letter": lambda text: "x" + text.strip()[:60] + f"{INFO} foo\n" + text.strip()[60:],
    "no type": lambda text: text.replace("float", "fl-at"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_row_is_never_dropped_silently(damage: str) -> None:
    table = rows()
    table[3] = DAMAGE[damage](table[3])
    run = only("\n".join([*banner(), TITLE, *table, "# Out of bounds values : 0 OK"]))
    left = bare(WHOLE.rows)
    assert bare(run.rows) == left[:6] + left[8:]
    assert run.status == TRUNCATED
    assert 13 in {remark.line for remark in run.remarks}


@settings(max_examples=300)
@given(
    st.lists(st.one_of(WORDS, st.text(max_size=60)), max_size=40),
    st.sampled_from(["\n", "\r\n", "", " ", "\n[1,0]<stdout>:"]),
)
def test_nothing_makes_it_raise_and_output_is_bounded(pieces: list[str], glue: str) -> None:
    text = glue.join(pieces)
    runs = read(text)
    num_lines = text.count("\n") + text.count("\r") + text.count("<std") + 1
    assert sum(len(run.rows) for run in runs) <= 2 * num_lines
    assert sum(len(run.remarks) for run in runs) <= 6 * num_lines + 6
    for run in runs:
        assert run.status in (OK, FAILED, TRUNCATED)
        assert (run.failure is None) == (run.status == OK)


@settings(max_examples=200)
@given(st.binary(max_size=400))
def test_binary_data_give_no_run(rubbish: bytes) -> None:
    assert read(rubbish) == [] or b"float" in rubbish
    inside = only(log().encode().replace(UNITS.encode(), rubbish.replace(b"\r", b"").replace(b".", b"") + b"\n"))
    assert set(bare(WHOLE.rows)) <= set(bare(inside.rows)) or b"\n" in rubbish


def test_messages_are_not_kept() -> None:
    """The reader keeps what the rows need, however many messages there are."""
    reader = READER()

    def endless() -> Iterator[Line]:
        number = 0
        for text in (*banner(), TITLE, *rows()):
            yield Line(number := number + 1, text.strip())
            for _ in range(3000):
                yield Line(number := number + 1, f"{INFO} AllReduce: opCount {number}")
                yield Line(number := number + 1, f"figures of nobody {number}")

    for line in endless():
        assert list(reader.feed(line)) == []
    run = reader._text._run
    assert run is not None
    assert len(run.rows) == 10
    assert (
        len(reader._text._pieces)
        + len(run.remarks)
        + len(run.hosts)
        + len(run.gpus)
        + len(run.settings)
        + len(run.ranks)
        < 40
    )


def test_remarks_beyond_a_limit_are_counted() -> None:
    run = only("\n".join([TITLE, *["1024 256 float sum -1 rubbish 1 2 3"] * 1000, *rows()]))
    assert len(run.remarks) < 210
    assert only_remark(run, "more-remarks").facts["num"] > 700
    assert run.status == TRUNCATED


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_one_damaged_character_of_a_row_never_drops_it_silently(data: st.DataObject) -> None:
    """Both rows of the line are there, with any figures, or the line is remarked as lost."""
    table = rows(data.draw(st.sampled_from(["allreduce", "allgather", "broadcast"])))
    which = data.draw(st.integers(0, len(table) - 1))
    text = table[which].strip()
    place, put = (
        data.draw(st.integers(0, len(text) - 1)),
        data.draw(st.sampled_from(["", "?", "x", "7", " ", ",", "-"])),
    )
    table[which] = text[:place] + put + text[place + data.draw(st.integers(0, 1)) :]
    run = only("\n".join([*banner(), TITLE, *table, "# Out of bounds values : 0 OK"]))
    there = sum(row.line == 10 + which for row in run.rows)
    assert there == 2 or 10 + which in {remark.line for remark in run.remarks}, table[which]
