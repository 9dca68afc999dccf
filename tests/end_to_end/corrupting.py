"""Run a pattern while, beneath the transport, one rank's receive buffer is spoilt after the last timed call.

    mpirun -n 4 python tests/end_to_end/corrupting.py RANK PATTERN [options]

With -RANK, the rank's send buffer holds other data than it should, from the first call on.

Every timed call is followed by the damage; all but the last are overwritten by the next call, and the check before
timing runs no timed call, so it passes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from bench.core.transport import Compiled, Timing
from bench.rank.main import run_pattern
from bench.rank.placement import place
from bench.rank.verify import Verifier
from bench.transports import _host, _mpi_loop


def spoiling(timed: Callable[..., Timing], victim: int) -> Callable[..., Timing]:
    """`timed`, and then one bit of the receive buffer that its last call filled is flipped on rank `victim`."""
    import os

    mine = place(os.environ).rank == victim

    def run(*given: Any) -> Timing:
        timing = timed(*given)
        compiled = next((one for one in given if isinstance(one, Compiled)), None)
        if mine and compiled is not None:
            received = compiled.keep[0].view("recv", compiled.last_set)
            if len(received) >= 64:  # the calibration's few bytes are nobody's data
                received[len(received) // 2] ^= 1
        return timing

    return run


def lying(victim: int) -> None:
    """Let rank `victim` send the data of another variation."""
    import os

    prepare = Verifier.prepare
    if place(os.environ).rank == victim:
        Verifier.prepare = lambda self, buffers, index, variation: prepare(self, buffers, index, variation + 1)  # type: ignore[method-assign]


if __name__ == "__main__":
    _victim, _pattern, *_options = sys.argv[1:]
    if _victim.startswith("-"):
        lying(-int(_victim))
        run_pattern(_pattern, _options)
    for _home in (_host, _mpi_loop.Loop):  # timed in Python and in C
        for _name in ("time_each", "time_batch"):
            setattr(_home, _name, spoiling(getattr(_home, _name), int(_victim)))
    run_pattern(_pattern, _options)
