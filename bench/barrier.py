"""No rank goes on before every rank has arrived; no data moves.

There is nothing to divide by a time: S is 0 whatever size is asked for, and there is no bus factor. What is left is the
time itself, whose floor is ceil(log2 n) messages one after the other: in k steps a rank can have heard of 2^k ranks.

    mpirun -n 16 python -m bench.barrier
    mpirun -n 16 python -m bench.barrier --mode isolated --topology node
"""

from __future__ import annotations

from bench.core.pattern import Pattern, Shape, log2_steps
from bench.core.program import Collective, Expected, Step


class Barrier(Pattern):
    """Nothing to send, nothing to receive."""

    name = "barrier"

    def payload(self, requested_bytes: int, shape: Shape) -> int:
        """0 for every request, so that all sizes of a case are one row."""
        return 0

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """None."""
        return 0, 0

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """One call."""
        return (Collective(self.name, 0, 0),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Nothing."""
        return ()

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Nothing."""
        return 0

    def min_steps(self, num_ranks: int) -> int:
        """That one rank has arrived must be known to all the others."""
        return log2_steps(num_ranks)


PATTERN = Barrier()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
