"""Clocks of several hosts: how far each is from the reference, how fast it drifts, and how well that is known.

An offset is a clock's reading less the reference's at the same moment. Messages there and back bound it (SKaMPI; Hunold
and Carpen-Amarie, ReproMPI): the reference reads s0, sends, the client reads t and answers, the reference reads s1, so
t - s1 <= offset <= t - s0. Which part of s1 - s0 was the way there can not be told from such readings: a constant
asymmetry of the way is inside the bound, half of the best round trip, and no number of messages lessens it.

Everything here is arithmetic on readings in seconds; measuring is rank/clocks.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

# Quartz is within 1e-4 of its frequency, and Linux steers it by 5e-4 at most: no two clocks part faster than this.
MAX_DRIFT = 1.2e-3
# How much a drift may have changed since a clock was last compared: temperature moves quartz by less.
WANDER = 1e-6
# A round trip within this of the best one so far is as good: more of them would tell little more.
GOOD_ENOUGH = 1.10


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """Three readings: the reference's when it sent, the client's on arrival, the reference's when the answer came."""

    sent_s: float
    client_s: float
    back_s: float


@dataclass(frozen=True, slots=True)
class Offset:
    """A clock less the reference at the reference's time `at_s`: `offset_s`, wrong by `bound_s` at most."""

    at_s: float
    offset_s: float
    bound_s: float


def is_enough(took_s: Sequence[float], least: int, most: int) -> bool:
    """Can a burst end? After `most` round trips, or `least` with the latest about as short as the best before it."""
    if len(took_s) < least:
        return False
    return len(took_s) >= most or took_s[-1] <= GOOD_ENOUGH * min(took_s[:-1])


@dataclass(frozen=True)
class Clock:
    """A clock that drifts linearly, from offsets spread in time: least squares, weights 1 / bound^2.

    A fitted value is a weighted sum of the measured offsets, so it is wrong by the sum of |weight| x bound at most: the
    bound grows by itself with the distance from the measurements. Where an offset lies off the line by more than its
    own bound the drift is not constant, and the excess is added; outside the measurements so is WANDER for each second.
    Without any offset it is the reference itself.
    """

    offsets: tuple[Offset, ...] = ()

    @property
    def drift(self) -> float:
        """Seconds per second by which this clock gains on the reference."""
        return self._fit.drift if self.offsets else 0.0

    @property
    def drift_bound(self) -> float:
        """The most by which `drift` can be wrong, if it is constant."""
        if not self.offsets:
            return 0.0
        fit = self._fit
        return float(np.abs(fit.slopes) @ (fit.bounds + fit.bent_s)) if fit.slopes.any() else MAX_DRIFT

    def at(self, at_s: float) -> Offset:
        """The offset at the reference's time `at_s`."""
        if not self.offsets:
            return Offset(at_s, 0.0, 0.0)
        fit, times = self._fit, [each.at_s for each in self.offsets]
        away_s = max(0.0, at_s - max(times), min(times) - at_s)
        grown_s = away_s * (WANDER if fit.slopes.any() else MAX_DRIFT)
        weights = fit.shares + fit.slopes * (at_s - fit.middle_s)
        offset_s = fit.offset_s + fit.drift * (at_s - fit.middle_s)
        return Offset(at_s, offset_s, float(np.abs(weights) @ fit.bounds) + fit.bent_s + grown_s)

    def to_reference(self, reading_s: float) -> tuple[float, float]:
        """(the reference's time, the bound of its error) when this clock read `reading_s`."""
        if not self.offsets:
            return reading_s, 0.0
        fit = self._fit  # reading = time + offset + drift (time - middle)
        time_s = fit.middle_s + (reading_s - fit.middle_s - fit.offset_s) / (1 + fit.drift)
        return time_s, self.at(time_s).bound_s / (1 - MAX_DRIFT)

    @cached_property
    def _fit(self) -> _Fit:
        """Computed from the first offset on, so that large readings lose no digits."""
        first = self.offsets[0]
        times = np.array([each.at_s - first.at_s for each in self.offsets])
        values = np.array([each.offset_s - first.offset_s for each in self.offsets])
        bounds = np.array([each.bound_s for each in self.offsets])
        shares = np.maximum(bounds, 1e-9) ** -2
        shares /= shares.sum()
        middle = float(shares @ times)
        away = times - middle
        spread = float(shares @ away**2)
        slopes = shares * away / spread if spread > 0 else np.zeros(len(times))
        offset, drift = float(shares @ values), float(slopes @ values)
        bent_s = max(0.0, float(np.max(np.abs(values - offset - drift * away) - bounds)))
        return _Fit(first.at_s + middle, first.offset_s + offset, drift, shares, slopes, bounds, bent_s)


@dataclass(frozen=True, slots=True)
class _Fit:
    """offset(t) = offset_s + drift (t - middle_s), in which each measured one weighs share + slope (t - middle_s)."""

    middle_s: float
    offset_s: float
    drift: float
    shares: Any
    slopes: Any
    bounds: Any
    bent_s: float  # by which an offset lies off the line beyond its own bound, at most


def offset_of(trips: Sequence[RoundTrip], parent: Clock = Clock()) -> Offset:
    """The offset during a burst of round trips: the middle of what all of them allow, with half of that as the bound.

    It holds at the middle of the shortest round trip; what the others allow is widened by the most that clocks may have
    drifted in between. Where the burst was sent by the `parent`'s clock, which is known within bounds only, these are
    added. Raises ValueError for no round trips, or for readings that no drift up to MAX_DRIFT explains.
    """
    if not trips:
        raise ValueError("no round trips: nothing is known of this clock")
    seen = [(parent.to_reference(trip.sent_s), trip.client_s, parent.to_reference(trip.back_s)) for trip in trips]
    (sent_s, _), near_s, (back_s, _) = min(seen, key=lambda trip: trip[2][0] - trip[0][0])
    at_s, rounding_s = (sent_s + back_s) / 2, _rounding_s(near_s, sent_s)
    low_s, high_s = -math.inf, math.inf
    for (sent_s, sent_bound_s), client_s, (back_s, back_bound_s) in seen:
        drifted_s = MAX_DRIFT * (max(abs(sent_s - at_s), abs(back_s - at_s)) + max(sent_bound_s, back_bound_s))
        low_s = max(low_s, client_s - back_s - back_bound_s - drifted_s - rounding_s)
        high_s = min(high_s, client_s - sent_s + sent_bound_s + drifted_s + rounding_s)
    if low_s > high_s:
        raise ValueError(f"round trips contradict each other by {low_s - high_s:.3g} s: a clock was set meanwhile")
    return Offset(at_s, (low_s + high_s) / 2, (high_s - low_s) / 2)


def tree(num: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """(reference, client) pairs that compare clocks 0 .. num-1 with clock 0, in ceil(log2 num) rounds of disjoint ones.

    A binomial tree, as in HCA3 (Hunold and Carpen-Amarie, CLUSTER 2018): after round k the first 2^k are known, and
    each of them compares one more.
    """
    rounds, known = [], 1
    while known < num:
        rounds.append(tuple((client - known, client) for client in range(known, min(2 * known, num))))
        known *= 2
    return tuple(rounds)


def _rounding_s(*readings_s: float) -> float:
    """What a difference of readings loses in double precision."""
    return float(4 * np.spacing(max(map(abs, readings_s))))
