"""Loads of a schedule: what each link carries against closed forms, and times against the model transport's."""

from __future__ import annotations

import resource
import sys
from dataclasses import replace

import pytest

from bench.core import loads, schedules
from bench.core.fabric import Fabric
from bench.core.links import NodeLinks
from bench.core.loads import Load, ideal_s
from bench.core.program import Collective, Group
from bench.core.schedules import Phase, table
from bench.core.world import World
from bench.hardware import catalogue
from bench.transports.model import FabricModel

GIB = 1 << 30
P4D, P5 = catalogue.node_links("p4d.24xlarge"), catalogue.node_links("p5.48xlarge")
NODES = {"p4d": P4D, "p5": P5, "g6e": catalogue.node_links("g6e.48xlarge"), "p3": catalogue.node_links("p3.16xlarge")}


def total(found: tuple[Load, ...] | None, kind: str) -> float:
    """Seconds per byte of payload that the busiest link of a kind needs in all."""
    assert found is not None
    return sum(load.repeat * load.by_kind.get(kind, 0.0) for load in found)


@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_a_ring_sends_its_closed_form_through_every_port(nodes: int) -> None:
    num = 8 * nodes
    found = loads.loads(Fabric(P4D, World(nodes, 8)), "allreduce", "ring")
    node = 2 * (num - 1) / num  # each ring passes everything but a block from node to node, twice
    assert total(found, "nic") == pytest.approx(node / (4 * 12.5e9))
    assert total(found, "nvlink") == pytest.approx(node * 7 / 8 / 300e9)  # of 8 rings one leaves the node here
    assert total(found, "pcie") == pytest.approx(node / 8 / 15.753846e9, rel=1e-6)


@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_a_hierarchy_sends_its_closed_form_through_every_port(nodes: int) -> None:
    found = loads.loads(Fabric(P4D, World(nodes, 8)), "allreduce", "hierarchical")
    assert total(found, "nvlink") == pytest.approx(2 * 7 / 8 / 300e9)
    assert total(found, "nic") == pytest.approx(2 * (nodes - 1) / nodes / 8 * 2 / 12.5e9)  # two GPUs share a NIC


def test_a_tree_sends_everything_once_per_round() -> None:
    found = loads.loads(Fabric(P4D, World(1, 8)), "broadcast", "tree")
    assert total(found, "nvlink") == pytest.approx(3 / 300e9)


@pytest.mark.parametrize("nodes", [2, 8])
def test_pieces_overlap_node_and_network(nodes: int) -> None:
    found = loads.loads(Fabric(P5, World(nodes, 8)), "allreduce", "pipelined")
    network = 2 * (nodes - 1) / nodes / 8 / 50e9
    inside = (1 + 1 / 8) / 450e9
    assert total(found, "nic") == pytest.approx(network) and total(found, "nvls") == pytest.approx(inside)
    assert found is not None
    assert ideal_s(found, 64 * GIB) == pytest.approx(64 * GIB * max(network, inside), rel=1e-3)


@pytest.mark.parametrize(("nodes", "share"), [(2, 1.0), (3, 1.5), (5, 2.0), (8, 2.0), (64, 2.0)])
def test_double_trees_send_their_closed_form_between_nodes(nodes: int, share: float) -> None:
    found = loads.loads(Fabric(P5, World(nodes, 8)), "allreduce", "double_tree")
    assert total(found, "nic") * 8 * 50e9 == pytest.approx(share)
    assert total(found, "nvls") * 450e9 == pytest.approx(1 + 1 / 8)


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 16, 31, 100])
def test_each_node_is_inside_at_most_one_of_two_trees(nodes: int) -> None:
    edges = schedules._tree_edges(nodes)
    assert len(edges) == 2 * (nodes - 1)
    for tree in (edges[: nodes - 1], edges[nodes - 1 :]):
        assert len({child for child, _ in tree}) == nodes - 1  # each node but the root has one parent
        assert all(sum(parent == node for _, parent in tree) <= 2 for node in range(nodes))
    first, second = ({parent for _, parent in tree} for tree in (edges[: nodes - 1], edges[nodes - 1 :]))
    assert len(first & second) <= 1 + nodes % 2


