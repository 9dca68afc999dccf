"""Compute the offset and the drift of each host's clock relative to the reference clock, with error bounds.

An offset is a clock's reading minus the reference clock's reading at the same moment. Round trips of messages limit the
offset (SKaMPI; Hunold and Carpen-Amarie, ReproMPI). The reference reads its clock (s0) and sends a message. The client
reads its clock (t) and answers. When the answer arrives, the reference reads its clock again (s1). Therefore, the
offset is between `t - s1` and `t - s0`.

The readings do not show which part of the round trip the message took, and which part the answer took. If one direction
always takes longer than the other, the offset is wrong, and more messages do not help. The error bound is half of the
shortest round trip. This bound is valid even if one direction takes longer.

This module only computes. The module rank/clocks.py reads the clocks and converts the readings to seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

# The frequency of quartz is accurate to 1e-4, and Linux corrects a clock's rate by at most 5e-4. So two clocks never
# drift apart faster than this.
MAX_DRIFT = 1.2e-3
# The largest change of a clock's drift between two comparisons. Temperature changes the drift of quartz by less than
# this.
WANDER = 1e-6
# A round trip that takes at most this multiple of the shortest one counts as equally good. More round trips would
# hardly reduce the bound.
GOOD_ENOUGH = 1.10


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """The three clock readings of one round trip.

    The reference reads its clock when it sends the message, and again when the answer arrives. The client reads its
    clock when the message arrives.
    """

    sent_s: float
    client_s: float
    back_s: float


@dataclass(frozen=True, slots=True)
class Offset:
    """The offset of a clock at one time: the clock's reading minus the reference clock's reading.

    `at_s`: the time on the reference clock. `bound_s`: the largest possible error of the offset.
    """

    at_s: float
    offset_s: float
    bound_s: float


def is_enough(took_s: Sequence[float], least: int, most: int) -> bool:
    """Check whether a burst of round trips has enough round trips.

    After `most` round trips, a burst ends. After `least` round trips, a burst also ends when a round trip is about as
    short as the shortest earlier round trip.

    `took_s`: the duration of each round trip so far, in seconds.
    """
    if len(took_s) < least:
        return False
    return len(took_s) >= most or took_s[-1] <= GOOD_ENOUGH * min(took_s[:-1])


@dataclass(frozen=True)
class Clock:
    """A clock with a linear drift.

    The drift is found by a least-squares fit to offsets that were measured at several times, with weights 1 / bound^2.

    Each fitted value is a weighted sum of the measured offsets. The error of a fitted value is therefore at most the
    sum of |weight| x bound. The error bound of a fitted value grows with the distance from the measurements. If the
    drift is not constant, the distance of a measured offset from the fitted line may exceed the bound of this offset.
    The excess is then added to the error bound. Before the first and after the last measurement, the error bound grows
    by WANDER per second. If the drift is unknown, the error bound grows by MAX_DRIFT per second. A Clock without
    offsets is the reference clock itself.
    """

    offsets: tuple[Offset, ...] = ()

    @property
    def drift(self) -> float:
        """The drift in seconds per second. A positive drift means that this clock runs faster than the reference."""
        return self._fit.drift if self.offsets else 0.0

    @property
    def drift_bound(self) -> float:
        """The largest possible error of `drift`, provided that the drift is constant."""
        if not self.offsets:
            return 0.0
        fit = self._fit
        return float(np.abs(fit.slopes) @ (fit.bounds + fit.bent_s)) if fit.slopes.any() else MAX_DRIFT

    def at(self, at_s: float) -> Offset:
        """Return the offset at the reference's time `at_s`."""
        if not self.offsets:
            return Offset(at_s, 0.0, 0.0)
        fit, times = self._fit, [each.at_s for each in self.offsets]
        away_s = max(0.0, at_s - max(times), min(times) - at_s)
        grown_s = away_s * (WANDER if fit.slopes.any() else MAX_DRIFT)
        weights = fit.shares + fit.slopes * (at_s - fit.middle_s)
        offset_s = fit.offset_s + fit.drift * (at_s - fit.middle_s)
        return Offset(at_s, offset_s, float(np.abs(weights) @ fit.bounds) + fit.bent_s + grown_s)

    def to_reference(self, reading_s: float) -> tuple[float, float]:
        """Convert a reading of this clock to the time on the reference clock.

        Return two values in seconds: the time on the reference clock, and the largest error of this time.
        """
        if not self.offsets:
            return reading_s, 0.0
        fit = self._fit  # reading = time + offset + drift (time - middle)
        time_s = fit.middle_s + (reading_s - fit.middle_s - fit.offset_s) / (1 + fit.drift)
        return time_s, self.at(time_s).bound_s / (1 - MAX_DRIFT)

    @cached_property
    def _fit(self) -> _Fit:
        """Return the line that is fitted to the offsets.

        Times are relative to the first offset, because sums of large clock readings would lose digits.
        """
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
    """A fitted line with this formula: offset(t) = offset_s + drift x (t - middle_s).

    The value offset(t) is a weighted sum of the measured offsets. The weight of an offset in this sum is share + slope
    x (t - middle_s).
    """

    middle_s: float
    offset_s: float
    drift: float
    shares: Any
    slopes: Any
    bounds: Any
    bent_s: float  # the largest distance of an offset from the line, minus the bound of that offset


