"""Compute bounds on the best row of another tool's run, from the run's links and algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from bench.core import plugins
from bench.core.links import Bound, NodeLinks
from bench.core.log_traits import log_traits
from bench.core.pattern import Pattern, Shape, Traffic
from bench.core.record import Header, Record
from bench.core.traits import traits
from bench.core.world import World
from bench.explain.evidence import ExplainLimit, RunEvidence, busbw, is_network
from bench.hardware.bounds import bounds_of
from bench.hardware.link_traffic import LinkUse, usual_use
from bench.logs.foreign import ForeignRow

HALF_DIGIT = 0.005e9  # half of the last printed digit in bytes per second; tools print two decimals of GB/s
_ROUNDING = 0.002  # relative rounding error; tools print a time with four digits
_IF_LIKELY = ", if it is one of the machines named above"


def bounds_of_run(evidence: RunEvidence, pattern: str, row: ForeignRow, traffic: Traffic) -> tuple[Bound, ...]:
    """Return the hard bounds on a row's rate and the reference rates, the lowest first.

    If the quantity is a rate, the same bound holds for rows of every size.
    """
    machine = evidence.machine
    assert machine.links is not None
    found = [*_bounds(evidence, pattern, row, traffic, machine.links)]
    if machine.likely is not None and evidence.crosses_nics:
        for bound in _bounds(evidence, pattern, row, traffic, machine.likely):
            if is_network(bound) and not (bound.kind == "hard" and evidence.num_ranks == evidence.num_nodes):
                found.append(_likely(bound))
    if machine.links.peer == "nvlink_pairs" and evidence.num_nodes == 1 and evidence.num_ranks == 2:
        unbridged = replace(machine.links, peer="host", nvlink_bytes_per_s=None)
        for bound in _bounds(evidence, pattern, row, traffic, unbridged):
            if bound.kind == "hard":
                name = ExplainLimit.WITHOUT_BRIDGE.words({"bound": bound.name})
                found.append(replace(bound, kind="reference", name=name, code=ExplainLimit.WITHOUT_BRIDGE))
    return tuple(sorted(found, key=lambda bound: bound.bytes_per_s))


def rows_above(rows: Sequence[ForeignRow], bounds: Sequence[Bound]) -> tuple[tuple[ForeignRow, Bound], ...]:
    """Return the rows that exceed the lowest hard bound by more than the rounding error.

    The row with the highest rate comes first.
    """
    hard = next((bound for bound in bounds if bound.kind == "hard"), None)
    if hard is None:
        return ()
    above = [row for row in rows if busbw(row) * (1 - _ROUNDING) - HALF_DIGIT > hard.bytes_per_s]
    return tuple((row, hard) for row in sorted(above, key=busbw, reverse=True))


def _likely(bound: Bound) -> Bound:
    """Convert a bound to a reference, because the run may have used another machine that fits the log."""
    return replace(bound, kind="reference", why=f"{bound.why}{_IF_LIKELY}")


def usual_nic_use(evidence: RunEvidence, pattern: str) -> LinkUse | None:
    """Return how a library with rings uses the NICs for large data.

    If the machine is unknown but all machines that fit the log have the same NICs, the function uses these NICs.
    """
    links = evidence.machine.likely or evidence.machine.links
    if links is None or not evidence.crosses_nics or evidence.by_message_passing:
        return None
    return _usual_use(evidence, pattern, links, "nic")


def _usual_use(evidence: RunEvidence, pattern: str, links: NodeLinks, kind: str = "") -> LinkUse | None:
    ranks, nodes, best = evidence.num_ranks, evidence.num_nodes, evidence.best
    if not ranks or not nodes or ranks % nodes or best is None or not best.payload_bytes or links.nvlink_nodes > 1:
        return None
    world = World(nodes, ranks // nodes)
    program: Pattern = plugins.load("pattern", pattern).PATTERN
    return usual_use(links, world, program, Shape(ranks, best.payload_bytes, mode="pipelined"), kind)


def _bounds(
    evidence: RunEvidence, pattern: str, row: ForeignRow, traffic: Traffic, links: NodeLinks
) -> tuple[Bound, ...]:
    """Return the bounds that the links give for this row, computed in the same way as for a record of this suite."""
    header = Header(
        job="",
        case=(),
        pattern=pattern,
        dtype="",
        reduce_op="",
        root=None,
        direction=None,
        topology="world",
        transport=evidence.run.tool,
        num_ranks=evidence.num_ranks,
        num_nodes=evidence.num_nodes,
        ranks_per_node=evidence.ranks_per_node,
        clock="host",
        modelled=False,
        started="",
        links=links.to_dict(),
        facts={"memory": "device"} if evidence.memory == "device" else {},
    )
    record = Record(
        mode="pipelined",
        requested_bytes=(),
        payload_bytes=row.payload_bytes or 0,
        num_ranks=evidence.num_ranks,
        num_nodes=evidence.num_nodes,
        bus_factor=traffic.bus_factor,
        rank_bytes=traffic.rank_bytes,
        node_bytes=traffic.node_bytes,
        reported={},
    )
    found = [bound for bound in bounds_of(header, record) if bound.kind != "traffic"]
    if log_traits(evidence.run.tool).rings or (evidence.transport is not None and traits(evidence.transport).rings):
        found += _usual_bound(evidence, pattern, row, links, found)
    return tuple(found)


def _usual_bound(
    evidence: RunEvidence, pattern: str, row: ForeignRow, links: NodeLinks, others: Sequence[Bound]
) -> Iterator[Bound]:
    """Yield the rate that the links allow with the library's usual algorithm.

    A row above this rate shows that the library uses a better algorithm.
    """
    if links.reduces and not evidence.crosses_nics:  # a switch that reduces needs no rings inside a node
        return
    use = _usual_use(evidence, pattern, links)
    hard = min((bound.bytes_per_s for bound in others if bound.kind == "hard"), default=inf)
    if use is None or use.busbw_bytes_per_s >= 0.999 * hard:
        return
    above = busbw(row) * (1 - _ROUNDING) - HALF_DIGIT > use.busbw_bytes_per_s
    if above and not evidence.crosses_nics:  # NVLink carries the traffic, so PCIe does not bound it
        return
    source, verified = links.sources.get(use.source, "unknown"), links.verified.get(use.source, False)
    yield Bound(use.busbw_bytes_per_s, use.limit.template, "traffic", use.why, source, verified, use.limit)
