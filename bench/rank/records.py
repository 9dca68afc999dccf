"""On rank 0, build the records of rows: measured rows, rows whose first check failed, and skipped rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.core.pattern import Pattern
from bench.core.program import Group
from bench.core.record import BesideSamples, Failure, Flag, ReadSamples, Record, Samples, Skip, WrongCode
from bench.core.skips import SkipCode
from bench.rank.contention import ContentionSampler
from bench.rank.messages import RankFailure
from bench.rank.rows import BufferSets, PlannedRow, traffic
from bench.rank.sampling import Taken
from bench.rank.verify import Wrong

# In this share of a row's samples, copies may overlap only partly. The first samples only show how long each copy
# takes.
_ALONE_SHARE = 0.05

Reason = Skip | Failure  # why a row has no result: skipped in advance, or tried and failed


@dataclass(frozen=True, slots=True)
class Records:
    """Builds the records of one pattern's rows. `hosts`: the host of every rank."""

    pattern: Pattern
    hosts: tuple[str, ...]
    sets: BufferSets

    def measured(
        self,
        row: PlannedRow,
        k: int,
        taken: Taken,
        wrongs: list[Wrong],
        in_place: bool,
        clock_bound_s: float | None,
        transport_flags: tuple[str, ...],
        contention: ContentionSampler | None,
        reads: ReadSamples | None = None,
    ) -> Record:
        """Return the record of group k.

        `wrongs`: for each world rank, the wrong elements that the rank found.
        `transport_flags`: flags that state how the ranks executed the row.
        """
        per = self.pattern.operations(row.shape)
        group, shares = row.round[k], taken.shares[k]
        # If an aggressor has wrong data, the actual disturbance differs from the one in the record.
        aggressors = contention.aggressors if contention else ()
        own = [wrongs[rank] for rank in (*group.ranks, *aggressors)]
        num_wrong = sum(wrong.num_wrong for wrong in own)
        first_wrong = _first(own).first
        flags: list[str] = []
        if not shares.by_rank:
            flags.append(Flag.RANKS_NOT_KEPT)
        if self.pattern.rooted and row.mode == "pipelined":
            flags.append(Flag.MAY_OVERLAP)
        flags += transport_flags
        if shares.beside is not None and shares.beside.num_partly_alone > _ALONE_SHARE * len(shares.slowest):
            flags.append(Flag.PARTLY_ALONE)
        if first_wrong is not None:
            flags.append(Flag.WRONG_DATA)
        return self._blank(row, group, in_place)(
            cache=self.sets.state(row.shape, in_place),
            num_buffer_sets=self.sets.num(row.shape, in_place),
            verified=num_wrong == 0,
            num_wrong=num_wrong,
            first_wrong=first_wrong,
            compared="sampled" if any(wrong.sampled for wrong in own) else "full",
            stop_reason=taken.stop_reason,
            clock_bound_s=None if clock_bound_s is None else clock_bound_s / per,
            flags=tuple(flags),
            samples=Samples(
                seconds=[second / per for second in shares.slowest],
                by_rank=tuple([second / per for second in seconds] for seconds in shares.by_rank),
                rank_mean_s=tuple(mean / per for mean in shares.rank_mean_s),
                slowest_counts=shares.slowest_counts,
                warmup=[second / per for second in taken.warmup[k]],
                calls_per_sample=taken.calls_per_sample,
                loop=taken.loop,
                host_s=[second / per for second in shares.host_s],
                enqueue_s=[second / per for second in shares.enqueue_s],
                skew_s=shares.skew_s,
            ),
            beside=_per_operation(shares.beside, per),
            contention=contention.record(taken, k, per) if contention else None,
            overlap=taken.overlaps[k] if taken.overlaps else None,
            reads=reads,
        )

    def failed(self, row: PlannedRow, wrongs: list[Wrong], in_place: bool) -> tuple[Record, ...]:
        """Return records for all groups of a row whose first check failed, before the timed part."""
        records: list[Record] = []
        for group in row.round:
            bad = [(rank, wrongs[rank]) for rank in group.ranks if wrongs[rank].num_wrong]
            if not bad:
                records.append(self._blank(row, group, in_place)(skipped=Skip.of(SkipCode.OTHER_GROUP_WRONG)))
                continue
            wrong = _first([each for _, each in bad])
            rank = next(rank for rank, each in bad if each is wrong)
            num_wrong = sum(each.num_wrong for _, each in bad)
            first = wrong.first.text if wrong.first else ""
            failure = Failure.of(
                RankFailure.WRONG_BEFORE_TIMING,
                rank,
                self.hosts[rank],
                num_wrong=num_wrong,
                first=first,
                found=wrong.first and wrong.first.code,
            )
            blank = self._blank(row, group, in_place)
            records.append(blank(verified=False, num_wrong=num_wrong, first_wrong=wrong.first, failed=failure))
        return tuple(records)

    def skipped(self, row: PlannedRow, reason: Reason, in_place: bool) -> tuple[Record, ...]:
        """Return records of all groups of a skipped row. `in_place`: whether the row was to be measured in place."""
        field = "failed" if isinstance(reason, Failure) else "skipped"
        return tuple(self._blank(row, group, in_place)(**{field: reason}) for group in row.round)

    def _blank(self, row: PlannedRow, group: Group, in_place: bool) -> Callable[..., Record]:
        return lambda **rest: Record(
            mode=row.mode,
            requested_bytes=row.requested,
            in_place=in_place,
            **traffic(self.pattern, row.shape, group, self.hosts),
            **rest,
        )


def _first(wrongs: Sequence[Wrong]) -> Wrong:
    """Return the first wrong data.

    Wrong data in a rank's own send buffer come before all other wrong data.
    """
    sent = [wrong for wrong in wrongs if wrong.first is not None and wrong.first.code == WrongCode.SENT]
    return next(iter(sent), next((wrong for wrong in wrongs if wrong.num_wrong), wrongs[0]))


def _per_operation(beside: BesideSamples | None, per: int) -> BesideSamples | None:
    if beside is None:
        return None
    ends = tuple(tuple([second / per for second in ends] for ends in own) for own in beside.ends_s)
    return replace(beside, ends_s=ends)
