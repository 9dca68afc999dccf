"""Which GPU is slower than the others that do the same at the same time?

Rows of one job, mode and size whose groups are single ranks: a rate each. How far a GPU is from the median of all is
judged in robust standard deviations (1.4826 x the median absolute deviation, which half of the GPUs can not move; 0.5 %
at least: no two GPUs are more alike). One is slow that is further off than chance makes one of so many in a thousand
runs, and that lacks a part that matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist, median

from bench.core.case import from_argv
from bench.core.errors import UsageError
from bench.core.record import Flag, Header
from bench.core.topology import rounds
from bench.core.world import World
from bench.results.document import RankComparison, Summary

LEAST = 3  # of two that differ nobody knows which is wrong
MATTERS = 0.03  # of the median rate
_FLOOR = 0.005
_CHANCE = 1e-3


def standings(headers: Mapping[str, Header], rows: Iterable[Summary]) -> tuple[RankComparison, ...]:
    """Each GPU beside the others, for each job, mode and size that at least LEAST of them have measured rightly.

    Ranks that share one are no GPUs.
    """
    alike: dict[tuple[str, str, int], list[Summary]] = {}
    for row in rows:
        single = row.num_ranks == 1 and (headers[row.job].num_ranks or 0) >= LEAST
        sound = not row.modelled and row.verified is not False and Flag.SHARED_GPU not in row.flags
        if single and sound and _rate(row) is not None:
            alike.setdefault((row.job, row.mode, row.payload_bytes), []).append(row)
    found: list[RankComparison] = []
    for (job, _, _), of_size in alike.items():
        ranks = _ranks_of_groups(headers[job])
        latest = {row.group: row for row in of_size if row.group in ranks}  # of a row that was taken again, the last
        if len(latest) >= LEAST:
            found += _beside(headers[job], list(latest.values()), ranks)
    return tuple(found)


def threshold(num: int) -> float:
    """How many robust standard deviations the slowest of `num` alike is off in one of 1/_CHANCE runs.

    The spread of a few is itself not known well: for 8 of them half as much again.
    """
    return NormalDist().inv_cdf(1 - _CHANCE / num) * (1 + 4 / num)


def _beside(header: Header, rows: Sequence[Summary], ranks: Mapping[str, int]) -> list[RankComparison]:
    rates = [_rate(row) or 0.0 for row in rows]
    middle = median(rates)
    spread = max(_FLOOR * middle, 1.4826 * median(abs(rate - middle) for rate in rates))
    found = []
    for row, rate in zip(rows, rates, strict=True):
        rank = ranks[row.group]
        behind, z = 1 - rate / middle, (rate - middle) / spread
        place = header.ranks[rank] if rank < len(header.ranks) else {}
        found.append(
            RankComparison(
                job=row.job,
                pattern=row.pattern,
                mode=row.mode,
                dtype=row.dtype,
                payload_bytes=row.payload_bytes,
                group=row.group,
                rank=rank,
                host=str(place.get("host", "unknown")),
                gpu=place.get("local_rank") if header.clock == "device" else None,
                unit="B/s" if row.flops_per_s is None else "FLOP/s",
                rate=rate,
                median_rate=middle,
                num=len(rates),
                behind=behind,
                z=z,
                slow=behind > MATTERS and -z > threshold(len(rates)),
            )
        )
    return found


def _rate(row: Summary) -> float | None:
    return row.busbw_bytes_per_s if row.flops_per_s is None else row.flops_per_s


def _ranks_of_groups(header: Header) -> dict[str, int]:
    """The rank of each group of one, by the group's name."""
    if not header.num_nodes or not header.ranks_per_node:
        return {}
    try:
        world = World(header.num_nodes, header.ranks_per_node)
        every = [group for round_ in rounds(world, header.topology, from_argv(header.case).order) for group in round_]
    except UsageError:  # of a newer version, or edited
        return {}
    return {group.name: group.ranks[0] for group in every if len(group.ranks) == 1}
