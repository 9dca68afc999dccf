"""Provide functions for the transports over torch.distributed.

The functions hide the different names of torch's functions, open process groups, and bind the arguments of calls. The
functions also provide the control plane.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import stat
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from bench.core import seal, wire
from bench.core.channel import Channel
from bench.core.errors import NotInstalledError, RefusedError
from bench.core.program import Collective, Exchange, Group, Message, Round, Step
from bench.core.transport import Reduction, chain
from bench.core.world import RankInfo
from bench.transports import _arrival

# Functions that torch 2.13 renamed. The old names still exist, but they warn, and the warning would be timed.
_RENAMED = {"all_gather_single": "all_gather_into_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}
_OPS = {
    "sum": "SUM",
    "prod": "PRODUCT",
    "min": "MIN",
    "max": "MAX",
    "avg": "AVG",
    "band": "BAND",
    "bor": "BOR",
    "bxor": "BXOR",
}

_REDUCES = ("allreduce", "reduce", "reducescatter")
_TINY_BYTES = 64  # bytes per rank; a multiple of every element's size
_MOST_WAITING = 4096  # connections of ranks that start at the same time
_MOST_BYTES = 1 << 30  # most bytes of a message of the control plane
# Messages of torch and Gloo when a peer is gone. This error has no exception type.
_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "timed out after",
    "Connection refused",
    "Failed to recv",
    "failed to recv",
    "Socket closed",
    "ncclRemoteError",
    "remote process exited",
    "Watchdog caught collective operation timeout",
)


def load_torch() -> Any:
    """Return torch with torch.distributed. Raises NotInstalledError if torch is not installed."""
    try:
        import torch
        import torch.distributed
    except ImportError:
        raise NotInstalledError(
            "torch is not installed here: pip install torch (a CPU build first, if wanted)"
        ) from None
    return torch


def is_lost_contact(error: BaseException) -> bool:
    """Check whether an error means that a connection broke, or that a peer did not respond in time.

    Gloo and torch's store raise no special exception for lost connections or timeouts. The function therefore searches
    the text of the error.
    """
    message = str(error)
    return isinstance(error, RuntimeError) and any(phrase in message for phrase in _LOST)


def reduces(step: Step) -> bool:
    """Check whether a step computes with the elements, or only moves them."""
    return isinstance(step, Collective) and step.op in _REDUCES


def tiny_collective(op: str, num_ranks: int) -> Collective:
    """Return a collective of the given type with a few bytes, for a test call.

    The block of each rank is a whole number of elements for every element type.
    """
    whole, block = _TINY_BYTES * num_ranks, _TINY_BYTES
    split = (block,) * num_ranks if op == "alltoallv" else ()
    send_bytes = block if op in ("allgather", "gather") else whole
    recv_bytes = block if op in ("reducescatter", "scatter") else whole
    return Collective(op, send_bytes, recv_bytes, 0, split, split)


def tiny_exchange(rank: int, num_ranks: int) -> Exchange:
    """Return a message to the next rank and a message from the previous rank."""
    sent, received = Message((rank + 1) % num_ranks, _TINY_BYTES), Message((rank - 1) % num_ranks, _TINY_BYTES)
    return Exchange((sent,), (received,))


def renamed(dist: Any, name: str) -> Any:
    """Return a function of torch.distributed by its new name.

    In older versions of torch, return the function by its old name.
    """
    return getattr(dist, name, None) or getattr(dist, _RENAMED[name])


def reduce_operation(dist: Any, reduce_op: str) -> Any:
    """Return the value of torch's ReduceOp for the name of a reduction."""
    return getattr(dist.ReduceOp, _OPS[reduce_op])


def open_process_group(
    torch: Any,
    place: RankInfo,
    backend: str,
    timeout_s: float,
    device: str | None = None,
    problem: str | None = None,
    **options: Any,
) -> None:
    """Join the world of all ranks. On one host without a rendezvous address, the ranks meet through a file.

    `device`: a name of this rank's GPU that is unique among all hosts.
    `problem`: why this rank cannot continue. If some rank has a problem, all ranks end.

    Raises RefusedError if the ranks are on several hosts and no rendezvous address is set. Raises RefusedError if a
    rank cannot continue or if two ranks are on one GPU. Raises AbsentError, which names the missing ranks, if some
    ranks do not arrive.
    """
    dist = torch.distributed
    timeout = timedelta(seconds=timeout_s)
    store = _store(dist, place, timeout)
    _arrival.over_store(store, place, device, min(_arrival.STORE_S, timeout_s), problem, secret())
    dist.init_process_group(
        backend, store=store, rank=place.rank, world_size=place.num_ranks, timeout=timeout, **options
    )


