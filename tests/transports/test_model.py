from __future__ import annotations

import pytest

from bench.core import plugins
from bench.core.fabric import Fabric
from bench.core.links import NodeLinks
from bench.core.pattern import Pattern, Shape
from bench.core.program import Exchange, Group, Message
from bench.core.record import Header, Record, Samples
from bench.core.topology import rounds
from bench.core.world import World
from bench.hardware.bounds import bounds_of, floor_of
from bench.hardware.catalogue import instances, node_links
from bench.transports.model import TRANSPORT, FabricModel

P4D = node_links("p4d.24xlarge")
TWO_NODES = World(2, 8)
COLLECTIVES = (
    "allreduce",
    "allgather",
    "reducescatter",
    "alltoall",
    "alltoallv",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
)
GIB = 1 << 30


def pattern(name: str) -> Pattern:
    found: Pattern = plugins.load("pattern", name).PATTERN
    return found


def shape_of(each: Pattern, num_ranks: int, num_bytes: int) -> Shape:
    return Shape(num_ranks, each.payload(num_bytes, Shape(num_ranks, 0)))


def seconds(links: NodeLinks, world: World, name: str, num_bytes: int = GIB, topology: str = "world") -> float:
    each = pattern(name)
    groups = rounds(world, topology)[0]
    shape = shape_of(each, len(groups[0].ranks), num_bytes)
    steps = tuple(each.steps(shape, member) for member in range(shape.num_ranks))
    return max(FabricModel(Fabric(links, world)).simulate(groups, (steps,) * len(groups)))


def judged(links: NodeLinks, world: World, name: str, num_bytes: int) -> tuple[Header, Record, float]:
    """What a modelled run records, and its bus bandwidth (0 where it has none)."""
    each = pattern(name)
    shape = shape_of(each, world.num_ranks, num_bytes)
    took = seconds(links, world, name, num_bytes)
    factor = each.bus_factor(shape)
    record = Record(
        mode="isolated",
        requested_bytes=(num_bytes,),
        payload_bytes=shape.payload_bytes,
        num_ranks=world.num_ranks,
        num_nodes=world.num_nodes,
        bus_factor=factor,
        rank_bytes=each.crossing(shape, world.num_ranks),
        node_bytes=each.crossing(shape, world.num_nodes) if world.num_nodes > 1 else None,
        min_steps=each.min_steps(world.num_ranks),
        modelled=True,
        samples=Samples((took,), loop="virtual"),
    )
    header = Header(
        job="job",
        case=(name,),
        pattern=name,
        transport="model",
        dtype="float32",
        reduce_op="sum",
        root=0,
        direction=None,
        topology="world",
        num_ranks=world.num_ranks,
        num_nodes=world.num_nodes,
        ranks_per_node=world.ranks_per_node,
        clock="virtual",
        modelled=True,
        started="",
        links=links.to_dict(),
    )
    return header, record, shape.payload_bytes * (factor or 0.0) / took


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reducescatter"])
@pytest.mark.parametrize("num_bytes", [1 << 12, 1 << 20, GIB])
def test_a_ring_takes_its_closed_form(name: str, num_bytes: int) -> None:
    links = NodeLinks("ring", 6, "nvswitch", nvlink_bytes_per_s=300e9, peer_s=1e-6)
    steps = (2 if name == "allreduce" else 1) * 5
    shape = shape_of(pattern(name), 6, num_bytes)
    closed = steps * (1e-6 + shape.block_bytes / 300e9)
    took = seconds(links, World(1, 6), name, num_bytes)  # six ranks: no exchange by powers of two
    assert took <= closed * (1 + 1e-3)
    if num_bytes == GIB:
        assert took == pytest.approx(closed, rel=1e-6)


def test_the_fastest_algorithm_is_taken_and_named() -> None:
    links = NodeLinks("ring", 6, "nvswitch", nvlink_bytes_per_s=300e9, peer_s=1e-6)
    each = pattern("allreduce")
    used = []
    for num_bytes in (48, GIB):
        model = FabricModel(Fabric(links, World(1, 6)))
        steps = tuple(each.steps(shape_of(each, 6, num_bytes), member) for member in range(6))
        model.simulate(rounds(World(1, 6), "world")[0], (steps,))
        used.append(model.algorithm_used)
    assert used == ["tree", "ring"]


