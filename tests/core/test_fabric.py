from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.errors import UsageError
from bench.core.fabric import SWITCH, Fabric
from bench.core.fairness import fair_rates
from bench.core.links import NodeLinks
from bench.core.world import World

GB = 1e9
LINKS = NodeLinks(
    "tester",
    gpus=8,
    peer="nvswitch",
    nvlink_bytes_per_s=300 * GB,
    pcie_bytes_per_s=16 * GB,
    nic_bytes_per_s=10 * GB,
    num_nics=4,
    peer_s=1e-6,
    host_s=2e-6,
    network_s=5e-6,
    sources={"nic": "a leaflet"},
    verified={"nic": False},
)


def fabric(num_nodes: int = 2, ranks_per_node: int = 8, **changes: object) -> Fabric:
    return Fabric(replace(LINKS, **changes), World(num_nodes, ranks_per_node))  # type: ignore[arg-type]


def test_peers_on_a_switch_use_the_nvlink_port_of_each() -> None:
    assert fabric().path(1, 6) == ("nvlink out 1", "nvlink in 6")


@pytest.mark.parametrize("peer", ["host", "pcie_p2p"])
def test_peers_without_nvlink_use_the_pcie_port_of_each(peer: str) -> None:
    assert fabric(peer=peer).path(1, 6) == ("pcie out 1", "pcie in 6")


def test_bridged_neighbours_use_nvlink_and_the_others_pcie() -> None:
    bridged = fabric(peer="nvlink_pairs")
    assert bridged.path(2, 3) == ("nvlink out 2", "nvlink in 3")
    assert bridged.path(1, 2) == ("pcie out 1", "pcie in 2")


def test_a_mesh_limits_each_pair_by_its_own_links() -> None:
    mesh = fabric(1, peer="nvlink_mesh", nvlink_bytes_per_s=150 * GB, pair_bytes_per_s=50 * GB, peer_s=0.0)
    assert mesh.time_s([(0, 1, 50 * GB)]) == pytest.approx(1.0)
    assert mesh.time_s([(0, peer, 50 * GB) for peer in range(1, 8)]) == pytest.approx(7 * 50 / 150)


def test_a_message_to_another_node_crosses_both_pcie_links_and_both_nics() -> None:
    assert fabric().path(3, 12) == ("pcie out 3", "nic out 1", "nic in 6", "pcie in 12")


def test_nodes_that_one_nvswitch_network_joins_need_no_nic() -> None:
    joined = fabric(4, nvlink_nodes=2)
    assert joined.path(0, 15) == ("nvlink out 0", "nvlink in 15")
    assert joined.path(8, 16) == ("pcie out 8", "nic out 4", "nic in 8", "pcie in 16")


def test_processes_communicate_in_memory_and_leave_through_the_nic() -> None:
    node = fabric(2, 2, peer="memory", memory_bytes_per_s=5 * GB, num_nics=1)
    assert node.path(0, 1) == ("memory out 0", "memory in 1")
    assert node.path(0, 2) == ("nic out 0", "nic in 1")


def test_ranks_share_nics_as_evenly_as_possible() -> None:
    names = [fabric().path(rank, 8)[1] for rank in range(8)]
    assert names == [f"nic out {rank // 2}" for rank in range(8)]


def test_a_rank_with_several_nics_uses_them_all() -> None:
    many = fabric(2, 2, pcie_bytes_per_s=100 * GB, network_s=0.0)
    assert many.time_s([(0, 2, 20 * GB)]) == pytest.approx(1.0)


def test_flows_that_share_a_nic_get_half_of_it_and_others_are_unaffected() -> None:
    times = fabric(network_s=0.0).times_s([(0, 8, 10 * GB), (1, 9, 10 * GB), (2, 10, 10 * GB)])
    assert times == pytest.approx([2.0, 2.0, 1.0])


def test_a_flow_that_has_ended_leaves_its_share_to_the_others() -> None:
    times = fabric(network_s=0.0).times_s([(0, 8, 10 * GB), (1, 9, 30 * GB)])
    assert times == pytest.approx([2.0, 4.0])


def test_both_directions_of_a_link_are_independent() -> None:
    assert fabric(peer_s=0.0).time_s([(0, 1, 300 * GB), (1, 0, 300 * GB)]) == pytest.approx(1.0)


