"""Every rank copies within its GPU's memory, which shows the bandwidth of that memory.

S is one copy. Each copy reads every byte and writes it through the same memory port, so the bus factor is 2. The bus
bandwidth can therefore be compared with the memory's peak rate. With `--engine sm`, a kernel makes the copy instead of
the copy engine. `--sms N` limits this kernel to N SMs. With `--engine chase`, a single GPU thread makes the copy, and
each of its loads waits for the previous load. The copy makes S/16 loads, so one load takes t / (S/16). With `--topology
"groups of 1"`, all GPUs copy at the same time, and each GPU has a row. `--topology "single ranks"` measures one GPU of
each node at a time.

    python -m bench.local_copy --sizes 256M
    torchrun --nproc-per-node 8 -m bench.local_copy --engine sm --topology "groups of 1"
"""

from __future__ import annotations

from bench.core.pattern import Pattern, Shape
from bench.core.program import Copied, Copy, CopyStep, Expected, Step


class LocalCopy(Pattern):
    """Each rank copies within its GPU, independently of the other ranks."""

    name = "local_copy"
    transport = "cuda_copy"
    factors = frozenset({"engine"})

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return S to read and S to write."""
        return shape.payload_bytes, shape.payload_bytes

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one copy."""
        return (CopyStep((Copy(member, member, shape.payload_bytes, member, member),)),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return the sent data, which must be in the receive buffer."""
        return (Copied(member, 0, shape.payload_bytes),)

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return 0, because no data leave a GPU."""
        return 0.0

    def bus_factor(self, shape: Shape) -> float | None:
        """Return 2, because each byte is read once and written once."""
        return 2.0 if shape.payload_bytes else None


PATTERN = LocalCopy()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
