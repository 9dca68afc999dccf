"""The words for what GPUs compute and copy by themselves: FLOP/s beside the peak, and who is slower than the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.core.dtypes import DTYPES
from bench.core.sweep import order_of
from bench.core.units import format_size
from bench.results import text
from bench.results.document import RankComparison, Summary
from bench.results.gpus import MATTERS, threshold

_MOST_NAMED = 8


def teraflops(flops_per_s: float | None) -> str:
    """A rate in TFLOP/s (10^12), 4 digits; '-' when unknown."""
    return text.NOTHING if flops_per_s is None else text.significant(flops_per_s / 1e12)


def share(row: Summary) -> str:
    """FLOP/s by the data sheet's dense rate, in percent; '-' when that is unknown."""
    known = row.flops_per_s is not None and row.peak_flops_per_s
    return text.percent(row.flops_per_s / row.peak_flops_per_s) if known else text.NOTHING  # type: ignore[operator]


def lines(rows: Sequence[Summary], standings: Iterable[RankComparison]) -> list[str]:
    """The rate of each product, of several ranks from the slowest to the fastest; then how alike the GPUs are."""
    return [*_products(rows), *_standings(standings)]


def _products(rows: Sequence[Summary]) -> list[str]:
    """A line for each job, mode and size."""
    alike: dict[tuple[str, str, int], list[Summary]] = {}
    for row in rows:
        if row.flops_per_s is not None:
            alike.setdefault((row.job, row.mode, row.payload_bytes), []).append(row)
    found = []
    for of_size in alike.values():
        slowest = min(of_size, key=lambda row: row.flops_per_s or 0.0)
        fastest = max(of_size, key=lambda row: row.flops_per_s or 0.0)
        ends = dict.fromkeys(teraflops(row.flops_per_s) for row in (slowest, fastest))
        shares = dict.fromkeys(share(row) for row in (slowest, fastest))
        first = of_size[0]
        order = order_of(first.payload_bytes, DTYPES[first.dtype or "float32"].num_bytes)
        of_peak = ""
        if first.peak_flops_per_s is not None:
            of_peak = (
                f", {'..'.join(shares)} % of {teraflops(first.peak_flops_per_s)} TFLOP/s ({first.peak_name}, dense"
            )
            of_peak += ", at the maker's boost clock: a reference)"
        ranks = f" of {len(of_size)} ranks" if len(of_size) > 1 else ""
        found.append(
            f"product of {first.dtype}, order {order}, {first.mode}{ranks}: {'..'.join(ends)} TFLOP/s{of_peak}"
        )
    return found


def _standings(standings: Iterable[RankComparison]) -> list[str]:
    alike: dict[tuple[str, str, int], list[RankComparison]] = {}
    for one in standings:
        alike.setdefault((one.job, one.mode, one.payload_bytes), []).append(one)
    found = []
    for of_size in alike.values():
        first, what = of_size[0], f"{of_size[0].pattern} {format_size(of_size[0].payload_bytes)}, {of_size[0].mode}"
        slow = sorted((one for one in of_size if one.slow), key=lambda one: one.rate)
        found += [f"SLOW: {_where(one)}, {what}: {_words(one)}" for one in slow[:_MOST_NAMED]]
        found += [f"and {len(slow) - _MOST_NAMED} more in {what}"] if len(slow) > _MOST_NAMED else []
        if not slow:
            worst = max(of_size, key=lambda one: one.behind)
            found.append(
                f"{what}: no rank of {first.num} is slow, the last is {text.percent(worst.behind)} % below the median "
                f"({_where(worst)}, robust z {worst.z:.1f}; slow is {text.percent(MATTERS)} % and z beyond "
                f"-{threshold(first.num):.1f})"
            )
    return found


def _where(one: RankComparison) -> str:
    gpu = "" if one.gpu is None else f"GPU {one.gpu} of "
    return f"rank {one.rank} ({gpu}host {one.host})"


def _words(one: RankComparison) -> str:
    rate = f"{teraflops(one.rate)} TFLOP/s" if one.unit == "FLOP/s" else f"{text.gigabytes(one.rate)} GB/s"
    return f"{rate}, {text.percent(one.behind)} % below the median of {one.num}, robust z {one.z:.1f}"
