"""`diagnose` on stored pairs: the slow part by name, the exit code, and input that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.commands import run
from bench.core import plugins
from bench.core.errors import Interrupted
from bench.core.record import Header, Record, Samples
from bench.results import collect, summary
from bench.results.run_report import RunReport
from bench.store import jsonl, runs
from tests.facts import holds

Out = pytest.CaptureFixture[str]
NUM = 6
GOLDEN = Path(__file__).resolve().parent.parent / "diagnose" / "golden_page.txt"


def header(**changed: Any) -> Header:
    found: dict[str, Any] = {
        "job": "pairs-gloo-6x1",
        "case": ("pairs", "--schedule", "ladder"),
        "pattern": "pairs",
        "transport": "gloo",
        "dtype": "float32",
        "reduce_op": "",
        "root": None,
        "direction": "one-way",
        "topology": "pairs",
        "num_ranks": NUM,
        "num_nodes": NUM,
        "ranks_per_node": 1,
        "clock": "host",
        "modelled": False,
        "started": "2026-11-21T00:00:00+00:00",
        "nodes": {f"h{k}": {"rack": f"r{k % 2}"} for k in range(NUM)},
        "ranks": tuple({"host": f"h{k}", "local_rank": 0, "nic": "eth0"} for k in range(NUM)),
    }
    return Header(**(found | changed))


def record(group: str, src: int, dst: int, rate: float) -> Record:
    size = 1 << 20
    return Record(
        "pipelined",
        (size,),
        size,
        2,
        2,
        group,
        src,
        dst,
        bus_factor=1.0,
        verified=True,
        samples=Samples([size / rate] * 10),
    )


def stored(folder: Path, slow: int | None, **changed: Any) -> Path:
    """All pairs screened once, the slow host confirmed."""
    path = folder / "pairs.jsonl"
    writer = jsonl.Writer(path, header(**changed))
    pairs = [(a, b) for a in range(NUM) for b in range(NUM) if a != b]
    for stage, drawn in (("screen", pairs), ("confirm", [pair for pair in pairs if slow in pair] * 2)):
        for number, (a, b) in enumerate(drawn):
            writer.append(record(f"{stage}{number}:{a}-{b}", a, b, 5e8 if slow in (a, b) else 1e9))
    return path


def test_the_slow_host_is_named(tmp_path: Path, capsys: Out) -> None:
    path = stored(tmp_path, 4)
    assert main(["diagnose", str(path)]) == 1
    assert capsys.readouterr().out == GOLDEN.read_text(encoding="utf-8")


def test_json_has_codes_and_facts_of_what_is_accused_and_cleared(tmp_path: Path, capsys: Out) -> None:
    assert main(["diagnose", str(stored(tmp_path, 4)), "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "bench.diagnose/1"
    assert [(one["kind"], one["name"]) for one in found["accused"]] == [("host", "h4")]
    assert set(found["accused"][0]) == {"kind", "name", "confidence", "evidence", "findings", "ends"}
    [finding] = found["accused"][0]["findings"]
    assert finding["code"] == "slow-host" and finding["facts"]["sends"]["ratio"] == pytest.approx(0.5, abs=0.01)
    assert found["conclusion_code"] == "slow" and found["notes"] == found["notes_codes"] == []
    assert 0.99 <= found["accused"][0]["confidence"] < 1
    assert found["cleared"] == ["h0", "h1", "h2", "h3", "h5"]


@pytest.mark.parametrize("form", ["table", "csv", "markdown"])
def test_every_format_names_it(form: str, tmp_path: Path, capsys: Out) -> None:
    assert main(["diagnose", str(stored(tmp_path, 4)), "--format", form]) == 1
    assert "h4" in capsys.readouterr().out


def test_nothing_is_slow(tmp_path: Path, capsys: Out) -> None:
    assert main(["diagnose", str(stored(tmp_path, None)), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["conclusion_code"] == "nothing-slow" and found["accused"] == []


def test_the_document_of_a_run_is_as_good_as_its_file(tmp_path: Path, capsys: Out) -> None:
    path = stored(tmp_path, 4)
    found = tmp_path / "document.json"
    found.write_text(plugins.load("format", "json").render(RunReport(collect.document(path))))
    main(["diagnose", str(path), "--format", "json"])
    of_file = json.loads(capsys.readouterr().out)
    assert main(["diagnose", str(found), "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out) == of_file


def test_a_full_schedule_counts_its_modes_as_repeats(tmp_path: Path, capsys: Out) -> None:
    path = tmp_path / "pairs.jsonl"
    writer = jsonl.Writer(path, header(case=("pairs",), direction="two-way"))
    for a in range(NUM):
        for b in range(a + 1, NUM):
            one = record(f"{a}-{b}", a, b, 5e8 if {a, b} == {1, 2} else 1e9)
            for mode in ("pipelined", "isolated"):
                writer.append(Record(**{n: getattr(one, n) for n in Record.__dataclass_fields__} | {"mode": mode}))
    assert main(["diagnose", str(path), "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(part["kind"], part["name"], part["ends"]) for part in found["accused"]] == [
        ("link", "h1-h2", ["h1", "h2"])
    ]


def test_a_run_without_pairs_is_refused_with_a_remedy(tmp_path: Path, capsys: Out) -> None:
    path = stored(tmp_path, None, topology="world")
    assert main(["diagnose", str(path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error and "diagnose --cluster NAME" in error


def test_a_file_without_results_is_refused(tmp_path: Path, capsys: Out) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert main(["diagnose", str(tmp_path / "x.json")]) == 2
    assert main(["diagnose", str(tmp_path / "x.json"), "--cluster", "p4d"]) == 2
    assert main(["diagnose", "--model"]) == 2


def test_a_modelled_cluster_has_no_slow_part(tmp_path: Path, capsys: Out) -> None:
    folder = tmp_path / "results"
    assert main(["diagnose", "--cluster", "p4d", "--model", "--results", str(folder)]) == 0
    captured = capsys.readouterr()
    assert holds(captured.out, "16 ranks", "2 hosts") and str(folder) in captured.err
    assert main(["diagnose", "latest", "--results", str(folder)]) == 0


def test_a_summary_of_a_ladder_is_a_document_as_any(tmp_path: Path) -> None:
    [(_, attempt)] = [("pairs", one) for one in jsonl.read(stored(tmp_path, 4)).attempts]
    assert len(summary.document([("pairs", attempt.header, attempt.records)]).summaries) == len(attempt.records)


def test_a_suspected_part_is_not_cleared(tmp_path: Path, capsys: Out) -> None:
    """A ladder that ended after its first test: the slow link is suspected, by name."""
    path = tmp_path / "pairs.jsonl"
    writer = jsonl.Writer(path, header())
    pairs = [(a, b) for a in range(NUM) for b in range(NUM) if a != b]
    for number, (a, b) in enumerate(pairs):
        writer.append(record(f"screen{number}:{a}-{b}", a, b, 5e8 if {a, b} == {1, 2} else 1e9))
    assert main(["diagnose", str(path), "--format", "json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert found["accused"] == [] and found["suspected"] == [{"kind": "link", "name": "h1-h2"}]
    assert found["cleared"] == ["h0", "h3", "h4", "h5"]
    assert found["conclusion_code"] == "undecided-suspicions"
    assert found["notes_codes"] == [{"code": "suspicions-open", "facts": {"num_suspects": 1}}]
    assert main(["diagnose", str(path)]) == 4
    assert "link h1-h2" in capsys.readouterr().out


def test_a_ladder_that_did_not_test_every_host_clears_nothing(tmp_path: Path, capsys: Out) -> None:
    path = tmp_path / "pairs.jsonl"
    writer = jsonl.Writer(path, header())
    for number, (a, b) in enumerate([(0, 1), (2, 3), (4, 5), (1, 0)]):
        writer.append(record(f"screen{number}:{a}-{b}", a, b, 1e9))
    assert main(["diagnose", str(path), "--format", "json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert (found["conclusion_code"], found["cleared"]) == ("undecided-hosts", [])
    assert found["notes_codes"] == [{"code": "hosts-not-tested", "facts": {"num_missing": 16}}]


def test_an_interrupted_diagnosis_prints_the_verdict_so_far(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "20261121-000000-lab-links"

    def interrupted(args: object) -> None:
        folder.mkdir()
        runs.write_plan(folder, {"scenario": "links", "cluster": {}, "jobs": []})
        stored(folder, 4)
        raise Interrupted("interrupted")

    monkeypatch.setattr(run, "started", interrupted)
    assert main(["diagnose", "--cluster", "local", "--results", str(tmp_path)]) == 130
    captured = capsys.readouterr()
    assert "host h4" in captured.out
    assert f"bench diagnose {folder}" in captured.err
