"""Define the common part of all training strategies. A replica is one copy of the model in training.

Each strategy has a file with a subclass of Replica. The subclass overrides the methods that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from bench.core.case import Case
from bench.core.strategies import RankGrid
from bench.transports._step_place import GpuPlace, HostPlace
from bench.transports.strategies._groups import RankGroups


@dataclass(frozen=True, slots=True)
class Share:
    """Describes which part of each layer this rank holds.

    Each layer is divided into `num` parts. This rank holds the part with the number `place`. The ranks of `group`
    together hold all parts.
    """

    kind: str  # "whole", "tensors" or "experts"
    place: int = 0
    num: int = 1
    group: Any = None


WHOLE = Share("whole")


class ModelSource(Protocol):
    """A model to train.

    A model consists of successive blocks, batches for the first block, and a loss function for the last block's output.
    """

    def blocks(self, share: Share) -> list[Any]:
        """Return this rank's part of all blocks. Ranks that hold the same part get the same weights."""

    def loss(self, output: Any, targets: Any, num_micro_batches: int) -> Any:
        """Return what a micro-batch contributes to the loss of a step."""

    def batch(self, num_micro_batches: int) -> tuple[Any, Any]:
        """Return the inputs and targets of one step in host memory.

        The micro-batches follow each other in the batch.
        """

    def read(self, inputs: Any) -> Any:
        """Return the part of the inputs that the first block reads."""

    def expected(self, share: Share, number: int, index: int, replicas: Sequence[int], shape: Any) -> Any:
        """Return the exact gradient of parameter `index` of block `number`, or None if this gradient is not known.

        The gradient is a mean over the batches of several ranks.

        `replicas`: these ranks.
        """


@dataclass(frozen=True, slots=True)
class Build:
    """The components from which a strategy builds a replica.

    `groups` has no meter if the replica is the bare replica, which measures nothing.
    """

    torch: Any
    case: Case
    rank: int
    grid: RankGrid
    groups: RankGroups
    source: ModelSource
    learning_rate: float
    num_micro_batches: int
    place: HostPlace | GpuPlace

    @property
    def num_ranks(self) -> int:
        """The number of all ranks."""
        return len(self.grid.ranks)

    def blocks(self, share: Share) -> list[Any]:
        """Return this rank's share of all blocks, at the place where the rank trains."""
        return [self.place.put(block) for block in self.source.blocks(share)]

    def everyone(self) -> Any:
        """Return the group of all ranks."""
        return self.groups.of([tuple(range(self.num_ranks))])

    def optimizer(self, parameters: Any) -> Any:
        """Return the optimizer for these parameters."""
        return self.torch.optim.SGD(parameters, lr=self.learning_rate)


@dataclass(slots=True)
class Exchanged:
    """The exchange of one bucket of gradients.

    `num_bytes`: the size of the bucket.
    `ready`: the mark when the bucket was ready.
    `done`: the mark when the exchange of the bucket was done.
    """

    num_bytes: int
    ready: Any
    done: Any = None

    def finish(self, place: HostPlace | GpuPlace, gradients: Any) -> Any:
        """Mark the end of the exchange. Return the gradients."""
        self.done = place.mark()
        return gradients


@dataclass(slots=True)
class BucketWait:
    """The marks of a backward pass that ends when the exchanges of its buckets are done.

    `group`: the number of the group that exchanged the buckets.
    `returned`: the mark when the backward pass returned.
    """

    group: int
    buckets: list[Exchanged]
    returned: Any

    def seconds(self, place: HostPlace | GpuPlace) -> tuple[float, float]:
        """Return two times: when the last bucket was ready, and when the last exchange was done."""
        at = place.seconds
        ready = max(at(one.ready) for one in self.buckets)
        return ready, min(at(self.returned), max(ready, *(at(one.done) for one in self.buckets)))


Span = tuple[str, Any, Any]  # a segment, and the marks of its begin and end; its end may also be a BucketWait


@dataclass(frozen=True, slots=True)
class HeldGradient:
    """A gradient to check.

    `part`: a name. Gradients with the same name must have the same bits on all ranks.
    `expected`: the exact gradient, or None if unknown.
    `num_rounded`: the number of shares that a library may divide, and therefore round, before the addition. The number
        is 1 if the library adds the shares before the division, or if one rank has the whole gradient.
    """

    part: str
    gradient: Any
    expected: Any = None
    num_rounded: int = 1

    def rounding(self, num_micro_batches: int, epsilon: float) -> float:
        """Return the largest relative error that rounding can cause in a correct exchange.

        A division by a power of two causes no rounding. If the divisor is not a power of two, `num_rounded` shares are
        rounded before they are added. All shares are positive, so the relative error is at most the number of roundings
        times `epsilon`.

        `epsilon`: the distance from 1 to the next larger number of the gradient's type.
        """
        num = self.num_rounded
        return 0.0 if num & (num - 1) == 0 else (num + num_micro_batches + 2) * epsilon


