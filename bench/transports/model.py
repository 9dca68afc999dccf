"""Simulate ranks without hardware.

Every message takes the time that the links of its path allow, on a deterministic virtual clock. One process simulates
all ranks. Nothing is launched, reduced or copied. The times include only the time on the links, so real software cannot
be faster. A collective uses the fastest algorithm that the group can run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from bench.core import streams
from bench.core.fabric import Fabric
from bench.core.flows import (
    AlikeGroups,
    MemberSteps,
    alike_groups,
    by_step,
    collectives,
    one_shift_for_all,
    phases_of,
)
from bench.core.program import Group, Round, Step
from bench.core.schedules import Phase, Phases, algorithms, table
from bench.core.traits import Traits
from bench.core.transport import Options
from bench.core.units import format_rate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TRAITS = Traits(
    launcher="direct",
    modelled=True,
    start_s=0.5,
    separates=True,
    no_effect=("graph",),
    look=5,
)


class FabricModel:
    """Simulates the ranks of one world on one fabric."""

    clock = "virtual"

    def __init__(self, fabric: Fabric, options: Options | None = None) -> None:
        """Prepare the simulation.

        `fabric`: the links, and the world of ranks that uses the links.
        """
        self.fabric = fabric
        self.options = options or Options()
        self.algorithm_used = ""  # in the last simulation, for each step: "ring", "messages, tree"

    def facts(self) -> dict[str, str]:
        """Return the instance type, the rates, and the links between peer GPUs."""
        links = self.fabric.links
        rates = {name: getattr(links, f"{name}_bytes_per_s") for name in ("nvlink", "pcie", "nic", "memory")}
        known = {f"model_{name}": format_rate(rate) for name, rate in rates.items() if rate is not None}
        return {"model_instance": links.instance, "model_peers": links.peer, **known}

    def simulate(self, groups: Round, steps: tuple[MemberSteps, ...]) -> tuple[float, ...]:
        """Simulate all groups at the same time.

        Return how many seconds each group needs to run all its steps once.

        All groups run their k-th step at the same time. Raises UsageError if a required rate is unknown.

        `steps[g][m]`: the steps of member m of group g.
        """
        import numpy as np

        shared = alike_groups(self.fabric, groups, steps)
        alike = one_shift_for_all(self.fabric, groups)
        seconds = np.zeros(len(groups))
        names = []
        for at_once in by_step([each.program for each in shared]):
            chosen, took = self._fastest(shared, at_once, alike)
            seconds += took
            names.append(_name(chosen))
        self.algorithm_used = ", ".join(dict.fromkeys(names))
        return tuple(seconds.tolist())

    def contend(
        self, groups: Round, steps: tuple[MemberSteps, ...], others: Group, their_steps: MemberSteps
    ) -> tuple[list[float], list[float]]:
        """Return two lists with the seconds that each group needs to run all its steps once.

        In the first list, `groups` run at the same time without `others`, and `others` runs alone. In the second list,
        all of them run at the same time. The last element of each list is for `others`. Every group repeats its steps
        without waiting for the other groups. The simulation uses the algorithms that are fastest without contention.
        Raises UsageError if a required rate is unknown.
        """
        theirs = self._sequences((others,), (their_steps,))
        ours = self._sequences(groups, steps)
        alone_s = streams.pass_times_s(self.fabric, ours) + streams.pass_times_s(self.fabric, theirs)
        return alone_s, streams.pass_times_s(self.fabric, [*ours, *theirs])

    def _sequences(self, groups: Round, steps: tuple[MemberSteps, ...]) -> list[list[Phase]]:
        """Return all phases of each group, in the order of steps."""
        shared = alike_groups(self.fabric, groups, steps)
        sequences: list[list[Phase]] = [[] for _ in groups]
        names = []
        for of_shared, of_groups in zip(by_step([each.program for each in shared]), by_step(steps), strict=True):
            chosen, _ = self._fastest(shared, of_shared, alike=False)
            names.append(_name(chosen))
            for sequence, group, own in zip(sequences, groups, of_groups, strict=True):
                sequence += phases_of(self.fabric, group, own, chosen, alike=False) or []
        self.algorithm_used = ", ".join(dict.fromkeys(names))
        return sequences

    def _fastest(
        self, shared: Sequence[AlikeGroups], steps: Sequence[tuple[Step, ...]], alike: bool
    ) -> tuple[dict[str, str], Floats]:
        """Return the best algorithm for each operation, and the seconds that each group needs.

        The best algorithms minimise the time until all groups have ended.
        """
        ops = collectives(steps)
        choices = []
        for names in product(*map(algorithms, ops)):
            chosen = dict(zip(ops, names, strict=True))
            found = [
                phases_of(self.fabric, each.first, own, chosen, alike) for each, own in zip(shared, steps, strict=True)
            ]
            phases = [each for each in found if each is not None]
            if len(phases) == len(found):
                choices.append((chosen, self._run(shared, phases)))
        return min(choices, key=lambda choice: float(choice[1].max(initial=0.0)))

    def _run(self, shared: Sequence[AlikeGroups], phases: Sequence[Phases]) -> Floats:
        """Simulate all groups at the same time, phase by phase. Return the seconds of each group."""
        import numpy as np

        seconds = np.zeros(sum(len(each.numbers) for each in shared))
        for repeat, at_once in _in_step(phases):
            flows = [each.flows(own) for each, own in zip(shared, at_once, strict=True)]
            times = np.split(self.fabric.times_s(np.concatenate(flows)), np.cumsum([len(own) for own in flows])[:-1])
            for each, own_s in zip(shared, times, strict=True):
                of_groups = own_s.reshape(len(each.numbers), -1)
                seconds[each.numbers] += repeat * of_groups.max(axis=1, initial=0.0)
        return seconds


def _name(chosen: Mapping[str, str]) -> str:
    return "+".join(chosen.values()) or "messages"


def _in_step(phases: Sequence[Phases]) -> Iterator[tuple[int, list[Floats]]]:
    """Run several schedules in parallel, and yield their phases.

    For each phase, yield how often it repeats, and the flows of each schedule. If a schedule has already ended, its
    flows are empty.
    """
    waiting = [[(each.repeat, each.flows) for each in reversed(own) if each.repeat] for own in phases]
    while any(waiting):
        repeat = min(own[-1][0] for own in waiting if own)
        yield repeat, [own[-1][1] if own else table(()) for own in waiting]
        for own in waiting:
            if own:
                left, flows = own.pop()
                if left > repeat:
                    own.append((left - repeat, flows))


TRANSPORT = FabricModel
