"""The gate fails closed: each way to fail, made from a run that passes, is a failure of its own name and no other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.record import Failure, Skip
from bench.gate.gate import Retest, networks_in, unreadable
from bench.gate.rules import ALLOWED, FAILURES
from bench.gate.rules_file import load_rules
from bench.results.document import Summary
from tests.gate.gate_runs import RULES, SIZES, Run, good, header, imported, judge, old, pairs, record, times

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
    run.told, run.outcomes = [], {}
    run.plan = None


def cut(run: Run) -> None:
    run.warnings = ("allreduce.jsonl:7: a line cut short was left out",)


def unknown_fabric(run: Run) -> None:
    run.networks = {}


def slower_than_before(run: Run) -> None:
    run.baseline = launches(run, 1.0)
    slow = launched(run, 1.5)
    run.told, run.plan = slow.told, slow.plan


def noisy_beside_before(run: Run) -> None:
    run.baseline = launches(run, 1.0)
    noisy = launched(run, 1.06, spread=0.04)
    run.told, run.plan = noisy.told, noisy.plan


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
        run.told.append(pairs(slow, ladder=ladder))

    return broken


NETWORK = RULES + "expect: {network: efa}\n"
EXPECT = RULES + "expect: {cluster: toy, instance: toy.2x, gpu: H100, nodes: 2, ranks: 4, hosts: 'h[0-1]'}\n"
FRESH = RULES + "expect: {max_age: 7d}\n"
REFERENCE = RULES.replace("50% of bound", "50% of reference")
NO_JOBS: dict[str, Any] = {"cluster": {"name": "toy"}, "jobs": [], "skipped": []}
BASELINE = "rules:\n  - {pattern: allreduce, sizes: [1M, 2M], time: not slower than baseline by 5%}\n"
TAIL = RULES.replace("p95: at most 1ms", "p99: at most 1ms")
FAST = RULES.replace("at most 1ms", "at most 1us", 1)

WAYS: list[tuple[str, Break, str]] = [
    ("empty-run", nothing, RULES),
    ("failed-job", outcome(what="rank 3 on h1 died"), RULES),
    ("failed-job", outcome(exit_code=1), RULES),
    ("truncated-file", cut, RULES),
    ("wrong-world", heads(ranks=tuple({"host": "h0"} for _ in range(4))), RULES),
    ("wrong-world", lambda run: (run.plan or {})["jobs"][0]["world"].update(num_nodes=4), RULES),
    ("wrong-world", lambda run: None, EXPECT.replace("nodes: 2", "nodes: 3")),
    ("wrong-world", lambda run: None, EXPECT.replace("ranks: 4", "ranks: 8")),
    ("wrong-world", lambda run: None, EXPECT.replace("h[0-1]", "h[0-7]")),
    ("wrong-cluster", lambda run: None, EXPECT.replace("cluster: toy", "cluster: other")),
    ("wrong-cluster", heads(instance=None), EXPECT),
    ("wrong-cluster", heads(nodes={"h0": {"gpus": [{"name": "NVIDIA A100"}]}}), EXPECT),
    ("wrong-cluster", heads(nodes={}), EXPECT),
    ("stale", heads(started=old(8)), FRESH),
    ("stale", heads(started="some day"), FRESH),
    ("stale", heads(started=old(-3)), FRESH),
    ("wrong-world", heads(ranks=()), RULES),
    ("slow-part", with_pairs({2: 0.5}), RULES),
    ("undecided-part", with_pairs({2: 0.5}, ladder="screen"), RULES),
    ("missing-rows", gone, RULES),
    ("missing-rows", lambda run: None, RULES.replace("[1M, 2M]", "[1M, 2M, 4M]")),
    ("missing-rows", lambda run: None, RULES.replace("pattern: allreduce", "patterns: [allreduce, alltoall]")),
    ("missing-rows", lambda run: None, RULES + "diagnose: true\n"),
    ("size-skipped", records(samples=None, skipped=Skip.uncoded("out of memory")), RULES),
    ("wrong-fabric", heads(transport="gloo"), RULES),
    ("wrong-fabric", lambda run: None, RULES + "expect: {transport: nccl}\n"),
    ("wrong-fabric", unknown_fabric, NETWORK),
    ("wrong-fabric", lambda run: run.networks.update({JOB: frozenset({"tcp"})}), NETWORK),
    ("wrong-fabric", unknown_fabric, RULES.replace("transport: mpi", "network: efa")),
    ("no-baseline", lambda run: None, BASELINE),
    (
        "imported",
        records(
            samples=None,
            stop_reason=None,
            reported={"median_s": 2e-4, "p95_s": 3e-4, "num_samples": 100, "busbw_bytes_per_s": 1.5e10},
        ),
        RULES,
    ),
    ("modelled", rows(modelled=True), RULES),
    ("modelled", heads(modelled=True), RULES),
    (
        "size-skipped",
        lambda run: (run.plan or {}).update(notes=["sizes thinned from 10 to 2"]),
        RULES.replace("[1M, 2M]", "1M:2M"),
    ),
    ("failed-job", lambda run: run.outcomes.clear(), RULES),
    ("undecided-part", lambda run: run.told.append(pairs({}, ranks=range(1, 6))), RULES + "diagnose: true\n"),
    ("wrong-data", records(verified=False, num_wrong=3), RULES),
    ("unverified", records(verified=None), RULES),
    ("not-a-number", rows(median_s=math.nan), RULES),
    ("not-a-number", rows(busbw_bytes_per_s=math.inf), RULES),
    ("not-a-number", rows(busbw_bytes_per_s=None), RULES),
    ("not-a-number", rows(ci_high_s=math.inf), RULES),
    ("zero", rows(busbw_bytes_per_s=0.0), RULES),
    ("zero", rows(median_s=0.0), RULES),
    ("zero", rows(median_s=-1e-6), RULES),
    ("one-rank", records(num_ranks=1), RULES),
    ("shared-gpu", flagged("shared_gpu"), RULES),
    ("shared-gpu", heads(facts={"shared_gpu": "yes"}), RULES),
    ("through-host", flagged("through-host"), RULES),
    ("too-few-samples", rows(num_samples=80), RULES + "    samples: 100\n"),
    ("no-interval", rows(ci_low_s=None, ci_high_s=None), RULES),
    ("not-converged", records(stop_reason="max_time"), RULES),
    ("above-bound", flagged("above-bound"), RULES),
    ("contradicts", flagged("contradicts"), RULES),
    (
        "tail-not-known",
        lambda run: run.records(lambda one: True, lambda one: replace(one, samples=times(1e-4, 20))),
        TAIL.replace("50%", "5%"),
    ),
    ("tail-not-known", rows(p99_s=1e-4, num_samples=20), TAIL),
    ("no-bound", rows(bound_bytes_per_s=None), RULES),
    ("no-reference", lambda run: None, REFERENCE),
    ("too-low", lambda run: None, RULES.replace("50%", "90%")),
    ("too-low", lambda run: None, RULES.replace("50% of bound", "400 GB/s")),
    ("too-high", lambda run: None, FAST),
    ("slower", slower_than_before, BASELINE),
    ("inconclusive", noisy_beside_before, BASELINE),
    ("too-few-launches", lambda run: setattr(run, "baseline", run.document()), BASELINE),
]


def test_a_good_run_passes(tmp_path: Path) -> None:
    told = judge(good(), tmp_path)
    assert told.passed and told.names == {}, told.all_faults
    assert [(each.num_rows, each.passed) for each in told.judged] == [(2, True)] * 3
    assert [(node.host, node.status) for node in told.nodes] == [("h0", "not judged"), ("h1", "not judged")]
    good_rate = told.judged[0].worst
    assert good_rate is not None and good_rate.got == pytest.approx(0.78, abs=0.01) and good_rate.limit == 0.5
    for rules in (EXPECT, FRESH):
        assert judge(good(), tmp_path, rules).passed
    on_efa = good()
    on_efa.networks = {JOB: frozenset({"efa"})}
    assert judge(on_efa, tmp_path, NETWORK).passed
    with_good_pairs = good()
    with_good_pairs.told.append(pairs({}))
    told = judge(with_good_pairs, tmp_path, RULES + "diagnose: true\n")
    assert told.passed and {node.status for node in told.nodes} == {"passed"}


@pytest.mark.parametrize(
    ("told", "kinds", "wanted"),
    [
        ("efa", ("efa",), "efa"),
        ("ib", ("infiniband",), "ib"),
        ("ib", ("roce",), "roce"),
        ("ib", (), "ib or roce"),
        ("ib", ("infiniband", "roce"), "ib or roce"),
        ("socket", ("efa",), "tcp"),
        ("efa + socket", (), "efa, tcp"),
        ("none, within one node", (), "nothing tells"),
    ],
)
def test_the_network_that_the_transport_heard_of_counts(
    told: str, kinds: tuple[str, ...], wanted: str, tmp_path: Path
) -> None:
    run = good()
    adapters = [{"name": "a", "kind": kind} for kind in kinds]
    run.headers(facts={"nccl_network": told}, nodes={"h0": {"adapters": adapters}, "h1": {}})
    found = judge(run, tmp_path, NETWORK)
    assert found.passed is (wanted == "efa")
    assert found.passed or wanted in next(each.what for each in found.all_faults if each.name == "wrong-fabric")


def test_libfabric_over_another_provider_is_no_efa() -> None:
    lines = ["h0: NCCL INFO NET/OFI Selected provider is tcp", "h0: NCCL INFO Using network AWS Libfabric"]
    assert networks_in(lines) == {"tcp"}
    assert networks_in([lines[0].replace("tcp", "efa"), lines[1]]) == {"efa"} == networks_in(lines[1:])


@pytest.mark.parametrize(("name", "broken", "rules"), WAYS, ids=[f"{n}-{way[0]}" for n, way in enumerate(WAYS)])
def test_each_way_to_fail_has_its_name_and_no_other(name: str, broken: Break, rules: str, tmp_path: Path) -> None:
    run = good()
    broken(run)
    told = judge(run, tmp_path, rules)
    assert set(told.names) == {name}, [(fault.name, fault.what) for fault in told.all_faults]
    assert not told.passed


def test_every_name_has_its_test() -> None:
    elsewhere = {"inconsistent", "no-plan", "unreadable-run", "truncated-import"}  # below
    assert {name for name, _, _ in WAYS} | elsewhere == set(FAILURES)
    assert set(ALLOWED) < set(FAILURES)


def test_what_can_not_be_read_fails(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    told = unreadable(load_rules(tmp_path / "rules.yaml"), "run", "it is no run")
    assert not told.passed and list(told.names) == ["unreadable-run"]


def test_a_job_that_was_planned_and_left_nothing_fails_though_no_rule_asks_for_it(tmp_path: Path) -> None:
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


def test_exit_code_0_with_a_failed_row_inside_fails(tmp_path: Path) -> None:
    run = good()
    run.told[0][2].append(record("pipelined", 1 << 22, samples=None, failed=Failure("ran out of memory", 2, "h1")))
    told = judge(run, tmp_path)
    assert list(told.names) == ["failed-job"]
    assert [(node.host, node.status) for node in told.nodes] == [("h0", "not judged"), ("h1", "failed")]


def test_wrong_data_fails_where_no_rule_looks(tmp_path: Path) -> None:
    run = good()
    run.told[0][2].append(record("pipelined", 1 << 22, verified=False, num_wrong=1))
    assert list(judge(run, tmp_path).names) == ["wrong-data"]


@pytest.mark.parametrize("word", sorted(ALLOWED))
def test_a_rule_may_knowingly_allow_some_failures(word: str, tmp_path: Path) -> None:
    [(broken, rules), *_] = [(broken, rules) for name, broken, rules in WAYS if name == word]
    run = good()
    broken(run)
    assert judge(run, tmp_path, rules + f"allow: [{word}]\n").passed


IMPORTED = """
rules: [{pattern: allreduce, sizes: [1M, 2M], busbw: at least 14 GB/s, time: at most 1ms, imported: true}]
"""


def test_imported_rows_pass_by_rules_that_are_written_for_them(tmp_path: Path) -> None:
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
        ("unheard of", "failed-job"),
    ],
)
def test_a_log_that_did_not_end_well_fails_whatever_it_reached(status: str, name: str, tmp_path: Path) -> None:
    run = imported(status)
    assert list(judge(run, tmp_path, IMPORTED).names) == [name]
    run.told[0][2].pop()  # also where only its header says so
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
def test_what_a_log_does_not_tell_is_not_taken_for_good(name: str, changed: dict[str, Any], tmp_path: Path) -> None:
    run = imported()
    run.records(lambda one: one.payload_bytes == SIZES[0], lambda one: replace(one, **changed))
    assert list(judge(run, tmp_path, IMPORTED).names) == [name]


@settings(max_examples=60)
@given(data=st.data())
def test_taking_rows_away_never_turns_a_gate_green(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = good()
    run.told.append(pairs({}))
    if data.draw(st.booleans(), label="without its plan"):
        run.plan = None
    wrong = data.draw(st.sampled_from([None, 0, 1]), label="a bad job")
    if wrong is not None:
        run.told[wrong][2][0] = replace(run.told[wrong][2][0], verified=False, num_wrong=1)
    rules = RULES + "  - {pattern: pairs, sizes: 1M, busbw: at least 1 GB/s}\ndiagnose: true\n"
    all_rows = [(number, index) for number, (_, _, rows) in enumerate(run.told) for index in range(len(rows))]
    out = set(data.draw(st.lists(st.sampled_from(all_rows), min_size=1), label="taken away"))
    for number, (_, _, rows_of_job) in enumerate(run.told):
        rows_of_job[:] = [row for index, row in enumerate(rows_of_job) if (number, index) not in out]
    folder = tmp_path_factory.mktemp("gate")
    assert not judge(run, folder, rules).passed


def test_the_retest_of_a_size_is_judged_and_the_first_result_is_told(tmp_path: Path) -> None:
    run = good()
    slow = [record(mode, SIZES[1], times(9e-3)) for mode in ("isolated", "pipelined")]
    run.told[0][2][2:] = slow
    assert set(judge(run, tmp_path).names) == {"too-low", "too-high"}
    again = [record(mode, SIZES[1]) for mode in ("isolated", "pipelined")]
    run.told.append((f"{JOB}#2", header(), again))
    run.retests = (Retest("2026-01-02T05:00:00+00:00", {JOB: ()}, ("too-low",)),)
    told = judge(run, tmp_path)
    assert told.passed, told.all_faults
    assert [(one.first.payload_bytes, one.job) for one in told.superseded] == [(SIZES[1], f"{JOB}#2")] * 2
    assert told.retests == run.retests


def test_a_retest_that_is_worse_counts_too(tmp_path: Path) -> None:
    run = good()
    run.told.append((f"{JOB}#2", header(), [record("pipelined", SIZES[1], times(9e-3))]))
    assert "too-low" in judge(run, tmp_path).names


def test_the_pairs_of_a_suspect_are_judged_by_its_retest(tmp_path: Path) -> None:
    run = good()
    job = "pairs-mpi-6x1"
    run.told.append(pairs({2: 0.5}))
    first = judge(run, tmp_path)
    assert [node.host for node in first.nodes if node.status == "failed"] == ["h2"]
    run.retests = (Retest("2026-01-02T05:00:00+00:00", {job: ("h2",)}),)
    assert not judge(run, tmp_path).passed, "nothing was measured again yet"
    _, head, again = pairs({}, ranks=(0, 1, 2, 3), job=job)
    run.told.append((f"{job}#2", head, again))
    told = judge(run, tmp_path)
    assert told.passed, told.all_faults
    assert len(told.superseded) == 5 and {one.job for one in told.superseded} == {f"{job}#2"}
    _, head, still = pairs({2: 0.5}, ranks=(0, 1, 2, 3), job=job)
    run.told[-1] = (f"{job}#2", head, still)
    assert list(judge(run, tmp_path).names) == ["slow-part"]


def test_a_retest_that_measured_no_pair_of_the_suspect_replaces_nothing(tmp_path: Path) -> None:
    run = good()
    run.told.append(pairs({2: 0.5}))
    job, head, again = pairs({}, ranks=(0, 1, 2, 3))
    ours = [one for one in again if 2 not in (one.src, one.dst)]
    run.told.append((f"{job}#2", head, ours))
    run.retests = (Retest("2026-01-02T05:00:00+00:00", {job: ("h2",)}),)
    told = judge(run, tmp_path)
    assert list(told.names) == ["slow-part"] and not told.superseded


def test_a_demand_that_judged_nothing_has_not_passed(tmp_path: Path) -> None:
    told = judge(good(), tmp_path)
    assert not replace(told.judged[0], worst=None).passed
    assert not replace(told, judged=()).passed


def test_a_failed_row_that_was_measured_since_is_mended(tmp_path: Path) -> None:
    run = good()
    bad = record("pipelined", SIZES[1], samples=None, failed=Failure("died"))
    run.records(lambda one: one.mode == "pipelined" and one.payload_bytes == SIZES[1], lambda one: bad)
    assert "failed-job" in judge(run, tmp_path).names
    run.told.append((f"{JOB}#2", header(), [record("pipelined", SIZES[1])]))
    assert judge(run, tmp_path).passed


def test_the_weakest_node_is_found_by_its_peers(tmp_path: Path) -> None:
    words = ("allreduce", "--transport", "mpi", "--sizes", "1M", "--mode", "pipelined", "--topology", "node")
    rates = (1.0, 0.99, 1.01, 0.7)
    head = header("allreduce-mpi-4x2-node", words, topology="node", num_nodes=4)
    rows_ = [
        record("pipelined", 1 << 20, times(1e-4 / rate), group=f"node{node}", num_ranks=2, num_nodes=1)
        for node, rate in enumerate(rates)
    ]
    run = Run([("allreduce-mpi-4x2-node", head, rows_)], NO_JOBS)
    rule = "rules: [{pattern: allreduce, topology: node, sizes: 1M, weakest: at least 90% of median}]"
    told = judge(run, tmp_path, rule)
    assert told.names == {"too-low": 1}
    assert [(node.host, node.status) for node in told.nodes] == [
        *((f"h{n}", "passed") for n in range(3)),
        ("h3", "failed"),
    ]
    assert judge(run, tmp_path, rule.replace("90%", "60%")).passed
    rows_.pop()
    assert list(judge(run, tmp_path, rule.replace("90%", "60%")).names) == ["missing-rows"]


def test_a_share_of_what_others_published(tmp_path: Path) -> None:
    def published(head: Any, row: Summary, metric: str) -> tuple[float, str] | None:
        return (10e9, "somebody, 2025") if metric == "busbw" else None

    assert judge(good(), tmp_path, REFERENCE, published=published).passed
    high = judge(good(), tmp_path, REFERENCE.replace("50%", "200%"), published=published)
    assert list(high.names) == ["too-low"]


def test_copies_of_gpus_are_held_to_their_own_transport_and_not_to_the_one_of_collectives(tmp_path: Path) -> None:
    rules = RULES.replace("transport: mpi", "transport: nccl") + "expect: {transport: nccl}\n"
    for transport, names in (("cuda_copy", set()), ("mpi", {"wrong-fabric"})):
        run = good()
        heads(transport="nccl")(run)
        case = ("host_device", "--transport", transport, "--sizes", "1M")
        run.told.append(("copies", header("copies", case, pattern="host_device", transport=transport), []))
        told = judge(run, tmp_path, rules)
        assert {fault.name for fault in told.all_faults if fault.job == "copies"} - {"failed-job"} == names


def test_equal_launches_are_no_failure(tmp_path: Path) -> None:
    run = launched(good(), 1.0)
    run.baseline = launches(run, 1.0)
    assert judge(run, tmp_path, BASELINE).passed


def test_the_network_is_read_from_what_nccl_says() -> None:
    def said(*lines: str) -> set[str]:
        return set(networks_in(lines))

    assert said("h0:1:1 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)") == {"efa"}
    assert said("NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>", "NCCL INFO Using network Socket") == {"tcp"}
    assert said("NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0") == {"ib"}
    assert said("NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]", "NCCL INFO Using network IB") == {"roce"}
    assert said("NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P", "all is well") == set()
