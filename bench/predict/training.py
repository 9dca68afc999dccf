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
from bench.predict.tensors import DEFAULT_BUCKET_BYTES, Tensor, buckets, filled_buckets, model_tensors
from bench.predict.workload import Workload


class Zero1(StrEnum):
    """How ZeRO 1 exchanges: each rank gets its part of the gradients and all ranks gather the updated weights, or (in
    torch's ZeroRedundancyOptimizer) all ranks reduce all gradients and each rank broadcasts the weights it updated.
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
    """One kind of call that every rank makes `calls` times per step.

    `payload_bytes`: the payload S (docs/metrics.md) of one call. `forward`: the number of calls in the forward pass.
    `derivation`: how bytes and calls follow from the workload. `when` decides what can hide the call: "bucket"
    (gradients, during the backward pass), "unit" (weights or gradients of a layer, sent while another layer is
    computed), "ends" (weights or gradients of what is before the first and after the last layer: nothing hides them),
    "pass" (the pass waits for the call), "hop" (a message to the next pipeline stage), "after" (the call follows the
    exchange of all gradients).
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

    `dense`, `experts`: the numbers of dense and of expert parameters of one GPU before ZeRO shards them.
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
        """The bytes of the activations of one micro-batch between two layers: batch x tokens x hidden elements of the
        compute type.
        """
        model = self.workload.model
        return self.workload.batch * (model.tokens or 0) * (model.hidden or 0) * width(self.workload.compute)

    @property
    def stage_layers(self) -> int:
        """The number of layers of one stage of the pipeline."""
        return (self.workload.model.layers or 1) // self.workload.mesh.pipeline

    def group(self, name: str) -> CommGroup:
        """Return the group called data, replicas, shard (of ZeRO 3), expert_data, tensor, pipeline or expert."""
        mesh = self.workload.mesh
        shard = mesh.shard or self.data
        size, stride = {
            "data": (self.data, mesh.tensor),
            "shard": (shard, mesh.tensor),
            "replicas": (self.data // shard, mesh.tensor * shard),
            "expert_data": (self.data // mesh.expert, mesh.tensor * mesh.expert),
            "tensor": (mesh.tensor, 1),
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
            return self.data // self.workload.mesh.expert
        return self.workload.mesh.shard or self.data


def width(dtype: str) -> int:
    """Return the size of one element in bytes."""
    return dtype_of(dtype).num_bytes


def layout(workload: Workload, num_nodes: int, gpus_per_node: int) -> ParallelLayout:
    """Return the layout of a workload on this many GPUs.

    Raises UsageError if the workload's mesh does not fit this number of GPUs.
    """
    mesh, gpus = workload.mesh, num_nodes * gpus_per_node
    fixed = mesh.tensor * mesh.pipeline
    if gpus % fixed:
        raise UsageError.of(
            Refusal.MESH_NOT_DIVISOR,
            tensor=mesh.tensor,
            pipeline=mesh.pipeline,
            mesh_gpus=fixed,
            num_gpus=gpus,
            num_nodes=num_nodes,
            gpus_per_node=gpus_per_node,
        )
    data = gpus // fixed
    for name, size in (("expert", mesh.expert), ("shard", mesh.shard or 1)):
        if data % size:
            raise UsageError.of(Refusal.GROUP_NOT_DIVISOR, group=name, size=size, data_parallel=data, num_gpus=gpus)
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


def communications(found: ParallelLayout, zero1: Zero1 = Zero1.PARTS) -> tuple[Communication, ...]:
    """Return all communication of a step between GPUs. Groups of one rank send nothing.

    If pipeline stages differ, each kind of call is that of the stage with most of it: gradients of the last stage,
    which has the output layer, and messages of a stage between two others.
    """
    every = [*_gradients(found, zero1), *_weights(found, zero1), *_tensor(found), *_experts(found), *_pipeline(found)]
    return tuple(each for each in every if each.group.size > 1 and each.payload_bytes > 0 and each.calls)


@dataclass(frozen=True, slots=True)
class _Part:
    """Parameters that the same ranks share: all dense ones, or those of experts.

    `number`: of one GPU. `tensors`: in the order of the forward pass, of one GPU; empty if the sizes are unknown.
    """

    suffix: str
    number: float
    group: str
    tensors: tuple[Tensor, ...]


def _parts(found: ParallelLayout) -> Iterator[_Part]:
    """Yield the dense parameters, and the expert parameters if there are any."""
    workload = found.workload
    mesh = workload.mesh
    of_model = model_tensors(workload.model, mesh.tensor)
    dense: tuple[Tensor, ...] = ()
    experts: tuple[Tensor, ...] = ()
    if of_model is not None:
        inputs = of_model.inputs if mesh.pipeline == 1 else ()
        dense = (*inputs, *of_model.layer * found.stage_layers, *of_model.outputs)
        experts = of_model.expert * (workload.model.experts // mesh.expert * found.stage_layers)
    yield _Part("", _elements(dense) or found.dense, "shard" if workload.strategy == "zero3" else "data", dense)
    if found.experts:
        yield _Part(" of experts", _elements(experts) or found.experts, "expert_data", experts)


def _elements(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.elements for tensor in tensors)


def _gradients(found: ParallelLayout, zero1: Zero1) -> Iterator[Communication]:
    """Yield the calls that exchange gradients: in buckets once per step (DDP, ZeRO 1) or per micro-batch (ZeRO 2), or
    layer by layer (ZeRO 3).
    """
    workload = found.workload
    if workload.strategy == "zero3":
        yield from _units(found)
        return
    for part in _parts(found):
        if workload.compression == "powersgd":
            yield from _powersgd(found, part.number, part.group)
            continue
        dtype = workload.gradients if workload.compression == "none" else workload.compression
        num_bytes = part.number * width(dtype)
        repetitions = workload.accumulation if workload.strategy == "zero2" else 1
        reduced = workload.strategy == "ddp" or (workload.strategy == "zero1" and zero1 is Zero1.BROADCASTS)
        collective = "allreduce" if reduced else "reducescatter"
        derivation = f"{part.number:.4g} parameters x {width(dtype)} bytes ({dtype}) = {num_bytes / 1e9:.4g} GB"
        for size, number in _buckets(workload, part, width(dtype)):
            name = f"gradients{part.suffix}, buckets of {format_bytes(size)}"
            group = found.group(part.group)
            yield Communication(name, collective, size, group, number * repetitions, "bucket", derivation)


def _buckets(workload: Workload, part: _Part, sent_bytes: int) -> tuple[tuple[float, int], ...]:
    """Return the sizes of the buckets on the wire, each with its number."""
    stored = width(workload.gradients)
    if part.tensors:
        return filled_buckets(part.tensors, stored, workload.bucket_bytes, sent_bytes)
    found = buckets(part.number * stored, workload.bucket_bytes)
    return tuple((size * sent_bytes / stored, number) for size, number in found)


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
    model, mesh = found.workload.model, found.workload.mesh
    hidden, feedforward = model.hidden or 0, model.feedforward or 0
    shared = hidden * (model.kv_heads or model.heads or 1) / (model.heads or 1)
    blocks = 3 if model.gated else 2
    rows = found.stage_layers * (2 * hidden + 2 * shared + blocks * feedforward) / mesh.tensor
    columns = found.stage_layers * (4 + blocks) * hidden
    tables = 2 * (model.vocabulary or 0) / fixed_parts(found)
    return rows + tables, columns + (2 * hidden if tables else 0), found.stage_layers * (4 + blocks)


def fixed_parts(found: ParallelLayout) -> int:
    """Return the number of parts into which tensor and pipeline parallelism split the model."""
    return found.workload.mesh.tensor * found.workload.mesh.pipeline


@dataclass(frozen=True, slots=True)
class _Unit:
    """What FSDP gathers and reduces in one call: the tensors of a layer, or those before and after the layers.

    `elements`: with the padding that gives all ranks of `group` parts of one size.
    """

    suffix: str
    elements: float
    group: str
    when: str
    layers: int


def _units(found: ParallelLayout) -> Iterator[Communication]:
    """Yield the calls of ZeRO 3: gather a layer's weights for the forward pass and again for the backward pass, and
    reduce-scatter its gradients. The weights before and after the layers stay gathered between the passes.
    """
    workload, replicas = found.workload, found.group("replicas")
    weights, gradients = width(workload.compute), width(workload.gradients)
    for unit in _fsdp_units(found):
        shard, calls = found.group(unit.group), unit.layers * workload.accumulation
        passes = 2 if unit.when == "unit" else 1
        each = f"{unit.elements:.4g} parameters{unit.suffix} of {'a layer' if unit.when == 'unit' else 'the rest'}"
        where = "in the forward and the backward pass" if passes == 2 else "before the forward pass"
        words = f"{each} x {weights} bytes ({workload.compute}), {where}"
        size = unit.elements * weights
        yield Communication(f"weights{unit.suffix}", "allgather", size, shard, passes * calls, unit.when, words, calls)
        size = unit.elements * gradients
        words = f"{each} x {gradients} bytes ({workload.gradients}), in the backward pass"
        yield Communication(f"gradients{unit.suffix}", "reducescatter", size, shard, calls, unit.when, words)
        if unit.group == "shard" and replicas.size > 1:
            size /= shard.size
            words = f"each replica's part of {format_bytes(size)} among the {replicas.size} replicas of hybrid sharding"
            yield Communication("gradients among replicas", "allreduce", size, replicas, calls, unit.when, words)


def _fsdp_units(found: ParallelLayout) -> Iterator[_Unit]:
    """Yield one unit for the layers, one for what is before and after them, and one for experts with a group of their
    own.
    """
    workload, layers = found.workload, found.stage_layers
    of_model = model_tensors(workload.model, workload.mesh.tensor)
    own = workload.mesh.expert > 1
    if of_model is None:
        yield _Unit("", (found.dense + (0 if own else found.experts)) / layers, "shard", "unit", layers)
        if own:
            yield _Unit(" of experts", found.experts / layers, "expert_data", "unit", layers)
        return
    experts = of_model.expert * (workload.model.experts // workload.mesh.expert)
    layer = of_model.layer if own else (*of_model.layer, *experts)
    shard, of_experts = found.group("shard").size, found.group("expert_data").size
    yield _Unit("", sum(each.padded(shard) for each in layer), "shard", "unit", layers)
    if own:
        yield _Unit(" of experts", sum(each.padded(of_experts) for each in experts), "expert_data", "unit", layers)
    ends = sum(each.padded(shard) for each in (*of_model.inputs, *of_model.outputs))
    yield _Unit(" before and after the layers", ends, "shard", "ends", 1)


def _weights(found: ParallelLayout, zero1: Zero1) -> Iterator[Communication]:
    """Yield the calls of ZeRO 1 and 2 by which each rank gets the weights that other ranks have updated."""
    workload = found.workload
    if workload.strategy not in ("zero1", "zero2"):
        return
    for part in _parts(found):
        group = found.group(part.group)
        if workload.strategy == "zero1" and zero1 is Zero1.BROADCASTS:
            yield from _broadcasts(workload, part, group)
            continue
        num_bytes = part.number * width(workload.compute)
        derivation = f"{part.number:.4g} parameters x {width(workload.compute)} bytes, after the update"
        yield Communication(f"updated weights{part.suffix}", "allgather", num_bytes, group, 1, "after", derivation)


def _broadcasts(workload: Workload, part: _Part, group: CommGroup) -> Iterator[Communication]:
    """Yield one broadcast of each tensor by the rank that updated it, in the stored type; as one call if the tensors
    are unknown.
    """
    each_bytes = width(workload.weights)
    sizes = Counter(tensor.elements for tensor in part.tensors) or {part.number: 1}
    for elements, number in sizes.items():
        derivation = f"{elements:.4g} parameters x {each_bytes} bytes ({workload.weights}), {number} tensors"
        size = elements * each_bytes
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
    embedding = output if workload.mesh.pipeline == 1 else 0  # else it is in another stage
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
    """Yield the exchange of the gradients of norms, of which each rank has those of its part of the sequence.

    FSDP exchanges them in the backward pass of every micro-batch, other strategies once per step.
    """
    workload = found.workload
    of_model = model_tensors(workload.model, workload.mesh.tensor)
    if of_model is None:
        return
    sharded = workload.strategy == "zero3"
    dtype = workload.compute if sharded else workload.gradients
    whole = [each for each in (*of_model.layer * found.stage_layers, *of_model.outputs) if each.divided is None]
    for elements, number in Counter(each.elements for each in whole if each.columns == 1).items():
        calls = number * (workload.accumulation if sharded else 1)
        words = f"{number} vectors of {elements} parameters x {width(dtype)} bytes ({dtype})"
        size, when = elements * width(dtype), "pass" if sharded else "after"
        yield Communication("gradients of norms", "allreduce", size, found.group("tensor"), calls, when, words)


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
    calls = 2 * workload.accumulation
    yield Communication("stage to stage", "sendrecv", size, group, calls, "hop", derivation, workload.accumulation)
