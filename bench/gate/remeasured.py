"""The newest measurement of each row, and what it replaced: a retest is judged in place of the first result, openly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.core.record import Header
from bench.gate.gate_input import attempt_of, host_of, hosts, start
from bench.gate.rules import GateFault
from bench.results.document import Document, Summary

_LEAST_PARTNERS = 3  # a ladder of fewer hosts can not tell a link from its ends
# Failures that another measurement may mend.
_MENDABLE = frozenset(
    (
        "failed-job",
        "truncated-file",
        "missing-rows",
        "size-skipped",
        "wrong-data",
        "unverified",
        "not-a-number",
        "zero",
        "too-few-samples",
        "no-interval",
        "not-converged",
        "above-bound",
        "contradicts",
        "tail-not-known",
        "too-low",
        "too-high",
        "slower",
        "inconclusive",
        "through-host",
    )
)


@dataclass(frozen=True, slots=True)
class Retest:
    """One retest of a run. `jobs`: name -> the suspect hosts whose pairs were measured again; none where the job's own
    ranks did. `reasons`: how the first verdict was told."""

    started: str
    jobs: Mapping[str, tuple[str, ...]]
    reasons: tuple[str, ...] = ()

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Retest:
        """As it is kept in retests.json."""
        jobs = {str(job): tuple(map(str, suspects)) for job, suspects in (stored.get("jobs") or {}).items()}
        return cls(str(stored.get("started")), jobs, tuple(map(str, stored.get("reasons") or ())))


@dataclass(frozen=True, slots=True)
class Superseded:
    """A row that is not judged, because a later attempt of its job measured it again: both medians, both rates."""

    first: Summary
    job: str  # the attempt that counts
    now: Summary | None  # None where the pairs of a suspect were measured again, with other partners


def newest(document: Document, retests: Sequence[Retest]) -> tuple[Document, tuple[Superseded, ...]]:
    """The document with the newest row of each place, and the older ones."""
    worlds = {
        job: (start(job), head.num_nodes, head.ranks_per_node, hosts(head)) for job, head in document.headers.items()
    }
    latest = {_place(worlds[row.job], row): row for row in document.summaries}
    again = _suspects(document, retests)
    kept, superseded = [], []
    for row in document.summaries:
        header = document.headers[row.job]
        now = latest[_place(worlds[row.job], row)]
        if now is not row and now.job != row.job:
            superseded.append(Superseded(row, now.job, now))
        elif job := _retested(header, row, again):
            superseded.append(Superseded(row, job, None))
        else:
            kept.append(row)
    measured = {key: attempt_of(row.job) for row in kept for key in _asked(row)}
    replaced = {id(one.first) for one in superseded}
    return replace(
        document,
        summaries=tuple(row for row in document.summaries if id(row) not in replaced),
        skipped=tuple(row for row in document.skipped if not _mended(row, measured, after=0)),
        failures=tuple(row for row in document.failures if not _mended(row, measured, attempt_of(str(row.get("job"))))),
    ), tuple(superseded)


def suspects(retests: Sequence[Retest]) -> dict[str, str]:
    """Each host whose pairs were measured again -> when, the last time."""
    return {host: retest.started for retest in retests for hosts_ in retest.jobs.values() for host in hosts_}


def _place(world: tuple[Any, ...], row: Summary) -> tuple[Any, ...]:
    """What a later attempt must share to replace a row: the same job, the same ranks, the same question."""
    return (world, row.mode, row.payload_bytes, row.group, row.src, row.dst, row.dtype, row.in_place)


def _asked(row: Summary) -> Iterable[tuple[Any, ...]]:
    for size in (row.requested_bytes, *row.also_requested_bytes):
        yield start(row.job), row.mode, row.group, size


def _mended(row: Mapping[str, Any], measured: Mapping[tuple[Any, ...], int], after: int) -> bool:
    """Was what failed or was skipped measured by an attempt after this one? `measured`: the last that did, by place."""
    place = (start(str(row.get("job"))), row.get("mode"), row.get("group"), row.get("requested_bytes"))
    return measured.get(place, 0) > after


def _suspects(document: Document, retests: Sequence[Retest]) -> dict[str, dict[str, str]]:
    """job -> suspect host -> the attempt in which its pairs were measured again."""
    found: dict[str, dict[str, str]] = {}
    measured: dict[str, set[str | None]] = {name: set() for name in document.headers}
    for row in document.summaries if retests else ():
        if row.src is not None and row.dst is not None and row.verified is not False:
            header = document.headers[row.job]
            measured[row.job] |= {host_of(header, row.src), host_of(header, row.dst)}
    for retest in retests:
        for job, suspects in retest.jobs.items():
            attempts = [name for name in document.headers if start(name) == job and attempt_of(name) > 1]
            for host in suspects:
                mine = [name for name in attempts if host in measured[name]]
                if mine:
                    found.setdefault(job, {})[host] = max(mine, key=attempt_of)
    return found


def _retested(header: Header, row: Summary, again: Mapping[str, Mapping[str, str]]) -> str | None:
    """The attempt that measured one of this pair's hosts again, if there is one after it."""
    suspects = again.get(start(row.job), {})
    if not suspects or row.src is None or row.dst is None:
        return None
    ends = {host_of(header, row.src), host_of(header, row.dst)}
    later = [job for host, job in suspects.items() if host in ends and attempt_of(job) > attempt_of(row.job)]
    return later[0] if later else None


@dataclass(frozen=True, slots=True)
class Again:
    """What to measure again. `sizes`: job -> the sizes that failed, or were not there (bytes; all of them where empty).

    `ladders`: jobs of pairs that follow suspicions, to be climbed by `suspects` and as many `partners` that did not
    fail.
    """

    sizes: Mapping[str, tuple[int, ...]]
    ladders: tuple[str, ...]
    suspects: tuple[str, ...]
    partners: tuple[str, ...]


def again(
    faults: Iterable[GateFault], failed: Sequence[str], others: Sequence[str], planned: Mapping[str, Mapping[str, Any]]
) -> Again:
    """Only what failed: the sizes of jobs that a fault names, and the pairs of hosts that failed.

    `failed`: hosts by their verdict; `others`: those to measure them with, the best first. What measuring again can not
    mend (another cluster, a model, a rule that fits nothing that was planned) is left as it is.
    """
    ladders = tuple(name for name, job in planned.items() if "ladder" in job["case"])
    sizes: dict[str, set[int]] = {}
    whole: set[str] = set()
    climb = bool(failed)
    for fault in faults:
        job = start(fault.job) if fault.job else None
        if fault.name in ("slow-part", "undecided-part") or job in ladders:
            climb = True
        elif job in planned and fault.name in _MENDABLE:
            whole |= {str(job)} if fault.payload_bytes is None else set()
            sizes.setdefault(str(job), set()).update(() if fault.payload_bytes is None else (fault.payload_bytes,))
    partners = others[: max(len(failed), _LEAST_PARTNERS)]
    return Again(
        {job: () if job in whole else tuple(sorted(found)) for job, found in sizes.items()},
        ladders if climb else (),
        tuple(failed),
        tuple(partners) if failed else (),
    )
