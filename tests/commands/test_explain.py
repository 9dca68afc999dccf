"""`explain` from end to end: logs, pipes, stored runs, formats, exit codes. All logs are made up."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.explain.messages import ResultVerdict
from bench.logs.foreign import ForeignRow
from tests.explain.logs import SIZES, curve
from tests.facts import holds

ROOT = Path(__file__).resolve().parent.parent.parent
[REFERENCE] = (ROOT / "results" / "reference").glob("main_*")

Out = pytest.CaptureFixture[str]

_COLUMNS = "     time   algbw   busbw #wrong"
_UNITS = "     (us)  (GB/s)  (GB/s)       "


def log(
    rows: Sequence[ForeignRow], gpu: str | None = None, num_ranks: int = 8, num_nodes: int = 1, wrong: int = 0
) -> str:
    """The text of nccl-tests for these rows."""
    lines = ["# nThread 1 nGpus 1 minBytes 8 maxBytes 17179869184 step: 2(factor) warmup iters: 5 iters: 20", "#"]
    if gpu:
        lines.append("# Using devices")
        for rank in range(num_ranks):
            host = f"box{rank * num_nodes // num_ranks}"
            lines.append(f"#  Rank {rank:2} Group  0 Pid {100 + rank:6} on {host:>10} device {rank % 8:2} [0x1b] {gpu}")
    lines += [
        "#",
        f"#{'out-of-place':>75}{'in-place':>34}",
        f"#       size         count      type   redop    root{_COLUMNS}{_COLUMNS}",
        f"#        (B)    (elements)                          {_UNITS}{_UNITS}",
    ]
    for row in rows:
        half = f"{(row.time_s or 0) * 1e6:8.1f} {(row.algbw_bytes_per_s or 0) / 1e9:7.2f} "
        half += f"{(row.busbw_bytes_per_s or 0) / 1e9:7.2f} {wrong:6}"
        lines.append(f"{row.payload_bytes:12} {row.num_elements:13}     float     sum      -1 {half} {half}")
    rates = [(row.busbw_bytes_per_s or 0) / 1e9 for row in rows]
    lines += [
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {sum(rates) / len(rates):.4f}",
        "#",
    ]
    return "\n".join(lines) + "\n"


def log_file(tmp_path: Path, text: str) -> str:
    file = tmp_path / "some.log"
    file.write_text(text)
    return str(file)


def text_page(tmp_path: Path, capsys: Out, text: str, *options: str) -> tuple[int, str]:
    """Exit code and page of a log."""
    code = main(["explain", log_file(tmp_path, text), *options])
    return code, capsys.readouterr().out


def json_page(tmp_path: Path, capsys: Out, text: str, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the only page of a log, as JSON."""
    code, out = text_page(tmp_path, capsys, text, *options, "--format", "json")
    [page] = json.loads(out)["pages"]
    return code, page


def codes(page: dict[str, Any], section: str) -> list[str]:
    return [line["code"] for line in page[f"{section}_codes"]]


def reason_codes(page: dict[str, Any]) -> list[str]:
    return [reason["code"] for reason in page["reasons"]]


def test_a_normal_result_has_four_sections_and_no_next_steps(tmp_path: Path, capsys: Out) -> None:
    code, page = text_page(tmp_path, capsys, log(curve("allreduce", 8, 482.0), "NVIDIA H100 80GB HBM3"))
    assert code == 0
    order = [
        "# NORMAL: allreduce, 8 ranks on 1 node, by nccl-tests",
        "What you got",
        "What is possible",
        "What others got",
    ]
    positions = [page.index(part) for part in order]
    assert positions == sorted(positions)
    assert "do next" not in page and "not more" not in page


def test_a_pipe_is_read_and_the_machine_is_named(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    text = log(curve("allreduce", 8, 366.0))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["explain", "-", "--instance", "p5.48xlarge", "--format", "json"]) == 0
    [page] = json.loads(capsys.readouterr().out)["pages"]
    assert (page["num_ranks"], page["num_nodes"], page["standing_code"]) == (8, 1, "low")
    assert reason_codes(page)[0] == "no-nvls" and page["reasons"][0]["command"].endswith("| linkbench explain -")


