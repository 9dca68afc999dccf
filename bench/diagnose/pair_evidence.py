"""Collect measured pairs as evidence for a diagnosis.

The pairs come from a stored run, from a document, or from a job that is still measuring.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from bench.core.case_argv import stored_value
from bench.core.errors import UsageError
from bench.core.record import Header
from bench.diagnose.ladder import first_rounds
from bench.diagnose.localise import STAGES, Accused, Diagnosis, PairSamples, Suspect, localise
from bench.diagnose.places import Places
from bench.results.document import Summary

_GROUP = re.compile(r"(?:([a-z]+)(\d{1,9}):)?(\d{1,9})-(\d{1,9})")
_FIRST_STAGES = [STAGES.index(name) for name in ("screen", "node")]
_COPY_FACTORS = ("engine", "access", "via", "graph", "share_gpu")
Row = tuple[int, int, float, int, int]  # a row as PairSamples.of takes it


def group_name(stage: str, number: int, src: int, dst: int) -> str:
    """Return the name of a measured pair, from its stage, its round and its ranks: `confirm12:0-4`."""
    return f"{stage}{number}:{src}-{dst}"


def rows_of(group: str, rate: float, symmetric: bool) -> tuple[Row, ...]:
    """Return the rows of one measured pair, or an empty tuple if the group is not a pair.

    `symmetric`: whether the rate applies to both directions, for example because it comes from a round trip.
    """
    match = _GROUP.fullmatch(group)
    if match is None or (match[1] or "") not in STAGES:
        return ()
    src, dst = int(match[3]), int(match[4])
    step, stage = int(match[2] or 0), STAGES.index(match[1] or "")
    forward, backward = (src, dst, rate, step, stage), (dst, src, rate, step, stage)
    return (forward, backward) if symmetric else (forward,)


def places(header: Mapping[str, Any]) -> Places:
    """Return the hosts, NICs and racks of the ranks that a header lists."""
    num, per_node, ranks = header["num_ranks"], header["ranks_per_node"], header["ranks"]
    hosts = [f"node{rank // per_node}" for rank in range(num)]
    nics: list[str | None] = [None] * num
    if len(ranks) == num:
        hosts = [rank["host"] for rank in ranks]
        nics = [rank.get("nic") for rank in ranks]
    if header["clock"] == "device" and not any(nics):  # the NICs are unknown: assume one NIC for each GPU
        nics = [f"gpu{rank % per_node}" for rank in range(num)]
    racks = {host: facts["rack"] for host, facts in header["nodes"].items() if facts.get("rack")}
    return Places(tuple(hosts), tuple(nics), racks)


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """The verdict on one transport and direction, and the measurements behind this verdict."""

    transport: str
    direction: str | None
    schedule: str
    num_hosts: int
    num_ranks: int
    num_rounds: int | None  # None for a full schedule, which does not number its rounds
    num_rows: int
    payload_bytes: int
    jobs: tuple[str, ...]
    verdict: Diagnosis


def diagnosed(
    headers: Mapping[str, Mapping[str, Any]], summaries: Iterable[Mapping[str, Any]]
) -> tuple[Diagnosed, ...]:
    """Return one diagnosis for each transport, direction and kind of copy, from the rows of all launches.

    `headers`: the headers of the jobs, by job name.
    `summaries`: the rows.

    The headers and the rows have the form of the JSON document. Only rows of the largest size are used. The times of
    small messages depend on latency, not on bandwidth. Raises UsageError if there is no measured pair with correct
    data.
    """
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    # by job, so that the places of thousands of ranks are named once and not for every row
    keys: dict[str, tuple[Any, ...]] = {}
    for row in summaries:
        job = row["job"]
        header = headers[job]
        if header["topology"] != "pairs" or row["src"] is None or not row["median_s"] or row["verified"] is False:
            continue
        if job not in keys:
            keys[job] = _key(header)
        found.setdefault(keys[job], []).append(row)
    if not found:
        raise UsageError(
            "no measured pairs of ranks: run `linkbench diagnose --cluster NAME`, or `python -m bench.pairs`"
        )
    return tuple(_diagnosed(headers, key, rows) for key, rows in found.items())


def slow_parts(header: Header, rows: Sequence[Summary]) -> tuple[Accused, ...]:
    """Return the slow parts that the diagnosis finds in the pairs of one job."""
    names = ("src", "dst", "median_s", "ci_low_s", "min_s", "verified", "payload_bytes", "mode", "group")
    plain = [{"job": header.job} | {name: getattr(row, name) for name in names} for row in rows]
    try:
        (case,) = diagnosed({header.job: asdict(header)}, plain)
    except UsageError:
        return ()
    return case.verdict.accused


def _key(header: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the facts that must be the same in all jobs of one verdict.

    Jobs with different schedules, directions or kinds of copy load links differently, so they get separate verdicts.
    """
    kind = tuple(stored_value(header["case"], name) for name in ("schedule", *_COPY_FACTORS))
    return header["transport"], header["direction"], kind, str(places(header))


