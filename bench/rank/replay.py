"""Run the exchanges of a recorded job again. The time of each whole step is measured, and the time of each exchange.

All ranks run the operations of a step in the plan's order, so ranks cannot block each other. If the job worked between
two exchanges, a rank sleeps, spins or multiplies matrices for the same time. If the job worked during an exchange, the
replay also works during this exchange.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.core import plugins
from bench.core.arrays import CHUNK_BYTES
from bench.core.case import Case
from bench.core.dtypes import dtype_of, undefined_reduction
from bench.core.errors import BenchError, RefusedError, UsageError
from bench.core.pattern import Pattern, Shape
from bench.core.program import Collective, CopyStep, Group, Product
from bench.core.record import Failure, Flag, Record, Samples, Skip, StopReason
from bench.core.remarks import CodedRemark
from bench.core.replay_plan import PATTERN_OF, Kind, Mapped, PlannedStep, from_json, mapped, read, to_json
from bench.core.transport import Buffers, Compiled, Overlapping, Reduction, Transport
from bench.core.waiting import sleep_until, spin_until
from bench.rank import sampling
from bench.rank.messages import RankFailure, RankRefusal, RankRemark
from bench.rank.rows import traffic
from bench.rank.verify import Verifier, Wrong
from bench.results import stats

_MAX_S = 10.0  # time limit without a budget, because steps are long
_LEAST_SAMPLES = 3
_BEAT_S = 1.0
_ORDER = {"host": 128, "device": 1024}  # order of the matrices of one product, which takes about 50 us
Idle = Callable[[float], None]


def load(case: Case, transport: Transport) -> Mapped:
    """Read the plan on rank 0, and assign the plan's ranks to the ranks of this launch.

    Raises UsageError or RefusedError.
    """
    found: tuple[Any, str] = (None, "")
    if transport.place.rank == 0:
        try:
            if not case.plan:
                raise UsageError.of(RankRefusal.NO_PLAN)
            found = to_json(read(Path(case.plan))), ""
        except BenchError as error:
            found = None, str(error)
    stored, problem = transport.channel.broadcast(found)
    if stored is None:
        raise UsageError(problem)
    own = mapped(from_json(stored), transport.place.num_ranks)
    if not own.plan.num_operations:
        raise RefusedError.of(RankRefusal.NOTHING_TO_REPLAY, num_ranks=transport.place.num_ranks, recorded=own.recorded)
    return own


def remarks(case: Case, replayed: Mapped, num_ranks: int) -> list[CodedRemark]:
    """Return remarks that say what is replayed, and on which ranks."""
    plan = replayed.plan
    facts: dict[str, Any] = {"num_steps": len(plan.steps), "num_operations": plan.num_operations}
    found = [CodedRemark.of(RankRemark.REPLAYED, recorded=replayed.recorded, compute=case.compute, **facts)]
    if replayed.recorded > num_ranks:
        ranks = [str(rank) for rank in replayed.ranks]
        facts = {"recorded": replayed.recorded, "ranks": ranks, "num": replayed.num_left_out}
        found.append(CodedRemark.of(RankRemark.REPLAY_MAPPED, **facts))
    if replayed.recorded < num_ranks:
        idle = num_ranks - replayed.recorded
        found.append(CodedRemark.of(RankRemark.REPLAY_IDLE, num=idle, recorded=replayed.recorded))
    return found


@dataclass(slots=True)
class _Program:
    """One type of exchange, ready to run on this rank."""

    compiled: Compiled
    buffers: Buffers
    verifier: Verifier
    refill: Callable[[int], None] | None  # an in-place reduction overwrites its input


@dataclass(frozen=True, slots=True)
class _RowOfKind:
    """The facts about a type of exchange that all ranks know."""

    kind: Kind
    pattern: Pattern
    shape: Shape
    group: Group
    dtype: str
    in_place: bool


@dataclass(slots=True)
class _Times:
    """The samples on rank 0.

    `steps_s[r]`: the duration in seconds of each step on rank r.
    `kinds_s[k]`: for each step, the mean duration in seconds of the exchanges of type k.
    `replayed`: for each sample, the number of the plan's step that the sample replays.
    """

    steps_s: list[list[float]]
    kinds_s: list[list[float]]
    replayed: list[int] = field(default_factory=list)

    def slowest(self) -> list[float]:
        """Return the slowest rank's seconds in each step."""
        return [max(seconds) for seconds in zip(*self.steps_s, strict=True)]


