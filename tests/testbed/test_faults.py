"""A sample of the fault matrix; `make test-faults` runs all of it.

BENCH_FAULT_SEED=N draws another sample. Without it the same one is drawn each time: a change is judged, not the dice.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NoReturn

import pytest

from tests.testbed import faults, hosts

pytestmark = pytest.mark.netns
NUM, SEED = 3, 15  # one of each engine


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(NUM))
def test_a_fault_is_named_ended_and_mended(number: int, missing: Callable[[str, str], NoReturn]) -> None:
    seed = int(os.environ.get("BENCH_FAULT_SEED") or SEED)
    if (reason := hosts.why_not()) is not None:
        missing("netns", reason)
    cell = faults.sampled(seed, NUM)[number]
    if (reason := faults.why_not(cell.engine)) is not None:
        missing(cell.engine, reason)
    result = faults.attempt(cell)
    assert not result.problems, f"BENCH_FAULT_SEED={seed}: {cell}: {result.trial}: " + "\n".join(result.problems)
