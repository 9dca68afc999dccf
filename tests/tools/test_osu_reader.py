"""OSU's tables in anybody's log: every program that is read, sizes that are blocks, and rows that were cut."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bench.core import plugins
from bench.core.foreign import Line, Run, read_all
from bench.core.yaml_file import load

READER = plugins.load("tool", "osu").READER
EXPECTED: Any = load(Path(__file__).parent / "expected" / "osu_logs.yaml").value


def read(text: str) -> list[Run]:
    """The runs of a text."""
    return read_all(READER(), [Line(number, line) for number, line in enumerate(text.splitlines(), start=1)])


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_log_gives_what_is_in_it(name: str) -> None:
    folder = os.environ.get("BENCH_LOG_CORPUS")
    if not folder:
        pytest.skip("BENCH_LOG_CORPUS names no folder of real logs")
    wanted = EXPECTED[name]
    (run,) = read((Path(folder) / "osu_logs" / name).read_text(encoding="utf-8"))
    assert (run.tool, run.tool_version, run.status, run.failure) == ("osu", "5.7", "ok", None)
    assert (run.pattern, run.num_ranks, run.size_is_block) == (wanted["pattern"], None, False)
    assert dict(run.settings)["library"] == wanted["memory"] and not run.remarks
    assert len(run.rows) == wanted["rows"]
    for row, printed in ((run.rows[0], wanted["first"]), (run.rows[-1], wanted["last"])):
        got = (row.payload_bytes, row.time_s, row.min_s, row.max_s, row.num_iterations)
        size, mean, least, largest, count = printed
        assert got == (size, *(pytest.approx(value * 1e-6) for value in (mean, least, largest)), count)
    assert [row.line for row in run.rows] == list(range(wanted["first_line"], wanted["first_line"] + wanted["rows"]))


def test_there_is_an_expectation_for_every_real_log() -> None:
    folder = os.environ.get("BENCH_LOG_CORPUS")
    if not folder:
        pytest.skip("BENCH_LOG_CORPUS names no folder of real logs")
    assert {path.name for path in (Path(folder) / "osu_logs").iterdir()} == set(EXPECTED)
