"""The real controller: `linkbench run`, `plan`, `report`, `plot`, resume, interrupts, full and read-only disks."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.__main__ import main
from bench.controller.messages import OutcomeCode
from bench.store import jsonl
from tests.copies import copy_package
from tests.end_to_end.conftest import environment
from tests.facts import holds

ROOT = Path(__file__).resolve().parent.parent.parent
BENCH = (sys.executable, "-m", "bench")

# A fixed number of samples and a budget that nothing uses up: a busy machine only takes longer.
QUICK = """\
description: two patterns
budget: 1h
max_seconds: 0.05
measure:
  - patterns: [allreduce, sendrecv]
    transports: [mpi]
    sizes: [64, 4K, 64K]
    iterations: 20
"""
# The first job lasts until it is interrupted; the second is short.
LONG = """\
max_seconds: 2
measure:
  - {pattern: allreduce, transport: mpi, sizes: [64, 4K, 64K], iterations: 100000}
  - {pattern: sendrecv, transport: mpi, sizes: [64, 4K, 64K], iterations: 5}
"""

LOCAL = "clusters: {local: {nodes: 1, ranks_per_node: 2}}\n"

Run = Callable[..., Any]
Start = Callable[[int], tuple[str, ...]]

ROW_KEYS = [
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


@pytest.fixture
def site(tmp_path: Path, mpirun: Start) -> Path:
    """A folder with a bench.yaml and scenarios of its own."""
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "quick.yaml").write_text(QUICK, encoding="utf-8")
    (tmp_path / "scenarios" / "long.yaml").write_text(LONG, encoding="utf-8")
    (tmp_path / "bench.yaml").write_text(LOCAL, encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A site where `quick` was measured once for several tests, and what was printed. They change copies of it."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "scenarios").mkdir()
    (folder / "scenarios" / "quick.yaml").write_text(QUICK, encoding="utf-8")
    (folder / "bench.yaml").write_text(LOCAL, encoding="utf-8")
    words = (*BENCH, "run", "quick")
    done = subprocess.run(
        words, cwd=folder, env=environment({}), capture_output=True, text=True, timeout=250, check=False
    )
    return folder, done


@pytest.fixture
def ran_and_site(
    measured: tuple[Path, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    mpirun: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Any, Path]:
    """What was printed, and a copy of the site, in which this process is."""
    folder, ran = measured
    site = tmp_path / "site"
    shutil.copytree(folder, site)
    monkeypatch.chdir(site)
    return ran, site


@pytest.mark.mpi
def test_a_run_stores_samples_prints_one_table_draws_plots_and_prints_where(
    ran_and_site: tuple[Any, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    ran, site = ran_and_site
    assert ran.returncode == 0, ran.stderr
    [folder] = (site / "results").iterdir()
    places = f"results: results/{folder.name}/  plots: plots/{folder.name}/  page: plots/{folder.name}/report.html"
    assert ran.stdout.splitlines()[-1] == places
    assert ran.stdout.count("algbw") == 1
    err = ran.stderr
    assert any(line.startswith("estimate: ") for line in err.splitlines()) and "[2/2] sendrecv-mpi-1x2" in err
    assert {path.suffix for path in (site / "plots" / folder.name).iterdir()} == {".png", ".svg", ".html"}
    [attempt] = jsonl.read(folder / "allreduce-mpi-1x2.jsonl").attempts
    assert len(attempt.records) == 6 and all(record.samples and record.verified for record in attempt.records)
    assert attempt.header.versions["mpi4py"] and attempt.header.nodes and len(attempt.header.ranks) == 2
    for form in ("csv", "markdown", "table"):
        assert main(["report", "latest", "--format", form]) == 0 and "allreduce" in capsys.readouterr().out
    assert main(["report", str(folder), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["summaries"]
    assert len(rows) == 12 and all(set(ROW_KEYS) <= set(row) for row in rows)
    assert main(["plot", folder.name, "--plots", "again"]) == 0
    assert (site / "again" / folder.name / "bandwidth.png").stat().st_size > 10_000


@pytest.mark.mpi
def test_resume_measures_only_what_is_missing_also_after_a_torn_line(
    run: Run, ran_and_site: tuple[Any, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, site = ran_and_site
    [folder] = (site / "results").iterdir()
    whole, torn = folder / "sendrecv-mpi-1x2.jsonl", folder / "allreduce-mpi-1x2.jsonl"
    before = whole.read_bytes()
    lines = torn.read_text(encoding="utf-8").splitlines(keepends=True)
    torn.write_text("".join(lines[:4]) + lines[4][:60], encoding="utf-8")
    assert main(["report", "latest"]) == 0 and f"{torn.name}:5: " in capsys.readouterr().err
    ran = run(*BENCH, "run", "--resume", "latest", "--format", "json", "--no-plots", cwd=site)
    assert ran.code == 0, ran.err
    assert "1 of 2 jobs" in ran.err
    assert whole.read_bytes() == before
    rows = json.loads(ran.out)["summaries"]
    measured = {(row["job"].partition("#")[0], row["payload_bytes"], row["mode"]) for row in rows}
    assert len(measured) == 12
    again = [attempt.records for attempt in jsonl.read(torn).attempts][1]
    assert {record.payload_bytes for record in again} == {4096, 65536}


@pytest.mark.slow
@pytest.mark.mpi
def test_json_is_one_document_and_the_last_line_goes_to_stderr(run: Run, site: Path) -> None:
    ran = run(*BENCH, "run", "quick", "--format", "json", "--no-plots", cwd=site)
    document = json.loads(ran.out)
    assert ran.code == 0 and set(document["headers"]) == {"allreduce-mpi-1x2", "sendrecv-mpi-1x2"}
    assert ran.err.splitlines()[-1].startswith("results: results/")


def test_a_cluster_out_of_reach_is_refused_and_nothing_is_left(run: Run, tmp_path: Path) -> None:
    env = {"PATH": "/nowhere"}
    ran = run(*BENCH, "run", "bandwidth", "--cluster", "p4d", "--config", str(ROOT / "bench.yaml"), env=env)
    assert ran.code == 3 and ran.out == ""
    assert "srun" in ran.err and "bench plan" in ran.err and "--model" in ran.err
    assert not (tmp_path / "results").exists()
    ran = run(*BENCH, "run", "bandwidth", "--cluster", "g6e", "--config", str(ROOT / "bench.yaml"))
    assert ran.code == 3 and holds(ran.err, "8 ranks", "node") and "0 GPUs" in ran.err


def test_the_plan_prints_commands_that_can_be_pasted(run: Run) -> None:
    ran = run(*BENCH, "plan", "bandwidth", "--cluster", "p4d", "--config", str(ROOT / "bench.yaml"))
    assert ran.code == 0, ran.err
    [line] = [line for line in ran.out.splitlines() if "bench.pingpong" in line and "two-way" in line]
    assert "srun --nodes=2 --ntasks=16 --ntasks-per-node=8" in line and line.startswith("FI_PROVIDER=efa ")
    assert "--instance p4d.24xlarge" in line


SITE_P4D = """\
clusters:
  p4d: {{instance: p4d.24xlarge, nodes: 2, ranks_per_node: 8, launcher: slurm{links}}}
