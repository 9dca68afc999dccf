"""`linkbench lint` on files: a good run keeps all rules, and each change breaks exactly its rule."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.core import plugins
from bench.core.record import Header, Record, Skip
from bench.results import collect, summary
from bench.store import jsonl, runs
from tests.facts import whole_plan

ROOT = Path(__file__).resolve().parent.parent.parent
[REFERENCE] = (ROOT / "results" / "reference").glob("main_*")
JOB = "allreduce-mpi-1x2"

Out = pytest.CaptureFixture[str]


@dataclass
class Files:
    """The folder of a run with one job, before it is written."""

    header: Header
    records: list[Record]
    plan: dict[str, Any]
    outcomes: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {JOB: {"exit_code": 0, "seconds": 12.5, "what": None}}
    )

    def settings(self, **changed: Any) -> None:
        """Change settings; None removes one."""
        self.header = replace(self.header, settings=_without_none({**self.header.settings, **changed}))

    def calibration(self, **changed: Any) -> None:
        """Change the calibration; None removes a value."""
        self.header = replace(self.header, calibration=_without_none({**self.header.calibration, **changed}))

    def reported(self, **statistics: float) -> None:
        """Add a row with another tool's statistics."""
        self.records.append(replace(self.records[0], samples=None, stop_reason=None, reported=statistics))

    def write(self, folder: Path) -> Path:
        folder.mkdir()
        runs.write_plan(folder, whole_plan(self.plan))
        runs.write_outcomes(folder, self.outcomes)
        writer = jsonl.Writer(runs.results_file(folder, JOB), self.header)
        for record in self.records:
            writer.append(record)
        return folder


def _without_none(given: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}


@pytest.fixture
def files() -> Files:
    """A real run, with all that is recorded today."""
    [attempt] = jsonl.read(REFERENCE / f"{JOB}.jsonl").attempts
    header = attempt.header
    plan = {"scenario_text": "measure: [...]", "skipped": [], "jobs": [{"name": JOB, "case": list(header.case)}]}
    good = Files(header, list(attempt.records), plan)
    good.settings(confidence=0.95, ci_method="order statistics on the effective sample size")
    good.calibration(sync_skew_p50_s=4e-7, sync_skew_p99_s=6e-7, sync_skew_max_s=2e-6)
    return good


