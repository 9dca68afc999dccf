"""Compute curves of a sample's cost or time against the model's size or the number of nodes. Where two curves cross,
another machine becomes better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.core.errors import UsageError
from bench.predict.candidate import Candidate, SelectionQuestion, candidate
from bench.predict.draws import DrawnRange, Draws, range_of
from bench.predict.memory import OutOfMemoryError
from bench.predict.workload import Workload

# The model sizes that are evaluated, as multiples of the workload's size, and the numbers of nodes that are evaluated.
SIZES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
NODES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class CrossoverLine:
    """The curve of one machine.

    `points`: x, the value, and whether the value has a middle. If the machine cannot run the workload at x, the
        line has no point at x.
    `out_of_memory`: the values of x at which the model does not fit in GPU memory.
    """

    name: str
    points: tuple[tuple[float, DrawnRange, bool], ...]
    out_of_memory: tuple[float, ...] = ()


def against_size(question: SelectionQuestion, machines: Sequence[Candidate]) -> tuple[CrossoverLine, ...]:
    """Return the curves of a sample's cost against the number of parameters.

    The models differ only in the number of their layers.

    If any machine has no price, the curves show seconds instead.
    """
    workloads = _sizes(question.workload)
    lines = []
    for machine in machines:
        questions = []
        for workload in workloads:
            asked = replace(question, workload=workload)
            questions.append((workload.model.parameters, asked, machine.layout.num_nodes))
        lines.append(_line(machine.name, questions, machine, machines))
    return tuple(lines)


def against_nodes(question: SelectionQuestion, machines: Sequence[Candidate]) -> tuple[CrossoverLine, ...]:
    """Return the curves of a sample's cost (or seconds) against the number of nodes.

    The samples per GPU stay the same.
    """
    first = {each.instance.name: each for each in reversed(machines)}
    questions = [(float(nodes), question, nodes) for nodes in NODES]
    return tuple(_line(name, questions, machine, machines) for name, machine in reversed(first.items()))


def _line(
    name: str,
    questions: Sequence[tuple[float, SelectionQuestion, int]],
    machine: Candidate,
    machines: Sequence[Candidate],
) -> CrossoverLine:
    by_cost = all(each.sample_usd is not None for each in machines)
    draws, points, too_large = Draws(1000), [], []
    for x, question, nodes in questions:
        try:
            found = candidate(machine.instance, nodes, question, draws)
        except OutOfMemoryError:
            too_large.append(x)
            continue
        except UsageError:
            continue  # the machine cannot run the workload, so there is no point
        value = found.sample_usd if by_cost and found.sample_usd is not None else found.sample_s
        points.append((x, range_of(value), found.has_middle))
    return CrossoverLine(name, tuple(points), tuple(too_large))


def _sizes(workload: Workload) -> list[Workload]:
    """Return copies of the workload with fewer or more layers and the same embedding.

    If the workload does not state its layers, the copies have fewer or more parameters.
    """
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
