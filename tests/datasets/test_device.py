"""A GPU as the destination of a pass, over a CuPy that copies in host memory (tests/fakes/cupy_host)."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.core.case import Case
from bench.core.errors import MeasurementError
from bench.core.program import Group, Read
from bench.core.record import Header, ReadSamples, Record, Samples
from bench.core.transport import Compiled, Options, Reduction
from bench.core.world import RankInfo
from bench.datasets import gpu_files
from bench.datasets.messages import DatasetError, DatasetSkip
from bench.datasets.object_store import ObjectStore
from bench.results import feeds
from bench.results.training_rows import GpuPath
from bench.transports.storage import Storage

FAKES = Path(__file__).resolve().parent.parent / "fakes"
FAKE = FAKES / "cupy_host"
SIZE = 1 << 20
REDUCTION = Reduction("float32", "sum")


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


def opened(folder: Path, **factors: Any) -> Storage:
    given: dict[str, Any] = {"folder": str(folder), "record": 64 << 10, "destination": "device"} | factors
    case = Case("feed", mode="isolated", **given)
    return Storage(RankInfo(0, 1, 0, 1, "direct"), Options(case=case, memory=case.memory))


def compiled_pass(storage: Storage) -> tuple[Any, Compiled]:
    buffers = storage.allocate(SIZE, SIZE, 1, (Read(SIZE),))
    buffers.write("send", 0, np.random.default_rng(1).integers(0, 256, SIZE, np.uint8))
    buffers.write("recv", 0, 0)
    return buffers, storage.compile((Read(SIZE),), Group("world", (0,)), buffers, REDUCTION, False)


@pytest.mark.parametrize("memory", ["pinned", "pageable"])
@pytest.mark.usefixtures("cupy")
def test_records_go_through_host_memory_to_the_gpu(memory: str, tmp_path: Path) -> None:
    storage = opened(tmp_path, memory=memory, cache="hot")
    assert storage.unsupported_reason(Read(SIZE), REDUCTION, False) is None
    buffers, compiled = compiled_pass(storage)
    sent = buffers.read("send", 0).tobytes()
    compiled.calls[0]()
    assert buffers.read("recv", 0).tobytes() == sent
    buffers.write("recv", 0, 0)
    (timing,) = storage.time_each(compiled, 1).seconds
    assert buffers.read("recv", 0).tobytes() == sent
    assert compiled.reads is not None
    proof = compiled.reads()
    assert isinstance(proof, ReadSamples) and 0 < proof.copied_s[0] < timing
    if compiled.release:
        compiled.release()
    storage.close()


def test_without_a_gpu_the_row_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    storage = opened(tmp_path)
    skip = storage.unsupported_reason(Read(SIZE), REDUCTION, False)
    storage.close()
    assert skip is not None and skip.code == DatasetSkip.NO_DEVICE


@pytest.mark.usefixtures("cupy")
def test_what_is_prepared_on_the_host_is_not_copied(tmp_path: Path) -> None:
    storage = opened(tmp_path, prepare="decode")
    skip = storage.unsupported_reason(Read(SIZE), REDUCTION, False)
    storage.close()
    assert skip is not None and skip.code == DatasetSkip.NO_DEVICE_WORK


@pytest.fixture
def kvikio(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in for KvikIO, on the memory of the stand-in for CuPy."""
    monkeypatch.syspath_prepend(str(FAKES / "kvikio_host"))
    yield importlib.import_module("kvikio")
    sys.modules.pop("kvikio")


def passed(storage: Storage) -> ReadSamples:
    """The proof of three passes, after whose last the GPU holds the records."""
    buffers, compiled = compiled_pass(storage)
    sent = buffers.read("send", 0).tobytes()
    compiled.calls[0]()
    storage.time_each(compiled, 3)
    assert buffers.read("recv", 0).tobytes() == sent
    assert compiled.reads is not None
    proof = compiled.reads()
    storage.close()
    assert isinstance(proof, ReadSamples)
    return proof


@pytest.mark.parametrize(
    ("share", "path"),
    [("1", GpuPath.DIRECT), ("0.5", GpuPath.COMPATIBILITY), (None, GpuPath.COMPATIBILITY)],
)
@pytest.mark.usefixtures("kvikio")
def test_only_what_the_driver_counted_is_gpudirect(
    share: str | None,
    path: GpuPath,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    a_record: Any,
    a_header: Any,
) -> None:
    if share is not None:
        stats = tmp_path / "stats"
        monkeypatch.setattr(gpu_files, "STATS", stats)
        monkeypatch.setenv("FAKE_KVIKIO_STATS", str(stats))
        monkeypatch.setenv("FAKE_KVIKIO_SHARE", share)
        stats.write_text("Reads\t\t\t\t: n=0 ok=0 err=0 readMiB=0 io_state_err=0\n")
    folder = tmp_path / "data"
    folder.mkdir()
    storage = opened(folder, destination="gds", workers=2)
    assert storage.unsupported_reason(Read(SIZE), REDUCTION, False) is None
    proof = passed(storage)
    record: Record = a_record(payload_bytes=SIZE, num_ranks=1, samples=Samples([0.1] * 3), reads=proof)
    header: Header = a_header(case=("feed", "--to", "gds"), pattern="feed")
    (one,) = feeds.of_record("job", header, record)
    assert one.gpu_path == path
    assert (sum(proof.driver_bytes) > 0) == (share is not None)


