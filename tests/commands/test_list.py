import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as entry
from bench.commands import list as listing
from bench.config import paths
from bench.core import plugins
from bench.probes import nvml
from bench.results.formats import table
from tests.facts import holds


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two scenarios and two clusters."""
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "two.yaml").write_text("description: the\n  second\n")
    (tmp_path / "scenarios" / "one.yaml").write_text("description: the first\n")
    p4d = "{instance: p4d.24xlarge, nodes: 2, ranks_per_node: 8, launcher: slurm}"
    (tmp_path / "bench.yaml").write_text(f"clusters:\n  here:\n    nodes: 1\n  p4d: {p4d}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _listed(*words: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert entry.main(["list", *words, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "bench.list/1"
    entries: list[dict[str, Any]] = told["entries"]
    return entries


@pytest.mark.usefixtures("site")
def test_everything_is_listed_kind_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    entries = _listed(capsys=capsys)
    kinds = list(dict.fromkeys(each["kind"] for each in entries))
    assert kinds == ["pattern", "transport", "launcher", "tool", "scenario", "rules", "workload", "cluster", "instance"]
    for kind in ("pattern", "transport", "launcher"):
        assert tuple(each["name"] for each in entries if each["kind"] == kind) == plugins.names(kind)


def test_every_plug_in_says_in_its_first_line_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("patterns", "transports", "launchers"):
        for each in _listed(kind, capsys=capsys):
            assert len(each["description"]) > 20, each["name"]


@pytest.mark.usefixtures("site")
def test_scenarios_show_their_description_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    told = [(each["name"], each["description"]) for each in _listed("scenarios", capsys=capsys)]
    assert told == [("one", "the first"), ("two", "the second")]


@pytest.mark.usefixtures("site")
def test_clusters_show_what_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    told = {each["name"]: each["description"] for each in _listed("clusters", capsys=capsys)}
    assert {name: description.split(", ") for name, description in told.items()} == {
        "here": ["instance unknown", "1 node", "launcher auto"],
        "p4d": ["p4d.24xlarge", "2 nodes", "8 ranks per node", "launcher slurm"],
    }


def test_instance_types_show_their_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    told = {each["name"]: each["description"] for each in _listed("instances", capsys=capsys)}
    assert "8 x A100" in told["p4d.24xlarge"]


def test_a_file_that_is_no_yaml_is_an_error_with_its_place(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "bench.yaml").write_text("clusters:\n  here: [1,\n")
    assert entry.main(["list", "clusters"]) == 2
    assert "bench.yaml:3:1" in capsys.readouterr().err


def test_without_a_bench_yaml_there_are_no_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paths, "PACKAGE_ROOT", tmp_path)
    assert entry.main(["list", "clusters"]) == 0
    assert capsys.readouterr().out == "# clusters: none\n"


def test_one_kind_may_be_named_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    assert _listed("pattern", capsys=capsys) == _listed("patterns", capsys=capsys)


def test_a_transport_whose_package_is_missing_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mpi4py" else found(name))
    (mpi,) = [each for each in _listed("transports", capsys=capsys) if each["name"] == "mpi"]
    assert holds(mpi["unavailable"], "mpi4py", "not installed")


def test_nccl_is_not_available_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(nvml, "count_gpus", lambda: 0)
    lacking = paths.lacks("nccl")
    assert lacking == paths.lacks("mpi_cuda") and holds(str(lacking), "no", "GPU")
    monkeypatch.setattr(nvml, "count_gpus", lambda: 8)
    assert paths.lacks("nccl") is paths.lacks("mpi_cuda") is None


def test_a_launcher_whose_program_is_missing_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (slurm,) = [each for each in _listed("launchers", capsys=capsys) if each["name"] == "slurm"]
    assert holds(slurm["unavailable"], "srun", "PATH")
    (tmp_path / "srun").touch(mode=0o755)
    (slurm,) = [each for each in _listed("launchers", capsys=capsys) if each["name"] == "slurm"]
    assert slurm["unavailable"] is None


def test_an_mpirun_beside_the_interpreter_counts_although_it_is_not_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (mpirun,) = [each for each in _listed("launchers", capsys=capsys) if each["name"] == "mpirun"]
    assert holds(mpirun["unavailable"], "mpirun", "PATH")
    (tmp_path / "mpirun").touch(mode=0o755)
    (mpirun,) = [each for each in _listed("launchers", capsys=capsys) if each["name"] == "mpirun"]
    assert mpirun["unavailable"] is None


def test_the_table_has_one_line_each_and_says_what_can_not_run_here() -> None:
    found = {
        "transports": [
            listing.Entry("transport", "a", "First."),
            listing.Entry("transport", "bcd", "Second.", "broken"),
        ]
    }
    lines = table.render(listing.ListReport(found)).splitlines()
    assert [line.split() for line in lines] == [
        ["#", "transports:"],
        ["a", "First."],
        ["bcd", "Second.", "[not", "here:", "broken]"],
    ]


def test_runs_are_listed_by_their_start_and_only_if_they_are_asked_for(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("20260103-030405-here-one", "20260102-030405-here-two"):
        (site / "results" / name).mkdir(parents=True)
        (site / "results" / name / "plan.json").write_text("{}", encoding="utf-8")
        (site / "results" / name / "job.jsonl").write_text("", encoding="utf-8")
    (site / "results" / "notes").mkdir()
    entries = _listed("runs", capsys=capsys)
    assert [entry["name"] for entry in entries] == ["20260102-030405-here-two", "20260103-030405-here-one"]
    assert all("1 job with results" in entry["description"] for entry in entries)
    assert not [entry for entry in _listed(capsys=capsys) if entry["kind"] == "run"]
    assert _listed("runs", "--results", "elsewhere", capsys=capsys) == []
