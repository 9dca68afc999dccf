"""Adding a reason touches one file: the example in docs/extending.md, in a copy of the package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench.core.units import format_rate
from tests.commands.test_explain import log
from tests.copies import copy_package
from tests.explain.logs import curve
from tests.facts import holds

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with one file more, and a log of two sizes."""
    folder = tmp_path_factory.mktemp("copied")
    copy_package(folder)
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    _, _, section = text.partition("## Add a reason of explain\n")
    of_rows, of_failures = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    (folder / "bench" / "explain" / "reasons" / "tool_settings.py").write_text(of_rows)
    (folder / "bench" / "explain" / "reasons" / "ringmark.py").write_text(of_failures)
    rows = curve("allreduce", 8, 300.0, sizes=(1 << 30, 1 << 31))
    whole = log(rows, "NVIDIA H100 80GB HBM3").replace("minBytes 8 maxBytes 17179869184", "minBytes 1G maxBytes 2G")
    (folder / "few.log").write_text(whole)
    return folder


@cache
def explain(folder: Path, *options: str) -> str:
    """What is printed, from one start for all tests that ask for the same."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", "explain", "few.log", *options],
        env=os.environ | {"PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_reason_is_in_json_with_its_code_and_facts(copied: Path) -> None:
    [page] = json.loads(explain(copied, "--format", "json"))["pages"]
    found: dict[str, dict[str, Any]] = {reason["code"]: reason for reason in page["reasons"]}
    reason = found["few-sizes"]
    assert reason["facts"] == {
        "num_sizes": 2,
        "rate": page["best"]["busbw_bytes_per_s"],
        "largest_bytes": 1 << 31,
    }
    assert reason["weight"] == 0.3 and reason["command"] == "all_reduce_perf -b 8 -e 8G -f 2"


def test_a_new_reason_is_on_the_page_with_its_words_and_next_step(copied: Path) -> None:
    [page] = json.loads(explain(copied, "--format", "json"))["pages"]
    text = " ".join(explain(copied).split())
    rate = format_rate(page["best"]["busbw_bytes_per_s"])
    assert holds(text, "2 sizes:", rate, "2 GiB")
    assert holds(text, "measure", "all_reduce_perf -b 8 -e 8G -f 2")


def test_a_new_reason_for_a_failure_reads_its_facts(copied: Path) -> None:
    code = (
        "from bench.core.codes import Coded; from bench.explain.reason import FailedRun, failure_reasons\n"
        "from bench.logs.foreign import FAILED, ForeignRun\n"
        "for errors in (10, 11):\n"
        "    failure = Coded('errors', {'errors': errors}, '')\n"
        "    [found] = failure_reasons(FailedRun(ForeignRun('osu', status=FAILED, failure=failure)))\n"
        "    print(found.code, found.facts.get('errors'))"
    )
    env = os.environ | {"PYTHONPATH": str(copied)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=copied, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout.split("\n") == ["tool-failed None", "many-errors 11", ""], done.stderr
