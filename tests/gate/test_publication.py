"""The demands on a publication: what a run does not record, or what another tool reported, breaks a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench.core.host_use import BusyCause, HostUse
from bench.core.links import NodeLinks
from bench.core.record import Header, Record, Samples
from bench.gate.gate_input import GateInput
from bench.gate.messages import FaultCode
from bench.gate.publication import FindingStatus, PublicationFinding, findings
from bench.gate.publication_rules import PublicationRule
from bench.results import summary
from bench.results.document import Conflict, Document
from bench.store import jsonl

ROOT = Path(__file__).resolve().parent.parent.parent
[REFERENCE] = (ROOT / "results" / "reference").glob("main_*")
JOB = "allreduce-mpi-1x2"

Make = Callable[..., Any]
Job = tuple[str, Header, tuple[Record, ...]]


@cache
def measured() -> Job:
    """A real job, with all that is recorded today."""
    [attempt] = jsonl.read(REFERENCE / f"{JOB}.jsonl").attempts
    header = attempt.header
    settings = {**header.settings, "confidence": 0.95, "ci_method": "order-statistic"}
    calibration = {**header.calibration, "sync_skew_p50_s": 4e-7, "sync_skew_p99_s": 6e-7}
    return JOB, replace(header, settings=settings, calibration=calibration), tuple(attempt.records)


def found(*jobs: Job, document: Document | None = None, **given: Any) -> dict[int, PublicationFinding]:
    """The finding of each rule by its number."""
    run = GateInput("run", document or summary.document(jobs), jobs, **given)
    return {finding.rule.number: finding for finding in findings(run, tuple(PublicationRule))}


def broken(*jobs: Job, **given: Any) -> dict[int, list[tuple[FaultCode, dict[str, Any]]]]:
    """The codes and facts of each broken rule."""
    return {
        number: [(fault.code, dict(fault.facts)) for fault in finding.faults]
        for number, finding in found(*jobs, **given).items()
        if finding.status == FindingStatus.FAILED
    }


def test_a_measured_job_keeps_every_rule() -> None:
    statuses = {number: finding.status for number, finding in found(measured()).items()}
    expected = dict.fromkeys(range(1, 16), FindingStatus.PASSED)
    assert statuses == expected | {15: FindingStatus.NOT_KNOWN}, "it was measured before hosts were recorded"


def test_a_skipped_row_needs_a_reason() -> None:
    row = {"job": JOB, "mode": "isolated", "payload_bytes": 8, "group": "world", "reason": ""}
    document = replace(summary.document([measured()]), skipped=(row,))
    assert broken(measured(), document=document) == {2: [(FaultCode.SKIPPED_WITHOUT_REASON, {})]}


def test_an_entry_that_the_plan_leaves_out_needs_a_reason() -> None:
    plan = {"jobs": [], "skipped": [{"what": "peer_copy"}], "scenario_text": "x"}
    outcomes = {JOB: {"seconds": 1.0}}
    assert broken(measured(), plan=plan, outcomes=outcomes) == {
        2: [(FaultCode.PLAN_SKIPPED_WITHOUT_REASON, {"entry": "peer_copy"})]
    }


@pytest.mark.parametrize(("rows", "missing"), [(("0-1", "2-3", "0-2"), []), ((), ["pipelined"])])
def test_a_ladder_must_have_rows_only_of_its_largest_size(
    rows: tuple[str, ...], missing: list[str], a_header: Make, a_record: Make
) -> None:
    words = ("pairs", "--transport", "mpi", "--schedule", "ladder", "--sizes", "1K,1M")
    header = a_header(job="a", case=words, pattern="pairs", topology="pairs", num_ranks=4, num_nodes=2)
    records = tuple(a_record(mode="pipelined", group=pair, num_ranks=2, num_nodes=1) for pair in rows)
    finding = found(("a", header, records), plan={"jobs": [{"name": "a", "case": list(words)}]})[2]
    absent = [fault for fault in finding.faults if fault.code == FaultCode.LADDER_WITHOUT_ROWS]
    assert [(fault.mode, fault.payload_bytes) for fault in absent] == [(mode, 1 << 20) for mode in missing]


@pytest.mark.parametrize("unknown", [{"num_cpus": None}, {"gpus": None}])
def test_the_cpus_and_gpus_of_a_host_must_be_recorded(unknown: dict[str, Any]) -> None:
    job, header, records = measured()
    [(host, facts)] = header.nodes.items()
    header = replace(header, nodes={host: {**facts, **unknown}})
    assert broken((job, header, records)) == {2: [(FaultCode.HOST_PARTS_UNKNOWN, {"host": host})]}


def test_a_line_must_not_have_two_points_of_one_size() -> None:
    job, header, records = measured()
    assert broken((job, header, (*records, records[0]))) == {12: [(FaultCode.SIZE_TWICE, {})]}


@pytest.mark.thin(3)
@pytest.mark.parametrize("key", ["cpu_model", "governor", "memory_bytes", "numa_nodes", "network_ports", "container"])
def test_a_fact_of_a_host_may_be_unknown_but_not_absent(key: str) -> None:
    job, header, records = measured()
    [(host, facts)] = header.nodes.items()
    unknown = replace(header, nodes={host: {**facts, key: None}})
    absent = replace(header, nodes={host: {name: value for name, value in facts.items() if name != key}})
    assert not broken((job, unknown, records))
    assert broken((job, absent, records)) == {9: [(FaultCode.NOT_RECORDED, {"what": f"nodes.{host}.{key}"})]}


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"versions": {"bench": "1", "python": "3", "kernel": "6", "mpi4py": "4"}}, "versions.commit"),
        ({"facts": {"mpi_library": "MPICH"}}, "facts.mpi_thread_level"),
        ({"started": ""}, "(started)"),
        ({"ranks": ()}, "(ranks)"),
        ({"nodes": {}}, "(nodes)"),
    ],
)
def test_a_missing_fact_of_the_header_is_named(changed: dict[str, Any], key: str) -> None:
    job, header, records = measured()
    missing = [facts["what"] for _, facts in broken((job, replace(header, **changed), records))[9]]
    assert any(what.split()[-1] == key for what in missing)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"warmup": ()}, FaultCode.NOT_RECORDED),
        ({"loop": ""}, FaultCode.NOT_RECORDED),
        ({"calls_per_sample": 64}, FaultCode.CALLS_PER_SAMPLE_ODD),
    ],
)
def test_the_way_that_samples_were_taken_must_be_recorded(changed: dict[str, Any], code: FaultCode) -> None:
    job, header, (first, *rest) = measured()
    assert first.samples is not None and first.mode == "isolated"
    records = (replace(first, samples=replace(first.samples, **changed)), *rest)
    [(number, faults)] = broken((job, header, records)).items()
    assert (number, [found_code for found_code, _ in faults]) == (10, [code])


def test_only_synchronised_ranks_with_the_host_clock_must_record_their_skew() -> None:
    job, header, records = measured()
    calibration = {key: value for key, value in header.calibration.items() if not key.startswith("sync_skew")}
    without = replace(header, calibration=calibration)
    assert list(broken((job, without, records))) == [10]
    unsynchronised = replace(without, settings={**header.settings, "sync": "none"})
    assert 10 not in broken((job, unsynchronised, records))
    assert 10 not in broken((job, replace(without, clock="device"), records))


def test_a_bandwidth_needs_a_bound_or_a_reason() -> None:
    job, header, records = measured()
    without = {key: value for key, value in header.calibration.items() if key != "memcpy"}
    codes = {code for code, _ in broken((job, replace(header, calibration=without), records))[11]}
    assert codes == {FaultCode.BOUND_UNEXPLAINED}
    explained = {**without, "no_bound_because": "no link is known"}
    assert 11 not in broken((job, replace(header, calibration=explained), records))


def test_another_tools_report_beside_ours_needs_no_facts_of_its_own(a_record: Make) -> None:
    _, header, _ = measured()
    of_tool = replace(header, transport="osu", facts={"tool": "osu"}, settings={}, calibration={}, nodes={}, ranks=())
    record = a_record(requested_bytes=(8,), payload_bytes=8, stop_reason=None, reported={"mean_s": 1e-6})
    assert not broken(measured(), ("osu", replace(of_tool, case=("osu_allreduce", "-m", "8")), (record,)))


def test_several_launches_need_their_spread() -> None:
    job, header, records = measured()
    jobs = [(job, header, records), ("again", replace(header, launch=2), records)]
    without = replace(summary.document(jobs), spreads=())
    assert broken(*jobs, document=without) == {5: [(FaultCode.SPREAD_UNKNOWN, {"num_launches": 2})]}
    assert not broken(*jobs)


def test_modelled_rows_are_marked_and_have_no_timing(a_header: Make, a_record: Make) -> None:
    links = NodeLinks("p4d.24xlarge", 4, "memory").to_dict()
    header = a_header(
        modelled=True,
        clock="virtual",
        case=("allreduce", "--transport", "model", "--sizes", "1M"),
        versions=measured()[1].versions,
        settings={"seed": 1},
        links=links,
    )
    records = tuple(
        a_record(
            mode=mode,
            modelled=True,
            verified=None,
            stop_reason="exact",
            bus_factor=None,
            samples=Samples((1e-4,), loop="virtual"),
        )
        for mode in ("isolated", "pipelined")
    )
    statuses = {number: finding.status for number, finding in found((JOB, header, records)).items()}
    assert {number for number, status in statuses.items() if status == FindingStatus.NOT_APPLICABLE} == {
        6,
        8,
        10,
        13,
        15,
    }
    assert set(statuses.values()) == {FindingStatus.PASSED, FindingStatus.NOT_APPLICABLE}
    unmarked = tuple(replace(record, modelled=False) for record in records)
    assert (FaultCode.MODELLED_UNMARKED, {}) in broken((JOB, header, unmarked))[5]


def test_a_run_without_rows_is_judged_only_as_a_run() -> None:
    job, header, _ = measured()
    statuses = {number: finding.status for number, finding in found((job, header, ())).items()}
    assert statuses[2] == FindingStatus.FAILED
    assert statuses[9] == FindingStatus.PASSED
    assert statuses[3] == FindingStatus.NOT_APPLICABLE


def _on_hosts(used_s: float, num: int) -> Job:
    """The measured job, whose first `num` rows were timed while a host's programs used so much CPU time."""
    job, header, records = measured()
    quiet = HostUse("vm", 1.0, 2, used_s=2.0, stolen_s=0.0, limited_s=0.0, ours_s=1.97, num_ranks=2)
    rows = []
    for place, record in enumerate(records):
        rows.append(replace(record, hosts=(replace(quiet, used_s=used_s) if place < num else quiet,)))
    return job, header, tuple(rows)


