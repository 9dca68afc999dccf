"""Ranks that share a NIC slow each other, ranks that do not leave each other alone; a wrong order shows."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import bench
from tests.testbed.hosts import Testbed

pytestmark = [pytest.mark.netns, pytest.mark.slow]
ROOT = Path(bench.__file__).resolve().parent.parent
Make = Callable[..., Testbed]


def measured(
    bed: Testbed, ranks_per_node: int, launcher: str = "mpirun", max_s: float = 4, **measure: Any
) -> dict[str, Any]:
    """The JSON document of a scenario of one entry, started from the first host."""
    cluster = {
        "nodes": len(bed.hosts),
        "ranks_per_node": ranks_per_node,
        "hosts": list(bed.hosts),
        "launcher": launcher,
        "agent": bed.agent,
    }
    (bed.shared / "bench.yaml").write_text(yaml.safe_dump({"clusters": {"bed": cluster}}))
    (bed.shared / "one.yaml").write_text(yaml.safe_dump({"max_seconds": max_s, "measure": [measure]}))
    words = [
        "run",
        str(bed.shared / "one.yaml"),
        "--config",
        str(bed.shared / "bench.yaml"),
        "--cluster",
        "bed",
        "--results",
        str(bed.shared / "results"),
        "--no-plots",
        "--format",
        "json",
    ]
    variables = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    ran = bed.on("h0", [sys.executable, "-m", "bench", *words], env=variables, cwd=bed.shared, timeout_s=110)
    assert ran.code == 0, ran.err
    document: dict[str, Any] = json.loads(ran.out)
    return document


# A window of messages one way fills a link; both ways at once, rendezvous messages wait behind data in the same queues.
PAIR: dict[str, Any] = {
    "pattern": "pingpong",
    "sizes": "1M",
    "mode": "pipelined",
    "window": 4,
    "aggressor": "pingpong:1M",
}


@pytest.mark.parametrize(("transport", "launcher"), [("mpi", "mpirun"), ("gloo", "torchrun")])
def test_two_pairs_on_one_nic_share_it(testbed: Make, transport: str, launcher: str) -> None:
    bed = testbed(2, rate="400mbit")
    (found,) = measured(bed, 2, launcher, transport=transport, **PAIR)["interferences"]
    assert found["factor_low"] < found["factor"] < found["factor_high"]
    assert 1.5 < found["factor"] < 2.7  # 2, and how fair TCP is within seconds
    assert found["factor_low"] > 1.2
    # What both get together is what the link carries: 50 MB/s less headers.
    together = found["aggressor_bytes_per_s"] + found["payload_bytes"] / found["disturbed_s"]
    assert 0.75 * 50e6 < together < 1.1 * 50e6
    assert found["num_blocks_not_covered"] == 0


def test_two_pairs_on_nics_of_their_own_do_not(testbed: Make) -> None:
    bed = testbed(4, rate="200mbit")
    (found,) = measured(bed, 1, transport="mpi", split="0,1/2,3", **PAIR)["interferences"]
    assert found["factor"] == pytest.approx(1.0, abs=0.2)
    assert found["aggressor_bytes_per_s"] > 0.7 * 25e6


def test_an_order_that_crosses_the_network_at_every_step_shows(testbed: Make) -> None:
    bed = testbed(4, rate="100mbit")
    document = measured(
        bed,
        2,
        max_s=2,
        transport="mpi",
        pattern="sendrecv",
        sizes="1M",
        mode="pipelined",
        order=["linear", "interleaved"],
    )
    (found,) = document["scalings"]
    assert (found["factor"], found["value"], found["reference"]) == ("order", "interleaved", "linear")
    assert 0.35 < found["efficiency"] < 0.75  # a NIC carries two messages each way in place of one
    assert found["efficiency_high"] < 0.85
