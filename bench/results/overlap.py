"""What a collective and products of matrices take from each other, from blocks of three kinds that took turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from bench.core.program import Product
from bench.core.record import Header, OverlapSamples, Record
from bench.results import interleaved_blocks, launches, stats
from bench.results.document import Overlapped


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
    return interleaved_blocks.over_launches(of_launches, _over_launches)


def _of_one(job: str, header: Header, record: Record, told: OverlapSamples, together: Sequence[float]) -> Overlapped:
    factors = interleaved_blocks.block_factors(told.alone_s, together, told.samples_per_block)
    of_products = interleaved_blocks.block_factors(told.product_alone_s, told.product_s, told.samples_per_block)
    around, around_products = stats.interval(factors), stats.interval(of_products)
    product_alone_s = median(told.product_alone_s)
    return Overlapped(
        **interleaved_blocks.place_of(job, header, record),
        dtype=told.dtype,
        order=told.order,
        alone_s=median(told.alone_s),
        together_s=median(together),
        **interleaved_blocks.factor("factor", factors, around),
        product_alone_s=product_alone_s,
        product_together_s=median(told.product_s),
        **interleaved_blocks.factor("product_factor", of_products, around_products),
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
        **interleaved_blocks.factor("factor", factors, around),
        **interleaved_blocks.factor("product_factor", of_products, around_products),
        interval_over="launches" if around or around_products else None,
        num_launches=len(of_row),
        **interleaved_blocks.medians(
            of_row, "alone_s", "together_s", "product_alone_s", "product_together_s", "product_flops_per_s"
        ),
        **interleaved_blocks.sums(of_row, "num_blocks", "num_samples", "num_not_covered"),
    )
