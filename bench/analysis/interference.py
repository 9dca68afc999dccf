"""How much slower traffic is while other ranks send, from blocks without and with them that took turns.

The factor of two neighbouring blocks does not hold what drifts slowly: the machine was the same for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from bench.analysis import launches, stats
from bench.analysis.model import case_of
from bench.core.case import from_argv
from bench.core.derived import Interference
from bench.core.record import Contention, Header, Record, known

# A block in which an aggressor was outside its calls for longer, or hardly got anything through, says too little.
_LEAST_BUSY = 0.8
_LEAST_RATE = 0.02


def block_factors(alone: Sequence[float], disturbed: Sequence[float], per_block: int) -> list[float]:
    """Median of each disturbed block / median of the block without aggressors beside it."""
    starts = range(0, min(len(alone), len(disturbed)), per_block)
    return [median(disturbed[k : k + per_block]) / median(alone[k : k + per_block]) for k in starts]


def of_record(job: str, header: Header, record: Record) -> list[Interference]:
    """The one of a record of a row that was disturbed and got right data; none of any other."""
    if record.contention is None or record.samples is None or record.verified is False:
        return []
    return [_of_one(job, header, record, record.contention, record.samples.seconds)]


def interferences(of_launches: Iterable[Interference]) -> tuple[Interference, ...]:
    """One for each row of each case, over all its launches."""
    found: dict[tuple[object, ...], list[Interference]] = {}
    for one in of_launches:
        found.setdefault((one.job, one.mode, one.group, one.payload_bytes), []).append(one)
    return tuple(of_row[0] if len(of_row) == 1 else _over_launches(of_row) for of_row in found.values())


def _of_one(
    job: str, header: Header, record: Record, contention: Contention, disturbed: Sequence[float]
) -> Interference:
    alone = contention.alone_s
    factors = block_factors(alone, disturbed, contention.samples_per_block)
    around = None if record.modelled else stats.interval(factors)
    rates = contention.rates_bytes_per_s
    poor = [rate < _LEAST_RATE * contention.rate_alone_bytes_per_s for rate in rates]
    poor = [low or busy < _LEAST_BUSY for low, busy in zip(poor, contention.busy or [1.0] * len(poor), strict=True)]
    return Interference(
        job=case_of(job, header),
        pattern=header.pattern,
        transport=header.transport,
        mode=record.mode,
        group=record.group,
        payload_bytes=record.payload_bytes,
        num_ranks=known(record.num_ranks),
        num_nodes=known(record.num_nodes),
        ranks_per_node=known(header.ranks_per_node),
        split=from_argv(header.case).split,
        aggressor=contention.aggressor,
        aggressor_bytes=contention.aggressor_bytes,
        num_aggressors=contention.num_aggressors,
        alone_s=median(alone),
        disturbed_s=median(disturbed),
        factor=median(factors),
        factor_low=around[0] if around else None,
        factor_high=around[1] if around else None,
        interval_over="blocks" if around else None,
        num_blocks=len(factors),
        num_launches=1,
        aggressor_bytes_per_s=median(rates),
        aggressor_alone_bytes_per_s=contention.rate_alone_bytes_per_s,
        num_blocks_not_covered=sum(poor),
        modelled=record.modelled,
    )


def _over_launches(of_row: Sequence[Interference]) -> Interference:
    """The median of the launches' factors, with the interval over launches from three on."""
    factors = [one.factor for one in of_row]
    around = launches.interval(factors)
    return replace(
        of_row[0],
        alone_s=median(one.alone_s for one in of_row),
        disturbed_s=median(one.disturbed_s for one in of_row),
        factor=median(factors),
        factor_low=around[0] if around else None,
        factor_high=around[1] if around else None,
        interval_over="launches" if around else None,
        num_blocks=sum(one.num_blocks for one in of_row),
        num_launches=len(of_row),
        aggressor_bytes_per_s=median(one.aggressor_bytes_per_s for one in of_row),
        aggressor_alone_bytes_per_s=median(one.aggressor_alone_bytes_per_s for one in of_row),
        num_blocks_not_covered=sum(one.num_blocks_not_covered for one in of_row),
    )
