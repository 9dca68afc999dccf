"""What the reasons look at: the rows of one run beside the links they ran on, and what others reached there."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from bench.core.links import Bound, NodeLinks
from bench.core.log_traits import log_traits
from bench.core.pattern import MessagePattern, Pattern, Shape, Traffic, traffic_of
from bench.core.record import Header, Record
from bench.core.traits import traits
from bench.core.units import format_bytes, format_rate
from bench.explain.log_evidence import Hint
from bench.hardware.bounds import bounds_of, moves_host_memory
from bench.hardware.catalogue import gpu, gpu_printed, instance
from bench.hardware.machine import LogMachine
from bench.hardware.reference import Reference, same_shape
from bench.logs.foreign import ForeignRow, ForeignRun

# Below this, a time is the software's and the links' latency; above, bytes count.
SMALL_BYTES = 1024
LARGE_BYTES = 64 << 20
LARGE_SIZE_BYTES = LARGE_BYTES * 16  # where curves of any links have ended their rise, or nearly so
_RISES = 0.05  # of the bandwidth at the last step: less is called flat
# Tools print two decimals of GB/s, and a time of four digits.
_ROUNDING, _STEP = 0.002, 0.005e9
# busbw / algbw of n ranks is 2(n-1)/n or (n-1)/n.
_FACTORS = {"allreduce": 2.0, "allgather": 1.0, "reducescatter": 1.0, "alltoall": 1.0}
# What NCCL sends round a ring of all ranks, so that the NICs of each node carry what busbw counts, where two nodes need
# half of it. It has nothing else for several GPUs per node, but where the network's own switches take part
# (NVIDIA/nccl src/graph/tuning.cc: PAT is for one GPU per node, NVLS and CollNet need an in-network allgather).
_BY_RING = ("allgather", "reducescatter")
# Bytes per second and direction of the NICs that are sold: 100, 200, 400 and 800 Gb/s.
NIC_RATES = (12.5e9, 25e9, 50e9, 100e9)
_MOST_RANKS_OF_MESSAGES = 2048  # fewer than for an import, which lays the messages of each size out only once
_MOST_GPUS = 16  # of one node that is sold
_USUAL_GPUS = 8
_POD = re.compile(r"(.*[a-z][a-z0-9]*-)\d{1,4}(?:\.|$)")  # as Kubernetes numbers the pods of a set: name-0, name-1


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """One run of one pattern. `rows`: those with a bandwidth or a time. `bounds`: at the best row, tightest first.

    `doubtful`: rows that contradict themselves or are no numbers; they are none of `rows`, and so never the best one.
    """

    run: ForeignRun
    machine: LogMachine
    rows: tuple[ForeignRow, ...]
    num_ranks: int | None
    num_nodes: int | None
    counted: tuple[str, ...] = ()  # how ranks and nodes are known where the log does not say it
    bounds: tuple[Bound, ...] = ()
    above: tuple[tuple[ForeignRow, Bound], ...] = ()  # rows above a hard bound
    references: tuple[Reference, ...] = ()
    hints: tuple[Hint, ...] = ()
    wire_factor: float | None = None  # bytes that must leave a node / bytes that the bus bandwidth counts
    modelled: bool = False
    own: bool = False  # measured by this suite, not by a foreign tool
    doubtful: tuple[ForeignRow, ...] = ()
    misfit: str | None = None  # why these ranks can not have been on as many nodes as the user says

    @property
    def best(self) -> ForeignRow | None:
        """The row of the most bus bandwidth."""
        return max((row for row in self.rows if row.busbw_bytes_per_s), key=busbw, default=None)

    @property
    def small_s(self) -> float | None:
        """The median time of the smallest messages; None where there are none."""
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
    def flat_from(self) -> int | None:
        """The size from which on every bandwidth is within 5 % of the best; None where fewer than three sizes are."""
        best = self.best
        if best is None:
            return None
        sizes = sorted({row.payload_bytes or 0 for row in self.rows}, reverse=True)
        flat: list[int] = []
        for size in sizes:
            rates = [busbw(row) for row in self.rows if row.payload_bytes == size]
            if max(rates) < 0.95 * busbw(best):
                break
            flat.append(size)
        return flat[-1] if len(flat) > 2 else None

    @property
    def last_gain(self) -> float | None:
        """By how much of itself the bandwidth still rises at the last step, where the largest size is the fastest one;
        None with fewer than three sizes, or another best size."""
        rates: dict[int, float] = {}
        for row in self.rows:
            rates[row.payload_bytes or 0] = max(rates.get(row.payload_bytes or 0, 0.0), busbw(row))
        sizes = sorted(rates)
        if len(sizes) < 3 or self.best is None or self.best.payload_bytes != sizes[-1] or not rates[sizes[-2]]:
            return None
        return rates[sizes[-1]] / rates[sizes[-2]] - 1

    @property
    def rises(self) -> bool:
        """Does the curve still rise at its end, below sizes at which any has ended to?"""
        return self.flat_from is None and self.largest_bytes < LARGE_SIZE_BYTES and (self.last_gain or 0.0) >= _RISES

    @property
    def too_short(self) -> bool:
        """Does it rise at its end, or are there too few sizes to tell? Then it is not held against an asymptote."""
        few = len({row.payload_bytes for row in self.rows}) < 3
        return self.rises or (few and self.largest_bytes < LARGE_SIZE_BYTES)

    @property
    def other_gpus(self) -> tuple[str, ...]:
        """The GPUs that the log names and the machine that the user named does not have."""
        return other_gpus(self.run, self.machine)

    @property
    def nics_known(self) -> bool:
        """Are the NICs that carry this known, or what all machines that it may be have in common? One rank of each
        node of an unknown machine may have one NIC, or all."""
        links = self.machine.links
        if links is not None and links.nic_bytes_per_s is not None:
            return True
        return self.network_bytes_per_s is not None and self.num_ranks != self.num_nodes

    @property
    def bridge_unknown(self) -> bool:
        """Two cards that a bridge may join, of a machine that does not tell, at a rate that needs none."""
        links, best = self.machine.links, self.best
        pair = links is not None and links.peer == "nvlink_pairs" and (self.num_ranks, self.num_nodes) == (2, 1)
        plain = [bound for bound in self.bounds if bound.name.endswith("without NVLink bridge")]
        if not pair or self.machine.instance or best is None or not plain:
            return False
        if (search := self.hint("search")) and search.value.endswith("type NVL"):
            return False  # NCCL sees one
        return busbw(best) <= min(bound.bytes_per_s for bound in plain)

    @property
    def ranks_per_node(self) -> int | None:
        """Ranks on the fullest node; None if either count is unknown."""
        if not self.num_ranks or not self.num_nodes:
            return None
        return -(-self.num_ranks // self.num_nodes)

    @property
    def of_hosts(self) -> bool:
        """Do the bytes come from host memory, so that neither GPUs nor NCCL explain anything?"""
        return moves_host_memory(self.run.tool) or (self.own and moves_host_memory(self.run.tool.split()[-1]))

    @property
    def over_nics(self) -> bool:
        """Must something go through NICs? Nodes of one NVSwitch network need none, or few."""
        links = self.machine.links
        return (self.num_nodes or 1) > 1 and (links is None or links.nvlink_nodes == 1)

    @property
    def wire_bytes_per_s(self) -> float | None:
        """Through one node's NICs and direction at the best row, by the least that must leave the node."""
        if self.best is None or self.wire_factor is None or not self.over_nics:
            return None
        return busbw(self.best) * self.wire_factor

    @property
    def by_ring(self) -> bool:
        """Does this go round a ring, which crosses each node's NICs more often than it must?"""
        nccl = log_traits(self.run.tool).rings or (self.own and traits(self.run.tool.split()[-1]).rings)
        nccl = nccl and not (self.machine.gpu and gpu(self.machine.gpu).architecture.startswith("cdna"))  # that is RCCL
        ring = self.run.pattern in _BY_RING
        if self.run.pattern == "allreduce" and (told := self.hint("setting", "NCCL_ALGO set by environment to ")):
            ring = told.value.lower().rstrip(". ").endswith(" ring")
        return nccl and self.over_nics and ring and self.num_ranks != self.num_nodes

    @property
    def carried_bytes_per_s(self) -> float | None:
        """What one node's NICs carried in each direction at the best row, by the algorithm that is known to be taken,
        else by the least that must leave the node."""
        return busbw(self.best) if self.by_ring and self.best is not None else self.wire_bytes_per_s

    @property
    def network_bytes_per_s(self) -> float | None:
        """All NICs of a node, as far as the machine or what it may be tells."""
        links = self.machine.likely or self.machine.links
        if links is None or links.nic_bytes_per_s is None or links.num_nics is None:
            return None
        return links.nic_bytes_per_s * links.num_nics

    @property
    def nics_heard(self) -> int:
        """How many NICs the channels of the log name: "NET/IB/0", "NET/AWS Libfabric/3/GDRDMA"."""
        paths = [hint.value.split("/") for hint in self.hints if hint.kind == "path"]
        return len({parts[2] for parts in paths if parts[0] == "NET" and len(parts) > 2})

    def hint(self, kind: str, start: str = "") -> Hint | None:
        """The first saying of the log of a kind."""
        return next((hint for hint in self.hints if hint.kind == kind and hint.value.startswith(start)), None)


