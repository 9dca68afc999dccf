"""Rows become records: what was measured, what failed its first check, and what was left out. On rank 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.core.pattern import Pattern
from bench.core.program import Group
from bench.core.record import Failure, Flag, Record, Samples, Skip
from bench.core.skips import SkipCode
from bench.rank.buffer_sets import BufferSets
from bench.rank.contention import ContentionSampler
from bench.rank.rows import PlannedRow, traffic
from bench.rank.sampling import Taken
from bench.rank.verify import Wrong

Reason = Skip | Failure  # why a row is not measured: it was refused, or tried and failed


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one pattern's rows. `hosts`: of every rank."""

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
        said: tuple[str, ...],
        contest: ContentionSampler | None,
    ) -> Record:
        """Of group k. `wrongs`: of every rank, by its world rank; `said`: flags of how its ranks carried it out."""
        per = self.pattern.operations(row.shape)
        group, shares = row.round[k], taken.shares[k]
        kept = bool(shares.by_rank)
        # An aggressor that received wrong data disturbed by something else than it says.
        wrong = [wrongs[rank] for rank in (*group.ranks, *(contest.aggressors if contest else ()))]
        num_wrong = sum(one.num_wrong for one in wrong)
        num_sets = self.sets.num(row.shape, in_place)
        flags = (() if kept else (Flag.RANKS_NOT_KEPT,)) + (
            (Flag.MAY_OVERLAP,) if self.pattern.rooted and row.mode == "pipelined" else ()
        )
        return self._blank(row, group, in_place)(
            cache=self.sets.state(row.shape, in_place),
            num_buffer_sets=num_sets,
            verified=num_wrong == 0,
            num_wrong=num_wrong,
            compared="sampled" if any(one.sampled for one in wrong) else "full",
            stop_reason=taken.stop_reason,
            clock_bound_s=None if clock_bound_s is None else clock_bound_s / per,
            flags=flags + said + tuple(f"wrong: {one.first}" for one in wrong if one.first),
            samples=Samples(
                seconds=[second / per for second in shares.slowest],
                by_rank=tuple([second / per for second in own] for own in shares.by_rank),
                rank_mean_s=tuple(mean / per for mean in shares.rank_mean_s),
                slowest_counts=shares.slowest_counts,
                warmup=[second / per for second in taken.warmup[k]],
                calls_per_sample=taken.calls_per_sample,
                loop=taken.loop,
                host_s=[second / per for second in shares.host_s],
                enqueue_s=[second / per for second in shares.enqueue_s],
            ),
            contention=contest.record(taken, k, per) if contest else None,
            overlap=taken.overlaps[k] if taken.overlaps else None,
        )

    def failed(self, row: PlannedRow, wrongs: list[Wrong], in_place: bool) -> tuple[Record, ...]:
        """Of every group, some of whose data were wrong before anything was timed."""
        records: list[Record] = []
        for group in row.round:
            bad = [(rank, wrongs[rank]) for rank in group.ranks if wrongs[rank].num_wrong]
            if not bad:
                records.append(self._blank(row, group, in_place)(skipped=Skip.of(SkipCode.OTHER_GROUP_WRONG)))
                continue
            rank, first = bad[0]
            num_wrong = sum(wrong.num_wrong for _, wrong in bad)
            failure = Failure(f"{num_wrong} wrong elements before timing; {first.first}", rank, self.hosts[rank])
            records.append(self._blank(row, group, in_place)(verified=False, num_wrong=num_wrong, failed=failure))
        return tuple(records)

    def left_out(self, row: PlannedRow, reason: Reason, in_place: bool) -> tuple[Record, ...]:
        """Of every group of a row that is not measured. `in_place`: was that asked for?"""
        why = {"failed" if isinstance(reason, Failure) else "skipped": reason}
        return tuple(self._blank(row, group, in_place)(**why) for group in row.round)

    def _blank(self, row: PlannedRow, group: Group, in_place: bool) -> Callable[..., Record]:
        return lambda **rest: Record(
            mode=row.mode,
            requested_bytes=row.requested,
            in_place=in_place,
            **traffic(self.pattern, row.shape, group, self.hosts),
            **rest,
        )
