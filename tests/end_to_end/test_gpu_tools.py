"""nccl-tests beside ours through the whole controller and a real mpirun.

The program is a stand-in that moves no data and is compared with MPI: the real one and `nccl` need GPUs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.config.clusters import Cluster
from bench.controller import execute, plan, tools
from bench.controller import run as controller
from bench.controller.jobs import Job, JobSpec, LocalMachine, Site, job_of
from bench.controller.messages import OutcomeCode
from bench.controller.run import RunContext, run_jobs
from bench.core.case import Case
from bench.core.world import World
from bench.store import jsonl, runs
from tests.facts import holds

ROOT = Path(__file__).resolve().parent.parent.parent
Run = Callable[..., Any]
Launch = Callable[[int], tuple[str, ...]]
# The command line, with nccl-tests compared with MPI instead of NCCL.
CONTROLLER = (
    "import sys; from bench.logs.readers.nccl_tests import NcclTestsTool as T; "
    "T.transports = ('mpi',); from bench import __main__"
)
SCENARIO = """
description: beside nccl-tests
budget: 1h
launches: 1
measure:
  - pattern: allreduce
    transport: mpi
    tools: nccl_tests
    {mode}
    sizes: [1K, 16K]
    ranks_per_node: 2
    iterations: 20
    warmup: 2