def busbw(row: ForeignRow) -> float:
    """Its bus bandwidth, 0 where it has none."""
    return row.busbw_bytes_per_s or 0.0


def other_gpus(run: ForeignRun, machine: LogMachine) -> tuple[str, ...]:
    """GPU models that the log names and the named instance type does not have."""
    if not machine.instance:
        return ()
    told = {gpu_printed(each) for each in run.gpus} - {None, machine.gpu}
    return tuple(sorted(str(each) for each in told))


def gathered(
    run: ForeignRun,
    machine: LogMachine,
    pattern: Pattern | None,
    hints: Sequence[Hint] = (),
    num_nodes: int | None = None,
) -> RunEvidence:
    """A foreign run beside its bounds and references. `pattern`: the one it names; `num_nodes`: as the user says."""
    rows = tuple(row for row in run.rows if (row.payload_bytes or 0) > 0 and (row.time_s or row.busbw_bytes_per_s))
    doubtful = tuple(row for row in run.rows if _is_doubtful(row))
    rows = tuple(row for row in rows if row not in doubtful)
    ranks, told = _ranks(run, rows)
    nodes, so = _nodes(run, machine, ranks, num_nodes)
    if pattern is not None and ranks is not None and not run.size_is_block:
        rows = tuple(_rated(row, pattern, ranks) for row in rows)
    counted = tuple(filter(None, (told, so)))
    seen = RunEvidence(run, machine, rows, ranks, nodes, counted, hints=tuple(hints), doubtful=doubtful)
    seen = replace(seen, misfit=_misfit(seen, num_nodes))
    if ranks is None or nodes is None or seen.hint("shared") or seen.misfit:
        return seen
    best = seen.best
    if pattern is not None and best is not None:
        traffic = _traffic(pattern, best, ranks, nodes)
        if traffic.node_bytes and traffic.rank_bytes:
            seen = replace(seen, wire_factor=traffic.node_bytes / traffic.rank_bytes)
        if machine.links is not None and not seen.other_gpus:
            bounds = _bounds(seen, pattern.name, best, traffic)
            seen = replace(seen, bounds=bounds, above=_above(rows, bounds))
    return with_references(seen)


