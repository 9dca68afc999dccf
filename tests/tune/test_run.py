"""Searches in a run folder, with a stand-in of the launch: what is stored, dropped, refused, and how one goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.__main__ import main
from bench.controller import run as controller
from bench.controller.jobs import Job
from bench.controller.run import RunContext, RunResult
from bench.core.case_argv import to_argv
from bench.core.record import Failure, Header, Record, Samples, Skip
from bench.core.skips import SkipCode
from bench.rank.messages import RankRefusal
from bench.store import jsonl, runs

SECONDS = {"raw": 1.0, "npy": 0.7, "tar": 1.1}


class Launches:
    """Stands in for `measure_more`: writes the results file that ranks would write. It refuses a job without a plan."""

    def __init__(self, a_header: Callable[..., Header], a_record: Callable[..., Record]) -> None:
        self._header, self._record, self._rng = a_header, a_record, np.random.default_rng(1)
        self.names: list[str] = []
        self.interrupt_after = math.inf
        self.skips: set[str] = set()
        self.in_use_after = math.inf

    def measure_more(self, jobs: Sequence[Job], folder: Path, context: RunContext) -> RunResult:
        """Write the rows of these jobs."""
        planned = {job["name"] for job in runs.read_plan(folder)["jobs"]}
        outcomes = runs.read_outcomes(folder)
        for job in jobs:
            assert job.name in planned and not runs.results_file(folder, job.name).exists()
            if len(self.names) >= self.interrupt_after:
                raise KeyboardInterrupt
            if len(self.names) >= self.in_use_after:
                failure = Failure("in use", None, "h0", RankRefusal.HOST_IN_USE, {"host": "h0"})
                return RunResult(folder, {job.name: failure}, frozenset({job.name}))
            self.names.append(job.name)
            self._write(job, folder)
            outcomes[job.name] = {"job": job.name, "exit_code": 0, "seconds": 2.0, "what": None}
        runs.write_outcomes(folder, outcomes)
        return RunResult(folder, {})

    def _write(self, job: Job, folder: Path) -> None:
        case = job.case
        header = self._header(
            job=job.name,
            case=tuple(to_argv(case)),
            pattern=case.pattern,
            transport=case.transport,
            num_ranks=1,
            num_nodes=1,
            ranks_per_node=1,
            ranks=({"host": "h0", "local_rank": 0},),
            launch=job.launch,
        )
        size = {"requested_bytes": case.sizes, "payload_bytes": case.sizes[0], "num_ranks": 1, "num_nodes": 1}
        if case.files in self.skips:
            record = self._record(**size, skipped=Skip.of(SkipCode.BUDGET, budget_s=1.0))
        else:
            seconds = SECONDS[case.files] * math.exp(self._rng.normal(0, 0.01))
            samples = tuple(seconds * (1 + 1e-4 * number) for number in range(20))
            record = self._record(**size, samples=Samples(samples, by_rank=(samples,)))
        list(jsonl.written(runs.results_file(folder, job.name), header, [record]))


@pytest.fixture
def launches(
    a_header: Callable[..., Header], a_record: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> Launches:
    stand_in = Launches(a_header, a_record)
    monkeypatch.setattr(controller, "measure_more", stand_in.measure_more)
    return stand_in


def tune(tmp_path: Path, *words: str) -> tuple[int, Any]:
    """Exit code and document of `linkbench tune feed`."""
    out = tmp_path / "out.json"
    out.unlink(missing_ok=True)
    more = ["--no-preflight", "--results", str(tmp_path / "results"), "--format", "json", "--output", str(out)]
    code = main(["tune", "feed", *words, *more])
    return code, json.loads(out.read_text(encoding="utf-8")) if out.exists() else None


FOLDER = ("--folder", "/data", "--demand", "40MB/s", "--try", "files=raw,npy,tar", "--budget", "2m")


def test_the_fastest_setting_is_named_with_what_to_paste_and_all_launches_are_rows_of_one_run(
    tmp_path: Path, launches: Launches
) -> None:
    code, found = tune(tmp_path, *FOLDER)
    assert code == 0 and found["verdict"] == "faster" and found["chosen"] == {"files": "npy"}
    assert found["gain"]["low"] <= 1 / 0.7 <= found["gain"]["high"]
    assert found["supply"]["headroom"] == pytest.approx((32 << 20) / 0.7 / 40e6, rel=0.02)
    assert "--files npy" in found["paste"]["command"] and 'files: "npy"' in found["paste"]["scenario"]
    [folder] = (tmp_path / "results").iterdir()
    assert sorted(runs.jobs_in(folder)) == sorted(launches.names)
    assert sum(len(each["launches_s"]) for each in found["settings"]) == len(launches.names)


def test_an_interrupted_search_goes_on_and_comes_to_the_same_answer(
    tmp_path: Path, launches: Launches, capsys: pytest.CaptureFixture[str]
) -> None:
    launches.interrupt_after = 5
    code, _ = tune(tmp_path, *FOLDER)
    assert code == 130 and len(launches.names) == 5
    [folder] = (tmp_path / "results").iterdir()
    assert f"--resume {folder}" in capsys.readouterr().err
    launches.interrupt_after = math.inf
    code, found = tune(tmp_path, "--resume", str(folder))
    assert code == 0 and found["verdict"] == "faster" and len(set(launches.names)) == len(launches.names)
    num = len(launches.names)
    again = tune(tmp_path, "--resume", "latest")
    assert again[0] == 0 and again[1]["verdict"] == "faster" and len(launches.names) == num
    assert again[1]["gain"] == found["gain"] and again[1]["settings"] == found["settings"]


def test_a_setting_that_is_skipped_is_dropped_with_the_reason(tmp_path: Path, launches: Launches) -> None:
    launches.skips = {"tar"}
    code, found = tune(tmp_path, *FOLDER)
    dropped = {each["values"]["files"]: each["dropped"]["code"] for each in found["settings"] if each["dropped"]}
    assert code == 0 and dropped == {"tar": "skipped"} and found["chosen"] == {"files": "npy"}
    assert sum("tar" in name for name in launches.names) == 1


def test_a_baseline_that_cannot_run_is_an_error_and_rows_are_kept(tmp_path: Path, launches: Launches) -> None:
    launches.skips = {"raw"}
    assert tune(tmp_path, *FOLDER)[0] == 4
    [folder] = (tmp_path / "results").iterdir()
    assert len(runs.jobs_in(folder)) == 3


def test_a_host_that_another_benchmark_uses_ends_the_search_and_drops_nothing(
    tmp_path: Path, launches: Launches
) -> None:
    launches.in_use_after = 4
    assert tune(tmp_path, *FOLDER)[0] == 3
    launches.in_use_after = math.inf
    code, found = tune(tmp_path, "--resume", "latest")
    assert code == 0 and found["chosen"] == {"files": "npy"} and not any(e["dropped"] for e in found["settings"])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--budget", "3s"), 2),
        (("--delta", "2"), 2),
        (("--sizes", "1M,2M"), 2),
        (("--try", "colour=1,2"), 2),
        (("--nodes", "none"), 2),
        (("--resume", "nowhere"), 2),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    tmp_path: Path, launches: Launches, words: tuple[str, ...], code: int
) -> None:
    assert tune(tmp_path, "--folder", "/data", *words)[0] == code
    assert launches.names == [] and not (tmp_path / "results").exists()


def test_a_search_goes_on_only_as_it_began(tmp_path: Path, launches: Launches) -> None:
    tune(tmp_path, *FOLDER)
    for words in (("--budget", "5m"), ("--try", "files=raw,npy"), ("--workers", "2")):
        assert tune(tmp_path, "--resume", "latest", *words)[0] == 2
    [folder] = (tmp_path / "results").iterdir()
    stored = json.loads((folder / "search.json").read_text(encoding="utf-8"))
    (folder / "search.json").write_text(json.dumps(stored | {"allowed": ["many"]}), encoding="utf-8")
    assert tune(tmp_path, "--resume", "latest")[0] == 2
    (folder / "search.json").unlink()
    assert tune(tmp_path, "--resume", "latest")[0] == 2
