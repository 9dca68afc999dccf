"""Fit a model to a curve: time = latency + size / bandwidth, in segments (Hockney 1994).

A library may switch its protocol at some sizes. At each such size, a new segment of the model begins. The fit finds
these sizes. The fit minimises relative errors. With absolute errors, the largest sizes would dominate the fit. If the
model does not describe a curve, `Fit.fits` is False. If `Fit.fits` is False, do not quote the latency and bandwidth of
the fit. Units are seconds and bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np

from bench.core.codes import Coded
from bench.core.record import Flag, Header
from bench.results import flops
from bench.results.document import Fit, Segment, Summary
from bench.results.messages import NoFitCode

LEAST_POINTS = 4  # points of a segment, and therefore also of a curve
LARGEST_RESIDUAL = 0.15  # if a residual is larger, the model does not describe the curve
LEAST_LAUNCHES = 3  # for intervals over launches

# How many parameters BIC counts for one more break. With one parameter, 13 to 26 % of simulated lines without a break
# get a break; with three (Hall, Osborn and Sakkas 2013), 1 to 7 % do.
_PARAMETERS_OF_A_BREAK = 3
_PARAMETERS_OF_A_SEGMENT = 2
# Smaller residuals count as this value, because the residuals of exact (modelled) times could be arbitrarily small.
_LEAST_ERROR = 1e-3

_NUM_RESAMPLES = 1000
_SEED = 20130521
_ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Point:
    """One size of a curve.

    `low_s`, `high_s`: the interval of the median, or None if unknown. If there are several launches, `low_s` and
    `high_s` are the lowest and the highest launch median.
    `converged`: whether more than half of the launches converged.
    """

    payload_bytes: int
    seconds: float
    by_launch: Mapping[int, float]
    low_s: float | None = None
    high_s: float | None = None
    converged: bool = True


@dataclass(frozen=True, slots=True)
class Curve:
    """The times of one case, mode and group, from the smallest to the largest size.

    `no_fit`: why no model was fitted (NoFitCode), or None if a model was fitted.
    """

    job: str
    pattern: str
    transport: str
    mode: str
    group: str
    points: tuple[Point, ...]
    no_fit: Coded | None = None


def fits(headers: Mapping[str, Header], summaries: Iterable[Summary]) -> tuple[Fit, ...]:
    """Fit the model to every curve that has at least four sizes and correct data."""
    long_enough = (rows for rows in _by_curve(headers, summaries) if len(rows) >= LEAST_POINTS)
    return tuple(_fit_of(curve) for rows in long_enough if (curve := _curve(rows, headers)).no_fit is None)


def curves(headers: Mapping[str, Header], summaries: Iterable[Summary]) -> tuple[Curve, ...]:
    """Return the curves of a run, in the order of their first rows. The launches of one case make one curve.

    Barriers have no curve. Matrix products have no curve, because their time does not grow with their bytes.
    """
    return tuple(_curve(rows, headers) for rows in _by_curve(headers, summaries))


def _by_curve(headers: Mapping[str, Header], summaries: Iterable[Summary]) -> Iterable[list[Summary]]:
    """Return the rows of each curve. Curves are in the order of their first rows."""
    cases = {job: (case_of(job, header), header.case) for job, header in headers.items()}
    numbers = {case: number for number, case in enumerate(dict.fromkeys(cases.values()))}
    number_of = {job: numbers[case] for job, case in cases.items()}  # hashing the case for each row would take longer
    found: dict[tuple[Any, ...], list[Summary]] = {}
    for row in summaries:
        if row.payload_bytes > 0 and row.pattern != flops.PATTERN:
            found.setdefault((number_of[row.job], row.mode, row.group), []).append(row)
    return found.values()


def case_of(job: str, header: Header) -> str:
    """Return a job's name without its launch and attempt: `allreduce-mpi-1x2` for `allreduce-mpi-1x2-launch3#2`."""
    stem = job.partition("#")[0]
    return stem.replace(f"-launch{header.launch}", "", 1) if header.launch > 1 else stem


def header_of(headers: Mapping[str, Header], job: str) -> Header:
    """Return the header of the first launch of a case. Raises KeyError for an unknown case.

    `job`: a name from `case_of`.
    """
    for name, header in headers.items():
        if case_of(name, header) == job:
            return header
    raise KeyError(job)


def ninety_bytes(points: Sequence[Point]) -> int:
    """Return m90, the smallest measured size with at least 90 % of the best measured bandwidth."""
    rates = {point.payload_bytes: point.payload_bytes / point.seconds for point in points}
    return min(size for size, rate in rates.items() if rate >= 0.9 * max(rates.values()))


