"""The sizes of a model to train. They come from a workload and can be changed; no weights are loaded from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.core.errors import UsageError

NUM_CLASSES = 1000  # of a model without a vocabulary, as in ImageNet-1k
# Sizes of a workload that an option may change.
RESIZABLE = ("hidden", "feedforward", "heads", "kv_heads", "vocabulary", "tokens", "experts", "active_experts", "patch")
RECOMPUTED = ("none", "layers")
HOOKS = ("none", "fp16", "bf16")  # compressions of gradients, besides PowerSGD
POWERSGD = "powersgd"
AUTOCASTS = ("none", "bfloat16")


@dataclass(frozen=True, slots=True)
class Transformer:
    """The sizes of a transformer.

    `vocabulary`: 0 for a model of images, with tokens that are patches of `patch` numbers and a class token. `gated`:
    whether the feed-forward block has three matrices instead of two. `experts`: feed-forward blocks per layer; a token
    uses `active_experts` of them. `samples`: the number of samples of one rank in a micro-batch.
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

    @property
    def layer_matrices(self) -> int:
        """The number of weights of one layer's matrices: attention, and the feed-forward block or all experts."""
        shared = 2 * self.hidden * self.hidden * self.kv_heads // self.heads
        feedforward = (3 if self.gated else 2) * self.hidden * self.feedforward * self.experts
        return 2 * self.hidden * self.hidden + shared + feedforward

    @property
    def parameters(self) -> int:
        """The number of all weights. Matrices have no biases, and norms have two weights per element."""
        hidden = self.hidden
        inputs = self.vocabulary * hidden if self.vocabulary else (self.patch + 1 + self.tokens) * hidden
        head = 2 * hidden + hidden * (self.vocabulary or NUM_CLASSES)
        return self.layers * (self.layer_matrices + 4 * hidden) + inputs + head


def resized(text: str) -> Mapping[str, int]:
    """Return the new sizes that `hidden=64,heads=4` gives. Raises UsageError."""
    found: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.strip().partition("=")
        if name not in RESIZABLE or not value.isdecimal() or int(value) < 1:
            raise UsageError(f"{part.strip()!r} is not NAME=NUMBER with one of the names {', '.join(RESIZABLE)}")
        found[name] = int(value)
    return found


def hook_word(text: str) -> str:
    """Return the text if it names a compression: none, fp16, bf16 or powersgd:RANK. Raises UsageError otherwise."""
    kind, _, rank = text.partition(":")
    if text in HOOKS or (kind == POWERSGD and rank.isdecimal() and int(rank) > 0):
        return text
    raise UsageError(f"no compression is called {text!r}; there are: {', '.join(HOOKS)}, {POWERSGD}:RANK")


def resize_word(text: str) -> str:
    """Return the text if `resized` can read it. Raises UsageError otherwise."""
    resized(text)
    return text
