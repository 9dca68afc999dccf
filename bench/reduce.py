"""At the end, the root has the reduction of all ranks' buffers.

S is one rank's buffer. Every rank except the root adds its own buffer to the data that it has received. The rank then
sends the sum (S bytes) to another rank. For any number of ranks, a port carries at most S bytes in each direction. The
bus factor is therefore 1, as in nccl-tests. If the ranks are divided into N equal parts, each part first reduces its
own buffers. Each part except the root's part then sends S bytes.

    mpirun -n 16 python -m bench.reduce -b 8 -e 128M
    mpirun -n 16 python -m bench.reduce --sizes 64M --root 5 -o max
"""

from __future__ import annotations

from bench.core.pattern import Pattern, Shape, log2_steps
from bench.core.program import Collective, Expected, Reduced, Step


class Reduce(Pattern):
    """Every rank sends S, and the root receives S."""

    name = "reduce"
    reduces = True
    rooted = True
    in_place = True

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the bytes to send and to receive: every member sends S, and only the root receives."""
        return shape.payload_bytes, shape.payload_bytes if member == shape.root else 0

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one collective call."""
        return (Collective(self.name, *self.buffers(shape, member), root=shape.root),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return, at the root, the reduction of all buffers."""
        return (Reduced(0, shape.payload_bytes),) if member == shape.root else ()

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return S: each part except the root's part sends S bytes to other parts."""
        return shape.payload_bytes if num_parts > 1 else 0

    def min_steps(self, num_ranks: int) -> int:
        """Return the smallest number of successive messages after which the root can have every rank's data."""
        return log2_steps(num_ranks)


PATTERN = Reduce()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
