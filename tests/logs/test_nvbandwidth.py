"""nvbandwidth's matrices: text and JSON of its versions, waived, failed and cut tests, and directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core import plugins
from bench.logs.foreign import ForeignRun, Line, Matrix, read_all
from tests.logs import corpus
from tests.logs.reading import codes, failure_code, located, only_remark, printed, translations

READER = plugins.load("tool", "nvbandwidth").READER
PRINTED = {"bytes_per_s": 1e9, "s": 1e-9}


def read(text: str) -> list[ForeignRun]:
    """The runs of a text."""
    return read_all(READER(), [Line(number, line) for number, line in enumerate(text.splitlines(), start=1)])


def one(text: str) -> ForeignRun:
    """The only run of a text."""
    (run,) = read(text)
    return run


def matrix(run: ForeignRun, name: str) -> Matrix:
    """The only matrix of a name."""
    (found,) = [matrix for matrix in run.matrices if matrix.name == name]
    return found


def rates(found: Matrix) -> dict[tuple[str, str], float | None]:
    """Pair -> value, in the printed unit."""
    return {
        (c.src, c.dst): c.value if c.value is None else round(c.value / PRINTED[found.unit], 9) for c in found.cells
    }


def brief(found: Matrix) -> list[Any]:
    """A matrix as the expectations put it."""
    printed = PRINTED[found.unit]
    good = [cell for cell in found.cells if cell.status == "ok"]
    waived = [cell for cell in found.cells if cell.status == "waived"]
    assert len(good) + len(waived) == len(found.cells)
    ends = [[cell.src, cell.dst, pytest.approx((cell.value or 0) / printed)] for cell in (good[0], good[-1])]
    return [found.name, found.unit, found.direction, found.engine, len(good), len(waived), *ends[0], *ends[1]]


@pytest.mark.parametrize(("path", "wanted"), corpus.cases("nvbandwidth_logs"))
def test_a_log_gives_what_is_in_it(path: Path, wanted: dict[str, Any]) -> None:
    run = one(path.read_text(encoding="utf-8"))
    assert (run.tool, run.tool_version, run.status) == ("nvbandwidth", wanted.get("tool_version"), wanted["status"])
    assert (run.failure is None) == (run.status == "ok") and wanted.get("failure") in (None, failure_code(run))
    assert "printed" not in wanted or wanted["printed"] in printed(run)
    assert list(run.gpus) == wanted.get("gpus", []) and list(run.hosts) == wanted.get("hosts", [])
    assert dict(run.settings) == wanted.get("settings", {})
    assert [brief(found) for found in run.matrices] == [row[:-1] for row in wanted["matrices"]]
    for found, row in zip(run.matrices, wanted["matrices"], strict=True):
        if row[-1] is not None:  # all figures: their sum as printed by the tool
            total = sum(cell.value or 0 for cell in found.cells) / PRINTED[found.unit]
            assert total == pytest.approx(row[-1], rel=2e-5)
    remarks = [[line, code] for line, code in located(run) if line is not None]
    assert remarks == wanted.get("remarks", [])


@corpus.needs_corpus
def test_there_is_an_expectation_for_every_real_log() -> None:
    assert {path.name for path in corpus.real("nvbandwidth_logs", "").iterdir()} == set(
        corpus.expected("nvbandwidth_logs")
    )


# Samples of our own with three GPUs: 0 and 1 are linked, 2 is not.

PAIRS = [["N/A", "40.5", "N/A"], ["41.25", "N/A", "N/A"], ["N/A", "N/A", "N/A"]]
SECOND = [["N/A", "38", "N/A"], ["39", "N/A", "N/A"], ["N/A", "N/A", "N/A"]]
TOTAL = [["N/A", "78.5", "N/A"], ["80.25", "N/A", "N/A"], ["N/A", "N/A", "N/A"]]
TWO_WAY = "device_to_device_bidirectional_memcpy_read_ce"


def case(name: str, rows: list[list[str]] | None = None, status: str = "Passed", **more: Any) -> dict[str, Any]:
    """A test case of a JSON document."""
    matrix = {} if rows is None else {"bandwidth_description": "memcpy CE", "bandwidth_matrix": rows}
    return matrix | {"name": name, "status": status} | more


def document(*cases: dict[str, Any], version: str = "v0.8", **more: Any) -> str:
    """A JSON document, indented as the tool does it."""
    inner = {"CUDA Runtime Version": 12080, "Driver Version": "570.1", **more, "testcases": list(cases)}
    return json.dumps({"nvbandwidth": inner | {"version": version}}, indent="\t", separators=(",", " : "))


def three_tables(name: str = TWO_WAY) -> dict[str, Any]:
    """A two-way test since v0.6: each direction, then the sum, one table below the other."""
    more = {"sum": 158.75, "bandwidth_description": "memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)"}
    return case(name, PAIRS + SECOND + TOTAL) | more


TEXT = """nvbandwidth Version: v0.7
Built from Git version: v0.7

