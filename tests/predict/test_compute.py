"""Computation time: operations by rate, recomputation, the update, baselines, and assumptions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.core.errors import UsageError
from bench.hardware import catalogue
from bench.predict.compute import MEMORY_SHARE, Compute, compute
from bench.predict.draws import Draws, range_of
from bench.predict.effects import Observation, effects_of, fit, published_effects
from bench.predict.kernels import OTHER_KERNELS, kernels, product_share
from bench.predict.layout import layout
from bench.predict.messages import Refusal
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


LLAMA = ModelSizes(
    8.03e9, layers=32, hidden=4096, feedforward=14336, gated=True, heads=32, kv_heads=8, vocabulary=128256, tokens=4096
)


def llama(gpu: str, **others: Any) -> float:
    """The middle of the seconds of the passes of one Llama 3 8B sample."""
    workload = replace(Workload("llama", LLAMA, batch=1), **others)
    return range_of(compute(layout(workload, 1, 8), catalogue.gpu(gpu), Draws()).passes_s).middle


def test_sizes_that_are_unknown_are_a_typical_mixture_of_kernels() -> None:
    gpu = catalogue.gpu("A100-SXM4-80GB")
    found = kernels(layout(Workload("test", SMALL, batch=10), 1, 8), gpu)
    assert found.products_s == pytest.approx(OTHER_KERNELS * 10 * 3.12e12 / 271.2e12)
    assert (found.attention_s, found.memory_s) == (0, 0)


def test_memory_limits_what_is_not_a_product() -> None:
    """H100 multiplies 2.93 times as fast as A100 (best products), and its memory is 1.64 times as fast."""
    ratio = llama("A100-SXM4-80GB") / llama("H100-SXM5-80GB")
    assert 2.0 < ratio < 2.93


def test_low_precision_speeds_up_products_only() -> None:
    wide, narrow = (
        kernels(layout(Workload("w", LLAMA, 1, compute=each), 1, 8), catalogue.gpu("H100-SXM5-80GB"))
        for each in ("bfloat16", "float8")
    )
    assert narrow.products_s == pytest.approx(wide.products_s * 989 / 1979)
    assert (narrow.attention_s, narrow.memory_s) == (wide.attention_s, wide.memory_s)
    assert llama("H100-SXM5-80GB", compute="float8") > llama("H100-SXM5-80GB") / 2


def test_adapters_save_the_gradients_of_the_weights() -> None:
    assert 0.6 < llama("H100-SXM5-80GB", lora=16) / llama("H100-SXM5-80GB") < 0.85


def test_a_user_s_own_product_replaces_the_published_one() -> None:
    gpu = catalogue.gpu("H100-SXM5-80GB")
    share, basis = product_share(gpu)
    assert share == pytest.approx(794.5 / 989) and basis == "published"
    share, basis = product_share(gpu, {(gpu.name, "bf16"): 700e12})
    assert share == pytest.approx(700 / 989) and basis == "measured"
    assert product_share(catalogue.gpu("A10"))[1] == "typical"


def test_shared_software_cancels_in_the_ratio_of_two_gpus() -> None:
    """Only the deviations of the GPUs remain."""
    draws = Draws()
    workload = Workload("w", LLAMA, 10)
    seconds = [
        compute(layout(workload, 1, 8), catalogue.gpu(gpu), draws).passes_s
        for gpu in ("A100-SXM4-80GB", "H100-SXM5-80GB")
    ]
    ratio, alone = range_of(seconds[0] / seconds[1]), range_of(seconds[0])
    assert ratio.high / ratio.low < (alone.high / alone.low) ** 1.3  # 1.41 if both were independent
    assert ratio.low < 2.34 < ratio.high  # measured head to head (MPT 7B, 4096 tokens)


def test_an_architecture_without_runs_is_less_sure() -> None:
    known, unknown = (range_of(on(gpu, compute="float16").passes_s) for gpu in ("A100-SXM4-80GB", "T4"))
    assert unknown.high / unknown.low > 1.08 * known.high / known.low


def test_a_kind_of_model_without_runs_is_less_sure() -> None:
    """All published runs are of language models, which have a vocabulary."""
    ranges = [
        range_of(compute(layout(Workload("w", model, 1), 1, 8), catalogue.gpu("L40S"), Draws()).passes_s)
        for model in (LLAMA, replace(LLAMA, parameters=6.98e9, vocabulary=None))
    ]
    assert ranges[1].high / ranges[1].low > 1.1 * ranges[0].high / ranges[0].low


def test_the_fit_returns_priors_without_runs_and_moves_towards_a_measurement() -> None:
    workload = Workload("w", LLAMA, 1)
    effects = effects_of(catalogue.gpu("H100-SXM5-80GB"), workload, "published")
    shares = {"products": 0.7, "attention": 0.1, "memory": 0.2}
    slow = Observation("someone", "hopper", effects, 0.2, shares, 0.0)
    nothing, one, ten = (fit([slow] * count) for count in (0, 1, 10))
    for effect in effects:
        assert nothing.mean(effect) == effect.mean
        assert effect.mean < one.mean(effect) <= ten.mean(effect)
    changes = [
        sum(slow.share(each.target) * (found.mean(each) - each.mean) for each in effects) for found in (one, ten)
    ]
    assert 0 < changes[0] < changes[1] < 0.2  # one source, however many runs, is not all there is


def test_compiled_software_is_faster() -> None:
    assert llama("H100-SXM5-80GB", software="compiled") < 0.95 * llama("H100-SXM5-80GB", software="pytorch")


def test_software_that_fuses_kernels_is_faster() -> None:
    assert llama("H100-SXM5-80GB", software="fused") < 0.95 * llama("H100-SXM5-80GB", software="pytorch")
    assert llama("H100-SXM5-80GB", strategy="zero1") == llama("H100-SXM5-80GB", software="fused", strategy="zero1")


def test_published_effects_have_a_proper_covariance() -> None:
    found = published_effects()
    assert len(found.factor) == len(found.means) == len(found.names) > 15
    for k, row in enumerate(found.factor):
        assert row[k] > 0
        assert not any(row[k + 1 :])


def test_gpus_that_no_run_resembles_keep_the_rate_of_multiplication() -> None:
    found = on("Trainium2")
    assert "matmul share" in found.unknowns


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
    """A100 trains 10 % slower than expected, so H100 is expected to, too: the job's software is the same."""
    workload = Workload("w", LLAMA, 1)
    every = layout(workload, 1, 1)
    draws = Draws()
    alone = compute(every, catalogue.gpu("A100-SXM4-80GB"), draws)
    measured = 1 / (1.1 * range_of(alone.passes_s + alone.update_s).middle)
    told = replace(workload, baselines={"A100-SXM4-80GB": (measured, measured)})
    free, bound = (
        range_of(compute(layout(each, 1, 1), catalogue.gpu("H100-SXM5-80GB"), Draws()).passes_s)
        for each in (workload, told)
    )
    assert bound.middle == pytest.approx(1.1 * free.middle, rel=0.02)
    assert bound.high / bound.low < free.high / free.low
    assert "baseline A100-SXM4-80GB" in compute(layout(told, 1, 1), catalogue.gpu("H100-SXM5-80GB"), Draws()).unknowns


def test_baseline_of_a_gpu_without_a_rate_is_ignored() -> None:
    found = on("H100-SXM5-80GB", baselines={"T4": (5.0, 5.0)})  # no rate of bfloat16 is known for it
    assert "training software" in found.unknowns
    assert range_of(found.passes_s).middle == range_of(on("H100-SXM5-80GB").passes_s).middle