def test_an_empty_message_takes_only_the_latency_of_its_path() -> None:
    times = fabric().times_s([(0, 1, 0.0), (0, 8, 0.0), (3, 3, 1e12)])
    assert times == pytest.approx([1e-6, 5e-6, 0.0])
    assert fabric(peer="host").time_s([(0, 1, 0.0)]) == pytest.approx(2e-6)
    assert fabric().time_s([]) == 0.0


def test_latency_adds_to_the_time_of_the_bytes() -> None:
    assert fabric().time_s([(0, 1, 300.0)]) == pytest.approx(1e-6 + 1e-9)


def test_the_switch_is_reached_by_one_port_only() -> None:
    assert fabric().path(2, SWITCH) == ("nvlink out 2",)
    assert fabric().path(SWITCH, 2) == ("nvlink in 2",)


def test_times_are_proportional_to_the_size_and_deterministic() -> None:
    one = fabric(network_s=0.0, peer_s=0.0)
    flows = [(0, 8, 10.0), (1, 9, 30.0), (1, 0, 7.0)]
    first = one.times_s(flows)
    assert one.times_s([(a, b, 1e6 * size) for a, b, size in flows]) == pytest.approx(1e6 * first)
    assert one.times_s(flows).tolist() == first.tolist()


def test_an_unknown_rate_is_refused_only_when_it_is_needed() -> None:
    unknown = fabric(nic_bytes_per_s=None)
    assert unknown.time_s([(0, 1, 1.0)]) > 0
    with pytest.raises(UsageError, match=r"tester.*--links nic="):
        unknown.time_s([(0, 8, 1.0)])
    with pytest.raises(UsageError, match="'network_s'"):
        fabric(network_s=None).time_s([(0, 8, 1.0)])


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(UsageError, match=r"tester .*8 .*9"):
        fabric(1, 9)


def test_links_survive_json_and_later_versions() -> None:
    plain = json.loads(json.dumps(LINKS.to_dict()))
    assert NodeLinks.from_dict(plain) == LINKS
    assert NodeLinks.from_dict({**plain, "of_a_later_version": 1}) == LINKS


def test_given_rates_count_as_known() -> None:
    changed = LINKS.with_rates({"nic": 1.0, "memory": 2.0})
    assert (changed.nic_bytes_per_s, changed.memory_bytes_per_s, changed.num_nics) == (1.0, 2.0, 4)
    assert changed.verified["nic"] is True
    assert changed.sources["network"].startswith("given")
    assert LINKS.nic_bytes_per_s == 10 * GB


def test_a_given_nic_of_a_node_without_known_nics_is_one() -> None:
    assert NodeLinks("", 4, "memory").with_rates({"nic": 1.0}).num_nics == 1


def test_an_unknown_link_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"'nvlnk'.*'nvlink'"):
        LINKS.with_rates({"nvlnk": 1.0})
    with pytest.raises(UsageError, match="'nvswitch'"):
        replace(LINKS, peer="nvswitsh")


NUM_LINKS = 5


@settings(deadline=None)
@given(
    paths=st.lists(st.sets(st.integers(0, NUM_LINKS - 1), min_size=1, max_size=3), min_size=1, max_size=12),
    capacity=st.lists(st.integers(1, 100), min_size=NUM_LINKS, max_size=NUM_LINKS),
)
def test_shares_are_max_min_fair(paths: list[set[int]], capacity: list[int]) -> None:
    table = np.array([(sorted(path) + [NUM_LINKS] * 3)[:3] for path in paths])
    rates = fair_rates(table, np.array([*capacity, np.inf], dtype=float))
    load = [sum(rate for path, rate in zip(paths, rates, strict=True) if link in path) for link in range(NUM_LINKS)]
    assert all(used <= most * (1 + 1e-9) for used, most in zip(load, capacity, strict=True))
    for path, rate in zip(paths, rates, strict=True):
        # Each flow has a bottleneck: a full link on which no other flow is faster.
        assert any(
            load[link] >= capacity[link] * (1 - 1e-9)
            and all(other <= rate * (1 + 1e-9) for at, other in zip(paths, rates, strict=True) if link in at)
            for link in path
        )
