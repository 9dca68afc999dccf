"""CUDA-aware MPI without a GPU: a CuPy whose arrays lie in host memory, which a real MPI library moves.

The check of the library is real, too: memory that the host cannot access ends it in a real segmentation fault.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import pytest

from bench.core.errors import RefusedError
from bench.core.payload import constant
from bench.core.transport import GUARD
from bench.core.world import RankInfo
from bench.transports import _mpi_cuda_check as checking
from bench.transports import _mpi_cuda_staging as staging
from bench.transports._cuda_device import load_cupy
from bench.transports._mpi_cuda_memory import RankGpu
from bench.transports.mpi_cuda import MpiCuda
from tests.facts import holds

ROOT = Path(__file__).resolve().parent.parent.parent
FAKES = ROOT / "tests" / "fakes" / "cupy_mpi"
QUICK = ("-n", "5", "-w", "1", "--format", "json")

Missing = Callable[[str, str], NoReturn]
Start = Callable[..., "Ran"]


class Ran:
    """A finished command."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.err, self.out = done.returncode, done.stderr, done.stdout

    @property
    def document(self) -> dict[str, Any]:
        """What was printed."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def errors(self) -> list[str]:
        """The suite's own error lines, without what a launcher adds."""
        return [line.partition("bench: error: ")[2] for line in self.err.splitlines() if "bench: error: " in line]


def environment(told: str) -> dict[str, str]:
    """Of this process, with the checkout and the fake importable; `told`: what the fake is to be."""
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, **root, "PYTHONPATH": f"{ROOT}{os.pathsep}{FAKES}", "FAKE_CUPY": told}


@pytest.fixture
def needs_mpi(missing: Missing) -> None:
    """An MPI library that mpi4py can load."""
    if importlib.util.find_spec("mpi4py") is None or not (Path(sys.executable).parent / "mpirun").exists():
        missing("mpi", "no mpirun and mpi4py beside the interpreter")


@pytest.fixture
def start(needs_mpi: None, tmp_path: Path) -> Start:
    """`start(2, "allreduce", ..., told="gpus=1")`: ranks of a pattern over mpi_cuda."""

    def go(num_ranks: int, pattern: str, *words: str, told: str = "") -> Ran:
        mpirun = (str(Path(sys.executable).parent / "mpirun"), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none")
        command = (*mpirun, "-n", str(num_ranks), sys.executable, "-m", f"bench.{pattern}", "--transport", "mpi_cuda")
        done = subprocess.run(
            (*command, *words),
            env=environment(told),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        return Ran(done)

    return go


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """`fake("gpus=1")`: the fake as a module of its own, not in the place of CuPy."""

    def load(told: str = "") -> ModuleType:
        monkeypatch.setenv("FAKE_CUPY", told)
        spec = importlib.util.spec_from_file_location("fake_cupy", FAKES / "cupy" / "__init__.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


# -- the ranks


@pytest.mark.thin(2)
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("allreduce", ("--in-place", "1", "-o", "max")),
        pytest.param("alltoallv", (), marks=pytest.mark.slow),
        ("sendrecv", ()),
        pytest.param("allgather", ("--loop", "python"), marks=pytest.mark.slow),
        pytest.param("sendrecv", ("--loop", "python"), marks=pytest.mark.slow),
        pytest.param("reduce", ("--alignment", "4096"), marks=pytest.mark.slow),
        pytest.param("oneway", (), marks=pytest.mark.slow),
    ],
)
def test_gpu_memory_arrives_and_the_header_names_the_library(
    start: Start, pattern: str, words: tuple[str, ...]
) -> None:
    ran = start(2, pattern, "--sizes", "64,64K", *words, *QUICK)
    assert ran.code == 0, ran.err
    rows = ran.document["summaries"]
    assert {row["requested_bytes"] for row in rows} == {64, 65536}
    assert all(row["verified"] is True and row["num_wrong"] == 0 for row in rows)
    (header,) = ran.document["headers"].values()
    assert (header["transport"], header["clock"]) == ("mpi_cuda", "host")
    facts = header["facts"]
    assert (facts["memory"], facts["gpu"], facts["cuda"], facts["cupy"]) == ("device", "Fake GPU", "13.0", "0.fake")
    assert facts["mpi_library"] and facts["mpi_cuda_answer"].endswith("(MPIX_Query_cuda_support)")
    assert "staging" in facts["device_messages"]
    assert any(holds(note, "rank 1", "one host") and "64 MiB" in note for note in header["notes"])
    assert any(facts["mpi_cuda_answer"] in note for note in header["notes"]), "it denied what it can do"
    assert "memory copy" not in {row["bound_name"] for row in rows}, "host memory bounds nothing here"


@pytest.mark.mpi
def test_a_library_without_cuda_is_refused(start: Start) -> None:
    ran = start(2, "allreduce", "--sizes", "64", told="unreachable")
    assert ran.code == 3, ran.err
    (said,) = ran.errors
    library = "Open MPI" if said.startswith("Open MPI") else "MPICH"
    assert "SIGSEGV" in said and "no (MPIX_Query_cuda_support)" in said
    assert "--transport nccl" in said and "MPI4PY_LIBMPI" in said
    assert ("ompi_info" in said) == (library == "Open MPI")


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("num_ranks", "told", "said"),
    [
        pytest.param(
            2,
            "driver",
            "cudaErrorInsufficientDriver",
            marks=pytest.mark.slow,
        ),
        pytest.param(3, "gpus=2", "3 ranks", marks=pytest.mark.slow),
        (2, "gpus=1", "ranks 0 and 1"),
    ],
)
def test_ranks_without_their_own_gpu_are_refused_once(start: Start, num_ranks: int, told: str, said: str) -> None:
    ran = start(num_ranks, "allreduce", "--sizes", "64", told=told)
    assert ran.code == 3, ran.err
    assert len(ran.errors) == 1 and said in ran.errors[0], ran.err


