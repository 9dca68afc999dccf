"""`linkbench select` as a user calls it: formats, derivation, plot, errors."""

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
from bench.predict.messages import PredictRemark

ROOT = Path(__file__).parents[2]
DATED = ("--price-date", "2026-08-01")  # later, the prices would be reported as old
GOLDEN = ROOT / "tests" / "predict" / "golden_select.txt"
TWO = ("select", "--workload", "vit-l-306m", "--instances", "p4d.24xlarge,g6e.48xlarge")


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(words) == code
    captured = capsys.readouterr()
    if code:
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("bench: error: ")
        return captured.err
    return captured.out


def explained(capsys: pytest.CaptureFixture[str], instance: str, *words: str) -> str:
    return printed(capsys, *words, "--wide", "--explain", instance)


def document_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(printed(capsys, *words, "--format", "json"))
    return found


def test_page_and_derivation_are_the_golden_page(capsys: pytest.CaptureFixture[str]) -> None:
    """Store it again, with docs/tour.md's block and plots/reference/select_*, when predictions or wording change."""
    found = "".join(explained(capsys, instance, *TWO, *DATED) for instance in ("p4d.24xlarge", "g6e.48xlarge"))
    assert found == GOLDEN.read_text(encoding="utf-8")


def test_notes_have_codes(capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(capsys, *TWO)
    assert len(document["notes"]) == len(document["note_codes"])
    change = next(note["facts"] for note in document["note_codes"] if note["code"] == PredictRemark.PRICE_CHANGE)
    assert (change["then"], change["now"], change["now_date"]) == (32.7726, 21.957642, "2026-07-20")


def test_rates_of_the_derivation_can_be_checked_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    for instance, figures in (
        ("p4d.24xlarge", ("= 1.224 GB", "2.142 GB", "230.8 GB/s: 9.281 ms", "32.7726 $/h", "21.9576 $/h")),
        ("g6e.48xlarge", ("362 TFLOP/s", "x 0.78 (best matrix product, typical of other GPUs)")),
    ):
        page = explained(capsys, instance, *TWO)
        assert [figure for figure in figures if figure not in page] == []


def test_middles_multiply_and_ends_of_intervals_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    """The terms of the kernels times their factors, and 8.568 GB at 1555 GB/s x sqrt(0.6 x 0.9)."""
    page = explained(capsys, "p4d.24xlarge", *TWO)
    [compute_ms] = re.findall(r"interval: ([\d.]+) ms per step; [\d.]+ ms contain 90 % of 4,000 draws", page)
    [terms] = re.findall(r"products .* \(factors of published training runs\)", page)
    passes_ms = sum(float(ms) * float(factor) for ms, factor in re.findall(r"([\d.]+) ms x ([\d.]+)", terms))
    assert float(compute_ms) == pytest.approx(passes_ms + 1e3 * 8.568 / (1555 * math.sqrt(0.6 * 0.9)), rel=5e-3)
    [products_ms] = re.findall(r"products ([\d.]+) ms", terms)
    assert float(products_ms) == pytest.approx(1e3 * (23.58 - 0.733) / (312 * 271.2 / 312), rel=2e-3)
    [(dollars, exposed, step, product)] = re.findall(r"middles, ([\d.]+) x ([\d.]+) / ([\d.]+) = ([\d.]+);", page)
    assert float(product) == pytest.approx(float(dollars) * float(exposed) / float(step), rel=5e-3)


def test_with_nvls_no_measurement_beats_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    """NVLS among 8 sends 1.125 times a bucket through a port; busbw counts 1.75."""
    words = ("--set", "parallel.bucket=128M")
    page = printed(
        capsys, "select", "--workload", "vit-l-306m", "--instances", "p5.48xlarge", "--explain", "p5.48xlarge", *words
    )
    assert " x 1.125" in page and "1.377 GB" in page and "2.142 GB" in page
    [bound] = re.findall(r"\(bound\), 450 GB/s: ([\d.]+) ms", page)
    published = re.findall(r"published .* GB/s of busbw: ([\d.]+) ms", page)
    assert float(bound) == pytest.approx(1.377e9 / 450e9 * 1e3, rel=1e-3)
    assert published and all(float(each) > float(bound) for each in published)


def test_json_is_one_document_with_units_in_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    document: dict[str, Any] = json.loads(printed(capsys, *TWO, "--format", "json"))
    assert document["schema"] == "bench.select/1"
    assert document["modelled"] is True
    p4d, g6e = document["machines"]
    assert p4d["step_low_s"] < p4d["step_s"] < p4d["step_high_s"]
    assert 0.2 < g6e["step_low_s"] < g6e["step_s"] < g6e["step_high_s"]
    assert (p4d["usd_per_hour"], p4d["price_date"]) == (21.957642, "2026-07-20")
    assert p4d["exposed_basis"] == "published"
    assert {each["by"]: each["decided"] for each in document["verdicts"]} == {"cost": True, "time": True}


def test_csv_and_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(capsys, *TWO, "--format", "csv"))))
    assert [row["instance"] for row in rows] == ["p4d.24xlarge", "g6e.48xlarge"]
    assert rows[0]["workload"] == "vit-l-306m"
    text = printed(capsys, *TWO, "--format", "markdown")
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def test_several_workloads_nodes_and_own_prices(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("select", "--workload", "vit-l-306m,llama-3-8b", "--instances", "p4d.24xlarge,p5.48xlarge")
    document = json.loads(printed(capsys, *words, "--nodes", "1,2", "--price", "p5.48xlarge=1.5", "--format", "json"))
    first, second = document["selections"]
    assert (first["workload"], second["workload"]) == ("vit-l-306m", "llama-3-8b")
    assert len(first["machines"]) == 4
    assert first["machines"][0]["instance"] == "p5.48xlarge"
    assert first["machines"][0]["usd_per_hour"] == 1.5 * first["machines"][0]["num_nodes"]


def test_price_date_selects_an_earlier_price(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(printed(capsys, *TWO, "--price-date", "2025-04-01", "--format", "json"))
    by_name = {each["instance"]: each for each in document["machines"]}
    assert by_name["p4d.24xlarge"]["usd_per_hour"] == 32.7726
    assert by_name["p4d.24xlarge"]["price_date"] == "2025-03-31"


def test_machine_without_a_price_can_be_ranked_by_time(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("select", "--workload", "vit-l-306m", "--instances", "DGX H100", "--by", "time")
    document = document_of(capsys, *words)
    assert PredictRemark.PRICE_UNKNOWN in [note["code"] for note in document["note_codes"]]


def test_single_gpu_pays_for_no_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--gpus", "1", "--set", "training.accumulation=7", "--format", "json")
    machines = json.loads(printed(capsys, *TWO, *words))["machines"]
    assert [each["usd_per_hour_waiting_high"] for each in machines] == [0, 0]


def test_output_and_plot_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert printed(capsys, *TWO, "--plot", str(tmp_path / "a.png"), "--output", str(tmp_path / "a.txt")) == ""
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "p4d.24xlarge" in (tmp_path / "a.txt").read_text()


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("--instances", "p4d.24xlrge"), ("'p4d.24xlrge'", "'p4d.24xlarge'")),
        (("--workload", "vit"), ("'vit-l-306m'",)),
        (("--workload", "vitl"), ("'vitl'", "'vit-l-306m'")),
        (("--workload", "llama38"), ("'llama-3-8b'",)),
        (("--region", "us-eest-1"), ("'us-eest-1'", "'us-east-1'")),
        (("--region", "mars"), ("'mars'", "us-east-1")),
        (("--instances", "DGX H100"), ("DGX H100", "--price", "--by time")),
        (("--price-date", "2020-01-01"), ("2020-01-01", "2023-09-18")),
        (("--nodes", "0"), ("--nodes '0'",)),
        (("--gpus", "0"), ("--gpus '0'",)),
        (("--nodes", "1,2049"), ("2049 x 8", "p4d.24xlarge", "16392", "16384")),
        (("--gpus", "9"), ("8 GPUs", "9")),
        (("--explain", "p5.48xlarge"), ("--explain p5.48xlarge", "--instances")),
        (("--price", "p4d.24xlarge=-1"), ("--price 'p4d.24xlarge=-1'",)),
        (("--price-date", "May"), ("--price-date 'May'", "2025-03-31")),
        (("--set", "training.batch=999999"), ("1 x p4d.24xlarge: ", "GB")),
        (("--set", "parallel.tensor=16"), ("tensor 16", "8 GPUs")),
        (("--set", "training.batch=-2"), ("--set training.batch=-2",)),
        (("--plot", "/nowhere/x.png"), ("--plot", "/nowhere")),
        (("--plot", "x.jpeg"), ("--plot", ".png")),
        (("--runs", "/nowhere"), ("/nowhere",)),
        (("--workload", "vit-l-306m,llama-3-8b", "--plot", "x.png"), ("--plot",)),
    ],
)
def test_impossible_request_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], facts: tuple[str, ...]
) -> None:
    message = printed(capsys, *TWO, *words, code=2)
    assert [fact for fact in facts if fact not in message] == [], message


