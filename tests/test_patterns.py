"""The contract of a pattern, held by every file at the root of bench/, and the meaning of each, from literal tables."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core import plugins
from bench.core.case import ACCESSES, DIRECTIONS, VIAS
from bench.core.case_argv import add_arguments, from_args
from bench.core.pattern import Pattern, Shape
from bench.core.program import Collective, Copied, CopyStep, Exchange, Message, Multiplied, Product, Read, Reduced, Step
from bench.core.record import Skip
from bench.core.skips import SkipCode

NAMES = plugins.names("pattern")
NUM_RANKS = (1, 2, 3, 4, 7, 8, 16)
REQUESTS = (1, 100, 4096, (1 << 20) + 5)


def load(name: str) -> Pattern:
    """The pattern behind a name."""
    pattern = plugins.load("pattern", name).PATTERN
    assert isinstance(pattern, Pattern)
    return pattern


def shaped(pattern: Pattern, requested_bytes: int, **given: object) -> Shape:
    """The shape of a requested size: rounded as the pattern says."""
    shape = Shape(payload_bytes=0, **given)  # type: ignore[arg-type]
    assert pattern.needs(shape) is None
    return replace(shape, payload_bytes=pattern.payload(requested_bytes, shape))


def shapes(pattern: Pattern, num_ranks: int) -> Iterator[Shape]:
    """Every variant of a group of this size that the pattern can run."""
    for root in {0, num_ranks - 1} if pattern.rooted else {0}:
        for direction in DIRECTIONS if pattern.directional else ("one-way",):
            for mode in ("isolated", "pipelined"):
                shape = Shape(num_ranks, 0, 4, root, mode, direction, window=5)
                for access, via in product(ACCESSES, VIAS) if "via" in pattern.factors else (("write", "ipc"),):
                    if pattern.needs(shape) is None:
                        for requested in REQUESTS:
                            yield shaped(
                                pattern,
                                requested,
                                num_ranks=num_ranks,
                                root=root,
                                mode=mode,
                                direction=direction,
                                window=5,
                                access=access,
                                via=via,
                            )


# ---- The contract, for every file ----


@pytest.mark.parametrize("name", NAMES)
def test_a_pattern_is_named_after_its_file_and_takes_any_number_of_ranks_or_gives_a_reason(name: str) -> None:
    pattern = load(name)
    assert pattern.name == name
    refusals = {num_ranks: pattern.needs(Shape(num_ranks, 0)) for num_ranks in range(1, 17)}
    assert None in refusals.values()
    for num_ranks, skip in refusals.items():
        if skip is not None:
            assert skip.code in (SkipCode.TOO_FEW_RANKS, SkipCode.ODD_RANKS)
            assert (skip.facts["pattern"], skip.facts["num_ranks"]) == (name, num_ranks)


@pytest.mark.parametrize("name", NAMES)
def test_a_refused_group_still_has_a_size(name: str) -> None:
    pattern = load(name)
    for shape in (Shape(1, 0), Shape(7, 0), Shape(2, 0, root=5), Shape(3, 0, matrix=((1, 1), (1, 1)))):
        assert pattern.payload(1 << 10, shape) >= 0


@pytest.mark.parametrize("name", NAMES)
def test_its_docstring_gives_commands_that_parse(name: str) -> None:
    module = plugins.load("pattern", name)
    first, blank, *rest = (module.__doc__ or "").splitlines()
    assert first.endswith(".") and not blank
    commands = [line.strip() for line in rest if line.startswith("    ")]
    assert commands
    for command in commands:
        found = re.search(rf" -m bench\.{name}\b(.*)", command)
        assert found is not None, f"not a command that runs {name}: {command}"
        parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
        add_arguments(parser)
        args, unknown = parser.parse_known_args(shlex.split(found[1]))
        assert not unknown, f"no such option: {command}"
        from_args(name, args)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("name", NAMES)
def test_every_step_and_expectation_lies_within_the_buffers(name: str, num_ranks: int) -> None:
    pattern = load(name)
    for shape in shapes(pattern, num_ranks):
        sizes = [pattern.buffers(shape, member) for member in range(num_ranks)]
        for member, (send_bytes, recv_bytes) in enumerate(sizes):
            assert send_bytes >= 0 and recv_bytes >= 0
            for step in pattern.steps(shape, member):
                check_within(step, send_bytes, recv_bytes, sizes)
            for part in pattern.expected(shape, member):
                source = part.source if isinstance(part, Copied) else member
                assert 0 <= part.source_offset <= part.source_offset + part.num_bytes <= sizes[source][0]
                assert 0 <= part.offset_bytes <= part.offset_bytes + part.num_bytes <= recv_bytes


def check_within(step: Step, send_bytes: int, recv_bytes: int, sizes: list[tuple[int, int]]) -> None:
    """Offsets and sizes of one step fit the member's two buffers; of a copy, those of the members at both ends."""
    if isinstance(step, CopyStep):
        for copy in step.copies:
            assert 0 < copy.source_offset + copy.num_bytes <= sizes[copy.source][0]
            assert 0 < copy.target_offset + copy.num_bytes <= sizes[copy.target][1]
        return
    if isinstance(step, Product):
        assert 2 * recv_bytes == send_bytes and recv_bytes % step.order**2 == 0 < step.order
        return
    if isinstance(step, Read):
        assert step.num_bytes == send_bytes == recv_bytes
        return
    if isinstance(step, Collective):
        assert (step.send_bytes, step.recv_bytes) <= (send_bytes, recv_bytes)
        return
    assert isinstance(step, Exchange)
    for messages, room in ((step.sends, send_bytes), (step.recvs, recv_bytes)):
        for message in messages:
            assert message.num_bytes > 0
            assert 0 <= message.offset_bytes <= message.offset_bytes + message.num_bytes <= room


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("name", NAMES)
def test_expected_data_fills_the_receive_buffer_without_overlap(name: str, num_ranks: int) -> None:
    pattern = load(name)
    for shape in shapes(pattern, num_ranks):
        for member in range(num_ranks):
            end = 0
            for part in sorted(pattern.expected(shape, member), key=lambda part: part.offset_bytes):
                assert part.offset_bytes == end
                end += part.num_bytes
            assert end == pattern.buffers(shape, member)[1]


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("name", NAMES)
def test_every_send_is_received_in_the_same_step_and_nothing_else_is(name: str, num_ranks: int) -> None:
    pattern = load(name)
    for shape in shapes(pattern, num_ranks):
        steps_of_all = [pattern.steps(shape, member) for member in range(num_ranks)]
        if pattern.bursts:  # files are written, no messages
            assert not any(steps_of_all)
            continue
        assert len({len(steps) for steps in steps_of_all if steps}) == 1  # an idle member has no steps
        for index in range(max(map(len, steps_of_all))):
            check_matched({member: steps[index] for member, steps in enumerate(steps_of_all) if steps})


