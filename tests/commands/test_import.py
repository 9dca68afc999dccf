"""`linkbench import` from end to end: every tool's log becomes a run that the other commands understand."""

from __future__ import annotations

import io
import json
import os
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.__main__ import main
from bench.core import plugins
from bench.logs import imports
from bench.logs import page as logs_page
from bench.logs.foreign import ForeignRow, ForeignRun, read_all
from bench.logs.readers import _lines
from bench.store import jsonl, runs
from tests.commands import import_samples as samples
from tests.facts import holds
from tests.logs import corpus

Out = pytest.CaptureFixture[str]
FOLDERS = ("nccl_logs", "nvbandwidth_logs", "p2p_logs", "osu_logs")
LOGS = corpus.path_cases(FOLDERS)
READERS = imports.readers()


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(name: str, text: str | bytes) -> str:
    """The name of a file that holds it."""
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return name


def as_json(out: Out, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of `linkbench import --format json`."""
    code = main(["import", "--format", "json", *words])
    return code, json.loads(out.readouterr().out)


def stored(folder: str = "results") -> list[tuple[str, jsonl.Attempt]]:
    """The jobs of the only run in a folder of results."""
    (run,) = Path(folder).iterdir()
    return list(runs.attempts(run)[0])


def figures(document: dict[str, Any]) -> list[Any]:
    """The contents of a log without line numbers: noise may change no other part."""
    kept = ("tool", "pattern", "num_ranks", "num_nodes", "status", "records", "matrices")
    return [[run[key] for key in kept] for run in document["runs"]]


def named(found: Iterable[ForeignRun], source: str = "a.log") -> list[tuple[str, ForeignRun]]:
    """(file, run) of each run."""
    return [(source, run) for run in found]


def document_of(text: bytes) -> dict[str, Any]:
    """As the command prints it, from the same parts."""
    found: dict[str, Any] = json.loads(logs_page.render(named(imports.runs([text], READERS, _lines.lines))))
    return found


# ---------------------------------------------------------------------------------------------------- one log


@pytest.mark.parametrize("name", samples.ALL)
def test_each_tool_s_log_is_one_document(name: str, capsys: Out) -> None:
    text, tool, status, num_rows, num_cells = samples.ALL[name]
    code, document = as_json(capsys, written("a.log", text))
    assert code == (0 if status == "ok" else 1) and document["schema"] == "bench.import/1"
    (run,) = document["runs"]
    cells = [cell for matrix in run["matrices"] for cell in matrix["cells"] if cell["status"] == "ok"]
    assert (run["tool"], run["status"], len(run["records"]), len(cells)) == (tool, status, num_rows, num_cells)
    assert (run["failure"] is None) == (status == "ok")


def test_the_document_has_the_promised_keys_and_si_units(capsys: Out) -> None:
    _, document = as_json(capsys, written("a.log", samples.NCCL))
    (run,) = document["runs"]
    assert set(run) == {
        "failure_code",
        "failure_facts",
        "source",
        "line",
        "tool",
        "tool_version",
        "pattern",
        "num_ranks",
        "num_nodes",
        "status",
        "failure",
        "hosts",
        "gpus",
        "records",
        "matrices",
        "warnings",
    }
    assert (run["pattern"], run["num_ranks"], run["num_nodes"]) == ("allreduce", 4, 2)
    assert run["hosts"] == ["alpha-1", "alpha-2"] and run["gpus"] == ["NVIDIA Model Q"]
    assert run["records"][1] == {
        "payload_bytes": 1024,
        "num_elements": 256,
        "dtype": "float32",
        "reduce_op": "sum",
        "root": None,
        "in_place": True,
        "time_s": pytest.approx(20.48e-6),
        "algbw_bytes_per_s": pytest.approx(0.05e9),
        "busbw_bytes_per_s": pytest.approx(0.07e9),
        "num_wrong": 0,
    }
    _, document = as_json(capsys, written("b.log", samples.NVBANDWIDTH))
    assert document["runs"][0]["matrices"][1]["cells"] == [
        {"src": "gpu1", "dst": "gpu0", "value": 21.5e9, "status": "ok"},
        {"src": "gpu0", "dst": "gpu1", "value": 20.5e9, "status": "ok"},
    ]


def test_json_stores_no_run_without_results(capsys: Out) -> None:
    as_json(capsys, written("a.log", samples.NCCL))
    assert not Path("results").exists()
    as_json(capsys, "a.log", "--results", "there")
    assert len(stored("there")) == 2
    assert main(["import", "a.log", "--no-store"]) == 0 and not Path("results").exists()
    assert main(["import", "a.log"]) == 0 and len(stored()) == 2


def test_rows_beyond_the_printed_ones_are_counted_and_stored(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins.load("command", "import"), "_MOST_READ", 2)
    log = written("a.log", samples.NCCL)
    assert main(["import", log]) == 0
    text = capsys.readouterr().out
    assert len([line for line in text.splitlines() if line[:1] == " "]) == 2
    more = "# 4 more rows "
    assert more in text and "`linkbench report`" in text
    assert sum(len(attempt.records) for _, attempt in stored()) == 6
    assert main(["import", log, "--no-store"]) == 0
    text = capsys.readouterr().out
    assert more in text and "bench report" not in text, "nothing was stored"
    assert main(["import", log, "--no-store", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 7


def test_a_log_may_come_from_stdin(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as end:
        end.write(samples.OSU.encode())
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        code, document = as_json(capsys, "-")
    assert code == 0 and len(document["runs"][0]["records"]) == 2


def test_several_tools_in_one_file_are_separated(capsys: Out) -> None:
    text = samples.NCCL + samples.OSU + samples.NVBANDWIDTH + samples.NCCL_CUT + "\n" + samples.P2P + samples.PERFTEST
    code, document = as_json(capsys, written("all.log", text))
    assert code == 1
    assert [(run["tool"], run["status"]) for run in document["runs"]] == [
        ("nccl_tests", "ok"),
        ("osu", "ok"),
        ("nvbandwidth", "ok"),
        ("nccl_tests", "truncated"),
        ("p2p_bandwidth_latency", "ok"),
        ("perftest", "ok"),
    ]
    assert [len(run["records"]) for run in document["runs"]] == [6, 2, 0, 4, 0, 1]


def test_utf16_and_a_byte_order_mark_are_read(capsys: Out) -> None:
    _, plain = as_json(capsys, written("a.log", samples.NCCL))
    for encoding in ("utf-16", "utf-8-sig"):
        _, document = as_json(capsys, written("b.log", samples.NCCL.encode(encoding)))
        assert figures(document) == figures(plain)


# ---------------------------------------------------------------------------------------------------- many, or none


def test_a_folder_is_searched_and_other_files_are_counted(capsys: Out) -> None:
    Path("logs/deep/.git").mkdir(parents=True)
    written("logs/deep/a.txt", samples.NCCL)
    written("logs/b.out", samples.OSU)
    written("logs/notes.md", "nothing of interest\n")
    written("logs/core", b"\x7fELF\x02\x01\x01" + bytes(range(32)) * 100)
    written("logs/deep/.git/c.txt", samples.OSU)
    assert main(["import", "logs", "--format", "json"]) == 0
    output = capsys.readouterr()
    assert [run["tool"] for run in json.loads(output.out)["runs"]] == ["osu", "nccl_tests"]
    assert "2 files" in output.err


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "file-empty"),
        (b"hello\n", "not-recognised"),
        (bytes(range(32)) * 9, "file-binary"),
        (b"PK\x03\x04\x0a\0\0\0\0\0" + b"a.log" + samples.NCCL.encode() + b"PK\x01\x02", "file-binary"),
    ],
)
def test_a_file_that_gives_nothing_is_one_sentence_and_exit_2(content: bytes, code: str, capsys: Out) -> None:
    assert main(["import", written("x.log", content)]) == 2
    output = capsys.readouterr()
    assert "x.log" in output.err and output.err.count("\n") == 1 and not Path("results").exists()
    assert main(["import", "x.log", written("a.log", samples.NCCL), "--format", "json", "--results", "there"]) == 1
    output = capsys.readouterr()
    assert "x.log" in output.err and len(json.loads(output.out)["runs"]) == 1
    (run,) = Path("there").iterdir()
    (trouble,) = json.loads((run / "plan.json").read_text())["troubles"]
    assert (trouble["source"], trouble["code"]) == ("x.log", code)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["no-such"], "no-such"),
        (["empty"], "empty"),
        (["a.log", "--num-ranks", "0"], "--num-ranks"),
        (["a.log", "--instance", "p4d.25xlarge"], "p4d.24xlarge"),
        (["a.log", "--cluster", "nowhere"], "nowhere"),
    ],
)
def test_impossible_arguments_are_named(words: list[str], sentence: str, capsys: Out) -> None:
    Path("empty").mkdir()
    written("a.log", samples.NCCL)
    assert main(["import", *words]) == 2
    assert sentence in capsys.readouterr().err and not Path("results").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_does_not_affect_the_others(capsys: Out) -> None:
    Path("logs").mkdir()
    written("logs/a.log", samples.NCCL)
    Path(written("logs/b.log", samples.OSU)).chmod(0)
    assert main(["import", "logs", "--format", "json"]) == 1
    output = capsys.readouterr()
    assert "logs/b.log" in output.err and len(json.loads(output.out)["runs"]) == 1


# ---------------------------------------------------------------------------------------------------- in our store


def test_rows_become_records_with_our_factors_and_the_printed_figures() -> None:
    assert main(["import", written("a.log", samples.NCCL)]) == 0
    (name, apart), (other, in_place) = stored()
    assert (name, other) == ("a-allreduce", "a-allreduce-in-place")
    header = apart.header
    assert (header.pattern, header.transport, header.dtype, header.reduce_op) == (
        "allreduce",
        "nccl_tests",
        "float32",
        "sum",
    )
    assert (header.num_ranks, header.num_nodes, header.ranks_per_node) == (4, 2, 2)
    assert list(header.nodes) == ["alpha-1", "alpha-2"] and header.versions["nccl"].startswith("2.21.5")
    stored_facts = header.imported
    assert (stored_facts["tool"], stored_facts["source"], stored_facts["line"], stored_facts["status"]) == (
        "nccl_tests",
        "a.log",
        2,
        "ok",
    )
    assert len(stored_facts["sha256"]) == 64 and stored_facts["failure"] is None
    last = apart.records[-1]
    printed = {"mean_s": 1e-4, "algbw_bytes_per_s": 10.49e9, "busbw_bytes_per_s": 15.73e9}
    assert dict(last.reported or {}) == pytest.approx(printed)
    assert (last.bus_factor, last.rank_bytes, last.node_bytes) == (1.5, 1.5 * 2**20, 2**20)
    assert last.verified is True and last.num_wrong == 0 and last.samples is None
    assert all(record.in_place for record in in_place.records)


def test_wrong_elements_show_invalid_and_a_failed_run_shows_why(capsys: Out) -> None:
    assert main(["import", written("a.log", samples.NCCL_WRONG), "--format", "csv"]) == 1
    capsys.readouterr()
    assert main(["report"]) == 0
    shown = capsys.readouterr().out
    assert "INVALID" in shown and "FAILED" in shown and "allreduce over nccl_tests" in shown
    records = stored()[0][1].records
    assert records[2].verified is False and records[2].num_wrong == 7
    failed = records[-1].failed
    assert failed is not None and (failed.code, failed.facts["values"]) == ("out-of-bounds", 1)


def test_a_cut_or_crashed_run_is_stored_with_its_reason(capsys: Out) -> None:
    for text in (samples.NCCL_CUT, samples.NCCL_CRASHED):
        assert main(["import", written("a.log", text), "--results", "there"]) == 1
        shown = capsys.readouterr().out
        assert "FAILED" in shown and "allreduce over nccl_tests" in shown
    cut = stored_of("there", "truncated").header.imported
    assert cut["failure_code"] == "whole-row-cut" and cut["failure_facts"] == {"line": 16}
    assert (16, "whole-row-cut") in [(remark["line"], remark["code"]) for remark in cut["remarks"]]
    crashed = stored_of("there", "failed")
    assert crashed.header.imported["failure_code"] == "tool-error"
    failed = crashed.records[-1].failed
    assert failed is not None and failed.code == "tool-error" and "cuda error" in failed.facts["printed"]


def stored_of(folder: str, status: str) -> jsonl.Attempt:
    """The first job of a folder whose run ended so."""
    found = [attempt for run in sorted(Path(folder).iterdir()) for _, attempt in runs.attempts(run)[0]]
    return next(attempt for attempt in found if attempt.header.imported["status"] == status)


def test_an_imported_row_is_marked_everywhere(capsys: Out) -> None:
    assert main(["import", written("a.log", samples.NCCL)]) == 0
    table = capsys.readouterr().out
    assert "  100.0   10.49   15.73      - m         0" in table
    assert main(["report", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["summaries"]
    assert all(row["imported"] and row["median_s"] is None and "imported" in row["flags"] for row in rows)
    assert rows[2]["mean_s"] == pytest.approx(1e-4) and rows[2]["busbw_bytes_per_s"] == pytest.approx(15.73e9)
    assert rows[2]["compat"]["nccl_tests_s"] == pytest.approx(1e-4)
    assert main(["report", "--format", "markdown"]) == 0
    page = capsys.readouterr().out
    assert "imported" in page and "ci95" not in page


def test_an_instance_bounds_the_rows_and_wire_is_what_leaves_a_node(capsys: Out) -> None:
    assert main(["import", written("a.log", samples.NCCL), "--instance", "p4d.24xlarge", "--show", "wire"]) == 0
    assert "wire" in capsys.readouterr().out
    assert main(["report", "--format", "json"]) == 0
    row = json.loads(capsys.readouterr().out)["summaries"][2]
    # Two nodes: S leaves each, whatever the factor of four ranks is.
    assert row["wire_bytes_per_s"] == pytest.approx(10.49e9) and row["bound_name"] == "NIC as used"
    assert row["bound_fraction"] == pytest.approx(15.73e9 / row["bound_bytes_per_s"])
    written("bench.yaml", "clusters:\n  mine: {instance: p4d.24xlarge, nodes: 2}\n")
    assert main(["import", "a.log", "--cluster", "mine", "--results", "there", "--config", "bench.yaml"]) == 0
    assert stored("there")[0][1].header.links == stored()[0][1].header.links != {}


def test_more_ranks_on_a_node_than_it_has_gpus_are_refused(capsys: Out) -> None:
    crowded = samples.NCCL.replace("alpha-2", "alpha-1")
    assert main(["import", written("a.log", crowded), "--instance", "g4dn.12xlarge"]) == 0
    assert main(["import", "a.log", "--instance", "Standard_NC80adis_H100_v5", "--results", "there"]) == 2
    assert holds(capsys.readouterr().err, "Standard_NC80adis_H100_v5", "2 GPUs", "4") and not Path("there").exists()


def test_blocks_need_the_number_of_ranks(capsys: Out) -> None:
    code, document = as_json(capsys, written("a.log", samples.OSU_BLOCKS))
    assert code == 0 and document["runs"][0]["records"][0]["payload_bytes"] is None
    _, document = as_json(capsys, "a.log", "--num-ranks", "4", "--num-nodes", "2")
    assert document["runs"][0]["records"][0]["payload_bytes"] == 4096
    assert main(["import", "a.log"]) == 0 and "--num-ranks" in capsys.readouterr().out
    skipped = stored()[0][1].records[0].skipped
    assert skipped is not None and (skipped.code, skipped.facts["size"]) == ("size-is-block", 1024)
    assert main(["import", "a.log", "--num-ranks", "4", "--results", "there"]) == 0
    record = stored("there")[0][1].records[0]
    # busbw follows from the mean, by our definition: S (n-1)/n in 8 us.
    assert record.payload_bytes == 4096 and record.reported is not None
    assert record.reported["busbw_bytes_per_s"] == pytest.approx(4096 * 0.75 / 8e-6)


def test_matrices_become_pairs_and_sums_are_halved(capsys: Out) -> None:
    log = written("a.log", samples.P2P)
    assert main(["import", log, "--instance", "g4dn.12xlarge", "--format", "json", "--results", "r"]) == 0
    found = {attempt.header.facts["matrix"]: attempt for _, attempt in stored("r")}
    one_way = found["Unidirectional P2P=Enabled Bandwidth (P2P Writes)"]
    assert one_way.header.pattern == "peer_copy" and one_way.header.num_ranks == 2
    assert [(row.src, row.dst, row.group) for row in one_way.records] == [(0, 1, "gpu0>gpu1"), (1, 0, "gpu1>gpu0")]
    both = found["Bidirectional P2P=Enabled Bandwidth"].records[0]
    assert both.reported == {"algbw_bytes_per_s": 40.5e9, "busbw_bytes_per_s": 20.25e9}
    assert {attempt.header.pattern for attempt in found.values()} == {"peer_copy", "local_copy"}


def test_waived_cells_are_skipped_with_the_reason(capsys: Out) -> None:
    text = (
        samples.P2P.replace(" CAN Access", " CANNOT Access")
        .replace("0\t     1     1", "0\t     1     0")
        .replace("1\t     1     1", "1\t     0     1")
    )
    assert main(["import", written("a.log", text)]) == 0
    skipped = [record.skipped for _, attempt in stored() for record in attempt.records if record.skipped]
    assert {skip.code for skip in skipped} == {"path-waived"}
    assert {"src": "gpu0", "dst": "gpu1", "tool": "p2p_bandwidth_latency"} in [skip.facts for skip in skipped]


def test_a_contradiction_is_remarked_and_kept_as_printed(capsys: Out) -> None:
    assert main(["import", written("a.log", samples.NCCL.replace("100.0   10.49", "150.0   10.49"))]) == 0
    remarks = stored()[0][1].header.imported["remarks"]
    assert (16, "not-size-by-time") in [(remark["line"], remark["facts"].get("reason_code")) for remark in remarks]
    reported = stored()[0][1].records[2].reported
    assert reported is not None and reported["mean_s"] == pytest.approx(150e-6)
    assert reported["algbw_bytes_per_s"] == pytest.approx(10.49e9)


@pytest.mark.parametrize(
    ("printed", "instead"),
    [
        ("100.0   10.49", "10.0   10.49"),
        ("100.0   10.49", "101.0   10.49"),
        ("10.49   15.73", "10.49   15.93"),
        ("10.49   15.73", "10.94   15.73"),
        ("1048576        262144", "1048577        262144"),
        ("sum      -1    100.0", "sum       1    100.0"),
    ],
)
def test_a_row_that_contradicts_itself_is_flagged_and_the_gate_fails(printed: str, instead: str, capsys: Out) -> None:
    text = samples.NCCL.replace(printed, instead)
    main(["import", written("a.log", text[: text.index("# Avg")])])
    flagged = [record for _, attempt in stored() for record in attempt.records if "contradicts" in record.flags]
    assert flagged and {record.payload_bytes // 1024 for record in flagged} == {1024}
    capsys.readouterr()
    rule = "rules:\n  - {name: all, patterns: [allreduce], imported: true, busbw: at least 1 MB/s}\n"
    assert main(["gate", "latest", "--rules", written("rules.yaml", rule)]) == 1
    assert "contradicts" in capsys.readouterr().out


def test_compare_gives_a_ratio_and_no_verdict(capsys: Out) -> None:
    slower = samples.NCCL.replace("100.0   10.49   15.73", "200.0    5.24    7.86").replace("5.79", "4.48")
    assert main(["import", written("a.log", samples.NCCL), "--results", "a"]) == 0
    assert main(["import", written("b.log", slower), "--results", "b"]) == 0
    (base,), (new,) = Path("a").iterdir(), Path("b").iterdir()
    capsys.readouterr()
    assert main(["compare", str(base), str(new), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["verdict"] for row in document["rows"]} == {"imported"} and len(document["rows"]) == 6
    assert max(row["ratio"] for row in document["rows"]) == pytest.approx(2.0)


def test_lint_lists_the_rules_that_do_not_apply(capsys: Out) -> None:
    assert main(["import", written("a.log", samples.NCCL), "--instance", "p4d.24xlarge"]) == 0
    capsys.readouterr()
    assert main(["lint", "--format", "json"]) == 0
    findings = {one["rule"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert {rule for rule, one in findings.items() if one["status"] == "not applicable"} == {
        2,
        3,
        5,
        6,
        8,
        9,
        10,
        12,
        13,
        14,
        15,
    }


def test_plots_are_marked_as_imported(capsys: Out) -> None:
    assert main(["import", written("a.log", samples.NCCL)]) == 0
    assert main(["plot"]) == 0
    (picture,) = Path("plots").rglob("bandwidth.svg")
    assert picture.stat().st_size > 10_000
    assert main(["import", written("b.log", samples.P2P), "--results", "p"]) == 0
    assert main(["plot", "--results", "p", "--plots", "q", "--figure-format", "svg"]) == 0
    assert list(Path("q").rglob("pairs-*.svg"))


def test_an_imported_run_cannot_be_resumed(capsys: Out) -> None:
    assert main(["import", written("a.log", samples.NCCL)]) == 0
    (run,) = Path("results").iterdir()
    assert main(["run", "--resume", str(run)]) == 2 and "imported" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------- whole logs


def by_hand(path: Path) -> list[ForeignRun]:
    """The runs that the reader of the folder's tool finds by itself."""
    tool = {"nccl": "nccl_tests", "nvbandwidth": "nvbandwidth", "p2p": "p2p_bandwidth_latency", "osu": "osu"}
    reader = plugins.load("tool", tool[path.parent.name.removesuffix("_logs")]).READER
    return read_all(reader(), _lines.lines([path.read_bytes()]))


@pytest.mark.thin(4)
@pytest.mark.parametrize("path", LOGS)
def test_the_command_prints_what_the_reader_of_a_log_finds(path: Path, capsys: Out) -> None:
    code, document = as_json(capsys, str(path))
    expected = by_hand(path)
    assert document == json.loads(logs_page.render(named(expected, str(path))))
    well = all(run.status == "ok" and not any(row.num_wrong for row in run.rows) for run in expected)
    assert code == (0 if well else 1)


# busbw / algbw of n ranks for OSU, which prints times only: the definitions of docs/metrics.md, repeated
FACTORS: dict[str | None, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "reducescatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "pingpong": lambda n: 1.0,
}


def busbw_of(row: ForeignRow, run: ForeignRun) -> float | None:
    """The printed figure, or the one that follows from a printed time."""
    if row.busbw_bytes_per_s is not None or not row.time_s or not row.payload_bytes or run.num_ranks is None:
        return row.busbw_bytes_per_s
    return row.payload_bytes / row.time_s * FACTORS[run.pattern](run.num_ranks) if run.pattern in FACTORS else None


NOT_A_NUMBER = {
    "busbw": ("10.49   15.73", "10.49     {}"),
    "algbw": ("10.49   15.73", "  {}   15.73"),
    "time": ("100.0   10.49", "  {}   10.49"),
    "time, algbw": ("100.0   10.49", "{}  {}"),
}


@pytest.mark.thin(3)
@pytest.mark.parametrize("word", ["nan", "inf", "-nan", "-inf"])
@pytest.mark.parametrize("names", NOT_A_NUMBER)
def test_a_figure_that_is_no_number_fails_and_replaces_none(names: str, word: str) -> None:
    found, broken = NOT_A_NUMBER[names]
    assert main(["import", written("a.log", samples.NCCL.replace(found, broken.replace("{}", word)))]) == 1
    (_, attempt), _ = stored()
    record = attempt.records[2]
    assert record.failed is not None and record.reported is None and record.payload_bytes == 1 << 20
    assert record.failed.code == "unreadable-figure"
    assert record.failed.facts == {"line": 16, "figures": names.split(", ")}
    assert attempt.header.imported["status"] == "failed"
    (run,) = Path("results").iterdir()
    rule = "rules:\n  - {name: all, patterns: [allreduce], sizes: 1M, imported: true, busbw: at least 1 MB/s}\n"
    assert main(["gate", str(run), "--rules", written("rules.yaml", rule)]) == 1


@pytest.mark.thin(2)
@pytest.mark.parametrize("path", LOGS)
def test_every_figure_of_a_log_is_stored(path: Path, capsys: Out) -> None:
    main(["import", str(path)])
    records = [record for _, attempt in stored() for record in attempt.records]
    expected = by_hand(path)
    printed = sorted(
        (row.payload_bytes or 0, row.in_place, row.time_s or -1, busbw_of(row, run) or -1)
        for run in expected
        for row in run.rows
    )
    kept = sorted(
        (
            record.payload_bytes,
            record.in_place,
            record.reported.get("mean_s") or -1,
            record.reported.get("busbw_bytes_per_s") or -1,
        )
        for record in records
        if record.reported and record.group == "world"
    )
    assert kept == [pytest.approx(row, rel=1e-12) for row in printed]
    cells = [cell for run in expected for matrix in run.matrices for cell in matrix.cells]
    assert sum(record.group != "world" for record in records) == len(cells)
    failed = any(run.status != "ok" for run in expected) or any(cell.status not in ("ok", "waived") for cell in cells)
    assert any(record.failed for record in records) is failed


# ---------------------------------------------------------------------------------------------------- noise

INFO = b"gamma-3:4711:4799 [2] NCCL INFO Channel 03/0 : 5[5] -> 2[2] via P2P/CUMEM\n"


def lined(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """A change of every line."""
    return lambda text: b"".join(map(change, text.splitlines(keepends=True)))


NOISE: dict[str, Callable[[bytes], bytes]] = {
    "mpirun's tags": lined(lambda line: b"[1,0]<stdout>:" + line),
    "srun's labels": lined(lambda line: b"0: " + line),
    "time stamps and tags": lined(lambda line: b"2026-01-02T03:04:05.678Z [1,0]<stdout>: " + line),
    "CRLF": lambda text: text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
    "colours": lined(lambda line: b"\x1b[32m" + line.rstrip(b"\n") + b"\x1b[0m\n"),
    "indentation": lined(lambda line: b"    " + line),
    "a pod's name before a tag": lined(lambda line: b"[pod/bench-worker-0/main] [1,3]<stdout>:" + line),
    "colours, tags, CRLF": lined(lambda line: b"[1,0]<stdout>:\x1b[32m" + line.rstrip(b"\r\n") + b"\x1b[0m\r\n"),
}


def logs_of_all_tools() -> Iterator[tuple[str, bytes]]:
    """Samples, and whole logs."""
    yield from ((name, text.encode()) for name, (text, *_) in samples.ALL.items())
    yield from ((path.name, path.read_bytes()) for path in corpus.paths(FOLDERS))


@cache
def plain_figures(text: bytes) -> list[Any]:
    """The contents of a log without noise, for all kinds of noise."""
    return figures(document_of(text))


_USUAL_NOISE = ("CRLF", "colours, tags, CRLF")


@pytest.mark.parametrize(
    "noise", [noise if noise in _USUAL_NOISE else pytest.param(noise, marks=pytest.mark.slow) for noise in NOISE]
)
def test_noise_on_every_line_changes_no_row(noise: str) -> None:
    for name, text in logs_of_all_tools():
        assert figures(document_of(NOISE[noise](text))) == plain_figures(text), name


def test_the_library_s_messages_between_lines_change_no_row() -> None:
    texts = [
        (name, text) for name, text in logs_of_all_tools() if b"nvbandwidth" not in text and b"NCCL INFO" not in text
    ]
    for name, text in texts:
        assert figures(document_of(lined(lambda line: line + INFO)(text))) == plain_figures(text), name


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_where_chunks_end_changes_nothing(sizes: list[int]) -> None:
    on_one_line = json.dumps(json.loads(samples.NVBANDWIDTH_JSON)) + "\n"  # its name is far before its end
    text = (samples.OSU + samples.NCCL + on_one_line + samples.P2P + samples.NVBANDWIDTH).encode()
    chunks, at, turn = [], 0, 0
    while at < len(text):
        chunks.append(text[at : at + sizes[turn % len(sizes)]])
        at, turn = at + len(chunks[-1]), turn + 1
    assert json.loads(logs_page.render(named(imports.runs(chunks, READERS, _lines.lines)))) == document_of(text)


# ---------------------------------------------------------------------------------------------------- anything at all

ALL_LINES = [line.encode() for text, *_ in samples.ALL.values() for line in text.splitlines(keepends=True)]
PIECES = [
    b"#",
    b"nan",
    b"inf",
    b"N/A",
    b"-1",
    b"9" * 400,
    b"1e999",
    b"\x1b[31m",
    b"\r",
    b"\n",
    b"\0",
    b"{",
    b'"',
    b"[",
    b"\xff",
]
MANGLED = st.lists(
    st.one_of(st.sampled_from(ALL_LINES), st.sampled_from(PIECES), st.binary(max_size=12)), max_size=60
).map(b"".join)


def imported(text: bytes, form: str) -> int:
    """The exit code of the whole command on stdin; what it prints as JSON is one document."""
    out = io.StringIO()
    before, sys.stdin, sys.stdout = (sys.stdin, sys.stdout), io.TextIOWrapper(io.BytesIO(text)), out
    try:
        code = main(["import", "-", "--no-store", "--format", form, "--num-nodes", "2", "--instance", "p4d.24xlarge"])
    finally:
        sys.stdin, sys.stdout = before
    if form == "json":
        json.loads(out.getvalue())
    return code


@pytest.mark.slow
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(MANGLED, st.binary(max_size=400)), st.sampled_from(["json", "table", "csv", "markdown"]))
def test_no_input_crashes_the_command(text: bytes, form: str) -> None:
    assert imported(text, form) in (0, 1, 2)


WITHOUT_END = b"        1024           256     float     sum      -1    20.00    0.05\n"
DEVICE = b"#  Rank  0 Group  0 Pid   1100 on  alpha-1 device  0 [0x17] NVIDIA Model Q\n"
TITLE = b"nvbandwidth Version: v0.6\nRunning host_to_device_memcpy_ce.\n"
TITLE += b"memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n"
# Inputs that fuzzing found, reduced.
FOUND = {"a number below a table of perftest's that is not read": b"#bytes #iterations t_foo[usec]\n7\n"}


@pytest.mark.parametrize("name", FOUND)
def test_earlier_crashes_stay_fixed(name: str) -> None:
    assert imported(FOUND[name], "json") in (0, 1, 2)


HOSTILE = {
    "one long line": b"8 2 float sum -1 " * 60_000,
    "digits": b"9" * 1_000_000,
    "brackets": b"{" * 1_000_000,
    "open strings": b'{"nvbandwidth": {"' + b"x" * 1_000_000,
    "tags": b"[1,0]<stdout>:" * 70_000,
    "colours": b"\x1b[" * 500_000,
    "carriage returns": b"\r" * 1_000_000,
    "empty lines": b"\n" * 200_000,
    "rows without end": samples.NCCL.encode() + WITHOUT_END * 15_000,
    "devices": samples.NCCL.encode()[:400] + DEVICE * 13_000,
    "noise": bytes(range(32, 256)) * 4_500,
    "a wide matrix": TITLE + b" 0" * 400_000 + b"\n 0" + b" 25.10" * 30_000 + b"\n",
}


_USUAL_HOSTILE = ("one long line", "open strings", "devices")  # the others take long and behave like these


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    "name", [name if name in _USUAL_HOSTILE else pytest.param(name, marks=pytest.mark.slow) for name in HOSTILE]
)
def test_memory_is_a_few_times_the_input(name: str) -> None:
    text = HOSTILE[name]
    imported(b"", "json")  # modules that are loaded once are not counted
    tracemalloc.start()
    try:
        imported(text, "json")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(text) + 4e6


