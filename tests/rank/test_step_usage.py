"""Memory of a training step on this rank, read from a real process, and energy from a stand-in of NVML."""

from __future__ import annotations

from typing import Any

import pytest

from bench.probes import nvml
from bench.rank.step_usage import StepUsage, together
from tests.fakes.nvml_library import NvmlLibrary, a_gpu


def test_the_peak_is_what_was_allocated_since_the_beginning() -> None:
    usage = StepUsage("gloo", 0)
    bytearray(64 << 20)[:: 1 << 12] = b"x" * (1 << 14)  # every page is touched
    found = usage.found({})
    assert 60 << 20 < found["peaks"]["host"] < 90 << 20
    assert found["energy_j"] is None


def test_what_one_rank_does_not_know_is_left_out() -> None:
    ranks: list[dict[str, Any]] = [
        {"peaks": {"host": 3, "allocated": 5}, "energy_j": 2.0},
        {"peaks": {"host": 4}, "energy_j": None},
    ]
    assert together(ranks) == {"peak_bytes": {"host": [3, 4]}, "energy_j": []}


def test_energy_is_that_of_the_ranks_own_gpu_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([10_000, 10_600])
    gpus = [a_gpu("A", "0000:01:00.0"), a_gpu("B", "0000:02:00.0")]
    gpus[1]["nvmlDeviceGetTotalEnergyConsumption"] = lambda: next(readings)
    NvmlLibrary(gpus).install(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    usage = StepUsage("nccl", 0)
    usage.begin()
    usage.end(3)
    assert usage.found({})["energy_j"] == pytest.approx(0.2)


def test_a_gpu_that_is_not_visible_has_no_energy() -> None:
    assert nvml.own_index({"CUDA_VISIBLE_DEVICES": "1"}, 1) is None
    assert nvml.own_index({}, 3) == 3
