"""Match the collectives of all ranks, and check that they are the same operations.

The n-th collective of a group on one rank is the n-th on every other rank. If ranks began to record at different times,
collectives are matched by step names or by the library's sequence numbers. Matched collectives must have the same
operation and bytes. The first mismatch of a group is reported, and later collectives of the group are not compared.

The clocks of the ranks are aligned by the matched collectives (align.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.core.step_trace import RankTrace, TracedCollective
from bench.job.align import Found, align
from bench.job.messages import JobCode
from bench.job.model import MESSAGE, Alignment, MatchedCollective, TracedJob
from bench.job.records import is_records, join
from bench.logs.trace_messages import TraceCode

# in other collectives, ranks may send different numbers of bytes
_SAME_BYTES = frozenset({"allreduce", "broadcast", "reduce"})
_MESSAGES = frozenset({"send", "recv"})
_MOST_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class _Key:
    """The key of a collective's group. Ranks that state the same key belong to the same group."""

    group: str
    members: tuple[int, ...] | None

    def __str__(self) -> str:
        if self.members and not self.group:
            return ",".join(map(str, self.members))
        return self.group or "world"


def job_of(traces: Iterable[RankTrace]) -> TracedJob:
    """Return the traces as one job. Raises UsageError if there is no trace."""
    remarks: list[Coded] = []
    by_rank = {rank: _with_arrivals(trace) for rank, trace in _by_rank([*traces], remarks).items()}
    if not by_rank:
        raise UsageError("no trace of a rank was found")
    num_ranks = max(max(by_rank) + 1, *(trace.world_size or 0 for trace in by_rank.values()))
    missing = tuple(sorted(set(range(num_ranks)) - set(by_rank)))
    found = [*_matched(by_rank, remarks)]
    alignment = align(by_rank, [parts for _, parts in found], remarks)
    collectives = [_collective(key, parts, alignment) for key, parts in found]
    collectives.sort(key=lambda one: one.last_arrival_s)
    has_collectives = any(trace.collectives for trace in by_rank.values())
    if not has_collectives:
        remarks.append(Coded.of(JobCode.NO_COLLECTIVES))
    elif len(by_rank) == 1 and next(iter(by_rank.values())).world_size != 1:
        remarks.append(Coded.of(JobCode.ONE_RANK, rank=next(iter(by_rank))))
    elif missing:
        ranks = [str(rank) for rank in missing]
        remarks.append(Coded.of(JobCode.MISSING_RANKS, num=len(missing), num_ranks=num_ranks, ranks=ranks))
    by_rank, num_steps = _same_steps(by_rank, remarks)
    own = [remark for trace in by_rank.values() for remark in trace.remarks]
    if not has_collectives:  # the job has its own remark on missing collectives
        own = [remark for remark in own if remark.code != TraceCode.NO_COLLECTIVES]
    told = tuple(_said_once([*remarks, *own]))
    return TracedJob(by_rank, num_ranks, alignment, collectives, num_steps, missing, told)


def _said_once(remarks: Iterable[Coded]) -> Iterator[Coded]:
    """Yield each remark once.

    If several files have the same remark, the yielded remark says how many other files have it too.
    """
    by_code: dict[tuple[str, str], list[Coded]] = defaultdict(list)
    for remark in remarks:
        own = by_code[remark.code, "" if "source" in remark.facts else remark.text]
        if remark not in own:
            own.append(remark)
    for own in by_code.values():
        first = own[0]
        if len(own) > 1:
            suffix = Coded.of(JobCode.OTHER_FILES, num=len(own) - 1)
            facts = {**first.facts, "other_sources": [remark.facts["source"] for remark in own[1:]]}
            first = replace(first, facts=facts, text=f"{first.text}{suffix.text}")
        yield first


def _by_rank(traces: Sequence[RankTrace], remarks: list[Coded]) -> dict[int, RankTrace]:
    """Return the traces by rank. Records of collectives are joined with the trace of the same rank."""
    cpus = {trace.rank: trace.cpus for trace in traces if trace.cpus is not None}
    own = _of_one_job([_believed(trace) for trace in traces if trace.cpus is None], remarks)
    own = [replace(trace, cpus=cpus.get(trace.rank)) for trace in own]
    profiled = [trace for trace in own if not is_records(trace)]
    if not profiled:
        return _numbered(own, remarks)
    return join(_numbered(profiled, remarks), [trace for trace in own if is_records(trace)], remarks)


