"""Strategies of training on real ranks: their gradients are exact, and any exchange that goes wrong is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
Run = Callable[..., Any]
SCRIPT = str(Path(__file__).with_name("train_strategies.py"))
LAYERS = "--timed layers=8,forward=1ms,backward=1ms,bytes=16K,activations=16K --strategy"
OVER_GROUPS = {
    "zero1": {"hook"},  # and broadcasts of weights, which do not change gradients
    "fsdp2": {"all_gather_single", "reduce_scatter_single"},
    "hsdp": {"all_gather_single", "reduce_scatter_single", "allreduce"},
    "tensor": {"allreduce"},
    "tensor --mesh 2x2": {"allreduce", "hook"},
    "tensor_fsdp": {"allreduce", "all_gather_single", "reduce_scatter_single"},
    "pipeline": {"recv"},
    "pipeline --pipeline gpipe": {"recv"},
    "pipeline --pipeline interleaved": {"recv"},
    "pipeline --pipeline zero-bubble": {"recv"},
    "pipeline --mesh 2x2": {"recv", "allreduce"},
    "local_sgd --period 2": {"allreduce"},
    "gossip": {"recv"},
    "async_sgd": {"recv"},
    "expert": {"hook", "all_to_all_single"},
    "expert --mesh 2x2": {"hook", "all_to_all_single", "allreduce"},
}
OTHERS = (
    "ddp --micro-batches 4",
    "ddp --micro-batches 4 --sync-each 1",
    "fsdp2 --micro-batches 2",
    "fsdp2 --micro-batches 2 --sync-each 1",
    "hsdp --order interleaved",
    "hsdp --mesh 1x4",
    "tensor_fsdp --micro-batches 2",
)
FEW = ("tensor", "pipeline", "expert", "gossip", "async_sgd")


def trained(torch_ranks: Run, num_ranks: int, strategies: tuple[str, ...], *options: str) -> dict[str, Any]:
    """Train all strategies in one launch; return what rank 0 printed of each."""
    ran = torch_ranks(num_ranks, SCRIPT, *options, *(f"{LAYERS} {one}" for one in strategies))
    assert ran.code == 0, ran.err
    lines = [json.loads(line) for line in ran.out.splitlines() if line.startswith("{")]
    assert len(lines) == len(strategies)
    return {strategy: line for strategy, line in zip(strategies, lines, strict=True)}


def test_gradients_are_exact_and_a_wrong_exchange_is_found(torch_ranks: Run) -> None:
    for strategy, found in trained(torch_ranks, 2, ("zero1", "fsdp2", *FEW), "--spoil").items():
        assert found["wrong"] == [None, None], strategy
        assert set(found["kinds"]) >= OVER_GROUPS[strategy]
        assert all(found["spoilt"][kind] for kind in (*OVER_GROUPS[strategy], "bare")), (strategy, found)


def test_three_ranks_round_but_are_exact_and_waits_for_other_streams_are_seen(torch_ranks: Run) -> None:
    cases = [f"{LAYERS} {one}".replace("bytes=16K", "bytes=48K") for one in ("ddp", "fsdp2")]
    ran = torch_ranks(3, SCRIPT, "--streams", *cases)
    assert ran.code == 0, ran.err
    ddp, fsdp = (json.loads(line) for line in ran.out.splitlines() if line.startswith("{"))
    assert [ddp["wrong"], fsdp["wrong"]] == [None, None]
    assert ddp["rounded"] == fsdp["rounded"] == [3]
    assert ddp["waits"] == [1, 1]  # for the buckets, which have marks of their own
    # Each layer is gathered twice and scattered once, and the step waits for the last gradients. All are events.
    assert fsdp["waits"] == [3 * 8 + 1, 0]
    assert fsdp["groups"] == {"0": 3 * 8 + 1}


@pytest.mark.slow
def test_waits_for_the_streams_of_two_groups_are_told_apart(torch_ranks: Run) -> None:
    ran = torch_ranks(4, SCRIPT, "--streams", f"{LAYERS} hsdp", f"{LAYERS} tensor_fsdp")
    assert ran.code == 0, ran.err
    hsdp, tensor = (json.loads(line) for line in ran.out.splitlines() if line.startswith("{"))
    assert [hsdp["wrong"], tensor["wrong"]] == [None, None]
    # Columns have the numbers 0 and 1, rows 2 and 3. As with fsdp2, but the last gradients are those of the column.
    assert (hsdp["groups"], hsdp["rounded"]) == ({"2": 3 * 8, "0": 1}, [4])
    # Rows have the numbers 0 and 1: two sums for each layer, whose calls come between a gather and the wait for it.
    assert (tensor["groups"], tensor["rounded"]) == ({"0": 2 * 8, "2": 3 * 8 + 1}, [2])


@pytest.mark.slow
def test_four_ranks_find_every_wrong_exchange(torch_ranks: Run) -> None:
    for strategy, found in trained(torch_ranks, 4, tuple(OVER_GROUPS), "--spoil").items():
        assert found["wrong"] == [None, None], strategy
        assert set(found["kinds"]) >= OVER_GROUPS[strategy]
        assert all(found["spoilt"][kind] for kind in (*OVER_GROUPS[strategy], "bare")), (strategy, found)


@pytest.mark.slow
def test_four_ranks_train_exactly_with_all_options(torch_ranks: Run) -> None:
    for strategy, found in trained(torch_ranks, 4, OTHERS).items():
        assert found["wrong"] == [None, None], strategy


@pytest.mark.slow
def test_three_ranks_train_exactly(torch_ranks: Run) -> None:
    strategies = ("ddp", "zero1", "fsdp2", "pipeline", "expert")
    options = "--timed layers=9,forward=1ms,backward=1ms,bytes=48K,activations=48K"
    ran = torch_ranks(3, SCRIPT, *(f"{options} --strategy {one}" for one in strategies))
    assert ran.code == 0, ran.err
    lines = [json.loads(line) for line in ran.out.splitlines() if line.startswith("{")]
    assert [line["wrong"] for line in lines] == [[None, None]] * 5
    # Pipelines and experts add shares before they divide the sum, so their gradients are exact.
    assert [line["rounded"] for line in lines] == [[3], [3], [3], [1], [1, 3]]


SMALL = "hidden=32,feedforward=64,heads=4,kv_heads=4"
WORDS = f"--workload llama-3-8b --layers 2 --samples 2 --resize {SMALL},tokens=16,vocabulary=64"
IMAGES = f"--workload vit-l-306m --layers 2 --samples 2 --resize {SMALL},tokens=17,patch=48"
EXPERTS = f"--workload mixtral-8x7b --layers 2 --samples 2 --resize {SMALL},tokens=16,vocabulary=64,experts=4"
CONVOLUTIONS = "--workload resnet-50 --layers 1 --samples 2 --resize channels=4,image=24"
MODELS = (
    f"{WORDS} --strategy tensor",
    f"{IMAGES} --strategy pipeline",
    f"{EXPERTS} --strategy expert",
    f"{IMAGES} --strategy ddp --recompute layers",
    f"{IMAGES} --strategy ddp --train lora:2",
    f"{CONVOLUTIONS} --strategy ddp",
)
OWN_GRADIENTS = ("gossip", "async_sgd")  # each rank holds gradients and weights of single ranks, and no mean gradient
MORE_MODELS = (
    *MODELS,
    f"{IMAGES} --strategy tensor --mesh 2x2",
    f"{WORDS} --strategy fsdp2 --micro-batches 2",
    f"{IMAGES} --strategy hsdp",
    f"{IMAGES} --strategy tensor_fsdp",
    f"{WORDS} --strategy pipeline --mesh 2x2",
    f"{IMAGES} --strategy pipeline --pipeline gpipe",
    f"{EXPERTS} --strategy expert --mesh 2x2",
    f"{EXPERTS} --strategy tensor",
    f"{EXPERTS} --strategy zero1",
    f"{CONVOLUTIONS} --strategy fsdp2",
    f"{CONVOLUTIONS} --strategy pipeline --pipeline gpipe --micro-batches 4",
    f"{WORDS} --strategy fsdp2 --train lora:2",
    f"{EXPERTS} --strategy zero1 --train lora:2",
    f"{CONVOLUTIONS} --strategy zero1 --train head",
    f"{IMAGES} --strategy ddp --compile 1",
    f"{IMAGES} --strategy gossip",
    f"{IMAGES} --strategy async_sgd",
)


def models(torch_ranks: Run, num_ranks: int, cases: tuple[str, ...]) -> None:
    """Train models; their gradients agree between ranks to the bit, and with those of one rank but for rounding."""
    ran = torch_ranks(num_ranks, SCRIPT, *cases)
    assert ran.code == 0, ran.err
    lines = [json.loads(line) for line in ran.out.splitlines() if line.startswith("{")]
    assert [line["case"] for line in lines] == list(cases)
    for line in lines:
        assert line["wrong"] == [None, None], line
        if not line["case"].endswith(OWN_GRADIENTS):
            assert line["norm"] == pytest.approx(line["alone"], rel=1e-5), line


@pytest.mark.slow
def test_models_have_the_gradients_of_one_rank(torch_ranks: Run) -> None:
    models(torch_ranks, 2, MODELS)


@pytest.mark.slow
def test_models_on_four_ranks_have_the_gradients_of_one_rank(torch_ranks: Run) -> None:
    models(torch_ranks, 4, MORE_MODELS)


@pytest.mark.slow
def test_compressed_gradients_have_the_error_of_their_type(torch_ranks: Run) -> None:
    hooks = ("none", "fp16", "bf16", "powersgd:2 --bucket 64M", "int8 --bucket 1K", "int8-channel --bucket 1K")
    cases = tuple(f"{WORDS} --hook {hook}" for hook in hooks)
    ran = torch_ranks(2, SCRIPT, *cases)
    assert ran.code == 0, ran.err
    none, fp16, bf16, powersgd, int8, channel = found = [
        json.loads(line) for line in ran.out.splitlines() if line.startswith("{")
    ]
    assert none["error"] is None
    # Half a unit of the last place is 2^-11 and 2^-8 of a number.
    assert 2**-14 < fp16["error"] < 2**-10 and 2**-11 < bf16["error"] < 2**-7 < powersgd["error"]
    # A scale for 512 elements is finer than one for all of a bucket.
    assert bf16["error"] < channel["error"] < int8["error"] < 0.5
    assert all(line["wrong"] == [None, None] for line in found)
    assert none["learned"] == {}
    for line in (fp16, bf16):
        assert line["learned"]["loss"] == pytest.approx(line["learned"]["exact_loss"], rel=0.01)


@pytest.mark.slow
def test_what_a_lossy_exchange_costs_in_loss_is_measured(torch_ranks: Run) -> None:
    """The small problem has the same points on any number of ranks, so its exact loss is that of one rank."""
    cases: tuple[str, ...] = (
        "local_sgd --period 1",
        "local_sgd --period 16",
        "local_sgd --period 16 --post-local 100000",
        "gossip",
    )
    cases += ("async_sgd", "async_sgd --staleness 4")
    found = {num: trained(torch_ranks, num, cases) for num in (2, 4)}
    for of_case in found.values():
        losses = {case: line["learned"] for case, line in of_case.items()}
        exact = losses["gossip"]["exact_loss"]
        for one in losses.values():
            assert one["samples"] == 8192 and one["exact_loss"] == exact < one["first_loss"] / 2
        # Averages after every step, and gradients averaged until the end, are exact but for rounding.
        assert losses["local_sgd --period 1"]["loss"] == pytest.approx(exact, rel=1e-3)
        assert losses["local_sgd --period 16 --post-local 100000"]["loss"] == pytest.approx(exact, rel=1e-3)
        lossy = [losses["local_sgd --period 16"]["loss"], losses["async_sgd --staleness 4"]["loss"]]
        assert all(one != pytest.approx(exact, rel=1e-3) for one in lossy)
        assert all(one["loss"] < one["first_loss"] * 0.8 for one in losses.values())


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_models_rates_and_operations_are_known(torch_ranks: Run, strategy: str) -> None:
    sizes = "hidden=64,feedforward=128,heads=4,kv_heads=4,tokens=16,vocabulary=64"
    model = f"--workload llama-3-8b --layers 2 --samples 2 --resize {sizes} --strategy {strategy} --micro-batches 2"
    options = "-n 3 --max-seconds 2 --budget 8s --format json"
    ran = torch_ranks(2, "-m", "bench.step", *model.split(), *options.split())
    document = json.loads(ran.out)
    (step,), (row,) = document["steps"], document["summaries"]
    rates = step["rates"]
    assert row["verified"] is True and "flops-apart" not in row["flags"]
    assert rates["samples"] == 2 * 2 * 2 and rates["tokens_per_s"] == pytest.approx(16 * rates["samples_per_s"])
    # Two layers with 4 x 64^2 + 3 x 64 x 128 weights and 64 x 64 words; attention 12 x 2 x 64 x 16^2.
    flops = 8 * (6 * 16 * (2 * (4 * 64**2 + 3 * 64 * 128) + 64**2) + 12 * 2 * 64 * 16**2)
    assert rates["flops_per_s"] * 8 / rates["samples_per_s"] == pytest.approx(flops)
    assert rates["counted_over_formula"] == pytest.approx(1, abs=0.05)
