"""Run `bench.allreduce` with one slow rank, which starts every call with barriers that take a given time."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from bench.core.program import Step
from bench.rank.main import run_pattern
from bench.rank.placement import place
from bench.transports import _mpi_loop
from bench.transports._mpi_steps import Builder
from benchmarks.slow_rank import NOTHING_S, SLOW_RANK

_MANY = 20_000


def slowed(builder: Builder, steps: Sequence[Step], loop: _mpi_loop.Loop) -> _mpi_loop.LoopProgram:
    """Barriers on MPI_COMM_SELF that take the given time, then the program of `steps`."""
    program = _program(builder, steps, loop)
    if len(steps) != 1 or steps[0].op != "allreduce" or builder._comm.Get_size() < 2:  # type: ignore[union-attr]
        return program  # calls of the calibration
    from mpi4py import MPI

    alone = loop.step("barrier", comm=MPI.COMM_SELF)
    many = loop.program([[alone] * _MANY], [])
    loop.calls(many)[0]()
    began = time.perf_counter()
    loop.calls(many)[0]()
    each_s = (time.perf_counter() - began) / _MANY
    num = round(float(os.environ[NOTHING_S]) / each_s)
    sets: list[list[Any]] = [
        [alone] * num + [program.steps[index * program.num_steps + k] for k in range(program.num_steps)]
        for index in range(program.num_sets)
    ]
    return loop.program(sets, program.keep)


_program = Builder.program
if __name__ == "__main__":
    if place(os.environ).rank == SLOW_RANK and float(os.environ[NOTHING_S]) > 0:
        Builder.program = slowed  # type: ignore[method-assign, assignment]
    run_pattern("allreduce")
