"""The verifier: correct data pass, and every kind of wrong data is caught, for every pattern."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.core import plugins
from bench.core.dtypes import DTYPES, REDUCE_OPS, undefined_reduction
from bench.core.pattern import Pattern, Shape
from bench.core.payload import CopyData, poison
from bench.core.program import Group
from bench.core.record import WrongCode, WrongData
from bench.core.transport import GUARD
from bench.rank.records import _first
from bench.rank.verify import Verifier
from bench.transports._device import DeviceBuffers, GuardedBlock, TorchArrays
from bench.transports._host import HostBuffers

_SPEC = importlib.util.spec_from_file_location("inprocess", Path(__file__).parent.parent / "inprocess.py")
assert _SPEC is not None and _SPEC.loader is not None
inprocess = importlib.util.module_from_spec(_SPEC)
sys.modules["inprocess"] = inprocess
_SPEC.loader.exec_module(inprocess)


def torch_buffers(send_bytes: int, recv_bytes: int, num_sets: int) -> DeviceBuffers:
    """Buffers like NCCL's, in host memory."""
    import torch

    arrays = TorchArrays(torch, "cpu")
    return DeviceBuffers(GuardedBlock(arrays, send_bytes, num_sets), GuardedBlock(arrays, recv_bytes, num_sets))


ALLOCATE: dict[str, Callable[[int, int, int], Any]] = {"host": HostBuffers, "torch": torch_buffers}
MOVING = [
    name for name in plugins.names("pattern") if name not in ("barrier", "checkpoint")
]  # these move no bytes between buffers
Worlds = Callable[..., Any]


@pytest.fixture(params=["host", pytest.param("torch", marks=pytest.mark.torch)])
def a_world(request: pytest.FixtureRequest, missing: Callable[[str, str], Any]) -> Worlds:
    """`a_world(pattern, num_ranks)`: all ranks in one process, with buffers of each kind in turn."""
    if request.param == "torch" and importlib.util.find_spec("torch") is None:
        missing("torch", "torch is not installed")

    def make(name: str, num_ranks: int, requested: int = 4096, **kwargs: Any) -> Any:
        pattern: Pattern = plugins.load("pattern", name).PATTERN
        size = DTYPES[kwargs.get("dtype", "float32")].num_bytes
        blank = Shape(num_ranks, 0, size)
        if (refusal := pattern.needs(blank)) is not None:
            pytest.skip(refusal.text)
        shape = Shape(num_ranks, pattern.payload(requested, blank), size)
        return inprocess.InProcess(pattern, shape, allocate=ALLOCATE[request.param], **kwargs)

    return make


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", MOVING)
def test_right_data_pass(a_world: Worlds, name: str, num_ranks: int) -> None:
    if name == "pairs":
        num_ranks = 2
    world = a_world(name, num_ranks)
    world.run()
    assert [wrong.first for wrong in world.check()] == [None] * num_ranks


@pytest.mark.thin(3)
@pytest.mark.parametrize("a_world", ["host"], indirect=True)
@pytest.mark.parametrize("dtype", [d for d in DTYPES if DTYPES[d].kind != "complex"])
@pytest.mark.parametrize("reduce_op", REDUCE_OPS)
def test_reductions_of_every_type_are_exact_in_any_order(a_world: Worlds, dtype: str, reduce_op: str) -> None:
    if undefined_reduction(DTYPES[dtype], reduce_op):
        pytest.skip("not defined")
    for num_ranks in (2, 3, 16):
        world = a_world("allreduce", num_ranks, dtype=dtype, reduce_op=reduce_op)
        world.run()
        assert world.num_wrong() == 0, world.check()[0]


@pytest.mark.torch
@pytest.mark.parametrize("a_world", ["torch"], indirect=True)
@pytest.mark.parametrize(
    ("dtype", "reduce_op"),
    [("float64", "sum"), ("bfloat16", "avg"), ("float16", "prod"), ("int8", "min"), ("uint16", "bxor")],
)
def test_reductions_are_compared_where_they_lie(a_world: Worlds, dtype: str, reduce_op: str) -> None:
    world = a_world("allreduce", 3, dtype=dtype, reduce_op=reduce_op)
    world.run()
    assert world.num_wrong() == 0, world.check()[0]
    world.received(1)[-1] ^= 0x40  # far more than two units in the last place
    assert [wrong.num_wrong for wrong in world.check()] == [0, 1, 0]
    [found] = [wrong.first for wrong in world.check() if wrong.first]
    assert (found.code, found.facts["rank"]) == (WrongCode.ELEMENT, 1)
    assert found.facts["element"] == 4096 // DTYPES[dtype].num_bytes - 1


