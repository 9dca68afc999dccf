"""nvbandwidth as a program that we run: its arguments, and its tables as our groups (the figures are a stand-in's)."""

from __future__ import annotations

import pytest

from bench.core import plugins, topology
from bench.core.case import Case
from bench.core.errors import UsageError
from bench.core.pattern import Pattern
from bench.core.record import Record
from bench.core.world import World
from bench.logs.foreign import read_all
from bench.logs.readers._lines import lines
from bench.logs.readers.nvbandwidth import READER
from bench.logs.tool import Tool
from tests.fakes import standin_nvbandwidth as standin
from tests.logs import corpus

TOOL: Tool = plugins.load("tool", "nvbandwidth").TOOL
ONE, THREE = World(1, 1), World(1, 3)
JSON = frozenset(TOOL.marks)
TEXT: frozenset[str] = frozenset()
BUILDS = pytest.mark.parametrize("build", [JSON, TEXT], ids=["json", "text"])


def case(pattern: str, sizes: tuple[int, ...] = (64 << 20,), **more: object) -> Case:
    """Copies back to back, within one process."""
    defaults = {"mode": "pipelined", "via": "process"} | more
    return Case(pattern, "cuda_copy", sizes, **defaults)  # type: ignore[arg-type]


def records(asked: Case, world: World = THREE, behaviour: str = "3", build: frozenset[str] = JSON) -> list[Record]:
    """The records of what the stand-in prints when it gets our arguments."""
    return TOOL.records(standin.run(TOOL.arguments(asked, world, build), behaviour), asked, world)


def rates(found: list[Record]) -> dict[str, float]:
    """GB/s by group."""
    return {one.group: round((one.reported or {})["algbw_bytes_per_s"] / 1e9, 6) for one in found}


@BUILDS
def test_host_and_gpu_one_by_one_and_at_once(build: frozenset[str]) -> None:
    there = case("host_device", topology="single ranks", direction="h2d")
    assert rates(records(there, build=build)) == {"rank0": 50, "rank1": 51, "rank2": 52}
    back = case("host_device", topology="groups of 1", direction="d2h")
    assert rates(records(back, build=build)) == {"group0": 40, "group1": 41, "group2": 42}
    assert rates(records(case("host_device"), ONE, "1", build)) == {"world": 50}  # one-way goes to the GPU


@BUILDS
def test_the_slower_of_two_ways_is_used(build: frozenset[str]) -> None:
    both = case("host_device", topology="single ranks", direction="two-way")
    assert TOOL.arguments(both, THREE)[:3] == [
        "-t",
        "host_to_device_bidirectional_memcpy_ce",
        "device_to_host_bidirectional_memcpy_ce",
    ]
    assert rates(records(both, build=build)) == {"rank0": 40, "rank1": 41, "rank2": 42}


def test_pairs_have_the_direction_of_the_tools_source() -> None:
    # A write goes from row to column, a read from column to row: the cell of row 0 and column 2 is 202.
    write = rates(records(case("peer_copy", access="write")))
    read = rates(records(case("peer_copy", access="read", engine="sm")))
    assert write["0-2"] == read["2-0"] == 202 and write["2-0"] == read["0-2"] == 220
    assert len(write) == 6


def test_both_ways_between_gpus_are_the_slower_of_its_two_tables() -> None:
    found = rates(records(case("peer_copy", access="read", direction="two-way")))
    assert found["2-0"] == 152  # 202 - 50
    once = rates(records(case("peer_copy", access="read", direction="two-way", topology="single pairs")))
    assert list(once) == ["0-1", "0-2", "1-2"]


def test_before_v06_sums_of_kernels_are_halved_and_copy_engines_are_skipped() -> None:
    sm = rates(records(case("peer_copy", engine="sm", direction="two-way"), behaviour="3 old", build=TEXT))
    assert sm["0-2"] == 101
    skipped = records(case("peer_copy", engine="ce", direction="two-way"), behaviour="3 old", build=TEXT)
    assert {one.skipped and (one.skipped.code, one.skipped.facts["version"]) for one in skipped} == {
        ("one-direction", "v0.4")
    }


def test_it_counts_a_copy_inside_a_gpu_once() -> None:
    asked = case("local_copy", topology="single ranks")
    assert rates(records(asked)) == {"rank0": 600, "rank1": 601, "rank2": 602}
    assert len(TOOL.notes(asked)) == 2


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("host_device", "single ranks"),
        ("host_device", "groups of 1"),
        ("peer_copy", "world"),
        ("peer_copy", "single pairs"),
        ("local_copy", "single ranks"),
    ],
)
def test_groups_are_named_as_ours_are(pattern: str, name: str) -> None:
    owner: Pattern = plugins.load("pattern", pattern).PATTERN
    rounds = topology.rounds(THREE, owner.topology_of(name))
    ours = {(group.name, len(group.ranks), group.src, group.dst) for one in rounds for group in one}
    found = records(case(pattern, topology=name))
    assert {(one.group, one.num_ranks, one.src, one.dst) for one in found} == ours


@BUILDS
def test_gpus_that_do_not_reach_each_other_are_skipped(build: frozenset[str]) -> None:
    found = {one.group: one for one in records(case("peer_copy"), behaviour="3 no-peers", build=build)}
    skipped = found["0-1"].skipped
    assert skipped is not None and skipped.code == "path-waived" and found["0-2"].reported