def fit(points: Sequence[Point]) -> tuple[Segment, ...]:
    """Fit the segments of the model to `points`, which must be sorted by rising size.

    Raises ValueError for fewer than four sizes.

    Dynamic programming finds the best positions of the breaks between segments. BIC decides the number of breaks. The
    curve may jump at a break. The intervals do not include the uncertainty of the breaks. If at least three launches
    have every size, the intervals cover the variation between launches. Otherwise, the intervals cover the variation of
    the residuals within the curve.
    """
    sizes = np.array([point.payload_bytes for point in points], dtype=float)
    times = np.array([point.seconds for point in points])
    if sizes.size < LEAST_POINTS or np.any(np.diff(sizes) <= 0):
        raise ValueError("a model needs at least four sizes, rising")
    launches = _whole_launches(points)
    return tuple(
        _segment(sizes[first:last], times[first:last], launches[first:last]) for first, last in _pieces(sizes, times)
    )


def _curve(rows: Sequence[Summary], headers: Mapping[str, Header]) -> Curve:
    first = rows[0]
    sizes: dict[int, dict[int, Summary]] = {}
    for row in rows:
        if row.median_s is not None:
            # A later attempt of the same launch replaces the earlier.
            sizes.setdefault(row.payload_bytes, {})[headers[row.job].launch] = row
    points = tuple(_point(size, sizes[size]) for size in sorted(sizes))
    no_fit = None
    if any(row.verified is False for row in rows):
        no_fit = Coded.of(NoFitCode.WRONG_DATA)
    elif len(points) < LEAST_POINTS:
        no_fit = Coded.of(NoFitCode.FEW_SIZES, num=len(points), least=LEAST_POINTS)
    return Curve(
        case_of(first.job, headers[first.job]), first.pattern, first.transport, first.mode, first.group, points, no_fit
    )


def _point(size: int, rows: Mapping[int, Summary]) -> Point:
    medians = {launch: row.median_s for launch, row in rows.items() if row.median_s is not None}
    num_open = sum(Flag.NOT_CONVERGED in row.flags for row in rows.values())
    low: float | None = min(medians.values())
    high: float | None = max(medians.values())
    if len(rows) == 1:
        (row,) = rows.values()
        low, high = row.ci_low_s, row.ci_high_s
    return Point(size, median(medians.values()), medians, low, high, converged=2 * num_open < len(rows))


def _fit_of(curve: Curve) -> Fit:
    segments = fit(curve.points)
    worst, at = max(zip(_residuals(curve.points, segments), curve.points, strict=True), key=lambda pair: pair[0])
    return Fit(
        job=curve.job,
        pattern=curve.pattern,
        transport=curve.transport,
        mode=curve.mode,
        group=curve.group,
        segments=segments,
        max_residual=worst,
        fits=worst <= LARGEST_RESIDUAL,
        max_residual_bytes=at.payload_bytes,
        num_launches=max(_whole_launches(curve.points).shape[1], 1),
        ninety_bytes=ninety_bytes(curve.points),
    )


def _residuals(points: Sequence[Point], segments: Sequence[Segment]) -> list[float]:
    """Return the relative residual |measured / fitted - 1| of each point."""
    found = []
    for point in points:
        segment = next(each for each in segments if point.payload_bytes <= each.last_bytes)
        found.append(abs(point.seconds / predicted(segment, point.payload_bytes) - 1))
    return found


def predicted(segment: Segment, num_bytes: float) -> float:
    """Return the time in seconds that a segment predicts for a size."""
    return segment.latency_s + (num_bytes / segment.bytes_per_s if segment.bytes_per_s else 0.0)


def _whole_launches(points: Sequence[Point]) -> Any:
    """Return the median times of the launches that measured all sizes, as an array of shape (points, launches)."""
    whole = sorted(set.intersection(*(set(point.by_launch) for point in points)))
    return np.array([[point.by_launch[launch] for launch in whole] for point in points])


