"""Common mistakes of this field, each with the wrong figure and ours."""

from __future__ import annotations

import pytest

from bench.core.links import Limit
from bench.core.pattern import Shape
from bench.core.units import format_rate, parse_rate
from bench.explain import copy_sections
from bench.explain.copy_assessment import assess_copies
from bench.explain.copy_evidence import copy_evidence
from bench.explain.evidence import busbw
from bench.explain.explain import run_page
from bench.explain.messages import ResultVerdict
from bench.explain.reasons.network import fewer_nics
from bench.hardware.catalogue import instance, node_network, pcie_as_linked, pcie_bytes_per_s
from bench.hardware.machine import machine_of
from bench.logs.foreign import ForeignRun, read_all
from bench.logs.readers import _lines, nccl_tests
from tests.explain.logs import a_run, curve, evidence_of, from_host, matrix, pairs, pattern


def test_the_mean_over_sizes_that_tools_print_is_no_bandwidth_of_the_machine() -> None:
    # The arithmetic mean of rates over sizes that double counts 8 bytes as much as 16 GiB.
    rows = curve("allreduce", 8, 480.0)
    arithmetic = sum(map(busbw, rows)) / len(rows)
    all_bytes = sum((row.payload_bytes or 0) * 1.75 for row in rows) / sum(row.time_s or 0 for row in rows)
    page = run_page(evidence_of(a_run(480.0), "p5.48xlarge"))
    assert arithmetic < 0.4 * 480e9 < 0.99 * 480e9 < all_bytes
    assert page.best is not None and busbw(page.best) == pytest.approx(480e9, rel=0.01)
    assert format_rate(arithmetic) not in " ".join([page.assessment.why.text, *(line.text for line in page.got)])


def test_a_mean_over_pairs_says_nothing_where_pairs_differ() -> None:
    two = {f"a{a}_{b}": 48.4 for a in range(4) for b in range(4) if (a + b) % 2 == 1}
    run = ForeignRun("nvbandwidth", matrices=(matrix("d2d", pairs(4, 24.2, **two)),))
    text = " ".join(line.text for line in copy_sections.got(copy_evidence(run, machine_of("p3.16xlarge"))))
    assert "24.2 GB/s to 48.4 GB/s" in text
    assert format_rate((4 * 24.2e9 + 8 * 48.4e9) / 12) not in text


def test_rates_are_of_a_billion_bytes_while_sizes_are_binary() -> None:
    columns, units = "     time   algbw   busbw #wrong", "     (us)  (GB/s)  (GB/s)       "
    half = "   174410   49.25   92.35      0"
    text = (
        f"#       size         count      type   redop    root{columns}{columns}\n"
        f"#        (B)    (elements)                          {units}{units}\n"
        f"  8589934592    2147483648     float     sum      -1{half}{half}\n"
    )
    [run] = read_all(nccl_tests.READER(), _lines.lines([text.encode()]))
    row = run.rows[0]
    assert row.payload_bytes == 8 << 30 and row.algbw_bytes_per_s == pytest.approx(49.25e9)
    assert row.payload_bytes / (row.time_s or 1) == pytest.approx(49.25e9, rel=1e-3)  # 45.87 if a GB were a GiB
    assert format_rate(row.algbw_bytes_per_s) == "49.2 GB/s"


def test_a_nic_of_400_gigabit_is_50_gigabytes() -> None:
    assert parse_rate("400 Gbit/s") == parse_rate("400 Gbps") == parse_rate("50 GB/s") == 50e9
    assert node_network("p4d.24xlarge") == 50e9
    found = fewer_nics(evidence_of(a_run(92.2, 16, 2), gpu="NVIDIA H200"))
    assert found is not None and found.facts["nics"] == "one 400 Gb/s NIC" and found.facts["nics_rate"] == 50e9


def test_the_size_of_an_allgather_is_the_whole_output_and_its_bound_too() -> None:
    evidence = evidence_of(a_run(230.0, name="allgather"), "p4d.24xlarge")
    assert [bound.bytes_per_s for bound in evidence.bounds] == [300e9]
    # One rank's share in its place would make algbw 1/8, and a healthy 230 GB/s look like 29.
    best = evidence.best
    assert best is not None and best.algbw_bytes_per_s == pytest.approx(busbw(best) * 8 / 7)


def test_the_block_that_a_rank_keeps_in_an_alltoall_crosses_no_link() -> None:
    evidence = evidence_of(a_run(295.0, name="alltoall"), "p4d.24xlarge")
    best = evidence.best
    assert best is not None and (best.algbw_bytes_per_s or 0) > 300e9  # above the port: 1/8 of it never left the GPU
    assert not evidence.above
    assert pattern("alltoall").crossing(Shape(8, 8 << 20), 8) == 7 << 20


def test_an_alltoall_over_two_nodes_sends_half_of_everything_through_the_nics() -> None:
    evidence = evidence_of(a_run(11.0, 16, 2, name="alltoall"), "p4d.24xlarge")
    network = next(bound for bound in evidence.bounds if bound.code == Limit.NETWORK)
    assert network.bytes_per_s == pytest.approx(50e9 / 4 * 15 / 16)  # 8 ranks, S/2 each; busbw counts 15/16 S
    assert evidence.least_nic_bytes_per_s == pytest.approx(11e9 * 4 * 16 / 15, rel=0.01)


def test_an_idle_gpu_that_reads_generation_1_is_linked_at_its_highest() -> None:
    idle = {"pcie_generation": 1, "pcie_max_generation": 4, "pcie_lanes": 8, "pcie_max_lanes": 16}
    assert pcie_as_linked(idle) == (4, 8) == instance("g6e.48xlarge").pcie
    assert pcie_bytes_per_s(4, 8) / 1e9 == pytest.approx(15.754, abs=5e-4)
    assert pcie_as_linked({**idle, "pcie_max_generation": None}) == (1, 8)
    assert pcie_as_linked({**idle, "pcie_lanes": None}) is None
    # Taken at its word, generation 1 x8 (2 GB/s) would make 13.5 GB/s an impossible figure.
    run = ForeignRun("nvbandwidth", matrices=(matrix("h2d", from_host(13.47)),))
    assert assess_copies(copy_evidence(run, machine_of("g6e.48xlarge"))).verdict == ResultVerdict.NORMAL
    assert pcie_bytes_per_s(1, 8) < 13.47e9


def test_a_bus_bandwidth_above_its_link_is_right_where_the_switch_adds_and_only_there() -> None:
    assert not evidence_of(a_run(480.0), "a3-ultragpu-8g").above
    assert evidence_of(a_run(480.0, name="allgather"), "a3-ultragpu-8g").above
    assert evidence_of(a_run(320.0), "p4d.24xlarge").above


def test_two_nodes_may_show_nearly_twice_their_nics_and_sixteen_may_not() -> None:
    assert not evidence_of(a_run(90.0, 16, 2), "p4d.24xlarge").above
    assert evidence_of(a_run(90.0, 128, 16), "p4d.24xlarge").above
