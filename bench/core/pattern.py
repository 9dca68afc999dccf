"""Define what a pattern file contains: buffer sizes, steps, the expected result, and the meaning of its bandwidth.

Each pattern file is at the root of `bench/` and contains one subclass and its instance PATTERN. No other file registers
the pattern. Most methods take a Shape, which describes one measured size and one group of ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from bench.core.program import Collective, Exchange, Expected, Message, Reduced, Step, delivered
from bench.core.record import Skip
from bench.core.skips import SkipCode
from bench.core.sweep import round_blocks, round_elements

# 64 MiB in flight fill any link; a larger window would only cost memory.
WINDOW_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """The values that determine a pattern's program: the number of ranks, one payload and the factors of a case.

    `payload_bytes` is S of docs/metrics.md, already rounded. S is the larger of one rank's send and receive buffers.
    """

    num_ranks: int
    payload_bytes: int
    element_bytes: int = 4
    root: int = 0
    mode: str = "isolated"
    direction: str = "one-way"
    window: int = 64
    matrix: tuple[tuple[int, ...], ...] = ()
    access: str = "write"
    via: str = "ipc"
    skew: float = 0.0

    @property
    def block_bytes(self) -> int:
        """The size in bytes of a block, if the payload has one block per rank."""
        return self.payload_bytes // self.num_ranks


class Pattern(ABC):
    """A traffic pattern. A subclass overrides a default that is wrong for its pattern."""

    name: str
    reduces = False  # does it combine data, so the reduce operation matters?
    rooted = False  # does it have a root?
    in_place = False  # can it run in place?
    directional = False  # does --direction matter?
    directions: tuple[str, ...] = ("one-way", "two-way")  # its directions; `one-way` selects the first one
    factors: frozenset[str] = frozenset()  # its factors, of those that only some patterns have
    topology: str | None = None  # its fixed topology (pairs); None: the requested one
    usual_topology = "world"  # its default topology
    min_ranks = 1
    replays = False  # do its rows come from a plan file (core/replay_plan.py)?
    trains = False  # are its rows training steps (core/training_step.py)?
    bursts = False  # are its rows checkpoints (core/checkpoint.py)?
    overlaps = False  # is its collective timed both alone and with matrix products at the same time?
    transport: str | None = None  # the only transport that can run it, if there is only one
    one_way = False  # does its time begin on member 0 and end on member 1, whose clock may differ?

    @property
    def plans_own_rows(self) -> bool:
        """Whether the pattern chooses its own rows, instead of one row for each requested size.

        A replay, for example, takes its rows from its plan.
        """
        return self.replays or self.trains or self.bursts

    def way(self, direction: str) -> str:
        """Return the direction in which the pattern runs. `direction`: the direction that the user requested.

        The result is '' if the pattern has no directions.
        """
        if not self.directional:
            return ""
        return self.directions[0] if direction == "one-way" else direction

    def topology_of(self, asked: str) -> str:
        """Return the topology of the pattern's groups. `asked`: the topology that the user requested.

        If the pattern has a fixed topology, the result is that topology. If `asked` is "world" and the pattern has no
        fixed topology, the result is the pattern's default topology.
        """
        return self.topology or (self.usual_topology if asked == "world" else asked)

    def needs(self, shape: Shape) -> Skip | None:
        """Return why a group of this shape cannot run the pattern, or None if it can.

        The payload size does not matter.
        """
        name, num_ranks = self.name, shape.num_ranks
        if num_ranks < self.min_ranks:
            return Skip.of(SkipCode.TOO_FEW_RANKS, pattern=name, least=self.min_ranks, num_ranks=num_ranks)
        if self.directional and self.way(shape.direction) not in self.directions:
            return Skip.of(
                SkipCode.NO_DIRECTION, pattern=name, direction=shape.direction, directions=list(self.directions)
            )
        if self.rooted and shape.root >= num_ranks:
            return Skip.of(SkipCode.NO_ROOT, root=shape.root, num_ranks=num_ranks)
        return None

    def payload(self, requested_bytes: int, shape: Shape) -> int:
        """Return the payload S in bytes for a requested size, rounded to whole elements.

        When this method is called, `shape.payload_bytes` is not set yet. The method must also work for a shape that
        `needs` rejects, because a skipped row shows its payload.
        """
        return round_elements(requested_bytes, shape.element_bytes)

    @abstractmethod
    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the bytes of one member's send buffer and receive buffer."""

    @abstractmethod
    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return the steps of one member."""

    @abstractmethod
    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return what one member's receive buffer must hold afterwards.

        All other bytes of the buffer must be unchanged.
        """

    @abstractmethod
    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Divide the group into equal parts, and return the bytes per direction that must cross the boundary of a part.

        The result is valid for every algorithm that only sends and receives, but not if the network itself reduces.
        With one rank per part, the result gives the bus factor. With one node per part, the result gives the network
        bound.
        """

    def bus_factor(self, shape: Shape) -> float | None:
        """Return busbw / algbw, as in nccl-tests' PERFORMANCE.md, or None if it is undefined (one rank, no bytes)."""
        if shape.num_ranks < 2 or shape.payload_bytes == 0:
            return None
        return self.crossing(shape, shape.num_ranks) / shape.payload_bytes

    def operations(self, shape: Shape) -> int:
        """Return how many operations of payload S a member runs when it runs all its steps once."""
        return 1

    def min_steps(self, num_ranks: int) -> int:
        """Return the smallest number of messages that must follow one another in an operation.

        The latency floor is the shortest time that latencies allow: the number of messages times the latency of a
        message.
        """
        return 1