CUDA Runtime Version: 12080
CUDA Driver Version: 12080
Driver Version: 570.1

node7
Device 0: Accelerator X1 (00000000:11:00)
Device 1: Accelerator X1 (00000000:12:00)

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     25.50     12.75

SUM host_to_device_memcpy_ce 38.25

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A     41.00
 1     42.00       N/A

SUM device_to_device_memcpy_read_ce 83.00

Waived:
NOTE: The reported results may not reflect the full capabilities of the platform.
Performance can vary with software drivers, hardware clocks, and system topology.
"""


def test_the_text_form_has_machine_and_matrices() -> None:
    run = one(TEXT)
    assert (run.tool_version, run.status, run.hosts, run.gpus) == ("v0.7", "ok", ("node7",), ("Accelerator X1",))
    assert dict(run.settings) == {"cuda": "12.8", "driver": "570.1"}
    assert rates(matrix(run, "host_to_device_memcpy_ce")) == {("host", "gpu0"): 25.5, ("host", "gpu1"): 12.75}
    assert located(run) == [(27, "waived")]


def test_a_read_is_from_column_to_row_and_a_write_from_row_to_column() -> None:
    run = one(document(case("device_to_device_memcpy_read_sm", PAIRS), case("device_to_device_memcpy_write_sm", PAIRS)))
    read_, write = run.matrices
    assert (read_.direction, read_.engine, write.engine) == ("d2d", "sm", "sm")
    assert rates(read_)["gpu1", "gpu0"] == 40.5 and rates(write)["gpu0", "gpu1"] == 40.5
    assert "arrows" in translations(run)


def test_a_pair_without_a_path_is_waived_and_the_diagonal_is_no_cell() -> None:
    (found,) = one(document(case("device_to_device_memcpy_write_ce", PAIRS))).matrices
    ways = {(one.src, one.dst): one.status for one in found.cells}
    assert len(ways) == 6 and ways["gpu0", "gpu1"] == ways["gpu1", "gpu0"] == "ok"
    assert [ways[pair] for pair in (("gpu0", "gpu2"), ("gpu2", "gpu1"))] == ["waived", "waived"]
    assert all((one.value is None) == (one.status == "waived") for one in found.cells)


def test_the_sum_that_doubled_is_never_a_value_and_is_explained() -> None:
    before = one(document(case(TWO_WAY, PAIRS, sum=81.75), version="v0.5"))
    after = one(document(three_tables(), version="v0.6"))
    (old,) = before.matrices
    first, second, total = after.matrices
    assert (old.direction, first.direction, total.direction) == ("bidirectional", "bidirectional", "bidirectional_sum")
    assert rates(old) == rates(first) and first.name == f"{TWO_WAY}_read1" and total.name == f"{TWO_WAY}_total"
    assert rates(second)["gpu0", "gpu1"] == 38 and rates(first)["gpu1", "gpu0"] == 40.5
    assert rates(total)["gpu0", "gpu1"] == 78.5
    for run in (before, after):
        printed = [one.value for matrix in run.matrices for one in matrix.cells]
        assert not {81.75e9, 158.75e9} & set(printed) and not run.remarks
        assert "sums" in translations(run)


def test_a_sum_of_other_figures_is_remarked() -> None:
    run = one(TEXT.replace("SUM device_to_device_memcpy_read_ce 83.00", "SUM device_to_device_memcpy_read_ce 99.00"))
    remark = only_remark(run, "sum-differs")
    assert (remark.line, remark.facts) == (25, {"printed": 99, "sum": 83})


def test_sm_two_way_copies_between_gpus_gave_both_directions_before_v06() -> None:
    (found,) = one(document(case(TWO_WAY.replace("_ce", "_sm"), PAIRS), version="v0.5")).matrices
    assert (found.direction, found.engine) == ("bidirectional_sum", "sm")


@pytest.mark.parametrize(
    ("name", "direction", "ends"),
    [
        ("host_to_device_memcpy_ce", "h2d", ("host", "gpu1")),
        ("device_to_host_memcpy_sm", "d2h", ("gpu1", "host")),
        ("host_to_device_bidirectional_memcpy_ce", "bidirectional", ("host", "gpu1")),
        ("device_to_host_bidirectional_memcpy_sm", "bidirectional", ("gpu1", "host")),
        ("all_to_host_memcpy_ce", "d2h", ("gpu1", "host")),
        ("host_to_all_bidirectional_memcpy_sm", "bidirectional", ("host", "gpu1")),
        ("all_to_one_write_ce", "d2d", ("others", "gpu1")),
        ("all_to_one_read_ce", "d2d", ("gpu1", "others")),
        ("one_to_all_write_sm", "d2d", ("gpu1", "others")),
        ("one_to_all_read_sm", "d2d", ("others", "gpu1")),
        ("multinode_device_to_device_all_to_one_write_sm", "d2d", ("others", "gpu1")),
        ("device_local_copy", "local", ("gpu1", "gpu1")),
        ("host_device_latency_sm", "load", ("gpu1", "host")),
        ("a_test_of_tomorrow", None, ("row0", "column1")),
    ],
)
def test_a_row_with_a_figure_for_each_gpu_has_its_ends(name: str, direction: str | None, ends: tuple[str, str]) -> None:
    (found,) = one(document(case(name, [["5", "7"]]))).matrices
    assert found.direction == direction and rates(found)[ends] == 7
    assert found.unit == ("s" if "latency" in name else "bytes_per_s")


def test_latency_between_gpus_before_v08_was_of_host_memory() -> None:
    name = "device_to_device_latency_sm"
    for version, direction, remarked in (("v0.7", None, True), ("v0.8", "load", False), ("v0.10", "load", False)):
        run = one(document(case(name, PAIRS), version=version))
        assert run.matrices[0].direction == direction
        assert rates(run.matrices[0])["gpu0", "gpu1"] == 40.5 and run.matrices[0].unit == "s"
        assert ("latency-of-host" in codes(run)) == remarked


@pytest.mark.parametrize(
    ("bad", "code", "words"),
    [
        (case("device_to_device_memcpy_read_ce", status="Running"), "never-finished", ""),
        (case("device_to_device_memcpy_read_ce", status="Error"), "test-failed", "Error"),
        (case("device_to_device_memcpy_read_ce", PAIRS, error="wrong data"), "test-failed", "wrong data"),
        (case("device_to_device_memcpy_read_ce", status="Not Found"), "test-failed", "Not Found"),
        (case("host_to_device_memcpy_ce", [["nan", "5"]]), "figures-failed", ""),
        (case("host_to_device_memcpy_ce", [["-1", "5"]]), "figures-failed", ""),
        (case("host_to_device_memcpy_ce", [["0", "5"]]), "figures-failed", ""),
    ],
)
def test_errors_fail_the_run_though_the_program_exits_with_zero(bad: dict[str, Any], code: str, words: str) -> None:
    run = one(document(case("device_to_host_memcpy_ce", [["9", "9"]]), bad))
    assert run.status == "failed" and run.matrices[0].name == "device_to_host_memcpy_ce"
    assert failure_code(run) == code and printed(run) == words and code in codes(run)


def test_text_errors_fail_the_run_and_keep_what_was_measured() -> None:
    head = TEXT.split("SUM device_to_device")[0]
    run = one(head + "[CUDA_ERROR_ILLEGAL_ADDRESS] an illegal address in expression x in y : z.cpp:7\n")
    assert run.status == "failed" and "ILLEGAL_ADDRESS" in printed(run) and len(run.matrices) == 2
    assert one(" Invalid value when checking the pattern at 0x7\n").status == "failed"


def test_values_may_be_of_any_type() -> None:
    plain = one(document(case("host_to_device_memcpy_ce", [[5.5, 7]])))  # type: ignore[list-item]
    assert rates(plain.matrices[0]) == {("host", "gpu0"): 5.5, ("host", "gpu1"): 7}
    odd = [None, 3, "x", {"name": ["deep"], "status": {}, "bandwidth_matrix": {"a": 1}}, case("x", [[None], "y"])]  # type: ignore[list-item]
    run = one(document(*odd))  # type: ignore[arg-type]
    assert run.status != "ok"
    assert one('{"nvbandwidth": 7}').matrices == ()


def test_text_around_and_inside_a_document_is_ignored() -> None:
    text = document(case("device_to_device_memcpy_read_ce", PAIRS), three_tables())
    noise = "node1:77:78 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P {}\n"
    dirty = noise + noise.join(text.splitlines(keepends=True)) + "\n" + noise
    assert one(dirty).matrices != () and one(dirty).status == one(text).status == "ok"
    assert [brief(found) for found in one(dirty).matrices] == [brief(found) for found in one(text).matrices]


def test_noise_between_the_rows_of_a_table_is_ignored() -> None:
    noise = "node1:77:78 [0] NCCL INFO comm 0x1 rank 0 nranks 2\n"
    dirty = one(noise + noise.join(TEXT.splitlines(keepends=True)))
    assert [brief(found) for found in dirty.matrices] == [brief(found) for found in one(TEXT).matrices]
    assert dirty.status == "ok"


def test_a_document_that_is_cut_gives_whole_cases_with_a_remark() -> None:
    cases = [case("host_to_device_memcpy_ce", [["5", "6"]]), three_tables(), case("device_local_copy", [["9", "9"]])]
    text = document(*cases)
    whole = one(text)
    lines = text.splitlines()
    for length in range(2, len(lines) - 2):  # the two last lines are braces
        run = one("\n".join(lines[:length]))
        assert run.status == "truncated" and failure_code(run) == "document-cut"
        known = [found for found in whole.matrices[: len(run.matrices)]]
        assert [found.cells for found in run.matrices] == [found.cells for found in known]
    assert len(run.matrices) == len(whole.matrices)


def test_a_text_that_is_cut_has_unreadable_cells_with_a_remark() -> None:
    text = TEXT[: TEXT.index("42.00") + 4]  # the last digit is gone
    run = one(text)
    found = matrix(run, "device_to_device_memcpy_read_ce")
    assert {one.status for one in found.cells if one.src == "gpu0"} == {"unreadable"}
    assert (run.status, rates(found)["gpu1", "gpu0"]) == ("truncated", 41)
    assert located(run) == [(23, "row-cut")]
    gone = one(TEXT.replace(" 1     42.00       N/A\n", ""))
    missing = only_remark(gone, "rows-missing").facts
    assert gone.status == "truncated" and (missing["first"], missing["last"]) == (1, 1)
    assert one(TEXT[: TEXT.index("Running device_to_device") + 60]).status == "truncated"


def test_a_row_broken_by_another_line_is_joined() -> None:
    broken = TEXT.replace(" 0     25.50     12.75", " 0     25.50\nnode1: INFO x\n     12.75")
    assert rates(one(broken).matrices[0]) == {("host", "gpu0"): 25.5, ("host", "gpu1"): 12.75}


def test_versions_that_print_a_diagonal_of_zeros_print_zeros_for_refused_pairs() -> None:
    text = """Running device_to_device_memcpy_write_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
          0         1         2
