"""Judge each node, with reasons. A node with too little evidence does not pass.

A node passes only if both of these conditions are true:
- A row that was measured on this node alone met its demand, or measurements of pairs show that the node is not slow.
- The run has no fault that this node may have caused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from bench.core.codes import Code, Coded
from bench.core.errors import UsageError
from bench.core.units import format_size
from bench.diagnose import pair_evidence
from bench.diagnose.fleet import LEAST_RUNS, fleet_of
from bench.diagnose.host_evidence import verdict_of
from bench.diagnose.localise import Accused, Diagnosis, Suspect
from bench.diagnose.messages import SlowPart
from bench.explain import stored as explain_stored
from bench.gate.gate_input import GateInput, RowHosts, hosts, is_imported, job_of_attempt, pair_rows
from bench.gate.messages import FaultCode, GateFailure, NodeCode
from bench.gate.rules import GateFault, Rules
from bench.hardware.bounds import COPIES_OF_ONE_GPU, shares_gpu
from bench.results.document import Summary


class NodeStatus(StrEnum):
    """The verdict on a node."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_JUDGED = "not judged"


# These failures mean that a node is bad. All other failures only mean that too little is known about it.
_ACCUSING = frozenset(
    (
        GateFailure.SLOW_PART,
        GateFailure.FAILED_JOB,
        GateFailure.WRONG_DATA,
        GateFailure.ABOVE_BOUND,
        GateFailure.ZERO,
        GateFailure.TOO_LOW,
        GateFailure.TOO_HIGH,
        GateFailure.SLOWER,
        GateFailure.THROUGH_HOST,
        GateFailure.WRONG_WORLD,
    )
)
# Any host of the row may have caused one of these failures, and pairs do not show which host. Therefore no host of the
# row is cleared.
_CAUSED_BY_ANY = frozenset(
    (GateFailure.FAILED_JOB, GateFailure.WRONG_DATA, GateFailure.ABOVE_BOUND, GateFailure.INCONSISTENT)
)
# A host must be compared with this many hosts. If only two hosts are equally slow, neither looks slow.
_LEAST_PEERS = 3
_MOST_REASONS = 8


@dataclass(frozen=True, slots=True)
class NodeReason:
    """A reason for the verdict on a node. The reason is either a fault of the run or a NodeCode.

    `failure`: the name of the failure, or None if `code` is a NodeCode.
    `where`: the job or the row in which the fault occurred, for example "allreduce 1M pipelined".
    """

    code: Code
    facts: Mapping[str, Any] = field(default_factory=dict)
    failure: GateFailure | None = None
    where: str = ""

    @classmethod
    def of_fault(cls, fault: GateFault) -> NodeReason:
        """Build a reason from a fault of the run that concerns the node."""
        words = [fault.job or "" if fault.group is None else fault.pattern or ""]
        if fault.payload_bytes:
            words.append(format_size(fault.payload_bytes))
        words.append(fault.mode or "")
        return cls(fault.code, fault.facts, fault.name, " ".join(filter(None, words)))

    @property
    def key(self) -> tuple[str, ...]:
        """The key of a reason. The key of the reason, which is the same for two equal reasons."""
        return self.code, json.dumps(self.facts, sort_keys=True, default=str), self.failure or "", self.where

    @property
    def text(self) -> str:
        """The reason as text, for example "too-low: allreduce 1M pipelined: busbw must be at least 1 GB/s"."""
        words = self.code.words(self.facts)
        return ": ".join(filter(None, (self.failure, self.where, words))) if self.failure else words


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """The verdict on one host.

    `num_rows`: the number of judged rows in which the host took part. Rows of pairs are included.
    `reasons`: why the host failed or cannot be judged, and when it was measured again.
    """

    host: str
    status: NodeStatus
    num_rows: int
    reasons: tuple[NodeReason, ...]


@dataclass(slots=True)
class _Case:
    """The evidence about a host.

    `accusing`: reasons why the host fails.
    `open`: reasons why it is undecided whether the host is good.
    """

    accusing: dict[tuple[str, ...], NodeReason] = field(default_factory=dict)
    open: dict[tuple[str, ...], NodeReason] = field(default_factory=dict)

    def add(self, reason: NodeReason, accuses: bool) -> None:
        (self.accusing if accuses else self.open).setdefault(reason.key, reason)


