"""Copies at the same time: each is timed while the others still run, and one write starts the ranks of a host."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bench.core.channel import Channel, SingleRankChannel
from bench.core.program import Copy, CopyStep, Group
from bench.core.record import Flag
from bench.core.transport import Options, Timing
from bench.rank.beside import Beside
from bench.transports import _shared_page, cuda_copy
from bench.transports._cuda_gate import MOST_QUEUED
from bench.transports._cuda_pace import Pace
from tests.transports.test_cuda_copy import ALONE, BYTES, ME, cupy, environment, mpirun, rows

__all__ = ["cupy"]  # a fixture
Missing = Callable[[str, str], NoReturn]
BOTH = (CopyStep((Copy(0, 0, 50_000, None, 0), Copy(0, 0, 50_000, 0, None, 50_000, 50_000))),)


@pytest.fixture
def uneven_link(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A link that carries 50 MB/s each way alone; both ways at once 22 to the GPU and 50 from it."""
    monkeypatch.setenv("FAKE_CUDA_LINK", "50e6,50e6,22e6,50e6")
    yield


@pytest.mark.slow
@pytest.mark.usefixtures("uneven_link", "cupy")
def test_the_slow_direction_does_not_speed_up_when_the_fast_one_ends() -> None:
    found = rows(Options(), pattern="host_device", direction="two-way", mode="pipelined", sizes=(50_000,), iterations=5)
    (row,) = found
    assert row.samples is not None and row.beside is not None and row.verified
    ((to_gpu, from_gpu),) = row.beside.ends_s
    assert list(row.samples.seconds) == [max(pair) for pair in zip(to_gpu, from_gpu, strict=True)]
    # 50 / 22 = 2.27 if both ran all the time; 50 / 32 = 1.56 if the slow one was alone after the fast one.
    assert [a / b for a, b in zip(to_gpu, from_gpu, strict=True)] == pytest.approx([50 / 22] * 5)
    assert row.beside.num_partly_alone == 0 and Flag.PARTLY_ALONE not in row.flags


