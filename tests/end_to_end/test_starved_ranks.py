"""Ranks without CPU time: a starved rank is named with its host, and equal ranks are not."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.end_to_end import starving

Run = Callable[..., Any]
Start = Callable[[int], tuple[str, ...]]
Missing = Callable[[str, str], NoReturn]

STARVING = str(Path(starving.__file__))


@pytest.fixture
def control_groups(missing: Missing) -> None:
    """Skip the test if this user may not limit CPU time."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        starving.limit(process.pid, 0.5)
        starving.unlimit(process.pid)
    except (OSError, StopIteration) as error:
        missing("cgroups", f"this user may not limit CPU time ({error})")
    finally:
        process.kill()
        process.wait()


def measured(run: Run, start: tuple[str, ...], share: float, ranks: str, *options: str) -> dict[str, Any]:
    words = (
        "allreduce",
        "--sizes",
        "64K",
        "--mode",
        "isolated",
        "--max-seconds",
        "300ms",
        "--format",
        "json",
        *options,
    )
    ran = run(*start, STARVING, str(share), ranks, *words)
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def starved_ranks(document: dict[str, Any]) -> set[tuple[int, str]]:
    return {(rank["rank"], rank["host"]) for row in document["summaries"] for rank in row["starved"]}


@pytest.mark.usefixtures("control_groups")
@pytest.mark.parametrize(
    ("engine", "num"),
    [
        pytest.param("mpirun", 2, marks=pytest.mark.mpi),
        pytest.param("mpirun", 3, marks=[pytest.mark.mpi, pytest.mark.slow]),
        pytest.param("torchrun", 3, marks=[pytest.mark.torch, pytest.mark.slow]),
    ],
)
def test_a_rank_with_1_percent_of_a_cpu_is_named_and_not_the_ranks_that_wait_for_it(
    run: Run, engine: str, num: int, request: pytest.FixtureRequest
) -> None:
    start: Start = request.getfixturevalue(engine)
    document = measured(run, start(num), 0.01, "1")
    assert starved_ranks(document) == {(1, os.uname().nodename)}
    rows = [row for row in document["summaries"] if row["starved"]]
    assert all(row["slowest_rank"] is None and "starved-rank" in row["flags"] for row in rows)
    assert all(row["starved"][0]["cpu_s"] < 0.1 * row["starved"][0]["needed_s"] for row in rows)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.usefixtures("control_groups")
@pytest.mark.parametrize(("num", "share", "ranks"), [(2, 0.1, "0,1"), (6, 1.0, "")], ids=["starved", "oversubscribed"])
def test_equal_ranks_that_all_lack_cpu_time_are_not_named(
    run: Run, mpirun: Start, num: int, share: float, ranks: str
) -> None:
    document = measured(run, mpirun(num), share, ranks)
    assert starved_ranks(document) == set()
    assert not [row for row in document["summaries"] if "starved-rank" in row["flags"]]
