"""Tools with small outputs: what is in each log, and that no damage makes a reader raise or invent a figure."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.log_traits import log_traits
from bench.logs import archives, imports
from bench.logs.foreign import TRUNCATED, ForeignRun, Line, read_all
from bench.logs.readers import _lines
from tests.logs import corpus
from tests.logs.reading import codes, translations
from tests.logs.synthetic_figures import LOGS

TOOLS = sorted({run["tool"] for _, runs in LOGS.values() for run in runs})
READERS = {reader.tool: reader for reader in imports.readers()}
LINES = sorted({line for text, _ in LOGS.values() for line in text.splitlines() if line.strip()})


def runs_of(data: bytes) -> list[ForeignRun]:
    """The runs of a file, by whichever readers claim its lines."""
    return list(imports.runs([data], tuple(READERS.values()), _lines.results))


def rows(run: ForeignRun) -> list[list[Any]]:
    """[payload, us, GB/s of algbw, GB/s of busbw] of each row."""
    scaled = []
    for row in run.rows:
        figures = ((row.time_s, 1e6), (row.algbw_bytes_per_s, 1e-9), (row.busbw_bytes_per_s, 1e-9))
        scaled.append([row.payload_bytes, *(None if value is None else value * scale for value, scale in figures)])
    return scaled


def matrices(run: ForeignRun) -> list[list[Any]]:
    """[name, direction, [[src, dst, GB/s or us, payload]]] of each matrix."""
    found = []
    for matrix in run.matrices:
        scale = 1e6 if matrix.unit == "s" else 1e-9
        cells = [
            [cell.src, cell.dst, None if cell.value is None else cell.value * scale, cell.payload_bytes]
            for cell in matrix.cells
        ]
        found.append([matrix.name, matrix.direction, cells])
    return found


def figures(run: ForeignRun) -> list[list[Any]]:
    """[where, name, value, unit] of each figure; of a verdict its status."""
    return [[each.where, each.name, each.value, each.unit or each.status] for each in run.figures]


def close_to(wanted: Any) -> Any:
    """The same with numbers that may differ by rounding."""
    if isinstance(wanted, list):
        return [close_to(value) for value in wanted]
    return pytest.approx(wanted, rel=1e-9) if isinstance(wanted, float) else wanted


@pytest.mark.parametrize("name", LOGS)
def test_a_log_gives_what_is_in_it(name: str) -> None:
    text, wanted = LOGS[name]
    found = runs_of(text.encode())
    assert [run.tool for run in found] == [run["tool"] for run in wanted]
    for run, expected in zip(found, wanted, strict=True):
        assert (run.status, run.tool_version) == (expected.get("status", "ok"), expected.get("version"))
        assert (run.pattern, run.num_ranks) == (expected.get("pattern"), expected.get("num_ranks"))
        assert (run.failure.code if run.failure else None) == expected.get("failure")
        assert list(run.gpus) == expected.get("gpus", [])
        assert rows(run) == close_to(expected.get("rows", []))
        assert matrices(run) == close_to(expected.get("matrices", []))
        assert figures(run) == close_to(expected.get("figures", []))
        assert codes(run) == expected.get("remarks", [])
        assert translations(run) == expected.get("translations", [])


# The excerpts of other people's logs: read by eye before there was a reader.
REAL: dict[str, dict[str, Any]] = {
    "i37_nccom_test_trn.rst": {"tool": "nccom_test", "rows": [[33554432, 768.0, 43.69055481856, 43.69055481856]]},
    "i38_p2pmark.txt": {
        "tool": "p2pmark",
        "figures": [
            ["", "PCIe LINK SCORE", 0.86, "ratio"],
            ["", "DENSE INTERCONNECT SCORE", 0.44, "ratio"],
            ["", "PCIe LINK SCORE, avg", 54.3e9, "bytes_per_s"],
            ["", "PCIe LINK SCORE, PCIe 5.0 x16 theoretical", 63e9, "bytes_per_s"],
            ["", "DENSE INTERCONNECT SCORE, measured", 189.13e9, "bytes_per_s"],
            ["", "DENSE INTERCONNECT SCORE, ideal", 434.71e9, "bytes_per_s"],
        ],
    },
    "i40_deepep.txt": {
        "tool": "deepep",
        "figures": [
            ["best dispatch (FP8)", "bandwidth (RDMA)", 46.79e9, "bytes_per_s"],
            ["best dispatch (FP8)", "bandwidth (NVL)", 153.08e9, "bytes_per_s"],
            ["best dispatch (FP8)", "time", 1289e-6, "s"],
            ["best dispatch (FP8)", "notify time", 67.87e-6, "s"],
            ["best dispatch (BF16)", "bandwidth (RDMA)", 67.62e9, "bytes_per_s"],
            ["best dispatch (BF16)", "bandwidth (NVL)", 221.21e9, "bytes_per_s"],
            ["best dispatch (BF16)", "time", 1730e-6, "s"],
            ["best dispatch (BF16)", "notify time", 82.04e-6, "s"],
            ["rank 0", "Dispatch bandwidth", 1.3e9, "bytes_per_s"],
            ["rank 0", "Dispatch mean time", 5798e-6, "s"],
            ["rank 0", "Combine bandwidth", 1.78e9, "bytes_per_s"],
            ["rank 0", "Combine mean time", 8187e-6, "s"],
        ],
    },
    "i43_nixlbench.txt": {
        "tool": "nixlbench",
        "rows": [
            [4096, 4.3, 0.958841, 0.958841],
            [8192, 4.7, 1.745779, 1.745779],
            [33554432, 1427.5, 23.506385, 23.506385],
            [67108864, 2845.7, 23.582432, 23.582432],
        ],
    },
    "i47_nccl_inspector.json": {
        "tool": "nccl_inspector",
        "rows": [[17179869184, 61974.0, 277.210914, 485.119099]],
    },
    "i50_iperf3.txt": {
        "tool": "iperf3",
        "figures": [
            ["all streams", "received", 3.73e9 / 8, "bytes_per_s"],
            ["all streams", "sent", 3.78e9 / 8, "bytes_per_s"],
            ["all streams", "sent, retransmits", 1.0, "count"],
            ["stream 5", "received", 1.88e9 / 8, "bytes_per_s"],
            ["stream 7", "received", 1.85e9 / 8, "bytes_per_s"],
            ["stream 5", "sent", 1.90e9 / 8, "bytes_per_s"],
            ["stream 5", "sent, retransmits", 1.0, "count"],
            ["stream 7", "sent", 1.88e9 / 8, "bytes_per_s"],
            ["stream 7", "sent, retransmits", 0.0, "count"],
        ],
    },
}


@corpus.needs_corpus
@pytest.mark.parametrize("name", REAL)
def test_a_real_excerpt_gives_what_is_in_it(name: str) -> None:
    (run,) = runs_of(corpus.real("other_logs", name).read_bytes())
    wanted = REAL[name]
    assert (run.tool, run.status) == (wanted["tool"], "ok")
    if "rows" in wanted:
        assert rows(run) == close_to(wanted["rows"])
    if "figures" in wanted:
        assert figures(run) == close_to(wanted["figures"])


@corpus.needs_corpus
def test_the_real_copies_and_tables_are_whole() -> None:
    (cuda,) = runs_of(corpus.real("other_logs", "r20_bandwidthTest_h2d.log").read_bytes())
    (matrix,) = matrices(cuda)
    assert (cuda.status, cuda.gpus, matrix[1], len(matrix[2])) == ("ok", ("Tesla V100-PCIE-32GB",), "h2d", 81)
    assert matrix[2][0] == close_to(["host", "gpu0", 0.4, 1000])
    assert matrix[2][-1] == close_to(["host", "gpu0", 12.4, 68000000])
    (hip,) = runs_of(corpus.real("other_logs", "r22_rocm_bandwidth.log").read_bytes())
    rates, times = matrices(hip)
    assert (rates[1], len(rates[2]), times[1], len(times[2])) == ("d2h", 23, "d2h_time", 23)
    assert [cell[2] for cell in rates[2][:3]] == [None] * 3
    assert rates[2][-1] == close_to(["gpu0", "host", 27.9348, 536870912])
    assert times[2][-1] == close_to(["gpu0", "host", 19219.6, 536870912])
    (gpcnet,) = runs_of(corpus.real("other_logs", "r21_gpcnet.log").read_bytes())
    assert (gpcnet.tool_version, gpcnet.num_ranks, gpcnet.num_nodes, len(gpcnet.figures)) == ("1.3", 2, 2, 16)
    assert figures(gpcnet)[0][2:] == close_to([0.01, "s"])
    (bench,) = runs_of(corpus.real("other_logs", "r29_stas_bench_readme.md").read_bytes())
    assert (len(bench.rows), bench.status, codes(bench)) == (20, "ok", ["without-title"])
    assert rows(bench)[0] == close_to([32768, None, 0.48, 0.92])
    assert rows(bench)[-1] == close_to([1 << 34, None, 47.32, 91.69])
    (diag,) = runs_of(corpus.real("other_logs", "i49_dcgmi_diag.json").read_bytes())
    verdicts = {name: status for _, name, _, status in figures(diag)}
    assert (diag.status, len(verdicts)) == ("failed", 9)
    assert verdicts["Deployment: Persistence Mode"] == "failed"
    assert verdicts["Deployment: Environment Variables"] == "warning"
    assert sum(status == "ok" for status in verdicts.values()) == 7


@pytest.mark.parametrize("name", LOGS)
def test_a_cut_anywhere_loses_figures_and_invents_none(name: str) -> None:
    """Each cut gives a part of what the whole log gives."""
    text, _ = LOGS[name]
    whole = runs_of(text.encode())
    known = {repr(figure[:3]) for run in whole for figure in figures(run)}
    known_rows = {repr(row) for run in whole for row in rows(run)}
    known_cells = {repr(cell) for run in whole for matrix in matrices(run) for cell in matrix[2]}
    for end in (*range(0, len(text), 43), *range(max(0, len(text) - 120), len(text), 7)):
        for run in runs_of(text[:end].encode()):
            # A log that ends early keeps the last interval instead, whose figures the whole log does not keep.
            if run.tool not in ("iperf3", "ucx_perftest"):
                assert {repr(figure[:3]) for figure in figures(run)} <= known, end
            if run.tool not in ("nccom_test", "nccl_inspector", "ucx_perftest"):
                assert {repr(row) for row in rows(run)} <= known_rows, end
            if run.tool != "rocm_bandwidth_test":
                assert {repr(cell) for matrix in matrices(run) for cell in matrix[2]} <= known_cells, end


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("change", ["crlf", "colours", "mpirun", "quoted"])
def test_what_launchers_and_editors_add_changes_nothing(name: str, change: str) -> None:
    text, _ = LOGS[name]
    if change == "quoted" and text.lstrip().startswith("{"):
        pytest.skip("a quoted document is read by its lines")
    changes: dict[str, Callable[[str], str]] = {
        "crlf": lambda line: f"{line}\r",
        "colours": lambda line: f"\x1b[32m{line}\x1b[0m",
        "mpirun": lambda line: f"[1,0]<stdout>:{line}",
        "quoted": lambda line: f"> {line}",
    }
    changed = "\n".join(map(changes[change], text.splitlines())) + "\n"
    plain, dirty = runs_of(text.encode()), runs_of(changed.encode())
    assert [(run.tool, run.status, rows(run), matrices(run), figures(run)) for run in dirty] == [
        (run.tool, run.status, rows(run), matrices(run), figures(run)) for run in plain
    ]


@pytest.mark.parametrize("tool", TOOLS)
@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(LINES), st.text(max_size=80)), max_size=40))
def test_no_lines_make_a_reader_raise(tool: str, lines: list[str]) -> None:
    for run in read_all(READERS[tool](), [Line(number, line) for number, line in enumerate(lines, start=1)]):
        assert run.tool == tool and run.status in ("ok", "failed", "truncated")
        assert (run.failure is None) == (run.status == "ok")
        assert len(run.rows) <= len(lines)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(LOGS)), st.integers(0, 5000), st.binary(max_size=3))
def test_no_damaged_byte_makes_a_reader_raise(name: str, place: int, change: bytes) -> None:
    data = LOGS[name][0].encode()
    place %= len(data)
    for run in runs_of(data[:place] + change + data[place + len(change) :]):
        assert (run.failure is None) == (run.status == "ok")


@pytest.mark.parametrize("name", LOGS)
def test_only_one_reader_claims_a_line(name: str) -> None:
    for line in LOGS[name][0].splitlines():
        claimed = [tool for tool, reader in READERS.items() if reader().begins(_lines.clean(line))]
        assert len(claimed) <= 1, line


def test_hints_find_every_line_that_a_reader_claims() -> None:
    for line in LINES:
        for reader in READERS.values():
            if reader().begins(line) and reader.hints:
                assert any(hint in line.lower() for hint in reader.hints), (reader.tool, line)


def test_why_there_is_no_bound_is_declared_or_there_is_one() -> None:
    for text, wanted in LOGS.values():
        for run in wanted:
            has_bound = bool(run.get("matrices")) or run["tool"] == "all_reduce_bench" or "csv_all" in text
            assert has_bound or log_traits(run["tool"]).without_bound or "sum of" in str(run.get("figures"))


PACKERS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def read_file(path: Path) -> imports.Log:
    """One file, as `linkbench import` reads it."""
    return imports.read(imports.Source(str(path), path), imports.readers(), _lines.results)


@pytest.mark.parametrize("kind", PACKERS)
def test_a_compressed_log_is_the_log(kind: str, tmp_path: Path) -> None:
    text = LOGS["all_reduce_bench.txt"][0].encode()
    plain, packed = tmp_path / "a.txt", tmp_path / f"a.txt.{kind}"
    plain.write_bytes(text)
    packed.write_bytes(PACKERS[kind](text))
    assert read_file(packed).runs == read_file(plain).runs
    packed.write_bytes(PACKERS[kind](text[:200]) + PACKERS[kind](text[200:]))  # as `cat a.gz b.gz` leaves it
    assert read_file(packed).runs == read_file(plain).runs


@pytest.mark.parametrize("kind", PACKERS)
def test_a_damaged_archive_is_named(kind: str, tmp_path: Path) -> None:
    packed = PACKERS[kind](LOGS["all_reduce_bench.txt"][0].encode())
    path = tmp_path / f"log.{kind}"
    path.write_bytes(packed[:20] + b"\0\xff\0" + packed[23:])
    log = read_file(path)
    assert log.trouble is not None and log.trouble.code == "archive-damaged" and not log.runs
    assert log.trouble.facts["source"] == str(path) and log.is_reported


@pytest.mark.parametrize("kind", PACKERS)
def test_other_bytes_behind_an_archive_are_ignored(kind: str, tmp_path: Path) -> None:
    text = LOGS["all_reduce_bench.txt"][0].encode()
    plain, packed = tmp_path / "a.txt", tmp_path / f"a.txt.{kind}"
    plain.write_bytes(text)
    for junk in (bytes(512), b"junk behind the end\n"):
        packed.write_bytes(PACKERS[kind](text) + junk)
        assert read_file(packed).runs == read_file(plain).runs


@pytest.mark.slow
def test_the_results_before_the_cut_of_an_archive_are_read(tmp_path: Path) -> None:
    rows = LOGS["all_reduce_bench.txt"][0]
    noise = "".join(f"# {random.Random(k).random()}\n" for k in range(200_000))
    plain, packed = tmp_path / "a.txt", tmp_path / "a.txt.gz"
    plain.write_text(rows)
    packed.write_bytes(gzip.compress((rows + noise).encode())[:-1000])
    log, whole = read_file(packed), read_file(plain)
    assert log.trouble is not None and log.trouble.code == "archive-cut" and log.is_reported
    assert [run.rows for run in log.runs] == [run.rows for run in whole.runs]
    assert log.runs[-1].status == TRUNCATED


def test_an_archive_that_expands_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_ALWAYS_ALLOWED", 1 << 20)
    monkeypatch.setattr(archives, "_MOST_TIMES", 10)
    path = tmp_path / "zeros.gz"
    path.write_bytes(gzip.compress(bytes(4 << 20)))
    log = read_file(path)
    assert log.trouble is not None and log.trouble.code == "archive-too-large"


def test_a_tar_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "logs.tar.gz"
    header = b"a.txt".ljust(257, b"\0") + b"ustar"
    path.write_bytes(gzip.compress(header.ljust(512, b"\0") + LOGS["all_reduce_bench.txt"][0].encode()))
    log = read_file(path)
    assert log.trouble is not None and log.trouble.code == "file-binary"
