"""Adding an output format touches one file: every command offers the example of docs/extending.md."""

from __future__ import annotations

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.copies import copy_package

ROOT = Path(__file__).resolve().parent.parent.parent
[REFERENCE] = (ROOT / "results" / "reference").glob("main_*")


class _Tables(HTMLParser):
    """The cells of every row of an HTML page."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        if self.rows and data.strip():
            self.rows[-1].append(data)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the example as one more file."""
    folder = tmp_path_factory.mktemp("copy")
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    example = page.split("## Add an output format")[1].split("```python\n")[1].split("```")[0]
    copy_package(folder)
    (folder / "bench" / "results" / "formats" / "html.py").write_text(example, encoding="utf-8")
    return folder


@pytest.mark.thin(4)
@pytest.mark.parametrize(
    ("words", "row"),
    [
        (("list", "patterns"), "allreduce"),
        (("report", str(REFERENCE / "pingpong-mpi-1x2.jsonl")), "2097152"),
        (("fit", str(REFERENCE / "pingpong-mpi-1x2.jsonl")), "isolated"),
        (("compare", *[str(REFERENCE / "pingpong-mpi-1x2.jsonl")] * 2), "pipelined"),
    ],
)
def test_one_file_adds_a_format_to_every_command(copy: Path, words: tuple[str, ...], row: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(copy)}
    command = (sys.executable, "-m", "bench", *words, "--format", "html")
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tables = _Tables()
    tables.feed(done.stdout)
    assert any(row in cells for cells in tables.rows), done.stdout
