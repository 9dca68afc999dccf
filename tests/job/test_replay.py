"""The plan of a replay: what the ranks exchange, and the work in between without the waits."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.core import replay_plan
from bench.core.errors import UsageError
from bench.core.replay_plan import Kind, Operation, PlannedStep, ReplayPlan, Turn
from bench.core.step_trace import StepPart, StepSegment
from bench.job.matching import job_of
from bench.job.messages import JobCode, ReplayCode
from bench.job.replay import Condensed, condense
from bench.job.replay import ranks_per_host as ranks_per_host_of
from bench.logs import step_traces
from tests.job import synthetic
from tests.job.synthetic import Late, Recording, Schedule
from tests.logs.corpus import FOLDER, needs_corpus


def condensed(*paths: Path) -> Condensed:
    """The plan of the traces in these files."""
    traces, _ = step_traces.read(paths)
    return condense(job_of(traces))


def of_schedule(folder: Path, schedule: Schedule) -> tuple[ReplayPlan, synthetic.Truth]:
    """The plan of a simulated job, and what happened in it."""
    truth = synthetic.write(folder, schedule)
    return condensed(folder).plan, truth


def test_a_plan_has_every_exchange_with_its_size_and_the_recorded_steps(tmp_path: Path) -> None:
    plan, truth = of_schedule(tmp_path, Schedule(num_ranks=3, num_steps=4, blocking=True, num_layers=5))
    assert plan.num_ranks == 3
    assert [(kind.op, kind.members) for kind in plan.kinds] == [("allreduce", (0, 1, 2))]
    assert {kind.num_bytes for kind in plan.kinds} == {4 << 18}
    assert len(plan.steps) == 4 and len({len(step.operations) for step in plan.steps}) == 1
    for number, step in enumerate(plan.steps):
        slowest_s = max(truth.steps_s[rank, number] for rank in range(3))
        assert step.recorded_s == pytest.approx(slowest_s, abs=1e-6)


@pytest.mark.parametrize("blocking", [False, True])
def test_work_and_waits_of_a_rank_without_an_exchange_add_up_to_its_step(tmp_path: Path, blocking: bool) -> None:
    """Replayed on an ideal network, a step lasts as long as the recorded one without its waits."""
    schedule = Schedule(num_ranks=2, num_steps=3, blocking=blocking, late=(Late(1, StepSegment.FORWARD, 900),))
    plan, truth = of_schedule(tmp_path, schedule)
    for number, step in enumerate(plan.steps):
        for rank in range(2):
            worked_s = step.tails_s[rank]
            for one in step.operations:
                worked_s += one.turns[rank].before_s + (one.turns[rank].wait_s or 0.0)
            parts = truth.parts[rank, number]
            waited_s = parts[StepPart.IMBALANCE] + parts[StepPart.EXPOSED_EXCHANGE]
            assert worked_s == pytest.approx(truth.steps_s[rank, number] - waited_s, abs=5e-6)


def test_an_exchange_that_the_job_hides_is_not_waited_for_at_once(tmp_path: Path) -> None:
    plan, _ = of_schedule(tmp_path, Schedule(num_ranks=2, num_layers=8, backward_us=2000, transfer_us=100))
    turns = [one.turns[0] for one in plan.steps[1].operations]
    assert turns[0].wait_s is None or turns[0].wait_s > 1e-3  # compute follows the call
    assert turns[-1].wait_s is not None and turns[-1].wait_s < 1e-4


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan, _ = of_schedule(tmp_path, Schedule(num_ranks=2))
    file = tmp_path / "plans" / "plan.json"
    replay_plan.write(plan, file)
    read = replay_plan.read(file)
    assert read.kinds == plan.kinds and read.num_operations == plan.num_operations
    assert read.steps[0].recorded_s == pytest.approx(plan.steps[0].recorded_s, abs=1e-7)


def layout() -> ReplayPlan:
    """Eight ranks: pairs exchange (tensor parallel) ten times, every second rank (data parallel) once, all once."""
    pair = [Kind("allreduce", 4096, "float32", (first, first + 1)) for first in range(0, 8, 2)]
    data = [Kind("allreduce", 1 << 20, "float32", (0, 2, 4, 6)), Kind("allreduce", 1 << 20, "float32", (1, 3, 5, 7))]
    world = Kind("allgather", 1 << 16, "bfloat16", tuple(range(8)))
    kinds = (*pair, *data, world)
    order = [*[0, 1, 2, 3] * 10, 4, 5, 6]
    operations = tuple(
        Operation(index, 1e-3, {rank: Turn(1e-3 * rank, 0.0) for rank in kinds[index].members}) for index in order
    )
    return ReplayPlan(8, kinds, (PlannedStep(0.1, operations, dict.fromkeys(range(8), 0.0)),))


@pytest.mark.parametrize(
    ("num_ranks", "ranks", "num_left_out"),
    [(8, tuple(range(8)), 0), (16, tuple(range(8)), 0), (4, (0, 1, 2, 3), 20), (2, (0, 1), 32)],
)
def test_on_fewer_ranks_those_with_most_exchanges_are_replayed(
    num_ranks: int, ranks: tuple[int, ...], num_left_out: int
) -> None:
    found = replay_plan.mapped(layout(), num_ranks)
    assert (found.ranks, found.num_left_out, found.recorded) == (ranks, num_left_out, 8)
    assert all(len(kind.members) > 1 and max(kind.members) < num_ranks for kind in found.plan.kinds)
    for one in found.plan.steps[0].operations:  # each rank works as the rank that it replays
        for rank, turn in one.turns.items():
            assert turn.before_s == pytest.approx(1e-3 * ranks[rank])


def test_without_small_groups_ranks_at_equal_distances_are_replayed() -> None:
    whole = layout()
    (step,) = whole.steps
    plan = replace(whole, steps=(replace(step, operations=step.operations[40:]),))
    found = replay_plan.mapped(plan, 2)
    assert (found.ranks, found.num_left_out) == ((0, 4), 1)


def test_a_rank_without_a_trace_works_like_one_that_has_one() -> None:
    kind = Kind("allreduce", 64, "float32", (0, 1))
    plan = ReplayPlan(2, (kind,), (PlannedStep(0.1, (Operation(0, None, {1: Turn(0.01)}),), {1: 0.02}),))
    (step,) = replay_plan.mapped(plan, 2).plan.steps
    assert step.operations[0].turns == {0: Turn(0.01), 1: Turn(0.01)} and step.tails_s == {0: 0.02, 1: 0.02}


def test_one_rank_has_nothing_to_exchange() -> None:
    assert replay_plan.mapped(layout(), 1).plan.num_operations == 0


@pytest.mark.parametrize(
    "damage",
    [
        {"schema": "bench.replay/9"},
        {"num_ranks": -1},
        {"num_ranks": 10**9},
        {"kinds": [{"op": "rm -rf", "num_bytes": 1, "dtype": "float32", "members": [0, 1]}]},
        {"kinds": [{"op": "allreduce", "num_bytes": 1 << 60, "dtype": "float32", "members": [0, 1]}]},
        {"kinds": [{"op": "allreduce", "num_bytes": 1, "dtype": "float32", "members": [0, 99]}]},
        {"kinds": []},
        {"steps": []},
        {"steps": [{"recorded_s": math.inf, "operations": [], "tails_s": {"0": 0}}]},
        {"steps": [{"recorded_s": -1, "operations": [], "tails_s": {"0": 0}}]},
        {"steps": 7},
    ],
)
def test_a_damaged_plan_is_refused(tmp_path: Path, damage: dict[str, Any]) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({**replay_plan.to_json(layout()), **damage}), encoding="utf-8")
    with pytest.raises(UsageError):
        replay_plan.read(file)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"x"', "[" * 100_000])
def test_what_is_no_plan_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError):
        replay_plan.read(file)
    with pytest.raises(UsageError):
        replay_plan.read(tmp_path / "none.json")


def test_a_trace_without_collectives_is_refused(tmp_path: Path) -> None:
    synthetic.write(tmp_path, Schedule(num_ranks=1, exchanges=False))
    with pytest.raises(UsageError) as caught:
        condensed(tmp_path)
    assert caught.value.code == JobCode.NO_COLLECTIVES


def test_exchanges_without_sizes_are_left_out_and_reported(tmp_path: Path) -> None:
    synthetic.write(tmp_path, Schedule(num_ranks=2))
    traces, _ = step_traces.read([tmp_path])
    job = job_of(traces)
    unsized = replace(job, collectives=[replace(one, num_bytes=None) for one in job.collectives])
    with pytest.raises(UsageError):
        condense(unsized)
    mixed = replace(job, collectives=[*unsized.collectives[:1], *job.collectives[1:]])
    (remark,) = condense(mixed).remarks
    assert (remark.code, remark.facts["num"]) == (ReplayCode.NO_SIZES, 1)
    strange = replace(job, collectives=[replace(job.collectives[0], op="hypercube"), *job.collectives[1:]])
    (remark,) = condense(strange).remarks
    assert (remark.code, remark.facts["names"]) == (ReplayCode.UNKNOWN_OPS, ["hypercube"])


def test_a_replay_keeps_the_ranks_of_each_host(tmp_path: Path) -> None:
    """Unknown or uneven hosts, and a job on one host, leave the placement to the cluster."""
    for ranks_per_host, expected in ((1, 1), (2, 2), (4, None), (3, None)):
        folder = tmp_path / str(ranks_per_host)
        folder.mkdir()
        synthetic.write(folder, Schedule(num_ranks=4), Recording(ranks_per_host=ranks_per_host))
        traces, _ = step_traces.read([folder])
        assert ranks_per_host_of(job_of(traces)) == expected
    unknown = job_of([replace(trace, host=None) for trace in traces])
    assert ranks_per_host_of(unknown) is None


@needs_corpus
def test_the_plan_of_a_public_trace_of_eight_ranks() -> None:
    assert FOLDER is not None
    plan = condensed(FOLDER / "traces" / "dlrm_8ranks_v100_kineto.tar.gz").plan
    (step,) = plan.steps
    ops = [plan.kinds[one.kind].op for one in step.operations]
    assert (plan.num_ranks, ops.count("alltoall"), ops.count("allreduce")) == (8, 5, 3)
    exchanged_s = sum(one.recorded_s or 0.0 for one in step.operations)
    assert exchanged_s == pytest.approx(225e-6, rel=0.1)  # a hand count of the trace
