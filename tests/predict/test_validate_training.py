"""Held-out training runs, and the sizes that published models have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.core.errors import UsageError
from bench.hardware.catalogue import gpu
from bench.predict.memory import memory_need, refused
from bench.predict.training import layout
from bench.predict.utilisation import runs
from bench.predict.validate_training import HeldOutRun, head_to_heads, memory_facts, summarize_training
from bench.predict.workload import ModelSizes


def held_out(index: int, factor: float) -> HeldOutRun:
    """A prediction that is `factor` times the measurement."""
    run = runs()[index]
    rate = run.samples_per_s_per_gpu
    return HeldOutRun(
        run,
        "source",
        0.9 * factor * rate,
        factor * rate,
        1.1 * factor * rate,
        rate,
        None,
        refused=False,
        memory_gib=1.0,
        bare=2 * rate,
    )


def test_errors_are_medians_over_runs() -> None:
    rows = [held_out(index, factor) for index, factor in enumerate((1.0, 1.2, 1.5))]
    found = summarize_training(rows)[0]
    assert (found.name, found.num_runs) == ("all", 3)
    assert found.error == pytest.approx(0.2)
    assert found.covered == pytest.approx(1 / 3)
    assert found.bare == pytest.approx(1.0)
    assert found.width == pytest.approx(11 / 9)


def test_head_to_heads_are_the_same_job_on_two_gpus() -> None:
    rows = [held_out(index, 1.0) for index in range(len(runs()))]
    found = head_to_heads(rows)
    ratios = [each for each in found if each.gpus == ("H100-SXM5-80GB", "A100-SXM4-80GB")]
    assert len(ratios) == 27
    assert all(each.error == pytest.approx(0) for each in ratios)


def test_published_shares_are_possible() -> None:
    for run in runs():
        assert 0.2 < run.share < 0.9, run.workload.name
        layout(run.workload, run.num_nodes, run.gpus_per_node)


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


def test_printed_memory_is_within_a_tenth_of_the_estimate() -> None:
    printed = [run for run in runs() if run.memory_gib is not None]
    assert len(printed) == 4
    for run in printed:
        need = memory_need(layout(run.workload, run.num_nodes, run.gpus_per_node))
        assert need.total / 2**30 == pytest.approx(run.memory_gib, rel=0.1), run.workload.name
        assert need.least / 2**30 < (run.memory_gib or 0)


def test_memory_facts_count_the_rows_of_one_class() -> None:
    with_size = next(index for index, run in enumerate(runs()) if run.memory_gib)
    near = replace(held_out(with_size, 1.0), memory_gib=1.05 * (runs()[with_size].memory_gib or 0))
    far = replace(near, memory_gib=2 * near.memory_gib)
    facts = memory_facts([near, far, replace(near, held_out="architecture")])
    assert facts == {"num": 1, "num_all": 2, "num_tight": 2, "num_runs": 2}


def test_selective_recomputation_keeps_half_of_the_activations() -> None:
    run = next(run for run in runs() if run.workload.recompute == "selective")
    need = {
        kind: memory_need(layout(replace(run.workload, recompute=kind), run.num_nodes, run.gpus_per_node)).total
        for kind in ("none", "selective", "full")
    }
    assert need["full"] < need["selective"] < need["none"]
