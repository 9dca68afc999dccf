"""Collect what a gate needs to judge a run: the document, records, plan, outcomes, and networks that its logs name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from bench.core.case import Case
from bench.core.case_argv import own_case
from bench.core.contention import rounds
from bench.core.errors import BenchError
from bench.core.record import Flag, Header, Record
from bench.core.traits import traits
from bench.core.world import World
from bench.diagnose.pair_evidence import rows_of
from bench.gate.messages import FaultCode
from bench.gate.rules import GateFault
from bench.results.document import Document, Summary

# Returns the published figure for a row, in the unit of the metric (bytes per second or seconds), with its source; None
# if nothing is published.
Published = Callable[[Header, Summary, str], "tuple[float, str] | None"]

_ATTEMPT = re.compile(r".#([1-9][0-9]{0,5})$", re.ASCII)
# The network that a line of NCCL's log (NCCL_DEBUG=INFO) refers to.
_NCCL_NETWORKS = (
    (re.compile(r"NET/OFI.*[Pp]rovider (?:is|name:?) *efa|Using network (?:AWS Libfabric|Libfabric)"), "efa"),
    (re.compile(r"NET/IB : Using .*RoCE|\[\d+\]\S+/RoCE"), "roce"),
    (re.compile(r"NET/IB : Using|Using network IB"), "ib"),
    (re.compile(r"NET/Socket : Using|Using network Socket"), "tcp"),
)
BASELINE_NOT_NAMED = GateFault(FaultCode.BASELINE_NOT_NAMED)
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w-]+)")


def no_figures(header: Header, row: Summary, metric: str) -> tuple[float, str] | None:
    """Return None, because without a source of published figures no figure is known."""
    return None


@dataclass(frozen=True, slots=True)
class GateInput:
    """A run to judge.

    `attempts`: for each attempt in `document`, its name, header and records. The name is `job` or
    `job#2`.
    `warnings`: messages about damaged parts of the run's files.
    `networks`: for each job, the networks that its log names.
    `inconsistent`: faults of rows that contradict their job's header.
    `baseline`: the run to compare with. If `baseline` is None, `no_baseline` says why.
    `now`: the time at which the gate judges the run. It is used to compute the age of the run.
    `published`: a function that looks up published figures.

    The records have no sample times, because the times of a whole run may not fit into memory. Of the warm-up times,
    only the first is kept.
    """

    name: str
    document: Document
    attempts: tuple[tuple[str, Header, Sequence[Record]], ...] = ()
    plan: Mapping[str, Any] | None = None
    outcomes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    networks: Mapping[str, frozenset[str]] = field(default_factory=dict)
    baseline: Document | None = None
    no_baseline: GateFault = BASELINE_NOT_NAMED
    inconsistent: tuple[GateFault, ...] = ()
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    published: Published = no_figures

    def planned(self) -> dict[str, Mapping[str, Any]]:
        """Return the jobs of the plan by name, or an empty mapping if there is no plan."""
        return {job["name"]: job for job in (self.plan or {}).get("jobs", ())}

    def jobs(self) -> dict[str, tuple[Case | None, World | None, Header | None]]:
        """Return the case, the world and the last header of each job. Include planned jobs and jobs with results."""
        found: dict[str, tuple[Case | None, World | None, Header | None]] = {}
        for name, job in self.planned().items():
            world = job.get("world")  # an imported job has no world
            found[name] = own_case(job["case"]), World(**world) if world else None, None
        for attempt, header in self.document.headers.items():
            name = job_of_attempt(attempt)
            case, world, _ = found.get(name) or (own_case(header.case), world_of(header), None)
            found[name] = case, world, header
        return found

    def network_of(self, job: str) -> frozenset[str]:
        """Return the networks that carried a job's messages between nodes.

        If the networks are unknown, the result is empty.
        """
        header = self.document.headers[job]
        if header.facts.get("network"):
            return frozenset({str(header.facts["network"])})
        if only := traits(header.transport).network:
            return frozenset({only})
        return _reported_by_nccl(header) | self.networks.get(job_of_attempt(job), frozenset())


def _reported_by_nccl(header: Header) -> frozenset[str]:
    """Return the networks that NCCL used for the `nccl` transport, by the names that rules files use.

    NCCL reports both InfiniBand and RoCE as `ib`. The type of the node's network adapters shows whether InfiniBand or
    RoCE was used.
    """
    if header.num_nodes == 1:
        return frozenset()
    named = str(header.facts.get("nccl_network") or "").split(" + ")
    kinds = {str(adapter.get("kind")) for node in header.nodes.values() for adapter in node.get("adapters") or ()}
    used = kinds & {"infiniband", "roce"}
    ours = {"socket": "tcp", "ib": "ib or roce"}
    if used == {"infiniband"}:
        ours["ib"] = "ib"
    elif used == {"roce"}:
        ours["ib"] = "roce"
    return frozenset(ours.get(name, name) for name in named if name)


def job_of_attempt(attempt: str) -> str:
    """Return the name of the planned job of an attempt: `job` for `job#2`."""
    return attempt if attempt_number(attempt) == 1 else attempt.rpartition("#")[0]


def attempt_number(attempt: str) -> int:
    """Return the number of an attempt: 2 for `job#2`, 1 for a name without a number."""
    number = _ATTEMPT.search(attempt)
    return int(number[1]) if number else 1


def world_of(header: Header) -> World | None:
    """Return the nodes and the ranks that took part in the measurement.

    Return None if an imported log does not state these numbers.
    """
    if header.num_nodes is None or header.ranks_per_node is None:
        return None
    try:
        return World(header.num_nodes, header.ranks_per_node)
    except (BenchError, ValueError):
        return None


def groups_of(header: Header) -> Sequence[Any]:
    """Return the rounds of a job, in which its groups measure. The result is empty if the groups are unknown."""
    case, world = own_case(header.case), world_of(header)
    if case is None or world is None or case.is_ladder:
        return ()
    try:
        return rounds(case, world, header.topology)
    except BenchError:
        return ()


def is_imported(row: Summary) -> bool:
    """Check whether the row is a figure that another tool reported."""
    return row.imported or Flag.REPORTED in row.flags


def import_status(header: Header) -> str:
    """Return the status of an imported run: ok, failed, truncated or unknown.

    Return "" for a job that was not imported.
    """
    return str(header.imported.get("status") or "unknown") if header.imported else ""


def host_of(header: Header, rank: int) -> str | None:
    """Return the host of a rank; None if unknown."""
    return str(header.ranks[rank].get("host")) if rank < len(header.ranks) else None


def hosts(header: Header) -> tuple[str, ...]:
    """Return the hosts of a job, each once."""
    return tuple(dict.fromkeys(str(rank.get("host")) for rank in header.ranks))


def gpu_names(header: Header) -> list[str]:
    """Return the names of the GPUs, as the drivers of the nodes report them.

    For an imported job, also return the GPU names in its log.
    """
    names = [str(gpu.get("name")) for facts in header.nodes.values() for gpu in facts.get("gpus") or ()]
    if header.imported:
        names += header.facts.get("gpus", "").split(", ")
    return [name for name in names if name]


class RowHosts:
    """Finds the hosts of rows. Finds the hosts of rows."""

    def __init__(self, headers: Mapping[str, Header]) -> None:
        """Store the hosts of each job.

        `headers`: the headers of the jobs, by job name.
        """
        self._headers = headers
        self._hosts = {job: hosts(header) for job, header in headers.items()}
        self._groups: dict[str, dict[str, tuple[int, ...]]] = {}

    def of(self, row: Summary) -> tuple[str, ...]:
        """Return the hosts of a row's group.

        The group `world` has all hosts of the job. The result is empty if the hosts are unknown.
        """
        if row.src is not None and row.dst is not None:
            return self._of_ranks(row.job, (row.src, row.dst))
        return self.of_group(row.job, row.group)

    def of_group(self, job: str, group: str) -> tuple[str, ...]:
        """Return the hosts of a group, given only its name.

        For example, a failed row states only the name of its group. If a job chose its pairs while it measured, the
        name of a pair states its two ranks.
        """
        header = self._headers.get(job)
        if header is None or group == "world":
            return self.of_job(job)
        if job not in self._groups:
            self._groups[job] = {each.name: each.ranks for some in groups_of(header) for each in some}
        known = self._groups[job]
        if known:
            return self._of_ranks(job, known.get(group, ()))
        pair = rows_of(group, 1.0, symmetric=False)
        return self._of_ranks(job, pair[0][:2] if pair else ())

    def of_job(self, job: str) -> tuple[str, ...]:
        """Return all hosts of a job. `job`: an attempt, or a planned job.

        A planned job has the hosts of all its attempts. The result is empty if the job has no header.
        """
        if job in self._hosts:
            return self._hosts[job]
        of_attempts = [own for attempt, own in self._hosts.items() if job_of_attempt(attempt) == job]
        return tuple(dict.fromkeys(host for own in of_attempts for host in own))

    def _of_ranks(self, job: str, ranks: Iterable[int]) -> tuple[str, ...]:
        header = self._headers[job]
        return tuple(dict.fromkeys(host for rank in ranks if (host := host_of(header, rank)) is not None))


def networks_in(log: Iterable[str]) -> frozenset[str]:
    """Return the networks that NCCL names in the lines of a job's log (NCCL_DEBUG=INFO)."""
    found: set[str] = set()
    providers: set[str] = set()
    for line in log:
        providers.update(name.lower() for name in _PROVIDER.findall(line))
        if "NET/" in line or "Using network" in line:
            found.update(name for pattern, name in _NCCL_NETWORKS if pattern.search(line))
    # libfabric runs over many networks, so the provider decides
    if "efa" in found and providers and "efa" not in providers:
        found = found - {"efa"} | providers
    if "roce" in found:
        found.discard("ib")
    return frozenset(found)


def rows_by_job(rows: Iterable[Summary]) -> dict[str, list[Summary]]:
    """Map each planned job to the rows of all its attempts. Rows of the same attempt follow each other."""
    of_attempt: dict[str, list[Summary]] = {}
    for row in rows:
        of_attempt.setdefault(row.job, []).append(row)
    found: dict[str, list[Summary]] = {}
    for attempt, own in of_attempt.items():
        found.setdefault(job_of_attempt(attempt), []).extend(own)
    return found


def pair_rows(rows: Iterable[Summary]) -> Iterator[Summary]:
    """Return the rows of pairs, without modelled rows."""
    return (row for row in rows if row.src is not None and not row.modelled)
