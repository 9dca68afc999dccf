"""Compute how much slower a row becomes while other ranks (aggressors) send.

Each block of samples with aggressors is compared with a neighbouring block without aggressors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from bench.core.case_argv import from_argv
from bench.core.record import Contention, Header, Record, known
from bench.results import paired_ratio
from bench.results.compared_rows import Interference
from bench.results.paired_ratio import PairedRatio

# A block does not count as disturbed in two cases: the aggressors are inside their calls for less than _LEAST_BUSY of
# the block, or their rate is below _LEAST_RATE of their rate alone.
_LEAST_BUSY = 0.8
_LEAST_RATE = 0.02


def of_record(job: str, header: Header, record: Record) -> list[Interference]:
    """Return the interference of a row that has aggressors and valid results.

    Return an empty list for any other row.
    """
    if record.contention is None or record.samples is None or record.verified is False:
        return []
    contention, disturbed = record.contention, record.samples.seconds
    ratio = paired_ratio.of_blocks(contention.alone_s, disturbed, contention.samples_per_block)
    return [] if ratio is None else [_of_one(job, header, record, contention, disturbed, ratio)]


def interferences(of_launches: Iterable[Interference]) -> tuple[Interference, ...]:
    """Return one result for each row of each case, over all launches of the row."""
    return paired_ratio.merge_launches(of_launches, _merged)


def _of_one(
    job: str,
    header: Header,
    record: Record,
    contention: Contention,
    disturbed: Sequence[float],
    ratio: PairedRatio,
) -> Interference:
    if record.modelled:
        ratio = ratio.without_interval()
    return Interference(
        **paired_ratio.row_fields(job, header, record),
        ranks_per_node=known(header.ranks_per_node),
        split=from_argv(header.case).split,
        aggressor=contention.aggressor,
        aggressor_bytes=contention.aggressor_bytes,
        num_aggressors=contention.num_aggressors,
        alone_s=median(contention.alone_s),
        disturbed_s=median(disturbed),
        **ratio.named("factor"),
        interval_over=ratio.over,
        num_blocks=ratio.num_pairs,
        num_launches=1,
        aggressor_bytes_per_s=median(contention.rates_bytes_per_s),
        aggressor_alone_bytes_per_s=contention.rate_alone_bytes_per_s,
        num_blocks_not_covered=_num_not_covered(contention),
        modelled=record.modelled,
    )


def _num_not_covered(contention: Contention) -> int:
    """Return the number of blocks in which the aggressors sent much less than when they run alone."""
    rates = contention.rates_bytes_per_s
    busy = contention.busy or [1.0] * len(rates)
    least = _LEAST_RATE * contention.rate_alone_bytes_per_s
    return sum(rate < least or share < _LEAST_BUSY for rate, share in zip(rates, busy, strict=True))


def _merged(of_row: Sequence[Interference]) -> Interference:
    """Merge the results of a row in several launches into one result."""
    ratio = paired_ratio.over_launches(row.factor for row in of_row)
    times = ("alone_s", "disturbed_s", "aggressor_bytes_per_s", "aggressor_alone_bytes_per_s")
    return replace(
        of_row[0],
        **ratio.named("factor"),
        interval_over=ratio.over,
        num_launches=len(of_row),
        **paired_ratio.medians(of_row, *times),
        **paired_ratio.sums(of_row, "num_blocks", "num_blocks_not_covered"),
    )
