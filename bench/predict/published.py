"""What is known, as curves of efficiency: published rows, the user's own runs and imported logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import log
from typing import Any

from bench.core.errors import UsageError
from bench.core.links import NodeLinks
from bench.core.log_traits import log_traits
from bench.core.record import Header
from bench.core.traits import traits
from bench.hardware import curves as published_curves
from bench.hardware import reference
from bench.predict import algorithms as engine
from bench.predict.pool import EfficiencyCurve
from bench.results.document import Summary

LAUNCH_S = 5e-6  # what starting one operation takes on a GPU before a byte moves; the fastest published is 7.7 us
TYPICAL = {"nvswitch-nvls": 0.65, "no-p2p": 0.3}  # efficiencies by which a curve's busiest link is told; others:
TYPICAL_OTHER = 0.8
# With so few different links in play, no more than this part of an operation may be start-up where bytes are judged.
_MOST_OVERHEAD = 0.75


@dataclass(frozen=True, slots=True)
class PublishedCurve:
    """Measured seconds by payload of one pattern on one cluster."""

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


@dataclass(frozen=True)
class EfficiencyEvidence:
    """All that is known. An empty one leaves bounds and typical efficiencies. `rows` are kept beside their curves."""

    rows: tuple[PublishedCurve, ...] = ()
    curves: tuple[EfficiencyCurve, ...] = ()
    copies: tuple[tuple[str, str, str, float, str], ...] = ()  # system, instance, direction, efficiency, source
    notes: tuple[str, ...] = ()
    memo: dict[Any, Any] = field(
        default_factory=dict, compare=False, repr=False
    )  # what was looked up, to find it again

    def __add__(self, other: EfficiencyEvidence) -> EfficiencyEvidence:
        """Both."""
        return EfficiencyEvidence(
            self.rows + other.rows, self.curves + other.curves, self.copies + other.copies, self.notes + other.notes
        )

    def without(self, system: str) -> EfficiencyEvidence:
        """All but one system's own rows."""
        return EfficiencyEvidence(
            tuple(each for each in self.rows if each.system != system),
            tuple(each for each in self.curves if each.system != system),
            tuple(each for each in self.copies if each[0] != system),
            self.notes,
        )


def evidence_of(rows: Iterable[PublishedCurve], notes: tuple[str, ...] = ()) -> EfficiencyEvidence:
    """Rows and their curves; rows whose links are not known well enough are left out with a note."""
    kept, found, left_out = [], [], []
    for each in rows:
        try:
            found += _curves(each)
            kept.append(each)
        except UsageError as error:
            left_out.append(f"{each.source}, {each.pattern}: not used as evidence: {error}")
    return EfficiencyEvidence(tuple(kept), tuple(found), (), notes + tuple(dict.fromkeys(left_out)))


@cache
def published() -> EfficiencyEvidence:
    """What hardware/reference.yaml and curves.yaml tell; results with a known defect are left out."""
    rows = []
    for each in published_curves.published():
        told = each.told
        if told.pattern not in engine.LIBRARY:
            continue
        seconds = {
            size: engine.seconds_of(told.pattern, size, told.num_ranks, rate) for size, rate in told.busbw.items()
        }
        seconds |= told.small_s
        rows.append(
            PublishedCurve(
                each.system,
                "published",
                told.source,
                told.pattern,
                each.links,
                told.num_nodes,
                each.ranks_per_node,
                seconds,
                min(told.small_s.values(), default=None),
                each.verified,
            )
        )
    found = evidence_of(rows)
    return EfficiencyEvidence(found.rows, found.curves, tuple(_published_copies()), found.notes)


def of_run(headers: Mapping[str, Header], summaries: Iterable[Summary], name: str) -> EfficiencyEvidence:
    """What a run of this suite, or an imported log, measured on GPUs: rows with right data on links that are known.

    `name`: the run's, as it is called in a report. Modelled rows are no evidence, nor are rows of a part of the ranks.
    """
    grouped: dict[tuple[str, str], dict[int, float]] = {}
    left_out: dict[str, None] = {}
    for row in summaries:
        header = headers[row.job]
        seconds = row.median_s if row.median_s is not None else row.mean_s
        if seconds is None or not row.payload_bytes or row.num_ranks != header.num_ranks:
            continue
        if (reason := _no_evidence(header, row)) is not None:
            left_out[f"{row.job}: {reason}"] = None
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
    return evidence_of(rows, tuple(left_out))


def _no_evidence(header: Header, row: Summary) -> str | None:
    """Why a row says nothing of GPUs and their links; None when it does."""
    if row.modelled or header.modelled:
        return "modelled, not measured"
    if not (log_traits(row.transport).gpu_collectives or traits(row.transport).calibrates):
        return f"rows of {row.transport} are not of GPUs' links, or it is not known whether they are"
    if row.pattern not in engine.LIBRARY:
        return f"no prediction is made of {row.pattern}"
    if row.verified is False:
        return "its data were wrong"
    if not header.links:
        return "its links are not known: name its instance type (--instance, --cluster)"
    if header.num_nodes is None or header.num_ranks is None:
        return "it is not known on how many nodes and ranks it ran: say so (--num-nodes, --num-ranks)"
    if header.num_ranks % header.num_nodes:
        return "its nodes have different numbers of ranks"
    return None


def _curves(rows: PublishedCurve) -> list[EfficiencyCurve]:
    """The efficiencies of the link that the algorithm of each size is busiest with, by family."""
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
            moving = min(1.0, busy_s / (seconds - min(smallest, seconds / 2)))
            points.setdefault(family, []).append((log(busy_s), log(moving)))
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
            engine.style(rows.pattern),
            rows.num_nodes * rows.ranks_per_node,
            rows.num_nodes,
            tuple(own),
            overhead,
            rows.verified,
        )
        for family, own in points.items()
    ]


def _busiest(task: engine.Task, payload_bytes: float) -> tuple[str, float]:
    """(family, seconds) of the link that limits the algorithm which typical efficiencies make the fastest."""
    best: tuple[float, str, float] | None = None
    for algorithm in task.algorithms:
        needs = algorithm.by_family()
        told = ((slope / TYPICAL.get(family, TYPICAL_OTHER), family, slope) for (_, family), slope in needs.items())
        typical, family, slope = max(told, default=(0.0, "", 0.0))
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
    """The link's rate: the instance type's where it is known (a host may link slower than its GPU says)."""
    from bench.hardware import catalogue

    if copies.instance is not None:
        rate = catalogue.instance(copies.instance).links.pcie_bytes_per_s
        if rate is not None:
            return rate
    assert copies.pcie is not None
    return catalogue.pcie_bytes_per_s(*copies.pcie)
