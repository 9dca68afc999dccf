"""How much slower traffic is while other ranks send, from blocks without and with them that took turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from bench.core.case import from_argv
from bench.core.record import Contention, Header, Record, known
from bench.results import interleaved_blocks, launches, stats
from bench.results.document import Interference

# A block in which an aggressor was outside its calls for longer, or hardly got anything through, says too little.
_LEAST_BUSY = 0.8
_LEAST_RATE = 0.02


def of_record(job: str, header: Header, record: Record) -> list[Interference]:
    """The one of a record of a row that was disturbed and got right data; none of any other."""
    if record.contention is None or record.samples is None or record.verified is False:
        return []
    return [_of_one(job, header, record, record.contention, record.samples.seconds)]


def interferences(of_launches: Iterable[Interference]) -> tuple[Interference, ...]:
    """One for each row of each case, over all its launches."""
    return interleaved_blocks.over_launches(of_launches, _over_launches)


def _of_one(
    job: str, header: Header, record: Record, contention: Contention, disturbed: Sequence[float]
) -> Interference:
    alone = contention.alone_s
    factors = interleaved_blocks.block_factors(alone, disturbed, contention.samples_per_block)
    around = None if record.modelled else stats.interval(factors)
    rates = contention.rates_bytes_per_s
    poor = [rate < _LEAST_RATE * contention.rate_alone_bytes_per_s for rate in rates]
    poor = [low or busy < _LEAST_BUSY for low, busy in zip(poor, contention.busy or [1.0] * len(poor), strict=True)]
    return Interference(
        **interleaved_blocks.place_of(job, header, record),
        ranks_per_node=known(header.ranks_per_node),
        split=from_argv(header.case).split,
        aggressor=contention.aggressor,
        aggressor_bytes=contention.aggressor_bytes,
        num_aggressors=contention.num_aggressors,
        alone_s=median(alone),
        disturbed_s=median(disturbed),
        **interleaved_blocks.factor("factor", factors, around),
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
        **interleaved_blocks.factor("factor", factors, around),
        interval_over="launches" if around else None,
        num_launches=len(of_row),
        **interleaved_blocks.medians(
            of_row, "alone_s", "disturbed_s", "aggressor_bytes_per_s", "aggressor_alone_bytes_per_s"
        ),
        **interleaved_blocks.sums(of_row, "num_blocks", "num_blocks_not_covered"),
    )
