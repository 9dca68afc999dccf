"""The step time against closed forms: overlap of buckets, FSDP prefetch, pipeline bubble, feed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bench.predict.layout import CommGroup, Communication, layout
from bench.predict.step import StepTime, exposed_buckets, step
from bench.predict.training import communications
from bench.predict.workload import Mesh, ModelSizes, Workload

SMALL = ModelSizes(parameters=196608, layers=4, hidden=64, feedforward=256, heads=8, tokens=128)


def one(number: float) -> Any:
    return np.array([number])


def bucket(calls: int, size: float = 10.0) -> Communication:
    return Communication("gradients, x", "allreduce", size, CommGroup("data", 1, 8, 1), calls, "bucket", "")


def run(
    passes: float = 3.0,
    seconds: Callable[[Communication], float] = lambda _: 0.1,
    num_nodes: int = 1,
    given: Mapping[str, float] | None = None,
    shares: bool = False,
    **others: Any,
) -> StepTime:
    """A step with `passes` seconds of computation and a time for each call."""
    found = layout(replace(Workload("test", SMALL, batch=2), **others), num_nodes, 8)
    more = {"update": 0.0, "lost": 0.0, "copied": 0.0, **(given or {})}
    return step(
        found,
        one(passes),
        one(more["update"]),
        lambda each: one(seconds(each)),
        communications(found),
        one(more["lost"]),
        one(more["copied"]),
        shares,
    )


@given(st.integers(1, 40), st.floats(0.01, 5), st.floats(0.01, 5))
def test_equal_buckets_overlap_by_the_closed_form(number: int, backward: float, each: float) -> None:
    """k equal buckets, full at i b / k, one after the other: the last ends at max(b + a, b / k + k a)."""
    found = exposed_buckets(one(backward), [bucket(number)], lambda _: one(each), overlap=True)[0]
    assert found == pytest.approx(max(backward + each, backward / number + number * each) - backward)


def test_without_overlap_every_bucket_is_exposed() -> None:
    assert exposed_buckets(one(2.0), [bucket(7)], lambda _: one(0.3), overlap=False)[0] == pytest.approx(2.1)


def test_small_first_bucket_starts_early() -> None:
    first, rest = bucket(1, 1.0), bucket(3, 33.0)
    seconds = {1.0: 0.5, 33.0: 1.0}
    found = exposed_buckets(one(1.0), [first, rest], lambda each: one(seconds[each.payload_bytes]), overlap=True)[0]
    # Full at 0.01, 0.34, 0.67, 1; the link is busy from 0.01 on: 0.51, 1.51, 2.51, 3.51.
    assert found == pytest.approx(0.51 + 3 - 1)


def test_gradients_overlap_with_two_thirds_of_the_passes() -> None:
    found = run(passes=3.0, seconds=lambda _: 0.4)  # one bucket, as the model is small: full when backward ends
    assert found.exposed_s[0] == pytest.approx(0.4)
    assert found.total_s[0] == pytest.approx(3.4)


def test_fsdp_gathers_one_layer_ahead() -> None:
    """Forward g + 3 max(f, g) + f, backward g + 3 max(b, g + r) + b + r; f = 0.25, b = 0.5."""
    times = {"allgather": 0.1, "reducescatter": 0.2}
    found = run(passes=3.0, strategy="zero3", seconds=lambda each: times[each.collective])
    assert found.total_s[0] == pytest.approx((0.1 + 3 * 0.25 + 0.25) + (0.1 + 3 * 0.5 + 0.5 + 0.2))
    slow = run(passes=3.0, strategy="zero3", seconds=lambda each: 10 * times[each.collective])
    assert slow.total_s[0] == pytest.approx((1 + 3 * 1 + 0.25) + (1 + 3 * 3 + 0.5 + 2))
    serial = run(passes=3.0, strategy="zero3", overlap=False, seconds=lambda each: times[each.collective])
    assert serial.exposed_s[0] == pytest.approx(4 * (2 * 0.1 + 0.2))


@given(st.integers(1, 16), st.sampled_from([2, 4]))
def test_bubble_is_stages_minus_one_micro_batches(micro: int, stages: int) -> None:
    found = run(passes=6.0, mesh=Mesh(pipeline=stages), accumulation=micro, seconds=lambda _: 0.0)
    assert found.bubble_s[0] == pytest.approx(6.0 * (stages - 1) / micro)
    assert found.exposed_s[0] == pytest.approx(0, abs=1e-12)


def test_hops_and_blocking_calls_take_time_in_every_slot() -> None:
    """(m + p - 1) slots of 2 hops and, per micro-batch, 4 calls (2 gather, 2 reduce) per layer of the stage and
    pass; p - 1 are bubble."""
    times = {"hop": 0.01, "pass": 0.001, "bucket": 0.0, "after": 0.0, "unit": 0.0, "ends": 0.0}
    found = run(passes=6.0, mesh=Mesh(pipeline=4, tensor=2), accumulation=6, seconds=lambda each: times[each.when])
    slot = 2 * 0.01 + 8 * 1 * 0.001
    assert found.exposed_s[0] == pytest.approx(6 * slot)
    assert found.bubble_s[0] == pytest.approx((4 - 1) * (6.0 / 6 + slot))


@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from(["ddp", "zero1", "zero2", "zero3"]),
    st.integers(1, 6),
    st.booleans(),
    st.floats(0.001, 3),
    st.floats(0, 1),
)
def test_exposed_communication_is_at_most_all_communication(
    stages: int, tensor: int, strategy: str, micro: int, overlap: bool, each: float, lost: float
) -> None:
    assume(strategy != "zero3" or stages == 1)
    found = run(
        passes=3.0,
        seconds=lambda _: each,
        mesh=Mesh(pipeline=stages, tensor=tensor),
        strategy=strategy,
        accumulation=micro,
        overlap=overlap,
        given={"lost": lost},
    )
    assert 0 <= found.exposed_s[0] <= found.exchange_s[0] * (1 + 1e-12)


def test_pipeline_loses_a_share_of_hidden_communication() -> None:
    """The hops of all slots take longer than a GPU's own calls, but do not reduce the hidden time of its buckets."""
    times = {"hop": 2.0, "bucket": 0.25, "pass": 0.0}
    big: dict[str, Any] = {"bucket_bytes": 1 << 17, "mesh": Mesh(pipeline=2), "accumulation": 2}
    bare, found = (
        run(passes=6.0, seconds=lambda each: times[each.when], given={"lost": share}, **big) for share in (0.0, 0.5)
    )
    hidden = bare.exchange_s[0] - bare.exposed_s[0]
    assert hidden > 0
    assert found.exposed_s[0] == pytest.approx(bare.exposed_s[0] + 0.5 * hidden)


