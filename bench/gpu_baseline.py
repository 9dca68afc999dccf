"""Every rank multiplies two square matrices. All GPUs compute at the same time, and each row shows the rate of one GPU.

S is the size of one matrix. The two factors and their product are square matrices with `order` rows. The order is the
largest multiple of 64 for which order x order elements fit into the requested size. One product takes 2 x order^3
operations and 3 S of memory traffic. From a few MiB on, only the arithmetic limits the rate of a product. No data cross
a link, so there is no bus bandwidth. Rows show the measured FLOP/s and the dense rate of the data sheet. Each rank has
its own row, so a slow GPU is visible. `--topology "single ranks"` measures one GPU of each node at a time.

The option `-d` sets the data type. By default, float32 matrices are multiplied in float32. With `--tf32 1`, tensor
cores multiply float32 matrices. The factors have pseudorandom integer elements, chosen so that the product is exact in
every data type (core/products.py). The benchmark checks every element of the product.

    python -m bench.gpu_baseline --sizes 128M -d bfloat16 --mode pipelined
    torchrun --nproc-per-node 8 -m bench.gpu_baseline --sizes 256M -d float32 --tf32 1
"""

from __future__ import annotations

from bench.core.pattern import Pattern, Shape
from bench.core.program import Expected, Multiplied, Product, Step
from bench.core.sweep import order_of


class GpuBaseline(Pattern):
    """Each rank multiplies matrices, independently of the other ranks."""

    name = "gpu_baseline"
    factors = frozenset({"tf32"})
    usual_topology = "groups of 1"

    def payload(self, requested_bytes: int, shape: Shape) -> int:
        """Return the bytes of one matrix, whose order is a multiple of 64."""
        return order_of(requested_bytes, shape.element_bytes) ** 2 * shape.element_bytes

    def buffers(self, shape: Shape, member: int) -> tuple[int, int]:
        """Return the bytes of two factors to read and of one product to write."""
        return 2 * shape.payload_bytes, shape.payload_bytes

    def steps(self, shape: Shape, member: int) -> tuple[Step, ...]:
        """Return one product."""
        return (Product(order_of(shape.payload_bytes, shape.element_bytes)),)

    def expected(self, shape: Shape, member: int) -> tuple[Expected, ...]:
        """Return the product of this rank's own factors."""
        return (Multiplied(order_of(shape.payload_bytes, shape.element_bytes), shape.payload_bytes),)

    def crossing(self, shape: Shape, num_parts: int) -> float:
        """Return 0, because no data leave a GPU."""
        return 0.0

    def bus_factor(self, shape: Shape) -> float | None:
        """Return None, because no link carries data."""
        return None


PATTERN = GpuBaseline()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
