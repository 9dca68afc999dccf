"""The first process of a host: makes the host its own, then runs what agents ask for, as an SSH daemon would.

`python hostd.py NAME FOLDER`, inside new network, UTS, IPC, mount, PID (and time) namespaces. It listens on the socket
FOLDER/NAME.sock: a file is reached from every network namespace, so this stands for a management network that no cut
cable touches. What it runs gets the environment of a login, not the caller's, and outlives a caller that goes away.
When it ends, the kernel ends every process of the host.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any


def settle(name: str, folder: Path) -> None:
    """Host name, name table, and file systems that hosts do not share."""
    socket.sethostname(name)
    (folder / "hosts").touch()
    for words in (
        ("mount", "--bind", str(folder / "hosts"), "/etc/hosts"),
        ("mount", "-t", "tmpfs", "tmpfs", "/dev/shm"),
        ("mount", "-t", "tmpfs", "tmpfs", "/run"),
        ("mount", "-t", "sysfs", "sysfs", "/sys"),  # this host's own network devices
    ):
        subprocess.run(words, check=words[-1] != "/sys")
    Path("/run/tmp").mkdir()
    Path("/run/home").mkdir()


def login() -> dict[str, str]:
    """The environment of a login: nothing of the caller's, so that what must travel has to be sent."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"PATH": path, "HOME": "/run/home", "TMPDIR": "/run/tmp", "LANG": "C.UTF-8", "USER": "root"}


def start(request: dict[str, Any], stdio: list[int]) -> int:
    """Fork a command in a session of its own. Returns its process id on this host."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for target, source in enumerate(stdio):
            os.dup2(source, target)
        os.closerange(3, 64)
        os.chdir(request.get("cwd") or "/run/home")
        os.execve("/bin/sh", ["sh", "-c", request["command"]], {**login(), **request.get("env", {})})
    except OSError as error:
        print(f"hostd: {error}", file=sys.stderr)
    os._exit(127)


def receive(caller: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """One request: a JSON line, with the caller's standard input, output and error beside it."""
    data, stdio = b"", array.array("i")
    while not data.endswith(b"\n"):
        part, beside, _, _ = caller.recvmsg(1 << 16, socket.CMSG_LEN(3 * stdio.itemsize))
        if not part:
            raise ConnectionError
        data += part
        for _, _, raw in beside:
            stdio.frombytes(raw)
    return json.loads(data), list(stdio)


def serve(name: str, folder: Path) -> None:
    """Answer agents until standard input ends: with whoever made the host, the host goes."""
    door = socket.socket(socket.AF_UNIX)
    door.bind(str(folder / f"{name}.sock"))
    door.listen(64)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    waiting: dict[int, socket.socket] = {}
    print("READY", flush=True)
    while True:
        doors: list[Any] = [door, woken, 0]
        ready, _, _ = select.select(doors, [], [])
        if 0 in ready:
            return
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            _reap(waiting)
        if door in ready:
            _answer(door.accept()[0], waiting)


def _answer(caller: socket.socket, waiting: dict[int, socket.socket]) -> None:
    try:
        request, stdio = receive(caller)
    except (OSError, ValueError):
        caller.close()
        return
    if "signal" in request:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if request.get("group") else os.kill)(request["process"], request["signal"])
        caller.close()
        return
    child = start(request, stdio)
    for fd in stdio:
        os.close(fd)
    waiting[child] = caller
    with contextlib.suppress(OSError):
        caller.sendall(json.dumps({"process": child}).encode() + b"\n")


def _reap(waiting: dict[int, socket.socket]) -> None:
    """Tell callers how their commands ended; processes that lost their parent are ours to bury, too."""
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if child == 0:
            return
        caller = waiting.pop(child, None)
        if caller is not None:
            code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):
                caller.sendall(json.dumps({"exit": code}).encode() + b"\n")
            caller.close()


if __name__ == "__main__":
    settle(sys.argv[1], Path(sys.argv[2]))
    serve(sys.argv[1], Path(sys.argv[2]))
