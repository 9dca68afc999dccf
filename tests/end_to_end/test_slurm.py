"""Through a real Slurm of four hosts: submitted by sbatch, started by srun, with a code for every end."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from bench.controller.messages import AllocationCode
from bench.store import jsonl
from tests.facts import holds
from tests.testbed import hosts, slurm
from tests.testbed.hosts import Ran, Remote, Testbed
from tests.testbed.slurm import Slurm

pytestmark = [pytest.mark.slurm, pytest.mark.netns, pytest.mark.mpi, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parent.parent.parent
BENCH = [sys.executable, "-m", "bench"]
# The controller's environment on the login node; Slurm sets that of the ranks.
ENV = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]), "PYTHONPATH": str(ROOT)}

CLUSTERS = """\
clusters:
  slurm-test:
    nodes: 4
    ranks_per_node: 1
    launcher: slurm
    options: {partition: all, gpus-per-node: 8, exclusive: ''}
  nowhere: {nodes: 4, ranks_per_node: 1, launcher: slurm, options: {partition: gpu}}
  held: {nodes: 4, ranks_per_node: 1, launcher: slurm, options: {hold: ''}}
  short: {nodes: 2, ranks_per_node: 1, launcher: slurm, options: {time: 1}}
  apart: {nodes: 2, ranks_per_node: 1, launcher: slurm, options: {mpi: none}}
"""
QUICK = """\
budget: 1h
max_seconds: 0.05
measure:
  - {patterns: [allreduce, sendrecv], transport: mpi, sizes: [64, 4K], mode: isolated, iterations: 20}
"""
LONG = """\
max_seconds: 1.5
measure:
  - {patterns: [allreduce, barrier], transport: mpi, sizes: [8, 64, 512, 4K], mode: isolated, iterations: 200}
"""
ENDLESS = """\
max_seconds: 600
measure:
  - {pattern: allreduce, transport: mpi, sizes: [8], mode: isolated, iterations: 10}
  - {patterns: [allreduce, alltoall, sendrecv, broadcast], transport: mpi, sizes: 8:64K:2, iterations: 20000}
"""

BESIDE = """\
max_seconds: 0.05
measure:
  - {pattern: allreduce, transport: mpi, tools: osu, like: osu, sizes: [8], iterations: 20, warmup: 2}
