"""Define layers that sleep and have real gradients of a known value.

The gradient of a layer's weight is the product of three factors: a vector of small integers, the number (rank mod 7 +
1), and a mean. The mean covers all values that the layer received in the forward pass and in the backward pass. The
mean is 1 unless an exchange of activations failed. Sums of these gradients over ranks are exact in float32 in any
order. After an exchange, the gradients are therefore compared bit by bit with their exact values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from bench.core.training_step import TimedLayers
from bench.transports._step_place import GpuPlace, HostPlace
from bench.transports.strategies._exchanges import all_to_all, copied, summed
from bench.transports.strategies._replica import Share

_PERIOD = 7  # the elements of the gradient repeat 1, 2, ... 7
_FACTORS = 7  # factors of the ranks; small factors keep sums over ten thousands of ranks exact in float32
_ELEMENT_BYTES = 4
_READ = 64  # elements of a batch that layers read if they pass nothing to another rank


class TimedSource:
    """Timed layers as a model to train. One micro-batch is one sample."""

    def __init__(
        self,
        torch: Any,
        rank: int,
        timed: TimedLayers,
        delays_s: Mapping[str, float],
        hands_over: bool,
        place: HostPlace | GpuPlace,
    ) -> None:
        """Prepare the layers.

        `delays_s`: for each segment, the delay of this rank.
        `hands_over`: whether layers pass activations to other ranks.
        """
        self._torch, self._rank, self._timed, self._delays_s, self._place = torch, rank, timed, delays_s, place
        self._read = timed.activation_bytes // _ELEMENT_BYTES if hands_over else _READ
        self._num_micro_batches = 1

    def batch(self, num_micro_batches: int) -> tuple[Any, Any]:
        """Return the inputs and targets of one step in host memory. All values are ones."""
        self._num_micro_batches = num_micro_batches
        size = max(self._read, self._timed.input_bytes // _ELEMENT_BYTES)
        return self._torch.ones(num_micro_batches, size), self._torch.zeros(num_micro_batches)

    def read(self, inputs: Any) -> Any:
        """Return the part of a batch that the first layer reads."""
        return inputs[:, : self._read].contiguous()

    def blocks(self, share: Share) -> list[Any]:
        """Return the layers.

        With expert parallelism, every second layer is an expert. All ranks hold complete copies of the other layers.
        """
        module = _layer_class(self._torch)
        forward, backward = self._delays_s.get("forward", 0.0), self._delays_s.get("backward", 0.0)
        timed, late, found = self._timed, self._timed.layers // 2, []  # one layer has the complete delay
        for number in range(timed.layers):
            own = share if share.kind != "experts" or number % 2 else Share("whole")
            divided = share.num if own.kind == "tensors" else 1
            seconds = timed.forward_s / divided, timed.backward_s / divided
            extra = (forward, backward) if number == late else (0.0, 0.0)
            sources = share.num if own.kind == "experts" else 1  # an expert has the tokens of the whole row
            gradient = self._part(number, own) * (_factor(self._rank) * sources)
            found.append(module(self._place, gradient, own, (seconds[0] + extra[0], seconds[1] + extra[1])))
        return found

    def loss(self, output: Any, targets: Any, num_micro_batches: int) -> Any:
        """Return the sum of the outputs. The gradient of this sum is 1 for every output."""
        return output.sum()

    def expected(self, share: Share, number: int, index: int, replicas: Sequence[int], shape: Any) -> Any:
        """Sum the gradients of all micro-batches on each replica, and return the mean over the replicas."""
        sum_of_ranks = sum(map(_factor, replicas)) * self._num_micro_batches
        return self._part(number, share).mul_(sum_of_ranks).div_(len(replicas))

    def _part(self, number: int, share: Share) -> Any:
        """Return the part of a layer's gradient that belongs to `share`, before it is multiplied by the rank's factor.

        The elements are the numbers 1 to 7, repeated. The first number differs between successive layers.
        """
        size = self._timed.num_bytes // _ELEMENT_BYTES
        first, last = 0, size
        if share.kind == "tensors":
            first, last = share.place * size // share.num, (share.place + 1) * size // share.num
        values = self._torch.arange(number + first, number + last, dtype=self._torch.float32)
        return self._place.put(values.remainder_(_PERIOD).add_(1))


def _factor(rank: int) -> int:
    """Return the factor (rank mod 7 + 1), by which all gradients of a rank are multiplied."""
    return rank % _FACTORS + 1


@cache
def _halves(torch: Any) -> tuple[Any, Any]:
    """Return two autograd functions that sleep for the time of a layer.

    Together, the two functions give the layer's weight a gradient of known values. A pipeline schedule may compute the
    gradients of inputs and the gradients of weights separately. The time of a backward pass is therefore divided
    between the two gradients.
    """

    class InputPart(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, values: Any, place: HostPlace | GpuPlace, due: Any, backward_s: float) -> Any:
            ctx.place, ctx.backward_s = place, backward_s
            place.work_until(due)
            return values.view_as(values)

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            ctx.place.work_until(ctx.place.due(ctx.backward_s))
            return upstream[0].contiguous(), None, None, None

    class WeightPart(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(
            ctx: Any,
            weight: Any,
            place: HostPlace | GpuPlace,
            gradient: Any,
            mean: Any,
            number: int,
            backward_s: float,
        ) -> Any:
            ctx.place, ctx.gradient, ctx.mean, ctx.number, ctx.backward_s = place, gradient, mean, number, backward_s
            return weight[0].detach()

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            due = ctx.place.due(ctx.backward_s)
            gradient = ctx.gradient * (ctx.mean * ctx.place.mean(upstream[0], ctx.number))  # upstream: the sum of ones
            ctx.place.work_until(due)
            return gradient, None, None, None, None, None

    return InputPart, WeightPart


@cache
def _layer_class(torch: Any) -> Any:
    input_part, weight_part = _halves(torch)

    class TimedLayer(torch.nn.Module):  # type: ignore[misc]
        """Sleeps in the forward pass and in the backward pass, and gives its weight a gradient of known values."""

        def __init__(
            self, place: HostPlace | GpuPlace, gradient: Any, share: Share, seconds: tuple[float, float]
        ) -> None:
            super().__init__()
            self._place = place
            self.weight = torch.nn.Parameter(torch.zeros(len(gradient)))
            self.weight.of_expert, self.weight.divided = share.kind == "experts", share.num > 1
            self._gradient, self._share = gradient, share
            self._forward_s, self._half_s = seconds[0], seconds[1] / 2

        def forward(self, values: Any) -> Any:
            share = self._share
            if self.weight.requires_grad and not values.requires_grad:
                values = values.detach().requires_grad_()
            if share.kind == "tensors":
                values = copied(torch, values, share.group)
            elif share.kind == "experts":
                values = all_to_all(torch, values, share.group)
            place, number = self._place, values.numel()
            due, mean = place.due(self._forward_s), place.mean(values, number)
            weight = weight_part.apply(self.weight, place, self._gradient, mean, number, self._half_s)
            if share.kind == "tensors":
                # Parts of the sum are nonzero integers, so losing a part changes the sum.
                values = values * (3 - 2 * share.num if share.place == 0 else 2)
            values = input_part.apply(values, place, due, self._half_s) + weight
            if share.kind == "tensors":
                return summed(torch, values, share.group)
            return all_to_all(torch, values, share.group) if share.kind == "experts" else values

    return TimedLayer
