"""Collect the information about one run, for the verdict and the reasons.

The evidence consists of the run's rows, its links, bounds on its bandwidth, published results, and messages of its log.
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

# Sizes up to SMALL_BYTES show latency. Sizes from LARGE_BYTES on show bandwidth.
SMALL_BYTES = 1024
LARGE_BYTES = 64 << 20
LARGE_SIZE_BYTES = LARGE_BYTES * 16  # from this size on, bandwidth hardly rises on any link
_RISING = 0.05  # a curve still rises if its last step adds at least this share of bandwidth
# rates of slower NICs, from 10 to 50 Gb/s: a faster NIC that is slow can have the same rate
SLOW_NIC_RATES = (1.25e9, 3.125e9, 5e9, 6.25e9)
NIC_RATES = (12.5e9, 25e9, 50e9, 100e9)  # rates of NICs on sale in bytes per second in each direction: 100 to 800 Gb/s

_NETWORK = (Limit.NETWORK, Limit.NETWORK_REDUCING, Limit.DOMAINS, Limit.DOMAINS_REDUCING, Limit.NIC_IN_USE)


class ExplainLimit(Code):
    """The bounds that only `explain` computes. Each bound has a code (`Bound.code`) and a name."""

    WITHOUT_BRIDGE = "without-bridge", "{bound} without NVLink bridge"  # the bound of two cards if no bridge joins them


def is_network(bound: Bound) -> bool:
    """Check whether the bound comes from the rate of a node's NICs."""
    return bound.code in _NETWORK


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """One run of one pattern, with all information that a verdict or reason may use.

    `rows`: rows with a bandwidth or a time.
    `doubtful`: rows that contradict themselves or contain no numbers. `rows` does not contain these rows, so none of
        them is the best row.
    `bounds`: the bounds at the best row, the lowest first.
    `transport`: set only if this suite measured the run.
    """

    run: ForeignRun
    machine: LogMachine
    rows: tuple[ForeignRow, ...]
    num_ranks: int | None
    num_nodes: int | None
    counts: tuple[Coded, ...] = ()  # how the numbers of ranks and nodes are known if the log does not state them
    bounds: tuple[Bound, ...] = ()
    above: tuple[tuple[ForeignRow, Bound], ...] = ()  # rows above a hard bound
    references: tuple[Reference, ...] = ()
    hints: tuple[Hint, ...] = ()
    # how the usual algorithm uses the NICs of the machine, or of the machines that fit the log
    nic_use: LinkUse | None = None
    nic_share: float | None = None  # bytes that must leave a node, divided by the bytes that busbw counts
    modelled: bool = False
    transport: str | None = None
    doubtful: tuple[ForeignRow, ...] = ()
    # why the ranks cannot have run on the number of nodes that the user gave; None if they can
    misfit: Coded | None = None

    @property
    def best(self) -> ForeignRow | None:
        """The row with the highest bus bandwidth; None if no row has a bandwidth."""
        return max((row for row in self.rows if row.busbw_bytes_per_s), key=busbw, default=None)

    @property
    def small_message_s(self) -> float | None:
        """The median time in seconds of messages up to SMALL_BYTES; None without such messages.

        For pipelined runs, the value is always None. With many messages in flight, the time per message is the inverse
        of a message rate and not a latency.
        """
        if ("mode", "pipelined") in self.run.settings:
            return None
        times = [row.time_s for row in self.rows if row.time_s and 0 < (row.payload_bytes or 0) <= SMALL_BYTES]
        return median(times) if times else None

    @property
    def largest_bytes(self) -> int:
        """The largest payload of any row in bytes; 0 without rows."""
        return max((row.payload_bytes or 0 for row in self.rows), default=0)

    @property
    def num_wrong(self) -> int:
        """The number of rows with wrong elements."""
        return sum(bool(row.num_wrong) for row in (*self.rows, *self.doubtful))

    @property
    def rate_by_size(self) -> dict[int, float]:
        """The highest bus bandwidth of each payload in bytes; 0 if no row of the payload has a bandwidth."""
        rates: dict[int, float] = {}
        for row in self.rows:
            size = row.payload_bytes or 0
            rates[size] = max(rates.get(size, 0.0), busbw(row))
        return rates

    @property
    def flat_from_bytes(self) -> int | None:
        """The smallest size of the flat part of the curve.

        From this size on, every bandwidth is within 5 % of the highest. The value is None if fewer than three sizes are
        this fast.
        """
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
        """The relative rise of bandwidth from the second largest size to the largest size.

        The value is None if there are fewer than three sizes, or if the largest size is not the fastest.
        """
        rates = self.rate_by_size
        sizes = sorted(rates)
        if len(sizes) < 3 or self.best is None or self.best.payload_bytes != sizes[-1] or not rates[sizes[-2]]:
            return None
        return rates[sizes[-1]] / rates[sizes[-2]] - 1

    @property
    def rising(self) -> bool:
        """Whether bandwidth still rises at the largest measured size.

        At very large sizes, all curves are flat, so the value is False.
        """
        if self.flat_from_bytes is not None or self.largest_bytes >= LARGE_SIZE_BYTES:
            return False
        return (self.last_gain or 0.0) >= _RISING

    @property
    def too_short(self) -> bool:
        """Whether larger messages may reach a higher rate than this curve shows.

        The value is True if bandwidth still rises at the largest size. The value is also True if fewer than three sizes
        were measured and none of them is large.
        """
        few = len({row.payload_bytes for row in self.rows}) < 3
        return self.rising or (few and self.largest_bytes < LARGE_SIZE_BYTES)

    @property
    def other_gpus(self) -> tuple[str, ...]:
        """The GPU models that the log names but the user's machine does not have."""
        return other_gpus(self.run, self.machine)

    @property
    def nics_known(self) -> bool:
        """Whether the NICs that carry this run's data are known.

        The NICs are known if the machine is known, or if all machines that fit the log have the same NICs. There is one
        exception. If the machine is unknown and each node has one rank, this rank may use one NIC or all NICs of its
        node.
        """
        links = self.machine.links
        if links is not None and links.nic_bytes_per_s is not None:
            return True
        return self.network_bytes_per_s is not None and self.num_ranks != self.num_nodes

    @property
    def bridge_unknown(self) -> bool:
        """True if the log does not show whether a bridge joins the two cards.

        The value is False if the measured rate is impossible without a bridge.
        """
        links, best = self.machine.links, self.best
        if links is None or links.peer != "nvlink_pairs" or (self.num_ranks, self.num_nodes) != (2, 1):
            return False
        without = [bound.bytes_per_s for bound in self.bounds if bound.code == ExplainLimit.WITHOUT_BRIDGE]
        if self.machine.instance or best is None or not without or self.nccl_sees_nvlink:
            return False
        return busbw(best) <= min(without)

    @property
    def nccl_sees_nvlink(self) -> bool:
        """Whether the log says that NCCL's path search chose NVLink."""
        search = self.hint("search")
        return search is not None and search.value.endswith("type NVL")

    @property
    def ranks_per_node(self) -> int | None:
        """The number of ranks on the node with most ranks; None if the number of ranks or nodes is unknown."""
        if not self.num_ranks or not self.num_nodes:
            return None
        return -(-self.num_ranks // self.num_nodes)

    @property
    def by_message_passing(self) -> bool:
        """Whether the data are moved by a library or a test that works in host memory.

        For such a run, reasons that concern NCCL do not apply.

        The data may still be in GPU memory.
        """
        return moves_host_memory(self.transport or self.run.tool)

    @property
    def memory(self) -> str:
        """The type of memory that holds the buffers of a library for host memory.

        The value is "host" or "device". The value is "mixed" if the sender and the receiver use different types of
        memory.
        """
        printed = dict(self.run.settings).get("memory")
        return printed if printed in ("device", "mixed") else "host"

    @property
    def from_host_memory(self) -> bool:
        """Whether the data are read from host memory."""
        return self.by_message_passing and self.memory == "host"

    @property
    def crosses_nics(self) -> bool:
        """Whether data must go through NICs. Between nodes of one NVSwitch network, few or no data go through NICs."""
        links = self.machine.links
        return (self.num_nodes or 1) > 1 and (links is None or links.nvlink_nodes == 1)

    @property
    def by_ring(self) -> bool:
        """Whether the data go round a ring. A ring crosses each node's NICs more often than necessary."""
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
        """The lowest rate at which the best row can use the NICs of one node, in bytes per second in each direction.

        This rate assumes that only the necessary bytes leave the node.
        """
        if self.best is None or self.nic_share is None or not self.crosses_nics:
            return None
        return busbw(self.best) * self.nic_share

    @property
    def nic_bytes_per_s(self) -> float | None:
        """The bytes per second through one node's NICs in each direction.

        The rate assumes the usual algorithm. The value is None if the rate is unknown.
        """
        if self.by_ring and self.best is not None:
            return busbw(self.best)
        return self.least_nic_bytes_per_s

    @property
    def network_bytes_per_s(self) -> float | None:
        """The rate of all NICs of a node in each direction; None if unknown.

        If the machine is unknown, the rate is known only if all machines that fit the log have the same NICs.
        """
        links = self.machine.likely or self.machine.links
        if links is None or links.nic_bytes_per_s is None or links.num_nics is None:
            return None
        return links.nic_bytes_per_s * links.num_nics

    @property
    def used_nics_bytes_per_s(self) -> float | None:
        """The total rate, in each direction, of the NICs that this run uses on a node.

        Each GPU sends through its own NICs.
        """
        return None if self.nic_use is None else self.nic_use.num_links * self.nic_use.rate

    @property
    def nics_fill(self) -> float | None:
        """The share of `used_nics_bytes_per_s` that the best row uses.

        This share assumes that the data take the library's usual path, such as a ring.
        """
        if self.best is None or self.nic_use is None:
            return None
        return busbw(self.best) / self.nic_use.busbw_bytes_per_s

    @property
    def num_nics_in_log(self) -> int:
        """The number of NICs that the channels in the log name, such as "NET/IB/0" or "NET/AWS Libfabric/3/GDRDMA"."""
        nics = set()
        for hint in self.hints:
            parts = hint.value.split("/")
            if hint.kind == "path" and parts[0] == "NET" and len(parts) > 2:
                nics.add(parts[2])
        return len(nics)

    @property
    def uses_gpudirect(self) -> bool:
        """Whether a channel in the log uses GPUDirect RDMA."""
        return any(hint.kind == "path" and "GDRDMA" in hint.value for hint in self.hints)

    def hint(self, kind: str, start: str = "") -> Hint | None:
        """Return the first hint of this kind whose value begins with `start`; None if there is no such hint."""
        return next((hint for hint in self.hints if hint.kind == kind and hint.value.startswith(start)), None)


def busbw(row: ForeignRow) -> float:
    """Return a row's bus bandwidth in bytes per second, or 0 if the row has no bandwidth."""
    return row.busbw_bytes_per_s or 0.0


def other_gpus(run: ForeignRun, machine: LogMachine) -> tuple[str, ...]:
    """Return the GPU models that the log names but the instance type does not have."""
    if not machine.instance:
        return ()
    printed = {gpu_printed(name) for name in run.gpus} - {None, machine.gpu}
    return tuple(sorted(map(str, printed)))
