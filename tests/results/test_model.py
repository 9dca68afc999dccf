"""Fitted models: known lines come back, intervals cover the truth, and what is no line gets no headline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.codes import Coded
from bench.core.record import Header, Samples
from bench.results import model, summary
from bench.results.document import Summary
from bench.results.messages import NoFitCode

Make = Callable[..., Any]
LATENCY, RATE = 3e-6, 8e9
SIZES = tuple(8 << power for power in range(0, 22))


def line(sizes: Sequence[int], latency: float = LATENCY, rate: float = RATE) -> list[float]:
    return [latency + size / rate for size in sizes]


def points(sizes: Sequence[int], *launches: Sequence[float]) -> list[model.Point]:
    """Points of these sizes; each launch gives the seconds of all sizes."""
    by_size = zip(sizes, zip(*launches, strict=True), strict=True)
    return [model.Point(size, float(np.median(times)), dict(enumerate(times, 1))) for size, times in by_size]


def noisy(draw: np.random.Generator, times: Sequence[float], own: float, common: float = 0.0) -> list[float]:
    """One launch: an error of each size and one that all its sizes share."""
    errors = np.exp(common * draw.standard_normal() + own * draw.standard_normal(len(times)))
    return list(np.asarray(times) * errors)


def test_an_exact_line_comes_back_with_its_half_size() -> None:
    [segment] = model.fit(points(SIZES, line(SIZES)))
    assert (segment.first_bytes, segment.last_bytes, segment.num_points) == (8, SIZES[-1], len(SIZES))
    assert segment.latency_s == pytest.approx(LATENCY)
    assert segment.bytes_per_s == pytest.approx(RATE)
    assert segment.half_bytes == pytest.approx(LATENCY * RATE)
    assert segment.max_residual < 1e-9
    assert segment.latency_low_s == pytest.approx(LATENCY) == segment.latency_high_s


def test_the_small_sizes_count_as_much_as_the_large_ones() -> None:
    # By absolute error the 1 % of the largest size, 200 us, would drown a latency of 3 us.
    times = line(SIZES)
    times[-1] *= 1.01
    [segment] = model.fit(points(SIZES, times))
    assert segment.latency_s == pytest.approx(LATENCY, rel=0.01)


def test_a_switch_of_the_library_is_found_where_it_is() -> None:
    small, large = [size for size in SIZES if size <= 8192], [size for size in SIZES if size > 8192]
    draw = np.random.default_rng(5)
    times = noisy(draw, [*line(small, 2e-6, 1e9), *line(large, 2e-5, 1.2e10)], 0.01)
    first, second = model.fit(points(SIZES, times))
    assert (first.last_bytes, second.first_bytes) == (8192, 16384)
    assert first.latency_s == pytest.approx(2e-6, rel=0.03) and second.latency_s == pytest.approx(2e-5, rel=0.05)
    assert first.bytes_per_s == pytest.approx(1e9, rel=0.05) and second.bytes_per_s == pytest.approx(1.2e10, rel=0.05)


def test_the_breaks_are_the_best_of_all_that_there_are() -> None:
    draw = np.random.default_rng(11)
    sizes = np.array(SIZES[:13], dtype=float)
    for _ in range(20):
        times = np.exp(np.cumsum(draw.normal(0.2, 0.4, sizes.size))) * 1e-6
        every = [(0, *ends, 13) for count in range(3) for ends in combinations(range(1, 13), count)]
        allowed = [ends for ends in every if all(b - a >= 4 for a, b in pairwise(ends))]
        assert model._pieces(sizes, times) == min(allowed_pieces(allowed), key=lambda p: score(sizes, times, p))


def allowed_pieces(ends: list[tuple[int, ...]]) -> list[list[tuple[int, int]]]:
    return [list(pairwise(each)) for each in ends]


def score(sizes: Any, times: Any, pieces: list[tuple[int, int]]) -> float:
    error = 0.0
    for first, last in pieces:
        latency, slope = model._line(sizes[first:last], times[first:last])
        error += float(np.sum(((latency + slope * sizes[first:last]) / times[first:last] - 1) ** 2))
    return model._bic(error, sizes.size, len(pieces) - 1)


@given(st.lists(st.floats(1e-7, 1e-2), min_size=5, max_size=5))
def test_no_line_of_nonnegative_parameters_is_nearer(times: list[float]) -> None:
    from scipy.optimize import nnls

    sizes, measured = np.array([8.0, 64, 512, 4096, 32768]), np.array(times)
    _, norm = nnls(np.stack([1 / measured, sizes / 32768 / measured], axis=1), np.ones(5))
    latency, slope = model._line(sizes, measured)
    assert latency >= 0 and slope >= 0
    mine = float(np.linalg.norm((latency + slope * sizes) / measured - 1))
    assert mine == pytest.approx(norm, rel=1e-6, abs=1e-9)
    assert float(model._square_errors(sizes, measured)[-1]) == pytest.approx(norm**2, rel=1e-6, abs=1e-9)


def test_times_that_fall_with_the_size_give_no_bandwidth_and_no_negative_number() -> None:
    [segment] = model.fit(points(SIZES[:6], [5e-6, 4.9e-6, 4.8e-6, 4.8e-6, 4.7e-6, 4.6e-6]))
    assert segment.bytes_per_s is None and segment.half_bytes is None
    assert segment.latency_s == pytest.approx(4.8e-6, rel=0.02)


def test_a_bandwidth_that_falls_with_the_size_gives_no_negative_latency_and_no_half_size() -> None:
    sizes = SIZES[-6:]
    [segment] = model.fit(points(sizes, [size / RATE * 1.01**power for power, size in enumerate(sizes)]))
    assert segment.latency_s == 0 == segment.latency_low_s
    assert segment.half_bytes is None
    assert segment.bytes_per_s == pytest.approx(RATE, rel=0.05)


def covered(num: int, launches: int, own: float, common: float) -> list[float]:
    """How often the intervals of latency, bandwidth and n1/2 of `num` simulated curves hold the truth."""
    draw = np.random.default_rng(20261120)
    hits = np.zeros(3)
    for _ in range(num):
        runs = [noisy(draw, line(SIZES[::2]), own, common) for _ in range(launches)]
        segments = model.fit(points(SIZES[::2], *runs))
        first, last = segments[0], segments[-1]
        truths = (
            (first.latency_low_s, first.latency_high_s, LATENCY),
            (last.bytes_per_s_low, last.bytes_per_s_high, RATE),
            (first.half_bytes_low, first.half_bytes_high, LATENCY * RATE),
        )
        hits += [low is None or high is None or low <= truth <= high for low, high, truth in truths]
    return list(hits / num)


def test_intervals_over_residuals_cover_the_truth() -> None:
    assert all(0.92 <= share <= 0.985 for share in covered(500, 1, own=0.03, common=0.0))


@pytest.mark.parametrize("launches", [3, 5, pytest.param(10, marks=pytest.mark.slow)])
def test_intervals_over_launches_cover_the_truth_though_all_sizes_of_a_launch_err_together(launches: int) -> None:
    assert all(0.93 <= share <= 0.999 for share in covered(300, launches, own=0.02, common=0.05))


def test_intervals_become_narrow_with_launches() -> None:
    draw = np.random.default_rng(3)
    runs = [noisy(draw, line(SIZES), 0.02, 0.02) for _ in range(20)]
    [segment] = model.fit(points(SIZES, *runs))
    assert segment.latency_low_s is not None and segment.latency_high_s is not None
    assert 0.002 < (segment.latency_high_s - segment.latency_low_s) / LATENCY < 0.05


def test_a_single_line_is_seldom_split() -> None:
    draw = np.random.default_rng(4)
    sizes = np.array(SIZES[:15], dtype=float)
    split = [len(model._pieces(sizes, np.array(noisy(draw, line(SIZES[:15]), 0.04)))) > 1 for _ in range(400)]
    assert np.mean(split) < 0.08


def test_the_same_points_give_the_same_intervals() -> None:
    launches = [noisy(np.random.default_rng(seed), line(SIZES), 0.05) for seed in range(4)]
    assert model.fit(points(SIZES, *launches)) == model.fit(points(SIZES, *launches))


@pytest.mark.parametrize("sizes", [(), (8, 16, 32), (8, 16, 16, 32), (32, 16, 8, 4)])
def test_fewer_than_four_rising_sizes_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="four sizes"):
        model.fit([model.Point(size, 1e-6, {1: 1e-6}) for size in sizes])


def test_m90_is_the_smallest_size_that_had_nine_tenths_of_the_best_bandwidth() -> None:
    rates = {1024: 1e9, 2048: 9.1e9, 4096: 8e9, 8192: 10e9, 16384: 9.9e9}
    measured = [model.Point(size, size / rate, {1: size / rate}) for size, rate in rates.items()]
    assert model.ninety_bytes(measured) == 2048


@pytest.fixture
def rows(a_header: Make, a_record: Make) -> Make:
    """`rows(job, header, times, **changes)`: a row for each size and its seconds."""

    def make(job: str, header: Header, times: dict[int, float], **changes: Any) -> list[Summary]:
        records = [a_record(payload_bytes=size, samples=Samples((seconds,) * 30)) for size, seconds in times.items()]
        return [replace(summary.summarise(job, header, record), **changes) for record in records]

    return make


def test_a_fit_names_its_curve_and_judges_itself(a_header: Make, rows: Make) -> None:
    of, times = a_header(), dict(zip(SIZES, line(SIZES), strict=True))
    [fit] = model.fits({"job": of}, rows("job", of, times))
    assert (fit.job, fit.pattern, fit.transport, fit.mode, fit.group) == (
        "job",
        "allreduce",
        "mpi",
        "isolated",
        "world",
    )
    assert fit.fits and fit.max_residual < 1e-9 and fit.num_launches == 1
    assert fit.ninety_bytes == 262144  # the smallest power of two above 9 n1/2


def test_a_curve_that_is_no_line_gets_no_headline_and_says_where(a_header: Make, rows: Make) -> None:
    of, times = a_header(), dict(zip(SIZES[4:11], line(SIZES[4:11]), strict=True))
    times[1024] *= 1.5
    [fit] = model.fits({"job": of}, rows("job", of, times))
    assert not fit.fits
    assert fit.max_residual_bytes == 1024 and 0.3 < fit.max_residual < 0.51


def test_modes_and_groups_are_curves_of_their_own(a_header: Make, rows: Make) -> None:
    of, times = a_header(), dict(zip(SIZES, line(SIZES), strict=True))
    doubled = {size: 2 * seconds for size, seconds in times.items()}
    all_rows = [
        *rows("job", of, times),
        *rows("job", of, doubled, mode="pipelined"),
        *rows("job", of, doubled, group="b"),
    ]
    fits = model.fits({"job": of}, all_rows)
    assert [(fit.mode, fit.group) for fit in fits] == [("isolated", "world"), ("pipelined", "world"), ("isolated", "b")]
    assert [round(fit.segments[0].latency_s * 1e6, 6) for fit in fits] == [3.0, 6.0, 6.0]


def test_launches_of_a_case_make_one_curve_and_a_later_attempt_replaces_the_earlier(a_header: Make, rows: Make) -> None:
    jobs = ("job-launch2", "job-launch3", "job", "job#2")
    headers = {job: a_header(launch=launch) for job, launch in zip(jobs, (2, 3, 1, 1), strict=True)}
    factors = dict(zip(jobs, (1.1, 1.2, 50.0, 1.0), strict=True))
    every: list[Summary] = []
    for job, factor in factors.items():
        times = {size: factor * seconds for size, seconds in zip(SIZES, line(SIZES), strict=True)}
        every += rows(job, headers[job], times)
    [fit] = model.fits(headers, every)
    assert (fit.job, fit.num_launches) == ("job", 3)
    assert fit.segments[0].latency_s == pytest.approx(1.1 * LATENCY)
    [curve] = model.curves(headers, every)
    assert (curve.points[0].low_s, curve.points[0].high_s) == pytest.approx((LATENCY, 1.2 * LATENCY), rel=0.01)
    assert model.header_of(headers, "job").launch == 2


def test_jobs_of_other_cases_are_not_mixed(a_header: Make, rows: Make) -> None:
    headers = {"job": a_header(), "job-2": a_header(case=("allreduce", "--transport", "mpi", "--cache", "hot"))}
    times = dict(zip(SIZES, line(SIZES), strict=True))
    fits = model.fits(headers, [*rows("job", headers["job"], times), *rows("job-2", headers["job-2"], times)])
    assert [fit.job for fit in fits] == ["job", "job-2"]


def test_a_launch_without_some_size_gives_no_interval_over_launches(a_header: Make, rows: Make) -> None:
    headers = {f"job-launch{launch}": a_header(launch=launch) for launch in (2, 3, 4)}
    times = dict(zip(SIZES, line(SIZES), strict=True))
    every = [row for job, of in headers.items() for row in rows(job, of, times)]
    [fit] = model.fits(headers, every[:-1])
    assert fit.num_launches == 2 and fit.segments[-1].last_bytes == SIZES[-1]


def test_a_curve_without_a_model_has_a_code(a_header: Make, rows: Make) -> None:
    of, times = a_header(), dict(zip(SIZES, line(SIZES), strict=True))
    wrong = rows("job", of, times)
    wrong[3] = replace(wrong[3], verified=False)
    few = rows("job", of, {8: 1e-6, 64: 1e-6, 512: 2e-6}, mode="pipelined")
    barrier = rows("job", of, {0: 1e-6}, group="b")
    every = [*wrong, *few, *barrier]
    assert model.fits({"job": of}, every) == ()
    reasons = [curve.no_fit for curve in model.curves({"job": of}, every)]
    assert reasons == [Coded.of(NoFitCode.WRONG_DATA), Coded.of(NoFitCode.FEW_SIZES, num=3, least=4)]


def test_a_row_without_a_median_is_no_point(a_header: Make, rows: Make) -> None:
    of, times = a_header(), dict(zip(SIZES, line(SIZES), strict=True))
    every = rows("job", of, times)
    every[0] = replace(every[0], median_s=None)
    [fit] = model.fits({"job": of}, every)
    assert fit.segments[0].first_bytes == 16