def _of_one_job(traces: Sequence[RankTrace], remarks: list[Coded]) -> list[RankTrace]:
    """Return the traces with the most frequent number of ranks.

    Traces with another number of ranks are from other jobs.
    """
    sizes = [trace.world_size for trace in traces if trace.world_size]
    usual = max(set(sizes), key=sizes.count) if sizes else None
    for trace in traces:
        if trace.world_size not in (None, usual):
            facts = {"source": trace.source, "world_size": trace.world_size, "num_ranks": usual}
            remarks.append(Coded.of(JobCode.OTHER_WORLD, **facts))
    return [trace for trace in traces if trace.world_size in (None, usual)]


def _numbered(traces: Sequence[RankTrace], remarks: list[Coded]) -> dict[int, RankTrace]:
    """Return the traces by rank. If a file states no rank, the order of the files gives the rank."""
    found: dict[int, RankTrace] = {}
    for trace in traces:
        if trace.rank in found:
            other = found[trace.rank].source
            remarks.append(Coded.of(JobCode.SAME_RANK, source=trace.source, other=other, rank=trace.rank))
        elif trace.rank is not None:
            found[trace.rank] = trace
    for trace in traces:
        if trace.rank is None:
            rank = next(number for number in range(len(traces) + 1) if number not in found)
            found[rank] = replace(trace, rank=rank)
            if len(traces) > 1:
                remarks.append(Coded.of(JobCode.RANK_UNKNOWN, source=trace.source, rank=rank))
    return dict(sorted(found.items()))


def _believed(trace: RankTrace) -> RankTrace:
    """Return the trace without its rank or number of ranks, if these values are impossible."""
    size = trace.world_size if trace.world_size and 0 < trace.world_size <= _MOST_RANKS else None
    rank = trace.rank if trace.rank is not None and 0 <= trace.rank < (size or _MOST_RANKS) else None
    return replace(trace, rank=rank, world_size=size)


def _with_arrivals(trace: RankTrace) -> RankTrace:
    """Return the trace with the times at which the rank was ready for its collectives.

    A rank runs its collectives one after the other in a stream. If the previous collective in this stream still runs,
    the kernel of the next collective starts late. The rank nevertheless counts as ready from the end of its own earlier
    work.
    """
    if not trace.on_device:
        return trace
    known = ~np.isnan(trace.compute_launch_s)
    order = np.argsort(trace.compute_launch_s[known], kind="stable")
    launches = trace.compute_launch_s[known][order]
    ends = np.maximum.accumulate(trace.compute[known][order][:, 1])
    lane_ends: dict[str, float] = {}
    found = {}
    for place, one in sorted(enumerate(trace.collectives), key=lambda item: item[1].start_s):
        before = lane_ends.get(one.lane, -inf)
        lane_ends[one.lane] = max(one.end_s, before)
        if one.launch_s is not None:
            num_done = int(np.searchsorted(launches, one.launch_s))
            ready = max(one.launch_s, float(ends[num_done - 1])) if num_done else one.launch_s
            if ready < before:
                one = replace(one, ready_s=min(ready, one.start_s))
        found[place] = one
    return replace(trace, collectives=tuple(found[place] for place in range(len(found))))


def _matched(by_rank: Mapping[int, RankTrace], remarks: list[Coded]) -> Iterator[tuple[_Key, Found]]:
    """Yield each collective with the records of all ranks that took part and have a trace."""
    groups: dict[_Key, dict[int, list[TracedCollective]]] = defaultdict(dict)
    for rank, trace in by_rank.items():
        for collective in sorted(trace.collectives, key=lambda one: (one.place, one.start_s)):
            if collective.op in _MESSAGES and collective.peer is not None:
                continue
            key = _Key(collective.group, collective.members)
            groups[key].setdefault(rank, []).append(collective)
    for key, parts in groups.items():
        yield from ((key, found) for found in _of_group(key, parts, by_rank, remarks))
    yield from _messages(by_rank)


