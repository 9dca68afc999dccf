"""Programs at their own pace on shared links: times that follow from the links by hand."""

from __future__ import annotations

import pytest

from bench.core.fabric import Fabric
from bench.core.links import NodeLinks
from bench.core.schedules import Phase, table
from bench.core.streams import pass_times_s
from bench.core.world import World

GB = 10**9
# Two ranks of a node share its one NIC of 1 GB/s.
LINKS = NodeLinks(
    "test", 2, "memory", nic_bytes_per_s=GB, num_nics=1, memory_bytes_per_s=10 * GB, host_s=0.0, network_s=0.0
)


def one(*flows: tuple[int, int, float], repeat: int = 1) -> list[Phase]:
    return [Phase(repeat, table(flows))]


def test_a_program_alone_takes_the_time_of_its_links() -> None:
    assert pass_times_s(Fabric(LINKS, World(2, 2)), [one((0, 2, GB), repeat=3)]) == [pytest.approx(3.0)]


def test_two_programs_on_one_nic_get_half_of_it_each() -> None:
    fabric = Fabric(LINKS, World(2, 2))
    assert pass_times_s(fabric, [one((0, 2, GB)), one((1, 3, GB / 100))]) == pytest.approx([2.0, 0.02])


def test_programs_on_separate_nics_do_not_slow_each_other_down() -> None:
    fabric = Fabric(LINKS, World(4, 1))
    assert pass_times_s(fabric, [one((0, 1, GB)), one((2, 3, GB))]) == [1.0, 1.0]


def test_sharing_during_part_of_a_pass_costs_that_part() -> None:
    # The other program is a second on the network (two while it shares), then five tenths inside its node.
    other = [*one((1, 3, GB)), *one((1, 0, 5 * GB))]
    alone = pass_times_s(Fabric(LINKS, World(2, 2)), [other])
    assert alone == [pytest.approx(1.5)]
    ours, theirs = pass_times_s(Fabric(LINKS, World(2, 2)), [one((0, 2, GB / 1000)), other])
    assert theirs == pytest.approx(2.5, rel=0.01)
    assert ours == pytest.approx((2.0 + 0.5) / (1000 + 500), rel=0.01)  # passes at half and at full rate


def test_during_a_latency_the_link_is_free_for_others() -> None:
    links = NodeLinks("test", 2, "memory", nic_bytes_per_s=GB, num_nics=1, memory_bytes_per_s=GB, network_s=1.0)
    alone = pass_times_s(Fabric(links, World(2, 2)), [one((0, 2, GB))])
    both = pass_times_s(Fabric(links, World(2, 2)), [one((0, 2, GB)), one((1, 3, GB))])
    assert alone == pytest.approx([2.0])
    assert both == pytest.approx([3.0, 3.0])


def test_a_program_that_sends_nothing_takes_no_time() -> None:
    assert pass_times_s(Fabric(LINKS, World(2, 2)), [[], one((0, 2, GB))]) == [0.0, pytest.approx(1.0)]
