"""A search on real ranks over a link of a known rate: the bucket that the formula calls best is found."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.testbed import site
from tests.testbed.hosts import Testbed

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(2400)]
# b = 40 ms of backward, a = 22 ms for 1 MiB at 400 Mbit/s: buckets of 1 MiB expose max(b + a, b/4 + 4a) - b = 58 ms of
# the exchange, one bucket exposes all 88 ms, and torch's own (1 MiB, then the rest) lie between
TIMED = "layers=4,forward=1ms,backward=10ms,bytes=1M"


def test_the_best_bucket_of_a_slow_link_is_found(testbed: Callable[..., Testbed]) -> None:
    bed = testbed(2, rate="400mbit")
    folder = site.make(bed, [{"pattern": "step"}], launcher="torchrun", ranks_per_node=1)
    words = ["tune", "step", "--cluster", "bed", "--timed", TIMED, "-n", "7", "--try", "bucket=1M,4M"]
    words += ["--budget", "40m", "--format", "json"]
    ran = bed.on(bed.hosts[0], [*site.BENCH, *words], env={"PYTHONPATH": str(site.ROOT)}, cwd=folder, timeout_s=2300)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert (found["verdict"], found["chosen"]) == ("faster", {"bucket": "1M"})
    assert found["gain"]["low"] > 1
