"""Run one pass over a data set: every record once, in a given order, by one or several workers."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.core.payload import Bytes
from bench.datasets.dataset_format import PER_SHARD, DatasetFormat, RecordLayout, RecordReader, aligned_array
from bench.datasets.gpu_files import GpuMemory
from bench.datasets.preparation import AsStored, Preparation

BUFFERED = 256  # records in the buffer from which `shuffled` draws


class RecordPass:
    """Reads all records of a data set, and prepares each record. The result of record k is always row k of `target`.

    With `sequential`, the pass follows the stored order.

    With `shuffled`, the pass reads shards in random order. The next record is drawn at random from a buffer of records,
    as in loaders of sharded formats. If the target is a GPU, records are not buffered, but read directly into `target`.

    With `random`, the pass reads single records in random order. The order `random` requires a format that can read any
    record directly.

    `num_workers`: the number of threads, which divide the shards (or records) among them. If `num_workers` is 0, the
        calling thread reads.
    `ahead`: the number of records that the pass requests from the kernel in advance. With `sequential` and `shuffled`,
        this number is rounded to whole shards.

    Each pass opens the files, so the time of a pass includes reading the files' headers and indexes.
    """

    def __init__(
        self,
        dataset_format: DatasetFormat,
        layout: RecordLayout,
        target: Bytes | GpuMemory,
        order: str,
        num_workers: int,
        seed: int,
        preparation: Preparation | None = None,
        ahead: int = 0,
    ) -> None:
        self._format, self._layout = dataset_format, layout
        self._preparation = preparation or AsStored(layout.record_bytes)
        self._rows = _rows(target, layout.num_records, self._preparation.result_bytes)
        self._order, self.num_workers, self._ahead = order, num_workers, ahead
        drawn = random.Random(seed)
        units = list(range(layout.num_records if order == "random" else layout.num_shards))
        if order != "sequential":
            drawn.shuffle(units)
        self._parts = [units[worker :: max(1, num_workers)] for worker in range(max(1, num_workers))]
        self._seeds = [drawn.getrandbits(32) for _ in self._parts]
        self._buffers: dict[int, Bytes] = {}

    def file_of(self, index: int) -> Path:
        """Return the file of a record."""
        return self._format.file_of(self._layout, index)

    def run(self) -> None:
        """Read every record once. Raises OSError, EOFError or ValueError for files that cannot be read."""
        if self.num_workers == 0:
            self.read_part(0)
            return
        with ThreadPoolExecutor(self.num_workers) as workers:
            for finished in [workers.submit(self.read_part, part) for part in range(len(self._parts))]:
                finished.result()

    def read_part(self, part: int) -> None:
        """Read all records of one worker."""
        for _ in self.part(part):
            pass

    def make_room(self, part: int) -> None:
        """Allocate the buffer of one worker.

        Calling this method before the timed pass keeps the allocation out of the pass's time.
        """
        if part not in self._buffers:
            num = min(BUFFERED, len(self._rows)) if self._order == "shuffled" else 1
            size = self._layout.record_bytes
            self._buffers[part] = aligned_array(num * size).reshape(num, size)

    def part(self, part: int) -> Generator[int]:
        """Read one worker's records. Yield each record's number as soon as its result is in its row of `target`."""
        self.make_room(part)
        reader = self._format.open(self._layout)
        try:
            units = self._announced(reader, self._parts[part])
            if self._order == "shuffled" and not self._layout.to_gpu:
                yield from self._read_shuffled(reader, part, units)
            elif self._preparation.copies_only:
                yield from self._read_in_place(reader, units)
            else:
                yield from self._read_and_prepare(reader, units, self._buffers[part][0])
        finally:
            reader.close()

    def _read_in_place(self, reader: RecordReader, units: Iterator[int]) -> Iterator[int]:
        for unit in units:
            if self._order == "random":
                reader.read(unit, self._rows[unit])
                yield unit
            else:
                yield from reader.stream(unit, self._rows.__getitem__)

    def _read_and_prepare(self, reader: RecordReader, units: Iterator[int], stored: Bytes) -> Iterator[int]:
        for unit in units:
            if self._order == "random":
                reader.read(unit, stored)
                self._prepare(unit, stored)
                yield unit
                continue
            for index in reader.stream(unit, lambda _: stored):
                self._prepare(index, stored)
                yield index

    def _read_shuffled(self, reader: RecordReader, part: int, units: Iterator[int]) -> Iterator[int]:
        """Shuffle records through a buffer: read each record into a free slot.

        When all slots are full, prepare the record in a random slot, and free this slot.
        """
        slots, drawn = self._buffers[part], random.Random(self._seeds[part])
        held: list[tuple[int, int]] = []  # (slot, record)
        free = list(range(len(slots)))
        for shard in units:
            for index in reader.stream(shard, lambda _: slots[free[-1]]):
                held.append((free.pop(), index))
                if not free:
                    slot, emitted = self._emit(slots, held, drawn.randrange(len(held)))
                    free.append(slot)
                    yield emitted
        while held:
            yield self._emit(slots, held, drawn.randrange(len(held)))[1]

    def _emit(self, slots: Bytes, held: list[tuple[int, int]], which: int) -> tuple[int, int]:
        held[which], held[-1] = held[-1], held[which]
        slot, index = held.pop()
        self._prepare(index, slots[slot])
        return slot, index

    def _prepare(self, index: int, stored: Bytes) -> None:
        try:
            self._preparation.prepare(stored, self._rows[index])
        except ValueError as error:
            raise ValueError(f"{self.file_of(index)}: record {index}: {error}") from None

    def _announced(self, reader: RecordReader, units: list[int]) -> Iterator[int]:
        """Yield the shards or records to read, and ask the kernel to read ahead the shards or records that follow."""
        alone = self._order == "random"
        depth = -(-self._ahead // (1 if alone else PER_SHARD))
        for place, unit in enumerate(units):
            new = units[place + depth : place + depth + 1] if place else units[: depth + 1]
            if depth:
                reader.announce([index for one in new for index in ((one,) if alone else self._layout.in_shard(one))])
            yield unit


def _rows(target: Bytes | GpuMemory, num: int, size: int) -> Any:
    """Return a sequence. Element k of the sequence is the memory for the result of record k."""
    if isinstance(target, GpuMemory):
        return [target.part(index * size, size) for index in range(num)]
    return target.reshape(num, size)


def least_of_a_worker(num_records: int, order: str, num_workers: int) -> int:
    """Return how many records the worker with the fewest records reads."""
    per_unit = 1 if order == "random" else PER_SHARD
    num_units = -(-num_records // per_unit)
    lacking = num_units * per_unit - num_records  # records that the last shard lacks
    return num_units // max(1, num_workers) * per_unit - lacking
