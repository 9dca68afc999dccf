"""Damaged traces, plans of replays, messages of failed jobs and descriptions of machines end in one sentence."""

from __future__ import annotations

import random
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.fuzz import recordings

NAMES = sorted(recordings.good())
_SHARED_FOLDER = [hypothesis.HealthCheck.function_scoped_fixture]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("failure")])
def test_a_good_file_is_read(tmp_path: Path, name: str) -> None:
    assert recordings.problem(name, recordings.good()[name][1], tmp_path) is None


@hypothesis.settings(max_examples=40, deadline=None, suppress_health_check=_SHARED_FOLDER)
@hypothesis.given(st.sampled_from(NAMES), st.integers(0, 1 << 32))
def test_damage_ends_in_one_sentence(tmp_path: Path, name: str, seed: int) -> None:
    content = recordings.damaged(recordings.good()[name][1], random.Random(seed))
    assert recordings.problem(name, content, tmp_path) is None


@pytest.mark.parametrize(
    ("name", "seed"),
    [("trace-2023", 148), ("machine-topo_xml/8_gpus_of_generation_3_efa", 343)],
    ids=["a number of ranks that is a list", "a NUMA node of thousands of digits"],
)
def test_damage_that_once_ended_in_a_traceback(tmp_path: Path, name: str, seed: int) -> None:
    assert (
        recordings.problem(name, recordings.damaged(recordings.good()[name][1], random.Random(seed)), tmp_path) is None
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@hypothesis.settings(max_examples=2000, deadline=None, suppress_health_check=_SHARED_FOLDER)
@hypothesis.given(st.sampled_from(NAMES), st.integers(0, 1 << 32))
def test_much_damage_ends_in_one_sentence(tmp_path: Path, name: str, seed: int) -> None:
    content = recordings.damaged(recordings.good()[name][1], random.Random(seed))
    assert recordings.problem(name, content, tmp_path) is None
