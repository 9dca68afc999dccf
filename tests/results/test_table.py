"""The page of a run: golden texts, the columns, lines that are merged, and the ten lines below."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.core.codes import Coded
from bench.core.record import Flag
from bench.core.wrapping import PIPED_WIDTH, wrapped
from bench.results import notes
from bench.results import text as results_text
from bench.results.document import Conflict, Document
from bench.results.formats import markdown, table
from bench.results.messages import NoteCode
from bench.results.run_report import LiveTable, RunReport
from bench.results.run_table import Layout, group_names
from tests.facts import holds

Make = Callable[..., Any]
HERE = Path(__file__).parent
GOLDEN = (HERE / "small_run.txt").read_text(encoding="utf-8")


def printed(document: Document, all_notes: bool = False) -> str:
    return table.render(RunReport(document, all_notes=all_notes))


def rows_of(text: str) -> list[list[str]]:
    """The cells of every line that is no comment."""
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


def below(text: str) -> list[str]:
    """The lines after the last row."""
    lines = text.splitlines()
    last = max((number for number, line in enumerate(lines) if not line.startswith("#")), default=-1)
    return lines[last + 1 :]


def codes(document: Document) -> list[str]:
    return [note.code for note in notes.notes(document)]


def test_a_small_run_prints_exactly_this(a_document: Document) -> None:
    assert printed(a_document) == GOLDEN


def test_a_small_run_prints_exactly_this_with_all_notes(a_document: Document) -> None:
    assert printed(a_document, all_notes=True) == (HERE / "small_run_notes.txt").read_text(encoding="utf-8")


def test_a_small_run_is_exactly_this_in_markdown(a_document: Document) -> None:
    assert markdown.render(RunReport(a_document)) == (HERE / "small_run.md").read_text(encoding="utf-8")


def test_a_rank_prints_the_same_lines_as_they_come(a_document: Document) -> None:
    stream = LiveTable(Layout(("isolated", "pipelined")))
    rows = a_document.summaries
    header = a_document.headers["allreduce-mpi"]
    lines = [stream.before(header), stream.rows(rows[:2]), stream.rows(rows[2:4]), stream.rows(rows[4:])]
    lines.append(stream.after(a_document))
    whole = [line for line in GOLDEN.split("\n") if line and "left out" not in line]  # by other words
    facts = whole[next(number for number, line in enumerate(whole) if line.startswith("# pattern")) :]
    assert [line for line in "\n".join(lines).split("\n") if "left out" not in line] == facts


def test_a_run_of_one_mode_leaves_the_other_columns_out(a_document: Document) -> None:
    rows = tuple(row for row in a_document.summaries if row.mode == "isolated")
    text = printed(replace(a_document, summaries=rows))
    assert "busbw" not in text.split("#wrong")[0].rsplit("\n", 2)[-1]
    assert "ci95" in text
    assert any(row.bound_name for row in rows) and "# a " not in text, "no column shows the letter"


def test_a_mode_that_is_missing_at_one_size_is_a_dash(a_document: Document) -> None:
    report = RunReport(replace(a_document, summaries=a_document.summaries[:3]), ("wide",))
    last = rows_of(table.render(report))[-1]
    assert last[0] == str(1 << 20) and last[8:] == ["4.000", "*", "-", "-", "-", "-", "0"]


def test_groups_have_a_column_only_when_there_are_several(a_document: Document, a_summary: Make) -> None:
    groups = tuple(a_summary(group=name, median_s=seconds) for name, seconds in (("0-1", 1e-4), ("254-255", 2e-4)))
    text = printed(replace(a_document, summaries=groups))
    assert " group " in text and [row[1] for row in rows_of(text)] == ["0-1", "254-255"]
    assert " group " not in GOLDEN


def test_a_long_group_has_a_column_that_holds_it(a_document: Document, a_summary: Make) -> None:
    groups = ("screen0:0-8", "confirm12:1022-1023", "1022-1023")
    rows = [
        a_summary(group=name, payload_bytes=4 << 20, median_s=1e-4 * number) for number, name in enumerate(groups, 1)
    ]
    text = printed(replace(a_document, summaries=tuple(rows)))
    assert [row[:2] for row in rows_of(text)] == [["4194304", name] for name in groups]
    assert len({line.index("float32") for line in text.splitlines() if not line.startswith("#")}) == 1
    assert max(map(len, text.splitlines())) <= PIPED_WIDTH


def test_groups_that_show_the_same_figures_are_one_line(a_document: Document, a_summary: Make) -> None:
    rails = [a_summary(group=f"rail{k}", payload_bytes=size) for size in (8, 64) for k in range(8)]
    odd = replace(rails[-1], median_s=1.0)
    text = printed(replace(a_document, summaries=(*rails[:-1], odd)))
    assert [row[:2] for row in rows_of(text)] == [["8", "rail0..7"], ["64", "rail0..6"], ["64", "rail7"]]


@pytest.mark.parametrize(
    ("groups", "name"),
    [
        (("world",), "world"),
        (("rail0", "rail1", "rail2"), "rail0..2"),
        (("rail0", "rail2"), "rail0 +1"),
        (("0-1", "0-2", "0-3"), "0-1..3"),
        (("0-1", "1-2"), "0-1 +1"),
    ],
)
def test_the_name_of_several_groups(groups: tuple[str, ...], name: str) -> None:
    assert group_names(groups) == name


def test_a_row_that_was_measured_again_is_shown_once_and_wrong_data_are_never_hidden(
    a_document: Document, a_summary: Make
) -> None:
    half, again = a_summary(median_s=1e-3), (a_summary(median_s=2e-3), a_summary(mode="pipelined"))
    document = replace(a_document, summaries=(half, *again))
    [row] = rows_of(printed(document))
    assert "2000" in row and "1000" not in row and NoteCode.REPEATED in codes(document)
    wrong = replace(document, summaries=(replace(half, verified=False, num_wrong=3, flags=("invalid",)), *again))
    assert len(rows_of(printed(wrong))) == 2 and NoteCode.INVALID in codes(wrong)
    assert NoteCode.REPEATED not in codes(wrong)
    logged = replace(document, summaries=tuple(replace(row, imported=True) for row in (half, *again)))
    assert NoteCode.REPEATED not in codes(logged)


def test_modelled_rows_and_their_head_carry_the_word(a_document: Document, a_summary: Make, a_header: Make) -> None:
    row = a_summary(modelled=True, verified=None, num_wrong=None, flags=("modelled",))
    header = a_header(job="allreduce-mpi", modelled=True, instance="p4d.24xlarge")
    text = printed(replace(a_document, summaries=(row,), headers={"allreduce-mpi": header}))
    assert "# MODELLED: " in text and rows_of(text)[0][-1] == "modelled"


def test_several_bounds_have_letters_of_their_own(a_document: Document, a_summary: Make) -> None:
    memcpy = {"bound_name": "memcpy", "bound_kind": "reference", "bound_bytes_per_s": 20e9, "bound_fraction": 1.1}
    rows = (a_summary(mode="pipelined"), a_summary(mode="pipelined", payload_bytes=8, **memcpy))
    document = replace(a_document, summaries=rows)
    report = RunReport(document)
    text = table.render(report)
    assert " 96.0a" in text and " 110.0b" in text
    lines = text.splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith(" "))
    assert ["a:" in lines[last + 1], "b:" in lines[last + 2]] == [True, True], "directly below the rows"
    bounds = [note for note in notes.legend(document, report.table_of_rows.letters) if note.code == NoteCode.BOUND]
    assert [(note.facts["letter"], note.facts["name"], note.facts["rate"]) for note in bounds] == [
        ("a", "NIC", "12.50"),
        ("b", "memcpy", "20.00"),
    ]


def test_every_line_fits_in_a_pipe(a_document: Document, a_summary: Make) -> None:
    long = a_summary(
        payload_bytes=1 << 34,
        dtype="float8_e4m3fn",
        root=1023,
        group="254-255",
        median_s=5.2,
        ci_low_s=5.1,
        ci_high_s=5.3,
        p95_s=5.9,
        flags=("above-bound", "not-converged"),
        modelled=True,
        verified=None,
        algbw_bytes_per_s=1234.5e9,
        busbw_bytes_per_s=2345.6e9,
        bound_fraction=1.2345,
    )
    rows = (long, replace(long, mode="pipelined"), a_summary())
    text = printed(replace(a_document, summaries=rows, notes=(Coded.uncoded("word " * 60),)))
    widths = [len(line) for line in text.splitlines()]
    assert max(widths) <= PIPED_WIDTH
    assert all(line.startswith(("#", " ")) for line in text.splitlines() if line)


def test_notes_are_whole_or_counted(a_document: Document) -> None:
    words = [" ".join([f"w{number}", *["word"] * 60]) for number in range(40)]
    document = replace(a_document, notes=tuple(map(Coded.uncoded, words)), skipped=(), failures=())
    found = notes.notes(document)
    shown = notes.brief(found)
    assert sum(len(wrapped(line, PIPED_WIDTH - 2, "    ")) for line in shown) <= notes.TEN
    assert str(len(words)) in " ".join(shown), "the warnings are counted"
    assert not [line for line in shown if line.endswith("...")]
    [one] = notes.brief([Coded.uncoded(" ".join(["word"] * 600))])
    assert one.count("word") == 600, "the most urgent note is never left out"


def test_jobs_have_headings_and_their_own_rows(a_document: Document, a_summary: Make, a_header: Make) -> None:
    second = a_header(job="alltoall-gloo", pattern="alltoall", transport="gloo")
    document = replace(
        a_document,
        headers={**a_document.headers, "alltoall-gloo": second},
        summaries=(*a_document.summaries, a_summary(job="alltoall-gloo", payload_bytes=4096)),
    )
    text = printed(document)
    assert text.index("[allreduce-mpi]") < text.index("[alltoall-gloo]") < text.index(" 4096 ")
    assert text.count("algbw") == 1, "one table, its columns titled once"


def test_a_job_that_never_started_is_a_note() -> None:
    skipped = {"job": "pairs-nccl", "pattern": "pairs", "transport": "nccl", "reason": "no GPU was found"}
    document = Document("bench.document/1", {}, (), skipped=(skipped,))
    assert codes(document) == [NoteCode.NOTHING_MEASURED, NoteCode.SKIPPED]
    assert not rows_of(printed(document))


def test_a_failure_names_its_rank_and_host_once() -> None:
    failure = {"job": "allreduce-mpi-2x1", "pattern": "allreduce", "rank": 2, "host": "h1"}
    [note] = notes.failures([{**failure, "what": "rank 2 on h1 was killed", "facts": {"rank": 2, "host": "h1"}}])
    assert note.text.count("rank 2") == note.text.count("h1") == 1
    [note] = notes.failures([{**failure, "what": "it was killed"}])
    assert holds(note.facts["row"], "allreduce", "rank 2", "(h1)")


# --- quiet: at most ten lines below the rows ---


def troubled(a_document: Document, num: int) -> Document:
    """A document with `num` of everything that can go wrong."""
    row = {"job": "allreduce-mpi", "pattern": "allreduce", "payload_bytes": 8, "mode": "isolated"}
    conflicts = [Conflict(f"rule {k}", f"sentence {k}", row, row, 2.0, "some-code") for k in range(num)]
    skipped = [{**row, "reason": f"reason {k}", "requested_bytes": 8} for k in range(num)]
    failures = [{**row, "what": f"the reason of failure {k}, which is as long as reasons are" * 3} for k in range(num)]
    flags = tuple(Flag(flag) for flag in Flag if flag != Flag.INVALID)
    rows = tuple(replace(row, flags=(*row.flags, *flags)) for row in a_document.summaries)
    return replace(
        a_document,
        summaries=rows,
        conflicts=tuple(conflicts),
        skipped=tuple(skipped),
        failures=tuple(failures),
        notes=tuple(Coded.uncoded(f"warning {k}") for k in range(num)),
    )


@pytest.mark.parametrize("num", [0, 1, 2, 13])
def test_at_most_ten_lines_are_below_the_rows(a_document: Document, num: int) -> None:
    lines = below(printed(troubled(a_document, num)))
    assert len(lines) <= 10 and all(len(line) <= PIPED_WIDTH for line in lines)
    legend = " ".join(lines)
    assert all(f"{mark} " in legend for mark in "!*?~m") and holds(legend, "a:", "12.50 GB/s")


def test_contradictions_are_counted_and_listed_on_request(a_document: Document) -> None:
    document = troubled(a_document, 13)
    assert any(re.match(r"# 13 contradictions ", line) for line in below(printed(document)))
    assert sum("CONTRADICTION" in line for line in below(printed(document, all_notes=True))) == 13


def test_what_went_wrong_comes_first(a_document: Document) -> None:
    document = troubled(a_document, 1)
    first = notes.brief(notes.notes(document))[:2]
    assert first[0].startswith("INVALID") and first[1].startswith("FAILED")


def test_the_last_line_counts_what_waits_for_notes(a_document: Document) -> None:
    last = below(GOLDEN)[-1]
    assert last.startswith("# more (--notes): ") and "outliers" in last


def test_the_gpus_of_a_run_are_above_its_figures(a_header: Make) -> None:
    gpu = {"name": "NVIDIA H200"}
    nodes = {host: {"host": host, "gpus": [gpu, gpu], "gpu_driver": "580.1"} for host in ("a", "b")}
    told = dict(results_text.facts(a_header(nodes=nodes, facts={"gpu": "NVIDIA H200"})))
    assert told["gpus"].split(", ") == ["4 x NVIDIA H200", "driver 580.1"]
    assert (
        dict(results_text.facts(a_header(facts={"gpu": "NVIDIA H200"})))["gpus"] == "NVIDIA H200"
    )  # CUDA without NVML
    assert "gpus" not in dict(results_text.facts(a_header()))
