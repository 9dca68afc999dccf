"""Run workers as processes, like torch's DataLoader.

The worker processes live while one row is measured, and write their results into memory that the parent shares. If the
parent process is killed, its pipes to the workers break. Each worker then ends and frees its shared memory.
"""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from bench.core import plugins
from bench.core.payload import Bytes
from bench.datasets import page_cache
from bench.datasets.dataset_format import RecordLayout
from bench.datasets.loader import LoaderPlan, LoaderWorker, Made, make_batch
from bench.datasets.object_store import SilentServerError
from bench.datasets.passes import RecordPass
from bench.datasets.preparation import preparation

_JOIN_S = 5.0


class SharedMemory:
    """Memory without a name. Other processes can map this memory while this process lives."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._number = os.memfd_create("linkbench-feed", os.MFD_CLOEXEC)
        os.ftruncate(self._number, num_bytes)
        self.path = f"/proc/{os.getpid()}/fd/{self._number}"
        self.array = mapped(self.path, num_bytes)

    def close(self) -> None:
        """Release this process's mapping. The memory stays mapped until the last array that uses it is deleted."""
        os.close(self._number)


def mapped(path: str, num_bytes: int) -> Bytes:
    """Map shared memory into this process."""
    number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return np.frombuffer(mmap.mmap(number, num_bytes), np.uint8)
    finally:
        os.close(number)


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """The fields of a `RecordPass`, in a form that can be sent to a worker process."""

    files: str
    layout: RecordLayout
    memory: str  # path of the shared memory
    memory_bytes: int
    order: str
    num_workers: int
    seed: int
    prepare: str
    offline: bool
    record_bytes: int
    ahead: int

    def records(self) -> RecordPass:
        """Return a RecordPass whose `target` is the shared memory."""
        found = plugins.load("dataset format", self.files).FORMAT
        work = preparation(self.prepare, self.offline, self.record_bytes)
        rows = mapped(self.memory, self.memory_bytes)
        return RecordPass(found, self.layout, rows, self.order, self.num_workers, self.seed, work, self.ahead)


@dataclass(frozen=True, slots=True)
class _Used:
    """The resources that one process used in one pass."""

    received_bytes: int = 0
    cpu_s: float = 0.0

    def since(self, before: _Used) -> _Used:
        return _Used(self.received_bytes - before.received_bytes, self.cpu_s - before.cpu_s)


class WorkerProcesses:
    """The worker processes of a row. `received_bytes`, `cpu_s`: sums over all processes in the last pass."""

    def __init__(self, task: WorkerTask) -> None:
        """Start the processes and wait until all are ready."""
        context = get_context("spawn")
        self._workers: list[_Process] = []
        self.received_bytes, self.cpu_s = 0, 0.0
        for part in range(task.num_workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(task, part, theirs), daemon=True)
            process.start()
            theirs.close()
            self._workers.append(_Process(process, ours))
        for worker in self._workers:
            worker.receive()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The ids of the worker processes. The k-th process reads the k-th part of the records."""
        return tuple(worker.process_id for worker in self._workers)

    def run(self) -> None:
        """Read every record once. Raises the error of the read."""
        for worker in self._workers:
            worker.begin(None)
        for worker in self._workers:
            worker.take()
        self._count()

    @contextmanager
    def batches(self, plan: LoaderPlan) -> Generator[list[LoaderWorker]]:
        """Begin a pass in batches."""
        for worker in self._workers:
            worker.begin(plan)
        yield list(self._workers)
        self._count()

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()

    def _count(self) -> None:
        self.received_bytes = sum(worker.used.received_bytes for worker in self._workers)
        self.cpu_s = sum(worker.used.cpu_s for worker in self._workers)


class _Process:
    """The parent's view of one worker process."""

    def __init__(self, process: Any, pipe: Connection) -> None:
        self._process, self._pipe = process, pipe
        self.ended, self.used = True, _Used()
        self.process_id = int(process.pid)

    def begin(self, plan: LoaderPlan | None) -> None:
        self.ended = False
        with suppress(BrokenPipeError):  # `receive` reports how the worker ended
            self._pipe.send(plan)

    def take(self) -> Made | None:
        """Wait for the next batch. Returns None after the last batch."""
        answer = self.receive()
        if isinstance(answer, _Used):
            self.ended, self.used = True, answer
            return None
        with suppress(BrokenPipeError):
            self._pipe.send(True)  # there is room for one more batch
        made: Made = answer
        return made

    def receive(self) -> Any:
        """Wait for the worker's next message and return it.

        Raises the worker's error, or OSError if the worker has died.
        """
        try:
            answer = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(_JOIN_S)
            raise OSError(f"a worker process ended with exit code {self._process.exitcode}") from None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        self._pipe.close()
        self._process.join(_JOIN_S)
        if self._process.is_alive():  # it is in the middle of a pass that another worker's error has ended
            self._process.kill()
            self._process.join()
        self._process.close()


def _serve(task: WorkerTask, part: int, pipe: Connection) -> None:
    """Run a pass for each request of the parent, until the parent closes its end of the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        records = task.records()
        records.make_room(part)
        pipe.send("ready")
        while True:
            plan: LoaderPlan | None = pipe.recv()
            before = _used(task.layout)
            try:
                if plan is None:
                    records.read_part(part)
                else:
                    _make_batches(records, part, plan, pipe)
            except (OSError, EOFError, ValueError) as error:
                if isinstance(error, BrokenPipeError):
                    raise
                pipe.send(_plain(error))
                continue
            pipe.send(_used(task.layout).since(before))


def _make_batches(records: RecordPass, part: int, plan: LoaderPlan, pipe: Connection) -> None:
    """Make batches and report each batch to the parent. At most `prefetch` batches wait for the parent at a time."""
    arriving, room = records.part(part), plan.prefetch
    while (made := make_batch(arriving, plan)) is not None:
        pipe.send(made)
        room -= 1
        while not room or pipe.poll():
            pipe.recv()
            room += 1
    # Remaining messages in the pipe say that batches were taken. The next pass must not read them.
    while room < plan.prefetch:
        pipe.recv()
        room += 1


def _plain(error: Exception) -> Exception:
    """Return an error in a form that can be sent to another process.

    The exceptions of some libraries cannot be sent to another process.
    """
    if isinstance(error, EOFError | SilentServerError):
        return type(error)(str(error))
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, error.strerror, error.filename)
    return ValueError(str(error))


def _used(layout: RecordLayout) -> _Used:
    objects = layout.objects
    return _Used(objects.received_bytes if objects else page_cache.device_bytes(), page_cache.cpu_s())
