"""Checkpoints of one rank on real files: what is read back comes from the device, and damage is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.core.checkpoint import METHODS, BurstPlan
from bench.datasets import page_cache
from bench.transports._torch_checkpoint import TorchCheckpointer

pytestmark = pytest.mark.torch
SHARD = 1 << 20


@pytest.fixture(scope="module")
def torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A world of one rank."""
    found = pytest.importorskip("torch")
    store = found.distributed.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    found.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield found
    found.distributed.destroy_process_group()


def writer(torch: Any, folder: Path, method: str) -> TorchCheckpointer:
    return TorchCheckpointer(torch, 0, 1, BurstPlan(str(folder), method, SHARD, 0.001, 4096, seed=1))


@pytest.mark.parametrize("method", METHODS)
def test_a_shard_is_read_back_from_the_device_and_removed(method: str, torch: Any, tmp_path: Path) -> None:
    one = writer(torch, tmp_path, method)
    for _ in range(2):
        times = one.burst(3)
        assert len(times.steps) >= 3
        assert 0 <= times.during <= len(times.steps)
        back = one.read_back()
        assert back.is_right
        if page_cache.file_system(tmp_path) not in page_cache.IN_MEMORY:
            assert back.pages == 0 and back.received_bytes >= 0.99 * SHARD
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", METHODS)
def test_a_damaged_shard_is_found(method: str, torch: Any, tmp_path: Path) -> None:
    one = writer(torch, tmp_path, method)
    one.burst(1)
    (file,) = [*tmp_path.rglob("*.bin"), *tmp_path.rglob("*.distcp")]
    with file.open("r+b") as opened:
        opened.seek(SHARD // 2)
        opened.write(b"damage")
    assert not one.read_back().is_right


def test_files_that_stay_in_the_cache_are_counted(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = writer(torch, tmp_path, "file")
    one.burst(1)
    monkeypatch.setattr(page_cache, "evict", lambda files: None)
    back = one.read_back()
    assert back.pages > 0 and back.received_bytes < 0.99 * SHARD
