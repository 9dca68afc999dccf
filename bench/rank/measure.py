"""Measure one row: verify, warm up, time, decide when to stop, verify again. All ranks execute the same steps.

A row has one size and one mode, and belongs to one round of groups. Some decisions must be equal on all ranks: whether
to skip a row, the number of samples, when to stop. Rank 0 makes all decisions that must be equal on all ranks. Rank 0
broadcasts these decisions outside the timed region.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

from bench.core.arrays import CHUNK_BYTES
from bench.core.case import Case
from bench.core.contention import parts, rounds
from bench.core.cpu_use import CpuUse, shortages
from bench.core.device_use import CPUS, DeviceUse
from bench.core.dtypes import dtype_of
from bench.core.host_use import HostUse
from bench.core.pattern import Pattern, Shape
from bench.core.program import Collective, CopyStep, Group, Read, Round, Step
from bench.core.record import Failure, Flag, ReadSamples, Record, Skip, StarvedRank, reads_of
from bench.core.replay_plan import Mapped
from bench.core.step_plan import StepPlan
from bench.core.transport import Buffers, Compiled, Reduction, Transport
from bench.core.units import format_size
from bench.core.world import World
from bench.probes.cpu_time import CpuMeter
from bench.probes.device_sampler import DeviceSampler
from bench.probes.host_use import HostMeter
from bench.rank import contention, overlap, replay, sampling, training_step
from bench.rank.clocks import Clocks
from bench.rank.messages import RankFailure, RankSkip
from bench.rank.oneway import OneWaySampler
from bench.rank.records import Reason, Records
from bench.rank.rows import (
    BufferSets,
    PlannedRow,
    ends_first,
    is_in_place,
    no_overlap_reason,
    unsupported_reason,
)
from bench.rank.verify import Verifier, Wrong

# values of single ranks that a file keeps; if there are more samples, only the slowest rank's values are kept
_KEPT_VALUES = 2_000_000


class StepMarker(Protocol):
    """Marks steps in the trace of a profiled launch (rank/profile.py)."""

    def step(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that makes a call, and marks the call as a step in the trace."""

    def mark(self, compiled: Compiled) -> None:
        """Mark each call of a program as a step."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a rank knows before its first row: the case, the world, and properties of this machine.

    `cache_bytes`: the size of the last-level cache of the rank's host or GPU.
    `own_cache`: whether only this rank uses the cache, as on a GPU.
    """

    case: Case
    pattern: Pattern
    transport: Transport
    world: World
    hosts: tuple[str, ...]  # the host of every rank
    cache_bytes: int
    available_bytes: int  # memory that this rank may use
    beat: Callable[[str], None]
    own_cache: bool = False
    working: Callable[[], AbstractContextManager[Any]] = nullcontext  # a context for work that needs no other rank
    cpus: frozenset[int] = frozenset()  # CPUs of this host for all its ranks; if empty, the CPU use is not measured
    replayed: Mapped | None = None  # the plan of a replay, instead of sizes
    trained: StepPlan | None = None  # the parts of a training step, instead of sizes
    marker: StepMarker | None = None  # only in a profiled launch
    samplers: tuple[DeviceSampler, ...] = ()  # samplers of this rank's GPU, or of the CPUs of its host


