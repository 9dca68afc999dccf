"""Hosts on one machine: a process tree in namespaces of its own per host, joined by bridges with shaped ports.

    with Testbed(4, nics=2, rate="1gbit") as bed:
        bed.on("h0", ["hostname"])              # Ran(0, "h0\\n", "")
        bed.slow("h3", "500mbit")               # a degraded NIC
        bed.cut("h1", nic=1)                    # a pulled cable

A host has its own network, name, shared memory, /run, TMPDIR, process ids and, where asked for, monotonic clock; the
rest of the file system is shared, as on a cluster. Rail k joins the k-th NIC of every host in the subnet
10.77.k.0/24; the bridges live in a namespace of their own, so no packet can leave. Root is not needed where the kernel
lets users make user namespaces. Everything ends with the `with` block, and also when the process that made it dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from tests.testbed import agent

HERE = Path(__file__).resolve().parent
_NAMESPACES = ("user", "net", "uts", "ipc", "mnt")  # that a forked rank enters
_BURST, _QUEUE_S = "128kb", 0.05
_NOBODY = "02:00:00:00:00:01"  # an address that no device has
_HTB = f"burst {_BURST} quantum 60000"

# Switch off segmentation offload of a device (ethtool), so a large segment does not pass a small MTU in one piece.
_NO_OFFLOAD = """
import array, fcntl, socket, struct, sys
for command in (0x1F, 0x24, 0x2C):  # ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO
    value = array.array("B", struct.pack("=II", command, 0))
    request = struct.pack("16sP16x", sys.argv[1].encode(), value.buffer_info()[0])
    fcntl.ioctl(socket.socket(), 0x8946, request)
"""


class SuspendedError(ConnectionError):
    """A host is suspended, so its daemon does not answer."""


Direction = Literal["both", "egress", "ingress"]


@dataclass(frozen=True)
class Ran:
    """A finished command."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Process:
    """A process of a host, as seen from outside: `number` is its id here."""

    host: str
    number: int
    words: str


class Remote:
    """A command that runs on a host; what it says goes to two files that begin with `base`."""

    def __init__(self, folder: Path, host: str, request: Mapping[str, Any], base: Path) -> None:
        self._folder, self._host = folder, host
        self._said = [base.with_suffix(".out"), base.with_suffix(".err")]
        with contextlib.ExitStack() as files:
            stdio: list[Any] = [files.enter_context(Path(os.devnull).open("rb"))]
            stdio += [files.enter_context(path.open("wb")) for path in self._said]
            self._daemon = agent.call(folder, host, dict(request), tuple(file.fileno() for file in stdio))
        self._answers = agent.answers(self._daemon)
        self.process: int = next(self._answers)["process"]  # its id on that host; it leads a session of its own
        self.code: int | None = None

    @property
    def out(self) -> str:
        """Standard output so far."""
        return self._said[0].read_text(errors="replace")

    @property
    def err(self) -> str:
        """Standard error so far."""
        return self._said[1].read_text(errors="replace")

    def close(self) -> None:
        """Ask no more."""
        self._answers.close()
        self._daemon.close()

    def poll(self) -> int | None:
        """Its exit code (minus the signal that ended it), None while it runs."""
        if self.code is None and select.select([self._daemon], [], [], 0)[0]:
            self.code = next(self._answers, {"exit": agent.UNREACHABLE})["exit"]
        return self.code

    def wait(self, timeout_s: float) -> int:
        """Its exit code. Raises TimeoutError."""
        end = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"no end within {timeout_s} s; it said: {self.out[-2000:]}{self.err[-4000:]}")
            time.sleep(0.01)
        return code

    def signal(self, number: int, group: bool = False) -> None:
        """Send a signal to it, or to its process group."""
        agent.call(self._folder, self._host, {"process": self.process, "signal": number, "group": group}).close()


