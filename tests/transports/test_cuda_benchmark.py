"""benchmarks/gpu_copies.py over a CuPy that copies in host memory: what it prints, and that failures do not end it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import cast
from unittest import mock

import pytest

from bench.core.errors import MeasurementError
from benchmarks import gpu_copies, gpu_started
from benchmarks.gpu_copies import Bench
from benchmarks.gpu_lines import Line, NotHereError, attempt
from tests.facts import holds

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*words: str, **variables: str) -> tuple[int, list[str]]:
    """(exit code, lines) of the benchmark."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FAKE_CUDA", "CUDA_", "BENCH_"))}
    path = os.pathsep.join([str(ROOT / "tests" / "fakes" / "cupy_host"), str(ROOT)])
    done = subprocess.run(
        (sys.executable, "-m", "benchmarks.gpu_copies", *words),
        env=kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | variables,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=280,
    )
    return done.returncode, done.stdout.splitlines()


def test_every_line_of_a_gpu_is_there_with_a_verdict() -> None:
    code, lines = run("links", "memory", "--megabytes", "1,2")
    wanted = [
        f"{way}, {size}{rest}"
        for size in ("1M", "2M")
        for way in ("host to GPU", "GPU to host")
        for rest in (" / PCIe link", ": events / host's clock, 16 copies")
    ]
    wanted += ["both ways at once, 1M"]
    wanted += [
        f"{what}{size}{rest}"
        for size in ("1M", "2M")
        for what, rest in (
            ("GPU's own copy, ", " / memory's peak"),
            ("kernel, ", " / memory's peak"),
            ("kernel / GPU's own copy, ", ""),
        )
    ]
    shown = [line for line in lines if not line.startswith("#")]
    assert [line[:54].rstrip() for line in shown] == wanted
    assert all(line[76:85].strip() in ("ok", "MISSED", "unknown", "printed") for line in shown), shown
    assert code == any(line[76:85].strip() == "MISSED" for line in shown)
    assert lines[-1].startswith("# 15 lines: ")


def test_a_failed_part_is_reported_and_the_others_are_measured() -> None:
    code, lines = run("links", "memory", "--megabytes", "1", FAKE_CUDA_DROPS="1")
    failed = [line for line in lines if " FAILED " in line]
    assert [line.split(",")[0] for line in failed[:2]] == ["host to GPU", "GPU to host"]
    assert [line.split(",")[0] for line in failed[-2:]] == ["GPU's own copy", "kernel"]
    assert all(holds(line, "arrived wrong") for line in failed) and code == 4


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (Line("a", 0.95, (0.95, 1.0)), "ok"),
        (Line("a", 0.949, (0.95, 1.0)), "MISSED"),
        (Line("a", 1.001, (0.95, 1.0)), "MISSED"),
        (Line("a", float("nan"), (0.95, 1.0)), "MISSED"),
        (Line("a", None, (0.95, 1.0)), "unknown"),
        (Line("a", 0.5), "printed"),
    ],
)
def test_a_verdict_is_of_both_ends(line: Line, verdict: str) -> None:
    assert line.verdict == verdict and verdict in str(line)


def test_what_raises_is_a_line_and_what_is_not_possible_here_another() -> None:
    def not_here() -> Line:
        raise NotHereError("no handles here")

    assert attempt("a", not_here, (0.95, 1.05)).verdict == "unknown"
    raised = str(attempt("a", lambda: Line("a", 1 / 0)))
    assert holds(raised, "FAILED", "division")


def test_a_program_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    script = f"sleep 600 & echo $! > {mark}; wait"
    with pytest.raises(MeasurementError, match=r"^sh .*\b0 s"):
        gpu_started.output(("sh", "-c", script), 0.3)
    child = int(mark.read_text())
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text():
            return
        time.sleep(0.02)
    raise AssertionError("it is still there")


def test_a_program_that_prints_nothing_is_quoted_and_one_that_is_refused_is_no_failure() -> None:
    with pytest.raises(MeasurementError, match=r"\bsh\b.*\b7: it broke"):
        gpu_started.output(("sh", "-c", "echo first >&2; echo it broke >&2; exit 7"), 10)
    with pytest.raises(NotHereError, match="no GPU"):
        gpu_started.output(("sh", "-c", "echo no GPU >&2; exit 3"), 10)