def _of_group(
    key: _Key, parts: Mapping[int, list[TracedCollective]], by_rank: Mapping[int, RankTrace], remarks: list[Coded]
) -> Iterator[Found]:
    """Yield the collectives of one group. The collectives are matched by their order on each rank."""
    if _is_numbered(parts):
        yield from _by_sequence(key, parts, remarks)
        return
    in_steps = {rank: _by_step(own, by_rank[rank]) for rank, own in parts.items()}
    counts = {rank: {name: len(found) for name, found in steps.items()} for rank, steps in in_steps.items()}
    first = next(iter(parts))
    if all(len(own) == len(parts[first]) and counts[rank] == counts[first] for rank, own in parts.items()):
        yield from _checked(key, parts, remarks)
        return
    common = [name for name in by_rank[first].step_names if all(name in by_rank[rank].step_names for rank in parts)]
    whole = [name for name in common if len({counts[rank].get(name, 0) for rank in parts}) == 1]
    if not any(name in counts[first] for name in whole):
        (rank, own), (other, theirs) = _two_different(parts)
        facts = {"rank": rank, "num": len(own), "other": other, "other_num": len(theirs)}
        remarks.append(Coded.of(JobCode.NO_MATCH, group=str(key), **facts))
        return
    for rank in parts:
        lost = sum(max(counts[other].get(name, 0) for other in parts) - counts[rank].get(name, 0) for name in common)
        if lost:
            remarks.append(Coded.of(JobCode.LOST, group=str(key), rank=rank, num=lost))
    for name in whole:
        yield from _checked(key, {rank: steps.get(name, []) for rank, steps in in_steps.items()}, remarks)


def _is_numbered(parts: Mapping[int, Sequence[TracedCollective]]) -> bool:
    """Check whether every collective has its own sequence number. Coalesced collectives share a number."""
    for own in parts.values():
        numbers = {one.seq for one in own}
        if None in numbers or len(numbers) < len(own):
            return False
    return True


def _two_different(
    parts: Mapping[int, list[TracedCollective]],
) -> tuple[tuple[int, list[TracedCollective]], tuple[int, list[TracedCollective]]]:
    """Return (rank, collectives) for the rank with the most collectives and for the rank with the fewest."""
    ordered = sorted(parts.items(), key=lambda item: len(item[1]))
    return ordered[-1], ordered[0]


def _by_sequence(key: _Key, parts: Mapping[int, list[TracedCollective]], remarks: list[Coded]) -> Iterator[Found]:
    """Yield the collectives matched by the library's own sequence numbers, and report records that a rank lost."""
    by_seq: dict[int, Found] = defaultdict(dict)
    for rank, own in parts.items():
        for one in own:
            by_seq[one.seq or 0].setdefault(rank, one)
        numbers = [one.seq for one in own if one.seq is not None]
        lost = max(numbers) - min(numbers) + 1 - len(set(numbers))
        if lost:
            remarks.append(Coded.of(JobCode.LOST, group=str(key), rank=rank, num=lost))
    for seq in sorted(by_seq):
        if len(by_seq[seq]) == len(parts):
            ordered = {rank: [one] for rank, one in by_seq[seq].items()}
            found = [*_checked(key, ordered, remarks)]
            if not found:
                return
            yield from found


def _checked(key: _Key, parts: Mapping[int, list[TracedCollective]], remarks: list[Coded]) -> Iterator[Found]:
    """Match the n-th collectives of all ranks, and yield them up to the first difference in operation or bytes."""
    first = next(iter(parts))
    for place, own in enumerate(parts[first]):
        for rank, others in parts.items():
            other = others[place]
            if not _is_same(own, other):
                facts = {"rank": first, "own": _words(own), "other": rank, "theirs": _words(other)}
                remarks.append(Coded.of(JobCode.MISMATCH, group=str(key), place=own.place, **facts))
                return
        yield {rank: others[place] for rank, others in parts.items()}


def _is_same(one: TracedCollective, other: TracedCollective) -> bool:
    """Check whether the records of two ranks belong to the same operation."""
    if one.op != other.op:
        return False
    if one.op not in _SAME_BYTES or one.num_bytes is None or other.num_bytes is None:
        return True
    return one.num_bytes == other.num_bytes


def _words(one: TracedCollective) -> str:
    return one.op if one.num_bytes is None else f"{one.op} of {one.num_bytes} bytes"


def _by_step(own: Sequence[TracedCollective], trace: RankTrace) -> dict[str, list[TracedCollective]]:
    """Return the collectives by the name of the step in which the rank called them."""
    starts = np.array([start for start, _ in trace.steps])
    found: dict[str, list[TracedCollective]] = defaultdict(list)
    for one in own:
        called = next(time for time in (one.launch_s, one.called_s, one.start_s) if time is not None)
        place = int(np.searchsorted(starts, called, side="right")) - 1
        if 0 <= place < len(trace.step_names) and called < trace.steps[place][1]:
            found[trace.step_names[place]].append(one)
    return found


