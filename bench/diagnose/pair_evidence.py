"""Evidence from what was measured: rows of pairs, of a stored run, of a document, or of a ladder under way."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from bench.core.errors import UsageError
from bench.diagnose.ladder import first_rounds
from bench.diagnose.localise import STAGES, Accused, Diagnosis, PairSamples, Places, localise

_GROUP = re.compile(r"(?:([a-z]+)(\d+):)?(\d+)-(\d+)")
_LOOKS = [STAGES.index(name) for name in ("screen", "node")]
_KINDS = ("--engine", "--access", "--via", "--graph", "--share-gpu")
Row = tuple[int, int, float, int, int]  # of Evidence.of


def group_name(stage: str, number: int, src: int, dst: int) -> str:
    """The name of a pair in a round of a ladder: `confirm12:0-4`."""
    return f"{stage}{number}:{src}-{dst}"


def rows_of(group: str, rate: float, symmetric: bool) -> tuple[Row, ...]:
    """What one measured pair says. `symmetric`: of both directions alike, such as half a round trip."""
    match = _GROUP.fullmatch(group)
    if match is None or (match[1] or "") not in STAGES:
        return ()
    src, dst = int(match[3]), int(match[4])
    step, stage = int(match[2] or 0), STAGES.index(match[1] or "")
    row = (src, dst, rate, step, stage)
    return (row, (dst, src, *row[2:])) if symmetric else (row,)


def places(header: Mapping[str, Any]) -> Places:
    """Where the ranks of a header were."""
    num, per_node, ranks = header["num_ranks"], header["ranks_per_node"], header["ranks"]
    hosts = (
        [rank["host"] for rank in ranks] if len(ranks) == num else [f"node{rank // per_node}" for rank in range(num)]
    )
    nics = [rank.get("nic") for rank in ranks] if len(ranks) == num else [None] * num
    if header["clock"] == "device" and not any(nics):  # each GPU with a NIC of its own
        nics = [f"gpu{rank % per_node}" for rank in range(num)]
    racks = {host: facts["rack"] for host, facts in header["nodes"].items() if facts.get("rack")}
    return Places(tuple(hosts), tuple(nics), racks)


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """The verdict on one transport and direction: what it rests on, and what it says."""

    transport: str
    direction: str | None
    schedule: str
    num_hosts: int
    num_ranks: int
    num_rounds: int | None  # None: a full schedule does not number them
    num_rows: int
    payload_bytes: int
    jobs: tuple[str, ...]
    verdict: Diagnosis


def diagnosed(
    headers: Mapping[str, Mapping[str, Any]], summaries: Iterable[Mapping[str, Any]]
) -> tuple[Diagnosed, ...]:
    """A verdict for each way in which pairs were measured; launches of one case together.

    `headers` by job and `summaries` as in the JSON document. Of several sizes the largest counts: a small message tells
    nothing of bandwidth. Raises UsageError when there is no pair that was measured and right.
    """
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in summaries:
        header = headers[row["job"]]
        if header["topology"] != "pairs" or row["src"] is None or not row["median_s"] or row["verified"] is False:
            continue
        schedule = "ladder" if "ladder" in header["case"] else "full"
        # Two schedules, directions or kinds of copy load links in ways of their own.
        kind = (schedule, *(_option(header["case"], name) for name in _KINDS))
        key = (header["transport"], header["direction"], kind, str(places(header)))
        found.setdefault(key, []).append(row)
    if not found:
        raise UsageError(
            "it holds no pairs of ranks that were measured: run `python -m bench diagnose --cluster NAME`, "
            "or `bench.pairs`"
        )
    return tuple(_diagnosed(headers, key, rows) for key, rows in found.items())


def _diagnosed(
    headers: Mapping[str, Mapping[str, Any]], key: tuple[Any, ...], rows: Sequence[Mapping[str, Any]]
) -> Diagnosed:
    transport, direction, (schedule, *_), _ = key
    jobs = tuple(dict.fromkeys(row["job"] for row in rows))
    where = places(headers[jobs[0]])
    largest = max(row["payload_bytes"] for row in rows)
    evidence = _evidence([row for row in rows if row["payload_bytes"] == largest], direction)
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


def _option(case: Sequence[str], name: str) -> str | None:
    return case[case.index(name) + 1] if name in case[:-1] else None


def _of_ladder(verdict: Diagnosis, evidence: PairSamples, where: Places) -> Diagnosis:
    """A ladder that ended before it had looked at every host clears none."""
    looked = len(np.unique(evidence.step[np.isin(evidence.stage, _LOOKS)]))
    missing = max(0, len(first_rounds(where, random.Random(1))) - looked)
    return replace(verdict, cleared=(), num_missing=missing) if missing else verdict


def _evidence(rows: Sequence[Mapping[str, Any]], direction: str | None) -> PairSamples:
    """Rows of both modes stand beside each other: half a round trip has a level of its own.

    A pair's time is the least that its median may be: what a busy CPU adds to some samples is not the link's.
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
    """One verdict of several: accused where any accuses, cleared where all that measured it clear it."""
    accused: dict[tuple[str, str], Accused] = {}
    for verdict in verdicts:
        for one in verdict.accused:
            known = accused.get((one.kind, one.name))
            if known is None or one.confidence > known.confidence:
                accused[one.kind, one.name] = one
    cleared = dict.fromkeys(name for verdict in verdicts for name in verdict.cleared)
    guilty = {one.name for one in accused.values()} | {one.name.partition(":")[0] for one in accused.values()}
    notes = dict.fromkeys(note for verdict in verdicts for note in verdict.notes)
    num_missing = sum(verdict.num_missing for verdict in verdicts)
    unsettled = tuple(suspect for verdict in verdicts for suspect in verdict.suspects)
    order = sorted(accused.values(), key=lambda one: (-one.confidence, one.name))
    named = {name for name in cleared if ":" in name}
    doubted = {host for suspect in unsettled for host in suspect.hosts}  # an end of a suspected link may be slow itself
    sound = [n for n in cleared if (n not in guilty or n in named) and n.partition(":")[0] not in doubted]
    return Diagnosis(tuple(order), () if num_missing else tuple(sound), unsettled, tuple(notes), num_missing)