def _store(dist: Any, place: RankInfo, timeout: timedelta) -> Any:
    """Return the store through which the ranks meet.

    torch's own rendezvous is not used, because it would not report which ranks are missing.
    """
    if place.rendezvous is None:
        if place.local_size != place.num_ranks:
            raise RefusedError(
                f"{place.num_ranks} ranks on several hosts have no rendezvous address: "
                "set MASTER_ADDR to the first host and MASTER_PORT to a free port on every rank, or start by torchrun"
            )
        return dist.FileStore(str(_meeting_file()), place.num_ranks)
    host, port = place.rendezvous
    # torchrun's agent hosts the store for all attempts of a job.
    of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    is_host = place.rank == 0 and not of_agent
    listening = _listening(host, port) if is_host else None
    given = {} if listening is None else {"master_listen_fd": listening.detach()}
    store = dist.TCPStore(
        host, port, place.num_ranks, is_master=is_host, timeout=timeout, wait_for_workers=False, **given
    )
    job = hashlib.sha256(os.environ.get("BENCH_JOB", "").encode()).hexdigest()[:16]
    return dist.PrefixStore(f"bench-{job}-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _listening(host: str, port: int) -> socket.socket | None:
    """Return a socket for the store, or None if no socket can be opened.

    For example, this host may not have the rendezvous address.

    The socket listens only on the rendezvous address. A socket of torch would listen on all interfaces.
    """
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            listening = socket.socket(family, kind, protocol)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(address)
                listening.listen(_MOST_WAITING)
                return listening
            except OSError:
                listening.close()
    return None


def _meeting_file() -> Path:
    """Return the path of a file through which the ranks of this launch meet on this host.

    Other launches get other paths. Under Open MPI, an environment variable contains the name of the job. Under Hydra,
    all ranks of a host are children of one proxy process. The id and the start time of the proxy process identify the
    launch.
    """
    job = os.environ.get("PMIX_NAMESPACE") or f"{os.getppid()}-{_started(os.getppid())}"
    safe = "".join(letter if letter.isalnum() else "-" for letter in job)
    return _own_folder() / f"rendezvous-{safe}"


def _own_folder() -> Path:
    """Return a temporary folder that only this user can enter.

    Raises RefusedError if another user has a folder of this name.
    """
    folder = Path(tempfile.gettempdir()) / f"bench-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RefusedError(f"{folder} belongs to another user or is open to others: remove it, or set TMPDIR")
    return folder


def _started(process: int) -> str:
    """Return the start time of a process in clock ticks since boot.

    The process id together with the start time identifies a process.
    """
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19]
    except OSError:
        return "0"


def open_groups(dist: Any, groups: Round, handles: dict[tuple[int, ...], Any], timeout_s: float) -> None:
    """Make a process group for each group that has no process group in `handles`.

    All ranks must call this function with the same groups in the same order, because every rank must create every
    group. Each group gets the timeout `timeout_s`, because torch's default is several minutes.
    """
    for group in groups:
        if group.ranks not in handles:
            handles[group.ranks] = dist.new_group(list(group.ranks), timeout=timedelta(seconds=timeout_s))


class TorchChannel(Channel):
    """The control plane, which sends CPU tensors within a process group of torch.

    Any process could join an open rendezvous. Pickled objects from an unknown process would be dangerous. Messages are
    therefore JSON. Messages of torch's own functions would be pickled objects. A seal protects each message. The seal
    contains the run's secret, the number of the message, and the sender.
    """

    def __init__(self, torch: Any, place: RankInfo, group: Any = None) -> None:
        self._torch, self._dist = torch, torch.distributed
        self._place, self._group = place, group
        self._secret, self._number = secret(), 0

    def gather(self, value: Any) -> list[Any] | None:
        mine = self._sealed(value, self._place.rank)
        sizes = [self._torch.zeros(1, dtype=self._torch.int64) for _ in range(self._place.num_ranks)]
        self._dist.all_gather(sizes, self._torch.tensor([len(mine)], dtype=self._torch.int64), group=self._group)
        num_bytes = [_sound_size(int(size)) for size in sizes]
        padded = self._tensor(mine.ljust(max(num_bytes), b"\0"))
        if self._place.rank != 0:
            self._dist.gather(padded, None, dst=0, group=self._group)
            return None
        received = [self._torch.empty_like(padded) for _ in num_bytes]
        self._dist.gather(padded, received, dst=0, group=self._group)
        whole = [piece[:size].numpy().tobytes() for piece, size in zip(received, num_bytes, strict=True)]
        return [self._unsealed(data, rank) for rank, data in enumerate(whole)]

    def broadcast(self, value: Any) -> Any:
        data = self._sealed(value if self._place.rank == 0 else None, 0)
        size = self._torch.tensor([len(data)], dtype=self._torch.int64)
        self._dist.broadcast(size, src=0, group=self._group)
        if self._place.rank == 0:
            self._dist.broadcast(self._tensor(data), src=0, group=self._group)
            return value
        received = self._torch.empty(_sound_size(int(size)), dtype=self._torch.uint8)
        self._dist.broadcast(received, src=0, group=self._group)
        return self._unsealed(received.numpy().tobytes(), 0)

    def _sealed(self, value: Any, sender: int) -> bytes:
        self._number += 1
        return seal.sealed(wire.encoded(value), self._secret, self._context(sender))

    def _unsealed(self, data: bytes, sender: int) -> Any:
        return wire.decoded(seal.unsealed(data, self._secret, self._context(sender)))

    def _context(self, sender: int) -> bytes:
        return f"{sender}/{self._number}".encode()

    def _tensor(self, data: bytes) -> Any:
        return self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8)


