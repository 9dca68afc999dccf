"""OSU's tables in logs: every program that is read, sizes that are blocks, and rows that were cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.config.yaml_file import load
from bench.core import plugins
from bench.logs.foreign import ForeignRun, Line, read_all
from tests.logs import corpus
from tests.logs.reading import failure_code, located, only_remark, translations

READER = plugins.load("tool", "osu").READER
FACTS: Any = load(Path(__file__).parent / "expected" / "osu_facts.yaml").value


def read(text: str) -> list[ForeignRun]:
    """The runs of a text."""
    return read_all(READER(), [Line(number, line) for number, line in enumerate(text.splitlines(), start=1)])


@pytest.mark.parametrize(("path", "wanted"), corpus.cases("osu_logs"))
def test_a_log_gives_what_is_in_it(path: Path, wanted: dict[str, Any]) -> None:
    (run,) = read(path.read_text(encoding="utf-8"))
    assert (run.tool, run.tool_version, run.status, run.failure) == ("osu", "5.7", "ok", None)
    assert (run.pattern, run.num_ranks, run.size_is_block) == (wanted["pattern"], None, False)
    assert dict(run.settings)["library"] == wanted["memory"] and not run.remarks
    assert len(run.rows) == wanted["rows"]
    for row, printed in ((run.rows[0], wanted["first"]), (run.rows[-1], wanted["last"])):
        got = (row.payload_bytes, row.time_s, row.min_s, row.max_s, row.num_iterations)
        size, mean, least, largest, count = printed
        assert got == (size, *(pytest.approx(value * 1e-6) for value in (mean, least, largest)), count)
    assert [row.line for row in run.rows] == list(range(wanted["first_line"], wanted["first_line"] + wanted["rows"]))


@corpus.needs_corpus
def test_there_is_an_expectation_for_every_real_log() -> None:
    assert {path.name for path in corpus.real("osu_logs", "").iterdir()} == set(corpus.expected("osu_logs"))


FULL = """
# OSU MPI Allreduce Latency Test v7.4
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
8                       2.50              2.25              2.75        1000
16                      2.60              2.35              2.85        1000
1048576               800.00            790.00            810.00         100
"""


def title(name: str, header: str, *rows: str) -> str:
    """The output of a program."""
    return "\n".join((f"# OSU {name} Test v7.1", header, *rows)) + "\n"


def latency(name: str, *rows: str) -> str:
    """The output of a latency program."""
    return title(name, "# Size       Avg Latency(us)", *rows)


def test_a_row_has_its_mean_and_the_other_columns() -> None:
    (run,) = read(FULL)
    first, _, second = run.rows
    assert (first.payload_bytes, first.num_elements, first.dtype, first.reduce_op) == (8, 2, "float32", "sum")
    assert (first.time_s, first.min_s, first.max_s) == pytest.approx((2.5e-6, 2.25e-6, 2.75e-6))
    assert (second.num_iterations, second.line, run.line, run.tool_version) == (100, 7, 2, "7.4")
    assert first.algbw_bytes_per_s is None and run.num_ranks is None  # neither is printed
    assert translations(run) == ["mean-over-ranks"]


@pytest.mark.parametrize(
    ("library", "buffers", "memory"),
    [
        ("MPI", "", "host"),
        ("MPI-CUDA", "", "device"),
        ("MPI-ROCM", "", "device"),
        ("MPI-CUDA", "# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)", "device"),
        ("MPI", "Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)", "device"),
        ("MPI-CUDA", "# Send Buffer on HOST (H) and Receive Buffer on HOST (H)", "host"),
        ("MPI-CUDA", "# Send Buffer on HOST (H) and Receive Buffer on DEVICE (D)", "mixed"),
        ("MPI-CUDA", "# Send Buffer on MANAGED MEMORY (M) and Receive Buffer on MANAGED MEMORY (M)", "mixed"),
    ],
)
def test_where_the_buffers_are_is_kept(library: str, buffers: str, memory: str) -> None:
    (run,) = read(title(f"{library} Bandwidth", f"{buffers}\n# Size      Bandwidth (MB/s)", "4194304     12000.00"))
    assert dict(run.settings)["memory"] == memory and run.status == "ok" and len(run.rows) == 1


@pytest.mark.parametrize(
    ("name", "pattern", "block", "root"),
    [
        ("Allreduce", "allreduce", False, None),
        ("Reduce", "reduce", False, 0),
        ("Reduce_scatter", "reducescatter", False, None),
        ("Broadcast", "broadcast", False, 0),
        ("Allgather", "allgather", True, None),
        ("All-to-All Personalized Exchange", "alltoall", True, None),
        ("Gather", "gather", True, 0),
        ("Scatter", "scatter", True, 0),
    ],
)
def test_blocks_become_s_with_the_number_of_ranks(name: str, pattern: str, block: bool, root: int | None) -> None:
    (run,) = read(latency(f"NCCL {name} Latency", "64                      5.50"))
    (row,) = run.rows
    assert (run.pattern, run.size_is_block, row.root, row.payload_bytes) == (pattern, block, root, 64)
    with_ranks = run.with_num_ranks(16)
    assert (with_ranks.num_ranks, with_ranks.size_is_block) == (16, False)
    assert with_ranks.rows[0].payload_bytes == (1024 if block else 64) and with_ranks.rows[0].time_s == row.time_s
    assert with_ranks.with_num_ranks(16).rows == with_ranks.rows  # and only once
    assert (len(with_ranks.translations) > len(run.translations)) == block


def test_bandwidths_are_of_one_direction_of_one_pair() -> None:
    header = "# Size      Bandwidth (MB/s)"
    (one_way,) = read(title("MPI Bandwidth", header, "4096                 1000.00"))
    (two_way,) = read(title("MPI Bi-Directional Bandwidth", header, "4096                 1000.00"))
    pairs = "# [ pairs: 4 ] [ window size: 64 ]\n# Size                  MB/s        Messages/s"
    (many,) = read(title("MPI Multiple Bandwidth / Message Rate", pairs, "4096       1000.00      244140.62"))
    rates = [run.rows[0].algbw_bytes_per_s for run in (one_way, two_way, many)]
    assert rates == [1000e6, 500e6, 250e6]
    assert [run.rows[0].time_s for run in (one_way, two_way, many)] == [
        pytest.approx(4096 / rate) for rate in rates if rate
    ]
    assert [run.pattern for run in (one_way, two_way, many)] == ["pingpong", "pingpong", "pairs"]
    assert [run.num_ranks for run in (one_way, two_way, many)] == [2, 2, 8]
    assert all(dict(run.settings)["mode"] == "pipelined" for run in (one_way, two_way, many))
    (old,) = read(title("MPI Bi-Directional Bandwidth", "# Size     Bi-Bandwidth (MB/s)", "4096    1000.00"))
    assert old.rows[0].algbw_bytes_per_s == 500e6


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact["source"].partition(".com/")[2])
def test_published_figures_become_bytes_per_second(fact: dict[str, Any]) -> None:
    rows = "".join(f"{row[0]:<10}" + "".join(f"{word:>20}" for word in row[1:]) + "\n" for row in fact["rows"])
    (run,) = read(f"# OSU {fact['title']} Test v{fact['version']}\n" + "\n".join(fact["header"]) + f"\n{rows}")
    assert (run.status, run.tool_version, run.pattern) == ("ok", fact["version"], fact["pattern"])
    assert run.num_ranks == fact["num_ranks"] and len(run.rows) == len(fact["rows"])
    for row, printed in zip(run.rows, fact["rows"], strict=True):
        assert row.payload_bytes == printed[0] and row.algbw_bytes_per_s is not None
        assert row.algbw_bytes_per_s * fact["streams"] == pytest.approx(float(printed[1]) * 1e6)
        if len(printed) > 2:  # messages per second times the size is the bandwidth again
            assert row.algbw_bytes_per_s * fact["streams"] == pytest.approx(float(printed[2]) * printed[0], rel=1e-3)


def test_another_programs_table_is_no_part_of_the_run_before() -> None:
    other = "# OSU MPI_Ibcast Bandwidth Test v5.3\n# Size      Bandwidth (MB/s)\n1                       1.78\n"
    first, second = read(FULL + other)
    assert len(first.rows) == 3 and first.status == "ok"
    assert (second.pattern, second.rows, second.status) == (None, (), "truncated")


def test_one_sided_times_are_whole_and_their_bandwidths_are_of_one_direction() -> None:
    window = "# Window creation: MPI_Win_create\n# Synchronization: MPI_Win_flush\n"
    times, rates = window + "# Size          Latency (us)", window + "# Size      Bandwidth (MB/s)"
    for call in (
        "MPI_Put Latency",
        "MPI_Get_accumulate latency",
        "MPI_Compare_and_swap latency",
        "MPI_Get-CUDA Latency",
    ):
        (run,) = read(title(call, times, "8                     150.25"))
        assert (run.status, run.pattern, run.num_ranks) == ("ok", None, 2)
        assert run.rows[0].payload_bytes == 8 and run.rows[0].time_s == pytest.approx(150.25e-6)
        assert run.rows[0].algbw_bytes_per_s is None and "one-sided" in translations(run)
    (put,) = read(title("MPI_Put Bandwidth", rates, "4096                 1000.00"))
    (both,) = read(title("MPI_Put Bi-directional Bandwidth", rates, "4096                 1000.00"))
    assert [run.rows[0].algbw_bytes_per_s for run in (put, both)] == [1000e6, 500e6]
    assert [(run.pattern, run.num_ranks) for run in (put, both)] == [("pingpong", 2)] * 2


def test_a_table_that_ends_early_is_remarked_and_a_crash_below_it_fails() -> None:
    rows = ("4                       2.50", "256                     2.75")
    (early,) = read(latency("MPI Allreduce Latency", *rows))
    assert early.status == "ok" and located(early) == [(4, "ends-early")]
    assert only_remark(early, "ends-early").facts == {"size": 256, "largest": 1 << 20}
    (whole,) = read(latency("MPI Allreduce Latency", *rows, "1048576               250.00"))
    assert not whole.remarks
    for call in ("MPI_Compare_and_swap", "MPI_Fetch_and_op-CUDA"):
        (one,) = read(title(f"{call} latency", "# Size          Latency (us)", "8         150.25"))
        assert not one.remarks, "it has one size"
    crash = "[node7:4711:0:4711] Caught signal 7 (Bus error: nonexistent physical address)"
    (crashed,) = read(latency("MPI Allreduce Latency", *rows) + crash + "\n")
    assert crashed.status == "failed" and len(crashed.rows) == 2 and len(crashed.remarks) == 1


def test_several_pairs_have_one_mean() -> None:
    (run,) = read(title("MPI-CUDA Multi Latency", "# Size          Latency (us)", "0      2.25", "1024    3.75"))
    assert (run.status, run.pattern, run.num_ranks, dict(run.settings)["mode"]) == ("ok", "pairs", None, "isolated")
    assert [row.time_s for row in run.rows] == [pytest.approx(2.25e-6), pytest.approx(3.75e-6)]


def test_the_text_behind_a_table_is_no_part_of_it() -> None:
    (run,) = read(f"```\n{FULL}```\nThe other way it fails:\n```\n8\nsrun: error: node7: task 0: Killed\n```\n")
    assert (run.status, len(run.rows), run.remarks) == ("ok", 3, ())
    (crashed,) = read(f"```\n{FULL}srun: error: node7: task 0: Killed\n```\n")
    assert crashed.status == "failed"


def test_a_ping_pong_may_have_an_empty_message() -> None:
    (run,) = read(title("MPI Latency", "# Size          Latency (us)", "0                       1.25"))
    assert (run.rows[0].payload_bytes, run.num_ranks) == (0, 2) and run.rows[0].time_s == pytest.approx(1.25e-6)


def test_validation_that_failed_fails_the_run() -> None:
    header = "# Size       Avg Latency(us)        Validation"
    (good,) = read(title("MPI Allgather Latency", header, "8     5.00      Pass"))
    (bad,) = read(title("MPI Allgather Latency", header, "8     5.00      Pass", "16    6.00      Fail"))
    assert good.status == "ok" and good.rows[0].num_wrong is None
    assert (bad.status, len(bad.rows)) == ("failed", 2) and failure_code(bad) == "wrong-data"


@pytest.mark.parametrize(
    ("text", "status", "count", "code", "line"),
    [
        (FULL.rpartition("1048576")[0], "ok", 2, "ends-early", 6),
        (FULL[:-60], "truncated", 2, "row-unreadable", 7),
        (FULL[:-30], "truncated", 2, "row-unreadable", 7),
        (FULL[:-3], "truncated", 3, "count-cut", 7),  # `1` in place of 100: the line is too short
        (FULL.partition("8  ")[0], "truncated", 0, "no-rows", 2),
        (FULL + "...\n", "truncated", 3, "lines-left-out", 8),
        (
            FULL + "mpirun noticed that process rank 1 exited on signal 11 (Segmentation fault).\n",
            "failed",
            3,
            "tool-error",
            8,
        ),
        (FULL.replace("2.50", "0.00"), "failed", 2, "no-time", 5),
        (latency("MPI Barrier Latency").replace("Size ", "")[:-1], "truncated", 0, "no-rows", 1),
        (
            title("MPI Nonblocking Allreduce Latency", "# Size   Overall(us)   Compute(us)", "8 1.00 2.00"),
            "truncated",
            0,
            "table-unknown",
            2,
        ),
    ],
)
def test_damage_is_a_remark_with_its_line(text: str, status: str, count: int, code: str, line: int) -> None:
    (run,) = read(text)
    assert (run.status, len(run.rows)) == (status, count)
    assert (line, code) in located(run)


def test_many_runs_of_one_file_and_noise_between_rows() -> None:
    noise = "node1:77:78 [0] NCCL INFO comm 0x1\n"
    clean = read(FULL + FULL)
    dirty = read(noise + noise.join((FULL + FULL).splitlines(keepends=True)))
    assert len(clean) == 2 and [[row.time_s for row in run.rows] for run in clean] == [
        [row.time_s for row in run.rows] for run in dirty
    ]
    assert all(run.status == "ok" for run in dirty)
    eaten = FULL.replace("# ", "")
    assert [row.payload_bytes for run in read(eaten) for row in run.rows] == [8, 16, 1 << 20]
    collapsed = "\n".join(" ".join(line.split()) for line in FULL.splitlines())
    assert [row.num_iterations for run in read(collapsed) for row in run.rows] == [1000, 1000, 100]


@settings(max_examples=150)
@given(st.lists(st.one_of(st.sampled_from(FULL.splitlines()), st.text(max_size=60)), max_size=40))
def test_no_lines_make_it_raise(lines: list[str]) -> None:
    for run in read_all(READER(), [Line(number, line) for number, line in enumerate(lines, start=1)]):
        assert run.status in ("ok", "failed", "truncated") and (run.failure is None) == (run.status == "ok")
        assert len(run.rows) <= len(lines)
