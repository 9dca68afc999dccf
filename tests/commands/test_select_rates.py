"""`linkbench select --runs` with a run of gpu_baseline: the measured rate replaces the published one."""

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
    """`run_of(800e12)`: a results file of two H200 with this rate in bfloat16; the second GPU is a tenth faster."""
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
    """(compute seconds of a step, derivation) of the machine."""
    assert main((*TYPED, *more, "--format", "json")) == 0
    machine = json.loads(capsys.readouterr().out)["machines"][0]
    assert main((*TYPED, *more, "--explain", "p5en.48xlarge")) == 0
    return float(machine["compute_s"]), capsys.readouterr().out


def test_rate_of_the_slowest_gpu_replaces_the_published_rate(run_of: Make, capsys: pytest.CaptureFixture[str]) -> None:
    slow_s, derivation = computed(capsys, "--runs", run_of(400e12))
    published_s, published = computed(capsys)
    assert "400 TFLOP/s" in derivation and "400 TFLOP/s" not in published
    assert slow_s > 1.5 * published_s


def test_run_of_another_gpu_is_ignored(run_of: Make, capsys: pytest.CaptureFixture[str]) -> None:
    ignored_s, page = computed(capsys, "--runs", run_of(400e12, "NVIDIA A100-SXM4-80GB"))
    published_s, published = computed(capsys)
    assert ignored_s == published_s
    told = set(page.splitlines()) - set(published.splitlines())
    assert [line for line in told if "your runs did not change the prediction" not in line] == []


def test_run_without_evidence_is_refused(run_of: Make, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_of(400e12, "NVIDIA Unheard-Of")
    assert main((*TYPED, "--runs", path)) == 2
    assert path in capsys.readouterr().err
