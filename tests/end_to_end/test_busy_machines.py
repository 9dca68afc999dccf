"""Real ranks beside other programs: the rows, the hosts and the summary say so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]
Start = Callable[[int], tuple[str, ...]]

# Enough samples for the 50 ms below which CPU time is not judged, however fast the row converges.
ROWS = ("--sizes", "1M", "--mode", "isolated", "-n", "500", "--max-seconds", "3s", "--format", "json")


@pytest.mark.mpi
def test_programs_beside_the_ranks_are_noticed_and_named(run: Run, mpirun: Start) -> None:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        ran = run(*mpirun(2), "-m", "bench.allreduce", *ROWS)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert ran.code == 0, ran.err
    document: dict[str, Any] = json.loads(ran.out)
    [row] = document["summaries"]
    assert "busy-host" in row["flags"]
    [use] = row["hosts"]
    assert use["num_ranks"] == 2
    assert 0 < use["ours_s"] < use["used_s"]
    assert document["summary"][0]["code"] == "busy"
    [header] = document["headers"].values()
    [node] = header["nodes"].values()
    programs = {program["process"] for program in node["after"]["programs"]}
    assert programs
    assert not programs & {rank["process"] for rank in header["ranks"]}, "the ranks are not other programs"
    assert len(node["before"]["load"]) == 3
