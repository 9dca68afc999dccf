"""The loader: every record arrives, no worker runs further ahead than it may, and errors reach the step."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from bench.core import plugins
from bench.datasets import loader
from bench.datasets.dataset_format import PER_SHARD, DatasetFormat, RecordLayout
from bench.datasets.loader import Loader, LoaderPlan
from bench.datasets.passes import RecordPass, least_of_a_worker

NUM, SIZE, BATCH = 5 * PER_SHARD + 7, 512, 16
ORDERS = ("sequential", "shuffled", "random")


def written(folder: Path, order: str, num_workers: int) -> tuple[RecordPass, np.ndarray, np.ndarray]:
    raw: DatasetFormat = plugins.load("dataset format", "raw").FORMAT
    data = np.random.default_rng(2).integers(0, 256, (NUM, SIZE), np.uint8)
    if not list(folder.iterdir()):
        raw.write(RecordLayout(folder, NUM, SIZE), list(data))
    target = np.zeros(data.size, np.uint8)
    return RecordPass(raw, RecordLayout(folder, NUM, SIZE), target, order, num_workers, seed=1), data, target


@pytest.mark.parametrize("num_workers", [0, 1, 3, 7])
def test_every_record_arrives_and_steady_batches_are_counted(num_workers: int, tmp_path: Path) -> None:
    for order in ORDERS:
        records, data, target = written(tmp_path, order, num_workers)
        times = Loader(records, LoaderPlan(BATCH, 2, 0.0, 0.0)).run()
        assert (target.reshape(data.shape) == data).all()
        assert len(times.wait_s) == len(times.step_s) == len(times.busy_s)
        assert len(times.wait_s) % max(1, num_workers) == 0
        least = least_of_a_worker(NUM, order, num_workers)
        assert len(times.wait_s) >= (least // BATCH - 1) * max(1, num_workers)


def test_no_worker_reads_fewer_records_than_said(tmp_path: Path) -> None:
    for order in ORDERS:
        for num_workers in (1, 2, 3, 5):
            records, _, _ = written(tmp_path, order, num_workers)
            parts = [len(list(records.part(part))) for part in range(num_workers)]
            assert sum(parts) == NUM
            assert min(parts) >= least_of_a_worker(NUM, order, num_workers)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_worker_begins_no_more_batches_than_prefetch_allows(
    prefetch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, _, _ = written(tmp_path, "sequential", 2)
    begun, taken, ahead = [0], [0], list[int]()
    batch, sleep = loader.make_batch, loader._sleep

    def counted(arriving: Generator[int], plan: LoaderPlan) -> tuple[bool, float] | None:
        begun[0] += 1
        return batch(arriving, plan)

    def step(seconds: float) -> float:
        if seconds == 0.002:  # the step's
            taken[0] += 1
            slept_s = sleep(seconds)
            ahead.append(begun[0] - taken[0])
            return slept_s
        return sleep(seconds)

    monkeypatch.setattr(loader, "make_batch", counted)
    monkeypatch.setattr(loader, "_sleep", step)
    Loader(records, LoaderPlan(BATCH, prefetch, 0.002, 0.0)).run()
    assert max(ahead) <= 2 * prefetch


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_file_that_is_gone_ends_the_pass(num_workers: int, tmp_path: Path) -> None:
    records, _, _ = written(tmp_path, "sequential", num_workers)
    sorted(tmp_path.rglob("*.bin"))[100].unlink()
    with pytest.raises(OSError):
        Loader(records, LoaderPlan(BATCH, 2, 0.0, 0.0)).run()
