"""`bench select` as it is typed: every format, the derivation, the plot, and sentences for what can not be."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main

ROOT = Path(__file__).parents[2]
TWO = ("select", "--workload", "vit-l-306m", "--instances", "p4d.24xlarge,g6e.48xlarge")


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(words) == code
    captured = capsys.readouterr()
    if code:
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("bench: error: ")
        return captured.err
    return captured.out


def test_the_table_ranks_and_says_what_each_number_rests_on(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, *TWO).splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [row[1] for row in rows] == ["p4d.24xlarge", "g6e.48xlarge"]
    assert "modelled" in lines[0]
    assert any("what each number rests on: p published" in line and "a assumed" in line for line in lines)
    assert any(line.endswith("p4d.24xlarge is cheaper") for line in lines)
    assert "2026-07-20, us-east-1" in "\n".join(lines)
    assert any("was 32.77 $/h on 2025-03-31 and is 21.96 $/h" in line for line in lines)


def test_the_derivation_can_be_checked_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    p4d = said(capsys, *TWO, "--explain", "p4d.24xlarge")
    assert "3.06e+08 parameters x 4 bytes (float32) = 1.224 GB" in p4d
    assert "2.142 GB through each GPU's port" in p4d
    assert "NVIDIA/nccl issue 527 (2022)), 230.8 GB/s: 9.281 ms" in p4d
    assert "at its earlier price, 32.7726 $/h on 2025-03-31" in p4d
    assert "21.9576 $/h on 2026-07-20, unchanged since 2025-06-23" in p4d
    g6e = said(capsys, *TWO, "--explain", "g6e.48xlarge")
    assert "13.47 GB/s: 159 ms" in g6e
    assert "2.24 GB/s: 956.2 ms" in g6e
    assert "by these published rates: 159..956.2 ms a step" in g6e
    assert "no public figure of allreduce among several L40S of one node is known" in g6e
    assert "0.35..0.75 of it (assumed, one draw for all machines)" in g6e


def test_an_interval_of_draws_is_no_product_of_ends_and_the_middles_multiply(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """23.58 TFLOP at 271.2 TFLOP/s x sqrt(0.35 x 0.75) x sqrt(0.85 x 1.15), 8.568 GB at 1555 GB/s x sqrt(0.6 x 0.9)."""
    told = said(capsys, *TWO, "--explain", "p4d.24xlarge")
    [made] = re.findall(
        r"each interval, ([\d.]+) ms a step; [\d.]+ ms are 90 % of 4,000 draws, whose ends do not", told
    )
    passes = 23.58 / (271.2 * math.sqrt(0.35 * 0.75 * 0.85 * 1.15))
    assert float(made) == pytest.approx(1e3 * (passes + 8.568 / (1555 * math.sqrt(0.6 * 0.9))), rel=2e-3)
    [waits] = [line for line in told.splitlines() if "$/h spent waiting = " in line]
    [(dollars, exposed, step, product)] = re.findall(r"middles, ([\d.]+) x ([\d.]+) / ([\d.]+) = ([\d.]+);", waits)
    assert float(product) == pytest.approx(float(dollars) * float(exposed) / float(step), rel=5e-3)
    assert waits.endswith("whose ends do not multiply")
    # Where only an interval is known, no middle is told.
    [vague] = [line for line in said(capsys, *TWO, "--explain", "g6e.48xlarge").splitlines() if "spent waiting" in line]
    assert "middles" not in vague and vague.endswith("whose ends do not multiply")


def test_where_the_switch_adds_no_measurement_beats_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """128 MiB by NVLS among 8: 1.125 x 134,217,728 bytes through a port of 450 GB/s are 0.3355 ms; busbw says 1.75."""
    words = ("--set", "parallel.bucket=128M")
    told = said(
        capsys, "select", "--workload", "vit-l-306m", "--instances", "p5.48xlarge", "--explain", "p5.48xlarge", *words
    )
    assert "x 134217728 x 1.125 (1 + 1/n, n = 8)" in told
    assert "1.377 GB through each GPU's port, each way, as the switch adds (NVLS); busbw counts 2.142 GB" in told
    [bound] = re.findall(r"at the NVLink port's rate \(bound\), 450 GB/s: ([\d.]+) ms", told)
    published = re.findall(r"as published for .* GB/s of busbw: ([\d.]+) ms", told)
    assert float(bound) == pytest.approx(1.377e9 / 450e9 * 1e3, rel=1e-3)
    assert published and all(float(each) > float(bound) for each in published)


def test_json_is_one_document_with_units_in_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    document: dict[str, Any] = json.loads(said(capsys, *TWO, "--format", "json"))
    assert document["schema"] == "bench.select/1"
    assert document["modelled"] is True
    p4d, g6e = document["machines"]
    assert p4d["step_low_s"] < p4d["step_s"] < p4d["step_high_s"]
    assert g6e["step_s"] is None  # nothing of its kind is published: an interval only
    assert 0.2 < g6e["step_low_s"] < g6e["step_high_s"]
    assert (p4d["usd_per_hour"], p4d["price_date"]) == (21.957642, "2026-07-20")
    assert p4d["exposed_basis"] == "published"
    assert {each["by"]: each["decided"] for each in document["verdicts"]} == {"cost": True, "time": True}


def test_csv_and_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(said(capsys, *TWO, "--format", "csv"))))
    assert [row["instance"] for row in rows] == ["p4d.24xlarge", "g6e.48xlarge"]
    assert rows[0]["workload"] == "vit-l-306m"
    text = said(capsys, *TWO, "--format", "markdown")
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def test_several_workloads_and_nodes_and_your_own_price(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("select", "--workload", "vit-l-306m,llama-3-8b", "--instances", "p4d.24xlarge,p5.48xlarge")
    document = json.loads(said(capsys, *words, "--nodes", "1,2", "--price", "p5.48xlarge=1.5", "--format", "json"))
    first, second = document["selections"]
    assert (first["workload"], second["workload"]) == ("vit-l-306m", "llama-3-8b")
    assert len(first["machines"]) == 4
    assert first["machines"][0]["instance"] == "p5.48xlarge"
    assert first["machines"][0]["usd_per_hour"] == 1.5 * first["machines"][0]["num_nodes"]


def test_a_price_of_then_is_asked_for_by_its_day(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(said(capsys, *TWO, "--price-date", "2025-04-01", "--format", "json"))
    by_name = {each["instance"]: each for each in document["machines"]}
    assert by_name["p4d.24xlarge"]["usd_per_hour"] == 32.7726
    assert by_name["p4d.24xlarge"]["price_date"] == "2025-03-31"


def test_without_a_price_the_time_is_ranked_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "select", "--workload", "vit-l-306m", "--instances", "DGX H100", "--by", "time")
    assert "DGX H100: no price is known" in text


def test_a_gpu_alone_pays_for_no_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--gpus", "1", "--set", "training.accumulation=7", "--format", "json")
    machines = json.loads(said(capsys, *TWO, *words))["machines"]
    assert [each["usd_per_hour_waiting_high"] for each in machines] == [0, 0]


def test_output_and_plot_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert said(capsys, *TWO, "--plot", str(tmp_path / "a.png"), "--output", str(tmp_path / "a.txt")) == ""
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "p4d.24xlarge" in (tmp_path / "a.txt").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--instances", "p4d.24xlrge"), "no instance type is called 'p4d.24xlrge'; did you mean 'p4d.24xlarge'?"),
        (("--workload", "vit"), "did you mean 'vit-l-306m'"),
        (("--workload", "vitl"), "has no workload 'vitl'; did you mean 'vit-l-306m'?"),
        (("--workload", "llama38"), "did you mean 'llama-3-8b'?"),
        (("--region", "us-eest-1"), "no price of a region 'us-eest-1' is known; did you mean 'us-east-1'?"),
        (("--region", "mars"), "no price of a region 'mars' is known; there are: "),
        (("--instances", "DGX H100"), "nothing to rank by cost: DGX H100: no price is known: give one by --price"),
        (("--price-date", "2020-01-01"), "no price of 2020-01-01 is known, the first is of 2023-09-18"),
        (("--nodes", "0"), "--nodes '0' must be a whole number of 1 or more"),
        (("--gpus", "0"), "--gpus '0' must be a whole number of 1 or more"),
        (("--nodes", "1,2049"), "2049 x 8 of p4d.24xlarge are 16392 GPUs: at most 16384 are predicted"),
        (("--gpus", "9"), "has 8 GPUs, not 9"),
        (("--explain", "p5.48xlarge"), "is none of --instances"),
        (("--price", "p4d.24xlarge=-1"), "must be above zero"),
        (("--price-date", "May"), "is not a day such as 2025-03-31"),
        (("--set", "training.batch=999999"), "does not fit in memory: needs"),
        (("--set", "parallel.tensor=16"), "do not divide the 8"),
        (("--set", "training.batch=-2"), "is not a number above zero"),
        (("--plot", "/nowhere/x.png"), "there is no folder /nowhere"),
        (("--plot", "x.jpeg"), "the name must end in .png"),
        (("--runs", "/nowhere"), "/nowhere"),
        (("--workload", "vit-l-306m,llama-3-8b", "--plot", "x.png"), "--plot draws one workload"),
    ],
)
def test_what_can_not_be_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], sentence: str
) -> None:
    assert sentence in said(capsys, *TWO, *words, code=2)


def test_one_that_can_not_is_left_out_with_its_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "select", "--workload", "mixtral-8x7b", "--instances", "p5.48xlarge,p5en.48xlarge")
    assert "left out: 1 x p5.48xlarge: does not fit in memory: needs 98.3 GB of the 80 GB of a H100-SXM5-80GB" in text
    assert "7.24e+09 x 12 bytes / 8, experts / 1" in text


def test_of_many_left_out_each_arithmetic_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """On two nodes a GPU holds less, as the states are spread further: two lines, with the machines of each."""
    words = ("--instances", "g5.48xlarge,g6.48xlarge,p4d.24xlarge,p5en.48xlarge", "--nodes", "1,2")
    lines = said(capsys, "select", "--workload", "mixtral-8x7b", *words).splitlines()
    told = [line.removeprefix("# memory of one GPU of ") for line in lines if "memory of one GPU" in line]
    whose = [line.partition(": weights ")[0] for line in told]
    assert whose == [
        ", ".join(f"{n} x {name}" for name in ("g5.48xlarge", "g6.48xlarge", "p4d.24xlarge")) for n in (1, 2)
    ]
    assert "7.24e+09 x 12 bytes / 8, experts / 1" in told[0]
    assert "7.24e+09 x 12 bytes / 16, experts / 2" in told[1]


def test_neither_torch_nor_mpi_is_needed() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'mpi4py', 'cupy'))); from bench.__main__ import main; "
        f"sys.exit(main({list(TWO)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_the_table_in_the_readme_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """When predictions change, README.md's block and plots/reference/select_* are made again."""
    [block] = [part for part in (ROOT / "README.md").read_text(encoding="utf-8").split("```") if "exposed (ms)" in part]
    printed = said(capsys, *TWO).splitlines()
    assert [line for line in block.strip("\n").splitlines() if line not in printed] == []


