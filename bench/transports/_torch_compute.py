"""Run matrix products by torch, alone or during a collective.

On a GPU, the products and the collective run on two separate streams. On a host, the products and the collective run in
two separate threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from time import perf_counter
from typing import Any

from bench.core.codes import Code
from bench.core.products import TYPES
from bench.core.program import Product
from bench.core.record import Skip
from bench.core.transport import Compiled, Together

# A waiting kernel stops both streams for 50 us per call (at 2 GHz), so that all calls are enqueued in time. Enqueueing
# a call through torch and NCCL takes 10 to 30 us of CPU time. A call that is enqueued after the wait starts late.
_GATE_CYCLES_PER_CALL = 100_000


class ProductRefusal(Code):
    """The reasons why a matrix product cannot run."""

    NO_DTYPE = "product-no-dtype", "products of {dtype} are not measured: use one of {dtypes:list}"
    TF32_DTYPE = "tf32-not-float32", "TF32 applies to float32 only: omit --tf32 for {dtype}"
    TF32_HOST = "tf32-without-gpu", "TF32 exists on GPUs only: omit --tf32"


def unsupported_reason(dtype: str, tf32: bool, on_gpu: bool) -> Skip | None:
    """Return why a product of this type cannot run. Return None if the product can run."""
    if dtype not in TYPES:
        return Skip.of(ProductRefusal.NO_DTYPE, dtype=dtype, dtypes=list(TYPES))
    if tf32 and dtype != "float32":
        return Skip.of(ProductRefusal.TF32_DTYPE, dtype=dtype)
    if tf32 and not on_gpu:
        return Skip.of(ProductRefusal.TF32_HOST)
    return None


def calls(
    torch: Any, product: Product, memory: list[tuple[Any, Any]], dtype: str, tf32: bool
) -> list[Callable[[], Any]]:
    """Return a call of the product for each buffer set.

    `memory`: the send tensor and the receive tensor (uint8) of each set. Each send tensor contains the two factors of a
        product.
    """
    # "high" allows TF32. torch's default is strict float32, but another module may have changed the default.
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    # Keep partial sums of a split product in float32. If they were rounded to the result's type, verification would
    # fail.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    kind, order = getattr(torch, dtype), product.order
    bound: list[Callable[[], Any]] = []
    for send, recv in memory:
        first, second = send.view(kind).view(2, order, order).unbind(0)
        bound.append(partial(torch.mm, first, second, out=recv.view(kind).view(order, order)))
    return bound


class OnGpu:
    """Runs the collective on the current stream and products on a second stream. One event starts both streams."""

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._side = torch.cuda.Stream()

    def run(
        self,
        sync: Callable[[], None],
        collective: Compiled | None,
        num_calls: int,
        product: Compiled | None,
        num_products: int,
    ) -> Together:
        """Run the collective and the products (see Overlapping.time_together). The device's clock measures.

        All calls are enqueued before the first call starts.
        """
        ours, theirs = _taken(collective, num_calls), _taken(product, num_products)
        begin, end = self._event(), self._event()
        ends = [self._event() for _ in theirs]
        sync()
        self._cuda._sleep(_GATE_CYCLES_PER_CALL * (len(ours) + len(theirs) + 1))
        begin.record()
        self._side.wait_event(begin)
        for call in ours:
            call()
        end.record()
        with self._cuda.stream(self._side):
            for call, ended in zip(theirs, ends, strict=True):
                call()
                ended.record()
        end.synchronize()
        self._side.synchronize()
        return Together(
            begin.elapsed_time(end) * 1e-3 if ours else None,
            tuple(begin.elapsed_time(ended) * 1e-3 for ended in ends),
        )

    def _event(self) -> Any:
        return self._cuda.Event(enable_timing=True)


class OnHost:
    """Runs the collective in this thread and products in a second thread.

    Both threads release Python's lock while they compute or communicate.
    """

    def __init__(self, torch: Any) -> None:
        # torch keeps the number of threads per product separately for each calling thread.
        self._pool = ThreadPoolExecutor(1, "products", partial(torch.set_num_threads, 1))

    def run(
        self,
        sync: Callable[[], None],
        collective: Compiled | None,
        num_calls: int,
        product: Compiled | None,
        num_products: int,
    ) -> Together:
        """Run the collective and the products (see Overlapping.time_together). The host's clock measures."""
        ours, theirs = _taken(collective, num_calls), _taken(product, num_products)
        go = Event()
        multiplying = self._pool.submit(_ends, go, theirs) if theirs else None
        try:
            sync()
        finally:  # otherwise the other thread would wait forever and keep this process alive
            begin = perf_counter()
            go.set()
        for call in ours:
            call()
        end = perf_counter()
        ends = multiplying.result() if multiplying is not None else ()
        return Together(end - begin if ours else None, tuple(ended - begin for ended in ends))


def _ends(go: Event, products: list[Callable[[], Any]]) -> tuple[float, ...]:
    """Return the time at which each product ends."""
    ends = []
    go.wait()
    for call in products:
        call()
        ends.append(perf_counter())
    return tuple(ends)


def _taken(compiled: Compiled | None, num_calls: int) -> list[Callable[[], Any]]:
    """Return the next calls. Each call uses the next buffer set.

    First refill the sets that in-place calls have changed.
    """
    if compiled is None:
        return []
    num_sets = len(compiled.calls)
    order = [(compiled.next_set + k) % num_sets for k in range(num_calls)]
    if compiled.refill is not None:
        for index in order:
            compiled.refill(index)
    compiled.last_set, compiled.next_set = order[-1], (order[-1] + 1) % num_sets
    return [compiled.calls[index] for index in order]
