"""Convert evidence to efficiency curves: published rows, the user's runs and imported logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import log
from typing import Any

from bench.core.codes import Coded
from bench.core.errors import UsageError
from bench.core.links import NodeLinks
from bench.core.log_traits import log_traits
from bench.core.record import Header
from bench.core.traits import traits
from bench.hardware import curves as published_curves
from bench.hardware import reference
from bench.predict import algorithms as engine
from bench.predict.messages import PredictRemark
from bench.predict.pool import EfficiencyCurve
from bench.results.document import Summary

LAUNCH_S = 5e-6  # seconds to start a GPU operation before any transfer; the fastest published operation takes 7.7 us
# Assumed efficiencies, to find a curve's busiest link. TYPICAL_OTHER is for all other families.
TYPICAL, TYPICAL_OTHER = {"nvswitch-nvls": 0.65, "no-p2p": 0.3, "no-p2p-server": 0.4}, 0.8
FIRST_PXN = (2, 12)  # the first version of NCCL that is no old library
# Rows in which the start-up takes a larger share of the time do not show the efficiency of links.
_MOST_OVERHEAD = 0.75


@dataclass(frozen=True, slots=True)
class PublishedCurve:
    """The measured seconds of one pattern on one cluster, by payload in bytes. `old_library`: see pool.OLD_LIBRARY."""

    system: str
    basis: str
    source: str
    pattern: str
    links: NodeLinks
    num_nodes: int
    ranks_per_node: int
    seconds: Mapping[int, float]
    smallest_s: float | None = None
    verified: bool = True
    old_library: bool = False


@dataclass(frozen=True)
class EfficiencyEvidence:
    """Measured rows and their curves, measured copies, and notes on rows that were left out.

    Without rows, typical efficiencies are assumed.

    `copies`: for each measured copy, a tuple of system, instance, direction, efficiency and source. `memo`: a cache for
    lookups.
    """

    rows: tuple[PublishedCurve, ...] = ()
    curves: tuple[EfficiencyCurve, ...] = ()
    copies: tuple[tuple[str, str, str, float, str], ...] = ()
    notes: tuple[Coded, ...] = ()
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def __add__(self, other: EfficiencyEvidence) -> EfficiencyEvidence:
        """Combine the evidence of two objects."""
        return EfficiencyEvidence(
            self.rows + other.rows, self.curves + other.curves, self.copies + other.copies, self.notes + other.notes
        )

    def without(self, system: str, source: str) -> EfficiencyEvidence:
        """Return the evidence, except all rows of one system and all rows of one source."""
        return EfficiencyEvidence(
            tuple(each for each in self.rows if each.system != system and each.source != source),
            tuple(each for each in self.curves if each.system != system and each.source != source),
            tuple(each for each in self.copies if each[0] != system),
            self.notes,
        )


def evidence_of(rows: Iterable[PublishedCurve], notes: Sequence[Coded] = ()) -> EfficiencyEvidence:
    """Convert rows to evidence, which consists of the rows and their curves.

    A row with unknown links is left out, and a note reports this omission.
    """
    kept, found, left_out = [], [], list(notes)
    for each in rows:
        try:
            found += _curves(each)
            kept.append(each)
        except UsageError as error:
            note = Coded.of(PredictRemark.EVIDENCE_UNUSABLE, source=each.source, pattern=each.pattern, error=str(error))
            if note not in left_out:
                left_out.append(note)
    return EfficiencyEvidence(tuple(kept), tuple(found), (), tuple(left_out))


@cache
def published() -> EfficiencyEvidence:
    """Return the evidence of hardware/reference.yaml and curves.yaml, without results that have a known defect."""
    rows = []
    for each in published_curves.published():
        row = each.told
        if row.pattern not in engine.LIBRARY:
            continue
        seconds = {size: engine.seconds_of(row.pattern, size, row.num_ranks, rate) for size, rate in row.busbw.items()}
        seconds |= row.small_s
        rows.append(
            PublishedCurve(
                each.system,
                "published",
                row.source,
                row.pattern,
                each.links,
                row.num_nodes,
                each.ranks_per_node,
                seconds,
                min(row.small_s.values(), default=None),
                each.verified,
                () < each.library < FIRST_PXN,
            )
        )
    found = evidence_of(rows)
    return EfficiencyEvidence(found.rows, found.curves, tuple(_published_copies()), found.notes)


def of_run(headers: Mapping[str, Header], summaries: Iterable[Summary], name: str) -> EfficiencyEvidence:
    """Return the rows of a run or an imported log that can serve as evidence.

    Such rows include all ranks, have correct data, and are from GPUs with known links.

    `name`: the run's name in reports. Modelled rows are left out.
    """
    grouped: dict[tuple[str, str], dict[int, float]] = {}
    left_out: list[Coded] = []
    for row in summaries:
        header = headers[row.job]
        seconds = row.median_s if row.median_s is not None else row.mean_s
        if seconds is None or not row.payload_bytes or row.num_ranks != header.num_ranks:
            continue
        note = _unusable(header, row)
        if note is not None:
            if note not in left_out:
                left_out.append(note)
            continue
        sizes = grouped.setdefault((row.job, row.mode), {})
        sizes[row.payload_bytes] = min(seconds, sizes.get(row.payload_bytes, seconds))
    rows = []
    for (job, _), sizes in grouped.items():
        header = headers[job]
        assert header.num_nodes is not None and header.num_ranks is not None
        links = NodeLinks.from_dict(header.links)
        basis = "imported" if header.imported else "measured"
        source = f"{name}, {job} ({header.started[:10] or 'undated'})"
        per_node = header.ranks_per_node or header.num_ranks // header.num_nodes
        rows.append(
            PublishedCurve(
                links.instance or name,
                basis,
                source,
                header.pattern,
                links,
                header.num_nodes,
                per_node,
                sizes,
                sizes[min(sizes)],
            )
        )
    return evidence_of(rows, left_out)


def _unusable(header: Header, row: Summary) -> Coded | None:
    """Return why a row cannot serve as evidence, or None if the row can serve as evidence."""
    if row.modelled or header.modelled:
        return Coded.of(PredictRemark.EVIDENCE_MODELLED, job=row.job)
    if not (log_traits(row.transport).gpu_collectives or traits(row.transport).calibrates):
        return Coded.of(PredictRemark.EVIDENCE_NOT_GPU, job=row.job, transport=row.transport)
    if row.pattern not in engine.LIBRARY:
        return Coded.of(PredictRemark.EVIDENCE_PATTERN, job=row.job, pattern=row.pattern)
    if row.verified is False:
        return Coded.of(PredictRemark.EVIDENCE_WRONG_DATA, job=row.job)
    if not header.links:
        return Coded.of(PredictRemark.EVIDENCE_WITHOUT_LINKS, job=row.job)
    if header.num_nodes is None or header.num_ranks is None:
        return Coded.of(PredictRemark.EVIDENCE_WITHOUT_WORLD, job=row.job)
    if header.num_ranks % header.num_nodes:
        return Coded.of(PredictRemark.EVIDENCE_UNEVEN_NODES, job=row.job)
    return None


def _curves(rows: PublishedCurve) -> list[EfficiencyCurve]:
    """Return efficiency curves, one for each family of links.

    Each size gives a point on the curve of the family that contains its busiest link.
    """
    task = engine.task(rows.pattern, rows.links, rows.num_nodes, rows.ranks_per_node)
    if not task.algorithms:
        return []
    smallest = rows.smallest_s if rows.smallest_s is not None else LAUNCH_S + 5 * task.floor_s
    points: dict[str, list[tuple[float, float]]] = {}
    for size, seconds in sorted(rows.seconds.items()):
        if seconds <= 0 or smallest > _MOST_OVERHEAD * seconds:
            continue
        family, busy_s = _busiest(task, size)
        if busy_s > 0:
            efficiency = min(1.0, busy_s / (seconds - min(smallest, seconds / 2)))
            points.setdefault(family, []).append((log(busy_s), log(efficiency)))
    overhead = None
    if rows.smallest_s is not None and task.floor_s:
        overhead = max(rows.smallest_s - LAUNCH_S, 0.2 * LAUNCH_S) / task.floor_s
    return [
        EfficiencyCurve(
            rows.system,
            engine.machine(rows.links, family),
            rows.basis,
            rows.source,
            family,
            *engine.generation(rows.links, family),
            engine.load_style(rows.pattern),
            rows.num_nodes * rows.ranks_per_node,
            rows.num_nodes,
            tuple(own),
            overhead,
            rows.verified,
            rows.old_library,
        )
        for family, own in points.items()
    ]


def _busiest(task: engine.Task, payload_bytes: float) -> tuple[str, float]:
    """Return the family of the busiest link, and the seconds for which this link is busy.

    The algorithm is the fastest one at typical efficiencies.
    """
    best: tuple[float, str, float] | None = None
    for algorithm in task.algorithms:
        needs = algorithm.by_family
        links = ((slope / TYPICAL.get(family, TYPICAL_OTHER), family, slope) for (_, family), slope in needs.items())
        typical, family, slope = max(links, default=(0.0, "", 0.0))
        if best is None or typical < best[0]:
            best = typical, family, slope * payload_bytes
    return (best[1], best[2]) if best else ("", 0.0)


def _published_copies() -> Iterable[tuple[str, str, str, float, str]]:
    for each in reference.copies():
        if each.pcie is None:
            continue
        raw = _raw_rate(each)
        for direction in ("h2d", "d2h"):
            if direction in each.rates:
                least, most = each.rates[direction]
                yield (
                    each.instance or each.where,
                    each.instance or "",
                    direction,
                    (least + most) / 2 / raw,
                    f"nvbandwidth on {each.where}: {each.source}",
                )


def _raw_rate(copies: reference.CopyReference) -> float:
    """Return the PCIe rate of the instance type, because a host's link may be slower than the GPU's link.

    If the PCIe rate of the instance type is unknown, return the rate of the GPU's link.
    """
    from bench.hardware import catalogue

    if copies.instance is not None:
        rate = catalogue.instance(copies.instance).links.pcie_bytes_per_s
        if rate is not None:
            return rate
    assert copies.pcie is not None
    return catalogue.pcie_bytes_per_s(*copies.pcie)
