"""The testbed itself: hosts are apart, links have the rate that was asked for, nothing stays."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.testbed import agent, site
from tests.testbed.hosts import _ROOTLESS, SuspendedError, Testbed

pytestmark = pytest.mark.netns
MiB = 1 << 20
Make = Callable[..., Testbed]


def megabytes_per_s(bed: Testbed, sender: str, receiver: str, nic: int = 0, mib: int = 24) -> float:
    """What one TCP connection carries, from the receiver's first byte to its last."""
    port = 20000 + os.getpid() % 10000

    def work(rank: int) -> float:
        if rank == 1:
            for _ in range(200):
                try:
                    out = socket.create_connection((bed.address(receiver, nic), port), timeout=5)
                    break
                except OSError:
                    time.sleep(0.01)
            with out:
                out.sendall(bytes(mib * MiB))
            return 0.0
        door = socket.create_server((bed.address(receiver, nic), port))
        door.settimeout(10)
        got, _ = door.accept()
        got.settimeout(10)
        num = len(got.recv(MiB))
        began = time.monotonic()
        while part := got.recv(MiB):
            num += len(part)
        return num / (time.monotonic() - began) / 1e6

    return float(bed.fork(2, 1, work, on=(receiver, sender))[0])


def test_hosts_have_names_processes_addresses_and_clocks_of_their_own(testbed: Make) -> None:
    bed = testbed(3, nics=2, clocks={"h1": 5000})
    assert [bed.on(host, ["hostname"]).out.strip() for host in bed.hosts] == ["h0", "h1", "h2"]
    bed.popen("h2", ["sleep", "60"], env={"MARK": "a/b"})
    for _ in range(200):  # it has its variables once its program runs
        if found := bed.processes("MARK", "a/b"):
            break
        time.sleep(0.05)
    assert [process.host for process in found] == ["h2"]
    assert "sleep" not in bed.on("h0", ["ps", "ax"]).out
    clock = [sys.executable, "-c", "import time; print(time.monotonic())"]
    ahead = float(bed.on("h1", clock).out) - float(bed.on("h0", clock).out)
    assert 4999 < ahead < 5060
    assert bed.on("h0", ["ls", "/sys/class/net"]).out.split() == ["eth0", "eth1", "lo"]


def test_a_testbed_sees_only_its_own_processes_after_one_of_its_hosts_died(testbed: Make) -> None:
    bed = testbed(2)
    bed.kill_host("h1")
    with contextlib.ExitStack() as neighbours:
        for _ in range(12):  # one of them would get the number of the dead host's namespace
            words = ["unshare", *_ROOTLESS, "--pid", "--fork", "--kill-child", "sleep", "30"]
            neighbours.callback(neighbours.enter_context(subprocess.Popen(words)).kill)
            time.sleep(0.03)
        assert bed.processes() == []
        left = bed.popen("h0", ["sleep", "30"])
        assert [process.host for process in bed.processes()] == ["h0"]
        left.signal(signal.SIGKILL)


def test_the_agent_is_as_ssh_is(testbed: Make) -> None:
    bed = testbed(2)
    agent = [word.replace("{host}", "h1") for word in bed.agent]
    done = bed.on("h0", [*agent, "echo $(hostname) $HOME '$MARK'; cat; exit 7"], env={"MARK": "mine"})
    assert (done.code, done.out) == (7, "h1 /run/home $MARK\n")  # a login's environment, not the caller's
    bed.unreachable("h1")
    away = bed.on("h0", [*agent, "true"])
    assert away.code == 255
    assert os.strerror(errno.EHOSTUNREACH) in away.err


def test_a_link_has_its_rate_and_a_slow_nic_or_pair_its_own(testbed: Make) -> None:
    bed = testbed(3, nics=2, rate="400mbit")
    bed.slow("h1", "200mbit", nic=1)
    bed.slow_pair("h0", "h2", "100mbit")
    assert site.settles(lambda: megabytes_per_s(bed, "h0", "h1"), pytest.approx(48, rel=0.08))
    assert site.settles(lambda: megabytes_per_s(bed, "h0", "h1", nic=1), pytest.approx(24, rel=0.08))
    assert site.settles(lambda: megabytes_per_s(bed, "h1", "h0", nic=1), pytest.approx(24, rel=0.08))
    assert site.settles(lambda: megabytes_per_s(bed, "h2", "h0", mib=12), pytest.approx(12, rel=0.08))
    assert site.settles(lambda: megabytes_per_s(bed, "h1", "h2"), pytest.approx(48, rel=0.08))


