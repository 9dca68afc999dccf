"""Derive the communication of a training step: collective, payload, group, number of calls, and what computation can
hide each call.

Volumes follow Rajbhandari et al., "ZeRO" (SC20, section 7: stages 1 and 2 send as much as plain data parallelism, stage
3 sends 1.5 times as much), Shoeybi et al., "Megatron-LM" (2019, section 3: two allreduces of the activations per layer
and pass), Narayanan et al. (SC21: pipelines), Lepikhin et al., "GShard" (ICLR 2021: two alltoalls per layer and pass),
Vogels et al., "PowerSGD" (NeurIPS 2019) and Li et al., "PyTorch Distributed" (VLDB 2020: buckets).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from bench.core.dtypes import dtype_of
from bench.core.errors import UsageError
from bench.core.units import format_bytes
from bench.predict.messages import Refusal
from bench.predict.workload import NF4, NF4_BYTES, Workload

# DistributedDataParallel uses a small first bucket to start the exchange early, then buckets of 25 MiB.
FIRST_BUCKET_BYTES, DDP_BUCKET_BYTES = 1 << 20, 25 << 20
# Elements of a bucket of ZeRO 1 and 2: this many, and this many per rank, as in Megatron-LM's distributed optimizer
# (megatron/core/distributed/distributed_data_parallel.py; DeepSpeed's default is 500 million).
ZERO_BUCKET_ELEMENTS, ZERO_ELEMENTS_PER_RANK = 40_000_000, 1_000_000
_MOST_BUCKETS = 20_000


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
    computed), "pass" (the pass waits for the call), "hop" (a message to the next pipeline stage), "after" (the call
    follows the exchange of all gradients).
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
    return {"allreduce": 2 * others, "sendrecv": 1.0}.get(collective, others)


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
        """The ranks with the same part of the model: those with other samples or other tokens of a sample."""
        return self.data * self.workload.mesh.context

    @property
    def trained(self) -> float:
        """The number of one GPU's dense parameters that are trained: all, or the adapters of LoRA."""
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


def communications(found: ParallelLayout) -> tuple[Communication, ...]:
    """Return all communication of a step between GPUs. Groups of one rank send nothing."""
    every = [*_gradients(found), *_weights(found), *_tensor(found), *_context(found), *_experts(found)]
    every += _pipeline(found)
    return tuple(each for each in every if each.group.size > 1 and each.payload_bytes > 0 and each.calls)


def _parts(found: ParallelLayout) -> Iterator[tuple[str, float, float, str]]:
    """Yield for dense parameters, and for expert parameters if there are any: a suffix for names, the number of
    parameters of one GPU, the number of those that are trained, and the group of ranks that share them.
    """
    yield "", found.dense, found.trained, "shard" if found.workload.strategy == "zero3" else "data"
    if found.experts:
        yield " of experts", found.experts, found.trained_experts, "expert_data"


def _gradients(found: ParallelLayout) -> Iterator[Communication]:
    """Yield the calls that exchange gradients: in buckets once per step (DDP, ZeRO 1) or per micro-batch (ZeRO 2), or
    layer by layer (ZeRO 3).
    """
    workload = found.workload
    for suffix, every, parameters, group in _parts(found):
        if workload.strategy == "zero3":
            yield from _units(found, suffix, every, parameters, group)
            continue
        if workload.compression == "powersgd":
            yield from _powersgd(found, parameters, group)
            continue
        dtype = workload.gradients if workload.compression == "none" else workload.compression
        num_bytes = parameters * width(dtype)
        repetitions = workload.accumulation if workload.strategy == "zero2" else 1
        collective = "allreduce" if workload.strategy == "ddp" else "reducescatter"
        derivation = f"{parameters:.4g} parameters x {width(dtype)} bytes ({dtype}) = {num_bytes / 1e9:.4g} GB"
        for size, number in buckets(num_bytes, _bucket_bytes(found) * width(dtype) / width(workload.gradients)):
            name = f"gradients{suffix}, buckets of {format_bytes(size)}"
            yield Communication(name, collective, size, found.group(group), number * repetitions, "bucket", derivation)


def _bucket_bytes(found: ParallelLayout) -> float:
    """Return the bytes of gradients in one bucket, before compression."""
    workload = found.workload
    if workload.bucket_bytes is not None:
        return workload.bucket_bytes
    if workload.strategy == "ddp":
        return DDP_BUCKET_BYTES
    return max(ZERO_BUCKET_ELEMENTS, ZERO_ELEMENTS_PER_RANK * found.replicas) * width(workload.gradients)


