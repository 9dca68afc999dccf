"""`linkbench compare` in process, on prepared results files and on the results that the project keeps."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.__main__ import main
from bench.core.record import Samples
from bench.store import jsonl, runs
from tests.facts import holds, whole_plan

ROOT = Path(__file__).resolve().parent.parent.parent
[REFERENCE] = (ROOT / "results" / "reference").glob("main_*")
SIZES = (64, 1024, 65536)

Out = pytest.CaptureFixture[str]
Make = Callable[..., Any]


@pytest.fixture
def a_run(tmp_path: Path, a_header: Make, a_record: Make) -> Make:
    """`a_run("base", factor=1.1)`: a run of 5 launches, 3 sizes, both modes in tmp_path, its times multiplied."""

    def make(
        name: str,
        num_launches: int = 5,
        factor: float = 1.0,
        sigma: float = 0.01,
        seed: int = 1,
        header: dict[str, Any] | None = None,
        **of_record: Any,
    ) -> Path:
        rng = np.random.default_rng([seed, *name.encode()])
        folder: Path = tmp_path / name
        folder.mkdir()
        jobs = [f"allreduce-mpi{f'-launch{n}' if n > 1 else ''}" for n in range(1, num_launches + 1)]
        for number, job in enumerate(jobs, start=1):
            given = {"job": job, "launch": number} | (header or {})
            writer = jsonl.Writer(runs.results_file(folder, job), a_header(**given))
            for size in SIZES:
                for mode in ("isolated", "pipelined"):
                    middle = 1e-4 * factor * rng.lognormal(0, sigma)
                    samples = Samples(tuple(middle * rng.lognormal(0, 0.005, 31)))
                    row = {"mode": mode, "payload_bytes": size, "requested_bytes": (size,), "samples": samples}
                    writer.append(a_record(**(row | of_record)))
        plan = {"scenario": "latency", "cluster": {"name": "lab"}, "jobs": [{"name": job} for job in jobs]}
        runs.write_plan(folder, whole_plan(plan))
        return folder

    return make


def compared(base: Path, new: Path, *options: str) -> int:
    """The exit code of `linkbench compare`, the runs given by their names."""
    return main(["compare", base.name, new.name, "--results", str(base.parent), *options])


def test_a_slower_run_ends_with_1_unless_told_never_to(a_run: Make, capsys: Out) -> None:
    base, new = a_run("base"), a_run("new", factor=1.1)
    assert compared(base, new) == 1
    printed = capsys.readouterr().out
    assert printed.count(" slower\n") == 6 and printed.startswith("# 6 rows: 6 slower; ")
    assert compared(base, new, "--fail-on", "never") == 0
    assert compared(base, new, "--delta", "20%") == 0
    capsys.readouterr()
    assert compared(new, base) == 0
    assert capsys.readouterr().out.startswith("# 6 rows: 6 faster; ")


def test_the_same_thing_measured_twice_is_equivalent_and_nothing_changed(
    a_run: Make, capsys: Out, tmp_path: Path
) -> None:
    assert compared(a_run("base", sigma=0.005), a_run("new", sigma=0.005)) == 0
    assert capsys.readouterr().out.startswith("# 6 rows: 6 equivalent; ")
    assert compared(tmp_path / "base", tmp_path / "new", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["changes"] == []


def test_the_table_has_a_line_for_each_row_and_says_how_to_read_it(a_run: Make, capsys: Out) -> None:
    compared(a_run("base"), a_run("new", factor=2.0, header={"versions": {"mpich": "5.0.2"}}))
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [row[:3] for row in rows] == [
        [mode, str(size), "5/5"] for size in SIZES for mode in ("isolated", "pipelined")
    ]
    titles = next(line for line in lines if "ratio  " in line).strip("# ")
    assert titles.split("  ") and titles.endswith("verdict")
    for word in ("# ratio: ", "# ci95: ", "# p: ", "# least: ", "# slower, faster: "):
        assert any(line.startswith(word) for line in lines), word
    assert any(holds(line, "# allreduce", "mpi", "4 ranks", "2 nodes") for line in lines)
    assert "# changed: versions.mpich: none -> 5.0.2" in lines
    assert all(len(line) <= 130 for line in lines)


def test_two_single_launches_get_ratios_and_the_command_that_gives_verdicts(a_run: Make, capsys: Out) -> None:
    assert compared(a_run("base", 1), a_run("new", 1, factor=3.0)) == 0
    told = " ".join(capsys.readouterr().out.replace("#", "").split())
    assert told.count(" exploratory") >= 6 and " slower" not in told
    assert "6 rows: 6 exploratory" in told
    assert "make bench SCENARIO=latency CLUSTER=lab LAUNCHES=auto" in told


def test_what_so_many_launches_can_find_is_printed(a_run: Make, capsys: Out) -> None:
    compared(a_run("base"), a_run("new"))
    printed = " ".join(capsys.readouterr().out.replace("#", "").split())
    assert "5 launches" in printed and "9 of 10 comparisons" in printed


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_runs_of_other_ranks_are_refused_in_one_sentence_and_without_a_number(
    a_run: Make, capsys: Out, form: str
) -> None:
    base, new = a_run("base"), a_run("new", header={"num_ranks": 8, "ranks_per_node": 4})
    assert compared(base, new, "--format", form) == 2
    told = capsys.readouterr()
    assert holds(told.err, "num_ranks", "4", "8", "--allow-diff num_ranks")
    assert len(told.err.splitlines()) == 1
    assert told.out == "" or (form == "json" and json.loads(told.out)["summaries"] == [])
    assert compared(base, new, "--allow-diff", "num_ranks", "--format", form) == 0
    assert ("4 -> 8" in capsys.readouterr().out) is (form != "json")


@pytest.mark.parametrize("delta", ["0", "5", "100%", "-1%", "nan", "five"])
def test_a_delta_that_is_no_share_is_refused(a_run: Make, capsys: Out, delta: str) -> None:
    assert compared(a_run("base", 1), a_run("new", 1), f"--delta={delta}") == 2
    assert holds(capsys.readouterr().err, f"--delta '{delta}'", "0", "1")


def test_rows_with_wrong_data_have_no_ratio_in_any_format(a_run: Make, capsys: Out) -> None:
    base, new = a_run("base"), a_run("new", verified=False, num_wrong=3)
    for form in ("table", "json", "csv", "markdown"):
        assert compared(base, new, "--format", form) == 2
        assert holds(capsys.readouterr().err, "BASE", "NEW", "INVALID")


def test_a_file_of_a_newer_schema_is_refused(a_run: Make, capsys: Out) -> None:
    base, new = a_run("base", 1), a_run("new", 1)
    file = new / "allreduce-mpi.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace(jsonl.SCHEMA, "bench.results/99"), encoding="utf-8")
    assert compared(base, new) == 2
    assert "bench.results/99" in capsys.readouterr().err


def test_json_is_one_document_with_everything_in_si_units(a_run: Make, capsys: Out, tmp_path: Path) -> None:
    base, new = a_run("base"), a_run("new", factor=1.1)
    assert compared(base, new, "--format", "json", "--output", str(tmp_path / "c.json")) == 1
    assert capsys.readouterr().out == ""
    found = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert found["schema"] == "bench.compare/1"
    assert (found["base"], found["new"], found["delta"], found["fdr"]) == (str(base), str(new), 0.05, 0.05)
    assert found["counts"]["slower"] == len(found["rows"]) == 6
    for row in found["rows"]:
        assert row["ratio"] == row["new_s"] / row["base_s"]
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"] and row["p"] <= row["p_corrected"] <= 0.05
        assert len(row["base_launches_s"]) == row["num_base_launches"] == 5 and 0 < row["min_detectable"] < 1
        assert row["factors"]["num_ranks"] == "4" and row["differs"] == {} and row["reason"] is None


def test_unknown_is_null_in_json_and_empty_in_csv(a_run: Make, capsys: Out) -> None:
    base, new = a_run("base", 1), a_run("new", 1)
    compared(base, new, "--format", "json")
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert [row[name] for name in ("ratio_low", "p", "p_corrected", "min_detectable", "base_between")] == [None] * 5
    compared(base, new, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 6 and rows[0]["p"] == "" and float(rows[0]["ratio"]) == row["ratio"]


def test_markdown_has_the_conclusion_first_and_a_line_for_each_row(a_run: Make, capsys: Out) -> None:
    compared(a_run("base"), a_run("new", factor=1.1), "--format", "markdown")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("# 6 rows: 6 slower; ")
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 6 and len({line.count("|") for line in table}) == 1


def test_a_run_beside_itself_is_said_and_files_alone_can_be_compared(capsys: Out) -> None:
    assert main(["compare", str(REFERENCE), str(REFERENCE)]) == 0
    told = capsys.readouterr()
    assert re.search(r"(\d+) rows: \1 exploratory", told.out.replace("\n#     ", " ")) and holds(told.err, "same run")
    files = [str(REFERENCE / f"pingpong-{name}-1x2.jsonl") for name in ("mpi", "gloo")]
    assert main(["compare", *files]) == 2
    assert holds(capsys.readouterr().err, "transport", "mpi", "BASE", "gloo", "NEW")
    assert main(["compare", *files, "--allow-diff", "transport"]) == 0
    assert holds(capsys.readouterr().out, "pingpong", "mpi -> gloo", "2 ranks", "1 node")


def test_a_row_that_the_new_run_did_not_measure_is_listed(a_run: Make, capsys: Out) -> None:
    base, new = a_run("base", 1), a_run("new", 1)
    _drop_last(new / "allreduce-mpi.jsonl", 2)
    compared(base, new)
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("# only in BASE: ")]
    assert holds(line, "allreduce", "mpi", "isolated", "pipelined", "64K")


def _drop_last(file: Path, number: int) -> None:
    lines: Sequence[str] = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[:-number]), encoding="utf-8")


def test_the_launches_that_a_comparison_needs_are_simulated_from_a_stored_run(
    a_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(a_run("base", 5))
    assert main(["compare", run, "--power", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["needed"] == document["launches"][-1]["num_launches"] and document["num_measured"] == 5
    assert document["command"].endswith(f"LAUNCHES={document['needed']}") and not document["in_turn"]
    assert main(["compare", run, "--power", "--in-turn", "--format", "json"]) == 0
    in_turn = json.loads(capsys.readouterr().out)
    assert in_turn["in_turn"] and in_turn["command"].endswith(f"--launches {in_turn['needed']}")
    assert all(0 < each["least_all"] < each["least_row"] for each in in_turn["launches"])
    assert main(["compare", run]) == 2
    assert holds(capsys.readouterr().err, "NEW", "--power")
