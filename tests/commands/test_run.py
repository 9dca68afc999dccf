"""What `linkbench run` reports about a run without results, and about plots that cannot be drawn."""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import NoReturn

import pytest

from bench.__main__ import main
from bench.commands import _progress, run
from bench.controller.messages import OutcomeCode
from bench.controller.run import RunResult
from bench.core.record import Failure
from bench.figures import _style
from bench.store import runs

ROOT = Path(__file__).resolve().parent.parent.parent
MODELLED = ("run", str(ROOT / "scenarios/smoke.yaml"), "--cluster", "p4d-1", "--model")


def test_a_reason_that_jobs_share_is_printed_once() -> None:
    folder = Path("results/1")

    def failure(job: str, exit_code: int) -> Failure:
        log = str(runs.log_file(folder, job))
        how = f"ended with exit code {exit_code}"
        return Failure.of(OutcomeCode.LAUNCHER_FAILED, launcher="mpirun", how=how, log=log, exit_code=exit_code)

    failed = {"a": failure("a", 1), "b": failure("b", 1), "c": failure("c", 7)}
    printed = str(run.nothing_measured(RunResult(folder, failed)))
    assert [printed.count(f"{job}.log") for job in failed] == [1, 0, 1]
    assert "(2 jobs " in printed and "(3 jobs" not in printed


@pytest.mark.parametrize(
    ("first", "second", "num_reasons"),
    [
        ("ValueError: boom; its output is in results/1/a.log", "ValueError: boom; its output is in results/1/b.log", 1),
        ("rank 0 on node1: no memory", "rank 0 on node7: no memory", 2),
        ("no heartbeat for 60 s", "no heartbeat for 60 s", 1),  # 60.0 and 60.1 s
    ],
)
def test_reasons_are_equal_if_a_reader_sees_no_difference(first: str, second: str, num_reasons: int) -> None:
    ran = RunResult(Path("results/1"), {"a": Failure(first), "b": Failure(second)})
    printed = str(run.nothing_measured(ran))
    assert printed.count("(2 jobs ") == 2 - num_reasons and second.endswith("b.log") == (second not in printed)


def test_an_impossible_folder_of_plots_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    where = ("--results", str(tmp_path / "results"), "--plots", str(tmp_path / "file" / "plots"))
    assert main([*MODELLED, "--config", str(ROOT / "bench.yaml"), *where]) == 2
    printed = capsys.readouterr()
    assert f"--plots {tmp_path / 'file' / 'plots'} " in printed.err and f"({tmp_path / 'file'} " in printed.err
    assert not printed.out
    assert not (tmp_path / "results").exists()


def test_a_read_only_folder_of_plots_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    where = ("--results", str(tmp_path / "results"), "--plots", str(tmp_path / "plots"))
    assert main([*MODELLED, "--config", str(ROOT / "bench.yaml"), *where]) == 3
    err = capsys.readouterr().err
    assert f"({tmp_path} is read-only)" in err and "--no-plots" in err
    assert not (tmp_path / "results").exists()


def test_a_missing_matplotlib_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    asked = (*MODELLED, "--config", str(ROOT / "bench.yaml"), "--results", str(tmp_path / "results"))
    assert main(asked) == 3
    printed = capsys.readouterr()
    assert "matplotlib" in printed.err and "--no-plots" in printed.err and not printed.out
    assert not (tmp_path / "results").exists()
    assert main([*asked, "--no-plots"]) == 0


def test_a_matplotlib_that_does_not_load_is_reported_after_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> NoReturn:
        raise ImportError("built for another numpy")

    monkeypatch.setattr(run, "draw", broken)
    where = ("--results", str(tmp_path / "results"), "--plots", str(tmp_path / "plots"))
    assert main([*MODELLED, "--config", str(ROOT / "bench.yaml"), *where]) == 4
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].startswith(f"results: {tmp_path / 'results'}/")
    assert "another numpy" in printed.err and "bench plot " in printed.err


def test_plots_without_room_are_reported_after_the_tables_with_the_command_to_draw_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(_style, "save", full)
    where = ("--results", str(tmp_path / "results"), "--plots", str(tmp_path / "plots"))
    assert main([*MODELLED, "--config", str(ROOT / "bench.yaml"), *where]) == 4
    [name] = [folder.name for folder in (tmp_path / "results").iterdir()]
    printed = capsys.readouterr()
    page = tmp_path / "plots" / name / "report.html"
    assert printed.out.splitlines()[-1] == f"results: {tmp_path / 'results' / name}/  page: {page}"
    assert page.is_file()
    assert f"{tmp_path / 'plots' / name} ({os.strerror(errno.ENOSPC)})" in printed.err
    assert f"bench plot {tmp_path / 'results' / name} --plots DIR" in printed.err


def test_a_command_stays_in_one_piece_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "20")
    command = "continue with: linkbench run --resume results/20260102-030405-local-main"
    with _progress.shown() as screen:
        screen.say(command)
    assert command in terminal.getvalue()


@pytest.mark.parametrize("moment", ["plan.json", "*.log", "*.jsonl"])
def test_a_results_folder_that_is_removed_ends_the_run_with_4_and_one_sentence(
    moment: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    removed: list[Path] = []
    ended = threading.Event()

    def remove() -> None:
        while not ended.wait(0.002):
            if found := list(tmp_path.glob(f"results/*/{moment}")):
                removed.append(found[0].parent)
                while found[0].parent.exists():  # the run may write a file between the listing and the removal
                    shutil.rmtree(found[0].parent, ignore_errors=True)

    thread = threading.Thread(target=remove)
    thread.start()
    try:
        where = ("--config", str(ROOT / "bench.yaml"), "--no-plots", "--results", str(tmp_path / "results"))
        code = main([*MODELLED, *where])
    finally:
        ended.set()
        thread.join()
    err = capfd.readouterr().err
    assert code == 4 and err.count("bench: error: ") == 1 and "internal error" not in err
    assert str(removed[0]) in err.splitlines()[-1]
