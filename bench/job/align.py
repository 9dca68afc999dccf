"""Align the clocks of the ranks by the ends of collectives.

Ranks of one host share a clock. The clocks of different hosts are aligned by collectives in which every rank needs data
from every other rank. Such a collective ends on all ranks at about the same time. The offset of a rank's clock is
therefore the median difference of the end times. After this correction, the remaining differences give the error bound.
Effects below the error bound are not reported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import numpy as np

from bench.core.codes import Coded
from bench.core.step_trace import RankTrace, TracedCollective
from bench.job.messages import JobCode
from bench.job.model import Alignment

# In such a collective, every rank needs data of all other ranks, so no rank ends before the last rank has arrived.
_SYNCHRONOUS = frozenset({"allreduce", "allgather", "reduce_scatter", "alltoall", "barrier"})
_RESOLUTION_S = 0.5e-6  # the error of two Unix times in 64-bit floats
_RESIDUE_QUANTILE = 0.9
_SAME_CLOCK_S = 0.01  # ranks share a clock if they name the same host and their collectives end within this time
_CLOCKS_APART_S = 0.1  # clocks that are set over the network differ by less than this
_OTHER_RUN_S = 600.0  # a larger difference suggests another run and not a wrong clock
_LEAST_FOR_DRIFT = 8
_MOST_DRIFT = 1e-3  # no computer clock drifts more
# tolerance, and the share of exchanges in an impossible order above which files are from different runs
_SAME_TIME_S, _MOST_IMPOSSIBLE = 20e-6, 0.2
_SEVERAL = 3  # a drift must exceed the residual error by this factor
Found = dict[int, TracedCollective]  # rank -> its part of one collective


def align(by_rank: Mapping[int, RankTrace], found: Iterable[Found], remarks: list[Coded]) -> Alignment:
    """Return the offsets of the ranks' clocks, from the ends of synchronous collectives.

    If all files state a Unix time, the search starts from the differences of these times.
    """
    epochs = {rank: trace.epoch_s for rank, trace in by_rank.items()}
    reference = min(by_rank)
    known = [epoch for epoch in epochs.values() if epoch is not None]
    base = dict.fromkeys(by_rank, 0.0)
    if len(known) == len(epochs):
        base = {rank: (epoch or 0.0) - known[0] for rank, epoch in epochs.items()}
    exchanges = [
        parts
        for parts in found
        if len(parts) > 1 and all(part.op in _SYNCHRONOUS and part.timed for part in parts.values())
    ]
    ends = [{rank: part.end_s + base[rank] for rank, part in parts.items()} for parts in exchanges]
    if not ends:
        host = by_rank[reference].host
        share_clock = len(known) == len(epochs) and host is not None
        others = [str(rank) for rank, trace in by_rank.items() if not (share_clock and trace.host == host)]
        if others and len(by_rank) > 1 and any(trace.collectives for trace in by_rank.values()):
            remarks.append(Coded.of(JobCode.NOT_ALIGNED, ranks=[rank for rank in others if rank != str(reference)]))
        return Alignment(reference, base, None, 0)
    offsets, unaligned = _offsets(reference, [*by_rank], ends)
    clocks: dict[int, object] = {rank: rank for rank in by_rank}
    if len(known) == len(epochs):
        offsets = _of_hosts(offsets, by_rank)
        clocks = _clocks(offsets, by_rank)
        _tell_clocks_apart(reference, offsets, remarks)
    if unaligned:
        remarks.append(Coded.of(JobCode.NOT_ALIGNED, ranks=[str(rank) for rank in unaligned]))
    residue = _residue(ends, offsets, {}, 0.0, clocks)
    drifts, origin = _drifts(ends, offsets, residue)
    if drifts:
        residue = _residue(ends, offsets, drifts, origin, clocks)
        for rank, drift in drifts.items():
            remarks.append(Coded.of(JobCode.DRIFT, rank=rank, ppm=drift * 1e6))
    total = {rank: base[rank] + offsets[rank] for rank in by_rank}
    alignment = Alignment(reference, total, residue, len(ends), drifts, origin)
    _tell_impossible(exchanges, alignment, remarks)
    return alignment


def _tell_impossible(exchanges: Sequence[Found], clocks: Alignment, remarks: list[Coded]) -> None:
    """Report collectives that ended on one rank before they began on another.

    Such collectives show that the files belong to different runs.
    """
    num = 0
    for parts in exchanges:
        first_end = min(clocks.aligned(rank, part.end_s) for rank, part in parts.items())
        last_start = max(clocks.aligned(rank, part.arrival_s) for rank, part in parts.items())
        num += first_end < last_start - _SAME_TIME_S
    if num > _MOST_IMPOSSIBLE * len(exchanges):
        remarks.append(Coded.of(JobCode.IMPOSSIBLE_ORDER, num=num, num_all=len(exchanges)))


def _tell_clocks_apart(reference: int, offsets: Mapping[int, float], remarks: list[Coded]) -> None:
    """Report ranks whose Unix times differ by more than the usual error of clocks that are set over the network."""
    apart = {rank: abs(offset) for rank, offset in offsets.items() if abs(offset) > _CLOCKS_APART_S}
    if apart:
        largest = max(apart.values())
        code = JobCode.OTHER_RUN if largest > _OTHER_RUN_S else JobCode.CLOCKS_APART
        facts = {"num": len(apart), "ranks": [str(rank) for rank in apart], "reference": reference}
        remarks.append(Coded.of(code, apart_s=round(largest, 3), **facts))


def _offsets(
    reference: int, ranks: Sequence[int], ends: Sequence[Mapping[int, float]]
) -> tuple[dict[int, float], list[int]]:
    """Return the offset of each rank, and the ranks that share no collective with the reference rank."""
    offsets = {reference: 0.0}
    by_members = [(members, [*same]) for members, same in groupby(sorted(ends, key=_members), key=_members)]
    by_members.sort(key=lambda item: -len(item[0]))
    grew = True
    while grew:
        grew = False
        for members, same in by_members:
            anchors = [rank for rank in members if rank in offsets]
            fresh = [rank for rank in members if rank not in offsets]
            if not anchors or not fresh:
                continue
            grew = True
            anchor = anchors[0]
            own = np.array([one[anchor] for one in same]) + offsets[anchor]
            for rank in fresh:
                offsets[rank] = float(np.median(own - np.array([one[rank] for one in same])))
    unaligned = [rank for rank in ranks if rank not in offsets]
    return {rank: offsets.get(rank, 0.0) for rank in ranks}, unaligned


def _of_hosts(offsets: Mapping[int, float], by_rank: Mapping[int, RankTrace]) -> dict[int, float]:
    """Return the offset of each rank's clock.

    If the files of a host state times of the same clock, all ranks of this host get the same offset.
    """
    by_host: dict[str, list[int]] = defaultdict(list)
    for rank, trace in by_rank.items():
        by_host[trace.host or f"of rank {rank}"].append(rank)
    first = by_rank[min(by_rank)].host
    found = dict(offsets)
    for host, ranks in by_host.items():
        usual = 0.0 if host == first else float(np.median([offsets[rank] for rank in ranks]))
        found.update({rank: usual for rank in ranks if abs(offsets[rank] - usual) <= _SAME_CLOCK_S})
    return found


def _clocks(offsets: Mapping[int, float], by_rank: Mapping[int, RankTrace]) -> dict[int, object]:
    """Return the clock of each rank: the clock of its host, or a clock of its own.

    A rank with a device has its own clock: its device times were converted to host time, with an error that differs
    between devices.
    """
    found: dict[int, object] = {}
    for rank, trace in by_rank.items():
        found[rank] = rank if trace.host is None or trace.on_device else (trace.host, offsets[rank])
    return found


def _members(ends: Mapping[int, float]) -> tuple[int, ...]:
    return tuple(sorted(ends))


def _residue(
    ends: Iterable[Mapping[int, float]],
    offsets: Mapping[int, float],
    drifts: Mapping[int, float],
    origin: float,
    clocks: Mapping[int, object],
) -> float:
    """Return the 90 % quantile of the spread of the aligned end times of collectives.

    The spread of a collective is the difference between its latest and its earliest end time on different clocks. If
    several ranks have the same clock, the median of their end times is used. If all ranks have the same clock, the
    result is the resolution of the files' times.
    """
    spreads = []
    for one in ends:
        by_clock: dict[object, list[float]] = defaultdict(list)
        for rank, end in one.items():
            shifted = end + offsets[rank]
            by_clock[clocks[rank]].append(shifted + drifts.get(rank, 0.0) * (shifted - origin))
        times = [float(np.median(own)) for own in by_clock.values()]
        spreads.append(max(times) - min(times))
    return float(np.quantile(spreads, _RESIDUE_QUANTILE)) if len({*clocks.values()}) > 1 else _RESOLUTION_S


def _drifts(
    ends: Sequence[Mapping[int, float]], offsets: Mapping[int, float], residue: float
) -> tuple[dict[int, float], float]:
    """Return the drift of each rank's clock, in seconds per second, and the time at which the offsets apply.

    A drift is used only if it is significant. A significant drift moves the clock by several times the scatter of the
    end times around the fitted line.
    """
    reference = min(offsets)
    found = {}
    origin = float(np.median([next(iter(one.values())) for one in ends]))
    for rank in offsets:
        times = [(one[rank] + offsets[rank], one[reference]) for one in ends if rank in one and reference in one]
        if rank == reference or len(times) < _LEAST_FOR_DRIFT:
            continue
        own, other = np.array(times).T
        line = np.polyfit(own - origin, other - own, 1)
        scatter = float(np.quantile(np.abs(other - own - np.polyval(line, own - origin)), 0.9))
        is_visible = abs(line[0]) * np.ptp(own) > _SEVERAL * max(scatter, 1e-6) and residue > 0
        if is_visible and abs(line[0]) < _MOST_DRIFT:
            found[rank] = float(line[0])
    return found, origin
