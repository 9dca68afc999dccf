"""One GPU of a node copies to another GPU of the node, by a copy engine or by a kernel of either GPU.

S is one copy. Every pair of GPUs of a node is measured alone, in both directions. With `--topology pairs`, disjoint
pairs copy at the same time, so links that they share become visible. With `--direction two-way`, both GPUs copy to each
other at the same time, and the bandwidth is per direction. With `--access write` (default), the source GPU runs the
copy. With `--access read`, the target GPU runs the copy. With `--engine sm`, the GPU that runs the copy uses a kernel
instead of its copy engine. With `--via ipc` (default), two processes own the memory of the two GPUs. With `--via
process`, one process owns the memory of both GPUs.

A byte crosses each of the two ports once, so the bus factor is 1 for each pair and direction. If two GPUs cannot access
each other's memory, the copy goes through the host's memory. Rows with a copy through the host's memory are marked
`through-host`. The bound of such a row does not use the rate of a peer link.

    torchrun --nproc-per-node 8 -m bench.peer_copy --sizes 256M
    torchrun --nproc-per-node 8 -m bench.peer_copy --engine sm --access read --direction two-way
"""

from __future__ import annotations

from bench.core.pattern import Pattern, Shape, busiest_boundary
from bench.core.program import Copied, Copy, CopyStep, Expected, Step


class PeerCopy(Pattern):
    """Members 0 and 1 of a group copy to each other."""

    name = "peer_copy"
    transport = "cuda_copy"
    min_ranks = 2
    directional = True
    factors = frozenset({"engine", "access", "via"})
    usual_topology = "directed single pairs"

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the bytes to send and to receive.

        A source sends S, and a target receives S. All other numbers are 0.
        """
        copies = self._copies(shape)
        sends = any(copy.source == member for _, copy in copies)
        receives = any(copy.target == member for _, copy in copies)
        return sends * shape.payload_bytes, receives * shape.payload_bytes

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return the copies that this member runs, if any."""
        mine = tuple(copy for by, copy in self._copies(shape) if by == member)
        return (CopyStep(mine),) if mine else ()

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return the source's data if this member is a target."""
        return tuple(Copied(c.source, 0, c.num_bytes) for _, c in self._copies(shape) if c.target == member)

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return S per direction if the two GPUs are in different parts of the world. Otherwise, return 0."""
        return busiest_boundary([(0, 1, shape.payload_bytes)], shape.num_ranks, num_parts)

    def _copies(self, shape: Shape) -> tuple[tuple[int, Copy], ...]:
        """Return each copy together with the member that runs the copy.

        With `--via process`, the member that runs a copy owns the source buffer and the target buffer of the copy.
        """
        size, found = shape.payload_bytes, []
        for source, target in ((0, 1), (1, 0))[: 2 if shape.direction == "two-way" else 1]:
            by = source if shape.access == "write" else target
            owners = (by, by) if shape.via == "process" else (source, target)
            found.append((by, Copy(*owners, size, source, target)))
        return tuple(found)


PATTERN = PeerCopy()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
