"""The one line that a host prints about itself."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bench.probes import host, versions

PACKAGE_ROOT = Path(host.__file__).resolve().parent.parent.parent
HEAVY = ("torch", "mpi4py", "numpy", "psutil")


def asked(question: dict[str, object]) -> host.HostReport:
    """The answer of the program itself."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "bench.probes.host", json.dumps(question)],
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert not imported & set(HEAVY)
    answer = host.parse(done.stdout.splitlines()[-1])
    assert answer is not None
    return answer


def test_a_host_reports_its_facts_without_imports(tmp_path: Path) -> None:
    (tmp_path / "nonce").touch()
    facts = asked({"hosts": ["localhost"], "results": str(tmp_path), "nonce": "nonce", "limit_s": 30}).facts
    assert facts.host == socket.gethostname()
    assert (facts.software, facts.source) == (versions.software(), versions.source())
    assert (facts.results_shared, facts.results_problem, facts.mpi) == (True, None, None)
    assert facts.results_free_bytes is not None and facts.results_free_bytes > 0
    assert isinstance(facts.addresses["localhost"], list)
    assert [path.name for path in tmp_path.iterdir()] == ["nonce"]


def test_another_folder_or_none_is_reported(tmp_path: Path) -> None:
    facts = host.facts(host.HostQuestion(results=str(tmp_path), nonce="another"))
    assert (facts.results_shared, facts.results_problem) == (False, None)
    facts = host.facts(host.HostQuestion(results=str(tmp_path / "none"), nonce="x"))
    assert facts.results_shared is False
    assert facts.results_problem == os.strerror(errno.ENOENT).lower()


@pytest.mark.parametrize(
    ("said", "mpi"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to ...\n", "Open MPI 5.0.11"),
        ("HYDRA build details:\n    Version:                                 5.0.2\n    CC: cc\n", "MPICH 5.0.2"),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.14\n",
            "Intel(R) MPI Library for Linux* OS, Version 2021.14",
        ),
        ("", None),
    ],
)
def test_an_mpirun_is_called_by_its_name(tmp_path: Path, said: str, mpi: str | None) -> None:
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\n")
    program.chmod(0o755)
    assert host.facts(host.HostQuestion(mpirun=str(program))).mpi == mpi
    assert host.facts(host.HostQuestion(mpirun=str(tmp_path / "none"))).mpi is None


@pytest.mark.parametrize(
    "line", ["", "hello", "[]", '{"schema": "bench.host/0"}', '{"schema": "bench.host/1", "facts": {}}']
)
def test_what_is_no_answer_is_none(line: str) -> None:
    assert host.parse(line) is None


def test_the_suites_files_have_a_name(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    first = versions.source(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("x")
    assert versions.source(tmp_path) == first
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert versions.source(tmp_path) != first