def _is_doubtful(row: ForeignRow) -> bool:
    """Is a row no figure: at odds with itself, as its reader says, or printed as no number?"""
    figures = (row.time_s, row.algbw_bytes_per_s, row.busbw_bytes_per_s)
    endless = any(figure is not None and not math.isfinite(figure) for figure in figures)
    return bool(row.contradicts or row.unreadable or endless)


def with_references(seen: RunEvidence) -> RunEvidence:
    """The run beside what others measured of its shape."""
    return replace(seen, references=_references(seen))


def _references(seen: RunEvidence) -> tuple[Reference, ...]:
    machine = seen.machine
    if not (seen.run.pattern and seen.num_nodes and seen.num_ranks) or seen.of_hosts:
        return ()
    found = same_shape(seen.run.pattern, machine.gpu, machine.instance, seen.num_nodes, seen.num_ranks)
    return tuple(each for each in found if _comparable(seen, each))


def _rated(row: ForeignRow, pattern: Pattern, num_ranks: int) -> ForeignRow:
    """A row with the bandwidths that its time gives, where the tool printed none."""
    algbw = row.algbw_bytes_per_s
    if row.busbw_bytes_per_s is None and isinstance(pattern, MessagePattern) and num_ranks > _MOST_RANKS_OF_MESSAGES:
        return row
    if algbw is None and row.time_s:
        algbw = (row.payload_bytes or 0) / row.time_s
    if row.busbw_bytes_per_s is not None or algbw is None:
        return row
    factor = traffic_of(pattern, Shape(num_ranks, row.payload_bytes or 0), None).bus_factor
    return replace(row, algbw_bytes_per_s=algbw, busbw_bytes_per_s=algbw * factor if factor else None)


