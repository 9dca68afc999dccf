"""Predictions: the links that affect each pattern, the basis of intervals, and predictions without a middle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import log, sqrt
from typing import Any

import pytest

from bench.core import plugins
from bench.core.codes import UNCODED
from bench.core.errors import UsageError
from bench.core.links import NodeLinks
from bench.core.pattern import Shape
from bench.core.record import Samples
from bench.hardware import catalogue, curves
from bench.predict import algorithms as engine
from bench.predict import predict
from bench.predict.messages import PredictRemark, Refusal
from bench.predict.pool import EfficiencyCurve, FamilyCurves, Query, estimate, student
from bench.predict.predict import EfficiencyEvidence, PublishedCurve
from bench.results import summary

GIB, MIB = 1 << 30, 1 << 20
KNOWN = predict.published()
P4D, P5, G6E = (catalogue.node_links(name) for name in ("p4d.24xlarge", "p5.48xlarge", "g6e.48xlarge"))
TWO_LEVELS = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall")


def middle(pattern: str, links: NodeLinks, nodes: int = 1, size: int = GIB, known: EfficiencyEvidence = KNOWN) -> float:
    return predict.collective(pattern, size, links, nodes, 8, known).centre_s


@pytest.mark.parametrize("pattern", [*TWO_LEVELS, "sendrecv"])
def test_half_a_link_slows_only_the_patterns_that_cross_it(pattern: str) -> None:
    half_nvlink, half_nic = P4D.with_rates({"nvlink": 150e9}), P4D.with_rates({"nic": 6.25e9})
    half_pcie = P4D.with_rates({"pcie": P4D.pcie_bytes_per_s / 2 if P4D.pcie_bytes_per_s else 0})
    inside = middle(pattern, P4D)
    assert middle(pattern, half_nvlink) > 1.5 * inside
    assert middle(pattern, half_nic) == inside and middle(pattern, half_pcie) == inside
    assert middle(pattern, half_nic, 2) > 1.5 * middle(pattern, P4D, 2)


def test_half_a_pcie_link_doubles_the_low_end_without_peer_access() -> None:
    half = G6E.with_rates({"pcie": (G6E.pcie_bytes_per_s or 0) / 2})
    slow, fast = (predict.collective("allreduce", GIB, links, 1, 8, KNOWN) for links in (half, G6E))
    assert slow.low_s > 1.9 * fast.low_s
    assert middle("allreduce", G6E.with_rates({"nic": 1e9})) == middle("allreduce", G6E)


@pytest.mark.parametrize("pattern", engine.LIBRARY)
@pytest.mark.parametrize(
    "name",
    [
        "p4d.24xlarge",
        "p5.48xlarge",
        "g6e.48xlarge",
        "g7e.48xlarge",
        "GB200 NVL72",
        "Standard_ND96isr_MI300X_v5",
        "p3.16xlarge",
        "Standard_NC96ads_A100_v4",
    ],
)
def test_interval_contains_its_middle_and_respects_the_links(pattern: str, name: str) -> None:
    found = catalogue.instance(name)
    for nodes in (1, 2):
        for size in (8, 1 << 17, GIB):
            predicted = predict.collective(pattern, size, found.links, nodes, found.gpus, KNOWN)
            assert predicted.ideal_s <= predicted.low_s <= predicted.centre_s <= predicted.high_s, predicted
            assert predicted.basis in predict.BASES and predicted.rests_on and predicted.bottleneck


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", ["p4d.24xlarge", "p5.48xlarge", "g5.48xlarge", "g7e.48xlarge", "p3.16xlarge"])
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("pattern", ["allreduce", "allgather", "alltoall", "broadcast"])
def test_larger_messages_take_longer(name: str, nodes: int, pattern: str) -> None:
    sizes = [1 << k for k in range(3, 34)]
    links = catalogue.node_links(name)
    for algorithm, predicted in predict.by_algorithm(pattern, sizes, links, nodes, 8, KNOWN).items():
        for small, large in pairwise(sizes):
            for end in ("low_s", "centre_s", "high_s"):
                ratio = getattr(predicted[large], end) / getattr(predicted[small], end)
                # A curve may end between grid points: the grid guarantees 2^(-1/PER_OCTAVE) = 0.79.
                assert ratio > 0.88, (algorithm, small, end)
        assert predicted[sizes[-1]].centre_s > 50 * predicted[sizes[0]].centre_s


def test_gradients_of_the_published_study() -> None:
    gradients = 306e6 * 4
    p4d = predict.collective("allreduce", gradients, P4D, 1, 8, KNOWN)
    assert p4d.middle_s == pytest.approx(9.2e-3, rel=0.1) and p4d.basis == "published" and p4d.verified
    g6e = predict.collective("allreduce", gradients, G6E, 1, 8, KNOWN)
    # 2 x 7/8 of the bytes over Gen4 x8 at 86 %: 159 ms. Servers without peer access reach 45 % of their PCIe
    # links, some 14 %.
    assert g6e.middle_s == pytest.approx(gradients * 1.75 / (0.45 * 15.75e9), rel=0.1)
    assert g6e.low_s == pytest.approx(0.159, rel=0.05)
    assert g6e.high_s > gradients * 1.75 / 3e9 and g6e.link_class == "no-p2p"


def test_unmeasured_class_is_bracketed_and_has_no_middle() -> None:
    mi300 = catalogue.node_links("Standard_ND96isr_MI300X_v5")
    only = EfficiencyEvidence(curves=tuple(each for each in KNOWN.curves if each.family == "nvswitch"))
    predicted = predict.collective("allreduce", GIB, mi300, 1, 8, only)
    assert predicted.middle_s is None and predicted.basis == "bound" and "nvswitch" in predicted.rests_on[0]
    nothing = predict.collective("allreduce", GIB, mi300, 1, 8, EfficiencyEvidence())
    assert nothing.middle_s is None and nothing.low_s < nothing.high_s and nothing.basis == "bound"


def test_second_node_does_not_speed_up_copies_through_the_host() -> None:
    one, two = (predict.collective("allreduce", GIB, G6E, nodes, 8, KNOWN) for nodes in (1, 2))
    assert two.high_s > 0.9 * one.high_s and two.low_s >= one.low_s  # 1 of 8 rings leaves each port


def test_extrapolation_beyond_the_evidence_has_no_middle() -> None:
    most = max(each.num_ranks for each in KNOWN.curves if each.family == "network" and each.group == "efa")
    for nodes, pointed in ((most // 8, True), (most // 4, False)):
        predicted = predict.collective("allreduce", 16 * GIB, P5, nodes, 8, KNOWN)
        assert (predicted.middle_s is not None) is pointed
        assert any("extrapolated" in source and str(most) in source for source in predicted.rests_on) is not pointed


def test_own_measurements_outweigh_published_ones() -> None:
    slow = {size: 3 * engine.seconds_of("allreduce", size, 8, 230e9) for size in (256 * MIB, GIB, 4 * GIB)}
    own = predict.evidence_of(
        [PublishedCurve("p4d.24xlarge", "measured", "my run (2026-11-22)", "allreduce", P4D, 1, 8, slow)]
    )
    predicted = predict.collective("allreduce", GIB, P4D, 1, 8, KNOWN + own)
    assert predicted.basis == "measured" and predicted.rests_on == ("my run (2026-11-22)",)
    assert predicted.centre_s == pytest.approx(slow[GIB], rel=0.05)
    assert predicted.low_s < slow[GIB] < predicted.high_s
    # Another instance type changes only a little.
    other = predict.collective("allreduce", GIB, P5, 1, 8, KNOWN + own)
    assert other.centre_s == pytest.approx(middle("allreduce", P5), rel=0.1)


def test_ideal_times_of_predictions_scale_like_the_links() -> None:
    twice = replace(P4D, nvlink_bytes_per_s=600e9)
    predicted, fast = (predict.collective("allreduce", 8 * GIB, links, 1, 8, KNOWN) for links in (P4D, twice))
    assert fast.ideal_s == pytest.approx(predicted.ideal_s / 2, rel=1e-3)


def test_rates_are_converted_to_seconds_by_the_bus_factors() -> None:
    for name in engine.LIBRARY:
        pattern = plugins.load("pattern", name).PATTERN
        shape = Shape(num_ranks=8, payload_bytes=GIB)
        factor = pattern.bus_factor(shape)
        if factor:
            assert engine.seconds_of(name, GIB, 8, 1e9) == pytest.approx(factor * GIB / 1e9), name


def test_quantiles_of_students_t() -> None:
    for freedom, predicted in ((4, 2.1318), (10, 1.8125), (100, 1.6602)):  # two-sided 90 %, from printed tables
        assert student(freedom, 0.9) == pytest.approx(predicted, rel=1e-3)


def test_copy_uses_the_instance_and_halves_if_several_gpus_copy() -> None:
    predicted = predict.copy("h2d", 1e9, G6E, KNOWN)
    assert (
        predicted.middle_s == pytest.approx(1e9 / 13.47e9, rel=0.01)
        and predicted.low_s < 1e9 / 13.47e9 < predicted.high_s
    )
    many = predict.copy("h2d", 1e9, G6E, KNOWN, gpus_at_once=8)
    assert many.middle_s is None and many.high_s == pytest.approx(2 * predicted.high_s)


def test_similar_machines_weigh_more() -> None:
    def curve(system: str, exact: str, value: float) -> EfficiencyCurve:
        return EfficiencyCurve(
            system, "", "published", system, "nvswitch", exact, "nvswitch", "ring", 8, 1, ((-4.0, value),)
        )

    asked = Query("nvswitch", "nvlink3", "nvswitch", "ring", "", 8, 1)
    others = [curve("b", "nvlink3", -0.2), curve("c", "nvlink5", -0.6)]
    first = curve("a", "nvlink3", -0.2)
    predicted = estimate(FamilyCurves([first, *others], "nvswitch").at(-4.0), asked, -4.0)
    assert predicted is not None and predicted.mean == pytest.approx(-0.2, abs=0.05) and predicted.num_systems == 3
    assert estimate(FamilyCurves([first], "nvswitch").at(-9.0), asked, -9.0) is None  # too far from the points


def test_old_libraries_single_gpus_and_distant_extrapolations_weigh_less() -> None:
    """Two systems of 0.3 are outweighed by one of 0.9, if something sets them apart."""

    def curve(system: str, value: float, ranks: int = 16, start: float = -4.0, old: bool = False) -> EfficiencyCurve:
        points = ((start - 1, log(value)), (start, log(value)))
        ends = ("network", "efa", "efa", "reduction", ranks, 2, points)
        return EfficiencyCurve(system, "", "published", system, *ends, old_library=old)

    def pooled(**different: Any) -> float:
        curves = [curve("a", 0.9), curve("b", 0.3, **different), curve("c", 0.3, **different), curve("d", 0.9)]
        asked = Query("network", "efa", "efa", "reduction", "", 16, 2)
        found = estimate(FamilyCurves(curves, "network").at(-3.0), asked, -3.0)
        assert found is not None
        return found.quantile(0.0)

    alike = pooled()
    assert alike == pytest.approx(sqrt(0.9 * 0.3))
    assert pooled(old=True) > alike
    assert pooled(ranks=2) > alike
    assert pooled(start=-12.0) > alike


def test_a_world_larger_than_any_measured_has_an_estimate_but_no_middle() -> None:
    links = catalogue.node_links("p5en.48xlarge")
    found = predict.collective("allreduce", 2**34, links, 2048, 8, KNOWN)
    assert found.middle_s is None
    assert found.centre_s == found.estimate_s
    assert found.low_s < found.centre_s < found.high_s


def test_no_published_row_of_a_large_message_beats_its_links_alone() -> None:
    above = [
        (rows.system, rows.pattern, size)
        for rows in KNOWN.rows
        for size, seconds in rows.seconds.items()
        if size >= MIB
        and seconds < 0.999 * engine.task(rows.pattern, rows.links, rows.num_nodes, rows.ranks_per_node).ideal_s(size)
    ]
    assert above == []


def test_published_curves_belong_to_rows_of_the_reference() -> None:
    file = catalogue.yaml_file("curves")
    used = sum(len(each.told.busbw) > 1 for each in curves.published())
    limited = ("p3dn",)  # known defect: in the file, never used
    assert used >= sum(row["source"] not in limited for row in file["curves"])
    systems = {each.system for each in curves.published()}
    assert "p5.48xlarge" in systems and all(each.links.peer_s for each in curves.published())


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (lambda: predict.collective("allreduce", GIB, P4D, 1, 1, KNOWN), Refusal.TOO_FEW_RANKS),
        (lambda: predict.collective("allreduce", -1, P4D, 1, 8, KNOWN), Refusal.PAYLOAD_INVALID),
        (lambda: predict.collective("alreduce", GIB, P4D, 1, 8, KNOWN), Refusal.PATTERN_UNKNOWN),
        (lambda: predict.collective("allreduce", GIB, P4D, 1, 9, KNOWN), UNCODED),
        (lambda: predict.curve("allreduce", [GIB], P4D, 1, 8, KNOWN, "nvls"), Refusal.ALGORITHM_UNKNOWN),
        (
            lambda: predict.collective(
                "alltoall", GIB, replace(P4D, nodes_per_leaf=8, oversubscription=2.0), 512, 8, KNOWN
            ),
            Refusal.ALLTOALL_TOO_LARGE,
        ),
        (lambda: replace(P4D, gpus_per_pcie_switch=0), UNCODED),
        (lambda: predict.copy("sideways", 1e9, P4D, KNOWN), Refusal.DIRECTION_UNKNOWN),
    ],
)
def test_impossible_prediction_is_refused(asked: Callable[[], object], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        asked()
    assert caught.value.code == code


Make = Callable[..., Any]


def run_of(a_header: Make, a_record: Make, **overrides: Any) -> EfficiencyEvidence:
    """Evidence of one NCCL run of two sizes on a p4d node, as from a results file."""
    given = {
        "job": "allreduce-nccl",
        "transport": "nccl",
        "num_ranks": 8,
        "num_nodes": 1,
        "ranks_per_node": 8,
        "links": P4D.to_dict(),
        "instance": "p4d.24xlarge",
    }
    header = a_header(**given | overrides)
    records = [
        a_record(
            payload_bytes=size,
            requested_bytes=(size,),
            num_ranks=8,
            num_nodes=1,
            bus_factor=1.75,
            node_bytes=None,
            modelled=header.modelled,
            samples=Samples((seconds,) * 30),
        )
        for size, seconds in ((8, 2e-5), (GIB, 9e-3))
    ]
    document = summary.document([(header.job, header, records)])
    return predict.of_run(document.headers, document.summaries, "my run")


def test_nccl_run_is_evidence(a_header: Make, a_record: Make) -> None:
    found = run_of(a_header, a_record)
    (rows,) = found.rows
    assert (rows.system, rows.basis, rows.pattern, rows.ranks_per_node) == ("p4d.24xlarge", "measured", "allreduce", 8)
    assert rows.seconds == {8: pytest.approx(2e-5), GIB: pytest.approx(9e-3)} and "2026-01-02" in rows.source
    predicted = predict.collective("allreduce", GIB, P4D, 1, 8, KNOWN + found)
    assert predicted.basis == "measured" and predicted.middle_s == pytest.approx(9e-3, rel=0.02)
    small = predict.collective("allreduce", 8, P4D, 1, 8, KNOWN + found)
    assert small.basis == "measured" and small.bottleneck == "latency" and small.low_s < 2e-5 < small.high_s


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        ({"modelled": True}, PredictRemark.EVIDENCE_MODELLED),
        ({"transport": "mpi"}, PredictRemark.EVIDENCE_NOT_GPU),
        ({"links": {}}, PredictRemark.EVIDENCE_WITHOUT_LINKS),
        ({"num_nodes": None}, PredictRemark.EVIDENCE_WITHOUT_WORLD),
    ],
)
def test_unusable_run_is_left_out_with_a_reason(
    a_header: Make, a_record: Make, overrides: dict[str, Any], code: str
) -> None:
    found = run_of(a_header, a_record, **overrides)
    assert not found.rows and not found.curves and [note.code for note in found.notes] == [code]


def test_imported_rows_count_as_imported(a_header: Make, a_record: Make) -> None:
    found = run_of(a_header, a_record, transport="nccl_tests", imported={"tool": "nccl_tests"})
    assert found.rows[0].basis == "imported" and found.rows[0].ranks_per_node == 8
