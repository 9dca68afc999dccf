"""p2pBandwidthLatencyTest's matrices: links, copies through host memory and copies inside a GPU are never mixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core import plugins
from bench.logs.foreign import ForeignRun, Line, Matrix, read_all
from tests.logs import corpus
from tests.logs.reading import codes, failure_code, located, only_remark, translations

READER = plugins.load("tool", "p2p_bandwidth_latency").READER
PRINTED = {"bytes_per_s": 1e9, "s": 1e-6}


def read(text: str) -> list[ForeignRun]:
    """The runs of a text."""
    return read_all(READER(), [Line(number, line) for number, line in enumerate(text.splitlines(), start=1)])


def brief(found: Matrix) -> list[Any]:
    """A matrix as the expectations put it."""
    good = [cell for cell in found.cells if cell.status == "ok"]
    waived = [cell for cell in found.cells if cell.status == "waived"]
    assert len(good) + len(waived) == len(found.cells)
    ends: list[Any] = [None] * 6
    if good:
        first, last = good[0], good[-1]
        values = [pytest.approx((cell.value or 0) / PRINTED[found.unit]) for cell in (first, last)]
        ends = [first.src, first.dst, values[0], last.src, last.dst, values[1]]
    return [found.name, found.unit, found.direction, len(good), len(waived), *ends]


@pytest.mark.parametrize(("path", "wanted"), corpus.cases("p2p_logs"))
def test_a_log_gives_what_is_in_it(path: Path, wanted: dict[str, Any]) -> None:
    (run,) = read(path.read_text(encoding="utf-8"))
    assert (run.tool, run.status, list(run.gpus)) == ("p2p_bandwidth_latency", wanted["status"], wanted.get("gpus", []))
    assert [brief(found) for found in run.matrices] == wanted["matrices"]
    assert [[line, code] for line, code in located(run)] == wanted.get("remarks", [])


@corpus.needs_corpus
def test_there_is_an_expectation_for_every_real_log() -> None:
    assert {path.name for path in corpus.real("p2p_logs", "").iterdir()} == set(corpus.expected("p2p_logs"))


# An invented node: GPUs 0 and 1 are linked, 2 is not.

HEAD = """[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, Accelerator X1, pciBusID: 11, pciDeviceID: 0, pciDomainID:0
Device: 1, Accelerator X1, pciBusID: 12, pciDeviceID: 0, pciDomainID:0
Device: 2, Accelerator X2, pciBusID: 81, pciDeviceID: 0, pciDomainID:0
Device=0 CANNOT Access Peer Device=2

P2P Connectivity Matrix
     D\\D     0     1     2
     0\t     1     1     0
     1\t     1     1     0
     2\t     0     0     1
"""
ONE_WAY = """Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1      2
     0 1500.00  40.50   8.25
     1   41.00 1510.00   8.50
     2    8.75   9.00 1520.00
"""
DISABLED = """Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1      2
     0 1500.00   9.50   8.25
     1    9.25 1510.00   8.50
     2    8.75   9.00 1520.00
"""
TWO_WAY = ONE_WAY.replace("Unidirectional", "Bidirectional").replace(" (P2P Writes)", "")
LATENCY = """P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1      2
     0   1.50   2.50  14.00
     1   2.75   1.25  14.50
     2  13.00  13.50   1.00

   CPU     0      1      2
     0   3.00   1.75   5.00
     1   1.50   3.25   5.50
     2   5.25   5.75   3.50
"""
FOOT = "\nNOTE: The CUDA Samples are not meant for performance measurements.\n"


def found(run: ForeignRun) -> dict[str, dict[tuple[str, str], tuple[float | None, str]]]:
    """Matrix name -> pair -> value as printed, status."""
    return {
        matrix.name: {
            (cell.src, cell.dst): (cell.value and round(cell.value / PRINTED[matrix.unit], 9), cell.status)
            for cell in matrix.cells
        }
        for matrix in run.matrices
    }


def test_pairs_without_access_go_through_the_host_even_if_it_is_enabled() -> None:
    (run,) = read(HEAD + ONE_WAY + FOOT)
    name = "Unidirectional P2P=Enabled Bandwidth (P2P Writes)"
    matrices = found(run)
    assert list(matrices) == [name, f"{name}, through host", f"{name}, inside the GPU"]
    assert matrices[name]["gpu0", "gpu1"] == (40.5, "ok") and matrices[name]["gpu0", "gpu2"] == (None, "waived")
    assert matrices[f"{name}, through host"] == {
        ("gpu0", "gpu2"): (8.25, "ok"),
        ("gpu1", "gpu2"): (8.5, "ok"),
        ("gpu2", "gpu0"): (8.75, "ok"),
        ("gpu2", "gpu1"): (9, "ok"),
    }
    assert run.gpus == ("Accelerator X1", "Accelerator X2") and run.status == "ok"
    remark = only_remark(run, "no-peer-access")
    assert (remark.line, remark.facts) == (7, {"num": 4, "total": 6})


def test_device_memory_is_never_a_link() -> None:
    (run,) = read(HEAD + DISABLED + ONE_WAY + TWO_WAY + LATENCY + FOOT)
    for matrix in run.matrices:
        inside = [cell for cell in matrix.cells if cell.src == cell.dst]
        assert not inside or matrix.direction in ("local", "calls")
        assert matrix.direction in ("local", "calls") or all((cell.value or 0) < 1000e9 for cell in matrix.cells)


def test_with_access_disabled_all_pairs_go_through_the_host() -> None:
    (run,) = read(HEAD + DISABLED)
    through, inside = run.matrices
    assert (through.direction, len(through.cells), len(inside.cells)) == ("through_host", 6, 3)
    assert "through host" in through.name and translations(run) == ["inside", "host"]


def test_two_way_figures_are_sums() -> None:
    (run,) = read(HEAD + TWO_WAY)
    assert [matrix.direction for matrix in run.matrices] == ["bidirectional_sum", "through_host_sum", "local"]
    assert "sum" in translations(run)


def test_reads_are_sent_by_the_column() -> None:
    (run,) = read(HEAD + ONE_WAY.replace("Writes", "Reads"))
    matrices = found(run)
    assert matrices["Unidirectional P2P=Enabled Bandwidth (P2P Reads)"]["gpu1", "gpu0"] == (40.5, "ok")
    assert matrices["Unidirectional P2P=Enabled Bandwidth (P2P Reads), through host"]["gpu2", "gpu0"] == (8.25, "ok")


def test_latencies_of_gpu_and_host_are_separated() -> None:
    (run,) = read(HEAD + LATENCY)
    matrices = found(run)
    assert matrices["P2P=Enabled Latency (P2P Writes) GPU"]["gpu0", "gpu1"] == (2.5, "ok")
    assert matrices["P2P=Enabled Latency (P2P Writes) CPU"]["gpu2", "gpu1"] == (5.75, "ok")
    assert {matrix.unit for matrix in run.matrices} == {"s"}


def test_missing_connectivity_is_remarked() -> None:
    (run,) = read(ONE_WAY)
    assert len(run.matrices[0].cells) == 6 and codes(run) == ["no-connectivity"]
    (run,) = read(
        "\n".join(line for line in HEAD.splitlines() if "D\\D" not in line and "Matrix" not in line) + "\n" + ONE_WAY
    )
    assert found(run)["Unidirectional P2P=Enabled Bandwidth (P2P Writes)"]["gpu0", "gpu2"] == (None, "waived")


@pytest.mark.parametrize(
    ("text", "status", "code", "line"),
    [
        (HEAD + ONE_WAY[:-9], "truncated", "row-cut", 16),
        (HEAD + ONE_WAY.rpartition("     2 ")[0], "truncated", "rows-missing", 15),
        (HEAD + ONE_WAY.partition("\n")[0] + "\n" + FOOT, "truncated", "no-table", 12),
        (HEAD + ONE_WAY.replace("   8.50", "    nan"), "failed", "figures-failed", 13),
        (HEAD + ONE_WAY.replace("   8.50", "   0.00"), "failed", "figures-failed", 13),
        (HEAD + "Cuda failure p2p.cu:150: 'unspecified launch failure'\n", "failed", "tool-error", 12),
        (HEAD + ONE_WAY + "...\n" + TWO_WAY, "truncated", "lines-left-out", 17),
    ],
)
def test_damage_is_a_remark_with_its_line(text: str, status: str, code: str, line: int) -> None:
    (run,) = read(text)
    assert (run.status, failure_code(run)) == (status, code)
    assert (line, code) in located(run)


def test_a_lost_value_shifts_no_other() -> None:
    (run,) = read(HEAD + ONE_WAY.replace("     1   41.00 1510.00", "     1 1510.00"))
    matrices = found(run)
    assert matrices["Unidirectional P2P=Enabled Bandwidth (P2P Writes)"]["gpu0", "gpu1"] == (40.5, "ok")
    statuses = {cell.status for matrix in run.matrices for cell in matrix.cells if cell.src == "gpu1"}
    assert run.status == "truncated" and "unreadable" in statuses


def test_noise_between_rows_is_ignored_and_a_second_run_separated() -> None:
    text = HEAD + DISABLED + ONE_WAY + TWO_WAY + LATENCY + FOOT
    noise = "node1:77:78 [0] NCCL INFO comm 0x1\n"
    (dirty,) = read(noise + noise.join(text.splitlines(keepends=True)))
    (clean,) = read(text)
    assert found(dirty) == found(clean) and dirty.status == clean.status == "ok"
    assert [found(run) for run in read(text + text)] == [found(clean)] * 2
    bare = ONE_WAY + LATENCY
    assert len(read(bare + bare)) == 2


LINES = st.sampled_from((HEAD + DISABLED + ONE_WAY + TWO_WAY + LATENCY + FOOT).splitlines())


@settings(max_examples=150)
@given(
    st.lists(st.one_of(LINES, st.text(max_size=40), st.just("   D\\D " + " ".join(map(str, range(300))))), max_size=60)
)
def test_no_lines_make_it_raise(lines: list[str]) -> None:
    for run in read_all(READER(), [Line(number, line) for number, line in enumerate(lines, start=1)]):
        assert run.status in ("ok", "failed", "truncated") and (run.failure is None) == (run.status == "ok")
        assert sum(len(matrix.cells) for matrix in run.matrices) <= 16 * sum(map(len, lines))