def _diagnosed(
    headers: Mapping[str, Mapping[str, Any]], key: tuple[Any, ...], rows: Sequence[Mapping[str, Any]]
) -> Diagnosed:
    transport, direction, (schedule, *_), _ = key
    jobs = tuple(dict.fromkeys(row["job"] for row in rows))
    where = places(headers[jobs[0]])
    largest = max(row["payload_bytes"] for row in rows)
    evidence = _evidence([row for row in rows if row["payload_bytes"] == largest], direction)
    if len(evidence) and (last := max(evidence.src.max(), evidence.dst.max())) >= len(where.hosts):
        raise UsageError(f"a row of job {jobs[0]} names rank {last}, and the run has {len(where.hosts)} ranks")
    rounds = {step for step in evidence.step.tolist() if step} if schedule == "ladder" else None
    verdict = localise(evidence, where)
    if schedule == "ladder":
        verdict = _of_ladder(verdict, evidence, where)
    return Diagnosed(
        transport,
        direction,
        schedule,
        len(set(where.hosts)),
        len(where.hosts),
        len(rounds) + 1 if rounds else None,
        len(evidence),
        largest,
        jobs,
        verdict,
    )


def _of_ladder(verdict: Diagnosis, evidence: PairSamples, where: Places) -> Diagnosis:
    """Return the verdict on the pairs of a ladder, a job that chooses its pairs while it measures.

    If the job ended before it had tested every host, the verdict calls no host healthy.
    """
    tested = len(np.unique(evidence.step[np.isin(evidence.stage, _FIRST_STAGES)]))
    missing = max(0, len(first_rounds(where, random.Random(1))) - tested)
    return replace(verdict, cleared=(), num_missing=missing) if missing else verdict


def _evidence(rows: Sequence[Mapping[str, Any]], direction: str | None) -> PairSamples:
    """Return the rows of the pipelined and the isolated mode.

    Each rate is divided by the median rate of its mode, because the two modes have different rates. The time of a pair
    is the lower end of the interval of its median. A busy CPU slows only some samples, but a slow link slows all
    samples.
    """
    taken: list[Row] = []
    for mode in ("pipelined", "isolated"):
        mine = [row for row in rows if row["mode"] == mode]
        rates = [row["payload_bytes"] / (row["ci_low_s"] or row["min_s"] or row["median_s"]) for row in mine]
        usual = median(rates) if rates else 1.0
        both = mode == "isolated" or direction == "two-way"
        for row, rate in zip(mine, rates, strict=True):
            taken += rows_of(row["group"], rate / usual, both)
    return PairSamples.of(taken)


def merged(verdicts: Sequence[Diagnosis]) -> Diagnosis:
    """Merge several diagnoses into one.

    A part is slow in the result if any of the diagnoses calls the part slow. A part is healthy in the result if at
    least one diagnosis calls it healthy, and no diagnosis calls it slow or suspect. If rounds are missing from any
    diagnosis, no part of the result is healthy.
    """
    worst: dict[tuple[str, str], Accused] = {}
    for verdict in verdicts:
        for part in verdict.accused:
            known = worst.get((part.kind, part.name))
            if known is None or part.confidence > known.confidence:
                worst[part.kind, part.name] = part
    accused = tuple(sorted(worst.values(), key=lambda part: (-part.confidence, part.name)))
    suspects = tuple(suspect for verdict in verdicts for suspect in verdict.suspects)
    notes = {(note.code, note.text): note for verdict in verdicts for note in verdict.notes}
    num_missing = sum(verdict.num_missing for verdict in verdicts)
    cleared = () if num_missing else _cleared(verdicts, accused, suspects)
    has_peers = any(verdict.has_peers for verdict in verdicts)
    return Diagnosis(accused, cleared, suspects, tuple(notes.values()), num_missing, has_peers)


def _cleared(verdicts: Sequence[Diagnosis], accused: Sequence[Accused], suspects: Sequence[Suspect]) -> tuple[str, ...]:
    """Return the names of the healthy parts.

    A part is healthy if at least one verdict calls it healthy, and no verdict calls it slow. Hosts with a suspected
    part or link are left out.
    """
    slow = {name for part in accused for name in (part.name, part.name.partition(":")[0])}
    doubtful = {host for suspect in suspects for host in suspect.hosts}
    cleared = []
    for name in dict.fromkeys(name for verdict in verdicts for name in verdict.cleared):
        host, _, nic = name.partition(":")
        if (nic or name not in slow) and host not in doubtful:
            cleared.append(name)
    return tuple(cleared)
