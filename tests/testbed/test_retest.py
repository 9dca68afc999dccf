"""A slow NIC fails the gate; after its repair only its pairs are measured again, and the same run passes, openly."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.store import jsonl
from tests.testbed import site
from tests.testbed.hosts import Testbed

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(900)]
RULES = """
diagnose: true
allow: [not-converged, contradicts, no-interval]
rules:
  - {name: together, pattern: allreduce, sizes: 64K, time: at most 1s}
"""
LADDER = {
    "pattern": "pairs",
    "schedule": "ladder",
    "mode": "pipelined",
    "sizes": "1M",
    "window": 2,
    "iterations": 8,
    "transport": "mpi",
}
TOGETHER = {"pattern": "allreduce", "transport": "mpi", "mode": "isolated", "sizes": "64K"}


def bench(bed: Testbed, folder: Path, *words: str) -> tuple[int, str, str]:
    done = bed.on(
        "h0", [sys.executable, "-m", "bench", *words], env={"PYTHONPATH": str(site.ROOT)}, cwd=folder, timeout_s=300
    )
    return done.code, done.out, done.err


def gate(bed: Testbed, folder: Path) -> dict[str, Any]:
    code, out, err = bench(bed, folder, "gate", "latest", "--rules", "rules.yaml", "--format", "json")
    assert out, err
    told: dict[str, Any] = json.loads(out)
    assert code == (0 if told["passed"] else 1)
    return told


def test_the_retest_of_a_repaired_host_measures_it_alone_and_clears_it(
    testbed: Callable[..., Testbed], tmp_path: Path
) -> None:
    bed = testbed(5, rate="1gbit")
    bed.slow("h2", "400mbit")
    env = {"PYTHONPATH": str(site.ROOT), "OMP_NUM_THREADS": "1", "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1"}
    folder = site.make(
        bed,
        [LADDER, TOGETHER],
        {"max_seconds": 1},
        launcher="mpirun",
        ranks_per_node=1,
        options={"iface": "eth0"},
        env=env,
    )
    (folder / "rules.yaml").write_text(RULES, encoding="utf-8")
    ran = site.run(bed, folder, timeout_s=300)
    assert ran.code == 0, ran.err
    first = gate(bed, folder)
    assert first["failures"] == {"slow-part": 1}, first
    assert {node["host"]: node["status"] for node in first["nodes"]} == {
        host: "failed" if host == "h2" else "passed" for host in bed.hosts
    }
    bed.slow("h2", "1gbit")
    code, _, err = bench(bed, folder, "run", "--retest", "latest", "--rules", "rules.yaml", "--no-plots")
    assert code == 0, err
    [file] = folder.glob("results/*/pairs*.jsonl")
    _, again = jsonl.read(file).attempts
    hosts = {str(rank["host"]) for rank in again.header.ranks}
    assert "h2" in hosts and len(hosts) == 4
    [other] = folder.glob("results/*/allreduce*.jsonl")
    assert len(jsonl.read(other).attempts) == 1, "what passed was not measured again"
    second = gate(bed, folder)
    assert second["passed"], second["faults"]
    why = second["retests"][0]["reasons"]
    assert "slow-part" in why[0] and why[1].startswith("h2: slow-part: host h2") and second["superseded"]
