"""Recorded jobs replayed by real ranks, and launches that are recorded by a profiler."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.core import replay_plan
from bench.core.replay_plan import Kind, Operation, PlannedStep, ReplayPlan, Turn
from bench.logs import step_traces
from bench.rank.messages import RankRefusal, RankRemark
from bench.store import jsonl
from tests.facts import holds
from tests.logs.corpus import FOLDER, needs_corpus

Run = Callable[..., Any]
Start = Callable[[int], tuple[str, ...]]
BENCH = (sys.executable, "-m", "bench")
WORK_S, HIDDEN_S = 0.02, 0.03
SPOILING = """
import sys
from bench.rank import replay
from bench.rank.main import run_pattern
step = replay.Replayer._step
def spoilt(self, planned):
    found = step(self, planned)
    if self._rank == 1:
        self._programs[0].buffers.view("recv", 0)[64] ^= 1
    return found
replay.Replayer._step = spoilt
run_pattern("replay", sys.argv[1:])
"""


def written(folder: Path, num_ranks: int = 2) -> Path:
    """A plan of known work: a step computes 20 ms, exchanges, and computes 30 ms while the second exchange runs."""
    members = tuple(range(num_ranks))
    kinds = (Kind("allreduce", 1 << 16, "float32", members), Kind("allgather", 1 << 12, "bfloat16", members))
    first = Operation(0, 2e-3, {rank: Turn(WORK_S, 0.0) for rank in members})
    second = Operation(1, 1e-3, {rank: Turn(0.0, HIDDEN_S) for rank in members})
    step = PlannedStep(WORK_S + HIDDEN_S + 2e-3, (first, second), dict.fromkeys(members, 0.0))
    file = folder / "plan.json"
    replay_plan.write(ReplayPlan(num_ranks, kinds, (step, step)), file)
    return file


def remarks(document: Mapping[str, Any]) -> list[str]:
    """The codes of the remarks in the only header."""
    (header,) = document["headers"].values()
    return [remark["code"] for remark in header["remarks"]]


@pytest.mark.parametrize(
    ("transport", "start"),
    [
        pytest.param("gloo", "torch_ranks", marks=pytest.mark.torch),
        pytest.param("mpi", "mpirun", marks=pytest.mark.mpi),
    ],
)
def test_a_step_takes_its_work_and_its_exposed_exchange(
    run: Run, request: pytest.FixtureRequest, tmp_path: Path, transport: str, start: str
) -> None:
    started = request.getfixturevalue(start)
    plan, options = written(tmp_path), ("--compute", "spin", "-n", "9", "--format", "json")
    words = ("-m", "bench.replay", "--transport", transport, "--plan", str(plan), *options)
    ran = started(2, *words) if start == "torch_ranks" else run(*started(2), *words)
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert RankRemark.REPLAYED in remarks(document)
    rows = {row["group"]: row for row in document["summaries"]}
    assert set(rows) == {"step", "allreduce", "allgather bfloat16"}
    assert all(row["verified"] is True for row in rows.values())
    assert rows["allreduce"]["payload_bytes"] == 1 << 16 and rows["allreduce"]["busbw_bytes_per_s"] > 0
    compared = {one["group"]: one for one in document["replays"]}
    assert compared["step"]["recorded_s"] == pytest.approx(WORK_S + HIDDEN_S + 2e-3)
    fastest_s = rows["step"]["min_s"]
    exposed_s = rows["allreduce"]["median_s"]
    assert fastest_s >= WORK_S + HIDDEN_S  # all work was done
    # The second exchange is hidden behind 30 ms of work; only other programs can make a step longer.
    assert fastest_s < WORK_S + HIDDEN_S + max(0.02, 3 * exposed_s)


@pytest.mark.mpi
def test_wrong_data_of_a_replay_end_with_4(run: Run, mpirun: Start, tmp_path: Path) -> None:
    script = tmp_path / "spoiling.py"
    script.write_text(SPOILING, encoding="utf-8")
    plan = written(tmp_path)
    ran = run(*mpirun(2), str(script), "--transport", "mpi", "--plan", str(plan), "-n", "3", "--format", "json")
    assert ran.code == 4
    verified = {row["group"]: row["verified"] for row in json.loads(ran.out)["summaries"]}
    assert verified == {"step": False, "allreduce": False, "allgather bfloat16": True}


@pytest.mark.mpi
def test_bad_input_of_a_replay_is_one_sentence(run: Run, mpirun: Start, tmp_path: Path) -> None:
    base = (*mpirun(2), "-m", "bench.replay", "--transport", "mpi", "--format", "json")

    huge = Kind("allreduce", 1 << 45, "float32", (0, 1))
    one = PlannedStep(1.0, (Operation(0, None, {0: Turn(0.0)}),), {0: 0.0})
    replay_plan.write(ReplayPlan(2, (huge,), (one,)), tmp_path / "huge.json")
    far = Kind("allreduce", 64, "float32", (2, 5))
    replay_plan.write(
        ReplayPlan(8, (far,), (PlannedStep(1.0, (Operation(0, None, {2: Turn(0.0)}),), {2: 0.0}),)),
        tmp_path / "far.json",
    )
    ran = run(*base, "--plan", str(tmp_path / "huge.json"))
    assert (ran.code, json.loads(ran.out)["skipped"][0]["code"]) == (3, RankRefusal.REPLAY_MEMORY)
    ran = run(*base, "--plan", str(tmp_path / "far.json"))
    (failure,) = json.loads(ran.out)["failures"]
    assert (ran.code, failure["code"]) == (3, RankRefusal.NOTHING_TO_REPLAY)
    assert "Traceback" not in ran.err


@pytest.mark.slow
@needs_corpus
@pytest.mark.mpi
@pytest.mark.usefixtures("mpirun")
def test_a_public_job_of_eight_ranks_is_replayed_on_two(run: Run, tmp_path: Path) -> None:
    assert FOLDER is not None
    trace = FOLDER / "traces" / "dlrm_8ranks_v100_kineto.tar.gz"
    options = ("--transport", "mpi", "--no-plots", "--budget", "4s", "--format", "json")
    ran = run(*BENCH, "job", "replay", str(trace), *options, cwd=tmp_path)
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert {RankRemark.REPLAYED, RankRemark.REPLAY_MAPPED} <= set(remarks(document))
    groups = {row["group"].split()[0] for row in document["summaries"]}
    assert groups == {"step", "alltoall", "allreduce"}
    assert all(row["verified"] for row in document["summaries"])
    recorded = {one["group"]: one["recorded_s"] for one in document["replays"]}
    assert recorded["step"] == pytest.approx(19.9e-3, rel=0.01)


# ---- Launches that a profiler records ----

SCENARIO = """\
measure:
  - pattern: allreduce
    transport: gloo
    sizes: 64K
    mode: isolated
    iterations: 7
