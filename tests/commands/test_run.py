"""What `bench run` says of a run that came to nothing."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from bench.__main__ import main
from bench.commands import run
from bench.controller.run import Ran
from bench.figures import _style

ROOT = Path(__file__).resolve().parent.parent.parent
MODELLED = ("run", str(ROOT / "scenarios/smoke.yaml"), "--cluster", "p4d-1", "--model")


def test_a_reason_that_jobs_share_is_told_once() -> None:
    what = "no rank said why; its output is in results/1/{}.log"
    ran = Ran(Path("results/1"), {job: what.format(job) for job in ("a-mpi-1x2", "b-mpi-1x2")})
    assert str(run.nothing(ran)) == (
        "nothing was measured: no rank said why; its output is in results/1/*.log (logs are in results/1)"
    )


def test_a_folder_of_plots_that_can_not_be_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    where = ("--results", str(tmp_path / "results"), "--plots", str(tmp_path / "file" / "plots"))
    assert main([*MODELLED, "--config", str(ROOT / "bench.yaml"), *where]) == 2
    told = capsys.readouterr()
    assert f"--plots {tmp_path / 'file' / 'plots'} can not be written ({tmp_path / 'file'} is no folder)" in told.err
    assert not told.out
    assert not (tmp_path / "results").exists()


def test_a_read_only_folder_of_plots_is_a_place_that_this_machine_will_not_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    where = ("--results", str(tmp_path / "results"), "--plots", str(tmp_path / "plots"))
    assert main([*MODELLED, "--config", str(ROOT / "bench.yaml"), *where]) == 3
    assert f"({tmp_path} is read-only): give another folder, or --no-plots" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_that_nothing_can_draw_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    asked = (*MODELLED, "--config", str(ROOT / "bench.yaml"), "--results", str(tmp_path / "results"))
    assert main(asked) == 3
    told = capsys.readouterr()
    assert "matplotlib is not installed" in told.err and "--no-plots" in told.err and not told.out
    assert not (tmp_path / "results").exists()
    assert main([*asked, "--no-plots"]) == 0


def test_a_matplotlib_that_does_not_load_is_told_after_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> NoReturn:
        raise ImportError("built for another numpy")

    monkeypatch.setattr(run, "draw", broken)
    where = ("--results", str(tmp_path / "results"), "--plots", str(tmp_path / "plots"))
    assert main([*MODELLED, "--config", str(ROOT / "bench.yaml"), *where]) == 4
    told = capsys.readouterr()
    assert told.out.splitlines()[-1].startswith(f"results: {tmp_path / 'results'}/")
    assert "bench: error: built for another numpy; what was measured is kept: python -m bench plot " in told.err


def test_plots_that_find_no_room_are_told_after_the_tables_and_how_to_draw_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(_style, "save", full)
    where = ("--results", str(tmp_path / "results"), "--plots", str(tmp_path / "plots"))
    assert main([*MODELLED, "--config", str(ROOT / "bench.yaml"), *where]) == 4
    [name] = [folder.name for folder in (tmp_path / "results").iterdir()]
    told = capsys.readouterr()
    assert told.out.splitlines()[-1] == f"results: {tmp_path / 'results' / name}/"
    assert f"plots can not be written in {tmp_path / 'plots' / name} (No space left on device): make room" in told.err
    assert f"kept: python -m bench plot {tmp_path / 'results' / name} --plots DIR" in told.err


def test_what_is_said_on_a_narrow_terminal_stays_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "20")
    command = "go on with: python -m bench run --resume results/20260102-030405-local-main"
    with run._progress() as (say, _):
        say(command)
    assert command in terminal.getvalue()
