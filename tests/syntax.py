"""The syntax trees of the suite, parsed once for all tests that read them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import bench
from bench.core.collector import paused

PACKAGE = Path(bench.__file__).parent


@cache
def files() -> dict[str, ast.Module]:
    """Path below bench/ -> syntax tree."""
    paths = sorted(PACKAGE.rglob("*.py"))
    with paused():  # nothing of half a million nodes can be freed
        return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
