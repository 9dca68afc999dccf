"""The history of MAC addresses and of lost carriers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bench.probes import netlink
from bench.probes.netlink import Device


def own(*addresses: str, losses: int | None = 0, name: str = "eth0") -> tuple[int, Device]:
    """The device with index 1, and its index."""
    return 1, Device(name, 1500, "b", tuple(f"{address}/24" for address in addresses), num_carrier_losses=losses)


def history(
    neighbours: Callable[[], Iterable[tuple[int, str, str]]],
    devices: Callable[[], Iterable[tuple[int, Device]]] = lambda: (),
) -> netlink.NetworkHistory:
    return netlink.NetworkHistory(neighbours, devices)


def test_addresses_whose_mac_changes_are_recorded_in_order() -> None:
    first = (1, "10.0.0.1", "a")
    states = iter(([first], [first, (1, "10.0.0.2", "b"), (2, "10.0.0.1", "c")], [(1, "10.0.0.1", "d")], [first]))
    found = history(lambda: next(states))
    assert [found.look(float(now)) for now in range(4)] == [False, False, True, False], "another device's is another"
    assert found.moved() == [("10.0.0.1", ["a", "d"], 2.0)]


def test_a_host_with_many_neighbours_is_not_watched() -> None:
    states = iter(([(1, str(number), "a") for number in range(2000)], [(1, "0", "b")]))
    found = history(lambda: next(states))
    assert not found.look(0.0) and not found.look(1.0) and found.moved() == []


def test_an_address_that_this_host_gets_later_is_recorded_but_not_its_first_addresses() -> None:
    """Without the own addresses, the host that takes another host's address would see no change."""
    states = iter(([(1, "10.0.0.1", "a")], [(1, "10.0.0.1", "a")], [], []))
    mine = iter(([own("10.0.0.2")], [own("10.0.0.2")], [own("10.0.0.2", "10.0.0.1", "10.0.0.9")], [own("10.0.0.2")]))
    found = history(lambda: next(states), lambda: next(mine))
    assert [found.look(float(now)) for now in range(4)] == [False, False, True, False]
    assert found.moved() == [("10.0.0.1", ["a", "b"], 2.0), ("10.0.0.9", ["b"], 2.0)]


def test_only_carriers_that_are_lost_after_the_first_look_are_recorded() -> None:
    states = iter([own("10.0.0.2", losses=num)] for num in (7, 7, 9, 9, 10))
    found = history(lambda: (), lambda: next(states))
    assert [found.look(float(now)) for now in range(5)] == [False, False, True, False, True]
    assert found.carrier_losses() == [netlink.CarrierLoss("eth0", ("10.0.0.2",), 3, 4.0)]
    silent = history(lambda: (), lambda: [own("10.0.0.2", losses=None)])
    assert not silent.look(0.0) and silent.carrier_losses() == [], "the kernel does not count"
