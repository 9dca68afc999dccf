"""Slurm: what srun is told, what sbatch is told, and where a task of a step is."""

from __future__ import annotations

import pytest

from bench.core.codes import Coded
from bench.core.launcher import Blame, BlameCode, LaunchSite
from bench.core.world import World
from bench.launchers import slurm

PROGRAM = ["-m", "bench.allreduce", "--transport", "mpi"]
STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "n[3-4]",
}
OPTIONS = {
    "partition": "gpu",
    "account": "team",
    "exclusive": "",
    "gpus-per-node": "8",
    "cpus-per-task": "12",
    "cpu-bind": "cores",
    "container-image": "bench.sqsh",
    "kill-on-bad-exit": "0",
    "C": "a100&ib",
}


def test_srun_gets_the_world_and_step_options() -> None:
    assert slurm.LAUNCHER.command(PROGRAM, World(2, 8), LaunchSite(python="/opt/python", options=OPTIONS), {}) == [
        "srun",
        "--nodes=2",
        "--ntasks=16",
        "--ntasks-per-node=8",
        "--distribution=block",
        "--kill-on-bad-exit=0",
        "--cpus-per-task=12",
        "--cpu-bind=cores",
        "--container-image=bench.sqsh",
        "/opt/python",
        *PROGRAM,
    ]


@pytest.mark.parametrize(
    ("mpi", "options", "word"),
    [
        ("mpich", {}, "--mpi=pmi2"),
        ("openmpi", {}, "--mpi=pmix"),
        ("mpich", {"mpi": "cray_shasta"}, "--mpi=cray_shasta"),
    ],
)
def test_each_mpi_gets_its_own_pmi(mpi: str, options: dict[str, str], word: str) -> None:
    words = slurm.LAUNCHER.command(PROGRAM, World(1, 2), LaunchSite(options=options, mpi=mpi), {})
    assert [each for each in words if each.startswith("--mpi=")] == [word]
    assert not any(each.startswith("--mpi") for each in slurm.LAUNCHER.command(PROGRAM, World(1, 2), LaunchSite(), {}))


def test_sbatch_gets_allocation_options_and_runs_the_lines_once() -> None:
    text = slurm.batch("bench-p4d", World(4, 8), 601.0, OPTIONS, ["exec desk"], "/home/me/my runs/slurm-%j")
    assert text.splitlines() == [
        "#!/bin/sh",
        "#SBATCH --job-name=bench-p4d",
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --time=11",
        "#SBATCH --no-requeue",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=team",
        "#SBATCH --exclusive",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --cpus-per-task=12",
        "#SBATCH -C 'a100&ib'",
        "#SBATCH '--output=/home/me/my runs/slurm-%j.out'",
        "#SBATCH '--error=/home/me/my runs/slurm-%j.err'",
        "",
        "exec desk",
    ]


@pytest.mark.parametrize("name", ["t", "time"])
def test_the_sites_own_time_replaces_the_estimate(name: str) -> None:
    text = slurm.batch("b", World(1, 1), 60.0, {name: "2:00:00"}, [])
    assert [line for line in text.splitlines() if "time" in line or "-t" in line] == ["#SBATCH --time=2:00:00"]


def test_the_first_task_that_srun_lost_is_named() -> None:
    log = "x\nsrun: error: h2: task 2: Killed\nsrun: error: h3: task 3: Terminated\n"
    assert slurm.LAUNCHER.blamed(log) == Blame(2, "h2", Coded.of(BlameCode.REPORTED, launcher="srun", how="Killed"))
    assert slurm.LAUNCHER.blamed("srun: error: h1: tasks 4-7: Exited with exit code 7") == Blame(
        4, "h1", Coded.of(BlameCode.EXITED, exit_code=7)
    )
    assert slurm.LAUNCHER.blamed("srun: error: Unable to create step: x") is None


@pytest.mark.parametrize(("text", "counts"), [("8(x2)", (8, 8)), ("2(x2),1", (2, 2, 1)), ("4", (4,)), ("1,2", (1, 2))])
def test_tasks_per_node_are_spelt_out(text: str, counts: tuple[int, ...]) -> None:
    assert slurm.tasks_per_node({"SLURM_STEP_TASKS_PER_NODE": text}) == counts


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("n3", "n3"),
        ("n[3-4]", "n3"),
        ("n[03,07-09]", "n03"),
        ("a-b-1,c", "a-b-1"),
        ("gpu[1-2]-ib,x", "gpu1-ib"),
        ("queue1-dy-p4d-[1-2]", "queue1-dy-p4d-1"),
        ("10.0.0.1", "10.0.0.1"),
    ],
)
def test_the_first_host_of_a_node_list(nodelist: str, host: str) -> None:
    assert slurm.first_host(nodelist) == host


def test_the_rendezvous_of_two_jobs_on_one_host_differs_and_a_users_own_wins() -> None:
    first, second = (slurm.LAUNCHER.place(STEP | {"SLURM_JOB_ID": job}) for job in ("77", "78"))
    assert first is not None and second is not None
    assert first.rendezvous != second.rendezvous
    own = slurm.LAUNCHER.place(STEP | {"MASTER_ADDR": "h9", "MASTER_PORT": "5"})
    assert own is not None
    assert own.rendezvous == ("h9", 5)
