"""Training steps between hosts on links of a known rate: the exposed exchange is what the formula says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.testbed.hosts import Testbed
from tests.testbed.site import measured, settles

pytestmark = [pytest.mark.torch, pytest.mark.slow]
Make = Callable[..., Testbed]
LAYERS, BACKWARD_S = 8, 0.01
TIMED = ("step", "--timed", f"layers={LAYERS},forward=1ms,backward={BACKWARD_S}s,bytes=1M", "--bucket", "1M")


def exposed_s(alone_s: float, queued_s: float) -> float:
    """b/k + a + (k - 1) q - b: what the backward pass does not hide if buckets wait for the link."""
    return BACKWARD_S + alone_s + (LAYERS - 1) * queued_s - LAYERS * BACKWARD_S


@pytest.mark.parametrize("method", ["inside_s", "seconds"])
def test_the_exposed_exchange_is_that_of_the_formula(testbed: Make, method: str) -> None:
    bed = testbed(2, rate="400mbit")

    def share_of_formula() -> float:
        rows = measured(bed, 2, 1, "allreduce", "--sizes", "1M")["summaries"]
        of_mode = {row["mode"]: row["median_s"] for row in rows}
        (step,) = measured(bed, 2, 1, *TIMED)["steps"]
        found: float = step["exposed_by_removal"][method]
        return found / exposed_s(of_mode["isolated"], of_mode["pipelined"])

    assert settles(share_of_formula, pytest.approx(1.0, rel=0.05))


@pytest.mark.parametrize("segment", ["data", "host", "h2d", "forward", "backward"])
def test_a_late_rank_is_named_with_its_segment(testbed: Make, segment: str) -> None:
    bed = testbed(2, rate="1gbit")

    def late() -> Any:
        delay = ("--inject", f"rank=1,segment={segment},delay=60ms")
        (step,) = measured(bed, 2, 1, *TIMED, *delay, "-n", "21")["steps"]
        assert (step["late_rank"], step["late_segment"]) == (1, segment)
        return step["late_s"]

    assert settles(late, pytest.approx(0.06, rel=0.05))