def test_a_link_has_its_delay(testbed: Make) -> None:
    bed = testbed(2, rate="1gbit", delay_s=0.002)
    code = (
        "import socket, time\n"
        "for _ in range(6):\n"
        "    began = time.monotonic()\n"
        "    try:\n"
        f"        socket.create_connection(({bed.address('h1')!r}, 9))\n"
        "    except ConnectionRefusedError:\n"
        "        print(time.monotonic() - began)\n"
    )

    def round_trip_s() -> float:
        return min(map(float, bed.on("h0", [sys.executable, "-c", code]).out.split()))

    short_s = round_trip_s()
    bed.delay(0.022, "h0", "h1")
    assert site.settles(lambda: round_trip_s() - short_s, pytest.approx(0.020, rel=0.15))
    assert short_s == pytest.approx(0.004, rel=0.5)
    bed.cut("h1")
    with pytest.raises(TimeoutError):
        bed.on("h0", [sys.executable, "-c", code], timeout_s=1)


def test_a_cable_is_pulled_and_put_in_again(testbed: Make) -> None:
    bed = testbed(2)
    ask = [sys.executable, "-c", f"import socket; socket.create_connection(({bed.address('h1')!r}, 9), timeout=1)"]
    assert "refused" in bed.on("h0", ask).err
    bed.cut("h1")
    assert "refused" not in bed.on("h0", ask).err
    bed.mend("h1")
    assert "refused" in bed.on("h0", ask).err


def test_one_direction_of_a_pair_is_blocked_and_frames_are_limited(testbed: Make) -> None:
    bed = testbed(2)

    def received(rank: int) -> int:
        """Datagrams of 1000 bytes that this host receives from the other within half a second."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.bind((bed.address(f"h{rank}"), 9999))
            own.settimeout(0.1)
            num = 0
            for _ in range(5):
                own.sendto(bytes(1000), (bed.address(f"h{1 - rank}"), 9999))
                with contextlib.suppress(TimeoutError, ConnectionRefusedError):
                    num += len(own.recv(2000)) == 1000
            return num

    bed.block("h0", "h1")
    assert bed.fork(2, 1, received)[1] == 0
    assert bed.fork(2, 1, received)[0] > 0
    bed.unblock("h0", "h1")
    assert all(bed.fork(2, 1, received))
    bed.port_mtu("h1", 600)
    assert not any(bed.fork(2, 1, received))


def test_a_suspended_host_answers_after_it_wakes(testbed: Make) -> None:
    bed = testbed(1)
    bed.suspend("h0")
    with pytest.raises(TimeoutError):
        connect(bed, timeout_s=0.3)
    with pytest.raises(SuspendedError):
        bed.popen("h0", ["true"])
    bed.wake("h0")
    connect(bed, timeout_s=10)


def connect(bed: Testbed, timeout_s: float) -> None:
    """Ask a host's daemon to run a command. Raises TimeoutError."""
    with agent.call(bed.shared, "h0", {"command": "true"}) as daemon:
        daemon.settimeout(timeout_s)
        assert daemon.recv(100)


def test_a_disk_is_small_on_one_host_only(testbed: Make) -> None:
    bed = testbed(2)
    folder = bed.shared / "disk"
    bed.small_disk("h1", folder, "64k")
    write = [sys.executable, "-c", f"open({str(folder / 'file')!r}, 'wb').write(bytes(1 << 20))"]
    assert os.strerror(errno.ENOSPC) in bed.on("h1", write).err
    assert bed.on("h0", write).code == 0


def test_a_host_loses_power_and_nothing_is_left_at_the_end(testbed: Make) -> None:
    bed = testbed(2)
    mark = f"testbed-{os.getpid()}"
    first, second = (bed.popen(host, ["sh", "-c", "sleep 60 & wait"], env={"MARK": mark}) for host in bed.hosts)
    bed.kill_host("h1")
    assert second.wait(5) != 0
    assert {process.host for process in bed.processes("MARK", mark)} == {"h0"}
    first.signal(signal.SIGKILL)
    shared = bed.shared
    bed.__exit__(None, None, None)
    assert not shared.exists()
    left = subprocess.run(
        ["grep", "-l", "-a", mark, *map(str, Path("/proc").glob("[0-9]*/environ"))],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    assert [path for path in left if str(os.getpid()) not in path] == []


def test_a_host_that_lost_power_comes_back(testbed: Make) -> None:
    bed = testbed(2, rate="400mbit")
    bed.popen("h1", ["sleep", "60"])
    bed.kill_host("h1")
    bed.boot("h1")
    ask = [sys.executable, "-c", f"import socket; socket.create_connection(({bed.address('h1')!r}, 9), timeout=1)"]
    assert "refused" in bed.on("h0", ask).err
    assert bed.on("h1", ["hostname"]).out == "h1\n"
    assert bed.processes() == []


def test_an_error_of_a_forked_rank_is_told(testbed: Make) -> None:
    bed = testbed(2)
    with pytest.raises(RuntimeError, match=r"rank 1: (.|\n)*ZeroDivisionError"):
        bed.fork(2, 1, lambda rank: 1 / (1 - rank))
    with pytest.raises(TimeoutError, match="rank 0"):
        bed.fork(2, 1, lambda _: time.sleep(30), timeout_s=0.2)