def test_a_switch_that_reduces_is_used_where_it_is_faster() -> None:
    took = seconds(node_links("p5.48xlarge"), World(1, 8), "allreduce", GIB)
    assert took == pytest.approx(GIB * (1 + 1 / 8) / 450e9, rel=1e-3)


@pytest.mark.thin(4)
@pytest.mark.parametrize("name", [name for name in instances() if node_links(name).peer != "unknown"])
@pytest.mark.parametrize("num_nodes", [1, 2, 3])
def test_no_modelled_figure_is_above_a_hard_bound_or_below_the_floor(name: str, num_nodes: int) -> None:
    links = node_links(name)
    if links.pcie_bytes_per_s is None:
        links = links.with_rates({"pcie": 64e9})  # one instance type's is unknown, and the network is behind it
    if num_nodes * links.gpus < 2 or (num_nodes > 1 and links.nic_bytes_per_s is None):
        return  # one rank sends nothing, and messages to another node need a known network
    for each in COLLECTIVES:
        for num_bytes in (1 << 10, GIB):
            header, record, busbw = judged(links, World(num_nodes, links.gpus), each, num_bytes)
            for bound in bounds_of(header, record):
                if bound.kind == "hard":
                    assert busbw <= bound.bytes_per_s * (1 + 1e-9), (each, num_bytes, bound)
            floor = floor_of(header, record)
            assert floor is not None and record.samples is not None
            assert record.samples.seconds[0] >= floor.seconds * (1 - 1e-9), (each, num_bytes, floor)


def test_an_allreduce_of_two_p4d_stays_below_their_network_bound() -> None:
    header, record, busbw = judged(P4D, TWO_NODES, "allreduce", GIB)
    (network,) = [bound for bound in bounds_of(header, record) if bound.name == "network"]
    assert network.bytes_per_s == pytest.approx(93.75e9)
    assert 0.5 * network.bytes_per_s < busbw < network.bytes_per_s


@pytest.mark.parametrize("name", COLLECTIVES)
def test_half_a_nic_slows_what_crosses_nodes_and_nothing_inside_them(name: str) -> None:
    assert P4D.nic_bytes_per_s is not None
    slow = P4D.with_rates({"nic": P4D.nic_bytes_per_s / 2})
    assert seconds(slow, TWO_NODES, name) > 1.2 * seconds(P4D, TWO_NODES, name)
    assert seconds(slow, TWO_NODES, name, topology="node") == seconds(P4D, TWO_NODES, name, topology="node")


@pytest.mark.parametrize("name", COLLECTIVES)
def test_half_an_nvlink_slows_what_is_inside_nodes_and_nothing_on_rails(name: str) -> None:
    assert P4D.nvlink_bytes_per_s is not None
    slow = P4D.with_rates({"nvlink": P4D.nvlink_bytes_per_s / 2})
    inside = [seconds(links, TWO_NODES, name, topology="node") for links in (slow, P4D)]
    assert inside[0] == pytest.approx(2 * inside[1], rel=0.02)
    rails = [seconds(links, TWO_NODES, name, topology="rail") for links in (slow, P4D)]
    assert rails[0] == rails[1]


def test_an_nvlink_slows_the_allreduce_of_two_nodes_if_it_is_slower_than_their_nics() -> None:
    """Messages inside and between nodes flow at the same time."""
    half, tenth = (P4D.with_rates({"nvlink": rate}) for rate in (150e9, 30e9))
    assert seconds(half, TWO_NODES, "allreduce") == pytest.approx(seconds(P4D, TWO_NODES, "allreduce"), rel=1e-3)
    assert seconds(tenth, TWO_NODES, "allreduce") > 1.5 * seconds(P4D, TWO_NODES, "allreduce")


