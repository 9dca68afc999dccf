"""p2pBandwidthLatencyTest's matrices: links, copies through host memory and copies inside a GPU are never mixed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bench.core import plugins
from bench.core.foreign import Line, Matrix, Run, read_all
from bench.core.yaml_file import load

READER = plugins.load("tool", "p2p_bandwidth_latency").READER
EXPECTED: Any = load(Path(__file__).parent / "expected" / "p2p_logs.yaml").value
PRINTED = {"bytes_per_s": 1e9, "s": 1e-6}


def read(text: str) -> list[Run]:
    """The runs of a text."""
    return read_all(READER(), [Line(number, line) for number, line in enumerate(text.splitlines(), start=1)])


def log(name: str) -> str:
    """A real log, or a skip."""
    folder = os.environ.get("BENCH_LOG_CORPUS")
    if not folder:
        pytest.skip("BENCH_LOG_CORPUS names no folder of real logs")
    return (Path(folder) / "p2p_logs" / name).read_text(encoding="utf-8")


def brief(found: Matrix) -> list[Any]:
    """A matrix as the expectations put it."""
    good = [cell for cell in found.cells if cell.status == "ok"]
    waived = [cell for cell in found.cells if cell.status == "waived"]
    assert len(good) + len(waived) == len(found.cells)
    ends: list[Any] = [None] * 6
    if good:
        first, last = good[0], good[-1]
        values = [pytest.approx((cell.value or 0) / PRINTED[found.unit]) for cell in (first, last)]
        ends = [first.src, first.dst, values[0], last.src, last.dst, values[1]]
    return [found.name, found.unit, found.direction, len(good), len(waived), *ends]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_log_gives_what_is_in_it(name: str) -> None:
    wanted = EXPECTED[name]
    (run,) = read(log(name))
    assert (run.tool, run.status, list(run.gpus)) == ("p2p_bandwidth_latency", wanted["status"], wanted.get("gpus", []))
    assert [brief(found) for found in run.matrices] == wanted["matrices"]
    assert [remark.line for remark in run.remarks] == [line for line, _ in wanted.get("remarks", [])]
    assert all(word in one.text for one, (_, word) in zip(run.remarks, wanted.get("remarks", []), strict=True))


def test_there_is_an_expectation_for_every_real_log() -> None:
    folder = os.environ.get("BENCH_LOG_CORPUS")
    if not folder:
        pytest.skip("BENCH_LOG_CORPUS names no folder of real logs")
    assert {path.name for path in (Path(folder) / "p2p_logs").iterdir()} == set(EXPECTED)
