"""How long each communication of a training step takes: predictions for groups of ranks that share a machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bench.analysis import predict
from bench.analysis.predict import Evidence, Prediction
from bench.analysis.training import Communication, Group, Layout, communications
from bench.core.fabric import NodeLinks

Exchanges = tuple[tuple[Communication, Prediction], ...]

_HARDLY = 0.1

# Among more ranks, with the same payload, these take no less: every rank still holds, or gets, all of it.
_GROW = ("allreduce", "allgather", "reducescatter")


def predicted(found: Layout, links: NodeLinks, evidence: Evidence) -> Exchanges:
    """Every communication of a layout with the prediction of one call. UsageError: a rate is unknown."""
    return tuple(_predicted(communications(found), links, evidence))


def has_middle(exchanges: Exchanges) -> bool:
    """Do calls of which only an interval is known take less than a tenth of all communication?"""
    seconds = [(each.calls * found.centre_s, found.middle_s is None) for each, found in exchanges]
    return sum(time for time, vague in seconds if vague) <= _HARDLY * sum(time for time, _ in seconds)


def _predicted(every: Sequence[Communication], links: NodeLinks, evidence: Evidence) -> Iterator[
    tuple[Communication, Prediction]
]:  # fmt: skip
    """The sizes of one collective and group are asked for at once: their schedule is solved once."""
    for key in dict.fromkeys((each.collective, each.group) for each in every):
        alike = [each for each in every if (each.collective, each.group) == key]
        curve = _curve(*key, tuple(dict.fromkeys(each.payload_bytes for each in alike)), links, evidence)
        yield from ((each, curve[each.payload_bytes]) for each in alike)


def _curve(collective: str, group: Group, sizes: tuple[float, ...], links: NodeLinks,
           evidence: Evidence) -> Mapping[float, Prediction]:  # fmt: skip
    own = shared_links(links, group)
    whole = predict.curve(collective, sizes, own, group.num_nodes, group.per_node, evidence)
    if group.num_nodes == 1 or group.per_node == 1 or collective not in _GROW:
        return whole
    inside = predict.curve(collective, sizes, own, 1, group.per_node, evidence)
    return {size: no_faster(whole[size], inside[size]) for size in sizes}


def no_faster(whole: Prediction, inside: Prediction) -> Prediction:
    """A collective over nodes takes no less than the same among the ranks of one node: the slower ends of both.

    What is known of networks was measured where peers reach each other; through host memory the node itself can be
    the slower part.
    """
    slower = inside if inside.low_s * inside.high_s > whole.low_s * whole.high_s else whole
    both = whole.middle_s is not None and inside.middle_s is not None
    return replace(
        slower,
        low_s=max(whole.low_s, inside.low_s),
        middle_s=max(whole.middle_s or 0.0, inside.middle_s or 0.0) if both else slower.middle_s,
        high_s=max(whole.high_s, inside.high_s),
        ideal_s=max(whole.ideal_s, inside.ideal_s),
        verified=whole.verified and inside.verified,
    )


def shared_links(links: NodeLinks, group: Group) -> NodeLinks:
    """What one of several groups has that send side by side: its part of the node's NICs."""
    if group.num_nodes == 1 or group.side_by_side == 1 or links.nic_bytes_per_s is None:
        return links
    nics = links.num_nics or 1
    own = max(1, nics // group.side_by_side)
    return replace(links, num_nics=own, nic_bytes_per_s=links.nic_bytes_per_s * nics / group.side_by_side / own)
