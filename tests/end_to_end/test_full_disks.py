"""Disks that fill up while a data set or a checkpoint is written: ext4 on a loop device, filled by another writer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.core import plugins
from bench.core.case import Case
from bench.core.errors import EXIT_MEASUREMENT, MeasurementError
from bench.core.program import Group, Read
from bench.core.transport import Compiled, Options, Reduction
from bench.core.world import RankInfo
from bench.datasets.messages import DatasetError
from bench.transports.storage import Storage
from tests.end_to_end.conftest import environment

MIB = 1 << 20
REDUCTION = Reduction("float32", "sum")
DiskOf = Callable[[int], Path]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskOf]:
    """`disk(num_bytes)`: an empty ext4 file system of this size, on a loop device."""
    mounts: list[Path] = []

    def made(num_bytes: int) -> Path:
        image, mount = tmp_path / f"image{len(mounts)}", tmp_path / f"disk{len(mounts)}"
        image.touch()
        os.truncate(image, num_bytes)
        mount.mkdir()
        make = ["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image)]
        for command in (make, ["mount", "-o", "loop", str(image), str(mount)]):
            if subprocess.run(command, capture_output=True, check=False).returncode:
                pytest.skip("loop devices need root and mkfs.ext4")
        mounts.append(mount)
        (mount / "lost+found").rmdir()
        return mount

    yield made
    for mount in mounts:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)


def fill(disk: Path, leave_bytes: int = 0) -> None:
    """Take all space except `leave_bytes`, as another program would, although others write meanwhile."""
    found = os.statvfs(disk)
    size = max(1, found.f_bavail * found.f_frsize - leave_bytes)
    with (disk / "other").open("wb") as file:
        while size:
            try:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                size = 0 if leave_bytes else size
            except OSError:
                size //= 2


def opened(folder: Path, num_bytes: int, **factors: Any) -> tuple[Storage, Compiled]:
    case = Case("feed", mode="isolated", folder=str(folder), record=64 << 10, **factors)
    storage = Storage(RankInfo(0, 1, 0, 1, "direct"), Options(case=case))
    buffers = storage.allocate(num_bytes, num_bytes, 1)
    buffers.write("send", 0, np.random.default_rng(1).integers(0, 256, num_bytes, np.uint8))
    return storage, storage.compile((Read(num_bytes),), Group("world", (0,)), buffers, REDUCTION, False)


@pytest.mark.parametrize("files", plugins.names("dataset format"))
def test_a_disk_that_fills_up_ends_the_run_and_leaves_nothing(files: str, disk: DiskOf) -> None:
    if plugins.load("dataset format", files).FORMAT.missing:
        pytest.skip(f"{files} is not installed")
    place = disk(32 * MIB)
    # There is no space; for one shard; for all records, but not for the file with which the disk is measured.
    for leave_bytes in (0, 3 * MIB, 9 * MIB):
        storage, compiled = opened(place, 8 * MIB, files=files)
        assert storage.unsupported_reason(Read(8 * MIB), REDUCTION, False) is None
        fill(place, leave_bytes)
        with pytest.raises(MeasurementError) as error:
            compiled.calls[0]()
        storage.close()
        (place / "other").unlink()
        assert error.value.code == DatasetError.WRITE
        assert "No space left on device" in error.value.facts["why"], error.value
        assert list(place.iterdir()) == []


def filled_when(disk: Path, command: list[str], ready: Callable[[], bool]) -> subprocess.CompletedProcess[str]:
    """Run a command and fill the disk as soon as `ready`."""
    env = environment({})
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=disk.parent)
    deadline = time.monotonic() + 60
    try:
        while not ready() and run.poll() is None and time.monotonic() < deadline:
            time.sleep(1e-3)
        fill(disk)
        out, err = run.communicate(timeout=60)
    finally:
        run.kill()
        run.wait()
    return subprocess.CompletedProcess(command, run.returncode, out, err)


def rows(records: Path) -> list[int]:
    """The sizes of the rows in a results file, whose last line may be incomplete."""
    lines = records.read_text().split("\n")[:-1] if records.exists() else []
    return [line["payload_bytes"] for line in map(json.loads, lines) if line["type"] == "record"]


@pytest.mark.slow
def test_rows_before_a_full_disk_are_kept(disk: DiskOf, tmp_path: Path) -> None:
    place, records = disk(256 * MIB), tmp_path / "records.jsonl"
    words = ["--folder", str(place), "--sizes", "1M,64M", "--record", "64K", "--mode", "isolated", "-n", "3"]
    command = [sys.executable, "-m", "bench.feed", *words, "--files", "tfrecord", "--records", str(records)]
    done = filled_when(place, command, lambda: bool(rows(records)) and any(place.rglob("00003.tfrecord")))
    assert done.returncode == EXIT_MEASUREMENT, done.stderr
    assert str(place) in done.stderr and "Traceback" not in done.stderr
    assert rows(records) == [MIB]
    assert [path.name for path in place.iterdir()] == ["other"]


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.torch
@pytest.mark.parametrize("method", ["file", "dcp", "dcp_async"])
def test_a_checkpoint_that_fills_the_disk_ends_all_ranks(
    method: str, mpirun: Callable[[int], tuple[str, ...]], disk: DiskOf, tmp_path: Path
) -> None:
    place, records = disk(256 * MIB), tmp_path / "records.jsonl"
    words = ["--transport", "gloo", "--sizes", "1M,48M", "--step-time", "1ms", "--exchange", "4K", "-n", "3"]
    more = ["--method", method, "--folder", str(place), "--records", str(records), "--share-hosts"]

    def ready() -> bool:
        return rows(records) == [MIB] and any(place.rglob("checkpoint-2"))

    done = filled_when(place, [*mpirun(2), "-m", "bench.checkpoint", *words, *more], ready)
    assert done.returncode == EXIT_MEASUREMENT, done.stderr
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert rows(records) == [MIB]
    assert [path.name for path in place.iterdir()] == ["other"]