def check_matched(step_of: dict[int, Step]) -> None:
    """All members make the same call, or their messages match pair by pair, in order."""
    calls = {(step.op, step.root) for step in step_of.values() if isinstance(step, Collective)}
    if calls:
        assert len(calls) == 1
        assert all(isinstance(step, Collective) for step in step_of.values())
        for member, step in step_of.items():
            assert isinstance(step, Collective)
            for peer, num_bytes in enumerate(step.send_split):
                assert step_of[peer].recv_split[member] == num_bytes  # type: ignore[union-attr]
        return
    if any(isinstance(step, CopyStep | Product | Read) for step in step_of.values()):
        assert len({type(step) for step in step_of.values()}) == 1  # nobody answers a copy, a product or a read
        return
    sent: dict[tuple[int, int], list[int]] = {}
    received: dict[tuple[int, int], list[int]] = {}
    for member, step in step_of.items():
        assert isinstance(step, Exchange)
        for message in step.sends:
            sent.setdefault((member, message.peer), []).append(message.num_bytes)
        for message in step.recvs:
            received.setdefault((message.peer, member), []).append(message.num_bytes)
    assert sent == received
    assert all(source != target for source, target in sent)


@pytest.mark.thin(3)
@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("name", NAMES)
def test_a_payload_is_a_fixed_point_of_rounding_and_grows_with_the_request(name: str, num_ranks: int) -> None:
    pattern = load(name)
    variants = {}
    for shape in shapes(pattern, num_ranks):
        assert pattern.payload(shape.payload_bytes, shape) == shape.payload_bytes
        variants[replace(shape, payload_bytes=0)] = shape  # the same for all sizes
    for shape in variants.values():
        payloads = [pattern.payload(requested, shape) for requested in range(1, 3000, 7)]
        assert payloads == sorted(payloads)


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
@pytest.mark.parametrize("name", NAMES)
def test_crossing_bytes_and_bus_factor_are_consistent(name: str, num_ranks: int) -> None:
    pattern = load(name)
    for shape in shapes(pattern, num_ranks):
        assert pattern.crossing(shape, 1) == 0
        assert all(pattern.crossing(shape, parts) >= 0 for parts in range(1, num_ranks + 1) if num_ranks % parts == 0)
        factor = pattern.bus_factor(shape)
        assert factor is None or factor > 0
        assert pattern.operations(shape) >= 1
        assert pattern.min_steps(num_ranks) >= 0


