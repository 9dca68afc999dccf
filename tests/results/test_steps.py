"""What is derived from a training step's samples: costs by two methods, late ranks, and when the methods disagree."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.core.record import Flag, Header, Record, Samples, StepSamples
from bench.core.training_step import SEGMENTS, StepVariant
from bench.results import step_rates, steps
from bench.results.document import Document
from bench.results.summary import summarise
from bench.results.training_rows import TrainedStep
from bench.store import jsonl

Make = Callable[..., Any]
ARGV = ("step", "--transport", "gloo", "--timed", "layers=8,forward=5ms,backward=10ms,bytes=1M")
NOISE_S = 5e-5


def trained(
    a_record: Make,
    *,
    late_s: float = 0.0,
    alternate: bool = False,
    data_s: float = 0.0,
    hidden_data_s: float = 0.0,
    local_off_s: float = 0.0,
    seed: int = 0,
) -> Record:
    """A step of two ranks: 120 ms of compute and 9 ms of exchange.

    Rank 1 (alternate: each rank in turn) is late in the backward pass. `hidden_data_s`: the loader of rank 0 only.
    `local_off_s`: an error of the local variant.
    """
    noise = random.Random(seed)
    by_rank: list[list[float]] = [[], []]
    segments: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in SEGMENTS}
    variants: dict[str, list[float]] = {variant: [] for variant in StepVariant if variant is not StepVariant.FULL}

    def wobble() -> float:
        return abs(noise.gauss(0, NOISE_S))

    for sample in range(40):
        late_rank = sample % 2 if alternate else 1
        own = [dict.fromkeys(SEGMENTS, 0.0) for _ in range(2)]
        for rank, one in enumerate(own):
            one |= {"data": data_s + wobble(), "forward": 0.04 + wobble(), "backward": 0.08 + wobble()}
            one["data"] += hidden_data_s * (rank == 0)
            one["backward"] += late_s * (rank == late_rank)
        until = [sum(one.values()) for one in own]
        for rank, one in enumerate(own):
            one["wait"] = max(until) + 0.009 + wobble() - until[rank]
            for name, seconds in one.items():
                segments[name][rank].append(seconds)
            by_rank[rank].append(sum(one.values()))
        both = [max(data_s + hidden_data_s * (rank == 0) + late_s * (rank == late_rank) for rank in range(2)), late_s]
        variants[StepVariant.BARE].append(0.129 + both[0] + wobble())
        variants[StepVariant.LOCAL].append(0.12 + both[0] + local_off_s + wobble())
        variants[StepVariant.HOST_RESIDENT].append(0.129 + both[1] + wobble())
        variants[StepVariant.DEVICE_RESIDENT].append(0.129 + both[1] + wobble())
    bare = variants.pop(StepVariant.BARE)
    made: Record = a_record(
        num_ranks=2,
        samples=Samples(bare, (bare, bare)),
        step=StepSamples(1, variants, segments, tuple(by_rank), (1 << 23,), (0.1,), (0.109,)),
    )
    return made


@pytest.mark.parametrize(
    ("logged", "disagrees"),
    [({}, False), ({"forward": (0.1, 0.108)}, False), ({"forward": (0.1, 0.1), "backward": (0.1, 0.089)}, True)]
    + [({"forward": (0.004, 0.0055)}, False), ({"forward": (0.004, 0.007)}, True)],
)
def test_another_time_in_torchs_logger_flags_the_row(
    a_header: Make, a_record: Make, logged: dict[str, Any], disagrees: bool
) -> None:
    record = trained(a_record)
    assert record.step is not None
    record.step = replace(record.step, logged_s=logged)
    header = a_header(pattern="step", transport="gloo", case=ARGV, job="step-gloo", num_ranks=2)
    assert (Flag.LOGGER_DISAGREES in summarise("step-gloo", header, record).flags) is disagrees


def of(a_header: Make, record: Record) -> TrainedStep:
    header: Header = a_header(pattern="step", transport="gloo", case=ARGV, job="step-gloo", num_ranks=2)
    (found,) = steps.of_record("step-gloo", header, record)
    return found


def test_both_methods_give_the_exchange(a_header: Make, a_record: Make) -> None:
    found = of(a_header, trained(a_record))
    removal = found.exposed_by_removal
    assert removal.seconds == pytest.approx(0.009, abs=5e-4) and removal.inside_s == pytest.approx(0.009, abs=5e-4)
    assert removal.low_s is not None and removal.high_s is not None
    assert removal.low_s <= removal.seconds <= removal.high_s < 0.01
    assert found.disagree == () and (found.late_rank, found.late_segment) == (None, None)
    assert found.efficiency == pytest.approx(0.12 / 0.129, rel=0.01)
    assert abs(found.instruments or 1.0) < 0.01
    assert found.bucket_s == pytest.approx((0.009,))


def test_a_step_has_the_time_without_clocks(a_header: Make, a_record: Make) -> None:
    record = trained(a_record)
    assert record.step is not None and record.samples is not None
    longer = tuple([seconds + 0.01 for seconds in own] for own in record.step.full_s)
    record.step = replace(record.step, full_s=longer)
    found = of(a_header, record)
    assert found.step_s == pytest.approx(0.129, rel=0.01)
    assert found.instruments == pytest.approx(0.01 / 0.129, rel=0.1)
    assert found.rates.samples_per_s == pytest.approx(2 / found.step_s)
    assert all(sum(own[rank] for own in found.parts_s.values()) == pytest.approx(0.139, rel=0.01) for rank in range(2))


def test_files_of_earlier_versions_give_the_same_figures(a_header: Make, a_record: Make) -> None:
    record = trained(a_record)
    assert record.step is not None and record.samples is not None
    by_rank = record.step.full_s
    variants = {StepVariant.BARE: record.samples.seconds, **record.step.twins_s}
    slowest = [max(pair) for pair in zip(*by_rank, strict=True)]
    before = replace(
        record, samples=Samples(slowest, tuple(by_rank)), step=replace(record.step, full_s=(), twins_s=variants)
    )
    assert of(a_header, before) == of(a_header, record)


def test_the_parts_of_a_rank_sum_to_its_step(a_header: Make, a_record: Make) -> None:
    found = of(a_header, trained(a_record, late_s=0.06))
    for rank in range(2):
        assert sum(own[rank] for own in found.parts_s.values()) == pytest.approx(found.step_s, rel=0.01)
    assert found.parts_s["imbalance"] == pytest.approx((0.06, 0.0), abs=1e-3)


def test_a_rank_that_is_always_late_is_named_with_its_segment(a_header: Make, a_record: Make) -> None:
    found = of(a_header, trained(a_record, late_s=0.06))
    assert (found.late_rank, found.late_segment) == (1, "backward")
    assert found.late_s == pytest.approx(0.06, abs=1e-3)


def test_ranks_that_are_late_in_turn_are_not_accused(a_header: Make, a_record: Make) -> None:
    assert of(a_header, trained(a_record, late_s=0.06, alternate=True)).late_rank is None


@pytest.mark.parametrize("seed", range(20))
def test_healthy_steps_have_neither_late_rank_nor_disagreement(a_header: Make, a_record: Make, seed: int) -> None:
    found = of(a_header, trained(a_record, seed=seed))
    assert found.late_rank is None and found.disagree == ()


def test_the_loader_is_what_the_host_resident_variant_saves(a_header: Make, a_record: Make) -> None:
    found = of(a_header, trained(a_record, data_s=0.02))
    assert found.loader_by_removal.seconds == pytest.approx(0.02, abs=5e-4)
    assert found.loader_by_removal.inside_s == pytest.approx(0.02, abs=5e-4)
    assert found.copies_by_removal.seconds == pytest.approx(0.0, abs=5e-4)


def test_a_loader_that_hides_behind_a_late_rank_saves_nothing(a_header: Make, a_record: Make) -> None:
    found = of(a_header, trained(a_record, late_s=0.06, hidden_data_s=0.03))
    assert found.loader_by_removal.seconds == pytest.approx(0.0, abs=5e-4)
    assert found.loader_by_removal.inside_s == pytest.approx(0.0, abs=5e-4)
    assert found.disagree == ()
    assert found.parts_s["data_wait"] == pytest.approx((0.03, 0.0), abs=1e-3)  # it is still in the accounts


def test_methods_that_disagree_are_told(a_header: Make, a_record: Make) -> None:
    record = trained(a_record, local_off_s=-0.02)
    assert of(a_header, record).disagree == (StepVariant.LOCAL,)
    header: Header = a_header(pattern="step", transport="gloo", case=ARGV, num_ranks=2)
    assert Flag.REMOVAL_DISAGREES in summarise("step-gloo", header, record).flags
    assert Flag.REMOVAL_DISAGREES not in summarise("step-gloo", header, trained(a_record)).flags


def test_wrong_gradients_have_no_figures(a_header: Make, a_record: Make) -> None:
    record = trained(a_record)
    record.verified = False
    assert steps.of_record("step-gloo", a_header(case=ARGV), record) == []


def test_three_launches_have_one_row(a_header: Make, a_record: Make) -> None:
    (found,) = steps.steps(of(a_header, trained(a_record, late_s=0.06, seed=seed)) for seed in range(3))
    assert (found.num_launches, found.late_rank, found.late_segment) == (3, 1, "backward")
    assert found.exposed_by_removal.seconds == pytest.approx(0.009, abs=5e-4)


def test_a_file_keeps_the_variants_and_segments(tmp_path: Path, a_header: Make, a_record: Make) -> None:
    record = trained(a_record, data_s=0.02)
    writer = jsonl.Writer(tmp_path / "s.jsonl", a_header(case=ARGV))
    writer.append(record)
    (read,) = jsonl.read(tmp_path / "s.jsonl").attempts[0].records
    assert record.step is not None and read.step is not None
    assert list(read.step.twins_s[StepVariant.LOCAL]) == pytest.approx(
        list(record.step.twins_s[StepVariant.LOCAL]), abs=1e-10
    )
    assert list(read.step.segments_s["data"][1]) == pytest.approx(list(record.step.segments_s["data"][1]), abs=1e-10)


WORK = {"samples": 64.0, "tokens": 64 * 197.0, "flops": 2e12, "counted_flops": 2.1e12, "peak_flops_per_s": 8e13}


def working(a_record: Make, **others: Any) -> Record:
    record = trained(a_record)
    assert record.step is not None
    record.step = replace(record.step, **others)
    return record


def test_rates_follow_from_the_work_of_a_step(a_header: Make, a_record: Make) -> None:
    found = of(a_header, working(a_record, work=WORK, energy_j=[30.0, 34.0], peak_bytes={"host": [5, 7]}))
    step_s, rates = found.step_s, found.rates
    assert rates.samples_per_s == pytest.approx(64 / step_s)
    assert rates.tokens_per_s == pytest.approx(64 * 197 / step_s)
    assert rates.mfu == pytest.approx(2e12 / step_s / 8e13)
    assert rates.counted_over_formula == pytest.approx(1.05)
    assert rates.joules_per_sample == 1.0
    assert rates.peak_bytes == {"host": (5, 7)}


def test_timed_layers_have_one_sample_on_each_rank(a_header: Make, a_record: Make) -> None:
    rates = of(a_header, trained(a_record)).rates
    assert (rates.samples, rates.tokens_per_s, rates.mfu, rates.joules_per_sample) == (2.0, None, None, None)


@pytest.mark.parametrize(("counted", "told"), [(2.09e12, False), (1.91e12, False), (2.11e12, True), (1.89e12, True)])
def test_operations_that_differ_by_over_5_percent_are_told(
    a_header: Make, a_record: Make, counted: float, told: bool
) -> None:
    record = working(a_record, work=WORK | {"counted_flops": counted})
    header = a_header(pattern="step", transport="gloo", case=ARGV, num_ranks=2)
    assert (Flag.FLOPS_APART in summarise("step-gloo", header, record).flags) is told


def test_a_price_becomes_dollars_per_sample(a_header: Make, a_record: Make) -> None:
    one = of(a_header, working(a_record, work=WORK))
    document = Document("", {}, (), steps=(one,))
    (found,) = step_rates.priced(document, 3.6).steps
    assert found.rates.usd_per_sample == pytest.approx(2 * 0.001 * one.step_s / 64)


def test_rates_of_three_launches_are_those_of_the_median_step(a_header: Make, a_record: Make) -> None:
    (found,) = steps.steps(of(a_header, working(a_record, work=WORK)) for _ in range(3))
    assert found.rates.samples_per_s == pytest.approx(64 / found.step_s)


def test_a_file_keeps_work_and_memory(tmp_path: Path, a_header: Make, a_record: Make) -> None:
    record = working(a_record, work=WORK, energy_j=[30.0], peak_bytes={"host": [5, 7]}, predicted_bytes=9)
    jsonl.Writer(tmp_path / "s.jsonl", a_header(case=ARGV)).append(record)
    (read,) = jsonl.read(tmp_path / "s.jsonl").attempts[0].records
    assert read.step is not None
    kept = read.step.work, read.step.peak_bytes, read.step.predicted_bytes, list(read.step.energy_j)
    assert kept == (WORK, {"host": [5, 7]}, 9, [30.0])
