"""A convolutional network to train or predict.

The network has stages of bottleneck blocks, as in ResNet-50 (He et al., CVPR 2016). The 3 x 3 convolution of a block
has the block's stride, as in torchvision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

COLOURS, EXPANSION, STEM_KERNEL = 3, 4, 7


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution without bias, with `inputs` input channels and `outputs` output channels.

    `side`: the width of the output in pixels.
    """

    inputs: int
    outputs: int
    kernel: int
    stride: int
    side: int

    @property
    def parameters(self) -> int:
        """The number of its weights."""
        return self.inputs * self.outputs * self.kernel**2

    @property
    def flops(self) -> int:
        """The number of floating-point operations of one sample's forward pass.

        Each weight needs 2 operations for each pixel of the result.
        """
        return 2 * self.parameters * self.side**2


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Three convolutions, each followed by a norm.

    `beside`: the convolution on the shortcut, also followed by a norm. The field is None if the block changes neither
        the number of channels nor the size of the image.
    """

    convolutions: tuple[Convolution, Convolution, Convolution]
    beside: Convolution | None

    @property
    def all(self) -> tuple[Convolution, ...]:
        """All convolutions, in the order of weights."""
        return (*self.convolutions, *(() if self.beside is None else (self.beside,)))


@dataclass(frozen=True, slots=True)
class Residual:
    """The sizes of a residual network.

    `blocks`: the number of blocks in each stage.
    `channels`: the channels inside a block of the first stage. From one stage to the next, the number of channels
        doubles. The output of a block has four times as many channels as the convolutions inside the block.
    `image`: the width and height of an image in pixels.
    `samples`: the number of samples of one rank in a micro-batch.
    `head_only`: whether only the last layer is trained.
    """

    blocks: tuple[int, ...]
    channels: int
    image: int
    classes: int
    samples: int = 1
    head_only: bool = False

    @property
    def stem(self) -> Convolution:
        """The first convolution. A 3 x 3 maximum pooling with stride 2 follows the first convolution."""
        return Convolution(COLOURS, self.channels, STEM_KERNEL, 2, _halved(self.image))

    @property
    def features(self) -> int:
        """The number of inputs of the last layer, which computes the classes."""
        return EXPANSION * self.channels << (len(self.blocks) - 1)

    def bottlenecks(self) -> Iterator[Bottleneck]:
        """Yield the bottleneck blocks in the order of the forward pass."""
        inputs, side = self.channels, _halved(self.stem.side)
        for stage, number in enumerate(self.blocks):
            inner = self.channels * 2**stage
            for block in range(number):
                stride = 2 if stage and not block else 1
                before, side = side, side if stride == 1 else _halved(side)
                outputs = EXPANSION * inner
                found = (
                    Convolution(inputs, inner, 1, 1, before),
                    Convolution(inner, inner, 3, stride, side),
                    Convolution(inner, outputs, 1, 1, side),
                )
                beside = None if stride == 1 and inputs == outputs else Convolution(inputs, outputs, 1, stride, side)
                yield Bottleneck(found, beside)
                inputs = outputs

    def convolutions(self) -> list[Convolution]:
        """Return all convolutions in the order of weights.

        A norm with two weights per channel follows each convolution.
        """
        return [self.stem, *(each for block in self.bottlenecks() for each in block.all)]

    @property
    def head(self) -> int:
        """The weights of the last layer."""
        return (self.features + 1) * self.classes

    @property
    def parameters(self) -> int:
        """The number of all weights."""
        return sum(each.parameters + 2 * each.outputs for each in self.convolutions()) + self.head

    @property
    def trained_parameters(self) -> int:
        """The weights that are trained."""
        return self.head if self.head_only else self.parameters

    @property
    def num_layers(self) -> int:
        """The number of layers, which are the stem, the blocks and the last layer."""
        return 2 + sum(self.blocks)

    @property
    def flops(self) -> int:
        """The operations of the forward and the backward pass of one sample: 3 times those of the forward pass."""
        return 3 * (sum(each.flops for each in self.convolutions()) + 2 * self.features * self.classes)

    @property
    def statistics(self) -> tuple[int, int]:
        """The number of elements in the running means and variances of all norms, and the number of norms."""
        convolutions = self.convolutions()
        return 2 * sum(each.outputs for each in convolutions), len(convolutions)


def _halved(side: int) -> int:
    return (side + 1) // 2
