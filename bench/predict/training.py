"""Derive the communication of a training step: collectives, payloads, groups, numbers of calls, and the computation
that can hide each call.

Volumes follow Rajbhandari et al., "ZeRO" (SC20, section 7: stages 1 and 2 send as much as plain data parallelism, stage
3 sends 1.5 times as much), Shoeybi et al., "Megatron-LM" (2019, section 3: two allreduces of the activations per layer
and pass), Narayanan et al. (SC21: pipelines), Lepikhin et al., "GShard" (ICLR 2021: two alltoalls per layer and pass),
Vogels et al., "PowerSGD" (NeurIPS 2019), Li et al., "PyTorch Distributed" (VLDB 2020: buckets), Zhao et al., "PyTorch
FSDP" (VLDB 2023: one unit per layer, and one for the rest) and Korthikanti et al. (2022: sequence parallelism).
Operations, groups, bytes and numbers of calls are those of PyTorch, to the byte (tests/predict/test_fake_group.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import ceil

from bench.core.units import format_bytes
from bench.predict.layout import CommGroup, Communication, ParallelLayout, fixed_parts, layer_sides, width
from bench.predict.tensors import (
    DEFAULT_BUCKET_BYTES,
    ModelTensors,
    StageTensors,
    WeightTensor,
    buckets,
    model_tensors,
)
from bench.predict.workload import NF4, ModelSizes, Workload

# Elements of a bucket of ZeRO 1 and 2 (a constant, and a number per rank), as in Megatron-LM's distributed optimizer
# (megatron/core/distributed/distributed_data_parallel.py; DeepSpeed's default is 500 million).
ZERO_BUCKET_ELEMENTS, ZERO_ELEMENTS_PER_RANK = 40_000_000, 1_000_000
_NO_TENSORS = StageTensors(())
_STATISTIC_BYTES, _COUNT_BYTES = 4, 8  # of a mean or variance (float32), and of a count of batches (int64)


class Zero1Exchange(StrEnum):
    """How ZeRO 1 can exchange gradients and weights.

    PARTS: each rank gets its part of the gradients, and all ranks gather the updated weights.
    BROADCASTS (torch's ZeroRedundancyOptimizer): all ranks reduce all gradients, and each rank broadcasts the weights
        that it updated.
    """

    PARTS = "parts"
    BROADCASTS = "broadcasts"


def communications(found: ParallelLayout, zero1: Zero1Exchange = Zero1Exchange.PARTS) -> tuple[Communication, ...]:
    """Return all communication of a step between GPUs. Groups with only one rank are left out.

    If pipeline stages differ, each type of call is counted on the stage that makes most calls of this type. Gradients
    are counted on the last stage, which has the output layer. Messages between stages are counted on a stage between
    two other stages.
    """
    activations = _activations(_ActivationsKey(found))
    every = [
        *_gradients(found, zero1),
        *_weights(found, zero1),
        *activations.tensor,
        *_norms(found),
        *activations.others,
    ]
    every += _statistics(found, zero1)
    return tuple(each for each in every if each.group.size > 1 and each.payload_bytes > 0 and each.calls)


class _ActivationsKey:
    """A cache key for the exchanges of activations in a layout. Two layouts with the same exchanges have equal keys.

    The key does not contain the strategy of the data-parallel ranks.
    """

    def __init__(self, found: ParallelLayout) -> None:
        self.found, each = found, found.workload
        numbers = (each.batch, each.accumulation, found.num_nodes, found.gpus_per_node)
        self.key = (each.model, each.mesh, each.element, each.recompute, *numbers)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ActivationsKey) and self.key == other.key


@dataclass(frozen=True, slots=True)
class _Activations:
    """The exchanges of activations: by tensor parallelism, and by context, expert and pipeline parallelism."""

    tensor: tuple[Communication, ...]
    others: tuple[Communication, ...]


@lru_cache(maxsize=64)
def _activations(key: _ActivationsKey) -> _Activations:
    found = key.found
    return _Activations(tuple(_tensor(found)), (*_context(found), *_experts(found), *_pipeline(found)))


@dataclass(frozen=True, slots=True)
class _Part:
    """Parameters that the same ranks train: either dense parameters or parameters of experts.

    `trained`: the number of trained parameters on one GPU.
    `tensors`: the tensors of one GPU. The list is empty if the sizes are unknown, as for adapters.
    """

    suffix: str
    trained: float
    group: str
    tensors: StageTensors


def _parts(found: ParallelLayout) -> Iterator[_Part]:
    """Yield the trained dense parameters, and the trained expert parameters if there are any."""
    workload = found.workload
    mesh = workload.mesh
    dense, experts = _NO_TENSORS, _NO_TENSORS
    if workload.lora is None:
        experts_here = workload.model.experts // mesh.expert
        dense, experts = _stage(workload.model, mesh.tensor, mesh.pipeline, found.stage_layers, experts_here)
    yield _Part("", dense.elements or found.trained, "shard" if workload.strategy == "zero3" else "data", dense)
    if found.trained_experts:
        yield _Part(" of experts", experts.elements or found.trained_experts, "expert_data", experts)


@lru_cache(maxsize=256)
def _stage(
    model: ModelSizes, tensor: int, pipeline: int, layers: int, experts: int
) -> tuple[StageTensors, StageTensors]:
    """Return the dense tensors and the expert tensors of one rank in a stage.

    If the sizes of the tensors are unknown, both results are empty.

    `layers`: the number of layers of the stage.
    `experts`: the number of experts of one rank in each layer.
    """
    of_model = model_tensors(model, tensor)
    if of_model is None:
        return _NO_TENSORS, _NO_TENSORS
    inputs, outputs = _ends(model, pipeline, of_model)
    dense = StageTensors((*inputs, *of_model.layer * layers, *outputs))
    return dense, StageTensors(of_model.expert * (experts * layers))


def _ends(
    model: ModelSizes, stages: int, of_model: ModelTensors
) -> tuple[tuple[WeightTensor, ...], tuple[WeightTensor, ...]]:
    """Return the tensors before the first layer and after the last layer of one stage.

    The function chooses the stage with most parameters. If all stages have the same number of layers, the last stage
    has most parameters. Otherwise, a stage between two other stages has most parameters, but no tensors outside its
    layers.
    """
    if stages == 1:
        return of_model.inputs, of_model.outputs
    return (), () if (model.layers or stages) % stages else of_model.outputs


def _gradients(found: ParallelLayout, zero1: Zero1Exchange) -> Iterator[Communication]:
    """Yield the calls that exchange gradients.

    DDP and ZeRO 1 exchange buckets once per step, and ZeRO 2 exchanges buckets in every micro-batch. ZeRO 3 exchanges
    the gradients of each layer.
    """
    workload = found.workload
    if workload.strategy == "zero3":
        yield from _units(found)
        return
    for part in _parts(found):
        if workload.compression == "powersgd":
            yield from _powersgd(found, part.trained, part.group)
            continue
        dtype = workload.gradients if workload.compression == "none" else workload.compression
        num_bytes = part.trained * width(dtype)
        repetitions = workload.accumulation if workload.strategy == "zero2" else 1
        reduced = workload.strategy == "ddp" or (workload.strategy == "zero1" and zero1 is Zero1Exchange.BROADCASTS)
        collective = "allreduce" if reduced else "reducescatter"
        derivation = f"{part.trained:.4g} parameters x {width(dtype)} bytes ({dtype}) = {num_bytes / 1e9:.4g} GB"
        group = found.group(part.group)
        sizes = _buckets(found, part, width(dtype), zero1)
        if group.size > 1:
            yield from _bucket_calls(f"gradients{part.suffix}", collective, sizes, group, repetitions, derivation)


@lru_cache(maxsize=256)  # many meshes have the same parts and groups
def _bucket_calls(
    name: str,
    collective: str,
    sizes: tuple[tuple[float, int], ...],
    group: CommGroup,
    repetitions: int,
    derivation: str,
) -> tuple[Communication, ...]:
    """Return one communication for each size of bucket. `sizes`: bytes of a bucket and number of such buckets."""
    return tuple(
        Communication(
            f"{name}, buckets of {format_bytes(size)}",
            collective,
            size,
            group,
            number * repetitions,
            "bucket",
            derivation,
        )
        for size, number in sizes
    )


def _statistics(found: ParallelLayout, zero1: Zero1Exchange) -> Iterator[Communication]:
    """Yield the broadcasts of DistributedDataParallel before the forward pass of a convolutional network.

    Rank 0 sends the means and variances of all norms in one message, and their counts of batches in another message.
    """
    workload, model = found.workload, found.workload.model.residual
    by_torch = workload.strategy == "ddp" or (workload.strategy == "zero1" and zero1 is Zero1Exchange.BROADCASTS)
    if model is None or not by_torch:
        return
    elements, norms = model.statistics
    group = found.group("data")
    for name, size in (("statistics of norms", elements * _STATISTIC_BYTES), ("counts of norms", norms * _COUNT_BYTES)):
        derivation = f"{norms} norms, {format_bytes(size)}"
        yield Communication(name, "broadcast", size, group, 1, "pass", derivation, 1)


def _buckets(
    found: ParallelLayout, part: _Part, sent_bytes: float, zero1: Zero1Exchange
) -> tuple[tuple[float, int], ...]:
    """Return (bytes that a bucket sends, number of such buckets) for each size of bucket."""
    stored, given = width(found.workload.gradients), _bucket_bytes(found, zero1)
    if part.tensors.elements:
        return part.tensors.buckets(stored, given, sent_bytes)
    sizes = buckets(part.trained * stored, given)
    return tuple((size * sent_bytes / stored, number) for size, number in sizes)


def _bucket_bytes(found: ParallelLayout, zero1: Zero1Exchange) -> float | None:
    """Return the number of gradient bytes that fill a bucket, before compression. None means torch's default."""
    workload = found.workload
    torch_s = workload.strategy == "ddp" or (workload.strategy == "zero1" and zero1 is Zero1Exchange.BROADCASTS)
    if workload.bucket_bytes is not None or torch_s:
        return workload.bucket_bytes
    return max(ZERO_BUCKET_ELEMENTS, ZERO_ELEMENTS_PER_RANK * found.replicas) * width(workload.gradients)


def _powersgd(found: ParallelLayout, parameters: float, group: str) -> Iterator[Communication]:
    """Yield the calls of PowerSGD.

    For each n x m matrix of gradients, the ranks reduce an n x r matrix and then an m x r matrix.
    """
    workload = found.workload
    rows, columns, whole = _matrix_sides(found)
    rank, number = (
        workload.rank or 1,
        ceil(parameters * width(workload.gradients) / (workload.bucket_bytes or DEFAULT_BUCKET_BYTES)),
    )
    for name, sides in (("P", rows), ("Q", columns)):
        size = rank * sides * width(workload.gradients) / number
        each = f"{width(workload.gradients)} bytes in {number} buckets"
        derivation = f"rank {rank} x {sides:.4g} rows of {whole} matrices x {each}"
        yield Communication(f"PowerSGD {name}", "allreduce", size, found.group(group), number, "bucket", derivation)


def _matrix_sides(found: ParallelLayout) -> tuple[float, float, int]:
    """Return three values for the matrices on one GPU: sum of rows, sum of columns, number of matrices."""
    rows, columns, number = layer_sides(found)
    tables = 2 * (found.workload.model.vocabulary or 0) / fixed_parts(found)
    return rows + tables, columns + (2 * (found.workload.model.hidden or 0) if tables else 0), number


@dataclass(frozen=True, slots=True)
class _Unit:
    """The parameters that FSDP gathers and reduces in one call: those of one layer, or all those outside the layers.

    `elements`: the number of elements, including padding. With this padding, all ranks in `group` have equal parts.
    `trained`: the elements with gradients.
    """

    suffix: str
    elements: float
    trained: float
    group: str
    when: str
    layers: int


def _units(found: ParallelLayout) -> Iterator[Communication]:
    """Yield the calls of ZeRO 3.

    Each layer's weights are gathered for the forward pass and again for the backward pass, and its gradients are
    reduce-scattered. The weights before and after the layers are gathered only once for both passes. In a pipeline,
    FSDP gathers the weights of a stage once per step and keeps them. In a pipeline, FSDP also exchanges gradients only
    once per step.
    """
    workload, replicas = found.workload, found.group("replicas")
    staged = workload.mesh.pipeline > 1
    weights, gradients = width(workload.element), width(workload.gradients)
    for unit in _fsdp_units(found):
        shard, calls = found.group(unit.group), unit.layers * (1 if staged else workload.accumulation)
        passes = 2 if unit.when == "unit" and not staged else 1
        of = f"parameters{unit.suffix} of {'a layer' if unit.when == 'unit' else 'the rest'}"
        where = "in the forward and the backward pass" if passes == 2 else "before the forward pass"
        words = f"{unit.elements:.4g} {of} x {weights} bytes ({workload.element}), "
        words += "once per step" if staged else where
        size = unit.elements * weights
        yield Communication(f"weights{unit.suffix}", "allgather", size, shard, passes * calls, unit.when, words, calls)
        size = unit.trained * gradients
        words = f"{unit.trained:.4g} {of} x {gradients} bytes ({workload.gradients}), in the backward pass"
        yield Communication(f"gradients{unit.suffix}", "reducescatter", size, shard, calls, unit.when, words)
        if unit.group == "shard" and replicas.size > 1:
            size /= shard.size
            words = f"each replica's part of {format_bytes(size)} among the {replicas.size} replicas of hybrid sharding"
            yield Communication("gradients among replicas", "allreduce", size, replicas, calls, unit.when, words)


def _fsdp_units(found: ParallelLayout) -> Iterator[_Unit]:
    """Yield the units of FSDP: one for the layers, one for experts with their own group, and one for all other tensors.

    In each unit, either all weights are trained, or only the low-rank adapters of the unit's layers.
    """
    workload, layers = found.workload, found.stage_layers
    of_model = model_tensors(workload.model, workload.mesh.tensor)
    own, adapters = workload.mesh.expert > 1, workload.lora is not None
    if of_model is None:
        elements, trained = found.dense + (0 if own else found.experts), found.trained
        trained += 0 if own else found.trained_experts
        yield _Unit("", elements / layers, trained / layers, "shard", "unit", layers)
        if own:
            elements, trained = found.experts / layers, found.trained_experts / layers
            yield _Unit(" of experts", elements, trained, "expert_data", "unit", layers)
        return
    experts = of_model.expert * (workload.model.experts // workload.mesh.expert)
    layer = of_model.layer if own else (*of_model.layer, *experts)
    shard, of_experts = found.group("shard").size, found.group("expert_data").size
    elements = sum(each.padded(shard) for each in layer)
    yield _Unit("", elements, found.trained / layers if adapters else elements, "shard", "unit", layers)
    if own:
        elements = sum(each.padded(of_experts) for each in experts)
        yield _Unit(" of experts", elements, 0 if adapters else elements, "expert_data", "unit", layers)
    inputs, outputs = _ends(workload.model, workload.mesh.pipeline, of_model)
    elements = sum(each.padded(shard) for each in (*inputs, *outputs))
    yield _Unit(" before and after the layers", elements, 0 if adapters else elements, "shard", "ends", 1)


def _weights(found: ParallelLayout, zero1: Zero1Exchange) -> Iterator[Communication]:
    """Yield the calls of ZeRO 1 and 2 in which each rank gets the weights that other ranks have updated."""
    workload = found.workload
    if workload.strategy not in ("zero1", "zero2"):
        return
    for part in _parts(found):
        group = found.group(part.group)
        if workload.strategy == "zero1" and zero1 is Zero1Exchange.BROADCASTS:
            yield from _broadcasts(workload, part, group)
            continue
        num_bytes = part.trained * width(workload.element)
        derivation = f"{part.trained:.4g} parameters x {width(workload.element)} bytes, after the update"
        yield Communication(f"updated weights{part.suffix}", "allgather", num_bytes, group, 1, "after", derivation)


def _broadcasts(workload: Workload, part: _Part, group: CommGroup) -> Iterator[Communication]:
    """For each tensor, yield the broadcast by the rank that updated this tensor.

    The element type is the type in which the weights are stored.

    If the tensors are unknown, yield a single broadcast.
    """
    # the adapters of QLoRA are not quantised
    dtype = workload.gradients if workload.weights == NF4 else workload.weights
    sizes = Counter(tensor.elements for tensor in part.tensors.every) or {part.trained: 1}
    for elements, number in sizes.items():
        derivation = f"{elements:.4g} parameters x {width(dtype)} bytes ({dtype}), {number} tensors"
        size = elements * width(dtype)
        yield Communication(f"updated weights{part.suffix}", "broadcast", size, group, number, "after", derivation)


def _passes(found: ParallelLayout) -> tuple[int, int, str]:
    """Return the number of blocking calls per layer in the forward pass and in the backward pass, and a description."""
    if found.workload.recompute == "full":
        return 2, 4, "2 forward, 2 backward, 2 in the repeated forward pass"
    if found.workload.recompute == "selective":
        return 2, 3, "2 forward, 2 backward, 1 in the repeated half of the forward pass"
    return 2, 2, "2 forward, 2 backward"


def _tensor(found: ParallelLayout) -> Iterator[Communication]:
    """Yield the exchanges of activations by tensor parallelism.

    With sequence parallelism, each block begins with an allgather and ends with a reducescatter. Without sequence
    parallelism, each block ends with an allreduce. The embedding and the output layer make calls of the same types. The
    loss also exchanges a few numbers per token, which are not counted.
    """
    workload, size = found.workload, found.activation_bytes
    if workload.mesh.tensor == 1:
        return
    forward, backward, words = _passes(found)
    repetitions = found.stage_layers * workload.accumulation
    derivation = f"activations of a micro-batch, {format_bytes(size)}; per layer {words}"
    group = found.group("tensor")
    output = workload.accumulation if workload.model.vocabulary else 0
    embedding = output if workload.mesh.pipeline == 1 else 0  # otherwise the embedding is in another stage
    if not workload.mesh.sequence:
        kinds = [("allreduce", embedding, output)]
    else:
        kinds = [("allgather", output, embedding), ("reducescatter", embedding, output)]
    for collective, ahead, back in kinds:
        calls, in_forward = repetitions * (forward + backward) + ahead + back, repetitions * forward + ahead
        name = "activations (tensor)"
        yield Communication(name, collective, size, group, calls, "pass", derivation, in_forward)


def _norms(found: ParallelLayout) -> Iterator[Communication]:
    """Yield the exchange of the gradients of norms with sequence parallelism.

    Each rank has only the gradients of its part of the sequence, so the ranks add them up. FSDP without a pipeline
    exchanges these gradients in the backward pass of every micro-batch. All other jobs exchange these gradients once
    per step.
    """
    workload = found.workload
    if workload.mesh.tensor == 1 or not workload.mesh.sequence or workload.lora is not None:
        return  # adapters do not change norms
    of_model = model_tensors(workload.model, workload.mesh.tensor)
    if of_model is None:
        return
    dtype = workload.element if workload.strategy == "zero3" else workload.gradients
    sharded = workload.strategy == "zero3" and workload.mesh.pipeline == 1
    outputs = _ends(workload.model, workload.mesh.pipeline, of_model)[1]
    for elements, number in _vectors(of_model.layer, found.stage_layers, outputs):
        calls = number * (workload.accumulation if sharded else 1)
        words = f"{number} vectors of {elements} parameters x {width(dtype)} bytes ({dtype})"
        size, when = elements * width(dtype), "pass" if sharded else "after"
        yield Communication("gradients of norms", "allreduce", size, found.group("tensor"), calls, when, words)


@lru_cache(maxsize=256)
def _vectors(
    layer: tuple[WeightTensor, ...], layers: int, outputs: tuple[WeightTensor, ...]
) -> tuple[tuple[int, int], ...]:
    """Return (size, number of vectors) for the vectors that tensor parallelism does not divide."""
    whole = [each for each in (*layer * layers, *outputs) if each.divided is None]
    return tuple(Counter(each.elements for each in whole if each.columns == 1).items())


def _context(found: ParallelLayout) -> Iterator[Communication]:
    """Yield the exchange of keys and values among the ranks that divide the tokens of a sample.

    Both the forward pass and the backward pass gather the keys and values. The backward pass also sums the gradients of
    keys and values over these ranks (Llama 3's report, section 3.3.2). A ring exchange would send the same number of
    bytes.
    """
    workload, mesh = found.workload, found.workload.mesh
    if mesh.context == 1:
        return
    size = workload.batch * (workload.model.tokens or 0) * 2 * workload.model.shared_width
    size *= width(workload.element) / mesh.tensor
    repetitions = found.stage_layers * workload.accumulation
    words = f"keys and values of a micro-batch, {format_bytes(size)}; per layer"
    gathers = 2 if workload.recompute == "none" else 3
    group = found.group("context")
    derivation = f"{words} {gathers} times"
    yield Communication(
        "keys and values", "allgather", size, group, gathers * repetitions, "pass", derivation, repetitions
    )
    derivation = f"gradients of {words} once"
    yield Communication("gradients of keys and values", "reducescatter", size, group, repetitions, "pass", derivation)


def _experts(found: ParallelLayout) -> Iterator[Communication]:
    workload, model = found.workload, found.workload.model
    if workload.mesh.expert == 1:
        return
    size = found.activation_bytes * model.active_experts / workload.mesh.tensor
    forward, backward, words = _passes(found)
    repetitions = found.stage_layers * workload.accumulation
    derivation = f"{model.active_experts} experts per token, {format_bytes(size)}; per layer {words}; even load"
    group = found.group("expert")
    yield Communication(
        "tokens to experts",
        "alltoall",
        size,
        group,
        repetitions * (forward + backward),
        "pass",
        derivation,
        repetitions * forward,
    )


def _pipeline(found: ParallelLayout) -> Iterator[Communication]:
    workload = found.workload
    if workload.mesh.pipeline == 1:
        return
    size = found.activation_bytes / workload.mesh.tensor
    derivation = f"activations / tensor, {format_bytes(size)}; forward for each micro-batch, and back for its gradient"
    group = found.group("pipeline")
    forward = workload.accumulation * workload.mesh.interleave
    if workload.mesh.interleave > 1:
        derivation += f", for each of {workload.mesh.interleave} parts of the stage"
    yield Communication("stage to stage", "sendrecv", size, group, 2 * forward, "hop", derivation, forward)