0      0.00    276.00      0.00
1    275.00      0.00      0.00
2      0.00      0.00      0.00
"""
    run = one(text)
    assert run.status == "ok" and sum(one.status == "waived" for one in run.matrices[0].cells) == 4
    newer = one(text.replace("0      0.00    276", "0       N/A    276"))
    assert newer.status == "failed" and failure_code(newer) == "figures-failed"


def test_runs_in_one_file_are_separated() -> None:
    runs = read(TEXT + document(three_tables()) + "\n" + TEXT)
    assert [run.tool_version for run in runs] == ["v0.7", "v0.8", "v0.7"]
    assert [len(run.matrices) for run in runs] == [2, 3, 2] and runs[1].line > runs[0].line


def test_a_document_that_was_cut_ends_where_the_next_begins() -> None:
    whole = document(case("host_to_device_memcpy_ce", [["5", "6"]]), case("device_local_copy", [["7", "8"]]))
    cut, after = read(whole[: whole.index('"7"') + 2] + "\n" + whole)
    assert (cut.status, len(cut.matrices), after.status, len(after.matrices)) == ("truncated", 1, "ok", 2)


def test_only_lines_of_this_tool_begin_it() -> None:
    reader = READER()
    assert reader.begins("nvbandwidth Version: v0.8") and reader.begins('\t"nvbandwidth" : ')
    assert reader.begins('{"nvbandwidth": {') and reader.begins("Running all_to_one_read_sm.")
    for other in ("# nccl-tests version 2.17", "Running tests.", "{", "Device 0: GPU", '"name" : "nvbandwidth"'):
        assert not reader.begins(other)


def test_a_table_without_its_tests_name_is_named_by_its_sum_or_by_its_title() -> None:
    bare = "\n".join(TEXT.splitlines()[19:23]) + "\n"  # the title, the columns, two rows
    named = one(bare + "\nSUM device_to_device_memcpy_read_sm 83.00\n")
    assert (named.matrices[0].name, named.remarks) == ("device_to_device_memcpy_read_sm", ())
    two = bare + "SUM device_to_device_memcpy_read_sm 83.00\n" + bare + "SUM device_to_device_memcpy_read_ce 83.00\n"
    assert [matrix.engine for matrix in one(two).matrices] == ["sm", "ce"]
    guessed = one(bare)
    assert (
        guessed.matrices[0].name == "device_to_device_memcpy_read_ce"
        and rates(guessed.matrices[0])["gpu1", "gpu0"] == 41
    )
    assert codes(guessed)[0] == "named-by-title"
    odd = one(bare.replace("GPU(row) -> GPU(column)", "A(row) to B(column)"))
    assert odd.matrices[0].direction is None


def test_many_nodes_name_their_hosts_and_gpus() -> None:
    text = """nvbandwidth Version: v0.8
