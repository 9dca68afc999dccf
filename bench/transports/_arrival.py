"""Check, directly after opening a library, that every rank has arrived. If a rank is missing, later calls hang.

Rank 0 waits for the other ranks, so only rank 0 can name the missing ranks. Rank 0 tells the other ranks whether all
ranks have arrived.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any

from bench.core import seal, wire
from bench.core.errors import AbsentError, RefusedError
from bench.core.world import RankInfo

_TAG = 7
_POLL_S = 0.001
# Ranks load their libraries at different speeds. This timeout must end before the controller's timeout (a minute),
# because the controller cannot name the missing ranks.
STORE_S = 50.0
_LATER_S = 3.0  # extra time that the other ranks wait after rank 0, so that rank 0's error comes first
_VERDICT = "bench/all"


class Verdict(StrEnum):
    """The verdict of rank 0: whether all ranks have arrived and can continue."""

    COMPLETE = "complete"
    ABSENT = "absent"
    REFUSED = "refused"


def over_mpi(world: Any, byte: Any, limit_s: float) -> None:
    """Send a byte from every rank to rank 0, then a byte from rank 0 to every rank. `world`: an MPI communicator.

    Raises AbsentError if a rank does not arrive within `limit_s`.
    """
    until = time.monotonic() + limit_s
    if world.Get_rank() != 0:
        answer = bytearray(1)
        sent = {0: world.Isend([b"\1", byte], 0, _TAG)}
        if _unfinished({0: world.Irecv([answer, byte], 0, _TAG)}, until + _LATER_S):
            raise AbsentError((0,), limit_s + _LATER_S)
        _unfinished(sent, until + _LATER_S)
        if answer == b"\0":
            raise AbsentError((), limit_s)
        return
    others = range(1, world.Get_size())
    boxes = {rank: bytearray(1) for rank in others}
    missing = _unfinished({rank: world.Irecv([boxes[rank], byte], rank, _TAG) for rank in others}, until)
    word = b"\0" if missing else b"\1"
    _unfinished({rank: world.Isend([word, byte], rank, _TAG) for rank in others if rank not in missing}, until + 1)
    if missing:
        raise AbsentError(missing, limit_s)


def over_store(
    store: Any, place: RankInfo, device: str | None, limit_s: float, problem: str | None = None, secret: bytes = b""
) -> None:
    """Set this rank's key in the store of torch.distributed, and wait for the keys of all ranks.

    Only rank 0 waits for the keys. Rank 0 then sets one more key, which contains the verdict of rank 0. The other ranks
    wait for the key with the verdict.

    `device`: a name of this rank's GPU that is unique among all hosts.
    `problem`: why this rank cannot continue. It is None if there is no problem.

    Raises AbsentError if a rank does not arrive within `limit_s`. Raises RefusedError on all ranks if some rank cannot
    continue, or if two ranks use the same GPU.
    """
    _write(store, f"bench/arrived/{place.rank}", {"device": device, "problem": problem}, secret)
    if place.rank != 0:
        _await_verdict(store, place, limit_s, secret)
        return
    keys = [f"bench/arrived/{rank}" for rank in range(place.num_ranks)]
    with contextlib.suppress(RuntimeError, ValueError):  # on a timeout, the check below finds the missing ranks
        store.wait(keys, timedelta(seconds=limit_s))
    arrived = {rank: _read(store, key, secret) for rank, key in enumerate(keys) if store.check([key])}
    missing = [rank for rank in range(place.num_ranks) if rank not in arrived]
    if missing:
        _report(store, Verdict.ABSENT, "", arrived, secret)
        raise AbsentError(missing, limit_s)
    problems = [report["problem"] for report in arrived.values() if report["problem"]]
    shared = first_shared_gpu({rank: report["device"] for rank, report in arrived.items()})
    if shared is not None:
        problems.append(shared_gpu_error(*shared))
    if problems:
        _report(store, Verdict.REFUSED, problems[0], arrived, secret)
        raise RefusedError(problems[0])
    _report(store, Verdict.COMPLETE, "", arrived, secret)


def _write(store: Any, key: str, content: Mapping[str, Any], secret: bytes) -> None:
    store.set(key, seal.sealed(wire.encoded(content), secret, key.encode()).hex())


def _read(store: Any, key: str, secret: bytes) -> Any:
    try:
        data = bytes.fromhex(store.get(key).decode())
    except ValueError:
        data = b""
    return wire.decoded(seal.unsealed(data, secret, key.encode()))


def _await_verdict(store: Any, place: RankInfo, limit_s: float, secret: bytes) -> None:
    """Wait for rank 0's verdict. Raise the error that the verdict contains, if any."""
    try:
        store.wait([_VERDICT], timedelta(seconds=limit_s + _LATER_S))
    except (RuntimeError, ValueError):
        raise AbsentError((0,), limit_s + _LATER_S) from None
    report = _read(store, _VERDICT, secret)
    store.set(f"bench/received/{place.rank}", "-")
    if report["verdict"] == Verdict.ABSENT:
        raise AbsentError((), limit_s)
    if report["verdict"] == Verdict.REFUSED:
        raise RefusedError(report["text"])


def _report(store: Any, verdict: Verdict, text: str, ranks: Iterable[int], secret: bytes) -> None:
    """Report the verdict.

    Rank 0 may host the store. If the verdict is an error, wait until all arrived ranks have read the verdict.
    """
    _write(store, _VERDICT, {"verdict": str(verdict), "text": text}, secret)
    if verdict != Verdict.COMPLETE:
        with contextlib.suppress(RuntimeError, ValueError):
            store.wait([f"bench/received/{rank}" for rank in ranks if rank != 0], timedelta(seconds=_LATER_S))


def first_shared_gpu(devices: Mapping[int, str | None]) -> tuple[int, int, str] | None:
    """Return the first two ranks that share a GPU and the GPU's name, or None if no ranks share a GPU.

    Ranks whose GPU is None are ignored.
    """
    owner: dict[str, int] = {}
    for rank, device in devices.items():
        if device is None:
            continue
        if device in owner:
            return owner[device], rank, device
        owner[device] = rank
    return None


def shared_gpu_error(first: int, second: int, device: str) -> str:
    """Return the error for two ranks that use one GPU although the user did not request shared GPUs."""
    return (
        f"ranks {first} and {second} are on the same GPU ({device}): start one rank per GPU, or set "
        "CUDA_VISIBLE_DEVICES of each rank to its own"
    )


def _unfinished(requests: Mapping[int, Any], until: float) -> tuple[int, ...]:
    """Return the ranks whose requests have not ended at the time `until` (by time.monotonic)."""
    waiting = dict(requests)
    while True:
        waiting = {rank: request for rank, request in waiting.items() if not request.Test()}
        if not waiting or time.monotonic() > until:
            return tuple(waiting)
        time.sleep(_POLL_S)