def _pieces(sizes: Any, times: Any) -> list[tuple[int, int]]:
    """Return the division of the points into segments that has the smallest BIC.

    Each segment is a pair (first, last). `last` is the number of the first point after the segment.
    """
    num = sizes.size
    errors = np.full((num + 1, num + 1), math.inf)  # [first, last]: error of a segment over the points first..last-1
    for first in range(num - LEAST_POINTS + 1):
        errors[first, first + LEAST_POINTS :] = _square_errors(sizes[first:], times[first:])
    least, begins = [errors[0]], [np.zeros(num + 1, dtype=int)]  # least error up to each point with this many segments
    for _ in range(1, num // LEAST_POINTS):
        through = least[-1][:, None] + errors
        begins.append(np.argmin(through, axis=0))
        least.append(np.min(through, axis=0))
    scores = [_bic(float(error[num]), num, breaks) for breaks, error in enumerate(least)]
    pieces, last = [], num
    for begin in reversed(begins[: scores.index(min(scores)) + 1]):
        pieces.append((int(begin[last]), last))
        last = int(begin[last])
    return pieces[::-1]


def _bic(square_error: float, num: int, breaks: int) -> float:
    """Return the Bayesian information criterion.

    The criterion is the sum of an error term and a cost for parameters and breaks.
    """
    parameters = _PARAMETERS_OF_A_SEGMENT * (breaks + 1) + _PARAMETERS_OF_A_BREAK * breaks
    return num * math.log(max(square_error / num, _LEAST_ERROR**2)) + parameters * math.log(num)


def _square_errors(sizes: Any, times: Any) -> Any:
    """Fit one segment to the first 4 points, one to the first 5 points, and so on.

    For each fit, return the sum of (fitted / measured - 1)^2.
    """
    terms = (times**-2.0, sizes / times**2, (sizes / times) ** 2, 1 / times, sizes / times)
    w, ws, wss, wt, wst = (np.cumsum(each)[LEAST_POINTS - 1 :] for each in terms)
    a, b = _solved(w, ws, wss, wt, wst)
    count = np.arange(LEAST_POINTS, sizes.size + 1)
    return np.maximum(a * a * w + 2 * a * b * ws + b * b * wss - 2 * (a * wt + b * wst) + count, 0.0)


def _line(sizes: Any, times: Any) -> tuple[Any, Any]:
    """Fit a line to each row of `times`. Return latencies (seconds) and slopes (seconds per byte).

    The fit minimises relative errors (weights 1/T^2).
    """
    terms = (times**-2.0, sizes / times**2, (sizes / times) ** 2, 1 / times, sizes / times)
    return _solved(*(np.sum(each, axis=-1) for each in terms))


def _solved(w: Any, ws: Any, wss: Any, wt: Any, wst: Any) -> tuple[Any, Any]:
    """Solve the normal equations of a weighted line fit.

    The arguments are weighted sums of 1, S, S^2, T and S T, where S is the size and T the time. A parameter that would
    be negative becomes zero, and the other parameter is then fitted alone.
    """
    determinant = w * wss - ws**2
    latency, slope = (wss * wt - ws * wst) / determinant, (w * wst - ws * wt) / determinant
    only_slope, only_latency = latency < 0, slope < 0
    latency = np.where(only_slope, 0.0, np.where(only_latency, wt / w, latency))
    slope = np.where(only_latency, 0.0, np.where(only_slope, wst / wss, slope))
    return latency, slope


def _segment(sizes: Any, times: Any, launches: Any) -> Segment:
    latency, slope = map(float, _line(sizes, times))
    fitted = latency + slope * sizes
    if launches.shape[1] >= LEAST_LAUNCHES:
        again, freedom = _over_launches(launches), launches.shape[1] - 1
        few = launches.shape[1] / freedom  # resampling underestimates the variance by this factor
    else:
        again, freedom, few = _over_residuals(times, fitted), sizes.size - _PARAMETERS_OF_A_SEGMENT, 1.0
    latencies, slopes = _line(sizes, again)
    margin = _student(freedom) * math.sqrt(few)
    latency_margin, slope_margin = margin * float(np.std(latencies)), margin * float(np.std(slopes))
    half = half_low = half_high = None
    if latency > latency_margin and slope > slope_margin:  # otherwise one of them may be zero, and n1/2 is unknown
        # Standard deviation of the quotient's logarithm, to first order.
        half_margin = math.exp(margin * float(np.std(latencies / latency - slopes / slope)))
        half = latency / slope
        half_low, half_high = half / half_margin, half * half_margin
    return Segment(
        first_bytes=int(sizes[0]),
        last_bytes=int(sizes[-1]),
        num_points=sizes.size,
        latency_s=latency,
        latency_low_s=max(latency - latency_margin, 0.0),
        latency_high_s=latency + latency_margin,
        bytes_per_s=_rate(slope),
        bytes_per_s_low=_rate(slope + slope_margin),
        bytes_per_s_high=_rate(slope - slope_margin),
        half_bytes=half,
        max_residual=float(np.max(np.abs(times / fitted - 1))),
        half_bytes_low=half_low,
        half_bytes_high=half_high,
    )


def _over_launches(launches: Any) -> Any:
    """Return resampled times. Each resample is the median over randomly drawn launches.

    Launches may be drawn several times (drawing with replacement). A randomly drawn launch contributes its times at all
    sizes.
    """
    drawn = np.random.default_rng(_SEED).integers(launches.shape[1], size=(_NUM_RESAMPLES, launches.shape[1]))
    return np.median(launches[:, drawn], axis=-1).T


def _over_residuals(times: Any, fitted: Any) -> Any:
    """Return resampled times.

    Each fitted time is multiplied by the factor of a randomly drawn residual (with replacement).
    """
    errors = np.log(times / fitted)
    # A fit is closer to its points than the true line is, so its residuals are too small.
    errors = (errors - errors.mean()) * math.sqrt(errors.size / (errors.size - _PARAMETERS_OF_A_SEGMENT))
    return fitted * np.exp(np.random.default_rng(_SEED).choice(errors, size=(_NUM_RESAMPLES, errors.size)))


def _rate(slope: float) -> float | None:
    return 1 / slope if slope > 0 else None


@lru_cache(maxsize=64)
def _student(freedom: int) -> float:
    """Return half the width of a 95 % interval, in standard deviations.

    The width comes from Student's t distribution.
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - _ALPHA / 2))