def test_half_a_link_is_felt_by_what_crosses_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As in the model and in `bench predict`: half an NVLink doubles its exchange, half a NIC leaves one node alone."""
    site = tmp_path / "bench.yaml"
    site.write_text(
        "clusters: {}\ninstances:\n"
        "  half-nvlink: {like: p4d.24xlarge, links: {nvlink: 150GB/s}, price: 21.957642}\n"
        "  half-nic: {like: p4d.24xlarge, links: {nic: 6.25GB/s}, price: 21.957642}\n"
    )
    words = ("select", "--workload", "vit-l-306m", "--instances", "p4d.24xlarge,half-nvlink,half-nic")
    document = json.loads(said(capsys, *words, "--config", str(site), "--format", "json"))
    found = {each["instance"]: each for each in document["machines"]}
    whole, half, nic = (found[name] for name in ("p4d.24xlarge", "half-nvlink", "half-nic"))
    assert 1.6 < half["exchange_s"] / whole["exchange_s"] < 2.05
    assert half["compute_s"] == whole["compute_s"]
    assert nic["exchange_s"] == pytest.approx(whole["exchange_s"], rel=0.03)
    assert half["usd_per_hour"] == whole["usd_per_hour"]


def test_an_imported_log_takes_the_place_of_an_interval(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A log of nccl-tests on eight L40S, with figures of our own: 5.25 GB/s of busbw at every size."""
    devices = [f"#  Rank {rank:2} Group  0 Pid 1 on  h device {rank:2} [0x1{rank}] NVIDIA L40S" for rank in range(8)]
    rows = []
    for power in range(20, 28):
        size = 1 << power
        us = size * 1.75 / 5.25e9 * 1e6
        half = f"{us:8.1f} {size / us / 1e3:6.2f}   5.25      0"
        rows.append(f"{size:12} {size // 4:12}     float     sum      -1 {half} {half}")
    log = tmp_path / "log.txt"
    begin = "# nThread 1 nGpus 8 minBytes 1048576 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20"
    times = "    time   algbw   busbw #wrong"
    titles = f"#       size         count      type   redop    root {times} {times}"
    log.write_text("\n".join([begin, "# Using devices", *devices, titles, *rows, "# Avg bus bandwidth    : 5.25", ""]))
    assert main(("import", str(log), "--instance", "g6e.48xlarge", "--results", str(tmp_path / "runs"))) == 0
    capsys.readouterr()
    [run] = (tmp_path / "runs").iterdir()
    document = json.loads(said(capsys, *TWO, "--runs", str(run), "--format", "json"))
    g6e = next(each for each in document["machines"] if each["instance"] == "g6e.48xlarge")
    assert g6e["exposed_basis"] == "imported"
    assert g6e["exchange_s"] == pytest.approx(306e6 * 4 * 1.75 / 5.25e9, rel=0.1)


def test_a_rate_that_is_unknown_is_given_as_the_reason_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("select", "--workload", "llama-3-8b", "--nodes", "8", "--instances")
    [left] = [line for line in said(capsys, *words, "p6-b300.48xlarge,p5.48xlarge").splitlines() if "left out" in line]
    assert "--links" not in left
    [own] = re.findall(r"in bench.yaml, such as `(.*)`, and select `mine`", left)
    site = tmp_path / "bench.yaml"
    site.write_text(f"clusters: {{}}\n{own[:-2]}, price: 10}}}}\n")
    assert "8 x mine" in said(capsys, *words, "mine", "--config", str(site), "--explain", "mine")
