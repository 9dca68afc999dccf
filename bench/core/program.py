"""A program describes, as plain data, what each rank of a group does in one operation.

A rank runs its steps one after the other. A rank posts all messages of one Exchange together. Peers and roots are
numbered as *members* of the group, from 0 to n-1, not as world ranks. One program is therefore valid for every group of
the same size. If a member sends a message in its step k, another member receives the message in its own step k. A
transport compiles the steps, the model simulates them, and the bounds count the bytes that cross a link.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.core.errors import UsageError

# The calls that transports can make and the model can simulate (core/schedules.py).
COLLECTIVES = (
    "allreduce",
    "allgather",
    "reducescatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "alltoall",
    "alltoallv",
    "barrier",
)


def check_collective(op: str) -> None:
    """Raise UsageError if no collective has this name."""
    if op not in COLLECTIVES:
        from bench.core.plugins import nearest  # only for an error: each pattern's file imports this module first

        raise UsageError(f"no collective is called {op!r}{nearest(op, COLLECTIVES)}")


@dataclass(frozen=True, slots=True)
class Collective:
    """One library call that all members make.

    `op`: one of COLLECTIVES. Raises UsageError for another name.
    `send_split`, `recv_split`: the bytes to and from each member (alltoallv only).
    """

    op: str
    send_bytes: int
    recv_bytes: int
    root: int = 0
    send_split: tuple[int, ...] = ()
    recv_split: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check the name."""
        check_collective(self.op)


@dataclass(frozen=True, slots=True)
class Message:
    """One send or receive: `num_bytes` at `offset_bytes` of this member's send or receive buffer."""

    peer: int
    num_bytes: int
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """The send and receive operations that a rank posts together and completes together."""

    sends: tuple[Message, ...] = ()
    recvs: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of `num_bytes` from the send buffer of `source` to the receive buffer of `target`, without a receive call.

    `source_on`: the member whose GPU holds the source bytes, or None if the bytes are in host memory.
    `target_on`: the member whose GPU holds the target bytes, or None if the bytes are in host memory.

    If one process has memory on two GPUs, a buffer of one member may be on the GPU of another member.
    """

    source: int
    target: int
    num_bytes: int
    source_on: int | None
    target_on: int | None
    source_offset: int = 0
    target_offset: int = 0


@dataclass(frozen=True, slots=True)
class CopyStep:
    """Copies that this member makes without a call of any other member.

    All copies of a step begin together and complete together.
    """

    copies: tuple[Copy, ...] = ()


@dataclass(frozen=True, slots=True)
class Product:
    """The product of two square matrices of `order` rows, on this member's device.

    The product takes 2 order^3 operations and needs no message. The send buffer holds both factors, and the receive
    buffer holds the product.
    """

    order: int

    @property
    def flops(self) -> int:
        """Return the number of floating-point operations: `order`^3 multiplications and as many additions."""
        return 2 * self.order**3


@dataclass(frozen=True, slots=True)
class Read:
    """One pass over a data set. A member reads files of `num_bytes` bytes in total into its receive buffer.

    The files contain the same bytes as the member's send buffer.
    """

    num_bytes: int


Step = Collective | Exchange | CopyStep | Product | Read


def is_device_work(step: Step) -> bool:
    """Check whether a step is a copy, a matrix product or a read.

    A single rank runs these types of steps without other ranks. A message library cannot run these steps.
    """
    return isinstance(step, CopyStep | Product | Read)


@dataclass(frozen=True, slots=True)
class Copied:
    """The expected result of a copy.

    The `num_bytes` bytes at `offset_bytes` of the receive buffer must equal the bytes at `source_offset` of another
    send buffer. That send buffer belongs to the member `source`.
    """

    source: int
    source_offset: int
    num_bytes: int
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Reduced:
    """The expected result of a reduction.

    The `num_bytes` bytes at `offset_bytes` of the receive buffer must be a reduction over all members. The reduced data
    begin at `source_offset` of each member's send buffer.
    """

    source_offset: int
    num_bytes: int
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Multiplied:
    """The expected result of a matrix product.

    The `num_bytes` bytes at `offset_bytes` of the receive buffer must be the product of two square matrices. Each
    matrix has `order` rows. The two matrices are in this member's own send buffer, from `source_offset` on.
    """

    order: int
    num_bytes: int
    offset_bytes: int = 0
    source_offset: int = 0


Expected = Copied | Reduced | Multiplied


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that run one program together.

    `ranks[m]`: world rank of member m.
    `src`, `dst`: the ranks of a pair.
    """

    name: str
    ranks: tuple[int, ...]
    src: int | None = None
    dst: int | None = None


Round = tuple[Group, ...]  # disjoint groups that run at the same time; ranks in none of them are idle


def delivered(steps_of_all: tuple[tuple[Step, ...], ...], member: int) -> tuple[Copied, ...]:
    """Return what the messages of a program write into one member's receive buffer.

    The n-th send to a member matches the member's n-th receive from the sender.
    """
    copies = []
    for index, step in enumerate(steps_of_all[member]):
        if not isinstance(step, Exchange):
            continue
        taken: dict[int, int] = {}
        for recv in step.recvs:
            peer_step = steps_of_all[recv.peer][index]
            if not isinstance(peer_step, Exchange):
                raise ValueError(f"step {index} of member {recv.peer} does not send to member {member}")
            to_me = [send for send in peer_step.sends if send.peer == member]
            send = to_me[taken.get(recv.peer, 0)]
            taken[recv.peer] = taken.get(recv.peer, 0) + 1
            copies.append(Copied(recv.peer, send.offset_bytes, recv.num_bytes, recv.offset_bytes))
    return tuple(copies)
