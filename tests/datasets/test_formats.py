"""Every format on real files: all bytes arrive in every order, and cold and warm passes are what the kernel counts."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bench.core import plugins
from bench.core.payload import Bytes
from bench.datasets import page_cache
from bench.datasets.dataset_format import DatasetFormat, RecordLayout
from bench.datasets.formats.tfrecord import masked_crc32c
from bench.datasets.passes import RecordPass
from bench.datasets.work_folder import WorkFolder, files_below

NAMES = plugins.names("dataset format")
NUM, SIZE = 70, 60_000  # one full shard and a short one; records that are not whole pages
ORDERS = ("sequential", "shuffled", "random")


def loaded(name: str) -> DatasetFormat:
    found: DatasetFormat = plugins.load("dataset format", name).FORMAT
    if found.missing:
        pytest.skip(f"{name} needs {found.missing}")
    return found


def written(found: DatasetFormat, layout: RecordLayout) -> tuple[Bytes, list[Path]]:
    data = np.random.default_rng(3).integers(0, 256, (layout.num_records, layout.record_bytes), np.uint8)
    found.write(layout, list(data))
    files = files_below(layout.folder)
    page_cache.sync(files)
    return data, files


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", NAMES)
def test_every_record_arrives_and_the_state_is_what_the_kernel_counts(name: str, tmp_path: Path) -> None:
    if page_cache.file_system(tmp_path) in page_cache.IN_MEMORY:
        pytest.skip("cold needs a disk")
    found = loaded(name)
    layout = RecordLayout(tmp_path, NUM, SIZE)
    data, files = written(found, layout)
    for order in ORDERS if found.indexed else ORDERS[:2]:
        for num_workers in (0, 3):
            target = np.zeros(data.size, np.uint8)
            one = RecordPass(found, layout, target, order, num_workers, seed=1)
            page_cache.evict(files)
            assert page_cache.num_resident(files) == 0
            before = page_cache.device_bytes()
            one.run()
            assert page_cache.device_bytes() - before >= 0.99 * data.size
            assert (target.reshape(data.shape) == data).all()
            page_cache.load(files)
            before = page_cache.device_bytes()
            one.run()
            assert page_cache.device_bytes() - before <= 0.01 * data.size


def test_direct_reads_come_from_the_device_though_the_file_is_cached(tmp_path: Path) -> None:
    if page_cache.file_system(tmp_path) in page_cache.IN_MEMORY:
        pytest.skip("O_DIRECT needs a disk")
    found = loaded("raw")
    layout = RecordLayout(tmp_path, NUM, SIZE, direct_io=True)
    data, files = written(found, layout)
    page_cache.load(files)
    target = np.zeros(data.size, np.uint8)
    before = page_cache.device_bytes()
    RecordPass(found, layout, target, "sequential", 0, seed=1).run()
    assert page_cache.device_bytes() - before >= 0.99 * data.size
    assert (target.reshape(data.shape) == data).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_ends_too_early_is_an_error(name: str, tmp_path: Path) -> None:
    found = loaded(name)
    layout = RecordLayout(tmp_path, NUM, SIZE)
    written(found, layout)
    path = found.file_of(layout, NUM - 1)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 2 // 5)
    target = np.zeros(NUM * SIZE, np.uint8)
    with pytest.raises((OSError, EOFError, ValueError)):
        RecordPass(found, layout, target, "sequential", 0, seed=1).run()


def test_pages_in_the_cache_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10 * 4096 + 1))
    page_cache.load([path])
    assert (page_cache.num_resident([path]), page_cache.num_missing([path])) == (11, 0)


def test_crc32c_is_that_of_the_standard() -> None:
    """RFC 3720, B.4: 32 bytes of zeros have the CRC 0x8a9136aa; TensorFlow rotates it and adds a constant."""
    crc = 0x8A9136AA
    expected = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert masked_crc32c(np.zeros((1, 32), np.uint8)) == [expected]


def test_the_innermost_mount_names_the_file_system(tmp_path: Path) -> None:
    mounts = (
        "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /data rw - nfs4 host:/ rw\n3 2 0:6 / /data/fast rw - tmpfs t rw"
    )
    assert page_cache.file_system(Path("/data/set"), mounts) == "nfs4"
    assert page_cache.file_system(Path("/data/fast/x"), mounts) == "tmpfs"
    assert page_cache.file_system(Path("/database"), mounts) == "ext4"
    sshfs = f"{mounts}\n4 2 0:7 / /data/far rw - fuse.sshfs host:/ rw"
    assert page_cache.file_system(Path("/data/far"), sshfs) == "fuse.sshfs"


@pytest.mark.parametrize(
    ("kind", "is_remote"),
    [
        *((kind, True) for kind in ("nfs", "nfs4", "cifs", "lustre", "ceph", "9p", "fuse", "fuse.sshfs", "fuse.s3fs")),
        *((kind, False) for kind in ("ext4", "xfs", "tmpfs", "overlay", "fuseblk", "zfs", "")),
    ],
)
def test_file_systems_behind_another_program_are_remote(kind: str, is_remote: bool) -> None:
    assert page_cache.is_remote(kind) == is_remote


def test_the_counter_that_sees_the_reads_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page_cache.file_system(tmp_path) in page_cache.IN_MEMORY:
        pytest.skip("needs a disk")
    assert page_cache.counter_of(tmp_path) is page_cache.device_bytes
    # A process of another host with the same id has its own file.
    (tmp_path / f"counted-{os.getpid()}").mkdir()
    received = iter((100, 100 + (1 << 20), 500, 500 + (1 << 19)))
    monkeypatch.setattr(page_cache, "device_bytes", lambda: 7)  # a kernel that does not count
    monkeypatch.setattr(page_cache, "network_bytes", lambda: next(received))
    monkeypatch.setattr(page_cache, "loopback_bytes", lambda: 7)
    assert page_cache.counter_of(tmp_path) is page_cache.network_bytes
    assert page_cache.counter_of(tmp_path) is None  # half of the bytes: they came from elsewhere
    assert [path.name for path in tmp_path.iterdir()] == [f"counted-{os.getpid()}"]


def test_each_received_byte_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    received = {"lo": 1, "eth0": 10, "eth1": 100, "bond0": 110, "br0": 110, "ib0": 1000}
    lines = [f"{name:>6}: {num} 0 0 0 0 0 0 0 0 0" for name, num in received.items()]
    counts = tmp_path / "dev"
    counts.write_text("\n".join(["Inter-|", " face |", *lines]))
    interfaces, ports = tmp_path / "net", tmp_path / "infiniband"
    for name in received:
        (interfaces / name).mkdir(parents=True)
        (interfaces / name / "type").write_text("32\n" if name == "ib0" else "1\n")
    monkeypatch.setattr(page_cache, "_RECEIVED", counts)
    monkeypatch.setattr(page_cache, "_INTERFACES", interfaces)
    monkeypatch.setattr(page_cache, "_INFINIBAND", ports)
    assert page_cache.network_bytes() == 1330  # nothing tells hardware apart: all but the loopback
    for name in ("eth0", "eth1", "ib0"):
        (interfaces / name / "device").mkdir()
    assert page_cache.network_bytes() == 1110
    for number, text in ((1, "N/A (no PMA)"), (2, "500")):
        folder = ports / "mlx5_0" / "ports" / str(number) / "counters"
        folder.mkdir(parents=True)
        (folder / "port_rcv_data").write_text(text)
    assert page_cache.network_bytes() == 110 + 4 * 500  # IP over InfiniBand is in the port's bytes


def test_the_loopback_counter_counts_what_arrives() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = socket.create_connection(server.getsockname())
        here, _ = server.accept()
        with there, here:
            before = page_cache.loopback_bytes()
            for _ in range(8):
                there.sendall(bytes(1 << 17))
                left = 1 << 17
                while left:
                    left -= len(here.recv(left))
            assert page_cache.loopback_bytes() - before >= 1 << 20


def test_a_folder_without_an_owner_is_removed_and_told_but_not_one_in_use(tmp_path: Path) -> None:
    used = WorkFolder(tmp_path)
    left = tmp_path / "linkbench-feed-left"
    left.mkdir()
    (left / "in-use").touch()
    (left / "data").write_bytes(bytes(5))
    again = WorkFolder(tmp_path)
    assert (again.removed, again.removed_bytes) == ([left], 5)
    assert used.path.exists()
    again.close()
    used.close()
    assert list(tmp_path.iterdir()) == []


def test_runs_that_start_together_keep_their_own_folders(tmp_path: Path) -> None:
    for number in range(20):
        left = tmp_path / f"linkbench-feed-left{number}"
        left.mkdir()
        (left / "in-use").touch()
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: WorkFolder(tmp_path), range(32)))
        assert len(list(tmp_path.iterdir())) == len(made)
        assert all((work.path / "in-use").read_text() == socket.gethostname() for work in made)
        assert len([folder for work in made for folder in work.removed]) >= 20
        list(threads.map(WorkFolder.close, made * 2))  # two threads may close the same folder
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_host_is_not_removed_from_a_shared_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host in ("here", "there"):
        left = tmp_path / f"linkbench-feed-{host}"
        left.mkdir()
        (left / "in-use").write_text(host)
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    monkeypatch.setattr(page_cache, "file_system", lambda folder: "fuse.sshfs")
    work = WorkFolder(tmp_path)
    assert [folder.name for folder in work.removed] == ["linkbench-feed-here"]
    work.close()
    assert [folder.name for folder in tmp_path.iterdir()] == ["linkbench-feed-there"]
