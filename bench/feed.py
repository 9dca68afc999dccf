"""One process reads the records of a data set from files into host memory, with a proven cold or hot page cache.

S is the size of the data set in bytes. The data set consists of records of `--record` bytes in files of the format
`--files`. The files are in the folder `--folder`. The time t is the duration of one pass over all records. `--cache
cold` drops the files from the page cache before every pass, and `--cache hot` reads the files from the page cache. For
each row, the kernel's counters must prove that the cache was cold or hot. If the counters do not prove the state of the
cache, the row fails. Each byte is read once, so the bus factor is 1.

    python -m bench.feed --sizes 64M --files tar --record 110K --mode isolated
    python -m bench.feed --sizes 64M --workers 2 --step-time 140ms --prepare-time 250ms --mode isolated -n 3
    python -m bench.feed --sizes 64M --files raw --read-order random --workers 4 --demand 2GB/s --mode isolated
"""

from __future__ import annotations

from bench.core.pattern import Pattern, Shape
from bench.core.program import Copied, Expected, Read, Step


class Feed(Pattern):
    """Each rank makes a pass over a data set, independently of the other ranks."""

    name = "feed"
    transport = "storage"
    factors = (
        frozenset({"files", "read_order", "record", "block", "ahead", "direct_io", "folder", "demand"})
        | {"workers", "worker_kind", "prepare", "offline", "destination", "memory"}
        | {"step_s", "prepare_s", "batch", "prefetch"}
    )

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the size of the stored records and the size of the records in memory, in bytes. Both are S."""
        return shape.payload_bytes, shape.payload_bytes

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one pass."""
        return (Read(shape.payload_bytes),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return the records in the order of the dataset, even if the pass read them in another order."""
        return (Copied(member, 0, shape.payload_bytes),)

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return 0, because no data move between ranks."""
        return 0.0

    def bus_factor(self, shape: Shape) -> float | None:
        """Return 1, even for a single rank. Return None if S is 0."""
        return 1.0 if shape.payload_bytes else None


PATTERN = Feed()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
