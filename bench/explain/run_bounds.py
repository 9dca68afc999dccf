"""Bounds on a foreign run, at its best row: those of its links, and what follows from the algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.core.links import Bound, Limit, NodeLinks
from bench.core.pattern import Traffic
from bench.core.record import Header, Record
from bench.core.units import format_bytes, format_rate
from bench.explain.evidence import ExplainLimit, RunEvidence, busbw, is_network
from bench.hardware.bounds import bounds_of
from bench.logs.foreign import ForeignRow

HALF_DIGIT = 0.005e9  # bytes per second: tools print two decimals of GB/s
_ROUNDING = 0.002  # and a time with four digits
_IF_LIKELY = ", if it is one of the machines named above"


def bounds_of_run(evidence: RunEvidence, pattern: str, row: ForeignRow, traffic: Traffic) -> tuple[Bound, ...]:
    """Hard bounds and references at a row, tightest first. They bound rates, so they hold at every size."""
    machine = evidence.machine
    assert machine.links is not None
    certain = _bounds(evidence, pattern, row, traffic, machine.links)
    found = list(certain)
    if evidence.by_ring:
        found += [_ring_bound(bound, evidence, traffic) for bound in certain if bound.code == Limit.NETWORK]
    if machine.likely is not None and evidence.crosses_nics and evidence.num_ranks != evidence.num_nodes:
        for bound in _bounds(evidence, pattern, row, traffic, machine.likely):
            if is_network(bound):
                found.append(_likely(bound))
            if bound.code == Limit.NETWORK and evidence.by_ring:
                found.append(_likely(_ring_bound(bound, evidence, traffic)))
    if machine.links.peer == "nvlink_pairs" and evidence.num_nodes == 1 and evidence.num_ranks == 2:
        unbridged = replace(machine.links, peer="host", nvlink_bytes_per_s=None)
        for bound in _bounds(evidence, pattern, row, traffic, unbridged):
            if bound.kind == "hard":
                name = ExplainLimit.WITHOUT_BRIDGE.words({"bound": bound.name})
                found.append(replace(bound, kind="reference", name=name, code=ExplainLimit.WITHOUT_BRIDGE))
    return tuple(sorted(found, key=lambda bound: bound.bytes_per_s))


def rows_above(rows: Sequence[ForeignRow], bounds: Sequence[Bound]) -> tuple[tuple[ForeignRow, Bound], ...]:
    """Rows above the tightest hard bound by more than rounding, the highest first."""
    hard = next((bound for bound in bounds if bound.kind == "hard"), None)
    if hard is None:
        return ()
    above = [row for row in rows if busbw(row) * (1 - _ROUNDING) - HALF_DIGIT > hard.bytes_per_s]
    return tuple((row, hard) for row in sorted(above, key=busbw, reverse=True))


def _likely(bound: Bound) -> Bound:
    """A bound of the machine that this may be: a reference only."""
    return replace(bound, kind="reference", why=f"{bound.why}{_IF_LIKELY}")


def _ring_bound(bound: Bound, evidence: RunEvidence, traffic: Traffic) -> Bound:
    """The bound by a node's NICs for a ring of all ranks, from the bound for the least that must leave the node."""
    assert traffic.node_bytes and traffic.rank_bytes
    rate = bound.bytes_per_s * traffic.node_bytes / traffic.rank_bytes
    why = (
        f"a node's NICs carry {format_rate(rate)} each way; NCCL sends {evidence.run.pattern} round a ring of all "
        f"ranks, so {format_bytes(round(traffic.rank_bytes))} leave each node, where "
        f"{format_bytes(round(traffic.node_bytes))} must"
    )
    name = ExplainLimit.RING.template
    return replace(bound, bytes_per_s=rate, name=name, kind="reference", why=why, code=ExplainLimit.RING)


def _bounds(
    evidence: RunEvidence, pattern: str, row: ForeignRow, traffic: Traffic, links: NodeLinks
) -> tuple[Bound, ...]:
    """The bounds by links, of the record that this row would be."""
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
    return bounds_of(header, record)