"""
# Stands in for OSU: the first rank prints a table, and the host lease's holder.
OSU = """#!/bin/sh
[ "$SLURM_PROCID" = 0 ] || exit 0
grep -o '@linkbench-holder.*' /proc/net/unix >&2
echo "# OSU MPI Allreduce Latency Test v7.4"
echo "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"
echo "8   1.00  0.90  1.10  20"
"""


@pytest.fixture(scope="module")
def started() -> Iterator[Slurm | str]:
    """A cluster for all tests here; why there is none."""
    reason = slurm.why_not() or hosts.why_not()
    if reason is not None:
        yield reason
        return
    with Testbed(4) as bed, Slurm(bed) as cluster:
        yield cluster


@pytest.fixture
def cluster(started: Slurm | str, missing: Callable[[str, str], NoReturn]) -> Iterator[Slurm]:
    """That cluster, with nothing in its queue before and after."""
    if isinstance(started, str):
        missing("slurm", started)
    yield started
    for job in started.jobs():
        started.ask("scancel", job)
    started.until(lambda: not started.jobs())


@pytest.fixture
def site(cluster: Slurm) -> Iterator[Path]:
    """A folder on the shared file system with a bench.yaml and scenarios of its own."""
    folder = cluster.bed.shared / f"site-{os.urandom(4).hex()}"
    (folder / "scenarios").mkdir(parents=True)
    (folder / "bench.yaml").write_text(CLUSTERS, encoding="utf-8")
    (folder / "scenarios" / "quick.yaml").write_text(QUICK, encoding="utf-8")
    (folder / "scenarios" / "long.yaml").write_text(LONG, encoding="utf-8")
    (folder / "scenarios" / "endless.yaml").write_text(ENDLESS, encoding="utf-8")
    yield folder


def ran(cluster: Slurm, site: Path, words: list[str], timeout_s: float = 250) -> Ran:
    remote = cluster.start(words, ENV, site)
    return Ran(remote.wait(timeout_s), remote.out, remote.err)


def begun(cluster: Slurm, site: Path) -> tuple[Remote, Path]:
    """A long run with its first row on disk; and its folder."""
    controller = cluster.start(
        ["env", "--default-signal=INT", *BENCH, "run", "long", "--cluster", "slurm-test", "--no-plots"], ENV, site
    )
    cluster.until(lambda: controller.poll() is not None or any(rows(site)), 150)
    assert controller.poll() is None, controller.err
    [folder] = (site / "results").iterdir()
    return controller, folder


def rows(site: Path) -> list[int]:
    """How many rows each job of the only run has."""
    found = []
    for file in site.glob("results/*/*.jsonl"):
        with contextlib.suppress(Exception):  # its header is being written
            found.append(sum(len(attempt.records) for attempt in jsonl.read(file).attempts))
    return found


def ends(folder: Path) -> set[tuple[str, str]]:
    """Code and Slurm job of each job that failed."""
    outcomes = json.loads((folder / "outcomes.json").read_text()).values()
    return {(outcome["code"], outcome["facts"]["job_id"]) for outcome in outcomes if outcome["what"] is not None}


def test_make_bench_submits_one_job_for_all_and_prints_the_tables(cluster: Slurm, site: Path) -> None:
    for name in ("bench", "Makefile"):
        (site / name).symlink_to(ROOT / name)
    words = ["make", "bench", "CLUSTER=slurm-test", "SCENARIO=quick", "VENV=none", f"PYTHON={sys.executable}"]
    done = ran(cluster, site, words)
    assert done.code == 0, done.err
    for pattern in ("allreduce", "sendrecv"):
        assert holds(done.out, pattern, "mpi,", "4 ranks", "4 nodes")
    assert "# hosts     h[0-3]" in done.out
    [folder] = (site / "results").iterdir()
    script = (folder / "slurm.sh").read_text()
    assert "#SBATCH --partition=all" in script and "#SBATCH --nodes=4" in script and "srun" not in script
    assert done.err.count(": submitted") == 1 and "[2/2] sendrecv-mpi-4x1" in done.err
    outcomes = json.loads((folder / "outcomes.json").read_text())
    assert [outcome["what"] for outcome in outcomes.values()] == [None, None]


@pytest.mark.slow
def test_the_rows_of_a_cancelled_job_are_kept_and_resume_measures_the_rest(cluster: Slurm, site: Path) -> None:
    controller, folder = begun(cluster, site)
    [number] = cluster.jobs()
    cluster.ask("scancel", number)
    assert controller.wait(200) == 4
    assert holds(controller.out, "allreduce", "mpi,", "4 ranks", "4 nodes"), "what was measured is shown"
    before = sum(rows(site))
    assert before >= 1
    assert ends(folder) == {(AllocationCode.CANCELLED, number)}
    again = ran(cluster, site, [*BENCH, "run", "--resume", str(folder), "--no-plots", "--format", "json"])
    assert again.code == 0, again.err
    assert len(json.loads(again.out)["summaries"]) == 4 + 1


@pytest.mark.slow
def test_a_job_that_reaches_its_time_limit_has_its_code(cluster: Slurm, site: Path) -> None:
    # Limits are whole minutes, and looked at twice a minute: this waits 60 to 90 seconds.
    done = ran(cluster, site, [*BENCH, "run", "endless", "--cluster", "short", "--no-plots"], timeout_s=200)
    assert done.code == 4
    [folder] = (site / "results").iterdir()
    assert {code for code, _ in ends(folder)} == {AllocationCode.TIMEOUT}
    assert sum(rows(site)) >= 1


@pytest.mark.slow
def test_a_node_that_goes_down_is_named(cluster: Slurm, site: Path) -> None:
    controller, folder = begun(cluster, site)
    [number] = cluster.jobs()
    cluster.fail("h2")
    try:
        assert controller.wait(200) == 4
        assert ends(folder) == {(AllocationCode.NODE_FAIL, number)}
        assert "node h2 (down: power lost)" in controller.err
    finally:
        cluster.mend("h2")


def test_ctrl_c_at_the_controller_cancels_the_job_and_keeps_the_rows(cluster: Slurm, site: Path) -> None:
    controller, folder = begun(cluster, site)
    controller.signal(signal.SIGINT)
    assert controller.wait(200) == 130
    assert not cluster.jobs()
    assert f"bench run --resume results/{folder.name}" in controller.err
    assert sum(rows(site)) >= 1
    assert not cluster.bed.processes("BENCH_JOB", folder.name)


@pytest.mark.slow
def test_a_killed_controller_in_an_allocation_that_goes_on_leaves_no_process(cluster: Slurm, site: Path) -> None:
    run = shlex.join([*BENCH, "run", "long", "--cluster", "slurm-test", "--no-plots"])
    allocation = cluster.start(["salloc", "--nodes=4", "sh", "-c", f"{run}; sleep 100"], ENV, site)
    cluster.until(lambda: allocation.poll() is not None or any(rows(site)), 150)
    [controller] = [process for process in cluster.bed.processes() if process.words.startswith(run)]
    ranks = [process for process in cluster.bed.processes("BENCH_JOB") if "bench.allreduce" in process.words]
    assert {process.host for process in ranks} == set(cluster.bed.hosts)
    os.kill(controller.number, signal.SIGKILL)
    killed = time.monotonic()
    cluster.until(lambda: not cluster.bed.processes("BENCH_JOB"), 60)
    print(f"all processes were gone after {time.monotonic() - killed:.1f} s")
    assert time.monotonic() - killed < 10 + 3
    assert cluster.jobs(), "the allocation goes on"


def test_what_slurm_does_not_accept_is_refused_in_its_words(cluster: Slurm, site: Path) -> None:
    done = ran(cluster, site, [*BENCH, "run", "quick", "--cluster", "nowhere"])
    assert done.code == 3
    assert "invalid partition specified: gpu" in done.err and "`options:`" in done.err
    assert not list((site / "results").iterdir()), "a run that never was leaves nothing"


@pytest.mark.slow
def test_a_job_that_can_never_start_is_refused_and_leaves_the_queue(cluster: Slurm, site: Path) -> None:
    done = ran(cluster, site, [*BENCH, "run", "quick", "--cluster", "held"])
    assert done.code == 3
    assert "(JobHeldUser)" in done.err
    assert not cluster.jobs()


@pytest.mark.slow
def test_inside_an_allocation_srun_is_used_at_once(cluster: Slurm, site: Path) -> None:
    words = ["salloc", "--nodes=4", *BENCH, "run", "quick", "--cluster", "slurm-test", "--no-plots"]
    done = ran(cluster, site, words)
    assert done.code == 0, done.err
    assert holds(done.out, "4 ranks", "4 nodes") and "submitted" not in done.err


@pytest.mark.slow
def test_ranks_that_do_not_see_each_other_are_refused_with_the_option_to_set(cluster: Slurm, site: Path) -> None:
    done = ran(cluster, site, [*BENCH, "run", "quick", "--cluster", "apart", "--no-plots"])
    assert done.code in (3, 4)
    assert "`mpi: pmi2`" in done.err and "`mpi: pmix`" in done.err


@pytest.mark.slow
def test_another_tools_job_holds_the_leases_of_its_hosts(cluster: Slurm, site: Path) -> None:
    (site / "scenarios" / "beside.yaml").write_text(BESIDE, encoding="utf-8")
    program = site / "osu_allreduce"
    program.write_text(OSU, encoding="utf-8")
    program.chmod(0o755)
    words = [*BENCH, "run", "beside", "--cluster", "slurm-test", "--no-plots", "--tool-path", str(site)]
    done = ran(cluster, site, words)
    assert done.code == 0, done.err
    [folder] = (site / "results").iterdir()
    assert f"{folder.name}/allreduce-osu-4x1" in (folder / "allreduce-osu-4x1-osu.log").read_text()
