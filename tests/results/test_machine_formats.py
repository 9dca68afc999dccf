"""JSON, CSV and Markdown: the promised keys, strict syntax, and nothing shown that must not be."""

from __future__ import annotations

import csv as standard_csv
import io
import json as standard_json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from bench.core import plugins
from bench.results.document import Document, Summary
from bench.results.formats import csv, json, markdown
from bench.results.run_report import RunReport

Make = Callable[..., Any]

PROMISED = [
    "job",
    "pattern",
    "transport",
    "mode",
    "dtype",
    "reduce_op",
    "root",
    "in_place",
    "direction",
    "group",
    "src",
    "dst",
    "requested_bytes",
    "payload_bytes",
    "num_ranks",
    "num_nodes",
    "num_samples",
    "median_s",
    "ci_low_s",
    "ci_high_s",
    "p95_s",
    "algbw_bytes_per_s",
    "busbw_bytes_per_s",
    "bound_bytes_per_s",
    "bound_name",
    "bound_kind",
    "bound_fraction",
    "verified",
    "modelled",
    "flags",
]


def strictly(text: str) -> Any:
    """JSON without Python's own NaN and Infinity."""

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is no JSON")

    return standard_json.loads(text, parse_constant=refuse)


def test_json_is_one_document_with_the_promised_keys(a_document: Document) -> None:
    read = strictly(json.render(RunReport(a_document)))
    promised = ["schema", "headers", "summaries", "skipped", "failures", "notes"]
    derived = ["spreads", "fits", "conflicts", "parities", "scalings", "interferences"]
    assert list(read) == [
        *promised,
        *derived,
        "sharings",
        "overlaps",
        "replays",
        "feeds",
        "steps",
        "step_scalings",
        "checkpoints",
        "unplanned",
        "standings",
        "summary",
        "note_codes",
    ]
    assert read["notes"] == ["one launch"] and read["note_codes"] == [{"code": "uncoded", "facts": {}}]
    assert read["schema"] == "bench.document/1"
    assert read["headers"]["allreduce-mpi"]["num_ranks"] == 4
    assert set(PROMISED) <= set(read["summaries"][0])
    assert set(read["summaries"][0]) == {field.name for field in fields(Summary)}
    assert read["skipped"][0]["reason"] == "buffers do not fit in memory"
    assert read["failures"][0]["rank"] == 3


def test_json_says_numbers_as_numbers_and_unknown_as_null(a_document: Document) -> None:
    first = strictly(json.render(RunReport(a_document)))["summaries"][0]
    assert (first["median_s"], first["p95_s"], first["verified"]) == (5.125e-6, None, True)
    assert (first["also_requested_bytes"], first["flags"]) == ([16], ["few-samples"])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_format_prints_a_number_that_is_none(a_document: Document, a_header: Make, value: float) -> None:
    row = replace(a_document.summaries[0], median_s=value)
    headers = {"allreduce-mpi": a_header(calibration={"memcpy_bytes_per_s": value})}
    document = replace(a_document, summaries=(row,), headers=headers)
    read = strictly(json.render(RunReport(document)))
    assert read["summaries"][0]["median_s"] is None
    assert read["headers"]["allreduce-mpi"]["calibration"] == {"memcpy_bytes_per_s": None}
    assert next(standard_csv.DictReader(io.StringIO(csv.render(RunReport(document)))))["median_s"] == ""


def test_csv_has_a_line_for_each_figure_and_reads_back(a_document: Document) -> None:
    rows = list(standard_csv.DictReader(io.StringIO(csv.render(RunReport(a_document)))))
    assert len(rows) == len(a_document.summaries)
    assert set(PROMISED) <= set(rows[0])
    assert float(rows[2]["median_s"]) == 125e-6
    assert (rows[0]["ci_low_s"], rows[0]["verified"], rows[0]["also_requested_bytes"]) == ("", "true", "16")
    assert rows[2]["flags"] == "not-converged;outliers"
    assert rows[5]["busbw_bytes_per_s"] == "" and rows[5]["verified"] == "false"


def test_markdown_keeps_the_modes_apart_and_names_what_is_missing(a_document: Document) -> None:
    text = markdown.render(RunReport(a_document, all_notes=True))
    isolated, pipelined = text.split("\npipelined:\n")
    assert "busbw" not in isolated and "p95" not in pipelined.split("Notes")[0]
    for words in ("INVALID", "not-converged", "NIC", "buffers do not fit", "FAILED", "one launch"):
        assert words in text


def test_markdown_tables_have_the_same_number_of_cells_in_every_line(a_document: Document, a_summary: Make) -> None:
    rows = (a_summary(group="a|b"), a_summary(group="0-1"))
    lines = [
        line for line in markdown.render(RunReport(replace(a_document, summaries=rows))).splitlines() if line[:1] == "|"
    ]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


@pytest.mark.parametrize("name", plugins.names("format"))
def test_every_format_prints_a_document_with_nothing_in_it(name: str) -> None:
    text = plugins.load("format", name).render(RunReport(Document("bench.document/1", {}, ())))
    assert text.endswith("\n") and text.count("\n\n\n") == 0


@pytest.mark.parametrize("name", plugins.names("format"))
def test_every_format_shows_no_bandwidth_of_wrong_data(a_document: Document, name: str) -> None:
    wrong = replace(a_document.summaries[5], algbw_bytes_per_s=None, busbw_bytes_per_s=None)
    text = plugins.load("format", name).render(RunReport(replace(a_document, summaries=(wrong,))))
    assert "12.00" not in text and "8.000" not in text and "12000000000" not in text
    assert "invalid" in text.lower()


@pytest.mark.parametrize("name", plugins.names("format"))
def test_every_format_says_that_a_figure_is_modelled(a_document: Document, a_summary: Make, name: str) -> None:
    row = a_summary(modelled=True, verified=None, num_wrong=None, flags=("modelled",))
    assert "modelled" in plugins.load("format", name).render(RunReport(replace(a_document, summaries=(row,))))