def _messages(by_rank: Mapping[int, RankTrace]) -> Iterator[tuple[_Key, Found]]:
    """Yield each message that both the sender and the receiver recorded.

    The sender's n-th message to a rank is the n-th message that this rank receives from the sender.
    """
    sent: dict[tuple[int, int], list[TracedCollective]] = defaultdict(list)
    received: dict[tuple[int, int], list[TracedCollective]] = defaultdict(list)
    for rank, trace in by_rank.items():
        for one in sorted(trace.collectives, key=lambda one: one.start_s):
            if one.peer is None or one.op not in _MESSAGES:
                continue
            if one.op == "send":
                sent[rank, one.peer].append(one)
            else:
                received[one.peer, rank].append(one)
    for (sender, receiver), messages in sent.items():
        ends = received[sender, receiver]
        if len(ends) != len(messages):
            continue
        key = _Key(f"{sender}->{receiver}", (sender, receiver))
        for mine, theirs in zip(messages, ends, strict=True):
            yield key, {sender: mine, receiver: theirs}


def _collective(key: _Key, parts: Found, alignment: Alignment) -> MatchedCollective:
    """Return a collective with the times of all ranks on the reference's clock."""
    one = next(iter(parts.values()))
    size = one.group_size or (len(key.members) if key.members else None)
    sizes = [part.num_bytes for part in parts.values() if part.num_bytes is not None]
    return MatchedCollective(
        group=str(key),
        place=one.place,
        op=MESSAGE if one.op in _MESSAGES and one.peer is not None else one.op,
        num_bytes=max(sizes) if sizes else None,
        dtype=one.dtype,
        group_size=size,
        arrivals_s={rank: alignment.aligned(rank, part.arrival_s) for rank, part in parts.items()},
        starts_s={rank: alignment.aligned(rank, part.start_s) for rank, part in parts.items()},
        ends_s={rank: alignment.aligned(rank, part.end_s) for rank, part in parts.items()},
        complete=size is not None and len(parts) >= size,
        timed=all(part.timed for part in parts.values()),
        parts=parts,
    )


def _same_steps(by_rank: dict[int, RankTrace], remarks: list[Coded]) -> tuple[dict[int, RankTrace], int]:
    """Return the traces with only the steps that all ranks have. The second result is the number of these steps."""
    if not any(trace.steps for trace in by_rank.values()):
        return _one_step(by_rank, remarks)
    names = {rank: trace.step_names for rank, trace in by_rank.items()}
    first = names[min(names)]
    if all(own == first for own in names.values()):
        return by_rank, len(first)
    common = [name for name in first if all(name in own for own in names.values())]
    other = next(own for own in names.values() if own != first)
    remarks.append(Coded.of(JobCode.OTHER_STEPS, own=_range(first), theirs=_range(other)))
    kept = {}
    for rank, trace in by_rank.items():
        places = [trace.step_names.index(name) for name in common]
        steps = tuple(trace.steps[place] for place in places)
        kept[rank] = replace(trace, steps=steps, step_names=tuple(common))
    return kept, len(common)


def _one_step(by_rank: dict[int, RankTrace], remarks: list[Coded]) -> tuple[dict[int, RankTrace], int]:
    """Return the traces with a single step, which contains all recorded events."""
    whole = {rank: _extent(trace) for rank, trace in by_rank.items()}
    if None in whole.values():
        return by_rank, 0
    longest = max(end - start for start, end in (span for span in whole.values() if span))
    remarks.append(Coded.of(JobCode.NO_STEPS, seconds=longest))
    steps = {rank: (span,) for rank, span in whole.items() if span}
    return {rank: replace(by_rank[rank], steps=own, step_names=("all",)) for rank, own in steps.items()}, 1


def _extent(trace: RankTrace) -> tuple[float, float] | None:
    """Return the time from the first to the last event of a trace; None if the trace is empty."""
    timed = [one for one in trace.collectives if one.timed]
    starts = [one.start_s if one.called_s is None else one.called_s for one in timed]
    ends = [one.end_s for one in timed]
    for union in (trace.compute, *trace.phases.values()):
        if len(union):
            starts.append(float(union[:, 0].min()))
            ends.append(float(union[:, 1].max()))
    starts += [copy.start_s for copy in trace.copies]
    ends += [copy.end_s for copy in trace.copies]
    return (min(starts), max(ends)) if starts and max(ends) > min(starts) else None


def _range(names: Sequence[str]) -> str:
    return f"{names[0]} to {names[-1]}" if names else "none"
