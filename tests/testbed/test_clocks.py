"""Hosts whose clocks are apart, on a line with a delay: what is said of both is true within its stated bound."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bench.core.launcher import LaunchSite
from bench.core.world import World
from bench.launchers import mpirun, torchrun
from tests.testbed.hosts import Testbed

pytestmark = [pytest.mark.netns, pytest.mark.mpi]
ROOT = Path(__file__).resolve().parent.parent.parent
AHEAD_S = {"h1": 1000}
DELAY_S = 1e-3


Measured = Callable[..., Any]


@pytest.fixture
def bed(testbed: Callable[..., Testbed]) -> Testbed:
    """Two hosts whose clocks are 1000 s apart, 1 ms of way from each other."""
    return testbed(2, delay_s=DELAY_S, clocks=AHEAD_S)


@pytest.fixture
def measured(bed: Testbed, missing: Callable[[str, str], NoReturn]) -> Measured:
    """`measured(pattern, options..., transport=...)`: the JSON document of a run, one rank on each host."""
    scripts = Path(sys.executable).parent
    if not (scripts / "mpirun").exists():
        missing("mpi", "no mpirun beside the interpreter")
    site = LaunchSite(python=sys.executable, mpirun=str(scripts / "mpirun"), hosts=bed.hosts, agent=tuple(bed.agent))

    def run(pattern: str, *options: str, transport: str = "mpi") -> Any:
        launcher = torchrun.LAUNCHER if transport == "gloo" else mpirun.LAUNCHER
        ours = {
            "PYTHONPATH": str(ROOT),
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "BENCH_CARRY": "PYTHONPATH",
            **launcher.environment(site),
        }
        program = ["-m", f"bench.{pattern}", "--transport", transport, "--format", "json", "--deadline", "60", *options]
        words = launcher.command(program, World(2, 1), site, {"PYTHONPATH": str(ROOT)})
        ran = bed.on(bed.hosts[0], words, env=ours, timeout_s=100)
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    return run


def by_group(document: Any) -> dict[str, Any]:
    return {row["group"]: row for row in document["summaries"]}


def test_a_delay_of_1_ms_each_way_is_a_round_trip_of_2_ms(measured: Measured) -> None:
    document = measured("pingpong", "--sizes", "8", "--mode", "isolated", "-n", "400")
    (row,) = document["summaries"]
    # The least: a busy machine only adds. A very busy one delays every sample, because a process carries the packets.
    assert row["min_s"] >= 0.85 * DELAY_S
    assert row["min_s"] == pytest.approx(DELAY_S, rel=0.15) or "busy-host" in row["flags"]
    (header,) = document["headers"].values()
    (found,) = header["calibration"]["clocks"].values()
    assert abs(found["offset_s"] - AHEAD_S["h1"]) <= found["bound_s"]
    assert found["bound_s"] >= 0.99 * DELAY_S  # half of the round trip: nothing can know more
    assert abs(found["drift"]) <= found["drift_bound"]
    assert header["calibration"]["sync_skew_bound_s"] >= DELAY_S


@pytest.mark.slow
@pytest.mark.torch
def test_over_gloo_a_delay_of_1_ms_is_found_and_one_way_times_are_marked(measured: Measured) -> None:
    rows = by_group(measured("oneway", "--sizes", "8", "--mode", "isolated", "-n", "200", transport="gloo"))
    assert set(rows) == {"0-1", "1-0"}
    for row in rows.values():
        assert abs(row["min_s"] - DELAY_S) <= row["clock_bound_s"]
        assert row["clock_bound_s"] >= 0.99 * DELAY_S
        assert "clock-limited" in row["flags"] and row["busbw_bytes_per_s"] is None


@pytest.mark.slow
def test_one_way_times_hold_the_delay_within_their_bound_and_are_marked(bed: Testbed, measured: Measured) -> None:
    options = ("--sizes", "8", "--mode", "isolated", "-n", "200")
    for there_s, back_s in ((DELAY_S, DELAY_S), (DELAY_S, 3 * DELAY_S)):
        bed.delay(back_s, "h1", "h0")
        rows = by_group(measured("oneway", *options))
        assert set(rows) == {"0-1", "1-0"}
        for name, truth_s in (("0-1", there_s), ("1-0", back_s)):
            row = rows[name]
            assert abs(row["min_s"] - truth_s) <= row["clock_bound_s"]
            assert row["clock_bound_s"] >= 0.99 * (there_s + back_s) / 2
            assert "clock-limited" in row["flags"] and row["busbw_bytes_per_s"] is None
        assert rows["0-1"]["min_s"] + rows["1-0"]["min_s"] == pytest.approx(there_s + back_s, rel=0.15)


@pytest.mark.slow
def test_a_time_that_is_long_beside_the_bound_is_exact(bed: Testbed, measured: Measured) -> None:
    for sender, receiver in (bed.hosts, bed.hosts[::-1]):
        bed.delay(0.0, sender, receiver)
    bed.slow("h0", "200mbit")
    rows = by_group(measured("oneway", "--sizes", "4M", "--mode", "isolated", "-n", "10"))
    for row in rows.values():
        assert row["clock_bound_s"] < 0.1 * row["median_s"]
        assert "clock-limited" not in row["flags"]
        assert 0.5 < row["busbw_bytes_per_s"] / (200e6 / 8) < 0.956 * 1.02  # the payload's share of a frame
