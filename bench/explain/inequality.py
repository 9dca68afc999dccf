"""Judge a run on an unknown machine or with unknown NICs.

A result near the best published result with this GPU is normal, whatever the NICs are. A result far below the rate of
the slowest machine is low. Between these limits, the verdict depends on the machine. The page therefore names the
machines on which the result would be normal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bench.core import plugins
from bench.core.links import NodeLinks
from bench.core.pattern import Pattern, Shape
from bench.core.units import format_rate
from bench.core.world import World
from bench.explain.evidence import NIC_RATES, RunEvidence, busbw
from bench.explain.messages import AssessmentCode
from bench.explain.own_source import others_of_each_machine
from bench.hardware.catalogue import Instance, instance, instances, maker, maker_printed
from bench.hardware.link_traffic import usual_use

# A normal result reaches at least this share of the best published result. Results differ by as much between library
# versions, drivers and years.
NORMAL_OF_OTHERS = 0.85
# A run would be normal on a machine if its share of the rate that the machine's links allow is in this range.
_FITS = (0.65, 1.02)
_TOO_LOW = 0.35
_MOST_NAMED = 3


def of_any_machine(evidence: RunEvidence) -> tuple[AssessmentCode, dict[str, Any], float] | None:
    """Return the verdict that is true for any machine with this GPU, as (code, facts, ratio).

    The code is NEAR_BEST_OF_ANYONE or BELOW_SLOWEST. The result is None if the verdict depends on the machine.
    """
    best = evidence.best
    assert best is not None
    published = [reference for reference in _published(evidence) if reference.limited is None]
    if published:
        reference = max(published, key=lambda each: each.best[1])
        ratio = busbw(best) / reference.best[1]
        if ratio >= NORMAL_OF_OTHERS:
            facts = {"reference_rate": reference.best[1], "machine": reference.instance or reference.gpu}
            only = len({each.source for each in published}) == 1
            return (
                AssessmentCode.NEAR_BEST_OF_ANYONE,
                {"rate": busbw(best), "ratio": ratio, "only": only, **facts},
                ratio,
            )
    slowest = min((*_rates_of_types(evidence), *_rate_of_slowest_nic(evidence)), default=None)
    if slowest is not None and evidence.machine.gpu and busbw(best) < _TOO_LOW * slowest[0] and not evidence.too_short:
        ratio = busbw(best) / slowest[0]
        facts = {"rate": busbw(best), "ratio": ratio, "slowest": slowest[1], "slowest_rate": slowest[0]}
        return AssessmentCode.BELOW_SLOWEST, facts, ratio
    return None


def fitting_nics(evidence: RunEvidence) -> list[float]:
    """Return the NIC rates that would make this run's rate normal, in bytes per second.

    Only rates of NICs on the market are considered.

    Each GPU of the run is assumed to have one NIC.
    """
    links = evidence.machine.links
    found = []
    for rate in NIC_RATES:
        if links is None:
            break
        per_gpu = _with_nics(links, evidence.ranks_per_node or 1, rate)
        share = _share(evidence, per_gpu)
        if share is not None and _FITS[0] <= share <= _FITS[1]:
            found.append(rate)
    return found


def machines_by_fit(evidence: RunEvidence) -> tuple[list[str], list[str]]:
    """Return two lists: machines on which the run's rate would be normal, and machines on which it would be low.

    A machine is named together with the run's share of the machine's rate: "p5.48xlarge (48 %)".

    If the log names the maker of its GPUs, machines with GPUs of other makers are left out.

    The rate of the machine is a published rate, or the rate that the links of the instance type allow. The run is
    normal if it reaches 65 % to a little more than 100 % of this rate. Each list has at most three machines. The
    machine closest to 100 % is first.
    """
    best = evidence.best
    assert best is not None
    share_of: dict[str, float] = {}
    makers = {found for name in evidence.run.gpus if (found := maker_printed(name)) is not None}
    for name_rate, name in _rates_of_types(evidence):
        share_of[name] = busbw(best) / name_rate
    for reference in others_of_each_machine(evidence):
        if reference.instance:
            share_of[reference.instance] = busbw(best) / reference.best[1]
    if makers:  # the model is unknown, but the log names its maker
        share_of = {
            name: share
            for name, share in share_of.items()
            if name not in instances() or maker(instance(name).gpu) in makers
        }
    normal = {name: share for name, share in share_of.items() if _FITS[0] <= share <= 1 / NORMAL_OF_OTHERS}
    low = {name: share for name, share in share_of.items() if share < _FITS[0]}
    closest = sorted(normal, key=lambda name: abs(normal[name] - 1))
    lowest = sorted(low, key=lambda name: -low[name])
    return (
        [f"{name} ({normal[name]:.0%})" for name in closest[:_MOST_NAMED]],
        [f"{name} ({low[name]:.0%})" for name in lowest[:_MOST_NAMED]],
    )


def nic_words(rate: float) -> str:
    """Format the rate of a NIC: 400 Gb/s (50 GB/s)."""
    return f"{rate * 8e-9:.0f} Gb/s ({format_rate(rate)})"


def _published(evidence: RunEvidence) -> Iterator[Any]:
    if evidence.machine.gpu:
        yield from evidence.references
    else:
        yield from others_of_each_machine(evidence)


def _rates_of_types(evidence: RunEvidence) -> Iterator[tuple[float, str]]:
    """Yield (busbw, name) for each instance type that may be the machine of this run.

    `busbw`: the rate that the links of the type allow.
    """
    for name in instances():
        found = instance(name)
        if evidence.machine.gpu in (None, found.gpu) and _can_hold(found, evidence):
            rate = _usual_rate(evidence, found.links)
            if rate is not None:
                yield rate, name


def _rate_of_slowest_nic(evidence: RunEvidence) -> Iterator[tuple[float, str]]:
    """Yield (busbw, name) for a node with one 10 Gb/s NIC. linkbench assumes that every NIC has at least 10 Gb/s."""
    links = evidence.machine.links
    if links is not None and evidence.crosses_nics:
        rate = _usual_rate(evidence, _with_nics(links, 1, 1.25e9))
        if rate is not None:
            yield rate, "a node with one 10 Gb/s NIC"


def _can_hold(found: Instance, evidence: RunEvidence) -> bool:
    ranks = evidence.num_ranks or 1
    if evidence.num_nodes is None:  # assume as many nodes as the ranks need
        return ranks <= found.gpus or ranks % found.gpus == 0
    return -(-ranks // evidence.num_nodes) <= found.gpus


def _share(evidence: RunEvidence, links: NodeLinks) -> float | None:
    rate = _usual_rate(evidence, links)
    return None if rate is None or evidence.best is None else busbw(evidence.best) / rate


def _usual_rate(evidence: RunEvidence, links: NodeLinks) -> float | None:
    """Return the busbw (bytes per second) that these links allow with the usual algorithm; None if unknown."""
    ranks, best, name = evidence.num_ranks, evidence.best, evidence.run.pattern
    nodes = evidence.num_nodes or -(-(ranks or 1) // links.gpus)
    if not ranks or ranks % nodes or best is None or not best.payload_bytes or not name:
        return None
    pattern: Pattern = plugins.load("pattern", name).PATTERN
    use = usual_use(links, World(nodes, ranks // nodes), pattern, Shape(ranks, best.payload_bytes, mode="pipelined"))
    return None if use is None else use.busbw_bytes_per_s


def _with_nics(links: NodeLinks, num: int, rate: float) -> NodeLinks:
    return replace(links, nic_bytes_per_s=rate, num_nics=num, gpus=max(links.gpus, num))
