"""nvbandwidth's matrices: text and JSON of its versions, what is waived, failed or cut, and which way bytes went."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bench.core import plugins
from bench.core.foreign import Line, Matrix, Run, read_all
from bench.core.yaml_file import load

READER = plugins.load("tool", "nvbandwidth").READER
EXPECTED: Any = load(Path(__file__).parent / "expected" / "nvbandwidth_logs.yaml").value
PRINTED = {"bytes_per_s": 1e9, "s": 1e-9}


def read(text: str) -> list[Run]:
    """The runs of a text."""
    return read_all(READER(), [Line(number, line) for number, line in enumerate(text.splitlines(), start=1)])


def one(text: str) -> Run:
    """The only run of a text."""
    (run,) = read(text)
    return run


def matrix(run: Run, name: str) -> Matrix:
    """The only matrix of a name."""
    (found,) = [matrix for matrix in run.matrices if matrix.name == name]
    return found


def rates(found: Matrix) -> dict[tuple[str, str], float | None]:
    """Pair -> value, in the printed unit."""
    return {
        (c.src, c.dst): c.value if c.value is None else round(c.value / PRINTED[found.unit], 9) for c in found.cells
    }


def log(name: str) -> str:
    """A real log, or a skip."""
    folder = os.environ.get("BENCH_LOG_CORPUS")
    if not folder:
        pytest.skip("BENCH_LOG_CORPUS names no folder of real logs")
    return (Path(folder) / "nvbandwidth_logs" / name).read_text(encoding="utf-8")


def brief(found: Matrix) -> list[Any]:
    """A matrix as the expectations put it."""
    printed = PRINTED[found.unit]
    good = [cell for cell in found.cells if cell.status == "ok"]
    waived = [cell for cell in found.cells if cell.status == "waived"]
    assert len(good) + len(waived) == len(found.cells)
    ends = [[cell.src, cell.dst, pytest.approx((cell.value or 0) / printed)] for cell in (good[0], good[-1])]
    return [found.name, found.unit, found.direction, found.engine, len(good), len(waived), *ends[0], *ends[1]]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_log_gives_what_is_in_it(name: str) -> None:
    wanted = EXPECTED[name]
    run = one(log(name))
    assert (run.tool, run.tool_version, run.status) == ("nvbandwidth", wanted.get("tool_version"), wanted["status"])
    assert (wanted.get("failure") or "") in (run.failure or "") and bool(run.failure) == (run.status != "ok")
    assert list(run.gpus) == wanted.get("gpus", []) and list(run.hosts) == wanted.get("hosts", [])
    assert dict(run.settings) == wanted.get("settings", {})
    assert [brief(found) for found in run.matrices] == [row[:-1] for row in wanted["matrices"]]
    for found, row in zip(run.matrices, wanted["matrices"], strict=True):
        if row[-1] is not None:  # every figure at once: what the tool itself printed as their sum
            total = sum(cell.value or 0 for cell in found.cells) / PRINTED[found.unit]
            assert total == pytest.approx(row[-1], rel=2e-5)
    said = [(remark.line, remark.text) for remark in run.remarks if remark.line is not None]
    assert [line for line, _ in said] == [line for line, _ in wanted.get("remarks", [])]
    assert all(word in text for (_, text), (_, word) in zip(said, wanted.get("remarks", []), strict=True))


def test_there_is_an_expectation_for_every_real_log() -> None:
    folder = os.environ.get("BENCH_LOG_CORPUS")
    if not folder:
        pytest.skip("BENCH_LOG_CORPUS names no folder of real logs")
    assert {path.name for path in (Path(folder) / "nvbandwidth_logs").iterdir()} == set(EXPECTED)