Process 0 (tray1): device 0: Accelerator X1 (00000008:01:00)
Process 1 (tray2): device 0: Accelerator X1 (00000009:01:00)

Running multinode_device_to_device_bidirectional_memcpy_write_ce.
memcpy CE CPU(row) <-> GPU(column) Read1 bandwidth (GB/s)
           0         1
 0       N/A    300.00
 1    301.00       N/A

SUM multinode_device_to_device_bidirectional_memcpy_write_ce_write1 601.00

memcpy CE CPU(row) <-> GPU(column) Total bandwidth (GB/s)
           0         1
 0       N/A    600.00
 1    602.00       N/A

SUM multinode_device_to_device_bidirectional_memcpy_write_ce_total 1202.00
"""
    run = one(text)
    assert (run.hosts, run.gpus, run.status, run.remarks) == (("tray1", "tray2"), ("Accelerator X1",), "ok", ())
    name = "multinode_device_to_device_bidirectional_memcpy_write_ce"
    assert [matrix.name for matrix in run.matrices] == [f"{name}_write1", f"{name}_total"]
    assert rates(run.matrices[0])["gpu1", "gpu0"] == 300 and run.matrices[1].direction == "bidirectional_sum"


LINES = st.sampled_from([*TEXT.splitlines(), *document(case("a", PAIRS), three_tables()).splitlines()])


@settings(max_examples=150)
@given(st.lists(st.one_of(LINES, st.text(max_size=40), st.just('"nvbandwidth" : {'), st.just("{[" * 50)), max_size=60))
def test_no_lines_make_it_raise(lines: list[str]) -> None:
    runs = read_all(READER(), [Line(number, line) for number, line in enumerate(lines, start=1)])
    for run in runs:
        assert run.status in ("ok", "failed", "truncated") and (run.failure is None) == (run.status == "ok")
        cells = [one for found in run.matrices for one in found.cells]
        assert all((one.value is not None) == (one.status == "ok") for one in cells)
        assert len(cells) <= 16 * sum(map(len, lines))


@settings(max_examples=100)
@given(st.data())
def test_a_damaged_document_never_raises(data: st.DataObject) -> None:
    text = document(case("host_to_device_memcpy_ce", [["5", "6"]]), three_tables(), error="boom")
    at = data.draw(st.integers(0, len(text)))
    inserted = data.draw(
        st.one_of(st.text(max_size=5), st.sampled_from(['"', "{", "}", "[" * 3000, "9" * 5000, "1e999"]))
    )
    for run in read(text[:at] + inserted + text[at + data.draw(st.integers(0, 3)) :]):
        assert run.status in ("ok", "failed", "truncated")


def test_a_document_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.logs.readers._nvb_json._MOST_CHARACTERS", 10_000)
    first = document(case("host_to_device_memcpy_ce", [["5", "6"]])).rpartition("]")[0]
    run = one(first + "".join(f'"key{number}" : "{"x" * 90}",\n' for number in range(500)))
    assert run.status == "truncated" and failure_code(run) == "document-too-long"
    assert rates(run.matrices[0])["host", "gpu1"] == 6
