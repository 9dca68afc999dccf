"""The history of neighbours' MAC addresses."""

from __future__ import annotations

from bench.probes import netlink


def test_addresses_whose_mac_changes_are_recorded_in_order() -> None:
    states = iter(({"10.0.0.1": "a"}, {"10.0.0.1": "a", "10.0.0.2": "b"}, {"10.0.0.1": "c"}, {"10.0.0.1": "a"}))
    history = netlink.NeighbourHistory(lambda: next(states))
    assert [history.look() for _ in range(4)] == [False, False, True, False]
    assert history.moved() == {"10.0.0.1": ["a", "c"]}
