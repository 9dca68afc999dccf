"""Join records of single collectives to the profiler trace of the same rank.

The records are from a flight recorder, NCCL Inspector or an execution trace. These sources state groups and bytes, but
no compute. Only the records between the first and the last call of the trace are joined. The joined records must have
the same operations in the same order as the trace. If both sources state bytes, the bytes must also be equal. Other
records are left out, because they cannot be matched to calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.core.codes import Coded
from bench.core.step_trace import RankTrace, TracedCollective
from bench.job.messages import JobCode

_SAME_CALL_S = 1e-3  # both sources record the host's call by the same clock, some microseconds apart


def is_records(trace: RankTrace) -> bool:
    """Check whether a file has only collectives: no compute, copies, steps or phases of the program."""
    return bool(trace.collectives) and not (len(trace.compute) or trace.steps or trace.phases or trace.copies)


def join(traces: Mapping[int, RankTrace], records: Sequence[RankTrace], remarks: list[Coded]) -> dict[int, RankTrace]:
    """Return the traces by rank, completed with the records of the same ranks.

    Groups are added only if the records of all ranks can be joined. Otherwise, a collective would have a group only on
    some ranks.
    """
    pairs: dict[int, list[tuple[TracedCollective, TracedCollective]]] = {}
    left_out = []
    for own in records:
        found = None
        if own.rank is not None and own.rank in traces and own.rank not in pairs:
            found = _pairs(traces[own.rank], own)
        if found is None or own.rank is None:
            left_out.append(own.source)
        else:
            pairs[own.rank] = found
    with_groups = pairs.keys() == traces.keys()
    joined, num_collectives = dict(traces), 0
    for rank, matched in pairs.items():
        completed = tuple(_completed(one, other, with_groups) for one, other in matched)
        num_collectives += sum(after != before for after, (before, _) in zip(completed, matched, strict=True))
        joined[rank] = replace(traces[rank], collectives=completed)
    if pairs:
        remarks.append(Coded.of(JobCode.RECORDS_JOINED, num=len(pairs), num_collectives=num_collectives))
    if left_out:
        remarks.append(Coded.of(JobCode.RECORDS_LEFT_OUT, num=len(left_out), sources=left_out))
    return joined


def _pairs(trace: RankTrace, records: RankTrace) -> list[tuple[TracedCollective, TracedCollective]] | None:
    """Return each collective of a trace with its record; None if their operations differ."""
    own = sorted(trace.collectives, key=_called)
    others = _within(trace, records)
    if not own or len(own) != len(others):
        return None
    pairs = [*zip(own, others, strict=True)]
    return pairs if all(_is_same(one, other) for one, other in pairs) else None


def _called(one: TracedCollective) -> float:
    """Return the time at which the host called a collective, or the best known substitute for this time."""
    return next(time for time in (one.called_s, one.launch_s, one.start_s) if time is not None)


def _within(trace: RankTrace, records: RankTrace) -> list[TracedCollective]:
    """Return the records in the order of the calls.

    If the trace and the records state Unix times, only calls during the trace are returned.
    """
    ordered = sorted(records.collectives, key=_called)
    if trace.epoch_s is None or records.epoch_s is None or not trace.collectives:
        return ordered
    ahead_s = records.epoch_s - trace.epoch_s
    first, last = min(map(_called, trace.collectives)), max(map(_called, trace.collectives))
    return [one for one in ordered if first - _SAME_CALL_S <= _called(one) + ahead_s <= last + _SAME_CALL_S]


def _is_same(one: TracedCollective, other: TracedCollective) -> bool:
    """Check whether two records have the same operation and bytes."""
    return one.op == other.op and (None in (one.num_bytes, other.num_bytes) or one.num_bytes == other.num_bytes)


def _completed(one: TracedCollective, other: TracedCollective, with_groups: bool) -> TracedCollective:
    """Return a collective with the additional values of its record. Times and order do not change."""
    if one.num_bytes is None:
        one = replace(one, num_bytes=other.num_bytes, dtype=one.dtype or other.dtype)
    if one.members is None and other.members is not None and with_groups:
        one = replace(one, members=other.members, group_size=other.group_size, group=one.group or other.group)
    return one if one.peer is not None else replace(one, peer=other.peer)
