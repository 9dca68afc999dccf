"""Ours beside another tool's: pairs of launches, ratios and their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.analysis import summary
from bench.core.record import Document, Header, Record, Samples

Make = Callable[..., Header]


def run(a_header: Make, a_record: Callable[..., Record], pairs: list[tuple[float, float]]) -> Document:
    """A run whose launch k took pairs[k] = (ours, theirs) at 8 bytes."""
    told = []
    for launch, (ours, theirs) in enumerate(pairs, start=1):
        mine = a_header(job=f"ours-{launch}", case=("allreduce", "--like", "osu"), launch=launch)
        other = replace(mine, job=f"osu-{launch}", transport="osu", facts={"tool": "osu"})
        samples = Samples(seconds=(ours,) * 40, by_rank=((ours,) * 40, (ours,) * 40))
        told.append((mine.job, mine, [a_record(mode="isolated", payload_bytes=8, samples=samples)]))
        reported = a_record(mode="isolated", payload_bytes=8, samples=None, reported={"mean_s": theirs})
        told.append((other.job, other, [reported]))
    return summary.document(told)


def test_the_ratio_is_of_launches_that_were_neighbours(a_header: Make, a_record: Callable[..., Record]) -> None:
    # The machine gets four times slower, both with it: no launch says that ours is anything but 10 % slower.
    (found,) = run(a_header, a_record, [(1.1e-6, 1e-6), (2.2e-6, 2e-6), (4.4e-6, 4e-6)]).parities
    assert found.ratio == pytest.approx(1.1) and found.num_launches == 3
    assert found.ratio_low == pytest.approx(1.1) and found.ratio_high == pytest.approx(1.1)
    assert (found.tool, found.pattern, found.payload_bytes) == ("osu", "allreduce", 8)


def test_the_interval_is_students_over_launches(a_header: Make, a_record: Callable[..., Record]) -> None:
    (found,) = run(a_header, a_record, [(1.0e-6, 1e-6), (1.1e-6, 1e-6), (1.21e-6, 1e-6)]).parities
    step = math.log(1.1)  # the logarithms are 0, step, 2 step: their deviation is one step
    half = 4.302652729911275 * step / math.sqrt(3)  # t of 2 degrees of freedom at 0.975, from tables
    assert found.ratio == pytest.approx(1.1)
    assert found.ratio_low == pytest.approx(1.1 * math.exp(-half))
    assert found.ratio_high == pytest.approx(1.1 * math.exp(half))


def test_two_launches_have_a_ratio_and_no_interval(a_header: Make, a_record: Callable[..., Record]) -> None:
    (found,) = run(a_header, a_record, [(1.0e-6, 1e-6), (1.1e-6, 1e-6)]).parities
    assert (found.ratio_low, found.ratio_high, found.num_launches) == (None, None, 2)


def test_a_foreign_mean_fills_no_median(a_header: Make, a_record: Callable[..., Record]) -> None:
    rows = [row for row in run(a_header, a_record, [(1e-6, 1e-6)]).summaries if row.transport == "osu"]
    assert [(row.median_s, row.compat["osu_mean_s"], row.flags) for row in rows] == [(None, 1e-6, ("reported",))]