def offset_of(trips: Sequence[RoundTrip], parent: Clock = Clock()) -> Offset:
    """Return the offset of a clock at the middle of the shortest round trip of a burst.

    Each round trip limits the offset to a range. The result is the middle of the range that all round trips allow. The
    largest error of the offset is half the width of this range. The clock may have drifted between two round trips. The
    ranges of all other round trips are therefore widened by the largest possible drift. The error bounds of `parent`,
    the clock that sent the burst, also widen the ranges.

    Raises ValueError for no round trips, or if no drift up to MAX_DRIFT explains the readings.
    """
    if not trips:
        raise ValueError("no round trips: the offset of this clock is unknown")
    seen = [(parent.to_reference(trip.sent_s), trip.client_s, parent.to_reference(trip.back_s)) for trip in trips]
    (sent_s, _), near_s, (back_s, _) = min(seen, key=lambda trip: trip[2][0] - trip[0][0])
    at_s, rounding_s = (sent_s + back_s) / 2, _rounding_s(near_s, sent_s)
    low_s, high_s = -math.inf, math.inf
    for (sent_s, sent_bound_s), client_s, (back_s, back_bound_s) in seen:
        drifted_s = MAX_DRIFT * (max(abs(sent_s - at_s), abs(back_s - at_s)) + max(sent_bound_s, back_bound_s))
        low_s = max(low_s, client_s - back_s - back_bound_s - drifted_s - rounding_s)
        high_s = min(high_s, client_s - sent_s + sent_bound_s + drifted_s + rounding_s)
    if low_s > high_s:
        raise ValueError(f"round trips contradict each other by {low_s - high_s:.3g} s: a clock was set in between")
    return Offset(at_s, (low_s + high_s) / 2, (high_s - low_s) / 2)


def tree(num: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the rounds of comparisons that relate the clocks 0 .. num-1 to clock 0.

    A comparison is a pair (reference, client). The pairs of a round have no clock in common. There are ceil(log2 num)
    rounds. The pairs form a binomial tree, as in the algorithm HCA3 (Hunold and Carpen-Amarie, CLUSTER 2018). After k
    rounds, the offsets of the first 2^k clocks are known. In the next round, each of these 2^k clocks is the reference
    for one more clock.
    """
    rounds, known = [], 1
    while known < num:
        rounds.append(tuple((client - known, client) for client in range(known, min(2 * known, num))))
        known *= 2
    return tuple(rounds)


def _rounding_s(*readings_s: float) -> float:
    """Return the rounding error, in seconds, of a difference of two readings in double precision."""
    return float(4 * np.spacing(max(map(abs, readings_s))))
