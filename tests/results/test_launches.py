"""Launches of the same case are one row of a spread; everything else stays apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from bench.core.record import Header, Record, Samples
from bench.results import launches, summary
from bench.results.document import Document

Make = Callable[..., Any]


@pytest.fixture
def a_run(a_header: Make, a_record: Make) -> Make:
    """`a_run({"job": (seconds, header overrides, record overrides)})`: a document of one row a job."""

    def make(jobs: dict[str, tuple[float, dict[str, Any], dict[str, Any]]]) -> Document:
        told: list[tuple[str, Header, Sequence[Record]]] = []
        for job, (seconds, of_header, of_record) in jobs.items():
            taken = tuple(seconds * (1 + 0.001 * (index * 7 % 11 - 5)) for index in range(33))
            given = {"samples": Samples(taken)} if "samples" not in of_record else {}
            told.append((job, a_header(job=job, **of_header), [a_record(**given, **of_record)]))
        return summary.document(told)

    return make


def launched(*seconds: float, **of_record: Any) -> dict[str, tuple[float, dict[str, Any], dict[str, Any]]]:
    """Launches 1, 2, ... of one job with these medians, named as plans name them."""
    return {
        f"allreduce-mpi-1x2{f'-launch{number}' if number > 1 else ''}": (each, {"launch": number}, of_record)
        for number, each in enumerate(seconds, start=1)
    }


def test_launches_of_one_case_are_one_spread_with_both_kinds_of_scatter(a_run: Make) -> None:
    run = a_run(launched(1e-4, 1.1e-4, 1.2e-4, 1.3e-4, 1.4e-4))
    [spread] = run.spreads
    assert spread.job == "allreduce-mpi-1x2" and spread.jobs[1:] == tuple(
        f"allreduce-mpi-1x2-launch{number}" for number in range(2, 6)
    )
    assert (spread.num_launches, spread.payload_bytes, spread.mode) == (5, 1 << 20, "isolated")
    assert spread.median_s == pytest.approx(1.2e-4) and spread.min_s == pytest.approx(1e-4)
    logs = np.log([1, 1.1, 1.2, 1.3, 1.4])
    assert spread.between == pytest.approx(float(logs.std(ddof=1)))
    assert spread.within is not None and spread.within < 0.01 < (spread.between or 0)
    half = 2.7764451 * logs.std(ddof=1) / math.sqrt(5)  # t of 4 degrees of freedom
    assert spread.ci_low_s == pytest.approx(1e-4 * math.exp(logs.mean() - half))
    assert spread.ci_high_s == pytest.approx(1e-4 * math.exp(logs.mean() + half))


def test_one_launch_has_no_spread_and_two_have_no_interval(a_run: Make) -> None:
    one, two = a_run(launched(1e-4)), a_run(launched(1e-4, 2e-4))
    assert one.spreads == ()
    [spread] = two.spreads
    assert spread.between is not None and (spread.ci_low_s, spread.ci_high_s) == (None, None)


def test_a_job_that_was_completed_later_is_one_launch_and_the_later_row_holds(a_run: Make) -> None:
    jobs = launched(1e-4, 1.1e-4)
    run = a_run(jobs | {"allreduce-mpi-1x2#2": (3e-4, {"launch": 1, "environment": {"SLURM_CPU_BIND": "x"}}, {})})
    [spread] = run.spreads
    assert spread.num_launches == 2 and spread.max_s == pytest.approx(3e-4)
    assert set(spread.jobs) == {"allreduce-mpi-1x2#2", "allreduce-mpi-1x2-launch2"}


@pytest.mark.parametrize(
    "bad", [{"verified": False, "num_wrong": 3}, {"samples": Samples((1e-4, math.nan))}, {"samples": Samples(())}]
)
def test_launches_that_got_wrong_data_or_no_times_do_not_count(a_run: Make, bad: dict[str, Any]) -> None:
    jobs = launched(1e-4, 1.1e-4)
    jobs["allreduce-mpi-1x2-launch3"] = (9e-4, {"launch": 3}, bad)
    run = a_run(jobs)
    [spread] = run.spreads
    assert spread.num_launches == 2 and spread.max_s < 2e-4


@pytest.mark.parametrize(
    ("of_header", "of_record"),
    [
        ({"case": ("allreduce", "--transport", "mpi", "--order", "reverse")}, {}),
        ({"num_ranks": 8, "ranks_per_node": 4}, {}),
        ({"facts": {"mpi_library": "another"}}, {}),
        ({"dtype": "float64"}, {}),
        ({"environment": {"NCCL_ALGO": "Tree"}}, {}),
        ({"case": ("allreduce", "--transport", "mpi", "--graph", "1")}, {}),
        ({"case": ("allreduce", "--transport", "mpi", "--share-gpu", "1")}, {}),
        ({}, {"flags": ("through-host",)}),
        ({}, {"mode": "pipelined"}),
        ({}, {"payload_bytes": 64}),
        ({}, {"group": "node0"}),
        ({}, {"src": 0, "dst": 1}),
        ({}, {"in_place": True}),
        ({}, {"cache": "hot"}),
        ({}, {"samples": Samples((1e-4,) * 30, loop="compiled")}),
    ],
)
def test_rows_that_differ_in_a_factor_are_not_launches_of_each_other(
    a_run: Make, of_header: dict[str, Any], of_record: dict[str, Any]
) -> None:
    run = a_run({"a": (1e-4, {}, {}), "b": (1e-4, of_header, of_record)})
    assert len(launches.cells(run.headers, run.summaries)) == 2
    assert run.spreads == ()


@pytest.mark.parametrize(
    ("pattern", "option", "value"),
    [
        ("host_device", "--memory", "pageable"),
        ("local_copy", "--engine", "sm"),
        ("peer_copy", "--access", "read"),
        ("peer_copy", "--via", "process"),
    ],
)
def test_copies_of_another_kind_are_not_launches_of_each_other(
    a_run: Make, pattern: str, option: str, value: str
) -> None:
    of = {"pattern": pattern, "transport": "cuda_copy"}
    run = a_run(
        {
            "a": (1e-4, of | {"case": (pattern,)}, {}),
            "b": (1e-4, of | {"case": (pattern, option, value)}, {}),
            "c": (1e-4, of | {"case": (pattern,), "launch": 2}, {}),
        }
    )
    [spread] = run.spreads
    assert spread.jobs == ("a", "c")


def test_sizes_budgets_and_what_a_launcher_sets_for_itself_tell_no_rows_apart(a_run: Make) -> None:
    case = ("allreduce", "--transport", "mpi", "--sizes", "1M", "--budget", "3.0s")
    run = a_run({"a": (1e-4, {}, {}), "b": (1e-4, {"case": case, "environment": {"OMPI_ARGV": "--job b"}}, {})})
    assert run.spreads[0].num_launches == 2


def test_variables_of_a_scenario_are_factors_in_every_launch(a_run: Make) -> None:
    jobs: dict[str, tuple[float, dict[str, Any], dict[str, Any]]] = {}
    for number in (1, 2):
        for value in ("Ring", "Tree"):
            variables = {"NCCL_ALGO": value, "SLURM_CPU_BIND": "x" * number}
            jobs[f"{value}-{number}"] = (1e-4, {"launch": number, "environment": variables}, {})
    run = a_run(jobs)
    assert launches.varied_variables(run.headers) == ("NCCL_ALGO",)
    assert [spread.jobs for spread in run.spreads] == [
        ("Ring-1", "Ring-2"),
        ("Tree-1", "Tree-2"),
    ]


def test_a_case_that_this_suite_did_not_write_is_no_error(a_run: Make) -> None:
    run = a_run({"a": (1e-4, {"case": ()}, {}), "b": (2e-4, {"case": ("osu_allreduce", "-x")}, {})})
    assert run.spreads[0].num_launches == 2


@pytest.mark.parametrize(("num_launches", "sigma"), [(3, 0.02), (5, 0.3), (10, 0.02)])
def test_the_interval_over_launches_covers_the_true_median_in_95_of_100_runs(num_launches: int, sigma: float) -> None:
    rng = np.random.default_rng(5)
    runs = rng.lognormal(0.0, sigma, (2000, num_launches))
    found = [launches.interval(run.tolist()) for run in runs]
    covered = sum(each is not None and each[0] <= 1 <= each[1] for each in found) / len(found)
    assert 0.935 <= covered <= 0.97


def test_the_interval_holds_the_median_of_skewed_launches() -> None:
    medians = [1.0] * 20 + [1.5] * 14
    found = launches.interval(medians)
    assert found is not None and found[0] <= 1.0 <= found[1]
