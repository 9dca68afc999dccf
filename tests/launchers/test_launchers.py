"""What every launcher keeps to, and what each one reads and writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from bench.core import plugins
from bench.core.errors import UsageError
from bench.core.launcher import Launcher, LaunchSite
from bench.core.world import RankInfo, World
from bench.launchers import mpirun, slurm
from bench.rank import placement
from tests.facts import holds

PROGRAM = ["-m", "bench.allreduce", "--transport", "mpi"]
SITE = LaunchSite(python="/opt/python", hosts=("h0", "h1"), rendezvous_port=29511)
HERE = LaunchSite(python="/opt/python")

TORCHRUN = {
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "8",
    "MASTER_ADDR": "h0",
    "MASTER_PORT": "29500",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "2",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
BATCH = {
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_NODEID": "0",
    "SLURM_JOB_NODELIST": "n[3-4]",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}
STEP = BATCH | {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NODELIST": "n[3-4]",
}

# launcher -> what a rank of it finds in its environment, and where it then is
EXAMPLES = {
    "direct": ({}, RankInfo(0, 1, 0, 1, "direct")),
    "kubernetes": ({"JOB_COMPLETION_INDEX": "1"}, None),  # in its pods torchrun or mpirun starts the ranks
    "torchrun": (TORCHRUN, RankInfo(9, 16, 1, 8, "torchrun", ("h0", 29500))),
    "mpirun": (OPENMPI, RankInfo(2, 4, 1, 2, "mpirun")),
    "slurm": (STEP, RankInfo(3, 4, 1, 2, "slurm", ("n3", 20000 + 77 * 31))),
}


@pytest.fixture(params=plugins.names("launcher"))
def launcher(request: pytest.FixtureRequest) -> Launcher:
    found: Launcher = plugins.load("launcher", request.param).LAUNCHER
    return found


def named(name: str) -> Launcher:
    found: Launcher = plugins.load("launcher", name).LAUNCHER
    return found


def without(env: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in env.items() if key != name}


def test_every_launcher_has_an_example_here_and_reads_it(launcher: Launcher) -> None:
    name = launcher.__module__.rpartition(".")[2]
    env, expected = EXAMPLES[name]
    assert launcher.place(env) == expected


def test_a_launcher_recognises_processes_that_it_did_not_start(launcher: Launcher) -> None:
    name = launcher.__module__.rpartition(".")[2]
    assert launcher.place({"PATH": "/bin", "HOME": "/root"}) == (EXAMPLES["direct"][1] if name == "direct" else None)


@pytest.mark.parametrize(("num_nodes", "site"), [(1, HERE), (1, SITE), (2, SITE)])
def test_a_command_ends_with_the_program_as_the_sites_interpreter_runs_it(
    launcher: Launcher, num_nodes: int, site: LaunchSite
) -> None:
    words = launcher.command(list(PROGRAM), World(num_nodes, 4), site, {"A": "b c"})
    assert words[-len(PROGRAM) :] == PROGRAM
    assert words.count("/opt/python") == 1
    assert all(isinstance(word, str) and word for word in words)


@pytest.mark.parametrize("name", ["mpirun", "torchrun"])
def test_options_of_the_site_reach_the_command_but_not_the_program(name: str) -> None:
    site = LaunchSite(python="/opt/python", options={"reservation": "night", "x": "1", "quiet": ""})
    words = named(name).command(list(PROGRAM), World(1, 2), site, {})
    before = " ".join(words[: -len(PROGRAM)])
    assert "--reservation=night" in before or "--reservation night" in before
    assert "-x 1" in before
    assert "--quiet" in before.split()


def test_precedences_differ_and_direct_comes_last() -> None:
    order = [each.__module__.rpartition(".")[2] for each in placement.launchers()]
    assert order == ["torchrun", "mpirun", "slurm", "kubernetes", "direct"]
    assert len({each.precedence for each in placement.launchers()}) == len(order)


@pytest.mark.parametrize(
    ("env", "winner"),
    [
        ({}, "direct"),
        (STEP | TORCHRUN, "torchrun"),
        (STEP | OPENMPI, "mpirun"),
        (STEP | HYDRA, "mpirun"),
        (OPENMPI | TORCHRUN, "torchrun"),
        (STEP | {"PMI_RANK": "3", "PMI_SIZE": "4"}, "slurm"),
        (STEP | {"PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.77.0"}, "slurm"),
        (BATCH, "direct"),
        (BATCH | {"SLURM_STEP_ID": "4294967290"}, "direct"),
        (BATCH | HYDRA, "mpirun"),
    ],
    ids=[
        "nothing",
        "torchrun in srun",
        "Open MPI in srun",
        "Hydra in srun",
        "torchrun in mpirun",
        "srun pmi2",
        "srun pmix",
        "sbatch script",
        "salloc shell",
        "Hydra in sbatch",
    ],
)
def test_of_several_launchers_the_inner_one_wins(env: dict[str, str], winner: str) -> None:
    assert placement.place(env).launcher == winner


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (TORCHRUN | {"RANK": "abc"}, "RANK='abc', set by torchrun, is not a whole number"),
        (TORCHRUN | {"RANK": "-1"}, "RANK='-1'"),
        (TORCHRUN | {"RANK": "²"}, "RANK='²'"),
        (TORCHRUN | {"RANK": "16"}, "rank 16 of 16"),
        (TORCHRUN | {"LOCAL_RANK": "8"}, "8 of 8"),
        (without(TORCHRUN, "WORLD_SIZE"), "RANK is set"),
        (without(TORCHRUN, "RANK"), "WORLD_SIZE is set"),
        (without(TORCHRUN, "LOCAL_RANK"), "LOCAL_RANK is not set"),
        (without(TORCHRUN, "MASTER_PORT"), "MASTER_PORT is missing"),
        (TORCHRUN | {"MASTER_PORT": "0"}, "MASTER_PORT='0' is not a port"),
        (TORCHRUN | {"MASTER_PORT": "70000"}, "is not a port"),
        (without(OPENMPI, "OMPI_COMM_WORLD_LOCAL_RANK"), "OMPI_COMM_WORLD_LOCAL_RANK is not set"),
        (OPENMPI | {"OMPI_COMM_WORLD_SIZE": ""}, "OMPI_COMM_WORLD_SIZE=''"),
        (OPENMPI | {"OMPI_COMM_WORLD_SIZE": "1"}, "rank 2 of 1"),
        (without(HYDRA, "PMI_SIZE"), "PMI_SIZE is not set"),
        (without(HYDRA, "MPI_LOCALNRANKS"), "MPI_LOCALNRANKS is not set"),
        (STEP | {"SLURM_PROCID": "x"}, "SLURM_PROCID='x'"),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "2(y2)"}, "is not a list of tasks such as 8(x2),4"),
        (STEP | {"SLURM_NODEID": "2"}, "node 2 of 2"),
        (STEP | {"SLURM_STEP_NODELIST": "[3]"}, "n[1-3,7]"),
        (without(STEP, "SLURM_LOCALID"), "SLURM_LOCALID is not set"),
    ],
)
def test_variables_that_make_no_sense_are_a_usage_error_that_names_them(env: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        placement.place(env)
    assert sentence in str(caught.value)


def test_hydra_ranks_and_a_rendezvous_of_the_user_are_read() -> None:
    env = HYDRA | {"MASTER_ADDR": "h7", "MASTER_PORT": "1234"}
    assert named("mpirun").place(env) == RankInfo(3, 4, 1, 2, "mpirun", ("h7", 1234))


@pytest.mark.parametrize(
    ("env", "library"),
    [
        (OPENMPI, "openmpi"),
        (HYDRA, "mpich"),
        (STEP | HYDRA, "mpich"),
        ({}, None),
        (TORCHRUN, None),
        (STEP, None),
        (STEP | {"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
    ],
)
def test_the_library_is_the_one_whose_mpirun_started_the_rank(env: dict[str, str], library: str | None) -> None:
    assert mpirun.mpi_of(env) == library


def test_mpirun_on_one_host_forwards_nothing() -> None:
    assert named("mpirun").command(PROGRAM, World(1, 16), HERE, {"A": "1"}) == [
        "mpirun",
        "--map-by",
        "slot:OVERSUBSCRIBE",
        "--bind-to",
        "none",
        "-n",
        "16",
        "/opt/python",
        *PROGRAM,
    ]


def test_mpirun_names_its_hosts_and_leaves_the_variables_to_the_agent() -> None:
    env = {"NCCL_DEBUG": "WARN", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    assert named("mpirun").command(PROGRAM, World(2, 8), SITE, env)[5:] == [
        "--host",
        "h0:8,h1:8",
        "-n",
        "16",
        "env",
        "MASTER_ADDR=h0",
        "MASTER_PORT=29511",
        "/opt/python",
        *PROGRAM,
    ]


def test_mpirun_uses_fewer_hosts_than_named_but_never_more() -> None:
    assert "h0:8" in named("mpirun").command(PROGRAM, World(1, 8), SITE, {})
    with pytest.raises(UsageError, match=r"\b3 nodes.*`hosts:` .*\b2\b"):
        named("mpirun").command(PROGRAM, World(3, 8), SITE, {})


def test_mpirun_in_an_allocation_gets_only_the_ranks_per_node() -> None:
    words = named("mpirun").command(PROGRAM, World(2, 8), HERE, {})
    assert words[5:9] == ["-N", "8", "-n", "16"]
    env = {"NCCL_ALGO": "Ring", "HF_TOKEN": "hunter2", "GLOO_PWD": "from-environment"}
    for mpi, carried in {"openmpi": ["-x", "NCCL_ALGO", "-x", "HF_TOKEN", "-x", "GLOO_PWD"], "mpich": []}.items():
        words = named("mpirun").command(PROGRAM, World(2, 8), replace(HERE, mpi=mpi), env)
        assert words[7 : -len(PROGRAM) - 1] == [*carried, "-n", "16"]
    unknown = named("mpirun").command(PROGRAM, World(2, 8), HERE, env)
    assert unknown[9 : -len(PROGRAM) - 1] == ["env", "NCCL_ALGO=Ring"], "no secret in a command line"


def test_an_option_of_the_site_replaces_ours() -> None:
    site = LaunchSite(options={"bind-to": "core", "kill-on-bad-exit": "0"}, mpirun="/site/mpirun")
    words = named("mpirun").command(PROGRAM, World(1, 2), site, {})
    assert words[0] == "/site/mpirun"
    assert words[words.index("--bind-to") + 1] == "core"
    assert "--kill-on-bad-exit=0" in named("slurm").command(PROGRAM, World(1, 2), site, {})


def test_open_mpi_waits_before_it_aborts_and_only_root_gives_its_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    consent = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    late_abort = {"OMPI_MCA_mpi_abort_delay": "2"}
    assert named("mpirun").environment(HERE) == consent | late_abort
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert named("mpirun").environment(HERE) == late_abort


def test_torchrun_stands_alone_on_one_node_and_meets_on_the_first_of_several() -> None:
    start = ["/opt/python", "-m", "torch.distributed.run"]
    everywhere = [sys.executable, "-m", "bench.controller.hosts"]
    assert named("torchrun").command(PROGRAM, World(1, 8), HERE, {}) == [
        *start,
        "--standalone",
        "--local-addr=127.0.0.1",
        "--nproc-per-node=8",
        *PROGRAM,
    ]
    assert named("torchrun").command(PROGRAM, World(1, 8), SITE, {}) == [
        *everywhere,
        "h0",
        "--",
        *start,
        "--standalone",
        "--local-addr=127.0.0.1",
        "--nproc-per-node=8",
        *PROGRAM,
    ]
    assert named("torchrun").command(PROGRAM, World(2, 8), SITE, {}) == [
        *everywhere,
        "h0,h1",
        "--",
        *start,
        "--nproc-per-node=8",
        "--nnodes=2",
        "--node-rank={node}",
        "--master-addr=h0",
        "--master-port=29511",
        "--rdzv-id={job}",
        *PROGRAM,
    ]
    c10d = named("torchrun").command(PROGRAM, World(2, 8), replace(SITE, options={"rdzv-backend": "c10d"}), {})
    assert c10d[8 : -len(PROGRAM)] == [
        "--nproc-per-node=8",
        "--nnodes=2",
        "--rdzv-endpoint=h0:29511",
        "--rdzv-id={job}",
        "--rdzv-backend=c10d",
    ]
    with pytest.raises(UsageError, match=r"\b2 nodes.*`hosts:` .*\b0\b.*slurm"):
        named("torchrun").command(PROGRAM, World(2, 8), HERE, {})


def test_a_missing_program_of_a_launcher_is_named() -> None:
    assert holds(str(named("slurm").unavailable(lambda program: None)), "srun", "PATH")
    assert named("torchrun").unavailable(lambda program: None) is None


SCRIPT = """
import json, os, pathlib, sys
from bench.rank.placement import place
p = place(os.environ)
said = {"place": [p.rank, p.num_ranks, p.local_rank, p.local_size, p.launcher], "extra": os.environ.get("EXTRA")}
pathlib.Path(sys.argv[1], str(p.rank)).write_text(json.dumps(said))
"""


def ranks_started(words: list[str], folder: Path, variables: dict[str, str]) -> list[dict[str, object]]:
    env = {**os.environ, **variables, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=280, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("[0-9]"))]


@pytest.mark.mpi
@pytest.mark.parametrize("hosts", [(), ("localhost",)], ids=["here", "named host"])
def test_the_real_mpirun_starts_more_ranks_than_cpus_and_each_finds_its_place(
    hosts: tuple[str, ...], tmp_path: Path, missing: Callable[[str, str], NoReturn]
) -> None:
    program = Path(sys.executable).parent / "mpirun"
    if not program.exists():
        missing("mpi", f"there is no mpirun beside {sys.executable}")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    site = LaunchSite(python=sys.executable, mpirun=str(program), hosts=hosts)
    launcher = named("mpirun")
    words = launcher.command([str(script), str(tmp_path)], World(1, 4), site, {"EXTRA": "a b"})
    own = {"EXTRA": "a b", "BENCH_CARRY": "EXTRA"}  # as the controller sets them
    said = ranks_started(words, tmp_path, {**launcher.environment(site), **own})
    assert [each["place"] for each in said] == [[rank, 4, rank, 4, "mpirun"] for rank in range(4)]
    assert {each["extra"] for each in said} == {"a b"}


@pytest.mark.torch
def test_the_real_torchrun_starts_ranks_and_each_finds_its_place(
    tmp_path: Path, missing: Callable[[str, str], NoReturn]
) -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        missing("torch", "PyTorch is not installed")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    words = named("torchrun").command([str(script), str(tmp_path)], World(1, 2), LaunchSite(python=sys.executable), {})
    said = ranks_started(words, tmp_path, {})
    assert [each["place"] for each in said] == [[rank, 2, rank, 2, "torchrun"] for rank in range(2)]


def test_ports_of_slurm_jobs_that_may_share_a_host_differ() -> None:
    jobs = [(job, step) for job in range(1000, 1387) for step in range(31)]
    ports = set()
    for job, step in jobs:
        met = slurm._meeting({**STEP, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
        assert met is not None and 20000 <= met[1] < 32768
        ports.add(met[1])
    assert len(ports) == len(jobs)
    assert slurm._meeting({**STEP, "SLURM_STEP_RESV_PORTS": "12000-12001"}) == ("n3", 12000)
