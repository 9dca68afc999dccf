"""RunEvidence: everything that the verdict and the reasons about one run use.

The run's rows, the links it ran on, bounds on its bandwidth, published results, and what its log says.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from bench.core.codes import Code, Coded
from bench.core.links import Bound, Limit
from bench.core.log_traits import log_traits
from bench.core.traits import traits
from bench.explain.log_hints import Hint
from bench.hardware.bounds import moves_host_memory
from bench.hardware.catalogue import gpu, gpu_printed
from bench.hardware.link_traffic import BY_RING, LinkUse
from bench.hardware.machine import LogMachine
from bench.hardware.reference import Reference
from bench.logs.foreign import ForeignRow, ForeignRun

# Up to SMALL_BYTES a time shows latency; from LARGE_BYTES on, bandwidth.
SMALL_BYTES = 1024
LARGE_BYTES = 64 << 20
LARGE_SIZE_BYTES = LARGE_BYTES * 16  # from this size on, curves hardly rise, on any links
_RISING = 0.05  # a curve rises if its last step adds at least this share of bandwidth
NIC_RATES = (12.5e9, 25e9, 50e9, 100e9)  # bytes per second each way of the NICs on sale: 100 to 800 Gb/s

_NETWORK = (Limit.NETWORK, Limit.NETWORK_REDUCING, Limit.DOMAINS, Limit.DOMAINS_REDUCING, Limit.NIC_IN_USE)


class ExplainLimit(Code):
    """Bounds that only `explain` computes: for each the code (`Bound.code`) and the name."""

    WITHOUT_BRIDGE = "without-bridge", "{bound} without NVLink bridge"  # if no bridge joins two cards


def is_network(bound: Bound) -> bool:
    """Does the bound follow from what a node's NICs carry?"""
    return bound.code in _NETWORK


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """One run of one pattern, with everything that a verdict or reason may rest on.

    `rows` have a bandwidth or a time. `doubtful` rows contradict themselves or hold no numbers; they are not among
    `rows`, so none is ever the best one. `bounds` are those at the best row, tightest first. `transport` is set only if
    this suite measured the run.
    """

    run: ForeignRun
    machine: LogMachine
    rows: tuple[ForeignRow, ...]
    num_ranks: int | None
    num_nodes: int | None
    counts: tuple[Coded, ...] = ()  # how ranks and nodes are known if the log does not state them
    bounds: tuple[Bound, ...] = ()
    above: tuple[tuple[ForeignRow, Bound], ...] = ()  # rows above a hard bound
    references: tuple[Reference, ...] = ()
    hints: tuple[Hint, ...] = ()
    nic_use: LinkUse | None = None  # how the usual algorithm uses the NICs of the machine, or of the machines that fit
    nic_share: float | None = None  # bytes that must leave a node / bytes that the bus bandwidth counts
    modelled: bool = False
    transport: str | None = None
    doubtful: tuple[ForeignRow, ...] = ()
    misfit: Coded | None = None  # why the ranks cannot have run on the number of nodes that the user gave

    @property
    def best(self) -> ForeignRow | None:
        """The row with the highest bus bandwidth."""
        return max((row for row in self.rows if row.busbw_bytes_per_s), key=busbw, default=None)

    @property
    def small_message_s(self) -> float | None:
        """The median time of messages up to SMALL_BYTES; None if there are none.

        With many messages in flight, the time per message is the inverse of a message rate, not a latency.
        """
        if ("mode", "pipelined") in self.run.settings:
            return None
        times = [row.time_s for row in self.rows if row.time_s and 0 < (row.payload_bytes or 0) <= SMALL_BYTES]
        return median(times) if times else None

    @property
    def largest_bytes(self) -> int:
        """The largest payload of any row; 0 without rows."""
        return max((row.payload_bytes or 0 for row in self.rows), default=0)

    @property
    def num_wrong(self) -> int:
        """How many rows have wrong elements."""
        return sum(bool(row.num_wrong) for row in (*self.rows, *self.doubtful))

    @property
    def rate_by_size(self) -> dict[int, float]:
        """Payload -> the best bus bandwidth of its rows (0 if none has one)."""
        rates: dict[int, float] = {}
        for row in self.rows:
            size = row.payload_bytes or 0
            rates[size] = max(rates.get(size, 0.0), busbw(row))
        return rates

    @property
    def flat_from_bytes(self) -> int | None:
        """The size from which on every bandwidth is within 5 % of the best; None if fewer than three sizes are."""
        if self.best is None:
            return None
        rates = self.rate_by_size
        flat: list[int] = []
        for size in sorted(rates, reverse=True):
            if rates[size] < 0.95 * busbw(self.best):
                break
            flat.append(size)
        return flat[-1] if len(flat) > 2 else None

    @property
    def last_gain(self) -> float | None:
        """The relative rise of bandwidth from the second largest size to the largest.

        None with fewer than three sizes, or if the largest size is not the fastest.
        """
        rates = self.rate_by_size
        sizes = sorted(rates)
        if len(sizes) < 3 or self.best is None or self.best.payload_bytes != sizes[-1] or not rates[sizes[-2]]:
            return None
        return rates[sizes[-1]] / rates[sizes[-2]] - 1

    @property
    def rising(self) -> bool:
        """Does the curve still rise at its end, below the sizes at which any curve is flat?"""
        if self.flat_from_bytes is not None or self.largest_bytes >= LARGE_SIZE_BYTES:
            return False
        return (self.last_gain or 0.0) >= _RISING

    @property
    def too_short(self) -> bool:
        """Does the curve still rise, or has it too few sizes to tell? Its best rate is then no final bandwidth."""
        few = len({row.payload_bytes for row in self.rows}) < 3
        return self.rising or (few and self.largest_bytes < LARGE_SIZE_BYTES)

    @property
    def other_gpus(self) -> tuple[str, ...]:
        """GPU models that the log names but the machine that the user named does not have."""
        return other_gpus(self.run, self.machine)

    @property
    def nics_known(self) -> bool:
        """Are the NICs that carry this run known, from the machine or because all candidate machines have the same?

        One rank per node of an unknown machine may use one NIC or all.
        """
        links = self.machine.links
        if links is not None and links.nic_bytes_per_s is not None:
            return True
        return self.network_bytes_per_s is not None and self.num_ranks != self.num_nodes

    @property
    def bridge_unknown(self) -> bool:
        """Is it unknown whether a bridge joins the two cards, and is the rate possible without a bridge?"""
        links, best = self.machine.links, self.best
        if links is None or links.peer != "nvlink_pairs" or (self.num_ranks, self.num_nodes) != (2, 1):
            return False
        without = [bound.bytes_per_s for bound in self.bounds if bound.code == ExplainLimit.WITHOUT_BRIDGE]
        if self.machine.instance or best is None or not without or self.nccl_sees_nvlink:
            return False
        return busbw(best) <= min(without)

    @property
    def nccl_sees_nvlink(self) -> bool:
        """Does the log say that NCCL's search for paths ended with NVLink?"""
        search = self.hint("search")
        return search is not None and search.value.endswith("type NVL")

    @property
    def ranks_per_node(self) -> int | None:
        """Ranks on the fullest node; None if either count is unknown."""
        if not self.num_ranks or not self.num_nodes:
            return None
        return -(-self.num_ranks // self.num_nodes)

    @property
    def by_message_passing(self) -> bool:
        """Does a library or test for host memory move the data, maybe of GPUs? Then NCCL explains nothing."""
        return moves_host_memory(self.transport or self.run.tool)

    @property
    def memory(self) -> str:
        """Where the buffers of such a library are: "host", "device", or "mixed" if the ends differ."""
        printed = dict(self.run.settings).get("memory")
        return printed if printed in ("device", "mixed") else "host"

    @property
    def from_host_memory(self) -> bool:
        """Do the data come from host memory?"""
        return self.by_message_passing and self.memory == "host"

    @property
    def crosses_nics(self) -> bool:
        """Must data go through NICs? Between nodes of one NVSwitch network, few data or none do."""
        links = self.machine.links
        return (self.num_nodes or 1) > 1 and (links is None or links.nvlink_nodes == 1)

    @property
    def by_ring(self) -> bool:
        """Do the data go round a ring, which crosses each node's NICs more often than necessary?"""
        rings = log_traits(self.run.tool).rings or (self.transport is not None and traits(self.transport).rings)
        rccl = self.machine.gpu is not None and gpu(self.machine.gpu).architecture.startswith("cdna")
        if not rings or rccl or not self.crosses_nics or self.num_ranks == self.num_nodes:
            return False
        algorithm = self.hint("setting", "NCCL_ALGO set by environment to ")
        if self.run.pattern == "allreduce" and algorithm is not None:
            return algorithm.value.lower().rstrip(". ").endswith(" ring")
        return self.run.pattern in BY_RING

    @property
    def least_nic_bytes_per_s(self) -> float | None:
        """Bytes per second each way through one node's NICs at the best row, if only necessary bytes leave the node."""
        if self.best is None or self.nic_share is None or not self.crosses_nics:
            return None
        return busbw(self.best) * self.nic_share

    @property
    def nic_bytes_per_s(self) -> float | None:
        """Bytes per second each way through one node's NICs by the usual algorithm; None if that is unknown."""
        if self.by_ring and self.best is not None:
            return busbw(self.best)
        return self.least_nic_bytes_per_s

    @property
    def network_bytes_per_s(self) -> float | None:
        """The rate of all NICs of a node, each way, on the machine or on those that fit the log; None if unknown."""
        links = self.machine.likely or self.machine.links
        if links is None or links.nic_bytes_per_s is None or links.num_nics is None:
            return None
        return links.nic_bytes_per_s * links.num_nics

    @property
    def used_nics_bytes_per_s(self) -> float | None:
        """The summed rate, each way, of the NICs that this run uses on a node: each GPU sends through its own NICs."""
        return None if self.nic_use is None else self.nic_use.num_links * self.nic_use.rate

    @property
    def nics_fill(self) -> float | None:
        """The share of `used_nics_bytes_per_s` that the best row fills if its data go the usual way, as in a ring."""
        if self.best is None or self.nic_use is None:
            return None
        return busbw(self.best) / self.nic_use.busbw_bytes_per_s

    @property
    def num_nics_in_log(self) -> int:
        """How many NICs the channels in the log name: "NET/IB/0", "NET/AWS Libfabric/3/GDRDMA"."""
        nics = set()
        for hint in self.hints:
            parts = hint.value.split("/")
            if hint.kind == "path" and parts[0] == "NET" and len(parts) > 2:
                nics.add(parts[2])
        return len(nics)

    @property
    def uses_gpudirect(self) -> bool:
        """Does a channel in the log use GPUDirect RDMA?"""
        return any(hint.kind == "path" and "GDRDMA" in hint.value for hint in self.hints)

    def hint(self, kind: str, start: str = "") -> Hint | None:
        """The first hint of a kind whose value begins with `start`."""
        return next((hint for hint in self.hints if hint.kind == kind and hint.value.startswith(start)), None)


def busbw(row: ForeignRow) -> float:
    """A row's bus bandwidth in bytes per second, 0 if it has none."""
    return row.busbw_bytes_per_s or 0.0


def other_gpus(run: ForeignRun, machine: LogMachine) -> tuple[str, ...]:
    """GPU models that the log names but the named instance type does not have."""
    if not machine.instance:
        return ()
    printed = {gpu_printed(name) for name in run.gpus} - {None, machine.gpu}
    return tuple(sorted(map(str, printed)))
