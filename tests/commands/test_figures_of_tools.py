"""`import`, `report` and `explain` of tools whose figures have no bound here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from tests.logs.synthetic_figures import LOGS

Out = pytest.CaptureFixture[str]
WITHOUT_BOUND = [
    "transfer_bench.txt",
    "nccom_old.txt",
    "deepep_internode.txt",
    "nixlbench_groups.txt",
    "ucx_latency.txt",
    "iperf3_one_stream.txt",
    "dcgmi_2.json",
    "gpcnet_load.txt",
]


def explained(path: Path, capsys: Out, *words: str) -> dict[str, Any]:
    """The only page about a log."""
    capsys.readouterr()
    main(["explain", str(path), "--format", "json", *words])
    (page,) = json.loads(capsys.readouterr().out)["pages"]
    found: dict[str, Any] = page
    return found


@pytest.fixture
def log(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file with the log that the test names."""
    path = tmp_path / str(request.param)
    path.write_text(LOGS[str(request.param)][0])
    return path


@pytest.mark.parametrize("log", WITHOUT_BOUND, indirect=True)
def test_the_first_line_names_the_figure_and_why_there_is_no_bound(log: Path, capsys: Out) -> None:
    page = explained(log, capsys)
    assert (page["standing_code"], page["because_code"]) == ("cannot-be-judged", "tool-without-bound")
    assert main(["explain", str(log)]) == 0
    first = " ".join(capsys.readouterr().out.partition("\nfrom")[0].replace("\n#", "").split())
    facts = page["because_facts"]
    assert facts["figure"] in first and facts["missing"] in first
    assert facts["missing_code"].startswith("no-bound-") and page["reasons"] == []


@pytest.mark.parametrize("log", ["dcgmi_4.json"], indirect=True)
def test_a_failed_diagnosis_names_its_tests(log: Path, capsys: Out) -> None:
    page = explained(log, capsys)
    assert page["because_code"] == "tool-tests-failed"
    assert page["because_facts"] == {"num_tests": 1, "tests": ["Integration: pcie (gpu1)"]}
    assert main(["explain", str(log)]) == 1
    assert "Integration: pcie (gpu1)" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize("log", ["bandwidth_test_quick.txt", "hip_bus_bandwidth.txt"], indirect=True)
def test_copies_of_one_gpu_are_pages_of_copies(log: Path, capsys: Out) -> None:
    page = explained(log, capsys)
    assert page["because_code"] in ("links-unknown", "normal-with-pcie"), "the GPU is invented"


def test_the_fastest_size_of_a_copy_is_judged_and_pageable_memory_is_not(tmp_path: Path, capsys: Out) -> None:
    path = tmp_path / "shmoo.log"
    rows = "".join(
        f"bandwidthTest-H2D-Pinned, Bandwidth = {rate} GB/s, Time = 0.00001 s, Size = {size} bytes, NumDevsUsed = 1\n"
        for size, rate in ((1000, 0.4), (68000000, 12.4))
    )
    slow = "bandwidthTest-D2H-Paged, Bandwidth = 2.0 GB/s, Time = 0.1 s, Size = 68000000 bytes, NumDevsUsed = 1\n"
    path.write_text(
        f"[CUDA Bandwidth Test] - Starting...\n Device 0: Tesla V100-PCIE-32GB\n{rows}{slow}Result = PASS\n"
    )
    page = explained(path, capsys)
    assert (page["standing_code"], page["because_facts"]["rate"]) == ("normal", pytest.approx(12.4e9))
    assert page["because_facts"]["direction"] == "host to GPU"


@pytest.mark.parametrize("log", ["ucx_latency.txt"], indirect=True)
def test_a_named_machine_bounds_rows(log: Path, capsys: Out) -> None:
    assert explained(log, capsys, "--instance", "p4d.24xlarge")["because_code"] != "tool-without-bound"


@pytest.mark.parametrize(
    "log", ["deepep_low_latency.txt", "dcgmi_2.json", "gpcnet_load.txt", "nixlbench_groups.txt"], indirect=True
)
def test_figures_are_imported_stored_and_explained_again(log: Path, tmp_path: Path, capsys: Out) -> None:
    results = tmp_path / "results"
    assert main(["import", str(log), "--format", "json", "--results", str(results)]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    wanted = LOGS[log.name][1][0]
    assert [[each["where"], each["name"]] for each in run["figures"]] == [each[:2] for each in wanted["figures"]]
    assert main(["report", "--results", str(results), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["summaries"]
    timed = [each for each in wanted["figures"] if each[3] in ("s", "bytes_per_s")]
    assert len(rows) == len(timed) + len(wanted.get("rows", []))
    assert all(row["bound_name"] is None for row in rows)
    fresh = explained(log, capsys)
    stored = explained(Path("latest"), capsys, "--results", str(results))
    for key in ("title", "got", "because_facts"):
        assert stored[key] == fresh[key]


@pytest.mark.parametrize("log", ["dcgmi_4.json"], indirect=True)
def test_a_failed_test_of_a_tool_fails_the_import(log: Path, capsys: Out) -> None:
    assert main(["import", str(log), "--format", "json", "--no-store"]) == 1
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    failed = [each for each in run["figures"] if each["status"] == "failed"]
    assert [(each["where"], each["value"]) for each in failed] == [("gpu1", None)]


def test_the_message_rate_of_a_bandwidth_test_is_no_latency(tmp_path: Path, capsys: Out) -> None:
    path = tmp_path / "osu.txt"
    path.write_text("# OSU MPI Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n1   1.00\n4194304   12000.00\n")
    assert "small-messages" not in {line["code"] for line in explained(path, capsys)["got_codes"]}
    path.write_text("# OSU MPI Latency Test v7.4\n# Size          Latency (us)\n1   1.00\n4194304   400.00\n")
    assert "small-messages" in {line["code"] for line in explained(path, capsys)["got_codes"]}


def test_jsonl_of_another_tool_is_read_as_a_log(tmp_path: Path, capsys: Out) -> None:
    """In a folder as well: NCCL's Inspector writes a file for each process."""
    path = tmp_path / "host-pid1.jsonl"
    path.write_text(LOGS["nccl_inspector_ranks.log"][0])
    assert main(["explain", str(path)]) == 0
    assert "AllReduce, 4 ranks on 2 nodes" in capsys.readouterr().out.splitlines()[0]
    assert main(["explain", str(tmp_path)]) == 0


def test_operations_of_a_running_job_are_never_judged(tmp_path: Path, capsys: Out) -> None:
    """Their times include the wait for late ranks, whatever machine the user names."""
    path = tmp_path / "host-pid1.log"
    path.write_text(LOGS["nccl_inspector_cut.log"][0].splitlines()[0] + "\n")
    assert explained(path, capsys, "--instance", "p5.48xlarge")["because_code"] == "tool-without-bound"
