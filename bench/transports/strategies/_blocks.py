"""Build models from sizes: transformer blocks (gated or not, with or without experts), an embedding and a head.

The weights of a block depend only on the number of the block. All ranks therefore have weights of the same model, even
if a rank holds only a part of each block. The experts of a token depend on the token's position: token t goes to the
experts t, t + 1, ... modulo the number of experts. All experts therefore get equally many tokens, and times do not
depend on the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from bench.core.case import Case
from bench.core.step_model import NUM_CLASSES, Transformer
from bench.transports.strategies._exchanges import all_to_all, copied, summed
from bench.transports.strategies._layer import layer_class
from bench.transports.strategies._replica import WHOLE, Share


class BlockSource:
    """A transformer as a model to train on random data. Ranks with different `data_rank`s get different batches."""

    def __init__(self, torch: Any, sizes: Transformer, data_rank: int, case: Case) -> None:
        """Prepare without weights.

        `case`: determines the element type of matrix products, whether layers are compiled, and what the backward pass
            computes again.
        """
        self._torch, self._sizes, self._data_rank, self._case = torch, sizes, data_rank, case

    def batch(self, num_micro_batches: int) -> tuple[Any, Any]:
        """Return the inputs and targets of one step in host memory."""
        torch, sizes = self._torch, self._sizes
        random = torch.Generator().manual_seed(1 + self._data_rank)
        samples = sizes.samples * num_micro_batches
        if sizes.vocabulary:
            words = torch.randint(sizes.vocabulary, (samples, sizes.tokens + 1), generator=random)
            return words[:, :-1].contiguous(), words[:, 1:].contiguous()
        images = torch.randn(samples, max(1, sizes.tokens - 1), sizes.patch, generator=random)
        return images, torch.randint(NUM_CLASSES, (samples,), generator=random)

    def read(self, inputs: Any) -> Any:
        """Return the inputs, because the model reads the whole batch."""
        return inputs

    def blocks(self, share: Share) -> list[Any]:
        """Return the embedding, the layers and the head."""
        torch, sizes = self._torch, self._sizes
        weights = [_Weights(torch, number) for number in range(sizes.layers + 2)]
        first, layer, last = _inputs_class(torch), _layer_class(torch), _head_class(torch)
        case = self._case
        layers = [layer(sizes, one, share, case.autocast, case.recompute == "layers") for one in weights[1:-1]]
        head = last(sizes, weights[-1])
        found = [first(sizes, weights[0]), *layers, head]
        if sizes.adapter_rank or sizes.head_only:
            for weight in (weight for block in found for weight in block.parameters()):
                weight.requires_grad_(False)
        if sizes.head_only:
            head.requires_grad_()
        for one, block in zip(weights[1:-1], layers, strict=True):
            _adapt(torch, block, one, sizes.adapter_rank)
            if case.compiled:
                block.compile()
        return found

    def loss(self, output: Any, targets: Any, num_micro_batches: int) -> Any:
        """Return the cross entropy, divided by the number of micro-batches."""
        found = self._torch.nn.functional.cross_entropy(output.flatten(0, -2).float(), targets.flatten())
        return found / num_micro_batches

    def expected(self, share: Share, number: int, index: int, replicas: Sequence[int], shape: Any) -> Any:
        """Return None, because no formula gives the exact gradients of this model."""
        return


class _Weights:
    """The weights of one block. The order of requests determines the value of each weight."""

    def __init__(self, torch: Any, number: int) -> None:
        self._torch, self._random = torch, torch.Generator().manual_seed(1000 + number)

    def matrix(self, *shape: int) -> Any:
        """Return one or several matrices. A product with one of these matrices preserves the magnitude of its input."""
        return self._torch.randn(*shape, generator=self._random).div_(shape[-2] ** 0.5)

    def part(self, whole: Any, dim: int, share: Share) -> Any:
        """Return this rank's share of a matrix, divided along one dimension, as a parameter."""
        own = whole.chunk(share.num, dim)[share.place].clone()
        weight = self._torch.nn.Parameter(own)
        weight.divided = share.num > 1
        return weight


