"""Jobs of other tools end with their controller on every host, and hold the leases of their hosts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bench.controller import guard
from bench.core.errors import EXIT_DONE, EXIT_REFUSED
from bench.rank.messages import RankRefusal
from tests.testbed import faults, site
from tests.testbed.hosts import Testbed
from tests.testbed.test_killed_controller import SLACK_S, WITHIN_S

pytestmark = [pytest.mark.netns, pytest.mark.slow]
ENGINES = ("mpich", "openmpi")
# Stands in for OSU: each process waits while a file is there, and the first then prints a table.
PROGRAM = """#!/bin/sh
touch {folder}/started-$$
while [ -e {folder}/waits ]; do sleep 0.1; done
[ "${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}}" = 0 ] || exit 0
echo "# OSU MPI Allreduce Latency Test v7.4"
echo "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"
echo "8   1.00  0.90  1.10  10"
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_tool_job_takes_the_leases_of_its_controller_and_hosts(
    engine: str, testbed: Callable[..., Testbed], missing: Callable[[str, str], NoReturn]
) -> None:
    if (reason := faults.why_not(engine)) is not None:
        missing(engine, reason)
    bed = testbed(2)
    row = {"pattern": "allreduce", "transport": "mpi", "tools": "osu", "like": "osu", "sizes": [8]}
    folder = site.make(
        bed,
        [{**row, "iterations": 10, "warmup": 1}],
        ranks_per_node=1,
        launcher="mpirun",
        env=faults._SHARING,
        python=faults.interpreter(engine),
    )
    program = folder / "osu_allreduce"
    program.write_text(PROGRAM.format(folder=folder))
    program.chmod(0o755)
    (folder / "waits").touch()
    words = [*site.BENCH, "run", "it", "--cluster", "bed", "--no-plots", "--tool-path", str(folder)]
    env = {"PYTHONPATH": str(site.ROOT)}
    first = bed.popen("h0", words, env=env, cwd=folder)

    def wait(happened: Callable[[], object], timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while not happened():
            assert time.monotonic() < end, f"{bed.processes('BENCH_JOB')} {first.err}"
            time.sleep(0.1)

    wait(lambda: len(list(folder.glob("started-*"))) == 2, 100)
    (first_run,) = folder.glob("results/2*")

    refused = bed.on("h0", [*words, "--results", "second"], env=env, cwd=folder, timeout_s=100)
    assert refused.code == EXIT_REFUSED, refused.err
    for outcome in _outcomes(folder / "second"):
        assert outcome["code"] == RankRefusal.HOST_IN_USE and first_run.name in outcome["facts"]["job"]

    guards = [process for process in bed.processes() if guard.__name__ in process.words]
    agents = [process for process in bed.processes() if process.host == "h0" and "mpirun" in process.words]
    for process in guards + agents:
        with contextlib.suppress(ProcessLookupError):  # it may end with one that was killed before
            os.kill(process.number, signal.SIGKILL)
    first.signal(signal.SIGKILL)
    began = time.monotonic()
    wait(lambda: not bed.processes("BENCH_JOB"), 60)
    seconds = time.monotonic() - began
    print(f"{engine}: all processes of the tool were gone after {seconds:.1f} s")
    assert seconds < WITHIN_S + SLACK_S

    (folder / "waits").unlink()
    done = bed.on("h0", [*words, "--resume", f"results/{first_run.name}"], env=env, cwd=folder, timeout_s=100)
    assert done.code == EXIT_DONE, done.err


def _outcomes(results: Path) -> list[dict[str, Any]]:
    [outcomes] = results.glob("2*/outcomes.json")
    return list(json.loads(outcomes.read_text()).values())
