"""Write checkpoints by torch from host memory: plain files, or torch.distributed.checkpoint, also asynchronously.

A write counts as done only when every file is synchronised with its device (fsync).
"""

from __future__ import annotations

import os
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.core.checkpoint import BurstPlan, BurstTimes, ReadBack, TimedStep
from bench.core.waiting import sleep_until
from bench.datasets import page_cache
from bench.datasets.dataset_format import opened_file, read_exactly

_WORD_BYTES = 8


class TorchCheckpointer:
    """Writes one rank's shard and reads it back.

    The shard is a sequence of numbers with a different first number on every rank and in every burst.
    """

    def __init__(self, torch: Any, rank: int, num_ranks: int, plan: BurstPlan) -> None:
        """Allocate the shard and, for asynchronous checkpoints, open a separate group."""
        self._torch, self._dist = torch, torch.distributed
        self._rank, self._plan = rank, plan
        self._num_bursts, self._checksum = 0, 0
        self._shard = torch.zeros(plan.shard_bytes // _WORD_BYTES, dtype=torch.int64)
        self._exchanged = torch.ones(max(1, plan.exchange_bytes // 4))
        # The writing thread also exchanges messages. In the group of the steps, each thread would get messages of the
        # other.
        self._group = self._dist.new_group() if plan.method == "dcp_async" else None

    def steps(self, num_steps: int) -> list[TimedStep]:
        """Run steps, after a barrier."""
        self._dist.barrier()
        return [self._step() for _ in range(num_steps)]

    def burst(self, num_steps: int) -> BurstTimes:
        """Write the shard while steps run. Each step has an exchange, so all ranks run the same number of steps."""
        self._renew()
        self._dist.barrier()
        began = time.perf_counter()
        durable_at = self._begin()
        blocked_s = time.perf_counter() - began
        steps: list[TimedStep] = []
        while len(steps) < num_steps or not self._all_durable(durable_at):
            steps.append(self._step())
        ended = durable_at(True)
        assert ended is not None
        return BurstTimes(ended - began, blocked_s, steps, sum(step.began_s < ended for step in steps))

    def read_back(self) -> ReadBack:
        """Read the shard from the device, on all ranks at the same time."""
        files = self._files()
        page_cache.evict(files)
        pages = page_cache.num_resident(files)
        self._shard.zero_()
        self._dist.barrier()
        before, began = page_cache.device_bytes(), time.perf_counter()
        self._load()
        read_s = time.perf_counter() - began
        received = page_cache.device_bytes() - before
        is_right = zlib.crc32(self._shard.numpy().data) == self._checksum
        self._dist.barrier()
        if self._rank == 0 or not self._is_shared:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._dist.barrier()
        return ReadBack(read_s, received, pages, is_right)

    # -- steps

    def _step(self) -> TimedStep:
        began = time.perf_counter()
        sleep_until(began + self._plan.step_s)
        computed = time.perf_counter()
        self._dist.all_reduce(self._exchanged, self._dist.ReduceOp.MAX)
        ended = time.perf_counter()
        return TimedStep(began, ended - began, ended - computed)

    def _all_durable(self, durable_at: Callable[[bool], float | None]) -> bool:
        """Check whether all ranks have written the checkpoint."""
        writing = self._torch.tensor([float(durable_at(False) is None)])
        self._dist.all_reduce(writing)
        return float(writing.item()) == 0.0

    # -- writing

    @property
    def _folder(self) -> Path:
        return Path(self._plan.folder) / f"checkpoint-{self._num_bursts}"

    @property
    def _is_shared(self) -> bool:
        return self._plan.method != "file"

    def _renew(self) -> None:
        """Fill the shard with new data and make the folder."""
        self._num_bursts += 1
        first = np.random.default_rng((self._plan.seed, self._rank, self._num_bursts)).integers(1 << 60)
        words = self._shard.numpy()
        words[:] = np.arange(int(first), int(first) + len(words))
        self._checksum = zlib.crc32(words.data)
        self._folder.mkdir(parents=True, exist_ok=True)

    def _begin(self) -> Callable[[bool], float | None]:
        """Begin to write.

        Return a function that returns when the shard became durable. Called with False, the function does not wait: it
        returns None if the shard is not durable yet.
        """
        if self._plan.method == "file":
            self._write_file()
            return _known(time.perf_counter())
        import torch.distributed.checkpoint as dcp

        writer = dcp.FileSystemWriter(self._folder, sync_files=True)
        if self._group is None:
            dcp.save(self._state(), storage_writer=writer)
            return _known(time.perf_counter())
        future = dcp.async_save(self._state(), storage_writer=writer, process_group=self._group)
        done: list[float] = []
        future.add_done_callback(lambda _: done.append(time.perf_counter()))

        def durable_at(waits: bool) -> float | None:
            if waits or future.done():
                future.result()  # raises the exception of the thread
                while not done:  # the callback runs shortly after the result is available
                    time.sleep(1e-4)
            return done[0] if done else None

        return durable_at

    def _write_file(self) -> None:
        with self._files()[0].open("wb", buffering=0) as file:
            view = memoryview(self._shard.numpy()).cast("B")
            done = 0
            while done < len(view):
                done += file.write(view[done:])
            os.fsync(file.fileno())
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _state(self) -> dict[str, Any]:
        return {f"shard_{self._rank}": self._shard}

    def _files(self) -> list[Path]:
        """Return this rank's own files. In torch.distributed.checkpoint, the file names contain the rank."""
        if self._plan.method == "file":
            return [self._folder / f"{self._rank}.bin"]
        return sorted(self._folder.glob(f"__{self._rank}_*.distcp"))

    def _load(self) -> None:
        if self._plan.method == "file":
            path = self._files()[0]
            with opened_file(path) as number:
                read_exactly(number, self._shard.numpy().view(np.uint8), 0, path)
            return
        import torch.distributed.checkpoint as dcp

        dcp.load(self._state(), storage_reader=dcp.FileSystemReader(self._folder))


def _known(at: float) -> Callable[[bool], float | None]:
    return lambda waits: at