@pytest.mark.parametrize(("used_s", "num"), [(2.9, 99), (2.9, 1)], ids=["all rows", "a row"])
def test_a_busy_machine_is_not_fit_to_publish(used_s: float, num: int) -> None:
    job = _on_hosts(used_s, num)
    [(code, facts)] = broken(job)[15]
    assert (code, facts["host"], facts["codes"]) == (FaultCode.BUSY_MACHINE, "vm", [BusyCause.OTHERS])
    assert (facts["num"], facts["of"]) == (min(num, len(job[2])), len(job[2]))


def test_an_idle_machine_is_fit_to_publish() -> None:
    assert found(_on_hosts(2.0, 99))[15].status == FindingStatus.PASSED


def test_most_figures_must_have_converged() -> None:
    job, header, records = measured()
    late = tuple(replace(record, stop_reason="max_time") for record in records)
    [(code, facts)] = broken((job, header, late))[13]
    assert (code, facts) == (FaultCode.MOST_NOT_CONVERGED, {"num_converged": 0, "of": len(records)})


def test_contradictions_are_not_fit_to_publish() -> None:
    row = {"job": JOB, "mode": "isolated", "payload_bytes": 8, "group": "world"}
    conflict = Conflict("pipelined <= isolated", "x", row, row, 1.5, "pipelined-slower-than-isolated")
    document = replace(summary.document([measured()]), conflicts=(conflict,))
    assert [code for code, _ in broken(measured(), document=document)[14]] == [FaultCode.ROWS_CONTRADICT]


def test_every_rule_has_a_check_and_a_number() -> None:
    assert [rule.number for rule in PublicationRule] == list(range(1, 16))
    assert not findings(GateInput("run", summary.document([measured()])), ())
