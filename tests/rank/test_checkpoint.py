"""The folder of checkpoints: its space, and a disk that cannot be written."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from bench.core import plugins
from bench.core.case import Case
from bench.core.errors import EXIT_USAGE, UsageError
from bench.core.world import RankInfo
from bench.datasets import page_cache
from bench.datasets.messages import DatasetError
from bench.datasets.work_folder import WorkFolder
from bench.rank.checkpoint import BurstMeasurer

PAYLOAD = 1 << 20


class Channel:
    """Rank 0 is on another host; its folder is not on this one."""

    def broadcast(self, _: Any) -> Any:
        return "/not/on/this/host", ""

    def share(self, value: Any) -> list[Any]:
        return [type(value)(), value]  # the other ranks have no trouble


class Transport:
    place = RankInfo(2, 4, 0, 2, "direct")
    channel = Channel()

    def checkpointer(self, plan: object) -> None:
        """Write nothing."""


def measurer(folder: Path) -> BurstMeasurer:
    case = Case("checkpoint", transport="gloo", folder=str(folder), method="file")
    pattern = plugins.load("pattern", "checkpoint").PATTERN
    transport: Any = Transport()
    hosts = ("h0", "h0", "h1", "h1")
    return BurstMeasurer(case, pattern, transport, PAYLOAD, (PAYLOAD,), hosts, lambda _: None, contextlib.nullcontext)


def test_a_host_with_its_own_disk_needs_space_for_its_own_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed: list[int] = []

    def lacks_bytes(_: WorkFolder, num_bytes: int) -> int:
        needed.append(num_bytes)
        return 0

    monkeypatch.setattr(WorkFolder, "lacks_bytes", lacks_bytes)
    monkeypatch.setattr(page_cache, "file_system", lambda folder: "ext4")
    one = measurer(tmp_path)
    assert one.prepare() is None
    one.close()
    assert needed == [2 * PAYLOAD] and list(tmp_path.iterdir()) == []


def test_a_folder_that_one_rank_cannot_write_is_bad_input_on_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(page_cache, "file_system", lambda folder: "nfs4")
    monkeypatch.setattr(page_cache, "counter_of", refuse)
    with pytest.raises(UsageError) as error:
        measurer(tmp_path).prepare()
    assert (error.value.code, error.value.exit_code) == (DatasetError.FOLDER, EXIT_USAGE)
    assert list(tmp_path.iterdir()) == []