def _ranks(run: ForeignRun, rows: Sequence[ForeignRow]) -> tuple[int | None, str | None]:
    """How many ranks there were: as the log says, else as busbw / algbw tells."""
    if run.num_ranks is not None:
        return run.num_ranks, None
    factor = _FACTORS.get(run.pattern or "")
    low, high = 2.0, math.inf
    for row in rows:
        if factor is None or not row.algbw_bytes_per_s or not row.busbw_bytes_per_s:
            continue
        algbw, bus = row.algbw_bytes_per_s, row.busbw_bytes_per_s
        least, most = (bus - _STEP) / (algbw + _STEP), (bus + _STEP) / max(algbw - _STEP, 1.0)
        if least >= factor:
            return None, None
        low = max(low, factor / (factor - least))
        high = min(high, factor / (factor - most) if most < factor else math.inf)
    candidates = range(math.ceil(low), math.floor(high) + 1) if high < 10_000 else range(0)
    if len(candidates) != 1:
        return None, None
    ratio = factor * (candidates[0] - 1) / candidates[0] if factor else 0.0
    return candidates[0], f"{candidates[0]} ranks, as busbw / algbw = {ratio:.4g} tells"


def _nodes(run: ForeignRun, machine: LogMachine, ranks: int | None, given: int | None) -> tuple[int | None, str | None]:
    if given is not None:
        return given, f"{_nodes_words(given)}, as given"
    told = run.num_nodes or (len(run.hosts) or None)
    if told == 1 and (ranks or 0) > _MOST_GPUS:
        told = None  # an excerpt of the list of ranks names one host
    per_node = machine.links.gpus if machine.instance and machine.links else None
    if ranks is not None and told == len(run.hosts) and (per_node is None or ranks <= told * per_node):
        return told, _pods(run, machine, ranks)
    if per_node is None or ranks is None:
        return told, None
    needed = -(-ranks // per_node)
    if told is None:
        return needed, f"{_nodes_words(needed)}, as a node has {per_node} GPUs"
    return max(told, needed), None if told >= needed else f"{_nodes_words(needed)}, as a node has {per_node} GPUs"


def _misfit(seen: RunEvidence, given: int | None) -> str | None:
    """Why as many nodes as the user says can not have held the ranks; None where they can."""
    if given is None or seen.num_ranks is None:
        return None
    per_node, left = divmod(seen.num_ranks, given)
    if left:
        return f"{seen.num_ranks} ranks do not divide among {_nodes_words(given)}: give another --num-nodes"
    machine, links = seen.machine, seen.machine.links
    if machine.instance and links and per_node > links.gpus and not seen.of_hosts:
        told = f"{seen.num_ranks} ranks on {_nodes_words(given)} are {per_node} of each"
        return f"{told}, and {machine.instance} has {links.gpus} GPUs: give another --num-nodes or --instance"
    return None


def _pods(run: ForeignRun, machine: LogMachine, ranks: int) -> str | None:
    """What to doubt where hosts may be pods: numbered names alike, with fewer ranks than their nodes have GPUs."""
    num = len(run.hosts)
    names = (machine.instance,) if machine.instance else machine.candidates
    gpus = min((instance(name).gpus for name in names), default=_USUAL_GPUS)
    alike = {match[1] for host in run.hosts if (match := _POD.match(host))}
    if num < 2 or len(alike) != 1 or not all(_POD.match(host) for host in run.hosts) or ranks > num * gpus // 2:
        return None
    return (
        f"{_nodes_words(num)}, by host names that may be those of pods, of which one node may hold several: the number "
        "of nodes is not certain (give it: --num-nodes)"
    )


def _nodes_words(num: int) -> str:
    return f"{num} node{'s' if num != 1 else ''}"


def _comparable(seen: RunEvidence, each: Reference) -> bool:
    """Across nodes, another network is no comparison, and one that is not known neither. Where ours is not known all
    are shown, and none is compared."""
    own = each.instance is not None and each.instance == seen.machine.instance
    if not seen.over_nics or own or not seen.nics_known or each.limited is not None:
        return True
    networks = [seen.network_bytes_per_s]
    if seen.num_ranks == seen.num_nodes and seen.machine.links is not None:
        networks.append(seen.machine.links.nic_bytes_per_s)
    return any(network is not None and _near(network, each) for network in networks)


def _near(network: float, each: Reference) -> bool:
    return each.network_bytes_per_s is not None and abs(each.network_bytes_per_s / network - 1) < 0.01


def _traffic(pattern: Pattern, row: ForeignRow, ranks: int, nodes: int) -> Traffic:
    """What must cross which boundary; nothing is known of a world too large to lay its messages out."""
    if isinstance(pattern, MessagePattern) and ranks > _MOST_RANKS_OF_MESSAGES:
        return Traffic(None, None, None, 1)
    return traffic_of(pattern, Shape(ranks, row.payload_bytes or 0), nodes if ranks % nodes == 0 else None)


def _bounds(seen: RunEvidence, pattern: str, row: ForeignRow, traffic: Traffic) -> tuple[Bound, ...]:
    """Hard bounds and references of a row, tightest first. They bound rates, so that they are those of every size."""
    machine = seen.machine
    assert machine.links is not None
    found = list(_of_links(seen, pattern, row, traffic, machine.links))
    if machine.likely is not None and seen.over_nics and seen.num_ranks != seen.num_nodes:
        found += [
            replace(bound, kind="reference", why=f"{bound.why}, if it is one of the machines named above")
            for bound in _of_links(seen, pattern, row, traffic, machine.likely)
            if bound.name.startswith("network")
        ]
    if seen.by_ring:
        found += [_of_ring(bound, seen, row, traffic) for bound in found if bound.name == "network"]
    if machine.links.peer == "nvlink_pairs" and seen.num_nodes == 1 and seen.num_ranks == 2:
        plain = replace(machine.links, peer="host", nvlink_bytes_per_s=None)
        found += [
            replace(bound, kind="reference", name=f"{bound.name} without NVLink bridge")
            for bound in _of_links(seen, pattern, row, traffic, plain)
            if bound.kind == "hard"
        ]
    return tuple(sorted(found, key=lambda bound: bound.bytes_per_s))


def _of_ring(bound: Bound, seen: RunEvidence, row: ForeignRow, traffic: Traffic) -> Bound:
    """The bound by a node's NICs, for a ring of all ranks."""
    assert traffic.node_bytes and traffic.rank_bytes
    share = traffic.node_bytes / traffic.rank_bytes
    why = (
        f"a node's NICs carry {format_rate(bound.bytes_per_s * share)} each way, and NCCL's {seen.run.pattern} goes "
        f"round a ring of all ranks, so that {format_bytes(round(traffic.rank_bytes))} leave each node, where "
        f"{format_bytes(round(traffic.node_bytes))} must"
    )
    why += ", if it is one of the machines named above" if bound.why.endswith("named above") else ""
    return replace(
        bound, bytes_per_s=bound.bytes_per_s * share, name="network, round a ring", kind="reference", why=why
    )


def _of_links(
    seen: RunEvidence, pattern: str, row: ForeignRow, traffic: Traffic, links: NodeLinks
) -> tuple[Bound, ...]:
    header = Header(
        job="",
        case=(),
        pattern=pattern,
        dtype="",
        reduce_op="",
        root=None,
        direction=None,
        topology="world",
        transport=seen.run.tool,
        num_ranks=seen.num_ranks,
        num_nodes=seen.num_nodes,
        ranks_per_node=seen.ranks_per_node,
        clock="host",
        modelled=False,
        started="",
        links=links.to_dict(),
    )
    record = Record(
        mode="pipelined",
        requested_bytes=(),
        payload_bytes=row.payload_bytes or 0,
        num_ranks=seen.num_ranks,
        num_nodes=seen.num_nodes,
        bus_factor=traffic.bus_factor,
        rank_bytes=traffic.rank_bytes,
        node_bytes=traffic.node_bytes,
        reported={},
    )
    return bounds_of(header, record)


def _above(rows: Sequence[ForeignRow], bounds: Sequence[Bound]) -> tuple[tuple[ForeignRow, Bound], ...]:
    """Rows above the tightest hard bound by more than figures are rounded, the farthest first."""
    hard = next((bound for bound in bounds if bound.kind == "hard"), None)
    if hard is None:
        return ()
    over = [row for row in rows if busbw(row) * (1 - _ROUNDING) - _STEP > hard.bytes_per_s]
    return tuple((row, hard) for row in sorted(over, key=busbw, reverse=True))
