"""Load data like a training job: workers read and prepare batches in advance, and each step takes one batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from queue import SimpleQueue
from threading import Semaphore
from typing import Protocol

from bench.datasets.passes import RecordPass


@dataclass(frozen=True, slots=True)
class LoaderPlan:
    """Each step takes a batch of `batch` records, and lasts `step_s` seconds.

    For each batch, a worker also sleeps `prepare_s` seconds.

    `prefetch`: how many batches of one worker may be in progress or waiting, as with torch's `prefetch_factor`.
    """

    batch: int
    prefetch: int
    step_s: float
    prepare_s: float


@dataclass(slots=True)
class LoaderTimes:
    """The waits, steps and batch times of a pass in its steady part, in seconds.

    The steady part begins with the second batch of each worker. The steady part ends with the last round in which every
    worker still made a full batch.
    """

    wait_s: list[float] = field(default_factory=list)  # for each step: from the end of the step to its next batch
    step_s: list[float] = field(default_factory=list)  # for each step: its duration
    busy_s: list[float] = field(default_factory=list)  # for each batch: the time to read and prepare it

    def add(self, other: LoaderTimes) -> None:
        """Append the times of another part of the same pass."""
        self.wait_s += other.wait_s
        self.step_s += other.step_s
        self.busy_s += other.busy_s


Made = tuple[bool, float]  # whether the batch is full, and the seconds that it took


class LoaderWorker(Protocol):
    """The interface through which the training step takes batches from one worker.

    `ended`: whether the worker has delivered its last batch.
    """

    ended: bool

    def take(self) -> Made | None:
        """Wait for the next batch. Returns None after the last batch.

        If a read failed, this call raises the error of the read.
        """


Workers = Callable[[LoaderPlan], AbstractContextManager[list[LoaderWorker]]]


class Loader:
    """Runs passes over the records of a `RecordPass` in batches.

    Of W workers, worker k makes the batches k, k + W, and so on. The order of batches is therefore fixed.

    `workers`: a function that starts the workers of a pass. The default function starts threads.
    """

    def __init__(self, records: RecordPass, plan: LoaderPlan, workers: Workers | None = None) -> None:
        self._records, self._plan = records, plan
        self._workers = workers or self._threads

    def run(self) -> LoaderTimes:
        """Read every record once, and run a step after each batch. Raises the error of the read."""
        if self._records.num_workers == 0:
            return _alone(self._records, self._plan)
        with self._workers(self._plan) as workers:
            return self._with_workers(workers)

    def _with_workers(self, workers: list[LoaderWorker]) -> LoaderTimes:
        times, steady, rounds = LoaderTimes(), True, 0
        while not all(worker.ended for worker in workers):
            of_round = LoaderTimes()
            for worker in workers:
                if worker.ended:
                    continue
                begin = time.perf_counter()
                taken = worker.take()
                waited_s = time.perf_counter() - begin
                if taken is None:
                    continue
                full, busy_s = taken
                steady = steady and full
                step_s = _sleep(self._plan.step_s)
                of_round.add(LoaderTimes([waited_s], [step_s], [busy_s]))
            steady = steady and not any(worker.ended for worker in workers)
            if steady and rounds:  # the first round includes the start of the workers
                times.add(of_round)
            rounds += 1
        return times

    @contextmanager
    def _threads(self, plan: LoaderPlan) -> Generator[list[LoaderWorker]]:
        workers = [_Thread(self._records, part, plan) for part in range(self._records.num_workers)]
        with ThreadPoolExecutor(len(workers)) as threads:
            try:
                for worker in workers:
                    threads.submit(worker.run)
                yield list(workers)
            finally:
                for worker in workers:
                    worker.stop()


class _Thread:
    """A thread that reads a part of the records and puts finished batches into a queue."""

    def __init__(self, records: RecordPass, part: int, plan: LoaderPlan) -> None:
        self._records, self._part, self._plan = records, part, plan
        self._finished: SimpleQueue[Made | BaseException | None] = SimpleQueue()
        self._room, self._stopped = Semaphore(plan.prefetch), False
        self.ended = False

    def run(self) -> None:
        """Make batches, and put each batch into the queue.

        At the end, put None into the queue. If a read failed, put the error into the queue.
        """
        try:
            arriving = self._records.part(self._part)
            while True:
                self._room.acquire()
                if self._stopped:
                    arriving.close()
                    return
                made = make_batch(arriving, self._plan)
                if made is None:
                    break
                self._finished.put(made)
        except BaseException as error:  # `take` raises it again, in the thread that waits for the batch
            self._finished.put(error)
        else:
            self._finished.put(None)

    def take(self) -> Made | None:
        """Wait for the next batch. Returns None after the last batch."""
        taken = self._finished.get()
        if isinstance(taken, BaseException):
            raise taken
        self.ended = taken is None
        self._room.release()
        return taken

    def stop(self) -> None:
        """Make the thread end, even if the thread waits because the queue is full."""
        self._stopped = True
        self._room.release()


def _alone(records: RecordPass, plan: LoaderPlan) -> LoaderTimes:
    """Read and prepare each batch in the calling thread, without workers.

    The caller therefore waits for the whole time of each batch.
    """
    times, arriving = LoaderTimes(), records.part(0)
    first = True
    while True:
        begin = time.perf_counter()
        made = make_batch(arriving, plan)
        waited_s = time.perf_counter() - begin
        if made is None:
            return times
        step_s = _sleep(plan.step_s)
        if made[0] and not first:  # the first batch also includes opening the files
            times.add(LoaderTimes([waited_s], [step_s], [made[1]]))
        first = False


def make_batch(arriving: Generator[int], plan: LoaderPlan) -> Made | None:
    """Read and prepare the records of the next batch. Returns None if no records are left."""
    begin = time.perf_counter()
    num = sum(1 for _ in islice(arriving, plan.batch))
    if num == 0:
        return None
    _sleep(plan.prepare_s)
    return num == plan.batch, time.perf_counter() - begin


def _sleep(seconds: float) -> float:
    begin = time.perf_counter()
    if seconds:
        time.sleep(seconds)
    return time.perf_counter() - begin
