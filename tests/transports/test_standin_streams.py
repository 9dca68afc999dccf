"""The stand-ins of CUDA bite: what a GPU would not do, or would time otherwise, is an error or a wait here, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

# One rank of NCCL over a torch whose streams are threads; each call of the library takes 50 ms on its stream.
TORCH = """
import os, sys, time
from bench.core.program import Collective, Group
from bench.core.transport import Options, Reduction
from bench.core.world import RankInfo
from bench.transports.nccl import Nccl
import torch

what = sys.argv[1]
transport = Nccl(RankInfo(0, 1, 0, 1, "direct"), Options(graph=what.startswith("graph")))
step, me = Collective("allreduce", 4096, 4096), Group("me", (0,))
transport.open_groups((me,))
buffers = transport.allocate(4096, 4096, 3, (step,))
compiled = transport.compile((step,), me, buffers, Reduction("float32", "sum"), True)
stream = torch.cuda.current_stream()
if what == "sync":
    compiled.calls[0]()
    assert not stream.query(), "a call returns before its work is done"
    transport.sync()
    assert stream.query()
elif what == "finish":
    compiled.calls[0]()
    transport.finish()
    assert stream.query()
elif what == "other-stream":
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        compiled.calls[0]()
    transport.sync()
    assert other.query()
elif what == "times":
    for timing in (transport.time_each(compiled, 2), transport.time_batch(compiled, 4)):
        for device_s, host_s, enqueue_s in zip(timing.seconds, timing.host_s, timing.enqueue_s):
            assert 0.05 <= device_s <= host_s * 1.001, (device_s, host_s)
            assert enqueue_s <= host_s
elif what == "graph-after-work":
    compiled.calls[1]()
    transport.time_batch(compiled, 2)
    assert stream.query()
elif what == "graph-times":
    transport.time_batch(compiled, 2)
    timing = transport.time_batch(compiled, 2)
    assert all(0.05 <= a <= b * 1.001 for a, b in zip(timing.seconds, timing.host_s)), timing
print("HELD")
os._exit(0)
"""
# CUDA of CuPy; every copy takes 10 ms.
CUPY = """
import os, sys, threading, time
from bench.core.program import Copy, CopyStep, Group
from bench.core.transport import Options, Reduction
from bench.core.world import RankInfo
from bench.transports.cuda_copy import CudaCopy

what = sys.argv[1]
memory = "pageable" if what == "pageable" else "pinned"
place = RankInfo(0, 1, 1, 2, "direct") if what == "pageable" else RankInfo(0, 1, 0, 1, "direct")  # the second GPU
transport = CudaCopy(place, Options(memory=memory))
assert memory == "pageable" or transport.facts()["batches"] == "behind a gate"
runtime = transport._runtime
me = Group("me", (0,))
ways = ((None, 0), (0, None)) if what in ("two-way", "pageable") else ((None, 0),)
steps = (CopyStep(tuple(Copy(0, 0, 4096, *way, k * 4096, k * 4096) for k, way in enumerate(ways))),)
buffers = transport.allocate(8192, 8192, 2, steps)
compiled = transport.compile(steps, me, buffers, Reduction("uint8", "sum"), False)
if what in ("times", "two-way", "pageable"):
    timings = [transport.time_each(compiled, 2), transport.time_batch(compiled, 4)]
    for timing in timings:
        host = timing.host_s or timing.seconds
        assert all(0.01 <= a <= b * 1.001 for a, b in zip(timing.seconds, host)), timing
elif what in ("malloc", "free", "hostAlloc", "freeHost"):
    from bench.transports._cuda_gate import StreamGate
    gate = StreamGate(transport._cupy)
    own = runtime.malloc(64) if what == "free" else runtime.hostAlloc(64, 0) if what == "freeHost" else 0
    call = getattr(runtime, what)
    words = {"malloc": (64,), "free": (own,), "hostAlloc": (64, 0), "freeHost": (own,)}[what]
    stream = runtime.streamCreateWithFlags(1)
    gate.warm(stream)
    ticket = gate.shut(stream)
    waiting = threading.Thread(target=call, args=words, daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive(), f"{what} did not wait for the gate"
    gate.open(ticket)
    waiting.join(20)
    assert not waiting.is_alive()
elif what == "queue":
    from bench.transports._cuda_gate import StreamGate
    gate = StreamGate(transport._cupy)
    stream, event = runtime.streamCreateWithFlags(1), runtime.eventCreate()
    gate.warm(stream)
    ticket = gate.shut(stream)
    for _ in range(990):
        runtime.eventRecord(event, stream)
    more = threading.Thread(target=lambda: [runtime.eventRecord(event, stream) for _ in range(20)], daemon=True)
    more.start()
    more.join(0.2)
    assert more.is_alive(), "a queue has no end"
    gate.open(ticket)
    more.join(20)
    assert not more.is_alive()
print("HELD")
os._exit(0)
"""


def run(script: str, what: str, fake: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FAKE_", "CUDA_", "NCCL_"))}
    path = os.pathsep.join([str(ROOT / "tests" / "fakes" / fake), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", script, what],
        env=kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("what", ["sync", "finish", "other-stream", "times", "graph-after-work", "graph-times"])
def test_nccl_waits_for_its_streams_and_its_times_are_the_hosts(what: str) -> None:
    pytest.importorskip("torch")
    done = run(TORCH, what, "nccl", FAKE_GPUS="1", FAKE_CALL_S="0.05")
    assert "HELD" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize("what", ["times", "two-way", "pageable"])
def test_times_of_copies_are_the_hosts(what: str) -> None:
    done = run(CUPY, what, "cupy_host", FAKE_CUDA_COPY_S="0.01", FAKE_CUDA_GPUS="2")
    assert "HELD" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize("what", ["malloc", "free", "hostAlloc", "freeHost", "queue"])
def test_a_shut_gate_blocks_allocations_and_a_full_queue_the_caller(what: str) -> None:
    done = run(CUPY, what, "cupy_host")
    assert "HELD" in done.stdout, done.stderr[-2000:]