@pytest.mark.mpi
@pytest.mark.slow
def test_ranks_share_a_gpu_if_asked_to(start: Start) -> None:
    ran = start(2, "broadcast", "--sizes", "64", "--share-gpu", "1", *QUICK, told="gpus=1,small")
    assert ran.code == 0, ran.err
    (header,) = ran.document["headers"].values()
    assert header["facts"]["shared_gpu"] == "yes"
    assert any(holds(note, "share") for note in header["notes"])
    assert "device_messages" not in header["facts"], "rank 0 has too little memory to compare"
    assert all(row["verified"] for row in ran.document["summaries"])


# -- the separate process


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("told", "problem"),
    [("", None), ("unreachable", "SIGSEGV"), ("wrong", "(64 bytes)"), ("gpus=0", "exit code 1 (AssertionError)")],
)
def test_the_check_reports_what_happens_to_gpu_memory(needs_mpi: None, told: str, problem: str | None) -> None:
    found = checking.check(0, environment(told))
    assert (found.problem is None) if problem is None else problem in str(found.problem)
    assert found.library.startswith(("MPICH", "Open MPI"))
    assert found.answer == "no (MPIX_Query_cuda_support)" and found.denied


@pytest.mark.mpi
def test_a_check_that_hangs_is_ended(needs_mpi: None) -> None:
    found = checking.check(0, environment("hang"), limit_s=3)
    assert found.problem is not None and "3 s" in found.problem


@pytest.mark.mpi
def test_a_check_without_a_library_reports_its_last_line(needs_mpi: None) -> None:
    found = checking.check(0, {**environment(""), "MPI4PY_LIBMPI": "/no/such/libmpi.so"})
    assert found.library == "" and not found.denied
    assert found.problem is not None and "exit code 1 (" in found.problem


def test_the_separate_process_is_no_rank_but_keeps_every_setting() -> None:
    of_ranks = {
        "PMI_RANK": "1",
        "PMI_FD": "7",
        "PMIX_RANK": "1",
        "PMIX_NAMESPACE": "x",
        "HYDI_CONTROL_FD": "9",
        "MPI_LOCALRANKID": "1",
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_UNIVERSE_SIZE": "2",
        "SLURM_PROCID": "1",
        "PALS_RANKID": "1",
        "PRTE_LAUNCHED": "1",
        "OMPI_MCA_ess_base_jobid": "5",
        "OMPI_MCA_num_procs": "2",
        "FLUX_TASK_RANK": "0",
        "MV2_COMM_WORLD_RANK": "0",
    }
    settings = {
        "OMPI_MCA_pml": "ucx",
        "OMPI_MCA_opal_cuda_support": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "PATH": "/bin",
        "PMIX_MCA_gds": "hash",
        "UCX_TLS": "cuda",
        "MPICH_GPU_SUPPORT_ENABLED": "1",
        "MPIR_CVAR_ENABLE_GPU": "1",
        "OPAL_PREFIX": "/opt",
        "MPI4PY_LIBMPI": "x",
        "CUDA_VISIBLE_DEVICES": "1",
        "PYTHONPATH": "/y",
    }
    assert checking.alone({**of_ranks, **settings}) == settings | {"PYTHONPATH": f"{ROOT}{os.pathsep}/y"}


