"""Held-out training runs, and the sizes that published models have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.core.errors import UsageError
from bench.hardware.catalogue import gpu
from bench.predict import from_args
from bench.predict.effects import fit, published_effects
from bench.predict.kernels import RATES
from bench.predict.layout import layout
from bench.predict.memory import memory_need, refused
from bench.predict.operations import work
from bench.predict.training_observations import observations
from bench.predict.training_runs import runs
from bench.predict.validate_training import (
    CLASSES,
    HeadToHead,
    HeldOutRun,
    head_to_heads,
    held_out_runs,
    memory_facts,
    summarize_ratios,
    summarize_training,
)
from bench.predict.workload import ModelSizes


def held_out(index: int, factor: float, held: str = "source") -> HeldOutRun:
    """A prediction that is `factor` times the measurement."""
    run = runs()[index]
    rate = run.samples_per_s_per_gpu
    return HeldOutRun(
        run,
        held,
        0.9 * factor * rate,
        factor * rate,
        1.1 * factor * rate,
        rate,
        None,
        refused=False,
        memory_gib=1.0,
    )


def test_errors_are_medians_over_runs() -> None:
    rows = [held_out(index, factor) for index, factor in enumerate((1.0, 1.2, 1.5))]
    found = summarize_training(rows)[0]
    assert (found.name, found.num_runs) == ("all", 3)
    assert found.error == pytest.approx(0.2)
    assert found.covered == pytest.approx(1 / 3)
    assert found.width == pytest.approx(11 / 9)


def test_head_to_heads_are_the_same_job_on_two_gpus() -> None:
    rows = [held_out(index, 1.0) for index in range(len(runs()))]
    found = head_to_heads(rows)
    ratios = [each for each in found if each.gpus == ("H100-SXM5-80GB", "A100-SXM4-80GB")]
    assert len(ratios) >= 27
    assert all(each.error == pytest.approx(0) for each in ratios)


def test_ratios_are_of_one_release_and_of_the_nearest_numbers_of_gpus() -> None:
    first = next(index for index, run in enumerate(runs()) if run.source == "fms-fsdp" and run.gpu.startswith("A100"))
    below = held_out(first, 1.0)
    fast = next(run for run in runs() if run.source == "fms-fsdp" and run.gpu.startswith("H100"))
    above = [
        replace(below, run=replace(fast, workload=below.run.workload, num_nodes=nodes, samples_per_s_per_gpu=nodes))
        for nodes in (12, 24, 160)
    ]
    [found] = head_to_heads([below, *above])
    assert found.measured == pytest.approx(12 / below.measured)  # 160 nodes are too many, 12 are nearer to 16 than 24
    other = [replace(row, run=replace(row.run, release="next")) for row in above]
    assert head_to_heads([below, *other]) == ()


def test_ratios_are_summarized_by_architectures_and_source() -> None:
    ratios = [
        HeadToHead("a job", source, ("H100-SXM5-80GB", "A100-SXM4-80GB"), 2.0, predicted)
        for source, predicted in (("one", 2.2), ("one", 2.4), ("two", 2.0))
    ]
    first, second = summarize_ratios(ratios)
    assert (first.architectures, first.source, first.num_near, first.num_ratios) == ("hopper / ampere", "one", 1, 2)
    assert first.error == pytest.approx(0.15)
    assert (second.source, second.num_near) == ("two", 1)


def test_published_rates_are_possible() -> None:
    """No run exceeds the data sheet, and none is so slow that a figure must be wrong."""
    for run in runs():
        rate = gpu(run.gpu).flops[RATES[run.workload.compute]]
        share = run.samples_per_s_per_gpu * work(run.workload).operations / rate
        assert 0.08 < share < 0.9, run.workload.name
        layout(run.workload, run.num_nodes, run.gpus_per_node)


@pytest.fixture(scope="module")
def every() -> tuple[HeldOutRun, ...]:
    return held_out_runs(from_args.evidence([]))


@pytest.mark.slow
def test_held_out_runs_are_predicted_better_than_by_one_line_rules(every: tuple[HeldOutRun, ...]) -> None:
    """The limits are above today's figures (docs/prediction.md); a worse model or a wrong row exceeds them."""
    whole = {each.held_out: each for each in summarize_training(every) if each.name == "all"}
    assert set(whole) == set(CLASSES)
    for name, most in (("family", 0.085), ("source", 0.085), ("architecture", 0.13), ("model_family", 0.085)):
        found = whole[name]
        assert found.error < most < found.half
        assert found.by_architecture is None or found.error < found.by_architecture
        assert 0.85 < found.covered < 0.99
        assert found.num_refused == 0
    assert max(whole[name].width for name in ("family", "source", "model_family")) < 1.6
    assert sum(each.near for each in head_to_heads(every)) >= 90


