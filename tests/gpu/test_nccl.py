"""NCCL on one real GPU: every type moved and checked, graphs, clocks, a shared GPU, and what must be refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.facts import holds
from tests.gpu.conftest import PATH

# NCCL can hang where a sandbox withholds something: ranks then end by themselves, and before the test's own limit.
LIMIT_S = 90.0

# torch may warn as it is imported (of another numpy, of NVML): that is no failure of ours.
pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]
Bench = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def bench(nccl: None, tmp_path: Path) -> Bench:
    """`bench("allreduce", "--sizes", "4K", num=2, env={...})`: code and document of rank 0, and what all ranks said."""

    def run(pattern: str, *words: str, num: int = 1, env: Mapping[str, str] | None = None) -> tuple[int, Any, str]:
        base = {**os.environ, "PYTHONPATH": PATH, **(env or {})}
        line = (
            sys.executable,
            "-m",
            f"bench.{pattern}",
            "--transport",
            "nccl",
            "--format",
            "json",
            "--timeout",
            "40",
            "--max-seconds",
            "0.1s",
            *words,
        )
        jobs = []
        for rank in range(num):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num, "LOCAL_WORLD_SIZE": num}
            told = {name: str(value) for name, value in place.items()} if num > 1 else {}
            meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000)} if num > 1 else {}
            out = (tmp_path / f"{rank}.out").open("w+", encoding="utf-8")
            err = (tmp_path / f"{rank}.err").open("w+", encoding="utf-8")
            jobs.append(
                (subprocess.Popen(line, env=base | told | meet, cwd=tmp_path, stdout=out, stderr=err), out, err)
            )
        texts, until = [], time.monotonic() + LIMIT_S
        for job, out, err in jobs:
            try:
                job.wait(timeout=max(1.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                job.kill()
                job.wait()
            for file in (out, err):
                file.seek(0)
            texts.append((out.read(), err.read()))
            out.close()
            err.close()
        text = texts[0][0]
        return jobs[0][0].returncode, json.loads(text) if text.strip() else None, "\n".join(err for _, err in texts)

    return run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int8", "int32", "int64", "uint8"])
def test_each_type_is_reduced_and_checked(dtype: str, bench: Bench) -> None:
    code, document, err = bench("allreduce", "--sizes", "64K", "-d", dtype, "--mode", "isolated", "-n", "5")
    assert code == 0, err
    (row,) = document["summaries"]
    assert row["verified"] is True and row["median_s"] > 0


@pytest.mark.parametrize(("pattern", "dtype"), [("allgather", "float8_e4m3fn"), ("broadcast", "int16"), ("alltoall", "float8_e5m2")])  # noqa: E501 # fmt: skip
def test_types_that_nccl_lacks_are_moved_as_bytes(pattern: str, dtype: str, bench: Bench) -> None:
    code, document, err = bench(pattern, "--sizes", "64K", "-d", dtype, "--mode", "isolated", "-n", "5")
    assert code == 0, err
    assert all(row["verified"] for row in document["summaries"])


def test_events_and_the_hosts_clock_agree_where_the_gpu_has_much_to_do(bench: Bench) -> None:
    code, document, err = bench("allgather", "--sizes", "256M", "--mode", "isolated", "-n", "10")
    assert code == 0, err
    facts = document["headers"]["allgather"]["facts"]
    assert float(facts["nccl_init_s"]) > 0 and float(facts["nccl_first_call_s"]) > 0
    assert facts["nccl_told_in"] == "a file of its own" or "NCCL_DEBUG" in os.environ
    # 256 MiB are read and written once: between a tenth and twice of 4.8 TB/s on an H200, and slower on any other.
    (row,) = document["summaries"]
    assert 5e-5 < row["median_s"] < 1


@pytest.mark.usefixtures("nccl")
def test_the_host_sees_no_less_time_than_the_events(tmp_path: Path) -> None:
    script = tmp_path / "clocks.py"
    script.write_text(CLOCKS, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": PATH}
    done = subprocess.run((sys.executable, str(script)), env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)  # noqa: E501 # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.partition("TOLD")[2])
    for seconds, host_s, enqueue_s in told["python"] + told["graph"]:
        assert 0 < enqueue_s <= host_s and 0 < seconds < host_s * 1.05 + 2e-6
    assert told["loops"] == ["python", "graph"] and told["cache"] and told["free"] > 1 << 30
    assert holds(told["too much"], "cuda:0", "room")
    assert told["guards"] == [True, False]


CLOCKS = """
import json
import numpy as np
from bench.core.program import Collective, Group
from bench.core.transport import Options, Reduction
from bench.core.world import Place
from bench.transports.nccl import TRANSPORT