@pytest.mark.parametrize(
    ("env", "remedy"),
    [
        ({}, "MPI4PY_LIBMPI"),
        ({"MPICH_GPU_SUPPORT_ENABLED": "0"}, "MPICH_GPU_SUPPORT_ENABLED=0"),
        ({"OMPI_MCA_opal_cuda_support": "False"}, "OMPI_MCA_opal_cuda_support=False"),
        ({"MPIR_CVAR_ENABLE_GPU": "1"}, "--transport nccl"),
    ],
)
def test_a_refusal_names_the_variable_that_turned_it_off(env: Mapping[str, str], remedy: str) -> None:
    checked = checking.Checked("MPICH 5.0", "no (MPIX_Query_cuda_support)", "SIGSEGV")
    facts = (checked.library, checked.answer, str(checked.problem), remedy)
    assert all(fact in checking.refusal(checked, env) for fact in facts)


@pytest.mark.parametrize(
    ("built", "said"),
    [("true", "OMPI_MCA_opal_cuda_support=1"), ("false", "ompi_info reports a build without CUDA"), ("", "nccl")],
)
def test_ompi_info_tells_a_missing_build_from_a_disabled_one(tmp_path: Path, built: str, said: str) -> None:
    program = tmp_path / "bin" / "ompi_info"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho mca:opal:base:param:opal_built_with_cuda_support:value:{built}\n")
    program.chmod(0o755)
    checked = checking.Checked("Open MPI 5.0.3", "no (MPIX_Query_cuda_support)", "it hung")
    assert said in checking.refusal(checked, {"OPAL_PREFIX": str(tmp_path), "PATH": os.environ["PATH"]})


# -- one GPU


def place(local_rank: int, local_size: int) -> RankInfo:
    """A rank on one host."""
    return RankInfo(local_rank, local_size, local_rank, local_size, "mpirun")


@pytest.mark.parametrize(
    ("told", "local_rank", "local_size", "shared", "index"),
    [("gpus=4", 2, 4, False, 2), ("gpus=1", 2, 4, False, 0), ("gpus=2", 3, 4, True, 1), ("gpus=8", 3, 4, False, 3)],
)
def test_a_rank_uses_the_gpu_of_its_local_rank_or_the_only_visible_one(
    fake: Any, told: str, local_rank: int, local_size: int, shared: bool, index: int
) -> None:
    assert RankGpu(fake(told), place(local_rank, local_size), shared).index == index


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("gpus=0", r"rank 0 has no GPU .*CUDA_VISIBLE_DEVICES"),
        ("driver", r"rank 0 .*cudaErrorInsufficientDriver.*driver"),
    ],
)
def test_without_a_gpu_the_reason_is_the_drivers(fake: Any, told: str, said: str) -> None:
    with pytest.raises(RefusedError, match=f"{said}.* --transport mpi"):
        RankGpu(fake(told), place(0, 1), False)


def test_a_cupy_without_compiler_is_found_before_the_first_row(fake: Any) -> None:
    said = r"rank 0 .*GPU 0 \(CuPy failed to load libnvrtc\.so\.13\): .*pip install"
    with pytest.raises(RefusedError, match=said):
        RankGpu(fake("no compiler"), place(0, 1), False)


