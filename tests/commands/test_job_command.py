"""`linkbench job explain|predict` and `linkbench why` in process, on files of a simulated job."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.core.step_trace import StepPart, StepSegment
from bench.job.messages import CauseCode
from tests.job import synthetic
from tests.job.synthetic import Late, Recording, Schedule
from tests.probes.synthetic_machines import TEXTS

GOLDEN = Path(__file__).parent / "golden_job.txt"
LATE = Schedule(
    num_steps=8, forward_us=900, backward_us=1800, num_layers=8, late=(Late(2, StepSegment.BACKWARD, 4000),)
)
Out = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a job whose rank 2 is late."""
    folder = tmp_path_factory.mktemp("job") / "trace"
    folder.mkdir()
    synthetic.write(folder, LATE, Recording())
    return folder


def as_json(capsys: Out, *words: str) -> Any:
    """Run a command and return its JSON."""
    assert main([*words, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_page_is_the_golden_page(traces: Path, capsys: Out) -> None:
    assert main(["job", "explain", str(traces), "--instance", "p5", "--price", "2", "--steps", "1000000"]) == 0
    assert capsys.readouterr().out == GOLDEN.read_text(encoding="utf-8")


def test_json_has_the_keys_of_the_schema(traces: Path, capsys: Out) -> None:
    found = as_json(capsys, "job", "explain", str(traces))
    assert (found["schema"], found["num_ranks"], found["steps"]) == ("bench.job/1", 4, 8)
    for rank in found["ranks"]:
        assert set(rank["parts"]) == {f"{part.value}_s" for part in StepPart}
        assert sum(rank["parts"].values()) == pytest.approx(rank["step_s"], rel=1e-3)
    assert [(late["rank"], late["segment"]) for late in found["late_ranks"]] == [(2, "backward")]
    [cause] = found["causes"]
    assert (cause["code"], cause["ranks"]) == (CauseCode.LATE_RANK, [2])
    assert cause["gain_low_s"] <= cause["gain_s"] <= cause["gain_high_s"] and 0 < cause["confidence"] <= 1
    assert {"evidence", "command"} <= set(cause)
    assert {"num_per_step", "transfer_s", "num_bytes"} <= set(found["collectives"][0])
    assert {"direction", "bytes", "bytes_per_s", "pinned", "exposed_s"} == set(found["copies"][0])


def test_page_and_figure_are_written(traces: Path, tmp_path: Path) -> None:
    html, svg = tmp_path / "job.html", tmp_path / "job.svg"
    assert main(["job", "explain", str(traces), "--html", str(html), "--plot", str(svg)]) == 0
    page = html.read_text(encoding="utf-8")
    assert "rank 2, late" in page and "http://" not in page.replace("http://www.w3.org", "")
    assert "MEASURED by the job" in page and "wwww" not in page  # the bars of letters are for terminals
    assert all(f"rank{rank}" in page or f"worker{rank}" in page for rank in range(4))  # the files
    document = json.loads(page.partition('type="application/json" id="job">')[2].partition("</script>")[0])
    assert document["schema"] == "bench.job/1"
    assert "rank 2, late" in svg.read_text(encoding="utf-8")


def test_the_same_machine_and_compute_give_back_the_compute_of_the_step(traces: Path, capsys: Out) -> None:
    found = as_json(capsys, "job", "predict", str(traces), "--instance", "p5", "--compute-factor", "1")
    assert found["replayed_step_s"] == pytest.approx(found["recorded_step_s"], rel=1e-3)
    assert found["num_predicted"] == found["num_collectives"] > 0
    twice = as_json(capsys, "job", "predict", str(traces), "--instance", "p5", "--compute-factor", "2")
    assert 1.7 < twice["step_s"] / found["step_s"] < 2


def why(capsys: Out, *paths: Path) -> tuple[int, Any]:
    """Return the exit code of `why` and its JSON."""
    code = main(["why", *map(str, paths), "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_why_explains_traces_logs_and_machines(traces: Path, tmp_path: Path, capsys: Out) -> None:
    log, machine, other = (tmp_path / name for name in ("train.log", "smi.xml", "notes.md"))
    log.write_text("node1:12:12 [0] NCCL WARN Connection closed by remote peer\n" * 3, encoding="utf-8")
    machine.write_text(TEXTS[next(name for name in TEXTS if name.startswith("pcie_logs/"))], encoding="utf-8")
    other.write_text("hello\n", encoding="utf-8")
    code, found = why(capsys, other, log, traces, machine)
    assert code == 1  # the log tells of a failure
    assert found["files"] == {"traces": [str(traces)], "logs": [str(log)], "machines": [str(machine)]}
    assert [one["file"] for one in found["unread"]] == [str(other)]
    assert found["job"]["schema"] == "bench.job/1" and found["explain"] is not None
    assert [one["schema"] for one in found["machines"]] == ["bench.doctor/1"]


def test_why_explains_the_logs_in_a_folder_of_traces(tmp_path: Path, capsys: Out) -> None:
    synthetic.write(tmp_path, LATE, Recording())
    log = tmp_path / "nccl-node0-17.log"
    log.write_text("node1:12:12 [0] NCCL WARN Connection closed by remote peer\n" * 3, encoding="utf-8")
    code, found = why(capsys, tmp_path)
    assert code == 1 and found["files"]["logs"] == [str(log)] and found["job"]["steps"] == 8


def test_why_of_a_file_that_nothing_reads_is_one_sentence(tmp_path: Path, capsys: Out) -> None:
    paths = [tmp_path / name for name in ("a.md", "b.md")]
    for path in paths:
        path.write_text("hello\n", encoding="utf-8")
    assert main(["why", *map(str, paths)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and all(str(path) in err for path in paths)


BAD = {
    "rubbish": b"\x00\x01\xff" * 5000,
    "cut": b'{"traceEvents": [{"ph": "X", "ts": 1, "dur"',
    "empty": b"",
    "text": b"hello\n",
    "pickle": pickle.dumps({"a": 1}),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_file_that_is_no_trace_is_one_sentence(content: bytes, tmp_path: Path, capsys: Out) -> None:
    file = tmp_path / "rank0.json"
    file.write_bytes(content)
    assert main(["job", "explain", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and str(file) in err


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "--price", "2"],
        ["explain", "--price", "0", "--steps", "3"],
        ["explain", "--run", "results/x"],
        ["explain", "--instance", "p99"],
        ["explain", "--plot", "/nonexistent/x.png"],
        ["predict", "--instance", "p5", "--nodes", "3"],
        ["predict", "--instance", "p5", "--compute-factor", "0"],
    ],
    ids=" ".join,
)
def test_wrong_options_are_refused(words: list[str], traces: Path, capsys: Out) -> None:
    command, *options = words
    try:
        code = main(["job", command, str(traces), *options])
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_prediction_needs_all_ranks(tmp_path: Path, capsys: Out) -> None:
    synthetic.write(tmp_path, LATE, Recording(ranks=(0, 2)))
    assert main(["job", "predict", str(tmp_path), "--instance", "p5"]) == 2
    assert "2 of 4 ranks" in capsys.readouterr().err


def test_machines_are_ranked_for_a_recorded_job_by_the_same_prediction(traces: Path, capsys: Out) -> None:
    found = as_json(
        capsys, "select", "--job", str(traces), "--instances", "p4d,p5", "--nodes", "1,2", "--price", "p5=40"
    )
    assert (found["schema"], found["modelled"], found["num_ranks"]) == ("bench.job_select/1", True, 4)
    assert len(found["machines"]) == 4
    usd = [machine["usd_per_1000_steps"] for machine in found["machines"]]
    assert usd == sorted(usd)
    for machine in found["machines"]:
        words = ("job", "predict", str(traces), "--instance", machine["instance"], "--nodes", str(machine["num_nodes"]))
        alone = as_json(capsys, *words)
        assert [machine[f"step{end}_s"] for end in ("_low", "", "_high")] == pytest.approx(
            [alone["step_low_s"], alone["step_s"], alone["step_high_s"]], rel=1e-9
        )
        price = 40 if machine["instance"] == "p5.48xlarge" else machine["usd_per_hour"] / machine["num_nodes"]
        expected = alone["step_s"] * 1000 * price * machine["num_nodes"] / 3600
        assert machine["usd_per_1000_steps"] == pytest.approx(expected, rel=1e-9)
        assert set(machine["basis"].split("+")) <= {"same-gpu", "assumed", "published", "bound"}
    assert all(each["ratio_low"] <= each["ratio"] <= each["ratio_high"] for each in found["verdicts"])


def test_a_machine_on_which_the_ranks_do_not_fit_is_left_out(traces: Path, capsys: Out) -> None:
    words = ("--instances", "p5,DGX Spark", "--nodes", "1,3", "--by", "time")
    found = as_json(capsys, "select", "--job", str(traces), *words)
    assert [(one["instance"], one["num_nodes"]) for one in found["machines"]] == [("p5.48xlarge", 1)]
    assert {one["error"]["code"] for one in found["skipped"]} == {"uneven"}
    assert main(["select", "--job", str(traces), *words]) == 0
    assert "left out: 3 x p5.48xlarge" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--instances", "DGX Spark"],
        ["--instances", "nosuch"],
        ["--set", "training.batch=2"],
        ["--plot", "a.png"],
        ["--price", "p5"],
        ["--workload", "vit-l-306m"],
    ],
)
def test_a_selection_that_cannot_be_made_is_one_sentence(traces: Path, capsys: Out, words: list[str]) -> None:
    assert main(["select", "--job", str(traces), *words]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("bench: error: ") and not said.out


def test_files_that_are_no_job_select_nothing(tmp_path: Path, capsys: Out) -> None:
    (tmp_path / "x.json").write_bytes(b"\x00\xff rubbish")
    for path in (tmp_path, tmp_path / "none", tmp_path / "x.json"):
        assert main(["select", "--job", str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    job = tmp_path / "job"
    job.mkdir()
    synthetic.write(job, Schedule(num_ranks=2))
    min(path for path in job.rglob("*") if path.is_file()).unlink()
    assert main(["select", "--job", str(job)]) == 2
    assert "1 of 2 ranks have no trace" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--run", "RUN", "--run", "RUN"],
        ["--run", "RUN", "--nodes", "2"],
        ["--run", "nosuch"],
        ["--run", "RUN"],  # it measured nothing that the job exchanges
        ["--instance", "p5", "--compute-factor", "0"],
        ["--instance", "p5", "--nodes", "3"],
    ],
)
def test_a_prediction_that_cannot_be_made_is_one_sentence(traces: Path, capsys: Out, words: list[str]) -> None:
    run = Path(__file__).parents[2] / "results" / "reference" / "main_2cpu-vm_2026-11-21"
    typed = [str(run) if word == "RUN" else word for word in words]
    assert main(["job", "predict", str(traces), *typed]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("bench: error: ") and said.err.count("\n") == 1 and not said.out
