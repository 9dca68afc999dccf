"""A verdict on every node, with its reasons: slow parts, slow rows of its own, and what failed on it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.analysis import localise_input
from bench.analysis._gate_input import Material, Whereabouts, hosts
from bench.analysis.gate_rules import Fault
from bench.analysis.localise import Accused, Verdict
from bench.core.derived import Summary
from bench.core.errors import UsageError
from bench.core.units import format_size

PASSED, FAILED, NOT_JUDGED = "passed", "failed", "not judged"
# What says that a node is bad; other failures of its rows only mean that nothing is known of it.
_ACCUSING = frozenset((
    "slow-part", "failed-job", "wrong-data", "above-bound", "zero", "too-low", "too-high", "slower",
    "through-host",
))  # fmt: skip
_RETESTED = "retested"
_MOST_REASONS = 8


@dataclass(frozen=True, slots=True)
class Node:
    """One host. `num_rows`: judged rows in which it took part, pairs included; `reasons`: why it failed or can not be
    judged; of one that was measured again, when."""

    host: str
    status: str
    num_rows: int
    reasons: tuple[str, ...]


def diagnosed(run: Material) -> Verdict | None:
    """Who is slow by the pairs of this run; None where it holds none."""
    headers = {job: asdict(header) for job, header in run.document.headers.items()}
    pairs = [row for row in run.document.summaries if row.src is not None and not row.modelled]
    try:
        found = localise_input.diagnosed(headers, (asdict(row) for row in pairs))
    except UsageError:
        return None
    return localise_input.merged([each.verdict for each in found])


def parts(run: Material, verdict: Verdict | None, asked: bool | None) -> Iterator[Fault]:
    """What a diagnosis means for the gate: somebody is slow, or somebody is neither accused nor cleared."""
    if verdict is None:
        if asked:
            yield Fault("missing-rows", "there are no pairs to diagnose: measure the scenario `links` or `acceptance`")
        return
    for one in verdict.accused:
        yield Fault("slow-part", f"{one.kind} {one.name}: {one.evidence}", got=one.confidence)
    if verdict.suspects and not verdict.accused:
        yield Fault("undecided-part", f"{len(verdict.suspects)} suspicions were not followed to their end")
        return
    headers = run.document.headers.values()
    there = [host for header in headers if asked or header.topology == "pairs" for host in hosts(header)]
    known = {host for one in verdict.accused for host in _ends(one, there)} | set(verdict.cleared)
    open_ = [host for host in dict.fromkeys(there) if host not in known]
    if open_:
        more = f" and {len(open_) - _MOST_REASONS} more" if len(open_) > _MOST_REASONS else ""
        yield Fault("undecided-part", f"no pair of {', '.join(open_[:_MOST_REASONS])}{more} was measured")


def nodes(
    run: Material,
    verdict: Verdict | None,
    judged: Sequence[Summary],
    faults: Iterable[Fault],
    retested: Mapping[str, str],
) -> tuple[Node, ...]:
    """Every host that took part, in the order of ranks. A row of several nodes accuses none of them by itself."""
    reasons: dict[str, dict[tuple[str, str], None]] = {
        host: {} for header in run.document.headers.values() for host in hosts(header)
    }
    for host, when in retested.items():
        reasons.setdefault(host, {})[_RETESTED, f"its pairs were measured again at {when}"] = None
    where = Whereabouts(run.document.headers)
    for host, name, reason in (*_accused(verdict, tuple(reasons)), *_of_rows(run, faults, where), *_of_failures(run)):
        reasons.setdefault(host, {})[name, reason] = None
    counts = dict.fromkeys(reasons, 0)
    for row in judged:
        for host in where.of(row):
            counts[host] += 1
    cleared = frozenset(verdict.cleared if verdict else ())
    return tuple(_node(host, counts[host], host in cleared, tuple(why)) for host, why in reasons.items())


def _node(host: str, num_rows: int, cleared: bool, why: tuple[tuple[str, str], ...]) -> Node:
    if not why and not (num_rows or cleared):
        return Node(host, NOT_JUDGED, 0, ("no row in which it took part was judged",))
    names = {name for name, _ in why} - {_RETESTED}
    status = FAILED if names & _ACCUSING else NOT_JUDGED if names else PASSED
    told = tuple(f"{name}: {reason}" for name, reason in why)
    more = (f"and {len(told) - _MOST_REASONS} reasons more",) if len(told) > _MOST_REASONS else ()
    return Node(host, status, num_rows, (*told[:_MOST_REASONS], *more))


def _accused(verdict: Verdict | None, known: Collection[str]) -> Iterator[tuple[str, str, str]]:
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


def _of_rows(run: Material, faults: Iterable[Fault], where: Whereabouts) -> Iterator[tuple[str, str, str]]:
    """Faults of rows that lie inside one node."""
    rows = {_place(row): row for row in run.document.summaries}
    for fault in faults:
        row = rows.get((fault.job, fault.pattern, fault.mode, fault.payload_bytes, fault.group))
        if row is None:
            continue
        own = where.of(row)
        if len(own) == 1:
            yield own[0], fault.name, f"{row.pattern} {format_size(row.payload_bytes)} {row.mode}: {fault.what}"


def _of_failures(run: Material) -> Iterator[tuple[str, str, str]]:
    failures: Sequence[Mapping[str, Any]] = run.document.failures
    for row in failures:
        if row.get("host"):
            yield str(row["host"]), "failed-job", f"{row.get('job')}: {row.get('what')}"


def _place(row: Summary) -> tuple[Any, ...]:
    return row.job, row.pattern, row.mode, row.payload_bytes, row.group