"""
# What nsys gets must be exactly this, and the rest of `profile` is the launch. Each of its two commands writes a file.
NSYS = """\
#!/bin/sh
refuse() { echo "nsys: $*" >&2; exit 9; }
what=$1
shift
case $what in
profile) known="--trace=cuda,nvtx,osrt --sample=none --cpuctxsw=none --cuda-graph-trace=node --force-overwrite=true" ;;
export) known="--type=sqlite --force-overwrite=true --include-blobs=true" ;;
*) refuse "$what" ;;
esac
while case $1 in --output=*) file=${1#--output=} ;; --*) case " $known " in *" $1 "*) ;; *) refuse "$1" ;; esac ;;
*) false ;; esac; do shift; done
[ -n "$file" ] || refuse "no output"
if [ "$what" = profile ]; then "$@" || exit $?; : > "$file.nsys-rep"; else [ -f "$1" ] && : > "$file"; fi
"""


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.usefixtures("torchrun")
@pytest.mark.parametrize("profiler", ["torch", "nsys"])
def test_one_more_launch_is_recorded_and_does_not_count(run: Run, tmp_path: Path, profiler: str) -> None:
    (tmp_path / "tiny.yaml").write_text(SCENARIO, encoding="utf-8")
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(NSYS, encoding="utf-8")
    program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    words = ("run", "tiny.yaml", "--no-plots", "--profile", profiler)
    ran = run(*BENCH, *words, cwd=tmp_path, env={"PATH": path})
    assert ran.code == 0, ran.err
    (folder,) = (tmp_path / "results").iterdir()
    (attempt,) = jsonl.read(folder / "allreduce-gloo-1x2.jsonl").attempts
    assert len(attempt.records) == 1
    assert not list((folder / "profile").glob("*.jsonl"))
    assert holds(ran.out, str(folder.relative_to(tmp_path) / "profile"))
    if profiler == "nsys":
        names = sorted(path.name for path in (folder / "profile").iterdir())
        assert names == ["allreduce-gloo-1x2.nsys-rep", "allreduce-gloo-1x2.sqlite"]
        return
    traces, unread = step_traces.read([folder / "profile"])
    assert not unread and [trace.rank for trace in traces] == [0, 1]
    for trace in traces:
        within = [
            one
            for one in trace.collectives
            if any(start <= one.arrival_s < end for start, end in trace.steps) and one.num_bytes == 1 << 16
        ]
        assert len(trace.steps) >= 7 and len(within) >= 7
        assert {one.op for one in within} == {"allreduce"}


def test_without_nsys_nothing_is_measured(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(SCENARIO, encoding="utf-8")
    ran = run(*BENCH, "run", "tiny.yaml", "--no-plots", "--profile", "nsys", cwd=tmp_path, env={"PATH": "/bin"})
    assert ran.code == 3 and holds(ran.err, "nsys")
    assert not (tmp_path / "results").exists()