def test_refused_machine_is_left_out_with_its_calculation(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("select", "--workload", "mixtral-8x7b", "--instances", "p5.48xlarge,p5en.48xlarge")
    [skipped] = document_of(capsys, *words)["skipped"]
    assert (skipped["instance"], skipped["num_nodes"], skipped["code"]) == ("p5.48xlarge", 1, "no-memory")
    facts = skipped["error"]["facts"]
    assert facts["needed_gb"] == pytest.approx(96.8, abs=0.05) and facts["memory_gb"] == 80
    assert "7.24e+09 x 12 bytes / 8, experts / 1" in facts["calculation"]


def test_many_refused_machines_share_their_calculations(capsys: pytest.CaptureFixture[str]) -> None:
    """On two nodes a GPU holds less, because the states are sharded further: two lines, each with its machines."""
    words = ("--instances", "g5.48xlarge,g6.48xlarge,p4d.24xlarge,p5en.48xlarge", "--nodes", "1,2")
    asked = ("select", "--workload", "mixtral-8x7b", *words, "--wide")
    page = " ".join(printed(capsys, *asked).replace("\n#     ", " ").split())
    for num_nodes, calculation in ((1, "/ 8, experts / 1"), (2, "/ 16, experts / 2")):
        machines = ", ".join(f"{num_nodes} x {name}" for name in ("g5.48xlarge", "g6.48xlarge", "p4d.24xlarge"))
        assert page.count(f"{machines}: weights ") == 1
        assert page.count(f"7.24e+09 x 12 bytes {calculation}") == 1


def test_torch_and_mpi_are_not_needed() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'mpi4py', 'cupy'))); from bench.__main__ import main; "
        f"sys.exit(main({list(TWO)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_readme_shows_the_printed_table(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/tour.md's block must be stored again when predictions or wording change."""
    [block] = [
        part
        for part in (ROOT / "docs" / "tour.md").read_text(encoding="utf-8").split("```")
        if "break-even $/h" in part
    ]
    lines = printed(capsys, *TWO).splitlines()
    assert [line for line in block.strip("\n").splitlines() if line not in lines] == []