def test_on_an_unknown_machine_the_page_says_where_it_is_normal_and_what_to_give(tmp_path: Path, capsys: Out) -> None:
    code, page = json_page(tmp_path, capsys, log(curve("allreduce", 8, 366.0)))
    assert (code, page["standing_code"], page["because_code"]) == (0, "normal-if", "normal-on-machines")
    assert len(page["because_facts"]["machines"]) == 3
    assert "--instance" in page["because"]
    first = page["others_codes"][0]["facts"]
    assert first["elsewhere"] and first["rate"] == pytest.approx(846e9, rel=0.001)


def test_wrong_data_come_first_and_nothing_else_counts(tmp_path: Path, capsys: Out) -> None:
    rows = curve("allreduce", 8, 482.0)
    code, page = json_page(tmp_path, capsys, log(rows, "NVIDIA H100 80GB HBM3", wrong=17))
    assert (code, page["standing_code"], page["because_code"]) == (1, "failed", "wrong-data")
    assert codes(page, "got")[0] == "wrong-data" and "best-row" not in codes(page, "got")
    facts = page["got_codes"][0]["facts"]
    assert (facts["num_wrong_rows"], facts["num_rows"], facts["num_wrong"]) == (64, 64, 17)
    assert reason_codes(page) == ["wrong-data"] and page["best"] is None


def test_above_a_hard_bound_is_an_error_with_its_derivation(tmp_path: Path, capsys: Out) -> None:
    code, page = json_page(tmp_path, capsys, log(curve("allreduce", 8, 320.0)), "--instance", "p4d.24xlarge")
    assert (code, page["standing_code"], page["because_code"]) == (1, "above", "above-bound")
    facts = page["because_facts"]
    assert (facts["bound"], facts["bound_rate"]) == ("NVLink port", 300e9) and "300 GB/s" in facts["bound_why"]


def test_above_a_reference_is_no_error(tmp_path: Path, capsys: Out) -> None:
    code, page = json_page(tmp_path, capsys, log(curve("allreduce", 8, 480.0)), "--instance", "a3-ultragpu-8g")
    shares = [line["facts"]["share"] for line in page["possible_codes"]]
    assert code == 0 and max(shares) == pytest.approx(1.07, abs=0.005) and codes(page, "remarks") == ["above-port"]


def test_the_number_of_ranks_can_be_given(tmp_path: Path, capsys: Out) -> None:
    text = "# Collective test starting: sendrecv_perf\n" + log(curve("sendrecv", 8, 235.0)).replace("sum", "none")
    code, page = json_page(tmp_path, capsys, text, "--instance", "p4d.24xlarge")
    assert code == 0 and page["because_code"] == "num-ranks-unknown" and "--num-ranks" in page["because"]
    _, page = json_page(tmp_path, capsys, text, "--instance", "p4d.24xlarge", "--num-ranks", "8")
    assert (page["title"].split(",")[0], page["num_ranks"]) == ("sendrecv", 8) and page["standing_code"] == "normal"


def test_a_number_of_ranks_that_contradicts_the_log_is_ignored_with_a_warning(tmp_path: Path, capsys: Out) -> None:
    file = log_file(tmp_path, log(curve("allreduce", 8, 230.0), "NVIDIA H200"))
    main(["explain", file, "--num-ranks", "4"])
    printed = capsys.readouterr()
    assert "bench: --num-ranks 4" in printed.err and "(8)" in printed.err
    assert "8 ranks" in printed.out
    main(["explain", file, "--num-ranks", "8"])
    assert "--num-ranks" not in capsys.readouterr().err


def test_json_holds_every_section_in_si_units(tmp_path: Path, capsys: Out) -> None:
    text, verdict = log(curve("allreduce", 16, 92.2), "NVIDIA H200", 16, 2), ResultVerdict.FAR_TOO_LOW
    code, out = text_page(tmp_path, capsys, text, "--format", "json")
    document = json.loads(out)
    (page,) = document["pages"]
    assert (code, document["schema"]) == (0, "bench.explain/1")
    assert (page["num_ranks"], page["num_nodes"]) == (16, 2)
    assert (page["standing"], page["standing_code"]) == (verdict.template, verdict)
    assert page["best"]["busbw_bytes_per_s"] == pytest.approx(92.2e9, rel=0.01)
    assert page["bound"]["bytes_per_s"] == pytest.approx(400e9) and page["share"] == pytest.approx(0.23, abs=0.001)
    reason = page["reasons"][0]
    assert reason["code"] == "fewer-nics" and reason["facts"]["nics"] == "one 400 Gb/s NIC"
    assert reason["what"] and reason["evidence"] and reason["step"] and reason["command"]
    for section in ("got", "possible", "others", "remarks"):
        assert len(page[section]) == len(page[f"{section}_codes"])