@pytest.mark.slow
def test_a_run_does_not_predict_itself(every: tuple[HeldOutRun, ...]) -> None:
    """Without its source, a run is predicted by other effects than with it."""
    first = {row.held_out: row.predicted for row in reversed(every)}
    assert first["source"] != first["architecture"]


@pytest.mark.slow
def test_the_stored_effects_are_those_of_the_published_runs() -> None:
    """If this fails: python -m benchmarks.training_fit."""
    stored, fitted = published_effects(), fit(observations(from_args.evidence([])))
    assert stored.names == fitted.names
    assert stored.means == pytest.approx(fitted.means, abs=2e-4)
    for kept, found in zip(stored.factor, fitted.factor, strict=True):
        assert kept == pytest.approx(found, abs=2e-4)


def test_tied_embeddings_are_accepted_and_wrong_sizes_are_not() -> None:
    sizes = ModelSizes(
        0.7e9, layers=2, hidden=1000, feedforward=4000, heads=8, vocabulary=340_000
    )  # counted twice: 704M
    assert replace(sizes, parameters=0.364e9).parameters == 0.364e9  # counted once
    with pytest.raises(UsageError, match="the layer sizes give"):
        replace(sizes, parameters=0.5e9)


def test_no_published_run_is_refused_for_want_of_memory() -> None:
    for run in runs():
        need = memory_need(layout(run.workload, run.num_nodes, run.gpus_per_node))
        assert not refused(need, gpu(run.gpu).memory_bytes), run.workload.name
    assert refused(need, need.least / 2)
    assert not refused(need, None)


def test_most_printed_memory_is_within_a_tenth_of_the_estimate() -> None:
    printed = [run for run in runs() if run.memory_gib is not None]
    near = 0
    for run in printed:
        need = memory_need(layout(run.workload, run.num_nodes, run.gpus_per_node))
        near += need.total / 2**30 == pytest.approx(run.memory_gib, rel=0.1)
        assert need.least / 2**30 < (run.memory_gib or 0)
    assert (near, len(printed)) == (13, 14)


def test_memory_facts_count_the_rows_of_one_class() -> None:
    with_size = next(index for index, run in enumerate(runs()) if run.memory_gib)
    near = replace(held_out(with_size, 1.0, "family"), memory_gib=1.05 * (runs()[with_size].memory_gib or 0))
    far = replace(near, memory_gib=2 * near.memory_gib)
    facts = memory_facts([near, far, replace(near, held_out="architecture")])
    assert facts == {"num": 1, "num_all": 2, "num_tight": 1, "num_runs": 2}


def test_selective_recomputation_keeps_half_of_the_activations() -> None:
    run = next(run for run in runs() if run.workload.recompute == "selective")
    need = {
        kind: memory_need(layout(replace(run.workload, recompute=kind), run.num_nodes, run.gpus_per_node)).total
        for kind in ("none", "selective", "full")
    }
    assert need["full"] < need["selective"] < need["none"]


def test_a_compiled_loss_and_a_loss_in_pieces_need_less_memory() -> None:
    run = next(run for run in runs() if run.workload.software == "compiled" and run.workload.mesh.tensor == 1)
    need = {
        loss: memory_need(layout(replace(run.workload, loss=loss), run.num_nodes, run.gpus_per_node))
        for loss in ("float32", "compiled", "pieces")
    }
    logits = run.workload.batch * (run.workload.model.tokens or 0) * (run.workload.model.vocabulary or 0)
    assert need["float32"].total - need["compiled"].total == pytest.approx(8 * logits)
    assert need["compiled"].total - need["pieces"].total == pytest.approx(6 * logits)
    assert len({each.least for each in need.values()}) == 1


def test_pytorch_keeps_gathered_inputs_of_tensor_parallel_matrices() -> None:
    run = next(run for run in runs() if run.workload.mesh.tensor == 8 and run.memory_gib)
    need = {
        software: memory_need(layout(replace(run.workload, software=software), run.num_nodes, run.gpus_per_node))
        for software in ("compiled", "fused")
    }
    model = run.workload.model
    element = 2 * run.workload.batch * (model.tokens or 0) * (model.hidden or 0)
    # 7/8 of the inputs of attention and of the feed-forward block of one layer, and the input of the output layer
    assert need["compiled"].total - need["fused"].total == pytest.approx((2 * 7 / 8 + 1) * element)
