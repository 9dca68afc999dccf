"""Each rule of `bench explain`, on a run that shows what it looks for and on one that does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.core.codes import Coded
from bench.explain import network_reasons as network
from bench.explain import reasons as rules
from bench.explain.assessment import LOW, NORMAL, stand
from bench.explain.evidence import RunEvidence
from bench.explain.failures import failure_reason
from bench.explain.remarks import remarks
from bench.logs.foreign import FAILED, TRUNCATED, ForeignRow, ForeignRun, Remark
from bench.logs.messages import LogCode
from tests.explain.logs import SIZES, a_run, curve, from_host, matrix, seen_of, to_host


def two_h200(busbw_gb: float) -> RunEvidence:
    return seen_of(a_run(busbw_gb, 16, 2), gpu="NVIDIA H200")


def test_a_flat_curve_at_the_rate_of_one_nic_is_one_nic() -> None:
    # 1.875 x 49.2 GB/s: two nodes, 16 ranks
    found = network.fewer_nics(two_h200(92.2))
    assert found is not None
    assert found.what == "a node uses one 400 Gb/s NIC"
    assert "98% of one 400 Gb/s NIC (50 GB/s)" in found.evidence and "has 400 GB/s" in found.evidence


@pytest.mark.parametrize("busbw_gb", [480.0, 130.0])
def test_a_curve_at_no_nics_rate_is_not(busbw_gb: float) -> None:
    assert network.fewer_nics(two_h200(busbw_gb)) is None


def test_a_curve_that_still_rises_is_not() -> None:
    short = a_run(92.2, 16, 2, rows=tuple(curve("allreduce", 16, 92.2, sizes=SIZES[:17])))
    assert network.fewer_nics(seen_of(short, gpu="NVIDIA H200")) is None


@pytest.mark.parametrize("name", ["allgather", "reducescatter"])
def test_a_ring_fills_the_nics_with_what_busbw_counts(name: str) -> None:
    """Half of it must cross between two nodes, and all of it does: this is no half of the NICs."""
    full = seen_of(a_run(189.0, 16, 2, name=name), "a3-megagpu-8g")
    assert full.carried_bytes_per_s == pytest.approx(189e9, rel=0.01) and network.fewer_nics(full) is None
    ring = next(bound for bound in full.bounds if bound.name == "network, round a ring")
    assert ring.bytes_per_s == pytest.approx(200e9) and ring.kind == "reference" and stand(full).word == NORMAL
    least = next(bound for bound in full.bounds if bound.name == "network")
    assert least.bytes_per_s == pytest.approx(375e9)
    half = network.fewer_nics(seen_of(a_run(97.0, 16, 2, name=name), "a3-megagpu-8g"))
    assert half is not None and half.what == "a node uses 4 of 8 NICs" and "round a ring" in half.evidence
    assert stand(seen_of(a_run(97.0, 16, 2, name=name), "a3-megagpu-8g")).word == LOW


def test_an_allreduce_goes_round_a_ring_where_the_log_says_so() -> None:
    """NVIDIA/nccl issue 949: 48 GB/s of busbw fill two 200 Gb/s NICs."""
    run = a_run(47.5, 16, 2)
    told = seen_of(run, "p4d.24xlarge", said={"setting": "NCCL_ALGO set by environment to RING"})
    assert told.by_ring and network.fewer_nics(told) is None and stand(told).word == LOW
    assert next(bound for bound in told.bounds if bound.name == "network, round a ring").bytes_per_s == 50e9
    tree = seen_of(run, "p4d.24xlarge", said={"setting": "NCCL_ALGO set by environment to Tree"})
    assert not tree.by_ring and not seen_of(run, "p4d.24xlarge").by_ring


def test_no_ring_is_taken_for_granted_elsewhere() -> None:
    for run, instance in (
        (a_run(189.0, 16, 2), "a3-megagpu-8g"),
        (a_run(20.0, 2, 2, name="allgather"), "a3-megagpu-8g"),
        (a_run(20.0, 16, 2, name="allgather", tool="osu"), "a3-megagpu-8g"),
        (a_run(20.0, 16, 2, name="allgather", tool="rccl_tests"), "a3-megagpu-8g"),
        (a_run(20.0, 16, 2, name="allgather"), "Standard_ND96isr_MI300X_v5"),
        (a_run(200.0, 8, 1, name="allgather"), "a3-megagpu-8g"),
    ):
        seen = seen_of(run, instance)
        assert not seen.by_ring and not any(bound.name.endswith("ring") for bound in seen.bounds)


def test_a_log_that_names_all_nics_contradicts_few_of_them() -> None:
    half = a_run(1.875 * 24.0, 16, 2)
    assert network.fewer_nics(seen_of(half, "p4d.24xlarge")) is not None
    said = {"path": "NET/AWS Libfabric/0/GDRDMA"}
    seen = seen_of(half, "p4d.24xlarge", said=said)
    named = tuple(replace(seen.hints[0], value=f"NET/AWS Libfabric/{nic}/GDRDMA") for nic in range(4))
    assert network.fewer_nics(replace(seen, hints=named)) is None
    one = network.fewer_nics(seen_of(a_run(92.2, 16, 2), gpu="NVIDIA H200", said={"path": "NET/IB/0/GDRDMA"}))
    assert one is not None and "the channels name 1 NIC" in one.evidence


def test_three_gb_on_nodes_of_400_are_sockets() -> None:
    slow = a_run(3.0, 16, 2)
    guessed = network.sockets(seen_of(slow, "p5.48xlarge"))
    assert guessed is not None and guessed.what == "the network may be TCP sockets" and "400 GB/s" in guessed.evidence
    told = network.sockets(seen_of(slow, "p5.48xlarge", said={"network": "Socket"}))
    assert told is not None and told.what == "the network is TCP sockets" and "(line 7)" in told.evidence
    assert told.weight > guessed.weight


def test_sockets_are_not_guessed_where_the_log_names_another_network_or_the_rate_is_good() -> None:
    assert network.sockets(seen_of(a_run(3.0, 16, 2), "p5.48xlarge", said={"network": "AWS Libfabric"})) is None
    assert network.sockets(seen_of(a_run(300.0, 16, 2), "p5.48xlarge")) is None
    assert network.sockets(seen_of(a_run(3.0, 8, 1), "p5.48xlarge")) is None


def test_eight_h200_at_a_rings_rate_have_no_nvls() -> None:
    found = rules.no_nvls(seen_of(a_run(366.0), "a3-ultragpu-8g"))
    assert (
        found is not None and "81% of the NVLink port" in found.evidence and "366 GB/s with NVLS off" in found.evidence
    )
    told = rules.no_nvls(
        seen_of(a_run(366.0), "p5.48xlarge", said={"setting": "NCCL_NVLS_ENABLE set by environment to 0"})
    )
    assert told is not None and told.weight > found.weight


def test_nvls_is_not_missed_where_it_is_on_of_no_use_or_not_there() -> None:
    assert rules.no_nvls(seen_of(a_run(480.0), "a3-ultragpu-8g")) is None
    assert rules.no_nvls(seen_of(a_run(363.0, 4), "a3-ultragpu-8g")) is None
    assert rules.no_nvls(seen_of(a_run(235.0), "p4d.24xlarge")) is None
    assert rules.no_nvls(seen_of(a_run(361.0, name="allgather"), "a3-ultragpu-8g")) is None


def test_without_anybody_to_compare_with_the_port_and_the_number_of_gpus_tell_of_nvls() -> None:
    def alone(busbw_gb: float, num_ranks: int) -> RunEvidence:
        return replace(seen_of(a_run(busbw_gb, num_ranks), "p5.48xlarge"), references=())

    assert rules.no_nvls(alone(366.0, 8)) is not None
    assert rules.no_nvls(alone(480.0, 8)) is None
    assert rules.no_nvls(alone(366.0, 4)) is None


def test_four_gb_between_cards_without_peer_access_go_through_the_host() -> None:
    cards = seen_of(a_run(4.0, 2), gpu="NVIDIA GeForce RTX 2080 Ti")
    found = rules.through_the_host(cards)
    assert found is not None and "25% of the PCIe link (15.8 GB/s)" in found.evidence
    told = rules.through_the_host(seen_of(a_run(4.0, 2), gpu="NVIDIA GeForce RTX 2080 Ti", said={"path": "SHM/direct"}))
    assert told is not None and told.weight > found.weight


def test_cards_that_talk_directly_do_not_go_through_the_host() -> None:
    direct = {"path": "P2P/direct pointer/read"}
    assert rules.through_the_host(seen_of(a_run(4.0, 2), gpu="NVIDIA L40S", said=direct)) is None
    assert rules.through_the_host(seen_of(a_run(24.0, 2), gpu="NVIDIA L40S")) is None
    assert rules.through_the_host(seen_of(a_run(4.0, 8), "p4d.24xlarge")) is None


def test_two_gb_of_63_are_less_than_the_host_carries() -> None:
    found = rules.through_the_host(seen_of(a_run(2.3, 2), gpu="NVIDIA GeForce RTX 5090"))
    assert found is not None and "sockets inside the node" in found.what


def test_two_bridged_cards_at_the_rate_of_pcie_have_no_bridge() -> None:
    found = rules.no_bridge(seen_of(a_run(28.6, 2), gpu="NVIDIA A100 80GB PCIe"))
    assert found is not None and "91% of the cards' PCIe link" in found.evidence and "217 GB/s" in found.evidence
    assert rules.no_bridge(seen_of(a_run(217.0, 2), gpu="NVIDIA A100 80GB PCIe")) is None
    on_nvlink = {"search": "1, bw 20/20, type NVL"}
    assert rules.no_bridge(seen_of(a_run(28.6, 2), gpu="NVIDIA A100 80GB PCIe", said=on_nvlink)) is None


def test_a_topology_file_and_few_channels_explain_slow_nvlink() -> None:
    said = {
        "setting": "NCCL_TOPO_FILE set by environment to /tmp/t.xml",
        "channels": "2",
        "search": "1, bw 20/20, type NVL",
    }
    seen = seen_of(a_run(28.6, 2), gpu="NVIDIA A100 80GB PCIe", said=said)
    told, channels = rules.reasons(seen)[:2]
    assert "NCCL_TOPO_FILE" in told.what and told.command.startswith("env -u NCCL_TOPO_FILE all_reduce_perf")
    assert "14.3 GB/s each" in channels.evidence and "the figure alone does not tell" in channels.evidence
    many = seen_of(a_run(28.6, 2), gpu="NVIDIA A100 80GB PCIe", said={"channels": "24"})
    assert rules.few_channels(many) is None


def test_a_topology_file_of_the_network_plug_in_is_no_reason() -> None:
    said = {"setting": "NCCL_TOPO_FILE set by environment to /opt/aws-ofi-nccl/share/p4d.xml"}
    assert rules.settings(seen_of(a_run(40.0, 16, 2), "p4d.24xlarge", said=said)) is None


def test_half_of_what_others_reached_may_be_crossed_nics() -> None:
    half = network.no_rdma(seen_of(a_run(240.0, 16, 2), "p5.48xlarge"))
    assert half is not None and half.what == "NICs and GPUs may be paired across PCIe roots" and "49%" in half.evidence
    told = network.no_rdma(seen_of(a_run(240.0, 16, 2), "p5.48xlarge", said={"no_rdma": "GPU Direct RDMA Disabled"}))
    assert told is not None and told.weight > half.weight
    assert network.no_rdma(seen_of(a_run(470.0, 16, 2), "p5.48xlarge")) is None


def test_an_old_library_is_named_where_a_newer_one_was_faster() -> None:
    old = {"nccl": "2.9.9"}
    found = network.old_software(seen_of(a_run(43.8, 16, 2), "p4d.24xlarge", said=old))
    assert found is not None and "NCCL 2.9.9" in found.evidence and "78.3 GB/s" in found.evidence
    assert network.old_software(seen_of(a_run(78.0, 16, 2), "p4d.24xlarge", said=old)) is None
    assert network.old_software(seen_of(a_run(43.8, 16, 2), "p4d.24xlarge", said={"nccl": "2.27.7"})) is None


def test_sizes_that_end_on_the_slope_are_too_small() -> None:
    rising = a_run(300.0, rows=tuple(curve("allreduce", 8, 300.0, 100e-6, SIZES[:23])))
    found = rules.small_sizes(seen_of(rising, "p5.48xlarge"))
    assert found is not None and "still rises" in found.evidence
    assert rules.small_sizes(seen_of(a_run(300.0), "p5.48xlarge")) is None
    rates = {1 << 20: 100e9, 1 << 21: 106e9, 1 << 22: 110e9}
    bent = a_run(1.0, rows=tuple(ForeignRow(size, busbw_bytes_per_s=rate) for size, rate in rates.items()))
    assert rules.small_sizes(seen_of(bent, "p5.48xlarge")) is None


def test_operations_that_begin_late_are_named() -> None:
    late = a_run(480.0, rows=tuple(curve("allreduce", 8, 480.0, 200e-6)))
    found = rules.slow_start(seen_of(late, "p5.48xlarge"))
    assert found is not None and "200 us" in found.evidence
    assert rules.slow_start(seen_of(a_run(480.0), "p5.48xlarge")) is None


def test_wrong_elements_come_before_everything() -> None:
    found = failure_reason(a_run(480.0), 3, 30)
    assert found is not None and found.weight == 1.0 and found.evidence.startswith("3 of 30 rows")
    assert failure_reason(a_run(480.0), 0, 30) is None


@pytest.mark.parametrize(
    ("failure", "what"),
    [
        ("CUDA_ERROR_SYSTEM_NOT_READY: system not yet initialized", "the NVSwitch fabric is not up"),
        ("unhandled cuda error", "CUDA failed"),
        ("out of memory", "the buffers do not fit"),
        ("boom", "the tool failed"),
        (
            "[CUDA_ERROR_NOT_PERMITTED] operation not permitted in expression cuMemCreate(...) "
            "in MultinodeMemoryAllocation",
            "the IMEX daemon does not run, or its channel is not there",
        ),
        (
            "several runs print into one log at once, of one rank each",
            "each process ran alone: nccl-tests was built without MPI, or every rank was started as a job of its own",
        ),
    ],
)
def test_failures_are_told_by_their_words(failure: str, what: str) -> None:
    found = failure_reason(ForeignRun("nccl_tests", status=FAILED, failure=Coded.uncoded(failure)), 0, 0)
    assert found is not None and found.what == what and found.evidence == failure
    assert failure_reason(ForeignRun("nccl_tests", status=TRUNCATED), 0, 0) is None


def test_wrong_data_between_gpus_are_an_iommu_before_they_are_broken_hardware() -> None:
    said = "Invalid value when checking the pattern"
    hosts = (matrix("h2d", from_host(6.3)), matrix("d2h", to_host(6.7)))
    peers = ForeignRun(
        "nvbandwidth", status=FAILED, failure=Coded.uncoded(f"{said}; device_to_device_memcpy_read_ce never finished")
    )
    unnamed = replace(
        peers,
        failure=Coded.uncoded(said),
        remarks=(Remark.of(4, LogCode.NEVER_FINISHED, test="device_to_device_memcpy_read_ce"),),
    )
    kernels = replace(unnamed, remarks=(Remark.of(4, LogCode.NEVER_FINISHED, test="one_to_all_read_sm"),))
    for run in (peers, replace(peers, failure=Coded.uncoded(said), matrices=hosts), unnamed, kernels):
        found = failure_reason(run, 0, 0)
        assert found is not None and found.what.index("IOMMU") < found.what.index("broken")
        assert "before any hardware is suspected" in found.step and "iommu_groups" in found.command
        assert ("the host passed the check" in found.evidence) == bool(run.matrices)
    own = failure_reason(
        replace(peers, failure=Coded.uncoded(f"{said}; host_to_device_memcpy_ce failed"), matrices=hosts), 0, 0
    )
    assert own is not None and "IOMMU" not in own.what


def in_place(rows: list[ForeignRow], factor: float) -> tuple[ForeignRow, ...]:
    both = [replace(row, in_place=True, busbw_bytes_per_s=(row.busbw_bytes_per_s or 0) * factor) for row in rows]
    return (*rows, *both)


def test_placements_that_differ_are_remarked() -> None:
    rows = curve("allreduce", 8, 200.0)
    apart = remarks(seen_of(a_run(200.0, rows=in_place(rows, 1.3)), "p4d.24xlarge"))
    assert any("in place is 30% faster" in remark for remark in apart)
    alike = remarks(seen_of(a_run(200.0, rows=in_place(rows, 1.02)), "p4d.24xlarge"))
    assert not any("in place" in remark for remark in alike)


def test_a_fall_at_the_largest_size_is_remarked() -> None:
    rows = curve("allreduce", 8, 200.0)
    rows[-1] = replace(rows[-1], busbw_bytes_per_s=100e9)
    assert any("falls from 200 GB/s" in remark for remark in remarks(seen_of(a_run(200.0, rows=tuple(rows)))))
    assert not any("falls" in remark for remark in remarks(seen_of(a_run(200.0))))


def test_a_warm_first_row_is_remarked_and_the_median_counts() -> None:
    rows = curve("allreduce", 8, 200.0)
    rows[0] = replace(rows[0], time_s=900e-6)
    seen = seen_of(a_run(200.0, rows=tuple(rows)))
    assert any("the first row (900 us)" in remark for remark in remarks(seen))
    assert seen.small_s == pytest.approx(20e-6, rel=0.01)


def test_types_that_differ_are_remarked() -> None:
    rows = curve("allreduce", 8, 480.0) + [replace(row, dtype="uint64") for row in curve("allreduce", 8, 430.0)]
    assert any("uint64 reaches 430 GB/s" in remark for remark in remarks(seen_of(a_run(480.0, rows=tuple(rows)))))


def test_more_than_the_port_is_explained_where_the_switch_adds() -> None:
    assert any("may exceed it" in remark for remark in remarks(seen_of(a_run(480.0), "p5.48xlarge")))
    assert not any("may exceed it" in remark for remark in remarks(seen_of(a_run(360.0), "p5.48xlarge")))
    assert not any("may exceed it" in remark for remark in remarks(seen_of(a_run(235.0), "p4d.24xlarge")))


def test_results_that_read_alike_are_one_figure() -> None:
    one = seen_of(a_run(2.6, 2), gpu="NVIDIA GeForce RTX 4090").references[0]
    other = replace(one, busbw={size: 1.00001 * rate for size, rate in one.busbw.items()})
    told = rules._span((one, other))
    assert " to " not in told and told.endswith("/s")
