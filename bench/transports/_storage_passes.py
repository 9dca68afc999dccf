"""Run passes over one row's data set.

For each timed pass, the kernel's counters prove that the reads were cold or warm.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import numpy as np

from bench.core.case import Case
from bench.core.errors import MeasurementError, kernel_reason
from bench.core.payload import Bytes
from bench.core.record import Failure, ReadSamples
from bench.datasets import gpu_files, page_cache
from bench.datasets.dataset_format import DatasetFormat, RecordLayout, aligned_array
from bench.datasets.loader import Loader, LoaderPlan, LoaderTimes
from bench.datasets.messages import DatasetError, DatasetFailure
from bench.datasets.object_store import SilentServerError
from bench.datasets.passes import RecordPass
from bench.datasets.place import Place
from bench.datasets.preparation import preparation
from bench.datasets.worker_processes import SharedMemory, WorkerProcesses, WorkerTask
from bench.transports._storage_device import GpuResults

_COLD_AT_LEAST, _WARM_AT_MOST = 0.99, 0.01  # bytes from the device per byte requested
_NUM_BOUNDS = 5  # number of passes that are followed by a measurement of the bounds
_POISON = 0xA5  # written to the results before a pass


class Passes:
    """The files of one row, and the values of the kernel's counters for each pass.

    `sync`: waits for the other ranks before a timed pass.
    `to_device`: copies the target to a GPU at the end of each pass. With `to_device`, source and target may be the same
        memory. Each pass first overwrites this memory.
    `results`: the memory of a GPU if the files are read directly into it.
    """

    def __init__(
        self,
        case: Case,
        dataset_format: DatasetFormat,
        place: Place,
        source: Bytes,
        target: Bytes,
        sync: Callable[[], None],
        to_device: Callable[[], object] | None = None,
        results: GpuResults | None = None,
    ) -> None:
        record_bytes = record_size(case, len(source))
        num_records = len(source) // record_bytes
        self._case, self._format, self._place, self._sync = case, dataset_format, place, sync
        self._source, self._target, self._to_device = source, target, to_device
        self._copied_s: list[float] = []
        self._preparation = preparation(case.prepare, case.offline, record_bytes)
        self._num_records = num_records
        self._on_gpu = results
        self._driver_bytes: list[int] = []
        self._shared: SharedMemory | None = None
        self._results = self._room(num_records * self._preparation.result_bytes)
        self._records: RecordPass | None = None
        self._processes: WorkerProcesses | None = None
        self._times: list[LoaderTimes] = []
        self._written: int | None = None
        self._checksums: list[int] = []
        self._received: list[int] = []
        self._cpu_s: list[float] = []
        self._pages = 0
        # What a host receives for all its processes does not show whether these files came from memory.
        self._by_pages = case.cache == "hot" and (place.counts_host or not place.is_counted)
        self._missing = 0  # pages that were not in memory before or after a pass
        self._direct_s: list[float] = []
        self._copy_s: list[float] = []

    @property
    def asked_bytes(self) -> int:
        """The total size of all stored records in bytes."""
        return self._num_records * self._preparation.stored_bytes

    def run_once(self) -> None:
        """Make one untimed pass."""
        self._ready()
        if self._case.cache == "cold":
            self._place.make_cold()
        self._poison()
        with self._readable():
            self._read_all()
        if self._to_device is not None:
            self._to_device()
        self._deliver()

    def timed(self) -> float:
        """Run one pass and return its seconds. Before a cold pass, remove the files from the page cache.

        The values of the kernel's counters during the pass are kept, to prove that the reads were cold or warm.
        """
        self._ready()
        cold = self._case.cache == "cold"
        if cold:
            self._pages = max(self._pages, self._place.make_cold())
        self._poison()
        self._look_for_missing()
        self._sync()
        before, cpu_before = self._place.received_bytes(), page_cache.cpu_s()
        driver_before = gpu_files.driver_bytes() if self._on_gpu else None
        begin = time.perf_counter()
        with self._readable():
            self._read()
        if self._to_device is not None:
            self._copied_s.append(_seconds(self._to_device))
        took_s = time.perf_counter() - begin
        self._cpu_s.append(page_cache.cpu_s() - cpu_before + (self._processes.cpu_s if self._processes else 0.0))
        by_others = self._processes.received_bytes if self._processes else 0
        received = self._place.received_bytes() - before + by_others
        if driver_before is not None:
            self._driver_bytes.append((gpu_files.driver_bytes() or driver_before) - driver_before)
            # The kernel may not attribute reads into a GPU to any process.
            received = max(received, self._driver_bytes[-1])
        self._received.append(received)
        self._look_for_missing()
        self._deliver()
        if len(self._copy_s) < _NUM_BOUNDS:
            self._copy_s.append(_seconds(lambda: self._target.copy()))
            if cold:
                with self._readable():
                    self._direct_s.append(_seconds(lambda: self._place.read_probe(self.asked_bytes)))
        return took_s

    def proven(self) -> ReadSamples | Failure:
        """Return the values of the kernel's counters.

        If the values do not prove that the reads were cold or warm, return a failure.
        """
        shares = [num_bytes / self.asked_bytes for num_bytes in self._received]
        cold = self._case.cache == "cold"
        if cold and (self._pages or min(shares) < _COLD_AT_LEAST):
            return Failure.of(DatasetFailure.NOT_COLD, pages=self._pages, share=min(shares))
        if self._missing:
            return Failure.of(DatasetFailure.NOT_IN_MEMORY, pages=self._missing)
        if not cold and not self._by_pages and max(shares) > _WARM_AT_MOST:
            return Failure.of(DatasetFailure.NOT_WARM, share=max(shares))
        return ReadSamples(
            state=("client-cold" if self._place.is_remote else "cold") if cold else "warm",
            num_records=self._num_records,
            record_bytes=self._preparation.stored_bytes,
            # All pages were in memory, so the host received its bytes for other programs.
            device_bytes=(0,) * len(self._received) if self._by_pages else tuple(self._received),
            cpu_s=tuple(self._cpu_s),
            direct_s=tuple(self._direct_s),
            copy_s=tuple(self._copy_s),
            wait_s=tuple(fmean(times.wait_s) for times in self._times),
            step_s=tuple(fmean(times.step_s) for times in self._times),
            busy_s=tuple(fmean(times.busy_s) for times in self._times),
            copied_s=tuple(self._copied_s),
            driver_bytes=tuple(self._driver_bytes),
        )

    def close(self) -> None:
        """End the worker processes and release their memory."""
        if self._processes is not None:
            self._processes.close()
        if self._shared is not None:
            self._shared.close()

    def _look_for_missing(self) -> None:
        if self._by_pages:
            self._missing = max(self._missing, self._place.num_missing())

    def _poison(self) -> None:
        """Overwrite the results. If a pass does not read all bytes, the checksum of some record is wrong."""
        if self._on_gpu is not None:
            self._on_gpu.fill(_POISON)
            return
        if self._results is not self._target or self._source is self._target:
            self._results.fill(_POISON)

    def _room(self, num_bytes: int) -> Bytes:
        """Return memory into which the readers write their results.

        If the readers can write into the target without a further step, the result is the target.
        """
        if self._case.workers and self._case.worker_kind == "process":
            self._shared = SharedMemory(num_bytes)
            return self._shared.array
        plain = self._case.prepare == "none"
        return self._target if plain else aligned_array(num_bytes)

    def _ready(self) -> None:
        """If the source has changed, write the files and wait until the files are on the device."""
        checksum = zlib.crc32(self._source.data)
        if checksum == self._written:
            return
        records = list(self._source.reshape(self._num_records, -1))
        stored = [self._preparation.stored(record) for record in records]
        try:
            layout = self._layout(self._place.new("records"))
            self._format.write(layout, stored)
            layout = self._layout(self._place.publish(layout.folder))
            if self._case.cache == "cold":
                self._place.write_probe(np.concatenate(stored))
            elif self._by_pages:
                self._place.make_warm()
        except (OSError, RuntimeError) as error:  # h5py raises both
            facts = {"folder": self._place.parent, "why": kernel_reason(error)}
            raise MeasurementError.of(DatasetError.WRITE, **facts) from error
        if self._records is None:
            self._open(layout)
        self._written, self._checksums = checksum, [zlib.crc32(record.data) for record in records]

    def _layout(self, folder: Path) -> RecordLayout:
        case = self._case
        size = self._preparation.stored_bytes
        to_gpu = self._on_gpu is not None
        return RecordLayout(folder, self._num_records, size, case.direct_io, case.block, self._place.objects, to_gpu)

    def _open(self, layout: RecordLayout) -> None:
        """Make the reader and start the worker processes.

        If files are written again, their names do not change, so this method is called only once.
        """
        case, work = self._case, self._preparation
        results = self._on_gpu.memory if self._on_gpu else self._results
        self._records = RecordPass(
            self._format, layout, results, case.read_order, case.workers, case.seed, work, case.ahead
        )
        if self._shared is not None:
            self._processes = WorkerProcesses(
                WorkerTask(
                    case.files,
                    layout,
                    self._shared.path,
                    self._shared.num_bytes,
                    case.read_order,
                    case.workers,
                    case.seed,
                    case.prepare,
                    case.offline,
                    work.record_bytes,
                    case.ahead,
                )
            )

    def _read(self) -> None:
        case = self._case
        if not case.step_s:
            self._read_all()
            return
        assert self._records is not None
        workers = self._processes.batches if self._processes else None
        plan = LoaderPlan(case.batch, case.prefetch, case.step_s, case.prepare_s)
        self._times.append(Loader(self._records, plan, workers).run())

    def _read_all(self) -> None:
        assert self._records is not None
        (self._processes or self._records).run()

    @contextmanager
    def _readable(self) -> Generator[None]:
        try:
            yield
        except SilentServerError as error:
            raise MeasurementError.of(DatasetError.SILENT, place=self._place.parent, why=str(error)) from error
        except (OSError, EOFError, ValueError) as error:
            raise MeasurementError.of(DatasetError.READ, folder=self._place.parent, why=str(error)) from error

    def _deliver(self) -> None:
        """Turn the results into records, and compare the checksums of the records."""
        assert self._records is not None
        target = self._on_gpu.read() if self._on_gpu else self._target
        rows = target.reshape(self._num_records, -1)
        if self._results is not self._target:
            for result, row in zip(self._results.reshape(self._num_records, -1), rows, strict=True):
                self._preparation.restore(result, row)
        for index, (row, checksum) in enumerate(zip(rows, self._checksums, strict=True)):
            if zlib.crc32(row.data) != checksum:
                raise MeasurementError.of(DatasetError.CORRUPTED, record=index, file=str(self._records.file_of(index)))


def record_size(case: Case, num_bytes: int) -> int:
    """Return the size of a record.

    A record's size is the largest divisor of `num_bytes` that does not exceed the requested size.
    """
    size = min(case.record, num_bytes)
    while num_bytes % size:
        size -= 1
    return size


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
