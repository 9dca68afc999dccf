"""`linkbench plan`, `report` and `plot` in process, on the results that the project keeps."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.controller.messages import PlanSkipCode
from bench.probes import nvml
from tests.facts import holds

ROOT = Path(__file__).resolve().parent.parent.parent
[REFERENCE] = (ROOT / "results" / "reference").glob("main_*")
CONFIG = ("--config", str(ROOT / "bench.yaml"))
JSON = ("--format", "json")
SCENARIOS = sorted(path.stem for path in (ROOT / "scenarios").glob("*.yaml"))

Out = pytest.CaptureFixture[str]


@pytest.mark.thin(3)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(
    "cluster", ["local", "p4d", "g6e", *(pytest.param(name, marks=pytest.mark.slow) for name in ("p5", "p5-eks"))]
)
def test_every_scenario_can_be_planned_on_every_cluster(
    scenario: str, cluster: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert main(["plan", str(ROOT / "scenarios" / f"{scenario}.yaml"), "--cluster", cluster, *CONFIG]) == 0
    lines = capsys.readouterr().out.splitlines()
    if cluster in ("p4d", "p5"):
        assert lines[0] == "#!/bin/sh", "a job script for sbatch"
        lines = [line for line in lines[1:] if line and not line.startswith("#SBATCH ")]
    assert lines[0].startswith("# ") and holds(lines[0], f"scenario {scenario}", f"cluster {cluster}:")
    assert any(line.startswith("# estimate: ") for line in lines[:4])
    assert main(["plan", str(ROOT / "scenarios" / f"{scenario}.yaml"), "--cluster", cluster, *CONFIG, *JSON]) == 0
    codes = {skip["code"] for skip in json.loads(capsys.readouterr().out)["skipped"]}
    if scenario == "rdma" and cluster in ("local", "g6e"):  # one node
        assert PlanSkipCode.TOO_FEW_NODES in codes
        return
    if (scenario, cluster) == ("parity", "g6e"):  # torchrun starts g6e's ranks, and parity is for MPI
        assert codes == {PlanSkipCode.TORCHRUN_WITHOUT_MPI}
        return
    if cluster == "local" and nvml.count_gpus() < {
        "host_device": 1,
        "gpu_baseline": 1,
        "kernels": 1,
        "parity_gpu": 1,
        "peer_copy": 2,
    }.get(scenario, 0):
        assert codes and codes <= {PlanSkipCode.UNAVAILABLE, PlanSkipCode.TOO_FEW_RANKS}
        return
    assert any("-m bench." in line or line.strip().startswith("- bench.") for line in lines)


def test_without_an_mpirun_other_launchers_are_planned(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image for training often has mpi4py but no mpirun."""
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert main(["plan", str(ROOT / "scenarios" / "smoke.yaml"), *CONFIG, "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {job["launcher"] for job in plan["jobs"]} <= {"torchrun", "direct"}
    assert plan["jobs"], plan["skipped"]


@pytest.mark.parametrize("tool", ["nixlbench", "p2p_bandwidth_latency"])
def test_a_tool_with_a_log_reader_only_cannot_be_planned(tool: str, capsys: Out, tmp_path: Path) -> None:
    scenario = tmp_path / "beside.yaml"
    scenario.write_text(f"description: x\nmeasure:\n  - {{patterns: [pingpong], transport: mpi, tools: [{tool}]}}\n")
    assert main(["plan", str(scenario), *CONFIG]) == 2
    err = capsys.readouterr().err
    assert err.startswith("bench: error: ") and tool in err and "`linkbench import`" in err


def test_a_plan_in_json_has_the_command_and_the_case(capsys: Out) -> None:
    words = ["plan", str(ROOT / "scenarios" / "smoke.yaml"), "--cluster", "p4d", "--model", *CONFIG, "--format", "json"]
    assert main(words) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["schema"] == "bench.plan/1" and plan["modelled"] is True and "measure:" in plan["scenario_text"]
    for job in plan["jobs"]:
        assert job["command"][1:3] == ["-m", f"bench.{job['case'][0]}"]
        assert job["command"][3:] == job["case"][1:]


def test_a_report_is_the_same_rows_in_every_format(capsys: Out, tmp_path: Path) -> None:
    texts = {}
    for form in ("table", "json", "csv", "markdown"):
        assert main(["report", str(REFERENCE), "--format", form]) == 0
        texts[form] = capsys.readouterr().out
    rows = json.loads(texts["json"])["summaries"]
    assert len(list(csv.DictReader(io.StringIO(texts["csv"])))) == len(rows) > 60
    assert texts["table"].count("\n   ") > 30 and texts["markdown"].count("\n| ") > 60
    assert main(["report", str(REFERENCE), "--format", "json", "--output", str(tmp_path / "r.json")]) == 0
    assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["summaries"] == rows


def test_a_file_alone_can_be_reported_and_plotted(capsys: Out, tmp_path: Path) -> None:
    file = str(REFERENCE / "pingpong-mpi-1x2.jsonl")
    assert main(["report", file]) == 0
    assert holds(capsys.readouterr().out, "pingpong", "mpi", "2 ranks", "1 node")
    assert main(["plot", file, "--plots", str(tmp_path), "--figure-format", "pdf", "--figure-format", "svg"]) == 0
    drawn = [Path(line) for line in capsys.readouterr().out.splitlines()]
    names = ("bandwidth", "fit-isolated", "fit-pipelined", "latency")
    assert {path.name for path in drawn} == {f"{name}.{form}" for name in names for form in ("pdf", "svg")}
    assert all(path.stat().st_size > 5000 for path in drawn)


def test_a_missing_run_is_one_error_and_json_stays_json(capsys: Out, tmp_path: Path) -> None:
    assert main(["report", "nosuch", "--results", str(tmp_path), "--format", "json"]) == 2
    told = capsys.readouterr()
    assert "'nosuch'" in told.err
    assert json.loads(told.out)["failures"][0]["what"] in told.err