def buckets(num_bytes: float, bucket_bytes: float) -> tuple[tuple[float, int], ...]:
    """Return the sizes of DDP's buckets in bytes, each with the number of such buckets: a first bucket of 1 MiB, full
    buckets, and one bucket for the rest.

    Raises UsageError for a number of buckets that no training would use.
    """
    if num_bytes > _MOST_BUCKETS * bucket_bytes:
        raise UsageError.of(
            Refusal.BUCKETS_TOO_MANY,
            bucket_bytes=bucket_bytes,
            gigabytes=num_bytes / 1e9,
            most=_MOST_BUCKETS,
            least_bytes=num_bytes / _MOST_BUCKETS,
        )
    first = min(FIRST_BUCKET_BYTES, bucket_bytes, num_bytes)
    full, rest = divmod(num_bytes - first, bucket_bytes)
    found = ((first, 1), (bucket_bytes, int(full)), (rest, 1))
    return tuple((size, number) for size, number in found if size >= 1 and number)


def _powersgd(found: ParallelLayout, parameters: float, group: str) -> Iterator[Communication]:
    """Yield the calls of PowerSGD.

    For each n x m matrix of gradients, an n x r matrix and then an m x r matrix are reduced.
    """
    workload = found.workload
    rows, columns, whole = _matrix_sides(found)
    rank, number = workload.rank or 1, ceil(parameters * width(workload.gradients) / _bucket_bytes(found))
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
    """Return the same without the embedding and the output layer."""
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


def _units(
    found: ParallelLayout, suffix: str, parameters: float, trained: float, group: str
) -> Iterator[Communication]:
    """Yield the calls of ZeRO 3: gather a layer's weights for the forward pass and again for the backward pass, and
    reduce-scatter its gradients.

    A stage of a pipeline gathers its layers once per step and keeps them, as FSDP does in a pipeline.
    """
    workload, layers = found.workload, found.stage_layers
    staged = workload.mesh.pipeline > 1
    repetitions = layers * (1 if staged else workload.accumulation)
    weights, gradients = parameters / layers * width(workload.element), trained / layers * width(workload.gradients)
    shard, replicas = found.group(group), found.group("replicas")
    when = "once per step" if staged else "in the forward and the backward pass"
    derivation = f"{parameters:.4g} parameters / {layers} layers x {width(workload.element)} bytes"
    derivation += f" ({workload.element}), {when}"
    gathered = repetitions if staged else 2 * repetitions
    yield Communication(f"weights{suffix}", "allgather", weights, shard, gathered, "unit", derivation, repetitions)
    layer = f"{trained:.4g} parameters / {layers} layers"
    derivation = f"{layer} x {width(workload.gradients)} bytes ({workload.gradients}), in the backward pass"
    yield Communication(f"gradients{suffix}", "reducescatter", gradients, shard, repetitions, "unit", derivation)
    if group == "shard" and replicas.size > 1:
        size = gradients / shard.size
        derivation = (
            f"each replica's part of {format_bytes(size)} among the {replicas.size} replicas of hybrid sharding"
        )
        yield Communication("gradients among replicas", "allreduce", size, replicas, repetitions, "unit", derivation)


def _weights(found: ParallelLayout) -> Iterator[Communication]:
    """Yield the call of ZeRO 1 and 2 in which each rank gathers the weights that other ranks have updated."""
    if found.workload.strategy not in ("zero1", "zero2"):
        return
    for suffix, _, parameters, group in _parts(found):
        num_bytes = parameters * width(found.workload.element)
        derivation = f"{parameters:.4g} parameters x {width(found.workload.element)} bytes, after the update"
        yield Communication(
            f"updated weights{suffix}", "allgather", num_bytes, found.group(group), 1, "after", derivation
        )


def _passes(found: ParallelLayout) -> tuple[int, int, str]:
    """Return the number of blocking calls per layer in the forward pass and in the backward pass, and a description."""
    if found.workload.recompute == "full":
        return 2, 4, "2 forward, 2 backward, 2 in the repeated forward pass"
    if found.workload.recompute == "selective":
        return 2, 3, "2 forward, 2 backward, 1 in the repeated half of the forward pass"
    return 2, 2, "2 forward, 2 backward"


def _tensor(found: ParallelLayout) -> Iterator[Communication]:
    workload, size = found.workload, found.activation_bytes
    forward, backward, words = _passes(found)
    repetitions = found.stage_layers * workload.accumulation
    derivation = f"activations of a micro-batch, {format_bytes(size)}; per layer {words}"
    group = found.group("tensor")
    yield Communication(
        "activations (tensor)",
        "allreduce",
        size,
        group,
        repetitions * (forward + backward),
        "pass",
        derivation,
        repetitions * forward,
    )


def _context(found: ParallelLayout) -> Iterator[Communication]:
    """Yield the exchange of keys and values among the ranks that divide the tokens of a sample: gathered in the forward
    and the backward pass, and their gradients added (Llama 3's report, section 3.3.2; a ring sends as many bytes).
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
