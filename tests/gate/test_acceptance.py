"""The acceptance of new nodes: what it measures, how long it takes, and that a model is not accepted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.__main__ import main
from tests.gate.gate_runs import good, judge

ROOT = Path(__file__).resolve().parent.parent.parent
CLUSTERS = """
clusters:
  big: {instance: p5.48xlarge, nodes: 64, ranks_per_node: 8, launcher: slurm}
  small: {instance: p4d.24xlarge, nodes: 3, ranks_per_node: 8, launcher: slurm}
"""
MOST_S = 20 * 60
Out = pytest.CaptureFixture[str]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(ROOT)
    (tmp_path / "bench.yaml").write_text(CLUSTERS, encoding="utf-8")
    return str(tmp_path / "bench.yaml")


def test_64_nodes_of_8_gpus_are_planned_in_20_minutes(config: str, capsys: Out) -> None:
    assert main(["plan", "acceptance", "--cluster", "big", "--config", config, "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["estimate_s"] <= MOST_S and plan["budget_s"] <= MOST_S
    assert not plan["skipped"] and not [note for note in plan["notes"] if "thinned" in note or "left out" in note]
    assert {(job["world"]["num_nodes"], job["world"]["ranks_per_node"]) for job in plan["jobs"]} == {(64, 8)}
    cases = [" ".join(job["case"]) for job in plan["jobs"]]
    for words in (
        "host_device --transport cuda_copy",
        "--topology single ranks",
        "--topology groups of 1",
        "local_copy ",
        "--topology single pairs",
        "--topology node",
        "--topology rail",
        "pairs ",
        "--schedule ladder",
        "pingpong ",
    ):
        assert any(words in case for case in cases), words
    assert main(["plan", "acceptance", "--cluster", "big", "--config", config]) == 0
    assert "# estimate: " in capsys.readouterr().out


@pytest.mark.slow
def test_a_modelled_acceptance_is_judged_and_refused(config: str, tmp_path: Path, capsys: Out) -> None:
    where = ["--results", str(tmp_path / "results")]
    words = ["run", "acceptance", "--cluster", "small", "--config", config, "--model", "--no-plots", *where]
    assert main(words) == 0
    capsys.readouterr()
    assert main(["gate", "latest", "--rules", "acceptance", "--format", "json", *where]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["failures"]["modelled"] > 0
    names = [{fault["name"] for fault in demand["faults"]} for demand in verdict["demands"]]
    there = [demand["num_rows"] > 0 for demand in verdict["demands"]]
    assert there == [False] * 5 + [True] * (len(there) - 5), "the model has no copies of one GPU, and everything else"
    assert [name - {"size-skipped"} for name in names] == [
        {"missing-rows"} if not rows else {"modelled"} for rows in there
    ]


@pytest.mark.parametrize("with_mpi", [True, False])
def test_nodes_without_gpus_are_judged_over_mpi_and_gloo_is_ignored(with_mpi: bool, tmp_path: Path) -> None:
    """Where torch is installed the scenario measures Gloo, too: that is no wrong fabric, but no MPI at all is one."""
    run = good()
    [(job, head, records)] = run.jobs
    words = tuple(word.replace("mpi", "gloo") for word in head.case)
    gloo = replace(head, job="allreduce-gloo-2x2", case=words, transport="gloo")
    run.jobs = [*([(job, head, records)] if with_mpi else []), (gloo.job, gloo, records)]
    jobs = [
        {"name": each.job, "case": list(each.case), "world": {"num_nodes": 2, "ranks_per_node": 2}}
        for _, each, _ in run.jobs
    ]
    run.plan = {"cluster": {"name": "toy"}, "scenario": "acceptance", "skipped": [], "jobs": jobs}
    run.outcomes = {each.job: {"exit_code": 0, "seconds": 1.0, "what": None} for _, each, _ in run.jobs}
    rules = (ROOT / "rules" / "acceptance-no-gpu.yaml").read_text(encoding="utf-8")
    found = judge(run, tmp_path, rules)
    fabric = [fault for fault in found.all_faults if fault.name == "wrong-fabric"]
    assert bool(fabric) is not with_mpi
