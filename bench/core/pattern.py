"""What a pattern file says: how big, what to do, what must arrive, and what the bandwidth means.

One file at the root of `bench/` holds one subclass and its instance PATTERN; nothing is registered anywhere else.
Every method is asked about a Shape: one size, for one group of ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from bench.core.program import Collective, Copied, Exchange, Expected, Step, delivered
from bench.core.sweep import round_blocks, round_elements


@dataclass(frozen=True, slots=True)
class Shape:
    """One size of one case for a group of `num_ranks`: what decides a program.

    `payload_bytes` is S of docs/metrics.md: the larger of one rank's send and receive buffers, already rounded.
    """

    num_ranks: int
    payload_bytes: int
    element_bytes: int = 4
    root: int = 0
    mode: str = "isolated"
    direction: str = "one-way"
    window: int = 64
    matrix: tuple[tuple[int, ...], ...] = ()

    @property
    def block_bytes(self) -> int:
        """One rank's share of the payload."""
        return self.payload_bytes // self.num_ranks


class Pattern(ABC):
    """A traffic pattern. Subclasses override what differs from "one collective call by everybody"."""

    name: str
    reduces = False  # does it combine data (so that the reduce operation matters)?
    rooted = False  # has it a root?
    in_place = False  # can it run in place?
    directional = False  # does --direction matter?
    topology: str | None = None  # a topology of its own (pairs), else the one asked for
    min_ranks = 1

    def needs(self, num_ranks: int) -> str | None:
        """Why a group of this many ranks can not run it; None when it can."""
        if num_ranks < self.min_ranks:
            return f"{self.name} needs at least {self.min_ranks} ranks, the group has {num_ranks}"
        return None

    def payload(self, requested_bytes: int, shape: Shape) -> int:
        """S for a requested size, in bytes: whole elements (`shape.payload_bytes` is not yet known)."""
        return round_elements(requested_bytes, shape.element_bytes)

    @abstractmethod
    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """(send, receive) bytes of one member."""

    @abstractmethod
    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """What one member does."""

    @abstractmethod
    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """What must be in one member's receive buffer afterwards; all other bytes of it must be untouched."""

    @abstractmethod
    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Bytes per direction that must cross the boundary of one of `num_parts` equal parts of the group.

        For any algorithm of sends and receives (no reduction inside the network). With num_parts = n a part is one
        rank, which gives the bus factor; with the number of nodes it gives the network bound. One formula for both.
        """

    def bus_factor(self, shape: Shape) -> float | None:
        """busbw / algbw, after nccl-tests' PERFORMANCE.md; None where it has no meaning (one rank, no bytes)."""
        if shape.num_ranks < 2 or shape.payload_bytes == 0:
            return None
        return self.crossing(shape, shape.num_ranks) / shape.payload_bytes

    def operations(self, shape: Shape) -> int:
        """How many operations of size S one pass through the steps performs one after the other."""
        return 1

    def min_steps(self, num_ranks: int) -> int:
        """The least number of messages that must follow one another: the latency floor is this times one message."""
        return 1


class BlockPattern(Pattern):
    """A pattern whose payload is one block per rank: rounded to whole blocks of 16 bytes."""

    def payload(self, requested_bytes: int, shape: Shape) -> int:
        """S for a requested size, in bytes: n blocks of whole 16 bytes."""
        return round_blocks(requested_bytes, shape.num_ranks)

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """All but a part's own share of the payload: S (N-1)/N."""
        return shape.payload_bytes * (num_parts - 1) / num_parts


class MessagePattern(Pattern):
    """A pattern of sends and receives: what must arrive follows from the messages themselves."""

    min_ranks = 2

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """The bytes of each message, where its receive puts them."""
        return delivered(self.all_steps(shape), member)

    def all_steps(self, shape: Shape) -> tuple[tuple[Step, ...], ...]:
        """The steps of every member."""
        return tuple(self.steps(shape, member) for member in range(shape.num_ranks))

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """The busiest boundary and direction of the messages themselves, per operation."""
        return max(self.traffic(shape, num_parts)) / self.operations(shape)

    def traffic(self, shape: Shape, num_parts: int) -> tuple[int, ...]:
        """Bytes leaving and entering each part, [out_0, in_0, out_1, in_1, ...], members laid out part by part."""
        size = -(-shape.num_ranks // num_parts)
        totals = [0] * (2 * num_parts)
        for member, steps in enumerate(self.all_steps(shape)):
            for step in steps:
                for send in step.sends if isinstance(step, Exchange) else ():
                    if send.peer // size != member // size:
                        totals[2 * (member // size)] += send.num_bytes
                        totals[2 * (send.peer // size) + 1] += send.num_bytes
        return tuple(totals)


def log2_steps(num_ranks: int) -> int:
    """ceil(log2 n): after k steps of one message each a rank's data can be known to 2^k ranks at most."""
    return (num_ranks - 1).bit_length()


__all__ = ["BlockPattern", "Collective", "Copied", "MessagePattern", "Pattern", "Shape", "log2_steps"]
