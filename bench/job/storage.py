"""Add the evidence of `feed` runs to a job with late input.

The evidence is the rate of the storage, and settings that make reading fast enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bench.core.codes import Coded
from bench.job.messages import CauseCode, EvidenceCode
from bench.job.model import Cause, Explained
from bench.results.training_rows import Fed


@dataclass(frozen=True, slots=True)
class FeedEvidence:
    """Rows of `feed` runs, and the demand of the job.

    `source`: the run, as the user named it.
    `demand_bytes_per_s`: the demand of the job according to the user; None if the rows state the demand.
    """

    source: str
    feeds: tuple[Fed, ...]
    demand_bytes_per_s: float | None = None

    def headroom(self, row: Fed) -> float | None:
        """Return supply / demand of a row.

        Return None if no demand is known, or if training steps ran during the measurement.
        """
        if row.step_s is not None:
            return None
        return row.bytes_per_s / self.demand_bytes_per_s if self.demand_bytes_per_s else row.headroom


def with_storage(explained: Explained, evidence: FeedEvidence | None) -> Explained:
    """Add the supply of the storage to the cause "input came late".

    Without evidence, add the command that measures the storage.
    """
    return replace(explained, causes=tuple(_with_storage(cause, evidence) for cause in explained.causes))


def _with_storage(cause: Cause, evidence: FeedEvidence | None) -> Cause:
    if cause.code != CauseCode.LATE_INPUT:
        return cause
    return replace(cause, evidence=(*cause.evidence, *storage_evidence(evidence)))


def storage_evidence(evidence: FeedEvidence | None) -> list[Coded]:
    """Return the supply with the fewest workers. If this supply is too low, also return the change from `_remedy`.

    Rows that read from the storage device are preferred to rows that read from the page cache, because training data
    are seldom in memory.
    """
    if evidence is None:
        return [Coded.of(EvidenceCode.STORAGE_UNKNOWN)]
    rows = _with_headroom(evidence)
    if not rows:
        return [Coded.of(EvidenceCode.STORAGE_WITHOUT_DEMAND, source=evidence.source)]
    least, base = min(rows, key=lambda each: each[1].num_workers)
    facts = {
        "source": evidence.source,
        "files": base.files,
        "num_workers": base.num_workers,
        "headroom": least,
        "limit": base.least or None,
    }
    found = [Coded.of(EvidenceCode.STORAGE, **facts)]
    others = [(headroom, row) for headroom, row in rows if headroom > least]
    if least < 1 and others:
        headroom, better = _remedy(others, base)
        facts = {"files": better.files, "num_workers": better.num_workers, "headroom": headroom}
        found.append(Coded.of(EvidenceCode.STORAGE_BETTER, other_files=better.files != base.files, **facts))
    return found


def _with_headroom(evidence: FeedEvidence) -> list[tuple[float, Fed]]:
    found = [(headroom, row) for row in evidence.feeds if (headroom := evidence.headroom(row)) is not None]
    cold = [each for each in found if each[1].state != "warm"]
    return cold or found


def _remedy(rows: Sequence[tuple[float, Fed]], base: Fed) -> tuple[float, Fed]:
    """Return the smallest change with enough supply. If no change has enough, return the one with the most supply.

    If several changes have enough supply, one that keeps the file format is preferred, and then one with fewer workers.
    """
    enough = [each for each in rows if each[0] >= 1]
    if not enough:
        return max(rows, key=lambda each: each[0])
    return min(enough, key=lambda each: (each[1].files != base.files, each[1].num_workers, -each[0]))


def feeds_of_host(
    feeds: Iterable[tuple[str, Sequence[str], tuple[Fed, ...]]], hosts: Iterable[str]
) -> FeedEvidence | None:
    """Return the newest run of `feed` on one of the job's hosts; None without such a run.

    `feeds`: the name, the hosts and the rows of each run, the newest first.
    """
    wanted = set(hosts)
    for source, own, rows in feeds:
        if rows and wanted & set(own):
            return FeedEvidence(source, rows)
    return None
