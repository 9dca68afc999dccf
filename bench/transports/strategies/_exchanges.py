"""Exchange activations on any process group. In the backward pass, exchange the gradients of these activations."""

from __future__ import annotations

from functools import cache
from typing import Any


def copied(torch: Any, values: Any, group: Any) -> Any:
    """Return the values unchanged. In the backward pass, sum the gradients of these values over the group."""
    return _functions(torch)[0].apply(values, group)


def summed(torch: Any, values: Any, group: Any) -> Any:
    """Sum the values over the group. In the backward pass, return the gradients unchanged."""
    return _functions(torch)[1].apply(values, group)


def all_to_all(torch: Any, values: Any, group: Any) -> Any:
    """Divide the values into equal pieces, and send piece k to rank k of the group.

    In the backward pass, send the gradient of each piece back to the rank that sent the piece.
    """
    return _functions(torch)[2].apply(values, group)


@cache
def _functions(torch: Any) -> tuple[Any, Any, Any]:
    dist = torch.distributed

    class Copied(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, values: Any, group: Any) -> Any:
            ctx.group = group
            return values.view_as(values)

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            gradient = upstream[0].clone()
            dist.all_reduce(gradient, group=ctx.group)
            return gradient, None

    class Summed(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, values: Any, group: Any) -> Any:
            total = values.clone()
            dist.all_reduce(total, group=group)
            return total

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            return upstream[0], None

    class AllToAll(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, values: Any, group: Any) -> Any:
            ctx.group = group
            return exchanged(values, group)

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            return exchanged(upstream[0], ctx.group), None

    def exchanged(values: Any, group: Any) -> Any:
        received = torch.empty_like(values, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, values.contiguous(), group=group)
        return received

    return Copied, Summed, AllToAll
