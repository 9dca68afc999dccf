"""A node passes only by its own evidence or by pairs that clear it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.core.record import Failure, Record, Skip
from bench.gate.gate import retest_plan
from bench.gate.messages import FaultCode, NodeCode
from bench.gate.remeasured import Retest
from tests.gate.gate_runs import Run, good, header, judge, old, pairs, record

JOB = "allreduce-mpi-2x2-node"
WORDS = ("allreduce", "--transport", "mpi", "--sizes", "1M", "--mode", "pipelined", "--topology", "node")
EACH = "rules: [{name: each node, pattern: allreduce, topology: node, sizes: 1M, busbw: at least 1 GB/s}]\n"
WORLD = "rules: [{name: all, pattern: allreduce, topology: world, sizes: [1M, 2M], busbw: at least 1 GB/s}]\n"
LADDER = "pairs-mpi-6x1"
PASSED, FAILED, OPEN = "passed", "failed", "not judged"
Break = Callable[[Run], object]


def own() -> Run:
    """Two nodes that pass: each measured alone, then both together."""
    run = good()
    head = header(JOB, WORDS, topology="node")
    rows = [record("pipelined", 1 << 20, group=f"node{node}", num_ranks=2, num_nodes=1) for node in range(2)]
    run.jobs.append((JOB, head, rows))
    assert run.plan is not None
    run.plan["jobs"].append({"name": JOB, "case": list(WORDS), "world": {"num_nodes": 2, "ranks_per_node": 2}})
    run.outcomes[JOB] = {"exit_code": 0, "seconds": 1.0, "what": None}
    return run


def verdicts(run: Run, folder: Path, rules: str = EACH) -> dict[str, str]:
    """Host -> verdict."""
    return {node.host: node.status for node in judge(run, folder, rules).nodes}


def second(**changed: Any) -> Break:
    """Change h1's own row; without changes, remove it."""

    def broken(run: Run) -> None:
        run.records(lambda one: one.group == "node1", lambda one: replace(one, **changed) if changed else None)

    return broken


def together(**changed: Any) -> Break:
    """Change the rows of both nodes."""
    return lambda run: run.records(lambda one: one.group == "world", lambda one: replace(one, **changed))


def added(row: Record) -> Break:
    return lambda run: run.jobs[1][2].append(row)


def ended(**changed: Any) -> Break:
    """Another job, which failed unless `changed` says otherwise."""
    return lambda run: run.outcomes.update(other={"exit_code": 1, "seconds": 1.0, "what": "it died"} | changed)


def no_plan(run: Run) -> None:
    run.plan = None


def also_planned(run: Run) -> None:
    assert run.plan is not None
    run.plan["cluster"]["hosts"] = ["h0", "h1", "h2"]
    for job in run.plan["jobs"]:
        job["world"]["num_nodes"] = 3


def gpus(*nums: int) -> Break:
    """The drivers of h0 and h1, nodes of type p4d.24xlarge, show so many GPUs."""
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
        (lambda run: None, WORLD, OPEN, OPEN),  # a good row of several nodes clears none of them
        (ended(), EACH, OPEN, OPEN),
        (ended(host="h1"), EACH, PASSED, FAILED),
        (ended(exit_code=0, what=None), EACH, OPEN, OPEN),  # without results
        (added(ONE_FAILED), EACH, PASSED, FAILED),
        (added(replace(ONE_FAILED, group="world")), EACH, OPEN, OPEN),
        (lambda run: run.jobs[1][2].extend([ONE_FAILED, replace(ONE_FAILED, group="node0")]), EACH, FAILED, FAILED),
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
def test_what_passes_a_node_and_what_does_not(broken: Break, rules: str, h0: str, h1: str, tmp_path: Path) -> None:
    run = own()
    broken(run)
    assert verdicts(run, tmp_path, rules) == {"h0": h0, "h1": h1}, judge(run, tmp_path, rules).nodes


def test_a_node_that_did_not_pass_has_reasons(tmp_path: Path) -> None:
    for broken in (ended(), second(), no_plan, lambda run: None):
        run = own()
        broken(run)
        for rules in (EACH, WORLD):
            assert all(node.reasons for node in judge(run, tmp_path, rules).nodes if node.status != PASSED)
    run = own()
    ended()(run)
    [reason] = judge(run, tmp_path, EACH).nodes[0].reasons
    assert (reason.failure, reason.where, reason.code) == ("failed-job", "other", FaultCode.JOB_FAILED)
    assert reason.facts["text"] == "it died"
    run.outcomes["one more"] = run.outcomes["other"]
    [reason] = judge(run, tmp_path, EACH).nodes[0].reasons
    assert (reason.code, reason.facts) == (NodeCode.NODE_UNNAMED, {"failure": "failed-job", "num": 2})


@pytest.mark.parametrize(
    ("broken", "rules"),
    [
        (lambda run: None, EACH + "expect: {hosts: 'h[0-2]'}\n"),
        (also_planned, EACH),
    ],
)
def test_an_absent_node_is_in_the_list(broken: Break, rules: str, tmp_path: Path) -> None:
    run = own()
    broken(run)
    verdict = verdicts(run, tmp_path, rules)
    assert list(verdict) == ["h0", "h1", "h2"] and verdict["h2"] == OPEN


def test_a_host_that_failed_before_it_wrote_a_header_is_listed(tmp_path: Path) -> None:
    run = own()
    ended(host="h7")(run)
    assert verdicts(run, tmp_path) == {"h0": PASSED, "h1": PASSED, "h7": FAILED}