@pytest.mark.parametrize(
    ("said", "raises", "why"),
    [
        ('{"summaries": [], "failures": [], "skipped": [{"reason": "no handle"}]}', NotHereError, "no handle"),
        ('{"summaries": [], "failures": [{"what": "1 wrong elements"}], "skipped": []}', MeasurementError, "1 wrong"),
        (
            '{"summaries": [{"median_s": 1.0, "verified": false}], "failures": [], "skipped": []}',
            MeasurementError,
            "wr",
        ),
        ("Traceback ...", MeasurementError, "no document"),
    ],
)
def test_ranks_that_give_no_figure_give_a_reason(
    said: str, raises: type[Exception], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_started, "output", lambda words, timeout_s: said)
    with pytest.raises(raises, match=why):
        gpu_started.peer_copy_s("ipc", 1 << 20, 1.0)


def test_two_processes_are_held_to_one_process_of_the_same_making(monkeypatch: pytest.MonkeyPatch) -> None:
    took_s = {"ipc": "1.03e-4", "process": "1e-4"}

    def said(words: tuple[str, ...], timeout_s: float) -> str:
        seconds = took_s[words[words.index("--via") + 1]]
        row = f'{{"median_s": {seconds}, "verified": true}}'
        return f'NCCL says something\n{{"summaries": [{row}], "failures": [], "skipped": []}}\n'

    monkeypatch.setattr(gpu_started, "output", said)
    (line,) = Bench([1 << 20, 1 << 21, 1 << 22], time.monotonic()).processes()
    assert line.ratio == pytest.approx(1 / 1.03) and line.verdict == "ok" and "2M" in line.what
    took_s["ipc"] = "1.06e-4"
    (line,) = Bench([1 << 21], time.monotonic()).processes()
    assert line.verdict == "MISSED"


def test_what_nvbandwidth_reaches_is_of_one_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvbandwidth"
    tool.write_text('#!/bin/sh\necho "           0\n 0     55.21\n\nSUM $2 55.21 $4 $CUDA_VISIBLE_DEVICES"\n')
    tool.chmod(0o755)
    monkeypatch.delenv("BENCH_NVBANDWIDTH_PATH", raising=False)
    assert gpu_started.nvbandwidth("host_to_device_memcpy_ce", 64 << 20, 10) is None
    monkeypatch.setenv("BENCH_NVBANDWIDTH_PATH", str(tmp_path))
    assert gpu_started.nvbandwidth("host_to_device_memcpy_ce", 64 << 20, 10) == pytest.approx(55.21e9)


def test_a_program_that_waits_is_asked_to_end_so_that_it_ends_what_is_in_other_sessions(tmp_path: Path) -> None:
    """As torchrun, whose ranks no signal to its own group reaches."""
    mark = tmp_path / "ended"
    with pytest.raises(subprocess.TimeoutExpired):
        gpu_started.run(("sh", "-c", f"trap 'touch {mark}; exit 1' TERM; echo; sleep 600 & wait"), 0.5)
    assert mark.exists()


def test_a_tool_that_is_refused_here_does_not_end_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(test: str, num_bytes: int, timeout_s: float) -> float:
        raise NotHereError("no GPU")

    monkeypatch.setattr(gpu_started, "nvbandwidth", refused)
    line = Bench([1 << 20], time.monotonic())._against_link("a", "host to GPU", 1 << 20, 1e9, None, "")
    assert line.verdict == "unknown" and line.words == "no GPU"


def test_what_failed_counts_for_more_than_what_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        def links(self) -> list[Line]:
            return [Line("a", 0.5, (0.9, 1.0)), Line("b", state="FAILED")]

        def memory(self) -> list[Line]:
            return self.links()[:1]

    monkeypatch.setattr(gpu_copies, "CudaCopy", mock.MagicMock())
    assert gpu_copies.judged(cast(Bench, Two()), ["links"]) == 4
    assert gpu_copies.judged(cast(Bench, Two()), ["memory"]) == 1
