"""The kinds of faults that the nemesis draws from: how each begins and ends, and who may be named for it.

A fault acts from outside: signals, cables, routes, disks, and a foreign module (`sitecustomize`) in the Python programs
of all hosts. The suite cannot know what will happen.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tests.testbed.hosts import Process, Remote

if TYPE_CHECKING:
    from tests.testbed.nemesis import Scene

ENGINES = ("gloo", "mpich", "openmpi")
PORT = 29555
_FLAP_S, _STOPPED_S, _RUNS_S = 0.4, 0.4, 0.015
_PRINTED = 40  # bytes that are cut from a results file's last line

# A module that every Python program of a host imports when it starts. The signal SIGUSR2 makes it act.
STRIKE = """import os, signal
def strike(number, frame):
    import socket, sys, threading, time
    folder = os.path.dirname(__file__)
    with open(os.path.join(folder, f"how-{socket.gethostname()}-{os.getpid()}")) as file:
        how = file.read()
    if how == "raise":
        raise ValueError("a bit fell over")
    if how == "exit":
        os._exit(7)
    if how == "clock":
        real = time.time
        time.time = lambda: real() - 3600
    if how == "disk":
        fsync = os.fsync
        os.fsync = lambda file: (time.sleep(1), fsync(file))[1]
    if how == "data" and "bench.rank.verify" in sys.modules:
        verifier = sys.modules["bench.rank.verify"].Verifier
        prepare = verifier.prepare
        verifier.prepare = lambda self, buffers, index, variation: prepare(self, buffers, index, variation + 1)
signal.signal(signal.SIGUSR2, strike)
"""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A fault of one run. `victim`, `other`: ranks. It begins `after_s` after a moment of the run, for `for_s`."""

    kind: str
    victim: int
    other: int
    moment: Literal["start", "rows"]
    after_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class Culprits:
    """Who may be named for a fault. An end of a faulty link may be named for the link."""

    ranks: frozenset[int] = frozenset()
    links: frozenset[frozenset[str]] = frozenset()
    hosts: frozenset[str] = frozenset()


@dataclass(slots=True)
class Active:
    """A fault that began. Times are seconds since the run's start. `memory`: what its end needs to know."""

    drawn: Drawn
    began_s: float
    ended_s: float | None = None
    memory: dict[str, Any] = field(default_factory=dict)


Act = Callable[["Scene", Active], None]


@dataclass(frozen=True, slots=True)
class Kind:
    """How faults of a kind begin, go on (`tick`, many times a second) and end.

    `culprits`: who is at fault. `slows`: times of rows may change. `fatal`: the fault ends the run by itself, although
    nobody is at fault. `moments`: when it may begin. `unknown_with`: engines with which the culprit cannot be known.
    """

    what: str
    culprits: Literal["rank", "host", "link", "links", "writer", "all", "nobody"]
    begin: Act
    end: Act | None = None
    tick: Act | None = None
    slows: bool = False
    fatal: bool = False
    engines: tuple[str, ...] = ENGINES
    moments: tuple[Literal["start", "rows"], ...] = ("rows",)
    spares_controller: bool = False
    unknown_with: tuple[str, ...] = ()


class NotNowError(Exception):
    """The fault cannot begin, because what it needs is not there: the run may be over."""


def culprits(scene: Scene, drawn: Drawn) -> Culprits:
    """Who may be named for a fault."""
    host, other = scene.hosts[drawn.victim], scene.hosts[drawn.other]
    who = KINDS[drawn.kind].culprits
    links = frozenset({frozenset({host, other})})
    if who == "nobody":
        return Culprits()
    if who == "all":
        return Culprits(frozenset(range(len(scene.hosts))), hosts=frozenset(scene.bed.hosts))
    if who == "writer":
        return Culprits(frozenset({0}), hosts=frozenset({scene.hosts[0], scene.controller}))
    if who == "link":
        return Culprits(frozenset({drawn.victim, drawn.other}), links, frozenset({host, other}))
    if who == "links":
        inside, outside = _sides(scene, drawn)
        links = frozenset(frozenset({a, b}) for a in inside for b in outside)
        return Culprits(frozenset(range(len(scene.hosts))), links, frozenset(scene.hosts))
    return Culprits(frozenset({drawn.victim}), frozenset(), frozenset({host}))