def diagnosed(run: GateInput) -> Diagnosis | None:
    """Diagnose this run's pairs. Return None if the run has neither pairs nor enough similar logs."""
    headers = {job: asdict(header) for job, header in run.document.headers.items()}
    try:
        found = pair_evidence.diagnosed(headers, (asdict(row) for row in pair_rows(run.document.summaries)))
    except UsageError:
        return _of_logs(run)
    return pair_evidence.merged([each.verdict for each in found])


def _of_logs(run: GateInput) -> Diagnosis | None:
    """Diagnose hosts from imported logs of similar jobs. Return None if there are too few similar logs."""
    if sum(bool(header.imported) for header in run.document.headers.values()) < LEAST_RUNS:
        return None
    runs = explain_stored.imported(run.attempts)
    fleet = fleet_of((str(header.imported["source"]), each) for each, header in runs)
    if not fleet.is_one:
        return None
    verdict = verdict_of(fleet)
    accused, suspects = [], []
    for host in verdict.named:
        if host.at_fault:
            facts = {"host": host.host, "num_bad": host.num_bad, "num_runs": sum(host.counts.values())}
            facts |= {
                "num_slow": len(host.slow_with),
                "num_lost": len(host.lost_with),
                "num_partners": host.num_partners,
            }
            finding = Coded.of(SlowPart.HOST_OF_LOGS, **facts)
            accused.append(Accused("host", host.host, host.confidence, (finding,), (host.host,)))
        else:
            suspects.append(Suspect(kind="host", name=host.host, hosts=(host.host,)))
    doubtful = {host.host for host in verdict.hosts if host.num_bad}
    cleared = tuple(host for host in fleet.hosts if host not in doubtful)
    return Diagnosis(tuple(accused), cleared, tuple(suspects))


def cleared(run: GateInput, diagnosis: Diagnosis | None, rules: Rules) -> frozenset[str]:
    """Return the hosts that the diagnosis calls healthy.

    If no job measured valid pairs between enough hosts, the result is empty.
    """
    unverified = any(GateFailure.UNVERIFIED in rule.allow for rule in rules.rules)
    where = RowHosts(run.document.headers)
    met: dict[str, set[str]] = {}
    for row in pair_rows(run.document.summaries):
        if is_imported(row) or shares_gpu(run.document.headers[row.job], row.flags):
            continue
        if row.verified or (row.verified is None and unverified):
            met.setdefault(row.job, set()).update(where.of(row))
    enough = {host for peers in met.values() if len(peers) >= _LEAST_PEERS for host in peers}
    return frozenset(diagnosis.cleared if diagnosis else ()) & enough


def parts(run: GateInput, diagnosis: Diagnosis | None, asked: bool | None) -> Iterator[GateFault]:
    """Yield a fault for each slow part that the diagnosis found, and a fault for the hosts without a verdict.

    `asked`: whether the rules file demands a diagnosis.
    """
    if diagnosis is None:
        if asked:
            num = sum(row.src is not None and row.modelled for row in run.document.summaries)
            if num:
                yield GateFault(FaultCode.PAIRS_MODELLED, {"num_rows": num})
            else:
                yield GateFault(FaultCode.PAIRS_ABSENT)
        return
    for part in diagnosis.accused:
        yield GateFault(FaultCode.PART_SLOW, _slow(part), got=part.confidence)
    took_part: list[str] = []
    for header in run.document.headers.values():
        if asked or header.topology == "pairs":
            took_part += hosts(header)
    decided = {host for part in diagnosis.accused for host in _ends(part, took_part)} | set(diagnosis.cleared)
    undecided = tuple(host for host in dict.fromkeys(took_part) if host not in decided)
    if undecided or (diagnosis.suspects and not diagnosis.accused):
        yield _undecided(run, diagnosis, undecided)


def _slow(part: Accused) -> dict[str, Any]:
    return {"kind": part.kind, "part": part.name, "evidence": str(part.evidence)}


