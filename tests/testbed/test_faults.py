"""A sample of the fault matrix, other cells each time; `make test-faults` runs all of it.

BENCH_FAULT_SEED=N repeats a sample: the seed is in what a failure says.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import NoReturn

import pytest

from tests.testbed import faults, hosts

pytestmark = [pytest.mark.netns, pytest.mark.slow]
NUM = 5  # under two minutes on a machine with nothing else to do


@pytest.fixture(scope="session")
def seed(testrun_uid: str) -> int:
    """One seed for all workers of a run."""
    return int(os.environ.get("BENCH_FAULT_SEED") or random.Random(testrun_uid).randrange(10**6))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(NUM))
def test_a_fault_is_named_ended_and_mended(number: int, seed: int, missing: Callable[[str, str], NoReturn]) -> None:
    if (reason := hosts.why_not()) is not None:
        missing("netns", reason)
    cell = faults.sampled(seed, NUM)[number]
    if (reason := faults.why_not(cell.engine)) is not None:
        missing(cell.engine, reason)
    result = faults.attempt(cell)
    assert not result.problems, f"BENCH_FAULT_SEED={seed}: {cell}: {result.trial}: " + "\n".join(result.problems)
