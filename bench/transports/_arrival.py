"""Has every rank arrived? Asked once, right after a library has been opened, before anything that could wait for ever.

Rank 0 counts: it alone can name the ranks that are missing, and tells the others how it went.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from bench.core.errors import AbsentError, RefusedError
from bench.core.world import RankInfo

_TAG = 7
_POLL_S = 0.001
# Ranks load their libraries at different speeds; the desk allows a minute for it and could give no name.
STORE_S = 50.0
_LATER_S = 3.0  # the others give rank 0 this much longer, so that it can say who is missing
_CAN_NOT = "can not: "


def over_mpi(world: Any, byte: Any, limit_s: float) -> None:
    """A byte from every rank to rank 0 and one back, over an MPI communicator. Raises AbsentError after `limit_s`."""
    until = time.monotonic() + limit_s
    if world.Get_rank() != 0:
        answer = bytearray(1)
        told = {0: world.Isend([b"\1", byte], 0, _TAG)}
        if _unfinished({0: world.Irecv([answer, byte], 0, _TAG)}, until + _LATER_S):
            raise AbsentError((0,), limit_s + _LATER_S)
        _unfinished(told, until + _LATER_S)
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


def over_store(store: Any, place: RankInfo, device: str | None, limit_s: float, wrong: str | None = None) -> None:
    """A key from every rank and one from rank 0, in the store where torch's ranks meet.

    `device`: what names this rank's GPU in all the world. `wrong`: why this rank can not go on. Raises AbsentError
    after `limit_s`; RefusedError, on all ranks alike, when one of them can not go on or two have the same GPU.
    """
    store.set(f"bench/arrived/{place.rank}", _CAN_NOT + wrong if wrong else device or "-")
    if place.rank != 0:
        try:
            store.wait(["bench/all"], timedelta(seconds=limit_s + _LATER_S))
        except (RuntimeError, ValueError):
            raise AbsentError((0,), limit_s + _LATER_S) from None
        verdict = store.get("bench/all").decode()
        store.set(f"bench/heard/{place.rank}", "-")
        if verdict == "absent":
            raise AbsentError((), limit_s)
        if verdict:
            raise RefusedError(verdict)
        return
    keys = [f"bench/arrived/{rank}" for rank in range(place.num_ranks)]
    with contextlib.suppress(RuntimeError, ValueError):  # it has timed out: the check says for whom
        store.wait(keys, timedelta(seconds=limit_s))
    told = {rank: store.get(key).decode() for rank, key in enumerate(keys) if store.check([key])}
    missing = [rank for rank in range(place.num_ranks) if rank not in told]
    if missing:
        _tell(store, "absent", told)
        raise AbsentError(missing, limit_s)
    refused = next((words.removeprefix(_CAN_NOT) for words in told.values() if words.startswith(_CAN_NOT)), None)
    refused = refused or twice(told)
    _tell(store, refused or "", told)
    if refused:
        raise RefusedError(refused)


def _tell(store: Any, verdict: str, ranks: Iterable[int]) -> None:
    """Say it to those who are there. What ends rank 0, which may keep the store, is heard by all of them before."""
    store.set("bench/all", verdict)
    if verdict:
        with contextlib.suppress(RuntimeError, ValueError):
            store.wait([f"bench/heard/{rank}" for rank in ranks if rank != 0], timedelta(seconds=_LATER_S))


def twice(devices: Mapping[int, str]) -> str | None:
    """The first GPU that two ranks share, in a sentence; None when each has its own. `-` is no GPU."""
    owner: dict[str, int] = {}
    for rank, device in devices.items():
        if device != "-" and device in owner:
            return (
                f"ranks {owner[device]} and {rank} are on the same GPU ({device}): start one rank per GPU, "
                "or set CUDA_VISIBLE_DEVICES of each rank to its own"
            )
        owner[device] = rank
    return None


def _unfinished(requests: Mapping[int, Any], until: float) -> tuple[int, ...]:
    """The ranks whose requests have not ended at `until` (of time.monotonic)."""
    waiting = dict(requests)
    while True:
        waiting = {rank: request for rank, request in waiting.items() if not request.Test()}
        if not waiting or time.monotonic() > until:
            return tuple(waiting)
        time.sleep(_POLL_S)
