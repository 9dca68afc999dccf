"""Member 0 of a group sends many pages to member 1, scattered in both memories like the pages of a KV cache.

S is the sum of the pages. The number of pages is W = `--window` (default 64). The size of each page is S/W bytes, which
is a multiple of 16. With 64 pages, the sizes 1M, 4M and 16M mean pages of 16, 64 and 256 KiB. All messages are posted
together, and t ends when the last page has arrived. The sender sends pages in an order that is not their order in
either memory. Inference servers use pages out of order, because they allocate pages as pages become free. To find the
cost of paging, divide t by the time of one message of size S (`pingpong --mode pipelined`).

A page crosses each of the two ports once, so the bus factor is 1.

    mpirun -n 2 python -m bench.kv_pages --sizes 1M,4M,16M
    torchrun --nproc-per-node 2 -m bench.kv_pages --sizes 16M --window 256
"""

from __future__ import annotations

from math import gcd

from bench.core.pattern import MessagePattern, Shape, busiest_boundary
from bench.core.program import Exchange, Message, Step
from bench.core.sweep import round_blocks


class KvPages(MessagePattern):
    """Member 0 sends W messages to member 1. All other members do nothing."""

    name = "kv_pages"

    def payload(self, requested_bytes: int, shape: Shape) -> int:
        """Return S, the bytes of W pages. Each page is a multiple of 16 bytes."""
        return round_blocks(requested_bytes, shape.window)

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the bytes to send and to receive: member 0 sends S, and member 1 receives S."""
        return (shape.payload_bytes if member == 0 else 0), (shape.payload_bytes if member == 1 else 0)

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one exchange with all pages, which are scattered in both buffers."""
        if member > 1:
            return ()
        page = shape.payload_bytes // shape.window
        places = _scattered(shape.window, 2 if member == 0 else 3)
        messages = tuple(Message(1 - member, page, place * page) for place in places)
        return (Exchange(sends=messages) if member == 0 else Exchange(recvs=messages),)

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return S if the two members are in different parts of the group, for example on two nodes.

        Otherwise, return 0. Pages move in one direction.
        """
        return busiest_boundary([(0, 1, shape.payload_bytes)], shape.num_ranks, num_parts)


def _scattered(num_pages: int, part: int) -> list[int]:
    """Return the numbers 0 to W-1 in a scattered order.

    Modulo W, each number is about W/`part` larger than the previous number.
    """
    stride = next(step for step in range(max(1, num_pages // part), num_pages + 1) if gcd(step, num_pages) == 1)
    return [slot * stride % num_pages for slot in range(num_pages)]


PATTERN = KvPages()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
