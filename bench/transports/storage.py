"""Read files or objects into host memory. The send buffer of a row is a data set on storage.

`verify` fills the send buffer. Before the first pass, the transport writes the data of the send buffer to files. Two
sources prove the cache state of every pass. The system call mincore shows which file pages were in the page cache
before the pass. The file /proc/self/io shows how many bytes the device delivered. After the pass, the transport
compares the checksum of each record. Several ranks read at the same time, each from its own data set in the same
folder. The ranks communicate over MPI or Gloo. Some ranks may act as aggressors: they disturb the readers with
exchanges over MPI or Gloo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bench.core import plugins
from bench.core.channel import SingleRankChannel
from bench.core.errors import NotInstalledError, RefusedError, UsageError, kernel_reason
from bench.core.program import Group, Read, Round, Step
from bench.core.record import Skip
from bench.core.traits import Traits
from bench.core.transport import Buffers, Compiled, Options, Reduction, Separable, Timing, Transport
from bench.core.world import RankInfo
from bench.datasets import gpu_files, object_store
from bench.datasets.dataset_format import ALIGNED_BYTES, DatasetFormat
from bench.datasets.messages import DatasetError, DatasetNote, DatasetSkip
from bench.datasets.passes import least_of_a_worker
from bench.datasets.place import place_at
from bench.datasets.preparation import preparation
from bench.transports import _control, _host
from bench.transports._storage_device import DeviceTarget, GpuResults
from bench.transports._storage_passes import Passes, record_size

TRAITS = Traits(launcher="direct", start_s=0.5, host_memory=True, separates=True)


class Storage(Transport):
    """The storage of the ranks: each rank has a folder or object store for data sets."""

    clock = "host"
    carries_messages = False

    def __init__(self, place: RankInfo, options: Options) -> None:
        """Open the place for data sets, which is a folder or an object store.

        Raises UsageError if the place cannot be used. Raises RefusedError if several ranks cannot communicate.
        """
        self.place, self.case = place, options.case
        where = options.case.folder
        if where.startswith(object_store.SCHEME) and not object_store.is_installed():
            raise NotInstalledError.of(DatasetError.NO_CLIENT, url=where, package=object_store.REQUIRES)
        self._carrier = _control.open_carrier(place, options) if place.num_ranks > 1 else None
        self.channel = self._carrier.channel if self._carrier else SingleRankChannel()
        self.exits_at_once = self._carrier is not None and self._carrier.exits_at_once
        self._sync: Callable[[], None] = self._carrier.sync if self._carrier else _nothing
        try:
            self._place = place_at(where, options.timeout_s)
        except object_store.SilentServerError as error:
            raise RefusedError.of(DatasetError.SILENT, place=where, why=str(error)) from None
        except OSError as error:
            raise UsageError.of(DatasetError.FOLDER, folder=where or ".", why=kernel_reason(error)) from None
        self._device: DeviceTarget | None = None
        self._no_device = ""
        if options.case.destination != "host":
            try:
                self._device = DeviceTarget(place, options)
            except RefusedError as error:
                self._no_device = str(error)
        self._format: DatasetFormat = plugins.load("dataset format", options.case.files).FORMAT
        notes = []
        if self._place.removed[0]:
            num, num_bytes = self._place.removed
            facts = {"num": num, "num_bytes": num_bytes, "parent": self._place.parent}
            notes.append(DatasetNote.REMOVED.words(facts))
        if self._place.is_remote:
            facts = {"folder": self._place.parent, "file_system": self._place.kind}
            notes.append(DatasetNote.CLIENT_COLD.words(facts))
        self.notes = tuple(notes)

    def close(self) -> None:
        """Remove the data sets, and disconnect from the other ranks."""
        self._place.close()
        if self._device is not None:
            self._device.close()
        if self._carrier is not None:
            self._carrier.close()

    def abort(self, exit_code: int) -> None:
        """End the other ranks."""
        if self._carrier is not None:
            self._carrier.abort(exit_code)

    def discard(self) -> None:
        """Remove the data sets."""
        self._place.close()

    def lost_contact(self, error: BaseException) -> bool:
        """Check whether the control plane's library lost contact with a rank."""
        return self._carrier is not None and self._carrier.lost_contact(error)

    def facts(self) -> dict[str, str]:
        """Return the file system of the folder, the GPU, and the library over which the ranks communicate."""
        found = {"file_system": self._place.kind}
        if self._device is not None:
            found |= self._device.facts()
        return found if self._carrier is None else found | self._carrier.facts()

    def cache_bytes(self) -> int:
        """Return 1. The files are dropped from the page cache before a cold pass, so one buffer set is enough."""
        return 1

    def cache_words(self, asked: str) -> str:
        """Describe the state of the page cache during the row's passes."""
        if asked == "hot":
            return "page cache warm: the same files are read again and again"
        return "page cache cold: the files are dropped from it before each pass"

    def unsupported_reason(self, step: Step, reduction: Reduction, in_place: bool) -> Skip | None:
        """Return why a pass cannot run, for example because the format or the folder does not support an option."""
        if not isinstance(step, Read):
            if self._carrier is None:
                return Skip.of(DatasetSkip.READS_ONLY)
            return self._carrier.unsupported_reason(step, reduction, in_place)
        case, files = self.case, self.case.files
        if self._format.missing:
            return Skip.of(DatasetSkip.NOT_INSTALLED, files=files, packages=" ".join(self._format.missing))
        if case.mode != "isolated":
            return Skip.of(DatasetSkip.ISOLATED_ONLY)
        return (
            self._lacking_device() or self._lacking_option() or self._lacking_batches(step) or self._lacking_place(step)
        )

    def _lacking_device(self) -> Skip | None:
        """If the case requests that records go to a GPU, return why the transport cannot deliver records to a GPU."""
        case = self.case
        if case.destination == "host":
            return None
        if case.prepare != "none" or case.step_s or (case.workers and case.worker_kind == "process"):
            return Skip.of(DatasetSkip.NO_DEVICE_WORK)
        if case.destination == "gds" and (skip := self._lacking_gpu_files()):
            return skip
        if self._device is None:
            return Skip.of(DatasetSkip.NO_DEVICE, why=self._no_device)
        return None

    def _lacking_gpu_files(self) -> Skip | None:
        """Return why KvikIO cannot read the records into a GPU."""
        case = self.case
        if not gpu_files.is_installed():
            return Skip.of(DatasetSkip.NO_GPU_LIBRARY, package=gpu_files.REQUIRES)
        if why := gpu_files.why_not():
            return Skip.of(DatasetSkip.GPU_LIBRARY_FAILS, why=why)
        if case.cache == "hot":
            return Skip.of(DatasetSkip.ALWAYS_DEVICE)
        if not self._format.to_gpu:
            return Skip.of(DatasetSkip.NO_GPU_FORMAT, files=case.files)
        if self._place.objects is not None:
            return Skip.of(DatasetSkip.NO_GPU_OBJECTS, folder=self._place.parent)
        if case.ahead or case.direct_io:
            return Skip.of(DatasetSkip.NO_GPU_OPTION)
        return None

    def _lacking_option(self) -> Skip | None:
        """Return the option that the format or the storage does not support."""
        case, found = self.case, self._format
        if case.read_order == "random" and not found.indexed:
            return Skip.of(DatasetSkip.NOT_INDEXED, files=case.files)
        if case.direct_io and (not found.direct or self._place.objects is not None):
            return Skip.of(DatasetSkip.NO_DIRECT_IO, files=case.files)
        if case.direct_io and case.cache == "hot":
            return Skip.of(DatasetSkip.ALWAYS_DEVICE)
        if case.block and not found.blocks:
            return Skip.of(DatasetSkip.NO_BLOCKS, files=case.files)
        if case.block and case.direct_io and case.block % ALIGNED_BYTES:
            return Skip.of(DatasetSkip.UNALIGNED_BLOCKS, page_bytes=ALIGNED_BYTES)
        if case.ahead and (not found.announces or case.direct_io or self._place.objects is not None):
            return Skip.of(DatasetSkip.NO_AHEAD, files=case.files)
        if self._place.objects is not None and not found.remote:
            return Skip.of(DatasetSkip.NO_OBJECTS, files=case.files)
        if self._place.objects is not None and case.cache == "hot":
            return Skip.of(DatasetSkip.NEVER_WARM)
        return None

    def _lacking_batches(self, step: Read) -> Skip | None:
        case = self.case
        if not case.step_s:
            return None
        num_records = step.num_bytes // record_size(case, step.num_bytes)
        each = max(0, least_of_a_worker(num_records, case.read_order, case.workers))
        if each >= 3 * case.batch:
            return None
        facts = {"num_workers": case.workers, "batch": case.batch, "num": each, "num_records": num_records}
        return Skip.of(DatasetSkip.TOO_FEW_BATCHES, **facts)

    def _lacking_place(self, step: Read) -> Skip | None:
        case, place = self.case, self._place
        if case.cache == "cold" and place.in_memory:
            return Skip.of(DatasetSkip.IN_MEMORY, folder=place.parent, file_system=place.kind)
        if case.cache == "cold" and not place.is_counted:
            return Skip.of(DatasetSkip.NOT_COUNTED, folder=place.parent, file_system=place.kind)
        if case.cache == "cold" and place.counts_host and self.place.local_size > 1:
            return Skip.of(DatasetSkip.COUNTED_TOGETHER, folder=place.parent, file_system=place.kind)
        size = record_size(case, step.num_bytes)
        stored = step.num_bytes // size * preparation(case.prepare, case.offline, size).stored_bytes
        # The ranks of a host usually share a disk, and no rank has written yet.
        num_bytes = (2 if case.cache == "cold" else 1) * stored * self.place.local_size
        if lacking := place.lacks_bytes(num_bytes):
            return Skip.of(DatasetSkip.NO_SPACE, folder=place.parent, lacking=lacking, num_bytes=num_bytes)
        return None

    def allocate(self, send_bytes: int, recv_bytes: int, num_sets: int, steps: tuple[Step, ...] = ()) -> Buffers:
        """Return host memory. The data of the send buffer are later written to files."""
        reads = any(isinstance(step, Read) for step in steps)
        if self._device is not None and reads:
            return self._device.allocate(send_bytes)
        # If the memory begins at a page, O_DIRECT reads into it without a copy.
        alignment = ALIGNED_BYTES if reads else _host.GUARD_BYTES
        return _host.HostBuffers(send_bytes, recv_bytes, num_sets, alignment)

    def must_be_in_place(self, steps: Iterable[Step]) -> bool:
        """Check whether the control plane's library must run at least one of these steps in place."""
        return self._carrier is not None and self._carrier.must_be_in_place(steps)

    def open_groups(self, groups: Round) -> None:
        """Make the communicators of ranks that exchange."""
        if self._carrier is not None:
            self._carrier.open_groups(groups)

    def compile(
        self, steps: tuple[Step, ...], group: Group, buffers: Buffers, reduction: Reduction, in_place: bool
    ) -> Compiled:
        """Return one pass over the data set.

        For steps that are not passes, return exchanges of the control plane's library.
        """
        if not isinstance(steps[0], Read):
            assert self._carrier is not None
            return self._carrier.compile(steps, group, buffers, reduction, in_place)
        if self._device is not None:
            memory = self._device.host_memory(buffers)
            if self.case.destination == "gds":
                results = GpuResults(buffers)
                straight = Passes(self.case, self._format, self._place, memory, memory, self._wait, results=results)
                return Compiled(
                    [straight.run_once], keep=[buffers], native=straight, reads=straight.proven, release=straight.close
                )
            copy, release = self._device.copy_of(buffers)
            on_device = Passes(self.case, self._format, self._place, memory, memory, self._wait, copy)
            return Compiled(
                [on_device.run_once], keep=[buffers], native=on_device, reads=on_device.proven, release=release
            )
        assert isinstance(buffers, _host.HostBuffers)
        source, target = buffers.view("send", 0), buffers.view("recv", 0)
        passes = Passes(self.case, self._format, self._place, source, target, self._wait)
        return Compiled([passes.run_once], keep=[buffers], native=passes, reads=passes.proven, release=passes.close)

    def sync(self) -> None:
        """Wait for the other ranks."""
        self._wait()

    def time_each(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Time passes. The ranks begin each pass together.

        For each pass, the kernel's counters prove whether the files were cold or warm.
        """
        if compiled is None:
            for _ in range(num_calls):
                self._wait()
            return Timing((), "python")
        return Timing(tuple(compiled.native.timed() for _ in range(num_calls)), "python")

    def time_batch(self, compiled: Compiled | None, num_calls: int) -> Timing:
        """Return no samples, because back-to-back rows are skipped (`unsupported_reason`)."""
        raise NotImplementedError

    # -- while other ranks disturb the readers

    def separate(self, parts: Round) -> None:
        """Divide the ranks into parts, as the library of the control plane does."""
        self._parted().separate(parts)

    def barrier_async(self) -> Callable[[], bool]:
        """Enter the library's barrier."""
        return self._parted().barrier_async()

    def broadcast_async(self, value: float) -> Callable[[], float]:
        """Start the library's broadcast."""
        return self._parted().broadcast_async(value)

    def _parted(self) -> Separable:
        carrier: Any = self._carrier
        assert isinstance(carrier, Separable)
        return carrier

    def _wait(self) -> None:
        self._sync()


def _nothing() -> None:
    pass


TRANSPORT = Storage