# -- processes


def _rank(scene: Scene, drawn: Drawn) -> Process:
    """The victim's process."""
    beat = scene.beats().get(drawn.victim)
    if beat is None:
        raise NotNowError("the victim has written no heartbeat")
    return _inner(scene, beat["host"], beat["process"])


def _inner(scene: Scene, host: str, number: int) -> Process:
    """The process with this id on its host."""
    for process in scene.bed.processes("BENCH_JOB"):
        if process.host == host and ids_of(process)[-1] == number:
            return process
    raise NotNowError(f"process {number} of {host} is gone")


def ids_of(process: Process) -> list[int]:
    """A process's ids, from here inwards."""
    return [int(word) for word in _status(process, "NSpid")]


def _status(process: Process, key: str) -> list[str]:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process.number}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return line.split()[1:]
    raise NotNowError(f"process {process.number} is gone")


def _kill(number: int, *processes: Process) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.number, number)


def _to_rank(number: int) -> Act:
    def begin(scene: Scene, active: Active) -> None:
        process = _rank(scene, active.drawn)
        active.memory["stopped"] = [process]
        _kill(number, process)

    return begin


def _continued(scene: Scene, active: Active) -> None:
    _kill(signal.SIGCONT, *active.memory["stopped"])


def _starve(scene: Scene, active: Active) -> None:
    """Stop the rank for most of the time."""
    process, now = active.memory["stopped"][0], time.monotonic()
    stopped = now % (_STOPPED_S + _RUNS_S) < _STOPPED_S
    _kill(signal.SIGSTOP if stopped else signal.SIGCONT, process)
    if not stopped:
        time.sleep(_RUNS_S)
        _kill(signal.SIGSTOP, process)


def _strike(how: str) -> Act:
    def begin(scene: Scene, active: Active) -> None:
        beat = scene.beats().get(0 if how == "disk" else active.drawn.victim)
        if beat is None or beat["doing"] in ("starting", "opening the transport"):
            raise NotNowError("the victim does not measure yet")
        process = _inner(scene, beat["host"], beat["process"])
        (scene.site / f"how-{beat['host']}-{beat['process']}").write_text(how)
        _kill(signal.SIGUSR2, process)

    return begin


def _launcher(scene: Scene) -> Process:
    mine = [process for process in scene.bed.processes("BENCH_JOB") if process.host == scene.controller]
    if not mine:
        raise NotNowError("no launcher runs")
    return min(mine, key=lambda process: process.number)


def _to_launcher(number: int) -> Act:
    def begin(scene: Scene, active: Active) -> None:
        active.memory["stopped"] = [_launcher(scene)]
        _kill(number, _launcher(scene))

    return begin


def _to_daemon(number: int) -> Act:
    """A signal to what started the victim on its host: torchrun, Hydra's proxy, prted."""

    def begin(scene: Scene, active: Active) -> None:
        rank = _rank(scene, active.drawn)
        parent = int(_status(rank, "PPid")[0])
        active.memory["stopped"] = [Process(rank.host, parent, "")]
        _kill(number, *active.memory["stopped"])

    return begin


def _to_controller(number: int, with_guard: bool = False) -> Act:
    def begin(scene: Scene, active: Active) -> None:
        if with_guard:
            _kill_guard(scene, active)
        scene.signal_controller(number)

    return begin


def _kill_guard(scene: Scene, active: Active) -> None:
    guards = [process for process in scene.bed.processes() if "bench.controller.guard" in process.words]
    if not guards:
        raise NotNowError("no guard runs")
    _kill(signal.SIGKILL, *guards)


def _continue_controller(scene: Scene, active: Active) -> None:
    scene.signal_controller(signal.SIGCONT)


def _second(scene: Scene, active: Active) -> None:
    active.memory["second"] = scene.start_another("s", "--cluster", "c", "--results", "second")