# ---- The meaning of each, from literal tables ----

F = Fraction
MESSAGES = {"overlap", "replay", "peer_copy", "sendrecv", "bisection", "incast", "pingpong", "pairs", "oneway"}
MESSAGES |= {"fanout", "kv_pages", "moe"}
# Ranks -> factor. The collectives' and sendrecv's are nccl-tests' (doc/PERFORMANCE.md).
TWICE = {1: None, 2: F(1), 3: F(4, 3), 4: F(3, 2), 7: F(12, 7), 8: F(7, 4), 64: F(63, 32)}
ONCE = {1: None, 2: F(1, 2), 3: F(2, 3), 4: F(3, 4), 7: F(6, 7), 8: F(7, 8), 64: F(63, 64)}
WHOLE = {1: None, 2: F(1), 3: F(1), 4: F(1), 7: F(1), 8: F(1), 64: F(1)}
NONE = dict.fromkeys(WHOLE)
BUS_FACTORS: dict[str, dict[int, Fraction | None]] = {
    "allreduce": TWICE,
    "allgather": ONCE,
    "reducescatter": ONCE,
    "alltoall": ONCE,
    "alltoallv": ONCE,
    "broadcast": WHOLE,
    "reduce": WHOLE,
    "gather": ONCE,
    "scatter": ONCE,
    "barrier": NONE,
    "sendrecv": WHOLE,
    "pingpong": WHOLE,
    "pairs": WHOLE,
    "incast": WHOLE,
    "fanout": WHOLE,
    "kv_pages": WHOLE,
    "moe": WHOLE,
    "bisection": WHOLE,
    "oneway": WHOLE,
    "peer_copy": WHOLE,
    "overlap": TWICE,
    "replay": TWICE,
    "step": NONE,
    "gpu_baseline": NONE,
    "host_device": dict.fromkeys(WHOLE, F(1)),
    "local_copy": dict.fromkeys(WHOLE, F(2)),
    "feed": dict.fromkeys(WHOLE, F(1)),
    "checkpoint": dict.fromkeys(WHOLE, F(1)),
}


@pytest.mark.parametrize(("name", "num_ranks"), [(name, n) for name, row in BUS_FACTORS.items() for n in row])
def test_bus_factors_are_those_of_the_table(name: str, num_ranks: int) -> None:
    pattern, factor = load(name), BUS_FACTORS[name][num_ranks]
    if pattern.needs(Shape(num_ranks, 0)) is not None:
        assert name in MESSAGES and (num_ranks == 1 or (name == "bisection" and num_ranks % 2))
        return
    for requested in (8, 1000, 1 << 20):
        got = pattern.bus_factor(shaped(pattern, requested, num_ranks=num_ranks))
        assert got == (None if factor is None else pytest.approx(float(factor), rel=1e-12))


@pytest.mark.parametrize("mode", ["isolated", "pipelined"])
@pytest.mark.parametrize("direction", ["one-way", "two-way"])
@pytest.mark.parametrize("name", ["pingpong", "pairs", "peer_copy"])
def test_two_members_count_one_message_per_direction_and_operation(name: str, direction: str, mode: str) -> None:
    pattern = load(name)
    shape = shaped(pattern, 4096, num_ranks=2, direction=direction, mode=mode)
    assert pattern.bus_factor(shape) == 1
    assert pattern.crossing(shape, 2) == 4096


