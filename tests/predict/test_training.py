"""Communication and memory of a step, against the closed forms of the papers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.errors import UsageError
from bench.predict.layout import Communication, ParallelLayout, bus_factor, layout
from bench.predict.memory import memory_need
from bench.predict.messages import Refusal
from bench.predict.operations import flops_per_sample
from bench.predict.tensors import FIRST_BUCKET_BYTES, WeightTensor, buckets, filled_buckets
from bench.predict.training import communications
from bench.predict.workload import Mesh, ModelSizes, Workload

MIB = 1 << 20
# A decoder of 4 layers without a vocabulary: 4 x (4 h^2 + 2 h f) = 4 x (4 x 64^2 + 2 x 64 x 256) parameters.
SMALL = ModelSizes(parameters=196608, layers=4, hidden=64, feedforward=256, heads=8, tokens=128)


def job(model: ModelSizes = SMALL, **others: Any) -> Workload:
    return replace(Workload("test", model, batch=2), **others)


def sent(found: ParallelLayout, *words: str) -> float:
    """Bytes that each GPU sends in calls whose name begins with one of these words."""
    return sum(each.sent_bytes for each in communications(found) if each.name.startswith(words))


def named(found: ParallelLayout, word: str) -> Communication:
    [only] = [each for each in communications(found) if each.name.startswith(word)]
    return only


def test_the_study_sends_2_142_gb_per_gpu_and_step() -> None:
    model = ModelSizes(306e6)
    found = layout(Workload("vit", model, batch=64), 1, 8)
    assert sent(found, "gradients") == pytest.approx(2 * 7 / 8 * 306e6 * 4, rel=1e-9)
    assert sent(found, "gradients") / 1e9 == pytest.approx(2.142, abs=0.0005)


def test_bfloat16_compression_halves_the_bytes() -> None:
    full, half = (layout(job(compression=name), 1, 8) for name in ("none", "bfloat16"))
    assert sent(half, "gradients") == pytest.approx(sent(full, "gradients") / 2)
    assert [each.calls for each in communications(half)] == [each.calls for each in communications(full)]


def test_zero_3_sends_half_more_than_ddp_and_zero_1() -> None:
    """Rajbhandari et al., section 7: 2 Psi, 2 Psi, 3 Psi, of one element type, but for (n-1)/n."""
    kinds = {name: layout(job(strategy=name, compute="float32"), 1, 8) for name in ("ddp", "zero1", "zero2", "zero3")}
    volume = SMALL.parameters * 4 * 7 / 8
    whole = {name: sent(found, "gradients", "weights", "updated") for name, found in kinds.items()}
    assert whole == {
        "ddp": pytest.approx(2 * volume),
        "zero1": pytest.approx(2 * volume),
        "zero2": pytest.approx(2 * volume),
        "zero3": pytest.approx(3 * volume),
    }


def test_accumulation_adds_communication_only_from_zero_2() -> None:
    once, often = (
        {
            name: sent(layout(job(strategy=name, accumulation=number, compute="float32"), 1, 8), "")
            for name in ("ddp", "zero1", "zero2", "zero3")
        }
        for number in (1, 4)
    )
    assert often["ddp"] == once["ddp"]
    assert often["zero1"] == once["zero1"]
    assert often["zero2"] == pytest.approx((4 + 1) / 2 * once["zero2"])
    assert often["zero3"] == pytest.approx(4 * once["zero3"])


def test_hybrid_sharding_gathers_in_a_node_and_reduces_between_nodes() -> None:
    found = layout(job(strategy="zero3", mesh=Mesh(shard=8)), 4, 8)
    gathered, between = named(found, "weights"), named(found, "gradients among")
    assert (gathered.group.num_nodes, gathered.group.per_node) == (1, 8)
    assert (between.group.num_nodes, between.group.per_node, between.group.side_by_side) == (4, 1, 8)
    assert between.payload_bytes * between.calls == pytest.approx(SMALL.parameters * 4 / 8)


def test_tensor_parallel_layers_reduce_activations_twice_per_pass() -> None:
    whole, found = (layout(job(mesh=Mesh(tensor=4, sequence=each), accumulation=3), 1, 8) for each in (False, True))
    [calls] = [each for each in communications(whole) if each.when == "pass"]
    assert (calls.collective, calls.payload_bytes) == ("allreduce", 2 * 128 * 64 * 2)
    assert (calls.calls, calls.forward) == (4 * 4 * 3, 2 * 4 * 3)
    again = layout(replace(whole.workload, recompute="full"), 1, 8)
    assert [each.calls for each in communications(again) if each.when == "pass"] == [6 * 4 * 3]
    halves = [each for each in communications(found) if each.when == "pass"]
    assert [each.collective for each in halves] == ["allgather", "reducescatter"]
    assert sum(each.sent_bytes for each in halves) == pytest.approx(calls.sent_bytes)
    assert named(found, "gradients").group.size == 2
    assert sent(found, "gradients") == pytest.approx(2 * 1 / 2 * SMALL.parameters / 4 * 4)


def test_pipeline_sends_activations_forward_and_gradients_back() -> None:
    found = layout(job(mesh=Mesh(pipeline=4), accumulation=6), 4, 8)
    hop = named(found, "stage")
    assert (hop.collective, hop.calls, hop.payload_bytes) == ("sendrecv", 12, 2 * 128 * 64 * 2)
    assert (hop.group.num_nodes, hop.group.per_node, hop.group.side_by_side) == (4, 1, 8)
    assert named(found, "gradients").group.num_nodes == 1  # a stage is one node


def test_experts_exchange_tokens_and_reduce_gradients_among_replicas() -> None:
    blocks = 4 * 8 * 2 * 64 * 256
    model = replace(SMALL, parameters=4 * 4 * 64**2 + blocks, experts=8, active_experts=2)
    found = layout(job(model, mesh=Mesh(expert=8)), 2, 8)
    tokens = named(found, "tokens")
    assert (tokens.collective, tokens.payload_bytes, tokens.calls) == ("alltoall", 2 * 2 * 128 * 64 * 2, 4 * 4)
    assert (tokens.group.num_nodes, tokens.group.per_node) == (1, 8)
    assert found.experts == blocks / 8
    of_experts = named(found, "gradients of experts")
    assert (of_experts.group.num_nodes, of_experts.group.per_node) == (2, 1)
    assert of_experts.payload_bytes * of_experts.calls == pytest.approx(blocks / 8 * 4)


def test_powersgd_sends_the_sides_of_each_matrix() -> None:
    """Vogels et al.: r (n + m) elements in place of n x m; four h x h and two h x f matrices a layer."""
    found = layout(job(compression="powersgd", rank=3), 1, 8)
    payload = sum(each.payload_bytes * each.calls for each in communications(found))
    assert payload == pytest.approx(4 * 3 * 4 * (4 * (64 + 64) + 2 * (64 + 256)))


@given(st.floats(1, 1e12), st.none() | st.integers(1, 10**9))
def test_buckets_hold_all_bytes_and_start_small_by_default(num_bytes: float, given_bytes: int | None) -> None:
    limit = given_bytes or 25 * MIB
    if num_bytes > 20_000 * limit:
        with pytest.raises(UsageError) as caught:
            buckets(num_bytes, given_bytes)
        assert caught.value.code == Refusal.BUCKETS_TOO_MANY
        return
    found = buckets(num_bytes, given_bytes)
    assert sum(size * number for size, number in found) == pytest.approx(num_bytes, abs=1)
    assert all(size <= limit for size, _ in found)
    if given_bytes is None and num_bytes > FIRST_BUCKET_BYTES:
        assert found[0] == (FIRST_BUCKET_BYTES, 1)


def test_the_first_bucket_is_small_only_without_a_given_size() -> None:
    rest = 306e6 * 4 - 46 * 25 * MIB
    assert buckets(306e6 * 4, None) == ((MIB, 1), (25 * MIB, 46), (rest - MIB, 1))
    assert buckets(306e6 * 4, 25 * MIB) == ((25 * MIB, 46), (rest, 1))


def test_a_bucket_closes_with_the_tensor_that_fills_it() -> None:
    tensors = [WeightTensor(300), WeightTensor(500), WeightTensor(700), WeightTensor(200)]
    assert filled_buckets(tensors, 4, 3200, 2) == ((1800, 1), (1600, 1))
    assert filled_buckets(tensors, 4, 3601, 2) == ((2800, 1), (600, 1))


@pytest.mark.parametrize(
    ("collective", "factor"), [("allreduce", 1.75), ("allgather", 0.875), ("reducescatter", 0.875), ("sendrecv", 1)]
)
def test_bus_factor_is_that_of_a_ring(collective: str, factor: float) -> None:
    assert bus_factor(collective, 8) == factor


@pytest.mark.parametrize(
    ("mesh", "others", "code"),
    [
        (Mesh(tensor=8, pipeline=4), {}, Refusal.MESH_NOT_DIVISOR),
        (Mesh(shard=3), {"strategy": "zero3"}, Refusal.GROUP_NOT_DIVISOR),
    ],
)
def test_mesh_that_does_not_divide_the_gpus_is_refused(mesh: Mesh, others: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        layout(job(mesh=mesh, **others), 1, 8)
    assert caught.value.code == code


def test_one_gpu_sends_nothing() -> None:
    assert communications(layout(job(), 1, 1)) == ()


@pytest.mark.parametrize(
    ("strategy", "each"), [("ddp", 16), ("zero1", 8 + 8 / 4), ("zero2", 4 + 12 / 4), ("zero3", 16 / 4)]
)
def test_states_in_memory_follow_the_stages_of_zero(strategy: str, each: float) -> None:
    """Section 5 of the paper with K = 8 (Adam over float32 weights) among 4 ranks: bytes per parameter."""
    found = memory_need(layout(job(strategy=strategy), 1, 4))
    states = sum(found.parts[name] for name in ("weights", "gradients", "optimizer"))
    assert states == pytest.approx(SMALL.parameters * each)


def test_16_bit_weights_keep_a_master_copy() -> None:
    found = memory_need(layout(job(weights="bfloat16", gradients="bfloat16"), 1, 4))
    assert found.parts["optimizer"] == SMALL.parameters * 12
    # Without dropout masks the paper's 34 bytes per token, hidden element and layer are 32.
    assert found.parts["activations"] == 32 * 2 * 128 * 64 * 4


def test_recomputation_stores_only_layer_inputs() -> None:
    found = memory_need(layout(job(recompute="full"), 1, 4))
    assert found.parts["activations"] == (2 * 4 + 32) * 2 * 128 * 64


@pytest.mark.parametrize(
    ("recompute", "sequence", "each"),
    [
        ("none", True, 32 / 4 * 4),
        ("none", False, (8 + 24 / 4) * 4),  # inputs of norms and matrices are whole on every rank
        ("full", True, 2 / 4 * 4 + 32 / 4),
        ("full", False, 2 * 4 + 8 + 24 / 4),
    ],
)
def test_sequence_parallelism_divides_all_activations(recompute: str, sequence: bool, each: float) -> None:
    """Korthikanti et al., table 2, without dropout masks: `each` byte of 4 layers on 4 tensor-parallel ranks."""
    mesh = Mesh(tensor=4, sequence=sequence)
    found = memory_need(layout(job(recompute=recompute, mesh=mesh), 1, 4))
    assert found.parts["activations"] == each * 2 * 128 * 64


def test_least_memory_is_below_the_estimate_and_holds_all_states() -> None:
    model = replace(SMALL, parameters=SMALL.parameters + 2 * 64 * 1000, vocabulary=1000)
    found = memory_need(layout(job(model, strategy="zero3"), 1, 4))
    states = sum(found.parts[name] for name in ("weights", "gradients", "optimizer"))
    assert states + 20 * 2 * 128 * 64 * 4 == found.least < found.total
    assert found.parts["output layer"] == 2 * 128 * 1000 * 14


def test_flops_of_vit_l_16_agree_with_torchvision() -> None:
    """torchvision: 61.55 GMAC forward, thus 2 x 3 x 61.55 GFLOP with the backward pass."""
    model = ModelSizes(306e6, layers=24, hidden=1024, feedforward=4096, heads=16, tokens=197)
    assert flops_per_sample(model)[0] == pytest.approx(6 * 61.55e9, rel=0.005)


def test_flops_need_sizes_or_a_given_value() -> None:
    with pytest.raises(UsageError) as caught:
        flops_per_sample(ModelSizes(1e9))
    assert caught.value.code == Refusal.FLOPS_UNKNOWN
    assert flops_per_sample(ModelSizes(1e9, flops_per_sample=6e9))[0] == 6e9


@pytest.mark.parametrize(
    ("others", "code"),
    [
        ({"compression": "bfloat16", "strategy": "zero2"}, Refusal.COMPRESSION_WITHOUT_DDP),
        ({"compression": "powersgd"}, Refusal.RANK_WITHOUT_POWERSGD),
        ({"mesh": Mesh(tensor=3)}, Refusal.HEADS_NOT_DIVISIBLE),
        ({"mesh": Mesh(pipeline=64)}, Refusal.LAYERS_TOO_FEW),
        ({"mesh": Mesh(pipeline=2, interleave=64)}, Refusal.INTERLEAVE_TOO_LARGE),
        ({"mesh": Mesh(interleave=2)}, Refusal.INTERLEAVE_TOO_LARGE),
        ({"mesh": Mesh(context=3)}, Refusal.TOKENS_NOT_DIVISIBLE),
        ({"weights": "nf4"}, Refusal.NF4_WITHOUT_LORA),
        ({"mesh": Mesh(shard=2)}, Refusal.SHARD_WITHOUT_ZERO3),
        ({"mesh": Mesh(expert=2)}, Refusal.EXPERTS_NOT_DIVISIBLE),
    ],
)
def test_contradictory_settings_are_refused(others: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        job(**others)
    assert caught.value.code == code


LAYERED = ModelSizes(
    8.03e9, layers=32, hidden=4096, feedforward=14336, gated=True, heads=32, kv_heads=8, vocabulary=128256, tokens=8192
)


def test_context_ranks_divide_activations_and_exchange_keys_and_values() -> None:
    """Keys and values: 2 x 1024 elements of 2 bytes per token; gathered forward and backward, gradients once."""
    alone, shared = (layout(job(LAYERED, mesh=Mesh(context=size)), 1, 8) for size in (1, 4))
    assert (shared.data, shared.replicas) == (2, 8)
    assert shared.activation_bytes == alone.activation_bytes / 4
    gathered = named(shared, "keys and values")
    assert gathered.payload_bytes == 2 * 8192 * 2 * 1024 * 2
    assert (gathered.calls, gathered.forward, gathered.group.size) == (64, 32, 4)
    assert named(shared, "gradients of keys and values").calls == 32
    kept = [memory_need(each).parts["activations"] for each in (alone, shared)]
    assert kept[1] == pytest.approx(kept[0] / 4)


def test_gradients_are_exchanged_among_all_ranks_with_the_same_weights() -> None:
    found = layout(job(LAYERED, strategy="zero1", mesh=Mesh(context=4)), 1, 8)
    assert found.shards("dense") == 8
    assert {each.group.size for each in communications(found) if each.name.startswith("gradients, buckets")} == {8}


def test_interleaved_stages_send_more_often_and_keep_more() -> None:
    plain, parts = (
        layout(job(LAYERED, accumulation=8, mesh=Mesh(pipeline=4, interleave=size)), 1, 8) for size in (1, 2)
    )
    assert named(parts, "stage to stage").calls == 2 * named(plain, "stage to stage").calls
    kept = [memory_need(each).parts["activations"] for each in (plain, parts)]
    assert kept[1] == pytest.approx(kept[0] * (1 + 3 / 8))  # Korthikanti et al. 2022, section 4.2.3


def test_a_pipeline_s_largest_stage_holds_the_layers_that_are_left() -> None:
    found = layout(job(replace(LAYERED, parameters=8.25e9, layers=33), mesh=Mesh(pipeline=8)), 1, 8)
    assert found.stage_layers == 5


def test_zero_3_in_a_pipeline_gathers_once_per_step() -> None:
    found = layout(job(LAYERED, strategy="zero3", accumulation=8, mesh=Mesh(pipeline=2)), 1, 8)
    calls = {(each.name, each.when): each.calls for each in communications(found) if each.when in ("unit", "ends")}
    assert calls["weights", "unit"] == calls["gradients", "unit"] == 16
    assert calls["weights before and after the layers", "ends"] == 1


def test_buckets_of_zero_are_megatrons() -> None:
    """40 million elements, or a million for each rank. Adapters have no known tensors; others fill buckets as whole
    tensors, the largest of a layer with 14336 x 4096 elements.
    """
    for nodes, elements in ((1, 40_000_000), (8, 64_000_000)):
        exact, whole = (layout(job(LAYERED, strategy="zero1", lora=each), nodes, 8) for each in (32, None))
        sizes = [each.payload_bytes for each in communications(exact) if each.collective == "reducescatter"]
        assert max(sizes) == 4 * elements
        most = max(bucket_sizes(whole), key=bucket_sizes(whole).count)
        assert 4 * elements <= most < 4 * (elements + 14336 * 4096)


def bucket_sizes(found: ParallelLayout) -> list[float]:
    return [
        each.payload_bytes
        for each in communications(found)
        if each.collective == "reducescatter"
        for _ in range(each.calls)
    ]


def test_adapters_gather_all_weights_and_reduce_their_own() -> None:
    found = layout(job(LAYERED, lora=16, strategy="zero3"), 1, 8)
    every = communications(found)
    scattered = sum(each.payload_bytes * each.calls for each in every if each.collective == "reducescatter")
    gathered = sum(each.payload_bytes * each.calls for each in every if each.collective == "allgather")
    assert scattered == pytest.approx(41.9e6 * 4, rel=0.002)
    assert gathered == pytest.approx(2 * (2 * 32 * 218112000 + 2 * 128256 * 4096), rel=0.01)


def test_hybrid_sharding_and_context_ranks_share_the_weights() -> None:
    """2 nodes, 4 ranks divide the tokens of a sample: 8 ranks shard, 2 replicas."""
    found = layout(job(LAYERED, strategy="zero3", mesh=Mesh(context=4, shard=8)), 2, 8)
    sizes = {each.name: each.group.size for each in communications(found)}
    assert (sizes["weights"], sizes["gradients"], sizes["gradients among replicas"]) == (8, 8, 2)


def test_adapters_are_the_only_gradients_and_states() -> None:
    """Rank 16 of all seven matrices of Llama 3 8B: 41.9 million parameters (as peft counts them)."""
    found = layout(job(LAYERED, lora=16, weights="nf4", gradients="bfloat16"), 1, 8)
    assert found.trained == pytest.approx(41.9e6, rel=0.002)
    parts = memory_need(found).parts
    assert parts["weights"] == pytest.approx(8.03e9 * 4.127 / 8)
    assert parts["gradients"] == pytest.approx(41.9e6 * 2, rel=0.002)
    assert sent(found, "gradients") == pytest.approx(2 * 7 / 8 * 41.9e6 * 2, rel=0.01)


def test_low_precision_leaves_what_ranks_exchange_in_bfloat16() -> None:
    wide, narrow = (layout(job(LAYERED, strategy="zero3", compute=each), 1, 8) for each in ("bfloat16", "float8"))
    assert [each.payload_bytes for each in communications(wide)] == [
        each.payload_bytes for each in communications(narrow)
    ]
