"""Results files that hold nonsense: a refusal in one sentence, or a row without any number; never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.core.record import Header, Record, Samples
from bench.store import jsonl
from tests.facts import holds

Make = Callable[..., Any]
NUMBERS = ("median_s", "ci_low_s", "ci_high_s", "min_s", "max_s", "p95_s", "algbw_bytes_per_s", "busbw_bytes_per_s")


@pytest.fixture
def lines(tmp_path: Path, a_header: Callable[..., Header], a_record: Callable[..., Record]) -> list[dict[str, Any]]:
    """The header and one record of a good file, as objects."""
    path = tmp_path / "good.jsonl"
    samples = Samples((2e-6, 3e-6), ((2e-6, 1e-6), (1e-6, 3e-6)))
    jsonl.Writer(path, a_header()).append(a_record(num_ranks=2, samples=samples))
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def report(lines: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], str]:
    """(exit code, JSON document, stderr) of `linkbench report` on these lines."""
    path = tmp_path / "bad.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    code = main(["report", str(path), "--format", "json"])
    told = capsys.readouterr()
    return code, json.loads(told.out), told.err


def with_samples(lines: list[dict[str, Any]], **samples: Any) -> list[dict[str, Any]]:
    """The same file with other samples."""
    return [lines[0], lines[1] | {"samples": {"calls_per_sample": 1, "loop": "python"} | samples}]


@pytest.mark.parametrize("command", ["report", "lint"])
def test_outcomes_that_can_not_be_read_are_said_and_are_no_good_news(
    command: str, lines: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "allreduce-mpi.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    main([command, str(folder)])
    assert "outcomes.json" not in "".join(capsys.readouterr())
    (folder / "outcomes.json").write_text('{"allreduce-mpi": {"what": "rank 1 died"')
    main([command, str(folder)])
    said = " ".join("".join(capsys.readouterr()).replace("#", " ").split())
    assert holds(said, "outcomes.json", "JSON")


@pytest.mark.parametrize(
    "seconds",
    [[], [float("nan"), 1e-6], [float("inf")], [1e-6, -1e-6], [0.0, 1e-6], [-5e-7] * 40],
    ids=["none", "nan", "infinite", "backwards", "zero", "all backwards"],
)
def test_samples_that_are_no_times_give_no_number(
    lines: list[dict[str, Any]], seconds: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, _ = report(with_samples(lines, seconds=seconds), tmp_path, capsys)
    (row,) = document["summaries"]
    assert code == 0 and "bad-samples" in row["flags"]
    assert [row[name] for name in NUMBERS] == [None] * len(NUMBERS)
    assert (document["fits"], document["spreads"], row["compat"]) == ([], [], {})


def test_one_sample_has_a_median_and_no_interval(
    lines: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, _ = report(with_samples(lines, seconds=[1e-6]), tmp_path, capsys)
    (row,) = document["summaries"]
    assert (code, row["median_s"], row["ci_low_s"], row["p95_s"]) == (0, 1e-6, None, None)
    assert "few-samples" in row["flags"]


@pytest.mark.parametrize(
    "samples",
    [
        {"seconds": ["1e-6"]},
        {"seconds": 5},
        {"seconds": [1e-6], "by_rank": [[1e-6, 2e-6]]},
        {"by_rank": [[1e-6], [1e-6, 2e-6]]},
        {"seconds": {"a": 1}},
        {"seconds": [None]},
        {"seconds": [[1e-6]]},
    ],
)
def test_samples_of_the_wrong_form_are_refused_with_their_line(
    lines: list[dict[str, Any]], samples: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, err = report(with_samples(lines, **samples), tmp_path, capsys)
    assert (code, document["summaries"]) == (2, [])
    assert holds(err, "bad.jsonl:2:", "record") and "Traceback" not in err


def test_a_newer_schema_is_refused(
    lines: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, err = report([lines[0] | {"schema": "bench.results/99"}, lines[1]], tmp_path, capsys)
    assert (code, document["summaries"]) == (2, [])
    assert holds(err, "schema", "'bench.results/99'")


@pytest.mark.parametrize("junk", ["", "{}", "\0\1\2\3", '{"type": "header"}', "[1, 2]", "null", '{"type": []}'])
def test_what_is_no_results_file_is_refused(junk: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document, err = report([junk], tmp_path, capsys)
    assert (code, document["summaries"]) == (2, [])
    assert err.count("bench: error: ") == 1 and "Traceback" not in err


def test_binary_junk_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "junk.jsonl"
    path.write_bytes(bytes(range(256)) * 20)
    assert main(["report", str(path)]) == 2
    assert holds(capsys.readouterr().err, str(path), "results file")


def test_a_file_cut_in_the_middle_keeps_its_whole_rows(
    lines: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document, err = report([lines[0], lines[1], json.dumps(lines[1])[:40]], tmp_path, capsys)
    assert code == 0 and len(document["summaries"]) == 1
    assert holds(err, "bad.jsonl:3:", "truncated")