class Replayer:
    """Replays a plan on this rank. All ranks execute the same steps. Rank 0 returns the records."""

    def __init__(
        self,
        case: Case,
        transport: Transport,
        plan: Mapped,
        hosts: tuple[str, ...],
        beat: Callable[[str], None],
        working: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._case, self._transport, self._plan, self._hosts = case, transport, plan.plan, hosts
        self._beat, self._working = beat, working
        self._rank, self._channel = transport.place.rank, transport.channel
        self._kinds: list[_RowOfKind] = []
        self._programs: dict[int, _Program] = {}
        self._warmup: list[float] = []
        self._idle: Idle = sleep_until
        self.run_step = self._step  # a profiled launch marks it

    # -- before timing

    def prepare(self, available_bytes: int) -> tuple[Record, ...] | None:
        """Prepare all exchanges, call each exchange once, and check the data.

        Return None if the replay can begin. If an exchange delivered wrong data, rank 0 returns the record of a failed
        row. Rank 0 returns the record of a skipped row if the exchanges cannot run or need too much memory. Other ranks
        return no record.
        """
        self._beat("replay: preparing")
        try:
            self._make_ready(available_bytes)
        except RefusedError as error:  # all ranks find the same error
            reason = Skip(error.code, error.facts, str(error))
            everybody = self._everybody()
            skipped = Record("isolated", (0,), **self._of_step(everybody, 0), skipped=reason)
            return (skipped,) if self._rank == 0 else ()
        return self._checked()

    def _make_ready(self, available_bytes: int) -> None:
        self._kinds = [self._described(kind) for kind in self._plan.kinds]
        need = sum(self._bytes_of(row) for row in self._kinds if self._rank in row.group.ranks)
        short = [rank for rank, enough in enumerate(self._channel.share(need <= available_bytes)) if not enough]
        if short:
            needs = self._channel.share((need >> 20, available_bytes >> 20))
            need_mib, free_mib = needs[short[0]]
            raise RefusedError.of(RankRefusal.REPLAY_MEMORY, rank=short[0], need_mib=need_mib, free_mib=free_mib)
        for index, row in enumerate(self._kinds):
            steps = [step for member in range(2) for step in row.pattern.steps(row.shape, member)]
            if any(isinstance(step, Collective | CopyStep) for step in steps):
                self._transport.open_groups((row.group,))
            if self._rank in row.group.ranks:
                with self._working():
                    self._programs[index] = self._prepared(row)
        self._idle = self._made_idle()

    def _everybody(self) -> Group:
        return Group("step", tuple(range(self._plan.num_ranks)))

    def _of_step(self, everybody: Group, payload_bytes: int) -> dict[str, Any]:
        """Return the fields of the row of whole steps. This row counts no bytes."""
        barrier: Pattern = plugins.load("pattern", "barrier").PATTERN
        return traffic(barrier, Shape(self._plan.num_ranks, payload_bytes), everybody, self._hosts)

    def _described(self, kind: Kind) -> _RowOfKind:
        """Return how this launch runs a type of exchange.

        If the library lacks an element type, float32 replaces the type.
        """
        pattern: Pattern = plugins.load("pattern", PATTERN_OF[kind.op]).PATTERN
        reasons = []
        for dtype in dict.fromkeys((kind.dtype, "float32")):
            element_bytes = dtype_of(dtype).num_bytes
            payload = pattern.payload(kind.num_bytes, Shape(len(kind.members), 0, element_bytes))
            shape = Shape(len(kind.members), payload, element_bytes)
            steps = pattern.steps(shape, 0)
            reason = pattern.needs(shape)
            if reason is None and pattern.reduces:
                reason = undefined_reduction(dtype_of(dtype), "sum")
            for step in steps:  # all ranks ask the library, in the same order
                refused = self._transport.unsupported_reason(step, Reduction(dtype, "sum"), False)
                reason = reason or refused
            if reason is None:
                group = Group(self._name(kind), kind.members)
                return _RowOfKind(kind, pattern, shape, group, dtype, self._transport.must_be_in_place(steps))
            reasons.append(reason)
        raise RefusedError.coded(reasons[-1])

    def _name(self, kind: Kind) -> str:
        everybody = len(kind.members) == self._plan.num_ranks
        words = [kind.op, "" if kind.dtype == "float32" else kind.dtype]
        words.append("" if everybody else ",".join(map(str, kind.members)))
        return " ".join(filter(None, words))

    def _bytes_of(self, row: _RowOfKind) -> int:
        member = row.group.ranks.index(self._rank)
        send, recv = row.pattern.buffers(row.shape, member)
        return (max(send, recv) if row.in_place else send + recv) + min(send + recv, CHUNK_BYTES)

    def _prepared(self, row: _RowOfKind) -> _Program:
        member = row.group.ranks.index(self._rank)
        send, recv = row.pattern.buffers(row.shape, member)
        if row.in_place:
            send, recv = 0, max(send, recv)
        steps = row.pattern.steps(row.shape, member)
        buffers = self._transport.allocate(send, recv, 1, steps)
        dtype = dtype_of(row.dtype)
        verifier = Verifier(row.pattern, row.shape, row.group, member, dtype, "sum", row.in_place, self._case.seed)
        compiled = self._transport.compile(steps, row.group, buffers, Reduction(row.dtype, "sum"), row.in_place)
        verifier.prepare(buffers, 0, 0)
        overwrites = row.in_place and row.pattern.reduces
        return _Program(compiled, buffers, verifier, verifier.refill(buffers, 0) if overwrites else None)

    def _made_idle(self) -> Idle:
        """Return a function that replaces the job's computation and returns at a given time."""
        if self._case.compute == "sleep":
            return sleep_until
        if self._case.compute == "spin":
            return spin_until
        transport = self._transport
        if transport.clock == "host":
            return _multiplier()
        if not isinstance(transport, Overlapping):
            raise RefusedError.of(RankRefusal.NO_REPLAYED_PRODUCTS, transport=self._case.transport)
        return self._device_multiplier()

    def _device_multiplier(self) -> Idle:
        pattern: Pattern = plugins.load("pattern", "gpu_baseline").PATTERN
        product = Product(_ORDER["device"])
        num_bytes = product.order**2 * dtype_of("bfloat16").num_bytes
        buffers = self._transport.allocate(2 * num_bytes, num_bytes, 1, (product,))
        group = Group("products", (self._rank,))
        shape = Shape(1, num_bytes, dtype_of("bfloat16").num_bytes)
        verifier = Verifier(pattern, shape, group, 0, dtype_of("bfloat16"), "sum", False, self._case.seed)
        verifier.prepare(buffers, 0, 0)
        compiled = self._transport.compile((product,), group, buffers, Reduction("bfloat16", "sum"), False)
        call, finish = compiled.calls[0], self._transport.finish

        def multiply(until: float) -> None:
            while time.perf_counter() < until:
                call()
                finish()

        return multiply

    def _checked(self) -> tuple[Record, ...] | None:
        """Make one call of each type of exchange on poisoned buffers. Return None if all data are right."""
        self._beat("replay: checking the data")
        wrongs = self._channel.gather(self._wrong(0))
        failed = [
            self._failed(row, index, wrongs)
            for index, row in enumerate(self._kinds)
            if wrongs and any(of_rank[index].num_wrong for of_rank in wrongs)
        ]
        return tuple(failed) if self._channel.broadcast(bool(failed)) else None

    def _wrong(self, variation: int) -> list[Wrong]:
        """Call each type of exchange once. Return how many elements are wrong on this rank, for each type of exchange.

        `variation`: the number that determines the data of the buffers.
        """
        found = []
        for index in range(len(self._kinds)):
            program = self._programs.get(index)
            if program:
                with self._working():
                    program.verifier.prepare(program.buffers, 0, variation)
            self._transport.sync()
            if program:
                program.compiled.calls[0]()
            self._transport.sync()
            wrong = Wrong(0)
            if program:
                with self._working():
                    wrong = program.verifier.check(program.buffers, 0, variation)
                    program.verifier.prepare(program.buffers, 0, 0)
            found.append(wrong)
        return found

    def _failed(self, row: _RowOfKind, index: int, wrongs: Sequence[Sequence[Wrong]]) -> Record:
        rank = next(rank for rank in row.group.ranks if wrongs[rank][index].num_wrong)
        num_wrong = sum(wrongs[rank][index].num_wrong for rank in row.group.ranks)
        first = wrongs[rank][index].first
        facts = {"num_wrong": num_wrong, "first": first.text if first else ""}
        failure = Failure.of(RankFailure.WRONG_BEFORE_TIMING, rank, self._hosts[rank], **facts)
        return self._of_kind(row, verified=False, num_wrong=num_wrong, first_wrong=first, failed=failure)

    # -- timing

    def take(self) -> tuple[tuple[Group, Record], ...]:
        """Replay steps, and check the data at the end.

        The replay ends when the interval of a step's time is narrow enough, or when the time limit is reached.

        Rank 0 returns each record with its group. Other ranks return an empty tuple.
        """
        times = _Times([[] for _ in range(self._plan.num_ranks)], [[] for _ in self._kinds])
        with sampling.no_garbage():
            reason = self._sampled(times)
        last = [
            program.verifier.check(program.buffers, 0, 0) if program and program.refill is None else Wrong(0)
            for program in map(self._programs.get, range(len(self._kinds)))
        ]
        fresh = self._wrong(1)
        own = [one if one.num_wrong else other for one, other in zip(last, fresh, strict=True)]
        wrongs = self._channel.gather((own, [program.compiled.flags for program in self._programs.values()]))
        for program in self._programs.values():
            if program.compiled.release:
                program.compiled.release()
        return () if wrongs is None else tuple(self._records(times, reason, wrongs))

    def _sampled(self, times: _Times) -> str:
        """Take samples. Return why they ended."""
        self._beat("replay: warm-up")
        limit_s = self._case.budget_s or max(self._case.max_s, _MAX_S)
        took = self._channel.gather(self.run_step(self._plan.steps[0])[0])
        if took is not None:
            self._warmup = [max(took[: self._plan.num_ranks])]
        began = beaten = time.monotonic()
        number, reason = 0, None
        while reason is None:
            if time.monotonic() - beaten > _BEAT_S:
                beaten = time.monotonic()
                self._beat(f"replay: {number} steps")
            place = number % len(self._plan.steps)
            gathered = self._channel.gather(self.run_step(self._plan.steps[place]))
            number += 1
            if gathered is not None:
                self._add(times, place, gathered[: self._plan.num_ranks])
                reason = self._stop(times, number, time.monotonic() - began, limit_s)
            reason = self._channel.broadcast(reason)
        return str(reason)

    def _step(self, step: PlannedStep) -> tuple[float, list[tuple[int, float, float]]]:
        """Run one step.

        Return the duration of the step in seconds, and (number, begin, end) for each operation of this rank.
        """
        own, tail_s = [], step.tails_s.get(self._rank, 0.0)
        for number, one in enumerate(step.operations):
            if one.kind in self._programs:
                program = self._programs[one.kind]
                if program.refill:
                    program.refill(0)
                own.append((number, program.compiled.calls[0], one.turns[self._rank]))
        idle, finish, now = self._idle, self._transport.finish, time.perf_counter
        stamps = []
        self._transport.before_each()
        began = due = now()
        for number, call, turn in own:
            due += turn.before_s
            idle(due)
            started = now()
            call()
            finish()
            ended = now()
            stamps.append((number, started - began, ended - began))
            if turn.wait_s is not None:
                due = max(due + turn.wait_s, ended)
        idle(due + tail_s)
        return now() - began, stamps

    def _add(self, times: _Times, place: int, gathered: Sequence[Any]) -> None:
        """Add one step of all ranks.

        The time of an exchange begins when the last rank enters the exchange. The time ends when the last rank leaves
        the exchange.
        """
        step = self._plan.steps[place]
        arrivals, ends = np.full(len(step.operations), -math.inf), np.full(len(step.operations), -math.inf)
        for kept, (seconds, stamps) in zip(times.steps_s, gathered, strict=True):
            kept.append(seconds)
            for number, started, ended in stamps:
                arrivals[number] = max(arrivals[number], started)
                ends[number] = max(ends[number], ended)
        kinds = np.array([one.kind for one in step.operations])
        for kind, kept in enumerate(times.kinds_s):
            chosen = kinds == kind
            if chosen.any():
                kept.append(float(np.maximum(ends - arrivals, 1e-9)[chosen].mean()))
        times.replayed.append(place)

    def _stop(self, times: _Times, number: int, elapsed_s: float, limit_s: float) -> str | None:
        if self._case.iterations is not None:
            return StopReason.FIXED if number >= self._case.iterations else None
        if elapsed_s >= limit_s and number >= _LEAST_SAMPLES:
            return StopReason.MAX_TIME
        least, most = max(sampling.MIN_SAMPLES, len(self._plan.steps)), sampling.MAX_SAMPLES
        target = sampling.TARGET_HALF_WIDTH["isolated"]
        limits = {"n_min": least, "n_max": max(least, most), "elapsed_s": 0.0, "max_s": math.inf}
        return stats.should_stop(times.slowest(), target=target, **limits)  # type: ignore[arg-type]

    # -- records

    def _records(self, times: _Times, reason: str, gathered: Sequence[Any]) -> Iterator[tuple[Group, Record]]:
        wrongs = [own for own, _ in gathered]
        flags = tuple(dict.fromkeys(flag for _, of_rank in gathered for own in of_rank for flag in own))
        first = next((wrong.first for own in wrongs for wrong in own if wrong.first), None)
        num_wrong = sum(wrong.num_wrong for own in wrongs for wrong in own)
        everybody = self._everybody()
        bytes_of = [row.shape.payload_bytes for row in self._kinds]
        payload = max(sum(bytes_of[one.kind] for one in step.operations) for step in self._plan.steps)
        yield (
            everybody,
            Record(
                "isolated",
                (payload,),
                **self._of_step(everybody, payload),
                verified=num_wrong == 0,
                num_wrong=num_wrong,
                first_wrong=first,
                compared="sampled" if any(wrong.sampled for own in wrongs for wrong in own) else "full",
                stop_reason=reason,
                flags=(*flags, *([Flag.WRONG_DATA] if first else [])),
                samples=Samples(times.slowest(), tuple(times.steps_s), self._warmup),
                recorded_s=median(self._plan.steps[place].recorded_s for place in times.replayed),
            ),
        )
        for index, row in enumerate(self._kinds):
            own = [of_rank[index] for of_rank in wrongs]
            wrong = next((one.first for one in own if one.first), None)
            if not times.kinds_s[index]:
                continue
            yield (
                row.group,
                self._of_kind(
                    row,
                    verified=not any(one.num_wrong for one in own),
                    num_wrong=sum(one.num_wrong for one in own),
                    first_wrong=wrong,
                    compared="sampled" if any(one.sampled for one in own) else "full",
                    stop_reason=reason,
                    flags=(*flags, Flag.RANKS_NOT_KEPT, *([Flag.WRONG_DATA] if wrong else [])),
                    samples=Samples(times.kinds_s[index]),
                    recorded_s=self._recorded_s(index, times.replayed),
                ),
            )

    def _recorded_s(self, kind: int, replayed: Sequence[int]) -> float | None:
        """Return the time of one type of exchange in the recorded job, in seconds.

        Return None if the job's time is unknown. For each recorded step, the function computes the mean time of the
        exchanges in this step. The result is the median of the means of all steps.
        """
        means = []
        for place in replayed:
            operations = self._plan.steps[place].operations
            known = [one.recorded_s for one in operations if one.kind == kind and one.recorded_s is not None]
            if known:
                means.append(sum(known) / len(known))
        return median(means) if means else None

    def _of_kind(self, row: _RowOfKind, **rest: Any) -> Record:
        counted = traffic(row.pattern, row.shape, row.group, self._hosts)
        if row.kind.op == "message":
            counted |= {"src": row.group.ranks[0], "dst": row.group.ranks[1]}
        return Record("isolated", (row.shape.payload_bytes,), in_place=row.in_place, **counted, **rest)


def _multiplier() -> Idle:
    """Return a function that keeps a host's CPU busy with matrix products until a given time."""
    order = _ORDER["host"]
    first, second = np.ones((order, order), np.float32), np.ones((order, order), np.float32)
    out = np.empty_like(first)

    def multiply(until: float) -> None:
        while time.perf_counter() < until:
            np.matmul(first, second, out=out)

    return multiply
