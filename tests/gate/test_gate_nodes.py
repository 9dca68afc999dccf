"""A node passes by evidence of its own or by pairs that clear it, and by nothing else: each way to pass without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.core.record import Failure, Record, Skip
from bench.gate.gate import Retest, again
from tests.gate.gate_runs import Run, good, header, judge, old, pairs, record

JOB = "allreduce-mpi-2x2-node"
WORDS = ("allreduce", "--transport", "mpi", "--sizes", "1M", "--mode", "pipelined", "--topology", "node")
EACH = "rules: [{name: each node, pattern: allreduce, topology: node, sizes: 1M, busbw: at least 1 GB/s}]\n"
WORLD = "rules: [{name: all, pattern: allreduce, topology: world, sizes: [1M, 2M], busbw: at least 1 GB/s}]\n"
LADDER = "pairs-mpi-6x1"
PASSED, FAILED, OPEN = "passed", "failed", "not judged"
Break = Callable[[Run], object]


def own() -> Run:
    """Each node for itself, and all together, over two nodes: both have passed."""
    run = good()
    head = header(JOB, WORDS, topology="node")
    rows = [record("pipelined", 1 << 20, group=f"node{node}", num_ranks=2, num_nodes=1) for node in range(2)]
    run.told.append((JOB, head, rows))
    assert run.plan is not None
    run.plan["jobs"].append({"name": JOB, "case": list(WORDS), "world": {"num_nodes": 2, "ranks_per_node": 2}})
    run.outcomes[JOB] = {"exit_code": 0, "seconds": 1.0, "what": None}
    return run


def verdicts(run: Run, folder: Path, rules: str = EACH) -> dict[str, str]:
    """Each node's."""
    return {node.host: node.status for node in judge(run, folder, rules).nodes}


def second(**changed: Any) -> Break:
    """Change h1's own row; None takes it away."""

    def broken(run: Run) -> None:
        run.records(lambda one: one.group == "node1", lambda one: replace(one, **changed) if changed else None)

    return broken


def together(**changed: Any) -> Break:
    """Change the rows of both nodes together."""
    return lambda run: run.records(lambda one: one.group == "world", lambda one: replace(one, **changed))


def added(row: Record) -> Break:
    return lambda run: run.told[1][2].append(row)


def ended(**changed: Any) -> Break:
    """Another job that ended so."""
    return lambda run: run.outcomes.update(other={"exit_code": 1, "seconds": 1.0, "what": "it died"} | changed)


def no_plan(run: Run) -> None:
    run.plan = None


def also_planned(run: Run) -> None:
    assert run.plan is not None
    run.plan["cluster"]["hosts"] = ["h0", "h1", "h2"]
    for job in run.plan["jobs"]:
        job["world"]["num_nodes"] = 3


def gpus(*nums: int) -> Break:
    """GPUs of a p4d.24xlarge that the drivers of h0 and h1 show."""
    nodes = {f"h{node}": {"gpus": [{"name": "NVIDIA A100-SXM4-40GB"}] * num} for node, num in enumerate(nums)}
    return lambda run: run.headers(transport="nccl", instance="p4d.24xlarge", nodes=nodes)


FAILURE = Failure("ran out of memory")
LOST: dict[str, Any] = {"samples": None, "failed": FAILURE}
ONE_FAILED = record("pipelined", 1 << 22, group="node1", num_ranks=2, num_nodes=1, **LOST)
REPORTED = {"samples": None, "stop_reason": None, "reported": {"mean_s": 1e-4, "busbw_bytes_per_s": 15e9}}


