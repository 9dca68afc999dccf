"""The layout of results/, and the heartbeats beside it."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench.core.errors import BenchError, RefusedError, UsageError
from bench.store import heartbeat, ownership, runs
from bench.store.heartbeat import End, Heartbeat
from bench.store.ownership import OwnerCode


def test_run_ids_sort_by_time_and_two_in_one_second_are_two_folders(tmp_path: Path) -> None:
    name = runs.new_run_id("local", "main", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert name == "20260102-030405-local-main"
    assert runs.create(tmp_path / "results", name).name == name
    assert runs.create(tmp_path / "results", name).name == f"{name}-2"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EROFS, RefusedError),
        (errno.ENOSPC, RefusedError),
        (errno.EDQUOT, RefusedError),
        (errno.EACCES, RefusedError),
        (errno.ENOTDIR, UsageError),
        (errno.ENOENT, UsageError),
    ],
)
def test_an_unwritable_disk_is_refused_and_an_impossible_folder_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[BenchError]
) -> None:
    def refuse(path: Path, content: bytes) -> int:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(kind, match=re.escape(f"({os.strerror(number)})")):
        runs.create(tmp_path, "20260102-a")


def test_a_run_is_found_by_path_by_name_and_as_the_latest(tmp_path: Path) -> None:
    folder = runs.create(tmp_path, "20260102-a")
    with pytest.raises(UsageError, match="there is no run in"):
        runs.find(tmp_path, "latest")
    runs.write_plan(folder, {"jobs": []})
    assert (
        runs.find(tmp_path, "latest") == runs.find(tmp_path, "20260102-a") == runs.find(tmp_path, str(folder)) == folder
    )
    with pytest.raises(UsageError, match="20260102-a"):
        runs.find(tmp_path, "other")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "bench.plan/99"}'])
def test_a_broken_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="plan"):
        runs.read_plan(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"job": 5}'])
def test_broken_outcomes_are_an_error(tmp_path: Path, text: str) -> None:
    assert runs.outcomes_or_error(tmp_path) == {}, "a run that never got so far"
    (tmp_path / "outcomes.json").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"outcomes\.json:"):
        runs.outcomes_or_error(tmp_path)


PLAN = """{
 "schema": "bench.plan/1",
 "scenario": "s",
 "cluster": {},
 "jobs": [
  {"name": "a", "case": [], "world": {"num_nodes": 1, "ranks_per_node": 2}, "factors": {}},
  {"name": "a.b",
   "case": [],
   "world": {
    "num_nodes": 1,
    "ranks_per_node": "two"}, "factors": {}}
 ]
}"""


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("", "", 11),
        ('"two"', '2, "notes": 5', 9),
        ('"two"}', '2}, "launch": 0', 11),
        ('"case": [],\n   "world"', '"cases": [],\n   "world"', 7),
        ('"scenario": "s"', '"scenario": 5', 3),
    ],
    ids=["nested", "a key too many", "another key", "missing", "first level"],
)
def test_a_plan_that_does_not_fit_is_refused_with_its_line(tmp_path: Path, old: str, new: str, line: int) -> None:
    (tmp_path / "plan.json").write_text(PLAN.replace(old, new) if old else PLAN, encoding="utf-8")
    with pytest.raises(UsageError, match=rf"plan\.json:{line}: "):
        runs.read_plan(tmp_path)


def test_outcomes_that_do_not_fit_are_refused_with_their_line(tmp_path: Path) -> None:
    text = '{\n "a": {"exit_code": 0},\n "a.b": {\n  "exit_code": 0,\n  "rank": -1}\n}'
    (tmp_path / "outcomes.json").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"outcomes\.json:5: "):
        runs.outcomes_or_error(tmp_path)


def test_outcomes_that_are_not_there_or_broken_are_none(tmp_path: Path) -> None:
    assert runs.read_outcomes(tmp_path) == {}
    (tmp_path / "outcomes.json").write_text("{", encoding="utf-8")
    assert runs.read_outcomes(tmp_path) == {}
    runs.write_outcomes(tmp_path, {"job": {"exit_code": 9, "what": "died"}})
    assert runs.read_outcomes(tmp_path)["job"]["what"] == "died"


def test_the_last_beat_of_each_rank_is_read_and_a_broken_file_is_ignored(tmp_path: Path) -> None:
    ended = End("out-of-memory", {"free_mib": 3}, "ran out of memory")
    heartbeat.write(tmp_path, Heartbeat(2, "h1", 11, "allreduce 8: last check", 90.0))
    heartbeat.write(tmp_path, Heartbeat(0, "h0", 10, "allreduce 8: warm-up", 100.0))
    heartbeat.write(tmp_path, Heartbeat(0, "h0", 10, "allreduce 8: last check", 101.0, ended))
    (tmp_path / "7.json").write_text("{", encoding="utf-8")
    heartbeat.stack_file(tmp_path, 0).write_text("Thread", encoding="utf-8")
    assert [(beat.rank, beat.ended) for beat in heartbeat.read_all(tmp_path)] == [(0, ended), (2, None)]


def test_a_run_that_others_can_change_is_not_continued_but_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, foreign = (runs.create(tmp_path, name) for name in ("20260102-own", "20260103-foreign"))
    for age, folder in ((1000, own), (2000, foreign)):
        runs.write_plan(folder, {"jobs": []})
        os.utime(folder, (age, age))
    assert runs.find_own(tmp_path, "latest") == foreign
    for path in (foreign, foreign / "plan.json"):
        path.chmod(path.stat().st_mode | 0o002)
        os.utime(foreign, (2000, 2000))
        assert runs.find(tmp_path, "latest") == foreign, "reports read it"
        assert runs.find_own(tmp_path, "latest") == own
        with pytest.raises(RefusedError) as refused:
            runs.find_own(tmp_path, foreign.name)
        assert refused.value.code == OwnerCode.OTHERS_MAY_WRITE
        assert refused.value.facts["path"] == str(path) and "chmod -R go-w" in str(refused.value)
        path.chmod(path.stat().st_mode & ~0o002)
    monkeypatch.setattr(os, "geteuid", lambda: foreign.stat().st_uid + 1)  # both belong to somebody else, as to root
    for name in ("latest", str(own)):
        with pytest.raises(RefusedError) as refused:
            runs.find_own(tmp_path, name)
        assert refused.value.code == OwnerCode.OTHER_OWNER and refused.value.facts["owner"]


def test_a_results_file_that_others_may_write_is_not_continued(tmp_path: Path) -> None:
    folder = runs.create(tmp_path, "20260102-a")
    runs.write_plan(folder, {"jobs": []})
    rows = runs.results_file(folder, "a")
    rows.touch()
    assert runs.find_own(tmp_path, "latest") == folder
    rows.chmod(0o666)
    with pytest.raises(RefusedError) as refused:
        runs.find_own(tmp_path, "latest")
    assert refused.value.facts["path"] == str(rows)


def test_the_private_group_of_a_user_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = runs.create(tmp_path, "20260102-a")
    runs.write_plan(folder, {"jobs": []})
    (folder / "plan.json").chmod(0o660)
    name = pwd.getpwuid(os.geteuid()).pw_name
    for group, members, trusted in (
        (name, [], True),
        (name, [name], True),
        (name, ["eve"], False),
        ("staff", [], False),
    ):
        found = grp.struct_group((group, "x", 1, members))
        monkeypatch.setattr(grp, "getgrgid", lambda gid, found=found: found)
        assert (ownership.distrust(folder) is None) == trusted


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o077])
def test_a_new_run_can_be_continued_under_every_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        folder = runs.create(tmp_path / "results", "20260102-a")
        runs.write_plan(folder, {"jobs": []})
        runs.write_outcomes(folder, {})
    finally:
        os.umask(before)
    assert runs.find_own(tmp_path / "results", "latest") == folder


def test_other_users_read_neither_the_log_of_a_job_nor_the_output_of_its_tool(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        for text in (b"first\n", b"second\n"):
            with runs.open_log(tmp_path, "a") as log, runs.open_output(tmp_path, "a") as output:
                log.write(text)
                output.write(text)
    finally:
        os.umask(before)
    log_path, output_path = runs.log_file(tmp_path, "a"), runs.output_file(tmp_path, "a")
    assert [path.stat().st_mode & 0o777 for path in (log_path, output_path)] == [0o640, 0o640]
    assert log_path.read_bytes() == b"first\nsecond\n" and output_path.read_bytes() == b"second\n"
