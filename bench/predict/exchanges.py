"""How long each communication of a training step takes: predictions for groups of ranks that share a machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.core.errors import UnknownRateError
from bench.core.links import NodeLinks
from bench.predict import predict
from bench.predict.predict import EfficiencyEvidence, Prediction
from bench.predict.training import CommGroup, Communication, ParallelLayout, communications

Exchanges = tuple[tuple[Communication, Prediction], ...]

# Calls that take no larger part of all communication are no reason to hold a middle back.
_HARDLY = 0.1


def predicted(found: ParallelLayout, links: NodeLinks, evidence: EfficiencyEvidence) -> Exchanges:
    """Every communication of a layout with the prediction of one call. UsageError: a rate is unknown."""
    try:
        return tuple(_predicted(communications(found), links, evidence))
    except UnknownRateError as error:
        # The links of many machines have no option: what the engine would have by one stands in bench.yaml.
        own = f"{{like: {links.instance}, links: {{{error.link}: 10GB/s}}}}"
        in_file = f"give it in bench.yaml, such as `instances: {{mine: {own}}}`, and select `mine`"
        raise UnknownRateError(error.link, error.whose, in_file) from None


def has_middle(exchanges: Exchanges) -> bool:
    """Do calls of which only an interval is known take less than a tenth of all communication?"""
    seconds = [(each.calls * found.centre_s, found.middle_s is None) for each, found in exchanges]
    return sum(time for time, vague in seconds if vague) <= _HARDLY * sum(time for time, _ in seconds)


def _predicted(
    every: Sequence[Communication], links: NodeLinks, evidence: EfficiencyEvidence
) -> Iterator[tuple[Communication, Prediction]]:
    """The sizes of one collective and group are asked for at once: their schedule is solved once."""
    for key in dict.fromkeys((each.collective, each.group) for each in every):
        collective, group = key
        alike = [each for each in every if (each.collective, each.group) == key]
        sizes = tuple(dict.fromkeys(each.payload_bytes for each in alike))
        own = shared_links(links, group)
        curve = predict.curve(collective, sizes, own, group.num_nodes, group.per_node, evidence)
        yield from ((each, curve[each.payload_bytes]) for each in alike)


def shared_links(links: NodeLinks, group: CommGroup) -> NodeLinks:
    """What one of several groups has that send side by side: its part of the node's NICs."""
    if group.num_nodes == 1 or group.side_by_side == 1 or links.nic_bytes_per_s is None:
        return links
    nics = links.num_nics or 1
    own = max(1, nics // group.side_by_side)
    return replace(links, num_nics=own, nic_bytes_per_s=links.nic_bytes_per_s * nics / group.side_by_side / own)
