"""A lease is lost when it is no longer renewed, and only then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.store import lease


def lost_at(contents: Sequence[str | None], every_s: float = 1.0) -> float | None:
    """The time of the read at which the lease is lost; None if it never is."""
    reader = lease.LeaseReader()
    for number, content in enumerate(contents):
        now_s = 1000.0 + number * every_s
        if reader.lost(content, now_s) is not None:
            return now_s - 1000.0
    return None


RENEWED = ["1", "1", "2", "2", "3"]


def test_a_lease_that_is_no_longer_renewed_is_lost_within_ten_seconds_of_the_last_change() -> None:
    lost_s = lost_at(RENEWED + ["3"] * 30)
    assert lost_s is not None
    assert lease.LAPSE_S < lost_s - RENEWED.index("3") <= 10


def test_a_lease_that_says_so_is_lost_at_once() -> None:
    assert lost_at([*RENEWED, lease.LOST]) == len(RENEWED)
    assert lost_at([lease.LOST]) == 0


@pytest.mark.parametrize(
    "contents",
    [
        [str(second // 2) for second in range(60)],
        ["7"] * 60,  # a copy that nobody renews
        [None] * 60,  # a folder that this host does not see
        [*RENEWED, *[None] * 60],  # the folder is gone: the results show that
        [str(second // 7) for second in range(60)],  # a file system that shows changes late
    ],
)
def test_a_lease_that_is_renewed_or_cannot_be_judged_is_not_lost(contents: list[str | None]) -> None:
    assert lost_at(contents) is None


def test_time_without_reads_does_not_count() -> None:
    """A file system that hangs, or a rank that was stopped."""
    assert lost_at([*RENEWED, "3", "3", "3"], every_s=30.0) is None


def test_a_lease_is_written_in_place_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / lease.NAME
    assert lease.read(path) is None
    lease.write(path, "12345678")
    inode = path.stat().st_ino
    lease.write(path, lease.LOST)
    assert (lease.read(path), path.stat().st_ino) == (lease.LOST, inode)
    lease.write(tmp_path / "missing" / lease.NAME, "1")
