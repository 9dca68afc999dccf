"""Copies: the verdict of each direction, and each reason on matrices where it applies and where it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.core.codes import Coded
from bench.explain import copy_sections
from bench.explain.assessment import Assessment
from bench.explain.copy_assessment import assess_copies
from bench.explain.copy_evidence import CopyEvidence, copy_evidence, fitting_links
from bench.explain.explain import page
from bench.explain.log_hints import Hint, HintReader
from bench.explain.messages import AssessmentCode, BoundCode, ExplainNote, ResultCode, ResultVerdict
from bench.explain.notes import copy_notes
from bench.explain.reason import Reason
from bench.explain.reasons import copies
from bench.hardware.machine import machine_of
from bench.logs.foreign import TRUNCATED, ForeignRun, Matrix, MatrixCell, Remark
from bench.logs.messages import LogCode
from tests.explain.logs import from_host, matrix, pairs, to_host
from tests.facts import holds

G6E = (matrix("h2d", from_host(*[13.47] * 8)), matrix("d2h", to_host(*[13.21] * 8)))
V100, A10, GH200 = "Tesla V100-SXM2-16GB", "NVIDIA A10", "NVIDIA GH200 480GB"
CANNOT_BE_JUDGED, ABOVE = ResultVerdict.CANNOT_BE_JUDGED, ResultVerdict.ABOVE
NORMAL, LOW, FAR_TOO_LOW = ResultVerdict.NORMAL, ResultVerdict.LOW, ResultVerdict.FAR_TOO_LOW


def evidence_of(
    *matrices: Matrix, instance: str | None = None, gpu: str | None = None, **changes: object
) -> CopyEvidence:
    run = replace(ForeignRun("nvbandwidth", matrices=matrices), **changes)  # type: ignore[arg-type]
    return copy_evidence(run, machine_of(instance, (gpu,) if gpu else ()))


def assessed(*matrices: Matrix, **machine: str) -> Assessment:
    return assess_copies(evidence_of(*matrices, instance=machine.get("instance"), gpu=machine.get("gpu")))


def facts_of(reason: Reason | None) -> dict[str, Any]:
    """The facts of a reason that must apply."""
    assert reason is not None
    return dict(reason.facts)


def codes(lines: tuple[Coded, ...]) -> list[str]:
    return [line.code for line in lines]


def test_half_of_x16_on_a_machine_that_has_x8_is_normal_and_explained() -> None:
    g6e = evidence_of(*G6E, instance="g6e.48xlarge")
    assert assess_copies(g6e).verdict == NORMAL
    facts = facts_of(copies.narrow_pcie_link(g6e))
    assert facts["share"] == pytest.approx(0.43, abs=0.005) and (facts["generation"], facts["lanes"]) == (4, 16)
    assert "wiring" in facts


def test_half_of_x16_on_a_machine_that_has_x16_is_low() -> None:
    assert assessed(matrix("h2d", from_host(*[13.2] * 4)), instance="Standard_NC96ads_A100_v4").verdict == FAR_TOO_LOW
    facts = facts_of(copies.narrow_pcie_link(evidence_of(*G6E, gpu=A10)))
    assert facts["fitting"].split(" or ") == ["PCIe 3 x16", "PCIe 4 x8"] and "wiring" not in facts


def test_a_full_link_is_not_called_narrow() -> None:
    full = evidence_of(matrix("h2d", from_host(26.9, 26.9)), gpu="NVIDIA L40S")
    assert copies.narrow_pcie_link(full) is None
    assert assess_copies(full).verdict == NORMAL


def test_what_equals_others_with_this_gpu_on_this_link_is_normal_without_the_machines_name() -> None:
    found = assessed(matrix("h2d", from_host(10.5, 11.0, 11.0, 11.0)), gpu=V100)
    assert found.verdict == NORMAL and found.ratio == pytest.approx(0.96, abs=0.005)
    assert found.why.code == AssessmentCode.COPY_COMPARED
    assert found.why.facts["machine"] == "aws p3.16xlarge" and found.why.facts["same_build"]
    assert assessed(matrix("h2d", from_host(8.0)), gpu=V100).verdict == FAR_TOO_LOW


def test_others_on_another_link_or_with_a_bridge_excuse_nothing() -> None:
    assert assessed(matrix("h2d", from_host(13.4)), gpu=A10).verdict == ResultVerdict.NORMAL_IF
    assert assessed(matrix("d2d", pairs(2, 100.0)), gpu="NVIDIA A100 80GB PCIe").verdict == FAR_TOO_LOW


def test_above_the_link_is_an_error_with_its_derivation() -> None:
    found = assessed(matrix("h2d", from_host(26.9)), instance="g6e.48xlarge")
    assert found.verdict == ABOVE and found.why.code == AssessmentCode.ABOVE_BOUND
    assert found.why.facts["bound"] == "PCIe port"
    assert found.why.facts["bound_rate"] == pytest.approx(15.75e9, rel=0.001) and found.why.facts["bound_why"]


def test_the_sum_of_both_directions_has_twice_the_link() -> None:
    both = matrix("bidirectional_sum", pairs(2, 111.4), None, "Bidirectional P2P=Enabled Bandwidth")
    one = matrix("d2d", pairs(2, 56.6), None, "Unidirectional P2P=Enabled Bandwidth")
    peers = evidence_of(one, both, instance="g7e.48xlarge")
    assert assess_copies(peers).verdict == NORMAL
    assert codes(copy_notes(peers)) == [ExplainNote.SUM_OF_TWO_WAYS]
    assert assessed(replace(both, direction="d2d"), instance="g7e.48xlarge").verdict == ABOVE


def test_one_direction_of_two_is_noted() -> None:
    two = evidence_of(*G6E, matrix("bidirectional", from_host(13.3)), instance="g6e.48xlarge")
    one = evidence_of(*G6E, instance="g6e.48xlarge")
    assert codes(copy_notes(one)) == [ExplainNote.SAME_AS_PUBLISHED], "these are the published figures"
    assert codes(copy_notes(two)) == [ExplainNote.SAME_AS_PUBLISHED, ExplainNote.ONE_OF_TWO_WAYS]
    other = evidence_of(matrix("h2d", from_host(13.0)), matrix("d2h", to_host(13.0)), instance="g6e.48xlarge")
    assert copy_notes(other) == ()


def test_one_bad_pair_is_named_and_decides() -> None:
    bad = evidence_of(matrix("d2d", pairs(8, 265.0, a2_5=31.0)), instance="a2-highgpu-8g")
    facts = facts_of(copies.slow_pairs(bad))
    assert facts["pairs"] == ["gpu2 to gpu5 31 GB/s"]
    assert (facts["num_pairs"], facts["median_rate"]) == (56, 265e9)
    assert assess_copies(bad).verdict == FAR_TOO_LOW
    assert copies.slow_pairs(evidence_of(matrix("d2d", pairs(8, 265.0)), instance="a2-highgpu-8g")) is None


def test_all_pairs_of_one_gpu_name_that_gpu() -> None:
    odd = {f"a3_{other}": 100.0 for other in range(8) if other != 3}
    found = copies.slow_pairs(evidence_of(matrix("d2d", pairs(8, 265.0, **odd)), instance="a2-highgpu-8g"))
    assert facts_of(found)["gpu"] == "gpu3"


def test_pairs_of_different_cards_are_not_compared_with_each_other() -> None:
    rates = {("gpu0", "gpu1"): 56.0, ("gpu1", "gpu0"): 56.1, ("gpu2", "gpu3"): 26.4, ("gpu3", "gpu2"): 26.3}
    rates |= {("gpu4", "gpu5"): 13.2, ("gpu5", "gpu4"): 13.1}
    cards = ("NVIDIA GeForce RTX 5090", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3090")
    assert copies.slow_pairs(evidence_of(matrix("d2d", rates), gpus=cards)) is None
    assert copies.slow_pairs(evidence_of(matrix("d2d", rates), gpus=cards[1:2])) is not None
    one_way = evidence_of(matrix("d2d", rates | {("gpu5", "gpu4"): 5.0}), gpus=cards)
    assert facts_of(copies.slow_pairs(one_way))["pairs"] == ["gpu5 to gpu4 5 GB/s"]


RTX_3090 = "NVIDIA GeForce RTX 3090"
OLDER_LINKS = ["PCIe 3.0 x16", "PCIe 4.0 x8"]


def test_a_card_at_the_rate_of_an_older_slot_is_normal_if_the_machine_is_built_so() -> None:
    copied = (matrix("h2d", from_host(12.4)), matrix("d2h", to_host(13.1)))
    found = assessed(*copied, gpu=RTX_3090)
    assert (found.verdict, found.why.code) == (ResultVerdict.NORMAL_IF, AssessmentCode.NORMAL_WITH_SLOWER_PCIE)
    assert found.why.facts["links"] == OLDER_LINKS
    assert copies.narrow_pcie_link(evidence_of(*copied, gpu=RTX_3090)) is not None, "the page still says to check"


@pytest.mark.parametrize(
    "copied",
    [
        (matrix("h2d", from_host(12.4)), matrix("d2h", to_host(26.1))),  # the link is fast in the other direction
        (matrix("h2d", from_host(25.9, 25.8, 12.4)),),  # the other cards are faster
        (matrix("h2d", from_host(10.1)),),  # no usual link has this rate
    ],
    ids=["one direction", "one card", "no link"],
)
def test_no_older_slot_explains_these_rates(copied: tuple[Matrix, ...]) -> None:
    assert assessed(*copied, gpu=RTX_3090).verdict == FAR_TOO_LOW


@pytest.mark.parametrize("module", ["NVIDIA H100 80GB HBM3", "NVIDIA B200", "AMD Instinct MI300X"])
def test_the_board_of_a_module_has_no_older_slots(module: str) -> None:
    assert assessed(matrix("h2d", from_host(12.4)), gpu=module).verdict == FAR_TOO_LOW


def test_copies_through_the_host_are_normal_if_the_slots_are_older() -> None:
    same_switch = {f"a{a}_{b}": 6.1 for a in range(4) for b in range(4) if a // 2 == b // 2 and a != b}
    detour = matrix("through_host", pairs(4, 8.6, **same_switch), None)
    found = assessed(detour, gpu=RTX_3090)
    assert (found.verdict, found.why.facts["links"]) == (ResultVerdict.NORMAL_IF, OLDER_LINKS)
    assert assessed(matrix("through_host", pairs(4, 1.9), None), gpu=RTX_3090).verdict == FAR_TOO_LOW


def test_copies_inside_gpus_are_shown_although_they_cross_no_link() -> None:
    inside = {(f"gpu{index}", f"gpu{index}"): 1116.0 + index for index in range(2)}
    only = evidence_of(matrix("local", inside, "cc", "device_local_copy"), gpu="NVIDIA H20-3e")
    assert ResultCode.LOCAL_COPIES in codes(tuple(copy_sections.got(only)))
    beside = evidence_of(matrix("h2d", from_host(55.0)), matrix("local", inside, "cc"), gpu="NVIDIA H20-3e")
    assert ResultCode.LOCAL_COPIES not in codes(tuple(copy_sections.got(beside)))


def test_a_mesh_of_one_and_two_links_is_not_a_fault() -> None:
    two = {f"a{a}_{b}": 48.4 for a in range(4) for b in range(4) if (a + b) % 2 == 1}
    mesh = evidence_of(matrix("d2d", pairs(4, 24.2, **two)), gpu=V100)
    assert copies.slow_pairs(mesh) is None
    assert copies.pairs_differ(mesh) is not None and copies.peer_access_for_some_pairs(mesh) is None
    assert assess_copies(mesh).verdict != ABOVE


@pytest.mark.parametrize(
    ("rate", "nvlinks"), [(24.2, "1 NVLink of 25 GB/s"), (48.5, "2 NVLinks of 25 GB/s"), (40.0, None)]
)
def test_a_pair_at_a_whole_number_of_nvlinks_has_so_many(rate: float, nvlinks: str | None) -> None:
    found = copies.few_nvlinks(evidence_of(matrix("d2d", pairs(4, rate)), gpu=V100))
    if nvlinks is None:
        assert found is None
    else:
        assert facts_of(found)["nvlinks"] == nvlinks and facts_of(found)["port_rate"] == 150e9
    assert copies.few_nvlinks(evidence_of(matrix("d2d", pairs(4, rate)), gpu="NVIDIA A100-SXM4-40GB")) is None


def fitting(*matrices: Matrix) -> list[str]:
    """What the rates of an unknown machine fit."""
    return [line.facts["fitting"] for line in copy_sections.possible(evidence_of(*matrices))]


def test_copies_of_an_unknown_gpu_that_are_faster_than_the_hosts_link_fit_nvlinks_before_a_newer_pcie() -> None:
    host, peer = matrix("h2d", from_host(11.2)), matrix("d2d", pairs(2, 48.4))
    assert holds(fitting(host, peer)[1], "2 NVLinks", "25 GB/s", "(NVLink 2 to 4)")
    [alone] = fitting(peer)
    assert alone == fitting(matrix("h2d", from_host(55.0)), peer)[1]
    assert alone.split(" or ") == ["PCIe 5 x16", "PCIe 6 x8"]


def test_a_known_gpu_without_its_machine_is_called_known() -> None:
    peers = matrix("d2d", pairs(4, 48.5))
    mesh = assess_copies(replace(evidence_of(peers, gpu=V100), references=()))
    assert (mesh.verdict, mesh.why.code) == (CANNOT_BE_JUDGED, AssessmentCode.GPU_LINKS_UNKNOWN)
    assert mesh.why.facts == {"gpu": "V100-SXM2-16GB"}
    assert assessed(peers).why.code == AssessmentCode.LINKS_UNKNOWN


def test_pairs_without_a_value_are_counted() -> None:
    some = {pair: rate for pair, rate in pairs(4, 54.0).items() if {*pair} in ({"gpu0", "gpu1"}, {"gpu2", "gpu3"})}
    found = copies.peer_access_for_some_pairs(evidence_of(matrix("d2d", some), instance="g7e.48xlarge"))
    assert facts_of(found) == {"num_reached": 4, "num_pairs": 12}
    all_pairs = evidence_of(matrix("d2d", pairs(4, 54.0)), instance="g7e.48xlarge")
    assert copies.peer_access_for_some_pairs(all_pairs) is None and copies.pairs_differ(all_pairs) is None


def test_pairs_that_a_cut_log_lost_are_not_refused() -> None:
    first_row = matrix("d2d", {pair: rate for pair, rate in pairs(4, 54.0).items() if pair[0] == "gpu0"})
    lost = replace(
        first_row, cells=(*first_row.cells, *(MatrixCell("gpu1", f"gpu{to}", None, "unreadable") for to in (0, 2)))
    )
    for short in (first_row, lost):
        cut = evidence_of(short, instance="g7e.48xlarge", status=TRUNCATED)
        assert copies.peer_access_for_some_pairs(cut) is None
    refused = replace(first_row, cells=(*first_row.cells, MatrixCell("gpu1", "gpu0", None, "waived")))
    found = copies.peer_access_for_some_pairs(evidence_of(refused, instance="g7e.48xlarge", status=TRUNCATED))
    assert facts_of(found) == {"num_reached": 11, "num_pairs": 12}


def test_peer_access_slower_than_host_memory_is_named() -> None:
    """NVIDIA/nccl issue 814: 22 GB/s through the host, 10 GB/s directly."""
    detour, direct = matrix("through_host", pairs(4, 22.1), None), matrix("d2d", pairs(4, 9.9), None)
    facts = facts_of(copies.peer_slower_than_host(evidence_of(direct, detour)))
    assert (facts["direct_rate"], facts["staged_rate"]) == (pytest.approx(9.9e9), pytest.approx(22.1e9))
    assert copies.peer_slower_than_host(evidence_of(matrix("d2d", pairs(4, 21.0), None), detour)) is None
    assert copies.peer_slower_than_host(evidence_of(direct)) is None


def test_kernel_copies_alone_are_not_judged_but_shown() -> None:
    kernels = matrix("h2d", from_host(35.2), "sm", "host_to_device_memcpy_sm")
    found = evidence_of(kernels)
    why = assess_copies(found).why
    assert why.code == AssessmentCode.ONLY_KERNEL_COPIES and why.facts["tests"] == ["host_to_device_memcpy_sm"]

    def shown(evidence: CopyEvidence) -> list[str]:
        return [line.facts["test"] for line in copy_sections.got(evidence) if line.code == ResultCode.COPIES]

    assert shown(found) == ["host_to_device_memcpy_sm"]
    both = evidence_of(kernels, matrix("h2d", from_host(55.0), "ce", "host_to_device_memcpy_ce"))
    assert shown(both) == ["host_to_device_memcpy_ce"]


def test_waived_copies_are_named_with_their_line() -> None:
    remark = Remark.of(12, LogCode.WAIVED, test="device_to_device_memcpy_read_ce")
    facts = facts_of(copies.no_peer_access(evidence_of(*G6E, instance="g6e.48xlarge", remarks=(remark,))))
    assert (facts["waived_line"], facts["instance"]) == (12, "g6e.48xlarge")
    assert copies.no_peer_access(evidence_of(*G6E, instance="g6e.48xlarge")) is None


def test_refused_peer_access_is_reported_by_its_own_line() -> None:
    empty = Matrix("P2P=Enabled", "bytes_per_s", "d2d", "ce", (MatrixCell("gpu0", "gpu1", None, "waived"),))
    detour = matrix("through_host", pairs(2, 5.7), None)
    evidence = replace(evidence_of(empty, detour), hints=(Hint("refused", "CANNOT Access Peer", 6),))
    facts = facts_of(copies.no_peer_access(evidence))
    assert facts == {"log_text": "CANNOT Access Peer", "log_line": 6, "through_host": "5.7 GB/s"}


def test_tables_of_more_gpus_than_the_log_lists_are_not_judged() -> None:
    reader = HintReader()
    for number, text in enumerate(("Device 0: NVIDIA GH200 480GB (00000009:01:00)", "Device 0 is busy"), start=8):
        reader.read(number, text)
    hints = reader.between(1, 100)
    assert [(hint.kind, hint.value) for hint in hints] == [("device", "0")]
    one = replace(evidence_of(matrix("h2d", from_host(370.0)), gpu=GH200), hints=hints)
    assert assess_copies(one).verdict == NORMAL and next(copy_sections.got(one)).facts["count"] == "1 GPU"
    bound = next(copy_sections.possible(one)).facts
    assert (bound["bound"], bound["bound_rate"], bound["hard"]) == ("NVLink-C2C", 450e9, True)
    twice = matrix("h2d", {**from_host(370.0, 300.0), ("host1", "gpu0"): 320.0})
    two = replace(evidence_of(twice, gpu=GH200), hints=hints)
    assert next(copy_sections.got(two)).facts["count"].split(" of ") == ["3 values", "2 GPUs"]
    why = assess_copies(two).why
    assert why.code == AssessmentCode.GPU_COUNTS_DIFFER and why.facts == {"num_listed": 1, "num_measured": 2}


def test_a_shared_path_to_the_host_is_seen() -> None:
    alone = matrix("h2d", from_host(*[12.3] * 8), name="host_to_device_memcpy_ce")
    at_once = matrix("h2d", from_host(*[6.2] * 8), name="host_to_all_memcpy_ce")
    assert facts_of(copies.shared_uplink(evidence_of(alone, at_once)))["num_sharing"] == 2
    own = matrix("h2d", from_host(*[12.2] * 8), name="host_to_all_memcpy_ce")
    assert copies.shared_uplink(evidence_of(alone, own)) is None


def test_slow_kernel_copies_are_seen() -> None:
    kernels = matrix("d2h", to_host(4.3, 5.5), "sm")
    found = copies.slow_kernel_copies(evidence_of(*G6E, kernels))
    assert facts_of(found)["kernel_range"] == "4.3 GB/s to 5.5 GB/s"
    same = copies.slow_kernel_copies(evidence_of(*G6E, matrix("d2h", to_host(4.31, 4.3101), "sm")))
    assert facts_of(same)["kernel_range"] == "4.31 GB/s"
    assert copies.slow_kernel_copies(evidence_of(*G6E, matrix("d2h", to_host(13.0), "sm"))) is None


def test_copies_through_the_host_are_judged_as_such() -> None:
    detour = matrix("through_host", pairs(2, 5.7), None, "Unidirectional P2P=Disabled Bandwidth, through host")
    assert assessed(detour, gpu="NVIDIA GeForce RTX 2080 Ti").verdict == NORMAL
    slow = replace(detour, cells=tuple(replace(cell, value=3e9) for cell in detour.cells))
    assert assessed(slow, gpu="NVIDIA GeForce RTX 2080 Ti").verdict == ResultVerdict.NORMAL_IF


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (evidence_of(*G6E), ResultVerdict.NORMAL_IF),
        (evidence_of(), CANNOT_BE_JUDGED),
        (evidence_of(*G6E, instance="g6e.48xlarge", status="failed"), ResultVerdict.FAILED),
    ],
)
def test_an_unknown_or_failed_run_is_not_judged(found: CopyEvidence, verdict: ResultVerdict) -> None:
    assert assess_copies(found).verdict == verdict


def test_memory_inside_a_gpu_and_latencies_are_no_links() -> None:
    inside = matrix("local", {("gpu0", "gpu0"): 541.8}, None)
    times = Matrix("latency", "s", "d2d", "sm", matrix("d2d", pairs(2, 1e-15)).cells)
    assert evidence_of(inside, times, gpu="NVIDIA GeForce RTX 2080 Ti").tests == ()


def test_no_section_of_a_page_is_empty() -> None:
    found = page(ForeignRun("nvbandwidth", status="failed"), machine_of(None), None)
    assert found.possible and found.others and found.got


def test_the_way_back_over_nvlink_c2c_is_slower_and_not_a_fault() -> None:
    def back(rate: float) -> Assessment:
        return assessed(matrix("h2d", from_host(410.0)), matrix("d2h", to_host(rate)), gpu=GH200)

    assert back(297.0).verdict == NORMAL
    half = back(200.0)
    assert half.verdict == LOW and half.why.facts["usual"] == "65 to 90 %"
    pcie = assessed(matrix("d2h", to_host(21.0)), gpu="NVIDIA L20")  # the same share of PCIe is not a full link
    assert pcie.verdict == LOW and pcie.why.facts["usual"] == "80 to 90 %"


def test_host_and_gpu_with_one_memory_have_no_bound_between_them() -> None:
    spark = evidence_of(matrix("h2d", from_host(120.0)), matrix("d2h", to_host(115.0)), gpu="NVIDIA GB10")
    found = assess_copies(spark)
    assert (found.verdict, found.why.code) == (CANNOT_BE_JUDGED, AssessmentCode.SHARED_MEMORY)
    [line] = copy_sections.possible(spark)
    assert line.code == BoundCode.NO_COPY_BOUND and line.facts == {"direction": "host to GPU", "shared_memory": True}


def test_pairs_of_cards_that_a_wider_bridge_may_join_are_not_held_to_a_whole_port() -> None:
    def cards(number: int, rate: float) -> ResultVerdict:
        return assessed(matrix("d2d", pairs(number, rate)), gpu="NVIDIA H200 NVL").verdict

    assert cards(4, 134.0) == CANNOT_BE_JUDGED
    assert cards(4, 470.0) == ABOVE
    assert cards(4, 50.0) == FAR_TOO_LOW  # no bridge at all
    assert cards(2, 134.0) == FAR_TOO_LOW and cards(2, 390.0) == NORMAL
    assert assessed(matrix("d2d", pairs(4, 100.0)), gpu="NVIDIA A100 80GB PCIe").verdict == FAR_TOO_LOW


def test_a_bridge_with_an_unknown_rate_judges_nothing() -> None:
    card = evidence_of(matrix("d2d", pairs(4, 92.5)), gpu="NVIDIA A30")
    assert assess_copies(card).verdict == CANNOT_BE_JUDGED
    assert next(copy_sections.possible(card)).facts["fitting"] == fitting_links(92.5e9, 4)  # of PCIe 4, not 6
    assert fitting_links(92.5e9, 4) != fitting_links(92.5e9, 6)


def test_one_of_eight_cards_a_little_slower_does_not_make_all_low() -> None:
    rates = (25.5, 24.3, 23.9, 26.3, 26.3, 26.4, 26.1, 26.3)
    board = "NVIDIA GeForce RTX 4090"
    assert assessed(matrix("h2d", from_host(*rates)), gpu=board).verdict == NORMAL
    assert assessed(matrix("h2d", from_host(13.0, *rates[1:])), gpu=board).verdict == FAR_TOO_LOW
