"""Two controllers never add to one run."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bench.core.errors import EXIT_REFUSED, RefusedError
from bench.store import lease, run_lock
from bench.store.run_lock import RunLockError

HOLDER = """
import pathlib, sys
from bench.store import run_lock
with run_lock.held(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_controller_is_refused_with_the_holder_and_the_lock_ends_with_it(tmp_path: Path) -> None:
    words = (sys.executable, "-c", HOLDER, str(tmp_path))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RefusedError) as refused, run_lock.held(tmp_path):
            pass
        with pytest.raises(RefusedError) as unfinished:
            run_lock.check_free(tmp_path)
        holder.kill()
    assert (unfinished.value.code, unfinished.value.facts) == (RunLockError.IN_USE, refused.value.facts)
    run_lock.check_free(tmp_path)
    assert (refused.value.code, refused.value.exit_code) == (RunLockError.IN_USE, EXIT_REFUSED)
    assert (refused.value.facts["pid"], refused.value.facts["host"]) == (holder.pid, socket.gethostname())
    with run_lock.held(tmp_path):
        pass


def test_without_locks_of_the_file_system_a_lease_that_is_renewed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(file: int, how: int) -> None:
        raise OSError(run_lock._NO_LOCKS[0], os.strerror(run_lock._NO_LOCKS[0]))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    path = tmp_path / ".a.heartbeats" / lease.NAME
    path.parent.mkdir()
    lease.write(path, "1")
    later = threading.Timer(0.3, lease.write, (path, "2"))
    later.start()
    with pytest.raises(RefusedError) as refused, run_lock.held(tmp_path):
        pass
    assert refused.value.code == RunLockError.IN_USE
    lease.write(path, lease.LOST)
    with run_lock.held(tmp_path):
        pass


def test_a_lease_that_nobody_renews_is_no_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "_WATCH_S", 0.3)
    path = tmp_path / ".a.heartbeats" / lease.NAME
    path.parent.mkdir()
    lease.write(path, "1")
    with run_lock.held(tmp_path):
        pass