def test_a_missing_or_broken_cupy_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(RefusedError, match=r"pip install cupy-cuda13x"):
        load_cupy()
    monkeypatch.delitem(sys.modules, "cupy")
    (tmp_path / "cupy.py").write_text(
        "raise ImportError('''\n=====\nFailed\n\nOriginal error:\n  no libx.so\n=====\n''')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RefusedError, match=r"\(no libx\.so\)"):
        load_cupy()


@pytest.mark.parametrize("alignment", [64, 4096])
def test_buffers_are_aligned_guarded_and_found_by_address(fake: Any, alignment: int) -> None:
    buffers = RankGpu(fake(), place(0, 1), False).allocate(100, 7, 3, alignment)
    for index in range(3):
        for which in ("send", "recv"):
            view = buffers.view(which, index)
            assert view.data.ptr == buffers.address(which, index) and buffers.address(which, index) % alignment == 0
            assert (buffers.read(which, index) == GUARD).all(), "written before use"
            buffers.write(which, index, np.full(len(view), index, np.uint8))
    assert [set(buffers.read("send", index).tolist()) for index in range(3)] == [{0}, {1}, {2}]
    assert all(buffers.guards_intact(index) for index in range(3))
    beyond = buffers.view("recv", 1)
    start = buffers.address("recv", 1) - int(buffers._block.data.ptr)
    for at in (start - 1, start + 7, start + 7 + 63):
        kept = buffers._block[at : at + 1].get()
        buffers._block[at : at + 1].set(np.zeros(1, np.uint8))
        assert [buffers.guards_intact(index) for index in range(3)] == [True, False, True]
        buffers._block[at : at + 1].set(kept)
    assert len(beyond) == 7


def test_writes_are_complete_before_mpi_sends(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy, done = fake(), []
    buffers = RankGpu(cupy, place(0, 1), False).allocate(64, 64, 1, 64)
    monkeypatch.setattr(cupy.cuda, "synchronize", lambda: done.append(buffers.read("send", 0)[0]))
    buffers.write("send", 0, np.full(64, 7, np.uint8))
    buffers.write("send", 0, 9)
    buffers.fill("send", 0, 0, 64, constant(11))
    assert (done[0], done[-1]) == (7, 11) and 9 in done


def test_the_stream_is_idle_before_anything_is_timed() -> None:
    order: list[str] = []

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            return lambda *words: order.append(name)

    transport = MpiCuda.__new__(MpiCuda)
    transport._gpu = transport._mpi = Recorder()  # type: ignore[assignment]
    transport.time_each(None, 1)
    transport.time_batch(None, 1)
    transport.sync()
    assert order == ["finish", "time_each", "finish", "time_batch", "finish", "sync"]


# -- a GPU that is there


@pytest.fixture
def cupy(missing: Missing) -> Any:
    """The real CuPy, on a machine with a GPU."""
    if importlib.util.find_spec("cupy") is None:
        missing("gpu", "CuPy is not installed")
    cupy = load_cupy()
    try:
        found = cupy.cuda.runtime.getDeviceCount()  # a sandbox may have CUDA without NVML
    except cupy.cuda.runtime.CUDARuntimeError as error:
        missing("gpu", f"CuPy sees no GPU ({error})")
    if not found:
        missing("gpu", "CuPy sees no GPU")
    return cupy


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # CuPy speaks of CUDA paths
def test_buffers_on_a_gpu_are_written_read_compared_and_guarded(cupy: Any) -> None:
    gpu = RankGpu(cupy, place(0, 1), False)
    facts = gpu.facts()
    assert facts["memory"] == "device" and facts["gpu"] and "." in facts["cuda"]
    assert (gpu.cache_bytes() or 0) > 1 << 20 and gpu.available_bytes(1) > 1 << 30
    buffers = gpu.allocate(1 << 20, 1000, 2, 4096)
    data = np.arange(1 << 20, dtype=np.uint32).astype(np.uint8)
    buffers.write("send", 1, data)
    buffers.write("recv", 1, 5)
    assert (buffers.read("send", 1) == data).all() and (buffers.read("recv", 1) == 5).all()
    assert (buffers.read("send", 0) == GUARD).all() and buffers.guards_intact(0) and buffers.guards_intact(1)
    assert buffers.view("recv", 1).data.ptr == buffers.address("recv", 1)
    assert buffers.count_wrong("recv", 1, 0, 1000, constant(5), 4).num_wrong == 0
    assert buffers.count_wrong("recv", 1, 0, 1000, constant(6), 4).num_wrong == 250
    memory = staging.room(gpu, 1 << 20)
    assert memory is not None
    device, host = memory
    device.get(out=host)
    assert (host == 1).all()


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # CuPy speaks of CUDA paths
def test_a_gpu_without_room_is_a_memory_error(cupy: Any) -> None:
    gpu = RankGpu(cupy, place(0, 1), False)
    with pytest.raises(MemoryError):
        gpu.allocate(1 << 46, 8, 1, 64)
    assert len(gpu.empty(8)) == 8, "and the next one has room"


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # CuPy speaks of CUDA paths
@pytest.mark.mpi
def test_on_a_gpu_the_library_moves_its_memory_or_is_refused(cupy: Any, tmp_path: Path) -> None:
    words = (sys.executable, "-m", "bench.allreduce", "--transport", "mpi_cuda", "--sizes", "64,64K", *QUICK)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))}
    ran = Ran(subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False))
    if ran.code == 0:
        assert all(row["verified"] is True for row in ran.document["summaries"])
        return
    assert ran.code == 3, ran.err
    (said,) = ran.errors
    assert "MPI" in said or "mpi4py" in said


# -- staging


@pytest.mark.parametrize(
    ("hosts", "other"), [(("a",), None), (("a", "a"), 1), (("a", "a", "b", "b"), 2), (("a", "b"), 1)]
)
def test_staging_is_compared_between_hosts_where_there_are_two(hosts: tuple[str, ...], other: int | None) -> None:
    assert staging.partner(hosts) == other


@pytest.mark.parametrize(
    ("device_s", "fact", "note"),
    [
        (0.4, "faster than staging through the host", "GPU-direct is in use"),
        (0.97, "not faster than staging through the host", "GPU-direct is not in use"),
        (3.0, "not faster than staging through the host", "3 s, staged through the host 1 s"),
    ],
)
def test_messages_no_faster_than_staging_are_not_gpu_direct(device_s: float, fact: str, note: str) -> None:
    found = staging.describe(device_s, 1.0, 1, ("a", "b"), 64 << 20)
    assert found[0] == fact
    assert all(words in found[1] for words in (note, "64 MiB", "rank 1", "two hosts"))
