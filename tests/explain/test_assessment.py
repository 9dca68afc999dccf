"""The verdict by published results, by the bound, or none; and how ranks and nodes are counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.core.links import Limit, NodeLinks
from bench.explain.assessment import Assessment, assess, tightest
from bench.explain.evidence import RunEvidence
from bench.explain.gather import gathered
from bench.explain.messages import AssessmentCode, CountCode, ResultVerdict
from bench.explain.stored import measured
from bench.hardware import catalogue
from bench.hardware.machine import machine_of
from bench.logs.foreign import ForeignRow, ForeignRun
from tests.explain.logs import SIZES, a_run, curve, evidence_of, pattern
from tests.gate import gate_runs

CANNOT_BE_JUDGED, ABOVE = ResultVerdict.CANNOT_BE_JUDGED, ResultVerdict.ABOVE
NORMAL_IF = ResultVerdict.NORMAL_IF
NORMAL, LOW, FAR_TOO_LOW = ResultVerdict.NORMAL, ResultVerdict.LOW, ResultVerdict.FAR_TOO_LOW


def not_judged(found: Assessment, code: AssessmentCode) -> dict[str, object]:
    """The facts of an assessment without a verdict, for this reason."""
    assert (found.verdict, found.why.code) == (CANNOT_BE_JUDGED, code)
    return dict(found.why.facts)


@pytest.mark.parametrize(
    ("busbw_gb", "verdict"), [(482.0, NORMAL), (420.0, NORMAL), (300.0, LOW), (200.0, FAR_TOO_LOW), (710.0, ABOVE)]
)
def test_the_ratio_to_published_results_decides(busbw_gb: float, verdict: ResultVerdict) -> None:
    assert assess(evidence_of(a_run(busbw_gb), "p5.48xlarge")).verdict == verdict


@pytest.mark.parametrize(("busbw_gb", "verdict"), [(240.0, NORMAL), (150.0, LOW), (90.0, FAR_TOO_LOW), (310.0, ABOVE)])
def test_the_bound_decides_if_no_result_is_known(busbw_gb: float, verdict: ResultVerdict) -> None:
    found = assess(evidence_of(a_run(busbw_gb, 4, name="alltoall"), "p4d.24xlarge"))
    assert found.verdict == verdict
    if verdict != ABOVE:
        assert found.why.code == AssessmentCode.COMPARED_WITH_BOUND and found.why.facts["missing"] == "shape"


def test_a_figure_that_is_rounded_up_is_not_above() -> None:
    exact = a_run(1.0, rows=(ForeignRow(1 << 30, algbw_bytes_per_s=171e9, busbw_bytes_per_s=300.2e9),))
    assert not evidence_of(exact, "p4d.24xlarge").above
    more = replace(exact, rows=(replace(exact.rows[0], busbw_bytes_per_s=302e9),))
    assert evidence_of(more, "p4d.24xlarge").above


def test_small_sizes_are_compared_with_small_sizes() -> None:
    rows = (ForeignRow(1 << 25, busbw_bytes_per_s=160e9), ForeignRow(1 << 24, busbw_bytes_per_s=120e9))
    found = assess(evidence_of(a_run(230.0, rows=rows), gpu="NVIDIA A100-SXM4-40GB"))
    assert (found.verdict, found.why.code) == (NORMAL, AssessmentCode.COMPARED)
    facts = found.why.facts
    assert (facts["rate"], facts["size_bytes"]) == (160e9, 32 << 20)
    assert found.ratio == pytest.approx(0.96, abs=0.005)
    assert facts["reference_rate"] == pytest.approx(166e9, rel=0.01) and facts["interpolated"]
    assert "floor_passed" not in facts and "floor_missed" not in facts


def test_nodes_with_unknown_nics_are_not_judged_but_others_results_are_shown() -> None:
    found = assess(evidence_of(a_run(62.0, 16, 2), gpu="NVIDIA H100 80GB HBM3"))
    others = not_judged(found, AssessmentCode.NICS_UNKNOWN)["others"]
    assert isinstance(others, list) and any("(a3-megagpu-8g)" in other for other in others)


def test_some_gpus_of_a_mesh_are_not_accused() -> None:
    """Two V100 may be joined by one link of six."""
    for rate, ranks, name in ((22.0, 2, None), (57.0, 4, "p3.16xlarge")):
        found = assess(evidence_of(a_run(rate, ranks), name, gpu="Tesla V100-SXM2-16GB"))
        assert not_judged(found, AssessmentCode.MESH_LINKS_UNKNOWN)
    assert assess(evidence_of(a_run(2.0, 2), gpu="Tesla V100-SXM2-16GB")).verdict == FAR_TOO_LOW


def test_gpus_of_a_mesh_that_have_no_link_to_each_other_are_not_accused() -> None:
    """The eight V100 of a p3.16xlarge have four linked peers each; alltoall also sends to the other three."""
    for name in ("alltoall", "sendrecv"):
        found = assess(evidence_of(replace(a_run(28.0, 8), pattern=name), "p3.16xlarge"))
        assert not_judged(found, AssessmentCode.MESH_LACKS_LINKS)
        found = assess(evidence_of(replace(a_run(2.0, 8), pattern=name), "p3.16xlarge"))
        assert found.verdict == FAR_TOO_LOW
    assert assess(evidence_of(a_run(28.0, 8), "p3.16xlarge")).verdict in (LOW, FAR_TOO_LOW)


def test_unknown_nics_that_would_make_a_result_normal_are_named() -> None:
    found = assess(evidence_of(a_run(300.0, 16, 2), gpu="NVIDIA H100 80GB HBM3"))
    assert (found.verdict, found.why.code) == (ResultVerdict.NORMAL_IF, AssessmentCode.NORMAL_WITH_NICS)
    assert found.why.facts["nics"] == ["400 Gb/s (50 GB/s)"]


def test_less_than_the_slowest_machine_with_this_gpu_would_give_is_low() -> None:
    found = assess(evidence_of(a_run(0.3, 16, 2), gpu="NVIDIA H100 80GB HBM3"))
    assert (found.verdict, found.why.code) == (LOW, AssessmentCode.BELOW_SLOWEST)
    assert found.why.facts["slowest_rate"] == pytest.approx(1.25e9)


def test_more_bandwidth_never_has_a_worse_verdict() -> None:
    order = [FAR_TOO_LOW, LOW, NORMAL]
    for name, ranks in (("alltoall", 4), ("allreduce", 16), ("allgather", 16), ("sendrecv", 8)):
        found = [assess(evidence_of(a_run(rate, ranks, 2, name=name), "DGX H100")) for rate in range(2, 140, 6)]
        levels = [order.index(each.verdict) for each in found if each.verdict in order]
        assert levels == sorted(levels), (name, [str(each.verdict) for each in found])


def test_ranks_that_are_not_even_on_nodes_are_not_accused() -> None:
    odd = replace(a_run(43.0, 3, 2), num_ranks=3)
    assert assess(evidence_of(odd, "DGX H100")).verdict not in (LOW, FAR_TOO_LOW)


def test_a_curve_that_ends_on_its_slope_is_not_compared_with_a_bound() -> None:
    short = a_run(1.0, 16, 2, rows=tuple(curve("allreduce", 16, 20.0, 1e-3, SIZES[:20])))
    facts = not_judged(assess(evidence_of(short, "p3dn.24xlarge")), AssessmentCode.SIZES_TOO_SMALL_FOR_BOUND)
    assert facts["rising"] and facts["largest_bytes"] == 4 << 20
    assert assess(evidence_of(a_run(3.4, 16, 2), "p3dn.24xlarge")).verdict == FAR_TOO_LOW


def test_cards_that_exchange_data_through_the_host_are_low_and_less_is_far_too_low() -> None:
    found = assess(evidence_of(a_run(4.0, 4), gpu="NVIDIA L40S"))
    assert (found.verdict, found.why.code) == (LOW, AssessmentCode.CARDS_THROUGH_HOST)
    assert assess(evidence_of(a_run(1.0, 4), gpu="NVIDIA L40S")).verdict == FAR_TOO_LOW


def bare(run: ForeignRun, **changes: object) -> ForeignRun:
    """The run of a log that states neither ranks nor nodes."""
    return replace(run, num_ranks=None, num_nodes=None, hosts=(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "num_ranks"), [("allreduce", 8), ("allreduce", 72), ("allgather", 16), ("alltoall", 2)]
)
def test_ranks_follow_from_busbw_over_algbw(name: str, num_ranks: int) -> None:
    rows = [
        replace(
            row,
            algbw_bytes_per_s=round((row.algbw_bytes_per_s or 0) / 1e7) * 1e7,
            busbw_bytes_per_s=round((row.busbw_bytes_per_s or 0) / 1e7) * 1e7,
        )
        for row in curve(name, num_ranks, 400.0)
    ]
    evidence = gathered(bare(a_run(1.0, name=name), rows=tuple(rows)), machine_of("p5.48xlarge"), pattern(name))
    assert evidence.num_ranks == num_ranks
    assert [count.facts["num_ranks"] for count in evidence.counts if count.code == CountCode.RANKS_FROM_RATES] == [
        num_ranks
    ]
    assert evidence.num_nodes == -(-num_ranks // 8)


@pytest.mark.parametrize("name", ["broadcast", "sendrecv"])
def test_ranks_do_not_follow_if_the_factor_is_1(name: str) -> None:
    evidence = gathered(bare(a_run(100.0, name=name)), machine_of("p5.48xlarge"), pattern(name))
    assert evidence.num_ranks is None
    not_judged(assess(evidence), AssessmentCode.NUM_RANKS_UNKNOWN)


def test_figures_too_coarse_give_no_number_of_ranks() -> None:
    coarse = tuple(ForeignRow(size, algbw_bytes_per_s=0.1e9, busbw_bytes_per_s=0.2e9) for size in SIZES[:5])
    assert gathered(bare(a_run(1.0), rows=coarse), machine_of(None), pattern("allreduce")).num_ranks is None


def test_one_host_of_a_long_list_is_no_node_count() -> None:
    many = a_run(800.0, 72, 1)
    assert gathered(many, machine_of(None), pattern("allreduce")).num_nodes is None
    assert gathered(many, machine_of("GB200 NVL72"), pattern("allreduce")).num_nodes == 18
    assert gathered(many, machine_of(None), pattern("allreduce"), num_nodes=9).num_nodes == 9


@pytest.mark.parametrize(("num_ranks", "nodes"), [(8, 1), (16, None)])
def test_a_list_of_ranks_that_was_cut_may_name_one_host_of_several(num_ranks: int, nodes: int | None) -> None:
    """The reader leaves the number of nodes open if the list lacks ranks."""
    cut = replace(a_run(40.0, num_ranks, 1), num_nodes=None)
    assert gathered(cut, machine_of(None), pattern("allreduce")).num_nodes == nodes
    whole = a_run(40.0, num_ranks, 1)
    assert gathered(whole, machine_of(None), pattern("allreduce")).num_nodes == 1


@pytest.mark.parametrize(
    ("hosts", "ranks", "may_be"),
    [
        (("test-4w-0", "test-4w-1"), 8, True),
        (("worker-0.set", "worker-1.set"), 2, True),
        (("worker-0", "worker-1"), 16, False),
        (("ip-10-0-0-1", "ip-10-0-0-2"), 2, False),
        (("red", "blue-1"), 2, False),
        (("worker-0",), 4, False),
    ],
)
def test_hosts_that_may_be_pods_make_the_number_of_nodes_uncertain(
    hosts: tuple[str, ...], ranks: int, may_be: bool
) -> None:
    run = replace(a_run(40.0, ranks, len(hosts)), hosts=hosts)
    machine = machine_of(None, ("NVIDIA B200",))
    counts = gathered(run, machine, pattern("allreduce")).counts
    assert [count.code for count in counts] == ([CountCode.NODES_MAY_BE_PODS] if may_be else [])
    given = gathered(run, machine, pattern("allreduce"), num_nodes=1).counts
    assert [count.code for count in given] == [CountCode.NODES_GIVEN]


def test_a_likely_network_bounds_as_a_reference_only() -> None:
    evidence = evidence_of(a_run(92.0, 16, 2), gpu="NVIDIA H200")
    network = tightest(evidence)
    assert network is not None and network.code == Limit.NIC_IN_USE and network.kind == "reference"
    assert network.bytes_per_s == pytest.approx(400e9)
    fast = evidence_of(a_run(760.0, 16, 2), gpu="NVIDIA H200")
    assert not fast.above


def test_times_alone_give_bandwidths() -> None:
    times = tuple(ForeignRow(size, time_s=1e-3) for size in (1 << 20, 1 << 22))
    evidence: RunEvidence = gathered(a_run(1.0, rows=times), machine_of("p4d.24xlarge"), pattern("allreduce"))
    assert evidence.best is not None and evidence.best.busbw_bytes_per_s == pytest.approx((1 << 22) / 1e-3 * 1.75)


def test_two_ends_of_verbs_are_compared_with_line_rates() -> None:
    row = ForeignRow(1 << 20, algbw_bytes_per_s=24.2e9, busbw_bytes_per_s=24.2e9)
    ends = ForeignRun("perftest", pattern="pingpong", num_ranks=2, num_nodes=2, rows=(row,))
    found = assess(gathered(ends, machine_of(None), pattern("pingpong")))
    assert (found.verdict, found.why.code) == (NORMAL, AssessmentCode.COMPARED_WITH_NIC)
    assert found.ratio == pytest.approx(0.97, abs=0.005) and found.why.facts["nic_gbit_per_s"] == pytest.approx(200)
    slow = replace(ends, rows=(replace(row, algbw_bytes_per_s=15e9, busbw_bytes_per_s=15e9),))
    not_judged(assess(gathered(slow, machine_of(None), pattern("pingpong"))), AssessmentCode.NIC_UNKNOWN)


@pytest.mark.parametrize("rate", [1.2e9, 2.9e9, 4.7e9, 5.7e9])
def test_two_ends_of_verbs_may_have_a_slow_nic(rate: float) -> None:
    """A NIC of 100 Gb/s at 23 Gb/s is no healthy NIC of 25 Gb/s, so the verdict has a condition."""
    row = ForeignRow(1 << 20, algbw_bytes_per_s=rate, busbw_bytes_per_s=rate)
    ends = ForeignRun("perftest", pattern="pingpong", num_ranks=2, num_nodes=2, rows=(row,))
    found = assess(gathered(ends, machine_of(None), pattern("pingpong")))
    assert (found.verdict, found.why.code) == (NORMAL_IF, AssessmentCode.NORMAL_WITH_SLOW_NIC)
    between = replace(ends, rows=(replace(row, algbw_bytes_per_s=2e9, busbw_bytes_per_s=2e9),))
    not_judged(assess(gathered(between, machine_of(None), pattern("pingpong"))), AssessmentCode.NIC_UNKNOWN)


def test_two_ends_of_verbs_are_compared_with_the_nic_that_the_user_names() -> None:
    row = ForeignRow(1 << 25, algbw_bytes_per_s=24.5e9, busbw_bytes_per_s=24.5e9)
    ends = ForeignRun("perftest", pattern="pingpong", num_ranks=2, rows=(row,))
    nic = NodeLinks("", 1, "host", nic_bytes_per_s=25e9, num_nics=1)
    machine = replace(machine_of(None), links=nic)
    found = assess(gathered(ends, machine, pattern("pingpong")))
    assert (found.verdict, found.why.code) == (NORMAL, AssessmentCode.COMPARED_WITH_NIC)
    half = replace(ends, rows=(replace(row, algbw_bytes_per_s=11.5e9, busbw_bytes_per_s=11.5e9),))
    not_judged(assess(gathered(half, machine, pattern("pingpong"))), AssessmentCode.HOST_MEMORY_TOOL)
    twice = replace(ends, rows=(replace(row, algbw_bytes_per_s=50e9, busbw_bytes_per_s=50e9),))
    several = replace(machine, links=replace(nic, num_nics=8))  # one test uses one of them
    assert assess(gathered(twice, several, pattern("pingpong"))).verdict != NORMAL


def test_a_card_of_a_known_maker_is_not_compared_with_machines_of_another_maker() -> None:
    for card, maker in (("AMD Radeon Graphics", "amd"), ("NVIDIA Graphics Device", "nvidia")):
        found = assess(evidence_of(a_run(322.0, gpus=(card,)), gpu=card))
        assert found.why.code == AssessmentCode.NORMAL_ON_MACHINES
        named = [*found.why.facts["machines"], *(found.why.facts["low_machines"] or ())]
        assert {catalogue.maker(catalogue.instance(each.rpartition(" (")[0]).gpu) for each in named} == {maker}


def test_mpi_from_host_memory_is_not_judged_by_gpus() -> None:
    rows = tuple(ForeignRow(size, time_s=1e-3) for size in (1 << 20, 1 << 22))
    osu = replace(a_run(1.0, 16, 2, rows=rows), tool="osu")
    evidence = gathered(osu, machine_of("p4d.24xlarge"), pattern("allreduce"))
    assert (
        all(bound.code == Limit.NETWORK for bound in evidence.bounds) and evidence.bounds and evidence.references == ()
    )
    not_judged(assess(evidence), AssessmentCode.HOST_MEMORY_TOOL)


@pytest.mark.parametrize(
    ("memory", "code"),
    [("device", "message-passing-tool"), ("mixed", "message-passing-tool"), ("host", "host-memory-tool")],
)
def test_mpi_between_gpus_is_not_said_to_be_from_host_memory(memory: str, code: str) -> None:
    osu = replace(a_run(10.0, 16, 2), tool="osu", settings=(("memory", memory),))
    evidence = gathered(osu, machine_of("p4d.24xlarge"), pattern("allreduce"))
    assert evidence.from_host_memory == (memory == "host") and evidence.references == ()
    not_judged(assess(evidence), AssessmentCode(code))


def test_mpi_between_gpus_that_fills_the_nics_is_normal() -> None:
    osu = replace(a_run(80.0, 16, 2), tool="osu", settings=(("memory", "device"),))
    assert assess(gathered(osu, machine_of("p4d.24xlarge"), pattern("allreduce"))).verdict == NORMAL


@pytest.mark.parametrize(("size", "code"), [(4096, "sizes-too-small-for-nic"), (1 << 20, "nic-unknown")])
def test_a_nic_is_not_judged_by_small_messages(size: int, code: str) -> None:
    row = ForeignRow(size, algbw_bytes_per_s=15e9, busbw_bytes_per_s=15e9)
    ends = ForeignRun("perftest", pattern="pingpong", num_ranks=2, num_nodes=2, rows=(row,))
    not_judged(assess(gathered(ends, machine_of(None), pattern("pingpong"))), AssessmentCode(code))


def test_our_own_ranks_on_one_gpu_are_not_judged() -> None:
    rows = [gate_runs.record("pipelined", size, flags=("shared_gpu",)) for size in SIZES]
    of = gate_runs.header(transport="nccl", instance="p5.48xlarge", num_nodes=1)
    [(_, evidence)] = measured([("job", of, rows)])
    not_judged(assess(evidence), AssessmentCode.SHARED_GPU)
