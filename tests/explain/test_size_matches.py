"""Comparisons at one size, and what keeps a page from judging: NICs, machines, shared GPUs, doubtful rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.core.codes import Coded
from bench.core.links import Limit
from bench.explain import stored
from bench.explain.assessment import Assessment, assess, bound_to_show
from bench.explain.copy_assessment import assess_copies
from bench.explain.copy_evidence import copy_evidence, fitting_links
from bench.explain.evidence import ExplainLimit, RunEvidence
from bench.explain.explain import page, run_page
from bench.explain.gather import gathered, is_comparable
from bench.explain.log_hints import HintReader
from bench.explain.messages import AssessmentCode, OthersCode, ResultCode, ResultVerdict
from bench.explain.reasons.network import crossed_nics
from bench.explain.reasons.sizes import sizes_too_small
from bench.explain.size_matches import rate_at, size_matches
from bench.hardware.machine import machine_of
from bench.logs.foreign import TRUNCATED, ForeignRow, ForeignRun
from bench.logs.messages import LogCode
from bench.store import runs
from tests.explain.logs import SIZES, a_run, curve, evidence_of, matrix, pairs, pattern
from tests.facts import holds

H200, RTX_2080_TI, RTX_4090 = "NVIDIA H200", "NVIDIA GeForce RTX 2080 Ti", "NVIDIA GeForce RTX 4090"
CANNOT_BE_JUDGED = ResultVerdict.CANNOT_BE_JUDGED


def rows(**rates: float) -> tuple[ForeignRow, ...]:
    """s25=160.0: 160 GB/s at 2^25 bytes."""
    return tuple(ForeignRow(1 << int(name[1:]), busbw_bytes_per_s=rate * 1e9) for name, rate in rates.items())


def not_judged(evidence: RunEvidence) -> tuple[str, dict[str, Any]]:
    """Why there is no verdict: code and facts."""
    found = assess(evidence)
    assert found.verdict == CANNOT_BE_JUDGED
    return found.why.code, dict(found.why.facts)


def test_a_rate_between_two_points_is_linear_in_the_logarithm_of_size() -> None:
    assert rate_at({1 << 20: 10.0, 1 << 22: 30.0}, 1 << 21) == pytest.approx(20.0)
    assert rate_at({1 << 20: 10.0}, 1 << 30) == 10.0


def test_a_small_best_row_is_compared_with_their_curve_at_its_own_size() -> None:
    short = a_run(1.0, 16, 2, rows=rows(s23=20.0, s24=26.0, s25=33.0))
    [first, *_] = size_matches(evidence_of(short, "p4de.24xlarge"))
    assert first.size_bytes == 1 << 25 and first.theirs == pytest.approx(37.0e9, rel=0.01) and not first.measured


def test_a_large_best_row_is_not_compared_with_a_curve_that_ended_far_below() -> None:
    rising = a_run(1.0, rows=rows(s26=100.0, s27=150.0, s28=200.0))
    sizes = [match.size_bytes for match in size_matches(evidence_of(rising, gpu="NVIDIA A100-SXM4-40GB"))]
    assert sizes and 1 << 25 not in sizes


def test_a_rising_end_is_not_judged_and_gives_no_reason_about_pairing() -> None:
    evidence = evidence_of(a_run(1.0, 16, 2, rows=rows(s23=8.0, s24=12.0, s25=17.0)), "p4d.24xlarge")
    code, facts = not_judged(evidence)
    assert code == AssessmentCode.SIZES_TOO_SMALL and facts["rising"]
    assert crossed_nics(evidence) is None and sizes_too_small(evidence) is not None


def test_small_sizes_are_a_reason_even_with_a_normal_verdict() -> None:
    found = run_page(evidence_of(a_run(1.0, rows=rows(s23=150.0, s24=180.0, s25=215.0)), "p4d.24xlarge"))
    assert found.assessment.verdict == ResultVerdict.NORMAL
    assert [reason.code for reason in found.reasons] == ["sizes-too-small"]


@pytest.mark.parametrize(("gpu", "ranks", "nodes"), [("NVIDIA A100-SXM4-40GB", 128, 16), (H200, 2, 2)])
def test_the_only_result_of_a_gpu_does_not_say_what_is_normal(gpu: str, ranks: int, nodes: int) -> None:
    found = assess(evidence_of(a_run(30.0, ranks, nodes), gpu=gpu))
    assert found.verdict in (ResultVerdict.ONLY_RESULT, ResultVerdict.NORMAL_IF)


def test_a_reference_with_other_nics_is_not_compared() -> None:
    assert evidence_of(a_run(8.1, 2, 2), "g6e.48xlarge").references == ()
    likely = evidence_of(a_run(90.0, 16, 2), gpu=H200)
    known = next(reference for reference in likely.references if reference.limited is None)
    assert not is_comparable(likely, replace(known, network_bytes_per_s=None))


def test_one_rank_of_a_node_with_many_nics_uses_its_own() -> None:
    found = assess(evidence_of(a_run(38.0, 2, 2, name="allgather"), "a3-ultragpu-8g"))
    assert (found.verdict, found.why.code) == (ResultVerdict.NORMAL, AssessmentCode.COMPARED_WITH_BOUND)
    assert found.why.facts["bound_rate"] == pytest.approx(50e9)


def test_another_machine_than_the_logs_is_not_judged() -> None:
    run = a_run(92.0, 16, 2, gpus=(H200,))
    evidence = gathered(run, machine_of("p4d.24xlarge", (H200,), run.hosts, 8), pattern("allreduce"))
    code, facts = not_judged(evidence)
    assert code == AssessmentCode.OTHER_MACHINE and evidence.bounds == ()
    assert facts == {"instance": "p4d.24xlarge", "gpu": "A100-SXM4-40GB", "other_gpus": ["H200-SXM-141GB"]}
    same = gathered(run, machine_of("p5en.48xlarge", (H200,), run.hosts, 8), pattern("allreduce"))
    assert assess(same).verdict != CANNOT_BE_JUDGED


def test_copies_of_another_machine_are_not_judged_either() -> None:
    run = ForeignRun("nvbandwidth", gpus=(H200,), matrices=(matrix("d2d", pairs(4, 48.0)),))
    found = assess_copies(copy_evidence(run, machine_of("p3.16xlarge", run.gpus)))
    assert (found.verdict, found.why.code) == (CANNOT_BE_JUDGED, AssessmentCode.OTHER_MACHINE)


def test_far_more_than_the_best_known_result_is_warned_of() -> None:
    fast = assess(evidence_of(a_run(10.0, 2), gpu=RTX_4090))
    assert fast.why.facts["times_best"] == pytest.approx(2.6, abs=0.05) and "WARNING" in fast.why.text
    usual = assess(evidence_of(a_run(4.0, 2), gpu=RTX_4090))
    assert usual.why.facts["best_share"] == pytest.approx(0.12, abs=0.005)
    assert usual.why.facts["times_best"] is None and "WARNING" not in usual.why.text


def test_pairs_are_compared_with_pairs_of_the_same_kind() -> None:
    def assessed(rate: float) -> Assessment:
        run = ForeignRun("p2p_bandwidth_latency", matrices=(matrix("d2d", pairs(4, rate)),))
        return assess_copies(copy_evidence(run, machine_of("p3.16xlarge")))

    assert assessed(48.5).ratio == pytest.approx(1.0, abs=0.01)
    assert assessed(24.2).verdict == ResultVerdict.FAR_TOO_LOW


def test_the_only_result_is_named_as_such_if_it_is_far_below_the_bound() -> None:
    found = assess(evidence_of(a_run(268.0, 16, 2, name="allgather"), gpu="NVIDIA B200"))
    assert found.verdict == ResultVerdict.ONLY_RESULT
    assert found.why.facts["only_share"] == pytest.approx(0.65, abs=0.005)


BANNER = "#  Rank {:2} Group  0 Pid {:6} on  box device {:2} [{}] NVIDIA GeForce RTX 5090"


@pytest.mark.parametrize(
    ("second", "shared"), [((0, "0000:02:00"), True), ((1, "0000:02:00"), False), ((0, "0000:03:00"), False)]
)
def test_ranks_share_a_gpu_by_host_device_and_bus_together(second: tuple[int, str], shared: bool) -> None:
    reader = HintReader()
    reader.read(1, BANNER.format(0, 10, 0, "0000:02:00"))
    reader.read(2, "[1,1]<stdout>:" + BANNER.format(1, 11, *second))
    assert any(hint.kind == "shared" for hint in reader.between(1, 9)) is shared


def test_a_rank_that_the_next_run_lists_again_shares_nothing() -> None:
    reader = HintReader()
    for number, rank in enumerate((0, 1), start=1):
        reader.read(2 * number - 1, "# Using devices")
        reader.read(2 * number, BANNER.format(rank, 10, 0, "0000:02:00"))
    assert reader.between(1, 9) == ()


def test_ranks_that_share_a_gpu_have_no_bound_and_are_not_judged() -> None:
    hints = {"shared": "ranks 0 and 1 are both on box"}
    evidence = evidence_of(a_run(2.3, 2), gpu="NVIDIA GeForce RTX 5090", hints=hints)
    assert evidence.bounds == () and not_judged(evidence)[0] == AssessmentCode.SHARED_GPU
    assert [reason.code for reason in run_page(evidence).reasons] == ["shared-gpu"]


def test_rows_that_contradict_themselves_are_never_the_best_and_are_named_first() -> None:
    sound = [replace(row, line=number) for number, row in enumerate(curve("allreduce", 8, 200.0), start=10)]
    sound[-1] = replace(sound[-1], busbw_bytes_per_s=900e9, contradicts=Coded.of(LogCode.NOT_SIZE_BY_TIME))
    run = a_run(1.0, rows=tuple(sound))
    found = page(run, machine_of("p4d.24xlarge"), pattern("allreduce"))
    assert found.best is not None and (found.best.busbw_bytes_per_s or 0) < 201e9
    assert found.got[0].code == ResultCode.EXCLUDED_ROWS
    assert (found.got[0].facts["num_excluded"], found.got[0].facts["num_rows"]) == (1, len(SIZES))
    assert found.got[0].facts["lines"] == [sound[-1].line]
    infinite = (*sound[:-1], replace(sound[-1], busbw_bytes_per_s=float("inf"), contradicts=None))
    other = page(replace(run, rows=infinite), machine_of("p4d.24xlarge"), None)
    assert other.got[0].code == ResultCode.EXCLUDED_ROWS and other.got[0].facts["why"] is None


def test_only_the_first_of_many_excluded_lines_are_named() -> None:
    bad = [
        replace(row, line=n, contradicts=Coded.of(LogCode.NOT_SIZE_BY_TIME))
        for n, row in enumerate(curve("allreduce", 8, 200.0), start=10)
    ]
    first = page(a_run(1.0, rows=tuple(bad)), machine_of("p4d.24xlarge"), pattern("allreduce")).got[0]
    assert first.facts["first_lines"] == [10, 11, 12, 13] and "(line 10, 11, 12, 13, ...)" in first.text


def test_rows_of_ours_that_contradict_each_other_are_never_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    [folder] = (Path(__file__).resolve().parent.parent.parent / "results" / "reference").glob("main_*")
    attempts, _ = runs.attempts(folder)
    jobs = [(job, attempt.header, attempt.records) for job, attempt in attempts]
    job, before = next(iter(stored.measured(jobs)))
    size = before.best.payload_bytes if before.best else None
    one = {"job": job, "mode": "pipelined", "group": "world", "payload_bytes": size}
    both = SimpleNamespace(first=one, second={**one, "mode": "isolated"})
    monkeypatch.setattr(stored, "conflicts", lambda headers, summaries: (both,))
    _, after = next(iter(stored.measured(jobs)))
    assert after.best is not None and after.best.payload_bytes != size
    assert {row.payload_bytes for row in after.doubtful} == {size}


def test_a_log_that_was_cut_is_no_reason_for_a_bandwidth() -> None:
    found = page(
        a_run(150.0, status=TRUNCATED, failure=Coded.uncoded("rows are missing")),
        machine_of(None),
        pattern("allreduce"),
    )
    assert found.reasons == ()
    assert found.got[0].code == ResultCode.STATUS and found.got[0].facts["truncated"]


def test_cards_without_a_known_bridge_show_the_pcie_bound_first() -> None:
    evidence = evidence_of(a_run(4.0, 2), gpu=RTX_2080_TI)
    bound = bound_to_show(evidence)
    assert bound is not None and bound.code == ExplainLimit.WITHOUT_BRIDGE
    bridged = evidence_of(a_run(4.0, 2), gpu=RTX_2080_TI, hints={"search": "1, bw 20/20, type NVL"})
    shown = bound_to_show(bridged)
    assert shown is not None and shown.code == Limit.NVLINK_PORT
    lines = run_page(evidence).possible
    assert lines[0].facts["bound"] == bound.name and not lines[0].facts["bridge"] and lines[-1].facts["bridge"]


def test_a_rate_of_no_pcie_link_fits_the_nvlink_port() -> None:
    assert holds(fitting_links(389e9), "NVLink port", "450 GB/s")
    assert fitting_links(13.5e9).startswith("PCIe 3 x16")


def test_mpi_is_not_compared_with_nccl() -> None:
    osu = replace(a_run(10.0, 8), tool="osu")
    found = page(osu, machine_of(None), pattern("allreduce"))
    assert [line.code for line in found.others] == [OthersCode.HOST_MEMORY]


def test_the_link_of_a_gb200_to_its_cpu_is_not_called_pcie() -> None:
    evidence = evidence_of(a_run(800.0, 144, 36), "GB200 NVL72")
    text = " ".join(bound.why for bound in evidence.bounds)
    assert "NVLink-C2C" in text and "PCIe" not in text


def test_links_with_an_unknown_rate_judge_no_collective() -> None:
    for name, ranks, rate in (("NVIDIA A30", 2, 92.0), ("AMD Instinct MI250X", 8, 120.0)):
        evidence = evidence_of(a_run(rate, ranks), gpu=name)
        not_judged(evidence)
        assert not [bound for bound in evidence.bounds if bound.kind == "hard"]


def test_cards_that_a_bridge_of_four_may_join_are_not_held_to_a_whole_port() -> None:
    for ranks, rate in ((4, 330.0), (2, 134.0)):
        code, facts = not_judged(evidence_of(a_run(rate, ranks), gpu="NVIDIA H200 NVL"))
        assert code == AssessmentCode.BRIDGES_UNKNOWN and (facts["most_bridged"], facts["num_peers"]) == (4, 3)
    assert assess(evidence_of(a_run(380.0, 4), gpu="NVIDIA H200 NVL")).verdict == ResultVerdict.NORMAL
    assert assess(evidence_of(a_run(25.0, 4), gpu="NVIDIA H200 NVL")).verdict != CANNOT_BE_JUDGED  # no bridge is used
