"""Define the sizes that describe a model to train.

A workload sets the sizes, and options can change them. No weights are loaded from a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.core.errors import UsageError

NUM_CLASSES = 1000  # of a model without a vocabulary, as in ImageNet-1k
# Sizes of a workload that an option may replace.
RESIZABLE = (
    "hidden",
    "feedforward",
    "heads",
    "kv_heads",
    "vocabulary",
    "tokens",
    "experts",
    "active_experts",
    "patch",
    "channels",
    "image",
)
RECOMPUTED = ("none", "layers")
# How buckets of gradients are compressed, besides PowerSGD. int8 has one scale for each bucket, int8-channel one for
# each 512 elements.
HOOKS = ("none", "fp16", "bf16", "int8", "int8-channel")
POWERSGD = "powersgd"
TRAINED = ("all", "head")  # which weights are trained, besides low-rank adapters
LORA = "lora"
AUTOCASTS = ("none", "bfloat16")


@dataclass(frozen=True, slots=True)
class Transformer:
    """The sizes of a transformer.

    `vocabulary`: the number of token types. It is 0 for a model of images. The tokens of an image are a class token and
        patches of `patch` numbers.
    `gated`: whether the feed-forward block has three matrices instead of two.
    `experts`: the number of feed-forward blocks per layer. A token uses `active_experts` of them.
    `samples`: the number of samples of one rank in a micro-batch.
    `adapter_rank`: the rank of the low-rank adapters of the layers' matrices (Hu et al. 2021). If the rank is not 0,
        only the adapters are trained.
    `head_only`: whether only the head is trained.
    """

    layers: int
    hidden: int
    feedforward: int
    heads: int
    kv_heads: int
    tokens: int
    vocabulary: int
    patch: int
    gated: bool
    experts: int
    active_experts: int
    samples: int
    adapter_rank: int = 0
    head_only: bool = False

    @property
    def adapters(self) -> int:
        """The number of weights in all LoRA adapters.

        For a matrix, an adapter of rank r has `r * (rows + columns)` weights.
        """
        width, blocks = self.hidden * self.kv_heads // self.heads, 3 if self.gated else 2
        attention = 6 * self.hidden + 2 * width
        feedforward = blocks * self.experts * (self.hidden + self.feedforward)
        return self.adapter_rank * self.layers * (attention + feedforward)

    @property
    def head(self) -> int:
        """The number of weights after the last transformer layer: a norm and the output matrix."""
        return 2 * self.hidden + self.hidden * (self.vocabulary or NUM_CLASSES)

    @property
    def trained_parameters(self) -> int:
        """The number of weights that are trained."""
        if self.adapter_rank:
            return self.adapters
        return self.head if self.head_only else self.parameters

    @property
    def num_layers(self) -> int:
        """The number of layers, including the embedding and the head."""
        return self.layers + 2

    @property
    def layer_matrices(self) -> int:
        """The number of weights in the matrices of one layer.

        A layer has the matrices of the attention. A layer also has the matrices of one feed-forward block, or of all
        experts.
        """
        shared = 2 * self.hidden * self.hidden * self.kv_heads // self.heads
        feedforward = (3 if self.gated else 2) * self.hidden * self.feedforward * self.experts
        return 2 * self.hidden * self.hidden + shared + feedforward

    @property
    def parameters(self) -> int:
        """The number of all weights, including frozen ones.

        Matrices have no biases. Norms have two weights per element.
        """
        hidden = self.hidden
        inputs = self.vocabulary * hidden if self.vocabulary else (self.patch + 1 + self.tokens) * hidden
        return self.layers * (self.layer_matrices + 4 * hidden) + inputs + self.head + self.adapters


def resized(text: str) -> Mapping[str, int]:
    """Parse new sizes of a model, such as `hidden=64,heads=4`. Raises UsageError."""
    found: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.strip().partition("=")
        if name not in RESIZABLE or not value.isdecimal() or int(value) < 1:
            raise UsageError(f"{part.strip()!r} is not NAME=NUMBER with one of the names {', '.join(RESIZABLE)}")
        found[name] = int(value)
    return found


def hook_word(text: str) -> str:
    """Return the text if it is the name of a gradient compression: one of HOOKS, or powersgd:RANK.

    Raises UsageError otherwise.
    """
    kind, _, rank = text.partition(":")
    if text in HOOKS or (kind == POWERSGD and rank.isdecimal() and int(rank) > 0):
        return text
    raise UsageError(f"no compression is called {text!r}; there are: {', '.join(HOOKS)}, {POWERSGD}:RANK")


def trained_word(text: str) -> str:
    """Return the text if it names the weights to train: all, head or lora:RANK.

    Raises UsageError otherwise.
    """
    kind, _, rank = text.partition(":")
    if text in TRAINED or (kind == LORA and rank.isdecimal() and int(rank) > 0):
        return text
    raise UsageError(f"no weights are called {text!r}; there are: {', '.join(TRAINED)}, {LORA}:RANK")


def resize_word(text: str) -> str:
    """Return the text if the function `resized` can parse it. Raises UsageError otherwise."""
    resized(text)
    return text
