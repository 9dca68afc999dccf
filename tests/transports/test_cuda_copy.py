"""cuda_copy without a GPU: real processes over a CuPy that copies in host memory (tests/fakes/cupy_host)."""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from bench.core import plugins
from bench.core.case import Case
from bench.core.codes import Coded
from bench.core.errors import MeasurementError, RefusedError
from bench.core.program import Collective, Copy, CopyStep, Exchange, Group, Product, Step
from bench.core.record import Record
from bench.core.transport import Options, Reduction
from bench.core.world import RankInfo, World
from bench.rank import measure
from bench.transports import (
    _cuda_device,
    _cuda_gate,
    _cuda_kernels,
    _cuda_memory,
    _cuda_program,
    _cuda_timing,
    cuda_copy,
)
from bench.transports._cuda_gate import MOST_CALLS, GateProblem
from bench.transports._cuda_reach import CopyRefusal
from bench.transports._device import CupyArrays
from tests.facts import holds

ROOT = Path(__file__).resolve().parent.parent.parent
FAKE = ROOT / "tests" / "fakes" / "cupy_host"
Missing = Callable[[str, str], NoReturn]
ALONE = RankInfo(0, 1, 0, 1, "direct")
TO_GPU = (CopyStep((Copy(0, 0, 4096, None, 0),)),)
COPY = (CopyStep((Copy(0, 0, 4096, 0, 0),)),)
BYTES = Reduction("uint8", "sum")
ME = Group("me", (0,))


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The fake in the place of CuPy, in this process."""
    for name in [name for name in sys.modules if name.split(".")[0] == "cupy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield importlib.import_module("cupy")
    for name in [name for name in sys.modules if name.split(".")[0] == "cupy"]:
        sys.modules.pop(name)


def rows(options: Options, **case: Any) -> list[Record]:
    """The records of a case, measured in this process alone."""
    given: dict[str, Any] = {"sizes": (100_003,), "dtype": "uint8", "iterations": 3, "warmup": 1}
    one = Case(transport="cuda_copy", **(given | case))
    transport = cuda_copy.CudaCopy(ALONE, options)
    pattern = plugins.load("pattern", one.pattern).PATTERN
    setting = measure.Setting(one, pattern, transport, World(1, 1), ("here",), 1 << 18, 1 << 28, lambda doing: None)
    found = [record for records in measure.Measurer(setting).rows() for record in records]
    transport.close()
    return found


# -- what is copied, and how


@pytest.mark.thin(3)
@pytest.mark.parametrize("memory", ["pinned", "pageable"])
@pytest.mark.parametrize("direction", ["h2d", "d2h", "two-way"])
@pytest.mark.usefixtures("cupy")
def test_every_direction_and_kind_of_host_memory_is_copied_completely(
    memory: str, direction: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_CUDA_LOG", str(tmp_path / "log"))
    found = rows(Options(memory=memory), pattern="host_device", direction=direction, memory=memory)
    assert [(one.mode, one.verified, one.skipped) for one in found] == [
        ("isolated", True, None),
        ("pipelined", True, None),
    ]
    assert all(one.samples is not None and min(one.samples.seconds) > 0 for one in found)
    ways = {"h2d": {f"{memory} gpu0"}, "d2h": {f"gpu0 {memory}"}}
    wanted = ways.get(direction, ways["h2d"] | ways["d2h"])
    log = (tmp_path / "log").read_text().splitlines()
    assert {line.split(maxsplit=1)[1] for line in log if line.endswith(" 100003")} == {
        f"{way} 100003" for way in wanted
    }


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "by"), [("sm", "bench_copy"), ("chase", "bench_chase")])
@pytest.mark.usefixtures("cupy")
def test_kernels_copy_from_and_to_pinned_memory_of_the_host(
    engine: str, by: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_CUDA_LOG", str(tmp_path / "log"))
    found = rows(Options(engine=engine), pattern="host_device", direction="two-way", engine=engine)
    assert [one.verified for one in found] == [True, True]
    log = (tmp_path / "log").read_text().splitlines()
    assert {line for line in log if line.endswith(" 100003")} == {
        f"{by} pinned gpu0 100003",
        f"{by} gpu0 pinned 100003",
    }


@pytest.mark.slow
@pytest.mark.parametrize(("sms", "num_blocks"), [(1, 1), (2, 2), (0, 4)])
def test_a_kernel_uses_as_many_blocks_as_it_may_have_sms(
    sms: int, num_blocks: int, cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids: list[int] = []
    launch = cupy.cuda.runtime.launch

    def seen(name: str, grid: tuple[int, ...], *more: Any) -> None:
        if name == "bench_copy" and more[1][2]:
            grids.append(grid[0])
        launch(name, grid, *more)

    monkeypatch.setattr(cupy.cuda.runtime, "launch", seen)
    case = Case("local_copy", engine="sm", sms=sms)
    size = 4 * _cuda_kernels.TILE_BYTES
    assert all(one.verified for one in rows(Options(engine="sm", case=case), pattern="local_copy", sizes=(size,)))
    assert set(grids) == {num_blocks}


@pytest.mark.parametrize("engine", ["ce", "sm"])
@pytest.mark.usefixtures("cupy")
def test_a_gpu_copies_within_its_memory_by_copy_engine_or_kernel(
    engine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_CUDA_LOG", str(tmp_path / "log"))
    assert all(one.verified for one in rows(Options(engine=engine), pattern="local_copy", engine=engine))
    by = {"ce": "memcpyAsync", "sm": "bench_copy"}[engine]
    log = (tmp_path / "log").read_text().splitlines()
    assert {line.split()[0] for line in log if line.endswith(" gpu0 gpu0 100003")} == {by}


@pytest.mark.parametrize("case", [{"pattern": "host_device"}, {"pattern": "local_copy", "engine": "sm"}])
@pytest.mark.usefixtures("cupy")
def test_a_missing_last_byte_is_found(case: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_DROPS", "1")
    for one in rows(Options(engine=case.get("engine", "ce")), **case):
        assert one.failed is not None and one.num_wrong == 1, "only the last byte"


@pytest.mark.usefixtures("cupy")
def test_a_size_that_runs_out_of_memory_fails_and_the_next_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = sys.modules["cupy.cuda.runtime"]
    monkeypatch.setattr(runtime, "_MEMORY_BYTES", 64 << 20)  # less than it says that there is
    found = rows(Options(), pattern="local_copy", sizes=(40 << 20, 4096), mode="pipelined", cache="hot")
    assert found[0].failed is not None and "144 MiB" in found[0].failed.what
    assert found[0].verified is None and found[1].verified


@pytest.mark.usefixtures("cupy")
def test_memory_is_freed_after_each_row() -> None:
    runtime: Any = sys.modules["cupy.cuda.runtime"]
    transport = cuda_copy.CudaCopy(ALONE, Options())
    before = len(runtime._state.allocations)
    for _ in range(3):
        buffers = transport.allocate(4096, 4096, 2, COPY)
        compiled = transport.compile(COPY, ME, buffers, BYTES, False)
        compiled.calls[0]()
        assert compiled.release is not None
        compiled.release()
        del buffers, compiled
        assert len(runtime._state.allocations) == before and not runtime._state.events


@pytest.mark.usefixtures("cupy")
def test_a_call_returns_when_its_copies_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime: Any = sys.modules["cupy.cuda.runtime"]
    transport = cuda_copy.CudaCopy(ALONE, Options())
    compiled = transport.compile(COPY, ME, transport.allocate(4096, 4096, 1, COPY), BYTES, False)
    monkeypatch.setenv("FAKE_CUDA_COPY_S", "0.02")
    compiled.calls[0]()
    streams = [runtime._on(stream) for stream in compiled.native.streams]
    assert [stream.num_done for stream in streams] == [stream.num_put for stream in streams] != []


# -- the gate


@pytest.mark.usefixtures("cupy")
def test_a_batch_waits_until_all_of_it_is_in_the_queue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    transport = cuda_copy.CudaCopy(ALONE, Options())
    monkeypatch.setenv("FAKE_CUDA_LOG", str(tmp_path / "log"))
    assert transport._gate is not None and transport.facts()["batches"] == "behind a gate"
    compiled = transport.compile(COPY, ME, transport.allocate(4096, 4096, 3, COPY), BYTES, False)
    begun: list[int] = []
    opens = transport._gate.open

    def before_it_opens(ticket: int) -> None:
        begun.append((tmp_path / "log").read_text().count("memcpyAsync") if (tmp_path / "log").exists() else 0)
        opens(ticket)

    monkeypatch.setattr(transport._gate, "open", before_it_opens)
    timing = transport.time_batch(compiled, MOST_CALLS + 6)
    assert begun == [1, 1 + MOST_CALLS], "after one call to warm up nothing is copied before the gate opens"
    assert len(timing.seconds) == len(timing.host_s) == 1 and timing.enqueue_s == (0.0,)
    assert 0 < timing.seconds[0] <= timing.host_s[0]
    assert (compiled.last_set, compiled.next_set) == ((MOST_CALLS + 5) % 3, (MOST_CALLS + 6) % 3)


@pytest.mark.usefixtures("cupy")
def test_a_batch_whose_gate_opened_by_itself_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = cuda_copy.CudaCopy(ALONE, Options())
    compiled = transport.compile(COPY, ME, transport.allocate(4096, 4096, 1, COPY), BYTES, False)
    assert transport._gate is not None
    monkeypatch.setattr(transport._gate, "_limit_s", 0.01)
    monkeypatch.setattr(transport._gate, "open", lambda ticket: threading.Event().wait(0.1))
    with pytest.raises(MeasurementError, match="void"):
        transport.time_batch(compiled, 2)


@pytest.mark.parametrize("variable", ["CUDA_LAUNCH_BLOCKING=1", "FAKE_CUDA_NVRTC=0"])
@pytest.mark.usefixtures("cupy")
def test_without_a_gate_batches_are_timed_with_a_note(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*variable.split("="))
    transport = cuda_copy.CudaCopy(ALONE, Options())
    assert transport._no_gate is not None and transport._no_gate.text in transport.notes[0]
    compiled = transport.compile(COPY, ME, transport.allocate(4096, 4096, 1, COPY), BYTES, False)
    timing = transport.time_batch(compiled, 4)
    assert timing.seconds[0] > 0 and timing.enqueue_s[0] > 0
    kernels = cuda_copy.CudaCopy(ALONE, Options(engine="sm")).unsupported_reason(COPY[0], BYTES, False)
    assert (kernels is not None and kernels.code == CopyRefusal.NO_KERNELS) == ("NVRTC" in variable)


@pytest.mark.parametrize(
    ("variable", "code"),
    [("FAKE_CUDA_STAGES", GateProblem.STAGED), ("FAKE_CUDA_BLIND", GateProblem.FAILED)],
)
@pytest.mark.usefixtures("cupy")
def test_a_gate_that_would_void_every_batch_is_not_used(
    variable: str, code: GateProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cuda_gate, "TRIAL_S", 0.05)
    monkeypatch.setattr(_cuda_timing, "TRIAL_S", 0.05)
    monkeypatch.setenv(variable, "1")
    transport = cuda_copy.CudaCopy(ALONE, Options())
    assert transport._no_gate is not None and transport._no_gate.code == code
    assert transport._no_gate.text in transport.notes[0] and transport._no_gate.text in transport.facts()["batches"]
    buffers = transport.allocate(4096, 4096, 1, TO_GPU)
    compiled = transport.compile(TO_GPU, ME, buffers, BYTES, False)
    assert transport.time_batch(compiled, 4).enqueue_s[0] > 0, "timed as it is issued"
    transport.close()


@pytest.mark.slow
@pytest.mark.usefixtures("cupy")
def test_without_pinned_memory_a_gpu_still_copies_within_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = sys.modules["cupy.cuda.runtime"]

    def refuse(size: int, flags: int) -> int:
        raise runtime.CUDARuntimeError(801)

    monkeypatch.setattr(runtime, "hostAlloc", refuse)
    transport = cuda_copy.CudaCopy(ALONE, Options())
    assert "cudaErrorNotSupported" in transport.notes[0]
    transport.keep_link_active()
    transport.close()
    assert all(one.verified for one in rows(Options(), pattern="local_copy"))


@pytest.mark.usefixtures("cupy")
def test_everything_is_freed_at_the_end() -> None:
    runtime: Any = sys.modules["cupy.cuda.runtime"]
    transport = cuda_copy.CudaCopy(ALONE, Options())
    transport.keep_link_active()
    transport.close()
    assert not runtime._state.allocations and not runtime._state.streams and not runtime._state.events


@pytest.mark.usefixtures("cupy")
def test_an_unusable_gate_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime: Any = sys.modules["cupy.cuda.runtime"]

    def broken(*given: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(_cuda_timing, "behind_gate", broken)
    transport = cuda_copy.CudaCopy(ALONE, Options())
    gc.collect()  # the memory of the trial
    assert "broken" in transport.notes[0]
    assert not runtime._state.allocations and not runtime._state.events
    transport.close()


@pytest.mark.usefixtures("cupy")
def test_a_gate_that_another_rank_lacks_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime: Any = sys.modules["cupy.cuda.runtime"]
    problems = [None, Coded.uncoded("rank 1")]  # of the kernels, and of the gate
    monkeypatch.setattr(cuda_copy.CudaCopy, "_first_of_any", lambda self, problem: problems.pop(0))
    transport = cuda_copy.CudaCopy(ALONE, Options())
    gc.collect()
    assert "rank 1" in transport.notes[0] and not runtime._state.allocations
    transport.close()


@pytest.mark.usefixtures("cupy")
def test_two_directions_take_until_the_later_end() -> None:
    transport = cuda_copy.CudaCopy(ALONE, Options())
    both = (CopyStep((Copy(0, 0, 1 << 20, None, 0), Copy(0, 0, 64, 0, None, 1 << 20, 1 << 20))),)
    size = (1 << 20) + 64
    compiled = transport.compile(both, ME, transport.allocate(size, size, 1, both), BYTES, False)
    timing = transport.time_batch(compiled, 8)
    ends_s = compiled.native.ends_s()
    assert len(ends_s) == 2 and timing.seconds[0] == pytest.approx(max(ends_s) / 8) and min(ends_s) > 0


def test_all_streams_wait_for_one_event_before_their_first_copy() -> None:
    """Otherwise the second stream starts while the host still issues the copies of the first."""
    made: list[tuple[Any, ...]] = []
    events = iter(("begin", "end 0", "end 1", "stop 0", "stop 1"))
    runtime = SimpleNamespace(
        eventCreate=lambda: next(events),
        eventRecord=lambda event, stream: made.append((stream, event)),
        streamWaitEvent=lambda stream, event: made.append((stream, f"wait for {event}")),
    )
    copies = [[partial(made.append, (stream, f"copy of set {k}")) for stream in (7, 8)] for k in range(2)]
    program = _cuda_program.CopyProgram(runtime, 0, (7, 8, 9), copies, False)
    program.enqueue((0, 1), (1, 0))
    first, second = ([what for stream, what in made if stream == each] for each in (7, 8))
    assert first == ["begin", "copy of set 0", "copy of set 1", "end 0", "copy of set 0", "stop 0"]
    assert second == ["wait for begin", "copy of set 0", "copy of set 1", "end 1", "stop 1"]
    assert made.index((7, "begin")) < made.index((8, "wait for begin"))


# -- what is refused


@pytest.mark.parametrize(
    ("environment", "ranks", "why"),
    [
        ({"FAKE_CUDA_GPUS": "no-driver"}, 1, "no NVIDIA driver"),
        ({"FAKE_CUDA_GPUS": "0"}, 1, "found no GPU"),
        ({"CUDA_VISIBLE_DEVICES": ""}, 1, "CUDA_VISIBLE_DEVICES=''"),
        ({"FAKE_CUDA_GPUS": "2"}, 3, r"3 ranks .* 2: .*--share-gpu 1"),
        ({"FAKE_CUDA_GPUS": "4", "CUDA_VISIBLE_DEVICES": "0,1"}, 3, r"2 \(CUDA_VISIBLE_DEVICES=0,1\)"),
    ],
)
def test_missing_gpus_are_refused(
    cupy: Any, environment: dict[str, str], ranks: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RefusedError, match=why):
        _cuda_device.choose(cupy, RankInfo(0, ranks, 0, ranks, "torchrun"), False)


def test_a_rank_uses_the_gpu_of_its_local_rank_or_the_only_visible_one(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = RankInfo(3, 4, 1, 2, "torchrun")
    monkeypatch.setenv("FAKE_CUDA_GPUS", "2")
    assert _cuda_device.choose(cupy, second, False) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert _cuda_device.choose(cupy, second, False) == 0 and _cuda_device.describe(cupy, 0).bus == "0000:02:00.0"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("FAKE_CUDA_GPUS", "1")
    assert _cuda_device.choose(cupy, second, True) == 0, "shared, as asked for"
    assert _cuda_device.shared_by([("a", "1", "x"), ("b", "1", "x"), ("a", "1", "x")]) == (0, 2)


def test_a_gpu_in_exclusive_use_is_refused(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def held() -> None:
        raise cupy.cuda.runtime.CUDARuntimeError(46)

    monkeypatch.setitem(cupy.cuda.runtime._NAMES, 46, "cudaErrorDevicesUnavailable")
    monkeypatch.setattr(cupy.cuda.runtime, "memGetInfo", held)
    why = r"GPU 0 .*cudaErrorDevicesUnavailable.*nvidia-smi"
    with pytest.raises(RefusedError, match=why) as refused:
        _cuda_device.take(cupy, 0)
    assert refused.value.of_one_rank


def refusal(transport: cuda_copy.CudaCopy, step: Step) -> str | None:
    """The code of the refusal of a step."""
    skip = transport.unsupported_reason(step, BYTES, False)
    return None if skip is None else skip.code


@pytest.mark.usefixtures("cupy")
def test_unsupported_steps_have_a_code() -> None:
    transport = cuda_copy.CudaCopy(ALONE, Options(engine="sm"))
    for step in (Collective("allreduce", 8, 8), Exchange()):
        assert refusal(transport, step) == CopyRefusal.NO_MESSAGES
    assert refusal(transport, Product(8)) == CopyRefusal.NO_PRODUCTS
    assert refusal(transport, COPY[0]) is None and refusal(transport, TO_GPU[0]) is None
    pageable = cuda_copy.CudaCopy(ALONE, Options(engine="sm", memory="pageable"))
    assert refusal(pageable, TO_GPU[0]) == CopyRefusal.HOST_BY_KERNEL and refusal(pageable, COPY[0]) is None
    for engine in ("ce", "chase"):
        few = cuda_copy.CudaCopy(ALONE, Options(engine=engine, case=Case("local_copy", sms=2)))
        assert refusal(few, COPY[0]) == CopyRefusal.SMS_OF_ENGINE


@pytest.mark.usefixtures("cupy")
def test_facts_memory_cache_and_keeping_the_link_active() -> None:
    options = Options(
        near_cpus=lambda bus: (0,) if bus == "0000:01:00.0" else (),
        near_node=lambda bus: 0 if bus == "0000:01:00.0" else None,
    )
    transport = cuda_copy.CudaCopy(ALONE, options)
    facts = transport.facts()
    assert (facts["gpu"], facts["cuda"], facts["cuda_driver"]) == ("Fake GPU", "13.0", "13.1")
    assert (
        holds(facts["host_memory"], "pinned,", "on NUMA node 0, that of the GPU") and facts["peer_access"] == "one GPU"
    )
    assert transport.cache_bytes() == 1 << 16 and transport.available_bytes() > 0
    cpus = os.sched_getaffinity(0)
    transport.keep_link_active()
    transport.sync()
    assert os.sched_getaffinity(0) == cpus, "only memory is made beside the GPU"


# -- memory


def test_parts_of_buffers_lie_where_the_copies_say() -> None:
    steps = (CopyStep((Copy(0, 0, 100, None, 0), Copy(0, 0, 100, 0, None, 100, 100))),)
    found = _cuda_memory.layout(200, 200, 0, steps, lambda member: 7)
    assert [(part.side, part.begin, part.where) for part in found.parts] == [
        ("send", 0, _cuda_memory.HOST),
        ("send", 100, 7),
        ("recv", 0, 7),
        ("recv", 100, _cuda_memory.HOST),
    ]
    assert all(part.start % _cuda_memory.ALIGNMENT_BYTES == 0 for part in found.parts)
    where, at = found.find("recv", 2, 150, 50)
    assert where == _cuda_memory.HOST and at == 2 * found.stride[where] + found.parts[3].start + 50
    with pytest.raises(ValueError, match="several places"):
        found.find("send", 0, 50, 100)
    assert [part.where for part in _cuda_memory.layout(0, 8, 1, (), lambda member: member).parts] == [1]


def test_the_grid_of_the_copying_kernel_is_of_whole_tiles_up_to_what_the_gpu_holds() -> None:
    assert _cuda_kernels.copy_grid(1, 132) == _cuda_kernels.copy_grid(_cuda_kernels.TILE_BYTES, 132) == 1
    assert _cuda_kernels.copy_grid(_cuda_kernels.TILE_BYTES + 1, 132) == 2
    assert _cuda_kernels.copy_grid(1 << 30, 132) == 4 * 132


@pytest.mark.filterwarnings("ignore")  # CuPy may warn as it is imported
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_the_kernels_compile_where_nvrtc_is_there(architecture: str) -> None:
    nvrtc = pytest.importorskip("cupy.cuda", reason="CuPy is not installed").nvrtc
    try:
        nvrtc.getVersion()
    except Exception as error:
        pytest.skip(f"NVRTC does not load: {error}")
    for source in (_cuda_kernels.COPY, _cuda_kernels.GATE):
        program = nvrtc.createProgram(source, "kernel.cu", (), ())
        nvrtc.compileProgram(program, ("-std=c++17", f"-arch={architecture}"))
        assert len(nvrtc.getCUBIN(program)) > 1000


@pytest.mark.filterwarnings("ignore")
def test_the_fake_has_no_function_that_cupy_does_not_have() -> None:
    real = pytest.importorskip("cupy.cuda.runtime", reason="CuPy is not installed")
    code = (FAKE / "cupy" / "cuda" / "runtime.py").read_text(encoding="utf-8")
    named = [line[4:].split("(")[0] for line in code.splitlines() if line.startswith("def ") and line[4] != "_"]
    assert not [name for name in named if not hasattr(real, name) and name not in ("view", "launch")]


@pytest.mark.slow
@pytest.mark.usefixtures("cupy")
def test_without_headers_for_cupys_kernels_the_host_compares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CuPy's own kernels need more headers than those of this suite."""

    def no_header(*_: Any) -> None:
        raise RuntimeError("catastrophic error: cannot open source file cuda_fp16.h")

    monkeypatch.setattr(CupyArrays, "copy", no_header)
    for drops in (None, "1"):
        if drops:
            monkeypatch.setenv("FAKE_CUDA_DROPS", drops)
        found = rows(Options(engine="sm"), pattern="local_copy", engine="sm")
        assert [one.num_wrong for one in found] == [1 if drops else 0] * 2, found


