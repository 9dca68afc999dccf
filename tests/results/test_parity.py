"""Ours beside another tool's: pairs of launches, ratios and their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from bench.core.record import Header, Record, Samples
from bench.results import summary
from bench.results.document import Document

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


def rows_of(
    a_header: Make,
    a_record: Callable[..., Record],
    tool: str,
    case: tuple[str, ...],
    theirs: dict[str, float],
    ours: Samples,
    **more: object,
) -> list[tuple[str, Header, list[Record]]]:
    """A launch of ours and one of a tool's: the same case at 1 MB."""
    mine = a_header(job=f"ours {case}", case=case)
    other = replace(mine, job=f"{tool} {case}", transport=tool, facts={"tool": tool})
    given = {"mode": "pipelined", "payload_bytes": 1_000_000, "bus_factor": 1.0} | more
    return [
        (mine.job, mine, [a_record(samples=ours, **given)]),
        (other.job, other, [a_record(samples=None, reported=theirs, **given)]),
    ]


def test_a_rate_stands_for_the_time_of_its_size_beside_our_median(
    a_header: Make, a_record: Callable[..., Record]
) -> None:
    samples = Samples(seconds=(1e-5,) * 20 + (9e-5,) * 10)
    told = rows_of(a_header, a_record, "nvbandwidth", ("local_copy",), {"algbw_bytes_per_s": 2e11}, samples)
    (found,) = summary.document(told).parities
    assert (found.ours_s, found.theirs_s, found.statistic.split()[0]) == (1e-5, 5e-6, "median")
    assert found.ratio == pytest.approx(2.0)


def test_nccl_tests_is_compared_by_the_mean_over_ranks(a_header: Make, a_record: Callable[..., Record]) -> None:
    samples = Samples(seconds=(3e-5,) * 40, by_rank=((1e-5,) * 40, (3e-5,) * 40), calls_per_sample=9)
    told = rows_of(a_header, a_record, "nccl_tests", ("allreduce",), {"mean_s": 1e-5}, samples)
    (found,) = summary.document(told).parities
    assert (found.ours_s, found.ratio) == pytest.approx((2e-5, 2.0)) and found.mode == "pipelined"


def test_only_rows_of_the_same_case_group_and_mode_meet(a_header: Make, a_record: Callable[..., Record]) -> None:
    samples, rate = Samples(seconds=(1e-5,) * 40), {"algbw_bytes_per_s": 1e11}
    read, write = ("peer_copy", "--access", "read"), ("peer_copy", "--via", "process")
    told = rows_of(a_header, a_record, "nvbandwidth", read, rate, samples, group="0-1", src=0, dst=1)
    told += rows_of(a_header, a_record, "nvbandwidth", write, rate, samples, group="0-1", src=0, dst=1)
    both = summary.document(told).parities
    assert [(one.case, one.group) for one in both] == [("--access read", "0-1"), ("--via process", "0-1")]
    assert summary.document([told[0], told[3]]).parities == ()  # ours reads, theirs writes
    for other in ({"group": "1-0"}, {"mode": "isolated"}, {"payload_bytes": 7}):
        mine, theirs = told[0], told[1]
        assert summary.document([mine, (*theirs[:2], [replace(theirs[2][0], **other)])]).parities == ()


def test_how_a_start_is_divided_does_not_part_what_belongs_together(
    a_header: Make, a_record: Callable[..., Record]
) -> None:
    samples = Samples(seconds=(1e-5,) * 40)
    mine = rows_of(a_header, a_record, "nvbandwidth", ("local_copy", "--sizes", "1M,2M"), {}, samples)[0]
    theirs = rows_of(
        a_header,
        a_record,
        "nvbandwidth",
        ("local_copy", "--sizes", "1M", "--mode", "pipelined"),
        {"algbw_bytes_per_s": 1e11},
        samples,
    )[1]
    assert len(summary.document([mine, theirs]).parities) == 1
