"""Another tool beside ours through the whole controller. Its program is a stand-in: OSU is in no package index."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.controller.messages import OutcomeCode
from bench.store import runs
from tests.facts import holds

ROOT = Path(__file__).resolve().parent.parent.parent
Run = Callable[..., Any]
SCENARIO = """
description: beside OSU
budget: 1h
launches: 2
measure:
  - pattern: allreduce
    transport: mpi
    tools: osu
    like: osu
    sizes: [8, 1K]
    ranks_per_node: 2
    iterations: 20
    warmup: 2
"""
# Rank 0 alone prints, as OSU does; all ranks are real processes of mpirun.
PROGRAM = """#!/bin/sh
rank=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}
[ "$rank" = 0 ] || exit 0
echo "# OSU MPI Allreduce Latency Test v7.4"
echo "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"
echo "8   1.00  0.90  1.10  20"
echo "1024   2.00  1.90  2.10  20"
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """The scenario's file."""
    path = tmp_path / "beside.yaml"
    path.write_text(SCENARIO)
    return path


def program(folder: Path, text: str = PROGRAM) -> Path:
    """A folder that holds osu_allreduce, somewhere below."""
    path = folder / "libexec" / "osu_allreduce"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o755)
    return folder


def command(python: tuple[str, ...], scenario: Path, *more: str) -> tuple[str, ...]:
    """The words of `linkbench run`."""
    return (*python, "-m", "bench", "run", str(scenario), "--config", str(ROOT / "bench.yaml"), "--no-plots", *more)


@pytest.mark.mpi
def test_a_tool_alternates_with_ours_and_the_ratio_is_reported(
    run: Run,
    mpirun: Callable[[int], tuple[str, ...]],
    scenario: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    python = mpirun(2)[-1:]
    ran = run(*command(python, scenario, "--tool-path", str(program(tmp_path / "osu")), "--format", "json"))
    document = json.loads(ran.out)
    assert (ran.code, document["failures"]) == (0, []), ran.err
    assert [(one["payload_bytes"], one["num_launches"]) for one in document["parities"]] == [(8, 2), (1024, 2)]
    assert all(one["ratio"] > 0 and one["theirs_s"] in (1e-6, 2e-6) for one in document["parities"])
    assert {row["median_s"] for row in document["summaries"] if row["transport"] == "osu"} == {None}
    folder = runs.find(tmp_path / "results", "latest")
    order = [(job["tool"], job["launch"]) for job in runs.read_plan(folder)["jobs"]]
    assert order == [("", 1), ("osu", 1), ("osu", 2), ("", 2)]
    capsys.readouterr()
    assert main(["report", str(folder)]) == 0
    assert holds(capsys.readouterr().out, "allreduce", "osu,", "2 launches")


@pytest.mark.mpi
def test_without_the_tool_ours_runs_and_the_reason_is_printed(
    run: Run, mpirun: Callable[[int], tuple[str, ...]], scenario: Path
) -> None:
    ran = run(*command(mpirun(2)[-1:], scenario, "--launches", "1"), env={"BENCH_OSU_PATH": ""})
    assert ran.code == 0, ran.err
    assert holds(ran.err, "skipped:", "allreduce osu:") and "BENCH_OSU_PATH" in ran.err


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param("#!/bin/sh\necho nonsense\n", OutcomeCode.TOOL_OUTPUT, marks=pytest.mark.slow),
        ("#!/bin/sh\nexit 7\n", OutcomeCode.TOOL_FAILED),
        (PROGRAM.replace("1.00", "nan"), OutcomeCode.TOOL_OUTPUT),
    ],
)
def test_a_tool_that_fails_is_named_and_ours_is_kept(
    run: Run, mpirun: Callable[[int], tuple[str, ...]], scenario: Path, tmp_path: Path, text: str, code: OutcomeCode
) -> None:
    words = command(mpirun(2)[-1:], scenario, "--launches", "1", "--tool-path", str(program(tmp_path / "osu", text)))
    ran = run(*words, "--format", "json")
    document = json.loads(ran.out)
    assert ran.code == 4 and len(document["summaries"]) == 2
    assert [failure["code"] for failure in document["failures"]] == [code]
