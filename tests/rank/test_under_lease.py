"""Another benchmark's program takes the leases of its host and its controller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.core.ends import EndCode
from bench.core.errors import EXIT_REFUSED
from bench.probes.processes import JOB_VARIABLE
from bench.rank.messages import RankRefusal
from bench.store import heartbeat, lease

START = (
    "import sys; from bench.rank import host_lease, under_lease; host_lease._WAIT_S = 0.0; "
    "sys.exit(under_lease.main(sys.argv[1:]))"
)
TOOL = "import sys; print('measures', flush=True); sys.stdin.read(); sys.exit(7)"


def start(
    folder: Path, job: str, *words: str, program: Sequence[str] = (sys.executable, "-c", TOOL)
) -> subprocess.Popen[str]:
    """A tool of a job, whose host lease has the folder's name."""
    env = {
        **os.environ,
        "BENCH_HOST_LEASE": str(folder)[-40:],
        JOB_VARIABLE: f"{folder.name}/{job}",
        lease.VARIABLE: str(folder / lease.NAME),
    }
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen((sys.executable, "-c", START, *words, *program), env=env, text=True, **pipes)


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_a_tool_holds_its_hosts_lease_and_keeps_its_output_and_exit_code(tmp_path: Path) -> None:
    first = start(tmp_path, "a")
    assert read_line(first) == "measures\n"
    shared, refused = start(tmp_path, "b", "--share-hosts"), start(tmp_path, "c")
    assert read_line(shared) == "measures\n"
    _, printed = refused.communicate(timeout=60)
    [words] = heartbeat.last_words(printed)
    assert (refused.returncode, words.end.code) == (EXIT_REFUSED, RankRefusal.HOST_IN_USE)
    assert (words.end.facts["job"], words.end.facts["pid"]) == (f"{tmp_path.name}/a", str(first.pid))
    again = start(tmp_path, "a")  # another process of the same job: two nodes may be one machine
    assert read_line(again) == "measures\n"
    helpers = psutil.Process(first.pid).children()
    assert [process.communicate(timeout=60)[1] for process in (first, again, shared)] == ["", "", ""]
    assert [first.returncode, again.returncode, shared.returncode] == [7, 7, 7]
    assert psutil.wait_procs(helpers, timeout=5)[1] == []


def test_a_tool_ends_when_its_controllers_lease_is_lost(tmp_path: Path) -> None:
    lease.write(tmp_path / lease.NAME, "1")
    with start(tmp_path, "a") as tool:
        assert read_line(tool) == "measures\n"
        lease.write(tmp_path / lease.NAME, lease.LOST)
        began = time.monotonic()
        assert tool.wait(60) == -signal.SIGTERM and time.monotonic() - began < 10
        assert tool.stderr is not None
        [words] = heartbeat.last_words(tool.stderr.read())
    assert words.end.code == EndCode.CONTROLLER_GONE


def test_a_tool_whose_launcher_is_gone_ends_too(tmp_path: Path) -> None:
    lease.write(tmp_path / lease.NAME, "1")
    with start(tmp_path, "a") as tool:
        assert read_line(tool) == "measures\n"
        assert tool.stderr is not None
        tool.stderr.close()  # as the pipe of a launcher that was killed
        lease.write(tmp_path / lease.NAME, lease.LOST)
        assert tool.wait(30) == -signal.SIGTERM


def test_a_program_that_a_host_lacks_is_named(tmp_path: Path) -> None:
    _, printed = start(tmp_path, "a", program=(str(tmp_path / "osu_bw"),)).communicate(timeout=60)
    [words] = heartbeat.last_words(printed)
    assert words.end.code == RankRefusal.TOOL_NOT_STARTED
    assert words.end.facts["program"] == str(tmp_path / "osu_bw")