def _undecided(run: GateInput, diagnosis: Diagnosis, hosts_: tuple[str, ...]) -> GateFault:
    """Return a fault that says why the measurements of pairs give no verdict on these hosts."""
    if diagnosis.num_missing and hosts_:
        facts: dict[str, Any] = {"num_rounds": diagnosis.num_missing, "hosts": hosts_}
        return GateFault(FaultCode.LADDER_TOO_SHORT, facts, hosts=hosts_)
    if diagnosis.suspects:
        names = tuple(dict.fromkeys(f"{each.kind} {each.name}".strip() for each in diagnosis.suspects))
        facts = {"num": len(diagnosis.suspects), "parts": names}
        return GateFault(FaultCode.SUSPICIONS_OPEN, facts, hosts=hosts_)
    where = RowHosts(run.document.headers)
    measured = {host for row in pair_rows(run.document.summaries) for host in where.of(row)}
    unmeasured = tuple(host for host in hosts_ if host not in measured)
    if unmeasured:
        return GateFault(FaultCode.PAIRS_NOT_MEASURED, {"hosts": unmeasured}, hosts=hosts_)
    return GateFault(FaultCode.PAIRS_CLEAR_NONE, {"hosts": hosts_}, hosts=hosts_)


def nodes(
    run: GateInput,
    diagnosis: Diagnosis | None,
    judged: Sequence[Summary],
    good: tuple[Iterable[Summary], Collection[str]],
    faults: Iterable[GateFault],
    retested: Mapping[str, str],
) -> tuple[NodeVerdict, ...]:
    """Return the verdict on every host: first the hosts that took part, then the planned hosts that did not.

    `judged`: the rows that a rule or the diagnosis uses.
    `good`: the rows that met a demand, and the hosts that are not slow according to measurements of pairs.
    `retested`: for each host that was measured again, when this measurement started.

    A row that was measured on several nodes does not prove that a single one of them is good. A good row of a pair is
    an exception, because it proves that both hosts are good.
    """
    where = RowHosts(run.document.headers)
    cases = _cases(run, diagnosis, list(faults), where)
    vouched = set(good[1])
    for row in good[0]:
        if _vouches(row):
            vouched.update(_own_hosts(row, where))
    counts = dict.fromkeys((*cases, *retested), 0)
    for row in judged:
        for host in where.of(row):
            counts[host] += 1
    return tuple(
        _verdict(host, num_rows, host in vouched, cases.get(host, _Case()), retested.get(host))
        for host, num_rows in counts.items()
    )


def _cases(
    run: GateInput, diagnosis: Diagnosis | None, faults: Sequence[GateFault], where: RowHosts
) -> dict[str, _Case]:
    """Collect the evidence about each host from the diagnosis and from all faults, including faults without a host."""
    took_part = dict.fromkeys(host for header in run.document.headers.values() for host in hosts(header))
    cases = {host: _Case() for host in (*took_part, *_awaited(run, took_part))}
    for part in diagnosis.accused if diagnosis else ():
        for host in _ends(part, tuple(took_part)):
            if host in took_part:
                reason = NodeReason(FaultCode.PART_SLOW, _slow(part), GateFailure.SLOW_PART)
                cases[host].add(reason, accuses=True)
    unnamed: dict[tuple[GateFailure, tuple[str, ...]], list[GateFault]] = {}
    for fault, concerned, accuses in _placed(run, faults, where, tuple(took_part)):
        if not fault.hosts and len(concerned) != 1:
            unnamed.setdefault((fault.name, tuple(concerned)), []).append(fault)
            continue
        for host in concerned:
            # the host was expected, but nothing bad is known about it
            absent = fault.name == GateFailure.WRONG_WORLD and host not in took_part
            cases.setdefault(host, _Case()).add(NodeReason.of_fault(fault), accuses and not absent)
    for (failure, concerned), alike in unnamed.items():
        reason = NodeReason.of_fault(alike[0])
        if len(alike) > 1:
            reason = NodeReason(NodeCode.NODE_UNNAMED, {"failure": str(failure), "num": len(alike)})
        for host in concerned:
            cases.setdefault(host, _Case()).add(reason, accuses=False)
    return cases


