"""`linkbench fit` in process, on the results that the project keeps and on written files."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.core.record import Samples
from bench.core.units import format_bytes
from bench.store import jsonl
from tests.facts import holds

ROOT = Path(__file__).resolve().parent.parent.parent
[REFERENCE] = (ROOT / "results" / "reference").glob("main_*")
SIZES = tuple(8 << power for power in range(22))

Make = Callable[..., Any]
Out = pytest.CaptureFixture[str]


@pytest.fixture
def written(tmp_path: Path, a_header: Make, a_record: Make) -> Callable[..., Path]:
    """`written(times, **header)`: a results file with a row for each size and its seconds."""

    def write(times: dict[int, float], name: str = "job", **header: Any) -> Path:
        path = tmp_path / f"{name}.jsonl"
        writer = jsonl.Writer(path, a_header(job=name, **header))
        for size, seconds in times.items():
            writer.append(a_record(payload_bytes=size, requested_bytes=(size,), samples=Samples((seconds,) * 30)))
        return path

    return write


def line(latency: float = 3e-6, rate: float = 8e9) -> dict[int, float]:
    return {size: latency + size / rate for size in SIZES}


def test_the_table_has_a_row_for_each_piece_and_a_line_for_each_curve_that_does_not_fit(capsys: Out) -> None:
    assert main(["fit", str(REFERENCE)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if not line.startswith("#")]
    assert sum("no headline" in line for line in lines) == 4 and not any("no headline" in row for row in rows)
    # Ping-pong over MPI has two pieces on any machine: short messages and long ones go different ways.
    assert any(re.match(r"  isolated   8\.\.4K +\d\.\d+ \[\d\.\d+\.\.\d\.\d+\] ", row) for row in rows)
    assert any(line.startswith("# ") and "[pingpong-mpi-1x2]" in line for line in lines)
    assert max(map(len, lines)) <= 130


def test_json_and_csv_have_the_same_pieces_in_si_units(capsys: Out) -> None:
    assert main(["fit", str(REFERENCE), "--format", "json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["schema"] == "bench.fit/1" and read["not_fitted"] == []
    assert main(["fit", str(REFERENCE), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    pieces = [piece for fit in read["fits"] if fit["fits"] for piece in fit["segments"]]
    told = [row for row in rows if row["fits"] == "true"]
    assert [float(row["latency_s"]) for row in told] == [piece["latency_s"] for piece in pieces]
    assert len(rows) - len(told) == sum(not fit["fits"] for fit in read["fits"]) > 0
    assert all(row["latency_s"] == "" and float(row["max_residual"]) > 0.15 for row in rows if row["fits"] == "false")
    assert {fit["intervals_over"] for fit in read["fits"]} == {"residuals"}


def test_a_known_line_is_printed_with_its_headline(
    written: Callable[..., Path], capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["fit", str(written(line()))]) == 0
    [row] = [line.split() for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert row[:6] == ["isolated", "8..16M", "3.000", "[3.000..3.000]", "8.000", "[8.000..8.000]"]
    assert " ".join(row[6:]) == f"{format_bytes(24000)} [23.4 KiB..23.4 KiB] 256 KiB 0.0"


def test_markdown_has_the_same_cells(written: Callable[..., Path], capsys: Out) -> None:
    assert main(["fit", str(written(line())), "--format", "markdown"]) == 0
    assert "| isolated | 8..16M | 3.000 [3.000..3.000] | 8.000 [8.000..8.000] |" in capsys.readouterr().out


def test_launches_of_a_run_are_fitted_together(written: Callable[..., Path], capsys: Out, tmp_path: Path) -> None:
    for launch in (1, 2, 3):
        times = {size: seconds * (0.98 + 0.01 * launch) for size, seconds in line().items()}
        written(times, name="job" if launch == 1 else f"job-launch{launch}", launch=launch)
    (tmp_path / "run").mkdir()
    for file in tmp_path.glob("*.jsonl"):
        file.rename(tmp_path / "run" / file.name)
    assert main(["fit", str(tmp_path / "run")]) == 0
    text = capsys.readouterr().out
    assert text.count("isolated  8") == 1
    assert main(["fit", str(tmp_path / "run"), "--format", "json"]) == 0
    [fit] = json.loads(capsys.readouterr().out)["fits"]
    assert (fit["num_launches"], fit["intervals_over"]) == (3, "launches")


def test_modelled_times_say_so(written: Callable[..., Path], capsys: Out) -> None:
    path = written(line(), modelled=True, clock="virtual")
    for form in ("table", "markdown"):
        assert main(["fit", str(path), "--format", form]) == 0
        assert "modelled" in capsys.readouterr().out
    assert main(["fit", str(path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"][0]["modelled"] is True


def test_curves_of_too_few_sizes_are_named(written: Callable[..., Path], capsys: Out, a_record: Make) -> None:
    path = written(line())
    writer = jsonl.Writer(path, jsonl.read(path).attempts[0].header)
    for size in (8, 64):
        writer.append(a_record(mode="pipelined", payload_bytes=size, requested_bytes=(size,)))
    assert main(["fit", str(path)]) == 0
    assert holds(capsys.readouterr().out, "# no model", "job,", "pipelined:")
    assert main(["fit", str(path), "--format", "json"]) == 0
    [left_out] = json.loads(capsys.readouterr().out)["not_fitted"]
    assert (left_out["mode"], left_out["num_sizes"]) == ("pipelined", 2)
    assert (left_out["reason_code"], left_out["facts"]) == ("few-sizes", {"num": 2, "least": 4})


def test_a_run_without_any_curve_is_refused_in_one_sentence(written: Callable[..., Path], capsys: Out) -> None:
    path = written({8: 1e-6, 64: 1e-6, 512: 2e-6})
    assert main(["fit", str(path)]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    assert holds(told.err, "4 sizes") and "job.jsonl" in told.err
