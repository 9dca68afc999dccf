"""Define the base class of strategies without buckets.

A strategy without buckets changes the weights of each rank separately, and exchanges weights or gradients. One round of
steps is enough to check the strategy. The first step of a round has a learning rate above 0. In all other steps, the
learning rate is 0. The final weights of the round can therefore be computed from the known gradients of the first step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.transports.strategies._replica import WHOLE, Build, HeldGradient, Replica


class OwnWeights(Replica):
    """A replica whose model has no wrapper of torch. The weights of different ranks may differ."""

    def __init__(self, build: Build) -> None:
        super().__init__(build)
        self.model = build.torch.nn.Sequential(*build.blocks(WHOLE))
        self.optimizer = build.optimizer(self.model.parameters())
        self.is_probed = False
        self._rates: list[float] = []

    def probe(self, on: bool) -> None:
        """Begin or end a probe. In a probe, the first step has a learning rate above 0.

        All further steps have the learning rate 0.
        """
        self.is_probed, self._rates = on, [self.probe_rate] if on else []

    @property
    def probe_rate(self) -> float:
        """The learning rate for the first step of a probe."""
        return 1.0

    def next_rate(self) -> float:
        """Return the learning rate of this step."""
        if not self.is_probed:
            return self.build.learning_rate
        return self._rates.pop() if self._rates else 0.0

    def change(self) -> None:
        """Change this rank's weights by this rank's gradients."""
        self.optimizer.param_groups[0]["lr"] = self.next_rate()
        self.optimizer.step()

    def flat(self, values: Sequence[Any]) -> Any:
        """Return a copy of tensors as one vector."""
        return self.build.torch.cat([value.detach().flatten() for value in values])

    def copy_back(self, vector: Any, values: Sequence[Any]) -> None:
        """Copy the parts of a vector into the tensors from which `flat` made the vector."""
        for piece, value in zip(vector.split([value.numel() for value in values]), values, strict=True):
            value.detach().copy_(piece.view_as(value))

    def trained(self) -> list[Any]:
        """Return the weights that are trained, in the order of blocks."""
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    def in_vector(self, part: str, vector: Any, replicas: Sequence[int]) -> Iterator[HeldGradient]:
        """Yield the gradients in a vector one by one. The gradients must be means over the batches of `replicas`."""
        sizes = [weight.numel() for weight in self.trained()]
        for piece, expected in zip(vector.split(sizes), self._expected(replicas), strict=True):
            yield HeldGradient(part, piece, None if expected is None else expected.flatten())

    @property
    def knows_gradients(self) -> bool:
        """Whether exact values of the model's gradients are known in advance."""
        return all(expected is not None for expected in self._expected((self.build.rank,)))

    def own_gradients(self) -> Iterator[HeldGradient]:
        """Yield the gradients that this rank computed from its own batch."""
        rank = self.build.rank
        yield from self.in_vector(of_rank(rank), self.flat([weight.grad for weight in self.trained()]), (rank,))

    def moved(self, part: str, replicas: Sequence[int], factor: float = 1.0) -> Iterator[HeldGradient]:
        """Yield the changes of this rank's weights during a probe, or the weights if their changes cannot be checked.

        If the model's gradients are known, all weights begin with the value 0, so the weights show the change.
        """
        vector = self.flat(self.trained())
        if self.knows_gradients:
            yield from self.in_vector(part, vector.neg_().div_(factor), replicas)
        else:
            yield HeldGradient(part, vector)

    def _expected(self, replicas: Sequence[int]) -> Iterator[Any]:
        source = self.build.source
        for number, block in self.blocks():
            trained = (weight for weight in block.parameters() if weight.requires_grad)
            for index, weight in enumerate(trained):
                yield source.expected(WHOLE, number, index, replicas, weight.shape)


def of_rank(rank: int) -> str:
    """Return the name for gradients and weights that depend only on the batch of one rank."""
    return f"rank {rank}"
