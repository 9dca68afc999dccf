"""Clocks: whatever the offset, the drift and the delays, the truth lies inside the stated bound."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.results.clocks import MAX_DRIFT, Clock, Offset, RoundTrip, is_enough, offset_of, tree

OFFSETS = st.floats(-1e6, 1e6)
DRIFTS = st.floats(-5e-4, 5e-4)
DELAYS = st.floats(1e-7, 1e-2)
WAYS = st.lists(st.tuples(DELAYS, DELAYS), min_size=1, max_size=6)  # each message's way there and back
ROUNDING_S = 1e-8

Reading = Callable[[float], float]
Ways = list[tuple[float, float]]


def drifting(offset_s: float, drift: float) -> Reading:
    """What a clock reads at the reference's time."""
    return lambda time_s: time_s + offset_s + drift * time_s


def burst(begin_s: float, ways: Ways, client: Reading, parent: Reading = float) -> list[RoundTrip]:
    """Round trips one after the other; true time is the reference's."""
    trips, now_s = [], begin_s
    for there_s, back_s in ways:
        trips.append(RoundTrip(parent(now_s), client(now_s + there_s), parent(now_s + there_s + back_s)))
        now_s += there_s + back_s + 1e-6
    return trips


def off(found: Offset, client: Reading) -> float:
    """By how much a stated offset is wrong."""
    return abs(found.offset_s - (client(found.at_s) - found.at_s))


@given(OFFSETS, DRIFTS, WAYS)
def test_the_offset_lies_inside_its_bound(offset_s: float, drift: float, ways: Ways) -> None:
    client = drifting(offset_s, drift)
    found = offset_of(burst(50.0, ways, client))
    assert off(found, client) <= found.bound_s + ROUNDING_S
    shortest_s = min(map(sum, ways))
    assert found.bound_s <= shortest_s / 2 * (1 + 3 * MAX_DRIFT) + ROUNDING_S


@given(OFFSETS, DRIFTS, st.lists(WAYS, min_size=1, max_size=5), st.floats(0.01, 60), st.floats(-1, 2))
def test_a_fitted_clock_lies_inside_its_bound_between_and_beyond_the_measurements(
    offset_s: float, drift: float, bursts: list[Ways], apart_s: float, where: float
) -> None:
    client = drifting(offset_s, drift)
    clock = Clock(tuple(offset_of(burst(k * apart_s, ways, client)) for k, ways in enumerate(bursts)))
    time_s = where * apart_s * len(bursts)
    assert off(clock.at(time_s), client) <= clock.at(time_s).bound_s + ROUNDING_S
    assert abs(clock.drift - drift) <= clock.drift_bound + 1e-6
    found_s, bound_s = clock.to_reference(client(time_s))
    assert abs(found_s - time_s) <= bound_s + ROUNDING_S


@given(st.lists(st.tuples(OFFSETS, DRIFTS, WAYS, WAYS), min_size=1, max_size=4), st.floats(0.1, 30))
def test_along_a_tree_bounds_hold(hosts: list[tuple[float, float, Ways, Ways]], apart_s: float) -> None:
    readings: list[Reading] = [float] + [drifting(offset_s, drift) for offset_s, drift, _, _ in hosts]
    clocks = {0: Clock()}
    for round_ in tree(len(readings)):
        for parent, client in round_:
            ways = hosts[client - 1][2:]
            clocks[client] = Clock(
                tuple(
                    offset_of(burst(k * apart_s, each, readings[client], readings[parent]), clocks[parent])
                    for k, each in enumerate(ways)
                )
            )
    for host, reading in enumerate(readings):
        found = clocks[host].at(apart_s / 2)
        assert off(found, reading) <= found.bound_s + ROUNDING_S


def test_along_a_tree_bounds_add() -> None:
    clocks, readings = {0: Clock()}, [drifting(100.0 * host, 0.0) for host in range(8)]
    for round_ in tree(8):
        for parent, client in round_:
            trips = burst(0.0, [(1e-4, 1e-4)], readings[client], readings[parent])
            clocks[client] = Clock((offset_of(trips, clocks[parent]),))
    bounds = [clocks[host].at(1e-4).bound_s for host in range(8)]
    num_steps = [host.bit_count() for host in range(8)]
    assert bounds == pytest.approx([1e-4 * num for num in num_steps], rel=0.01)


def test_a_constant_asymmetry_is_inside_the_bound_and_nothing_finds_it() -> None:
    there_s, back_s = 3e-3, 1e-3
    client = drifting(7.0, 0.0)
    for num in (1, 100):
        found = offset_of(burst(0.0, [(there_s, back_s)] * num, client))
        assert found.offset_s - 7.0 == pytest.approx((there_s - back_s) / 2, abs=1e-6)
        assert found.bound_s == pytest.approx((there_s + back_s) / 2, abs=1e-5)


def test_one_short_round_trip_among_long_ones_decides() -> None:
    client = drifting(-3.0, 1e-4)
    found = offset_of(burst(0.0, [(4e-3, 1e-3), (2e-5, 1e-5), (1e-3, 6e-3)], client))
    assert found.bound_s < 2e-5
    assert found.at_s == pytest.approx(5e-3, abs=1e-4)


def test_bounds_grow_with_the_time_since_the_last_measurement() -> None:
    clock = Clock((Offset(0.0, 5.0, 1e-6), Offset(1.0, 5.00005, 1e-6)))
    assert clock.drift == pytest.approx(5e-5)
    bounds = [clock.at(time_s).bound_s for time_s in (0.5, 1.0, 2.0, 10.0, 100.0)]
    assert bounds == sorted(bounds)
    assert bounds[0] == pytest.approx(1e-6)
    assert bounds[-1] > 1e-4
    alone = Clock((Offset(0.0, 5.0, 1e-6),))
    assert alone.at(10.0).bound_s == pytest.approx(1e-6 + 10 * MAX_DRIFT)
    assert alone.drift_bound == MAX_DRIFT


def test_a_drift_that_changes_widens_the_bound() -> None:
    bent = Clock(tuple(Offset(float(k), abs(k - 5) * 1e-4, 1e-6) for k in range(11)))
    assert bent.at(5.0).bound_s > 1e-4
    assert abs(bent.at(5.0).offset_s) <= bent.at(5.0).bound_s


def test_a_clock_that_was_set_between_two_messages_is_told() -> None:
    trips = burst(0.0, [(1e-5, 1e-5)], drifting(0.0, 0.0)) + burst(1e-3, [(1e-5, 1e-5)], drifting(1.0, 0.0))
    with pytest.raises(ValueError, match="contradict"):
        offset_of(trips)
    with pytest.raises(ValueError, match="round trip"):
        offset_of([])


def test_a_burst_ends_when_the_best_round_trip_has_been_met_again() -> None:
    assert not is_enough([1.0, 1.0], least=3, most=9)
    assert is_enough([1.0, 5.0, 1.09], least=3, most=9)
    assert not is_enough([1.0, 5.0, 1.2], least=3, most=9)
    assert is_enough([1.0] + [5.0] * 8, least=3, most=9)


@given(st.integers(1, 300))
def test_the_tree_compares_every_clock_once_with_one_that_is_known(num: int) -> None:
    known = {0}
    rounds = tree(num)
    for round_ in rounds:
        ranks = [rank for pair in round_ for rank in pair]
        assert len(ranks) == len(set(ranks)), "pairs of a round are disjoint"
        assert {parent for parent, _ in round_} <= known
        known |= {client for _, client in round_}
    assert known == set(range(num))
    assert len(rounds) == math.ceil(math.log2(num))