def test_half_a_link_slows_only_what_crosses_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Half an NVLink doubles the exchange of one node; half a NIC does not change it."""
    site = tmp_path / "bench.yaml"
    site.write_text(
        "clusters: {}\ninstances:\n"
        "  half-nvlink: {like: p4d.24xlarge, links: {nvlink: 150GB/s}, price: 21.957642}\n"
        "  half-nic: {like: p4d.24xlarge, links: {nic: 6.25GB/s}, price: 21.957642}\n"
    )
    words = ("select", "--workload", "vit-l-306m", "--instances", "p4d.24xlarge,half-nvlink,half-nic")
    document = json.loads(printed(capsys, *words, "--config", str(site), "--format", "json"))
    found = {each["instance"]: each for each in document["machines"]}
    whole, half, nic = (found[name] for name in ("p4d.24xlarge", "half-nvlink", "half-nic"))
    assert 1.6 < half["exchange_s"] / whole["exchange_s"] < 2.05
    assert half["compute_s"] == whole["compute_s"]
    assert nic["exchange_s"] == pytest.approx(whole["exchange_s"], rel=0.03)
    assert half["usd_per_hour"] == whole["usd_per_hour"]


def test_imported_log_replaces_the_interval(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An nccl-tests log on eight L40S with made-up figures: 5.25 GB/s of busbw at every size."""
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
    document = json.loads(printed(capsys, *TWO, "--runs", str(run), "--format", "json"))
    g6e = next(each for each in document["machines"] if each["instance"] == "g6e.48xlarge")
    assert g6e["exposed_basis"] == "imported"
    assert g6e["exchange_s"] == pytest.approx(306e6 * 4 * 1.75 / 5.25e9, rel=0.1)
    narrower, wider = (
        g6e["step_high_s"] / g6e["step_low_s"],
        g6e["step_without_runs_high_s"] / g6e["step_without_runs_low_s"],
    )
    assert narrower < 0.8 * wider
    assert {note["code"] for note in document["decision_notes"]} >= {"measured", "measured-nothing"}  # g6e and p4d


