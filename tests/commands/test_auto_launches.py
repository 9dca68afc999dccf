"""`linkbench run --launches auto`: launches are added until a comparison finds the usual changes, or the time ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.__main__ import main
from bench.controller import more_launches, preflight
from bench.controller import run as controller
from bench.controller.jobs import Job
from bench.controller.run import RunContext, RunResult
from bench.core.case_argv import to_argv
from bench.core.record import Samples
from bench.store import jsonl, runs

SCENARIO = "measure: [{pattern: allreduce, transport: mpi, sizes: [64, 1K], mode: isolated, ranks_per_node: 2}]\n"


@pytest.fixture
def folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, a_header: Callable[..., Any], a_record: Callable[..., Any]
) -> Path:
    """Where runs are kept; launches are written by a stand-in of the controller and vary by 1 %."""
    rng = np.random.default_rng(1)

    def measure_more(jobs: Sequence[Job], folder: Path, context: RunContext) -> RunResult:
        planned = {job["name"]: job["launch"] for job in runs.read_plan(folder)["jobs"]}
        for job in jobs:
            assert planned[job.name] == job.launch and not runs.results_file(folder, job.name).exists()
            case = tuple(to_argv(job.case))
            header = a_header(job=job.name, case=case, num_ranks=2, num_nodes=1, launch=job.launch)
            records = []
            for size in job.case.sizes:
                samples = tuple(1e-4 * rng.lognormal(0, 0.01) * (1 + 1e-5 * number) for number in range(20))
                row = {"requested_bytes": (size,), "payload_bytes": size, "num_ranks": 2, "num_nodes": 1}
                records.append(a_record(**row, samples=Samples(samples, by_rank=(samples,) * 2)))
            list(jsonl.written(runs.results_file(folder, job.name), header, records))
        return RunResult(folder, {})

    def start(plan: Any, text: str, context: RunContext) -> RunResult:
        folder = runs.create(context.results, "run")
        runs.write_plan(folder, plan.to_plain(text))
        return measure_more(plan.jobs, folder, context)

    monkeypatch.setattr(controller, "start", start)
    monkeypatch.setattr(more_launches, "measure_more", measure_more)
    monkeypatch.setattr(preflight, "check", lambda plan, site: None)
    (tmp_path / "it.yaml").write_text(SCENARIO, encoding="utf-8")
    return tmp_path / "results"


def run(folder: Path, *words: str) -> int:
    scenario = str(folder.parent / "it.yaml")
    return main(
        ["run", scenario, "--no-plots", "--results", str(folder), *words, "--output", str(folder.parent / "out")]
    )


def test_launches_that_vary_little_are_soon_enough_and_the_plan_holds_just_these(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "--launches", "auto") == 0
    jobs = runs.read_plan(folder / "run")["jobs"]
    assert [job["launch"] for job in jobs] == [1, 2, 3, 4, 5]
    assert len(runs.jobs_in(folder / "run")) == 5


def test_no_launch_begins_after_the_time(folder: Path) -> None:
    assert run(folder, "--launches", "auto", "--auto-time", "1ms") == 0
    assert len(runs.jobs_in(folder / "run")) == 2


@pytest.mark.parametrize(
    "words", [("--launches", "auto", "--model"), ("--auto-time", "5m"), ("--launches", "auto", "--only-launch", "2")]
)
def test_what_contradicts_auto_is_refused(folder: Path, words: tuple[str, ...]) -> None:
    assert run(folder, *words) == 2 and not folder.exists()