# -- whole programs


def environment(**variables: str) -> dict[str, str]:
    """For a process that finds the fake, and few threads."""
    path = os.pathsep.join([str(FAKE), str(ROOT)])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FAKE_CUDA", "CUDA_"))}
    return kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | variables


def test_one_rank_by_hand(tmp_path: Path) -> None:
    options = ("--sizes", "64K", "--direction", "two-way", "-n", "3", "--format", "json")
    words = (sys.executable, "-m", "bench.host_device", *options)
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, cwd=tmp_path, timeout=280)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {(row["transport"], row["verified"]) for row in document["summaries"]} == {("cuda_copy", True)}
    assert all(row["busbw_bytes_per_s"] for row in document["summaries"]), "one rank's link is a link"


def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    words = (sys.executable, "-m", "bench.local_copy", "--sizes", "64K")
    for gpus, why in (("no-driver", "no NVIDIA driver"), ("0", "found no GPU")):
        done = subprocess.run(
            words, env=environment(FAKE_CUDA_GPUS=gpus), capture_output=True, text=True, cwd=tmp_path, timeout=60
        )
        assert done.returncode == 3 and why in done.stderr and "Traceback" not in done.stderr


# Every way of a peer copy in one start of the ranks: results and codes of skips, on rank 0.
PEERS = """
import gc, json, os, sys
from dataclasses import replace
from bench.core import plugins
from bench.core.case import Case
from bench.core.transport import Options
from bench.core.world import World
from bench.rank import measure
from bench.rank.placement import place

me = place(os.environ)
if me.rank == 1 and "MEMORY_OF_RANK_1" in os.environ:
    os.environ["FAKE_CUDA_MEMORY"] = os.environ["MEMORY_OF_RANK_1"]
found = {}
gc.freeze()  # each row collects all garbage
kept = lambda flags: [flag for flag in flags if flag not in ("starved-rank", "partly-alone")]  # a busy machine
for words in sys.argv[1:]:
    options = dict(word.split("=") for word in words.split(","))
    case = Case("peer_copy", "cuda_copy", (100_003,), "uint8", mode="pipelined", iterations=1, warmup=1, **options)
    if "transport" not in globals():
        transport = plugins.load("transport", "cuda_copy").TRANSPORT(me, Options(timeout_s=30.0))
        print("CONTROL " + transport.facts()["control_plane"])
    transport._options = replace(transport._options, engine=case.engine)
    pattern = plugins.load("pattern", "peer_copy").PATTERN
    hosts = ("here",) * 2
    setting = measure.Setting(case, pattern, transport, World(1, 2), hosts, 1 << 18, 1 << 28, lambda doing: None)
    for records in measure.Measurer(setting).rows():
        for r in records:
            failed = f"failed {r.failed.code} {r.failed.facts.get('num_wrong')}" if r.failed else None
            what = r.skipped and r.skipped.code or failed or f"verified {r.verified} {' '.join(kept(r.flags))}"
            found.setdefault(words, set()).add(what.strip())
if me.rank == 0:
    print("FOUND" + json.dumps({key: sorted(value) for key, value in found.items()}))
transport.close()
"""
WAYS = tuple(
    f"via={via},engine={engine},access={access},direction={direction}"
    for via in ("ipc", "process")
    for engine in ("ce", "sm")
    for access in ("write", "read")
    for direction in ("one-way", "two-way")
)


