"""Ranking: closed forms on exact links, ratios of joint draws, open verdicts, refused machines, earlier prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from bench.core.codes import UNCODED
from bench.core.errors import UsageError
from bench.core.links import NodeLinks
from bench.hardware import catalogue
from bench.predict import crossover, predict
from bench.predict.candidate import (
    LOST_TO_OVERLAP,
    Candidate,
    SelectionQuestion,
    candidate,
    has_middle,
    shared_links,
)
from bench.predict.draws import Draws, range_of
from bench.predict.layout import CommGroup, Communication, bus_factor
from bench.predict.messages import PredictRemark, Refusal
from bench.predict.predict import EfficiencyEvidence, Prediction
from bench.predict.select import PairDecision, Selection, select
from bench.predict.workload import Mesh, ModelSizes, Workload
from bench.predict.workload_file import load_workload

FOLDER = Path(__file__).parents[2] / "workloads"
TODAY = date(2026, 8, 1)
SURE = {"A100-SXM4-40GB": (400.0, 400.0), "L40S": (400.0, 400.0), "H100-SXM5-80GB": (1000.0, 1000.0)}
# 1e9 parameters and 6 TFLOP per sample; more than 40 buckets.
JOB = Workload("job", ModelSizes(1e9, flops_per_sample=6e12), batch=40, baselines=SURE, overlap=False)


def exact(
    pattern: str, sizes: Sequence[float], links: NodeLinks, num_nodes: int, per_node: int, evidence: EfficiencyEvidence
) -> Mapping[float, Prediction]:
    """Stand-in for predict.curve: a port has 100 GB/s (10 without NVLink); nothing else takes time."""
    rate = 10e9 if links.peer == "host" else 100e9
    seconds = {size: size * bus_factor(pattern, num_nodes * per_node) / rate for size in sizes}
    return {
        size: Prediction(each, each, each, "published", ("x",), "ring", "port", links.peer, "pool", 0.0, True, each)
        for size, each in seconds.items()
    }


@pytest.fixture
def exact_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "curve", exact)


def asked(workload: Workload = JOB, **others: Any) -> SelectionQuestion:
    return replace(SelectionQuestion(workload, EfficiencyEvidence(), TODAY), **others)


def one(name: str, question: SelectionQuestion, num_nodes: int = 1) -> Candidate:
    return candidate(catalogue.instance(name), num_nodes, question, Draws())


def choose(machines: Sequence[tuple[str, int]], question: SelectionQuestion, by: str = "cost") -> Selection:
    return select([(catalogue.instance(name), nodes) for name, nodes in machines], question, by)


def codes(found: Candidate) -> list[str]:
    return [remark.code for remark in found.remarks]


def verdict(found: Selection, by: str) -> PairDecision:
    [only] = [each for each in found.verdicts if each.by == by]
    return only


@pytest.mark.usefixtures("exact_links")
def test_step_and_cost_by_hand() -> None:
    found = one("p4d.24xlarge", asked())
    exchange = 2 * 7 / 8 * 4e9 / 100e9  # 70 ms, as nothing overlaps
    assert found.range("compute_s").middle == pytest.approx(40 / 400)
    assert found.range("exposed_s").middle == pytest.approx(exchange)
    assert found.range("total_s").middle == pytest.approx(0.17)
    assert found.samples_per_s.middle == pytest.approx(8 * 40 / 0.17)
    usd = found.usd(1_000_000)
    assert usd is not None
    assert usd.middle == pytest.approx(21.957642 / 3600 * 1e6 / (8 * 40 / 0.17))
    waiting = found.usd_per_hour_waiting
    assert waiting is not None
    assert waiting.middle == pytest.approx(21.957642 * exchange / 0.17)
    assert found.bases == {"compute": "measured", "exchange": "published", "feed": ""}
    assert found.bottleneck == "compute"
    assert codes(found) == [PredictRemark.FEED_WITHOUT_INPUT]


@pytest.mark.usefixtures("exact_links")
def test_bottleneck_is_the_largest_part() -> None:
    assert one("g6e.48xlarge", asked()).bottleneck == "exchange: port"
    assert one("g6e.48xlarge", asked(replace(JOB, overlap=True, batch=400))).bottleneck == "compute"


@pytest.mark.usefixtures("exact_links")
def test_cost_and_samples_grow_with_the_nodes() -> None:
    single, double = (one("p4d.24xlarge", asked(), nodes) for nodes in (1, 2))
    assert double.usd_per_hour == pytest.approx(2 * 21.957642)
    assert double.layout.samples == 2 * single.layout.samples


@pytest.mark.usefixtures("exact_links")
def test_shared_assumption_cancels_in_the_ratio() -> None:
    """The efficiency is known only to a factor of four, which does not matter between two A100 machines."""
    workload = replace(JOB, baselines={}, efficiency={"": (0.2, 0.8)}, overlap=True)
    found = choose([("p4d.24xlarge", 1), ("a2-highgpu-8g", 1)], asked(workload))
    times = found.candidates[0].range("total_s")
    assert times.high / times.low > 3.5
    ratio = verdict(found, "time").ratio
    assert ratio.low == pytest.approx(1) == ratio.high
    cost = verdict(found, "cost")
    assert cost.decided
    assert cost.ratio.middle == pytest.approx(21.957642 / 29.387)


@pytest.mark.usefixtures("exact_links")
def test_overlapping_intervals_can_be_decided() -> None:
    workload = replace(JOB, baselines={}, efficiency={"": (0.2, 0.8)}, overlap=False)
    found = choose([("p4d.24xlarge", 1), ("a2-highgpu-8g", 1)], asked(workload))
    best, other = (each.usd(1) for each in found.candidates)
    assert best is not None
    assert other is not None
    assert best.high > other.low
    assert verdict(found, "cost").decided


@pytest.mark.usefixtures("exact_links")
def test_ratio_around_one_is_undecided_and_names_the_measurement() -> None:
    workload = replace(JOB, baselines=SURE | {"L40S": (200.0, 1600.0)}, overlap=True, accumulation=100)
    found = verdict(
        choose([("p4d.24xlarge", 1), ("g6e.48xlarge", 1)], asked(workload, prices={"g6e.48xlarge": 12.0})), "cost"
    )
    assert found.ratio.low < 1 < found.ratio.high
    assert not found.decided
    assert found.doubt is not None
    assert found.doubt.unknown == "baseline L40S"
    assert found.doubt.share > 0.8
    assert "training.baselines={L40S: SAMPLES_PER_S}" in found.doubt.command


def test_doubt_about_links_names_a_run_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def vague(*asked: Any) -> Mapping[float, Prediction]:
        curve = exact(*asked)
        return {
            size: replace(each, low_s=each.low_s / 10, middle_s=None, high_s=each.low_s * 10, spread=9.0, basis="bound")
            for size, each in curve.items()
        }

    monkeypatch.setattr(predict, "curve", lambda *asked: vague(*asked) if asked[2].peer == "host" else exact(*asked))
    found = choose([("p4d.24xlarge", 1), ("g6e.48xlarge", 1)], asked(prices={"g6e.48xlarge": 12.0}))
    doubt = verdict(found, "cost").doubt
    assert doubt is not None
    assert doubt.unknown == "links  host"
    assert "linkbench run bandwidth;" in doubt.command
    g6e = next(each for each in found.candidates if each.instance.name == "g6e.48xlarge")
    assert not g6e.has_middle
    assert g6e.basis == "measured+bound"


@pytest.mark.usefixtures("exact_links")
def test_machines_that_cannot_run_the_workload_are_refused() -> None:
    big = replace(JOB, model=ModelSizes(3.3e9, flops_per_sample=6e12), baselines={})
    found = choose([("g6e.48xlarge", 1), ("p5.48xlarge", 1), ("p4d.24xlarge", 1), ("g4dn.12xlarge", 1)], asked(big))
    assert [each.instance.name for each in found.candidates] == ["p5.48xlarge"]
    errors = {each.instance: each.error for each in found.refused}
    assert {each.code for each in found.refused} == {"no-memory"}
    facts = errors["p4d.24xlarge"].facts
    assert (facts["needed_gb"], facts["memory_gb"], facts["gpu"]) == (pytest.approx(52.8), 40, "A100-SXM4-40GB")
    assert "weights 13.2 (3.3e+09 x 4 bytes)" in facts["calculation"]
    assert errors["g4dn.12xlarge"].code == Refusal.OUT_OF_MEMORY


@pytest.mark.usefixtures("exact_links")
def test_a_machine_that_may_be_too_small_stays_with_a_remark() -> None:
    """41.6 GB of states: an A100 of 40 GB has 40,960 MiB, 42.9 GB."""
    close = replace(JOB, model=ModelSizes(2.6e9, flops_per_sample=6e12), baselines={})
    [found] = choose([("p4d.24xlarge", 1)], asked(close)).candidates
    [remark] = [each for each in found.remarks if each.code == PredictRemark.MEMORY_TIGHT]
    assert (remark.facts["least_gb"], remark.facts["memory_gb"]) == (pytest.approx(41.6), 40)


@pytest.mark.usefixtures("exact_links")
@pytest.mark.parametrize(
    ("machine", "others", "code"),
    [
        ("p5.48xlarge", {"gpus_per_node": 9}, Refusal.GPUS_TOO_MANY),
        ("p5.48x", {}, UNCODED),
        ("p5.48xlarge", {"workload": replace(JOB, strategy="zero3", mesh=Mesh(shard=3))}, Refusal.GROUP_NOT_DIVISOR),
        (
            "g4dn.12xlarge",
            {"workload": replace(JOB, model=ModelSizes(1e6, flops_per_sample=1e9))},
            Refusal.DTYPE_RATE_UNKNOWN,
        ),
        ("B301", {}, UNCODED),
    ],
)
def test_refusal_of_the_only_machine_is_the_error(machine: str, others: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose([(machine, 1)], asked(**others))
    assert caught.value.code == code


@pytest.mark.usefixtures("exact_links")
def test_machines_without_a_price_come_last_and_are_compared_by_time() -> None:
    found = choose([("DGX H100", 1), ("p4d.24xlarge", 1)], asked())
    assert [each.instance.name for each in found.candidates] == ["p4d.24xlarge", "DGX H100"]
    assert [each.by for each in found.verdicts] == ["time"]
    assert found.verdicts[0].ratio.low > 1
    dear = choose([("DGX H100", 1), ("p4d.24xlarge", 1)], asked(prices={"p4d.24xlarge": 9e5}))
    assert dear.candidates[0].instance.name == "p4d.24xlarge"
    by_time = choose([("p4d.24xlarge", 1), ("DGX H100", 1)], asked(), by="time")
    assert by_time.candidates[0].instance.name == "DGX H100"


@pytest.mark.usefixtures("exact_links")
def test_earlier_price_that_reverses_the_order_is_reported() -> None:
    """A100 and L40S at the same speed, with links that do not matter: 21.96 (before: 32.77) against 30.13 $/h."""
    workload = replace(JOB, overlap=True, batch=1, accumulation=4000)
    found = choose([("p4d.24xlarge", 1), ("g6e.48xlarge", 1)], asked(workload))
    assert found.candidates[0].instance.name == "p4d.24xlarge"
    [change] = found.price_changes
    facts = change.facts
    assert (facts["then"], facts["then_date"]) == (32.7726, "2025-03-31")
    assert (facts["now"], facts["now_date"]) == (21.957642, "2026-07-20")
    assert (facts["other"], facts["others"]) == ("g6e.48xlarge", pytest.approx(30.13, abs=0.005))
    assert facts["hourly_order_changed"]
    assert (facts["result_now"], facts["result_then"]) == ("cheaper", "dearer")
    before = choose([("p4d.24xlarge", 1), ("g6e.48xlarge", 1)], asked(workload, price_on=date(2025, 4, 1)))
    assert before.candidates[0].instance.name == "g6e.48xlarge"


@pytest.mark.usefixtures("exact_links")
def test_loss_by_hidden_communication_is_the_published_one() -> None:
    """arXiv 2507.03114: communication slows concurrent computation by 18.9 % on average and 40 % at most."""
    assert LOST_TO_OVERLAP == (0.0, 0.189, 0.4)
    described = " ".join((FOLDER.parent / "docs" / "selection.md").read_text(encoding="utf-8").split())
    low, middle, high = LOST_TO_OVERLAP
    assert f"{middle:g} ({low:g}..{high:g})" in described
    assert f"{100 * middle:g} % on average, {100 * high:g} % at most" in described


@pytest.mark.usefixtures("exact_links")
def test_unverified_figures_have_a_remark() -> None:
    found = one("g5.48xlarge", asked(replace(JOB, baselines={}, efficiency={"": (0.4, 0.4)})))
    assert not found.verified
    [remark] = [each for each in found.remarks if each.code == PredictRemark.UNVERIFIED]
    assert any("A10G" in figure for figure in remark.facts["figures"])
    unread = one("g6e.48xlarge", asked(replace(JOB, unverified=("batch",))))
    [remark] = [each for each in unread.remarks if each.code == PredictRemark.UNVERIFIED]
    assert "batch" in remark.facts["figures"][0]


def test_concurrent_groups_share_the_nics() -> None:
    links = catalogue.instance("p4d.24xlarge").links  # four NICs of 12.5 GB/s
    alone = shared_links(links, CommGroup("data", 4, 8, 1))
    assert alone == links
    eight = shared_links(links, CommGroup("data", 4, 1, 8))
    assert (eight.num_nics, eight.nic_bytes_per_s) == (1, 12.5e9 * 4 / 8)
    two = shared_links(links, CommGroup("data", 4, 4, 2))
    assert (two.num_nics, two.nic_bytes_per_s) == (2, 12.5e9)


@pytest.mark.usefixtures("exact_links")
def test_line_over_model_sizes_ends_at_the_memory_limit() -> None:
    found = [one(name, asked(replace(JOB, baselines={}))) for name in ("p4d.24xlarge", "p5.48xlarge")]
    p4d, p5 = crossover.against_size(asked(replace(JOB, baselines={})), found)
    assert [x for x, _, _ in p4d.points] == [0.25e9, 0.5e9, 1e9, 2e9]  # 16 bytes a parameter in 40 GB
    assert [x for x, _, _ in p5.points] == [0.25e9, 0.5e9, 1e9, 2e9, 4e9]
    costs = [value.middle for _, value, _ in p5.points]
    assert costs == sorted(costs)
    across = crossover.against_nodes(asked(replace(JOB, baselines={})), found)
    assert [len(line.points) for line in across] == [len(crossover.NODES)] * 2


def test_published_results_decide_between_the_machines_of_the_study() -> None:
    """No result for several L40S is published: its middle is that of other servers without peer access."""
    question = SelectionQuestion(load_workload("vit-l-306m", FOLDER), predict.published(), TODAY)
    found = choose([("g6e.48xlarge", 1), ("p4d.24xlarge", 1)], question)
    p4d, g6e = found.candidates
    assert (p4d.instance.name, g6e.instance.name) == ("p4d.24xlarge", "g6e.48xlarge")
    assert (p4d.has_middle, g6e.has_middle) == (True, True)
    for by in ("cost", "time"):
        assert verdict(found, by).decided
    assert p4d.range("exchange_s").low > 0.00714  # by the rate of the ports
    assert g6e.range("exchange_s").low > 0.136
    unpublished = [each.remark.facts for each in found.remarks if each.remark.code == PredictRemark.NOTHING_PUBLISHED]
    assert unpublished == [], "servers without peer access are evidence for each other"
    assert range_of(p4d.sample_s).high < range_of(g6e.sample_s).high


def test_own_runs_replace_published_results() -> None:
    """A few measured rows give the exchange of g6e a middle: the measured time."""
    links = catalogue.instance("g6e.48xlarge").links
    sizes = [1 << power for power in range(20, 28)]
    seconds = {size: 50e-6 + size * 1.75 / 5e9 for size in sizes}
    rows = predict.PublishedCurve("mine", "measured", "run mine", "allreduce", links, 1, 8, seconds)
    known = predict.published() + predict.evidence_of([rows])
    workload = load_workload("vit-l-306m", FOLDER)
    before, after = (
        one("g6e.48xlarge", SelectionQuestion(workload, each, TODAY)) for each in (predict.published(), known)
    )
    assert after.bases["exchange"] == "measured"
    assert after.has_middle
    wide, narrow = (each.range("exchange_s") for each in (before, after))
    assert narrow.high / narrow.low < wide.high / wide.low
    assert narrow.middle == pytest.approx(306e6 * 4 * 1.75 / 5e9, rel=0.1)


def test_negligible_call_without_a_middle_keeps_the_middle() -> None:
    sure = Prediction(1.0, 2.0, 3.0, "published", ("x",), "ring", "NIC", "network", "a", 0.1, True, 0.5)
    vague = replace(sure, middle_s=None, low_s=0.01, high_s=0.04)
    call = Communication("x", "allreduce", 1.0, CommGroup("data", 1, 8, 1), 1, "bucket", "")
    assert has_middle(((call, sure), (call, vague)))
    assert not has_middle(((call, sure), (replace(call, calls=20), vague)))
    assert has_middle(())


def test_without_peer_access_two_nodes_are_not_faster() -> None:
    """Published network results are from other nodes; copies through host memory stay as slow."""
    question = SelectionQuestion(load_workload("vit-l-306m", FOLDER), predict.published(), TODAY)
    single, double = (one("g6e.48xlarge", question, nodes).range("exchange_s") for nodes in (1, 2))
    assert double.low >= single.low
    assert double.high >= single.high


def test_larger_model_has_more_of_the_same_layers() -> None:
    question = SelectionQuestion(load_workload("vit-l-306m", FOLDER), predict.published(), TODAY)
    [line] = crossover.against_size(question, [one("p5.48xlarge", question)])
    assert [x for x, _, _ in line.points] == pytest.approx([306e6 * factor for factor in (0.25, 0.5, 1, 2, 4)])
