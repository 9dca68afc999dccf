"""Derive the communication of a training step: collective, payload, group, number of calls, and what computation can
hide each call.

Volumes follow Rajbhandari et al., "ZeRO" (SC20, section 7: stages 1 and 2 send as much as plain data parallelism, stage
3 sends 1.5 times as much), Shoeybi et al., "Megatron-LM" (2019, section 3: two allreduces of the activations per layer
and pass), Narayanan et al. (SC21: pipelines), Lepikhin et al., "GShard" (ICLR 2021: two alltoalls per layer and pass),
Vogels et al., "PowerSGD" (NeurIPS 2019), Li et al., "PyTorch Distributed" (VLDB 2020: buckets), Zhao et al., "PyTorch
FSDP" (VLDB 2023: one unit per layer, and one for the rest) and Korthikanti et al. (2022: sequence parallelism).
Operations, groups, bytes and numbers of calls are those of PyTorch, to the byte (tests/predict/test_fake_group.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from bench.core.dtypes import dtype_of
from bench.core.errors import UsageError
from bench.core.units import format_bytes
from bench.predict.messages import Refusal
from bench.predict.tensors import (
    DEFAULT_BUCKET_BYTES,
    ModelTensors,
    WeightTensor,
    buckets,
    filled_buckets,
    model_tensors,
)
from bench.predict.workload import NF4, NF4_BYTES, Workload

# Elements of a bucket of ZeRO 1 and 2 (a constant, and a number per rank), as in Megatron-LM's distributed optimizer
# (megatron/core/distributed/distributed_data_parallel.py; DeepSpeed's default is 500 million).
ZERO_BUCKET_ELEMENTS, ZERO_ELEMENTS_PER_RANK = 40_000_000, 1_000_000


class Zero1Exchange(StrEnum):
    """How ZeRO 1 exchanges gradients and weights.

    Either each rank gets its part of the gradients and all ranks gather the updated weights, or (in torch's
    ZeroRedundancyOptimizer) all ranks reduce all gradients and each rank broadcasts the weights that it updated.
    """

    PARTS = "parts"
    BROADCASTS = "broadcasts"


@dataclass(frozen=True, slots=True)
class CommGroup:
    """Ranks that communicate with each other: `per_node` on each of `num_nodes` nodes.

    `side_by_side`: the number of such groups on each node. They send at the same time and share the node's NICs.
    """

    name: str
    num_nodes: int
    per_node: int
    side_by_side: int

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.num_nodes * self.per_node

    def __str__(self) -> str:
        where = f"{self.num_nodes} x {self.per_node} GPUs" if self.num_nodes > 1 else f"{self.per_node} GPUs of a node"
        return f"{self.name} ({where})"


@dataclass(frozen=True, slots=True)
class Communication:
    """One type of call that every rank makes `calls` times per step.

    `payload_bytes`: the payload S (docs/metrics.md) of one call. `forward`: the number of calls in the forward pass.
    `derivation`: how bytes and calls follow from the workload. `when` decides what can hide the call: "bucket"
    (gradients, during the backward pass), "unit" (weights or gradients of a layer, sent while another layer is
    computed), "ends" (weights or gradients outside all layers, which nothing hides), "pass" (the pass waits for the
    call), "hop" (a message to the next pipeline stage), "after" (the call follows the exchange of all gradients).
    """

    name: str
    collective: str
    payload_bytes: float
    group: CommGroup
    calls: int
    when: str
    derivation: str
    forward: int = 0

    @property
    def sent_bytes(self) -> float:
        """The bytes that busbw counts in a step: calls x S x bus factor.

        Without NVLS, these bytes pass through each rank's port.
        """
        return self.calls * self.payload_bytes * bus_factor(self.collective, self.group.size)

    @property
    def switched_bytes(self) -> float:
        """The bytes through one rank's port in a step if the switch reduces (NVLS): calls x S x (1 + 1/n).

        n is the number of the group's ranks on a node. The switch reads the whole buffer of each rank and returns one
        part of the sum to each rank, which then multicasts this part.
        """
        return self.calls * self.payload_bytes * (1 + 1 / self.group.per_node)


def bus_factor(collective: str, size: int) -> float:
    """Return the bytes through one rank's port divided by the payload, without NVLS (docs/metrics.md)."""
    others = (size - 1) / size
    return {"allreduce": 2 * others, "sendrecv": 1.0, "broadcast": 1.0}.get(collective, others)


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """A workload on a number of GPUs.

    `data`: the ranks that train on different samples. `dense`, `experts`: the numbers of dense and of expert parameters
    of one GPU before ZeRO shards them.
    """

    workload: Workload
    num_nodes: int
    gpus_per_node: int
    data: int
    dense: float
    experts: float

    @property
    def num_gpus(self) -> int:
        """The number of all GPUs together."""
        return self.num_nodes * self.gpus_per_node

    @property
    def samples(self) -> int:
        """The number of samples of one step on all GPUs together."""
        return self.workload.batch * self.workload.accumulation * self.data

    @property
    def activation_bytes(self) -> float:
        """The bytes of the activations of one micro-batch between two layers: batch x tokens x hidden elements, divided
        by the ranks that share the tokens.
        """
        model, shared = self.workload.model, self.workload.mesh.context
        return self.workload.batch * (model.tokens or 0) * (model.hidden or 0) * width(self.workload.element) / shared

    @property
    def replicas(self) -> int:
        """The ranks with the same part of the model. They train on other samples, or on other tokens of a sample."""
        return self.data * self.workload.mesh.context

    @property
    def trained(self) -> float:
        """The number of one GPU's dense parameters that are trained: all of them, or the adapters of LoRA."""
        rank = self.workload.lora
        if rank is None:
            return self.dense
        rows, columns, _ = _layer_sides(self)
        return rank * (rows + columns / self.workload.mesh.tensor)

    @property
    def trained_experts(self) -> float:
        """The number of one GPU's expert parameters that are trained."""
        return self.experts if self.workload.lora is None else 0.0

    @property
    def stage_layers(self) -> int:
        """The number of layers of the largest stage of the pipeline."""
        return ceil((self.workload.model.layers or 1) / self.workload.mesh.pipeline)

    def group(self, name: str) -> CommGroup:
        """Return the group called data, replicas, shard (ZeRO 3), expert_data, tensor, context, pipeline or expert."""
        mesh = self.workload.mesh
        shard = mesh.shard or self.replicas
        size, stride = {
            "data": (self.replicas, mesh.tensor),
            "shard": (shard, mesh.tensor),
            "replicas": (self.replicas // shard, mesh.tensor * shard),
            "expert_data": (self.replicas // mesh.expert, mesh.tensor * mesh.expert),
            "tensor": (mesh.tensor, 1),
            "context": (mesh.context, mesh.tensor),
            "expert": (mesh.expert, mesh.tensor),
            "pipeline": (mesh.pipeline, self.num_gpus // mesh.pipeline),
        }[name]
        per_node = min(size, max(1, self.gpus_per_node // stride))
        while size % per_node:  # the same number on each node
            per_node -= 1
        return CommGroup(name, size // per_node, per_node, self.gpus_per_node // per_node)

    def shards(self, part: str) -> int:
        """Return the number of ranks over which ZeRO shards the 'dense' or the 'experts' parameters."""
        if self.workload.strategy == "ddp":
            return 1
        if part == "experts":
            return self.replicas // self.workload.mesh.expert
        return self.workload.mesh.shard or self.replicas


def width(dtype: str) -> float:
    """Return the size of one element in bytes."""
    return NF4_BYTES if dtype == NF4 else dtype_of(dtype).num_bytes


def layout(workload: Workload, num_nodes: int, gpus_per_node: int) -> ParallelLayout:
    """Return the layout of a workload on this many GPUs.

    Raises UsageError if the workload's mesh does not fit this number of GPUs.
    """
    mesh, gpus = workload.mesh, num_nodes * gpus_per_node
    fixed = mesh.tensor * mesh.pipeline
    if gpus % (fixed * mesh.context):
        raise UsageError.of(
            Refusal.MESH_NOT_DIVISOR,
            tensor=mesh.tensor,
            pipeline=mesh.pipeline,
            context=mesh.context if mesh.context > 1 else None,
            mesh_gpus=fixed * mesh.context,
            num_gpus=gpus,
            num_nodes=num_nodes,
            gpus_per_node=gpus_per_node,
        )
    data = gpus // (fixed * mesh.context)
    for name, size in (("expert", mesh.expert), ("shard", mesh.shard or 1)):
        if data * mesh.context % size:
            raise UsageError.of(
                Refusal.GROUP_NOT_DIVISOR, group=name, size=size, data_parallel=data * mesh.context, num_gpus=gpus
            )
    if mesh.tensor > gpus_per_node and mesh.tensor % gpus_per_node:
        raise UsageError.of(Refusal.TENSOR_ACROSS_NODES, tensor=mesh.tensor, gpus_per_node=gpus_per_node)
    experts = workload.model.all_expert_parameters
    return ParallelLayout(
        workload=workload,
        num_nodes=num_nodes,
        gpus_per_node=gpus_per_node,
        data=data,
        dense=(workload.model.parameters - experts) / fixed,
        experts=experts / fixed / mesh.expert,
    )


def communications(found: ParallelLayout, zero1: Zero1Exchange = Zero1Exchange.PARTS) -> tuple[Communication, ...]:
    """Return all communication of a step between GPUs. Groups of one rank send nothing.

    If pipeline stages differ, the stage with most calls of a type gives the calls of this type: gradients from the last
    stage, which has the output layer, and messages from a stage between two other stages.
    """
    every = [*_gradients(found, zero1), *_weights(found, zero1), *_tensor(found), *_context(found), *_experts(found)]
    every += _pipeline(found)
    return tuple(each for each in every if each.group.size > 1 and each.payload_bytes > 0 and each.calls)


@dataclass(frozen=True, slots=True)
class _Part:
    """Parameters that the same ranks train: the dense parameters, or those of experts.

    `trained`: their number on one GPU. `tensors`: the tensors of one GPU in the order of the forward pass; empty if the
    sizes are unknown, as for adapters.
    """

    suffix: str
    trained: float
    group: str
    tensors: tuple[WeightTensor, ...]


def _parts(found: ParallelLayout) -> Iterator[_Part]:
    """Yield the trained dense parameters, and the trained expert parameters if there are any."""
    workload = found.workload
    mesh = workload.mesh
    of_model = model_tensors(workload.model, mesh.tensor) if workload.lora is None else None
    dense: tuple[WeightTensor, ...] = ()
    experts: tuple[WeightTensor, ...] = ()
    if of_model is not None:
        inputs, outputs = _ends(found, of_model)
        dense = (*inputs, *of_model.layer * found.stage_layers, *outputs)
        experts = of_model.expert * (workload.model.experts // mesh.expert * found.stage_layers)
    yield _Part("", _elements(dense) or found.trained, "shard" if workload.strategy == "zero3" else "data", dense)
    if found.trained_experts:
        yield _Part(" of experts", _elements(experts) or found.trained_experts, "expert_data", experts)


def _ends(found: ParallelLayout, of_model: ModelTensors) -> tuple[tuple[WeightTensor, ...], tuple[WeightTensor, ...]]:
    """Return the tensors before the first and after the last layer in the stage with most parameters.

    In a pipeline, this is the last stage. If the stages have different numbers of layers, it is a stage between two
    other stages.
    """
    stages = found.workload.mesh.pipeline
    if stages == 1:
        return of_model.inputs, of_model.outputs
    return (), () if (found.workload.model.layers or stages) % stages else of_model.outputs


def _elements(tensors: Sequence[WeightTensor]) -> int:
    return sum(tensor.elements for tensor in tensors)


def _gradients(found: ParallelLayout, zero1: Zero1Exchange) -> Iterator[Communication]:
    """Yield the calls that exchange gradients: in buckets once per step (DDP, ZeRO 1) or per micro-batch (ZeRO 2), or
    layer by layer (ZeRO 3).
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
        for size, number in _buckets(found, part, width(dtype), zero1):
            name = f"gradients{part.suffix}, buckets of {format_bytes(size)}"
            group = found.group(part.group)
            yield Communication(name, collective, size, group, number * repetitions, "bucket", derivation)


def _buckets(
    found: ParallelLayout, part: _Part, sent_bytes: float, zero1: Zero1Exchange
) -> tuple[tuple[float, int], ...]:
    """Return the sizes of the buckets on the wire, each with its number."""
    stored, given = width(found.workload.gradients), _bucket_bytes(found, zero1)
    if part.tensors:
        return filled_buckets(part.tensors, stored, given, sent_bytes)
    sizes = buckets(part.trained * stored, given)
    return tuple((size * sent_bytes / stored, number) for size, number in sizes)


def _bucket_bytes(found: ParallelLayout, zero1: Zero1Exchange) -> float | None:
    """Return the bytes of gradients at which a bucket is full, before compression; None: torch's default."""
    workload = found.workload
    torch_s = workload.strategy == "ddp" or (workload.strategy == "zero1" and zero1 is Zero1Exchange.BROADCASTS)
    if workload.bucket_bytes is not None or torch_s:
        return workload.bucket_bytes
    return max(ZERO_BUCKET_ELEMENTS, ZERO_ELEMENTS_PER_RANK * found.replicas) * width(workload.gradients)


def _powersgd(found: ParallelLayout, parameters: float, group: str) -> Iterator[Communication]:
    """Yield the calls of PowerSGD.

    For each n x m matrix of gradients, an n x r matrix and then an m x r matrix are reduced.
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
    """Return the sum of n, the sum of m, and the number of matrices, over the n x m matrices of one GPU."""
    rows, columns, number = _layer_sides(found)
    tables = 2 * (found.workload.model.vocabulary or 0) / fixed_parts(found)
    return rows + tables, columns + (2 * (found.workload.model.hidden or 0) if tables else 0), number


def _layer_sides(found: ParallelLayout) -> tuple[float, float, int]:
    """Return the result of `_matrix_sides` without the embedding and the output layer."""
    model, mesh = found.workload.model, found.workload.mesh
    hidden, feedforward = model.hidden or 0, model.feedforward or 0
    blocks = 3 if model.gated else 2
    heads = 2 * (model.attention_width or 0) + 2 * model.shared_width
    rows = found.stage_layers * (heads + blocks * feedforward) / mesh.tensor
    columns = found.stage_layers * (4 + blocks) * hidden
    return rows, columns, found.stage_layers * (4 + blocks)


def fixed_parts(found: ParallelLayout) -> int:
    """Return the number of parts into which tensor and pipeline parallelism split the model."""
    return found.workload.mesh.tensor * found.workload.mesh.pipeline


@dataclass(frozen=True, slots=True)
class _Unit:
    """The parameters that FSDP gathers and reduces in one call: the tensors of a layer, or those outside all layers.

    `elements`: with the padding that makes the parts of all ranks in `group` equal. `trained`: the elements with
    gradients.
    """

    suffix: str
    elements: float
    trained: float
    group: str
    when: str
    layers: int


def _units(found: ParallelLayout) -> Iterator[Communication]:
    """Yield the calls of ZeRO 3: gather a layer's weights for the forward pass and again for the backward pass, and
    reduce-scatter its gradients. The weights before and after the layers stay gathered between the passes.

    A stage of a pipeline gathers its weights once per step, keeps them, and exchanges gradients once per step, as FSDP
    does in a pipeline.
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
    """Yield one unit for the layers, one for the tensors outside them, and one for experts with a separate group.

    In a unit, all weights are trained, or only the adapters of its layers.
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
    inputs, outputs = _ends(found, of_model)
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
    """Yield one broadcast of each tensor by the rank that updated it, in the stored type; as one call if the tensors
    are unknown.
    """
    # the adapters of QLoRA are not quantised
    dtype = workload.gradients if workload.weights == NF4 else workload.weights
    sizes = Counter(tensor.elements for tensor in part.tensors) or {part.trained: 1}
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
    """Yield the exchanges of activations: an allreduce each, or with sequence parallelism an allgather before and a
    reducescatter after each block; the embedding and the output layer have one each. The loss's exchange of a few
    numbers per token is left out.
    """
    workload, size = found.workload, found.activation_bytes
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
    if workload.mesh.sequence:
        yield from _norms(found)


def _norms(found: ParallelLayout) -> Iterator[Communication]:
    """Yield the exchange of the gradients of norms: each rank has only the gradients of its part of the sequence.

    FSDP without a pipeline exchanges them in the backward pass of every micro-batch; all other jobs exchange them once
    per step.
    """
    workload = found.workload
    of_model = model_tensors(workload.model, workload.mesh.tensor)
    if of_model is None or workload.lora is not None:  # adapters do not change norms
        return
    dtype = workload.element if workload.strategy == "zero3" else workload.gradients
    sharded = workload.strategy == "zero3" and workload.mesh.pipeline == 1
    layers = of_model.layer * found.stage_layers
    whole = [each for each in (*layers, *_ends(found, of_model)[1]) if each.divided is None]
    for elements, number in Counter(each.elements for each in whole if each.columns == 1).items():
        calls = number * (workload.accumulation if sharded else 1)
        words = f"{number} vectors of {elements} parameters x {width(dtype)} bytes ({dtype})"
        size, when = elements * width(dtype), "pass" if sharded else "after"
        yield Communication("gradients of norms", "allreduce", size, found.group("tensor"), calls, when, words)


def _context(found: ParallelLayout) -> Iterator[Communication]:
    """Yield the exchange of keys and values among the ranks that divide the tokens of a sample.

    Keys and values are gathered in the forward and the backward pass, and their gradients are added (Llama 3's report,
    section 3.3.2). A ring sends the same number of bytes.
    """
    workload, mesh = found.workload, found.workload.mesh
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
    size = found.activation_bytes / workload.mesh.tensor
    derivation = f"activations / tensor, {format_bytes(size)}; forward for each micro-batch, and back for its gradient"
    group = found.group("pipeline")
    forward = workload.accumulation * workload.mesh.interleave
    if workload.mesh.interleave > 1:
        derivation += f", for each of {workload.mesh.interleave} parts of the stage"
    yield Communication("stage to stage", "sendrecv", size, group, 2 * forward, "hop", derivation, forward)
