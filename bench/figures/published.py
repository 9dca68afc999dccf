"""Draw the bus bandwidth of GPU collectives and published results, with one panel for each pattern and world."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.core.log_traits import log_traits
from bench.core.record import Header
from bench.core.traits import traits
from bench.explain.size_matches import curve_of
from bench.figures import _origin, _style
from bench.figures.bandwidth import draw_curve
from bench.hardware import catalogue
from bench.hardware.reference import Reference, best_of_each, is_same_measurement, of_any_machine, same_shape
from bench.results import curves, flops
from bench.results.curves import CurvePoint
from bench.results.document import Document, Summary

_MOST_PANELS = 6
_MOST_PUBLISHED = 6  # published results in a panel
_MOST_SOURCES = 8
_MOST_OWN = 10  # curves of the document in the figure

_World = tuple[str, int | None, int | None]  # pattern, ranks, nodes


def applies(document: Document) -> bool:
    """Check whether there are published results for one of this document's patterns and worlds."""
    return bool(_worlds(document))


def draw(document: Document) -> list[tuple[str, Figure]]:
    """Return one figure, `published`.

    Return an empty list if nothing is published about the patterns and worlds of this document. If the machine is
    known, the figure shows published results of its instance type, of its GPU, or of a GPU with the same links. If the
    machine is unknown, the figure shows the results of the machines with the closest bandwidth.
    """
    worlds = _worlds(document)
    if not worlds:
        return []
    chosen = dict(list(worlds.items())[:_MOST_PANELS])
    rows = [row for own, _ in chosen.values() for row in own]
    rows, not_drawn = curves.first_curves(document, rows, _MOST_OWN)
    looks = _style.looks(curves.transports(document, rows))
    machines = _style.looks_of_machines(_machine(each) for _, found in chosen.values() for each in found)
    figure, axes = _style.panels(len(chosen))
    drawn: list[CurvePoint] = []
    for panel, (world, (own, found)) in zip(axes, chosen.items(), strict=True):
        for reference in found:
            _draw_published(panel, machines[_machine(reference)], curve_of(reference))
        points: list[CurvePoint] = []
        for label, line in curves.lines(document, [row for row in own if row in rows]).items():
            draw_curve(panel, looks[label], line)
            points += line
        rates = [rate / 1e9 for reference in found for rate in curve_of(reference).values()]
        sizes = [size for reference in found for size in curve_of(reference)]
        _style.rate_axis(panel, _style.log_limits([*rates, *(point.busbw() for point in points)]))
        _style.size_axis(panel, [*sizes, *(point.payload_bytes for point in points)])
        nodes = ", number of nodes not stated" if world[2] is None else ", 1 node" if world[2] == 1 else ""
        own_best, best = max(point.busbw() for point in points), max(rates)
        _style.panel_title(
            panel,
            f"{world[0]}, {curves.world(*world[1:])}{nodes}",
            f"up to {own_best:.3g} GB/s, published up to {best:.3g} GB/s",
        )
        drawn += points
    handles = [look.handle() for look in looks.values()]
    for name, look in machines.items():
        handle = _style.Look(f"{name}, published", look.colour, look.marker, ":").handle()
        handle.set_markerfacecolor("white")
        handles.append(handle)
    remarks = [*_remarks(document, rows), *_sources(found for _, found in chosen.values())]
    remarks += not_drawn
    left = len(worlds) - len(chosen)
    remarks += [f"not drawn: {left} more worlds"] if left else []
    _style.finish(figure, "Bus bandwidth beside published results", _origin.kind_of(rows), handles, remarks, drawn)
    return [("published", figure)]


