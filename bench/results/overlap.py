"""Compute how much a collective and products of matrices slow each other down.

Three types of sample blocks alternate: the collective alone, the products alone, and both together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from bench.core.program import Product
from bench.core.record import Header, OverlapSamples, Record
from bench.results import paired_ratio
from bench.results.compared_rows import Overlapped
from bench.results.paired_ratio import PairedRatio


def of_record(job: str, header: Header, record: Record) -> list[Overlapped]:
    """Return the overlap of a row that has matrix products, correct data and valid times.

    Return an empty list for any other row.
    """
    overlap, samples = record.overlap, record.samples
    if overlap is None or samples is None or record.verified is False:
        return []
    ratio = paired_ratio.of_blocks(overlap.alone_s, samples.seconds, overlap.samples_per_block)
    of_products = paired_ratio.of_blocks(overlap.product_alone_s, overlap.product_s, overlap.samples_per_block)
    if ratio is None or of_products is None:
        return []
    return [_of_one(job, header, record, overlap, samples.seconds, ratio, of_products)]


def overlaps(of_launches: Iterable[Overlapped]) -> tuple[Overlapped, ...]:
    """Return one result for each row of each case, over all launches of the row."""
    return paired_ratio.merge_launches(of_launches, _merged)


def _of_one(
    job: str,
    header: Header,
    record: Record,
    overlap: OverlapSamples,
    together: Sequence[float],
    ratio: PairedRatio,
    of_products: PairedRatio,
) -> Overlapped:
    product_alone_s = median(overlap.product_alone_s)
    return Overlapped(
        **paired_ratio.row_fields(job, header, record),
        dtype=overlap.dtype,
        order=overlap.order,
        alone_s=median(overlap.alone_s),
        together_s=median(together),
        **ratio.named("factor"),
        product_alone_s=product_alone_s,
        product_together_s=median(overlap.product_s),
        **of_products.named("product_factor"),
        interval_over=ratio.over or of_products.over,
        num_blocks=ratio.num_pairs,
        num_launches=1,
        product_flops_per_s=Product(overlap.order).flops / product_alone_s,
        num_samples=len(together),
        num_not_covered=overlap.num_not_covered,
    )


def _merged(of_row: Sequence[Overlapped]) -> Overlapped:
    """Merge the results of a row in several launches into one result."""
    ratio = paired_ratio.over_launches(row.factor for row in of_row)
    of_products = paired_ratio.over_launches(row.product_factor for row in of_row)
    times = ("alone_s", "together_s", "product_alone_s", "product_together_s", "product_flops_per_s")
    return replace(
        of_row[0],
        **ratio.named("factor"),
        **of_products.named("product_factor"),
        interval_over=ratio.over or of_products.over,
        num_launches=len(of_row),
        **paired_ratio.medians(of_row, *times),
        **paired_ratio.sums(of_row, "num_blocks", "num_samples", "num_not_covered"),
    )
