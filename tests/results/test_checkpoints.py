"""What checkpoints cost, from samples whose answer is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.core.record import CheckpointSamples, Header, Record, Samples
from bench.results import checkpoints

SAMPLES = CheckpointSamples(
    step_alone_s=[[0.10, 0.11, 0.10]] * 6,
    exchange_alone_s=[[0.01, 0.01, 0.02]] * 6,
    exchange_during_s=[[0.03, 0.04], [0.05]] * 3,
    total_s=[0.74] * 6,
    num_steps=[5] * 6,
    blocked_s=[0.2] * 6,
    read_s=[0.5] * 6,
    device_share=1.0,
)


@pytest.fixture
def row(a_record: Callable[..., Record]) -> Callable[..., Record]:
    def make(**more: Any) -> Record:
        samples = Samples([0.4] * 6, ([0.4] * 6, [0.2] * 6, [0.2] * 6))
        return a_record(**{"payload_bytes": 1 << 20, "num_ranks": 3, "samples": samples, "checkpoint": SAMPLES, **more})

    return make


def test_the_stall_is_what_the_steps_lost(row: Callable[..., Record], a_header: Callable[..., Header]) -> None:
    header = a_header(case=("checkpoint", "--method", "dcp", "--exchange", "64K"), pattern="checkpoint")
    (one,) = checkpoints.of_record("job", header, row())
    assert one.stall_s == pytest.approx(0.74 - 5 * 0.10)
    assert one.stall_low_s == pytest.approx(one.stall_s) and one.stall_high_s == pytest.approx(one.stall_s)
    assert (one.method, one.blocked_s, one.exchange_alone_s) == ("dcp", 0.2, 0.01)
    assert one.exchange_during_s == 0.04
    assert one.slowest_rank == 0 and one.slowest_behind == pytest.approx(1.0)
    assert one.write_bytes_per_s == pytest.approx(3 * (1 << 20) / 0.4)


def test_a_stall_that_noise_makes_negative_is_shown_with_its_interval(
    row: Callable[..., Record], a_header: Callable[..., Header]
) -> None:
    header, total_s = a_header(case=("checkpoint",), pattern="checkpoint"), [0.51, 0.47, 0.53, 0.48, 0.52, 0.49]
    (one,) = checkpoints.of_record("job", header, row(checkpoint=replace(SAMPLES, total_s=total_s)))
    assert (one.stall_low_s, one.stall_s, one.stall_high_s) == pytest.approx((-0.03, 0.0, 0.03))
    several = [replace(one, stall_s=stall_s) for stall_s in (-0.02, 0.0, 0.01)]
    (merged,) = checkpoints.checkpoints(several)
    assert merged.stall_low_s is not None and merged.stall_high_s is not None
    assert merged.stall_low_s < -0.02 < merged.stall_s < 0.01 < merged.stall_high_s


def test_wrong_shards_have_no_figures(row: Callable[..., Record], a_header: Callable[..., Header]) -> None:
    header = a_header(case=("checkpoint",), pattern="checkpoint")
    assert checkpoints.of_record("job", header, row(verified=False)) == []


def test_equal_ranks_have_no_slowest(row: Callable[..., Record], a_header: Callable[..., Header]) -> None:
    header = a_header(case=("checkpoint",), pattern="checkpoint")
    (one,) = checkpoints.of_record("job", header, row(samples=Samples([0.4] * 6, ([0.4] * 6, [0.39] * 6))))
    assert one.slowest_rank is None
