"""Find slow GPUs, by comparison with other GPUs that do the same work at the same time.

Rows are compared if they have the same job, mode and size. Each row belongs to a group of a single rank and has a rate.
`z` is the distance of a GPU's rate from the median, in robust standard deviations. A robust standard deviation is
1.4826 x the median absolute deviation, but at least 0.5 % of the median. A few slow GPUs hardly change this standard
deviation. A GPU is slow if its rate is below the median by more than the share MATTERS and also by more than
`threshold` robust standard deviations. If all compared GPUs are equal, a comparison calls any of them slow with a
probability of at most 1 in 1000.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist, median

from bench.core.case_argv import from_argv
from bench.core.errors import UsageError
from bench.core.record import Flag, Header
from bench.core.topology import rounds
from bench.core.world import World
from bench.results.document import RankComparison, Summary

LEAST = 3  # of two GPUs that differ, either may be the slow one
MATTERS = 0.03  # share of the median rate
_FLOOR = 0.005
_CHANCE = 1e-3


def standings(headers: Mapping[str, Header], rows: Iterable[Summary]) -> tuple[RankComparison, ...]:
    """Compare each GPU with the other GPUs, for each job, mode and size.

    A row is compared only if at least LEAST GPUs have correct data. Ranks that share a GPU are left out.
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
        latest = {row.group: row for row in of_size if row.group in ranks}  # keeps the last of repeated rows
        if len(latest) >= LEAST:
            found += _compared(headers[job], list(latest.values()), ranks)
    return tuple(found)


def threshold(num: int) -> float:
    """Return how far below the median the slowest of `num` equal GPUs may be, in robust standard deviations.

    The slowest GPU exceeds this limit by chance with the probability _CHANCE. With few GPUs, the measured spread is
    uncertain, so the limit is multiplied by 1 + 4 / num. For 8 GPUs, the factor 1 + 4 / num is 1.5.
    """
    return NormalDist().inv_cdf(1 - _CHANCE / num) * (1 + 4 / num)


def _compared(header: Header, rows: Sequence[Summary], ranks: Mapping[str, int]) -> list[RankComparison]:
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
    """For each group that consists of a single rank, map its name to this rank."""
    if not header.num_nodes or not header.ranks_per_node:
        return {}
    try:
        world = World(header.num_nodes, header.ranks_per_node)
        every = [group for round_ in rounds(world, header.topology, from_argv(header.case).order) for group in round_]
    except UsageError:  # a newer version or an editor wrote the header
        return {}
    return {group.name: group.ranks[0] for group in every if len(group.ranks) == 1}
