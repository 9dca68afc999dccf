"""Open the control plane of a transport that cannot send messages.

The control plane uses another library than the transport.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bench.core.channel import Channel, SingleRankChannel
from bench.core.errors import AbsentError, RefusedError
from bench.core.program import Exchange, Group, Message
from bench.core.transport import Options, Reduction, Transport
from bench.core.world import RankInfo

_OF_MPI = ("mpirun", "slurm")


@dataclass(frozen=True, slots=True)
class Control:
    """The control plane as one rank sees it.

    `name`: the library that it uses.
    `swap`: sends a text to each of some ranks, and returns the texts that other ranks send to this rank. Its arguments
        are the texts by receiver, and the ranks that send to this rank.
    """

    name: str
    channel: Channel
    barrier: Callable[[], None]
    close: Callable[[], None]
    abort: Callable[[int], None]
    lost_contact: Callable[[BaseException], bool]
    exits_at_once: bool = False
    swap: Callable[[Mapping[int, bytes], Collection[int]], dict[int, bytes]] = lambda texts, senders: {}


def open_control(place: RankInfo, options: Options) -> Control:
    """Open the control plane.

    If there are several ranks, the control plane uses the library that `open_carrier` returns. A single rank needs no
    library, because it has no other ranks to reach.
    """
    if place.num_ranks == 1:
        return Control(
            "none (one rank)", SingleRankChannel(), _nothing, _nothing, lambda code: None, lambda error: False
        )
    return _of(open_carrier(place, options))


def open_carrier(place: RankInfo, options: Options) -> Transport:
    """Return MPI as the control plane if an MPI launcher started the ranks and mpi4py works. Otherwise, return Gloo.

    Raises RefusedError if neither MPI nor Gloo works. Raises AbsentError with the missing ranks if some ranks do not
    arrive.
    """
    reason = ""
    if place.launcher in _OF_MPI:
        try:
            return _mpi(place, options)
        except AbsentError:  # ranks that did not arrive would not arrive over another library
            raise
        except RefusedError as error:
            reason = f"{error}; "
    try:
        return _gloo(place, options)
    except AbsentError:
        raise
    except RefusedError as error:
        raise RefusedError(f"{reason}{error}", error.of_one_rank) from None


def _mpi(place: RankInfo, options: Options) -> Transport:
    from bench.transports.mpi import Mpi

    return Mpi(place, replace(options, loop="python", timer="system", sync="barrier"))


def _gloo(place: RankInfo, options: Options) -> Transport:
    from bench.transports.gloo import Gloo

    return Gloo(place, options)


def _of(carrier: Transport) -> Control:
    name = type(carrier).__name__.lower()
    ends = carrier.close, carrier.abort, carrier.lost_contact, carrier.exits_at_once
    return Control(name, carrier.channel, carrier.sync, *ends, partial(_swap, carrier))


def _swap(carrier: Transport, texts: Mapping[int, bytes], senders: Collection[int]) -> dict[int, bytes]:
    """Send the texts, and return the text of each sender. Each rank first sends the length of each text, in 8 bytes."""
    lengths = {peer: len(text).to_bytes(8, "little") for peer, text in texts.items()}
    expected = _exchanged(carrier, lengths, dict.fromkeys(senders, 8))
    return _exchanged(carrier, texts, {peer: int.from_bytes(text, "little") for peer, text in expected.items()})


def _exchanged(carrier: Transport, texts: Mapping[int, bytes], lengths: Mapping[int, int]) -> dict[int, bytes]:
    """Send the texts, and return the received texts, whose lengths are known in advance.

    All messages are in flight at the same time.
    """
    sends, recvs = _messages({peer: len(text) for peer, text in texts.items()}), _messages(lengths)
    step = Exchange(sends, recvs)
    buffers = carrier.allocate(sum(map(len, texts.values())), sum(lengths.values()), 1, (step,))
    buffers.write("send", 0, np.frombuffer(b"".join(texts.values()), np.uint8))
    world = Group("world", tuple(range(carrier.place.num_ranks)))
    compiled = carrier.compile((step,), world, buffers, Reduction("uint8", "sum"), False)
    compiled.calls[0]()
    received = bytes(buffers.read("recv", 0))
    if compiled.release is not None:
        compiled.release()
    return {one.peer: received[one.offset_bytes : one.offset_bytes + one.num_bytes] for one in recvs}


def _messages(lengths: Mapping[int, int]) -> tuple[Message, ...]:
    """Return one message for each peer. The data of successive messages are adjacent in the buffer."""
    ends = np.cumsum(list(lengths.values()), dtype=int).tolist()
    return tuple(Message(peer, size, end - size) for (peer, size), end in zip(lengths.items(), ends, strict=True))


def _nothing() -> None:
    pass
