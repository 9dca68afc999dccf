"""Ways to pass a gate without evidence that were found in the past, each with the failure that now catches it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from tests.commands.import_samples import NCCL
from tests.commands.test_gate_command import RULES, stored
from tests.gate.gate_runs import good, pairs

Out = pytest.CaptureFixture[str]
Edit = Callable[[dict[str, Any]], object]
ISOLATED = "rules: [{pattern: allreduce, sizes: [1M, 2M], time: at most 1ms}]"


def names(out: Out, folder: Path, rules: str) -> list[str]:
    """The failures of a gate; none of one that passed."""
    path = folder.parent / "holes.yaml"
    path.write_text(rules)
    code = main(["gate", str(folder), "--rules", str(path), "--format", "json"])
    found = list(json.loads(out.readouterr().out)["failures"])
    assert (code == 0) == (not found)
    return found


def edited(folder: Path, edit: Edit, number: int = 1) -> None:
    """Change one line of the results file: 0 is the header."""
    [file] = folder.glob("allreduce*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    edit(lines[number])
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def by_rank(lists: int, first: object = 1e-4) -> Edit:
    def change(line: dict[str, Any]) -> None:
        samples = line["samples"]
        own = samples.pop("seconds")
        samples["by_rank"] = [list(own) for _ in range(lists)]
        samples["by_rank"][-1][0] = first

    return change


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("edit", "name"),
    [
        (by_rank(3), "inconsistent"),
        (by_rank(4, -1), "inconsistent"),
        (by_rank(4, 0), "inconsistent"),
        (by_rank(4, True), "unreadable-run"),
        (lambda line: line.update(verified="yes"), "unreadable-run"),
        (lambda line: line.update(verified=1), "unreadable-run"),
        (lambda line: line.update(bus_factor=100), "inconsistent"),
        (lambda line: line.update(bus_factor=True), "unreadable-run"),
        (lambda line: line.pop("node_bytes"), "inconsistent"),
        (lambda line: line.update(rank_bytes=1), "inconsistent"),
        (lambda line: line.update(payload_bytes=800 << 20), "inconsistent"),
        (lambda line: line.update(num_ranks=2, bus_factor=1.0), "inconsistent"),
    ],
)
def test_a_row_that_contradicts_its_header_fails(edit: Edit, name: str, tmp_path: Path, capsys: Out) -> None:
    folder = stored(good(), tmp_path / "run")
    edited(folder, lambda line: by_rank(4)(line) and None)
    assert names(capsys, folder, ISOLATED) == []
    folder = stored(good(), tmp_path / "other")
    edited(folder, edit)
    assert name in names(capsys, folder, ISOLATED)


def without_plan(folder: Path) -> None:
    (folder / "plan.json").unlink()


def without_plan_and_job(folder: Path) -> None:
    without_plan(folder)
    (folder / "pairs-mpi-6x1.jsonl").unlink()


def out_of_the_plan(folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    plan["jobs"] = [job for job in plan["jobs"] if "pairs" not in job["name"]]
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "pairs-mpi-6x1.jsonl").unlink()


def only_one(folder: Path) -> None:
    for path in folder.glob("*"):
        if not path.name.startswith("allreduce"):
            path.unlink()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (without_plan, {"no-plan"}),
        (without_plan_and_job, {"no-plan", "failed-job"}),
        (out_of_the_plan, {"failed-job"}),
        (only_one, {"no-plan"}),
    ],
)
def test_removing_parts_of_a_run_fails(
    change: Callable[[Path], None], expected: set[str], tmp_path: Path, capsys: Out
) -> None:
    run = good()
    job = pairs({})
    run.jobs.append(job)
    run.outcomes[job[0]] = {"exit_code": 0, "seconds": 1.0, "what": None}
    assert run.plan is not None
    world = {"num_nodes": 6, "ranks_per_node": 1}
    run.plan["jobs"].append({"name": job[0], "case": list(job[1].case), "world": world})
    folder = stored(run, tmp_path / "run")
    assert names(capsys, folder, ISOLATED) == []
    change(folder)
    assert set(names(capsys, folder, ISOLATED)) == expected


def test_a_results_file_alone_fails(tmp_path: Path, capsys: Out) -> None:
    folder = stored(good(), tmp_path / "run")
    assert names(capsys, next(folder.glob("*.jsonl")), RULES) == ["no-plan"]


@pytest.mark.parametrize("of", [("pipelined", 1 << 20), ("pipelined", None), (None, 1 << 21)])
def test_missing_rows_fail_even_if_no_rule_selects_them(
    of: tuple[str | None, int | None], tmp_path: Path, capsys: Out
) -> None:
    run = good()
    mode, size = of
    run.records(
        lambda one: one.mode == (mode or one.mode) and one.payload_bytes == (size or one.payload_bytes),
        lambda one: None,
    )
    rules = ISOLATED.replace("[1M, 2M]", "1M")
    assert names(capsys, stored(run, tmp_path / "run"), rules) == ["missing-rows"]


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB", []),
        ("NVIDIA H200", ["wrong-cluster"]),
        ("NVIDIA Model Q", []),
    ],
)
def test_an_instance_type_with_another_gpu_fails(gpu: str, expected: list[str], tmp_path: Path, capsys: Out) -> None:
    log, results = tmp_path / "a.log", tmp_path / "results"
    log.write_text(NCCL.replace("NVIDIA Model Q", gpu))
    assert main(["import", str(log), "--instance", "p4d.24xlarge", "--results", str(results)]) == 0
    capsys.readouterr()
    rules = "expect: {instance: p4d.24xlarge}\n"
    rules += "rules: [{pattern: allreduce, sizes: 1M, busbw: at least 1 B/s, imported: true}]"
    assert names(capsys, next(results.iterdir()), rules) == expected


@pytest.mark.thin(3)
@pytest.mark.parametrize("key", ["bus_factor", "rank_bytes", "node_bytes", "payload_bytes", "num_ranks", "num_nodes"])
@pytest.mark.parametrize("factor", [0, 0.5, 2, 100, None])
def test_no_edit_of_a_row_turns_a_failing_gate_green(
    key: str, factor: float | None, tmp_path: Path, capsys: Out
) -> None:
    folder = stored(good(), tmp_path / "run")
    rules = RULES.replace("at least 1 GB/s", "at least 20 GB/s")
    assert names(capsys, folder, rules) == ["too-low"]
    for number in range(1, 5):
        edited(folder, lambda line: line.update({key: factor and int(line[key] * factor)}), number)
    assert names(capsys, folder, rules)
