"""One GPU of a node copies to another: by the copy engine or by a kernel, ordered by either of them.

S is one copy. Every pair of a node is measured by itself, in both orders; `--topology pairs` lets disjoint pairs copy
at the same time, so that what they share shows. `--direction two-way`: both copy to each other at once, and the
bandwidth is per direction. `--access write` (default) is ordered by the source, `read` by the target; `--engine sm`
copies by a kernel of that GPU. `--via ipc` (default) reaches memory of another process, `process` holds both GPUs'
memory in one.

A byte crosses each of the two ports once, so the bus factor is 1, per pair and direction. A pair whose GPUs do not
reach each other is copied through the host's memory: such rows say `through-host`, and are held to no peer link.

    torchrun --nproc-per-node 8 -m bench.peer_copy --sizes 256M
    torchrun --nproc-per-node 8 -m bench.peer_copy --engine sm --access read --direction two-way
"""

from __future__ import annotations

from bench.core.pattern import Pattern, Shape, busiest_boundary
from bench.core.program import Copied, Copy, CopyStep, Expected, Step


class PeerCopy(Pattern):
    """Copies between members 0 and 1 of a group."""

    name = "peer_copy"
    transport = "cuda_copy"
    min_ranks = 2
    directional = True
    factors = frozenset({"engine", "access", "via"})
    usual_topology = "directed single pairs"

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """S to send where this member's data is copied, S to receive where some comes to."""
        copies = self._copies(shape)
        sends = any(copy.source == member for _, copy in copies)
        receives = any(copy.target == member for _, copy in copies)
        return sends * shape.payload_bytes, receives * shape.payload_bytes

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """What this member orders, if anything."""
        mine = tuple(copy for by, copy in self._copies(shape) if by == member)
        return (CopyStep(mine),) if mine else ()

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """The source's data, where some is copied to this member."""
        return tuple(Copied(c.source, 0, c.num_bytes) for _, c in self._copies(shape) if c.target == member)

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """S per direction, if it crosses at all."""
        return busiest_boundary([(0, 1, shape.payload_bytes)], shape.num_ranks, num_parts)

    def _copies(self, shape: Shape) -> tuple[tuple[int, Copy], ...]:
        """(who orders it, the copy). Where one process holds both ends, both buffers are its own, one on each GPU."""
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
