"""Several ranks on one folder: reads beside other reads, and checkpoints beside steps of a job."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import ROOT

FAKES = ROOT / "tests" / "fakes"
Run = Callable[..., Any]
Start = Callable[[int], tuple[str, ...]]


@pytest.mark.mpi
def test_a_reader_is_measured_with_and_without_another_on_the_same_folder(
    run: Run, mpirun: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    words = ("--sizes", "1M", "--record", "64K", "--mode", "isolated", "-n", "3", "--aggressor", "feed:1M")
    ran = run(*mpirun(2), "-m", "bench.feed", *words, "--folder", str(folder), "--format", "json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    (found,), (fed,) = document["interferences"], document["feeds"]
    assert found["aggressor"] == "feed" and found["aggressor_bytes_per_s"] > 0
    assert found["alone_s"] > 0 and found["disturbed_s"] > 0
    assert fed["state"] == "cold" and fed["device_share"] >= 0.99
    assert list(folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.torch
def test_two_ranks_write_checkpoints_beside_their_steps(run: Run, torchrun: Start, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    words = ("--transport", "gloo", "--sizes", "1M", "--step-time", "2ms", "--exchange", "64K", "-n", "2")
    more = ("--method", "dcp_async", "--folder", str(folder), "--format", "json")
    ran = run(*torchrun(2), "-m", "bench.checkpoint", *words, *more, timeout_s=500)
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    (found,) = document["checkpoints"]
    assert found["num_ranks"] == 2 and found["num_bursts"] == 2
    assert found["device_share"] >= 0.99
    assert found["blocked_s"] > 0 and found["exchange_alone_s"] > 0 and found["step_s"] >= 0.002
    assert found["exchange_during_s"] > 0
    assert document["summaries"][0]["verified"] is True
    assert list(folder.iterdir()) == []


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("num_gpus", [1, 2])
def test_the_gpu_of_each_rank_is_recorded(num_gpus: int, run: Run, mpirun: Start, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    words = ("--sizes", "1M", "--record", "64K", "--mode", "isolated", "-n", "2", "--to", "device", "--share-gpu", "1")
    path = os.pathsep.join([str(FAKES / "cupy_host"), str(ROOT)])
    env = {"PYTHONPATH": path, "FAKE_CUDA_GPUS": str(num_gpus)}
    ran = run(*mpirun(2), "-m", "bench.feed", *words, "--folder", str(folder), "--format", "json", env=env)
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    (fed,), (header,) = document["feeds"], document["headers"].values()
    assert fed["num_ranks"] == 2 and fed["copied_s"] > 0
    assert len({rank["gpu_pci_bus"] for rank in header["ranks"]}) == num_gpus
    assert list(folder.iterdir()) == []
