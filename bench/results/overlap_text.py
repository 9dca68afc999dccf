"""The words for overlap: by how much a collective and the products beside it slow each other down."""

from __future__ import annotations

from collections.abc import Iterable

from bench.core.units import format_size
from bench.results import text
from bench.results.document import Overlapped


def lines(overlaps: Iterable[Overlapped]) -> list[str]:
    """For each case a title, then a line for each row; nothing where nothing was computed beside a collective."""
    cases: dict[str, list[str]] = {}
    for one in overlaps:
        title = (
            f"overlap: allreduce over {one.transport}, {one.num_ranks} ranks, {one.mode}, beside products of "
            f"{one.dtype} (time alone, beside, factor; order of the matrices, time of a product alone, beside, factor)"
        )
        cases.setdefault(title, []).append(f"  {_line(one)}")
    return [line for title, of_case in cases.items() for line in (title, *of_case)]


def _line(one: Overlapped) -> str:
    factor = _factor(one.factor, one.factor_low, one.factor_high)
    of_product = _factor(one.product_factor, one.product_factor_low, one.product_factor_high)
    line = (
        f"{format_size(one.payload_bytes):>6} {one.group:>8} {text.microseconds(one.alone_s):>8} "
        f"{text.microseconds(one.together_s):>8} us  {factor}  products of {one.order} "
        f"{text.microseconds(one.product_alone_s):>8} {text.microseconds(one.product_together_s):>8} us  {of_product}"
    )
    if "?" in line:
        few = f"{one.num_launches} launches" if one.num_launches > 1 else f"{one.num_blocks} blocks"
        line += f"  {few} are too few for a 95 % interval"
    if one.num_not_covered:
        line += f"  NOT COVERED in {one.num_not_covered} of {one.num_samples} samples: the factors are too low"
    return line


def _factor(factor: float, low: float | None, high: float | None) -> str:
    return f"x {factor:.3f} ?" if low is None or high is None else f"x {factor:.3f} [{low:.3f}..{high:.3f}]"
