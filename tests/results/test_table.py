"""The table: the exact text of a small run, and what every table keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.core.record import Flag
from bench.results import notes
from bench.results import text as results_text
from bench.results.document import Document
from bench.results.formats import table
from bench.results.messages import NoteCode
from bench.results.run_report import LiveTable, RunReport
from bench.results.run_table import Layout, RunTable, group_names

Make = Callable[..., Any]



def printed(document: Document) -> str:
    return table.render(RunReport(document))


def rows_of(text: str) -> list[list[str]]:
    """The cells of every line that is no comment."""
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


def codes(document: Document) -> list[str]:
    return [note.code for note in notes.notes(document, {})]


GOLDEN = (Path(__file__).parent / "small_run.txt").read_text(encoding="utf-8")


def test_a_small_run_prints_exactly_this(a_document: Document) -> None:
    assert printed(a_document) == GOLDEN


def test_a_rank_prints_the_same_lines_as_they_come(a_document: Document) -> None:
    stream = LiveTable(Layout(("isolated", "pipelined")))
    rows = a_document.summaries
    header = a_document.headers["allreduce-mpi"]
    lines = [stream.before(header), stream.rows(rows[:2]), stream.rows(rows[2:4]), stream.rows(rows[4:])]
    lines.append(stream.after(a_document))
    assert "\n".join(lines).split("\n") == [line for line in GOLDEN.split("\n") if line]


def test_a_run_of_one_mode_leaves_the_other_columns_out(a_document: Document) -> None:
    rows = tuple(row for row in a_document.summaries if row.mode == "isolated")
    text = printed(replace(a_document, summaries=rows))
    assert "busbw" not in text.split("#wrong")[0].rsplit("\n", 2)[-1]
    assert "ci95" in text
    assert any(row.bound_name for row in rows) and "# a " not in text, "no column holds the letter"


def test_a_mode_that_is_missing_at_one_size_is_a_dash(a_document: Document) -> None:
    text = printed(replace(a_document, summaries=a_document.summaries[:3]))
    last = next(line for line in text.splitlines() if line.split()[:1] == [str(1 << 20)])
    assert last.split()[8:] == ["4.000", "*", "-", "-", "-", "-", "0"]


def test_groups_have_a_column_only_when_there_are_several(a_document: Document, a_summary: Make) -> None:
    groups = tuple(a_summary(group=name, src=0, dst=1) for name in ("0-1", "254-255"))
    text = printed(replace(a_document, summaries=groups))
    assert " group " in text and " 254-255 " in text
    assert " group " not in GOLDEN


def test_the_longest_group_stands_apart_from_its_size(a_document: Document, a_summary: Make) -> None:
    groups = ("screen0:0-8", "confirm12:1022-1023", "1022-1023")
    rows = tuple(a_summary(group=name, src=0, dst=1, payload_bytes=4 << 20) for name in groups)
    text = printed(replace(a_document, summaries=rows))
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line.split()[:2] for line in lines] == [["4194304", name] for name in groups]
    assert len({line.index("float32") for line in lines}) == 1
    assert max(map(len, text.splitlines())) <= 130


def test_a_row_that_was_measured_again_is_shown_once_and_wrong_data_are_never_hidden(
    a_document: Document, a_summary: Make
) -> None:
    half, again = a_summary(median_s=1e-3), (a_summary(median_s=2e-3), a_summary(mode="pipelined"))
    text = printed(replace(a_document, summaries=(half, *again)))
    [line] = [line for line in text.splitlines() if not line.startswith("#")]
    assert line.split()[5] == "2000" and "1 row was measured again" in text
    wrong = replace(half, verified=False, num_wrong=3, flags=("invalid",))
    text = printed(replace(a_document, summaries=(wrong, *again)))
    assert len([line for line in text.splitlines() if not line.startswith("#")]) == 2 and "INVALID" in text
    assert "measured again" not in text
    logged = tuple(replace(row, imported=True) for row in (half, *again))
    assert "measured again" not in printed(replace(a_document, summaries=logged))


def test_modelled_rows_and_their_head_carry_the_word(a_document: Document, a_summary: Make, a_header: Make) -> None:
    row = a_summary(modelled=True, verified=None, num_wrong=None, flags=("modelled",))
    header = a_header(job="allreduce-mpi", modelled=True, instance="p4d.24xlarge")
    text = printed(replace(a_document, summaries=(row,), headers={"allreduce-mpi": header}))
    assert text.count("modelled") == 1 and "MODELLED: nothing was measured" in text
    assert next(line for line in text.splitlines() if not line.startswith("#")).endswith(" modelled")


def test_several_bounds_have_letters_of_their_own(a_document: Document, a_summary: Make) -> None:
    rows = (
        a_summary(mode="pipelined"),
        a_summary(
            mode="pipelined",
            payload_bytes=8,
            bound_name="memcpy",
            bound_kind="reference",
            bound_bytes_per_s=20e9,
            bound_fraction=1.1,
        ),
    )
    text = printed(replace(a_document, summaries=rows))
    assert " 96.0a" in text and " 110.0b" in text
    assert "# a  12.50 GB/s of busbw: NIC (hard bound)" in text
    assert "# b  20.00 GB/s of busbw: memcpy (reference, not a limit)" in text


def test_every_line_fits_in_130_characters(a_document: Document, a_summary: Make) -> None:
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
    text = printed(replace(a_document, summaries=rows, notes=("word " * 60,)))
    widths = [len(line) for line in text.splitlines()]
    assert max(widths) <= 130
    assert all(line.startswith(("#", " ")) for line in text.splitlines() if line)


def test_jobs_have_headings_and_their_own_rows(a_document: Document, a_summary: Make, a_header: Make) -> None:
    second = a_header(job="alltoall-gloo", pattern="alltoall", transport="gloo")
    document = replace(
        a_document,
        headers={**a_document.headers, "alltoall-gloo": second},
        summaries=(*a_document.summaries, a_summary(job="alltoall-gloo", payload_bytes=4096)),
    )
    text = printed(document)
    first, second_line = "# allreduce over mpi, 4 ranks on 2 nodes [allreduce-mpi]", "# alltoall over gloo"
    assert text.index(first) < text.index(second_line) < text.index(" 4096 ")
    assert text.count("algbw") == 1, "one table, its columns titled once"
    assert text.count("one launch") == 1


def test_a_job_that_never_started_is_still_told() -> None:
    skipped = {"job": "pairs-nccl", "pattern": "pairs", "transport": "nccl", "reason": "no GPU was found"}
    document = Document("bench.document/1", {}, (), skipped=(skipped,))
    assert printed(document) == "# nothing was measured\n# skipped pairs over nccl: no GPU was found\n"


def test_a_failure_names_its_rank_and_host_once() -> None:
    failure = {"job": "allreduce-mpi-2x1", "pattern": "allreduce", "rank": 2, "host": "h1"}
    [line] = notes.failure_lines([{**failure, "what": "rank 2 on h1 was killed"}])
    assert line.count("rank 2") == line.count("h1") == 1
    [line] = notes.failure_lines([{**failure, "what": "it was killed"}])
    assert "on rank 2 (h1): it was killed" in line


def test_the_gpus_of_a_run_stand_above_its_figures(a_header: Make) -> None:
    gpu = {"name": "NVIDIA H200"}
    nodes = {host: {"host": host, "gpus": [gpu, gpu], "gpu_driver": "580.1"} for host in ("a", "b")}
    told = dict(results_text.facts(a_header(nodes=nodes, facts={"gpu": "NVIDIA H200"})))
    assert told["gpus"] == "4 x NVIDIA H200, driver 580.1"
    assert (
        dict(results_text.facts(a_header(facts={"gpu": "NVIDIA H200"})))["gpus"] == "NVIDIA H200"
    )  # CUDA without NVML
    assert "gpus" not in dict(results_text.facts(a_header()))