@dataclass(frozen=True, slots=True)
class Traffic:
    """How many bytes a program must send, whatever the rates of the links are.

    All bytes are per operation and direction. A value is None if it is not defined for the group: a single node, for
    example, has no `node_bytes`.

    `bus_factor`: busbw / algbw.
    `rank_bytes`: the bytes that must cross one rank's port.
    `node_bytes`: the bytes that must pass between one node and the network.
    """

    bus_factor: float | None
    rank_bytes: float | None
    node_bytes: float | None
    min_steps: int


def traffic_of(pattern: Pattern, shape: Shape, num_nodes: int | None) -> Traffic:
    """Return the traffic of a pattern for one payload.

    If the group cannot run the pattern, all values except `min_steps` are None.

    `num_nodes`: number of nodes. If members are not ordered node by node, or if nodes have different numbers of
        members, `num_nodes` must be None.
    """
    runs = pattern.needs(shape) is None
    return Traffic(
        bus_factor=pattern.bus_factor(shape) if runs else None,
        rank_bytes=pattern.crossing(shape, shape.num_ranks) if runs and shape.num_ranks > 1 else None,
        node_bytes=pattern.crossing(shape, num_nodes) if runs and num_nodes is not None and num_nodes > 1 else None,
        min_steps=pattern.min_steps(shape.num_ranks),
    )