@BUILDS
def test_a_test_that_was_waived_is_skipped_with_its_reason(build: frozenset[str]) -> None:
    found = records(case("peer_copy"), behaviour="1 waived", build=build)
    assert len(found) == 6 and all(one.skipped and one.skipped.code == "waived" for one in found)


def test_wrong_data_is_a_failure() -> None:
    found = records(case("local_copy", topology="single ranks"), behaviour="3 corrupt")
    assert all(one.failed is not None and "wrong data" in one.failed.facts["printed"] for one in found)


def test_unseen_gpus_are_failures_and_other_gpus_are_left_out() -> None:
    asked = case("host_device", topology="single ranks")
    *seen, lost = records(asked, behaviour="2")
    assert len(seen) == 2 and lost.failed is not None and lost.failed.code == "no-figure-of-group"
    assert len(records(asked, behaviour="5")) == 3
    with pytest.raises(UsageError, match=r"\b5 GPUs.*\b3\b.*CUDA_VISIBLE_DEVICES"):
        records(case("host_device", topology="groups of 1"), behaviour="5")


def test_other_output_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\b0 runs.*nvbandwidth"):
        TOOL.records("hello\n", case("local_copy"), ONE)


def test_arguments_are_tests_buffer_and_samples() -> None:
    asked = case("peer_copy", iterations=7, engine="sm", access="read", direction="two-way")
    words = ["-t", "device_to_device_bidirectional_memcpy_read_sm", "-b", "64", "-i", "7"]
    assert TOOL.arguments(asked, THREE) == words and TOOL.arguments(asked, THREE, JSON) == [*words, "-j"]
    assert TOOL.processes(THREE, JSON) == ONE


def test_each_size_is_a_start_of_its_own() -> None:
    found = TOOL.starts(case("local_copy", (1 << 20, 2 << 20), mode="both"))
    assert [(one.sizes, one.mode) for one in found] == [((1 << 20,), "pipelined"), ((2 << 20,), "pipelined")]


@pytest.mark.parametrize(
    ("asked", "world", "code", "facts"),
    [
        (case("allreduce"), ONE, "no-program", {"pattern": "allreduce"}),
        (case("local_copy"), World(2, 1), "one-node", {}),
        (case("local_copy", mode="isolated"), ONE, "not-isolated", {}),
        (case("local_copy", (1000,)), ONE, "not-whole-mib", {}),
        (case("host_device", memory="pageable"), ONE, "option-unsupported", {"option": "memory", "value": "pageable"}),
        (case("peer_copy", via="ipc"), THREE, "one-process", {}),
        (case("peer_copy", topology="pairs"), THREE, "one-pair", {"topology": "pairs"}),
        (case("local_copy", engine="sm"), ONE, "copy-engine-only", {}),
        (case("host_device"), THREE, "each-gpu", {"topologies": "'single ranks' or 'groups of 1'"}),
        (case("local_copy", topology="groups of 1"), THREE, "each-gpu", {"topologies": "'single ranks'"}),
        (case("local_copy"), ONE, None, {}),
    ],
)
def test_a_case_that_it_cannot_measure_has_a_reason(
    asked: Case, world: World, code: str | None, facts: dict[str, object]
) -> None:
    reason = TOOL.unsupported_reason(asked, world)
    assert (reason and reason.code) == code
    assert reason is None or reason.facts.items() >= facts.items()


@BUILDS
def test_versions_are_read(build: frozenset[str]) -> None:
    text = standin.run(TOOL.arguments(case("local_copy"), ONE, build), "1")
    assert TOOL.version(text) == ("v0.8" if build else "v0.4")
    assert TOOL.libraries(text)["cuda"] == ("13.0" if build else "12.4")


def test_whole_logs_become_the_rows_of_their_tables() -> None:
    num_rows = 0
    for log in corpus.paths(["nvbandwidth_logs"]):
        text = log.read_text(encoding="utf-8", errors="replace")
        runs = read_all(READER(), lines([text]))
        tables = {matrix.name: matrix for matrix in (runs[0].matrices if len(runs) == 1 else ())}
        there = tables.get("host_to_device_memcpy_ce")
        if there is not None and all(cell.src == "host" for cell in there.cells):
            world = World(1, len(there.cells))
            found = records_of(text, case("host_device", topology="single ranks"), world)
            assert [(one.reported or {}).get("algbw_bytes_per_s") for one in found] == [c.value for c in there.cells]
            num_rows += len(found)
        pairs = tables.get("device_to_device_memcpy_read_ce")
        if pairs is not None:
            num_gpus = round(0.5 + (0.25 + len(pairs.cells)) ** 0.5)
            found = records_of(text, case("peer_copy", access="read"), World(1, num_gpus))
            by_ends = {(cell.src, cell.dst): cell.value for cell in pairs.cells}
            assert len(found) == len(by_ends)
            for one in found:
                assert (one.reported or {}).get("algbw_bytes_per_s") == by_ends[f"gpu{one.src}", f"gpu{one.dst}"]
            num_rows += len(found)
    assert num_rows > 20


def records_of(text: str, asked: Case, world: World) -> list[Record]:
    """Those of groups, without the one with the failure of the run."""
    return [one for one in TOOL.records(text, asked, world) if one.group != "world"]