@pytest.mark.parametrize("kind", ["host", pytest.param("torch", marks=pytest.mark.torch)])
@pytest.mark.parametrize("in_place", [False, True])
def test_before_a_call_all_but_the_data_is_poison(kind: str, in_place: bool, missing: Callable[..., Any]) -> None:
    if kind == "torch" and importlib.util.find_spec("torch") is None:
        missing("torch", "torch is not installed")
    pattern, shape = plugins.load("pattern", "allgather").PATTERN, Shape(4, 4096)
    group, dtype = Group("world", (0, 1, 2, 3)), DTYPES["float32"]
    verifier = Verifier(pattern, shape, group, 2, dtype, "sum", in_place, 1)
    buffers = ALLOCATE[kind](0 if in_place else 1024, 4096, 2)
    put = [partial(verifier.prepare, buffers, 1, 0)]
    put += [partial(verifier.refill(buffers, 0), 1)] if in_place else []
    want = np.full(4096, poison(dtype), np.uint8)
    sent = CopyData(dtype, group.ranks, 1009).sent(2).head(1024)
    if in_place:
        want[2048:3072] = sent
    for each in put:
        buffers.write("recv", 1, 7)
        each()
        assert (buffers.read("recv", 1) == want).all() and (buffers.read("recv", 0) == GUARD).all()
        assert in_place or (buffers.read("send", 1) == sent).all()


@pytest.mark.parametrize("name", MOVING)
def test_a_flipped_bit_is_caught_wherever_it_is(a_world: Worlds, name: str) -> None:
    num_ranks = 2 if name == "pairs" else 4
    for position in (0, 0.37, 1):
        world = a_world(name, num_ranks)
        world.run()
        victim = max(range(num_ranks), key=lambda member: len(world.received(member)))
        received = world.received(victim)
        received[int(position * (len(received) - 1))] ^= 0x10
        assert world.check()[victim].num_wrong == 1
        first = world.check()[victim].first
        assert first is not None and first.facts["rank"] == victim


@pytest.mark.parametrize("name", ["allgather", "allreduce", "alltoall", "broadcast"])
def test_a_rank_that_sends_other_data_than_it_should_is_the_cause(a_world: Worlds, name: str) -> None:
    world = a_world(name, 4)
    culprit = world.verifiers[0]
    prepare = culprit.prepare
    culprit.prepare = lambda buffers, index, variation: prepare(buffers, index, variation + 1)
    world.run()
    found = [wrong.first for wrong in world.check()]
    assert found[0] is not None
    assert (found[0].code, found[0].facts["rank"], found[0].facts["element"]) == (WrongCode.SENT, 0, 0)
    assert {first.code for first in found[1:] if first is not None} == {WrongCode.ELEMENT}
    assert _first([wrong for wrong in reversed(world.check())]).first == found[0]


@pytest.mark.parametrize("name", MOVING)
def test_two_swapped_blocks_are_caught(a_world: Worlds, name: str) -> None:
    num_ranks = 2 if name == "pairs" else 4
    world = a_world(name, num_ranks)
    world.run()
    received = max((world.received(member) for member in range(num_ranks)), key=len)
    half = len(received) // 2
    swapped = np.concatenate([received[half:], received[:half]])
    received[:] = swapped
    assert world.num_wrong() > half // 8


@pytest.mark.parametrize("name", MOVING)
def test_a_skipped_operation_is_caught(a_world: Worlds, name: str) -> None:
    world = a_world(name, 2 if name == "pairs" else 4)
    world.prepare()
    assert world.num_wrong() > 0


@pytest.mark.parametrize("name", ["allreduce", "reduce", "reducescatter"])
@pytest.mark.parametrize("reduce_op", ["sum", "prod", "max", "avg"])
def test_a_rank_left_out_of_a_reduction_is_caught(a_world: Worlds, name: str, reduce_op: str) -> None:
    world = a_world(name, 4, reduce_op=reduce_op)
    full = world._reduced
    world._reduced = lambda sent: full([sent[0], sent[1], sent[2], sent[0] if reduce_op != "max" else sent[1]])
    world.run()
    assert world.num_wrong() > 10


def test_data_of_another_call_are_caught(a_world: Worlds) -> None:
    world = a_world("broadcast", 4)
    world.run()
    stale = [verifier.check(buffers, 0, 1) for verifier, buffers in zip(world.verifiers, world.buffers, strict=True)]
    assert sum(wrong.num_wrong for wrong in stale) > 1000


def test_bytes_written_outside_the_buffer_are_caught(a_world: Worlds) -> None:
    world = a_world("allgather", 4)
    world.run()
    world.buffers[2].guards(0)[-1].part(0, 1).write(np.zeros(1, np.uint8))
    assert world.check()[2].first == WrongData.of(WrongCode.GUARD, rank=2)


def test_bytes_received_where_nothing_was_sent_to_are_caught() -> None:
    pattern: Pattern = plugins.load("pattern", "alltoallv").PATTERN
    matrix = ((0, 1), (1, 0))
    blank = Shape(2, 0, 4, matrix=matrix)
    world = inprocess.InProcess(pattern, Shape(2, pattern.payload(256, blank), 4, matrix=matrix))
    world.run()
    assert world.num_wrong() == 0


def test_above_a_gibibyte_only_pages_are_compared_but_always_both_edges() -> None:
    from bench.rank.verify import _pieces

    pieces = _pieces((1 << 30) + 12, 4)
    assert pieces[0] == (0, 4096)
    assert pieces[-1][1] == (1 << 30) + 12
    assert 0.009 < sum(end - begin for begin, end in pieces) / (1 << 30) < 0.02
