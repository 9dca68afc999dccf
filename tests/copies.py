"""Copies of the package: what tests change or add to."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def copy_package(folder: Path) -> None:
    """Copy the package into `folder`, with its bytecode: Python compiles only what a test changes there.

    Bytecode that another process writes at this moment has a temporary name, and may be gone before it is copied.
    """
    shutil.copytree(ROOT / "bench", folder / "bench", ignore=shutil.ignore_patterns("*.pyc.*"))
