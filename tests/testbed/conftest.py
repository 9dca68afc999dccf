"""`testbed(4, rate="1gbit")`: hosts that last as long as the test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
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
