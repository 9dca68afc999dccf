"""The history of the MAC addresses of neighbours and of own addresses."""

from __future__ import annotations

from bench.probes import netlink


def test_addresses_whose_mac_changes_are_recorded_in_order() -> None:
    first = (1, "10.0.0.1", "a")
    states = iter(([first], [first, (1, "10.0.0.2", "b"), (2, "10.0.0.1", "c")], [(1, "10.0.0.1", "d")], [first]))
    history = netlink.AddressHistory(lambda: next(states), lambda: ())
    assert [history.look(float(now)) for now in range(4)] == [False, False, True, False], "another device's is another"
    assert history.moved() == [("10.0.0.1", ["a", "d"], 2.0)]


def test_a_host_with_many_neighbours_is_not_watched() -> None:
    states = iter(([(1, str(number), "a") for number in range(2000)], [(1, "0", "b")]))
    history = netlink.AddressHistory(lambda: next(states), lambda: ())
    assert not history.look(0.0) and not history.look(1.0) and history.moved() == []


def test_an_address_that_this_host_gets_later_is_recorded_but_not_its_first_addresses() -> None:
    """Without the own addresses, the host that takes another host's address would see no change."""
    peer, own = (1, "10.0.0.1", "a"), (1, "10.0.0.2", "b")
    states = iter(([peer], [peer], [], []))
    mine = iter(([own], [own], [own, (1, "10.0.0.1", "b"), (1, "10.0.0.9", "b")], [own]))
    history = netlink.AddressHistory(lambda: next(states), lambda: next(mine))
    assert [history.look(float(now)) for now in range(4)] == [False, False, True, False]
    assert history.moved() == [("10.0.0.1", ["a", "b"], 2.0), ("10.0.0.9", ["b"], 2.0)]