def secret() -> bytes:
    """Return the secret that only the ranks of this run know.

    The secret is empty if a user started the ranks by hand and set no secret.
    """
    return os.environ.get(seal.SECRET_VARIABLE, "").encode()


def _sound_size(num_bytes: int) -> int:
    if not 0 < num_bytes <= _MOST_BYTES:
        raise wire.WireError(f"a message of {num_bytes} bytes came, which no rank sends")
    return num_bytes


def bound_calls(
    torch: Any,
    steps: tuple[Step, ...],
    group: Group,
    handle: Any,
    rank: int,
    memory: list[tuple[Any, Any]],
    reduction: Reduction,
    in_place: bool,
    always_batch: bool = False,
) -> list[Callable[[], Any]]:
    """Return the steps as calls without arguments, one call for each buffer set.

    `memory`: for each set, the send tensor and the receive tensor (uint8).
    """
    dist = torch.distributed
    operation = reduce_operation(dist, reduction.reduce_op)
    calls = []
    messages = [step for step in steps if isinstance(step, Collective | Exchange)]
    for raw in memory:
        send, recv = (tensor.view(getattr(torch, reduction.dtype)) for tensor in raw)
        calls.append(
            chain(
                [
                    exchange(dist, step, group, send, recv, always_batch)
                    if isinstance(step, Exchange)
                    else collective(dist, step, group, handle, rank, send, recv, operation, in_place)
                    for step in messages
                ]
            )
        )
    return calls


def collective(
    dist: Any,
    step: Collective,
    group: Group,
    handle: Any,
    rank: int,
    send: Any,
    recv: Any,
    operation: Any,
    in_place: bool,
) -> Callable[[], Any]:
    """Return a call of one collective, with the tensors as bound arguments.

    torch's all_reduce and reduce overwrite their input, so these calls work on the receive tensor.

    `send`, `recv`: one-dimensional tensors of the whole buffers, with the element type.
    """
    num, root = len(group.ranks), group.ranks[step.root]
    is_root = rank == root

    def own() -> Any:
        return recv.chunk(num)[group.ranks.index(rank)] if in_place else send

    def split(parts: tuple[int, ...]) -> list[int]:
        return [num_bytes // send.element_size() for num_bytes in parts]

    calls: dict[str, Callable[[], Callable[[], Any]]] = {
        "allreduce": lambda: partial(dist.all_reduce, recv, operation, handle),
        "reduce": lambda: partial(dist.reduce, recv, root, operation, handle),
        "reducescatter": lambda: partial(renamed(dist, "reduce_scatter_single"), recv, send, operation, handle),
        "allgather": lambda: partial(renamed(dist, "all_gather_single"), recv, own(), handle),
        "alltoall": lambda: partial(dist.all_to_all_single, recv, send, None, None, handle),
        "alltoallv": lambda: partial(
            dist.all_to_all_single, recv, send, split(step.recv_split), split(step.send_split), handle
        ),
        "broadcast": lambda: partial(dist.broadcast, send if is_root else recv, root, handle),
        "gather": lambda: partial(dist.gather, send, list(recv.chunk(num)) if is_root else None, root, handle),
        "scatter": lambda: partial(dist.scatter, recv, list(send.chunk(num)) if is_root else None, root, handle),
        "barrier": lambda: partial(dist.barrier, handle),
    }
    return calls[step.op]()


def exchange(
    dist: Any, step: Exchange, group: Group, send: Any, recv: Any, always_batch: bool = False
) -> Callable[[], Any]:
    """Return a call that posts sends and receives together, as prebuilt P2POps.

    A single message is a plain send or receive.
    """

    def part(tensor: Any, message: Message) -> Any:
        size = tensor.element_size()
        begin = message.offset_bytes // size
        return tensor[begin : begin + message.num_bytes // size]

    if len(step.sends) + len(step.recvs) == 1 and not always_batch:
        for message in step.sends:
            return partial(dist.send, part(send, message), group.ranks[message.peer])
        for message in step.recvs:
            return partial(dist.recv, part(recv, message), group.ranks[message.peer])
    operations = [dist.P2POp(dist.irecv, part(recv, m), group.ranks[m.peer]) for m in step.recvs]
    operations += [dist.P2POp(dist.isend, part(send, m), group.ranks[m.peer]) for m in step.sends]
    post = dist.batch_isend_irecv

    def run() -> None:
        for work in post(operations):
            work.wait()

    return run if operations else lambda: None
