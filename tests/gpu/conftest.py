"""What the tests on a GPU share: whether NCCL opens here at all is tried once, not by every test until its limit."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PATH = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
# The first start on a machine reads gigabytes of libraries from its disk.
_FIRST_START_S = 150
Missing = Callable[[str, str], NoReturn]


@pytest.fixture
def torch(missing: Missing) -> Any:
    """torch, where it sees a GPU."""
    try:
        import torch
    except ImportError:
        missing("gpu", "torch is not installed")
    if not torch.cuda.is_available():
        missing("gpu", "torch sees no GPU")
    return torch


@pytest.fixture
def nccl(torch: Any) -> None:
    """NCCL opens here; where it does not, each test that needs it fails at once, with its words."""
    why = _why_no_nccl()
    if why is not None:
        pytest.fail(f"NCCL can not be used here ({why}): NCCL_DEBUG=INFO says more", pytrace=False)


@functools.cache
def _why_no_nccl() -> str | None:
    """Tried once, by one rank."""
    words = (sys.executable, "-m", "bench.allreduce", "--transport", "nccl", "--sizes", "8", "-n", "3")
    try:
        tried = subprocess.run(
            words,
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=_FIRST_START_S,
            check=False,
            env={**os.environ, "PYTHONPATH": PATH},
        )
    except subprocess.TimeoutExpired:
        return f"one rank was not done after {_FIRST_START_S} s"
    if tried.returncode == 0:
        return None
    return f"code {tried.returncode}: " + (" / ".join(tried.stderr.strip().splitlines()[-5:]) or "it said nothing")
