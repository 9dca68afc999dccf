"""Damaged results files: every command ends with 0, 1 or 2 and one sentence, and a gate never passes one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from bench.core.errors import UsageError
from bench.results import collect
from bench.store import jsonl
from tests.fuzz import mutations

NAMES = sorted(mutations.base_lines())


@pytest.fixture(scope="module")
def bases() -> dict[str, list[bytes]]:
    """The good files."""
    return mutations.base_lines()


def problems(bases: dict[str, list[bytes]], name: str, seed: int, folder: Path) -> list[str]:
    """What is wrong after the mutations of one seed."""
    good = folder / f"{name}.jsonl"
    good.write_bytes(b"\n".join(bases[name]) + b"\n")
    others = [lines for other, lines in bases.items() if other != name]
    lines = mutations.damaged(bases[name], seed, others)
    return mutations.run_commands(lines, folder / "bad.jsonl", good, random.Random(seed))


@hypothesis.settings(max_examples=6, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(st.sampled_from(NAMES), st.integers(0, 1 << 32))
def test_damage_ends_in_one_sentence(bases: dict[str, list[bytes]], tmp_path: Path, name: str, seed: int) -> None:
    assert problems(bases, name, seed, tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@hypothesis.settings(max_examples=3000, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(st.sampled_from(NAMES), st.integers(0, 1 << 32))
def test_much_damage_ends_in_one_sentence(bases: dict[str, list[bytes]], tmp_path: Path, name: str, seed: int) -> None:
    assert problems(bases, name, seed, tmp_path) == []


@hypothesis.settings(max_examples=200, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(st.sampled_from(NAMES), st.integers(0, 1 << 32))
def test_the_reader_reads_or_refuses(bases: dict[str, list[bytes]], tmp_path: Path, name: str, seed: int) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"\n".join(mutations.damaged(bases[name], seed, list(bases.values()))) + b"\n")
    try:
        jsonl.read(path)
    except UsageError as error:
        assert str(path) in str(error) and len(str(error)) < len(str(path)) + 400


@pytest.mark.parametrize("name", NAMES)
def test_a_good_file_is_read(bases: dict[str, list[bytes]], tmp_path: Path, name: str) -> None:
    path = tmp_path / "good.jsonl"
    path.write_bytes(b"\n".join(bases[name]) + b"\n")
    assert len(jsonl.read(path).attempts[0].records) == len(bases[name]) - 1


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        (1, "payload_bytes", -8),
        (1, "payload_bytes", 1 << 70),
        (1, "requested_bytes", [-8]),
        (1, "num_ranks", 0),
        (1, "num_wrong", -1),
        (1, "bus_factor", float("nan")),
        (1, "mode", None),
        (1, "samples", {"seconds": [10**400], "calls_per_sample": 1, "loop": "python"}),
        (0, "num_ranks", -2),
        (0, "num_ranks", 3),
        (0, "ranks_per_node", 1 << 40),
        (0, "ranks_per_node", None),
        (0, "nodes", {"host0": {"gpus": [{"name": 3}]}}),
        (0, "nodes", ["host0"]),
        (0, "calibration", {"memcpy": 3}),
        (0, "calibration", {"software_s": {}}),
        (0, "links", {"instance": "x", "gpus": 2, "peer": "no such link"}),
        (0, "imported", {"line": "x"}),
        (0, "ranks", [{"local_rank": 0}]),
        (0, "remarks", [{"code": 3}]),
        (0, "notes", 5),
        (0, "settings", {"binding": []}),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_line_and_key(
    bases: dict[str, list[bytes]], tmp_path: Path, line: int, key: str, value: Any
) -> None:
    path = tmp_path / "bad.jsonl"
    lines = list(bases["kinds"])
    lines[line] = json.dumps(json.loads(lines[line]) | {key: value}).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(UsageError) as error:
        jsonl.read(path)
    if key != "samples":
        assert key in str(error.value)
    assert f"{path}:{line + 1}:" in str(error.value)


@pytest.mark.parametrize(
    ("name", "part", "key", "value"),
    [
        ("feed", "reads", "wait_s", [1e-3]),
        ("feed", "reads", "step_s", []),
        ("feed", "reads", "num_records", 0),
        ("step", "step", "twins_s", {}),
        ("step", "step", "twins_s", {name: [0.0] for name in ("bare", "local", "host_resident", "device_resident")}),
        ("step", "step", "full_s", [[1.0]]),
        ("step", "step", "full_s", [[1.0], [0.0]]),
        ("step", "step", "segments_s", {"data": [[1.0], [1.0]]}),
        ("step", "step", "bucket_done_s", [1.0]),
        ("step", "step", "samples_per_block", 0),
        ("step", "samples", "by_rank", []),
    ],
)
def test_parts_of_feeds_and_steps_that_do_not_fit_together_are_refused(
    bases: dict[str, list[bytes]], tmp_path: Path, name: str, part: str, key: str, value: Any
) -> None:
    path, lines = tmp_path / "bad.jsonl", [json.loads(line) for line in bases[name]]
    row = next(line for line in reversed(lines) if part in line)
    row[part] |= {key: value}
    if key == "by_rank":
        row[part]["seconds"] = [1.0]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UsageError) as error:
        jsonl.read(path)
    assert f"{path}:{lines.index(row) + 1}:" in str(error.value)


@pytest.mark.parametrize("nest", [b"[", b'{"a":'])
def test_deep_nesting_is_refused(bases: dict[str, list[bytes]], tmp_path: Path, nest: bytes) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"\n".join([*bases["kinds"], nest * 100_000]) + b"\n")
    with pytest.raises(UsageError) as error:
        jsonl.read(path)
    assert f"{path}:{len(bases['kinds']) + 1}:" in str(error.value)


@pytest.mark.parametrize("group", ["0-9", f"0-{1 << 70}"])
def test_a_pair_of_ranks_that_the_run_does_not_have_is_no_evidence(
    bases: dict[str, list[bytes]], tmp_path: Path, group: str
) -> None:
    lines = [json.loads(line) for line in bases["pairs"]]
    for line in lines[1:]:
        if "group" in line:
            line["group"] = group
    text = [json.dumps(line).encode() for line in lines]
    assert mutations.run_commands(text, tmp_path / "bad.jsonl", tmp_path / "bad.jsonl", random.Random(1), True) == []


@pytest.mark.parametrize("nest", [b"[", b'{"a":'])
def test_a_command_that_takes_other_files_too_refuses_deep_nesting(tmp_path: Path, nest: bytes) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(nest * 100_000)
    for argv in (["diagnose", str(path)], ["doctor", "--facts", str(path)]):
        end = mutations.ended(argv)
        assert end.code == 2 and end.err.count("bench: error") == 1 and "internal" not in end.err, end


@pytest.mark.parametrize("second", [1e308, float("nan"), -1.0, 0.0])
@pytest.mark.parametrize("part", ["contention", "overlap"])
def test_times_without_a_ratio_have_no_interference_and_no_overlap(
    bases: dict[str, list[bytes]], tmp_path: Path, part: str, second: float
) -> None:
    path, lines = tmp_path / "bad.jsonl", [json.loads(line) for line in bases["kinds"]]
    (line,) = [line for line in lines if line.get(part)]
    line["samples"]["seconds"][2] = second
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    document = collect.document(path)
    assert len(document.interferences) == (part == "overlap") and len(document.overlaps) == (part == "contention")
