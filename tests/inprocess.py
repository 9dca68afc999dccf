"""All ranks of a group in one process, moving real bytes: the oracle that the verifier is tested with.

It carries out programs by their definition (MPI's), with numpy and nothing of the suite's own expectations, and can be
told to err.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.core.dtypes import DTYPES
from bench.core.pattern import Pattern, Shape
from bench.core.program import Collective, CopyStep, Exchange, Group, Product, Read
from bench.rank.verify import Verifier, Wrong
from bench.transports._host import HostBuffers

COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "avg": np.add,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


class InProcess:
    """One group, one size: every member's buffers, verifiers and steps."""

    def __init__(
        self,
        pattern: Pattern,
        shape: Shape,
        dtype: str = "float32",
        reduce_op: str = "sum",
        allocate: Callable[[int, int, int], Any] = HostBuffers,
    ) -> None:
        self.dtype, self.reduce_op = DTYPES[dtype], reduce_op
        self.group = Group("world", tuple(range(shape.num_ranks)))
        members = range(shape.num_ranks)
        steps = [pattern.steps(shape, member) for member in members]
        self.steps = [own or (Exchange(),) * len(max(steps, key=len)) for own in steps]  # idle members have none
        self.buffers = [allocate(*pattern.buffers(shape, member), 1) for member in members]
        self.verifiers = [
            Verifier(pattern, shape, self.group, member, self.dtype, reduce_op, False, 1) for member in members
        ]

    def run(self) -> None:
        """Fresh data, then every step of the program."""
        self.prepare()
        for index in range(len(self.steps[0])):
            if isinstance(self.steps[0][index], Collective):
                self._collective([steps[index] for steps in self.steps])
            elif any(isinstance(steps[index], CopyStep) for steps in self.steps):
                self._copies([steps[index] for steps in self.steps])
            elif isinstance(self.steps[0][index], Product):
                self._products([steps[index] for steps in self.steps])
            elif isinstance(self.steps[0][index], Read):
                for member in range(len(self.steps)):
                    self.received(member)[:] = self.sent(member)
            else:
                self._exchange([steps[index] for steps in self.steps])

    def prepare(self) -> None:
        """Data and poison, nothing moved."""
        for buffers, verifier in zip(self.buffers, self.verifiers, strict=True):
            verifier.prepare(buffers, 0, 0)

    def check(self) -> list[Wrong]:
        """What each member's verifier finds."""
        return [verifier.check(b, 0, 0) for verifier, b in zip(self.verifiers, self.buffers, strict=True)]

    def num_wrong(self) -> int:
        """Wrong elements of all members."""
        return sum(wrong.num_wrong for wrong in self.check())

    def sent(self, member: int) -> Any:
        """A member's send buffer, as numpy sees it."""
        return np.asarray(self.buffers[member].view("send", 0))

    def received(self, member: int) -> Any:
        """A member's receive buffer, as numpy sees it."""
        return np.asarray(self.buffers[member].view("recv", 0))

    def _copies(self, steps: list[Any]) -> None:
        for copy in (copy for step in steps for copy in getattr(step, "copies", ())):
            data = self.sent(copy.source)[copy.source_offset : copy.source_offset + copy.num_bytes]
            self.received(copy.target)[copy.target_offset : copy.target_offset + copy.num_bytes] = data

    def _products(self, steps: list[Any]) -> None:
        for member, step in enumerate(steps):
            first, second = self._values(self.sent(member)).reshape(2, step.order, step.order).astype(np.float64)
            self.received(member)[:] = self._raw(first @ second)

    def _exchange(self, steps: list[Any]) -> None:
        for member, step in enumerate(steps):
            assert isinstance(step, Exchange)
            queues = {peer: [s for s in steps[peer].sends if s.peer == member] for peer in range(len(steps))}
            for recv in step.recvs:
                send = queues[recv.peer].pop(0)
                assert send.num_bytes == recv.num_bytes
                data = self.sent(recv.peer)[send.offset_bytes : send.offset_bytes + send.num_bytes]
                self.received(member)[recv.offset_bytes : recv.offset_bytes + recv.num_bytes] = data

    def _collective(self, steps: list[Any]) -> None:
        step, num = steps[0], len(steps)
        sent = [self.sent(member).copy() for member in range(num)]
        if step.op == "barrier":
            return
        results: dict[str, Callable[[], list[Any]]] = {
            "allreduce": lambda: [self._reduced(sent)] * num,
            "reduce": lambda: [self._reduced(sent)] * num,
            "reducescatter": lambda: np.split(self._reduced(sent), num),
            "allgather": lambda: [np.concatenate(sent)] * num,
            "gather": lambda: [np.concatenate(sent)] * num,
            "scatter": lambda: np.split(sent[step.root], num),
            "broadcast": lambda: [sent[step.root]] * num,
            "alltoall": lambda: self._transposed(steps, sent),
            "alltoallv": lambda: self._transposed(steps, sent),
        }
        for member, result in enumerate(results[step.op]()):
            received = self.received(member)
            if len(received):  # members that the operation gives nothing have no receive buffer
                received[:] = result

    def _transposed(self, steps: list[Any], sent: list[Any]) -> list[Any]:
        num = len(steps)
        equal = len(sent[0]) // num
        splits = [step.send_split or (equal,) * num for step in steps]
        parts = [np.split(sent[m], np.cumsum(splits[m])[:-1]) for m in range(num)]
        return [np.concatenate([parts[source][member] for source in range(num)]) for member in range(num)]

    def _reduced(self, sent: list[Any]) -> Any:
        values = [self._values(raw) for raw in sent]
        total = values[-1].copy()
        for value in reversed(values[:-1]):
            total = COMBINE[self.reduce_op](total, value)
        if self.reduce_op == "avg":
            total = (total / len(sent)).astype(total.dtype)
        return self._raw(total)

    def _values(self, raw: Any) -> Any:
        if self.dtype.name == "bfloat16":
            return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return raw.view(self.dtype.name)

    def _raw(self, values: Any) -> Any:
        if self.dtype.name == "bfloat16":
            word = values.astype(np.float32).view(np.uint32)
            return ((word + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(np.uint16).view(np.uint8).reshape(-1)
        return np.ascontiguousarray(values.astype(self.dtype.name)).view(np.uint8).reshape(-1)
