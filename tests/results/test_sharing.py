"""Groups at once beside the same groups alone: by hand, with intervals, and what is no pair."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.core.record import Header, Record, Samples
from bench.results import summary
from bench.results.compared_rows import Sharing

Make = Callable[..., Any]
Job = tuple[str, Header, list[Record]]


def run(
    a_header: Make,
    a_record: Make,
    topology: str,
    seconds: tuple[float, ...],
    launch: int = 1,
    spread: float = 0.0,
    **more: Any,
) -> Job:
    """A job of one row for each group, of so many seconds (or spread evenly by so much around them)."""
    job = topology.replace(" ", "") + (f"-launch{launch}" if launch > 1 else "")
    header = a_header(
        job=job,
        case=("allreduce", "--topology", topology),
        topology=topology,
        launch=launch,
        nodes={"h0": {"num_cpus": 4}},
        **more,
    )
    spreads = [1 + spread * ((7 * k) % 41 - 20) / 20 for k in range(41)]
    rows = [
        a_record(group=f"group{k}", num_ranks=2, samples=Samples([middle * one for one in spreads]))
        for k, middle in enumerate(seconds)
    ]
    return job, header, rows


def found(*jobs: Job) -> tuple[Sharing, ...]:
    return summary.document(jobs).sharings


def test_each_group_stands_beside_itself_alone(a_header: Make, a_record: Make) -> None:
    at_once = run(a_header, a_record, "groups of 2", (3e-3, 5e-3))
    alone = run(a_header, a_record, "groups of 2 in turn", (2e-3, 2.5e-3))
    for jobs in ((at_once, alone), (alone, at_once)):
        both = found(*jobs)
        assert [(one.group, one.topology, one.num_groups) for one in both] == [
            ("group0", "groups of 2", 2),
            ("group1", "groups of 2", 2),
        ]
        assert [one.factor for one in both] == pytest.approx([1.5, 2.0])
        assert [(one.alone_s, one.at_once_s) for one in both] == [(2e-3, 3e-3), (2.5e-3, 5e-3)]


def test_what_differs_in_more_than_that_is_no_pair(a_header: Make, a_record: Make) -> None:
    at_once = run(a_header, a_record, "groups of 2", (3e-3, 5e-3))
    assert found(at_once) == ()
    assert found(at_once, run(a_header, a_record, "groups of 4 in turn", (2e-3,))) == ()
    assert found(at_once, run(a_header, a_record, "node in turn", (2e-3,))) == ()
    assert found(at_once, run(a_header, a_record, "groups of 2 in turn", (2e-3,), dtype="int32")) == ()


def test_wrong_data_are_no_side_of_a_factor(a_header: Make, a_record: Make) -> None:
    at_once = run(a_header, a_record, "groups of 2", (3e-3, 5e-3))
    job, header, rows = run(a_header, a_record, "groups of 2 in turn", (2e-3, 2e-3))
    wrong = replace(rows[0], verified=False, num_wrong=1)
    (one,) = found(at_once, (job, header, [wrong, rows[1]]))
    assert (one.group, one.num_groups) == ("group1", 1)


def test_within_a_launch_the_interval_holds_both_rows(a_header: Make, a_record: Make) -> None:
    (one,) = found(
        run(a_header, a_record, "groups of 2", (4e-3,), spread=0.1),
        run(a_header, a_record, "groups of 2 in turn", (2e-3,), spread=0.1),
    )
    assert one.interval_over == "samples" and one.factor_low is not None and one.factor_high is not None
    assert 1.8 < one.factor_low < 1.99 < 2.01 < one.factor_high < 2.2


def test_over_launches_the_interval_is_welchs(a_header: Make, a_record: Make) -> None:
    jobs = [run(a_header, a_record, "groups of 2", (own,), k) for k, own in enumerate((2e-3, 2.2e-3, 2.42e-3), 1)]
    jobs += [
        run(a_header, a_record, "groups of 2 in turn", (own,), k) for k, own in enumerate((1e-3, 1.1e-3, 1.21e-3), 1)
    ]
    (one,) = found(*jobs)
    # Logs are apart by ln 1.1 on both sides: deviation that, 4 degrees of freedom (t 2.776 from tables).
    half = 2.7764451 * math.log(1.1) * math.sqrt(2 / 3)
    assert (one.interval_over, one.num_launches) == ("launches", 3)
    assert (one.factor_low, one.factor_high) == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)))
