"""Groups of a round share schedules: the messages of each group must be those of its own schedule."""

from __future__ import annotations

import numpy as np
import pytest

from bench.core import schedules
from bench.core.fabric import Fabric
from bench.core.flows import alike_groups, one_shift_for_all, phases_of
from bench.core.links import NodeLinks
from bench.core.program import Collective, Group
from bench.core.topology import rounds
from bench.core.world import World

OPS = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "gather", "scatter", "alltoall", "barrier")
MESH = NodeLinks("mesh", 8, "nvlink_mesh", nvlink_bytes_per_s=300e9, pair_bytes_per_s=50e9, nic_bytes_per_s=25e9)
SWITCHED = NodeLinks("switch", 8, "nvswitch", nvlink_bytes_per_s=450e9, nic_bytes_per_s=50e9, nvls=True)


@pytest.mark.parametrize("links", [MESH, SWITCHED], ids=["mesh", "switch"])
@pytest.mark.parametrize("topology", ["node", "rail", "groups of 4", "groups of 3", "groups of 6", "groups of 12"])
@pytest.mark.parametrize(
    "order", ["linear", "interleaved", "5,23,1,0,8,2,9,3,10,4,11,6,12,7,13,14,15,17,16,18,20,19,22,21"]
)
def test_messages_of_a_shared_schedule_are_those_of_each_groups_own(
    links: NodeLinks, topology: str, order: str
) -> None:
    fabric = Fabric(links, World(3, 8))
    (groups,) = rounds(fabric.world, topology, order)
    for op in OPS:
        steps = (Collective(op, 4800, 4800, root=1),) * len(groups[0].ranks)
        program = tuple((step,) for step in steps)
        shared = alike_groups(fabric, groups, (program,) * len(groups))
        assert sorted(number for each in shared for number in each.numbers) == list(range(len(groups)))
        for algorithm in schedules.algorithms(op):
            for each in shared:
                phases = phases_of(fabric, each.first, steps, {op: algorithm}, alike=False)
                own = [phases_of(fabric, groups[k], steps, {op: algorithm}, alike=False) for k in each.numbers]
                assert (phases is None) == all(one is None for one in own)
                for index, phase in enumerate(phases or ()):
                    assert {one[index].repeat for one in own if one} == {phase.repeat}
                    expected = [one[index].flows for one in own if one]
                    assert np.array_equal(each.flows(phase.flows), np.concatenate(expected)), (op, algorithm)


def test_groups_of_one_placement_share_one_schedule_and_those_of_another_do_not() -> None:
    fabric = Fabric(SWITCHED, World(4, 8))
    for topology, num in (("node", 1), ("rail", 1), ("groups of 4", 1), ("groups of 16", 1)):
        (groups,) = rounds(fabric.world, topology)
        assert len(alike_groups(fabric, groups, (((),),) * len(groups))) == num
    split = (Group("inside", (0, 1)), Group("between", (2, 8)), Group("inside too", (9, 10)))
    assert [each.numbers.tolist() for each in alike_groups(fabric, split, (((),),) * 3)] == [[0, 2], [1]]


def test_one_shift_represents_all_if_groups_use_the_same_nodes_in_order_or_none_in_common() -> None:
    fabric = Fabric(SWITCHED, World(4, 8))
    for topology, order, holds in (
        ("world", "linear", True),
        ("rail", "linear", True),
        ("rail", "reverse", True),
        ("groups of 16", "linear", True),
        ("groups of 4", "linear", True),
        ("groups of 16", "interleaved", True),
    ):
        assert one_shift_for_all(fabric, rounds(fabric.world, topology, order)[0]) == holds
    crossed = (Group("a", (0, 8, 16)), Group("b", (9, 1, 17)))
    assert not one_shift_for_all(fabric, crossed)
    apart = (Group("a", (0, 8)), Group("b", (16, 24)), Group("c", (1, 9)))
    assert one_shift_for_all(fabric, apart)
    leaves = NodeLinks("leaf", 8, "host", nic_bytes_per_s=25e9, nodes_per_leaf=2, oversubscription=2.0)
    assert not one_shift_for_all(Fabric(leaves, World(4, 8)), rounds(World(4, 8), "rail")[0])
