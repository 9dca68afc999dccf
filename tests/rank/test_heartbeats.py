"""Heartbeats and the watchdog of a real process: dropped heartbeats, local work, and pauses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.core.ends import EndCode
from bench.core.errors import EXIT_MEASUREMENT
from bench.core.world import RankInfo
from bench.probes.netlink import NetworkHistory
from bench.rank import heartbeats, pauses
from bench.rank.pauses import Pause
from bench.store import heartbeat
from bench.store.heartbeat import Heartbeat, LastWords

ROOT = Path(__file__).resolve().parent.parent.parent
RANK = """
import ctypes, sys, time
from bench.core.world import RankInfo
from bench.rank import delivery, heartbeats
from bench.store.heartbeat import LastWords, error_line

def report(end):
    delivery.say(error_line(LastWords(end, 1, "h1")))

me = RankInfo(1, 2, 1, 2, "direct")
with heartbeats.with_watchdog(me, {deadline_s}, sys.argv[1], report) as beat:
    beat("first check")
    beat("warm-up")
{body}
"""
WAITS = "time.sleep(30)"
MEASURES = "while True:\n    beat('samples')\n    time.sleep(0.05)"
WORKS = """
with beat.working():
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        pass
"""
HANGS_IN_WORK = "with beat.working():\n    time.sleep(30)"
KEEPS_THE_LOCK = "ctypes.PyDLL(None).usleep(3_500_000)\ntime.sleep(30)"
SLEEPS = """
read = time.clock_gettime
time.clock_gettime = lambda clock: read(clock) + 100 * (clock == time.CLOCK_BOOTTIME)
time.sleep(30)
"""


@contextmanager
def a_rank(folder: Path, body: str, deadline_s: float) -> Iterator[subprocess.Popen[str]]:
    indented = "".join(f"    {line}\n" for line in body.strip().splitlines())
    words = [sys.executable, "-c", RANK.format(deadline_s=deadline_s, body=indented), str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(words, stderr=subprocess.PIPE, env=env, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def beat_in(folder: Path, doing: str) -> Heartbeat | None:
    """The heartbeat that says so; None if there is none within 20 s."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for beat in heartbeat.read_all(folder):
            if beat.doing == doing:
                return beat
        time.sleep(0.05)
    return None


def end_of(process: subprocess.Popen[str]) -> tuple[int, LastWords | None]:
    _, err = process.communicate(timeout=60)
    return process.returncode, next(heartbeat.last_words(err), None)


def test_a_heartbeat_soon_after_another_is_written_although_none_follows(tmp_path: Path) -> None:
    with a_rank(tmp_path, WAITS, 60):
        beat = beat_in(tmp_path, "warm-up")
    assert beat is not None and 0 < beat.age_s < 10


def test_local_work_is_progress_as_long_as_it_uses_the_cpu(tmp_path: Path) -> None:
    with a_rank(tmp_path, WORKS, 1) as works, a_rank(tmp_path, HANGS_IN_WORK, 1) as hangs:
        assert end_of(works) == (0, None)
        code, words = end_of(hangs)
    assert words is not None and (code, words.end.code) == (4, EndCode.NO_PROGRESS)


def test_a_rank_without_its_controller_removes_its_files_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    me = RankInfo(0, 1, 0, 1, "direct")
    monkeypatch.setattr(heartbeats, "wait_for_loss", lambda *_: 9.0)
    monkeypatch.setattr(os, "_exit", done.append)
    beat = heartbeats.HeartbeatWriter(me, None, 60.0)
    watched = (tmp_path / "lease", me, beat, threading.Event())
    heartbeats._watch_lease(*watched, lambda end: done.append(end.code), lambda: done.append("discarded"), lambda: None)
    assert done == [EndCode.CONTROLLER_GONE, "discarded", EXIT_MEASUREMENT]


def test_a_paused_rank_does_not_say_that_it_hung(tmp_path: Path) -> None:
    with a_rank(tmp_path, MEASURES, 2) as rank, a_rank(tmp_path / "lock", KEEPS_THE_LOCK, 2) as locked:
        assert beat_in(tmp_path, "samples")
        os.kill(rank.pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(rank.pid, signal.SIGCONT)
        (code, words), (_, others) = end_of(rank), end_of(locked)
    assert words is not None and (code, words.end.code) == (4, EndCode.PAUSED)
    assert 2 < words.end.facts["paused_s"] < 20
    assert others is not None and others.end.code == EndCode.NO_PROGRESS, "it ran, and did not answer"


def test_a_machine_that_slept_longer_than_the_deadline_is_named(tmp_path: Path) -> None:
    with a_rank(tmp_path, SLEEPS, 20) as rank:
        code, words = end_of(rank)
    assert words is not None and (code, words.end.code) == (4, EndCode.SUSPENDED)
    assert words.end.facts["paused_s"] == pytest.approx(100, abs=5)


@pytest.mark.parametrize(
    ("took_s", "slept_s", "wake_ups", "pause"),
    [
        (0.5, 0.0, 1, None),
        (0.5, 30.0, 1, Pause(EndCode.SUSPENDED, 30.0)),
        (30.0, 0.0, 2, Pause(EndCode.PAUSED, 30.0)),
        (30.0, 0.0, 6000, None),
        (1.9, 1.9, 1, None),
    ],
    ids=["on time", "slept", "stopped", "waited for Python's lock", "busy machine"],
)
def test_a_pause_between_two_ticks(took_s: float, slept_s: float, wake_ups: int, pause: Pause | None) -> None:
    last, now = pauses._Tick(100.0, 200.0, 7), pauses._Tick(100.0 + took_s, 200.0 + took_s + slept_s, 7 + wake_ups)
    assert pauses._pause_between(last, now) == pause


def test_an_address_that_moved_long_before_the_last_progress_is_no_evidence(tmp_path: Path) -> None:
    beats = [heartbeat.Heartbeat(rank, "h0", 1, "x", 100.0) for rank in range(2)]
    lost = [{"device": "eth0", "addresses": ["10.0.0.1"], "num": 3, "time_s": time_s} for time_s in (95.0, 50.0)]
    heartbeat.write_network(tmp_path, 0, [("10.0.0.1", ["a", "b"], 95.0), ("10.0.0.2", ["a", "b"], 50.0)], lost)
    (tmp_path / "1.network").write_text("[[")
    assert heartbeat.read_moved(tmp_path, beats) == (("10.0.0.1", ("a", "b")),)
    carriers = {beats[0].host: [{"device": "eth0", "num": 3, "addresses": ("10.0.0.1",)}]}
    assert heartbeat.read_carriers(tmp_path, beats) == carriers


def test_a_rank_that_fails_looks_at_its_network_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that takes another host's address loses its connections before the next look of its thread."""
    looks: list[float] = []

    def look(_: NetworkHistory, now_s: float) -> bool:
        looks.append(now_s)
        return True

    monkeypatch.setattr(NetworkHistory, "look", look)
    me = RankInfo(0, 2, 0, 1, "direct")
    with pytest.raises(ValueError), heartbeats.with_watchdog(me, 60.0, str(tmp_path), lambda end: None):
        while not looks:
            time.sleep(0.01)
        num = len(looks)
        (tmp_path / "0.network").unlink(missing_ok=True)
        raise ValueError("reset")
    assert len(looks) > num and (tmp_path / "0.network").exists()
