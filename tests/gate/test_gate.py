"""The gate fails closed: each change to a good run causes exactly one failure, by its own name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.case_argv import from_argv
from bench.core.record import Failure, Skip
from bench.gate import header_consistency
from bench.gate.gate import unreadable
from bench.gate.gate_input import networks_in
from bench.gate.messages import ALLOWED, FAILURES, FaultCode
from bench.gate.remeasured import Retest
from bench.gate.rules_file import load_rules
from bench.rank import modelled
from bench.results.document import Summary
from tests.gate.gate_runs import RULES, SIZES, Run, codes, good, header, imported, judge, old, pairs, record, times

JOB = "allreduce-mpi-2x2"
Break = Callable[[Run], None]


def rows(**changed: Any) -> Break:
    """Change every row."""

    def broken(run: Run) -> None:
        run.edit = lambda row: replace(row, **changed)

    return broken


def flagged(flag: str) -> Break:
    def broken(run: Run) -> None:
        run.edit = lambda row: replace(row, flags=(*row.flags, flag))

    return broken


def records(**changed: Any) -> Break:
    """Change the rows of 2 MiB."""

    def broken(run: Run) -> None:
        run.records(lambda one: one.payload_bytes == SIZES[1], lambda one: replace(one, **changed))

    return broken


def heads(**changed: Any) -> Break:
    return lambda run: run.headers(**changed)


def outcome(**changed: Any) -> Break:
    return lambda run: run.outcomes[JOB].update(changed)


def gone(run: Run) -> None:
    """One row is not there."""
    run.records(lambda one: one.payload_bytes == SIZES[1] and one.mode == "isolated", lambda one: None)


def nothing(run: Run) -> None:
    run.jobs, run.outcomes = [], {}
    run.plan = None


def cut(run: Run) -> None:
    run.warnings = ("allreduce.jsonl:7: a line cut short was left out",)


def unknown_fabric(run: Run) -> None:
    run.networks = {}


def slower_than_before(run: Run) -> None:
    run.baseline = launches(run, 1.0)
    slow = launched(run, 1.5)
    run.jobs, run.plan = slow.jobs, slow.plan


def noisy_beside_before(run: Run) -> None:
    run.baseline = launches(run, 1.0)
    noisy = launched(run, 1.06, spread=0.04)
    run.jobs, run.plan = noisy.jobs, noisy.plan


def launched(run: Run, factor: float, spread: float = 0.001) -> Run:
    """Five launches of the same job, each a little apart from the next."""
    made = []
    for launch in range(1, 6):
        name = JOB + (f"-launch{launch}" if launch > 1 else "")
        own = factor * (1 + spread * (launch - 3))
        made.append(
            (
                name,
                header(name, launch=launch),
                [
                    record(mode, size, times(1e-4 * size / SIZES[0] * own * (1.01 if mode == "isolated" else 1)))
                    for size in SIZES
                    for mode in ("isolated", "pipelined")
                ],
            )
        )
    return Run(made, NO_JOBS)


def launches(run: Run, factor: float) -> Any:
    return launched(run, factor).document()


def with_pairs(slow: dict[int, float], ladder: str = "") -> Break:
    def broken(run: Run) -> None:
        run.jobs.append(pairs(slow, ladder=ladder))

    return broken


NETWORK = RULES + "expect: {network: efa}\n"
EXPECT = RULES + "expect: {cluster: toy, instance: toy.2x, gpu: H100, nodes: 2, ranks: 4, hosts: 'h[0-1]'}\n"
FRESH = RULES + "expect: {max_age: 7d}\n"
REFERENCE = RULES.replace("50% of bound", "50% of reference")
NO_JOBS: dict[str, Any] = {"cluster": {"name": "toy"}, "jobs": [], "skipped": []}
BASELINE = "rules:\n  - {pattern: allreduce, sizes: [1M, 2M], time: not slower than baseline by 5%}\n"
TAIL = RULES.replace("p95: at most 1ms", "p99: at most 1ms")
FAST = RULES.replace("at most 1ms", "at most 1us", 1)

WAYS: list[tuple[FaultCode, Break, str]] = [
    (FaultCode.NO_ROWS, nothing, RULES),
    (FaultCode.JOB_FAILED, outcome(what="rank 3 on h1 died"), RULES),
    (FaultCode.JOB_EXITED, outcome(exit_code=1), RULES),
    (FaultCode.FILE_DAMAGED, cut, RULES),
    (FaultCode.HOSTS_FEWER, heads(ranks=tuple({"host": "h0"} for _ in range(4))), RULES),
    (FaultCode.WORLD_NOT_AS_PLANNED, lambda run: (run.plan or {})["jobs"][0]["world"].update(num_nodes=4), RULES),
    (FaultCode.NUM_NODES_UNEXPECTED, lambda run: None, EXPECT.replace("nodes: 2", "nodes: 3")),
    (FaultCode.NUM_RANKS_UNEXPECTED, lambda run: None, EXPECT.replace("ranks: 4", "ranks: 8")),
    (FaultCode.HOSTS_NOT_MEASURED, lambda run: None, EXPECT.replace("h[0-1]", "h[0-7]")),
    (FaultCode.CLUSTER_UNEXPECTED, lambda run: None, EXPECT.replace("cluster: toy", "cluster: other")),
    (FaultCode.INSTANCE_UNKNOWN, heads(instance=None), EXPECT),
    (FaultCode.GPU_UNEXPECTED, heads(nodes={"h0": {"gpus": [{"name": "NVIDIA A100"}]}}), EXPECT),
    (FaultCode.GPU_UNKNOWN, heads(nodes={}), EXPECT),
    (FaultCode.TOO_OLD, heads(started=old(8)), FRESH),
    (FaultCode.START_UNKNOWN, heads(started="some day"), FRESH),
    (FaultCode.IN_FUTURE, heads(started=old(-3)), FRESH),
    (FaultCode.HOSTS_UNKNOWN, heads(ranks=()), RULES),
    (FaultCode.PART_SLOW, with_pairs({2: 0.5}), RULES),
    (FaultCode.SUSPICIONS_OPEN, with_pairs({2: 0.5}, ladder="screen"), RULES),
    (FaultCode.SIZE_ABSENT, gone, RULES),
    (FaultCode.SIZE_ABSENT, lambda run: None, RULES.replace("[1M, 2M]", "[1M, 2M, 4M]")),
    (
        FaultCode.PATTERN_ABSENT,
        lambda run: None,
        RULES.replace("pattern: allreduce", "patterns: [allreduce, alltoall]"),
    ),
    (FaultCode.PAIRS_ABSENT, lambda run: None, RULES + "diagnose: true\n"),
    (FaultCode.ROW_SKIPPED, records(samples=None, skipped=Skip.uncoded("out of memory")), RULES),
    (FaultCode.TRANSPORT_OTHER, heads(transport="gloo"), RULES),
    (FaultCode.TRANSPORT_UNEXPECTED, lambda run: None, RULES + "expect: {transport: nccl}\n"),
    (FaultCode.NETWORK_UNKNOWN, unknown_fabric, NETWORK),
    (FaultCode.NETWORK_OTHER, lambda run: run.networks.update({JOB: frozenset({"tcp"})}), NETWORK),
    (FaultCode.NETWORK_UNKNOWN, unknown_fabric, RULES.replace("transport: mpi", "network: efa")),
    (FaultCode.BASELINE_NOT_NAMED, lambda run: None, BASELINE),
    (
        FaultCode.ROW_IMPORTED,
        records(
            samples=None,
            stop_reason=None,
            reported={"median_s": 2e-4, "p95_s": 3e-4, "num_samples": 100, "busbw_bytes_per_s": 1.5e10},
        ),
        RULES,
    ),
    (FaultCode.ROW_MODELLED, rows(modelled=True), RULES),
    (FaultCode.ROW_MODELLED, heads(modelled=True), RULES),
    (
        FaultCode.SIZES_THINNED,
        lambda run: (run.plan or {}).update(remarks=[{"code": "sizes-thinned"}]),
        RULES.replace("[1M, 2M]", "1M:2M"),
    ),
    (FaultCode.JOB_END_UNKNOWN, lambda run: run.outcomes.clear(), RULES),
    (
        FaultCode.PAIRS_NOT_MEASURED,
        lambda run: run.jobs.append(pairs({}, ranks=range(1, 6))),
        RULES + "diagnose: true\n",
    ),
    (FaultCode.ELEMENTS_WRONG, records(verified=False, num_wrong=3), RULES),
    (FaultCode.DATA_UNCHECKED, records(verified=None), RULES),
    (FaultCode.FIGURE_ODD, rows(median_s=math.nan), RULES),
    (FaultCode.FIGURE_ODD, rows(busbw_bytes_per_s=math.inf), RULES),
    (FaultCode.FIGURE_ABSENT, rows(busbw_bytes_per_s=None), RULES),
    (FaultCode.INTERVAL_ODD, rows(ci_high_s=math.inf), RULES),
    (FaultCode.FIGURE_ZERO, rows(busbw_bytes_per_s=0.0), RULES),
    (FaultCode.FIGURE_ZERO, rows(median_s=0.0), RULES),
    (FaultCode.FIGURE_ZERO, rows(median_s=-1e-6), RULES),
    (FaultCode.RANK_ALONE, records(num_ranks=1), RULES),
    (FaultCode.GPU_SHARED, flagged("shared_gpu"), RULES),
    (FaultCode.GPU_SHARED, heads(facts={"shared_gpu": "yes"}), RULES),
    (FaultCode.COPIED_THROUGH_HOST, flagged("through-host"), RULES),
    (FaultCode.HOST_SHARED, flagged("shared-host"), RULES),
    (FaultCode.SAMPLES_TOO_FEW, rows(num_samples=80), RULES + "    samples: 100\n"),
    (FaultCode.INTERVAL_ABSENT, rows(ci_low_s=None, ci_high_s=None), RULES),
    (FaultCode.ENDED_EARLY, records(stop_reason="max_time"), RULES),
    (FaultCode.OVER_BOUND, flagged("above-bound"), RULES),
    (FaultCode.ROW_CONTRADICTS, flagged("contradicts"), RULES),
    (
        FaultCode.SAMPLES_TOO_FEW_FOR_TAIL,
        lambda run: run.records(lambda one: True, lambda one: replace(one, samples=times(1e-4, 20))),
        TAIL.replace("50%", "5%"),
    ),
    (FaultCode.SAMPLES_TOO_FEW_FOR_TAIL, rows(p99_s=1e-4, num_samples=20), TAIL),
    (FaultCode.BOUND_UNKNOWN, rows(bound_bytes_per_s=None), RULES),
    (FaultCode.REFERENCE_UNKNOWN, lambda run: None, REFERENCE),
    (FaultCode.BELOW_DEMAND, lambda run: None, RULES.replace("50%", "90%")),
    (FaultCode.BELOW_DEMAND, lambda run: None, RULES.replace("50% of bound", "400 GB/s")),
    (FaultCode.ABOVE_DEMAND, lambda run: None, FAST),
    (FaultCode.COMPARED_SLOWER, slower_than_before, BASELINE),
    (FaultCode.COMPARED_INCONCLUSIVE, noisy_beside_before, BASELINE),
    (FaultCode.COMPARED_EXPLORATORY, lambda run: setattr(run, "baseline", run.document()), BASELINE),
]


def test_a_good_run_passes(tmp_path: Path) -> None:
    verdict = judge(good(), tmp_path)
    assert verdict.passed and verdict.names == {}, verdict.all_faults
    assert [(each.num_rows, each.passed) for each in verdict.judged] == [(2, True)] * 3
    assert [(node.host, node.status) for node in verdict.nodes] == [("h0", "not judged"), ("h1", "not judged")]
    good_rate = verdict.judged[0].worst
    assert good_rate is not None and good_rate.got == pytest.approx(0.78, abs=0.01) and good_rate.limit == 0.5
    for rules in (EXPECT, FRESH):
        assert judge(good(), tmp_path, rules).passed
    on_efa = good()
    on_efa.networks = {JOB: frozenset({"efa"})}
    assert judge(on_efa, tmp_path, NETWORK).passed
    with_good_pairs = good()
    with_good_pairs.jobs.append(pairs({}))
    verdict = judge(with_good_pairs, tmp_path, RULES + "diagnose: true\n")
    assert verdict.passed and {node.status for node in verdict.nodes} == {"passed"}


@pytest.mark.parametrize(
    ("reported", "kinds", "wanted"),
    [
        ("efa", ("efa",), "efa"),
        ("ib", ("infiniband",), "ib"),
        ("ib", ("roce",), "roce"),
        ("ib", (), "ib or roce"),
        ("ib", ("infiniband", "roce"), "ib or roce"),
        ("socket", ("efa",), "tcp"),
        ("efa + socket", (), "efa + tcp"),
    ],
)
def test_the_network_that_the_transport_reported_counts(
    reported: str, kinds: tuple[str, ...], wanted: str, tmp_path: Path
) -> None:
    run = good()
    adapters = [{"name": "a", "kind": kind} for kind in kinds]
    run.headers(facts={"nccl_network": reported}, nodes={"h0": {"adapters": adapters}, "h1": {}})
    found = judge(run, tmp_path, NETWORK)
    assert found.passed is (wanted == "efa")
    for fault in found.all_faults:
        assert (fault.code, fault.facts["found"]) == (FaultCode.NETWORK_OTHER, wanted.split(" + "))


def test_libfabric_over_another_provider_is_not_efa() -> None:
    lines = ["h0: NCCL INFO NET/OFI Selected provider is tcp", "h0: NCCL INFO Using network AWS Libfabric"]
    assert networks_in(lines) == {"tcp"}
    assert networks_in([lines[0].replace("tcp", "efa"), lines[1]]) == {"efa"} == networks_in(lines[1:])


@pytest.mark.parametrize(("code", "broken", "rules"), WAYS, ids=[f"{n}-{way[0]}" for n, way in enumerate(WAYS)])
def test_each_way_to_fail_has_its_own_name(code: FaultCode, broken: Break, rules: str, tmp_path: Path) -> None:
    run = good()
    broken(run)
    verdict = judge(run, tmp_path, rules)
    assert set(verdict.names) == {code.failure} and code in codes(verdict)[code.failure], codes(verdict)
    assert not verdict.passed


def test_every_failure_has_a_test() -> None:
    elsewhere = {"inconsistent", "no-plan", "unreadable-run", "truncated-import", "not-publishable"}  # in other tests
    assert {str(code.failure) for code, _, _ in WAYS} | elsewhere == set(FAILURES)
    assert set(ALLOWED) < set(FAILURES)


def test_an_unreadable_run_fails(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    verdict = unreadable(load_rules(tmp_path / "rules.yaml"), "run", "it is no run")
    assert not verdict.passed and list(verdict.names) == ["unreadable-run"]


def test_a_planned_job_without_results_fails_even_if_no_rule_selects_it(tmp_path: Path) -> None:
    run = good()
    assert run.plan is not None
    run.plan["jobs"].append(
        {
            "name": "barrier-mpi-2x2",
            "case": ["barrier", "--transport", "mpi"],
            "world": {"num_nodes": 2, "ranks_per_node": 2},
        }
    )
    assert list(judge(run, tmp_path).names) == ["failed-job"]


def test_a_failed_row_fails_in_spite_of_exit_code_0(tmp_path: Path) -> None:
    run = good()
    run.jobs[0][2].append(record("pipelined", 1 << 22, samples=None, failed=Failure("ran out of memory", 2, "h1")))
    verdict = judge(run, tmp_path)
    assert list(verdict.names) == ["failed-job"]
    assert [(node.host, node.status) for node in verdict.nodes] == [("h0", "not judged"), ("h1", "failed")]


def test_wrong_data_fails_even_if_no_rule_selects_it(tmp_path: Path) -> None:
    run = good()
    run.jobs[0][2].append(record("pipelined", 1 << 22, verified=False, num_wrong=1))
    assert list(judge(run, tmp_path).names) == ["wrong-data"]


@pytest.mark.parametrize("word", sorted(map(str, ALLOWED)))
def test_a_rule_may_allow_some_failures(word: str, tmp_path: Path) -> None:
    [(broken, rules), *_] = [(broken, rules) for code, broken, rules in WAYS if code.failure == word]
    run = good()
    broken(run)
    assert judge(run, tmp_path, rules + f"allow: [{word}]\n").passed


IMPORTED = """
rules: [{pattern: allreduce, sizes: [1M, 2M], busbw: at least 14 GB/s, time: at most 1ms, imported: true}]
"""


def test_imported_rows_pass_rules_with_imported_true(tmp_path: Path) -> None:
    assert judge(imported(), tmp_path, IMPORTED).passed
    for rules, name in (
        (IMPORTED.replace("true", "false"), "imported"),
        (IMPORTED.replace("14 GB/s", "16 GB/s"), "too-low"),
        (IMPORTED.replace("1ms", "1us"), "too-high"),
        (IMPORTED.replace("time: at most 1ms", "p99: at most 1ms"), "tail-not-known"),
        (IMPORTED.replace("[1M, 2M]", "[1M, 2M, 4M]"), "missing-rows"),
        (IMPORTED.replace("time: at most 1ms", "time: not slower than baseline"), "no-baseline"),
        (IMPORTED + "expect: {max_age: 7d}", "stale"),
        (IMPORTED + "expect: {transport: nccl}", "wrong-fabric"),
    ):
        assert list(judge(imported(), tmp_path, rules).names) == [name], rules
    assert judge(imported(), tmp_path, IMPORTED.replace("14 GB/s", "14 Gb/s")).passed, "Gbit, as it is written"


@pytest.mark.parametrize(
    ("status", "name"),
    [
        ("truncated", "truncated-import"),
        ("failed", "failed-job"),
        ("unknown-word", "failed-job"),
    ],
)
def test_a_log_that_did_not_end_well_fails(status: str, name: str, tmp_path: Path) -> None:
    run = imported(status)
    assert list(judge(run, tmp_path, IMPORTED).names) == [name]
    run.jobs[0][2].pop()  # also where only its header says so
    assert list(judge(run, tmp_path, IMPORTED).names) == [name]


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("one-rank", {"num_ranks": None}),
        ("one-rank", {"num_ranks": 1}),
        ("unverified", {"verified": None}),
        ("wrong-data", {"num_wrong": 7, "verified": False}),
    ],
)
def test_facts_missing_from_a_log_fail(name: str, changed: dict[str, Any], tmp_path: Path) -> None:
    run = imported()
    run.records(lambda one: one.payload_bytes == SIZES[0], lambda one: replace(one, **changed))
    assert list(judge(run, tmp_path, IMPORTED).names) == [name]


@settings(max_examples=60)
@given(data=st.data())
def test_removing_rows_never_turns_a_gate_green(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    run = good()
    run.jobs.append(pairs({}))
    if data.draw(st.booleans(), label="without its plan"):
        run.plan = None
    wrong = data.draw(st.sampled_from([None, 0, 1]), label="a bad job")
    if wrong is not None:
        run.jobs[wrong][2][0] = replace(run.jobs[wrong][2][0], verified=False, num_wrong=1)
    rules = RULES + "  - {pattern: pairs, sizes: 1M, busbw: at least 1 GB/s}\ndiagnose: true\n"
    all_rows = [(number, index) for number, (_, _, rows) in enumerate(run.jobs) for index in range(len(rows))]
    out = set(data.draw(st.lists(st.sampled_from(all_rows), min_size=1), label="taken away"))
    for number, (_, _, rows_of_job) in enumerate(run.jobs):
        rows_of_job[:] = [row for index, row in enumerate(rows_of_job) if (number, index) not in out]
    folder = tmp_path_factory.mktemp("gate")
    assert not judge(run, folder, rules).passed


def test_a_retested_size_is_judged_and_its_first_result_listed(tmp_path: Path) -> None:
    run = good()
    slow = [record(mode, SIZES[1], times(9e-3)) for mode in ("isolated", "pipelined")]
    run.jobs[0][2][2:] = slow
    assert set(judge(run, tmp_path).names) == {"too-low", "too-high"}
    again = [record(mode, SIZES[1]) for mode in ("isolated", "pipelined")]
    run.jobs.append((f"{JOB}#2", header(), again))
    run.retests = (Retest("2026-01-02T05:00:00+00:00", {JOB: ()}, ("too-low",)),)
    verdict = judge(run, tmp_path)
    assert verdict.passed, verdict.all_faults
    assert [(one.first.payload_bytes, one.job) for one in verdict.superseded] == [(SIZES[1], f"{JOB}#2")] * 2
    assert verdict.retests == run.retests


def test_a_worse_retest_counts(tmp_path: Path) -> None:
    run = good()
    run.jobs.append((f"{JOB}#2", header(), [record("pipelined", SIZES[1], times(9e-3))]))
    assert "too-low" in judge(run, tmp_path).names


def test_the_pairs_of_a_suspect_are_judged_by_its_retest(tmp_path: Path) -> None:
    run = good()
    job = "pairs-mpi-6x1"
    run.jobs.append(pairs({2: 0.5}))
    first = judge(run, tmp_path)
    assert [node.host for node in first.nodes if node.status == "failed"] == ["h2"]
    run.retests = (Retest("2026-01-02T05:00:00+00:00", {job: ("h2",)}),)
    assert not judge(run, tmp_path).passed, "nothing was measured again yet"
    _, head, again = pairs({}, ranks=(0, 1, 2, 3), job=job)
    run.jobs.append((f"{job}#2", head, again))
    verdict = judge(run, tmp_path)
    assert verdict.passed, verdict.all_faults
    assert len(verdict.superseded) == 5 and {one.job for one in verdict.superseded} == {f"{job}#2"}
    _, head, still = pairs({2: 0.5}, ranks=(0, 1, 2, 3), job=job)
    run.jobs[-1] = (f"{job}#2", head, still)
    assert list(judge(run, tmp_path).names) == ["slow-part"]


def test_a_retest_without_pairs_of_the_suspect_replaces_nothing(tmp_path: Path) -> None:
    run = good()
    run.jobs.append(pairs({2: 0.5}))
    job, head, again = pairs({}, ranks=(0, 1, 2, 3))
    ours = [one for one in again if 2 not in (one.src, one.dst)]
    run.jobs.append((f"{job}#2", head, ours))
    run.retests = (Retest("2026-01-02T05:00:00+00:00", {job: ("h2",)}),)
    verdict = judge(run, tmp_path)
    assert list(verdict.names) == ["slow-part"] and not verdict.superseded


def test_a_demand_without_judged_rows_has_not_passed(tmp_path: Path) -> None:
    verdict = judge(good(), tmp_path)
    assert not replace(verdict.judged[0], worst=None).passed
    assert not replace(verdict, judged=()).passed


def test_a_failed_row_that_was_measured_again_is_repaired(tmp_path: Path) -> None:
    run = good()
    bad = record("pipelined", SIZES[1], samples=None, failed=Failure("died"))
    run.records(lambda one: one.mode == "pipelined" and one.payload_bytes == SIZES[1], lambda one: bad)
    assert "failed-job" in judge(run, tmp_path).names
    run.jobs.append((f"{JOB}#2", header(), [record("pipelined", SIZES[1])]))
    assert judge(run, tmp_path).passed


def test_the_weakest_node_is_found_among_its_peers(tmp_path: Path) -> None:
    words = ("allreduce", "--transport", "mpi", "--sizes", "1M", "--mode", "pipelined", "--topology", "node")
    rates = (1.0, 0.99, 1.01, 0.7)
    head = header("allreduce-mpi-4x2-node", words, topology="node", num_nodes=4)
    rows_ = [
        record("pipelined", 1 << 20, times(1e-4 / rate), group=f"node{node}", num_ranks=2, num_nodes=1)
        for node, rate in enumerate(rates)
    ]
    run = Run([("allreduce-mpi-4x2-node", head, rows_)], NO_JOBS)
    rule = "rules: [{pattern: allreduce, topology: node, sizes: 1M, weakest: at least 90% of median}]"
    verdict = judge(run, tmp_path, rule)
    assert verdict.names == {"too-low": 1}
    assert [(node.host, node.status) for node in verdict.nodes] == [
        *((f"h{n}", "passed") for n in range(3)),
        ("h3", "failed"),
    ]
    assert judge(run, tmp_path, rule.replace("90%", "60%")).passed
    rows_.pop()
    assert list(judge(run, tmp_path, rule.replace("90%", "60%")).names) == ["missing-rows"]


def test_a_share_of_a_published_figure(tmp_path: Path) -> None:
    def published(head: Any, row: Summary, metric: str) -> tuple[float, str] | None:
        return (10e9, "somebody, 2025") if metric == "busbw" else None

    assert judge(good(), tmp_path, REFERENCE, published=published).passed
    high = judge(good(), tmp_path, REFERENCE.replace("50%", "200%"), published=published)
    assert list(high.names) == ["too-low"]


def test_copies_of_gpus_are_judged_by_their_own_transport(tmp_path: Path) -> None:
    rules = RULES.replace("transport: mpi", "transport: nccl") + "expect: {transport: nccl}\n"
    for transport, names in (("cuda_copy", set()), ("mpi", {"wrong-fabric"})):
        run = good()
        heads(transport="nccl")(run)
        case = ("host_device", "--transport", transport, "--sizes", "1M")
        run.jobs.append(("copies", header("copies", case, pattern="host_device", transport=transport), []))
        verdict = judge(run, tmp_path, rules)
        assert {fault.name for fault in verdict.all_faults if fault.job == "copies"} - {"failed-job"} == names


def test_equal_launches_do_not_fail(tmp_path: Path) -> None:
    run = launched(good(), 1.0)
    run.baseline = launches(run, 1.0)
    assert judge(run, tmp_path, BASELINE).passed


def test_the_network_is_read_from_lines_of_nccl() -> None:
    def networks(*lines: str) -> set[str]:
        return set(networks_in(lines))

    assert networks("h0:1:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)") == {"efa"}
    assert networks("NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>", "NCCL INFO Using network Socket") == {"tcp"}
    assert networks("NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0") == {"ib"}
    assert networks("NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]", "NCCL INFO Using network IB") == {"roce"}
    assert networks("NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P", "all is well") == set()


@pytest.mark.parametrize(
    "words",
    [
        ("moe", "--skew", "1", "--sizes", "64K,64M"),
        ("alltoallv", "--matrix", "0,1;2,0", "--nodes", "1", "--ranks-per-node", "2"),
        ("broadcast", "--root", "3", "-d", "bfloat16"),
        ("pingpong", "--direction", "two-way", "--window", "4"),
    ],
    ids=itemgetter(0),
)
def test_a_row_of_any_factor_agrees_with_its_own_header(words: tuple[str, ...]) -> None:
    case = from_argv([*words, "--transport", "model", "--instance", "p4d.24xlarge"])
    head, rows = modelled.header_and_rows(case, words[0])
    records = [record for row in rows for record in row]
    assert records and list(header_consistency.faults(words[0], head, records)) == []
