"""Jobs without a device whose library carries out several exchanges at once, as Gloo's two threads do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import numpy as np
import pytest

from bench.core import spans
from bench.core.step_trace import RankTrace, StepPhase, StepSegment, TracedCollective
from bench.job.explain import explain
from bench.job.graph import Graph, GraphChange
from bench.job.matching import job_of
from bench.job.messages import CauseCode
from bench.job.model import TracedJob
from bench.job.parts import timelines_of

STEP_S, WORK_S, ALONE_S, NUM_STEPS = 0.2, 0.02, 0.03, 8
# Three buckets are called at once. Two are carried out at a time, each at half the rate, and the third ends before the
# second: (begin, end) in units of ALONE_S after the last arrival.
TIMES = ((0.0, 2.0), (0.0, 3.0), (2.0, 2.9))


def traces(
    late_s: float,
    hosts: tuple[str, str] = ("h0", "h0"),
    skews_s: tuple[float, ...] = (0.009,),
    times: Sequence[tuple[float, float]] = TIMES,
) -> list[RankTrace]:
    """Two ranks; rank 1 spends `late_s` more on its host before its backward pass.

    skews_s: by how much rank 1's threads end later, by step, again and again. After each exchange a callback works.
    """
    found = []
    for rank in range(2):
        collectives, compute, backward, steps = [], [], [], []
        for number in range(NUM_STEPS):
            start = number * STEP_S
            begin = start + rank * late_s
            called = begin + WORK_S
            last = start + late_s + WORK_S
            ends = [last + rank * skews_s[number % len(skews_s)] + end * ALONE_S for _, end in times]
            for place, (first, _) in enumerate(times):
                at = called + 1e-4 * place
                collectives.append(
                    TracedCollective(
                        op="allreduce",
                        place=3 * number + place,
                        start_s=at if first == 0 else last + first * ALONE_S,
                        end_s=ends[place],
                        group_size=2,
                        num_bytes=1 << 20,
                        dtype="float32",
                        called_s=at,
                    )
                )
            callbacks = [(end + 1e-5, end + 1.1e-4) for end in ends]
            compute += [(begin, called + 3e-4), *callbacks, (max(ends) + 2e-4, start + STEP_S - 1e-3)]
            backward.append((begin, max(ends)))
            steps.append((start, start + STEP_S))
        work = spans.union(spans.of(compute))
        found.append(
            RankTrace(
                source=f"rank{rank}",
                on_device=False,
                compute=work,
                compute_launch_s=np.full(len(work), np.nan),
                collectives=tuple(collectives),
                phases={StepPhase.BACKWARD: spans.union(spans.of(backward))},
                steps=tuple(steps),
                step_names=tuple(f"ProfilerStep#{number}" for number in range(NUM_STEPS)),
                rank=rank,
                world_size=2,
                host=hosts[rank],
                epoch_s=1.7e9,
                num_events=100,
            )
        )
    return found


def graph_of(job: TracedJob) -> Graph:
    """The events of a job."""
    return Graph(job, timelines_of(job))


def test_exchanges_at_once_share_the_wire_and_their_times_add_up_to_it() -> None:
    job = job_of(traces(0.0))
    graph = graph_of(job)
    first_step = [graph.transfer_s(index) or 0.0 for index in range(3)]
    assert sum(first_step) == pytest.approx(3 * ALONE_S + 0.009, abs=1e-3)  # and not 2 + 3 + 2.9 times
    for recorded, replayed in graph.closure():
        assert replayed == pytest.approx(recorded, rel=1e-3)


def test_times_alone_follow_each_other_and_know_how_long_the_links_rested() -> None:
    job = job_of(traces(0.0))
    graph = graph_of(job)
    rests: list[float] = []

    def alone(_: int, idle_s: float) -> float:
        rests.append(idle_s)
        return 2 * ALONE_S

    usual = median(graph.steps())
    slower = median(graph.steps(GraphChange(alone=alone, in_turn=frozenset(range(len(job.collectives))))))
    assert slower - usual == pytest.approx(6 * ALONE_S - 3 * ALONE_S - 0.009, abs=2e-3)
    assert rests[0] == np.inf and rests[1] == rests[2] == 0.0  # within a step there is no rest
    assert all(rest > 0.05 for rest in rests[3::3])  # between steps there is


@pytest.mark.parametrize("late_s", [0.03, 0.05])
def test_a_late_rank_is_named_although_the_threads_of_its_host_end_exchanges_apart(late_s: float) -> None:
    found = explain(traces(late_s))
    late = next(cause for cause in found.causes if cause.code == CauseCode.LATE_RANK)
    assert late.ranks == (1,) and late.gain_s == pytest.approx(late_s, abs=2e-3)
    assert {one.segment for one in found.late_ranks} == {StepSegment.HOST}
    assert CauseCode.RANDOM_LATENESS not in {cause.code for cause in found.causes}


def test_a_late_rank_is_named_although_the_last_wait_is_shorter_than_the_bound_of_the_clocks() -> None:
    """Callbacks divide the wait into pieces, and the last piece lasts 3 ms."""
    found = explain(traces(0.05, ("h0", "h1"), (0.0, 0.012), ((0.0, 2.0), (0.0, 2.9), (2.0, 3.0))))
    assert found.job.alignment.bound_s is not None and found.job.alignment.bound_s > 0.005
    assert [cause.ranks for cause in found.causes if cause.code == CauseCode.LATE_RANK] == [(1,)]


def test_ends_of_ranks_with_one_clock_say_nothing_of_clocks() -> None:
    """On one host the difference of 9 ms is no error of clocks; between hosts it may be one."""
    bounds = [job_of(traces(0.03, hosts)).alignment.bound_s for hosts in (("h0", "h0"), ("h0", "h1"))]
    assert bounds[0] is not None and bounds[0] < 1e-6
    assert bounds[1] is not None


def test_places_of_exchanges_are_in_order() -> None:
    job = job_of(traces(0.0))
    assert all(one.place < other.place for one, other in pairwise(job.collectives))
