"""Reads of files into host memory by one process; the send buffer of a row is a data set on storage.

What `verify` writes to the send buffer is written to files before the first pass. Every pass is proven: pages in the
cache before it (mincore), bytes from the device (/proc/self/io), and a checksum for each record after it.
"""

from __future__ import annotations

import mmap
import os
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from statistics import fmean
from typing import Any

from bench.core import plugins
from bench.core.case import Case
from bench.core.channel import SingleRankChannel
from bench.core.errors import MeasurementError, RefusedError, UsageError
from bench.core.program import Group, Read, Round, Step
from bench.core.record import Failure, ReadSamples, Skip
from bench.core.traits import Traits
from bench.core.transport import Buffers, Compiled, Options, Reduction, Timing, Transport
from bench.core.world import RankInfo
from bench.datasets import page_cache
from bench.datasets.dataset_format import DatasetFormat, RecordLayout, aligned, opened_file
from bench.datasets.loader import Loader, LoaderPlan, LoaderTimes
from bench.datasets.messages import DatasetError, DatasetFailure, DatasetNote, DatasetSkip
from bench.datasets.passes import RecordPass, least_of_a_worker
from bench.datasets.work_folder import WorkFolder, files_below
from bench.transports import _host

TRAITS = Traits(launcher="direct", start_s=0.5, host_memory=True)

_COLD_AT_LEAST, _WARM_AT_MOST = 0.99, 0.01  # bytes from the device per byte asked
_NUM_BOUNDS = 5  # passes that are followed by a measurement of the bounds
_PROBE_BYTES, _PROBES_AT_ONCE = 1 << 20, 8  # one O_DIRECT read, and how many are in flight


class Storage(Transport):
    """One rank and its folder."""

    clock = "host"
    carries_messages = False

    def __init__(self, place: RankInfo, options: Options) -> None:
        """Make the folder. Raises RefusedError for several ranks, UsageError if the folder cannot be used."""
        if place.num_ranks > 1:
            raise RefusedError.of(DatasetError.ONE_RANK, launcher=place.launcher, num_ranks=place.num_ranks)
        self.place, self.channel, self.case = place, SingleRankChannel(), options.case
        parent = Path(options.case.folder or ".")
        try:
            self._folder = WorkFolder(parent)
        except OSError as error:
            raise UsageError.of(DatasetError.FOLDER, folder=str(parent), why=error.strerror) from None
        self._file_system = page_cache.file_system(self._folder.path)
        self._format: DatasetFormat = plugins.load("dataset format", options.case.files).FORMAT
        notes = []
        if self._folder.removed:
            removed = self._folder.removed
            facts = {"num": len(removed), "num_bytes": self._folder.removed_bytes, "parent": str(parent)}
            notes.append(DatasetNote.REMOVED.words(facts))
        if self._file_system in page_cache.REMOTE:
            facts = {"folder": str(parent), "file_system": self._file_system}
            notes.append(DatasetNote.CLIENT_COLD.words(facts))
        self.notes = tuple(notes)

    def close(self) -> None:
        """Remove the folder."""
        self._folder.close()

    def abort(self, exit_code: int) -> None:
        """Remove the folder; there is no other rank to end."""
        self._folder.close()

    def facts(self) -> dict[str, str]:
        """Return the file system of the folder."""
        return {"file_system": self._file_system}

    def cache_bytes(self) -> int:
        """Return 1: the page cache is emptied for each pass, so no further buffers are needed for cold reads."""
        return 1

    def cache_words(self, asked: str) -> str:
        """Return what is done about the page cache."""
        if asked == "hot":
            return "page cache warm: the same files are read again and again"
        return "page cache cold: the files are dropped from it before each pass"

    def unsupported_reason(self, step: Step, reduction: Reduction, in_place: bool) -> Skip | None:
        """Return why a pass cannot be read: the format, its library or the folder does not allow it."""
        assert isinstance(step, Read)
        case, files = self.case, self.case.files
        if self._format.missing:
            return Skip.of(DatasetSkip.NOT_INSTALLED, files=files, packages=" ".join(self._format.missing))
        if case.read_order == "random" and not self._format.indexed:
            return Skip.of(DatasetSkip.NOT_INDEXED, files=files)
        if case.direct_io and not self._format.direct:
            return Skip.of(DatasetSkip.NO_DIRECT_IO, files=files)
        if case.direct_io and case.cache == "hot":
            return Skip.of(DatasetSkip.ALWAYS_DEVICE)
        if case.mode != "isolated":
            return Skip.of(DatasetSkip.ISOLATED_ONLY)
        if case.step_s:
            num_records = step.num_bytes // _record_bytes(case, step.num_bytes)
            each = max(0, least_of_a_worker(num_records, case.read_order, case.workers))
            if each < 3 * case.batch:
                facts = {"num_workers": case.workers, "batch": case.batch, "num": each, "num_records": num_records}
                return Skip.of(DatasetSkip.TOO_FEW_BATCHES, **facts)
        folder = str(self._folder.path.parent)
        if case.cache == "cold" and self._file_system in page_cache.IN_MEMORY:
            return Skip.of(DatasetSkip.IN_MEMORY, folder=folder, file_system=self._file_system)
        num_bytes = (2 if case.cache == "cold" else 1) * step.num_bytes
        if lacking := self._folder.lacks_bytes(num_bytes):
            return Skip.of(DatasetSkip.NO_SPACE, folder=folder, lacking=lacking, num_bytes=num_bytes)
        return None

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        """Host memory; its send buffer is the source of the files."""
        return _host.HostBuffers(send_bytes, recv_bytes, num_sets)

    def open_groups(self, groups: Round) -> None:
        """No communicators."""

    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """One pass over the data set."""
        assert isinstance(buffers, _host.HostBuffers)
        passes = _Passes(self.case, self._format, self._folder, buffers)
        return Compiled([passes.run_once], keep=[buffers], native=passes, reads=passes.proven)

    def sync(self) -> None:
        """No rank to wait for."""

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time passes, each in its proven state."""
        assert compiled is not None
        return Timing(tuple(compiled.native.timed() for _ in range(num_calls)), "python")

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Rows back to back are skipped (`unsupported_reason`)."""
        raise NotImplementedError


