"""The traffic of one payload follows exactly from that of a smaller one."""

from __future__ import annotations

import pytest

from bench.core import plugins
from bench.core.links import NodeLinks
from bench.core.pattern import Pattern, Shape
from bench.core.program import Group
from bench.core.schedules import algorithms
from bench.core.world import World
from bench.hardware import link_traffic
from bench.hardware.catalogue import instance
from bench.hardware.link_traffic import HashedRound, LinkUse

LINKS: NodeLinks = instance("p4d.24xlarge").links
WORLD = World(3, 4)
ROUNDS = {
    "world": (Group("world", tuple(range(12))),),
    "rails": tuple(Group(f"rail{rail}", tuple(range(rail, 12, 4))) for rail in range(4)),
}


def uses(pattern: Pattern, num_bytes: int, groups: tuple[Group, ...], algorithm: str) -> tuple[LinkUse, ...]:
    shape = Shape(len(groups[0].ranks), num_bytes)
    return link_traffic.uses_of(LINKS, WORLD, HashedRound.of(groups), 0, pattern, shape, True, algorithm)


@pytest.mark.parametrize("groups", ROUNDS)
@pytest.mark.parametrize("name", ["allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "gather"])
def test_a_payload_has_exactly_the_uses_that_its_own_messages_give(
    name: str, groups: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a number of blocks that is odd, or no whole number of elements."""
    pattern: Pattern = plugins.load("pattern", name).PATTERN
    sizes = (12 * 4, 12 * 4 * 5 << 9, 12 << 20, 12 * 4 * 7, 12 * 4 + 4)
    found = {(size, own): uses(pattern, size, ROUNDS[groups], own) for size in sizes for own in algorithms(name)}
    assert any(found.values())
    monkeypatch.setattr(link_traffic, "_unit", lambda pattern, shape: shape)
    assert found == {key: uses(pattern, key[0], ROUNDS[groups], key[1]) for key in found}


def test_messages_of_fixed_sizes_are_not_scaled() -> None:
    shape = Shape(12, 12 << 20)
    assert link_traffic._unit("allreduce", shape).payload_bytes == 12 * 4
    assert link_traffic._unit("pingpong", shape) is shape
    assert link_traffic._unit("allreduce", Shape(12, 12 * 4 + 4)).payload_bytes == 12 * 4 + 4
