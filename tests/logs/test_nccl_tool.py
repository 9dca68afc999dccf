"""nccl-tests as a program that we run: its arguments, and the records of the output of its versions (stand-ins)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core import plugins
from bench.core.case import Case
from bench.core.errors import UsageError
from bench.core.record import Record
from bench.core.world import World
from bench.logs.foreign import read_all
from bench.logs.readers._lines import lines
from bench.logs.readers._nccl_tool import row_of
from bench.logs.readers.nccl_tests import READER
from bench.logs.tool import DOCUMENT, Tool
from tests.fakes import standin_nccl_tests as standin
from tests.logs import corpus

TOOL: Tool = plugins.load("tool", "nccl_tests").TOOL
FOUR, NODES = World(1, 4), World(2, 4)
NEW = frozenset(TOOL.marks)
OLD: frozenset[str] = frozenset()
SIZES = (1024, 4096, 16384)


def case(pattern: str = "allreduce", sizes: tuple[int, ...] = SIZES, mode: str = "pipelined", **more: object) -> Case:
    """A case over NCCL."""
    return Case(pattern, "nccl", sizes, mode=mode, **more)  # type: ignore[arg-type]


def printed(
    asked: Case, standin_version: str = "2.19.6", world: World = FOUR, build: frozenset[str] = NEW
) -> tuple[str, str]:
    """What the stand-in prints and writes when it gets our arguments."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "document"
        words = [str(file) if word == DOCUMENT else word for word in TOOL.arguments(asked, world, build)]
        standin.run(
            [TOOL.program(asked), *words], standin_version, lines.append, TOOL.processes(world, build).num_ranks
        )
        return "\n".join(lines) + "\n", file.read_text() if file.exists() else ""


def records(
    asked: Case, standin_version: str = "2.19.6", world: World = FOUR, build: frozenset[str] = NEW
) -> list[Record]:
    """The records of its output."""
    text, document = printed(asked, standin_version, world, build)
    return TOOL.records(text, asked, world, document)


@pytest.mark.parametrize(("standin_version", "build"), [("2.19.6", NEW), ("2.17.1", OLD), ("2.13", OLD)])
@pytest.mark.parametrize(
    "pattern",
    ["allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter", "sendrecv"],
)
def test_every_pattern_of_every_version_becomes_a_record_of_each_size(
    pattern: str, standin_version: str, build: frozenset[str]
) -> None:
    found = records(case(pattern), standin_version, FOUR, build)
    assert [record.requested_bytes for record in found] == [(size,) for size in SIZES]
    for record in found:
        assert record.reported is not None and record.verified is True and record.num_wrong == 0
        seconds = 10e-6 + record.payload_bytes / 100e9
        assert record.reported["mean_s"] == pytest.approx(seconds, rel=1e-3)
        assert record.reported["algbw_bytes_per_s"] == pytest.approx(record.payload_bytes / seconds, rel=0.1)
        assert (record.mode, record.num_ranks, record.in_place) == ("pipelined", 4, False)


def test_the_document_has_more_digits_than_the_table() -> None:
    asked = case(sizes=(1024,))
    text, document = printed(asked)
    by_text, by_document = TOOL.records(text, asked, FOUR)[0], TOOL.records(text, asked, FOUR, document)[0]
    assert by_text.reported is not None and by_document.reported is not None
    assert by_text.reported["mean_s"] == pytest.approx(10.01e-6)
    assert by_document.reported["mean_s"] == pytest.approx(10.01024e-6, rel=1e-9)


def test_the_requested_placement_is_used() -> None:
    (found,) = records(case(sizes=(1024,), in_place=True))
    assert found.reported is not None and found.in_place
    assert found.reported["mean_s"] == pytest.approx(11.01024e-6)


def test_unchecked_in_place_rows_are_not_verified() -> None:
    (found,) = records(case("alltoall", sizes=(1024,), in_place=True))
    assert (found.verified, found.num_wrong) == (None, None) and found.reported


def test_isolated_cases_give_samples_of_every_rank() -> None:
    (found,) = records(case(sizes=(1024,), mode="isolated", iterations=30))
    samples = found.samples
    assert samples is not None and found.reported is None and found.mode == "isolated"
    assert len(samples.seconds) == 30 and len(samples.by_rank) == 4 and samples.calls_per_sample == 1
    assert samples.seconds[2] == pytest.approx((10.01024 + 2 + 3) * 1e-6) == max(own[2] for own in samples.by_rank)


