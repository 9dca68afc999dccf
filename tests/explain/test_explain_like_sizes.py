"""Like sizes beside like sizes, and what keeps a page from judging: NICs, machines, shared GPUs, doubtful rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.core.codes import Coded
from bench.explain import copies, stored
from bench.explain.assessment import LIKE, NORMAL, UNJUDGED, Assessment, shown, stand
from bench.explain.evidence import _comparable, gathered
from bench.explain.explain import page, page_of
from bench.explain.like_sizes import all_beside, at
from bench.explain.log_evidence import Listener
from bench.explain.network_reasons import no_rdma
from bench.explain.reasons import small_sizes
from bench.hardware.machine import machine_of
from bench.logs.foreign import TRUNCATED, ForeignRow, ForeignRun
from bench.logs.messages import LogCode
from bench.store import runs
from tests.explain.logs import SIZES, a_run, curve, matrix, pairs, pattern, seen_of

H200 = "NVIDIA H200"


def rows(**rates: float) -> tuple[ForeignRow, ...]:
    """s25=160.0: 160 GB/s at 2^25 bytes."""
    return tuple(ForeignRow(1 << int(name[1:]), busbw_bytes_per_s=rate * 1e9) for name, rate in rates.items())


def test_a_rate_between_two_points_is_straight_in_the_logarithm_of_size() -> None:
    assert at({1 << 20: 10.0, 1 << 22: 30.0}, 1 << 21) == pytest.approx(20.0)
    assert at({1 << 20: 10.0}, 1 << 30) == 10.0


def test_a_small_best_stands_beside_their_curve_at_its_own_size() -> None:
    short = a_run(1.0, 16, 2, rows=rows(s23=20.0, s24=26.0, s25=33.0))
    [first, *_] = all_beside(seen_of(short, "p4de.24xlarge"))
    assert first.size_bytes == 1 << 25 and first.theirs == pytest.approx(37.0e9, rel=0.01) and not first.measured


def test_a_large_best_is_not_held_against_a_curve_that_ended_far_below() -> None:
    rising = a_run(1.0, rows=rows(s26=100.0, s27=150.0, s28=200.0))
    sizes = [pair.size_bytes for pair in all_beside(seen_of(rising, gpu="NVIDIA A100-SXM4-40GB"))]
    assert sizes and 1 << 25 not in sizes


def test_a_rising_end_is_not_judged_and_gives_no_reason_about_pairing() -> None:
    seen = seen_of(a_run(1.0, 16, 2, rows=rows(s23=8.0, s24=12.0, s25=17.0)), "p4d.24xlarge")
    assert stand(seen).word == UNJUDGED and "sizes are too small" in stand(seen).sentence
    assert no_rdma(seen) is None and small_sizes(seen) is not None


def test_small_sizes_are_said_beside_a_normal_verdict() -> None:
    seen = seen_of(a_run(1.0, rows=rows(s23=150.0, s24=180.0, s25=215.0)), "p4d.24xlarge")
    found = page_of(seen)
    assert found.standing.word == NORMAL and "sizes are too small" in found.reasons[-1].what


@pytest.mark.parametrize(("gpu", "ranks", "nodes"), [("NVIDIA A100-SXM4-40GB", 128, 16), (H200, 2, 2)])
def test_one_result_does_not_stand_in_for_nics_that_are_not_known(gpu: str, ranks: int, nodes: int) -> None:
    standing = stand(seen_of(a_run(30.0, ranks, nodes), gpu=gpu))
    assert standing.word == UNJUDGED and "what its NICs carry is not known" in standing.sentence


def test_a_reference_of_other_nics_is_no_comparison() -> None:
    seen = seen_of(a_run(8.1, 2, 2), "g6e.48xlarge")
    assert seen.references == ()
    likely = seen_of(a_run(90.0, 16, 2), gpu=H200)
    known = next(each for each in likely.references if each.limited is None)
    assert not _comparable(likely, replace(known, network_bytes_per_s=None))


def test_one_rank_of_a_node_of_many_nics_may_have_one_of_them() -> None:
    standing = stand(seen_of(a_run(33.0, 2, 2, name="allgather"), "a3-ultragpu-8g"))
    assert standing.word == UNJUDGED and "8 NICs the one rank there has is not known" in standing.sentence


def test_another_machine_than_the_logs_is_not_judged() -> None:
    run = a_run(92.0, 16, 2, gpus=(H200,))
    seen = gathered(run, machine_of("p4d.24xlarge", (H200,), run.hosts, 8), pattern("allreduce"))
    assert stand(seen).word == UNJUDGED and "another machine" in stand(seen).sentence and seen.bounds == ()
    same = gathered(run, machine_of("p5en.48xlarge", (H200,), run.hosts, 8), pattern("allreduce"))
    assert stand(same).word != UNJUDGED


def test_copies_of_another_machine_are_not_judged_either() -> None:
    run = ForeignRun("nvbandwidth", gpus=(H200,), matrices=(matrix("d2d", pairs(4, 48.0)),))
    standing = copies.stand(copies.gathered(run, machine_of("p3.16xlarge", run.gpus)))
    assert standing.word == UNJUDGED and "another machine" in standing.sentence


def test_far_more_than_the_best_known_is_warned_of() -> None:
    seen = seen_of(a_run(10.0, 2), gpu="NVIDIA GeForce RTX 4090")
    assert "WARNING: that is 2.6 times the best known" in stand(seen).sentence
    assert "itself at most 12% of it" in stand(seen_of(a_run(4.0, 2), gpu="NVIDIA GeForce RTX 4090")).sentence
    assert "WARNING" not in stand(seen_of(a_run(4.0, 2), gpu="NVIDIA GeForce RTX 4090")).sentence


def test_like_pairs_beside_like_pairs() -> None:
    def standing(rate: float) -> Assessment:
        run = ForeignRun("p2p_bandwidth_latency", matrices=(matrix("d2d", pairs(4, rate)),))
        return copies.stand(copies.gathered(run, machine_of("p3.16xlarge")))

    assert standing(48.5).ratio == pytest.approx(1.0, abs=0.01)
    assert standing(24.2).word == "far too low"


def test_the_only_result_is_called_so_where_it_is_far_below_the_bound() -> None:
    seen = seen_of(a_run(268.0, 16, 2, name="allgather"), gpu="NVIDIA B200")
    assert stand(seen).word == LIKE and "That only result is itself 65% of the bound" in stand(seen).sentence


BANNER = "#  Rank {:2} Group  0 Pid {:6} on  box device {:2} [{}] NVIDIA GeForce RTX 5090"


@pytest.mark.parametrize(
    ("second", "shared"), [((0, "0000:02:00"), True), ((1, "0000:02:00"), False), ((0, "0000:03:00"), False)]
)
def test_ranks_share_a_gpu_by_host_device_and_bus_together(second: tuple[int, str], shared: bool) -> None:
    listener = Listener()
    listener.hear(1, BANNER.format(0, 10, 0, "0000:02:00"))
    listener.hear(2, "[1,1]<stdout>:" + BANNER.format(1, 11, *second))
    assert any(hint.kind == "shared" for hint in listener.between(1, 9)) is shared


def test_a_rank_that_is_listed_again_by_the_next_run_shares_nothing() -> None:
    listener = Listener()
    for number, rank in enumerate((0, 1), start=1):
        listener.hear(2 * number - 1, "# Using devices")
        listener.hear(2 * number, BANNER.format(rank, 10, 0, "0000:02:00"))
    assert listener.between(1, 9) == ()


def test_ranks_that_share_a_gpu_have_no_bound_and_are_not_judged() -> None:
    seen = seen_of(a_run(2.3, 2), gpu="NVIDIA GeForce RTX 5090", said={"shared": "ranks 0 and 1 are both on box"})
    assert seen.bounds == () and stand(seen).word == UNJUDGED
    assert [reason.what for reason in page_of(seen).reasons] == ["ranks share a GPU"]


def test_rows_that_contradict_themselves_are_never_the_best_and_are_named_first() -> None:
    fine = [replace(row, line=number) for number, row in enumerate(curve("allreduce", 8, 200.0), start=10)]
    fine[-1] = replace(fine[-1], busbw_bytes_per_s=900e9, contradicts=Coded.of(LogCode.NOT_SIZE_BY_TIME))
    line = fine[-1].line
    run = a_run(1.0, rows=tuple(fine))
    found = page(run, machine_of("p4d.24xlarge"), pattern("allreduce"))
    assert found.best is not None and (found.best.busbw_bytes_per_s or 0) < 201e9
    assert found.got[0].startswith(f"LEFT OUT: 1 of {len(SIZES)} rows") and f"line {line}" in found.got[0]
    infinite = (*fine[:-1], replace(fine[-1], busbw_bytes_per_s=float("inf"), contradicts=None))
    assert page(replace(run, rows=infinite), machine_of("p4d.24xlarge"), None).got[0].startswith("LEFT OUT")


def test_rows_of_ours_that_contradict_each_other_are_never_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    [folder] = (Path(__file__).resolve().parent.parent.parent / "results" / "reference").glob("main_*")
    attempts, _ = runs.attempts(folder)
    told = [(job, attempt.header, attempt.records) for job, attempt in attempts]
    job, before = next(iter(stored.measured(told)))
    size = before.best.payload_bytes if before.best else None
    one = {"job": job, "mode": "pipelined", "group": "world", "payload_bytes": size}
    both = SimpleNamespace(first=one, second={**one, "mode": "isolated"})
    monkeypatch.setattr(stored, "conflicts", lambda headers, summaries: (both,))
    _, after = next(iter(stored.measured(told)))
    assert after.best is not None and after.best.payload_bytes != size
    assert {row.payload_bytes for row in after.doubtful} == {size}


def test_a_log_that_was_cut_is_no_reason_for_a_bandwidth() -> None:
    found = page(
        a_run(150.0, status=TRUNCATED, failure=Coded.uncoded("rows are missing")),
        machine_of(None),
        pattern("allreduce"),
    )
    assert found.reasons == () and "explain the whole log" in found.got[0]


def test_cards_without_a_known_bridge_show_the_pcie_bound_first() -> None:
    seen = seen_of(a_run(4.0, 2), gpu="NVIDIA GeForce RTX 2080 Ti")
    bound = shown(seen)
    assert bound is not None and bound.name == "PCIe port without NVLink bridge"
    told = shown(seen_of(a_run(4.0, 2), gpu="NVIDIA GeForce RTX 2080 Ti", said={"search": "1, bw 20/20, type NVL"}))
    assert told is not None and told.name == "NVLink port"
    assert page_of(seen).possible[0].startswith("15.8 GB/s") and "if there is a bridge" in page_of(seen).possible[-1]


def test_a_rate_of_no_pcie_link_names_the_nvlink_port() -> None:
    assert copies.fitting(389e9) == "an NVLink port of 450 GB/s"
    assert copies.fitting(13.5e9).startswith("PCIe 3 x16")


def test_mpi_is_not_set_beside_nccl() -> None:
    osu = replace(a_run(10.0, 8), tool="osu")
    found = page(osu, machine_of(None), pattern("allreduce"))
    assert found.others == (
        "not compared: what is known here was measured by NCCL between GPUs, and this is another library",
    )


def test_the_link_of_a_gb200_to_its_cpu_is_not_called_pcie() -> None:
    seen = seen_of(a_run(800.0, 144, 36), "GB200 NVL72")
    text = " ".join(bound.why for bound in seen.bounds)
    assert "NVLink-C2C" in text and "PCIe link" not in text


def test_links_whose_rate_nobody_read_judge_no_collective() -> None:
    for name, ranks, rate in (("NVIDIA A30", 2, 92.0), ("AMD Instinct MI250X", 8, 120.0)):
        seen = seen_of(a_run(rate, ranks), gpu=name)
        assert stand(seen).word == UNJUDGED and not [bound for bound in seen.bounds if bound.kind == "hard"]


def test_cards_of_which_a_bridge_may_join_four_are_not_held_to_a_whole_port() -> None:
    for ranks, rate in ((4, 330.0), (2, 134.0)):
        found = stand(seen_of(a_run(rate, ranks), gpu="NVIDIA H200 NVL"))
        assert found.word == UNJUDGED and "1/3 of a port" in found.sentence
    assert stand(seen_of(a_run(380.0, 4), gpu="NVIDIA H200 NVL")).word == NORMAL
    assert stand(seen_of(a_run(25.0, 4), gpu="NVIDIA H200 NVL")).word != UNJUDGED  # no bridge is in use
