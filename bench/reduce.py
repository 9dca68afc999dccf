"""At the end, the root has the reduction of all ranks' buffers.

S is one rank's buffer. Every rank but the root must send S once, combined with what it received. That is S through a
port and direction for any n, so the bus factor is 1, as in nccl-tests. Between N equal parts, each part but the root's
sends S, after a reduction inside the part.

    mpirun -n 16 python -m bench.reduce -b 8 -e 128M
    mpirun -n 16 python -m bench.reduce --sizes 64M --root 5 -o max
"""

from __future__ import annotations

from bench.core.pattern import Pattern, Shape, log2_steps
from bench.core.program import Collective, Expected, Reduced, Step


class Reduce(Pattern):
    """Every rank sends S, the root receives S."""

    name = "reduce"
    reduces = True
    rooted = True
    in_place = True

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the bytes to send and to receive: every member sends S, and only the root receives."""
        return shape.payload_bytes, shape.payload_bytes if member == shape.root else 0

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """One call."""
        return (Collective(self.name, *self.buffers(shape, member), root=shape.root),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """At the root, the reduction of all buffers."""
        return (Reduced(0, shape.payload_bytes),) if member == shape.root else ()

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """S: each part except the root's part sends S bytes to other parts."""
        return shape.payload_bytes if num_parts > 1 else 0

    def min_steps(self, num_ranks: int) -> int:
        """Every rank's data must reach the root, and a rank receives one message at a time."""
        return log2_steps(num_ranks)


PATTERN = Reduce()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
