"""Real ranks on hosts with shaped links: the slow host, NIC or pair is named, and nobody when nothing is wrong."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.hosts import Testbed

pytestmark = [pytest.mark.netns, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parent.parent.parent
SCENARIO = """
max_seconds: 1
measure:
  - {pattern: pairs, schedule: ladder, mode: pipelined, sizes: 1M, window: 2, iterations: 8, transport: %s}
"""
Make = Callable[..., Testbed]
LAUNCHER = {"gloo": "torchrun", "mpi": "mpirun"}


def diagnosed(bed: Testbed, transport: str, folder: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of `linkbench diagnose --cluster`, typed on h0."""
    num_nics = len(bed.nics)
    cluster: dict[str, Any] = {
        "nodes": len(bed.hosts),
        "ranks_per_node": num_nics,
        "launcher": LAUNCHER[transport],
        "hosts": list(bed.hosts),
        "agent": bed.agent,
        "nics": list(bed.nics),
        "env": {
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            # All hosts share these CPUs: who waits must not spin.
            "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
        },
    }
    if transport == "mpi":
        cluster["options"] = {"iface": "eth0"}
    (folder / "bench.yaml").write_text(json.dumps({"clusters": {"bed": cluster}}))
    (folder / "links.yaml").write_text(SCENARIO % transport)
    words = [
        "--cluster",
        "bed",
        "--config",
        str(folder / "bench.yaml"),
        "--scenario",
        str(folder / "links.yaml"),
        "--results",
        str(folder / "results"),
        "--format",
        "json",
    ]
    done = bed.on(
        "h0",
        [sys.executable, "-m", "bench", "diagnose", *words],
        cwd=ROOT,
        timeout_s=600,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
    )
    assert done.out, done.err
    return done.code, json.loads(done.out)


def accused(told: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["kind"], "-".join(sorted(one["name"].split("-")))) for one in told["accused"]]


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["mpi", "gloo"])
def test_a_host_at_half_speed_is_named(transport: str, testbed: Make, tmp_path: Path) -> None:
    bed = testbed(4, rate="1gbit")
    bed.slow("h2", "500mbit")
    code, told = diagnosed(bed, transport, tmp_path)
    assert (code, accused(told)) == (1, [("host", "h2")]), told
    assert told["cleared"] == ["h0", "h1", "h3"]


@pytest.mark.slow
def test_a_pair_that_is_slow_with_each_other_is_named(testbed: Make, tmp_path: Path) -> None:
    bed = testbed(4, rate="1gbit")
    bed.slow_pair("h1", "h3", "300mbit")
    code, told = diagnosed(bed, "gloo", tmp_path)
    assert (code, accused(told)) == (1, [("link", "h1-h3")]), told


@pytest.mark.slow
def test_one_of_two_nics_is_named_and_not_its_host(testbed: Make, tmp_path: Path) -> None:
    bed = testbed(4, nics=2, rate="1gbit")
    bed.slow("h1", "500mbit", nic=1)
    code, told = diagnosed(bed, "gloo", tmp_path)
    assert (code, accused(told)) == (1, [("nic", "h1:eth1")]), told
    assert "h1:eth0" in told["cleared"]


@pytest.mark.slow
def test_nobody_is_accused_when_nothing_is_wrong(testbed: Make, tmp_path: Path) -> None:
    """BENCH_DIAGNOSE_RUNS=20 for the long form."""
    bed = testbed(4, rate="1gbit")
    for run in range(int(os.environ.get("BENCH_DIAGNOSE_RUNS", "1"))):
        code, told = diagnosed(bed, "mpi", tmp_path)
        assert (code, accused(told)) == (0, []), (run, told)
