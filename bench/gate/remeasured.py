"""Handle retests. The gate judges the newest measurement of each row, and its page also shows the first result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.core.case_argv import stored_value
from bench.core.record import Header
from bench.gate.gate_input import attempt_number, host_of, hosts, job_of_attempt
from bench.gate.messages import GateFailure
from bench.gate.rules import GateFault
from bench.results.document import Document, Summary

_LEAST_PARTNERS = 3  # with fewer hosts, a ladder cannot distinguish a slow link from slow hosts at its ends
# Failures that may disappear when the row is measured again.
_REPAIRABLE = frozenset(
    (
        GateFailure.FAILED_JOB,
        GateFailure.TRUNCATED_FILE,
        GateFailure.MISSING_ROWS,
        GateFailure.SIZE_SKIPPED,
        GateFailure.WRONG_DATA,
        GateFailure.UNVERIFIED,
        GateFailure.NOT_A_NUMBER,
        GateFailure.ZERO,
        GateFailure.TOO_FEW_SAMPLES,
        GateFailure.NO_INTERVAL,
        GateFailure.NOT_CONVERGED,
        GateFailure.ABOVE_BOUND,
        GateFailure.CONTRADICTS,
        GateFailure.TAIL_NOT_KNOWN,
        GateFailure.TOO_LOW,
        GateFailure.TOO_HIGH,
        GateFailure.SLOWER,
        GateFailure.INCONCLUSIVE,
        GateFailure.THROUGH_HOST,
        GateFailure.SHARED_HOST,
    )
)


@dataclass(frozen=True, slots=True)
class Retest:
    """One retest of a run.

    `jobs`: for each job, the suspected hosts whose pairs were measured again. If the job measured all its ranks again,
    its value is an empty tuple.
    `reasons`: the verdict before the retest, as text.
    `failures`: how many faults had each failure name before the retest.
    """

    started: str
    jobs: Mapping[str, tuple[str, ...]]
    reasons: tuple[str, ...] = ()
    failures: Mapping[str, int] | None = None  # None in files of older versions, which have only the texts

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Retest:
        """Build a retest from an entry of retests.json."""
        jobs = {str(job): tuple(map(str, suspects)) for job, suspects in (stored.get("jobs") or {}).items()}
        reasons = tuple(map(str, stored.get("reasons") or ()))
        return cls(str(stored.get("started")), jobs, reasons, stored.get("failures"))


@dataclass(frozen=True, slots=True)
class Superseded:
    """A row that is no longer judged, because a later attempt of its job measured it again."""

    first: Summary
    job: str  # the name of the attempt that is judged instead
    now: Summary | None  # None if the pairs of a suspect were measured again with other partners


@dataclass(frozen=True, slots=True)
class RetestPlan:
    """What a retest measures again.

    `sizes`: for each job, the message sizes to measure again, in bytes. An empty tuple means all sizes of the job.
    `ladders`: the jobs that choose their next pairs from the results so far.
    `suspects`: the hosts that failed. The jobs in `ladders` measure the pairs of these suspects again.
    `partners`: hosts that did not fail. The jobs in `ladders` measure the suspects together with these hosts.
    `failures`: for each failure name, the number of faults with this name.
    """

    sizes: Mapping[str, tuple[int, ...]]
    ladders: tuple[str, ...]
    suspects: tuple[str, ...]
    partners: tuple[str, ...]
    failures: Mapping[str, int] | None = None


def newest(document: Document, retests: Sequence[Retest]) -> tuple[Document, tuple[Superseded, ...]]:
    """Return the document with only the newest measurement of each row. Also return the rows that were replaced."""
    worlds = {}
    for job, header in document.headers.items():
        worlds[job] = (job_of_attempt(job), header.num_nodes, header.ranks_per_node, hosts(header))
    latest = {_place(worlds[row.job], row): row for row in document.summaries}
    again = _retested_suspects(document, retests)
    kept, superseded = [], []
    for row in document.summaries:
        now = latest[_place(worlds[row.job], row)]
        later = _later_attempt(document.headers[row.job], row, again)
        if now is not row and now.job != row.job:
            superseded.append(Superseded(row, now.job, now))
        elif later is not None:
            superseded.append(Superseded(row, later, None))
        else:
            kept.append(row)
    measured = {key: attempt_number(row.job) for row in kept for key in _requested(row)}
    skipped = [row for row in document.skipped if not _repaired(row, measured, after=0)]
    failures = [
        row for row in document.failures if not _repaired(row, measured, after=attempt_number(str(row.get("job"))))
    ]
    document = replace(document, summaries=tuple(kept), skipped=tuple(skipped), failures=tuple(failures))
    return document, tuple(superseded)


def suspects(retests: Sequence[Retest]) -> dict[str, str]:
    """For each host whose pairs were measured again, return the start of the last retest of these pairs."""
    return {host: retest.started for retest in retests for of_job in retest.jobs.values() for host in of_job}


def _place(world: tuple[Any, ...], row: Summary) -> tuple[Any, ...]:
    """Return a key that identifies what a row measured: the job, the ranks and the measured quantity.

    If two rows have the same key, the later row replaces the earlier row.
    """
    return (world, row.mode, row.payload_bytes, row.group, row.src, row.dst, row.dtype, row.in_place)


def _requested(row: Summary) -> Iterator[tuple[Any, ...]]:
    for size in (row.requested_bytes, *row.also_requested_bytes):
        yield job_of_attempt(row.job), row.mode, row.group, size


def _repaired(row: Mapping[str, Any], measured: Mapping[tuple[Any, ...], int], after: int) -> bool:
    """Check whether a later attempt measured a row that failed or was skipped.

    An attempt is later if its number is above `after`.

    `measured`: for each row (job, mode, group, size), the number of the last attempt that measured the row.
    """
    place = (job_of_attempt(str(row.get("job"))), row.get("mode"), row.get("group"), row.get("requested_bytes"))
    return measured.get(place, 0) > after


def _retested_suspects(document: Document, retests: Sequence[Retest]) -> dict[str, dict[str, str]]:
    """For each job and each suspected host, return the last attempt that measured the pairs of the host again."""
    if not retests:
        return {}
    measured: dict[str, set[str | None]] = {name: set() for name in document.headers}
    for row in document.summaries:
        if row.src is not None and row.dst is not None and row.verified is not False:
            header = document.headers[row.job]
            measured[row.job] |= {host_of(header, row.src), host_of(header, row.dst)}
    found: dict[str, dict[str, str]] = {}
    for retest in retests:
        for job, of_job in retest.jobs.items():
            attempts = [name for name in document.headers if job_of_attempt(name) == job and attempt_number(name) > 1]
            for host in of_job:
                of_host = [name for name in attempts if host in measured[name]]
                if of_host:
                    found.setdefault(job, {})[host] = max(of_host, key=attempt_number)
    return found


def _later_attempt(header: Header, row: Summary, again: Mapping[str, Mapping[str, str]]) -> str | None:
    """Return the later attempt that measured a host of this pair again, or None if no attempt did."""
    attempts = again.get(job_of_attempt(row.job), {})
    if not attempts or row.src is None or row.dst is None:
        return None
    ends = {host_of(header, row.src), host_of(header, row.dst)}
    for host, attempt in attempts.items():
        if host in ends and attempt_number(attempt) > attempt_number(row.job):
            return attempt
    return None


def plan_of_retest(
    faults: Iterable[GateFault], failed: Sequence[str], others: Sequence[str], planned: Mapping[str, Mapping[str, Any]]
) -> RetestPlan:
    """Plan a retest of the failed parts only: the sizes that faults name, and the pairs of hosts that failed.

    `failed`: the hosts that failed.
    `others`: hosts that can be measured together with the failed hosts. Hosts at the beginning of `others` are used
    first.

    The plan ignores faults that no measurement can repair. For example, no measurement repairs a modelled run, or a run
    from another cluster.
    """
    ladders = tuple(name for name, job in planned.items() if stored_value(job["case"], "schedule") == "ladder")
    sizes: dict[str, set[int]] = {}
    whole: set[str] = set()
    climb = bool(failed)
    for fault in faults:
        job = job_of_attempt(fault.job) if fault.job else ""
        if fault.name in (GateFailure.SLOW_PART, GateFailure.UNDECIDED_PART) or job in ladders:
            climb = True
        elif job in planned and fault.name in _REPAIRABLE:
            of_job = sizes.setdefault(job, set())
            if fault.payload_bytes is None:
                whole.add(job)
            else:
                of_job.add(fault.payload_bytes)
    return RetestPlan(
        sizes={job: () if job in whole else tuple(sorted(found)) for job, found in sizes.items()},
        ladders=ladders if climb else (),
        suspects=tuple(failed),
        partners=tuple(others[: max(len(failed), _LEAST_PARTNERS)]) if failed else (),
    )
