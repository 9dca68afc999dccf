"""Where another machine becomes the better one: a sample's cost or time against model size and nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.core.errors import UsageError
from bench.predict.candidate import Candidate, SelectionQuestion, candidate
from bench.predict.draws import DrawnRange, Draws, range_of
from bench.predict.workload import Workload

# Model sizes as multiples of the workload's own, and numbers of nodes.
SIZES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
NODES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class CrossoverLine:
    """One machine over what is varied: `points` (x, value); where it can not do it there is no point.

    `has_middle`: of every value more is known than an interval.
    """

    name: str
    points: tuple[tuple[float, DrawnRange], ...]
    has_middle: bool


def against_size(question: SelectionQuestion, machines: Sequence[Candidate]) -> tuple[CrossoverLine, ...]:
    """Cost of a sample (seconds, where any has no price) against parameters: the same layers, fewer or more of them."""
    return tuple(
        _line(
            each.name,
            [
                (bigger.model.parameters, replace(question, workload=bigger), each.layout.num_nodes)
                for bigger in _sizes(question.workload)
            ],
            each,
            machines,
        )
        for each in machines
    )


def against_nodes(question: SelectionQuestion, machines: Sequence[Candidate]) -> tuple[CrossoverLine, ...]:
    """The same against the number of nodes, with as many samples for each GPU."""
    first = {each.instance.name: each for each in reversed(machines)}
    return tuple(
        _line(each.instance.name, [(float(nodes), question, nodes) for nodes in NODES], each, machines)
        for each in reversed(first.values())
    )


def _line(
    name: str, asked: Sequence[tuple[float, SelectionQuestion, int]], machine: Candidate, machines: Sequence[Candidate]
) -> CrossoverLine:
    by_cost = all(each.sample_usd is not None for each in machines)
    draws, points, known = Draws(1000), [], True
    for x, question, nodes in asked:
        try:
            found = candidate(machine.instance, nodes, question, draws)
        except UsageError:
            continue  # the line ends where the machine can not do it
        value = found.sample_usd if by_cost and found.sample_usd is not None else found.sample_s
        points.append((x, range_of(value)))
        known = known and found.has_middle
    return CrossoverLine(name, tuple(points), known)


def _sizes(workload: Workload) -> list[Workload]:
    """The workload with fewer and more layers, so that the embedding stays as it is."""
    model, found = workload.model, []
    for factor in SIZES:
        if model.layers is None:
            bigger = replace(
                model,
                parameters=model.parameters * factor,
                flops_per_sample=(model.flops_per_sample or 0) * factor or None,
            )
        else:
            layers = round(model.layers * factor)
            if layers < 1 or layers % workload.mesh.pipeline:
                continue
            inside = model.parameters - 2 * (model.hidden or 0) * (model.vocabulary or 0)
            flops = model.flops_per_sample and model.flops_per_sample * layers / model.layers
            parameters = model.parameters + inside * (layers / model.layers - 1)
            bigger = replace(model, layers=layers, parameters=parameters, flops_per_sample=flops)
        found.append(replace(workload, model=bigger))
    return found