@pytest.mark.usefixtures("kvikio")
def test_a_byte_that_did_not_reach_the_gpu_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = opened(tmp_path, destination="gds")
    _, compiled = compiled_pass(storage)
    monkeypatch.setenv("FAKE_KVIKIO_DROPS", "1")
    with pytest.raises(MeasurementError) as error:
        compiled.calls[0]()
    storage.close()
    assert error.value.code == DatasetError.CORRUPTED


@pytest.mark.parametrize(
    "factors",
    [
        {"read_order": "shuffled"},
        {"block": 12 << 10},
        {"files": "mds"},
        {"files": "mds", "read_order": "random", "block": 4096, "workers": 2},
        {"files": "mds", "read_order": "shuffled", "record": 10_000, "block": 3000},
    ],
    ids=str,
)
def test_shards_and_blocks_of_any_order_are_read_into_the_gpu(
    factors: dict[str, Any], kvikio: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: set[int] = set()
    read = kvikio.CuFile.read

    def noted(file: Any, buf: Any, **more: Any) -> Any:
        sizes.add(len(buf))
        return read(file, buf, **more)

    monkeypatch.setattr(kvikio.CuFile, "read", noted)
    storage = opened(tmp_path, destination="gds", **factors)
    assert storage.unsupported_reason(Read(SIZE), REDUCTION, False) is None
    passed(storage)
    assert sizes and max(sizes) <= factors.get("block", 64 << 10)


@pytest.mark.usefixtures("kvikio")
def test_what_kvikio_cannot_read_into_a_gpu_is_skipped_with_its_reason(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], DatasetSkip]] = [
        *(({"files": files}, DatasetSkip.NO_GPU_FORMAT) for files in ("npy", "tar", "tfrecord")),
        ({"direct_io": True}, DatasetSkip.NO_GPU_OPTION),
        ({"ahead": 8}, DatasetSkip.NO_GPU_OPTION),
        ({"cache": "hot"}, DatasetSkip.ALWAYS_DEVICE),
        ({"prepare": "decode"}, DatasetSkip.NO_DEVICE_WORK),
    ]
    for factors, code in cases:
        storage = opened(tmp_path, destination="gds", **factors)
        skip = storage.unsupported_reason(Read(SIZE), REDUCTION, False)
        storage.close()
        assert skip is not None and skip.code == code, factors
    storage = opened(tmp_path, destination="gds")
    storage._place.objects = ObjectStore("bucket", 1.0)
    skip = storage.unsupported_reason(Read(SIZE), REDUCTION, False)
    storage.close()
    assert skip is not None and skip.code == DatasetSkip.NO_GPU_OBJECTS


@pytest.mark.usefixtures("kvikio")
def test_a_shard_that_ends_too_early_is_named(tmp_path: Path) -> None:
    storage = opened(tmp_path, destination="gds", files="mds")
    _, compiled = compiled_pass(storage)
    compiled.calls[0]()
    (shard,) = tmp_path.rglob("*.mds")
    os.truncate(shard, SIZE // 2)
    with pytest.raises(MeasurementError) as error:
        compiled.calls[0]()
    storage.close()
    assert error.value.code == DatasetError.READ and str(shard) in error.value.facts["why"]


@pytest.mark.usefixtures("cupy")
def test_without_kvikio_the_row_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_files, "find_spec", lambda name: None)
    storage = opened(tmp_path, destination="gds")
    skip = storage.unsupported_reason(Read(SIZE), REDUCTION, False)
    storage.close()
    assert skip is not None and skip.code == DatasetSkip.NO_GPU_LIBRARY
    assert gpu_files.REQUIRES in skip.text


@pytest.mark.usefixtures("cupy")
def test_kvikio_that_cannot_be_loaded_skips_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lib" / "kvikio"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('libcufile.so.0: no such file')")
    monkeypatch.syspath_prepend(str(package.parent))
    storage = opened(tmp_path, destination="gds")
    skip = storage.unsupported_reason(Read(SIZE), REDUCTION, False)
    storage.close()
    assert skip is not None and skip.code == DatasetSkip.GPU_LIBRARY_FAILS and "libcufile" in skip.text


def test_a_driver_that_does_not_count_is_unknown(tmp_path: Path) -> None:
    stats = tmp_path / "stats"
    assert gpu_files.driver_bytes(stats) is None
    stats.write_text("IO stats: Disabled\nReads\t\t\t\t: err=0 io_state_err=0\n")
    assert gpu_files.driver_bytes(stats) is None
    stats.write_text("Reads\t\t\t\t: n=9 ok=9 err=0 readMiB=12 io_state_err=0\n")
    assert gpu_files.driver_bytes(stats) == 12 << 20
