"""OSU as a program that we run: its arguments, the records of its tables, and what is refused."""

from __future__ import annotations

import pytest

from bench.core import plugins
from bench.core.case import Case
from bench.core.errors import UsageError
from bench.core.world import World
from bench.logs.tool import Tool
from tests.logs import corpus

OSU: Tool = plugins.load("tool", "osu").TOOL
TWO = World(1, 2)

FULL = """
# OSU MPI Allreduce Latency Test v7.4
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
8                       0.98              0.83              1.13        1000
16                      0.99              0.84              1.14        1000
1048576               781.00            780.90            781.10         100
"""
PAIR = """
# OSU MPI Latency Test v5.6
# Size          Latency (us)
8                       1.22
16                      1.20
"""


def case(pattern: str, sizes: tuple[int, ...] = (8, 16, 1 << 20), **more: object) -> Case:
    """A case over MPI."""
    return Case(pattern, "mpi", sizes, **more)  # type: ignore[arg-type]


def test_every_tool_names_its_variable_its_transport_and_its_title() -> None:
    tools: list[Tool] = [getattr(plugins.load("tool", name), "TOOL", None) for name in plugins.names("tool")]  # type: ignore[misc]
    for tool in filter(None, tools):  # of the others, logs are read only
        assert tool.title and tool.variable.startswith("BENCH_")
        assert tool.transports and set(tool.transports) <= set(plugins.names("transport"))


def test_a_full_table_is_read_in_seconds_and_bytes() -> None:
    records = OSU.records(FULL, case("allreduce"), TWO)
    assert [record.payload_bytes for record in records] == [8, 16, 1 << 20]
    reported = records[0].reported
    assert reported is not None
    assert reported == pytest.approx(
        {"mean_s": 0.98e-6, "least_mean_s": 0.83e-6, "largest_mean_s": 1.13e-6, "num_samples": 1000}
    )
    assert OSU.version(FULL) == "7.4" and OSU.version("") is None


def test_an_older_table_of_one_column_is_read() -> None:
    first, second = (record.reported for record in OSU.records(PAIR, case("pingpong"), TWO))
    assert first == pytest.approx({"mean_s": 1.22e-6}) and second == pytest.approx({"mean_s": 1.2e-6})


def test_sizes_of_blocks_become_the_whole_buffer_and_back() -> None:
    wanted = case("alltoall", (32, 64))
    assert OSU.arguments(wanted, World(1, 4))[:2] == ["-m", "8:16"]
    assert [record.payload_bytes for record in OSU.records(FULL, wanted, World(1, 4))] == [32, 64]


def test_only_sizes_that_were_asked_for_are_taken() -> None:
    assert [record.payload_bytes for record in OSU.records(FULL, case("allreduce", (16, 32)), TWO)] == [16]


def test_reductions_ask_for_their_type_and_copies_for_none() -> None:
    words = OSU.arguments(case("allreduce", iterations=100, warmup=10), TWO)
    assert words == ["-m", "8:1048576", "-i", "100", "-x", "10", "-T", "mpi_float", "-f"]
    assert OSU.arguments(case("pingpong", (8,)), TWO) == ["-m", "8:8"]


@pytest.mark.parametrize(
    ("wanted", "ranks", "code", "facts"),
    [
        (case("incast"), 2, "no-program", {"pattern": "incast"}),
        (case("allreduce", dtype="bfloat16"), 2, "sums-only", {"dtype": "bfloat16"}),
        (case("allreduce", reduce_op="max"), 2, "sums-only", {"operation": "max"}),
        (case("broadcast", root=1), 2, "option-unsupported", {"option": "root", "value": 1}),
        (case("allgather", in_place=True), 2, "option-unsupported", {"option": "in place"}),
        (case("pingpong"), 4, "two-ranks", {"ranks": 4}),
    ],
)
def test_a_case_that_it_cannot_measure_has_a_reason(
    wanted: Case, ranks: int, code: str, facts: dict[str, object]
) -> None:
    reason = OSU.unsupported_reason(wanted, World(1, ranks))
    assert reason is not None and reason.code == code and reason.facts.items() >= facts.items()
    assert OSU.unsupported_reason(case("allreduce"), TWO) is None


@pytest.mark.parametrize("cut", range(len(FULL) - 40, len(FULL) - 1))
def test_a_table_that_was_cut_gives_its_whole_rows(cut: int) -> None:
    records = OSU.records(FULL[:cut], case("allreduce"), TWO)
    assert [record.payload_bytes for record in records] in ([8], [8, 16])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "not a table of an OSU latency program"),
        ("hello\nworld\n", "not a table of an OSU latency program"),
        (FULL.replace("0.99", "nan"), "^line 6 "),
        (FULL.replace("0.99", "-1"), "^line 6 "),
        (FULL.replace("0.99", ""), "^line 6 "),
        ("# OSU MPI Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n8   12.0\n", "latency tables"),
    ],
)
def test_other_text_is_refused(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        OSU.records(text, case("allreduce"), TWO)


def test_whole_logs_become_records() -> None:
    logs = corpus.paths(["osu_logs"])
    assert len(logs) > 3
    for log in logs:
        text = log.read_text(encoding="utf-8")
        sizes = tuple(1 << power for power in range(30))
        records = OSU.records(text, case("broadcast" if "bcast" in log.name else "allreduce", sizes), World(2, 4))
        lines = [line for line in text.splitlines() if line[:1].isdigit()]
        assert len(records) == len(lines) > 10
        assert all(record.reported and record.reported["mean_s"] > 0 for record in records)