class Replica:
    """A copy of the model that this rank trains. The strategy sets `model` and `optimizer`.

    `round_steps`: the number of steps in a round. One sample is the mean duration of the steps in a round.
    `probe_rounds`: the number of rounds that `probe` needs.
    """

    model: Any
    optimizer: Any
    round_steps = 1
    probe_rounds = 1

    def __init__(self, build: Build) -> None:
        self.build = build
        # Called with a mark when a backward pass has returned. Returns the end of the pass.
        self.exchanged: Callable[[Any], Any] = lambda returned: returned

    def forward(self, inputs: Any) -> Any:
        """Return the output of a micro-batch."""
        return self.model(inputs)

    def deferring(self) -> AbstractContextManager[Any]:
        """Return a context in which a backward pass exchanges nothing.

        All micro-batches except the last run in this context.
        """
        return nullcontext()

    def passes(self, inputs: Any, targets: Any) -> list[Span]:
        """Run the passes of all micro-batches.

        Return each segment, with the mark of its begin and the mark of its end.
        """
        build, mark, spans = self.build, self.build.place.mark, list[Span]()
        num = build.num_micro_batches
        for number, (part, of_part) in enumerate(zip(inputs.chunk(num), targets.chunk(num), strict=True)):
            defers = number < num - 1 and not build.case.sync_each
            with self.deferring() if defers else nullcontext():
                began = mark()
                loss = build.source.loss(self.forward(part), of_part, num)
                forwarded = mark()
                loss.backward()
                ended = self.exchanged(mark())
            spans += [("forward", began, forwarded), ("backward", forwarded, ended)]
        return spans

    def zero_grad(self) -> None:
        """Reset the gradients of the previous step."""
        self.optimizer.zero_grad()

    def update(self) -> None:
        """Change the weights."""
        self.optimizer.step()

    def probe(self, on: bool) -> None:
        """Begin or end a probe. A probe is a round after which weights or gradients show whether exchanges are correct.

        The default method does nothing, because the gradients of any round show whether exchanges are correct.
        """

    def own_log(self) -> Mapping[str, float]:
        """Return the times that the library's own logger recorded for the first steps.

        The result has the number of steps ("steps") and the mean seconds of segments. If the library has no logger, the
        result is empty.
        """
        return {}

    def weights(self) -> list[Any]:
        """Return the weights on this rank, without autograd history. A caller can save and restore these weights."""
        return [local(weight).detach() for weight in self.model.parameters()]

    def blocks(self) -> list[tuple[int, Any]]:
        """Return the number and the module of each block on this rank.

        The number is the block's position in the whole model.
        """
        return list(enumerate(self.model))

    def held(self) -> Iterator[HeldGradient]:
        """Yield the gradients of the last step.

        By default, every rank holds all gradients, and DistributedDataParallel averages the gradients over all ranks.
        """
        num = self.build.num_ranks
        yield from held_alike(self, "all", WHOLE, tuple(range(num)), num_rounded=num)


def held_alike(
    replica: Replica, part: str, share: Share, replicas: Sequence[int], shared: bool = False, num_rounded: int = 1
) -> Iterator[HeldGradient]:
    """Yield the gradients of all blocks.

    This function is for strategies in which several ranks hold equal shares of each block.

    `shared`: whether all ranks hold the undivided weights.
    `num_rounded`: as in HeldGradient.
    """
    for number, block in replica.blocks():
        trained = (weight for weight in block.parameters() if weight.requires_grad)
        for index, weight in enumerate(trained):
            expected = replica.build.source.expected(share, number, index, replicas, weight.shape)
            name = "all" if shared and not is_divided(weight) else part
            yield HeldGradient(name, weight.grad, expected, num_rounded)


def is_divided(weight: Any) -> bool:
    """Check whether a weight is only a part of a larger weight."""
    return bool(getattr(weight, "divided", False))


def local(tensor: Any) -> Any:
    """Return the part of a tensor that is on this rank. A tensor that is not distributed is returned unchanged."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