def _second_resume(scene: Scene, active: Active) -> None:
    if scene.run is None or not (scene.run / "plan.json").exists():
        raise NotNowError("there is no run")
    active.memory["second"] = scene.start_another("--resume", f"results/{scene.run.name}")


def _end_second(scene: Scene, active: Active) -> None:
    second: Remote = active.memory["second"]
    active.memory["code"] = second.poll()
    active.memory["first"] = scene.process.poll()
    if second.poll() is None:
        second.signal(signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            second.wait(15)


# -- network


def _cut(scene: Scene, active: Active) -> None:
    scene.bed.cut(scene.hosts[active.drawn.victim])


def _mend(scene: Scene, active: Active) -> None:
    scene.bed.mend(scene.hosts[active.drawn.victim])


def _flap(scene: Scene, active: Active) -> None:
    down = time.monotonic() % (2 * _FLAP_S) < _FLAP_S
    if active.memory.get("down") != down:
        active.memory["down"] = down
        (_cut if down else _mend)(scene, active)


def _sides(scene: Scene, drawn: Drawn) -> tuple[list[str], list[str]]:
    """The two sides of a partition."""
    half = max(1, len(scene.hosts) // 2)
    turned = scene.hosts[drawn.victim :] + scene.hosts[: drawn.victim]
    return list(turned[:half]), list(turned[half:])


def _ways(scene: Scene, drawn: Drawn) -> Iterable[tuple[str, str]]:
    """(sender, receiver) of what is lost."""
    host, other = scene.hosts[drawn.victim], scene.hosts[drawn.other]
    if drawn.kind == "one-way":
        return [(host, other)]
    if drawn.kind == "mute":
        return [(host, receiver) for receiver in scene.bed.hosts if receiver != host]
    if drawn.kind == "deaf":
        return [(sender, host) for sender in scene.bed.hosts if sender != host]
    if drawn.kind == "pair":
        return [(host, other), (other, host)]
    inside, outside = _sides(scene, drawn)
    return [way for a in inside for b in outside for way in ((a, b), (b, a))]


def _block(scene: Scene, active: Active) -> None:
    for sender, receiver in _ways(scene, active.drawn):
        scene.bed.block(sender, receiver)


def _unblock(scene: Scene, active: Active) -> None:
    for sender, receiver in _ways(scene, active.drawn):
        scene.bed.unblock(sender, receiver)


def _slow(rate: str) -> Act:
    return lambda scene, active: scene.bed.slow(scene.hosts[active.drawn.victim], rate)


def _slow_pair(scene: Scene, active: Active) -> None:
    host, other = scene.hosts[active.drawn.victim], scene.hosts[active.drawn.other]
    scene.bed.slow_pair(host, other, "20mbit")


def _fast_pair(scene: Scene, active: Active) -> None:
    for rank in (active.drawn.victim, active.drawn.other):
        scene.bed.slow(scene.hosts[rank], scene.rate, direction="egress")


def _mtu(size: int) -> Act:
    return lambda scene, active: scene.bed.port_mtu(scene.hosts[active.drawn.victim], size)


def _duplicate(verb: str) -> Act:
    """Another host takes the victim's address too, and all hosts ask again who has it."""

    def act(scene: Scene, active: Active) -> None:
        host, other = scene.hosts[active.drawn.victim], scene.hosts[active.drawn.other]
        scene.bed.network(other, f"addr {verb} {scene.bed.address(host)}/24 dev eth0")
        for each in scene.hosts:
            scene.bed.network(each, "neigh flush dev eth0")

    return act


# -- hosts and their disks


def _on_host(*lines: str) -> Act:
    """Run shell lines on the victim's host."""

    def act(scene: Scene, active: Active) -> None:
        facts = {"folder": scene.folder, "results": scene.results}
        for line in lines:
            done = scene.bed.on(scene.hosts[active.drawn.victim], ["sh", "-c", line.format(**facts)], timeout_s=10)
            if done.code != 0:
                raise NotNowError(done.err)

    return act


def _power(scene: Scene, active: Active) -> None:
    scene.bed.kill_host(scene.hosts[active.drawn.victim])


def _boot(scene: Scene, active: Active) -> None:
    scene.bed.boot(scene.hosts[active.drawn.victim])


def _suspend(scene: Scene, active: Active) -> None:
    scene.bed.suspend(scene.hosts[active.drawn.victim])


def _wake(scene: Scene, active: Active) -> None:
    scene.bed.wake(scene.hosts[active.drawn.victim])


def _no_agent(scene: Scene, active: Active) -> None:
    scene.bed.unreachable(scene.hosts[active.drawn.victim])


def _agent_again(scene: Scene, active: Active) -> None:
    (scene.bed.shared / f"{scene.hosts[active.drawn.victim]}.unreachable").unlink(missing_ok=True)


def _kill_agents(scene: Scene, active: Active) -> None:
    """Kill the connections to the victim's host. What runs there goes on."""
    host = scene.hosts[active.drawn.victim]
    found = [one for one in scene.bed.processes() if "agent.py" in one.words and f" {host} " in one.words]
    if not found:
        raise NotNowError(f"no connection to {host}")
    _kill(signal.SIGKILL, *found)


def _fill(scene: Scene, active: Active) -> None:
    with contextlib.suppress(OSError), (scene.folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * (1 << 20))
    with contextlib.suppress(OSError), (scene.folder / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(b"x" * 512)


def _empty(scene: Scene, active: Active) -> None:
    (scene.folder / "filler").unlink(missing_ok=True)


def _run_folder(scene: Scene) -> Path:
    if scene.run is None:
        raise NotNowError("there is no run")
    return scene.run


def _remove_run(scene: Scene, active: Active) -> None:
    shutil.rmtree(_run_folder(scene), ignore_errors=True)


def _remove_heartbeats(scene: Scene, active: Active) -> None:
    for folder in _run_folder(scene).glob(".*.heartbeats"):
        shutil.rmtree(folder, ignore_errors=True)


def _tear(scene: Scene, active: Active) -> None:
    """Cut the last line of a results file that has rows."""
    for file in _run_folder(scene).glob("*.jsonl"):
        data = file.read_bytes()
        if data.count(b"\n") >= 2:
            last = len(data) - data.rstrip(b"\n").rfind(b"\n") - 1
            os.truncate(file, len(data) - min(_PRINTED, last - 1))
            return
    raise NotNowError("there are no rows")


def _take_port(scene: Scene, active: Active) -> None:
    listen = f"import signal, socket; door = socket.create_server(('', {PORT})); signal.pause()"
    active.memory["second"] = scene.bed.popen(scene.hosts[0], [sys.executable, "-S", "-c", listen])


def _free_port(scene: Scene, active: Active) -> None:
    active.memory["second"].signal(signal.SIGKILL)


_BOTH: tuple[Literal["start", "rows"], ...] = ("start", "rows")

# fmt: off
KINDS = {
    "rank-killed": Kind("a rank is killed", "rank", _to_rank(signal.SIGKILL), moments=_BOTH),
    "rank-crashes": Kind("a rank crashes (SIGSEGV)", "rank", _to_rank(signal.SIGSEGV), unknown_with=("mpich",)),
    "rank-terminated": Kind("a rank gets SIGTERM", "rank", _to_rank(signal.SIGTERM)),
    "rank-raises": Kind("a rank raises an exception", "rank", _strike("raise")),
    "rank-exits": Kind("a rank exits with code 7", "rank", _strike("exit")),
    "rank-stopped": Kind("a rank is stopped", "rank", _to_rank(signal.SIGSTOP), _continued, slows=True),
    "rank-starved": Kind("a rank gets 4 % of its CPU", "rank", _to_rank(0), _continued, _starve, slows=True),
    "wrong-data": Kind("a rank sends wrong data", "rank", _strike("data")),
    "clock-step": Kind("a rank's clock steps back by an hour", "rank", _strike("clock")),
    "launcher-killed": Kind(
        "the launcher is killed", "nobody", _to_launcher(signal.SIGKILL), fatal=True, moments=_BOTH
    ),
    "launcher-stopped": Kind("the launcher is stopped", "nobody", _to_launcher(signal.SIGSTOP), _continued, slows=True),
    "daemon-killed": Kind("the launcher's daemon on a host is killed", "host", _to_daemon(signal.SIGKILL)),
    "daemon-stopped": Kind(
        "the launcher's daemon on a host is stopped", "host", _to_daemon(signal.SIGSTOP), _continued, slows=True
    ),
    "controller-killed": Kind(
        "the controller is killed", "nobody", _to_controller(signal.SIGKILL), fatal=True, moments=_BOTH
    ),
    "controller-lost": Kind(
        "controller and guard are killed", "nobody", _to_controller(signal.SIGKILL, with_guard=True), fatal=True
    ),
    "controller-stopped": Kind(
        "the controller is stopped", "nobody", _to_controller(signal.SIGSTOP), _continue_controller, moments=_BOTH
    ),
    "controller-interrupted": Kind(
        "Ctrl-C at the controller", "nobody", _to_controller(signal.SIGINT), fatal=True, moments=_BOTH
    ),
    "controller-terminated": Kind(
        "the controller is terminated", "nobody", _to_controller(signal.SIGTERM), fatal=True, moments=_BOTH
    ),
    "guard-killed": Kind("the guard is killed", "nobody", _kill_guard),
    "second-controller": Kind(
        "a second run on the same hosts", "all", _second, _end_second, slows=True, moments=_BOTH
    ),
    "second-resume": Kind("a second --resume of the run", "nobody", _second_resume, _end_second, slows=True),
    "cable": Kind("a cable is pulled", "host", _cut, _mend, slows=True),
    "flap": Kind("a link flaps", "host", _flap, _mend, _flap, slows=True),
    "one-way": Kind("one direction of a pair is lost", "link", _block, _unblock, slows=True),
    "mute": Kind("all that a host sends is lost", "host", _block, _unblock, slows=True),
    "deaf": Kind("all that a host should receive is lost", "host", _block, _unblock, slows=True),
    "pair": Kind("two hosts lose each other", "link", _block, _unblock, slows=True),
    "partition": Kind("the hosts fall into two parts", "links", _block, _unblock, slows=True),
    "slow-link": Kind("a host's link slows to 20 Mbit/s", "host", _slow("20mbit"), _slow("1gbit"), slows=True),
    "slow-pair": Kind("the path of a pair slows to 20 Mbit/s", "link", _slow_pair, _fast_pair, slows=True),
    "mtu": Kind("a port passes only frames of 600 bytes", "host", _mtu(600), _mtu(1500), slows=True),
    "duplicate-address": Kind(
        "two hosts have one address", "link", _duplicate("add"), _duplicate("del"), slows=True
    ),
    "no-names": Kind(
        "a host knows no host names", "host", _on_host("mount --bind /dev/null /etc/hosts"),
        _on_host("umount /etc/hosts"), moments=_BOTH,
    ),
    "power": Kind("a host loses its power", "host", _power, _boot, moments=_BOTH, spares_controller=True),
    "suspended": Kind("a machine is suspended", "host", _suspend, _wake, slows=True),
    "no-agent": Kind(
        "a host's agent cannot be reached", "host", _no_agent, _agent_again, moments=_BOTH, spares_controller=True
    ),
    "agents-killed": Kind("the connections to a host's agent are lost", "host", _kill_agents, moments=_BOTH),
    "disk-full": Kind("the disk with the results is full", "writer", _fill, _empty, fatal=True),
    "disk-slow": Kind("each fsync takes a second longer", "writer", _strike("disk")),
    "read-only": Kind(
        "a host sees the results read-only", "host",
        _on_host("mount --bind {results} {results}", "mount -o remount,bind,ro {results}"),
        _on_host("umount {results}"),
    ),
    "run-removed": Kind("the run's folder is removed", "writer", _remove_run, fatal=True),
    "heartbeats-removed": Kind("the heartbeats are removed", "nobody", _remove_heartbeats, fatal=True),
    "torn-line": Kind("the last row is cut", "nobody", _tear),
    "port-taken": Kind(
        "the port of the ranks' meeting is taken", "host", _take_port, _free_port, fatal=True, engines=("gloo",),
        moments=("start",),
    ),
}
# fmt: on
