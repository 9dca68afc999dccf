"""A GPU as the destination of a pass, over a CuPy that copies in host memory (tests/fakes/cupy_host)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.core.case import Case
from bench.core.program import Group, Read
from bench.core.record import ReadSamples
from bench.core.transport import Compiled, Options, Reduction
from bench.core.world import RankInfo
from bench.datasets.messages import DatasetSkip
from bench.transports.storage import Storage

FAKE = Path(__file__).resolve().parent.parent / "fakes" / "cupy_host"
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
    case = Case("feed", mode="isolated", folder=str(folder), record=64 << 10, destination="device", **factors)
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
