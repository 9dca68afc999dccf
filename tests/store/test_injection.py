"""A failure at any write, fsync or rename: acknowledged rows are kept, nothing is doubled, the run can be completed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bench.core.errors import EXIT_DONE, UsageError
from bench.results import collect
from tests.store import injection

ROOT = Path(__file__).resolve().parents[2]
SHORT_EVERY = 6
_MEMORY = Path("/dev/shm")  # an fsync on a disk takes much longer, and the library counts both


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The compiled library; empty without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return ""
    built = tmp_path_factory.mktemp("library") / "injection.so"
    source = Path(__file__).with_name("injection.c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(built), str(source), "-ldl"], check=True)
    return str(built)


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        yield Path(folder)


def injected(library: str, place: Path, every: int) -> Any:
    words = [sys.executable, "-m", injection.__name__, str(place / "run"), library, str(every)]
    env = {**os.environ, "LD_PRELOAD": library, "PYTHONPATH": str(ROOT)}
    return json.loads(subprocess.run(words, env=env, cwd=ROOT, check=True, capture_output=True).stdout)


@pytest.mark.parametrize("every", [SHORT_EVERY, pytest.param(1, marks=pytest.mark.slow)])
def test_a_failure_at_any_operation_of_the_store_loses_and_doubles_nothing(
    every: int, library: str, place: Path, missing: Callable[[str, str], NoReturn]
) -> None:
    if not library:
        missing("gcc", "no C compiler")
    found = injected(library, place, every)
    assert found["trials"] >= len(injection.MODES) * 8
    assert found["violations"] == []


class Command:
    """`linkbench run` of a modelled scenario, with a failure at one operation of the controller or of rank 0."""

    def __init__(self, library: str, place: Path) -> None:
        self.place, self.results = place, place / "results"
        self._library, self._counter = library, place / "counter"
        (place / "scenarios").mkdir()
        (place / "bench.yaml").write_text("clusters: {c: {nodes: 2, ranks_per_node: 1, instance: p4d.24xlarge}}\n")
        (place / "scenarios" / "s.yaml").write_text("measure: [{pattern: allreduce, sizes: [8, 64]}]\n")

    def run(self, *words: str, mode: int = 0, number: int = 0) -> subprocess.CompletedProcess[str]:
        self._counter.write_bytes(bytes(8))
        env = {**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": self._library}
        env |= {"INJECT_FOLDER": str(self.results), "INJECT_COUNTER": str(self._counter)}
        env |= {"INJECT_MODE": str(mode), "INJECT_AT": str(number)}
        command = [sys.executable, "-m", "bench", "run", *words, "--no-plots", "--format", "json"]
        return subprocess.run(command, env=env, cwd=self.place, check=False, capture_output=True, text=True)

    @property
    def num_operations(self) -> int:
        return int.from_bytes(self._counter.read_bytes(), sys.byteorder)

    @property
    def folder(self) -> Path | None:
        """The run's folder, if its plan was written."""
        return next((path.parent for path in self.results.glob("*/plan.json")), None)

    def rows(self) -> list[tuple[str, int, float | None]]:
        """(mode, payload, median) of each row in the run's files."""
        try:
            document = collect.document(self.folder) if self.folder is not None else None
        except UsageError:  # no header yet
            return []
        return sorted((row.mode, row.payload_bytes, row.median_s) for row in (document.summaries if document else ()))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["kill", "no space"])
def test_a_failure_at_any_operation_of_a_run_leaves_a_run_that_is_resumed(
    name: str, library: str, tmp_path: Path, missing: Callable[[str, str], NoReturn]
) -> None:
    if not library:
        missing("gcc", "no C compiler")
    command = Command(library, tmp_path)
    words = ["s", "--cluster", "c", "--model"]
    assert command.run(*words).returncode == EXIT_DONE
    healthy, num = command.rows(), command.num_operations
    assert len(healthy) == 4 and num >= 20
    for number in range(1, num + 1):
        shutil.rmtree(command.results)
        failed = command.run(*words, mode=injection.MODES[name], number=number)
        where = f"{name} at operation {number} of {num}"
        assert "Traceback" not in failed.stderr, f"{where}: {failed.stderr}"
        before, folder = command.rows(), command.folder
        assert not Counter(before) - Counter(healthy), where
        if failed.returncode == EXIT_DONE:
            assert before == healthy, where
        again = command.run("--resume", str(folder)) if folder is not None else command.run(*words)
        assert again.returncode == EXIT_DONE, f"{where}: {again.stderr}"
        # A size that was interrupted between its two modes is measured again as a whole (docs/running.md).
        interrupted = [row for row in before if sum(row[1] == other[1] for other in before) == 1]
        assert Counter(command.rows()) - Counter(interrupted) == Counter(healthy), where
