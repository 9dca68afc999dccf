"""A residual network as a model to train, on random images with fixed seeds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from bench.core.case import Case
from bench.core.residual import COLOURS, Bottleneck, Convolution, Residual
from bench.transports.strategies._layer import layer_class
from bench.transports.strategies._replica import Share


class ResidualSource:
    """The network and its batches. Ranks with different `data_rank`s have different batches."""

    def __init__(self, torch: Any, sizes: Residual, data_rank: int, case: Case) -> None:
        self._torch, self._sizes, self._data_rank, self._case = torch, sizes, data_rank, case

    def batch(self, num_micro_batches: int) -> tuple[Any, Any]:
        """Return the images and classes of one step in host memory."""
        torch, sizes = self._torch, self._sizes
        random, num = torch.Generator().manual_seed(1 + self._data_rank), sizes.samples * num_micro_batches
        images = torch.randn(num, COLOURS, sizes.image, sizes.image, generator=random)
        return images, torch.randint(sizes.classes, (num,), generator=random)

    def read(self, inputs: Any) -> Any:
        """Return the inputs, because the model reads the whole batch."""
        return inputs

    def blocks(self, share: Share) -> list[Any]:
        """Return the stem, the blocks and the last layer. Every rank has all of them."""
        torch, sizes, case = self._torch, self._sizes, self._case
        block_class = _block_class(torch)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000)  # every rank, and both replicas, have the same weights
            blocks = [block_class(each, case.autocast, case.recompute == "layers") for each in sizes.bottlenecks()]
            found = [_stem(torch, sizes), *blocks, _head(torch, sizes)]
        for weight in (weight for block in found[:-1] for weight in block.parameters() if sizes.head_only):
            weight.requires_grad_(False)
        for block in blocks if case.compiled else ():
            block.compile()
        return found

    def loss(self, output: Any, targets: Any, num_micro_batches: int) -> Any:
        """Return the cross entropy, divided by the number of micro-batches."""
        return self._torch.nn.functional.cross_entropy(output.float(), targets) / num_micro_batches

    def expected(self, share: Share, number: int, index: int, replicas: Sequence[int], shape: Any) -> Any:
        """Return None, because no formula gives the exact gradients of this model."""
        return


def _stem(torch: Any, sizes: Residual) -> Any:
    nn = torch.nn
    return nn.Sequential(*_with_norm(torch, sizes.stem), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))


def _head(torch: Any, sizes: Residual) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(sizes.features, sizes.classes))


def _with_norm(torch: Any, sizes: Convolution) -> tuple[Any, Any]:
    nn, kernel = torch.nn, sizes.kernel
    one = nn.Conv2d(sizes.inputs, sizes.outputs, kernel, stride=sizes.stride, padding=kernel // 2, bias=False)
    return one, nn.BatchNorm2d(sizes.outputs)


@cache
def _block_class(torch: Any) -> Any:
    nn = torch.nn

    class Block(layer_class(torch)):  # type: ignore[misc]
        """A bottleneck block."""

        def __init__(self, sizes: Bottleneck, autocast: str, recompute: bool) -> None:
            super().__init__(autocast, recompute)
            first, second, third = (_with_norm(torch, each) for each in sizes.convolutions)
            self.inner = nn.Sequential(*first, nn.ReLU(), *second, nn.ReLU(), *third)
            self.beside = None if sizes.beside is None else nn.Sequential(*_with_norm(torch, sizes.beside))

        def computed(self, values: Any) -> Any:
            inner = self.inner(values)
            return nn.functional.relu(inner + (values if self.beside is None else self.beside(values))).float()

    return Block
