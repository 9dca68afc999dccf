"""Steps of timed layers predicted from times of exchanges, against sums done by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.core.record import Samples
from bench.core.training_step import TimedLayers
from bench.predict.validate_step import ExchangeTimes, StepValidation, interpolated, predicted, validated
from bench.results.summary import DocumentBuilder

Make = Callable[..., Any]
MIB = 1 << 20
LAYERS = TimedLayers(8, 0.005, 0.011, MIB)


def both(seconds: dict[int, float]) -> ExchangeTimes:
    """Times that do not depend on the exchange before."""
    return ExchangeTimes(seconds, seconds)


@pytest.mark.parametrize("one_s", [0.009, 0.023, 0.09])
def test_equal_buckets_follow_the_formula(one_s: float) -> None:
    """max(b + a, b / k + k a) - b, as in docs/step.md."""
    found = predicted(LAYERS, {}, 2, MIB, both({MIB: one_s}))
    backward_s = 8 * 0.011
    exposed_s = max(backward_s + one_s, backward_s / 8 + 8 * one_s) - backward_s
    assert found.exposed_s == pytest.approx(exposed_s)
    assert found.step_s == pytest.approx(8 * 0.005 + backward_s + exposed_s)


def test_the_first_bucket_of_torch_is_small() -> None:
    found = predicted(LAYERS, {}, 2, 0, both({MIB: 0.01, 8 * MIB: 0.08}))
    assert found.bucket_s == {MIB: pytest.approx(0.01), 7 * MIB: pytest.approx(0.07, rel=0.01)}


def test_a_late_rank_holds_up_the_buckets_after_its_delay() -> None:
    """Layer 4 is late: layers 7, 6 and 5 are exchanged before, the others after."""
    found = predicted(LAYERS, {(1, "backward"): 0.06}, 2, MIB, both({MIB: 0.02}))
    ready_s = 0.04 + 4 * 0.011 + 0.06
    assert found.step_s == pytest.approx(ready_s + 5 * 0.02 + 0.0)
    assert found.exposed_s == pytest.approx(found.step_s - (0.04 + 8 * 0.011 + 0.06))


def test_other_delays_are_before_or_after_the_exchange() -> None:
    plain = predicted(LAYERS, {}, 2, MIB, both({MIB: 0.009})).step_s
    late = {(0, "data"): 0.01, (1, "h2d"): 0.02, (0, "optimizer"): 0.03}
    assert predicted(LAYERS, late, 2, MIB, both({MIB: 0.009})).step_s == pytest.approx(plain + 0.02 + 0.03)


def test_times_between_sizes_are_on_a_line_of_logarithms() -> None:
    seconds = {100: 1.0, 10_000: 100.0}
    assert interpolated(seconds, 1000) == pytest.approx(10.0)
    assert interpolated(seconds, 20_000) == pytest.approx(200.0)
    assert interpolated(seconds, 10) == 1.0


def test_a_step_without_rows_of_its_transport_says_so(a_header: Make, a_record: Make) -> None:
    from tests.results.test_steps import ARGV, trained

    rows = DocumentBuilder()
    header = a_header(pattern="step", transport="gloo", case=ARGV, num_ranks=2)
    rows.add("step-gloo", header, trained(a_record))
    document = rows.document({"step-gloo": header})
    (found,) = validated(document, document)
    assert found.predicted is None and found.reason is not None and found.reason.code == StepValidation.NO_ROWS


@pytest.fixture
def predict(a_header: Make, a_record: Make) -> Callable[..., Any]:
    """Predict a step of two ranks with these options, from rows of (pattern, mode, bytes, seconds)."""
    from tests.results.test_steps import ARGV, trained

    def of(options: str, *rows: tuple[str, str, int, float], num_ranks: int = 2) -> Any:
        rows_builder, headers = DocumentBuilder(), {}
        argv = (*ARGV, *options.split())
        headers["step"] = a_header(pattern="step", transport="gloo", case=argv, num_ranks=num_ranks)
        rows_builder.add("step", headers["step"], trained(a_record))
        for number, (pattern, mode, num_bytes, seconds) in enumerate(rows):
            job, argv = f"{pattern}-{number}", (pattern, "--transport", "gloo")
            headers[job] = a_header(pattern=pattern, transport="gloo", case=argv, num_ranks=num_ranks)
            samples = Samples((seconds,) * 9, by_rank=((seconds,) * 9,) * num_ranks)
            facts = {"mode": mode, "payload_bytes": num_bytes, "requested_bytes": (num_bytes,), "num_ranks": num_ranks}
            rows_builder.add(job, headers[job], a_record(samples=samples, **facts))
        document = rows_builder.document(headers)
        (found,) = validated(document, document)
        return found

    return of


KIB64 = 1 << 16
ALLREDUCES = (("allreduce", "pipelined", MIB, 0.02), ("allreduce", "isolated", MIB, 0.025))


@pytest.mark.parametrize(
    ("options", "rows", "expected_s"),
    [
        ("--bucket 1M", ALLREDUCES, 0.04 + 0.01 + 0.025 + 7 * 0.02),
        ("--bucket 1M --micro-batches 3", ALLREDUCES, 3 * 0.04 + 2 * 0.08 + 0.01 + 0.025 + 7 * 0.02),
        ("--bucket 1M --micro-batches 3 --sync-each 1", ALLREDUCES, 3 * (0.04 + 0.01 + 0.025 + 7 * 0.02)),
        ("--bucket 1M --hook fp16", (("allreduce", "pipelined", MIB // 2, 0.011),), 0.04 + 0.01 + 8 * 0.011),
        ("--strategy tensor", (("allreduce", "isolated", KIB64, 0.003),), 0.12 / 2 + 16 * 0.003),
        ("--strategy tensor --micro-batches 2", (("allreduce", "isolated", KIB64, 0.003),), 0.12 + 32 * 0.003),
        (
            "--strategy fsdp2",
            (("allgather", "isolated", MIB, 0.004), ("reducescatter", "isolated", MIB, 0.009)),
            0.12 + 8 * (2 * 0.004 + 0.009),
        ),
        (
            "--strategy fsdp2 --micro-batches 2",
            (("allgather", "isolated", MIB, 0.004), ("reducescatter", "isolated", MIB, 0.009)),
            0.24 + 8 * (4 * 0.004 + 0.009),
        ),
        (
            "--strategy pipeline --micro-batches 4",
            (("pingpong", "isolated", KIB64, 0.003),),
            5 * (4 * 0.015 + 2 * 0.003),
        ),
    ],
)
def test_each_strategy_follows_its_formula(
    predict: Callable[..., Any], options: str, rows: Any, expected_s: float
) -> None:
    found = predict(options, *rows)
    assert found.reason is None
    assert found.predicted.step_s == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ("--strategy gossip", StepValidation.STRATEGY),
        ("--strategy tensor", StepValidation.NO_ROWS),
        ("--strategy tensor --inject rank=1,segment=host,delay=9ms", StepValidation.DELAYED),
        ("--strategy tensor --mesh 2x1", StepValidation.SEVERAL_ROWS),
        ("--strategy pipeline --pipeline interleaved", StepValidation.SCHEDULE),
        ("--hook int8", StepValidation.HOOK),
    ],
)
def test_a_step_without_a_formula_says_why(predict: Callable[..., Any], options: str, code: StepValidation) -> None:
    found = predict(options, ("pingpong", "isolated", KIB64, 0.003))
    assert found.predicted is None and found.reason.code == code


def test_a_loader_that_works_ahead_costs_only_what_exceeds_the_step() -> None:
    short, long = (
        predicted(replace(LAYERS, data_s=one_s, prefetch=1), {}, 2, MIB, both({MIB: 0.0})) for one_s in (0.1, 0.3)
    )
    assert [short.step_s, long.step_s] == pytest.approx([8 * 0.016, 0.3])


def test_a_bucket_that_finds_the_link_idle_takes_as_long_as_an_isolated_call() -> None:
    idle, busy = ExchangeTimes({MIB: 0.009}, {MIB: 0.008}), ExchangeTimes({MIB: 0.05}, {MIB: 0.04})
    layers = LAYERS.layers
    assert predicted(LAYERS, {}, 2, MIB, idle).exposed_s == pytest.approx(0.009)
    found = predicted(LAYERS, {}, 2, MIB, busy).exposed_s
    assert found == pytest.approx(LAYERS.backward_s + 0.05 + (layers - 1) * 0.04 - layers * LAYERS.backward_s)
