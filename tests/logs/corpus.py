"""The logs that readers are tested with: synthetic ones everywhere, and other people's if BENCH_LOG_CORPUS names them.

Other people's logs cannot be part of the repository. Tests of them are skipped without the corpus, and the end of the
pytest run counts them (tests/conftest.py).
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.logs import synthetic_copies, synthetic_nccl, synthetic_osu

MISSING = "the corpus of other people's logs is not here (set BENCH_LOG_CORPUS)"
FOLDER = Path(os.environ["BENCH_LOG_CORPUS"]) if os.environ.get("BENCH_LOG_CORPUS") else None
needs_corpus = pytest.mark.skipif(FOLDER is None, reason=MISSING)
# Folder -> name of a file -> its text and what is in it.
SYNTHETIC: dict[str, Mapping[str, tuple[str, Any]]] = {
    "nccl_logs": synthetic_nccl.LOGS,
    "nvbandwidth_logs": synthetic_copies.NVBANDWIDTH,
    "p2p_logs": synthetic_copies.P2P,
    "osu_logs": synthetic_osu.LOGS,
}


@cache
def synthetic_folder() -> Path:
    """A folder with all synthetic logs, for this process."""
    root = Path(tempfile.mkdtemp(prefix="bench-synthetic-logs-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    for folder, logs in SYNTHETIC.items():
        (root / folder).mkdir()
        for name, (text, _) in logs.items():
            (root / folder / name).write_text(text, encoding="utf-8")
    return root


def real(folder: str, name: str) -> Path:
    """Another person's log; tests of it are marked with `needs_corpus`."""
    return (FOLDER or Path()) / folder / name


def synthetic(folder: str, name: str) -> Path:
    """A synthetic log."""
    return synthetic_folder() / folder / name


@cache
def expected(folder: str) -> dict[str, Any]:
    """What is in each of the real logs of a folder, by name: read from the files before there was a reader."""
    text = (Path(__file__).parent / "expected" / f"{folder}.yaml").read_text("utf-8")
    found: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # each process reads all
    return found


def cases(folder: str) -> list[Any]:
    """(path, what is in it) of every log of a folder, as parameters of a test."""
    found = []
    for name, wanted in expected(folder).items():
        found.append(pytest.param(real(folder, name), wanted, id=name[:40], marks=needs_corpus))
    for name, (_, wanted) in SYNTHETIC[folder].items():
        found.append(pytest.param(synthetic(folder, name), wanted, id=f"synthetic-{name}"))
    return found


def path_cases(folders: Iterable[str]) -> list[Any]:
    """The path of every log of some folders, as parameters of a test."""
    params = [param for folder in folders for param in cases(folder)]
    return [pytest.param(param.values[0], id=param.id, marks=param.marks) for param in params]


def paths(folders: Iterable[str]) -> list[Path]:
    """The logs of some folders that are here."""
    roots = [synthetic_folder(), *([FOLDER] if FOLDER else [])]
    return [path for root in roots for folder in folders for path in sorted((root / folder).glob("*"))]