@pytest.mark.parametrize(
    ("broken", "rules", "h0", "h1"),
    [
        (lambda run: None, EACH, PASSED, PASSED),
        (lambda run: None, WORLD, OPEN, OPEN),  # a row of several nodes is good: it is no word on each
        (ended(), EACH, OPEN, OPEN),
        (ended(host="h1"), EACH, PASSED, FAILED),
        (ended(exit_code=0, what=None), EACH, OPEN, OPEN),  # it left nothing
        (added(ONE_FAILED), EACH, PASSED, FAILED),
        (added(replace(ONE_FAILED, group="world")), EACH, OPEN, OPEN),
        (lambda run: run.told[1][2].extend([ONE_FAILED, replace(ONE_FAILED, group="node0")]), EACH, FAILED, FAILED),
        (second(samples=None, skipped=Skip.uncoded("no time left")), EACH, PASSED, OPEN),
        (second(), EACH, PASSED, OPEN),
        (second(modelled=True), EACH, PASSED, OPEN),
        (second(verified=None), EACH, PASSED, OPEN),
        (second(verified=False, num_wrong=3), EACH, PASSED, FAILED),
        (second(**REPORTED), EACH, PASSED, OPEN),
        (second(num_ranks=1), EACH, PASSED, OPEN),
        (second(num_ranks=1), EACH + "allow: [one-rank]\n", PASSED, OPEN),
        (second(stop_reason="max_time"), EACH, PASSED, OPEN),
        (second(stop_reason="max_time"), EACH + "allow: [not-converged]\n", PASSED, PASSED),
        (
            lambda run: setattr(run, "edit", lambda row: replace(row, flags=(*row.flags, "through-host"))),
            EACH,
            FAILED,
            FAILED,
        ),
        (lambda run: run.headers(facts={"shared_gpu": "yes"}), EACH, OPEN, OPEN),
        (lambda run: run.headers(modelled=True), EACH, OPEN, OPEN),
        (together(verified=False, num_wrong=1), EACH, OPEN, OPEN),
        (lambda run: run.headers(started=old(8)), EACH + "expect: {max_age: 7d}\n", OPEN, OPEN),
        (lambda run: None, EACH + "expect: {network: efa}\n", OPEN, OPEN),
        (lambda run: None, EACH + "diagnose: true\n", OPEN, OPEN),
        (lambda run: setattr(run, "warnings", ("a.jsonl:7: a line cut short was left out",)), EACH, OPEN, OPEN),
        (no_plan, EACH, OPEN, OPEN),
        (gpus(8, 8), EACH, PASSED, PASSED),
        (gpus(8, 7), EACH, PASSED, FAILED),
    ],
)
def test_each_way_to_be_called_passed(broken: Break, rules: str, h0: str, h1: str, tmp_path: Path) -> None:
    run = own()
    broken(run)
    assert verdicts(run, tmp_path, rules) == {"h0": h0, "h1": h1}, judge(run, tmp_path, rules).nodes


def test_a_node_that_did_not_pass_says_why(tmp_path: Path) -> None:
    for broken in (ended(), second(), no_plan, lambda run: None):
        run = own()
        broken(run)
        for rules in (EACH, WORLD):
            assert all(node.reasons for node in judge(run, tmp_path, rules).nodes if node.status != PASSED)
    run = own()
    ended()(run)
    assert judge(run, tmp_path, EACH).nodes[0].reasons == ("failed-job: other: it died",)
    run.outcomes["one more"] = run.outcomes["other"]
    assert judge(run, tmp_path, EACH).nodes[0].reasons == ("failed-job: 2 times, and no node is named",)


@pytest.mark.parametrize(
    ("broken", "rules"),
    [
        (lambda run: None, EACH + "expect: {hosts: 'h[0-2]'}\n"),
        (also_planned, EACH),
    ],
)
def test_a_node_that_took_no_part_is_in_the_list(broken: Break, rules: str, tmp_path: Path) -> None:
    run = own()
    broken(run)
    told = verdicts(run, tmp_path, rules)
    assert list(told) == ["h0", "h1", "h2"] and told["h2"] == OPEN


def test_a_host_that_died_before_it_told_of_itself_has_failed(tmp_path: Path) -> None:
    run = own()
    ended(host="h7")(run)
    assert verdicts(run, tmp_path) == {"h0": PASSED, "h1": PASSED, "h7": FAILED}


def with_pairs(slow: dict[int, float], ladder: str = "", ranks: range = range(6), **changed: Any) -> Run:
    run = good()
    job, head, rows = pairs(slow, ranks, ladder=ladder)
    run.told.append((job, head, [replace(row, **changed) for row in rows]))
    return run


def test_pairs_clear_where_there_are_peers_and_where_they_are_evidence(tmp_path: Path) -> None:
    assert set(verdicts(with_pairs({}), tmp_path, WORLD).values()) == {PASSED}
    for run in (with_pairs({}, ranks=range(2)), with_pairs({}, verified=None)):  # nobody beside them; nobody looked
        told = judge(run, tmp_path, WORLD)
        assert {node.status for node in told.nodes} == {OPEN} and told.passed
    allowed = WORLD + "allow: [unverified]\n"
    assert set(verdicts(with_pairs({}, verified=None), tmp_path, allowed).values()) == {PASSED}
    shared = with_pairs({})
    shared.told[1] = (LADDER, replace(shared.told[1][1], facts={"shared_gpu": "yes"}), shared.told[1][2])
    assert set(verdicts(shared, tmp_path, WORLD).values()) == {OPEN}


