"""Turn the steps of a group into messages that cross links, for simulations and traffic bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.core.fabric import SWITCH, Fabric
from bench.core.program import Collective, Exchange, Group, Round, Step
from bench.core.schedules import Call, Phase, Phases, schedule, table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

MemberSteps = tuple[tuple[Step, ...], ...]  # [member][step] of one group


@dataclass(frozen=True, slots=True)
class AlikeGroups:
    """Groups of a round that run the same program and have the same layout.

    Two groups have the same layout if, in both groups, the same member numbers share a domain. One schedule serves all
    of these groups.

    The messages of two groups differ only in the numbers of the ranks (core/schedules.py).

    `first`: the first of the groups.
    `numbers`: the numbers of the groups in the round, ascending.
    `ranks`: an array of shape (groups, members + 1) with the world rank of each member. The last column is for the
        switch.
    `member`: for each world rank, the rank's member number in the group `first`. The last element is for the switch.
    """

    first: Group
    program: MemberSteps
    numbers: Ints
    ranks: Ints
    member: Ints

    def flows(self, of_first: Floats) -> Floats:
        """Return the messages of all groups, computed from the messages of the first group.

        Each row of the result has the source rank, the target rank and the bytes of one message.
        """
        import numpy as np

        ends = [self.ranks[:, self.member[of_first[:, column].astype(np.int64)]].ravel() for column in (0, 1)]
        return np.column_stack((*ends, np.tile(of_first[:, 2], len(self.numbers))))


def alike_groups(fabric: Fabric, groups: Round, programs: Sequence[MemberSteps]) -> list[AlikeGroups]:
    """Put groups of a round together if they have the same schedule.

    Two groups have the same schedule if they run the same program and if, in both groups, the same member numbers share
    a domain.

    `programs`: the program of each group. Two programs count as the same only if they are the same Python object.
    """
    import numpy as np

    found: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    size = fabric.ranks_per_domain
    for number, (group, program) in enumerate(zip(groups, programs, strict=True)):
        order: dict[int, int] = {}
        shared = tuple([order.setdefault(rank // size, len(order)) for rank in group.ranks])
        found.setdefault((id(program), shared), []).append(number)
    alike = []
    for numbers in found.values():
        first = groups[numbers[0]]
        member = np.full(fabric.world.num_ranks + 1, SWITCH)
        member[list(first.ranks)] = np.arange(len(first.ranks))
        ranks = np.array([(*groups[number].ranks, SWITCH) for number in numbers])
        alike.append(AlikeGroups(first, programs[numbers[0]], np.array(numbers), ranks, member))
    return alike


def one_shift_for_all(fabric: Fabric, groups: Round) -> bool:
    """Check whether messages to the next domain take as long as messages to any other domain (schedules.Call.alike).

    The result is True if two conditions are met. First, all paths between domains are equally long. Second, if two
    groups share a domain, then member k of both groups is in the same domain, for every k. If both conditions are met,
    a message to the next domain takes as long as a message to a domain further away.
    """
    size = fabric.ranks_per_domain
    orders = {tuple(rank // size for rank in group.ranks) for group in groups}
    return fabric.alike and sum(len(set(order)) for order in orders) == len(set().union(*orders))


def by_step(programs: Sequence[MemberSteps]) -> Iterator[list[tuple[Step, ...]]]:
    """Yield the first steps of all programs, then the second steps, and so on.

    Each yielded list has one entry per program. An entry has one step for each member whose program has not ended yet.
    """
    for k in range(max((len(each) for program in programs for each in program), default=0)):
        yield [tuple(each[k] for each in program if k < len(each)) for program in programs]


def collectives(steps: Sequence[tuple[Step, ...]]) -> list[str]:
    """Return the sorted names of the collectives that programs call in one step."""
    return sorted({each.op for of_program in steps for each in of_program if isinstance(each, Collective)})


def phases_of(
    fabric: Fabric, group: Group, steps: tuple[Step, ...], chosen: Mapping[str, str], alike: bool
) -> Phases | None:
    """Return one step of one group as phases, or None if the chosen algorithm cannot run on this group.

    `chosen`: maps the name of each operation to the name of its algorithm.
    `alike`: whether a shift by one node represents the shifts by any number of nodes (see schedules.Call).
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


def _messages(group: Group, steps: tuple[Step, ...]) -> Floats:
    """Return the sends of an exchange as messages (schedules.Phase).

    All messages between the same two ranks become one message with the sum of their bytes.
    """
    flows: dict[tuple[int, int], float] = {}
    for member, step in enumerate(steps):
        for send in step.sends if isinstance(step, Exchange) else ():
            pair = (group.ranks[member], group.ranks[send.peer])
            flows[pair] = flows.get(pair, 0.0) + send.num_bytes
    return table([(source, target, num_bytes) for (source, target), num_bytes in flows.items()])
