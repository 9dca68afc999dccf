"""Measure rows under contention. Blocks of samples with and without aggressors alternate within one launch.

In a disturbed block, barriers guarantee that victims and aggressors run at the same time. At the start of the block,
each aggressor makes one call and enters the first barrier. After the first barrier, the aggressor continues with its
calls. The victims start when all ranks have entered the first barrier. When all victims have entered the second
barrier, the first aggressor tells the other aggressors to stop. In an undisturbed block, the aggressors sleep.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.core.case import Case
from bench.core.contention import Parts, shape_of_aggressors, useful_bytes
from bench.core.dtypes import dtype_of
from bench.core.errors import UsageError
from bench.core.program import Collective, Group, Round
from bench.core.record import Contention
from bench.core.traits import names_with
from bench.core.transport import Buffers, Compiled, Reduction, Separable, Transport
from bench.rank import interleaved_blocks, sampling
from bench.rank.gathered import Gathered, GatheredSamples
from bench.rank.messages import RankRefusal
from bench.rank.rows import PlannedRow
from bench.rank.verify import Verifier, Wrong

_CHUNK_S = 0.01  # how long aggressors repeat their call between two checks for the stop
_MOST_CHUNK = 1024
_ALONE_S = 0.1  # duration of the measurement of the aggressors' rate without victims
_POLL_S, _SLEEP_S = 1e-4, 1e-3  # polling intervals of a victim that is about to start, and of a sleeping aggressor
# The reduction of in-place aggressors: a maximum has the same result however often it is repeated.
_REDUCTION = Reduction("float32", "max")


@dataclass(slots=True)
class _Program:
    """The prepared calls that this rank makes as an aggressor."""

    compiled: Compiled
    buffers: Buffers
    verifier: Verifier

    def run(self, num: int) -> None:
        """Run the next `num` calls, one after the other."""
        calls, index = self.compiled.calls, self.compiled.next_set
        for _ in range(num):
            calls[index]()
        self.compiled.last_set = index


@dataclass(frozen=True, slots=True)
class _Block:
    """One rank's result of a block.

    For a victim, the result is the durations of its samples in seconds. The result of an aggressor has three values:
    the number of its calls, the seconds inside these calls, and the seconds of the whole block.
    """

    seconds: tuple[float, ...] = ()
    calls: int = 0
    inside_s: float = 0.0
    total_s: float = 0.0


class ContentionSampler:
    """Takes samples of rows with and without aggressors on other ranks. All ranks execute the same steps."""

    def __init__(self, case: Case, parts: Parts, transport: Transport) -> None:
        """Split the ranks into victims and aggressors.

        Raises UsageError if the transport cannot split the ranks, or if the aggressors' pattern cannot run.
        """
        self._case, self._transport, self._parts = case, transport, parts
        self._pattern, self._shape = shape_of_aggressors(case, len(parts.aggressors.ranks))
        self._rank, self._channel = transport.place.rank, transport.channel
        idle = (Group("idle", parts.idle),) if parts.idle else ()
        if not isinstance(transport, Separable):
            others = " or ".join(names_with("separates"))
            raise UsageError.of(RankRefusal.NOT_SEPARABLE, transport=case.transport, others=others)
        self._parted: Separable = transport
        transport.separate((parts.victims, parts.aggressors, *idle))
        self._program = self._prepared()
        self._call_s, self._rate = self._by_themselves()

    @property
    def aggressors(self) -> tuple[int, ...]:
        """The world ranks that act as aggressors."""
        return self._parts.aggressors.ranks

    def record(self, taken: sampling.Taken, k: int, operations: int) -> Contention:
        """Return the contention record of group k of the victims."""
        contested, useful = taken.contest, useful_bytes(self._pattern, self._shape)
        assert contested is not None
        return Contention(
            aggressor=self._pattern.name,
            aggressor_bytes=self._shape.payload_bytes,
            num_aggressors=len(self._parts.aggressors.ranks),
            samples_per_block=contested.samples_per_block,
            alone_s=tuple(seconds / operations for seconds in contested.alone[k]),
            rates_bytes_per_s=tuple(useful * passes for passes in contested.passes_per_s),
            rate_alone_bytes_per_s=useful * contested.passes_alone_per_s,
            busy=contested.busy,
        )

    def close(self) -> None:
        """Free the library's resources for the aggressors' calls."""
        if self._program is not None and self._program.compiled.release:
            self._program.compiled.release()

    def wrong(self) -> Wrong:
        """Check the output of this rank's last call as an aggressor. Other ranks report no error."""
        program = self._program
        return program.verifier.check(program.buffers, program.compiled.last_set, 0) if program else Wrong(0)

    def take(
        self, row: PlannedRow, compiled: Compiled | None, most_batch: int, room: int, beat: Callable[[str], None]
    ) -> sampling.Taken:
        """Run the warm-up and the blocks of one row.

        The last timed call is from a disturbed block. Its data are checked.
        """
        sampler = sampling.Sampler(self._case, self._transport, row, compiled)
        beat("warm-up")
        loop, warmup, call_s, wall_s = sampler.warm_up()
        batch = sampler.batch(call_s, most_batch)
        # An isolated sample includes its synchronisation. A batch has one synchronisation for all its calls.
        sample_s = wall_s if row.mode == "isolated" else batch * call_s
        per_block = interleaved_blocks.per_block(self._case, row, sample_s)
        alone, disturbed = _Side(row.round, 0), _Side(row.round, room)
        began, reason, num_pairs = time.monotonic(), None, 0
        with sampling.no_garbage():
            while reason is None:
                beat(f"{num_pairs} pairs of blocks")
                for side in (alone, disturbed) if num_pairs % 2 == 0 else (disturbed, alone):
                    side.add(self._block(sampler, batch, per_block, aggressive=side is disturbed))
                num_pairs += 1
                if num_pairs % 2:  # with an odd number, the last timed call, which is checked, was disturbed
                    pairs = zip(alone.taken.slowest(), disturbed.taken.slowest(), strict=True)
                    stop = interleaved_blocks.stop(
                        self._case, row, pairs, per_block, num_pairs, time.monotonic() - began, 2
                    )
                    reason = self._channel.broadcast(stop)
        contest = sampling.ContestedSamples(
            tuple(alone.taken.slowest()), per_block, tuple(disturbed.passes_per_s), self._rate, tuple(disturbed.busy)
        )
        return sampling.Taken(warmup, disturbed.shares(), batch, loop, reason, contest)

    def _block(self, sampler: sampling.Sampler, batch: int, num: int, *, aggressive: bool) -> list[_Block] | None:
        """Run one block on every rank. Return each rank's result on rank 0."""
        self._channel.broadcast(None)  # no rank begins before all ranks have ended the previous block
        if self._program is not None and aggressive:
            return self._channel.gather(self._disturb(self._program))
        victim = self._rank in self._parts.victims.ranks
        _wait(self._parted.barrier_async(), _POLL_S)
        mine = _Block(sampler.timed(batch, num).seconds if victim else ())
        _wait(self._parted.barrier_async(), _POLL_S if victim else _SLEEP_S)
        return self._channel.gather(mine)

    def _disturb(self, program: _Program) -> _Block:
        """Make calls without a pause until all victims have finished.

        All aggressors stop after the same number of calls.
        """
        chunk = max(1, min(_MOST_CHUNK, int(_CHUNK_S / max(self._call_s, 1e-9))))
        program.run(1)
        running = self._parted.barrier_async()
        ended = self._parted.barrier_async()
        began, done = time.perf_counter(), _Block()
        # The decision to stop is taken one chunk earlier, because its broadcast crosses the links that the calls fill.
        stop = self._parted.broadcast_async(ended())
        while True:
            at = time.perf_counter()
            program.run(chunk)
            now = time.perf_counter()
            more = _Block((), done.calls + chunk, done.inside_s + now - at, now - began)
            if stop():  # this chunk disturbed no victim
                break
            done = more
            stop = self._parted.broadcast_async(ended())
        _wait(running, _POLL_S)
        _wait(ended, _POLL_S)
        return done if done.calls else more

    def _prepared(self) -> _Program | None:
        """Return the buffers and calls of this rank if it is an aggressor. Otherwise, return None."""
        group = self._parts.aggressors
        member = group.ranks.index(self._rank) if self._rank in group.ranks else 0
        steps = self._pattern.steps(self._shape, member)
        collective = any(isinstance(step, Collective) for step in steps)
        in_place = self._transport.must_be_in_place(steps)
        lacks = self._channel.share(
            next(filter(None, (self._transport.unsupported_reason(s, _REDUCTION, in_place) for s in steps)), None)
        )
        reason = next(filter(None, lacks), None)
        if reason is not None:
            raise UsageError.of(RankRefusal.BAD_AGGRESSOR, aggressor=self._case.aggressor, why=reason.text)
        self._transport.open_groups((group,) if collective else ())
        if self._rank not in group.ranks:
            return None
        send_bytes, recv_bytes = self._pattern.buffers(self._shape, member)
        if in_place:
            send_bytes, recv_bytes = 0, max(send_bytes, recv_bytes)
        buffers = self._transport.allocate(send_bytes, recv_bytes, 1)
        verifier = Verifier(
            self._pattern,
            self._shape,
            group,
            member,
            dtype_of(_REDUCTION.dtype),
            _REDUCTION.reduce_op,
            in_place,
            self._case.seed,
        )
        verifier.prepare(buffers, 0, 0)
        compiled = self._transport.compile(steps, group, buffers, _REDUCTION, in_place)
        return _Program(compiled, buffers, verifier)

    def _by_themselves(self) -> tuple[float, float]:
        """Run only the aggressors, while the victims sleep. Return the seconds per call and the calls per second.

        All ranks get equal figures.
        """
        call_s, rate = 0.0, 0.0
        if self._program is not None:
            self._program.run(3)
            for num in (3, 0):
                num = num or max(3, int(_ALONE_S / max(call_s, 1e-9)))
                began = time.perf_counter()
                self._program.run(num)
                call_s = self._parted.broadcast_async((time.perf_counter() - began) / num)()
            rate = 1 / call_s
        _wait(self._parted.barrier_async(), _SLEEP_S)
        rates: list[tuple[float, float]] = self._channel.share((call_s, rate))
        return rates[self.aggressors[0]]


class _Side:
    """The results of all blocks of one type: with aggressors, or without aggressors. Only rank 0 has their data."""

    def __init__(self, groups: Round, room: int) -> None:
        self.taken = Gathered(groups, room)
        self.passes_per_s: list[float] = []
        self.busy: list[float] = []
        self._first = False

    def shares(self) -> tuple[GatheredSamples, ...]:
        """Return each group's samples on rank 0, and nothing on other ranks."""
        return self.taken.shares() if self._first else ()

    def add(self, blocks: list[_Block] | None) -> None:
        """Add one block of every rank."""
        if blocks is None:
            return
        self._first = True
        self.taken.add([block.seconds for block in blocks])
        work = [block for block in blocks if block.total_s]
        if work:
            self.passes_per_s.append(min(block.calls / block.total_s for block in work))
            self.busy.append(min(block.inside_s / block.total_s for block in work))


def _wait(arrived: Callable[[], bool], poll_s: float) -> None:
    while not arrived():
        time.sleep(poll_s)