class _Passes:
    """The files of one row, and what the kernel counted in each pass."""

    def __init__(
        self, case: Case, dataset_format: DatasetFormat, folder: WorkFolder, buffers: _host.HostBuffers
    ) -> None:
        num_bytes = buffers.send_bytes
        record_bytes = _record_bytes(case, num_bytes)
        self._case, self._format, self._folder = case, dataset_format, folder
        self._source, self._target = buffers.view("send", 0), buffers.view("recv", 0)
        self._layout = RecordLayout(folder.new("records"), num_bytes // record_bytes, record_bytes, case.direct_io)
        self._pass = RecordPass(dataset_format, self._layout, self._target, case.read_order, case.workers, case.seed)
        plan = LoaderPlan(case.batch, case.prefetch, case.step_s, case.prepare_s)
        self._loader = Loader(self._pass, plan) if case.step_s else None
        self._times: list[LoaderTimes] = []
        self._files: list[Path] = []
        self._written: int | None = None
        self._checksums: list[int] = []
        self._device_bytes: list[int] = []
        self._cpu_s: list[float] = []
        self._pages = 0
        self._direct_s: list[float] = []
        self._copy_s: list[float] = []
        self._rooms: list[mmap.mmap] = []  # of the O_DIRECT reads, made and touched before they are timed

    def run_once(self) -> None:
        """Make one untimed pass."""
        self._ready()
        self._read()

    def timed(self) -> float:
        """Return the seconds of one pass; the state of the files is made before it and proven after it."""
        self._ready()
        cold = self._case.cache == "cold"
        if cold:
            page_cache.evict(self._files)
            self._pages = max(self._pages, page_cache.num_resident(self._files))
        before, cpu_before = page_cache.device_bytes(), _cpu_s()
        begin = time.perf_counter()
        self._read(check=False)
        took_s = time.perf_counter() - begin
        self._cpu_s.append(_cpu_s() - cpu_before)
        self._device_bytes.append(page_cache.device_bytes() - before)
        self._check()
        if len(self._copy_s) < _NUM_BOUNDS:
            self._copy_s.append(_seconds(lambda: self._target.copy()))
            if cold:
                self._direct_s.append(_seconds(self._read_probe))
        return took_s

    def proven(self) -> ReadSamples | Failure:
        """Return what the kernel counted, or why the state of the files is not proven."""
        asked = self._layout.num_records * self._layout.record_bytes
        shares = [num_bytes / asked for num_bytes in self._device_bytes]
        cold = self._case.cache == "cold"
        if cold and (self._pages or min(shares) < _COLD_AT_LEAST):
            return Failure.of(DatasetFailure.NOT_COLD, pages=self._pages, share=min(shares))
        if not cold and max(shares) > _WARM_AT_MOST:
            return Failure.of(DatasetFailure.NOT_WARM, share=max(shares))
        return ReadSamples(
            state="cold" if cold else "warm",
            num_records=self._layout.num_records,
            record_bytes=self._layout.record_bytes,
            device_bytes=tuple(self._device_bytes),
            cpu_s=tuple(self._cpu_s),
            direct_s=tuple(self._direct_s),
            copy_s=tuple(self._copy_s),
            wait_s=tuple(fmean(times.wait_s) for times in self._times),
            step_s=tuple(fmean(times.step_s) for times in self._times),
            busy_s=tuple(fmean(times.busy_s) for times in self._times),
        )

    def _ready(self) -> None:
        """Write the files if the source has changed, and wait until they are on the device."""
        checksum = zlib.crc32(self._source.data)
        if checksum == self._written:
            return
        records = list(self._source.reshape(self._layout.num_records, -1))
        try:
            self._folder.new("records")
            self._format.write(self._layout, records)
            self._files = files_below(self._layout.folder)
            page_cache.sync(self._files)
            if self._case.cache == "cold":
                self._write_probe()
        except OSError as error:
            facts = {"folder": str(self._folder.path.parent), "why": error.strerror or str(error)}
            raise MeasurementError.of(DatasetError.WRITE, **facts) from error
        self._written, self._checksums = checksum, [zlib.crc32(record.data) for record in records]

    def _read(self, check: bool = True) -> None:
        try:
            if self._loader is None or check:  # an untimed pass needs no steps
                self._pass.run()
            else:
                self._times.append(self._loader.run())
        except (OSError, EOFError, ValueError) as error:
            raise MeasurementError.of(
                DatasetError.READ, folder=str(self._folder.path.parent), why=str(error)
            ) from error
        if check:
            self._check()

    def _check(self) -> None:
        rows = self._target.reshape(self._layout.num_records, -1)
        for index, (row, checksum) in enumerate(zip(rows, self._checksums, strict=True)):
            if zlib.crc32(row.data) != checksum:
                file = self._format.file_of(self._layout, index)
                raise MeasurementError.of(DatasetError.CORRUPTED, record=index, file=str(file))

    def _write_probe(self) -> None:
        """Write the same bytes to one file, which shows the disk's own rate."""
        path = self._folder.path / "probe"
        path.write_bytes(self._source.data)
        page_cache.sync([path])
        page_cache.evict([path])
        if not self._rooms:
            self._rooms = [aligned(_PROBE_BYTES) for _ in range(_PROBES_AT_ONCE)]
            self._read_probe()  # the first read touches the memory

    def _read_probe(self) -> None:
        """Read that file in order with O_DIRECT, several large reads in flight."""
        path = self._folder.path / "probe"
        offsets = range(0, len(self._source), _PROBE_BYTES)
        with opened_file(path, direct_io=True) as number, ThreadPoolExecutor(_PROBES_AT_ONCE) as readers:
            parts = [
                readers.submit(_read_parts, number, room, offsets[first::_PROBES_AT_ONCE])
                for first, room in enumerate(self._rooms)
            ]
            for part in parts:
                part.result()


def _record_bytes(case: Case, num_bytes: int) -> int:
    """Return the size of a record: records of equal size fill S. The nearest smaller divisor is found soon."""
    record_bytes = min(case.record, num_bytes)
    while num_bytes % record_bytes:
        record_bytes -= 1
    return record_bytes


def _read_parts(number: int, room: Any, offsets: Sequence[int]) -> None:
    for offset in offsets:
        os.preadv(number, [room], offset)


def _cpu_s() -> float:
    """Return the CPU time of this process, all its threads."""
    used = getrusage(RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


TRANSPORT = Storage