def test_the_keys_and_words_of_older_consumers_stay(tmp_path: Path, capsys: Out) -> None:
    _, page = json_page(tmp_path, capsys, log(curve("allreduce", 7, 1.0)))
    assert page["standing"] == "can not be judged"
    assert set(page) >= {
        "title",
        "line",
        "got",
        "possible",
        "others",
        "because",
        "ratio",
        "remarks",
        "machine",
        "source",
    }


def test_markdown_has_headings_and_commands_in_code(tmp_path: Path, capsys: Out) -> None:
    options = ("--format", "markdown", "--instance", "p5.48xlarge")
    _, page = text_page(tmp_path, capsys, log(curve("allreduce", 8, 366.0)), *options)
    assert page.startswith("# LOW: ") and "1. **NVLS is off" in page and "`NCCL_DEBUG=INFO" in page


def test_what_nccl_prints_between_the_rows_is_evidence(tmp_path: Path, capsys: Out) -> None:
    text = log(curve("allreduce", 16, 3.0), "NVIDIA H100 80GB HBM3", 16, 2)
    with_hint = text.replace("#\n#  ", "box0:1:2 [0] NCCL INFO Using network Socket\n#\n#  ", 1)
    assert with_hint != text
    _, page = json_page(tmp_path, capsys, with_hint, "--instance", "p5.48xlarge")
    assert reason_codes(page)[0] == "tcp-sockets"
    [facts] = [line["facts"] for line in page["got_codes"] if line["code"] == "log-facts"]
    assert facts["log_facts"] == ["network Socket"]


def test_a_few_runs_have_a_page_each_and_many_a_short_one(tmp_path: Path, capsys: Out) -> None:
    one = log(curve("allreduce", 8, 482.0), "NVIDIA H100 80GB HBM3")
    _, two = text_page(tmp_path, capsys, one * 2)
    assert two.count("is possible") == 2 and "some.log, line " in two
    _, five = text_page(tmp_path, capsys, one * 5)
    assert five.count("NORMAL: ") == 5 and "is possible" not in five


def test_an_imported_run_is_explained_as_its_log_is(tmp_path: Path, capsys: Out) -> None:
    file = log_file(tmp_path, log(curve("allreduce", 16, 92.2), "NVIDIA H200", 16, 2))
    results = str(tmp_path / "results")
    assert main(["import", file, "--results", results, "--instance", "p5en.48xlarge"]) == 0
    capsys.readouterr()
    assert main(["explain", "latest", "--results", results, "--format", "json"]) == 0
    [page] = json.loads(capsys.readouterr().out)["pages"]
    assert page["standing_code"] == "far-too-low" and "p5en.48xlarge" in page["machine"]
    assert page["reasons"][0]["facts"]["nics"] == "2 of 16 NICs"


def test_a_run_of_ours_is_compared_with_what_was_calibrated(capsys: Out) -> None:
    assert main(["explain", str(REFERENCE), "--format", "json"]) == 0
    pages = json.loads(capsys.readouterr().out)["pages"]
    [page] = [page for page in pages if page["title"] == "allreduce, 2 ranks on 1 node, by bench over mpi"]
    assert page["because_code"] == "own-machine-unknown" and page["because_facts"]["bound"] == "memory copy"
    assert "bench compare" in page["because"]


