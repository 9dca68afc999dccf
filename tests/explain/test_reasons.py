"""Each reason about rows, on a run where it applies and on one where it does not."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from bench.core import plugins
from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.core.links import Limit
from bench.explain.assessment import assess
from bench.explain.evidence import RunEvidence
from bench.explain.explain import run_page
from bench.explain.messages import ExplainNote, ResultVerdict
from bench.explain.notes import run_notes
from bench.explain.page import markdown, table
from bench.explain.reason import FailedRun, Found, Reason, failure_reasons, reason, rules, run_reasons
from bench.explain.reasons import network, node, sizes
from bench.logs.foreign import FAILED, OK, TRUNCATED, ForeignRow, ForeignRun, Remark
from bench.logs.messages import LogCode
from tests.explain.logs import SIZES, a_run, curve, evidence_of, from_host, matrix, to_host

TI_2080, A100_PCIE, H200 = "NVIDIA GeForce RTX 2080 Ti", "NVIDIA A100 80GB PCIe", "NVIDIA H200"


def facts_of(reason: Reason | None) -> dict[str, Any]:
    """The facts of a reason that must apply."""
    assert reason is not None
    return dict(reason.facts)


def notes_of(evidence: RunEvidence) -> dict[str, dict[str, Any]]:
    """Code -> facts of the notes."""
    return {note.code: dict(note.facts) for note in run_notes(evidence)}


def two_h200(busbw_gb: float) -> RunEvidence:
    return evidence_of(a_run(busbw_gb, 16, 2), gpu=H200)


def test_each_reason_has_its_own_code() -> None:
    assert len(rules()) > 30
    assert {rule.code for rule in rules()} >= {"tcp-sockets", "no-nvls", "slow-pairs", "wrong-data", "sizes-too-small"}


HEAD = "from bench.explain.evidence import RunEvidence\nfrom bench.explain.reason import Found, reason\n"
BARE = "def slow_disk(evidence): return None\n"
DECORATED = "@reason(RunEvidence, 'slow-disk', what='', evidence='')\n" + BARE


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (BARE, "@reason"),
        (DECORATED + BARE.replace("disk", "cpu"), "slow_cpu()"),
        (DECORATED + DECORATED.replace("def slow_disk", "def other"), "'slow-disk'"),
        (DECORATED.replace("slow-disk", "tcp-sockets"), "'tcp-sockets'"),
        (DECORATED + "def _share(evidence): return 1.0\n", None),
    ],
    ids=["no-reason", "undecorated", "same-code", "code-of-another-file", "right"],
)
def test_a_reason_without_effect_is_a_mistake(text: str, named: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("bench.explain.reasons.zz_own")
    exec(HEAD + text, vars(module))
    names, load = plugins.names, plugins.load
    monkeypatch.setattr(plugins, "names", lambda kind: (*names(kind), "zz_own") if kind == "reason" else names(kind))
    monkeypatch.setattr(plugins, "load", lambda kind, name: module if name == "zz_own" else load(kind, name))
    if named is None:
        assert "slow-disk" in {rule.code for rule in rules.__wrapped__()}
        return
    with pytest.raises(UsageError) as raised:
        rules.__wrapped__()
    assert named in str(raised.value) and "bench/explain/reasons/zz_own.py" in str(raised.value)


def test_a_flat_curve_at_the_rate_of_one_nic_is_one_nic() -> None:
    # 1.875 x 49.2 GB/s: two nodes, 16 ranks
    facts = facts_of(network.fewer_nics(two_h200(92.2)))
    assert facts["nics"] == "one 400 Gb/s NIC" and facts["nics_rate"] == 50e9
    assert facts["share"] == pytest.approx(0.98, abs=0.005) and facts["network_rate"] == pytest.approx(400e9)


@pytest.mark.parametrize("busbw_gb", [480.0, 130.0])
def test_a_curve_at_no_nics_rate_is_not(busbw_gb: float) -> None:
    assert network.fewer_nics(two_h200(busbw_gb)) is None


def test_a_curve_that_still_rises_is_not() -> None:
    short = a_run(92.2, 16, 2, rows=tuple(curve("allreduce", 16, 92.2, sizes=SIZES[:17])))
    assert network.fewer_nics(evidence_of(short, gpu=H200)) is None


@pytest.mark.parametrize("name", ["allgather", "reducescatter"])
def test_a_ring_fills_the_nics_with_what_busbw_counts(name: str) -> None:
    """Half of it must cross between two nodes, and all of it does: the NICs are full."""
    full = evidence_of(a_run(189.0, 16, 2, name=name), "a3-megagpu-8g")
    assert full.nic_bytes_per_s == pytest.approx(189e9, rel=0.01) and network.fewer_nics(full) is None
    ring = next(bound for bound in full.bounds if bound.code == Limit.NIC_IN_USE)
    assert ring.bytes_per_s == pytest.approx(200e9) and ring.kind == "traffic"
    assert assess(full).verdict == ResultVerdict.NORMAL
    least = next(bound for bound in full.bounds if bound.code == Limit.NETWORK)
    assert least.bytes_per_s == pytest.approx(375e9)
    half = evidence_of(a_run(97.0, 16, 2, name=name), "a3-megagpu-8g")
    facts = facts_of(network.fewer_nics(half))
    assert facts["nics"] == "4 of 8 NICs" and facts["ring"]
    assert assess(half).verdict == ResultVerdict.LOW


def test_an_allreduce_goes_round_a_ring_if_the_log_says_so() -> None:
    """NVIDIA/nccl issue 949: 48 GB/s of busbw fill two 200 Gb/s NICs."""
    run = a_run(47.5, 16, 2)
    ring = evidence_of(run, "p4d.24xlarge", hints={"setting": "NCCL_ALGO set by environment to RING"})
    assert ring.by_ring and network.fewer_nics(ring) is None and assess(ring).verdict == ResultVerdict.NORMAL
    assert next(bound for bound in ring.bounds if bound.code == Limit.NIC_IN_USE).bytes_per_s == pytest.approx(50e9)
    tree = evidence_of(run, "p4d.24xlarge", hints={"setting": "NCCL_ALGO set by environment to Tree"})
    assert not tree.by_ring and not evidence_of(run, "p4d.24xlarge").by_ring


def test_no_ring_is_assumed_elsewhere() -> None:
    for run, instance in (
        (a_run(189.0, 16, 2), "a3-megagpu-8g"),
        (a_run(20.0, 2, 2, name="allgather"), "a3-megagpu-8g"),
        (a_run(20.0, 16, 2, name="allgather", tool="osu"), "a3-megagpu-8g"),
        (a_run(20.0, 16, 2, name="allgather", tool="rccl_tests"), "a3-megagpu-8g"),
        (a_run(20.0, 16, 2, name="allgather"), "Standard_ND96isr_MI300X_v5"),
        (a_run(200.0, 8, 1, name="allgather"), "a3-megagpu-8g"),
    ):
        evidence = evidence_of(run, instance)
        assert not evidence.by_ring


def test_a_log_that_names_all_nics_contradicts_fewer_nics() -> None:
    half = a_run(1.875 * 12.0, 16, 2)
    assert network.fewer_nics(evidence_of(half, "p4d.24xlarge")) is not None
    evidence = evidence_of(half, "p4d.24xlarge", hints={"path": "NET/AWS Libfabric/0/GDRDMA"})
    all_nics = tuple(replace(evidence.hints[0], value=f"NET/AWS Libfabric/{nic}/GDRDMA") for nic in range(4))
    assert network.fewer_nics(replace(evidence, hints=all_nics)) is None
    one = evidence_of(a_run(92.2, 16, 2), gpu=H200, hints={"path": "NET/IB/0/GDRDMA"})
    assert facts_of(network.fewer_nics(one))["num_nics_in_log"] == 1


def test_three_gb_on_nodes_of_400_are_sockets() -> None:
    slow = a_run(3.0, 16, 2)
    likely = network.maybe_tcp_sockets(evidence_of(slow, "p5.48xlarge"))
    assert facts_of(likely)["network_rate"] == 400e9
    logged = network.tcp_sockets(evidence_of(slow, "p5.48xlarge", hints={"network": "Socket"}))
    assert facts_of(logged)["line"] == 7
    assert logged is not None and likely is not None and logged.weight > likely.weight
    assert network.tcp_sockets(evidence_of(slow, "p5.48xlarge")) is None


def test_sockets_are_not_guessed_if_the_log_names_another_network_or_the_rate_is_good() -> None:
    for evidence in (
        evidence_of(a_run(3.0, 16, 2), "p5.48xlarge", hints={"network": "AWS Libfabric"}),
        evidence_of(a_run(300.0, 16, 2), "p5.48xlarge"),
        evidence_of(a_run(3.0, 8, 1), "p5.48xlarge"),
    ):
        assert network.tcp_sockets(evidence) is None and network.maybe_tcp_sockets(evidence) is None


def test_eight_h200_at_a_rings_rate_have_no_nvls() -> None:
    found = node.no_nvls(evidence_of(a_run(366.0), "a3-ultragpu-8g"))
    facts = facts_of(found)
    assert facts["share"] == pytest.approx(0.81, abs=0.005) and facts["ring_rate"] == pytest.approx(365.6e9)
    off = {"setting": "NCCL_NVLS_ENABLE set by environment to 0"}
    logged = node.no_nvls(evidence_of(a_run(366.0), "p5.48xlarge", hints=off))
    assert logged is not None and found is not None and logged.weight > found.weight


def test_nvls_is_not_missed_if_it_is_on_useless_or_absent() -> None:
    assert node.no_nvls(evidence_of(a_run(480.0), "a3-ultragpu-8g")) is None
    assert node.no_nvls(evidence_of(a_run(363.0, 4), "a3-ultragpu-8g")) is None
    assert node.no_nvls(evidence_of(a_run(235.0), "p4d.24xlarge")) is None
    assert node.no_nvls(evidence_of(a_run(361.0, name="allgather"), "a3-ultragpu-8g")) is None


def test_without_references_the_port_and_the_number_of_gpus_show_missing_nvls() -> None:
    def alone(busbw_gb: float, num_ranks: int) -> RunEvidence:
        return replace(evidence_of(a_run(busbw_gb, num_ranks), "p5.48xlarge"), references=())

    assert node.no_nvls(alone(366.0, 8)) is not None
    assert node.no_nvls(alone(480.0, 8)) is None
    assert node.no_nvls(alone(366.0, 4)) is None


def test_four_gb_between_cards_without_peer_access_go_through_the_host() -> None:
    found = node.through_host(evidence_of(a_run(4.0, 2), gpu=TI_2080))
    facts = facts_of(found)
    assert facts["share"] == pytest.approx(0.25, abs=0.005) and facts["pcie_rate"] == pytest.approx(15.75e9, rel=0.001)
    logged = node.through_host(evidence_of(a_run(4.0, 2), gpu=TI_2080, hints={"path": "SHM/direct"}))
    assert logged is not None and found is not None and logged.weight > found.weight


def test_cards_with_peer_access_do_not_go_through_the_host() -> None:
    direct = {"path": "P2P/direct pointer/read"}
    for evidence in (
        evidence_of(a_run(4.0, 2), gpu="NVIDIA L40S", hints=direct),
        evidence_of(a_run(24.0, 2), gpu="NVIDIA L40S"),
        evidence_of(a_run(4.0, 8), "p4d.24xlarge"),
    ):
        assert node.through_host(evidence) is None and node.slower_than_host_memory(evidence) is None


def test_two_gb_of_63_are_less_than_the_host_carries() -> None:
    evidence = evidence_of(a_run(2.3, 2), gpu="NVIDIA GeForce RTX 5090")
    assert node.slower_than_host_memory(evidence) is not None and node.through_host(evidence) is None


def test_two_bridged_cards_at_the_rate_of_pcie_have_no_bridge() -> None:
    facts = facts_of(node.no_bridge(evidence_of(a_run(28.6, 2), gpu=A100_PCIE)))
    assert facts["share"] == pytest.approx(0.91, abs=0.005) and facts["reference_rate"] == pytest.approx(
        217e9, rel=0.01
    )
    assert node.no_bridge(evidence_of(a_run(217.0, 2), gpu=A100_PCIE)) is None
    on_nvlink = {"search": "1, bw 20/20, type NVL"}
    assert node.no_bridge(evidence_of(a_run(28.6, 2), gpu=A100_PCIE, hints=on_nvlink)) is None


def test_a_topology_file_and_few_channels_explain_slow_nvlink() -> None:
    hints = {
        "setting": "NCCL_TOPO_FILE set by environment to /tmp/t.xml",
        "channels": "2",
        "search": "1, bw 20/20, type NVL",
    }
    settings, channels = run_reasons(evidence_of(a_run(28.6, 2), gpu=A100_PCIE, hints=hints))[:2]
    assert (settings.code, channels.code) == ("nccl-settings", "few-channels")
    assert settings.facts["names"] == ["NCCL_TOPO_FILE"]
    assert settings.command.startswith("env -u NCCL_TOPO_FILE all_reduce_perf")
    assert channels.facts["channel_rate"] == pytest.approx(14.3e9, rel=0.01) and "pcie_share" in channels.facts
    many = evidence_of(a_run(28.6, 2), gpu=A100_PCIE, hints={"channels": "24"})
    assert node.few_channels(many) is None


def test_a_topology_file_of_the_network_plug_in_is_no_reason() -> None:
    hints = {"setting": "NCCL_TOPO_FILE set by environment to /opt/aws-ofi-nccl/share/p4d.xml"}
    assert node.nccl_settings(evidence_of(a_run(40.0, 16, 2), "p4d.24xlarge", hints=hints)) is None


def test_half_of_what_others_reached_may_be_crossed_nics() -> None:
    run = a_run(240.0, 16, 2)
    half = network.crossed_nics(evidence_of(run, "p5.48xlarge"))
    assert facts_of(half)["ratio"] == pytest.approx(0.49, abs=0.005)
    disabled = evidence_of(run, "p5.48xlarge", hints={"no_rdma": "GPU Direct RDMA Disabled"})
    logged = network.no_gpudirect(disabled)
    assert logged is not None and half is not None and logged.weight > half.weight
    assert network.crossed_nics(disabled) is None
    good = evidence_of(a_run(470.0, 16, 2), "p5.48xlarge")
    assert network.crossed_nics(good) is None and network.no_gpudirect(good) is None


def test_an_instance_without_gpudirect_gets_no_remedy() -> None:
    hints = {"path": "NET/Libfabric/0"}
    fixed = network.no_gpudirect(evidence_of(a_run(5.0, 16, 2), "p3dn.24xlarge", hints=hints))
    assert facts_of(fixed)["instance"] == "p3dn.24xlarge" and fixed is not None and fixed.step == fixed.command == ""
    fixable = network.no_gpudirect(evidence_of(a_run(5.0, 16, 2), "p4d.24xlarge", hints=hints))
    assert fixable is not None and fixable.step and fixable.command


def test_an_old_library_is_named_if_a_newer_one_was_faster() -> None:
    old = {"nccl": "2.9.9"}
    facts = facts_of(network.old_nccl(evidence_of(a_run(43.8, 16, 2), "p4d.24xlarge", hints=old)))
    assert facts["nccl"] == "2.9.9" and facts["reference_rate"] == pytest.approx(78.3e9, rel=0.001)
    assert network.old_nccl(evidence_of(a_run(78.0, 16, 2), "p4d.24xlarge", hints=old)) is None
    assert network.old_nccl(evidence_of(a_run(43.8, 16, 2), "p4d.24xlarge", hints={"nccl": "2.27.7"})) is None


def test_sizes_that_end_on_the_slope_are_too_small() -> None:
    rising = a_run(300.0, rows=tuple(curve("allreduce", 8, 300.0, 100e-6, SIZES[:23])))
    facts = facts_of(sizes.sizes_too_small(evidence_of(rising, "p5.48xlarge")))
    assert facts["largest_bytes"] == SIZES[22] and facts["gain"] > 0.05
    assert sizes.sizes_too_small(evidence_of(a_run(300.0), "p5.48xlarge")) is None
    rates = {1 << 20: 100e9, 1 << 21: 106e9, 1 << 22: 110e9}
    bent = a_run(1.0, rows=tuple(ForeignRow(size, busbw_bytes_per_s=rate) for size, rate in rates.items()))
    assert sizes.sizes_too_small(evidence_of(bent, "p5.48xlarge")) is None


def test_host_memory_libraries_get_only_the_reasons_that_suit_them() -> None:
    rising = a_run(300.0, 16, 2, rows=tuple(curve("allreduce", 16, 300.0, 100e-6, SIZES[:23])))
    assert "sizes-too-small" in [reason.code for reason in run_reasons(evidence_of(rising, "p5.48xlarge"))]
    osu = evidence_of(replace(rising, tool="osu"), "p5.48xlarge")
    assert [(reason.code, reason.command) for reason in run_reasons(osu)] == [("sizes-too-small", "")]


def test_operations_that_start_late_are_named() -> None:
    late = a_run(480.0, rows=tuple(curve("allreduce", 8, 480.0, 200e-6)))
    assert facts_of(sizes.slow_start(evidence_of(late, "p5.48xlarge")))["time_s"] == pytest.approx(200e-6, rel=0.01)
    assert sizes.slow_start(evidence_of(a_run(480.0), "p5.48xlarge")) is None


def test_wrong_elements_come_before_everything() -> None:
    [found] = failure_reasons(FailedRun(a_run(480.0, status=FAILED, failure=Coded.uncoded("out of memory")), 3, 30))
    assert found.weight == 1.0 and found.code == "wrong-data"
    assert found.facts == {"num_wrong_rows": 3, "num_rows": 30}
    assert failure_reasons(FailedRun(a_run(480.0), 0, 30)) == ()


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        ("CUDA_ERROR_SYSTEM_NOT_READY: system not yet initialized", "fabric-not-ready"),
        ("unhandled cuda error", "cuda-failed"),
        ("out of memory", "out-of-memory"),
        ("remote process exited or there was a network error", "rank-lost"),
        ("boom", "tool-failed"),
        (
            "[CUDA_ERROR_NOT_PERMITTED] operation not permitted in expression cuMemCreate(...) "
            "in MultinodeMemoryAllocation",
            "no-imex",
        ),
    ],
)
def test_failures_are_recognised_by_what_the_tool_printed(failure: str, code: str) -> None:
    for coded in (Coded.uncoded(failure), Coded.of(LogCode.TOOL_ERROR, printed=failure)):
        [found] = failure_reasons(FailedRun(ForeignRun("nccl_tests", status=FAILED, failure=coded)))
        assert (found.code, found.evidence) == (code, failure) and found.command
        assert failure_reasons(FailedRun(ForeignRun("nccl_tests", status=TRUNCATED, failure=coded))) == ()


def test_any_reason_for_a_failure_comes_before_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    @reason(FailedRun, "many-errors", what="the tool counted errors", evidence="{errors:n error}")
    def many_errors(failed: FailedRun) -> Found | None:
        failure = failed.run.failure
        return None if failure is None or failure.code != "errors" else Found(0.1, failure.facts)

    rules_with_it = (*rules(), many_errors)
    monkeypatch.setattr("bench.explain.reason.rules", lambda: rules_with_it)
    run = ForeignRun("osu", status=FAILED, failure=Coded("errors", {"errors": 3}, "3 errors"))
    assert [found.code for found in failure_reasons(FailedRun(run))] == ["many-errors"]
    other = replace(run, failure=Coded("boom", {}, "boom"))
    assert [found.code for found in failure_reasons(FailedRun(other))] == ["tool-failed"]


@pytest.mark.parametrize(("tool", "command"), [("nccl_tests", "NCCL_DEBUG=WARN"), ("osu", ""), ("iperf3", "")])
def test_only_tools_over_nccl_are_run_again_with_its_warnings(tool: str, command: str) -> None:
    [found] = failure_reasons(FailedRun(ForeignRun(tool, status=FAILED, failure=Coded.uncoded("boom"))))
    assert (found.code, found.command) == ("tool-failed", command)


@pytest.mark.parametrize(
    ("status", "num_wrong", "begins"),
    [
        (OK, 0, "# NORMAL: "),
        (TRUNCATED, 0, "# NORMAL: "),
        (FAILED, 0, "# FAILED, RATES NORMAL: "),
        (FAILED, 1, "# FAILED: "),
    ],
)
def test_the_page_of_a_failed_run_begins_with_the_failure(status: str, num_wrong: int, begins: str) -> None:
    failure = None if status == OK else Coded.uncoded("the tool counted 3 errors")
    run = a_run(480.0, status=status, failure=failure)
    run = replace(run, rows=tuple(replace(row, num_wrong=num_wrong) for row in run.rows))
    page = run_page(evidence_of(run, "p5.48xlarge"))
    assert table([page]).startswith(begins) and markdown([page]).startswith(begins)
    unjudged = run_page(evidence_of(replace(run, num_ranks=1)))
    assert table([unjudged]).startswith("# FAILED: ") == (status == FAILED)


def test_several_runs_in_one_log_ran_without_mpi() -> None:
    failure = Coded.of(LogCode.SEVERAL_RUNS_AT_ONCE, evidence="the sizes of one rank go up and down")
    [found] = failure_reasons(FailedRun(ForeignRun("nccl_tests", status=FAILED, failure=failure)))
    assert found.code == "ran-without-mpi" and found.command


def test_wrong_data_between_gpus_suggest_an_iommu_before_broken_hardware() -> None:
    check = "Invalid value when checking the pattern"
    hosts = (matrix("h2d", from_host(6.3)), matrix("d2h", to_host(6.7)))
    peers = ForeignRun("nvbandwidth", status=FAILED, failure=Coded.uncoded(f"{check}; device_to_device_memcpy_read_ce"))
    unnamed = replace(
        peers,
        failure=Coded.uncoded(check),
        remarks=(Remark.of(4, LogCode.NEVER_FINISHED, test="device_to_device_memcpy_read_ce"),),
    )
    kernels = replace(unnamed, remarks=(Remark.of(4, LogCode.NEVER_FINISHED, test="one_to_all_read_sm"),))
    for run in (peers, replace(peers, failure=Coded.uncoded(check), matrices=hosts), unnamed, kernels):
        [found] = failure_reasons(FailedRun(run))
        assert found.code == "wrong-data-between-gpus" and "iommu_groups" in found.command
        assert found.facts["host_copies_passed"] == bool(run.matrices)
    from_the_host = replace(peers, failure=Coded.uncoded(f"{check}; host_to_device_memcpy_ce failed"), matrices=hosts)
    assert [reason.code for reason in failure_reasons(FailedRun(from_the_host))] == ["wrong-copies"]


def in_place(rows: list[ForeignRow], factor: float) -> tuple[ForeignRow, ...]:
    both = [replace(row, in_place=True, busbw_bytes_per_s=(row.busbw_bytes_per_s or 0) * factor) for row in rows]
    return (*rows, *both)


def test_placements_that_differ_are_noted() -> None:
    rows = curve("allreduce", 8, 200.0)
    differ = notes_of(evidence_of(a_run(200.0, rows=in_place(rows, 1.3)), "p4d.24xlarge"))
    assert differ[ExplainNote.PLACEMENTS_DIFFER]["faster"] == "in place"
    assert differ[ExplainNote.PLACEMENTS_DIFFER]["excess"] == pytest.approx(0.3)
    same = notes_of(evidence_of(a_run(200.0, rows=in_place(rows, 1.02)), "p4d.24xlarge"))
    assert ExplainNote.PLACEMENTS_DIFFER not in same


def test_a_fall_at_the_largest_size_is_noted() -> None:
    rows = curve("allreduce", 8, 200.0)
    rows[-1] = replace(rows[-1], busbw_bytes_per_s=100e9)
    assert notes_of(evidence_of(a_run(200.0, rows=tuple(rows))))[ExplainNote.BANDWIDTH_FALLS]["last_rate"] == 100e9
    assert ExplainNote.BANDWIDTH_FALLS not in notes_of(evidence_of(a_run(200.0)))


def test_slow_sizes_in_the_middle_of_the_curve_are_noted() -> None:
    rows = curve("alltoall", 16, 40.0)
    middle = [index for index, row in enumerate(rows) if (row.payload_bytes or 0) in (32 << 20, 64 << 20)]
    for index in middle:
        rows[index] = replace(rows[index], busbw_bytes_per_s=1.4e9)
    dip = notes_of(evidence_of(a_run(40.0, 16, 2, "alltoall", rows=tuple(rows))))[ExplainNote.BANDWIDTH_DIPS]
    assert (dip["lowest_rate"], dip["size_bytes"], dip["again_bytes"]) == (1.4e9, 16 << 20, 128 << 20)
    falling = [replace(row, busbw_bytes_per_s=1.4e9) if row in rows[middle[0] :] else row for row in rows]
    assert ExplainNote.BANDWIDTH_DIPS not in notes_of(evidence_of(a_run(40.0, 16, 2, "alltoall", rows=tuple(falling))))
    rows[middle[0]] = curve("alltoall", 16, 40.0)[middle[0]]  # one slow size: the algorithm changes
    assert ExplainNote.BANDWIDTH_DIPS not in notes_of(evidence_of(a_run(40.0, 16, 2, "alltoall", rows=tuple(rows))))


def test_a_warming_first_row_is_noted_and_the_median_counts() -> None:
    rows = curve("allreduce", 8, 200.0)
    rows[0] = replace(rows[0], time_s=900e-6)
    evidence = evidence_of(a_run(200.0, rows=tuple(rows)))
    assert notes_of(evidence)[ExplainNote.FIRST_ROW_WARMING]["time_s"] == 900e-6
    assert evidence.small_message_s == pytest.approx(20e-6, rel=0.01)


def test_types_that_differ_are_noted() -> None:
    rows = curve("allreduce", 8, 480.0) + [replace(row, dtype="uint64") for row in curve("allreduce", 8, 430.0)]
    facts = notes_of(evidence_of(a_run(480.0, rows=tuple(rows))))[ExplainNote.TYPES_DIFFER]
    assert facts["slow_type"] == "uint64" and facts["slow_rate"] == pytest.approx(430e9, rel=0.001)


@pytest.mark.parametrize(
    ("busbw_gb", "instance", "noted"),
    [(480.0, "p5.48xlarge", True), (360.0, "p5.48xlarge", False), (235.0, "p4d.24xlarge", False)],
)
def test_more_than_the_port_is_noted_if_the_switch_adds(busbw_gb: float, instance: str, noted: bool) -> None:
    assert (ExplainNote.ABOVE_PORT in notes_of(evidence_of(a_run(busbw_gb), instance))) is noted


def test_results_that_read_the_same_are_one_figure() -> None:
    evidence = evidence_of(a_run(2.6, 2), gpu="NVIDIA GeForce RTX 4090")
    one = evidence.references[0]
    other = replace(one, busbw={size: 1.00001 * rate for size, rate in one.busbw.items()})
    facts = facts_of(node.through_host(replace(evidence, references=(one, other))))
    assert " to " not in facts["reference_range"]
