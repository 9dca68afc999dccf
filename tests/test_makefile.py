"""What `make install` asks of pip, by the GPU driver of the machine: pip and nvidia-smi are stand-ins."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def install(
    tmp_path: Path, driver: str | None, *, index_has_cpu_build: bool, setting: str = ""
) -> tuple[str, list[str]]:
    """Return what `make install` printed and the command lines that it gave to pip."""
    venv, programs, calls = tmp_path / "venv", tmp_path / "programs", tmp_path / "calls"
    fails = "exit 0" if index_has_cpu_build else 'case "$*" in *+cpu*) exit 1;; esac'
    program(venv / "bin" / "pip", f'echo "$*" >> {calls}\n{fails}')
    program(programs / "nvidia-smi", "exit 9" if driver is None else f"echo '{driver}'\necho '{driver}'")
    told = subprocess.run(
        ["make", "--no-print-directory", "install", f"VENV={venv}", *([setting] if setting else [])],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
        | {"PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stderr, calls.read_text().splitlines()


@pytest.mark.parametrize(
    ("driver", "setting", "extras"),
    [
        ("580.65.06", "", ".[torch,cupy13,mpi,mpich]"),
        ("535.104.05", "", ".[torch,cupy12,mpi,mpich]"),
        ("535.104.05", "CUDA=none", ".[mpi,mpich]"),
        ("No devices were found", "", ".[mpi,mpich]"),
        (None, "", ".[mpi,mpich]"),
        (None, "CUDA=13", ".[torch,cupy13,mpi,mpich]"),
    ],
)
def test_cuda_packages_are_installed_for_the_driver_that_is_there(
    driver: str | None, setting: str, extras: str, tmp_path: Path
) -> None:
    _, calls = install(tmp_path, driver, index_has_cpu_build=True, setting=setting)
    [words] = [call.split() for call in calls if "-e" in call.split()]
    assert words[-1] == extras
    assert any("torch==" in call for call in calls) == ("torch" not in extras)


def test_without_a_gpu_torch_is_the_cpu_build_and_what_it_needs_comes_after_the_rest(tmp_path: Path) -> None:
    told, calls = install(tmp_path, None, index_has_cpu_build=True)
    beside = [call for call in calls if call.endswith("+cpu") and "--no-deps" in call]
    assert ["--dry-run" in call for call in beside] == [True, False]
    [rest] = [call for call in calls if call not in beside and call != calls[-1]]
    assert rest.endswith("-e .[mpi,mpich]")
    assert calls[-1].endswith("+cpu") and "--no-deps" not in calls[-1]
    assert "left out" not in told


def test_an_index_without_the_cpu_build_costs_one_line_and_no_download(tmp_path: Path) -> None:
    told, calls = install(tmp_path, None, index_has_cpu_build=False)
    assert ["--dry-run" in call for call in calls if "torch==" in call] == [True]
    [line] = [line for line in told.splitlines() if line.startswith("left out: torch")]
    assert f"{tmp_path / 'venv'}/bin/pip install torch==" in line