def test_unknown_rate_can_be_given_as_the_message_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("select", "--workload", "llama-3-8b", "--nodes", "8", "--instances")
    [left_out] = document_of(capsys, *words, "gpu_8x_h100_sxm5,p5.48xlarge")["skipped"]
    assert "--links" not in left_out["reason"]
    [entry] = re.findall(r"`(instances: .*?)`", left_out["reason"])
    site = tmp_path / "bench.yaml"
    site.write_text(f"clusters: {{}}\n{entry[:-2]}, price: 10}}}}\n")
    assert "8 x mine" in printed(capsys, *words, "mine", "--config", str(site), "--explain", "mine")


def test_a_machine_without_a_price_neither_keeps_nor_exceeds_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("select", "--workload", "vit-l-306m", "--instances", "DGX A100,p4d", "--samples", "1M", "--budget", "1000")
    unpriced, priced = (
        next(line for line in printed(capsys, *words).splitlines() if f"  {name}" in line and not line.startswith("#"))
        for name in ("DGX A100", "p4d.24xlarge")
    )
    assert "100 %" in priced and "%" not in unpriced


def test_the_page_answers_first_and_has_at_most_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("select", "--workload", "llama-3-8b", "--nodes", "8", "--tokens", "100B", "--budget", "20000")
    page = printed(capsys, *words)
    answer = document_of(capsys, *words)["answer"]["text"]
    lines = page.splitlines()
    assert lines[0].removeprefix("# ") in answer
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("--checkpoint-every", "1h"), ("--checkpoint-every", "--checkpoint")),
        (("--usd-per-kwh", "0.1"), ("--usd-per-kwh", "--prices")),
        (("--budget", "0"), ("--budget '0'",)),
        (("--samples", "1M", "--epochs", "2"), ("--samples", "--epochs")),
        (("--prices", "/nowhere.yaml"), ("/nowhere.yaml",)),
        (("--workload", "llama-3-8b", "--deadline", "3d"), ("--deadline", "--tokens")),
    ],
)
def test_a_wrong_decision_option_is_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], facts: tuple[str, ...]
) -> None:
    message = printed(capsys, *TWO, *words, code=2)
    assert [fact for fact in facts if fact not in message] == [], message


def test_a_run_of_tokens_is_answered_in_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("select", "--workload", "llama-3-8b", "--instances", "p4d,p5", "--nodes", "8", "--tokens", "100B")
    document = document_of(capsys, *words)
    assert document["run"]["tokens"] == 100e9 and document["answer"]["facts"]["tokens"] is True
    for machine in document["machines"]:
        assert machine["tokens_per_s"] == pytest.approx(8192 * machine["samples_per_s"])
        assert machine["usd_per_million_tokens"] == pytest.approx(1e6 * machine["usd_per_run"] / 100e9)
    page = printed(capsys, *words)
    assert "tokens/s" in page and "$/1M tokens" in page and "100B" in page and "step (ms)" not in page
    samples = document_of(capsys, *words[:-2], "--samples", "1M")
    assert samples["run"]["tokens"] is None and samples["answer"]["facts"]["tokens"] is False