# (send, receive) of the root, then of the others, in units of S; b is one block, S/n.
BUFFERS: dict[str, tuple[str, str, str, str]] = {
    "allreduce": ("S", "S", "S", "S"),
    "allgather": ("b", "S", "b", "S"),
    "reducescatter": ("S", "b", "S", "b"),
    "alltoall": ("S", "S", "S", "S"),
    "broadcast": ("S", "0", "0", "S"),
    "reduce": ("S", "S", "S", "0"),
    "gather": ("b", "S", "b", "0"),
    "scatter": ("S", "b", "0", "b"),
    "barrier": ("0", "0", "0", "0"),
    "sendrecv": ("S", "S", "S", "S"),
    "bisection": ("S", "S", "S", "S"),
    "alltoallv": ("S", "S", "S", "S"),
}


@pytest.mark.parametrize("num_ranks", [2, 4, 8, 64])
@pytest.mark.parametrize("name", BUFFERS)
def test_the_size_is_the_larger_of_the_buffers_of_the_table(name: str, num_ranks: int) -> None:
    pattern = load(name)
    root = num_ranks - 1 if pattern.rooted else 0
    shape = shaped(pattern, 1 << 20, num_ranks=num_ranks, root=root)
    size = {"S": shape.payload_bytes, "b": shape.payload_bytes // num_ranks, "0": 0}
    for member in range(num_ranks):
        send, recv = BUFFERS[name][:2] if member == root else BUFFERS[name][2:]
        assert pattern.buffers(shape, member) == (size[send], size[recv])


def test_a_fan_out_sends_a_different_block_to_every_other_rank() -> None:
    pattern = load("fanout")
    shape = shaped(pattern, 1000, num_ranks=4, root=1)
    assert shape.payload_bytes == 3 * 320
    assert [pattern.buffers(shape, member) for member in range(4)] == [(0, 320), (960, 0), (0, 320), (0, 320)]


@pytest.mark.parametrize(("element_bytes", "part"), [(1, 2), (2, 1)])
def test_tokens_of_the_hottest_experts_go_to_rank_0_in_8_bits_with_half_the_bytes(
    element_bytes: int, part: int
) -> None:
    pattern = load("moe")
    shape = shaped(pattern, 1 << 20, num_ranks=4, element_bytes=element_bytes, skew=1.0)
    for member in range(4):
        dispatch, combine = pattern.steps(shape, member)
        assert isinstance(dispatch, Exchange) and isinstance(combine, Exchange)
        sent = {each.peer: each.num_bytes for each in dispatch.sends}
        assert set(sent) == set(range(4)) - {member}
        assert {each.peer: each.num_bytes // part for each in combine.recvs} == sent
        assert {each.num_bytes // part for each in combine.sends} == {each.num_bytes for each in dispatch.recvs}
        for peer, num_bytes in sent.items() if member else ():
            assert sent[0] == pytest.approx((peer + 1) * num_bytes, rel=0.01)
    assert max(pattern.buffers(shape, 0)) == shape.payload_bytes > 0.99 * (1 << 20)
    assert pattern.bus_factor(shape) == 1


@pytest.mark.parametrize("window", [1, 2, 3, 7, 64, 100])
def test_pages_lie_scattered_in_both_memories_and_each_goes_once(window: int) -> None:
    pattern = load("kv_pages")
    shape = shaped(pattern, 1 << 20, num_ranks=3, window=window)
    (sent,), (received,) = pattern.steps(shape, 0), pattern.steps(shape, 1)
    assert isinstance(sent, Exchange) and isinstance(received, Exchange)
    page = shape.payload_bytes // window
    for messages in (sent.sends, received.recvs):
        assert sorted(each.offset_bytes for each in messages) == [page * slot for slot in range(window)]
        assert {each.num_bytes for each in messages} == {page} and page % 16 == 0
    if window > 6:
        assert [each.offset_bytes for each in sent.sends] != [each.offset_bytes for each in received.recvs]
        assert sorted(each.offset_bytes for each in sent.sends) != [each.offset_bytes for each in sent.sends]
    assert pattern.steps(shape, 2) == () and pattern.buffers(shape, 2) == (0, 0)


def test_the_size_of_an_incast_is_what_the_root_receives_in_total() -> None:
    pattern = load("incast")
    shape = shaped(pattern, 1000, num_ranks=4, root=1)
    assert shape.payload_bytes == 3 * 320
    assert [pattern.buffers(shape, member) for member in range(4)] == [(320, 0), (0, 960), (320, 0), (320, 0)]


BLOCKS = ("allgather", "reducescatter", "alltoall", "gather", "scatter")
ELEMENTS = ("allreduce", "broadcast", "reduce", "sendrecv", "bisection", "pingpong", "pairs", "oneway")


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 7, 8, 64])
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_rounded_as_in_nccl_tests_but_never_to_zero(name: str, num_ranks: int) -> None:
    pattern = load(name)
    for requested in [8 << k for k in range(28)] + [1000, 12345]:
        theirs = num_ranks * 16 * (requested // (16 * num_ranks))
        ours = pattern.payload(requested, Shape(num_ranks, 0))
        assert ours == (theirs or 16 * num_ranks)


@pytest.mark.parametrize("element_bytes", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("name", ELEMENTS)
def test_one_buffer_is_rounded_to_elements_as_in_nccl_tests_but_never_to_zero(name: str, element_bytes: int) -> None:
    pattern = load(name)
    for requested in [8 << k for k in range(28)] + [1000, 12345]:
        theirs = requested // element_bytes * element_bytes
        assert pattern.payload(requested, Shape(2, 0, element_bytes)) == (theirs or element_bytes)


def test_a_barrier_has_size_zero_for_every_request() -> None:
    assert {load("barrier").payload(requested, Shape(4, 0)) for requested in (1, 8, 1 << 20)} == {0}


# 16 ranks on 4 nodes, S = 15 blocks of 16 x 16 KiB = 3.75 MiB: what must cross one node's boundary, in units of S.
CROSSING = {
    "allreduce": F(3, 2),
    "allgather": F(3, 4),
    "reducescatter": F(3, 4),
    "alltoall": F(3),
    "gather": F(3, 4),
    "scatter": F(3, 4),
    "broadcast": F(1),
    "reduce": F(1),
    "sendrecv": F(1),
    "bisection": F(4),
    "incast": F(12, 15),
    "fanout": F(12, 15),
    "pingpong": F(0),
    "oneway": F(0),
    "barrier": F(0),
}


@pytest.mark.parametrize("name", CROSSING)
def test_bytes_across_a_node_boundary_are_those_of_the_table(name: str) -> None:
    pattern = load(name)
    shape = shaped(pattern, 15 << 18, num_ranks=16)
    assert shape.payload_bytes == (0 if name == "barrier" else 15 << 18)
    assert pattern.crossing(shape, 4) == float(CROSSING[name] * shape.payload_bytes)


def test_flags_are_those_of_the_table() -> None:
    known = [load(name) for name in BUS_FACTORS]
    assert {p.name for p in known if p.replays} == {"replay"}
    assert {p.name for p in known if p.trains} == {"step"}
    assert {p.name for p in known if p.bursts} == {"checkpoint"}
    assert {p.name for p in known if p.in_place} == {"allreduce", "reduce", "allgather", "overlap"}
    assert {p.name for p in known if p.reduces} == {"allreduce", "reduce", "reducescatter", "overlap", "replay", "step"}
    assert {p.name for p in known if p.rooted} == {"broadcast", "reduce", "gather", "scatter", "incast", "fanout"}
    assert {p.name for p in known if p.directional} == {"pingpong", "pairs", "peer_copy", "host_device"}
    assert {p.name: p.topology for p in known if p.topology} == {"pairs": "pairs", "oneway": "directed pairs"}
    assert {p.name for p in known if p.one_way} == {"oneway"}
    assert {p.name for p in known if p.overlaps} == {"overlap"}
    assert {p.name for p in known if p.min_ranks == 2} == MESSAGES
    ones = (
        (MESSAGES - {"overlap", "replay"})
        | {"alltoallv", "host_device", "local_copy", "gpu_baseline", "feed"}
        | {"checkpoint"}
    )
    assert {p.name for p in known if p.min_steps(8) == 1} == ones
    assert {p.min_steps(8) for p in known} == {1, 3}


@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather", "scatter", "incast", "fanout"])
def test_a_root_outside_the_group_is_refused(name: str) -> None:
    assert load(name).needs(Shape(4, 0, root=4)) == Skip.of(SkipCode.NO_ROOT, root=4, num_ranks=4)


def test_a_bisection_needs_two_equal_halves() -> None:
    assert load("bisection").needs(Shape(7, 0)) == Skip.of(SkipCode.ODD_RANKS, pattern="bisection", num_ranks=7)


# ---- What arrives, by moving labels instead of bytes ----

Label = tuple[int, int]  # (member, position in its send buffer)


@pytest.mark.thin(3)
@pytest.mark.parametrize("num_ranks", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", BUS_FACTORS)
def test_expected_data_is_what_the_steps_deliver(name: str, num_ranks: int) -> None:
    pattern = load(name)
    seen = set()
    for shape in shapes(pattern, num_ranks):
        if shape.payload_bytes > 5000:
            continue
        same = tuple(
            (pattern.steps(shape, member), pattern.expected(shape, member), pattern.buffers(shape, member))
            for member in range(num_ranks)
        )
        if (shape.payload_bytes, same) in seen:  # variants that do the same
            continue
        seen.add((shape.payload_bytes, same))
        got = moved(pattern, shape)
        for member in range(num_ranks):
            for part in pattern.expected(shape, member):
                here = got[member][part.offset_bytes : part.offset_bytes + part.num_bytes]
                if isinstance(part, Multiplied):
                    assert part.num_bytes == shape.payload_bytes and all(here)
                    continue
                sources = range(num_ranks) if isinstance(part, Reduced) else [part.source]
                assert here == [{(source, part.source_offset + k) for source in sources} for k in range(part.num_bytes)]


def moved(pattern: Pattern, shape: Shape) -> list[list[set[Label]]]:
    """Each member's receive buffer after its steps: which bytes were combined into each of its bytes."""
    members = range(shape.num_ranks)
    sent = [[{(m, k)} for k in range(pattern.buffers(shape, m)[0])] for m in members]
    got: list[list[set[Label]]] = [[set()] * pattern.buffers(shape, m)[1] for m in members]
    steps_of_all = [pattern.steps(shape, m) for m in members]
    for index in range(max(map(len, steps_of_all))):
        at_once = {m: steps[index] for m, steps in enumerate(steps_of_all) if steps}
        if any(isinstance(step, Product) for step in at_once.values()):
            for m in at_once:  # each element is made of all of both factors, as far as labels tell
                got[m] = [{(m, k) for k in range(len(sent[m]))}] * len(got[m])
        elif any(isinstance(step, Read) for step in at_once.values()):
            for m, step in at_once.items():
                assert isinstance(step, Read)
                got[m][: step.num_bytes] = sent[m][: step.num_bytes]
        elif any(isinstance(step, CopyStep) for step in at_once.values()):
            for copy in (copy for step in at_once.values() for copy in getattr(step, "copies", ())):
                data = sent[copy.source][copy.source_offset : copy.source_offset + copy.num_bytes]
                got[copy.target][copy.target_offset : copy.target_offset + copy.num_bytes] = data
        elif isinstance(at_once[0], Collective):
            for m, arrived in called(at_once[0], at_once, sent).items():
                got[m][: len(arrived)] = arrived
        else:
            delivered(at_once, sent, got)
    return got


def called(call: Collective, at_once: dict[int, Step], sent: list[list[set[Label]]]) -> dict[int, list[set[Label]]]:
    """What a collective leaves at each member, from its definition in the MPI standard."""
    members = range(len(sent))
    if call.op in ("allreduce", "reduce", "reducescatter"):
        everything = [set().union(*same) for same in zip(*sent, strict=True)]
        part = len(everything) // len(sent)
        if call.op == "reducescatter":
            return {m: everything[m * part : (m + 1) * part] for m in members}
        return {m: everything for m in members if call.op == "allreduce" or m == call.root}
    if call.op == "broadcast":
        return {m: sent[call.root] for m in members if m != call.root}
    if call.op in ("allgather", "gather"):
        return {
            m: [label for one in sent for label in one] for m in members if call.op == "allgather" or m == call.root
        }
    if call.op == "scatter":
        part = len(sent[call.root]) // len(sent)
        return {m: sent[call.root][m * part : (m + 1) * part] for m in members}
    if call.op == "barrier":
        return {}
    assert call.op in ("alltoall", "alltoallv")
    arrived: dict[int, list[set[Label]]] = {m: [] for m in members}
    for source in members:
        step = at_once[source]
        assert isinstance(step, Collective)
        split = step.send_split or [len(sent[source]) // len(sent)] * len(sent)
        start = 0
        for target, num_bytes in enumerate(split):
            arrived[target] += sent[source][start : start + num_bytes]
            start += num_bytes
    return arrived


def delivered(at_once: dict[int, Step], sent: list[list[set[Label]]], got: list[list[set[Label]]]) -> None:
    """Carry the messages of one step from send buffers to receive buffers."""
    under_way: dict[tuple[int, int], list[Message]] = {}
    for m, step in at_once.items():
        assert isinstance(step, Exchange)
        for message in step.sends:
            under_way.setdefault((m, message.peer), []).append(message)
    for m, step in at_once.items():
        assert isinstance(step, Exchange)
        for recv in step.recvs:
            send = under_way[recv.peer, m].pop(0)
            data = sent[recv.peer][send.offset_bytes : send.offset_bytes + send.num_bytes]
            got[m][recv.offset_bytes : recv.offset_bytes + recv.num_bytes] = data


# ---- Programs of the patterns that are more than one call ----


def test_an_isolated_ping_pong_is_a_round_trip_of_two_operations() -> None:
    pattern = load("pingpong")
    shape = shaped(pattern, 64, num_ranks=3)
    out, home = Exchange(sends=(Message(1, 64),)), Exchange(recvs=(Message(1, 64),))
    assert pattern.steps(shape, 0) == (out, home)
    assert pattern.steps(shape, 1) == (Exchange(recvs=(Message(0, 64),)), Exchange(sends=(Message(0, 64),)))
    assert pattern.steps(shape, 2) == () and pattern.buffers(shape, 2) == (0, 0)
    assert pattern.operations(shape) == 2


def test_a_pipelined_ping_pong_is_a_window_and_an_acknowledgement() -> None:
    pattern = load("pingpong")
    shape = shaped(pattern, 64, num_ranks=2, mode="pipelined", window=3)
    assert pattern.steps(shape, 0) == (Exchange(sends=(Message(1, 64),) * 3), Exchange(recvs=(Message(1, 4),)))
    slots = (Message(0, 64, 0), Message(0, 64, 64), Message(0, 64, 128))
    assert pattern.steps(shape, 1) == (Exchange(recvs=slots), Exchange(sends=(Message(0, 4),)))
    assert pattern.buffers(shape, 0) == (64, 4) and pattern.buffers(shape, 1) == (4, 192)
    assert pattern.operations(shape) == 3


def test_both_directions_are_posted_together() -> None:
    pattern = load("pairs")
    one = shaped(pattern, 64, num_ranks=2, direction="two-way")
    assert pattern.steps(one, 0) == (Exchange((Message(1, 64),), (Message(1, 64),)),)
    assert pattern.operations(one) == 1
    many = shaped(pattern, 64, num_ranks=2, direction="two-way", mode="pipelined", window=2)
    assert pattern.steps(many, 1) == (Exchange((Message(0, 64),) * 2, (Message(0, 64, 0), Message(0, 64, 64))),)
    assert pattern.operations(many) == 2


@pytest.mark.parametrize(
    ("size", "window", "in_flight"), [(8, 64, 64), (1 << 20, 64, 64), (1 << 22, 64, 16), (1 << 30, 64, 1)]
)
def test_a_window_never_exceeds_64_mebibytes_unless_one_message_does(size: int, window: int, in_flight: int) -> None:
    pattern = load("pingpong")
    assert pattern.operations(shaped(pattern, size, num_ranks=2, mode="pipelined", window=window)) == in_flight


def test_pingpong_crosses_a_boundary_only_between_its_two_members() -> None:
    pattern = load("pingpong")
    shape = shaped(pattern, 64, num_ranks=4)
    assert [pattern.crossing(shape, parts) for parts in (1, 2, 4)] == [0, 0, 64]


def test_sendrecv_shifts_by_one_around_the_ring() -> None:
    pattern = load("sendrecv")
    shape = shaped(pattern, 64, num_ranks=4)
    assert pattern.steps(shape, 3) == (Exchange((Message(0, 64),), (Message(2, 64),)),)


def test_bisection_pairs_each_rank_with_one_of_the_other_half() -> None:
    pattern = load("bisection")
    shape = shaped(pattern, 64, num_ranks=8)
    partners = [step.sends[0].peer for m in range(8) for step in pattern.steps(shape, m) if isinstance(step, Exchange)]
    assert partners == [4, 5, 6, 7, 0, 1, 2, 3]


# ---- alltoallv: blocks in proportion to weights ----

MATRICES = st.integers(1, 5).flatmap(
    lambda n: st.tuples(*[st.tuples(*[st.integers(0, 50)] * n)] * n).filter(lambda rows: any(map(any, rows)))
)


@given(MATRICES, st.integers(1, 1 << 24))
def test_the_blocks_of_alltoallv_follow_their_weights(matrix: tuple[tuple[int, ...], ...], requested: int) -> None:
    pattern, n = load("alltoallv"), len(matrix)
    shape = shaped(pattern, requested, num_ranks=n, matrix=matrix)
    payload = shape.payload_bytes
    assert pattern.payload(payload, shape) == payload
    blocks = [step.send_split for m in range(n) for step in pattern.steps(shape, m) if isinstance(step, Collective)]
    assert payload == max(map(sum, (*blocks, *zip(*blocks, strict=True))))
    least = max(sum(16 for weight in line if weight) for line in (*matrix, *zip(*matrix, strict=True)))
    assert max(requested, least) - 16 * n < payload <= max(requested, least)
    for weights, row in zip(matrix, blocks, strict=True):
        for weight, block in zip(weights, row, strict=True):
            assert block % 16 == 0 and (block > 0) == (weight > 0)


@given(MATRICES, st.integers(1, 1000))
def test_a_divisible_size_gives_blocks_in_exact_proportion(matrix: tuple[tuple[int, ...], ...], multiple: int) -> None:
    pattern, n = load("alltoallv"), len(matrix)
    largest = max(map(sum, (*matrix, *zip(*matrix, strict=True))))
    shape = shaped(pattern, 16 * largest * multiple, num_ranks=n, matrix=matrix)
    assert shape.payload_bytes == 16 * largest * multiple
    for member, weights in enumerate(matrix):
        (step,) = pattern.steps(shape, member)
        assert isinstance(step, Collective)
        assert step.send_split == tuple(16 * multiple * weight for weight in weights)


def test_without_a_matrix_every_rank_sends_blocks_of_n_different_sizes() -> None:
    pattern = load("alltoallv")
    shape = shaped(pattern, 96, num_ranks=3)
    assert [step.send_split for m in range(3) for step in pattern.steps(shape, m) if isinstance(step, Collective)] == [
        (16, 32, 48),
        (48, 16, 32),
        (32, 48, 16),
    ]


def test_equal_weights_make_alltoallv_an_alltoall() -> None:
    v, plain = load("alltoallv"), load("alltoall")
    shape = shaped(v, 1 << 16, num_ranks=4, matrix=((1,) * 4,) * 4)
    for parts in (1, 2, 4):
        assert v.crossing(shape, parts) == plain.crossing(shape, parts)
    for member in range(4):
        assert v.expected(shape, member) == plain.expected(shape, member)


def test_the_crossing_of_alltoallv_is_counted_from_its_blocks() -> None:
    pattern = load("alltoallv")
    matrix = ((0, 0, 3, 0), (0, 0, 1, 0), (0, 0, 0, 0), (2, 0, 0, 0))
    shape = shaped(pattern, 16 * 4, num_ranks=4, matrix=matrix)
    assert pattern.crossing(shape, 2) == 16 * 4
    assert pattern.crossing(shape, 4) == 16 * 4
    assert pattern.bus_factor(shape) == 0.75


def test_a_matrix_of_another_size_is_refused() -> None:
    pattern = load("alltoallv")
    for matrix in (((1,),), ((1, 1), (1,)), ((1, 1, 1),) * 2):
        skip = pattern.needs(Shape(2, 0, matrix=matrix))
        assert skip is not None and skip.code == SkipCode.MATRIX_SIZE


# ---- Small rules about the files ----


@pytest.mark.parametrize("name", BUS_FACTORS)
def test_a_pattern_file_is_short_and_ends_by_running_itself(name: str) -> None:
    source = Path(str(plugins.load("pattern", name).__file__)).read_text(encoding="utf-8")
    last = ast.parse(source).body[-1]
    assert isinstance(last, ast.If) and ast.unparse(last).endswith("run_pattern(PATTERN.name)")
    assert len(source.splitlines()) < 130
