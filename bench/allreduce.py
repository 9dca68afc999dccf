"""At the end, every rank has the reduction of all ranks' buffers.

S is one rank's buffer. The reduction combines n values of each element, one from each rank. To combine the n values of
an element, n - 1 transfers are necessary. Sending the result to the other n - 1 ranks takes n - 1 more transfers. In
total, 2(n-1) S bytes pass through n ports. Each port therefore carries 2(n-1)/n S in each direction. The bus factor is
2(n-1)/n, as in nccl-tests' PERFORMANCE.md. If the network itself reduces (NVLS, SHARP), fewer transfers are necessary.
The bus bandwidth may then exceed the rate of a port.

For the traffic between N equal parts (such as nodes), replace n by N in the formula of the bus factor. Before a part
sends, its ranks can reduce their data to one result, so each part sends like a single rank.

    mpirun -n 16 python -m bench.allreduce -b 8 -e 128M
    torchrun --nproc-per-node 8 -m bench.allreduce --transport nccl --sizes 1M:8G:2 -d bfloat16
"""

from __future__ import annotations

from bench.core.pattern import AllReducePattern


class AllReduce(AllReducePattern):
    """Each rank sends S and receives S. Every rank gets the whole reduction."""

    name = "allreduce"


PATTERN = AllReduce()


if __name__ == "__main__":
    from bench.rank.main import run_pattern

    run_pattern(PATTERN.name)