def _adapt(torch: Any, layer: Any, weights: _Weights, rank: int) -> None:
    """Give each matrix of a layer a low-rank adapter of the given `rank`. If `rank` is 0, matrices get no adapter.

    An adapter consists of two narrow matrices, whose product is added to the matrix.
    """
    for part in (layer.attention, layer.feedforward) if rank else ():
        for name, weight in list(part.named_parameters()):
            *first, rows, columns = weight.shape
            part.register_parameter(f"{name}_in", torch.nn.Parameter(weights.matrix(*first, rows, rank)))
            part.register_parameter(f"{name}_out", torch.nn.Parameter(weights.matrix(*first, rank, columns)))


def _times(values: Any, part: Any, name: str) -> Any:
    """Multiply values by the matrix `name` of an attention or feed-forward part.

    If the matrix has an adapter, add the adapter's product.
    """
    found, inner = values @ getattr(part, name), getattr(part, f"{name}_in", None)
    return found if inner is None else found + (values @ inner) @ getattr(part, f"{name}_out")


@cache
def _inputs_class(torch: Any) -> Any:
    nn, functional = torch.nn, torch.nn.functional

    class Inputs(nn.Module):  # type: ignore[name-defined,misc]
        """Embeds the tokens of a text, or a class token and the patches of an image."""

        def __init__(self, sizes: Transformer, weights: _Weights) -> None:
            super().__init__()
            self._words = bool(sizes.vocabulary)
            rows = sizes.vocabulary or sizes.patch
            self.table = nn.Parameter(weights.matrix(rows, sizes.hidden))
            if not self._words:
                self.first = nn.Parameter(torch.zeros(1, 1, sizes.hidden))
                self.places = nn.Parameter(weights.matrix(sizes.tokens, sizes.hidden))

        def forward(self, values: Any) -> Any:
            if self._words:
                return functional.embedding(values, self.table)
            tokens = values @ self.table
            whole = torch.cat([self.first.expand(len(tokens), -1, -1), tokens], 1)
            return whole[:, : len(self.places)] + self.places

    return Inputs


@cache
def _head_class(torch: Any) -> Any:
    nn = torch.nn

    class Head(nn.Module):  # type: ignore[name-defined,misc]
        """The head, which predicts the next token after every token of a text.

        For an image, the head predicts the class from the first token.
        """

        def __init__(self, sizes: Transformer, weights: _Weights) -> None:
            super().__init__()
            self._words = bool(sizes.vocabulary)
            self.norm = nn.LayerNorm(sizes.hidden)
            self.matrix = nn.Parameter(weights.matrix(sizes.hidden, sizes.vocabulary or NUM_CLASSES))

        def forward(self, values: Any) -> Any:
            values = self.norm(values)
            return (values if self._words else values[:, :1]) @ self.matrix

    return Head


@cache
def _attention_class(torch: Any) -> Any:
    nn, functional = torch.nn, torch.nn.functional

    class Attention(nn.Module):  # type: ignore[name-defined,misc]
        """Attention, causal for tokens. Each tensor-parallel rank has some of the heads."""

        def __init__(self, sizes: Transformer, weights: _Weights, share: Share) -> None:
            super().__init__()
            self._share = share if share.kind == "tensors" else WHOLE
            hidden, size = sizes.hidden, sizes.hidden // sizes.heads
            self._size, self._causal = size, bool(sizes.vocabulary)
            self.query = weights.part(weights.matrix(hidden, hidden), 1, self._share)
            self.key = weights.part(weights.matrix(hidden, size * sizes.kv_heads), 1, self._share)
            self.value = weights.part(weights.matrix(hidden, size * sizes.kv_heads), 1, self._share)
            self.out = weights.part(weights.matrix(hidden, hidden), 0, self._share)

        def forward(self, values: Any) -> Any:
            divided = self._share.num > 1
            values = copied(torch, values, self._share.group) if divided else values
            heads = [
                _times(values, self, name).unflatten(-1, (-1, self._size)).transpose(1, 2)
                for name in ("query", "key", "value")
            ]
            shared = heads[0].shape[1] != heads[1].shape[1]
            mixed = functional.scaled_dot_product_attention(*heads, is_causal=self._causal, enable_gqa=shared)
            found = _times(mixed.transpose(1, 2).flatten(-2), self, "out")
            return summed(torch, found, self._share.group) if divided else found

    return Attention


