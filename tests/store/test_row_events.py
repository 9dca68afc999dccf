"""Events of rows: each is read once, whole, in its order; damaged lines and a missing file are no events."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from bench.store.row_events import RowEvent, RowEventReader, append

FIRST = RowEvent("allreduce", 8, "isolated", median_s=1e-6, busbw_bytes_per_s=8e6, flags=("drift",))
SECOND = RowEvent("allreduce", 64, "isolated", num_groups=3, failed=True, reason="a rank is gone")


def test_each_event_is_read_once(tmp_path: Path) -> None:
    reader = RowEventReader(tmp_path)
    assert reader.new() == []
    append(tmp_path, FIRST)
    append(tmp_path, SECOND)
    assert reader.new() == [FIRST, SECOND]
    assert reader.new() == []
    append(tmp_path, FIRST)
    assert [asdict(event) for event in reader.new()] == [asdict(FIRST)]


def test_a_line_that_is_not_complete_is_read_later(tmp_path: Path) -> None:
    append(tmp_path, FIRST)
    [file] = tmp_path.iterdir()
    whole = file.read_bytes()
    reader = RowEventReader(tmp_path)
    file.write_bytes(whole + whole[:9])
    assert reader.new() == [FIRST]
    file.write_bytes(whole + whole)
    assert reader.new() == [FIRST]


def test_lines_that_are_no_events_are_left_out(tmp_path: Path) -> None:
    append(tmp_path, FIRST)
    [file] = tmp_path.iterdir()
    file.write_bytes(b'{"pattern": 1, "flags": []}\n{"other": 1}\nno json\n[]\n' + file.read_bytes())
    assert RowEventReader(tmp_path).new() == [FIRST]


def test_a_folder_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    append(tmp_path / "gone", FIRST)
