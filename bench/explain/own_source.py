"""Recognise published results that were taken from the explained run itself.

A published result that was taken from the run itself cannot show whether the run is normal.
"""

from __future__ import annotations

from bench.explain.evidence import RunEvidence
from bench.hardware.reference import Reference, best_of_each, is_same_measurement, of_any_machine


def is_own(evidence: RunEvidence, reference: Reference) -> bool:
    """Check whether the run's rows have the figures of a published result, digit by digit."""
    rates: dict[int, list[float]] = {}
    seconds: dict[int, list[float]] = {}
    for row in evidence.rows:
        size = row.payload_bytes or 0
        if row.busbw_bytes_per_s:
            rates.setdefault(size, []).append(row.busbw_bytes_per_s)
        if row.time_s:
            seconds.setdefault(size, []).append(row.time_s)
    return is_same_measurement(reference, rates, seconds)


def own_references(evidence: RunEvidence) -> tuple[Reference, ...]:
    """Return the published results that were taken from this very run."""
    return tuple(each for each in _alike(evidence) if is_own(evidence, each))


def others_of_each_machine(evidence: RunEvidence) -> tuple[Reference, ...]:
    """Return each machine's best published result with the same number of ranks, except results taken from this run."""
    return best_of_each(each for each in _alike(evidence) if not is_own(evidence, each))


def _alike(evidence: RunEvidence) -> tuple[Reference, ...]:
    if not evidence.run.pattern or not evidence.num_ranks:
        return ()
    return of_any_machine(evidence.run.pattern, evidence.num_ranks, evidence.num_nodes)