def _verdict(host: str, num_rows: int, vouched: bool, case: _Case, retested: str | None) -> NodeVerdict:
    if case.accusing:
        status = NodeStatus.FAILED
    elif vouched and not case.open:
        status = NodeStatus.PASSED
    else:
        status = NodeStatus.NOT_JUDGED
    reasons = [*case.accusing.values(), *(each for key, each in case.open.items() if key not in case.accusing)]
    if not reasons and status == NodeStatus.NOT_JUDGED:
        reasons = [NodeReason(NodeCode.NO_EVIDENCE if num_rows else NodeCode.NO_ROWS_JUDGED)]
    left = len(reasons) - _MOST_REASONS
    if left > 0:
        reasons = [*reasons[:_MOST_REASONS], NodeReason(NodeCode.MORE_REASONS, {"num": left})]
    if retested:
        reasons.append(NodeReason(NodeCode.RETESTED, {"started": retested}))
    return NodeVerdict(host, status, num_rows, tuple(reasons))


def _vouches(row: Summary) -> bool:
    """Check whether the row can prove that a node is good.

    A row can prove that a node is good if data crossed a link, or if the row measured copies in the memory of one GPU.
    """
    return (row.num_ranks or 0) > 1 or row.pattern in COPIES_OF_ONE_GPU


def _own_hosts(row: Summary, where: RowHosts) -> tuple[str, ...]:
    """Return the only host of a row, or the two hosts of a pair. Return an empty tuple if the row has more hosts."""
    own = where.of(row)
    return own if len(own) == 1 or (row.src is not None and len(own) == 2) else ()


def _awaited(run: GateInput, there: Collection[str]) -> Iterator[str]:
    """Yield the hosts that were planned but took no part. Hosts are recognised by their names in bench.yaml."""
    plan = run.plan or {}
    planned = max((job["world"]["num_nodes"] for job in run.planned().values() if job.get("world")), default=0)
    named = (plan.get("cluster") or {}).get("hosts") or ()
    if not plan.get("modelled") and len(there) < planned == len(named) and (not there or set(named) & set(there)):
        yield from (str(host) for host in named if host not in there)


def _placed(
    run: GateInput, faults: Sequence[GateFault], where: RowHosts, everybody: Sequence[str]
) -> Iterator[tuple[GateFault, Sequence[str], bool]]:
    """Yield (fault, hosts, accuses) for each fault.

    `hosts`: the hosts that the fault is about. If a fault names no host, it concerns all hosts.
    `accuses`: whether these hosts fail because of the fault.
    """
    rows = {place(row): row for row in run.document.summaries}
    named = {
        job_of_attempt(fault.job)
        for fault in faults
        if fault.hosts and fault.job and fault.name == GateFailure.FAILED_JOB
    }
    for fault in faults:
        accuses = fault.accuses and fault.name in _ACCUSING
        if fault.hosts:
            yield fault, fault.hosts, accuses
        elif fault.job is None:
            if fault.name != GateFailure.SLOW_PART:  # for a slow part, the diagnosis already names its hosts
                yield fault, everybody, False
        elif fault.group is None:
            explained = fault.name in (GateFailure.FAILED_JOB, GateFailure.MISSING_ROWS)
            if not (explained and job_of_attempt(fault.job) in named):
                yield fault, where.of_job(fault.job) or everybody, False
        else:
            row = rows.get(place(fault))
            own = where.of(row) if row else where.of_group(fault.job, fault.group)
            if len(own) == 1:
                yield fault, own, accuses
            elif not own or fault.name in _CAUSED_BY_ANY:
                yield fault, own or where.of_job(fault.job) or everybody, False


def _ends(part: Accused, known: Collection[str]) -> tuple[str, ...]:
    """Return the hosts of a slow part. A NIC has one host, and a link has two hosts. A rack's uplink has no host.

    Host names may contain dashes, so a link's name is split at the dash between two known hosts.
    """
    if part.kind != "link":
        return (part.name.partition(":")[0],)
    pieces = part.name.split("-")
    for number in range(1, len(pieces)):
        ends = tuple("-".join(side).partition(":")[0] for side in (pieces[:number], pieces[number:]))
        if all(end in known for end in ends):
            return ends
    return ()


def place(row: Summary | GateFault) -> tuple[Any, ...]:
    """Return a key that identifies a row within its run."""
    return row.job, row.pattern, row.mode, row.payload_bytes, row.group