@cache
def _feedforward_class(torch: Any) -> Any:
    nn, functional = torch.nn, torch.nn.functional

    class Feedforward(nn.Module):  # type: ignore[name-defined,misc]
        """A feed-forward block, or several experts that each have the size of a feed-forward block.

        With tensor parallelism, the ranks divide the block among them. With expert parallelism, each rank holds some of
        the experts.
        """

        def __init__(self, sizes: Transformer, weights: _Weights, share: Share) -> None:
            super().__init__()
            self._share, self._sizes = share, sizes
            inner = share if share.kind == "tensors" else WHOLE
            self._of_experts = share if share.kind == "experts" and sizes.experts > 1 else WHOLE
            wide = (sizes.experts, sizes.hidden, sizes.feedforward)
            self.up = self._part(weights, weights.matrix(*wide), 2, inner)
            self.gate = self._part(weights, weights.matrix(*wide), 2, inner) if sizes.gated else None
            self.down = self._part(weights, weights.matrix(wide[0], wide[2], wide[1]), 1, inner)

        def _part(self, weights: _Weights, whole: Any, dim: int, inner: Share) -> Any:
            if self._of_experts.num > 1:
                weight = weights.part(whole, 0, self._of_experts)
                weight.of_expert = True
                return weight
            return weights.part(whole, dim, inner)

        def forward(self, values: Any) -> Any:
            divided = self._share.kind == "tensors" and self._share.num > 1
            values = copied(torch, values, self._share.group) if divided else values
            found = self._routed(values) if self._sizes.experts > 1 else self._product(values.flatten(0, -2)[None])
            found = found.view_as(values)
            return summed(torch, found, self._share.group) if divided else found

        def _routed(self, values: Any) -> Any:
            tokens, sizes, share = values.flatten(0, -2), self._sizes, self._of_experts
            places = torch.arange(len(tokens), device=tokens.device).repeat_interleave(sizes.active_experts)
            ways = torch.arange(sizes.active_experts, device=tokens.device).repeat(len(tokens))
            experts = (places + ways) % sizes.experts
            order = experts.argsort(stable=True)
            sent = tokens[places[order]]
            if share.num == 1:
                done = self._product(sent.view(sizes.experts, -1, sizes.hidden)).flatten(0, 1)
            else:
                received = all_to_all(torch, sent, share.group)
                pieces = received.view(share.num, sizes.experts // share.num, -1, sizes.hidden)
                product = self._product(pieces.transpose(0, 1).flatten(1, 2))
                product = product.view(sizes.experts // share.num, share.num, -1, sizes.hidden)
                done = all_to_all(torch, product.transpose(0, 1).reshape(sent.shape), share.group)
            return torch.zeros_like(tokens).index_add(0, places[order], done.to(tokens.dtype)) / sizes.active_experts

        def _product(self, tokens: Any) -> Any:
            up = _times(tokens, self, "up")
            inner = functional.gelu(up) if self.gate is None else functional.silu(_times(tokens, self, "gate")) * up
            return _times(inner, self, "down")

    return Feedforward


@cache
def _layer_class(torch: Any) -> Any:
    nn = torch.nn
    attention_class, feedforward_class = _attention_class(torch), _feedforward_class(torch)

    class Layer(layer_class(torch)):  # type: ignore[misc]
        """A transformer layer: an attention block, then a feed-forward block.

        The attention block and the feed-forward block each have a norm before them and a residual connection around
        them.
        """

        def __init__(self, sizes: Transformer, weights: _Weights, share: Share, autocast: str, recompute: bool) -> None:
            super().__init__(autocast, recompute)
            self.first, self.second = nn.LayerNorm(sizes.hidden), nn.LayerNorm(sizes.hidden)
            self.attention = attention_class(sizes, weights, share)
            self.feedforward = feedforward_class(sizes, weights, share)

        def computed(self, values: Any) -> Any:
            values = values + self.attention(self.first(values)).float()
            return values + self.feedforward(self.second(values)).float()

    return Layer
