from __future__ import annotations

from dataclasses import replace

import pytest

from bench.core import plugins
from bench.core.links import Bound, FloorKind, Limit, NodeLinks
from bench.core.pattern import Pattern, Shape
from bench.core.record import Header, Record, Samples
from bench.core.topology import rounds
from bench.core.world import World
from bench.hardware.bounds import bounds_of, copy_bounds, floor_of
from bench.hardware.catalogue import gpu_links, node_links
from bench.hardware.link_traffic import HashedRound, uses_of
from tests.facts import holds

SIZE = 1 << 30


def header(pattern: str, links: NodeLinks | None, ranks_per_node: int = 8, **changes: object) -> Header:
    plain = Header(
        job="job",
        case=(pattern,),
        pattern=pattern,
        transport="nccl",
        dtype="float32",
        reduce_op="sum",
        root=0,
        direction=None,
        topology="world",
        num_ranks=8,
        num_nodes=1,
        ranks_per_node=ranks_per_node,
        clock="device",
        modelled=False,
        started="",
        links=links.to_dict() if links else {},
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def record(pattern: str, num_ranks: int, num_nodes: int = 1, **changes: object) -> Record:
    each: Pattern = plugins.load("pattern", pattern).PATTERN
    shape = Shape(num_ranks, SIZE)
    plain = Record(
        mode="isolated",
        requested_bytes=(SIZE,),
        payload_bytes=SIZE,
        num_ranks=num_ranks,
        num_nodes=num_nodes,
        bus_factor=each.bus_factor(shape),
        rank_bytes=each.crossing(shape, num_ranks),
        node_bytes=each.crossing(shape, num_nodes) if num_nodes > 1 else None,
        min_steps=each.min_steps(num_ranks),
        samples=Samples((1.0,)),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def bounds(instance: str, pattern: str, num_ranks: int, num_nodes: int = 1) -> dict[str, Bound]:
    found = bounds_of(header(pattern, node_links(instance)), record(pattern, num_ranks, num_nodes))
    assert [bound.bytes_per_s for bound in found] == sorted(bound.bytes_per_s for bound in found)
    return {bound.code: bound for bound in found}


def gb(bound: Bound) -> float:
    return bound.bytes_per_s / 1e9


@pytest.mark.parametrize("pattern", ["allreduce", "allgather", "alltoall", "broadcast", "sendrecv"])
def test_inside_a_p4d_the_nvlink_port_of_300_gb_is_the_bound(pattern: str) -> None:
    (bound,) = bounds("p4d.24xlarge", pattern, 8).values()
    assert (bound.code, bound.kind, bound.verified) == (Limit.NVLINK_PORT, "hard", True)
    assert gb(bound) == pytest.approx(300.0)
    assert "300 GB/s" in bound.why and "stas00" in bound.source


def test_an_allreduce_of_two_p4d_is_bound_by_twice_their_nics() -> None:
    found = bounds("p4d.24xlarge", "allreduce", 16, 2)
    assert gb(found[Limit.NETWORK]) == pytest.approx(93.75)
    assert gb(found[Limit.NVLINK_AND_PCIE]) == pytest.approx(315.754, abs=1e-3)
    assert next(iter(found)) == Limit.NETWORK


def test_an_alltoall_of_two_p4d_is_bound_by_half_of_everything_crossing() -> None:
    # Each of 8 ranks sends half of S to the other node: 4 S at 50 GB/s; busbw = 15/16 S / t.
    assert gb(bounds("p4d.24xlarge", "alltoall", 16, 2)[Limit.NETWORK]) == pytest.approx(15 / 16 * 50 / 4)


def test_many_nodes_bring_the_network_bound_down_to_their_nics() -> None:
    # W [(n-1)/n] / [(N-1)/N], n = 64, N = 8
    assert gb(bounds("p4d.24xlarge", "allreduce", 64, 8)[Limit.NETWORK]) == pytest.approx(50 * (63 / 64) / (7 / 8))


def test_inside_a_g6e_the_pcie_link_as_wired_is_the_bound_and_packets_take_some_of_it() -> None:
    found = bounds("g6e.48xlarge", "allreduce", 8)
    assert gb(found[Limit.PCIE_PORT]) == pytest.approx(15.754, abs=5e-4)
    assert found[Limit.PCIE_PORT].kind == "hard"
    assert gb(found[Limit.PCIE_PACKETS]) == pytest.approx(15.754 * 256 / 280, abs=5e-4)
    assert found[Limit.PCIE_PACKETS].kind == "reference"


@pytest.mark.parametrize(("num_ranks", "factor"), [(8, 14 / 9), (5, 8 / 6), (4, 6 / 5)])
def test_a_switch_that_reduces_lifts_the_bound_of_allreduce(num_ranks: int, factor: float) -> None:
    found = bounds("a3-ultragpu-8g", "allreduce", num_ranks)
    hard = found[Limit.NVLINK_PORT_REDUCING]
    assert hard.kind == "hard"
    assert gb(hard) == pytest.approx(450 * factor)
    plain = found[Limit.NVLINK_PORT_NOT_REDUCING]
    assert plain.kind == "reference"
    assert gb(plain) == pytest.approx(450.0)


def test_eight_h200_reach_700_gb_at_most() -> None:
    assert gb(bounds("p5en.48xlarge", "allreduce", 8)[Limit.NVLINK_PORT_REDUCING]) == pytest.approx(700.0)


def test_two_ranks_gain_nothing_from_a_switch_that_reduces() -> None:
    (bound,) = bounds("p5.48xlarge", "allreduce", 2).values()
    assert (bound.code, bound.kind) == (Limit.NVLINK_PORT, "hard")
    assert gb(bound) == pytest.approx(450.0)


def test_only_allreduce_gains_from_a_switch_that_reduces() -> None:
    assert set(bounds("p5.48xlarge", "allgather", 8)) == {Limit.NVLINK_PORT}


def test_published_figures_lie_below_the_hard_bounds() -> None:
    # nccl-tests, 16 GiB: p5.48xlarge one node 483.4 GB/s, two nodes 487.3; two p4de 78.3; eight A100 on OCI 232.0
    cases = (
        ("p5.48xlarge", 8, 1, 483.4),
        ("p5.48xlarge", 16, 2, 487.3),
        ("p4de.24xlarge", 16, 2, 78.3),
        ("p4d.24xlarge", 8, 1, 232.0),
    )
    for instance, num_ranks, num_nodes, reached in cases:
        found = bounds(instance, "allreduce", num_ranks, num_nodes).values()
        assert all(gb(bound) > reached for bound in found if bound.kind == "hard"), instance


def test_two_peers_of_a_mesh_have_only_the_links_between_them() -> None:
    assert gb(bounds("Standard_ND96isr_MI300X_v5", "allreduce", 2)[Limit.INFINITY_FABRIC_PORT]) == pytest.approx(64.0)
    assert gb(bounds("Standard_ND96isr_MI300X_v5", "allreduce", 8)[Limit.INFINITY_FABRIC_PORT]) == pytest.approx(448.0)
    (copy,) = copy_bounds(node_links("Standard_ND96isr_MI300X_v5"), "peers")
    assert copy.code == Limit.INFINITY_FABRIC_PORT


def test_bridged_pairs_add_their_pcie_links_beyond_two_ranks() -> None:
    assert gb(bounds("Standard_NC96ads_A100_v4", "allreduce", 2)[Limit.NVLINK_PORT]) == pytest.approx(300.0)
    four = bounds("Standard_NC96ads_A100_v4", "allreduce", 4)
    assert gb(four[Limit.NVLINK_AND_PCIE]) == pytest.approx(331.508, abs=1e-3)


def test_a_pair_on_two_nodes_is_bound_by_its_own_nic_and_pcie_link() -> None:
    found = bounds("p4d.24xlarge", "pingpong", 2, 2)
    assert gb(found[Limit.OWN_NICS]) == pytest.approx(12.5)
    assert gb(found[Limit.PCIE_PORT]) == pytest.approx(15.754, abs=5e-4)
    assert gb(found[Limit.NETWORK]) == pytest.approx(50.0)
    assert next(iter(found)) == Limit.OWN_NICS


def test_a_pair_that_has_its_nodes_to_itself_may_use_all_nics() -> None:
    found = bounds_of(header("pingpong", node_links("p4d.24xlarge"), 1), record("pingpong", 2, 2))
    assert Limit.OWN_NICS not in {bound.code for bound in found}


def test_a_network_that_may_reduce_makes_its_bound_looser() -> None:
    found = bounds("DGX H100", "allreduce", 64, 8)
    assert gb(found[Limit.NETWORK_REDUCING]) == pytest.approx(400 * 2 * 63 / 64)
    assert found[Limit.NETWORK].kind == "reference"
    assert bounds("DGX H100", "alltoall", 64, 8)[Limit.NETWORK].kind == "hard"


def test_nodes_on_one_nvlink_network_have_no_network_bound() -> None:
    assert set(bounds("Standard_ND128isr_NDR_GB200_v6", "alltoall", 8, 2)) == {Limit.NVLINK_PORT}


@pytest.mark.parametrize(
    ("pattern", "num_nodes", "least", "most"),
    [
        # 2S cross 32 x 200 GB/s; 20 domains send S each to switches that reduce, or 38 S in all to each other
        ("allreduce", 32, 6400 / 2 * 2 * 127 / 128, None),
        ("allreduce", 360, 72000 / 20 * 2 * 1439 / 1440, 72000 / 38 * 2 * 1439 / 1440),
        ("allgather", 360, 72000 / 19 * 1439 / 1440, None),
        # 18 nodes in one domain and 14 in the other: each of 128 ranks sends the share of the other one
        ("alltoall", 32, 6400 / 128 / (2 * 18 / 32 * 14 / 32) * 127 / 128, None),
    ],
)
def test_what_crosses_between_racks_goes_through_their_nics(
    pattern: str, num_nodes: int, least: float, most: float | None
) -> None:
    found = bounds_of(
        header(pattern, node_links("GB200 NVL72"), 4, num_ranks=4 * num_nodes, num_nodes=num_nodes),
        record(pattern, 4 * num_nodes, num_nodes),
    )
    by_name = {bound.name.removeprefix("network of domains"): bound for bound in found}
    own = {name: bound for name, bound in by_name.items() if not bound.name.startswith("NVLink")}
    hard = own.get(", in-network reduction", own[""])
    assert hard.kind == "hard" and gb(hard) == pytest.approx(least)
    assert len(own) == (1 if most is None else 2)
    if most is not None:
        assert own[""].kind == "reference" and gb(own[""]) == pytest.approx(most)


def test_what_leaves_a_chip_that_is_joined_to_its_processor_by_nvlink_crosses_no_pcie() -> None:
    (bound,) = bounds_of(
        header("allreduce", gpu_links("GH200", 1), 1, num_ranks=2, num_nodes=2), record("allreduce", 2, 2)
    )
    assert (bound.code, bound.kind, gb(bound)) == (Limit.C2C, "hard", 450.0)
    assert "450 GB/s" in bound.why and "PCIe" not in bound.why


def test_one_rack_needs_no_network_and_one_node_more_does() -> None:
    names = [set(bounds("GB200 NVL72", "alltoall", 4 * nodes, nodes)) for nodes in (18, 19)]
    assert [Limit.DOMAINS in found for found in names] == [False, True]


def test_a_bound_on_an_unverified_figure_is_unverified() -> None:
    assert not bounds("p5.48xlarge", "pingpong", 2, 2)[Limit.PCIE_PORT].verified
    assert bounds("p5.48xlarge", "allreduce", 16, 2)[Limit.NETWORK].verified


def test_unknown_rates_give_no_bound() -> None:
    unknown = NodeLinks("", 8, "nvswitch")
    assert bounds_of(header("allreduce", unknown), record("allreduce", 16, 2)) == ()
    assert bounds_of(header("allreduce", None), record("allreduce", 8)) == ()
    links = node_links("p4d.24xlarge")
    assert bounds_of(header("barrier", links), record("barrier", 8, bus_factor=None)) == ()
    assert bounds_of(header("allreduce", links), record("allreduce", 1)) == ()


def test_a_foreign_record_without_counted_bytes_is_bound_by_its_factor() -> None:
    foreign = record("allreduce", 8, rank_bytes=None)
    (bound,) = bounds_of(header("allreduce", node_links("p4d.24xlarge")), foreign)
    assert gb(bound) == pytest.approx(300.0)


def test_processes_on_an_instance_are_bound_by_its_network_and_not_by_its_gpus() -> None:
    cpu = header("allreduce", node_links("p4d.24xlarge"), transport="mpi")
    assert {bound.code for bound in bounds_of(cpu, record("allreduce", 16, 2))} == {Limit.NETWORK}
    assert bounds_of(cpu, record("allreduce", 8)) == ()
    pair = replace(cpu, pattern="pingpong")
    assert {bound.code for bound in bounds_of(pair, record("pingpong", 2, 2))} == {Limit.NETWORK}


def test_memory_copies_measured_at_start_are_a_reference_between_their_sizes() -> None:
    points = [[1 << 20, 10e9], [1 << 30, 4e9]]
    cpu = header("allreduce", None, transport="mpi", calibration={"memcpy": points})
    rates = []
    for size in (1 << 10, 1 << 20, 1 << 25, 1 << 30, 1 << 40):
        useful = size * 14 / 8
        (bound,) = bounds_of(cpu, record("allreduce", 8, payload_bytes=size, rank_bytes=useful))
        assert (bound.code, bound.kind) == (Limit.MEMORY_COPY, "reference")
        rates.append(gb(bound))
    assert rates == pytest.approx([10.0, 10.0, 7.0, 4.0, 4.0])


def test_copies_of_host_memory_bound_nothing_that_a_gpu_holds() -> None:
    measured = {"memcpy": [[1 << 20, 10e9]]}
    gpu = header("allreduce", None, transport="mpi_cuda", calibration=measured, facts={"memory": "device"})
    assert bounds_of(gpu, record("allreduce", 8)) == ()


def test_the_floor_is_a_measured_message_times_the_steps() -> None:
    cpu = header("allreduce", None, transport="mpi", calibration={"message_s": 2e-6})
    floor = floor_of(cpu, record("allreduce", 16))
    assert floor is not None
    assert floor.seconds == pytest.approx(8e-6) and floor.kind == FloorKind.REFERENCE
    assert holds(floor.name, "ping-pong", "4 steps")


@pytest.mark.parametrize(
    ("instance", "num_ranks", "num_nodes", "floor"),
    [
        ("p4d.24xlarge", 8, 1, (3 * 0.6e-6, "NVLink latency x 3 steps")),
        ("g6e.48xlarge", 8, 1, (3 * 1.0e-6, "host latency x 3 steps")),
        ("p4d.24xlarge", 2, 2, (2.7e-6, "network latency x 1 step")),
        ("p4d.24xlarge", 16, 2, (4 * 0.6e-6, "NVLink latency x 4 steps")),
        ("p5.48xlarge", 8, 1, (2 * 0.6e-6, "NVLink latency x 2 steps")),
    ],
)
def test_else_the_floor_is_the_smallest_latency_crossed_times_the_steps(
    instance: str, num_ranks: int, num_nodes: int, floor: tuple[float, str]
) -> None:
    found = floor_of(header("allreduce", node_links(instance)), record("allreduce", num_ranks, num_nodes))
    assert found is not None
    assert found.seconds == pytest.approx(floor[0])
    assert (found.name, found.kind) == (floor[1], FloorKind.LINKS)


def test_there_is_no_floor_under_what_overlaps_or_is_unknown() -> None:
    known = header("allreduce", node_links("p4d.24xlarge"))
    assert floor_of(known, record("allreduce", 8, mode="pipelined")) is None
    assert floor_of(known, record("allreduce", 1)) is None
    assert floor_of(header("allreduce", None), record("allreduce", 8)) is None
    assert floor_of(header("allreduce", NodeLinks("", 8, "host")), record("allreduce", 8)) is None


def test_a_copy_is_bound_by_its_pcie_link_as_wired_and_in_practice_by_packets() -> None:
    packets, link = copy_bounds(node_links("g6e.48xlarge"), "host")
    assert (link.code, link.kind) == (Limit.PCIE_PORT, "hard") and gb(link) == pytest.approx(15.754, abs=5e-4)
    assert (packets.code, packets.kind) == (Limit.PCIE_PACKETS, "reference")
    assert gb(packets) == pytest.approx(15.754 * 256 / 280, abs=5e-4)
    assert "15.8 GB/s" in link.why


def test_a_copy_between_peers_is_bound_by_their_links_and_twice_where_both_ways_are_added() -> None:
    (port,) = copy_bounds(node_links("p4d.24xlarge"), "peer")
    (both,) = copy_bounds(node_links("p4d.24xlarge"), "peer", both_added=True)
    assert (gb(port), gb(both)) == (300.0, 600.0)
    assert "adds both" in both.why and "adds" not in port.why
    (pair,) = copy_bounds(node_links("p3dn.24xlarge"), "peer")
    (several,) = copy_bounds(node_links("p3dn.24xlarge"), "peers")
    assert (gb(pair), gb(several)) == (50.0, 150.0)


def test_a_copy_through_the_host_is_bound_by_pcie_whatever_nvlink_there_is() -> None:
    assert gb(copy_bounds(node_links("p4d.24xlarge"), "through host")[-1]) == pytest.approx(15.754, abs=5e-4)
    (c2c,) = copy_bounds(node_links("GB200 NVL72"), "host")
    assert (c2c.code, c2c.kind) == (Limit.C2C, "hard")
    assert copy_bounds(NodeLinks("", 8, "nvswitch"), "peer") == copy_bounds(NodeLinks("", 8, "host"), "host") == ()


def test_groups_on_fewer_nodes_may_have_fewer_phases_than_others_of_their_round() -> None:
    links = NodeLinks("six", 6, "nvswitch", nvlink_bytes_per_s=450e9, num_nics=6, nic_bytes_per_s=50e9)
    (groups,) = rounds(World(7, 6), "groups of 7")  # 6 and 1 ranks of two nodes need a phase more than 4 and 3
    pattern: Pattern = plugins.load("pattern", "broadcast").PATTERN
    of_round = [
        uses_of(links, World(7, 6), HashedRound.of(groups), index, pattern, Shape(7, SIZE), rings=False)
        for index in range(len(groups))
    ]
    assert all([use.algorithm for use in uses] == ["chain", "tree"] for uses in of_round)
    assert all(uses[1].num_bytes == SIZE and uses[1].kind == "nic" for uses in of_round)