def test_isolated_cases_without_a_document_give_their_mean() -> None:
    asked = case(sizes=(1024,), mode="isolated")
    text, _ = printed(asked)
    (found,) = TOOL.records(text, asked, FOUR, "{")
    assert found.samples is None and found.reported is not None
    assert found.reported["mean_s"] == pytest.approx(10.01e-6)


def test_wrong_data_is_never_a_success() -> None:
    *right, bad = records(case(), "2.19.6 wrong")
    assert [record.verified for record in right] == [True, True]
    assert (bad.verified, bad.num_wrong) == (False, 3)
    # Wrong out of place, while in place was asked for: no row shows it.
    *rows, failed_record = records(case(in_place=True), "2.19.6 wrong")
    assert all(row.verified for row in rows) and failed_record.failed is not None
    assert (failed_record.failed.code, failed_record.failed.facts["values"]) == ("out-of-bounds", 3)


def test_sizes_beyond_the_memory_are_skipped_with_the_printed_words() -> None:
    found = records(case(sizes=(1 << 18, 1 << 20, 1 << 22)), "2.19.6 reduced")
    *measured, skipped = found
    assert not any(record.skipped for record in measured) and skipped.skipped is not None
    assert skipped.skipped.code == "memory-limit"
    assert skipped.skipped.facts["printed"].startswith("Reducing maxBytes to 1048576 ")


@pytest.mark.parametrize(
    ("mishap", "code"),
    [("cut", "ends-early"), ("dies", "tool-error")],
)
@pytest.mark.parametrize(("standin_version", "build"), [("2.13", OLD), ("2.19.6", NEW)])
def test_rows_before_an_early_end_are_kept_and_the_rest_fails(
    standin_version: str, build: frozenset[str], mishap: str, code: str
) -> None:
    first, second, last = records(case(), f"{standin_version} {mishap}", FOUR, build)
    assert first.reported and second.reported
    assert last.failed is not None and last.requested_bytes == (16384,)
    assert last.failed.code == code
    if code == "ends-early":
        assert (last.failed.facts["size"], last.failed.facts["most"]) == (4096, 16384)


def test_figures_of_another_type_are_refused() -> None:
    with pytest.raises(UsageError, match=r"float32.*bfloat16"):
        records(case(dtype="bfloat16"), "2.19.6 other-type")


def test_processes_that_did_not_find_each_other_are_no_run() -> None:
    asked = case()
    alone, _ = printed(asked, world=World(1, 1))
    with pytest.raises(UsageError, match="find each"):
        TOOL.records(alone * 4, asked, FOUR)
    with pytest.raises(UsageError, match=r"\b1 rank.*\b4\b"):
        TOOL.records(alone, asked, FOUR)
    with pytest.raises(UsageError, match="nccl-tests"):
        TOOL.records("hello\n", asked, FOUR)


def test_arguments_depend_on_the_build() -> None:
    asked = case("broadcast", root=1, dtype="float16", iterations=50, warmup=5)
    sizes = ["-b", "1024", "-e", "16384", "-f", "4"]
    plain = [*sizes, "-d", "half", "-r", "1", "-n", "50", "-w", "5", "-c", "1"]
    assert TOOL.arguments(asked, FOUR) == [*plain, "-g", "4"]
    assert TOOL.arguments(asked, FOUR, NEW) == [*plain, "-J", DOCUMENT, "-g", "1"]
    assert TOOL.processes(FOUR, OLD) == World(1, 1) and TOOL.processes(NODES, NEW) == NODES
    reduction = TOOL.arguments(case(reduce_op="max", graph=True), FOUR)
    assert reduction[6:] == ["-d", "float", "-o", "max", "-c", "1", "-G", "1", "-g", "4"]
    assert "-I 1 -z 3" in " ".join(TOOL.arguments(case(mode="isolated"), FOUR, NEW))


def test_both_modes_are_two_starts() -> None:
    assert [one.mode for one in TOOL.starts(case(mode="both"))] == ["isolated", "pipelined"]


