"""The host's cost of an NCCL call on one GPU, and our part of it: allreduce of 8 bytes, one rank.

    python -m benchmarks.nccl_call

One rank sends no data, so only software remains: torch, NCCL and our loop around them. Prints one JSON document of
seconds per call. `issue_s`: our loop issues 50 calls; `bare_issue_s`: torch's own function, called as often; both are
the minimum of 20 alternating batches. `isolated_s`: single calls by the GPU's events; `isolated_host_s`: until the host
saw their end; both are medians of 200. Exit code 3 without a GPU or NCCL.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from bench.core.errors import EXIT_REFUSED, RefusedError
from bench.core.program import Collective, Group
from bench.core.transport import Options, Reduction, Transport
from bench.core.world import RankInfo
from bench.transports.nccl import Nccl

_BYTES, _CALLS, _BATCHES, _SINGLE = 8, 50, 20, 200


def main() -> int:
    """Measure and print."""
    try:
        transport = Nccl(RankInfo(0, 1, 0, 1, "direct"), Options())
    except RefusedError as error:
        print(f"nccl_call: error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    import torch
    import torch.distributed as dist

    tensor = torch.zeros(_BYTES // 4, dtype=torch.float32, device=torch.device("cuda", torch.cuda.current_device()))
    print(json.dumps(costs(transport, lambda: dist.all_reduce(tensor))))
    transport.close()
    return 0


def costs(transport: Transport, bare: Callable[[], Any]) -> dict[str, float]:
    """Seconds per call, as above; `bare`: the library's own call."""
    step, me = Collective("allreduce", _BYTES, _BYTES), Group("me", (0,))
    transport.open_groups((me,))
    buffers = transport.allocate(_BYTES, _BYTES, 1, (step,))
    compiled = transport.compile((step,), me, buffers, Reduction("float32", "max"), True)
    least = {"issue_s": float("inf"), "bare_issue_s": float("inf")}
    for _ in range(_BATCHES):
        for name, call in (("issue_s", compiled.calls[0]), ("bare_issue_s", bare)):
            transport.sync()
            least[name] = min(least[name], _issue_s(call))
    transport.sync()
    single = transport.time_each(compiled, _SINGLE)
    isolated = {"isolated_s": median(single.seconds), "isolated_host_s": median(single.host_s or single.seconds)}
    return least | isolated


def _issue_s(call: Callable[[], Any]) -> float:
    began = perf_counter()
    for _ in range(_CALLS):
        call()
    return (perf_counter() - began) / _CALLS


if __name__ == "__main__":
    sys.exit(main())
