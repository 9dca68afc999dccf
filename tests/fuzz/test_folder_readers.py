"""Damaged plan.json, outcomes.json and retests.json: each is refused with its path, and no gate passes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from bench.core.errors import UsageError
from bench.store import runs
from tests.fuzz import folders, mutations

_SHARED_FOLDER = [hypothesis.HealthCheck.function_scoped_fixture]
_READERS = {
    "plan.json": runs.read_plan,
    "outcomes.json": runs.outcomes_or_error,
    "retests.json": runs.read_retests,
}


def test_a_good_folder_is_read(tmp_path: Path) -> None:
    folders.write(tmp_path)
    assert folders.read(tmp_path)
    end = mutations.ended(["report", str(tmp_path), "--format", "json"])
    assert end.code == 0 and json.loads(end.out)["summaries"]


def test_a_remark_with_a_key_of_another_version_is_read(tmp_path: Path) -> None:
    folders.write(tmp_path)
    plan = folders.files()["plan.json"]
    plan["remarks"][0]["more"] = 1
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    assert [remark.text for remark in runs.remarks_of(runs.read_plan(tmp_path))] == ["a note"]


@hypothesis.settings(max_examples=100, suppress_health_check=_SHARED_FOLDER)
@hypothesis.given(st.sampled_from(folders.NAMES), st.integers(0, 1 << 32))
def test_a_reader_reads_or_refuses(tmp_path: Path, name: str, seed: int) -> None:
    folders.write(tmp_path)
    (tmp_path / name).write_bytes(folders.damaged(name, seed))
    folders.read(tmp_path)


@hypothesis.settings(max_examples=3, suppress_health_check=_SHARED_FOLDER)
@hypothesis.given(st.sampled_from(folders.NAMES), st.integers(0, 1 << 32))
def test_commands_read_or_refuse(tmp_path: Path, name: str, seed: int) -> None:
    folders.write(tmp_path)
    (tmp_path / name).write_bytes(folders.damaged(name, seed))
    assert folders.run_commands(tmp_path, random.Random(seed)) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@hypothesis.settings(max_examples=700, suppress_health_check=_SHARED_FOLDER)
@hypothesis.given(st.sampled_from(folders.NAMES), st.integers(0, 1 << 32))
def test_commands_read_or_refuse_much_damage(tmp_path: Path, name: str, seed: int) -> None:
    folders.write(tmp_path)
    (tmp_path / name).write_bytes(folders.damaged(name, seed))
    assert folders.run_commands(tmp_path, random.Random(seed)) == []


@pytest.mark.parametrize("nest", [b"[", b'{"a":'])
@pytest.mark.parametrize("name", folders.NAMES)
def test_deep_nesting_is_refused(tmp_path: Path, name: str, nest: bytes) -> None:
    folders.write(tmp_path)
    (tmp_path / name).write_bytes(nest * 100_000)
    with pytest.raises(UsageError) as error:
        _READERS[name](tmp_path)
    assert str(tmp_path / name) in str(error.value)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("plan.json", ("jobs",), 3),
        ("plan.json", ("jobs", 0, "name"), "../x"),
        ("plan.json", ("jobs", 0, "world"), None),
        ("plan.json", ("jobs", 0, "world", "num_nodes"), -2),
        ("plan.json", ("jobs", 0, "world", "more"), 1),
        ("plan.json", ("jobs", 0, "case"), [1]),
        ("plan.json", ("jobs", 0, "factors"), []),
        ("plan.json", ("cluster",), []),
        ("plan.json", ("cluster", "env"), {"A": 1}),
        ("plan.json", ("cluster", "hosts"), "host0"),
        ("plan.json", ("scenario",), None),
        ("plan.json", ("remarks",), [{"code": 3}]),
        ("plan.json", ("skipped",), {"what": "x"}),
        ("outcomes.json", (folders.JOB,), 5),
        ("outcomes.json", (folders.JOB, "exit_code"), "4"),
        ("outcomes.json", (folders.JOB, "rank"), -1),
        ("outcomes.json", (folders.JOB, "facts"), [1]),
        ("outcomes.json", (folders.JOB, "what"), {}),
        ("retests.json", (0, "jobs"), [folders.JOB]),
        ("retests.json", (0, "jobs", folders.JOB), "host1"),
        ("retests.json", (0, "failures"), {"too-low": "2"}),
        ("retests.json", (0, "outcomes_before"), 1),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_key(
    tmp_path: Path, name: str, path: tuple[Any, ...], value: Any
) -> None:
    folders.write(tmp_path)
    whole = folders.files()[name]
    parent = whole
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    (tmp_path / name).write_text(json.dumps(whole), encoding="utf-8")
    with pytest.raises(UsageError) as error:
        _READERS[name](tmp_path)
    named = "world" if path[-1] == "more" else path[-1]
    assert str(tmp_path / name) in str(error.value) and str(named) in str(error.value)


@pytest.mark.parametrize("name", folders.NAMES)
def test_no_gate_passes_a_damaged_folder(tmp_path: Path, name: str) -> None:
    folders.write(tmp_path)
    (tmp_path / name).write_text('{"schema": "bench.plan/1", "jobs": -1}', encoding="utf-8")
    end = mutations.ended(["gate", str(tmp_path), "--rules", "publication", "--format", "json"])
    assert end.code != 0 and not json.loads(end.out)["passed"]
