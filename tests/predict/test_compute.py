"""Computation time: operations by rate, recomputation, the update, baselines, and assumptions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.core.errors import UsageError
from bench.hardware import catalogue
from bench.predict.compute import GPU_DEVIATION, MATMUL_SHARE, MEMORY_SHARE, Compute, compute
from bench.predict.draws import Draws, range_of
from bench.predict.messages import Refusal
from bench.predict.training import layout
from bench.predict.utilisation import PRIOR_SHARE, predicted_share
from bench.predict.workload import Mesh, ModelSizes, Workload

SMALL = ModelSizes(196608, layers=4, hidden=64, feedforward=256, heads=8, tokens=128, flops_per_sample=3.12e12)


def on(gpu: str, **others: Any) -> Compute:
    workload = replace(Workload("test", SMALL, batch=10), **others)
    return compute(layout(workload, 1, 8), catalogue.gpu(gpu), Draws())


def test_given_efficiency_is_a_fraction_of_the_data_sheet() -> None:
    found = on("A100-SXM4-80GB", efficiency={"": (0.5, 0.5)})
    assert range_of(found.passes_s).middle == pytest.approx(10 * 3.12e12 / (0.5 * 312e12))
    assert found.basis == "assumed"


def test_efficiency_of_one_gpu_replaces_that_of_all() -> None:
    found = on("A100-SXM4-80GB", efficiency={"": (0.5, 0.5), "A100-SXM4-80GB": (0.25, 0.25)})
    assert range_of(found.passes_s).middle == pytest.approx(0.4)


def test_recomputation_adds_a_third_and_the_mesh_divides_the_work() -> None:
    plain = range_of(on("A100-SXM4-80GB", efficiency={"": (0.5, 0.5)}).passes_s).middle
    again = on("A100-SXM4-80GB", efficiency={"": (0.5, 0.5)}, recompute="full")
    assert range_of(again.passes_s).middle == pytest.approx(plain * 4 / 3)
    parts = on("A100-SXM4-80GB", efficiency={"": (0.5, 0.5)}, mesh=Mesh(tensor=4, pipeline=2))
    assert range_of(parts.passes_s).middle == pytest.approx(plain / 8)


@pytest.mark.parametrize(
    ("others", "num_bytes"),
    [
        ({}, 4 + 2 * (4 + 8)),  # AdamW: gradient read, weight and two moments read and written
        ({"optimizer": "sgd"}, 4 + 2 * 4),
        ({"weights": "bfloat16", "gradients": "bfloat16"}, 2 + 2 * (2 + 4 + 8)),
        ({"strategy": "zero1"}, (4 + 2 * (4 + 8)) / 8),
    ],
)
def test_update_time_is_state_bytes_by_memory_rate(others: dict[str, Any], num_bytes: float) -> None:
    found = range_of(on("A100-SXM4-80GB", **others).update_s)
    slowest, fastest = MEMORY_SHARE
    assert found.low == pytest.approx(196608 * num_bytes / (fastest * 2039e9), rel=0.01)
    assert found.high == pytest.approx(196608 * num_bytes / (slowest * 2039e9), rel=0.01)


def test_baseline_is_measured_and_includes_the_update() -> None:
    found = on("L40S", baselines={"L40S": (200.0, 200.0)})
    assert range_of(found.passes_s).middle == pytest.approx(10 / 200)
    assert range_of(found.update_s).middle == 0
    assert found.basis == "measured"


def test_unmeasured_rate_is_the_share_of_published_training_runs() -> None:
    share = predicted_share(catalogue.gpu("A100-SXM4-80GB"), "none", "other")
    found = range_of(on("A100-SXM4-80GB").passes_s)
    assert found.middle == pytest.approx(10 * 3.12e12 / (312e12 * share.median), rel=0.01)
    assert 1.9 < found.high / found.low < 2.4


def test_shared_software_cancels_in_the_ratio_of_two_gpus() -> None:
    """Only the deviations of the GPUs remain."""
    draws = Draws()
    workload = Workload("w", ModelSizes(1e6, flops_per_sample=3.12e12), 10)
    seconds = [
        compute(layout(workload, 1, 8), catalogue.gpu(gpu), draws).passes_s
        for gpu in ("A100-SXM4-80GB", "H100-SXM5-80GB")
    ]
    ratio, alone = range_of(seconds[0] / seconds[1]), range_of(seconds[0])
    assert ratio.high / ratio.low < alone.high / alone.low
    assert ratio.low < 2.06 < 2.41 < ratio.high  # measured head to head


def test_an_architecture_without_runs_is_less_sure() -> None:
    known, unknown = (predicted_share(catalogue.gpu(gpu), "none", "language") for gpu in ("A100-SXM4-80GB", "L40S"))
    assert unknown.num_runs == 0
    assert unknown.sd_gpu > 2 * known.sd_gpu


def test_a_kind_of_model_without_runs_is_less_sure() -> None:
    """All published runs are of language models: the same median, a wider interval, alike on every GPU."""
    language, other = (predicted_share(catalogue.gpu("L40S"), "none", kind) for kind in ("language", "other"))
    assert other.median == language.median
    assert other.sd_gpu == language.sd_gpu
    assert other.sd_shared > 1.1 * language.sd_shared


def test_a_run_does_not_predict_itself() -> None:
    """Leaving out all runs leaves the assumption; leaving out one source changes the share of its GPUs."""
    gpu = catalogue.gpu("H100-SXM5-80GB")
    assert predicted_share(gpu, "none", "language", lambda run: True).median == PRIOR_SHARE
    others = predicted_share(gpu, "none", "language", lambda run: run.source == "llm-foundry")
    assert others.num_sources == predicted_share(gpu, "none", "language").num_sources - 1


def test_gpus_of_other_makers_keep_the_rate_of_multiplication() -> None:
    found = on("MI300X")
    assert "matmul share" in found.unknowns
    slowest, fastest = (10 * 3.12e12 / (668.4e12 * MATMUL_SHARE[end] * GPU_DEVIATION[end]) for end in (0, 1))
    seconds = range_of(found.passes_s)
    assert fastest < seconds.low < seconds.high < slowest


@pytest.mark.parametrize(
    ("gpu", "others", "setting"),
    [
        ("T4", {}, "training.compute=float16"),
        ("RTX PRO 6000 Blackwell SE", {}, "training.baselines of RTX PRO 6000 Blackwell SE"),
        ("T4", {"efficiency": {"": (0.5, 0.5)}}, "training.compute=float16"),
    ],
)
def test_unknown_rate_is_refused_with_a_remedy(gpu: str, others: dict[str, Any], setting: str) -> None:
    with pytest.raises(UsageError) as caught:
        on(gpu, **others)
    assert caught.value.code == Refusal.DTYPE_RATE_UNKNOWN
    assert caught.value.facts == {"dtype": "bfloat16", "gpu": gpu, "setting": setting}


def test_figures_without_a_source_are_unverified() -> None:
    assert on("L40S").verified
    assert not on("A10G").verified  # its rates
    assert on("A100-SXM4-40GB", baselines={"A100-SXM4-40GB": (1.0, 1.0)}).verified


def test_baseline_of_one_gpu_narrows_the_others() -> None:
    """A100 trains at half of its best multiplication, so H100 is expected at half of its own, +- GPU_DEVIATION."""
    samples_per_s = 0.5 * 271.2e12 / 3.12e12
    found = on("H100-SXM5-80GB", baselines={"A100-SXM4-80GB": (samples_per_s, samples_per_s)})
    seconds = range_of(found.passes_s)
    assert seconds.middle == pytest.approx(10 * 3.12e12 / (0.5 * 794.5e12), rel=0.01)
    assert 1.5 < seconds.high / seconds.low < 1.6  # both GPUs deviate
    assert "baseline A100-SXM4-80GB" in found.unknowns
    assert found.basis == "assumed"


def test_baseline_of_a_gpu_without_a_rate_is_ignored() -> None:
    found = on("H100-SXM5-80GB", baselines={"T4": (5.0, 5.0)})  # no rate of bfloat16 is known for it
    assert "training share" in found.unknowns
    assert range_of(found.passes_s).middle == range_of(on("H100-SXM5-80GB").passes_s).middle
