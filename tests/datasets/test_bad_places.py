"""Places that cannot be used: full, read-only, in memory; buckets, and servers that stop answering."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from bench.core.case import Case
from bench.core.errors import EXIT_MEASUREMENT, EXIT_REFUSED, MeasurementError, RefusedError, UsageError
from bench.core.program import Group, Read
from bench.core.transport import Compiled, Options, Reduction
from bench.core.world import RankInfo
from bench.datasets.messages import DatasetError, DatasetSkip
from bench.transports.storage import Storage

SIZE = 1 << 20
REDUCTION = Reduction("float32", "sum")


def opened(folder: str, timeout_s: float = 60.0, **factors: Any) -> tuple[Storage, Compiled]:
    case = Case("feed", mode="isolated", folder=folder, record=64 << 10, **factors)
    storage = Storage(RankInfo(0, 1, 0, 1, "direct"), Options(case=case, timeout_s=timeout_s))
    buffers = storage.allocate(SIZE, SIZE, 1)
    buffers.write("send", 0, np.random.default_rng(1).integers(0, 256, SIZE, np.uint8))
    return storage, storage.compile((Read(SIZE),), Group("world", (0,)), buffers, REDUCTION, False)


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A small disk in memory."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("mounting needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_skips_the_row_or_ends_the_run_and_leaves_nothing(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=512k") as disk:
        storage, compiled = opened(str(disk), cache="hot")
        skip = storage.unsupported_reason(Read(SIZE), REDUCTION, False)
        assert skip is not None and skip.code == DatasetSkip.NO_SPACE
        with pytest.raises(MeasurementError) as error:  # as if another program filled the disk meanwhile
            compiled.calls[0]()
        assert error.value.code == DatasetError.WRITE and error.value.exit_code == EXIT_MEASUREMENT
        storage.close()
        assert list(disk.iterdir()) == []


def test_a_read_only_folder_is_bad_input(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "ro") as disk, pytest.raises(UsageError) as error:
        opened(str(disk))
    assert (error.value.code, error.value.facts["folder"]) == (DatasetError.FOLDER, str(disk))


def test_options_that_a_format_cannot_obey_are_skipped_with_their_reason(tmp_path: Path) -> None:
    for factors, code in (
        ({"files": "npy", "block": 4096}, DatasetSkip.NO_BLOCKS),
        ({"direct_io": True, "block": 1000}, DatasetSkip.UNALIGNED_BLOCKS),
        ({"direct_io": True, "ahead": 4}, DatasetSkip.NO_AHEAD),
    ):
        storage, _ = opened(str(tmp_path), **factors)
        skip = storage.unsupported_reason(Read(SIZE), REDUCTION, False)
        storage.close()
        assert skip is not None and skip.code == code


def test_a_bucket_without_its_client_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.datasets.object_store.find_spec", lambda name: None)
    with pytest.raises(RefusedError) as error:
        opened("s3://bucket/data")
    assert (error.value.code, error.value.exit_code) == (DatasetError.NO_CLIENT, EXIT_REFUSED)


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch, missing: Callable[[str, str], NoReturn]) -> Callable[[int], None]:
    """`credentials(port)`: an environment for a service on this port."""
    if find_spec("boto3") is None:
        missing("boto3", "boto3 is not installed")

    def use(port: int) -> None:
        named = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
        for name, value in (named | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}).items():
            monkeypatch.setenv(name, value)

    return use


@pytest.fixture
def bucket(
    credentials: Callable[[int], None], missing: Callable[[str, str], NoReturn]
) -> Iterator[subprocess.Popen[bytes]]:
    """A bucket `data` of a service by moto."""
    program = shutil.which("moto_server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        missing("moto", "moto is not installed: pip install 'moto[s3]' flask flask-cors")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    service = subprocess.Popen(
        [program, "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    credentials(port)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(
                    urllib.request.Request(f"http://127.0.0.1:{port}/data", method="PUT"), timeout=30
                ).close()
                break
            except OSError:
                time.sleep(0.2)
        yield service
    finally:
        service.send_signal(signal.SIGCONT)
        service.kill()
        service.wait()


@pytest.mark.usefixtures("bucket")
def test_objects_of_every_format_are_read_cold_and_removed() -> None:
    for files in ("raw", "tar", "tfrecord", "mds"):  # one service for all: it takes longer to start than to answer
        storage, compiled = opened("s3://data/set", files=files)
        assert storage.unsupported_reason(Read(SIZE), REDUCTION, False) is None, files
        compiled.calls[0]()
        assert compiled.keep[0].read("recv", 0).tobytes() == compiled.keep[0].read("send", 0).tobytes(), files
        storage.time_each(compiled, 1)
        assert compiled.reads is not None
        proof: Any = compiled.reads()
        assert proof.state == "client-cold" and proof.device_bytes[0] >= 0.99 * SIZE, files
        objects: Any = storage._place.objects
        assert list(objects.keys("")), files
        storage.close()
        assert list(objects.keys("")) == [], files


def test_a_service_that_never_answers_is_refused(credentials: Callable[[int], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        credentials(silent.getsockname()[1])
        with pytest.raises(RefusedError) as error:
            opened("s3://data/set", timeout_s=1.0)
    assert error.value.code == DatasetError.SILENT


@pytest.mark.slow
def test_a_service_that_stops_answering_ends_the_run_and_the_rows_before_are_kept(
    bucket: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    records = tmp_path / "records.jsonl"
    words = ["--folder", "s3://data/set", "--sizes", "128K,192K", "--record", "64K", "--mode", "isolated", "-n", "40"]
    command = [sys.executable, "-m", "bench.feed", *words, "--timeout", "1s", "--records", str(records)]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and '"type":"record"' not in (records.read_text() if records.exists() else ""):
        time.sleep(0.05)
    bucket.send_signal(signal.SIGSTOP)
    _, said = run.communicate(timeout=100)
    assert run.returncode == EXIT_MEASUREMENT
    assert "s3://data/set" in said and "Traceback" not in said
    kept = [json.loads(line) for line in records.read_text().splitlines()]
    assert [line["payload_bytes"] for line in kept if line["type"] == "record"] == [128 << 10]