def peers(tmp_path: Path, ways: tuple[str, ...], launcher: tuple[str, ...], **variables: str) -> tuple[str, Any]:
    """(all output, what rank 0 found) of two ranks."""
    script = tmp_path / "peers.py"
    script.write_text(PEERS, encoding="utf-8")
    env = environment(**({"FAKE_CUDA_GPUS": "2", "FAKE_CUDA_STRICT": "1"} | variables))
    done = subprocess.run(
        (*launcher, str(script), *ways), env=env, capture_output=True, text=True, cwd=tmp_path, timeout=100
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))
    return done.stdout, json.loads(line.removeprefix("FOUND"))


def torchrun(missing: Missing) -> tuple[str, ...]:
    if importlib.util.find_spec("torch") is None:
        missing("torch", "PyTorch is not installed")
    return (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.slow
@pytest.mark.torch
def test_two_ranks_of_torchrun_agree_over_gloo(tmp_path: Path, missing: Missing) -> None:
    said, found = peers(tmp_path, ("via=ipc",), torchrun(missing))
    assert found == {"via=ipc": ["verified True"]} and "CONTROL gloo" in said


def mpirun(missing: Missing) -> tuple[str, ...]:
    beside = Path(sys.executable).parent / "mpirun"
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None or importlib.util.find_spec("mpi4py") is None:
        missing("mpi", "mpirun or mpi4py is not here")
    return (found, "-n", "2", sys.executable)


@pytest.mark.mpi
def test_two_ranks_copy_between_their_gpus_in_every_way(tmp_path: Path, missing: Missing) -> None:
    said, found = peers(tmp_path, WAYS, mpirun(missing))
    assert found == {way: ["verified True"] for way in WAYS} and "CONTROL mpi" in said


NO_PEER = ("via=process,engine=ce", "via=process,engine=sm", "via=ipc,engine=ce")


@pytest.mark.mpi
def test_gpus_without_peer_access_copy_through_the_host(tmp_path: Path, missing: Missing) -> None:
    said, found = peers(tmp_path, NO_PEER, mpirun(missing), FAKE_CUDA_PEERS="0")
    assert "CONTROL mpi" in said and found[NO_PEER[0]] == ["verified True through-host"]
    assert found[NO_PEER[1]] == ["copy-no-peer-access"]
    assert found[NO_PEER[2]] == ["copy-not-reachable"]


@pytest.mark.mpi
def test_a_driver_without_handles_skips_on_all_ranks_and_wrong_data_of_a_peer_is_found(
    tmp_path: Path, missing: Missing
) -> None:
    _, found = peers(tmp_path, ("via=ipc", "via=process"), mpirun(missing), FAKE_CUDA_IPC="0")
    assert found["via=ipc"] == ["copy-not-shareable"] and found["via=process"] == ["verified True"]
    _, found = peers(tmp_path, ("via=ipc", "via=process"), mpirun(missing), FAKE_CUDA_DROPS="1")
    assert found == {way: ["failed wrong-before-timing 1"] for way in ("via=ipc", "via=process")}


@pytest.mark.mpi
def test_a_rank_without_memory_fails_the_row_on_all_ranks(tmp_path: Path, missing: Missing) -> None:
    ways = ("via=ipc", "via=process,access=write")
    _, found = peers(tmp_path, ways, mpirun(missing), MEMORY_OF_RANK_1="1000000")
    assert found["via=ipc"] == ["failed out-of-memory None"]
    assert "verified True" in found[ways[1]], "0 to 1, both ends held by rank 0"


@pytest.mark.slow
@pytest.mark.mpi
def test_two_ranks_on_one_gpu_are_refused_or_flagged(tmp_path: Path, missing: Missing) -> None:
    words = (*mpirun(missing), "-m", "bench.peer_copy", "--sizes", "4K", "-n", "2", "--format", "json")
    env = environment(FAKE_CUDA_GPUS="1")
    done = subprocess.run(words, env=env, capture_output=True, text=True, cwd=tmp_path, timeout=280)
    assert done.returncode == 3 and "--share-gpu 1" in done.stderr
    done = subprocess.run(
        (*words, "--share-gpu", "1"), env=env, capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert all("shared_gpu" in row["flags"] for row in json.loads(done.stdout)["summaries"])
