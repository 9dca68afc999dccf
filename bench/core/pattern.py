"""Define what a pattern file contains: buffer sizes, steps, the expected result, and the meaning of its bandwidth.

Each pattern file is at the root of `bench/` and contains one subclass and its instance PATTERN. No other file registers
the pattern. Most methods take a Shape, which is one size for one group of ranks.
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
    """The values that determine a pattern's program for `num_ranks` ranks: one size and the factors of one case.

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
        """The bytes of one rank's block of the payload."""
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
        """Whether the requested sizes do not determine the pattern's rows.

        A replay plan, for example, has its own rows.
        """
        return self.replays or self.trains or self.bursts

    def way(self, direction: str) -> str:
        """Return the direction in which the pattern runs if the user requests `direction`.

        The result is '' if the pattern has no directions.
        """
        if not self.directional:
            return ""
        return self.directions[0] if direction == "one-way" else direction

    def topology_of(self, asked: str) -> str:
        """Return the topology of the pattern's groups if the user requested topology `asked`.

        A fixed topology of the pattern has priority. If `asked` is "world", the result is the pattern's default
        topology.
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
        """Return S in bytes for a requested size, rounded to whole elements.

        `shape.payload_bytes` is not yet known. The method must also return a payload for a shape that `needs` refuses,
        because the row that is skipped shows its size.
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
        """Return the bytes per direction that must cross the boundary of one of `num_parts` equal parts of the group.

        The result holds for any algorithm that only sends and receives. The result does not hold if the network itself
        reduces. If num_parts is n, each part is one rank, and the result gives the bus factor. If num_parts is N, each
        part is one node, and the result gives the network bound.
        """

    def bus_factor(self, shape: Shape) -> float | None:
        """Return busbw / algbw, as in nccl-tests' PERFORMANCE.md, or None if it is undefined (one rank, no bytes)."""
        if shape.num_ranks < 2 or shape.payload_bytes == 0:
            return None
        return self.crossing(shape, shape.num_ranks) / shape.payload_bytes

    def operations(self, shape: Shape) -> int:
        """Return the number of operations of size S in one pass through the steps."""
        return 1

    def min_steps(self, num_ranks: int) -> int:
        """Return the least number of successive messages in one operation.

        This number times the latency of a message is the floor, the shortest time that latencies allow.
        """
        return 1


@dataclass(frozen=True, slots=True)
class Traffic:
    """The numbers of bytes that a program sends across boundaries. These numbers do not depend on links.

    All bytes are per operation and direction. A value is None if it does not exist for the group, such as `node_bytes`
    for a single node.

    `bus_factor`: busbw / algbw.
    `rank_bytes`: the bytes that must cross one rank's port.
    `node_bytes`: the bytes that must pass between one node and the network.
    """

    bus_factor: float | None
    rank_bytes: float | None
    node_bytes: float | None
    min_steps: int


def traffic_of(pattern: Pattern, shape: Shape, num_nodes: int | None) -> Traffic:
    """Return the traffic of one size. The traffic is empty if the group cannot run the pattern.

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
        """Return S (N-1)/N, the payload in bytes without the part's own blocks, with N = `num_parts`."""
        return shape.payload_bytes * (num_parts - 1) / num_parts

    def min_steps(self, num_ranks: int) -> int:
        """Return the least number of successive messages until all ranks have a block, or one rank has all blocks."""
        return log2_steps(num_ranks)


class AllReducePattern(Pattern):
    """A pattern in which every rank sends S and receives the reduction of all ranks' S, in one call."""

    reduces = True
    in_place = True

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return S to send and S to receive."""
        return shape.payload_bytes, shape.payload_bytes

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one collective call."""
        return (Collective("allreduce", *self.buffers(shape, member)),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return the reduction of all buffers."""
        return (Reduced(0, shape.payload_bytes),)

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return 2 S (N-1)/N. The reduction needs half of these bytes, and sending the result needs the other half."""
        return 2 * shape.payload_bytes * (num_parts - 1) / num_parts

    def min_steps(self, num_ranks: int) -> int:
        """Return the least number of successive messages until each rank's data reach all other ranks."""
        return log2_steps(num_ranks)


class MessagePattern(Pattern):
    """A pattern of sends and receives. The expected result follows from the messages."""

    min_ranks = 2

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return the data of each received message, and the position of these data in the receive buffer."""
        return delivered(self.all_steps(shape), member)

    def all_steps(self, shape: Shape) -> tuple[tuple[Step, ...], ...]:
        """Return the steps of every member."""
        return tuple(self.steps(shape, member) for member in range(shape.num_ranks))

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return the traffic of the busiest boundary and direction, in bytes per operation."""
        flows = (
            (member, send.peer, send.num_bytes)
            for member, steps in enumerate(self.all_steps(shape))
            for step in steps
            for send in (step.sends if isinstance(step, Exchange) else ())
        )
        return busiest_boundary(flows, shape.num_ranks, num_parts) / self.operations(shape)


class PairPattern(Pattern):
    """Messages between members 0 and 1 of a group. The other members do nothing.

    If the direction is one way, an isolated sample is a message and its answer, and its time t is half of the round
    trip. A one-way pipelined sample has W messages in flight, followed by an acknowledgement of one element. In
    two-way samples, both members send at the same time. Each member then sends one message (isolated) or W messages
    (pipelined).
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
        """Return the data of each received message, and the position of these data in the receive buffer."""
        return delivered((self.steps(shape, 0), self.steps(shape, 1)), member) if member < 2 else ()

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return the bytes that cross a boundary per direction and operation.

        The result is the size of one message. Acknowledgements are not counted.
        """
        return busiest_boundary([(0, 1, shape.payload_bytes)], shape.num_ranks, num_parts)

    def operations(self, shape: Shape) -> int:
        """Return the number of messages of size S per direction.

        The messages may be in flight at the same time or one after the other.
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
    """Return the number of bytes that enter or leave the busiest of `num_parts` equal parts of the members.

    A flow is (source, target, bytes). Members are ordered part by part: the first part contains members 0, 1, ...
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