def test_a_run_names_its_file_and_line(capsys: Out) -> None:
    paths = [written("a.log", "noise\n" + samples.NCCL), written("b.log", samples.OSU)]
    code, document = as_json(capsys, *paths)
    assert code == 0
    assert [run["source"] for run in document["runs"]] == paths
    assert document["runs"][0]["line"] == next(by_lines("noise\n" + samples.NCCL)).line


def by_lines(text: str) -> Iterator[ForeignRun]:
    return imports.runs([text.encode()], READERS, _lines.lines)


def test_an_ignored_number_of_ranks_is_reported(capsys: Out) -> None:
    words = ["import", written("a.log", samples.NCCL), "--no-store", "--num-ranks"]
    assert main([*words, "2"]) == 0
    output = capsys.readouterr().err
    assert "--num-ranks 2" in output and "(4)" in output
    assert main([*words, "4"]) == 0
    assert "--num-ranks" not in capsys.readouterr().err


def test_nodes_that_do_not_divide_the_ranks_are_refused(capsys: Out) -> None:
    text = "".join(line for line in samples.NCCL.splitlines(keepends=True) if not line.startswith("#  Rank"))
    words = ["import", written("a.log", text), "--no-store", "--num-ranks", "4", "--num-nodes"]
    for form in ("table", "json"):
        assert main([*words, "3", "--format", form]) == 2
        output = capsys.readouterr().err
        assert "--num-nodes 3" in output and "4 ranks" in output
    assert main([*words, "2"]) == 0


@pytest.mark.parametrize("content", ["", "nothing that is known\n", None])
def test_json_without_runs_is_a_document_of_import(content: str | None, capsys: Out) -> None:
    name = "nowhere.log" if content is None else written("a.log", content)
    code, document = as_json(capsys, name)
    assert (code, document) == (2, {"schema": "bench.import/1", "runs": []})
