"""`bench report` of a modelled job: ideal figures and expectations in JSON, CSV, the page and the rank's own table."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.rank import main as rank

CASE = ("--transport", "model", "--instance", "p4d.24xlarge", "--nodes", "1", "--sizes", "8,1G", "--mode", "pipelined")
KEYS = ("expected_busbw_low_bytes_per_s", "expected_busbw_bytes_per_s", "expected_busbw_high_bytes_per_s")

Out = pytest.CaptureFixture[str]


@pytest.fixture
def job(tmp_path: Path, capsys: Out) -> Path:
    """Return the results file of a modelled allreduce."""
    path = tmp_path / "allreduce.jsonl"
    with pytest.raises(SystemExit) as ended:
        rank.run_pattern("allreduce", [*CASE, "--records", str(path)])
    assert ended.value.code == 0
    titles = next(line for line in capsys.readouterr().out.splitlines() if " size " in line)
    assert "ideal busbw" in titles and "expected" not in titles, "a job computes no expectations"
    return path


def test_json_and_csv_have_both_figures(job: Path, capsys: Out) -> None:
    assert main(["report", str(job), "--format", "json"]) == 0
    row = json.loads(capsys.readouterr().out)["summaries"][1]
    low, middle, high = (row[key] for key in KEYS)
    assert low < middle < high < row["busbw_bytes_per_s"]
    assert (row["expected_basis"], row["not_expected"], row["modelled"]) == ("published", None, True)
    assert main(["report", str(job), "--format", "csv"]) == 0
    line = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))[1]
    assert [float(line[key]) for key in KEYS] == [low, middle, high]


def test_the_page_keeps_the_expectations(job: Path, capsys: Out, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(job), "--html", str(page)]) == 0
    capsys.readouterr()
    shown = []
    for path in (job, page):
        assert main(["report", str(path), "--format", "json"]) == 0
        shown.append(json.loads(capsys.readouterr().out)["summaries"])
    assert shown[0] == shown[1]
    assert "expected busbw" in page.read_text(encoding="utf-8")