def test_modelled_rows_are_never_judged(tmp_path: Path, capsys: Out) -> None:
    file = tmp_path / "m.jsonl"
    command = [sys.executable, "-m", "bench.allreduce", "--transport", "model", "--instance", "p5.48xlarge"]
    words = ["--ranks-per-node", "8", "--sizes", "1G", "--records", str(file)]
    subprocess.run([*command, *words], check=True, capture_output=True, cwd=ROOT, timeout=300)
    assert main(["explain", str(file), "--format", "json"]) == 0
    [page] = json.loads(capsys.readouterr().out)["pages"]
    assert codes(page, "got")[0] == "modelled" and page["because_code"] == "modelled" and page["share"] is None
    assert not [line for line in page["possible_codes"] if "share" in line["facts"]]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["nothing.log"], "nothing.log"),
        (["logs/"], "logs/"),
        (["nothing"], "'nothing'"),
        (["-", "--instance", "p6"], "'p6'"),
    ],
)
def test_an_unreadable_input_is_named(
    options: list[str], named: str, tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello\n")))
    assert main(["explain", *options]) == 2
    assert named in capsys.readouterr().err


def test_a_text_of_no_known_tool_is_refused(tmp_path: Path, capsys: Out) -> None:
    assert main(["explain", log_file(tmp_path, "hello\n")]) == 2
    printed = capsys.readouterr().err
    assert holds(printed, "some.log", "results", "failure message")


def test_a_short_sweep_is_too_small(tmp_path: Path, capsys: Out) -> None:
    rows = curve("allreduce", 8, 400.0, 100e-6, SIZES[:23])
    _, page = json_page(tmp_path, capsys, log(rows), "--instance", "p5.48xlarge")
    [reason] = [reason for reason in page["reasons"] if reason["code"] == "sizes-too-small"]
    assert reason["command"].startswith("all_reduce_perf -b 64M -e 8G -f 2")


def test_a_file_that_gives_nothing_takes_no_page_from_the_others(tmp_path: Path, capsys: Out) -> None:
    """Binary files of a folder are counted before and after the good log; an empty file is a loss."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "b.log").write_text(log(curve("allreduce", 8, 482.0), "NVIDIA H100 80GB HBM3"))
    for name in ("a.png", "c.gz"):
        (folder / name).write_bytes(bytes(range(32)) * 9)
    assert main(["explain", str(folder)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("# NORMAL: ") and "2 files" in printed.err
    (folder / "empty.txt").write_text("")
    assert main(["explain", str(folder / "empty.txt"), str(folder / "b.log")]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("# NORMAL: ") and "empty.txt" in printed.err and printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("num_nodes", "code", "facts"),
    [
        ("3", "ranks-do-not-divide", {"num_ranks": 16, "num_nodes": 3}),
        (
            "1",
            "too-many-ranks-per-node",
            {"num_ranks": 16, "num_nodes": 1, "per_node": 16, "instance": "p5.48xlarge", "num_gpus": 8},
        ),
    ],
)
def test_nodes_that_cannot_have_held_the_ranks_give_no_verdict(
    num_nodes: str, code: str, facts: dict[str, Any], tmp_path: Path, capsys: Out
) -> None:
    text = log(curve("allreduce", 16, 92.2))
    options = ["--instance", "p5.48xlarge", "--num-ranks", "16", "--num-nodes"]
    exit_code, page = json_page(tmp_path, capsys, text, *options, num_nodes)
    assert exit_code == 0 and page["standing_code"] == "cannot-be-judged"
    assert (page["because_code"], page["because_facts"]) == (code, facts)
    assert page["bound"] is None and not page["reasons"] and len(page["possible"]) == len(page["others"]) == 1
    exit_code, page = json_page(tmp_path, capsys, text, *options, "2")
    assert exit_code == 0 and page["standing_code"] == "far-too-low"


def test_a_low_result_fails_only_if_asked(tmp_path: Path, capsys: Out) -> None:
    expected = {20.0: [0, 1, 1], 230.0: [0, 0, 0]}
    for rate, exit_codes in expected.items():
        text = log(curve("allreduce", 8, rate), "NVIDIA A100-SXM4-40GB")
        options = ("--instance", "p4d.24xlarge")
        found = [text_page(tmp_path, capsys, text, *options)[0]]
        found += [text_page(tmp_path, capsys, text, *options, "--fail-on", word)[0] for word in ("low", "unjudged")]
        assert found == exit_codes, rate
    unknown = log(curve("allreduce", 8, 20.0, sizes=(8, 64)))
    assert [text_page(tmp_path, capsys, unknown, "--fail-on", word)[0] for word in ("low", "unjudged")] == [0, 1]
