"""What a gate looks at: a run's document beside its plan, its outcomes and what its logs tell of the network."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from bench.core.case import Case, own_case
from bench.core.contention import rounds
from bench.core.errors import BenchError
from bench.core.record import Flag, Header
from bench.core.traits import traits
from bench.core.world import World
from bench.diagnose.pair_evidence import rows_of
from bench.gate.rules import GateFault
from bench.results.document import Document, Summary

# A published figure for a row, bytes per second or seconds of the metric, with its source; None where there is none.
Published = Callable[[Header, Summary, str], "tuple[float, str] | None"]

_ATTEMPT = re.compile(r".#([1-9][0-9]{0,5})$", re.ASCII)
# What NCCL says of the network at NCCL_DEBUG=INFO, and which network that is.
_NCCL_NETWORKS = (
    (re.compile(r"NET/OFI.*[Pp]rovider (?:is|name:?) *efa|Using network (?:AWS Libfabric|Libfabric)"), "efa"),
    (re.compile(r"NET/IB : Using .*RoCE|\[\d+\]\S+/RoCE"), "roce"),
    (re.compile(r"NET/IB : Using|Using network IB"), "ib"),
    (re.compile(r"NET/Socket : Using|Using network Socket"), "tcp"),
)
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w-]+)")


def no_figures(header: Header, row: Summary, metric: str) -> tuple[float, str] | None:
    """Nobody published anything."""
    return None


@dataclass(frozen=True, slots=True)
class GateInput:
    """A run to judge. `warnings`: what could not be read of its files. `networks`: job -> those that its log names.
    `unsound`: stored rows that contradict their headers.

    `baseline`: the run to compare with, or None with the reason in `no_baseline`. `now`: what ages are counted from.
    """

    name: str
    document: Document
    plan: Mapping[str, Any] | None = None
    outcomes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    networks: Mapping[str, frozenset[str]] = field(default_factory=dict)
    baseline: Document | None = None
    no_baseline: str = "no run to compare with was named (`baseline:` in the rules file, or --baseline)"
    unsound: tuple[GateFault, ...] = ()
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    published: Published = no_figures

    def planned(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The jobs of the plan."""
        yield from ((job["name"], job) for job in (self.plan or {}).get("jobs", ()))

    def jobs(self) -> dict[str, tuple[Case | None, World | None, Header | None]]:
        """Every job that was planned or has results, without the numbers of attempts: case, world, last header."""
        found: dict[str, tuple[Case | None, World | None, Header | None]] = {}
        for name, job in self.planned():
            world = job.get("world")  # what was imported has none
            found[name] = own_case(job["case"]), World(**world) if world else None, None
        for attempt, header in self.document.headers.items():
            name = start(attempt)
            case, world, _ = found.get(name) or (own_case(header.case), world_of(header), None)
            found[name] = case, world, header
        return found

    def network_of(self, job: str) -> frozenset[str]:
        """Over which networks a job's messages between nodes went; none where nothing tells."""
        header = self.document.headers[job]
        if header.facts.get("network"):
            return frozenset({str(header.facts["network"])})
        if only := traits(header.transport).network:
            return frozenset({only})
        return _told_by_nccl(header) | self.networks.get(start(job), frozenset())


def _told_by_nccl(header: Header) -> frozenset[str]:
    """What the `nccl` transport heard from NCCL, in our words; its `ib` is RoCE where the adapters are Ethernet's."""
    told = str(header.facts.get("nccl_network") or "")
    words = () if told.startswith("none") else tuple(filter(None, told.split(" + ")))
    kinds = {str(each.get("kind")) for node in header.nodes.values() for each in node.get("adapters") or ()}
    own = sorted(kinds & {"infiniband", "roce"})
    ib = {"infiniband": "ib", "roce": "roce"}[own[0]] if len(own) == 1 else "ib or roce"
    return frozenset({"socket": "tcp", "ib": ib}.get(word, word) for word in words)


def start(job: str) -> str:
    """The planned job that an attempt belongs to."""
    return job if attempt_of(job) == 1 else job.rpartition("#")[0]


def attempt_of(job: str) -> int:
    """The number of an attempt: 2 of `job#2`; 1 of a job of any other name."""
    number = _ATTEMPT.search(job)
    return int(number[1]) if number else 1


