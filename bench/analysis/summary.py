"""From what was measured to what is shown: Records to Summaries to one Document. Nothing is stored, all is derived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import median
from typing import Any

from bench.analysis import stats
from bench.core.case import from_argv
from bench.core.errors import BenchError
from bench.core.record import DOCUMENT_SCHEMA, Bound, Document, Header, Record, Samples, Summary
from bench.core.topology import rounds
from bench.core.world import World
from bench.hardware.bounds import bounds_of, floor_of

# No rank of these can finish before the last one arrives, so the shortest of the ranks' times holds no waiting.
FULLY_SYNCHRONISING = frozenset({"allreduce", "allgather", "reducescatter", "alltoall", "alltoallv", "barrier"})

# A median above a hard bound by more than its own uncertainty is a mistake in the bound, the clock or the data.
BOUND_TOLERANCE = 0.02

# The statistics of a row. A foreign tool's are taken over by these names; a mean is none of them.
_TIMES = ("median_s", "ci_low_s", "ci_high_s", "min_s", "max_s", "p95_s", "p99_s")


def document(runs: Iterable[tuple[str, Header, Sequence[Record]]], notes: Sequence[str] = ()) -> Document:
    """Everything that `runs`, (job, header, records) each, can show. `notes` are sentences about the whole."""
    headers: dict[str, Header] = {}
    summaries: list[Summary] = []
    skipped: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    for job, header, records in runs:
        headers[job] = header
        for record in records:
            if record.skipped is not None:
                skipped.append(_row(job, header, record) | {"reason": record.skipped})
            elif record.failed is not None:
                failed = record.failed
                failures.append(
                    _row(job, header, record) | {"what": failed.what, "rank": failed.rank, "host": failed.host}
                )
            else:
                summaries.append(summarise(job, header, record))
    return Document(DOCUMENT_SCHEMA, headers, tuple(summaries), tuple(skipped), tuple(failures), tuple(notes))


def summarise(job: str, header: Header, record: Record) -> Summary:
    """What one record of samples (or of a foreign tool's statistics) says.

    Samples that are no times give no number and the flag "bad-samples"; data found wrong give no bandwidth and the flag
    "invalid". Raises ValueError for a record of something skipped or failed.
    """
    if record.samples is not None:
        times = _from_samples(header, record, record.samples)
    elif record.reported is not None:
        times = _from_reported(record)
    else:
        raise ValueError("a skipped or failed record has no summary: it is a row of Document.skipped or .failures")
    summary = _described(job, header, record, times)
    return _judged(summary, _shown_bound(bounds_of(header, record)))


@dataclass(slots=True)
class _Times:
    """What the samples alone say."""

    num_samples: int = 0
    num_effective: float | None = None
    seconds: Mapping[str, float | None] = field(default_factory=lambda: dict.fromkeys(_TIMES))
    last_arriver_s: float | None = None
    slowest_rank: int | None = None
    algbw_bytes_per_s: float | None = None
    busbw_bytes_per_s: float | None = None
    flags: tuple[str, ...] = ()


def _from_samples(header: Header, record: Record, samples: Samples) -> _Times:
    taken = samples.seconds
    if not stats.usable(taken):
        return _Times(len(taken), flags=("bad-samples",))
    middle, around, trend = stats.median(taken), stats.interval(taken), stats.drift(taken)
    flags = {
        "few-samples": around is None and not record.modelled,
        "drift": trend is not None and trend.significant,
        "warmup-residue": stats.warmup_residue(taken) > 0,
        "outliers": stats.num_outliers(taken) > 0,
    }
    algbw = record.payload_bytes / middle if record.payload_bytes else None
    return _Times(
        num_samples=len(taken),
        num_effective=stats.effective_size(taken),
        seconds={
            "median_s": middle,
            "ci_low_s": around[0] if around else None,
            "ci_high_s": around[1] if around else None,
            "min_s": min(taken),
            "max_s": max(taken),
            "p95_s": stats.percentile(taken, 0.95),
            "p99_s": stats.percentile(taken, 0.99),
        },
        last_arriver_s=_last_arriver(header.pattern, record.mode, samples),
        slowest_rank=_slowest_rank(header, record, samples),
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=algbw * record.bus_factor if algbw and record.bus_factor else None,
        flags=tuple(flag for flag, holds in flags.items() if holds),
    )


def _from_reported(record: Record) -> _Times:
    reported = record.reported or {}
    return _Times(
        num_samples=int(reported.get("num_samples", 0)),
        seconds={name: reported.get(name) for name in _TIMES},
        algbw_bytes_per_s=reported.get("algbw_bytes_per_s"),
        busbw_bytes_per_s=reported.get("busbw_bytes_per_s"),
        flags=("reported",),
    )


def _last_arriver(pattern: str, mode: str, samples: Samples) -> float | None:
    """Median over the samples of the shortest of the ranks' times: the cost without waiting for late ranks. Seconds."""
    ranks = samples.by_rank
    if pattern not in FULLY_SYNCHRONISING or mode != "isolated" or len(ranks) < 2:
        return None
    shortest = [min(each) for each in zip(*ranks, strict=True)]
    return median(shortest) if stats.usable(shortest) else None


def _slowest_rank(header: Header, record: Record, samples: Samples) -> int | None:
    """The rank whose own time is strictly the longest in more than half of the samples; None when there is none.

    Asked of 3 ranks or more (of two, one is nearly always that often the slower) and of samples enough for an interval.
    """
    ranks, num_samples = samples.by_rank, len(samples.seconds)
    if len(ranks) < 3 or stats.interval_rank(num_samples) is None:
        return None
    wins: Counter[int] = Counter()
    for each in zip(*ranks, strict=True):
        longest = max(each)
        if each.count(longest) == 1:
            wins[each.index(longest)] += 1
    for member, count in wins.most_common(1):
        if count > num_samples / 2:
            members = _members(header.case, header.num_nodes, header.ranks_per_node, header.topology, record.group)
            return members[member] if member < len(members) else None
    return None


@lru_cache(maxsize=1024)
def _members(case: tuple[str, ...], num_nodes: int, ranks_per_node: int, topology: str, group: str) -> tuple[int, ...]:
    """World ranks of a group in member order; empty where the header does not tell (an imported file)."""
    try:
        order = from_argv(case).order
        groups = [each for round_ in rounds(World(num_nodes, ranks_per_node), topology, order) for each in round_]
    except (BenchError, IndexError):
        return ()
    return next((each.ranks for each in groups if each.name == group), ())


def _described(job: str, header: Header, record: Record, times: _Times) -> Summary:
    seconds = times.seconds
    floor = floor_of(header, record)
    return Summary(
        job=job,
        pattern=header.pattern,
        transport=header.transport,
        mode=record.mode,
        dtype=header.dtype,
        reduce_op=header.reduce_op,
        root=header.root,
        in_place=record.in_place,
        direction=header.direction,
        group=record.group,
        src=record.src,
        dst=record.dst,
        requested_bytes=record.requested_bytes[0] if record.requested_bytes else record.payload_bytes,
        also_requested_bytes=record.requested_bytes[1:],
        payload_bytes=record.payload_bytes,
        num_ranks=record.num_ranks,
        num_nodes=record.num_nodes,
        num_samples=times.num_samples,
        num_effective=times.num_effective,
        median_s=seconds["median_s"],
        ci_low_s=seconds["ci_low_s"],
        ci_high_s=seconds["ci_high_s"],
        min_s=seconds["min_s"],
        max_s=seconds["max_s"],
        p95_s=seconds["p95_s"],
        p99_s=seconds["p99_s"],
        last_arriver_s=times.last_arriver_s,
        slowest_rank=times.slowest_rank,
        algbw_bytes_per_s=times.algbw_bytes_per_s,
        busbw_bytes_per_s=times.busbw_bytes_per_s,
        bound_bytes_per_s=None,
        bound_name=None,
        bound_kind=None,
        bound_fraction=None,
        floor_s=floor[0] if floor else None,
        floor_name=floor[1] if floor else None,
        verified=record.verified,
        num_wrong=record.num_wrong,
        modelled=record.modelled,
        algorithm=record.algorithm,
        topology=header.topology,
        cache=record.cache,
        stop_reason=record.stop_reason,
        flags=_unique((*_record_flags(record), *times.flags, *record.flags)),
    )


def _record_flags(record: Record) -> tuple[str, ...]:
    flags = {
        "invalid": record.verified is False,
        "modelled": record.modelled,
        "not-converged": (record.stop_reason or "").startswith("max_"),
    }
    return tuple(flag for flag, holds in flags.items() if holds)


def _shown_bound(bounds: Sequence[Bound]) -> Bound | None:
    """The tightest hard bound if there is any, else the tightest reference. `bounds` come tightest first."""
    hard = [bound for bound in bounds if bound.kind == "hard"]
    return next(iter(hard or bounds), None)


def _judged(summary: Summary, bound: Bound | None) -> Summary:
    """The summary beside its bound: fraction and "above-bound"; no bandwidth at all where data were wrong."""
    if bound is not None:
        summary = replace(summary, bound_bytes_per_s=bound.bytes_per_s, bound_name=bound.name, bound_kind=bound.kind)
    if summary.verified is False:
        return replace(summary, algbw_bytes_per_s=None, busbw_bytes_per_s=None)
    if bound is None or summary.busbw_bytes_per_s is None:
        return summary
    fraction = summary.busbw_bytes_per_s / bound.bytes_per_s
    above = ("above-bound",) if bound.kind == "hard" and fraction > 1 + BOUND_TOLERANCE else ()
    return replace(summary, bound_fraction=fraction, flags=_unique((*summary.flags, *above)))


def _row(job: str, header: Header, record: Record) -> dict[str, Any]:
    """What a row that holds no figure says about itself."""
    return {
        "job": job,
        "pattern": header.pattern,
        "transport": header.transport,
        "mode": record.mode,
        "group": record.group,
        "requested_bytes": record.requested_bytes[0] if record.requested_bytes else record.payload_bytes,
        "also_requested_bytes": record.requested_bytes[1:],
        "payload_bytes": record.payload_bytes,
    }


def _unique(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
