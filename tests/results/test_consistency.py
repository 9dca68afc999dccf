"""Rows that contradict each other are found, and no others: each rule, its tolerance, and what may be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.core.record import Header, Samples
from bench.results import summary
from bench.results.consistency import REPLACEMENTS, conflicts
from bench.results.document import Conflict, Summary
from bench.results.messages import ConflictCode

Make = Callable[..., Any]
ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("allreduce", "reduce", "reducescatter")

DRIFTING = {
    "samples": Samples(tuple(300e-6 * (1 + index / 2000 + 0.1 * (index * 7919 % 101) / 101) for index in range(200)))
}


class Run:
    """A run to which jobs are added row by row: `run.add("allreduce", 100e-6)`."""

    def __init__(self, a_header: Make, a_record: Make) -> None:
        self._a_header, self._a_record = a_header, a_record
        self.headers: dict[str, Header] = {}
        self.rows: list[Summary] = []

    def add(
        self,
        pattern: str,
        seconds: float,
        *,
        mode: str = "isolated",
        payload: int = 1 << 20,
        noise: float = 0.01,
        record: dict[str, Any] | None = None,
        case: Sequence[str] = (),
        **header: Any,
    ) -> Run:
        """One row of `pattern` with a median of `seconds` and samples spread evenly by +-`noise`."""
        given: dict[str, Any] = {
            "pattern": pattern,
            "case": (pattern, "--transport", "mpi", *case),
            "reduce_op": "sum" if pattern in REDUCING else "",
            "root": 0 if pattern in ROOTED else None,
        }
        of = self._a_header(**(given | header))
        job = f"{pattern}-{of.transport}-{len(self.headers)}" if header or case else f"{pattern}-{of.transport}"
        self.headers[job] = replace(of, job=job)
        seconds_each = tuple(seconds * (1 + noise * ((index * 7) % 31 - 15) / 15) for index in range(31))
        told = self._a_record(
            mode=mode,
            payload_bytes=payload,
            requested_bytes=(payload,),
            **({"samples": Samples(seconds_each)} | (record or {})),
        )
        self.rows.append(summary.summarise(job, self.headers[job], told))
        return self

    def conflicts(self) -> tuple[Conflict, ...]:
        return conflicts(self.headers, self.rows)


@pytest.fixture
def run(a_header: Make, a_record: Make) -> Run:
    return Run(a_header, a_record)


def test_pipelined_slower_than_isolated_is_a_conflict_that_names_both_rows(run: Run) -> None:
    run.add("allreduce", 100e-6).add("allreduce", 130e-6, mode="pipelined")
    [found] = run.conflicts()
    assert found.rule == "pipelined <= isolated" and found.ratio == pytest.approx(1.3)
    assert (found.first["job"], found.first["mode"]) == ("allreduce-mpi", "pipelined")
    assert (found.second["mode"], found.second["payload_bytes"]) == ("isolated", 1 << 20)
    assert found.first["median_s"] == pytest.approx(130e-6) and found.second["median_s"] == pytest.approx(100e-6)
    assert found.code == ConflictCode.PIPELINED_SLOWER and found.sentence
    assert (found.facts["seconds"], found.facts["limit_s"]) == pytest.approx((130e-6, 100e-6))


@pytest.mark.parametrize(
    ("pipelined", "noise"), [(90e-6, 0.01), (104e-6, 0.01), (115e-6, 0.5)], ids=["faster", "tolerance", "noise"]
)
def test_what_is_faster_or_within_tolerance_or_noise_is_no_conflict(run: Run, pipelined: float, noise: float) -> None:
    run.add("allreduce", 100e-6, noise=noise).add("allreduce", pipelined, mode="pipelined", noise=noise)
    assert run.conflicts() == ()


@pytest.mark.parametrize("rule", REPLACEMENTS, ids=lambda rule: f"{rule.pattern} by {' + '.join(rule.by)}")
def test_each_replacement_is_found_when_it_is_beaten_and_only_then(rule: Any, a_header: Make, a_record: Make) -> None:
    for each_s, number in ((60e-6, 1), (120e-6, 0)):
        run = Run(a_header, a_record).add(rule.pattern, 100e-6 * len(rule.by))
        for other in rule.by:
            run.add(other, each_s)
        named = [found for found in run.conflicts() if found.rule == f"{rule.pattern} <= {' + '.join(rule.by)}"]
        assert len(named) == number
        if named:
            assert named[0].second["pattern"] == " + ".join(rule.by)
            assert named[0].second["median_s"] == pytest.approx(each_s * len(rule.by))


def test_two_operations_are_not_added_in_pipelined_mode(run: Run) -> None:
    run.add("allreduce", 300e-6, mode="pipelined")
    run.add("reducescatter", 50e-6, mode="pipelined").add("allgather", 50e-6, mode="pipelined")
    assert run.conflicts() == ()


def test_jobs_of_their_own_have_a_wider_tolerance_since_launches_differ(run: Run) -> None:
    run.add("allgather", 120e-6).add("allreduce", 100e-6)
    assert run.conflicts() == ()
    run.add("allgather", 300e-6, payload=4096).add("allreduce", 100e-6, payload=4096)
    assert [found.first["payload_bytes"] for found in run.conflicts()] == [4096]


@pytest.mark.parametrize(
    "other",
    [
        {"transport": "gloo"},
        {"num_ranks": 8},
        {"dtype": "float64"},
        {"topology": "node"},
        {"launch": 2},
        {"environment": {"MPICH_CH4_SHM_EAGER": "1"}},
        {"case": ("--thread-level", "multiple")},
        {"case": ("--cache", "hot"), "record": {"cache": "hot"}},
        {"record": {"cache": "hot"}},
        {"payload": 1 << 21},
        {"mode": "pipelined"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_rows_of_other_conditions_are_not_compared(run: Run, other: dict[str, Any]) -> None:
    run.add("allgather", 300e-6).add("allreduce", 100e-6, **other)
    assert run.conflicts() == ()


def test_rows_of_another_root_or_operation_are_not_compared(run: Run) -> None:
    run.add("reduce", 900e-6, root=0).add("reducescatter", 10e-6).add("gather", 10e-6, root=1)
    run.add("allreduce", 10e-6, reduce_op="max", case=("--op", "max"))
    assert run.conflicts() == ()


def test_a_launchers_own_variables_do_not_part_what_belongs_together(run: Run) -> None:
    run.add("allgather", 300e-6, environment={"OMPI_FILE_LOCATION": "/tmp/a"})
    run.add("allreduce", 100e-6, environment={"OMPI_FILE_LOCATION": "/tmp/b"})
    assert len(run.conflicts()) == 1


def test_what_one_launch_shows_and_another_does_not_is_noise(run: Run) -> None:
    for launch, allgather_s in ((1, 300e-6), (2, 100e-6), (3, 300e-6)):
        run.add("allgather", allgather_s, launch=launch).add("allreduce", 100e-6, launch=launch)
    assert run.conflicts() == ()


def test_what_every_launch_shows_is_one_conflict_by_its_mildest_launch(run: Run) -> None:
    for launch, allgather_s in ((1, 300e-6), (2, 200e-6)):
        run.add("allgather", allgather_s, launch=launch).add("allreduce", 100e-6, launch=launch)
    [found] = run.conflicts()
    assert found.ratio == pytest.approx(2.0)


@pytest.mark.parametrize(
    "record",
    [
        {"verified": False, "num_wrong": 3},
        {"samples": Samples((300e-6,) * 3)},
        {"samples": None, "reported": {"median_s": 300e-6}},
        DRIFTING,
    ],
    ids=["invalid", "without interval", "reported", "drifting"],
)
def test_rows_whose_noise_is_unknown_are_not_judged(run: Run, record: dict[str, Any]) -> None:
    run.add("allgather", 300e-6, record=record).add("allreduce", 100e-6)
    assert run.conflicts() == ()


def test_the_drifting_row_has_an_interval_so_that_only_its_drift_keeps_it_out(run: Run) -> None:
    run.add("allgather", 300e-6, record=DRIFTING)
    assert "drift" in run.rows[0].flags and run.rows[0].ci_low_s is not None
    assert (run.rows[0].ci_low_s or 0) > 290e-6


def test_modelled_rows_are_judged_without_an_interval(run: Run) -> None:
    for pattern, seconds in (("allgather", 300e-6), ("allreduce", 100e-6)):
        run.add(pattern, seconds, modelled=True, record={"modelled": True, "samples": Samples((seconds,))})
    assert [found.rule for found in run.conflicts()] == ["allgather <= allreduce"]


@pytest.mark.parametrize(("two_way_s", "number"), [(60e-6, 1), (110e-6, 0)])
@pytest.mark.parametrize("mode", ["isolated", "pipelined"])
def test_two_way_moves_at_most_twice_what_one_way_does(run: Run, mode: str, two_way_s: float, number: int) -> None:
    run.add("pingpong", 110e-6, direction="one-way")
    run.add("pingpong", 100e-6, mode=mode, direction="one-way")
    run.add("pingpong", two_way_s, mode=mode, direction="two-way", case=("--direction", "two-way"))
    rules = [found.rule for found in run.conflicts()]
    assert len(rules) == number and all(rule.split(" <= ") == ["two-way", "2 x one-way"] for rule in rules)


def test_a_window_of_one_waits_for_its_acknowledgement_and_may(run: Run) -> None:
    case = ("--window", "1")
    run.add("pingpong", 100e-6, direction="one-way", case=case)
    run.add("pingpong", 190e-6, mode="pipelined", direction="one-way", case=case)
    jobs = list(run.headers)
    run.rows[1] = replace(run.rows[1], job=jobs[0])  # both modes of one job
    assert run.conflicts() == ()
    run.rows[1] = replace(run.rows[1], median_s=230e-6, ci_low_s=229e-6, ci_high_s=231e-6)
    assert len(run.conflicts()) == 1


def test_the_gravest_conflict_comes_first(run: Run) -> None:
    run.add("allreduce", 100e-6).add("allgather", 200e-6).add("allreduce", 400e-6, mode="pipelined")
    assert [round(found.ratio) for found in run.conflicts()] == [4, 2]


def test_one_rank_alone_is_held_to_no_other_operation(run: Run) -> None:
    """In place nothing is done, else it copies."""
    for pattern, seconds in (("allreduce", 5e-6), ("allgather", 20e-6), ("reducescatter", 20e-6)):
        run.add(pattern, seconds, record={"num_ranks": 1}, num_ranks=1, num_nodes=1)
    assert run.conflicts() == ()
