"""Open the control plane of a transport that cannot send messages. The control plane uses another library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.core.channel import Channel, SingleRankChannel
from bench.core.errors import AbsentError, RefusedError
from bench.core.transport import Options, Transport
from bench.core.world import RankInfo

_OF_MPI = ("mpirun", "slurm")


@dataclass(frozen=True, slots=True)
class Control:
    """The control plane of one rank. `name`: the library that it uses."""

    name: str
    channel: Channel
    barrier: Callable[[], None]
    close: Callable[[], None]
    abort: Callable[[int], None]
    lost_contact: Callable[[BaseException], bool]
    exits_at_once: bool = False


def open_control(place: RankInfo, options: Options) -> Control:
    """Open the control plane over the library that `open_carrier` returns. A single rank needs no library."""
    if place.num_ranks == 1:
        return Control(
            "none (one rank)", SingleRankChannel(), _nothing, _nothing, lambda code: None, lambda error: False
        )
    return _of(open_carrier(place, options))


def open_carrier(place: RankInfo, options: Options) -> Transport:
    """Return MPI as the control plane if an MPI launcher started the ranks and mpi4py works. Otherwise, return Gloo.

    Raises RefusedError if neither library works. If some ranks do not arrive, raises AbsentError with these ranks.
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
    return Control(name, carrier.channel, carrier.sync, *ends)


def _nothing() -> None:
    pass
