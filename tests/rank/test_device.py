"""A whole rank whose times a device measures: the host's view, the GPU's own cache, running out of memory."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.core import plugins
from bench.core.ends import EndCode
from bench.core.pattern import Shape
from bench.rank import session
from bench.rank.rows import BufferSets
from bench.store import heartbeat, jsonl
from tests.facts import holds
from tests.warm_ranks import Rank, WarmRanks, port_of_ranks

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = Path(__file__).with_name("fake_device.py")
Missing = Callable[[str, str], Any]

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmRanks]:
    """The process that has loaded torch for all ranks here."""
    with WarmRanks("torch.distributed") as started:
        yield started


def a_rank(env: Mapping[str, str], *words: str) -> Rank:
    """A rank on the fake device."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "SLURM_"))}
    return Rank((str(SCRIPT), *words), {**plain, "PYTHONPATH": str(ROOT), **env}, str(ROOT))


@pytest.fixture(autouse=True)
def _torch(missing: Missing) -> None:
    if importlib.util.find_spec("torch") is None:
        missing("torch", "torch is not installed")


def test_a_row_of_a_device_keeps_the_hosts_times_and_is_flagged_launch_bound(warm: WarmRanks, tmp_path: Path) -> None:
    records = tmp_path / "a.jsonl"
    words = (
        "--transport",
        "gloo",
        "--sizes",
        "8,1M,64M",
        "-n",
        "6",
        "--mode",
        "pipelined",
        "--format",
        "json",
        "--records",
        str(records),
    )
    [rank] = warm.run([a_rank({"FAKE_ENQUEUE": "0.95"}, "allgather", *words)])
    err = rank.err
    assert rank.code == 0, err
    document = json.loads(rank.out)
    rows = document["summaries"]
    assert [row["payload_bytes"] for row in rows] == [16, 1 << 20]
    for row in rows:
        assert row["host_median_s"] == pytest.approx(2 * row["median_s"], abs=2e-10)
        assert row["enqueue_fraction"] == pytest.approx(0.95)
        assert "launch-bound" in row["flags"] and row["verified"] is True and row["compared"] == "full"
    assert rows[1]["cache"] == "cold", "one set of this rank alone fills twice the GPU's cache"
    [skipped] = document["skipped"]
    assert (skipped["code"], skipped["payload_bytes"], skipped["facts"]["free_mib"]) == ("no-memory", 64 << 20, 64)
    [header] = document["headers"].values()
    assert header["clock"] == "device" and header["calibration"]["enqueue_s"] > 0
    assert holds(err, "L2 cache", "1M")
    host = socket.gethostname()
    [before] = header["nodes"][host]["gpus"]
    assert before["under_load"] is True and before["power_w"] == 90.0, "the links of all GPUs were active"
    [after] = header["nodes"][host]["gpus_at_end"]
    assert (after["throttle"], after["power_w"]) == (["sw power cap"], 700.0)
    [note] = document["notes"]
    assert holds(note, "THROTTLED", "gpu0", host, "sw power cap")
    [attempt] = jsonl.read(records).attempts
    assert attempt.header.nodes[host]["gpus_at_end"] == [after]
    assert all(len(one.samples.host_s) == len(one.samples.enqueue_s) == 6 for one in attempt.records if one.samples)


@pytest.mark.parametrize(("num_sharing", "sets"), [(1, 20), (8, 3)])
def test_one_rank_fills_a_gpus_cache_and_all_ranks_a_hosts(num_sharing: int, sets: int) -> None:
    pattern = plugins.load("pattern", "allreduce").PATTERN
    cold = BufferSets(pattern, 10 << 20, num_sharing, cold=True)
    shape = Shape(8, 512 << 10)
    assert cold.num(shape, in_place=False) == sets
    hot = replace(cold, cold=False)
    assert (cold.state(shape, False), hot.state(shape, False)) == ("cold", "hot")


def test_a_gpu_has_sets_for_a_batch_of_reductions_in_place() -> None:
    """A call in place overwrites its input, and torch's allreduce has no other form."""
    host = BufferSets(plugins.load("pattern", "allreduce").PATTERN, 0, 1, cold=False)
    gpu, small_gpu = replace(host, device_bytes=64 << 30), replace(host, device_bytes=2 << 30)
    shape = Shape(8, 64 << 20)
    assert [each.most_batch(shape, in_place=True) for each in (host, small_gpu, gpu)] == [1, 8, 16]
    assert gpu.most_batch(Shape(8, 4 << 10), in_place=True) == host.most_batch(Shape(8, 4 << 10), in_place=True)


def test_a_rank_that_runs_out_of_memory_ends_the_job_and_is_named(warm: WarmRanks, tmp_path: Path) -> None:
    records = tmp_path / "a.jsonl"
    port = str(port_of_ranks())
    words = (
        "--transport",
        "gloo",
        "--sizes",
        "1K,64K",
        "-n",
        "6",
        "-w",
        "1",
        "--mode",
        "isolated",
        "--records",
        str(records),
        "--deadline",
        "60",
        "--heartbeats",
        str(tmp_path / "beats"),
    )
    shared = {
        "FAKE_ENQUEUE": "0.3",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "FAKE_OOM": "1:65536",
    }
    ended = warm.run([a_rank({"RANK": str(k), "LOCAL_RANK": str(k), **shared}, "allreduce", *words) for k in range(2)])
    assert [rank.code for rank in ended] == [4, 4], ended
    [last] = heartbeat.last_words(ended[1].err)
    assert (last.rank, last.host, last.end.code) == (1, socket.gethostname(), EndCode.OUT_OF_MEMORY)
    assert "allreduce 64K" in last.end.facts["doing"]
    assert last.end.facts["why"].startswith("OutOfMemoryError: ") and "8.00 GiB" in last.end.facts["why"]
    [consequence] = heartbeat.last_words(ended[0].err)
    assert (consequence.rank, consequence.end.code) == (0, EndCode.LOST_CONTACT)
    assert "Traceback" not in ended[1].err
    [attempt] = jsonl.read(records).attempts
    [row] = attempt.records
    assert row.payload_bytes == 1024 and row.verified and "launch-bound" not in row.flags


def test_ranks_with_different_caches_all_use_the_largest_one() -> None:
    pattern = plugins.load("pattern", "allreduce").PATTERN
    told = [(40 << 20, True), (50 << 20, True)]
    for mine in (40, 50):
        shared: list[Any] = []
        channel = SimpleNamespace(share=lambda value, shared=shared: shared.append(value) or told)
        transport: Any = SimpleNamespace(channel=channel, cache_bytes=lambda mine=mine: mine << 20)
        assert session._cache_bytes(transport, pattern) == (50 << 20, True)
        assert shared == [(mine << 20, True)]
