"""What must hold after any combination of faults. Each invariant returns its violations; none means that it holds."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.core.errors import EXIT_DONE, EXIT_MEASUREMENT, EXIT_REFUSED
from bench.core.record import Record
from bench.store.jsonl import Attempt
from tests.testbed.nemesis_faults import KINDS, Culprits

PAYLOAD_BYTES_PER_S = 125e6  # a port of 1 Gbit/s
BURST_BYTES = 128 << 10  # that a port passes at once
LEAST_SHARE, MOST_TIMES = 0.9, 50.0  # of the predicted time; more ranks than CPUs take longer than predicted
LARGE_BYTES = 1 << 20  # smaller messages have no useful prediction
EFFECT_S = 20.0  # after its end, a fault may still make a new job fail for this long


@dataclass(slots=True)
class Observed:
    """A run with its faults, and its continuation. `struck`: the kinds of faults that began, and who is at fault.

    `outcomes`: how each job ended. `attempts`: the results files, `resumed_attempts` after the continuation.
    `left`: what still ran when it had to be gone. `code`, `resumed_code`: None without an end. `second_measured`: a
    second controller measured at the same time. `expected_rows`: (job, payload). `faults_s`, `jobs_s`: when each kind
    of fault and each job began and ended, in seconds since the run's start; a kind or a job that is not there may have
    lasted for the whole run.
    """

    engine: str
    hosts: tuple[str, ...]
    expected_rows: frozenset[tuple[str, int]]
    samples_per_row: int
    struck: list[tuple[str, Culprits]] = field(default_factory=list)
    faults_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    jobs_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    code: int | None = EXIT_DONE
    error: str = ""
    outcomes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    attempts: Mapping[str, Sequence[Attempt]] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict)
    left: Sequence[str] = ()
    second_measured: bool = False
    resumed: bool = False
    resumed_code: int | None = None
    resumed_error: str = ""
    resumed_attempts: Mapping[str, Sequence[Attempt]] = field(default_factory=dict)
    resumed_document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kinds(self) -> set[str]:
        """The kinds of faults that began."""
        return {kind for kind, _ in self.struck}

    @property
    def final_attempts(self) -> Mapping[str, Sequence[Attempt]]:
        """The results files at the very end."""
        return self.resumed_attempts if self.resumed else self.attempts


def rows_are_right(run: Observed) -> list[str]:
    """No row is wrong, doubled, or claims more samples than it has; nothing measured before the end is lost."""
    problems = [problem for job, record in _records(run.final_attempts) for problem in _wrong(run, job, record)]
    counts = Counter(_key(job, record) for job, record in _records(run.final_attempts) if _is_there(record))
    problems += [f"{key} was measured {num} times" for key, num in counts.items() if num > 1]
    for document in (run.document, run.resumed_document):
        problems += _overstated(run, document)
    if run.second_measured:
        problems.append("two runs measured on the same hosts at the same time")
    if run.resumed and not run.kinds & {"run-removed", "torn-line"}:
        before = {_key(job, record) for job, record in _records(run.attempts) if _is_there(record)}
        problems += [f"{key} was lost by --resume" for key in sorted(before - set(counts))]
    if run.code == EXIT_DONE and not run.kinds & {"torn-line"} and (missing := missing_rows(run, run.attempts)):
        problems.append(f"exit code 0 without {missing}")
    return problems


def nothing_is_left(run: Observed) -> list[str]:
    """The run ended in time, and none of its processes outlived the lease."""
    ended = [] if run.code is not None else ["the run did not end"]
    return [*ended, *(f"still runs {process}" for process in run.left)]


def no_innocent_is_named(run: Observed) -> list[str]:
    """Each rank, host and link that an outcome names is at fault."""
    ranks = frozenset[int]().union(*(who.ranks for _, who in run.struck))
    hosts = frozenset[str]().union(*(who.hosts for _, who in run.struck))
    links = frozenset[frozenset[str]]().union(*(who.links for _, who in run.struck))
    problems = []
    for job, outcome in run.outcomes.items():
        rank, host = outcome.get("rank"), outcome.get("host")
        reported = f"{job}: {outcome.get('what')}"
        if rank is not None and rank not in ranks:
            problems.append(f"rank {rank} is innocent ({reported})")
        if host is not None and host not in hosts:
            problems.append(f"host {host} is innocent ({reported})")
        if rank is not None and host is not None and run.hosts[rank] != host:
            problems.append(f"rank {rank} is not on {host} ({reported})")
        candidates = {*outcome.get("facts", {}).get("rank_numbers", ()), *outcome.get("facts", {}).get("crashed", ())}
        if candidates and run.struck and not candidates & ranks:
            problems.append(f"no rank of {sorted(candidates)} is at fault ({reported})")
        for link in _named_links(run, outcome):
            ends = [link & who.hosts for kind, who in run.struck if KINDS[kind].culprits == "host"]
            if link not in links and not any(ends):
                problems.append(f"link {sorted(link)} is innocent ({reported})")
    return problems


def resume_makes_it_whole(run: Observed) -> list[str]:
    """After the faults, `--resume` measures all that is missing or has wrong data."""
    # Wrong data stay in the files and in the report, but the exit code is that of the newest measurements.
    wrong = "wrong-data" in run.kinds and any(
        record.verified is False or record.failed is not None for _, record in _records(run.final_attempts)
    )
    missing = missing_rows(run, run.final_attempts)
    problems = [f"rows are missing at the end: {missing}"] if missing else []
    if not run.resumed:
        return problems
    if run.resumed_code != EXIT_DONE:
        problems.append(f"--resume ended with {run.resumed_code}: {run.resumed_error}")
    elif run.resumed_document.get("failures") and not wrong:
        problems.append(f"failures remain: {run.resumed_document['failures']}")
    return problems


INVARIANTS = {
    "rows": rows_are_right,
    "left": nothing_is_left,
    "named": no_innocent_is_named,
    "resume": resume_makes_it_whole,
}


def has_culprit(run: Observed) -> bool:
    """Whether the run failed because of a fault whose culprit can be known.

    A fault that began after a job, or that ended EFFECT_S before it, is not why this job failed. A fault of a rank's
    process ends with the rank's job.
    """
    if run.code not in (EXIT_MEASUREMENT, EXIT_REFUSED) or any(KINDS[kind].fatal for kind in run.kinds):
        return False
    knowable = [
        kind for kind in run.kinds if KINDS[kind].culprits != "nobody" and run.engine not in KINDS[kind].unknown_with
    ]
    failed = [job for job, outcome in run.outcomes.items() if _failed(outcome)]
    return any(_may_have_struck(run, kind, job) for kind in knowable for job in failed)


def _may_have_struck(run: Observed, kind: str, job: str) -> bool:
    if kind not in run.faults_s or job not in run.jobs_s:
        return True
    (began_s, ended_s), (job_began_s, job_ended_s) = run.faults_s[kind], run.jobs_s[job]
    effect_s = 0.0 if KINDS[kind].culprits == "rank" else EFFECT_S
    return began_s <= job_ended_s and job_began_s <= ended_s + effect_s


def culprit_named(run: Observed) -> bool:
    """Whether some outcome names a rank, a host or a link."""
    return any(
        outcome.get("rank") is not None or outcome.get("host") is not None or any(_named_links(run, outcome))
        for outcome in run.outcomes.values()
    )


def predicted_s(payload_bytes: int, num_ranks: int) -> float:
    """The least time of an allreduce or broadcast through ports of 1 Gbit/s, without the burst that a port passes."""
    sent = payload_bytes * (2 * (num_ranks - 1) / num_ranks)
    return max(0.0, (sent / 2 - BURST_BYTES) / PAYLOAD_BYTES_PER_S)


def _failed(outcome: Mapping[str, Any]) -> bool:
    return outcome.get("what") is not None


def _named_links(run: Observed, outcome: Mapping[str, Any]) -> Iterator[frozenset[str]]:
    """Links that an outcome names: its facts have the two hosts, or lists of pairs."""
    facts = outcome.get("facts", {})
    pairs = [*facts.get("links", ()), *facts.get("pairs", ()), (facts.get("a"), facts.get("b"))]
    for pair in pairs:
        if all(end in run.hosts for end in pair):
            yield frozenset(pair)


def _records(attempts: Mapping[str, Sequence[Attempt]]) -> Iterator[tuple[str, Record]]:
    return ((job, record) for job, of_job in attempts.items() for attempt in of_job for record in attempt.records)


def _key(job: str, record: Record) -> tuple[str, str, str, int]:
    return job, record.mode, record.group, record.payload_bytes


def missing_rows(run: Observed, attempts: Mapping[str, Sequence[Attempt]]) -> list[tuple[str, int]]:
    """The expected rows that the results files lack."""
    there = {(job, record.payload_bytes) for job, record in _records(attempts) if _is_there(record)}
    return sorted(run.expected_rows - there)


def _is_there(record: Record) -> bool:
    """Whether a row was measured with right data."""
    return record.samples is not None and record.verified is not False


def _wrong(run: Observed, job: str, record: Record) -> Iterator[str]:
    """What is wrong with a row."""
    row = f"{job} {record.payload_bytes} B"
    if record.num_ranks != len(run.hosts):
        yield f"{row}: {record.num_ranks} ranks instead of {len(run.hosts)}"
    if record.samples is None:
        return
    if record.verified is not True and "wrong-data" not in run.kinds:
        yield f"{row}: verified is {record.verified}"
    num = len(record.samples.seconds)
    if num != run.samples_per_row or any(len(own) != num for own in record.samples.by_rank):
        yield f"{row}: {num} samples instead of {run.samples_per_row}"
    least_s = LEAST_SHARE * predicted_s(record.payload_bytes, len(run.hosts))
    if min(record.samples.seconds, default=0.0) <= least_s:
        yield f"{row}: {min(record.samples.seconds):.3g} s is faster than the links allow ({least_s:.3g} s)"
    median_s = statistics.median(record.samples.seconds)
    slowed = any(KINDS[kind].slows for kind in run.kinds) or any(use.is_busy for use in record.hosts)
    if record.payload_bytes >= LARGE_BYTES and not slowed and median_s > MOST_TIMES * least_s:
        yield f"{row}: {median_s:.3g} s, although no fault slowed it and the row names no busy host"


def _overstated(run: Observed, document: Mapping[str, Any]) -> Iterator[str]:
    """Rows of a document that are there twice, or with more samples than their file has."""
    right = [row for row in document.get("summaries", ()) if row.get("verified") is not False]
    rows = [(row["job"].partition("#")[0], row["payload_bytes"]) for row in right]
    for row, num in Counter(rows).items():
        if num > 1:
            yield f"{row} is {num} times in the document"
    for row in document.get("summaries", ()):
        if row["num_samples"] > run.samples_per_row:
            yield f"{row['job']} {row['payload_bytes']} B: the document says {row['num_samples']} samples"