def findings(folder: Path, capsys: Out) -> tuple[int, dict[str, Any]]:
    code = main(["lint", str(folder), "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_good_run_keeps_all_rules(files: Files, tmp_path: Path, capsys: Out) -> None:
    code, document = findings(files.write(tmp_path / "run"), capsys)
    assert [(found["rule"], found["status"]) for found in document["findings"]] == [
        (n, "passed" if n < 15 else "not known") for n in range(1, 16)
    ], [found for found in document["findings"] if found["status"] != "passed"]
    assert code == 0 and document["schema"] == "bench.lint/1" and document["kept"] is True


def _drop_a_row(files: Files) -> None:
    del files.records[3]


def _drop_stop_reason(files: Files) -> None:
    files.records[2] = replace(files.records[2], stop_reason=None)


BREAKS: list[tuple[int, str, Callable[[Files], None]]] = [
    (1, "a speedup alone", lambda files: files.reported(mean_s=2e-6, speedup=3.2)),
    (2, "a row is missing", _drop_a_row),
    (3, "a mean of rates", lambda files: files.reported(mean_s=2e-6, algbw_bytes_per_s=4.5e6)),
    (3, "a geometric mean of times", lambda files: files.settings(iteration_reduction="geometric mean")),
    (4, "an average of busbw", lambda files: files.reported(average_busbw_bytes_per_s=3e9)),
    (5, "no confidence", lambda files: files.settings(confidence=None)),
    (5, "a median alone", lambda files: files.reported(median_s=2e-6, num_samples=100)),
    (6, "a normal distribution", lambda files: files.settings(ci_method="mean +- 1.96 standard errors")),
    (6, "a standard deviation", lambda files: files.reported(mean_s=2e-6, stddev_s=1e-7)),
    (8, "a p99 of 20 samples", lambda files: files.reported(mean_s=2e-6, p99_s=9e-6, num_samples=20)),
    (9, "no seed", lambda files: files.settings(seed=None)),
    (9, "no scenario", lambda files: files.plan.update(scenario_text="")),
    (9, "no end", lambda files: files.outcomes.clear()),
    (10, "no synchronisation recorded", lambda files: files.settings(sync=None)),
    (10, "no skew", lambda files: files.calibration(sync_skew_p50_s=None)),
    (11, "no bound", lambda files: files.calibration(memcpy=None)),
    (12, "no stop reason", _drop_stop_reason),
]


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("rule", "change"),
    [(rule, change) for rule, _, change in BREAKS],
    ids=[f"{rule}, {what}" for rule, what, _ in BREAKS],
)
def test_a_change_breaks_exactly_its_rule(
    files: Files, tmp_path: Path, capsys: Out, rule: int, change: Callable[[Files], None]
) -> None:
    change(files)
    code, document = findings(files.write(tmp_path / "run"), capsys)
    failed = {found["rule"]: found for found in document["findings"] if found["status"] == "failed"}
    assert list(failed) == [rule] and code == 1 and document["kept"] is False
    assert all(row["what"] in failed[rule]["sentences"] for row in failed[rule]["rows"]) and failed[rule]["rows"]


def test_every_rule_but_the_one_about_verdicts_can_be_broken() -> None:
    """A run by itself gives no verdict (rule 7)."""
    assert {rule for rule, _, _ in BREAKS} == set(range(1, 13)) - {7}


def test_the_offending_row_is_named_in_every_format(files: Files, tmp_path: Path, capsys: Out) -> None:
    gone = files.records[3]
    _drop_a_row(files)
    folder = files.write(tmp_path / "run")
    for form in ("table", "markdown"):
        assert main(["lint", str(folder), "--format", form]) == 1
        text = capsys.readouterr().out
        assert f"{JOB}: {gone.mode} 64" in text and "broken: 2" in text
    assert main(["lint", str(folder), "--format", "csv"]) == 1
    rows = [row for row in csv.DictReader(io.StringIO(capsys.readouterr().out)) if row["status"] == "failed"]
    assert [(row["rule"], row["job"], row["mode"], row["payload_bytes"]) for row in rows] == [
        ("2", JOB, gone.mode, "64")
    ]


def test_a_row_with_a_skip_reason_is_not_missing(files: Files, tmp_path: Path, capsys: Out) -> None:
    files.records[3] = replace(files.records[3], samples=None, skipped=Skip.uncoded("the time budget was used up"))
    assert findings(files.write(tmp_path / "run"), capsys)[0] == 0


def test_a_later_attempt_completes_an_earlier_one(files: Files, tmp_path: Path, capsys: Out) -> None:
    late = files.records.pop()
    folder = files.write(tmp_path / "run")
    assert findings(folder, capsys)[0] == 1
    partial = replace(files.header, case=("allreduce", "--transport", "mpi", "--sizes", "16M"))
    jsonl.Writer(runs.results_file(folder, JOB), partial).append(late)
    assert findings(folder, capsys)[0] == 0


def test_a_planned_job_without_results_needs_a_reason(files: Files, tmp_path: Path, capsys: Out) -> None:
    files.plan["jobs"].append({"name": "barrier-mpi-1x2", "case": ["barrier", "--transport", "mpi"]})
    code, document = findings(files.write(tmp_path / "run"), capsys)
    assert code == 1 and [row["job"] for row in document["findings"][1]["rows"]] == ["barrier-mpi-1x2"]
    files.outcomes["barrier-mpi-1x2"] = {"exit_code": 4, "seconds": 1.0, "what": "rank 1 died"}
    assert findings(files.write(tmp_path / "again"), capsys)[0] == 0


def test_a_results_file_alone_can_be_judged(files: Files, tmp_path: Path, capsys: Out) -> None:
    file = runs.results_file(files.write(tmp_path / "run"), JOB)
    assert findings(file, capsys)[0] == 0
    assert main(["lint", str(file)]) == 0
    text = capsys.readouterr().out
    for fact in ("1 job, 16 rows", "2 ranks", "2 CPUs", "0 GPUs", "14 of 15"):
        assert fact in text


def test_an_older_results_file_fails_what_it_does_not_record(capsys: Out) -> None:
    code, document = findings(REFERENCE, capsys)
    failed = {found["rule"] for found in document["findings"] if found["status"] == "failed"}
    header = jsonl.read(REFERENCE / f"{JOB}.jsonl").attempts[0].header
    assert (5 in failed) is ("ci_method" not in header.settings)
    assert (10 in failed) is ("sync_skew_p50_s" not in header.calibration)
    assert code == int(bool(failed))


def test_an_unknown_run_is_a_usage_error(tmp_path: Path, capsys: Out) -> None:
    assert main(["lint", "nosuch", "--results", str(tmp_path)]) == 2
    assert "'nosuch'" in capsys.readouterr().err


def test_lint_is_short_for_the_publication_rules_of_the_gate(files: Files, tmp_path: Path, capsys: Out) -> None:
    _drop_a_row(files)
    folder = files.write(tmp_path / "run")
    assert main(["gate", str(folder), "--rules", "publication", "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["failures"] == {"not-publishable": 1} and document["demands"] == []
    [fault] = [fault for finding in document["findings"] for fault in finding["faults"]]
    assert (fault["code"], fault["payload_bytes"]) == ("row-without-reason", 64)
    [row] = findings(folder, capsys)[1]["findings"][1]["rows"]
    assert (row["code"], row["payload_bytes"]) == (fault["code"], 64)


def test_lint_works_where_the_users_rules_folder_has_no_publication_rules(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["lint", str(files.write(tmp_path / "run"))]) == 0


@pytest.mark.parametrize("name", ["bandwidth", "latency"])
def test_the_figures_keep_their_part_of_rule_twelve(name: str) -> None:
    document = collect.document(REFERENCE)
    [(_, figure)] = plugins.load("figure", name).draw(document)
    for axes in figure.axes:
        assert axes.get_xscale() == "log" and axes.xaxis.get_transform().base == 2
        assert axes.get_yscale() == "log" or axes.get_ylim()[0] == 0
        assert "bytes" in axes.get_xlabel() and axes.get_ylabel()
        points = [line for line in axes.lines if line.get_linestyle() == "None" and len(line.get_xdata())]
        drawn = sorted(x for line in points if line.get_marker() in "os^D" for x in line.get_xdata())
        bars = [bar for container in axes.containers for bar in container.lines[2][0].get_segments()]
        assert drawn and sorted(bar[0][0] for bar in bars) == drawn, "a bar for every point"
    rows = [row for row in document.summaries if row.mode == ("isolated" if name == "latency" else "pipelined")]
    white = [line for axes in figure.axes for line in axes.lines if line.get_markerfacecolor() == "white"]
    hollow = [x for line in white if line.get_marker() in "os^D" for x in line.get_xdata()]
    assert len(hollow) == sum("not-converged" in row.flags for row in rows) > 0


def test_a_line_joins_only_points_of_one_algorithm(files: Files) -> None:
    records = [replace(record, algorithm="tree" if record.payload_bytes < 4096 else "ring") for record in files.records]
    document = summary.document([(JOB, files.header, records)])
    [(_, figure)] = plugins.load("figure", "bandwidth").draw(document)
    joined = [set(line.get_xdata()) for line in figure.axes[0].lines if line.get_linewidth() == 1.6]
    assert joined == [{8, 64, 512}, {4096, 32768, 262144, 2097152, 16777216}]
