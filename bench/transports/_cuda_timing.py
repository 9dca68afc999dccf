"""Time single copies or batches of copies.

For copies behind a gate, events on the GPU measure the times. For copies of pageable memory, the host's clock measures
the times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from bench.core.codes import Coded
from bench.core.errors import MeasurementError, first_line
from bench.core.transport import Compiled, Timing
from bench.transports._cuda_gate import MOST_CALLS, TRIAL_S, GateProblem, StreamGate
from bench.transports._cuda_pace import Pace
from bench.transports._cuda_program import CopyProgram, CopyTimes


class CopyTimer:
    """A timer for the programs of one rank. All ranks make the same number of calls, even ranks without copies."""

    def __init__(
        self,
        clock: str,
        gate: StreamGate | None,
        pace: Pace,
        sync: Callable[[], None],
        barrier: Callable[[], None],
    ) -> None:
        """`sync`: waits for this rank's GPU and for all ranks. `barrier`: waits for all ranks, but not for the GPU."""
        self._clock, self._gate, self._pace, self._sync, self._barrier = clock, gate, pace, sync, barrier

    def each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time isolated copies (see Transport.time_each)."""
        taken = []
        for _ in range(num_calls):
            order = _next_sets(compiled, 1)
            self._sync()
            taken.append((self._timed(compiled, order),))
            self._pace.learn("each", taken[-1][0].ends_s)
        return self._timing(compiled, taken, 1)

    def batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time back-to-back copies (see Transport.time_batch).

        The copies are issued in portions that are small enough for the GPU's queue.
        """
        order = _next_sets(compiled, num_calls)
        most = num_calls if self._clock == "host" else MOST_CALLS
        taken = []
        for begin in range(0, num_calls, most):
            self._sync()
            taken.append(self._portion(compiled, order[begin : begin + most]))
        self._pace.learn("batch", taken[0].ends_s)
        return self._timing(compiled, [tuple(taken)], num_calls)

    def _portion(self, compiled: Compiled | None, order: Sequence[int]) -> CopyTimes:
        """Time one portion of copies.

        If there is a gate, the gate holds the copies until all of them are in the GPU's queue. Without a gate, the
        copies start when all ranks are ready.
        """
        program = _program(compiled)
        if self._gate is not None and program is not None and program.gated:
            return behind_gate(program, self._gate, order, self._barrier, self._extra(program, order))
        ticket = self._gate.skip() if self._gate is not None else 0
        self._barrier()
        if self._gate is not None:
            self._gate.open(ticket)  # opens the gates of the other ranks of this host, too
        return self._timed(compiled, order)

    def _timed(self, compiled: Compiled | None, order: Sequence[int]) -> CopyTimes:
        """Issue the copies of the buffer sets in `order`, and return their times.

        If the rank has no copies, all times are 0.
        """
        program = _program(compiled)
        if program is None:
            return CopyTimes()
        extra = self._extra(program, order)
        return program.timed_by_host(order, extra) if self._clock == "host" else program.timed(order, extra)

    def _extra(self, program: CopyProgram, order: Sequence[int]) -> list[int]:
        return self._pace.extra(len(order), len(program.streams))

    def _timing(self, compiled: Compiled | None, samples: Sequence[tuple[CopyTimes, ...]], num_calls: int) -> Timing:
        """Return the samples of this rank as a Timing.

        If this rank is in a group but has no copies, its samples take 0 s. A rank in no group has no samples.

        `samples`: for each sample, the times of its portions. Each sample consists of `num_calls` calls.
        """
        if compiled is None:
            return Timing((), "python")

        def per_call(part: str) -> tuple[float, ...]:
            return tuple(sum(getattr(portion, part) for portion in portions) / num_calls for portions in samples)

        program = _program(compiled)
        started_s: tuple[tuple[float, ...], ...] = ()
        ends: tuple[tuple[float, ...], ...] = ()
        beside: tuple[float, ...] = ()
        if program is not None:
            started_s = tuple(tuple(portion.started_s for portion in portions) for portions in samples)
            ends = tuple(
                tuple(sum(portion.ends_s[j] for portion in portions) / num_calls for portions in samples)
                for j in range(len(program.streams))
            )
            beside = per_call("beside_s")
        host_s = per_call("host_s")
        if self._clock == "host":
            return Timing(host_s, "python", started_s=started_s, ends_s=ends, beside_s=beside)
        return Timing(per_call("device_s"), "python", host_s, per_call("enqueue_s"), started_s, ends, beside)


def behind_gate(
    program: CopyProgram,
    gate: StreamGate,
    order: Sequence[int],
    all_there: Callable[[], None],
    extra: Sequence[int] = (),
    limit_s: float | None = None,
) -> CopyTimes:
    """Enqueue all copies, call `all_there` to wait for the other ranks, and then open the gate.

    No call may wait for the GPU before the gate opens, because the GPU's stream waits for the gate.

    Raises MeasurementError if the time limit opened the gate.

    `extra`: see CopyProgram.enqueue.
    """
    program.warm(order[0])
    ticket = gate.shut(program.streams[0], limit_s)
    try:
        program.enqueue(order, extra)
        all_there()
    finally:
        begin = monotonic()
        gate.open(ticket)
    started_s = gate.passed_s(ticket)
    program.wait()
    host_s = monotonic() - begin
    gate.check(ticket)
    return program.taken(host_s, 0.0, started_s)


def tried_gate(cupy: Any, stream: int, make: Callable[[], Compiled]) -> tuple[StreamGate | None, Coded | None]:
    """Test whether a gate works with copies between pinned memory and the GPU.

    Return the gate, or the reason why the gate does not work. A driver may stage these copies, for example if the GPU's
    memory is encrypted. A gate does not work if the driver stages copies, because the call that issues a copy would not
    return until the gate opens.

    `make`: builds the copies.
    """
    gate, copies = None, None
    try:
        gate = StreamGate(cupy)
        gate.warm(stream)
        copies = make()
        behind_gate(copies.native, gate, [0] * MOST_CALLS, _nothing, limit_s=TRIAL_S)
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
    """Return the buffer sets for the next calls, and advance `compiled.next_set` past these sets."""
    if compiled is None:
        return []
    num_sets = len(compiled.calls)
    order = [(compiled.next_set + k) % num_sets for k in range(num_calls)]
    compiled.last_set, compiled.next_set = order[-1], (order[-1] + 1) % num_sets
    return order
