"""A new log format is one new file: the reader that docs/extending.md shows is listed, imported and explained."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.copies import copy_package

ROOT = Path(__file__).resolve().parent.parent.parent
HEAD = "a line before\nringmark 1.4 on n0: 8 GPUs (NVIDIA H100 80GB HBM3)\n"
ROWS = "\n".join(f"{1 << power} B {20 + (1 << power) / 270e3:.2f} us {1.75 * 270:.2f} GB/s" for power in range(20, 34))
WHOLE = f"{HEAD}{ROWS}\nringmark done\n"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and one more file in it."""
    folder = tmp_path_factory.mktemp("copy")
    copy_package(folder)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extending.md").read_text(encoding="utf-8"), re.DOTALL)
    [source] = [block for block in blocks if "READER = " in block]
    (folder / "bench" / "logs" / "readers" / "ringmark.py").write_text(source, encoding="utf-8")
    (folder / "whole.log").write_text(WHOLE, encoding="utf-8")
    (folder / "cut.log").write_text(f"{HEAD}{ROWS[:-6]}\n", encoding="utf-8")
    return folder


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`python -m bench words` with the copied package."""
    env = os.environ | {"PYTHONPATH": str(folder)}
    command = (sys.executable, "-m", "bench", *words)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=280, check=False)


def test_it_is_listed(copy: Path) -> None:
    done = python(copy, "list", "tools", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert "ringmark" in {entry["name"] for entry in json.loads(done.stdout)["entries"]}


def test_its_logs_are_imported(copy: Path) -> None:
    done = python(copy, "import", "whole.log", "cut.log", "--format", "json", "--results", "results")
    assert done.returncode == 1, done.stderr
    whole, cut = json.loads(done.stdout)["runs"]
    assert (whole["tool"], whole["status"], len(whole["records"])) == ("ringmark", "ok", 14)
    assert (cut["status"], cut["failure_code"], len(cut["records"])) == ("truncated", "no-end", 13)
    done = python(copy, "report", "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["summaries"]
    assert len(rows) == 27 and {row["transport"] for row in rows} == {"ringmark"}
    assert all(row["bound_name"] for row in rows), "its GPUs bound the rows"


def test_its_logs_are_explained(copy: Path) -> None:
    done = python(copy, "explain", "whole.log", "--format", "json")
    assert done.returncode == 0, done.stderr
    [page] = json.loads(done.stdout)["pages"]
    assert (page["num_ranks"], page["best"]["busbw_bytes_per_s"]) == (8, pytest.approx(472.5e9))
    assert page["standing"] and page["bound"]