def with_pairs(slow: dict[int, float], ladder: str = "", ranks: range = range(6), **changed: Any) -> Run:
    run = good()
    job, head, rows = pairs(slow, ranks, ladder=ladder)
    run.jobs.append((job, head, [replace(row, **changed) for row in rows]))
    return run


def test_pairs_clear_a_host_only_with_peers_and_checked_data(tmp_path: Path) -> None:
    assert set(verdicts(with_pairs({}), tmp_path, WORLD).values()) == {PASSED}
    for run in (with_pairs({}, ranks=range(2)), with_pairs({}, verified=None)):  # no peers; unchecked data
        verdict = judge(run, tmp_path, WORLD)
        assert {node.status for node in verdict.nodes} == {OPEN} and verdict.passed
    allowed = WORLD + "allow: [unverified]\n"
    assert set(verdicts(with_pairs({}, verified=None), tmp_path, allowed).values()) == {PASSED}
    shared = with_pairs({})
    shared.jobs[1] = (LADDER, replace(shared.jobs[1][1], facts={"shared_gpu": "yes"}), shared.jobs[1][2])
    assert set(verdicts(shared, tmp_path, WORLD).values()) == {OPEN}


def test_a_pair_that_meets_a_demand_clears_its_ends(tmp_path: Path) -> None:
    run = with_pairs({}, ranks=range(2))
    for least, status in (("1 GB/s", PASSED), ("1 TB/s", OPEN)):
        rules = f"rules: [{{pattern: pairs, sizes: 1M, busbw: at least {least}}}]\n"
        assert set(verdicts(run, tmp_path, rules).values()) == {status}


def test_wrong_data_between_two_nodes_passes_neither(tmp_path: Path) -> None:
    run = with_pairs({})
    row = run.jobs[1][2][0]
    run.jobs[1][2][0] = replace(row, verified=False, num_wrong=1)
    verdict = verdicts(run, tmp_path, WORLD)
    assert {host for host, status in verdict.items() if status == OPEN} == {f"h{row.src}", f"h{row.dst}"}
    assert set(verdict.values()) == {OPEN, PASSED}


def test_a_pair_of_a_ladder_that_failed_passes_neither(tmp_path: Path) -> None:
    run = with_pairs({}, ladder="screen")
    lost = record("pipelined", 1 << 20, group="confirm99:4-5", num_ranks=2, num_nodes=2, **LOST)
    run.jobs[1][2].append(lost)
    verdict = verdicts(run, tmp_path, WORLD)
    assert {host for host, status in verdict.items() if status == OPEN} == {"h4", "h5"}


def test_an_open_suspicion_leaves_its_hosts_unjudged(tmp_path: Path) -> None:
    run = own()
    run.jobs.append(pairs({1: 0.5}, ladder="screen"))
    verdict = judge(run, tmp_path, EACH)
    assert {node.host: node.status for node in verdict.nodes}["h1"] == OPEN, "good by its own row, and slow in pairs"
    assert {node.host: node.status for node in verdict.nodes}["h0"] == PASSED
    [fault] = verdict.all_faults
    assert fault.code == FaultCode.SUSPICIONS_OPEN and "h1" in fault.hosts and "host h1" in fault.facts["parts"]


def test_a_ladder_that_ended_too_early_is_a_fault(tmp_path: Path) -> None:
    run = own()
    job, head, rows = pairs({}, ladder="screen")
    run.jobs.append((job, head, rows[:1]))
    verdict = judge(run, tmp_path, EACH)
    [fault] = [each for each in verdict.all_faults if each.name == "undecided-part"]
    assert fault.code == FaultCode.LADDER_TOO_SHORT
    assert {node.status for node in verdict.nodes} == {OPEN}


def test_modelled_pairs_have_their_own_code(tmp_path: Path) -> None:
    verdict = judge(with_pairs({}, modelled=True), tmp_path, WORLD + "diagnose: true\n")
    [fault] = [fault for fault in verdict.all_faults if fault.code == FaultCode.PAIRS_MODELLED]
    assert fault.facts == {"num_rows": 15}


def test_a_failed_retest_leaves_its_nodes_unjudged_and_chooses_partners(tmp_path: Path) -> None:
    run = with_pairs({2: 0.5})
    run.retests = (Retest("2026-01-02T05:00:00+00:00", {LADDER: ("h2",)}),)
    job, head, rows = pairs({}, ranks=range(4))
    run.jobs.append((f"{job}#2", head, rows))
    assert set(verdicts(run, tmp_path, WORLD).values()) == {PASSED}
    lost = record("pipelined", 1 << 20, group="0-2", num_ranks=2, num_nodes=2, **LOST)
    run.jobs[-1] = (f"{job}#2", head, [row for row in rows if {row.src, row.dst} != {0, 2}] + [lost])
    verdict = judge(run, tmp_path, WORLD)
    assert {node.host for node in verdict.nodes if node.status == OPEN} == {"h0", "h2"}
    run = with_pairs({2: 0.5})
    ended()(run)
    verdict = judge(run, tmp_path, WORLD)
    assert {node.status for node in verdict.nodes} == {FAILED, OPEN}
    assert run.plan is not None
    run.plan["jobs"].append({"name": LADDER, "case": ["pairs", "--schedule", "ladder"]})
    asked = retest_plan(verdict, run.gate_input())
    assert asked.suspects == ("h2",) and len(asked.partners) == 3
