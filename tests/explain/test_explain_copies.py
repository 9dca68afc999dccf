"""Matrices of copies: the verdict of each direction and each rule, on matrices that show it and on some that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.explain import copies
from bench.explain import copy_reasons as rules
from bench.explain.assessment import ABOVE, FAR, LOW, NORMAL, UNJUDGED
from bench.explain.copies import Copying
from bench.explain.explain import page
from bench.explain.log_evidence import Hint, Listener
from bench.hardware.machine import machine_of
from bench.logs.foreign import TRUNCATED, ForeignRun, Matrix, MatrixCell, Remark
from bench.logs.messages import LogCode
from tests.explain.logs import from_host, matrix, pairs, to_host

G6E = (matrix("h2d", from_host(*[13.47] * 8)), matrix("d2h", to_host(*[13.21] * 8)))


def seen(*matrices: Matrix, instance: str | None = None, gpu: str | None = None, **changes: object) -> Copying:
    run = replace(ForeignRun("nvbandwidth", matrices=matrices), **changes)  # type: ignore[arg-type]
    return copies.gathered(run, machine_of(instance, (gpu,) if gpu else ()))


def test_half_of_x16_on_a_machine_that_links_x8_is_normal_and_explained() -> None:
    g6e = seen(*G6E, instance="g6e.48xlarge")
    assert copies.stand(g6e).word == NORMAL
    narrow = rules.narrow_link(g6e)
    assert narrow is not None
    assert "43% of PCIe 4 x16" in narrow.evidence and "g6e.48xlarge links GPUs at PCIe 4 x8" in narrow.evidence
    assert "no fault" in narrow.evidence


def test_half_of_x16_on_a_machine_that_links_x16_is_low() -> None:
    found = seen(matrix("h2d", from_host(*[13.2] * 4)), instance="Standard_NC96ads_A100_v4")
    assert copies.stand(found).word == FAR
    narrow = rules.narrow_link(seen(*G6E, gpu="NVIDIA A10"))
    assert narrow is not None and "PCIe 3 x16 or PCIe 4 x8" in narrow.evidence and "no fault" not in narrow.evidence


def test_a_full_link_is_not_called_narrow() -> None:
    full = seen(matrix("h2d", from_host(26.9, 26.9)), gpu="NVIDIA L40S")
    assert rules.narrow_link(full) is None
    assert copies.stand(full).word == NORMAL


def test_what_equals_others_with_this_gpu_on_this_link_is_normal_without_the_machines_name() -> None:
    found = copies.stand(seen(matrix("h2d", from_host(10.5, 11.0, 11.0, 11.0)), gpu="Tesla V100-SXM2-16GB"))
    assert found.word == NORMAL
    assert "96% of what was measured on aws p3.16xlarge" in found.sentence
    assert "if this machine is built like that one" in found.sentence
    assert copies.stand(seen(matrix("h2d", from_host(8.0)), gpu="Tesla V100-SXM2-16GB")).word == FAR


def test_others_on_another_link_or_with_a_bridge_lift_nothing() -> None:
    assert copies.stand(seen(matrix("h2d", from_host(13.4)), gpu="NVIDIA A10")).word == FAR
    assert copies.stand(seen(matrix("d2d", pairs(2, 100.0)), gpu="NVIDIA A100 80GB PCIe")).word == FAR


def test_above_the_link_is_an_error_with_its_derivation() -> None:
    standing = copies.stand(seen(matrix("h2d", from_host(26.9)), instance="g6e.48xlarge"))
    assert standing.word == ABOVE
    assert "PCIe port (15.8 GB/s)" in standing.sentence and "15.8 GB/s each way" in standing.sentence


def test_both_directions_added_have_twice_the_link() -> None:
    both = matrix("bidirectional_sum", pairs(2, 111.4), None, "Bidirectional P2P=Enabled Bandwidth")
    one = matrix("d2d", pairs(2, 56.6), None, "Unidirectional P2P=Enabled Bandwidth")
    peers = seen(one, both, instance="g7e.48xlarge")
    assert copies.stand(peers).word == NORMAL
    assert any("add both directions" in remark for remark in copies.remarks(peers))
    assert copies.stand(seen(replace(both, direction="d2d"), instance="g7e.48xlarge")).word == ABOVE


def test_one_direction_of_two_is_said_to_be_one() -> None:
    two = seen(*G6E, matrix("bidirectional", from_host(13.3)), instance="g6e.48xlarge")
    assert any("not the sum" in remark for remark in copies.remarks(two))
    assert not list(copies.remarks(seen(*G6E, instance="g6e.48xlarge")))


def test_one_bad_pair_is_named_and_decides() -> None:
    bad = seen(matrix("d2d", pairs(8, 265.0, a2_5=31.0)), instance="a2-highgpu-8g")
    found = rules.odd_pairs(bad)
    assert (
        found is not None and "gpu2 to gpu5 31 GB/s" in found.evidence and "median of 56 is 265 GB/s" in found.evidence
    )
    assert copies.stand(bad).word == FAR
    assert rules.odd_pairs(seen(matrix("d2d", pairs(8, 265.0)), instance="a2-highgpu-8g")) is None


def test_all_pairs_of_one_gpu_name_that_gpu() -> None:
    odd = {f"a3_{other}": 100.0 for other in range(8) if other != 3}
    found = rules.odd_pairs(seen(matrix("d2d", pairs(8, 265.0, **odd)), instance="a2-highgpu-8g"))
    assert found is not None and found.what == "the links of gpu3 are slow"


def test_a_mesh_of_one_and_two_links_is_no_fault() -> None:
    two = {f"a{a}_{b}": 48.4 for a in range(4) for b in range(4) if (a + b) % 2 == 1}
    mesh = seen(matrix("d2d", pairs(4, 24.2, **two)), gpu="Tesla V100-SXM2-16GB")
    assert rules.odd_pairs(mesh) is None
    assert rules.some_pairs(mesh) is not None
    assert copies.stand(mesh).word != ABOVE


@pytest.mark.parametrize(("rate", "joined"), [(24.2, "1 NVLink of"), (48.5, "2 NVLinks of"), (40.0, None)])
def test_a_pair_at_whole_nvlinks_is_told_to_have_so_many(rate: float, joined: str | None) -> None:
    found = rules.few_nvlinks(seen(matrix("d2d", pairs(4, rate)), gpu="Tesla V100-SXM2-16GB"))
    assert (found.evidence if found else "").find(f"fits {joined} 25 GB/s, and a GPU's port has 150") >= 0 or not joined
    assert (found is None) == (joined is None)
    assert rules.few_nvlinks(seen(matrix("d2d", pairs(4, rate)), gpu="NVIDIA A100-SXM4-40GB")) is None


def test_copies_faster_than_the_hosts_link_of_no_known_gpu_fit_nvlinks_before_a_newer_pcie() -> None:
    host, peer = matrix("h2d", from_host(11.2)), matrix("d2d", pairs(2, 48.4))
    said = list(copies.possible(seen(host, peer)))
    assert "48.4 GB/s fits 2 NVLinks of 25 GB/s between two GPUs" in said[1] and "PCIe 5" not in said[1]
    assert "fits PCIe 5 x16" in next(copies.possible(seen(peer)))
    assert "NVLinks" not in list(copies.possible(seen(matrix("h2d", from_host(55.0)), peer)))[1]


def test_a_known_gpu_without_its_machine_is_called_known() -> None:
    mesh = copies.stand(replace(seen(matrix("d2d", pairs(4, 48.5)), gpu="Tesla V100-SXM2-16GB"), references=()))
    assert mesh.word == UNJUDGED and "the GPU is known (V100-SXM2-16GB)" in mesh.sentence
    assert "the machine is not known" in copies.stand(seen(matrix("d2d", pairs(4, 48.5)))).sentence


def test_pairs_without_a_value_are_counted() -> None:
    some = {pair: rate for pair, rate in pairs(4, 54.0).items() if {*pair} in ({"gpu0", "gpu1"}, {"gpu2", "gpu3"})}
    found = rules.some_pairs(seen(matrix("d2d", some), instance="g7e.48xlarge"))
    assert found is not None and found.evidence.startswith("4 of 12 pairs")
    assert rules.some_pairs(seen(matrix("d2d", pairs(4, 54.0)), instance="g7e.48xlarge")) is None
    cut = {(pair[0], pair[1]): rate for pair, rate in pairs(4, 54.0).items() if pair[0] == "gpu0"}
    first_row = matrix("d2d", cut)
    lost = replace(
        first_row, cells=(*first_row.cells, *(MatrixCell("gpu1", f"gpu{to}", None, "unreadable") for to in (0, 2)))
    )
    for short in (first_row, lost):  # nothing says that the others can not reach each other
        assert rules.some_pairs(seen(short, instance="g7e.48xlarge", status=TRUNCATED)) is None
    refused = replace(first_row, cells=(*first_row.cells, MatrixCell("gpu1", "gpu0", None, "waived")))
    told = rules.some_pairs(seen(refused, instance="g7e.48xlarge", status=TRUNCATED))
    assert told is not None and told.evidence.startswith("11 of 12 pairs")


def test_peer_access_slower_than_host_memory_is_named() -> None:
    """NVIDIA/nccl issue 814: 22 GB/s through the host, 10 GB/s directly."""
    detour = matrix("through_host", pairs(4, 22.1), None)
    found = rules.slower_than_the_host(seen(matrix("d2d", pairs(4, 9.9), None), detour))
    assert found is not None and "9.9 GB/s by peer access and 22.1 GB/s" in found.evidence and "ACS" in found.evidence
    assert rules.slower_than_the_host(seen(matrix("d2d", pairs(4, 21.0), None), detour)) is None
    assert rules.slower_than_the_host(seen(matrix("d2d", pairs(4, 9.9), None))) is None


def test_kernels_alone_are_told_apart_from_nothing() -> None:
    kernels = matrix("h2d", from_host(35.2), "sm", "host_to_device_memcpy_sm")
    found = seen(kernels)
    standing = copies.stand(found)
    assert (
        standing.word == UNJUDGED and "only copies by kernels were read (host_to_device_memcpy_sm)" in standing.sentence
    )
    assert any("35.2 GB/s" in line for line in copies.got(found))
    both = seen(kernels, matrix("h2d", from_host(55.0), "ce", "host_to_device_memcpy_ce"))
    assert not any("35.2 GB/s" in line for line in copies.got(both))


def test_waived_copies_are_told_with_their_line() -> None:
    remark = Remark.of(12, LogCode.WAIVED, test="device_to_device_memcpy_read_ce")
    found = rules.refused(seen(*G6E, instance="g6e.48xlarge", remarks=(remark,)))
    assert found is not None and "line 12" in found.evidence and "so they are on g6e.48xlarge" in found.evidence
    assert rules.refused(seen(*G6E, instance="g6e.48xlarge")) is None


def test_refused_peer_access_is_told_by_its_own_line_and_waives_nothing() -> None:
    empty = Matrix("P2P=Enabled", "bytes_per_s", "d2d", "ce", (MatrixCell("gpu0", "gpu1", None, "waived"),))
    detour = matrix("through_host", pairs(2, 5.7), None)
    found = rules.refused(replace(seen(empty, detour), hints=(Hint("refused", "CANNOT Access Peer", 6),)))
    assert found is not None and "CANNOT Access Peer (line 6)" in found.evidence and "5.7 GB/s" in found.evidence
    assert "waived" not in found.evidence and "without a value" not in found.evidence


def test_tables_of_more_gpus_than_the_log_lists_are_not_judged() -> None:
    listener = Listener()
    for number, text in enumerate(("Device 0: NVIDIA GH200 480GB (00000009:01:00)", "Device 0 is busy"), start=8):
        listener.hear(number, text)
    hints = listener.between(1, 100)
    assert [(hint.kind, hint.value) for hint in hints] == [("device", "0")]
    one = replace(seen(matrix("h2d", from_host(370.0)), gpu="NVIDIA GH200 480GB"), hints=hints)
    assert copies.stand(one).word == NORMAL and "1 GPU (" in next(copies.got(one))
    assert next(copies.possible(one)).startswith("450 GB/s by NVLink-C2C (hard bound)")
    twice = matrix("h2d", {**from_host(370.0, 300.0), ("host1", "gpu0"): 320.0})
    two = replace(seen(twice, gpu="NVIDIA GH200 480GB"), hints=hints)
    assert "3 values of 2 GPUs" in next(copies.got(two))
    assert copies.stand(two).word == UNJUDGED and "lists 1 GPU, and its tables hold 2" in copies.stand(two).sentence


def test_a_shared_way_to_the_host_is_seen() -> None:
    alone = matrix("h2d", from_host(*[12.3] * 8), name="host_to_device_memcpy_ce")
    at_once = matrix("h2d", from_host(*[6.2] * 8), name="host_to_all_memcpy_ce")
    found = rules.shared_uplink(seen(alone, at_once))
    assert found is not None and "as if 2 GPUs share" in found.evidence
    own = matrix("h2d", from_host(*[12.2] * 8), name="host_to_all_memcpy_ce")
    assert rules.shared_uplink(seen(alone, own)) is None


def test_slow_kernels_are_seen() -> None:
    kernels = matrix("d2h", to_host(4.3, 5.5), "sm")
    found = rules.kernels_slower(seen(*G6E, kernels))
    assert found is not None and "4.3 GB/s to 5.5 GB/s" in found.evidence
    found = rules.kernels_slower(seen(*G6E, matrix("d2h", to_host(4.31, 4.3101), "sm")))
    assert found is not None and "reach 4.31 GB/s and" in found.evidence
    assert rules.kernels_slower(seen(*G6E, matrix("d2h", to_host(13.0), "sm"))) is None


def test_copies_through_the_host_are_judged_as_such() -> None:
    detour = matrix("through_host", pairs(2, 5.7), None, "Unidirectional P2P=Disabled Bandwidth, through host")
    assert copies.stand(seen(detour, gpu="NVIDIA GeForce RTX 2080 Ti")).word == NORMAL
    slow = replace(detour, cells=tuple(replace(cell, value=3e9) for cell in detour.cells))
    assert copies.stand(seen(slow, gpu="NVIDIA GeForce RTX 2080 Ti")).word == LOW


@pytest.mark.parametrize("found", [seen(*G6E), seen(), seen(*G6E, instance="g6e.48xlarge", status="failed")])
def test_what_is_not_known_or_failed_is_not_judged(found: Copying) -> None:
    assert copies.stand(found).word == UNJUDGED


def test_memory_inside_a_gpu_and_latencies_are_no_links() -> None:
    inside = matrix("local", {("gpu0", "gpu0"): 541.8}, None)
    times = Matrix("latency", "s", "d2d", "sm", matrix("d2d", pairs(2, 1e-15)).cells)
    assert seen(inside, times, gpu="NVIDIA GeForce RTX 2080 Ti").ways == ()


def test_no_section_of_a_page_is_empty() -> None:
    found = page(ForeignRun("nvbandwidth", status="failed"), machine_of(None), None)
    assert found.possible and found.others and found.got


def test_the_way_back_over_nvlink_c2c_is_slower_and_no_fault() -> None:
    def back(rate: float) -> Copying:
        return seen(matrix("h2d", from_host(410.0)), matrix("d2h", to_host(rate)), gpu="NVIDIA GH200 480GB")

    assert copies.stand(back(297.0)).word == NORMAL
    half = copies.stand(back(200.0))
    assert half.word == LOW and "65 to 90 %" in half.sentence
    pcie = copies.stand(seen(matrix("d2h", to_host(21.0)), gpu="NVIDIA L20"))  # as little of PCIe is no full link
    assert pcie.word == LOW and "80 to 90 %" in pcie.sentence


def test_host_and_gpu_of_one_memory_have_no_bound_between_them() -> None:
    spark = seen(matrix("h2d", from_host(120.0)), matrix("d2h", to_host(115.0)), gpu="NVIDIA GB10")
    assert copies.stand(spark).word == UNJUDGED and "share one memory" in copies.stand(spark).sentence
    assert list(copies.possible(spark)) == ["host to GPU: no bound is known; host and GPU share one memory"]


def test_pairs_of_cards_that_a_wider_bridge_may_join_are_not_held_to_a_whole_port() -> None:
    def cards(number: int, rate: float) -> Copying:
        return seen(matrix("d2d", pairs(number, rate)), gpu="NVIDIA H200 NVL")

    assert copies.stand(cards(4, 134.0)).word == UNJUDGED
    assert copies.stand(cards(4, 470.0)).word == ABOVE
    assert copies.stand(cards(4, 50.0)).word == FAR  # no bridge at all
    assert copies.stand(cards(2, 134.0)).word == FAR and copies.stand(cards(2, 390.0)).word == NORMAL
    assert copies.stand(seen(matrix("d2d", pairs(4, 100.0)), gpu="NVIDIA A100 80GB PCIe")).word == FAR


def test_a_bridge_whose_rate_nobody_read_judges_nothing() -> None:
    card = seen(matrix("d2d", pairs(4, 92.5)), gpu="NVIDIA A30")
    assert copies.stand(card).word == UNJUDGED
    assert "no link that is known" in next(copies.possible(card))  # of PCIe 4, not 6
