"""Messages over NIXL: over the library if it is installed, and over agents of threads that move bytes when asked."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bench.core import plugins
from bench.core.case import Case
from bench.core.channel import Channel
from bench.core.errors import RefusedError
from bench.core.program import Collective, Exchange, Group, Message
from bench.core.record import Record
from bench.core.transport import Options, Reduction
from bench.core.world import RankInfo
from bench.rank import measure, preflight, session
from bench.transports import _control, nixl

ROOT = Path(__file__).resolve().parent.parent.parent
Missing = Callable[[str, str], NoReturn]
Posts = defaultdict[tuple[int, int], queue.Queue[bytes]]
BYTES = Reduction("uint8", "sum")


@pytest.mark.mpi
@pytest.mark.skipif(importlib.util.find_spec("nixl_cu12") is None, reason="no NIXL here: pip install nixl-cu12")
@pytest.mark.parametrize(
    ("num", "words"),
    [
        (2, ("bench.kv_pages", "--sizes", "1M,4M", "--window", "16")),
        (4, ("bench.incast", "--sizes", "64,64K")),  # between ranks that the first messages of a launch do not connect
    ],
)
def test_messages_move_between_processes(num: int, words: tuple[str, ...], missing: Missing) -> None:
    program = Path(sys.executable).parent / "mpirun"
    if not program.exists():
        missing("mpi", "no mpirun beside the interpreter")
    settings = ("--transport", "nixl", "-n", "3", "-w", "1", "--format", "json")
    ran = subprocess.run(
        (str(program), "-n", str(num), sys.executable, "-m", *words, *settings),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert (document["failures"], document["skipped"]) == ([], [])
    assert len(document["summaries"]) == 4 and all(row["verified"] for row in document["summaries"])
    (header,) = document["headers"].values()
    assert header["facts"]["nixl"] and header["facts"]["nixl_backend"] == "UCX"


class Disconnected(Exception):
    """Stands for an exception of the library."""


@dataclass
class Fabric:
    """What the agents of one test share."""

    agents: dict[str, Agent] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    fails: bool = False  # does every transfer fail?

    def nixl_agent(self, name: str, config: Any) -> Agent:
        assert config == {"enable_prog_thread": False, "backends": ["UCX"]}
        self.agents[name] = Agent(name, self)
        return self.agents[name]

    @staticmethod
    def nixl_agent_config(**config: Any) -> Any:
        return config


@dataclass(eq=False)
class Transfer:
    """A list of copies. Each look at its state makes one."""

    copies: list[tuple[int, int, int]]
    peer: str
    left: int = 0
    text: bytes = b""


@dataclass(eq=False)
class Agent:
    """As strict as the library: only registered memory, only known agents, and bytes move when the sender looks.

    It keeps the first key of an address, like the library. It cannot send a notification alone, because in the library
    nobody drives such a notification. Errors are exceptions.
    """

    name: str
    fabric: Fabric
    memory: dict[int, tuple[int, int]] = field(default_factory=dict)
    known: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)  # others' registrations, by address
    inbox: dict[str, list[bytes]] = field(default_factory=dict)

    def register_memory(self, descs: list[tuple[int, int, int, str]], kind: str) -> int:
        [(address, num_bytes, _, _)] = descs
        assert kind == "DRAM" and num_bytes > 0
        number = len(self.memory)
        self.memory[number] = address, num_bytes
        return number

    def deregister_memory(self, number: int) -> None:
        self.memory[number] = 0, 0

    def get_agent_metadata(self) -> bytes:
        return pickle.dumps((self.name, []))

    def get_partial_agent_metadata(self, number: int, with_connection: bool, backends: list[str]) -> bytes:
        return (
            pickle.dumps((self.name, [(number, *self.memory[number])])) + b"\n\n"
        )  # the library's descriptions contain every byte

    def add_remote_agent(self, described: bytes) -> bytes:
        name, numbers = pickle.loads(described)
        self.known.setdefault(name, {})
        for number, address, num_bytes in numbers:
            self.known[name].setdefault(address, (number, num_bytes))
        return bytes(name, "ascii")

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        with self.fabric.lock:
            taken, self.inbox = self.inbox, {}
        return taken

    def get_xfer_descs(self, descs: list[tuple[int, int, int]], kind: str) -> list[tuple[int, int, int]]:
        assert kind == "DRAM"
        return descs

    def initialize_xfer(
        self, how: str, own: list[Any], theirs: list[Any], peer: str, text: bytes, backends: list[str]
    ) -> Transfer:
        assert how == "WRITE" and [size for _, size, _ in own] == [size for _, size, _ in theirs]
        there = self.fabric.agents[peer]
        keys = {address: (address, num) for address, (_, num) in self.known[peer].items()}
        for descs, blocks in ((own, self.memory), (theirs, keys)):
            for at, size, _ in descs:
                assert any(begin <= at and at + size <= begin + num for begin, num in blocks.values()), "not registered"
        for at, _, _ in theirs:
            held = [number for begin, (number, num) in self.known[peer].items() if begin <= at < begin + num]
            assert all(there.memory[number] != (0, 0) for number in held), "the key of released memory"
        return Transfer([(to, at, size) for (at, size, _), (to, _, _) in zip(own, theirs, strict=True)], peer)

    def transfer(self, handle: Transfer, text: bytes) -> str:
        assert handle.left == 0, "it still runs"
        handle.left, handle.text = len(handle.copies), text
        return "PROC"

    def check_xfer_state(self, handle: Transfer) -> str:
        if self.fabric.fails:
            raise Disconnected("NIXL_ERR_REMOTE_DISCONNECT")
        if handle.left:
            handle.left -= 1
            ctypes.memmove(*handle.copies[handle.left])
            if handle.left == 0:
                with self.fabric.lock:
                    self.fabric.agents[handle.peer].inbox.setdefault(self.name, []).append(handle.text)
        return "PROC" if handle.left else "DONE"

    def release_xfer_handle(self, handle: Transfer) -> None:
        assert handle.left == 0
        handle.copies.clear()


class Threads(Channel):
    """The control plane of ranks that are threads."""

    def __init__(
        self, rank: int, values: list[Any], barrier: threading.Barrier, posts: Posts, timeout_s: float
    ) -> None:
        self.rank, self.values, self.barrier = rank, values, barrier
        self.posts, self.timeout_s = posts, timeout_s

    def swap(self, texts: Mapping[int, bytes], senders: Collection[int]) -> dict[int, bytes]:
        for peer, text in texts.items():
            self.posts[self.rank, peer].put(text)
        return {peer: self.posts[peer, self.rank].get(timeout=self.timeout_s) for peer in senders}

    def gather(self, value: Any) -> list[Any] | None:
        self.values[self.rank] = value
        self.barrier.wait()
        gathered = list(self.values)
        self.barrier.wait()
        return gathered if self.rank == 0 else None

    def broadcast(self, value: Any) -> Any:
        return self.share(value)[0]

    def share(self, value: Any) -> list[Any]:
        self.values[self.rank] = value
        self.barrier.wait()
        shared = list(self.values)
        self.barrier.wait()
        return shared


@pytest.fixture
def fabric(monkeypatch: pytest.MonkeyPatch) -> Fabric:
    made = Fabric()
    monkeypatch.setattr(nixl, "_load", lambda: made)
    return made


def on_ranks(num: int, call: Callable[[nixl.Nixl], Any], monkeypatch: pytest.MonkeyPatch, timeout_s: float = 20) -> Any:
    """What a call returns or raises on each of `num` ranks."""
    barrier, values = threading.Barrier(num, timeout=timeout_s), [None] * num
    posts: Posts = defaultdict(queue.Queue)
    found: list[Any] = [None] * num

    def meet() -> None:
        barrier.wait()

    def control(place: RankInfo, options: Options) -> _control.Control:
        ends = (lambda: None, lambda code: None, lambda error: isinstance(error, queue.Empty))
        channel = Threads(place.rank, values, barrier, posts, timeout_s)
        return _control.Control("threads", channel, meet, *ends, swap=channel.swap)

    def run(rank: int) -> None:
        try:
            transport = nixl.Nixl(RankInfo(rank, num, rank, num, "direct"), Options(timeout_s=timeout_s))
            found[rank] = call(transport)
        except Exception as error:
            found[rank] = error

    monkeypatch.setattr(_control, "open_control", control)
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize(
    ("pattern", "num", "more"),
    [
        ("kv_pages", 2, {"window": 16, "sizes": (4096, 1 << 16), "cache": "hot"}),
        ("kv_pages", 3, {"window": 5, "sizes": (4000,), "cache": "hot"}),
        ("pingpong", 2, {"sizes": (8, 4096), "cache": "hot"}),
        ("moe", 3, {"sizes": (8192,), "skew": 1.0}),  # in turn into all sets of a cold row
        ("incast", 4, {"sizes": (64,), "cache": "hot"}),
    ],
)
def test_every_byte_arrives_where_the_receiver_wants_it(
    pattern: str, num: int, more: dict[str, Any], fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(pattern, "nixl", iterations=3, warmup=1, **more)

    def rows(transport: nixl.Nixl) -> list[Record]:
        preflight.meet(transport)
        hosts = ("here",) * num
        made = plugins.load("pattern", pattern).PATTERN
        setting = measure.Setting(
            case, made, transport, session.world_of(hosts), hosts, 1 << 16, 1 << 30, lambda doing: None
        )
        return [record for records in measure.Measurer(setting).rows() for record in records]

    found = on_ranks(num, rows, monkeypatch)
    assert not any(isinstance(each, Exception) for each in found), found
    assert len(found[0]) == 2 * len(case.sizes) and all(record.verified for record in found[0]), found[0]
    registered = [block for agent in fabric.agents.values() for block in agent.memory.values()]
    assert len(registered) > num and set(registered) == {(0, 0)}, "released"


def exchange(transport: nixl.Nixl, send_bytes: int, recv_bytes: int, num_calls: int = 1) -> list[bytes]:
    """Rank 0 sends to rank 1, late. Returns what is in the receive buffer after each call."""
    sends = transport.place.rank == 0
    step = Exchange(sends=(Message(1, send_bytes),)) if sends else Exchange(recvs=(Message(0, recv_bytes),))
    buffers = transport.allocate(64, 64, 1)
    call = transport.compile((step,), Group("pair", (0, 1)), buffers, BYTES, False).calls[0]
    received = []
    for number in range(num_calls):
        if number:
            transport.sync()
        buffers.write("send", 0, number + 1)
        time.sleep(0.02 * sends)
        call()
        received.append(bytes(buffers.read("recv", 0, 0, recv_bytes)))
    return received


def test_a_receivers_call_ends_after_its_own_data(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    _, received = on_ranks(2, lambda transport: exchange(transport, 8, 8, 3), monkeypatch)
    assert received == [bytes([number] * 8) for number in (1, 2, 3)]


@pytest.mark.parametrize("expected", [(), (Message(0, 16),), (Message(0, 4), Message(0, 4, 4))])
def test_other_messages_than_the_receiver_expects_are_no_lost_contact(
    expected: tuple[Message, ...], fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: dict[int, bool] = {}

    def call(transport: nixl.Nixl) -> None:
        try:
            sends = Exchange(sends=(Message(1, 8),)), Exchange(sends=(Message(1, 8),))
            recvs = Exchange(recvs=(Message(0, 8),)), Exchange(recvs=expected)
            steps = (sends, recvs)[transport.place.rank]
            transport.compile(steps, Group("pair", (0, 1)), transport.allocate(64, 64, 1), BYTES, False)
        except Exception as error:
            lost[transport.place.rank] = transport.lost_contact(error)

    on_ranks(2, call, monkeypatch, 0.3)
    assert lost == {0: False}


@pytest.mark.parametrize("absent", [0, 1])
def test_a_peer_that_does_nothing_is_lost_contact(absent: int, fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[bool] = []

    def call(transport: nixl.Nixl) -> None:
        try:
            if transport.place.rank != absent:
                exchange(transport, 8, 8)
        except Exception as error:
            lost.append(transport.lost_contact(error))

    assert on_ranks(2, call, monkeypatch, 0.3) == [None, None] and lost == [True]


def test_an_error_of_the_library_in_a_call_is_lost_contact(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    fabric.fails = True
    lost: list[bool] = []

    def call(transport: nixl.Nixl) -> None:
        try:
            exchange(transport, 8, 8)
        except nixl.NixlFailure as error:
            lost.append(transport.lost_contact(error))

    assert on_ranks(2, call, monkeypatch, 0.3) == [None, None] and lost == [True, True]


def test_new_memory_gets_no_address_of_released_memory(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(transport: nixl.Nixl) -> list[int]:
        addresses = []
        step = Exchange(*(((Message(1, 8),), ()) if transport.place.rank == 0 else ((), (Message(0, 8),))))
        for _ in range(3):
            buffers = transport.allocate(1 << 20, 1 << 20, 1)
            compiled = transport.compile((step,), Group("pair", (0, 1)), buffers, BYTES, False)
            compiled.calls[0]()
            assert isinstance(buffers, nixl.NixlBuffers)
            addresses.append(buffers.address("recv", 0))
            assert compiled.release is not None
            compiled.release()
            assert not buffers.read("recv", 0)[8192:-8192].any(), "the kernel has the pages again"
            del buffers, compiled
        return addresses

    for addresses in on_ranks(2, call, monkeypatch):
        assert len(set(addresses)) == 3


def test_a_message_to_oneself_is_refused_with_a_code(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(transport: nixl.Nixl) -> None:
        step = Exchange((Message(0, 8),), (Message(0, 8),))
        transport.compile((step,), Group("alone", (0,)), transport.allocate(8, 8, 1), BYTES, False)

    [error] = on_ranks(1, call, monkeypatch)
    assert isinstance(error, RefusedError) and error.code == nixl.NixlRefusal.TO_ITSELF


def test_collectives_are_refused_with_a_code(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    [skip] = on_ranks(
        1, lambda transport: transport.unsupported_reason(Collective("barrier", 0, 0), BYTES, False), monkeypatch
    )
    assert skip.code == nixl.NixlRefusal.MESSAGES_ONLY
