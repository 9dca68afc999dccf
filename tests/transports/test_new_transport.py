"""A new transport is one new file: the one that docs/extending.md shows is listed, planned and measured."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.copies import copy_package

ROOT = Path(__file__).resolve().parent.parent.parent
SCENARIO = """
description: one transport
measure:
  - patterns: [allreduce]
    transports: [loopback]
    sizes: [1K]
    ranks_per_node: [1]
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and one more file in it."""
    folder = tmp_path_factory.mktemp("copy")
    copy_package(folder)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extending.md").read_text(encoding="utf-8"), re.DOTALL)
    [source] = [block for block in blocks if "TRANSPORT = " in block]
    (folder / "bench" / "transports" / "loopback.py").write_text(source, encoding="utf-8")
    (folder / "scenarios").mkdir()
    (folder / "scenarios" / "loopback.yaml").write_text(SCENARIO, encoding="utf-8")
    shutil.copy(ROOT / "bench.yaml", folder)
    return folder


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`python -m words` with the copied package."""
    env = os.environ | {"PYTHONPATH": str(folder)}
    command = (sys.executable, "-m", *words)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=280, check=False)


def test_it_is_listed(copy: Path) -> None:
    done = python(copy, "bench", "list", "transports", "--format", "json")
    assert done.returncode == 0, done.stderr
    [entry] = [entry for entry in json.loads(done.stdout)["entries"] if entry["name"] == "loopback"]
    assert entry.get("unavailable") is None


def test_it_is_planned_with_the_launcher_of_its_traits(copy: Path) -> None:
    done = python(copy, "bench", "plan", "loopback", "--cluster", "local", "--format", "json")
    assert done.returncode == 0, done.stderr
    [job] = json.loads(done.stdout)["jobs"]
    assert (job["case"][2], job["launcher"]) == ("loopback", "direct")


def test_it_measures_and_skips_with_its_own_code(copy: Path) -> None:
    words = ("--transport", "loopback", "--sizes", "1K", "-n", "3", "--mode", "isolated", "--format", "json")
    done = python(copy, "bench.allreduce", *words)
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)["summaries"]
    assert row["verified"] is True
    done = python(copy, "bench.gpu_baseline", *words)
    assert done.returncode == 3  # nothing was measured
    document = json.loads(done.stdout)
    assert "not-a-collective" in {skip["code"] for skip in document["skipped"]}


def test_its_traits_are_obeyed(copy: Path) -> None:
    done = python(copy, "bench.allreduce", "--transport", "loopback", "--graph", "1", "--sizes", "1K")
    assert done.returncode == 3
    assert "graph" in done.stderr and "nccl" in done.stderr
