"""cuda_copy on a real GPU: one is enough. What is copied is compared; no speed is asserted."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.core import plugins
from bench.core.case import Case
from bench.core.errors import MeasurementError, RefusedError
from bench.core.program import Copy, CopyStep, Group
from bench.core.record import Record
from bench.core.transport import Options, Reduction
from bench.core.world import RankInfo, World
from bench.rank import measure
from bench.transports import _cuda_device, _cuda_kernels, cuda_copy
from bench.transports._cuda_gate import StreamGate
from benchmarks import gpu_started
from tests.gpu.conftest import Missing

# CuPy may warn as it is imported (of a toolkit that it does not find, of another numpy): that is no failure of ours.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

ALONE = RankInfo(0, 1, 0, 1, "direct")
ME, BYTES = Group("me", (0,)), Reduction("uint8", "sum")
_NOT_READY = 600  # cudaErrorNotReady
MIB = 1 << 20


@pytest.fixture
def opened(missing: Missing) -> Callable[[Options], cuda_copy.CudaCopy]:
    """A transport on the first GPU."""
    try:
        _cuda_device.choose(_cuda_device.load_cupy(), ALONE, False)
    except RefusedError as error:
        missing("gpu", str(error))
    return lambda options: cuda_copy.CudaCopy(ALONE, options)


def rows(transport: cuda_copy.CudaCopy, available_bytes: int = 8 << 30, **case: Any) -> list[Record]:
    """The records of a case of this process alone."""
    given: dict[str, Any] = {"iterations": 5, "warmup": 2, "dtype": "uint8"}
    one = Case(transport="cuda_copy", **(given | case))
    pattern = plugins.load("pattern", one.pattern).PATTERN
    cache_bytes = transport.cache_bytes() or 0
    setting = measure.Setting(
        one,
        pattern,
        transport,
        World(1, 1),
        ("here",),
        cache_bytes,
        available_bytes,
        lambda doing: None,
        own_cache=True,
    )
    found = [record for records in measure.Measurer(setting).rows() for record in records]
    transport.close()
    return found


@pytest.mark.parametrize("memory", ["pinned", "pageable"])
@pytest.mark.parametrize("direction", ["h2d", "d2h", "two-way"])
def test_host_and_gpu_copy_every_byte(opened: Any, direction: str, memory: str) -> None:
    transport = opened(Options(memory=memory))
    assert transport.clock == ("device" if memory == "pinned" else "host")
    found = rows(transport, pattern="host_device", direction=direction, memory=memory, sizes=(1, MIB + 3, 32 * MIB))
    assert len(found) == 6 and all(one.verified for one in found), found
    assert all(one.samples is not None and min(one.samples.seconds) > 0 for one in found)


@pytest.mark.parametrize("engine", ["ce", "sm"])
def test_a_gpu_copies_every_byte_within_its_memory(opened: Any, engine: str) -> None:
    tile = _cuda_kernels.TILE_BYTES
    sizes = (1, 15, 16, 17, tile - 1, tile, tile + 1, 3 * tile + 100, 64 * MIB + 5)
    found = rows(opened(Options(engine=engine)), pattern="local_copy", engine=engine, sizes=sizes)
    assert len(found) == 2 * len(sizes) and all(one.verified for one in found), found


@pytest.mark.parametrize("engine", ["ce", "sm"])
def test_more_bytes_than_32_bits_count_are_copied_whole(opened: Any, engine: str) -> None:
    transport = opened(Options(engine=engine))
    size = (1 << 32) + 5
    if transport.available_bytes() < 3 * size:
        pytest.skip("the GPU has no room for two buffers of 4 GiB")
    found = rows(
        transport, 3 * size, pattern="local_copy", engine=engine, sizes=(size,), mode="pipelined", iterations=3
    )
    assert len(found) == 1 and found[0].verified, found


def test_the_facts_of_this_machine(opened: Any) -> None:
    transport = opened(Options())
    facts = transport.facts()
    assert facts["gpu"] and facts["gpu_pci_bus"].count(":") == 2 and "." in facts["cuda_driver"]
    assert facts["batches"] == "behind a gate", transport.notes
    assert (transport.cache_bytes() or 0) > 0 and transport.available_bytes() > 0
    transport.keep_link_active()
    transport.sync()
    transport.close()


def test_the_gate_holds_copies_back_until_the_host_opens_it(opened: Any) -> None:
    transport = opened(Options())
    steps = (CopyStep((Copy(0, 0, MIB, 0, 0),)),)
    compiled = transport.compile(steps, ME, transport.allocate(MIB, MIB, 2, steps), BYTES, False)
    compiled.calls[0]()
    program, runtime = compiled.native, transport._runtime
    ticket = transport._gate.shut(program.streams[0])
    program.enqueue([0, 1] * 8)
    time.sleep(0.05)
    held = runtime.streamQuery(program.streams[0])
    transport._gate.open(ticket)
    program.wait()
    transport._gate.check(ticket)
    assert held == _NOT_READY and runtime.streamQuery(program.streams[0]) == 0
    timing = transport.time_batch(compiled, 200)
    assert timing.enqueue_s == (0.0,) and 0 < timing.seconds[0] < timing.host_s[0] * 1.01
    transport.close()


def test_an_unopened_gate_opens_by_itself_and_reports_it(opened: Any) -> None:
    transport = opened(Options())
    gate = StreamGate(transport._cupy, limit_s=0.05)
    stream = transport._stream(0)
    gate.warm(stream)
    ticket = gate.shut(stream)
    transport._runtime.streamSynchronize(stream)
    with pytest.raises(MeasurementError, match="void"):
        gate.check(ticket)
    gate.close()
    transport.close()


def test_a_size_beyond_the_memory_fails_and_the_next_is_measured(opened: Any) -> None:
    transport = opened(Options())
    with pytest.raises(MemoryError):
        transport.allocate(1 << 44, 1 << 44, 1)
    # The row believes that there is room, and the GPU says that there is none.
    found = rows(transport, available_bytes=1 << 50, pattern="local_copy", sizes=(1 << 44, MIB), mode="pipelined")
    assert found[0].failed is not None and "out of memory" in found[0].failed.what
    assert found[1].verified


def test_by_hand_one_rank_needs_no_launcher_and_no_torch(opened: Any, tmp_path: Path) -> None:
    words = ("-m", "bench.host_device", "--sizes", "1M", "-n", "5", "--format", "json")
    document = printed((sys.executable, *words), tmp_path)
    assert {row["verified"] for row in document["summaries"]} == {True}


@pytest.mark.parametrize("engine", ["ce", "sm"])
def test_two_processes_copy_between_each_other_on_one_gpu(
    opened: Any, tmp_path: Path, missing: Missing, engine: str
) -> None:
    if importlib.util.find_spec("torch") is None:
        missing("gpu", "torch is not installed, over whose Gloo two ranks agree here")
    # By its address, since a sandbox may not resolve its own name.
    words = (
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr",
        "127.0.0.1",
        "--nproc-per-node",
        "2",
        "-m",
        "bench.peer_copy",
        "--sizes",
        "1M",
        "-n",
        "5",
        "--share-gpu",
        "1",
        "--engine",
        engine,
        "--format",
        "json",
    )
    document = printed((sys.executable, *words), tmp_path)
    if not document["summaries"] and document["skipped"]:
        pytest.skip(f"CUDA IPC does not work here: {document['skipped'][0]['reason']}")
    assert {row["verified"] for row in document["summaries"]} == {True}, document["failures"]
    assert all("shared_gpu" in row["flags"] for row in document["summaries"])


def test_the_benchmark_of_copies_comes_to_its_end(opened: Any) -> None:
    """Whatever it finds: a link that is missed is a finding, a part that fails is a mistake."""
    words = (sys.executable, "-m", "benchmarks.gpu_copies", "links", "memory", "--megabytes", "16,64")
    done = gpu_started.run(words, 110)
    assert done.returncode in (0, 1) and " FAILED " not in done.stdout, done.stdout + done.stderr
    assert "kernel / GPU's own copy, 64M" in done.stdout and "both ways at once, 16M" in done.stdout


def printed(words: tuple[str, ...], folder: Path) -> Any:
    """The JSON that a command prints, however it ends: torchrun ends with 1 where its ranks end with 3."""
    done = gpu_started.run(words, 100, folder)
    assert done.stdout.startswith("{"), done.stderr
    return json.loads(done.stdout)
