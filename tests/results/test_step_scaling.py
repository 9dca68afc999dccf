"""Speed-up of steps on more ranks: its ideal, where it stops, and the part of the step that stops it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.results import step_scaling
from bench.results.document import Summary
from bench.results.model import case_of
from bench.results.step_scaling import ScalingReason
from bench.results.training_rows import StepScaling, TrainedStep
from tests.results.test_steps import of, trained

Make = Callable[..., Any]


def scaled(
    a_header: Make,
    a_record: Make,
    kind: str,
    steps: dict[int, tuple[float, dict[str, float]]],
    options: tuple[str, ...] = (),
    rows: Sequence[Summary] = (),
    ends_s: Callable[[float], tuple[float | None, float | None]] = lambda step_s: (None, None),
) -> tuple[StepScaling, ...]:
    """Steps of 80 ms work on one rank. `steps`: by number of ranks, the step and its parts."""
    headers, found = {}, []
    model: TrainedStep = of(a_header, trained(a_record))
    for num_ranks, (step_s, parts) in steps.items():
        each_ms = 10.0 if kind == "weak" else 10.0 / num_ranks
        layers = f"layers=8,forward={each_ms * 0.4}ms,backward={each_ms * 0.6}ms,bytes=1M"
        job = f"step-{num_ranks}"
        header = a_header(
            pattern="step",
            transport="gloo",
            num_ranks=num_ranks,
            num_nodes=1,
            case=("step", "--transport", "gloo", "--timed", layers, *options),
        )
        headers[job] = header
        every = dict.fromkeys(model.parts_s, 0.0) | parts
        shown = {part: (seconds,) * num_ranks for part, seconds in every.items()}
        found.append(
            replace(
                model,
                job=case_of(job, header),
                num_ranks=num_ranks,
                step_s=step_s,
                low_s=ends_s(step_s)[0],
                high_s=ends_s(step_s)[1],
                parts_s=shown,
            )
        )
    return step_scaling.scalings(headers, found, rows)


def test_weak_scaling_counts_the_work_of_all_ranks(a_header: Make, a_record: Make) -> None:
    compute = {"compute": 0.08}
    (found,) = scaled(a_header, a_record, "weak", {1: (0.08, compute), 2: (0.08, compute), 4: (0.1, compute)})
    assert (found.kind, found.stops_at) == ("weak", None)
    assert [point.speedup for point in found.points] == pytest.approx([1, 2, 3.2])
    assert [point.ideal for point in found.points] == [1, 2, 4]


def test_the_interval_of_a_speedup_has_the_errors_of_both_steps(a_header: Make, a_record: Make) -> None:
    compute = {"compute": 0.08}
    steps = {1: (0.08, compute), 2: (0.08, compute)}
    (known,) = scaled(a_header, a_record, "weak", steps, ends_s=lambda step_s: (step_s / 1.1, step_s * 1.2))
    reference, second = known.points
    assert (reference.low, reference.high) == (None, None)
    both = math.exp(math.hypot(math.log(1.1), math.log(1.2)))
    assert second.low == pytest.approx(2 / both) and second.high == pytest.approx(2 * both)
    (unknown,) = scaled(a_header, a_record, "weak", steps)  # as with two launches
    assert [(point.low, point.high) for point in unknown.points] == [(None, None)] * 2


def test_strong_scaling_stops_where_the_exchange_takes_what_the_ranks_save(a_header: Make, a_record: Make) -> None:
    steps = {
        1: (0.08, {"compute": 0.08}),
        2: (0.05, {"compute": 0.04, "exposed_exchange": 0.01}),
        4: (0.055, {"compute": 0.02, "exposed_exchange": 0.035}),
    }
    (found,) = scaled(a_header, a_record, "strong", steps)
    assert (found.kind, found.stops_at) == ("strong", 2)
    assert found.reason is not None and found.reason.code == ScalingReason.EXCHANGE
    assert found.reason.facts["seconds"] == pytest.approx(0.025)


def test_computation_that_is_not_divided_is_named(a_header: Make, a_record: Make) -> None:
    steps = {1: (0.08, {"compute": 0.08}), 2: (0.079, {"compute": 0.075, "exposed_exchange": 0.004})}
    (found,) = scaled(a_header, a_record, "strong", steps)
    assert (found.stops_at, found.reason and found.reason.code) == (1, ScalingReason.COMPUTE)


def test_one_number_of_ranks_is_no_scaling(a_header: Make, a_record: Make) -> None:
    assert scaled(a_header, a_record, "weak", {2: (0.08, {"compute": 0.08})}) == ()


@pytest.mark.parametrize(
    "options, bound",
    [
        ((), 0.08 / 0.05),
        (("--strategy", "fsdp2"), 0.08 / 0.05),
        (("--hook", "fp16"), None),
        (("--strategy", "local_sgd"), None),
        (("--strategy", "tensor"), None),
    ],
)
def test_links_bound_only_steps_that_reduce_all_gradients(
    a_header: Make, a_record: Make, a_summary: Make, options: tuple[str, ...], bound: float | None
) -> None:
    compute = {"compute": 0.08}
    gradients = of(a_header, trained(a_record)).gradient_bytes
    # Strong scaling: 16 ms of the forward pass, then the allreduce of two ranks, which moves each byte once.
    rate = gradients / (0.05 - 0.016)
    allreduce = a_summary(pattern="allreduce", transport="gloo", num_ranks=2, bound_kind="hard", bound_bytes_per_s=rate)
    (found,) = scaled(a_header, a_record, "strong", {1: (0.08, compute), 2: (0.06, compute)}, options, [allreduce])
    assert found.points[0].bound is None  # one rank uses no link
    assert found.points[1].bound == (None if bound is None else pytest.approx(bound))
