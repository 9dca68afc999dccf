"""Worker processes, preparation, blocks and announced reads: every record arrives as it was, whatever the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from bench.core import plugins
from bench.core.case import PREPARATIONS
from bench.datasets.dataset_format import PER_SHARD, DatasetFormat, RecordLayout
from bench.datasets.loader import Loader, LoaderPlan
from bench.datasets.passes import RecordPass
from bench.datasets.preparation import preparation
from bench.datasets.worker_processes import SharedMemory, WorkerProcesses, WorkerTask

NUM, SIZE = 2 * PER_SHARD + 7, 1500


def records() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 256, (NUM, SIZE), np.uint8)


def found(name: str) -> DatasetFormat:
    loaded: DatasetFormat = plugins.load("dataset format", name).FORMAT
    if loaded.missing:
        pytest.skip(f"{name} needs {loaded.missing}")
    return loaded


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("name", PREPARATIONS)
def test_a_prepared_record_stands_for_the_record_in_every_order(name: str, offline: bool, tmp_path: Path) -> None:
    work = preparation(name, offline, SIZE)
    layout = RecordLayout(tmp_path, NUM, work.stored_bytes)
    data = records()
    found("raw").write(layout, [work.stored(record) for record in data])
    for order in ("sequential", "shuffled", "random"):
        results = np.zeros(NUM * work.result_bytes, np.uint8)
        RecordPass(found("raw"), layout, results, order, 2, 1, work).run()
        for result, record in zip(results.reshape(NUM, -1), data, strict=True):
            arrived = np.zeros(SIZE, np.uint8)
            work.restore(result, arrived)
            assert (arrived == record).all()


@pytest.mark.parametrize("size", [1, 2, 7, 1 << 17])
def test_records_of_any_size_can_be_prepared(size: int) -> None:
    record = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    for name in PREPARATIONS:
        work = preparation(name, False, size)
        result, arrived = np.zeros(work.result_bytes, np.uint8), np.zeros(size, np.uint8)
        stored = work.stored(record)
        assert len(stored) == work.stored_bytes
        work.prepare(stored, result)
        work.restore(result, arrived)
        assert (arrived == record).all()


def test_a_damaged_image_is_named_with_its_file(tmp_path: Path) -> None:
    work = preparation("decode", False, SIZE)
    layout = RecordLayout(tmp_path, NUM, work.stored_bytes)
    found("raw").write(layout, [work.stored(record) for record in records()])
    victim = found("raw").file_of(layout, 70)
    with victim.open("r+b") as file:
        file.seek(40)
        file.write(bytes(200))
    with pytest.raises(ValueError) as error:
        RecordPass(found("raw"), layout, np.zeros(NUM * work.result_bytes, np.uint8), "random", 0, 1, work).run()
    assert str(victim) in str(error.value)


@pytest.mark.parametrize("name", plugins.names("dataset format"))
def test_blocks_and_announced_reads_bring_the_same_records(name: str, tmp_path: Path) -> None:
    one = found(name)
    data = records()
    layout = RecordLayout(tmp_path, NUM, SIZE, block_bytes=700 if one.blocks else 0)
    one.write(layout, list(data))
    for order in ("sequential", "shuffled", "random")[: 3 if one.indexed else 2]:
        target = np.zeros(data.size, np.uint8)
        RecordPass(one, layout, target, order, 0, 1, ahead=5 if one.announces else 0).run()
        assert (target.reshape(data.shape) == data).all()


def test_no_read_is_larger_than_a_block_and_records_are_announced_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, layout = found("raw"), RecordLayout(tmp_path, NUM, SIZE, block_bytes=700)
    raw.write(layout, list(records()))
    sizes, calls = list[int](), list[str]()
    preadv, advise = os.preadv, os.posix_fadvise

    def read(number: int, views: list[memoryview], offset: int) -> int:
        sizes.append(len(views[0]))
        calls.append("read")
        return preadv(number, views, offset)

    def announce(number: int, offset: int, num_bytes: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        calls.append("announced")
        advise(number, offset, num_bytes, advice)

    monkeypatch.setattr(os, "preadv", read)
    monkeypatch.setattr(os, "posix_fadvise", announce)
    RecordPass(raw, layout, np.zeros(NUM * SIZE, np.uint8), "random", 0, 1, ahead=5).run()
    assert sizes == [700, 700, 100] * NUM
    assert calls[:6] == ["announced"] * 6 and calls[6] == "read"
    assert calls.count("announced") == NUM


@contextmanager
def processes(
    folder: Path, num_workers: int, order: str = "shuffled"
) -> Iterator[tuple[WorkerProcesses, SharedMemory]]:
    memory = SharedMemory(NUM * SIZE)
    layout = RecordLayout(folder, NUM, SIZE)
    task = WorkerTask("raw", layout, memory.path, NUM * SIZE, order, num_workers, 1, "none", False, SIZE, 0)
    workers = WorkerProcesses(task)
    try:
        yield workers, memory
    finally:
        workers.close()
        memory.close()


def test_worker_processes_fill_the_memory_of_their_parent_pass_after_pass(tmp_path: Path) -> None:
    data = records()
    found("raw").write(RecordLayout(tmp_path, NUM, SIZE), list(data))
    with processes(tmp_path, 2, "random") as (workers, memory):
        for _ in range(2):
            memory.array.fill(0)
            workers.run()
            assert (memory.array.reshape(data.shape) == data).all()
            assert workers.cpu_s > 0
        memory.array.fill(0)
        records_of = RecordPass(found("raw"), RecordLayout(tmp_path, NUM, SIZE), memory.array, "random", 2, 1)
        times = Loader(records_of, LoaderPlan(8, 2, 0.0, 0.0), workers.batches).run()
        assert (memory.array.reshape(data.shape) == data).all()
        assert len(times.wait_s) == len(times.busy_s) >= 10
        memory.array.fill(0)
        workers.run()
        assert (memory.array.reshape(data.shape) == data).all()


def test_what_goes_wrong_in_a_worker_process_is_raised_in_its_parent(tmp_path: Path) -> None:
    found("raw").write(RecordLayout(tmp_path, NUM, SIZE), list(records()))
    victim = found("raw").file_of(RecordLayout(tmp_path, NUM, SIZE), 30)
    with processes(tmp_path, 2, "sequential") as (workers, _):
        victim.unlink()
        with pytest.raises(OSError) as error:
            workers.run()
        assert str(victim) in str(error.value)
    with processes(tmp_path, 1, "sequential") as (workers, _):
        os.kill(workers.process_ids[0], signal.SIGKILL)
        with pytest.raises(OSError):
            workers.run()