def _worlds(document: Document) -> dict[_World, tuple[list[Summary], list[Reference]]]:
    """Return the rows and the published results of each world that has published results."""
    rows = [row for row in curves.valid(document, "pipelined") if _is_comparable(row)]
    found = {}
    for world, own in curves.by(rows, lambda row: (row.pattern, row.num_ranks, row.num_nodes)).items():
        jobs = {row.job for row in own}
        measured = [row for row in document.summaries if row.job in jobs]
        references = _published(document.headers[own[0].job], own, measured)
        if references:
            found[world] = own, references
    return found


def _is_comparable(row: Summary) -> bool:
    """Check whether a row can be compared with published results.

    The row must be measured, must be a collective of a GPU library, and must cover a whole world with a known number of
    ranks.
    """
    of_gpus = log_traits(row.transport).gpu_collectives or traits(row.transport).calibrates
    measured = bool(row.busbw_bytes_per_s) and not row.modelled
    return of_gpus and measured and row.payload_bytes > 0 and row.topology == "world" and row.num_ranks is not None


def _published(header: Header, rows: Sequence[Summary], measured: Sequence[Summary]) -> list[Reference]:
    """Return the published results to draw beside the rows of one world.

    Results that are marked as limited are left out. Results that were taken from the rows in `measured` are also left
    out.

    `measured`: all rows of the same jobs, including rows that have no bandwidth.
    """
    ranks, nodes = rows[0].num_ranks or 0, rows[0].num_nodes
    gpu = catalogue.instance(header.instance).gpu if header.instance else flops.gpu_of(header)
    best = max(row.busbw_bytes_per_s or 0.0 for row in rows)
    if gpu is not None and nodes is not None:
        found = [each for each in same_shape(header.pattern, gpu, header.instance, nodes, ranks) if not each.limited]
        found = [each for each in found if not _is_own(each, measured)]
        if found:
            return found[:_MOST_PUBLISHED]
    anywhere = best_of_each(
        each for each in of_any_machine(header.pattern, ranks, nodes) if not _is_own(each, measured)
    )
    return sorted(anywhere, key=lambda each: abs(math.log(each.best[1] / best)))[:_MOST_PUBLISHED]


def _is_own(reference: Reference, rows: Sequence[Summary]) -> bool:
    """Check whether a published result was taken from these rows."""
    rates: dict[int, list[float]] = {}
    seconds: dict[int, list[float]] = {}
    for row in rows:
        if row.busbw_bytes_per_s is not None:
            rates.setdefault(row.payload_bytes, []).append(row.busbw_bytes_per_s)
        if row.mean_s is not None:
            seconds.setdefault(row.payload_bytes, []).append(row.mean_s)
    return is_same_measurement(reference, rates, seconds)


def _machine(reference: Reference) -> str:
    return reference.instance or reference.gpu


def _draw_published(panel: Axes, look: _style.Look, rates: Mapping[int, float]) -> None:
    sizes = sorted(rates)
    panel.plot(
        sizes,
        [rates[size] / 1e9 for size in sizes],
        color=look.colour,
        marker=look.marker,
        linestyle=":",
        linewidth=1.2,
        markersize=8,
        markerfacecolor="none",
        zorder=3,
    )


def _remarks(document: Document, rows: Sequence[Summary]) -> list[str]:
    remarks = ["dotted, hollow: published results of as many ranks and nodes, of other versions, drivers and years"]
    headers = [document.headers[row.job] for row in rows]
    if not all(header.num_nodes for header in headers):
        remarks.append("number of nodes not stated (--num-nodes N): the machines with the closest bandwidth are shown")
    if not any(header.instance or flops.gpu_of(header) for header in headers):
        remarks.append("machine not stated (--instance TYPE): the machines with the closest bandwidth are shown")
    return remarks


def _sources(panels: Iterable[Sequence[Reference]]) -> list[str]:
    sources = list(dict.fromkeys(reference.source for found in panels for reference in found))
    more = f"; and {len(sources) - _MOST_SOURCES} more" if len(sources) > _MOST_SOURCES else ""
    return [f"sources: {'; '.join(sources[:_MOST_SOURCES])}{more}"]
