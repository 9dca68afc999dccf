"""How ranks agree beside a data path that has no messages of its own: over another library, opened for nothing else."""

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
    """The control plane of one rank; `name` is what carries it."""

    name: str
    channel: Channel
    barrier: Callable[[], None]
    close: Callable[[], None]
    abort: Callable[[int], None]
    lost_contact: Callable[[BaseException], bool]


def open_control(place: RankInfo, options: Options) -> Control:
    """None for one rank; MPI where a launcher of MPI started the ranks and mpi4py is usable; else Gloo on the host.

    Raises RefusedError when neither library can be used, AbsentError naming the ranks that did not come.
    """
    if place.num_ranks == 1:
        return Control(
            "none (one rank)", SingleRankChannel(), _nothing, _nothing, lambda code: None, lambda error: False
        )
    reason = ""
    if place.launcher in _OF_MPI:
        try:
            return _of(_mpi(place, options))
        except AbsentError:  # nor will they come over another library
            raise
        except RefusedError as error:
            reason = f"{error}; "
    try:
        return _of(_gloo(place, options))
    except AbsentError:
        raise
    except RefusedError as error:
        raise RefusedError(f"{reason}{error}", error.of_one_rank) from None


def _mpi(place: RankInfo, options: Options) -> Transport:
    from bench.transports.mpi import Mpi

    return Mpi(place, replace(options, loop="python", sync="barrier"))


def _gloo(place: RankInfo, options: Options) -> Transport:
    from bench.transports.gloo import Gloo

    return Gloo(place, options)


def _of(carrier: Transport) -> Control:
    name = type(carrier).__name__.lower()
    return Control(name, carrier.channel, carrier.sync, carrier.close, carrier.abort, carrier.lost_contact)


def _nothing() -> None:
    pass