class Testbed:
    """Hosts h0, h1, ... on one or several rails. `rate` such as "1gbit" holds for each NIC in each direction.

    `delay_s`: of each frame from one host to another; a switch in user space (switch.py) then takes the place of the
    kernel's bridges, with one rail and some Gbit/s at most. `clocks`: seconds by which a host's monotonic clock is
    ahead. `shared` is a folder that all hosts see.
    """

    __test__ = False  # no test class, whatever pytest thinks of its name

    def __init__(
        self,
        num_hosts: int,
        nics: int = 1,
        rate: str | None = None,
        delay_s: float | None = None,
        clocks: Mapping[str, float] | None = None,
    ) -> None:
        if delay_s is not None and nics > 1:
            raise ValueError("a delay is for one rail")
        self.hosts = tuple(f"h{number}" for number in range(num_hosts))
        self.nics = tuple(f"eth{number}" for number in range(nics))
        self._rate, self._delay_s, self._clocks = rate, delay_s, clocks or {}
        self._num_remotes = 0
        self._dropping: set[tuple[str, int]] = set()

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        try:
            self.shared = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="testbed-")))
            self.shared.chmod(0o755)
            self._switch = self._start(["unshare", *_ROOTLESS, "--net", "sh", "-c", "echo READY; exec cat"])
            self._inits = {host: self._child(self._start(self._host_words(host))) for host in self.hosts}
            self._host_of: dict[str, str] = {}
            for host in self.hosts:
                self._know(host)
            self._join()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    # -- what a test uses

    @property
    def agent(self) -> list[str]:
        """The words for `agent:` of bench.yaml."""
        return [sys.executable, "-S", "-E", str(HERE / "agent.py"), str(self.shared), "{host}"]

    def address(self, host: str, nic: int = 0) -> str:
        """The address of a host's NIC."""
        return f"10.77.{nic}.{10 + self.hosts.index(host)}"

    def address6(self, host: str, nic: int = 0) -> str:
        """The IPv6 address of a host's NIC, after `add_address6`."""
        return f"fd77:{nic + 1}::{10 + self.hosts.index(host)}"

    def popen(
        self, host: str, words: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Remote:
        """Start a command on a host, in a login's environment and `env`. Raises SuspendedError."""
        if Path(f"/proc/{self._inits[host]}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            raise SuspendedError(host)
        request = {"command": f"exec {shlex.join(words)}", "env": dict(env or {}), "cwd": str(cwd) if cwd else None}
        self._num_remotes += 1
        remote = Remote(self.shared, host, request, self.shared / f"{host}-{self._num_remotes}")
        self._stack.callback(remote.close)
        return remote

    def on(
        self,
        host: str,
        words: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float = 60,
    ) -> Ran:
        """Run a command on a host to its end; it is killed, and TimeoutError raised, when it takes too long."""
        remote = self.popen(host, words, env, cwd)
        try:
            code = remote.wait(timeout_s)
        except TimeoutError:
            remote.signal(signal.SIGKILL, group=True)
            raise
        return Ran(code, remote.out, remote.err)

    def slow(self, host: str, rate: str, nic: int = 0, direction: Direction = "both") -> None:
        """Shape one NIC of a host to another rate from now on; seen from the host, egress is what it sends."""
        if self._delay_s is not None:
            self._tell(f"rate {_bits_per_s(rate):.0f} {host}")
            return
        port = f"{host}n{nic}"
        if direction != "ingress":
            self._tc(host, f"qdisc replace dev eth{nic} root {_shaped(rate)}")
        if direction != "egress":
            self._tc(None, f"qdisc replace dev {port} root {_shaped(rate)}")

    def slow_pair(self, first: str, second: str, rate: str, nic: int = 0) -> None:
        """Shape what two hosts send each other over one rail; towards everybody else they keep their rate."""
        if self._delay_s is not None:
            self._tell(
                f"rate {_bits_per_s(rate):.0f} {first} {second}", f"rate {_bits_per_s(rate):.0f} {second} {first}"
            )
            return
        for host, other in ((first, second), (second, first)):
            whole, device = self._rate or "100gbit", f"dev eth{nic}"
            self._tc(
                host,
                f"qdisc del {device} root" if self._rate else "",
                f"qdisc add {device} root handle 1: htb default 1",
                *(
                    line
                    for number, share in ((1, whole), (2, rate))
                    for line in (
                        f"class add {device} parent 1: classid 1:{number} htb rate {share} {_HTB}",
                        f"qdisc add {device} parent 1:{number} bfifo limit {_queue_bytes(share)}",
                    )
                ),
                f"filter add {device} parent 1: protocol ip u32 match ip dst {self.address(other, nic)}/32 flowid 1:2",
            )

    def drop(self, sender: str, receiver: str, nic: int = 0, only: str = "") -> None:
        """From now on the switch drops IP packets from one host to another; the way back works. `only`: u32 matches."""
        port = f"dev {receiver}n{nic}"
        if (receiver, nic) not in self._dropping:
            self._dropping.add((receiver, nic))
            self._tc(
                None,
                f"qdisc del {port} root" if self._rate else "",
                f"qdisc add {port} root handle 1: htb default 1",
                f"class add {port} parent 1: classid 1:1 htb rate {self._rate or '100gbit'} {_HTB}",
                f"class add {port} parent 1: classid 1:2 htb rate 1mbit",
                f"qdisc add {port} parent 1:2 bfifo limit 1",  # no packet has room
            )
        source = f"match ip src {self.address(sender, nic)}/32"
        source6 = f"match ip6 src {self.address6(sender, nic)}/128"
        lines = [f"filter add {port} parent 1: protocol ip prio 1 u32 {source} {only} flowid 1:2"]
        lines += [f"filter add {port} parent 1: protocol ipv6 prio 2 u32 {source6} flowid 1:2"] if not only else []
        self._tc(None, *lines)

    def let_pass(self, receiver: str, nic: int = 0) -> None:
        """Drop nothing more on the way to a host."""
        self._dropping.discard((receiver, nic))
        self._tc(None, f"qdisc del dev {receiver}n{nic} root")
        if self._rate:
            self.slow(receiver, self._rate, nic, "ingress")

    def mtu(self, host: str, of_host: int, of_switch: int, nic: int = 0) -> None:
        """Set the MTU of a host's NIC and of its port on the switch. Each packet is then sent by itself."""
        self._ip(host, f"link set eth{nic} mtu {of_host}")
        self._ip(None, f"link set {host}n{nic} mtu {of_switch}")
        done = self.on(host, [sys.executable, "-c", _NO_OFFLOAD, f"eth{nic}"])
        assert done.code == 0, done.err

    def add_address6(self, host: str, nic: int = 0) -> None:
        """Give a host's NIC an IPv6 address."""
        self._ip(host, f"addr add {self.address6(host, nic)}/64 dev eth{nic} nodad")

    def delay(self, seconds: float, sender: str, receiver: str) -> None:
        """What frames from one host to another take longer from now on; the way back is left as it is."""
        self._tell(f"delay {seconds} {sender} {receiver}")

    def cut(self, host: str, nic: int | None = None) -> None:
        """Pull the cable of one NIC, or of all."""
        self._cables(host, nic, "down")

    def mend(self, host: str, nic: int | None = None) -> None:
        """Put it in again."""
        self._cables(host, nic, "up")

    def block(self, sender: str, receiver: str) -> None:
        """Lose every frame from one host to another; the way back is left as it is. Not for a testbed with a delay."""
        self._ip(sender, f"neigh replace {self.address(receiver)} lladdr {_NOBODY} dev eth0 nud permanent")

    def unblock(self, sender: str, receiver: str) -> None:
        """End `block`, also if another call did so before."""
        self._batch("ip", sender, [f"neigh del {self.address(receiver)} dev eth0"], check=False)

    def network(self, host: str, *lines: str) -> None:
        """Lines for `ip`, in the network of a host."""
        self._ip(host, *lines)

    def port_mtu(self, host: str, size: int) -> None:
        """Drop frames above `size` bytes at the host's port of the bridge."""
        self._ip(None, f"link set {host}n0 mtu {size}")

    def suspend(self, host: str) -> None:
        """Stop every process of the host, as if the machine slept; its daemon no longer answers agents."""
        os.kill(self._inits[host], signal.SIGSTOP)
        self._signal_all(host, signal.SIGSTOP)

    def wake(self, host: str) -> None:
        """End `suspend`."""
        self._signal_all(host, signal.SIGCONT)
        os.kill(self._inits[host], signal.SIGCONT)

    def _signal_all(self, host: str, number: int) -> None:
        for process in self.processes():
            if process.host == host:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.number, number)

    def unreachable(self, host: str) -> None:
        """From now on no agent reaches the host; what runs there goes on."""
        (self.shared / f"{host}.unreachable").touch()

    def kill_host(self, host: str) -> None:
        """The power fails: every process of the host is gone at once."""
        os.kill(self._inits[host], signal.SIGKILL)

    def boot(self, host: str) -> None:
        """Power is back: the host comes up with its name, address and cables, and nothing that ran or lay on it.

        Not for a testbed with a delay, whose switch knows the hosts of the beginning only.
        """
        (self.shared / f"{host}.sock").unlink(missing_ok=True)
        self._inits[host] = self._child(self._start(self._host_words(host, from_boot=True)))
        self._know(host)
        old = (f"link del {host}n{k}" for k in range(len(self.nics)))
        self._batch("ip", None, old, check=False)  # the kernel may have done so already
        self._plug_in(host)
        self._address(host)

    def small_disk(self, host: str, folder: Path, size: str = "64k") -> None:
        """Mount a file system of `size` over a folder, on this host alone."""
        folder.mkdir(parents=True, exist_ok=True)
        done = self.on(host, ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)])
        assert done.code == 0, done.err

    def seen(self, host: str, path: Path) -> Path:
        """Where this process finds what a host has at `path`, whatever is mounted there."""
        return Path(f"/proc/{self._inits[host]}/root") / path.relative_to("/")

    def processes(self, variable: str = "", value: str = "") -> list[Process]:
        """What runs on all hosts; with a variable, what has `value` in it, as read from each one's environment."""
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal():
                continue
            number = int(folder.name)
            with contextlib.suppress(OSError):
                host = self._host_of.get(_namespace(number, "pid"))
                environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                words = (folder / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
                carries = any(e.startswith(f"{variable}=") and value in e for e in environment)
                if host and number != self._inits[host] and words and (carries or not variable):
                    found.append(Process(host, number, words))
        return found

    def fork(
        self,
        num_ranks: int,
        ranks_per_host: int,
        work: Callable[[int], Any],
        timeout_s: float = 60,
        on: Sequence[str] = (),
    ) -> list[Any]:
        """`work(rank)` in one forked process per rank: one import of torch serves them all. `on`: the hosts in order.

        Returns what each returned, in rank order. Raises RuntimeError with the first rank's error, TimeoutError.
        """
        children = {}
        for rank in range(num_ranks):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(read)
                self._be(rank, self._inits[(on or self.hosts)[rank // ranks_per_host]], work, write)
            os.close(write)
            children[rank] = (child, read)
        return _collected(children, timeout_s)

    # -- how it is made

    def _know(self, host: str) -> None:
        """Know the host's processes by their namespace.

        The namespace stays open: else the kernel gives its number to a host of another testbed when this host ends.
        """
        init = self._inits[host]
        self._stack.callback(os.close, os.open(f"/proc/{init}/ns/pid", os.O_RDONLY))
        self._host_of[_namespace(init, "pid")] = host

    def _host_words(self, host: str, from_boot: bool = False) -> list[str]:
        clock = ["--time", "--monotonic", str(int(self._clocks[host]))] if host in self._clocks else []
        if from_boot:
            clock = ["--time", "--boottime", str(-int(time.clock_gettime(time.CLOCK_BOOTTIME)))]
        kinds = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *clock]
        daemon = [sys.executable, "-S", "-E", str(HERE / "hostd.py"), host, str(self.shared)]
        return [*self._inside_user(), "unshare", *kinds, *daemon]

    def _inside_user(self) -> list[str]:
        if not _ROOTLESS:
            return []
        return ["nsenter", "-t", str(self._switch.pid), "--user", "--preserve-credentials"]

    def _start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """A process that says READY and ends when its standard input does."""
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._stack.callback(_end, process)
        assert process.stdout is not None
        if process.stdout.readline() != b"READY\n":
            raise RuntimeError(f"{words[0]} ended with {process.wait()}: {' '.join(words)}")
        return process

    @staticmethod
    def _child(process: subprocess.Popen[bytes]) -> int:
        return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])

    def _join(self) -> None:
        """Names, cables and bridges."""
        names = [f"{self.address(host)} {host}" for host in self.hosts]
        (self.shared / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        if self._delay_s is None:
            self._bridge()
        else:
            self._start_switch(self._delay_s)
        for host in self.hosts:
            self._address(host)

    def _start_switch(self, delay_s: float) -> None:
        ports = [f"{host}=/proc/{self._inits[host]}/ns/net,eth0" for host in self.hosts]
        rate = ["--rate", f"{_bits_per_s(self._rate):.0f}"] if self._rate else []
        program = [sys.executable, "-S", "-E", str(HERE / "switch.py"), "--delay", str(delay_s), *rate, *ports]
        self._delays = self._start([*self._inside_user(), *program])

    def _tell(self, *commands: str) -> None:
        """Commands for the switch; it answers each."""
        pipes = self._delays.stdin, self._delays.stdout
        assert pipes[0] is not None and pipes[1] is not None
        for command in commands:
            pipes[0].write(f"{command}\n".encode())
            pipes[0].flush()
            answer = pipes[1].readline()
            if answer != b"ok\n":
                raise ValueError(answer.decode())

    def _bridge(self) -> None:
        self._ip(
            None,
            "link set lo up",
            *(f"link add br{k} type bridge forward_delay 0" for k in range(len(self.nics))),
            *(f"link set br{k} up" for k in range(len(self.nics))),
        )
        for host in self.hosts:
            self._plug_in(host)

    def _plug_in(self, host: str) -> None:
        self._ip(
            None,
            *(
                line
                for k in range(len(self.nics))
                for line in (
                    f"link add {host}n{k} type veth peer name eth{k} address {self._mac(host, k)} "
                    f"netns {self._inits[host]}",
                    f"link set {host}n{k} master br{k} up",
                )
            ),
        )

    def _mac(self, host: str, nic: int) -> str:
        """The hardware address of a host's NIC, which outlives its boots."""
        return f"02:77:00:00:{nic:02x}:{10 + self.hosts.index(host):02x}"

    def _address(self, host: str) -> None:
        addresses = ((k, f"addr add {self.address(host, k)}/24 dev eth{k}") for k in range(len(self.nics)))
        self._ip(host, "link set lo up", *(w for k, a in addresses for w in (a, f"link set eth{k} up")))
        for k in range(len(self.nics)) if self._rate and self._delay_s is None else ():
            self.slow(host, str(self._rate), k)

    def _cables(self, host: str, nic: int | None, state: str) -> None:
        if self._delay_s is not None:
            self._tell(f"{'cut' if state == 'down' else 'mend'} {host}")
            return
        ports = range(len(self.nics)) if nic is None else (nic,)
        self._ip(None, *(f"link set {host}n{k} {state}" for k in ports))

    def _ip(self, host: str | None, *lines: str) -> None:
        self._batch("ip", host, lines)

    def _tc(self, host: str | None, *lines: str) -> None:
        self._batch("tc", host, lines)

    def _batch(self, program: str, host: str | None, lines: Iterable[str], check: bool = True) -> None:
        """Lines for ip or tc, in the network of a host or (None) of the bridges."""
        user = ["--user", "--preserve-credentials"] if _ROOTLESS else []
        target = self._switch.pid if host is None else self._inits[host]
        subprocess.run(
            ["nsenter", "-t", str(target), *user, "--net", program, "-batch", "-"],
            input="\n".join(filter(None, lines)) + "\n",
            text=True,
            check=check,
            capture_output=not check,
        )

    @staticmethod
    def _be(rank: int, init: int, work: Callable[[int], Any], write: int) -> None:
        """The forked child: enter the host, work, say what came out, end without the parent's clean-up."""
        try:
            enter(init)
            result: tuple[Any, str] = (work(rank), "")
        except BaseException:
            result = (None, traceback.format_exc())
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)


_ROOTLESS = ["--user", "--map-root-user"] if os.geteuid() else []


def enter(init: int) -> None:
    """Bring this process, which must have one thread, into the namespaces of a host (its processes and clock excepted).

    Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    folders = [os.open(f"/proc/{init}/ns/{kind}", os.O_RDONLY) for kind in _NAMESPACES if _ROOTLESS or kind != "user"]
    for fd in folders:
        if libc.setns(fd, 0):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(fd)


def why_not() -> str | None:
    """Why this machine can hold no testbed; None when it can."""
    for program in ("unshare", "nsenter", "ip", "tc"):
        if shutil.which(program) is None:
            return f"the program {program} is missing (Debian: util-linux, iproute2)"
    probe = ["unshare", *_ROOTLESS, "--net", "--pid", "--fork", "--mount", "--mount-proc", "--time", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"namespaces can not be made here: {done.stderr.strip()}"


def _shaped(rate: str) -> str:
    return f"tbf rate {rate} burst {_BURST} latency {int(_QUEUE_S * 1e3)}ms"


def _queue_bytes(rate: str) -> int:
    return int(_bits_per_s(rate) / 8 * _QUEUE_S)


def _bits_per_s(rate: str | None) -> float:
    match = re.fullmatch(r"(\d+)(m|g)bit", rate or "")
    if match is None:
        raise ValueError(f"{rate}: a rate such as 500mbit or 1gbit")
    return int(match[1]) * {"m": 1e6, "g": 1e9}[match[2]]


def _namespace(process: int, kind: str) -> str:
    return str(Path(f"/proc/{process}/ns/{kind}").readlink())


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _collected(children: Mapping[int, tuple[int, int]], timeout_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    errors: list[str] = []
    end = time.monotonic() + timeout_s
    try:
        for rank, (_, read) in children.items():
            data = b""
            while select.select([read], [], [], max(0.0, end - time.monotonic()))[0]:
                part = os.read(read, 1 << 20)
                if not part:
                    break
                data += part
            else:
                raise TimeoutError(f"rank {rank} did not end within {timeout_s} s")
            results[rank], error = pickle.loads(data) if data else (None, "ended without a word")
            errors += [f"rank {rank}: {error}"] if error else []
    finally:
        for child, read in children.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(read)
    if errors:
        raise RuntimeError(errors[0])
    return [results[rank] for rank in children]
