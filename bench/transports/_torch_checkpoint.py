"""Write checkpoints by torch from host memory, also asynchronously.

Each rank writes plain files, or torch.distributed.checkpoint writes the checkpoint.

A write is complete only when every file is on its device (fsync).
"""

from __future__ import annotations

import os
import shutil
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from bench.core.checkpoint import BurstPlan, BurstTimes, ReadBack, TimedStep
from bench.core.errors import MeasurementError, kernel_reason
from bench.core.waiting import sleep_until
from bench.datasets import page_cache
from bench.datasets.dataset_format import opened_file, read_exactly
from bench.datasets.messages import DatasetError

_WORD_BYTES = 8
_OF_STORAGE = (OSError, EOFError, RuntimeError, ValueError)


class TorchCheckpointer:
    """Writes one rank's shard and reads it back.

    The shard is a sequence of increasing numbers. The first number of the shard differs between ranks and between
    bursts.
    """

    def __init__(self, torch: Any, rank: int, num_ranks: int, plan: BurstPlan) -> None:
        """Allocate the shard. For asynchronous checkpoints, also open a separate group."""
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
        write = self._begin()
        blocked_s = time.perf_counter() - began
        steps: list[TimedStep] = []
        while len(steps) < num_steps or not self._all_ended(write):
            steps.append(self._step())
        self._raise_together(write.problem, DatasetError.CHECKPOINT_WRITE)
        ended_s = write.ended_s
        assert ended_s is not None
        return BurstTimes(ended_s - began, blocked_s, steps, sum(step.began_s < ended_s for step in steps))

    def read_back(self) -> ReadBack:
        """Read the shard from the device, on all ranks at the same time."""
        files = self._files()
        page_cache.evict(files)
        pages = page_cache.num_resident(files)
        self._shard.zero_()
        self._dist.barrier()
        before, began = page_cache.device_bytes(), time.perf_counter()
        read = _Transfer()
        read.run(self._load)
        read_s = time.perf_counter() - began
        received = page_cache.device_bytes() - before
        self._raise_together(read.problem, DatasetError.CHECKPOINT_READ)
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

    def _all_ended(self, write: _Transfer) -> bool:
        """Find out whether the write has ended on all ranks."""
        writing = self._torch.tensor([float(write.ended_s is None)])
        self._dist.all_reduce(writing)
        return float(writing.item()) == 0.0

    def _raise_together(self, problem: str, code: DatasetError) -> None:
        """Raise MeasurementError on all ranks if one rank has a problem.

        If another rank continued, it would wait for the failed rank.
        """
        problems: list[str] = [""] * self._dist.get_world_size()
        self._dist.all_gather_object(problems, problem)
        rank = next((rank for rank, found in enumerate(problems) if found), None)
        if rank is not None:
            raise MeasurementError.of(code, folder=self._plan.folder, rank=rank, why=problems[rank])

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

    def _begin(self) -> _Transfer:
        """Write the files. With an asynchronous method, only begin to write the files."""
        write = _Transfer()
        if self._plan.method == "file":
            write.run(self._write_file)
        elif self._group is None:
            write.run(self._save)
        else:
            write.follow(self._save_async)
        return write

    def _save(self) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save(self._state(), storage_writer=dcp.FileSystemWriter(self._folder, sync_files=True))

    def _save_async(self) -> Future[Any]:
        import torch.distributed.checkpoint as dcp

        writer = dcp.FileSystemWriter(self._folder, sync_files=True)
        future: Future[Any] = dcp.async_save(self._state(), storage_writer=writer, process_group=self._group)
        return future

    def _write_file(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
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
        """Return this rank's own files.

        If torch.distributed.checkpoint writes the checkpoint, the names of the files contain the rank.
        """
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


class _Transfer:
    """A write or a read of one shard.

    `ended_s`: when the transfer ended.
    `problem`: why the transfer failed. It is "" if the transfer did not fail.
    """

    def __init__(self) -> None:
        self.ended_s: float | None = None
        self.problem = ""

    def run(self, transfer: Callable[[], None]) -> None:
        """Transfer now."""
        try:
            transfer()
        except BaseException as error:
            if not isinstance(error, _OF_STORAGE) and not _failures(error):
                raise
            self._end(error)
        else:
            self._end(None)

    def follow(self, begin: Callable[[], Future[Any]]) -> None:
        """Start the transfer. The thread that does the transfer records when the transfer ends."""
        try:
            begin().add_done_callback(lambda future: self._end(future.exception()))
        except _OF_STORAGE as error:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self.problem = _why(error)
        self.ended_s = time.perf_counter()


def _why(error: BaseException) -> str:
    for inner in _failures(error):
        return _why(inner)
    return kernel_reason(error)


def _failures(error: BaseException) -> list[BaseException]:
    """Return the errors of the ranks in torch's CheckpointException. The list is empty for any other error.

    The class CheckpointException is not a subclass of Exception.
    """
    failures: Mapping[int, tuple[BaseException, Any]] = getattr(error, "failures", {})
    return [inner for inner, _ in failures.values()]
