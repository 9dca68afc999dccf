"""Classes of equal messages: the times are those of all messages one by one, to the last bit."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bench.core import loads
from bench.core.fabric import Fabric
from bench.core.fairness import completions
from bench.core.flow_classes import classes_of, regular_class
from bench.core.links import NodeLinks
from bench.core.schedules import Call, algorithms, schedule
from bench.core.world import World
from bench.hardware import catalogue

NODES = [catalogue.node_links(name) for name in ("p4d", "p5", "g6e", "p3.16xlarge", "g5.12xlarge")]
SHARED = NodeLinks(
    "shared", 8, "host", pcie_bytes_per_s=32e9, nic_bytes_per_s=25e9, num_nics=2, gpus_per_pcie_switch=4, peer_s=1e-6,
    host_s=2e-6, network_s=5e-6, nodes_per_leaf=2, oversubscription=3.0,
)  # fmt: skip


@pytest.mark.parametrize("links", [*NODES, SHARED], ids=lambda links: links.instance)
@pytest.mark.parametrize("op", ["allreduce", "allgather", "broadcast", "scatter", "alltoall"])
def test_every_algorithm_takes_the_time_of_all_its_messages(links: NodeLinks, op: str) -> None:
    """Both calculations of core/loads.py: by classes, and message by message."""
    for nodes in (1, 3, 4):
        fabric = Fabric(links, World(nodes, links.gpus))
        ranks = tuple(range(fabric.world.num_ranks))
        call = Call(ranks, fabric.ranks_per_domain, 1.0, reduces=links.reduces, alike=fabric.alike, mesh=links.mesh)
        for name in algorithms(op):
            for phase in schedule(op, name, call) or []:
                if len(phase.flows):
                    assert loads.of_phases(fabric, [phase])[0].lines == loads._load(fabric, phase).lines
                    assert loads.of_phases(fabric, [phase])[0].by_kind == loads._load(fabric, phase).by_kind


def test_messages_in_any_order_over_any_links_take_the_same_time() -> None:
    rng = random.Random(7)
    for _ in range(60):
        num_links, num_flows = rng.randint(1, 8), rng.randint(1, 20)
        kind_of = [rng.randrange(3) for _ in range(num_links)]
        rates = [rng.choice((1.0, 3.0, 7.0)) for _ in range(3)]
        paths = [tuple(rng.sample(range(num_links), rng.randint(1, min(3, num_links)))) for _ in range(num_flows)]
        sizes = [rng.choice((0.25, 1.0)) for _ in range(num_flows)]
        found, numbers = classes_of(paths, sizes, kind_of, sizes)
        padded = np.array([[*path, *[num_links] * (3 - len(path))] for path in paths])
        capacity = np.array([*(rates[kind] for kind in kind_of), np.inf])
        times = found.completions(rates)
        expected = completions(padded, capacity, np.array(sizes))
        assert [times[number] for number in numbers] == pytest.approx(expected.tolist(), rel=1e-12)


def test_messages_alike_form_one_class_and_others_do_not() -> None:
    kinds = np.array([0, 0, 1, 1, -1])
    alike = np.array([[0, 2, 4], [1, 3, 4]])
    found = regular_class(alike, kinds, 1.0)
    assert found is not None and found.crossings == (((0, 1),), ((0, 1),))
    assert regular_class(np.array([[0, 2, 4], [1, 2, 4], [1, 3, 4]]), kinds, 1.0) is None  # links with one and two
    assert regular_class(np.array([[0, 2, 4], [1, 4, 4]]), kinds, 1.0) is None  # other kinds of links
    several, _ = classes_of([(0, 2), (1, 2), (1, 3)], ["same"] * 3, kinds.tolist(), [1.0] * 3)
    assert len(several.num_bytes) == 3
