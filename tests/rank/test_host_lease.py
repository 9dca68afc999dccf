"""One benchmark at a time measures on a host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.core.errors import EXIT_REFUSED, RefusedError
from bench.core.world import RankInfo
from bench.probes import benchmarks
from bench.probes.processes import JOB_VARIABLE
from bench.rank import host_lease
from bench.rank.messages import RankRefusal

FIRST, SECOND = RankInfo(0, 2, 0, 2, "direct"), RankInfo(1, 2, 1, 2, "direct")
HOLDER = """
import sys
from bench.core.world import RankInfo
from bench.rank import host_lease
with host_lease.held(RankInfo(0, 1, 0, 1, "direct"), False):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_lease, "_WAIT_S", 0.0)


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    """Another benchmark's rank with the lease."""
    env = {**os.environ, JOB_VARIABLE: "other-run/allreduce/7"}
    with subprocess.Popen(
        (sys.executable, "-c", HOLDER), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_second_benchmark_is_refused_with_the_first_ones_run_process_and_user(
    holder: subprocess.Popen[bytes],
) -> None:
    with pytest.raises(RefusedError) as refused, host_lease.held(FIRST, share=False):
        pass
    error = refused.value
    assert (error.code, error.exit_code, error.of_one_rank) == (RankRefusal.HOST_IN_USE, EXIT_REFUSED, True)
    assert (error.facts["pid"], error.facts["user"]) == (str(holder.pid), str(os.getuid()))
    assert error.facts["job"] == "other-run/allreduce/7"
    with host_lease.held(SECOND, share=False), host_lease.held(FIRST, share=True):
        pass


def test_the_lease_ends_with_its_holder_and_is_one_for_all_ranks_of_a_host(holder: subprocess.Popen[bytes]) -> None:
    holder.kill()
    holder.wait()
    with host_lease.held(FIRST, share=False), host_lease.held(SECOND, share=False):
        pass
    with host_lease.held(FIRST, share=False):
        pass


@pytest.mark.parametrize(("work", "measures"), [("while :; do :; done", True), ("sleep 60 & wait", False)])
def test_another_tools_benchmark_is_found_and_one_that_waits_is_not_accused(
    work: str, measures: bool, tmp_path: Path
) -> None:
    program = tmp_path / "all_reduce_perf"
    shutil.copy("/bin/sh", program)
    with subprocess.Popen((program, "-c", work), start_new_session=True) as process:
        found = [one for one in benchmarks.running("") if one.process == process.pid]
        mine = {**os.environ, JOB_VARIABLE: "mine"}
        os.killpg(process.pid, 9)
    assert [(one.program, one.measures) for one in found] == [("all_reduce_perf", measures)]
    with subprocess.Popen((program, "-c", work), start_new_session=True, env=mine) as process:
        assert all(one.process != process.pid for one in benchmarks.running("mine"))
        os.killpg(process.pid, 9)
