"""perftest and ucx_perftest by rank/client_server.py and a real mpirun.

perftest is a stand-in, because it needs an RDMA adapter. Where the real program is installed, it runs up to its own
error. ucx_perftest is real where it is installed.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.config.clusters import Cluster
from bench.controller import plan, tools
from bench.controller.jobs import JobSpec, LocalMachine, Site, job_of
from bench.controller.run import RunContext, run_jobs
from bench.core.case import Case
from bench.core.world import World
from bench.logs.tool import HostEnds
from bench.rank.messages import RankRefusal
from bench.store import jsonl, runs
from bench.store.heartbeat import last_words

ROOT = Path(__file__).resolve().parent.parent.parent
Run = Callable[..., Any]
Launch = Callable[[int], tuple[str, ...]]
MODULE = ("-m", "bench.rank.client_server", "--adapter")
# An adapter that this host does not have, in every process that imports bench.
ADAPTER = """
from bench.core.inventory import Adapter
from bench.probes import adapters
adapters.adapters = lambda: (Adapter("eth0", "ethernet"), Adapter("mlx5_0", "infiniband", 25e9, "active"))
"""


def program(folder: Path, name: str = "ib_write_bw") -> Path:
    """A program of perftest."""
    path = folder / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'#!/bin/sh\n# use_cuda\nexec {sys.executable} {ROOT / "tests/fakes/standin_perftest.py"} {name} "$@"\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def with_adapter(tmp_path: Path) -> str:
    """A PYTHONPATH whose processes see an adapter."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(ADAPTER)
    return f"{ROOT}:{folder}"


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("mishap", ["", "client-fails", "server-fails"])
def test_server_and_client_meet(run: Run, mpirun: Launch, tmp_path: Path, with_adapter: str, mishap: str) -> None:
    words = (
        *mpirun(2),
        "-m",
        "bench.rank.client_server",
        "--adapter",
        str(program(tmp_path)),
        "-F",
        "-s",
        "65536",
        "-n",
        "50",
    )
    ran = run(*words, env={"PYTHONPATH": with_adapter, "STANDIN_PERFTEST": mishap}, timeout_s=60)
    ends = HostEnds.of_text(ran.out)
    assert ends is not None and [end.adapter for end in ends.ends] == ["mlx5_0"] * 2 and ends.version == "6.06"
    assert (ran.code == 0) == (mishap == "")
    assert ("RDMA_Write BW Test" in ran.out) == (mishap == "")
    assert ("Did not detect devices" in ran.err) == (mishap == "server-fails")


@pytest.mark.mpi
def test_a_host_without_an_adapter_refuses(run: Run, mpirun: Launch, tmp_path: Path) -> None:
    real = shutil.which("ib_write_bw")
    words = (
        *mpirun(2),
        "-m",
        "bench.rank.client_server",
        "--adapter",
        real or str(program(tmp_path)),
        "-F",
        "-s",
        "65536",
    )
    ran = run(*words, timeout_s=60)
    if Path("/sys/class/infiniband").exists():
        pytest.skip("this host has an RDMA adapter")
    assert ran.code == 3
    assert {words.end.code for words in last_words(ran.err)} == {RankRefusal.NO_RDMA_ADAPTER}


@pytest.mark.mpi
@pytest.mark.slow
def test_the_real_program_gives_its_own_reason(run: Run, mpirun: Launch, with_adapter: str) -> None:
    real = shutil.which("ib_write_bw")
    if real is None or Path("/sys/class/infiniband").exists():
        pytest.skip("needs perftest on a host without an RDMA adapter")
    words = (*mpirun(2), *MODULE, real, "-F", "-s", "65536")
    ran = run(*words, env={"PYTHONPATH": with_adapter}, timeout_s=60)
    ends = HostEnds.of_text(ran.out)
    assert ran.code == 1 and ends is not None and ends.version
    assert "Unable to find the Infiniband/RoCE device" in ran.err


@pytest.mark.mpi
@pytest.mark.slow
def test_an_adapter_of_another_name_is_refused(run: Run, mpirun: Launch, tmp_path: Path, with_adapter: str) -> None:
    words = (
        *mpirun(2),
        "-m",
        "bench.rank.client_server",
        "--adapter",
        str(program(tmp_path)),
        "-F",
        "-s",
        "8",
        "-d",
        "eth0",
    )
    ran = run(*words, env={"PYTHONPATH": with_adapter}, timeout_s=60)
    assert ran.code == 3
    assert {words.end.code for words in last_words(ran.err)} == {RankRefusal.NOT_THIS_ADAPTER}


@pytest.mark.mpi
def test_the_controller_stores_a_row_with_its_header(
    mpirun: Launch, tmp_path: Path, with_adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", with_adapter)
    program(tmp_path)
    world = World(1, 2)  # one host: the tool itself asks for two
    machine = LocalMachine(2, 2, {}, mpirun(2)[-1], mpirun(2)[0], {})
    found = tools.installed(["perftest"], tmp_path)
    site = Site(Cluster("local"), machine, plan.all_patterns(), plan.all_launchers(), found)
    case = Case("pingpong", transport="nccl_direct", sizes=(65536,), mode="pipelined", iterations=50)
    job = job_of(JobSpec("pingpong", case, world, tool="perftest"), site)
    context = RunContext(site, tmp_path, 60.0, lambda line: None, lambda line: None, check_hosts=False)
    assert run_jobs([job], tmp_path, context).failed == {}, runs.log_file(tmp_path, job.name).read_text()
    (attempt,) = jsonl.read(runs.results_file(tmp_path, job.name)).attempts
    (record,) = attempt.records
    assert record.reported is not None and record.reported["busbw_bytes_per_s"] == pytest.approx(6.25e9, rel=1e-2)
    header = attempt.header
    assert (header.facts["memory"], header.versions["perftest"]) == ("device", "6.06")
    assert header.links is not None and header.links["nic_bytes_per_s"] == 25e9


@pytest.mark.mpi
@pytest.mark.parametrize("pattern", ["kv_pages", pytest.param("pingpong", marks=pytest.mark.slow)])
def test_ucx_moves_pages_and_messages(mpirun: Launch, tmp_path: Path, pattern: str) -> None:
    real = shutil.which("ucx_perftest")
    if real is None:
        pytest.skip("needs ucx_perftest")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ucx_perftest").symlink_to(real)
    machine = LocalMachine(2, 2, {}, mpirun(2)[-1], mpirun(2)[0], {})
    found = tools.installed(["ucx_perftest"], tmp_path)
    site = Site(Cluster("local"), machine, plan.all_patterns(), plan.all_launchers(), found)
    case = Case(pattern, transport="mpi", sizes=(1 << 20,), mode="isolated", iterations=50, warmup=5)
    tool = found["ucx_perftest"].tool
    assert found["ucx_perftest"].unsupported_reason(case, World(1, 2)) is None
    job = job_of(JobSpec(pattern, case, World(1, 2), tool="ucx_perftest"), site)
    context = RunContext(site, tmp_path, 60.0, lambda line: None, lambda line: None, check_hosts=False)
    assert run_jobs([job], tmp_path, context).failed == {}, runs.log_file(tmp_path, job.name).read_text()
    (attempt,) = jsonl.read(runs.results_file(tmp_path, job.name)).attempts
    (record,) = attempt.records
    assert record.reported is not None and record.payload_bytes == 1 << 20 and record.bus_factor == 1
    assert record.reported["mean_s"] * record.reported["algbw_bytes_per_s"] == pytest.approx(1 << 20)
    assert attempt.header.facts["memory"] == "host" and tool.title == attempt.header.facts["title"]
