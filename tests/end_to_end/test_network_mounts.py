"""A folder on another host: sshfs over TCP to a real SFTP server, which can be stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.core.errors import EXIT_MEASUREMENT
from bench.datasets import page_cache
from bench.datasets.messages import DatasetNote, DatasetSkip
from tests.end_to_end.conftest import environment

pytestmark = pytest.mark.slow
SFTP = Path("/usr/lib/openssh/sftp-server")
WORDS = ("--record", "64K", "--mode", "isolated", "--share-hosts")


@dataclass
class Mount:
    """A mounted folder, and the processes of its server: one for each connection."""

    folder: Path
    served: Path
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def signal(self, number: int) -> None:
        for server in self.servers:
            server.send_signal(number)


@pytest.fixture
def mount(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Mount]:
    """A folder that a server of its own serves."""
    if shutil.which("sshfs") is None or not SFTP.exists() or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("needs root, FUSE, sshfs and openssh-sftp-server")
    found = Mount(tmp_path / "mounted", tmp_path / "served")
    found.folder.mkdir()
    found.served.mkdir()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each answer waits 40 ms
            with connection:
                found.servers.append(
                    subprocess.Popen([str(SFTP)], stdin=connection.fileno(), stdout=connection.fileno())
                )

    threading.Thread(target=serve, daemon=True).start()
    port = listener.getsockname()[1]
    # An sshfs in the foreground can be ended by its number, even if its server does not answer.
    words = [
        "sshfs",
        f"127.0.0.1:{found.served}",
        str(found.folder),
        "-f",
        "-o",
        f"directport={port}{getattr(request, 'param', '')}",
    ]
    client = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not os.path.ismount(found.folder):
            assert client.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        yield found
    finally:
        found.signal(signal.SIGCONT)
        subprocess.run(["umount", "--lazy", str(found.folder)], check=False)
        client.kill()
        client.wait()
        listener.close()
        for server in found.servers:
            server.kill()
            server.wait()


def feed(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.feed", *WORDS, "--folder", str(folder), *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment({}), cwd=folder.parent
    )


def document(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    run = feed(folder, "--format", "json", *words)
    out, err = run.communicate(timeout=120)
    assert "Traceback" not in err
    found: dict[str, Any] = json.loads(out)
    return run.returncode, found


def test_only_the_client_is_known_to_be_cold(mount: Mount) -> None:
    assert page_cache.file_system(mount.folder) == "fuse.sshfs"
    for files in ("raw", "npy", "tar", "mds"):
        code, found = document(mount.folder, "--sizes", "2M", "-n", "3", "--files", files)
        (one,) = found["feeds"]
        assert (code, one["state"]) == (0, "client-cold"), files
        # The bytes crossed the network, with the headers of SSH's file protocol and of TCP.
        assert 0.99 <= one["device_share"] < 1.5, files
        (header,) = found["headers"].values()
        facts = {"folder": str(mount.folder), "file_system": "fuse.sshfs"}
        assert DatasetNote.CLIENT_COLD.words(facts) in header["notes"]
        assert list(mount.served.iterdir()) == []


def test_ranks_that_nothing_tells_apart_are_skipped(mount: Mount, mpirun: Any) -> None:
    words = ["-m", "bench.feed", *WORDS, "--folder", str(mount.folder), "--sizes", "1M", "-n", "2", "--format", "json"]
    done = subprocess.run(
        [*mpirun(2), *words], capture_output=True, text=True, env=environment({}), cwd=mount.folder.parent, check=False
    )
    (row,) = json.loads(done.stdout)["skipped"]
    assert row["code"] == DatasetSkip.COUNTED_TOGETHER


@pytest.mark.parametrize(("mount", "is_warm"), [(",kernel_cache", True), ("", False)], indirect=["mount"])
def test_the_pages_of_several_ranks_tell_whether_they_are_warm(mount: Mount, is_warm: bool, mpirun: Any) -> None:
    words = ["-m", "bench.feed", *WORDS, "--folder", str(mount.folder), "--sizes", "1M", "-n", "2", "--format", "json"]
    command = [*mpirun(2), *words, "--cache", "hot"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment({}), cwd=mount.folder.parent, check=False
    )
    found = json.loads(done.stdout)
    if is_warm:
        (fed,) = found["feeds"]
        assert (fed["state"], fed["device_share"], done.returncode) == ("warm", 0, 0), done.stderr
    else:  # without kernel_cache the kernel drops the pages of a file whenever it is opened
        assert (found["feeds"], done.returncode) == ([], EXIT_MEASUREMENT)


def test_a_server_that_stops_answering_ends_the_run_and_the_row_before_is_kept(mount: Mount, tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    run = feed(mount.folder, "--sizes", "1M,2M", "-n", "60", "--records", str(records), "--deadline", "4s")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and '"type":"record"' not in (records.read_text() if records.exists() else ""):
        time.sleep(0.05)
    mount.signal(signal.SIGSTOP)
    assert run.stderr is not None
    said = ""
    while run.poll() is None and "no progress" not in said:
        said += run.stderr.readline()
    mount.signal(signal.SIGCONT)  # a process that waits for FUSE ends only when it is answered
    _, more = run.communicate(timeout=60)
    assert run.returncode == EXIT_MEASUREMENT, said + more
    kept = [json.loads(line) for line in records.read_text().splitlines()]
    assert [line["payload_bytes"] for line in kept if line["type"] == "record"] == [1 << 20]
