"""Two sides measured in turn: what each process is asked for, and what an ended launch means."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from bench.controller.alternate import Side, alternate
from bench.controller.messages import ControllerError
from bench.core.errors import MeasurementError, UsageError

# A stand-in of `python -m bench run`: it notes its words and variables, and leaves a run as the first launch does.
RUN = """#!{python}
import json, os, pathlib, sys
words = sys.argv[1:]
results = pathlib.Path(words[words.index("--results") + 1])
with open({log!r}, "a") as log:
    log.write(json.dumps([results.name, words, os.environ.get("COLOUR")]) + "\\n")
(results / "run").mkdir(parents=True, exist_ok=True)
(results / "run" / "plan.json").write_text("{{}}")
sys.exit(4 if {fails!r} in words else 0)
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    program = tmp_path / "python"
    program.write_text(RUN.format(python=sys.executable, log=str(tmp_path / "log"), fails="broken"), encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_launches_alternate_and_each_side_is_one_run(tmp_path: Path, python: Path) -> None:
    a = Side.of(f"PYTHON={python} COLOUR=red latency --config 'my bench.yaml'", tmp_path / "a")
    b = Side.of(f"PYTHON={python} latency", tmp_path / "b")
    lines: list[str] = []
    assert list(alternate(a, b, 3, lines.append)) == [1, 2, 3]
    noted = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [name for name, _, _ in noted] == ["a", "b", "b", "a", "a", "b"] and len(lines) == 6
    first, again = noted[0][1], noted[3][1]
    assert first[:8] == ["-m", "bench", "run", "latency", "--config", "my bench.yaml", "--launches", "3"]
    assert again[:7] == ["-m", "bench", "run", "--resume", str(tmp_path / "a" / "run"), "--config", "my bench.yaml"]
    assert [words[words.index("--only-launch") + 1] for _, words, _ in noted] == ["1", "1", "2", "2", "3", "3"]
    assert {(name, colour) for name, _, colour in noted} == {("a", "red"), ("b", None)}


def test_a_launch_that_fails_ends_the_comparison_and_is_named(tmp_path: Path, python: Path) -> None:
    good, bad = (Side.of(f"PYTHON={python} {word}", tmp_path / word) for word in ("latency", "broken"))
    with pytest.raises(MeasurementError) as raised:
        list(alternate(good, bad, 3, lambda line: None))
    assert raised.value.code == ControllerError.LAUNCH_FAILED
    assert (raised.value.facts["launch"], raised.value.facts["exit_code"]) == (1, 4)


def test_quotes_that_do_not_match_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--run"):
        Side.of("latency 'main", tmp_path)
