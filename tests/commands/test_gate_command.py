"""`linkbench gate` on files: exit codes, JUnit files, certificates, and a small real run."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree

import pytest

from bench.__main__ import main
from bench.core.record import Record
from bench.store import jsonl, runs
from tests.facts import holds, whole_plan
from tests.gate.gate_runs import Run, good, pairs

ROOT = Path(__file__).resolve().parent.parent.parent
Out = pytest.CaptureFixture[str]
RULES = """
rules:
  - {name: world, pattern: allreduce, transport: mpi, sizes: [1M, 2M], busbw: at least 1 GB/s, time: at most 1ms}
"""


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES, encoding="utf-8")
    return str(path)


def stored(run: Run, folder: Path) -> Path:
    """The run as it lies in results/."""
    folder.mkdir(parents=True)
    if run.plan is not None:
        runs.write_plan(folder, whole_plan({"scenario_text": "", **run.plan}))
    runs.write_outcomes(folder, run.outcomes)
    for job, head, records in run.jobs:
        writer = jsonl.Writer(runs.results_file(folder, job.partition("#")[0]), head)
        writer.append(*records)
    return folder


def test_a_run_that_passes_has_exit_code_0_in_every_format(tmp_path: Path, rules: str, capsys: Out) -> None:
    folder, junit = stored(good(), tmp_path / "run"), tmp_path / "out.xml"
    assert main(["gate", str(folder), "--rules", rules, "--junit", str(junit)]) == 0
    assert capsys.readouterr().out.startswith("# gate passed")
    assert ElementTree.parse(junit).getroot().get("failures") == "0"
    assert main(["gate", str(folder), "--rules", rules, "--format", "json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["schema"] == "bench.gate/1" and verdict["passed"]
    assert verdict["failures"] == {} and verdict["faults"] == []
    assert [(each["unit"], each["passed"], each["num_rows"]) for each in verdict["demands"]] == [
        ("bytes_per_s", True, 2),
        ("s", True, 2),
    ]
    assert main(["gate", str(folder), "--rules", rules, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["verdict"] for row in rows] == ["passed", "passed"]
    assert (
        main(["gate", str(folder), "--rules", rules, "--format", "markdown", "--output", str(tmp_path / "x.md")]) == 0
    )
    assert (tmp_path / "x.md").read_text().startswith("# gate passed")


def test_a_failure_has_exit_code_1_with_junit_and_github_lines(
    tmp_path: Path, rules: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = good()
    run.records(lambda one: True, lambda one: replace(one, verified=None))
    folder, junit = stored(run, tmp_path / "run"), tmp_path / "out.xml"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert main(["gate", str(folder), "--rules", rules, "--junit", str(junit), "--format", "json"]) == 1
    out = capsys.readouterr()
    verdict = json.loads(out.out)
    assert verdict["failures"] == {"unverified": 4} and not verdict["passed"]
    assert out.err.startswith("::error title=bench gate%3A unverified::") and "%0A" in out.err
    assert {failure.get("type") for failure in ElementTree.parse(junit).getroot().iter("failure")} == {"unverified"}


@pytest.mark.parametrize("what", ["bad rules", "no rules", "no run"])
def test_a_mistake_has_exit_code_2_and_an_old_junit_file_does_not_stay_green(
    what: str, tmp_path: Path, rules: str, capsys: Out
) -> None:
    folder, junit = stored(good(), tmp_path / "run"), tmp_path / "out.xml"
    assert main(["gate", str(folder), "--rules", rules, "--junit", str(junit)]) == 0
    if what == "bad rules":
        Path(rules).write_text(RULES + "    patern: x\n")
    named = str(tmp_path / "nothing.yaml") if what == "no rules" else rules
    ran = str(tmp_path / "nowhere") if what == "no run" else str(folder)
    assert main(["gate", ran, "--rules", named, "--junit", str(junit), "--results", str(tmp_path)]) == 2
    root = ElementTree.parse(junit).getroot()
    assert (root.get("errors"), root.get("failures")) == ("1", "0")
    assert "bench: error:" in capsys.readouterr().err


def test_a_junit_file_that_cannot_be_written_is_refused_first(tmp_path: Path, rules: str, capsys: Out) -> None:
    folder = stored(good(), tmp_path / "run")
    for junit in (tmp_path, tmp_path / "nowhere" / "out.xml"):
        assert main(["gate", str(folder), "--rules", rules, "--junit", str(junit)]) == 2
        out = capsys.readouterr()
        assert "--junit" in out.err and not out.out


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (None, "empty-run"),
        ("", "unreadable-run"),
        ("what is this?\n", "unreadable-run"),
        ('{"type":"record"}\n', "unreadable-run"),
        ('{"type":"header","schema":"bench.results/99"}\n', "unreadable-run"),
    ],
)
def test_an_existing_run_without_readable_results_fails(
    content: str | None, name: str, tmp_path: Path, rules: str, capsys: Out
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    if content is not None:
        (folder / "allreduce.jsonl").write_text(content)
    assert main(["gate", str(folder), "--rules", rules, "--format", "json"]) == 1
    assert list(json.loads(capsys.readouterr().out)["failures"]) == [name]


def test_a_plan_that_measured_nothing_is_an_empty_run_with_its_failures(
    tmp_path: Path, rules: str, capsys: Out
) -> None:
    run = good()
    job = run.jobs.pop()[0]
    run.outcomes[job] = {"exit_code": 0, "seconds": 1.0, "what": None}  # exit code 0, and no results
    assert main(["gate", str(stored(run, tmp_path / "run")), "--rules", rules, "--format", "json"]) == 1
    assert set(json.loads(capsys.readouterr().out)["failures"]) == {"empty-run", "failed-job"}


def test_unreadable_outcomes_fail(tmp_path: Path, rules: str, capsys: Out) -> None:
    folder = stored(good(), tmp_path / "run")
    for broken in ("{", "[]", '{"job": 5}'):
        (folder / "outcomes.json").write_text(broken)
        assert main(["gate", str(folder), "--rules", rules, "--format", "json"]) == 1
        assert list(json.loads(capsys.readouterr().out)["failures"]) == ["unreadable-run"]


def test_a_file_that_was_cut_fails(tmp_path: Path, rules: str, capsys: Out) -> None:
    folder = stored(good(), tmp_path / "run")
    file = next(folder.glob("*.jsonl"))
    file.write_bytes(file.read_bytes()[:-200])
    assert main(["gate", str(folder), "--rules", rules, "--format", "json"]) == 1
    assert set(json.loads(capsys.readouterr().out)["failures"]) == {"truncated-file", "missing-rows"}


@pytest.mark.parametrize(
    "change",
    [
        {"reported": {"mean_s": 1e-4, "busbw_bytes_per_s": "400e9"}},
        {"reported": [1]},
        {"payload_bytes": "1M"},
        {"payload_bytes": None},
        {"num_ranks": "four"},
        {"verified": "yes"},
        {"requested_bytes": ["1M"]},
        {"flags": [3]},
        {"bus_factor": 10**400},
        {"num_wrong": True},
        {"group": 5},
    ],
)
def test_a_stored_value_of_another_kind_is_an_unreadable_run(
    change: dict[str, object], tmp_path: Path, rules: str, capsys: Out
) -> None:
    folder = stored(good(), tmp_path / "run")
    file = next(folder.glob("*.jsonl"))
    header, *records = file.read_text().splitlines()
    row = json.loads(records[0]) | change
    if "reported" in change:
        del row["samples"]
    file.write_text("\n".join([header, json.dumps(row), *records[1:]]) + "\n")
    assert main(["gate", str(folder), "--rules", rules, "--format", "json"]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert list(verdict["failures"]) == ["unreadable-run"]
    assert f"{file}:2" in verdict["faults"][0]["what"] and next(iter(change)) in verdict["faults"][0]["what"]


def test_a_job_may_have_any_name(tmp_path: Path, rules: str, capsys: Out) -> None:
    folder = stored(good(), tmp_path / "run")
    (folder / "plan.json").unlink()
    (folder / "outcomes.json").unlink()
    for number, name in enumerate(("a#z", "#", "a#2x", f"a#{9:06}", "a#" + "9" * 99)):
        file = next(folder.glob("*.jsonl"))
        file.rename(folder / f"{name}.jsonl")
        assert main(["gate", str(folder), "--rules", rules, "--format", "json"]) == 1, (number, name)
        assert list(json.loads(capsys.readouterr().out)["failures"]) == ["no-plan"], (number, name)


@pytest.mark.parametrize("line", range(1, 5))
def test_no_line_of_a_file_can_be_removed(line: int, tmp_path: Path, rules: str) -> None:
    folder = stored(good(), tmp_path / "run")
    file = next(folder.glob("*.jsonl"))
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == 5
    file.write_text("".join(lines[:line] + lines[line + 1 :]))
    for with_plan in (True, False):
        assert main(["gate", str(folder), "--rules", rules]) == 1, with_plan
        (folder / "plan.json").unlink(missing_ok=True)


def test_the_baseline_may_be_named(tmp_path: Path, rules: str, capsys: Out) -> None:
    folder = stored(good(), tmp_path / "run")
    Path(rules).write_text("rules: [{pattern: allreduce, time: not slower than baseline}]")
    words = ["gate", str(folder), "--rules", rules, "--format", "json"]
    before = stored(good(), tmp_path / "before")
    for more, name in (
        ([], "no-baseline"),
        (["--baseline", str(before)], "too-few-launches"),
        (["--baseline", "nowhere"], "no-baseline"),
        (["--baseline", str(folder)], "no-baseline"),
    ):
        assert main([*words, *more]) == 1
        assert list(json.loads(capsys.readouterr().out)["failures"]) == [name]


def test_a_certificate_can_be_checked_later(tmp_path: Path, rules: str, capsys: Out) -> None:
    folder = stored(good(), tmp_path / "run")
    assert main(["report", str(folder), "--certificate", rules]) == 0
    page = capsys.readouterr().out
    assert page.splitlines()[0].startswith("# ") and page.splitlines()[0].endswith("certificate: PASSED")
    for word in (
        "| h0 | not judged |",
        "| h1 | not judged |",
        "cluster: toy",
        RULES.strip(),
        "allreduce-mpi-2x2",
        "H100",
    ):
        assert word in page
    hashes = dict(re.findall(r"^([0-9a-f]{64})  (\S+)$", page, re.MULTILINE))
    assert set(hashes.values()) == {"allreduce-mpi-2x2.jsonl", "plan.json", "outcomes.json"}
    for digest, name in hashes.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


def test_a_certificate_of_a_failed_run_has_exit_code_1(tmp_path: Path, rules: str, capsys: Out) -> None:
    run = good()
    job = pairs({2: 0.5})
    run.jobs.append(job)
    folder = stored(run, tmp_path / "run")
    again = pairs({}, ranks=(0, 1, 2, 3), job=job[0])
    assert main(["report", str(folder), "--certificate", rules]) == 1
    page = capsys.readouterr().out
    assert page.splitlines()[0].endswith("certificate: FAILED") and "| h2 | failed |" in page and "slow-part" in page
    jsonl.Writer(runs.results_file(folder, job[0]), again[1]).append(*again[2])
    runs.write_retests(
        folder, [{"started": "2026-01-02T06:00:00+00:00", "jobs": {job[0]: ["h2"]}, "reasons": ["cable"]}]
    )
    assert main(["report", str(folder), "--certificate", rules]) == 0
    page = capsys.readouterr().out
    assert "2026-01-02T06:00:00+00:00" in page and "cable" in page
    assert "5 pairs" in page
    assert "| h2 | passed | 3 |" in page
    assert "retests.json" in page


def test_a_certificate_is_markdown_and_needs_rules(tmp_path: Path, rules: str) -> None:
    folder = stored(good(), tmp_path / "run")
    assert main(["report", str(folder), "--certificate", rules, "--format", "json"]) == 2
    assert main(["report", str(folder), "--certificate"]) == 2, "no rules are called as its scenario"
    assert main(["report", str(next(folder.glob("*.jsonl"))), "--certificate"]) == 2, "no plan names a scenario"


def test_a_retest_of_a_run_that_passed_starts_nothing(tmp_path: Path, rules: str, capsys: Out) -> None:
    run = good()
    assert run.plan is not None
    run.plan["cluster"] = {"name": "toy", "nodes": 2, "python": None, "mpirun": None}
    folder = stored(run, tmp_path / "run")
    assert main(["run", "--retest", str(folder), "--rules", rules, "--no-plots"]) == 0
    assert holds(capsys.readouterr().err, "nothing", "again")
    assert not (folder / "retests.json").exists()
    assert main(["run", "--retest", str(folder), "--resume", str(folder)]) == 2
    runs.write_plan(folder, {"scenario": "import", "cluster": {}, "imported": ["a.log"], "jobs": []})
    assert main(["run", "--retest", str(folder), "--rules", rules]) == 2
    assert f"{folder} was imported" in capsys.readouterr().err


@pytest.mark.slow
def test_a_real_run_passes_fails_when_broken_and_passes_after_a_retest(
    tmp_path: Path, missing: Callable[[str, str], NoReturn], capsys: Out
) -> None:
    """A row is made bad in the file of a real run; the retest measures that size alone, and the gate is green."""
    if not (Path(sys.executable).parent / "mpirun").exists():
        missing("mpi", "no mpirun lies beside this interpreter")
    (tmp_path / "tiny.yaml").write_text(
        "max_seconds: 0.2\nmeasure: [{pattern: allreduce, transport: mpi, sizes: [8, 1K], mode: isolated}]\n"
    )
    allow = "allow: [not-converged, no-interval, contradicts]"
    (tmp_path / "rules.yaml").write_text(
        f"expect: {{max_age: 1h, cluster: local}}\n{allow}\n"
        "rules: [{pattern: allreduce, transport: mpi, sizes: [8, 1K], time: at most 1s}]\n"
    )
    rules = str(tmp_path / "rules.yaml")
    where = ["--results", str(tmp_path / "results")]
    words = [sys.executable, "-m", "bench", "run", str(tmp_path / "tiny.yaml"), *where, "--no-plots"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert main(["gate", "latest", "--rules", rules, *where]) == 0, capsys.readouterr().out
    folder = runs.find(tmp_path / "results", "latest")
    [file] = folder.glob("*.jsonl")
    [attempt] = jsonl.read(file).attempts
    file.unlink()
    wrong: list[Record] = [
        replace(one, verified=False, num_wrong=1) if one.payload_bytes == 1024 else one for one in attempt.records
    ]
    jsonl.Writer(file, attempt.header).append(*wrong)
    assert main(["gate", "latest", "--rules", rules, *where]) == 1
    assert "wrong-data" in capsys.readouterr().out
    again = [sys.executable, "-m", "bench", "run", "--retest", "latest", "--rules", rules, *where, "--no-plots"]
    done = subprocess.run(again, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = jsonl.read(file).attempts
    assert [one.payload_bytes for one in second.records] == [1024] and len(first.records) == 2
    assert main(["gate", "latest", "--rules", rules, *where]) == 0, capsys.readouterr().out
    out = capsys.readouterr().out
    assert "allreduce 1K isolated" in out and "# retest of" in out


def test_two_files_of_rules_are_a_mistake(tmp_path: Path, rules: str, capsys: Out) -> None:
    folder, junit = stored(good(), tmp_path / "run"), tmp_path / "out.xml"
    assert main(["gate", str(folder), "--rules", "failing.yaml", "--rules", rules, "--junit", str(junit)]) == 2
    err = capsys.readouterr().err
    assert "--rules" in err and "2 times" in err
    assert ElementTree.parse(junit).getroot().get("errors") == "1"
