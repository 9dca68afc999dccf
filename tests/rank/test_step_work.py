"""The work of a step of all ranks: which ranks have their own samples, and what all of them counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.core.case import Case
from bench.core.training_step import TimedLayers
from bench.core.world import World
from bench.rank.step_work import work_of
from bench.rank.training_step import needed_bytes, plan_of

WORDS = Case(
    "step",
    workload="llama-3-8b",
    layers=2,
    samples=3,
    resize="hidden=64,feedforward=128,heads=4,kv_heads=4,tokens=16,vocabulary=64",
)


@pytest.fixture(autouse=True)
def _in_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("strategy", "mesh", "batches"),
    [
        ("ddp", "", 4),
        ("fsdp2", "", 4),
        ("hsdp", "", 4),
        ("tensor", "2x2", 2),
        ("pipeline", "2x2", 2),
        ("tensor", "", 1),
    ],
)
def test_ranks_that_share_a_batch_count_it_once(strategy: str, mesh: str, batches: int) -> None:
    plan = plan_of(replace(WORDS, strategy=strategy, mesh=mesh, micro_batches=2), World(1, 4))
    work = work_of(plan, [{"counted_flops": 5.0}] * 4)
    # Four attention matrices of 64^2; three feed-forward matrices; 64 x 64 words.
    flops_of_sample = 6 * 16 * (2 * (4 * 64**2 + 3 * 64 * 128) + 64**2) + 12 * 2 * 64 * 16**2
    samples = batches * 2 * 3
    assert work == {
        "samples": samples,
        "tokens": 16 * samples,
        "flops": samples * flops_of_sample,
        "counted_flops": 20,
    }


def test_what_one_rank_did_not_count_is_left_out() -> None:
    assert "counted_flops" not in work_of(plan_of(WORDS, World(1, 2)), [{"counted_flops": 5.0}, {}])


def test_layers_that_sleep_do_no_work() -> None:
    timed = Case("step", timed=TimedLayers(4, 0.001, 0.001, 1024))
    assert work_of(plan_of(timed, World(1, 2)), [{}, {}]) == {}


@pytest.mark.parametrize(
    ("strategy", "copies"),
    [
        ("ddp", 2 * 4 + 1),
        ("local_sgd", 2 * 5 + 1),
        ("gossip", 2 * (4 + 4) + 1),  # sent, received from two neighbours, their sum
        ("async_sgd", 2 * (4 + 3 * 4) + 1),  # of four ranks, three steps in flight
    ],
)
def test_messages_in_flight_are_in_the_memory_that_a_step_needs(strategy: str, copies: int) -> None:
    case = Case("step", timed=TimedLayers(8, 0.001, 0.002, 1 << 20), strategy=strategy, staleness=2)
    assert needed_bytes(plan_of(case, World(1, 4))) == copies * 8 << 20
