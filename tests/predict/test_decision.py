"""The decision of a selection: whole runs, limits, break-even prices, narrowing, and time lost to failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from bench.core.errors import UsageError
from bench.hardware import catalogue
from bench.hardware.catalogue import Price
from bench.predict import decision, predict
from bench.predict.candidate import SelectionQuestion, Unknown
from bench.predict.cost import Energy
from bench.predict.draws import Draws
from bench.predict.goodput import PUBLISHED_NODE_MTBF_S, Goodput
from bench.predict.messages import Answer, PredictRemark, Refusal
from bench.predict.price_file import load_prices
from bench.predict.select import Selection, select
from bench.predict.whole_run import RunLimits, narrowing
from bench.predict.workload_file import load_workload

TODAY = date(2026, 8, 1)
FOLDER = Path(__file__).parents[2] / "workloads"
QUESTION = SelectionQuestion(load_workload("vit-l-306m", FOLDER), predict.published(), TODAY)
NAMES = ("p4d.24xlarge", "g6e.48xlarge")


def chosen(
    limits: RunLimits | None = None,
    prices: Mapping[str, float | Price] | None = None,
    by: str = "cost",
    question: SelectionQuestion = QUESTION,
) -> Selection:
    machines = [(catalogue.instance(name), 1) for name in NAMES]
    return select(machines, replace(question, prices=prices), by, limits)


def test_at_the_ends_of_the_break_even_price_the_ratio_is_one() -> None:
    """The other machine, bought at an end of its break-even range, has a ratio whose end is exactly 1."""
    found = chosen()
    first, other = found.candidates
    price = decision.break_even(found, other)
    assert price is not None
    for bought, end in ((price.low, "low"), (price.high, "high")):
        again = chosen(prices={other.instance.name: bought})
        [verdict] = [each for each in again.verdicts if each.by == "cost"]
        ratio = verdict.ratio if again.candidates[0].name == first.name else None
        if ratio is None:  # the other machine came first: the inverse ratio, whose other end is 1
            end, ratio = {"low": "high", "high": "low"}[end], verdict.ratio
        assert getattr(ratio, {"low": "low", "high": "high"}[end]) == pytest.approx(1, rel=0.01)
    own = decision.break_even(found, first)
    assert own is not None and first.usd_per_hour is not None
    assert own.low > first.usd_per_hour  # the answer is sure, so the first could be dearer than it is


def test_the_answer_is_sure_only_if_the_interval_excludes_one() -> None:
    sure = decision.answer(chosen())
    assert (sure.code, sure.facts["best"], sure.facts["high"] < 1) == (Answer.SURE, "p4d.24xlarge", True)
    open_ = decision.answer(chosen(prices={"g6e.48xlarge": 8.0}))
    assert open_.code == Answer.CANNOT_TELL
    assert open_.facts["low"] < 1 < open_.facts["high"]
    assert open_.facts["doubt"]
    turned = decision.answer(chosen(prices={"g6e.48xlarge": 2.0}))
    assert (turned.code, turned.facts["best"]) == (Answer.SURE, "g6e.48xlarge")


def test_the_whole_run_is_the_sample_times_its_number_and_limits_count_draws() -> None:
    found = chosen(RunLimits(1e6))
    first = found.candidates[0]
    run, usd = found.runs[0], first.usd(1e6)
    assert run.usd == usd
    assert run.seconds is not None and run.seconds.middle == pytest.approx(1e6 / first.samples_per_s.middle)
    assert run.within is None
    half = chosen(RunLimits(1e6, deadline_s=run.seconds.middle)).runs[0].within
    assert half == pytest.approx(0.5, abs=0.01)


def test_a_machine_that_misses_the_deadline_comes_last_although_it_is_cheaper() -> None:
    prices = {"g6e.48xlarge": 0.5}
    assert chosen(RunLimits(1e6), prices).candidates[0].name == "g6e.48xlarge"
    late = chosen(RunLimits(1e6), prices).runs[0].seconds
    assert late is not None
    found = chosen(RunLimits(1e6, deadline_s=late.low * 0.95), prices)
    assert found.candidates[0].name == "p4d.24xlarge"
    assert decision.answer(found).code == Answer.BETTER_BUT_OUTSIDE


def test_the_unknown_that_widens_most_is_named_and_what_stays_without_it() -> None:
    draws = Draws()
    wide, small = draws.between("wide", 1.0, 4.0), draws.between("small", 1.0, 1.2)
    unknowns = {name: Unknown(name, f"measure {name}") for name in ("wide", "small")}
    found = narrowing(wide * small, unknowns, draws)
    assert (found.unknown, found.command) == ("wide", "measure wide")
    assert found.factor_after == pytest.approx(1.2, abs=0.06)  # what is left is the small one
    assert narrowing(2 * draws.ones, unknowns, draws).unknown == ""


def test_the_time_lost_to_failures_is_that_of_a_simulation() -> None:
    """Failures at random times; every failure loses the work since the last checkpoint and costs the restart."""
    goodput = Goodput(node_mtbf_s=4e6, checkpoint_s=60, restart_s=300)
    nodes, work = 64, 300
    every, rng = goodput.interval_s(nodes), np.random.default_rng(7)
    elapsed = 0.0
    for _ in range(work):
        while (until := rng.exponential(4e6 / nodes)) < every + 60:
            elapsed += until + 300
        elapsed += every + 60
    assert elapsed / (work * every) == pytest.approx(goodput.stretch(nodes), rel=0.02)
    others = [replace(goodput, every_s=every * factor).stretch(nodes) for factor in (0.5, 2)]
    assert min(others) > goodput.stretch(nodes)  # Young's interval is near the best


def test_nodes_that_fail_too_often_are_refused_and_the_published_rate_is_264_days() -> None:
    with pytest.raises(UsageError) as caught:
        Goodput(3600, 60, 600).stretch(64)
    assert caught.value.code == Refusal.NO_PROGRESS
    assert pytest.approx(264, abs=0.5) == PUBLISHED_NODE_MTBF_S / 86400


def test_failures_make_samples_dearer_and_energy_adds_to_the_hour() -> None:
    plain = chosen().candidates[0]
    goodput = Goodput(1e6, 60, 600)
    failing = chosen(question=replace(QUESTION, goodput=goodput)).candidates[0]
    assert failing.sample_usd / plain.sample_usd == pytest.approx(goodput.stretch(1))
    energy = Energy(0.2, {"p4d.24xlarge": 5000.0})
    powered = chosen(question=replace(QUESTION, energy=energy))
    assert powered.candidates[0].usd_per_hour == pytest.approx(21.957642 + 5 * 0.2)
    assert PredictRemark.ENERGY_UNKNOWN in [each.code for each in powered.candidates[1].remarks]


def test_a_price_file_has_numbers_or_entries(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("p4d: 11.5\ng6e.48xlarge: {usd_per_hour: 18, terms: spot, date: 2026-10-04, watts: 4300}\n")
    prices, watts = load_prices(path, NAMES, TODAY)
    assert prices["p4d.24xlarge"].usd_per_hour == 11.5
    assert (prices["g6e.48xlarge"].date, prices["g6e.48xlarge"].source) == ("2026-10-04", "spot")
    assert watts == {"g6e.48xlarge": 4300}


@pytest.mark.parametrize(
    "text",
    ["p4d: -1", "p4d: {usd_per_hour: x}", "p4d: {watts: 3}", "p9: 3", "p4d: {usd_per_hour: 1, date: x}", "[1]"],
)
def test_a_wrong_price_file_is_one_sentence_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_prices(path, NAMES, TODAY)
    assert "prices.yaml:1:" in str(caught.value) and "\n" not in str(caught.value)
