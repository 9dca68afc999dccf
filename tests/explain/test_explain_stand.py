"""Where a result stands: by others, by its bound, or not at all; and how ranks and nodes are counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.explain.assessment import ABOVE, FAR, LOW, NORMAL, UNJUDGED, stand, tightest
from bench.explain.evidence import RunEvidence, gathered
from bench.explain.stored import measured
from bench.hardware.machine import machine_of
from bench.logs.foreign import ForeignRow, ForeignRun
from tests.explain.logs import SIZES, a_run, curve, pattern, seen_of
from tests.gate import gate_runs


@pytest.mark.parametrize(
    ("busbw_gb", "word"), [(482.0, NORMAL), (420.0, NORMAL), (300.0, LOW), (200.0, FAR), (710.0, ABOVE)]
)
def test_beside_others_by_their_ratio(busbw_gb: float, word: str) -> None:
    assert stand(seen_of(a_run(busbw_gb), "p5.48xlarge")).word == word


@pytest.mark.parametrize(("busbw_gb", "word"), [(240.0, NORMAL), (150.0, LOW), (90.0, FAR), (310.0, ABOVE)])
def test_beside_its_bound_where_nobody_is_known(busbw_gb: float, word: str) -> None:
    standing = stand(seen_of(a_run(busbw_gb, 4, name="alltoall"), "p4d.24xlarge"))
    assert standing.word == word
    assert word == ABOVE or "nobody's result of this shape is known here" in standing.sentence


def test_a_figure_that_is_rounded_up_is_not_above() -> None:
    exact = a_run(1.0, rows=(ForeignRow(1 << 30, algbw_bytes_per_s=171e9, busbw_bytes_per_s=300.2e9),))
    assert not seen_of(exact, "p4d.24xlarge").above
    more = replace(exact, rows=(replace(exact.rows[0], busbw_bytes_per_s=302e9),))
    assert seen_of(more, "p4d.24xlarge").above


def test_small_sizes_are_set_beside_small_sizes() -> None:
    short = a_run(
        230.0, rows=(ForeignRow(1 << 25, busbw_bytes_per_s=160e9), ForeignRow(1 << 24, busbw_bytes_per_s=120e9))
    )
    standing = stand(seen_of(short, gpu="NVIDIA A100-SXM4-40GB"))
    assert standing.word == UNJUDGED and "Azure" not in standing.sentence
    assert "160 GB/s at 32 MiB is 96% of the best that others reached" in standing.sentence
    assert "166 GB/s there by interpolation" in standing.sentence


def test_nodes_whose_nics_are_not_known_are_not_judged_but_told() -> None:
    standing = stand(seen_of(a_run(338.0, 16, 2), gpu="NVIDIA H100 80GB HBM3"))
    assert standing.word == UNJUDGED
    assert "339 GB/s with 200 GB/s of NICs per node (a3-megagpu-8g)" in standing.sentence


def test_a_curve_that_ends_on_its_slope_is_not_held_against_a_bound() -> None:
    short = a_run(1.0, 16, 2, rows=tuple(curve("allreduce", 16, 20.0, 1e-3, SIZES[:20])))
    standing = stand(seen_of(short, "p3dn.24xlarge"))
    assert standing.word == UNJUDGED and "at 4 MiB, the largest, the bandwidth still rises" in standing.sentence
    assert stand(seen_of(a_run(3.4, 16, 2), "p3dn.24xlarge")).word == FAR


def test_cards_that_talk_through_the_host_are_low_and_less_is_far_too_low() -> None:
    assert stand(seen_of(a_run(4.0, 4), gpu="NVIDIA L40S")).word == LOW
    assert stand(seen_of(a_run(1.0, 4), gpu="NVIDIA L40S")).word == FAR


def bare(run: ForeignRun, **changes: object) -> ForeignRun:
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
    seen = gathered(bare(a_run(1.0, name=name), rows=tuple(rows)), machine_of("p5.48xlarge"), pattern(name))
    assert seen.num_ranks == num_ranks
    assert any(f"{num_ranks} ranks, as busbw / algbw" in words for words in seen.counted)
    assert seen.num_nodes == -(-num_ranks // 8)


@pytest.mark.parametrize("name", ["broadcast", "sendrecv"])
def test_ranks_do_not_follow_where_the_factor_is_1(name: str) -> None:
    seen = gathered(bare(a_run(100.0, name=name)), machine_of("p5.48xlarge"), pattern(name))
    assert seen.num_ranks is None and stand(seen).word == UNJUDGED and "--num-ranks" in stand(seen).sentence


def test_figures_too_coarse_to_tell_give_no_number_of_ranks() -> None:
    coarse = tuple(ForeignRow(size, algbw_bytes_per_s=0.1e9, busbw_bytes_per_s=0.2e9) for size in SIZES[:5])
    assert gathered(bare(a_run(1.0), rows=coarse), machine_of(None), pattern("allreduce")).num_ranks is None


def test_one_host_of_a_long_list_is_no_node_count() -> None:
    many = a_run(800.0, 72, 1)
    assert gathered(many, machine_of(None), pattern("allreduce")).num_nodes is None
    assert gathered(many, machine_of("GB200 NVL72"), pattern("allreduce")).num_nodes == 18
    assert gathered(many, machine_of(None), pattern("allreduce"), num_nodes=9).num_nodes == 9


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
    counted = gathered(run, machine, pattern("allreduce")).counted
    assert any("may be those of pods" in words and "--num-nodes" in words for words in counted) is may_be
    assert not any("pods" in words for words in gathered(run, machine, pattern("allreduce"), num_nodes=1).counted)


def test_a_likely_network_bounds_as_a_reference_only() -> None:
    seen = seen_of(a_run(92.0, 16, 2), gpu="NVIDIA H200")
    network = tightest(seen)
    assert network is not None and (network.name, network.kind) == ("network", "reference")
    assert network.bytes_per_s == pytest.approx(750e9)
    fast = seen_of(a_run(760.0, 16, 2), gpu="NVIDIA H200")
    assert not fast.above


def test_times_alone_give_bandwidths() -> None:
    times = tuple(ForeignRow(size, time_s=1e-3) for size in (1 << 20, 1 << 22))
    seen: RunEvidence = gathered(a_run(1.0, rows=times), machine_of("p4d.24xlarge"), pattern("allreduce"))
    assert seen.best is not None and seen.best.busbw_bytes_per_s == pytest.approx((1 << 22) / 1e-3 * 1.75)


def test_two_ends_of_verbs_are_set_beside_line_rates() -> None:
    row = ForeignRow(1 << 20, algbw_bytes_per_s=24.2e9, busbw_bytes_per_s=24.2e9)
    ends = ForeignRun("perftest", pattern="pingpong", num_ranks=2, num_nodes=2, rows=(row,))
    standing = stand(gathered(ends, machine_of(None), pattern("pingpong")))
    assert standing.word == NORMAL and "97% of the line rate of 200 Gb/s" in standing.sentence
    slow = replace(ends, rows=(replace(row, algbw_bytes_per_s=15e9, busbw_bytes_per_s=15e9),))
    assert stand(gathered(slow, machine_of(None), pattern("pingpong"))).word == UNJUDGED


def test_mpi_from_host_memory_is_not_judged_by_gpus() -> None:
    rows = tuple(ForeignRow(size, time_s=1e-3) for size in (1 << 20, 1 << 22))
    osu = replace(a_run(1.0, 16, 2, rows=rows), tool="osu")
    seen = gathered(osu, machine_of("p4d.24xlarge"), pattern("allreduce"))
    assert {bound.name for bound in seen.bounds} == {"network"} and seen.references == ()
    assert stand(seen).word == UNJUDGED


def test_our_own_ranks_on_one_gpu_are_not_judged() -> None:
    rows = [gate_runs.record("pipelined", size, flags=("shared_gpu",)) for size in SIZES]
    of = gate_runs.header(transport="nccl", instance="p5.48xlarge", num_nodes=1)
    [(_, seen)] = measured([("job", of, rows)])
    told = stand(seen)
    assert told.word == UNJUDGED and "share a GPU" in told.sentence