class BlockPattern(Pattern):
    """A pattern whose payload is one block per rank, in multiples of 16 bytes."""

    def payload(self, requested_bytes: int, shape: Shape) -> int:
        """Return S in bytes for a requested size. S is n blocks, each a multiple of 16 bytes."""
        return round_blocks(requested_bytes, shape.num_ranks)

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return the bytes of all blocks except those of one part: S (N-1)/N, with N = `num_parts`."""
        return shape.payload_bytes * (num_parts - 1) / num_parts

    def min_steps(self, num_ranks: int) -> int:
        """Return the smallest number of messages that must follow one another in an operation.

        After this number of messages, all ranks can have the block of one rank, or one rank can have the blocks of all
        ranks.
        """
        return log2_steps(num_ranks)


class AllReducePattern(Pattern):
    """A pattern of one call, in which every rank sends S and receives the reduction of the data of all ranks."""

    reduces = True
    in_place = True

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the sizes of the send buffer and the receive buffer. Both sizes are the payload S."""
        return shape.payload_bytes, shape.payload_bytes

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one collective call."""
        return (Collective("allreduce", *self.buffers(shape, member)),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return the reduction of all buffers."""
        return (Reduced(0, shape.payload_bytes),)

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return 2 S (N-1)/N, the bytes that must cross the boundary of one of N parts.

        Reducing the data needs one half of these bytes, and distributing the result needs the other half.
        """
        return 2 * shape.payload_bytes * (num_parts - 1) / num_parts

    def min_steps(self, num_ranks: int) -> int:
        """Return the smallest number of messages that must follow one another in an operation.

        After this number of messages, every rank can have data from all other ranks.
        """
        return log2_steps(num_ranks)


class MessagePattern(Pattern):
    """A pattern of sends and receives. The expected result follows from the messages."""

    min_ranks = 2

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return what the receive buffer must contain: the data of each received message, and their position."""
        return delivered(self.all_steps(shape), member)

    def all_steps(self, shape: Shape) -> tuple[tuple[Step, ...], ...]:
        """Return the steps of every member."""
        return tuple(self.steps(shape, member) for member in range(shape.num_ranks))

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return the bytes per operation that cross the busiest boundary between parts, in the busier direction."""
        flows = (
            (member, send.peer, send.num_bytes)
            for member, steps in enumerate(self.all_steps(shape))
            for step in steps
            for send in (step.sends if isinstance(step, Exchange) else ())
        )
        return busiest_boundary(flows, shape.num_ranks, num_parts) / self.operations(shape)


class PairPattern(Pattern):
    """Messages between members 0 and 1 of a group. The other members do nothing.

    In a one-way isolated sample, member 0 sends a message, and member 1 sends it back. The time t is half of the round
    trip. In a one-way pipelined sample, member 0 has W messages in flight. Member 1 then acknowledges with a message of
    one element. In a two-way sample, both members send at the same time: one message each (isolated), or W messages
    each (pipelined).
    """

    min_ranks = 2
    directional = True

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the buffer sizes. All messages are sent from the start of the send buffer. Each message has its own
        part of the receive buffer.
        """
        flows = [flow for step in self._flows(shape) for flow in step if member < 2]
        send_bytes = max((num_bytes for source, _, num_bytes in flows if source == member), default=0)
        recv_bytes = sum(count * num_bytes for source, count, num_bytes in flows if source != member)
        return send_bytes, recv_bytes

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return the steps of one member. The sends and receives of a step are posted together."""
        if member > 1:
            return ()
        steps = []
        for flows in self._flows(shape):
            sends: list[Message] = []
            recvs: list[Message] = []
            for source, count, num_bytes in flows:
                if source == member:
                    sends += [Message(1 - member, num_bytes)] * count
                else:
                    recvs += [Message(source, num_bytes, slot * num_bytes) for slot in range(count)]
            steps.append(Exchange(tuple(sends), tuple(recvs)))
        return tuple(steps)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return what the receive buffer must contain: the data of each received message, and their position."""
        return delivered((self.steps(shape, 0), self.steps(shape, 1)), member) if member < 2 else ()

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return the bytes of one message if members 0 and 1 are in different parts, otherwise 0.

        Acknowledgements are not counted.
        """
        return busiest_boundary([(0, 1, shape.payload_bytes)], shape.num_ranks, num_parts)

    def operations(self, shape: Shape) -> int:
        """Return how many operations the steps contain.

        In a two-way sample, an operation is one message of size S in each direction. In a one-way sample, an operation
        is one message of size S, so a round trip counts as two operations.
        """
        if shape.mode == "pipelined":
            return max(1, min(shape.window, WINDOW_BYTES // shape.payload_bytes))
        return 1 if shape.direction == "two-way" else 2

    def _flows(self, shape: Shape) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        """Return (source, number of messages, bytes of each message) for every step."""
        size, pipelined = shape.payload_bytes, shape.mode == "pipelined"
        count = self.operations(shape) if pipelined else 1
        if shape.direction == "two-way":
            return (((0, count, size), (1, count, size)),)
        return ((0, count, size),), ((1, 1, shape.element_bytes if pipelined else size),)


def busiest_boundary(flows: Iterable[tuple[int, int, int]], num_ranks: int, num_parts: int) -> int:
    """Divide the members into equal parts, and return the bytes that enter or leave the busiest part.

    If different numbers of bytes enter and leave the busiest part, the result is the larger number. Bytes inside a part
    are not counted. The first part has members 0, 1, ..., and the next part has the members after them.

    `flows`: the source, the target and the bytes of each message.
    """
    size = -(-num_ranks // num_parts)
    leaving, entering = [0] * num_parts, [0] * num_parts
    for source, target, num_bytes in flows:
        if source // size != target // size:
            leaving[source // size] += num_bytes
            entering[target // size] += num_bytes
    return max(leaving + entering)


def log2_steps(num_ranks: int) -> int:
    """Return ceil(log2 n).

    If each rank sends one message per step, at most 2^k ranks can have the data of one rank after k steps.
    """
    return (num_ranks - 1).bit_length()
