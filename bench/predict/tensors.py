"""List the weights of a model as PyTorch's tensors, and the buckets of their gradients.

A bucket ends with the tensor that fills it, and FSDP pads every tensor, so message sizes depend on the tensors. Models
with a gated feed-forward block have the tensors of Llama: separate matrices for queries, keys and values, RMS norms and
no biases. All other models have the tensors of `torch.nn.TransformerEncoderLayer`, which has biases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from math import ceil

from bench.core.errors import UsageError
from bench.core.residual import Convolution, Residual
from bench.predict.messages import Refusal
from bench.predict.workload import ModelSizes

# DistributedDataParallel starts the exchange early with a small first bucket if no bucket size is given.
FIRST_BUCKET_BYTES, DEFAULT_BUCKET_BYTES = 1 << 20, 25 << 20
_MOST_BUCKETS = 20_000


@dataclass(frozen=True, slots=True)
class WeightTensor:
    """One tensor of weights.

    `divided`: the dimension that tensor parallelism divides, 0 or 1. None means that every rank has the whole tensor. A
    vector has one column.
    """

    rows: int
    columns: int = 1
    divided: int | None = None

    @property
    def elements(self) -> int:
        """The number of elements."""
        return self.rows * self.columns

    def padded(self, ranks: int) -> int:
        """Return the number of elements after FSDP has padded the rows.

        After the padding, each rank has the same number of rows.
        """
        return ceil(self.rows / ranks) * ranks * self.columns

    def of_rank(self, tensor: int) -> WeightTensor:
        """Return the part of this tensor that one tensor-parallel rank stores."""
        if self.divided is None:
            return self
        if self.divided == 0:
            return replace(self, rows=ceil(self.rows / tensor))
        return replace(self, columns=ceil(self.columns / tensor))


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """The tensors of one tensor-parallel rank, each list in the order of the forward pass.

    `layer`: the tensors of each layer, without experts. `expert`: the tensors of one expert of one layer.
    """

    inputs: tuple[WeightTensor, ...]
    layer: tuple[WeightTensor, ...]
    expert: tuple[WeightTensor, ...]
    outputs: tuple[WeightTensor, ...]


class StageTensors:
    """The tensors of one rank of a stage, in the order of the forward pass.

    All layouts with an equal stage share one object.

    `elements`: the elements of all tensors.
    """

    def __init__(self, every: tuple[WeightTensor, ...]) -> None:
        self.every = every
        self.elements = sum(tensor.elements for tensor in every)
        self._buckets: dict[tuple[float, float | None, float], tuple[tuple[float, int], ...]] = {}

    def buckets(self, element_bytes: float, given: float | None, sent_bytes: float) -> tuple[tuple[float, int], ...]:
        """Return the buckets of these tensors, as `filled_buckets` computes them."""
        key = element_bytes, given, sent_bytes
        if key not in self._buckets:
            self._buckets[key] = filled_buckets(self.every, *key)
        return self._buckets[key]


@lru_cache(maxsize=64)
def model_tensors(model: ModelSizes, tensor: int) -> ModelTensors | None:
    """Return the tensors of a model, or None if its layer sizes are unknown.

    All tensors together have `model.parameters` elements. If the sizes of the other tensors do not explain all
    parameters, the remaining parameters form one input tensor, such as a table of positions. If `parameters` is too
    small for separate norms and biases, each layer has a single vector for its norms and biases.
    """
    if model.residual is not None:
        return _convolutions(model.residual)
    hidden, feedforward, layers = model.hidden, model.feedforward, model.layers
    if hidden is None or feedforward is None or layers is None:
        return None
    inputs, outputs = _ends(model, hidden)
    norm = (WeightTensor(hidden),) if model.gated else (WeightTensor(hidden), WeightTensor(hidden))
    block = _block(hidden, feedforward, gated=model.gated)
    # the router that assigns tokens to experts
    after = (WeightTensor(model.experts, hidden),) if model.experts > 1 else block
    layer = (*norm, *_attention(model, hidden), *norm, *after)
    found = ModelTensors(inputs, layer, block if model.experts > 1 else (), (*norm, *outputs))
    return _of_rank(_with_rest(found, model, hidden, layers), tensor)


def _convolutions(model: Residual) -> ModelTensors:
    """Return the tensors of a residual network.

    The blocks of the network differ, so all its tensors are stored as a single layer.
    """

    def with_norm(each: Convolution) -> tuple[WeightTensor, ...]:
        norm = WeightTensor(each.outputs)
        return (WeightTensor(each.outputs, each.inputs * each.kernel**2), norm, norm)

    blocks = tuple(tensor for block in model.bottlenecks() for each in block.all for tensor in with_norm(each))
    head = (WeightTensor(model.classes, model.features), WeightTensor(model.classes))
    return ModelTensors(with_norm(model.stem), blocks, (), head)


def buckets(num_bytes: float, given: float | None) -> tuple[tuple[float, int], ...]:
    """Return (bytes of a bucket, number of such buckets) for each size of bucket. The tensors are unknown.

    `given`: bytes of a bucket. If `given` is None, the first bucket has 1 MiB and all other buckets have 25 MiB, as in
    torch. Raises UsageError for a number of buckets that no training would use.
    """
    limit = given or DEFAULT_BUCKET_BYTES
    _check(num_bytes, limit)
    first = 0.0 if given else min(FIRST_BUCKET_BYTES, num_bytes)
    full, rest = divmod(num_bytes - first, limit)
    found = ((first, 1), (float(limit), int(full)), (rest, 1))
    return tuple((size, number) for size, number in found if size >= 1 and number)


def filled_buckets(
    tensors: Iterable[WeightTensor], element_bytes: float, given: float | None, sent_bytes: float
) -> tuple[tuple[float, int], ...]:
    """Return (bytes of a bucket, number of such buckets) for each size of bucket. The tensors are known.

    `tensors`: the tensors in the order of the forward pass.
    `sent_bytes`: bytes of an element in the exchange.

    The gradients of the last layer are ready first. A bucket takes whole tensors until it reaches its size, as in
    torch's _compute_bucket_assignment_by_size.
    """
    limit = given or DEFAULT_BUCKET_BYTES
    sizes = [tensor.elements for tensor in tensors][::-1]
    _check(sum(sizes) * element_bytes, limit)
    full_at = limit if given else FIRST_BUCKET_BYTES
    found, filled = [], 0
    for elements in sizes:
        filled += elements
        if filled * element_bytes >= full_at:
            found.append(filled)
            full_at, filled = limit, 0
    found += [filled] if filled else []
    return tuple((float(elements * sent_bytes), len([*same])) for elements, same in groupby(found))


def _check(num_bytes: float, limit: float) -> None:
    if num_bytes > _MOST_BUCKETS * limit:
        raise UsageError.of(
            Refusal.BUCKETS_TOO_MANY,
            bucket_bytes=limit,
            gigabytes=num_bytes / 1e9,
            most=_MOST_BUCKETS,
            least_bytes=num_bytes / _MOST_BUCKETS,
        )


def _attention(model: ModelSizes, hidden: int) -> tuple[WeightTensor, ...]:
    width, shared = model.attention_width or hidden, int(model.shared_width)
    out = WeightTensor(hidden, width, 1)
    if model.gated or shared != hidden:
        return (WeightTensor(width, hidden, 0), WeightTensor(shared, hidden, 0), WeightTensor(shared, hidden, 0), out)
    return (WeightTensor(3 * hidden, hidden, 0), WeightTensor(3 * hidden, divided=0), out, WeightTensor(hidden))


def _block(hidden: int, feedforward: int, *, gated: bool) -> tuple[WeightTensor, ...]:
    wide, back = WeightTensor(feedforward, hidden, 0), WeightTensor(hidden, feedforward, 1)
    return (wide, wide, back) if gated else (wide, WeightTensor(feedforward, divided=0), back, WeightTensor(hidden))


def _ends(model: ModelSizes, hidden: int) -> tuple[tuple[WeightTensor, ...], tuple[WeightTensor, ...]]:
    """Return the matrices before the first and after the last layer. A shared matrix belongs to the embedding."""
    inputs: tuple[WeightTensor, ...] = ()
    outputs: tuple[WeightTensor, ...] = ()
    if model.vocabulary:
        table = WeightTensor(model.vocabulary, hidden, 0)
        inputs, outputs = (table,), () if model.tied else (table,)
    if model.patch:
        inputs = (WeightTensor(hidden, model.patch), WeightTensor(hidden))
    if model.classes:
        outputs = (WeightTensor(model.classes, hidden), WeightTensor(model.classes))
    return inputs, outputs


def _with_rest(found: ModelTensors, model: ModelSizes, hidden: int, layers: int) -> ModelTensors:
    """Return tensors that have `model.parameters` elements in total."""
    rest = int(model.parameters) - _total(found, model, layers)
    if rest >= 0:
        table = [WeightTensor(rest // hidden, hidden)] if rest >= hidden else []
        table += [WeightTensor(rest % hidden)] if rest % hidden else []
        return replace(found, inputs=(*found.inputs, *table))
    matrices = ModelTensors(*(_matrices(part) for part in (found.inputs, found.layer, found.expert, found.outputs)))
    rest = int(model.parameters) - _total(matrices, model, layers)
    each, last = divmod(rest, layers) if rest > 0 else (0, 0)
    layer = (*([WeightTensor(each)] if each else []), *matrices.layer)
    return replace(matrices, layer=layer, outputs=(*([WeightTensor(last)] if last else []), *matrices.outputs))


def _total(found: ModelTensors, model: ModelSizes, layers: int) -> int:
    of_layer = _sum(found.layer) + model.experts * _sum(found.expert)
    return _sum(found.inputs) + layers * of_layer + _sum(found.outputs)


def _sum(tensors: Sequence[WeightTensor]) -> int:
    return sum(tensor.elements for tensor in tensors)


def _matrices(tensors: Sequence[WeightTensor]) -> tuple[WeightTensor, ...]:
    return tuple(tensor for tensor in tensors if tensor.columns > 1)


def _of_rank(found: ModelTensors, tensor: int) -> ModelTensors:
    parts = (found.inputs, found.layer, found.expert, found.outputs)
    return ModelTensors(*(tuple(each.of_rank(tensor) for each in part) for part in parts))
