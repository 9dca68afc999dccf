"""`linkbench plan` of scenarios with tools: what is started, by which launcher, and what is skipped and why."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.config import paths
from bench.controller import tools
from bench.core.case import Case
from bench.logs.messages import ToolCode
from bench.logs.readers._nccl_tool import NcclToolCode
from bench.probes import nvml

ROOT = Path(__file__).resolve().parent.parent.parent
SCENARIO = """
description: beside nccl-tests
measure:
  - pattern: {pattern}
    transport: nccl
    tools: nccl_tests
    {more}
    sizes: 1K:1M:4
"""
MPI = b"\x7fELF MPI_Init output_file cudagraph per_iter_timing"
Out = pytest.CaptureFixture[str]


def program(folder: Path, text: bytes, name: str = "all_reduce_perf") -> Path:
    """A program in a folder."""
    path = folder / "build" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    path.chmod(0o755)
    return folder


def plan(
    tmp_path: Path, capsys: Out, cluster: str, *words: str, more: str = "like: nccl-tests", pattern: str = "allreduce"
) -> dict[str, Any]:
    """`linkbench plan --format json`"""
    path = tmp_path / "beside.yaml"
    path.write_text(SCENARIO.format(more=more, pattern=pattern))
    argv = ["plan", str(path), "--cluster", cluster, "--config", str(ROOT / "bench.yaml"), "--format", "json", *words]
    assert main(argv) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_with_mpi_mpirun_starts_one_process_per_gpu_and_torchrun_ours(tmp_path: Path, capsys: Out) -> None:
    ours, theirs = plan(tmp_path, capsys, "p4d-1", "--tool-path", str(program(tmp_path / "tools", MPI)))["jobs"]
    assert (ours["launcher"], theirs["launcher"]) == ("torchrun", "mpirun")
    words = theirs["command"]
    assert words[words.index("-n") + 1] == "8"
    assert words[next(k for k, word in enumerate(words) if word.endswith("all_reduce_perf")) + 1 :] == [
        "-b",
        "1024",
        "-e",
        "1048576",
        "-f",
        "4",
        "-d",
        "float",
        "-o",
        "sum",
        "-c",
        "1",
        "-J",
        "results-of-the-tool.json",
        "-g",
        "1",
    ]


def test_without_mpi_one_process_has_all_gpus_of_a_node_and_several_nodes_are_skipped(
    tmp_path: Path, capsys: Out
) -> None:
    folder = str(program(tmp_path / "tools", b"\x7fELF nothing"))
    one = plan(tmp_path, capsys, "p4d-1", "--tool-path", folder)["jobs"][1]
    assert one["launcher"] == "direct" and one["command"][-2:] == ["-g", "8"] and "-J" not in one["command"]
    two = plan(tmp_path, capsys, "p4d", "--tool-path", folder)
    assert [job["tool"] for job in two["jobs"]] == [""]
    [skip] = two["skipped"]
    assert skip["code"] == NcclToolCode.BUILT_WITHOUT_MPI and skip["facts"]["nodes"] == 2


def test_on_a_cluster_of_slurm_srun_starts_its_processes(tmp_path: Path, capsys: Out) -> None:
    theirs = plan(tmp_path, capsys, "p4d", "--tool-path", str(program(tmp_path / "tools", MPI)))["jobs"][1]
    assert theirs["launcher"] == "slurm" and "--ntasks=16" in " ".join(theirs["command"])


def test_each_mode_is_a_job_and_a_build_that_takes_no_samples_has_one(tmp_path: Path, capsys: Out) -> None:
    new = plan(tmp_path, capsys, "p4d-1", "--tool-path", str(program(tmp_path / "new", MPI)), more="mode: both")
    assert ["-I" in job["command"] for job in new["jobs"]] == [False, True, False]
    old = program(tmp_path / "old", b"MPI_Init")
    found = plan(tmp_path, capsys, "p4d-1", "--tool-path", str(old), more="mode: both")
    assert len(found["jobs"]) == 2 and found["skipped"][0]["code"] == NcclToolCode.NO_SAMPLES


@pytest.mark.parametrize(("pattern", "code"), [("allreduce", ToolCode.NOT_INSTALLED), ("incast", ToolCode.NO_PROGRAM)])
def test_without_the_program_ours_is_planned_and_the_reason_has_the_remedy(
    pattern: str, code: ToolCode, tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BENCH_NCCL_TESTS_PATH", raising=False)
    found = plan(tmp_path, capsys, "p4d-1", pattern=pattern)
    assert [job["tool"] for job in found["jobs"]] == [""]
    (skip,) = found["skipped"]
    assert skip["code"] == code
    if pattern == "allreduce":
        for remedy in ("--tool-path", "BENCH_NCCL_TESTS_PATH", "github.com/NVIDIA/nccl-tests"):
            assert remedy in skip["reason"]


def test_of_two_builds_the_one_with_its_suffix_is_taken(tmp_path: Path) -> None:
    folder = program(program(tmp_path, b"plain"), MPI, "all_reduce_perf_mpi")
    (folder / "build" / "empty_perf").touch(0o755)
    there = tools.installed(["nccl_tests"], folder)["nccl_tests"]
    assert there.programs["all_reduce_perf"].endswith("all_reduce_perf_mpi")
    assert there.build(Case("allreduce")) == {"mpi", "json", "graph", "samples"}
    assert there.build(Case("broadcast")) == there.builds["empty_perf"] == frozenset()


def test_a_folder_is_searched_within_limits_which_are_reported(tmp_path: Path, capsys: Out) -> None:
    near = tmp_path / "/".join("abcdef")
    program(near / "g", MPI)  # at level 8
    (tmp_path / "a" / "again").symlink_to(tmp_path, target_is_directory=True)
    hidden = program(tmp_path / ".git", MPI)
    search = tools.find_programs(tmp_path)
    assert (search.files, search.num_folders, search.whole) == ((), 7, False)
    assert not tools.find_programs(tmp_path, depth=9, most=3).whole, "folders were left"
    assert tools.find_programs(tmp_path, depth=9).files == (near / "g" / "build" / "all_reduce_perf",)
    assert tools.find_programs(tmp_path, depth=9).whole and tools.find_programs(hidden).files
    (skip,) = plan(tmp_path, capsys, "p4d-1", "--tool-path", str(tmp_path))["skipped"]
    assert skip["code"] == ToolCode.NOT_INSTALLED
    assert f"{tmp_path} ({search.words()})" in skip["reason"] and "7 folders" in search.words()


def test_a_folder_of_two_tools_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[Path] = []
    search = tools.find_programs

    def find_programs(folder: Path) -> tools.Search:
        walks.append(folder)
        return search(folder)

    monkeypatch.setattr(tools, "find_programs", find_programs)
    tools.installed(["nccl_tests", "nvbandwidth", "osu"], tmp_path)
    assert walks == [tmp_path]


def test_of_several_of_one_name_the_nearest_is_taken(tmp_path: Path) -> None:
    program(program(tmp_path, MPI) / "build" / "old", b"plain")
    (there,) = tools.installed(["nccl_tests"], tmp_path).values()
    assert there.programs["all_reduce_perf"] == str((tmp_path / "build" / "all_reduce_perf").resolve())


def test_without_an_mpirun_a_build_with_mpi_is_one_process_too(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "count_gpus", lambda: 2)
    monkeypatch.setattr(paths, "lacks", lambda transport: None)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/usr/bin/mpirun")
    folder = str(program(tmp_path / "tools", MPI))
    assert plan(tmp_path, capsys, "local", "--tool-path", folder)["jobs"][1]["launcher"] == "mpirun"
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    theirs = plan(tmp_path, capsys, "local", "--tool-path", folder)["jobs"][1]
    assert theirs["launcher"] == "direct" and theirs["command"][-2:] == ["-g", "2"]
