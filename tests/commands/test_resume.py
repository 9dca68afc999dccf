"""`linkbench run --resume`: what is refused before anything starts."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.commands import run
from bench.config.clusters import Cluster
from bench.controller.jobs import JobSpec, job_of
from bench.controller.plan import site_of
from bench.core.case import Case
from bench.core.case_argv import to_argv
from bench.core.world import World

ROOT = Path(__file__).resolve().parents[2]


SITE = "clusters:\n  site: {instance: p4d.24xlarge, launcher: direct, python: %s, env: {NCCL_ALGO: Ring}}\n"


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where a modelled run of the cluster `site` was made once. Tests change copies of it."""
    folder = tmp_path_factory.mktemp("modelled")
    (folder / "bench.yaml").write_text(SITE % sys.executable)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["run", "smoke", "--cluster", "site", "--model", "--no-plots"]) == 0
    return folder


@pytest.fixture
def planned(
    modelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder of a modelled run of the cluster `site`, whose bench.yaml is in the working directory."""
    shutil.copytree(modelled, tmp_path, dirs_exist_ok=True, symlinks=True)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    [folder] = (tmp_path / "results").iterdir()
    return folder


@pytest.mark.thin(2)
@pytest.mark.parametrize("named", ["bandwidth", "scenarios/bandwidth.yaml"])
def test_another_scenario_than_the_runs_own_is_refused(
    named: str, planned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--results", str(planned.parent), "--no-plots"]
    Path("scenarios").symlink_to(ROOT / "scenarios")
    assert main(["run", named, "--resume", str(planned), *where]) == 2
    err = capsys.readouterr().err
    assert "'smoke'" in err and "'bandwidth'" in err and "--resume" in err
    for own in ([], ["smoke"]):
        assert main(["run", *own, "--resume", str(planned), *where]) == 0
        assert "0 of " in capsys.readouterr().err
    (planned / "outcomes.json").write_text("{")  # it may say that a ladder was cut
    assert main(["run", "--resume", str(planned), *where]) == 2
    assert "outcomes.json" in capsys.readouterr().err


def test_options_that_the_runs_plan_overrides_are_named(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ignored(*options: str) -> set[str]:
        assert main(["run", *options, "--results", str(planned.parent), "--no-plots"]) == 0
        [line] = [line for line in capsys.readouterr().err.splitlines() if "ignores" in line] or [""]
        return set(line.partition("ignores ")[2].split(", ")) - {""}

    resumed = ("--resume", str(planned))
    assert ignored(*resumed) == ignored(*resumed, "--cluster", "site", "--model") == set()
    assert ignored(*resumed, "--launches", "5", "--budget", "9s") == {"--launches", "--budget"}
    assert ignored(*resumed, "--cluster", "local", "--rules", "x") == {"--cluster", "--rules"}
    parser = argparse.ArgumentParser()
    run.arguments(parser)
    stored = {"scenario": "smoke", "cluster": {"name": "site"}, "modelled": True}
    run._say_ignored(parser.parse_args(["scenarios/smoke.yaml", "--retest", "x", "--rules", "y"]), stored)
    assert not capsys.readouterr().err
    run._say_ignored(parser.parse_args(["main", "--retest", "x"]), stored)
    assert "--retest" in (err := capsys.readouterr().err) and "SCENARIO" in err


def test_site_lines_of_a_stored_plan_never_run(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = json.loads((planned / "plan.json").read_text())
    for rows in planned.glob("*.jsonl"):
        rows.unlink()  # everything is missing
    site_lines = {
        "setup": ["touch planted"],
        "agent": ["sh", "-c"],
        "python": "/tmp/python",
        "mpirun": "/tmp/mpirun",
        "env": {"LD_PRELOAD": "/tmp/x.so"},
    }
    for key, planted in site_lines.items():
        (planned / "plan.json").write_text(json.dumps({**own, "cluster": {**own["cluster"], key: planted}}))
        for option in (("--resume",), ("--rules", "acceptance-no-gpu", "--retest")):
            assert main(["run", *option, "latest", "--no-plots"]) == 3
            err = capsys.readouterr().err
            assert "'site'" in err and key in err and "bench.yaml" in err
            assert not Path("planted").exists()


def test_the_same_site_is_continued_and_a_cluster_that_is_gone_is_refused(
    planned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [rows, *_] = sorted(planned.glob("*.jsonl"))
    rows.unlink()
    assert main(["run", "--resume", "latest", "--no-plots"]) == 0 and rows.exists()
    Path("bench.yaml").rename("other.yaml")
    Path("bench.yaml").write_text("clusters: {a: {nodes: 1}}\n")
    capsys.readouterr()
    assert main(["run", "--resume", "latest", "--no-plots"]) == 3
    assert "'site'" in capsys.readouterr().err
    assert main(["run", "--resume", "latest", "--no-plots", "--config", "other.yaml"]) == 0


def test_a_row_with_wrong_data_is_measured_again_and_then_the_run_is_whole(
    planned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [rows, failed, *_] = sorted(planned.glob("*.jsonl"))
    _change_last_row(rows, {"verified": False, "num_wrong": 3})
    _change_last_row(failed, {"failed": {"what": "no memory", "rank": 1, "host": "h0"}, "samples": None})
    assert main(["run", "--resume", "latest", "--no-plots"]) == 0
    assert "2 of 2 jobs are incomplete" in capsys.readouterr().err
    assert main(["report", "latest", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["job"] for row in document["summaries"] if row["verified"] is False] == [rows.stem]  # still shown
    assert [row["job"] for row in document["failures"]] == [failed.stem]
    assert main(["run", "--resume", "latest", "--no-plots"]) == 0
    assert "0 of 2 jobs" in capsys.readouterr().err


def test_a_job_that_failed_after_its_last_row_ends_well_when_the_run_is_resumed(
    planned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [rows, lacking, *_] = sorted(planned.glob("*.jsonl"))
    outcomes = json.loads((planned / "outcomes.json").read_text())
    for name in (rows.stem, lacking.stem):
        outcomes[name] |= {"exit_code": -15, "what": "no heartbeat", "code": "no-sign-of-life", "seconds": 67.5}
    lines = lacking.read_text().splitlines(keepends=True)
    lacking.write_text("".join(line for line in lines if '"type":"record"' not in line))
    (planned / "outcomes.json").write_text(json.dumps(outcomes))
    assert main(["run", "--resume", "latest", "--no-plots"]) == 0
    assert "1 of 2 jobs" in capsys.readouterr().err
    after = json.loads((planned / "outcomes.json").read_text())
    assert after[rows.stem]["what"] is None and after[rows.stem]["seconds"] == 67.5
    [remark] = after[rows.stem]["remarks"]
    assert (remark["code"], remark["facts"]["earlier_code"]) == ("failed-after-rows", "no-sign-of-life")
    assert after[lacking.stem]["what"] is None and after[lacking.stem]["remarks"] == []


def _change_last_row(file: Path, keys: dict[str, object]) -> None:
    lines = file.read_text().splitlines()
    [*_, last] = [number for number, line in enumerate(lines) if '"requested_bytes"' in line]
    row = {**json.loads(lines[last]), **keys}
    lines[last] = json.dumps({key: value for key, value in row.items() if value is not None})
    file.write_text("\n".join(lines) + "\n")


def test_variables_of_a_stored_plan_do_not_replace_the_agent() -> None:
    """Plans of older versions stored the launcher's variables as factors."""
    planted = {"BENCH_AGENT": "sh -c", "HYDRA_LAUNCHER_EXEC": "/tmp/agent", "NCCL_ALGO": "Tree"}
    stored = {
        "name": "a",
        "case": to_argv(Case("allreduce", "mpi", (1024,))),
        "world": asdict(World(2, 1)),
    }
    site = site_of(Cluster("c", nodes=2, hosts=("a", "b"), launcher="mpirun"), (), None)
    made = job_of(JobSpec.from_plain({**stored, "factors": planted}), site)
    assert made.env["BENCH_AGENT"].startswith("ssh ") and made.env["HYDRA_LAUNCHER_EXEC"] != "/tmp/agent"
    assert made.env["NCCL_ALGO"] == "Tree" and dict(made.factors) == {"NCCL_ALGO": "Tree"}