def world_of(header: Header) -> World | None:
    """The world that was really there."""
    if header.num_nodes is None or header.ranks_per_node is None:  # a log need not tell
        return None
    try:
        return World(header.num_nodes, header.ranks_per_node)
    except (BenchError, ValueError):
        return None


def groups_of(header: Header) -> Sequence[Any]:
    """The rounds of groups of a job; empty where they can not be told."""
    case, world = own_case(header.case), world_of(header)
    if case is None or world is None or case.schedule == "ladder":
        return ()
    try:
        return rounds(case, world, header.topology)
    except BenchError:
        return ()


def is_imported(row: Summary) -> bool:
    """Is it a figure that another tool reported?"""
    return row.imported or Flag.REPORTED in row.flags


def status_of(header: Header) -> str:
    """How the run ended that another tool's log tells of: ok, failed or truncated; "" for a job of ours."""
    return str(header.imported.get("status") or "unknown") if header.imported else ""


def host_of(header: Header, rank: int) -> str | None:
    """Where a rank was."""
    return str(header.ranks[rank].get("host")) if rank < len(header.ranks) else None


def hosts(header: Header) -> tuple[str, ...]:
    """The hosts of a job, each once."""
    return tuple(dict.fromkeys(str(rank.get("host")) for rank in header.ranks))


def gpus_of(header: Header) -> set[str]:
    """The GPU models of all nodes, as drivers print them; of a log those that it names."""
    told = filter(None, header.facts.get("gpus", "").split(", ")) if header.imported else ()
    return {str(gpu.get("name")) for facts in header.nodes.values() for gpu in facts.get("gpus") or ()} | set(told)


class Whereabouts:
    """The hosts of rows, looked up once for each job: a world may have thousands of ranks, and a job as many rows."""

    def __init__(self, headers: Mapping[str, Header]) -> None:
        """`headers` by job."""
        self._headers = headers
        self._hosts = {job: hosts(header) for job, header in headers.items()}
        self._groups: dict[str, dict[str, tuple[int, ...]]] = {}

    def of(self, row: Summary) -> tuple[str, ...]:
        """The hosts of a row's group; all of the job's where it is the world, none where it is not known."""
        if row.src is not None and row.dst is not None:
            return self._of_ranks(row.job, (row.src, row.dst))
        return self.of_group(row.job, row.group)

    def of_group(self, job: str, group: str) -> tuple[str, ...]:
        """The same by the name of a group, as of a row that failed: a ladder's pair tells its ranks by its name."""
        header = self._headers.get(job)
        if header is None or group == "world":
            return self.of_job(job)
        if job not in self._groups:
            self._groups[job] = {each.name: each.ranks for some in groups_of(header) for each in some}
        pair = () if self._groups[job] else rows_of(group, 1.0, symmetric=False)
        return self._of_ranks(job, self._groups[job].get(group, pair[0][:2] if pair else ()))

    def of_job(self, job: str) -> tuple[str, ...]:
        """All hosts of a job, in any of its attempts where it is named without its number; none where no header is."""
        if job in self._hosts:
            return self._hosts[job]
        return tuple(dict.fromkeys(host for each, mine in self._hosts.items() if start(each) == job for host in mine))

    def _of_ranks(self, job: str, ranks: Iterable[int]) -> tuple[str, ...]:
        header = self._headers[job]
        return tuple(dict.fromkeys(host for rank in ranks if (host := host_of(header, rank)) is not None))


def fault(name: str, what: str, row: Summary, got: float | None = None, limit: float | None = None) -> GateFault:
    """A row's way to fail."""
    return GateFault(name, what, row.job, row.pattern, row.mode, row.payload_bytes, row.group, got, limit)


def networks_in(log: Iterable[str]) -> frozenset[str]:
    """The networks that NCCL says it uses, from the lines of a job's log (NCCL_DEBUG=INFO)."""
    found: set[str] = set()
    providers: set[str] = set()
    for line in log:
        providers.update(word.lower() for word in _PROVIDER.findall(line))
        if "NET/" in line or "Using network" in line:
            found.update(name for pattern, name in _NCCL_NETWORKS if pattern.search(line))
    if "efa" in found and providers and "efa" not in providers:  # libfabric is a way to many networks
        found = found - {"efa"} | providers
    if "roce" in found:
        found.discard("ib")
    return frozenset(found)
