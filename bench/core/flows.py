"""Turn the steps of a group into the messages that cross links: the input of a simulation and of traffic bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bench.core.fabric import Fabric, Flow
from bench.core.program import Collective, Exchange, Group, Step
from bench.core.schedules import Call, Phase, Phases, schedule

MemberSteps = tuple[tuple[Step, ...], ...]  # [member][step] of one group


def by_step(steps: tuple[MemberSteps, ...]) -> Iterator[list[tuple[Step, ...]]]:
    """For each k, yields a list with one entry per group: step k of every member that has a step k."""
    for k in range(max((len(each) for of_group in steps for each in of_group), default=0)):
        yield [tuple(each[k] for each in of_group if k < len(each)) for of_group in steps]


def collectives(steps: Sequence[tuple[Step, ...]]) -> list[str]:
    """Names of the collectives that the groups call in one step, sorted."""
    return sorted({each.op for of_group in steps for each in of_group if isinstance(each, Collective)})


def phases_of(
    fabric: Fabric, group: Group, steps: tuple[Step, ...], chosen: Mapping[str, str], alike: bool
) -> Phases | None:
    """One step of one group as phases; None if the chosen algorithm cannot run on this group.

    `chosen`: the algorithm of each operation. `alike`: one node's messages represent those of all (schedules.Call).
    """
    if not steps or not isinstance(steps[0], Collective):
        return [Phase(1, _messages(group, steps))]
    calls = [each for each in steps if isinstance(each, Collective)]
    call = Call(
        ranks=group.ranks,
        ranks_per_node=fabric.ranks_per_domain,
        payload_bytes=max(max(each.send_bytes, each.recv_bytes) for each in calls),
        root=calls[0].root,
        split=tuple(each.send_split for each in calls),
        alike=alike,
        reduces=fabric.links.reduces,
        mesh=fabric.links.mesh,
    )
    return schedule(calls[0].op, chosen[calls[0].op], call)


def _messages(group: Group, steps: tuple[Step, ...]) -> tuple[Flow, ...]:
    """Return the sends of an exchange as flows. Messages between the same two ranks are added up in one flow."""
    flows: dict[tuple[int, int], float] = {}
    for member, step in enumerate(steps):
        for send in step.sends if isinstance(step, Exchange) else ():
            pair = (group.ranks[member], group.ranks[send.peer])
            flows[pair] = flows.get(pair, 0.0) + send.num_bytes
    return tuple((source, target, num_bytes) for (source, target), num_bytes in flows.items())
