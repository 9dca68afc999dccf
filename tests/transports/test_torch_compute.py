"""Products by torch, and bursts on two streams: real on the host, with a CUDA that only notes what it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench.core.dtypes import DTYPES
from bench.core.products import TYPES, ProductData
from bench.core.program import Product
from bench.core.transport import Compiled
from bench.transports import _torch_compute
from bench.transports._torch_compute import ProductRefusal


class Cuda:
    """torch.cuda as far as bursts use it. `told`: what each stream was given, in order; the clock ticks by events."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.stream_now = "current"
        self.clock_ms = 0.0

    def Stream(self) -> Any:  # torch's name
        cuda = self

        class Side:
            def wait_event(self, event: Any) -> None:
                cuda.told.append(("side waits", event.name))

            def synchronize(self) -> None:
                cuda.told.append(("host waits for side",))

        return Side()

    @contextmanager
    def stream(self, side: Any) -> Iterator[None]:
        self.stream_now = "side"
        yield
        self.stream_now = "current"

    def _sleep(self, cycles: int) -> None:
        assert cycles > 0
        self.told.append((self.stream_now, "gate"))

    def Event(self, enable_timing: bool) -> Any:  # torch's name
        assert enable_timing
        cuda, number = self, len([one for one in self.told if one[0] == "event"])

        class Event:
            name, at_ms = f"event{number}", -1.0

            def record(self) -> None:
                cuda.clock_ms += 1
                self.at_ms = cuda.clock_ms
                cuda.told.append((cuda.stream_now, "record", self.name))

            def synchronize(self) -> None:
                cuda.told.append(("host waits for", self.name))

            def elapsed_time(self, end: Any) -> float:
                assert self.at_ms >= 0 and end.at_ms >= 0, "an event that was never recorded"
                return float(end.at_ms - self.at_ms)

        self.told.append(("event", Event.name))
        return Event()


class Torch:
    """torch, of which only cuda is asked for."""

    def __init__(self) -> None:
        self.cuda = Cuda()


def burst(num_calls: int, num_products: int, collective: bool = True, product: bool = True) -> tuple[Any, Any]:
    """(what came back, what CUDA was told) of one burst."""
    torch = Torch()
    told = torch.cuda.told
    ours = Compiled([lambda: told.append((torch.cuda.stream_now, "allreduce"))]) if collective else None
    theirs = Compiled([lambda: told.append((torch.cuda.stream_now, "product"))]) if product else None
    beside = _torch_compute.OnGpu(torch)
    found = beside.run(lambda: told.append(("sync",)), ours, num_calls, theirs, num_products)
    return found, [one for one in told if one[0] != "event"]


def test_both_streams_are_released_by_one_event_behind_a_gate() -> None:
    found, told = burst(2, 3)
    sync, gate, begin = told.index(("sync",)), told.index(("current", "gate")), ("current", "record", "event0")
    first_call, waits = told.index(("current", "allreduce")), told.index(("side waits", "event0"))
    assert sync < gate < told.index(begin) < waits < first_call
    assert waits < told.index(("side", "product"))
    assert told.count(("current", "allreduce")) == 2 and told.count(("side", "product")) == 3
    side = [one for one in told if one[0] == "side"]
    assert [one[1] for one in side] == ["product", "record"] * 3  # an event behind each
    assert found.collective_s == pytest.approx(1e-3)  # events tick once each: begin, end, then the products
    assert found.products_s == pytest.approx((2e-3, 3e-3, 4e-3))
    assert told[-2:] == [("host waits for", "event1"), ("host waits for side",)]


def test_alone_each_runs_the_same_way_and_the_other_is_absent() -> None:
    found, told = burst(2, 0, product=False)
    assert found.products_s == () and found.collective_s is not None and ("current", "gate") in told
    found, told = burst(0, 2, collective=False)
    assert found.collective_s is None and len(found.products_s) == 2 and ("current", "gate") in told
    found, told = burst(0, 0, collective=False, product=False)  # a rank in no group keeps step
    assert (found.collective_s, found.products_s) == (None, ()) and ("sync",) in told


def test_sets_are_used_in_turn_and_refilled_before_anything_starts() -> None:
    torch = Torch()
    refilled: list[object] = []
    used: list[int] = []
    compiled = Compiled([lambda k=k: used.append(k) for k in range(3)], refill=refilled.append)  # type: ignore[misc]
    beside = _torch_compute.OnGpu(torch)
    beside.run(lambda: refilled.append("sync"), compiled, 2, None, 0)
    beside.run(lambda: refilled.append("sync"), compiled, 2, None, 0)
    assert (used, refilled) == ([0, 1, 2, 0], [0, 1, "sync", 2, 0, "sync"])
    assert (compiled.last_set, compiled.next_set) == (0, 1)


def test_unsupported_products_have_a_code() -> None:
    def code(dtype: str, tf32: bool, on_gpu: bool) -> str | None:
        skip = _torch_compute.unsupported_reason(dtype, tf32, on_gpu)
        return None if skip is None else skip.code

    assert code("bfloat16", False, True) is None
    assert code("float32", True, True) is None
    assert code("int32", False, True) == ProductRefusal.NO_DTYPE
    assert code("bfloat16", True, True) == ProductRefusal.TF32_DTYPE
    assert code("float32", True, False) == ProductRefusal.TF32_HOST


@pytest.mark.torch
@pytest.mark.parametrize("dtype", TYPES)
def test_a_product_on_the_host_is_exact(dtype: str) -> None:
    torch, order = pytest.importorskip("torch"), 128
    num_bytes = order * order * DTYPES[dtype].num_bytes
    data = ProductData(DTYPES[dtype], order, 0, 1)
    send = torch.cat([torch.from_numpy(factor.head(num_bytes)) for factor in data.factors])
    recv = torch.full((num_bytes,), 0xFF, dtype=torch.uint8)
    (call,) = _torch_compute.calls(torch, Product(order), [(send, recv)], dtype, False)
    call()
    assert bytes(recv.numpy()) == bytes(data.product.head(num_bytes))


@pytest.mark.torch
def test_the_kind_of_float32_product_is_set_each_time() -> None:
    torch = pytest.importorskip("torch")
    memory = [(torch.zeros(2 * 64 * 64 * 4, dtype=torch.uint8), torch.zeros(64 * 64 * 4, dtype=torch.uint8))]
    for tf32, word in ((True, "high"), (False, "highest")):
        _torch_compute.calls(torch, Product(64), memory, "float32", tf32)
        assert torch.get_float32_matmul_precision() == word
    assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction is False


@pytest.mark.torch
def test_on_the_host_products_run_in_another_thread_while_the_call_goes_on() -> None:
    torch = pytest.importorskip("torch")
    met = threading.Barrier(2)  # both must be inside at the same time, or it breaks
    threads: list[int] = []

    def meet() -> None:
        met.wait(20)
        threads.append(threading.get_ident())

    beside = _torch_compute.OnHost(torch)
    found = beside.run(lambda: None, Compiled([meet]), 1, Compiled([meet]), 1)
    assert len(set(threads)) == 2
    assert found.collective_s is not None and found.collective_s > 0 and found.products_s[0] > 0


@pytest.mark.torch
def test_a_peer_that_is_lost_before_the_start_leaves_no_thread_waiting() -> None:
    torch = pytest.importorskip("torch")
    ran = threading.Event()
    beside = _torch_compute.OnHost(torch)

    def lost() -> None:
        raise RuntimeError("Connection closed by peer")

    with pytest.raises(RuntimeError, match="closed by peer"):
        beside.run(lost, None, 0, Compiled([ran.set]), 1)
    assert ran.wait(20)
