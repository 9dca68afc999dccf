"""Train a small problem twice, with the exchange of a case and with exact gradients, to compare the losses.

Random points are the inputs. Another network, with random weights, assigns a class to each point. A network of two
layers learns these classes. Seeds are fixed. For any number of ranks and any exchange, all ranks together see the same
points in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench.core import plugins
from bench.core.case import Case
from bench.core.strategies import DEFAULT_STRATEGY, RankGrid
from bench.transports._step_place import GpuPlace, HostPlace
from bench.transports.strategies._groups import RankGroups
from bench.transports.strategies._replica import Build, Replica, Share

NUM_SAMPLES = 8192  # of all ranks; rounded up to whole rounds of steps
_SAMPLES = 16  # of one rank in a step
_SIZES = 16, 32, 8  # of a point, of the layer between, and the number of classes
_RATE = 0.5  # of learning
_HELD_OUT = 2048  # samples that are not trained on; the reported loss is their loss


class SmallSource:
    """The network to train, and the training points of one rank."""

    def __init__(self, torch: Any, place: int, num_ranks: int) -> None:
        self._torch, self._place, self._num_ranks = torch, place, num_ranks
        random = torch.Generator().manual_seed(7)
        self._teacher = [torch.randn(_SIZES[layer], _SIZES[layer + 1], generator=random) for layer in range(2)]

    def blocks(self, share: Share) -> list[Any]:
        """Return the two layers."""
        nn, random = self._torch.nn, self._torch.Generator().manual_seed(8)
        layers = [nn.Linear(_SIZES[layer], _SIZES[layer + 1]) for layer in range(2)]
        for layer in layers:
            layer.weight.data.normal_(0, layer.in_features**-0.5, generator=random)
            layer.bias.data.zero_()
        return [nn.Sequential(layers[0], nn.Tanh()), layers[1]]

    def loss(self, output: Any, targets: Any, num_micro_batches: int) -> Any:
        """Return the cross entropy."""
        return self._torch.nn.functional.cross_entropy(output, targets) / num_micro_batches

    def batch(self, num_micro_batches: int) -> tuple[Any, Any]:
        """Return the points of the first step."""
        return self.points(0)

    def points(self, step: int) -> tuple[Any, Any]:
        """Return this rank's points of a step. The points of all ranks together are one random sequence."""
        number = step * self._num_ranks + self._place
        return self._labelled(self._torch.Generator().manual_seed(1000 + number), _SAMPLES)

    def held_out(self) -> tuple[Any, Any]:
        """Return points on which no rank trains."""
        return self._labelled(self._torch.Generator().manual_seed(9), _HELD_OUT)

    def read(self, inputs: Any) -> Any:
        """Return the inputs, because the network reads the whole batch."""
        return inputs

    def expected(self, share: Share, number: int, index: int, replicas: Sequence[int], shape: Any) -> Any:
        """Return None, because no formula gives the exact gradients of this model."""
        return

    def _labelled(self, random: Any, num: int) -> tuple[Any, Any]:
        points = self._torch.randn(num, _SIZES[0], generator=random)
        first, second = self._teacher
        return points, ((points @ first).tanh() @ second).argmax(1)


def learned(
    torch: Any, case: Case, rank: int, grid: RankGrid, timeout_s: float, place: HostPlace | GpuPlace
) -> dict[str, float]:
    """Train the problem with the exchange of a case and with exact gradients. Return `StepSamples.learned`.

    All ranks call this function. The loss is computed with weights that are averaged over all ranks.
    """
    source = SmallSource(torch, grid.ranks.index(rank), len(grid.ranks))

    def replica(of_case: Case) -> Replica:
        strategy = plugins.load("strategy", of_case.strategy).STRATEGY
        groups = RankGroups(torch, None, timeout_s)
        made: Replica = strategy(Build(torch, of_case, rank, grid, groups, source, _RATE, 1, place))
        return made

    lossy = replica(case)
    wanted = math.ceil(NUM_SAMPLES / (_SAMPLES * len(grid.ranks)))
    num_steps = math.ceil(wanted / lossy.round_steps) * lossy.round_steps
    before = _loss(torch, lossy, source)
    loss = _trained(torch, lossy, source, num_steps)
    exact = _trained(torch, replica(replace(case, strategy=DEFAULT_STRATEGY, hook="none")), source, num_steps)
    samples = float(num_steps * _SAMPLES * len(grid.ranks))
    return {"samples": samples, "loss": loss, "exact_loss": exact, "first_loss": before}


def _trained(torch: Any, replica: Replica, source: SmallSource, num_steps: int) -> float:
    for step in range(num_steps):
        replica.zero_grad()
        replica.passes(*map(replica.build.place.put, source.points(step)))
        replica.update()
    return _loss(torch, replica, source)


def _loss(torch: Any, replica: Replica, source: SmallSource) -> float:
    """Replace each rank's weights by the mean of all ranks' weights.

    Return the loss of the network with the averaged weights.
    """
    weights = [weight.detach() for weight in replica.model.parameters()]
    vector = torch.cat([weight.flatten() for weight in weights])
    torch.distributed.all_reduce(vector)
    vector.div_(torch.distributed.get_world_size())
    for piece, weight in zip(vector.split([weight.numel() for weight in weights]), weights, strict=True):
        weight.copy_(piece.view_as(weight))
    points, classes = map(replica.build.place.put, source.held_out())
    with torch.no_grad():
        values = points
        for _, block in replica.blocks():
            values = block(values)
    return float(source.loss(values, classes, 1))
