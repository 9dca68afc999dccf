"""No rank continues before every rank has arrived; no data moves.

S is 0 for every requested size. A barrier therefore has a time but no bandwidth and no bus factor. A barrier needs at
least ceil(log2 n) successive messages. With k successive messages, a rank can learn the arrival of at most 2^k ranks.
The floor of a barrier's time is the time of ceil(log2 n) successive messages.

    mpirun -n 16 python -m bench.barrier
    mpirun -n 16 python -m bench.barrier --mode isolated --topology node
"""

from __future__ import annotations

from bench.core.pattern import Pattern, Shape, log2_steps
from bench.core.program import Collective, Expected, Step


class Barrier(Pattern):
    """The ranks send and receive no data."""

    name = "barrier"

    def payload(self, requested_bytes: int, shape: Shape) -> int:
        """Return 0 for every requested size, so a barrier has only one row for all sizes of a case."""
        return 0

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return 0 bytes to send and 0 bytes to receive."""
        return 0, 0

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one collective call."""
        return (Collective(self.name, 0, 0),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return nothing, because a barrier delivers no data."""
        return ()

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return 0: no data move."""
        return 0

    def min_steps(self, num_ranks: int) -> int:
        """Return the smallest number of successive messages after which every rank can know that all have arrived."""
        return log2_steps(num_ranks)


PATTERN = Barrier()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