def test_a_pair_vouches_for_its_ends_where_it_meets_a_demand(tmp_path: Path) -> None:
    run = with_pairs({}, ranks=range(2))
    for least, status in (("1 GB/s", PASSED), ("1 TB/s", OPEN)):
        rules = f"rules: [{{pattern: pairs, sizes: 1M, busbw: at least {least}}}]\n"
        assert set(verdicts(run, tmp_path, rules).values()) == {status}


def test_wrong_data_between_two_nodes_passes_neither(tmp_path: Path) -> None:
    run = with_pairs({})
    row = run.told[1][2][0]
    run.told[1][2][0] = replace(row, verified=False, num_wrong=1)
    told = verdicts(run, tmp_path, WORLD)
    assert {host for host, status in told.items() if status == OPEN} == {f"h{row.src}", f"h{row.dst}"}
    assert set(told.values()) == {OPEN, PASSED}


def test_a_pair_of_a_ladder_that_failed_passes_neither(tmp_path: Path) -> None:
    run = with_pairs({}, ladder="screen")
    lost = record("pipelined", 1 << 20, group="confirm99:4-5", num_ranks=2, num_nodes=2, **LOST)
    run.told[1][2].append(lost)
    told = verdicts(run, tmp_path, WORLD)
    assert {host for host, status in told.items() if status == OPEN} == {"h4", "h5"}


def test_a_suspicion_that_was_not_followed_passes_nobody_whom_it_names(tmp_path: Path) -> None:
    run = own()
    run.told.append(pairs({1: 0.5}, ladder="screen"))
    told = judge(run, tmp_path, EACH)
    assert {node.host: node.status for node in told.nodes}["h1"] == OPEN, "good by its own row, and slow in pairs"
    assert {node.host: node.status for node in told.nodes}["h0"] == PASSED
    [fault] = told.all_faults
    assert fault.name == "undecided-part" and "h1" in fault.hosts and "host h1" in fault.what


def test_a_ladder_that_ended_too_early_says_so(tmp_path: Path) -> None:
    run = own()
    job, head, rows = pairs({}, ladder="screen")
    run.told.append((job, head, rows[:1]))
    told = judge(run, tmp_path, EACH)
    [fault] = [each for each in told.all_faults if each.name == "undecided-part"]
    assert "before it had looked at every host" in fault.what and "was measured" not in fault.what
    assert {node.status for node in told.nodes} == {OPEN}


def test_pairs_that_are_modelled_are_said_to_be(tmp_path: Path) -> None:
    told = judge(with_pairs({}, modelled=True), tmp_path, WORLD + "diagnose: true\n")
    assert "the 15 rows of pairs are modelled" in next(
        each.what for each in told.all_faults if each.name == "missing-rows"
    )


def test_a_retest_that_failed_leaves_its_nodes_open_and_lends_partners(tmp_path: Path) -> None:
    run = with_pairs({2: 0.5})
    run.retests = (Retest("2026-01-02T05:00:00+00:00", {LADDER: ("h2",)}),)
    job, head, rows = pairs({}, ranks=range(4))
    run.told.append((f"{job}#2", head, rows))
    assert set(verdicts(run, tmp_path, WORLD).values()) == {PASSED}
    lost = record("pipelined", 1 << 20, group="0-2", num_ranks=2, num_nodes=2, **LOST)
    run.told[-1] = (f"{job}#2", head, [row for row in rows if {row.src, row.dst} != {0, 2}] + [lost])
    told = judge(run, tmp_path, WORLD)
    assert {node.host for node in told.nodes if node.status == OPEN} == {"h0", "h2"}
    run = with_pairs({2: 0.5})
    ended()(run)
    told = judge(run, tmp_path, WORLD)
    assert {node.status for node in told.nodes} == {FAILED, OPEN}
    assert run.plan is not None
    run.plan["jobs"].append({"name": LADDER, "case": ["pairs", "--schedule", "ladder"]})
    asked = again(told, run.material())
    assert asked.suspects == ("h2",) and len(asked.partners) == 3