@given(st.floats(0.001, 10), st.integers(1, 40))
def test_single_gpu_waits_exactly_zero(passes: float, micro: int) -> None:
    """Rounding must not leave a small positive value."""
    alone = layout(Workload("test", SMALL, batch=2, accumulation=micro), 1, 1)
    found = step(alone, one(passes), one(0.1), lambda _: one(1.0), communications(alone), one(0.2), one(0.0), False)
    assert found.exposed_s[0] == 0 and found.bubble_s[0] == 0


def test_zero_2_reduces_in_every_micro_batch_and_zero_1_gathers_at_the_end() -> None:
    later = run(
        passes=3.0, strategy="zero1", accumulation=3, seconds=lambda each: {"bucket": 0.2, "after": 0.7}[each.when]
    )
    assert later.exposed_s[0] == pytest.approx(0.2 + 0.7)
    every = run(
        passes=3.0, strategy="zero2", accumulation=3, seconds=lambda each: {"bucket": 0.2, "after": 0.7}[each.when]
    )
    assert every.exposed_s[0] == pytest.approx(3 * 0.2 + 0.7)


def test_recomputation_leaves_three_quarters_to_the_backward_pass() -> None:
    found = run(passes=4.0, strategy="zero3", recompute="full", seconds=lambda each: 0.3)
    # f = 1 / 4, b = 3 / 4 of a layer's second: gathering sets the pace forward, computation backward.
    assert found.total_s[0] == pytest.approx((0.3 + 3 * 0.3 + 0.25) + (0.3 + 3 * 0.75 + 0.75 + 0.3))


def test_without_recomputation_the_backward_pass_is_two_thirds() -> None:
    times = {"allgather": 0.3, "reducescatter": 0.1}
    found = run(passes=3.0, strategy="zero3", seconds=lambda each: times[each.collective])
    assert found.total_s[0] == pytest.approx((0.3 + 3 * 0.3 + 0.25) + (0.3 + 3 * 0.5 + 0.5 + 0.1))


def test_hidden_communication_loses_its_share() -> None:
    found = run(passes=3.0, strategy="zero3", seconds=lambda _: 0.1, given={"lost": 0.5})
    bare = run(passes=3.0, strategy="zero3", seconds=lambda _: 0.1)
    hidden = 12 * 0.1 - bare.exposed_s[0]
    assert hidden > 0.5
    assert found.exposed_s[0] == pytest.approx(bare.exposed_s[0] + 0.5 * hidden)


def test_feed_is_exposed_only_if_slower_than_everything_else() -> None:
    assert run(passes=3.0, given={"copied": 3.0}).feed_s[0] == 0
    assert run(passes=3.0, given={"copied": 5.0}).feed_s[0] == pytest.approx(5.0 - 3.1)


def test_exchange_and_feed_add_up_on_a_shared_link() -> None:
    apart, shared = (
        run(passes=3.0, seconds=lambda _: 2.0, given={"copied": 4.0}, shares=each) for each in (False, True)
    )
    assert apart.total_s[0] == pytest.approx(5.0)
    assert shared.total_s[0] == pytest.approx(6.0)


def test_the_parts_add_up() -> None:
    found = run(passes=3.0, given={"update": 0.5, "lost": 0.2, "copied": 9.0}, mesh=Mesh(tensor=2))
    parts = found.compute_s + found.bubble_s + found.exposed_s + found.feed_s
    assert found.total_s[0] == pytest.approx(parts[0])
    assert found.compute_s[0] == pytest.approx(3.5)