@pytest.mark.parametrize("num", [2, 4, 5, 8])
def test_an_alltoall_loads_all_links_of_a_mesh_alike_and_rings_several(num: int) -> None:
    rate = 50e9
    port = rate * (num - 1)
    mesh = NodeLinks("mesh", num, "infinity_fabric", nvlink_bytes_per_s=port, pair_bytes_per_s=rate, peer_s=1e-6)
    fabric = Fabric(mesh, World(1, num))
    at_once, pairwise = (loads.loads(fabric, "alltoall", name) for name in ("at_once", "pairwise"))
    assert total(at_once, "nvlink") * port * num / (num - 1) == pytest.approx(1)
    assert total(pairwise, "nvlink") >= total(at_once, "nvlink") * (1 - 1e-9)
    ring = total(loads.loads(fabric, "allreduce", "ring"), "nvlink") * port * num / (num - 1) / 2
    assert 1 <= ring * (1 + 1e-9) < max(2, num / 2)  # one ring alone would need num - 1


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize("op", ["allreduce", "allgather", "reducescatter", "broadcast", "gather", "alltoall"])
@pytest.mark.parametrize("size", [8, 1 << 17, GIB])
def test_the_best_algorithm_takes_the_time_of_the_model_transport(name: str, nodes: int, op: str, size: int) -> None:
    fabric = Fabric(NODES[name], World(nodes, 8))
    ranks = 8 * nodes
    size -= size % ranks
    call = Collective(op, size, size)
    group = Group("world", tuple(range(ranks)))
    modelled = FabricModel(fabric).simulate((group,), (((call,),) * ranks,))[0]
    found = [loads.loads(fabric, op, each) for each in schedules.algorithms(op)]
    assert min(ideal_s(each, size) for each in found if each is not None) == pytest.approx(modelled, rel=1e-6)


def test_half_an_uplink_takes_twice_as_long_and_one_leaf_is_unaffected() -> None:
    def seconds(oversubscription: float, nodes: int) -> float:
        tree = replace(P4D, nodes_per_leaf=4, oversubscription=oversubscription)
        found = loads.loads(Fabric(tree, World(nodes, 8)), "alltoall", "pairwise")
        assert found is not None
        return ideal_s(found, GIB)

    assert seconds(4.0, 4) == seconds(1.0, 4)
    assert seconds(8.0, 8) > 1.9 * seconds(4.0, 8) > 1.9 * seconds(1.0, 8)


def test_gpus_behind_one_pcie_switch_share_its_link() -> None:
    card = NodeLinks("cards", 8, "pcie_p2p", pcie_bytes_per_s=32e9, host_s=1e-6)
    shared = replace(card, gpus_per_pcie_switch=4)
    across, within = ((0, 4, 1.0), (1, 5, 1.0)), ((0, 1, 1.0), (2, 3, 1.0))
    for flows, times in ((across, 2), (within, 1)):
        alone, both = (
            Fabric(links, World(1, 8)).time_s([(a, b, GIB) for a, b, _ in flows]) for links in (card, shared)
        )
        assert both - 1e-6 == pytest.approx(times * (alone - 1e-6))
    (found,) = loads.of_phases(Fabric(shared, World(1, 8)), [Phase(1, table(across))])
    assert found.by_kind["host"] == pytest.approx(2 / 32e9)


def test_lines_below_another_are_dropped_and_the_envelope_stays() -> None:
    fabric = Fabric(P4D, World(2, 8))
    flows = ((0, 1, 1.0), (2, 3, 1.0), (4, 12, 1e-6), (8, 9, 0.0))
    (found,) = loads.of_phases(fabric, [Phase(3, table(flows))])
    assert len(found.lines) == 2 and found.repeat == 3
    for size in (0, 100, 1 << 20, GIB):
        assert found.seconds(size) == pytest.approx(fabric.time_s([(a, b, size * part) for a, b, part in flows]))


def test_a_mesh_uses_all_its_links_at_once() -> None:
    mesh = NodeLinks("mesh", 4, "nvlink_mesh", nvlink_bytes_per_s=150e9, pair_bytes_per_s=50e9, peer_s=1e-6)
    found = loads.loads(Fabric(mesh, World(1, 4)), "allreduce", "direct")
    assert found is not None and ideal_s(found, GIB) == pytest.approx(2 * (2e-6 + GIB / 4 / 50e9))
    assert loads.loads(Fabric(P4D, World(1, 8)), "allreduce", "direct") is None


@pytest.mark.slow
def test_sixteen_thousand_gpus_and_all_algorithms_stay_below_a_gigabyte() -> None:
    fabric = Fabric(P5, World(2048, 8))
    for name in schedules.algorithms("allreduce"):
        found = loads.loads(fabric, "allreduce", name)
        assert found is None or all(len(load.lines) < 64 for load in found)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    assert peak < 1e9