told = {}
transport = TRANSPORT(Place(0, 1, 0, 1, "direct"), Options(timeout_s=60.0, graph=True))
world, size, reduction = Group("world", (0,)), 16 << 20, Reduction("float32", "sum")
told["cache"], told["free"] = transport.cache_bytes(), transport.available_bytes()
buffers = transport.allocate(size, size, 3)
steps = (Collective("allgather", size, size),)
told["loops"] = []
for loop in ("python", "graph"):
    compiled = transport.compile(steps, world, buffers, reduction, False)
    if loop == "python":
        compiled.release()
        compiled.native = None
    timings = [transport.time_batch(compiled, 4) for _ in range(8)] + [transport.time_each(compiled, 8)]
    told["loops"].append(loop)
    told[loop] = [list(one) for t in timings[1:] for one in zip(t.seconds, t.host_s, t.enqueue_s)]
buffers.write("send", 1, 7)
compiled.calls[1]()
assert (buffers.read("recv", 1) == 7).all()
told["guards"] = [buffers.guards_intact(0)]
buffers.guards(0)[0].part(0, 1).write(np.zeros(1, np.uint8))
told["guards"].append(buffers.guards_intact(0))
compiled.release()
try:
    transport.allocate(1 << 50, 0, 1)
except MemoryError as error:
    told["too much"] = str(error)
transport.keep_link_active()
transport.sync()
print("TOLD" + json.dumps(told))
transport.close()
"""


def test_a_captured_batch_is_replayed_and_right(bench: Bench) -> None:
    code, document, err = bench("allreduce", "--sizes", "8,64K,4M", "--graph", "1", "-n", "5")
    assert code == 0, err
    assert len(document["summaries"]) == 6 and all(row["verified"] for row in document["summaries"])


def test_two_ranks_on_one_gpu_work_and_are_marked(bench: Bench) -> None:
    code, document, err = bench(
        "allreduce",
        "--sizes",
        "8,64K",
        "--mode",
        "isolated",
        "-n",
        "3",
        "--share-gpu",
        "1",
        num=2,
        env={"CUDA_VISIBLE_DEVICES": _first_gpu()},
    )
    assert code == 0, err
    facts = document["headers"]["allreduce"]["facts"]
    assert facts["shared_gpu"] == "yes" and facts["nccl_network"]
    for row in document["summaries"]:
        assert row["verified"] and "shared_gpu" in row["flags"] and row["bound_bytes_per_s"] is None


def test_products_run_beside_a_collective_on_a_shared_gpu(bench: Bench) -> None:
    code, document, err = bench(
        "overlap",
        "--sizes",
        "64K",
        "--mode",
        "isolated",
        "-n",
        "21",
        "--share-gpu",
        "1",
        num=2,
        env={"CUDA_VISIBLE_DEVICES": _first_gpu()},
    )
    assert code == 0, err
    (row,) = document["summaries"]
    assert row["verified"] and "shared_gpu" in row["flags"]
    (overlap,) = document["overlaps"]
    assert overlap["dtype"] == "bfloat16" and overlap["factor"] > 0 and overlap["product_factor"] > 0


def test_two_ranks_on_one_gpu_are_refused_unless_asked_for(bench: Bench) -> None:
    code, _, err = bench("allreduce", "--sizes", "8", num=2, env={"CUDA_VISIBLE_DEVICES": _first_gpu()})
    assert code == 3 and (holds(err, "same GPU") or holds(err, "GPU each"))


def test_a_size_beyond_the_memory_is_skipped_and_the_next_goes_on(bench: Bench) -> None:
    code, document, err = bench("allreduce", "--sizes", "4K,1024G,8K", "--mode", "isolated", "-n", "3")
    assert code == 0, err
    assert [row["payload_bytes"] for row in document["summaries"]] == [4096, 8192]
    assert document["skipped"][0]["code"] == "no-memory"


def test_hidden_gpus_are_reported_as_hidden(bench: Bench) -> None:
    code, _, err = bench("allreduce", "--sizes", "8", env={"CUDA_VISIBLE_DEVICES": ""})
    assert code == 3 and holds(err, "CUDA_VISIBLE_DEVICES=''", "hides"), err


def test_an_impossible_network_voids_the_run(bench: Bench) -> None:
    code, _, err = bench("allreduce", "--sizes", "8", "--require", "network=efa")
    assert code == 4 and "network=efa was demanded" in err


def _first_gpu() -> str:
    """One of those that are visible now."""
    return (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0]
