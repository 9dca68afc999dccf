"""Every rank copies between its host's memory and its GPU, over PCIe (or NVLink-C2C).

S is one copy. `--direction h2d` (or one-way) copies to the GPU, and `d2h` copies from the GPU. `two-way` copies in both
directions at the same time, on two streams. With `two-way`, t ends when both copies have ended, and the bandwidth is
per direction. With `--memory pageable`, the driver first copies the data to its own pinned memory. With `--engine sm`,
a kernel makes the copy by reading or writing the pinned memory. With `--engine chase`, a single GPU thread makes the
copy, and each of its loads waits for the previous load. The copy makes S/16 loads, so one load takes t / (S/16). By
default all GPUs copy at the same time, and t is the time of the slowest GPU. With `--topology "groups of 1"`, the table
has one row for each GPU. `--topology "single ranks"` measures one GPU of each node at a time.

Each byte crosses the GPU's link once, so the bus factor is 1.

    python -m bench.host_device --direction h2d --sizes 64M
    torchrun --nproc-per-node 8 -m bench.host_device --direction two-way --topology "groups of 1"
"""

from __future__ import annotations

from bench.core.pattern import Pattern, Shape
from bench.core.program import Copied, Copy, CopyStep, Expected, Step


class HostDevice(Pattern):
    """Each rank copies between host and GPU, independently of the other ranks."""

    name = "host_device"
    transport = "cuda_copy"
    directional = True
    directions = ("h2d", "d2h", "two-way")
    factors = frozenset({"memory", "engine"})

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return S per direction.

        In two-way mode, the first S bytes of a buffer go to the GPU, and the next S bytes come from the GPU.
        """
        num_bytes = shape.payload_bytes * len(self._ways(shape))
        return num_bytes, num_bytes

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one step, which contains one copy for each direction."""
        size = shape.payload_bytes
        copies = (
            Copy(member, member, size, None if way == "h2d" else member, member if way == "h2d" else None, at, at)
            for at, way in zip((0, size), self._ways(shape), strict=False)
        )
        return (CopyStep(tuple(copies)),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return the sent data, at the same offset in the receive buffer as in the send buffer."""
        return (Copied(member, 0, shape.payload_bytes * len(self._ways(shape))),)

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return 0, because no data move between ranks."""
        return 0.0

    def bus_factor(self, shape: Shape) -> float | None:
        """Return 1, even for one rank. Return None if the copy has 0 bytes."""
        return 1.0 if shape.payload_bytes else None

    def _ways(self, shape: Shape) -> tuple[str, ...]:
        way = self.way(shape.direction)
        return ("h2d", "d2h") if way == "two-way" else (way,)


PATTERN = HostDevice()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
