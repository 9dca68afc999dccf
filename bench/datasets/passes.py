"""One pass over a data set: every record once, in a given order, by one or several workers."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bench.core.payload import Bytes
from bench.datasets.dataset_format import PER_SHARD, DatasetFormat, RecordLayout, RecordReader

BUFFERED = 256  # records in the buffer from which `shuffled` draws


class RecordPass:
    """Reads all records into `target`, record k at row k, whatever the order.

    sequential: as stored. shuffled: shards in random order, through a buffer from which the next record is drawn, as
    loaders of sharded formats do. random: single records, for formats that can find one. `num_workers` threads divide
    the shards (or records) among them; 0: the calling thread reads. Files are opened by the pass, so their headers
    and indexes are read in it.
    """

    def __init__(
        self,
        dataset_format: DatasetFormat,
        layout: RecordLayout,
        target: Bytes,
        order: str,
        num_workers: int,
        seed: int,
    ) -> None:
        self._format, self._layout = dataset_format, layout
        self._rows = target.reshape(layout.num_records, layout.record_bytes)
        self._order, self.num_workers = order, num_workers
        drawn = random.Random(seed)
        units = list(range(layout.num_records if order == "random" else layout.num_shards))
        if order != "sequential":
            drawn.shuffle(units)
        self._parts = [units[worker :: max(1, num_workers)] for worker in range(max(1, num_workers))]
        self._seeds = [drawn.getrandbits(32) for _ in self._parts]
        self._buffers = (
            [np.zeros((min(BUFFERED, len(self._rows)), layout.record_bytes), np.uint8) for _ in self._parts]
            if order == "shuffled"
            else []
        )

    def run(self) -> None:
        """Read every record once. Raises OSError, EOFError or ValueError for files that cannot be read."""
        if self.num_workers == 0:
            self._read_part(0)
            return
        with ThreadPoolExecutor(self.num_workers) as workers:
            for finished in [workers.submit(self._read_part, part) for part in range(len(self._parts))]:
                finished.result()

    def _read_part(self, part: int) -> None:
        for _ in self.part(part):
            pass

    def part(self, part: int) -> Generator[int]:
        """Read one worker's records. Yields the number of each once it is in its place."""
        reader = self._format.open(self._layout)
        try:
            if self._order == "random":
                for index in self._parts[part]:
                    reader.read(index, self._rows[index])
                    yield index
            elif self._order == "shuffled":
                yield from self._read_shuffled(reader, part)
            else:
                for shard in self._parts[part]:
                    yield from reader.stream(shard, self._rows.__getitem__)
        finally:
            reader.close()

    def _read_shuffled(self, reader: RecordReader, part: int) -> Iterator[int]:
        """Draw each record from a buffer: a free slot takes the next record, and a random slot is emptied."""
        slots, drawn = self._buffers[part], random.Random(self._seeds[part])
        held: list[tuple[int, int]] = []  # (slot, record)
        free = list(range(len(slots)))
        for shard in self._parts[part]:
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
        self._rows[index] = slots[slot]
        return slot, index


def least_of_a_worker(num_records: int, order: str, num_workers: int) -> int:
    """Return the number of records that each worker reads at least."""
    per_unit = 1 if order == "random" else PER_SHARD
    num_units = -(-num_records // per_unit)
    lacking = num_units * per_unit - num_records  # of the last shard
    return num_units // max(1, num_workers) * per_unit - lacking
