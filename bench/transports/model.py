"""Simulate ranks without hardware. Every message takes the time that its links allow, on a deterministic virtual clock.

One process simulates all ranks. Nothing is launched, reduced or copied: the times include only the links, so no
software can be faster. A collective uses the fastest algorithm that its group can run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from bench.core import streams
from bench.core.fabric import Fabric, Flow
from bench.core.flows import MemberSteps, by_step, collectives, phases_of
from bench.core.program import Group, Round, Step
from bench.core.schedules import Phase, Phases, algorithms
from bench.core.traits import Traits
from bench.core.transport import Options
from bench.core.units import format_rate

TRAITS = Traits(
    launcher="direct",
    modelled=True,
    start_s=0.5,
    separates=True,
    no_effect=("graph",),
)


class FabricModel:
    """The ranks of one world on one fabric."""

    clock = "virtual"

    def __init__(self, fabric: Fabric, options: Options | None = None) -> None:
        """`fabric`: the links and the world that uses them."""
        self.fabric = fabric
        self.options = options or Options()
        self.algorithm_used = ""  # in the last simulation, for each step: "ring", "messages, tree"

    def facts(self) -> dict[str, str]:
        """Return the instance type, its peer links and rates."""
        links = self.fabric.links
        rates = {name: getattr(links, f"{name}_bytes_per_s") for name in ("nvlink", "pcie", "nic", "memory")}
        known = {f"model_{name}": format_rate(rate) for name, rate in rates.items() if rate is not None}
        return {"model_instance": links.instance, "model_peers": links.peer, **known}

    def simulate(self, groups: Round, steps: tuple[MemberSteps, ...]) -> tuple[float, ...]:
        """Return the seconds that each group needs for one pass through its steps if all groups run at the same time.

        `steps[g][m]`: the steps of member m of group g. Step k of every group runs at the same time on the fabric.
        Raises UsageError if a required rate is unknown.
        """
        seconds = [0.0] * len(groups)
        names = []
        for at_once in by_step(steps):
            # A single group has no other traffic on its links, whatever its nodes are.
            alike = len(groups) == 1 and self.fabric.alike
            took, name, _ = self._fastest(groups, at_once, alike)
            seconds = [before + more for before, more in zip(seconds, took, strict=True)]
            names.append(name)
        self.algorithm_used = ", ".join(dict.fromkeys(names))
        return tuple(seconds)

    def contend(
        self, groups: Round, steps: tuple[MemberSteps, ...], others: Group, their_steps: MemberSteps
    ) -> tuple[list[float], list[float]]:
        """Return the seconds of one pass of each group:

        alone, and while all groups run at once. The last group is `others`.

        Every group runs at its own pace, with the algorithms that are fastest without contention. Raises UsageError if
        a required rate is unknown.
        """
        theirs = self._sequences((others,), (their_steps,))
        ours = self._sequences(groups, steps)
        alone_s = streams.pass_times_s(self.fabric, ours) + streams.pass_times_s(self.fabric, theirs)
        return alone_s, streams.pass_times_s(self.fabric, [*ours, *theirs])

    def _sequences(self, groups: Round, steps: tuple[MemberSteps, ...]) -> list[list[Phase]]:
        """Return all phases of each group, in the order of steps."""
        sequences: list[list[Phase]] = [[] for _ in groups]
        names = []
        for at_once in by_step(steps):
            _, name, phases = self._fastest(groups, at_once, alike=False)
            names.append(name)
            for sequence, more in zip(sequences, phases, strict=True):
                sequence += more
        self.algorithm_used = ", ".join(dict.fromkeys(names))
        return sequences

    def _fastest(
        self, groups: Round, steps: Sequence[tuple[Step, ...]], alike: bool
    ) -> tuple[list[float], str, list[Phases]]:
        """Return the seconds of each group, the algorithms and the phases.

        The algorithms are those with which all groups have ended soonest.
        """
        ops = collectives(steps)
        choices = []
        for names in product(*map(algorithms, ops)):
            chosen = dict(zip(ops, names, strict=True))
            found = [
                phases_of(self.fabric, group, each, chosen, alike) for group, each in zip(groups, steps, strict=True)
            ]
            phases = [each for each in found if each is not None]
            if len(phases) == len(found):
                choices.append((self._run(phases), "+".join(names) or "messages", phases))
        return min(choices, key=lambda choice: max(choice[0], default=0.0))

    def _run(self, phases: Sequence[Phases]) -> list[float]:
        """Seconds of each group when all groups run at once, phase by phase, with the repeats of each phase."""
        seconds = [0.0] * len(phases)
        for repeat, at_once in _in_step(phases):
            times = self.fabric.times_s([flow for flows in at_once for flow in flows])
            first = 0
            for index, flows in enumerate(at_once):
                seconds[index] += repeat * float(times[first : first + len(flows)].max(initial=0.0))
                first += len(flows)
        return seconds


def _in_step(phases: Sequence[Phases]) -> Iterator[tuple[int, list[tuple[Flow, ...]]]]:
    """(repeats, flows of each group) in phase order; a group that has ended has no flows."""
    waiting = [[(each.repeat, each.flows) for each in reversed(of_group) if each.repeat] for of_group in phases]
    while any(waiting):
        repeat = min(of_group[-1][0] for of_group in waiting if of_group)
        yield repeat, [of_group[-1][1] if of_group else () for of_group in waiting]
        for of_group in waiting:
            if of_group:
                left, flows = of_group.pop()
                if left > repeat:
                    of_group.append((left - repeat, flows))


TRANSPORT = FabricModel