class Measurer:
    """Measures a case on this rank, row by row. Rank 0 returns the records, and other ranks return empty tuples."""

    def __init__(self, setting: Setting) -> None:
        self._s = setting
        self._case, self._transport = setting.case, setting.transport
        self._rank, self._channel = setting.transport.place.rank, setting.transport.channel
        self._dtype = dtype_of(setting.case.dtype)
        self._reduction = Reduction(self._dtype.name, setting.case.reduce_op)
        self._clocks = Clocks(self._transport, setting.hosts) if setting.pattern.one_way else None
        self._own_memory = setting.transport.available_bytes() is not None
        self._of_device = setting.transport.clock == "device" or self._own_memory
        sharing = 1 if setting.own_cache else setting.world.ranks_per_node
        # All ranks must have the same number of sets.
        device_bytes = min(self._channel.share(setting.available_bytes if self._own_memory else 0))
        cold = setting.case.cache == "cold"
        self._sets = BufferSets(setting.pattern, setting.cache_bytes, sharing, cold, device_bytes)
        self._records = Records(setting.pattern, setting.hosts, self._sets)
        self._kept = 0
        self._contention: contention.ContentionSampler | None = None
        self._overlap: overlap.OverlapSampler | None = None

    def close(self) -> None:
        """End the threads that read devices."""
        for sampler in self._s.samplers:
            sampler.close()

    def rows(self) -> Iterator[tuple[Record, ...]]:
        """Yield each row's records, one per group.

        The order of sizes is the order of the case. With a time budget, the order is the order of `ends_first`. For
        each size, all rounds of the first mode are measured before the second mode.
        """
        case, started = self._case, time.monotonic()
        if self._s.replayed is not None:
            yield self._replay(self._s.replayed)
            return
        if self._s.trained is not None:
            yield self._train(self._s.trained)
            return
        if self._s.pattern.bursts:
            for payload, requested in case.payloads(self._s.pattern, self._s.world.num_ranks).items():
                yield self._burst(payload, requested)
            return
        if case.is_ladder and self._s.pattern.topology == "pairs" and self._s.world.num_ranks > 1:
            yield from self._laddered(started)
            return
        split = parts(case, self._s.world)
        if split is not None:
            self._s.beat("preparing the aggressors")
            self._contention = contention.ContentionSampler(case, split, self._transport)
        if self._s.pattern.overlaps and no_overlap_reason(case, self._transport) is None:
            self._overlap = overlap.OverlapSampler(case, self._transport)
        all_rounds = rounds(case, self._s.world, self._s.pattern.topology_of(case.topology))
        sizes = case.payloads(self._s.pattern, len(all_rounds[0][0].ranks))
        num_rows = len(sizes) * len(case.modes) * len(all_rounds)
        plan = (
            # one round at a time, because a list of all pairs would be too long
            (mode, payload, sizes[payload], round_)
            for payload in (sizes if case.budget_s is None else ends_first(sizes))
            for mode in case.modes
            for round_ in all_rounds
        )
        for done, (mode, payload, requested, round_) in enumerate(plan):
            left_s = None if case.budget_s is None else case.budget_s - (time.monotonic() - started)
            # Half of a row's share of the budget is for its warm-up and checks.
            max_s = case.max_s if left_s is None else min(case.max_s, left_s / (num_rows - done) / 2)
            max_s = self._channel.broadcast(max_s)
            shape = case.shape(len(round_[0].ranks), payload, mode)
            yield self._row(PlannedRow(mode, shape, requested, round_, max_s))
        if self._contention:
            self._contention.close()

    def _replay(self, plan: Mapped) -> tuple[Record, ...]:
        """Return the records of a replay. One record describes whole steps.

        In addition, each type of exchange has its own record.
        """
        s = self._s
        replayer = replay.Replayer(self._case, self._transport, plan, s.hosts, s.beat, s.working)
        if s.marker:
            replayer.run_step = s.marker.step(replayer.run_step)
        unmeasured = replayer.prepare(s.available_bytes)
        return self._with_uses(replayer.take) if unmeasured is None else unmeasured

    def _train(self, plan: StepPlan) -> tuple[Record, ...]:
        """Return the record of a training step."""
        s = self._s
        measurer = training_step.StepMeasurer(self._case, s.pattern, self._transport, plan, s.hosts, s.beat, s.working)
        unmeasured = measurer.prepare(s.available_bytes)
        return self._with_uses(measurer.take) if unmeasured is None else unmeasured

    def _burst(self, payload: int, requested: tuple[int, ...]) -> tuple[Record, ...]:
        """Return the record of a row of checkpoints, for one size."""
        from bench.rank import checkpoint  # only these rows need it

        s = self._s
        measurer = checkpoint.BurstMeasurer(
            self._case, s.pattern, self._transport, payload, requested, s.hosts, s.beat, s.working
        )
        unmeasured = measurer.prepare()
        return self._with_uses(measurer.take) if unmeasured is None else unmeasured

    def _with_uses(self, take: Callable[[], tuple[tuple[Group, Record], ...]]) -> tuple[Record, ...]:
        """Call `take` to measure records, and return these records.

        Add the CPU time that hosts and ranks used during the call.
        """
        meters = _Meters(self._s, self._transport.place.local_rank == 0)
        taken = take()
        gathered = self._channel.gather(meters.use())
        if gathered is None:
            return ()
        return tuple(self._with_use(record, group, gathered) for group, record in taken)

    def _laddered(self, started: float) -> Iterator[tuple[Record, ...]]:
        from bench.rank import ladder  # only these rows need it; it imports all of the diagnosis

        case, s = self._case, self._s
        payload, requested = max(case.payloads(s.pattern, 2).items())
        shape = case.shape(2, payload, case.modes[0])
        where = ladder.places(case, s.hosts, s.world.ranks_per_node, self._transport.clock)

        def measured(round_: Round) -> tuple[Record, ...]:
            # Before each round, rank 0's clock decides whether time is left. If no time is left, the round's records
            # are skipped.
            in_time = case.budget_s is None or time.monotonic() - started < case.budget_s
            max_s = self._channel.broadcast(case.max_s if in_time else 0.0)
            return self._row(PlannedRow(shape.mode, shape, requested, round_, max_s))

        yield from ladder.measure_rounds(case, where, self._channel.broadcast, self._rank == 0, measured)

    def _row(self, row: PlannedRow) -> tuple[Record, ...]:
        what = f"{self._s.pattern.name} {format_size(row.shape.payload_bytes)} {row.mode}"
        self._s.beat(f"{what}: preparing")
        group = next((group for group in row.round if self._rank in group.ranks), None)
        member = group.ranks.index(self._rank) if group else 0
        case, pattern, transport = self._case, self._s.pattern, self._transport
        in_place = is_in_place(case, pattern, transport, row.shape)
        reason = self._agreed(unsupported_reason(case, pattern, transport, row, member, in_place))
        if reason is not None:
            return self._skipped(row, reason)
        transport.open_groups(_connected_groups(pattern, row.shape, row.round))
        buffers, reason = self._allocate(row, group, member, in_place)
        if reason is not None:
            return self._skipped(row, reason)
        prepared = self._prepare(row, group, member, in_place, buffers) if group and buffers else None
        return self._measured(row, prepared, in_place, what)

    def _measured(self, row: PlannedRow, prepared: _Prepared | None, in_place: bool, what: str) -> tuple[Record, ...]:
        self._s.beat(f"{what}: first check")
        before = self._check_call(prepared, variation=0)
        if self._channel.broadcast(before and any(wrong.num_wrong for wrong in before)):
            return self._records.failed(row, before, in_place) if before else ()
        if prepared:
            with self._s.working():
                prepared.arm()
        compiled, most = prepared.compiled if prepared else None, self._sets.most_batch(row.shape, in_place)
        room, beat = max(0, _KEPT_VALUES - self._kept), lambda doing: self._s.beat(f"{what}: {doing}")
        one_way = OneWaySampler(self._transport, self._clocks, row.round, compiled) if self._clocks else None
        against = self._contention or self._overlap
        meters = _Meters(self._s, self._transport.place.local_rank == 0)
        if against:
            taken = against.take(row, compiled, most, room, beat)
        else:
            most = 1 if one_way else most
            taken = sampling.take(self._case, self._transport, row, compiled, most, room, beat, one_way)
        used = meters.use()
        self._s.beat(f"{what}: last check")
        with self._s.working():
            own = prepared.check_last() if prepared else Wrong(0)
        last = self._channel.gather((against.wrong() if against and not own.num_wrong else own, used))
        fresh = self._check_call(prepared, variation=1)
        flags = self._channel.gather(prepared.compiled.flags if prepared else ()) if self._of_device else None
        proofs = self._proofs(row, prepared)
        if prepared and prepared.compiled.release:
            prepared.compiled.release()
        if last is None or fresh is None:
            return ()
        reads = reads_of(proofs)
        if isinstance(reads, Failure):
            return self._skipped(row, reads)
        wrongs = [a if a.num_wrong else b for (a, _), b in zip(last, fresh, strict=True)]
        uses = [use for _, use in last]
        records = []
        for k, group in enumerate(row.round):
            self._kept += len(taken.shares[k].slowest) * len(group.ranks)
            bound_s = one_way.bound_s(group) if one_way else None
            group_flags: dict[str, None] = {}
            if flags is not None:
                for rank in group.ranks:
                    group_flags |= dict.fromkeys(flags[rank])
            record = self._records.measured(
                row, k, taken, wrongs, in_place, bound_s, tuple(group_flags), self._contention, reads
            )
            records.append(self._with_use(record, group, uses))
        return tuple(records)

    def _proofs(self, row: PlannedRow, prepared: _Prepared | None) -> list[ReadSamples | Failure | None]:
        """Return, for each rank, the measurements that prove where its reads got their data.

        The list is empty on all ranks except rank 0, and for patterns that do not read.
        """
        if not any(isinstance(step, Read) for step in self._s.pattern.steps(row.shape, 0)):
            return []
        own = prepared.compiled.reads() if prepared and prepared.compiled.reads else None
        if isinstance(own, Failure):
            own = replace(own, rank=self._rank, host=self._s.hosts[self._rank])
        return self._channel.gather(own) or []

    def _with_use(self, record: Record, group: Group, used: Sequence[RankUse]) -> Record:
        """Add to a group's record the use of its hosts, the use of its devices, and its ranks that lacked CPU time.

        `used`: the use of every world rank.
        """
        uses = [each.cpu for each in used]
        hosts = self._host_uses(uses, [each.host for each in used])
        names = dict.fromkeys(self._s.hosts[rank] for rank in group.ranks)
        members = set(group.ranks)
        devices = tuple(
            device
            for rank, each in enumerate(used)
            for device in each.devices
            if rank in members or (device.device == CPUS and device.host in names)
        )
        starved = self._starved(group, uses)
        flags = {Flag.STARVED_RANK: bool(starved), Flag.THROTTLED: any(each.was_throttled for each in devices)}
        return replace(
            record,
            hosts=tuple(hosts[host] for host in names if host in hosts),
            devices=devices,
            starved=starved,
            flags=(*record.flags, *(flag for flag, holds in flags.items() if holds)),
        )

    def _starved(self, group: Group, uses: Sequence[CpuUse]) -> tuple[StarvedRank, ...]:
        """Return the group's ranks that lacked CPU time while a row was timed.

        `uses`: the CPU use of every world rank.
        """
        found = shortages({rank: uses[rank] for rank in group.ranks}, self._transport.spins)
        return tuple(
            StarvedRank(rank, self._s.hosts[rank], short.cpu_s, short.needed_s, short.others_share)
            for rank, short in found.items()
        )

    def _host_uses(self, uses: Sequence[CpuUse], of_hosts: Sequence[HostUse | None]) -> dict[str, HostUse]:
        """Return each host's total CPU time while a row was timed, and the part of it that linkbench's ranks used.

        `uses`: the CPU use of each rank.
        `of_hosts`: for each rank, the CPU use of its host, or None if the rank did not measure the host.
        """
        found = {self._s.hosts[rank]: use for rank, use in enumerate(of_hosts) if use is not None}
        ours: dict[str, list[float]] = {host: [] for host in found}
        for host, use in zip(self._s.hosts, uses, strict=True):
            if host in ours:
                ours[host].append(use.cpu_s)
        return {
            host: replace(use, host=host, ours_s=sum(ours[host]), num_ranks=len(ours[host]))
            for host, use in found.items()
        }

    # -- before timing

    def _skipped(self, row: PlannedRow, reason: Reason) -> tuple[Record, ...]:
        return self._records.skipped(row, reason, self._case.in_place) if self._rank == 0 else ()

    def _agreed(self, reason: Reason | None) -> Reason | None:
        """Return the reason of the first rank that has a reason. If no rank has a reason, return None.

        All ranks get the same result. The reason for a failure takes precedence over the reason for a skip.
        """
        reasons = [other for other in self._channel.share(reason) if other is not None]
        reasons.sort(key=lambda other: not isinstance(other, Failure))
        return reasons[0] if reasons else None

    def _allocate(
        self, row: PlannedRow, group: Group | None, member: int, in_place: bool
    ) -> tuple[Buffers | None, Reason | None]:
        """Return this rank's buffers. If some rank cannot allocate buffers, every rank returns the reason."""
        steps = self._s.pattern.steps(row.shape, member) if group else ()
        buffers, reason = self._own_buffers(row, member, steps, in_place) if group else (None, None)
        agreed = self._agreed(reason)
        if agreed is None:
            # A rank may find that it cannot access a peer's memory. Then no rank measures.
            agreed = self._agreed(self._transport.share(buffers, steps))
        return buffers, agreed

    def _own_buffers(
        self, row: PlannedRow, member: int, steps: tuple[Step, ...], in_place: bool
    ) -> tuple[Buffers | None, Reason | None]:
        """Allocate this rank's buffers.

        If there is too little free memory, the row is skipped. If the allocation fails although there is enough memory,
        the row fails.
        """
        send_bytes, recv_bytes = self._s.pattern.buffers(row.shape, member)
        if in_place:
            send_bytes, recv_bytes = 0, max(send_bytes, recv_bytes)
        num_sets = self._sets.num(row.shape, in_place)
        # The check compares one chunk at a time; host libraries also keep their own copies of the data.
        set_bytes = send_bytes + recv_bytes
        need = set_bytes * num_sets + (min(set_bytes, CHUNK_BYTES) if self._own_memory else 2 * set_bytes)
        facts = {"need_mib": need >> 20, "free_mib": self._s.available_bytes >> 20}
        if need > self._s.available_bytes:
            payload = row.shape.payload_bytes
            return None, Skip.of(RankSkip.NO_MEMORY, payload_bytes=payload, rank=self._rank, **facts)
        try:
            with self._s.working():
                return self._transport.allocate(send_bytes, recv_bytes, num_sets, steps), None
        except MemoryError:
            return None, Failure.of(RankFailure.OUT_OF_MEMORY, self._rank, self._s.hosts[self._rank], **facts)

    def _prepare(self, row: PlannedRow, group: Group, member: int, in_place: bool, buffers: Buffers) -> _Prepared:
        verifier = Verifier(
            self._s.pattern, row.shape, group, member, self._dtype, self._case.reduce_op, in_place, self._case.seed
        )
        steps = self._s.pattern.steps(row.shape, member)
        compiled = self._transport.compile(steps, group, buffers, self._reduction, in_place)
        if self._s.marker:
            self._s.marker.mark(compiled)
        return _Prepared(compiled, buffers, verifier, in_place and self._s.pattern.reduces)

    def _check_call(self, prepared: _Prepared | None, variation: int) -> list[Wrong] | None:
        """Make one untimed call on poisoned buffers.

        Return each rank's number of wrong elements, and its first wrong element, on rank 0.
        """
        if prepared:
            with self._s.working():
                prepared.verifier.prepare(prepared.buffers, 0, variation)
        self._transport.sync()
        wrong = Wrong(0)
        if prepared:
            prepared.compiled.calls[0]()
        self._transport.sync()  # after all senders have finished, messages without a reply have also arrived
        if prepared:
            with self._s.working():
                wrong = prepared.verifier.check(prepared.buffers, 0, variation)
        return self._channel.gather(wrong)


