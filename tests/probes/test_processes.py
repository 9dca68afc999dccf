import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from bench.probes import processes

# Says that it runs, then waits; says goodbye on TERM, unless a word makes it deaf to that.
_WAIT = """
import signal, sys
def goodbye(number, frame):
    print("goodbye", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in sys.argv else goodbye)
print("up", flush=True)
sys.stdin.read()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(job, *words)`: a process that waits, carrying that job's id; ended with the test.

    It inherits the open files whose numbers are among the words.
    """
    started = []

    def one(job: str, *words: str) -> "subprocess.Popen[str]":
        env = {**os.environ, processes.JOB_VARIABLE: job}
        process = subprocess.Popen(
            [sys.executable, "-c", _WAIT, *words],
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=[int(word) for word in words if word.isdecimal()],
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


def _said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.read()


def test_only_processes_of_the_job_are_found(start: Start) -> None:
    mine, _other = start("job/1"), start("job/12")
    assert [process.pid for process in processes.of_job("job/1")] == [mine.pid]


def test_a_look_tells_the_other_jobs_of_the_host(start: Start) -> None:
    mine, _other = start("job/1"), start("job/2")
    found = processes.look("job/1")
    assert list(found["processes"]) == [str(mine.pid)] and "job/2" in found["others"] and "job/1" not in found["others"]


def test_who_listens_on_a_port_is_told_by_job_user_and_address(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as own:
        port = own.getsockname()[1]
        mine = {
            "job": os.environ.get(processes.JOB_VARIABLE),
            "user": psutil.Process().username(),
            "address": "127.0.0.1",
        }
        assert processes.holders(port, "job/1") == [mine]
        other = start("job/2", str(own.fileno()))
        assert "holders" not in processes.answer("look", "job/1")
    found = processes.answer("look", "job/1", [f"{processes.PORT_OPTION}{port}", "elsewhere:1"])
    assert found["holders"] == [mine | {"job": "job/2"}]
    assert processes.holders(port, "job/2") == [], "the job's own sockets"
    other.kill()
    other.wait()
    assert processes.holders(port, "job/1") == []


@pytest.mark.parametrize(
    ("address", "ipv6_only", "in_the_way"),
    [
        ("127.0.0.1", False, True),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("::", True, False),
        ("::1", True, False),
    ],
)
def test_only_sockets_that_listen_for_ipv4_are_in_the_way(address: str, ipv6_only: bool, in_the_way: bool) -> None:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as door:
        if ":" in address:
            door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, ipv6_only)
        door.bind((address, 0))
        door.listen()
        port = door.getsockname()[1]
        assert [holder["address"] for holder in processes.holders(port, "job/1")] == [address] * in_the_way
        if address == "::1":
            with socket.create_server(("127.0.0.1", port)):
                assert [holder["address"] for holder in processes.holders(port, "job/1")] == ["127.0.0.1"]


def test_ending_a_job_ends_its_processes_and_no_others(start: Start) -> None:
    mine, other = start("job/1"), start("job/2")
    assert processes.end_job("job/1") == (mine.pid,)
    assert not psutil.pid_exists(mine.pid)
    assert _said(mine) == "goodbye\n"
    assert other.poll() is None


def test_a_process_that_is_deaf_to_term_is_killed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_TERM_GRACE_S", 0.1)
    deaf = start("job/deaf", "deaf")
    processes.end_job("job/deaf")
    assert not psutil.pid_exists(deaf.pid)
    assert _said(deaf) == ""


def test_this_process_is_never_ended_by_its_own_job() -> None:
    code = (
        "import os; from bench.probes import processes; print(processes.end_job(os.environ['BENCH_JOB']), flush=True)"
    )
    env = {**os.environ, processes.JOB_VARIABLE: "job/self"}
    told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert told.stdout == "()\n"


def test_a_job_that_has_ended_has_no_processes() -> None:
    assert processes.end_job("job/none") == ()