@pytest.mark.usefixtures("cupy")
def test_pageable_copies_go_on_until_the_other_direction_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = cuda_copy.CudaCopy(ALONE, Options(memory="pageable"))
    compiled = transport.compile(BOTH, ME, transport.allocate(100_000, 100_000, 1, BOTH), BYTES, False)
    made = [0, 0]

    def counted(j: int, issue: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            made[j] += 1
            for _ in range(1 if j else 30):  # the first direction is slow
                issue()

        return run

    program = compiled.native
    monkeypatch.setattr(program, "issues", [[counted(j, issue) for j, issue in enumerate(program.issues[0])]])
    timing = transport.time_batch(compiled, 4)
    assert made[0] >= 4 and made[1] > 8, "the fast direction made more calls than the counted and the planned ones"
    assert timing.beside_s[0] >= max(ends[0] for ends in timing.ends_s) == timing.seconds[0]
    transport.close()


class _Others(Channel):
    """What other ranks tell."""

    def __init__(self, *told: list[Any]) -> None:
        self._told = list(told)
        self.shared: list[Any] = []

    def share(self, value: Any) -> list[Any]:
        """The rank's own value and those of the others."""
        self.shared.append(value)
        return [value, *self._told.pop(0)]

    gather = share

    def broadcast(self, value: Any) -> Any:
        """Not used."""
        raise AssertionError


def test_all_copies_of_a_host_go_on_as_long_as_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    pace = Pace(_Others([("here", 1), ("there", 1)], [("here", (0.5,)), ("there", (4.0,))]))
    assert pace.extra(16, 1) == [0], "a copy alone makes no more calls"
    pace.begin_row(1)
    assert pace.extra(16, 1) == [17], "twice as long, while the times are unknown"
    pace.learn("batch", (0.25,))
    assert pace.extra(16, 1) == [21], "the slowest of this host takes twice as long, and a tenth more"
    assert pace.extra(64, 1) == [78] and pace.extra(MOST_QUEUED - 1, 1) == [1], "no more than fit in a queue"
    assert pace.least_batch == (16, 20e-3)


def test_a_copy_alone_needs_no_messages_and_no_longer_batches() -> None:
    pace = Pace(SingleRankChannel())
    pace.begin_row(1)
    pace.learn("batch", (1.0,))
    assert pace.extra(16, 1) == [0] and pace.least_batch is None


def test_ranks_learn_from_the_first_samples_only() -> None:
    channel = _Others([("x", 1)], *[[("x", ())]] * 4)
    pace = Pace(channel)
    pace.begin_row(2)
    for _ in range(9):
        pace.learn("batch", (1.0, 2.0))
    assert len(channel.shared) == 5


def a_timing(start: float, ends: tuple[float, ...], stop: float) -> Timing:
    """One sample of copies."""
    return Timing((max(ends),), "python", started_s=((start,),), ends_s=tuple((end,) for end in ends), beside_s=(stop,))


def test_starts_and_ends_of_a_host_are_compared() -> None:
    groups = (Group("0", (0,)), Group("1", (1,)), Group("2", (2,)))
    beside = Beside(groups, 2, 100)
    beside.add([a_timing(10.0, (1.0,), 2.0), a_timing(10.5, (1.9,), 1.9), a_timing(99.0, (3.0,), 3.0)])
    beside.add([a_timing(20.0, (1.0,), 1.5), a_timing(20.1, (1.9,), 1.9), a_timing(99.0, (3.0,), 3.0)])
    assert list(beside.skew_s) == pytest.approx([0.5, 0.1]), "rank 2 is on another host, with another clock"
    first, other = beside.of_group(groups[0]), beside.of_group(groups[2])
    assert first is not None and first.num_partly_alone == 1 and [list(e) for e in first.ends_s[0]] == [[1.0, 1.0]]
    assert other is None, "its copy ran alone"


TOGETHER = """
import json, os, sys
from bench.core import plugins
from bench.core.case import Case
from bench.core.transport import Options
from bench.core.world import World
from bench.rank import measure
from bench.rank.placement import place
from bench.transports import _cuda_gate

me = place(os.environ)
writes = 0
opens = _cuda_gate.StreamGate.open

def counted(gate, ticket):
    global writes
    before = gate._opened.value
    opens(gate, ticket)
    writes += gate._words.opens

_cuda_gate.StreamGate.open = counted
case = Case("host_device", "cuda_copy", (4096,), "uint8", mode="pipelined", iterations=4, warmup=1, direction="h2d",
            topology=sys.argv[1])
transport = plugins.load("transport", "cuda_copy").TRANSPORT(me, Options(timeout_s=30.0))
pattern = plugins.load("pattern", "host_device").PATTERN
setting = measure.Setting(case, pattern, transport, World(1, 2), ("here",) * 2, 1 << 18, 1 << 28, lambda doing: None)
writes = 0
records = [record for row in measure.Measurer(setting).rows() for record in row]
told = transport.channel.share(writes)
if me.rank == 0:
    print("FOUND" + json.dumps({
        "writes": told,
        "batches": transport.facts()["batches"],
        "calls": [r.samples.calls_per_sample for r in records],
        "skews": [len(r.samples.skew_s) for r in records],
        "least": min(min(r.samples.skew_s) for r in records),
        "beside": [r.beside is not None for r in records],
        "verified": [r.verified for r in records],
    }))
transport.close()
"""


def together(folder: Path, topology: str, launcher: tuple[str, ...], **variables: str) -> dict[str, Any]:
    """What two ranks found that copy to their GPUs."""
    script = folder / "together.py"
    script.write_text(TOGETHER, encoding="utf-8")
    env = environment(FAKE_CUDA_GPUS="2", **variables)
    done = subprocess.run(
        (*launcher, str(script), topology), env=env, capture_output=True, text=True, cwd=folder, timeout=200
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))
    found: dict[str, Any] = json.loads(line.removeprefix("FOUND"))
    return found


@pytest.mark.mpi
def test_one_write_starts_the_streams_of_all_ranks(tmp_path: Path, missing: Missing) -> None:
    link = {"FAKE_CUDA_LINK": "4e6,4e6,4e6,4e6"}  # 1 ms for each copy: two of them would be a batch of 2 ms
    found = together(tmp_path, "groups of 1", mpirun(missing), **link)
    assert found["batches"] == "behind one gate of all ranks of a host"
    assert found["writes"][0] > 0 and found["writes"][1] == 0, "only the first rank opens"
    assert found["verified"] == [True, True] and found["beside"] == [True, True]
    assert min(found["calls"]) >= 16 and found["skews"] == [4, 4] and found["least"] >= 0


@pytest.mark.mpi
def test_without_registered_memory_each_rank_has_a_gate_of_its_own(tmp_path: Path, missing: Missing) -> None:
    found = together(tmp_path, "single ranks", mpirun(missing), FAKE_CUDA_REGISTER="0")
    assert found["batches"] == "behind a gate" and min(found["writes"]) > 0
    assert found["verified"] == [True, True] and found["beside"] == [False, False]


def test_shared_memory_has_no_name_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_shared_page, "_FOLDER", tmp_path)
    memory = _shared_page.of_this_host(SingleRankChannel(), ALONE, 4096)
    assert memory is not None and len(memory) == 4096 and not any(memory[:]) and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_copy_kernel_has_as_many_blocks_as_the_driver_says(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_CUDA_BLOCKS", "2")  # with more blocks than fit, the fake fails
    found = rows(Options(engine="sm"), pattern="local_copy", engine="sm", sizes=(8 << 20,), mode="isolated")
    assert [one.verified for one in found] == [True]
    transport = cuda_copy.CudaCopy(ALONE, Options(engine="sm"))
    assert transport._blocks_per_sm == 2
    transport.close()
    assert Flag.PARTLY_ALONE not in found[0].flags