def _connected_groups(pattern: Pattern, shape: Shape, groups: Round) -> Round:
    """Return the groups whose ranks need a common communicator, or access to each other's memory.

    The result is empty if the groups only send messages.
    """
    steps = [step for member in range(min(2, shape.num_ranks)) for step in pattern.steps(shape, member)]
    return groups if any(isinstance(step, Collective | CopyStep) for step in steps) else ()


@dataclass(frozen=True, slots=True)
class RankUse:
    """The resources that one rank used while a row was timed.

    `host`, `devices`: the use of the host and of devices, only on ranks that measure this use.
    """

    cpu: CpuUse
    host: HostUse | None
    devices: tuple[DeviceUse, ...]


class _Meters:
    """Measures the resources that this rank uses between the creation of this object and the call of `use`."""

    def __init__(self, setting: Setting, measures_host: bool) -> None:
        self._samplers = setting.samplers
        for sampler in self._samplers:
            sampler.begin()
        self._cpu = CpuMeter()
        self._host = HostMeter(setting.cpus) if measures_host else None

    def use(self) -> RankUse:
        cpu, host = self._cpu.use(), self._host.use() if self._host else None
        return RankUse(cpu, host, tuple(sampler.use() for sampler in self._samplers))


@dataclass(slots=True)
class _Prepared:
    """The calls that this rank makes for one row, after all preparations."""

    compiled: Compiled
    buffers: Buffers
    verifier: Verifier
    changes_input: bool

    def arm(self) -> None:
        """Fill every buffer set with new data and with poison, to check the output of the last timed call later."""
        for index in range(self.buffers.num_sets):
            self.verifier.prepare(self.buffers, index, 0)
        self.compiled.refill = self.verifier.refill(self.buffers, 0) if self.changes_input else None

    def check_last(self) -> Wrong:
        """Check the output of the last timed call."""
        return self.verifier.check(self.buffers, self.compiled.last_set, 0)
