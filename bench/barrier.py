"""No rank continues before every rank has arrived; no data moves.

S is 0 whatever size is requested, so there is no bandwidth and no bus factor, only the time. The floor of the time is
ceil(log2 n) messages one after the other, because after k steps a rank can know of at most 2^k ranks that they arrived.

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
        """0 for every request, so all sizes of a case are one row."""
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
        """All ranks must learn that each of the others has arrived."""
        return log2_steps(num_ranks)


PATTERN = Barrier()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