def test_rails_that_run_together_share_the_nics() -> None:
    each, group = pattern("allreduce"), (Group("rail0", (0, 8)),)
    steps = tuple(each.steps(shape_of(each, 2, GIB), member) for member in range(2))
    alone = FabricModel(Fabric(P4D, TWO_NODES)).simulate(group, (steps,))[0]
    assert seconds(P4D, TWO_NODES, "allreduce", topology="rail") == pytest.approx(2 * alone, rel=1e-3)


@pytest.mark.parametrize("topology", ["world", "rail", "groups of 16"])
@pytest.mark.parametrize("name", ["p4d.24xlarge", "g6e.48xlarge", "p5.48xlarge"])
def test_one_shift_for_all_takes_as_long_as_every_shift(
    name: str, topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    links, world = node_links(name), World(4, node_links(name).gpus)
    took = [seconds(links, world, each, topology=topology) for each in ("alltoall", "gather")]
    monkeypatch.setattr("bench.transports.model.one_shift_for_all", lambda fabric, groups: False)
    assert took == pytest.approx([seconds(links, world, each, topology=topology) for each in ("alltoall", "gather")])


def test_no_bytes_take_the_latency_alone() -> None:
    assert seconds(P4D, World(1, 8), "barrier") == pytest.approx(3 * 0.6e-6)
    assert seconds(P4D, World(2, 1), "barrier") == pytest.approx(2.7e-6)


def test_messages_posted_together_share_their_link_and_pay_one_latency() -> None:
    links = NodeLinks("pair", 2, "host", pcie_bytes_per_s=1e9, host_s=1e-3)
    sender = Exchange(sends=(Message(1, 10**9), Message(1, 10**9)))
    receiver = Exchange(recvs=(Message(0, 10**9), Message(0, 10**9)))
    model = FabricModel(Fabric(links, World(1, 2)))
    assert model.simulate((Group("pair", (0, 1)),), (((sender,), (receiver,)),)) == pytest.approx((2.001,))
    assert model.algorithm_used == "messages"


def test_a_program_of_more_steps_for_some_members_takes_all_of_them() -> None:
    links = NodeLinks("pair", 3, "host", pcie_bytes_per_s=1e9, host_s=1e-3)
    there, back = Exchange(sends=(Message(1, 10**9),)), Exchange(sends=(Message(0, 10**9),))
    steps = ((there, Exchange()), (Exchange(), back), ())
    model = FabricModel(Fabric(links, World(1, 3)))
    assert model.simulate((Group("world", (0, 1, 2)),), (steps,)) == pytest.approx((2.002,))


def test_groups_of_different_work_have_times_of_their_own() -> None:
    links = NodeLinks("four", 4, "host", pcie_bytes_per_s=1e9, host_s=0.0)
    groups = (Group("a", (0, 1)), Group("b", (2, 3)))
    steps = tuple(((Exchange(sends=(Message(1, size),)),), (Exchange(),)) for size in (10**9, 3 * 10**9))
    assert FabricModel(Fabric(links, World(1, 4))).simulate(groups, steps) == pytest.approx((1.0, 3.0))


def test_groups_of_different_sizes_each_take_all_their_steps() -> None:
    links = NodeLinks("five", 5, "host", pcie_bytes_per_s=1e9, host_s=0.0)
    groups = (Group("three", (0, 1, 2)), Group("two", (3, 4)))
    each, size = pattern("allgather"), 6 * 16 * 10**7
    steps = tuple(tuple(each.steps(Shape(n, size), member) for member in range(n)) for n in (3, 2))
    took = FabricModel(Fabric(links, World(1, 5))).simulate(groups, steps)
    assert took == pytest.approx((2 / 3 * size / 1e9, 1 / 2 * size / 1e9))


def test_the_same_run_gives_the_same_figures() -> None:
    assert seconds(P4D, TWO_NODES, "alltoallv") == seconds(P4D, TWO_NODES, "alltoallv")


def test_facts_name_the_instance_and_its_rates() -> None:
    facts = TRANSPORT(Fabric(P4D, TWO_NODES)).facts()
    assert facts["model_instance"] == "p4d.24xlarge"
    assert facts["model_nic"] == "12.5 GB/s"
    assert TRANSPORT.clock == "virtual"
