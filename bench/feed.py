"""One process reads the records of a data set from files into host memory, in proven cold or warm state.

S is the data set: records of `--record` bytes, written in the format `--files` below `--folder`. t is one pass over all
records. `--cache cold` drops the files from the page cache before every pass, `hot` reads them again from there; the
kernel's counters prove either state, and a row without proof fails. Each byte is read once, so the bus factor is 1.

    python -m bench.feed --sizes 64M --files tar --record 110K --mode isolated
    python -m bench.feed --sizes 64M --workers 2 --step-time 140ms --prepare-time 250ms --mode isolated -n 3
    python -m bench.feed --sizes 64M --files raw --read-order random --workers 4 --demand 2GB/s --mode isolated
"""

from __future__ import annotations

from bench.core.pattern import Pattern, Shape
from bench.core.program import Copied, Expected, Read, Step


class Feed(Pattern):
    """A pass over a data set; ranks do not depend on each other."""

    name = "feed"
    transport = "storage"
    factors = (
        frozenset({"files", "read_order", "record", "block", "ahead", "direct_io", "folder", "demand"})
        | {"workers", "worker_kind", "prepare", "offline", "destination", "memory"}
        | {"step_s", "prepare_s", "batch", "prefetch"}
    )

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """S in files, S in memory."""
        return shape.payload_bytes, shape.payload_bytes

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """One pass."""
        return (Read(shape.payload_bytes),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return the records, each at its own place whatever the order of the pass."""
        return (Copied(member, 0, shape.payload_bytes),)

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Nothing crosses from rank to rank."""
        return 0.0

    def bus_factor(self, shape: Shape) -> float | None:
        """1, also for one rank."""
        return 1.0 if shape.payload_bytes else None


PATTERN = Feed()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