"""
MODELLED = """\
description: what crosses which link
measure:
  - {patterns: [allreduce, alltoall], topology: [world, node, rail], sizes: [64M], mode: pipelined}
  - {pattern: pingpong, sizes: [64M], mode: pipelined}
  - {pattern: barrier}
"""


def _modelled(run: Run, site: Path, links: str) -> dict[str, float]:
    (site / "bench.yaml").write_text(SITE_P4D.format(links=links), encoding="utf-8")
    (site / "m.yaml").write_text(MODELLED, encoding="utf-8")
    ran = run(*BENCH, "run", "m.yaml", "--cluster", "p4d", "--model", "--format", "json", cwd=site)
    assert ran.code == 0, ran.err
    rows = json.loads(ran.out)["summaries"]
    assert all(row["modelled"] and row["verified"] is None and "modelled" in row["flags"] for row in rows)
    times: dict[str, float] = {}
    for row in rows:
        times[row["job"]] = max(times.get(row["job"], 0.0), row["median_s"])
    return times


@pytest.mark.slow
@pytest.mark.beside
def test_halving_a_link_slows_exactly_what_crosses_it(run: Run, tmp_path: Path) -> None:
    full = _modelled(run, tmp_path, "")
    half_nic = _modelled(run, tmp_path, ", links: {nic: 6.25 GB/s}")
    half_nvlink = _modelled(run, tmp_path, ", links: {nvlink: 150 GB/s}")
    slower_nic = {job for job in full if half_nic[job] > full[job] * 1.05}
    slower_nvlink = {job for job in full if half_nvlink[job] > full[job] * 1.05}
    assert {job for job in full if half_nic[job] == full[job]} == set(full) - slower_nic, (
        "the same to the digit, or slower"
    )
    across, inside = (
        {"allreduce-model-2x8", "alltoall-model-2x8"},
        {"allreduce-model-2x8-node", "alltoall-model-2x8-node"},
    )
    rails = {"allreduce-model-2x8-rail", "alltoall-model-2x8-rail"}
    assert slower_nic == across | rails
    assert inside | {"pingpong-model-2x8"} <= slower_nvlink
    assert not rails & slower_nvlink and "barrier-model-2x8" not in slower_nic | slower_nvlink


@pytest.mark.slow
@pytest.mark.beside
def test_every_row_and_plot_of_a_modelled_run_is_marked(run: Run, tmp_path: Path) -> None:
    config = ("--config", str(ROOT / "bench.yaml"))
    (tmp_path / "m.yaml").write_text(MODELLED, encoding="utf-8")
    ran = run(*BENCH, "run", "m.yaml", "--cluster", "p4d", "--model", *config)
    rows = [line for line in ran.out.splitlines() if line[:1] == " "]
    assert len(rows) == 8 and all(line.endswith("modelled") for line in rows), ran.out
    pictures = list((tmp_path / "plots").rglob("*.svg"))
    assert pictures and all("odelled" in picture.read_text(encoding="utf-8") for picture in pictures)


@pytest.mark.slow
@pytest.mark.mpi
def test_variables_of_a_scenario_are_factors_with_their_own_jobs(run: Run, site: Path) -> None:
    text = QUICK.replace("[allreduce, sendrecv]", "[allreduce]") + "    env: {MPICH_NOTHING: [1, 2]}\n"
    (site / "scenarios" / "swept.yaml").write_text(text, encoding="utf-8")
    ran = run(*BENCH, "run", "swept", "--format", "json", "--no-plots", cwd=site)
    headers = json.loads(ran.out)["headers"]
    assert {header["environment"]["MPICH_NOTHING"] for header in headers.values()} == {"1", "2"}


@contextlib.contextmanager
def _running(site: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        (*BENCH, *words), cwd=site, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait_for_rows(site: Path, num: int) -> Path:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for file in site.glob("results/*/*.jsonl"):
            if len(file.read_text(encoding="utf-8").splitlines()) > num:
                return file
        time.sleep(0.05)
    raise AssertionError("no rows were stored")


def _ours(site: Path) -> list[str]:
    """Command lines of processes that a run in this folder left behind."""
    run_ids = [folder.name for folder in site.glob("results/*")]
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(run_id in process.environ().get("BENCH_JOB", "") for run_id in run_ids):
                found.append(" ".join(process.cmdline()))
    return found


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_an_interrupt_keeps_rows_leaves_no_process_and_can_be_resumed(
    site: Path, number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _running(site, "run", "long", "--no-plots") as process:
        file = _wait_for_rows(site, 1)
        process.send_signal(number)
        _, err = process.communicate(timeout=280)
    assert process.returncode == code, err
    assert "--resume" in err and "Traceback" not in err
    assert len(jsonl.read(file).attempts[0].records) >= 1
    assert _ours(site) == []
    monkeypatch.chdir(site)
    assert main(["report", "latest"]) == 0


@pytest.mark.mpi
def test_a_killed_rank_is_reported_and_the_next_job_is_measured(site: Path) -> None:
    with _running(site, "run", "long", "--no-plots", "--format", "json") as process:
        _wait_for_rows(site, 1)
        folder = next((site / "results").iterdir())
        victims = [p for p in psutil.process_iter() if _is_rank_of(p, folder.name)]
        victims[-1].kill()
        out, err = process.communicate(timeout=280)
    assert process.returncode == 4, err
    assert f"bench run --resume results/{folder.name}\n" in err
    document = json.loads(out)
    [failure] = [failure for failure in document["failures"] if failure["job"] == "allreduce-mpi-1x2"]
    assert failure["code"] in (OutcomeCode.RANK_LOST, OutcomeCode.RANK_GONE)
    assert {row["job"] for row in document["summaries"]} == {"allreduce-mpi-1x2", "sendrecv-mpi-1x2"}
    assert _ours(site) == []


def _is_rank_of(process: psutil.Process, run_id: str) -> bool:
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        return run_id in process.environ().get("BENCH_JOB", "") and words[1:3] == ["-m", "bench.allreduce"]
    return False


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 20 KiB: a header and a few rows fit in, not all."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ("mount", "-t", "tmpfs", "-o", "size=20k", "tmpfs", str(folder)), check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(("umount", str(folder)), check=True)


@pytest.mark.mpi
def test_a_full_disk_ends_the_job_and_keeps_what_was_there(
    run: Run, site: Path, mpirun: Start, small_disk: Path
) -> None:
    records = small_disk / "kept.jsonl"
    words = ("-m", "bench.allreduce", "--sizes", "8:64K:2", "-n", "60", "--records", str(records))
    ran = run(*mpirun(2), *words)
    assert ran.code == 4, ran.err
    assert str(records) in ran.err
    [attempt] = jsonl.read(records).attempts
    assert attempt.records and all(record.samples for record in attempt.records)


@pytest.mark.mpi
def test_a_read_only_disk_is_refused_before_measuring(run: Run, site: Path, small_disk: Path) -> None:
    subprocess.run(("mount", "-o", "remount,ro", str(small_disk)), check=True)
    ran = run(*BENCH, "run", "quick", "--results", str(small_disk), cwd=site)
    assert ran.code == 3 and str(small_disk) in ran.err and f"({os.strerror(errno.EROFS)})" in ran.err


@pytest.mark.mpi
def test_places_that_cannot_be_written_are_refused_before_measuring(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(site)
    (site / "file").write_text("", encoding="utf-8")
    for where in ("file", "file/below", "/proc/nothing"):
        code, err = main(["run", "quick", "--results", where]), capsys.readouterr().err
        assert code == 2 and err.count("bench: error: ") == 1 and where in err, err
    assert main(["report", "quick"]) == 2
    assert main(["report", "--output", "file/x"]) == 2


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("measure: [{pattern: alreduce}]", ":1:21: measure.0.pattern"),
        ("measure: [{patern: allreduce}]", "'pattern"),
        ("measure: [{pattern: allreduce, sizes: [-1]}]", "-1"),
        ("measure: [{pattern: allreduce, ranks_per_node: 0}]", "ranks_per_node"),
        ("measure:\n  - pattern: allreduce\n    pattern: barrier", ":3:5:"),
        ("measure: [{pattern: allreduce", ":1:"),
    ],
)
def test_an_error_of_a_scenario_names_file_line_and_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    code, err = main(["run", "s.yaml"]), capsys.readouterr().err
    assert code == 2 and err.count("bench: error: ") == 1
    assert "s.yaml:" in err and named in err, err


@pytest.mark.slow
@pytest.mark.mpi
def test_a_pattern_is_added_by_one_file(run: Run, mpirun: Start, tmp_path: Path) -> None:
    copy_package(tmp_path)
    source = (ROOT / "bench" / "sendrecv.py").read_text(encoding="utf-8").replace('"sendrecv"', '"shift"')
    (tmp_path / "bench" / "shift.py").write_text(source, encoding="utf-8")
    env = {"PYTHONPATH": str(tmp_path)}
    ran = run(*mpirun(3), "-m", "bench.shift", "--sizes", "1K", "-n", "3", "--format", "json", env=env)
    assert ran.code == 0, ran.err
    assert all(row["verified"] and row["num_ranks"] == 3 for row in json.loads(ran.out)["summaries"])
    assert "shift" in run(*BENCH, "list", "patterns", env=env).out
