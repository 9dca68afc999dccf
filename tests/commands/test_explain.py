"""`bench explain` from end to end: logs, pipes, stored runs, formats, exit codes. All logs are of our own making."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.logs.foreign import ForeignRow
from tests.explain.logs import SIZES, curve

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


def explained(tmp_path: Path, capsys: Out, text: str, *options: str) -> tuple[int, str]:
    """Exit code and page of a log."""
    file = tmp_path / "some.log"
    file.write_text(text)
    code = main(["explain", str(file), *options])
    return code, capsys.readouterr().out


def test_a_normal_result_is_called_normal_in_five_sections(tmp_path: Path, capsys: Out) -> None:
    code, page = explained(tmp_path, capsys, log(curve("allreduce", 8, 482.0), "NVIDIA H100 80GB HBM3"))
    assert code == 0
    order = [
        "# allreduce, 8 ranks on 1 node, by nccl-tests",
        "What you got",
        "What is possible",
        "What others got",
        "Where you stand: NORMAL",
    ]
    positions = [page.index(part) for part in order]
    assert positions == sorted(positions)
    assert "What to do next" not in page and "Why it is not more" not in page


def test_a_pipe_is_read_and_the_machine_is_named(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    text = log(curve("allreduce", 8, 366.0))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["explain", "-", "--instance", "p5.48xlarge"]) == 0
    page = capsys.readouterr().out
    assert "8 ranks on 1 node" in page and "Where you stand: LOW" in page
    assert "1. NVLS is off" in page and "What to do next" in page and "| python -m bench explain -" in page


def test_an_unknown_machine_is_not_judged_and_says_what_to_give(tmp_path: Path, capsys: Out) -> None:
    code, page = explained(tmp_path, capsys, log(curve("allreduce", 8, 366.0)))
    assert code == 0 and "Where you stand: CAN NOT BE JUDGED" in page and "--instance" in page
    assert "as many ranks on another machine: 846 GB/s" in page


def test_wrong_data_come_first_and_nothing_else_counts(tmp_path: Path, capsys: Out) -> None:
    rows = curve("allreduce", 8, 482.0)
    code, page = explained(tmp_path, capsys, log(rows, "NVIDIA H100 80GB HBM3", wrong=17))
    assert code == 1
    assert page.splitlines()[3].startswith("  - WRONG DATA in 64 of 64 rows")
    assert "CAN NOT BE JUDGED" in page and "1. wrong data: nothing else counts" in page and "GB/s of busbw" not in page


def test_above_a_hard_bound_is_an_error_with_its_derivation(tmp_path: Path, capsys: Out) -> None:
    code, page = explained(tmp_path, capsys, log(curve("allreduce", 8, 320.0)), "--instance", "p4d.24xlarge")
    assert code == 1
    assert "Where you stand: ABOVE WHAT IS POSSIBLE" in page
    assert "above the hard bound NVLink port (300 GB/s): a rank's NVLink port carries 300 GB/s each way" in " ".join(
        page.split()
    )


def test_above_a_reference_is_no_error(tmp_path: Path, capsys: Out) -> None:
    code, page = explained(tmp_path, capsys, log(curve("allreduce", 8, 480.0)), "--instance", "a3-ultragpu-8g")
    assert code == 0 and "reached 107%" in page and "may exceed it" in " ".join(page.split())


def test_the_number_of_ranks_can_be_told(tmp_path: Path, capsys: Out) -> None:
    text = "# Collective test starting: sendrecv_perf\n" + log(curve("sendrecv", 8, 235.0)).replace("sum", "none")
    code, page = explained(tmp_path, capsys, text, "--instance", "p4d.24xlarge")
    assert code == 0 and "say so with --num-ranks" in page
    _, page = explained(tmp_path, capsys, text, "--instance", "p4d.24xlarge", "--num-ranks", "8")
    assert "# sendrecv, 8 ranks on 1 node" in page and "Where you stand: NORMAL" in page


def test_a_number_of_ranks_that_the_log_tells_otherwise_is_said(tmp_path: Path, capsys: Out) -> None:
    file = tmp_path / "some.log"
    file.write_text(log(curve("allreduce", 8, 230.0), "NVIDIA H200"))
    main(["explain", str(file), "--num-ranks", "4"])
    told = capsys.readouterr()
    assert "--num-ranks 4" in told.err and "(8)" in told.err
    assert "8 ranks" in told.out
    main(["explain", str(file), "--num-ranks", "8"])
    assert "--num-ranks" not in capsys.readouterr().err


def test_json_holds_every_section_and_si_units(tmp_path: Path, capsys: Out) -> None:
    text = log(curve("allreduce", 16, 92.2), "NVIDIA H200", 16, 2)
    code, out = explained(tmp_path, capsys, text, "--format", "json")
    document = json.loads(out)
    (page,) = document["pages"]
    assert (code, document["schema"]) == (0, "bench.explain/1")
    assert (page["num_ranks"], page["num_nodes"], page["standing"]) == (16, 2, "far too low")
    assert page["best"]["busbw_bytes_per_s"] == pytest.approx(92.2e9, rel=0.01)
    assert page["bound"]["bytes_per_s"] == pytest.approx(750e9) and page["share"] == pytest.approx(0.123, abs=0.001)
    assert page["reasons"][0]["what"] == "a node uses one 400 Gb/s NIC" and page["reasons"][0]["command"]


def test_markdown_has_headings_and_commands_in_code(tmp_path: Path, capsys: Out) -> None:
    _, page = explained(
        tmp_path, capsys, log(curve("allreduce", 8, 366.0)), "--format", "markdown", "--instance", "p5.48xlarge"
    )
    assert "## Where you stand: low" in page and "1. **NVLS is off" in page and "`NCCL_DEBUG=INFO" in page


def test_what_nccl_says_between_the_rows_is_evidence(tmp_path: Path, capsys: Out) -> None:
    text = log(curve("allreduce", 16, 3.0), "NVIDIA H100 80GB HBM3", 16, 2)
    said = text.replace("#\n#  ", "box0:1:2 [0] NCCL INFO Using network Socket\n#\n#  ", 1)
    assert said != text
    _, page = explained(tmp_path, capsys, said, "--instance", "p5.48xlarge")
    assert "1. the network is TCP sockets" in page and "network Socket" in page


def test_a_few_runs_have_a_page_each_and_many_a_short_one(tmp_path: Path, capsys: Out) -> None:
    one = log(curve("allreduce", 8, 482.0), "NVIDIA H100 80GB HBM3")
    _, two = explained(tmp_path, capsys, one * 2)
    assert two.count("What is possible") == 2 and "some.log, line " in two
    _, five = explained(tmp_path, capsys, one * 5)
    assert five.count("NORMAL: ") == 5 and "What is possible" not in five


def test_an_imported_run_is_explained_as_its_log_is(tmp_path: Path, capsys: Out) -> None:
    file = tmp_path / "some.log"
    file.write_text(log(curve("allreduce", 16, 92.2), "NVIDIA H200", 16, 2))
    results = str(tmp_path / "results")
    assert main(["import", str(file), "--results", results, "--instance", "p5en.48xlarge"]) == 0
    capsys.readouterr()
    assert main(["explain", "latest", "--results", results]) == 0
    page = capsys.readouterr().out
    assert "Where you stand: FAR TOO LOW" in page and "p5en.48xlarge, as named when it was imported" in page
    assert "a node uses 2 of 16 NICs" in page


def test_a_run_of_ours_is_set_beside_what_was_calibrated(capsys: Out) -> None:
    assert main(["explain", str(REFERENCE)]) == 0
    page = capsys.readouterr().out
    assert "allreduce, 2 ranks on 1 node, by bench over mpi" in page and "of memory copy" in page
    assert "bench compare" in page


def test_modelled_rows_are_never_judged(tmp_path: Path, capsys: Out) -> None:
    file = tmp_path / "m.jsonl"
    command = [sys.executable, "-m", "bench.allreduce", "--transport", "model", "--instance", "p5.48xlarge"]
    words = ["--ranks-per-node", "8", "--sizes", "1G", "--records", str(file)]
    subprocess.run([*command, *words], check=True, capture_output=True, cwd=ROOT, timeout=300)
    assert main(["explain", str(file)]) == 0
    page = capsys.readouterr().out
    assert page.splitlines()[3].startswith("  - MODELLED") and "CAN NOT BE JUDGED" in page and "reached" not in page


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nothing.log"], "there is no file or folder nothing.log"),
        (["logs/"], "there is no file or folder logs/"),
        (["nothing"], "error: no run is called 'nothing'"),
        (["-", "--instance", "p6"], "no instance type is called 'p6'"),
    ],
)
def test_what_can_not_be_read_is_refused_in_a_sentence(
    options: list[str], said: str, tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello\n")))
    assert main(["explain", *options]) == 2
    assert said in capsys.readouterr().err


def test_a_text_without_any_tool_is_refused(tmp_path: Path, capsys: Out) -> None:
    file = tmp_path / "a.txt"
    file.write_text("hello\n")
    assert main(["explain", str(file)]) == 2
    assert "a.txt" in capsys.readouterr().err


def test_a_short_sweep_is_too_small(tmp_path: Path, capsys: Out) -> None:
    rows = curve("allreduce", 8, 400.0, 100e-6, SIZES[:23])
    _, page = explained(tmp_path, capsys, log(rows), "--instance", "p5.48xlarge")
    assert "the sizes are too small to show the links" in page and "all_reduce_perf -b 64M -e 8G -f 2" in page


def test_a_file_that_gives_nothing_takes_no_page_from_the_others(tmp_path: Path, capsys: Out) -> None:
    """Before the good log and after it; a folder's binary is counted, a file that is empty is a loss."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "b.log").write_text(log(curve("allreduce", 8, 482.0), "NVIDIA H100 80GB HBM3"))
    for name in ("a.png", "c.gz"):
        (folder / name).write_bytes(bytes(range(32)) * 9)
    assert main(["explain", str(folder)]) == 0
    told = capsys.readouterr()
    assert "Where you stand: NORMAL" in told.out and "2 files" in told.err
    (folder / "empty.txt").write_text("")
    assert main(["explain", str(folder / "empty.txt"), str(folder / "b.log")]) == 1
    told = capsys.readouterr()
    assert "Where you stand: NORMAL" in told.out and "empty.txt is empty" in told.err and told.err.count("\n") == 1


@pytest.mark.parametrize(
    ("num_nodes", "said"),
    [
        ("3", "16 ranks do not divide among 3 nodes"),
        ("1", "16 ranks on 1 node are 16 of each, and p5.48xlarge has 8 GPUs"),
    ],
)
def test_nodes_that_can_not_have_held_the_ranks_give_no_verdict(
    num_nodes: str, said: str, tmp_path: Path, capsys: Out
) -> None:
    text = log(curve("allreduce", 16, 92.2))
    words = ["--instance", "p5.48xlarge", "--num-ranks", "16", "--num-nodes"]
    code, page = explained(tmp_path, capsys, text, *words, num_nodes, "--format", "json")
    (told,) = json.loads(page)["pages"]
    assert code == 0 and told["standing"] == "can not be judged" and said in told["because"]
    assert told["bound"] is None and not told["reasons"] and len(told["possible"]) == len(told["others"]) == 1
    code, page = explained(tmp_path, capsys, text, *words, "2")
    assert code == 0 and "FAR TOO LOW" in page
