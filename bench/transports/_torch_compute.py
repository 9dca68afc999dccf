"""Products of matrices by torch, and collectives that run beside them: on a GPU on two streams, on a host in two
threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from time import perf_counter
from typing import Any

from bench.core.products import TYPES
from bench.core.program import Product
from bench.core.transport import Compiled, Together

# A kernel that only waits holds both streams until all is enqueued: 50 us a call at 2 GHz. A call of torch and NCCL
# takes a CPU 10 to 30 us, and what is not enqueued when the wait is over begins late.
_GATE_CYCLES_PER_CALL = 100_000


def why_not(dtype: str, tf32: bool, on_gpu: bool) -> str | None:
    """Why a product of this type can not be made; None when it can. TF32 is a way to multiply float32, on GPUs."""
    if dtype not in TYPES:
        return f"products of {dtype} are not measured: give one of {', '.join(TYPES)}"
    if tf32 and dtype != "float32":
        return f"TF32 is how a GPU multiplies float32: leave --tf32 out for {dtype}"
    return "TF32 is of GPUs: leave --tf32 out here" if tf32 and not on_gpu else None


def calls(
    torch: Any, product: Product, memory: list[tuple[Any, Any]], dtype: str, tf32: bool
) -> list[Callable[[], Any]]:
    """The product on each buffer set. `memory`: (send, receive) uint8 tensors of each; the factors are in the first."""
    # "high" allows TF32; strict is what torch starts with, but someone may have changed it.
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    # Partial sums of a split product stay in float32: what is checked is exact there, and rounded in 8 bits it is not.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    kind, order = getattr(torch, dtype), product.order
    bound: list[Callable[[], Any]] = []
    for send, recv in memory:
        first, second = send.view(kind).view(2, order, order).unbind(0)
        bound.append(partial(torch.mm, first, second, out=recv.view(kind).view(order, order)))
    return bound


class OnGpu:
    """The collective on the current stream, products on another; both are released by one event."""

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
        """See Overlapping.time_together; on the device's clock. Calls are all enqueued before the first may begin."""
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
    """The collective in this thread, products in another; both let go of Python's lock while they work."""

    def __init__(self, torch: Any) -> None:
        # How many threads a product may take is a matter of each thread that asks for one.
        self._pool = ThreadPoolExecutor(1, "products", partial(torch.set_num_threads, 1))

    def run(
        self,
        sync: Callable[[], None],
        collective: Compiled | None,
        num_calls: int,
        product: Compiled | None,
        num_products: int,
    ) -> Together:
        """See Overlapping.time_together; on the host's clock."""
        ours, theirs = _taken(collective, num_calls), _taken(product, num_products)
        go = Event()
        multiplying = self._pool.submit(_ends, go, theirs) if theirs else None
        try:
            sync()
        finally:  # a thread that waited for ever would keep this process from ending
            begin = perf_counter()
            go.set()
        for call in ours:
            call()
        end = perf_counter()
        ends = multiplying.result() if multiplying is not None else ()
        return Together(end - begin if ours else None, tuple(ended - begin for ended in ends))


def _ends(go: Event, products: list[Callable[[], Any]]) -> tuple[float, ...]:
    """When each product had ended."""
    ends = []
    go.wait()
    for call in products:
        call()
        ends.append(perf_counter())
    return tuple(ends)


def _taken(compiled: Compiled | None, num_calls: int) -> list[Callable[[], Any]]:
    """The next calls, each on the next buffer set, which are refilled where an in-place call had changed them."""
    if compiled is None:
        return []
    num_sets = len(compiled.calls)
    order = [(compiled.next_set + k) % num_sets for k in range(num_calls)]
    if compiled.refill is not None:
        for index in order:
            compiled.refill(index)
    compiled.last_set, compiled.next_set = order[-1], (order[-1] + 1) % num_sets
    return [compiled.calls[index] for index in order]
