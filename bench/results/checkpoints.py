"""Compute what checkpoints cost: longer steps, slower exchanges, and the time to read checkpoints back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from bench.core.case_argv import from_argv
from bench.core.record import Header, Record, known
from bench.results import launches, stats
from bench.results.model import case_of
from bench.results.training_rows import Checkpointed

_LATE_SHARE = 0.1  # a rank is named as slowest if it is slower than the median rank by this share in most bursts
_LATE_BURSTS = 0.75


def of_record(job: str, header: Header, record: Record) -> list[Checkpointed]:
    """Return the figures of a row that measured checkpoints. Return an empty list for any other row.

    If a checkpoint was read back with wrong data, the row has no figures.
    """
    found, samples = record.checkpoint, record.samples
    if found is None or samples is None or record.verified is False or not stats.usable(samples.seconds):
        return []
    case = from_argv(header.case)
    step_s = [median(block) for block in found.step_alone_s]
    stalls = [total - num * alone for total, num, alone in zip(found.total_s, found.num_steps, step_s, strict=True)]
    low, high = stats.interval_of_differences(stalls) or (None, None)
    during = [seconds for block in found.exchange_during_s for seconds in block]
    rank, behind = _slowest(samples.by_rank)
    return [
        Checkpointed(
            job=case_of(job, header),
            method=case.method,
            shard_bytes=record.payload_bytes,
            num_ranks=known(record.num_ranks),
            num_bursts=len(samples.seconds),
            write_s=median(samples.seconds),
            blocked_s=median(found.blocked_s),
            stall_s=median(stalls),
            stall_low_s=low,
            stall_high_s=high,
            step_s=median(step_s),
            slowest_rank=rank,
            slowest_behind=behind,
            exchange_bytes=case.exchange,
            exchange_alone_s=median(seconds for block in found.exchange_alone_s for seconds in block),
            exchange_during_s=median(during) if during else None,
            read_s=median(found.read_s),
            device_share=found.device_share,
            num_launches=1,
        )
    ]


def checkpoints(of_launches: Iterable[Checkpointed]) -> tuple[Checkpointed, ...]:
    """Return one result for each row of each case.

    If a row has three launches or more, its interval covers the variation between launches.
    """
    rows: dict[tuple[object, ...], list[Checkpointed]] = {}
    for one in of_launches:
        rows.setdefault((one.job, one.shard_bytes), []).append(one)
    return tuple(of_row[0] if len(of_row) == 1 else _merged(of_row) for of_row in rows.values())


def _slowest(by_rank: Sequence[Sequence[float]]) -> tuple[int | None, float]:
    """Return the rank that is the slowest in most bursts, and by which fraction it is slower than the median rank.

    Return (None, 0.0) if no rank is the slowest often enough, or if the difference is too small.
    """
    bursts = list(zip(*by_rank, strict=True))
    if len(by_rank) < 2 or not bursts:
        return None, 0.0
    last = [max(range(len(burst)), key=lambda rank: burst[rank]) for burst in bursts]
    rank = max(set(last), key=last.count)
    behind = median(burst[rank] / median(burst) - 1 for burst in bursts)
    named = last.count(rank) >= _LATE_BURSTS * len(last) and behind >= _LATE_SHARE
    return (rank, behind) if named else (None, 0.0)


def _merged(of_row: list[Checkpointed]) -> Checkpointed:
    def middle(name: str) -> float | None:
        values = [getattr(one, name) for one in of_row if getattr(one, name) is not None]
        return median(values) if values else None

    names = ("write_s", "blocked_s", "stall_s", "step_s", "exchange_alone_s", "exchange_during_s", "read_s")
    low, high = launches.interval_of_differences([one.stall_s for one in of_row]) or (None, None)
    return replace(
        of_row[0],
        **{name: middle(name) for name in names},  # type: ignore[arg-type]
        stall_low_s=low,
        stall_high_s=high,
        device_share=min(one.device_share for one in of_row),
        num_launches=len(of_row),
    )
