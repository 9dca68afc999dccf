"""Time single copies or batches: by the GPU's events and behind a gate, or by the host's clock (pageable memory)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from bench.core.codes import Coded
from bench.core.errors import MeasurementError, first_line
from bench.core.transport import Compiled, Timing
from bench.transports._cuda_gate import MOST_CALLS, TRIAL_S, GateProblem, StreamGate
from bench.transports._cuda_program import CopyProgram

Taken = tuple[float, float, float]  # seconds by events, by the host's clock, and for only issuing the copies


class CopyTimer:
    """Times the programs of one rank. All ranks make the same number of calls, even ranks without copies."""

    def __init__(
        self, clock: str, gate: StreamGate | None, sync: Callable[[], None], barrier: Callable[[], None]
    ) -> None:
        """`sync` waits for this rank's GPU and for all ranks; `barrier` only for all ranks."""
        self._clock, self._gate, self._sync, self._barrier = clock, gate, sync, barrier

    def each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time isolated copies (see Transport.time_each)."""
        taken = []
        for _ in range(num_calls):
            order = _next_sets(compiled, 1)
            self._sync()
            taken.append(self._timed(compiled, order))
        return self._timing(compiled, taken)

    def batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time copies back to back, issued in portions that fit in a queue; see Transport.time_batch."""
        order = _next_sets(compiled, num_calls)
        most = num_calls if self._clock == "host" else MOST_CALLS
        taken = []
        for begin in range(0, num_calls, most):
            part = order[begin : begin + most]
            self._sync()
            program = _program(compiled)
            if self._gate is not None and program is not None and program.gated:
                taken.append(behind_gate(program, self._gate, part, self._barrier))
            else:
                self._barrier()
                taken.append(self._timed(compiled, part))
        device_s, host_s, enqueue_s = (sum(part) / num_calls for part in zip(*taken, strict=True))
        return self._timing(compiled, [(device_s, host_s, enqueue_s)])

    def _timed(self, compiled: Compiled | None, order: Sequence[int]) -> Taken:
        """Return the seconds of copies in the order of issue, or 0 for a rank without copies."""
        program = _program(compiled)
        if program is None:
            return 0.0, 0.0, 0.0
        if self._clock == "host":
            host_s = program.timed_by_host(order)
            return host_s, host_s, host_s
        return program.timed(order)

    def _timing(self, compiled: Compiled | None, taken: Sequence[Taken]) -> Timing:
        """Return the samples of this rank as a Timing.

        A rank of a group without copies has samples of 0 s. A rank in no group has no samples.
        """
        if compiled is None:
            return Timing((), "python")
        device_s, host_s, enqueue_s = zip(*taken, strict=True)
        return Timing(host_s, "python") if self._clock == "host" else Timing(device_s, "python", host_s, enqueue_s)


def behind_gate(
    program: CopyProgram,
    gate: StreamGate,
    order: Sequence[int],
    all_there: Callable[[], None],
    limit_s: float | None = None,
) -> Taken:
    """Enqueue all copies, call `all_there`, then open the gate. Before that, no call may wait for the GPU.

    Raises MeasurementError if the gate opened by itself after `limit_s`.
    """
    program.warm(order[0])
    ticket = gate.shut(program.streams[0], limit_s)
    try:
        program.enqueue(order)
        all_there()
    finally:
        begin = perf_counter()
        gate.open(ticket)
    program.wait()
    host_s = perf_counter() - begin
    gate.check(ticket)
    return program.elapsed_s(), host_s, 0.0


def tried_gate(cupy: Any, stream: int, make: Callable[[], Compiled]) -> tuple[StreamGate | None, Coded | None]:
    """Try a gate on copies between pinned memory and the GPU; `make` builds them. Returns the gate, or why it fails.

    The gate fails if the driver itself stages such copies (for a GPU with encrypted memory): issuing a copy then waits
    until the gate opens.
    """
    gate, copies = None, None
    try:
        gate = StreamGate(cupy)
        gate.warm(stream)
        copies = make()
        behind_gate(copies.native, gate, [0] * MOST_CALLS, _nothing, TRIAL_S)
        copies.native.close()
        return gate, None
    except MeasurementError:
        problem = Coded.of(GateProblem.STAGED)
    except Exception as error:  # CuPy raises many exception types
        problem = Coded.of(GateProblem.FAILED, error=first_line(error))
    with contextlib.suppress(Exception):  # a failed GPU may fail again; keep memory that it may still use
        cupy.cuda.runtime.deviceSynchronize()
        if copies is not None:
            copies.native.close()
        if gate is not None:
            gate.close()
    return None, problem


def _nothing() -> None:
    pass


def _program(compiled: Compiled | None) -> CopyProgram | None:
    return None if compiled is None else compiled.native


def _next_sets(compiled: Compiled | None, num_calls: int) -> list[int]:
    """Return the buffer sets of the next calls, and mark them as used."""
    if compiled is None:
        return []
    num_sets = len(compiled.calls)
    order = [(compiled.next_set + k) % num_sets for k in range(num_calls)]
    compiled.last_set, compiled.next_set = order[-1], (order[-1] + 1) % num_sets
    return order
