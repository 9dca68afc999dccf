"""Real jobs of styles other than plain data parallelism: healthy ones accuse nobody, a late rank is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from tests.job import styled_job

pytestmark = [pytest.mark.slow, pytest.mark.torch]
# What a healthy job may have: what its style costs by design, and what a loaded machine adds.
BY_DESIGN = {"exchange_cannot_hide", "exchange_not_hidden", "bubble", "recompute", "few_cpus", "unknown"}


def explained(style: str, folder: Path, capsys: pytest.CaptureFixture[str], *more: str, num: int = 2) -> dict[str, Any]:
    """What `job explain` says of a job of this style."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num}"]
    words += [str(Path(styled_job.__file__)), "--style", style, "--output", str(folder), *more]
    subprocess.run(words, check=True, timeout=200, capture_output=True)
    main(["job", "explain", str(folder), "--format", "json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize("style", ["ddp", "fsdp", "accumulation", "checkpoint", "evaluation"])
def test_a_healthy_job_accuses_nobody(style: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = explained(style, tmp_path, capsys)
    assert {cause["code"] for cause in document["causes"]} <= BY_DESIGN
    assert [late for late in document["late_ranks"] if late["share"] > 0.5] == []


@pytest.mark.parametrize("style", ["ddp", "fsdp", "accumulation", "checkpoint", "evaluation"])
def test_a_late_rank_is_named_with_its_segment(style: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = explained(style, tmp_path, capsys, "--late", "0.02")
    first = document["late_ranks"][0]
    assert (first["rank"], first["segment"]) == (1, "backward")
    assert "late_rank" in {cause["code"] for cause in document["causes"]}


@pytest.mark.parametrize(("style", "num"), [("gpipe", 2), ("1f1b", 2), ("gpipe", 4)])
def test_the_bubble_of_a_pipeline_is_that_of_its_formula(
    style: str, num: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """(p - 1) / (m + p - 1) of the step; the layers of a stage sleep for 12 ms each, in both directions together."""
    document = explained(style, tmp_path, capsys, num=num)
    codes = {cause["code"] for cause in document["causes"]}
    assert "bubble" in codes and not codes & {"late_rank", "random_lateness", "late_input"}
    share = (num - 1) / (styled_job.NUM_MICRO_BATCHES + num - 1)
    waits = [rank["parts"]["imbalance_s"] for rank in document["ranks"]]
    assert max(waits) == pytest.approx(share * document["step_s"], rel=0.15, abs=5e-3)
