"""The ranks form two halves. All ranks send at the same time: rank r exchanges messages with rank r + n/2.

S is one message. During the measured time, each port sends S and receives S. The bus factor is therefore 1. If ranks
are numbered node by node, every message crosses from one half of the machine to the other half. In each direction, n/2
messages carry n/2 S bytes in total. The rate of these n/2 messages is the network's bisection bandwidth.

    mpirun -n 16 python -m bench.bisection -b 1K -e 64M
    mpirun -n 16 python -m bench.bisection --sizes 16M --mode pipelined
"""

from __future__ import annotations

from bench.core.pattern import MessagePattern, Shape
from bench.core.program import Exchange, Message, Step
from bench.core.record import Skip
from bench.core.skips import SkipCode


class Bisection(MessagePattern):
    """Each rank exchanges messages with one partner in the other half."""

    name = "bisection"

    def needs(self, shape: Shape) -> Skip | None:
        """Check that the number of ranks is even, so that the two halves are equal."""
        if shape.num_ranks % 2:
            return Skip.of(SkipCode.ODD_RANKS, pattern=self.name, num_ranks=shape.num_ranks)
        return super().needs(shape)

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return S to send and S to receive."""
        return shape.payload_bytes, shape.payload_bytes

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one exchange: this member and its partner send each other one message."""
        partner = (member + shape.num_ranks // 2) % shape.num_ranks
        return (Exchange((Message(partner, shape.payload_bytes),), (Message(partner, shape.payload_bytes),)),)


PATTERN = Bisection()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
