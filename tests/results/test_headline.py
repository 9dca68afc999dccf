"""The summary of a run: machine, best figures of each transport, trust, and the next command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.core.host_use import BusyCause, HostUse
from bench.core.record import Flag
from bench.results import collect, notes
from bench.results.document import Document
from bench.results.headline import MOST_LINES, NamedRun, headline
from bench.results.messages import HeadlineCode, NoteCode
from bench.results.training_rows import Fed

Make = Callable[..., Any]
RUN = NamedRun("results/x", "latency", "p4d")
REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"


def facts_of(document: Document, code: HeadlineCode) -> list[Any]:
    return [line.facts for line in headline(document, RUN) if line.code == code]


def advice(document: Document, run: NamedRun = RUN) -> str:
    return headline(document, run)[-1].code


def of_rows(document: Document, *rows: Any) -> Document:
    return replace(document, summaries=rows, failures=(), skipped=())


def test_each_transport_has_its_best_rate_and_its_smallest_time(a_document: Document, a_summary: Make) -> None:
    slow = a_summary(transport="gloo", busbw_bytes_per_s=1e9, median_s=1e-3)
    fast = a_summary(mode="pipelined", busbw_bytes_per_s=9e9, median_s=1e-7, bound_fraction=0.72)
    small = a_summary(payload_bytes=8, busbw_bytes_per_s=1e6, median_s=4e-6)
    gloo, mpi = facts_of(of_rows(a_document, slow, fast, small), HeadlineCode.TRANSPORT)
    assert (gloo["transport"], gloo["busbw_bytes_per_s"], gloo["latency_s"]) == ("gloo", 1e9, 1e-3)
    assert (mpi["busbw_bytes_per_s"], mpi["bound_share"], mpi["bound"]) == (9e9, 0.72, "NIC")
    assert mpi["latency_s"] == 4e-6, "times of operations back to back are no latencies"


def test_a_share_far_above_the_reference_is_not_shown(a_document: Document, a_summary: Make) -> None:
    for fraction, shown in ((1.2, True), (8.08, False)):
        row = a_summary(mode="pipelined", bound_fraction=fraction)
        [line] = [line for line in headline(of_rows(a_document, row), RUN) if line.code == HeadlineCode.TRANSPORT]
        assert ("% of NIC" in line.text) == shown, "something slowed the measurement of the reference"


def test_a_floor_above_the_latency_is_not_shown(a_document: Document, a_summary: Make) -> None:
    for median_s, floor in ((4e-6, "3.000 us"), (2e-6, None)):
        row = a_summary(payload_bytes=8, median_s=median_s, floor_s=3e-6)
        [mpi] = facts_of(of_rows(a_document, row), HeadlineCode.TRANSPORT)
        assert mpi["floor"] == floor


def test_the_best_bandwidth_is_that_of_the_table(a_document: Document, a_summary: Make) -> None:
    rows = a_summary(busbw_bytes_per_s=9e9), a_summary(mode="pipelined", busbw_bytes_per_s=4e9)
    [mpi] = facts_of(of_rows(a_document, *rows), HeadlineCode.TRANSPORT)
    assert mpi["busbw_bytes_per_s"] == 4e9, "operations one at a time may look faster on a busy machine"


def test_small_messages_show_no_bandwidth(a_document: Document, a_summary: Make) -> None:
    small = a_summary(mode="pipelined", payload_bytes=8, busbw_bytes_per_s=1e6)
    large = a_summary(payload_bytes=65536, busbw_bytes_per_s=2e9)
    [mpi] = facts_of(of_rows(a_document, small, large), HeadlineCode.TRANSPORT)
    assert mpi["busbw_bytes_per_s"] == 2e9


def test_wrong_and_impossible_figures_are_never_the_best(a_document: Document, a_summary: Make) -> None:
    wrong = a_summary(verified=False, busbw_bytes_per_s=90e9, median_s=1e-9)
    above = a_summary(busbw_bytes_per_s=80e9, median_s=5e-6, flags=(Flag.ABOVE_BOUND,))
    good = a_summary(busbw_bytes_per_s=2e9, median_s=6e-6)
    document = of_rows(a_document, wrong, above, good)
    [mpi] = facts_of(document, HeadlineCode.TRANSPORT)
    assert mpi["busbw_bytes_per_s"] == 2e9
    [trust] = facts_of(document, HeadlineCode.TRUST)
    assert trust["num_wrong"] == 1
    assert advice(document) == HeadlineCode.NEXT_WRONG


def test_the_fastest_and_the_slowest_cold_reads_are_in_the_summary(a_document: Document) -> None:
    def fed(files: str, seconds: float, **more: Any) -> Fed:
        given: dict[str, Any] = {name: None for name in Fed.__dataclass_fields__ if Fed.__dataclass_fields__[name].init}
        known = {"job": files, "files": files, "read_order": "sequential", "state": "cold", "num_workers": 0}
        sizes = {"payload_bytes": 10**9, "record_bytes": 10**6, "num_records": 1000, "num_launches": 1, "num_ranks": 1}
        return Fed(**given | known | sizes | {"seconds": seconds, "gpu_path": ""} | more)

    rows = (
        fed("raw", 2.0, disk_bytes_per_s=0.6e9, demand_bytes_per_s=1e9),
        fed("hdf5", 4.0),
        fed("npy", 0.1, state="warm"),
    )
    [line] = facts_of(replace(a_document, feeds=rows), HeadlineCode.FEED)
    assert (line["files"], line["rate"], line["binds"], line["headroom"]) == ("raw", 0.5e9, "disk", 0.5)
    assert (line["num"], line["slowest_files"], line["slowest"]) == (2, "hdf5", 0.25e9)
    [warm] = facts_of(replace(a_document, feeds=rows[2:]), HeadlineCode.FEED)
    assert (warm["files"], warm["state"]) == ("npy", "warm")
    assert not facts_of(a_document, HeadlineCode.FEED)


def test_trust_counts_what_converged(a_document: Document, a_summary: Make) -> None:
    rows = [a_summary(flags=(Flag.NOT_CONVERGED, Flag.FEW_SAMPLES)), a_summary(flags=(Flag.FEW_SAMPLES,)), a_summary()]
    [trust] = facts_of(of_rows(a_document, *rows), HeadlineCode.TRUST)
    assert (trust["num"], trust["num_converged"], trust["launches"]) == (3, 1, 1)


def test_the_advice_follows_what_is_wrong(a_document: Document, a_summary: Make) -> None:
    row, open_row = a_summary(), a_summary(flags=(Flag.NOT_CONVERGED,))
    expected = {
        HeadlineCode.NEXT_IMPORTED: of_rows(a_document, a_summary(imported=True)),
        HeadlineCode.NEXT_FAILED: replace(of_rows(a_document, row), failures=a_document.failures),
        HeadlineCode.NEXT_MODELLED: of_rows(a_document, a_summary(modelled=True)),
        HeadlineCode.NEXT_OPEN: of_rows(a_document, open_row, open_row, row),
        HeadlineCode.NEXT_SINGLE: of_rows(a_document, open_row, row),
    }
    assert {code: advice(document) for code, document in expected.items()} == {code: code for code in expected}
    assert advice(of_rows(a_document, row), NamedRun("a.jsonl")) == HeadlineCode.NEXT_PUBLISH, "no scenario is known"
    [single] = facts_of(of_rows(a_document, row), HeadlineCode.NEXT_SINGLE)
    assert single["command"] == "linkbench run latency --cluster p4d"


def _use(share: float) -> HostUse:
    """The use of a host of 2 CPUs; other programs used this share."""
    return HostUse("h", 1.0, 2, used_s=1.0 + 2 * share, stolen_s=0.0, limited_s=0.0, ours_s=1.0, num_ranks=2)


def _row(make: Make, use: HostUse) -> Any:
    return make(hosts=(use,), flags=(Flag.BUSY_HOST,) * use.is_busy)


def test_a_busy_machine_comes_first(a_document: Document, a_summary: Make) -> None:
    idle, busy = _row(a_summary, _use(0.02)), _row(a_summary, _use(0.5))
    rows = of_rows(a_document, idle, busy, busy)
    first = headline(rows, RUN)[0]
    assert first.code == HeadlineCode.BUSY
    assert (first.facts["host"], first.facts["num"], first.facts["of"]) == ("h", 2, 3)
    assert first.facts["codes"] == [BusyCause.OTHERS]
    assert advice(rows) == HeadlineCode.NEXT_OPEN
    assert [note.facts["num"] for note in notes.notes(rows) if note.code == NoteCode.BUSY_HOST] == [2]
    most = [a_summary(transport=f"t{number}") for number in range(9)]
    assert len(headline(of_rows(a_document, busy, *most), RUN)) == MOST_LINES


def test_the_busy_programs_are_named(a_document: Document, a_summary: Make) -> None:
    [header] = a_document.headers.values()
    nodes = {"h": {"after": {"programs": [{"name": "stress", "process": 7, "cpus": 1.2}]}}}
    named = replace(a_document, headers={header.job: replace(header, nodes=nodes)})
    assert headline(of_rows(named, _row(a_summary, _use(0.5))), RUN)[0].facts["programs"] == "stress"


def test_an_idle_machine_and_an_unknown_one(a_document: Document, a_summary: Make) -> None:
    idle, busy = _row(a_summary, _use(0.02)), _row(a_summary, _use(0.5))
    rows = {"idle": (idle,), "few": (busy, *[idle] * 99), "unknown": (a_summary(),)}
    trusts = {name: facts_of(of_rows(a_document, *some), HeadlineCode.TRUST)[0] for name, some in rows.items()}
    assert {name: (trust["idle"], trust["load_unknown"]) for name, trust in trusts.items()} == {
        "idle": (True, False),
        "few": (True, False),
        "unknown": (False, True),
    }
    assert not facts_of(of_rows(a_document, *rows["few"]), HeadlineCode.BUSY)


def test_no_command_is_advised_for_rows_without_a_run(a_document: Document) -> None:
    assert headline(a_document)[-1].code == HeadlineCode.TRUST


def test_a_log_names_its_gpus_and_an_unknown_number_of_nodes_is_no_gap(a_document: Document) -> None:
    [(job, header)] = list(a_document.headers.items())[:1]
    told = replace(header, nodes={}, imported={"tool": "x"}, facts={"gpus": "NVIDIA H200"}, num_nodes=1)
    [line, *_] = headline(replace(a_document, headers={job: told}), RUN)
    assert line.facts["each"] == "NVIDIA H200" and not line.facts["nodes_unknown"]
    unknown = replace(told, num_nodes=None, instance="p5.48xlarge", facts={})
    [line, *_] = headline(replace(a_document, headers={job: unknown}), RUN)
    assert line.facts["nodes_unknown"] and "; ," not in line.text and line.text.count("p5.48xlarge") == 1


def test_the_summary_is_short(a_document: Document, a_summary: Make) -> None:
    rows = [a_summary(transport=f"t{number}") for number in range(9)]
    lines = headline(of_rows(a_document, *rows), RUN)
    assert len(lines) == MOST_LINES
    [more] = [line.facts for line in lines if line.code == HeadlineCode.MORE_TRANSPORTS]
    assert (more["num"], more["transports"]) == (5, ["t4", "t5", "t6", "t7", "t8"])


def test_a_run_without_a_row_or_a_job(a_document: Document) -> None:
    assert headline(replace(a_document, headers={}, summaries=()), RUN) == []
    without_rows = replace(a_document, summaries=(), failures=())
    assert [line.code for line in headline(without_rows, RUN)] == [HeadlineCode.MACHINE]


def test_a_run_of_training_steps_shows_the_fastest_step_and_no_latency() -> None:
    document = collect.document(REFERENCE / "step_2cpu-vm_2026-11-27")
    [step] = facts_of(document, HeadlineCode.STEP)
    assert step["num"] == 4 and step["num_late"] == 1 and step["step_s"] == min(one.step_s for one in document.steps)
    assert not facts_of(document, HeadlineCode.TRANSPORT)
    assert all(row.floor_s is None for row in document.summaries)


def test_the_best_figures_of_several_launches_are_those_of_the_middle_launch(
    a_document: Document, a_header: Make, a_summary: Make
) -> None:
    rates = {"j": 3e9, "j-launch2": 9e9, "j-launch3": 4e9, "j-launch4": 1e9}
    headers = {job: a_header(launch=launch) for launch, job in enumerate(rates, 1)}
    rows = [a_summary(job=job, busbw_bytes_per_s=rate, median_s=1 / rate) for job, rate in rates.items()]
    document = replace(of_rows(a_document, *rows), headers=headers)
    for num, busbw in ((1, 3e9), (3, 4e9), (4, 3e9)):
        [mpi] = facts_of(replace(document, summaries=tuple(rows[:num])), HeadlineCode.TRANSPORT)
        assert (mpi["busbw_bytes_per_s"], mpi["latency_s"]) == (busbw, 1 / busbw)
    without_time = replace(rows[3], median_s=None, busbw_bytes_per_s=None, flags=(Flag.BAD_SAMPLES,))
    impossible = replace(rows[2], flags=(Flag.ABOVE_BOUND,))
    document = replace(document, summaries=(rows[0], rows[1], impossible, without_time))
    [mpi] = facts_of(document, HeadlineCode.TRANSPORT)
    assert mpi["busbw_bytes_per_s"] == 3e9, "launches without a valid rate have no say"
