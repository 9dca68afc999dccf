"""The loop of `nccl_direct` over functions of Python: which calls it makes, and in which order."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bench.core import plugins
from bench.core.pattern import Shape
from bench.core.transport import Compiled
from bench.transports import _nccl_loop
from bench.transports._nccl_loop import NcclLoop, NcclProgram, NcclStep
from bench.transports.nccl_direct import changes_its_input

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture
def made() -> list[str]:
    return []


@pytest.fixture
def loop(made: list[str]) -> Any:
    """A loop whose library and runtime write down every call, on a device that is always ready."""
    path, reason = _nccl_loop.build()
    assert path is not None, reason
    kept: list[Any] = []

    def named(name: str, code: int = 0) -> Any:
        def called(*_: Any) -> int:
            made.append(name)
            return code

        kept.append(ctypes.CFUNCTYPE(ctypes.c_int)(called))
        return kept[-1]

    functions = {name: named(name) for name in ("EventRecord", "EventQuery", "EventElapsedTime", "GraphLaunch")}
    runtime = SimpleNamespace(
        function=functions.__getitem__,
        new_stream=lambda: 1,
        new_event=lambda: 2,
        deviceSynchronize=lambda: made.append("synchronised"),
    )
    address = ctypes.cast(named("error"), ctypes.c_void_p).value
    found = NcclLoop(path, runtime, SimpleNamespace(address=lambda name: address), 5.0)  # type: ignore[arg-type]
    found.of_set = lambda name: NcclStep(7, ctypes.cast(named(name), ctypes.c_void_p).value)  # type: ignore[attr-defined]
    return found


def calls(made: list[str]) -> list[str]:
    return [name for name in made if name.startswith(("set", "refilled"))]


def program(loop: Any, num_sets: int, refill: Callable[[int], None] | None = None, changes_input: bool = False) -> Any:
    sets = [[loop.of_set(f"set {k}")] for k in range(num_sets)]
    native: NcclProgram = loop.program(sets, changes_input=changes_input)
    return Compiled((), native=native, refill=refill)


@needs_compiler
@pytest.mark.parametrize(("num_samples", "num_calls"), [(1, 10), (10, 1)])
def test_one_call_of_the_row_itself_precedes_the_timed_ones(
    num_samples: int, num_calls: int, loop: Any, made: list[str]
) -> None:
    """As in nccl-tests: the caches and the library are those of a program that has just made this call."""
    compiled = program(loop, 3)
    loop.start_by(0, loop.program([[loop.of_set("tiny")]]), None, 1)
    timing = loop.samples(compiled, num_samples, num_calls)
    assert len(timing.seconds) == num_samples
    first, *timed = calls(made)
    assert first == "set 2", "the set that was used last"
    assert timed == [f"set {k % 3}" for k in range(10)]
    assert compiled.next_set == 1


@needs_compiler
def test_few_long_calls_and_sets_that_one_call_changes_have_none(loop: Any, made: list[str]) -> None:
    loop.start_by(0, loop.program([[loop.of_set("tiny")]]), None, 1)
    loop.samples(program(loop, 2), 1, 3)
    assert calls(made) == ["set 0", "set 1", "set 0"]
    made.clear()
    loop.samples(program(loop, 2, lambda index: made.append(f"refilled {index}"), changes_input=True), 1, 10)
    assert calls(made)[:3] == ["refilled 0", "refilled 1", "set 0"] and calls(made).count("set 0") == 5


@needs_compiler
def test_whether_a_call_precedes_depends_on_the_program_and_not_on_this_rank(loop: Any, made: list[str]) -> None:
    """A rank that refills its sets makes as many calls as the others. Otherwise, they would wait for it."""
    loop.start_by(0, loop.program([[loop.of_set("tiny")]]), None, 1)
    for refill in (None, lambda index: None):
        for changes_input, extra in ((False, 1), (True, 0)):
            made.clear()
            loop.samples(program(loop, 2, refill, changes_input), 1, 10)
            assert len(calls(made)) == 10 + extra


def has_programs(name: str) -> bool:
    """Do the sizes alone determine the rows of this pattern?"""
    pattern = plugins.load("pattern", name).PATTERN
    return not pattern.plans_own_rows and pattern.needs(Shape(4, 4096, 4)) is None


@pytest.mark.parametrize("name", [name for name in plugins.names("pattern") if has_programs(name)])
def test_all_members_of_a_group_decide_alike(name: str) -> None:
    pattern = plugins.load("pattern", name).PATTERN
    shape = Shape(4, pattern.payload(4096, Shape(4, 4096, 4)), 4)
    steps = [pattern.steps(shape, member) for member in range(4)]
    for in_place in (False, True):
        decisions = {changes_its_input(own, in_place) for own in steps if own}
        assert decisions <= {in_place and pattern.reduces}, name