@pytest.mark.parametrize(
    ("asked", "world", "build", "code", "facts"),
    [
        (case("incast"), FOUR, NEW, "no-program", {"pattern": "incast"}),
        (case(topology="pairs"), FOUR, NEW, "option-unsupported", {"tool": "all_reduce_perf", "option": "topology"}),
        (case(share_gpu=True), FOUR, NEW, "option-unsupported", {"option": "share gpu"}),
        (case(dtype="int16"), FOUR, NEW, "option-unsupported", {"option": "dtype", "value": "int16"}),
        (case(reduce_op="bxor"), FOUR, NEW, "option-unsupported", {"option": "reduction", "value": "bxor"}),
        (case(sizes=(8, 12, 1 << 20)), FOUR, NEW, "sizes-not-a-row", {}),
        (case(sizes=(0, 8, 16)), FOUR, NEW, "sizes-not-a-row", {}),
        (case(mode="isolated", graph=True), FOUR, NEW, "no-samples-of-graphs", {}),
        (case(), NODES, OLD, "built-without-mpi", {"nodes": 2, "remedy": TOOL.remedy}),
        (case(mode="isolated"), FOUR, OLD, "no-samples", {}),
        (case(graph=True), FOUR, OLD, "no-graphs", {}),
        (case(), NODES, NEW, None, {}),
    ],
)
def test_a_case_that_it_cannot_measure_has_a_reason(
    asked: Case, world: World, build: frozenset[str], code: str | None, facts: dict[str, object]
) -> None:
    reason = TOOL.unsupported_reason(asked, world) or TOOL.build_lacks(asked, world, build)
    assert (reason and reason.code) == code
    assert reason is None or reason.facts.items() >= facts.items()


def test_blocks_of_less_than_16_bytes_are_skipped() -> None:
    *found, less, last = sorted(records(case("allgather", sizes=(16, 32, 64, 128))), key=lambda one: bool(one.skipped))
    assert [one.payload_bytes for one in found] == [64, 128]
    assert (less.requested_bytes, last.requested_bytes) == ((16,), (32,))
    assert less.skipped and less.skipped.code == "block-too-small" and less.skipped.facts["ranks"] == 4


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((8,), "-b 8 -e 8 -f 2"),
        ((8, 16, 32), "-b 8 -e 32 -f 2"),
        ((1024, 4096, 16384), "-b 1024 -e 16384 -f 4"),
        ((8, 64, 256, 2048), "-b 8 -e 2048 -f 2"),  # thinned: 16, 32, ... are measured and left out
        ((100, 200, 300), "-b 100 -e 300 -i 100"),
        ((8, 16, 1 << 30), "-b 8 -e 1073741824 -f 2"),
    ],
)
def test_a_list_of_sizes_is_part_of_a_row(sizes: tuple[int, ...], words: str) -> None:
    assert " ".join(row_of(sizes) or ()) == words


@given(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=6, unique=True).map(sorted))
def test_a_row_holds_every_size_or_there_is_none(sizes: list[int]) -> None:
    words = row_of(tuple(sizes))
    if words is not None:
        pairs = zip(words[::2], words[1::2], strict=True)
        made = list(standin.sizes({flag[1]: value for flag, value in pairs}))
        assert set(sizes) <= set(made) and len(made) <= max(4 * len(sizes), 21)


def test_version_and_library_are_read() -> None:
    text, _ = printed(case())
    assert TOOL.version(text) == "2.19.6" and TOOL.version("") is None
    assert TOOL.libraries(text) == {"nccl": "2.29.7"}


def test_logs_of_known_runs_become_records_of_every_size() -> None:
    num_logs = 0
    for log in corpus.paths(["nccl_logs"]):
        text = log.read_text(encoding="utf-8", errors="replace")
        runs = read_all(READER(), lines([text]))
        if len(runs) != 1 or not runs[0].rows or not runs[0].pattern or not runs[0].num_ranks:
            continue
        (run,) = runs
        sizes = tuple(dict.fromkeys(row.payload_bytes or 0 for row in run.rows if row.payload_bytes))
        row = run.rows[0]
        world = World(run.num_nodes or 1, (run.num_ranks or 1) // (run.num_nodes or 1))
        asked = case(run.pattern or "", sizes, dtype=row.dtype, reduce_op=row.reduce_op or "sum")
        if not TOOL.program(asked) or world.num_ranks != run.num_ranks:
            continue
        found = [one for one in TOOL.records(text, asked, world) if one.reported]
        own = {one.payload_bytes: one for one in reversed(run.rows) if not one.in_place}  # the first of several cycles
        assert [one.payload_bytes for one in found] == [size for size in sizes if size in own], log.name
        for one in found:
            assert one.reported is not None and one.reported["mean_s"] == own[one.payload_bytes].time_s
        num_logs += 1
    assert num_logs > 20
