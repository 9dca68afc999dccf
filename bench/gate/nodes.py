"""A verdict on each node, with its reasons. It fails closed: a node has passed where something that was measured of it
alone was good, or its pairs cleared it, and nothing that went wrong may be its fault."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.core.errors import UsageError
from bench.core.units import format_size
from bench.diagnose import pair_evidence
from bench.diagnose.localise import Accused, Diagnosis
from bench.gate.gate_input import GateInput, Whereabouts, hosts, is_imported, start
from bench.gate.rules import GateFault, Rules
from bench.hardware.bounds import COPIES_OF_ONE_GPU, shares_gpu
from bench.results.document import Summary

PASSED, FAILED, NOT_JUDGED = "passed", "failed", "not judged"
# What says that a node is bad; other failures of its rows only mean that nothing is known of it.
_ACCUSING = frozenset(
    (
        "slow-part",
        "failed-job",
        "wrong-data",
        "above-bound",
        "zero",
        "too-low",
        "too-high",
        "slower",
        "through-host",
        "wrong-world",
    )
)
# What any of the hosts of a row of several may have caused, and that pairs are not asked about: it clears none of them.
_OF_ANY = frozenset(("failed-job", "wrong-data", "above-bound", "inconsistent"))
_LEAST_PEERS = 3  # hosts: of two that are equally slow neither is slow beside the other
_MOST_REASONS = 8


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """One host. `num_rows`: judged rows in which it took part, pairs included; `reasons`: why it failed or can not be
    judged; of one that was measured again, when."""

    host: str
    status: str
    num_rows: int
    reasons: tuple[str, ...]


def diagnosed(run: GateInput) -> Diagnosis | None:
    """Who is slow by the pairs of this run; None where it holds none."""
    headers = {job: asdict(header) for job, header in run.document.headers.items()}
    try:
        found = pair_evidence.diagnosed(headers, (asdict(row) for row in _pairs(run)))
    except UsageError:
        return None
    return pair_evidence.merged([each.verdict for each in found])


def cleared(run: GateInput, verdict: Diagnosis | None, rules: Rules) -> frozenset[str]:
    """The hosts that pairs clear: by pairs that are evidence, beside others enough to be compared with."""
    unverified = any("unverified" in rule.allow for rule in rules.rules)
    where, met = Whereabouts(run.document.headers), dict[str, set[str]]()
    for row in _pairs(run):
        if is_imported(row) or shares_gpu(run.document.headers[row.job], row.flags):
            continue
        if row.verified or (row.verified is None and unverified):
            met.setdefault(row.job, set()).update(where.of(row))
    return frozenset(verdict.cleared if verdict else ()) & {
        host for there in met.values() if len(there) >= _LEAST_PEERS for host in there
    }


def parts(run: GateInput, verdict: Diagnosis | None, asked: bool | None) -> Iterator[GateFault]:
    """What a diagnosis means for the gate: somebody is slow, or somebody is neither accused nor cleared."""
    if verdict is None:
        if asked:
            num = sum(row.src is not None and row.modelled for row in run.document.summaries)
            there = (
                f"the {num} rows of pairs are modelled, none was measured" if num else "there are no pairs to diagnose"
            )
            yield GateFault("missing-rows", f"{there}: measure the scenario `links` or `acceptance`")
        return
    for one in verdict.accused:
        yield GateFault("slow-part", f"{one.kind} {one.name}: {one.evidence}", got=one.confidence)
    headers = run.document.headers.values()
    there_ = [host for header in headers if asked or header.topology == "pairs" for host in hosts(header)]
    known = {host for one in verdict.accused for host in _ends(one, there_)} | set(verdict.cleared)
    open_ = tuple(host for host in dict.fromkeys(there_) if host not in known)
    if open_ or (verdict.suspects and not verdict.accused):
        yield GateFault("undecided-part", _undecided(run, verdict, open_), hosts=open_)


def _undecided(run: GateInput, verdict: Diagnosis, open_: Sequence[str]) -> str:
    """Why these hosts are neither accused nor cleared."""
    if verdict.num_missing:
        rounds = f"{verdict.num_missing} round{'' if verdict.num_missing == 1 else 's'}"
        return (
            f"the ladder of pairs ended {rounds} before it had looked at every host: nothing is known of {_some(open_)}"
        )
    if verdict.suspects:
        names = _some(list(dict.fromkeys(f"{each.kind} {each.name}".strip() for each in verdict.suspects)))
        return f"{len(verdict.suspects)} suspicions were not followed to their end ({names})"
    where = Whereabouts(run.document.headers)
    measured = {host for row in _pairs(run) for host in where.of(row)}
    unseen = [host for host in open_ if host not in measured]
    return f"no pair of {_some(unseen)} was measured" if unseen else f"its pairs do not clear {_some(open_)}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_REASONS} more" if len(names) > _MOST_REASONS else ""
    return f"{', '.join(names[:_MOST_REASONS])}{more}"


def nodes(
    run: GateInput,
    verdict: Diagnosis | None,
    judged: Sequence[Summary],
    good: tuple[Iterable[Summary], Collection[str]],
    faults: Iterable[GateFault],
    retested: Mapping[str, str],
) -> tuple[NodeVerdict, ...]:
    """Every host that took part, in the order of ranks, then those that should have.

    `judged`: rows that a rule or the pairs' verdict is about. `good`: the rows that met a demand, and the hosts that
    pairs clear. A row of several nodes accuses none of them by itself, nor vouches for any, but a pair for its ends.
    """
    where = Whereabouts(run.document.headers)
    took_part = dict.fromkeys(host for header in run.document.headers.values() for host in hosts(header))
    told: dict[str, dict[tuple[str, bool], None]] = {host: {} for host in (*took_part, *_awaited(run, took_part))}
    every = list(faults)
    for host, name, reason in _accused(verdict, tuple(took_part)):
        told.setdefault(host, {})[f"{name}: {reason}", True] = None
    open_: dict[tuple[str, tuple[str, ...]], list[GateFault]] = {}
    for fault, concerned, accuses in _placed(run, every, where, tuple(took_part)):
        if fault.hosts or len(concerned) == 1:
            for host in concerned:
                absent = fault.name == "wrong-world" and host not in took_part  # it was expected, no more
                told.setdefault(host, {})[_reason(fault), accuses and not absent] = None
        else:
            open_.setdefault((fault.name, tuple(concerned)), []).append(fault)
    for (name, concerned), alike in open_.items():
        reason = _reason(alike[0]) if len(alike) == 1 else f"{name}: {len(alike)} times, and no node is named"
        for host in concerned:
            told.setdefault(host, {})[reason, False] = None
    vouched = {host for row in good[0] if _vouches(row) for host in _alone(row, where)} | set(good[1])
    counts = dict.fromkeys((*told, *retested), 0)
    for row in judged:
        for host in where.of(row):
            counts[host] += 1
    return tuple(_node(host, counts[host], host in vouched, told.get(host, {}), retested.get(host)) for host in counts)


def _node(
    host: str, num_rows: int, vouched: bool, why: Mapping[tuple[str, bool], None], again: str | None
) -> NodeVerdict:
    status = FAILED if any(accuses for _, accuses in why) else PASSED if vouched and not why else NOT_JUDGED
    told = list(dict.fromkeys(reason for reason, accuses in sorted(why, key=lambda one: not one[1])))
    if not told and status == NOT_JUDGED:
        told = [
            "no row of its own met a demand, and no pairs cleared it"
            if num_rows
            else "no row in which it took part was judged"
        ]
    left = len(told) - _MOST_REASONS
    more = (f"and {left} reason{'' if left == 1 else 's'} more",) if left > 0 else ()
    again_ = (f"retested: its pairs were measured again at {again}",) if again else ()
    return NodeVerdict(host, status, num_rows, (*told[:_MOST_REASONS], *more, *again_))


def _vouches(row: Summary) -> bool:
    """Did anything cross a link? A copy of one GPU alone is what its pattern is about."""
    return (row.num_ranks or 0) > 1 or row.pattern in COPIES_OF_ONE_GPU


def _alone(row: Summary, where: Whereabouts) -> tuple[str, ...]:
    """The host that a row lies in, or the two ends of a pair; of a larger group nobody."""
    own = where.of(row)
    return own if len(own) == 1 or (row.src is not None and len(own) == 2) else ()


def _awaited(run: GateInput, there: Collection[str]) -> Iterator[str]:
    """Hosts that a job was planned for and that took no part, where hosts go by their names in bench.yaml."""
    plan = run.plan or {}
    planned = max((job["world"]["num_nodes"] for _, job in run.planned() if job.get("world")), default=0)
    named = (plan.get("cluster") or {}).get("hosts") or ()
    if not plan.get("modelled") and len(there) < planned == len(named) and (not there or set(named) & set(there)):
        yield from (str(host) for host in named if host not in there)


def _placed(
    run: GateInput, faults: Sequence[GateFault], where: Whereabouts, everybody: Sequence[str]
) -> Iterator[tuple[GateFault, Sequence[str], bool]]:
    """Each fault with the hosts that it is about, and whether it accuses them; what names nobody is about all."""
    rows = {place(row): row for row in run.document.summaries}
    named = {start(each.job) for each in faults if each.hosts and each.job and each.name == "failed-job"}
    for fault in faults:
        accuses = fault.accuses and fault.name in _ACCUSING
        if fault.hosts:
            yield fault, fault.hosts, accuses
        elif fault.job is None:
            if fault.name != "slow-part":  # whose ends are told with it
                yield fault, everybody, False
        elif fault.group is None:
            if not (start(fault.job) in named and fault.name in ("failed-job", "missing-rows")):
                yield fault, where.of_job(fault.job) or everybody, False
        else:
            row = rows.get(place(fault))
            own = where.of(row) if row else where.of_group(fault.job, fault.group)
            if len(own) == 1:
                yield fault, own, accuses
            elif not own or fault.name in _OF_ANY:
                yield fault, own or where.of_job(fault.job) or everybody, False


def _reason(fault: GateFault) -> str:
    words = [fault.job or ""] if fault.group is None else [fault.pattern or ""]
    words += [format_size(fault.payload_bytes)] if fault.payload_bytes else []
    words += [fault.mode or ""]
    where = " ".join(filter(None, words))
    return f"{fault.name}: {where}{': ' if where else ''}{fault.what}"


def _accused(verdict: Diagnosis | None, known: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """A NIC belongs to its host; of a link nobody knows which end it is."""
    for one in verdict.accused if verdict else ():
        for host in known:
            if host in _ends(one, known):
                yield host, "slow-part", f"{one.kind} {one.name}: {one.evidence}"


def _ends(one: Accused, known: Collection[str]) -> tuple[str, ...]:
    """The hosts that an accused part belongs to. Names may hold dashes: a link is cut where both ends are known."""
    if one.kind != "link":
        return (one.name.partition(":")[0],)
    parts = one.name.split("-")
    for number in range(1, len(parts)):
        ends = ["-".join(some).partition(":")[0] for some in (parts[:number], parts[number:])]
        if all(end in known for end in ends):
            return tuple(ends)
    return ()  # the uplink of a rack is no host's


def _pairs(run: GateInput) -> list[Summary]:
    return [row for row in run.document.summaries if row.src is not None and not row.modelled]


def place(row: Summary | GateFault) -> tuple[Any, ...]:
    """What tells a row from the others of its run."""
    return row.job, row.pattern, row.mode, row.payload_bytes, row.group
