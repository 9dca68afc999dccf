"""Measure how a collective and matrix products slow each other down if they overlap.

Blocks of three types alternate within one launch: the collective alone, the matrix products alone, and both together.
All types of blocks start and are timed in the same way (transport.Overlapping). The ratio of the times in two types of
blocks therefore shows only the effect of the overlap. In a block with the collective and the matrix products, the
matrix products take longer than the collective. Only matrix products that end before the collective ends are counted.
The number of counted matrix products is the same in all blocks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.core import plugins
from bench.core.case import Case
from bench.core.dtypes import dtype_of
from bench.core.errors import MeasurementError
from bench.core.pattern import Pattern, Shape
from bench.core.program import Group, Product
from bench.core.record import OverlapSamples
from bench.core.sweep import TILE
from bench.core.transport import Buffers, Compiled, Overlapping, Reduction, Together, Transport
from bench.core.units import format_size
from bench.rank import interleaved_blocks, sampling
from bench.rank.gathered import Gathered
from bench.rank.messages import RankFailure
from bench.rank.rows import PlannedRow
from bench.rank.verify import Verifier, Wrong

_DTYPE = {"device": "bfloat16", "host": "float32"}  # element type of the products, as in training
_MOST_ORDER = {"device": 8192, "host": 1024}
_PART = 4  # products per collective of a sample, similar to a training layer
_OUTLAST = 3  # a sample's products take this many times as long as the collective alone
_MOST_PRODUCTS = 256
_PROBE_ORDER, _TRIES = 512, 3
_PROBES = 3  # number of bursts; the first one warms up
# counted products should end within this share of the collective's time, so that they are covered in most bursts
_COVERED = 0.9


@dataclass(slots=True)
class _Products:
    """The matrices of this rank, and the compiled product."""

    order: int
    compiled: Compiled
    buffers: Buffers
    verifier: Verifier


@dataclass(frozen=True, slots=True)
class _Plan:
    """The number of collective calls, of matrix products and of counted matrix products in a sample.

    The counted matrix products are the first ones of the sample.
    """

    num_calls: int
    num_products: int
    num_counted: int


@dataclass(frozen=True, slots=True)
class _Burst:
    """One rank's times in a burst.

    `calls_s`: the seconds per call.
    `products_s`: the seconds for one matrix product.
    `not_covered`: the number of samples in which the collective ended before the counted matrix products, or after all
        matrix products.
    """

    calls_s: tuple[float, ...] = ()
    products_s: tuple[float, ...] = ()
    not_covered: int = 0


class OverlapSampler:
    """Takes samples of rows in which a collective overlaps matrix products. All ranks execute the same steps."""

    def __init__(self, case: Case, transport: Transport) -> None:
        """Prepare the sampler, without allocating memory.

        The transport must be able to overlap matrix products with collectives (rows.no_overlap_reason).
        """
        assert isinstance(transport, Overlapping)
        self._overlapping: Overlapping = transport
        self._case, self._transport = case, transport
        self._channel, self._rank = transport.channel, transport.place.rank
        self._reduction = Reduction(_DTYPE[transport.clock], "sum")
        self._pattern: Pattern = plugins.load("pattern", "gpu_baseline").PATTERN
        self._products: _Products | None = None

    def take(
        self, row: PlannedRow, compiled: Compiled | None, most_batch: int, room: int, beat: Callable[[str], None]
    ) -> sampling.Taken:
        """Warm up, choose the number of rows of the matrices, and run the blocks of one row."""
        sampler = sampling.Sampler(self._case, self._transport, row, compiled)
        beat("warm-up")
        loop, warmup, call_s, _ = sampler.warm_up()
        num_calls = sampler.batch(call_s, most_batch)
        beat("choosing the products")
        call_s = self._slowest([self._burst(compiled, _Plan(num_calls, 0, 0)).calls_s for _ in range(_PROBES)])
        products = self._chosen(call_s * num_calls)
        plan, sample_s = self._plan(compiled, products, num_calls, call_s)
        per_block = interleaved_blocks.per_block(self._case, row, sample_s)
        together = Gathered(row.round, room)
        alone, products_alone, products_together = (Gathered(row.round, 0) for _ in range(3))
        not_covered, num_blocks, began, reason = [0] * len(row.round), 0, time.monotonic(), None
        with sampling.no_garbage():
            while reason is None:
                beat(f"{num_blocks} blocks of each kind")
                for kind in ("calls", "products", "both") if num_blocks % 2 == 0 else ("both", "products", "calls"):
                    bursts = self._channel.gather(self._block(kind, compiled, products, plan, per_block))
                    if bursts is None:
                        continue
                    if kind != "products":
                        calls = together if kind == "both" else alone
                        calls.add([burst.calls_s for burst in bursts])
                    if kind != "calls":
                        side = products_together if kind == "both" else products_alone
                        side.add([burst.products_s for burst in bursts])
                    for k, group in enumerate(row.round):
                        not_covered[k] += max(bursts[rank].not_covered for rank in group.ranks)
                num_blocks += 1
                pairs = [
                    *zip(alone.slowest(), together.slowest(), strict=True),
                    *zip(products_alone.slowest(), products_together.slowest(), strict=True),
                ]
                stop = interleaved_blocks.stop(
                    self._case, row, pairs, per_block, num_blocks, time.monotonic() - began, 3
                )
                reason = self._channel.broadcast(stop)
        overlaps = tuple(
            OverlapSamples(
                self._reduction.dtype,
                products.order,
                plan.num_products,
                plan.num_counted,
                per_block,
                alone.slowest()[k],
                products_alone.slowest()[k],
                products_together.slowest()[k],
                not_covered[k],
            )
            for k in range(len(row.round))
        )
        shares = together.shares() if self._rank == 0 else ()
        return sampling.Taken(warmup, shares, num_calls, loop, reason, overlaps=overlaps)

    def wrong(self) -> Wrong:
        """Check the output of this rank's last matrix product."""
        made = self._products
        return made.verifier.check(made.buffers, made.compiled.last_set, 0) if made else Wrong(0)

    def _chosen(self, collective_s: float) -> _Products:
        """Return matrices whose product takes about 1 / _PART of the time of a sample's collective."""
        most = _MOST_ORDER[self._transport.clock]
        products = self._made(_PROBE_ORDER)
        for _ in range(_TRIES):  # large matrices are multiplied at a higher rate than small ones
            ratio = collective_s / _PART / max(self._product_s(products), 1e-9)
            wanted = round(products.order * ratio ** (1 / 3) / TILE) * TILE
            before, products = products, self._made(max(TILE, min(most, wanted)))
            if before is products:
                break
        return products

    def _plan(
        self, compiled: Compiled | None, products: _Products, num_calls: int, call_s: float
    ) -> tuple[_Plan, float]:
        """Return a plan for a sample, and the duration of such a sample in seconds.

        The plan has so many matrix products that they take longer than the collective.
        """
        product_s = self._product_s(products)
        num = max(3, min(_MOST_PRODUCTS, math.ceil(_OUTLAST * num_calls * call_s / max(product_s, 1e-9))))
        plan = _Plan(num_calls, num, 1)
        counts: list[int] = []
        while True:
            mine = self._together(compiled, products, plan)
            took = self._channel.gather((mine.collective_s, mine.products_s))
            decision = None
            if took is not None:
                both = [(seconds, ends) for seconds, ends in took if seconds is not None]
                outlasted = all(ends[-1] > seconds for seconds, ends in both)
                counted = min(sum(end < _COVERED * seconds for end in ends) for seconds, ends in both)
                sample_s = max(max(seconds, ends[-1]) for seconds, ends in both)
                decision = (outlasted or plan.num_products == _MOST_PRODUCTS, max(1, counted), sample_s)
            enough, counted, sample_s = self._channel.broadcast(decision)
            counts = [*counts, counted] if enough else []
            if len(counts) == _PROBES:
                return replace(plan, num_counted=min(counts)), sample_s
            if not enough:
                plan = replace(plan, num_products=min(_MOST_PRODUCTS, 2 * plan.num_products))

    def _block(self, kind: str, compiled: Compiled | None, products: _Products, plan: _Plan, num: int) -> _Burst:
        """Run one block on this rank.

        An idle rank takes part in the synchronisation, but runs and measures nothing.
        """
        self._channel.broadcast(None)  # no rank begins before all ranks have ended the previous block
        if kind == "calls":
            plan = replace(plan, num_products=0)
        elif kind == "products":
            plan = replace(plan, num_calls=0)
        done = [self._burst(compiled, plan, products) for _ in range(num)]
        return _Burst(
            tuple(second for burst in done for second in burst.calls_s),
            tuple(second for burst in done for second in burst.products_s),
            sum(burst.not_covered for burst in done),
        )

    def _burst(self, compiled: Compiled | None, plan: _Plan, products: _Products | None = None) -> _Burst:
        took = self._together(compiled, products, plan)
        calls_s = () if took.collective_s is None else (took.collective_s / plan.num_calls,)
        if not took.products_s:
            return _Burst(calls_s)
        counted_s = took.products_s[plan.num_counted - 1]
        products_s = (counted_s / plan.num_counted,)
        if took.collective_s is None:
            return _Burst((), products_s)
        covered = counted_s <= took.collective_s <= took.products_s[-1]
        return _Burst(calls_s, products_s, 0 if covered else 1)

    def _together(self, compiled: Compiled | None, products: _Products | None, plan: _Plan) -> Together:
        idle = compiled is None
        return self._overlapping.time_together(
            compiled if plan.num_calls else None,
            plan.num_calls,
            products.compiled if products and plan.num_products and not idle else None,
            plan.num_products,
        )

    def _product_s(self, products: _Products) -> float:
        """Return the slowest rank's time for one matrix product, in seconds."""
        plan = _Plan(0, _PART, _PART)
        return self._slowest([self._burst(products.compiled, plan, products).products_s for _ in range(_PROBES)])

    def _slowest(self, bursts: Sequence[tuple[float, ...]]) -> float:
        """Return the time of the slowest rank in seconds.

        The time of each rank is its fastest burst. The first burst is ignored.
        """
        best: list[float] = self._channel.share(min((burst[0] for burst in bursts[1:] if burst), default=0.0))
        return max(best)

    def _made(self, order: int) -> _Products:
        """Return matrices with `order` rows on every rank.

        The benchmark checks the product of newly allocated matrices once. If the previous row used matrices of the same
        order, these matrices are used again.
        """
        if self._products is not None and self._products.order == order:
            return self._products
        if self._products is not None and self._products.compiled.release:
            self._products.compiled.release()
        self._products = None  # frees the old matrices before new ones are allocated
        size = order * order * dtype_of(self._reduction.dtype).num_bytes
        shape = Shape(1, size, dtype_of(self._reduction.dtype).num_bytes)
        steps = self._pattern.steps(shape, 0)
        skip = self._transport.unsupported_reason(Product(order), self._reduction, False)
        lacks = None if skip is None else skip.text
        buffers = None
        try:
            buffers = self._transport.allocate(*self._pattern.buffers(shape, 0), 1, steps) if lacks is None else None
        except MemoryError:
            lacks = f"rank {self._rank} has no memory left for three matrices of {format_size(size)}"
        reason = next(filter(None, self._channel.share(lacks)), None)
        if reason is not None or buffers is None:
            raise MeasurementError.of(RankFailure.NO_PRODUCTS, why=reason)
        group = Group("product", (self._rank,))
        verifier = Verifier(
            self._pattern, shape, group, 0, dtype_of(self._reduction.dtype), "sum", False, self._case.seed
        )
        verifier.prepare(buffers, 0, 0)
        compiled = self._transport.compile(steps, group, buffers, self._reduction, False)
        self._products = _Products(order, compiled, buffers, verifier)
        return self._products
