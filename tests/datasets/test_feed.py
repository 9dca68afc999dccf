"""`python -m bench.feed` as users run it: results, skipped rows, failures, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.core.case import Case
from bench.core.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, EXIT_USAGE, MeasurementError
from bench.core.program import Group, Read
from bench.core.record import Failure, Header, ReadSamples, Record, Samples
from bench.core.transport import Compiled, Options, Reduction
from bench.core.world import RankInfo
from bench.datasets import page_cache
from bench.datasets.messages import DatasetError, DatasetFailure, DatasetSkip
from bench.results import feeds
from bench.transports.storage import Storage

SMALL = ["--sizes", "2M", "--mode", "isolated", "-n", "5", "--record", "64K", "--share-hosts"]


def feed(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.feed", *SMALL, "--folder", str(folder), "--format", "json", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def fed(folder: Path, *more: str) -> dict[str, Any]:
    done = feed(folder, *more)
    document: dict[str, Any] = json.loads(done.stdout)
    assert list(folder.iterdir()) == []
    return document


def on_disk(folder: Path) -> None:
    """Skip the test if this kernel does not drop pages of this file system, or does not count reads of it."""
    if page_cache.counter_of(folder) is not page_cache.device_bytes:
        pytest.skip("cold needs a disk whose reads the kernel counts")


def opened(folder: Path, **factors: Any) -> tuple[Storage, Compiled]:
    """A transport with a data set of 1 MiB, and its compiled pass."""
    case = Case("feed", mode="isolated", folder=str(folder), record=64 << 10, **factors)
    storage = Storage(RankInfo(0, 1, 0, 1, "direct"), Options(case=case))
    buffers = storage.allocate(1 << 20, 1 << 20, 1)
    buffers.write("send", 0, np.arange(1 << 20, dtype=np.uint8))
    group = Group("world", (0,))
    return storage, storage.compile((Read(1 << 20),), group, buffers, Reduction("float32", "sum"), False)


def test_a_cold_pass_is_shown_beside_its_bounds_and_the_demand(tmp_path: Path) -> None:
    on_disk(tmp_path)
    document = fed(tmp_path, "--demand", "1GB/s")
    (one,) = document["feeds"]
    assert (one["state"], one["num_records"], one["files"]) == ("cold", 32, "raw")
    assert one["device_share"] >= 0.99
    assert one["disk_bytes_per_s"] and one["copy_bytes_per_s"] and one["core_bytes_per_s"]
    assert one["least"] in ("disk", "copy", "core") and one["binds"] in ("", "disk", "copy", "core")
    assert one["headroom"] == pytest.approx(one["payload_bytes"] / one["seconds"] / 1e9)
    assert document["summaries"][0]["verified"] is True


def test_what_cannot_be_read_is_skipped_with_its_reason(tmp_path: Path) -> None:
    for factors, code in (
        ({"files": "tar", "read_order": "random"}, DatasetSkip.NOT_INDEXED),
        ({"files": "tar", "direct_io": True}, DatasetSkip.NO_DIRECT_IO),
        ({"cache": "hot", "direct_io": True}, DatasetSkip.ALWAYS_DEVICE),
        ({"step_s": 1e-3}, DatasetSkip.TOO_FEW_BATCHES),
    ):
        storage, _ = opened(tmp_path, **factors)
        skip = storage.unsupported_reason(Read(1 << 20), Reduction("float32", "sum"), False)
        storage.close()
        assert skip is not None and skip.code == code
    row = fed(tmp_path, "--files", "tar", "--read-order", "random")["skipped"]
    assert [one["code"] for one in row] == [DatasetSkip.NOT_INDEXED]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_step_waits_for_its_batch_as_the_formula_says(
    num_workers: int, tmp_path: Path, a_record: Callable[..., Record], a_header: Callable[..., Header]
) -> None:
    loader = {"batch": 2, "workers": num_workers, "step_s": 5e-3, "prepare_s": 40e-3, "read_order": "random"}
    words = ("--batch", "2", "--workers", str(num_workers), "--step-time", "5ms", "--prepare-time", "40ms")
    # Under memory pressure the kernel may drop pages of the files; such a row rightly has no proof that it was warm.
    proof = next((proof for _ in range(3) if isinstance(proof := warm_passes(tmp_path, loader), ReadSamples)), None)
    assert proof is not None
    record = a_record(payload_bytes=1 << 20, num_ranks=1, samples=Samples([0.4] * 2), reads=proof)
    (one,) = feeds.of_record("job", a_header(case=("feed", *words), pattern="feed"), record)
    assert one.busy_s is not None and one.step_s is not None and one.wait_s is not None
    assert one.busy_s >= 0.04 and one.step_s >= 0.005
    hidden_s = one.step_s if num_workers else 0.0
    assert one.predicted_wait_s == pytest.approx(one.busy_s / max(1, num_workers) - hidden_s)
    assert one.wait_s >= 0.04 / max(1, num_workers) - one.step_s


def warm_passes(folder: Path, factors: dict[str, Any]) -> ReadSamples | Failure | None:
    """The proof of two timed passes."""
    storage, compiled = opened(folder, cache="hot", **factors)
    assert storage.unsupported_reason(Read(1 << 20), Reduction("float32", "sum"), False) is None
    compiled.calls[0]()
    storage.time_each(compiled, 2)
    assert compiled.reads is not None
    proof = compiled.reads()
    storage.close()
    return proof


def test_memory_cannot_be_cold() -> None:
    folder = Path("/dev/shm")
    if page_cache.file_system(folder) != "tmpfs" or not os.access(folder, os.W_OK):
        pytest.skip("no tmpfs here")
    storage, _ = opened(folder)
    skip = storage.unsupported_reason(Read(1 << 20), Reduction("float32", "sum"), False)
    storage.close()
    assert skip is not None and skip.code == DatasetSkip.IN_MEMORY


def test_a_folder_that_cannot_be_used_is_bad_input(tmp_path: Path) -> None:
    done = feed(tmp_path / "missing")
    assert done.returncode == EXIT_USAGE
    assert "missing" in done.stderr and "Traceback" not in done.stderr


def test_batches_without_steps_are_bad_input(tmp_path: Path) -> None:
    done = feed(tmp_path, "--batch", "4")
    (failure,) = json.loads(done.stdout)["failures"]
    assert done.returncode == EXIT_USAGE and "Traceback" not in done.stderr
    assert "--batch" in failure["what"] and "--step-time" in failure["what"]
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_record_is_named_with_its_file(tmp_path: Path) -> None:
    storage, compiled = opened(tmp_path, cache="hot")
    compiled.calls[0]()
    victim = sorted(tmp_path.rglob("*.bin"))[3]
    with victim.open("r+b") as file:
        file.seek(100)
        file.write(b"damage")
    with pytest.raises(MeasurementError) as error:
        compiled.calls[0]()
    storage.close()
    assert (error.value.code, error.value.facts["file"]) == (DatasetError.CORRUPTED, str(victim))


@pytest.mark.parametrize("state", ["cold", "hot"])
def test_a_row_without_proof_fails(state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_disk(tmp_path)
    storage, compiled = opened(tmp_path, cache=state)
    assert compiled.reads is not None
    compiled.calls[0]()
    storage.time_each(compiled, 2)
    assert isinstance(compiled.reads(), ReadSamples)
    if state == "cold":
        monkeypatch.setattr(page_cache, "evict", lambda files: None)
    else:

        def after_eviction() -> int:
            page_cache.evict(tmp_path.rglob("*.bin"))
            return page_cache.device_bytes()

        monkeypatch.setattr(storage._place, "_counter", after_eviction)
    storage.time_each(compiled, 2)
    failure = compiled.reads()
    storage.close()
    assert isinstance(failure, Failure)
    assert failure.code == (DatasetFailure.NOT_COLD if state == "cold" else DatasetFailure.NOT_WARM)


@pytest.mark.parametrize("counter", [None, "network_bytes"])
def test_a_warm_row_is_proven_by_its_pages_where_no_counter_sees_this_process(
    counter: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk(tmp_path)
    received = iter(range(0, 1 << 40, 1 << 30))
    monkeypatch.setattr(page_cache, "network_bytes", lambda: next(received))  # traffic of other programs
    monkeypatch.setattr(page_cache, "is_remote", lambda kind: True)
    monkeypatch.setattr(page_cache, "counter_of", lambda folder: counter and getattr(page_cache, counter))
    storage, compiled = opened(tmp_path, cache="hot")
    assert compiled.reads is not None
    compiled.calls[0]()
    storage.time_each(compiled, 2)
    proven = compiled.reads()
    assert isinstance(proven, ReadSamples) and proven.device_bytes == (0, 0)
    page_cache.evict(tmp_path.rglob("*.bin"))
    storage.time_each(compiled, 1)
    failure = compiled.reads()
    storage.close()
    assert isinstance(failure, Failure) and failure.code == DatasetFailure.NOT_IN_MEMORY


def ended(folder: Path, number: int) -> int:
    """The exit code of a run that a signal ends while its files are there."""
    command = [sys.executable, "-m", "bench.feed", *SMALL, "-n", "100000", "--folder", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(folder.rglob("*.bin")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    return process.wait()


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, EXIT_INTERRUPTED), (signal.SIGTERM, EXIT_TERMINATED)]
)
def test_a_run_that_is_ended_removes_its_files(number: int, exit_code: int, tmp_path: Path) -> None:
    assert ended(tmp_path, number) == exit_code
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    ended(tmp_path, signal.SIGKILL)
    assert list(tmp_path.iterdir())
    document = fed(tmp_path, "--cache", "hot")
    assert len(document["feeds"]) == 1