"""
NEW = "MPI_Init output_file cudagraph per_iter_timing"


def installed(folder: Path, marks: str = NEW, name: str = "all_reduce_perf", fake: str = "nccl_tests") -> Path:
    """A folder that holds a program of these marks."""
    path = folder / "build" / name
    path.parent.mkdir(parents=True)
    mpi = "STANDIN_MPI=1" if "MPI_Init" in marks else ""
    program = name if fake == "nccl_tests" else ""
    words = f"{sys.executable} {ROOT / 'tests' / 'fakes' / f'standin_{fake}.py'} {program}"
    path.write_text(f'#!/bin/sh\n# {marks}\nexec env {mpi} {words} "$@"\n')
    path.chmod(0o755)
    return folder


def ran_beside(
    run: Run,
    python: str,
    folder: Path,
    tmp_path: Path,
    standin: str,
    mode: str = "like: nccl-tests",
) -> tuple[Any, dict[str, Any]]:
    """`linkbench run` of the scenario, and its document."""
    scenario = tmp_path / "beside.yaml"
    scenario.write_text(SCENARIO.format(mode=mode))
    words = ["run", str(scenario), "--config", str(ROOT / "bench.yaml"), "--no-plots", "--format", "json"]
    words += ["--tool-path", str(folder)]
    code = f"{CONTROLLER}; sys.exit(__main__.main({words!r}))"
    ran = run(python, "-c", code, env={"STANDIN": standin})
    return ran, json.loads(ran.out)


@pytest.mark.mpi
def test_the_means_of_the_same_ranks_are_compared(run: Run, mpirun: Launch, tmp_path: Path) -> None:
    ran, document = ran_beside(run, mpirun(2)[-1], installed(tmp_path / "tools"), tmp_path, "2.19.6")
    assert (ran.code, document["failures"]) == (0, []), ran.err
    assert [(one["tool"], one["mode"], one["payload_bytes"], one["num_launches"]) for one in document["parities"]] == [
        ("nccl_tests", "pipelined", 1024, 1),
        ("nccl_tests", "pipelined", 16384, 1),
    ]
    assert document["parities"][0]["theirs_s"] == pytest.approx(10.01024e-6)
    folder = runs.find(tmp_path / "results", "latest")
    jobs = runs.read_plan(folder)["jobs"]
    assert [(job["tool"], job["launch"]) for job in jobs] == [("", 1), ("nccl_tests", 1)]
    assert jobs[1]["command"][-2:] == ["-g", "1"] and "-n" in jobs[1]["command"]  # two processes of mpirun
    kept = "".join(file.read_text(errors="replace") for file in folder.iterdir() if file.is_file())
    assert "hunter2" not in kept and not list(folder.glob("*.tool.json"))
    header = next(head for head in document["headers"].values() if head["transport"] == "nccl_tests")
    assert (header["versions"]["nccl_tests"], header["versions"]["nccl"]) == ("2.19.6", "2.29.7")


@pytest.mark.mpi
def test_single_calls_are_samples_and_wrong_data_is_never_a_success(run: Run, mpirun: Launch, tmp_path: Path) -> None:
    tools = installed(tmp_path / "tools")
    ran, document = ran_beside(run, mpirun(2)[-1], tools, tmp_path, "2.19.6 wrong", "mode: isolated")
    assert ran.code == 4
    theirs = [row for row in document["summaries"] if row["transport"] == "nccl_tests"]
    assert [(row["payload_bytes"], row["verified"], row["num_samples"]) for row in theirs] == [
        (1024, True, 20),
        (16384, False, 20),
    ]
    assert theirs[0]["median_s"] == pytest.approx((10.01024 + 1 + 9.5) * 1e-6, rel=1e-5)
    assert theirs[1]["busbw_bytes_per_s"] is None
    assert [one["payload_bytes"] for one in document["parities"]] == [1024]


def job(tool: str, case: Case, world: World, folder: Path) -> tuple[Job, RunContext]:
    """The job of a tool alone, as planned on a machine with GPUs, and what carries it out."""
    machine = LocalMachine(2, world.num_ranks, {}, sys.executable, "mpirun", {})
    site = Site(Cluster("local"), machine, plan.all_patterns(), plan.all_launchers(), tools.installed([tool], folder))
    made = job_of(JobSpec(f"{case.pattern}-{tool}", case, world, tool=tool), site)
    return made, RunContext(site, folder, 60.0, lambda line: None, lambda line: None, check_hosts=False)


def test_a_build_without_mpi_is_one_process_that_may_end_well_without_all_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN", "2.13 cut")
    case = Case("allreduce", "nccl", (1024, 16384), mode="pipelined")
    made, means = job("nccl_tests", case, World(1, 2), installed(tmp_path / "tools", "nothing", "all_reduce_perf_mpi"))
    assert made.launcher == "direct" and made.command[-2:] == ("-g", "2")
    run_jobs([made], tmp_path, means)
    assert runs.read_outcomes(tmp_path)[made.name]["exit_code"] == 0
    first, last = jsonl.read(runs.results_file(tmp_path, made.name)).attempts[-1].records
    assert first.verified and last.failed is not None and holds(last.failed.what, "log", "1024 bytes")


def test_a_hanging_program_is_ended_with_its_children_and_its_rows_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execute, "_LIMIT_FACTOR", 0.0)
    monkeypatch.setattr(execute, "_LIMIT_SLACK_S", 2.0)
    monkeypatch.setenv("STANDIN", "2.19.6 hangs")
    monkeypatch.setenv("STANDIN_PIDS", str(tmp_path / "pids"))
    case = Case("allreduce", "nccl", (1024, 16384), mode="pipelined")
    made, means = job("nccl_tests", case, World(1, 2), installed(tmp_path / "tools", "output_file"))
    ran = run_jobs([made], tmp_path, means)
    failure = ran.failed[made.name]
    assert (failure.code, failure.facts["limit_s"]) == (OutcomeCode.TOO_LONG, 2.0)
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2 and not any(_runs(pid) for pid in pids)
    first, last = jsonl.read(runs.results_file(tmp_path, made.name)).attempts[-1].records
    assert first.payload_bytes == 1024 and first.verified is True
    assert last.failed is not None and holds(last.failed.what, "log", "1024 bytes")
    assert not controller._has_whole_rows(runs.results_file(tmp_path, made.name))  # --resume starts it again


def _runs(pid: str) -> bool:
    """Is a process there, and no zombie?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_nvbandwidth_becomes_rows_by_our_definitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_NVB", "2")
    tools = installed(tmp_path / "tools", "Print output in json format", "nvbandwidth", "nvbandwidth")
    case = Case("local_copy", "cuda_copy", (64 << 20,), mode="pipelined", topology="single ranks")
    made, means = job("nvbandwidth", case, World(1, 2), tools)
    assert made.launcher == "direct" and made.command[1:] == ("-t", "device_local_copy", "-b", "64", "-j")
    assert run_jobs([made], tmp_path, means).failed == {}
    results = jsonl.read(runs.results_file(tmp_path, made.name))
    first, second = results.attempts[-1].records
    assert (first.group, second.group, first.num_ranks) == ("rank0", "rank1", 1)
    assert controller._has_whole_rows(runs.results_file(tmp_path, made.name))
    assert first.reported == {"algbw_bytes_per_s": 600e9, "busbw_bytes_per_s": 1200e9}
    assert any(holds(note, "busbw", "twice") for note in results.attempts[-1].header.notes)
