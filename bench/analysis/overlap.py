"""What a collective and products of matrices take from each other, from blocks of three kinds that took turns.

The factor of two neighbouring blocks does not hold what drifts slowly: the machine was the same for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from bench.analysis import launches, stats
from bench.analysis.interference import block_factors
from bench.analysis.model import case_of
from bench.core.derived import Overlapped
from bench.core.program import Product
from bench.core.record import Header, Overlap, Record, known


def of_record(job: str, header: Header, record: Record) -> list[Overlapped]:
    """The one of a record of a row that had products beside it, and right data; none of any other."""
    told, samples = record.overlap, record.samples
    if told is None or samples is None or record.verified is False:
        return []
    sides = (told.alone_s, samples.seconds, told.product_alone_s, told.product_s)
    if told.samples_per_block < 1 or not all(stats.usable(side) for side in sides):
        return []
    return [_of_one(job, header, record, told, samples.seconds)]


def overlaps(of_launches: Iterable[Overlapped]) -> tuple[Overlapped, ...]:
    """One for each row of each case, over all its launches."""
    found: dict[tuple[object, ...], list[Overlapped]] = {}
    for one in of_launches:
        found.setdefault((one.job, one.mode, one.group, one.payload_bytes), []).append(one)
    return tuple(of_row[0] if len(of_row) == 1 else _over_launches(of_row) for of_row in found.values())


def _of_one(job: str, header: Header, record: Record, told: Overlap, together: Sequence[float]) -> Overlapped:
    factors = block_factors(told.alone_s, together, told.samples_per_block)
    of_products = block_factors(told.product_alone_s, told.product_s, told.samples_per_block)
    around, around_products = stats.interval(factors), stats.interval(of_products)
    product_alone_s = median(told.product_alone_s)
    return Overlapped(
        job=case_of(job, header),
        pattern=header.pattern,
        transport=header.transport,
        mode=record.mode,
        group=record.group,
        payload_bytes=record.payload_bytes,
        num_ranks=known(record.num_ranks),
        num_nodes=known(record.num_nodes),
        dtype=told.dtype,
        order=told.order,
        alone_s=median(told.alone_s),
        together_s=median(together),
        factor=median(factors),
        factor_low=around[0] if around else None,
        factor_high=around[1] if around else None,
        product_alone_s=product_alone_s,
        product_together_s=median(told.product_s),
        product_factor=median(of_products),
        product_factor_low=around_products[0] if around_products else None,
        product_factor_high=around_products[1] if around_products else None,
        interval_over="blocks" if around or around_products else None,
        num_blocks=len(factors),
        num_launches=1,
        product_flops_per_s=Product(told.order).flops / product_alone_s,
        num_samples=len(together),
        num_not_covered=told.num_not_covered,
    )


def _over_launches(of_row: Sequence[Overlapped]) -> Overlapped:
    """The median of the launches' factors, with the interval over launches from three on."""
    factors, of_products = [one.factor for one in of_row], [one.product_factor for one in of_row]
    around, around_products = launches.interval(factors), launches.interval(of_products)
    return replace(
        of_row[0],
        alone_s=median(one.alone_s for one in of_row),
        together_s=median(one.together_s for one in of_row),
        factor=median(factors),
        factor_low=around[0] if around else None,
        factor_high=around[1] if around else None,
        product_alone_s=median(one.product_alone_s for one in of_row),
        product_together_s=median(one.product_together_s for one in of_row),
        product_factor=median(of_products),
        product_factor_low=around_products[0] if around_products else None,
        product_factor_high=around_products[1] if around_products else None,
        interval_over="launches" if around or around_products else None,
        num_blocks=sum(one.num_blocks for one in of_row),
        num_launches=len(of_row),
        product_flops_per_s=median(one.product_flops_per_s for one in of_row),
        num_samples=sum(one.num_samples for one in of_row),
        num_not_covered=sum(one.num_not_covered for one in of_row),
    )
