"""`bench select --runs` with a run of gpu_baseline: the measured rate goes before the published one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.core.record import Samples
from bench.store import jsonl

ROOT = Path(__file__).parents[2]
Make = Callable[..., Any]
TYPED = ("select", "--workload", "llama-3-8b", "--instances", "p5en.48xlarge")


@pytest.fixture
def run_of(tmp_path: Path, a_header: Make, a_record: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`run_of(800e12)`: a results file of two H200 with so many FLOP/s of bfloat16, the second a tenth faster."""
    monkeypatch.chdir(ROOT)

    def make(rate: float, gpu: str = "NVIDIA H200") -> str:
        header = a_header(
            job="gpu_baseline-nccl",
            pattern="gpu_baseline",
            case=("gpu_baseline", "--transport", "nccl"),
            transport="nccl",
            dtype="bfloat16",
            topology="groups of 1",
            clock="device",
            num_ranks=2,
            num_nodes=1,
            ranks_per_node=2,
            facts={"gpu": gpu},
            ranks=tuple({"host": "h", "local_rank": k} for k in range(2)),
        )
        file = tmp_path / "run.jsonl"
        writer = jsonl.Writer(file, header)
        for k, faster in enumerate((1.0, 1.1)):
            samples = Samples([2 * 8192**3 / (rate * faster)] * 30)
            writer.append(
                a_record(
                    mode="pipelined",
                    payload_bytes=8192 * 8192 * 2,
                    num_ranks=1,
                    num_nodes=1,
                    bus_factor=None,
                    group=f"group{k}",
                    samples=samples,
                )
            )
        return str(file)

    return make


def computed(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[float, str]:
    """(seconds that a step computes, the derivation) of the one machine."""
    assert main((*TYPED, *more, "--format", "json")) == 0
    machine = json.loads(capsys.readouterr().out)["machines"][0]
    assert main((*TYPED, *more, "--explain", "p5en.48xlarge")) == 0
    return float(machine["compute_s"]), capsys.readouterr().out


def test_the_rate_of_the_slowest_gpu_takes_the_place_of_what_was_published(
    run_of: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    slow_s, told = computed(capsys, "--runs", run_of(400e12))
    assert "matrix multiplication 400 TFLOP/s (bfloat16, measured: own run, its slowest GPU)" in told
    usual_s, usual = computed(capsys)
    assert "own run" not in usual and slow_s > 1.5 * usual_s


def test_a_run_of_another_gpu_says_nothing_of_this_one(run_of: Make, capsys: pytest.CaptureFixture[str]) -> None:
    _, told = computed(capsys, "--runs", run_of(400e12, "NVIDIA A100-SXM4-80GB"))
    assert "own run" not in told


def test_a_run_that_tells_nothing_is_still_refused(run_of: Make, capsys: pytest.CaptureFixture[str]) -> None:
    assert main((*TYPED, "--runs", run_of(400e12, "NVIDIA Unheard-Of"))) == 2
    assert "holds no collective among GPUs" in capsys.readouterr().err
